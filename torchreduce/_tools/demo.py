"""The demo: every function of one tensor on a dozen shapes, compared with torch, and checks that results are bitwise
identical where the promises say so."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

import torchreduce

from .. import _C
from ..table import DTYPES, FLOATS, KEEPING_SHAPE, OPS
from ..testing import assert_bitwise_equal, make_input

Dims = int | tuple[int, ...]

# Shape, dims, dtype. What goes along one dim takes the last of several.
SHAPES: list[tuple[tuple[int, ...], Dims, torch.dtype]] = [
    ((1 << 20,), 0, torch.float32),
    ((1_000_003,), 0, torch.bfloat16),
    ((8, 100_000), 1, torch.float32),
    ((1024, 1024), 1, torch.float32),
    ((1024, 1024), 0, torch.float32),
    ((1024, 1024), 1, torch.float16),
    ((1024, 1024), 0, torch.bfloat16),
    ((50_000, 20), 1, torch.float32),
    ((50_000, 20), 0, torch.float32),
    ((64, 64, 256), (1, 2), torch.float32),
    ((64, 50, 300), 1, torch.float32),
    ((1024, 1024), 1, torch.int32),
]

# The functions that are shown, and their dtypes: no counts, not every sum or product; max and min with dim; three
# row-wise functions.
LEFT_OUT = ("nansum", "prod", "vector_norm")
REDUCTIONS = {
    op.function: DTYPES if op.results else op.inputs
    for op in OPS
    if op.kind == "reduction" and op.fixed is None and op.function not in LEFT_OUT
}
SCANS = {op.function: DTYPES if op.results else op.inputs for op in OPS if op.kind == "scan"}
FUNCTIONS = {**REDUCTIONS, **dict.fromkeys(("softmax", "logsumexp", "var"), FLOATS), **SCANS}
ALONG_ONE_DIM = {*SCANS, *KEEPING_SHAPE}  # and of the input's shape
BUDGET = 0.01  # seconds that a call is timed for


def gpu_usable() -> bool:
    """Whether torch has a GPU and this build kernels for one."""
    return torch.cuda.is_available() and bool(_C.build_info()["archs"])


@dataclass
class Case:
    """One call: function(x, dim, ...)."""

    function: str
    x: Tensor
    dim: Dims

    @property
    def options(self) -> dict[str, Any]:
        """A mean of integers needs a dtype."""
        return {"dtype": torch.float32} if self.function == "mean" and not self.x.dtype.is_floating_point else {}

    def ours(self, x: Tensor, dim: Dims) -> tuple[Tensor, ...]:
        """Call torchreduce's function with keepdim, so that the dims of the result are those of x."""
        keep = {} if self.function in ALONG_ONE_DIM else {"keepdim": True}
        out = getattr(torchreduce, self.function)(x, dim, **keep, **self.options)
        return (out,) if isinstance(out, Tensor) else tuple(out)

    def torchs(self, x: Tensor) -> Tensor:
        """Call torch's function, without keepdim and with several dims flattened. Return values, or else indices."""
        dim = self.dim
        if isinstance(dim, tuple):
            x, dim = x.flatten(dim[0]), dim[0]
        out = getattr(torch, self.function)(x, dim, **self.options)
        return out if isinstance(out, Tensor) else out[0]


