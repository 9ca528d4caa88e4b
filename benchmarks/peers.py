"""peers.cu from Python: the ceilings and CUB. Compiled at first use into build/benchmarks/, a minute once; to have it
ready for a GPU machine, `python -m benchmarks.peers [90]` does so on a machine without a GPU (for that architecture).
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from torchreduce._tools.bench import Run, Timed, percentile, replayed, rotation, take_turns

SOURCE = Path(__file__).with_name("peers.cu")
BUILD = SOURCE.parents[1] / "build" / "benchmarks"
OPS = {"cumsum": 0, "cumprod": 1, "sum": 2, "amax": 3, "argmax": 4}
DTYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3, torch.int32: 4}


def build(arch: str) -> Path:
    """The library for an architecture, as "90", compiled where there is none of this source."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    library = BUILD / f"peers-{arch}-{digest}.so"
    if not library.exists():
        nvcc = shutil.which("nvcc") or os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc")
        BUILD.mkdir(parents=True, exist_ok=True)
        print(f"compiling {SOURCE.name} for sm_{arch}, a minute", file=sys.stderr, flush=True)
        partial = library.with_suffix(f".{os.getpid()}")  # another process may be compiling it, too
        flags = [f"-arch=sm_{arch}", "-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC"]
        subprocess.run([nvcc, *flags, "-o", partial, SOURCE], check=True)
        partial.replace(library)
    return library


@cache
def library() -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(build("{}{}".format(*torch.cuda.get_device_capability()))))
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    loaded.peers_copy.argtypes = [ctypes.c_int, pointer, pointer, number, pointer]
    loaded.peers_read.argtypes = [ctypes.c_int, pointer, pointer, number, pointer]
    loaded.peers_cub.argtypes = [ctypes.c_int] * 3 + [pointer] * 4 + [number] * 2 + [pointer]
    return loaded


def _checked(error: int, what: str) -> None:
    if error:
        raise RuntimeError(f"{what}: CUDA error {error}")


def _stream() -> int:
    return torch.cuda.current_stream().cuda_stream


# ---- ceilings --------------------------------------------------------------------------------------------------------


def copy(variant: int, to: torch.Tensor, x: torch.Tensor) -> None:
    _checked(library().peers_copy(variant, to.data_ptr(), x.data_ptr(), x.nbytes, _stream()), f"copy {variant}")


def read(variant: int, scratch: torch.Tensor, x: torch.Tensor) -> None:
    _checked(library().peers_read(variant, scratch.data_ptr(), x.data_ptr(), x.nbytes, _stream()), f"read {variant}")


