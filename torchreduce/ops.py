"""The public reductions: checks with torch's exception types, then one op. The scans are in scans.py.

Common to all reductions
- input: a strided tensor of float32, float64, float16, bfloat16, int8, uint8, int16, int32, int64 or bool on the CPU
  or a GPU, with any strides and at most 64 dims. Autocast has no effect. It is not copied, but for up to 128 MiB on a
  GPU whose elements are far apart in memory along the reduced dims, for the time of the call, where that is faster and
  there is memory for it.
- dim (or axis): an int, a tuple of ints, or None. None and () reduce all dims. A 0-d integer tensor counts as an int,
  except for max and min. Elements of several dims are taken in row-major order, dims ascending. With keepdim (or
  keepdims) the reduced dims stay in the result, with size 1.
- dtype, if the function has it: a torch.dtype, or float, int or bool for float64, int64 or bool.
- out: a tensor on the result's device, and of its dtype unless stated otherwise. A tensor of another shape is resized,
  with torch's warning. Raises RuntimeError if a gradient is needed, NotImplementedError under forward-mode AD.
- segments, if the function has it: offsets of one dim, int32 or int64, or what torchreduce.segments returns. The result
  has size len(offsets) - 1 along dim, which is then one int. Its element k is bitwise identical to the function of
  x[offsets[k]:offsets[k + 1]]; an index counts from the beginning of the segment. A segment without elements has what
  an empty dim has; amax, amin, max and min are then the least or the greatest value of the dtype, with index -1.
  Raises TypeError together with keepdim or out, RuntimeError on a CPU for offsets that fall or are out of range.
- Errors: IndexError for a dim out of range, RuntimeError for a repeated dim, TypeError for an argument of the wrong
  type, NotImplementedError for an unsupported dtype, device or layout.
- The bits of a result depend on the data alone (docs/numerics.md). NaN results have the canonical quiet bit pattern.
"""

import builtins
import math
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, overload

import torch
from torch import Tensor

from ._autograd.reductions import accumulator, divided
from ._core.checks import (
    Dims,
    GivenDims,
    Overloads,
    RowwiseOverloads,
    as_dtype,
    check_dims,
    check_dtype,
    check_input,
    check_layout,
    either_keepdim,
    overloads,
)
from ._core.dispatch import _is_compiling, check_no_derivatives, is_bare, is_plain, is_unwatched, serving
from ._fake.reductions import decided, dims_of, reduced_shape
from .determinism import level_code
from .segmented import Segments, by_segments
from .table import DTYPES, FLOATS

_SUM, _MEAN, _NANSUM, _PROD = (overloads(name) for name in ("sum", "mean", "nansum", "prod"))
_ANY, _ALL, _COUNT_NONZERO = (overloads(name) for name in ("any", "all", "count_nonzero"))
_AMAX, _AMIN, _ARGMAX, _ARGMIN = (overloads(name) for name in ("amax", "amin", "argmax", "argmin"))
_NANSUM_OF_INTEGERS, _PROD_OF_BOOLS = replace(_SUM, name="nansum"), replace(_ALL, name="prod")
_NANSUM_AND_COUNT, _AMINMAX = (overloads(name) for name in ("nansum_and_count", "aminmax"))
_MAX, _MIN, _MAX_ALL, _MIN_ALL = (overloads(name) for name in ("max", "min", "max_all", "min_all"))


# ---- out= ------------------------------------------------------------------------------------------------------------


def check_out(name: str, out: Any) -> None:
    if not isinstance(out, Tensor):
        raise TypeError(f"{name}(): argument 'out' must be a Tensor, got {type(out).__name__}")
    check_layout(name, out, "out")


def dtype_by_out(op: Overloads, dtype: torch.dtype | None, out: Tensor) -> torch.dtype:
    """Return the dtype of the result for functions with dtype=, if out is given: out's dtype."""
    check_out(op.name, out)
    dtype = as_dtype(dtype)
    if dtype is not None and dtype != out.dtype:
        raise RuntimeError(f"{op.name}(): expected out to have dtype {dtype}, as given by dtype=, but got {out.dtype}")
    return out.dtype


