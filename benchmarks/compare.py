"""Tables, plots and verdicts of measured rows.

python -m benchmarks.compare                            # tables of benchmarks/results
python -m benchmarks.compare out/ --check               # exits with 1 where a bar is missed
python -m benchmarks.compare --against HEAD~3           # this tree's results beside those of a commit (or folder)
python -m benchmarks.compare --plot plots/              # fraction of the ceiling over n
python -m benchmarks.compare --markdown                 # the tables between the markers of docs/performance.md
"""

import argparse
import statistics
import sys
from collections import defaultdict
from math import prod
from pathlib import Path
from typing import Any

from . import bars
from .cases import PARTS, PROVIDERS, SCANS
from .results import RESULTS, load

Row = dict[str, Any]
Key = tuple[Any, ...]  # of KEYS

KEYS = ("gpu", "part", "op", "dtype", "shape", "dim", "form")
OURS = "torchreduce"
PEERS = [provider for provider in PROVIDERS if not provider.startswith(OURS)]
PAGE = RESULTS.parents[1] / "docs" / "performance.md"
MARKERS = ("<!-- tables: begin -->", "<!-- tables: end -->")


def by_case(rows: list[Row]) -> dict[Key, dict[str, Row]]:
    """The rows of each case by provider, in the rows' order; the last of several."""
    found: dict[Key, dict[str, Row]] = defaultdict(dict)
    for row in rows:
        found[tuple(row[key] for key in KEYS)][row["provider"]] = row
    return dict(found)


def time_of(case: dict[str, Row], provider: str) -> float | None:
    return case[provider]["p50_ms"] if provider in case else None


def best_peer(case: dict[str, Row]) -> tuple[str, float] | None:
    """Its name and median; None where no other provider was timed."""
    times = {peer: time_of(case, peer) for peer in PEERS}
    timed = {peer: ms for peer, ms in times.items() if ms is not None}
    return min(timed.items(), key=lambda item: item[1]) if timed else None


def name_of(key: Key) -> str:
    _, _, op, dtype, shape, dim, form = key
    return f"{op} {dtype} {'x'.join(map(str, shape))} dim {dim}{form and ' ' + form}"


# ---- verdicts --------------------------------------------------------------------------------------------------------


def missed(cases: dict[Key, dict[str, Row]]) -> list[str]:
    """A line for each bar of bars.py that one GPU misses. What was not measured is no miss; what failed is one."""
    lines, speedups = [], []
    for key, case in cases.items():
        op, dtype, shape, dim, form = key[2:]
        ours, elements = time_of(case, OURS), prod(shape)
        if ours is None:
            if OURS in case:
                lines.append(f"{name_of(key)}: {case[OURS]['note']}")
            continue
        pair, fraction = bars.pair_of(op, dtype, shape, dim, form), case[OURS]["fraction"]
        if pair and fraction < pair[0]:
            lines.append(f"{name_of(key)}: {fraction:.3f} of the copy, under the bar of {pair[0]}")
        plain = time_of(cases.get((*key[:-1], ""), {}), OURS)
        if form in ("reverse", "exclusive") and plain and ours > bars.DIRECTIONS * plain:
            lines.append(f"{name_of(key)}: {ours / plain:.3f} times plain {op}'s, over {bars.DIRECTIONS}")
        peer = best_peer(case)
        if peer and elements >= bars.PEERS_FROM:
            if op in SCANS:
                speedups.append(peer[1] / ours)
            if ours > bars.PEERS * peer[1]:
                lines.append(f"{name_of(key)}: {ours / peer[1]:.3f} times {peer[0]}'s, over {bars.PEERS}")
        lines += missed_beside_cub(key, case, ours)
    if speedups and statistics.median(speedups) < bars.MEDIAN_SPEEDUP:
        lines.append(f"all scans: ahead of the best peer {statistics.median(speedups):.3f} times, under the bar of "
                     f"{bars.MEDIAN_SPEEDUP}")  # fmt: skip
    return lines


