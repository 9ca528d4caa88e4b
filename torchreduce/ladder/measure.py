"""What the ladder shows of a rung: whether it is right, which promises it keeps, and how fast it is."""

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from .. import _C
from .._tools.bench import REPLAYED_BELOW, Run, Timed, percentile, replayed, rotation, take_turns, waited
from . import build
from .calls import checked, emulation, launch, run, stream
from .catalog import PEERS, Rung

RUNS = 100  # of a rung, to count the different results; in the emulation EMULATED_RUNS, each by another schedule
EMULATED_RUNS = 10
SEVERAL = 1_000_003  # elements of those runs, on a GPU


@dataclass(frozen=True)
class Promises:
    """Numbers of different results, bit for bit; 0 where nothing was tried."""

    runs: int  # over RUNS runs
    blocks: int  # over the sizes of a block, of the input that shows most
    as_on_cpu: bool  # bitwise identical to torch.sum, amax or cumsum on the CPU; torchreduce: to its own


@dataclass(frozen=True)
class Times:
    """Seconds: the median, a fifth and four fifths; and from the host's memory to the result, where that was timed."""

    p20: float
    p50: float
    p80: float
    system: float | None = None


@dataclass(frozen=True)
class Row:
    """A rung, run at n elements. No times: nothing was measured. No promises: not tried at this n."""

    rung: Rung
    n: int
    launches: int | None
    right: bool
    promises: Promises | None
    times: Times | None


def bytes_of(op: str, n: int) -> int:
    """The least that goes through memory: the input once and, of a scan, the result."""
    return 4 * n * (2 if op == "scan" else 1)


def combining(op: str) -> str:
    """The op that combines: scans are of sums."""
    return "sum" if op == "scan" else op


def serves(rung: Rung, cuda: bool) -> bool:
    """Whether it is there, on this machine and in this build."""
    if rung.name == "cub":
        return cuda and not torch.version.hip
    if rung.name == "torchreduce":
        return not cuda or bool(_C.build_info()["archs"])
    return rung.name != "torch.compile" or (cuda and importlib.util.find_spec("triton") is not None)


# ---- right -----------------------------------------------------------------------------------------------------------


def checkable(dtype: torch.dtype, n: int, device: str, seed: int = 0) -> Tensor:
    """Random integers: of float32 so small that no order of adding rounds anything; of int32 over the whole range, so
    that sums wrap around. So results are the reference's bit for bit, in whatever order they came about."""
    generator = torch.Generator(device).manual_seed(seed)
    low, high = (-4, 5) if dtype is torch.float32 else (-(2**31), 2**31 - 1)
    return torch.randint(low, high, (n,), generator=generator, device=device, dtype=torch.int32).to(dtype)


def reference(x: Tensor, op: str) -> Tensor:
    """What a rung has to give for checkable x, by torch in a type that nothing is lost in."""
    if op == "max":
        return x.amax()
    wide = torch.float64 if x.dtype is torch.float32 else torch.int32 if op == "scan" else torch.int64
    return (x.cumsum(0, dtype=wide) if op == "scan" else x.sum(dtype=wide)).to(x.dtype)


def one(rung: Rung, x: Tensor, op: str, block: int | None = None) -> Tensor:
    return run(rung.name, x, combining(op), block=block, scans=op == "scan")


# ---- promises --------------------------------------------------------------------------------------------------------


def different(results: Iterable[Tensor]) -> int:
    """How many of them are there, bit for bit?"""
    seen: list[Tensor] = []
    for result in results:
        bits = result.view(torch.int32)
        if not any(torch.equal(bits, other) for other in seen):
            seen.append(bits)
    return len(seen)


def random(dtype: torch.dtype, n: int, device: str, seed: int = 0) -> Tensor:
    """Sums of these depend on their order, where they are floats."""
    if dtype is torch.int32:
        return checkable(dtype, n, device, seed)
    return torch.randn(n, generator=torch.Generator(device).manual_seed(seed), device=device)


def on_cpu(rung: Rung, x: Tensor, op: str) -> Tensor:
    """By the CPU: of torchreduce its own function, of all others torch's."""
    return one(rung if rung.name == "torchreduce" else PEERS["torch"], x.cpu(), op)


