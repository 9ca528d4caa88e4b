"""Derivatives of the row-wise ops. A gradient is an op of its own, one kernel; its derivatives, and tangents,
are composed of the project's ops in the accumulator type, with one rounding at the end.

In the formulas u = g * weight, J is the Jacobian of an op without weight, which is symmetric for all of them, and E the
sum or mean over the row's dims.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._core import direct
from .._core.dispatch import Rule, Saved, differentiable, is_bare, is_plain, is_unwatched, save
from .._fake.reductions import reduced_shape
from .._fake.rowwise import SIGNATURES, trailing, wide
from .reductions import Reduction, _round, define, rounded, summed
from .segments import of_rows_or_segments, taken, within

_ops = torch.ops.torchreduce
bare_mean_loss = direct.raw("mean_loss")  # the mean and the divisor
Dims = Sequence[int] | None


def _total(x: Tensor, dims: Any, level: int, offsets: Sequence[Tensor] = ()) -> Tensor:
    """The sums of rows over dims, kept with size 1, in x's dtype; no dims are all of them. Or those of the segments of
    a dim."""
    if offsets:
        return _ops.sum_segments.default(x, *offsets, None, None, dims, x.dtype, level)  # type: ignore[no-any-return]
    return _ops.sum.default(x, dims, True, x.dtype, level)  # type: ignore[no-any-return]


def _each(value: Tensor, x: Tensor, dims: Any, offsets: Sequence[Tensor] = ()) -> Tensor:
    """What x's rows, or its segments, have one of, for each element."""
    return taken(value, (offsets[0], None, None), x.shape[dims], dims, value.dtype) if offsets else value


def _sum(x: Tensor, dims: Any, level: int, offsets: Sequence[Tensor] = ()) -> Tensor:
    """The sum of each element's row or segment."""
    return _each(_total(x, dims, level, offsets), x, dims, offsets)


def _kept(x: Tensor, shape: Sequence[int], dims: Dims) -> Tensor:
    """A value of each row, with size 1 along dims."""
    return x.reshape(reduced_shape(shape, dims, True))


# ---- softmax ---------------------------------------------------------------------------------------------------------


def _probabilities(y: Tensor, dim: int, level: int, offsets: Sequence[Tensor]) -> Tensor:
    """exp(y) of log-probabilities y."""
    return of_rows_or_segments("softmax", (y,), offsets, dim, wide(y.dtype), level)  # type: ignore[no-any-return]


def _along(dim: int, offsets: Sequence[Tensor]) -> Any:
    """dim as the sums take it."""
    return dim if offsets else [dim]


class OfResult(Rule):
    """Of rows, or with offsets of segments, as all that follow."""

    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        x, *offsets, ctx.dim, _, ctx.level = inputs
        ctx.dtype = x.dtype
        save(ctx, output, *offsets)


def _gradient(name: str, g: Tensor, saved: Saved, dtype: torch.dtype, ctx: Any) -> Tensor:
    y, *offsets = saved
    rest = ctx.dim, dtype, ctx.level
    return of_rows_or_segments(f"{name}_gradient", (rounded(g, y.dtype), y), offsets, *rest)  # type: ignore[no-any-return]


class Softmax(OfResult):
    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        return _gradient("softmax", grad, saved, ctx.dtype, ctx)

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        return _gradient("softmax", t, saved, saved[0].dtype, ctx)


class LogSoftmax(OfResult):
    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        return _gradient("log_softmax", grad, saved, ctx.dtype, ctx)

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        y, *offsets = saved
        p = _probabilities(y, ctx.dim, ctx.level, offsets)
        t = t.to(p.dtype)
        tangent = t - _sum(p * t, _along(ctx.dim, offsets), ctx.level, offsets)
        return rounded(within(tangent, offsets, ctx.dim), y.dtype)


class GradientOfResult(Rule):
    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        g, y, *offsets, ctx.dim, ctx.to, ctx.level = inputs
        ctx.dtype = g.dtype
        save(ctx, g, y, *offsets)

    @staticmethod
    def sum(ctx: Any, x: Tensor, offsets: Sequence[Tensor]) -> Tensor:
        return _sum(x, _along(ctx.dim, offsets), ctx.level, offsets)

    @staticmethod
    def rounded(ctx: Any, x: Tensor, dtype: torch.dtype, offsets: Sequence[Tensor]) -> Tensor:
        return rounded(within(x, offsets, ctx.dim), dtype)


