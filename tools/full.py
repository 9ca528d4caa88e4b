"""Everything that has to hold of the GPU kernels, and the proof that it did, which spares others the same run.

    tools/full.py run      make full: all of STEPS; then PROOF has every check of every part
    tools/full.py quick    make quick: what CI wants, QUICK_CHECKS, of the parts that PROOF lacks
    tools/full.py proved   exits with 0 if it lacks none; else says what
    tools/full.py same     compiles the parts that are not proved. Where PROOF has the same machine code, of another
                           text, it has the checks of that text for the new one, too. For moves and renames: neither
                           what launches a kernel is compared, nor what only AMD's compiler or the emulation sees

PROOF has for each part (parts.py) a hash of its text, one of its machine code, and of each check that passed a hash of
all that decides it: the part's text, who judges, the compilers. It is committed with the kernels. Of any other text,
judge or compiler it proves nothing. It is written here alone, after a check, for parts that did not change meanwhile.
So a quick run that was cut off goes on where it was; a full one does, as long as no file of the repository is another.
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

import archs
import isa
import parts
import same

ROOT = Path(__file__).resolve().parent.parent
PROOF = Path(".ci/proof.json")  # in ROOT, as all that follows
PASSED = Path("build/passed.json")  # the steps that did, of a full run that has not come to its end
BUILT = archs.PARTS / isa.CUDA_ARCH  # the objects that make quick inspects

# Targets of the Makefile, one after the other.
STEPS = (
    *("lint", "build", "test-slow", "wheel", "wheel-check", "docs"),
    *("simt", "mutants-some", "hip-few", "cuda-archs-few"),
)
ENVIRONMENT = {"TORCHREDUCE_GPU": "1", "TORCH_CUDA_ARCH_LIST": "9.0"}
QUICK_CHECKS = ("built", "emulated", "amd")
AMD_ARCHS = ("gfx90a", "gfx1100")  # wavefronts of 64 lanes, and of 32: one of them a run
# Variables of the environment with which make, pytest or a compiler would do something else, or less.
LEFT_OUT = r"MAKE.*|MFLAGS|SOURCES|BUILD|KERNELS|PYTHON|CXX|\w+FLAGS|PYTEST_.*|TORCHREDUCE_.*|\w+SAN_OPTIONS"
COMPILERS = ("g++", "clang++-19", "nvcc")


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


def is_entry(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


class Proof:
    """What PROOF has. What cannot be read is as if it were missing."""

    def __init__(self) -> None:
        try:
            content = json.loads((ROOT / PROOF).read_text())
        except (OSError, ValueError):
            content = {}
        found = [content.get(key) if isinstance(content, dict) else {} for key in ("compilers", "parts")]
        self.compilers, listed = (value if isinstance(value, dict) else {} for value in found)
        self.parts: dict[str, dict[str, str]] = {name: entry for name, entry in listed.items() if is_entry(entry)}

    def write(self, state: "State") -> None:
        listed = {name: self.parts[name] for name in state.texts if name in self.parts}
        text = json.dumps({"compilers": state.versions, "parts": listed}, indent=1)
        (ROOT / PROOF).write_text(text + "\n")


class State:
    """The parts' texts, and those who judge them, as they are now."""

    def __init__(self, proof: Proof) -> None:
        # What is not here compiles nothing: it is as in the proof.
        here = compilers()
        self.versions = {n: proof.compilers.get(n, said) if said == "missing" else said for n, said in here.items()}
        self.texts = parts.texts()
        self.mark = parts.marker(self.versions)

    def has(self, proof: Proof, name: str, check: str) -> bool:
        return proof.parts.get(name, {}).get(check) == self.mark(check, self.texts[name])

    def lacking(self, proof: Proof, check: str) -> list[str]:
        return [n for n in self.texts if check in parts.checks(n) and not self.has(proof, n, check)]


def record(check: str, names: Sequence[str], before: State, build: Path) -> None:
    """That parts passed a check, which began with their state `before`. `build`: the folder of their objects."""
    proof = Proof()
    now = State(proof)
    changed = []
    for name in names:
        text = now.texts.get(name, "")
        if now.mark(check, text) != before.mark(check, before.texts[name]):
            changed.append(name)
            continue
        entry = proof.parts.get(name, {})
        proof.parts[name] = entry if entry.get("text") == text else {"text": text}
        proof.parts[name][check] = now.mark(check, text)
        if check == "built":
            proof.parts[name]["code"] = same.digest(ROOT / build / f"{name}.o")
    proof.write(now)
    if changed:
        sys.exit(f"{', '.join(changed)}, or who judges, changed meanwhile: not proved")


