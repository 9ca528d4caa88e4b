"""Override torch functions with torchreduce's: enable(), disable(), is_enabled(), `with enabled():`, coverage().

The override applies to the whole process, since autograd runs the backward passes of GPUs in threads of its own. It may
be enabled or disabled while other threads compute: each call reads the state once, and runs wholly in torchreduce or
wholly in torch. The first enable() registers the kernels, which stay registered; call it before other threads compute.
"""

import functools
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, TypeVar, overload

import torch

from . import registry, state
from .block import within
from .names import function_of, without_namespace
from .promises import COMPOSITIONS, KNOWN
from .promises import promises as promised
from .table import OVERLOADS, SCATTERED

_Function = TypeVar("_Function", bound=Callable[..., Any])

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


def enable(
    *, cpu: bool | None = None, compile: bool = True, products: Products = False, exclude: Sequence[str] = ()
) -> None:
    """Override torch's reductions, scans, scatters, softmax, losses and norms with torchreduce's.

    The override applies to calls on CUDA and ROCm tensors, and with cpu=True also on CPU tensors. Where torch sees no
    GPU, it applies to CPU tensors unless cpu=False. It covers Tensor methods, torch.nn, gradients and calls from other
    libraries. Unsupported calls (other dtypes, layouts or subclasses, invalid arguments) fall back to torch and behave
    as before. coverage() counts the calls of both kinds.

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

    The override holds for the process until disable(); is_enabled() tells. In a process that starts anew, such as a
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


def is_enabled(device: str | torch.device | None = None) -> bool:
    """Return whether torch functions are overridden, for tensors on a device if one is given.

    device is a torch.device or its name, such as "cuda". The result holds for eager calls of this process, now: inside
    a block of enabled() it is that of the block that was opened last.

    >>> import torchreduce
    >>> torchreduce.is_enabled()
    False
    >>> with torchreduce.enabled(cpu=True, compile=False):
    ...     torchreduce.is_enabled("cpu"), torchreduce.is_enabled("mps")
    (True, False)
    """
    if device is None:
        return state.eager != 0
    try:
        kind = torch.device(device).type
    except (RuntimeError, TypeError):
        raise ValueError(f"is_enabled(): argument 'device' must be a device or its name, got {device!r}") from None
    return bool(state.eager & {"cuda": state.GPU, "cpu": state.CPU}.get(kind, 0))


@functools.cache
def _has_gpu() -> bool:
    """Whether torch sees a GPU. torch.cuda.is_available() would start CUDA, which forked processes could not use
    then."""
    return torch.cuda.device_count() > 0


def _options(cpu: bool | None, compile: bool, products: Products, exclude: Sequence[str]) -> _Said:
    cpu = not _has_gpu() if cpu is None else cpu
    for argument, value in (("cpu", cpu), ("compile", compile)):
        if type(value) is not bool:
            raise TypeError(f"enable(): argument {argument!r} must be a bool, got {value!r}")
    if type(products) is not bool and products != "float32":
        raise ValueError(f"enable(): argument 'products' must be True, False or 'float32', got {products!r}")
    is_several = isinstance(exclude, Iterable) and not isinstance(exclude, str)
    if not is_several or not all(isinstance(name, str) for name in exclude):
        raise TypeError(f"enable(): argument 'exclude' must be a sequence of str, got {exclude!r}")
    excluded = {function_of(name, SCATTERED): name for name in exclude}
    for name, given in excluded.items():
        if name not in SCATTERED:
            raise ValueError(f"enable(): exclude must have names of {', '.join(SCATTERED)}, got {given!r}")
    devices = state.GPU | (state.CPU if cpu else 0) | (state.PRODUCTS if products else 0)
    devices |= state.FLOAT32_PRODUCTS if products == "float32" else 0
    if compile:
        from .compile import install

        install()
    return _Said(devices, devices if compile else 0, tuple(sorted(excluded)))


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


class enabled:
    """Context manager or decorator that enables the override in a block.

    Takes the options of enable(). On exit the previous state is restored. The state is that of the process: if several
    blocks are open at once, for example in several threads, the one opened last counts.

    A decorated function enables it in each call. A generator, an async function and an async generator enable it while
    their own code runs, not while they are suspended. In contrast, a block with an await or a yield in it stays open
    for all that runs until it is resumed.

    >>> import torch, torchreduce
    >>> with torchreduce.enabled(cpu=True, compile=False):
    ...     total = torch.ones(3).sum()
    >>> total
    tensor(3.)
    """

    def __init__(
        self, *, cpu: bool | None = None, compile: bool = True, products: Products = False, exclude: Sequence[str] = ()
    ) -> None:
        self._options: Any = {"cpu": cpu, "compile": compile, "products": products, "exclude": exclude}
        self._open: list[_Said] = []

    def __call__(self, function: _Function) -> _Function:
        if inspect.isclass(function) or not callable(function):
            raise TypeError(f"enabled(): decorates functions, got {function!r}; decorate a class's methods")
        return within(function, lambda: enabled(**self._options))  # type: ignore[return-value]

    def __enter__(self) -> None:
        said = _options(**self._options)
        _turn(lambda: _said.append(said))
        self._open.append(said)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        said = self._open.pop()
        _turn(lambda: _said.remove(said))


@overload
def coverage(op: None = None) -> dict[str, dict[str, int]]: ...
@overload
def coverage(op: str) -> dict[str, int]: ...
def coverage(op: str | None = None) -> dict[str, Any]:
    """Count the calls of each overridden overload, by how they were handled.

    Returns a dict from the overload's name to its counts, of calls made while the override is enabled. "served" counts
    the calls handled by torchreduce. The other keys count calls that fell back to torch, by reason: "kind" (another
    device, or not a dense tensor), "dtype", "dims" (out of range or repeated), "empty" (no elements, and the op has no
    identity), "option" (an unsupported order of a norm, say) or "out" (another dtype or shape, or shared memory). Of
    nanmean, cross_entropy_loss, rms_norm and layer_norm, torch makes other calls if they fall back, which count
    themselves. Calls that compute nothing, of meta tensors and in a compiler's trace, do not count.

    With op, returns the counts of one function, all its overloads and gradients together, or of one overload. op is a
    name as promises() takes it: "sum", "torch.sum", "aten::sum", "sum.dim_IntList". Raises ValueError for a function
    that is not overridden, and for one that is made of others, which count instead.

    >>> import torch, torchreduce
    >>> with torchreduce.enabled(cpu=True, compile=False):
    ...     before = torchreduce.coverage("sum")
    ...     _ = torch.ones(3).sum(), torch.ones(3, dtype=torch.complex64).sum()
    ...     after = torchreduce.coverage("sum")
    >>> after["served"] - before["served"], after["dtype"] - before["dtype"]
    (1, 1)
    """
    counts: dict[str, dict[str, int]] = registry.registered().coverage()
    if op is None:
        return counts
    if not isinstance(op, str):
        raise TypeError(f"coverage(): argument 'op' must be a str, got {type(op).__name__}")
    function, exact = function_of(op, KNOWN), without_namespace(op)
    mine = (
        [exact] if "." in exact and exact in OVERLOADS else [n for n in OVERLOADS if function_of(n, KNOWN) == function]
    )
    if not mine and function in COMPOSITIONS:
        parts = ", ".join(repr(part) for part in COMPOSITIONS[function])
        raise ValueError(f"coverage(): {op!r} is made of other functions, whose calls count: {parts}")
    if not mine:
        why = f": {promised(op).eager}" if function in KNOWN else "; see promises()"
        raise ValueError(f"coverage(): {op!r} is not overridden, so its calls are not counted{why}")
    none = dict.fromkeys(next(iter(counts.values())), 0)
    return {why: sum(counts.get(name, none)[why] for name in mine) for why in none}


def follow_environment() -> None:
    """Enable the override as TORCHREDUCE_ENABLE says: 1, cpu (CPU tensors, too), or 0 (or empty) for not."""
    value = os.environ.get("TORCHREDUCE_ENABLE") or "0"
    if value not in ("0", "1", "cpu"):
        raise ValueError(f"TORCHREDUCE_ENABLE: must be one of '0', '1', 'cpu', got {value!r}")
    if value != "0":
        enable(cpu=True if value == "cpu" else None)
