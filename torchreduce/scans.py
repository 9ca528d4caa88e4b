"""The public scans. Arguments and errors are as in ops.py, except that dim is one int and required.

Common to all scans except linear_scan, which takes two tensors
- The result has the input's shape. With reverse the scan runs from the other end, as if the input and the result were
  flipped along dim.
- With exclusive, if the function has it, each result covers the elements before it. The first result is the initial
  value: 0 for cumsum, 1 for cumprod, -inf for logcumsumexp.
- The last result is not always bitwise identical to the reduction of the same name.
"""

import math
import numbers
from typing import Any

import torch
from torch import Tensor

from ._autograd.reductions import accumulator
from ._core.checks import Overloads, as_dtype, check_bool, check_dim, check_dtype, check_input, either, overloads
from ._core.dispatch import _is_compiling, is_bare, is_plain, serving
from ._fake.reductions import broadcast_shape, decided
from .determinism import level_code
from .ops import _prepare, _write, _write_pair, dtype_by_out
from .segmented import Segments, arranged, of_each_segment, places_of, segment_overloads, segments_dim

_CUMSUM, _CUMPROD, _LOGCUMSUMEXP = overloads("cumsum"), overloads("cumprod"), overloads("logcumsumexp")
_CUMMAX, _CUMMIN = overloads("cummax"), overloads("cummin")
_LINEAR_SCAN = overloads("linear_scan")
_CUMSUM_SEGMENTS, _LINEAR_SCAN_SEGMENTS = (
    segment_overloads("cumsum_segments"),
    segment_overloads("linear_scan_segments"),
)


def _checked(op: Overloads, input: Tensor, dim: Any, axis: Any, reverse: bool, exclusive: bool = False) -> int:
    """Check the arguments that all scans have, and return dim as the ops take it."""
    check_input(op.name, input, "input", op.supported)
    check_bool(op.name, "reverse", reverse)
    check_bool(op.name, "exclusive", exclusive)
    if type(dim) is int and axis is None and -input.ndim <= dim < input.ndim:
        return dim
    return check_dim(op.name, either(op.name, dim, axis), input.ndim)


def _accumulated(
    op: Overloads,
    input: Tensor,
    dim: Any,
    dtype: torch.dtype | None,
    out: Tensor | None,
    exclusive: bool,
    reverse: bool,
    axis: Any,
    segments: Any = None,
) -> Tensor:
    """Call a scan with dtype=."""
    if dtype is None and out is None and axis is None and segments is None and not _is_compiling():
        result: Tensor | None = op.plain(input, dim, None, exclusive, reverse, level_code())
        if result is not None:
            return result
    if segments is not None and isinstance(input, Tensor):
        dim, axis = segments_dim(op.name, input.ndim, dim, axis, out), None
    dim = _checked(op, input, dim, axis, reverse, exclusive)
    if out is not None:
        dtype = dtype_by_out(op, dtype, out)
    if dtype is not None:
        dtype = check_dtype(op, input, dtype)
    if segments is not None:
        places = places_of(op.name, segments, input, dim)
        result = of_each_segment(_CUMSUM_SEGMENTS, input, places, dim, dtype, exclusive, reverse)
        return arranged(result, places, dim, back=True)
    if out is None:
        return serving(op, input)(input, dim, dtype, exclusive, reverse, level_code())  # type: ignore[no-any-return]
    _write(op, [input], (dim, dtype, exclusive, reverse), input.shape, out=out)
    return out


def _extreme(op: Overloads, input: Tensor, dim: Any, out: Any, reverse: bool, axis: Any) -> Any:
    """Call a scan that returns values and indices."""
    if out is None and axis is None and not _is_compiling():
        result = op.plain(input, dim, reverse, level_code())
        if result is not None:
            return result
    dim = _checked(op, input, dim, axis, reverse)
    if out is None:
        return serving(op, input)(input, dim, reverse, level_code())
    return _write_pair(op, input, (dim, reverse), input.shape, out)


