"""out= of softmax, log_softmax and nanmean: written without a copy, whatever its strides, dtype and overlap."""

import warnings
from collections import Counter

import pytest
import torch
from cases import LAYOUTS, contiguous, padded, transposed, values
from test_contract import threads
from torch._subclasses.fake_tensor import FakeTensorMode

import torchreduce as tr
from torchreduce import override
from torchreduce.testing import assert_bitwise_equal, force_plan

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SOFTMAXES = ("softmax", "log_softmax")
named = pytest.mark.parametrize("name", (*SOFTMAXES, "nanmean"))
of_rows = pytest.mark.parametrize("name", SOFTMAXES)
SHAPES = (((5, 6, 7), 1), ((5, 6, 7), 2), ((40, 300), 0), ((3, 5000), 1), ((2, 70000), 1), ((70000, 2), 0))


def calls_of(call):
    """How often each op of torch's runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    return Counter({event.key: event.count for event in profile.key_averages()})


def torchs(name):
    """torch's function, overridden on the CPU."""

    def call(x, dim, **options):
        with tr.enabled(cpu=True, compile=False):
            return getattr(torch, name)(x, dim, **options)

    return call


WAYS = {"ours": lambda name: getattr(tr, name), "override": torchs}
ways = pytest.mark.parametrize("way", WAYS)


@named
@ways
@pytest.mark.parametrize("layout", (contiguous, transposed, padded))
def test_out_has_the_bits_of_the_result(device, name, way, layout):
    if (way, name, layout) == ("override", "nanmean", padded):  # torch cannot tell whether its elements overlap
        x, before = values((3, 5, 7), torch.float32, seed=1).to(device), tr.coverage()["nanmean.out"]["out"]
        WAYS[way](name)(x, 1, out=layout(torch.zeros(3, 7, device=device)))
        assert tr.coverage()["nanmean.out"]["out"] == before + 1
        return
    for shape, dim in SHAPES:
        for dtype in FLOATS:
            x = values(shape, dtype, seed=1).to(device)
            for to in FLOATS if way == "ours" else (dtype,):
                expected = getattr(tr, name)(x, dim, dtype=to)
                out = layout(torch.zeros_like(expected))
                place, strides = out.data_ptr(), out.stride()
                assert WAYS[way](name)(x, dim, out=out) is out
                assert (out.data_ptr(), out.stride()) == (place, strides)
                assert_bitwise_equal(out, expected)


@named
@ways
def test_nothing_is_copied(name, way):
    f, x = WAYS[way](name), values((40, 300), torch.float32, seed=1)
    out = torch.zeros_like(f(x, 1))
    written, returned = calls_of(lambda: f(x, 1, out=out)), calls_of(lambda: f(x, 1))
    if name == "nanmean":  # the number of elements becomes a float, either way
        assert written["aten::copy_"] <= returned["aten::copy_"] and not written["aten::resize_"]
        return
    y = x.clone()
    for ran in (written, calls_of(lambda: f(y, 1, out=y))):
        assert not ran.keys() & {"aten::copy_", "aten::clone", "aten::resize_", "aten::empty", "aten::empty_strided"}


@of_rows
@ways
def test_in_place_and_in_memory_that_overlaps(device, name, way):
    f = WAYS[way](name)
    # In place on a GPU an overridden call is torch's, or through torch's copy.
    same = torch.testing.assert_close if (way, device) == ("override", "cuda") else assert_bitwise_equal
    for shape, dim in SHAPES:
        for layout in LAYOUTS.values():
            x = layout(values(shape, torch.bfloat16, seed=2).to(device))
            expected = getattr(tr, name)(x, dim)
            assert f(x, dim, out=x) is x
            same(x, expected)
    for count in (1, 2):
        for family in ("rows", "columns") if device == "cpu" else ("strided",):
            x = values((2, 70000), torch.float32, seed=3).to(device)
            expected = getattr(tr, name)(x, 1)
            with threads(count), force_plan(family=family):
                f(x, 1, out=x)
            same(x, expected)


@of_rows
def test_memory_that_overlaps_otherwise_goes_through_a_copy(device, name):
    f = getattr(tr, name)
    for take in (
        lambda m: (m[:, :50], m[:, 1:51]), lambda m: (m[:, ::2], m[:, 1::2]), lambda m: (m[:50, :50], m[:50, :50].T),
        lambda m: (m[:50], m[1:51]), lambda m: (m[:50], m.view(torch.int32).view(torch.float32)[25:75]),
    ):  # fmt: skip
        memory = values((100, 100), torch.float32, seed=4).to(device)
        x, out = take(memory)
        expected = f(x.clone(), 1)
        assert_bitwise_equal(f(x, 1, out=out), expected)


def test_nanmean_writes_over_its_input(device):
    x = values((6, 1, 50), torch.float32, seed=5).to(device)
    expected = tr.nanmean(x, 1, keepdim=True)
    assert_bitwise_equal(tr.nanmean(x, 1, keepdim=True, out=x), expected)


