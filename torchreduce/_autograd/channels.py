"""Derivatives of the norms over channels, as rowwise.py has those of the row-wise ops.

A view of x has statistics of its rows, over its last dims: x.transpose(0, 1) those of a batch, x with the channels in
groups those of groups. There a norm over channels is a layer_norm without weights, and so are its derivatives.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .._core.dispatch import Rule, Saved, differentiable, save
from .._fake import channels as channels  # registers what derivatives need
from .reductions import define, rounded
from .rowwise import Normal, _are_bare

_ops = torch.ops.torchreduce


def of_channels(t: Tensor, x: Tensor) -> Tensor:
    """An element for each channel of x, so that it is broadcast."""
    return t.reshape([t.shape[0], *[1] * (x.dim() - 2)])


def _over_channels(x: Tensor, dtype: torch.dtype, level: int) -> Tensor:
    """Summed over all but the channels."""
    dims = [d for d in range(x.dim()) if d != 1]
    return _ops.sum.default(x, dims, False, dtype, level)  # type: ignore[no-any-return]


def given_stats(x: Tensor, mean: Tensor, variance: Tensor, epsilon: float) -> Tensor:
    """The statistics that channel_norm_given makes of a mean and a variance."""
    dtype = torch.float64 if x.dtype is torch.float64 else torch.float32
    under = (variance.to(dtype) + epsilon).sqrt()
    r = _ops.divide.default(torch.ones_like(under), under, dtype)
    return torch.stack([mean.to(dtype), torch.zeros_like(r), r])


class Rows:
    """x, and what has its shape, as rows of statistics; x without its channels' weights, in the accumulator type."""

    def __init__(self, x: Tensor, stats: Tensor, groups: int, epsilon: float, level: int) -> None:
        self.shape, self.groups = x.shape, groups
        rows = self.of(x)
        kept = rows.shape[: 2 if groups else 1]
        ctx = SimpleNamespace(dims=rows.dim() - len(kept), epsilon=epsilon, level=level)
        self.normal = Normal(True, ctx, rows, stats.reshape([3, *kept, *[1] * ctx.dims]))

    def of(self, t: Tensor) -> Tensor:
        if not self.groups:
            return t.transpose(0, 1)
        samples, channels, *rest = t.shape
        return t.reshape([samples, self.groups, channels // self.groups, *rest])

    def back(self, rows: Tensor) -> Tensor:
        return rows.reshape(self.shape) if self.groups else rows.transpose(0, 1)

    def results(self) -> Tensor:
        return self.back(self.normal.results())

    def jacobian(self, t: Tensor) -> Tensor:
        return self.back(self.normal.jacobian(self.of(t)))

    def changed(self, u: Tensor, t: Tensor) -> Tensor:
        return self.back(self.normal.changed(self.of(u), self.of(t)))


class Given:
    """The same of statistics that do not depend on x."""

    def __init__(self, x: Tensor, stats: Tensor) -> None:
        self.x, (high, low, self.r) = x, stats.unbind()
        self.high, self.low = of_channels(high, x), of_channels(low, x)

    def results(self) -> Tensor:
        return ((self.x.to(self.r.dtype) - self.high) - self.low) * of_channels(self.r, self.x)

    def jacobian(self, t: Tensor) -> Tensor:
        return t * of_channels(self.r, self.x)

    def changed(self, u: Tensor, t: Tensor) -> Tensor:
        return torch.zeros_like(t)


def _normal(ctx: Any, x: Tensor, stats: Tensor) -> Rows | Given:
    return Given(x, stats) if ctx.given else Rows(x, stats, ctx.groups, ctx.epsilon, ctx.level)


def _weighted(t: Tensor, weight: Tensor | None) -> Tensor:
    return t if weight is None else t * of_channels(weight.to(t.dtype), t)


class Norm(Rule):
    """Keeps x, weight, bias and the statistics."""

    @staticmethod
    def gradients(ctx: Any, saved: Saved, grad: Tensor) -> Any:
        x, weight, bias, stats = saved
        rest = (ctx.groups, ctx.given, ctx.epsilon)
        to_x = to_weight = to_bias = None
        of_weights = (weight is not None and ctx.wanted[1]) or (bias is not None and ctx.wanted[2])
        dtype = None if not of_weights else (weight if weight is not None else bias).dtype
        if of_weights and ctx.wanted[0] and _are_bare(grad, *saved):
            to_x, to_weight, to_bias = _ops.channel_norm_backward.raw(grad, x, weight, stats, *rest, dtype, ctx.level)
        else:
            if ctx.wanted[0]:
                to_x = _ops.channel_norm_gradient.default(grad, x, weight, stats, *rest, ctx.level)
            if of_weights:
                to_weight, to_bias = _ops.channel_norm_weights.default(grad, x, stats, *rest, dtype, ctx.level)
        return to_x, None if weight is None else to_weight, None if bias is None else to_bias

    @staticmethod
    def changed(ctx: Any, saved: Saved, to_x: Tensor | None, to_weight: Any, to_bias: Any) -> Tensor:
        x, weight, _, stats = saved
        normal = _normal(ctx, x, stats)
        tangent = torch.zeros(x.shape, dtype=stats.dtype, device=x.device)
        if to_x is not None:
            tangent = _weighted(normal.jacobian(to_x.to(stats.dtype)), weight)
        if to_weight is not None:
            tangent = tangent + _weighted(normal.results(), to_weight)
        if to_bias is not None:
            tangent = tangent + of_channels(to_bias.to(stats.dtype), x)
        return rounded(tangent, x.dtype)


@differentiable("channel_norm", results=3)
class ChannelNorm(Norm):
    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, ...]) -> None:
        x, weight, bias, ctx.groups, ctx.epsilon, ctx.level = inputs
        ctx.given, ctx.wanted = False, ctx.needs_input_grad[1:4]
        save(ctx, x, weight, bias, output[1])

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Any:
        return Norm.gradients(ctx, saved, grad)

    @staticmethod
    def tangent(ctx: Any, saved: Saved, *tangents: Any) -> Tensor:
        return Norm.changed(ctx, saved, *tangents[:3])


