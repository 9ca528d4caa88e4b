"""Derivatives of the reductions, under the contract like any result: sums in the canonical order, true divisions, one
rounding to the result's dtype from an accumulator of float32 or float64; at the call's level.

torch's own sums are never used, and no division is left to torch.compile: on GPUs it multiplies by reciprocals.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._core.direct import are_plain
from .._core.dispatch import LIBRARY, Rule, Saved, differentiable, is_unwatched, save
from .._fake.reductions import decided, dims_of, reduced_shape
from ..table import MOST_DIMS

_ops = torch.ops.torchreduce


def accumulator(*dtypes: torch.dtype) -> torch.dtype:
    return torch.float64 if torch.float64 in dtypes else torch.float32


def each(x: Tensor) -> Tensor:
    """Every element as a row of its own."""
    return x.unsqueeze(-1) if x.dim() < MOST_DIMS else x.reshape(-1, 1)


def _round(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Of plain tensors: x in dtype, rounded once, a NaN written canonical: the sum of each element alone. No view: the
    result of an autograd.Function that is one cannot be changed in place."""
    if x.dim() < MOST_DIMS:
        rounded: Tensor = _ops.sum.raw(x.unsqueeze(-1), [-1], False, dtype, 0)
        return rounded
    return x.new_empty(x.shape, dtype=dtype).copy_(_round(x.flatten(-2), dtype).reshape(x.shape))


def define(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any], batched: Callable[..., Any]) -> None:
    """An op that derivatives consist of: its kernel gets plain tensors, whatever their device. Calls from Python with
    such tensors of a CPU or GPU, where no gradient is recorded, go straight to it."""
    name = schema[: schema.index("(")]
    LIBRARY.define(schema)
    LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"torchreduce::{name}", fake, lib=LIBRARY)
    torch.library.register_vmap(f"torchreduce::{name}", batched, lib=LIBRARY)
    overload = getattr(_ops, name).default
    dispatched = overload._op

    def call(*args: Any, **named: Any) -> Any:
        if not named and are_plain(*args):
            return kernel(*args)
        return dispatched(*args, **named)

    overload._op = call


# ---- rounding and division -------------------------------------------------------------------------------------------


def _rounded_batched(info: Any, in_dims: Any, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, int]:
    return _ops.rounded.default(x, dtype), in_dims[0]


