"""Decide which overload of an op handles a call.

Every op has two overloads of one kernel. The default overload is registered with derivatives, a fake kernel and a
batching rule: it works under autograd, forward mode, the transforms of torch.func, modes, tracing, export and
torch.compile. `.raw` is the bare kernel, for plain tensors in eager mode outside of all these. These calls use it
directly, or through autograd if a gradient is needed, which avoids overhead. `.out` and `.raw_out` are the same for
calls with out=.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad
from torch.nn import Parameter

from . import direct

LIBRARY = torch.library.Library("torchreduce", "FRAGMENT")  # lives as long as the process, as what it registers

_C = torch._C
_is_tracing = _C._is_tracing
_modes, _function_modes = _C._len_torch_dispatch_stack, _C._len_torch_function_stack
_functorch = _C._functorch
_transform = _functorch.peek_interpreter_stack  # None outside of torch.func's transforms
_is_compiling, _is_grad_enabled = torch.compiler.is_dynamo_compiling, torch.is_grad_enabled
_is_inference = torch.is_inference_mode_enabled
_unpack_dual = torch._VF._unpack_dual


def is_unwatched() -> bool:
    """Whether no compiler, tracer, mode or transform is active, and no dual level is open."""
    return (
        not _is_compiling()
        and _transform() is None
        and not _modes()
        and not _function_modes()
        and not _is_tracing()
        and forward_ad._current_level < 0
    )


def is_plain(t: Any) -> TypeGuard[Tensor]:
    """Whether it is a Tensor or a Parameter, not a subclass."""
    return type(t) is Tensor or type(t) is Parameter


def serving(op: Any, t: Tensor, *more: Tensor) -> Callable[..., Any]:
    """Return the overload of op (checks.Overloads) for these tensors. For plain tensors, with no compiler, mode or
    transform active, that is the bare kernel, or the bare kernel with a gradient if one is needed."""
    if not is_unwatched() or not is_plain(t) or (more and not all(map(is_plain, more))):
        return op.default  # type: ignore[no-any-return]
    needs_gradient = t.requires_grad or (more and any(other.requires_grad for other in more))
    if needs_gradient and _is_grad_enabled() and not _is_inference():
        return op.derivative  # type: ignore[no-any-return]
    return op.raw  # type: ignore[no-any-return]


def is_bare(*tensors: Tensor) -> bool:
    """Whether a call that writes to tensors may use the bare kernel, as serving() decides for other calls."""
    needs_gradient = _is_grad_enabled() and any(t.requires_grad for t in tensors)
    return is_unwatched() and all(map(is_plain, tensors)) and not needs_gradient


@contextmanager
def _within_a_transform() -> Iterator[None]:
    """The dispatcher calls one level of torch.func's transforms at a time, which a Function has to be told."""
    before = _functorch.get_single_level_autograd_function_allowed()
    _functorch.set_single_level_autograd_function_allowed(True)
    try:
        yield
    finally:
        _functorch.set_single_level_autograd_function_allowed(before)


# ---- derivatives -----------------------------------------------------------------------------------------------------


Saved = tuple[Any, ...]  # what Rule.save kept; for tangents, without their own


class Rule:
    """The derivatives of an op. The arguments are those of the op's schema; tensors come first.

    ctx is that of torch.autograd.Function. Formulas consist of ops that have derivatives themselves, so that all of
    this can be nested.
    """

    forward: Callable[..., Any] | None = None  # what the op is to whoever traces it, if not itself; may be a view

    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        """Keeps what the others need: by ctx.save_for_backward and ctx.save_for_forward if it is a tensor."""

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Any) -> Any:
        """The gradient of the first tensor, or a tuple of those of the first ones; the rest have none. Of an op with
        several differentiable results `grad` is a tuple of theirs, None for one that is not there."""
        raise NotImplementedError

    @staticmethod
    def tangent(ctx: Any, saved: Saved, *tangents: Any) -> Any:
        """The tangent of the first result, or a tuple of those of the differentiable ones, given those of the tensors
        (None for one that is not there)."""
        raise NotImplementedError


def save(ctx: Any, *tensors: Tensor | None) -> None:
    """For both modes."""
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)


# Of each public op: the bare kernel by way of autograd.
derivatives: dict[str, Callable[..., Any]] = {}


