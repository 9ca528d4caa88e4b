"""How long the functions of the GPU kernels are: none may have more than 100 lines, so that each is read at once.

    lengths.py [FOLDER]

Fails with a line for each longer one in FOLDER, csrc/kernels. A function is what its declaration calls __global__ or
__device__, lambdas within it included; its lines are those from there to its last brace.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

MOST = 100
KERNELS = Path(__file__).resolve().parents[1] / "csrc" / "kernels"
# What is no code, up to its end: comments, strings, directives.
IGNORED = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*', re.M | re.S)
FUNCTION = re.compile(r"__(?:global|device)__")


def functions(text: str) -> Iterator[tuple[str, int, int]]:
    """The name, first line and length of each function."""
    code = IGNORED.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    begin = depth = 0  # of what is declared; of braces within a function
    for match in re.finditer(r"[{};]", code):
        at = match.start()
        if depth:
            depth += {"{": 1, "}": -1, ";": 0}[match[0]]
            if depth == 0:
                yield _name(code[begin:at]), code.count("\n", 0, begin) + 1, code.count("\n", begin, at) + 1
                begin = at + 1
        elif match[0] == "{" and (found := FUNCTION.search(code, begin, at)):
            begin = found.start()
            depth = 1
        else:
            begin = at + 1


def _name(function: str) -> str:
    """The first word that has parameters, and is no attribute."""
    depth = 0
    for match in re.finditer(r"(\w*)\s*\(|\)", function):
        if match[0] != ")" and depth == 0 and not match[1].startswith(("TR_", "__")):
            return match[1]
        depth += 1 if match[0] != ")" else -1
    return "?"


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else KERNELS
    failed = False
    for path in sorted((*folder.rglob("*.cuh"), *folder.rglob("*.cu"))):
        for name, line, length in functions(path.read_text()):
            if length > MOST:
                failed = True
                print(f"{path}:{line}: {name} has {length} lines, more than {MOST}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
