"""The pages of docs/results and the table of README.md, written from measured rows and from nothing else."""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from . import bars
from .cases import SCANS, is_copy
from .grid import PARTS, UNDRAWN
from .results import OURS, PEERS, Case, Key, Row, best_peer, by_case, name_of, shape_of, speedup, time_of
from .verdicts import misses, verdict

Cases = dict[Key, Case]

NEWEST_FIRST = ("NVIDIA H100", "NVIDIA H200")  # by their results, as names begin; others come before them
DTYPES = ("float32", "bfloat16", "float16")  # others come after them
MARKERS = ("<!-- measured: begin -->", "<!-- measured: end -->")
FOLDER = Path("docs") / "results"

TITLES = {
    "reduce-rows": "Reductions of rows",
    "reduce-columns": "Reductions of columns and middle dims",
    "reduce-views": "Reductions of views",
    "reduce-ops": "Other reductions, and integers",
    "reduce": "Reductions of a few shapes",
    "scan-1d": "cumsum of one row",
    "scan-rows": "cumsum of rows",
    "scan-columns": "cumsum of columns",
    "scan-few": "cumsum of few columns",
    "scan-ops": "cumprod, logcumsumexp, cummax and cummin",
    "linear": "linear_scan",
    "rowwise": "Softmax, norms and losses",
    "channels": "Norms over channels",
    "small": "Short calls",
    "compile": "Compared with torch.compile",
}
OWN_TITLES = {
    "random": "Random shapes, by regime, beside torch, CUB, Liger and Inductor",
    "segments": "Segments and scatters, beside torch's by default and with deterministic algorithms",
}
# What a reader has to know about the rows of a commit.
NOTES = {
    (
        "small",
        commit,
    ): f"The short reductions were measured at commit {commit}, before today's kernels for rows and columns."
    for commit in ("39d8ee0", "3daea89")
}

HOW_TO_READ = """\
- **of peak bandwidth**: the time of the fastest plain {kind} kernel for as many bytes, divided by torchreduce's time.
- **bar / goal**: the fractions to reach, from [benchmarks/bars.py](../../benchmarks/bars.py). The next column says
  whether torchreduce is under the bar, has met it or has reached the goal.
- **speedup**: the fastest peer's time, divided by torchreduce's time. **Bold**: torchreduce is slower.
- Fractions and speedups are rounded down.
"""


def table(heading: list[str], lines: list[list[str]], left: int = 1) -> str:
    """As Markdown, aligned: the first columns to the left."""
    widths = [max(len(line[i]) for line in [heading, *lines]) for i in range(len(heading))]

    def joined(cells: list[str]) -> str:
        padded = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
        return f"| {' | '.join(padded)} |"

    rule = "|".join("-" * (w + 2) if i < left else "-" * (w + 1) + ":" for i, w in enumerate(widths))
    return "\n".join([joined(heading), f"|{rule}|", *map(joined, lines)])


def gpus(rows: Iterable[Row]) -> list[str]:
    """Those with the newest results first."""

    def rank(gpu: str) -> tuple[int, str]:
        return next((i for i, name in enumerate(NEWEST_FIRST) if gpu.startswith(name)), -1), gpu

    return sorted({row["gpu"] for row in rows}, key=rank)


def down(x: float, digits: int) -> str:
    """Rounded down; what was read of a file with four digits stays as it is."""
    return f"{math.floor(round(x * 10**digits, 6)) / 10**digits:.{digits}f}"


def times(ratio: float | None) -> str:
    """A speedup: bold where torchreduce is slower."""
    if ratio is None:
        return "-"
    shown = down(ratio, 2 if ratio < 100 else 0)
    return f"**{shown}**" if ratio < 1 else shown


# ---- what many cases have in common ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sums:
    """Of several cases."""

    cases: Cases

    @property
    def fractions(self) -> list[float]:
        found = (case.get(OURS, {}).get("fraction") for case in self.cases.values())
        return [fraction for fraction in found if fraction is not None]

    @property
    def speedups(self) -> list[float]:
        return [ratio for ratio in map(speedup, self.cases.values()) if ratio]

    def verdicts(self, *which: str) -> int:
        return sum(verdict(key, case) in which for key, case in self.cases.items())

    @property
    def slower(self) -> str:
        """In how many cases a peer is faster, of how many with a peer."""
        return f"{sum(ratio < 1 for ratio in self.speedups)} of {len(self.speedups)}" if self.speedups else "-"

    @property
    def under(self) -> str:
        """Of how many with a bar."""
        judged = self.verdicts("under", "met", "goal")
        return f"{self.verdicts('under')} of {judged}" if judged else "-"

    def of_the_peak(self) -> list[str]:
        if not self.fractions:
            return ["-", "-"]
        return [down(statistics.median(self.fractions), 2), down(min(self.fractions), 2)]

    def speedup(self) -> list[str]:
        if not self.speedups:
            return ["-", "-"]
        return [times(statistics.geometric_mean(self.speedups)), times(min(self.speedups))]


