"""Builds torchreduce: setuptools in front, one ninja file behind.

    torchreduce/libtorchreduce.so        kernels, plans and the ops registered with torch; knows no Python
    torchreduce/_C.<abi>.so              build facts, instruction sets and plans, for this Python
    torchreduce/_aten.torch-<release>.so the override of torch's functions, for this torch; if torch has its headers

Needs torch 2.10 (a CPU-only one is enough), setuptools, ninja, pybind11 and a C++20 compiler. Builds the CPU part; and
the GPU part where the machine has a GPU, or where a variable asks for it. That needs nvcc, or hipcc where torch is one
for ROCm. Downloads nothing. The environment:

    TORCHREDUCE_GPU        1, or FORCE_CUDA=1: build the GPU part, with a GPU here or without; 0: leave it out
    TORCH_CUDA_ARCH_LIST   build it for "8.0;9.0+PTX"; unset: for the GPUs of this machine, else DEFAULT_CUDA_ARCHS
    PYTORCH_ROCM_ARCH      build it for "gfx90a;gfx1100"; unset: for the GPUs of this machine, else DEFAULT_HIP_ARCHS
    CUDA_HOME, ROCM_HOME   the toolkit (else nvcc or hipcc on PATH)
    CXX                    the host compiler (else g++)
    MAX_JOBS               compilers at a time; unset: one for each core
    TORCHREDUCE_LIBRARY    a libtorchreduce.so built elsewhere, used as it is: then only _C and _aten are built
    TORCHREDUCE_TYPES      few: of the GPU part only kernels that a quick check needs
    TORCHREDUCE_TORCHS     folders of other releases of torch, with version.py and include/, to build _aten for, too
"""

import hashlib
import importlib.util
import itertools
import os
import platform
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path


def package_root(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)  # does not import it
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


PIP = f"{sys.executable} -m pip install"
MISSING = [name for name in ("torch", "setuptools", "pybind11") if not package_root(name)]
MISSING += [] if package_root("ninja") or shutil.which("ninja") else ["ninja"]
if MISSING:
    sys.exit(f"Type: {PIP} {' '.join(MISSING)}, then what you typed, with pip's --no-build-isolation")
if tuple(map(int, metadata.version("torch").split(".")[:2])) < (2, 10):
    sys.exit(f"Needs torch 2.10 or later, found {metadata.version('torch')}. Type: {PIP} 'torch>=2.10'")

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
BUILD = Path("build/torchreduce")  # in ROOT, where every command runs
LIBRARY = "libtorchreduce.so"

# Runs on every GPU since Ampere: as compiled for 8.0 up to Ada, with Hopper's bulk copies from 9.0 on, and compiled by
# the driver for what came later, when a kernel is first used. (On an H200 8.0 alone ran cumsum of one row at 0.65 of a
# copy's speed, 9.0 runs it at 0.95.)
DEFAULT_CUDA_ARCHS = "8.0;9.0+PTX"
# Older ones lack instructions that kernels are written in (cvt.rn.bf16x2). csrc/plan/plan.h has the same number, for
# the GPU that a call finds.
LEAST_CUDA_ARCH = 8.0
# Every compiler of ROCm 6 and 7 knows these.
DEFAULT_HIP_ARCHS = "gfx90a;gfx942;gfx1030;gfx1100"

# No contraction and no fast-math: the bits of every result are part of the contract (docs/numerics.md).
HOST_FLAGS = ["-std=c++20", "-O3", "-fPIC", "-ffp-contract=off", "-Wall", "-Wno-psabi"]
NVCC_FLAGS = ["-std=c++20", "-O3", "-fmad=false", "--expt-relaxed-constexpr"]
NVCC_HOST_FLAGS = ["-fPIC", "-ffp-contract=off"]
HIP_FLAGS = ["-x", "hip", *HOST_FLAGS]
# Of a library that is only inspected, as CI's: kernels for float32, float64 and bfloat16, in half the time. A GPU call
# of another type raises.
FEW_TYPES = ["-DTR_FEW_TYPES"] if os.environ.get("TORCHREDUCE_TYPES") == "few" else []
STABLE_ABI = ["-DTORCH_TARGET_VERSION=0x020a000000000000"]  # loads in torch 2.10 and every later one

