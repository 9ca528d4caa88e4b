"""Call the bare kernels without torch's dispatcher, which takes half of the host's time of a call on a small tensor.

For each op, `direct` of csrc/binding/python_direct.cpp makes functions that run the kernel if all tensors are plain: if
none has a gradient to record, and no mode, transform, tracer or profiler is at work. Calls of the overloads .raw and
.default, including those in Inductor's code, try it before they go to the dispatcher. A function of its own is for
arguments that nothing has checked. It also records the gradients of the ops that csrc/binding/aten.cpp lists rules of
(record_of); so does one for calls that need a gradient. If there is no `_aten` for this torch, the overloads stay as
torch made them, and the function for unchecked arguments handles no call.
"""

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import Parameter

from .. import _C

# torch's numbers of its dtypes.
NUMBERS = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6,
    torch.float64: 7, torch.bool: 11, torch.bfloat16: 15,
}  # fmt: skip


def aten_path() -> Path:
    """Return the path of `_aten` for this torch."""
    release = re.sub(r"\+(cpu|cu\d+|rocm[\d.]+|xpu)$", "", torch.__version__)  # as setup.py's torch_release
    return Path(__file__).parents[1].joinpath(f"_aten.torch-{release}.so")


def _connect() -> bool:
    """Whether direct calls are available: `_aten` for this torch, and torch's function for a tensor's handle."""
    handle_of = getattr(getattr(torch._C, "_aoti", None), "unsafe_alloc_void_ptr_from_tensor", None)
    try:
        aten = ctypes.CDLL(str(aten_path()))
    except OSError:  # enable() says what is missing
        return False
    if handle_of is None:
        return False
    addresses = {
        name: ctypes.cast(getattr(aten, f"torchreduce_aten_{name}"), ctypes.c_void_p).value or 0
        for name in ("kind_of", "record_of", "wrap")
    }
    _C.use_torch(torch.Tensor, Parameter, NUMBERS, handle_of, **addresses)
    return True


_connected = _connect()


def _never(*args: Any) -> None:
    pass


def _turn_over() -> None:
    """Make calls of the overloads from Python try the direct call first."""
    for name in _C.direct_names():
        packet = getattr(torch.ops.torchreduce, name)
        for overload in {packet.raw, getattr(packet, "default", packet.raw)}:
            overload._op = _C.direct(name, overload._op)


if _connected:
    _turn_over()


def are_plain(*arguments: Any) -> bool:
    """Return whether those that are tensors are plain, as a direct call asks; False where there are no direct calls."""
    return _connected and _C.are_plain(*arguments)


def raw(name: str) -> Callable[..., Any]:
    """Return what the overload .raw of an op calls: the kernel for plain arguments, else the dispatcher."""
    return getattr(torch.ops.torchreduce, name).raw._op  # type: ignore[no-any-return]


def plain(name: str, first: bool = False) -> Callable[..., Any]:
    """Return the same for unchecked arguments; gradients are recorded if there is a rule. Its calls return None if the
    arguments are not plain but for that, or are invalid; if `first`, else the first result alone."""
    return _C.direct(name, None, records=True, first=first) if _connected else _never


def recorded(name: str, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Return what records an op's gradient in C++ if it can, else calls `otherwise`."""
    return _C.direct(name, otherwise, records=True) if _C.records(name) else otherwise