def cumsum(
    input: Tensor,
    dim: int | None = None,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    exclusive: bool = False,
    reverse: bool = False,
    axis: int | None = None,
    segments: Segments | Tensor | None = None,
) -> Tensor:
    """Return the cumulative sum along dim.

    With exclusive the first result is +0. dtype and out are as in sum, but dtype=torch.bool raises NotImplementedError,
    and out may be the input. 16-bit floats are accumulated in float32. For float32 the running total is carried in
    float64 from one block of 8192 elements to the next. With segments each segment along dim is scanned by itself, from
    its own first element, or with reverse from its last one; segments is as in sum.

    >>> import torch, torchreduce
    >>> torchreduce.cumsum(torch.tensor([1.0, 2.0, 3.0]), dim=0)
    tensor([1., 3., 6.])
    >>> torchreduce.cumsum(torch.tensor([1, 2, 3]), dim=0, exclusive=True, reverse=True)
    tensor([5, 3, 0])
    >>> torchreduce.cumsum(torch.tensor([1, 2, 3]), dim=0, segments=torch.tensor([0, 2, 3]))
    tensor([1, 3, 3])
    """
    return _accumulated(_CUMSUM, input, dim, dtype, out, exclusive, reverse, axis, segments)


def cumprod(
    input: Tensor,
    dim: int | None = None,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    exclusive: bool = False,
    reverse: bool = False,
    axis: int | None = None,
) -> Tensor:
    """Return the cumulative product along dim.

    With exclusive the first result is 1. dtype and out are as in cumsum. A floating result is 0 or infinite only if an
    element is, or if the result itself is out of range: intermediate products may be out of range. Integers are
    multiplied as int64 and wrap.

    >>> import torch, torchreduce
    >>> torchreduce.cumprod(torch.tensor([1.0, 2.0, 3.0, 4.0]), dim=0)
    tensor([ 1.,  2.,  6., 24.])
    >>> torchreduce.cumprod(torch.tensor([1, 2, 3, 4]), dim=0, reverse=True)
    tensor([24, 24, 12,  4])
    """
    return _accumulated(_CUMPROD, input, dim, dtype, out, exclusive, reverse, axis)


def _in_place(op: Overloads, input: Tensor, dim: Any, dtype: Any, exclusive: bool, reverse: bool, axis: Any) -> Tensor:
    """Call a scan with dtype= in place; autograd supports it as it does torch's."""
    check_input(op.name, input)
    dtype = as_dtype(dtype)
    if dtype is not None and dtype != input.dtype:
        raise RuntimeError(f"{op.name}_(): dtype= must be that of the input, {input.dtype}, got {dtype}")
    if is_bare(input):
        return _accumulated(op, input, dim, None, input, exclusive, reverse, axis)
    kept = input if op is _CUMSUM else input.clone()  # for the gradient
    return input.copy_(_accumulated(op, kept, dim, input.dtype, None, exclusive, reverse, axis))


def cumsum_(
    input: Tensor,
    dim: int | None = None,
    *,
    dtype: torch.dtype | None = None,
    exclusive: bool = False,
    reverse: bool = False,
    axis: int | None = None,
) -> Tensor:
    """Compute cumsum in place.

    Writes the result to the input and returns the input. Raises RuntimeError for a dtype other than the input's.

    >>> import torch, torchreduce
    >>> x = torch.tensor([1, 2, 3])
    >>> torchreduce.cumsum_(x, 0) is x, x
    (True, tensor([1, 3, 6]))
    """
    return _in_place(_CUMSUM, input, dim, dtype, exclusive, reverse, axis)


def cumprod_(
    input: Tensor,
    dim: int | None = None,
    *,
    dtype: torch.dtype | None = None,
    exclusive: bool = False,
    reverse: bool = False,
    axis: int | None = None,
) -> Tensor:
    """Compute cumprod in place; otherwise as cumsum_.

    >>> import torch, torchreduce
    >>> torchreduce.cumprod_(torch.tensor([1.0, 2.0, 3.0]), 0)
    tensor([1., 2., 6.])
    """
    return _in_place(_CUMPROD, input, dim, dtype, exclusive, reverse, axis)


def logcumsumexp(
    input: Tensor,
    dim: int | None = None,
    *,
    out: Tensor | None = None,
    exclusive: bool = False,
    reverse: bool = False,
    axis: int | None = None,
) -> Tensor:
    """Return the logarithm of the cumulative sum of exponentials along dim.

    With exclusive the first result is -inf. Raises NotImplementedError if the input is not floating. 16-bit floats are
    computed in float32. Results are +inf from the first +inf on, and NaN from the first NaN on. A result over
    only -inf is -inf. out has the input's dtype and may be the input.

    >>> import torch, torchreduce
    >>> torchreduce.logcumsumexp(torch.tensor([0.0, 0.0, -float("inf")]), dim=0)
    tensor([0.0000, 0.6931, 0.6931])
    """
    op = _LOGCUMSUMEXP
    if out is None and axis is None and not _is_compiling():
        result: Tensor | None = op.plain(input, dim, exclusive, reverse, level_code())
        if result is not None:
            return result
    dim = _checked(op, input, dim, axis, reverse, exclusive)
    check_dtype(op, input, None)
    if out is None:
        return serving(op, input)(input, dim, exclusive, reverse, level_code())  # type: ignore[no-any-return]
    _write(op, [input], (dim, exclusive, reverse), input.shape, out=out)
    return out