class SoftmaxGradient(GradientOfResult):
    """(g - E(g y)) y."""

    @staticmethod
    def changed(ctx: Any, g: Tensor, y: Tensor, t: Tensor, offsets: Sequence[Tensor]) -> Tensor:
        """How it changes with y: t stands for the change, or for the gradient, of which it is the transposed."""
        return t * (g - SoftmaxGradient.sum(ctx, g * y, offsets))

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Any:
        g, y, *offsets = saved
        to_g = _gradient("softmax", grad, saved[1:], ctx.dtype, ctx)
        g, y, c = (t.to(wide(ctx.dtype)) for t in (g, y, grad))
        to_y = SoftmaxGradient.changed(ctx, g, y, c, offsets) - g * SoftmaxGradient.sum(ctx, c * y, offsets)
        return to_g, SoftmaxGradient.rounded(ctx, to_y, ctx.dtype, offsets)

    @staticmethod
    def tangent(ctx: Any, saved: Saved, to_g: Tensor | None, to_y: Tensor | None, *_: Any) -> Tensor:
        _, _, *offsets = saved
        g, y = (t.to(wide(ctx.dtype)) for t in saved[:2])
        tangent = torch.zeros_like(y)
        if to_g is not None:
            tangent = _gradient("softmax", to_g.to(y.dtype), (y, *offsets), y.dtype, ctx)
        if to_y is not None:
            to_y = to_y.to(y.dtype)
            direct = SoftmaxGradient.changed(ctx, g, y, to_y, offsets)
            tangent = tangent + direct - y * SoftmaxGradient.sum(ctx, g * to_y, offsets)
        return SoftmaxGradient.rounded(ctx, tangent, ctx.to, offsets)


class LogSoftmaxGradient(GradientOfResult):
    """g - exp(y) E(g)."""

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Any:
        g, y, *offsets = saved
        p = _probabilities(y, ctx.dim, ctx.level, offsets)
        g, c = g.to(p.dtype), grad.to(p.dtype)
        to_g = c - LogSoftmaxGradient.sum(ctx, p * c, offsets)
        to_y = -(p * c) * LogSoftmaxGradient.sum(ctx, g, offsets)
        to_g, to_y = (LogSoftmaxGradient.rounded(ctx, t, ctx.dtype, offsets) for t in (to_g, to_y))
        return to_g, to_y

    @staticmethod
    def tangent(ctx: Any, saved: Saved, to_g: Tensor | None, to_y: Tensor | None, *_: Any) -> Tensor:
        g, y, *offsets = saved
        p = _probabilities(y, ctx.dim, ctx.level, offsets)
        tangent = torch.zeros_like(p)
        if to_g is not None:
            to_g = to_g.to(p.dtype)
            tangent = to_g - p * LogSoftmaxGradient.sum(ctx, to_g, offsets)
        if to_y is not None:
            tangent = tangent - p * to_y.to(p.dtype) * LogSoftmaxGradient.sum(ctx, g.to(p.dtype), offsets)
        return LogSoftmaxGradient.rounded(ctx, tangent, ctx.to, offsets)


for _name, _rule in (
    ("softmax", Softmax), ("log_softmax", LogSoftmax),
    ("softmax_gradient", SoftmaxGradient), ("log_softmax_gradient", LogSoftmaxGradient),
):  # fmt: skip
    for _op in (_name, f"{_name}_segments"):
        differentiable(_op)(_rule)


# ---- values for each row ---------------------------------------------------------------------------------------------


class RowValues(Reduction):
    """Keeps the input and its statistics."""

    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, ...]) -> None:
        x, dims, keepdim, level = inputs
        Reduction.remember(ctx, x, dims, keepdim, level)
        save(ctx, x, output[-1])

    @staticmethod
    def value(ctx: Any, products: Tensor) -> Tensor:
        """The tangent of the result, products being each element's part of it."""
        return _ops.sum.default(products, ctx.dims, ctx.keepdim, ctx.dtype, ctx.level)  # type: ignore[no-any-return]


def _one(stats: Tensor) -> Tensor:
    return torch.ones_like(stats[0])


def _factors(gradient: Any, x: Tensor, stats: Tensor, dims: Dims, level: int) -> Tensor:
    """By which each element's tangent goes into the row's value, in the accumulator type."""
    return gradient.default(_one(stats), x.to(stats.dtype), stats, dims, level)  # type: ignore[no-any-return]


class GradientOfRowValues(Rule):
    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        g, x, stats, *offsets, ctx.dims, ctx.level = inputs
        ctx.to_g, ctx.dtype = g.dtype, x.dtype
        save(ctx, g, x, stats, *offsets)


def _shares(x: Tensor, stats: Tensor, offsets: Sequence[Tensor], dims: Any, level: int) -> Tensor:
    """Each element's probability, in the accumulator type."""
    tensors = _one(stats), x.to(stats.dtype), stats
    return of_rows_or_segments("logsumexp_gradient", tensors, offsets, dims, level)  # type: ignore[no-any-return]


@differentiable("logsumexp", results=2)
class LogSumExp(RowValues):
    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        return _ops.logsumexp_gradient.default(Reduction.kept(ctx, grad), *saved, ctx.dims, ctx.level)  # type: ignore[no-any-return]

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        x, stats = saved
        p = _shares(x, stats, (), ctx.dims, ctx.level)
        return RowValues.value(ctx, p * t.to(p.dtype))


@differentiable("logsumexp_segments", results=2)
class LogSumExpOfSegments(Rule):
    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, ...]) -> None:
        x, offsets, ctx.dim, ctx.level = inputs
        save(ctx, x, output[-1], offsets)

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        return _ops.logsumexp_gradient_segments.default(grad, *saved, ctx.dim, ctx.level)  # type: ignore[no-any-return]

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        x, stats, offsets = saved
        p = _shares(x, stats, [offsets], ctx.dim, ctx.level)
        rest = ctx.dim, x.dtype, ctx.level
        return _ops.sum_segments.default(p * t.to(p.dtype), offsets, None, None, *rest)  # type: ignore[no-any-return]


