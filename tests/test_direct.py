"""Which calls skip torch's dispatcher, and that only the time differs."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import torchreduce as tr
from torchreduce import _C
from torchreduce._core import checks, direct
from torchreduce.table import OPS

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
        "needs a gradient": x.clone().requires_grad_(),
    }
    for what, other in others.items():
        assert total(other) is None, what
    with torch.no_grad():
        assert total(others["needs a gradient"]) is not None


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