# The CPU kernels are compiled once for each instruction set. Baseline is linked first: of an inline function that
# several of them emit the linker keeps the first copy, which must run everywhere. On x86-64 it serves processors of
# before 2013 alone; less optimized it takes a third of the time to compile.
ISA_FLAGS = {"baseline": []}
# Value-safe: a branch may become a choice of two results, a root an instruction. OpenMP's simd loops, without OpenMP.
LOOPS = ["-fno-trapping-math", "-fno-math-errno", "-fopenmp-simd"]
LOOP_FLAGS = {"rowwise": LOOPS, "channels": LOOPS}
# Else GCC copies 32 bytes in halves, and a load of what was just stored so waits for both: row-wise ops and scans take
# twice the time. Before 12 it has no such flags, nor has clang.
AVX2_COPIES = ["-mmove-max=256", "-mstore-max=256"]
if platform.machine().lower() in ("x86_64", "amd64"):
    ISA_FLAGS["baseline"] = ["-O1"]
    ISA_FLAGS["avx2"] = ["-mavx2", "-mfma", "-mf16c"]
    ISA_FLAGS["avx512"] = [
        *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma", "-mf16c"),
        *("-mprefer-vector-width=512", "-Wno-maybe-uninitialized"),  # gcc 12 says so of its own intrinsics
    ]


# Functions that glibc 2.34 moved to libc with a new version, and the libraries where they were, with version 2.2.5 if
# none is said. On x86-64 the package's libraries are linked to stubs of those, and so also run with glibc 2.28;
# csrc/binding/compat.cpp has what else that takes.
MOVED = {
    "libdl.so.2": "dlclose dlerror dlmopen@2.3.4 dlopen dlsym dlvsym",
    "librt.so.1": "shm_open shm_unlink",
    "libpthread.so.0": """
        pthread_condattr_setpshared pthread_create pthread_detach pthread_getspecific pthread_join pthread_key_create
        pthread_key_delete pthread_kill pthread_mutex_trylock pthread_mutexattr_destroy pthread_mutexattr_init
        pthread_mutexattr_setpshared pthread_mutexattr_settype pthread_once pthread_rwlock_destroy pthread_rwlock_init
        pthread_rwlock_rdlock pthread_rwlock_timedrdlock pthread_rwlock_timedwrlock pthread_rwlock_tryrdlock
        pthread_rwlock_trywrlock pthread_rwlock_unlock pthread_rwlock_wrlock pthread_rwlockattr_destroy
        pthread_rwlockattr_init pthread_rwlockattr_setpshared pthread_setspecific pthread_spin_destroy
        pthread_spin_init pthread_spin_lock pthread_spin_trylock pthread_spin_unlock sem_destroy sem_init sem_post
        sem_timedwait sem_trywait sem_wait""",
}


def output_of(*command: str) -> str:
    """What the command prints; nothing if it fails or does not exist."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def architectures(variable: str, form: str, examples: str, present: list[str], default: str) -> list[str]:
    """Those that an environment variable lists, else those of the GPUs that are present, else the default's."""
    listed = os.environ.get(variable, "").strip() or " ".join(present) or default
    archs = sorted(set(re.split(r"[\s;,]+", listed)))
    for arch in archs:
        if not re.fullmatch(form, arch):
            sys.exit(f'{variable} names "{arch}". Supported are forms like {examples}')
    return archs


def is_too_old(arch: str) -> bool:
    return float(re.match(r"\d+\.\d", arch)[0]) < LEAST_CUDA_ARCH


def too_old(what: str) -> str:
    return f"{what}: the kernels need NVIDIA GPUs of compute capability {LEAST_CUDA_ARCH} or later (Ampere)"


def nvidia_gpus() -> list[tuple[str, str]]:
    """The names and compute capabilities of this machine's GPUs."""
    query = output_of("nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader")
    return re.findall(r"^(.+), (\d+\.\d)$", query, re.MULTILINE)


