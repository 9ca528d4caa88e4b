"""Gradients: right, twice differentiable, and under the contract like any result."""

import inspect
import itertools
import math
from functools import partial

import pytest
import reference
import torch
from cases import OURS, padded, transposed, values
from forms import FORMS, gradient, signed, tie_free

import torchreduce as tr
from torchreduce.table import FLOATS
from torchreduce.testing import assert_bitwise_equal


@pytest.mark.parametrize("form", FORMS)
def test_gradcheck_and_gradgradcheck(device, form):
    for shape in ((3, 4, 5), (2, 1, 3)):
        x = tie_free(shape, device=device).requires_grad_()
        assert torch.autograd.gradcheck(FORMS[form], (x,))
        assert torch.autograd.gradgradcheck(FORMS[form], (x,))


# What each tensor beside the input is given.
BESIDE = {
    ("linear_scan", "a"): lambda x, t: tr.linear_scan(t.expand(3, 4), x, 1),
    ("linear_scan", "b"): lambda x, t: tr.linear_scan(x, t.expand(3, 4), 1),
    ("linear_scan", "initial"): lambda x, t: tr.linear_scan(x, x, 0, initial=t),
    ("rms_norm", "weight"): lambda x, t: tr.rms_norm(x, 4, t),
    ("rms_norm", "residual"): lambda x, t: tr.rms_norm(x, 4, residual=t.expand(3, 4)),
    ("layer_norm", "residual"): lambda x, t: tr.layer_norm(x, 4, residual=t.expand(3, 4)),
    ("layer_norm", "weight"): lambda x, t: tr.layer_norm(x, 4, t),
    ("layer_norm", "bias"): lambda x, t: tr.layer_norm(x, 4, None, t),
    ("vector_norm", "x"): lambda x, t: tr.vector_norm(t),
    ("cross_entropy", "target"): lambda x, t: tr.cross_entropy(x, t.expand(3, 4)),
    ("cross_entropy", "weight"): lambda x, t: tr.cross_entropy(x, torch.tensor([0, 3, 1], device=x.device), t),
    ("embedding_bag", "weight"): lambda x, t: tr.embedding_bag(rows(x), t.expand(3, 4), rows(x)[1:2], mode="sum"),
    ("embedding_bag", "per_sample_weights"): lambda x, t: tr.embedding_bag(
        rows(x), x, rows(x)[1:2], mode="sum", per_sample_weights=t[:3]
    ),
    ("bincount", "weights"): lambda x, t: tr.bincount(rows(x), t[:3]),
    ("batch_norm", "weight"): lambda x, t: tr.batch_norm(x, None, None, t, training=True),
    ("batch_norm", "bias"): lambda x, t: tr.batch_norm(x, x[0], x[1] ** 2, None, t),
    ("batch_norm", "running_mean"): lambda x, t: tr.batch_norm(x, t, x[0] ** 2),
    ("batch_norm", "running_var"): lambda x, t: tr.batch_norm(x, x[0].detach(), t),
    ("group_norm", "weight"): lambda x, t: tr.group_norm(x, 2, t),
    ("group_norm", "bias"): lambda x, t: tr.group_norm(x, 2, None, t),
    ("instance_norm", "weight"): lambda x, t: tr.instance_norm(x.t()[None], weight=t),
    ("instance_norm", "bias"): lambda x, t: tr.instance_norm(x.t()[None], bias=t),
    ("instance_norm", "running_mean"): lambda x, t: tr.instance_norm(x.t()[None], t, t * 1, use_input_stats=False),
    ("instance_norm", "running_var"): lambda x, t: tr.instance_norm(
        x.t()[None], x[0].detach(), t, use_input_stats=False
    ),
    ("segment_reduce", "data"): lambda x, t: tr.segment_reduce(t, "sum", lengths=rows(x)[:2] + 1),
}
for _end in ("", "_"):  # in place: of what is no leaf
    BESIDE |= {
        (f"index_add{_end}", "source"): lambda x, t, f=f"index_add{_end}": getattr(tr, f)(
            x * 1, 0, rows(x), t.expand(3, 4)
        ),
        (f"index_reduce{_end}", "source"): lambda x, t, f=f"index_reduce{_end}": getattr(tr, f)(
            x * 1, 0, rows(x), t.expand(3, 4), "mean"
        ),
        (f"index_put{_end}", "values"): lambda x, t, f=f"index_put{_end}": getattr(tr, f)(x * 1, (rows(x),), t, True),
        (f"put{_end}", "source"): lambda x, t, f=f"put{_end}": getattr(tr, f)(x * 1, rows(x), t[:3], True),
        (f"scatter_add{_end}", "src"): lambda x, t, f=f"scatter_add{_end}": getattr(tr, f)(
            x * 1, 0, rows(x)[:, None], t.expand(3, 4)
        ),
        (f"scatter_reduce{_end}", "src"): lambda x, t, f=f"scatter_reduce{_end}": getattr(tr, f)(
            x * 1, 0, rows(x)[:, None], t.expand(3, 4), "prod"
        ),
    }
