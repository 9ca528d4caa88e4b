"""The override in distributed training: DDP, FSDP2, DTensor; gloo, and nccl on two GPUs."""

import os

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

import torchreduce as tr
from torchreduce import override


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 4))


def batch(rank):
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(6, 8, generator=generator), torch.randint(4, (6,), generator=generator)


def train(wrapped, rank, device):
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    x, target = (t.to(device) for t in batch(rank))
    for _ in range(2):
        optimizer.zero_grad()
        loss = F.cross_entropy(wrapped(x), target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
        optimizer.step()
    return loss.detach()


def work(rank, device, address, results):
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("gloo" if device == "cpu" else "nccl", init_method=address, rank=rank, world_size=2)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    assert override.state.eager == 3  # by TORCHREDUCE_ENABLE
    mesh = init_device_mesh(device, (2,))
    losses = {}
    for state in ("on", "off", "on again"):
        with tr.enabled(cpu=True, compile=False):
            if state == "off":
                tr.disable()
            ddp = torch.nn.parallel.DistributedDataParallel(model().to(device))
            losses["ddp", state] = train(ddp, rank, device)
            sharded = fully_shard(model().to(device), mesh=mesh)
            losses["fsdp", state] = train(sharded, rank, device)
            x = torch.arange(24.0, device=device).reshape(4, 6)
            parts = distribute_tensor(x, mesh, [Shard(0)])
            losses["dtensor", state] = parts.sum().full_tensor()
            assert torch.equal(parts.softmax(1).full_tensor(), x.softmax(1))
    served = {name: row["served"] for name, row in tr.coverage().items()}
    results.put((rank, {key: loss.tolist() for key, loss in losses.items()}, served))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpus)])
def test_ddp_fsdp2_and_dtensor(device, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHREDUCE_ENABLE", "cpu")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")]))
    context = torch.multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    torch.multiprocessing.spawn(work, (device, f"file://{tmp_path}/store", results), nprocs=2)
    for _ in range(2):
        rank, losses, served = results.get()
        for kind in ("ddp", "fsdp", "dtensor"):
            assert losses[kind, "on"] == losses[kind, "on again"], (rank, kind)
            assert losses[kind, "off"] == pytest.approx(losses[kind, "on"], rel=1e-5), (rank, kind)
        assert losses["dtensor", "on"] == 276
        for name in ("cross_entropy_loss", "native_layer_norm", "native_layer_norm_backward"):
            assert served[name] >= 8, name
        assert served["sum.dim_IntList"] > 8  # bias gradients
