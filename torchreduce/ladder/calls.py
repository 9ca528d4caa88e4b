"""One rung, run on a tensor: on its GPU, or, for a tensor on the CPU, in the emulation."""

import ctypes
import os
import subprocess
import tempfile
import threading
from functools import cache
from typing import IO

import numpy as np
import torch
from torch import Tensor

import torchreduce

from . import build
from .catalog import PEERS, Rung, named

OPS = ("sum", "max")
DTYPES = (torch.float32, torch.int32)
SPARE = 1 << 18  # elements of a workspace beyond the input's number


def run(
    rung: str, x: Tensor, op: str = "sum", *, exclusive: bool = False, block: int | None = None, scans: bool = False
) -> Tensor:
    """Run a rung of the ladder on x: a "sum" or "max" (0-d), or the scan of it.

    x: float32 or int32, of any shape, which is taken row by row as one row of at least one element; on a GPU, or on the
    CPU, where the rung runs in an emulation of one and takes milliseconds for a thousand elements. Sums of int32 wrap
    around, in int32. NaN propagates. exclusive: of scans, each result covers the elements before it; the first is
    the op's identity.
    block: the threads of a block, of those that the rung lists. scans: of a peer (torchreduce, torch, torch.compile and
    cub), which has both, the scan. Compiles at first use: RuntimeError without a compiler. ValueError for what a rung
    does not serve: beyond its limit, another block. x is left as it is. Bits may depend on anything, as the rung's
    comment says.

    >>> import torch, torchreduce.ladder as ladder
    >>> ladder.run("two_pass", torch.arange(1000, dtype=torch.int32)).item()
    499500
    >>> ladder.run("kogge_stone", torch.ones(4, dtype=torch.int32), exclusive=True)
    tensor([0, 1, 2, 3], dtype=torch.int32)
    """
    one = named(rung)
    if not isinstance(x, Tensor):
        raise TypeError(f"ladder: x must be a Tensor, got {type(x).__name__}")
    if x.dtype not in DTYPES:
        raise NotImplementedError(f"ladder: not implemented for {x.dtype}. Supported are float32 and int32")
    if op not in OPS:
        raise ValueError(f"ladder: op must be one of {', '.join(OPS)}, got {op!r}")
    if x.numel() == 0:
        raise ValueError(f"ladder: {rung} needs at least one element, got the shape {tuple(x.shape)}")
    if one.limit and x.numel() > one.limit:
        raise ValueError(f"ladder: {rung} takes at most {one.limit} elements ({one.why_limited}), got {x.numel()}")
    scans = one.scans or (scans and rung in PEERS)
    if exclusive and not scans:
        raise ValueError(f"ladder: exclusive is for scans, and {rung} is none")
    if block is None:
        block = one.block if one.blocks else 0
    elif block not in one.blocks:
        listed = ", ".join(map(str, one.blocks)) or "none to choose"
        raise ValueError(f"ladder: {rung} has blocks of {listed} threads, got {block}")
    with torch.no_grad():
        if rung in PEERS:
            return _run_peer(rung, x, op, scans, exclusive)
        row = x.detach().reshape(-1)
        if x.is_cuda:
            result, _ = launch(one, row, op, exclusive, block)
        elif x.is_cpu:
            result, _ = emulate(one, row, op, exclusive, block)
        else:
            raise NotImplementedError(f"ladder: not implemented for the device {str(x.device)!r}")
        return result.reshape(x.shape if scans else ())


# ---- on a GPU --------------------------------------------------------------------------------------------------------


def launch(rung: Rung, x: Tensor, op: str, exclusive: bool, block: int) -> tuple[Tensor, int]:
    """Enqueues a rung on the current stream; its result, of one dim, and how many launches it took."""
    if rung.in_place:
        x = x.clone()
    if not x.is_contiguous() or x.data_ptr() % 16:
        x = x.clone(memory_format=torch.contiguous_format)
    with torch.cuda.device(x.device):
        out = torch.empty(x.numel() if rung.scans else 1, dtype=x.dtype, device=x.device)
        work = torch.empty(x.numel() + SPARE, dtype=x.dtype, device=x.device)
        launches = ctypes.c_int()
        entry = getattr(build.library(), f"ladder_{rung.file}")
        kind = OPS.index(op), DTYPES.index(x.dtype)
        memory = x.data_ptr(), out.data_ptr(), work.data_ptr(), x.numel()
        checked(entry(rung.name.encode(), *kind, *memory, block, exclusive, stream(), ctypes.byref(launches)))
    return out, launches.value


def stream() -> int:
    return torch.cuda.current_stream().cuda_stream


def checked(error: bytes | None) -> None:
    if error:
        raise RuntimeError(f"ladder: {error.decode()}")


