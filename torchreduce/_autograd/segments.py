"""Derivatives of reductions by segments and of scatters, as reductions.py has those of the reductions; and what the
rules of scans and row-wise ops need, which rows and segments share.

What is sent back to elements is a gather of what their segments have; its own derivative is a sum by segments. So
nothing is added up by torch, in any order of derivatives.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._core.dispatch import Rule, Saved, differentiable, save
from .._fake.segments import apart, batched, flat, joined, padded
from .reductions import Indexed, accumulator, define, rounded

_ops = torch.ops.torchreduce
_WIDE = torch.float64
Places = tuple[Tensor, Tensor | None, Tensor | None]  # offsets, order, index


# ---- from segments to their elements ---------------------------------------------------------------------------------


def _numbers(offsets: Tensor, order: Tensor | None, index: Tensor | None, n: int) -> Tensor:
    """The segment of each element; any other number for one of none."""
    if index is not None:
        return index
    places = torch.arange(n, device=offsets.device, dtype=offsets.dtype)
    numbers = torch.searchsorted(offsets, places, right=True) - 1
    return numbers if order is None else torch.empty_like(numbers).scatter_(0, order, numbers)


def _take(
    g: Tensor, offsets: Tensor, order: Tensor | None, index: Tensor | None, n: int, dim: int, dtype: torch.dtype
) -> Tensor:
    numbers, size = _numbers(offsets, order, index, n), g.shape[dim]
    numbers = torch.where((numbers < 0) | (numbers >= size), size, numbers)
    return padded(rounded(g, dtype), dim).index_select(dim, numbers)


def _take_fake(
    g: Tensor, offsets: Tensor, order: Tensor | None, index: Tensor | None, n: int, dim: int, dtype: torch.dtype
) -> Tensor:
    shape = list(g.shape)
    shape[dim] = n
    return g.new_empty(shape, dtype=dtype)


def _take_batched(
    info: Any, in_dims: Any, g: Tensor, offsets: Tensor, order: Any, index: Any, n: int, dim: int, dtype: torch.dtype
) -> tuple[Tensor, int]:
    g, count = batched(g, in_dims[0], info.batch_size), info.batch_size
    dim %= g.dim() - 1
    if all(d is None for d in in_dims[1:4]):
        return _ops.take_segments.default(g, offsets, order, index, n, 1 + dim, dtype), 0
    places = joined(count, offsets, order, index, in_dims[1:4], n)
    return apart(_ops.take_segments.default(flat(padded(g, 1 + dim), dim), *places, count * n, 0, dtype), count, dim), 0


define(
    "take_segments(Tensor g, Tensor offsets, Tensor? order, Tensor? index, SymInt n, int dim, ScalarType dtype) "
    "-> Tensor", _take, _take_fake, _take_batched,
)  # fmt: skip


def taken(g: Tensor, places: Places, n: int, dim: int, dtype: torch.dtype) -> Tensor:
    """For each of n elements along dim what its segment has, rounded once to dtype; 0 for one of no segment."""
    return _ops.take_segments.default(g, *places, n, dim, dtype)  # type: ignore[no-any-return]


@differentiable("take_segments")
class Take(Rule):
    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        g, offsets, order, index, ctx.n, ctx.dim, ctx.to = inputs
        ctx.dtype = g.dtype
        save(ctx, offsets, order, index)

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        return _ops.sum_segments.default(grad, *saved, ctx.dim, ctx.dtype, 0)  # type: ignore[no-any-return]

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        return taken(t, saved, ctx.n, ctx.dim, ctx.to)


def of_rows_or_segments(name: str, tensors: Sequence[Tensor | None], offsets: Sequence[Tensor], *rest: Any) -> Any:
    """Call an op on rows, or where there are offsets that on their segments."""
    packet = getattr(_ops, f"{name}_segments" if offsets else name)
    return packet.default(*tensors, *offsets, *rest)


def within(x: Tensor, offsets: Sequence[Tensor], dim: int) -> Tensor:
    """x, with 0 for elements of no segment."""
    if not offsets:
        return x
    return x.masked_fill(along_dim(numbered(offsets[0], x.shape[dim]) < 0, x.dim(), dim), 0)


def numbered(offsets: Tensor, n: int) -> Tensor:
    """The segment of each of n elements, -1 for one of none: by an op that has a batching rule."""
    numbers = torch.arange(1, offsets.shape[0], device=offsets.device)
    return taken(numbers, (offsets, None, None), n, 0, torch.int64) - 1


def along_dim(x: Tensor, dims: int, dim: int) -> Tensor:
    """What has one element for each along dim, of so many dims."""
    return x.reshape([-1 if d == dim % dims else 1 for d in range(dims)])


# ---- elements in the order of their segments, and back ---------------------------------------------------------------


def _arranged(x: Tensor, order: Tensor, dim: int, back: bool) -> Tensor:
    if back:
        order = torch.zeros_like(order).scatter_(0, order, torch.arange(order.shape[0], device=order.device))
    return x.index_select(dim, order)


def _arranged_batched(info: Any, in_dims: Any, x: Tensor, order: Tensor, dim: int, back: bool) -> tuple[Tensor, int]:
    x, count = batched(x, in_dims[0], info.batch_size), info.batch_size
    dim %= x.dim() - 1
    if in_dims[1] is None:
        return _ops.arranged.default(x, order, 1 + dim, back), 0
    first = x.shape[1 + dim] * torch.arange(count, device=order.device).unsqueeze(1)
    order = (batched(order, in_dims[1], count) + first).flatten()
    return apart(_ops.arranged.default(flat(x, dim), order, 0, back), count, dim), 0


define(
    "arranged(Tensor x, Tensor order, int dim, bool back) -> Tensor", _arranged,
    lambda x, order, dim, back: x.new_empty(x.shape), _arranged_batched,
)  # fmt: skip


@differentiable("arranged")
class Arranged(Rule):
    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        _, order, ctx.dim, ctx.back = inputs
        save(ctx, order)

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        return _ops.arranged.default(grad, *saved, ctx.dim, not ctx.back)  # type: ignore[no-any-return]

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        return _ops.arranged.default(t, *saved, ctx.dim, ctx.back)  # type: ignore[no-any-return]


def counted(offsets: Tensor, n: int, dims: int, dim: int) -> Tensor:
    """The number of elements of each segment, along dim."""
    return along_dim(offsets.long().clamp(0, n).diff().clamp(min=0), dims, dim)


# ---- reductions ------------------------------------------------------------------------------------------------------


class OfSegments(Rule):
    """Remembers what every reduction by segments needs; `saved` begins with offsets, order and index."""

    @staticmethod
    def remember(ctx: Any, inputs: Sequence[Any], *more: Tensor) -> None:
        x, offsets, order, index, ctx.dim, ctx.to, ctx.level = inputs
        ctx.n, ctx.dims, ctx.dtype = x.shape[ctx.dim], x.dim(), x.dtype
        save(ctx, offsets, order, index, *more)

    @staticmethod
    def taken(ctx: Any, saved: Saved, g: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return taken(g, saved[:3], ctx.n, ctx.dim, dtype or ctx.dtype)

    @staticmethod
    def summed(ctx: Any, saved: Saved, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return _ops.sum_segments.default(x, *saved[:3], ctx.dim, dtype, ctx.level)  # type: ignore[no-any-return]


@differentiable("sum_segments")
class Sum(OfSegments):
    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        OfSegments.remember(ctx, inputs)

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        return OfSegments.taken(ctx, saved, grad)

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        return OfSegments.summed(ctx, saved, t, ctx.to)


@differentiable("mean_segments")
class Mean(OfSegments):
    save = Sum.save

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        count = counted(saved[0], ctx.n, ctx.dims, ctx.dim)
        share = _ops.divide.default(grad, count, accumulator(grad.dtype, ctx.dtype))
        return OfSegments.taken(ctx, saved, share)

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        return _ops.mean_segments.default(t, *saved, ctx.dim, ctx.to, ctx.level)  # type: ignore[no-any-return]


class Shared(OfSegments):
    """Evenly among the ties. With a NaN nothing ties, and every element's share is 0 * grad / 0."""

    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        OfSegments.remember(ctx, inputs, inputs[0], output)

    @staticmethod
    def ties(ctx: Any, saved: Saved) -> tuple[Tensor, Tensor]:
        """Which elements tie, and how many of each segment."""
        x, result = saved[3:]
        ties = x == OfSegments.taken(ctx, saved, result)
        return ties, OfSegments.summed(ctx, saved, ties)

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        ties, count = Shared.ties(ctx, saved)
        none = count == 0
        share = _ops.divide.default(grad.masked_fill(none, 0), count, accumulator(ctx.dtype))
        sharing = ties | OfSegments.taken(ctx, saved, none, torch.bool)
        return OfSegments.taken(ctx, saved, share).masked_fill(~sharing, 0)

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        ties, count = Shared.ties(ctx, saved)
        total = OfSegments.summed(ctx, saved, t.masked_fill(~ties, 0), accumulator(ctx.dtype))
        return _ops.divide.default(total, count, ctx.dtype)  # type: ignore[no-any-return]