def differentiable(op: str, results: int = 1, smooth: int = 1) -> Callable[[type[Rule]], type[Rule]]:
    """Registers a rule as the derivatives of torchreduce::op, of whose results the first `smooth` have some."""
    packet = getattr(torch.ops.torchreduce, op)
    overload: Any = packet.default
    raw: Any = direct.raw(op) if "raw" in packet.overloads() else None

    def register(rule: type[Rule]) -> type[Rule]:
        def forward(*args: Any) -> Any:
            keyset, *inputs = args
            if keyset is None:
                return raw(*inputs)
            below = rule.forward or partial(overload.redispatch, keyset & _C._after_autograd_keyset)
            with _C._AutoDispatchBelowADInplaceOrView() if rule.forward else _C._AutoDispatchBelowAutograd():
                if _transform() is None:
                    return below(*inputs)
                with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):  # for the transforms further out
                    return below(*inputs)

        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.arguments = len(inputs)
            first = output if results == 1 else output[0]
            ctx.has_tangent = first.is_floating_point()
            if not ctx.has_tangent and any(ctx.needs_input_grad):
                raise RuntimeError(
                    f"{op}(): autograd does not support a result of {first.dtype}; detach() the input, or call it "
                    "under torch.no_grad()"
                )
            ctx.set_materialize_grads(False)
            if results > 1:
                ctx.mark_non_differentiable(*output[smooth:])
            rule.save(ctx, inputs[1:], output)

        def backward(ctx: Any, *grads: Any) -> Any:
            of_results = grads[0] if smooth == 1 else grads[:smooth]
            if of_results is None or (smooth > 1 and all(grad is None for grad in of_results)):
                return (None,) * ctx.arguments
            gradients = rule.backward(ctx, ctx.saved_tensors, of_results)
            if type(gradients) is not tuple:
                gradients = (gradients,)
            return None, *gradients, *(None,) * (ctx.arguments - 1 - len(gradients))

        def jvp(ctx: Any, *tangents: Any) -> Any:
            tangent: Any = None
            if ctx.has_tangent:
                saved = tuple(None if t is None else _unpack_dual(t, level=0)[0] for t in ctx.saved_tensors)
                with forward_ad._set_fwd_grad_enabled(True):  # for tangents of tangents
                    tangent = rule.tangent(ctx, saved, *tangents[1:])
            if results == 1:
                return tangent
            tangents = tangent if smooth > 1 and tangent is not None else (tangent,) + (None,) * (smooth - 1)
            return (*tangents, *[None] * (results - smooth))

        methods = {f.__name__: staticmethod(f) for f in (forward, setup_context, backward, jvp)}
        derivative = type(f"torchreduce_{op}_", (Function,), methods)  # torch shows the name, with Backward after it
        apply: Any = super(Function, derivative).apply  # type: ignore[misc]  # the dispatcher has seen to transforms

        def kernel(keyset: Any, *args: Any) -> Any:
            if _transform() is None:
                return apply(keyset, *args)
            with _within_a_transform():
                return apply(keyset, *args)

        LIBRARY.impl(op, kernel, "Autograd", with_keyset=True)
        derivatives[op] = direct.recorded(op, partial(apply, None))
        return rule

    return register


def has_tangent(t: Tensor) -> bool:
    return forward_ad._current_level >= 0 and _unpack_dual(t, level=0)[1] is not None


def register_out(op: str, packet: Any) -> None:
    """Registers for an .out overload that neither mode of differentiation may lose what it writes, and what torch's
    functionalization makes of it."""
    overload: Any = packet.out

    def kernel(keyset: Any, *args: Any, **outs: Tensor) -> Any:
        check_no_derivatives(op, [t for t in (*args, *outs.values()) if isinstance(t, Tensor)])
        with _C._AutoDispatchBelowAutograd():
            return overload.redispatch(keyset & _C._after_autograd_keyset, *args, **outs)

    def functional(*args: Any, **outs: Tensor) -> None:
        results = packet.default(*args)
        for out, result in zip(outs.values(), (results,) if isinstance(results, Tensor) else results, strict=True):
            out.copy_(result)

    name = overload.name().removeprefix("torchreduce::")
    LIBRARY.impl(name, kernel, "Autograd", with_keyset=True)
    LIBRARY.impl(name, functional, "Functionalize")


def check_no_derivatives(op: str, tensors: Sequence[Tensor]) -> None:
    if _is_grad_enabled() and any(t.requires_grad for t in tensors):
        raise RuntimeError(
            f"{op}(): functions with out=... arguments don't support automatic differentiation, "
            "but one of the arguments requires grad."
        )
    if any(map(has_tangent, tensors)):
        raise NotImplementedError(
            f"{op}(): functions with out=... arguments don't support forward-mode differentiation"
        )
