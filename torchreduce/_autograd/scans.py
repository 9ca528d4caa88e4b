"""Derivatives of the scans, as autograd.py has those of the reductions."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._core.dispatch import LIBRARY, Rule, Saved, differentiable, register_out, save
from .._fake.reductions import broadcast_shape, decided, writes_only
from .._fake.segment_rows import of_segments
from .reductions import _round, accumulator, define, each, summed
from .segments import along_dim, numbered, of_rows_or_segments, taken

_ops = torch.ops.torchreduce


def along_rows(op: str, tensors: int) -> Callable[..., Any]:
    """The batching rule of an op of so many tensors of one shape, then the dim of their rows, then options."""

    def batched(info: Any, in_dims: Any, *args: Any) -> tuple[Tensor, int]:
        parts = [
            t.expand(info.batch_size, *t.shape) if batch is None else t.movedim(batch, 0)
            for t, batch in zip(args[:tensors], in_dims, strict=False)
        ]
        dim, *options = args[tensors:]
        overload, rank = getattr(_ops, op).default, parts[0].dim() - 1
        if rank == 0:
            return overload(*(t.unsqueeze(1) for t in parts), 1, *options).squeeze(1), 0
        return overload(*parts, 1 + dim % rank, *options), 0

    return batched


def _like_first(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


# ---- cumsum ----------------------------------------------------------------------------------------------------------


@differentiable("cumsum")
@differentiable("cumsum_segments")
class CumSum(Rule):
    """Of rows, or with offsets of segments."""

    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        x, *offsets, ctx.dim, ctx.to, ctx.exclusive, ctx.reverse, ctx.level = inputs
        ctx.dtype = x.dtype
        save(ctx, *offsets)

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        """The scan from the other end: an element goes into every result from its own on."""
        rest = ctx.dim, ctx.dtype, ctx.exclusive, not ctx.reverse, ctx.level
        return of_rows_or_segments("cumsum", (grad,), saved, *rest)  # type: ignore[no-any-return]

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        rest = ctx.dim, ctx.to, ctx.exclusive, ctx.reverse, ctx.level
        return of_rows_or_segments("cumsum", (t,), saved, *rest)  # type: ignore[no-any-return]


def _shifted(x: Tensor, dim: int, forth: bool) -> Tensor:
    """Every element one position further along dim, 0 in the free one, or one back: what an exclusive scan does to the
    inclusive one's results, and what that does to gradients, for a scan from the first element or the last."""
    if x.dim() == 0:
        return torch.zeros_like(x)
    n = x.shape[dim]
    if decided(n == 0, False):
        return x
    free = x.new_zeros(()).expand_as(x.narrow(dim, 0, 1))
    return torch.cat([free, x.narrow(dim, 0, n - 1)] if forth else [x.narrow(dim, 1, n - 1), free], dim)


def _of_inclusive(grad: Tensor, dim: int, exclusive: bool, reverse: bool) -> Tensor:
    """The gradient of the inclusive scan's results, out of that of the exclusive ones: the start's belongs to none."""
    return _shifted(grad, dim, reverse) if exclusive else grad


def _of_exclusive(tangent: Tensor, dim: int, exclusive: bool, reverse: bool) -> Tensor:
    """The tangent of the exclusive scan's results, out of that of the inclusive ones: the start has none."""
    return _shifted(tangent, dim, not reverse) if exclusive else tangent


# ---- sums with weights: logcumsumexp ---------------------------------------------------------------------------------


torch.library.register_fake("torchreduce::decayed_sum", _like_first, lib=LIBRARY)
torch.library.register_vmap("torchreduce::decayed_sum", along_rows("decayed_sum", 3), lib=LIBRARY)


def _decayed(g: Tensor, x: Tensor, o: Tensor, dim: int, reverse: bool, level: int) -> Tensor:
    return _ops.decayed_sum.default(g, x, o, dim, reverse, level)  # type: ignore[no-any-return]


def _weighted(g: Tensor, x: Tensor, o: Tensor, level: int) -> Tensor:
    """g * exp(x - o), one by one."""
    return _decayed(each(g), each(x), each(o), -1, False, level).reshape(g.shape)