class Cuda:
    """nvcc. The architecture "9.0" is machine code, "9.0+PTX" is that and what later GPUs can compile."""

    name, home, compiler, listed = "CUDA", "CUDA_HOME", "nvcc", "TORCH_CUDA_ARCH_LIST"

    @staticmethod
    def present() -> list[str]:
        """The compute capabilities of this machine's GPUs."""
        return [capability for _, capability in nvidia_gpus()]

    def __init__(self, nvcc: str) -> None:
        self.command = nvcc
        self.version = re.search(r"release.* V([\d.]+)", output_of(nvcc, "--version"))[1]
        form, examples = r"\d+\.\d[af]?(\+PTX)?", '"9.0", "9.0a" and "8.0+PTX"'
        self.archs = architectures(self.listed, form, examples, self.served(), DEFAULT_CUDA_ARCHS)
        for arch in self.archs:
            if is_too_old(arch):
                sys.exit(too_old(f'{self.listed} names "{arch}"'))
        self.flags = [*NVCC_FLAGS, *FEW_TYPES]
        self.own_flags = ["-ccbin=" + host_compiler()]
        if tuple(map(int, self.version.split(".")[:2])) >= (12, 8):
            self.own_flags.append("--compress-mode=size")  # kernels take a seventh of the room
        for arch in self.archs:
            number = arch.removesuffix("+PTX").replace(".", "")
            self.own_flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
            if arch.endswith("+PTX"):
                self.own_flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")

    def served(self) -> list[str]:
        """Those of present() that are not too old. Exits where all are, unless architectures are listed."""
        gpus = nvidia_gpus()
        served = [capability for _, capability in gpus if not is_too_old(capability)]
        if gpus and not served and not os.environ.get(self.listed, "").strip():
            name, capability = gpus[0]
            sys.exit(f"{too_old(f'{name} has compute capability {capability}')}. Without a GPU part: TORCHREDUCE_GPU=0")
        return served

    # A kernel has one host function, which launches it; its local variables are symbols of the object file.
    count_kernels = r"nm -A | sed -n 's/:.*__device_stub__\(.*\)E[0-9]*__[a-z]*$$/ \1/p'"

    def compile_flags(self, prefix_maps: list[str]) -> list[str]:
        return [*self.flags, *self.own_flags, "-Xcompiler=" + ",".join([*NVCC_HOST_FLAGS, *prefix_maps])]

    def linker(self, flags: list[str]) -> tuple[str, list[str]]:
        """nvcc knows where its libraries are. The CUDA runtime's symbols stay inside."""
        flags = [*flags, "--exclude-libs", "ALL"]
        return self.command, ["-cudart", "static", *self.own_flags, *(f"-Xlinker={flag}" for flag in flags)]


class Hip:
    """hipcc of ROCm 6 or 7, or clang. Never yet tried with ROCm's own compilers, nor on AMD hardware."""

    name, home, compiler, listed = "HIP", "ROCM_HOME", "hipcc", "PYTORCH_ROCM_ARCH"

    @staticmethod
    def present() -> list[str]:
        """The architectures of this machine's GPUs; gfx000 is its CPU."""
        return re.findall(r"gfx(?!000)\w+", output_of("rocm_agent_enumerator"))

    def __init__(self, hipcc: str, archs: list[str] | None = None) -> None:
        self.command = hipcc
        self.version = re.search(r"version:? ([\d.]+)", output_of(*shlex.split(hipcc), "--version"))[1]
        form, examples = r"gfx\w+(:\w+[+-])*", '"gfx90a" and "gfx1100"'
        self.archs = archs or architectures(self.listed, form, examples, self.present(), DEFAULT_HIP_ARCHS)
        self.flags = [*HIP_FLAGS, *FEW_TYPES]

    # The host function that launches a kernel is a symbol of the object file.
    count_kernels = r"nm -A | sed -n 's/.* [TtWw] \(.*__device_stub__.*\)/\1/p'"

    def compile_flags(self, prefix_maps: list[str]) -> list[str]:
        return [*self.flags, *(f"--offload-arch={arch}" for arch in self.archs), *prefix_maps]

    def linker(self, flags: list[str]) -> tuple[str, list[str]]:
        """The runtime is the one that torch brings, if it does: there must be one in a process."""
        lib = Path(shlex.split(self.command)[0]).resolve().parent.parent / "lib"
        return host_compiler(), [*(f"-Wl,{flag}" for flag in flags), f"-L{lib}", "-lamdhip64"]


