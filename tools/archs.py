"""Code for architectures that no GPU here has, built and inspected.

    tools/archs.py amd          build/hip/libkernels.so by clang, as setup.py builds it by ROCm's; loads it; judges the
                                code, and what `make build` made for NVIDIA's sm_90
    tools/archs.py nvidia       build/cuda/libkernels.so by nvcc, for others of NVIDIA's; judges the code
    tools/archs.py ... few      the same in a folder `few`, with kernels for some element types only
    tools/archs.py parts ARCH PART...
                                objects of some parts (tools/parts.py) in a folder of PARTS; judges their code. For one
                                of AMD's with kernels for some element types only
    tools/archs.py tools        takes NVIDIA's tools, which that uses, from Triton's wheel, unless the toolkit has them

What clang makes here is for checking, never for shipping: Debian's device libraries are older than half of AMD's
architectures, which get stand-ins.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import isa

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import setup as project  # noqa: E402

HIP, CUDA, PARTS = Path("build/hip"), Path("build/cuda"), Path("build/parts")  # in ROOT, where commands run
LIBRARY = "libkernels.so"
CUDA_LIBRARY = Path("torchreduce/libtorchreduce.so")

AMD_ARCHS = ["gfx906", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1201"]
# Ampere, without bulk copies, and the workstation GPUs after Hopper, with less shared memory: beside isa.CUDA_ARCH.
NVIDIA_ARCHS = ["8.0", "12.0"]
# Has cuobjdump and nvdisasm, which a CUDA toolkit from PyPI lacks.
TRITON = "triton==3.6.0"

BITCODE = Path("/usr/lib/x86_64-linux-gnu/amdgcn/bitcode")
# What the device libraries hold for an architecture: its number, here with two digits for each of minor and stepping.
ISA_VERSION = """\
target datalayout = "e-p:64:64-p1:64:64-p2:32:32-p3:32:32-p4:64:64-p5:32:32-p6:32:32-p7:160:256:256:32-p8:128:128-\
p9:192:256:256:32-i64:64-v16:16-v24:32-v32:32-v48:64-v96:128-v192:256-v256:256-v512:512-v1024:1024-v2048:2048-n32:64-\
S32-A5-G1-ni:7:8:9"
target triple = "amdgcn-amd-amdhsa"
@__oclc_ISA_version = linkonce_odr protected local_unnamed_addr addrspace(4) constant i32 {version}, align 4
"""


def tools() -> None:
    if cuobjdump() is not None:
        return
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
        wheel = ["--only-binary=:all:", "--python-version=3.11", "-d", folder, TRITON]
        if subprocess.run([*pip, *wheel]).returncode:
            sys.exit(
                f"cannot download {TRITON} for its cuobjdump: connect to the network, or put a CUDA toolkit on PATH"
            )
        target = ROOT / HIP / "bin"
        target.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel_file:
            for name in ("nvdisasm", "cuobjdump"):
                (target / name).write_bytes(wheel_file.read(f"triton/backends/nvidia/bin/{name}"))
                (target / name).chmod(0o755)


def cuobjdump() -> str | None:
    return shutil.which("cuobjdump", path=os.pathsep.join([os.environ["PATH"], str(ROOT / HIP / "bin")]))


def device_libraries() -> Path:
    """A folder with links to Debian's device libraries, and stand-ins for what they lack."""
    folder = ROOT / HIP / "devicelib"
    folder.mkdir(parents=True, exist_ok=True)
    for file in BITCODE.glob("*.bc"):
        if not (folder / file.name).exists():
            (folder / file.name).symlink_to(file)
    for arch in AMD_ARCHS:
        number = arch.removeprefix("gfx")
        stub = folder / f"oclc_isa_version_{number}.bc"
        if not stub.exists():
            version = int(number[:-2]) * 1000 + int(number[-2]) * 100 + int(number[-1], 16)
            text = ISA_VERSION.format(version=version)
            subprocess.run(["llvm-as-19", "-", "-o", stub], input=text, text=True, check=True)
    return folder


def build(folder: Path, toolkit: project.Cuda | project.Hip, flags: list[str]) -> None:
    ninja = project.Ninja(folder, toolkit)
    linker, linker_flags = toolkit.linker(flags)
    ninja.build("link", ninja.kernels(toolkit, [], project.kernel_parts()), LIBRARY, linker_flags, compiler=linker)
    ninja.run()


def load(path: Path) -> str:
    """Asks the library for devices and has it launch a kernel; without a device both fail, and say so."""
    library = ctypes.CDLL(str(ROOT / path), mode=os.RTLD_NOW)
    count = ctypes.c_int(0)
    error = library.hipGetDeviceCount(ctypes.byref(count))
    library.hipGetErrorString.restype = ctypes.c_char_p
    launch = library["_ZN11torchreduce3gpu6reduceERKNS_16PlannedReductionEPvS4_"]
    launch.restype = ctypes.c_char_p
    message = launch(ctypes.create_string_buffer(1 << 16), None, None)  # an empty grid, where there is a device
    if message is None:
        sys.exit("a launch that cannot work reported no error")
    devices = f"{count.value} devices" if error == 0 else library.hipGetErrorString(error).decode()
    return f"hipGetDeviceCount: {devices}; launch: {message.decode()}"