def _risen(o: Tensor) -> Tensor:
    """-o, for o that rise to inf, too: of what is -inf a decayed sum would be 0."""
    return (-o).clamp(min=-torch.finfo(o.dtype).max)


@differentiable("decayed_sum")
class DecayedSum(Rule):
    """Result i: the sum of g[j] * exp(x[i] - o[j]) over j up to i, for falling o and x <= o (csrc/ops/scans.h)."""

    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        g, x, o, ctx.dim, ctx.reverse, ctx.level = inputs
        save(ctx, g, x, o, output)

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Any:
        g, x, o, result = saved
        back = _decayed(_weighted(grad, x, o, ctx.level), _risen(o), _risen(o), ctx.dim, not ctx.reverse, ctx.level)
        return back, grad * result, -g * back

    @staticmethod
    def tangent(ctx: Any, saved: Saved, *tangents: Any) -> Tensor:
        (g, x, o, result), (to_g, to_x, to_o) = saved, tangents[:3]
        direct = to_g if to_o is None else -g * to_o if to_g is None else to_g - g * to_o
        tangent = None if direct is None else _decayed(direct, x, o, ctx.dim, ctx.reverse, ctx.level)
        if to_x is None:
            return torch.zeros_like(result) if tangent is None else tangent
        through: Tensor = to_x * result
        return through if tangent is None else tangent + through


@differentiable("logcumsumexp")
class LogCumSumExp(Rule):
    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        x, ctx.dim, ctx.exclusive, ctx.reverse, ctx.level = inputs
        save(ctx, x)

    @staticmethod
    def shares(ctx: Any, saved: Saved) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """In the accumulator type: the greatest element m up to each, -m, w = exp(x - m), and s, the sum of exp up to
        each, as multiples of exp(m). Element j has the share exp(x[j] - m[i]) / s[i] in result i. No result is in an
        exponent, where its rounding would be a factor. As m is arbitrary, nothing is differentiated through it."""
        (x,) = saved
        x = x.to(accumulator(x.dtype))
        m = _ops.cummax.default(x.detach(), ctx.dim, ctx.reverse, ctx.level)[0]
        w, risen = _weighted(x.new_ones(()).expand(x.shape), x, m, ctx.level), _risen(m)
        del x  # as long as a copy is not needed, there is none
        s = _decayed(w, risen, risen, ctx.dim, ctx.reverse, ctx.level)
        return m, risen, w, s.masked_fill(m == -math.inf, 1)

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        m, risen, w, s = LogCumSumExp.shares(ctx, saved)
        del risen, w
        of_inclusive = _of_inclusive(grad.to(s.dtype), ctx.dim, ctx.exclusive, ctx.reverse)
        parts = _ops.divide.default(of_inclusive, s, s.dtype)
        del of_inclusive, s
        return _canonical(_decayed(parts, saved[0].to(m.dtype), m, ctx.dim, not ctx.reverse, ctx.level), grad.dtype)

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        """The sum of the tangents, each by its share of the result."""
        risen, w, s = LogCumSumExp.shares(ctx, saved)[1:]
        total = _decayed(t.to(s.dtype) * w, risen, risen, ctx.dim, ctx.reverse, ctx.level)
        tangent = _ops.divide.default(total, s, s.dtype)
        return _canonical(_of_exclusive(tangent, ctx.dim, ctx.exclusive, ctx.reverse), t.dtype)


