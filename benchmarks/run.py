"""Times torchreduce beside torch, in one sitting, and writes every row with what it was measured on.

    python -m benchmarks.run cpu --threads 1 2          # 2^24 elements
    python -m benchmarks.run cuda                       # 2^28 elements

A row is one op on one shape by one provider: p20, p50 and p80 of the times, and the bandwidth of p50, counting the
input once and a scan's output once. On a GPU "ceiling" is a device copy of the input. Providers take turns on each
case, so that a machine that changes its mind disturbs all of them.
"""

import argparse
import csv
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import torchreduce as tr

RESULTS = Path(__file__).parent / "results"
FIELDS = ("device", "threads", "isa", "torch", "commit", "op", "dtype", "shape", "dim", "provider", "p20_ms", "p50_ms",
          "p80_ms", "gb_per_s")  # fmt: skip


@dataclass(frozen=True)
class Case:
    op: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    dim: int

    def calls(self, x: torch.Tensor) -> dict[str, Callable[[], object]]:
        return {
            "torchreduce": lambda: getattr(tr, self.op)(x, self.dim),
            "torch": lambda: getattr(torch, self.op)(x, self.dim),
        }


def cases(n: int, device: str) -> Iterator[Case]:
    """Every dim of a few shapes of n elements: one row, square, short rows, and three dims."""
    side, cube = round(n**0.5), 2 ** ((n.bit_length() - 1) // 3)
    shapes = [(n,), (side, side), (n // 16, 16), (n // cube**2, cube, cube)]
    ops = [("sum", torch.float32), ("sum", torch.bfloat16), ("amax", torch.float32), ("argmax", torch.float32)]
    ops += [("cumsum", torch.float32)] + ([("cumsum", torch.bfloat16)] if device == "cuda" else [])
    for op, dtype in ops:
        for shape in shapes:
            yield from (Case(op, dtype, shape, dim) for dim in range(len(shape)))


def seconds(call: Callable[[], object], device: str) -> float:
    if device == "cpu":
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def measure(calls: dict[str, Callable[[], object]], device: str, repeats: int) -> dict[str, list[float]]:
    """Sorted seconds by provider. A provider slower than a second is timed once."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for name, call in calls.items():
        first = seconds(call, device)
        if first > 1:
            times[name].append(first)
    for round_ in range(repeats + 1):
        for name, call in calls.items():
            if not times[name] or times[name][0] <= 1:
                taken = seconds(call, device)
                if round_:  # the first round warms up
                    times[name].append(taken)
    return {name: sorted(t) for name, t in times.items()}


def percentile(times: list[float], p: int) -> float:
    return times[0] if len(times) == 1 else statistics.quantiles(times, n=100, method="inclusive")[p - 1]


def commit() -> str:
    git = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=RESULTS.parent)
    return git.stdout.strip() or "unknown"


def device_name(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return model[0].split(":")[1].strip() if model else "CPU"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, nargs="+", default=[torch.get_num_threads()], help="in turn")
    parser.add_argument("--elements", type=int, help="default: 2^24 on the CPU, 2^28 on a GPU")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--op", action="append", help="only these ops")
    parser.add_argument("--out", type=Path, help="the CSV file; default: results/<device>.csv")
    args = parser.parse_args()

    n = args.elements or (2**24 if args.device == "cpu" else 2**28)
    common = {"device": device_name(args.device), "isa": tr._C.instruction_set(), "torch": torch.__version__,
              "commit": commit()}  # fmt: skip
    table = Table("op", "dtype", "shape", "dim", "threads", "torchreduce ms", "torch ms", "torch / torchreduce")
    rows = []
    for threads in args.threads if args.device == "cpu" else [0]:
        if threads:
            torch.set_num_threads(threads)
        for case in cases(n, args.device):
            if args.op and case.op not in args.op:
                continue
            x = torch.randn(case.shape, device=args.device).to(case.dtype)
            calls = case.calls(x)
            if args.device == "cuda":
                target = torch.empty_like(x)
                calls["ceiling"] = lambda target=target, x=x: target.copy_(x)
            dtype = str(case.dtype).removeprefix("torch.")
            size = x.numel() * x.element_size()
            moved = {provider: size * (1 + (case.op == "cumsum" or provider == "ceiling")) for provider in calls}
            times = measure(calls, args.device, args.repeats)
            for provider, t in times.items():
                p20, p50, p80 = (percentile(t, p) for p in (20, 50, 80))
                rows.append({**common, "threads": threads, "op": case.op, "dtype": dtype,
                             "shape": "x".join(map(str, case.shape)), "dim": case.dim, "provider": provider,
                             "p20_ms": f"{p20 * 1e3:.4f}", "p50_ms": f"{p50 * 1e3:.4f}", "p80_ms": f"{p80 * 1e3:.4f}",
                             "gb_per_s": f"{moved[provider] / p50 / 1e9:.1f}"})  # fmt: skip
            ours, theirs = (percentile(times[p], 50) for p in ("torchreduce", "torch"))
            table.add_row(case.op, dtype, str(case.shape), str(case.dim), str(threads or "-"), f"{ours * 1e3:.3f}",
                          f"{theirs * 1e3:.3f}", f"{theirs / ours:.2f}")  # fmt: skip
    Console(width=120).print(table)
    out = args.out or RESULTS / f"{args.device}.csv"
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} rows in {out}")


if __name__ == "__main__":
    main()