REFUSED = {
    ("cross_entropy", "weight"),
    *((name, f"running_{which}") for name in ("batch_norm", "instance_norm") for which in ("mean", "var")),
}
OF_INTEGERS = ("index", "indices", "segments", "offsets", "lengths")


def rows(x):
    return torch.tensor([2, 0, 2], device=x.device)


def test_every_tensor_beside_the_input_has_a_gradient_or_is_refused(device):
    """Where torch has no derivative it raises; what is lost in silence trains on nothing."""
    functions = {name: getattr(tr, name) for name in tr.__all__ if inspect.isfunction(getattr(tr, name))}
    found = {
        (name, key)
        for name, function in functions.items()
        for key, parameter in inspect.signature(function).parameters.items()
        if "Tensor" in str(parameter.annotation) and key not in ("input", "out", *OF_INTEGERS)
    }
    assert found == set(BESIDE)
    x = values((3, 4), torch.float64, seed=3).to(device)
    t = values((4,), torch.float64, seed=4).to(device)
    for (name, key), call in BESIDE.items():
        leaf, of_tensor = t.clone().requires_grad_(), partial(call, x)
        if (name, key) in REFUSED:
            for given in (x, x.clone().requires_grad_()):
                with pytest.raises(RuntimeError, match=rf"{name}\(\): not differentiable.*'{key}'"):
                    call(given, leaf)
            with pytest.raises(RuntimeError, match="not differentiable"):
                torch.func.grad(of_tensor)(t)
            with pytest.raises(RuntimeError, match="not differentiable"):
                torch.func.jvp(of_tensor, (t,), (torch.ones_like(t),))
            with torch.no_grad():
                assert_bitwise_equal(call(x, leaf), call(x, t))
            continue
        assert torch.autograd.gradcheck(of_tensor, (leaf,), check_forward_ad=True)


