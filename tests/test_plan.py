"""The planner, a pure function of shapes and device facts: tested for a GPU where there is none."""

import itertools

import pytest
import torch
from cases import OURS

import torchreduce as tr
from torchreduce import _C
from torchreduce.testing import force_plan

NUMBERS = {torch.uint8: 0, torch.int8: 1, torch.int64: 4, torch.float16: 5, torch.float32: 6, torch.float64: 7,
           torch.bfloat16: 15}  # fmt: skip
MULTIPROCESSORS = 132
LEAF, TILE, BLOCK_TILE = 2048, 256, 8192


def plan(op, shape, dim, dtype=torch.float32, out=None, strides=None, aligned=True, gpu=True):
    strides = strides or torch.empty(shape, device="meta").stride()
    out = out or (torch.int64 if op in ("argmax", "argmin") else dtype)
    dim = list(range(len(shape))) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    return _C.plan(op, list(shape), list(strides), dim, NUMBERS[dtype], NUMBERS[out], aligned, gpu, MULTIPROCESSORS)


COLUMN_FAMILIES = ("wide_columns", "narrow_columns", "short_columns", "column_slices")
ROWS, LENGTHS = (1, 3, 32, 1000, 200_000), (1, 5, 8, 100, 2049, 70_001, 2**20 + 1)
SHAPES = [((rows, n), 1) for rows, n in itertools.product(ROWS, LENGTHS) if rows * n < 2**31]
SHAPES += [((n, rows), 0) for (rows, n), _ in SHAPES] + [((2**31 + 7,), 0), ((40, 30, 50), 1), ((40, 30, 50), (0, 2))]


def rows_and_length(shape, dim):
    dims = (dim,) if isinstance(dim, int) else dim
    length = 1
    for d in dims:
        length *= shape[d]
    return torch.Size(shape).numel() // length, length


@pytest.mark.parametrize("op, dtype", [("sum", torch.float32), ("mean", torch.bfloat16), ("amax", torch.int8),
                                       ("argmin", torch.float64), ("max", torch.float16)])  # fmt: skip
def test_reduction_plans_cover_the_rows(op, dtype):
    """As planned, and by each family that can serve the call."""
    for shape, dim in SHAPES:
        check_reduction_plans(op, dtype, shape, dim)


def check_reduction_plans(op, dtype, shape, dim):
    rows, n = rows_and_length(shape, dim)
    served = set()
    for forced in (None, *_C.reduce_families()):
        try:
            with force_plan(**({"family": forced} if forced else {})):
                p = plan(op, shape, dim, dtype)
        except ValueError as error:
            assert forced and str(error).startswith("force_plan: ")
            continue
        served.add(p["family"])
        assert forced in (None, p["family"]) and 0 < p["blocks"] < 2**31
        assert p["threads"] % 32 == 0 and 32 <= p["threads"] <= 1024 and p["shared"] <= 226 << 10
        meets_on_chip = p["splits"] == 1 or p["shape"].get("cluster", 1) > 1
        assert (p["workspace"] == 0) == (p["tickets"] == 0) == meets_on_chip
        if p["family"] in COLUMN_FAMILIES:  # test_plan_columns.py
            continue
        assert p["workspace"] <= rows * p["splits"] * 16 and p["tickets"] <= rows
        assert p["blocks"] * rows_of_a_block(p, op, dtype, n) >= rows
    assert {"strided", "columns"} <= served
    if dim == len(shape) - 1:  # neighbours
        assert p["splits"] >= 1 and "rows" in served


