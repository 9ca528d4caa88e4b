"""The bare kernels without torch's dispatcher, which costs half of the host's time of a call on a small tensor.

Two functions serve a call of an op this way, of which each is made by `direct` of csrc/python_direct.cpp. One is what a
call of the overload .raw runs, also one in the code that Inductor writes; the other serves what nothing has checked.
Where there is no `_aten` of this torch, the overload stays as torch made it, and the other serves nothing.
"""

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import Parameter

from . import _C

# torch's numbers of its dtypes.
NUMBERS = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6,
    torch.float64: 7, torch.bool: 11, torch.bfloat16: 15,
}  # fmt: skip


def aten_path() -> Path:
    """Of `_aten` for this torch."""
    release = re.sub(r"\+(cpu|cu\d+|rocm[\d.]+|xpu)$", "", torch.__version__)  # as setup.py's torch_release
    return Path(__file__).with_name(f"_aten.torch-{release}.so")


def _connect() -> bool:
    """Whether the way is there: `_aten` of this torch, and torch's own function for a tensor's handle."""
    handle_of = getattr(getattr(torch._C, "_aoti", None), "unsafe_alloc_void_ptr_from_tensor", None)
    try:
        aten = ctypes.CDLL(str(aten_path()))
    except OSError:  # enable() says what is missing
        return False
    if handle_of is None:
        return False
    is_plain, wrap = (
        ctypes.cast(f, ctypes.c_void_p).value for f in (aten.torchreduce_aten_is_plain, aten.torchreduce_aten_wrap)
    )
    assert is_plain is not None and wrap is not None
    _C.use_torch(torch.Tensor, Parameter, NUMBERS, handle_of, is_plain, wrap)
    return True


_connected = _connect()


def _never(*args: Any) -> None:
    pass


def _turn_over() -> None:
    """A call of an overload .raw from Python tries the direct way first."""
    for name in _C.direct_names():
        overload = getattr(torch.ops.torchreduce, name).raw
        overload._op = _C.direct(name, overload._op)


if _connected:
    _turn_over()


def raw(name: str) -> Callable[..., Any]:
    """What the overload .raw of an op calls: the kernel where the arguments are plain, else the dispatcher."""
    return getattr(torch.ops.torchreduce, name).raw._op  # type: ignore[no-any-return]


def plain(name: str) -> Callable[..., Any]:
    """The same on arguments that nothing has checked: None where they are not plain, or not right."""
    return _C.direct(name, None) if _connected else _never
