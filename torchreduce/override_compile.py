"""How torch.compile is turned over: by the backend "torchreduce", whatever the switch says, or by enable(compile=True),
after which torch.compile's own backend, Inductor, follows the switch.

Both are Inductor with a pass of ours (override_graph.py) in front of its own ones.
"""

import copy
import sys
from typing import Any

import torch

from . import override

_EVERYWHERE = 3  # devices, as in override.py


def backend(graph: Any, inputs: Any, *, mode: str | None = None, options: Any = None) -> Any:
    """torch.compile(f, backend="torchreduce"): Inductor, with torch's reductions turned over on every device.

    mode and options as for Inductor.
    """
    inductor = _inductor()
    return _compile(_plain or inductor.__call__, inductor(mode, options, None), graph, inputs, _EVERYWHERE)


_plain: Any = None  # _TorchCompileInductorWrapper.__call__, once ours stands in its place


def _inductor() -> Any:
    try:
        return torch._TorchCompileInductorWrapper
    except AttributeError:
        raise RuntimeError(
            f"torchreduce knows no way into torch.compile of torch {torch.__version__}; enable(compile=False) turns "
            "over what is not compiled"
        ) from None


def install() -> None:
    """Once: stands in torch.compile's way to Inductor, which it takes on every compilation.

    Also on one that caches serve, where no pass runs that could see to the guard.
    """
    global _plain
    inductor = _inductor()
    if _plain is not None:
        return
    _plain = plain = inductor.__call__

    def follow(self: Any, graph: Any, inputs: Any, **options: Any) -> Any:
        from .override_graph import guard_switch

        guard_switch()
        if not override._compiled:
            return plain(self, graph, inputs, **options)
        return _compile(plain, self, graph, inputs, override._compiled, **options)

    inductor.__call__ = follow
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()  # what was compiled before has no guard


def _compile(plain: Any, wrapper: Any, graph: Any, inputs: Any, devices: int, **options: Any) -> Any:
    """By Inductor, with our pass, and then the user's own one if there is one."""
    from .override_graph import Rewrite, whole

    key = "joint_custom_pre_pass"
    own = wrapper.config.get(key, getattr(torch._inductor.config, key))
    after = own if isinstance(own, (list, tuple)) else [] if own is None else [own]
    wrapper = copy.copy(wrapper)
    wrapper.config = {**wrapper.config, key: Rewrite(devices, tuple(after))}
    with whole(), override.traced(devices):
        return plain(wrapper, graph, inputs, **options)
