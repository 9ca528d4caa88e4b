"""The public reductions (scans.py has the scans): checks with torch's exception types, then one op.

Common to all of them
- input: a strided tensor of float32, float64, float16, bfloat16, int8, uint8, int16, int32, int64 or bool on the CPU
  or a GPU, with any strides and any number of dims; it is never copied. Autocast changes nothing.
- dim (or axis): an int, a tuple of ints, or None; None and () are all dims. A 0-d integer tensor counts as an int, but
  for max and min. The elements of several dims are taken row-major, in ascending dim order. keepdim (or keepdims)
  leaves the reduced dims in the result, with size 1.
- dtype, where there is one: a torch.dtype, or float, int or bool for float64, int64 or bool.
- out: a tensor of the result's device, and of its dtype unless said otherwise. Another shape is resized, with torch's
  warning. A RuntimeError where a gradient is needed, a NotImplementedError where there is a tangent.
- Errors: IndexError for a dim out of range, RuntimeError for a repeated one, TypeError for an argument that is no
  tensor, no dim or no bool, NotImplementedError for a dtype, device or layout that is not supported.
- The bits of a result depend on the data alone (docs/numerics.md); a NaN is written as the canonical quiet one.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .checks import Dims, Overloads, as_dtype, check_dims, check_dtype, either_keepdim, overloads
from .determinism import level_code
from .dispatch import check_no_derivatives, is_bare, serving
from .fake import decided, reduced_shape

_SUM, _MEAN = overloads("sum"), overloads("mean")
_AMAX, _AMIN, _ARGMAX, _ARGMIN = (overloads(name) for name in ("amax", "amin", "argmax", "argmin"))
_MAX, _MIN, _MAX_ALL, _MIN_ALL = (overloads(name) for name in ("max", "min", "max_all", "min_all"))


# ---- out= ------------------------------------------------------------------------------------------------------------


def _check_out(name: str, out: Any) -> None:
    if not isinstance(out, Tensor):
        raise TypeError(f"{name}(): argument 'out' must be a Tensor, got {type(out).__name__}")


def _dtype_by_out(op: Overloads, dtype: torch.dtype | None, out: Tensor) -> torch.dtype:
    """For the functions with dtype=: that of out stands for it."""
    _check_out(op.name, out)
    dtype = as_dtype(dtype)
    if dtype is not None and dtype != out.dtype:
        raise RuntimeError(f"{op.name}(): expected out to have dtype {dtype}, as dtype= says, but got {out.dtype}")
    return out.dtype


def _prepare(op: Overloads, inputs: Sequence[Tensor | None], shape: Sequence[int], **outs: Any) -> None:
    """Checks what is to be written, and gives it this shape. Of several inputs the second is the one whose dtype the
    result has."""
    input = inputs[1] if len(inputs) > 1 else inputs[0]
    assert input is not None
    for key, out in outs.items():
        _check_out(op.name, out)
        dtype = op.row.result_dtype(input.dtype, out.dtype if op.row.results else None)
        dtype = torch.int64 if key == "indices" else dtype
        if out.dtype != dtype:
            raise RuntimeError(f"{op.name}(): expected {key} to have dtype {dtype}, but got {out.dtype}")
        if out.device != input.device:
            raise RuntimeError(f"{op.name}(): expected {key} to be on {input.device}, but it is on {out.device}")
    if len(set(map(id, outs.values()))) < len(outs):
        raise RuntimeError(f"{op.name}(): out= must be two tensors apart, got one tensor for both {' and '.join(outs)}")
    tensors = [t for t in (*inputs, *outs.values()) if t is not None]
    if torch.compiler.is_compiling() or not is_bare(*tensors):
        check_no_derivatives(op.name, tensors)
    if not torch.compiler.is_compiling() and not torch.is_inference_mode_enabled():
        for key, out in outs.items():
            if out.is_inference():
                raise RuntimeError(
                    f"{op.name}(): inplace update to inference tensor outside InferenceMode is not allowed: {key} is "
                    "one. Make a clone to get a normal tensor before doing inplace update."
                )
    for key, out in outs.items():
        if list(out.shape) == list(shape):
            continue
        if any(torch._C._is_alias_of(out, t) for t in inputs if t is not None):  # type: ignore[attr-defined]
            raise RuntimeError(f"{op.name}(): {key} shares memory with input and is not of shape {tuple(shape)}")
        if not decided(out.numel() == 0, False):
            warnings.warn(
                f"{op.name}(): An output with one or more elements was resized since it had shape {list(out.shape)}, "
                f"which does not match the required output shape {list(shape)}.",
                stacklevel=4,
            )
        out.resize_(shape)


def _write(
    op: Overloads, inputs: Sequence[Tensor | None], args: tuple[Any, ...], shape: Sequence[int], **outs: Any
) -> None:
    """Writes op(*inputs, *args), of this shape, to the tensors that its .out overload takes."""
    _prepare(op, inputs, shape, **outs)
    if not torch.compiler.is_dynamo_compiling() and any(map(Tensor.is_neg, outs.values())):
        # Views that negate: what is in memory is not what they hold.
        results = op.default(*inputs, *args, level_code())
        for out, result in zip(outs.values(), (results,) if isinstance(results, Tensor) else results, strict=True):
            out.copy_(result)
        return
    bare = is_bare(*(t for t in (*inputs, *outs.values()) if t is not None))
    (op.raw_out if bare else op.out)(*inputs, *args, level_code(), **outs)
    if not torch.compiler.is_compiling():
        torch.autograd.graph.increment_version(outs.values())


def _write_pair(
    op: Overloads, input: Tensor, args: tuple[Any, ...], shape: Sequence[int], out: Any
) -> tuple[Tensor, Tensor]:
    """For ops with values and indices."""
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        raise TypeError(f"{op.name}(): 'out' must be a tuple of two Tensors, got {type(out).__name__}")
    values, indices = out
    _write(op, [input], args, shape, values=values, indices=indices)
    return values, indices


# ---- sums ------------------------------------------------------------------------------------------------------------


def sum(
    input: Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    axis: Dims = None,
    keepdims: bool | None = None,
) -> Tensor:
    """The sum over dim.

    The result has dtype, or out's, else int64 for integers and bool (which counts), else the input's. Floats are
    added in float32, or in float64 if the input or the result is float64, and rounded to the result's dtype once.
    Integers wrap. Floats summed to an integer dtype are truncated toward zero one by one, NaN and what int64 cannot
    hold becoming -2^63. dtype=torch.bool tells whether any element is not zero. NaN and inf as IEEE addition gives.
    Over no elements: +0.

    >>> import torch, torchreduce
    >>> torchreduce.sum(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), dim=1)
    tensor([3., 7.])
    """
    if keepdims is not None:
        keepdim = either_keepdim(_SUM.name, keepdim, keepdims)
    dims = check_dims(_SUM, input, dim, keepdim, axis)
    if out is not None:
        dtype = _dtype_by_out(_SUM, dtype, out)
    if dtype is not None:
        dtype = check_dtype(_SUM, input, dtype)
    if out is None:
        return serving(_SUM, input)(input, dims, keepdim, dtype, level_code())  # type: ignore[no-any-return]
    _write(_SUM, [input], (dims, keepdim, dtype), reduced_shape(input.shape, dims, keepdim), out=out)
    return out


def mean(
    input: Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    axis: Dims = None,
    keepdims: bool | None = None,
) -> Tensor:
    """The mean over dim: the sum, divided once by the number of elements in the accumulator type, then rounded.

    The result has dtype, or out's, else the input's, and must be floating: the mean of integers or bool is a
    RuntimeError without dtype, and so is an integer dtype. Over no elements: NaN.

    >>> import torch, torchreduce
    >>> torchreduce.mean(torch.tensor([[1, 2], [3, 4]]), dim=0, dtype=torch.float32)
    tensor([2., 3.])
    """
    if keepdims is not None:
        keepdim = either_keepdim(_MEAN.name, keepdim, keepdims)
    dims = check_dims(_MEAN, input, dim, keepdim, axis)
    if out is not None:
        dtype = _dtype_by_out(_MEAN, dtype, out)
    if dtype is not None or not input.dtype.is_floating_point:
        dtype = check_dtype(_MEAN, input, dtype)
    if out is None:
        return serving(_MEAN, input)(input, dims, keepdim, dtype, level_code())  # type: ignore[no-any-return]
    _write(_MEAN, [input], (dims, keepdim, dtype), reduced_shape(input.shape, dims, keepdim), out=out)
    return out


# ---- extremes --------------------------------------------------------------------------------------------------------


def amax(
    input: Tensor,
    dim: Dims = (),
    keepdim: bool = False,
    *,
    out: Tensor | None = None,
    axis: Dims = None,
    keepdims: bool | None = None,
) -> Tensor:
    """The greatest value over dim, in the input's dtype.

    NaN if there is one. -0.0 is less than +0.0. Ties share the gradient evenly. Over no elements: an IndexError if
    dim is given, else a RuntimeError, and neither if the result has no elements.

    >>> import torch, torchreduce
    >>> torchreduce.amax(torch.tensor([[1, 5], [4, 2]]), dim=0)
    tensor([4, 5])
    """
    if keepdims is not None:
        keepdim = either_keepdim(_AMAX.name, keepdim, keepdims)
    dims = check_dims(_AMAX, input, dim, keepdim, axis)
    if out is None:
        return serving(_AMAX, input)(input, dims, keepdim, level_code())  # type: ignore[no-any-return]
    _write(_AMAX, [input], (dims, keepdim), reduced_shape(input.shape, dims, keepdim), out=out)
    return out


def amin(
    input: Tensor,
    dim: Dims = (),
    keepdim: bool = False,
    *,
    out: Tensor | None = None,
    axis: Dims = None,
    keepdims: bool | None = None,
) -> Tensor:
    """The least value over dim, in the input's dtype; else as amax.

    >>> import torch, torchreduce
    >>> torchreduce.amin(torch.tensor([[1, 5], [4, 2]]), dim=0)
    tensor([1, 2])
    """
    if keepdims is not None:
        keepdim = either_keepdim(_AMIN.name, keepdim, keepdims)
    dims = check_dims(_AMIN, input, dim, keepdim, axis)
    if out is None:
        return serving(_AMIN, input)(input, dims, keepdim, level_code())  # type: ignore[no-any-return]
    _write(_AMIN, [input], (dims, keepdim), reduced_shape(input.shape, dims, keepdim), out=out)
    return out


def argmax(
    input: Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    out: Tensor | None = None,
    axis: Dims = None,
    keepdims: bool | None = None,
) -> Tensor:
    """The int64 index of the greatest value over dim: the lowest of several, or that of the first NaN.

    -0.0 and +0.0 are equal. Over several dims the index counts their elements. bool works: false < true. Over no
    elements: an IndexError, unless the result has no elements.

    >>> import torch, torchreduce
    >>> torchreduce.argmax(torch.tensor([[1, 5], [5, 2]]))
    tensor(1)
    """
    if keepdims is not None:
        keepdim = either_keepdim(_ARGMAX.name, keepdim, keepdims)
    dims = check_dims(_ARGMAX, input, dim, keepdim, axis)
    if out is None:
        return serving(_ARGMAX, input)(input, dims, keepdim, level_code())  # type: ignore[no-any-return]
    _write(_ARGMAX, [input], (dims, keepdim), reduced_shape(input.shape, dims, keepdim), out=out)
    return out


def argmin(
    input: Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    out: Tensor | None = None,
    axis: Dims = None,
    keepdims: bool | None = None,
) -> Tensor:
    """The int64 index of the least value over dim; else as argmax.

    >>> import torch, torchreduce
    >>> torchreduce.argmin(torch.tensor([[1, 5], [5, 2]]), dim=1)
    tensor([0, 1])
    """
    if keepdims is not None:
        keepdim = either_keepdim(_ARGMIN.name, keepdim, keepdims)
    dims = check_dims(_ARGMIN, input, dim, keepdim, axis)
    if out is None:
        return serving(_ARGMIN, input)(input, dims, keepdim, level_code())  # type: ignore[no-any-return]
    _write(_ARGMIN, [input], (dims, keepdim), reduced_shape(input.shape, dims, keepdim), out=out)
    return out


def max(
    input: Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    out: Any = None,
    axis: Dims = None,
    keepdims: bool | None = None,
) -> Any:
    """The greatest value, and with dim also its index.

    Without dim, or with (): the values alone, as amax, but all NaN share the gradient where there are some. With an
    int or a tuple: torch.return_types.max(values, indices), the indices as argmax, the values being those elements
    (so +0.0 and -0.0 are equal here), the gradient going to them; out is a tuple of two. Over no elements as amax.
    The maximum of two tensors is torch.maximum: a tensor for dim is a TypeError.

    >>> import torch, torchreduce
    >>> torchreduce.max(torch.tensor([[1, 5], [4, 2]]))
    tensor(5)
    >>> torchreduce.max(torch.tensor([[1, 5], [4, 2]]), dim=1).indices
    tensor([1, 0])
    """
    if keepdims is not None:
        keepdim = either_keepdim(_MAX.name, keepdim, keepdims)
    dims = check_dims(_MAX, input, dim, keepdim, axis)
    if dims is not None:
        if out is None:
            return torch.return_types.max(serving(_MAX, input)(input, dims, keepdim, level_code()))
        shape = reduced_shape(input.shape, dims, keepdim)
        return torch.return_types.max(_write_pair(_MAX, input, (dims, keepdim), shape, out))
    if out is None:
        return serving(_MAX_ALL, input)(input, keepdim, level_code())
    _write(_MAX_ALL, [input], (keepdim,), reduced_shape(input.shape, None, keepdim), out=out)
    return out


def min(
    input: Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    out: Any = None,
    axis: Dims = None,
    keepdims: bool | None = None,
) -> Any:
    """The least value, and with dim also its index: torch.return_types.min(values, indices); else as max.

    >>> import torch, torchreduce
    >>> torchreduce.min(torch.tensor([[1, 5], [4, 2]]), dim=(0, 1)).values
    tensor(1)
    """
    if keepdims is not None:
        keepdim = either_keepdim(_MIN.name, keepdim, keepdims)
    dims = check_dims(_MIN, input, dim, keepdim, axis)
    if dims is not None:
        if out is None:
            return torch.return_types.min(serving(_MIN, input)(input, dims, keepdim, level_code()))
        shape = reduced_shape(input.shape, dims, keepdim)
        return torch.return_types.min(_write_pair(_MIN, input, (dims, keepdim), shape, out))
    if out is None:
        return serving(_MIN_ALL, input)(input, keepdim, level_code())
    _write(_MIN_ALL, [input], (keepdim,), reduced_shape(input.shape, None, keepdim), out=out)
    return out
