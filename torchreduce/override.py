"""torch's own calls, turned over to torchreduce: enable(), disable(), `with enabled():`, coverage().

The switch is for the process, not for a thread: autograd runs the backward passes of GPUs in threads of its own. A call
reads it once, so it may be turned while other threads compute, and each call is served wholly by one side. The kernels
behind it are registered by the first enable(), which should come before other threads compute, and stay.
"""

import ctypes
import os
import sys
import threading
import warnings
from contextlib import ContextDecorator
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from .direct import aten_path

_GPU, _CPU = 1, 2
_lock = threading.Lock()
_rows: Any = None  # what is registered with torch, once it is
# The devices whose calls are turned over, now: in eager mode, and by torch.compile, whose graphs are guarded by it.
_eager = 0
_compiled = 0


class _Rows:
    """Those of csrc/aten.cpp."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.torchreduce_aten_name.restype = ctypes.c_char_p
        self._library.torchreduce_aten_why.restype = ctypes.c_char_p
        self._library.torchreduce_aten_calls.restype = ctypes.c_uint64
        self._library.torchreduce_aten_register()
        self.enable = self._library.torchreduce_aten_enable

    def coverage(self) -> dict[str, dict[str, int]]:
        why: list[str] = []
        while name := self._library.torchreduce_aten_why(len(why)):
            why.append(name.decode())
        calls = self._library.torchreduce_aten_calls
        return {
            self._library.torchreduce_aten_name(row).decode(): {w: calls(row, i) for i, w in enumerate(why)}
            for row in range(self._library.torchreduce_aten_rows())
        }


def _register() -> Any:
    """torch's calls by `_aten` of this torch, or from Python where there is none."""
    path = aten_path()
    if path.exists():
        return _Rows(path)
    from .override_python import Rows

    return Rows()


def enable(*, cpu: bool = False, compile: bool = True) -> None:
    """Turns torch's own reductions, scans and norms over to torchreduce: on GPUs, and on the CPU if `cpu`.

    Whatever calls them: Tensor methods, torch.nn, gradients, libraries. What torchreduce does not cover goes to torch's
    own kernel, as if nothing had happened: other dtypes, layouts and subclasses, wrong arguments. coverage() tells what
    was served. With `compile`, what torch.compile compiles from now on is turned over, too; that throws away what it
    has compiled before. For the process, until disable(); a worker process that starts anew follows
    TORCHREDUCE_ENABLE=1, or =cpu for the CPU, too, when it imports torchreduce.

    >>> import torch, torchreduce
    >>> torchreduce.enable(cpu=True, compile=False)
    >>> columns = torch.randn(1000, 64)
    >>> bool((columns.sum(0)[5:6] == columns[:, 5:6].sum(0)).all())
    True
    >>> torchreduce.disable()
    """
    devices = _GPU | (_CPU if cpu else 0)
    if compile:
        from .override_compile import install

        install()
    _set(devices, devices if compile else 0)


def disable() -> None:
    """Back to torch's own kernels, and to their bits. What is compiled is compiled again where it was turned over.

    >>> import torchreduce
    >>> torchreduce.disable()
    """
    _set(0, 0)


def _set(eager: int, compiled: int) -> None:
    global _rows, _eager, _compiled
    with _lock:
        first = _rows is None and eager != 0
        if first:
            _rows = _register()
        _eager, _compiled = eager, compiled
        if _rows is not None:
            _rows.enable(eager)
    if first and not isinstance(_rows, _Rows):
        warnings.warn(
            f"torchreduce has no _aten for torch {torch.__version__}, so torch's calls are turned over from Python: "
            f"the same bits, tens of microseconds more a call. Built from source, torchreduce has one for this torch",
            stacklevel=_frames_above(),
        )


def _frames_above() -> int:
    """The stacklevel, for who called this function's caller, of the first frame outside of this file."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame, level = frame.f_back, level + 1
    return level


class enabled(ContextDecorator):
    """A context manager, or a decorator: enable() with these options meanwhile, and then what was before. For the
    process.

    >>> import torch, torchreduce
    >>> with torchreduce.enabled(cpu=True, compile=False):
    ...     total = torch.ones(3).sum()
    >>> total
    tensor(3.)
    """

    def __init__(self, *, cpu: bool = False, compile: bool = True) -> None:
        self._options = {"cpu": cpu, "compile": compile}
        self._outside: list[tuple[int, int]] = []

    def __enter__(self) -> None:
        self._outside.append((_eager, _compiled))
        enable(**self._options)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _set(*self._outside.pop())


def coverage() -> dict[str, dict[str, int]]:
    """For each overload of torch's that is turned over: its calls so far, while enabled, by who served them.

    "served" by torchreduce, or gone on to torch because of "kind" (the device, or what is no dense tensor), "dtype",
    "dims" (out of range, repeated), "empty" (no elements, and no identity), "option" (an order of a norm, a loss that
    nothing sums) or "out" (of another dtype or shape, or sharing memory).

    >>> import torch, torchreduce
    >>> with torchreduce.enabled(cpu=True, compile=False):
    ...     before = torchreduce.coverage()["sum.dim_IntList"]
    ...     _ = torch.ones(3).sum(), torch.ones(3, dtype=torch.complex64).sum()
    ...     after = torchreduce.coverage()["sum.dim_IntList"]
    >>> after["served"] - before["served"], after["dtype"] - before["dtype"]
    (1, 1)
    """
    global _rows
    with _lock:
        if _rows is None:
            _rows = _register()
    return _rows.coverage()  # type: ignore[no-any-return]


def follow_environment() -> None:
    """What TORCHREDUCE_ENABLE says: 1, cpu, or nothing (0, or empty)."""
    value = os.environ.get("TORCHREDUCE_ENABLE") or "0"
    if value not in ("0", "1", "cpu"):
        raise ValueError(f"TORCHREDUCE_ENABLE: must be one of '0', '1', 'cpu', got {value!r}")
    if value != "0":
        enable(cpu=value == "cpu")
