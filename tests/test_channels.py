"""batch_norm, group_norm, instance_norm: their bits, running statistics, memory formats, derivatives, errors, modules,
and the override of torch's."""

import copy
import itertools
from functools import partial

import numpy as np
import pytest
import reference_rowwise
import torch
import torch.nn.functional as F
from reference import canonical_sum
from torch.autograd import gradcheck, gradgradcheck

import torchreduce as tr
from torchreduce.testing import assert_bitwise_equal, make_input

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
EPS = 1e-5
# (samples, channels, ...), and groups: short and long lines, lines within granules, no lines, several leaves; lines of
# whole leaves, of 16 and of 8 bytes
SHAPES = (
    ((3, 6, 7), 2),
    ((2, 8, 5, 5), 4),
    ((5, 16), 8),
    ((300, 8, 3, 3), 2),
    ((2, 4, 1100), 2),
    ((4, 24, 2, 3, 2), 3),
    ((2, 6, 2048), 3),
    ((10, 8, 16, 16), 2),
    ((12, 20, 14, 14), 5),
)


def rows_of(x, groups):
    """The elements in the order of the contract: rows of statistics."""
    x = x.reshape(*x.shape[:2], -1)
    samples, channels = x.shape[:2]
    if groups:
        return np.ascontiguousarray(x.reshape(samples * groups, -1))
    return np.ascontiguousarray(x.transpose(1, 0, 2).reshape(channels, -1))


def from_rows(rows, shape, groups):
    samples, channels = shape[:2]
    if groups:
        return rows.reshape(shape)
    return np.ascontiguousarray(rows.reshape(channels, samples, -1).transpose(1, 0, 2)).reshape(shape)


def expected(g, x, w, b, groups):
    """The result, and the gradients of x, weight and bias, in plain NumPy."""
    kind, column = x.dtype.type, lambda t: t.reshape(-1, 1)
    fma, csum = reference_rowwise.fma_of, reference_rowwise.csum
    spread = lambda t: rows_of(np.broadcast_to(t.reshape(1, -1, *[1] * (x.ndim - 2)), x.shape), groups)  # noqa: E731
    high, low, r = reference_rowwise.layer_scale(rows_of(x, groups), EPS)
    normal = ((rows_of(x, groups) - high) - low) * r
    y = from_rows(fma(normal, spread(w), spread(b)), x.shape, groups)
    gs, n = rows_of(g, groups), kind(normal.shape[1])
    u = gs * spread(w) if groups else gs
    a = column(canonical_sum(u) / n)
    c = column(csum(lambda acc, u, xh: fma(u, xh, acc), u, normal) / n)
    dx = fma(-normal, np.broadcast_to(c, u.shape), u - a) * (r if groups else r * column(w))
    by_channel = rows_of(from_rows(normal, x.shape, groups), 0)
    to_weight = csum(lambda acc, g, xh: fma(g, xh, acc), rows_of(g, 0), by_channel)
    to_bias = canonical_sum(rows_of(g, 0))
    return y, from_rows(dx, x.shape, groups), to_weight, to_bias


def data(shape, dtype, device="cpu"):
    g, x = (make_input(shape, dtype, seed) for seed in (1, 2))
    w, b = (make_input(shape[1:2], dtype, seed) for seed in (3, 4))
    return [t.to(device) for t in (g, x * 2 + 1, w, b)]


def with_gradients(f, g, *inputs):
    inputs = [t.detach().requires_grad_() for t in inputs]
    y = f(*inputs)
    return y.detach(), *torch.autograd.grad(y, inputs, g)


def calls(groups):
    """batch_norm and group_norm of x, weight and bias."""
    if groups:
        return lambda x, w, b: tr.group_norm(x, groups, w, b, EPS)
    return lambda x, w, b: tr.batch_norm(x, None, None, w, b, True, eps=EPS)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape, groups", SHAPES)
