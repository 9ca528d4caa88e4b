"""torchreduce.integrations, with the installed frameworks: make test-integrations installs them.

Each test is skipped, and says so, where its framework is missing. All but those of Replacement are slow: importing the
frameworks takes long.
"""

import importlib
import importlib.util
import os
import re
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest
import torch

import torchreduce as tr
from torchreduce.integrations.replace import Replacement
from torchreduce.testing import assert_bitwise_equal

ROOT = Path(__file__).parents[1]
FRAMEWORKS = ("kernels", "transformers", "trl", "verl", "torchtitan")


def needs(*packages):
    """Of modules and tests: skipped where one of the packages is missing."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    why = f"{', '.join(missing)} not installed: make test-integrations"
    return (pytest.mark.slow, pytest.mark.skipif(bool(missing), reason=why))


def marked(*packages):
    def mark(test):
        for each in needs(*packages):
            test = each(test)
        return test

    return mark


def adapter(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the frameworks
        return importlib.import_module(f"torchreduce.integrations.{name}")


# ---- functions of a package ------------------------------------------------------------------------------------------


@pytest.fixture
def package(monkeypatch):
    """A package with a function, and a module that has imported it under another name."""
    home, user = types.ModuleType("some_package.home"), types.ModuleType("some_package.user")
    other = types.ModuleType("some_packages")
    home.f = other.f = user.g = lambda: "theirs"
    user.g = other.f = home.f
    for module in (home, user, other):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return home, user, other


def test_a_function_is_replaced_wherever_its_package_refers_to_it(package):
    home, user, other = package
    before = home.f
    replacement = Replacement(home, {"f": lambda: "ours", "not_there": print})
    for _ in range(2):
        replacement.do()
        assert home.f() == user.g() == "ours" and other.f() == "theirs"
        replacement.do()  # again
        late = types.ModuleType("some_package.late")
        late.f = home.f  # imported meanwhile
        sys.modules[late.__name__] = late
        replacement.undo()
        assert home.f is user.g is late.f is before
        del sys.modules[late.__name__]


def test_a_module_of_another_release_is_an_error(package):
    with pytest.raises(ImportError, match=r"some_package\.home has none of no, such; torchreduce knows other releases"):
        Replacement(package[0], {"no": print, "such": print})


# ---- transformers ----------------------------------------------------------------------------------------------------


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, attn_implementation="eager")
    return LlamaForCausalLM(config)


@marked("kernels", "transformers")
def test_a_llama_has_our_norms_and_its_own_parameters(device):
    kernelize = adapter("transformers").kernelize
    model, tokens = llama().to(device), torch.randint(64, (3, 5), device=device)
    names, before = list(model.state_dict()), model(tokens, labels=tokens)
    assert kernelize(model) is model and list(model.state_dict()) == names
    after = model(tokens, labels=tokens)
    torch.testing.assert_close(after.logits, before.logits, rtol=1e-5, atol=1e-6)
    after.loss.backward()
    norm, x = model.model.norm, torch.randn(7, 64, device=device)
    expected = tr.rms_norm(x, 64, norm.weight, norm.variance_epsilon)
    assert_bitwise_equal(norm(x).detach(), expected.detach())
    x = x.bfloat16()
    assert norm(x).dtype is torch.float32 and norm.bfloat16()(x).dtype is torch.bfloat16


@marked("kernels", "transformers")
def test_the_rows_of_a_llama_do_not_depend_on_the_batch(device_of_products):
    model, tokens = adapter("transformers").kernelize(llama().eval().to(device_of_products)), torch.randint(64, (6, 5))
    tokens = tokens.to(device_of_products)
    with torch.no_grad(), tr.enabled(cpu=True, compile=False, products="float32"):
        whole = model(tokens).logits
        for i in range(6):
            assert_bitwise_equal(model(tokens[i : i + 1]).logits, whole[i : i + 1])


@marked("kernels", "transformers")
def test_a_kernelized_model_compiles_without_breaks():
    model, tokens = adapter("transformers").kernelize(llama()), torch.randint(64, (2, 5))
    norm = torch.compile(model.model.norm, backend="aot_eager", fullgraph=True)
    x = torch.randn(2, 5, 64)
    assert_bitwise_equal(norm(x).detach(), model.model.norm(x).detach())
    assert model.train()(tokens).logits.requires_grad  # train() does not look for kernels on the hub


@marked("kernels", "transformers")
@pytest.mark.timeout(600)
def test_every_norm_that_transformers_registers_is_ours_but_for_roundings():
    """Of every model: the classes that are registered as RMSNorm have a weight and an epsilon, and no other formula."""
    import transformers

    kernelize, classes = adapter("transformers").kernelize, {}
    for path in sorted((Path(transformers.__file__).parent / "models").glob("*/modeling_*.py")):
        if 'use_kernel_forward_from_hub("RMSNorm")' in path.read_text():
            module = importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}")
            classes |= {f: None for f in vars(module).values() if getattr(f, "kernel_layer_name", None) == "RMSNorm"}
    assert len(classes) >= 50
    for kind in classes:
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
            norm, x = kind(24).to(dtype), torch.randn(3, 24, dtype=dtype)
            torch.nn.init.normal_(norm.weight)
            expected = norm(x)
            got = kernelize(norm)(x)
            assert "torchreduce" in norm.forward.__func__.__module__
            torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance, msg=kind.__name__)


@marked("kernels", "transformers")
def test_models_without_such_norms_are_an_error(monkeypatch):
    transformers = adapter("transformers")
    with pytest.raises(ValueError, match=r"kernelize\(\): Linear has no module that transformers registers as RMSNorm"):
        transformers.kernelize(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match=r"kernelize\(\): argument 'model' must be a torch.nn.Module, got NoneType"):
        transformers.kernelize(None)
    monkeypatch.setattr(transformers, "is_kernels_available", lambda: False)
    with pytest.raises(ImportError, match=r"kernelize\(\): transformers does not accept kernels \d"):
        transformers.kernelize(llama())


@marked("kernels", "transformers")
def test_a_missing_package_is_named_with_what_installs_it(monkeypatch):
    adapter("transformers")
    monkeypatch.setitem(sys.modules, "kernels", None)
    monkeypatch.delitem(sys.modules, "torchreduce.integrations.transformers")
    with pytest.raises(ImportError, match=r"pip install 'transformers\[kernels\]'"):
        adapter("transformers")


# ---- trl -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def of_trl():
    trl = adapter("trl")
    import trl.trainer.utils as utils

    yield trl, utils
    trl.disable()


def logits_and_tokens(dtype, shape=(3, 4, 50), device="cpu"):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(shape, generator=generator)
    tokens = torch.randint(shape[-1], shape[:-1], generator=generator)
    return logits.to(device, dtype).requires_grad_(), tokens.to(device)


def assert_saves_less_than(numel, call):
    """No tensor of as many elements, but those that the call was given, is kept for the gradient."""
    logits, _ = given = logits_and_tokens(torch.float32, (4, 6, 500))
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        call(*given)
    assert saved and all(t.numel() < numel for t in saved if t.data_ptr() != logits.data_ptr())


@marked("trl")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("masked", [False, True])
def test_trls_log_probabilities_and_entropies_are_ours_but_for_roundings(of_trl, dtype, temperature, masked, device):
    trl, utils = of_trl
    logits, tokens = logits_and_tokens(dtype, device=device)
    mask = (torch.arange(12, device=device).reshape(3, 4) % 5 != 0).long() if masked else None

    def both():
        results = utils.selective_log_softmax_and_entropy(logits, tokens, True, temperature, mask)
        alone = utils.selective_log_softmax(logits, tokens, temperature, mask)
        assert_bitwise_equal(results[0].detach(), alone.detach())
        return (*results, torch.autograd.grad(sum(r.float().square().sum() for r in results), logits)[0])

    expected = both()
    trl.enable()
    assert utils.selective_log_softmax.__module__ == "torchreduce.integrations.trl"
    got = both()
    tolerance = 1e-5 if dtype is torch.float32 else 5e-2
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    if temperature == 1 and not masked:
        assert_bitwise_equal(got[0].detach(), tr.selected_log_softmax(logits, tokens).detach())
        assert_bitwise_equal(utils.entropy_from_logits(logits).detach(), tr.entropy(logits, -1).detach())
        _, entropies = utils.selective_log_softmax_and_entropy(logits, tokens, entropy_requires_grad=False)
        assert not entropies.requires_grad


@marked("trl")
def test_trls_log_probabilities_do_not_depend_on_the_batch_and_store_no_copy(of_trl, device):
    trl, utils = of_trl
    trl.enable()
    logits, tokens = logits_and_tokens(torch.bfloat16, device=device)
    whole = utils.selective_log_softmax(logits, tokens), utils.entropy_from_logits(logits)
    for i in range(3):
        part = slice(i, i + 1)
        alone = utils.selective_log_softmax(logits[part], tokens[part]), utils.entropy_from_logits(logits[part])
        for a, b in zip(alone, whole, strict=True):
            assert_bitwise_equal(a.detach(), b[part].detach())
    assert_saves_less_than(4 * 6 * 500, utils.selective_log_softmax_and_entropy)


@marked("trl")
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_a_label_out_of_range_is_an_error_within_the_mask_alone(of_trl, dtype):
    trl, utils = of_trl
    trl.enable()
    logits, tokens = logits_and_tokens(torch.float32)
    tokens[1, 2], mask = -100, torch.ones(3, 4)
    with pytest.raises(IndexError, match="target -100 is out of bounds for 50 classes"):
        utils.selective_log_softmax(logits, tokens.to(dtype), row_mask=mask)
    mask[1, 2] = 0
    assert utils.selective_log_softmax(logits, tokens.to(dtype), row_mask=mask)[1, 2] == 0


@marked("trl")
def test_several_labels_a_row_are_trls(of_trl):
    trl, utils = of_trl
    logits, tokens = logits_and_tokens(torch.float32)
    several = torch.stack([tokens, tokens], -1)
    expected = utils.selective_log_softmax(logits, several)
    trl.enable()
    assert_bitwise_equal(utils.selective_log_softmax(logits, several).detach(), expected.detach())
    mask = torch.zeros_like(several)
    assert not utils.selective_log_softmax(logits, several, 0.5, mask).any()
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        utils.selective_log_softmax(logits, tokens, 0)


@marked("trl")
def test_trainers_of_trl_call_the_functions_that_are_replaced(of_trl):
    from trl.experimental.cpo import cpo_trainer

    trl, utils = of_trl
    trl.enable()
    assert cpo_trainer.selective_log_softmax is utils.selective_log_softmax is trl.selective_log_softmax
    trl.disable()
    assert cpo_trainer.selective_log_softmax is utils.selective_log_softmax is not trl.selective_log_softmax


# ---- verl ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def of_verl():
    verl = adapter("verl")
    import verl.utils.torch_functional as functions

    verl.disable()
    yield verl, functions
    verl.disable()


@marked("verl")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_verls_log_probabilities_and_entropies_are_ours_but_for_roundings(of_verl, dtype):
    """Compared are ours of 16-bit logits with verl's in float64: its own entropy of 16 bits cancels."""
    verl, functions = of_verl
    logits, tokens = logits_and_tokens(dtype, (12, 50))

    def both(logits):
        results = (
            functions.logprobs_from_logits(logits, tokens),
            functions.entropy_from_logits(logits),
            functions.entropy_from_logits_with_chunking(logits, chunk_size=5),
        )
        return (*results, torch.autograd.grad(sum(r.float().square().sum() for r in results), logits)[0])

    expected = both(logits.detach().double().requires_grad_())
    verl.enable()
    got = both(logits)
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, check_dtype=False)
    assert got[0].dtype is got[2].dtype is torch.float32 and got[1].dtype is dtype
    assert_bitwise_equal(got[0].detach(), tr.selected_log_softmax(logits, tokens, dtype=torch.float32).detach())
    part = functions.logprobs_from_logits(logits[5:6], tokens[5:6])
    assert_bitwise_equal(part.detach(), got[0][5:6].detach())
    assert_saves_less_than(4 * 6 * 500, functions.logprobs_from_logits)


