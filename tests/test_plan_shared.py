"""Plans ask for no more shared memory than the device has."""

import itertools

import pytest
import torch

from torchreduce import _C
from torchreduce.table import OPS
from torchreduce.testing import force_plan

NUMBERS = {torch.uint8: 0, torch.int8: 1, torch.int64: 4, torch.float16: 5, torch.float32: 6, torch.float64: 7,
           torch.bfloat16: 15}  # fmt: skip
FLOATS = {torch.float16, torch.float32, torch.float64, torch.bfloat16}
# Bytes a block. WORKSTATION: of the GPUs after Hopper that are no server's. DECLARED: not in the plan.
PORTABLE, WORKSTATION, HOPPER, DECLARED = 48 << 10, 99 << 10, 227 << 10, 1 << 10
DECLARED_BY_REDUCTIONS = 5 << 10  # at most


def column_plan(op, length, width, dtype, aligned, shared):
    out = dtype if dtype in FLOATS or op in ("cummax", "cummin") else torch.int64
    numbers = (NUMBERS[dtype], NUMBERS[out])
    bulk_copies = shared > PORTABLE
    return _C.plan(op, [length, width], [width, 1], [0], *numbers, aligned, True, 132, bulk_copies, shared)


SCANS = [op.name for op in OPS if op.kind == "scan"]


@pytest.mark.parametrize(
    "op, dtype", [(op, dtype) for op in SCANS for dtype in NUMBERS if op != "logcumsumexp" or dtype in FLOATS]
)
def test_columns_fit_the_shared_memory(op, dtype):
    lengths, widths = (1, 7, 8, 20, 100, 256, 300, 5000, 8193, 100_000), (33, 64, 128, 160, 1000, 4096)
    for length, width, aligned in itertools.product(lengths, widths, (True, False)):
        for most in (PORTABLE, WORKSTATION, HOPPER):
            plan = column_plan(op, length, width, dtype, aligned, most)
            if plan["family"] == "column_tiles":
                threads = 128 if op == "cumsum" and dtype in (torch.float64, torch.int64) else 256
                assert plan["shared"] == 0 < plan["workspace"] and plan["threads"] == threads  # all is declared
            elif plan["family"] == "column_strips":
                assert plan["threads"] == 1024 and plan["workspace"] > 0
            elif plan["family"] == "ragged_columns":  # the other threads form carries, and put jobs
                assert plan["threads"] - 512 in (128, 160) and plan["workspace"] > 0
                assert 0 < plan["shared"] <= most - DECLARED, (length, width, aligned, plan)
            elif plan["family"] == "short_columns":
                shape = plan["shape"]
                assert 0 < plan["shared"] <= most - DECLARED, (length, width, aligned, plan)
                assert (
                    plan["threads"] == shape["across"] * shape["lanes"] * shape["tiles"] and plan["threads"] % 32 == 0
                )
                assert 32 <= plan["threads"] <= (512 if most == HOPPER else 256) and plan["workspace"] == 0
            else:
                assert length == 1 or plan["family"] in ("extreme_columns", "column_walk", "column_teams")


# (bytes a block, bulk copies, code for large blocks). Code for Hopper has large blocks, also where the driver compiles
# it for a workstation's GPU, with 99 KiB.
DEVICES = [(kib << 10, bulk_copies, False) for kib in (48, 64, 99, 163, 227) for bulk_copies in (False, True)]
DEVICES += [(kib << 10, True, True) for kib in (99, 163, 227)]
ALL_OPS = [op.name for op in OPS] + ["linear_scan", "decayed_sum"]
EVERY_SHAPE = [
    (n, width) for n in (1, 7, 33, 257, 2049, 8193, 16_384, 70_001, 10**6) for width in (1, 3, 8, 12, 33, 128, 4096)
]


def takes(plan):
    """The most bytes a block, with what the kernel declares."""
    return plan["shared"] + plan.get("declared", DECLARED_BY_REDUCTIONS)


def any_plan(op, shape, dim, dtype, aligned, device, **options):
    shared, bulk_copies, large_blocks = device
    kind = next((row.kind for row in OPS if row.name == op), "scan")
    own = dtype in FLOATS or kind == "reduction" or op in ("cummax", "cummin")
    numbers = NUMBERS[dtype], NUMBERS[dtype if own else torch.int64]
    strides = [shape[1], 1]
    return _C.plan(op, shape, strides, [dim], *numbers, aligned, True, 170, bulk_copies, shared,
                   large_blocks=large_blocks, **options)  # fmt: skip


