"""Gradients of the scans, as autograd.py has those of the reductions."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .autograd import Gradients, _accumulator, _Function, _ops, _round, _Spread, _Sum, register, transform
from .fake import LIBRARY

# ---- cumsum ----------------------------------------------------------------------------------------------------------


class _CumSum(_Function):
    forward = staticmethod(_ops.cumsum.raw)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        x, ctx.dim, _, ctx.exclusive, ctx.reverse, ctx.level = inputs
        ctx.dtype = x.dtype

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        """The scan from the other end: an element goes into every result from its own on."""
        back = _CumSum.apply(grad, ctx.dim, ctx.dtype, ctx.exclusive, not ctx.reverse, ctx.level)
        return back, None, None, None, None, None


def _of_inclusive(grad: Tensor, dim: int, exclusive: bool, reverse: bool) -> Tensor:
    """The gradient of the inclusive scan's results, out of that of the exclusive ones: the start's belongs to none."""
    if not exclusive or grad.dim() == 0:
        return torch.zeros_like(grad) if exclusive else grad
    start = grad.new_zeros(()).expand_as(grad.narrow(dim, 0, min(1, grad.shape[dim])))
    n = max(0, grad.shape[dim] - 1)
    return torch.cat(
        [start, grad.narrow(dim, 0, n)] if reverse else [grad.narrow(dim, grad.shape[dim] - n, n), start], dim
    )


# ---- sums with weights: logcumsumexp and the scans with index --------------------------------------------------------


def _decayed_fake(g: Tensor, x: Tensor, o: Tensor, dim: int, reverse: bool, level: int) -> Tensor:
    return g.new_empty(g.shape)


def _decayed_batched(
    info: Any, in_dims: Any, g: Tensor, x: Tensor, o: Tensor, dim: int, reverse: bool, level: int
) -> tuple[Tensor, int]:
    def batched(t: Tensor, batch: int | None) -> Tensor:
        t = t.expand(info.batch_size, *t.shape) if batch is None else t.movedim(batch, 0)
        return t.contiguous()

    parts = [batched(t, batch) for t, batch in zip((g, x, o), in_dims, strict=False)]
    if parts[0].dim() == 1:
        parts = [t.unsqueeze(1) for t in parts]
        return _ops.decayed_sum(*parts, 1, reverse, level).squeeze(1), 0
    return _ops.decayed_sum(*parts, 1 + dim % (parts[0].dim() - 1), reverse, level), 0


LIBRARY.impl("decayed_sum", torch.library.fallthrough_kernel, "Autograd")
torch.library.register_fake("torchreduce::decayed_sum", _decayed_fake, lib=LIBRARY)
torch.library.register_vmap("torchreduce::decayed_sum", _decayed_batched, lib=LIBRARY)


class _Decayed(_Function):
    """Result i: the sum of g[j] * exp(x[i] - o[j]) over j up to i, for o that do not rise and x <= o (csrc/scans.h)."""

    @staticmethod
    def forward(g: Tensor, x: Tensor, o: Tensor, dim: int, reverse: bool, level: int) -> Tensor:
        result: Tensor = _ops.decayed_sum(g.contiguous(), x.contiguous(), o.contiguous(), dim, reverse, level)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        g, x, o, ctx.dim, ctx.reverse, ctx.level = inputs
        ctx.save_for_backward(g, x, o, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        g, x, o, result = ctx.saved_tensors
        weighted = _weighted(grad, x, o, ctx.level)
        back = _Decayed.apply(weighted, -o, -o, ctx.dim, not ctx.reverse, ctx.level)
        return back, grad * result, -g * back, None, None, None


def _weighted(g: Tensor, x: Tensor, o: Tensor, level: int) -> Tensor:
    """g * exp(x - o), one by one."""
    weighted: Tensor = _Decayed.apply(g.unsqueeze(-1), x.unsqueeze(-1), o.unsqueeze(-1), -1, False, level)
    return weighted.squeeze(-1)


class _LogCumSumExp(_Function):
    forward = staticmethod(_ops.logcumsumexp.raw)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        x, ctx.dim, ctx.exclusive, ctx.reverse, ctx.level = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        """The results are computed again, in the accumulator type: rounded to 16 bits they would be too coarse."""
        (x,) = ctx.saved_tensors
        wide = x.to(_accumulator(x.dtype))
        out = _LogCumSumExp.apply(wide, ctx.dim, False, ctx.reverse, ctx.level)
        grad = _of_inclusive(grad.to(wide.dtype), ctx.dim, ctx.exclusive, ctx.reverse)
        back = _Decayed.apply(grad, wide, out, ctx.dim, not ctx.reverse, ctx.level)
        return _Rounded.apply(back, x.dtype), None, None, None, None


class _Rounded(_Function):
    """In dtype, rounded once, a NaN written canonical."""

    @staticmethod
    def forward(x: Tensor, dtype: torch.dtype) -> Tensor:
        return _round(x, dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.dtype = inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        return _Rounded.apply(grad, ctx.dtype), None


# ---- cummax and cummin: to the index ---------------------------------------------------------------------------------


class _ToIndex(_Function):
    """Element i: the sum of the gradients whose index is i, which are neighbours: in float64, from the far end on."""

    @staticmethod
    def forward(grad: Tensor, index: Tensor, dim: int, reverse: bool, level: int) -> Tensor:
        n = grad.shape[dim] if grad.dim() else 1
        shape = [1] * grad.dim()
        if grad.dim():
            shape[dim] = n
        # Indices 1024 apart, falling: what belongs to another one has the weight exp(-1024), which is 0.
        apart = (index * (-1024 if reverse else 1024)).double().contiguous()
        sums = _ops.decayed_sum(grad.double().contiguous(), apart, apart, dim, not reverse, level)
        own = index == torch.arange(n, device=index.device).reshape(shape)
        return torch.where(own, _round(sums, grad.dtype), 0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        _, index, ctx.dim, ctx.reverse, ctx.level = inputs
        ctx.save_for_backward(index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        return _FromIndex.apply(grad, *ctx.saved_tensors, ctx.dim, ctx.reverse, ctx.level), None, None, None, None


class _FromIndex(_Function):
    """Each result's element."""

    @staticmethod
    def forward(x: Tensor, index: Tensor, dim: int, reverse: bool, level: int) -> Tensor:
        return x.gather(dim, index)

    setup_context = _ToIndex.setup_context

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        return _ToIndex.apply(grad, *ctx.saved_tensors, ctx.dim, ctx.reverse, ctx.level), None, None, None, None


