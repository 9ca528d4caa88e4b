"""torch.compile(fullgraph=True) gives eager bits, forward and backward."""

import torch
from cases import contiguous, values
from forms import FORMS, Recorder, everything, gradient

import torchreduce as tr
from torchreduce.testing import assert_bitwise_equal


def test_compile_has_eager_bits(device):
    """pytorch #190946: flags ignored under torch.compile; here everything, by torch's own compiler."""
    torch._dynamo.reset()
    compiled = torch.compile(everything, fullgraph=True)
    for dtype in (torch.float32, torch.bfloat16):
        x = values((3, 40, 700), dtype, seed=6).to(device)
        for ours, expected in zip(compiled(x), everything(x), strict=True):
            assert_bitwise_equal(ours, expected)


def test_compiled_gradients_have_eager_bits(device):
    torch._dynamo.reset()
    x = values((3, 40, 70), torch.float32, seed=7).to(device)

    def loss(x):
        return [f(x) for f in FORMS.values()]

    def gradients(f):
        leaf = x.detach().requires_grad_()
        ys = f(leaf)
        weights = [values(y.shape, y.dtype, seed=i).to(device) for i, y in enumerate(ys)]
        # One at a time: torch adds up the gradients of one leaf in an order of its own.
        return [torch.autograd.grad(y, leaf, w, retain_graph=True)[0] for y, w in zip(ys, weights, strict=True)]

    compiled = []
    for f in FORMS.values():
        torch._dynamo.reset()
        g = torch.compile(f, fullgraph=True, backend="aot_eager")
        compiled.append(lambda leaf, g=g: g(leaf))
    for form, ours, expected in zip(FORMS, gradients(lambda t: [g(t) for g in compiled]), gradients(loss), strict=True):
        assert_bitwise_equal(contiguous(ours), contiguous(expected)), form


def test_compiled_backward_by_inductor_has_eager_bits(device):
    """A division left to the compiler would become a product with a reciprocal."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda t: (tr.mean(t, 1), tr.amax(t, 0)), fullgraph=True)
    x = values((31, 77), torch.float32, seed=1).to(device).round()
    for i in (0, 1):
        f = (lambda t: tr.mean(t, 1), lambda t: tr.amax(t, 0))[i]
        assert_bitwise_equal(contiguous(gradient(lambda t, i=i: compiled(t)[i], x)), contiguous(gradient(f, x)))


def test_dynamic_shapes_compile_once(device):
    torch._dynamo.reset()
    recorder = Recorder()
    compiled = torch.compile(everything, fullgraph=True, dynamic=True, backend=recorder)
    for shape in ((3, 4, 5), (6, 7, 8), (5, 9000, 3)):
        x = values(shape, torch.float32, seed=8).to(device)
        for ours, expected in zip(compiled(x), everything(x), strict=True):
            assert_bitwise_equal(ours, expected)
    assert len(recorder.graphs) == 1


def test_out_compiles(device):
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def f(x, out):
        tr.sum(x, 1, out=out)
        return out + 1

    x, out = values((3, 40), torch.float32).to(device), torch.zeros(3, device=device)
    assert_bitwise_equal(f(x, out), tr.sum(x, 1) + 1)
    assert_bitwise_equal(out, tr.sum(x, 1))