class LogSumExpGradient(GradientOfRowValues):
    """g p, with the probabilities p."""

    @staticmethod
    def changed(ctx: Any, g: Tensor, p: Tensor, t: Tensor, offsets: Sequence[Tensor]) -> Tensor:
        """Its change with x, or the transposed of it, which is the same."""
        return _each(g, p, ctx.dims, offsets) * p * (t - _sum(p * t, ctx.dims, ctx.level, offsets))

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Any:
        g, x, stats, *offsets = saved
        p = _shares(x, stats, offsets, ctx.dims, ctx.level)
        c = grad.to(p.dtype)
        to_g = _total(c * p, ctx.dims, ctx.level, offsets)
        to_x = LogSumExpGradient.changed(ctx, g.to(p.dtype), p, c, offsets)
        return rounded(to_g, ctx.to_g), rounded(to_x, ctx.dtype)

    @staticmethod
    def tangent(ctx: Any, saved: Saved, to_g: Tensor | None, to_x: Tensor | None, *_: Any) -> Tensor:
        g, x, stats, *offsets = saved
        p = _shares(x, stats, offsets, ctx.dims, ctx.level)
        tangent = torch.zeros_like(p) if to_g is None else p * _each(to_g.to(p.dtype), p, ctx.dims, offsets)
        if to_x is not None:
            tangent = tangent + LogSumExpGradient.changed(ctx, g.to(p.dtype), p, to_x.to(p.dtype), offsets)
        return rounded(tangent, ctx.dtype)


for _op in ("logsumexp_gradient", "logsumexp_gradient_segments"):
    differentiable(_op)(LogSumExpGradient)


@differentiable("entropy", results=2)
class Entropy(RowValues):
    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        return _ops.entropy_gradient.default(Reduction.kept(ctx, grad), *saved, ctx.dims, ctx.level)  # type: ignore[no-any-return]

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        x, stats = saved
        factors = _factors(_ops.entropy_gradient, x, stats, ctx.dims, ctx.level)
        return RowValues.value(ctx, factors * t.to(factors.dtype))


@differentiable("entropy_gradient")
class EntropyGradient(GradientOfRowValues):
    """-g p (log p + h), h being the entropy."""

    @staticmethod
    def changed(ctx: Any, g: Tensor, x: Tensor, stats: Tensor, t: Tensor) -> Tensor:
        """Its change with x, or the transposed of it, which is the same."""
        x = x.to(stats.dtype)
        p = _ops.logsumexp_gradient.default(_one(stats), x, stats[:2], ctx.dims, ctx.level)
        # Of one dim: entropy has no more. Not by logsumexp, whose rounding would be as large as its result is.
        away = _ops.log_softmax.default(x, ctx.dims[0] if ctx.dims else 0, None, ctx.level)
        away = away.masked_fill(p == 0, 0) + _ops.entropy.default(x, ctx.dims, True, ctx.level)[0]
        mean, covered = _sum(p * t, ctx.dims, ctx.level), _sum(p * away * t, ctx.dims, ctx.level)
        change: Tensor = -g * p * (t * (away + 1) - covered - mean * (away + 1))
        return change

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Any:
        g, x, stats = saved
        c = grad.to(stats.dtype)
        to_g = _sum(c * _factors(_ops.entropy_gradient, x, stats, ctx.dims, ctx.level), ctx.dims, ctx.level)
        to_x = EntropyGradient.changed(ctx, g.to(c.dtype), x, stats, c)
        return rounded(to_g, ctx.to_g), rounded(to_x, ctx.dtype)

    @staticmethod
    def tangent(ctx: Any, saved: Saved, to_g: Tensor | None, to_x: Tensor | None, *_: Any) -> Tensor:
        g, x, stats = saved
        tangent = torch.zeros(x.shape, dtype=stats.dtype, device=x.device)
        if to_g is not None:
            factors = _factors(_ops.entropy_gradient, x, stats, ctx.dims, ctx.level)
            tangent = factors * to_g.to(stats.dtype)
        if to_x is not None:
            tangent = tangent + EntropyGradient.changed(ctx, g.to(stats.dtype), x, stats, to_x.to(stats.dtype))
        return rounded(tangent, ctx.dtype)


# ---- moments ---------------------------------------------------------------------------------------------------------


def _count(shape: Sequence[int], dims: Dims) -> Any:
    count: Any = 1
    for size, row in zip(shape, reduced_shape(shape, dims, True), strict=True):
        count = count * (size if dims is None or row == 1 else 1)
    return count


def _divide(x: Tensor, n: Any) -> Tensor:
    """By a number, on x's device: torch's GPU division by a number of the host multiplies by its reciprocal."""
    return _ops.divide.default(x, x.new_full((), n), x.dtype)  # type: ignore[no-any-return]


