"""What a stranger meets first: versions, types, tab completion, help, the forms for issues."""

import os
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest

import torchreduce as tr
from torchreduce import __main__, testing

ROOT = Path(__file__).parents[1]


def test_the_version_is_that_of_pyproject():
    stated = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    assert tr.__version__ == stated == newest


def test_info_says_the_version_and_the_contracts():
    lines = dict(line.split(maxsplit=1) for line in __main__.info().splitlines())
    assert lines["torchreduce"] == tr.__version__
    assert lines["contract"] == f"version {testing.CONTRACT_VERSION}"
    assert f"contract, version {testing.CONTRACT_VERSION}" in (ROOT / "docs/numerics.md").read_text().splitlines()[0]


def test_modules_come_when_they_are_asked_for():
    code = (
        "import torchreduce as t, sys; assert 'torchreduce.ladder' not in sys.modules; t.testing.check_golden; t.ladder"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    with pytest.raises(AttributeError, match="no attribute 'testin'"):
        tr.testin  # noqa: B018


def test_completion_offers_what_is_public_and_nothing_else():
    assert dir(tr) == sorted(tr.__all__)
    assert all(hasattr(tr, name) for name in dir(tr))


@pytest.mark.parametrize("name", [name for name in tr.__all__ if name not in ("__version__", "nn")])
def test_help_reads_well(name):
    """A paragraph that says what it is, then an example; lines that fit, no name of an internal."""
    doc = pydoc.getdoc(getattr(tr, name))
    prose, example, _ = doc.partition(">>>")
    assert prose.split("\n\n")[0].rstrip().endswith((".", ":")) and example
    assert max(map(len, doc.splitlines())) <= 120
    assert not re.search(r"(?<![\w.])_[a-z]\w+", prose), doc


SNIPPET = """
import torch
import torchreduce as tr
from typing_extensions import assert_type

x = torch.randn(4, 8)
assert_type(tr.sum(x, dim=1), torch.Tensor)
assert_type(tr.softmax(x, 1), torch.Tensor)
values, indices = tr.max(x, dim=1)
with tr.enabled(cpu=True), tr.determinism("invariant"):
    x.sum()
tr.set_determinism("fast")
assert_type(tr.__version__, str)
"""
WRONG = 'tr.sum(x, dim="rows")\ntr.determinism("exact")\ntr.sums(x)\n'


@pytest.mark.long
def test_a_users_code_passes_mypy_and_wrong_calls_do_not(tmp_path):
    """As with the installed package: mypy believes one by its py.typed alone."""
    pytest.importorskip("mypy")  # make test installs it; machines with a GPU come as they are
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "torchreduce").symlink_to(ROOT / "torchreduce")
    (tmp_path / "user.py").write_text(SNIPPET + WRONG)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={ROOT / '.mypy_cache'}", "user.py"],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
    )  # fmt: skip
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    first = len(SNIPPET.splitlines()) + 1
    assert [line.split(":")[1] for line in errors] == [str(first), str(first + 1), str(first + 2)], done.stdout


def test_the_forms_for_issues_ask_for_what_is_needed():
    forms = {path.stem: path.read_text() for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")}
    assert set(forms) == {"bug", "wrong_bits", "slow_shape"}
    for text in forms.values():
        assert "python -m torchreduce info" in text and "python -m torchreduce verify" in text and "AMD" in text
