"""Reductions over dims whose order in memory is not the logical one: whom transposed_rows serves, and its bits."""

import math

import pytest
import torch
from cases import hostile

import torchreduce as tr
from torchreduce import _C
from torchreduce.testing import assert_bitwise_equal, force_plan

NUMBERS = {torch.int64: 4, torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}
HALF = (torch.float16, torch.bfloat16)
# The shape in memory, the order of its dims, and the reduced ones, None for all.
CASES = [
    ((49, 2048), (1, 0), None),
    ((64, 5000), (1, 0), None),
    ((17, 2100), (1, 0), None),
    ((1001, 67), (1, 0), None),
    ((4096, 16), (1, 0), None),
    ((2049, 77), (1, 0), None),
    ((1603, 300), (1, 0), None),
    ((20_001, 72), (1, 0), None),
    ((70, 90, 104), (2, 0, 1), None),
    ((70, 90, 104), (2, 1, 0), None),
    ((300, 32, 32), (0, 2, 1), (1, 2)),
    ((30, 100, 256), (0, 2, 1), (1, 2)),
    ((5, 3000, 33), (0, 2, 1), (1, 2)),
    ((9, 7, 7, 100), (0, 3, 1, 2), None),
    ((9, 7, 7, 100), (0, 3, 1, 2), (1, 2, 3)),
    ((3, 60, 50, 70), (0, 3, 1, 2), None),
    ((3, 60, 50, 64), (0, 3, 1, 2), (1, 2, 3)),
    ((2, 3, 41, 64, 36), (1, 0, 4, 3, 2), (2, 3, 4)),
    ((2, 3, 41, 64, 36), (1, 0, 4, 2, 3), (1, 2, 3, 4)),
]
# Few columns, which strided may serve as fast.
FEW = [
    ((9000, 2), (1, 0), None),
    ((70_001, 3), (1, 0), None),
    ((40_000, 4), (1, 0), None),
    ((2, 61, 150, 5), (0, 3, 1, 2), None),
    ((2, 64, 64, 4), (0, 3, 1, 2), (1, 2, 3)),
    ((3, 47, 53, 7), (0, 3, 1, 2), (1, 2, 3)),
    ((3, 5000, 8), (0, 2, 1), (1, 2)),
    ((2, 3, 71, 83, 12), (1, 0, 4, 3, 2), None),
    ((30_003, 16), (1, 0), None),
    ((10_001, 17), (1, 0), None),
]


def plan(op, shape, order, dims, dtype, aligned=True, shared=227 << 10):
    x = torch.empty(shape, device="meta").permute(order)
    out = torch.int64 if op == "argmax" else dtype
    dims = list(range(x.dim()) if dims is None else dims)
    return _C.plan(op, list(x.shape), list(x.stride()), dims, NUMBERS[dtype], NUMBERS[out], aligned, True, 132, True,
                   shared)  # fmt: skip


@pytest.mark.parametrize("dtype", (torch.float32, *HALF))
@pytest.mark.parametrize("op", ("sum", "mean", "nansum", "norm2", "argmax"))
def test_whom_it_serves(op, dtype):
    for case in CASES + FEW:
        leaves = math.ceil(math.prod(case[0]) / 2048)
        with force_plan(family="transposed_rows"):
            p = plan(op, *case, dtype)
            assert 0 < p["blocks"] <= 2 * leaves * case[0][0] and p["shared"] <= 226 << 10, case
            assert plan(op, *case, dtype, aligned=False)["family"] == "transposed_rows"


@pytest.mark.parametrize("dtype", (torch.float32, *HALF))
@pytest.mark.parametrize("op", ("sum", "mean", "nansum", "norm2", "argmax"))
def test_whom_it_serves_best(op, dtype):
    """By several runs of leaves a column where columns are few; not where idle lanes or few blocks would cost more.
    Smaller tensors are copied (test_contiguous.py)."""
    images = (0, 3, 1, 2)
    best = [((49, 2**20), (1, 0)), ((1000, 7, 7, 2048), images), ((2**20, 64), (1, 0)), ((9, 10**6, 33), (0, 2, 1))]
    best += [((64, 512, 512, 3), images), ((2**24, 4), (1, 0)), ((2**22, 9), (1, 0)), ((1000, 1024, 16), (0, 2, 1))]
    for shape, order in best:
        p = plan(op, shape, order, None, dtype)
        if op == "argmax" and math.prod(shape) * dtype.itemsize <= 32 << 20:
            assert p["copied"], shape
        else:
            assert p["family"] == "transposed_rows" and not p["copied"], shape
    others = [((32, 128, 128, 3), images), ((1000, 70, 70, 5), images), ((9000, 2), (1, 0)), ((4096, 16), (1, 0))]
    for shape, order in others:
        p = plan(op, shape, order, None, dtype)
        large = math.prod(shape) * dtype.itemsize >= 1 << 16
        assert p["copied"] if large else p["family"] == "strided", shape