@differentiable("moments", results=3, smooth=2)
class Moments(Reduction):
    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, ...]) -> None:
        x, dims, keepdim, ctx.correction, ctx.root, level = inputs
        Reduction.remember(ctx, x, dims, keepdim, level)
        save(ctx, x, output[-1])

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Any) -> Tensor:
        x, stats = saved
        g, to_mean = (None if t is None else Reduction.kept(ctx, t) for t in grad)
        if g is None:
            assert to_mean is not None
            return Reduction.spread(ctx, _divide(to_mean.to(stats.dtype), _count(ctx.shape, ctx.dims)))
        rest = (ctx.dims, ctx.correction, ctx.root, ctx.level)
        return _ops.moments_gradient.default(g, to_mean, x, stats, *rest)  # type: ignore[no-any-return]

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Any:
        x, stats = saved
        rest = (ctx.dims, ctx.correction, ctx.root, ctx.level)
        factors = _ops.moments_gradient.default(_one(stats), None, x.to(stats.dtype), stats, *rest)
        return (
            RowValues.value(ctx, factors * t.to(factors.dtype)),
            _ops.mean.default(t, ctx.dims, ctx.keepdim, ctx.dtype, ctx.level),
        )


@differentiable("moments_gradient")
class MomentsGradient(Rule):
    """Of the variance g 2 d / N, of its root s g d / (s N); d is the distance to the mean, N the divisor. And the
    mean's."""

    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        g, to_mean, x, stats, ctx.dims, ctx.correction, ctx.root, ctx.level = inputs
        ctx.to_g, ctx.to_mean, ctx.dtype = g.dtype, None if to_mean is None else to_mean.dtype, x.dtype
        save(ctx, g, x, stats)

    @staticmethod
    def factors(ctx: Any, x: Tensor, stats: Tensor) -> Tensor:
        rest = (ctx.dims, ctx.correction, ctx.root, ctx.level)
        return _ops.moments_gradient.default(_one(stats), None, x.to(stats.dtype), stats, *rest)  # type: ignore[no-any-return]

    @staticmethod
    def changed(ctx: Any, g: Tensor, x: Tensor, stats: Tensor, t: Tensor) -> Tensor:
        """Its change with x, or the transposed of it, which is the same."""
        x = x.to(stats.dtype)
        n = max(0.0, _count(x.shape, ctx.dims) - ctx.correction)
        away = t - _ops.mean.default(t, ctx.dims, True, t.dtype, ctx.level)
        if not ctx.root:
            return _divide(2 * g * away, n)
        s = _ops.moments.default(x, ctx.dims, True, ctx.correction, True, ctx.level)[0]
        zero = s == 0
        s = s.masked_fill(zero, 1)
        unit = MomentsGradient.factors(ctx, x, stats) * n  # (x - mean) / s, which no rounded mean is in
        along = _divide(_sum(t * unit, ctx.dims, ctx.level), n)
        scale = _ops.divide.default(_divide(g, n), s, x.dtype).masked_fill(zero, 0)
        change: Tensor = scale * (away - unit * along)
        return change

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Any:
        g, x, stats = saved
        c = grad.to(stats.dtype)
        to_g = _sum(c * MomentsGradient.factors(ctx, x, stats), ctx.dims, ctx.level)
        to_mean = None
        if ctx.to_mean is not None:
            to_mean = _ops.mean.default(c, ctx.dims, True, ctx.to_mean, ctx.level)
        to_x = MomentsGradient.changed(ctx, g.to(c.dtype), x, stats, c)
        return rounded(to_g, ctx.to_g), to_mean, rounded(to_x, ctx.dtype)

    @staticmethod
    def tangent(
        ctx: Any, saved: Saved, to_g: Tensor | None, to_mean: Tensor | None, to_x: Tensor | None, *_: Any
    ) -> Tensor:
        g, x, stats = saved
        tangent = torch.zeros(x.shape, dtype=stats.dtype, device=x.device)
        if to_g is not None:
            tangent = MomentsGradient.factors(ctx, x, stats) * to_g.to(stats.dtype)
        if to_mean is not None:
            tangent = tangent + _divide(to_mean.to(stats.dtype), _count(x.shape, ctx.dims))
        if to_x is not None:
            tangent = tangent + MomentsGradient.changed(ctx, g.to(stats.dtype), x, stats, to_x.to(stats.dtype))
        return rounded(tangent, ctx.dtype)


# ---- norms -----------------------------------------------------------------------------------------------------------


class Normal:
    """A norm without weights, in the accumulator type: its results, the reciprocal r that scales them, its Jacobian."""

    def __init__(self, centered: bool, ctx: Any, x: Tensor, stats: Tensor) -> None:
        self.ctx, self.stats, self.centered = ctx, stats, centered
        self.x = x.to(stats.dtype)
        self.dims = trailing(x, ctx.dims)
        self.rest = (ctx.dims, ctx.epsilon, ctx.level)

    def results(self) -> Tensor:
        if self.centered:
            return _ops.layer_norm.default(self.x, None, None, *self.rest)[0]  # type: ignore[no-any-return]
        return _ops.rms_norm.default(self.x, None, *self.rest)[0]  # type: ignore[no-any-return]

    def r(self) -> Tensor:
        level = self.ctx.level
        if self.centered:
            square = _ops.moments.default(self.x, self.dims, True, 0.0, False, level)[0]
        else:
            square = _ops.mean.default(self.x * self.x, self.dims, True, self.x.dtype, level)
        scale = (square + self.ctx.epsilon).sqrt()
        return _ops.divide.default(torch.ones_like(scale), scale, scale.dtype)  # type: ignore[no-any-return]

    def jacobian(self, t: Tensor) -> Tensor:
        gradient = _ops.layer_norm_gradient if self.centered else _ops.rms_norm_gradient
        return gradient.default(t.to(self.x.dtype), self.x, None, self.stats, *self.rest)  # type: ignore[no-any-return]

    def mean(self, t: Tensor) -> Tensor:
        return _ops.mean.default(t, self.dims, True, t.dtype, self.ctx.level)  # type: ignore[no-any-return]

    def changed(self, u: Tensor, t: Tensor) -> Tensor:
        """How the Jacobian's product with u changes with x: with its gradient, or its change, t."""
        results, r = self.results(), self.r()
        b, d = self.mean(u * results), self.mean(t * results)
        a, e = (self.mean(u), self.mean(t)) if self.centered else (0.0, 0.0)
        scaled = self.mean(u * t) - b * d - (a * e if self.centered else 0.0)  # of the product with t, by r
        return self.jacobian(-r * (u * d + t * b)) - r * r * results * scaled


