"""Override torch functions with torchreduce's: enable(), disable(), `with enabled():`, coverage().

The override applies to the whole process, since autograd runs the backward passes of GPUs in threads of its own. It may
be enabled or disabled while other threads compute: each call reads the state once, and runs wholly in torchreduce or
wholly in torch. The first enable() registers the kernels, which stay registered; call it before other threads compute.
"""

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import ContextDecorator
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

import torch

from . import registry, state
from .table import SCATTERED

Products = bool | Literal["float32"]
_was_on = False  # before
_has_products = False  # registered, too


@dataclass(eq=False)
class _Said:
    """By enable() and disable(), outside of all blocks of enabled() or in an open one."""

    eager: int = 0
    compiled: int = 0
    excluded: tuple[str, ...] = ()  # scatters


_said = [_Said()]  # the last one counts; blocks may close in any order, as those of several threads do


def enable(*, cpu: bool = False, compile: bool = True, products: Products = False, exclude: Sequence[str] = ()) -> None:
    """Override torch's reductions, scans, scatters, softmax, losses and norms with torchreduce's.

    The override applies to calls on CUDA and ROCm tensors, and with cpu=True also on CPU tensors. It covers Tensor
    methods, torch.nn, gradients and calls from other libraries. Unsupported calls (other dtypes, layouts or subclasses,
    invalid arguments) fall back to torch and behave as before. coverage() counts the calls of both kinds.

    With compile=True, graphs that torch.compile compiles from now on are overridden, too; graphs that were compiled
    before are discarded.

    With products=True, matrix products of float16 and bfloat16 (mm, addmm, bmm, matmul, linear and the like) on NVIDIA
    GPUs of compute capability 9.0 or later are computed in one order, too: row i of x @ w depends on that row, w, the
    GPU model and the version of cuBLASLt, not on the other rows. products="float32" includes float32, which is slower
    for few rows, and never TF32 then. With cpu=True, products on the CPU are covered, too, and take longer. A product
    raises RuntimeError if the device's library has no algorithm that keeps the order. Products on other GPUs are
    torch's.

    exclude has the names of scatters that are left to torch, whose atomics are faster for single elements that go to
    many places: index_add, scatter_add, scatter_reduce, index_reduce, scatter, index_put, put, embedding_bag, bincount,
    segment_reduce. On a CPU torch's own index_add calls scatter_add.

    The override holds for the process until disable(). In a process that starts anew, such as a
    worker, set TORCHREDUCE_ENABLE=1 (or cpu, to include CPU tensors): importing torchreduce then enables the override.

    >>> import torch, torchreduce
    >>> torchreduce.enable(cpu=True, compile=False)
    >>> columns = torch.randn(1000, 64)
    >>> bool((columns.sum(0)[5:6] == columns[:, 5:6].sum(0)).all())
    True
    >>> torchreduce.disable()
    """
    _say(_options(cpu, compile, products, exclude))


def disable() -> None:
    """Disable the override: torch functions use torch's own kernels again.

    Graphs that torch.compile compiled with the override are compiled again.

    >>> import torchreduce
    >>> torchreduce.disable()
    """
    _say(_Said())


def _options(cpu: bool, compile: bool, products: Products, exclude: Sequence[str]) -> _Said:
    for argument, value in (("cpu", cpu), ("compile", compile)):
        if type(value) is not bool:
            raise TypeError(f"enable(): argument {argument!r} must be a bool, got {value!r}")
    if type(products) is not bool and products != "float32":
        raise ValueError(f"enable(): argument 'products' must be True, False or 'float32', got {products!r}")
    if isinstance(exclude, str) or not all(isinstance(name, str) for name in exclude):
        raise TypeError(f"enable(): argument 'exclude' must be a sequence of str, got {exclude!r}")
    for name in exclude:
        if name not in SCATTERED:
            raise ValueError(f"enable(): exclude must have names of {', '.join(SCATTERED)}, got {name!r}")
    devices = state.GPU | (state.CPU if cpu else 0) | (state.PRODUCTS if products else 0)
    devices |= state.FLOAT32_PRODUCTS if products == "float32" else 0
    if compile:
        from .compile import install

        install()
    return _Said(devices, devices if compile else 0, tuple(sorted(set(exclude))))


def _say(said: _Said) -> None:
    def change() -> None:
        _said[-1].eager, _said[-1].compiled, _said[-1].excluded = said.eager, said.compiled, said.excluded

    _turn(change)