PEAK, SPEEDUP, SLOWER = "of peak bandwidth", "speedup", "slower"
SUMS = [f"{PEAK}, median", "least", "under the bar", "at the goal", f"{SPEEDUP}, geometric mean", "least", SLOWER]


def sums(cases: Cases) -> list[str]:
    s = Sums(cases)
    return [*s.of_the_peak(), s.under, str(s.verdicts("goal")), *s.speedup(), s.slower]


def grouped(cases: Cases, by: Callable[[Key], str]) -> dict[str, Cases]:
    found: dict[str, Cases] = defaultdict(dict)
    for key, case in cases.items():
        found[by(key)][key] = case
    return found


def in_order(cases: Cases) -> Cases:
    """By op as they come, then by dtype."""
    ops = {op: i for i, op in enumerate(dict.fromkeys(key[2] for key in cases))}
    dtypes = {dtype: i for i, dtype in enumerate(dict.fromkeys([*DTYPES, *(key[3] for key in cases)]))}
    return dict(sorted(cases.items(), key=lambda item: (ops[item[0][2]], dtypes[item[0][3]])))


def op_and_dtype(key: Key) -> str:
    return f"{key[2]} {key[3]}"


# ---- a part's page ---------------------------------------------------------------------------------------------------


def line_of(key: Key, case: Case) -> list[str]:
    """Without a measurement: why there is none."""
    ours, peer, pair = case.get(OURS, {}), best_peer(case), bars.pair_of(*key[2:])
    ms, fraction = ours.get("p50_ms"), ours.get("fraction")
    shown = [f"{ms:.4f}", down(fraction, 3)] if ms else [ours.get("note", "-"), "-"]
    shown.append(f"{pair[0]:.2f} / {pair[1]:.2f}" if pair else "-")
    if peer:
        once = ", once" if case[peer[0]]["note"] == "timed once" else ""
        others = f"{peer[0]} {peer[1]:.4f}{once}"
    else:
        others = "; ".join(f"{p} {case[p]['note']}" for p in PEERS if p in case) or "-"
    return [shape_of(key), *shown, verdict(key, case), others, times(speedup(case))]


def facts(cases: Cases) -> str:
    """What they were measured on."""
    rows = [row for case in cases.values() for row in case.values()]
    kinds = ("driver", "torch", "cuda", "commit")
    found = sorted({tuple(row[kind] for kind in kinds) for row in rows})
    said = "; ".join(f"driver {d}, torch {t}, CUDA {c}, commit {h}" for d, t, c, h in found)
    repeats = sorted({int(row["repeats"]) for row in rows if row["provider"] == OURS and row.get("repeats")})
    if not repeats:
        return f"{said}."
    least, most = repeats[0], repeats[-1]
    return f"{said}; {least if least == most else f'{least} to {most}'} repeats."


def by_regime(cases: Cases) -> str:
    """How reductions stand by their regimes; empty without any."""
    lines = []
    for regime in bars.REGIMES:
        for dtype, pair in regime.pairs.items():
            mine = {k: c for k, c in cases.items() if k[3] == dtype and bars.regime_of(*k[2:]) == regime}
            if mine:
                s = Sums(mine)
                heads = [regime.name, dtype, f"{pair[0]:.2f} / {pair[1]:.2f}"]
                lines.append([*heads, s.under, str(s.verdicts("goal")), *s.of_the_peak()])
    heading = ["regime", "dtype", "bar / goal", "under the bar", "at the goal", f"{PEAK}, median", "least"]
    return table(heading, lines, left=2) if lines else ""


