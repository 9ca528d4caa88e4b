"""Everything that has to hold of the kernels, and the proof that it did, which spares others the same run.

    tools/full.py run      make full: all of STEPS; if every one passes, writes PROOF
    tools/full.py quick    make quick: the same of QUICK_STEPS, the part that CI wants of every change of the kernels
    tools/full.py proved   exits with 0 if PROOF is of the sources and the compilers here; else says what differs

PROOF holds a hash of what STEPS judge: the contents of SOURCES. It is committed with them, and of any other sources it
proves nothing: a change, a merge, a file too many make another hash. It is written here alone, after every step has
passed on sources that did not change meanwhile; and what decides that is among SOURCES. A run that was cut off goes on
where it was, as long as no file of the repository is another.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROOF = Path(".ci/proof.json")  # in ROOT, as all that follows
PASSED = Path("build/passed.json")  # the steps that did, of a run that has not come to its end

# Folders, with all that is in them, and files: the kernels, what compiles and runs them, what they are compared with.
SOURCES = (
    *("csrc", "tests/simt", "tools", "setup.py", "Makefile", ".ci"),
    *("torchreduce/golden.json", "torchreduce/testing.py", "torchreduce/table.py", "torchreduce/plans.py"),
)
# Targets of the Makefile, one after the other.
STEPS = (
    *("lint", "build", "test-slow", "wheel", "wheel-check", "docs"),
    *("simt", "mutants-some", "hip-few", "cuda-archs-few"),
)
QUICK_STEPS = ("build", "simt-quick", "mutants-quick", "hip-quick", "cuda-archs-quick")
ENVIRONMENT = {"TORCHREDUCE_GPU": "1", "TORCH_CUDA_ARCH_LIST": "9.0"}
# Variables of the environment with which make, pytest or a compiler would do something else, or less.
LEFT_OUT = r"MAKE.*|MFLAGS|SOURCES|BUILD|PYTHON|CXX|\w+FLAGS|PYTEST_.*|TORCHREDUCE_.*|\w+SAN_OPTIONS"
COMPILERS = ("g++", "clang++-19", "nvcc")


def files() -> list[Path]:
    found = []
    for source in SOURCES:
        path = ROOT / source
        found += [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    made = {"__pycache__", ".ruff_cache", ".mypy_cache"}  # by tools, of the sources
    return sorted(f for f in found if not made & set(f.parts) and f != ROOT / PROOF)


def sources_hash() -> str:
    total = hashlib.sha256()
    for file in files():
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        total.update(f"{file.relative_to(ROOT).as_posix()} {content}\n".encode())
    return total.hexdigest()


def compilers() -> dict[str, str]:
    """What each says of its version."""
    versions = {}
    for name in COMPILERS:
        try:
            said = subprocess.run([name, "--version"], capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            said = "missing"
        versions[name] = next((line for line in said.splitlines() if "release" in line), said.splitlines()[0]).strip()
    return versions


def state(steps: Sequence[str]) -> dict[str, object]:
    return {"sources": sources_hash(), "steps": list(steps), "compilers": compilers()}


def differences(proof: dict[str, object], now: dict[str, object]) -> list[str]:
    """The fields of a proof that are not what they are here; of compilers, of those that are here."""

    def present(value: object) -> object:
        if not isinstance(value, dict):
            return value
        return {name: said for name, said in value.items() if versions.get(name) != "missing"}

    versions: dict[str, str] = now["compilers"]  # type: ignore[assignment]
    return [key for key, value in now.items() if present(proof.get(key)) != present(value)]


def tree_hash() -> str:
    """Of all files of the repository, those that are not committed among them, without PROOF."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    total = hashlib.sha256()
    for name in sorted(set(names) - {"", PROOF.as_posix()}):
        path = ROOT / name
        total.update(name.encode() + b"\0" + (path.read_bytes() if path.is_file() else b"") + b"\0")
    return total.hexdigest()


def passed_before(of: dict[str, object]) -> dict[str, int]:
    """The seconds of the steps that passed in a run of the same state that was cut off."""
    try:
        kept = json.loads((ROOT / PASSED).read_text())
    except (OSError, ValueError):
        return {}
    return dict(kept["seconds"]) if kept["of"] == of else {}


def run(name: str, steps: Sequence[str]) -> None:
    before = state(steps)
    of = {**before, "tree": tree_hash()}
    seconds = passed_before(of)
    environment = {key: value for key, value in os.environ.items() if not re.fullmatch(LEFT_OUT, key)}
    for step in steps:
        if step in seconds:
            print(f"make {name}: {step} passed before, in {seconds[step]} s", flush=True)
            continue
        start = time.monotonic()
        if subprocess.run(["make", step], cwd=ROOT, env={**environment, **ENVIRONMENT}).returncode:
            sys.exit(f"make {name}: {step} FAILED; nothing is proved")
        seconds[step] = round(time.monotonic() - start)
        print(f"make {name}: {step} passed in {seconds[step]} s", flush=True)
        if of == {**state(steps), "tree": tree_hash()}:
            (ROOT / PASSED).parent.mkdir(exist_ok=True)
            (ROOT / PASSED).write_text(json.dumps({"of": of, "seconds": seconds}))
    if changed := differences(before, state(steps)):
        sys.exit(f"make {name}: {', '.join(changed)} changed meanwhile; nothing is proved")
    (ROOT / PASSED).unlink(missing_ok=True)
    (ROOT / PROOF).write_text(json.dumps({**before, "seconds": seconds}, indent=1) + "\n")
    print(f"make {name}: all of {', '.join(steps)} passed in {sum(seconds.values())} s; {PROOF} is to be committed")


def proved() -> None:
    try:
        proof = json.loads((ROOT / PROOF).read_text())
        if not isinstance(proof, dict):
            raise ValueError
    except (OSError, ValueError):
        sys.exit(f"{PROOF} is missing, or cannot be read: the kernels are not proved")
    quick = proof.get("steps") == list(QUICK_STEPS)
    if changed := differences(proof, state(QUICK_STEPS if quick else STEPS)):
        sys.exit(f"{PROOF} is of other {' and '.join(changed)}: the kernels are not proved")
    print(f"{PROOF}: a {'quick' if quick else 'full'} run proved these kernels")


if __name__ == "__main__":
    if sys.argv[1:] == ["run"]:
        run("full", STEPS)
    elif sys.argv[1:] == ["quick"]:
        run("quick", QUICK_STEPS)
    elif sys.argv[1:] == ["proved"]:
        proved()
    else:
        sys.exit(__doc__)