def missed_beside_cub(key: Key, case: dict[str, Row], ours: float) -> list[str]:
    """Of 1-D cumsum in the part of short calls."""
    _, part, op, _, shape, _, _ = key
    times = [ms for ms in (time_of(case, "cub"), time_of(case, "cub float32")) if ms is not None]
    if part != "small" or op != "cumsum" or len(shape) > 1 or not times:
        return []
    ratio, allowed = ours / min(times), bars.SMALL.get(shape[0])
    if allowed and ratio > allowed:
        return [f"{name_of(key)}: {ratio:.3f} times CUB's, over {allowed}"]
    if shape[0] >= bars.SMALL_FASTER_FROM and ratio >= 1:
        return [f"{name_of(key)}: {ratio:.3f} times CUB's, not faster"]
    return []


# ---- tables ----------------------------------------------------------------------------------------------------------


def table(heading: list[str], lines: list[list[str]]) -> str:
    """As Markdown, aligned: the first column to the left."""
    widths = [max(len(line[i]) for line in [heading, *lines]) for i in range(len(heading))]

    def joined(cells: list[str]) -> str:
        padded = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
        return f"| {' | '.join(padded)} |"

    rule = "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths))
    return "\n".join([joined(heading), f"|{rule}|", *map(joined, lines)])


def line_of(key: Key, case: dict[str, Row]) -> list[str]:
    """Of the table of its part. Without a measurement: why there is none."""
    ours, peer, pair = case.get(OURS, {}), best_peer(case), bars.pair_of(*key[2:])
    ms, fraction = ours.get("p50_ms"), ours.get("fraction")
    shown = [f"{ms:.4f}", f"{fraction:.3f}"] if ms else [ours.get("note", "-"), "-"]
    shown.append(f"{pair[0]:.2f} / {pair[1]:.2f}" if pair else "-")
    verdict = ""
    if ms and pair:
        verdict = "under" if fraction < pair[0] else "goal" if fraction >= pair[1] else "met"
    if peer:
        once = ", once" if case[peer[0]]["note"] == "timed once" else ""
        others = [f"{peer[0]} {peer[1]:.4f}{once}", f"{peer[1] / ms:.2f}" if ms else "-"]
    else:
        notes = [f"{p} {case[p]['note']}" for p in PEERS if p in case]
        others = ["; ".join(notes) or "-", "-"]
    return [name_of(key), *shown, verdict, *others]


def sections(rows: list[Row]) -> str:
    """A table a part and GPU, with what it was measured on."""
    if not rows:
        return "Nothing has been measured yet."
    texts = []
    cases = by_case(rows)
    for part, about in PARTS.items():
        keys = [key for key in cases if key[1] == part]
        if keys:
            texts.append(f"### {part}: {about}")
        for gpu in sorted({key[0] for key in keys}):
            mine = [key for key in keys if key[0] == gpu]
            kinds = ("gpu", "driver", "torch", "cuda", "commit")
            facts = {tuple(row[kind] for kind in kinds) for key in mine for row in cases[key].values()}
            where = "; ".join(f"{g}, driver {d}, torch {t}, CUDA {c}, commit {h}" for g, d, t, c, h in sorted(facts))
            heading = ["case", "ms", "of the ceiling", "bar / goal", "", "best peer, ms", "ahead"]
            texts.append(f"{where}.\n\n{table(heading, [line_of(key, cases[key]) for key in mine])}")
    return "\n\n".join(texts)


def changes(rows: list[Row], before: list[Row]) -> str:
    """torchreduce's median times beside those of other results, the most changed first."""
    old, lines = by_case(before), []
    for key, case in by_case(rows).items():
        now, then = time_of(case, OURS), time_of(old.get(key, {}), OURS)
        if now and then:
            fractions = [f"{cases[OURS]['fraction']:.3f}" for cases in (old[key], case)]
            lines.append([f"{key[0]}: {name_of(key)}", f"{then:.4f}", f"{now:.4f}", f"{now / then:.3f}", *fractions])
    lines.sort(key=lambda line: -abs(float(line[3]) - 1))
    return table(["case", "ms before", "now", "now / before", "of the ceiling before", "now"], lines)