def _canonical(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in dtype, rounded once, a NaN written canonical whatever the dtype was."""
    result: Tensor = _ops.rounded.default(x, dtype)
    return result


# ---- cummax and cummin: to the index ---------------------------------------------------------------------------------


_SUPERBLOCK = 1 << 18  # elements whose totals a scan folds one after the other (docs/numerics.md)


def _segment_sums(
    grad: Tensor, index: Tensor, carry: tuple[Tensor, Tensor] | None, more: bool, dim: int, forth: bool, level: int
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """The decayed sums of grad in float64 whose x and o are the indices, 1024 apart and falling, so that what belongs
    to another index has the weight exp(-1024), which is 0; and where there is more of the rows, what to carry there.

    A carry is a sum and its index. A superblock before the elements that has it as its total brings it in; an element
    behind them that adds nothing takes it out. So the pieces of a row are bitwise identical to the whole, if each but
    the last is whole superblocks.
    """
    n, before, behind = grad.shape[dim], _SUPERBLOCK if carry else 0, int(more)
    shape = [before + n + behind if d == dim else size for d, size in enumerate(grad.shape)]
    terms, apart = (torch.empty(shape, dtype=torch.float64, device=grad.device) for _ in range(2))
    first, last = (before, n - 1) if forth else (behind, 0)
    terms.narrow(dim, first, n).copy_(grad)
    apart.narrow(dim, first, n).copy_(index)
    if carry:
        front = 0 if forth else behind + n
        terms.narrow(dim, front, before).fill_(-0.0).select(dim, 0).copy_(carry[0])
        apart.narrow(dim, front, before).copy_(carry[1].unsqueeze(dim).expand_as(apart.narrow(dim, front, before)))
    end = before + n if forth else 0
    if more:
        terms.select(dim, end).fill_(-0.0)
        apart.select(dim, end).copy_(index.select(dim, last))
    apart.mul_(-1024 if forth else 1024)
    sums = _ops.decayed_sum.default(terms, apart, apart, dim, not forth, level)
    return sums.narrow(dim, first, n), (sums.select(dim, end), index.select(dim, last)) if more else None


def _to_index(grad: Tensor, index: Tensor, dim: int, reverse: bool, level: int) -> Tensor:
    """Element i: the sum of the gradients whose index is i, which are neighbours: in float64, from the far end on.

    Some rows at a time, and of long rows some superblocks, since this takes 37 bytes an element on the way.
    """
    result = torch.empty_like(grad, memory_format=torch.contiguous_format)
    if grad.numel() == 0:
        return result
    if grad.dim() == 0:
        return _round(grad, grad.dtype)
    dim %= grad.dim()
    n, most = grad.shape[dim], max(_SUPERBLOCK, grad.numel() * grad.element_size() // 64)
    other = max((d for d in range(grad.dim()) if d != dim), key=lambda d: grad.shape[d], default=dim)
    rows = 1 if other == dim else grad.shape[other]
    step = max(1, rows * most // grad.numel())
    across = min(step, rows) * grad.numel() // (rows * n)
    length = n if n * across <= most else max(1, most // (across * _SUPERBLOCK)) * _SUPERBLOCK
    starts = range(0, n, length) if reverse else range(n - length, -length, -length)
    for row in range(0, rows, step):
        carry = None
        for start in starts:
            first, stop = max(0, start), min(start + length, n)
            g, i, to = (
                (t if other == dim else t.narrow(other, row, min(step, rows - row))).narrow(dim, first, stop - first)
                for t in (grad, index, result)
            )
            sums, carry = _segment_sums(g, i, carry, start != starts[-1], dim, reverse, level)
            to.copy_(_round(sums, grad.dtype))
            positions = torch.arange(first, stop, device=index.device)
            to.masked_fill_(i != positions.reshape([-1 if d == dim else 1 for d in range(grad.dim())]), 0)
            del sums, positions
    return result


define(
    "to_index(Tensor grad, Tensor index, int dim, bool reverse, int level) -> Tensor", _to_index, _like_first,
    along_rows("to_index", 2),
)  # fmt: skip
define(
    "from_index(Tensor x, Tensor index, int dim, bool reverse, int level) -> Tensor",
    lambda x, index, dim, reverse, level: x.gather(dim, index), _like_first, along_rows("from_index", 2),
)  # fmt: skip


class Index(Rule):
    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        _, index, *ctx.rest = inputs
        save(ctx, index)

    @staticmethod
    def to_index(ctx: Any, saved: Saved, grad: Tensor, *_: Any) -> Tensor:
        return _ops.to_index.default(grad, *saved, *ctx.rest)  # type: ignore[no-any-return]

    @staticmethod
    def from_index(ctx: Any, saved: Saved, grad: Tensor, *_: Any) -> Tensor:
        return _ops.from_index.default(grad, *saved, *ctx.rest)  # type: ignore[no-any-return]


@differentiable("to_index")
class ToIndex(Index):
    backward, tangent = Index.from_index, Index.to_index


@differentiable("from_index")
class FromIndex(Index):
    """Each result's element."""

    backward, tangent = Index.to_index, Index.from_index


class CumExtreme(Rule):
    backward, tangent = Index.to_index, Index.from_index

    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, Tensor]) -> None:
        _, *ctx.rest = inputs
        save(ctx, output[1])