def elements(function: str, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Random; of products near 1, so that these stay in range."""
    x = make_input(shape, dtype, seed)
    return x.mul_(0.01).add_(1) if function == "cumprod" and dtype.is_floating_point else x


def errors(case: Case, results: list[Tensor]) -> list[float]:
    """The largest distance of each result (ours, torch's) from what float64 or int64 arithmetic gives."""
    x = case.x.flatten(case.dim[0]) if isinstance(case.dim, tuple) else case.x
    dim = case.dim[0] if isinstance(case.dim, tuple) else case.dim
    wide = x.double() if x.dtype.is_floating_point or case.function == "mean" else x.long()
    if case.function.startswith("arg"):
        exact = getattr(wide, "a" + case.function[3:])(dim)
        results = [wide.gather(dim, r.cpu().reshape(exact.shape).unsqueeze(dim)).squeeze(dim) for r in results]
    else:
        out = getattr(torch, case.function)(wide, dim)
        exact = out if isinstance(out, Tensor) else out[0]
    distances = []
    for result in results:
        r = result.cpu().reshape(exact.shape)
        overflow = r.isinf() & (exact.to(r.dtype) == r)  # the exact result is beyond the dtype's range, too
        distances.append((r.to(exact.dtype) - exact).abs().masked_fill(overflow, 0).max().item())
    return distances


def same(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> bool:
    """Whether a and b are bitwise identical."""
    try:
        assert_bitwise_equal(a, b)
    except AssertionError:
        return False
    return True


def alone_as_in_batch(case: Case, x: Tensor, result: tuple[Tensor, ...]) -> bool:
    """Compare three rows alone with the same rows in the batch; if x is one row, compare it with a batch of three."""
    dims = case.dim if isinstance(case.dim, tuple) else (case.dim,)
    kept = [d for d in range(x.dim()) if d not in dims]
    if not kept:
        batch = case.ours(torch.stack([x, x.flip(0), x]), tuple(d + 1 for d in dims) if len(dims) > 1 else dims[0] + 1)
        return same(result, tuple(r[0] for r in batch)) and same(result, tuple(r[2] for r in batch))
    rows = x.shape[kept[0]]
    return all(
        same(case.ours(x.narrow(kept[0], i, 1), case.dim), tuple(r.narrow(kept[0], i, 1) for r in result))
        for i in (0, rows // 2, rows - 1)
    )


def seconds(call: Callable[[], Any], device: str) -> float:
    """Return the time of a call: the least mean of a round of calls, over at least two rounds within the budget."""
    calls = 20 if device == "cuda" else 1
    call()
    rounds: list[float] = []
    while len(rounds) < 2 or calls * sum(rounds) < BUDGET:
        wait_for(device)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        wait_for(device)
        rounds.append((time.perf_counter() - start) / calls)
    return min(rounds)


def wait_for(device: str) -> None:
    """Wait until all calls have run."""
    if device == "cuda":
        torch.cuda.synchronize()


# The checks of each call; the last one on a GPU only.
CHECKS = ("run to run", "alone or in batch", "CPU and GPU")


@dataclass
class Measured:
    """A call on a device: its checks, and of torchreduce and of torch the largest error and the time in seconds."""

    case: Case
    device: str
    checks: list[bool]
    errors: list[float]
    times: list[float]

    def row(self) -> list[str]:
        """Return the row of the table."""
        x, marks = self.case.x, [marked(not ok, ok) for ok in self.checks]
        facts = [self.device, self.case.function, "x".join(map(str, x.shape)), str(self.case.dim)]
        shown = [f"{e:.1e}" if e else "0" for e in self.errors]
        times = [f"{1e6 * t:.0f}" for t in self.times]
        return [*facts, str(x.dtype).removeprefix("torch."), *shown, *marks, *["-"] * (3 - len(marks)), *times]


def measure(case: Case, device: str) -> Measured:
    """Run the call, check its bits, and time it and torch's."""
    x = case.x.to(device)
    result = case.ours(x, case.dim)
    checks = [
        all(same(case.ours(x, case.dim), result) for _ in range(3)),
        alone_as_in_batch(case, x, result),
    ]
    if device != "cpu":
        checks.append(same(case.ours(case.x, case.dim), result))
    times = [seconds(lambda: case.ours(x, case.dim), device), seconds(lambda: case.torchs(x), device)]
    return Measured(case, device, checks, errors(case, [result[0], case.torchs(x)]), times)


def marked(failed: int, all_passed: bool) -> str:
    """Format the result of checks: "same", or how many of them differ."""
    return "[green]same[/]" if all_passed else f"[bold red]{failed} DIFFER[/]"


HEADING = "device function       calls  " + "  ".join((*CHECKS, "error <= torch", " speedup"))


def line(calls: list[Measured]) -> str:
    """Return the line under HEADING for a function on a device."""
    first = calls[0]
    shown = f"{first.device:7}{first.case.function:15}{len(calls):5}"
    for i, name in enumerate(CHECKS):
        failed = sum(not call.checks[i] for call in calls if i < len(call.checks))
        mark = marked(failed, not failed) if i < len(first.checks) else "-"
        shown += f"  {' ' * (len(name) - len(Text.from_markup(mark)))}{mark}"
    exact = sum(ours <= torchs for ours, torchs in (call.errors for call in calls))
    speed = statistics.geometric_mean(torchs / ours for ours, torchs in (call.times for call in calls))
    return f"{shown}  {f'{exact} of {len(calls)}':>14}  {speed:7.2f}x"


def table_of(calls: list[Measured]) -> Table:
    """Return the table of calls, with a section for each function."""
    table = Table(title="Each call")
    for heading in ("device", "function", "shape", "dim", "dtype"):
        table.add_column(heading)
    checks = (check.replace(" or ", " or\n").replace(" and ", " and\n").replace(" to ", " to\n") for check in CHECKS)
    for heading in ("largest\nerror", "torch's", *checks, "time\n(us)", "torch's"):
        table.add_column(heading, justify="right")
    for call, following in zip(calls, [*calls[1:], None], strict=True):
        last = following is None or following.case.function != call.case.function
        table.add_row(*call.row(), end_section=last)
    return table


def run(only: str | None, table: bool = False) -> int:
    """Print a line for each function on the devices there are (or on one), then a summary; with `table` also each call.
    Return 1 if a check failed, else 0."""
    start = time.perf_counter()
    devices = [only] if only else ["cpu", "cuda"] if gpu_usable() else ["cpu"]
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=140)
    where = " and ".join([_C.instruction_set() if d == "cpu" else torch.cuda.get_device_name() for d in devices])
    console.print(f"torchreduce {torchreduce.__version__} compared with torch {torch.__version__}, on {where}")
    console.print(HEADING)
    measured: list[Measured] = []
    for device in devices:
        for function, dtypes in FUNCTIONS.items():
            calls = [measure(case, device) for case in cases(function, dtypes)]
            console.print(line(calls))
            measured += calls
    if table:
        console.print(table_of(measured))
    checks = [ok for call in measured for ok in call.checks]
    failed, spent = checks.count(False), f"{time.perf_counter() - start:.0f} s"
    if failed:
        console.print(f"[bold red]{failed} of {len(checks)} checks failed[/]: results differ in their bits; {spent}")
        return 1
    ways = "from run to run, alone and in a batch" + ("" if devices == ["cpu"] else ", on CPU and GPU")
    console.print(
        f"[green]All {len(checks)} checks passed[/]: {len(FUNCTIONS)} functions, {len(measured)} calls, "
        f"results bitwise identical {ways}; {spent}"
    )
    return 0


def cases(function: str, dtypes: tuple[torch.dtype, ...]) -> list[Case]:
    """Return the calls of a function: one for each shape whose dtype it supports."""
    one = function in ALONG_ONE_DIM
    return [
        Case(function, elements(function, shape, dtype, seed), dim[-1] if one and isinstance(dim, tuple) else dim)
        for seed, (shape, dim, dtype) in enumerate(SHAPES)
        if dtype in dtypes
    ]
