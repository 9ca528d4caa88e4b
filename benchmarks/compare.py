"""Tables, plots and verdicts of measured rows.

python -m benchmarks.compare                            # tables of benchmarks/results
python -m benchmarks.compare out/ --check               # exits with 1 where a bar is missed
python -m benchmarks.compare --against HEAD~3           # this tree's results beside those of a commit (or folder)
python -m benchmarks.compare --markdown                 # writes docs/results and the table of README.md
python -m benchmarks.compare --plot                     # draws docs/plots: fraction of the peak bandwidth over n
"""

import argparse
import sys
from pathlib import Path

from . import drawn, pages, plots, segments
from .grid import PARTS
from .results import OURS, RESULTS, Row, by_case, load, load_plain, name_of, time_of
from .verdicts import missed

ROOT = RESULTS.parents[1]


def changes(rows: list[Row], before: list[Row]) -> str:
    """torchreduce's median times beside those of other results, the most changed first."""
    old, lines = by_case(before), []
    for key, case in by_case(rows).items():
        now, then = time_of(case, OURS), time_of(old.get(key, {}), OURS)
        if now and then:
            fractions = [f"{cases[OURS]['fraction']:.3f}" for cases in (old[key], case)]
            lines.append([f"{key[0]}: {name_of(key)}", f"{then:.4f}", f"{now:.4f}", f"{now / then:.3f}", *fractions])
    lines.sort(key=lambda line: -abs(float(line[3]) - 1))
    return pages.table(["case", "ms before", "now", "now / before", "of peak bandwidth before", "now"], lines)


def own_pages(sources: list[str]) -> dict[str, str]:
    """The pages of results that have columns of their own, by name."""
    found = {}
    if of_drawn := drawn.loaded(sources):
        found["random"] = drawn.page(of_drawn)
    if of_segments := segments.loaded(sources):
        found["segments"] = segments.page(of_segments)
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", default=[str(RESULTS)], help="files, folders or commits")
    parser.add_argument("--part", action="append", choices=PARTS, metavar="PART", help="only these; repeatable")
    parser.add_argument("--against", metavar="SOURCE", help="what to compare with: a file, a folder or a commit")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed or nothing was measured")
    parser.add_argument("--plot", nargs="?", type=Path, const=ROOT / "docs" / "plots", metavar="FOLDER",
                        help="default: docs/plots; needs matplotlib")  # fmt: skip
    parser.add_argument("--markdown", nargs="?", type=Path, const=ROOT, metavar="FOLDER",
                        help="of README.md and docs; default: this tree")  # fmt: skip
    args = parser.parse_args(arguments)
    if args.markdown and args.part:
        parser.error("--markdown writes all parts, not --part")

    def of_parts(sources: list[str]) -> list[Row]:
        return [row for row in load(sources) if not args.part or row["part"] in args.part]

    try:
        rows = of_parts(args.sources)
        before = of_parts([args.against]) if args.against else []
    except FileNotFoundError as error:
        parser.error(str(error))
    if args.markdown and not rows:
        parser.error("nothing was measured")
    if args.markdown:
        pages.write(rows, load_plain(args.sources), own_pages(args.sources), args.markdown)
    elif args.against:
        print(changes(rows, before))
    elif not (args.check or args.plot):
        print(pages.everything(rows))
    if args.plot:
        print(*plots.draw(rows, args.plot), sep="\n")
    if not args.check:
        return 0
    lines = [
        f"{gpu}: {line}"
        for gpu in pages.gpus(rows)
        for line in missed(by_case(row for row in rows if row["gpu"] == gpu))
    ]
    measured = sum(row["provider"] == OURS for row in rows)
    print(*lines, f"{measured} cases, {len(lines)} bars missed", sep="\n")
    return 1 if lines or not measured else 0


if __name__ == "__main__":
    sys.exit(main())
