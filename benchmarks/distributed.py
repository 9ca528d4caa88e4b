"""torchreduce.distributed beside the sums of NCCL: reduce_scatter, all_reduce, and training steps of a GPT.

    python -m benchmarks.distributed [--ranks 2] [--part collectives steps] [--out FOLDER]    # about 90 seconds

Three ways: NCCL's own sums; "transfers", where NCCL moves the terms; and "buffers", where ranks write to each other's
GPUs (TORCHREDUCE_SYMMETRIC_MEMORY=1). Times are the slowest rank's, of the median of five runs; the ways take turns.
"wall" is a call's share of a row of calls; "queued" is that of a row of calls behind other work, so without the host's
time. Writes distributed.csv.

A training step is a micro-batch on each rank, in bfloat16 with float32 parameters, clipped, AdamW; DDP's and FSDP2's
own sums beside DDPHook's and FSDPTree's. "clip" is the part of the step that clips, by itself.

--part transfers: all_reduce in one step (one all_gather, and an addition of all rows on each rank) and in two
(all_to_all, an addition, all_gather), which say where torchreduce/distributed/collectives.py should change from the
one to the other (ONE_STEP); and the parts of a sum alone. --part launches: what a sum by buffers consists of.
--device cpu runs all but that under gloo, as a check of this script.
"""

import argparse
import csv
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import torchreduce as tr
import torchreduce.distributed as trd
from torchreduce.distributed import collectives, symmetric
from torchreduce.distributed.order import add_rows

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from train_lm import GPT, VOCABULARY, batch

KB, MB = 1 << 10, 1 << 20
SIZES = (64 * KB, MB, 16 * MB, 64 * MB, 256 * MB)  # bytes on each rank
FIELDS = ("device", "ranks", "torch", "part", "dtype", "bytes", "way", "ms")
Row = tuple[str, str, int, str, float]
Calls = dict[str, Callable[[], object]]
Groups = dict[str, dist.ProcessGroup]


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def device() -> str:
    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def ways() -> Groups:
    """A group for each way to add."""
    groups = {}
    for way, asked in (("transfers", "0"), ("buffers", "1")):
        os.environ["TORCHREDUCE_SYMMETRIC_MEMORY"] = asked  # read when a group is first used
        groups[way] = dist.new_group(list(range(dist.get_world_size())))
        trd.all_reduce(torch.zeros(8, device=device()), groups[way])
    return groups


# ---- time ------------------------------------------------------------------------------------------------------------


def wall(call: Callable[[], object], repeats: int) -> float:
    synchronize()
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    synchronize()
    return (time.perf_counter() - begin) / repeats * 1e3


