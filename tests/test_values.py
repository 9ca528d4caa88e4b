"""Values: against extended precision with the contract's bounds, and against torch wherever torch is right."""

import math

import numpy as np
import pytest
import torch
from cases import (
    DTYPES,
    EVERY,
    LAYOUTS,
    LONG,
    OURS,
    ROWS,
    STRADDLING,
    TORCHS,
    WITH_DTYPE,
    generator,
    needed,
    results_of,
    serves,
    ties,
    values,
)

import torchreduce as tr
from torchreduce.table import FLOATS

EPS = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-24, torch.float32: 2.0**-24, torch.float64: 2.0**-53}
SHAPES = (
    [((n,), 0) for n in STRADDLING] + [((3, n), 1) for n in (100, 2049, 8193)] + [((n, 5), 0) for n in (9, 300, 8193)]
)


def extended(x):
    return x.detach().cpu().double().numpy().astype(np.longdouble)


def half_ulp(exact, dtype):
    """Half the distance between neighbours of a 16-bit dtype; the accumulator's own rounding is in the bounds."""
    if dtype in (torch.float32, torch.float64):
        return 0
    info = torch.finfo(dtype)
    exponent = np.maximum(np.frexp(exact)[1] - 1, math.frexp(info.smallest_normal)[1] - 1)
    return np.ldexp(np.longdouble(info.eps / 2), exponent)


def sum_eps(n, dtype):
    return (16 + math.ceil(math.log2(max(n, 2048) / 2048))) * EPS[dtype]


