"""Sums by segments under torch's names: embedding_bag, bincount, segment_reduce.

Arguments, their order and exceptions are torch's. Gradients, tangents, vmap and torch.compile are supported where torch
supports them.
"""

from typing import Any

import torch
from torch import Tensor

from . import ops
from ._autograd.reductions import accumulator, rounded
from ._autograd.segments import counted, taken
from ._core.checks import check_bool, check_dim, check_input, kind_of
from ._core.dispatch import is_bare
from ._fake.reductions import decided, same_shape
from .segmented import Segments, check_in_range, check_index, segments
from .table import FLOATS

_MODES = ("sum", "mean", "max")


# ---- bags of embeddings ----------------------------------------------------------------------------------------------


def _rows(weight: Tensor, indices: Tensor, dtype: torch.dtype) -> Tensor:
    """The row of each index, (n, columns), in dtype. The gradient of a row is the sum over its places."""
    if is_bare(weight, indices):
        return weight.index_select(0, indices).to(dtype)
    return taken(weight, segments(indices, weight.shape[0]), indices.shape[0], 0, dtype)


def without(bounds: Tensor, kept: Tensor) -> Segments:
    """The segments of `bounds`, of those elements alone that are kept; the others come behind all."""
    n = kept.shape[0]
    before = torch.cat([bounds.new_zeros(1), kept.cumsum(0)])
    behind = before[n] + (~kept).cumsum(0) - 1
    place = torch.where(kept, before[:n], behind)
    order = torch.empty_like(place).scatter(0, place, torch.arange(n, device=place.device))
    return Segments(before[bounds.clamp(0, n)], order)


def bounds_of(offsets: Tensor, n: int, include_last_offset: bool) -> Tensor:
    offsets = offsets.long()
    return offsets if include_last_offset else torch.cat([offsets, offsets.new_full([1], n)])


def _check_bags(indices: Any, weight: Any, offsets: Any, by: Any, mode: Any, padding_idx: Any) -> None:
    name = "embedding_bag"
    check_input(name, weight, "weight", FLOATS)
    check_index(name, "indices", indices, None)
    if weight.dim() != 2:
        raise RuntimeError(f"{name}(): weight must have 2 dims, got shape {tuple(weight.shape)}")
    if mode not in _MODES:
        raise ValueError(f"{name}(): mode must be one of {', '.join(_MODES)}, got {mode!r}")
    if indices.dim() not in (1, 2):
        raise ValueError(f"{name}(): indices must have 1 or 2 dims, got shape {tuple(indices.shape)}")
    if (offsets is None) != (indices.dim() == 2):
        raise ValueError(f"{name}(): offsets must be given for indices of 1 dim, and not for 2 dims")
    if offsets is not None:
        check_index(name, "offsets", offsets)
    if by is not None:
        check_input(name, by, "per_sample_weights", FLOATS)
        if mode != "sum":
            raise NotImplementedError(f"{name}(): per_sample_weights is only supported for mode='sum', got {mode!r}")
        if by.dtype != weight.dtype or not same_shape(by.shape, indices.shape):
            raise RuntimeError(
                f"{name}(): per_sample_weights must have the dtype of weight, {weight.dtype}, and the shape of "
                f"indices, {tuple(indices.shape)}, got {by.dtype} and {tuple(by.shape)}"
            )
    for t in (indices, offsets, by):
        if t is not None and t.device != weight.device:
            raise RuntimeError(f"{name}(): all tensors must be on one device, got {weight.device} and {t.device}")
    if padding_idx is not None and (isinstance(padding_idx, bool) or not isinstance(padding_idx, int)):
        raise TypeError(f"{name}(): argument 'padding_idx' must be an int, got {kind_of(padding_idx)}")