TORCHS = {
    "sum": lambda x: torch.sum(x),
    "sum dim": lambda x: torch.sum(x, 1),
    "sum dims keepdim": lambda x: torch.sum(x, (0, -1), keepdim=True),
    "sum dtype": lambda x: torch.sum(x, 0),
    "mean": lambda x: torch.mean(x),
    "mean dims": lambda x: torch.mean(x, (0, 2)),
    "mean keepdim": lambda x: torch.mean(x, 1, keepdim=True),
    "amax": lambda x: torch.amax(x, (0, 1)),
    "amax keepdim": lambda x: torch.amax(x, 2, keepdim=True),
    "amin": lambda x: torch.amin(x),
    "max all": lambda x: torch.max(x),
    "min all keepdim": lambda x: torch.min(x).reshape(1, 1, 1),
    "max": lambda x: torch.max(x, 1).values,
    "max dims": lambda x: torch.amax(x, (0, 2), keepdim=True),
    "min": lambda x: torch.min(x, -1, keepdim=True).values,
    "min dims": lambda x: torch.amin(x, (1, 2)),
    "nansum": lambda x: torch.nansum(x, 1),
    "nanmean": lambda x: torch.nanmean(x, (0, 2)),
    "prod": lambda x: torch.prod(x, 1),
    "prod dims keepdim": lambda x: torch.prod(torch.prod(x / 4, 2, keepdim=True), 0, keepdim=True),
    "prod dtype": lambda x: torch.prod(x, -1),
    "norm 1": lambda x: torch.linalg.vector_norm(signed(x), 1, 1),
    "norm 2": lambda x: torch.linalg.vector_norm(x, 2, (0, 1)),
    "norm 2 keepdim dtype": lambda x: torch.norm(signed(x), dim=2, keepdim=True),
    "norm inf": lambda x: torch.linalg.vector_norm(signed(x), math.inf, (0, 2), keepdim=True),
    "norm -inf": lambda x: torch.linalg.vector_norm(signed(x), -math.inf),
    "aminmax": lambda x: torch.stack((torch.amin(x, 1), torch.amax(x, 1))),
    "cumsum": lambda x: torch.cumsum(x, 1),
    "cumsum exclusive": lambda x: torch.cumsum(x, 0) - x,
    "cumsum reverse": lambda x: torch.cumsum(x.flip(2), 2).flip(2),
    "cumsum both dtype": lambda x: torch.cumsum(x.flip(1), 1).flip(1) - x,
    "cumprod": lambda x: torch.cumprod(x, 1),
    "cumprod exclusive": lambda x: torch.cumprod(x, 2) / x,
    "cumprod reverse": lambda x: torch.cumprod(x.flip(0), 0).flip(0),
    "cumprod both dtype": lambda x: torch.cumprod(x.flip(1), 1).flip(1) / x,
    "logcumsumexp": lambda x: torch.logcumsumexp(x, 1),
    "logcumsumexp exclusive": lambda x: torch.logcumsumexp(x, 2)[..., :-1],
    "logcumsumexp reverse": lambda x: torch.logcumsumexp(x.flip(0), 0).flip(0),
    "logcumsumexp both": lambda x: torch.logcumsumexp(x.flip(1), 1).flip(1)[:, 1:],
    "cummax": lambda x: torch.cummax(x, 1).values,
    "cummax reverse": lambda x: torch.cummax(x.flip(2), 2).values.flip(2),
    "cummin": lambda x: torch.cummin(x, 0).values,
}


