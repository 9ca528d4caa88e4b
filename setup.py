"""Builds torchreduce: setuptools in front, one ninja file behind.

    torchreduce/libtorchreduce.so  kernels, plans and the ops registered with torch; knows no Python
    torchreduce/_C.<abi>.so        build facts, instruction sets and plans, for this Python

Needs torch (a CPU-only one is enough), setuptools, ninja, pybind11 and a C++20 compiler; uses nvcc where it finds one,
and no GPU. Downloads nothing. The environment:

    TORCHREDUCE_GPU        0: build no GPU part; 1: fail without nvcc; unset: build it if nvcc is found
    CUDA_HOME, CXX         the toolkit (else nvcc on PATH) and the host compiler (else g++)
    TORCH_CUDA_ARCH_LIST   "8.0;9.0+PTX"; unset: the GPUs of this machine, else DEFAULT_ARCHS
    MAX_JOBS               compilers at a time; unset: one for each core
    TORCHREDUCE_LIBRARY    a libtorchreduce.so built elsewhere, used as it is: then only _C is built
"""

import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path


def package_root(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)  # does not import it
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


HAS_NINJA = package_root("ninja") or shutil.which("ninja")
if not (package_root("torch") and package_root("setuptools") and package_root("pybind11") and HAS_NINJA):
    PIP = f"{sys.executable} -m pip install"
    sys.exit(f"Type: {PIP} torch setuptools ninja pybind11 && {PIP} --no-build-isolation .")

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
BUILD = Path("build/torchreduce")  # in ROOT, where every command runs
LIBRARY = "libtorchreduce.so"

# Runs on every GPU since Ampere: compiled for 8.0, and for what came later by the driver, when a kernel is first used.
DEFAULT_ARCHS = "8.0+PTX"

# No contraction and no fast-math: the bits of every result are part of the contract (docs/numerics.md).
HOST_FLAGS = ["-std=c++20", "-O3", "-fPIC", "-ffp-contract=off", "-Wall", "-Wno-psabi"]
NVCC_FLAGS = ["-std=c++20", "-O3", "-fmad=false", "--expt-relaxed-constexpr"]
NVCC_HOST_FLAGS = ["-fPIC", "-ffp-contract=off"]
STABLE_ABI = ["-DTORCH_TARGET_VERSION=0x020a000000000000"]  # loads in torch 2.10 and every later one

# The CPU kernels are compiled once for each instruction set. Baseline is linked first: of an inline function that
# several of them emit the linker keeps the first copy, which must run everywhere.
ISA_FLAGS = {"baseline": []}
if platform.machine().lower() in ("x86_64", "amd64"):
    ISA_FLAGS["avx2"] = ["-mavx2", "-mfma", "-mf16c"]
    ISA_FLAGS["avx512"] = [
        *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma", "-mf16c"),
        "-mprefer-vector-width=512",
    ]


def find_nvcc() -> str | None:
    wanted = os.environ.get("TORCHREDUCE_GPU", "auto")
    if wanted == "0":
        return None
    home = os.environ.get("CUDA_HOME")
    nvcc = shutil.which(f"{home}/bin/nvcc" if home else "nvcc")
    if nvcc is None and wanted == "1":
        sys.exit("TORCHREDUCE_GPU=1, but there is no nvcc: put it on PATH or set CUDA_HOME")
    return nvcc


def output_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def cuda_version(nvcc: str) -> str:
    return re.search(r"release.* V([\d.]+)", output_of(nvcc, "--version"))[1]


