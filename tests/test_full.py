"""tools/full.py: a proof is written by a full or a quick run alone, and of other sources it proves nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import full


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Sources of a line each, and a Makefile whose steps note that they ran. `broken` there fails one of them."""
    for source in full.SOURCES:
        path = tmp_path / source
        folder = "." not in path.name or source == ".ci"
        file = path / "a" if folder and source != "Makefile" else path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    steps = " ".join({*full.STEPS, *full.QUICK_STEPS})
    recipe = "\t@echo $@ >> ran && [ -z '$(PYTEST_ADDOPTS)' ] && { [ ! -e broken ] || [ $@ != simt ]; }\n"
    edit = "\t@[ ! -e edits ] || [ $@ != simt ] || echo more >> csrc/a\n"
    (tmp_path / "Makefile").write_text(f".PHONY: {steps}\n{steps}:\n{recipe}{edit}")
    (tmp_path / ".gitignore").write_text("ran\nbuild\n")
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    monkeypatch.setattr(full, "ROOT", tmp_path)
    monkeypatch.setattr(full, "compilers", lambda: {"g++": "12"})
    return tmp_path


def proved():
    try:
        full.proved()
    except SystemExit as refused:
        return str(refused)
    return True


def test_a_full_run_proves_what_it_ran_on(tree, monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k nothing")  # what would make less of it is left out
    monkeypatch.setenv("MAKEFLAGS", "-i")
    assert "missing" in proved()
    for name, steps in (("full", full.STEPS), ("quick", full.QUICK_STEPS)):
        full.run(name, steps)
        assert [line.split()[0] for line in (tree / "ran").read_text().splitlines()] == list(steps)
        (tree / "ran").unlink()
        assert proved() is True
        assert set(json.loads((tree / full.PROOF).read_text())["seconds"]) == set(steps)


@pytest.mark.parametrize("source", full.SOURCES)
def test_a_change_of_any_source_needs_another(tree, source):
    full.run("full", full.STEPS)
    path = tree / source
    file = path / "a" if path.is_dir() else path
    text = file.read_text()
    file.write_text(text + " ")
    assert "sources" in proved()
    file.write_text(text)
    assert proved() is True
    added = path / "b.cu" if path.is_dir() else None
    if added:
        added.write_text("")
        assert "sources" in proved()
        added.unlink()
        (path / "a").rename(path / "c")
        assert "sources" in proved()
        (path / "c").rename(path / "a")
    assert proved() is True


def test_other_compilers_and_other_steps_need_another(tree, monkeypatch):
    full.run("full", full.STEPS)
    with monkeypatch.context() as changed:
        changed.setattr(full, "compilers", lambda: {"g++": "13"})
        assert "compilers" in proved()
        changed.setattr(full, "compilers", lambda: {"g++": "missing"})  # what is not here compiles nothing
        assert proved() is True
    monkeypatch.setattr(full, "STEPS", (*full.STEPS, "more"))
    assert "steps" in proved()
    full.run("quick", full.QUICK_STEPS)
    assert proved() is True
    monkeypatch.setattr(full, "QUICK_STEPS", full.QUICK_STEPS[1:])
    assert "steps" in proved()


def test_a_run_that_was_cut_off_goes_on(tree):
    """With the step that did not pass; from its start where any file is another."""

    def ran():
        lines = [line.split()[0] for line in (tree / "ran").read_text().splitlines()]
        (tree / "ran").unlink()
        return lines

    at = full.STEPS.index("simt")
    (tree / "broken").touch()
    for expected in (full.STEPS[: at + 1], full.STEPS[at : at + 1]):
        with pytest.raises(SystemExit, match="simt FAILED"):
            full.run("full", full.STEPS)
        assert ran() == list(expected)
    (tree / "README.md").write_text("more")
    with pytest.raises(SystemExit, match="simt FAILED"):
        full.run("full", full.STEPS)
    assert ran() == list(full.STEPS[: at + 1])
    (tree / ".gitignore").write_text("ran\nbuild\nbroken\n")
    with pytest.raises(SystemExit, match="simt FAILED"):
        full.run("full", full.STEPS)
    ran()
    (tree / "broken").unlink()  # on which nothing but the step depends
    full.run("full", full.STEPS)
    assert ran() == list(full.STEPS[at:])
    assert proved() is True
    assert set(json.loads((tree / full.PROOF).read_text())["seconds"]) == set(full.STEPS)
    full.run("full", full.STEPS)
    assert ran() == list(full.STEPS)  # that one came to its end


@pytest.mark.parametrize("what, said", [("broken", "simt FAILED"), ("edits", "sources changed meanwhile")])
def test_a_run_that_fails_or_is_edited_proves_nothing(tree, what, said):
    (tree / what).touch()
    with pytest.raises(SystemExit, match=said):
        full.run("full", full.STEPS)
    assert not (tree / full.PROOF).exists() and "missing" in proved()


def test_a_proof_that_is_damaged_proves_nothing(tree):
    full.run("full", full.STEPS)
    for text in ("", "{}", "<<<<<<< ours\n", "[]"):
        (tree / full.PROOF).write_text(text)
        assert proved() is not True


def test_the_sources_and_steps_are_there():
    assert set(full.compilers()) == set(full.COMPILERS) and "missing" not in full.compilers()["g++"]
    assert all((full.ROOT / source).exists() for source in full.SOURCES)
    tracked = subprocess.run(["git", "ls-files", "-z", *full.SOURCES], cwd=full.ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("no git repository")
    listed = {full.ROOT / name for name in tracked.stdout.split("\0") if name} - {full.ROOT / full.PROOF}
    assert listed <= set(full.files())
    targets = (full.ROOT / "Makefile").read_text()
    assert all(step in targets for step in (*full.STEPS, *full.QUICK_STEPS))
    ci = (full.ROOT / ".ci/run").read_text()
    assert all(f"{name}={value}" in ci for name, value in full.ENVIRONMENT.items()) and os.access(
        full.ROOT / ".ci/run", os.X_OK
    )
