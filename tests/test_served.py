"""benchmarks.served: which of torch's reductions models call, and which the override serves."""

import sys

import pytest
import torch

from benchmarks import served, served_models

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("op", "args", "combines"),
    [
        (aten.exp.default, lambda x: (x,), False),
        (aten.add.Tensor, lambda x: (x, x.clone()), False),
        (aten.copy_.default, lambda x: (torch.zeros(4, 6), x), False),
        (aten.index_select.default, lambda x: (x, 0, torch.tensor([0, 0, 2])), False),
        (aten.native_dropout.default, lambda x: (x, 0.5, True), False),
        (aten.sum.default, lambda x: (x,), True),
        (aten.cumsum.default, lambda x: (x, 1), True),
        (aten.native_group_norm.default, lambda x: (x[None].clone(), None, None, 1, 4, 6, 2, 1e-5), True),
        (aten.avg_pool2d.default, lambda x: (x[None].clone(), [2, 2], [1, 1]), True),
        (aten.upsample_bilinear2d.default, lambda x: (x[None, None].clone(), [3, 3], False), True),
        (aten._fft_r2c.default, lambda x: (x, [1], 0, True), True),
    ],
)
def test_ops_that_combine_elements_are_told_from_others(op, args, combines):
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    assert served.combines(op, args(x), {}) == combines


def test_what_is_not_overridden_is_found_without_a_list():
    def step():
        x = torch.randn(3, 8, 4, requires_grad=True)
        torch.nn.functional.avg_pool1d(torch.logcumsumexp(x, 1), 2, 1).exp().sum().backward()

    found = served.calls_of(step)
    assert found["sum"].served and found["logcumsumexp"].served
    of_torch = {name for name, calls in found.items() if calls.torchs}
    assert of_torch and all(name.startswith("avg_pool") for name in of_torch), of_torch


MODELS = ("TransformerEncoder", "Llama-like", "GRPO", "GRU", "ResNet", "ResNet, group norm", "graph attention",
          "mixture of experts", "VAE", "contrastive", "recommender", "WaveNet-like", "actor and critic")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_95_percent_of_the_reductions_of_a_model_are_served(name):
    torch.manual_seed(0)
    of_ours, total = served.share(iter(served.calls_of(served_models.OF_TORCH[name]()).values()))
    assert total >= 5 and of_ours >= 0.95 * total


def test_the_table_has_a_row_for_each_model_and_function(monkeypatch, capsys, tmp_path):
    file = tmp_path / "served.md"
    monkeypatch.setattr(sys, "argv", ["served", "--model", "VAE", "--model", "recommender", "--markdown", str(file)])
    served.main()
    text = file.read_text()
    assert "| VAE |" in text and "| recommender |" in text and "| `embedding_bag` |" in text
    assert capsys.readouterr().out.strip() == text.strip()
    monkeypatch.setattr(sys, "argv", ["served", "--model", "no"])
    with pytest.raises(SystemExit):
        served.main()
    assert "no model 'no'; there are TransformerEncoder," in capsys.readouterr().err
