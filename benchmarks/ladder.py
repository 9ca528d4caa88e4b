"""docs/ladder.md's tables, plots and drawings: python -m benchmarks.ladder

Tables and plots are of benchmarks/results/ladder, which `python -m torchreduce ladder --csv` wrote. The drawings show
which thread touches what, on eight or sixteen elements: for each step of a kernel, where it reads and what it writes.
"""

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchreduce.ladder.catalog import PEERS, climb
from torchreduce.ladder.command import draw

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "ladder"
ARTICLE = ROOT / "docs" / "ladder.md"
PLOTS = ROOT / "docs" / "plots"
DRAWINGS = PLOTS / "ladder"
GPU = "h100-80gb-hbm3"  # whose rows the article is of, as their files' names begin
PEAK = 3350  # GB/s of its memory, by its data sheet: what a bandwidth efficiency is a part of

Row = dict[str, str]


# ---- tables ----------------------------------------------------------------------------------------------------------


def load(name: str) -> list[Row]:
    with (RESULTS / f"{GPU}-{name}.csv").open() as file:
        return list(csv.DictReader(file))


def largest(rows: list[Row]) -> dict[str, Row]:
    """Of each rung the row of its largest n, in the order of the climb."""
    found: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: int(row["n"])):
        found[row["rung"]] = row
    return {rung.name: found[rung.name] for rung in climb(rows[0]["op"]) if rung.name in found}


def markdown(headings: list[str], rows: list[list[str]], left: int) -> str:
    """The first `left` columns are words."""
    rule = ["---" if i < left else "---:" for i in range(len(headings))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, rule, *rows))


def yes_or_count(count: str, of: str) -> str:
    return "-" if not count or of in ("0", "1") else "yes" if count == "1" else f"no: {count} of {of}"


def climb_table(name: str) -> str:
    """A line a rung: how fast, how much faster than the one before it, and what it promises."""
    rows = largest(load(name))
    lines, most = [], max(int(row["n"]) for row in rows.values())
    for rung in climb(next(iter(rows.values()))["op"]):
        row = rows[rung.name]
        before = rows.get(rung.before)
        same = before is not None and before["n"] == row["n"]
        gained = f"{float(before['p50_us']) / float(row['p50_us']):.2f}" if before and same else "-"
        fraction = float(row["gb_per_s"]) / float(row["ceiling_gb_per_s"])
        title = rung.title + ("" if int(row["n"]) == most else f" (n = {row['n']})")
        races = "yes, synced" if rung.synced else "yes" if rung.name not in PEERS or rung.name == "torchreduce" else "?"
        speeds = [row["launches"] or "-", f"{float(row['p50_us']):.1f}", f"{float(row['gb_per_s']):.1f}"]
        lines.append([f"`{rung.name}`", title, *speeds, f"{fraction:.3f}", gained, races,
                      yes_or_count(row["results_of_runs"], row["runs"]),
                      yes_or_count(row["results_of_block_sizes"], row["block_sizes"]),
                      "yes" if row["as_on_cpu"] == "1" else "no"])  # fmt: skip
    headings = ["rung", "idea", "launches", "us", "GB/s", "of ceiling", "x before", "race-free", "same every run",
                "any block", "as on CPU"]  # fmt: skip
    return markdown(headings, lines, 2)


def system_table(name: str) -> str:
    """As the halving document's: kernel time, time from the host's memory to the result, and bandwidth efficiency."""
    rows = largest(load(name))
    first = rows["halving"]
    lines = []
    for rung in ("halving", "halving_eight", "halving_vector", "halving_block", "in_flight", "torchreduce", "cub"):
        row = rows[rung]
        speedup = float(first["p50_us"]) / float(row["p50_us"])
        lines.append([f"`{rung}`", f"{float(row['p50_us']):,.0f}", f"{float(row['system_ms']):,.0f}", f"{speedup:.2f}",
                      f"{float(first['system_ms']) / float(row['system_ms']):.2f}",
                      f"{100 * float(row['gb_per_s']) / PEAK:.0f} %"])  # fmt: skip
    headings = ["rung", "kernels, us", "system, ms", "kernels, x halving", "system, x halving", "bandwidth efficiency"]
    return markdown(headings, lines, 1)


TABLES: dict[str, Callable[[], str]] = {
    "sum": lambda: climb_table("sum-float32"),
    "scan": lambda: climb_table("scan-float32"),
    "system": lambda: system_table("sum-int32"),
}


def filled(text: str) -> str:
    """The article with its tables as the results have them."""
    for name, table in TABLES.items():
        pattern = rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)"
        assert re.search(pattern, text, re.DOTALL), name
        text = re.sub(pattern, rf"\1\n{table()}\n\n\2", text, flags=re.DOTALL)
    return text