def within(actual, exact, bound):
    actual = extended(actual)
    assert actual.shape == exact.shape
    excess = np.abs(actual - exact) - bound
    assert (excess <= 0).all(), (
        f"{actual.flat[excess.argmax()]} for {exact.flat[excess.argmax()]}, {excess.max()} too far"
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape, dim", SHAPES)
def test_sum_and_mean_within_the_bound(device, shape, dim, dtype):
    n = shape[dim]
    x = values(shape, dtype, seed=n)
    exact, bound = extended(x).sum(dim), sum_eps(n, dtype) * np.abs(extended(x)).sum(dim)
    within(tr.sum(x.to(device), dim), exact, bound + half_ulp(exact, dtype))
    mean_bound = bound / n + 2 * EPS[dtype] * np.abs(exact / n)  # the division and its divisor
    within(tr.mean(x.to(device), dim), exact / n, mean_bound + half_ulp(exact / n, dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape, dim", [*SHAPES, ((LONG[-1],), 0)])
def test_cumsum_within_the_bound(device, shape, dim, dtype):
    x = values(shape, dtype, seed=shape[dim])
    exact, bound = extended(x).cumsum(dim), 20 * EPS[dtype] * np.abs(extended(x)).cumsum(dim)
    within(tr.cumsum(x.to(device), dim), exact, bound + half_ulp(exact, dtype))
    flipped = np.flip(np.flip(extended(x), dim).cumsum(dim), dim)
    bound = 20 * EPS[dtype] * np.flip(np.flip(np.abs(extended(x)), dim).cumsum(dim), dim)
    within(tr.cumsum(x.to(device), dim, reverse=True), flipped, bound + half_ulp(flipped, dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_cumsum_accumulates_16_bit_floats_in_float32(device, dtype):
    """pytorch #180150, #180155: torch accumulates in the input type and is off by 5.5 on 4096 halves in [0, 1)."""
    x = torch.rand(4096, generator=generator(0)).to(dtype)
    exact = extended(x).cumsum()
    within(tr.cumsum(x.to(device), 0), exact, 20 * 2.0**-24 * exact + half_ulp(exact, dtype))


def test_a_cumsum_of_what_is_not_negative_falls_by_an_ulp_at_most(device):
    for seed in range(5):
        x = torch.rand(3 * 8192 + 11, generator=generator(seed)).to(device)
        y = tr.cumsum(x, 0)
        below = torch.nextafter(y[:-1], torch.tensor(-torch.inf, device=device))
        assert (y[1:] >= below).all()
        inside = torch.arange(1, len(y), device=device) % 8 != 0
        assert (y[1:] >= y[:-1])[inside].all()


# ---- torch parity ----------------------------------------------------------------------------------------------------

DIMS = (0, 1, 2, 3, -1, None, (0, 2), (3, 1), (1, 2, 3))


def torchs(name, x, dim, **options):
    """What torch gives, where the exactness of the inputs leaves it no choice, on the CPU."""
    x = x.cpu()
    one = isinstance(dim, int)
    if name in ("max", "min") and not one:
        index = () if dim is None else (torchs("arg" + name, x, dim),)
        value = torchs("a" + name, x, dim)
        return (value, *index) if index else value
    if name == "prod" and not one:  # torch's takes one dim
        dims = sorted(d % x.dim() for d in (range(x.dim()) if dim is None else dim))
        rest = [d for d in range(x.dim()) if d not in dims]
        return torch.prod(x.permute(rest + dims).flatten(len(rest)), -1, **options)
    if name in ("amax", "amin"):
        return getattr(TORCHS, name)(x, () if dim is None else dim, **options)
    if name in ("argmax", "argmin"):
        x = x.to(torch.uint8) if x.dtype == torch.bool else x  # torch has no argmax of bool
        if dim is not None and not one:  # nor one of several dims
            dims = sorted(d % x.dim() for d in dim)
            rest = [d for d in range(x.dim()) if d not in dims]
            return getattr(TORCHS, name)(x.permute(rest + dims).flatten(len(rest)), -1)
    return getattr(TORCHS, name)(x, dim, **options)


def check_parity(name, dim, layout, view, expected):
    actual = getattr(OURS, name)(view, dim, **needed(name, view.dtype))
    if isinstance(expected, torch.Tensor):
        expected, actual = (expected,), (actual,)
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype and a.shape == e.shape and a.device == view.device
        if name in ("logcumsumexp", "norm2"):  # of the ops here those whose values are not exact
            eps = torch.finfo(view.dtype).eps
            torch.testing.assert_close(a.cpu(), e, rtol=4 * eps, atol=4 * eps)
        else:
            assert torch.equal(a.cpu(), e)


@pytest.mark.parametrize("name, dtype", EVERY)
def test_torch_parity(device, name, dtype):
    """On small integers every sum is exact; ties have the lowest index; zeros compare equal."""
    x = ties((2, 3, 4, 5), dtype, seed=3)
    views = {layout: f(x.to(device)) for layout, f in LAYOUTS.items()}
    for dim in DIMS:
        if ROWS[name].kind == "scan" and not isinstance(dim, int):
            continue
        expected = torchs(name, x, dim, **needed(name, dtype))
        for layout, view in views.items():
            check_parity(name, dim, layout, view, expected)


@pytest.mark.parametrize("name, dtype", EVERY)
def test_torch_parity_of_options(device, name, dtype):
    x = ties((3, 4, 5), dtype, seed=1).to(device)
    ours, theirs = getattr(OURS, name), getattr(TORCHS, name)
    if ROWS[name].kind == "scan":
        for a, e in zip(ours(x, axis=1), theirs(x, 1), strict=True):
            assert torch.equal(a, e) or name == "logcumsumexp"
    elif name == "count_nonzero":  # torch's has no keepdim
        assert torch.equal(ours(x, 1, keepdim=True).squeeze(1), theirs(x, 1)) and torch.equal(ours(x), theirs(x))
    elif name == "mean" and not dtype.is_floating_point:
        assert torch.equal(ours(x, 1, dtype=torch.float64), theirs(x, 1, dtype=torch.float64))
    elif name in ("argmax", "argmin") and dtype == torch.bool:
        assert torch.equal(ours(x, 1, keepdim=True), theirs(x.byte(), 1, keepdim=True))
    else:
        kept, expected = ours(x, -2, keepdim=True), theirs(x, -2, keepdim=True)
        for a, e in zip(kept, expected, strict=True):
            assert torch.equal(a, e)
        for a, e in zip(ours(x, axis=1), theirs(x, 1), strict=True):
            assert torch.equal(a, e)
        assert torch.equal(ours(x), theirs(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", WITH_DTYPE)
def test_torch_parity_of_dtype(device, name, dtype):
    for to in DTYPES:
        check_parity_of_dtype(device, name, dtype, to)


def check_parity_of_dtype(device, name, dtype, to):
    x = ties((6, 70), dtype, seed=2)
    allowed = results_of(name, dtype) if serves(name, dtype) else ()
    if name in ("nansum", "prod"):  # integers by sum, prod to bool by all
        allowed = ROWS["sum"].results
    if to not in allowed:
        with pytest.raises(RuntimeError):
            getattr(OURS, name)(x.to(device), 1, dtype=to)
        return
    actual = getattr(OURS, name)(x.to(device), 1, dtype=to)
    assert actual.dtype == to
    if name == "mean":  # torch rounds more than once to 16 bits
        accumulate = torch.float64 if torch.float64 in (dtype, to) else torch.float32
        assert torch.equal(actual.cpu(), torch.mean(x.to(accumulate), 1).to(to))
    elif name == "norm2":  # whose values are not exact
        torch.testing.assert_close(actual.cpu(), TORCHS.norm2(x.double(), 1).to(to))
    else:  # torch before 2.13 has no nansum to integers
        theirs = "sum" if name == "nansum" and not to.is_floating_point else name
        assert torch.equal(actual.cpu(), getattr(TORCHS, theirs)(x, 1, dtype=to))
