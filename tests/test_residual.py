"""rms_norm and layer_norm of a sum: bitwise identical to separate calls, in one pass; gradients; errors."""

import math

import pytest
import torch
from cases import LAYOUTS, values

import torchreduce as tr
from torchreduce.testing import assert_bitwise_equal, force_plan

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
both = pytest.mark.parametrize("dtype", FLOATS, ids=str)
norms = pytest.mark.parametrize("name", ("rms_norm", "layer_norm"))
LENGTHS = (1, 3, 8, 48, 64, 100, 256, 300, 512, 1000, 1024, 2048, 2056, 4096, 5000, 70000)


def operands(name, shape, dtype, device, weighted=True):
    x, residual = (values(shape, dtype, seed=seed).to(device) for seed in (1, 2))
    side = [values(shape[-1:], dtype, seed=seed).to(device) for seed in (3, 4)] if weighted else [None, None]
    return x, residual, side[: 2 if name == "layer_norm" else 1]


def rowwise(name, x, residual, side, eps=1e-5):
    return getattr(tr, name)(x, x.shape[-1], *side, eps=eps, residual=residual)


def apart(name, x, residual, side, eps=1e-5):
    total = x + residual
    return getattr(tr, name)(total, x.shape[-1], *side, eps=eps), total


@norms
@both
@pytest.mark.parametrize("n", LENGTHS)
def test_the_norm_of_a_sum_has_the_bits_of_both_steps(device, name, dtype, n):
    rows = 70 if n < 256 else 5
    for weighted in (True, False):
        x, residual, side = operands(name, (rows, n), dtype, device, weighted)
        assert_bitwise_equal(rowwise(name, x, residual, side), apart(name, x, residual, side))
        # Rows that start elsewhere in their granules, both or one of them.
        for a, b in ((1, 1), (1, 2), (0, 3)):
            moved = [
                torch.cat([t.new_zeros(rows, k), t, t.new_zeros(rows, 2)], 1)[:, k : k + n]
                for t, k in ((x, a), (residual, b))
            ]
            assert_bitwise_equal(rowwise(name, *moved, side), apart(name, x, residual, side))


@norms
@both
def test_the_norm_of_a_sum_does_not_depend_on_layout_or_launch(device, name, dtype):
    x, residual, side = operands(name, (20, 301), dtype, device)
    expected = apart(name, x, residual, side)
    for first in LAYOUTS.values():
        for second in LAYOUTS.values():
            assert_bitwise_equal(rowwise(name, first(x), second(residual), side), expected)
    for family in ("strided",) if device == "cuda" else ("rows", "columns"):
        with force_plan(family=family):
            assert_bitwise_equal(rowwise(name, x, residual, side), expected)
    assert_bitwise_equal(
        tuple(t.cpu() for t in expected), apart(name, x.cpu(), residual.cpu(), [t.cpu() for t in side])
    )


@norms
@both
def test_special_values_go_through_the_sum(device, name, dtype):
    x, residual, side = operands(name, (9, 500), dtype, device)
    for row, special in enumerate((math.nan, math.inf, -math.inf, torch.finfo(dtype).max, -0.0)):
        x[row, 7] = residual[row + 1, 9] = special
    x[8], residual[8] = -0.0, -0.0
    normal, total = apart(name, x, residual, side)
    assert_bitwise_equal(rowwise(name, x, residual, side), (normal, total.masked_fill(total.isnan(), math.nan)))


@norms
@both
def test_gradients_are_those_of_both_steps(device, name, dtype):
    x, residual, side = operands(name, (6, 40), dtype, device)
    leaves = [t.requires_grad_() for t in (x, residual, *side)]
    g = [values((6, 40), dtype, seed=seed).to(device) for seed in (5, 6)]
    for outs in ((0,), (1,), (0, 1)):
        results = []
        for f in (rowwise, apart):
            y = f(name, x, residual, side)
            results.append(torch.autograd.grad([y[k] for k in outs], leaves, [g[k] for k in outs], allow_unused=True))
        for a, b in zip(*results, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                assert_bitwise_equal(a, b)


@norms
def test_derivatives_of_a_sums_norm_are_those_of_finite_differences(device, name):
    x, residual, side = operands(name, (3, 7), torch.float64, device)
    leaves = [t.clamp(-3, 3).requires_grad_() for t in (x, residual, *side)]

    def f(x, residual, *side):
        return rowwise(name, x, residual, list(side))

    torch.autograd.gradcheck(f, leaves, check_forward_ad=True, check_batched_grad=True)
    torch.autograd.gradgradcheck(f, leaves)


@norms
@pytest.mark.parametrize("backend", ("eager", "aot_eager"))
def test_compiled_and_under_vmap_it_has_the_same_bits(device, name, backend):
    x, residual, side = operands(name, (4, 5, 64), torch.bfloat16, device)
    expected = rowwise(name, x, residual, side)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, r: rowwise(name, x, r, side), backend=backend, fullgraph=True)
    assert_bitwise_equal(tuple(compiled(x, residual)), expected)
    assert_bitwise_equal(torch.func.vmap(lambda x, r: rowwise(name, x, r, side))(x, residual), expected)
    shared = torch.func.vmap(lambda x: rowwise(name, x, residual[0], side))(x)
    assert_bitwise_equal(shared, rowwise(name, x, residual[:1].expand_as(x), side))


@norms
def test_a_residual_of_another_kind_is_refused(name):
    x = torch.zeros(2, 4)
    for residual in (torch.zeros(2, 5), torch.zeros(4), x.double(), x.to("meta")):
        with pytest.raises(RuntimeError, match=f"{name}.*residual"):
            rowwise(name, x, residual, [])
    with pytest.raises(TypeError, match="residual"):
        rowwise(name, x, 1.0, [])


@norms
@pytest.mark.parametrize("input", FLOATS, ids=str)
def test_weights_have_any_float_dtype(device, name, input):
    """They enter the accumulator's dtype; their gradients come in their own."""
    wide = torch.float64 if input is torch.float64 else torch.float32
    x, residual, _ = operands(name, (6, 64), input, device)
    for dtypes in ((a, b) for a in FLOATS for b in FLOATS):
        side = [values((64,), dtype, seed=seed).to(device) for seed, dtype in enumerate(dtypes)]
        side = [t.requires_grad_() for t in side[: 2 if name == "layer_norm" else 1]]
        for options in ({}, {"residual": residual}):
            f = getattr(tr, name)
            y = f(x, 64, *side, **options)
            expected = f(x, 64, *(t.detach().to(wide) for t in side), **options)
            assert_bitwise_equal(y if options else (y,), expected if options else (expected,))
            g = values((6, 64), input, seed=9).to(device)
            grads = torch.autograd.grad(y[0] if options else y, side, g)
            assert [t.dtype for t in grads] == [t.dtype for t in side]
