"""Which calls skip torch's dispatcher, and that only the time differs."""

import itertools
import math
import os
from pathlib import Path

import pytest
import torch
import torch.utils.checkpoint
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import torchreduce as tr
from torchreduce import _C
from torchreduce._autograd import rowwise
from torchreduce._core import checks, direct, dispatch
from torchreduce.table import OPS
from torchreduce.testing import assert_bitwise_equal, force_plan

SUM, MAX, MOMENTS = checks.overloads("sum"), checks.overloads("max"), checks.rowwise_overloads("moments")
ROWWISE = ("softmax", "log_softmax", "logsumexp", "entropy", "moments", "rms_norm", "layer_norm", "cross_entropy")

pytestmark = pytest.mark.skipif(not direct.aten_path().exists(), reason="there is no _aten of this torch")


def total(x, dim=1, keepdim=False, dtype=None, level=0):
    return SUM.plain(x, dim, keepdim, dtype, level)


class Subclass(torch.Tensor):
    pass


class Counting(TorchDispatchMode):
    """The ops that the dispatcher was asked for."""

    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.ops.append(op)
        return op(*args, **(kwargs or {}))


def test_plain_calls_are_served(device):
    x = torch.randn(4, 5, device=device)
    for dim in (1, -1, [1], (1,)):
        assert torch.equal(total(x, dim), tr.sum(x, 1))
    for dim in (None, [], ()):
        assert torch.equal(total(x, dim), tr.sum(x))
    assert total(x, 1, True, torch.float64).shape == (4, 1)
    assert total(torch.nn.Parameter(x, requires_grad=False)) is not None
    values, indices = MAX.plain(x, 0, False, 0)
    assert torch.equal(values, x.amax(0)) and indices.dtype == torch.int64
    assert len(MOMENTS.plain(x, None, False, 1, False, 0)) == 3
    assert total(torch.tensor(3.0, device=device), 0) == 3


@pytest.mark.parametrize("name", [*(op.name for op in OPS), *ROWWISE, "linear_scan"])
def test_every_op_has_the_bits_of_its_overload(name, device):
    """Of arguments that its schema names."""
    op = getattr(torch.ops.torchreduce, name)
    x = torch.randn(6, 7, device=device)
    given = {
        "a": torch.rand(6, 7, device=device), "target": torch.arange(6, device=device), "keepdim": False,
        "exclusive": False, "reverse": False, "shifted": False, "root": True, "correction": 1.0, "epsilon": 1e-5,
        "dims": 1, "ignored": -100, "level": 0,
    }  # fmt: skip
    args = []
    for argument in op.raw._schema.arguments:
        if argument.name == "dim":
            args.append(1 if str(argument.type) == "int" else [1])
        elif argument.name in ("x", "b"):
            args.append(x)
        else:
            args.append(given.get(argument.name))
    expected, got = op.raw(*args), _C.direct(name, None)(*args)
    expected, got = ((r,) if isinstance(r, torch.Tensor) else r for r in (expected, got))
    assert type(got) is tuple and len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)


