"""What is special about single scans: latest indices, products that leave the range, sums of exponentials."""

import itertools

import numpy as np
import pytest
import reference_scans
import torch
from cases import DTYPES, OURS, TORCHS, generator, hostile, scan_options, values
from forms import gradient
from reference import to_torch

import torchreduce as tr
from torchreduce.table import FLOATS
from torchreduce.testing import assert_bitwise_equal

NAN, INF = float("nan"), float("inf")
EPS = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-24, torch.float32: 2.0**-24, torch.float64: 2.0**-53}


# ---- cummax, cummin --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_give_the_latest_index(device, dtype):
    for n in (2, 9, 300, 2049, 9000):
        x = torch.zeros(2, n, dtype=dtype, device=device)
        x[1, n // 2 :: 2] = 1
        for rows, dim in ((x, 1), (x.t().contiguous(), 0)):
            for name in ("cummax", "cummin"):
                ours, theirs = getattr(OURS, name)(rows, dim), getattr(TORCHS, name)(rows.cpu(), dim)
                assert torch.equal(ours.indices.cpu(), theirs.indices) and torch.equal(ours.values.cpu(), theirs.values)


@pytest.mark.parametrize("dtype", FLOATS)
def test_zeros_tie_and_the_value_is_the_element(device, dtype):
    x = torch.tensor([-1.0, -0.0, 0.0, -0.0, -2.0], dtype=dtype, device=device)
    y = tr.cummax(x, 0)
    assert y.indices.tolist() == [0, 1, 2, 3, 3]
    assert torch.signbit(y.values).tolist() == [True, True, False, True, True]
    y = tr.cummin(-x, 0)
    assert y.indices.tolist() == [0, 1, 2, 3, 3]
    assert torch.signbit(y.values).tolist() == [False, False, True, False, False]


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_stays_with_the_latest_index(device, dtype):
    x = torch.tensor([INF, NAN, 1.0, NAN, INF, -INF], dtype=dtype, device=device)
    for f in (tr.cummax, tr.cummin):
        y = f(x, 0)
        assert y.indices.tolist() == [0, 1, 1, 3, 3, 3] and torch.isnan(y.values[1:]).all()
        z = f(x, 0, reverse=True)
        assert z.indices.tolist()[:4] == [1, 1, 3, 3] and torch.isnan(z.values[:4]).all()


def test_the_least_integers_are_not_absent(device):
    for dtype in (torch.int8, torch.int64, torch.uint8):
        least = torch.iinfo(dtype).min
        x = torch.full((3, 300), least, dtype=dtype, device=device)
        y = tr.cummax(x, 1)
        assert (y.values == least).all() and (y.indices == torch.arange(300, device=device)).all()
    x = torch.full((3, 300), -INF, device=device)
    assert (tr.cummax(x, 1).indices == torch.arange(300, device=device)).all()


def test_bytes_that_are_not_0_or_1_are_true(device):
    x = torch.tensor([0, 2, 255, 0], dtype=torch.uint8, device=device).view(torch.bool)
    y = tr.cummax(x, 0)
    assert y.values.view(torch.uint8).tolist() == [0, 1, 1, 1] and y.indices.tolist() == [0, 1, 2, 2]


def test_gradients_go_to_the_indices(device):
    """Each element gets the sum of the gradients whose index it is, and nothing of the others', infinite or not."""
    x = torch.tensor([1.0, 3.0, 2.0, 3.0, 0.0, 5.0, NAN, 1.0], device=device, requires_grad=True)
    g = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, INF, 32.0, 64.0], device=device)
    (grad,) = torch.autograd.grad(tr.cummax(x, 0).values, x, g)
    assert grad.tolist() == [1.0, 6.0, 0.0, 24.0, 0.0, INF, 96.0, 0.0]
    (grad,) = torch.autograd.grad(tr.cummin(x[:6], 0, reverse=True).values, x, g[:6])
    assert grad.tolist() == [0.0, 0.0, 0.0, 0.0, 31.0, INF, 0.0, 0.0]


@pytest.mark.parametrize("n", (1, 8, 257, 9000, 300000))
def test_gradients_of_cummax_are_exact_sums(device, n):
    """Integers: whatever the order, there is one sum."""
    x = values((2, n), torch.float32, seed=n).to(device).requires_grad_()
    g = torch.randint(-9, 9, (2, n), generator=generator(n)).float()
    for reverse in (False, True):
        y = tr.cummax(x, 1, reverse=reverse)
        (grad,) = torch.autograd.grad(y.values, x, g.to(device))
        expected = torch.zeros(2, n, dtype=torch.float64).scatter_add(1, y.indices.cpu(), g.double()).float()
        assert torch.equal(grad.cpu(), expected)