for _op in ("cummax", "cummin"):
    differentiable(_op, results=2)(CumExtreme)


# ---- linear_scan -----------------------------------------------------------------------------------------------------


def _scan(a: Tensor, b: Tensor, dim: int, reverse: bool, shifted: bool, level: int) -> Tensor:
    return _ops.linear_scan.default(a, b, None, dim, reverse, shifted, level)  # type: ignore[no-any-return]


def _full(x: Tensor, shape: Sequence[int], level: int) -> Tensor:
    """x broadcast to shape, without a copy; its gradient is the canonical sum."""
    x = x.reshape((1,) * (len(shape) - x.dim()) + x.shape)
    along = [d for d in range(len(shape)) if decided(x.shape[d] != shape[d], True)]
    return x if not along else _ops.spread.default(x, shape, along, x.dtype, level)


@differentiable("linear_scan")
class LinearScan(Rule):
    """`shifted`: a position takes the a of the one before it in the scan's direction, and there is no initial."""

    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        a, b, initial, ctx.dim, ctx.reverse, ctx.shifted, ctx.level = inputs
        ctx.wide, ctx.dtype, ctx.shape = accumulator(b.dtype), b.dtype, b.shape
        # Results of 16 bits are too coarse; they are computed again. For gradients of a alone are b or they needed.
        b, h = (None, output) if b.dtype == ctx.wide else (b, None)
        ctx.save_for_forward(a, b, initial, h)
        ctx.save_for_backward(a, *((b, initial, h) if ctx.needs_input_grad[1] else (None, initial, None)))

    @staticmethod
    def wide(ctx: Any, saved: Saved) -> tuple[Tensor, Tensor | None, Tensor]:
        """a, initial and the results in the accumulator type."""
        a, b, initial, h = saved
        a, start = a.to(ctx.wide), None if initial is None else initial.to(ctx.wide)
        if h is None:
            b = b.to(ctx.wide)
            h = _ops.linear_scan.default(a, b, start, ctx.dim, ctx.reverse, ctx.shifted, ctx.level)
        return a, start, h

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Any:
        """The scan from the other end, by the a of the next position; an a gets that times the h before it."""
        a, _, initial, _ = saved
        dim, reverse, level = ctx.dim, ctx.reverse, ctx.level
        factors = a.to(ctx.wide)
        back = _scan(factors, grad.to(ctx.wide), dim, not reverse, not ctx.shifted, level)
        to_b = summed(back, ctx.shape, ctx.dtype, level)
        if grad.dim() == 0:
            back, dim = back.unsqueeze(0), 0
        n = back.shape[dim]
        if decided(n == 0, False):
            return torch.zeros_like(a), to_b, None if initial is None else torch.zeros_like(initial)
        first = back.narrow(dim, n - 1 if reverse else 0, 1)
        outer, to_initial = torch.zeros_like(first), None  # of the a that is not used
        if initial is not None:
            start = initial.to(ctx.wide)
            outer = first * _full(start, first.squeeze(dim).shape, level).unsqueeze(dim)
            factor = _full(factors, back.shape, level).narrow(dim, n - 1 if reverse else 0, 1)
            to_initial = summed((factor * first).squeeze(dim), initial.shape, initial.dtype, level)
        if not ctx.needs_input_grad[1]:  # of a
            return None, to_b, to_initial
        h = LinearScan.wide(ctx, saved)[2]
        before = h.reshape(back.shape).narrow(dim, int(reverse), n - 1)
        products = back.narrow(dim, 1 - reverse, n - 1) * before
        parts = [outer, products] if reverse == ctx.shifted else [products, outer]
        to_a = summed(torch.cat(parts, dim).reshape(grad.shape), a.shape, a.dtype, level)
        return to_a, to_b, to_initial

    @staticmethod
    def tangent(ctx: Any, saved: Saved, *tangents: Any) -> Tensor:
        """The same recurrence of the tangents: b's, and that of a times the h before it."""
        to_a, to_b, to_initial = tangents[:3]
        a, start, h = LinearScan.wide(ctx, saved)
        dim, level = ctx.dim, ctx.level
        direct = torch.zeros_like(h) if to_b is None else _full(to_b.to(ctx.wide), h.shape, level)
        if to_a is not None and not decided(h.numel() == 0, False):
            whole = h.dim() == 0
            before = _shifted(h, dim, not ctx.reverse)
            if start is not None:
                before = before.unsqueeze(0) if whole else before
                along = 0 if whole else dim
                last = before.narrow(along, 1 - ctx.reverse, before.shape[along] - 1)  # all but the first in its order
                edge = _full(start, before.select(along, 0).shape, level).unsqueeze(along)
                before = torch.cat([last, edge] if ctx.reverse else [edge, last], along)
                before = before.squeeze(0) if whole else before
            factor = _full(to_a.to(ctx.wide), h.shape, level)
            if ctx.shifted:
                factor = _shifted(factor, dim, not ctx.reverse)
            direct = direct + factor * before
        if start is not None and to_initial is None:
            to_initial = torch.zeros_like(start)
        if to_initial is not None:
            to_initial = to_initial.to(ctx.wide)
        tangent = _ops.linear_scan.default(a, direct, to_initial, dim, ctx.reverse, ctx.shifted, level)
        return _canonical(tangent, ctx.dtype)


