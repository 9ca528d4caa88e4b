"""aminmax and nanmean, two results in one pass over the input: bitwise identical to the separate functions."""

import itertools
import math
import operator

import pytest
import torch
from cases import DTYPES, hostile, misaligned, sliced, ties, transposed, values

import torchreduce as tr
from torchreduce import _C
from torchreduce._core.direct import NUMBERS
from torchreduce.table import FLOATS
from torchreduce.testing import assert_bitwise_equal, force_plan

ROWS = (
    (1, 1),
    (300, 2),
    (70, 7),
    (40, 16),
    (33, 64),
    (9, 100),
    (70, 255),
    (90, 300),
    (3, 2049),
    (2, 20001),
    (1, 70001),
)
COLUMNS = ((2, 131), (7, 67), (40, 130), (300, 70), (777, 13), (2050, 35), (9000, 2), (3, 20000), (4099, 300))
MIDDLE = ((9, 2, 70), (5, 100, 9), (9, 300, 37), (10, 700, 5))
# Every kind of memory, and inputs that no kernel takes in one pass.
KINDS = (
    *((shape, 1) for shape in ROWS),
    *((shape, 0) for shape in COLUMNS),
    *((shape, 1) for shape in MIDDLE),
    ((70, 300), None),
    ((9, 20, 11), (0, 2)),
    ((), None),
)


def with_nans(x):
    """Some rows' worth of NaN, of many payloads, among the others; one row has nothing else."""
    if not x.is_floating_point() or not x.numel():
        return x
    flat = x.reshape(-1)
    flat[::7] = math.nan
    flat[3 : 3 + x.shape[-1] if x.dim() else 3] = math.nan
    if x.dtype == torch.float32:
        flat[1::97] = torch.tensor([-1], dtype=torch.int32).view(torch.float32)
    return flat.view(x.shape)


def laid_out(x):
    return (x, transposed(x), sliced(x), misaligned(x), x[:1].expand(x.shape)) if x.dim() else (x,)


def check_extremes(x, dim):
    least, greatest = tr.aminmax(x, dim=dim)
    assert_bitwise_equal(least, tr.amin(x, dim))
    assert_bitwise_equal(greatest, tr.amax(x, dim))


