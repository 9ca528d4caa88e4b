"""The files of measured rows: where they are, what they were measured on, how they are written and read; and the cases
that the rows make up."""

import csv
import os
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torchreduce as tr

from .cases import PROVIDERS

Row = dict[str, Any]
Key = tuple[Any, ...]  # of KEYS
Case = dict[str, Row]  # the rows of a case, by provider

KEYS = ("gpu", "part", "op", "dtype", "shape", "dim", "form")
OURS = "torchreduce"
PEERS = [provider for provider in PROVIDERS if not provider.startswith(OURS)]
RESULTS = Path(__file__).parent / "results"
FIELDS = ("gpu", "driver", "torch", "cuda", "commit", "part", "op", "dtype", "shape", "dim", "form", "provider",
          "repeats", "p20_ms", "p50_ms", "p80_ms", "bytes", "gb_per_s", "ceiling_ms", "fraction", "note")  # fmt: skip


def output_of(*command: str) -> str:
    """Empty if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=RESULTS.parent)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def commit() -> str:
    """Of this tree; of a copy without its repository what TORCHREDUCE_COMMIT says, else the version."""
    given = os.environ.get("TORCHREDUCE_COMMIT")
    return given or output_of("git", "describe", "--always", "--dirty") or f"version {tr.__version__}"


class Writer:
    """Rows reach the file at once, so that a run that is cut short leaves what it measured."""

    def __init__(self, path: Path, fields: tuple[str, ...]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("w", newline="")
        self.writer = csv.DictWriter(self.file, fields, lineterminator="\n")
        self.writer.writeheader()

    def __call__(self, rows: Iterable[dict[str, Any]]) -> None:
        self.writer.writerows(rows)
        self.file.flush()


def parsed(text: str) -> list[dict[str, Any]]:
    """The rows of a CSV file of FIELDS: shape as a tuple, dim an int, times and fraction as floats, None where not
    measured. No rows from files with other columns, which are of the CPU."""
    reader = csv.DictReader(text.splitlines())
    if not reader.fieldnames or not {"part", "fraction"} <= set(reader.fieldnames):
        return []
    rows: list[dict[str, Any]] = []
    for row in reader:
        numbers = {key: float(row[key]) if row[key] else None for key in ("p20_ms", "p50_ms", "p80_ms", "fraction")}
        shape = tuple(int(n) for n in row["shape"].split("x"))
        rows.append({**row, **numbers, "shape": shape, "dim": int(row["dim"])})
    return rows


def parsed_plain(text: str) -> list[dict[str, str]]:
    """The rows of a CSV file with other columns: those of the CPU's part, and of earlier runs on a GPU."""
    return [] if parsed(text) else list(csv.DictReader(text.splitlines()))


def load(sources: Iterable[str]) -> list[Row]:
    """The rows of FIELDS in texts(sources)."""
    return [row for text in texts(sources) for row in parsed(text)]


def load_plain(sources: Iterable[str]) -> list[dict[str, str]]:
    """The other rows."""
    return [row for text in texts(sources) for row in parsed_plain(text)]


def texts(sources: Iterable[str]) -> list[str]:
    """Of .csv files, of folders of them, or of benchmarks/results as some commit has it. FileNotFoundError for what is
    none of them."""
    found: list[str] = []
    for source in sources:
        path = Path(source)
        if path.exists():
            found += [file.read_text() for file in (sorted(path.glob("*.csv")) if path.is_dir() else [path])]
        else:
            names = output_of("git", "ls-tree", "--name-only", source, "results/").splitlines()
            found += [output_of("git", "show", f"{source}:./{name}") for name in names if name.endswith(".csv")]
            if not names:
                raise FileNotFoundError(f"{source} is no file, no folder and no commit with results")
    return found


# ---- cases -----------------------------------------------------------------------------------------------------------


def by_case(rows: Iterable[Row]) -> dict[Key, Case]:
    """The rows of each case by provider, in the rows' order; the last of several."""
    found: dict[Key, Case] = defaultdict(dict)
    for row in rows:
        found[tuple(row[key] for key in KEYS)][row["provider"]] = row
    return dict(found)


def time_of(case: Case, provider: str) -> float | None:
    return case[provider]["p50_ms"] if provider in case else None


def best_peer(case: Case) -> tuple[str, float] | None:
    """Its name and median; None where no other provider was timed."""
    times = {peer: time_of(case, peer) for peer in PEERS}
    timed = {peer: ms for peer, ms in times.items() if ms is not None}
    return min(timed.items(), key=lambda item: item[1]) if timed else None


def speedup(case: Case) -> float | None:
    """The best peer's time over torchreduce's; None where either was not measured."""
    ours, peer = time_of(case, OURS), best_peer(case)
    return peer[1] / ours if ours and peer else None


def shape_of(key: Key) -> str:
    """And the dim and the form."""
    *_, shape, dim, form = key
    return f"{'x'.join(map(str, shape))} dim {dim}{form and ' ' + form}"


def name_of(key: Key) -> str:
    """As --case of run.py has it."""
    return f"{key[2]} {key[3]} {shape_of(key)}"
