"""Reductions of contiguous copies: when a GPU makes one, its memory, and that no bit shows it."""

import math

import pytest
import torch
from cases import hostile
from torch.utils._pytree import tree_leaves

import torchreduce as tr
from torchreduce import _C
from torchreduce.testing import assert_bitwise_equal, force_plan

NUMBERS = {torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32)
MOST = 128 << 20  # bytes of a copy
IMAGES = (0, 3, 1, 2)
# The shape in memory, the order of its dims, and the reduced ones, None for all: runs, tiles, few columns.
CASES = [
    ((5, 70, 31, 16), (0, 2, 1, 3), None),
    ((5, 70, 31, 17), (0, 2, 1, 3), (1, 2, 3)),
    ((3, 70, 31, 9), (2, 1, 0, 3), (2, 3)),
    ((131, 670), (1, 0), None),
    ((2900, 411), (1, 0), None),
    ((69, 32, 8, 32), (3, 0, 1, 2), (0, 3)),
    ((6, 9, 400, 5), (1, 3, 2, 0), None),
    ((6, 9, 400, 5), (1, 3, 2, 0), (1, 2)),
    ((7, 50, 60, 3), IMAGES, None),
    ((7, 50, 60, 3), IMAGES, (0, 3)),
    ((3, 2, 4, 3, 50, 90), (5, 1, 3, 0, 2, 4), (0, 3, 4)),
    ((90_001, 2), (1, 0), None),
    ((16, 9000), (1, 0), None),
]


def plan(op, shape, order, dims, dtype, aligned=True, **facts):
    x = torch.empty(shape, device="meta").permute(order)
    out = torch.int64 if op == "argmax" else dtype
    dims = list(range(x.dim()) if dims is None else dims)
    return _C.plan(op, list(x.shape), list(x.stride()), dims, NUMBERS[dtype], NUMBERS[out], bool(aligned), True, 132,
                   True, 227 << 10, **facts)  # fmt: skip


@pytest.mark.parametrize("op", ("sum", "prod", "norm2", "argmax"))
def test_elements_that_would_be_read_one_by_one_are_copied(op):
    for dtype in (torch.float32, torch.bfloat16, *((torch.float64,) if op in ("sum", "argmax") else ())):
        for shape, order in (((32, 128, 128, 3), IMAGES), ((40, 17, 17, 17), (0, 2, 1, 3)), ((64, 5000, 2), (0, 2, 1))):
            p = plan(op, shape, order, None, dtype)
            assert p["copied"] == math.prod(shape) * dtype.itemsize, (shape, dtype)
            assert p["family"] in ("rows", "few_rows"), (shape, dtype)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_case_has_a_copy(case):
    shape, order, dims = case
    with force_plan(family="contiguous"):
        assert plan("sum", shape, order, dims, torch.float32)["copied"] == 4 * math.prod(shape)


