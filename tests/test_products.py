"""Derivatives of prod and cumprod where products on the way leave the range of the dtype, and where elements are 0 or
infinite: beside sums of exact products."""

import math
import operator
from fractions import Fraction
from itertools import accumulate, chain

import pytest
import torch
from cases import scan_options

import torchreduce as tr
from torchreduce.table import FLOATS
from torchreduce.testing import assert_bitwise_equal

INF, NAN = math.inf, math.nan


def rows(dtype):
    """Far from 1 on both sides, in several orders, with zeros; and rows of which neighbours' products leave float64's
    range, too."""
    big = 2 ** (math.frexp(torch.finfo(dtype).max)[1] - 1)
    small = Fraction(1, big)
    yield from ([big, big, small], [small, big, big], [big, small, 3, big, small], [small, small, big, 5])
    yield from ([0, big, big, small], [big, 0, small, big], [3, 0, big, 0, small], [0, 0, big, 0], [0, 0], [big], [0])
    yield [3, *[big] * 12, 5, *[small] * 12, -2]
    yield [*[small] * 40, 0, *[big] * 39, -7]


def product(elements):
    return math.prod(elements, start=Fraction(1))


def weights(n):
    """0 and small numbers of both signs."""
    return [(0, 1, -2, 3, Fraction(1, 2))[i % 5] for i in range(1, n + 1)]


def changed(row, others):
    """The derivative of the row's product by the elements that are not among `others`, of each order."""
    return product(x for i, x in enumerate(row) if i not in others)


def as_tensor(numbers, dtype):
    """Rounded; infinite beyond the range."""
    greatest = Fraction(torch.finfo(dtype).max)
    values = [float(q) if abs(q) <= greatest else INF if q > 0 else -INF for q in map(Fraction, numbers)]
    return torch.tensor(values, dtype=dtype)


def close(ours, exact, cancels=False):
    """Within some roundings an element; what is subnormal within the least number. `cancels`: where the sum is out of
    range, its terms may be out of float64's, too, so that it may be NaN."""
    info = torch.finfo(ours.dtype)
    expected = as_tensor(exact, ours.dtype)
    ours = ours.detach().cpu().reshape(expected.shape)
    if cancels:
        ours = torch.where(expected.isinf() & ours.isnan(), expected, ours)
    torch.testing.assert_close(ours, expected, rtol=40 * info.eps, atol=info.smallest_normal * info.eps)


@pytest.mark.parametrize("dtype", FLOATS)
def test_derivatives_of_prod_are_products_of_others(device, dtype):
    for row in rows(dtype):
        n = len(row)
        x, t = as_tensor(row, dtype).to(device), as_tensor(weights(n), dtype).to(device)
        gradient = torch.func.grad(tr.prod)
        first = [changed(row, (i,)) for i in range(n)]
        close(gradient(x), first)
        leaf = x.clone().requires_grad_()
        close(torch.autograd.grad(torch.compile(tr.prod, backend="eager")(leaf), leaf)[0], first)
        matrix = torch.stack([x, x]).requires_grad_()
        close(torch.autograd.grad(tr.prod(matrix, 1).sum(), matrix)[0], first * 2)
        close(torch.func.jvp(tr.prod, (x,), (t,))[1], [sum(w * f for w, f in zip(weights(n), first, strict=True))])
        if n > 8:
            continue
        second = [[changed(row, (i, k)) if i != k else 0 for k in range(n)] for i in range(n)]
        for hessian in (torch.func.jacrev(gradient), torch.func.jacfwd(gradient)):
            close(hessian(x), chain(*second))


def scanned(row, exclusive, *others):
    """The derivatives of the results of cumprod by the elements `others`, of each order."""
    elements = (1 if i in others else x for i, x in enumerate(row))
    products = list(accumulate(elements, operator.mul, initial=Fraction(1)))
    ends = range(len(row)) if exclusive else range(1, len(row) + 1)
    return [products[end] if max(others) < end else 0 for end in ends]


def weighted(numbers, results):
    return sum(a * b for a, b in zip(numbers, results, strict=True))


