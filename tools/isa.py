"""What compilers made of the GPU kernels, read from machine code: AMD's by LLVM's tools, NVIDIA's by cuobjdump.

The rules, of which `faults` lists the violations:

    every architecture has the same kernels; the scans with bulk copies are NVIDIA's alone, and from Hopper on have them
    no kernel for AMD has scratch memory, calls or flat accesses
    no kernel for NVIDIA that is compiled for one type of elements has local memory
    kernels along rows move such elements by 16 bytes at a time, or by 8 where a lane's 8 elements are no more; so do
        kernels that take several columns a lane, or stage rows in shared memory
    a block declares at most 48 KiB of shared memory, which every GPU has without being asked for more
    a wavefront is as wide as the architecture makes it; arithmetic rounds to nearest and keeps subnormals (AMD)
"""

import functools
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

CUDA_ARCH = "sm_90"  # what CI builds in full
MAX_SHARED = 48 * 1024

# Groups of 8 elements that a kernel's code loads, and stores, by wide accesses.
WIDE_GROUPS = {
    "reduce_rows": (5, 0),
    "scan_rows": (2, 1),
    "scan_short_rows": (2, 2),
    "scan_tiled_rows": (2, 2),
    "scan_extreme_rows": (0, 2),  # indices, and values of 8 bytes, in either direction
    "RecordRow": (2, 2),
    "ChainTile": (4, 2),  # tile by tile: rows that go up in memory, and rows that go down
}
WIDE_GROUPS_OF_PAIRS = {"scan_rows": (4, 1), "scan_row_pairs": (4, 1), "ChainTile": (4, 1)}  # a group of each input
# Its wide accesses, whatever the elements: of kernels for several columns a lane, and for rows that start anywhere.
WIDE_ACCESSES = {
    "reduce_rows": (8, 0),
    "scan_short_columns": (8, 8),
    "scan_ragged_columns": (10, 0),
    "scan_packed_rows": (1, 1),
    "scan_short_rows": (0, 1),
    "scan_tiled_rows": (0, 1),
}
BULK_FAMILIES = {"scan_ring", "scan_ring_columns", "scan_ring_pairs"}
LARGE_FAMILIES = {"scan_ragged_columns"}  # these and BULK_FAMILIES are empty where blocks are not large (gpu.cuh)
# Wide ones that may be missing for NVIDIA: nvcc shares a part of one with the code for a row's end, in each direction.
SHARED_STORES = {"ChainTile": 2, "scan_row_pairs": 0}

# A type in C++, as the table names it, and its size.
TYPES = {
    "unsigned char": ("u8", 1),
    "signed char": ("i8", 1),
    "short": ("i16", 2),
    "int": ("i32", 4),
    "long": ("i64", 8),
    "F16": ("f16", 2),
    "BF16": ("bf16", 2),
    "float": ("f32", 4),
    "double": ("f64", 8),
    "Bool": ("bool", 1),
}