def test_what_is_not_copied():
    def copied(op, shape, order, dims=None, dtype=torch.float32, **facts):
        return plan(op, shape, order, dims, dtype, **facts)["copied"]

    assert not copied("sum", (64, 5000), (0, 1))
    assert not copied("sum", (64, 5000), (1, 0), (1,))  # columns
    assert not copied("amax", (32, 128, 128, 3), IMAGES)  # of any order
    assert not copied("sum", (32, 128, 128, 3), IMAGES, wide_reductions=False)
    assert not copied("sum", (4, 20, 20, 3), IMAGES)  # small
    assert copied("prod", (MOST // 12, 3), (1, 0)) and not copied("prod", (MOST // 12 + 1, 3), (1, 0))  # large
    assert not copied("sum", (64, 100_000), (1, 0)) and copied("argmax", (64, 100_000), (1, 0))
    # Runs of 16 bytes: large ones where the last two dims are shorter than a leaf.
    assert copied("sum", (400, 17, 17, 16), (0, 2, 1, 3)) and copied("sum", (4000, 17, 17, 16), (0, 2, 1, 3))
    assert copied("sum", (4, 17, 170, 160), (0, 2, 1, 3)) and not copied("sum", (40, 17, 170, 160), (0, 2, 1, 3))
    # Neighbours in memory that are far along the row.
    assert copied("sum", (1000, 4000), (1, 0)) and not copied("sum", (1000, 5000), (1, 0))  # 16 MiB
    assert not copied("sum", (100, 4000), (1, 0))  # columns of 100
    assert copied("sum", (8000, 2000), (1, 0), dtype=torch.bfloat16) and not copied("sum", (8000, 2000), (1, 0))
    assert copied("argmax", (8000, 1000), (1, 0)) and not copied("argmax", (8000, 2000), (1, 0))  # 32 MiB
    with force_plan(family="strided"):
        assert not copied("prod", (32, 128, 128, 3), IMAGES)
    with force_plan(family="contiguous"):
        assert copied("sum", (4, 20, 20, 3), IMAGES) == 4 * 20 * 20 * 3 * 4
        for op, dims in (("amax", None), ("sum", (0, 2))):  # of any order; columns
            with pytest.raises(ValueError, match="contiguous cannot serve"):
                copied(op, (32, 128, 128, 3), IMAGES, dims)
        with pytest.raises(ValueError, match="on the CPU have the families rows and columns"):
            tr.sum(torch.ones(4, 5).t())


def test_a_copy_is_aligned_wherever_the_input_begins():
    plans = [plan("sum", (40, 17, 17, 17), (0, 2, 1, 3), None, torch.float32, aligned=aligned) for aligned in (1, 0)]
    assert plans[0] == plans[1] and plans[0]["copied"]


def test_every_second_element_is_not_copied():
    x = torch.empty(2**20, 8, device="meta")[:, ::2]
    p = _C.plan("sum", list(x.shape), list(x.stride()), [0, 1], 6, 6, True, True, 132, True, 227 << 10)
    assert p["copied"] == 0


def test_explain_says_that_there_is_no_copy_on_a_cpu():
    assert tr.explain("sum", torch.ones(32, 50, 3).permute(0, 2, 1)).copied == 0


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_are_the_cpus(dtype, case):
    """By each reduction, as planned and by a copy; of tensors that start anywhere, and with gaps in memory."""
    shape, order, dims = case
    names = ["sum", "mean", "nansum", "prod", "vector_norm", "amax", "argmax", "count_nonzero", "aminmax", "nanmean"]
    for offset, gap in ((0, 0), (1, 0), (3, 5)):
        wide = (*shape[:-1], shape[-1] + gap)
        values = hostile((math.prod(wide) + offset,), torch.float32, seed=offset).nan_to_num(3, 7, -7).to(dtype)
        x, y = (t[offset:].view(wide)[..., : shape[-1]].permute(order) for t in (values, values.cuda()))
        for name in names:
            floats = name in ("mean", "vector_norm", "nanmean")
            if (floats and not dtype.is_floating_point) or (name in ("argmax", "prod", "aminmax") and dims):
                continue
            options = {"dim": dims} if dims else {}
            function = getattr(tr, name)
            expected = tree_leaves(function(x, **options))
            for forced in ({}, {"family": "contiguous"}):
                try:
                    with force_plan(**forced):
                        results = tree_leaves(function(y, **options))
                except ValueError:  # its elements are in order, or no kernel reads them as they are
                    assert forced and not (name == "sum" and dtype.is_floating_point)
                    continue
                for result, wanted in zip(results, expected, strict=True):
                    assert_bitwise_equal(result.cpu(), wanted)


@pytest.mark.parametrize("device", ("cpu", pytest.param("cuda", marks=pytest.mark.gpu)))
def test_results_and_inputs_that_lie_anywhere(device):
    """out= with strides; expanded and overlapping inputs."""
    x = hostile((40, 33, 17, 5), torch.float32)
    y = x.to(device).permute(1, 0, 3, 2)
    expected = tr.sum(x.permute(1, 0, 3, 2), (1, 3))
    out = torch.zeros(5, 33, device=device).t()
    assert tr.sum(y, (1, 3), out=out) is out
    assert_bitwise_equal(out.cpu().contiguous(), expected)
    for view in (lambda t: t[:1].expand(40, 33, 17, 5).permute(0, 2, 1, 3), lambda t: t.view(-1).unfold(0, 9, 1)):
        for result, wanted in zip(*((tr.sum(view(t)), tr.prod(view(t))) for t in (x.to(device), x)), strict=True):
            assert_bitwise_equal(result.cpu(), wanted)


@pytest.mark.gpu
def test_memory_of_a_copy_is_given_back():
    x = torch.randn(64, 128, 128, 3, device="cuda").permute(IMAGES)
    size = tr.explain("prod", x).copied
    assert size == x.numel() * 4 and f"copy       {size} bytes" in str(tr.explain("prod", x))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    tr.prod(x)
    assert size <= torch.cuda.max_memory_allocated() - before < size + (1 << 20)
    assert torch.cuda.memory_allocated() == before


@pytest.mark.gpu
def test_a_graph_copies_what_is_there_at_its_replay():
    x = torch.randn(64, 128, 128, 3, device="cuda")
    y = x.permute(IMAGES)
    tr.sum(y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = tr.sum(y)
    for seed in range(3):
        torch.manual_seed(seed)
        x.normal_()
        graph.replay()
        assert_bitwise_equal(result, tr.sum(y.cpu()).cuda())


@pytest.mark.gpu
@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32, torch.float64), ids=str)
def test_copies_stay_within_the_tensor_on_cuda(dtype):
    for shape, order, dims in CASES:
        for offset in (0, 1):
            values = torch.ones(math.prod(shape) + offset, dtype=dtype, device="cuda")
            with force_plan(family="contiguous"):
                result = tr.sum(values[offset:].view(shape).permute(order), dim=dims)
            assert (result * result.numel() == math.prod(shape)).all() or dtype is torch.bfloat16


@pytest.mark.gpu
def test_without_memory_for_a_copy_there_is_none():
    x = torch.randn(64, 128, 128, 3, device="cuda").permute(IMAGES)
    expected = tr.prod(x.cpu())
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (2 << 20)) / total)
    try:
        result = tr.prod(x)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert_bitwise_equal(result.cpu(), expected)