def test_nanmean_of_as_many_dims_as_there_can_be(device):
    x = torch.tensor([1.0, 2.0, 6.0], device=device).reshape([1] * 63 + [3])
    out = torch.empty(0, device=device)
    assert tr.nanmean(x, 63, keepdim=True, out=out).shape == (1,) * 64 and out.item() == 3
    assert tr.nanmean(x[..., 0].squeeze(), out=torch.empty((), device=device)).item() == 1


@named
@ways
def test_out_is_resized_as_torchs(name, way):
    f, x = WAYS[way](name), values((4, 30), torch.float32, seed=6)
    expected = getattr(tr, name)(x, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_bitwise_equal(f(x, 1, out=torch.empty(0)), expected)
    with pytest.warns(UserWarning, match="resized"):
        result = f(x, 1, out=torch.empty(7))
    torch.testing.assert_close(result, expected)
    assert f(x[:0], 1, out=torch.empty(0)).shape == expected[:0].shape


@named
def test_out_that_does_not_fit_is_refused(device, name):
    f, x = getattr(tr, name), values((4, 30), torch.float32, seed=7).to(device)
    out = torch.empty_like(getattr(tr, name)(x, 1))
    for error, match, call in (
        (TypeError, "must be a Tensor, got list", lambda: f(x, 1, out=[out])),
        (RuntimeError, "dtype", lambda: f(x, 1, dtype=torch.float64, out=out)),
        (RuntimeError, "int64", lambda: f(x, 1, out=out.long())),
        (RuntimeError, "to be on", lambda: f(x, 1, out=out.to("meta"))),
        (RuntimeError, "single memory location", lambda: f(x, 1, out=out[:1].expand(out.shape))),
        (RuntimeError, "requires grad", lambda: f(x.clone().requires_grad_(), 1, out=out)),
        (RuntimeError, "requires grad", lambda: f(x, 1, out=out.clone().requires_grad_())),
        (NotImplementedError, "layout torch.sparse", lambda: f(x, 1, out=out.to_sparse())),
        (NotImplementedError, "forward-mode", lambda: torch.func.jvp(lambda t: f(t, 1, out=out), (x,), (x,))),
    ):
        with pytest.raises(error, match=match):
            call()
    with pytest.raises(RuntimeError, match="shares memory"):
        f(x, 1, out=x[:1])
    with torch.no_grad():
        assert_bitwise_equal(f(x.clone().requires_grad_(), 1, out=out), f(x, 1))


@of_rows
def test_the_op_itself_checks_what_memory_needs(device, name):
    op, x = getattr(torch.ops.torchreduce, name).raw_out, torch.zeros(4, 30, device=device)
    for match, out in (("shape", x[1:]), ("dtype", x.double())):
        with pytest.raises(RuntimeError, match=match):
            op(x, 1, None, 0, out=out)


@named
def test_a_saved_tensor_that_is_written_is_noticed(device, name):
    x, w = values((4, 30), torch.float32, seed=8).to(device), torch.ones(4, 30, device=device).requires_grad_()
    out = torch.empty_like(getattr(tr, name)(x, 1))
    product = w[tuple(map(slice, out.shape))].mul(out) if out.dim() > 1 else w[:, 0].mul(out)
    getattr(tr, name)(x, 1, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


@named
def test_out_that_is_a_negative_view(device, name):
    x = values((4, 30), torch.float32, seed=9).to(device)
    expected = getattr(tr, name)(x, 1)
    out = torch._neg_view(torch.zeros_like(expected))
    assert_bitwise_equal(getattr(tr, name)(x, 1, out=out).resolve_neg(), expected)


@named
@pytest.mark.parametrize("backend", ("eager", "aot_eager"))
def test_out_under_compilers(name, backend):
    x = values((4, 30), torch.float32, seed=10)
    expected = getattr(tr, name)(x, 1)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, out: getattr(tr, name)(x, 1, out=out), backend=backend, fullgraph=True)
    out = torch.zeros_like(expected)
    assert_bitwise_equal(compiled(x, out), expected)
    assert_bitwise_equal(out, expected)


@named
@ways
def test_out_of_meta_and_fake_tensors(name, way):
    f = WAYS[way](name)
    for mode, device in ((torch.no_grad(), "meta"), (FakeTensorMode(), "cpu")):
        with mode:
            x = torch.empty(4, 30, device=device)
            out = torch.empty(0, device=device)
            assert f(x, 1, out=out) is out
            assert out.shape == ((4,) if name == "nanmean" else (4, 30))


@of_rows
def test_the_override_serves_what_fits(name):
    x = values((4, 30), torch.float32, seed=11)

    def reasons(call):
        before = tr.coverage()[f"_{name}.out"]
        with tr.enabled(cpu=True, compile=False):
            call()
        return {why for why, n in tr.coverage()[f"_{name}.out"].items() if n > before[why]}

    f = getattr(torch, name)
    assert reasons(lambda: f(x, 1, out=torch.empty(0))) == {"served"}
    assert reasons(lambda: f(x.clone(), 1, out=torch.empty(30, 4).T)) == {"served"}
    y = x.clone()
    assert reasons(lambda: f(y, 1, out=y)) == {"served"}
    assert_bitwise_equal(y, getattr(tr, name)(x, 1))
    assert reasons(lambda: f(y[:3], 1, out=y[1:])) == {"out"}
    assert (override.state.eager, override.state.compiled) == (0, 0)