# reduce_rows<Sum<float>>(...), reduce_columns<Sum<float>, ConvertedLoad<float>>(...) or <AnyCount, BitsLoad>(...), and
# the scans with a Store at the end; of scan_tiles<ChainTile<CumSum<float>, ...>>(...) the tile is the family
KERNEL = re.compile(
    r"(?P<family>\w+)<(Any(?P<any>\w+)|(?P<op>\w+)<(?P<accumulator>[\w ]+)>)"
    r"(, ((?P<kind>Typed|Pair|Triple|Any|Converted|Bits)Load(<(?P<load>[\w ]+)>)?|(?P<ints>SmallInts))"
    r"(, ((Typed|Either|Indexed)Store<(?P<store>[\w ]+)>|Any(Indexed)?Store))?"
    r"(, (?P<variant>\w+)(?P<more>(, \w+)*))?)? ?>(?: ?>)?\("
)
# held_rows_kernel<Softmax<float>, BF16, 8>(...), fold_states<SummedOp<float, 1>, float>(...),
# map_rows_kernel<EntropyGradient<float>>(...), weight_elements<float, true>(...)
ROWWISE_KERNEL = re.compile(
    r"(?P<family>map_rows_kernel|held_rows_kernel|held_columns_kernel|rowwise_packed_rows_kernel|rowwise_columns_kernel|"
    r"rowwise_wide_columns_states|rowwise_wide_columns_output|norm_gradients_kernel|rowwise_strided_leaf|fold_states|"
    r"fold_weights|weight_\w+|runs_states|mean_of_losses)"
    r"<((?P<op>\w+)<(?P<accumulator>\w+)(, \d+)?>,? ?)?(?P<element>\w+)?(, (\([\w:]+\))?\w+)* ?>\("
)
# reduce_short_segments<Sum<float>, 4>(...), scan_segment_windows<CumSum<float>, true>(...)
SEGMENTS_KERNEL = re.compile(
    r"(?P<family>reduce_(short|packed|lone|any)_segments|reduce_(segment|narrow)_leaves|fold_segment_leaves|"
    r"scan_segment_(windows|tiles)|rowwise_segment_teams)"
    r"<(?P<op>\w+)<(?P<accumulator>\w+)>(, \w+)* ?>\("
)
# map_lines<ChannelMap<(Channels)0, float>, BF16>(...), sum_lines<double, double>(...)
CHANNELS_KERNEL = re.compile(
    r"(?P<family>map_(lines|columns|elements)|sum_(lines|columns)|fold_sums|move_running)"
    r"<(ChannelMap<\(Channels\)(?P<op>\d), \w+>, )?(?P<element>\w+)(, \w+)? ?>\("
)
# Of these the ones that are compiled for one type of elements.
ROWWISE_OF_ONE_TYPE = {
    *("held_rows_kernel", "held_columns_kernel", "rowwise_packed_rows_kernel", "rowwise_columns_kernel"),
    *("rowwise_wide_columns_states", "rowwise_wide_columns_output", "norm_gradients_kernel", "weight_granules"),
    *("runs_states", "map_lines", "map_columns", "sum_columns"),
}
AMD_ACCESS = re.compile(r"global_(load|store)_(?:(dwordx4|b128)|(dwordx2|b64))")
CUDA_ACCESS = re.compile(r"\b(LDG|STG|LDGSTS)\.E\.(?:BYPASS\.|NA\.|EF\.)?(?:(128)|(64))\b")
# Of no op: of one that never runs the driver is asked what it compiled it for; one zeroes workspaces (both in
# csrc/kernels/common/device.cu); one is for tests (csrc/kernels/common/intrinsics.cu); three number segments
# (csrc/kernels/reduce/segment_index.cuh).
HELPERS = (
    "_ZN11torchreduce3gpu12architectureEv",
    "_ZN11torchreduce3gpu10zero_wordsEPml",
    "_ZN11torchreduce3gpu9intrinsicENS_9IntrinsicEPKjPjl",
    "_ZN11torchreduce3gpu21number_segment_placesENS_7KeyCallE",
    "_ZN11torchreduce3gpu13find_segmentsENS_11OffsetsCallE",
    "_ZN11torchreduce3gpu9list_runsENS_8RunsCallE",
)
# Kernels of the toolkit's library (csrc/kernels/common/sort.cu), which are not looked at.
LIBRARY = "_ZN3cub"
# Compiled for NVIDIA's GPUs alone (csrc/kernels/common/gpu.cuh, kWideReductions).
WIDE_REDUCTIONS = {
    *("reduce_rows", "reduce_packed_rows", "reduce_wide_columns", "reduce_narrow_columns", "reduce_short_columns"),
    *("reduce_column_slices", "reduce_listed_rows", "reduce_few_rows"),
    *("reduce_transposed_rows", "reduce_transposed_tiles", "fold_leaves"),
    *("map_rows_kernel", *ROWWISE_OF_ONE_TYPE),
}
# Bytes of memory a thread that a reduction may have on NVIDIA's GPUs. They are compiled for so many blocks a
# multiprocessor that a few registers spill: columns of 16 bits that start anywhere are by 5 % faster (H100) with three
# blocks that spill than with two that do not.
SPILLED_BY_REDUCTIONS = 192
# The same of products of columns, whose way by powers is taken rarely.
SPILLED_BY_PRODUCTS = 400
# The same of row-wise kernels (softmax, norms, losses), whose rarely taken ways of exponentials spill; for Blackwell
# also 16-bit columns that start anywhere. What reads leaves again whose squares left the range keeps them in memory.
SPILLED_BY_ROWWISE = 200
CUDA_BULK_COPY = re.compile(r"\bUBLKCP\b")
AMD_UNWANTED = {"scratch": r"scratch_|buffer_(load|store)", "flat": r"flat_", "call": r"s_swappc|s_call"}


