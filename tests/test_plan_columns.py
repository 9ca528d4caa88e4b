"""Plans of the reductions whose lanes go across columns: whom they serve, and that all of it is covered."""

import itertools
import math

import pytest
import torch

from torchreduce import _C
from torchreduce.testing import force_plan

NUMBERS = {torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5,
           torch.float32: 6, torch.float64: 7, torch.bool: 11, torch.bfloat16: 15}  # fmt: skip
FLOATS = {torch.float16, torch.float32, torch.float64, torch.bfloat16}
FAMILIES = ("short_columns", "column_slices", "narrow_columns", "wide_columns")
OPS = ("sum", "mean", "amax", "amin", "max", "argmin")
PORTABLE, WORKSTATION, HOPPER = 48 << 10, 99 << 10, 227 << 10
SHAPES = [(1, n, inner) for n, inner in itertools.product((1, 2, 7, 9, 100, 257, 5000, 70_001), (2, 3, 64, 100, 4099))]
SHAPES += [(1000, n, inner) for n, inner in itertools.product((3, 10, 300, 2049), (2, 13, 67, 300, 1031))]
SHAPES += [(1, 2**27, 2), (3, 2**20, 100), (2, 3, 2**26)]


def plan(op, shape, dtype, strides=None, aligned=True, shared=HOPPER, dim=(1,), out=None):
    strides = strides or torch.empty(shape, device="meta").stride()
    if out is None:
        out = torch.int64 if op == "argmin" or (op == "sum" and dtype not in FLOATS) else dtype
    return _C.plan(op, list(shape), list(strides), list(dim), NUMBERS[dtype], NUMBERS[out], aligned, True, 132,
                   shared > PORTABLE, shared)  # fmt: skip


def serves(family, *args, **kwargs):
    try:
        with force_plan(family=family):
            return plan(*args, **kwargs)
    except ValueError:
        return None


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("op", OPS)
def test_families_serve_the_types_they_are_compiled_for(op, dtype):
    if op == "mean" and dtype not in FLOATS:
        return
    sums = op in ("sum", "mean")
    counted = op in ("amax", "amin") and dtype == torch.bool  # as any and all are
    compiled = sums or counted or dtype in FLOATS or dtype in (torch.int32, torch.int64)
    small = dtype in (torch.float16, torch.float32, torch.bfloat16)
    for shape, family in (((1, 7, 1 << 20), "short_columns"), ((500, 20, 10), "column_slices"),
                          ((3, 5000, 10), "narrow_columns"), ((3, 5000, 4096), "wide_columns")):  # fmt: skip
        served = serves(family, op, shape, dtype)
        assert (served is not None) == (compiled and (small or family in ("narrow_columns", "wide_columns")))
        if served:
            assert served["family"] == family
            assert plan(op, shape, dtype)["family"] == family


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("op, dtype", [("sum", torch.float32), ("sum", torch.int8), ("mean", torch.bfloat16),
                                       ("amax", torch.float16), ("max", torch.float32), ("argmin", torch.float64),
                                       ("argmin", torch.bfloat16)])  # fmt: skip
