"""Gradients, under the contract like any result: sums in the canonical order, true divisions, one rounding to the
input's dtype from an accumulator of float32 or float64; at the forward's level. All can be differentiated again.

torch's own sums are never used, and no division is left to torch.compile: on GPUs it multiplies by reciprocals.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .fake import LIBRARY, dims_of, reduced_shape

_sum = torch.ops.torchreduce.sum.default
_cumsum = torch.ops.torchreduce.cumsum.default


def _accumulator(*dtypes: torch.dtype) -> torch.dtype:
    return torch.float64 if torch.float64 in dtypes else torch.float32


# ---- the two linear maps that gradients are made of ------------------------------------------------------------------

LIBRARY.define("divide(Tensor x, Tensor n, ScalarType dtype) -> Tensor")


def _divide_kernel(x: Tensor, n: Tensor, dtype: torch.dtype) -> Tensor:
    """x / n in the accumulator type, rounded once to dtype; a NaN is written canonical. n broadcasts to x."""
    wide = _accumulator(x.dtype, dtype)
    quotient = x.to(wide) / n.to(wide)
    rounded: Tensor = torch.ops.torchreduce.sum.raw(quotient.unsqueeze(-1), [-1], False, dtype, 0)
    return rounded


def _divide_fake(x: Tensor, n: Tensor, dtype: torch.dtype) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype)


def _divide_setup(ctx: Any, inputs: Any, output: Tensor) -> None:
    x, n, _ = inputs
    ctx.save_for_backward(n)
    ctx.dtype = x.dtype


def _divide_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return _divide(grad, *ctx.saved_tensors, ctx.dtype), None, None


def _divide_batched(info: Any, in_dims: Any, x: Tensor, n: Tensor, dtype: torch.dtype) -> tuple[Tensor, int]:
    rank = max(t.dim() - (d is not None) for t, d in zip((x, n), in_dims, strict=False))

    def aligned(t: Tensor, dim: int | None) -> Tensor:
        t = t.unsqueeze(0) if dim is None else t.movedim(dim, 0)
        return t.reshape(t.shape[:1] + (1,) * (rank + 1 - t.dim()) + t.shape[1:])

    x, n = aligned(x, in_dims[0]), aligned(n, in_dims[1])
    return _divide(x.expand(info.batch_size, *x.shape[1:]), n, dtype), 0


LIBRARY.impl("divide", _divide_kernel, "CompositeExplicitAutograd")
torch.library.register_fake("torchreduce::divide", _divide_fake, lib=LIBRARY)
torch.library.register_autograd("torchreduce::divide", _divide_backward, setup_context=_divide_setup, lib=LIBRARY)
torch.library.register_vmap("torchreduce::divide", _divide_batched, lib=LIBRARY)
_divide = torch.ops.torchreduce.divide.default


class _Spread(torch.autograd.Function):
    """What sum does to gradients: each element gets that of its result, rounded once. Its own gradient is the sum."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        grad: Tensor, shape: Sequence[int], dims: Sequence[int] | None, dtype: torch.dtype, level: int
    ) -> Tensor:
        """grad: of shape `shape`, but for size 1 along dims."""
        if grad.dtype != dtype:
            grad = _sum(grad.unsqueeze(-1), [-1], False, dtype, level)
        return grad.expand(shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        grad, _, ctx.dims, _, ctx.level = inputs
        ctx.dtype = grad.dtype

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _sum(grads[0], ctx.dims, True, ctx.dtype, ctx.level), None, None, None, None


def _spread(ctx: Any, grad: Tensor) -> Tensor:
    """grad has size 1 along the reduced dims."""
    return _Spread.apply(grad, ctx.shape, ctx.dims, ctx.dtype, ctx.level)  # type: ignore[no-any-return, no-untyped-call]


def _keep(ctx: Any, result: Tensor) -> Tensor:
    """A tensor of the result's shape with size 1 along the reduced dims."""
    return result if ctx.keepdim else result.reshape(reduced_shape(ctx.shape, ctx.dims, True))


def _remember(ctx: Any, x: Tensor, dims: Sequence[int] | None, keepdim: bool, level: int) -> None:
    ctx.shape, ctx.dtype, ctx.dims, ctx.keepdim, ctx.level = x.shape, x.dtype, dims, keepdim, level


# ---- sum, mean -------------------------------------------------------------------------------------------------------


def _sum_setup(ctx: Any, inputs: Any, output: Tensor) -> None:
    x, dims, keepdim, _, level = inputs
    _remember(ctx, x, dims, keepdim, level)


def _sum_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return _spread(ctx, _keep(ctx, grad)), None, None, None, None


def _mean_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    n = 1
    for d in dims_of(len(ctx.shape), ctx.dims):
        n = n * ctx.shape[d]
    # On the gradient's device: torch's GPU division by a number of the host multiplies by its reciprocal.
    count = torch.full((), n, dtype=torch.int64, device=grad.device)
    share = _divide(_keep(ctx, grad), count, _accumulator(grad.dtype, ctx.dtype))
    return _spread(ctx, share), None, None, None, None


# ---- amax, amin, and max, min without dims: shared among the ties ----------------------------------------------------


def _amax_setup(ctx: Any, inputs: Any, output: Tensor) -> None:
    x, dims, keepdim, level = inputs
    _remember(ctx, x, dims, keepdim, level)
    ctx.save_for_backward(x, output)


def _amax_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Where the result is NaN nothing ties with it, and every element's share is 0 * grad / 0, as torch's amax."""
    x, result = ctx.saved_tensors
    ties = x == _keep(ctx, result)
    count = _sum(ties, ctx.dims, True, None, ctx.level)
    none = count == 0
    share = _divide(_keep(ctx, grad).masked_fill(none, 0), count, _accumulator(ctx.dtype))
    return torch.where(ties | none, _spread(ctx, share), 0), None, None, None


def _max_all_setup(ctx: Any, inputs: Any, output: Tensor) -> None:
    x, keepdim, level = inputs
    _remember(ctx, x, None, keepdim, level)
    ctx.save_for_backward(x, output)


def _max_all_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """A NaN result ties with every NaN, as torch's max."""
    x, result = ctx.saved_tensors
    result = _keep(ctx, result)
    ties = (x == result) | (x.isnan() & result.isnan())
    count = _sum(ties, None, True, None, ctx.level)
    share = _divide(_keep(ctx, grad), count, _accumulator(ctx.dtype))
    return torch.where(ties, _spread(ctx, share), 0), None, None


# ---- max, min with dims: to the index --------------------------------------------------------------------------------


def _max_setup(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
    x, dims, keepdim, level = inputs
    _remember(ctx, x, dims, keepdim, level)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1])


