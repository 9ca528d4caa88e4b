"""The examples, at a tiny size: what they say about themselves holds."""

import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torchreduce as tr
from torchreduce.testing import assert_bitwise_equal

FOLDER = Path(__file__).parents[1] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LM = {"length": 48, "width": 96, "heads": 4, "layers": 1}


def test_a_language_model_has_the_same_bits_alone_and_in_any_batch(device_of_products):
    held = example("train_lm").demonstrate(device_of_products, 3, 3, True, True, **LM)
    assert len(held) == 5
    assert all(held.values()), held


def test_its_losses_are_torchs_but_for_roundings(device):
    train_lm = example("train_lm")

    def losses():
        torch.manual_seed(0)
        return train_lm.train(train_lm.GPT(**LM).to(device), 4, 6, device)

    expected, before = losses(), tr.coverage()
    with tr.enabled(cpu=True, compile=False):
        got = losses()
    served = {name: row["served"] - before[name]["served"] for name, row in tr.coverage().items()}
    assert got == pytest.approx(expected, rel=1e-4)
    for name in ("_softmax", "_log_softmax", "native_layer_norm", "native_layer_norm_backward", "nll_loss_forward",
                 "_softmax_backward_data", "_log_softmax_backward_data", "embedding_dense_backward"):  # fmt: skip
        assert served[name] >= 4, name


def test_prompts_have_the_same_log_probabilities_alone_and_in_any_batch(device_of_products):
    """Without the override they do not, on a CPU: else this would show nothing. A GPU never splits small products."""
    shape = {"vocabulary": 96, "width": 128, "heads": 2, "layers": 2}
    parity = example("parity")
    held = parity.demonstrate(device_of_products, True, True, 8, 64, **shape)
    assert set(held) == {
        *(f"in batches of {n}" for n in (2, 4, 8)),
        *("in another order", "in the trainer's forward", "compiled"),
    }
    assert all(way.count > 10_000 and way.differ == 0 for way in held.values()), held
    torchs = parity.demonstrate("cpu", False, False, 8, 64, **shape)
    assert sum(way.differ for way in torchs.values()) > 0
    torch._dynamo.reset()


def test_top_p_draws_a_token_whatever_the_batch(device):
    sampling = example("sampling")
    logits = (3 * torch.randn(5, sampling.VOCABULARY, generator=torch.Generator().manual_seed(0))).to(device)
    uniform = torch.tensor([0.0, 0.3, 0.7, 0.999, 1 - 2**-24], device=device)
    tokens = sampling.top_p(logits, 0.9, uniform)
    alone = torch.cat([sampling.top_p(logits[i : i + 1], 0.9, uniform[i : i + 1]) for i in range(5)])
    assert torch.equal(tokens, alone)
    assert torch.equal(sampling.top_p(logits, 1e-9, uniform), logits.argmax(1))
    likely, order = logits.double().softmax(1).sort(dim=1, descending=True)
    rank = (order == tokens[:, None]).int().argmax(1, keepdim=True)
    mass = likely.cumsum(1)
    kept = mass.gather(1, (mass < 0.9).sum(1, keepdim=True)).squeeze(1)
    after, at = mass.gather(1, rank).squeeze(1), likely.gather(1, rank).squeeze(1)
    assert ((after - at <= uniform * kept + 1e-5) & (uniform * kept <= after + 1e-5)).all()


def test_top_p_draws_by_the_probabilities():
    sampling = example("sampling")
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    n = 20000
    uniform = (torch.arange(n) + 0.5) / n
    tokens = sampling.top_p(p.log().expand(n, 4), 0.9, uniform)
    counts = torch.bincount(tokens, minlength=4) / n
    torch.testing.assert_close(counts, torch.tensor([0.5, 0.3, 0.15, 0]) / 0.95, atol=1e-4, rtol=0)


def test_returns_and_advantages_are_those_of_a_loop(device):
    returns = example("returns")
    generator = torch.Generator().manual_seed(0)
    rewards, values = (torch.randn(6, 300, generator=generator, dtype=torch.float64).to(device) for _ in range(2))
    done = (torch.rand(6, 300, generator=generator) < 0.05).to(device)
    after = torch.ones(6, dtype=torch.float64, device=device)
    going = (~done).double()
    later, gae, expected, expected_gae = after, torch.zeros_like(after), [], []
    for t in reversed(range(300)):
        following = values[:, t + 1] if t < 299 else after
        later = rewards[:, t] + 0.99 * going[:, t] * later
        gae = rewards[:, t] + 0.99 * going[:, t] * following - values[:, t] + 0.99 * 0.95 * going[:, t] * gae
        expected.insert(0, later)
        expected_gae.insert(0, gae)
    torch.testing.assert_close(returns.discounted_returns(rewards, done, 0.99, after), torch.stack(expected, 1))
    torch.testing.assert_close(
        returns.advantages(rewards, values, after, done, 0.99, 0.95), torch.stack(expected_gae, 1)
    )
    alone = returns.discounted_returns(rewards[2:3], done[2:3], 0.99, after[2:3])
    assert_bitwise_equal(alone, returns.discounted_returns(rewards, done, 0.99, after)[2:3])