def call(what: str, command: Sequence[str], added: dict[str, str]) -> int:
    """Runs a command that has to succeed. Returns the seconds."""
    start = time.monotonic()
    environment = {key: value for key, value in os.environ.items() if not re.fullmatch(LEFT_OUT, key)}
    if subprocess.run(command, cwd=ROOT, env={**environment, **added}).returncode:
        sys.exit(f"{what} FAILED; it is not proved")
    seconds = round(time.monotonic() - start)
    print(f"{what} passed in {seconds} s", flush=True)
    return seconds


def on_parts(check: str, names: list[str], state: State) -> None:
    """One of QUICK_CHECKS, of some parts."""
    python, what = sys.executable, f"{check}, {len(names)} parts,"
    if check == "emulated":
        kernels = {"KERNELS": " ".join(sorted({parts.emulation(name) or "" for name in names}))}
        jobs = min(8, len(os.sched_getaffinity(0)))
        call(what, ["make", "-s", "-C", "tests/simt", f"-j{jobs}", "quick"], kernels)
        call("mutants", [python, "tests/simt/mutants.py", "--quick"], kernels)
    else:
        turn = int(state.texts[names[0]], 16) % len(AMD_ARCHS)  # decided by the sources alone
        arch = AMD_ARCHS[turn] if check == "amd" else isa.CUDA_ARCH
        call(what, [python, "tools/archs.py", "parts", arch, *names], {})


def quick() -> None:
    for check in QUICK_CHECKS:
        proof = Proof()
        before = State(proof)
        if names := before.lacking(proof, check):
            on_parts(check, names, before)
            record(check, names, before, BUILT)
    print(f"make quick: every part is proved; {PROOF} is to be committed")


def proved() -> None:
    proof = Proof()
    now = State(proof)
    lacking = {check: now.lacking(proof, check) for check in QUICK_CHECKS}
    for name, said in now.versions.items():
        if proof.compilers.get(name, said) != said:
            print(f"{PROOF} is of another compiler: {proof.compilers[name]}, here {said}")
    if any(lacking.values()):
        listed = [f"{check}: {' '.join(names)}" for check, names in lacking.items() if names]
        sys.exit("\n".join([f"{PROOF} does not prove all of the kernels. It lacks", *listed]))
    print(f"{PROOF} proves the kernels, {len(now.texts)} parts")


def proved_otherwise(proof: Proof, state: State) -> dict[str, list[str]]:
    """The parts that were compiled when they had another text, with the checks that PROOF has of that."""
    found = {}
    for name, text in state.texts.items():
        entry = proof.parts.get(name, {})
        old = entry.get("text", text)
        passed = [check for check in parts.checks(name) if entry.get(check) == state.mark(check, old)]
        if old != text and "built" in passed:
            found[name] = passed
    return found


def same_code() -> None:
    proof = Proof()
    before = State(proof)
    known = proved_otherwise(proof, before)
    if known:
        on_parts("built", list(known), before)
    if State(proof).texts != before.texts:
        sys.exit("the kernels changed meanwhile: not proved")
    for name, passed in known.items():
        code, text = same.digest(ROOT / BUILT / f"{name}.o"), before.texts[name]
        if code == proof.parts[name].get("code"):
            proof.parts[name] = {"text": text, "code": code, **{check: before.mark(check, text) for check in passed}}
            print(f"{name}: the machine code of the proved text")
        else:
            print(f"{name}: other machine code")
    proof.write(before)
    proved()


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
    """The seconds of the steps that passed in a full run of the same state that was cut off."""
    try:
        kept = json.loads((ROOT / PASSED).read_text())
    except (OSError, ValueError):
        return {}
    return dict(kept["seconds"]) if kept["of"] == of else {}


def run() -> None:
    before = State(Proof())
    of = {"tree": tree_hash(), "compilers": before.versions, "steps": list(STEPS)}
    seconds = passed_before(of)
    for step in STEPS:
        if step in seconds:
            print(f"make full: {step} passed before, in {seconds[step]} s", flush=True)
            continue
        seconds[step] = call(f"make full: {step}", ["make", step], ENVIRONMENT)
        if tree_hash() == of["tree"]:
            (ROOT / PASSED).parent.mkdir(exist_ok=True)
            (ROOT / PASSED).write_text(json.dumps({"of": of, "seconds": seconds}))
    for check in parts.JUDGES:
        names = [name for name in before.texts if check in parts.checks(name)]
        record(check, names, before, parts.project.BUILD)
    (ROOT / PASSED).unlink(missing_ok=True)
    print(f"make full: all of {', '.join(STEPS)} passed in {sum(seconds.values())} s; {PROOF} is to be committed")


if __name__ == "__main__":
    commands = {"run": run, "quick": quick, "proved": proved, "same": same_code}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]]()