def _turn(change: Callable[[], None]) -> None:
    """Apply a change of the settings."""
    global _was_on, _has_products
    with registry.lock:
        change()
        state.eager, state.compiled = _said[-1].eager, _said[-1].compiled
        excluded, state.excluded = state.excluded, ",".join(_said[-1].excluded)
        first = not _was_on and state.eager != 0
        _was_on = _was_on or first
        if first and registry.rows is None:
            registry.rows = registry.register()
        if state.eager & state.PRODUCTS and not _has_products:
            registry.rows.register_products()
            _has_products = True
        if registry.rows is not None:
            if excluded != state.excluded:
                registry.rows.exclude(frozenset().union(*(SCATTERED[name] for name in _said[-1].excluded)))
            registry.rows.enable(state.eager)
        _choose_attention()
    if first and not isinstance(registry.rows, registry.Rows):
        warnings.warn(
            f"torchreduce has no _aten for torch {torch.__version__}, so torch functions are overridden from Python: "
            f"results are bitwise identical, but each call takes tens of microseconds longer. Build torchreduce from "
            f"source with this torch to have an _aten for it",
            stacklevel=_frames_above(),
        )


_torchs_flash: bool | None = None  # whether flash attention was on, while products have it off


def _choose_attention() -> None:
    """Keep scaled_dot_product_attention from flash attention while products are overridden: its rows depend on the
    number of queries and keys, and on the batch. Those of cuDNN's and of the memory-efficient kernels do not."""
    global _torchs_flash
    if bool(state.eager & state.PRODUCTS) == (_torchs_flash is not None) or torch.version.hip is not None:
        return
    if state.eager & state.PRODUCTS:
        _torchs_flash = torch.backends.cuda.flash_sdp_enabled()
        torch.backends.cuda.enable_flash_sdp(False)
    else:
        torch.backends.cuda.enable_flash_sdp(bool(_torchs_flash))
        _torchs_flash = None


def _frames_above() -> int:
    """The stacklevel, for who called this function's caller, of the first frame outside of this file."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame, level = frame.f_back, level + 1
    return level


class enabled(ContextDecorator):
    """Context manager or decorator that enables the override in a block.

    Takes the options of enable(). On exit the previous state is restored. The state is that of the process: if several
    blocks are open at once, for example in several threads, the one opened last counts.

    >>> import torch, torchreduce
    >>> with torchreduce.enabled(cpu=True, compile=False):
    ...     total = torch.ones(3).sum()
    >>> total
    tensor(3.)
    """

    def __init__(
        self, *, cpu: bool = False, compile: bool = True, products: Products = False, exclude: Sequence[str] = ()
    ) -> None:
        self._options = (cpu, compile, products, exclude)
        self._open: list[_Said] = []

    def __enter__(self) -> None:
        said = _options(*self._options)
        _turn(lambda: _said.append(said))
        self._open.append(said)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        said = self._open.pop()
        _turn(lambda: _said.remove(said))


def coverage() -> dict[str, dict[str, int]]:
    """Count the calls of each overridden overload, by how they were handled.

    Returns a dict from the overload's name to its counts, of calls made while the override is enabled. "served" counts
    the calls handled by torchreduce. The other keys count calls that fell back to torch, by reason: "kind" (another
    device, or not a dense tensor), "dtype", "dims" (out of range or repeated), "empty" (no elements, and the op has no
    identity), "option" (an unsupported order of a norm, or a loss without a sum) or "out" (another dtype or shape, or
    shared memory).

    >>> import torch, torchreduce
    >>> with torchreduce.enabled(cpu=True, compile=False):
    ...     before = torchreduce.coverage()["sum.dim_IntList"]
    ...     _ = torch.ones(3).sum(), torch.ones(3, dtype=torch.complex64).sum()
    ...     after = torchreduce.coverage()["sum.dim_IntList"]
    >>> after["served"] - before["served"], after["dtype"] - before["dtype"]
    (1, 1)
    """
    return registry.registered().coverage()  # type: ignore[no-any-return]


def follow_environment() -> None:
    """Enable the override as TORCHREDUCE_ENABLE says: 1, cpu, or 0 (or empty) for not."""
    value = os.environ.get("TORCHREDUCE_ENABLE") or "0"
    if value not in ("0", "1", "cpu"):
        raise ValueError(f"TORCHREDUCE_ENABLE: must be one of '0', '1', 'cpu', got {value!r}")
    if value != "0":
        enable(cpu=value == "cpu")
