"""Norms of orders other than 0, 1, 2, inf and -inf."""

import math

import pytest
import torch

import torchreduce as tr
from torchreduce.testing import assert_bitwise_equal

ORDERS = (3, 0.5, 2.5, -1, -2, 7, 1.5, 100, -0.5, 0.1, 5000.0)
ROUNDING = {torch.float64: 0.0, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def exact(x: torch.Tensor, p: float) -> list[float]:
    """Norms of rows, by the C library's functions, of ratios to the greatest magnitude or the least."""
    norms = []
    for row in x.double().abs().tolist():
        most = (max if p > 0 else min)(row)
        if math.isnan(sum(row)):
            norms.append(math.nan)
        elif most in (0, math.inf):
            norms.append(most)
        else:
            norms.append(most * math.fsum((a / most) ** p if a or p > 0 else math.inf for a in row) ** (1 / p))
    return norms


def hostile(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Rows that are ordinary, hold a 0, are zeros, hold an infinity, NaN, are tiny, huge, ones, and of any scale."""
    x = torch.randn(9, 61, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    x[1, 3], x[2], x[3, 2], x[4, 1] = 0, 0, math.inf, math.nan
    info = torch.finfo(dtype)
    x[5], x[6] = info.smallest_normal * 3, info.max / 8
    x[7] = 1
    x[8] = x[8].sign() * torch.logspace(math.log2(info.tiny) / 2, math.log2(info.max) / 2, 61, 2, dtype=torch.float64)
    return x.to(dtype).to(device)


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("p", ORDERS)
def test_bound_of_norms_of_other_orders(dtype, p, device):
    """docs/promises.md: 1 rounding and 1e-13."""
    x = hostile(dtype, device)
    for dims_last in (x, x.t()):
        norms = tr.vector_norm(dims_last, p, 1 if dims_last is x else 0)
        assert norms.dtype == dtype
        for ours, expected in zip(norms.double().tolist(), exact(x, p), strict=True):
            if math.isnan(expected):
                assert math.isnan(ours)
            elif expected > torch.finfo(dtype).max:
                assert ours == math.inf
            else:
                spacing = max(expected * ROUNDING[dtype], torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps)
                assert abs(ours - expected) <= spacing + 1e-13 * expected, (p, ours, expected)
    assert_bitwise_equal(tr.vector_norm(x, p, 1, dtype=torch.float64), tr.vector_norm(x.double(), p, 1))


@pytest.mark.parametrize("p", ORDERS)
def test_bits_of_norms_of_other_orders(p, device):
    """Those of the CPU, whatever the batch and the layout."""
    x = torch.randn(40, 300, generator=torch.Generator().manual_seed(1))
    norms = tr.vector_norm(x, p, 1)
    at = x.to(device)
    assert_bitwise_equal(tr.vector_norm(at, p, 1).cpu(), norms)
    assert_bitwise_equal(tr.vector_norm(at[3:4].clone(), p, 1).cpu(), norms[3:4])
    assert_bitwise_equal(tr.vector_norm(at.t().contiguous().t(), p, 1).cpu(), norms)
    assert_bitwise_equal(tr.vector_norm(at.t(), p, 0, keepdim=True).cpu(), norms[None])
    assert_bitwise_equal(tr.norm(at, p, 1).cpu(), norms)
    out = torch.empty(40, device=device)
    assert tr.vector_norm(at, p, 1, out=out) is out
    assert_bitwise_equal(out.cpu(), norms)
    assert_bitwise_equal(torch.vmap(lambda row: tr.vector_norm(row, p))(at).cpu(), norms)
    slopes = [torch.func.grad(lambda x: tr.vector_norm(x, p, 1).sum())(x).cpu() for x in (x, at, at.t().clone().t())]
    for other in slopes[1:]:
        assert_bitwise_equal(other, slopes[0])


@pytest.mark.parametrize("p", (3, 0.5, 2.5, -1))
def test_derivatives_of_norms_of_other_orders(p, device):
    x = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).to(device).requires_grad_()
    for dim, keepdim in ((1, False), (0, True), (None, False)):
        torch.autograd.gradcheck(
            lambda x, dim=dim, keepdim=keepdim: tr.vector_norm(x, p, dim, keepdim), x, check_forward_ad=True,
            check_batched_grad=True, check_batched_forward_grad=True,
        )  # fmt: skip
    assert torch.autograd.gradgradcheck(lambda x: tr.vector_norm(x, p, 1), x)


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_gradients_of_norms_of_other_orders_at_zeros(dtype, device):
    x = torch.randn(3, 7, generator=torch.Generator().manual_seed(3)).to(dtype).to(device)
    x[1, 3], x[2] = 0, 0
    tolerance = max(4 * ROUNDING[dtype], 1e-12)
    for p in (3, 0.5, 1.5, -1, 7):
        slopes = [
            torch.func.grad(lambda x, f=f, p=p: f(x, p, 1).sum())(y)
            for f, y in ((tr.vector_norm, x), (torch.linalg.vector_norm, x.double()))
        ]
        torch.testing.assert_close(slopes[0].double(), slopes[1], rtol=tolerance, atol=tolerance)


def test_norms_of_other_orders_compiled(device):
    x = torch.randn(4, 9, device=device)
    compiled = torch.compile(lambda x: tr.vector_norm(x, 3, 1), backend="aot_eager", fullgraph=True)
    assert_bitwise_equal(compiled(x), tr.vector_norm(x, 3, 1))


def test_orders_as_tensors_and_orders_that_are_none():
    x = torch.randn(4, 9)
    for order in (2, 3.0):
        assert_bitwise_equal(tr.vector_norm(x, torch.tensor(order), 1), tr.vector_norm(x, order, 1))
    for order, said in ((math.nan, "got nan"), (10**400, "got an int of 1329 bits")):
        with pytest.raises(RuntimeError, match=rf"^vector_norm\(\): the order must be a number .*{said}$"):
            tr.vector_norm(x, order)
    for order in ("fro", True, torch.ones(2)):
        with pytest.raises(NotImplementedError, match=r"^vector_norm\(\): not implemented for the order .*numbers$"):
            tr.vector_norm(x, order)
