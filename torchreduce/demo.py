"""The demo: every function of one tensor on a dozen shapes, error and time beside torch's, and whether the bits keep
the promises."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

import torchreduce

from . import _C
from .table import DTYPES, FLOATS, KEEPING_SHAPE, OPS
from .testing import assert_bitwise_equal, make_input

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

# What is shown, and the dtypes it takes: not what counts, nor all that sums or multiplies. Of max and min those with
# dim; of rows that are looked at twice three.
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
        """With keepdim, so that dims keep their places."""
        keep = {} if self.function in ALONG_ONE_DIM else {"keepdim": True}
        out = getattr(torchreduce, self.function)(x, dim, **keep, **self.options)
        return (out,) if isinstance(out, Tensor) else tuple(out)

    def torchs(self, x: Tensor) -> Tensor:
        """torch's values, or indices where they are all it returns; without keepdim, several dims flattened for it."""
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
    """Bit for bit."""
    try:
        assert_bitwise_equal(a, b)
    except AssertionError:
        return False
    return True


def alone_as_in_batch(case: Case, x: Tensor, result: tuple[Tensor, ...]) -> bool:
    """Three rows alone against the same rows among all; where x is one row, against x as one of three."""
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
    """The time of a call: the least mean over a round of calls, of as many rounds as fit the budget, at least two."""
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
    """Returns when all calls have run."""
    if device == "cuda":
        torch.cuda.synchronize()


def measure(case: Case, device: str) -> tuple[list[str], list[bool]]:
    """A row of the table, and its bit checks."""
    x = case.x.to(device)
    result = case.ours(x, case.dim)
    checks = [
        all(same(case.ours(x, case.dim), result) for _ in range(3)),
        alone_as_in_batch(case, x, result),
    ]
    if device != "cpu":
        checks.append(same(case.ours(case.x, case.dim), result))
    ours, torchs = errors(case, [result[0], case.torchs(x)])
    shown = [f"{e:.1e}" if e else "0" for e in (ours, torchs)]
    times = [seconds(lambda: case.ours(x, case.dim), device), seconds(lambda: case.torchs(x), device)]
    marks = ["[green]same" if ok else "[bold red]DIFFER" for ok in checks] + ["-"] * (3 - len(checks))
    dtype = str(x.dtype).removeprefix("torch.")
    row = [device, case.function, "x".join(map(str, x.shape)), str(case.dim), dtype, *shown, *marks]
    return [*row, *(f"{1e6 * t:.0f}" for t in times)], checks


def run(only: str | None) -> int:
    """Prints the table of the devices there are (or of one), and a summary. 1 if a bit check failed, else 0."""
    start = time.perf_counter()
    devices = [only] if only else ["cpu", "cuda"] if gpu_usable() else ["cpu"]
    calls = [
        (function, shape, dim[-1] if function in ALONG_ONE_DIM and isinstance(dim, tuple) else dim, dtype, seed)
        for function, dtypes in FUNCTIONS.items()
        for seed, (shape, dim, dtype) in enumerate(SHAPES)
        if dtype in dtypes
    ]
    table = Table(title=f"torchreduce {torchreduce.__version__} beside torch {torch.__version__}")
    for heading in ("device", "function", "shape", "dim", "dtype"):
        table.add_column(heading)
    numbers = (
        "largest\nerror",
        "torch's",
        "run to\nrun",
        "alone or\nin batch",
        "CPU and\nGPU",
        "time\n(us)",
        "torch's",
    )
    for heading in numbers:
        table.add_column(heading, justify="right")
    console, checks = Console(), list[bool]()
    if not console.is_terminal:
        console = Console(width=140)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("running", total=len(devices) * len(calls))
        for device in devices:
            for i, (function, shape, dim, dtype, seed) in enumerate(calls):
                progress.update(task, description=f"{function} on {device}", advance=1)
                row, row_checks = measure(Case(function, elements(function, shape, dtype, seed), dim), device)
                last = i + 1 == len(calls) or calls[i + 1][0] != function
                table.add_row(*row, end_section=last)
                checks += row_checks
    console.print(table)
    where = " and ".join([_C.instruction_set() if d == "cpu" else torch.cuda.get_device_name() for d in devices])
    failed = checks.count(False)
    verdict = (
        f"[bold red]{failed} of {len(checks)} bit checks failed"
        if failed
        else f"[green]all {len(checks)} bit checks passed"
    )
    console.print(f"{verdict}[/], {table.row_count} calls on {where}, in {time.perf_counter() - start:.0f} s")
    return 1 if failed else 0
