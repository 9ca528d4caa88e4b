"""Calls that are overridden above autograd: composites, which torch decomposes before BackendSelect; and calls that
need a gradient or a tangent, if torchreduce's is better than torch's formula.

csrc/binding/aten.cpp, or python.py, decides which calls are overridden. Each name here is an op of the namespace
torchreduce_override, with aten's signature. Its kernel calls torchreduce's differentiable ops. For a call that
torchreduce does not handle, the kernel falls back to torch, with the dispatch keys that it was given.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import channels, norms, ops, rowwise
from .._autograd.reductions import rounded
from .._core.dispatch import derivatives, is_unwatched
from .._fake.reductions import reduced_shape
from . import pools, state
from .products import is_served_on
from .rules import GRAPH_RULES, WHY, Call, Rule, Torchs, _check_dtype, _check_norm, _check_rows, _dims, evaluate
from .rules import overload as aten
from .table import ABOVE

_C = torch._C
_functorch = _C._functorch
_REDUCTIONS = ("none", "mean", "sum")  # by torch's numbers


# ---- calls that need a gradient --------------------------------------------------------------------------------------


def _differentiable(call: Call, values: list[Any]) -> Any:
    """A call of a rule's, which is of a bare kernel, by way of autograd."""
    packet = call.op.overloadpacket
    if call.op.namespace != "torchreduce":
        return call.op(*values)
    name = call.op._schema.name.partition("::")[2]
    return derivatives[name](*values) if name in derivatives and is_unwatched() else packet.default(*values)


def _with_gradient(name: str) -> Callable[..., Any]:
    rule = GRAPH_RULES[name]

    def serve(*args: Any, **kwargs: Any) -> Any:
        made = rule(*args, **kwargs)
        if isinstance(made, Call) and made.op is torch.ops.torchreduce.norm0.raw:
            raise Torchs("option")  # which has none, where torchreduce has 0
        results = evaluate(made, _differentiable, lambda results, i: results[i])
        return tuple(results) if isinstance(made, list) else results

    return serve


# ---- composites ------------------------------------------------------------------------------------------------------