def _max_backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    """An index over several dims counts their elements, ascending and row-major."""
    if grad is None:
        return None, None, None, None
    grad, index = _keep(ctx, grad), _keep(ctx, *ctx.saved_tensors)
    if len(ctx.dims) == 1:
        return grad.new_zeros(ctx.shape).scatter(ctx.dims[0], index, grad), None, None, None
    reduced = dims_of(len(ctx.shape), ctx.dims)
    order = [d for d in range(len(ctx.shape)) if d not in reduced] + reduced
    last = len(order) - len(reduced)
    zeros = grad.new_zeros([ctx.shape[d] for d in order]).flatten(last)
    grad, index = (t.permute(order).flatten(last) for t in (grad, index))
    rows = zeros.scatter(last, index, grad).unflatten(last, [ctx.shape[d] for d in reduced])
    return rows.permute([order.index(d) for d in range(len(order))]), None, None, None


# ---- cumsum ----------------------------------------------------------------------------------------------------------


def _cumsum_setup(ctx: Any, inputs: Any, output: Tensor) -> None:
    x, ctx.dim, _, ctx.exclusive, ctx.reverse, ctx.level = inputs
    ctx.dtype = x.dtype


def _cumsum_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The scan from the other end: an element goes into every result from its own on."""
    back = _cumsum(grad, ctx.dim, ctx.dtype, ctx.exclusive, not ctx.reverse, ctx.level)
    return back, None, None, None, None, None


FORMULAS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sum": (_sum_setup, _sum_backward),
    "mean": (_sum_setup, _mean_backward),
    "amax": (_amax_setup, _amax_backward),
    "amin": (_amax_setup, _amax_backward),
    "max_all": (_max_all_setup, _max_all_backward),
    "min_all": (_max_all_setup, _max_all_backward),
    "max": (_max_setup, _max_backward),
    "min": (_max_setup, _max_backward),
    "cumsum": (_cumsum_setup, _cumsum_backward),
}

for _name, (_setup, _backward) in FORMULAS.items():
    torch.library.register_autograd(f"torchreduce::{_name}", _backward, setup_context=_setup, lib=LIBRARY)
