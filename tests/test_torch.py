"""Meeting torch: registration, opcheck, and every kind of tensor there is."""

import dataclasses
import itertools
import math

import pytest
import torch
from cases import DTYPES, NORMS, OURS, contiguous, serves, transposed, values
from forms import FORMS, gradient, tie_free
from torch._subclasses.fake_tensor import FakeTensorMode

import torchreduce as tr
from torchreduce import _C, ops, scans, table
from torchreduce._core import direct
from torchreduce.testing import assert_bitwise_equal

OVERLOADS = ("", ".raw", ".out", ".raw_out")


# ---- registration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", table.OPS, ids=lambda op: op.name)
def test_every_kernel_is_there_for_every_key(op):
    """Registration errors of the stable ABI are only logged."""
    for overload, key in itertools.product(OVERLOADS, ("CPU", "CUDA", "Meta")):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"torchreduce::{op.name}{overload}", key), (overload, key)
    for overload in OVERLOADS:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"torchreduce::{op.name}{overload}", "Autograd")


def sample_arguments(op, overload, device):
    """Arguments of torchreduce::<op><overload>, several of them."""
    x = values((3, 4, 5), torch.float32).to(device)
    for input in (x, transposed(x), values((), torch.float32).to(device)):
        one = [0] if input.dim() == 0 else [1]
        if op.dims == "one":
            samples = [
                (dim, *([dtype] if op.results else []), *([flag] if op.exclusive else []), flag, 0)
                for dim, dtype, flag in ((0, None, False), (-1, torch.float64, True))
            ]
        elif op.dims == "all":
            samples = [(False, 0), (True, 1)]
        elif op.dims == "given":
            samples = [(one, False, 0), (one, True, 0)]
        elif op.results:
            samples = [(None, False, None, 0), (one, True, torch.float64, 0), ([-1], False, None, 1)]
        else:
            samples = [(None, False, 0), (one, True, 0), ([], False, 0)]
        for rest in samples:
            args, kwargs = (input, *rest), {}
            if overload.endswith("out"):
                results = getattr(torch.ops.torchreduce, op.name).raw(*args)
                results = (results,) if isinstance(results, torch.Tensor) else results
                kwargs = dict(zip(("values", "indices") if len(results) == 2 else ("out",), results, strict=True))
            elif overload == "" and op.differentiable:
                args = (input.clone().requires_grad_(), *rest)
            yield args, kwargs


@pytest.mark.parametrize("overload", OVERLOADS)
@pytest.mark.parametrize("op", table.OPS, ids=lambda op: op.name)
def test_opcheck(device, op, overload):
    """Traced by ahead-of-time autograd once for each form of the other arguments: that takes the most time, and does
    not depend on strides, which the fake kernel is given each time. The raw overloads, which have this kernel and no
    gradient, are traced once."""
    packet = getattr(torch.ops.torchreduce, op.name)
    target = getattr(packet, overload[1:] or "default")
    traced = []
    for args, kwargs in sample_arguments(op, overload, device):
        is_new = args[1:] not in traced if "raw" not in overload else not traced
        traced.append(args[1:])
        more = ("test_aot_dispatch_dynamic",) if is_new else ()
        checks = ("test_schema", "test_autograd_registration", "test_faketensor", *more)
        torch.library.opcheck(target, args, kwargs, test_utils=checks)


def test_opcheck_of_division(device):
    """The op that gradients add: without a gradient of its own."""
    x, n = values((3, 4), torch.float32).to(device), torch.tensor(7, device=device)
    for args in ((x, n, torch.float32), (x.half(), n, torch.float64), (transposed(x), x[:1].abs() + 1, torch.bfloat16),
                 (x[0, 0], n, torch.float32)):  # fmt: skip
        torch.library.opcheck(torch.ops.torchreduce.divide.default, args)


def test_opcheck_of_powers_of_two(device):
    """The ops of the derivatives of products."""
    ops = torch.ops.torchreduce
    for dtype in table.FLOATS:
        x = values((3, 4), dtype).to(device)
        k = ops.product_exponents(x, 1, False, 0)
        torch.library.opcheck(ops.product_exponents.default, (x, 1, True, 0))
        for n in (k, k[:, :1], -k):
            torch.library.opcheck(ops.scaled.default, (x.clone().requires_grad_(), n, torch.float64))


@pytest.mark.parametrize("dtype", table.FLOATS)
def test_multiplication_by_powers_of_two_is_exact(device, dtype):
    """Within float64's range: as ldexp, rounded once."""
    x = values((50, 40), dtype, 1).to(device)
    x[0, :4] = torch.tensor([0.0, -0.0, math.inf, -math.inf], dtype=dtype)
    for k in (-2040, -1100, -1023, -150, -30, -1, 0, 1, 30, 150, 1000, 1023, 2040):
        exact = [
            math.ldexp(v, k) if k < 1000 else v * 2.0**1000 * 2.0 ** min(k - 1000, 1000) for v in x.flatten().tolist()
        ]
        exponent = torch.full((50, 1), k, device=device)
        for to in (torch.float64, dtype):
            expected = torch.tensor(exact, dtype=torch.float64).to(to).reshape(x.shape)
            assert_bitwise_equal(torch.ops.torchreduce.scaled(x, exponent, to), expected)


