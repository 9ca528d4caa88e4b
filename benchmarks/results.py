"""The files of measured rows: where they are, what they were measured on, how they are written and read."""

import csv
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torchreduce as tr

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


def load(sources: Iterable[str]) -> list[dict[str, Any]]:
    """Of .csv files, of folders of them, or of benchmarks/results as some commit has it. FileNotFoundError for what is
    none of them."""
    rows = []
    for source in sources:
        path = Path(source)
        if path.exists():
            texts = [file.read_text() for file in (sorted(path.glob("*.csv")) if path.is_dir() else [path])]
        else:
            names = output_of("git", "ls-tree", "--name-only", source, "results/").splitlines()
            texts = [output_of("git", "show", f"{source}:./{name}") for name in names if name.endswith(".csv")]
            if not names:
                raise FileNotFoundError(f"{source} is no file, no folder and no commit with results")
        rows += [row for text in texts for row in parsed(text)]
    return rows
