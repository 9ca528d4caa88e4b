"""Time calls; python -m torchreduce bench compares torchreduce with torch on tensors of the user's choice.

The project's own measurements (benchmarks/) also use `take_turns` and `replayed`.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

import torchreduce

from .. import _C
from ..table import FLOATS, LOOKING_TWICE, OPS

Run = Callable[[], Any]

# ---- timing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timed:
    """What take_turns times: `run` does the work in question `count` times over."""

    run: Run
    count: int = 1
    kept: Any = None  # what the run uses, but does not own


def take_turns(
    calls: dict[str, Run | Timed], device: str, repeats: int = 30, budget: float = 0.25
) -> dict[str, list[float]]:
    """Return sorted seconds by name. Each call runs up to `repeats` times, at least 7 times, otherwise for `budget`
    seconds. It runs 3 times if 7 would take more than a second, and once if one takes more than a second.

    Each call, or one like it, has run before, so compilation and loading are not measured. The calls take turns, so a
    change of the machine's speed affects all of them. On a GPU the rounds are queued without waiting: an event pair
    around a call on an idle GPU would include the launch. So a call must keep the GPU busy for longer than the host
    takes to queue it, some 20 microseconds; use `replayed` for shorter calls.
    """
    timed = {name: call if isinstance(call, Timed) else Timed(call) for name, call in calls.items()}
    first = {name: waited(call.run, device) for name, call in timed.items()}
    rounds = {name: _rounds(seconds, repeats, budget) for name, seconds in first.items()}
    marks: dict[str, list[Any]] = {name: [] for name in timed}
    for name, call in timed.items():
        if rounds[name] > 3:
            call.run()  # gives the host its lead
    for round_ in range(max(rounds.values(), default=0)):
        for name, call in timed.items():
            if round_ < rounds[name] and rounds[name] > 1:
                marks[name].append(_marked(call.run, device))
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = {name: [_between(*pair) for pair in marks[name]] or [first[name]] for name in timed}
    return {name: sorted(s / timed[name].count for s in seconds[name]) for name in timed}


def _rounds(first: float, repeats: int, budget: float) -> int:
    if first > 1:
        return 1
    return 3 if 7 * first > 1 else max(7, min(repeats, int(budget / max(first, 1e-9))))


def waited(run: Run, device: str) -> float:
    """The seconds of one run on the host's clock, until the GPU is done."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _marked(run: Run, device: str) -> tuple[Any, Any]:
    """What _between takes, once the GPU has got there."""
    if device == "cpu":
        start = time.perf_counter()
        run()
        return start, time.perf_counter()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    return begin, end


def _between(begin: Any, end: Any) -> float:
    return float(end - begin) if isinstance(begin, float) else float(begin.elapsed_time(end)) / 1e3


