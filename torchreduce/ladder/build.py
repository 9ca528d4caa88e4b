"""csrc/ladder, compiled when it is first needed: by nvcc or hipcc to a library for this machine's GPU, and by g++, with
the emulator of tests/simt, to a program. What is made is kept by a hash of what it was made of.
"""

import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import torch

from .catalog import FILES, PACKAGED, ROOT, SOURCES

SIMT = ROOT / "tests" / "simt"
NVCC_FLAGS = ["-std=c++20", "-O3", "-fmad=false", "--expt-relaxed-constexpr", "-Xcompiler=-fPIC"]
HIP_FLAGS = ["-x", "hip", "-std=c++20", "-O3", "-ffp-contract=off", "-fPIC"]
# As tests/simt/Makefile compiles; its fibers by the system, so that no package is needed.
EMULATOR_FLAGS = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Wno-unknown-pragmas", "-ffp-contract=off"]
EMULATED_FLAGS = ["-fno-thread-jumps", "-D__HIPCC__", "-x", "c++"]
SANITIZERS = {
    "": [],
    "asan": ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "tsan": ["-g", "-fsanitize=thread"],
}


def folder() -> Path:
    """Where what is made is kept: build/ladder of a source tree, else the user's cache."""
    if ROOT != PACKAGED:
        return ROOT / "build" / "ladder"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchreduce" / "ladder"


def _made(name: str, suffix: str, steps: list[list[str]], link: list[str]) -> Path:
    """The file that `link` makes of what `steps` compile; each ends with its source, and gets -c and -o. RuntimeError
    with the compiler's message where one fails."""
    commands = [[Path(command[0]).name, *command[1:]] for command in (*steps, link)]
    digest = hashlib.sha256(repr(commands).replace(str(ROOT), "").encode())
    for file in sorted([*SOURCES.iterdir(), SIMT / "emulator.h", SIMT / "emulator.cpp", SIMT / "fiber.h"]):
        digest.update(file.read_bytes())
    digest.update((SIMT / "hip" / "hip_runtime.h").read_bytes())
    digest.update((ROOT / "csrc" / "kernels" / "common" / "gpu.cuh").read_bytes())
    target = folder() / f"{name}-{digest.hexdigest()[:12]}{suffix}"
    target.parent.mkdir(parents=True, exist_ok=True)
    work = target.with_name(f"{target.name}.part")
    with (target.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be at it
        if not target.exists():
            _make(target, work, steps, link)
    return target


def _make(target: Path, work: Path, steps: list[list[str]], link: list[str]) -> None:
    """In a folder that is left over by no one."""
    print(f"compiling the ladder to {target}, once", file=sys.stderr, flush=True)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        objects = [str(work / f"{Path(step[-1]).stem}.o") for step in steps]
        commands = [[*step[:-1], "-c", step[-1], "-o", to] for step, to in zip(steps, objects, strict=True)]
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            for _ in pool.map(_checked, commands):
                pass
        _checked([*link[:1], *objects, *link[1:], "-o", str(work / "made")])
        (work / "made").replace(target)
    finally:
        shutil.rmtree(work)


def _checked(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ladder: {' '.join(command)}\n{done.stderr or done.stdout}")


def _compiler(*names: str, home: str = "", why: str) -> str:
    places = [os.path.join(os.environ[home], "bin")] if home in os.environ else []
    for name in names:
        found = shutil.which(name, path=os.pathsep.join([*places, os.environ.get("PATH", ""), "/usr/local/cuda/bin"]))
        if found:
            return found
    raise RuntimeError(f"ladder: {why} needs {names[0]}, which is not on PATH")


def emulated(sanitizer: str = "") -> Path:
    """The program that runs rungs without a GPU (csrc/ladder/emulated.cpp); sanitizer: "", "asan" or "tsan"."""
    cxx = os.environ.get("CXX") or _compiler("g++", "c++", why="running rungs without a GPU")
    flags = [*EMULATOR_FLAGS, f"-I{SIMT}", f"-I{ROOT / 'csrc'}"]
    sanitized = SANITIZERS[sanitizer]
    fibers = ["-DSIMT_UCONTEXT", *([f"-DSIMT_{sanitizer}"] if sanitizer else [])]
    steps = [[cxx, *flags, *EMULATED_FLAGS, *sanitized, str(SOURCES / f"{file}.cu")] for file in FILES]
    steps += [[cxx, *flags, *fibers, str(SIMT / "emulator.cpp")], [cxx, *flags, str(SOURCES / "emulated.cpp")]]
    return _made("-".join(filter(None, ["emulated", sanitizer])), "", steps, [cxx, *sanitized, "-pthread"])


def for_cuda(arch: str) -> Path:
    """The library for NVIDIA GPUs of an architecture, as "90"."""
    nvcc = _compiler("nvcc", home="CUDA_HOME", why="running rungs on an NVIDIA GPU")
    flags = [nvcc, *NVCC_FLAGS, f"-arch=sm_{arch}", f"-I{ROOT / 'csrc'}"]
    steps = [[*flags, str(SOURCES / f"{file}.cu")] for file in (*FILES, "ceiling", "cub")]
    return _made(f"sm{arch}", ".so", steps, [nvcc, "-shared", f"-arch=sm_{arch}"])


def for_hip(arch: str) -> Path:
    """The library for AMD GPUs of an architecture, as "gfx90a". Without CUB."""
    hipcc = _compiler("hipcc", home="ROCM_HOME", why="running rungs on an AMD GPU")
    flags = [hipcc, *HIP_FLAGS, f"--offload-arch={arch}", f"-I{ROOT / 'csrc'}"]
    steps = [[*flags, str(SOURCES / f"{file}.cu")] for file in (*FILES, "ceiling")]
    return _made(arch, ".so", steps, [hipcc, "-shared"])


@cache
def library() -> ctypes.CDLL:
    """For the current GPU."""
    if torch.version.hip:
        built = for_hip(torch.cuda.get_device_properties().gcnArchName.partition(":")[0])
    else:
        built = for_cuda("{}{}".format(*torch.cuda.get_device_capability()))
    loaded = ctypes.CDLL(str(built))
    text, number, pointer, long = ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int64
    for file in FILES:
        entry = getattr(loaded, f"ladder_{file}")
        entry.restype = text
        entry.argtypes = [text, number, number, pointer, pointer, pointer, long, number, number, pointer, pointer]
    loaded.ladder_ceiling.restype = text
    loaded.ladder_ceiling.argtypes = [number, number, pointer, pointer, long, pointer]
    if not torch.version.hip:
        loaded.ladder_cub.restype = text
        loaded.ladder_cub.argtypes = [number, number, number, pointer, pointer, pointer, long, long, number, pointer]
    return loaded


if __name__ == "__main__":  # python -m torchreduce.ladder.build 90: for a machine without a compiler
    print(for_cuda(*sys.argv[1:]))
