"""Reductions of views: of dims with others between them, of windows, of rows whose results lie elsewhere. Who serves
them, and that bits are those of the CPU."""

import math
import os
import subprocess
from pathlib import Path

import pytest
import torch
from cases import hostile
from test_plan_columns import FAMILIES, plan

import torchreduce as tr
from torchreduce.testing import assert_bitwise_equal, force_plan

# The shape in memory, what is made of it, the reduced dims, who takes that as float32.
RUNS = [
    ((6, 5, 300, 64), lambda x: x, (0, 2), "narrow_columns"),
    ((60, 5, 77, 96), lambda x: x, (0, 2), "narrow_columns"),
    ((40, 3, 2, 32), lambda x: x, (0, 2), "wide_columns"),
    ((5, 3, 70, 1032), lambda x: x, (0, 2), "wide_columns"),
    ((2, 3, 2, 2056), lambda x: x, (0, 2), "short_columns"),
    ((400, 3, 8, 67), lambda x: x, (0, 2), "narrow_columns"),
    ((7, 40, 16, 128), lambda x: x.transpose(1, 2), (0, 1), "wide_columns"),
    ((40, 50, 136), lambda x: x.permute(1, 2, 0), (0, 2), "wide_columns"),
    ((5, 2, 30, 3, 64), lambda x: x[:, :, :, 1], (0, 2), "wide_columns"),
    ((40, 2, 51, 131), lambda x: x, (0, 2), "wide_columns"),  # a second run starts elsewhere in a granule
    ((3, 2, 777, 41), lambda x: x, (0, 2), "wide_columns"),
    ((5, 700, 2, 41), lambda x: x.permute(0, 2, 1, 3), (1, 2), "wide_columns"),
    ((900, 64), lambda x: x[:, 16:32], 0, "narrow_columns"),
    ((5000, 24), lambda x: x[:, 8:], 0, "narrow_columns"),
    ((3, 3000, 96), lambda x: x[..., :64], 1, "narrow_columns"),
    ((900, 64), lambda x: x[:, 3:35], 0, "wide_columns"),
]
ROWS = [
    ((30, 40, 128), lambda x: x.permute(2, 1, 0), 0, "rows"),
    ((6, 70, 5, 64), lambda x: x.transpose(1, 2), 3, "rows"),
    ((9, 20, 100), lambda x: x.permute(2, 1, 0), 0, "rows"),
    ((9, 20, 33), lambda x: x.permute(2, 1, 0), 0, "packed_rows"),
    ((300, 40, 7), lambda x: x.permute(2, 1, 0), 0, "packed_rows"),
    ((6, 20, 3, 5, 64), lambda x: x[:, :, 1].transpose(1, 2), 3, "packed_rows"),
    ((3, 5, 4096), lambda x: x.permute(2, 1, 0), 0, "rows"),
]
STRIDED = [
    ((70, 3, 7, 7), lambda x: x, (0, 2, 3), "strided"),
    ((70, 3, 5, 2, 7), lambda x: x, (0, 2, 4), "strided"),
    ((3, 900, 2), lambda x: x[..., 1], 1, "strided"),
    ((3, 2, 300, 2), lambda x: x[..., 0], (0, 2), "strided"),
    ((60, 5, 301), lambda x: x, (0, 2), "strided"),
    ((130, 3, 20), lambda x: x[..., 2:19], (0, 2), "strided"),
    ((900, 64), lambda x: x[:, 3:11], 0, "strided"),  # few columns
    ((50, 3, 70, 5), lambda x: x, (0, 2), "contiguous"),
    ((10, 465, 2, 7), lambda x: x.permute(0, 2, 3, 1), (1, 3), "contiguous"),
    ((5, 2, 2500), lambda x: x[..., 1:], (0, 2), "strided"),
]
# Kept dims that follow each other in memory in another order.
TURNED = [
    ((50, 40, 31, 3), lambda x: x.permute(0, 3, 1, 2), 0, "wide_columns"),
    ((5, 67, 519, 2), lambda x: x.permute(3, 0, 1, 2), (1, 2), "wide_columns"),
    ((3, 50, 40, 5), lambda x: x.permute(0, 3, 2, 1), 3, "narrow_columns"),
    ((7, 3, 31, 40, 5), lambda x: x.permute(0, 4, 3, 1, 2), (0, 3), "wide_columns"),
    ((40, 2049, 3), lambda x: x.permute(0, 2, 1), 0, "wide_columns"),
    ((9, 30, 4), lambda x: x.permute(0, 2, 1), 0, "narrow_columns"),
    ((5, 30, 4), lambda x: x.permute(0, 2, 1), 0, "wide_columns"),  # few elements
    ((4, 30, 3, 7, 4), lambda x: x.permute(0, 2, 4, 3, 1), 4, "wide_columns"),
]
VIEWS = RUNS + ROWS + STRIDED + TURNED


