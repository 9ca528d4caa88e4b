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
