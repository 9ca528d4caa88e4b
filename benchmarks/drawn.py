"""Shapes that nobody chose: drawn by a seed from regimes, beside torch, CUB, Liger where it is installed, and Inductor.

    python -m benchmarks.drawn --seed 7 --count 400                # on a GPU; each of float32 and bfloat16
    python -m benchmarks.drawn --seed 7 --regime norms --list      # the cases, without a GPU

A regime draws ops and shapes as users have them: lengths that are log-uniform, powers of two and their neighbours, and
multiples of 8; the hidden sizes and vocabularies of models; from one row on. Cases take turns over the regimes, so that
a run that --seconds ends has as many of each. Rows are those of run.py, with regime and seed. Inductor compiles every
tenth case. Ends with the ten cases that are farthest behind a peer.
"""

import argparse
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from math import prod
from pathlib import Path

from . import pages
from .bars import PEERS, PEERS_FROM, Shape
from .cases import SCANS, Case
from .results import FIELDS, OURS, RESULTS, Row, Writer, best_peer, by_case, parsed, shape_of, speedup
from .rowwise import RowwiseCase

FOLDER = RESULTS / "random"
DTYPES = ("float32", "bfloat16")
INDUCTOR_EVERY = 10

HIDDEN = (768, 1024, 1280, 1536, 2048, 2304, 2560, 2880, 3072, 3584, 4096, 5120, 6144, 7168, 8192, 12288, 16384)
HEADS = (64, 80, 96, 128, 192, 256)
VOCABULARIES = (30522, 32000, 32001, 50257, 50304, 65024, 100352, 128256, 151936, 152064, 200064, 256000, 262144)
ROWWISE = ("rms_norm", "layer_norm", "softmax", "log_softmax", "cross_entropy", "logsumexp", "var")
REDUCED = ("sum", "sum", "mean", "amax", "argmax", "prod", "vector_norm", "logsumexp", "var")
SCANNED = ("cumsum", "cumsum", "cumprod", "cummax", "logcumsumexp")
PERMUTED = ("permuted 0 2 1 3", "permuted 1 0 2 3", "permuted 3 0 1 2", "permuted 0 2 3 1")

Drawn = tuple[str, Shape, int, str]  # op, shape, dim, form

# ---- regimes ---------------------------------------------------------------------------------------------------------


