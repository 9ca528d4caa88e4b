"""The rungs, as the comments in csrc/ladder say: names, ideas, documents, limits, and their text."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# An installed package has copies of what the ladder is made of; a source tree has the files themselves.
PACKAGED = Path(__file__).with_name("sources")
ROOT = PACKAGED if PACKAGED.exists() else Path(__file__).parents[2]
SOURCES = ROOT / "csrc" / "ladder"
FILES = ("reduce", "segments", "scan")
MOST_LINES = 60  # of a rung


@dataclass(frozen=True)
class Rung:
    """One step of the ladder. `text` is its comment, kernel and launch."""

    name: str
    title: str
    idea: str
    change: str
    source: str  # the document, and what it calls the kernel
    expect: str
    before: str = ""  # the rung that it differs from by one idea
    limit: int = 0  # elements; 0: none
    why_limited: str = ""
    blocks: tuple[int, ...] = ()  # numbers of threads that a block may have
    in_place: bool = False  # writes to its input
    synced: bool = False  # synchronises where the document relies on lanes in lockstep
    file: str = ""  # in csrc/ladder; peers have none
    text: str = ""

    @property
    def scans(self) -> bool:
        return self.file == "scan"

    @property
    def block(self) -> int:
        """The threads of a block where nothing else is asked for."""
        return 256 if 256 in self.blocks else self.blocks[-1]


@cache
def rungs() -> dict[str, Rung]:
    """All of csrc/ladder by name, in the order of the climb."""
    found = {}
    for file in FILES:
        text = (SOURCES / f"{file}.cu").read_text(encoding="utf-8")
        for part in re.split(r"^(?=// ==== )", text, flags=re.MULTILINE)[1:]:
            rung = _parsed(file, re.split(r"\n(?:// clang-format off\n)?#define LADDER_RUNGS", part)[0].rstrip() + "\n")
            found[rung.name] = rung
    return found


def _parsed(file: str, text: str) -> Rung:
    """Of a comment whose lines are "// Field: words", or more words of the field before."""
    heading = re.match(r"// ==== (\w+): (.*) ====\n", text)
    assert heading, text
    comment = re.match(r"(?://.*\n)+", text)
    assert comment
    lines = re.sub(r"\n//  {2,}(?! )", " ", comment[0])
    fields = dict(re.findall(r"^// (\w+): +(.*)$", lines, re.MULTILINE))
    limit, _, why = fields.get("Limit", "").partition(" elements: ")
    return Rung(
        name=heading[1],
        title=heading[2],
        idea=fields["Idea"],
        change=fields["Change"],
        source=fields["Source"],
        expect=fields["Expect"],
        before=fields.get("Before", ""),
        limit=int(limit or 0),
        why_limited=why,
        blocks=tuple(map(int, fields["Blocks"].split())),
        in_place="Writes" in fields,
        synced="Synced" in fields,
        file=file,
        text=text,
    )


def _peer(name: str, title: str, idea: str, source: str, before: str = "") -> Rung:
    return Rung(name, title, idea, "", source, "", before)


# The top, and what stands beside it. They serve every op.
PEERS = {
    peer.name: peer
    for peer in (
        _peer("torchreduce", "this package", "the bits are fixed by the data alone", "csrc/kernels"),
        _peer("cub", "NVIDIA's CUB", "the library that others are measured by", "csrc/ladder/cub.cu"),
        _peer("torch", "torch's own kernel", "one kernel for all reductions (Reduce.cuh); CUB for scans", "torch"),
        _peer("torch.compile", "torch's compiler", "Triton code, made for the call", "torch"),
    )
}


def climb(op: str) -> list[Rung]:
    """The rungs of "sum", "max" or "scan", and the peers, in order."""
    return [rung for rung in rungs().values() if rung.scans == (op == "scan")] + list(PEERS.values())


def named(name: str) -> Rung:
    """ValueError where there is none."""
    every = {**rungs(), **PEERS}
    if name not in every:
        raise ValueError(f"ladder: {name!r} is none of the rungs {', '.join(every)}")
    return every[name]