for _op in ("amax", "amin"):
    differentiable(f"{_op}_segments")(Shared)


class AtIndex(OfSegments):
    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, Tensor]) -> None:
        OfSegments.remember(ctx, inputs, output[1])

    @staticmethod
    def rows(ctx: Any, saved: Saved) -> Tensor:
        """The row of the element at each index; for a segment without elements n."""
        offsets, order, _, index = saved
        first = along_dim(offsets.long().clamp(0, ctx.n)[:-1], ctx.dims, ctx.dim)
        place = torch.where(index < 0, ctx.n, first + index)
        return place if order is None else torch.cat([order, order.new_full([1], ctx.n)])[place]

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        shape = [ctx.n + 1 if d == ctx.dim % ctx.dims else size for d, size in enumerate(grad.shape)]
        return Indexed.put(grad.new_zeros(shape), ctx.dim, AtIndex.rows(ctx, saved), grad).narrow(ctx.dim, 0, ctx.n)

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        return padded(t, ctx.dim).gather(ctx.dim, AtIndex.rows(ctx, saved))


for _op in ("max", "min"):
    differentiable(f"{_op}_segments", results=2)(AtIndex)


# ---- products: in float64, divided by the element; at the only 0 the product of the others ---------------------------


def _of_product(
    grad: Tensor, own: Tensor | None, x: Tensor, places: Places, dim: int, dtype: torch.dtype, level: int
) -> tuple[Tensor, Tensor]:
    """The gradients of the products of self (or of 1) and the elements x of segments: that of self, in float64, and
    that of each element, in dtype."""
    n, zero = x.shape[dim], x == 0
    zeros = _ops.sum_segments.default(zero, *places, dim, None, level)
    factors = x.masked_fill(zero, 1)
    to_own = grad.to(_WIDE) * _ops.prod_segments.default(factors, *places, dim, _WIDE, level)
    product = to_own if own is None else to_own * own.to(_WIDE)
    back = _ops.divide.default(taken(product, places, n, dim, _WIDE), factors, dtype)
    none, one = (taken(zeros == count, places, n, dim, torch.bool) for count in (0, 1))
    return to_own.masked_fill(zeros > 0, 0), back.masked_fill(~(none | (zero & one)), 0)


