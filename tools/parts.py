"""The parts of the GPU kernels, each an object that setup.py compiles of a .cu file, and what their checks depend on.

A part's text is what the compiler sees of the project's files: the .cu file, all that it includes by "name", and these
in turn, whatever conditions stand around an include. Without comments and blank space: neither makes another text.
"""

import functools
import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import setup as project

# What judges: files, beside those that decide what is proved. Cases and seeded bugs are not among them; they change
# with the kernels that they are of.
DECIDING = ("tools/full.py", "tools/parts.py", "tools/same.py")
INSPECTING = ("tools/archs.py", "tools/isa.py")
EMULATING = (
    *("tests/simt/Makefile", "tests/simt/emulator.h", "tests/simt/emulator.cpp", "tests/simt/test_emulator.cpp"),
    *("tests/simt/fiber.h", "tests/simt/hip", "tests/simt/problem.h", "tests/simt/problem.cpp", "tests/simt/array.h"),
    *("tests/simt/array.cpp", "tests/simt/reference.h", "tests/simt/shared_memory.py"),
)
JUDGES = {"built": INSPECTING, "emulated": EMULATING, "amd": INSPECTING, "nvidia": INSPECTING}
COMPILERS = {"built": ("nvcc", "g++"), "emulated": ("g++",), "amd": ("clang++-19",), "nvidia": ("nvcc", "g++")}

# The kernels that the emulation runs to judge a .cu file of another name, as tests/simt/Makefile knows them. device.cu
# is in every program; what alone calls for it is the memory of tickets.
EMULATED_BY = {"weights": "rowwise", "device": "listed_rows"}
NOT_EMULATED = {"intrinsics", "stream", "sort"}  # run on a GPU alone, and on any; a library's

# Blank space with comments; a literal; a number, whose ' is no quote; a name; an operator.
TOKEN = re.compile(
    r"(?P<blank>(?:\s|//[^\n]*|/\*.*?\*/)+)"
    r'|\w*R"(?P<mark>[^()\s\\]*)\(.*?\)(?P=mark)"'
    r'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
    r"|\.?\d(?:[eEpP][+-]|'\w|[\w.])*|\w+"
    r"|<<=|>>=|<=>|\.\.\.|->\*|::|\+\+|--|->|&&|\|\||<<|>>|##|[-+*/%&|^=<>!]=|.",
    re.S,
)
INCLUDE = re.compile(r'^# ?include(?: ?"([^"]+)"| ?(<)|.*)', re.M)


def names() -> list[str]:
    """Of all parts: where their objects lie in a folder of a build, without the .o."""
    return [project.object_name(source, part) for source, part in project.kernel_parts()]


def stem(name: str) -> str:
    """The .cu file of a part, without folder and suffix."""
    return Path(name).name.split(".")[0]


def emulation(name: str) -> str | None:
    """The kernels of tests/simt/Makefile that judge a part."""
    return None if stem(name) in NOT_EMULATED else EMULATED_BY.get(stem(name), stem(name))


def checks(name: str) -> list[str]:
    return [check for check in JUDGES if check != "emulated" or emulation(name)]


def code(text: str) -> str:
    """The tokens of C++, with a space between two; a directive is a line, in which blank space counts as a space."""
    pieces, directive, start = ["\n"], False, True
    for match in TOKEN.finditer(text.replace("\\\n", "")):
        if match["blank"]:
            start = "\n" in re.sub(r"//[^\n]*|/\*.*?\*/", "", match["blank"], flags=re.S)
            if directive:
                pieces.append("\n" if start else " ")
            directive = directive and not start
            continue
        if start and match[0] == "#":
            directive = True
            pieces.append("\n")
        pieces.append(match[0] if directive else match[0] + " ")
        start = False
    return "".join(pieces)


@functools.cache
def code_of(content: bytes) -> str:
    return code(content.decode())


def included(file: Path, text: str) -> Iterable[Path]:
    """The project's files that a file includes."""
    for match in INCLUDE.finditer(text):
        if match[2]:
            continue
        found = [folder / match[1] for folder in (file.parent, project.ROOT / "csrc") if match[1]]
        path = next((path for path in found if path.is_file()), None)
        if path is None:
            raise ValueError(f"{file}: {match[0]}: cannot tell which file that is")
        yield path.resolve()


def closure(source: Path) -> dict[str, str]:
    """The code of a file and of all that it includes."""
    texts: dict[str, str] = {}
    todo = [source.resolve()]
    while todo:
        file = todo.pop()
        name = file.relative_to(project.ROOT.resolve()).as_posix()
        if name not in texts:
            texts[name] = code_of(file.read_bytes())
            todo += included(file, texts[name])
    return texts


def digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def texts() -> dict[str, str]:
    """A hash of each part's text."""
    found, of_source = {}, functools.cache(lambda source: sorted(closure(project.ROOT / source).items()))
    for source, part in project.kernel_parts():
        pieces = [piece for pair in of_source(source) for piece in pair]
        found[project.object_name(source, part)] = digest(part, *pieces)
    return found


def contents(listed: Iterable[str]) -> list[str]:
    """Names and hashes of files, and of those in folders."""
    files = [file for path in listed for file in [project.ROOT / path, *(project.ROOT / path).rglob("*")]]
    kept = sorted(file for file in files if file.is_file() and "__pycache__" not in file.parts)
    return [f"{file.relative_to(project.ROOT)} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in kept]


def marker(versions: dict[str, str]) -> Callable[[str, str], str]:
    """Maps a check and the text of a part to what a proof has of the two: a hash of all that the outcome depends on."""
    flags = repr([project.NVCC_FLAGS, project.NVCC_HOST_FLAGS, project.HIP_FLAGS])
    building = [flags, *map(inspect.getsource, (project.Cuda, project.Hip, project.Ninja))]
    base = {
        check: digest(
            *(check, *contents((*DECIDING, *judges)), *([] if check == "emulated" else building)),
            *(f"{name} {versions[name]}" for name in COMPILERS[check]),
        )
        for check, judges in JUDGES.items()
    }
    return lambda check, text: digest(base[check], text)
