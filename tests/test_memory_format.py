"""rms_norm and layer_norm of channels-last inputs: the bits of contiguous ones, in torch's memory format."""

import pytest
import torch
import torch.nn.functional as F
from cases import values
from torch._subclasses.fake_tensor import FakeTensorMode

import torchreduce as tr
from torchreduce.testing import assert_bitwise_equal

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
norms = pytest.mark.parametrize("name", ("rms_norm", "layer_norm"))


def last(t):
    return t.to(memory_format=torch.channels_last if t.dim() == 4 else torch.channels_last_3d)


# Inputs by what makes them of a contiguous one.
VIEWS = {
    "contiguous": lambda t: t,
    "channels last": last,
    "part": lambda t: last(torch.cat([t, t], 2))[:, :, : t.shape[2]],
    "gaps between": lambda t: last(torch.stack([t, t], -1).flatten(-2))[..., ::2],
    "batch first": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "reversed": lambda t: t.permute(*range(t.dim())[::-1]).contiguous().permute(*range(t.dim())[::-1]),
    "broadcast": lambda t: last(t[:1]).expand(t.shape),
}
SHAPES = ((2, 3, 4, 5), (3, 1, 4, 5), (1, 3, 1, 5), (2, 40, 7, 33), (2, 3, 1, 1), (2, 3, 2, 4, 5), (2, 0, 4, 5), (4, 5))


def sides(name, shape, dtype, device):
    return [values(shape, dtype, seed=k).to(device) for k in (3, 4)][: 1 + (name == "layer_norm")]


def results_of(function, x, side, g, **residual):
    """Forward, and the gradients of all."""
    leaves = [t.detach().requires_grad_() for t in (x, *side, *residual.values())]
    more = dict(zip(residual, leaves[1 + len(side) :], strict=True))
    out = function(leaves[0], list(side[0].shape), *leaves[1 : 1 + len(side)], eps=1e-5, **more)
    outs = (out,) if isinstance(out, torch.Tensor) else out
    return outs, torch.autograd.grad(outs, leaves, [g] * len(outs))


def strides_of(tensors):
    """None where a dim is never stepped along."""
    return [[s if n != 1 else None for n, s in zip(t.shape, t.stride(), strict=True)] for t in tensors]


@norms
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_bits_are_those_of_contiguous_inputs_and_strides_are_torchs(device, name, view, dtype):
    ours, torchs = getattr(tr, name), getattr(F, name)
    for shape in SHAPES:
        if len(shape) < 4 and view != "contiguous":
            continue
        x, plain = (VIEWS[view](values(shape, dtype, seed=1).to(where)) for where in (device, "cpu"))
        g, h = values(shape, dtype, seed=2).to(device), values(shape, dtype, seed=5).to(device)
        for dims in range(1, len(shape)):
            side = sides(name, shape[-dims:], dtype, device)
            for grad in (g, last(g)) if len(shape) > 3 else (g,):
                found = results_of(ours, x, side, grad)
                assert_bitwise_equal(found, results_of(ours, x.contiguous(), side, g))
                # torch's own on a CPU: on a GPU its rms_norm has two ways, with other strides.
                torch_side = sides(name, shape[-dims:], dtype, "cpu")
                expected = results_of(torchs, plain, torch_side, grad.cpu())
                if x.numel():
                    assert [strides_of(part) for part in found] == [strides_of(part) for part in expected]
                (out, total), grads = results_of(ours, x, side, grad, residual=h)
                assert_bitwise_equal((out, total), (ours(total, shape[-dims:], *side, 1e-5), x + h))
                assert out.stride() == total.stride()
                if x.numel():
                    assert strides_of([out]) == strides_of(expected[0])
                assert_bitwise_equal(grads, results_of(ours, x.contiguous(), side, g, residual=h)[1])


@norms
def test_shapes_of_meta_and_fake_tensors_have_the_strides(name):
    function = getattr(tr, name)
    for shape in SHAPES[:6]:
        for view in VIEWS.values():
            x = view(values(shape, torch.float32, seed=1))
            w = sides(name, shape[-2:], torch.float32, "cpu")
            expected = [strides_of(part) for part in results_of(function, x, w, x)]
            of_sum = strides_of(function(x, shape[-2:], *w, residual=x))
            meta = torch.empty_strided(x.shape, x.stride(), device="meta")
            side = [t.to("meta") for t in w]
            assert [strides_of(part) for part in results_of(function, meta, side, meta)] == expected
            assert strides_of(function(meta, shape[-2:], *side, residual=meta)) == of_sum
            with FakeTensorMode() as mode:
                fake, *side = (mode.from_tensor(t) for t in (x, *w))
                assert strides_of([function(fake, shape[-2:], *side)]) == expected[0]


@norms
@pytest.mark.parametrize("dynamic", (False, True))
def test_compiled_and_under_vmap(name, dynamic):
    function = getattr(tr, name)
    x = last(values((2, 3, 4, 5), torch.float32, seed=1))
    w = sides(name, (5,), torch.float32, "cpu")
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, *w: function(x, x.shape[-1:], *w, eps=1e-5), backend="aot_eager", fullgraph=True, dynamic=dynamic
    )
    for t in (x, x.contiguous(), last(values((3, 2, 6, 5), torch.float32, seed=1))):
        g = function(t, 5, *w).copy_(values(t.shape, torch.float32, seed=2))  # as a compiled backward takes it
        leaf = t.detach().requires_grad_()
        expected = results_of(function, t, w, g)
        y = compiled(leaf, *w)
        assert_bitwise_equal(y, expected[0][0])
        assert y.stride() == expected[0][0].stride()
        (grad,) = torch.autograd.grad(y, leaf, g)
        assert_bitwise_equal(grad, expected[1][0])
        assert grad.stride() == expected[1][0].stride()
    assert_bitwise_equal(torch.func.vmap(lambda t: function(t, 5, *w))(x), function(x, 5, *w))
    assert_bitwise_equal(torch.func.vmap(lambda t: function(t, 5, *w), 1, 1)(x), function(x, 5, *w))


def test_the_override_has_torchs_strides():
    for shape in SHAPES[:6]:
        for view in VIEWS.values():
            x = view(values(shape, torch.float32, seed=1))
            for dims in (1, 2):
                with tr.enabled(cpu=True, compile=False):
                    found = F.rms_norm(x, shape[-dims:]), F.layer_norm(x, shape[-dims:])
                torchs = F.rms_norm(x, shape[-dims:]), F.layer_norm(x, shape[-dims:])
                assert strides_of(found) == strides_of(torchs)
                assert_bitwise_equal(found, (tr.rms_norm(x, shape[-dims:]), tr.layer_norm(x, shape[-dims:])))


def test_plans_know_the_format():
    """Of 16 bytes and more between the elements of a row: rows that lie side by side, in and out."""
    x = last(torch.empty(2, 64, 30, 30))
    assert tr.explain("rms_norm", x, 30).family == "columns"
    assert tr.rms_norm(x, 30).stride() == x.stride()