def test_calls_without_gradients_are_the_bare_kernels(device, monkeypatch):
    """Plain tensors outside of everything: nothing of autograd or of a transform runs in Python."""
    x, seen = values((3, 4), torch.float32).to(device), []
    bare = "plain" if direct.aten_path().exists() else "raw"

    def recorded(name, kernel):
        def call(*args, **outs):
            result = kernel(*args, **outs)
            if result is not None or name.endswith("out"):
                seen.append(name)
            return result

        return call

    calls = {"sum": lambda t: tr.sum(t, 1), "max": lambda t: tr.max(t, 1), "cumsum": lambda t: tr.cumsum(t, 1),
             "linear_scan": lambda t: tr.linear_scan(t, t, 1)}  # fmt: skip
    for name in calls:
        module = scans if name in ("cumsum", "linear_scan") else ops
        op = getattr(module, f"_{name.upper()}")
        kernels = {
            k: recorded(f"{name}.{k}", getattr(op, k))
            for k in ("default", "plain", "raw", "derivative", "out", "raw_out")
        }
        monkeypatch.setattr(module, f"_{name.upper()}", dataclasses.replace(op, **kernels))
    for call in calls.values():
        call(x)
        with torch.no_grad():
            call(x.clone().requires_grad_())
        call(x.clone().requires_grad_())
    tr.sum(x, 1, out=x.new_empty(3))
    expected = [
        f"{name}.{kernel}" for name in calls for kernel in (bare, bare, bare if _C.records(name) else "derivative")
    ]
    assert seen == [*expected, "sum.raw_out"]


# ---- kinds of tensors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ("meta", "fake"))
@pytest.mark.parametrize(
    "op", [op for op in table.OPS if op.name not in ("max_all", "min_all")], ids=lambda op: op.name
)
def test_meta_and_fake_tensors_have_the_results_shape(device, op, mode):
    f = getattr(OURS, op.name if op.name in NORMS else op.function)
    dims = (0, 1, -1) if op.kind == "scan" else (0, -1, (0, 2), (1,), None)
    for dtype, dim, layout in itertools.product(DTYPES, dims, (contiguous, transposed)):
        if (op.dims == "given" and dim is None) or not serves(op.name if op.name in NORMS else op.function, dtype):
            continue
        x = layout(values((3, 4, 5), dtype).to(device))
        options = [{}] if op.kind == "scan" else [{}, {"keepdim": True}]
        if op.results:
            options = [
                {**o, "dtype": to} for o in options for to in (torch.float64, *([None] if dtype in op.inputs else []))
            ]
        for o in options:
            real = f(x, dim, **o)
            if mode == "meta":
                shadow = f(x.to("meta"), dim, **o)
            else:
                with FakeTensorMode() as fakes:
                    shadow = f(fakes.from_tensor(x), dim, **o)
            pairs = [(shadow, real)] if isinstance(real, torch.Tensor) else zip(shadow, real, strict=True)
            for s, r in pairs:
                assert (s.shape, s.dtype, s.stride()) == (r.shape, r.dtype, r.stride())
                assert s.device == (torch.device("meta") if mode == "meta" else r.device)


def test_meta_tensors_meet_the_same_errors():
    x = torch.empty(0, 3, device="meta")
    with pytest.raises(IndexError):
        tr.amax(x, 0)
    with pytest.raises(IndexError):
        tr.sum(x, 2)
    with pytest.raises(RuntimeError):
        tr.mean(x.int(), 0)


def test_conj_and_neg_views(device):
    z = torch.complex(values((30, 40), torch.float32, seed=1), values((30, 40), torch.float32, seed=2)).to(device)
    x = z.conj().imag
    assert x.is_neg() and not x.is_contiguous()
    for f in (lambda t: tr.sum(t, 1), lambda t: tr.cumsum(t, 0), tr.argmax, lambda t: tr.max(t, 0), tr.amin):
        assert_bitwise_equal(f(x), f(x.resolve_neg().contiguous()))
    with pytest.raises(NotImplementedError, match="complex64"):
        tr.sum(z.conj())


def test_parameters(device):
    p = torch.nn.Parameter(tie_free((3, 4), torch.float32, device))
    for y in (tr.sum(p, 1), tr.amax(p), tr.cumsum(p, 0), tr.max(p, 1).values):
        assert type(y) is torch.Tensor and y.requires_grad
    tr.mean(p).backward()
    assert_bitwise_equal(p.grad, torch.full((3, 4), 1 / 12, device=device))


