"""python -m torchreduce ladder: the climb as a table and two plots, the list of rungs, and one rung to read."""

import argparse
import csv
import importlib.util
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from .catalog import PEERS, Rung, climb, named, rungs

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from .measure import Row

OPS = ("sum", "max", "scan")
LARGE, EMULATED = 1 << 28, 5000  # elements, unless others are asked for
LEAST_PLOTTED = 1 << 10  # and from there four times as many at a time
FIELDS = ("gpu", "torch", "toolkit", "op", "dtype", "rung", "n", "launches", "p20_us", "p50_us", "p80_us", "gb_per_s",
          "ceiling_gb_per_s", "system_ms", "right", "runs", "results_of_runs", "block_sizes", "results_of_block_sizes",
          "as_on_cpu")  # fmt: skip


def size(text: str) -> int:
    """Of "1000" or "2^31"."""
    match = re.fullmatch(r"(\d+)(?:(?:\^|\*\*)(\d+))?", text)
    n = int(match[1]) ** int(match[2] or 1) if match and len(text) < 12 else 0
    if not 1 <= n < 2**32:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of elements like 1000 or 2^28, below 2^32")
    return n


def add_to(commands: Any) -> None:
    """The command's arguments, to the parsers of torchreduce.__main__."""
    parser = commands.add_parser(
        "ladder",
        help="climb from the first reduction kernel to this package's own; a minute, in an emulation without a GPU",
        description="Run every rung of the ladder: classic reduction and scan kernels in the order of their ideas. "
        "Check each, count which promises it keeps, time it on a GPU, and print a table that ends in this package's "
        "own kernels, compared with torch's and CUB's. Without a GPU the rungs run in an emulation of one: they are "
        "checked, and nothing is measured. csrc/ladder is compiled at first use. Exit with 1 if a result was wrong.",
    )
    parser.add_argument("--op", choices=OPS, default="sum", help="default: sum")
    parser.add_argument("--dtype", choices=("float32", "int32"), default="float32", help="default: float32")
    parser.add_argument("-n", type=size, help="elements, as 1000000 or 2^31; default: 2^28, or 5000 without a GPU")
    parser.add_argument("--rung", nargs="+", metavar="RUNG", help="only these")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="bandwidth and utilisation over n as .png, .svg or .pdf"
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="what was measured, a line a rung and size")
    parser.add_argument("--system", action="store_true", help="time also from the host's memory to the result there")
    parser.add_argument("--list", action="store_true", help="name the rungs, their documents and limits, and stop")
    parser.add_argument("--show", metavar="RUNG", help="print a rung's code, and its difference from the one before")
    parser.set_defaults(parser=parser)


