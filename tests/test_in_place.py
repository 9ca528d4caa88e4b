"""Results can be changed in place: none is a view for autograd, and none shares memory with an input or another one."""

import math
from functools import partial

import pytest
import torch
from cases import values

import torchreduce as tr
from torchreduce.table import FLOATS
from torchreduce.testing import assert_bitwise_equal


def labels(x):
    return torch.arange(x.shape[0], device=x.device) % x.shape[1]


def plainly(name, **options):
    """A call of a public function on x and further positional arguments."""
    return lambda x, *rest: getattr(tr, name)(x, *rest, **options)


def along(dim, name, **options):
    return lambda x: getattr(tr, name)(x, dim, **options)


def entropies(x, kind, weighted):
    return tr.cross_entropy(x, labels(x), x.detach()[0].abs() if weighted else None, reduction=kind)


REDUCED = ("sum", "mean", "nansum", "nanmean", "prod", "amax", "amin", "max", "min", "all", "any", "argmax", "argmin",
           "count_nonzero", "var", "std", "var_mean", "std_mean", "norm")  # fmt: skip
SCANNED = ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin")
WITH_DTYPE = ("sum", "mean", "nansum", "nanmean", "prod", "cumsum", "cumprod", "softmax", "log_softmax")

# Calls of every public function on floats of shape (4, 6).
CALLS = {
    **{name: [plainly(name), plainly(name, dim=1)] for name in REDUCED},
    **{name: [along(1, name), along(0, name, reverse=True)] for name in SCANNED},
    **{name: [along(1, name)] for name in ("softmax", "log_softmax", "entropy")},
    "cumsum_": [lambda x: tr.cumsum_(x.clone(), 1)],
    "cumprod_": [lambda x: tr.cumprod_(x.clone(), 1)],
    "aminmax": [plainly("aminmax"), plainly("aminmax", dim=1)],
    "logsumexp": [along(1, "logsumexp"), along((0, 1), "logsumexp", keepdim=True)],
    "vector_norm": [plainly("vector_norm", ord=order, dim=1) for order in (0, 1, 2, math.inf, -math.inf)],
    "rms_norm": [lambda x: tr.rms_norm(x, 6), lambda x: tr.rms_norm(x, 6, x.detach()[0])],
    "layer_norm": [lambda x: tr.layer_norm(x, 6), lambda x: tr.layer_norm(x, 6, *x.detach()[:2])],
    "cross_entropy": [
        partial(entropies, kind=kind, weighted=weighted)
        for kind in ("none", "sum", "mean")
        for weighted in (False, True)
    ],
    "selected_log_softmax": [lambda x: tr.selected_log_softmax(x, torch.arange(4, device=x.device))],
    "linear_scan": [
        lambda x: tr.linear_scan(x, x, 1),
        lambda x: tr.linear_scan(0.9, x, 1),
        lambda x: tr.linear_scan(x, x, 0, initial=2.0, reverse=True),
    ],
    "modules": [
        lambda x: tr.nn.RMSNorm(6, elementwise_affine=False)(x),
        lambda x: tr.nn.LayerNorm(6, elementwise_affine=False)(x),
        lambda x: tr.nn.Softmax(1)(x),
        lambda x: tr.nn.LogSoftmax(1)(x),
        lambda x: tr.nn.CrossEntropyLoss()(x, labels(x)),
    ],
    "of one element": [
        *(lambda x, name=name: getattr(tr, name)(x[0, 0]) for name in REDUCED),
        *(
            lambda x, name=name: getattr(tr, name)(x[0, 0], 0)
            for name in (*SCANNED, "softmax", "log_softmax", "entropy")
        ),
    ],
    "to other dtypes": [along(1, name, dtype=to) for name in WITH_DTYPE for to in (torch.float64, torch.bfloat16)],
}


def tensors_of(result):
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def every_result(x):
    return [tensors_of(call(x)) for calls in CALLS.values() for call in calls]


def test_every_public_function_is_called():
    functions = {
        name
        for name in tr.__all__
        if getattr(getattr(tr, name), "__module__", "").rpartition(".")[2] in ("rowwise", "norms", "ops", "scans")
    }
    assert functions <= CALLS.keys()


