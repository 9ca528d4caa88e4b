"""The CPU's part of run.py: torchreduce and torch on every dim of a few shapes.

A row is one op on one shape by one provider: p20, p50 and p80 of the times, and the bandwidth of p50, counting the
input once and all that a scan writes once. `--part random` times the cases of cpu_random.py instead.
"""

import argparse
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import torchreduce as tr
from torchreduce._tools.bench import percentile, take_turns

from .cpu_random import draw
from .results import RESULTS, Writer

FIELDS = ("device", "threads", "isa", "torch", "commit", "op", "dtype", "shape", "dim", "provider", "p20_ms", "p50_ms",
          "p80_ms", "gb_per_s")  # fmt: skip
RANDOM_FIELDS = ("device", "threads", "isa", "torch", "commit", "seed", "regime", "op", "dtype", "shape", "dim",
                 "backward", "torchreduce_ms", "torch_ms", "speed")  # fmt: skip


@dataclass(frozen=True)
class Case:
    op: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    dim: int

    def input(self) -> torch.Tensor:
        x = torch.randn(self.shape)
        return (1 + x / 1000 if self.op == "cumprod" else x).to(self.dtype)  # products that stay normal numbers

    def bytes_moved(self, x: torch.Tensor) -> int:
        written = {
            "cumsum": x.nbytes,
            "cumprod": x.nbytes,
            "logcumsumexp": x.nbytes,
            "cummax": x.nbytes + 8 * x.numel(),
            "softmax": x.nbytes,
        }
        return x.nbytes + written.get(self.op, 0)

    def calls(self, x: torch.Tensor) -> dict[str, Callable[[], object]]:
        theirs = getattr(torch.linalg if self.op == "vector_norm" else torch, self.op)
        return {
            "torchreduce": lambda: getattr(tr, self.op)(x, dim=self.dim),
            "torch": lambda: theirs(x, dim=self.dim),
        }