def run(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    error: Callable[[str], NoReturn] = arguments.parser.error
    try:
        chosen = [named(name) for name in arguments.rung] if arguments.rung else climb(arguments.op)
        if arguments.show:
            show(console, named(arguments.show), arguments.op)
            return 0
    except (ValueError, RuntimeError) as reason:
        error(str(reason))
    if arguments.list:
        list_all(console)
        return 0
    others = [rung.name for rung in chosen if rung not in climb(arguments.op)]
    if others:
        error(f"--rung: {', '.join(others)} is of another --op than {arguments.op}")
    cuda = torch.cuda.is_available()
    if arguments.plot and not importlib.util.find_spec("matplotlib"):
        error("--plot: needs matplotlib. Type: pip install matplotlib")
    if (arguments.plot or arguments.system) and not cuda:
        error("--plot and --system: need a GPU; without one nothing is measured")
    n = arguments.n or (LARGE if cuda else EMULATED)
    if cuda and 24 * n + (1 << 30) > torch.cuda.mem_get_info()[0]:
        error(f"-n: {n} elements need {24 * n / 2**30 + 1:.0f} GiB of GPU memory, "
              f"{torch.cuda.mem_get_info()[0] / 2**30:.0f} are free")  # fmt: skip
    if not cuda and n > 1 << 20:
        error(f"-n: the emulation takes at most 2^20 elements, got {n}")
    try:
        return climb_all(console, chosen, arguments, n, "cuda" if cuda else "cpu")
    except RuntimeError as reason:
        if not str(reason).startswith("ladder: "):
            raise
        error(str(reason).removeprefix("ladder: "))


# ---- the climb -------------------------------------------------------------------------------------------------------


def climb_all(console: "Console", chosen: list[Rung], arguments: argparse.Namespace, n: int, device: str) -> int:
    """Checks, counts, measures, prints; writes the files that are asked for."""
    from rich.progress import Progress

    from . import measure

    op, dtype = arguments.op, getattr(torch, arguments.dtype)
    chosen = [rung for rung in chosen if measure.serves(rung, device == "cuda")]
    sizes = [n]
    if arguments.plot:
        sizes = [*(s for e in range(10, 33, 2) if LEAST_PLOTTED <= (s := 1 << e) < n), n]
    rows: list[Row] = []
    ceiling = None
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("compiling", total=2 * len(chosen) * len(sizes))

        def advance(what: str) -> None:
            progress.update(task, description=what, advance=1)

        if device == "cuda":
            ceiling = measure.ceiling(op, n)
        for s in reversed(sizes):
            served = {rung.name: min(s, rung.limit) if rung.limit else s for rung in chosen}
            known = {row.rung.name: row.promises for row in rows}
            here = []
            for rung in chosen:
                if s < n and served[rung.name] < s:
                    advance(rung.name)  # its limit has been measured
                    continue
                here.append(measure.row(rung, op, dtype, served[rung.name], device, known.get(rung.name)))
                advance(f"{rung.name}, n = {served[rung.name]}")
            if device == "cuda":
                here = timed(here, op, dtype, arguments.system, s == n, advance)
            rows += here
    shown = {row.rung.name: row for row in sorted(rows, key=lambda row: row.n)}  # each at its largest
    console.print(table([shown[rung.name] for rung in chosen], op, arguments.dtype, n, ceiling))
    if device == "cpu":
        console.print(f"Nothing was measured: torch sees no GPU. The rungs ran in an emulation of one, on waves of 32 "
                      f"and of 64 lanes, at n = {n} or at their limit, and were checked.")  # fmt: skip
    if arguments.csv:
        write(arguments.csv, rows, op, arguments.dtype, ceiling)
        console.print(f"rows in {arguments.csv}")
    if arguments.plot and ceiling:
        plot(arguments.plot, rows, op, arguments.dtype, ceiling)
        console.print(f"plots in {arguments.plot}")
    return 0 if all(row.right for row in rows) else 1


def timed(rows: "list[Row]", op: str, dtype: torch.dtype, system: bool, last: bool, advance: Any) -> "list[Row]":
    """With their times. The best own rung and the peers take turns; every other rung is timed by itself."""
    from . import measure

    compiled = PEERS["torch.compile"]
    rows = [row for row in rows if last or row.rung != compiled]  # it would compile for seconds at every size
    own = [row for row in rows if row.rung.name not in PEERS]
    groups = [[row] for row in own[:-1]] + [own[-1:] + [row for row in rows if row.rung.name in PEERS]]
    by_n = [[row for row in group if row.n == n] for group in groups for n in sorted({row.n for row in group})]
    result = []
    for group in by_n:
        found = measure.times([row.rung for row in group], op, dtype, group[0].n, system)
        for row in group:
            advance(f"timing {row.rung.name}, n = {row.n}")
            result.append(replace(row, times=found[row.rung.name]))
        torch.cuda.empty_cache()
    return result


def gb_per_s(row: "Row", op: str) -> float | None:
    from .measure import bytes_of

    return bytes_of(op, row.n) / row.times.p50 / 1e9 if row.times else None


def kept(row: "Row") -> tuple[str, str, str, str]:
    """The promises in words: race-free, same bits run to run, whatever the block size, as on the CPU."""
    from .measure import EMULATED_RUNS, RUNS

    rung, promises = row.rung, row.promises
    if rung.name in PEERS:
        races = "yes" if rung.name == "torchreduce" else "not judged"
    else:
        races = "yes, synced" if rung.synced else "yes"
    if promises is None:
        return races, "", "", ""
    runs = RUNS if torch.cuda.is_available() or rung.name in PEERS else EMULATED_RUNS
    same = "yes" if promises.runs == 1 else f"no: {promises.runs} of {runs}"
    any_block = "-" if len(rung.blocks) < 2 else "yes"
    if promises.blocks > 1:
        any_block = f"no: {promises.blocks} of {len(rung.blocks)}"
    return races, same, any_block, "yes" if promises.as_on_cpu else "no"


def table(rows: "list[Row]", op: str, dtype: str, n: int, ceiling: float | None) -> "Table":
    from rich.table import Table

    where = torch.cuda.get_device_name() if ceiling else "emulated"
    title = f"{op} of {n} {dtype}, {where}"
    if ceiling:
        title += f"; the fastest {'copy' if op == 'scan' else 'read'} here: {ceiling:.0f} GB/s"
    shown = Table(title=title)
    for heading in ("rung", "idea"):
        shown.add_column(heading, overflow="fold")
    numbers = ["launches"]
    if ceiling:
        system = any(row.times and row.times.system for row in rows)
        numbers += ["us", "GB/s", "of ceiling", "x before", *(["system ms"] if system else [])]
    for heading in numbers:
        shown.add_column(heading, justify="right")
    for heading in ("right", "race-free", "same every run", "any block", "as on CPU"):
        shown.add_column(heading)
    named_rows = {row.rung.name: row for row in rows}
    for row in rows:
        note = "" if row.n == n else f" (n = {row.n})"
        cells = [row.rung.name, row.rung.title + note, "-" if row.launches is None else str(row.launches)]
        if ceiling and row.times:
            speed = gb_per_s(row, op) or 0
            before = named_rows.get(row.rung.before)
            gained = f"{before.times.p50 / row.times.p50:.2f}" if before and before.times and before.n == row.n else "-"
            cells += [f"{1e6 * row.times.p50:.1f}", f"{speed:.1f}", f"{speed / ceiling:.3f}", gained]
            if row.times.system:
                cells.append(f"{1e3 * row.times.system:.0f}")
        shown.add_row(*cells, "yes" if row.right else "WRONG", *kept(row))
    return shown


def write(file: Path, rows: "list[Row]", op: str, dtype: str, ceiling: float | None) -> None:
    """The rows in FIELDS, in the order of the climb, by size."""
    from .measure import EMULATED_RUNS, RUNS

    gpu = torch.cuda.get_device_name() if ceiling else "emulated"
    toolkit = f"HIP {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    order = {rung.name: i for i, rung in enumerate(climb(op))}
    with file.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, FIELDS, lineterminator="\n")
        writer.writeheader()
        for row in sorted(rows, key=lambda row: (order[row.rung.name], row.n)):
            line: dict[str, Any] = {"gpu": gpu, "torch": torch.__version__, "toolkit": toolkit, "op": op}
            line |= {"dtype": dtype, "rung": row.rung.name, "n": row.n, "launches": row.launches}
            line["right"] = int(row.right)
            if row.times and ceiling:
                line |= {f"p{p}_us": f"{1e6 * getattr(row.times, f'p{p}'):.3f}" for p in (20, 50, 80)}
                line |= {"gb_per_s": f"{gb_per_s(row, op):.2f}", "ceiling_gb_per_s": f"{ceiling:.1f}"}
                line["system_ms"] = f"{1e3 * row.times.system:.1f}" if row.times.system else ""
            if row.promises:
                line["runs"] = RUNS if ceiling or row.rung.name in PEERS else EMULATED_RUNS
                line |= {"results_of_runs": row.promises.runs, "block_sizes": len(row.rung.blocks),
                         "results_of_block_sizes": row.promises.blocks or "",
                         "as_on_cpu": int(row.promises.as_on_cpu)}  # fmt: skip
            writer.writerow(line)