def cuda_archs() -> list[str]:
    """The architectures to compile for: "9.0" is machine code, "9.0+PTX" is that and what later GPUs can compile."""
    listed = os.environ.get("TORCH_CUDA_ARCH_LIST", "")
    if not listed.strip():
        try:
            found = output_of("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
        except (OSError, subprocess.CalledProcessError):
            found = ""
        listed = " ".join(re.findall(r"\d+\.\d", found)) or DEFAULT_ARCHS
    archs = sorted(set(re.split(r"[\s;,]+", listed.strip())))
    for arch in archs:
        if not re.fullmatch(r"\d+\.\d[af]?(\+PTX)?", arch):
            sys.exit(f'TORCH_CUDA_ARCH_LIST names "{arch}". Supported are forms like "9.0", "9.0a" and "8.0+PTX"')
    return archs


def arch_flags(archs: list[str]) -> list[str]:
    flags = []
    for arch in archs:
        number = arch.removesuffix("+PTX").replace(".", "")
        flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if arch.endswith("+PTX"):
            flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    return flags


def parts_of(source: Path) -> list[str]:
    """The ops that a .cu file is compiled for one by one, with -DTR_PART=<op>, so that no compiler runs for long.

    They are named by the file's first line, "// parts: TR_FOR_EACH_REDUCTION": a list in csrc/call.h.
    """
    with source.open(encoding="utf-8") as file:
        match = re.fullmatch(r"// parts: (\w+)\s*", file.readline())
    if match is None:
        return []
    table = (ROOT / "csrc" / "call.h").read_text(encoding="utf-8").replace("\\\n", " ")
    return re.findall(r"X\((\w+)\)", re.search(rf"#define {match[1]}\(X\)(.*)", table)[1])


def quoted(flags: list[str]) -> str:
    return " ".join(shlex.quote(flag) for flag in flags).replace("$", "$$")


TRACKED = "$flags -MD -MF $out.d -c $in -o $out"
DESCRIPTION = "  description = $out"

# A kernel has one host function, which launches it; its local variables are symbols of the object file.
LOCAL_OF_STUB = r"s/:.*__device_stub__\(.*\)E[0-9]*__[a-z]*$$/ \1/p"
COUNT_KERNELS = f"echo $in | xargs -r nm -A | sed -n '{LOCAL_OF_STUB}' | sort -u | wc -l"


class Ninja:
    """A ninja file: rules with tracked headers, then one build statement a file."""

    def __init__(self, cxx: str, nvcc: str | None) -> None:
        self.lines = [
            f"builddir = {BUILD}",
            *("rule cxx", f"  command = {cxx} {TRACKED}", "  depfile = $out.d", "  deps = gcc", DESCRIPTION),
            *("rule nvcc", f"  command = {nvcc} {TRACKED}", "  depfile = $out.d", "  deps = gcc", DESCRIPTION),
            *("rule link", f"  command = {cxx} -shared $in -o $out $flags", DESCRIPTION),
            *("rule nvlink", f"  command = {nvcc} -shared $in -o $out $flags", DESCRIPTION),
            *("rule count", f'  command = echo "#define TR_KERNEL_COUNT $$({COUNT_KERNELS})" > $out', DESCRIPTION),
        ]

    def build(self, rule: str, inputs: list[str], output: str, flags: list[str], needs: str = "") -> str:
        """Returns the output's path."""
        path = str(BUILD / output)
        self.lines.append(f"build {path}: {rule} {' '.join(inputs)}{' | ' + needs if needs else ''}")
        self.lines.append(f"  flags = {quoted(flags)}")
        return path

    def run(self) -> None:
        file = BUILD / "build.ninja"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(self.lines) + "\n")
        ninja = [sys.executable, "-m", "ninja"] if package_root("ninja") else ["ninja"]
        jobs = os.environ.get("MAX_JOBS") or str(len(os.sched_getaffinity(0)))
        if subprocess.call([*ninja, "-f", str(file), "-j", jobs], cwd=ROOT):
            sys.exit("torchreduce did not build: the first error is above")


