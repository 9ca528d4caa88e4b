"""What users read: the examples of docstrings and README, and the names that README and docs/ mention."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import torchreduce as tr

ROOT = Path(__file__).parents[1]
FUNCTIONS = sorted(set(tr.__all__) - {"__version__"})


@pytest.mark.parametrize("module", ["torchreduce", "torchreduce.ops", "torchreduce.determinism", "torchreduce.plans",
                                    "torchreduce.testing"])  # fmt: skip
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


def test_the_readmes_python_runs():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    names = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda p: p.name)
def test_every_name_that_is_mentioned_exists(path):
    for name in set(re.findall(r"\btorchreduce(?:\.[A-Za-z_]\w*)+", path.read_text())):
        pkgutil.resolve_name(name)  # an ImportError or AttributeError if there is none