def plot(file: Path, rows: "list[Row]", op: str, dtype: str, ceiling: float) -> None:
    """Bandwidth over n, and the fraction of the card's that it is."""
    points: dict[str, list[tuple[int, float]]] = {}
    for row in sorted(rows, key=lambda row: row.n):
        points.setdefault(row.rung.name, []).append((row.n, gb_per_s(row, op) or 0))
    order = [rung.name for rung in climb(op) if rung.name in points]
    draw(file, {name: points[name] for name in order}, f"{op} of {dtype}, {torch.cuda.get_device_name()}", ceiling)


def draw(file: Path, points: dict[str, list[tuple[int, float]]], title: str, ceiling: float) -> None:
    """The two plots, of (n, GB/s) by rung."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 6), layout="constrained")
    bandwidth, utilisation = figure.subplots(1, 2)
    own = [name for name in points if name not in PEERS]
    peers = {"torchreduce": "#000000", "cub": "#4b9b4b", "torch": "#e07b00", "torch.compile": "#b03060"}
    for name, line in points.items():
        colour = peers.get(name) or colormaps["turbo"](own.index(name) / max(1, len(own) - 1))
        style = "-" if name not in PEERS else "--"
        sizes, speeds = [n for n, _ in line], [speed for _, speed in line]
        for axis, values in ((bandwidth, speeds), (utilisation, [100 * speed / ceiling for speed in speeds])):
            axis.plot(sizes, values, style, color=colour, marker="o", markersize=3, linewidth=1.5, label=name)
    bandwidth.set(title="bandwidth", xscale="log", yscale="log", xlabel="elements", ylabel="GB/s")
    utilisation.set(title="utilisation", xscale="log", xlabel="elements", ylim=(0, 105),
                    ylabel=f"% of the card's ceiling, {ceiling:.0f} GB/s")  # fmt: skip
    for axis in (bandwidth, utilisation):
        axis.grid(color="#e6e6e6", linewidth=0.7)
    figure.legend(*bandwidth.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    figure.suptitle(title)
    figure.savefig(file, dpi=100)


# ---- to read ---------------------------------------------------------------------------------------------------------


def list_all(console: "Console") -> None:
    from rich.table import Table

    shown = Table(title="the ladder: python -m torchreduce ladder --show RUNG prints one")
    for heading in ("rung", "idea", "document, and its name for it", "limit", "after"):
        shown.add_column(heading, overflow="fold")
    for rung in (*rungs().values(), *PEERS.values()):
        limit = f"{rung.limit}: {rung.why_limited}" if rung.limit else ""
        shown.add_row(rung.name, rung.title, rung.source, limit, rung.before)
    console.print(shown)


def difference(rung: Rung) -> str:
    """From the rung before it, without their comments, and with its names in place of that one's; without a struct of
    that one's which it takes over."""
    import difflib

    before = rungs()[rung.before]
    old, new = code(before).replace(before.name, rung.name), code(rung)
    taken_over = r"^template [^\n]*\bstruct (\w+) \{\n.*?^\};\n"
    old = re.sub(taken_over, lambda m: "" if f"{m[1]}<" in new else m[0], old, flags=re.MULTILINE | re.DOTALL)
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), before.name, rung.name, lineterm="")
    return "\n".join(lines)


