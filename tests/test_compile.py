"""torch.compile(fullgraph=True) gives eager bits, forward and backward."""

import pytest
import torch
from cases import values
from forms import FORMS, Recorder, everything, gradient

import torchreduce as tr
from torchreduce.testing import assert_bitwise_equal


@pytest.mark.long
def test_compile_has_eager_bits(device):
    """pytorch #190946: flags ignored under torch.compile; here everything, by torch's own compiler."""
    torch._dynamo.reset()
    compiled = torch.compile(everything, fullgraph=True)
    for dtype in (torch.float32, torch.bfloat16):
        x = values((3, 40, 700), dtype, seed=6).to(device)
        for ours, expected in zip(compiled(x), everything(x), strict=True):
            assert_bitwise_equal(ours, expected)


@pytest.mark.parametrize("form", FORMS)
def test_compiled_gradients_have_eager_bits(device, form):
    torch._dynamo.reset()
    x = values((3, 40, 70), torch.float32, seed=7).to(device)
    compiled = torch.compile(FORMS[form], fullgraph=True, backend="aot_eager")
    assert_bitwise_equal(gradient(compiled, x), gradient(FORMS[form], x))


def test_compiled_divisions_have_eager_bits(device):
    """Left to torch's own compiler, a division becomes a product with a reciprocal."""
    torch._dynamo.reset()
    x = values((31, 77), torch.float32, seed=1).to(device).round()
    for f in (lambda t: tr.mean(t, 1), lambda t: tr.amax(t, 0)):
        assert_bitwise_equal(gradient(torch.compile(f, fullgraph=True), x), gradient(f, x))


def test_dynamic_shapes_compile_once(device):
    torch._dynamo.reset()
    recorder = Recorder()
    compiled = torch.compile(everything, fullgraph=True, dynamic=True, backend=recorder)
    for shape in ((3, 4, 5), (6, 7, 8), (5, 9000, 3)):
        x = values(shape, torch.float32, seed=8).to(device)
        for ours, expected in zip(compiled(x), everything(x), strict=True):
            assert_bitwise_equal(ours, expected)
    assert len(recorder.graphs) == 1


@pytest.mark.parametrize("sizes", [lambda x: x.shape[-1:], lambda x: x.size(1), lambda x: [x.size(0), x.size(1)]])
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_normalized_dims_may_have_any_size(device, name, sizes):
    torch._dynamo.reset()

    def f(x):
        return getattr(tr, name)(x, sizes(x))

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    for shape in ((3, 5), (3, 6), (4, 7)):
        x = values(shape, torch.float32, seed=9).to(device)
        assert_bitwise_equal(compiled(x), f(x))


def test_out_compiles(device):
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def f(x, out):
        tr.sum(x, 1, out=out)
        return out + 1

    x, out = values((3, 40), torch.float32).to(device), torch.zeros(3, device=device)
    assert_bitwise_equal(f(x, out), tr.sum(x, 1) + 1)
    assert_bitwise_equal(out, tr.sum(x, 1))
