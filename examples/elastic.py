"""Trains a GPT on 1, 2 and 4 processes, and stops on 4 and resumes on 2: losses and weights are bitwise identical.

    python examples/elastic.py                             # on the CPU (gloo), or on the GPUs of this machine (NCCL)
    python examples/elastic.py --gpt2 --steps 50 --worlds 1 2 --products
    torchrun --nproc-per-node 4 examples/elastic.py        # one run on 4 ranks: compare what it prints

A step is `--count` micro-batches of one shape, spread over the ranks. What is random is seeded by the micro-batch, the
loss is a sum, and the division comes once, after the sum of the gradients, which torchreduce.distributed makes: for
plain modules, DistributedDataParallel and FSDP2.
"""

import argparse
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, NamedTuple

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from train_lm import GPT, batch

import torchreduce
import torchreduce.distributed as trd

GPT2 = {"length": 1024, "width": 768, "heads": 12, "layers": 12, "vocabulary": 50257}


class Stage(NamedTuple):
    """Steps that a number of ranks takes, from the checkpoint of the stage before or from the start."""

    wrapper: str
    dtype: torch.dtype
    world: int
    steps: range
    resumes: bool


class Result(NamedTuple):
    losses: list[float]
    weights: str  # a hash
    seconds: float  # of the median step