define(
    "rounded(Tensor x, ScalarType dtype) -> Tensor", _round, lambda x, dtype: x.new_empty(x.shape, dtype=dtype),
    _rounded_batched,
)  # fmt: skip


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in dtype, rounded once; x itself where it has that dtype."""
    return x if x.dtype == dtype else _ops.rounded.default(x, dtype)


@differentiable("rounded")
class Rounded(Rule):
    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        x, ctx.to = inputs
        ctx.dtype = x.dtype

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        return rounded(grad, ctx.dtype)

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        return rounded(t, ctx.to)


def _divide(x: Tensor, n: Tensor, dtype: torch.dtype) -> Tensor:
    """x / n in the accumulator type, rounded once to dtype. n broadcasts to x."""
    wide = accumulator(x.dtype, dtype)
    # No name for what is made on the way, which would stay until the end. The division itself converts integers.
    return _round(x.to(wide) / (n.to(wide) if n.dtype.is_floating_point else n), dtype)


def _divide_fake(x: Tensor, n: Tensor, dtype: torch.dtype) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype)


def broadcasting(op: str) -> Callable[..., Any]:
    """The batching rule of an op of a tensor, one that broadcasts to it, and options."""

    def batched(info: Any, in_dims: Any, x: Tensor, n: Tensor, *options: Any) -> tuple[Tensor, int]:
        rank = max(t.dim() - (d is not None) for t, d in zip((x, n), in_dims, strict=False))

        def aligned(t: Tensor, dim: int | None) -> Tensor:
            t = t.unsqueeze(0) if dim is None else t.movedim(dim, 0)
            return t.reshape(t.shape[:1] + (1,) * (rank + 1 - t.dim()) + t.shape[1:])

        x, n = aligned(x, in_dims[0]), aligned(n, in_dims[1])
        return getattr(_ops, op).default(x.expand(info.batch_size, *x.shape[1:]), n, *options), 0

    return batched


define("divide(Tensor x, Tensor n, ScalarType dtype) -> Tensor", _divide, _divide_fake, broadcasting("divide"))


def divided(x: Tensor, n: Tensor, dtype: torch.dtype) -> Tensor:
    """x / n, rounded once."""
    return _ops.divide.default(x, n, dtype)  # type: ignore[no-any-return]


def summed(x: Tensor, shape: Sequence[int], dtype: torch.dtype, level: int) -> Tensor:
    """The sums of x over what `shape` was broadcast along, rounded once to dtype."""
    extra = x.dim() - len(shape)
    along = [
        d
        for d in range(x.dim())
        if d < extra or (decided(shape[d - extra] == 1, False) and decided(x.shape[d] != 1, True))
    ]
    if along:
        x = _ops.sum.default(x, along, True, dtype, level)
    return rounded(x, dtype).reshape(shape)


@differentiable("divide")
class Divide(Rule):
    """A count has no derivative."""

    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        x, n, ctx.to = inputs
        ctx.dtype = x.dtype
        save(ctx, n, x if n.is_floating_point() else None)

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Any:
        n, x = saved
        to_x = _ops.divide.default(grad, n, ctx.dtype)
        if x is None:
            return to_x
        wide = accumulator(ctx.dtype, n.dtype)
        product = grad.to(wide) * _ops.divide.default(x, n, wide)
        return to_x, _ops.divide.default(-summed(product, n.shape, wide, 0), n, n.dtype)

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor | None, to_n: Tensor | None = None, *_: Any) -> Any:
        n, x = saved
        if x is None or to_n is None:
            return _ops.divide.default(t, n, ctx.to)
        wide = accumulator(ctx.dtype, n.dtype)
        change = -_ops.divide.default(x, n, wide) * to_n.to(wide)
        return _ops.divide.default(change if t is None else t.to(wide) + change, n, ctx.to)


# ---- sum and mean ----------------------------------------------------------------------------------------------------


def _spread(x: Tensor, shape: Sequence[int], dims: Sequence[int] | None, dtype: torch.dtype, level: int) -> Tensor:
    return rounded(x, dtype).expand(shape)


def _spread_batched(
    info: Any, in_dims: Any, x: Tensor, shape: Sequence[int], dims: Sequence[int] | None, dtype: torch.dtype, level: int
) -> tuple[Tensor, int]:
    along = [1 + d for d in dims_of(len(shape), dims)]
    x = x.movedim(in_dims[0], 0)
    if not along:  # a batch of 0-d tensors
        return rounded(x, dtype), 0
    return _ops.spread.default(x, [info.batch_size, *shape], along, dtype, level), 0


define(
    "spread(Tensor x, SymInt[] shape, int[]? dims, ScalarType dtype, int level) -> Tensor", _spread, _spread,
    _spread_batched,
)  # fmt: skip


@differentiable("spread")
class Spread(Rule):
    """What a sum does to gradients: x, which is of shape `shape` but for size 1 along dims, rounded once to dtype, and
    broadcast as a view. Its own gradient is the canonical sum, not torch's."""

    @staticmethod
    def forward(x: Tensor, shape: Sequence[int], dims: Any, dtype: torch.dtype, level: int) -> Tensor:
        """A view, as traces have to see it; no view where it may have a tangent, which is laid out as it is."""
        spread = _spread(x, shape, dims, dtype, level)
        return spread if forward_ad._current_level < 0 else spread.contiguous()

    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        x, *ctx.rest = inputs
        ctx.dtype = x.dtype

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        _, dims, _, level = ctx.rest
        return _ops.sum.default(grad, dims, True, ctx.dtype, level)  # type: ignore[no-any-return]

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        return _ops.spread.default(t, *ctx.rest)  # type: ignore[no-any-return]