def test_every_row_and_column_is_taken(family, op, dtype):
    for shape, aligned, shared in itertools.product(SHAPES, (True, False), (PORTABLE, WORKSTATION, HOPPER)):
        outer, n, inner = shape
        if not (p := serves(family, op, shape, dtype, aligned=aligned, shared=shared)):
            continue
        p |= p["shape"]
        k = p["rows"]
        rows = 256 * k * (p["span"] // 256) + k * (p["span"] % 256)  # of a span, if it is that of a long column
        columns = outer * (1 if family in ("narrow_columns", "column_slices") else math.ceil(inner / p["tile"]))
        if family == "column_slices":
            assert p["span"] * p["lanes"] >= n and p["blocks"] * p["slices"] >= outer
        elif family == "short_columns":
            assert p["rows"] >= n and p["blocks"] * 8 * (8 // p["rows"]) >= columns
        elif n >= 2048:
            assert p["splits"] * p["parts"] * rows >= n
            assert p["blocks"] >= p["splits"] * columns / (8 // p["warps"])
        assert p["shared"] <= shared - 1024 and 0 < p["blocks"] < 2**31
        assert (p["workspace"] > 0) == (p["tickets"] > 0) == (p["splits"] > 1)


def test_partial_results_are_few():
    for op, shape, dtype in (("sum", (1, 65536, 4096), torch.float32), ("argmin", (1, 65536, 4096), torch.bfloat16),
                             ("sum", (1, 2**20, 267), torch.bfloat16), ("argmin", (1, 2**20, 267), torch.float32),
                             ("sum", (100, 1500, 1788), torch.float32)):  # fmt: skip
        p = plan(op, shape, dtype)
        assert p["workspace"] < 0.05 * math.prod(shape) * dtype.itemsize


def test_any_layout_whose_columns_are_neighbours():
    # A window of a wider array, several outer dims in any order, expanded ones.
    assert plan("sum", (500, 300), torch.float32, strides=(1000, 1), dim=(0,))["family"] == "wide_columns"
    assert plan("sum", (500, 30), torch.float32, strides=(1000, 1), dim=(0,))["family"] == "wide_columns"
    assert plan("sum", (500, 20), torch.float32, strides=(1001, 1), dim=(0,))["family"] == "strided"
    assert plan("sum", (4, 5, 900, 64), torch.float32, strides=(900 * 64, 4 * 900 * 64, 64, 1),
                dim=(2,))["family"] in FAMILIES  # fmt: skip
    assert plan("sum", (900, 64, 7), torch.float32, strides=(64, 1, 0), dim=(0,))["family"] in FAMILIES
    assert plan("sum", (1 << 10, 1 << 12), torch.float32, strides=(0, 1), dim=(0,))["family"] == "wide_columns"
    # Two dims without one stride for both: rows in runs, which lie alike in granules.
    for inner, family in ((64, "narrow_columns"), (2048, "wide_columns")):
        p = plan("sum", (40, 50, inner), torch.float32, strides=(60 * inner, inner, 1), dim=(0, 1))
        assert p["family"] == family
    # Two dims that follow each other in memory: 3 channels of 50 x 50, as 7500 columns. 32768 ones of their own stay.
    alike = [plan("sum", (90, *kept), torch.float32, strides=strides, dim=(0,))["shape"]
             for kept, strides in (((3, 2500), (7500, 1, 3)), ((7500,), (7500, 1)))]  # fmt: skip
    assert alike[0] == alike[1]
    p = plan("sum", (90, 2**15, 50), torch.float32, strides=(2**15 * 50, 1, 2**15), dim=(0,))
    assert p["shape"]["tile"] == 128 and p["blocks"] % 50 == 0
    # The second run elsewhere in a granule.
    assert plan("sum", (4, 5, 64), torch.float32, strides=(1001, 64, 1), dim=(0, 1))["family"] == "wide_columns"
    # Three dims, columns apart, converted elements: element by element.
    for args in (dict(shape=(4, 5, 6, 64), strides=(10000, 1000, 64, 1), dim=(0, 1, 2)),
                 dict(shape=(500, 300), strides=(1000, 2), dim=(0,))):  # fmt: skip
        assert plan("sum", dtype=torch.float32, **args)["family"] not in FAMILIES
    assert plan("sum", (1, 500, 300), torch.bfloat16, out=torch.float64)["family"] not in FAMILIES
    assert plan("sum", (1, 500, 300), torch.bfloat16, out=torch.float32)["family"] in FAMILIES


def test_dims_of_extremes_and_integers_go_by_their_strides():
    shape, strides = (64, 32, 16), (1, 16 * 64, 64)  # a permuted contiguous array
    whole = plan("amax", (2**15,), torch.float32, dim=(0,))
    for op, dtype in (("amax", torch.float32), ("amin", torch.int8), ("sum", torch.int32)):
        p = plan(op, shape, dtype, strides=strides, dim=(0, 1, 2))
        assert p["splits"] == plan(op, (2**15,), dtype, dim=(0,))["splits"]
    assert plan("amax", shape, torch.float32, strides=strides, dim=(0, 1, 2)) == whole
