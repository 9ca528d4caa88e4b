"""What a newcomer runs first: the demo, and the functions that `bench` offers."""

import pytest
import torch
from cases import ROWS

import torchreduce as tr
from torchreduce._tools import bench, demo
from torchreduce.table import LOOKING_TWICE


def test_the_demo_shows_every_function_of_its_table(monkeypatch, capsys):
    shapes = [((40, 30), 1, torch.float32), ((40, 30), 0, torch.bfloat16), ((4, 5, 6), (1, 2), torch.float32),
              ((40, 30), 1, torch.int32)]  # fmt: skip
    monkeypatch.setattr(demo, "SHAPES", shapes)
    monkeypatch.setattr(demo, "BUDGET", 0)
    assert demo.run("cpu") == 0
    title, heading, *lines, last = capsys.readouterr().out.splitlines()
    assert tr.__version__ in title and heading == demo.HEADING
    assert [line.split()[1] for line in lines] == list(demo.FUNCTIONS)  # a line each, as it was run
    assert all(line.split()[3:6] == ["same", "same", "-"] for line in lines)
    assert last.startswith("All ") and f"{len(demo.FUNCTIONS)} functions" in last and "bitwise identical" in last
    assert {"sum", "mean", "amax", "argmax", "max", "cumsum", "cummax", "softmax"} <= set(demo.FUNCTIONS)


def test_the_demo_says_what_differs(monkeypatch, capsys):
    """Also in a row for each call, where that is asked for."""
    monkeypatch.setattr(demo, "SHAPES", [((40, 30), 1, torch.float32)])
    monkeypatch.setattr(demo, "FUNCTIONS", {"sum": (torch.float32,)})
    monkeypatch.setattr(demo, "BUDGET", 0)
    monkeypatch.setattr(demo, "alone_as_in_batch", lambda *_: False)
    assert demo.run("cpu", table=True) == 1
    *shown, last = capsys.readouterr().out.splitlines()
    assert shown[2].split()[:5] == ["cpu", "sum", "1", "same", "1"] and "DIFFER" in shown[2]
    assert any("40x30" in line and "DIFFER" in line for line in shown) and last.startswith("1 of 2 checks failed")


@pytest.mark.parametrize("op", bench.operations())
def test_bench_offers_what_both_can(op):
    for dtype in bench.operations()[op]:
        x = torch.ones(4, 5, dtype=getattr(torch, dtype))
        for module in (tr, torch):
            getattr(module, op)(x, 1)
    assert op in ROWS or op in LOOKING_TWICE