# ---- peers -----------------------------------------------------------------------------------------------------------


def _run_peer(name: str, x: Tensor, op: str, scans: bool, exclusive: bool) -> Tensor:
    row = x.reshape(-1)
    shape = x.shape if scans else torch.Size(())
    if name == "cub":
        return _run_cub(row, op, scans, exclusive).reshape(shape)
    if exclusive and (op == "max" or name != "torchreduce"):
        raise ValueError(f"ladder: {name} has no exclusive scan of {op}")
    if name == "torchreduce" and scans and op == "sum":
        return torchreduce.cumsum(row, 0, dtype=x.dtype, exclusive=exclusive).reshape(shape)
    if name == "torchreduce":
        function = torchreduce.sum if op == "sum" else torchreduce.amax
        result = torchreduce.cummax(row, 0).values if scans else function(row)
        return result.to(x.dtype).reshape(shape)
    call = compiled(op, scans) if name == "torch.compile" else _TORCHS[op, scans]
    return call(row).reshape(shape)


# In the dtype of the input, as the rungs.
_TORCHS = {
    ("sum", False): lambda row: torch.sum(row, dtype=row.dtype),
    ("max", False): lambda row: torch.amax(row),
    ("sum", True): lambda row: torch.cumsum(row, 0, dtype=row.dtype),
    ("max", True): lambda row: torch.cummax(row, 0).values,
}


@cache
def compiled(op: str, scans: bool):  # type: ignore[no-untyped-def]
    """torch.compile's: a kernel for each shape, made in seconds when it first comes."""
    return torch.compile(_TORCHS[op, scans], dynamic=False)


def _run_cub(x: Tensor, op: str, scans: bool, exclusive: bool) -> Tensor:
    if not x.is_cuda or torch.version.hip:
        raise ValueError("ladder: cub needs an NVIDIA GPU")
    with torch.cuda.device(x.device):
        row = x.contiguous()
        out = torch.empty(row.numel() if scans else 1, dtype=row.dtype, device=row.device)
        work = torch.empty(1 << 24 if row.numel() < 1 << 28 else 1 << 28, dtype=torch.uint8, device=row.device)
        memory = row.data_ptr(), out.data_ptr(), work.data_ptr(), work.numel(), row.numel()
        kind = OPS.index(op), DTYPES.index(row.dtype)
        checked(build.library().ladder_cub(scans, *kind, *memory, exclusive, stream()))
    return out


# ---- emulated --------------------------------------------------------------------------------------------------------


class Emulation:
    """A running program of build.emulated(sanitizer), which answers requests one after the other."""

    def __init__(self, sanitizer: str = "") -> None:
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed with the program
        self.lock = threading.Lock()
        program = build.emulated(sanitizer)
        environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "detect_leaks=0"}
        self.process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, env=environment
        )

    def run(
        self, rung: Rung, x: Tensor, op: str, exclusive: bool, block: int, wave: int = 32, seed: int = 0
    ) -> tuple[Tensor, int]:
        """A rung's result, of one dim, and its launches. wave: lanes of a wave, 32 or 64; seed: of the schedule.
        RuntimeError, with the report, where the emulator or a sanitizer finds a fault; the program has then ended."""
        with self.lock:
            assert self.process.stdin and self.process.stdout
            values = x.numpy()
            kind = f"{OPS.index(op)} {DTYPES.index(x.dtype)} {values.size}"
            request = f"{rung.file} {rung.name} {kind} {block} {int(exclusive)} {wave} {seed}\n"
            try:
                self.process.stdin.write(request.encode() + values.tobytes())
                self.process.stdin.flush()
                answer = self.process.stdout.readline().decode().split()
            except BrokenPipeError:
                answer = []
            if not answer:
                self.process.wait(60)
                self.log.seek(0)
                raise RuntimeError(f"ladder: {self.log.read().decode(errors='replace')}")
            if answer[0] == "!":
                raise RuntimeError(f"ladder: {' '.join(answer[1:])}")
            launches, count = map(int, answer)
            result = np.frombuffer(self.process.stdout.read(4 * count), values.dtype).copy()
        return torch.from_numpy(result), launches

    def close(self) -> None:
        """Ends the program."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(60)
        self.log.close()


_running: list[Emulation] = []


def emulation() -> Emulation:
    """The one of this process, without a sanitizer; another one where it has ended."""
    if not _running or _running[0].process.poll() is not None:
        _running[:] = [Emulation()]
    return _running[0]


def emulate(rung: Rung, x: Tensor, op: str, exclusive: bool, block: int, wave: int = 32) -> tuple[Tensor, int]:
    return emulation().run(rung, x.contiguous(), op, exclusive, block, wave)
