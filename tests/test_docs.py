"""What users read: the examples of docstrings and README, and the names that README and docs/ mention."""

import doctest
import importlib
import math
import pkgutil
import re
from pathlib import Path

import pytest
import torch

import torchreduce as tr
from torchreduce._tools.demo import FUNCTIONS as FUNCTIONS_SHOWN

ROOT = Path(__file__).parents[1]
FUNCTIONS = sorted(set(tr.__all__) - {"__version__"})


@pytest.mark.parametrize("module", ["torchreduce", "torchreduce.ops", "torchreduce.determinism", "torchreduce.plans",
                                    "torchreduce.testing", "torchreduce.distributed.order", "torchreduce.ladder.calls",
                                    "torchreduce.ladder.lessons", "torchreduce.auditing.follow",
                                    "torchreduce.auditing.hashes"])  # fmt: skip
def test_doctests(module):
    result = doctest.testmod(importlib.import_module(module))
    assert result.failed == 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_public_function_has_an_example_that_runs(name):
    f = getattr(tr, name)
    examples = doctest.DocTestFinder(recurse=False).find(f, name)
    assert examples and any(test.examples for test in examples), f"{name} has no doctest"
    runner = doctest.DocTestRunner()
    for test in examples:
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def named(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", DOCS, ids=named)
def test_the_python_of_pages_runs(path):
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
    assert blocks or path.name != "README.md" or path.parent != ROOT
    names = {}
    for block in blocks:
        exec(compile(block, path.name, "exec"), names)


@pytest.mark.parametrize("path", DOCS, ids=named)
def test_every_name_that_is_mentioned_exists(path):
    text = re.sub(r"```diff\n.*?```", "", path.read_text(), flags=re.DOTALL)  # what is not there yet
    for name in set(re.findall(r"\btorchreduce(?:\.[A-Za-z_]\w*)+", text)):
        if name.startswith("torchreduce.integrations."):  # imports its framework, which may be missing
            module, _, function = name.split(".", 2)[2].partition(".")
            source = (ROOT / "torchreduce" / "integrations" / f"{module}.py").read_text()
            assert not function or f"\ndef {function}(" in source, name
        else:
            pkgutil.resolve_name(name)  # an ImportError or AttributeError if there is none


def anchors(path):
    """Of the headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCS, ids=named)
def test_links_lead_somewhere(path):
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if link.startswith("http"):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def paragraphs(text):
    """Of prose: neither code, tables, lists, headings nor pictures."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return [block for block in re.split(r"\n\s*\n", text) if not re.match(r"\s*(?:[|#>!<-]|    )", block)]


def test_the_readme_is_short():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    assert max(len(block.strip().splitlines()) for block in paragraphs(text)) <= 5


def test_the_readme_opens_with_two_commands():
    """What they show is on the first screen, and is so."""
    opening = "\n".join((ROOT / "README.md").read_text().splitlines()[:40])
    demo, test = re.findall(r"^    make (\w+) +# (.*)$", opening, re.MULTILINE)
    assert demo[0] == "demo" and "minutes" in demo[1] and f"compares {len(FUNCTIONS_SHOWN)} functions" in demo[1]
    assert test[0] == "test" and "minutes" in test[1]


def test_every_promise_of_the_readme_has_its_test():
    promises = (ROOT / "README.md").read_text().split("## Promises")[1].split("\n## ")[0]
    rows = [line.split("|")[2] for line in promises.splitlines() if line.startswith("| ") and "promise" not in line]
    defined = set(
        re.findall(r"^def (test_\w+)", "\n".join(p.read_text() for p in ROOT.glob("tests/*.py")), re.MULTILINE)
    )
    assert len(rows) >= 8
    for row in rows:
        named = set(re.findall(r"`(test_\w+)`", row))
        assert named and named <= defined, row


def rows_of(section):
    """Of a table: the cells of each row."""
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]


def test_the_way_to_a_kernel_is_as_contributing_says():
    """Each file of its table is there, and has the names that stand beside it."""
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## From tr.sum to its kernel")[1].split("\n## ")[0]
    rows = rows_of(section)
    hops = [(file, re.findall(r"`(\w+)`", names)) for _, file, names, _ in rows]
    assert len(hops) >= 6 and [row[0] for row in rows if row[0]] == ["1", "2", "3"]
    for file, names in hops:
        text = (ROOT / file).read_text()
        assert names and all(re.search(rf"\b{name}\b", text) for name in names), file


def test_files_that_are_mentioned_exist():
    for path in (ROOT / "CONTRIBUTING.md", ROOT / "docs" / "designs.md", ROOT / "docs" / "performance.md"):
        for file in re.findall(
            r"\b(?:csrc|torchreduce|tests|benchmarks|docs)/[\w/]+\.(?:h|cuh|cu|cpp|py|md)\b", path.read_text()
        ):
            assert (ROOT / file).exists(), f"{path.name}: {file}"


def test_from_torchs_calls_to_torchreduces():
    """The code in both columns of the first table gives the same, that in the second what stands beside it."""
    page = (ROOT / "docs" / "from-torch.md").read_text()
    torch.manual_seed(0)
    names = {"torch": torch, "F": torch.nn.functional, "tr": tr, "math": math}
    names |= {"x": torch.randn(4, 8), "labels": torch.tensor([0, 3, 7, 0])}
    pairs = 0
    for theirs, ours in rows_of(page.split("\n## The same call\n")[1].split("\n## ")[0]):
        calls = re.findall(r"`([^`]*\([^`]*)`", ours)
        for call, expected in zip(calls, re.findall(r"`([^`]*\([^`]*)`", theirs)[-len(calls) :], strict=True):
            torch.testing.assert_close(eval(call, names), eval(expected, names), rtol=1e-5, atol=1e-5)
            pairs += 1
    assert pairs >= 20
    for call, ours, _ in rows_of(page.split("\n## Different results\n")[1].split("\n## ")[0]):
        code, value = (re.search(r"`([^`]+)`", cell)[1] for cell in (call, ours))
        result = eval(code if code.startswith("torch.") else f"tr.{code}", names)
        expected = torch.tensor(eval(value, names), dtype=result.dtype)
        torch.testing.assert_close(result, expected, equal_nan=True, rtol=0, atol=0)
        assert torch.equal(result.signbit(), expected.signbit())


def test_the_site_has_every_page():
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= listed  # tools/pages.py makes others
