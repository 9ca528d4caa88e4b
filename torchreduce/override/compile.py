"""Override torch functions in torch.compile. The backend "torchreduce" always overrides them. After
enable(compile=True), torch.compile's own backend, Inductor, overrides them while the override is enabled.

Both are Inductor with a pass of torchreduce's (graph.py) before its own passes.
"""

import copy
import sys
from typing import Any

import torch

from . import state
from .registry import traced

_EVERYWHERE = 3  # devices, as in override.py


def backend(graph: Any, inputs: Any, *, mode: str | None = None, options: Any = None) -> Any:
    """Compile a graph for torch.compile(f, backend="torchreduce"): Inductor with the override, on every device.

    mode and options are Inductor's.
    """
    inductor = _inductor()
    return _compile(_plain or inductor.__call__, inductor(mode, options, None), graph, inputs, _EVERYWHERE, "")


_plain: Any = None  # _TorchCompileInductorWrapper.__call__, once it is replaced by ours


def _inductor() -> Any:
    try:
        return torch._TorchCompileInductorWrapper
    except AttributeError:
        raise RuntimeError(
            f"enable(): torchreduce knows no way into torch.compile of torch {torch.__version__}; use "
            "enable(compile=False) to override eager calls only"
        ) from None


def install() -> None:
    """Replace torch.compile's call of Inductor, once. It runs in every compilation.

    This includes compilations that a cache answers, in which no pass runs that could set the guard.
    """
    global _plain
    inductor = _inductor()
    if _plain is not None:
        return
    _plain = plain = inductor.__call__

    def follow(self: Any, graph: Any, inputs: Any, **options: Any) -> Any:
        from .graph import guard_switch

        guard_switch()
        if not state.compiled:
            return plain(self, graph, inputs, **options)
        return _compile(plain, self, graph, inputs, state.compiled, state.excluded, **options)

    inductor.__call__ = follow
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()  # what was compiled before has no guard


def _compile(plain: Any, wrapper: Any, graph: Any, inputs: Any, devices: int, excluded: str, **options: Any) -> Any:
    """Compile by Inductor, with torchreduce's pass, and then the user's own pass if there is one."""
    from .graph import Rewrite, whole

    key = "joint_custom_pre_pass"
    own = wrapper.config.get(key, getattr(torch._inductor.config, key))
    after = own if isinstance(own, (list, tuple)) else [] if own is None else [own]
    wrapper = copy.copy(wrapper)
    wrapper.config = {**wrapper.config, key: Rewrite(devices, excluded, tuple(after))}
    with whole(devices), traced(devices):
        return plain(wrapper, graph, inputs, **options)