def code(rung: Rung) -> str:
    return re.sub(r"\A(?://.*\n)+", "", rung.text)


def show(console: "Console", rung: Rung, op: str) -> None:
    """ValueError for a peer whose code is elsewhere."""
    from rich.syntax import Syntax

    def highlighted(text: str, language: str) -> None:
        console.print(Syntax(text, language, theme="ansi_dark", background_color="default"))

    if rung.name == "torch.compile":
        highlighted(triton_code(op), "python")
    elif rung.name in PEERS:
        raise ValueError(f"--show: the code of {rung.name} is not csrc/ladder's, but {rung.source}'s")
    else:
        highlighted(rung.text.rstrip(), "cpp")
        if rung.before:
            console.print(f"\nWhat differs from [bold]{rung.before}[/bold]:")
            highlighted(difference(rung), "diff")


def triton_code(op: str) -> str:
    """What torch.compile makes of `op` of 2^28 float32 here. ValueError without a GPU."""
    if not torch.cuda.is_available():
        raise ValueError("--show torch.compile: prints the Triton code that it makes for a GPU, and torch sees none")
    from torch._inductor.utils import run_and_get_code

    from .calls import _TORCHS
    from .measure import combining

    function = torch.compile(_TORCHS[combining(op), op == "scan"], dynamic=False)
    _, made = run_and_get_code(function, torch.randn(LARGE, device="cuda"))
    return "\n".join(made)
