"""Calls that the override serves above autograd: composites of torch's, and gradients that are torchreduce's own."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from test_override import python, rows, served
from torch.func import grad, jvp, vmap
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

import torchreduce as tr
from torchreduce import override
from torchreduce.override import above
from torchreduce.testing import assert_bitwise_equal

ON = {"cpu": True, "compile": False}
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def switched_off_after():
    yield
    assert (override.state.eager, override.state.compiled) == (0, 0)


def weights(x):
    return (torch.arange(x.shape[-1], device=x.device) % 4 + 2).to(x.dtype) / 4


def labels(x):
    """One of them ignored."""
    target = torch.arange(x.shape[0], device=x.device) % x.shape[1]
    return target.masked_fill(target == 1, -100)


def few(x):
    """So near to 1 that products stay in range."""
    return 1 + x / 16


# By the overload: torch's call and torchreduce's, on x of (rows, n).
CALLS = {
    "logsumexp": (lambda x: x.logsumexp(1), lambda x: tr.logsumexp(x, 1)),
    "logcumsumexp": (lambda x: x.logcumsumexp(1), lambda x: tr.logcumsumexp(x, 1)),
    "cumprod": (lambda x: few(x).cumprod(1), lambda x: tr.cumprod(few(x), 1)),
    "cummax": (lambda x: x.cummax(1)[0], lambda x: tr.cummax(x, 1)[0]),
    "cummin": (lambda x: x.cummin(1)[0], lambda x: tr.cummin(x, 1)[0]),
    "prod": (lambda x: few(x).prod(), lambda x: tr.prod(few(x))),
    "prod.dim_int": (lambda x: few(x).prod(1), lambda x: tr.prod(few(x), 1)),
    "linalg_vector_norm": (lambda x: torch.linalg.vector_norm(x, dim=1), lambda x: tr.vector_norm(x, dim=1)),
    "var.correction": (lambda x: x.var(1), lambda x: tr.var(x, 1)),
    "std.correction": (lambda x: x.std(1), lambda x: tr.std(x, 1)),
    "var_mean.correction": (lambda x: torch.var_mean(x, 1)[0], lambda x: tr.var_mean(x, 1)[0]),
    "std_mean.correction": (lambda x: sum(torch.std_mean(x, 1)), lambda x: sum(tr.std_mean(x, 1))),
    "nanmean": (lambda x: x.nanmean(1), lambda x: tr.nanmean(x, 1)),
    "cross_entropy_loss": (
        lambda x: F.cross_entropy(x, labels(x), weights(x)),
        lambda x: tr.cross_entropy(x, labels(x), weights(x)),
    ),
    "rms_norm": (lambda x: F.rms_norm(x, x.shape[1:], weights(x)), lambda x: tr.rms_norm(x, x.shape[1:], weights(x))),
}
# Which have tests of their own.
WITHOUT_GRADIENT = {
    "nanmean.out", "layer_norm", "batch_norm", "group_norm", "instance_norm", "cdist", "_weight_norm",
    "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "avg_pool3d_backward",
}  # fmt: skip
SHAPE = (7, 300)


def inputs(dtype, device="cpu"):
    return rows(*SHAPE, dtype=dtype, device=device)


def gradient(f, x):
    x = x.detach().requires_grad_()
    y = f(x)
    y = y * torch.linspace(1, 2, y.numel(), dtype=y.dtype, device=y.device).reshape(y.shape)
    return torch.autograd.grad(y.sum(dtype=torch.float64), x)[0]


def alike(a, b):
    return (a.dtype, a.shape, a.stride(), a.requires_grad, a.is_inference()) == (
        b.dtype, b.shape, b.stride(), b.requires_grad, b.is_inference(),
    )  # fmt: skip


def test_each_has_a_test():
    assert {*CALLS, *WITHOUT_GRADIENT} == set(above.SERVED)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_results_and_gradients_are_torchreduces(name, dtype, device):
    torchs, ours = CALLS[name]
    x = inputs(dtype, device)
    expected, slope = ours(x), gradient(ours, x)
    counted = "_fused_rms_norm" if name == "rms_norm" and device == "cuda" else name  # which torch has there
    before = served(counted)
    with tr.enabled(**ON):
        y = torchs(x.requires_grad_())
        assert_bitwise_equal(y.detach(), expected)
        assert_bitwise_equal(gradient(torchs, x), slope)
    assert served(counted) - before == 2
    assert alike(y, torchs(x))
    if device == "cpu" or name not in ("cummax", "cummin"):  # whose gradients torch adds in the order of arrival there
        assert_bitwise_equal(gradient(torchs, x), gradient(torchs, x.detach().clone()))  # torch's, once it is off


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_without_a_gradient(name, dtype, device):
    torchs, ours = CALLS[name]
    x = inputs(dtype, device).requires_grad_()
    for without in (torch.no_grad, torch.inference_mode):
        with without():
            with tr.enabled(**ON):
                y = torchs(x)
            assert_bitwise_equal(y.clone(), ours(x).clone())
            assert alike(y, torchs(x))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("name", CALLS)
def test_transforms(name, dtype, device):
    """The results, gradients and tangents of torchreduce's functions, bitwise identical to a loop."""
    torchs, ours = CALLS[name]
    batch = torch.stack([inputs(dtype, device), rows(*SHAPE, dtype=dtype, device=device, seed=1)])
    tangent = rows(*SHAPE, dtype=dtype, device=device, seed=2)

    def summed(f):
        return lambda x: f(x).float().sum()

    with tr.enabled(**ON):
        assert_bitwise_equal(vmap(torchs)(batch), torch.stack([*map(ours, batch)]))
        assert_bitwise_equal(grad(summed(torchs))(batch[0]), grad(summed(ours))(batch[0]))
        assert_bitwise_equal(vmap(grad(summed(torchs)))(batch), vmap(grad(summed(ours)))(batch))
        assert_bitwise_equal(vmap(grad(summed(torchs)))(batch)[1], grad(summed(torchs))(batch[1]))
        for a, b in zip(jvp(torchs, (batch[0],), (tangent,)), jvp(ours, (batch[0],), (tangent,)), strict=True):
            assert_bitwise_equal(a, b)


