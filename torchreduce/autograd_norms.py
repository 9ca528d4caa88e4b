"""Derivatives of the norms and of prod, as autograd.py has those of the other reductions.

Where 0 is the norm, the derivative of order 2 is 0, as torch has it; that of a magnitude at 0 is 0, too.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .autograd import OfInput, Reduction, Sum, accumulator, define, rounded
from .autograd_scans import _scan, _shifted
from .dispatch import Rule, Saved, differentiable, save
from .fake import dims_of, reduced_shape

_ops = torch.ops.torchreduce


class Norm(Reduction):
    """`factors`: by which each element's tangent goes into the result, of no wider dtype than sums have."""

    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        Sum.save(ctx, inputs, output)
        save(ctx, inputs[0], output)

    @staticmethod
    def backward_by(ctx: Any, factors: Tensor, grad: Tensor) -> Tensor:
        """In the accumulator type, rounded once."""
        wide = accumulator(ctx.dtype, grad.dtype)
        spread = _ops.spread.default(Reduction.kept(ctx, grad), ctx.shape, ctx.dims, wide, ctx.level)
        return rounded(spread * factors.to(wide), ctx.dtype)

    @staticmethod
    def tangent_by(ctx: Any, factors: Tensor, t: Tensor) -> Tensor:
        products = t.to(accumulator(t.dtype, ctx.to or t.dtype)) * factors
        return _ops.sum.default(products, ctx.dims, ctx.keepdim, ctx.to or ctx.dtype, ctx.level)  # type: ignore[no-any-return]


@differentiable("norm0")
class Norm0(Norm):
    save = Sum.save

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        return grad.new_zeros(ctx.shape, dtype=ctx.dtype)

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        return t.new_zeros(reduced_shape(ctx.shape, ctx.dims, ctx.keepdim), dtype=ctx.to or ctx.dtype)


@differentiable("norm1")
class Norm1(Norm):
    save = OfInput.save

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        return Norm.backward_by(ctx, saved[0].sgn(), grad)

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        return Norm.tangent_by(ctx, saved[0].sgn(), t)


@differentiable("norm2")
class Norm2(Norm):
    @staticmethod
    def units(ctx: Any, saved: Saved) -> Tensor:
        """The elements, divided once by their norm in the accumulator type; 0 where that is 0."""
        x, norm = saved
        wide = accumulator(ctx.dtype, norm.dtype)
        if norm.dtype != wide:  # results of 16 bits are too coarse
            norm = _ops.norm2.default(x, ctx.dims, True, wide, ctx.level)
        norm = norm.reshape(reduced_shape(ctx.shape, ctx.dims, True))
        zero = norm == 0
        return _ops.divide.default(x, norm.masked_fill(zero, 1), wide).masked_fill(zero, 0)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        return Norm.backward_by(ctx, Norm2.units(ctx, saved), grad)

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        return Norm.tangent_by(ctx, Norm2.units(ctx, saved), t)


class Farthest(Norm):
    """Shared evenly among the magnitudes that tie, or the NaN."""

    @staticmethod
    def shares(ctx: Any, saved: Saved) -> Tensor:
        x, norm = saved
        norm, size = Reduction.kept(ctx, norm), x.abs()
        ties = (size == norm) | (size.isnan() & norm.isnan())
        count = _ops.sum.default(ties, ctx.dims, True, None, ctx.level)
        wide = accumulator(ctx.dtype)
        return _ops.divide.default(x.sgn().to(wide).masked_fill(~ties, 0), count, wide)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        return Norm.backward_by(ctx, Farthest.shares(ctx, saved), grad)

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        return Norm.tangent_by(ctx, Farthest.shares(ctx, saved), t)


for _op in ("norm_greatest", "norm_least"):
    differentiable(_op)(Farthest)


# ---- prod ------------------------------------------------------------------------------------------------------------


def _prod_gradient(g: Tensor, x: Tensor, dims: Sequence[int] | None, level: int) -> Tensor:
    """g times the product of all other elements: g times the product, divided by the element; at the only 0 of a row
    the product of the rest. g has the shape of x, with size 1 along dims."""
    wide, zero = accumulator(g.dtype, x.dtype), x == 0
    zeros = _ops.sum.raw(zero, dims, True, None, level)
    factors = x.to(wide).masked_fill(zero, 1)
    product = g.to(wide) * _ops.prod.raw(factors, dims, True, wide, level)
    back = _ops.divide.default(product.expand(x.shape), factors, x.dtype)
    return back.masked_fill(~((zeros == 0) | (zero & (zeros == 1))), 0)  # type: ignore[no-any-return]


