"""What calls allocate on a GPU beyond their results, compared with torch."""

import gc

import pytest
import torch
from cases import OURS

import torchreduce as tr

pytestmark = pytest.mark.gpu
MIB = 1 << 20


def extra(f):
    """The most bytes that a call has allocated at a time, beyond what was there."""
    f()  # what is allocated once
    gc.collect()  # what goes while f runs would hide what it takes
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = f()
    torch.cuda.synchronize()
    del result
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("name", ("max", "min", "cummax", "cummin"))
@pytest.mark.parametrize("dim", (0, 1))
def test_pairs_are_written_in_place(name, dim):
    x = torch.randn(4096, 4096, device="cuda")  # 64 MiB
    values, indices = getattr(OURS, name)(x, dim)
    assert extra(lambda: getattr(OURS, name)(x, dim, out=(values, indices))) < 8 * MIB


@pytest.mark.parametrize("name", ("sum", "cumsum", "cumprod", "logcumsumexp", "linear_scan", "amax", "argmax"))
def test_results_are_written_in_place(name):
    x = torch.randn(4096, 4096, device="cuda")
    args = (x, x, 1) if name == "linear_scan" else (x, 1)
    out = getattr(OURS, name)(*args)
    assert extra(lambda: getattr(OURS, name)(*args, out=out)) < 8 * MIB


@pytest.mark.parametrize(
    "name", ("sum", "mean", "amax", "max", "cumsum", "cumprod", "logcumsumexp", "cummax", "cummin")
)
@pytest.mark.parametrize(
    ("shape", "dim", "dtype"),
    (
        ((4096, 8192), 1, torch.float32),
        ((4096, 8192), 0, torch.float32),
        ((64, 1 << 19), 1, torch.float32),
        ((8192, 8192), 1, torch.bfloat16),
        ((2048, 1024), 1, torch.float32),
        ((1, 1 << 25), 1, torch.float32),
        ((1 << 25,), 0, torch.float32),
        ((1 << 26,), 0, torch.bfloat16),
    ),
)
def test_backward_peaks_beside_torchs(name, shape, dim, dtype):
    """At most one and a half times torch's, and 16 MiB."""

    def peak(module):
        x = torch.randn(shape, device="cuda").to(dtype).requires_grad_()
        y = getattr(module, name)(x, dim)
        y = y if isinstance(y, torch.Tensor) else y.values
        grad = torch.ones_like(y)
        return extra(lambda: torch.autograd.grad(y, x, grad, retain_graph=True))

    ours, torchs = peak(tr), peak(torch)
    print(f"{name} {shape} {dim} {dtype}: {ours / MIB:.0f} MiB, torch {torchs / MIB:.0f}")
    assert ours <= 1.5 * torchs + 16 * MIB


def test_cross_entropy_takes_logits_and_their_gradient_alone():
    """Forward and backward together, of 16-bit logits: no copy in float32, no log-probabilities."""
    x = torch.randn(8192, 50257, device="cuda", dtype=torch.bfloat16).requires_grad_()
    target = torch.randint(0, 50257, (8192,), device="cuda")
    peak = extra(lambda: torch.autograd.grad(tr.cross_entropy(x, target), x))
    assert x.nbytes + peak <= 1.05 * 2 * x.nbytes


@pytest.mark.parametrize("name", ("softmax", "log_softmax", "logsumexp", "var", "layer_norm", "rms_norm"))
@pytest.mark.parametrize("shape", ((4096, 8192), (512, 65536)))
def test_backward_of_rows_looked_at_twice_peaks_beside_torchs(name, shape):
    def peak(module):
        x = torch.randn(shape, device="cuda").requires_grad_()
        rows = shape[1:] if module is torch.nn.functional else shape[1]
        f = getattr(module, name, None) or getattr(torch, name)
        y = f(x, rows) if name.endswith("norm") else f(x, 1)
        grad = torch.ones_like(y)
        return extra(lambda: torch.autograd.grad(y, x, grad, retain_graph=True))

    assert peak(tr) <= 1.5 * peak(torch.nn.functional) + 16 * MIB