def types_of(op):
    integers = op not in ("logcumsumexp", "linear_scan", "decayed_sum")
    return [dtype for dtype in NUMBERS if integers or dtype in FLOATS]


@pytest.mark.parametrize("op", ALL_OPS)
def test_plans_fit_every_device(op):
    """Whatever is chosen, wherever the code and the room for it come from different GPUs."""
    cases = itertools.product(EVERY_SHAPE, (0, 1), types_of(op), (True, False), DEVICES)
    for shape, dim, dtype, aligned, device in cases:
        plan = any_plan(op, list(shape), dim, dtype, aligned, device)
        assert takes(plan) <= device[0], (shape, dim, dtype, aligned, device, plan)
        if not device[1] and "declared" in plan:  # scans without bulk copies ask for no more than every GPU has
            assert takes(plan) <= PORTABLE, (shape, dim, dtype, aligned, device, plan)


def test_columns_of_three_float64_inputs_fit_a_workstation_by_code_for_hopper():
    """The driver compiles it there from the PTX for 9.0: blocks are large, and have 101,376 bytes."""
    plan = any_plan("decayed_sum", [256, 8], 0, torch.float64, True, (WORKSTATION, True, True))
    assert plan["family"] == "short_columns" and 48 << 10 < takes(plan) <= WORKSTATION


@pytest.mark.parametrize("family", _C.scan_families())
def test_forced_plans_fit_or_are_refused(family):
    served = 0
    with force_plan(family=family):
        for op, shape, dim, device in itertools.product(
            ALL_OPS, ([10**6, 8], [300, 4096], [3, 70_001], [9000, 3], [1000, 133]), (0, 1), DEVICES
        ):
            for dtype in types_of(op):
                try:
                    plan = any_plan(op, shape, dim, dtype, True, device)
                except ValueError:
                    continue
                served += 1
                assert plan["family"] == family and takes(plan) <= device[0], (op, shape, dim, dtype, device, plan)
    assert served > 2


def test_a_plan_that_no_block_has_room_for_is_refused():
    """Code for large blocks on a device that has room for no block at all: one line says what is missing."""
    with pytest.raises(ValueError, match=r"needs \d+ bytes of shared memory a block, the device has 49152"):
        any_plan("decayed_sum", [256, 8], 0, torch.float64, True, (48 << 10, True, True))


def test_what_is_known_of_a_gpu_is_what_plans_are_made_of():
    facts = _C.gpu_facts(0)
    assert set(facts) == {"multiprocessors", "bulk_copies", "shared", "large_blocks", "wide_reductions", "clusters"}
    _C.plan("sum", [3, 5], [5, 1], [1], 6, 6, True, True, **facts)


def test_blocks_that_share_their_memory_hold_a_row_together():
    call = ("softmax", [64, 65536], [65536, 1], [1], 15, 15, True, True, 132, True)
    cluster = [_C.plan(*call, clusters=there)["shape"]["cluster"] for there in (False, True)]
    assert cluster[0] == 1 < cluster[1] <= 8


def test_blocks_of_columns_are_larger_where_there_is_room():
    small, large = (column_plan("cumprod", 256, 4096, torch.float32, True, shared) for shared in (PORTABLE, HOPPER))
    assert large["threads"] > small["threads"] >= 32 and small["family"] == large["family"] == "short_columns"