def cummax(
    input: Tensor, dim: int | None = None, *, out: Any = None, reverse: bool = False, axis: int | None = None
) -> Any:
    """Return the cumulative maximum along dim and its index.

    The result is torch.return_types.cummax(values, indices). The index is the latest one of equal maxima; -0.0 and +0.0
    are equal. The value is the element at the index. From the first NaN on the value is NaN, and the index is that of
    the latest NaN. bool is supported: False < True. The gradient goes to the elements at the indices. out is a tuple of
    two tensors.

    >>> import torch, torchreduce
    >>> values, indices = torchreduce.cummax(torch.tensor([1, 3, 2, 3]), dim=0)
    >>> values, indices
    (tensor([1, 3, 3, 3]), tensor([0, 1, 1, 3]))
    """
    return torch.return_types.cummax(_extreme(_CUMMAX, input, dim, out, reverse, axis))


def cummin(
    input: Tensor, dim: int | None = None, *, out: Any = None, reverse: bool = False, axis: int | None = None
) -> Any:
    """Return the cumulative minimum along dim and its index; otherwise as cummax.

    The result is torch.return_types.cummin(values, indices).

    >>> import torch, torchreduce
    >>> torchreduce.cummin(torch.tensor([3, 1, 2]), dim=0, reverse=True).values
    tensor([1, 1, 2])
    """
    return torch.return_types.cummin(_extreme(_CUMMIN, input, dim, out, reverse, axis))