def part_text(part: str, rows: list[Row]) -> str:
    """All of a part, without its heading."""
    cases = by_case(row for row in rows if row["part"] == part)
    texts = []
    for gpu in gpus(rows):
        mine = in_order({key: case for key, case in cases.items() if key[0] == gpu})
        if not mine:
            continue
        commits = {row["commit"] for case in mine.values() for row in case.values()}
        notes = [NOTES[part, commit] for commit in sorted(commits) if (part, commit) in NOTES]
        groups = grouped(mine, op_and_dtype)
        texts += [f"## {gpu}", facts(mine), *notes]
        texts.append(table(["", "cases", *SUMS], [[name, str(len(c)), *sums(c)] for name, c in groups.items()]))
        if by_regime(mine):
            texts += ["By regime:", by_regime(mine)]
        for name, group in groups.items():
            heading = ["case", "ms", PEAK, "bar / goal", "", "fastest peer, ms", SPEEDUP]
            texts += [f"### {name}", table(heading, [line_of(key, case) for key, case in group.items()])]
    return "\n\n".join(texts)


def parts_of(rows: list[Row]) -> list[str]:
    return [part for part in PARTS if any(row["part"] == part for row in rows)]


def everything(rows: list[Row]) -> str:
    """For the terminal."""
    texts = [f"# {TITLES[part]}: {PARTS[part]}\n\n{part_text(part, rows)}" for part in parts_of(rows)]
    return "\n\n".join(texts) or "Nothing has been measured yet."


MADE = "Made by `python -m benchmarks.compare --markdown` from [benchmarks/results](../../benchmarks/results)"


def part_page(part: str, rows: list[Row]) -> str:
    kinds = {"copy" if is_copy(part, row["op"]) else "read" for row in rows if row["part"] == part}
    ops = dict.fromkeys(row["op"] for row in rows if row["part"] == part)
    drawn = {row["op"] for row in rows if row["part"] not in UNDRAWN}
    pictures = ", ".join(f"[{op}](../plots/{op}.png)" for op in ops if op in drawn) or "none"
    return "\n\n".join([
        f"# {TITLES[part]}", f"{PARTS[part][0].upper()}{PARTS[part][1:]}.",
        f"{MADE}. [How it is measured](../performance.md); [all parts](README.md); plots: {pictures}.",
        HOW_TO_READ.format(kind=" or ".join(sorted(kinds))).rstrip(), part_text(part, rows),
    ])  # fmt: skip


# ---- other pages -----------------------------------------------------------------------------------------------------


def index_page(rows: list[Row], others: dict[str, str]) -> str:
    lines = []
    for part in parts_of(rows):
        cases = by_case(row for row in rows if row["part"] == part)
        for gpu in gpus(rows):
            mine = {key: case for key, case in cases.items() if key[0] == gpu}
            if mine:
                commits = ", ".join(sorted({row["commit"] for case in mine.values() for row in case.values()}))
                heads = [f"[{TITLES[part]}]({part}.md)", gpu.removeprefix("NVIDIA "), commits]
                lines.append([*heads, str(len(mine)), *sums(mine)])
    links = "\n".join(f"- [{title}]({name}.md)" for name, title in others.items())
    heading = ["part", "GPU", "commit", "cases", *SUMS]
    about = f"{MADE}. [How it is measured](../performance.md)."
    kinds = "## By kind of call\n\nMedian (least) fractions, and the geometric mean (least) of speedups."
    return "\n\n".join(["# Results", about, table(heading, lines, left=3), links, kinds, kinds_table(rows)])


def losses_page(rows: list[Row]) -> str:
    texts = ["# Losses", "Every case under a bar, and every case in which a peer is faster.", f"{MADE}."]
    order = {part: i for i, part in enumerate(PARTS)}
    for gpu in gpus(rows):
        cases = by_case(row for row in rows if row["gpu"] == gpu)
        cases = dict(sorted(in_order(cases).items(), key=lambda item: order[item[0][1]]))
        said: dict[Key | None, list[str]] = defaultdict(list)
        for key, what in misses(cases):
            said[key].append(what)
        found = [
            [
                "" if key is None else f"[{key[1]}]({key[1]}.md)",
                "all" if key is None else name_of(key),
                "; ".join(whats),
            ]
            for key, whats in said.items()
        ]
        texts += [f"## {gpu}: bars missed", f"In {len(said)} of {len(cases)} cases."]
        texts += [table(["part", "case", "what is missed"], found, left=3)] if found else []
        ratios = {key: ratio for key, case in cases.items() if (ratio := speedup(case))}
        slower = sorted((key for key in ratios if ratios[key] < 1), key=lambda key: ratios[key])
        texts += [f"## {gpu}: a peer is faster", f"In {len(slower)} of {len(ratios)} cases; the slowest first."]
        lines = []
        for key in slower:
            peer, ms = best_peer(cases[key]) or ("", 0.0)
            ours = f"{cases[key][OURS]['p50_ms']:.4f}"
            heads = [f"[{key[1]}]({key[1]}.md)", name_of(key)]
            lines.append([*heads, ours, f"{peer} {ms:.4f}", f"{1 / ratios[key]:.3f}"])
        texts += [table(["part", "case", "ms", "peer, ms", "times as long"], lines, left=2)] if lines else []
    return "\n\n".join(texts)