@marked("verl")
def test_a_chunk_of_no_rows_is_an_error(of_verl):
    verl, functions = of_verl
    verl.enable()
    with pytest.raises(ValueError, match=r"^entropy_from_logits_with_chunking\(\): chunk_size must be positive, got 0"):
        functions.entropy_from_logits_with_chunking(torch.randn(3, 4), chunk_size=0)


@marked("verl")
@pytest.mark.parametrize(("value", "module"), [("1", "torchreduce.integrations.verl"), ("0", "verl.utils")])
def test_a_plugin_of_verl_enables_nothing_that_the_environment_does_not(value, module):
    """As an external module, which verl imports like its plugins; the entry point needs an installed torchreduce."""
    code = "import verl, verl.utils.torch_functional as f; print(f.logprobs_from_logits.__module__)"
    env = {**os.environ, "VERL_USE_EXTERNAL_MODULES": "torchreduce.integrations.verl", "TORCHREDUCE_ENABLE": value,
           "PYTHONPATH": str(ROOT)}  # fmt: skip
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.strip().splitlines()[-1].startswith(module), done.stdout + done.stderr


def test_the_plugin_of_verl_is_the_module():
    tables = (ROOT / "pyproject.toml").read_text()
    [name] = re.findall(r'"verl\.plugins"\].*\ntorchreduce = "([\w.]+)"', tables)
    assert importlib.util.find_spec(name)