class Draw(random.Random):
    def log(self, low: int, high: int) -> int:
        """Log-uniform."""
        return round(low * (high / low) ** self.random())

    def length(self, low: int, high: int) -> int:
        """Any, a power of two or its neighbour, or a multiple of 8, each a third of the time."""
        n = self.log(low, high)
        near = 2 ** (n.bit_length() - self.randrange(2)) + self.choice((-1, 0, 0, 1))
        return max(low, min(high, self.choice((n, near, n // 8 * 8))))

    def rows_of(self, length: int) -> int:
        """So that 2^22 to 2^27 elements come together."""
        return max(1, self.log(2**22, 2**27) // length)

    def op(self, *ops: str) -> str:
        """With its backward half of the time."""
        return f"{self.choice(ops)}{self.choice(('', ' backward'))}"


def _norms(draw: Draw, backward: str) -> Drawn:
    n = draw.choice((draw.choice(HIDDEN), draw.length(512, 16384)))
    return f"{draw.choice(('rms_norm', 'layer_norm'))}{backward}", (draw.rows_of(n), n), 1, ""


def _heads(draw: Draw) -> Drawn:
    n = draw.choice(HEADS)
    return draw.op("rms_norm", "layer_norm"), (draw.rows_of(n), n), 1, ""


def _softmax(draw: Draw) -> Drawn:
    n = draw.choice((draw.length(16, 2**18), draw.length(64, 16384), draw.choice(VOCABULARIES)))
    return draw.op("softmax", "log_softmax"), (draw.rows_of(n), n), 1, ""


def _softmax_of_columns(draw: Draw) -> Drawn:
    n, inner = draw.length(4, 4096), draw.length(4, 65536)
    return draw.op("softmax", "log_softmax"), (draw.rows_of(n * inner), n, inner), 1, ""


def _losses(draw: Draw) -> Drawn:
    n = draw.choice((draw.choice(VOCABULARIES), draw.length(1000, 2**18)))
    return draw.op("cross_entropy"), (draw.rows_of(n), n), 1, ""


def _rows(draw: Draw) -> Drawn:
    n = draw.length(2, 2**20)
    return draw.choice(REDUCED), (draw.rows_of(n), n), 1, ""


def _columns(draw: Draw) -> Drawn:
    n, inner = draw.length(2, 2**20), draw.length(2, 65536)
    shape, dim = ((draw.rows_of(inner), inner), 0) if draw.randrange(2) else ((draw.rows_of(n * inner), n, inner), 1)
    return draw.choice(REDUCED[:-2]), shape, dim, ""


def _views(draw: Draw) -> Drawn:
    op, kind = draw.choice(("sum", "sum", "amax", "mean")), draw.randrange(4)
    n = draw.length(8, 16384)
    if kind == 0:
        return op, (draw.rows_of(n), n), 0, "transposed all dims"
    if kind == 1:  # a window of rows
        return op, (draw.rows_of(n), n), draw.randrange(2), f"of {draw.choice((2 * n, n + draw.log(1, 2 * n)))}"
    shape = [draw.length(2, 64), draw.length(2, 64), draw.length(8, 512)]
    shape.append(draw.rows_of(prod(shape)))
    draw.shuffle(shape)
    over = " all dims" if kind == 2 else f" over {' '.join(map(str, sorted(draw.sample(range(4), 2))))}"
    form = f"{draw.choice(PERMUTED)}{over}"
    return op, tuple(shape), int(form.split()[-2]) if kind == 3 else 0, form


def _scans_of_rows(draw: Draw) -> Drawn:
    n = draw.choice((draw.length(2, 2**20), draw.length(64, 16384)))
    return draw.choice(SCANNED), (draw.rows_of(n), n), 1, ""


def _scans_of_columns(draw: Draw) -> Drawn:
    return (draw.choice(SCANNED), *_columns(draw)[1:])


def _short_rows(draw: Draw) -> Drawn:
    m = draw.log(1, 256)
    if draw.randrange(2):
        return draw.op("rms_norm", "layer_norm"), (m, draw.choice(HIDDEN)), 1, ""
    n = draw.choice((draw.choice(VOCABULARIES), draw.length(1024, 65536)))
    return draw.op("softmax", "log_softmax", "cross_entropy"), (min(m, 64), n), 1, ""


def _short_vectors(draw: Draw) -> Drawn:
    return draw.choice(("sum", "argmax", "cumsum")), (draw.length(2**10, 2**20),), 0, ""


REGIMES: dict[str, Callable[[Draw], Drawn]] = {
    "norms, forward": lambda draw: _norms(draw, ""),
    "norms, backward": lambda draw: _norms(draw, " backward"),
    "norms of heads": _heads,
    "softmax of rows": _softmax,
    "softmax of columns": _softmax_of_columns,
    "losses": _losses,
    "reductions of rows": _rows,
    "reductions of columns": _columns,
    "reductions of views": _views,
    "scans of rows": _scans_of_rows,
    "scans of columns": _scans_of_columns,
    "1 to 256 rows": _short_rows,
    "2^10 to 2^20 elements": _short_vectors,
}
SHORT = ("1 to 256 rows", "2^10 to 2^20 elements")
MOST = 2**27  # elements; a shape of more is drawn again

ABOUT = """\
Shapes drawn by a seed from regimes: nobody chose them (`python -m benchmarks.drawn --seed S`).

- **10th percentile**, **median**: of the fractions of peak bandwidth, as on the other pages.
- **speedup**, **least**: the fastest peer's time, divided by torchreduce's time: geometric mean, and least.
- **behind**: in how many cases a peer is faster by more than 3 %.
- Peers: torch, CUB, Liger's norms and softmax, and in every tenth case Inductor."""


def cases(seed: int, count: int) -> Iterator[tuple[str, str, Case]]:
    """Regime, dtype and case: `count` cases of each dtype, the same shapes in both."""
    draw = Draw(seed)
    for i in range(count):
        regime = list(REGIMES)[i % len(REGIMES)]
        drawn = REGIMES[regime](draw)
        while prod(drawn[1]) > MOST:
            drawn = REGIMES[regime](draw)
        op, shape, dim, form = drawn
        for dtype in DTYPES:
            if op.split()[0] in ROWWISE:
                yield regime, dtype, RowwiseCase("rowwise", op, dtype, shape, dim)
            else:
                yield regime, dtype, Case("scan" if op in SCANS else "reduce", op, dtype, shape, dim, form)


# ---- what they say ---------------------------------------------------------------------------------------------------


def table(rows: list[Row]) -> str:
    """A line a regime and dtype."""
    groups: dict[tuple[str, str], list[Row]] = {(regime, dtype): [] for regime in REGIMES for dtype in DTYPES}
    for row in rows:
        groups[row["regime"], row["dtype"]].append(row)
    lines = []
    for (regime, dtype), group in groups.items():
        s = pages.Sums(by_case(group))
        if not s.fractions:
            continue
        fractions = sorted(s.fractions)
        low, middle = (pages.down(f, 2) for f in (fractions[len(fractions) // 10], statistics.median(fractions)))
        of_peak = ["-", "-"] if regime in SHORT else [low, middle]
        lines.append([regime, dtype, str(len(fractions)), *of_peak, *s.speedup(), behind(s)])
    heading = ["regime", "dtype", "cases", "10th percentile", "median", "speedup", "least", "behind"]
    return pages.table(heading, lines, left=2)


def behind(s: pages.Sums) -> str:
    return f"{sum(ratio < 1 / PEERS for ratio in s.speedups)} of {len(s.speedups)}"


def worst(rows: list[Row], count: int = 10) -> str:
    """The cases farthest behind a peer."""
    ratios = {key: (ratio, case) for key, case in by_case(rows).items() if (ratio := speedup(case))}
    lines = []
    for key, (ratio, case) in sorted(ratios.items(), key=lambda item: item[1][0])[:count]:
        peer, ms = best_peer(case) or ("", 0.0)
        ours = case[OURS]
        heads = [ours["regime"], key[2], key[3], shape_of(key)]
        lines.append([*heads, f"{ours['p50_ms']:.4f}", f"{peer} {ms:.4f}", pages.times(ratio)])
    return pages.table(["regime", "op", "dtype", "shape", "ms", "peer, ms", "speedup"], lines, left=4)


def page(rows: list[Row]) -> str:
    texts = ["# Random shapes", ABOUT]
    for gpu in pages.gpus(rows):
        mine = [row for row in rows if row["gpu"] == gpu]
        large = pages.Sums({key: case for key, case in by_case(mine).items() if prod(key[4]) >= PEERS_FROM})
        facts = {name: ", ".join(sorted({row[name] for row in mine})) for name in ("commit", "torch", "seed")}
        texts += [
            f"## {gpu}",
            f"Commit {facts['commit']}, torch {facts['torch']}, seed {facts['seed']}. A peer is faster by more than "
            f"3 % in {behind(large)} cases of 2^22 elements and more.",
            table(mine),
            "The ten cases farthest behind:",
            worst(mine),
        ]
    return "\n\n".join(texts)


def loaded(sources: Iterable[str]) -> list[Row]:
    """The rows in folders of results."""
    files = (file for source in sources for file in sorted((Path(source) / FOLDER.name).glob("*.csv")))
    return [row for file in files for row in parsed(file.read_text())]


# ---- the run ---------------------------------------------------------------------------------------------------------


def measured(args: argparse.Namespace) -> list[Row]:
    import torch

    from . import peers
    from .run import facts, measure, short_name, warm_up

    peers.check()
    warm_up()
    common = facts() | {"seed": str(args.seed)}
    print(*(f"{key} {value}" for key, value in common.items()), sep=", ")
    path = (args.out or FOLDER) / f"{short_name(common['gpu'])}.csv"
    writer, start = Writer(path, (*FIELDS, "regime", "seed")), time.perf_counter()
    for i, (regime, _, case) in enumerate(chosen(args)):
        if time.perf_counter() - start > args.seconds:
            print(f"ended after {i} cases by --seconds")
            break
        wanted = [OURS, "torch", "cub", "cub float32", "liger"]
        if i // len(DTYPES) % INDUCTOR_EVERY == 0:
            wanted.append("torch.compile")
        rows = measure(case, [p for p in wanted if not args.provider or p in args.provider], args)
        writer(common | row | {"regime": regime} for row in rows)
        times = ", ".join(f"{row['provider']} {row.get('p50_ms') or row['note']}" for row in rows)
        print(f"{regime:22} {case.name:52} {times}", flush=True)
        if torch.cuda.memory_reserved() > torch.cuda.get_device_properties().total_memory // 3:
            torch.cuda.empty_cache()
    return parsed(path.read_text())


def chosen(args: argparse.Namespace) -> Iterator[tuple[str, str, Case]]:
    for regime, dtype, case in cases(args.seed, args.count):
        if re.search(args.regime, regime) and dtype in args.dtype:
            yield regime, dtype, case


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=400, help="cases of each dtype, before --regime")
    parser.add_argument("--regime", default="", metavar="REGEX")
    parser.add_argument("--dtype", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--provider", nargs="+", metavar="NAME")
    parser.add_argument("--seconds", type=float, default=3600, help="begin no case after so long")
    parser.add_argument("--patience", type=float, default=2, help="seconds for a call of torch's")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="default: benchmarks/results/random")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    args.quick = True
    if args.list:
        print(*(f"{regime:22} {case.name}" for regime, _, case in chosen(args)), sep="\n")
    else:
        print(page(measured(args)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