def cases(n: int) -> Iterator[Case]:
    """Every dim of a few shapes of n elements: one row, square, short rows, and three dims; rows of odd lengths."""
    side, cube = round(n**0.5), 2 ** ((n.bit_length() - 1) // 3)
    shapes = [(n,), (side, side), (n // 16, 16), (n // cube**2, cube, cube)]
    ops = [("sum", torch.float32), ("sum", torch.bfloat16), ("amax", torch.float32), ("argmax", torch.float32),
           *((op, torch.float32) for op in ("prod", "nansum", "max", "vector_norm", "count_nonzero", "any")),
           *((op, torch.float32) for op in ("softmax", "logsumexp", "var"))]  # fmt: skip
    scans = [(op, torch.float32) for op in ("cumsum", "cumprod", "cummax", "logcumsumexp")]
    for op, dtype in [*ops, *scans]:
        for shape in shapes:
            yield from (Case(op, dtype, shape, dim) for dim in range(len(shape)))
    for dtype in (torch.float32, torch.float64, torch.int64):  # rows that are no whole number of lanes
        yield from (Case("cumsum", dtype, (n // 8 // length, length), 1) for length in (2, 5, 13, 1001))


def device_name() -> str:
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return model[0].split(":")[1].strip() if model else "CPU"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, nargs="+", default=[torch.get_num_threads()], help="in turn")
    parser.add_argument("--elements", type=int, default=2**24, help="default: 2^24")
    parser.add_argument("--repeats", type=int, default=15, help="at most; default: 15")
    parser.add_argument("--op", action="append", help="only these ops")
    parser.add_argument("--part", choices=("grid", "random"), default="grid", help="default: grid")
    parser.add_argument("--seed", type=int, default=0, help="of the random cases; default: 0")
    parser.add_argument("--cases", type=int, default=40, help="random ones of each regime; default: 40")
    parser.add_argument("--out", type=Path, help="default: results/cpu.csv, results/random/cpu.csv")


def run_random(args: argparse.Namespace, commit: str) -> int:
    """Print each regime's speeds and the ten slowest cases, and write all."""
    out = args.out or RESULTS / "random" / "cpu.csv"
    writer = Writer(out, RANDOM_FIELDS)
    for threads in args.threads:
        torch.set_num_threads(threads)
        rows = []
        for case in draw(args.seed, args.cases):
            if args.op and case.op not in args.op:
                continue
            calls = case.calls()
            for call in calls.values():
                call()
            # The least of many: others use the machine, too.
            least = {name: times[0] for name, times in take_turns(calls, "cpu", args.repeats, budget=0.5).items()}
            rows.append({"device": device_name(), "threads": threads, "isa": tr._C.instruction_set(),
                         "torch": torch.__version__, "commit": commit, "seed": args.seed, "regime": case.regime,
                         "op": case.op, "dtype": str(case.dtype).removeprefix("torch."),
                         "shape": "x".join(map(str, case.shape)), "dim": case.dim, "backward": int(case.backward),
                         "torchreduce_ms": f"{least['torchreduce'] * 1e3:.4f}",
                         "torch_ms": f"{least['torch'] * 1e3:.4f}",
                         "speed": f"{least['torch'] / least['torchreduce']:.2f}"})  # fmt: skip
            writer(rows[-1:])
        print_random(rows, threads)
    print(f"in {out}")
    return 0


def print_random(rows: list[dict[str, Any]], threads: int) -> None:
    speeds = defaultdict(list)
    for row in rows:
        speeds[row["regime"]].append(float(row["speed"]))
    table = Table("regime", "cases", "geometric mean", "10th percentile", "below 0.8", "below 0.5", "least")
    for regime, each in speeds.items():
        below = (f"{sum(s < bar for s in each) / len(each):.0%}" for bar in (0.8, 0.5))
        table.add_row(regime, str(len(each)), f"{statistics.geometric_mean(each):.2f}",
                      f"{percentile(sorted(each), 10):.2f}", *below, f"{min(each):.2f}")  # fmt: skip
    console = Console(width=120)
    console.print(f"torch's time divided by torchreduce's, {threads} threads", table)
    slowest = Table("speed", "regime", "op", "dtype", "shape", "dim", "backward", "ms", "torch's ms")
    shown = ("speed", "regime", "op", "dtype", "shape", "dim", "backward", "torchreduce_ms", "torch_ms")
    for row in sorted(rows, key=lambda row: float(row["speed"]))[:10]:
        slowest.add_row(*(str(row[field]) for field in shown))
    console.print(slowest)


def run(args: argparse.Namespace, commit: str) -> int:
    if args.part == "random":
        return run_random(args, commit)
    common = {"device": device_name(), "isa": tr._C.instruction_set(), "torch": torch.__version__, "commit": commit}
    table = Table("op", "dtype", "shape", "dim", "threads", "torchreduce ms", "torch ms", "torch / torchreduce")
    rows = []
    for threads in args.threads:
        torch.set_num_threads(threads)
        for case in cases(args.elements):
            if args.op and case.op not in args.op:
                continue
            x = case.input()
            dtype = str(case.dtype).removeprefix("torch.")
            moved = case.bytes_moved(x)
            calls = case.calls(x)
            for call in calls.values():
                call()
            times = take_turns(calls, "cpu", args.repeats, budget=5)
            for provider, t in times.items():
                p20, p50, p80 = (percentile(t, p) for p in (20, 50, 80))
                rows.append({**common, "threads": threads, "op": case.op, "dtype": dtype,
                             "shape": "x".join(map(str, case.shape)), "dim": case.dim, "provider": provider,
                             "p20_ms": f"{p20 * 1e3:.4f}", "p50_ms": f"{p50 * 1e3:.4f}", "p80_ms": f"{p80 * 1e3:.4f}",
                             "gb_per_s": f"{moved / p50 / 1e9:.1f}"})  # fmt: skip
            ours, theirs = (percentile(times[p], 50) for p in ("torchreduce", "torch"))
            table.add_row(case.op, dtype, str(case.shape), str(case.dim), str(threads), f"{ours * 1e3:.3f}",
                          f"{theirs * 1e3:.3f}", f"{theirs / ours:.2f}")  # fmt: skip
    Console(width=120).print(table)
    out = args.out or RESULTS / "cpu.csv"
    Writer(out, FIELDS)(rows)
    print(f"{len(rows)} rows in {out}")
    return 0