def _over_rows(x: Tensor, like: Tensor, level: int) -> Tensor:
    """Summed over the rows, to the shape and dtype of a weight."""
    return summed(x, like.shape, like.dtype, level)


def _are_bare(*tensors: Tensor | None) -> bool:
    return is_bare(*(t for t in tensors if t is not None))


@differentiable("rms_norm", results=2)
class RmsNorm(Rule):
    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, Tensor]) -> None:
        x, weight, ctx.dims, ctx.epsilon, ctx.level = inputs
        ctx.dtype, ctx.wanted = x.dtype, ctx.needs_input_grad[1:3]
        save(ctx, x, weight, output[1])

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Any:
        x, weight, stats = saved
        rest = (ctx.dims, ctx.epsilon)
        to_x = to_weight = None
        if weight is not None and all(ctx.wanted) and _are_bare(grad, *saved):
            return _ops.rms_norm_backward.raw(grad, x, weight, stats, *rest, weight.dtype, ctx.level)
        if ctx.wanted[0]:
            to_x = _ops.rms_norm_gradient.default(grad, x, weight, stats, *rest, ctx.level)
        if weight is not None and ctx.wanted[1]:
            to_weight = _ops.rms_norm_weights.default(grad, x, stats, *rest, weight.dtype, ctx.level)
        return to_x, to_weight

    @staticmethod
    def tangent(ctx: Any, saved: Saved, to_x: Tensor | None, to_weight: Tensor | None, *_: Any) -> Tensor:
        x, weight, stats = saved
        normal = Normal(False, ctx, x, stats)
        tangent = torch.zeros_like(normal.x)
        if to_x is not None:
            tangent = normal.jacobian(to_x)
            if weight is not None:
                tangent = tangent * weight.to(stats.dtype)
        if to_weight is not None:
            tangent = tangent + normal.results() * to_weight.to(stats.dtype)
        return rounded(tangent, ctx.dtype)


@differentiable("layer_norm", results=2)
class LayerNorm(Rule):
    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, Tensor]) -> None:
        x, weight, bias, ctx.dims, ctx.epsilon, ctx.level = inputs
        ctx.dtype, ctx.wanted = x.dtype, ctx.needs_input_grad[1:4]
        save(ctx, x, weight, bias, output[1])

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Any:
        x, weight, bias, stats = saved
        rest = (ctx.dims, ctx.epsilon)
        to_x = to_weight = to_bias = None
        of_weights = (weight is not None and ctx.wanted[1]) or (bias is not None and ctx.wanted[2])
        dtype = None if not of_weights else (weight if weight is not None else bias).dtype
        if of_weights and ctx.wanted[0] and _are_bare(grad, *saved):
            to_x, to_weight, to_bias = _ops.layer_norm_backward.raw(grad, x, weight, stats, *rest, dtype, ctx.level)
            return to_x, None if weight is None else to_weight, None if bias is None else to_bias
        if ctx.wanted[0]:
            to_x = _ops.layer_norm_gradient.default(grad, x, weight, stats, *rest, ctx.level)
        if of_weights:
            to_weight, to_bias = _ops.layer_norm_weights.default(grad, x, stats, *rest, dtype, ctx.level)
        return to_x, None if weight is None else to_weight, None if bias is None else to_bias

    @staticmethod
    def tangent(
        ctx: Any, saved: Saved, to_x: Tensor | None, to_weight: Tensor | None, to_bias: Tensor | None, *_: Any
    ) -> Tensor:
        x, weight, _bias, stats = saved
        normal = Normal(True, ctx, x, stats)
        tangent = torch.zeros_like(normal.x)
        if to_x is not None:
            tangent = normal.jacobian(to_x)
            if weight is not None:
                tangent = tangent * weight.to(stats.dtype)
        if to_weight is not None:
            tangent = tangent + normal.results() * to_weight.to(stats.dtype)
        if to_bias is not None:
            tangent = tangent + to_bias.to(stats.dtype)
        return rounded(tangent, ctx.dtype)