def recorded_calls(device, dtype):
    """Of each op whose gradient is recorded in C++: calls of its overload, and which tensors may need a gradient."""
    x, target = torch.randn(6, 8, device=device, dtype=dtype), torch.tensor([1, 0, 7, -100, 3, 3], device=device)
    w, b, wide = torch.rand(8, device=device, dtype=dtype), torch.randn(8, device=device, dtype=dtype), torch.float64
    losses, ones = torch.rand(6, device=device), torch.ones(6, device=device)
    ties = torch.randint(-2, 3, (5, 4, 6), device=device).to(dtype)
    ties[0, 0, :2] = math.nan
    zeros, deep = ties * (torch.arange(6, device=device) > 2).to(dtype), x.reshape(6, 8, *[1] * 62)
    extremes = [(ties, [1], False, 0), (ties, [0, -1], True, 0), (ties, [2, 0], False, 1), (deep, [1], True, 0)]
    options = {
        "softmax": [(x, 1, None, 0), (x, -2, wide, 1)],
        "log_softmax": [(x, 0, None, 0), (x, 1, wide, 0)],
        "rms_norm": [(x, w, 1, 1e-5, 0), (x, None, 2, 0.0, 0), (x, w.double(), 1, 1e-5, 1)],
        "layer_norm": [
            (x, w, b, 1, 1e-5, 0), (x, None, b, 1, 1e-5, 0), (x, w, None, 1, 1e-5, 0), (x, None, None, 2, 0.0, 0),
        ],
        "cross_entropy": [(x, target, None, 1, -100, 0), (x, target, w, 1, -100, 0)],
        "mean_loss": [(losses, ones, True, dtype, 0), (losses.double(), ones.double(), False, dtype, 0)],
        "mean_cross_entropy": [(x, target, None, 1, -100, dtype, 0), (x, target, w, 1, -100, torch.float32, 0)],
        "logsumexp": [(x, [1], False, 0), (x, None, True, 0), (x, [-2], False, 1)],
        "sum": [(x, [1], False, None, 0), (x, None, True, wide, 1), (x, [0, -1], False, None, 0)],
        "mean": [
            (x, [-1], False, None, 0), (x, None, True, wide, 1), (x, [], False, None, 0), (deep, [1], True, None, 0),
        ],
        "amax": [*extremes, (ties, None, False, 0), (ties, [], True, 0)],
        "amin": extremes,
        "max_all": [(ties, False, 0), (ties, True, 1), (x, False, 0)],
        "min_all": [(ties, False, 0)],
        "max": extremes,
        "min": extremes,
        "norm2": [
            (x, [1], False, None, 0), (x, None, True, wide, 1), (x, [-1], True, torch.float32, 0),
            (zeros.nan_to_num(), [1], False, None, 0), (deep, [1], True, None, 0),
        ],
        "moments": [
            (x, [1], False, 1.0, False, 0), (x, None, True, 0.0, True, 1), (ties, [0, -1], False, 1.5, True, 0),
            (x, [1], True, 9.0, False, 0), (zeros, [2], True, 1.0, True, 0),
        ],
        "cumsum": [(x, 1, None, False, False, 0), (x, 0, wide, True, True, 1)],
    }  # fmt: skip
    assert all(map(_C.records, options))
    constant = {"cross_entropy": 1, "mean_loss": 1, "mean_cross_entropy": 1}
    return [(name, args, constant.get(name, 3)) for name, each in options.items() for args in each]


def gradients(call, args, most, among, twice, of=(0,)):
    """Of the tensors of `args` that are `among` its first: the results, and gradients for random ones of the results
    `of`; of these too."""
    leaves = [t.detach().clone().requires_grad_() if i in among else t for i, t in enumerate(args)]
    wanted = [t for i, t in enumerate(leaves) if i in among]
    results = call(*leaves)
    results = (results,) if isinstance(results, torch.Tensor) else results
    generator = torch.Generator(results[0].device).manual_seed(1)

    def given(result):
        g = torch.randn(result.shape, device=result.device, generator=generator)
        return g.to(result.dtype).requires_grad_(twice)

    gs = [given(results[i]) for i in of]
    got = torch.autograd.grad([results[i] for i in of], wanted, gs, create_graph=twice)
    made = [t for t in results if t.requires_grad]
    if not twice:
        return results[0].grad_fn, [*made, *got]
    total = sum((t.double() ** 2).sum() for t in got)
    return results[0].grad_fn, [*made, *got, *torch.autograd.grad(total, [*gs, *wanted], allow_unused=True)]


def mean_of_losses(x, target, weight, dim, ignored, dtype, level):
    losses, weights, _ = torch.ops.torchreduce.cross_entropy.default(x, target, weight, dim, ignored, level)
    return rowwise.MeanLoss.apply(losses, weights, weight is None, dtype, level)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("twice", [False, True], ids=["first", "second"])
