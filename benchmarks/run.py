"""Time torchreduce and its peers in one run, and write each result with the hardware and versions it was measured on.

    python -m benchmarks.run cuda --part scan-rows      # on a GPU; --list shows the parts and their cases
    python -m benchmarks.run cuda --part all --quick    # fewer repeats, float32 and bfloat16 only
    python -m benchmarks.run cuda --part scan-rows --case 'bfloat16 .*x1001 ' --provider torchreduce
    python -m benchmarks.run cpu --threads 1 2          # see cpu.py

A row is one case by one provider: p20, p50 and p80 of the times, the bytes (each input and result once), and the
fraction of the peak bandwidth that p50 reaches. The peak of a scan is the best device copy of as many bytes, that of a
reduction the best read, both measured in the same run. A case of less than 256 MiB is replayed from a graph over
rotating buffers, and every gradient from a graph. Where torch's time for 1/64 of a case promises more than --patience
seconds, it is left out, and the row says so. Exits with 1 if torchreduce failed on a case.

Results go to results/<gpu>-<part>.csv. A run that --case, --provider or --quick narrows writes only where --out says.
"""

import argparse
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import torchreduce as tr
from torchreduce._tools.bench import REPLAYED_BELOW, Run, Timed, percentile, replayed, rotation, take_turns, waited

from . import cases, cpu, grid, peers
from .bars import pair_of
from .cases import LEVELS, PROVIDERS, Case
from .grid import PARTS
from .results import FIELDS, RESULTS, Writer, commit, output_of


def facts() -> dict[str, str]:
    """What everything in this run was measured on."""
    driver = output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines()
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver[0] if driver else "unknown",
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "none",
        "commit": commit(),
    }


PATIENCE = {"scan-ops": 2}  # seconds; five ops, each as slow in torch as cumsum


# ---- a case ----------------------------------------------------------------------------------------------------------