def host_compiler() -> str:
    return os.environ.get("CXX", "g++")


def why_cpu_alone(
    kind: type[Cuda] | type[Hip], environment: Mapping[str, str], command: str | None, gpus: list[str]
) -> str:
    """Why no GPU part is built, and how to have it; empty if it is built. Exits if it is asked for and cannot be built.

    As extensions of torch do: it is built where a GPU is present, or where the environment asks for it.
    """
    if environment.get("TORCHREDUCE_GPU") == "0":
        return "TORCHREDUCE_GPU=0"
    asking = [name for name in ("TORCHREDUCE_GPU", "FORCE_CUDA") if environment.get(name) == "1"]
    asking += [kind.listed] if environment.get(kind.listed, "").strip() else []
    if asking and not command:
        sys.exit(
            f"{asking[0]}={environment[asking[0]]} asks for the GPU part, but there is no {kind.compiler}: "
            f"put it on PATH, set {kind.home}, or leave the GPU part out by TORCHREDUCE_GPU=0"
        )
    if asking or (gpus and command):
        return ""
    if gpus:
        return f"this machine has a GPU, but no {kind.compiler}. For the GPU part put it on PATH, or set {kind.home}"
    return "this machine has no GPU. For the GPU part, too: TORCHREDUCE_GPU=1"


def gpu_toolkit() -> Cuda | Hip | None:
    """The one torch is made for, or CUDA if torch is CPU-only; None for the CPU part alone. Says which, in a line."""
    kind = Hip if (package_root("torch") / "lib" / "libtorch_hip.so").exists() else Cuda
    home = os.environ.get(kind.home)
    command = shutil.which(f"{home}/bin/{kind.compiler}" if home else kind.compiler)
    reason = why_cpu_alone(kind, os.environ, command, kind.present())
    toolkit = None if reason else kind(command)
    parts = f"and the GPU part for {';'.join(toolkit.archs)}" if toolkit else f"alone: {reason}"
    print(f"torchreduce: building the CPU part {parts}", flush=True)
    return toolkit


def parts_of(source: Path) -> list[str]:
    """The ops that a .cu file is compiled for one by one, with -DTR_PART=<op>, so that no compiler runs for long.

    They are named by the file's first line, "// parts: TR_FOR_EACH_REDUCTION": a list in csrc/plan/call.h or
    rowwise_call.h.
    """
    with source.open(encoding="utf-8") as file:
        match = re.fullmatch(r"// parts: (\w+)\s*", file.readline())
    if match is None:
        return []
    lists = ((ROOT / "csrc" / "plan" / name).read_text(encoding="utf-8") for name in ("call.h", "rowwise_call.h"))
    table = "".join(lists).replace("\\\n", " ")
    return re.findall(r"X\((\w+)\)", re.search(rf"#define {match[1]}\(X\)(.*)", table)[1])


def kernel_parts() -> list[tuple[str, str]]:
    """The .cu files in csrc/kernels and the folders there, each with each of its parts, or with ""."""
    sources = (path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "csrc" / "kernels").rglob("*.cu")))
    return [(source, part) for source in sources for part in parts_of(ROOT / source) or [""]]


def object_name(source: str, variant: str) -> str:
    """Of a source file's object in a build's folder, without the .o; `variant` tells several of one file apart."""
    return ".".join(filter(None, [source.removeprefix("csrc/"), variant]))


def torchs() -> list[Path]:
    """Those that _aten is built for: the one that is present, and folders of others, if they have headers."""
    others = os.environ.get("TORCHREDUCE_TORCHS", "")
    roots = [package_root("torch"), *map(Path, filter(None, others.split(os.pathsep)))]
    return [root for root in roots if (root / "include" / "ATen" / "Operators.h").exists()]


def torch_release(root: Path) -> str:
    """torch.__version__ without what says for which GPUs a release is made: its C++ API is the same for all of them."""
    text = (root / "version.py").read_text(encoding="utf-8")
    version = re.search(r"^__version__ = ['\"](.+)['\"]", text, re.MULTILINE)[1]
    return re.sub(r"\+(cpu|cu\d+|rocm[\d.]+|xpu)$", "", version)