def test_bits_are_those_of_the_plain_loops(device, shape, groups, dtype):
    g, x, w, b = data(shape, dtype)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    arrays = [t.to(wide).numpy() for t in (g, x, w, b)]
    for of in (0, groups):
        found = with_gradients(calls(of), *(t.to(device) for t in (g, x, w, b)))
        for actual, plain in zip(found, expected(*arrays, of), strict=True):
            assert_bitwise_equal(actual.cpu(), torch.from_numpy(np.ascontiguousarray(plain)).to(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_statistics_are_those_of_var_mean(device, dtype):
    x = data((7, 6, 9, 5), dtype, device)[1]
    mean, var = (torch.zeros(6, dtype=torch.float64, device=device) for _ in range(2))
    tr.batch_norm(x, mean, var, training=True, momentum=1.0)
    wide = x if dtype is torch.float64 else x.float()
    of_x = tr.var_mean(wide, (0, 2, 3))
    assert_bitwise_equal((var.to(wide.dtype), mean.to(wide.dtype)), of_x)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("shape", ((5, 16, 9, 7), (3, 24, 4, 4), (2, 6, 3, 5), (40, 8, 7, 9), (4, 8, 2, 3, 5)))
def test_bits_do_not_depend_on_memory(device, shape, dtype):
    last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    g, x, w, b = data(shape, dtype, device)
    for groups in (0, 2):
        plain = with_gradients(calls(groups), g, x, w, b)
        room = torch.empty(x.numel() + 3, dtype=dtype, device=device)
        forms = [x.contiguous(memory_format=last), x.transpose(2, 3).contiguous().transpose(2, 3),
                 room[3:].view(shape).copy_(x), x.repeat(1, 2, *[1] * (x.dim() - 2))[:, : x.shape[1]]]  # fmt: skip
        for form, of_g in itertools.product(forms, (g, g.contiguous(memory_format=last))):
            assert_bitwise_equal(with_gradients(calls(groups), of_g, form, w, b), plain)
        result = calls(groups)(forms[0], w, b)
        assert result.is_contiguous(memory_format=last) == (groups == 0 or device == "cpu")


def test_float32_weights_of_16_bits(device):
    g, x, w, b = data((6, 8, 5, 3), torch.bfloat16, device)
    for groups in (0, 4):
        y, *grads = with_gradients(calls(groups), g, x, w.float(), b.float())
        same, dx, *_ = with_gradients(calls(groups), g, x, w, b)
        assert_bitwise_equal((y, grads[0]), (same, dx))
        assert y.dtype is torch.bfloat16 and grads[1].dtype is grads[2].dtype is torch.float32
        mixed = with_gradients(calls(groups), g, x, w, b.float())
        assert mixed[2].dtype is torch.bfloat16 and mixed[3].dtype is torch.float32


def test_a_sample_of_a_group_or_instance_norm_is_alone(device):
    g, x, w, b = data((9, 8, 30, 11), torch.float32, device)
    for f in (calls(2), lambda x, w, b: tr.instance_norm(x, None, None, w, b)):
        together = with_gradients(f, g, x, w, b)
        for k in (0, 5, 8):
            alone = with_gradients(f, g[k : k + 1], x[k : k + 1], w, b)
            assert_bitwise_equal((together[0][k : k + 1], together[1][k : k + 1]), alone[:2])


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_values_and_running_statistics_are_torchs(device, dtype):
    g, x, w, b = data((12, 6, 10, 3), dtype, device)
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype is torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    for of, training in itertools.product(("batch_norm", "instance_norm"), (True, False)):
        running = [torch.linspace(k, k + 1, 6, dtype=dtype, device=device) for k in (1, 2)]
        results = []
        for module in (tr, F):
            moved = copy.deepcopy(running)
            f = partial(getattr(module, of), **{"training" if of == "batch_norm" else "use_input_stats": training})
            call = lambda x, w, b, f=f, moved=moved: f(x, *moved, w, b, momentum=0.3)  # noqa: E731
            results.append((*with_gradients(call, g, x, w, b), *moved))
        torch.testing.assert_close(*results, **tolerance)
    found = with_gradients(lambda x, w, b: tr.group_norm(x, 3, w, b), g, x, w, b)
    torch.testing.assert_close(found, with_gradients(lambda x, w, b: F.group_norm(x, 3, w, b), g, x, w, b), **tolerance)


def functions():
    mean, var = torch.linspace(-1, 1, 4, dtype=torch.float64), torch.linspace(0.5, 2, 4, dtype=torch.float64)
    return {
        "group_norm": lambda x, w, b: tr.group_norm(x, 2, w, b),
        "batch_norm": lambda x, w, b: tr.batch_norm(x, None, None, w, b, True),
        "batch_norm given": lambda x, w, b: tr.batch_norm(x, mean, var, w, b),
        "instance_norm": lambda x, w, b: tr.instance_norm(x, None, None, w, b),
    }


@pytest.mark.parametrize("name", functions())
def test_derivatives(name):
    torch.manual_seed(0)
    x, w, b = torch.randn(3, 4, 2, 3).double(), torch.randn(4).double(), torch.randn(4).double()
    inputs = [t.requires_grad_() for t in (x, w, b)]
    f = functions()[name]
    assert gradcheck(f, inputs, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(f, inputs, check_fwd_over_rev=True)
    assert gradcheck(lambda x: f(x, None, None), inputs[:1], check_forward_ad=True)
    assert gradgradcheck(lambda x, b: f(x, None, b), [x, b])


def test_transforms():
    x, w, b = torch.randn(5, 3, 4, 6), torch.randn(4), torch.randn(5, 4)
    for f in functions().values():
        f = lambda x, w, b, f=f: f(x.double(), w.double(), b.double())  # noqa: E731
        each = torch.stack([f(x[k], w, b[k]) for k in range(5)])
        assert_bitwise_equal(torch.vmap(f, (0, None, 0))(x, w, b), each)


@pytest.mark.parametrize("dims", (1, 2, 3))
def test_modules(dims):
    x = torch.randn(4, 6, *(3, 4, 5)[:dims])
    for name, more in itertools.product(
        (f"BatchNorm{dims}d", f"InstanceNorm{dims}d"),
        ({}, {"momentum": None}, {"affine": True, "track_running_stats": True}, {"track_running_stats": False}),
    ):
        if name.startswith("Instance") and more == {"momentum": None}:
            continue
        ours, torchs = getattr(tr.nn, name)(6, **more), getattr(torch.nn, name)(6, **more)
        ours.load_state_dict(torchs.state_dict())
        for training in (True, True, True, False):
            ours.train(training), torchs.train(training)
            torch.testing.assert_close(ours(x + 1), torchs(x + 1), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours.state_dict(), torchs.state_dict())
    ours, torchs = tr.nn.GroupNorm(3, 6), torch.nn.GroupNorm(3, 6)
    torch.testing.assert_close(ours(x), torchs(x))


def test_errors():
    x, w = torch.ones(2, 4, 3), torch.ones(4)
    for error, message, f in (
        (RuntimeError, r"^group_norm\(\).*divisible by num_groups", lambda: tr.group_norm(x, 3)),
        (RuntimeError, r"^group_norm\(\).*at least 2 dims", lambda: tr.group_norm(w, 1)),
        (TypeError, r"^group_norm\(\).*num_groups", lambda: tr.group_norm(x, 1.0)),
        (RuntimeError, r"^batch_norm\(\).*running_mean and running_var", lambda: tr.batch_norm(x, None, None)),
        (RuntimeError, r"^batch_norm\(\).*weight.*4 channels.*\[3\]", lambda: tr.batch_norm(x, w, w, w[:3])),
        (NotImplementedError, r"^batch_norm\(\).*torch.int64", lambda: tr.batch_norm(x.long(), w, w)),
        (TypeError, r"^batch_norm\(\).*running_mean", lambda: tr.batch_norm(x, 1, w)),
        (
            TypeError,
            r"^batch_norm\(\): argument 'training' must be a bool, got int$",
            lambda: tr.batch_norm(x, w, w, training=1),
        ),
        (TypeError, r"^instance_norm\(\).*'use_input_stats'.*str$", lambda: tr.instance_norm(x, use_input_stats="no")),
        (ValueError, "more than 1 value per channel", lambda: tr.batch_norm(x[:1, :, :1], w, w, training=True)),
        (ValueError, "more than 1 spatial", lambda: tr.instance_norm(x[:, :, :1])),
        (ValueError, "more than 1 value per channel", lambda: tr.group_norm(x[:1, :, :1], 4)),
    ):
        with pytest.raises(error, match=message):
            f()


@pytest.mark.parametrize("training", (True, False))
@pytest.mark.parametrize("name", ("BatchNorm1d", "GroupNorm", "InstanceNorm1d"))
def test_shapes_without_data(name, training):
    """Of modules on the device "meta", as a model is made before its parameters are loaded."""
    sizes = (2, 6) if name == "GroupNorm" else (6,)
    more = {} if name == "GroupNorm" else {"affine": True, "track_running_stats": True}
    x = torch.randn(4, 6, 5, device="meta")
    y = getattr(tr.nn, name)(*sizes, device="meta", **more).train(training)(x)
    assert y.is_meta and y.shape == x.shape


def test_no_elements():
    x, w = torch.ones(0, 4, 3, requires_grad=True), torch.ones(4, requires_grad=True)
    for f in (lambda: tr.batch_norm(x, None, None, w, w, True), lambda: tr.group_norm(x, 2, w, w)):
        y = f()
        assert y.shape == x.shape
        to_x, to_weight = torch.autograd.grad(y.sum(), (x, w))
        assert to_x.shape == x.shape and not to_weight.any()


# ---- the override of torch's -----------------------------------------------------------------------------------------


def overridden():
    return {
        "batch_norm": (
            lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, True),
            lambda x, w, b, m, v: tr.batch_norm(x, m, v, w, b, True),
        ),
        "batch_norm given": (
            lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b),
            lambda x, w, b, m, v: tr.batch_norm(x, m, v, w, b),
        ),
        "group_norm": (lambda x, w, b, m, v: F.group_norm(x, 2, w, b), lambda x, w, b, m, v: tr.group_norm(x, 2, w, b)),
        "instance_norm": (
            lambda x, w, b, m, v: F.instance_norm(x, m, v, w, b),
            lambda x, w, b, m, v: tr.instance_norm(x, m, v, w, b),
        ),
    }


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", overridden())
def test_overridden_calls_are_torchreduces(device, name, dtype):
    g, x, w, b = data((5, 8, 6, 3), dtype, device)
    torchs, ours = overridden()[name]
    of = torch.float32 if dtype.itemsize == 2 else dtype
    running = [torch.ones(8, dtype=of, device=device), torch.full((8,), 2.0, dtype=of, device=device)]
    first, second = copy.deepcopy(running), copy.deepcopy(running)
    if name != "group_norm":
        w, b = w.to(of), b.to(of)
    wanted = with_gradients(lambda *t: ours(*t, *first), g, x, w, b)
    with tr.enabled(cpu=True, compile=False):
        row = {"group_norm": "native_group_norm"}.get(name, "native_batch_norm")
        before = tr.coverage()[row]["served"]
        found = with_gradients(lambda *t: torchs(*t, *second), g, x, w, b)
        assert tr.coverage()[row]["served"] == before + 1
    assert_bitwise_equal((*found, *second), (*wanted, *first))


@pytest.mark.parametrize("name", overridden())
def test_compiled_calls_are_torchreduces(name, device):
    g, x, w, b = data((5, 8, 6, 3), torch.float32, device)
    torchs, ours = overridden()[name]
    running = [torch.ones(8, device=device), torch.full((8,), 2.0, device=device)]
    wanted = copy.deepcopy(running)
    plain = with_gradients(lambda *t: ours(*t, *wanted), g, x, w, b)
    for f in (torch.compile(torchs, backend="torchreduce"), torch.compile(ours)):
        moved = copy.deepcopy(running)
        assert_bitwise_equal(with_gradients(lambda *t, f=f, moved=moved: f(*t, *moved), g, x, w, b), plain)
        assert_bitwise_equal(tuple(moved), tuple(wanted))
