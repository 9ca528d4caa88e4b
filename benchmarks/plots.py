"""Plots of measured rows: the fraction of the peak bandwidth over the row length and over the number of columns."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from .cases import SCANS
from .grid import UNDRAWN
from .pages import DTYPES, gpus, is_large, newest_with
from .results import OURS, Case, Key, Row, by_case

Points = dict[tuple[str, str], list[tuple[int, float]]]  # by provider and commit

COLOURS = {OURS: "#1f5fbf", "torch": "#e07b00", "CUB": "#4b9b4b"}
KINDS = {"rows": "elements of a row", "columns": "columns", "one row": "elements"}  # and what is along x
LEAST = 3  # points that a kind has somewhere, else no picture shows it
REDUCTIONS = "reductions.png"  # the one of README.md


def kind_of(key: Key) -> str | None:
    """None for what no picture shows: middle dims, forms, and rows or columns of few elements in all."""
    *_, shape, dim, form = key
    if form or len(shape) > 2:
        return None
    if len(shape) == 1:
        return "one row"
    if not is_large(key):
        return None
    return "rows" if dim == 1 else "columns"


def points_of(cases: dict[Key, Case]) -> dict[str, Points]:
    """By kind. Of CUB's two ways with 16-bit elements the faster one."""
    found: dict[str, Points] = defaultdict(lambda: defaultdict(list))
    for key, case in cases.items():
        kind = kind_of(key)
        if not kind:
            continue
        shape, dim = key[4], key[5]
        x = shape[1] if kind == "columns" else shape[dim]
        named = {OURS: (OURS,), "torch": ("torch",), "CUB": ("cub", "cub float32")}
        for name, providers in named.items():
            reached = [case[p]["fraction"] for p in providers if p in case and case[p]["fraction"] is not None]
            if reached:
                found[kind][name, case[OURS]["commit"] if OURS in case else ""].append((x, max(reached)))
    return found


def panel(axis: Any, title: str, along: str, points: Points, limits: tuple[float, float]) -> None:
    """Lines join what one commit has measured."""
    for name, colour in reversed(COLOURS.items()):
        ours = name == OURS
        for i, line in enumerate(sorted(line) for (of, _), line in points.items() if of == name):
            axis.plot(*zip(*line, strict=True), color=colour, label=None if i else name, marker="o",
                      markersize=4.5 if ours else 3.5, linewidth=2.2 if ours else 1.3)  # fmt: skip
    axis.axhline(1, color="#888888", linewidth=0.8, linestyle=":")
    axis.set_xscale("log", base=2)
    axis.set(title=title, xlabel=along, xlim=limits, ylim=(0, 1.08))
    axis.grid(color="#e6e6e6", linewidth=0.7)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def figure_of(op: str, cases: dict[Key, Case], kinds: tuple[str, ...]) -> Any:
    """A line a GPU and kind, and in it a panel a dtype; None without points."""
    from matplotlib.figure import Figure

    lines, limits = [], {}
    for gpu in gpus({"gpu": key[0]} for key in cases):
        mine = {key: case for key, case in cases.items() if key[0] == gpu and key[2] == op}
        points = {dtype: points_of({k: c for k, c in mine.items() if k[3] == dtype}) for dtype in DTYPES[:2]}
        for kind in kinds:
            places = {x for found in points.values() for line in found.get(kind, {}).values() for x, _ in line}
            if len(places) >= LEAST:
                lines.append((gpu, kind, points))
                least, most = limits.get(kind, (min(places), max(places)))
                limits[kind] = min(least, *places), max(most, *places)
    if not lines:
        return None
    figure = Figure(figsize=(9.2, 2.9 * len(lines)), layout="constrained")
    axes = figure.subplots(len(lines), 2, squeeze=False)
    several = len({gpu for gpu, _, _ in lines}) > 1
    for axis_line, (gpu, kind, points) in zip(axes, lines, strict=True):
        where = f"{gpu.removeprefix('NVIDIA ')}, " if several else ""
        for axis, (dtype, found) in zip(axis_line, points.items(), strict=True):
            least, most = limits[kind]
            panel(axis, f"{where}{kind}, {dtype}", KINDS[kind], found.get(kind, {}), (least / 1.5, most * 1.5))
        axis_line[0].set_ylabel(f"fraction of the fastest {'copy' if op in SCANS else 'read'}")
    named = {label: line for axis in axes.flat for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    order = [name for name in COLOURS if name in named]
    figure.legend([named[name] for name in order], order, loc="outside upper right", ncols=len(order), frameon=False)
    figure.suptitle(op if several else f"{op}, {lines[0][0].removeprefix('NVIDIA ')}", x=0.01, ha="left")
    return figure


def draw(rows: list[Row], folder: Path) -> list[Path]:
    """A picture an op, and one of sums for README.md."""
    cases = by_case(rows)
    ops = dict.fromkeys(key[2] for key in cases if key[1] not in UNDRAWN)
    figures = {f"{op}.png": figure_of(op, cases, tuple(KINDS)) for op in ops}
    if any(row["part"] == "reduce-rows" for row in rows):
        gpu = newest_with(("reduce-rows", "reduce-columns"), rows)
        newest = {key: case for key, case in cases.items() if key[0] == gpu and key[1].startswith("reduce")}
        figures[REDUCTIONS] = figure_of("sum", newest, ("rows", "columns"))
        if figures[REDUCTIONS]:
            title = f"sum of 2^28 elements, {gpu.removeprefix('NVIDIA ')}"
            figures[REDUCTIONS].suptitle(title, x=0.01, ha="left")
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, figure in figures.items():
        if figure:
            figure.savefig(folder / name, dpi=100)
            drawn.append(folder / name)
    return drawn