@dataclass
class Kernel:
    arch: str
    symbol: str
    vector_registers: int
    scalar_registers: int
    shared: int  # bytes of a block
    memory: int  # bytes of a thread: AMD's scratch, NVIDIA's local memory
    spills: int  # registers; AMD's scalar ones go to vector registers
    wide: Counter[tuple[str, int]] = field(default_factory=Counter)  # ("load" or "store", bytes): instructions
    bulk_copies: int = 0  # instructions
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        name = re.sub(r"torchreduce::(gpu::|generic::)?", "", demangled(self.symbol))
        if match := SEGMENTS_KERNEL.search(name):
            self.family, self.op, self.element = match["family"], match["op"], TYPES[match["accumulator"]][0]
            self.variant, self.pairs, self.types = None, False, {}
            return
        if match := CHANNELS_KERNEL.search(name):
            self.family, self.op = match["family"], ["Normalize", "Sums", "Gradient"][int(match["op"] or 1)]
            self.element, self.variant, self.pairs = TYPES[match["element"]][0], None, False
            self.types = {"load": match["element"]} if self.family in ROWWISE_OF_ONE_TYPE else {}
            return
        match = KERNEL.search(name)
        if match is None and (match := ROWWISE_KERNEL.search(name)):
            self.family = match["family"]
            self.op = match["op"] or "Weights"
            self.element = TYPES[match["element"] or match["accumulator"]][0]
            self.variant, self.pairs = None, False
            self.types = {"load": match["element"]} if self.family in ROWWISE_OF_ONE_TYPE else {}
            return
        if match is None:
            sys.exit(f"tools/isa.py does not understand the kernel {name}")
        self.family, self.op = match["family"], match["op"] or match["any"]
        self.element = TYPES[match["load"] or match["accumulator"] or "long"][0]
        # Columns a lane; or whether rows are aligned.
        self.variant = match["variant"]
        if self.family == "scan_row_pairs" and (match["more"] or "").endswith("true"):  # staged
            self.variant = "false"
        if match["kind"] in ("Any", "Converted", "Bits"):
            self.element = f"any as {self.element}"
        elif match["ints"]:
            self.element = "small ints"
        # Of a kernel that is compiled for one type: that of the elements, and of a scan's results.
        one_type = match["kind"] in ("Typed", "Pair", "Triple")
        self.types = {"load": match["load"], "store": match["store"]} if one_type else {}
        if match["ints"]:
            self.types = {"store": match["store"]}
        self.pairs = match["kind"] == "Pair"

    @property
    def nvidia(self) -> bool:
        return self.arch.startswith("sm_")

    @property
    def large_blocks(self) -> bool:
        return self.nvidia and 90 <= int(self.arch.removeprefix("sm_")) < 120

    def check(self) -> list[str]:
        faults = list(self.faults)
        allowed = 0
        if self.nvidia and self.family.startswith("reduce_"):
            products = self.family == "reduce_wide_columns" and self.op == "Product"
            allowed = SPILLED_BY_PRODUCTS if products else SPILLED_BY_REDUCTIONS
        elif self.nvidia and self.family in ROWWISE_OF_ONE_TYPE:
            allowed = SPILLED_BY_ROWWISE
        if self.memory > allowed and (self.types or not self.nvidia):
            faults.append(f"{self.memory} bytes of memory a thread")
        if self.shared > MAX_SHARED:
            faults.append(f"{self.shared} bytes of shared memory")
        if self.family in BULK_FAMILIES and not self.bulk_copies and self.large_blocks:
            faults.append("no bulk copies")
        if self.variant != "1" and (self.large_blocks or self.family not in LARGE_FAMILIES):
            for access, wanted in zip(("load", "store"), WIDE_ACCESSES.get(self.family, (0, 0)), strict=True):
                width = 16
                if self.family == "scan_short_columns" and self.types.get(access):
                    width = min(16, int(self.variant) * TYPES[self.types[access]][1])
                if width > 4 and self.wide[access, width] < wanted:  # single words are not counted
                    faults.append(f"{self.wide[access, width]} {access}s of {width} bytes, expected {wanted}")
        missing = SHARED_STORES.get(self.family, 1) if self.nvidia else 0
        expected = (WIDE_GROUPS_OF_PAIRS if self.pairs else WIDE_GROUPS).get(self.family, (0, 0))
        for access, groups in zip(("load", "store"), expected, strict=True):
            if self.types.get(access) and self.variant != "false":
                group = 8 * TYPES[self.types[access]][1]  # bytes
                if access == "store" and self.family == "scan_short_rows" and self.op == "CumProd" and group == 16:
                    groups = 1  # one after the other, by the same instructions
                width = min(16, group)
                wanted = groups * group // width - (missing if access == "store" else 0)
                if self.wide[access, width] < wanted:
                    faults.append(f"{self.wide[access, width]} {access}s of {width} bytes, expected {wanted}")
        return [f"{self.arch} {self.family}<{self.op}, {self.element}>: {fault}" for fault in faults]

    def line(self) -> str:
        wide = " ".join(f"{access}{width}:{count}" for (access, width), count in sorted(self.wide.items()))
        return (
            f"{self.arch:8} {self.family:18} {self.op:12} {self.element:11} {self.vector_registers:3} vector "
            f"{self.scalar_registers:3} scalar {self.shared:5} shared {self.memory:3} memory {self.spills:3} spilled "
            f"{wide}".rstrip()
        )


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout


@functools.cache
def demangled(symbol: str) -> str:
    return run("c++filt", symbol).strip()


# ---- AMD -------------------------------------------------------------------------------------------------------------


def code_objects(library: Path) -> list[tuple[str, bytes]]:
    """The architecture and the ELF file of each: one for every object file with kernels, and architecture."""
    if ".hip_fatbin" not in run("llvm-readelf-19", "--sections", library):
        return []
    with tempfile.NamedTemporaryFile() as section:
        run("llvm-objcopy-19", f"--dump-section=.hip_fatbin={section.name}", library, os.devnull)
        data = Path(section.name).read_bytes()
    # A bundle: a magic string, the number of entries; for each its offset, its size, its name's length and its name.
    found, magic = [], b"__CLANG_OFFLOAD_BUNDLE__"
    start = data.find(magic)
    while start >= 0:
        (entries,) = struct.unpack_from("<Q", data, start + len(magic))
        at = start + len(magic) + 8
        for _ in range(entries):
            offset, size, length = struct.unpack_from("<QQQ", data, at)
            name = data[at + 24 : at + 24 + length].decode()
            at += 24 + length
            if name.startswith("hip"):
                found.append((name.rpartition("-")[2], data[start + offset : start + offset + size]))
        start = data.find(magic, at)
    return found


def amd_kernels(arch: str, code: bytes) -> list[Kernel]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(code)
        file.flush()
        notes = run("llvm-readelf-19", "--notes", file.name)
        descriptors = run("llvm-objdump-19", "-D", "-j", ".rodata", file.name)
        text = run("llvm-objdump-19", "-d", "--no-show-raw-insn", file.name)
    lanes = 64 if arch.startswith("gfx9") else 32
    kernels = {}
    for entry in notes.split("\n  - .")[1:]:
        facts = dict(re.findall(r"\.(\w+): +(\S+)", entry))
        if "vgpr_count" not in facts or facts["name"] in HELPERS:
            continue
        kernel = Kernel(
            arch,
            facts["name"],
            vector_registers=int(facts["vgpr_count"]),
            scalar_registers=int(facts["sgpr_count"]),
            shared=int(facts["group_segment_fixed_size"]),
            memory=int(facts["private_segment_fixed_size"]),
            spills=int(facts["vgpr_spill_count"]) + int(facts["sgpr_spill_count"]),
        )
        if int(facts["wavefront_size"]) != lanes:
            kernel.faults.append(f"{facts['wavefront_size']} lanes a wavefront, expected {lanes}")
        kernels[kernel.symbol] = kernel

    for name, body in re.findall(r"\.amdhsa_kernel (\S+)(.*?)\.end_amdhsa_kernel", descriptors, re.DOTALL):
        modes = sorted(re.findall(r"float_(denorm|round)_mode_(?:32|16_64) (\d)", body))
        if name in kernels and modes != [("denorm", "3")] * 2 + [("round", "0")] * 2:
            kernels[name].faults.append(f"floating-point modes {modes}")

    for name, body in re.findall(r"^\w+ <(\S+)>:\n(.*?)(?=\n\n|\Z)", text, re.DOTALL | re.MULTILINE):
        if name in kernels:
            inspect(kernels[name], [line.split(maxsplit=1)[0] for line in body.splitlines() if line.strip()])
    return list(kernels.values())


