"""The determinism level: what the results guarantee.

"invariant", the default: the bits depend on the data alone (docs/numerics.md). "fast": reductions over several dims add
in the order in which memory has the elements, so the bits of the sum of a permuted or transposed tensor depend on its
strides. They are bitwise identical from run to run, on every device and in every batch. Other ops are the same at both.

The level is set for the process (`set_determinism`, or the environment variable TORCHREDUCE_DETERMINISM when the
package is imported) or for a block on one thread (`determinism`). The block takes precedence. Every call passes its
level to its op as an argument, so the backward pass and captured graphs use the level of the forward pass.
torch.compile traces with the current level and guards on it: a compiled function that is called at another level is
traced again.
"""

import os
import threading
from types import TracebackType
from typing import Any, Literal

import torch

Level = Literal["invariant", "fast"]

# The levels as the ops' argument.
CODES: dict[str, int] = {"invariant": 0, "fast": 1}


def _checked(level: str, source: str) -> str:
    if level not in CODES:
        raise ValueError(f"{source}: the level must be one of {', '.join(map(repr, CODES))}, got {level!r}")
    return level


# Python state rather than C++ state, because that is what torch.compile can read, guard on and trace changes of. Names
# rather than codes, because it may turn an integer that changes into a symbol.
_process_level = _checked(os.environ.get("TORCHREDUCE_DETERMINISM") or "invariant", "TORCHREDUCE_DETERMINISM")


class _Thread(threading.local):
    def __init__(self) -> None:
        self.level = ""  # that of the innermost context manager; empty outside of all
        self.outside: Any = None  # of the innermost one: what was here, and the level


_thread = _Thread()


def set_determinism(level: Level) -> None:
    """Set the determinism level of the process: "invariant" or "fast".

    Blocks of `determinism` keep their own level. Raises ValueError for any other value.

    >>> import torchreduce
    >>> torchreduce.set_determinism("invariant")
    """
    global _process_level
    _process_level = _checked(level, "set_determinism()")


def get_determinism() -> str:
    """Return the current determinism level.

    Under torch.use_deterministic_algorithms(True) it is always "invariant".

    >>> import torchreduce
    >>> torchreduce.get_determinism()
    'invariant'
    """
    level = _thread.level or _process_level
    return "invariant" if level == "fast" and torch.are_deterministic_algorithms_enabled() else level


class determinism:
    """Context manager that sets the determinism level of a block, on this thread.

    level is "invariant" or "fast"; raises ValueError for any other value. Blocks can be nested, also those of one
    object. It can be used inside a compiled function.

    >>> import torchreduce
    >>> with torchreduce.determinism("fast"):
    ...     torchreduce.get_determinism()
    'fast'
    """

    def __init__(self, level: Level) -> None:
        self.level = _checked(level, "determinism()")

    def __enter__(self) -> None:
        _thread.outside = (_thread.outside, _thread.level)
        _thread.level = self.level

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _thread.outside, _thread.level = _thread.outside


def level_code() -> int:
    """Return the current level as the ops' argument."""
    level = _thread.level or _process_level
    return 0 if level == "invariant" or torch.are_deterministic_algorithms_enabled() else 1
