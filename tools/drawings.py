"""Draws docs/plots/order.svg and call.svg: the order in which elements are combined, and the path of a call.

python tools/drawings.py    writes both
"""

from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "plots"
BLUE, GREEN, GREY, AMBER = "#dbe9ff", "#ddf3e0", "#eeeeee", "#fff0d0"
LINE = "#445"
WIDTH = 760


class Drawing:
    """Boxes, lines and words on white, in pixels from the upper left."""

    def __init__(self, height: int, title: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
            f'font-family="Helvetica, Arial, sans-serif" font-size="13">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 0 8 4 0 8z" fill="{LINE}"/></marker></defs>',
        ]

    def box(self, x: float, y: float, width: float, height: float, fill: str, *lines: str) -> None:
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{fill}" stroke="{LINE}"/>'
        )
        for i, line in enumerate(lines):
            self.words(x + width / 2, y + height / 2 + 4.5 + 16 * (i - (len(lines) - 1) / 2), line, "middle", i == 0)

    def words(self, x: float, y: float, text: str, anchor: str = "start", bold: bool = False) -> None:
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="#112"{weight}>{escape(text)}</text>')

    def line(self, x: float, y: float, to_x: float, to_y: float, arrow: bool = False) -> None:
        tip = ' marker-end="url(#tip)"' if arrow else ""
        self.parts.append(f'<path d="M{x:g} {y:g} {to_x:g} {to_y:g}" stroke="{LINE}" fill="none"{tip}/>')

    def tree(self, xs: list[float], y: float, step: float) -> float:
        """Neighbouring pairs joined, level by level, upwards from y; the last of an odd level goes up alone. Returns
        the height of the root."""
        while len(xs) > 1:
            parents = [(xs[i] + xs[min(i + 1, len(xs) - 1)]) / 2 for i in range(0, len(xs), 2)]
            for i, x in enumerate(xs):
                self.line(x, y, parents[i // 2], y - step)
            xs, y = parents, y - step
        return y

    def text(self) -> str:
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def order() -> str:
    drawing = Drawing(640, "The order of reductions and of scans")
    drawing.words(20, 28, "A sum: leaves, and a tree over them", bold=True)
    leaves = [20 + 145 * i for i in range(5)]
    root = drawing.tree([x + 65 for x in leaves], 140, 26)
    drawing.words(540, root - 6, "the row's sum, rounded once")
    for i, x in enumerate(leaves):
        drawing.box(x, 140, 130, 30, BLUE, f"leaf {i}" if i < 4 else "leaf 4, partial")
    drawing.line(20, 170, 20, 196)
    drawing.line(150, 170, 740, 196)
    drawing.words(30, 190, "A leaf has 2048 consecutive elements:")
    for i in range(8):
        shown, x = (str(i) if i < 5 else "..." if i < 7 else "255"), 20 + 90 * i
        for j, first in enumerate((f"x[{shown}]", f"x[{shown}+256]", f"x[{shown}+512]")):
            drawing.box(x, 262 + 22 * j, 80, 20, GREY, "..." if shown == "..." else first)
        drawing.words(x + 40, 346, "..., up to 8", "middle")
    drawing.tree([60 + 90 * i for i in range(8)], 260, 18)
    drawing.words(20, 372, "256 residues: each adds its elements in order; the same tree combines adjacent residues.")

    drawing.words(20, 420, "A scan: groups in tiles in block tiles in superblocks", bold=True)
    levels = [
        ("group", "8 elements, in order", GREY),
        ("tile", "32 groups, 256 elements: Sklansky's scan of their totals", BLUE),
        ("block tile", "32 tiles, 8192 elements: the same", BLUE),
        ("superblock", "32 block tiles, 2^18 elements: the same, in float64", GREEN),
        ("row", "superblocks in order, in float64", GREEN),
    ]
    for i, (name, words, fill) in enumerate(levels):
        y = 440 + 38 * i
        drawing.box(20, y, 120 + 22 * i, 28, fill, name)
        drawing.words(270, y + 19, words)
        if i:
            drawing.line(30, y - 10, 30, y, arrow=True)
    return drawing.text()


def call() -> str:
    drawing = Drawing(640, "The path of a call")
    drawing.box(20, 20, 330, 50, BLUE, "tr.sum(x, dim=1)", "torchreduce/ops.py: checks the arguments")
    drawing.box(410, 20, 330, 50, AMBER, "x.sum(1), after tr.enable()", "torch, then csrc/binding/aten.cpp: covered?")
    drawing.box(20, 110, 330, 50, BLUE, "serving", "torchreduce/_core/dispatch.py: selects a path")
    ways = (("plain", "the kernel"), ("gradient", "autograd first"), ("traced", "torch's dispatcher"))
    for i, way in enumerate(ways):
        drawing.box(20 + 112 * i, 200, 106, 50, GREY, *way)
    drawing.box(20, 300, 330, 50, GREEN, "torchreduce::sum", "csrc/binding/ops.cpp: by torch's stable ABI")
    drawing.box(
        *(20, 400, 720, 50, GREEN, "shape and plan"),
        "csrc/plan/shape.h folds the dims; csrc/plan/reduce_plan.cpp selects the first variant that handles it",
    )
    drawing.box(20, 500, 330, 50, BLUE, "GPU: the kernel variant", "csrc/kernels/reduce/rows.cuh and others")
    drawing.box(410, 500, 330, 50, BLUE, "CPU: the same order, in lanes", "csrc/cpu/reduce.cpp, by instruction set")
    drawing.box(20, 585, 720, 40, AMBER, "csrc/ops/reductions.h: how the op loads, combines and finishes, on both")
    for x in (73, 185, 297):
        drawing.line(x, 160, x, 200, arrow=True)
        drawing.line(x, 250, x, 300, arrow=True)
    for x, y, to_y in ((185, 70, 110), (185, 350, 400), (575, 70, 400)):
        drawing.line(x, y, x, to_y, arrow=True)
    for x in (185, 575):
        drawing.line(x, 450, x, 500, arrow=True)
        drawing.line(x, 550, x, 585, arrow=True)
    return drawing.text()


DRAWINGS = {"order.svg": order, "call.svg": call}

if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