class Reduction(Rule):
    """Remembers what every reduction needs of its input: all but the values."""

    @staticmethod
    def remember(ctx: Any, x: Tensor, dims: Sequence[int] | None, keepdim: bool, level: int) -> None:
        ctx.shape, ctx.dtype, ctx.dims, ctx.keepdim, ctx.level = x.shape, x.dtype, dims, keepdim, level

    @staticmethod
    def kept(ctx: Any, result: Tensor) -> Tensor:
        """What has the result's shape, with size 1 along the reduced dims."""
        return result if ctx.keepdim else result.reshape(reduced_shape(ctx.shape, ctx.dims, True))

    @staticmethod
    def spread(ctx: Any, grad: Tensor) -> Tensor:
        """What is of the results' shape, with their dims kept, for every element, in the input's dtype."""
        return _ops.spread.default(grad, ctx.shape, ctx.dims, ctx.dtype, ctx.level)  # type: ignore[no-any-return]


@differentiable("sum")
class Sum(Reduction):
    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        x, dims, keepdim, ctx.to, level = inputs
        Reduction.remember(ctx, x, dims, keepdim, level)

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        return Reduction.spread(ctx, Reduction.kept(ctx, grad))

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        return _ops.sum.default(t, ctx.dims, ctx.keepdim, ctx.to, ctx.level)  # type: ignore[no-any-return]


@differentiable("mean")
class Mean(Reduction):
    save = Sum.save

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        n = 1
        for d in dims_of(len(ctx.shape), ctx.dims):
            n = n * ctx.shape[d]
        # On the gradient's device: torch's GPU division by a number of the host multiplies by its reciprocal.
        count = grad.new_full((), n, dtype=torch.int64)
        wide = accumulator(grad.dtype, ctx.dtype)
        return Reduction.spread(ctx, _ops.divide.default(Reduction.kept(ctx, grad), count, wide))

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        return _ops.mean.default(t, ctx.dims, ctx.keepdim, ctx.to, ctx.level)  # type: ignore[no-any-return]


class OfInput(Reduction):
    """Also keeps the input; of an op with dtype=."""

    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        Sum.save(ctx, inputs, output)
        save(ctx, inputs[0])


@differentiable("nansum_and_count", results=2)
@differentiable("nansum")
class NanSum(OfInput):
    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        """A NaN gets 0 times the result's gradient: NaN where that is not finite."""
        back, nan = Sum.backward(ctx, saved, grad), saved[0].isnan()
        finite = back.isfinite()
        return back.masked_fill(nan & finite, 0).masked_fill(nan & ~finite, math.nan)

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        return Sum.tangent(ctx, saved, t.masked_fill(saved[0].isnan(), 0))


# ---- amax, amin, and max, min without dims: shared evenly among the ties ---------------------------------------------


class Shared(Reduction):
    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        x, dims, keepdim, level = inputs
        Reduction.remember(ctx, x, dims, keepdim, level)
        ctx.nans_tie = False
        save(ctx, x, output)

    @staticmethod
    def ties(ctx: Any, saved: Saved) -> Tensor:
        """With a NaN nothing ties, as in torch's amax, or every other NaN, as in torch's max."""
        x, result = saved
        result = Reduction.kept(ctx, result)
        ties: Tensor = x == result
        return ties | (x.isnan() & result.isnan()) if ctx.nans_tie else ties

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        """Where nothing ties, every element's share is 0 * grad / 0."""
        ties = Shared.ties(ctx, saved)
        count = _ops.sum.default(ties, ctx.dims, True, None, ctx.level)
        none = count == 0
        share = _ops.divide.default(Reduction.kept(ctx, grad).masked_fill(none, 0), count, accumulator(ctx.dtype))
        return Reduction.spread(ctx, share).masked_fill(~(ties | none), 0)

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        """The mean of the ties' tangents."""
        ties = Shared.ties(ctx, saved)
        count = _ops.sum.default(ties, ctx.dims, ctx.keepdim, None, ctx.level)
        total = _ops.sum.default(t.masked_fill(~ties, 0), ctx.dims, ctx.keepdim, accumulator(ctx.dtype), ctx.level)
        return _ops.divide.default(total, count, ctx.dtype)  # type: ignore[no-any-return]