# ---- TorchTitan ------------------------------------------------------------------------------------------------------


@marked("torchtitan", "triton")
def test_overrides_of_torchtitan_replace_norms_of_a_model_and_nothing_else():
    from torchtitan.config.override import OverrideConfig, apply_overrides
    from torchtitan.models.llama3 import llama3_configs

    def built(imports):
        config = llama3_configs["debugmodel"](attn_backend="flex")
        lines = apply_overrides(OverrideConfig(imports=imports), config)
        model = config.build()
        model.verify_module_protocol()
        return model, lines

    torchs, _ = built([])
    ours, lines = built(["torchreduce.integrations.torchtitan.rms_norm"])
    assert len(lines) == 13  # two of each of six layers, and the last
    assert list(ours.state_dict()) == list(torchs.state_dict())
    ours.load_state_dict(torchs.state_dict())
    before, after = dict(torchs.named_modules()), dict(ours.named_modules())
    norms = [name for name in before if type(before[name]) is not type(after[name])]
    assert len(norms) == 13 and all(name.endswith("norm") for name in norms)
    x = torch.randn(2, 3, 256, requires_grad=True)
    for name in norms:
        torch.nn.init.normal_(before[name].weight)
        after[name].load_state_dict(before[name].state_dict())
        y, expected = after[name](x), before[name](x)
        torch.testing.assert_close(y, expected)
        assert_bitwise_equal(y.detach(), tr.rms_norm(x, 256, after[name].weight, after[name].eps).detach())
        torch.testing.assert_close(*(torch.autograd.grad(z.square().sum(), x)[0] for z in (y, expected)))