def _register_sums(name: str, norm: type[RmsNorm] | type[LayerNorm]) -> None:
    @differentiable(f"{name}_sum", results=3, smooth=2)
    class OfSum(Rule):
        """The norm of x + residual, and that sum: the derivatives of the norm at the sum, which is kept, and 1."""

        @staticmethod
        def save(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, ...]) -> None:
            x, _, *weights, ctx.dims, ctx.epsilon, ctx.level = inputs
            of_x, of_residual, *of_weights = ctx.needs_input_grad[1 : 3 + len(weights)]
            ctx.dtype, ctx.wanted = x.dtype, (of_x or of_residual, *of_weights)
            save(ctx, output[1], *weights, output[2])

        @staticmethod
        def backward(ctx: Any, saved: Saved, grad: Any) -> Any:
            g, to_sum = grad
            to_weights: Any = ()
            if g is not None:
                to_norm, *to_weights = norm.backward(ctx, saved, g)
                to_sum = to_norm if to_sum is None else to_sum if to_norm is None else to_sum + to_norm
            return to_sum, to_sum, *to_weights

        @staticmethod
        def tangent(ctx: Any, saved: Saved, to_x: Tensor | None, to_residual: Tensor | None, *rest: Any) -> Any:
            given = [t for t in (to_x, to_residual) if t is not None]
            to_sum = given[0] + given[1] if len(given) > 1 else given[0].clone() if given else None
            tangent = norm.tangent(ctx, saved, to_sum, *rest)
            return tangent, torch.zeros_like(saved[0]) if to_sum is None else to_sum


_register_sums("rms_norm", RmsNorm)
_register_sums("layer_norm", LayerNorm)


def _register_gradients(name: str, centered: bool) -> None:
    @differentiable(f"{name}_gradient")
    class Gradient(Rule):
        @staticmethod
        def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
            g, x, weight, stats, ctx.dims, ctx.epsilon, ctx.level = inputs
            ctx.dtype = x.dtype
            save(ctx, g, x, weight, stats)

        @staticmethod
        def backward(ctx: Any, saved: Saved, grad: Tensor) -> Any:
            g, x, weight, stats = saved
            normal = Normal(centered, ctx, x, stats)
            g, c = g.to(stats.dtype), grad.to(stats.dtype)
            w = None if weight is None else weight.to(stats.dtype)
            along = normal.jacobian(c)
            to_g = along if w is None else along * w
            to_x = normal.changed(g if w is None else g * w, c)
            to_weight = None if weight is None else _over_rows(g * along, weight, ctx.level)
            return rounded(to_g, ctx.dtype), rounded(to_x, ctx.dtype), to_weight

        @staticmethod
        def tangent(ctx: Any, saved: Saved, to_g: Any, to_x: Any, to_weight: Any, *_: Any) -> Tensor:
            g, x, weight, stats = saved
            normal = Normal(centered, ctx, x, stats)
            g = g.to(stats.dtype)
            w = None if weight is None else weight.to(stats.dtype)
            tangent = torch.zeros_like(normal.x)
            change = None  # of u
            if to_g is not None:
                to_g = to_g.to(stats.dtype)
                change = to_g if w is None else to_g * w
            if to_weight is not None:
                by_weight = g * to_weight.to(stats.dtype)
                change = by_weight if change is None else change + by_weight
            if change is not None:
                tangent = normal.jacobian(change)
            if to_x is not None:
                tangent = tangent + normal.changed(g if w is None else g * w, to_x.to(stats.dtype))
            return rounded(tangent, ctx.dtype)

    @differentiable(f"{name}_weights", results=1 + centered, smooth=1 + centered)
    class Weights(Rule):
        @staticmethod
        def save(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
            g, x, stats, ctx.dims, ctx.epsilon, ctx.to, ctx.level = inputs
            ctx.dtype = x.dtype
            save(ctx, g, x, stats)

        @staticmethod
        def backward(ctx: Any, saved: Saved, grad: Any) -> Any:
            g, x, stats = saved
            normal = Normal(centered, ctx, x, stats)
            c, to_bias = grad if centered else (grad, None)
            to_g, to_x = torch.zeros_like(normal.x), None
            if c is not None:
                c = c.to(stats.dtype)
                to_g = normal.results() * c
                to_x = rounded(normal.jacobian(g.to(stats.dtype) * c), ctx.dtype)
            if to_bias is not None:
                to_g = to_g + to_bias.to(stats.dtype)
            return rounded(to_g, ctx.dtype), to_x

        @staticmethod
        def tangent(ctx: Any, saved: Saved, to_g: Tensor | None, to_x: Tensor | None, *_: Any) -> Any:
            g, x, stats = saved
            normal = Normal(centered, ctx, x, stats)
            products = torch.zeros_like(normal.x)
            if to_g is not None:
                products = normal.results() * to_g.to(stats.dtype)
            if to_x is not None:
                products = products + g.to(stats.dtype) * normal.jacobian(to_x)
            like = products.new_empty(x.shape[x.dim() - ctx.dims :], dtype=ctx.to)
            to_weight = _over_rows(products, like, ctx.level)
            if not centered:
                return to_weight
            return to_weight, torch.zeros_like(like) if to_g is None else _over_rows(to_g, like, ctx.level)


_register_gradients("rms_norm", False)
_register_gradients("layer_norm", True)


# ---- cross-entropy ---------------------------------------------------------------------------------------------------


def refuse_weight(wanted: bool) -> None:
    """torch has no derivative by the weights of classes either, and says so."""
    if wanted:
        raise RuntimeError("cross_entropy(): not differentiable with respect to argument 'weight'")


def _label_gradient(ctx: Any, saved: Saved, g: Tensor, to_log: Tensor | None = None) -> Tensor:
    rest = (ctx.dim, ctx.ignored, ctx.smoothing, ctx.level)
    return _ops.cross_entropy_gradient.default(g, to_log, *saved, *rest)  # type: ignore[no-any-return]


def _in_wide(saved: Saved) -> tuple[Saved, Tensor]:
    """With the logits in the accumulator type; and 1 for each row."""
    x, target, weight, stats = saved
    return (x.to(stats.dtype), target, weight, stats), stats.new_ones(target.shape)


def _label_tangent(ctx: Any, saved: Saved, t: Tensor, factors: Tensor) -> Tensor:
    """Nothing of a row that is left out counts, be it NaN."""
    left_out = (saved[1] == ctx.ignored).unsqueeze(ctx.dim)
    products = (t.to(factors.dtype) * factors).masked_fill(left_out, 0)
    return _ops.sum.default(products, [ctx.dim], False, factors.dtype, ctx.level)  # type: ignore[no-any-return]


@differentiable("cross_entropy", results=3)
class CrossEntropy(Rule):
    """Keeps the logits and their statistics."""

    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, ...]) -> None:
        x, target, weight, ctx.dim, ctx.ignored, ctx.level = inputs
        ctx.smoothing = 0.0
        refuse_weight(ctx.needs_input_grad[1 + 2])
        save(ctx, x, target, weight, output[-1])

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        return _label_gradient(ctx, saved, grad)

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, _: Any, to_weight: Any = None, *__: Any) -> Tensor:
        refuse_weight(isinstance(to_weight, Tensor))
        wide, one = _in_wide(saved)
        return _label_tangent(ctx, saved, t, _label_gradient(ctx, wide, one))