def first_to_zero(t):
    t[(0,) * t.dim()] = 0
    return t


CHANGES = {
    "add": lambda t: t.add_(1),
    "mul": lambda t: t.mul_(2),
    "div": lambda t: t.div_(3) if t.is_floating_point() else t.floor_divide_(3),
    "index": first_to_zero,
    "detach": lambda t: t.detach_(),
}
COMPILED = torch.compile(every_result, backend="eager")
WAYS = {
    "eager": every_result,
    "autograd": lambda x: every_result(x.requires_grad_()),
    "compiled": COMPILED,
    "compiled autograd": lambda x: COMPILED(x.requires_grad_()),
}
# Tracing, which takes the time, differs in one thing: results that are rounded to 16 bits.
TRACED = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize(
    "dtype, way", [(d, way) for d in FLOATS for way in WAYS if "compiled" not in way or d in TRACED]
)
def test_every_result_can_be_changed_in_place(device, dtype, way):
    x = values((4, 6), dtype, 1).to(device)
    before = x.clone()
    expected = every_result(x)
    for change in CHANGES.values():
        results = WAYS[way](x.detach())
        for result, wanted in zip(results, expected, strict=True):
            for one, (r, w) in enumerate(zip(result, wanted, strict=True)):
                assert not r._is_view() and not torch._C._is_alias_of(r, x)
                assert not any(torch._C._is_alias_of(r, other) for other in result[one + 1 :])
                as_wanted = (lambda t: t.logical_not_()) if w.dtype == torch.bool else change
                assert_bitwise_equal(as_wanted(r).detach(), as_wanted(w.clone()))
    assert_bitwise_equal(x.detach(), before)


# Whose backward does not read their results.
FORGOTTEN = ("sum", "mean", "nansum", "nanmean", "prod", "var", "std", "var_mean", "std_mean", "cumsum", "cumprod",
             "logcumsumexp", "cummax", "cummin", "logsumexp", "entropy", "rms_norm", "layer_norm", "cross_entropy",
             "cumsum_", "cumprod_")  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_changed_result_has_the_changed_gradient(device, dtype):
    """By autograd, by torch.func and with tangents: in place as out of place."""
    x = values((4, 6), dtype, 1).to(device)

    def total(x, change):
        results = [r for name in FORGOTTEN for call in CALLS[name] for r in tensors_of(call(x))]
        return torch.stack([change(r).double().sum() for r in results if r.is_floating_point()]).sum()

    def in_place(r):
        r *= 3
        r += 1
        return r

    def out_of_place(r):
        return r * 3 + 1

    leaf = x.clone().requires_grad_()
    expected = torch.autograd.grad(total(leaf, out_of_place), leaf)[0]
    assert_bitwise_equal(torch.autograd.grad(total(leaf, in_place), leaf)[0], expected)
    assert_bitwise_equal(torch.func.grad(total)(x, in_place), expected)
    tangents = [
        torch.func.jvp(lambda t, c=change: total(t, c), (x,), (x.cos(),)) for change in (in_place, out_of_place)
    ]
    assert_bitwise_equal(*tangents)


@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients_that_were_accumulated_can_be_changed_in_place(device, dtype):
    """As clipping and averaging do; and no two tensors share one."""
    x = values((4, 6), dtype, 1).to(device)
    for calls in CALLS.values():
        for call in calls:
            leaf, other = (x.clone().requires_grad_() for _ in range(2))
            results = [r for t in (leaf, other) for r in tensors_of(call(t)) if r.requires_grad]
            if not results:
                continue
            torch.autograd.backward(results, [torch.ones_like(r) for r in results])
            expected = leaf.grad.clone().mul_(2).add_(1)
            assert_bitwise_equal(leaf.grad.mul_(2).add_(1), expected)
            assert leaf.grad.data_ptr() != other.grad.data_ptr()


def test_a_result_of_as_many_dims_as_there_can_be(device):
    for f in (tr.nanmean, lambda t, dim, keepdim: tr.linear_scan(0.5, t, dim)):
        x = torch.ones([1] * 63 + [3], dtype=torch.bfloat16, device=device, requires_grad=True)
        result = f(x, 63, keepdim=True)
        result += 1
        assert result.dim() == 64 and result.flatten()[0] == 2
