"""tools/wheel.py: what it finds wrong with wheels, which Pythons it finds, and how it ends."""

import base64
import hashlib
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import torchreduce as tr

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import wheel

INFO = "torchreduce-0.1.0.dist-info"
FILES = {
    "torchreduce/_C.cpython-312-x86_64-linux-gnu.so": "module",
    "torchreduce/libtorchreduce.so": "library",
    "torchreduce/_aten.torch-2.13.0.so": "rows",
    "torchreduce/py.typed": "",
    "torchreduce/_C.pyi": "types",
    "torchreduce/golden.json": "{}",
    f"{INFO}/METADATA": "License-Expression: Apache-2.0\nRequires-Dist: torch>=2.10\n",
    f"{INFO}/licenses/LICENSE": "Apache",
}


def write(folder, python=312, platform="manylinux_2_24_x86_64", record=None, **changes):
    """A wheel of FILES, where a key of `changes` that is part of a name gives that file other contents, or none."""
    files = {name.replace("312", str(python)): text for name, text in FILES.items()}
    for part, text in changes.items():
        [name] = [name for name in files if part in name]
        files.pop(name) if text is None else files.update({name: text})
    path = folder / f"torchreduce-0.1.0-cp{python}-cp{python}-{platform}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        lines = []
        for name, text in files.items():
            archive.writestr(name, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={record or digest},{len(text)}\n")
        archive.writestr(f"{INFO}/RECORD", "".join(lines))
    return path


def test_good_wheels_pass(tmp_path):
    assert wheel.problems([write(tmp_path), write(tmp_path, python=310)]) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"platform": "linux_x86_64"}, "a tag of manylinux_2_28 or before"),
        ({"platform": "manylinux_2_34_x86_64"}, "a tag of manylinux_2_28 or before"),
        ({"libtorchreduce": None}, "libtorchreduce.so"),
        ({"_aten": None}, "an _aten"),
        ({"_C.cpython": None}, "_C for cp312"),
        ({"golden": None}, "golden bits"),
        ({"typed": None}, "types"),
        ({"METADATA": "License-Expression: Apache-2.0\nRequires-Dist: torch\n"}, "torch's floor"),
        ({"METADATA": "Requires-Dist: torch>=2.10\n"}, "a licence"),
        ({"LICENSE": None}, "a licence"),
        ({"record": "0" * 43}, "every file recorded"),
    ],
)
def test_what_a_wheel_lacks_is_said(tmp_path, changes, said):
    [problem] = wheel.problems([write(tmp_path, **changes)])
    assert said in problem and "cp312" in problem


def test_a_wheel_that_is_too_large_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(wheel, "MOST_BYTES", 100)
    [problem] = wheel.problems([write(tmp_path)])
    assert "at most" in problem


def test_another_library_in_one_of_them_is_said(tmp_path):
    [problem] = wheel.problems([write(tmp_path), write(tmp_path, python=313, libtorchreduce="of another build")])
    assert "2 different libraries" in problem


def test_this_python_is_found():
    assert wheel.pythons()[f"cp3{sys.version_info.minor}"] == sys.executable


def test_nothing_to_check_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(wheel, "DIST", tmp_path)
    with pytest.raises(SystemExit, match="no wheel"):
        wheel.check()


def test_what_fails_is_shown():
    with pytest.raises(SystemExit, match="why it failed"):
        wheel.run([sys.executable, "-c", "import sys; sys.exit('why it failed')"])


def test_the_sources_are_those_of_the_library():
    found = {str(path) for path in wheel.sources(wheel.ROOT)}
    assert {
        "csrc/plan/plan.cpp",
        "csrc/ops/reductions.h",
        "csrc/kernels/reduce/rows.cuh",
        "csrc/kernels/scan/scan.cu",
    } <= found


def test_releases_of_torch_are_those_from_the_floor_on(monkeypatch):
    said = "torch (2.15.0)\nAvailable versions: 2.15.0, 2.13.0+cpu, 2.13.0, 2.10.0, 2.9.1, 2.9.0\n"
    monkeypatch.setattr(wheel, "run", lambda command: said)
    assert wheel.releases() == ["2.10.0", "2.13.0", "2.15.0"]


def test_torchs_that_a_wheel_serves(tmp_path):
    path = write(tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        for release in ("2.9.0", "2.10.0", "2.11.0"):
            archive.writestr(f"torchreduce/_aten.torch-{release}.so", "rows")
    assert wheel.served(path) == ["2.9.0", "2.10.0", "2.11.0"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the libraries' symbols have old versions on x86-64 alone")
def test_built_libraries_run_with_glibc_2_28():
    """And with the libstdc++ of GCC 8: they ask for no later version of a symbol."""
    latest = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}
    libraries = sorted(Path(tr.__file__).parent.glob("*.so"))
    assert len(libraries) >= 3
    for library in libraries:
        said = subprocess.run(["objdump", "-T", library], capture_output=True, text=True, check=True).stdout
        undefined = [line for line in said.splitlines() if "*UND*" in line]
        asked = re.findall(r"\((GLIBC|GLIBCXX|CXXABI)_([\d.]+)\)", "\n".join(undefined))
        assert asked, said
        for name, version in asked:
            assert tuple(map(int, version.split("."))) <= latest[name], f"{library.name}: {name}_{version}"