def replayed(run: Callable[[Any], Any], inputs: Sequence[Any]) -> Timed:
    """Capture the runs on these inputs as one CUDA graph, without gaps between launches.

    Every run writes its own results. So if inputs and results together exceed the cache, they are not read from it.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for x in inputs:
            run(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        results = [run(x) for x in inputs]
    del results  # their memory stays the graph's
    return Timed(graph.replay, len(inputs), (run, inputs))


def rotation(nbytes: int) -> int:
    """Return how many runs of so many bytes a graph should have: more than four times the L2 cache, and enough to time;
    at most 64. The smallest runs do stay in the cache, as they would in use."""
    cache = torch.cuda.get_device_properties().L2_cache_size
    return max(20, min(64, -(-4 * cache // nbytes)))


def percentile(times: Sequence[float], p: int) -> float:
    """Of sorted times."""
    return times[0] if len(times) == 1 else statistics.quantiles(times, n=100, method="inclusive")[p - 1]


# ---- python -m torchreduce bench -------------------------------------------------------------------------------------

REPLAYED_BELOW = 1 << 28  # bytes: such calls are so short that launches count; a graph leaves the gaps out


@dataclass(frozen=True)
class Point:
    """A line of the table. Seconds are medians."""

    op: str
    dtype: torch.dtype
    n: int
    nbytes: int
    ours: float
    torchs: float


def operations() -> dict[str, list[str]]:
    """Return the public functions that take (x, dim) here and in torch, and their dtypes."""
    own = [op for op in OPS if op.dims != "all" and op.name in (op.function, "max", "min")]
    offered = [op for op in own if callable(getattr(torch, op.function, None))]
    taken = {op.function: op.inputs for op in offered} | dict.fromkeys(LOOKING_TWICE, FLOATS)
    return {name: [_name(dtype) for dtype in dtypes if dtype is not torch.bool] for name, dtypes in taken.items()}


def measure(op: str, dtype: torch.dtype, n: int, rows: int, device: str) -> Point:
    """Time op over each of `rows` rows of n elements; rows=1 is one dim. Inputs and results count once as bytes."""
    shape, dim = ((n,), 0) if rows == 1 else ((rows, n), 1)

    def make() -> Tensor:
        x = torch.randn(shape, device=device)
        return x.to(dtype) if dtype.is_floating_point else (x * 100).to(dtype)

    def ours(x: Tensor) -> Any:
        return getattr(torchreduce, op)(x, dim)

    def torchs(x: Tensor) -> Any:
        return getattr(torch, op)(x, dim)

    x = make()
    torchs(x)
    result = ours(x)
    results = (result,) if isinstance(result, Tensor) else tuple(result)
    nbytes = sum(t.numel() * t.element_size() for t in (x, *results))
    if device == "cuda" and nbytes < REPLAYED_BELOW:
        inputs = [make() for _ in range(rotation(nbytes))]
        calls: dict[str, Run | Timed] = {"ours": replayed(ours, inputs), "torch": replayed(torchs, inputs)}
    else:
        calls = {"ours": lambda: ours(x), "torch": lambda: torchs(x)}
    times = {name: percentile(t, 50) for name, t in take_turns(calls, device, budget=0.1).items()}
    return Point(op, dtype, n, nbytes, times["ours"], times["torch"])


def plot(points: list[Point], file: Path, where: str) -> None:
    """Plot bandwidth over n, a panel for each op and dtype."""
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys((p.op, p.dtype) for p in points))
    figure = Figure(figsize=(5 * min(3, len(panels)), 3.5 * -(-len(panels) // 3)), layout="constrained")
    axes = figure.subplots(-(-len(panels) // 3), min(3, len(panels)), squeeze=False).flat
    for axis, panel in zip(axes, panels, strict=False):
        line = [p for p in points if (p.op, p.dtype) == panel]
        for label, seconds in (("torchreduce", [p.ours for p in line]), ("torch", [p.torchs for p in line])):
            gb_per_s = [p.nbytes / s / 1e9 for p, s in zip(line, seconds, strict=True)]
            axis.plot([p.n for p in line], gb_per_s, marker="o", label=label)
        axis.set(title=f"{panel[0]} {_name(panel[1])}", xscale="log", xlabel="n", ylabel="GB/s", ylim=(0, None))
        axis.legend()
    for axis in list(axes)[len(panels) :]:
        axis.set_visible(False)
    figure.suptitle(where)
    figure.savefig(file, dpi=120)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def run(ops: list[str], dtypes: list[str], sizes: list[int], rows: int, device: str, file: Path | None) -> None:
    """Measure with a progress bar, print a table, and write the plot if a file is given."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    where = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {_C.instruction_set()}"
    where += f", {torchreduce.get_determinism()!r}"
    points = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("running", total=len(ops) * len(dtypes) * len(sizes))
        for op in ops:
            for dtype in dtypes:
                for n in sizes:
                    progress.update(task, description=f"{op} {dtype} {n}")
                    points.append(measure(op, getattr(torch, dtype), n, rows, device))
                    progress.advance(task)
    what = "one row of n elements" if rows == 1 else f"{rows} rows of n elements"
    table = Table(title=f"torchreduce {torchreduce.__version__} and torch {torch.__version__} on {where}: {what}")
    for heading in ("op", "dtype"):
        table.add_column(heading)
    for heading in ("n", "us", "torch's us", "GB/s", "torch / torchreduce"):
        table.add_column(heading, justify="right")
    for p in points:
        times = (f"{1e6 * p.ours:.1f}", f"{1e6 * p.torchs:.1f}", f"{p.nbytes / p.ours / 1e9:.0f}")
        table.add_row(p.op, _name(p.dtype), str(p.n), *times, f"{p.torchs / p.ours:.2f}")
    console.print(table)
    if file:
        plot(points, file, f"{where}: {what}")
        console.print(f"plot in {file}")
