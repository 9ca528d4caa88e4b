"""How much shared memory a block of each emulated kernel takes: at most 48 KiB, what every GPU has without asking.

There they are thread-local variables of the objects.

    shared_memory.py OBJECT...
"""

import re
import subprocess
import sys
from collections import Counter

LIMIT = 48 * 1024


def main(objects: list[str]) -> None:
    # A line for each symbol: number, value, size, type, ..., name; that of a local variable is "kernel(...)::variable".
    size_of: Counter[str] = Counter()
    for name in objects:
        command = ["readelf", "--wide", "--demangle", "--symbols", name]
        symbols = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        of_object: Counter[str] = Counter()  # what kernels of several ops call is in the objects of all of these
        for size, kernel in re.findall(r" (\d+) TLS .*? (torchreduce::gpu::.*)::\w+$", symbols, re.MULTILINE):
            of_object[kernel] += int(size)
        size_of |= of_object
    if not size_of:
        sys.exit("found no shared memory at all: the names of the symbols have changed")
    for kernel, size in size_of.items():
        if size > LIMIT:
            print(f"FAILED: {size} bytes of shared memory a block: {kernel}")
    over = sum(size > LIMIT for size in size_of.values())
    print(f"shared memory: {len(size_of)} kernels, at most {max(size_of.values())} bytes a block: {over} over {LIMIT}")
    sys.exit(over > 0)


main(sys.argv[1:])