@differentiable("cross_entropy_and_log", results=4, smooth=2)
class CrossEntropyAndLog(CrossEntropy):
    """Also of the logarithms of the sums of exp."""

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Any) -> Tensor:
        g, to_log = grad
        return _label_gradient(ctx, saved, torch.zeros_like(to_log) if g is None else g, to_log)

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *rest: Any) -> Any:
        wide, one = _in_wide(saved)
        of_log = _label_gradient(ctx, wide, torch.zeros_like(one), one)
        return CrossEntropy.tangent(ctx, saved, t, *rest), _label_tangent(ctx, saved, t, of_log)


MOST_MEAN_LOSSES = 2**14  # on a GPU: kMostMeanLosses of csrc/kernels/rowwise/losses.h


def has_mean_loss(losses: Tensor, weights: Tensor) -> bool:
    """Whether one call makes the mean of such losses; no mode or transform sees it."""
    if not (is_unwatched() and is_plain(losses) and is_plain(weights)):
        return False
    return 0 < losses.numel() <= MOST_MEAN_LOSSES if losses.is_cuda else losses.is_cpu and losses.numel() > 0


class MeanLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, losses: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        mean, n = bare_mean_loss(losses, *rest)
        ctx.save_for_backward(n)
        ctx.mark_non_differentiable(n)
        ctx.rest = (losses.shape, losses.dtype, rest[-1])
        return mean, n

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad, _), (n,) = grads, ctx.saved_tensors
        shape, dtype, level = ctx.rest
        if is_bare(grad):  # in one kernel: the loss's gradient writes NaN canonical
            return (grad.expand(shape) / n.expand(shape), *(None,) * 4)
        each = _ops.divide.default(grad, n, dtype).reshape([1] * len(shape))
        return (_ops.spread.default(each, shape, None, dtype, level), *(None,) * 4)


recorded_mean_loss = direct.recorded("mean_loss", MeanLoss.apply)


def mean_loss(losses: Tensor, weights: Tensor, counts: bool, dtype: torch.dtype, level: int) -> Tensor:
    """The mean of losses of labels, rounded once to dtype: bitwise identical to their sum, divided by that of the
    weights, of which `counts` says that all are 1 or 0. Where has_mean_loss() says so."""
    needs_gradient = torch.is_grad_enabled() and losses.requires_grad
    mean: Tensor
    mean, _ = (recorded_mean_loss if needs_gradient else bare_mean_loss)(losses, weights, counts, dtype, level)
    return mean