# ---- cumprod ---------------------------------------------------------------------------------------------------------


def test_products_may_leave_the_range_and_come_back(device):
    for data in ([0.1] * 100 + [10.0] * 100, [1e30] * 20 + [1e-30] * 20, [0.9] * 8192 + [1.1] * 8192):
        x = torch.tensor(data, device=device)
        exact = np.cumprod(x.cpu().numpy().astype(np.longdouble))
        y = tr.cumprod(x, 0).cpu().numpy()
        inside = (np.abs(exact) < 2.0**127) & (np.abs(exact) > 2.0**-126)
        assert np.isfinite(y[inside]).all() and not np.isnan(y).any()
        error = np.abs(y[inside] - exact[inside]) / exact[inside]
        assert (error <= (np.flatnonzero(inside) + 1) * 2.0**-24).all()
        assert inside[-1] and (y[np.abs(exact) > 2.0**128] == np.inf).all() and (y[exact < 2.0**-151] == 0).all()


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("n", (3, 8, 64, 300))
def test_products_that_round_up_to_the_least_normal_number(device, dtype, n):
    """Such a product has lost a bit, which shows once the next element is greater than 1. So it does, whatever the
    elements and rows beside it are."""
    info = torch.finfo(dtype)
    x = torch.ones(9, n, dtype=dtype)
    x[2, :3] = x[5, -3:] = torch.tensor([1 - info.eps / 2, info.tiny, 1024], dtype=dtype)
    for subnormal in ((), (0, n - 1), (2, n - 1), (8, n // 2)):
        y = x.clone()
        if subnormal and (n > 3 or subnormal[0] != 2):
            y[subnormal] = info.tiny / 8
        expected = torch.from_numpy(reference_scans.cumprod(y.numpy()))
        assert expected[2, 2] < 1024 * info.tiny
        assert_bitwise_equal(tr.cumprod(y.to(device), 1), expected)
        assert_bitwise_equal(tr.cumprod(y.t().contiguous().to(device), 0), expected.t().contiguous())
        assert_bitwise_equal(tr.cumprod(y[2].to(device), 0), expected[2])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape, dim", [((3, 40), 1), ((2, 9000), 1), ((3000, 3), 0)])
def test_cumprod_within_the_bound(device, shape, dim, dtype):
    """Each of the i + 1 factors of result i brings at most one rounding."""
    x = (1 + torch.rand(shape, generator=generator(1), dtype=torch.float64) * 0.02 - 0.01).to(dtype)
    wide = x.double().numpy().astype(np.longdouble)
    exact = np.cumprod(wide, axis=dim)
    position = np.arange(1, shape[dim] + 1).reshape([-1 if d == dim else 1 for d in range(2)])
    half_ulp = torch.finfo(dtype).eps / 2 if dtype in (torch.float16, torch.bfloat16) else 0
    bound = exact * (position * EPS[dtype] * 1.0001 + half_ulp)
    if dtype == torch.float16:  # subnormals
        bound = np.maximum(bound, 2.0**-25)
    y = tr.cumprod(x.to(device), dim).cpu().double().numpy()
    assert (np.abs(y - exact) <= bound).all()


def test_cumprod_of_zeros_infinities_and_nan(device):
    x = torch.tensor([2.0, -0.0, 3.0, 1.0], device=device)
    assert tr.cumprod(x, 0).tolist() == [2, 0, 0, 0] and torch.signbit(tr.cumprod(x, 0)).tolist() == [0, 1, 1, 1]
    assert tr.cumprod(torch.tensor([2.0, -INF, 3.0], device=device), 0).tolist() == [2, -INF, -INF]
    assert torch.isnan(tr.cumprod(torch.tensor([0.0, INF, 1.0], device=device), 0)).tolist() == [False, True, True]
    x = torch.tensor([1e-40, 1e30, 1e10], device=device)
    assert tr.cumprod(x, 0)[0] == x[0] and tr.cumprod(x, 0)[1] == (x[0].double() * x[1].double()).float()


def test_cumprod_of_integers_wraps(device):
    x = torch.tensor([2**62, 2, 3, 5], device=device)
    assert tr.cumprod(x, 0).tolist() == [2**62, -(2**63), -(2**63), -(2**63)]
    x = torch.tensor([True, True, False], device=device)
    assert tr.cumprod(x, 0).dtype == torch.int64 and tr.cumprod(x, 0).tolist() == [1, 1, 0]
    assert tr.cumprod(torch.tensor([200, 2], dtype=torch.uint8, device=device), 0, dtype=torch.uint8).tolist() == [
        200,
        144,
    ]


def test_cumprod_exclusive_and_reverse(device):
    x = torch.tensor([2.0, 3.0, 5.0], device=device)
    assert tr.cumprod(x, 0, exclusive=True).tolist() == [1, 2, 6]
    assert tr.cumprod(x, 0, reverse=True).tolist() == [30, 15, 5]
    assert tr.cumprod(x, 0, exclusive=True, reverse=True).tolist() == [15, 5, 1]


@pytest.mark.parametrize("zeros", ([1], [0], [3], [1, 3], [0, 1, 2, 3, 4]))
def test_gradients_of_cumprod_with_zeros(device, zeros):
    x = values((2, 5), torch.float64, seed=3)
    x[0, zeros] = 0
    g = values((2, 5), torch.float64, seed=4)
    ours, theirs = (t.clone().requires_grad_() for t in (x.to(device), x))
    (a,) = torch.autograd.grad(tr.cumprod(ours, 1), ours, g.to(device))
    (b,) = torch.autograd.grad(torch.cumprod(theirs, 1), theirs, g)
    torch.testing.assert_close(a.cpu(), b, rtol=1e-12, atol=1e-14)
    for options in ({}, {"exclusive": True}, {"reverse": True}):
        assert torch.autograd.gradcheck(lambda t: tr.cumprod(t, 1, **options), (ours,))  # noqa: B023
        assert torch.autograd.gradgradcheck(lambda t: tr.cumprod(t, 1, **options), (ours,))  # noqa: B023


# ---- logcumsumexp ----------------------------------------------------------------------------------------------------

FAMILIES = {
    "normal": lambda n: torch.randn(n, generator=generator(0), dtype=torch.float64),
    "wide": lambda n: 30 * torch.randn(n, generator=generator(1), dtype=torch.float64),
    "rising": lambda n: torch.linspace(-200, 300, n, dtype=torch.float64),
    "falling": lambda n: torch.linspace(300, -200, n, dtype=torch.float64),
    "far": lambda n: 1e3 + torch.randn(n, generator=generator(2), dtype=torch.float64),
    "equal": lambda n: torch.zeros(n, dtype=torch.float64),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_logcumsumexp_within_the_bound(device, dtype, family):
    """Half an ulp of the result, and what the sum, its logarithm and their addition lose."""
    for n in (1, 9, 300, 9000, 2**18 + 9000):
        x = FAMILIES[family](n).to(dtype)
        wide = x.double().numpy().astype(np.longdouble)
        exact = np.logaddexp.accumulate(wide)
        y = tr.logcumsumexp(x.to(device), 0).cpu().double().numpy()
        half_ulp = torch.finfo(dtype).eps / 2 * np.abs(exact)
        assert (np.abs(y - exact) <= half_ulp + EPS[dtype] * (32 + np.abs(exact))).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_logcumsumexp_of_infinities_and_nan(device, dtype):
    for data in (
        [-INF, -INF, 1.0, 2.0],
        [1.0, INF, -INF, 2.0],
        [-INF, INF, INF],
        [1.0, NAN, INF, 2.0],
        [INF, NAN],
        [-INF],
    ):
        x = torch.tensor(data, dtype=dtype)
        y = tr.logcumsumexp(x.to(device), 0).cpu()
        torch.testing.assert_close(y, torch.logcumsumexp(x, 0), equal_nan=True)
    x = torch.tensor([3.0, -0.0], dtype=dtype, device=device)
    assert tr.logcumsumexp(x[:1], 0) == 3.0 and not torch.signbit(tr.logcumsumexp(x[1:], 0)).any()
    assert tr.logcumsumexp(x, 0, exclusive=True).tolist() == [-INF, 3.0]


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("reverse", (False, True))
def test_gradient_bits_of_logcumsumexp(device, dtype, reverse):
    name = str(dtype).removeprefix("torch.")
    for n in (1, 7, 300, 9000, 2**18 + 77):
        x, g = values((2, n), dtype, seed=n), values((2, n), dtype, seed=n + 1)
        if n > 300:
            x[1, :20] = -INF
            x[1, -20:] = -INF
        t = x.to(device).requires_grad_()
        y = tr.logcumsumexp(t, 1, reverse=reverse)
        (grad,) = torch.autograd.grad(y, t, g.to(device))
        expected = reference_scans.logcumsumexp_gradient(g.numpy(), x.detach().numpy(), reverse)
        assert_bitwise_equal(grad.cpu(), to_torch(expected.astype(name)))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients_of_logcumsumexp_within_the_bound(device, dtype, family):
    """Each of the merges on an element's way has an exp of its own, of a difference of elements, which is rounded. A
    gradient of 16 bits is rounded once. What underflows is lost."""
    n = 3000
    x = FAMILIES[family](n).to(dtype)
    wide = x.double().numpy().astype(np.longdouble)
    out, back = np.logaddexp.accumulate(wide), np.ones(n, np.longdouble)
    for i in range(n - 2, -1, -1):
        back[i] += np.exp(out[i] - out[i + 1]) * back[i + 1]
    exact = np.exp(wide - out) * back
    t = x.to(device).requires_grad_()
    (grad,) = torch.autograd.grad(tr.logcumsumexp(t, 0), t, torch.ones_like(t))
    info = torch.finfo(dtype)
    farthest = min(float(wide.max() - wide.min()), 746 if dtype == torch.float64 else 104)  # beyond it exp is 0
    relative = EPS[dtype] * (100 + 4 * farthest) + (info.eps / 2 if info.bits == 16 else 0)
    lost = info.smallest_normal * (info.eps if info.bits == 16 else 1)
    assert (np.abs(grad.cpu().double().numpy() - exact) <= relative * exact + lost).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("options", scan_options("logcumsumexp"), ids=str)
def test_derivatives_of_logcumsumexp_do_not_change_with_an_offset(device, dtype, options):
    """They are those of the elements less any number, whatever of a result's digits are rounded away: of first and
    second order, backward and forward. The offsets keep the elements exact."""
    data = torch.tensor([0.0, 1.0, 3.0, 2.0, 3.0, 0.0, 5.0, 1.0], dtype=torch.float64)
    t = torch.tensor([1, -2, 0.5, 3, -1, 0.25, 2, -0.75], dtype=torch.float64)
    middle = slice(1, None) if not options["reverse"] else slice(-1)  # an exclusive start is -inf

    def derivatives(x):
        def f(x):
            return tr.logcumsumexp(x, 0, **options)[middle]

        def product(x):
            return (torch.func.vjp(f, x)[1](t.to(x)[middle])[0] * t.to(x)).sum()

        leaf, compiled = x.clone().requires_grad_(), torch.compile(f, backend="eager")
        return (
            torch.func.jacrev(f)(x),
            torch.func.jacfwd(f)(x),
            torch.vmap(lambda v: torch.func.jvp(f, (x,), (v,))[1])(torch.eye(8).to(x)),
            torch.func.jvp(f, (x,), (t.to(x),))[1],
            *(torch.autograd.grad(g(leaf), leaf, t.to(x)[middle])[0] for g in (f, compiled)),
            torch.func.grad(product)(x),
            torch.func.jvp(torch.func.grad(product), (x,), (t.to(x),))[1],
        )

    eps = torch.finfo(dtype).eps / 2
    expected = derivatives(data)
    for offset in (0.0, 0.5 / eps, -0.5 / eps):
        x = (data + offset).to(dtype).to(device)
        assert torch.equal(x.cpu().double() - offset, data)
        for ours, wanted in zip(derivatives(x), expected, strict=True):
            torch.testing.assert_close(ours.cpu().double(), wanted, rtol=4 * eps, atol=64 * eps)


@pytest.mark.parametrize("dtype", FLOATS)
def test_derivatives_of_logcumsumexp_where_elements_are_infinite(device, dtype):
    """An element of -inf has no share in a result, whatever else there is; elements of inf share evenly."""
    for data, first, forward in (
        ([-INF, -INF, 1.0, 1.0], [0, 0, 1.5, 0.5], [0, 0, 3, 3.5]),
        ([1.0, -INF, 1.0], [2.5, 0, 0.5], [1, 1, 2]),
        ([-INF], [0], [0]),
        ([1.0, INF, -INF, 2.0], [1, 3, 0, 0], [1, 2, 2, 2]),
        ([INF, INF], [1.5, 0.5], [1, 1.5]),
    ):
        x = torch.tensor(data, dtype=dtype, device=device)
        for options in scan_options("logcumsumexp"):
            turned = x.flip(0) if options["reverse"] else x
            hessian = torch.func.hessian(lambda x, o=options: tr.logcumsumexp(x, 0, **o))(turned)
            assert torch.isfinite(hessian).all()
            assert not hessian[..., turned == -INF].any() and not hessian[:, turned == -INF].any()
        t = torch.arange(1.0, len(data) + 1).to(x)
        ones = torch.ones_like(x)
        (grad,) = torch.func.vjp(lambda x: tr.logcumsumexp(x, 0), x)[1](ones)
        tangent = torch.func.jvp(lambda x: tr.logcumsumexp(x, 0), (x,), (t,))[1]
        assert grad.tolist() == first and tangent.tolist() == forward
    x = torch.tensor([1.0, NAN, 2.0], dtype=dtype, device=device)
    assert gradient(lambda x: tr.logcumsumexp(x, 0), x).isnan().all()
    assert torch.func.jvp(lambda x: tr.logcumsumexp(x, 0), (x,), (x,))[1].isnan().tolist() == [False, True, True]


@pytest.mark.parametrize("name", ("cumprod", "logcumsumexp", "cummax", "cummin"))
def test_scans_of_nothing_and_of_one(device, name):
    f = getattr(OURS, name)
    for dtype, dim in itertools.product(FLOATS, (0, -1)):
        y = f(torch.tensor(3.5, dtype=dtype, device=device), dim)
        y = (y,) if isinstance(y, torch.Tensor) else y
        assert y[0].shape == () and y[0] == 3.5 and all(part == 0 for part in y[1:])
    for shape, dim in (((0, 3), 0), ((0, 3), 1), ((3, 0), 0), ((0,), 0)):
        y = f(torch.empty(shape, device=device), dim)
        y = (y,) if isinstance(y, torch.Tensor) else y
        assert all(part.shape == shape for part in y)


def test_every_nan_written_is_canonical(device):
    for dtype in FLOATS:
        x = hostile((40, 300), dtype, seed=1)
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        x.view(bits)[:, 200] = torch.tensor(NAN, dtype=dtype).view(bits) + 1
        canonical = torch.tensor(NAN, dtype=dtype).view(bits).item()
        for y in (tr.cumprod(x, 1), tr.logcumsumexp(x, 1), tr.cummax(x, 1).values, tr.cummin(x, 0).values):
            assert torch.isnan(y).any() and (y.view(bits)[torch.isnan(y)] == canonical).all()


# ---- the ops as the dispatcher knows them ----------------------------------------------------------------------------


def test_decayed_sums(device):
    """The op behind three gradients: checked by torch, and batched."""
    op = torch.ops.torchreduce.decayed_sum
    for dtype in (torch.float32, torch.float64):
        g, x = values((3, 40), dtype, seed=1).to(device), values((3, 40), dtype, seed=2).to(device)
        o = tr.logcumsumexp(x, 1)
        torch.library.opcheck(op.default, (g, x, o, 1, True, 0))
        whole = op(g, x, o, 1, True, 0)
        assert_bitwise_equal(torch.vmap(lambda *t: torch.ops.torchreduce.decayed_sum(*t, 0, True, 0))(g, x, o), whole)
        columns = [t.t().contiguous() for t in (g, x, o)]
        assert_bitwise_equal(op(*columns, 0, True, 0), whole.t())
        for part in (0, 2):
            assert_bitwise_equal(op(*(t[part : part + 1] for t in (g, x, o)), -1, True, 0), whole[part : part + 1])


def test_direct_calls_are_safe(device):
    x = torch.ones(2, 3, device=device)
    ops = torch.ops.torchreduce
    indices = torch.empty(2, 3, dtype=torch.int64, device=device)
    for bad in (
        lambda: ops.logcumsumexp.raw(x.long(), 0, False, False, 0),
        lambda: ops.cummax.raw(x, 2, False, 0),
        lambda: ops.cummax.out(x, 0, False, 0, values=x[:1].clone(), indices=indices),
        lambda: ops.cummin.out(x, 0, False, 0, values=x.clone(), indices=x.clone()),
        lambda: ops.cumprod.out(x, 0, None, False, False, 0, out=torch.empty(3, 2, device=device)),
        lambda: ops.decayed_sum(x, x, x[:1], 0, False, 0),
        lambda: ops.decayed_sum(x, x, x.double(), 0, False, 0),
        lambda: ops.decayed_sum(x.half(), x.half(), x.half(), 0, False, 0),
        lambda: ops.decayed_sum(x, x, x, 5, False, 0),
    ):
        with pytest.raises((RuntimeError, IndexError)):
            bad()


def test_decayed_sums_of_any_layout(device):
    g, x = values((5, 70), torch.float64, seed=1).to(device), values((5, 70), torch.float64, seed=2).abs().to(device)
    o = -tr.cumsum(x, 1)
    expected = torch.ops.torchreduce.decayed_sum(g, o, o, 1, False, 0)
    laid_out = [g.t().contiguous().t(), o, o.expand(2, 5, 70)[1]]
    for i in range(3):
        inputs = [laid_out[j] if i == j else t for j, t in enumerate((g, o, o))]
        assert_bitwise_equal(torch.ops.torchreduce.decayed_sum(*inputs, 1, False, 0), expected)
