"""Derivatives of the norms, as autograd.py has those of the other reductions.

Where 0 is the norm, the derivative of order 2 is 0, as torch has it; that of a magnitude at 0 is 0, too.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._core.dispatch import Saved, differentiable, save
from .._fake.reductions import reduced_shape
from .reductions import OfInput, Reduction, Sum, accumulator, rounded

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