def _level_outside() -> int:
    """Return the stacklevel at which a warning of the caller points to the code that called torchreduce."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals["__name__"].startswith(f"{__package__}."):
        level, frame = level + 1, frame.f_back
    return level


def _prepare(op: Overloads, inputs: Sequence[Tensor | None], shape: Sequence[int], **outs: Any) -> None:
    """Check the output tensors and resize them to this shape. With several inputs the result has the second one's
    dtype."""
    input = inputs[1] if len(inputs) > 1 else inputs[0]
    assert input is not None
    dtypes = {}
    for key, out in outs.items():
        check_out(op.name, out)
        dtype = op.row.result_dtype(input.dtype, out.dtype if op.row.results else None)
        dtypes[key] = torch.int64 if key == "indices" else dtype
    prepare_outs(op.name, inputs, shape, dtypes, outs)


def prepare_outs(
    name: str,
    inputs: Sequence[Tensor | None],
    shape: Sequence[int],
    dtypes: dict[str, torch.dtype],
    outs: dict[str, Tensor],
) -> None:
    """Check that output tensors have these dtypes and the inputs' device, and resize them to this shape."""
    device = next(t.device for t in inputs if t is not None)
    for key, out in outs.items():
        if out.dtype != dtypes[key]:
            raise RuntimeError(f"{name}(): expected {key} to have dtype {dtypes[key]}, but got {out.dtype}")
        if out.device != device:
            raise RuntimeError(f"{name}(): expected {key} to be on {device}, but it is on {out.device}")
    if len(set(map(id, outs.values()))) < len(outs):
        raise RuntimeError(f"{name}(): out= must be two tensors apart, got one tensor for both {' and '.join(outs)}")
    tensors = [t for t in (*inputs, *outs.values()) if t is not None]
    if torch.compiler.is_compiling() or not is_bare(*tensors):
        check_no_derivatives(name, tensors)
    if not torch.compiler.is_compiling() and not torch.is_inference_mode_enabled():
        for key, out in outs.items():
            if out.is_inference():
                raise RuntimeError(
                    f"{name}(): inplace update to inference tensor outside InferenceMode is not allowed: {key} is "
                    "one. Make a clone to get a normal tensor before doing inplace update."
                )
    for key, out in outs.items():
        if list(out.shape) == list(shape):
            continue
        if builtins.any(torch._C._is_alias_of(out, t) for t in inputs if t is not None):  # type: ignore[attr-defined]
            raise RuntimeError(
                f"{name}(): {key} shares memory with input, so it must have shape {list(shape)}, but got "
                f"{list(out.shape)}"
            )
        if not decided(out.numel() == 0, False):
            warnings.warn(
                f"{name}(): An output with one or more elements was resized since it had shape {list(out.shape)}, "
                f"which does not match the required output shape {list(shape)}.",
                stacklevel=_level_outside(),
            )
        out.resize_(shape)
    if _interleave(*outs.values()) and _overlap(*outs.values()):
        raise RuntimeError(f"{name}(): out= must be two tensors apart, but {' and '.join(outs)} share memory")


def _span(t: Tensor) -> tuple[int, int]:
    """Return the addresses of the first byte and past the last byte; the two are equal without elements."""
    last = builtins.sum((n - 1) * stride for n, stride in zip(t.shape, t.stride(), strict=True))
    return t.data_ptr(), t.data_ptr() + (last + 1) * t.element_size() * (t.numel() > 0)


