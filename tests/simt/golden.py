"""The committed golden bits, from the emulated kernels: each case by each kernel family, on each width of wave.

golden.py PROGRAM WAVE...
"""

import hashlib
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from torchreduce._core.direct import NUMBERS
from torchreduce.table import BY_NAME, Op
from torchreduce.testing import GOLDEN_FILE, Golden, golden_cases

AS_PLANNED = "-"
NORMS = {0: "norm0", 1: "norm1", 2: "norm2", math.inf: "norm_greatest", -math.inf: "norm_least"}
REDUCTIONS = [AS_PLANNED, "columns", "strided"]
SCANS = [AS_PLANNED, "rows", "column_tiles", "chain"]
RECORDS = [AS_PLANNED, "extreme_rows", "column_tiles", "extreme_chain"]


def op_of(case: Golden) -> Op:
    if case.function == "vector_norm":
        return BY_NAME[NORMS[case.options["ord"]]]
    whole = case.function in ("max", "min") and "dim" not in case.options
    return BY_NAME[case.function + "_all" * whole]


def is_solved(case: Golden) -> bool:
    """Of reductions and scans. The emulation's groups `rowwise` and `segments` judge their ops by the CPU's kernels.
    Norms of other orders have no kernel."""
    if "segments" in case.options:
        return False
    return case.options["ord"] in NORMS if case.function == "vector_norm" else case.function in BY_NAME


def dims_of(case: Golden) -> list[int]:
    dim = case.options.get("dim", tuple(range(len(case.shape))))
    return [dim] if isinstance(dim, int) else list(dim)


def families(case: Golden) -> list[str]:
    """Those that can serve the case."""
    if op_of(case).kind == "reduction":
        return REDUCTIONS
    has_ring = (
        case.function in ("cumsum", "cumprod", "logcumsumexp")
        and case.dtype in (torch.float16, torch.bfloat16, torch.float32)
        and values_dtype(case) == case.dtype
        and dims_of(case)[0] % len(case.shape) == len(case.shape) - 1
        and case.shape[-1] > 1
    )
    linear, indexed = case.function == "linear_scan", case.function in ("cummax", "cummin")
    walks = (linear or indexed) and case.dtype in (torch.float32, torch.float64)
    some = ["ring"] * has_ring + ["column_walk"] * walks
    usual = RECORDS if indexed else [f for f in SCANS if f != "rows" or not (linear and case.dtype == torch.float64)]
    return [*usual, *some]


def values_dtype(case: Golden) -> torch.dtype:
    return op_of(case).result_dtype(case.dtype, case.options.get("dtype"))


def result_bytes(case: Golden) -> int:
    dims = dims_of(case) if op_of(case).kind == "reduction" else []
    count = math.prod(size for d, size in enumerate(case.shape) if d not in dims)
    item = {"values": values_dtype(case).itemsize, "indices": torch.int64.itemsize}
    return count * sum(item[part] for part in op_of(case).returns)


def problem(case: Golden, family: str, elements: Path) -> str:
    """The line that simt.cpp reads."""
    dims = sum(1 << d for d in dims_of(case))
    scan = (int(case.options.get(option, False)) for option in ("exclusive", "reverse"))
    dtypes = (NUMBERS[case.dtype], NUMBERS[values_dtype(case)])
    fields = (op_of(case).name, *dtypes, dims, *scan, family, len(case.shape), *case.shape, elements)
    return " ".join(map(str, fields))


def main(program: str, waves: list[str]) -> None:
    golden = json.loads(GOLDEN_FILE.read_text())["cases"]
    failed = passed = 0
    with tempfile.TemporaryDirectory() as folder:
        runs, lines = [], []
        for case in filter(is_solved, golden_cases()):
            elements = Path(folder) / str(case.seed)
            elements.write_bytes(case.input().flatten().view(torch.uint8).numpy().tobytes())
            for family in families(case):
                runs.append((case, family))
                lines.append(problem(case, family, elements))
        problems = Path(folder) / "problems"
        problems.write_text("\n".join(lines) + "\n")
        for wave in waves:
            command = [program, "--wave", wave, "--solve", problems]
            results = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
            for case, family in runs:
                result, results = results[: result_bytes(case)], results[result_bytes(case) :]
                digest = hashlib.sha256(result).hexdigest()[:16]
                if digest == golden[case.name]["result"]:
                    passed += 1
                else:
                    failed += 1
                    print(f"FAILED: {case.name}, family {family}, waves of {wave} lanes: {digest}")
    print(f"golden bits, waves of {' and '.join(waves)} lanes: {passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