def _nanmean(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    _check_dtype(x, dtype)
    return ops.nanmean(x, _dims(x, dim), keepdim, dtype=dtype)


def _nanmean_out(
    x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None, out: Tensor
) -> Tensor:
    """torch's own casts, and refuses gradients."""
    dtype = out.dtype if dtype is None else dtype
    _check_dtype(x, dtype)
    dims = _dims(x, dim)
    shape = tuple(reduced_shape(x.shape, dims, keepdim))
    needs_gradient = torch.is_grad_enabled() and (x.requires_grad or out.requires_grad)
    if needs_gradient or out.dtype != dtype or out.device != x.device or _C._is_alias_of(out, x):  # type: ignore[attr-defined]
        raise Torchs("out")
    if torch._debug_has_internal_overlap(out) != 0 or (out.shape != shape and out.numel() != 0):
        raise Torchs("out")
    return ops.nanmean(x.detach(), dims, keepdim, out=out)


def _cross_entropy_loss(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignored: int = -100,
    smoothing: float = 0.0,
) -> Tensor:
    _check_rows(x)
    if reduction == 1 and weight is None and smoothing == 0.0 and target.dtype is torch.int64:
        mean = rowwise.mean_of_labels(x, target, ignored)
        if mean is not None:
            return mean
    is_probable = target.is_floating_point()
    if _is_traced() and not is_probable and smoothing == 0.0:  # losses.py finds the loss then
        raise Torchs("option")
    if not 0 <= smoothing <= 1 or not 0 <= reduction < len(_REDUCTIONS) or (is_probable and ignored >= 0):
        raise Torchs("option")
    classes = 0 if x.dim() == 1 else 1
    if x.dim() == 0 or target.shape != (x.shape if is_probable else x.shape[:classes] + x.shape[classes + 1 :]):
        raise Torchs("dims")
    if is_probable:
        if target.dtype != x.dtype or target.requires_grad:
            raise Torchs("dtype" if target.dtype != x.dtype else "option")
    elif target.dtype is not torch.int64 and (target.dtype is not torch.uint8 or x.dim() > 2):
        raise Torchs("dtype")
    if weight is not None:
        if weight.dtype != x.dtype or weight.requires_grad:
            raise Torchs("dtype" if weight.dtype != x.dtype else "option")
        if weight.shape != x.shape[classes : classes + 1]:
            raise Torchs("dims")
    if any(t is not None and t.device != x.device for t in (target, weight)):
        raise Torchs("kind")
    of = {"ignore_index": ignored, "reduction": _REDUCTIONS[reduction], "label_smoothing": smoothing}
    try:
        result: Tensor = rowwise.cross_entropy(x, target, weight, **of)  # type: ignore[call-overload]
        return result
    except IndexError:  # a label out of range
        raise Torchs("dims") from None


def _rms_norm(x: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    _check_norm(x, shape, weight)
    if weight is not None and weight.dtype != x.dtype:  # of which torch warns
        raise Torchs("dtype")
    return rowwise.rms_norm(x, shape, weight, eps)


def _layer_norm(
    x: Tensor,
    shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    _check_norm(x, shape, weight, bias)
    return rowwise.layer_norm(x, shape, weight, bias, eps)


# These below are met whole, before torch chooses between its own kernels and cuDNN's.


def _check_channels(x: Tensor, of_channels: tuple[Tensor | None, ...], mixed: bool) -> None:
    """What has an element for each channel: in x's dtype, or where torch takes that beside 16 bits, in float32."""
    _check_rows(x)
    if x.dim() < 2:
        raise Torchs("dims")
    given = [t for t in of_channels if t is not None]
    if any(t.dtype != x.dtype and not (mixed and x.dtype.itemsize == 2 and t.dtype is torch.float32) for t in given):
        raise Torchs("dtype")
    if any(t.dim() != 1 or t.shape[0] != x.shape[1] for t in given):
        raise Torchs("dims")
    if any(t.device != x.device for t in given):
        raise Torchs("kind")


def _check_running(
    x: Tensor, weights: tuple[Tensor | None, ...], running: tuple[Tensor | None, Tensor | None], of_input: bool
) -> None:
    """Both running statistics, without a gradient, or neither, where those of the input are used (of_input)."""
    _check_channels(x, weights, True)
    _check_channels(x, running, True)
    mean, var = running
    if (mean is None) != (var is None) or (mean is None and not of_input):
        raise Torchs("option")
    if any(t is not None and t.requires_grad for t in running):
        raise Torchs("option")


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    _check_running(x, (weight, bias), (running_mean, running_var), training)
    if training and x.numel() == x.shape[1]:  # torch divides by 0
        raise Torchs("option")
    return channels.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)


def _instance_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    _check_running(x, (weight, bias), (running_mean, running_var), use_input_stats)
    if use_input_stats and x.numel() == x.shape[0] * x.shape[1]:
        raise Torchs("option")
    return channels.instance_norm(x, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)


def _group_norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    _check_channels(x, (weight, bias), x.is_cpu)
    if groups < 1 or x.shape[1] % groups:
        raise Torchs("dims")
    if x.numel() == x.shape[0] * groups:
        raise Torchs("option")
    return channels.group_norm(x, groups, weight, bias, eps)


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """v (g / norm), the norm over all dims but one, or over all of them for dim=-1; rounded once."""
    _check_rows(v)
    if g.dtype != v.dtype:
        raise Torchs("dtype")
    if g.device != v.device:
        raise Torchs("kind")
    if not -v.dim() <= dim < v.dim() or (v.dim() == 1 and dim != -1):
        raise Torchs("dims")
    rest = None if dim == -1 else [d for d in range(v.dim()) if d != dim % v.dim()]
    wide = torch.promote_types(v.dtype, torch.float32)
    norm = norms.vector_norm(v, 2, rest, rest is not None, dtype=wide)
    if g.shape != norm.shape:
        raise Torchs("dims")
    return rounded(v.to(wide) * (g.to(wide) / norm), v.dtype)


def _cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: int | None = None) -> Tensor:
    """By matrix products, if these are overridden, however many rows there are: torch's choice depends on that."""
    on = state.eager | (state.compiled if _is_traced() else 0)
    if not on & state.PRODUCTS or p != 2 or compute_mode not in (None, 0):
        raise Torchs("option")
    if x1.device != x2.device or not is_served_on(x1.device):
        raise Torchs("kind")
    if x1.dtype is not torch.float32 or x2.dtype is not torch.float32 or not on & state.FLOAT32_PRODUCTS:
        raise Torchs("dtype")
    if x1.is_cpu and torch.get_float32_matmul_precision() != "highest":
        raise Torchs("option")
    if x1.dim() < 2 or x2.dim() < 2 or x1.shape[-1] != x2.shape[-1]:
        raise Torchs("dims")
    try:
        batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    except RuntimeError:
        raise Torchs("dims") from None
    if any(not isinstance(n, torch.SymInt) and n == 0 for n in (*batch, *x1.shape, *x2.shape)):
        raise Torchs("empty")
    flat = (x.expand(*batch, *x.shape[-2:]).reshape(-1, *x.shape[-2:]) for x in (x1, x2))
    distances: Tensor = torch.ops.aten._euclidean_dist(*flat)
    return distances.reshape(*batch, x1.shape[-2], x2.shape[-2])


COMPOSITES: dict[str, Rule] = {
    "nanmean": _nanmean,
    "nanmean.out": _nanmean_out,
    "cross_entropy_loss": _cross_entropy_loss,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "batch_norm": _batch_norm,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "_weight_norm": _weight_norm,
    "cdist": _cdist,
}
SERVED: dict[str, Callable[..., Any]] = {
    **{name: _with_gradient(name) for name in ABOVE["Gradients"]},
    **COMPOSITES,
    **pools.GRADIENTS,
}

# ---- what is registered ----------------------------------------------------------------------------------------------


def _is_dense(t: Tensor) -> bool:
    """Whether what functorch's transforms have wrapped is a plain tensor."""
    while _functorch.is_functorch_wrapped_tensor(t):
        t = _functorch.get_unwrapped(t)
    return type(t) in (Tensor, torch.nn.Parameter) and t.layout is torch.strided and not t.is_quantized


def _is_traced() -> bool:
    return _C._len_torch_dispatch_stack() > 0


class Above:
    """The ops, registered once. Their calls count as served; calls of composites also count by why they fell back to
    torch. Calls that a compiler traces do not count."""

    def __init__(self) -> None:
        self.calls = {name: dict.fromkeys(WHY, 0) for name in SERVED}
        self._library = torch.library.Library("torchreduce_override", "DEF")
        for name in SERVED:
            op = aten(name)
            self._library.define(str(op._schema).removeprefix("aten::"))
            self._library.impl(name, self.kernel(name), "AutogradOther", with_keyset=True)

    def registered(self) -> None:
        """To be called once aten's ops are met: torch's Python dispatcher, which tracing uses, remembers where they
        were served before."""
        for name in SERVED:
            for key in ("AutogradCPU", "AutogradCUDA", "BackendSelect", "FuncTorchBatched"):
                aten(name)._uncache_dispatch(getattr(_C.DispatchKey, key))

    def counts(self) -> list[int]:
        return [n for calls in self.calls.values() for n in calls.values()]

    def places(self) -> list[tuple[str, str]]:
        return [(name, why) for name, calls in self.calls.items() for why in calls]

    def kernel(self, name: str) -> Callable[..., Any]:
        serve, calls, op = SERVED[name], self.calls[name], aten(name)

        def kernel(keys: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
            try:
                if _C._is_tracing() or (_functorch.peek_interpreter_stack() is not None and not _is_dense(x)):
                    raise Torchs("kind")
                result = serve(x, *args, **kwargs)
                calls["served"] += not _is_traced()
                return result
            except Torchs as why:
                if name in COMPOSITES:  # others are met once more, below
                    calls[str(why)] += not _is_traced()
            # While a mode is on, torch gives the op's own keys, whatever the redispatch to it had.
            further = (keys & _C._after_autograd_keyset).add(_C.DispatchKey.AutogradOther)
            return op.redispatch(further, x, *args, **kwargs)

        return kernel