@differentiable("linear_scan_segments")
class LinearScanOfSegments(Rule):
    """As LinearScan; what a row has an end for, masks have here."""

    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        a, b, initial, offsets, ctx.dim, ctx.reverse, ctx.shifted, ctx.level = inputs
        ctx.wide, ctx.dtype, ctx.shape = accumulator(b.dtype), b.dtype, b.shape
        b, h = (None, output) if b.dtype == ctx.wide else (b, None)  # as there
        save(ctx, a, b, initial, h, offsets)

    @staticmethod
    def scan(ctx: Any, a: Tensor, b: Tensor, initial: Tensor | None, offsets: Tensor, back: bool = False) -> Tensor:
        """With `back` from the other end, by the a of the next position."""
        rest = ctx.dim, ctx.reverse != back, ctx.shifted != back, ctx.level
        return _ops.linear_scan_segments.default(a, b, initial, offsets, *rest)  # type: ignore[no-any-return]

    @staticmethod
    def h(ctx: Any, saved: Saved) -> Tensor:
        """The results in the accumulator type."""
        a, b, initial, h, offsets = saved
        if h is not None:
            return h  # type: ignore[no-any-return]
        start = None if initial is None else initial.to(ctx.wide)
        return LinearScanOfSegments.scan(ctx, a.to(ctx.wide), b.to(ctx.wide), start, offsets)

    @staticmethod
    def first(ctx: Any, offsets: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Which elements are the first of a segment, in the order of the scan; and which are of none."""
        numbers = numbered(offsets, x.shape[ctx.dim])
        none, end = numbers < 0, numbers.new_full([1], -1)
        before = torch.cat([numbers[1:], end] if ctx.reverse else [end, numbers[:-1]])
        return along_dim((numbers != before) & ~none, x.dim(), ctx.dim), along_dim(none, x.dim(), ctx.dim)

    @staticmethod
    def before(ctx: Any, saved: Saved, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The h before each element; and which elements have none, or have their segment's initial."""
        initial, offsets = saved[2], saved[4]
        first, none = LinearScanOfSegments.first(ctx, offsets, h)
        before = _shifted(h, ctx.dim, not ctx.reverse)
        if initial is None:
            return before, first | none, first
        starts = _full(initial.to(ctx.wide), of_segments(h.shape, offsets, ctx.dim), ctx.level)
        starts = taken(starts, (offsets, None, None), h.shape[ctx.dim], ctx.dim, ctx.wide)
        return torch.where(first, starts, before), none, first

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Any:
        a, _, initial, _, offsets = saved
        factors, level = a.to(ctx.wide), ctx.level
        back = LinearScanOfSegments.scan(ctx, factors, grad.to(ctx.wide), None, offsets, back=True)
        to_b = summed(back, ctx.shape, ctx.dtype, level)
        before, unused, first = LinearScanOfSegments.before(ctx, saved, LinearScanOfSegments.h(ctx, saved))
        products = (back * before).masked_fill(unused, 0)
        if ctx.shifted:  # an a is that of the next position, too: its product is the next one's, or that of none
            products = _shifted(products, ctx.dim, ctx.reverse)
        to_a, to_initial = summed(products, a.shape, a.dtype, level), None
        if initial is not None:
            edges = (factors * back).masked_fill(~first, -0.0)  # a sum with these is the other term
            of_each = _ops.sum_segments.default(edges, offsets, None, None, ctx.dim, ctx.wide, level)
            to_initial = summed(of_each, initial.shape, initial.dtype, level)
        return to_a, to_b, to_initial

    @staticmethod
    def tangent(ctx: Any, saved: Saved, *tangents: Any) -> Tensor:
        to_a, to_b, to_initial = tangents[:3]
        a, _, initial, _, offsets = saved
        h = LinearScanOfSegments.h(ctx, saved)
        direct = torch.zeros_like(h) if to_b is None else _full(to_b.to(ctx.wide), h.shape, ctx.level)
        if to_a is not None:
            before, unused, _ = LinearScanOfSegments.before(ctx, saved, h)
            factor = _full(to_a.to(ctx.wide), h.shape, ctx.level)
            if ctx.shifted:
                factor = _shifted(factor, ctx.dim, not ctx.reverse)
            direct = direct + (factor * before).masked_fill(unused, 0)
        if initial is not None:
            to_initial = torch.zeros_like(initial) if to_initial is None else to_initial
            to_initial = to_initial.to(ctx.wide)
        return _canonical(LinearScanOfSegments.scan(ctx, a.to(ctx.wide), direct, to_initial, offsets), ctx.dtype)


def _linear_fake(
    a: Tensor, b: Tensor, initial: Tensor | None, dim: int, reverse: bool, shifted: bool, level: int
) -> Tensor:
    shape = broadcast_shape(a.shape, b.shape)
    if shape is None:
        raise RuntimeError(f"linear_scan: a and b must broadcast, got {tuple(a.shape)} and {tuple(b.shape)}")
    return b.new_empty(shape)


def _linear_batched(
    info: Any,
    in_dims: Any,
    a: Tensor,
    b: Tensor,
    initial: Tensor | None,
    dim: int,
    reverse: bool,
    shifted: bool,
    level: int,
) -> tuple[Tensor, int]:
    """Each batched along a dim before those of the result; a batch of 0-d tensors is one of rows of one element."""
    rank = max(t.dim() - (batch is not None) for t, batch in zip((a, b), in_dims, strict=False))
    dims = max(rank, 1)

    def aligned(t: Tensor, batch: int | None, dims: int) -> Tensor:
        t = t.unsqueeze(0) if batch is None else t.movedim(batch, 0)
        return t.reshape(t.shape[:1] + (1,) * (dims + 1 - t.dim()) + t.shape[1:])

    a, b = aligned(a, in_dims[0], dims), aligned(b, in_dims[1], dims)
    if initial is not None:
        initial = aligned(initial, in_dims[2], dims - 1)
    b = b.expand(info.batch_size, *b.shape[1:])
    result = _ops.linear_scan.default(a, b, initial, 1 + dim % dims, reverse, shifted, level)
    return (result if rank else result.squeeze(1)), 0


for _overload in ("", ".raw"):
    torch.library.register_fake(f"torchreduce::linear_scan{_overload}", _linear_fake, lib=LIBRARY)
    torch.library.register_vmap(f"torchreduce::linear_scan{_overload}", _linear_batched, lib=LIBRARY)
for _overload in (".out", ".raw_out"):
    torch.library.register_fake(f"torchreduce::linear_scan{_overload}", writes_only, lib=LIBRARY)
for _overload in (".raw", ".raw_out"):
    LIBRARY.impl(f"linear_scan{_overload}", torch.library.fallthrough_kernel, "Autograd")
register_out("linear_scan", _ops.linear_scan)