@pytest.mark.parametrize("name", CALLS)
def test_derivatives_of_derivatives(name):
    torchs, _ = CALLS[name]
    x = rows(3, 5, dtype=torch.float64)
    with tr.enabled(**ON):
        assert torch.autograd.gradcheck(torchs, (x.requires_grad_(),), check_forward_ad=True)
        assert torch.autograd.gradgradcheck(torchs, (x,))


@pytest.mark.parametrize(
    "name", ("cross_entropy_loss", "nanmean", "rms_norm", "logcumsumexp", "prod.dim_int", "std.correction")
)
@pytest.mark.parametrize("backend", ("eager", "torchreduce"))
def test_compiled(name, backend, device):
    torchs, ours = CALLS[name]
    torch._dynamo.reset()
    for dtype in (torch.float32, torch.bfloat16):
        x = inputs(dtype, device)
        if backend != "eager" and dtype is not torch.float32 and name in ("prod.dim_int", "cross_entropy_loss"):
            continue  # where arithmetic is rowwise in front, or log-probabilities are not rounded in between
        with tr.enabled(**ON):
            f = torch.compile(torchs, backend=backend)
            assert_bitwise_equal(f(x), ours(x))
            assert_bitwise_equal(gradient(f, x), gradient(ours, x))
    torch._dynamo.reset()


# ---- losses of 16 bits -----------------------------------------------------------------------------------------------


MANY = 70_000  # float16 ends at 65,504


def many(dtype):
    x, target = rows(MANY, 3, dtype=dtype), torch.arange(MANY) % 3
    return x.requires_grad_(), target, torch.tensor([1.0, 2.0, 3.0], dtype=dtype)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
