"""Gradients, under the contract like any result: sums in the canonical order, true divisions, one rounding to the
input's dtype from an accumulator of float32 or float64; at the forward's level. All can be differentiated again.

torch's own sums are never used, and no division is left to torch.compile: on GPUs it multiplies by reciprocals.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .fake import LIBRARY, dims_of, reduced_shape

_ops = torch.ops.torchreduce
transform = torch._C._functorch.peek_interpreter_stack  # None outside of torch.func's transforms
Gradients = tuple[Tensor | None, ...]  # one for each argument of an op


class _Function(Function):
    generate_vmap_rule = True

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Outside of torch.func straight to its C++: the inspection of signatures before it costs ten times the op."""
        if transform() is None:
            return super(Function, cls).apply(*args)  # type: ignore[misc]
        return super().apply(*args)  # type: ignore[no-untyped-call]


def _accumulator(*dtypes: torch.dtype) -> torch.dtype:
    return torch.float64 if torch.float64 in dtypes else torch.float32


def _round(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in dtype, rounded once, a NaN written canonical: the sum of each element alone."""
    rounded: Tensor = _ops.sum.raw(x.unsqueeze(-1), [-1], False, dtype, 0)
    return rounded


# ---- division: the one op that gradients add -------------------------------------------------------------------------


def _divide_kernel(x: Tensor, n: Tensor, dtype: torch.dtype) -> Tensor:
    """x / n in the accumulator type, rounded once to dtype. n broadcasts to x."""
    wide = _accumulator(x.dtype, dtype)
    return _round(x.to(wide) / n.to(wide), dtype)


def _divide_fake(x: Tensor, n: Tensor, dtype: torch.dtype) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype)


def _divide_batched(info: Any, in_dims: Any, x: Tensor, n: Tensor, dtype: torch.dtype) -> tuple[Tensor, int]:
    rank = max(t.dim() - (d is not None) for t, d in zip((x, n), in_dims, strict=False))

    def aligned(t: Tensor, dim: int | None) -> Tensor:
        t = t.unsqueeze(0) if dim is None else t.movedim(dim, 0)
        return t.reshape(t.shape[:1] + (1,) * (rank + 1 - t.dim()) + t.shape[1:])

    x, n = aligned(x, in_dims[0]), aligned(n, in_dims[1])
    return _ops.divide(x.expand(info.batch_size, *x.shape[1:]), n, dtype), 0


LIBRARY.define("divide(Tensor x, Tensor n, ScalarType dtype) -> Tensor")
LIBRARY.impl("divide", _divide_kernel, "CompositeExplicitAutograd")
LIBRARY.impl("divide", torch.library.fallthrough_kernel, "Autograd")
torch.library.register_fake("torchreduce::divide", _divide_fake, lib=LIBRARY)
torch.library.register_vmap("torchreduce::divide", _divide_batched, lib=LIBRARY)


class _Divide(_Function):
    forward = staticmethod(_ops.divide.default)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        x, n, _ = inputs
        ctx.save_for_backward(n)
        ctx.dtype = x.dtype

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        return _Divide.apply(grad, *ctx.saved_tensors, ctx.dtype), None, None


# ---- sum and mean ----------------------------------------------------------------------------------------------------


class _Spread(_Function):
    """What a sum does to gradients: each element gets that of its result, rounded once. Its own gradient is the sum."""

    @staticmethod
    def forward(
        grad: Tensor, shape: Sequence[int], dims: Sequence[int] | None, dtype: torch.dtype, level: int
    ) -> Tensor:
        """grad is of shape `shape`, but for size 1 along dims."""
        return (grad if grad.dtype == dtype else _round(grad, dtype)).expand(shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        grad, _, ctx.dims, _, ctx.level = inputs
        ctx.dtype = grad.dtype

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        return _Sum.apply(grad, ctx.dims, True, ctx.dtype, ctx.level), None, None, None, None


class _Reduction(_Function):
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
        spread: Tensor = _Spread.apply(grad, ctx.shape, ctx.dims, ctx.dtype, ctx.level)
        return spread


class _Sum(_Reduction):
    forward = staticmethod(_ops.sum.raw)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        x, dims, keepdim, _, level = inputs
        _Sum.remember(ctx, x, dims, keepdim, level)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        return _Sum.spread(ctx, _Sum.kept(ctx, grad)), None, None, None, None


class _Mean(_Sum):
    forward = staticmethod(_ops.mean.raw)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        n = 1
        for d in dims_of(len(ctx.shape), ctx.dims):
            n = n * ctx.shape[d]
        # On the gradient's device: torch's GPU division by a number of the host multiplies by its reciprocal.
        count = torch.full((), n, dtype=torch.int64, device=grad.device)
        share = _Divide.apply(_Mean.kept(ctx, grad), count, _accumulator(grad.dtype, ctx.dtype))
        return _Mean.spread(ctx, share), None, None, None, None


# ---- amax, amin, and max, min without dims: shared evenly among the ties ---------------------------------------------


class _Amax(_Reduction):
    forward = staticmethod(_ops.amax.raw)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        x, dims, keepdim, level = inputs
        _Amax.remember(ctx, x, dims, keepdim, level)
        ctx.save_for_backward(x, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        """Nothing ties with a NaN: every element's share is then 0 * grad / 0, as of torch's amax."""
        x, result = ctx.saved_tensors
        ties = x == _Amax.kept(ctx, result)
        count = _ops.sum.raw(ties, ctx.dims, True, None, ctx.level)
        none = count == 0
        share = _Divide.apply(_Amax.kept(ctx, grad).masked_fill(none, 0), count, _accumulator(ctx.dtype))
        return torch.where(ties | none, _Amax.spread(ctx, share), 0), None, None, None


class _Amin(_Amax):
    forward = staticmethod(_ops.amin.raw)


class _MaxAll(_Reduction):
    forward = staticmethod(_ops.max_all.raw)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        x, keepdim, level = inputs
        _MaxAll.remember(ctx, x, None, keepdim, level)
        ctx.save_for_backward(x, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        """A NaN ties with every NaN, as in torch's max."""
        x, result = ctx.saved_tensors
        result = _MaxAll.kept(ctx, result)
        ties = (x == result) | (x.isnan() & result.isnan())
        count = _ops.sum.raw(ties, None, True, None, ctx.level)
        share = _Divide.apply(_MaxAll.kept(ctx, grad), count, _accumulator(ctx.dtype))
        return torch.where(ties, _MaxAll.spread(ctx, share), 0), None, None


class _MinAll(_MaxAll):
    forward = staticmethod(_ops.min_all.raw)


# ---- max and min with dims: to the index -----------------------------------------------------------------------------


class _Max(_Reduction):
    forward = staticmethod(_ops.max.raw)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        x, dims, keepdim, level = inputs
        _Max.remember(ctx, x, dims, keepdim, level)
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> Gradients:
        """An index over several dims counts their elements, ascending and row-major."""
        if grad is None:
            return None, None, None, None
        grad, index = _Max.kept(ctx, grad), _Max.kept(ctx, *ctx.saved_tensors)
        if len(ctx.dims) == 1:
            return grad.new_zeros(ctx.shape).scatter(ctx.dims[0], index, grad), None, None, None
        reduced = dims_of(len(ctx.shape), ctx.dims)
        order = [d for d in range(len(ctx.shape)) if d not in reduced] + reduced
        last = len(order) - len(reduced)
        zeros = grad.new_zeros([ctx.shape[d] for d in order]).flatten(last)
        grad, index = (t.permute(order).flatten(last) for t in (grad, index))
        rows = zeros.scatter(last, index, grad).unflatten(last, [ctx.shape[d] for d in reduced])
        return rows.permute([order.index(d) for d in range(len(order))]), None, None, None


class _Min(_Max):
    forward = staticmethod(_ops.min.raw)


def _kernel(function: type[_Function]) -> Callable[..., Any]:
    return lambda *args: function.apply(*args)


def register(functions: dict[str, type[_Function]]) -> dict[str, type[_Function]]:
    """What differentiates each op. Its name is for calls from Python, where torch.func's transforms need it; the
    default overload does the same for all else."""
    for name, function in functions.items():
        LIBRARY.impl(name, _kernel(function), "Autograd")
    return functions


FUNCTIONS = register(
    {
        "sum": _Sum,
        "mean": _Mean,
        "amax": _Amax,
        "amin": _Amin,
        "max_all": _MaxAll,
        "min_all": _MinAll,
        "max": _Max,
        "min": _Min,
    }
)
