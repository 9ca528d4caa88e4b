"""Segments and scatters beside torch's, by default and with deterministic algorithms: benchmarks/results/segments.

    python -m benchmarks.segments [--part offsets rows index] [--case REGEX] [--provider NAME] [--out FOLDER]  # GPU

A row is one case by one provider: the median time of a call whose queue does not run dry, its bytes (input, index or
offsets and result once, self twice), and the fraction that it reaches of the speed of a copy, measured in the same
run. "once": the segments of an index were made before. A sample of the results is compared with the CPU's bits.
"""

import argparse
import csv
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import torchreduce as tr

from . import pages
from .results import RESULTS, Writer, commit

Row = dict[str, str]
FIELDS = ("gpu", "torch", "commit", "part", "op", "dtype", "rows", "columns", "segments", "regime", "provider", "us",
          "bytes", "fraction")  # fmt: skip
ELEMENTS = 2**26
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    part: str
    op: str
    dtype: str
    rows: int
    columns: int
    segments: int
    regime: str

    @property
    def name(self) -> str:
        return f"{self.part} {self.op} {self.dtype} {self.rows}x{self.columns} into {self.segments} {self.regime}"


def cases() -> Iterator[Case]:
    for dtype in DTYPES:
        for columns in (1, 4, 64, 1024):
            rows = ELEMENTS // columns
            for mean in {1: (16, 64, 256, 4096), 1024: (16, 256)}.get(columns, (16, 256, 4096)):
                for op in ("sum", "amax"):
                    yield Case("offsets", op, dtype, rows, columns, max(1, rows // mean), "uniform")
            yield Case("offsets", "sum", dtype, rows, columns, max(1, rows // 16), "power law")
        for op in ("softmax", "cumsum", "linear_scan"):
            for mean in (16, 64, 256, 4096):
                yield Case("rows", op, dtype, ELEMENTS, 1, ELEMENTS // mean, "uniform")
            yield Case("rows", op, dtype, ELEMENTS, 1, ELEMENTS // 64, "power law")
            yield Case("rows", op, dtype, ELEMENTS // 64, 64, ELEMENTS // 64 // 256, "uniform")
        for columns in (1, 4, 64, 256, 1024, 4096):
            rows = min(2**24, ELEMENTS // columns)
            for regime in ("uniform", "power law", "one hot", "sorted"):
                yield Case("index", "index_add", dtype, rows, columns, max(1, rows // 16), regime)
        yield Case("index", "index_add", dtype, 2**26, 1, 256, "uniform")
        yield Case("index", "index_add", dtype, 2**20, 1, 256, "uniform")
        yield Case("index", "index_add", dtype, 65536, 1024, 8192, "uniform")
        yield Case("index", "index_add", dtype, 1024, 256, 10**6, "uniform")
        yield Case("index", "amax", dtype, 2**24, 1, 10**6, "uniform")
        yield Case("index", "amax", dtype, 2**20, 64, 10**5, "uniform")
        yield Case("index", "scatter_add", dtype, 65536, 512, 65536, "elements")
    for rows, size in ((2**24, 2**20), (65536, 8192)):
        yield Case("index", "segments", "int64", rows, 0, size, "uniform")


def index_of(case: Case) -> Tensor:
    n, size = case.rows, case.segments
    draw = torch.rand(n, device="cuda")
    if case.regime == "power law":  # the number k has about 1 / k of the places
        return (size ** draw.double() - 1).long().clamp_(0, size - 1)
    index = (draw.double() * size).long().clamp_(0, size - 1)
    if case.regime == "one hot":
        index[torch.rand(n, device="cuda") < 0.5] = size // 2
    if case.regime == "elements":
        return torch.randint(size, (n, case.columns), device="cuda")
    return index.sort().values if case.regime == "sorted" else index


def offsets_of(case: Case) -> Tensor:
    """Of segments in an order without pattern."""
    counts = torch.bincount(index_of(case), minlength=case.segments)
    if case.regime == "power law":
        counts = counts[torch.randperm(case.segments, device="cuda")]
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0))


def torch_segment_reduce(op: str, x: Tensor, offsets: Tensor) -> Tensor:
    return torch.segment_reduce(x, {"sum": "sum", "amax": "max"}[op], offsets=offsets, axis=0, unsafe=True)


def calls(case: Case) -> tuple[dict[str, Callable[[], Any]], int, Callable[[], bool]]:
    """By provider; the bytes; whether a sample has the CPU's bits."""
    torch.manual_seed(0)
    if case.op == "segments":
        index = index_of(case)
        return (
            {"torchreduce": lambda: tr.segments(index, case.segments), "torch": lambda: torch.sort(index, stable=True)},
            16 * case.rows + 8 * case.segments,
            lambda: torch.equal(tr.segments(index, case.segments)[1], torch.sort(index, stable=True)[1]),
        )
    shape = (case.rows, case.columns) if case.columns > 1 else (case.rows,)
    x = torch.randn(shape, device="cuda").to(DTYPES[case.dtype])
    row, size = x.element_size() * case.columns, case.segments
    if case.part == "rows":
        return rows_calls(case, x)
    if case.part == "offsets":
        offsets, function = offsets_of(case), getattr(tr, case.op)

        def same() -> bool:
            few = min(100, size)
            return torch.equal(
                function(x, 0, segments=offsets)[:few].cpu(),
                function(x[: offsets[few]].cpu(), 0, segments=offsets[: few + 1].cpu()),
            )

        of = {"torchreduce": lambda: function(x, 0, segments=offsets),
              "torch": lambda: torch_segment_reduce(case.op, x, offsets)}  # fmt: skip
        return of, row * (case.rows + size) + 8 * size, same
    index, out = index_of(case), torch.zeros((size, *shape[1:]), device="cuda", dtype=x.dtype)
    few = torch.arange(min(case.rows, 2**22 // case.columns, 2**16), device="cuda")

    def torchs() -> None:
        if case.op == "index_add":
            out.index_add_(0, index, x)
        elif case.op == "amax":
            out.index_reduce_(0, index, x, "amax")
        else:
            out.scatter_add_(0, index, x)

    def ours(out: Tensor, index: Tensor, x: Tensor) -> Tensor:
        if case.op == "index_add":
            return tr.index_add_(out, 0, index, x)
        if case.op == "amax":
            return tr.index_reduce_(out, 0, index, x, "amax")
        return tr.scatter_add_(out, 0, index, x)

    def same() -> bool:
        part, numbers = x[few], index[few]
        return torch.equal(ours(out.clone(), numbers, part).cpu(), ours(out.cpu(), numbers.cpu(), part.cpu()))

    def deterministic() -> None:
        torch.use_deterministic_algorithms(True)
        try:
            torchs()
        finally:
            torch.use_deterministic_algorithms(False)

    of = {"torchreduce": lambda: ours(out, index, x), "torch": torchs}
    if case.op != "amax":  # index_reduce raises there
        of["torch det"] = deterministic
    if case.op == "index_add":
        s = tr.segments(index, size)
        of["torchreduce, once"] = lambda: tr.sum(x, 0, segments=s)
    return of, row * (case.rows + 2 * size) + 8 * index.numel(), same


def rows_calls(case: Case, x: Tensor) -> tuple[dict[str, Callable[[], Any]], int, Callable[[], bool]]:
    """The same of functions that keep the shape. torch: softmax as it is composed of scatters."""
    offsets, factors = offsets_of(case), torch.rand_like(x)

    def ours(x: Tensor, factors: Tensor, offsets: Tensor) -> Tensor:
        if case.op == "linear_scan":
            return tr.linear_scan(factors, x, 0, segments=offsets)
        return getattr(tr, case.op)(x, 0, segments=offsets)  # type: ignore[no-any-return]

    def same() -> bool:
        few = min(100, case.segments)
        n = int(offsets[few])
        return torch.equal(
            ours(x, factors, offsets)[:n].cpu(), ours(x[:n].cpu(), factors[:n].cpu(), offsets[: few + 1].cpu())
        )

    of = {"torchreduce": lambda: ours(x, factors, offsets)}
    if case.op == "softmax" and case.columns == 1:
        index = torch.arange(case.segments, device="cuda").repeat_interleave(offsets.diff())
        zeros = x.new_zeros(case.segments)

        def composed() -> Tensor:
            greatest = zeros.scatter_reduce(0, index, x, "amax", include_self=False)
            terms = (x - greatest[index]).exp()
            return terms / zeros.scatter_add(0, index, terms)[index]

        of["torch"] = composed
    inputs = 3 if case.op == "linear_scan" else 2
    return of, inputs * x.numel() * x.element_size() + 8 * case.segments, same


def median_us(call: Callable[[], Any], budget: float = 0.08) -> float:
    """Of 5 loops, queued behind a wait of the GPU."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    call()
    start.record()
    call()
    end.record()
    end.synchronize()
    if start.elapsed_time(end) > 100:
        return start.elapsed_time(end) * 1e3
    loops = int(max(1, min(30, budget * 1e3 / 5 / max(start.elapsed_time(end), 1e-3))))
    times = []
    for _ in range(5 if loops > 1 else 2):
        torch.cuda._sleep(200_000 * min(loops, 10))
        start.record()
        for _ in range(loops):
            call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / loops)
    return sorted(times)[len(times) // 2]


def copy_us(nbytes: int) -> float:
    x = torch.empty(max(1, nbytes // 2), device="cuda", dtype=torch.uint8)
    y = torch.empty_like(x)
    return median_us(lambda: y.copy_(x))


# ---- the page --------------------------------------------------------------------------------------------------------

PARTS = {
    "offsets": "Reductions by offsets",
    "rows": "Softmax and scans by offsets",
    "index": "Reductions by an index that is not sorted",
}
ABOUT = """\
# Segments and scatters

Made by `python -m benchmarks.compare --markdown` from [benchmarks/results/segments](../../benchmarks/results/segments).

- **of a copy**: the time of a copy of as many bytes (input, index or offsets and result once), in the same run, divided
  by torchreduce's time.
- **once**: the same where `tr.segments` of the index was called before.
- **torch**, **deterministic**: torch's time by default and with deterministic algorithms, divided by torchreduce's
  time. **Bold**: torchreduce is slower. By offsets torch has `segment_reduce`; its softmax is composed of scatters.
- **segments**: how many, and how rows are dealt to them. **uniform**: evenly, at random; **power law**: segment k has
  about 1 / k of the rows; **one hot**: one segment has half of the rows; **sorted**: evenly, the index is sorted."""


def loaded(sources: Iterable[str | Path]) -> list[Row]:
    """The rows in folders of results."""
    files = (file for source in sources for file in sorted((Path(source) / "segments").glob("*.csv")))
    return [row for file in files for row in csv.DictReader(file.read_text().splitlines())]


def page(rows: list[Row]) -> str:
    texts = [ABOUT]
    for gpu in pages.gpus(rows):
        mine = [row for row in rows if row["gpu"] == gpu]
        facts = {name: ", ".join(sorted({row[name] for row in mine})) for name in ("commit", "torch")}
        texts.append(f"## {gpu}\n\nCommit {facts['commit']}, torch {facts['torch']}.")
        for part, title in PARTS.items():
            if lines := lines_of([row for row in mine if row["part"] == part]):
                texts += [f"### {title}", pages.table(HEADING, lines, left=2)]
    return "\n\n".join(texts)


HEADING = ["op", "dtype", "rows", "columns", "segments", "", "us", "of a copy", "once", "torch", "deterministic"]


def lines_of(rows: list[Row]) -> list[list[str]]:
    """A line a case."""
    found: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("op", "dtype", "rows", "columns", "segments", "regime"))
        found.setdefault(key, {})[row["provider"]] = row
    lines = []
    for key, of in found.items():
        us = {provider: float(row["us"]) for provider, row in of.items()}
        ours = us["torchreduce"]
        speedups = (pages.times(us[peer] / ours if peer in us else None) for peer in ("torch", "torch det"))
        fractions = (of[p]["fraction"] if p in of else "-" for p in ("torchreduce", "torchreduce, once"))
        lines.append([*key, f"{ours:.0f}", *fractions, *speedups])
    return lines


# ---- the run ---------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--part", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--case", default="", metavar="REGEX")
    parser.add_argument("--provider", nargs="+")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    gpu = torch.cuda.get_device_name()
    torch.utils.deterministic.fill_uninitialized_memory = False
    path = (args.out or RESULTS / "segments") / f"{gpu.removeprefix('NVIDIA ').lower().replace(' ', '-')}.csv"
    writer = Writer(path, FIELDS)
    common = {"gpu": gpu, "torch": torch.__version__, "commit": commit()}
    for case in cases():
        if case.part not in args.part or not re.search(args.case, case.name):
            continue
        of, nbytes, same = calls(case)
        copy = copy_us(nbytes)
        times = {p: median_us(call) for p, call in of.items() if not args.provider or p in args.provider}
        what = {key: getattr(case, key) for key in ("part", "op", "dtype", "rows", "columns", "segments", "regime")}
        writer({**common, **what, "provider": p, "us": f"{us:.1f}", "bytes": nbytes, "fraction": f"{copy / us:.3f}"}
               for p, us in times.items())  # fmt: skip
        shown = ", ".join(f"{p} {us:.1f} ({copy / us:.2f})" for p, us in times.items())
        print(f"{case.name:62} {shown}{'' if same() else '  BITS DIFFER FROM THE CPU'}", flush=True)
        del of


if __name__ == "__main__":
    main()
