"""What mkdocs calls as it builds the site (mkdocs.yml): pages that are made, and links.

Made are the pages of functions, from the docstrings, and those of files that are not in docs/: README, CONTRIBUTING and
CHANGELOG. Links between pages are those of the repository, so that both can be read; links to what is no page, as a
test or a kernel, become its name alone.
"""

import importlib
import inspect
import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Files of the repository that are pages, beside those in docs/.
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
# Of each page of functions: its title, what it answers, and the modules whose public names it has.
API = {
    "reductions": ("Reductions", "Arguments, results and promises of each reduction.", ("ops", "norms")),
    "rows": (
        "Softmax, norms and losses",
        "Arguments and results of softmax, variances, norms and losses.",
        ("rowwise", "channels"),
    ),
    "scans": ("Scans", "Arguments and results of each scan.", ("scans",)),
    "scatters": (
        "Segments and scatters",
        "Arguments and results of segments, of each scatter and of bags.",
        ("segmented", "scatters", "bags"),
    ),
    "nn": ("Modules", "Modules that replace those of torch.nn.", ("nn",)),
    "distributed": (
        "Several processes",
        "Sums over processes, and over the micro-batches that they share.",
        ("distributed",),
    ),
    "switches": (
        "Override, determinism, plans",
        "Override torch functions, set the determinism level, and show the kernel of a call.",
        ("override", "override.promises", "determinism", "plans"),
    ),
    "audit": ("Audit", "Find the op that makes results differ.", ("auditing",)),
    "testing": ("Testing", "Check that results are bitwise identical.", ("testing",)),
}
NAMED = (
    "torchreduce.nn",
    "torchreduce.testing",
    "torchreduce.distributed",
)  # modules whose names are not those of torchreduce itself


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=relinked(text, source)))
    for name in API:
        files.append(File.generated(config, f"api/{name}.md", content=api_page(name)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    made = {*PAGES.values(), *(f"api/{name}.md" for name in API)}
    return markdown if page.file.src_uri in made else relinked(markdown, f"docs/{page.file.src_uri}")


def relinked(text: str, source: str) -> str:
    """With links as they are on the site, of a page that is this file of the repository."""
    here = os.path.dirname(page_of(source) or "")

    def link(match: re.Match[str]) -> str:
        words, target, anchor = match[1], match[2], match[3] or ""
        if re.match(r"https?:", target) or not target:
            return match[0]
        page = page_of(os.path.normpath(os.path.join(os.path.dirname(source), target)))
        if page is None:
            return words.removeprefix("!")[1:-1]
        return f"{words}({os.path.relpath(page, here or '.')}{anchor})"

    return re.sub(r"(!?\[[^\]\n]*\])\(([^)#\s]*)(#[^)\s]*)?\)", link, text)


def page_of(source: str) -> str | None:
    """Where a file of the repository is on the site; None where it is not."""
    return PAGES.get(source) or (source.removeprefix("docs/") if source.startswith("docs/") else None)


def api_page(name: str) -> str:
    title, answer, modules = API[name]
    parts = [f"# {title}\n\n{answer}\n"]
    for module in map(importlib.import_module, (f"torchreduce.{name}" for name in modules)):
        prose, _ = split(inspect.getdoc(module) or "")
        common = prose.partition("Common to")
        if common[1]:
            parts.append(marked(f"Common to{common[2]}"))
        for public, value in members(module):
            prose, example = split(inspect.getdoc(value) or "")
            qualified = f"torchreduce.{public}" if module.__name__ not in NAMED else f"{module.__name__}.{public}"
            parts.append(f"## {public}\n\n```python\n{signature(qualified, value)}\n```\n\n{marked(prose)}\n")
            if example:
                parts.append(f"```pycon\n{example}\n```\n")
    return "\n".join(parts)


def members(module: Any) -> list[tuple[str, Any]]:
    """The public functions and classes of a module, with their names, in the order of the files."""
    import torchreduce

    names = [n for n in vars(module) if not n.startswith("_")] if module.__name__ in NAMED else torchreduce.__all__
    found = [(name, getattr(module, name, None)) for name in names]
    mine = [
        (n, v) for n, v in found if callable(v) and f"{getattr(v, '__module__', '')}.".startswith(f"{module.__name__}.")
    ]
    mine = [(n, v) for n, v in mine if inspect.getdoc(v)]
    return sorted(mine, key=lambda member: (member[1].__module__, inspect.getsourcelines(member[1])[1]))


def signature(name: str, value: Any) -> str:
    """A line, or a line a parameter where that is too long."""
    try:
        text = inspect.signature(value)
    except ValueError:
        return name
    line = re.sub(r"\b(?:torch|collections\.abc|typing)\.(?=[A-Z])", "", f"{name}{text}")
    if len(line) <= 100:
        return line
    head, _, rest = line.partition("(")
    inside, _, result = rest.rpartition(")")
    return f"{head}(\n    {re.sub(r', (?=[*]|[a-z_]+:)', f',{chr(10)}    ', inside)},\n){result}"


def split(doc: str) -> tuple[str, str]:
    """A docstring's prose, and its example."""
    prose, mark, example = doc.partition(">>>")
    return prose.strip(), (mark + example).strip()


def marked(prose: str) -> str:
    """Plain text as markdown: what would be emphasis, links or tags is not. Lists get the empty line they need."""
    lines = [line if line.startswith("    ") else re.sub(r"([*_<\[\]])", r"\\\1", line) for line in prose.splitlines()]
    return re.sub(r"(?m)^((?!- |  )\S.*)\n(?=- )", r"\1\n\n", "\n".join(lines)) + "\n"