def test_inference_mode(device):
    x = values((3, 400), torch.float32).to(device)
    expected = tr.sum(x, 1), tr.cumsum(x, 1), *tr.max(x, 1)
    with torch.inference_mode():
        inside = values((3, 400), torch.float32).to(device)
        for t in (x, inside):
            assert_bitwise_equal((tr.sum(t, 1), tr.cumsum(t, 1), *tr.max(t, 1)), expected)
        assert tr.sum(inside, 1).is_inference()
        out = torch.empty(3, device=device)
        assert_bitwise_equal(tr.sum(inside, 1, out=out), expected[0])
    assert_bitwise_equal(tr.sum(inside, 1), expected[0])


def test_autocast_changes_nothing(device):
    """The result's dtype is the input's."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = values((3, 400), dtype).to(device)
        expected = tr.sum(x, 1), tr.mean(x, 0), tr.cumsum(x, 1), tr.amax(x)
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
            assert_bitwise_equal((tr.sum(x, 1), tr.mean(x, 0), tr.cumsum(x, 1), tr.amax(x)), expected)
            inside = gradient(tr.mean, x)
        assert_bitwise_equal(inside, gradient(tr.mean, x))


class Plain(torch.Tensor):
    """A subclass without behaviour of its own."""


class Logged(torch.Tensor):
    """A subclass that sees ops by __torch_dispatch__."""

    seen: list

    @staticmethod
    def __new__(cls, inner):
        self = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        self.inner = inner
        return self

    def __init__(self, inner):
        pass

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        Logged.seen.append(str(func))
        result = func(*(a.inner if isinstance(a, Logged) else a for a in args), **(kwargs or {}))
        return Logged(result) if isinstance(result, torch.Tensor) else type(result)(map(Logged, result))


def test_subclasses(device):
    x = values((3, 400), torch.float32).to(device)
    plain = x.as_subclass(Plain)
    for f in (lambda t: tr.sum(t, 1), lambda t: tr.cumsum(t, 1), tr.argmax, tr.amax):
        assert_bitwise_equal(f(plain).as_subclass(torch.Tensor), f(x))
    Logged.seen = []
    y = tr.sum(Logged(x), 1)
    assert isinstance(y, Logged) and any(name.startswith("torchreduce.sum") for name in Logged.seen)
    assert_bitwise_equal(y.inner, tr.sum(x, 1))
    assert_bitwise_equal(tr.max(Logged(x), 1)[1].inner, tr.max(x, 1).indices)


@pytest.mark.parametrize("in_dim", (0, 1, 3))
def test_vmap_has_the_bits_of_a_loop(device, in_dim):
    x = values((3, 4, 5, 6), torch.float32, seed=9).to(device)
    for f in (*FORMS.values(), lambda t: tr.argmax(t, 1), tr.argmin):
        ours = torch.vmap(f, in_dims=in_dim)(x)
        loop = torch.stack([f(row) for row in x.unbind(in_dim)])
        assert_bitwise_equal(ours, loop)


def test_functional_gradients(device):
    x = tie_free((3, 4, 5), device=device)
    for f in FORMS.values():
        ours = torch.func.grad(lambda t, f=f: f(t).square().sum())(x)
        leaf = x.detach().requires_grad_()
        f(leaf).square().sum().backward()
        torch.testing.assert_close(ours, leaf.grad, rtol=1e-12, atol=0)
        per_sample = torch.vmap(torch.func.grad(lambda t: tr.mean(t.square())))(x)
        torch.testing.assert_close(per_sample, 2 * x / 20)


def test_direct_calls_of_the_ops_are_safe(device):
    """What Python checks is checked again where memory depends on it."""
    x = torch.ones(2, 3, device=device)
    ops = torch.ops.torchreduce
    for bad in (
        lambda: ops.sum.raw(x, [5], False, None, 0),
        lambda: ops.amax.raw(x[:0], [0], False, 0),
        lambda: ops.max.raw(x, [0, 0], False, 0),
        lambda: ops.sum.out(x, [0], False, None, 0, out=torch.empty(2, device=device)),
        lambda: ops.sum.out(x, [0], False, None, 0, out=torch.empty(3, dtype=torch.float64, device=device)),
        lambda: ops.cumsum.out(x, 0, None, False, False, 0, out=torch.empty(3, 2, device=device)),
        lambda: ops.cumsum.raw(x, 2, None, False, False, 0),
        lambda: ops.sum.raw(x.to(torch.complex64), None, False, None, 0),
        lambda: ops.max.out(
            x, [1], False, 0, values=torch.empty(2, device=device), indices=torch.empty(2, device=device)
        ),
    ):
        with pytest.raises((IndexError, RuntimeError)):
            bad()