def digest(tensors: Iterable[Tensor]) -> str:
    sha = hashlib.sha256()
    for t in tensors:
        sha.update(t.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()[:16]


def wrapped(
    model: GPT, wrapper: str, count: int, device: str
) -> tuple[nn.Module, Callable[[Callable[[int], None]], None]]:
    """The module to call, and what calls backward_of(i) for each micro-batch i of this rank, and sums the gradients."""
    if wrapper == "plain":
        total = trd.GradientSum(model.parameters(), count)

        def plain(backward_of: Callable[[int], None]) -> None:
            for i in total.run:
                backward_of(i)
                total.push()
            total.finish()

        return model, plain
    if wrapper == "ddp":
        ddp = DistributedDataParallel(model)
        hook = trd.DDPHook(model, count)
        ddp.register_comm_hook(hook, trd.DDPHook.hook)

        def by_hook(backward_of: Callable[[int], None]) -> None:
            for i in hook.run[:-1]:
                with ddp.no_sync():
                    backward_of(i)
                hook.push()
            backward_of(hook.run[-1])

        return ddp, by_hook
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    tree = trd.FSDPTree(model, count)

    def sharded(backward_of: Callable[[int], None]) -> None:
        for i in tree.micro_batches():
            backward_of(i)

    return model, sharded


def train(stage: Stage, shape: dict[str, int], count: int, size: int, device: str, checkpoint: str) -> Result:
    """Losses of the steps, and weights after them, on this rank; writes the checkpoint."""
    torch.manual_seed(0)
    model = GPT(**shape).to(device, stage.dtype)
    module, micro_batches = wrapped(model, stage.wrapper, count, device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    if stage.resumes:
        set_state_dict(module, optimizer, **torch.load(checkpoint), options=StateDictOptions(full_state_dict=True))
    losses, times = [], []
    for step in stage.steps:
        begin = time.perf_counter()
        loss_of = torch.full((count,), -0.0, device=device)  # -0.0 changes no sum

        def backward_of(i: int, step: int = step, loss_of: Tensor = loss_of) -> None:
            tokens, following = batch(count * step + i, size, model.length, device)
            loss = F.nll_loss(module(tokens).flatten(0, 1), following.flatten(), reduction="sum")
            loss.backward()
            loss_of[i] = loss.detach()

        micro_batches(backward_of)
        trd.all_reduce(loss_of)
        tokens = count * size * model.length
        for p in model.parameters():
            local = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
            local.div_(tokens)
        trd.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(torchreduce.sum(loss_of).item() / tokens)
        times.append(time.perf_counter() - begin)
    weights, moments = get_state_dict(module, optimizer, options=options)
    if dist.get_rank() == 0:
        torch.save({"model_state_dict": weights, "optim_state_dict": moments}, checkpoint)
    return Result(losses, digest(weights.values()) if weights else "", sorted(times)[len(times) // 2])


def work(rank: int, stages: list[Stage], args: argparse.Namespace, folder: str) -> None:
    """A process: takes part in the stages that have its rank."""
    cuda = args.device == "cuda"
    torch.set_num_threads(1)  # on a CPU, products depend on the number of threads
    if cuda:
        torch.cuda.set_device(rank)
    results: list[Result] = []
    for number, stage in enumerate(stages):
        if rank >= stage.world:
            continue
        store = None if args.torchrun else dist.FileStore(f"{folder}/{number}", stage.world)
        where: Any = {} if args.torchrun else {"store": store, "rank": rank, "world_size": stage.world}
        on = torch.device("cuda", rank) if cuda else None
        dist.init_process_group("nccl" if cuda else "gloo", device_id=on, **where)
        products = "float32" if args.products else False
        with torchreduce.enabled(cpu=True, compile=False, products=products) if not args.off else nullcontext():
            results.append(train(stage, shape_of(args), args.count, args.size, args.device, f"{folder}/checkpoint"))
        dist.barrier()
        dist.destroy_process_group()
        if rank == 0:
            said(stage, results[-1])
    if rank == 0:
        torch.save([tuple(result) for result in results], f"{folder}/results")


def said(stage: Stage, result: Result) -> None:
    ranks = f"{stage.world} rank{'s' if stage.world > 1 else ''}"
    print(
        f"{stage.wrapper} {str(stage.dtype)[6:]} {ranks}, steps {stage.steps.start} to {stage.steps.stop}: "
        f"loss {result.losses[0]:.4f} to {result.losses[-1]:.4f}, losses {hash_of(result.losses)}, "
        f"weights {result.weights}, {1000 * result.seconds:.0f} ms a step",
        flush=True,
    )


def hash_of(losses: list[float]) -> str:
    return digest([torch.tensor(losses, dtype=torch.float64)])


def shape_of(args: argparse.Namespace) -> dict[str, int]:
    return GPT2 if args.gpt2 else {name: getattr(args, name) for name in GPT2}


def stages_of(args: argparse.Namespace, worlds: list[int]) -> list[list[Stage]]:
    """Of each wrapper and dtype: a run on each number of ranks; one that stops on the most, and resumes on fewer."""
    made = []
    half = args.steps // 2
    for wrapper in args.wrappers:
        for name in args.dtypes:
            dtype = getattr(torch, name)
            runs = [Stage(wrapper, dtype, world, range(args.steps), False) for world in worlds]
            if len(worlds) > 1:
                runs.append(Stage(wrapper, dtype, worlds[-1], range(half), False))
                runs.append(Stage(wrapper, dtype, worlds[-2], range(half, args.steps), True))
            made.append(runs)
    return made


def demonstrate(args: argparse.Namespace) -> bool:
    """Whether all runs of a wrapper and dtype, and all wrappers of a dtype, have the same losses and weights."""
    most = torch.cuda.device_count() if args.device == "cuda" else 4
    worlds = args.worlds or [world for world in (1, 2, 4) if world <= most]
    groups = stages_of(args, worlds)
    with tempfile.TemporaryDirectory() as folder:
        stages = [stage for group in groups for stage in group]
        mp.start_processes(work, (stages, args, folder), nprocs=max(worlds), start_method="forkserver")
        results = iter([Result(*result) for result in torch.load(f"{folder}/results")])
    fine = True
    ends: dict[torch.dtype, set[tuple[str, str]]] = {}
    for group in groups:
        each = [next(results) for _ in group]
        losses = [result.losses for result in each[: len(worlds)]]
        weights = [result.weights for result in each[: len(worlds)]]
        if len(worlds) > 1:
            losses.append(each[-2].losses + each[-1].losses)
            weights.append(each[-1].weights)
        same = {(hash_of(loss), weight) for loss, weight in zip(losses, weights, strict=True)}
        ends.setdefault(group[0].dtype, set()).update(same)
        fine &= len(same) == 1
        what = f"{group[0].wrapper} {str(group[0].dtype)[6:]}: {worlds} ranks, and stopped on {worlds[-1]} and resumed"
        print(f"{'yes' if len(same) == 1 else 'NO ':4}{what}: the same losses and weights")
    for dtype, seen in ends.items():
        print(f"{'yes' if len(seen) == 1 else 'NO ':4}{str(dtype)[6:]}: {', '.join(args.wrappers)} are the same")
    return fine


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--wrappers", nargs="+", default=["plain", "ddp", "fsdp"], choices=["plain", "ddp", "fsdp"])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument(
        "--worlds", nargs="+", type=int, help="numbers of ranks; default 1 2 4, as far as there are GPUs"
    )
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--count", type=int, default=8, help="micro-batches of a step")
    parser.add_argument("--size", type=int, default=2, help="sequences of a micro-batch")
    parser.add_argument("--products", action="store_true", help="override matrix products, too")
    parser.add_argument("--off", action="store_true", help="leave torch's own products and reductions in place")
    parser.add_argument("--gpt2", action="store_true", help="124 million parameters: 12 layers of 768, 1024 tokens")
    for name, value in {"length": 64, "width": 64, "heads": 4, "layers": 2, "vocabulary": 128}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args(arguments)
    args.torchrun = "RANK" in os.environ
    if not args.torchrun:
        return 0 if demonstrate(args) else 1
    world = int(os.environ["WORLD_SIZE"])
    stages = [Stage(w, getattr(torch, d), world, range(args.steps), False) for w in args.wrappers for d in args.dtypes]
    with tempfile.TemporaryDirectory() as folder:
        work(int(os.environ["RANK"]), stages, args, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
