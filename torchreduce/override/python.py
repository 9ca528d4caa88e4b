"""The override in Python, for a torch that csrc/binding/aten.cpp was not built for.

It covers the same calls, with bitwise identical results; each call takes tens of microseconds longer. The kernels are
registered for BackendSelect and stay registered, as in csrc/binding/aten.cpp.
"""

import math
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .._core.dispatch import has_tangent
from ..table import FLOATS
from . import products, state
from .above import COMPOSITES, SERVED, Above
from .registry import covered
from .rules import RULES, WHY, WRITING, Rule, Torchs, Traced, Writing, evaluate, overload, writes
from .table import ABOVE

_Key = torch._C.DispatchKey
_DEVICES = {_Key.CUDA: 1, _Key.CPU: 2}
_TYPES = {"cuda": 1, "cpu": 2}
_TRANSFORM = _Key.FuncTorchDynamicLayerBackMode


def _results(rule: Rule, *args: Any, **kwargs: Any) -> Any:
    """What a rule makes of a call, computed."""
    made = rule(*args, **kwargs)
    if isinstance(made, Traced):
        try:
            return made.function(*args, **kwargs)
        except (IndexError, RuntimeError):
            raise Torchs("dims") from None
    return evaluate(made, lambda call, values: call.op(*values), lambda results, i: results[i])


def _reading(name: str, rule: Rule) -> Callable[..., Any]:
    def serve(*args: Any, **kwargs: Any) -> Any:
        results = _results(rule, *args, **kwargs)
        return tuple(results) if isinstance(results, list) and len(overload(name)._schema.returns) > 1 else results

    return serve


def _fits(out: Tensor, result: Tensor) -> bool:
    """Whether `out` takes the result as it is, or is empty and can be resized without a word."""
    if out.dtype != result.dtype or out.device != result.device or torch._debug_has_internal_overlap(out) != 0:
        return False
    return out.shape == result.shape or out.numel() == 0


