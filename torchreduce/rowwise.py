"""The public row-wise functions: softmax, norms, variances, cross-entropy.

Common to all row-wise functions
- input: a strided tensor of float32, float64, float16 or bfloat16 on the CPU or a GPU, with any strides. It is never
  copied. Other dtypes raise NotImplementedError (RuntimeError for variances, as in torch). Integers and bool are
  converted where torch converts them: by softmax and log_softmax to dtype, if given, by logsumexp to the default dtype.
- Everything is computed in float32, or in float64 if the input or the result is float64, and rounded once. The result
  for 16-bit floats is the float32 result for the same values, rounded. exp and log are torchreduce's own.
- The bits of a result, and of its gradients, depend on the data of its own row alone (docs/numerics.md). The gradient
  of a weight depends on the rows and their order. NaN results have the canonical quiet bit pattern.
- out, dim, keepdim and their errors are as in ops.py.
"""

from collections.abc import Sequence
from numbers import Real
from operator import index
from typing import Any, Literal, overload

import torch
from torch import Tensor

from ._autograd.reductions import divided, rounded
from ._autograd.rowwise import has_mean_loss, mean_loss, refuse_weight
from ._core import direct
from ._core.checks import (
    Dims,
    RowwiseOverloads,
    as_dtype,
    check_dim,
    check_floats,
    check_input,
    check_row_dims,
    either,
    listed,
    rowwise_overloads,
)
from ._core.dispatch import _is_compiling, _is_tracing, is_plain, serving
from ._fake.reductions import same_shape
from .determinism import level_code
from .ops import _COUNT_NONZERO, _SUM, check_out, prepare_outs, write_to
from .segmented import Segments, arranged, of_each_segment, places_of, segment_overloads, segments_dim
from .table import FLOATS

_SOFTMAX, _LOG_SOFTMAX, _MOMENTS = (rowwise_overloads(name) for name in ("softmax", "log_softmax", "moments"))
_LOGSUMEXP, _ENTROPY, _RMS_NORM, _LAYER_NORM = (
    rowwise_overloads(name, first=True) for name in ("logsumexp", "entropy", "rms_norm", "layer_norm")
)
_RMS_NORM_SUM, _LAYER_NORM_SUM = (rowwise_overloads(name) for name in ("rms_norm_sum", "layer_norm_sum"))
_CROSS_ENTROPY, _CROSS_ENTROPY_AND_LOG = (
    rowwise_overloads(name) for name in ("cross_entropy", "cross_entropy_and_log")
)
_mean_cross_entropy = direct.plain("mean_cross_entropy", first=True)
_BY_SEGMENTS = {name: segment_overloads(f"{name}_segments") for name in ("softmax", "log_softmax", "logsumexp")}
_LOW = (torch.float16, torch.bfloat16)


def _is_autocast(input: Tensor) -> bool:
    """Whether torch's autocast casts the function's inputs to float32; on GPUs only."""
    return input.is_cuda and torch.is_autocast_enabled("cuda") and input.dtype in _LOW


def _number(name: str, argument: str, value: Any) -> float:
    """Return a number, given as a number or a 0-d tensor; a bool is an error."""
    if isinstance(value, Tensor) and value.ndim == 0 and not value.is_complex():
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}(): argument {argument!r} must be a number, got {type(value).__name__}")
    return float(value)


def _label(name: str, argument: str, value: Any) -> int | torch.SymInt:
    """Return a label as an int64, given as an int or a tensor of one element."""
    try:
        if isinstance(value, bool):
            raise TypeError
        label = value if isinstance(value, torch.SymInt) else index(value)
    except TypeError:
        raise TypeError(f"{name}(): argument {argument!r} must be an int, got {type(value).__name__}") from None
    if not -(2**63) <= label < 2**63:
        raise ValueError(f"{name}(): argument {argument!r} must be an int of 64 bits, got {label}")
    return label


def _finish(name: str, result: Tensor, out: Tensor | None, input: Tensor) -> Tensor:
    if out is None:
        return result
    check_out(name, out)
    prepare_outs(name, [input], result.shape, {"out": result.dtype}, {"out": out})
    return out.copy_(result)


# ---- softmax ---------------------------------------------------------------------------------------------------------