def _smoothed(
    x: Tensor, target: Tensor, dim: int, ignored: int, smoothing: float, level: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """cross_entropy without weights, with so much of each label spread over all classes: the loss plus smoothing times
    the distance of the label's logit from the mean, whose two parts come with the variance."""
    loss, log, weights, stats = _ops.cross_entropy_and_log.raw(x, target, None, dim, ignored, level)
    high, low, _ = _ops.moments.raw(x, [dim], True, 0.0, False, level)[2].unbind()
    at = x.gather(dim, target.clamp(0, x.shape[dim] - 1).unsqueeze(dim)).to(stats.dtype)
    distance = ((at - high) - low).squeeze(dim)
    infinite = distance.isnan() & log.isfinite()  # of a class that is impossible
    loss = (loss + distance * smoothing).masked_fill_(infinite, torch.inf).masked_fill_(target == ignored, 0)
    return _round(loss, loss.dtype), log, weights, stats


def _smoothed_fake(x: Tensor, target: Tensor, dim: int, ignored: int, smoothing: float, level: int) -> Any:
    return SIGNATURES["cross_entropy_and_log"][2](x, target, None, dim, ignored, level)


def _smoothed_batched(info: Any, in_dims: Any, x: Tensor, target: Tensor, dim: int, *rest: Any) -> Any:
    x, target = (
        t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
        for t, d in zip((x, target), in_dims, strict=False)
    )
    return _ops.smoothed_cross_entropy.default(x, target, 1 + dim % (x.dim() - 1), *rest), (0, 0, 0, 1)


define(
    "smoothed_cross_entropy(Tensor x, Tensor target, int dim, int ignored, float smoothing, int level) -> "
    "(Tensor, Tensor, Tensor, Tensor)", _smoothed, _smoothed_fake, _smoothed_batched,
)  # fmt: skip


@differentiable("smoothed_cross_entropy", results=4, smooth=2)
class SmoothedCrossEntropy(CrossEntropyAndLog):
    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, ...]) -> None:
        x, target, ctx.dim, ctx.ignored, ctx.smoothing, ctx.level = inputs
        save(ctx, x, target, None, output[3])


@differentiable("cross_entropy_gradient")
class CrossEntropyGradient(Rule):
    """(g w + l) p - g w q, with the gradients g of the loss and l of the logarithm, the probabilities p, and q, which
    is 1 at the label, or what smoothing makes of that."""

    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        g, to_log, x, target, weight, stats, ctx.dim, ctx.ignored, ctx.smoothing, ctx.level = inputs
        refuse_weight(ctx.needs_input_grad[1 + 4])
        ctx.to_g, ctx.to_log, ctx.dtype = g.dtype, None if to_log is None else to_log.dtype, x.dtype
        save(ctx, g, to_log, x, target, weight, stats)

    @staticmethod
    def factors(ctx: Any, saved: Saved) -> tuple[Tensor, Tensor]:
        """By which g and l go into it."""
        wide, one = _in_wide(saved[2:])
        return _label_gradient(ctx, wide, one), _label_gradient(ctx, wide, torch.zeros_like(one), one)

    @staticmethod
    def changed(ctx: Any, saved: Saved, t: Tensor) -> Tensor:
        """Its change with x, or the transposed of it, which is the same."""
        g, to_log, x, target, weight, _ = saved
        left_out = (target == ctx.ignored).unsqueeze(ctx.dim)
        x = x.to(t.dtype).masked_fill(left_out, 0)
        p = _ops.softmax.default(x, ctx.dim, None, ctx.level)
        scale = g.to(t.dtype)
        if weight is not None:
            scale = scale * weight.to(t.dtype)[target.masked_fill(target == ctx.ignored, 0)]
        if to_log is not None:
            scale = scale + to_log.to(t.dtype)
        change: Tensor = _ops.softmax_gradient.default(
            (t * scale.unsqueeze(ctx.dim)).masked_fill(left_out, 0), p, ctx.dim, t.dtype, ctx.level
        )
        return change

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Any:
        *_, target, _, stats = saved
        c = grad.to(stats.dtype)
        left_out = (target == ctx.ignored).unsqueeze(ctx.dim)

        def along(factors: Tensor) -> Tensor:
            products = (c * factors).masked_fill(left_out, 0)
            return _ops.sum.default(products, [ctx.dim], False, stats.dtype, ctx.level)  # type: ignore[no-any-return]

        of_g, of_log = CrossEntropyGradient.factors(ctx, saved)
        to_log = None if ctx.to_log is None else rounded(along(of_log), ctx.to_log)
        return rounded(along(of_g), ctx.to_g), to_log, rounded(CrossEntropyGradient.changed(ctx, saved, c), ctx.dtype)

    @staticmethod
    def tangent(
        ctx: Any, saved: Saved, to_g: Tensor | None, to_log: Tensor | None, to_x: Tensor | None, *_: Any
    ) -> Tensor:
        x, stats = saved[2], saved[5]
        tangent = torch.zeros(x.shape, dtype=stats.dtype, device=x.device)
        for factors, t in zip(CrossEntropyGradient.factors(ctx, saved), (to_g, to_log), strict=True):
            if t is not None:
                tangent = tangent + factors * t.to(stats.dtype).unsqueeze(ctx.dim)
        if to_x is not None:
            tangent = tangent + CrossEntropyGradient.changed(ctx, saved, to_x.to(stats.dtype))
        return rounded(tangent, ctx.dtype)


# ---- cross-entropy of probabilities ----------------------------------------------------------------------------------


define(
    "smoothed(Tensor q, float smoothing, SymInt classes) -> Tensor",
    lambda q, smoothing, classes: q * (1 - smoothing) + smoothing / classes,
    lambda q, smoothing, classes: q.new_empty(q.shape),
    lambda info, in_dims, q, smoothing, classes: (_ops.smoothed.default(q, smoothing, classes), in_dims[0]),
)


@differentiable("smoothed")
class Smoothed(Rule):
    """Probabilities of which so much is spread over all classes: one op, so that no compiler rounds it otherwise."""

    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        _, ctx.smoothing, _ = inputs

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        back: Tensor = grad * (1 - ctx.smoothing)
        return back

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        tangent: Tensor = t * (1 - ctx.smoothing)
        return tangent
