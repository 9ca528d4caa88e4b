"""Segments: runs of elements along a dim that are reduced, scanned or normalized one by one.

Common to all calls with segments=
- segments: offsets, of int32 or int64 and one dim, or what torchreduce.segments returns. Supported by sum, mean, prod,
  amax, amin, max, min, argmax, argmin, logsumexp, softmax, log_softmax, cumsum and linear_scan.
- dim is one int and must be given. keepdim and out are not supported.
- Segment k has the elements from offsets[k] to offsets[k + 1] along dim. The result of a reduction and of logsumexp has
  a row for each segment, that of the others one for each element. Elements before the first offset and from the last
  one on belong to no segment: where the result has them, they are 0.
- The result of a segment is bitwise identical to the function of its elements alone.
- A reduction copies the input only if the dims before dim, or those after it, do not lie in memory as one dim would.
  By an index that is not sorted, the other functions take the elements in the order of their segments first.
- Raises RuntimeError on a CPU for offsets that fall or are out of range. A GPU clamps them.

>>> import torch, torchreduce
>>> x = torch.tensor([1.0, 2.0, 3.0, 4.0])
>>> torchreduce.sum(x, 0, segments=torch.tensor([0, 1, 4]))
tensor([1., 9.])
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._core import direct, dispatch
from ._core.checks import Overloads, check_bool, check_dim, check_dtype, check_input, either, kind_of
from ._core.dispatch import is_unwatched, serving
from ._fake.reductions import decided
from .determinism import level_code


class Segments(NamedTuple):
    """Segment k has the elements `order[offsets[k]:offsets[k + 1]]`; without order, `offsets[k]:offsets[k + 1]`."""

    offsets: Tensor
    order: Tensor | None = None
    index: Tensor | None = None  # type: ignore[assignment]  # the segment of each element


@dataclass(frozen=True)
class SegmentOverloads:
    """The overloads of an op on segments, as checks.Overloads has them."""

    default: Callable[..., Any]
    raw: Callable[..., Any]
    derivative: Callable[..., Any]


def segment_overloads(name: str) -> SegmentOverloads:
    op, raw = getattr(torch.ops.torchreduce, name), direct.raw(name)
    return SegmentOverloads(op.default, raw, dispatch.derivatives.get(name, raw))


_REDUCTIONS = {
    name: segment_overloads(f"{name}_segments")
    for name in ("sum", "mean", "prod", "amax", "amin", "max", "min", "argmax", "argmin")
}
_SEGMENTS = segment_overloads("segments")


def check_index(name: str, argument: str, index: Any, dims: int | None = 1) -> None:
    if not isinstance(index, Tensor):
        raise TypeError(f"{name}(): argument {argument!r} must be a Tensor, got {kind_of(index)}")
    if index.dtype not in (torch.int32, torch.int64):
        raise RuntimeError(f"{name}(): {argument} must be int32 or int64, got {index.dtype}")
    if dims is not None and index.dim() != dims:
        raise RuntimeError(f"{name}(): {argument} must have {dims} dim, got shape {tuple(index.shape)}")


def check_in_range(name: str, index: Tensor, size: int, error: type[Exception] = IndexError) -> None:
    """Check numbers on a CPU; on a GPU, where that waits for it, only if TORCHREDUCE_CHECK_INDICES=1."""
    if not is_unwatched() or index.is_meta or not (index.is_cpu or os.environ.get("TORCHREDUCE_CHECK_INDICES") == "1"):
        return
    if not index.numel():
        return
    least, greatest = torch.aminmax(index)
    if int(least) < 0 or int(greatest) >= size:
        outside = index[(index < 0) | (index >= size)][0]
        raise error(f"{name}(): index {int(outside)} is out of range: expected at least 0 and less than {size}")


def check_size(name: str, size: Any) -> None:
    if isinstance(size, bool) or not isinstance(size, (int, torch.SymInt)):
        raise TypeError(f"{name}(): argument 'size' must be an int, got {kind_of(size)}")
    if decided(size < 0, False):
        raise RuntimeError(f"{name}(): size must be at least 0, got {size}")


def segments(index: Tensor, size: int, is_sorted: bool = False) -> Segments:
    """Return the segments of an index: segment k has the elements i with index[i] = k.

    index: of one dim, int32 or int64. size: the number of segments; no shape depends on the values of index. The result
    is for segments= of the reductions, along a dim that has an element for each of index, on its device. It costs one
    stable sort, and may be used again, for other tensors and their gradients. With is_sorted nothing is sorted: index
    must not fall. Raises IndexError on a CPU if an element of index is out of range. On a GPU that element belongs to
    no segment; with the environment variable TORCHREDUCE_CHECK_INDICES=1 it raises there, too.

    >>> import torch, torchreduce
    >>> s = torchreduce.segments(torch.tensor([2, 0, 2]), 3)
    >>> s.offsets, s.order
    (tensor([0, 1, 1, 3]), tensor([1, 0, 2]))
    >>> torchreduce.sum(torch.tensor([1.0, 2.0, 3.0]), 0, segments=s)
    tensor([2., 0., 4.])
    """
    check_index("segments", "index", index)
    check_bool("segments", "is_sorted", is_sorted)
    check_size("segments", size)
    if not index.is_cpu:  # there the op raises
        check_in_range("segments", index, size)
    offsets, order = serving(_SEGMENTS, index)(index, size, is_sorted, level_code())
    return Segments(offsets, None if is_sorted else order, index)


def places_of(name: str, given: Any, input: Tensor, dim: int) -> Segments:
    """Check segments=, and return them as the ops take them."""
    if isinstance(given, Tensor):
        given = Segments(given)
    if not isinstance(given, tuple) or len(given) != 3:
        raise TypeError(
            f"{name}(): argument 'segments' must be a Tensor of offsets, or what segments() returns, got "
            f"{kind_of(given)}"
        )
    check_index(name, "offsets", given[0])
    if not given[0].shape[0]:
        raise RuntimeError(f"{name}(): offsets must have at least one element")
    for t in given:
        if t is not None and t.device != input.device:
            raise RuntimeError(f"{name}(): segments must be on the device of the input, {input.device}, got {t.device}")
    for what, t in (("order", given[1]), ("index", given[2])):
        if t is not None and t.shape[0] != input.shape[dim]:
            raise RuntimeError(
                f"{name}(): these segments have an {what} of {t.shape[0]} elements, but dim {dim} has size "
                f"{input.shape[dim]}"
            )
    return Segments(*given)


def segments_dim(
    name: str, dims: int, dim: Any, axis: Any, out: Any, keepdim: Any = False, keepdims: Any = None
) -> int:
    """Check the arguments beside segments= of a function of an input of so many dims, and return dim."""
    if keepdim is not False or keepdims is not None:
        raise TypeError(f"{name}(): keepdim is not supported together with segments")
    if out is not None:
        raise TypeError(f"{name}(): out is not supported together with segments")
    dim = either(name, dim, axis)
    if dim is None or isinstance(dim, (tuple, list)) or dims == 0:
        raise TypeError(
            f"{name}(): together with segments dim must be one int, and the input have a dim, got dim={dim}"
        )
    return check_dim(name, dim, dims)


def arranged(x: Tensor, places: Segments, dim: int, back: bool = False) -> Tensor:
    """Take the elements along dim in the order of their segments, or put them back."""
    if places.order is None:
        return x
    return torch.ops.torchreduce.arranged.default(x, places.order, dim, back)  # type: ignore[no-any-return]


def of_each_segment(op: SegmentOverloads, input: Tensor, places: Segments, dim: int, *options: Any) -> Any:
    """Call an op on the elements in the order of their segments."""
    x = arranged(input, places, dim)
    return serving(op, x, places.offsets)(x, places.offsets, dim, *options, level_code())


def by_segments(
    op: Overloads, input: Tensor, dim: Any, given: Any, keepdim: Any, dtype: Any, out: Any, axis: Any, keepdims: Any
) -> Any:
    """Call a reduction by segments."""
    name = op.name
    check_input(name, input, "input", op.supported)
    dim = segments_dim(name, input.dim(), dim, axis, out, keepdim, keepdims)
    if dtype is not None or input.dtype not in op.row.inputs:
        dtype = check_dtype(op, input, dtype)
    places = places_of(name, given, input, dim)
    also = [t for t in places if t is not None]
    return serving(_REDUCTIONS[name], input, *also)(input, *places, dim, dtype, level_code())
