"""Powers of magnitudes in float64, and the norms of any order that are made of them.

torch's pow, exp and log differ between devices. These are single IEEE operations on whole tensors, each rounded by
itself, so that every device has the same bits. An exp and a log are within some units of 2^-53; so a power is within
some units times |p log(x)|, or 1 where that is less.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._autograd.norms import Norm
from .._autograd.products import _scaled
from .._autograd.reductions import Reduction, _round, define
from .._fake.reductions import dims_of, reduced_shape
from .dispatch import Rule, Saved, differentiable, save

_ops = torch.ops.torchreduce
_WIDE = torch.float64
_LN2_HIGH, _LN2_LOW = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")  # n * high is exact


def _log(x: Tensor) -> Tensor:
    """Of positive finite numbers."""
    m, e = torch.frexp(x)
    low = m < math.sqrt(0.5)
    m, e = torch.where(low, m * 2, m), (e - low.to(e.dtype)).to(_WIDE)
    s = (m - 1) / (m + 1)
    z = s * s
    series = torch.full_like(z, 1 / 25)
    for k in range(23, 0, -2):
        series = series * z + 1 / k
    return e * _LN2_HIGH + (s * series * 2 + e * _LN2_LOW)


def _exp(y: Tensor) -> Tensor:
    y = y.clamp(-1500, 1500)
    n = (y * (1 / math.log(2))).round()
    r = (y - n * _LN2_HIGH) - n * _LN2_LOW
    series = torch.full_like(r, 1 / math.factorial(14))
    for k in range(13, -1, -1):
        series = series * r + 1 / math.factorial(k)
    return _scaled(series, n.to(torch.int64), _WIDE)


def _powers(x: Tensor, p: float) -> Tensor:
    a = x.to(_WIDE).abs()
    ordinary = (a > 0) & (a < math.inf)
    result = _exp(_log(torch.where(ordinary, a, 1.0)) * p)
    at_zero, at_infinity = (0.0, math.inf) if p > 0 else (math.inf, 0.0)
    result = torch.where(a == 0, at_zero, torch.where(a == math.inf, at_infinity, result))
    return _round(torch.where(a.isnan(), a, result), _WIDE)


define(
    "powers(Tensor x, float p) -> Tensor", _powers, lambda x, p: x.new_empty(x.shape, dtype=_WIDE),
    lambda info, in_dims, x, p: (_ops.powers.default(x, p), in_dims[0]),
)  # fmt: skip


@differentiable("powers")
class Powers(Rule):
    """|x|^p. Where x is 0 the derivative is that of the right, or 0 where that is infinite."""

    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        x, ctx.p = inputs
        save(ctx, x)

    @staticmethod
    def slope(ctx: Any, saved: Saved) -> Tensor:
        (x,) = saved
        slope = _ops.powers.default(x, ctx.p - 1) * ctx.p * x.sgn().to(_WIDE)
        result: Tensor = slope.masked_fill(x == 0, 0)
        return result

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        return (grad * Powers.slope(ctx, saved)).to(saved[0].dtype)

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        return t.to(_WIDE) * Powers.slope(ctx, saved)


# ---- norms -----------------------------------------------------------------------------------------------------------


def _norm_power(
    x: Tensor, dims: Sequence[int] | None, keepdim: bool, dtype: torch.dtype, p: float, level: int
) -> Tensor:  # fmt: skip
    """The root of the sum of the p-th powers of the ratios to the greatest magnitude of the row, for p < 0 the least,
    times that magnitude. So powers of any order stay in range."""
    if x.numel() == 0:
        shape = reduced_shape(x.shape, dims, keepdim)
        return x.new_full(shape, 0.0 if p > 0 else math.inf, dtype=dtype)
    most = (_ops.norm_greatest if p > 0 else _ops.norm_least).raw(x, dims, True, _WIDE, level)
    most.masked_fill_((most == 0) | (most == math.inf), 1)
    total = _ops.sum.raw(_powers(x.to(_WIDE) / most, p), dims, True, _WIDE, level)
    norm = _round(_powers(total, 1 / p) * most, dtype)
    return norm if keepdim else norm.reshape(reduced_shape(x.shape, dims, False)).clone()


def _norm_power_fake(
    x: Tensor, dims: Sequence[int] | None, keepdim: bool, dtype: torch.dtype, p: float, level: int
) -> Tensor:  # fmt: skip
    return x.new_empty(reduced_shape(x.shape, dims, keepdim), dtype=dtype)


def _norm_power_batched(
    info: Any, in_dims: Any, x: Tensor, dims: Sequence[int] | None, keepdim: bool, *rest: Any
) -> Any:
    x = x.movedim(in_dims[0], 0)
    if x.dim() == 1:  # a batch of 0-d tensors
        return _ops.norm_power.default(x.unsqueeze(1), [1], False, *rest), 0
    return _ops.norm_power.default(x, [1 + d for d in dims_of(x.dim() - 1, dims)], keepdim, *rest), 0


define(
    "norm_power(Tensor x, int[]? dims, bool keepdim, ScalarType dtype, float p, int level) -> Tensor",
    _norm_power, _norm_power_fake, _norm_power_batched,
)  # fmt: skip


@differentiable("norm_power")
class NormPower(Norm):
    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        x, dims, keepdim, ctx.to, ctx.p, level = inputs
        Reduction.remember(ctx, x, dims, keepdim, level)
        save(ctx, x, output)

    @staticmethod
    def slopes(ctx: Any, saved: Saved) -> Tensor:
        """(|x| / norm)^(p - 1) with x's sign; 0 where the norm is 0, or x."""
        x, norm = saved
        if norm.dtype != _WIDE:
            norm = _ops.norm_power.default(x, ctx.dims, True, _WIDE, ctx.p, ctx.level)
        norm = norm.reshape(reduced_shape(ctx.shape, ctx.dims, True))
        zero = norm == 0
        ratio = _ops.divide.default(x.abs(), norm.masked_fill(zero, 1), _WIDE)
        slopes: Tensor = _ops.powers.default(ratio, ctx.p - 1) * x.sgn().to(_WIDE)
        return slopes.masked_fill(zero | (x == 0), 0)

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        spread = _ops.spread.default(Reduction.kept(ctx, grad), ctx.shape, ctx.dims, _WIDE, ctx.level)
        back: Tensor = _ops.rounded.default(spread * NormPower.slopes(ctx, saved), ctx.dtype)
        return back

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        products = t.to(_WIDE) * NormPower.slopes(ctx, saved)
        return _ops.sum.default(products, ctx.dims, ctx.keepdim, ctx.to, ctx.level)  # type: ignore[no-any-return]
