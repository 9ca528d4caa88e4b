"""AMD code for six architectures, built and inspected without an AMD GPU; NVIDIA's code is inspected, too.

    tools/hip.py            build/hip/libkernels.so by clang, as setup.py builds it by ROCm's; loads it; judges the code
    tools/hip.py few        the same in build/hip/few, with kernels for some element types only
    tools/hip.py tools      takes NVIDIA's tools, which that uses, from Triton's wheel, unless the toolkit has them

What clang makes here is for checking, never for shipping: Debian's device libraries are older than half of the
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
TOOLS = Path("build/hip")  # in ROOT, where commands run
FEW = sys.argv[1:] == ["few"]
FOLDER = TOOLS / "few" if FEW else TOOLS
LIBRARY = "libkernels.so"
CUDA_LIBRARY = Path("torchreduce/libtorchreduce.so")

ARCHS = ["gfx906", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1201"]
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
        target = ROOT / TOOLS / "bin"
        target.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel_file:
            for name in ("nvdisasm", "cuobjdump"):
                (target / name).write_bytes(wheel_file.read(f"triton/backends/nvidia/bin/{name}"))
                (target / name).chmod(0o755)


def cuobjdump() -> str | None:
    return shutil.which("cuobjdump", path=os.pathsep.join([os.environ["PATH"], str(ROOT / TOOLS / "bin")]))


def device_libraries() -> Path:
    """A folder with links to Debian's device libraries, and stand-ins for what they lack."""
    folder = ROOT / TOOLS / "devicelib"
    folder.mkdir(parents=True, exist_ok=True)
    for file in BITCODE.glob("*.bc"):
        if not (folder / file.name).exists():
            (folder / file.name).symlink_to(file)
    for arch in ARCHS:
        number = arch.removeprefix("gfx")
        stub = folder / f"oclc_isa_version_{number}.bc"
        if not stub.exists():
            version = int(number[:-2]) * 1000 + int(number[-2]) * 100 + int(number[-1], 16)
            text = ISA_VERSION.format(version=version)
            subprocess.run(["llvm-as-19", "-", "-o", stub], input=text, text=True, check=True)
    return folder


def build() -> None:
    sys.path.insert(0, str(ROOT))
    import setup as project

    folder = device_libraries().relative_to(ROOT)
    toolkit = project.Hip(f"clang++-19 --rocm-device-lib-path={folder}" + " -DTR_FEW_TYPES" * FEW, ARCHS)
    ninja = project.Ninja(FOLDER, toolkit)
    linker, flags = toolkit.linker(["-z", "defs"])
    ninja.build("link", ninja.kernels(toolkit, []), LIBRARY, flags, compiler=linker)
    ninja.run()


def load() -> str:
    """Asks the library for devices and has it launch a kernel; without a device both fail, and say so."""
    library = ctypes.CDLL(str(ROOT / FOLDER / LIBRARY), mode=os.RTLD_NOW)
    count = ctypes.c_int(0)
    error = library.hipGetDeviceCount(ctypes.byref(count))
    library.hipGetErrorString.restype = ctypes.c_char_p
    launch = library["_ZN11torchreduce3gpu6reduceERKNS_10ReduceCallEPvS4_"]
    launch.restype = ctypes.c_char_p
    message = launch(ctypes.create_string_buffer(1 << 16), None, None)  # an empty grid, where there is a device
    if message is None:
        sys.exit("a launch that cannot work reported no error")
    devices = f"{count.value} devices" if error == 0 else library.hipGetErrorString(error).decode()
    return f"hipGetDeviceCount: {devices}; launch: {message.decode()}"


def kernels() -> list[isa.Kernel]:
    objects = isa.code_objects(ROOT / FOLDER / LIBRARY)
    found = [kernel for arch, code in objects for kernel in isa.amd_kernels(arch, code)]
    tool = cuobjdump()
    if tool and isa.has_cuda_code(ROOT / CUDA_LIBRARY, tool):
        found += isa.cuda_kernels(ROOT / CUDA_LIBRARY, tool)
    elif "9.0" in os.environ.get("TORCH_CUDA_ARCH_LIST", ""):
        sys.exit(f"{CUDA_LIBRARY} has no code for {isa.CUDA_ARCH}, or there is no cuobjdump: make build hip-deps")
    else:
        print(f"{isa.CUDA_ARCH} is not looked at: that needs TORCH_CUDA_ARCH_LIST=9.0 make build, and make hip-deps")
    return found


def main() -> None:
    os.chdir(ROOT)
    start = time.monotonic()
    build()
    print(f"{FOLDER / LIBRARY}: built in {time.monotonic() - start:.0f} s. {load()}")
    found = kernels()
    archs = {kernel.arch for kernel in found}
    alike = archs - {isa.CUDA_ARCH} if FEW else archs
    faults = isa.faults(found, alike) + [f"{arch}: no code" for arch in ARCHS if arch not in archs]
    listing = FOLDER / "kernels.txt"
    listing.write_text("\n".join(kernel.line() for kernel in found) + "\n")
    print(isa.table(found))
    print("\n".join(faults))
    print(f"{len(found)} kernels for {len(archs)} architectures, {len(faults)} faults; a line for each in {listing}")
    sys.exit(1 if faults else 0)


if sys.argv[1:] == ["tools"]:
    tools()
else:
    main()