def _prod_gradient_batched(
    info: Any, in_dims: Any, g: Tensor, x: Tensor, dims: Sequence[int] | None, level: int
) -> tuple[Tensor, int]:
    g, x = (
        t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
        for t, d in zip((g, x), in_dims, strict=False)
    )
    along = [1 + d for d in dims_of(x.dim() - 1, dims)]
    if not along:  # a batch of 0-d tensors
        return _ops.prod_gradient.default(g.unsqueeze(1), x.unsqueeze(1), [1], level).squeeze(1), 0
    return _ops.prod_gradient.default(g, x, along, level), 0


define(
    "prod_gradient(Tensor g, Tensor x, int[]? dims, int level) -> Tensor", _prod_gradient,
    lambda g, x, *_: x.new_empty(x.shape), _prod_gradient_batched,
)  # fmt: skip


@differentiable("prod_gradient")
class ProdGradient(Rule):
    """By another form of it, which divides nothing: g times the product of what is before it and of what is behind."""

    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        g, x, ctx.dims, ctx.level = inputs
        save(ctx, g, x)

    @staticmethod
    def rows(ctx: Any, shape: Sequence[int], *tensors: Tensor | None) -> Any:
        """Each as (rows, elements) in the accumulator type, and what makes of such the shape of x again."""
        along = dims_of(len(shape), ctx.dims)
        order = [d for d in range(len(shape)) if d not in along] + along
        kept = [shape[d] for d in order[: len(order) - len(along)]]
        back = [order.index(d) for d in range(len(order))]

        def restored(t: Tensor) -> Tensor:
            """No view, which tangents may not be."""
            return t.reshape([*kept, *(shape[d] for d in along)]).permute(back).clone()

        def flat(t: Tensor | None) -> Tensor | None:
            if t is None:
                return None
            count = 1
            for d in along:
                count = count * t.shape[d]
            return t.permute(order).reshape([*kept, count]).to(ctx.wide)

        return [flat(t) for t in tensors], restored

    @staticmethod
    def both_sides(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        before = _ops.cumprod.default(x, -1, ctx.wide, True, False, ctx.level)
        behind = _ops.cumprod.default(x, -1, ctx.wide, True, True, ctx.level)
        return before, behind

    @staticmethod
    def changed(ctx: Any, x: Tensor, before: Tensor, behind: Tensor, t: Tensor) -> Tensor:
        """How the products of all others change with t."""
        to_before = _shifted(_scan(x, t * before, -1, False, False, ctx.level), -1, True)
        to_behind = _shifted(_scan(x, t * behind, -1, True, False, ctx.level), -1, False)
        return to_before * behind + before * to_behind

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Any:
        g, x = saved
        ctx.wide = accumulator(g.dtype, x.dtype)
        (g_rows, x_rows, c), restored = ProdGradient.rows(ctx, x.shape, g, x, grad)
        before, behind = ProdGradient.both_sides(ctx, x_rows)
        to_g = _ops.sum.default(c * before * behind, [-1], False, ctx.wide, ctx.level)
        to_x = g_rows * ProdGradient.changed(ctx, x_rows, before, behind, c)
        return rounded(to_g, g.dtype).reshape(g.shape), rounded(restored(to_x), x.dtype)

    @staticmethod
    def tangent(ctx: Any, saved: Saved, to_g: Tensor | None, to_x: Tensor | None, *_: Any) -> Tensor:
        g, x = saved
        ctx.wide = accumulator(g.dtype, x.dtype)
        (g_rows, x_rows, g_t, x_t), restored = ProdGradient.rows(ctx, x.shape, g, x, to_g, to_x)
        before, behind = ProdGradient.both_sides(ctx, x_rows)
        tangent = torch.zeros_like(x_rows) if g_t is None else g_t * before * behind
        if x_t is not None:
            tangent = tangent + g_rows * ProdGradient.changed(ctx, x_rows, before, behind, x_t)
        return rounded(restored(tangent), x.dtype)


@differentiable("prod")
class Prod(OfInput):
    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        back: Tensor = _ops.prod_gradient.default(Reduction.kept(ctx, grad), *saved, ctx.dims, ctx.level)
        return back

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        (x,) = saved
        to = ctx.to or ctx.dtype
        wide = accumulator(ctx.dtype, to)
        one = t.new_ones(reduced_shape(ctx.shape, ctx.dims, True), dtype=wide)
        products = t.to(wide) * _ops.prod_gradient.default(one, x.to(wide), ctx.dims, ctx.level)
        return _ops.sum.default(products, ctx.dims, ctx.keepdim, to, ctx.level)  # type: ignore[no-any-return]
