"""python -m torchreduce verify: its report, and that it fails where a bit is wrong."""

import json

import pytest

from torchreduce import __main__, testing
from torchreduce._tools import verify


@pytest.fixture
def run(monkeypatch, capsys):
    """The command's exit status and what it prints."""

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["torchreduce", "verify", *arguments])
        monkeypatch.setattr(verify, "MOST_SIDE", {"cpu": 64, "cuda": 64})
        monkeypatch.setattr(verify, "golden_cases", lambda: testing.golden_cases()[::7])
        status = __main__.main()
        return status, capsys.readouterr().out

    return run


@pytest.fixture
def tampered(monkeypatch, tmp_path):
    """The name of a case whose golden bits are replaced by others."""
    golden = json.loads(testing.GOLDEN_FILE.read_text())
    name = testing.golden_cases()[7].name
    golden["cases"][name]["result"] = "0" * 16
    file = tmp_path / "golden.json"
    file.write_text(json.dumps(golden))
    monkeypatch.setattr(testing, "GOLDEN_FILE", file)
    return name


def test_it_passes_and_reports(run, device):
    status, report = run("--device", device)
    assert status == 0 and "FAILED" not in report
    for part in (__main__.info(), "golden bits", "GB/s", "matched", "cumsum"):
        assert part in report
    assert ("as planned" if device == "cuda" else testing._C.instruction_set()) in report


def test_one_wrong_hash_is_found(run, device, tampered):
    status, report = run("--device", device)
    failures = [line for line in report.splitlines() if line.startswith("FAILED")]
    assert status == 1 and failures and all(tampered in line for line in failures)
    assert f"{len(failures)} of " in report


def test_a_call_that_raises_is_a_failure(run, monkeypatch):
    def fail(case, x):
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(testing.Golden, "result", fail)
    status, report = run("--device", "cpu")
    assert status == 1 and "no kernel image" in report


def test_a_gpu_that_is_not_there_is_an_error(run, monkeypatch, capsys):
    monkeypatch.setattr("torchreduce._tools.demo.gpu_usable", lambda: False)
    with pytest.raises(SystemExit):
        run("--device", "cuda")
    assert "no GPU" in capsys.readouterr().err
