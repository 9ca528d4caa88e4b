"""Prints a Python that has what the project needs: this one if it has it all, else .venv's, made and filled for it.

    python3 tools/environment.py [EXTRA ...]    extras of pyproject.toml on top of what building and running need

A package counts by its presence; only a version pinned with == must be that one. Where something is missing, pip
installs it into .venv, torch first: on a machine without an NVIDIA GPU the version that the project is tested with.
"""

import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
VENV_PYTHON = ROOT / ".venv" / "bin" / "python"
TORCH = "torch" if shutil.which("nvidia-smi") else "torch==2.13.0"


def requirements(extras: list[str]) -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed = project["build-system"]["requires"] + project["project"]["dependencies"]
    return needed + [line for extra in extras for line in project["project"]["optional-dependencies"][extra]]


def is_met(requirement: str) -> bool:
    name, pin = re.fullmatch(r"([\w-]+)(?:==(.+))?(?:[<>~].*)?", requirement).groups()
    if name == "ninja" and shutil.which("ninja"):
        return True
    try:
        return metadata.version(name) == (pin or metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


def main(extras: list[str]) -> None:
    if all(map(is_met, requirements(extras))):
        print(sys.executable)
    elif Path(sys.prefix) == ROOT / ".venv":
        sys.exit("incomplete")
    else:
        again = [VENV_PYTHON, __file__, *extras]
        if not VENV_PYTHON.exists() or subprocess.run(again, capture_output=True).returncode:
            fill(extras)
        print(VENV_PYTHON)


def fill(extras: list[str]) -> None:
    say(f"{sys.executable} lacks some of what is needed: making .venv")
    subprocess.run([sys.executable, "-m", "venv", ROOT / ".venv"], check=True, stdout=sys.stderr)
    pip = [VENV_PYTHON, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    for names in ([TORCH], requirements(extras)):
        say(f"pip install {' '.join(names)}")
        subprocess.run([*pip, *names], check=True, stdout=sys.stderr)


def say(line: str) -> None:
    """Standard output is for the Python that is found."""
    print(f"torchreduce: {line}", file=sys.stderr, flush=True)


main(sys.argv[1:])
