"""torchreduce.distributed beside the sums of NCCL: reduce_scatter, all_reduce, and training steps of a GPT.

    python -m benchmarks.distributed [--ranks 2] [--part collectives steps] [--out FOLDER]    # about two minutes

Times are the slowest rank's, of the median of five runs; the ways take turns. "one step" is one all_gather, and an
addition of all rows on each rank; "two steps" is all_to_all, an addition, and all_gather: their times say where
torchreduce/distributed/collectives.py should change from the one to the other (ONE_STEP). Writes distributed.csv.

A training step is a micro-batch on each rank, in bfloat16 with float32 parameters, clipped, AdamW; DDP's and FSDP2's
own sums beside DDPHook's and FSDPTree's. --device cpu runs all of it under gloo, as a check of this script.
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

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import torchreduce as tr
import torchreduce.distributed as trd
from torchreduce.distributed import collectives

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from train_lm import GPT, VOCABULARY, batch

KB = 1 << 10
SIZES = (64 * KB, 256 * KB, 1024 * KB, 4096 * KB, 16384 * KB, 65536 * KB, 262144 * KB)  # bytes on each rank
FIELDS = ("device", "ranks", "torch", "part", "dtype", "bytes", "way", "ms")
Row = tuple[str, str, int, str, float]
Calls = dict[str, Callable[[], object]]


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def times_of(calls: Calls, repeats: int) -> dict[str, float]:
    """Milliseconds of each call, on the slowest rank."""
    runs: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(2):
            call()
    for _ in range(5):
        for name, call in calls.items():
            synchronize()
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(repeats):
                call()
            synchronize()
            runs[name].append((time.perf_counter() - begin) / repeats * 1e3)
    medians = torch.tensor([statistics.median(each) for each in runs.values()], dtype=torch.float64, device=device())
    dist.all_reduce(medians, op=dist.ReduceOp.MAX)
    return dict(zip(runs, medians.tolist(), strict=True))


def device() -> str:
    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def forced(limit: int, x: torch.Tensor) -> Callable[[], None]:
    """all_reduce, in one step up to so many bytes."""

    def call() -> None:
        was, collectives.ONE_STEP = collectives.ONE_STEP, limit
        try:
            trd.all_reduce(x, async_op=True).wait()  # which reads no peers' buffers
        finally:
            collectives.ONE_STEP = was

    return call


def sums(most: int) -> Iterator[Row]:
    world = dist.get_world_size()
    their_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    for dtype in (torch.float32, torch.bfloat16):
        for size in SIZES:
            if size > most:
                break
            n = size // dtype.itemsize // (64 * world) * 64 * world
            x = torch.randn(n, device=device()).to(dtype)
            every = [torch.empty_like(x) for _ in range(world)]
            dist.all_gather(every, x)
            y = x.clone()
            trd.all_reduce(y)
            assert torch.equal(y, tr.sum(torch.stack(every), 0)), (dtype, size)
            del every
            x.zero_()  # sums of sums do not grow
            out = torch.empty(n // world, dtype=dtype, device=device())
            rows = torch.empty_like(x).view(world, -1)
            calls: Calls = {
                "reduce_scatter, NCCL": lambda x=x, out=out: their_reduce_scatter(out, x),
                "reduce_scatter": lambda x=x, out=out: trd.reduce_scatter(out, x),
                "all_reduce, NCCL": lambda x=x: dist.all_reduce(x),
                "all_reduce": lambda x=x: trd.all_reduce(x),
                "all_reduce, two steps": forced(0, x),
                "all_to_all alone": lambda x=x, rows=rows: collectives.exchange(rows, x, None),
                "addition alone": lambda rows=rows, out=out: tr.sum(rows, 0, out=out),
                "all_gather alone": lambda x=x, out=out: collectives.gather(x, out, None),
            }
            if size <= 16384 * KB:
                whole = x.new_empty(world, world, n // world)
                calls["all_reduce, one step"] = forced(1 << 60, x)
                calls["reduce_scatter, one step"] = lambda x=x, out=out, whole=whole: (
                    collectives.gather(whole, x, None),
                    tr.sum(whole[:, dist.get_rank()], 0, out=out),
                )
            ms = times_of(calls, max(2, min(50, (256 << 20) // size)))
            yield from (("collectives", str(dtype)[6:], size, way, t) for way, t in ms.items())
            if dist.get_rank() == 0:
                print(
                    f"{str(dtype)[6:]:8} {size >> 10:7} KB: reduce_scatter {ms['reduce_scatter']:.3f} ms, "
                    f"{ms['reduce_scatter'] / ms['reduce_scatter, NCCL']:.2f} times NCCL's; all_reduce "
                    f"{ms['all_reduce']:.3f} ms, {ms['all_reduce'] / ms['all_reduce, NCCL']:.2f} times NCCL's; "
                    + ", ".join(f"{way} {t:.3f}" for way, t in ms.items() if "NCCL" not in way and " " in way),
                    flush=True,
                )


def steps(shape: dict[str, int], size: int, repeats: int) -> Iterator[Row]:
    world, rank = dist.get_world_size(), dist.get_rank()
    for wrapper in ("ddp", "fsdp"):
        ms = {}
        for ours in (False, True, False, True):
            way = "ours" if ours else "torch"
            ms[way] = min(ms.get(way, float("inf")), times_of({way: step_of(wrapper, ours, shape, size)}, repeats)[way])
        yield from ((f"{wrapper} step", "bfloat16", 0, way, t) for way, t in ms.items())
        if rank == 0:
            ratio = ms["ours"] / ms["torch"]
            print(
                f"{wrapper} step on {world} ranks: {ms['ours']:.2f} ms, torch's {ms['torch']:.2f}: {ratio:.3f}",
                flush=True,
            )


def step_of(wrapper: str, ours: bool, shape: dict[str, int], size: int) -> Callable[[], None]:
    """A training step: forward, backward, the norm, AdamW."""
    world, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(0)
    model = GPT(**shape).to(device())
    module: torch.nn.Module = model
    tree = None
    if wrapper == "ddp":
        module = DistributedDataParallel(model)
        if ours:
            module.register_comm_hook(trd.DDPHook(model, world), trd.DDPHook.hook)
    else:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for part in (*model.blocks, model):
            fully_shard(part, mesh=init_device_mesh(device(), (world,)), mp_policy=policy)
        tree = trd.FSDPTree(model, world) if ours else None
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    tokens, following = batch(rank, size, model.length, device())

    def step() -> None:
        for _ in tree.micro_batches() if tree else (rank,):
            with torch.autocast(device(), torch.bfloat16, enabled=wrapper == "ddp"):
                loss = F.nll_loss(module(tokens).flatten(0, 1).float(), following.flatten())
            loss.backward()
        if ours:
            trd.clip_grad_norm_(model.parameters(), 1.0)
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def work(rank: int, args: argparse.Namespace, folder: str) -> None:
    cuda = args.device == "cuda"
    torch.set_num_threads(1)
    on = None
    if cuda:
        torch.cuda.set_device(rank)
        on = torch.device("cuda", rank)
    store = dist.FileStore(f"{folder}/store", args.ranks)
    dist.init_process_group("nccl" if cuda else "gloo", store=store, rank=rank, world_size=args.ranks, device_id=on)
    rows: list[Row] = []
    if "collectives" in args.part:
        rows += sums(args.most << 20)
    if "steps" in args.part:
        small = {"length": 32, "width": 64, "heads": 4, "layers": 2, "vocabulary": VOCABULARY}
        gpt2 = {"length": 1024, "width": 768, "heads": 12, "layers": 12, "vocabulary": 50257}
        rows += steps(gpt2 if cuda else small, 4, 5 if cuda else 2)
    if rank == 0:
        name = torch.cuda.get_device_name() if cuda else "CPU"
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
    parser.add_argument("--part", nargs="+", default=["collectives", "steps"], choices=["collectives", "steps"])
    parser.add_argument("--most", type=int, default=256, help="MB of the largest message")
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    args = parser.parse_args(arguments)
    args.ranks = args.ranks or max(2, torch.cuda.device_count())
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(work, (args, folder), nprocs=args.ranks, start_method="forkserver")


if __name__ == "__main__":
    main()
