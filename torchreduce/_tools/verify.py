"""python -m torchreduce verify: compare this build's results with the golden bits, and measure its bandwidth."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import torchreduce

from .. import _C
from ..plans import _FAMILIES
from ..table import BY_NAME
from ..testing import ROWWISE, Golden, check_golden, force_plan, golden_cases, make_input
from .demo import gpu_usable, seconds

# Calls whose bandwidth is reported: on a square of float32, flattened or along one of its dims.
FUNCTIONS = ("sum", "amax", "argmax", "cumsum")
SHAPES = (("one row", 1, 0), ("rows", 2, 1), ("columns", 2, 0))  # heading, dims, dim
MOST_SIDE = {"cpu": 1 << 12, "cuda": 1 << 14}  # larger than the caches


@contextmanager
def _instructions(name: str) -> Iterator[None]:
    """Context manager that uses the CPU kernels of an instruction set."""
    before = _C.instruction_set()
    _C.set_instruction_set(name)
    try:
        yield
    finally:
        _C.set_instruction_set(before)


def _kernels(device: str) -> Iterator[tuple[str, Any, list[Golden]]]:
    """Yield the kernels to check on a device: a name, a context that selects them, and their golden cases. On the CPU:
    each instruction set. On a GPU: the planner's choice, and each kernel variant."""
    cases = golden_cases()
    if device == "cpu":
        for name in _C.instruction_sets():
            yield name, _instructions(name), cases
        return
    yield "as planned", nullcontext(), cases
    kind_of: dict[str, str] = {op.function: op.kind for op in BY_NAME.values()} | dict.fromkeys(ROWWISE, "row-wise op")
    for kind, family in _FAMILIES:
        own = [case for case in cases if kind_of.get(case.function) == kind and "segments" not in case.options]
        shown = kind
        yield f"{shown}s: {family}", force_plan(family=family), own


def _check(context: Any, device: str, cases: list[Golden]) -> tuple[int, list[str]]:
    """Return the number of cases that the kernels support, and the failures; a call that raises is a failure."""
    served, failures = 0, []
    with context:
        for case in cases:
            try:
                failures += check_golden(device, [case])
            except (RuntimeError, ValueError) as error:
                if str(error).startswith("force_plan: "):  # this kernel variant does not support the case or the device
                    continue
                failures.append(f"{case.name}: {error}")
            served += 1
    return served, failures


def _gigabytes_per_second(function: str, dims: int, along: int, device: str) -> float:
    """Return the bandwidth of memory read and written."""
    side = MOST_SIDE[device]
    while device == "cuda" and 16 * side**2 > torch.cuda.mem_get_info()[0]:  # input and results in half of what is free
        side //= 2
    row = make_input((side,), torch.float32, seed=0).to(device)
    x = row.repeat(side, 1) if dims == 2 else row.repeat(side)
    call = getattr(torchreduce, function)
    moved: int = x.nbytes + call(x, along).nbytes
    return moved / seconds(lambda: call(x, along), device) / 1e9


def run(facts: str, only: str | None) -> int:
    """Print the report for all devices (or for one): the given facts, golden bits, failures, bandwidth. Return 1 if a
    case failed, else 0."""
    devices = [only] if only else ["cpu", "cuda"] if gpu_usable() else ["cpu"]
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    console.print(facts, markup=False, highlight=False, soft_wrap=True)

    golden = Table(title="golden bits")
    for heading in ("device", "kernels", "cases", "matched", "failed"):
        golden.add_column(heading, justify="left" if heading in ("device", "kernels") else "right")
    failures, total = [], 0
    kernels = [(device, *kernel) for device in devices for kernel in _kernels(device)]
    for device, name, context, cases in track(kernels, "golden bits", console=console, transient=True):
        served, failed = _check(context, device, cases)
        failures += [f"{device}, {name}: {failure}" for failure in failed]
        total += served
        golden.add_row(device, name, *(str(n) for n in (served, served - len(failed), len(failed))))
    console.print(golden)
    for failure in failures:
        console.print(f"FAILED {failure}", markup=False, highlight=False, soft_wrap=True)

    speed = Table(title="GB/s of float32 read and written")
    for heading in ("device", "function", *(name for name, _, _ in SHAPES)):
        speed.add_column(heading, justify="left" if heading in ("device", "function") else "right")
    calls = [(device, function) for device in devices for function in FUNCTIONS]
    for device, function in track(calls, "bandwidth", console=console, transient=True):
        cells = [f"{_gigabytes_per_second(function, dims, along, device):.1f}" for _, dims, along in SHAPES]
        speed.add_row(device, function, *cells)
    console.print(speed)
    verdict = f"[bold red]{len(failures)} of {total} golden cases FAILED" if failures else f"[green]all {total} matched"
    console.print(f"golden bits, contract {torchreduce.testing.CONTRACT_VERSION}: {verdict}[/]")
    return 1 if failures else 0