@pytest.mark.parametrize("case", VIEWS, ids=lambda case: f"{case[0]} over {case[2]} by {case[3]}")
def test_who_serves(case):
    shape, view, dims, family = case
    x = view(torch.empty(shape, device="meta"))
    dims = dims if isinstance(dims, tuple) else (dims,)
    p = plan("sum", tuple(x.shape), torch.float32, strides=x.stride(), dim=dims, aligned=x.storage_offset() % 4 == 0)
    assert ("contiguous" if p["copied"] else p["family"]) == family


@pytest.mark.gpu
@pytest.mark.parametrize("case", VIEWS, ids=lambda case: f"{case[0]} over {case[2]} by {case[3]}")
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float64, torch.int8))
def test_bits_of_views(dtype, case):
    """As planned and by each family, at any address of an element."""
    shape, view, dims, _ = case
    for offset in (0, 1, 4):
        x = hostile((math.prod(shape) + offset,), dtype, seed=offset)
        y = view(x.cuda()[offset:].view(shape))
        x = view(x[offset:].view(shape))
        for name in ("sum", "amax", "prod", "count_nonzero"):
            function = getattr(tr, name)
            if name == "prod" and isinstance(dims, tuple):
                continue
            expected = function(x, dims)
            assert_bitwise_equal(function(y, dims).cpu(), expected)
            for family in (*FAMILIES, "rows", "packed_rows", "few_rows", "strided", "columns", "contiguous"):
                with force_plan(family=family):
                    try:
                        actual = function(y, dims)
                    except ValueError:  # it cannot
                        continue
                assert_bitwise_equal(actual.cpu(), expected)
        if not isinstance(dims, tuple):
            for function in (tr.max, tr.aminmax):
                for actual, expected in zip(function(y, dim=dims), function(x, dim=dims), strict=True):
                    assert_bitwise_equal(actual.cpu(), expected)


@pytest.mark.parametrize("device", ("cpu", pytest.param("cuda", marks=pytest.mark.gpu)))
@pytest.mark.parametrize("shape", [(2, 3, 0, 4, 5), (0, 3, 2, 4, 5), (2, 3, 5, 4, 0)], ids=str)
def test_empty_dims_with_others_between(shape, device):
    x = torch.empty(shape, device=device)
    for name in ("sum", "mean", "count_nonzero", "any"):
        expected = getattr(torch, name)(x, (0, 2, 4))
        assert torch.equal(getattr(tr, name)(x, (0, 2, 4)).nan_to_num(7), expected.nan_to_num(7))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("run, channels", ((8, 3), (9, 5), (49, 512), (49, 3), (301, 7), (5001, 2)))
def test_runs_in_shared_memory_are_as_far_from_granules_as_in_memory(dtype, run, channels):
    per = 16 // dtype.itemsize

    def shape_of(run, dtype):
        with force_plan(family="strided"):
            return plan("sum", (3000, channels, run), dtype, dim=(0, 2))["shape"]

    shape = shape_of(run, dtype)
    if shape["granules"]:
        assert run % per == 0
        assert shape["window"] == 0
    else:
        assert shape["window"] >= run + per - 1  # no two in one granule
        assert (shape["window"] - channels * run) % per == 0
    assert shape_of(7, dtype)["window"] == 0  # too short to be worth it
    assert shape_of(49, torch.float64)["window"] == 0


def test_division_by_a_product(tmp_path):
    tests = Path(__file__).parent
    program = [tests / "divider.cpp", "-I", tests.parent / "csrc", "-o", tmp_path / "divider"]
    subprocess.run([os.environ.get("CXX", "c++"), "-std=c++20", *program], check=True)
    done = subprocess.run([tmp_path / "divider"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