def test_strips_that_blocks_share_go_through_a_pipeline_of_their_own():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        size = torch.finfo(dtype).bits // 8
        for length, bytes_wide, strip in (
            (2**20, 32, 32), (2**20, 64, 64), (2**20, 128, 128), (2**20, 4096, 128), (289, 132 * 128, 128),
            (5000, 14 * 128, 128), (5000, 33 * 128 - 16, 128),
        ):  # fmt: skip
            plan = column_plan("cumsum", length, bytes_wide // size, dtype, True, HOPPER)
            tiles = -(-length // 256)
            assert plan["family"] == "column_strips" and plan["threads"] == 1024, plan
            assert plan["shape"] == {"bytes": strip, "down": 128 // strip, "tiles": tiles}
            jobs = -(-bytes_wide // strip) * -(-tiles // (128 // strip))
            assert plan["blocks"] == 132 <= jobs / 2
            assert plan["workspace"] <= 64 * (bytes_wide // size) * tiles + 16  # bytes a tile of 256
        for op, length, width, aligned, shared in (
            ("cumprod", 2**20, 128 // size, True, HOPPER), ("cumsum", 256, 128 // size, True, HOPPER),
            ("cumsum", 2**20, 128 // size, False, HOPPER), ("cumsum", 2**20, 128 // size, True, WORKSTATION),
            ("cumsum", 2**20, 160 // size, True, HOPPER), ("cumsum", 2**20, 48 // size, True, HOPPER),
            ("cumsum", 5000, 13 * 128 // size, True, HOPPER),
        ):  # fmt: skip
            plan = column_plan(op, length, width, dtype, aligned, shared)
            assert plan["family"] != "column_strips", (op, length, width, dtype, plan)


def test_two_to_seven_columns_go_through_the_pipeline_side_by_side():
    """Wherever in memory they begin."""
    types = (torch.float32, torch.bfloat16, torch.float16)
    for width, dtype, aligned in itertools.product(range(2, 8), types, (True, False)):
        plan = column_plan("cumsum", 2**20 + 1, width, dtype, aligned, HOPPER)
        assert plan["family"] == "ring_columns" and plan["shape"]["columns"] == width and plan["blocks"] == 132
        parts = plan["shape"]["parts"]
        part = -(-(2**20) // (parts - 1))  # of a block tile
        assert 8192 % part == 0 and parts == 2**20 // part + 1
        assert plan["workspace"] >= 8 * width * 2**20 // part
        assert plan["threads"] % 32 == 0 and plan["threads"] <= 1024
    for width, length in ((2, 513), (4, 8192), (7, 70_001)):
        assert column_plan("cumsum", length, width, torch.bfloat16, True, HOPPER)["family"] == "ring_columns"
    for op, length, width, dtype, aligned, shared in (
        ("cumsum", 512, 2, torch.float32, True, HOPPER), ("cumsum", 8192, 7, torch.float32, True, HOPPER),
        ("cumsum", 2**20, 8, torch.float32, True, HOPPER),
        ("cumsum", 2**20, 2, torch.float64, True, HOPPER),
        ("cumsum", 2**20, 2, torch.float32, True, WORKSTATION), ("cumsum", 2**20, 2, torch.float32, True, PORTABLE),
        ("cumprod", 2**20, 2, torch.float32, True, HOPPER), ("cumsum", 2**20, 2, torch.int64, True, HOPPER),
    ):  # fmt: skip
        assert column_plan(op, length, width, dtype, aligned, shared)["family"] != "ring_columns"


def test_columns_whose_rows_start_anywhere_are_copied_in_granules_where_there_is_room():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        size = torch.finfo(dtype).bits // 8
        for length, width in ((50257, 5341), (1000, 133), (257, 163), (2**20, 165), (700, 100_001)):
            plan = column_plan("cumsum", length, width, dtype, True, HOPPER)
            assert plan["family"] == "ragged_columns" and plan["shape"]["tiles"] == -(-length // 256), (width, plan)
            side = plan["shape"]["words"]
            words = -(-width * size // 4)
            if size == 4 and words > 1792:  # whole sectors and room for one more
                assert side % 8 == 0 and 32 < side <= 56, (width, plan)
            else:
                assert side <= 32, (width, plan)
            assert plan["blocks"] == min(132, -(-words // side) * -(-length // 256))
            assert plan["shared"] <= HOPPER - DECLARED
        assert (
            column_plan("cumsum", 50257, 5344, dtype, False, HOPPER)["family"] == "ragged_columns"
        )  # the first element is misaligned
    assert column_plan("cumsum", 1000, 5342, torch.float32, True, HOPPER)["family"] == "ragged_columns"
    assert column_plan("cumsum", 1000, 5342, torch.bfloat16, True, HOPPER)["family"] == "column_tiles"  # words
    for case in (
        ("cumsum", 50257, 5344, torch.float32, True, HOPPER), ("cumsum", 50257, 31, torch.bfloat16, True, HOPPER),
        ("cumsum", 256, 5341, torch.float32, True, HOPPER), ("cumsum", 50257, 5341, torch.float64, True, HOPPER),
        ("cumprod", 50257, 5341, torch.float32, True, HOPPER),
        ("cumsum", 50257, 5341, torch.float32, True, WORKSTATION),
    ):  # fmt: skip
        assert column_plan(*case)["family"] != "ragged_columns", case


def test_columns_of_large_accumulators_are_taken_tile_by_tile():
    for op, dtype in itertools.product(("cumprod", "logcumsumexp"), (torch.float32, torch.bfloat16, torch.float16)):
        words = 4 // dtype.itemsize
        for length, width, aligned in (
            (257, 64, True), (2**24, 16, True), (2**20, 7, False), (50257, 5341, True), (1024, 2**18, True),
        ):  # fmt: skip
            for shared in (PORTABLE, HOPPER):
                plan = column_plan(op, length, width, dtype, aligned, shared)
                vector = words if aligned and width % words == 0 else 1
                assert plan["family"] == "column_tiles" and plan["threads"] == 256, plan
                across, down, tiles = (plan["shape"][field] for field in ("across", "down", "tiles"))
                strips = -(-width // (across * vector))
                assert plan["shape"]["columns"] == vector and (strips == 1 or across % 8 == 0)
                assert across * down <= 32 < 2 * across * down and tiles == -(-length // 256)
                assert plan["blocks"] == strips * -(-tiles // down)
                assert plan["workspace"] <= 64 * width * tiles + 16
        assert column_plan(op, 256, 4096, dtype, True, HOPPER)["family"] != "column_tiles"
    for dtype in (torch.float64, torch.int64):  # of any type
        assert column_plan("cumprod", 2**20, 64, dtype, True, HOPPER)["family"] == "column_tiles"


def test_few_columns_that_are_no_whole_sectors_are_taken_tile_by_tile():
    for width, tiled in ((9, True), (33, True), (100, True), (8, False), (104, True), (129, False)):
        assert (
            column_plan("cumsum", 10**6, width, torch.float32, True, HOPPER)["family"] == "column_tiles"
        ) == tiled, width
    for width in (5, 7):  # by the pipeline where there is one
        for dtype in (torch.float32, torch.bfloat16):
            for aligned, shared, tiled in ((True, HOPPER, False), (False, HOPPER, False), (True, PORTABLE, True)):
                assert (
                    column_plan("cumsum", 10**6, width, dtype, aligned, shared)["family"] == "column_tiles"
                ) == tiled, width


def test_columns_of_two_inputs_are_taken_tile_by_tile_where_too_few_lanes_would_walk():
    for dtype, width, aligned, vector in (
        (torch.float32, 16, True, 1), (torch.bfloat16, 16, True, 2), (torch.bfloat16, 7, True, 1),
        (torch.float32, 4096, True, 1), (torch.bfloat16, 4096, True, 2),
    ):  # fmt: skip
        plan = column_plan("linear_scan", 4096, width, dtype, aligned, HOPPER)
        shape = plan["shape"]
        assert plan["family"] == "column_tiles" and plan["threads"] == 128, (dtype, width, plan)
        assert shape["columns"] == vector and shape["across"] * shape["down"] <= 16 and shape["tiles"] == 16
    for dtype in (torch.float32, torch.bfloat16):
        for width in (8192, 16384, 65536):
            plan = column_plan("linear_scan", 4096, width, dtype, True, HOPPER)
            assert (plan["family"], plan["blocks"]) == ("column_teams", width // 64), (dtype, width)


def test_few_rows_of_two_block_tiles_are_a_block_each():
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        plan = _C.plan(
            "cumsum", [66, 8200], [8200, 1], [1], NUMBERS[dtype], NUMBERS[dtype], True, True, 132, True, HOPPER
        )
        few = dtype != torch.int64  # of larger accumulators lanes hold fewer
        assert (plan["family"] == "short_rows" and plan["shape"]["warps"] == 9) == few, (dtype, plan)


def test_the_pipeline_is_for_gpus_with_room_for_it():
    for dtype in (torch.float32, torch.bfloat16):
        numbers = (NUMBERS[dtype], NUMBERS[dtype])
        for shared, family in ((HOPPER, "ring"), (WORKSTATION, "chain")):
            plan = _C.plan("cumsum", [1 << 28], [1], [0], *numbers, True, True, 132, True, shared)
            assert plan["family"] == family