@cache
def ceiling(kind: str, nbytes: int, replay: bool) -> tuple[float, str]:
    """The least median time of all variants of "copy" (nbytes read and written together) or "read", in seconds, and
    the variant's name. replay: by a graph over buffers that rotate, as short calls are timed."""
    size = max(16, (nbytes // 2 if kind == "copy" else nbytes) // 16 * 16)
    function, count = (copy, library().peers_copies()) if kind == "copy" else (read, library().peers_reads())

    def source(_: int) -> torch.Tensor:
        return torch.randint(2**62, (-(-size // 8),), device="cuda").view(torch.uint8)[:size]

    def run(variant: int, x: torch.Tensor) -> torch.Tensor:
        to = torch.empty_like(x if kind == "copy" else x[:16])
        function(variant, to, x)
        return to

    inputs = [source(i) for i in range(rotation(nbytes) if replay else 1)]
    calls: dict[str, Run | Timed] = {}
    for variant in range(count):
        run(variant, inputs[0])
        name = "cudaMemcpy" if kind == "copy" and variant == 0 else f"{kind} kernel {variant}"
        one = lambda x, variant=variant: run(variant, x)  # noqa: E731
        calls[name] = replayed(one, inputs) if replay else lambda one=one: one(inputs[0])
    medians = {name: percentile(times, 50) for name, times in take_turns(calls, "cuda", 30, 0.05).items()}
    best = min(medians, key=medians.__getitem__)
    return medians[best], best


def ceiling_seconds(kind: str, nbytes: int, replay: bool) -> tuple[float, str]:
    """As ceiling; for large sizes scaled from the nearest multiple of 32 MiB: sizes that differ by a row are one."""
    step = 1 << 25
    rounded = nbytes if nbytes < 8 * step else round(nbytes / step) * step
    seconds, name = ceiling(kind, rounded, replay)
    return seconds * nbytes / rounded, name


# ---- CUB -------------------------------------------------------------------------------------------------------------


def offers(op: str, dtype: str, wide: bool) -> bool:
    known = op in OPS and getattr(torch, dtype) in DTYPES
    return known and (not wide or (dtype in ("bfloat16", "float16") and op in ("cumsum", "cumprod", "sum")))


def cub(op: str, x: torch.Tensor, rows: int, wide: bool, out: torch.Tensor | None = None) -> torch.Tensor:
    """op over each of `rows` rows of x, which is contiguous. The workspace is allocated by torch, in every call, as
    torch's own calls of CUB do."""
    if out is None:
        if op == "argmax":
            out = torch.empty(3, device="cuda", dtype=torch.int64)
        else:
            out = torch.empty(x.shape if op in ("cumsum", "cumprod") else (rows,), device="cuda", dtype=x.dtype)
    size = ctypes.c_size_t()
    args = (OPS[op], DTYPES[x.dtype], int(wide))
    rest = (x.data_ptr(), out.data_ptr(), rows, x.numel() // rows, _stream())
    _checked(library().peers_cub(*args, None, ctypes.addressof(size), *rest), f"CUB {op}")
    workspace = torch.empty(max(1, size.value), device="cuda", dtype=torch.uint8)
    _checked(library().peers_cub(*args, workspace.data_ptr(), ctypes.addressof(size), *rest), f"CUB {op}")
    return out[0] if op == "argmax" else out


# ---- Liger -----------------------------------------------------------------------------------------------------------


def liger(name: str) -> Callable[..., torch.Tensor] | None:
    """Its function, called as torch's; None where it has none or is not installed. Its cross_entropy computes the
    gradient in the forward pass, over the logits, so it is no peer of either."""
    try:
        from liger_kernel.ops.layer_norm import LigerLayerNormFunction
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction
        from liger_kernel.ops.softmax import LigerSoftmaxFunction
    except ImportError:
        return None
    functions: dict[str, Callable[..., torch.Tensor]] = {
        "rms_norm": lambda x, shape, w: LigerRMSNormFunction.apply(x, w, 1e-6, 0.0, "llama", False),
        "layer_norm": lambda x, shape, w, b: LigerLayerNormFunction.apply(x, w, b, 1e-5),
        "softmax": lambda x, dim: LigerSoftmaxFunction.apply(x),
    }
    return functions.get(name)


def check() -> None:
    """AssertionError unless every copy copies and CUB computes what torch does."""
    x = torch.randint(-3, 4, (1_000_003 * 16,), device="cuda", dtype=torch.int8)
    for variant in range(library().peers_copies()):
        to = torch.full_like(x, 77)
        copy(variant, to, x)
        assert torch.equal(to, x), f"copy {variant} does not copy"
    for variant in range(library().peers_reads()):
        read(variant, torch.empty_like(x), x)
    for op in OPS:
        for dtype in DTYPES:
            for wide in (False, True):
                if offers(op, str(dtype).removeprefix("torch."), wide):
                    y = torch.ones(200, device="cuda", dtype=dtype)  # every sum is exact in every dtype
                    y[150] = 2
                    expected = getattr(torch, op)(y, 0)
                    result = cub(op, y, 1, wide)
                    assert torch.equal(result.reshape(-1), expected.to(result.dtype).reshape(-1)), f"CUB {op} {dtype}"
    rows = torch.ones(50, 70, device="cuda")
    assert torch.equal(cub("sum", rows, 50, False), rows.sum(1)), "CUB sum of rows"
    torch.cuda.synchronize()


if __name__ == "__main__":
    print(build(*sys.argv[1:] or ["90"]))
