"""Compares the machine code for sm_90 of two builds, kernel by kernel.

    tools/same.py OLD NEW    each a library, an object, or a folder of objects

Prints the kernels that changed, are new or are gone; exits with 1 if there is one. Of a kernel all is compared that its
cubin has: instructions, registers, shared memory, launch bounds, parameters, tables. What launches kernels is not.
"""

import hashlib
import re
import struct
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import archs
import isa

RELOCATIONS, NOTHING = 4, 8  # types of sections: SHT_RELA, SHT_NOBITS
PARAMETERS = 0x0A  # an attribute of .nv.info that has the number of a symbol (EIATTR_PARAM_CBANK), then place and size
WITH_VALUE = 4  # the format of an attribute that has more than a word (EIFMT_SVAL)


class Cubin:
    """An ELF file of 64 bits: its sections by name, each with all that counts."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        (at,) = struct.unpack_from("<Q", data, 0x28)
        size, count, names = struct.unpack_from("<HHH", data, 0x3A)
        # name, type, flags, address, offset, size, link, info, alignment, size of an entry
        self.headers = [struct.unpack_from("<IIQQQQIIQQ", data, at + size * i) for i in range(count)]
        self.names = [self.string(names, header[0]) for header in self.headers]

    def string(self, table: int, at: int) -> str:
        start = self.headers[table][4] + at
        return self.data[start : self.data.index(0, start)].decode()

    def content(self, index: int) -> bytes:
        _, kind, _, _, offset, size, *_ = self.headers[index]
        return b"%d bytes" % size if kind == NOTHING else self.data[offset : offset + size]

    def symbol(self, table: int, index: int) -> str:
        """Its name; of a section's symbol that of the section."""
        name, _, _, section = struct.unpack_from("<IBBH", self.data, self.headers[table][4] + 24 * index)
        return self.string(self.headers[table][6], name) or (self.names[section] if section < len(self.names) else "")

    def relocations(self, index: int) -> bytes:
        """With the names of symbols, whose order in the file is no matter, instead of their numbers."""
        content, table = self.content(index), self.headers[index][6]
        entries = sorted(struct.iter_unpack("<QIIq", content))
        return repr([(at, kind, self.symbol(table, symbol), more) for at, kind, symbol, more in entries]).encode()

    def attributes(self, index: int) -> bytes:
        """Of a kernel's .nv.info, without the number of a symbol."""
        content, at, kept = self.content(index), 0, []
        while at < len(content):
            form, attribute, size = struct.unpack_from("<BBH", content, at)
            end = at + 4 + (size if form == WITH_VALUE else 0)
            kept.append(content[at : at + 4] + content[at + (8 if attribute == PARAMETERS else 4) : end])
            at = end
        return b"".join(sorted(kept))

    def kernels(self) -> dict[str, str]:
        """A hash for each, and for data that belongs to none: by the section's name."""
        found: dict[str, list[bytes]] = defaultdict(list)
        for index, name in enumerate(self.names):
            kind, info = self.headers[index][1], self.headers[index][7]
            match = re.fullmatch(r"\.(?:rela\.)?(text|nv\.(?:info|shared|constant\d+))\.(_Z.+|\w+)", name)
            if match is None and not re.match(r"\.(rela\.)?nv\.(constant|global)", name):
                continue
            read = self.relocations if kind == RELOCATIONS else self.content
            read = self.attributes if name.startswith(".nv.info.") else read
            registers = info >> 24 if name.startswith(".text.") else 0
            found[match[2] if match else name].append(f"{name} {registers} ".encode() + read(index))
        return {kernel: hashlib.sha256(b"".join(sorted(pieces))).hexdigest() for kernel, pieces in found.items()}


def kernels(path: Path) -> dict[str, str]:
    """What is the same in two builds where a kernel is: of a library, an object, or all objects in a folder."""
    tool = archs.cuobjdump()
    if tool is None:
        sys.exit("there is no cuobjdump: make hip-deps")
    found: dict[str, set[str]] = defaultdict(set)
    for file in sorted(path.rglob("*.o")) if path.is_dir() else [path]:
        if not isa.has_cuda_code(file, tool):
            continue
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([tool, "-xelf", f".{isa.CUDA_ARCH}.", file.resolve()], cwd=folder, check=True, stdout=-3)
            for cubin in Path(folder).iterdir():
                for name, code in Cubin(cubin.read_bytes()).kernels().items():
                    found[name].add(code)
    return {name: " ".join(sorted(codes)) for name, codes in sorted(found.items())}


def digest(path: Path) -> str:
    return hashlib.sha256(repr(kernels(path)).encode()).hexdigest()[:16]


def main(old: Path, new: Path) -> int:
    before, now = kernels(old), kernels(new)
    if not before or not now:
        sys.exit(f"{new if before else old} has no code for {isa.CUDA_ARCH}")
    listed = {
        "changed": [name for name in before if now.get(name, before[name]) != before[name]],
        "new": [name for name in now if name not in before],
        "gone": [name for name in before if name not in now],
    }
    for what, names in listed.items():
        for name in names:
            print(f"{what}: {isa.demangled(name) if name.startswith('_Z') else name}")
    changed = sum(map(len, listed.values()))
    print(f"{changed} of {len(before | now)} kernels changed")
    return int(changed > 0)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