@marked("torchtitan", "triton")
def test_layer_norms_of_torchtitan():
    adapter("torchtitan")
    from torchtitan.models.common.nn_modules import LayerNorm

    from torchreduce.integrations.torchtitan import layer_norm

    config = LayerNorm.Config(normalized_shape=24, eps=1e-3, elementwise_affine=False)
    norm, x = layer_norm(config).build(), torch.randn(5, 24)
    assert_bitwise_equal(norm(x), tr.layer_norm(x, 24, eps=1e-3))


# ---- documentation ---------------------------------------------------------------------------------------------------


@marked(*FRAMEWORKS)
def test_the_page_of_integrations_runs():
    """Its Python, which is marked py since test_docs.py has no frameworks."""
    blocks = re.findall(r"```py\n(.*?)```", (ROOT / "docs" / "integrations.md").read_text(), re.DOTALL)
    assert len(blocks) >= 4
    names = {}
    for block in blocks:
        exec(compile(block, "integrations.md", "exec"), names)
    tr.disable()
    for name in ("trl", "verl"):
        adapter(name).disable()


@marked("trl", "transformers")
@pytest.mark.timeout(600)
def test_a_loss_of_grpo_is_the_same_in_batches_of_two_and_of_four(device_of_products):
    """The script of examples/. Without the override it is not, on a CPU: else this would show nothing."""
    spec = importlib.util.spec_from_file_location("grpo", ROOT / "examples" / "grpo.py")
    grpo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(grpo)
    found = grpo.demonstrate(device_of_products)
    ours = found["torchreduce"]
    assert [differ for differ, _ in ours.values()] == [0, 0, 0]
    assert ours[4][1] == ours[2][1] == pytest.approx(found["torch"][4][1], rel=1e-4)
    if device_of_products == "cpu":
        assert found["torch"][2][0] > 0