def check_mean(x, dim, dtype):
    wide = torch.float64 if torch.float64 in (x.dtype, dtype) else torch.float32
    count = (~x.isnan()).sum(dim)
    divide = torch.ops.torchreduce.divide
    assert_bitwise_equal(
        tr.nanmean(x, dim, dtype=dtype), divide(tr.nansum(x, dim, dtype=wide), count, dtype or x.dtype)
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_least_and_greatest_are_amin_and_amax(device, dtype):
    for seed, (shape, dim) in enumerate(KINDS):
        for make in (hostile, ties):
            x = make(shape, dtype, seed).to(device)
            for y in laid_out(x):
                check_extremes(y, dim)
        check_extremes(with_nans(x.clone()), dim)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_mean_without_nan_is_nansum_by_a_count(device, dtype):
    for seed, (shape, dim) in enumerate(KINDS):
        x = hostile(shape, dtype, seed).to(device)
        for y in (*laid_out(x), *laid_out(with_nans(x.clone()))):
            check_mean(y, dim, None)
        check_mean(x, dim, torch.float32)
        check_mean(x, dim, torch.float64)


def test_many_threads_take_turns():
    for shape, dim in (
        ((2**20 + 5,), None),
        ((4, 300_000), 1),
        ((40_000, 33), 0),
        ((9, 5000, 130), 1),
        ((100_000, 9), 1),
    ):
        x = with_nans(values(shape, torch.float32, 3))
        one = torch.get_num_threads()
        results = []
        try:
            for threads in (1, 2, 5):
                torch.set_num_threads(threads)
                check_extremes(x, dim)
                check_mean(x, dim, None)
                results.append((*tr.aminmax(x, dim=dim), tr.nanmean(x, dim)))
        finally:
            torch.set_num_threads(one)
        for result in results[1:]:
            assert_bitwise_equal(result, results[0])


def both(x, dim):
    """What the ops alone give, since a forced family is forced on all that functions call."""
    ops = torch.ops.torchreduce
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return *ops.aminmax(x, [dim], False, 0), *ops.nansum_and_count(x, [dim], False, wide, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_family_has_the_same_bits(dtype):
    shapes = (
        ((70, 7), 1),
        ((33, 64), 1),
        ((9, 1000), 1),
        ((3, 20001), 1),
        ((300, 70), 0),
        ((777, 13), 0),
        ((9000, 3), 0),
    )
    for family in ("rows", "few_rows", "packed_rows", "wide_columns", "narrow_columns", "columns", "strided"):
        served = 0
        for seed, (shape, dim) in enumerate(shapes):
            x = with_nans(hostile(shape, dtype, seed))
            expected = both(x, dim)
            with force_plan(family=family):
                try:
                    results = both(x.cuda(), dim)
                except (ValueError, RuntimeError) as error:  # it serves no such call
                    assert "force_plan" in str(error)
                    continue
            served += 1
            assert_bitwise_equal(tuple(r.cpu() for r in results), expected)
        assert served or dtype == torch.float64


def plan(op, shape, dim, dtype, strides=None):
    strides = list(torch.empty(shape, device="meta").stride()) if strides is None else strides
    number = NUMBERS[dtype]
    return _C.plan(op, list(shape), strides, [dim], number, number, True, True, 132)["family"]


def test_which_families_look_once():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for op in ("aminmax", "nansum_and_count"):
            assert plan(op, (65536, 1024), 1, dtype) == plan(op, (1, 2**24), 1, dtype) == "rows"
            assert plan(op, (65536, 300), 1, dtype) in ("rows", "packed_rows")
            assert plan(op, (65536, 4096), 0, dtype) == plan(op, (4, 2**20), 0, dtype) == "wide_columns"
            assert plan(op, (2**20, 30), 0, dtype) == "narrow_columns"
    for dtype in (torch.float64, torch.int32, torch.uint8):  # that of the first half
        assert plan("aminmax", (300, 1024), 1, dtype) == plan("amin", (300, 1024), 1, dtype)
    apart = [2048, 2]
    assert plan("aminmax", (300, 1024), 1, torch.float32, apart) == plan("amin", (300, 1024), 1, torch.float32, apart)


def test_gradients_are_those_of_both(device):
    x = ties((9, 70), torch.float32, 1).to(device)
    x[2, 5] = math.nan
    weights = values((2, 9), torch.float32, 2).to(device)

    def gradient(f):
        leaf = x.clone().requires_grad_()
        least, greatest = f(leaf)
        return torch.autograd.grad((least * weights[0] + greatest * weights[1]).nansum(), leaf)[0]

    both = gradient(lambda t: tr.aminmax(t, dim=1))
    assert_bitwise_equal(both, gradient(lambda t: (tr.amin(t, 1), tr.amax(t, 1))))
    for one, name in enumerate(("min", "max")):
        leaf, alone = x.clone().requires_grad_(), x.clone().requires_grad_()
        getattr(tr.aminmax(leaf, dim=1), name).backward(weights[one])
        (tr.amin, tr.amax)[one](alone, 1).backward(weights[one])
        assert_bitwise_equal(leaf.grad, alone.grad)
    dense = torch.rand(5, 7, dtype=torch.float64, device=device, requires_grad=True)
    for f in (lambda t: tuple(tr.aminmax(t, dim=1)), lambda t: tr.nanmean(t, 1)):
        assert torch.autograd.gradcheck(f, dense, check_forward_ad=True, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(f, dense)


def test_batches_and_graphs(device):
    x = with_nans(hostile((6, 9, 40), torch.float32, 1)).to(device)
    for f in (
        lambda t: tuple(tr.aminmax(t, dim=0)),
        lambda t: (tr.nanmean(t, -1, keepdim=True),),
        lambda t: tuple(tr.aminmax(t)),
    ):
        batched = torch.vmap(f, in_dims=1)(x)
        one_by_one = [f(x[:, i]) for i in range(9)]
        assert_bitwise_equal(tuple(batched), tuple(torch.stack(each) for each in zip(*one_by_one, strict=True)))
        graph = torch.compile(f, backend="aot_eager", fullgraph=True)
        assert_bitwise_equal(tuple(graph(x)), tuple(f(x)))
    meta = tr.aminmax(torch.empty(3, 4, dtype=torch.int8, device="meta"), dim=1, keepdim=True)
    assert meta.min.shape == meta.max.shape == (3, 1) and meta.min.dtype == meta.max.dtype == torch.int8


def test_results_that_lie_elsewhere(device):
    x = hostile((9, 40), torch.bfloat16, 1).to(device)
    expected = tuple(tr.aminmax(x, dim=1))
    apart = torch.empty(9, 3, dtype=x.dtype, device=device)[:, 1], torch.empty(9, dtype=x.dtype, device=device)
    tr.aminmax(x, dim=1, out=apart)
    assert_bitwise_equal(apart, expected)
    y = x.clone()
    tr.aminmax(y, dim=1, out=(y[:, 0], y[:, 1]))
    assert_bitwise_equal((y[:, 0], y[:, 1]), expected)


WITH_TWO = {
    "max": lambda x, out=None: tr.max(x, 1, out=out),
    "min": lambda x, out=None: tr.min(x, 1, out=out),
    "aminmax": lambda x, out=None: tr.aminmax(x, dim=1, out=out),
    "cummax": lambda x, out=None: tr.cummax(x, 1, out=out),
    "cummin": lambda x, out=None: tr.cummin(x, 1, reverse=True, out=out),
}


def laid(buffer, like, start, step):
    """A tensor like another one in a buffer of bytes: from an element on, every so many."""
    strides = [stride * step for stride in like.stride()]
    return buffer.view(like.dtype).as_strided(like.shape, strides, start)


def bytes_of(t):
    firsts = (sum(map(operator.mul, index, t.stride())) for index in itertools.product(*map(range, t.shape)))
    return {t.data_ptr() + first * t.itemsize + byte for first in firsts for byte in range(t.itemsize)}


@pytest.mark.parametrize("name", WITH_TWO)
@pytest.mark.parametrize("dtype", (*FLOATS, torch.int64, torch.uint8))
def test_two_tensors_to_write_to_share_no_element(device, name, dtype):
    """They may lie between each other's elements. Where they share one, nothing is written."""
    x = values((3, 4), dtype, 3).to(device)
    call = WITH_TWO[name]
    expected = tuple(call(x))
    n, seen = expected[0].numel(), set()
    places = list(itertools.product((0, 1, 2, n - 1, n, 4 * n), (1, 2, 8)))
    for (start, step), (other_start, other_step) in itertools.product(places[::4], places):
        buffer = torch.zeros(8 * 16 * n, dtype=torch.uint8, device=device)
        outs = laid(buffer, expected[0], start, step), laid(buffer, expected[1], other_start, other_step)
        shared = bool(bytes_of(outs[0]) & bytes_of(outs[1]))
        seen.add(shared)
        if shared:
            with pytest.raises(
                RuntimeError, match=rf"^{name}\(\): out= must be two tensors apart, but .* share memory"
            ):
                call(x, out=outs)
            assert not buffer.any()
        else:
            results = call(x, out=outs)
            assert results[0] is outs[0] and results[1] is outs[1]
            assert_bitwise_equal(outs, expected)
    assert seen == {False, True}
    if expected[0].dtype == expected[1].dtype:
        with pytest.raises(
            RuntimeError, match=rf"^{name}\(\): out= must be two tensors apart, got one tensor for both"
        ):
            call(x, out=(outs[0], outs[0]))