def aten_name(root: Path) -> str:
    return f"_aten.torch-{torch_release(root)}.so"


def write_table(header: Path) -> None:
    """What _aten registers, of torchreduce/override/table.py. Kept as it is where it is the same."""
    text = runpy.run_path(str(ROOT / "torchreduce" / "override" / "table.py"))["header"]()
    if not header.exists() or header.read_text() != text:
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text(text)


def interface() -> str:
    """The definition of csrc/binding/interface.h: a name with a hash of the headers that libraries have in common."""
    rooms = ("numerics", "ops", "plan", "binding", "kernels")
    headers = [header for room in rooms for header in (ROOT / "csrc" / room).rglob("*.h")]
    digest = hashlib.sha256()
    for header in sorted(headers):
        digest.update(header.relative_to(ROOT).as_posix().encode() + header.read_bytes())
    return f"-DTR_INTERFACE=torchreduce_interface_{digest.hexdigest()[:16]}"


def quoted(flags: list[str]) -> str:
    return " ".join(shlex.quote(flag) for flag in flags).replace("$", "$$")


TRACKED = "$flags -MD -MF $out.d -c $in -o $out"
DESCRIPTION = "  description = $out"


def write(path: Path, text: str) -> None:
    """Unless that is in the file already, which ninja would take for new."""
    path = ROOT / path
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


class Ninja:
    """A ninja file in a folder, which has all that is built: rules with tracked headers, then one statement a file."""

    def __init__(self, folder: Path, toolkit: Cuda | Hip | None) -> None:
        self.folder = folder
        count = f"echo $in | xargs -r {toolkit.count_kernels if toolkit else 'true'} | sort -u | wc -l"
        self.lines = [
            f"builddir = {folder}",
            *("rule compile", f"  command = $compiler {TRACKED}", "  depfile = $out.d", "  deps = gcc", DESCRIPTION),
            *("rule link", "  command = $compiler -shared $in -o $out $flags", DESCRIPTION),
            *("rule count", f'  command = echo "#define TR_KERNEL_COUNT $$({count})" > $out', DESCRIPTION),
        ]

    def build(
        self, rule: str, inputs: list[str], output: str, flags: list[str], needs: str = "", compiler: str = ""
    ) -> str:
        """Returns the output's path."""
        path = str(self.folder / output)
        self.lines.append(f"build {path}: {rule} {' '.join(inputs)}{' | ' + needs if needs else ''}")
        self.lines.append(f"  compiler = {compiler or host_compiler()}")
        self.lines.append(f"  flags = {quoted(flags)}")
        return path

    def compile(self, source: str, flags: list[str], variant: str = "", needs: str = "", compiler: str = "") -> str:
        """The object of a source file (object_name)."""
        return self.build("compile", [source], f"{object_name(source, variant)}.o", flags, needs, compiler)

    def for_older_systems(self, flags: list[str]) -> list[str]:
        """What every library is linked with, too. Nothing for a compiler that has libstdc++ as an archive alone."""
        is_shared = os.path.isabs(output_of(host_compiler(), "-print-file-name=libstdc++.so").strip())
        if len(ISA_FLAGS) == 1 or not is_shared:
            return []
        inputs = [self.compile("csrc/binding/compat.cpp", flags)]
        for library, listed in MOVED.items():
            versions: dict[str, list[str]] = {}
            for function, _, version in (entry.partition("@") for entry in listed.split()):
                versions.setdefault(version or "2.2.5", []).append(function)
            stub = self.folder / "stubs" / library.rpartition(".")[0]
            functions = [f".globl {f}\n.type {f}, @function\n{f}:\n" for f in itertools.chain(*versions.values())]
            write(Path(f"{stub}.s"), "".join(functions))
            nodes = [f"GLIBC_{version} {{ {'; '.join(names)}; }};\n" for version, names in versions.items()]
            write(Path(f"{stub}.versions"), "".join(nodes))
            linked = ["-nostdlib", f"-Wl,-soname,{library}", f"-Wl,--version-script={stub}.versions"]
            inputs.append(self.build("link", [f"{stub}.s"], f"stubs/{stub.name}", linked))
        return inputs

    def kernels(self, toolkit: Cuda | Hip, prefix_maps: list[str], parts: list[tuple[str, str]]) -> list[str]:
        """The objects of parts of kernel_parts()."""
        flags = [*toolkit.compile_flags(prefix_maps), "-Icsrc"]
        objects = []
        for source, part in parts:
            defines = [f"-DTR_PART={part}"] if part else []
            objects.append(self.compile(source, [*flags, *defines], variant=part, compiler=toolkit.command))
        return objects

    def run(self) -> None:
        file = self.folder / "build.ninja"
        (ROOT / self.folder).mkdir(parents=True, exist_ok=True)
        (ROOT / file).write_text("\n".join(self.lines) + "\n")
        ninja = [sys.executable, "-m", "ninja"] if package_root("ninja") else ["ninja"]
        jobs = os.environ.get("MAX_JOBS") or str(len(os.sched_getaffinity(0)))
        if subprocess.call([*ninja, "-f", str(file), "-j", jobs], cwd=ROOT):
            sys.exit("torchreduce did not build: the first error is above")