@pytest.mark.parametrize("backend", (None, "aot_eager", "torchreduce"))
def test_the_number_of_rows_is_not_rounded(dtype, backend):
    """Nor is the sum of the weights: in x's dtype either would be infinite, and the gradient 0."""
    x, target, weight = many(dtype)

    def pictures(x):
        return x.detach().reshape(2, -1, 1, 3).movedim(3, 1).contiguous().requires_grad_()

    images, of_images = pictures(x), target.reshape(2, -1, 1)
    log_probabilities = tr.log_softmax(x.detach(), 1).requires_grad_()
    cases = [
        (F.cross_entropy, x, target, {}),
        (F.cross_entropy, x, target, {"weight": weight}),
        (F.cross_entropy, images, of_images, {}),
        (F.nll_loss, log_probabilities, target, {}),
        (F.nll_loss, log_probabilities, target, {"weight": weight}),
        (F.nll_loss, pictures(log_probabilities), of_images, {}),
    ]
    for f, given, labels_, options in cases:
        torch._dynamo.reset()
        call = f if backend is None else torch.compile(f, backend=backend)
        with tr.enabled(**ON):
            loss = call(given, labels_, **options)
            (slope,) = torch.autograd.grad(loss, given)
        wide = given.detach().double().requires_grad_()
        exact = f(wide, labels_, **{key: t.double() for key, t in options.items()})
        (expected,) = torch.autograd.grad(exact, wide)
        assert (loss.dtype, slope.dtype) == (dtype, dtype)
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(loss.double(), exact, rtol=4 * eps, atol=0)
        # Of aot_eager's, two roundings to 16 bits lie in between, of which float16 has few digits here.
        least = torch.finfo(dtype).smallest_normal * eps
        torch.testing.assert_close(slope.double(), expected, rtol=4 * eps, atol=4 * least)
    torch._dynamo.reset()


def test_nll_loss_is_rounded_once():
    for dtype, weighted, reduction in itertools.product(
        (torch.float16, torch.bfloat16), (False, True), ("mean", "sum")
    ):
        x = tr.log_softmax(rows(1000, 5, dtype=dtype), 1).requires_grad_()
        target, weight = labels(x), weights(x) if weighted else None
        wide = x.detach().float().requires_grad_()
        options = {"reduction": reduction}
        with tr.enabled(**ON):
            loss = F.nll_loss(x, target, weight, **options)
            expected = F.nll_loss(wide, target, None if weight is None else weight.float(), **options)
            g = torch.tensor(1.5, dtype=dtype)
            assert_bitwise_equal(loss.detach(), expected.detach().to(dtype))
            (slope,), (expected,) = torch.autograd.grad(loss, x, g), torch.autograd.grad(expected, wide, g.float())
        assert_bitwise_equal(slope, expected.to(dtype))


