"""One small case for each kernel family and class of op, so that memcheck and racecheck see every kernel.

Run as: compute-sanitizer --tool memcheck python -m pytest -m sanitize tests
"""

import pytest
import torch
from cases import LAYOUTS, values

import torchreduce as tr
from torchreduce.testing import assert_bitwise_equal, force_plan

pytestmark = pytest.mark.sanitize

CLASSES = (
    ("sum", {}, torch.float32),
    ("sum", {}, torch.bfloat16),
    ("sum", {"dtype": torch.float64}, torch.float16),
    ("sum", {"dtype": torch.bool}, torch.int16),
    ("mean", {}, torch.float64),
    ("amax", {}, torch.float16),
    ("amin", {}, torch.uint8),
    ("max", {}, torch.float32),
    ("argmin", {}, torch.int64),
)
REDUCE = (
    {},
    {"family": "rows"},
    {"family": "rows", "lanes": 32, "warps": 1, "leaves": 1},
    {"family": "rows", "lanes": 32, "warps": 8, "leaves": 1},
    {"family": "rows", "lanes": 32, "warps": 2, "leaves": 4},
    {"family": "columns"},
    {"family": "columns", "lanes": 1, "leaves": 1},
    {"family": "columns", "lanes": 8, "leaves": 2},
)
SCAN = ({}, {"family": "rows"}, {"family": "columns"}, {"family": "chain"}, {"family": "columns_chain"},
        {"family": "columns_chain", "lanes": 4})  # fmt: skip
SCANS = [*((dtype, {}) for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int32)),
         (torch.int8, {"dtype": torch.int8}), (torch.float16, {"exclusive": True}),
         (torch.float32, {"reverse": True, "dtype": torch.float64})]  # fmt: skip
CASES = (((3, 5), 1), ((5, 3), 0), ((2, 6151), 1), ((6151, 3), 0), ((17, 257), 1), ((257, 17), 0))
LONG = (((1, 3 * 8192 + 5), 1), ((2 * 8192 + 5, 2), 0))


def check(name, x, dim, options, forced, device):
    """The same bits as on the CPU, where nothing is forced."""
    expected = getattr(tr, name)(x, dim, **options)
    for layout in ("contiguous", "misaligned", "sliced"):
        view = LAYOUTS[layout](x.to(device))
        with force_plan(**forced):
            result = getattr(tr, name)(view, dim, **options)
        assert_bitwise_equal(result, expected)


@pytest.mark.parametrize("forced", REDUCE, ids=str)
@pytest.mark.parametrize("name, options, dtype", CLASSES)
def test_reductions(device, name, options, dtype, forced):
    for shape, dim in CASES:
        check(name, values(shape, dtype, seed=1), dim, options, forced, device)


@pytest.mark.parametrize("forced", SCAN, ids=str)
@pytest.mark.parametrize("dtype, options", SCANS)
def test_scans(device, dtype, options, forced):
    for shape, dim in CASES + LONG:
        check("cumsum", values(shape, dtype, seed=1), dim, options, forced, device)


def test_outputs_and_overlap(device):
    x = values((3, 9001), torch.float32, seed=2).to(device)
    expected = tr.cumsum(x, 1)
    assert_bitwise_equal(tr.cumsum(x, 1, out=LAYOUTS["transposed"](torch.zeros_like(x))), expected)
    assert_bitwise_equal(tr.cumsum(x, 1, out=x), expected)
    out = torch.zeros(7, device=device)[1::2]
    assert_bitwise_equal(tr.sum(x, 1, out=out), tr.sum(x, 1))