def linear_scan(
    a: Tensor | float,
    b: Tensor,
    dim: int | None = None,
    *,
    initial: Tensor | float | None = None,
    reverse: bool = False,
    out: Tensor | None = None,
    axis: int | None = None,
    segments: Segments | Tensor | None = None,
) -> Tensor:
    """Return the linear recurrence h[i] = a[i] * h[i - 1] + b[i] along dim.

    a and b broadcast against each other, without a copy. initial is the h before the first element; its shape
    broadcasts to that of the result without dim. a and initial may be numbers. Without initial, h[0] is b[0], and a[0]
    has no effect. All tensors are on one device and have b's floating dtype, which is also the result's; raises
    TypeError otherwise. If b is float16 or bfloat16, a and initial may be float32 or numbers: the recurrence is then
    computed in float32, on a copy of b, and rounded once. Each tensor gets a gradient of its own shape. With reverse
    the recurrence runs from the other end, as if a, b and the result were flipped. out has b's dtype and may be an
    input.

    With segments each segment along dim is a recurrence of its own, and initial broadcasts to the shape of the result
    with the number of segments in place of dim's size; segments is as in sum.

    An a of 0 is a reset: there h is bitwise identical to b, so packed sequences do not affect each other. Yet the bits
    of later h depend on where in the row they stand; with segments they do not. inf and NaN propagate until the next
    reset. With a = 1 and finite elements the result is bitwise identical to cumsum(b). The
    error is a few roundings of the same recurrence over absolute values, also if a is near 1. This holds while products
    of consecutive a are in range. If a product overflows, results are infinite or NaN; if it underflows, the h that it
    multiplies is lost.

    >>> import torch, torchreduce
    >>> a, b = torch.tensor(0.5), torch.tensor([8.0, 0.0, 0.0, 1.0])
    >>> torchreduce.linear_scan(a, b, dim=0)
    tensor([8., 4., 2., 2.])
    >>> torchreduce.linear_scan(torch.tensor([2.0, 0.0, 1.0]), torch.ones(3), dim=0, initial=torch.tensor(10.0))
    tensor([21.,  1.,  2.])
    >>> torchreduce.linear_scan(0.5, torch.tensor([0.0, 0.0, 4.0]), 0, reverse=True)  # discounted returns
    tensor([1., 2., 4.])
    >>> torchreduce.linear_scan(0.5, torch.tensor([8.0, 0.0, 8.0, 0.0]), 0, segments=torch.tensor([0, 2, 4]))
    tensor([8., 4., 8., 4.])
    """
    op = _LINEAR_SCAN
    simple = out is None and axis is None and segments is None and not _is_compiling()
    if simple and is_plain(a) and is_plain(b) and a.dtype is b.dtype:
        served: Tensor | None = op.plain(a, b, initial, dim, reverse, False, level_code())
        if served is not None:
            return served
    check_input(op.name, b, "b", op.supported)
    check_bool(op.name, "reverse", reverse)
    if b.dtype not in op.row.inputs:
        raise TypeError(f"{op.name}(): b must be floating, got {b.dtype}")
    wide = accumulator(b.dtype)
    a = _parameter(op.name, "a", a, b, wide)
    if initial is not None:
        initial = _parameter(op.name, "initial", initial, b, wide)
    shape = broadcast_shape(a.shape, b.shape)
    if shape is None:
        raise RuntimeError(f"{op.name}(): a and b must broadcast, got the shapes {tuple(a.shape)} and {tuple(b.shape)}")
    places = None
    if segments is None:
        dim = check_dim(op.name, either(op.name, dim, axis), len(shape))
    else:
        dim = segments_dim(op.name, len(shape), dim, axis, out) % len(shape)
        places = places_of(op.name, segments, b.expand(shape), dim)
    if initial is not None:
        rows = [size for d, size in enumerate(shape) if d != dim % len(shape)]
        if places is not None:
            rows.insert(dim, places.offsets.shape[0] - 1)
        fits = initial.ndim <= len(rows) and all(
            decided(size == 1, False) or decided(size == wanted, True)
            for size, wanted in zip(reversed(initial.shape), reversed(rows), strict=False)
        )
        if not fits:
            what = "without dim" if places is None else "with the segments along dim"
            raise RuntimeError(
                f"{op.name}(): initial must broadcast to the shape of the result {what}, {tuple(rows)}, "
                f"got {tuple(initial.shape)}"
            )
    if a.dtype != b.dtype or (initial is not None and initial.dtype != b.dtype):
        if out is not None:
            _prepare(op, [a, b, initial], shape, out=out)
        start = None if initial is None else initial.to(wide)
        result = linear_scan(a.to(wide), b.to(wide), dim, initial=start, reverse=reverse, segments=segments)
        result = torch.ops.torchreduce.rounded.default(result, b.dtype)
        return result if out is None else out.copy_(result)
    if out is not None:
        _write(op, [a, b, initial], (dim, reverse, False), shape, out=out)
        return out
    if places is not None:
        a, b = (_of_segments(t, places, dim - len(shape)) for t in (a, b))
        tensors = (a, b, places.offsets) if initial is None else (a, b, places.offsets, initial)
        serve = serving(_LINEAR_SCAN_SEGMENTS, *tensors)
        result = serve(a, b, initial, places.offsets, dim, reverse, False, level_code())
        return arranged(result, places, dim, back=True)
    serve = serving(op, a, b) if initial is None else serving(op, a, b, initial)
    return serve(a, b, initial, dim, reverse, False, level_code())  # type: ignore[no-any-return]


def _of_segments(t: Tensor, places: Segments, dim: int) -> Tensor:
    """The elements of t along dim, which counts from the last, in the order of their segments; one is for all."""
    if t.ndim + dim < 0 or decided(t.shape[dim] == 1, False):
        return t
    return arranged(t, places, dim)


def _parameter(name: str, argument: str, given: Any, b: Tensor, wide: torch.dtype) -> Tensor:
    """Return a or initial as a tensor; a number becomes a tensor of b's accumulator type."""
    if isinstance(given, numbers.Real):
        number = float(given)
        return b.new_full((), number if abs(number) <= torch.finfo(wide).max else number * math.inf, dtype=wide)
    if isinstance(given, (torch.SymInt, torch.SymFloat)):
        return b.new_full((), given, dtype=wide)  # type: ignore[arg-type]
    check_input(name, given, argument)
    if given.dtype not in (b.dtype, wide):
        also = "" if wide == b.dtype else f" or {wide}"
        raise TypeError(f"{name}(): {argument} must have the dtype of b, {b.dtype}{also}, got {given.dtype}")
    if given.device != b.device:
        raise RuntimeError(f"{name}(): {argument} must be on the device of b, {b.device}, got {given.device}")
    return given  # type: ignore[no-any-return]