# ---- plots -----------------------------------------------------------------------------------------------------------


def plot(rows: list[Row], folder: Path) -> list[Path]:
    """Fraction of the ceiling over n, the length of what is combined: a file an op, a panel a GPU, dtype and kind of
    shape (one row, last dim, other dims), one line a provider."""
    from matplotlib.figure import Figure

    panels: dict[str, dict[str, dict[str, list[tuple[int, float]]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for (gpu, _, op, dtype, shape, dim, form), case in by_case(rows).items():
        kind = "one row" if len(shape) == 1 else "last dim" if dim == len(shape) - 1 else "other dims"
        for provider, row in case.items():
            if provider in PROVIDERS and row["fraction"] is not None and not form:
                panels[op][f"{gpu}: {dtype}, {kind}"][provider].append((shape[dim], row["fraction"]))
    files = []
    folder.mkdir(parents=True, exist_ok=True)
    for op, of_op in panels.items():
        figure = Figure(figsize=(5 * min(3, len(of_op)), 3.5 * -(-len(of_op) // 3)), layout="constrained")
        axes = list(figure.subplots(-(-len(of_op) // 3), min(3, len(of_op)), squeeze=False).flat)
        for axis, (title, lines) in zip(axes, of_op.items(), strict=False):
            for provider, points in lines.items():
                axis.plot(*zip(*sorted(points), strict=True), marker="o", label=provider)
            axis.set(title=title, xscale="log", xlabel="n", ylabel="fraction of the ceiling", ylim=(0, None))
            axis.legend(fontsize="small")
        for axis in axes[len(of_op) :]:
            axis.set_visible(False)
        figure.suptitle(op)
        files.append(folder / f"{op}.png")
        figure.savefig(files[-1], dpi=100)
    return files


# ---- the command -----------------------------------------------------------------------------------------------------


def insert(page: Path, text: str) -> None:
    """Between the markers, instead of what is there."""
    head, rest = page.read_text().split(MARKERS[0])
    page.write_text(f"{head}{MARKERS[0]}\n\n{text}\n\n{MARKERS[1]}{rest.split(MARKERS[1])[1]}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", default=[str(RESULTS)], help="files, folders or commits")
    parser.add_argument("--part", action="append", choices=PARTS, metavar="PART", help="only these; repeatable")
    parser.add_argument("--against", metavar="SOURCE", help="what to compare with: a file, a folder or a commit")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed or nothing was measured")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="needs matplotlib")
    parser.add_argument("--markdown", nargs="?", type=Path, const=PAGE, metavar="FILE", help=f"default: {PAGE.name}")
    args = parser.parse_args(arguments)

    def of_parts(sources: list[str]) -> list[Row]:
        return [row for row in load(sources) if not args.part or row["part"] in args.part]

    try:
        rows = of_parts(args.sources)
        before = of_parts([args.against]) if args.against else []
    except FileNotFoundError as error:
        parser.error(str(error))
    if args.markdown:
        insert(args.markdown, sections(rows))
    elif args.against:
        print(changes(rows, before))
    elif not (args.check or args.plot):
        print(sections(rows))
    if args.plot:
        print(*plot(rows, args.plot), sep="\n")
    if not args.check:
        return 0
    lines = [
        f"{gpu}: {line}"
        for gpu in sorted({row["gpu"] for row in rows})
        for line in missed(by_case([row for row in rows if row["gpu"] == gpu]))
    ]
    measured = sum(row["provider"] == OURS for row in rows)
    print(*lines, f"{measured} cases, {len(lines)} bars missed", sep="\n")
    return 1 if lines or not measured else 0


if __name__ == "__main__":
    sys.exit(main())
