"""setup.py says what to type where it cannot build."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name, version, least", [("torch", "2.9.1+cpu", "2.10"), ("setuptools", "66.1.1", "77")])
def test_packages_that_are_too_old(tmp_path, name, version, least):
    """By a package of that name and version that is found first."""
    for file, text in ((f"{name}/__init__.py", ""), (f"{name}-{version}.dist-info/METADATA", f"Version: {version}\n")):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text(text)
    done = subprocess.run([sys.executable, "setup.py", "--version"], cwd=ROOT, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(tmp_path)})  # fmt: skip
    assert done.returncode != 0 and f"{name} {version}" in done.stderr and f"'{name}>={least}'" in done.stderr