@differentiable("prod_segments")
class Prod(OfSegments):
    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        OfSegments.remember(ctx, inputs, inputs[0])

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        return _of_product(grad, None, saved[3], saved[:3], ctx.dim, ctx.dtype, ctx.level)[1]

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        ones = t.new_ones(()).expand(
            [saved[0].shape[0] - 1 if d == ctx.dim % ctx.dims else size for d, size in enumerate(t.shape)]
        )
        to_x = _of_product(ones, None, saved[3], saved[:3], ctx.dim, _WIDE, ctx.level)[1]
        return OfSegments.summed(ctx, saved, t.to(_WIDE) * to_x, ctx.to or ctx.dtype)


# ---- scatters --------------------------------------------------------------------------------------------------------


@differentiable("scatter_segments")
class Scatter(Rule):
    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        own, x, offsets, order, index, ctx.dim, ctx.reduce, ctx.include, ctx.alpha, ctx.level = inputs
        ctx.n, ctx.dims, ctx.dtype = x.shape[ctx.dim], x.dim(), x.dtype
        more = {"sum": (), "mean": (), "prod": (own, x)}.get(ctx.reduce, (own, x, output))
        save(ctx, offsets, order, index, *more)

    @staticmethod
    def counts(ctx: Any, saved: Saved) -> Tensor:
        return counted(saved[0], ctx.n, ctx.dims, ctx.dim)

    @staticmethod
    def own_ties(ctx: Any, saved: Saved) -> tuple[Tensor, Tensor, Tensor]:
        """Whether self, and which elements, are the extreme; and how many they are."""
        own, x, result = saved[3:]
        met = Scatter.counts(ctx, saved) > 0
        mine = own == result if ctx.include else (own == result) & ~met
        ties = x == OfSegments.taken(ctx, saved, result)
        return mine, ties, OfSegments.summed(ctx, saved, ties) + mine

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Any:
        counts = Scatter.counts(ctx, saved)
        kept = grad if ctx.include else grad.masked_fill(counts > 0, 0)
        if ctx.reduce == "sum":
            to_x = OfSegments.taken(ctx, saved, grad)
            return kept, to_x if ctx.alpha == 1 else to_x * ctx.alpha
        if ctx.reduce == "mean":
            share = _ops.divide.default(grad, (counts + int(ctx.include)).clamp(min=1), accumulator(ctx.dtype))
            return rounded(share, ctx.dtype) if ctx.include else kept, OfSegments.taken(ctx, saved, share)
        if ctx.reduce == "prod":
            own, x = saved[3:]
            mine = own if ctx.include else None
            to_own, to_x = _of_product(grad, mine, x, saved[:3], ctx.dim, ctx.dtype, ctx.level)
            return rounded(to_own, ctx.dtype) if ctx.include else kept, to_x
        mine, ties, number = Scatter.own_ties(ctx, saved)
        none = number == 0
        share = _ops.divide.default(grad.masked_fill(none, 0), number, accumulator(ctx.dtype))
        sharing = ties | OfSegments.taken(ctx, saved, none, torch.bool)
        to_own = rounded(share, ctx.dtype).masked_fill(~(mine | none) if ctx.include else ~mine, 0)
        return to_own, OfSegments.taken(ctx, saved, share).masked_fill(~sharing, 0)

    @staticmethod
    def tangent(ctx: Any, saved: Saved, to_own: Tensor | None, to_x: Tensor | None, *_: Any) -> Tensor:
        given = to_x if to_own is None else to_own
        assert given is not None
        size = saved[0].shape[0] - 1
        if to_own is None:
            to_own = given.new_zeros([size if d == ctx.dim % ctx.dims else s for d, s in enumerate(given.shape)])
        if to_x is None:
            to_x = given.new_zeros([ctx.n if d == ctx.dim % ctx.dims else s for d, s in enumerate(given.shape)])
        if ctx.reduce in ("sum", "mean"):
            rest = ctx.dim, ctx.reduce, ctx.include, ctx.alpha, ctx.level
            return _ops.scatter_segments.default(to_own, to_x, *saved[:3], *rest)  # type: ignore[no-any-return]
        if ctx.reduce == "prod":
            own, x = saved[3:]
            one = own.new_ones(()).expand(own.shape)
            of_own, of_x = _of_product(one, own if ctx.include else None, x, saved[:3], ctx.dim, _WIDE, ctx.level)
            total = OfSegments.summed(ctx, saved, to_x.to(_WIDE) * of_x, _WIDE)
            if not ctx.include:
                of_own = (Scatter.counts(ctx, saved) == 0).to(_WIDE)
            return rounded(total + to_own.to(_WIDE) * of_own, ctx.dtype)
        mine, ties, number = Scatter.own_ties(ctx, saved)
        wide = accumulator(ctx.dtype)
        total = OfSegments.summed(ctx, saved, to_x.masked_fill(~ties, 0), wide) + to_own.masked_fill(~mine, 0).to(wide)
        return _ops.divide.default(total, number, ctx.dtype)  # type: ignore[no-any-return]
