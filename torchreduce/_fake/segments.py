"""Shapes and batching rules of the ops on segments (csrc/binding/segments.cpp)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._core.dispatch import LIBRARY
from ..table import BY_NAME

REDUCTIONS = ("sum", "mean", "prod", "amax", "amin", "max", "min", "argmax", "argmin")
_ops = torch.ops.torchreduce


def _reduced(name: str) -> Callable[..., Any]:
    row = BY_NAME[name]

    def kernel(
        x: Tensor, offsets: Tensor, order: Tensor | None, index: Tensor | None, dim: int, dtype: Any, level: int
    ) -> Any:
        shape = list(x.shape)
        shape[dim] = offsets.shape[0] - 1
        result = x.new_empty(shape, dtype=row.result_dtype(x.dtype, dtype))
        return result if len(row.returns) == 1 else (result, x.new_empty(shape, dtype=torch.int64))

    return kernel


def _segments(index: Tensor, size: int, is_sorted: bool, level: int) -> tuple[Tensor, Tensor]:
    places = 0 if is_sorted else index.numel()
    return index.new_empty([size + 1], dtype=torch.int64), index.new_empty([places], dtype=torch.int64)


def _scattered(input: Tensor, *args: Any) -> Tensor:
    return input.new_empty(input.shape)


# ---- vmap ------------------------------------------------------------------------------------------------------------


def batched(t: Tensor, dim: int | None, count: int) -> Tensor:
    """t with the batch as dim 0."""
    return t.unsqueeze(0).expand(count, *t.shape) if dim is None else t.movedim(dim, 0)


def joined(
    count: int, offsets: Tensor, order: Tensor | None, index: Tensor | None, dims: Any, n: int
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The segments of a batch as those of all its elements, (batch * n): one more after those of each, which has what
    lies between them."""
    first = torch.arange(count, device=offsets.device).unsqueeze(1)
    starts = batched(offsets, dims[0], count).long().clamp(0, n) + n * first
    size = starts.shape[1] - 1
    starts = torch.cat([starts.flatten(), starts.new_full([1], count * n)])
    if order is not None:
        order = (batched(order, dims[1], count) + n * first).flatten()
    if index is not None:
        index = batched(index, dims[2], count).long()
        index = torch.where((index < 0) | (index >= size), -1, index + (size + 1) * first).flatten()
    return starts, order, index


def flat(x: Tensor, dim: int) -> Tensor:
    """(batch, ..., n, ...) as (batch * n, ...); dim is that of n without the batch."""
    return x.movedim(1 + dim, 1).flatten(0, 1)


def apart(x: Tensor, count: int, dim: int) -> Tensor:
    """(batch * n, ...) as (batch, ..., n, ...)."""
    return x.reshape(count, x.shape[0] // count, *x.shape[1:]).movedim(1, 1 + dim)


def padded(x: Tensor, dim: int) -> Tensor:
    """With one more element, 0, along dim."""
    return torch.cat([x, x.new_zeros([1 if d == dim % x.dim() else size for d, size in enumerate(x.shape)])], dim)


def _reduced_batched(name: str) -> Callable[..., Any]:
    default = getattr(_ops, f"{name}_segments").default

    def rule(
        info: Any, in_dims: Any, x: Tensor, offsets: Tensor, order: Any, index: Any, dim: int, *rest: Any
    ) -> tuple[Any, Any]:
        x = batched(x, in_dims[0], info.batch_size)
        dim %= x.dim() - 1
        if all(d is None for d in in_dims[1:4]):
            out = default(x, offsets, order, index, 1 + dim, *rest)
        else:
            places = joined(info.batch_size, offsets, order, index, in_dims[1:4], x.shape[1 + dim])
            parts = default(flat(x, dim), *places, 0, *rest)

            def back(part: Tensor) -> Tensor:
                part = apart(part, info.batch_size, dim)
                return part.narrow(1 + dim, 0, part.shape[1 + dim] - 1)

            out = back(parts) if isinstance(parts, Tensor) else tuple(map(back, parts))
        return out, 0 if isinstance(out, Tensor) else (0,) * len(out)

    return rule


def _segments_batched(
    info: Any, in_dims: Any, index: Tensor, size: int, is_sorted: bool, level: int
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    count = info.batch_size
    index = index.movedim(in_dims[0], 0).reshape(count, -1).long()
    n, first = index.shape[1], torch.arange(count, device=index.device).unsqueeze(1)
    outside = (index < 0) | (index >= size)
    nowhere = torch.where(outside, -1 if index.is_cpu else size + (size + 1) * first, index + (size + 1) * first)
    offsets, order = _ops.segments.default(nowhere.flatten(), count * (size + 1), is_sorted, level)
    offsets = offsets[:-1].unflatten(0, (count, size + 1)) - n * first
    order = order.new_empty([count, 0]) if is_sorted else order.unflatten(0, (count, n)) - n * first
    return (offsets, order), (0, 0)


def _scattered_batched(
    info: Any, in_dims: Any, input: Tensor, x: Tensor, offsets: Tensor, order: Any, index: Any, dim: int, *rest: Any
) -> tuple[Tensor, int]:
    input, x = (batched(t, d, info.batch_size) for t, d in zip((input, x), in_dims, strict=False))
    dim %= x.dim() - 1
    default = _ops.scatter_segments.default
    if all(d is None for d in in_dims[2:5]):
        return default(input, x, offsets, order, index, 1 + dim, *rest), 0
    places = joined(info.batch_size, offsets, order, index, in_dims[2:5], x.shape[1 + dim])
    out = default(flat(padded(input, 1 + dim), dim), flat(x, dim), *places, 0, *rest)
    out = apart(out, info.batch_size, dim)
    return out.narrow(1 + dim, 0, out.shape[1 + dim] - 1), 0


def register(name: str, fake: Callable[..., Any], batching_rule: Callable[..., Any]) -> None:
    """For both overloads; .raw bypasses autograd."""
    for overload in ("", ".raw"):
        torch.library.register_fake(f"torchreduce::{name}{overload}", fake, lib=LIBRARY)
        torch.library.register_vmap(f"torchreduce::{name}{overload}", batching_rule, lib=LIBRARY)
    LIBRARY.impl(f"{name}.raw", torch.library.fallthrough_kernel, "Autograd")


for _name in REDUCTIONS:
    register(f"{_name}_segments", _reduced(_name), _reduced_batched(_name))
register("segments", _segments, _segments_batched)
register("scatter_segments", _scattered, _scattered_batched)
for _name in ("segments", "argmax_segments", "argmin_segments"):
    LIBRARY.impl(_name, torch.library.fallthrough_kernel, "Autograd")
torch.library.register_fake("torchreduce::scatter_.raw", lambda *_: None, lib=LIBRARY)
LIBRARY.impl("scatter_.raw", torch.library.fallthrough_kernel, "Autograd")
