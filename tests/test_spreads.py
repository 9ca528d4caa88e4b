"""Variances, deviations and layer norms of rows whose squares leave the range of the accumulator, where the result does
not: beside float64, or of float64 beside the row times a power of two."""

import math

import pytest
import torch
from cases import LAYOUTS, generator, values

import torchreduce as tr
from torchreduce.testing import assert_bitwise_equal

# By dtype: powers of two that take a row of about 1 to where squares are 0, subnormal or infinite, or sums infinite;
# and those where results are hardly in range themselves.
POWERS = {
    torch.float32: ((-77, -66, -50, 62, 66, 100, 120), (-120, 126)),
    torch.bfloat16: ((-77, -66, -50, 62, 66, 100, 120), (-120, 126)),
    torch.float64: ((-700, -540, -310, 505, 520, 700, 1000), (-1000, 1022)),
}
both = pytest.mark.parametrize("dtype", POWERS, ids=str)
sizes = pytest.mark.parametrize("n", (4, 301, 2500, 70000))


def scaled(x, power):
    """x 2^power, in two steps since the power alone may be out of range."""
    return x * 2.0 ** (power // 2) * 2.0 ** (power - power // 2)


def row(n, dtype, seed):
    """Of few bits, so that powers of two take none."""
    return (torch.randint(-120, 121, (3, n), generator=generator(seed)) / 64).to(dtype)


@both
@sizes
def test_spreads_keep_their_bits_at_any_power_of_two(device, dtype, n):
    x = row(n, dtype, n).to(device)

    def run(power):
        at = scaled(x, power)
        return scaled(tr.std(at, 1), -power), tr.layer_norm(at, n, eps=0.0)

    expected = run(0)
    for power in POWERS[dtype][0]:
        assert_bitwise_equal(run(power), expected)
    for power in POWERS[dtype][1]:
        for a, b in zip(run(power), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=2.0**-7 if dtype is torch.bfloat16 else 2.0**-14, atol=2.0**-12)


@both
@sizes
def test_gradients_of_spreads_keep_their_bits_at_any_power_of_two(device, dtype, n):
    x = row(n, dtype, n).to(device)
    g = values((3, n), dtype, seed=n).clamp(-4, 4).to(device)

    def run(power):
        at = scaled(x, power).requires_grad_()
        (of_std,) = torch.autograd.grad(tr.std(at, 1).sum(), at)
        (of_norm,) = torch.autograd.grad(tr.layer_norm(at, n, eps=0.0), at, scaled(g, power // 2))
        return of_std, scaled(of_norm, power - power // 2)

    expected = run(0)
    for power in POWERS[dtype][0]:
        assert_bitwise_equal(run(power), expected)


@both
@sizes
def test_gradients_of_constant_rows_are_0(device, dtype, n):
    """Whatever the constant."""
    largest = torch.finfo(dtype).max
    constants = torch.tensor([0, 1, 1e-30, -1e19, 1e20, 1e36, largest / 2, -largest], dtype=torch.float64).to(dtype)
    x = constants[:, None].repeat(1, n).to(device).requires_grad_()
    spreads = (tr.std(x, 1), tr.var(x, 1), tr.std_mean(x, 1)[0], tr.layer_norm(x, n))
    for y in spreads:
        (slope,) = torch.autograd.grad(y.sum(), x)
        assert_bitwise_equal(y.abs(), torch.zeros_like(y))
        assert_bitwise_equal(slope.abs(), torch.zeros_like(x))


@pytest.mark.parametrize("scale", (1e-21, 1e-23, 2e19, 1e30))
def test_deviations_are_within_4_units_at_small_and_large_scales(device, scale):
    x = (torch.tensor([1, 0.25, -0.5, 0.125], dtype=torch.float64) * scale).float()
    exact = x.double().std().item()
    assert abs(tr.std(x.to(device)).item() - exact) <= 4 * 2.0**-24 * exact
    x = x.to(device).requires_grad_()
    tr.std(x).backward()
    wide = (x.detach().double() / scale).requires_grad_()
    wide.std().backward()
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=1e-6, atol=1e-7)


def test_a_mean_is_finite_where_its_sum_is_not(device):
    """And NaN beside a variance that is NaN because of what the row holds, as in torch."""
    variance, mean = tr.var_mean(torch.tensor([3e38, 3e38, 1.0], device=device))
    assert variance == math.inf and mean == torch.tensor(2e38)
    for special in (math.inf, -math.inf, math.nan):
        for n in (2, 300, 5000):
            x = torch.ones(n, device=device)
            x[n // 2] = special
            for f in (tr.var_mean, tr.std_mean):
                assert all(t.isnan() for t in f(x))
    variance, mean = tr.var_mean(torch.tensor([5.0], device=device))
    assert variance.isnan() and mean == 5


@both
def test_leaves_of_other_spreads_meet(device, dtype):
    """A row whose leaves are tiny, ordinary and huge, in every layout."""
    tiny, huge = (-700, 600) if dtype is torch.float64 else (-80, 70)
    base = row(2048, dtype, 5)
    for order in ((tiny, 0), (0, tiny), (tiny, huge), (huge, 0, tiny), (tiny, tiny, tiny), (huge, huge)):
        x = torch.cat([scaled(base, power) for power in order], 1).to(device)
        exact = x.cpu().double()
        exact = scaled(scaled(exact, -max(order)).std(1, correction=0), max(order))
        for layout in LAYOUTS.values():
            actual = tr.std(layout(x), 1, correction=0)
            torch.testing.assert_close(
                actual.cpu().double(), exact, rtol=2.0 ** (-7 if dtype is torch.bfloat16 else -20), atol=0
            )


def test_constant_rows_have_variance_0(device):
    for value in (0.0, -0.0, 1e-40, 1e-30, 3.0, 1e30, 3e38):
        for n in (1, 5, 300, 5000):
            x = torch.full((4, n), value, device=device)
            assert not tr.var(x, 1, correction=0).any() and not tr.std(x, 1, correction=0).any()