def queued(call: Callable[[], object], repeats: int) -> float:
    """The host queues all calls while the GPU is kept busy. The first call, by which the ranks meet, is not timed."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    synchronize()
    dist.barrier()
    torch.cuda._sleep(40_000_000)  # some 20 ms
    call()
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    synchronize()
    return begin.elapsed_time(end) / repeats


def times_of(
    calls: Calls, repeats: int, time_of: Callable[[Callable[[], object], int], float] = wall
) -> dict[str, float]:
    """Milliseconds of each call, on the slowest rank."""
    runs: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(2):
            call()
    for _ in range(5):
        for name, call in calls.items():
            runs[name].append(time_of(call, repeats))
    medians = torch.tensor([statistics.median(each) for each in runs.values()], dtype=torch.float64, device=device())
    dist.all_reduce(medians, op=dist.ReduceOp.MAX)
    return dict(zip(runs, medians.tolist(), strict=True))


# ---- collectives -----------------------------------------------------------------------------------------------------


def sums(most: int, dtypes: list[str], groups: Groups) -> Iterator[Row]:
    world, rank = dist.get_world_size(), dist.get_rank()
    their_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    for dtype in (getattr(torch, name) for name in dtypes):
        for size in (size for size in SIZES if size <= most):
            n = size // dtype.itemsize // (64 * world) * 64 * world
            x = torch.randn(n, device=device()).to(dtype)
            checked(x, groups)
            x.zero_()  # sums of sums do not grow
            out = torch.empty(n // world, dtype=dtype, device=device())
            calls: dict[str, Calls] = {
                "reduce_scatter": {"NCCL": lambda x=x, out=out: their_reduce_scatter(out, x)},
                "all_reduce": {"NCCL": lambda x=x: dist.all_reduce(x)},
            }
            for way, group in groups.items():
                calls["reduce_scatter"][way] = lambda x=x, out=out, g=group: trd.reduce_scatter(out, x, g)
                calls["all_reduce"][way] = lambda x=x, g=group: trd.all_reduce(x, g)
            repeats = max(4, min(50, 512 * MB // size))
            for name, each in calls.items():
                for kind, time_of in (("wall", wall), ("queued", queued)):
                    if kind == "queued" and not x.is_cuda:
                        continue
                    ms = times_of(each, repeats, time_of)
                    yield from (
                        ("collectives", str(dtype)[6:], size, f"{name}, {way}, {kind}", t) for way, t in ms.items()
                    )
                    if rank == 0:
                        said(f"{name:14} {str(dtype)[6:]:8} {size // KB:7} KB {kind:6}", ms, "NCCL", 1000, "us")


def checked(x: torch.Tensor, groups: Groups) -> None:
    """Raises AssertionError if a way's bits are not those of the sum over the ranks' rows."""
    every = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(every, x)
    want = tr.sum(torch.stack(every), 0)
    for way, group in groups.items():
        y, part = x.clone(), torch.empty_like(x.chunk(len(every))[0])
        trd.all_reduce(y, group)
        trd.reduce_scatter(part, x, group)
        assert torch.equal(y, want), way
        assert torch.equal(part, want.chunk(len(every))[dist.get_rank()]), way


def said(what: str, ms: dict[str, float], other: str, scale: float, unit: str) -> None:
    own = ", ".join(f"{way} {t * scale:.1f} ({t / ms[other]:.2f})" for way, t in ms.items() if way != other)
    print(f"{what}: {other} {ms[other] * scale:.1f} {unit}, {own}", flush=True)


# ---- transfers -------------------------------------------------------------------------------------------------------


def table(rows: list[Row]) -> str:
    """The rows of collectives as in docs/distributed.md: ms, and how many times NCCL's."""
    ms = {(dtype, size, *way.split(", ")): t for part, dtype, size, way, t in rows if part == "collectives"}
    lines = []
    for dtype, size, name, kind in dict.fromkeys((dtype, size, name, kind) for dtype, size, name, _, kind in ms):
        theirs, *own = (ms[dtype, size, name, way, kind] for way in ("NCCL", "transfers", "buffers"))
        amount = f"{size // MB} MB" if size >= MB else f"{size // KB} KB"
        cells = [amount, f"{name} {dtype}", kind, f"{theirs:.3f}", *(f"{t:.3f} ({t / theirs:.2f})" for t in own)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def forced(limit: int, x: torch.Tensor) -> Callable[[], None]:
    """all_reduce, in one step up to so many bytes."""

    def call() -> None:
        was, collectives.ONE_STEP = collectives.ONE_STEP, limit
        try:
            trd.all_reduce(x, async_op=True).wait()  # which reads no peers' buffers
        finally:
            collectives.ONE_STEP = was

    return call


def transfers(most: int) -> Iterator[Row]:
    world = dist.get_world_size()
    for size in (size for size in SIZES if size <= most):
        x = torch.zeros(size // 4 // (64 * world) * 64 * world, device=device())
        rows = torch.empty_like(x).view(world, -1)
        out = torch.empty_like(rows[0])
        calls: Calls = {
            "all_reduce, two steps": forced(0, x),
            "all_to_all alone": lambda x=x, rows=rows: collectives.exchange(rows, x, None),
            "addition alone": lambda rows=rows, out=out: tr.sum(rows, 0, out=out),
            "all_gather alone": lambda x=x, out=out: collectives.gather(x, out, None),
        }
        if size <= 16 * MB:
            calls["all_reduce, one step"] = forced(1 << 60, x)
        ms = times_of(calls, max(4, min(50, 512 * MB // size)))
        yield from (("transfers", "float32", size, way, t) for way, t in ms.items())
        if dist.get_rank() == 0:
            print(f"{size // KB:7} KB: " + ", ".join(f"{way} {t * 1000:.0f} us" for way, t in ms.items()), flush=True)


def launches(group: dist.ProcessGroup) -> Iterator[Row]:
    """What a sum by buffers consists of, each alone: for symmetric.SHORT, LONG and OF_TWO."""
    peers = symmetric.peers_of(group, torch.zeros(1, device=device()))
    if peers is None:
        return
    for n in (1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 21, 1 << 22, 1 << 23):
        room = peers._room(0, n, torch.float32, False)
        rows, out = [torch.zeros(n, device=device()) for _ in range(peers.world)], torch.zeros(n, device=device())
        calls: Calls = {
            "one copy of all rows": lambda room=room, rows=rows: torch._foreach_copy_(room.mine, rows),
            "a copy of each row": lambda room=room, rows=rows: [
                a.copy_(b) for a, b in zip(room.mine, rows, strict=True)
            ],
            "meeting": lambda: peers._handle.barrier(0, symmetric.TIMEOUT),
            "addition": lambda room=room, out=out: add_rows(room.rows, out),
            "torch's addition of another's row": lambda room=room, out=out: torch.add(out, room.mine[0], out=out),
        }
        for kind, time_of in (("wall", wall), ("queued", queued)):
            ms = times_of(calls, 50 if n < 1 << 20 else 20, time_of)
            yield from (("launches", "float32", 4 * n, f"{way}, {kind}", t) for way, t in ms.items())
            if dist.get_rank() == 0:
                said = ", ".join(f"{way} {t * 1000:.1f}" for way, t in ms.items())
                print(f"rows of {4 * n // KB:6} KB, {kind}, us: {said}", flush=True)


# ---- training steps --------------------------------------------------------------------------------------------------


def steps(shape: dict[str, int], size: int, repeats: int, groups: Groups) -> Iterator[Row]:
    world, rank = dist.get_world_size(), dist.get_rank()
    every: dict[str, dist.ProcessGroup | None] = {"torch": None, **groups}
    for wrapper in ("ddp", "fsdp"):
        made = {way: step_of(wrapper, way == "torch", group, shape, size) for way, group in every.items()}
        for part, of in (("step", 0), ("clip", 1)):
            ms = times_of({way: calls[of] for way, calls in made.items()}, repeats)
            yield from ((f"{wrapper} {part}", "bfloat16", 0, way, t) for way, t in ms.items())
            if rank == 0:
                said(f"{wrapper} {part} on {world} ranks", ms, "torch", 1, "ms")
        del made


def step_of(
    wrapper: str, default: bool, group: dist.ProcessGroup | None, shape: dict[str, int], size: int
) -> tuple[Callable[[], None], Callable[[], object]]:
    """A training step: forward, backward, the norm, AdamW; and the norm alone, of the gradients of a step."""
    world, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(0)
    with torch.device(device()):
        model = GPT(**shape)
    module: torch.nn.Module = model
    tree = None
    if wrapper == "ddp":
        module = DistributedDataParallel(model, process_group=group)
        if not default:
            module.register_comm_hook(trd.DDPHook(model, world, group), trd.DDPHook.hook)
    else:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        mesh = DeviceMesh.from_group(group or dist.group.WORLD, device())
        for part in (*model.blocks, model):
            fully_shard(part, mesh=mesh, mp_policy=policy)
        tree = None if default else trd.FSDPTree(model, world, group)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    tokens, following = batch(rank, size, model.length, device())
    clip: Any = torch.nn.utils.clip_grad_norm_ if default else trd.clip_grad_norm_

    def step() -> None:
        optimizer.zero_grad()
        for _ in tree.micro_batches() if tree else (rank,):
            with torch.autocast(device(), torch.bfloat16, enabled=wrapper == "ddp"):
                loss = F.nll_loss(module(tokens).flatten(0, 1).float(), following.flatten())
            loss.backward()
        clip(model.parameters(), 1.0)
        optimizer.step()

    return step, lambda: clip(model.parameters(), 1.0)


def work(rank: int, args: argparse.Namespace, folder: str) -> None:
    cuda = args.device == "cuda"
    torch.set_num_threads(1)
    on = None
    if cuda:
        torch.cuda.set_device(rank)
        on = torch.device("cuda", rank)
    store = dist.FileStore(f"{folder}/store", args.ranks)
    dist.init_process_group("nccl" if cuda else "gloo", store=store, rank=rank, world_size=args.ranks, device_id=on)
    groups = ways()
    rows: list[Row] = []
    if "collectives" in args.part:
        rows += sums(args.most << 20, args.dtypes, groups)
    if "transfers" in args.part:
        rows += transfers(args.most << 20)
    if "launches" in args.part and cuda:
        rows += launches(groups["buffers"])
    if "steps" in args.part:
        small = {"length": 32, "width": 64, "heads": 4, "layers": 2, "vocabulary": VOCABULARY}
        gpt2 = {"length": 1024, "width": 768, "heads": 12, "layers": 12, "vocabulary": 50257}
        rows += steps(gpt2 if cuda else small, 4, 5 if cuda else 2, groups)
    if rank == 0:
        if text := table(rows):
            print(text, flush=True)
        name = torch.cuda.get_device_name() if cuda else "CPU"
        Path(args.out).mkdir(parents=True, exist_ok=True)
        with open(Path(args.out) / "distributed.csv", "w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(FIELDS)
            for part, dtype, size, way, ms in rows:
                writer.writerow((name, args.ranks, torch.__version__, part, dtype, size, way, f"{ms:.4f}"))
    dist.barrier()
    dist.destroy_process_group()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--ranks", type=int, help="default: the GPUs of this machine")
    parts = ["collectives", "steps", "transfers", "launches"]
    parser.add_argument("--part", nargs="+", default=parts[:2], choices=parts)
    parser.add_argument("--dtypes", nargs="+", default=["float32"], choices=["float32", "bfloat16"])
    parser.add_argument("--most", type=int, default=256, help="MB of the largest message")
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    args = parser.parse_args(arguments)
    args.ranks = args.ranks or max(2, torch.cuda.device_count())
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(work, (args, folder), nprocs=args.ranks, start_method="forkserver")


if __name__ == "__main__":
    main()
