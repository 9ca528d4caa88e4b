"""setup.py: what it builds by default, and what it says to type where it cannot build."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchreduce import _C

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
import setup  # noqa: E402


def test_too_old_a_torch_is_refused(tmp_path):
    """By a package of that name and version that is found first."""
    for file, text in (("torch/__init__.py", ""), ("torch-2.9.1+cpu.dist-info/METADATA", "Version: 2.9.1+cpu\n")):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text(text)
    done = subprocess.run([sys.executable, "setup.py", "--version"], cwd=ROOT, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(tmp_path)})  # fmt: skip
    assert done.returncode != 0 and "2.9.1+cpu" in done.stderr and "'torch>=2.10'" in done.stderr


NO_GPU, NO_COMPILER = "no GPU", "but no nvcc"


@pytest.mark.parametrize(
    ("environment", "command", "gpus", "reason"),
    [
        ({}, "nvcc", [], NO_GPU),  # a compiler alone is no reason
        ({}, None, [], NO_GPU),
        ({}, "nvcc", ["9.0"], ""),
        ({}, None, ["9.0"], NO_COMPILER),
        ({"TORCHREDUCE_GPU": "1"}, "nvcc", [], ""),
        ({"FORCE_CUDA": "1"}, "nvcc", [], ""),
        ({"FORCE_CUDA": "0"}, "nvcc", [], NO_GPU),
        ({"TORCH_CUDA_ARCH_LIST": "9.0"}, "nvcc", [], ""),
        ({"TORCH_CUDA_ARCH_LIST": " "}, "nvcc", [], NO_GPU),
        ({"PYTORCH_ROCM_ARCH": "gfx90a"}, "nvcc", [], NO_GPU),  # of a torch for ROCm
        ({"TORCHREDUCE_GPU": "0"}, "nvcc", ["9.0"], "TORCHREDUCE_GPU=0"),
        ({"TORCHREDUCE_GPU": "0", "FORCE_CUDA": "1", "TORCH_CUDA_ARCH_LIST": "9.0"}, None, [], "TORCHREDUCE_GPU=0"),
    ],
)
def test_the_gpu_part_is_built_for_a_gpu_or_if_asked_for(environment, command, gpus, reason):
    said = setup.why_cpu_alone(setup.Cuda, environment, command, gpus)
    assert (reason in said) if reason else not said
    assert reason != NO_GPU or "TORCHREDUCE_GPU=1" in said  # how to have it


def test_the_gpu_part_for_amd_is_built_by_the_same_rule():
    assert not setup.why_cpu_alone(setup.Hip, {}, "hipcc", ["gfx90a"])
    assert not setup.why_cpu_alone(setup.Hip, {"PYTORCH_ROCM_ARCH": "gfx90a"}, "hipcc", [])
    assert NO_GPU in setup.why_cpu_alone(setup.Hip, {"TORCH_CUDA_ARCH_LIST": "9.0"}, "hipcc", [])


@pytest.mark.parametrize("name", ["TORCHREDUCE_GPU", "FORCE_CUDA", "TORCH_CUDA_ARCH_LIST"])
def test_a_gpu_part_that_is_asked_for_needs_its_compiler(name):
    value = "9.0" if name == "TORCH_CUDA_ARCH_LIST" else "1"
    with pytest.raises(SystemExit, match=f"{name}={value} .* no nvcc.*CUDA_HOME.*TORCHREDUCE_GPU=0"):
        setup.why_cpu_alone(setup.Cuda, {name: value}, None, ["9.0"])


def test_gpus_are_found_by_the_vendors_tools(tmp_path, monkeypatch):
    printed = {"nvidia-smi": "NVIDIA H100 80GB HBM3, 9.0\nTesla T4, 7.5", "rocm_agent_enumerator": "gfx000\ngfx90a"}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert setup.Cuda.present() == setup.Hip.present() == []
    for name, lines in printed.items():
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{lines}'\n")
        (tmp_path / name).chmod(0o755)
    assert setup.Cuda.present() == ["9.0", "7.5"] and setup.Hip.present() == ["gfx90a"]


def toolkit(folder, archs, gpus=()):
    """What setup.py makes of these architectures on a machine that has nvcc and these GPUs: its list, or why not."""
    for name, printed in (("nvcc", "release 13.0, V13.0.88"), ("nvidia-smi", "\n".join(gpus))):
        command = folder / name
        command.write_text(f"#!/bin/sh\ncat <<'END'\n{printed}\nEND\n")
        command.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "TORCH_CUDA_ARCH_LIST": archs}
    code = f"import setup; print(setup.Cuda({str(folder / 'nvcc')!r}).archs)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env=environment)
    return done.stdout.strip() if done.returncode == 0 else done.stderr.strip()


def test_gpus_before_ampere_are_refused(tmp_path):
    """cvt.rn.bf16x2 does not exist there: nvcc would say so of each kernel."""
    rule = "the kernels need NVIDIA GPUs of compute capability 8.0 or later"
    for archs in ("7.5", "7.0+PTX", "8.0;7.5", "9.0 6.1"):
        said = toolkit(tmp_path, archs)
        assert said.startswith("TORCH_CUDA_ARCH_LIST names") and rule in said and "\n" not in said, said
    assert toolkit(tmp_path, "8.0;9.0+PTX;12.0") == "['12.0', '8.0', '9.0+PTX']"
    turing, hopper = "Tesla T4, 7.5", "NVIDIA H100 80GB HBM3, 9.0"
    said = toolkit(tmp_path, "", [turing])
    assert said.startswith("Tesla T4 has compute capability 7.5") and rule in said and "\n" not in said, said
    assert toolkit(tmp_path, "", [turing, hopper]) == "['9.0']"
    assert toolkit(tmp_path, "9.0", [turing]) == "['9.0']"
    assert toolkit(tmp_path, "") == "['8.0', '9.0+PTX']"


def test_a_gpu_before_ampere_is_refused_when_it_is_first_used():
    """By the rule that device.cu asks of each GPU before anything is planned for it."""
    for major, minor in ((3, 5), (6, 1), (7, 0), (7, 5)):
        said = _C.refusal("Tesla T4", major, minor)
        assert f"Tesla T4 (compute capability {major}.{minor})" in said and "8.0 or later" in said and "\n" not in said
    for major, minor in ((8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 1)):
        assert _C.refusal("NVIDIA H100", major, minor) == ""


def test_what_is_missing_is_said_in_one_line():
    """By a Python that sees no packages, and by one that sees no compiler."""
    done = subprocess.run([sys.executable, "-I", "-S", "setup.py", "--version"], cwd=ROOT, capture_output=True,
                          text=True, env={**os.environ, "PATH": ""})  # fmt: skip
    [line] = done.stderr.splitlines()
    assert done.returncode != 0 and all(name in line for name in ("torch", "setuptools", "pybind11", "ninja"))
    done = subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=ROOT, capture_output=True,
                          text=True, env={**os.environ, "CXX": "no-such-compiler", "TORCHREDUCE_GPU": "0"})  # fmt: skip
    [line] = done.stderr.splitlines()
    assert done.returncode != 0 and "no-such-compiler" in line and "CXX" in line


def test_what_is_installed_has_every_module(tmp_path):
    """Not a checkout's folders alone: packages that setuptools is not told of are missing from a wheel."""
    new = ["egg_info", "--egg-base", str(tmp_path)]  # an older one may list more
    subprocess.run([sys.executable, "setup.py", "-q", *new, "build_py", "--build-lib", str(tmp_path)], cwd=ROOT,
                   check=True, capture_output=True, env={**os.environ, "TORCHREDUCE_GPU": "0"})  # fmt: skip
    modules = [{p.relative_to(root) for p in root.glob("torchreduce/**/*.py*") if p.suffix in (".py", ".pyi")}
               for root in (ROOT, tmp_path)]  # fmt: skip
    assert modules[0] == modules[1] and {"_core", "override"} <= {p.parent.name for p in modules[1]}


def test_what_was_built_from_other_headers_cannot_be_loaded():
    """_C and the override name a symbol of the library that is named after the headers of all of them."""
    package = ROOT / "torchreduce"
    found = {}
    for file in (package / "libtorchreduce.so", *package.glob("_C.*.so"), *package.glob("_aten.*.so")):
        listed = subprocess.run(["nm", "-D", file], capture_output=True, text=True, check=True).stdout.splitlines()
        found[file.name.split(".")[0]] = [line.split()[-2:] for line in listed if "torchreduce_interface_" in line]
    ((kind, name),) = found.pop("libtorchreduce")
    assert kind == "R" and found and all(entry == [["U", name]] for entry in found.values())
