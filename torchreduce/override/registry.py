"""What is registered with torch to override its functions: csrc/binding/aten.cpp's, or from Python."""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .._core.direct import aten_path

lock = threading.Lock()  # of all that is below
rows: Any = None  # once it is registered


class Rows:
    """Those of csrc/binding/aten.cpp."""

    def __init__(self, path: Path) -> None:
        from .above import Above

        self._library = ctypes.CDLL(str(path))
        self._library.torchreduce_aten_name.restype = ctypes.c_char_p
        self._library.torchreduce_aten_why.restype = ctypes.c_char_p
        self._library.torchreduce_aten_calls.restype = ctypes.c_uint64
        self._library.torchreduce_aten_register()
        self._above = Above()
        self._library.torchreduce_aten_register_above()
        self._above.registered()
        self.trace = self._library.torchreduce_aten_trace
        self.enable = self._library.torchreduce_aten_enable
        self.register_products = self._library.torchreduce_aten_register_products

    def names(self) -> list[str]:
        return [
            self._library.torchreduce_aten_name(row).decode() for row in range(self._library.torchreduce_aten_rows())
        ]

    def exclude(self, overloads: frozenset[str]) -> None:
        """Leave these to torch, and no others."""
        for row, name in enumerate(self.names()):
            self._library.torchreduce_aten_exclude(row, name in overloads)

    def coverage(self) -> dict[str, dict[str, int]]:
        why: list[str] = []
        while name := self._library.torchreduce_aten_why(len(why)):
            why.append(name.decode())
        calls = self._library.torchreduce_aten_calls
        return self._above.added(
            {name: {w: calls(row, i) for i, w in enumerate(why)} for row, name in enumerate(self.names())}
        )


def register() -> Any:
    """Override torch functions by the `_aten` built for this torch, or from Python if there is none."""
    path = aten_path()
    if path.exists():
        return Rows(path)
    from . import python

    return python.Rows()


def registered() -> Any:
    """Return what is registered; register it first if needed."""
    global rows
    with lock:
        if rows is None:
            rows = register()
    return rows


@contextmanager
def traced(devices: int) -> Iterator[None]:
    """Apply the override above autograd to what a compiler traces on this thread, whether it is enabled or not."""
    trace = registered().trace
    before = trace(devices)
    try:
        yield
    finally:
        trace(before)