def plot(op: str) -> None:
    rows = load(f"{op}-float32")
    points: dict[str, list[tuple[int, float]]] = {}
    for row in sorted(rows, key=lambda row: int(row["n"])):
        points.setdefault(row["rung"], []).append((int(row["n"]), float(row["gb_per_s"])))
    order = [rung.name for rung in climb(op) if rung.name in points]
    title = f"{op} of {rows[0]['dtype']}, {rows[0]['gpu']}"
    draw(PLOTS / f"ladder-{op}.png", {name: points[name] for name in order}, title, float(rows[0]["ceiling_gb_per_s"]))


# ---- drawings --------------------------------------------------------------------------------------------------------

# A step is what is written in it: the place, the places that are read, and the thread that does it.
Step = list[tuple[int, tuple[int, ...], int]]


def growing(n: int, packed: bool) -> list[Step]:
    """Strides of 1, 2, 4, ...; by the threads of the places (or of half of them), or packed: by the first ones."""
    strides = [1 << k for k in range(n.bit_length() - 1)]
    return [[(i, (i, i + s), i // (2 * s) if packed else i) for i in range(0, n, 2 * s)] for s in strides]


def falling(n: int) -> list[Step]:
    strides = [n >> k for k in range(1, n.bit_length())]
    return [[(i, (i, i + s), i) for i in range(s)] for s in strides]


def kogge_stone(n: int) -> list[Step]:
    strides = [1 << k for k in range(n.bit_length() - 1)]
    return [[(i, (i - s, i), i) for i in range(s, n)] for s in strides]


def sklansky(n: int) -> list[Step]:
    strides = [1 << k for k in range(n.bit_length() - 1)]
    return [[(i, ((i & ~(2 * s - 1)) + s - 1, i), i) for i in range(n) if i & s] for s in strides]


PICTURES: dict[str, tuple[int, list[Step]]] = {
    "sequential": (8, [[(0, (i + 1, 0), 0)] for i in range(7)]),
    "growing": (8, growing(8, packed=False)),
    "packed": (8, growing(8, packed=True)),
    "falling": (8, falling(8)),
    "on_load": (16, [[(i, (i, i + 8), i) for i in range(8)], *falling(8)]),
    "halving": (8, [[(i, (2 * i, 2 * i + 1), i) for i in range(n)] for n in (4, 2, 1)]),
    "warps": (16, [[(w + i, (w + i, w + i + s), w // 2 + i) for w in (0, 8) for i in range(s)] for s in (4, 2, 1)]
              + [[(0, (0, 8), 0)]]),
    "items": (16, [[(4 * i, tuple(range(4 * i, 4 * i + 4)), i) for i in range(4)],
                   [(0, (0, 8), 0), (4, (4, 12), 1)], [(0, (0, 4), 0)]]),
    "coarsened": (16, [[(i, (i, i + 4, i + 8, i + 12), i) for i in range(4)], *falling(4)]),
    "kogge_stone": (8, kogge_stone(8)),
    "sklansky": (8, sklansky(8)),
    "look_back": (16, [[(4 * b + 3, tuple(range(4 * b, 4 * b + 4)), b) for b in range(4)],
                       [(7, (3, 7), 1), (11, (3, 7, 11), 2), (15, (3, 7, 11, 15), 3)],
                       [(4 * b + i, (4 * b - 1, 4 * b + i), b) for b in range(1, 4) for i in range(3)]]),
}  # fmt: skip


def picture(name: str) -> Any:
    """Rows of places, the first one the input; a place that a step writes has the colour and the number of its thread,
    and lines from what it read."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    n, steps = PICTURES[name]
    figure = Figure(figsize=(0.42 * n + 0.6, 0.62 * (len(steps) + 1)), layout="constrained")
    axis = figure.subplots()
    colours = colormaps["tab20"]
    for row in range(len(steps) + 1):
        written = {to: (sources, thread) for to, sources, thread in steps[row - 1]} if row else {}
        for place in range(n):
            sources, thread = written.get(place, ((), None))
            face = colours(thread % 20) if thread is not None else "#f4f4f4"
            axis.add_patch(_cell(place, -row, face))
            if thread is not None:
                axis.text(place, -row, str(thread), ha="center", va="center", fontsize=8)
            for source in sources:
                axis.plot([source, place], [-row + 0.75, -row + 0.25], color="#555555", linewidth=0.9)
    axis.set(xlim=(-0.7, n - 0.3), ylim=(-len(steps) - 0.4, 0.4), aspect="auto")
    axis.axis("off")
    return figure


def _cell(x: int, y: int, face: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.42, y - 0.25), 0.84, 0.5, facecolor=face, edgecolor="#888888", linewidth=0.6)


def main() -> None:
    DRAWINGS.mkdir(parents=True, exist_ok=True)
    for name in PICTURES:
        picture(name).savefig(DRAWINGS / f"{name}.png", dpi=90)
    for op in ("sum", "scan"):
        plot(op)
    ARTICLE.write_text(filled(ARTICLE.read_text()))


if __name__ == "__main__":
    main()
