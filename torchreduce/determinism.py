"""The determinism switch: which promise the results keep.

"invariant", the default: the bits depend on the data alone (docs/numerics.md). "fast": any order of combining is
allowed, never less than the same bits from run to run; in this version it runs the same code as "invariant".

A level holds for the process (`set_determinism`, or the environment variable TORCHREDUCE_DETERMINISM when the package
is imported) or for the block of a context manager on one thread (`determinism`), which goes first. Every call passes
its level to its op as an argument, so the backward pass and captured graphs use the forward's. torch.compile fixes
the level when it traces and guards on it: a compiled function that is called at another level is traced again.
"""

import os
import threading
from types import TracebackType
from typing import Any, Literal

import torch

Level = Literal["invariant", "fast"]

# What the ops take.
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
    """Sets the level of the process: "invariant" or "fast". Anything else is a ValueError.

    Blocks of `determinism` keep theirs.

    >>> import torchreduce
    >>> torchreduce.set_determinism("invariant")
    """
    global _process_level
    _process_level = _checked(level, "set_determinism()")


def get_determinism() -> str:
    """The level of a call made here and now.

    Under torch.use_deterministic_algorithms(True) that is always "invariant".

    >>> import torchreduce
    >>> torchreduce.get_determinism()
    'invariant'
    """
    level = _thread.level or _process_level
    return "invariant" if level == "fast" and torch.are_deterministic_algorithms_enabled() else level


class determinism:
    """A context manager that sets the level of its block, on this thread: "invariant" or "fast".

    Blocks nest, also those of one object. Anything else than the two is a ValueError. It can be used inside a compiled
    function.

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
    """The level of a call made here and now, as the ops take it."""
    level = _thread.level or _process_level
    return 0 if level == "invariant" or torch.are_deterministic_algorithms_enabled() else 1