@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_torchs(device, form):
    """On a tie-free input, in float64."""
    x = tie_free((3, 4, 5), device=device, seed=1)
    torch.testing.assert_close(gradient(FORMS[form], x), gradient(TORCHS[form], x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", ((700_001,), (2, 1 << 19), ((1 << 18) + 1, 3)))
@pytest.mark.parametrize("reverse", (False, True))
def test_gradients_of_long_extremes_are_those_of_one_scan(device, shape, reverse):
    """Their rows are taken in pieces: bitwise identical to the decayed sum of the whole row (docs/numerics.md)."""
    dim = max(range(len(shape)), key=lambda d: shape[d])
    torch.manual_seed(0)
    x = torch.randn(shape, device=device)
    grad = torch.randn(shape, device=device) * 10 ** (4 * torch.randn(shape, device=device))
    index = tr.cummax(x, dim, reverse=reverse).indices
    apart = index.double() * (-1024 if reverse else 1024)
    sums = torch.ops.torchreduce.decayed_sum(grad.double(), apart, apart, dim, not reverse, 0)
    here = torch.arange(shape[dim], device=device).reshape([-1 if d == dim else 1 for d in range(len(shape))])
    expected = torch.where(index == here, sums.float(), 0.0)
    x.requires_grad_()
    (found,) = torch.autograd.grad(tr.cummax(x, dim, reverse=reverse).values, x, grad)
    assert_bitwise_equal(found, expected)


@pytest.mark.parametrize("nan", (False, True))
def test_gradients_of_ties_and_nan_are_torchs(device, nan):
    data = [[1.0, 3.0, 3.0, 3.0], [2.0, 2.0, 0.0, -1.0], [-0.0, 0.0, 0.0, -0.0]]
    if nan:
        data[0][1] = data[0][3] = float("nan")
    for name, dim in itertools.product(("amax", "amin", "max", "min"), (None, 0, 1)):
        x, z = (torch.tensor(data, device=device, requires_grad=True) for _ in range(2))
        ours, theirs = (getattr(m, name)(*((t,) if dim is None else (t, dim))) for m, t in ((tr, x), (torch, z)))
        if not isinstance(ours, torch.Tensor):
            ours, theirs = ours.values, theirs.values
        (a,), (b,) = (torch.autograd.grad(y, t, torch.full_like(y, 6.0)) for y, t in ((ours, x), (theirs, z)))
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("order", (1, 2, math.inf, -math.inf))
def test_gradients_of_norms_at_zeros_ties_and_nan_are_torchs(device, order):
    data = [[3.0, -3.0, 1.0, 0.0], [0.0, 0.0, -0.0, 0.0], [2.0, math.nan, -2.0, math.nan]]
    for dim, dtype in itertools.product((0, 1, None), (torch.float64, torch.bfloat16)):
        x, z = (torch.tensor(data, dtype=dtype, device=device, requires_grad=True) for _ in range(2))
        ours, theirs = tr.vector_norm(x, order, dim), torch.linalg.vector_norm(z, order, dim)
        (a,), (b,) = (torch.autograd.grad(y, t, torch.full_like(y, 6.0)) for y, t in ((ours, x), (theirs, z)))
        torch.testing.assert_close(a, b, equal_nan=True)


def test_the_gradient_of_a_count_is_0(device):
    x = tie_free((3, 4), torch.float32, device)
    assert_bitwise_equal(gradient(lambda t: tr.vector_norm(t, 0, 1), x), torch.zeros_like(x))
    assert_bitwise_equal(torch.func.jvp(lambda t: tr.vector_norm(t, 0, 1), (x,), (x,))[1], torch.zeros_like(x[:, 0]))


def test_gradients_of_products_with_zeros(device):
    """None, one, and two of them in a row; twice, and forward."""
    x = tie_free((4, 5), device=device)
    x[1, 2] = x[2, 0] = x[2, 4] = 0
    for f, g in ((lambda t: tr.prod(t, 1), lambda t: torch.prod(t, 1)), (tr.prod, torch.prod)):
        torch.testing.assert_close(gradient(f, x), gradient(g, x), rtol=1e-12, atol=0)
        torch.testing.assert_close(torch.func.jvp(f, (x,), (x.cos(),)), torch.func.jvp(g, (x,), (x.cos(),)))
        torch.testing.assert_close(torch.func.hessian(lambda t, f=f: f(t).sum())(x),
                                   torch.func.hessian(lambda t, g=g: g(t).sum())(x))  # fmt: skip
    assert torch.autograd.gradcheck(lambda t: tr.prod(t, 1), (x.requires_grad_(),))
    assert torch.autograd.gradgradcheck(lambda t: tr.prod(t, 1), (x,))


@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients_of_nan_are_torchs(device, dtype):
    """0 for a NaN; NaN where nanmean has nothing else, and where the result's gradient is not finite."""
    torch._dynamo.reset()
    x = torch.tensor([[1.0, math.nan, 3.0], [math.nan] * 3, [2.0, 4.0, 6.0]], dtype=dtype, device=device)
    for ours, theirs in ((tr.nansum, torch.nansum), (tr.nanmean, torch.nanmean)):
        for g in ([1.0, -2.0, 3.0], [0.0, 0.0, 0.0], [math.inf, math.nan, -math.inf]):
            results = []
            for f in (ours, theirs, torch.compile(partial(ours), backend="eager")):
                leaf = x.clone().requires_grad_()
                y = f(leaf, 1)
                results.append(torch.autograd.grad(y, leaf, torch.tensor(g, dtype=dtype, device=device))[0])
            torch.testing.assert_close(results[0], results[1], equal_nan=True)
            assert_bitwise_equal(results[0], results[2])
        assert_bitwise_equal(
            torch.func.grad(lambda t, f=ours: f(t, 1)[:1].sum())(x)[0],
            gradient_of_ones(lambda t, f=ours: f(t, 1), x)[0],
        )


def gradient_of_ones(f, x):
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(f(leaf).sum(), leaf)[0]


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16))
def test_gradient_bits(device, dtype):
    """True divisions and canonical sums, rounded once."""
    x = tie_free((7, 4099), torch.float32, seed=3).round().clamp_max(2000).to(dtype).to(device)
    g = values((7,), dtype, seed=0)
    wide = g.float()
    assert_bitwise_equal(gradient(lambda t: tr.mean(t, 1), x).cpu(), (wide / 4099).to(dtype)[:, None].expand(7, 4099))
    assert_bitwise_equal(gradient(lambda t: tr.sum(t, 1), x).cpu(), g[:, None].expand(7, 4099))
    ties = (x == x.amax(1, keepdim=True)).cpu()
    share = (wide / ties.sum(1)).to(dtype)[:, None]
    assert ties.sum() > 7
    assert_bitwise_equal(
        gradient(lambda t: tr.amax(t, 1), x).cpu(), torch.where(ties, share, torch.zeros((), dtype=dtype))
    )
    g = values((7, 4099), dtype, seed=0)
    assert_bitwise_equal(gradient(lambda t: tr.cumsum(t, 1), x), reference.apply("cumsum", g, 1, reverse=True))
    ours = gradient(lambda t: tr.cumsum(t, 1, exclusive=True, reverse=True), x)
    assert_bitwise_equal(ours, reference.apply("cumsum", g, 1, exclusive=True))