class _CumMax(_Function):
    forward = staticmethod(_ops.cummax.raw)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        _, ctx.dim, ctx.reverse, ctx.level = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> Gradients:
        if grad is None:
            return None, None, None, None
        return _ToIndex.apply(grad, *ctx.saved_tensors, ctx.dim, ctx.reverse, ctx.level), None, None, None


class _CumMin(_CumMax):
    forward = staticmethod(_ops.cummin.raw)


# ---- cumprod ---------------------------------------------------------------------------------------------------------


class _CumProd(_Function):
    forward = staticmethod(_ops.cumprod.raw)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        x, ctx.dim, _, ctx.exclusive, ctx.reverse, ctx.level = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        (x,) = ctx.saved_tensors
        grad = _of_inclusive(grad, ctx.dim, ctx.exclusive, ctx.reverse)
        back = _CumProdGradient.apply(grad, x, ctx.dim, ctx.reverse, ctx.level)
        return back, None, None, None, None, None


class _CumProdGradient(_Function):
    """Element k: the sum over j from k on of g[j] times the product of the elements up to j but for k."""

    @staticmethod
    def forward(g: Tensor, x: Tensor, dim: int, reverse: bool, level: int) -> Tensor:
        """Before a row's first zero the products are divided by the element; at it they leave it out; after it all
        are 0."""
        wide = _accumulator(g.dtype, x.dtype)

        def sums(factors: Tensor) -> Tensor:
            product = _ops.cumprod.raw(factors, dim, wide, False, reverse, level)
            result: Tensor = _ops.cumsum.raw(g.to(wide) * product, dim, wide, False, not reverse, level)
            return result

        zero = x == 0
        zeros = _ops.cumsum.raw(zero, dim, None, False, reverse, level)
        first = zero & (zeros == 1)
        divided = _ops.divide(sums(x), x.masked_fill(zero, 1), wide)
        back = torch.where(zeros == 0, divided, torch.where(first, sums(x.masked_fill(first, 1)), 0))
        return _round(back, x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        g, x, ctx.dim, ctx.reverse, ctx.level = inputs
        ctx.save_for_backward(g, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        g, x = ctx.saved_tensors
        # A trace and a transform cannot look.
        looks = transform() is None and type(x) in (Tensor, torch.nn.Parameter)
        second = _by_division if looks and not (x == 0).any() else _by_omission
        return *second(grad, g, x, ctx.dim, ctx.reverse, ctx.level), None, None, None


def _by_division(v: Tensor, g: Tensor, x: Tensor, dim: int, reverse: bool, level: int) -> tuple[Tensor, Tensor]:
    """The gradients of sum(v * _CumProdGradient(g, x)) for g and x, where no element is 0."""
    wide = _accumulator(g.dtype, x.dtype)

    def sums(t: Tensor, reverse: bool) -> Tensor:
        result: Tensor = _CumSum.apply(t, dim, wide, False, reverse, level)
        return result

    product = _CumProd.apply(x, dim, wide, False, reverse, level)
    share = v.to(wide) / x.to(wide)
    shares, weighted = sums(share, reverse), g.to(wide) * product
    to_x = (sums(weighted * shares, not reverse) - sums(weighted, not reverse) * share) / x.to(wide)
    return (product * shares).to(g.dtype), to_x.to(x.dtype)


def _by_omission(v: Tensor, g: Tensor, x: Tensor, dim: int, reverse: bool, level: int) -> tuple[Tensor, Tensor]:
    """The same for all x: by a square of the products that leave an element out, in memory n times the input's."""
    whole = x.dim() == 0
    v, g, x = (t.unsqueeze(0) if whole else t.movedim(dim, -1) for t in (v, g, x))
    if reverse:
        v, g, x = (t.flip(-1) for t in (v, g, x))
    n = x.shape[-1]
    own = torch.eye(n, dtype=torch.bool, device=x.device)
    before = torch.ones_like(own).tril(-1)
    square = x.unsqueeze(-2).expand(*x.shape, n).masked_fill(own, 1)  # row k leaves out element k
    products = _CumProd.apply(square, -1, None, False, False, level).masked_fill(before, 0)
    to_g = _Sum.apply(v.unsqueeze(-1) * products, [-2], False, g.dtype, level)
    through = (v.unsqueeze(-1) * g.unsqueeze(-2)).masked_fill(before, 0)
    to_square = _CumProdGradient.apply(through, square, -1, False, level)
    to_x = _Sum.apply(to_square.masked_fill(own, 0), [-2], False, None, level)
    to_g, to_x = (t.flip(-1) if reverse else t for t in (to_g, to_x))
    return (to_g.squeeze(0), to_x.squeeze(0)) if whole else (to_g.movedim(-1, dim), to_x.movedim(-1, dim))


# ---- linear_scan -----------------------------------------------------------------------------------------------------


def _full(x: Tensor, shape: Sequence[int], level: int) -> Tensor:
    """x broadcast to shape, without a copy; its gradient is the canonical sum."""
    x = x.reshape((1,) * (len(shape) - x.dim()) + x.shape)
    along = [d for d in range(len(shape)) if x.shape[d] != shape[d]]
    return x if not along else _Spread.apply(x, shape, along, x.dtype, level)


def _summed(x: Tensor, shape: Sequence[int], dtype: torch.dtype, level: int) -> Tensor:
    """The sums of x over what `shape` was broadcast along, rounded once to dtype."""
    extra = x.dim() - len(shape)
    along = [d for d in range(x.dim()) if d < extra or (shape[d - extra] == 1 and x.shape[d] != 1)]
    if along:
        x = _Sum.apply(x, along, True, dtype, level)
    elif x.dtype != dtype:
        x = _Rounded.apply(x, dtype)
    return x.reshape(shape)


class _LinearScan(_Function):
    """`shifted`: a position takes the a of the one before it in the scan's direction, and there is no initial."""

    forward = staticmethod(_ops.linear_scan.raw)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        a, b, initial, ctx.dim, ctx.reverse, ctx.shifted, ctx.level = inputs
        ctx.wide = _accumulator(b.dtype)
        # Results of 16 bits are too coarse; they are computed again.
        ctx.save_for_backward(a, b, initial, output if b.dtype == ctx.wide else None)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        """The scan from the other end, by the a of the next position; an a gets that times the h before it."""
        a, b, initial, h = ctx.saved_tensors
        dim, reverse, level = ctx.dim, ctx.reverse, ctx.level
        factors = a.to(ctx.wide)
        start = None if initial is None else initial.to(ctx.wide)
        back = _LinearScan.apply(factors, grad.to(ctx.wide), None, dim, not reverse, not ctx.shifted, level)
        to_b = _summed(back, b.shape, b.dtype, level)
        if grad.dim() == 0:
            back, dim = back.unsqueeze(0), 0
        n = back.shape[dim]
        if n == 0:
            return torch.zeros_like(a), to_b, None if initial is None else torch.zeros_like(initial), *[None] * 4
        first = back.narrow(dim, n - 1 if reverse else 0, 1)
        outer, to_initial = torch.zeros_like(first), None  # of the a that is not used
        if start is not None:
            outer = first * _full(start, first.squeeze(dim).shape, level).unsqueeze(dim)
            factor = _full(factors, back.shape, level).narrow(dim, n - 1 if reverse else 0, 1)
            to_initial = _summed((factor * first).squeeze(dim), initial.shape, initial.dtype, level)
        if not ctx.needs_input_grad[0]:
            return None, to_b, to_initial, None, None, None, None
        if h is None:
            h = _LinearScan.apply(factors, b.to(ctx.wide), start, ctx.dim, reverse, ctx.shifted, level)
        before = h.reshape(back.shape).narrow(dim, int(reverse), n - 1)
        products = back.narrow(dim, 1 - reverse, n - 1) * before
        parts = [outer, products] if reverse == ctx.shifted else [products, outer]
        to_a = _summed(torch.cat(parts, dim).reshape(grad.shape), a.shape, a.dtype, level)
        return to_a, to_b, to_initial, None, None, None, None


def _linear_fake(
    a: Tensor, b: Tensor, initial: Tensor | None, dim: int, reverse: bool, shifted: bool, level: int
) -> Tensor:
    return b.new_empty(torch.broadcast_shapes(a.shape, b.shape))


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
    result = _ops.linear_scan(a, b, initial, 1 + dim % dims, reverse, shifted, level)
    return (result if rank else result.squeeze(1)), 0


for _overload in ("", ".raw"):
    torch.library.register_fake(f"torchreduce::linear_scan{_overload}", _linear_fake, lib=LIBRARY)
    torch.library.register_vmap(f"torchreduce::linear_scan{_overload}", _linear_batched, lib=LIBRARY)
LIBRARY.impl("linear_scan.raw", torch.library.fallthrough_kernel, "Autograd")


FUNCTIONS = register(
    {
        "linear_scan": _LinearScan,
        "cumsum": _CumSum,
        "cumprod": _CumProd,
        "logcumsumexp": _LogCumSumExp,
        "cummax": _CumMax,
        "cummin": _CumMin,
    }
)
