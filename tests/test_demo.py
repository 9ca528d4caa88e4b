"""What a newcomer runs first: the demo, and the functions that `bench` offers."""

import pytest
import torch
from cases import ROWS

import torchreduce as tr
from torchreduce import bench, demo
from torchreduce.table import LOOKING_TWICE


def test_the_demo_shows_every_function_of_its_table(monkeypatch, capsys):
    shapes = [((40, 30), 1, torch.float32), ((40, 30), 0, torch.bfloat16), ((4, 5, 6), (1, 2), torch.float32),
              ((40, 30), 1, torch.int32)]  # fmt: skip
    monkeypatch.setattr(demo, "SHAPES", shapes)
    monkeypatch.setattr(demo, "BUDGET", 0)
    assert demo.run("cpu") == 0
    shown = capsys.readouterr().out
    assert "bit checks passed" in shown and all(name in shown for name in demo.FUNCTIONS)
    assert {"sum", "mean", "amax", "argmax", "max", "cumsum", "cummax", "softmax"} <= set(demo.FUNCTIONS)


@pytest.mark.parametrize("op", bench.operations())
def test_bench_offers_what_both_can(op):
    for dtype in bench.operations()[op]:
        x = torch.ones(4, 5, dtype=getattr(torch, dtype))
        for module in (tr, torch):
            getattr(module, op)(x, 1)
    assert op in ROWS or op in LOOKING_TWICE
