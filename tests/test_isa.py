"""tools/isa.py finds what it is there to find in the machine code that `make hip` inspects."""

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import isa

NAME = "void torchreduce::gpu::reduce_rows<torchreduce::generic::Sum<float>, torchreduce::gpu::TypedLoad<float> >(int)"


def kernel(arch="gfx90a", memory=0, shared=64, loads=10, name=NAME):
    return isa.Kernel(arch, name, 100, 50, shared, memory, 0, Counter({("load", 16): loads}))


def test_a_right_kernel_has_no_faults():
    assert isa.faults([kernel(), kernel("gfx1100"), kernel("sm_90")]) == []


@pytest.mark.parametrize(
    "facts, fault",
    [
        ({"memory": 8}, "8 bytes of memory a thread"),
        ({"memory": 8, "arch": "sm_90"}, "8 bytes of memory a thread"),
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
    other = kernel(name=NAME.replace("float", "double"), loads=20)
    (line,) = isa.faults([kernel(), other, kernel("gfx1100")])
    assert line.startswith("gfx1100: lacks") and "double" in line