class BuildExtension(build_ext):
    """Ninja decides what is stale; its two files are then copied beside the package's Python files."""

    def run(self) -> None:
        start = time.monotonic()
        self.torch, self.nvcc = package_root("torch"), find_nvcc()
        self.ninja = Ninja(os.environ.get("CXX", "g++"), self.nvcc)
        # Messages and debug lines name files as "csrc/plan.cpp" and "torch/...", wherever the build ran.
        self.prefix_maps = [f"-ffile-prefix-map={ROOT}/=", f"-ffile-prefix-map={self.torch.parent}/="]

        prebuilt = os.environ.get("TORCHREDUCE_LIBRARY")
        library = str(Path(prebuilt).resolve()) if prebuilt else self.library()
        module = self.module(library)
        self.ninja.run()
        for built, target in zip((library, module), self.get_outputs(), strict=True):
            self.install_file(Path(built), Path(target))
        print(f"torchreduce: {self.summary(prebuilt)}, in {time.monotonic() - start:.0f} s", flush=True)

    def library(self) -> str:
        """libtorchreduce.so. Returns its path."""
        kernels = self.kernels() if self.nvcc else []
        archs = cuda_archs() if self.nvcc else []
        host = [*HOST_FLAGS, *self.prefix_maps, "-Icsrc", f"-I{BUILD}"]
        host += ["-DTORCHREDUCE_CUDA"] if self.nvcc else []
        host += ["-DTR_BASELINE_ONLY"] if len(ISA_FLAGS) == 1 else []

        objects = [self.compile("csrc/plan.cpp", host)]
        objects += [self.compile("csrc/torch_ops.cpp", [*host, *STABLE_ABI, "-isystem", f"{self.torch}/include"])]
        objects += [self.compile("csrc/cpu/dispatch.cpp", host)]
        for isa, flags in ISA_FLAGS.items():
            for source in ("csrc/cpu/reduce.cpp", "csrc/cpu/scan.cpp"):
                objects.append(self.compile(source, [*host, *flags, f"-DTR_ISA={isa}"], isa))

        facts = {
            "TR_VERSION": self.distribution.get_version(),
            "TR_CUDA_VERSION": cuda_version(self.nvcc) if self.nvcc else "",
            "TR_CUDA_ARCHS": ";".join(archs),
            "TR_FLAGS": " ".join(HOST_FLAGS) + (f" | nvcc {' '.join(NVCC_FLAGS)}" if self.nvcc else ""),
        }
        count = self.ninja.build("count", kernels, "kernel_count.h", [])
        defines = [f'-D{name}="{value}"' for name, value in facts.items()]
        objects.append(self.compile("csrc/build_info.cpp", [*host, *defines], needs=count))

        # libtorch.so brings libtorch_cuda.so in where torch has one; nothing is bound to it at link time.
        link = ["-soname", LIBRARY, f"-L{self.torch}/lib"]
        link += ["--no-as-needed", "-ltorch", "--as-needed", "-ltorch_cpu", "-lc10"]
        if not self.nvcc:
            return self.ninja.build("link", objects, LIBRARY, [f"-Wl,{flag}" for flag in link])
        # nvcc knows where its libraries are. The CUDA runtime's symbols stay inside.
        link += ["--exclude-libs", "ALL"]
        flags = ["-cudart", "static", *arch_flags(archs), self.host_compiler(), *(f"-Xlinker={flag}" for flag in link)]
        return self.ninja.build("nvlink", objects + kernels, LIBRARY, flags)

    def kernels(self) -> list[str]:
        """The objects of csrc/kernels/*.cu."""
        host = ",".join([*NVCC_HOST_FLAGS, *self.prefix_maps])
        flags = [*NVCC_FLAGS, *arch_flags(cuda_archs()), self.host_compiler(), f"-Xcompiler={host}", "-Icsrc"]
        objects = []
        for source in sorted((ROOT / "csrc" / "kernels").glob("*.cu")):
            name = str(source.relative_to(ROOT))
            for part in parts_of(source) or [""]:
                defines = [f"-DTR_PART={part}"] if part else []
                objects.append(self.compile(name, [*flags, *defines], variant=part, rule="nvcc"))
        return objects

    def module(self, library: str) -> str:
        """_C.<abi>.so, found beside the library at run time. Returns its path."""
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        includes = [f"{package_root('pybind11')}/include", sysconfig.get_paths()["include"]]
        flags = [*HOST_FLAGS, *self.prefix_maps, "-fvisibility=hidden", "-Icsrc"]
        flags += [flag for path in includes for flag in ("-isystem", path)]
        binding = self.compile("csrc/python.cpp", flags, suffix.removesuffix(".so").strip("."))
        return self.ninja.build("link", [binding, library], f"_C{suffix}", ["-Wl,-rpath,$ORIGIN"])

    def compile(self, source: str, flags: list[str], variant: str = "", rule: str = "cxx", needs: str = "") -> str:
        """The object of a source file; `variant` tells several objects of one file apart."""
        name = ".".join(filter(None, [source.removeprefix("csrc/"), variant, "o"]))
        return self.ninja.build(rule, [source], name, flags, needs)

    def host_compiler(self) -> str:
        return f"-ccbin={os.environ.get('CXX', 'g++')}"

    def install_file(self, built: Path, target: Path) -> None:
        """Copies unless it is the same file already; a process that has loaded the old one keeps it."""
        if target.exists() and (built.samefile(target) or built.read_bytes() == target.read_bytes()):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(target.name + ".new")
        shutil.copyfile(built, fresh)
        fresh.replace(target)

    def summary(self, prebuilt: str | None) -> str:
        if prebuilt:
            return f"used {prebuilt}"
        if not self.nvcc:
            return "built without a GPU part"
        count = (BUILD / "kernel_count.h").read_text().split()[-1]
        return f"built {count} GPU kernels for {';'.join(cuda_archs())}"

    def get_outputs(self) -> list[str]:
        folder = ROOT / "torchreduce" if self.inplace else Path(self.build_lib).resolve() / "torchreduce"
        return [str(folder / LIBRARY), str(folder / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}")]

    def get_output_mapping(self) -> dict[str, str]:
        return {}  # what setuptools' editable installs would have to copy: nothing


setup(
    ext_modules=[Extension("torchreduce._C", ["csrc/python.cpp"])],
    cmdclass={"build_ext": BuildExtension},
)