def test_whom_it_does_not_serve():
    assert plan("sum", (64, 5000), (0, 1), None, torch.float32)["family"] == "few_rows"
    assert plan("amax", (64, 5000), (1, 0), None, torch.float32)["family"] == "few_rows"  # of any order
    assert plan("sum", (64, 5000), (1, 0), None, torch.float64)["copied"]
    assert plan("prod", (64, 5000), (1, 0), None, torch.float32)["copied"]
    assert plan("prod", (64, 5000), (1, 0), None, torch.float64)["family"] == "strided"
    assert plan("sum", (64, 5000), (1, 0), (1,), torch.float32)["family"] not in ("strided", "transposed_rows")
    assert plan("sum", (5000, 64), (1, 0), None, torch.float32, shared=32 << 10)["copied"]
    assert plan("sum", (16, 20, 32), (1, 0, 2), None, torch.float32)["family"] == "strided"  # neighbours along the row


@pytest.mark.parametrize("dtype", (torch.float32, *HALF))
def test_tiles_have_a_sector_of_each_row_of_memory(dtype):
    """Of short stretches: 32 KiB, or twice as many where that is less than 32 bytes of a row."""
    for stretch, tile in ((512, 32 << 10), (1024, 32 << 10), (1025, 64 << 10), (2048, 64 << 10)):
        p = plan("sum", (stretch, 50_000), (1, 0), None, dtype)
        assert p["shared"] == tile and p["shape"]["leaves"] == tile // dtype.itemsize // 2048, stretch


def test_runs_of_few_columns():
    for columns, runs in ((2, 8), (3, 8), (4, 8), (5, 4), (8, 4), (9, 2), (16, 2), (17, 1), (64, 1)):
        with force_plan(family="transposed_rows"):
            assert plan("sum", (2**21, columns), (1, 0), None, torch.float32)["shape"]["runs"] == runs, columns


@pytest.mark.parametrize("dtype", (torch.float32, *HALF))
def test_tiles_of_rows_shorter_than_a_sector_are_copied(dtype):
    for stretch, sectors in ((1024, 1), (1025, 2)):
        columns = sectors * 32 // dtype.itemsize
        for number in (columns, columns - 1):
            p = plan("sum", (1000, stretch, number), (0, 2, 1), None, dtype)
            assert bool(p["copied"]) == (number < columns), (stretch, number)
            assert p["copied"] or p["family"] == "transposed_rows", (stretch, number)


def test_runs_are_forced():
    for leaves in (1, 4, 16):
        with force_plan(family="transposed_rows", leaves=leaves):
            assert plan("sum", (2**18, 64), (1, 0), None, torch.float32)["shape"]["leaves"] == leaves
    with force_plan(family="transposed_rows", leaves=3), pytest.raises(ValueError, match="leaves must be a power of"):
        plan("sum", (2**18, 64), (1, 0), None, torch.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES + FEW, ids=str)
@pytest.mark.parametrize("dtype", (torch.float32, *HALF))
@pytest.mark.parametrize("name", ("sum", "mean", "nansum", "vector_norm", "argmax"))
def test_bits_are_the_cpus(name, dtype, case):
    """As planned and in other runs, at any address of an element."""
    shape, order, dims = case
    if name == "argmax" and dims is not None:
        return  # over one dim or all
    for offset in (0, 1, 3):
        x = hostile((math.prod(shape) + offset,), dtype, seed=offset)
        function = getattr(tr, name)
        options = {} if dims is None else {"dim": dims}
        expected = function(x[offset:].view(shape).permute(order), **options)
        y = x.cuda()[offset:].view(shape).permute(order)
        calls = [{}, {"family": "strided"}]
        calls += [{"family": "transposed_rows", "leaves": n, "vector_loads": n > 1} for n in (1, 2, 8)]
        for forced in calls:
            with force_plan(**forced):
                assert_bitwise_equal(function(y, **options).cpu(), expected)
