"""The documentation's site: links, the pages of functions, drawings. make docs builds it, and fails on a warning."""

import sys
from pathlib import Path

import pytest
import torch

import torchreduce as tr

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import drawings
import pages

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("source", "link", "expected"),
    [
        ("README.md", "[a](docs/numerics.md#scans)", "[a](numerics.md#scans)"),
        ("README.md", "![a](docs/plots/sum.png)", "![a](plots/sum.png)"),
        ("README.md", "[a](tests/test_contract.py)", "a"),
        ("README.md", "[a](#limits)", "[a](#limits)"),
        ("docs/results/losses.md", "[a](../performance.md)", "[a](../performance.md)"),
        ("docs/results/losses.md", "[a](../../benchmarks/bars.py)", "a"),
        ("docs/how.md", "[a](../CONTRIBUTING.md#glossary)", "[a](contributing.md#glossary)"),
        ("docs/how.md", "[a](https://example.org/b)", "[a](https://example.org/b)"),
        ("docs/numerics.md", "`f(x)[i]` is `f(x[i:i+1])[0]`", "`f(x)[i]` is `f(x[i:i+1])[0]`"),
    ],
)
def test_links_are_those_of_the_site(source, link, expected):
    assert pages.relinked(link, source) == expected


def test_every_public_function_is_on_one_page_with_its_example():
    texts = {name: pages.api_page(name) for name in pages.API}
    for name in set(tr.__all__) - {"__version__", "nn"}:
        [page] = [text for text in texts.values() if f"\n## {name}\n" in text]
        section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
        assert f"torchreduce.{name}(" in section and ">>>" in section
    assert all(f"\n## {name}\n" in texts["nn"] for name in tr.nn.__all__)
    assert "torchreduce.testing.check_golden(" in texts["testing"]


def test_plain_text_stays_what_it_is():
    assert pages.marked("a[i] * h[i - 1] < b_c") == r"a\[i\] \* h\[i - 1\] \< b\_c" + "\n"
    assert pages.marked("Of all\n- one\n  and\n- two") == "Of all\n\n- one\n  and\n- two\n"


def test_promises_takes_names():
    with pytest.raises(TypeError, match="must be a str"):
        tr.promises(torch.sum)
    with pytest.raises(ValueError, match="nothing is said"):
        tr.promises("no such operator")


def test_the_promises_page_has_every_function():
    text = (ROOT / "docs" / "promises.md").read_text()
    for name in set(tr.__all__) - {"__version__", "nn", "promises"}:
        assert f"`{name}`" in text, name


def test_every_page_opens_with_what_it_answers():
    """A paragraph under the title, before lists, tables and headings."""
    for path in sorted((ROOT / "docs").glob("*.md")):
        title, paragraph = path.read_text().split("\n\n")[:2]
        assert title.startswith("# ") and paragraph[0] not in "#|-`", path.name


@pytest.mark.parametrize("name", drawings.DRAWINGS)
def test_drawings_are_as_drawn(name):
    assert (drawings.FOLDER / name).read_text() == drawings.DRAWINGS[name]()
