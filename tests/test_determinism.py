"""The determinism level: process, thread, environment, trace, backward."""

import os
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
import torch
from forms import FORMS, Recorder, everything, gradient, tie_free
from torch.utils._python_dispatch import TorchDispatchMode

import torchreduce as tr
from torchreduce.testing import assert_bitwise_equal


class Calls(TorchDispatchMode):
    """Records the ops of this library that are called, with their level."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func)
        rounds = len(args) > 1 and args[1] == [-1] and args[0].shape[-1:] == (1,)  # sums over one element only round
        elementwise = any(op in name for op in ("divide", "rounded", "scaled"))
        if name.startswith("torchreduce.") and not elementwise and not rounds:
            self.seen.append((name, args[-1]))
        return func(*args, **(kwargs or {}))


def levels_of(f):
    with Calls() as calls:
        f()
    assert calls.seen
    return {level for _, level in calls.seen}


@contextmanager
def process_level(level):
    tr.set_determinism(level)
    try:
        yield
    finally:
        tr.set_determinism("invariant")


def test_the_level_is_an_argument_of_every_op(device):
    x = tie_free((3, 4, 5), torch.float32, device)
    assert levels_of(lambda: everything(x)) == {0}
    with process_level("fast"):
        assert tr.get_determinism() == "fast" and levels_of(lambda: everything(x)) == {1}
        with tr.determinism("invariant"):
            assert tr.get_determinism() == "invariant" and levels_of(lambda: everything(x)) == {0}
            with tr.determinism("fast"):
                assert levels_of(lambda: everything(x)) == {1}
            assert tr.get_determinism() == "invariant"
        assert tr.get_determinism() == "fast"
    with pytest.raises(KeyError), tr.determinism("fast"):
        raise KeyError
    assert tr.get_determinism() == "invariant"


def test_one_object_may_be_entered_again():
    """Inside of its own block, after it, and on two threads at once."""
    fast, seen = tr.determinism("fast"), []

    def nested():
        with fast, tr.determinism("invariant"):
            with fast:
                seen.append(tr.get_determinism())
            seen.append(tr.get_determinism())
        seen.append(tr.get_determinism())

    nested()
    with process_level("fast"), tr.determinism("invariant"), fast, fast:
        thread = threading.Thread(target=nested)
        thread.start()
        thread.join()
    assert seen == ["fast", "invariant", "invariant", "fast", "invariant", "fast"]
    assert tr.get_determinism() == "invariant"


def test_the_levels_of_threads(device):
    """A context manager holds for its thread, set_determinism for the process."""
    x = tie_free((3, 4, 5), torch.float32, device)
    seen = []

    def look():
        seen.append((tr.get_determinism(), levels_of(lambda: everything(x))))

    def in_thread():
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    with tr.determinism("fast"):
        in_thread()
    with process_level("fast"):
        in_thread()
    assert seen == [("invariant", {0}), ("fast", {1})]


@pytest.mark.parametrize("form", FORMS)
def test_backward_uses_the_forwards_level(form):
    x = tie_free((3, 4, 5), torch.float32).requires_grad_()
    with tr.determinism("fast"):
        y = FORMS[form](x)
    with Calls() as calls:
        y.backward(torch.ones_like(y))
    assert {level for _, level in calls.seen} <= {1}
    assert calls.seen or form.split()[0] in ("sum", "mean", "nansum", "nanmean", "max", "min", "norm")


def test_deterministic_algorithms_make_fast_invariant(device):
    x = tie_free((3, 4, 5), torch.float32, device)
    with process_level("fast"):
        torch.use_deterministic_algorithms(True)
        try:
            assert tr.get_determinism() == "invariant" and levels_of(lambda: everything(x)) == {0}
            with tr.determinism("fast"):
                assert levels_of(lambda: everything(x)) == {0}
        finally:
            torch.use_deterministic_algorithms(False)
        assert levels_of(lambda: everything(x)) == {1}


def test_gradients_under_deterministic_algorithms(device):
    """None of them may be refused."""
    x = tie_free((3, 4, 5), torch.float32, device)
    expected = [gradient(f, x) for f in FORMS.values()]
    torch.use_deterministic_algorithms(True)
    try:
        for f, e in zip(FORMS.values(), expected, strict=True):
            assert_bitwise_equal(gradient(f, x), e)
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_level_is_fixed_when_traced(device):
    x = tie_free((3, 4, 5), torch.float32, device)
    torch._dynamo.reset()
    recorder = Recorder()
    compiled = torch.compile(lambda t: (tr.sum(t, 1), tr.get_determinism()), fullgraph=True, backend=recorder)
    assert compiled(x)[1] == "invariant"
    with tr.determinism("fast"):
        assert compiled(x)[1] == "fast"
    with process_level("fast"):
        assert compiled(x)[1] == "fast"
    assert compiled(x)[1] == "invariant"
    assert set(recorder.levels()) == {0, 1}

    def inside(t):
        with tr.determinism("fast"):
            return tr.sum(t, 1)

    recorder = Recorder()
    torch.compile(inside, fullgraph=True, backend=recorder)(x)
    assert recorder.levels() == [1]

    def again(t):
        fast = tr.determinism("fast")
        with fast, tr.determinism("invariant"), fast:
            first = tr.sum(t, 1)
        return first, tr.sum(t, 0)

    recorder = Recorder()
    torch.compile(again, fullgraph=True, backend=recorder)(x)
    assert recorder.levels() == [1, 0] and tr.get_determinism() == "invariant"


def test_levels_have_names():
    for bad in ("", "Fast", "deterministic"):
        with pytest.raises(ValueError, match=repr(bad)):
            tr.set_determinism(bad)
        with pytest.raises(ValueError, match=repr(bad)):
            tr.determinism(bad)
    assert tr.get_determinism() == "invariant"


def test_the_environment_gives_the_default():
    program = "import torchreduce; print(torchreduce.get_determinism())"
    for level in ("fast", "", "nonsense"):
        done = subprocess.run([sys.executable, "-c", program], env={**os.environ, "TORCHREDUCE_DETERMINISM": level},
                              capture_output=True, text=True)  # fmt: skip
        if level == "nonsense":
            assert done.returncode != 0 and "TORCHREDUCE_DETERMINISM" in done.stderr and "'nonsense'" in done.stderr
        else:  # empty is unset
            assert done.stdout.strip() == (level or "invariant"), done.stderr


# ---- what "fast" promises: a test for each row of the table in docs/numerics.md --------------------------------------

# Reductions over several dims that may add in another order; values that round differently in every order.
FOLDS = {
    "sum": lambda x: tr.sum(x),
    "sum of two dims": lambda x: tr.sum(x, (0, 2)),
    "mean": lambda x: tr.mean(x, (0, 1)),
    "nansum": lambda x: tr.nansum(x),
    "nanmean": lambda x: tr.nanmean(x),
    "prod": lambda x: tr.prod(1 + x / 128),
    "vector_norm": lambda x: tr.vector_norm(x),
}


def permuted(device, dtype=torch.float32, batch=None):
    """(7, 33, 50), whose last dim has the largest stride; or as many of them, in one tensor."""
    torch.manual_seed(3)
    shape = (50, 33, 7) if batch is None else (batch, 50, 33, 7)
    return torch.randn(shape).to(device, dtype).transpose(-1, -3)


@pytest.mark.parametrize("name", FOLDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_fast_keeps_the_bits_of_what_lies_in_order(name, dtype, device):
    x = permuted(device, dtype).contiguous()
    expected = FOLDS[name](x)
    with tr.determinism("fast"):
        assert_bitwise_equal(FOLDS[name](x), expected)


@pytest.mark.parametrize("name", FOLDS)
def test_fast_adds_in_the_order_of_memory(name, device):
    x = permuted(device)
    of_memory = FOLDS[name](x.transpose(0, 2).contiguous())
    if name in ("sum of two dims", "mean"):  # the dims that they keep, in x's order
        of_memory = {"sum of two dims": tr.sum, "mean": tr.mean}[name](
            x.transpose(0, 2).contiguous(), (0, 2) if name == "sum of two dims" else (1, 2)
        )
    with tr.determinism("fast"):
        assert_bitwise_equal(FOLDS[name](x), of_memory)
        torch.testing.assert_close(FOLDS[name](x), FOLDS[name](x.contiguous()), rtol=1e-5, atol=1e-4)
        torch.use_deterministic_algorithms(True)
        try:
            strict = FOLDS[name](x)
        finally:
            torch.use_deterministic_algorithms(False)
    assert_bitwise_equal(strict, FOLDS[name](x.contiguous()))
    assert_bitwise_equal(FOLDS[name](x), FOLDS[name](x.contiguous()))  # the default


def test_fast_is_another_order():
    """Else the tests above could not fail: the sums of a permuted tensor differ between the levels."""
    x = permuted("cpu")
    with tr.determinism("fast"):
        fast = [FOLDS[name](x) for name in FOLDS]
    assert any(not torch.equal(a, FOLDS[name](x)) for name, a in zip(FOLDS, fast, strict=True))


@pytest.mark.parametrize("name", FOLDS)
def test_fast_keeps_run_to_run(name, device):
    x = permuted(device)
    with tr.determinism("fast"):
        results = [FOLDS[name](x) for _ in range(3)]
    for result in results[1:]:
        assert_bitwise_equal(result, results[0])


@pytest.mark.gpu
@pytest.mark.parametrize("name", FOLDS)
def test_fast_keeps_the_bits_on_every_device(name):
    with tr.determinism("fast"):
        assert_bitwise_equal(FOLDS[name](permuted("cuda")).cpu(), FOLDS[name](permuted("cpu")))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_fast_keeps_the_bits_of_any_number_of_threads(threads):
    before = torch.get_num_threads()
    with tr.determinism("fast"):
        expected = [FOLDS[name](permuted("cpu")) for name in FOLDS]
        torch.set_num_threads(threads)
        try:
            results = [FOLDS[name](permuted("cpu")) for name in FOLDS]
        finally:
            torch.set_num_threads(before)
    for a, b in zip(results, expected, strict=True):
        assert_bitwise_equal(a, b)


def test_fast_keeps_the_bits_of_a_batch(device):
    x = permuted(device, batch=5)
    with tr.determinism("fast"):
        for form in (tr.sum, tr.mean, tr.nansum, tr.vector_norm):
            whole = form(x, dim=(1, 2, 3))
            for i in range(len(x)):
                assert_bitwise_equal(form(x[i], dim=(0, 1, 2)), whole[i])
                assert_bitwise_equal(form(x[i : i + 2], dim=(1, 2, 3))[0], whole[i])


def test_fast_keeps_indices_row_wise_ops_and_scans(device):
    x = permuted(device)
    forms = (
        lambda x: tr.argmax(x), lambda x: tr.max(x, 1)[1], lambda x: tr.var(x, (0, 2)), lambda x: tr.softmax(x, 0),
        lambda x: tr.cumsum(x, 1), lambda x: tr.logsumexp(x, (0, 2)),
    )  # fmt: skip
    for form in forms:
        with tr.determinism("fast"):
            fast = form(x)
        assert_bitwise_equal(fast, form(x))


@pytest.mark.gpu
def test_fast_is_in_explain():
    x = torch.empty(7, 100, 50000, device="cuda").permute(2, 1, 0)
    assert tr.explain("sum", x).family == "transposed_rows"
    with tr.determinism("fast"):
        assert tr.explain("sum", x).family == tr.explain("sum", x.permute(2, 1, 0)).family != "transposed_rows"


def test_fast_of_calls_with_out_and_of_compiled_ones(device):
    x = permuted(device)
    with tr.determinism("fast"):
        expected, out = tr.sum(x), torch.empty((), device=device)
        assert_bitwise_equal(tr.sum(x, out=out), expected)
        assert_bitwise_equal(torch.compile(lambda x: tr.sum(x), backend="eager")(x), expected)
        assert_bitwise_equal(tr.sum(x.detach().requires_grad_()), expected)
