"""tools/isa.py finds what it is there to find in the machine code that `make hip` and `make cuda-archs` inspect."""

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import isa

NAME = "void torchreduce::gpu::reduce_rows<torchreduce::generic::Sum<float>, torchreduce::gpu::TypedLoad<float> >(int)"
SCAN = NAME.replace("reduce_rows", "scan_walk").replace("Sum", "CumSum")


def kernel(arch="gfx90a", memory=0, shared=64, loads=10, name=NAME):
    return isa.Kernel(arch, name, 100, 50, shared, memory, 0, Counter({("load", 16): loads}))


def test_a_right_kernel_has_no_faults():
    assert isa.faults([kernel(), kernel("gfx1100"), kernel("sm_90"), kernel("sm_90", memory=192)]) == []


@pytest.mark.parametrize(
    "facts, fault",
    [
        ({"memory": 8}, "8 bytes of memory a thread"),
        ({"memory": 193, "arch": "sm_90"}, "193 bytes of memory a thread"),
        ({"memory": 8, "arch": "sm_90", "name": SCAN}, "8 bytes of memory a thread"),
        ({"shared": 48 * 1024 + 1}, "49153 bytes of shared memory"),
        ({"loads": 9}, "9 loads of 16 bytes, expected 10"),
    ],
)
def test_a_fault_is_found(facts, fault):
    assert [line.partition(": ")[2] for line in isa.faults([kernel(**facts)])] == [fault]


@pytest.mark.parametrize("kind, instruction", [
    ("flat", "flat_load_dword"), ("scratch", "scratch_store_dword"), ("scratch", "buffer_load_dword"),
    ("call", "s_swappc_b64"),
])  # fmt: skip
def test_an_unwanted_instruction_is_found(kind, instruction):
    k = kernel()
    isa.inspect(k, ["global_load_dwordx4", instruction, "s_endpgm"])
    assert k.wide["load", 16] == 11
    assert [line.partition(": ")[2] for line in isa.faults([k])] == [f"1 {kind} instructions"]


def test_a_kernel_that_an_architecture_lacks_is_found():
    name = NAME.replace("reduce_rows", "reduce_strided")
    other = kernel(name=name.replace("float", "double"), loads=20)
    (line,) = isa.faults([kernel(name=name), other, kernel("gfx1100", name=name)])
    assert line.startswith("gfx1100: lacks") and "double" in line


def columns_kernel(arch, vector, loads):
    types = (
        "torchreduce::generic::CumSum<float>, torchreduce::gpu::TypedLoad<float>, torchreduce::gpu::TypedStore<float>"
    )
    name = f"void torchreduce::gpu::scan_short_columns<{types}, {vector}>(torchreduce::ScanCall, void*)"
    return isa.Kernel(arch, name, 100, 50, 64, 0, 0, Counter({("load", 16): loads, ("store", 16): 8}))


def test_kernels_for_several_columns_are_wide():
    assert isa.faults([columns_kernel("gfx90a", 4, 8), columns_kernel("gfx90a", 1, 0)]) == []
    (line,) = isa.faults([columns_kernel("gfx90a", 4, 7)])
    assert line.endswith("7 loads of 16 bytes, expected 8")


def test_kernels_that_need_large_blocks_are_wide_where_there_are_any():
    types = (
        "torchreduce::generic::CumSum<float>, torchreduce::gpu::TypedLoad<float>, torchreduce::gpu::TypedStore<float>"
    )
    name = f"void torchreduce::gpu::scan_ragged_columns<{types}, 2>(torchreduce::ScanCall, void*)"
    full, empty = (
        isa.Kernel(arch, name, 80, 0, 64, 0, 0, Counter({("load", 16): loads}))
        for arch, loads in (("sm_90", 10), ("sm_120", 0))
    )
    assert isa.faults([full, empty]) == []
    full.wide["load", 16] = 9
    (line,) = isa.faults([full, empty])
    assert line.endswith("9 loads of 16 bytes, expected 10")


def test_rows_that_start_anywhere_are_stored_wide():
    types = (
        "torchreduce::generic::CumSum<float>, torchreduce::gpu::TypedLoad<float>, torchreduce::gpu::TypedStore<float>"
    )
    aligned, other = (
        isa.Kernel("gfx90a", f"void torchreduce::gpu::scan_short_rows<{types}, {name}>(int)", 100, 50, 64, 0, 0, wide)
        for name, wide in (
            ("true", Counter({("load", 16): 4, ("store", 16): 4})),
            ("false", Counter({("store", 16): 1})),
        )
    )
    assert isa.faults([aligned, other]) == []
    aligned.wide["load", 16], other.wide["store", 16] = 3, 0
    assert [line.partition(": ")[2] for line in isa.faults([aligned, other])] == [
        "3 loads of 16 bytes, expected 4",
        "0 stores of 16 bytes, expected 1",
    ]


def test_kernels_of_two_inputs_take_them_one_by_one():
    types = "torchreduce::generic::LinearScan<float>, torchreduce::gpu::PairLoad<float>"
    types += ", torchreduce::gpu::TypedStore<float>"
    wide = Counter({("load", 16): 8, ("store", 16): 2})
    name = f"void torchreduce::gpu::scan_tiles<torchreduce::gpu::ChainTile<{types} > >(int)"
    chain = isa.Kernel("gfx90a", name, 100, 50, 64, 0, 0, wide)
    assert chain.element == "f32" and isa.faults([chain]) == []
    wide["load", 16] = 7
    assert [line.partition(": ")[2] for line in isa.faults([chain])] == ["7 loads of 16 bytes, expected 8"]


def test_bulk_copies_are_asked_for_only_where_they_exist():
    name = NAME.replace("reduce_rows", "scan_ring")
    right = isa.Kernel("sm_90", name, 80, 0, 64, 0, 0, Counter(), bulk_copies=2)
    other = columns_kernel("gfx90a", 1, 0)
    assert isa.faults([right, other, columns_kernel("sm_90", 1, 0)]) == []
    right.bulk_copies = 0
    (line,) = isa.faults([right])
    assert line.endswith("no bulk copies")
    assert isa.faults([isa.Kernel("sm_80", name, 80, 0, 64, 0, 0, Counter())]) == []
