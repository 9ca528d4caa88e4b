"""The picture of an audit for a terminal: the tree of modules, the culprits, the coverage."""

import io

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from .result import Audit, Module

_MARKS = {"equal": ("✓", "green"), "culprit": ("✗", "bold red"), "unknown": ("·", "yellow")}
_RESULTS = {
    True: Text("bitwise identical", "green"),
    False: Text("differs", "bold red"),
    None: Text("nothing to compare"),
}


def _label(module: Module, name: str) -> Text:
    mark, style = _MARKS[module.verdict]
    kind = "" if name == module.kind else f" {module.kind}"
    return Text.assemble((f"{mark} {name}", style), (kind, "dim"))


def _tree(result: Audit) -> Tree:
    """Neighbours of equal classes and verdicts share a line."""
    children: dict[str, list[Module]] = {}
    known = {module.path for module in result.modules}
    for module in result.modules:
        parent = module.path.rpartition(".")[0]
        while parent and parent not in known:
            parent = parent.rpartition(".")[0]
        if module.path:
            children.setdefault(parent, []).append(module)
    below: dict[str, tuple[object, ...]] = {}

    def shape(module: Module) -> tuple[object, ...]:
        """Of the whole tree under a module."""
        if module.path not in below:
            below[module.path] = (
                module.kind,
                module.verdict,
                tuple((c.path[len(module.path) :], shape(c)) for c in children.get(module.path, [])),
            )
        return below[module.path]

    def add(tree: Tree, path: str) -> None:
        run: list[Module] = []
        for module in (*children.get(path, []), None):
            if module is not None and run and shape(module) == shape(run[0]):
                run.append(module)
                continue
            if run:
                first, last = (m.path[len(path) :].lstrip(".") for m in (run[0], run[-1]))
                add(tree.add(_label(run[0], first if len(run) == 1 else f"{first} to {last}")), run[0].path)
            run = [module] if module is not None else []

    [root] = [module for module in result.modules if not module.path]
    top = children.get("", [])
    if len(top) == 1 and top[0].kind == root.kind:  # the function is a module
        root = top[0]
    tree = Tree(_label(root, root.kind))
    add(tree, root.path)
    return tree


def _coverage(result: Audit) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("op", "called by", "calls", "override", "first line"):
        table.add_column(heading, no_wrap=heading in ("op", "override"))
    for row in sorted(result.coverage, key=lambda row: row.is_served):
        table.add_row(row.op, row.via, str(row.calls), Text(row.how, "green" if row.is_served else "yellow"), row.line)
    return table


def _parts(result: Audit, width: int) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if result.modules:
        parts += [_tree(result), Text()]
    for label, is_same in result.variations.items():
        parts.append(Text.assemble(f"results, {label}: ", _RESULTS[is_same]))
    parts += [Text(note, "yellow") for note in result.notes]
    for number, culprit in enumerate(result.culprits, 1):
        parts += [Text(), Text(f"culprit {number}: {culprit.text(width - 12)}", "red")]
    if result.coverage:
        parts += [Text(), Text("sums, norms, products and the like of this run:"), _coverage(result)]
    return [*parts, Text()]


def drawn(result: Audit) -> str:
    """As plain text."""
    console = Console(file=io.StringIO(), width=120, color_system=None)
    console.print(Group(*_parts(result, console.width)))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())


def show(result: Audit) -> None:
    console = Console()
    console.print(Group(*_parts(result, console.width)))
