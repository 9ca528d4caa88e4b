"""setup.py says what to type where it cannot build."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_too_old_a_torch_is_refused(tmp_path):
    """By a package of that name and version that is found first."""
    for file, text in (("torch/__init__.py", ""), ("torch-2.9.1+cpu.dist-info/METADATA", "Version: 2.9.1+cpu\n")):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text(text)
    done = subprocess.run([sys.executable, "setup.py", "--version"], cwd=ROOT, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(tmp_path)})  # fmt: skip
    assert done.returncode != 0 and "2.9.1+cpu" in done.stderr and "'torch>=2.10'" in done.stderr