def test_a_loss_may_be_turned_off_before_its_gradient():
    x = tr.log_softmax(rows(1000, 5, dtype=torch.float16), 1).requires_grad_()
    for shape in (x.shape, (10, 5, 10, 10)):
        y = x.detach().reshape(shape).requires_grad_()
        target = torch.arange(1000).reshape(shape[:1] + shape[2:]) % 5
        with tr.enabled(**ON):
            loss = F.nll_loss(y, target)
        (slope,) = torch.autograd.grad(loss, y)
        (torchs,) = torch.autograd.grad(F.nll_loss(y, target), y)
        torch.testing.assert_close(slope, torchs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_smoothed_labels_and_probabilities(dtype):
    x, target, weight = many(dtype)
    for to, options in (
        (target, {"label_smoothing": 0.1}),
        (target, {"label_smoothing": 0.1, "weight": weight}),
        (x.detach().softmax(1), {}),
        (x.detach().softmax(1), {"label_smoothing": 0.1, "weight": weight}),
    ):
        with tr.enabled(**ON):
            loss = F.cross_entropy(x, to, **options)
            (slope,) = torch.autograd.grad(loss, x)
        expected = tr.cross_entropy(x, to, **options)
        assert_bitwise_equal(loss.detach(), expected.detach())
        assert_bitwise_equal(slope, torch.autograd.grad(expected, x)[0])


# ---- special values --------------------------------------------------------------------------------------------------


def test_an_ignored_row_has_no_gradient():
    x = rows(4, 5)
    x[1] = float("nan")
    target = torch.tensor([0, -100, 2, 3])
    with tr.enabled(**ON):
        slope = gradient(lambda x: F.cross_entropy(x, target), x)
    assert (slope[1] == 0).all() and slope.isfinite().all()


def test_gradients_where_torchs_formulas_fail():
    least = float("-inf")
    with tr.enabled(**ON):
        slope = gradient(lambda x: x.logcumsumexp(0)[2:], torch.tensor([least, least, 1.0, 2.0]))
        assert (slope[:2] == 0).all() and slope.isfinite().all()
        assert gradient(lambda x: x.logsumexp(0), torch.tensor([least, least])).isfinite().all()
        large = torch.tensor([300.0, 300.0, 2.0**-8, 0.5], dtype=torch.float16)  # a product on the way overflows
        assert_bitwise_equal(gradient(lambda x: x.prod(), large), gradient(lambda x: tr.prod(x), large))
        assert gradient(lambda x: x.prod(), large).isfinite().all()
        assert torch.full((1000,), 100.0, dtype=torch.float16).nanmean() == 100


# ---- what falls back to torch ----------------------------------------------------------------------------------------


def outcome(f):
    try:
        return f()
    except Exception as error:
        return type(error), str(error)


def test_what_torchreduce_does_not_serve_is_torchs():
    x, z = rows(4, 5), rows(4, 5).cfloat()
    target, weight = torch.arange(4), torch.ones(5)
    w = weight.clone().requires_grad_()
    calls = (
        lambda: F.cross_entropy(x, torch.tensor([0, 1, 2, 9])),
        lambda: F.cross_entropy(x, target[:3]),
        lambda: F.cross_entropy(x, target.int()),
        lambda: F.cross_entropy(x, target, weight[:4]),
        lambda: F.cross_entropy(x, target, weight.double()),
        lambda: F.cross_entropy(x, target, w),
        lambda: F.cross_entropy(x, target, label_smoothing=2.0),
        lambda: F.cross_entropy(x, x.double()),
        lambda: F.cross_entropy(x, x, ignore_index=0),
        lambda: F.cross_entropy(x[:0], target[:0]),
        lambda: F.cross_entropy(z, target),
        lambda: F.cross_entropy(x.long(), target),
        lambda: x.long().nanmean(),
        lambda: z.nanmean().abs(),
        lambda: x.nanmean(5),
        lambda: x.nanmean((0, 0)),
        lambda: x.nanmean(dtype=torch.int64),
        lambda: F.rms_norm(x, (4,)),
        lambda: F.rms_norm(x.long(), (5,)),
        lambda: F.rms_norm(x, (5,), weight.double()),
        lambda: x.clone().requires_grad_().logcumsumexp(3),
        lambda: x.clone().requires_grad_().std(5),
        lambda: x.clone().requires_grad_().prod(dim=7),
        lambda: torch.nanmean(x.clone().requires_grad_(), out=torch.empty(())),
        lambda: torch.nanmean(x, out=torch.empty((), dtype=torch.int64)),
    )
    for i, call in enumerate(calls):
        with tr.enabled(**ON):
            ours = outcome(call)
        torchs = outcome(call)
        if isinstance(torchs, torch.Tensor):
            torch.testing.assert_close(ours, torchs, equal_nan=True, msg=str(i))
        else:
            assert ours == torchs, i


def test_reasons_are_counted():
    x, target = rows(4, 5), torch.arange(4)

    def reasons(name, call):
        before = tr.coverage()[name]
        with tr.enabled(**ON):
            outcome(call)
        return {why for why, n in tr.coverage()[name].items() if n > before[why]}

    assert reasons("cross_entropy_loss", lambda: F.cross_entropy(x, target)) == {"served"}
    assert reasons("cross_entropy_loss", lambda: F.cross_entropy(x, target.int())) == {"dtype"}
    assert reasons("cross_entropy_loss", lambda: F.cross_entropy(x, target + 4)) == {"dims"}
    assert reasons("nanmean", lambda: x.nanmean(5)) == {"dims"}
    assert reasons("nanmean.out", lambda: torch.nanmean(x, 1, out=torch.empty(4))) == {"served"}
    assert reasons("nanmean.out", lambda: torch.nanmean(x, 1, out=torch.empty(3))) == {"out"}
    assert reasons("rms_norm", lambda: F.rms_norm(x[:0], (5,))) == {"empty"}
    assert reasons("layer_norm", lambda: F.layer_norm(x, (5,))) == set()  # met below autograd
    assert reasons("native_layer_norm", lambda: F.layer_norm(x, (5,))) == {"served"}
    with tr.enabled(cpu=False, compile=False):
        before = tr.coverage()["nanmean"]
        x.nanmean()  # of a CPU, which was not asked for
    assert tr.coverage()["nanmean"] == before


def test_nanmean_out():
    x = rows(4, 1000, dtype=torch.float16)
    for dtype in (torch.float16, torch.float32):
        out = torch.empty(4, dtype=dtype)
        with tr.enabled(**ON):
            assert torch.nanmean(x, 1, out=out) is out
        assert_bitwise_equal(out, tr.nanmean(x, 1, dtype=dtype))


def test_strides_are_torchs():
    x = rows(6, 20).reshape(6, 5, 4)
    views = (x.transpose(0, 1), x.permute(2, 0, 1), x[:, ::2], x[0].expand(3, 5, 4), x.flip(0))
    for view in views:
        n = view.shape[-1:]
        with tr.enabled(**ON):
            ours = F.rms_norm(view, n), F.rms_norm(view, n, torch.ones(n)), view.nanmean(1), view.nanmean((0, 2))
        torchs = F.rms_norm(view, n), F.rms_norm(view, n, torch.ones(n)), view.nanmean(1), view.nanmean((0, 2))
        assert [t.stride() for t in ours] == [t.stride() for t in torchs]
        assert_bitwise_equal(ours[0], tr.rms_norm(view.contiguous(), n))


class Recording(TorchDispatchMode):
    def __torch_dispatch__(self, f, types, args=(), kwargs=None):
        self.ops = [*getattr(self, "ops", ()), str(f)]
        return f(*args, **(kwargs or {}))


def test_modes_subclasses_and_traces_see_torchs_own_ops():
    x, target = rows(4, 5), torch.arange(4)
    with tr.enabled(**ON), Recording() as recording:
        F.cross_entropy(x, target)
        x.nanmean(1)
        x.clone().requires_grad_().logcumsumexp(1)
    assert not any("torchreduce" in op for op in recording.ops)
    assert {"aten.nll_loss_forward.default", "aten.logcumsumexp.default"} <= set(recording.ops)
    both = TwoTensor(x, x.clone()).requires_grad_()
    with tr.enabled(**ON):
        assert type(both.nanmean(1)) is TwoTensor and type(both.logsumexp(1)) is TwoTensor
        traced = torch.jit.trace(lambda x: (x.nanmean(1), x.logsumexp(1)), x.clone().requires_grad_())
        assert "torchreduce" not in str(traced.graph)
        with torch._subclasses.FakeTensorMode() as mode:
            fake = mode.from_tensor(x).requires_grad_()
            assert fake.nanmean(1).shape == fake.logcumsumexp(1)[:, 0].shape == (4,)
        sparse = x.to_sparse().requires_grad_()
        assert sparse.sum().item() == pytest.approx(x.sum().item(), rel=1e-5)


# ---- layer norms -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm_under_transforms_has_the_bits_of_a_loop(dtype):
    x, w, b = rows(4, 300, dtype=dtype), *rows(2, 300, dtype=dtype, seed=1)

    def loss(x, w, b):
        return F.layer_norm(x, (300,), w, b).float().square().sum()

    with tr.enabled(**ON):
        assert_bitwise_equal(vmap(lambda x: F.layer_norm(x, (300,), w, b))(x), tr.layer_norm(x, (300,), w, b))
        batched = vmap(grad(loss, (0, 1, 2)), (0, None, None))(x, w, b)
        looped = [grad(loss, (0, 1, 2))(row, w, b) for row in x]
        both = vmap(grad(loss, (0, 1, 2)))(x, w.expand(4, 300), b.expand(4, 300))
    for a, c, rows_ in zip(batched, both, zip(*looped, strict=True), strict=True):
        assert_bitwise_equal(a, torch.stack(rows_))
        assert_bitwise_equal(c, torch.stack(rows_))
    off = vmap(grad(loss, (0, 1, 2)), (0, None, None))(x, w, b)  # torch's rules
    for a, c in zip(off, batched, strict=True):
        if dtype.itemsize > 2:
            torch.testing.assert_close(a, c)


# ---- from Python -----------------------------------------------------------------------------------------------------

FROM_PYTHON = """
    import pathlib, sys, pytest
    exists = pathlib.Path.exists
    pathlib.Path.exists = lambda self: "_aten" not in self.name and exists(self)
    CHEAP = "not compiled and not from_python and not of_derivatives and not aot_eager and not torchreduce-dtype"
    arguments = ["-q", "-p", "no:cacheprovider", "-W", "ignore", FILE, "-k", CHEAP]
    sys.exit(pytest.main(arguments))
"""


@pytest.mark.slow
def test_the_same_from_python_for_another_torch():
    result = python(FROM_PYTHON.replace("FILE", repr(__file__)))
    assert result.returncode == 0, result.stdout