def judge(folder: Path, found: list[isa.Kernel], wanted: list[str], alike: set[str]) -> None:
    """Prints a table and the faults, and exits. `alike`: the architectures that have to have the same kernels."""
    archs = {kernel.arch for kernel in found}
    faults = isa.faults(found, alike) + [f"{arch}: no code" for arch in wanted if arch not in archs]
    listing = folder / "kernels.txt"
    listing.write_text("\n".join(kernel.line() for kernel in found) + "\n")
    print(isa.table(found))
    print("\n".join(faults))
    print(f"{len(found)} kernels for {len(archs)} architectures, {len(faults)} faults; a line for each in {listing}")
    sys.exit(1 if faults else 0)


def hip_toolkit(archs: list[str], few: bool) -> project.Hip:
    libraries = device_libraries().relative_to(ROOT)
    return project.Hip(f"clang++-19 --rocm-device-lib-path={libraries}" + " -DTR_FEW_TYPES" * few, archs)


def cuda_toolkit(archs: list[str], few: bool) -> project.Cuda:
    nvcc = shutil.which("nvcc")
    if nvcc is None or cuobjdump() is None:
        sys.exit("there is no nvcc on PATH, or no cuobjdump: make hip-deps")
    os.environ["TORCH_CUDA_ARCH_LIST"] = ";".join(archs)
    toolkit = project.Cuda(nvcc)
    toolkit.own_flags += ["-DTR_FEW_TYPES"] * few
    return toolkit


def amd(folder: Path, few: bool) -> None:
    start = time.monotonic()
    build(folder, hip_toolkit(AMD_ARCHS, few), ["-z", "defs"])
    library = folder / LIBRARY
    print(f"{library}: built in {time.monotonic() - start:.0f} s. {load(library)}")

    found = [kernel for arch, code in isa.code_objects(library) for kernel in isa.amd_kernels(arch, code)]
    tool = cuobjdump()
    if tool and isa.has_cuda_code(CUDA_LIBRARY, tool):
        found += isa.cuda_kernels(CUDA_LIBRARY, tool)
    elif "9.0" in os.environ.get("TORCH_CUDA_ARCH_LIST", ""):
        sys.exit(f"{CUDA_LIBRARY} has no code for {isa.CUDA_ARCH}, or there is no cuobjdump: make build hip-deps")
    else:
        print(f"{isa.CUDA_ARCH} is not looked at: that needs TORCH_CUDA_ARCH_LIST=9.0 make build, and make hip-deps")
    judge(folder, found, AMD_ARCHS, {*AMD_ARCHS, *([] if few else [k.arch for k in found])})


def nvidia(folder: Path, few: bool) -> None:
    start = time.monotonic()
    build(folder, cuda_toolkit(NVIDIA_ARCHS, few), ["-z", "defs"])
    print(f"{folder / LIBRARY}: built in {time.monotonic() - start:.0f} s")
    names = ["sm_" + arch.replace(".", "") for arch in NVIDIA_ARCHS]
    found = [kernel for name in names for kernel in isa.cuda_kernels(folder / LIBRARY, cuobjdump(), name)]
    judge(folder, found, names, set(names))


def parts(arch: str, names: list[str]) -> None:
    is_amd = arch.startswith("gfx")
    toolkit = hip_toolkit([arch], few=True) if is_amd else cuda_toolkit([f"{arch[3:-1]}.{arch[-1]}"], few=False)
    chosen = [part for part in project.kernel_parts() if project.object_name(*part) in names]
    if len(chosen) != len(names):
        sys.exit(f"not all of these are parts: {' '.join(names)}")
    ninja = project.Ninja(PARTS / arch, toolkit)
    objects = [Path(name) for name in ninja.kernels(toolkit, [], chosen)]
    ninja.run()
    if is_amd:
        codes = [code for file in objects for _, code in isa.code_objects(file)]
        found = [kernel for code in codes for kernel in isa.amd_kernels(arch, code)]
    else:
        found = [kernel for file in objects for kernel in isa.cuda_kernels(file, cuobjdump(), arch)]
    # A file that is compiled for each op has kernels for every architecture; others may have none, or helpers alone.
    judge(PARTS / arch, found, [arch] if any(part for _, part in chosen) else [], {arch})


if __name__ == "__main__":
    os.chdir(ROOT)
    if sys.argv[1:] == ["tools"]:
        tools()
    elif sys.argv[1:2] in (["amd"], ["nvidia"]) and sys.argv[2:] in ([], ["few"]):
        extent = sys.argv[2:]  # also the folder's name
        build_all, top = (amd, HIP) if sys.argv[1] == "amd" else (nvidia, CUDA)
        build_all(top.joinpath(*extent), few=bool(extent))
    elif sys.argv[1:2] == ["parts"] and len(sys.argv) > 3:
        parts(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(__doc__)