@pytest.mark.parametrize("options", scan_options("cumprod"), ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
def test_derivatives_of_cumprod_are_sums_of_products_of_others(device, dtype, options):
    def turned(x):
        return x.flip(*range(x.dim())) if options["reverse"] else x

    def f(x):
        """In the order of the scan."""
        return turned(tr.cumprod(turned(x), 0, **options))

    exclusive = options.get("exclusive", False)
    for row in rows(dtype):
        n, last = len(row), [0] * (len(row) - 1) + [1]
        x, g, only = (as_tensor(t, dtype).to(device) for t in (row, weights(n), last))
        pullback = torch.func.vjp(f, x)[1]
        first = [scanned(row, exclusive, i) for i in range(n)]
        exact = [weighted(weights(n), results) for results in first]
        close(pullback(g)[0], exact, cancels=dtype is not torch.float64)
        close(pullback(only)[0], [results[-1] for results in first])
        if n > 8:
            continue
        tangent = torch.func.jvp(f, (x,), (g,))[1]
        close(tangent, [weighted(weights(n), by_element) for by_element in zip(*first, strict=True)])
        second = [[scanned(row, exclusive, i, k)[-1] if i != k else 0 for k in range(n)] for i in range(n)]
        gradient = torch.func.grad(lambda x: f(x)[-1])
        for hessian in (torch.func.jacrev(gradient), torch.func.jacfwd(gradient)):
            close(hessian(x), chain(*second))


@pytest.mark.parametrize("dtype", FLOATS)
def test_third_derivatives_where_elements_are_zero(device, dtype):
    row = [2, 0, 3, 0, -1]
    x = as_tensor(row, dtype).to(device)
    each = range(len(row))
    exact = [changed(row, {i, j, k}) if len({i, j, k}) == 3 else 0 for i in each for j in each for k in each]
    for f in (tr.prod, lambda x: tr.cumprod(x, 0)[-1], lambda x: tr.cumprod(x, 0, reverse=True)[0]):
        for outer in (torch.func.jacrev, torch.func.jacfwd):
            for inner in (torch.func.jacrev, torch.func.jacfwd):
                close(outer(inner(torch.func.grad(f)))(x), exact)


def test_gradients_of_products_with_infinities_and_nan(device):
    """In float64 products of the others, as IEEE multiplication has them: an element does not see itself. In narrower
    dtypes infinity and NaN do, as the quotient of the product."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = torch.tensor([2, INF, 3, -1], dtype=dtype, device=device)
        expected = torch.tensor([-INF, NAN, -INF, INF], dtype=dtype, device=device)
        torch.testing.assert_close(torch.func.grad(tr.prod)(x), expected, equal_nan=True)
    dtype = torch.float64
    for row, prods in (
        ([INF, 2, 3], [6, INF, INF]),
        ([2, -INF, -3], [INF, -6, -INF]),
        ([INF, INF, 2], [INF, INF, INF]),
        ([INF, 0, 2], [0, INF, NAN]),
        ([NAN, 2, 3], [6, NAN, NAN]),
        ([0, NAN, 2, 0], [NAN, 0, NAN, NAN]),
    ):
        x, expected = torch.tensor(row, dtype=dtype, device=device), torch.tensor(prods, dtype=dtype, device=device)
        torch.testing.assert_close(torch.func.grad(tr.prod)(x), expected, equal_nan=True)
        ours = torch.func.grad(lambda x: tr.cumprod(x, 0)[-1])(x)
        torch.testing.assert_close(ours, expected, equal_nan=True)


@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients_of_no_elements_and_of_one(device, dtype):
    for shape, dim in (((0, 3), 0), ((0, 3), 1), ((3, 0), 1), ((), 0)):
        x = torch.full(shape, 2.0, dtype=dtype, device=device, requires_grad=True)
        for f in (lambda x, d=dim: tr.prod(x, d), lambda x, d=dim: tr.cumprod(x, d)):
            (grad,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
            assert_bitwise_equal(grad.detach(), torch.ones_like(x))
            (second,) = torch.autograd.grad(grad.sum(), x)
            assert_bitwise_equal(second, torch.zeros_like(x))
            tangent = torch.func.jvp(f, (x.detach(),), (torch.ones_like(x),))[1]
            assert tangent.shape == f(x).shape and (x.numel() == 0 or tangent == 1)


def test_gradients_of_products_have_the_bits_of_their_row(device):
    """Whatever is beside it, however far apart, and wherever it is computed."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(6, 700, generator=g) * 2.0 ** torch.randint(-60, 60, (6, 700), generator=g)
    x[2, 100] = x[4, 5] = x[4, 500] = 0
    w = torch.randn(6, 700, generator=g)
    x, w = x.to(device), w.to(device)

    def gradients(x, w):
        leaf = x.clone().requires_grad_()
        prod = torch.autograd.grad(tr.prod(leaf, 1), leaf, w[:, 0])[0]
        cumprod = torch.autograd.grad(tr.cumprod(leaf, 1), leaf, w, create_graph=True)[0]
        return prod, cumprod.detach(), torch.autograd.grad(cumprod, leaf, w)[0]

    whole = gradients(x, w)
    assert_bitwise_equal(tuple(t.cpu() for t in whole), gradients(x.cpu(), w.cpu()))
    for i in range(6):
        assert_bitwise_equal(gradients(x[i : i + 1], w[i : i + 1]), tuple(t[i : i + 1] for t in whole))
    assert_bitwise_equal(gradients(x.t().contiguous().t(), w), whole)
