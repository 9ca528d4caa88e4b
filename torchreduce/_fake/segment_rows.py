"""Shapes and batching rules of scans and row-wise ops by segments (csrc/binding/segment_rows.cpp).

An op is described by the kinds of its tensors and results, which offsets, dim and options follow:

    x       has an element for each, of the shape of all such
    rows    has one a segment, in place of the elements
    stats   planes of such
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .reductions import broadcast_shape
from .rowwise import wide
from .segments import apart, batched, flat, joined, padded, register

_ops = torch.ops.torchreduce


def _cumsum(
    x: Tensor, offsets: Tensor, dim: int, dtype: torch.dtype | None, exclusive: bool, reverse: bool, level: int
) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype or (x.dtype if x.is_floating_point() else torch.int64))


def _softmax(x: Tensor, offsets: Tensor, dim: int, dtype: torch.dtype | None, level: int) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype or x.dtype)


def _softmax_gradient(g: Tensor, y: Tensor, offsets: Tensor, dim: int, dtype: torch.dtype, level: int) -> Tensor:
    return g.new_empty(g.shape, dtype=dtype)


def _logsumexp(x: Tensor, offsets: Tensor, dim: int, level: int) -> tuple[Tensor, Tensor]:
    shape = of_segments(x.shape, offsets, dim)
    return x.new_empty(shape), x.new_empty([2, *shape], dtype=wide(x.dtype))


def _logsumexp_gradient(g: Tensor, x: Tensor, stats: Tensor, offsets: Tensor, dim: int, level: int) -> Tensor:
    return x.new_empty(x.shape)


def of_segments(shape: Any, offsets: Tensor, dim: int) -> list[Any]:
    """A shape, with the segments in place of their elements."""
    return [offsets.shape[0] - 1 if d == dim % len(shape) else size for d, size in enumerate(shape)]


# By name: what the tensors are, what the results are, the fake kernel.
SIGNATURES: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "cumsum": ("x", "x", _cumsum),
    "softmax": ("x", "x", _softmax),
    "log_softmax": ("x", "x", _softmax),
    "softmax_gradient": ("x x", "x", _softmax_gradient),
    "log_softmax_gradient": ("x x", "x", _softmax_gradient),
    "logsumexp": ("x", "rows stats", _logsumexp),
    "logsumexp_gradient": ("rows x stats", "x", _logsumexp_gradient),
}


# ---- vmap ------------------------------------------------------------------------------------------------------------

# Segments of a batch are those of all its elements, one after the other (segments.joined): of each element of the
# batch one segment more, which belongs to none and whose elements have 0.


def _joined_tensor(kind: str, t: Tensor, dim: int) -> Tensor:
    """(batch, ...), dim counted without the batch; of stats without the planes, too."""
    if kind == "x":
        return flat(t, dim)
    if kind == "rows":
        return flat(padded(t, 1 + dim), dim)
    return padded(t, 2 + dim).movedim(2 + dim, 1).flatten(0, 1).movedim(1, 0)


def _parted_result(kind: str, t: Tensor, starts: Tensor, count: int, dim: int) -> Tensor:
    size = (starts.shape[0] - 1) // count  # segments of an element of the batch, and the one more
    if kind == "x":
        numbers = torch.searchsorted(starts, torch.arange(t.shape[0], device=t.device), right=True) - 1
        none = (numbers < 0) | (numbers % size == size - 1) | (numbers >= count * size)
        return apart(t.masked_fill(none.reshape(-1, *[1] * (t.dim() - 1)), 0), count, dim)
    if kind == "stats":
        t, dim = t.movedim(0, 1).unflatten(0, (count, size)).movedim(1, 2 + dim), 1 + dim
    else:
        t = apart(t, count, dim)
    return t.narrow(1 + dim, 0, size - 1)


def _batching_rule(name: str) -> Callable[..., Any]:
    arguments, results, _ = SIGNATURES[name]
    kinds, returned = arguments.split(), results.split()
    default = getattr(_ops, f"{name}_segments").default

    def rule(info: Any, in_dims: Any, *args: Any) -> tuple[Any, Any]:
        count, of = info.batch_size, len(kinds)
        tensors = [batched(t, d, count) for t, d in zip(args[:of], in_dims, strict=False)]
        offsets, dim, *rest = args[of:]
        dim %= tensors[kinds.index("x")].dim() - 1
        if in_dims[of] is None:
            tensors = [t.movedim(0, 1) if kind == "stats" else t for kind, t in zip(kinds, tensors, strict=True)]
            out = default(*tensors, offsets, 1 + dim, *rest)
            out_dims = tuple(1 if kind == "stats" else 0 for kind in returned)
        else:
            n = tensors[kinds.index("x")].shape[1 + dim]
            starts = joined(count, offsets, None, None, [in_dims[of]], n)[0]
            out = default(*(_joined_tensor(*each, dim) for each in zip(kinds, tensors, strict=True)), starts, 0, *rest)
            parts = (out,) if isinstance(out, Tensor) else out
            out = tuple(_parted_result(*each, starts, count, dim) for each in zip(returned, parts, strict=True))
            out_dims = (0,) * len(out)
        if len(returned) > 1:
            return out, out_dims
        return out if isinstance(out, Tensor) else out[0], 0

    return rule


for _name, (_, _, _kernel) in SIGNATURES.items():
    register(f"{_name}_segments", _kernel, _batching_rule(_name))


def _linear_scan(
    a: Tensor, b: Tensor, initial: Tensor | None, offsets: Tensor, dim: int, reverse: bool, shifted: bool, level: int
) -> Tensor:
    return b.new_empty(_broadcast(a.shape, b.shape))


def _broadcast(a: Sequence[int], b: Sequence[int]) -> list[int]:
    shape = broadcast_shape(a, b)
    if shape is None:
        raise RuntimeError(f"linear_scan: a and b must broadcast, got {tuple(a)} and {tuple(b)}")
    return shape


def _linear_scan_batched(
    info: Any, in_dims: Any, a: Tensor, b: Tensor, initial: Tensor | None, offsets: Tensor, dim: int, *rest: Any
) -> tuple[Tensor, int]:
    count = info.batch_size
    a, b = batched(a, in_dims[0], count), batched(b, in_dims[1], count)
    shape = _broadcast(a.shape[1:], b.shape[1:])
    dim %= len(shape)

    def aligned(t: Tensor) -> Tensor:
        return t.reshape(t.shape[:1] + (1,) * (len(shape) + 1 - t.dim()) + t.shape[1:])

    a, b = aligned(a), aligned(b).expand(count, *shape)
    if initial is not None:
        initial = aligned(batched(initial, in_dims[2], count))
    default = _ops.linear_scan_segments.default
    if in_dims[3] is None:
        return default(a, b, initial, offsets, 1 + dim, *rest), 0
    n, size = shape[dim], offsets.shape[1 - in_dims[3]] - 1
    starts = joined(count, offsets, None, None, [in_dims[3]], n)[0]
    if initial is not None:
        initial = initial.expand(count, *(size if d == dim else s for d, s in enumerate(shape)))
        initial = _joined_tensor("rows", initial, dim)
    out = default(flat(a.expand(b.shape), dim), flat(b, dim), initial, starts, 0, *rest)
    return _parted_result("x", out, starts, count, dim), 0


register("linear_scan_segments", _linear_scan, _linear_scan_batched)