def inspect(kernel: Kernel, instructions: list[str]) -> None:
    for instruction in instructions:
        if match := AMD_ACCESS.match(instruction):
            kernel.wide[match[1], 16 if match[2] else 8] += 1
    for kind, form in AMD_UNWANTED.items():
        count = sum(bool(re.match(form, instruction)) for instruction in instructions)
        if count:
            kernel.faults.append(f"{count} {kind} instructions")


# ---- NVIDIA ----------------------------------------------------------------------------------------------------------


def has_cuda_code(library: Path, cuobjdump: str) -> bool:
    listed = subprocess.run([cuobjdump, "-lelf", library], capture_output=True, text=True).stdout
    return f".{CUDA_ARCH}." in listed


def cuda_kernels(library: Path, cuobjdump: str, arch: str = CUDA_ARCH) -> list[Kernel]:
    kernels = {}
    usage = run(cuobjdump, "-arch", arch, "-res-usage", library)
    for name, facts in re.findall(r"Function (\S+):\s+(REG:.*)", usage):
        if name in HELPERS or name.startswith(LIBRARY):
            continue
        used = {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", facts)}
        memory = used["STACK"] + used["LOCAL"]
        kernels[name] = Kernel(arch, name, used["REG"], 0, used["SHARED"], memory, spills=0)
    for body in run(cuobjdump, "-arch", arch, "-sass", library).split("Function : ")[1:]:
        name = body.split(maxsplit=1)[0]
        if name in HELPERS or name.startswith(LIBRARY):
            continue
        kernel = kernels[name]
        for match in CUDA_ACCESS.finditer(body):
            kernel.wide["store" if match[1] == "STG" else "load", 16 if match[2] else 8] += 1
        kernel.bulk_copies = len(CUDA_BULK_COPY.findall(body))
        kernel.spills = len(re.findall(r"\bSTL\b", body))
    return list(kernels.values())


# ---- all of it -------------------------------------------------------------------------------------------------------


def table(kernels: list[Kernel]) -> str:
    """A line for each family and op: the most registers of its types on each architecture, the most memory on any."""
    archs = list(dict.fromkeys(k.arch for k in kernels))
    rows = [("registers", "", *archs, "shared", "memory", "spilled", "types")]
    for family, op in sorted({(k.family, k.op) for k in kernels}):
        group = [k for k in kernels if (k.family, k.op) == (family, op)]
        cells = []
        for arch in archs:
            own = [k for k in group if k.arch == arch]
            vector = max((k.vector_registers for k in own), default=0)
            scalar = max((k.scalar_registers for k in own), default=0)
            cells.append(f"{vector}+{scalar}" if scalar else str(vector))
        most = [str(max(getattr(k, fact) for k in group)) for fact in ("shared", "memory", "spills")]
        rows.append((family, op, *cells, *most, str(len({k.element for k in group}))))
    widths = [18, 10] + [9] * (len(rows[0]) - 2)
    return "\n".join(
        " ".join(cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    )


def faults(kernels: list[Kernel], alike: set[str] | None = None) -> list[str]:
    """What violates the rules. `alike`: the architectures that have the same kernels; by default all of them."""
    symbols = {
        arch: {k.symbol for k in kernels if k.arch == arch and k.family not in BULK_FAMILIES | WIDE_REDUCTIONS}
        for arch in ({k.arch for k in kernels} if alike is None else alike)
    }
    everywhere = set().union(*symbols.values())
    lacking = {arch: sorted(map(demangled, everywhere - own)) for arch, own in sorted(symbols.items())}
    missing = [f"{arch}: lacks {name}" for arch, names in lacking.items() for name in names]
    return missing + [fault for kernel in kernels for fault in kernel.check()]