def _writing(name: str, writing: Writing) -> Callable[..., Any]:
    schema, names = overload(name)._schema, writing.names

    def serve(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
        outs = [given[key] for key in names]
        is_refused = name == "mean.out" and not given["self"].is_floating_point()
        if writing.dtype_of_out and given.get("dtype") is None and not is_refused:
            given["dtype"] = outs[0].dtype
        first = schema.arguments[0].name
        rest = {key: value for key, value in given.items() if key != first and key not in names}
        if name.startswith("nll_loss") and not given["reduction"]:
            raise Torchs("option")
        results = _results(writing.rule, given[first], **rest)
        results = results if isinstance(results, (list, tuple)) else (results,)
        if name.startswith("nll_loss"):
            results = [result.to(given[first].dtype) for result in results]
        if not all(_fits(out, result) for out, result in zip(outs, results, strict=True)):
            raise Torchs("out")
        for out, result in zip(outs, results, strict=True):
            out.resize_(result.shape).copy_(result)
        return None if not schema.returns else outs[0] if len(outs) == 1 else tuple(outs)

    return serve


def _fitting(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments as torch takes them: the sum of the weights, which a loss of 16 bits keeps in float32, in x's dtype."""
    if name not in ("nll_loss_backward", "nll_loss2d_backward"):
        return args
    *rest, total = args
    return (*rest, total.to(rest[1].dtype) if total.dtype is torch.float32 else total)


class Rows:
    def __init__(self) -> None:
        self._devices = 0
        self._tracing = threading.local()
        self._serving = threading.local()
        self._calls: dict[str, dict[str, int]] = {}
        self._excluded: frozenset[str] = frozenset()
        self._library = torch.library.Library("aten", "IMPL")
        for name, rule in RULES.items():
            self._add(name, _reading(name, rule))
        for name, writing in WRITING.items():
            self._add(name, _writing(name, writing))
        self._above = Above()
        for name in SERVED:
            self._add_above(name)
        self._above.registered()

    def register_products(self) -> None:
        self._calls["scaled_dot_product_attention"] = dict.fromkeys(WHY, 0)

        def rule(name: str) -> Rule:
            return lambda *args, **kwargs: products.rules(bool(self._devices & state.FLOAT32_PRODUCTS))[name](
                *args, **kwargs
            )

        for name in products.OVERLOADS:
            names = writes(name)
            serve = _writing(name, Writing(rule(name), names, False)) if names else _reading(name, rule(name))
            self._add(name, serve, only_where=state.PRODUCTS)
        for name, met in (("linear", self._linear), ("scaled_dot_product_attention", self._attention)):
            for key in ("AutogradCUDA", "AutogradCPU", "BackendSelect"):
                self._library.impl(name, partial(self._above_products, name, met), key, with_keyset=True)

    def _above_products(
        self, name: str, met: Callable[..., Any], keys: Any, x: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        """As csrc/binding/aten.cpp has it: what `met` makes of a call, or torch's own."""
        on = self._devices | getattr(self._tracing, "devices", 0)
        is_dense = x.layout is torch.strided and not x.is_nested
        is_ours = on & state.PRODUCTS and on & _TYPES.get(x.device.type, 0) and is_dense
        if is_ours and (result := met(on, x, *args, **kwargs)) is not None:
            return result
        if keys.has(_Key.AutogradCUDA) or keys.has(_Key.AutogradCPU):
            keys = (keys & torch._C._after_autograd_keyset).add(_Key.AutogradOther)
        return overload(name).redispatch(keys.remove(_Key.BackendSelect), x, *args, **kwargs)

    def _linear(self, on: int, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
        dtypes = (torch.float16, torch.bfloat16, *([torch.float32] if on & state.FLOAT32_PRODUCTS else []))
        if bias is None or bias.dim() != 1 or x.dim() in (0, 2) or weight.dim() != 2 or x.dtype not in dtypes:
            return None
        if weight.shape[1] != x.shape[-1] or weight.layout is not torch.strided or bias.layout is not torch.strided:
            return None
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        return torch.nn.functional.linear(rows, weight, bias).reshape(*x.shape[:-1], weight.shape[0])

    def _attention(
        self,
        on: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Any = None,
        dropout: float = 0.0,
        *rest: Any,
        **of: Any,
    ) -> Tensor | None:
        if query.is_cpu:
            return None
        serves = not torch.backends.cuda.flash_sdp_enabled() and dropout == 0
        calls = self._calls["scaled_dot_product_attention"]
        calls["served" if serves else "option"] += not getattr(self._tracing, "devices", 0)
        if not serves or query.dim() < 2 or query.shape[-2] != 1:
            return None
        two = query.expand(*query.shape[:-2], 2, query.shape[-1])
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(two, key, value, mask, dropout, *rest, **of).narrow(-2, 0, 1)

    def enable(self, devices: int) -> None:
        self._devices = devices

    def exclude(self, overloads: frozenset[str]) -> None:
        self._excluded = overloads

    def trace(self, devices: int) -> int:
        before = getattr(self._tracing, "devices", 0)
        self._tracing.devices = devices
        return before

    def coverage(self) -> dict[str, dict[str, int]]:
        return covered(self.places(), self.counts())

    def counts(self) -> list[int]:
        return [n for calls in self._calls.values() for n in calls.values()] + self._above.counts()

    def places(self) -> list[tuple[str, str]]:
        return [(name, why) for name, calls in self._calls.items() for why in calls] + self._above.places()

    def _is_met(self, name: str, x: Tensor, keys: Any) -> bool:
        """As csrc/binding/aten.cpp has it."""
        is_transformed, tracing = keys.has(_TRANSFORM), getattr(self._tracing, "devices", 0)
        if not (self._devices or tracing) or x.dtype not in FLOATS:
            return False
        if name in ABOVE["Transformed"] and not is_transformed:
            return False
        if name in ABOVE["Cpu"] and not x.is_cpu and not is_transformed:
            return False
        if name in ABOVE["Gradients"] and not (x.requires_grad and torch.is_grad_enabled()) and not has_tangent(x):
            return False
        if tracing and keys.has(_Key.Python):
            return bool(tracing & _TYPES.get(x.device.type, 0))
        below = keys & torch._C._after_autograd_keyset
        for key in (_Key.ADInplaceOrView, _Key.BackendSelect, _TRANSFORM):
            below = below.remove(key)
        return bool(self._devices & _DEVICES.get(below.highestPriorityTypeId(), 0))

    def _add_above(self, name: str) -> None:
        """In torchreduce_override, and where aten's op is met above autograd."""
        aten, serve, other = overload(name), self._above.kernel(name), torch._C.DispatchKeySet(_Key.AutogradOther)

        def kernel(keys: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
            further = (keys & torch._C._after_autograd_keyset).add(_Key.AutogradOther)
            return (serve if self._is_met(name, x, keys) else aten.redispatch)(further, x, *args, **kwargs)

        def below(keys: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
            if self._is_met(name, x, keys):
                return serve(other, x, *args, **kwargs)
            is_batched = keys.has(_Key.FuncTorchBatched)
            return aten.redispatch(other if is_batched else keys.remove(_Key.BackendSelect), x, *args, **kwargs)

        for key in ("AutogradCPU", "AutogradCUDA"):
            self._library.impl(name, kernel, key, with_keyset=True)
        for key in ("BackendSelect", "FuncTorchBatched") if name in COMPOSITES else ():
            self._library.impl(name, below, key, with_keyset=True)

    def _add(self, name: str, serve: Callable[..., Any], only_where: int = -1) -> None:
        aten, calls = overload(name), self._calls.setdefault(name, dict.fromkeys(WHY, 0))

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            below = keys.remove(_Key.BackendSelect)
            key = below.highestPriorityTypeId()
            is_torchs = keys.has(_Key.Meta) or name in self._excluded or name == getattr(self._serving, "name", None)
            if self._devices & only_where and not is_torchs:
                outer, self._serving.name = getattr(self._serving, "name", None), name  # what it calls of itself
                try:
                    if not self._devices & _DEVICES.get(key, 0):
                        raise Torchs("kind")
                    result = serve(*args, **kwargs)
                    calls["served"] += 1
                    return result
                except Torchs as why:
                    calls[str(why)] += 1
                finally:
                    self._serving.name = outer
            return aten.redispatch(below, *_fitting(name, args), **kwargs)

        self._library.impl(name, kernel, "BackendSelect", with_keyset=True)