@differentiable("channel_norm_given")
class ChannelNormGiven(Norm):
    """torch has no derivative by running statistics either."""

    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        x, mean, variance, weight, bias, ctx.epsilon, ctx.level = inputs
        ctx.groups, ctx.given = 0, True
        ctx.wanted = [ctx.needs_input_grad[k] for k in (1, 4, 5)]
        save(ctx, x, weight, bias, mean, variance)

    @staticmethod
    def with_stats(ctx: Any, saved: Saved) -> Saved:
        x, weight, bias, mean, variance = saved
        return x, weight, bias, given_stats(x, mean, variance, ctx.epsilon)

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Any:
        to_x, *to_weights = Norm.gradients(ctx, ChannelNormGiven.with_stats(ctx, saved), grad)
        return to_x, None, None, *to_weights

    @staticmethod
    def tangent(ctx: Any, saved: Saved, to_x: Any, _: Any, __: Any, to_weight: Any, to_bias: Any, *___: Any) -> Tensor:
        return Norm.changed(ctx, ChannelNormGiven.with_stats(ctx, saved), to_x, to_weight, to_bias)


@differentiable("channel_norm_gradient")
class ChannelNormGradient(Rule):
    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        g, x, weight, stats, ctx.groups, ctx.given, ctx.epsilon, ctx.level = inputs
        save(ctx, g, x, weight, stats)

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Any:
        g, x, weight, stats = saved
        normal = _normal(ctx, x, stats)
        g, c = g.to(stats.dtype), grad.to(stats.dtype)
        along = normal.jacobian(c)
        to_x = normal.changed(_weighted(g, weight), c)
        to_weight = None if weight is None else _over_channels(g * along, weight.dtype, ctx.level)
        return rounded(_weighted(along, weight), x.dtype), rounded(to_x, x.dtype), to_weight

    @staticmethod
    def tangent(ctx: Any, saved: Saved, to_g: Any, to_x: Any, to_weight: Any, *_: Any) -> Tensor:
        g, x, weight, stats = saved
        normal = _normal(ctx, x, stats)
        g = g.to(stats.dtype)
        tangent = torch.zeros_like(g)
        if to_g is not None:
            tangent = normal.jacobian(_weighted(to_g.to(stats.dtype), weight))
        if to_weight is not None:
            tangent = tangent + normal.jacobian(_weighted(g, to_weight))
        if to_x is not None:
            tangent = tangent + normal.changed(_weighted(g, weight), to_x.to(stats.dtype))
        return rounded(tangent, x.dtype)


@differentiable("channel_norm_weights", results=2, smooth=2)
class ChannelNormWeights(Rule):
    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        g, x, stats, ctx.groups, ctx.given, ctx.epsilon, ctx.to, ctx.level = inputs
        save(ctx, g, x, stats)

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Any) -> Any:
        g, x, stats = saved
        normal = _normal(ctx, x, stats)
        c, to_bias = grad
        to_g, to_x = torch.zeros(x.shape, dtype=stats.dtype, device=x.device), None
        if c is not None:
            to_g = _weighted(normal.results(), c)
            to_x = rounded(normal.jacobian(_weighted(g.to(stats.dtype), c)), x.dtype)
        if to_bias is not None:
            to_g = to_g + of_channels(to_bias.to(stats.dtype), x)
        return rounded(to_g, x.dtype), to_x

    @staticmethod
    def tangent(ctx: Any, saved: Saved, to_g: Tensor | None, to_x: Tensor | None, *_: Any) -> Any:
        g, x, stats = saved
        normal = _normal(ctx, x, stats)
        products = torch.zeros(x.shape, dtype=stats.dtype, device=x.device)
        if to_g is not None:
            products = normal.results() * to_g.to(stats.dtype)
        if to_x is not None:
            products = products + g.to(stats.dtype) * normal.jacobian(to_x.to(stats.dtype))
        to_weight = _over_channels(products, ctx.to, ctx.level)
        return to_weight, torch.zeros_like(to_weight) if to_g is None else _over_channels(to_g, ctx.to, ctx.level)


# ---- what modules do beside ------------------------------------------------------------------------------------------


def _moved(running: Tensor, value: Tensor, momentum: float) -> Tensor:
    wide = value.dtype
    return (running.to(wide) * (1 - momentum) + value * momentum).to(running.dtype)


define(
    "moved(Tensor running, Tensor value, float momentum) -> Tensor", _moved,
    lambda running, value, momentum: running.new_empty(running.shape),
    lambda info, in_dims, running, value, momentum: (
        _ops.moved.default(
            *(t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
              for t, d in zip((running, value), in_dims, strict=False)), momentum,
        ), 0,
    ),
)  # fmt: skip


define(
    "repeated(Tensor x, SymInt times) -> Tensor", lambda x, times: x.repeat(times),
    lambda x, times: x.new_empty([x.shape[0] * times]),
    lambda info, in_dims, x, times: (x.movedim(in_dims[0], 0).repeat(1, times), 0),
)  # fmt: skip


@differentiable("repeated")
class Repeated(Rule):
    """The weights of channels, for those of each sample; the gradients of these are summed in canonical order."""

    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        _, ctx.times = inputs

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        return _ops.sum.default(grad.reshape(ctx.times, -1), [0], False, None, 0)  # type: ignore[no-any-return]

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        return _ops.repeated.default(t, ctx.times)  # type: ignore[no-any-return]