def test_gradients_are_rounded_once_from_the_results_dtype(device):
    """With dtype=float64 the gradient is float64 and rounds to the input's dtype once."""
    x = torch.ones(3, 2, dtype=torch.float16, device=device, requires_grad=True)
    g = torch.tensor([1 + 2.0**-11 + 2.0**-40, 1.0], dtype=torch.float64, device=device)
    (grad,) = torch.autograd.grad(tr.sum(x, 0, dtype=torch.float64), x, g)
    assert grad.dtype == torch.float16 and grad[:, 0].tolist() == [1 + 2.0**-10] * 3
    (grad,) = torch.autograd.grad(tr.cumsum(x, 0, dtype=torch.float64), x, g.expand(3, 2))
    assert grad.dtype == torch.float16 and grad[2, 0] == 1 + 2.0**-10


@pytest.mark.parametrize("form", FORMS)
def test_gradients_keep_the_promises(device, form):
    """Run-to-run, layout, CPU or GPU."""
    x = values((3, 40, 50), torch.float32, seed=4).to(device)
    expected = gradient(FORMS[form], x)
    assert_bitwise_equal(gradient(FORMS[form], x), expected)
    for layout in (transposed, padded):
        assert_bitwise_equal(gradient(FORMS[form], layout(x)), expected)
    assert_bitwise_equal(gradient(FORMS[form], x.cpu()), expected.cpu())


@pytest.mark.parametrize("name", ("sum", "mean", "amax", "min", "cumsum", "logcumsumexp", "cummax"))
def test_gradients_are_batch_invariant(device, name):
    def f(x):
        y = getattr(OURS, name)(x, 1)
        return y if isinstance(y, torch.Tensor) else y.values

    x, g = values((30, 700), torch.float32).to(device), values((30, 700), torch.float32, seed=1).to(device)
    for size in (1, 2, 17):
        whole, part = (t.detach().requires_grad_() for t in (x, x[3 : 3 + size]))
        y, z = f(whole), f(part)
        weights = g if name.startswith(("cum", "log")) else g[:, 0]
        (a,), (b,) = torch.autograd.grad(y, whole, weights), torch.autograd.grad(z, part, weights[3 : 3 + size])
        assert_bitwise_equal(a[3 : 3 + size], b)


def test_only_what_backward_needs_is_saved(device):
    saved = []
    x = tie_free((3, 4, 5), torch.float32, device).requires_grad_()
    needed = {"sum": 0, "mean": 0, "cumsum": 0, "max": 1, "min": 1, "amax": 2, "amin": 2}
    needed |= {"cumprod": 1, "logcumsumexp": 1, "cummax": 1, "cummin": 1}
    needed |= {"nansum": 1, "nanmean": 2, "prod": 1, "norm 1": 2, "norm 2": 2, "norm": 3, "aminmax": 3}
    for form, f in FORMS.items():
        saved.clear()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.shape) or t, lambda t: t):
            f(x)
        expected = 2 if "all" in form else needed.get(form) or needed[form.split()[0]]
        assert len(saved) == expected, form
        if expected == 1 and form.split()[0] in ("max", "min"):
            assert x.shape not in saved  # the index, not the input


def test_what_has_no_gradient(device):
    x = tie_free((3, 4), torch.float32, device).requires_grad_()
    assert not tr.argmax(x).requires_grad and not tr.argmin(x, 1).requires_grad
    assert not tr.max(x, 1).indices.requires_grad and tr.max(x, 1).values.requires_grad
    assert not tr.sum(x.detach()).requires_grad
    with torch.no_grad():
        assert not tr.sum(x).requires_grad and not tr.max(x, 0).values.requires_grad