def test_recorded_gradients_have_the_bits_of_the_rules(device, dtype, twice):
    """Those that C++ records, and those of the gradients, against the dispatcher's, whose rules are Python's."""
    for name, args, most in recorded_calls(device, dtype):
        if name == "mean_loss":
            by_rule, by_record = rowwise.MeanLoss.apply, rowwise.recorded_mean_loss
        elif name == "mean_cross_entropy":
            by_rule, by_record = mean_of_losses, direct.plain(name, first=True)
        else:
            by_rule, by_record = getattr(torch.ops.torchreduce, name).default, dispatch.derivatives[name]
        tensors = [i for i, t in enumerate(args[:most]) if isinstance(t, torch.Tensor)]
        results = [[0], [1], [0, 1]] if name == "moments" else [[0]]
        for among, of in itertools.product(([0], tensors, tensors[1:]), results):
            if among:
                node, expected = gradients(by_rule, args, most, among, twice, of)
                other, got = gradients(by_record, args, most, among, twice, of)
                what = f"{name} {args[1:]} {among} {of}"
                assert "recorded" in other.name() and "recorded" not in node.name(), what
                for a, b in zip(got, expected, strict=True):
                    assert (a is None) is (b is None), what
                    if a is not None:
                        assert_bitwise_equal(a, b)


def test_recorded_calls_keep_the_manners_of_autograd():
    x = torch.randn(4, 5, requires_grad=True)
    with pytest.raises(RuntimeError, match="does not support a result of"):
        tr.sum(x, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="weight"):
        tr.cross_entropy(x, torch.tensor([0, 1, 2, 3]), torch.rand(5, requires_grad=True))

    y = tr.softmax(x, 1)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()
    y = tr.log_softmax(x, 1)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()

    w, b = (torch.rand(5, requires_grad=True) for _ in range(2))
    for changed in (w, b):
        y = tr.layer_norm(x, (5,), w, b)
        with torch.no_grad():
            changed.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()

    packed = []

    def pack(t):
        packed.append(t.shape)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = tr.rms_norm(x, (5,), torch.ones(5))
    assert packed == [(4, 5), (5,), (1, 4, 1)]

    def refuse(t):
        raise ValueError("not this one")

    with torch.autograd.graph.saved_tensors_hooks(refuse, lambda t: t), pytest.raises(ValueError, match="not this one"):
        tr.softmax(x, 1)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.double()):
        y = tr.softmax(x, 1)
    assert torch.autograd.grad(y, x, torch.ones(4, 5))[0].dtype == torch.float32
    with torch.inference_mode(), torch.enable_grad():
        assert not any(f(x, 1).requires_grad for f in (tr.softmax, tr.sum, tr.amax, tr.prod))
    z = torch.utils.checkpoint.checkpoint(lambda t: tr.softmax(t, 1).square(), x, use_reentrant=False)
    assert_bitwise_equal(torch.autograd.grad(z.sum(), x)[0], torch.autograd.grad(tr.softmax(x, 1).square().sum(), x)[0])
    with torch.autograd.detect_anomaly(check_nan=False):
        tr.softmax(x, 1).sum().backward()

    y = tr.softmax(x, 1)
    with force_plan(family="held_rows"), pytest.raises(ValueError, match="on the CPU have the families"):
        y.backward(torch.ones(4, 5))


def test_checkpoints_find_what_their_calls_saved():
    """Whether C++ or Python records a call, of which a profiler or a mode decides; and nothing of it stays."""
    x, norm = torch.randn(4, 8, requires_grad=True), tr.nn.LayerNorm(8)
    y = torch.utils.checkpoint.checkpoint(lambda t: norm(t).relu(), x, use_reentrant=False)
    with torch.profiler.profile():
        y.sum().backward()
    y = torch.utils.checkpoint.checkpoint(tr.cross_entropy, x, torch.arange(4), use_reentrant=False)
    with torch.profiler.profile():
        y.backward()

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    large = torch.randn(2048, 1024, requires_grad=True)
    for f in (tr.softmax, tr.log_softmax):
        for i in range(35):
            torch.utils.checkpoint.checkpoint(f, large, 1, use_reentrant=False).sum().backward()
            if i == 4:
                before = resident()
        assert resident() - before < 15 * large.nbytes, f  # thirty results if each stayed