def promises(rung: Rung, op: str, dtype: torch.dtype, n: int, device: str) -> Promises:
    """On a GPU at SEVERAL elements, or at the rung's limit; in the emulation at n."""
    n = min(SEVERAL if device == "cuda" else n, rung.limit or 2**62)
    x = random(dtype, n, device)
    if device == "cuda" or rung.name in PEERS:
        repeated = (one(rung, x, op) for _ in range(RUNS))
    else:
        kind = combining(op), False, rung.block
        repeated = (emulation().run(rung, x, *kind, seed=seed)[0] for seed in range(EMULATED_RUNS))
    blocks = rung.blocks if len(rung.blocks) > 1 else ()
    several = [random(dtype, n, device, seed) for seed in range(3)]  # that rounding makes no difference for one is luck
    return Promises(
        different(repeated),
        max(different(one(rung, y, op, block) for block in blocks) for y in several),
        all(different((one(rung, y, op).cpu(), on_cpu(rung, y, op))) == 1 for y in several),
    )


# ---- how fast --------------------------------------------------------------------------------------------------------


def times(rungs: list[Rung], op: str, dtype: torch.dtype, n: int, system: bool = False) -> dict[str, Times]:
    """Of rungs that serve n elements, on the GPU, taking turns; short ones from graphs, as _tools.bench does.

    A rung that writes to its input gets a copy, whose time is subtracted. system: also from the host's memory, which is
    pageable, to the result on the host."""
    nbytes = bytes_of(op, n)
    short = nbytes < REPLAYED_BELOW
    inputs = [random(dtype, n, "cuda", seed) for seed in range(rotation(nbytes) if short else 1)]

    def timed(function: Callable[[Tensor], Tensor]) -> Run | Timed:
        function(inputs[0])  # compiles and loads
        return replayed(function, inputs) if short else partial(function, inputs[0])

    calls = {rung.name: timed(partial(one, rung, op=op)) for rung in rungs}
    if any(rung.in_place for rung in rungs):
        calls["copy"] = timed(torch.clone)
    found = take_turns(calls, "cuda", budget=0.15)
    result = {}
    for rung in rungs:
        less = percentile(found["copy"], 50) if rung.in_place else 0.0
        p20, p50, p80 = (percentile(found[rung.name], p) - less for p in (20, 50, 80))
        result[rung.name] = Times(p20, p50, p80, whole(rung, op, inputs[0]) if system else None)
    return result


def whole(rung: Rung, op: str, x: Tensor) -> float:
    """Seconds from x in the host's memory to a result there, once."""
    host = x.cpu()
    return waited(lambda: one(rung, host.cuda(), op).cpu(), "cuda")


def ceiling(op: str, n: int) -> float:
    """GB/s of the fastest plain read of n elements of 4 bytes on this card; for scans of the fastest copy, torch's
    among them."""
    copies, nbytes = op == "scan", 4 * n // 16 * 16
    short = bytes_of(op, n) < REPLAYED_BELOW
    inputs = [random(torch.int32, n, "cuda", seed) for seed in range(rotation(nbytes) if short else 1)]

    def function(way: int, x: Tensor) -> Tensor:
        to = torch.empty_like(x if copies else x[:4])
        checked(build.library().ladder_ceiling(copies, way, x.data_ptr(), to.data_ptr(), nbytes, stream()))
        return to

    calls: dict[str, Run | Timed] = {}
    for way in range(build.library().ladder_ceilings()):
        this = partial(function, way)
        this(inputs[0])
        calls[str(way)] = replayed(this, inputs) if short else partial(this, inputs[0])
    if copies:
        calls["torch"] = replayed(torch.clone, inputs) if short else partial(torch.clone, inputs[0])
    fastest = min(percentile(found, 50) for found in take_turns(calls, "cuda", budget=0.1).values())
    return bytes_of(op, n) / fastest / 1e9


# ---- a row -----------------------------------------------------------------------------------------------------------


def row(rung: Rung, op: str, dtype: torch.dtype, n: int, device: str, want: Promises | None = None) -> Row:
    """Checked, and with its promises unless they are given; not timed."""
    x = checkable(dtype, n, device)
    expected = reference(x, op)
    launches = None
    if rung.name in PEERS:
        right = bool(torch.equal(one(rung, x, op), expected))
    elif device == "cuda":
        result, launches = launch(rung, x, combining(op), False, rung.block)
        right = bool(torch.equal(result.reshape(expected.shape), expected))
    else:
        both = [emulation().run(rung, x, combining(op), False, rung.block, wave) for wave in (32, 64)]
        launches = both[0][1]
        right = all(torch.equal(result.reshape(expected.shape), expected) for result, _ in both)
    del x, expected
    return Row(rung, n, launches, right, want or promises(rung, op, dtype, n, device), None)