class SharedOfAll(Shared):
    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        x, keepdim, level = inputs
        Shared.save(ctx, (x, None, keepdim, level), output)
        ctx.nans_tie = True


@differentiable("aminmax", results=2, smooth=2)
class SharedOfBoth(Reduction):
    """What each result shares among its ties."""

    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, Tensor]) -> None:
        x, dims, keepdim, level = inputs
        Reduction.remember(ctx, x, dims, keepdim, level)
        ctx.nans_tie = False
        save(ctx, x, *output)

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Sequence[Tensor | None]) -> Tensor:
        x, *results = saved
        pairs = zip(results, grad, strict=True)
        shares = [Shared.backward(ctx, (x, result), g) for result, g in pairs if g is not None]
        return shares[0] if len(shares) == 1 else shares[0] + shares[1]

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> tuple[Tensor, ...]:
        x, *results = saved
        return tuple(Shared.tangent(ctx, (x, result), t) for result in results)


for _op in ("amax", "amin"):
    differentiable(_op)(Shared)
for _op in ("max_all", "min_all"):
    differentiable(_op)(SharedOfAll)


# ---- max and min with dims: to the index -----------------------------------------------------------------------------


class Indexed(Reduction):
    """An index over several dims counts their elements, ascending and row-major."""

    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, Tensor]) -> None:
        x, dims, keepdim, level = inputs
        Reduction.remember(ctx, x, dims, keepdim, level)
        save(ctx, output[1])

    @staticmethod
    def order(ctx: Any) -> tuple[list[int], list[int], list[int], list[int]]:
        """The kept dims before the reduced ones, where each dim went, and the sizes of both."""
        reduced = dims_of(len(ctx.shape), ctx.dims)
        kept = [d for d in range(len(ctx.shape)) if d not in reduced]
        order = kept + reduced
        back = [order.index(d) for d in range(len(order))]
        return order, back, [ctx.shape[d] for d in kept], [ctx.shape[d] for d in reduced]

    @staticmethod
    def put(zeros: Tensor, dim: int, index: Tensor, grad: Tensor) -> Tensor:
        """In place, unless a mode or transform has to see the operation."""
        return zeros.scatter_(dim, index, grad) if is_unwatched() else zeros.scatter(dim, index, grad)

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        grad, index = Reduction.kept(ctx, grad), Reduction.kept(ctx, *saved)
        if len(ctx.dims) == 1:
            return Indexed.put(grad.new_zeros(ctx.shape), ctx.dims[0], index, grad)
        order, back, kept, reduced = Indexed.order(ctx)
        zeros = grad.new_zeros([*kept, math.prod(reduced)])
        grad, index = (t.permute(order).reshape([*kept, 1]) for t in (grad, index))
        rows: Tensor = Indexed.put(zeros, len(kept), index, grad)
        return rows.reshape([*kept, *reduced]).permute(back)

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        index = Reduction.kept(ctx, *saved)
        if len(ctx.dims) == 1:
            taken = t.gather(ctx.dims[0], index)
        else:
            order, back, kept, reduced = Indexed.order(ctx)
            rows = t.permute(order).reshape([*kept, math.prod(reduced)])
            taken = rows.gather(len(kept), index.permute(order).reshape([*kept, 1]))
            taken = taken.reshape([*kept, *[1] * len(reduced)]).permute(back)
        return taken if ctx.keepdim else taken.reshape(reduced_shape(ctx.shape, ctx.dims, False))


for _op in ("max", "min"):
    differentiable(_op, results=2)(Indexed)
