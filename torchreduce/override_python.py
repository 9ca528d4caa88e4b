"""The rows of csrc/aten.cpp from Python, for a torch that it was not built for.

The same calls are covered, with the same bits, at tens of microseconds more a call. The kernels are registered for
BackendSelect, and for good, as there.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .aten_rules import EAGER_RULES, GRAPH_RULES, WHY, WRITING, Torchs, evaluate, overload

_Key = torch._C.DispatchKey
_DEVICES = {_Key.CUDA: 1, _Key.CPU: 2}


def _results(name: str, *args: Any, **kwargs: Any) -> Any:
    made = (EAGER_RULES.get(name) or GRAPH_RULES[name])(*args, **kwargs)
    results = evaluate(made, lambda call, values: call.op(*values), lambda results, i: results[i])
    return tuple(results) if isinstance(made, list) and not name.startswith("_foreach") else results


def _fits(out: Tensor, result: Tensor) -> bool:
    """Whether `out` takes the result as it is, or is empty and can be resized without a word."""
    if out.dtype != result.dtype or out.device != result.device or torch._debug_has_internal_overlap(out) != 0:
        return False
    return out.shape == result.shape or out.numel() == 0


def _writing(name: str) -> Callable[..., Any]:
    """Of an overload that writes."""
    functional, names, by_out = WRITING[name]
    schema = overload(name)._schema

    def serve(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
        outs = [given[key] for key in names]
        if by_out and given.get("dtype") is None:
            given["dtype"] = outs[0].dtype
        first = schema.arguments[0].name
        rest = {key: value for key, value in given.items() if key != first and key not in names}
        results = _results(functional, given[first], **rest)
        results = results if isinstance(results, tuple) else (results,)
        if not all(_fits(out, result) for out, result in zip(outs, results, strict=True)):
            raise Torchs("out")
        for out, result in zip(outs, results, strict=True):
            out.resize_(result.shape).copy_(result)
        return None if not schema.returns else outs[0] if len(outs) == 1 else tuple(outs)

    return serve


class Rows:
    def __init__(self) -> None:
        self._devices = 0
        self._calls = {name: dict.fromkeys(WHY, 0) for name in (*EAGER_RULES, *WRITING)}
        self._library = torch.library.Library("aten", "IMPL")
        for name in EAGER_RULES:
            self._add(name, lambda *args, _name=name, **kwargs: _results(_name, *args, **kwargs))
        for name in WRITING:
            self._add(name, _writing(name))

    def enable(self, devices: int) -> None:
        self._devices = devices

    def coverage(self) -> dict[str, dict[str, int]]:
        return {name: dict(calls) for name, calls in self._calls.items()}

    def _add(self, name: str, serve: Callable[..., Any]) -> None:
        aten, calls = overload(name), self._calls[name]

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            below = keys.remove(_Key.BackendSelect)
            if self._devices:
                try:
                    if not self._devices & _DEVICES.get(below.highestPriorityTypeId(), 0):
                        raise Torchs("kind")
                    result = serve(*args, **kwargs)
                    calls["served"] += 1
                    return result
                except Torchs as why:
                    calls[str(why)] += 1
            return aten.redispatch(below, *args, **kwargs)

        self._library.impl(name, kernel, "BackendSelect", with_keyset=True)