def test_anything_but_a_plain_tensor_is_not_served():
    x = torch.randn(4, 5)
    others = {
        "no tensor": [1.0, 2.0],
        "a subclass": x.as_subclass(Subclass),
        "no memory": x.to("meta"),
        "sparse": x.to_sparse(),
        "complex": x.to(torch.complex64),
        "a view that negates": torch.complex(x, x).conj().imag,
        "zeros that are not there": torch._efficientzerotensor((4, 5)),
        "functional": torch._to_functional_tensor(x),
    }
    for what, other in others.items():
        assert total(other) is None, what
    needs_gradient = x.clone().requires_grad_()
    prod = checks.overloads("prod")
    assert not _C.records("prod") and prod.plain(needs_gradient, 1, False, None, 0) is None
    with torch.no_grad():
        assert prod.plain(needs_gradient, 1, False, None, 0) is not None


def test_wrong_arguments_are_not_served():
    x = torch.randn(4, 5)
    for arguments in ((2,), (True,), (1.0,), ("1",), ([1, -1],), ([1, 2.0],), (2**70,), (1, 0), (1, False, "float32")):
        assert total(x, *arguments) is None, arguments
    assert SUM.plain(x, 1, False) is None
    for name in ("max", "argmax"):
        assert checks.overloads(name).plain(torch.empty(4, 0), 1, False, 0) is None
    assert MAX.plain(x, (), False, 0) is None  # of all dims there are no indices
    assert checks.overloads("mean").plain(torch.ones(3, dtype=torch.int64), 0, False, None, 0) is None


def test_whoever_watches_sees_the_op():
    x = torch.randn(4, 5)
    with Counting() as seen:
        assert total(x) is None
        tr.sum(x, 1)
    assert seen.ops == [torch.ops.torchreduce.sum.default]

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.ops.append(function)
            return function(*args, **(kwargs or {}))

    with Functions():
        tr.sum(x, 1)
    assert torch.ops.torchreduce.sum.default in seen.ops[1:]
    with torch.profiler.profile() as profile:
        tr.sum(x, 1)
    assert any(event.key.startswith("torchreduce::sum") for event in profile.key_averages())


def test_transforms_and_tracers_are_not_passed_by():
    x, served = torch.randn(4, 5), []

    def asked(x):
        served.append(total(x, 0))
        return tr.sum(x, 0)

    torch.vmap(asked)(x)
    torch.func.jvp(asked, (x,), (x,))
    torch.jit.trace(asked, (x,), check_trace=False)
    torch.fx.experimental.proxy_tensor.make_fx(asked)(x)
    with forward_ad.dual_level():
        asked(forward_ad.make_dual(x, x))
    assert served and all(result is None for result in served)
    compiled = torch.compile(lambda x: tr.sum(x, 1) + tr.softmax(x, 1).sum(1), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), tr.sum(x, 1) + tr.softmax(x, 1).sum(1))


def test_what_a_call_holds_is_given_back():
    x, y = torch.randn(4, 5), torch.randn(4, 5, requires_grad=True)
    a = checks.overloads("linear_scan")
    before = x._use_count()
    for _ in range(10):
        total(x)
        total(x, 7)  # the kernel raises
        a.plain(x, y, None, 0, False, False, 0)  # one of two is not plain
    assert x._use_count() == before and y._use_count() == before


def test_inference_mode():
    with torch.inference_mode():
        result = total(torch.randn(4, 5))
    assert result.is_inference()


def test_an_op_that_is_not_there():
    with pytest.raises(ValueError, match="unknown op 'sums'"):
        _C.direct("sums", None)