def part_of(case: Case, x: torch.Tensor) -> torch.Tensor:
    """1/64 of it, along its longest dim; of what has weights, along the first dim."""
    longest = 0 if case.part in ("rowwise", "channels") else max(range(x.dim()), key=lambda d: x.shape[d])
    return x.narrow(longest, 0, max(1, x.shape[longest] // 64))


def expected_seconds(case: Case, inputs: tuple[torch.Tensor, ...]) -> float:
    """torch's, as 1/64 of the case tells."""
    probe = replace(case, form="")  # its result goes where torch wants
    run, few = probe.run("torch"), tuple(part_of(case, x) for x in inputs)
    run(few)
    return 64 * waited(lambda: run(few), cases.DEVICE)


def failure(error: Exception) -> str:
    return f"failed: {type(error).__name__}: {str(error).strip().splitlines()[0][:120] if str(error).strip() else ''}"


def measure(case: Case, wanted: list[str], args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row a provider that has a way to compute it; without times where it failed or was left out."""
    short = case.nbytes < REPLAYED_BELOW
    replay = short or case.backward  # the host takes longer for a gradient than a GPU
    inputs = [case.inputs() for _ in range(rotation(case.nbytes) if short else 1)]
    if not short:
        inputs *= 8 if replay else 1
    calls: dict[str, Run | Timed] = {}
    notes: dict[str, str] = {}
    for provider in wanted:
        run = case.run(provider)
        if run is None:
            continue
        notes[provider] = ""
        try:
            if provider == "torch" and not short:
                seconds = expected_seconds(case, inputs[0])
                if seconds > (args.patience or PATIENCE.get(case.part, 8)):
                    notes[provider] = f"left out: about {seconds:.0f} s"
                    continue
                if seconds > 0.9:  # its own time, measured below, loads all that there is to load
                    calls[provider] = lambda run=run: run(inputs[0])
                    continue
            run(inputs[0])
            calls[provider] = replayed(run, inputs) if replay else lambda run=run: run(inputs[0])
        except Exception as error:
            notes[provider] = failure(error)
    repeats, budget = (11, 0.1) if args.quick else (30, 0.25)
    times = take_turns(calls, cases.DEVICE, repeats, budget)
    kind = "copy" if cases.is_copy(case.part, case.op) else "read"
    ceiling, ceiling_name = peers.ceiling_seconds(kind, case.nbytes, short) if times else (0.0, "")
    rows = []
    for provider, note in notes.items():
        row = {"part": case.part, "op": case.op, "dtype": case.dtype, "shape": "x".join(map(str, case.shape)),
               "dim": case.dim, "form": case.form, "provider": provider, "bytes": case.nbytes,
               "note": note}  # fmt: skip
        if provider in times:
            t = times[provider]
            p20, p50, p80 = (percentile(t, p) for p in (20, 50, 80))
            row |= {"repeats": len(t), "p20_ms": f"{p20 * 1e3:.5f}", "p50_ms": f"{p50 * 1e3:.5f}",
                    "p80_ms": f"{p80 * 1e3:.5f}", "gb_per_s": f"{case.nbytes / p50 / 1e9:.1f}",
                    "ceiling_ms": f"{ceiling * 1e3:.5f}", "fraction": f"{ceiling / p50:.4f}",
                    "note": "timed once" if len(t) == 1 else note}  # fmt: skip
        rows.append(row)
    if times:
        rows.append({**rows[0], "provider": kind, "repeats": "", "p20_ms": "", "p50_ms": f"{ceiling * 1e3:.5f}",
                     "p80_ms": "", "gb_per_s": f"{case.nbytes / ceiling / 1e9:.1f}",
                     "ceiling_ms": f"{ceiling * 1e3:.5f}", "fraction": "1", "note": ceiling_name})  # fmt: skip
    return rows


# ---- the table that is printed ---------------------------------------------------------------------------------------

HEADING = f"{'case':52} {'ms':>9} {'p20-p80':>15} {'fraction':>8} {'bar':>5} {'goal':>5}  others' ms"


def line(case: Case, rows: list[dict[str, Any]]) -> str:
    """Our median, its fraction of the ceiling, marked where it is under the bar, and the others' medians."""
    by_provider = {row["provider"]: row for row in rows}
    shown = [f"{case.name:52}"]
    ours = by_provider.pop("torchreduce", {})
    if ours.get("p50_ms"):
        bar, goal = pair_of(case.op, case.dtype, case.shape, case.dim, case.form) or (None, None)
        fraction = float(ours["fraction"])
        under = " <" if bar and fraction < bar else "  "
        spread = f"{float(ours['p20_ms']):.4f}-{float(ours['p80_ms']):.4f}"
        shown.append(f"{float(ours['p50_ms']):9.4f} {spread:>15} {fraction:8.3f}")
        shown.append(f"{bar or '-':>5} {goal or '-':>5}{under}")
    elif ours:
        shown.append(ours["note"])
    others = []
    for provider, row in by_provider.items():
        time_or_note = f"{float(row['p50_ms']):.4f}" if row.get("p50_ms") else row["note"]
        others.append(f"{provider} {time_or_note}{' (once)' if row['note'] == 'timed once' else ''}")
    return " ".join(shown) + ", ".join(others)


# ---- the run ---------------------------------------------------------------------------------------------------------


def chosen(part: str, args: argparse.Namespace) -> list[Case]:
    """The cases of a part that the arguments leave; says which ops torchreduce lacks."""
    found = [case for case in grid.cases(part, args.quick) if not args.case or re.search(args.case, case.name)]
    missing = sorted({case.op for case in found if not hasattr(tr, case.op.split()[0])})
    if missing:
        print(f"{part}: skipped, since torchreduce has no {', '.join(missing)}")
    return [case for case in found if hasattr(tr, case.op.split()[0])]


def providers(part: str) -> list[str]:
    """Compiling takes longer than everything else, so torch.compile is in a part of its own."""
    return [provider for provider in PROVIDERS if provider != "torch.compile" or part == "compile"]


def warm_up() -> None:
    """Half a second of work, for the clocks."""
    x = torch.randn(2**28, device="cuda")
    for _ in range(1000):
        peers.copy(0, x[: 2**27], x[2**27 :])
    torch.cuda.synchronize()


def short_name(gpu: str) -> str:
    """A GPU's name as that of its files in benchmarks/results begins: "h200" of "NVIDIA H200"."""
    return gpu.removeprefix("NVIDIA ").replace(" ", "-").lower()


def run_part(part: str, args: argparse.Namespace, common: dict[str, str]) -> bool:
    """Whether torchreduce failed nowhere."""
    start, selected, failed, count = time.perf_counter(), chosen(part, args), False, 0
    if not selected:
        return True
    out = args.out and (args.out if args.out.suffix == ".csv" else args.out / f"{part}.csv")
    if not (out or args.case or args.provider or args.quick):
        out = RESULTS / f"{short_name(common['gpu'])}-{part}.csv"
    writer = Writer(out, FIELDS) if out else None
    print(f"\n{part}: {len(selected)} cases\n{HEADING}", flush=True)
    for case in selected:
        rows = measure(case, args.provider or providers(part), args)
        print(line(case, rows), flush=True)
        if writer:
            writer(common | row for row in rows)
        count += len(rows)
        failed |= any(row["provider"] in LEVELS and not row.get("p50_ms") for row in rows)
        if torch.cuda.memory_reserved() > torch.cuda.get_device_properties().total_memory // 3:
            torch.cuda.empty_cache()
    print(f"{part}: {count} rows in {time.perf_counter() - start:.0f} s, {out or 'not written'}", flush=True)
    return not failed


def cuda(args: argparse.Namespace) -> int:
    parts = list(PARTS) if args.part == ["all"] else args.part
    if args.list:
        for part in parts or PARTS:
            print(f"{part}: {PARTS[part]}")
            if parts:
                print(*(f"    {case.name}" for case in grid.cases(part, args.quick)), sep="\n")
        return 0
    if not parts:
        sys.exit("say which --part; --list shows them")
    if args.out and args.out.suffix == ".csv" and len(parts) > 1:
        sys.exit("--out: several parts need a folder")
    if not torch.cuda.is_available():
        sys.exit("torch sees no GPU")
    peers.check()
    warm_up()
    common = facts()
    print(*(f"{key} {value}" for key, value in common.items()), sep=", ")
    return 0 if all([run_part(part, args, common) for part in parts]) else 1  # all of them, whatever fails


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    devices = parser.add_subparsers(dest="device", required=True)
    on_gpu = devices.add_parser("cuda", help="in parts, each of a minute or two")
    on_gpu.add_argument("--part", action="extend", nargs="+", default=[], choices=(*PARTS, "all"), metavar="PART")
    on_gpu.add_argument("--list", action="store_true", help="list the parts, or the cases of --part, and exit")
    on_gpu.add_argument("--case", metavar="REGEX", help="only cases whose name (as --list has it) matches somewhere")
    on_gpu.add_argument("--provider", nargs="+", choices=PROVIDERS, metavar="NAME", help=", ".join(PROVIDERS))
    on_gpu.add_argument("--quick", action="store_true", help="fewer repeats; float32 and bfloat16 only")
    on_gpu.add_argument("--patience", type=float, help="seconds for a call of torch's; default: 8, in scan-ops 2")
    on_gpu.add_argument("--out", type=Path, help="a .csv file, or a folder for <part>.csv")
    cpu.add_arguments(devices.add_parser("cpu", help="a short grid compared with torch"))
    args = parser.parse_args()
    return cuda(args) if args.device == "cuda" else cpu.run(args, commit())


if __name__ == "__main__":
    sys.exit(main())