Plain = dict[str, str]  # a row of the CPU's format


def plain_cases(plain: list[Plain]) -> dict[tuple[str, ...], dict[str, Plain]]:
    found: dict[tuple[str, ...], dict[str, Plain]] = defaultdict(dict)
    for row in plain:
        key = tuple(row[k] for k in ("device", "torch", "op", "dtype", "shape", "dim", "threads"))
        found[key][row["provider"]] = row
    return dict(found)


def plain_page(title: str, about: str, plain: list[Plain]) -> str:
    """torchreduce, torch and copies of the input: a table for each device; threads 0 is a GPU."""
    texts = [f"# {title}", about, f"{MADE}. **Bold**: torchreduce is slower than torch."]
    cases = plain_cases(plain)
    for device, torch in dict.fromkeys(key[:2] for key in cases):
        mine = {key: case for key, case in cases.items() if key[:2] == (device, torch)}
        ratios = [ratio for ratio in map(plain_speedup, mine.values()) if ratio]
        slower, mean = sum(ratio < 1 for ratio in ratios), statistics.geometric_mean(ratios)
        texts += [
            f"## {device}, torch {torch}",
            f"Slower than torch in {slower} of {len(ratios)} cases; speedup {down(mean, 2)} (geometric mean).",
        ]
        threads = ["threads"] if any(key[-1] != "0" for key in mine) else []
        copies = ["copy, ms"] if any({"copy", "ceiling"} & set(case) for case in mine.values()) else []
        lines = []
        for key, case in mine.items():
            *_, op, dtype, shape, dim, used = key
            copy = case.get("copy", case.get("ceiling"))
            ours, torchs = case.get(OURS), case.get("torch")
            shown = [row["p50_ms"] if row else "-" for row in (ours, torchs, *([copy] if copies else []))]
            commit = ours["commit"] if ours else "-"
            heads = [f"{op} {dtype}", f"{shape} dim {dim}", *([used] if threads else [])]
            lines.append([*heads, *shown, times(plain_speedup(case)), commit])
        heading = ["op", "case", *threads, "torchreduce, ms", "torch, ms", *copies, SPEEDUP, "commit"]
        texts.append(table(heading, lines, left=2))
    return "\n\n".join(texts)


def plain_speedup(case: dict[str, Plain]) -> float | None:
    return float(case["torch"]["p50_ms"]) / float(case[OURS]["p50_ms"]) if {"torch", OURS} <= set(case) else None


# ---- README.md -------------------------------------------------------------------------------------------------------


def is_large(key: Key) -> bool:
    return prod(key[4]) >= 0.99 * bars.N


def is_permuted(key: Key) -> bool:
    return key[6] == "transposed all dims"