def _interleave(*outs: Tensor) -> bool:
    """Whether the address ranges of two outputs overlap. Checked only for tensors that have memory to write to."""
    if len(outs) < 2 or not is_unwatched() or not builtins.all(is_plain(t) and not t.is_meta for t in outs):
        return False
    (first, first_end), (second, second_end) = map(_span, outs)
    return first < second_end and second < first_end


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors with overlapping address ranges share a byte."""
    spans = _span(a), _span(b)
    origin = builtins.min(start for start, _ in spans)
    unit = math.gcd(a.element_size(), b.element_size(), spans[0][0] - spans[1][0])
    used = torch.zeros((builtins.max(end for _, end in spans) - origin) // unit, dtype=torch.bool)

    def units(t: Tensor, start: int) -> Tensor:
        size = t.element_size() // unit
        return used.as_strided([*t.shape, size], [*(s * size for s in t.stride()), 1], (start - origin) // unit)

    units(a, spans[0][0]).fill_(True)
    return bool(units(b, spans[1][0]).any())


def _write(
    op: Overloads, inputs: Sequence[Tensor | None], args: tuple[Any, ...], shape: Sequence[int], **outs: Any
) -> None:
    """Write op(*inputs, *args), of this shape, to the tensors that its .out overload takes."""
    _prepare(op, inputs, shape, **outs)
    write_to(op, inputs, args, **outs)


def write_to(
    op: Overloads | RowwiseOverloads, inputs: Sequence[Tensor | None], args: tuple[Any, ...], **outs: Any
) -> None:
    """Write op(*inputs, *args) to tensors that prepare_outs has seen."""
    negated = not torch.compiler.is_dynamo_compiling() and builtins.any(map(Tensor.is_neg, outs.values()))
    if negated or _interleave(*outs.values()):
        # The memory of a view with the negative bit does not hold its values. Kernels need two disjoint outputs.
        results = op.default(*inputs, *args, level_code())
        for out, result in zip(outs.values(), (results,) if isinstance(results, Tensor) else results, strict=True):
            out.copy_(result)
        return
    bare = is_bare(*(t for t in (*inputs, *outs.values()) if t is not None))
    write: Any = op.raw_out if bare else op.out
    write(*inputs, *args, level_code(), **outs)
    if not torch.compiler.is_compiling():
        torch.autograd.graph.increment_version(outs.values())


def _pair(name: str, out: Any) -> Any:
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        raise TypeError(f"{name}(): 'out' must be a tuple of two Tensors, got {type(out).__name__}")
    return out


def _write_pair(
    op: Overloads, input: Tensor, args: tuple[Any, ...], shape: Sequence[int], out: Any
) -> tuple[Tensor, Tensor]:
    """Write the results of an op with values and indices."""
    values, indices = _pair(op.name, out)
    _write(op, [input], args, shape, values=values, indices=indices)
    return values, indices


# ---- calls of one kind -----------------------------------------------------------------------------------------------


def _along(
    op: Overloads,
    input: Tensor,
    dim: Dims,
    keepdim: bool,
    out: Tensor | None,
    axis: Dims,
    keepdims: bool | None,
    segments: Any = None,
) -> Tensor:
    """Call an op with one result and no dtype=."""
    if segments is not None:
        return by_segments(op, input, dim, segments, keepdim, None, out, axis, keepdims)  # type: ignore[no-any-return]
    if out is None and axis is None and keepdims is None and not _is_compiling():
        result: Tensor | None = op.plain(input, dim, keepdim, level_code())
        if result is not None:
            return result
    if keepdims is not None:
        keepdim = either_keepdim(op.name, keepdim, keepdims)
    dims = check_dims(op, input, dim, keepdim, axis)
    if out is None:
        return serving(op, input)(input, dims, keepdim, level_code())  # type: ignore[no-any-return]
    _write(op, [input], (dims, keepdim), reduced_shape(input.shape, dims, keepdim), out=out)
    return out


def _check_no_gradient(name: str, input: Tensor, dtype: torch.dtype) -> None:
    """Check that no gradient is needed of a result of a dtype that is not floating."""
    if torch.is_grad_enabled() and input.requires_grad:
        raise RuntimeError(
            f"{name}(): autograd does not support a result of {dtype}; detach() the input, or call it under "
            "torch.no_grad()"
        )


def _with_dtype(
    op: Overloads,
    input: Tensor,
    dim: Dims,
    keepdim: bool,
    dtype: torch.dtype | None,
    out: Tensor | None,
    axis: Dims,
    keepdims: bool | None,
    segments: Any = None,
) -> Tensor:
    """Call an op with one result and dtype=."""
    if segments is not None:
        return by_segments(op, input, dim, segments, keepdim, dtype, out, axis, keepdims)  # type: ignore[no-any-return]
    if dtype is None and out is None and axis is None and keepdims is None and not _is_compiling():
        result: Tensor | None = op.plain(input, dim, keepdim, None, level_code())
        if result is not None:
            return result
    if keepdims is not None:
        keepdim = either_keepdim(op.name, keepdim, keepdims)
    dims = check_dims(op, input, dim, keepdim, axis)
    if out is not None:
        dtype = dtype_by_out(op, dtype, out)
    if dtype is not None or input.dtype not in op.row.inputs:
        dtype = check_dtype(op, input, dtype)
    if out is None:
        return serving(op, input)(input, dims, keepdim, dtype, level_code())  # type: ignore[no-any-return]
    _write(op, [input], (dims, keepdim, dtype), reduced_shape(input.shape, dims, keepdim), out=out)
    return out


def _with_index(
    op: Overloads,
    over_all: Overloads,
    kind: Any,
    input: Tensor,
    dim: Dims,
    keepdim: bool,
    out: Any,
    axis: Dims,
    keepdims: bool | None,
    segments: Any,
) -> Any:
    """Call op, which returns values and indices as `kind`; without dims call over_all, which returns values alone."""
    if segments is not None:
        return kind(by_segments(op, input, dim, segments, keepdim, None, out, axis, keepdims))
    if out is None and axis is None and keepdims is None and not _is_compiling():
        if dim is None:
            result = over_all.plain(input, keepdim, level_code())
        else:
            result = op.plain(input, dim, keepdim, level_code())
        if result is not None:
            return result if dim is None else kind(result)
    if keepdims is not None:
        keepdim = either_keepdim(op.name, keepdim, keepdims)
    dims = check_dims(op, input, dim, keepdim, axis)
    if dims is not None:
        if out is None:
            return kind(serving(op, input)(input, dims, keepdim, level_code()))
        return kind(_write_pair(op, input, (dims, keepdim), reduced_shape(input.shape, dims, keepdim), out))
    if out is None:
        return serving(over_all, input)(input, keepdim, level_code())
    _write(over_all, [input], (keepdim,), reduced_shape(input.shape, None, keepdim), out=out)
    return out


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
    segments: Segments | Tensor | None = None,
) -> Tensor:
    """Return the sum over dim.

    The result's dtype is dtype, or out's, else int64 for integers and bool, else the input's. Floats are accumulated in
    float32, or in float64 if the input or the result is float64, and the result is rounded once. Integers wrap; True
    counts as 1. With an integer dtype each float element is truncated toward zero before it is added; NaN and values
    out of int64's range become -2^63. With dtype=torch.bool the result is whether any element is nonzero. NaN and inf
    propagate as in IEEE addition. Without elements the sum is +0.

    >>> import torch, torchreduce
    >>> torchreduce.sum(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), dim=1)
    tensor([3., 7.])
    >>> torchreduce.sum(torch.tensor([1.0, 2.0, 3.0]), 0, segments=torch.tensor([0, 2, 3]))
    tensor([3., 3.])
    """
    return _with_dtype(_SUM, input, dim, keepdim, dtype, out, axis, keepdims, segments)


def mean(
    input: Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    axis: Dims = None,
    keepdims: bool | None = None,
    segments: Segments | Tensor | None = None,
) -> Tensor:
    """Return the mean over dim.

    The sum is divided once by the number of elements in the accumulator type, then rounded once. The result's dtype is
    dtype, or out's, else the input's. It must be floating: raises RuntimeError for an integer dtype, and for integers
    or bool without dtype. Without elements the mean is NaN.

    >>> import torch, torchreduce
    >>> torchreduce.mean(torch.tensor([[1, 2], [3, 4]]), dim=0, dtype=torch.float32)
    tensor([2., 3.])
    """
    return _with_dtype(_MEAN, input, dim, keepdim, dtype, out, axis, keepdims, segments)


def nansum(
    input: Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    axis: Dims = None,
    keepdims: bool | None = None,
) -> Tensor:
    """Return the sum over dim, with NaN treated as zero.

    The result is bitwise identical to the sum with every NaN replaced by +0. Its dtype is dtype, or out's, else the
    input's (int64 for integers and bool). An integer or bool dtype works as in sum. Without elements the sum is +0.

    >>> import torch, torchreduce
    >>> torchreduce.nansum(torch.tensor([1.0, float("nan"), 2.0]))
    tensor(3.)
    """
    op = _NANSUM
    if isinstance(input, Tensor):
        to = as_dtype(dtype if out is None else getattr(out, "dtype", None))
        if not input.is_floating_point():
            op = _NANSUM_OF_INTEGERS
        elif to in DTYPES and to not in FLOATS:
            check_input("nansum", input)
            if out is None:
                _check_no_gradient("nansum", input, to)
            op, input = _NANSUM_OF_INTEGERS, input.masked_fill(input.isnan(), 0)
    return _with_dtype(op, input, dim, keepdim, dtype, out, axis, keepdims)


def nanmean(
    input: Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    axis: Dims = None,
    keepdims: bool | None = None,
) -> Tensor:
    """Return the mean over dim of the elements that are not NaN.

    nansum is divided once by the number of these elements in the accumulator type, then rounded once. The input must be
    floating. The result's dtype is dtype, or out's, else the input's. The mean is NaN if all elements are NaN.

    >>> import torch, torchreduce
    >>> torchreduce.nanmean(torch.tensor([[1.0, float("nan")], [2.0, 4.0]]), dim=1)
    tensor([1., 3.])
    """
    if keepdims is not None:
        keepdim = either_keepdim("nanmean", keepdim, keepdims)
    op = _NANSUM_AND_COUNT
    dims = check_dims(op, input, dim, keepdim, axis)
    if not input.is_floating_point():
        raise RuntimeError(f"nanmean(): expected input to have a floating dtype, but got {input.dtype}")
    if out is not None:
        dtype = dtype_by_out(op, dtype, out)
    dtype = input.dtype if dtype is None else check_dtype(op, input, dtype)
    if out is not None:
        _prepare(op, [input], reduced_shape(input.shape, dims, keepdim), out=out)
    wide, kept = accumulator(input.dtype, dtype), keepdim or out is not None
    total, nan = serving(op, input)(input, dims, kept, wide, level_code())
    count = 1
    for d in dims_of(input.ndim, dims):
        count = count * input.shape[d]
    if out is None:
        return divided(total, count - nan, dtype)
    mean = total.div_(count - nan) if is_bare(total, nan) else divided(total, count - nan, wide)
    write_to(_SUM, [mean], (dims, keepdim, dtype), out=out)  # sums of one element: it rounds
    return out


def prod(
    input: Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    axis: Dims = None,
    keepdims: bool | None = None,
    segments: Segments | Tensor | None = None,
) -> Tensor:
    """Return the product over dim.

    The result's dtype is dtype, or out's, else int64 for integers and bool, else the input's. Floats are multiplied in
    float32, or in float64 if the input or the result is float64, with a separate exponent: intermediate products do not
    overflow or underflow. The result is rounded once. Integers wrap. With dtype=torch.bool the result is whether all
    elements are nonzero. Without elements the product is 1. dim may have several dims, unlike torch's.

    >>> import torch, torchreduce
    >>> torchreduce.prod(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), dim=1)
    tensor([ 2., 12.])
    >>> torchreduce.prod(torch.tensor([2.0**100, 2.0**100, 2.0**-100])) == 2.0**100
    tensor(True)
    """
    if (
        segments is None
        and (dtype is not None or out is not None)
        and torch.bool in (as_dtype(dtype), getattr(out, "dtype", None))
    ):
        return _bool_prod(input, dim, keepdim, dtype, out, axis, keepdims)
    return _with_dtype(_PROD, input, dim, keepdim, dtype, out, axis, keepdims, segments)


def _bool_prod(
    input: Tensor, dim: Dims, keepdim: bool, dtype: Any, out: Tensor | None, axis: Dims, keepdims: bool | None
) -> Tensor:
    """prod with a bool dtype or out: all."""
    if out is not None:
        dtype_by_out(_PROD, dtype, out)
    result = _along(_PROD_OF_BOOLS, input, dim, keepdim, None, axis, keepdims).to(torch.bool)
    if out is None:
        _check_no_gradient("prod", input, torch.bool)
        return result
    prepare_outs("prod", [input], result.shape, {"out": torch.bool}, {"out": out})
    return out.copy_(result)


# ---- counts ----------------------------------------------------------------------------------------------------------


def any(
    input: Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    out: Tensor | None = None,
    axis: Dims = None,
    keepdims: bool | None = None,
) -> Tensor:
    """Test whether any element over dim is nonzero.

    The result is bool, or uint8 for uint8. NaN counts as nonzero. Without elements the result is False.

    >>> import torch, torchreduce
    >>> torchreduce.any(torch.tensor([[0, 0], [0, 3]]), dim=1)
    tensor([False,  True])
    """
    return _along(_ANY, input, dim, keepdim, out, axis, keepdims)


def all(
    input: Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    out: Tensor | None = None,
    axis: Dims = None,
    keepdims: bool | None = None,
) -> Tensor:
    """Test whether all elements over dim are nonzero.

    The result is bool, or uint8 for uint8. NaN counts as nonzero. Without elements the result is True.

    >>> import torch, torchreduce
    >>> torchreduce.all(torch.tensor([[1, 0], [2, 3]]), dim=1)
    tensor([False,  True])
    """
    return _along(_ALL, input, dim, keepdim, out, axis, keepdims)


def count_nonzero(
    input: Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    out: Tensor | None = None,
    axis: Dims = None,
    keepdims: bool | None = None,
) -> Tensor:
    """Count the nonzero elements over dim.

    The result is int64. NaN counts as nonzero. keepdim and out are additions to torch's arguments.

    >>> import torch, torchreduce
    >>> torchreduce.count_nonzero(torch.tensor([[0, 1], [2, 3]]), dim=1)
    tensor([1, 2])
    """
    return _along(_COUNT_NONZERO, input, dim, keepdim, out, axis, keepdims)


# ---- extremes --------------------------------------------------------------------------------------------------------


def amax(
    input: Tensor,
    dim: Dims = (),
    keepdim: bool = False,
    *,
    out: Tensor | None = None,
    axis: Dims = None,
    keepdims: bool | None = None,
    segments: Segments | Tensor | None = None,
) -> Tensor:
    """Return the maximum over dim.

    The result has the input's dtype. It is NaN if any element is NaN. -0.0 is less than +0.0. The gradient is
    distributed evenly among equal maxima. Without elements: raises IndexError if dim is given, else RuntimeError.

    >>> import torch, torchreduce
    >>> torchreduce.amax(torch.tensor([[1, 5], [4, 2]]), dim=0)
    tensor([4, 5])
    """
    return _along(_AMAX, input, dim, keepdim, out, axis, keepdims, segments)


def amin(
    input: Tensor,
    dim: Dims = (),
    keepdim: bool = False,
    *,
    out: Tensor | None = None,
    axis: Dims = None,
    keepdims: bool | None = None,
    segments: Segments | Tensor | None = None,
) -> Tensor:
    """Return the minimum over dim; otherwise as amax.

    >>> import torch, torchreduce
    >>> torchreduce.amin(torch.tensor([[1, 5], [4, 2]]), dim=0)
    tensor([1, 2])
    """
    return _along(_AMIN, input, dim, keepdim, out, axis, keepdims, segments)


def aminmax(
    input: Tensor,
    *,
    dim: Dims = None,
    keepdim: bool = False,
    out: Any = None,
    axis: Dims = None,
    keepdims: bool | None = None,
) -> Any:
    """Return the minimum and the maximum over dim.

    The result is torch.return_types.aminmax(min, max), bitwise identical to amin and amax.

    >>> import torch, torchreduce
    >>> torchreduce.aminmax(torch.tensor([[1, 5], [4, 2]]), dim=0).max
    tensor([4, 5])
    """
    if out is None and axis is None and keepdims is None and not _is_compiling():
        results = _AMINMAX.plain(input, dim, keepdim, level_code())
        if results is not None:
            return torch.return_types.aminmax(results)
    if keepdims is not None:
        keepdim = either_keepdim("aminmax", keepdim, keepdims)
    dims = check_dims(_AMINMAX, input, dim, keepdim, axis)
    if out is None:
        return torch.return_types.aminmax(serving(_AMINMAX, input)(input, dims, keepdim, level_code()))
    least, greatest = _pair("aminmax", out)
    _write(_AMINMAX, [input], (dims, keepdim), reduced_shape(input.shape, dims, keepdim), min=least, max=greatest)
    return torch.return_types.aminmax((least, greatest))


def argmax(
    input: Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    out: Tensor | None = None,
    axis: Dims = None,
    keepdims: bool | None = None,
    segments: Segments | Tensor | None = None,
) -> Tensor:
    """Return the index of the maximum over dim.

    The result is int64: the lowest index of equal maxima, or the index of the first NaN. -0.0 and +0.0 are equal. Over
    several dims it is the index into the flattened dims. bool is supported: False < True. Raises IndexError without
    elements.

    >>> import torch, torchreduce
    >>> torchreduce.argmax(torch.tensor([[1, 5], [5, 2]]))
    tensor(1)
    """
    return _along(_ARGMAX, input, dim, keepdim, out, axis, keepdims, segments)


def argmin(
    input: Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    out: Tensor | None = None,
    axis: Dims = None,
    keepdims: bool | None = None,
    segments: Segments | Tensor | None = None,
) -> Tensor:
    """Return the index of the minimum over dim; otherwise as argmax.

    >>> import torch, torchreduce
    >>> torchreduce.argmin(torch.tensor([[1, 5], [5, 2]]), dim=1)
    tensor([0, 1])
    """
    return _along(_ARGMIN, input, dim, keepdim, out, axis, keepdims, segments)


@overload
def max(input: Tensor, dim: None = None, *, out: Tensor | None = None) -> Tensor: ...
@overload
def max(
    input: Tensor, dim: GivenDims, keepdim: bool = False, *, out: Sequence[Tensor] | None = None
) -> torch.return_types.max: ...
@overload
def max(input: Tensor, dim: int, *, segments: Segments | Tensor) -> torch.return_types.max: ...
@overload
def max(
    input: Tensor, *, axis: GivenDims, keepdims: bool = False, out: Sequence[Tensor] | None = None
) -> torch.return_types.max: ...
def max(
    input: Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    out: Any = None,
    axis: Dims = None,
    keepdims: bool | None = None,
    segments: Segments | Tensor | None = None,
) -> Any:
    """Return the maximum, and with dim also its index.

    Without dim, or with dim=(), the result is the value alone, as amax; if there are NaN, they share the gradient
    evenly. With an int or a tuple of ints the result is torch.return_types.max(values, indices). The indices are those
    of argmax, and the values are the elements at these indices, so +0.0 and -0.0 are equal here. The gradient goes to
    these elements. out is a tuple of two tensors. Without elements: as amax. For the maximum of two tensors use
    torch.maximum; a tensor as dim raises TypeError.

    >>> import torch, torchreduce
    >>> torchreduce.max(torch.tensor([[1, 5], [4, 2]]))
    tensor(5)
    >>> torchreduce.max(torch.tensor([[1, 5], [4, 2]]), dim=1).indices
    tensor([1, 0])
    """
    return _with_index(_MAX, _MAX_ALL, torch.return_types.max, input, dim, keepdim, out, axis, keepdims, segments)


@overload
def min(input: Tensor, dim: None = None, *, out: Tensor | None = None) -> Tensor: ...
@overload
def min(
    input: Tensor, dim: GivenDims, keepdim: bool = False, *, out: Sequence[Tensor] | None = None
) -> torch.return_types.min: ...
@overload
def min(input: Tensor, dim: int, *, segments: Segments | Tensor) -> torch.return_types.min: ...
@overload
def min(
    input: Tensor, *, axis: GivenDims, keepdims: bool = False, out: Sequence[Tensor] | None = None
) -> torch.return_types.min: ...
def min(
    input: Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    out: Any = None,
    axis: Dims = None,
    keepdims: bool | None = None,
    segments: Segments | Tensor | None = None,
) -> Any:
    """Return the minimum, and with dim also its index; otherwise as max.

    With dim the result is torch.return_types.min(values, indices).

    >>> import torch, torchreduce
    >>> torchreduce.min(torch.tensor([[1, 5], [4, 2]]), dim=(0, 1)).values
    tensor(1)
    """
    return _with_index(_MIN, _MIN_ALL, torch.return_types.min, input, dim, keepdim, out, axis, keepdims, segments)
