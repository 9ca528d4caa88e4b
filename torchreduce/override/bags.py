"""aten's overloads of bags of embeddings, as functions of tensors: csrc/binding/aten/bags.h has them in C++."""

import torch
from torch import Tensor

from .. import bags, ops
from .._autograd.reductions import divided
from ..segmented import Segments, segments

_MODES = ("sum", "mean", "max")


def _wide(t: Tensor) -> torch.dtype:
    return torch.float64 if t.dtype is torch.float64 else torch.float32


def embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool = False, mode: int = 0,
    sparse: bool = False, per_sample_weights: Tensor | None = None, include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The reductions, the bag of each index, the number of indices of each bag, and, of maxima, the row of each."""
    n, padding = indices.shape[0], None if padding_idx < 0 else padding_idx
    out = bags.embedding_bag(
        indices, weight, offsets, mode=_MODES[mode], per_sample_weights=per_sample_weights,
        include_last_offset=include_last_offset, padding_idx=padding,
    )  # fmt: skip
    bounds = bags.bounds_of(offsets, n, include_last_offset)
    # Of all bounds: Inductor of torch 2.11 cannot search in a slice.
    bag = (torch.searchsorted(bounds, torch.arange(n, device=bounds.device), right=True) - 1).clamp(min=0)
    places = Segments(bounds) if padding is None else bags.without(bounds, indices != padding)
    counts = places.offsets.diff().to(offsets.dtype)
    greatest = offsets.new_empty(0)
    if mode == 2:
        row, has_any = bags.first_greatest(indices, weight, places)
        greatest = row.contiguous() if weight.is_cpu else row.masked_fill(~has_any, -1)
    return out, bag.to(indices.dtype), counts, greatest


def backward(
    grad: Tensor, indices: Tensor, offset2bag: Tensor, bag_size: Tensor, maximum_indices: Tensor, num_weights: int,
    scale_grad_by_freq: bool, mode: int, per_sample_weights: Tensor | None, padding_idx: int = -1,
) -> Tensor:  # fmt: skip
    """The gradient of weight."""
    size, columns = num_weights, grad.shape[1]
    if mode == 2:
        number = maximum_indices.long() * columns + torch.arange(columns, device=grad.device)
        number = torch.where((bag_size > 0)[:, None] & (maximum_indices >= 0), number, size * columns)
        places = segments(number.reshape(-1), size * columns + 1)
        sums: Tensor = ops.sum(grad.reshape(-1), 0, segments=places)
        return sums[:-1].reshape(size, columns)
    share = grad
    if mode == 1:
        share = divided(grad, bag_size.clamp(min=1)[:, None], _wide(grad))
    rows = share.index_select(0, offset2bag)
    if per_sample_weights is not None:
        rows = rows.to(_wide(grad)) * per_sample_weights.to(_wide(grad))[:, None]
    places = segments(torch.where(indices == padding_idx, size, indices), size + 1)
    total: Tensor = ops.sum(rows, 0, segments=places)
    return total[:-1].to(grad.dtype)


def weights_backward(
    grad: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, offset2bag: Tensor, mode: int,
    padding_idx: int = -1,
) -> Tensor:  # fmt: skip
    """The gradient of per_sample_weights."""
    wide = _wide(grad)
    products = grad.to(wide).index_select(0, offset2bag) * weight.to(wide).index_select(0, indices)
    total: Tensor = ops.sum(products, 1)
    return total.to(weight.dtype).masked_fill(indices == padding_idx, 0)