def test_packed_episodes_have_the_advantages_of_each_alone(device):
    returns = example("returns")
    generator = torch.Generator().manual_seed(0)
    offsets = torch.tensor([0, 1, 40, 40, 290], device=device)
    rewards, values = (torch.randn(290, generator=generator).to(device) for _ in range(2))
    after = torch.randn(4, generator=generator).to(device)
    packed = returns.packed_advantages(rewards, values, after, offsets, 0.99, 0.95)
    for k, (begin, end) in enumerate(itertools.pairwise(offsets.tolist())):
        part = slice(begin, end)
        of_one = offsets.new_tensor([0, end - begin])
        alone = returns.packed_advantages(rewards[part], values[part], after[k : k + 1], of_one, 0.99, 0.95)
        assert_bitwise_equal(packed[part], alone)
        if begin < end:
            done = torch.zeros(1, end - begin, dtype=torch.bool, device=device)
            row = returns.advantages(rewards[None, part], values[None, part], after[k : k + 1], done, 0.99, 0.95)
            torch.testing.assert_close(packed[None, part], row)


def test_a_state_space_layer_is_its_loop_and_carries_its_state(device):
    torch.manual_seed(0)
    layer = example("ssm").SelectiveSSM(5, states=3).to(device).double()
    x = torch.randn(2, 40, 5, dtype=torch.float64, device=device)
    begins = torch.zeros(2, 40, dtype=torch.bool, device=device)
    begins[:, 17] = True
    y, last = layer(x, begins)
    state, steps = None, []
    for t in range(40):
        out, state = layer(x[:, t : t + 1], begins[:, t : t + 1], state)
        steps.append(out)
    torch.testing.assert_close(torch.cat(steps, 1), y)
    torch.testing.assert_close(state, last)
    packed, _ = layer(x[:, 17:])  # what precedes the second document does not show in it
    torch.testing.assert_close(packed, y[:, 17:])
    gradients = torch.autograd.grad(y.sum(), list(layer.parameters()))
    assert all(g.isfinite().all() and g.abs().sum() > 0 for g in gradients)


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_run_on_other_numbers_of_processes_has_the_same_losses_and_weights():
    command = [sys.executable, str(FOLDER / "elastic.py"), "--device=cpu", "--steps=4", "--length=24", "--width=32",
               "--layers=1", "--wrappers", "ddp", "fsdp"]  # fmt: skip
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(FOLDER.parent)}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("yes ") == 6 and "NO " not in done.stdout


@pytest.mark.parametrize("name", ["graph", "moe"])
def test_sums_by_index_have_the_same_bits_alone_and_in_batches(name, device):
    held = example(name).demonstrate(device)
    assert len(held) == 3
    assert all(held.values()), held


@pytest.mark.parametrize("width", [512, 250])
def test_an_audit_of_a_language_model_is_red_with_torchs_kernels_and_green_with_ours(width, device_of_products):
    """With rows of 250 elements, torch's silu may depend on the place in memory, on a CPU."""
    audit_llm = example("audit_llm")
    results = audit_llm.demonstrate(device_of_products, width)
    if device_of_products == "cpu":  # a GPU never splits small products
        assert "mm" in {culprit.op for culprit in results["torch"].culprits}
    found = {culprit.op for culprit in results["torchreduce"].culprits}
    assert found <= ({"silu"} if device_of_products == "cpu" and width == 250 else set()), str(results["torchreduce"])


def test_the_audit_takes_the_llama_of_transformers_where_it_is_installed():
    pytest.importorskip("transformers")
    results = example("audit_llm").demonstrate("cpu", use_transformers=True)
    assert not results["torch"].ok and results["torchreduce"].ok, str(results["torchreduce"])


@pytest.mark.parametrize("name", ["sampling", "returns", "ssm", "graph", "moe"])
def test_the_scripts_run(name, device, capsys):
    example(name).main(device)
    assert "False" not in capsys.readouterr().out