def rows_of_a_block(p, op, dtype, n):
    """Rows, or the part of one, that a block of the plan serves; what it has of a row is all of it if not split."""
    shape, leaves, warps = p["shape"], -(-n // LEAF), p["threads"] // 32
    if p["family"] == "packed_rows":
        ordered = op in ("sum", "mean") and dtype.is_floating_point  # then a lane has residues of each 256 elements
        assert shape["lanes"] * shape["span"] >= (min(n, 256) if ordered else n)
        return shape["rows"]
    if p["family"] == "few_rows":
        assert shape["units"] * 256 * 16 >= n * dtype.itemsize and p["splits"] * warps >= shape["units"]
        return 1 / p["splits"]
    if p["family"] == "rows":
        granules = -(-n * dtype.itemsize // 16)
        units = leaves if op in ("sum", "mean") and dtype.is_floating_point else -(-granules // 256)
        if shape["rows"] > 1:
            assert shape["lanes"] * 8 // shape["rows"] >= granules
            return warps * shape["rows"] * (32 // shape["lanes"])
        assert p["splits"] * shape["units"] >= units
        return warps if shape["rows"] else 1 / p["splits"]
    assert all(shape[field] & (shape[field] - 1) == 0 for field in shape if field != "window")
    if p["family"] == "strided":
        assert not shape["window"] or (shape["lanes"], shape["warps"], shape["granules"]) == (32, 1, 0)
        assert p["splits"] * shape["warps"] * shape["leaves"] >= leaves
        return p["threads"] // (shape["lanes"] * shape["warps"]) / p["splits"]
    assert p["family"] == "columns" and p["splits"] * shape["leaves"] >= leaves
    return p["threads"] // shape["lanes"] / p["splits"]


@pytest.mark.parametrize("dtype, out", [(torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16),
                                        (torch.int8, torch.int8), (torch.float16, torch.float64)])  # fmt: skip
def test_scan_plans_cover_the_rows_in_little_workspace(dtype, out):
    """As planned, and by each family that can serve the call."""
    for shape, dim in SHAPES:
        if isinstance(dim, int):
            check_scan_plans(dtype, out, shape, dim)


def check_scan_plans(dtype, out, shape, dim):
    rows, n = rows_and_length(shape, dim)
    served = set()
    for forced in (None, *_C.scan_families()):
        try:
            with force_plan(**({"family": forced} if forced else {})):
                p = plan("cumsum", shape, dim, dtype, out)
        except ValueError as error:
            assert forced and str(error).startswith(("force_plan: ", "the launch needs more than 2^31"))
            continue
        served.add(p["family"])
        assert forced in (None, p["family"]) and 0 < p["blocks"] < 2**31
        assert p["threads"] % 32 == 0 and 32 <= p["threads"] <= 1024
        assert p["workspace"] <= 64 * rows * -(-n // TILE) + 64
        covered(p, out, rows, n)
    assert {"rows", "chain", "column_tiles"} <= served


def covered(p, out, rows, n):
    """Blocks have all rows, and all positions of each."""
    family, shape, warps = p["family"], p["shape"], p["threads"] // 32
    if family == "chain":
        assert p["blocks"] == rows * shape["tiles"] and shape["tiles"] * BLOCK_TILE >= n
    elif family == "column_tiles":  # a tile a block, or several below each other
        assert shape["tiles"] == -(-n // TILE) and p["blocks"] >= -(-shape["tiles"] // shape["down"])
        assert p["blocks"] * shape["columns"] * shape["across"] * shape["down"] >= rows * shape["tiles"]
        assert (p["workspace"] > 0) == (shape["tiles"] > 1)
    elif family == "column_walk":
        assert p["workspace"] == 0 and n <= 2 * TILE and p["blocks"] * p["threads"] * shape["columns"] >= rows
    elif family == "short_columns":  # whole columns a block
        assert p["workspace"] == 0 and 8 * shape["lanes"] * shape["tiles"] >= n
        assert p["threads"] == shape["lanes"] * shape["across"] * shape["tiles"]
    elif family == "packed_rows":
        assert p["workspace"] == 0 and n < 8 and p["blocks"] * p["threads"] * 8 >= rows
    elif family == "short_rows" and n <= TILE:
        held = 2 if out in (torch.float64, torch.int64) else 4
        assert p["workspace"] == 0 and p["blocks"] * held * warps * (32 // shape["lanes"]) >= rows
        assert 8 * shape["lanes"] >= n
    elif family == "short_rows":
        assert p["workspace"] == 0 and shape["warps"] * shape["tiles"] * TILE >= n
        assert p["blocks"] * (warps // shape["warps"]) >= rows
    elif family == "rows":
        assert p["workspace"] == 0 and p["blocks"] * (p["threads"] // shape["lanes"]) >= rows


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32, torch.float64, torch.int8))
def test_rows_with_indices_have_pairs_of_lanes(dtype):
    """A warp takes several short rows, or walks one; few long ones are split into tiles of 32 KiB."""
    for n in (1, 2, 3, 60, 64, 65, 128, 129, 1000, 2048):
        p = plan("cummax", (1001, n), 1, dtype)
        assert (p["family"], p["workspace"]) == ("extreme_rows", 0)
        lanes = p["shape"]["lanes"]
        assert lanes & (lanes - 1) == 0 and (lanes == 32 or n <= 2 * lanes < 2 * max(n, 2))
        small = dtype.itemsize in (2, 4)  # others come as 8 bytes
        at_once = (4 if small else 2) if n <= 64 else 2 if n <= 128 and small else 1
        rows = p["threads"] // lanes * at_once
        assert p["shape"]["rows"] == at_once
        assert (p["blocks"] - 1) * rows < 1001 <= p["blocks"] * rows
    assert plan("cummax", (100_000, 8193), 1, dtype)["family"] == "extreme_rows"
    tile = (32 << 10) // (dtype.itemsize if dtype != torch.int8 else 8)
    for n in (tile - 15, tile - 14, 10 * tile):
        p = plan("cummax", (16, n), 1, dtype)
        splits = -(-(n + 15) // tile)  # wherever in a line of memory a row begins
        assert (p["family"], p["shape"]["tiles"]) == ("extreme_chain", splits)
        assert (p["blocks"], p["shared"]) == (16 * splits, 32 << 10)
    with force_plan(family="extreme_rows", lanes=1), pytest.raises(ValueError, match="lanes"):
        plan("cummax", (3, 3), 1, dtype)


def test_general_families_serve_where_the_others_are_not_compiled():
    for (shape, dim), op in itertools.product(SHAPES, ("sum", "amax", "argmax")):
        strides = torch.empty(shape, device="meta").stride()
        dims = [dim] if isinstance(dim, int) else list(dim)
        out = NUMBERS[torch.int64 if op == "argmax" else torch.float32]
        p = _C.plan(op, list(shape), list(strides), dims, NUMBERS[torch.float32], out, True, True, MULTIPROCESSORS,
                    wide_reductions=False)  # fmt: skip
        assert p["family"] in ("columns", "strided")


def test_lanes_go_where_the_stride_is_small():
    for op in ("sum", "amax", "argmax"):
        assert plan(op, (9000, 2000), 1)["family"] == "rows" and plan(op, (20, 2000), 1)["family"] == "few_rows"
        assert plan(op, (2000, 2000), 0)["family"] == "wide_columns"
        assert plan(op, (2000, 9000), 0, strides=(1, 2000))["family"] == "rows"
        assert plan(op, (9000, 2000), None)["family"] == "rows"
        assert plan(op, (2000, 2000), 1, strides=(6000, 3))["family"] == "strided"
        assert plan(op, (1000, 7), 1)["family"] == plan(op, (1000, 7), 1, strides=(9, 1))["family"] == "packed_rows"
        assert plan(op, (1000, 7), 1, strides=(90, 1))["shape"]["place"] > 0
    assert plan("cumsum", (1_000_000, 32), 1)["family"] == "short_rows"
    assert plan("cumsum", (2**24,), 0)["family"] == "chain"
    assert plan("cumsum", (32, 1_000_000), 0)["family"] == "column_walk"
    for shape, strides, dim in (((256, 2**20), (0, 1), 1), ((2**20, 256), (1, 0), 0)):  # where results have it
        assert plan("cumsum", shape, dim, strides=strides)["family"] == ("chain", "column_tiles")[dim == 0]
    assert plan("cumsum", (50, 4096, 300), 1, strides=(0, 300, 1))["family"] == "column_tiles"


def test_outer_scans_of_few_columns_are_split():
    """pytorch #122170: cumsum over dim 0 of (1M, 32) took 338 ms, one thread a column."""
    for width in (3, 32):
        p = plan("cumsum", (1_000_000, width), 0)
        assert p["family"] == "column_tiles" and p["shape"]["tiles"] == -(-1_000_000 // TILE) and p["blocks"] >= 100


@pytest.mark.parametrize("op", ("linear_scan", "cummax"))
def test_a_lane_walks_each_of_many_columns(op):
    """Strips of these are narrow: linear_scan of (8, 4096, 4096) took seven times a copy's time in them. There are
    tiles for them, with indices unless columns are short, of two inputs unless there are many."""
    longest, most = (4096, 65536) if op == "linear_scan" else (256, 16384)
    for dtype, columns in ((torch.float32, 1), (torch.bfloat16, 2), (torch.float16, 2), (torch.float64, 1)):
        for shape, dim in (((8, longest, most // 4), 1), ((longest, most), 0), ((200, 100_000), 0)):
            p = plan(op, shape, dim, dtype)
            assert p["family"] in ("column_walk", "column_teams")
            assert (p["shape"]["columns"], p["workspace"]) == (columns, 0)
            rows, _ = rows_and_length(shape, dim)
            each = 64 if p["family"] == "column_teams" else p["threads"] * columns
            assert (p["blocks"] - 1) * each < rows <= p["blocks"] * each
        for shape, dim in (((4096, 4096), 0), ((2**20, 8), 0), ((8, 1024, 500), 1)):  # too few columns
            assert plan(op, shape, dim, dtype)["family"] in ("column_tiles", "extreme_columns")
        assert plan(op, (32, 100_000), 0, dtype)["family"] == "column_walk"
        assert plan(op, (100_000, 300), 1, dtype)["family"] != "column_walk"
    for shape, aligned in (((200, 100_001), True), ((200, 100_000), False)):  # two columns are not one word
        p = plan(op, shape, 0, torch.bfloat16, aligned=aligned)
        assert p["family"] == "column_walk" and p["shape"]["columns"] == 1
    assert plan(op, (200, 100_001), 0)["family"] == "column_walk"
    with force_plan(family="column_walk"):
        assert plan(op, (300, 3), 0)["family"] == plan(op, (3, 300), 1)["family"] == "column_walk"
        for refused in ((op, (300, 3), 0, torch.int64), ("cumsum", (600, 3), 0)):
            with pytest.raises(ValueError, match="walk"):
                plan(*refused)


@pytest.mark.parametrize("dtype, vector", [(torch.float32, 1), (torch.bfloat16, 2), (torch.float16, 2)])
def test_long_columns_with_indices_are_taken_tile_by_tile(dtype, vector):
    """A warp has 32 rows of as many columns as it has lanes, or of fewer as many rows more."""
    for width, aligned in ((7, True), (16, True), (16, False), (64, True), (100, True), (16_384, True)):
        p = plan("cummax", (50_000, width), 0, dtype, aligned=aligned)
        words = vector if width % vector == 0 and aligned else 1
        strips, shape = -(-width // (32 * words)), p["shape"]
        assert (p["family"], shape["columns"], p["threads"]) == ("extreme_columns", words, 256)
        assert 0 <= strips * shape["across"] * words - width < strips * words * (1 if strips == 1 else 8)
        assert strips == 1 or shape["across"] % 8 == 0
        assert shape["tiles"] == -(-50_000 // (32 * 8 * (32 // shape["across"])))
        assert p["blocks"] == strips * shape["tiles"] and p["workspace"] >= 8 * width * shape["tiles"]
    with force_plan(vector_loads=False):
        assert plan("cummin", (50_000, 64), 0, dtype)["shape"]["columns"] == 1
    assert plan("cummax", (256, 64), 0, dtype)["family"] == "short_columns"
    assert plan("cummax", (50_000, 8), 0, torch.float64)["family"] == "column_tiles"  # of any type


@pytest.mark.parametrize("op", ("cumsum", "cumprod", "logcumsumexp"))
def test_long_rows_go_through_the_pipeline_where_there_are_bulk_copies(op):
    numbers = NUMBERS[torch.bfloat16], NUMBERS[torch.bfloat16]
    for sizes, strides in (((2**22,), (1,)), ((3, 100_001), (100_001, 1)), ((3, 100_001), (100_008, 1))):
        for aligned in (False, True):
            call = (op, sizes, strides, [len(sizes) - 1], *numbers, aligned, True, MULTIPROCESSORS)
            piped = _C.plan(*call, True)
            assert piped["family"] == "ring" and _C.plan(*call, False)["family"] == "chain"
            assert piped["shape"]["granules"] == (aligned and len(sizes) == 1)
    assert _C.plan(op, (2**20,), (2,), [0], *numbers, True, True, MULTIPROCESSORS, True)["family"] == "chain"


def test_block_tiles_that_have_a_multiprocessor_each_go_through_chains():
    """Where they are copied 16 bytes at a time and have accumulators of 4 bytes."""
    most = MULTIPROCESSORS * 8192
    for op, sizes, aligned, family in (
        ("cumsum", (most,), True, "chain"), ("cumsum", (most + 1,), True, "ring"),
        ("cumsum", (most,), False, "ring"), ("cumsum", (1_000_003,), True, "chain"),
        ("cumsum", (8, 32_000), True, "chain"), ("cumsum", (8, 32_001), True, "ring"),
        ("cumprod", (2**14,), True, "ring"), ("cummax", (2**14,), True, "extreme_chain"),
    ):  # fmt: skip
        strides = [sizes[-1], 1][-len(sizes) :]
        numbers = NUMBERS[torch.float32], NUMBERS[torch.float32]
        call = (op, sizes, strides, [len(sizes) - 1], *numbers, aligned, True, MULTIPROCESSORS)
        assert _C.plan(*call, True)["family"] == family, (op, sizes, aligned)


def test_few_block_tiles_of_a_chain_are_a_cluster():
    """Which needs no workspace, and so no launch that clears it."""
    numbers = NUMBERS[torch.float32], NUMBERS[torch.float32]
    for rows, n, cluster in ((1, 8193, 2), (1, 2**16, 8), (1, 2**16 + 4, 1), (16, 2**16, 8), (17, 2**16, 1)):
        call = ("cumsum", (rows, n), (2**17, 1), [1], *numbers, True, True, MULTIPROCESSORS, True)
        with force_plan(family="chain"):
            for clusters in (False, True):
                p = _C.plan(*call, clusters=clusters)
                assert p["shape"]["cluster"] == (cluster if clusters else 1), (rows, n)
                assert (p["workspace"] == 0) == (p["shape"]["cluster"] > 1)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16, torch.float32))
def test_few_long_rows_with_indices_are_cut_into_tiles(dtype):
    """Ones that are longer than a warp walks, in tiles of 32 KiB, on any GPU."""
    tile = (32 << 10) // dtype.itemsize
    for shape in ((2**28,), (2**20,), (16, 2049), (16, 2**24 + 1)):
        for bulk_copies in (False, True):
            strides, numbers = [shape[-1], 1][-len(shape) :], (NUMBERS[dtype], NUMBERS[dtype])
            p = _C.plan("cummax", shape, strides, [len(shape) - 1], *numbers, False, True, MULTIPROCESSORS, bulk_copies)
            splits = -(-(shape[-1] + 15) // tile)
            assert (p["family"], p["shape"]["tiles"], p["threads"]) == ("extreme_chain", splits, 256)
            assert p["workspace"] > 0 and p["blocks"] == splits * (shape[0] if len(shape) == 2 else 1)
    for shape in ((16, 2048), (5341, 50257), (100_000, 8192), (5341, 1001)):
        assert plan("cummax", shape, 1, dtype)["family"] == "extreme_rows"


def test_plans_of_columns_depend_on_exclusive_and_reverse():
    """Runs of 16 bytes are read from either end, and exclusive results lie a row further on. Up to 7 columns may begin
    anywhere."""
    for shape, exclusive, reverse, family in (
        ((70_001, 3), False, False, "ring_columns"), ((70_001, 3), True, True, "ring_columns"),
        ((70_001, 7), True, False, "ring_columns"), ((70_001, 7), False, True, "ring_columns"),
        ((70_001, 9), False, False, "column_tiles"), ((70_001, 12), True, True, "column_tiles"),
    ):  # fmt: skip
        call = ("cumsum", shape, (shape[1], 1), [0], 6, 6, True, True, MULTIPROCESSORS, True)
        assert _C.plan(*call, exclusive=exclusive, reverse=reverse)["family"] == family, (shape, exclusive, reverse)
    for op in ("cummax", "linear_scan"):
        for reverse in (False, True):
            call = (op, (300, 7), (7, 1), [1], 6, 6, True, True, MULTIPROCESSORS)
            assert _C.plan(*call, reverse=reverse)["family"] == ("extreme_rows" if op == "cummax" else "row_pairs")
    for shape in ((0, 3), (3, 0), (1, 3), ()):  # nothing to turn round
        strides = torch.empty(shape, device="meta").stride()
        for reverse in (False, True):
            _C.plan("cumsum", shape, strides, [0][: len(shape)], 6, 6, True, True, MULTIPROCESSORS, reverse=reverse)


def test_linear_scan_of_long_rows_goes_through_the_pipeline_where_rows_are_aligned():
    for dtype, aligned_length in ((torch.float32, 70_004), (torch.bfloat16, 70_008), (torch.float16, 70_008)):
        for family, sizes, strides, aligned in (
            ("ring_pairs", (2**20 + 3,), (1,), True), ("chain", (2**20 + 3,), (1,), False),
            ("chain", (2**20,), (2,), True), ("ring_pairs", (3, aligned_length), (aligned_length, 1), True),
            ("chain", (3, 70_003), (70_003, 1), True), ("row_pairs", (3, BLOCK_TILE), (BLOCK_TILE, 1), True),
            ("rows", (5000, 2**14), (2**14, 1), True),
        ):  # fmt: skip
            call = ("linear_scan", sizes, strides, [len(sizes) - 1], NUMBERS[dtype], NUMBERS[dtype], aligned, True,
                    MULTIPROCESSORS)  # fmt: skip
            assert _C.plan(*call, True)["family"] == family
            assert _C.plan(*call, False)["family"] == (family if "row" in family else "chain")
    double = NUMBERS[torch.float64]
    assert _C.plan("linear_scan", (2**20,), (1,), [0], double, double, True, True, 132, True)["family"] == "chain"


@pytest.mark.parametrize("op, dtype, size", [("cumprod", torch.bfloat16, 2), ("cumprod", torch.float32, 4),
                                             ("cumsum", torch.float64, 8), ("cumprod", torch.int8, 8)])  # fmt: skip
def test_block_tiles_of_chains_lie_in_shared_memory_if_it_is_there(op, dtype, size):
    numbers = NUMBERS[dtype], NUMBERS[torch.int64 if dtype == torch.int8 else dtype]
    for aligned, bulk_copies in itertools.product((False, True), repeat=2):
        with force_plan(family="chain"):
            p = _C.plan(op, (2**20,), (1,), [0], *numbers, aligned, True, MULTIPROCESSORS, bulk_copies)
        room = (227 if bulk_copies else 48) << 10
        assert p["family"] == "chain" and p["shared"] == (size * BLOCK_TILE if size * BLOCK_TILE < room else 0)


def test_few_long_rows_are_split():
    """vLLM 49367: one program per row starves the GPU."""
    for shape, dim in (((2, 2**24), 1), ((2**24, 2), 0)):
        p = plan("sum", shape, dim)
        assert p["splits"] > 1 and p["blocks"] >= MULTIPROCESSORS


def test_small_rows_are_one_blocks():
    """Up to two leaves for each warp a block is faster than blocks that meet in device memory."""
    for n, splits in ((1025, False), (32767, False), (32769, True), (2**20 + 1, True)):
        p = plan("sum", (n,), 0)
        assert (p["splits"] > 1) == splits and p["family"] == "rows"
        assert p["blocks"] == p["splits"]
    for n, splits in ((1024, False), (8192, False), (16384, True), (2**20, True)):  # of whole granules
        p = plan("sum", (n,), 0)
        assert (p["splits"] > 1) == splits and p["family"] == "few_rows"
        assert p["blocks"] == p["splits"]


def test_rows_start_anywhere_but_their_elements_are_neighbours():
    assert plan("sum", (100, 4096), 1)["family"] == "few_rows"
    assert plan("sum", (100, 4096), 1, aligned=False)["family"] == "rows"
    assert plan("sum", (100, 4097), 1)["family"] == "rows"
    assert plan("sum", (100, 4096), 1, strides=(8192, 2))["family"] == "strided"
    assert plan("sum", (100, 4096), 1, out=torch.float64)["family"] == "strided"  # any type, converted one by one
    assert plan("sum", (100, 4096), 1, torch.bfloat16, torch.float32)["family"] == "few_rows"  # their own accumulator
    for length in (70_000, 70_001):
        assert plan("cumsum", (3, length), 1)["shape"]["granules"] == (length % 4 == 0)


def test_dims_of_one_pattern_are_folded():
    """A contiguous tensor reduced over its last dims is rows; its shape does not matter."""
    expected = plan("sum", (60, 3000), 1)
    assert plan("sum", (5, 12, 30, 100), (2, 3)) == expected
    assert plan("sum", (60, 1, 3000, 1), (1, 2)) == expected


def test_cpu_plans_need_no_workspace():
    for (shape, dim), op in itertools.product(SHAPES, ("sum", "argmax", "cumsum")):
        if isinstance(dim, int) or op != "cumsum":
            p = plan(op, shape, dim, gpu=False)
            assert p["workspace"] == 0 and p["family"] in ("rows", "columns")


def test_forced_fields_are_kept():
    with force_plan(family="strided", lanes=32, warps=4, leaves=2, vector_loads=False):
        assert _C.forced_plan() == {"family": "strided", "lanes": 32, "warps": 4, "leaves": 2, "vector_loads": 0}
        p = plan("sum", (3, 100_000), 1)
        assert (p["family"], p["shape"]) == (
            "strided",
            {"lanes": 32, "warps": 4, "leaves": 2, "granules": 0, "window": 0},
        )
    assert _C.forced_plan() == {}
    with force_plan(family="columns", lanes=8):
        p = plan("sum", (3, 100_000), 1)
        assert (p["family"], p["shape"]["lanes"]) == ("columns", 8)
    with force_plan(family="rows", rows=0, leaves=4, warps=2):
        p = plan("sum", (3, 100_000), 1)
        assert (p["family"], p["threads"], p["shape"]["rows"], p["shape"]["units"]) == ("rows", 64, 0, 4)
    with pytest.raises(KeyError), force_plan(family="rows"):
        raise KeyError
    assert _C.forced_plan() == {}


@pytest.mark.parametrize("forced", [{"lanes": 3}, {"lanes": 512}, {"lanes": 2}, {"warps": 64}, {"leaves": 5}])
def test_what_cannot_serve_a_case_is_refused(forced):
    (field,) = forced
    with force_plan(family="strided", **forced), pytest.raises(ValueError, match=f"{field}|lanes"):
        plan("sum", (3, 100_000), 1)
    with force_plan(family="rows", rows=8), pytest.raises(ValueError, match="rows"):
        plan("sum", (3, 100_000), 1)
    with force_plan(family="packed_rows"), pytest.raises(ValueError, match="packed_rows"):
        plan("sum", (3, 100_000), 1)


def test_unknown_fields_and_families_are_refused():
    with pytest.raises(ValueError, match="diagonal"), force_plan(family="diagonal"):
        pass
    with pytest.raises((TypeError, ValueError)), force_plan(colour=1):
        pass
    with force_plan(family="chain"), pytest.raises(ValueError, match="reductions"):
        plan("sum", (3, 100), 1)
    assert _C.forced_plan() == {}


def test_explain_is_the_plan(device):
    wide = torch.ones(300, 5000, device=device)
    facts = _C.gpu_facts(0) if device == "cuda" else {"multiprocessors": torch.get_num_threads()}
    narrow = torch.ones(70_001, 3, device=device)
    for name, x, dim, out, options in (
        ("sum", wide, 1, 6, {}), ("sum", wide, 0, 6, {}), ("argmax", wide, -1, 4, {}), ("max", wide, 0, 6, {}),
        ("cumsum", wide, 1, 6, {}), ("cumsum", narrow, 0, 6, {}), ("cumsum", narrow, 0, 6, {"exclusive": True}),
        ("cumsum", narrow, 0, 6, {"reverse": True}), ("cummax", narrow, 0, 6, {"reverse": True}),
    ):  # fmt: skip
        p = tr.explain(name, x, dim=dim, **options)
        call = (name, x.shape, x.stride(), [dim % 2], 6, out, x.data_ptr() % 16 == 0, device == "cuda")
        expected = _C.plan(*call, **facts, **options)
        assert {field: getattr(p, field) for field in expected} == expected
        assert name in str(p) and p.family in str(p) and str(p.blocks) in str(p)
    x = wide
    across, along = ("columns", "rows") if device == "cpu" else ("wide_columns", "few_rows")
    assert tr.explain("sum", x, dim=0).family == across and tr.explain("argmax", x, axis=1).family == along
    rows = ("rows", "strided")  # the latter where elements are converted
    assert tr.explain("max", x).family == along and tr.explain("mean", x.int(), dtype=torch.float64).family in rows
    with pytest.raises(ValueError, match="median"):
        tr.explain("median", x)
    with pytest.raises(IndexError):
        tr.explain("sum", x, dim=7)


ROWWISE = ("softmax", "log_softmax", "logsumexp", "entropy", "var", "std", "var_mean", "std_mean")


def test_explain_of_rows_that_are_looked_at_twice(device):
    x = torch.ones(300, 1000, device=device)
    along = "rows" if device == "cpu" else "held_rows"
    for name in ROWWISE:
        rows, columns = tr.explain(name, x, 1), tr.explain(name, x, -2)
        assert (rows.family, rows.kind) == (along, "row-wise op")
        assert columns.family in (("columns",) if device == "cpu" else ("held_columns", "wide_columns", "columns"))
        assert name in str(rows) and rows.family in str(rows) and str(rows.blocks) in str(rows)
    for name, shape in (
        ("rms_norm", 1000),
        ("layer_norm", (1000,)),
        ("layer_norm", (300, 1000)),
        ("cross_entropy", None),
    ):
        assert tr.explain(name, x, shape).family in (along, "split_rows")
    assert tr.explain("cross_entropy", x[0]).family in (along, "split_rows")
    with force_plan(family="columns" if device == "cpu" else "strided"):
        assert tr.explain("softmax", x, 1).family == ("columns" if device == "cpu" else "strided")


@pytest.mark.parametrize("name", [*ROWWISE, "rms_norm", "layer_norm", "cross_entropy"])
def test_rowwise_plans_are_of_a_family_that_is_told_of(name):
    """Of a GPU that is not here: every op along rows and across them, of every type."""
    op = "moments" if name.startswith(("var", "std")) else name
    told = _C.rowwise_families()
    for dtype, (shape, dim) in itertools.product(
        (torch.float32, torch.bfloat16, torch.float64),
        (((64, 300), 1), ((64, 151936), 1), ((300, 4096), 0), ((5, 7, 9), 1)),
    ):
        facts = {"bulk_copies": True, "shared": 227 << 10}
        strides = list(torch.empty(shape, device="meta").stride())
        call = (op, list(shape), strides, [dim], NUMBERS[dtype], NUMBERS[dtype], True, True, MULTIPROCESSORS)
        p = _C.plan(*call, **facts)
        assert p["family"] in told and p["blocks"] > 0 and p["shape"], (dtype, shape, dim)
        rows = torch.Size(shape).numel() // shape[dim]
        assert p["blocks"] >= (rows * p["splits"] if p["family"] == "split_rows" else 1)


def test_explain_raises_what_the_call_does():
    x = torch.ones(4, 5)
    for name, input, args, options in (
        ("cumsum", x, (), {}), ("cumsum", x, ((0, 1),), {}), ("cumsum", x, (0,), {"keepdim": True}),
        ("cummax", x, (0,), {"exclusive": True}), ("sum", x, (0,), {"exclusive": True}),
        ("sum", x, (0,), {"reverse": True}), ("argmax", x, (0,), {"dtype": torch.float32}),
        ("mean", x.int(), (0,), {}), ("mean", x, (0,), {"dtype": torch.int64}), ("logcumsumexp", x.int(), (0,), {}),
        ("cumprod", x, (0,), {"dtype": torch.bool}), ("sum", x, (0, 1), {}), ("sum", x, (0,), {"axis": 0}),
        ("amax", x[:0], (0,), {}), ("sum", x.to_sparse(), (0,), {}), ("sum", [1.0], (0,), {}), ("sum", x, (2,), {}),
    ):  # fmt: skip
        with pytest.raises(Exception) as expected:
            getattr(OURS, name)(input, *args, **options)
        with pytest.raises(expected.type) as raised:
            tr.explain(name, input, *args, **options)
        assert str(raised.value) == str(expected.value)
    for name, input, args, options in (
        ("softmax", x, (2,), {}), ("softmax", x, (0,), {"keepdim": True}), ("var", x.int(), (0,), {}),
        ("softmax", x, (0,), {"dtype": torch.int32}), ("logsumexp", [1.0], (0,), {}), ("entropy", x, (), {}),
        ("layer_norm", x, (4,), {}), ("rms_norm", x, ((5, 4),), {}), ("log_softmax", x.to_sparse(), (0,), {}),
        ("std", x, ((0, 0),), {}), ("var_mean", x, (0,), {"reverse": True}),
    ):  # fmt: skip
        with pytest.raises(Exception) as expected:
            getattr(OURS, name)(input, *(args or (None,)), **options)
        with pytest.raises(expected.type) as raised:
            tr.explain(name, input, *args, **options)
        assert str(raised.value) == str(expected.value)
    with pytest.raises(TypeError, match="dim"):
        tr.explain("cross_entropy", x, 1)
    with pytest.raises(ValueError, match="linear_scan"):
        tr.explain("linear_scan", x, 0)
    assert tr.explain("cumsum", x, axis=0).family == tr.explain("cumsum", x, 0).family


def test_explain_plans_meta_tensors_for_the_cpu():
    x = torch.ones(4, 5)
    for name in ("sum", "cumsum", "softmax"):
        p, real = tr.explain(name, x.to("meta"), 0), tr.explain(name, x, 0)
        assert p.device == "cpu" and str(p).splitlines()[1:] == str(real).splitlines()[1:]


def test_explain_passes_exclusive_and_reverse_on(monkeypatch):
    """Plans of the CPU do not depend on them, so the planner is told of a GPU here."""
    plan = _C.plan

    def of_a_gpu(*args, **facts):
        return plan(*args[:7], True, **{**facts, "multiprocessors": 132, "bulk_copies": True, "shared": 227 << 10})

    monkeypatch.setattr(_C, "plan", of_a_gpu)
    x = torch.ones(1001)
    for options in ({}, {"exclusive": True}, {"reverse": True}):
        p = tr.explain("cumsum", x, 0, **options)
        assert p.family == "short_rows" and p.shape["granules"] == ("reverse" not in options)
        assert all(f"{option}=True" in str(p) for option in options)


def test_build_info():
    info = _C.build_info()
    assert info["version"] == tr.__version__ and info["compiler"] and info["flags"]
    assert "fast-math" not in info["flags"].replace("no-fast-math", "")
    built = bool(info["cuda"] or info["hip"])
    assert bool(info["archs"]) == built and (info["kernels"] > 0) == built
    assert _C.instruction_set() in _C.instruction_sets() and not _C.set_instruction_set("mmx")


def test_lanes_of_a_cpu_go_where_most_operands_have_neighbours():
    """Of ops with an element of the result for each of the input: of two operands, one is enough for columns."""
    x = torch.randn(2, 21, 8, 8)
    last = x.contiguous(memory_format=torch.channels_last)
    for op in ("softmax", "log_softmax", "cumsum", "cumprod", "cummax"):
        assert tr.explain(op, x, 1).family == tr.explain(op, last, 1).family == "columns", op
        assert tr.explain(op, x, 3).family == "rows", op
    for op in ("sum", "logsumexp", "argmax"):  # of a result a row
        assert (tr.explain(op, x, 1).family, tr.explain(op, last, 1).family) == ("columns", "rows"), op