def embedding_bag(
    indices: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    *,
    mode: str = "mean",
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Return the sum, mean or maximum of each bag of rows of weight, as torch.nn.functional.embedding_bag.

    weight: (rows, columns). indices: (n,), with the first index of each bag in offsets, or (bags, size). With
    include_last_offset the end of the last bag is the last offset. Returns (bags, columns): of each bag the reduction
    of the rows of its indices, in their order, rounded once. Indices that are padding_idx are left out; a bag without
    others is 0. per_sample_weights, of the shape of indices, are for mode="sum": a row is multiplied by its weight in
    the accumulator, float32 or float64.

    In the gradient a row of weight has the sum over its indices, in their order, of the gradients of their bags, each
    divided or multiplied in the accumulator, rounded once. mode="max": that of a bag goes to the first greatest row.

    >>> import torch, torchreduce
    >>> weight = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 0.0]])
    >>> torchreduce.embedding_bag(torch.tensor([0, 2, 1]), weight, torch.tensor([0, 2]), mode="sum")
    tensor([[6., 2.],
            [3., 4.]])
    >>> torchreduce.embedding_bag(torch.tensor([[0, 2], [1, 1]]), weight, mode="mean", padding_idx=2)
    tensor([[1., 2.],
            [3., 4.]])
    """
    name = "embedding_bag"
    _check_bags(indices, weight, offsets, per_sample_weights, mode, padding_idx)
    check_bool(name, "include_last_offset", include_last_offset)
    size, columns = weight.shape
    check_in_range(name, indices.reshape(-1), size, RuntimeError)
    if padding_idx is not None:
        if not decided(-size <= padding_idx, True) or not decided(padding_idx < size, True):
            raise RuntimeError(f"{name}(): padding_idx must be from {-size} to {size - 1}, got {padding_idx}")
        padding_idx = padding_idx + size if padding_idx < 0 else padding_idx
    if offsets is None:
        bags, each = indices.shape
        bounds = torch.arange(bags + 1, device=indices.device) * each
        indices = indices.reshape(-1)
    else:
        if include_last_offset and decided(offsets.shape[0] == 0, False):
            raise RuntimeError(f"{name}(): offsets must have at least 1 element with include_last_offset")
        bounds = bounds_of(offsets, indices.shape[0], include_last_offset)
        if offsets.is_cpu:
            check_in_range(name, bounds, indices.shape[0] + 1, RuntimeError)
    n, wide = indices.shape[0], accumulator(weight.dtype)
    places = Segments(bounds) if padding_idx is None else without(bounds, indices != padding_idx)
    if mode == "max":
        return _greatest(indices, weight, places)
    if mode == "sum" and per_sample_weights is None:
        return ops.sum(_rows(weight, indices, weight.dtype), 0, segments=places)
    rows = _rows(weight, indices, wide)
    if per_sample_weights is None:
        mean = ops.mean(rows, 0, segments=places).masked_fill(counted(places.offsets, n, 2, 0) == 0, 0)
        return rounded(mean, weight.dtype)
    by = rounded(per_sample_weights.reshape(-1, 1), wide)
    all_columns = torch.arange(2, device=weight.device) * columns
    rows = rows * taken(by, (all_columns, None, None), columns, 1, wide)
    return rounded(ops.sum(rows, 0, segments=places), weight.dtype)


def first_greatest(indices: Tensor, weight: Tensor, places: Segments) -> tuple[Tensor, Tensor]:
    """The row of weight that is the first greatest of each bag, column by column, and whether the bag has any."""
    n = indices.shape[0]
    _, at = ops.max(_rows(weight.detach(), indices, weight.dtype), 0, segments=places)
    place = (places.offsets[:-1, None] + at).clamp(0, n - 1)
    return indices[place if places.order is None else places.order[place]], at >= 0


def _greatest(indices: Tensor, weight: Tensor, places: Segments) -> Tensor:
    """The greatest rows: which they are has no gradient."""
    if decided(indices.shape[0] == 0, False):
        return ops.sum(_rows(weight, indices, weight.dtype), 0, segments=places)
    row, has_any = first_greatest(indices, weight, places)
    number = row.long() * weight.shape[1] + torch.arange(weight.shape[1], device=indices.device)
    found = _rows(weight.reshape(-1, 1), number.reshape(-1), weight.dtype).reshape(row.shape)
    canonical = torch.ops.torchreduce.rounded.default(found, weight.dtype)  # a NaN as any result has it
    return canonical.masked_fill(~has_any, 0)  # type: ignore[no-any-return]


# ---- counts ----------------------------------------------------------------------------------------------------------


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """Return the sum of the weights of each number, or how often it occurs.

    input: of one dim, non-negative integers. The result has max(minlength, input.max() + 1) elements, so the host waits
    for a GPU. weights: one for each element; float32 weights are summed in float32, others in float64, in the order in
    which they stand. Without weights it is torch.bincount. Raises RuntimeError for negative numbers.

    >>> import torch, torchreduce
    >>> torchreduce.bincount(torch.tensor([2, 0, 2]), torch.tensor([0.5, 1.0, 2.0]), minlength=4)
    tensor([1.0000, 0.0000, 2.5000, 0.0000])
    """
    if weights is None or not isinstance(input, Tensor) or not isinstance(weights, Tensor):
        return torch.bincount(input, weights, minlength)
    kinds = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    if input.dim() != 1 or input.dtype not in kinds:
        raise RuntimeError(f"bincount(): input must have 1 dim and be of integers, got {input.dtype}, "
                           f"{tuple(input.shape)}")  # fmt: skip
    if not same_shape(weights.shape, input.shape) or weights.device != input.device or weights.is_complex():
        raise RuntimeError("bincount(): weights must be real, and have input's shape and device, got "
                           f"{weights.dtype}, {tuple(weights.shape)}, on {weights.device}")  # fmt: skip
    if isinstance(minlength, bool) or not isinstance(minlength, int) or minlength < 0:
        raise RuntimeError(f"bincount(): minlength must be an int of at least 0, got {minlength!r}")
    index = input if input.dtype in (torch.int32, torch.int64) else input.int()
    size = minlength
    if input.shape[0]:
        least, greatest = (int(t) for t in torch.aminmax(index))
        if least < 0:
            raise RuntimeError(f"bincount(): input must not have negative elements, got {least}")
        size = max(minlength, greatest + 1)
    weights = weights if weights.dtype is torch.float32 else weights.double()
    return ops.sum(weights, 0, segments=segments(index, size))


# ---- torch's segment_reduce ------------------------------------------------------------------------------------------

_REDUCES = {"sum": ops.sum, "mean": ops.mean, "max": ops.amax, "min": ops.amin, "prod": ops.prod}


def segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Tensor:
    """Return the reduction of each segment, as torch.segment_reduce: the same as segments= of a reduction.

    reduce is "sum", "mean", "max", "min" or "prod". Segments are given by offsets, of one more element than there are
    segments, or by lengths; of one dim, int32 or int64. Other calls are torch's own: of integers, with initial, along
    another axis, or with lengths of several dims. An empty segment is 0, NaN, -inf, inf or 1. Raises RuntimeError on a
    CPU for offsets that fall or are out of range, and for lengths that do not add up.

    >>> import torch, torchreduce
    >>> x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    >>> torchreduce.segment_reduce(x, "max", lengths=torch.tensor([1, 3]))
    tensor([1., 4.])
    """
    name, given = "segment_reduce", lengths if offsets is None else offsets
    is_ours = isinstance(data, Tensor) and isinstance(given, Tensor) and data.dtype in FLOATS and given.dim() == 1
    if not is_ours or initial is not None or axis != 0 or (lengths is not None and offsets is not None):
        return torch.segment_reduce(
            data, reduce, lengths=lengths, offsets=offsets, axis=axis, unsafe=unsafe, initial=initial
        )
    assert given is not None
    if reduce not in _REDUCES:
        raise RuntimeError(f"{name}(): reduce must be one of {', '.join(_REDUCES)}, got {reduce!r}")
    check_index(name, "lengths" if offsets is None else "offsets", given)
    check_dim(name, axis, data.dim())
    if offsets is None:
        ends = given.cumsum(0)
        if given.is_cpu and not unsafe and is_bare(given):
            wrong = given.numel() == 0 or bool((given < 0).any()) or int(ends[-1]) != data.shape[0]
            if wrong and (given.numel() or data.shape[0]):
                raise RuntimeError(f"{name}(): lengths must be at least 0, and add up to {data.shape[0]}")
        given = torch.cat([ends.new_zeros(1), ends])
    return _REDUCES[reduce](data, 0, segments=given)