class BuildExtension(build_ext):
    """Ninja decides what is stale; its two files are then copied beside the package's Python files."""

    def run(self) -> None:
        start = time.monotonic()
        if not shutil.which(host_compiler()):
            sys.exit(f"There is no {host_compiler()}: install a C++20 compiler, or name one by CXX")
        prebuilt = os.environ.get("TORCHREDUCE_LIBRARY")
        self.torch, self.toolkit = package_root("torch"), None if prebuilt else gpu_toolkit()
        self.ninja = Ninja(BUILD, self.toolkit)
        # Messages and debug lines name files as "csrc/plan/plan.cpp" and "torch/...", wherever the build ran.
        self.prefix_maps = [f"-ffile-prefix-map={ROOT}/=", f"-ffile-prefix-map={self.torch.parent}/="]

        self.older = self.ninja.for_older_systems([*HOST_FLAGS, *self.prefix_maps])
        library = str(Path(prebuilt).resolve()) if prebuilt else self.library()
        aten = [self.aten(root, library) for root in torchs()]  # before what takes less time: ninja has this order
        built_files = [library, self.module(library), *aten]
        self.ninja.run()
        for built, target in zip(built_files, self.get_outputs(), strict=True):
            self.install_file(Path(built), Path(target))
        if self.inplace:
            self.run_command("egg_info")  # where torch.compile finds the backend of this name
        print(f"torchreduce: {self.summary(prebuilt)}, in {time.monotonic() - start:.0f} s", flush=True)

    def library(self) -> str:
        """libtorchreduce.so. Returns its path."""
        toolkit, compile = self.toolkit, self.ninja.compile
        kernels = self.ninja.kernels(toolkit, self.prefix_maps, kernel_parts()) if toolkit else []
        host = [*HOST_FLAGS, *self.prefix_maps, "-Icsrc", f"-I{BUILD}"]
        host += ["-DTORCHREDUCE_GPU"] if toolkit else []

        plans = [f"plan/{name}" for name in ("plan", "reduce_plan", "scan_plan", "rowwise_plan", "channel_plan")]
        objects = [compile(f"csrc/{unit}.cpp", host) for unit in (*plans, "numerics/intrinsics")]
        layers = ("ops", "rowwise", "channels", "segments", "segment_rows", "products", "products_cpu", "products_gpu")
        for layer in layers:
            objects += [compile(f"csrc/binding/{layer}.cpp", [*host, *STABLE_ABI, "-isystem", f"{self.torch}/include"])]
        objects += [compile("csrc/cpu/dispatch.cpp", host)]
        if "avx2" in ISA_FLAGS and output_of(host_compiler(), *AVX2_COPIES, "-E", "-x", "c", os.devnull):
            ISA_FLAGS["avx2"] += AVX2_COPIES
        for isa, flags in ISA_FLAGS.items():
            for unit in ("reduce", "scan", "rowwise", "channels", "segments"):
                loops = LOOP_FLAGS.get(unit, [])
                objects.append(compile(f"csrc/cpu/{unit}.cpp", [*host, *flags, *loops, f"-DTR_ISA={isa}"], isa))

        facts = {
            "TR_VERSION": self.distribution.get_version(),
            "TR_TOOLKIT": toolkit.name if toolkit else "",
            "TR_TOOLKIT_VERSION": toolkit.version if toolkit else "",
            "TR_ARCHS": ";".join(toolkit.archs) if toolkit else "",
            "TR_FLAGS": " | ".join(
                [" ".join(HOST_FLAGS), *([f"{toolkit.compiler} {' '.join(toolkit.flags)}"] if toolkit else [])]
            ),
        }
        count = self.ninja.build("count", kernels, "kernel_count.h", [])
        defines = [f'-D{name}="{value}"' for name, value in facts.items()]
        objects.append(compile("csrc/binding/build_info.cpp", [*host, *defines, interface()], needs=count))

        # libtorch.so brings libtorch_cuda.so in where torch has one; nothing is bound to it at link time.
        link = ["-soname", LIBRARY, f"-L{self.torch}/lib"]
        link += ["--no-as-needed", "-ltorch", "--as-needed", "-ltorch_cpu", "-lc10"]
        linker, flags = toolkit.linker(link) if toolkit else (host_compiler(), [f"-Wl,{flag}" for flag in link])
        return self.ninja.build("link", [*objects, *kernels, *self.older], LIBRARY, flags, compiler=linker)

    def module(self, library: str) -> str:
        """_C.<abi>.so, found beside the library at run time. Returns its path."""
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        includes = [f"{package_root('pybind11')}/include", sysconfig.get_paths()["include"]]
        flags = [*HOST_FLAGS, *self.prefix_maps, "-fvisibility=hidden", "-Icsrc", interface()]
        flags += [flag for path in includes for flag in ("-isystem", path)]
        abi = suffix.removesuffix(".so").strip(".")
        bindings = [self.ninja.compile(f"csrc/binding/{name}.cpp", flags, abi) for name in ("python", "python_direct")]
        return self.ninja.build("link", [*bindings, library, *self.older], f"_C{suffix}", ["-Wl,-rpath,$ORIGIN"])

    def aten(self, root: Path, library: str) -> str:
        """_aten.torch-<release>.so, by the full C++ API of the torch in `root`. Returns its path."""
        includes = [f"{root}/include", f"{root}/include/torch/csrc/api/include"]
        flags = [*HOST_FLAGS, *self.prefix_maps, "-Icsrc", f"-I{BUILD}", interface()]
        flags += [flag for path in includes for flag in ("-isystem", path)]
        write_table(BUILD / "aten_table.h")
        rows = self.ninja.compile("csrc/binding/aten.cpp", flags, f"torch-{torch_release(root)}")
        link = [f"-L{self.torch}/lib", "-ltorch_cpu", "-ltorch_python", "-lc10", "-Wl,-rpath,$ORIGIN"]
        return self.ninja.build("link", [rows, library, *self.older], aten_name(root), link)

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
        if not self.toolkit:
            return "built the CPU part alone"
        count = (BUILD / "kernel_count.h").read_text().split()[-1]
        return f"built {count} GPU kernels for {';'.join(self.toolkit.archs)}"

    def get_outputs(self) -> list[str]:
        folder = ROOT / "torchreduce" if self.inplace else Path(self.build_lib).resolve() / "torchreduce"
        names = [LIBRARY, f"_C{sysconfig.get_config_var('EXT_SUFFIX')}", *map(aten_name, torchs())]
        return [str(folder / name) for name in names]

    def get_output_mapping(self) -> dict[str, str]:
        return {}  # what setuptools' editable installs would have to copy: nothing


class BuildPackage(build_py):
    """Also copies what the ladder is compiled of, where it is used, to the package."""

    LADDER = (
        "csrc/ladder/*",
        "csrc/kernels/common/gpu.cuh",
        "tests/simt/emulator.*",
        "tests/simt/fiber.h",
        "tests/simt/hip/*",
    )

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for source in (file for pattern in self.LADDER for file in sorted(ROOT.glob(pattern))):
            target = Path(self.build_lib) / "torchreduce/ladder/sources" / source.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


if __name__ == "__main__":  # tools/archs.py uses the rest
    setup(
        ext_modules=[Extension("torchreduce._C", ["csrc/binding/python.cpp"])],
        cmdclass={"build_ext": BuildExtension, "build_py": BuildPackage},
    )
