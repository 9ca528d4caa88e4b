"""Gradients of average pools under enable(): sums of the windows of an element, in one order."""

import itertools

import pytest
import torch
from torch.nn import functional as F

import torchreduce as tr
from torchreduce.testing import assert_bitwise_equal

ON = {"cpu": True, "compile": False}

# Of inputs (batch, 6, 17, 13), and (batch, 2, 3, 17, 13); and the op that is counted.
POOLS = {
    "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x.flatten(2), 7), "_adaptive_avg_pool2d_backward"),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (5, 3)), "_adaptive_avg_pool2d_backward"),
    "no batch": (lambda x: F.adaptive_avg_pool2d(x.flatten(0, 1), (5, 3)), "_adaptive_avg_pool2d_backward"),
    "more windows": (lambda x: F.adaptive_avg_pool2d(x, (40, 1)), "_adaptive_avg_pool2d_backward"),
    "even windows": (lambda x: F.adaptive_avg_pool2d(x[..., :12, :12], (4, 6)), "_adaptive_avg_pool2d_backward"),
    "adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(deep(x), (2, 5, 3)), "_adaptive_avg_pool3d_backward"),
    "avg_pool3d": (lambda x: F.avg_pool3d(deep(x), (1, 3, 3), (1, 2, 2), (0, 1, 1)), "avg_pool3d_backward"),
    "ceil": (lambda x: F.avg_pool3d(deep(x), 3, 2, 1, ceil_mode=True, count_include_pad=False), "avg_pool3d_backward"),
    "padded ceil": (lambda x: F.avg_pool3d(deep(x), 3, 2, 1, ceil_mode=True), "avg_pool3d_backward"),
    "gaps": (lambda x: F.avg_pool3d(deep(x), 2, (1, 3, 4), divisor_override=5), "avg_pool3d_backward"),
}


def deep(x):
    return x.unflatten(1, (2, -1))


def given(dtype=torch.float32, device="cpu", n=4):
    return tr.testing.make_input((n, 6, 17, 13), dtype, 3).to(device)


def gradient(pool, x, sent=torch.cos):
    """Of a sum of the windows, each times a number that depends on its value."""
    x = x.detach().requires_grad_()
    y = pool(x)
    return torch.autograd.grad(y, x, sent(y.detach()))[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", POOLS)
def test_gradients_are_near_float64s(name, dtype, device):
    pool, op = POOLS[name]
    if op == "avg_pool3d_backward" and device == "cpu" and dtype.itemsize == 2:
        pytest.skip("torch has none of 16 bits on a CPU")
    x, before = given(dtype, device), tr.coverage(op)["served"]
    y = pool(x)
    sent = y.float().cos().to(dtype)
    with tr.enabled(**ON):
        assert_bitwise_equal(pool(x), y)  # torch's
        made = gradient(pool, x, lambda y: sent)
    assert tr.coverage(op)["served"] == before + 1
    wide = x.cpu().double()
    exact = gradient(pool, wide, lambda y: sent.cpu().double())
    size = gradient(pool, wide, lambda y: sent.cpu().double().abs())  # the sum of the terms' sizes
    # A division, and per dim less than 2^6 sums, all in float32 at least; then one rounding.
    bound = (
        size * 200 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps + exact.abs() * torch.finfo(dtype).eps
    )
    assert made.dtype == dtype and bool(((made.cpu().double() - exact).abs() <= bound).all())


@pytest.mark.parametrize("name", POOLS)
def test_gradients_depend_on_the_row_alone(name, device):
    """Not on the batch, the memory format or the device; with deterministic algorithms alone, too, which torch has none
    of on GPUs."""
    pool, _ = POOLS[name]
    x = given()
    with tr.enabled(**ON):
        expected = gradient(pool, x, torch.sign)
        torch.use_deterministic_algorithms(True)
        try:
            for n, layout in itertools.product((4, 1), (torch.contiguous_format, torch.channels_last)):
                part = x[:n].to(device).contiguous(memory_format=layout)
                assert_bitwise_equal(gradient(pool, part, torch.sign).cpu().contiguous(), expected[:n])
        finally:
            torch.use_deterministic_algorithms(False)


def test_the_memory_format_is_the_inputs(device):
    x = given(device=device).contiguous(memory_format=torch.channels_last)
    with tr.enabled(**ON):
        made = gradient(POOLS["adaptive_avg_pool2d"][0], x)
    assert made.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", ["adaptive_avg_pool2d", "adaptive_avg_pool3d", "ceil"])
def test_second_gradients_and_transforms(name):
    pool, _ = POOLS[name]
    x = given(torch.float64)[:2, :, :5, :4].clone().requires_grad_()
    with tr.enabled(**ON):
        assert torch.autograd.gradgradcheck(pool, x, fast_mode=True)
        alone = gradient(pool, x)
        of_func = torch.func.grad(lambda x: pool(x).sin().sum())(x.detach())
        batched = torch.func.vmap(torch.func.grad(lambda x: pool(x[None]).sin().sum()))(x.detach())
    assert_bitwise_equal(of_func, alone)
    assert_bitwise_equal(batched, alone)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["adaptive_avg_pool2d", "ceil"])
def test_compiled_gradients_are_eager_ones(name, dynamic):
    pool, _ = POOLS[name]
    with tr.enabled(cpu=True):
        compiled = torch.compile(pool, backend="aot_eager", dynamic=dynamic)
        for n in (4, 3):
            x = given(n=n).requires_grad_()
            y = compiled(x)
            (made,) = torch.autograd.grad(y, x, y.detach().cos())
            assert_bitwise_equal(made, gradient(pool, x))


def test_a_pool_of_all_is_an_overridden_mean(device):
    model = torch.nn.Sequential(torch.nn.Conv2d(6, 8, 3), torch.nn.AdaptiveAvgPool2d((1, 1)), torch.nn.Flatten())
    x, model = given(device=device), model.to(device)
    torch.use_deterministic_algorithms(True)
    try:
        with tr.enabled(**ON):
            before = tr.coverage("mean")["served"]
            model(x).square().sum().backward()
            assert tr.coverage("mean")["served"] > before
    finally:
        torch.use_deterministic_algorithms(False)
    pooled = torch.nn.AdaptiveAvgPool2d((1, 1))
    with tr.enabled(**ON):
        assert_bitwise_equal(pooled(x), tr.mean(x, (-1, -2), keepdim=True))