SUMMARY: tuple[tuple[str, Callable[[Key], bool]], ...] = (
    ("sum, rows", lambda k: k[1] == "reduce-rows" and k[2] == "sum" and is_large(k)),
    ("amax, rows", lambda k: k[1] == "reduce-rows" and k[2] == "amax" and is_large(k)),
    ("argmax, rows", lambda k: k[1] == "reduce-rows" and k[2] == "argmax" and is_large(k)),
    ("sum, columns and middle dims", lambda k: k[1] == "reduce-columns" and k[2] == "sum" and not is_permuted(k)),
    ("amax, columns and middle dims", lambda k: k[1] == "reduce-columns" and k[2] == "amax" and not is_permuted(k)),
    ("argmax, columns and middle dims", lambda k: k[1] == "reduce-columns" and k[2] == "argmax" and not is_permuted(k)),
    ("sum and argmax, permuted dims", lambda k: k[1] == "reduce-columns" and is_permuted(k)),
    ("sum and argmax, 1 to 128 rows", lambda k: k[1] == "reduce-rows" and not is_large(k)),
    ("sum and argmax, short", lambda k: k[1] == "small" and k[2] not in SCANS and len(k[4]) == 1),
    ("sum and amax, views", lambda k: k[1] == "reduce-views"),
    ("mean, nansum, prod, norms, any, counts", lambda k: k[1] == "reduce-ops" and k[3] in DTYPES),
    ("softmax, log_softmax", lambda k: k[1] == "rowwise" and "softmax" in k[2] and is_large(k)),
    ("norms, cross_entropy, logsumexp, var", lambda k: k[1] == "rowwise" and "softmax" not in k[2]),
    ("batch_norm, group_norm, instance_norm", lambda k: k[1] == "channels"),
    ("cumsum, one row", lambda k: k[1] == "scan-1d" and is_large(k)),
    ("cumsum, rows", lambda k: k[1] == "scan-rows"),
    ("cumsum, columns and middle dims", lambda k: k[1] in ("scan-columns", "scan-few")),
    ("cumprod", lambda k: k[1] == "scan-ops" and k[2] == "cumprod"),
    ("logcumsumexp", lambda k: k[1] == "scan-ops" and k[2] == "logcumsumexp"),
    ("cummax, cummin", lambda k: k[1] == "scan-ops" and k[2] in ("cummax", "cummin")),
    ("linear_scan (no peer)", lambda k: k[1] == "linear"),
    ("cumsum, short", lambda k: k[1] == "small" and k[2] == "cumsum"),
)


# What users meet first, for the README; SUMMARY has all.
MET_FIRST: tuple[tuple[str, Callable[[Key], bool]], ...] = (
    ("sum of rows", lambda k: k[1] == "reduce-rows" and k[2] == "sum" and is_large(k)),
    ("sum of columns, middle dims", lambda k: k[1] == "reduce-columns" and k[2] == "sum" and not is_permuted(k)),
    (
        "argmax of rows, columns",
        lambda k: k[2] == "argmax" and k[1].startswith("reduce-") and is_large(k) and not is_permuted(k),
    ),
    ("softmax, log_softmax", lambda k: k[1] == "rowwise" and "softmax" in k[2] and is_large(k)),
    ("cross_entropy", lambda k: k[1] == "rowwise" and "cross_entropy" in k[2]),
    ("layer_norm, rms_norm", lambda k: k[1] == "rowwise" and "_norm" in k[2]),
    ("cumsum", lambda k: k[2] == "cumsum" and k[1].startswith("scan-") and is_large(k)),
    ("linear_scan", lambda k: k[1] == "linear"),
    ("short sum, argmax, cumsum", lambda k: k[1] == "small"),
)
BY_DTYPE = [f"{dtype}: {PEAK}" if i == 0 else SPEEDUP for dtype in DTYPES[:2] for i in range(2)]


def by_dtype(cases: Cases) -> list[str]:
    """Under BY_DTYPE."""
    line = []
    for dtype in DTYPES[:2]:
        s = Sums({k: c for k, c in cases.items() if k[3] == dtype})
        (median, least), (mean, worst) = s.of_the_peak(), s.speedup()
        line += ["-" if median == "-" else f"{median} ({least})", "-" if mean == "-" else f"{mean} ({worst})"]
    return line


def of_kind(holds: Callable[[Key], bool], rows: list[Row]) -> Cases:
    """In float32 and bfloat16, on the GPU with the newest results of both reductions and scans."""
    gpu = newest_with(("reduce-rows", "scan-rows"), rows)
    cases = by_case(row for row in rows if row["gpu"] == gpu)
    return {key: case for key, case in cases.items() if holds(key) and key[3] in DTYPES[:2]}


def kinds_table(rows: list[Row]) -> str:
    """A line a kind of call."""
    lines = []
    for name, holds in SUMMARY:
        if cases := of_kind(holds, rows):
            s = Sums(cases)
            lines.append([name, *by_dtype(cases), s.under, s.slower])
    gpu = newest_with(("reduce-rows", "scan-rows"), rows).removeprefix("NVIDIA ")
    return table([gpu, *BY_DTYPE, "under the bar", SLOWER], lines)


