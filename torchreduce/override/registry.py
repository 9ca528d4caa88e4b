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
        self._library.torchreduce_aten_register()
        self._above = Above()
        self._library.torchreduce_aten_register_above()
        self._above.registered()
        self.trace = self._library.torchreduce_aten_trace
        self.enable = self._library.torchreduce_aten_enable
        self.register_products = self._library.torchreduce_aten_register_products
        self._why: list[str] = []
        while name := self._library.torchreduce_aten_why(len(self._why)):
            self._why.append(name.decode())

    def names(self) -> list[str]:
        return [
            self._library.torchreduce_aten_name(row).decode() for row in range(self._library.torchreduce_aten_rows())
        ]

    def exclude(self, overloads: frozenset[str]) -> None:
        """Leave these to torch, and no others."""
        for row, name in enumerate(self.names()):
            self._library.torchreduce_aten_exclude(row, name in overloads)

    def counts(self) -> list[int]:
        """The calls of all rows, one after the other, by why."""
        counted = (ctypes.c_uint64 * (len(self._why) * self._library.torchreduce_aten_rows()))()
        self._library.torchreduce_aten_counts(counted)
        return [*counted, *self._above.counts()]

    def places(self) -> list[tuple[str, str]]:
        """What counts() counts, in its order: the overloads, and why."""
        return [(name, why) for name in self.names() for why in self._why] + self._above.places()

    def coverage(self) -> dict[str, dict[str, int]]:
        return covered(self.places(), self.counts())


def covered(places: list[tuple[str, str]], counts: list[int]) -> dict[str, dict[str, int]]:
    """The calls of each overload, by why. It may have several places."""
    rows: dict[str, dict[str, int]] = {}
    for (name, why), n in zip(places, counts, strict=True):
        row = rows.setdefault(name, {})
        row[why] = row.get(why, 0) + n
    return rows


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
