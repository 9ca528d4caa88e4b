"""The examples that users read: docstrings and README."""

import doctest
import importlib
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