def peers_of(cases: Cases) -> str:
    """Those that were timed in any case; where none was, whether there are any."""
    timed = [peer for peer in PEERS if any(time_of(case, peer) for case in cases.values())]
    tried = any(peer in case for case in cases.values() for peer in PEERS)
    names = dict.fromkeys("CUB" if peer.startswith("cub") else peer for peer in timed)
    return ", ".join(names) or ("not measured" if tried else "none")


def bold(slower: str) -> str:
    """A count of losses, if there are any."""
    return slower if slower.startswith(("0", "-")) else f"**{slower}**"


def summary(rows: list[Row], plain: list[Plain]) -> str:
    """A line for each of MET_FIRST, one for each CPU, and a sentence for each GPU."""
    lines = []
    for name, holds in MET_FIRST:
        if cases := of_kind(holds, rows):
            lines.append([name, peers_of(cases), *by_dtype(cases), bold(Sums(cases).slower)])
    on_cpus = [row for row in plain if row["threads"] != "0"]
    for device in dict.fromkeys(row["device"] for row in on_cpus):
        cases = plain_cases([row for row in on_cpus if row["device"] == device])
        line, slower = [f"all ops on a CPU ({device})", "torch"], 0
        for dtype in DTYPES[:2]:
            ratios = [r for key, case in cases.items() if key[3] == dtype and (r := plain_speedup(case))]
            line += ["-", f"{times(statistics.geometric_mean(ratios))} ({times(min(ratios))})" if ratios else "-"]
        every = [ratio for ratio in map(plain_speedup, cases.values()) if ratio]
        slower = sum(ratio < 1 for ratio in every)
        lines.append([*line, bold(f"{slower} of {len(every)}")])
    gpu = newest_with(("reduce-rows", "scan-rows"), rows).removeprefix("NVIDIA ")
    found = {(row["part"], row["commit"]) for row in rows if row["gpu"].endswith(gpu)}
    said = [f"- {NOTES[measured]}" for measured in sorted(found & set(NOTES))]
    for name in gpus(rows):
        s = Sums(by_case(row for row in rows if row["gpu"] == name))
        slower = f"slower than the fastest peer in {s.slower}"
        said.append(f"- {name}, all cases: {slower}; of those with a bar (our target), below it in {s.under}.")
    return "\n\n".join([table([gpu, "peers", *BY_DTYPE, SLOWER], lines, left=2), "\n".join(said)]).rstrip()


def insert(page: Path, text: str) -> None:
    """Between the markers, instead of what is there."""
    head, rest = page.read_text().split(MARKERS[0])
    page.write_text(f"{head}{MARKERS[0]}\n\n{text}\n\n{MARKERS[1]}{rest.split(MARKERS[1])[1]}")


# ---- all of them -----------------------------------------------------------------------------------------------------


def newest_with(parts: Sequence[str], rows: list[Row]) -> str:
    """The one with the newest results that all of these were measured on, else the one with the newest."""
    measured = {gpu: {row["part"] for row in rows if row["gpu"] == gpu} for gpu in gpus(rows)}
    return next((gpu for gpu, found in measured.items() if set(parts) <= found), next(iter(measured)))


def write(rows: list[Row], plain: list[Plain], own: dict[str, str], root: Path) -> None:
    """docs/results, instead of what is there, and the table of README.md. `own`: pages that are written, by name."""
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.md"):
        old.unlink()
    pages = {part: part_page(part, rows) for part in parts_of(rows)} | own
    others = {"losses": "Losses: every bar missed, every case in which a peer is faster"}
    pages["losses"] = losses_page(rows)
    others |= {name: OWN_TITLES[name] for name in own}
    on_cpu = [row for row in plain if row["threads"] != "0"]
    on_gpu = [row for row in plain if row["threads"] == "0"]
    if on_cpu:
        others["cpu"] = "On a CPU, compared with torch"
        about = "Median times of torchreduce and of torch for every dim of a few shapes."
        pages["cpu"] = plain_page("On a CPU", about, on_cpu)
    if on_gpu:
        others["earlier"] = "Earlier kernels on a GPU, with slow reductions"
        about = """\
Earlier measurements: reductions by the general kernels alone, and scans for which torch takes more than half a second.
The times of today's kernels are on the other pages."""
        pages["earlier"] = plain_page("Earlier kernels", about, on_gpu)
    pages["README"] = index_page(rows, others)
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(f"{text}\n")
    insert(root / "README.md", summary(rows, plain))