def softmax(
    input: Tensor, dim: int | None = None, dtype: torch.dtype | None = None, *,
    out: Tensor | None = None, axis: int | None = None, segments: Segments | Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the softmax over dim.

    Equal elements of a row have bitwise identical results if these are normal numbers. A row with NaN or +inf, or with
    -inf alone, becomes NaN. The result's dtype is dtype, or out's, else the input's; under autocast on a GPU float32.
    With segments each segment along dim is a row of its own; segments is as in sum.

    >>> import torch, torchreduce
    >>> torchreduce.softmax(torch.tensor([[0.0, 0.0], [1.0, float("-inf")]]), dim=1)
    tensor([[0.5000, 0.5000],
            [1.0000, 0.0000]])
    >>> torchreduce.softmax(torch.zeros(5), 0, segments=torch.tensor([0, 1, 5]))
    tensor([1.0000, 0.2500, 0.2500, 0.2500, 0.2500])
    """
    return _softmax(_SOFTMAX, input, dim, dtype, out, axis, segments)


def log_softmax(
    input: Tensor, dim: int | None = None, dtype: torch.dtype | None = None, *,
    out: Tensor | None = None, axis: int | None = None, segments: Segments | Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the logarithm of softmax over dim.

    It does not underflow as log(softmax(x)) does. The function is monotone: a greater element of a row never has a
    smaller result. Special values, dtype and segments are as in softmax; the result for -inf is -inf.

    >>> import torch, torchreduce
    >>> torchreduce.log_softmax(torch.tensor([0.0, -1000.0]), dim=0)
    tensor([    0., -1000.])
    """
    return _softmax(_LOG_SOFTMAX, input, dim, dtype, out, axis, segments)


def _softmax(
    op: RowwiseOverloads, input: Tensor, dim: Any, dtype: Any, out: Tensor | None, axis: Any, segments: Any
) -> Tensor:
    simple = dtype is None and out is None and axis is None and segments is None
    if simple and not _is_compiling() and not torch.is_autocast_enabled("cuda"):
        plain: Tensor | None = op.plain(input, dim, None, level_code())
        if plain is not None:
            return plain
    check_input(op.name, input, "input", FLOATS)
    if not input.is_floating_point() and as_dtype(dtype) in FLOATS:
        input = input.to(as_dtype(dtype))
    check_floats(op.name, input)
    if segments is None:
        dim = check_dim(op.name, either(op.name, dim, axis), input.ndim)
    else:
        dim = segments_dim(op.name, input.ndim, dim, axis, out)
    dtype = as_dtype(out.dtype if out is not None and dtype is None and isinstance(out, Tensor) else dtype)
    if dtype is None and _is_autocast(input):
        dtype = torch.float32
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        kind = NotImplementedError if isinstance(dtype, torch.dtype) else TypeError
        raise kind(f"{op.name}(): expected dtype to be a floating dtype, but got {dtype}")
    if segments is not None:
        places = places_of(op.name, segments, input, dim)
        return arranged(of_each_segment(_BY_SEGMENTS[op.name], input, places, dim, dtype), places, dim, back=True)
    if out is None:
        return serving(op, input)(input, dim, dtype, level_code())  # type: ignore[no-any-return]
    check_out(op.name, out)
    prepare_outs(op.name, [input], input.shape, {"out": dtype or input.dtype}, {"out": out})
    write_to(op, [input], (dim, dtype), out=out)
    return out


# ---- values for each row ---------------------------------------------------------------------------------------------


def logsumexp(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *,
    out: Tensor | None = None, axis: Dims = None, keepdims: bool | None = None,
    segments: Segments | Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the logarithm of the sum of exponentials over dim.

    The result is NaN if any element is NaN, and +inf if one is +inf. If all elements are -inf, the result is -inf and
    the gradient is 0. Without elements the result is -inf. segments is as in sum.

    >>> import torch, torchreduce
    >>> torchreduce.logsumexp(torch.tensor([[1000.0, 1000.0]]), dim=1)
    tensor([1000.6932])
    """
    if out is None and axis is None and keepdims is None and segments is None and not _is_compiling():
        plain: Tensor | None = _LOGSUMEXP.plain(input, dim, keepdim, level_code())
        if plain is not None:
            return plain
    check_input("logsumexp", input, "input", FLOATS)
    if not input.is_floating_point():
        input = input.to(torch.get_default_dtype())
    if segments is not None:
        along = segments_dim("logsumexp", input.ndim, dim, axis, out, keepdim, keepdims)
        places = places_of("logsumexp", segments, input, along)
        return of_each_segment(_BY_SEGMENTS["logsumexp"], input, places, along)[0]  # type: ignore[no-any-return]
    dims, keepdim = check_row_dims("logsumexp", input, dim, keepdim, axis, keepdims)
    result: Tensor = serving(_LOGSUMEXP, input)(input, dims, keepdim, level_code())[0]
    return _finish("logsumexp", result, out, input)


def entropy(
    input: Tensor, dim: int | None = None, keepdim: bool = False, *,
    out: Tensor | None = None, axis: int | None = None, keepdims: bool | None = None,
) -> Tensor:  # fmt: skip
    """Return the entropy, in nats, of softmax(input, dim).

    input holds logits. The entropy is computed in one pass over the logits, without cancellation. The result is NaN
    where softmax is NaN, and 0 without elements.

    >>> import torch, torchreduce
    >>> torchreduce.entropy(torch.zeros(1, 4), dim=1)
    tensor([1.3863])
    """
    if out is None and type(dim) is int and axis is None and keepdims is None and not _is_compiling():
        plain: Tensor | None = _ENTROPY.plain(input, dim, keepdim, level_code())
        if plain is not None:
            return plain
    check_floats("entropy", input)
    along = check_dim("entropy", either("entropy", dim, axis), input.ndim)
    dims, keepdim = check_row_dims("entropy", input, [along], keepdim, None, keepdims)
    result: Tensor = serving(_ENTROPY, input)(input, dims, keepdim, level_code())[0]
    return _finish("entropy", result, out, input)


def _correction(name: str, unbiased: Any, correction: Any) -> float:
    if unbiased is not None:
        if not isinstance(unbiased, bool):
            raise TypeError(f"{name}(): argument 'unbiased' must be a bool, got {type(unbiased).__name__}")
        if correction is not None:
            raise TypeError(f"{name}(): give one of 'unbiased' and 'correction', not both")
        return float(unbiased)
    if correction is None or isinstance(correction, bool):
        return 1.0 if correction is None else float(correction)
    return _number(name, "correction", correction)


def _moments(
    name: str, input: Tensor, dim: Dims, unbiased: Any, keepdim: bool, correction: Any, root: bool,
    axis: Dims, keepdims: bool | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    if isinstance(dim, bool) and unbiased is None:  # torch's var(input, unbiased)
        dim, unbiased = None, dim
    divisor = _correction(name, unbiased, correction)
    if axis is None and keepdims is None and not _is_compiling():
        plain: tuple[Tensor, ...] | None = _MOMENTS.plain(input, dim, keepdim, divisor, root, level_code())
        if plain is not None:
            return plain[0], plain[1]
    if isinstance(input, Tensor) and not input.is_floating_point() and not input.is_complex():
        raise RuntimeError(f"{name}(): expected input to have a floating dtype, but got {input.dtype}")
    dims, keepdim = check_row_dims(name, input, dim, keepdim, axis, keepdims)
    value, mean, _ = serving(_MOMENTS, input)(input, dims, keepdim, divisor, root, level_code())
    return value, mean


def var(
    input: Tensor,
    dim: Dims = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
    out: Tensor | None = None,
    axis: Dims = None,
    keepdims: bool | None = None,
) -> Tensor:
    """Return the variance over dim.

    The variance is the sum of squared differences from the mean, divided by max(0, n - correction), where n is the
    number of elements. correction is 1 by default. unbiased is its older name: True for 1, False for 0.

    The result is accurate within some units in the last place, whatever the mean. The variance of equal elements is
    exactly 0. The result is NaN if any element is NaN or infinite.

    >>> import torch, torchreduce
    >>> torchreduce.var(torch.tensor([1e6, 1e6 + 1, 1e6 + 2]))
    tensor(1.)
    """
    variance, _ = _moments("var", input, dim, unbiased, keepdim, correction, False, axis, keepdims)
    return _finish("var", variance, out, input)


def std(
    input: Tensor,
    dim: Dims = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
    out: Tensor | None = None,
    axis: Dims = None,
    keepdims: bool | None = None,
) -> Tensor:
    """Return the standard deviation over dim: the square root of var.

    Where it is 0, its gradient is 0.

    >>> import torch, torchreduce
    >>> torchreduce.std(torch.tensor([[1.0, 3.0], [2.0, 2.0]]), dim=1, correction=0)
    tensor([1., 0.])
    """
    deviation, _ = _moments("std", input, dim, unbiased, keepdim, correction, True, axis, keepdims)
    return _finish("std", deviation, out, input)


def var_mean(
    input: Tensor, dim: Dims = None, unbiased: bool | None = None, keepdim: bool = False, *,
    correction: float | None = None, axis: Dims = None, keepdims: bool | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the variance and the mean over dim, in one pass over the input.

    >>> import torch, torchreduce
    >>> torchreduce.var_mean(torch.tensor([1.0, 3.0]))
    (tensor(2.), tensor(2.))
    """
    return _moments("var_mean", input, dim, unbiased, keepdim, correction, False, axis, keepdims)


def std_mean(
    input: Tensor, dim: Dims = None, unbiased: bool | None = None, keepdim: bool = False, *,
    correction: float | None = None, axis: Dims = None, keepdims: bool | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the standard deviation and the mean over dim, in one pass over the input.

    >>> import torch, torchreduce
    >>> torchreduce.std_mean(torch.tensor([1.0, 3.0]), correction=0)
    (tensor(1.), tensor(2.))
    """
    return _moments("std_mean", input, dim, unbiased, keepdim, correction, True, axis, keepdims)


# ---- norms -----------------------------------------------------------------------------------------------------------


def _normalized(name: str, input: Tensor, shape: Any, **weights: Tensor | None) -> tuple[Any, ...]:
    """Return the number of normalized dims, and the weights, all in the input's dtype or all in the accumulator's."""
    check_floats(name, input)
    sizes = [shape] if isinstance(shape, int) else list(shape) if isinstance(shape, Sequence) else None
    if sizes is None or not all(isinstance(n, (int, torch.SymInt)) or hasattr(n, "__index__") for n in sizes):
        raise TypeError(f"{name}(): argument 'normalized_shape' must be an int or ints, got {shape!r}")
    if not sizes:
        raise RuntimeError(f"{name}(): expected normalized_shape to have at least one dim, but got {sizes}")
    if len(sizes) > input.ndim or not same_shape(input.shape[input.ndim - len(sizes) :], sizes):
        rest = ", ".join(["*", *map(str, sizes)])
        raise RuntimeError(
            f"{name}(): given normalized_shape={sizes}, expected input with shape [{rest}], but got input of size "
            f"{list(input.shape)}"
        )
    wide = torch.float64 if input.dtype is torch.float64 else torch.float32
    given = {key: t for key, t in weights.items() if t is not None}
    for key, t in given.items():
        if not isinstance(t, Tensor):
            raise TypeError(f"{name}(): argument {key!r} must be a Tensor, got {type(t).__name__}")
        if not same_shape(t.shape, sizes):
            raise RuntimeError(
                f"{name}(): expected {key} to be of same shape as normalized_shape, but got {key} of shape "
                f"{list(t.shape)} and normalized_shape = {sizes}"
            )
        check_floats(name, t, key)
        if t.device != input.device:
            raise RuntimeError(f"{name}(): expected {key} to be on {input.device}, but it is on {t.device}")
    dtypes = {t.dtype for t in given.values()}
    if len(dtypes) > 1 or not dtypes <= {input.dtype, wide}:
        weights = {key: None if t is None else t.to(wide) for key, t in weights.items()}
    return len(sizes), *weights.values()


def _plainly_normalized(input: Tensor, shape: Any, *weights: Tensor | None) -> int:
    """Return the number of normalized dims; 0 if only the full checks of _normalized can tell."""
    if _is_compiling() or _is_tracing() or torch.is_autocast_enabled("cuda") or not is_plain(input):
        return 0
    sizes = (shape,) if type(shape) is int else tuple(shape) if isinstance(shape, (tuple, list)) else ()
    for t in weights:
        if t is not None and not (is_plain(t) and t.shape == sizes and t.dtype is input.dtype):
            return 0
    return len(sizes) if input.shape[-len(sizes) :] == sizes else 0


def _least(dtype: torch.dtype) -> float:
    """Return the default eps of rms_norm: that of the accumulator type."""
    return 2.0**-52 if dtype is torch.float64 else 2.0**-23


def _check_residual(name: str, input: Tensor, residual: Any) -> None:
    check_floats(name, residual, "residual")
    if residual.dtype != input.dtype or residual.device != input.device or not same_shape(residual.shape, input.shape):
        raise RuntimeError(
            f"{name}(): expected residual to have input's shape {list(input.shape)}, dtype {input.dtype} and device "
            f"{input.device}, but got {list(residual.shape)}, {residual.dtype} and {residual.device}"
        )


@overload
def rms_norm(
    input: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None, eps: float | None = None, *,
    residual: None = None,
) -> Tensor: ...  # fmt: skip
@overload
def rms_norm(
    input: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None, eps: float | None = None, *,
    residual: Tensor,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
def rms_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    residual: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Apply RMS normalization over the last dims.

    Each row is divided by sqrt(mean(x^2) + eps) and multiplied by weight. normalized_shape is the shape of a row.
    weight may have any float dtype; it is applied in float32 (float64 for a float64 input). eps is by default that of
    the accumulator: 2^-23, or 2^-52 for float64. The result of a channels-last input is channels-last, as torch's is.

    With a residual, of the input's shape and dtype, the result is a tuple: the norm of s and s, where
    s = input + residual. Both are computed in one pass, and are bitwise identical to the separate calls.

    >>> import torch, torchreduce
    >>> torchreduce.rms_norm(torch.tensor([[3.0, 4.0]]), 2)
    tensor([[0.8485, 1.1314]])
    >>> torchreduce.rms_norm(torch.tensor([[1.0, 3.0]]), 2, residual=torch.tensor([[2.0, 1.0]]))
    (tensor([[0.8485, 1.1314]]), tensor([[3., 4.]]))
    """
    if residual is None and (dims := _plainly_normalized(input, normalized_shape, weight)):
        if eps is None:
            eps = _least(input.dtype)
        plain: Tensor | None = _RMS_NORM.plain(input, weight, dims, eps, level_code())
        if plain is not None:
            return plain
    dims, weight = _normalized("rms_norm", input, normalized_shape, weight=weight)
    if eps is None:
        eps = _least(input.dtype)
    more = () if weight is None else (weight,)
    rest = (weight, dims, _number("rms_norm", "eps", eps), level_code())
    if residual is None:
        return serving(_RMS_NORM, input, *more)(input, *rest)[0]  # type: ignore[no-any-return]
    _check_residual("rms_norm", input, residual)
    normal, total, _ = serving(_RMS_NORM_SUM, input, residual, *more)(input, residual, *rest)
    return normal, total


@overload
def layer_norm(
    input: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5, *, residual: None = None,
) -> Tensor: ...  # fmt: skip
@overload
def layer_norm(
    input: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5, *, residual: Tensor,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    residual: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Apply layer normalization over the last dims.

    Each row becomes (x - mean) / sqrt(var + eps) * weight + bias. normalized_shape is the shape of a row. The result is
    accurate also if the mean is large compared with the standard deviation. weight and bias may have any float dtypes;
    they are applied in float32 (float64 for a float64 input). Under autocast on a GPU the result is float32.

    With a residual the result is a tuple, as in rms_norm: the norm of input + residual, and that sum.

    >>> import torch, torchreduce
    >>> torchreduce.layer_norm(torch.tensor([[1.0, 3.0]]), 2, eps=0)
    tensor([[-1.,  1.]])
    """
    if residual is None and (dims := _plainly_normalized(input, normalized_shape, weight, bias)):
        plain: Tensor | None = _LAYER_NORM.plain(input, weight, bias, dims, eps, level_code())
        if plain is not None:
            return plain
    if residual is not None:
        check_floats("layer_norm", input)
        _check_residual("layer_norm", input, residual)
    if isinstance(input, Tensor) and _is_autocast(input):
        input = input.float()
        weight, bias, residual = (t if t is None else t.float() for t in (weight, bias, residual))
    dims, weight, bias = _normalized("layer_norm", input, normalized_shape, weight=weight, bias=bias)
    more = [t for t in (weight, bias) if t is not None]
    rest = (weight, bias, dims, _number("layer_norm", "eps", eps), level_code())
    if residual is None:
        return serving(_LAYER_NORM, input, *more)(input, *rest)[0]  # type: ignore[no-any-return]
    normal, total, _ = serving(_LAYER_NORM_SUM, input, residual, *more)(input, residual, *rest)
    return normal, total


# ---- cross-entropy ---------------------------------------------------------------------------------------------------


@overload
def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int = -100, reduction: str = "mean",
    label_smoothing: float = 0.0, dtype: torch.dtype | None = None, return_logsumexp: Literal[False] = False,
) -> Tensor: ...  # fmt: skip
@overload
def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int = -100, reduction: str = "mean",
    label_smoothing: float = 0.0, dtype: torch.dtype | None = None, return_logsumexp: Literal[True],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    dtype: torch.dtype | None = None,
    return_logsumexp: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute the cross-entropy between logits and targets, as torch.nn.functional.cross_entropy.

    - input: logits of shape (classes), (rows, classes) or (rows, classes, ...).
    - target: int64 labels, of input's shape without classes; or probabilities, of input's shape and any float dtype.
    - weight: one element per class, of any float dtype. It has no gradient (RuntimeError, as in torch).
    - ignore_index: rows with this label add nothing to the loss, and their gradient is 0, whatever they contain.
    - reduction: "none", "sum" or "mean". The mean divides by the sum of the labels' weights, for probabilities by the
      number of rows. It is NaN if the divisor is 0.
    - label_smoothing: from 0 to 1; this part of each label or probability is distributed evenly over the classes.
    - dtype: that of the loss. By default it is the input's, for probabilities the promoted dtype of both, and under
      autocast on a GPU float32. With dtype=torch.float32 the loss of 16-bit logits is not rounded to 16 bits, and the
      logits are not copied.
    - return_logsumexp: also return the logsumexp of each row, in float32 or float64, with its gradient. It is 0 for an
      ignored row.

    With labels, neither a float32 copy of the logits nor log-probabilities are stored: 8 bytes per row are saved for
    the backward pass. label_smoothing reads the logits once more. Probabilities, and label_smoothing with weight, store
    log-probabilities.

    A label out of range raises IndexError on the CPU. On a GPU, where the call does not wait for the kernel, its loss
    and gradient are NaN.

    >>> import torch, torchreduce
    >>> torchreduce.cross_entropy(torch.tensor([[0.0, 0.0], [9.0, 0.0]]), torch.tensor([1, -100]))
    tensor(0.6931)
    >>> logits, labels = torch.zeros(2, 4, dtype=torch.bfloat16), torch.tensor([1, 3])
    >>> loss, z = torchreduce.cross_entropy(logits, labels, dtype=torch.float32, return_logsumexp=True)
    >>> loss + 1e-4 * z.square().mean()
    tensor(1.3865)
    """
    usual = weight is None and reduction == "mean" and dtype is None and not return_logsumexp
    if usual and type(ignore_index) is int and type(label_smoothing) is float and not label_smoothing:
        plain = mean_of_labels(input, target, ignore_index)
        if plain is not None:
            return plain
    name = "cross_entropy"
    check_floats(name, input)
    if not isinstance(target, Tensor):
        raise TypeError(f"{name}(): argument 'target' must be a Tensor, got {type(target).__name__}")
    smoothing = _number(name, "label_smoothing", label_smoothing)
    if not 0 <= smoothing <= 1:
        raise RuntimeError(f"{name}(): label_smoothing must be between 0.0 and 1.0, but got {label_smoothing}")
    if reduction not in ("none", "sum", "mean"):
        raise ValueError(f"{name}(): {reduction!r} is not a valid value for reduction: give 'none', 'sum' or 'mean'")
    ignored, level = _label(name, "ignore_index", ignore_index), level_code()
    dim = 0 if input.ndim == 1 else 1
    soft = same_shape(target.shape, input.shape)
    target = _check_probabilities(name, target, ignored) if soft else _check_labels(name, input, target)
    if target.device != input.device:
        raise RuntimeError(f"{name}(): expected target to be on {input.device}, but it is on {target.device}")
    _check_class_weights(name, input, dim, weight)
    result = _loss_dtype(name, input, target, dtype)
    if result is torch.float64:
        input = input.double()
    spreads = soft or (smoothing > 0 and weight is not None)
    if spreads:
        losses, log, weights = _of_probabilities(input, target, weight, dim, ignored, smoothing, level)
    elif smoothing:
        call = torch.ops.torchreduce.smoothed_cross_entropy.default
        losses, log, weights, _ = call(input, target, dim, ignored, smoothing, level)
    else:
        more = (target,) if weight is None else (target, weight)
        op = _CROSS_ENTROPY_AND_LOG if return_logsumexp else _CROSS_ENTROPY
        losses, *logs, weights, _ = serving(op, input, *more)(input, target, weight, dim, ignored, level)
        log = logs[0] if logs else losses  # not used
    if reduction == "mean" and not spreads and has_mean_loss(losses, weights):
        loss = mean_loss(losses, weights, weight is None, result, level)
    else:
        loss = _reduced(losses, weights, reduction, result, soft or weight is None, level)
    return (loss, log) if return_logsumexp else loss


def selected_log_softmax(
    input: Tensor, index: Tensor, dim: int = -1, *, ignore_index: int | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Return the elements of log_softmax(input, dim) that index selects: log-probabilities of tokens.

    input holds logits, of shape (..., classes) for dim=-1, and index int64 or int32 labels of shape (...), one for each
    row of logits. The result has index's shape, and is bitwise identical to these elements of
    log_softmax(input, dim, dtype), which torch gathers by .gather(dim, index.unsqueeze(dim)).squeeze(dim). Nothing of
    the size of the logits is stored, neither by the call nor for the gradient, which reads the logits again. For the
    entropy of the same rows call entropy(input, dim).

    Rows labelled ignore_index have result and gradient 0, whatever they contain. dtype is that of the result. A label
    out of range raises IndexError on the CPU. On a GPU, where the call does not wait for the kernel, its result and
    gradient are NaN.

    >>> import torch, torchreduce
    >>> logits = torch.tensor([[[0.0, 0.0], [3.0, 0.0]]])
    >>> torchreduce.selected_log_softmax(logits, torch.tensor([[1, 1]]))
    tensor([[-0.6931, -3.0486]])
    """
    name = "selected_log_softmax"
    check_floats(name, input)
    dim = check_dim(name, dim, input.ndim) % max(1, input.ndim)
    _check_selecting(name, input, index, dim)
    # A label that no row has, if none is to be ignored.
    ignored = -(2**63) if ignore_index is None else _label(name, "ignore_index", ignore_index)
    result = _loss_dtype(name, input, index, dtype)
    if result is torch.float64:
        input = input.double()
    index = index.long()
    try:
        losses: Tensor = serving(_CROSS_ENTROPY, input, index)(input, index, None, dim, ignored, level_code())[0]
    except IndexError as error:  # a label out of range, of the op that this one is made of
        raise IndexError(str(error).replace("cross_entropy", name, 1)) from None
    return rounded(torch.where(losses.isnan(), losses, 0 - losses), result)  # NaN keeps its sign, and 0 is +0


def _check_selecting(name: str, input: Tensor, index: Any, dim: int) -> None:
    if not isinstance(index, Tensor):
        raise TypeError(f"{name}(): argument 'index' must be a Tensor, got {type(index).__name__}")
    if index.dtype not in (torch.int64, torch.int32):
        raise RuntimeError(f"{name}(): expected index dtype to be int64 or int32, but got {index.dtype}")
    if input.ndim == 0:
        raise RuntimeError(f"{name}(): expected input to have at least 1 dim, but got a 0-d tensor")
    rest = [*input.shape[:dim], *input.shape[dim + 1 :]]
    if not same_shape(index.shape, rest):
        raise RuntimeError(
            f"{name}(): expected index to have input's shape {list(input.shape)} without dim {dim}, but got "
            f"{list(index.shape)}. For several labels of a row use log_softmax(input, dim).gather(dim, index)"
        )
    if index.device != input.device:
        raise RuntimeError(f"{name}(): expected index to be on {input.device}, but it is on {index.device}")


def _check_probabilities(name: str, target: Tensor, ignored: int | torch.SymInt) -> Tensor:
    if not target.is_floating_point():
        raise RuntimeError(
            f"{name}(): expected target of input's shape (probabilities) to have a floating dtype, got {target.dtype}"
        )
    check_floats(name, target, "target")
    if ignored >= 0:
        raise RuntimeError(
            f"{name}(): ignore_index is only for labels: expected it to be negative with probabilities as target, "
            f"got {ignored}"
        )
    return target


def mean_of_labels(input: Tensor, target: Tensor, ignored: int) -> Tensor | None:
    """Return the mean loss; None if only the full checks of cross_entropy can tell."""
    if not is_plain(input) or not is_plain(target) or not has_mean_loss(target, target) or _is_autocast(input):
        return None
    if input.ndim < 2 or target.shape != input.shape[:1] + input.shape[2:]:
        return None
    mean: Tensor | None = _mean_cross_entropy(input, target, None, 1, ignored, input.dtype, level_code())
    return mean


def _check_labels(name: str, input: Tensor, target: Tensor) -> Tensor:
    dim = 0 if input.ndim == 1 else 1
    if input.ndim == 1 and same_shape(target.shape, [1]):
        target = target.reshape(())
    if input.ndim == 0 or not same_shape(target.shape, [*input.shape[:dim], *input.shape[dim + 1 :]]):
        if input.ndim == 1:
            rows_differ = target.ndim == 1 and target.dtype in (torch.int64, torch.uint8)
        else:
            rows_differ = input.ndim > 1 and (target.ndim == 0 or target.shape[0] != input.shape[0])
        kind = ValueError if rows_differ else IndexError if input.ndim == 0 < target.ndim else RuntimeError
        raise kind(
            f"{name}(): expected target to have input's shape {list(input.shape)}, or that without the classes, but "
            f"got {list(target.shape)}"
        )
    if target.dtype is not torch.int64:
        if target.dtype is not torch.uint8:
            raise RuntimeError(f"{name}(): expected target dtype to be int64 or uint8, but got {target.dtype}")
        target = target.long()
    return target


def _check_class_weights(name: str, input: Tensor, dim: int, weight: Tensor | None) -> None:
    if weight is None:
        return
    check_floats(name, weight, "weight")
    if not same_shape(weight.shape, [input.shape[dim]]):
        raise RuntimeError(
            f"{name}(): expected weight to have one element for each of {input.shape[dim]} classes, but got shape "
            f"{list(weight.shape)}"
        )
    if weight.device != input.device:
        raise RuntimeError(f"{name}(): expected weight to be on {input.device}, but it is on {weight.device}")


def _loss_dtype(name: str, input: Tensor, target: Tensor, dtype: Any) -> torch.dtype:
    dtype = as_dtype(dtype)
    if dtype is not None:
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"{name}(): argument 'dtype' must be a torch.dtype, got {type(dtype).__name__}")
        if dtype not in FLOATS:
            raise NotImplementedError(f"{name}(): not implemented for dtype={dtype}. Supported are {listed(FLOATS)}")
        return dtype
    result = torch.float32 if _is_autocast(input) else input.dtype
    return torch.promote_types(result, target.dtype) if target.is_floating_point() else result


def _of_probabilities(
    input: Tensor, target: Tensor, weight: Tensor | None, dim: int, ignored: Any, smoothing: float, level: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the losses of the rows from log-probabilities, the logsumexp of the rows, and their weights in the mean.
    target may have labels, too."""
    refuse_weight(weight is not None and weight.requires_grad and torch.is_grad_enabled())
    wide = torch.promote_types(input.dtype, torch.float32)
    left_out, q, weights = None, target, None
    if not target.is_floating_point():
        left_out = target == ignored
        input = input.masked_fill(left_out.unsqueeze(dim), 0)
        labels = target.masked_fill(left_out, 0)
        classes = torch.arange(input.shape[dim], device=input.device)
        q = labels.unsqueeze(dim) == classes.reshape([-1 if d == dim else 1 for d in range(input.ndim)])
        assert weight is not None
        weights = weight.to(wide)[labels].masked_fill(left_out, 0)
    q = q.to(wide)
    if smoothing:
        q = torch.ops.torchreduce.smoothed.default(q, smoothing, input.shape[dim])
    y: Tensor = serving(_LOG_SOFTMAX, input)(input, dim, wide, level)
    log: Tensor = serving(_LOGSUMEXP, input)(input.to(wide), [dim], False, level)[0]
    products = y * q
    if weight is not None:
        products = products * weight.to(wide).reshape([-1 if d == dim else 1 for d in range(input.ndim)])
    if left_out is not None:
        products = products.masked_fill(left_out.unsqueeze(dim), 0)
        log = log.masked_fill(left_out, 0)
    losses: Tensor = -serving(_SUM, products)(products, [dim], False, None, level)
    return losses, log, torch.ones_like(losses) if weights is None else weights


def _reduced(
    losses: Tensor, weights: Tensor, reduction: str, result: torch.dtype, counts: bool, level: int
) -> Tensor:  # fmt: skip
    """Return the reduced loss. counts: the weights are all 1 or 0."""
    if reduction == "none":
        return rounded(losses, result)
    to = result if reduction == "sum" else losses.dtype
    total: Tensor = serving(_SUM, losses)(losses, None, False, to, level)
    if reduction == "sum":
        return total
    if counts:
        return divided(total, serving(_COUNT_NONZERO, weights)(weights, None, False, level), result)
    return divided(total, serving(_SUM, weights)(weights, None, False, weights.dtype, level), result)
