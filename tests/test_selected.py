"""selected_log_softmax: log-probabilities of labels, without log-probabilities of all classes."""

import math

import pytest
import torch
from cases import LAYOUTS, generator, values
from test_cross_entropy import FLOATS, TOLERANCE
from torch.func import grad, jvp, vmap

import torchreduce as tr
from torchreduce.testing import assert_bitwise_equal

SHAPES = ((7, 5), (5,), (2, 3, 300), (2, 3, 2, 5000), (3, 1))
both = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def selected(x, index, dim=-1, dtype=None):
    """The elements of log_softmax. torch's gather changes NaN of bfloat16 on a CPU."""
    elements = tr.log_softmax(x, dim, dtype).gather(dim, index.long().unsqueeze(dim)).squeeze(dim)
    return elements.masked_fill(elements.isnan(), math.nan)


def case(shape, dtype, dim=-1, device="cpu", scale=1.0):
    x = (values(shape, torch.float32, seed=1).clamp(-9, 9) * scale).to(dtype)
    rest = [n for d, n in enumerate(shape) if d != dim % len(shape)]
    return x.to(device), torch.randint(0, shape[dim], rest, generator=generator(2)).to(device)


@both
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_selected_is_bitwise_log_softmax_and_gather(device, dtype, shape):
    for dim in range(-len(shape), len(shape)):
        for scale in (1.0, 30.0):
            x, index = case(shape, dtype, dim, device, scale)
            for to in (None, torch.float32, torch.float64, torch.bfloat16):
                result = tr.selected_log_softmax(x, index, dim, dtype=to)
                assert result.dtype is (to or dtype) and result.shape == index.shape
                assert_bitwise_equal(result, selected(x, index, dim, to))
                assert_bitwise_equal(tr.selected_log_softmax(x, index.int(), dim, dtype=to), result)


@both
def test_special_rows_have_the_bits_of_log_softmax(device, dtype):
    """NaN, infinities, one class, and results that round to -0."""
    inf, nan = math.inf, math.nan
    x = torch.tensor([[0, nan], [inf, 1], [-inf, -inf], [-inf, 0], [9, -9], [65000, 64000]], device=device).to(dtype)
    for label in (0, 1):
        index = torch.full((6,), label, device=device)
        assert_bitwise_equal(tr.selected_log_softmax(x, index), selected(x, index))
    one, zeros = x[:, :1], torch.zeros(6, dtype=torch.int64, device=device)
    assert_bitwise_equal(tr.selected_log_softmax(one, zeros), selected(one, zeros))
    far = torch.tensor([[0.0, -40.0]], device=device).to(dtype)
    assert_bitwise_equal(tr.selected_log_softmax(far, zeros[:1]), selected(far, zeros[:1]))
    empty = x[:0], zeros[:0]
    assert tr.selected_log_softmax(*empty).shape == (0,)


@both
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_are_those_of_log_softmax_and_gather(device, dtype, shape):
    x, index = case(shape, dtype, -1, device)
    g = values(index.shape, dtype, seed=3).to(device)
    a, b = x.clone().requires_grad_(), x.double().requires_grad_()
    (got,) = torch.autograd.grad(tr.selected_log_softmax(a, index), a, g)
    (exact,) = torch.autograd.grad(selected(b, index), b, g.double())
    t = TOLERANCE[dtype]
    assert got.dtype is dtype
    torch.testing.assert_close(got.double(), exact, rtol=4 * t, atol=4 * t)


def test_derivatives_of_every_order_are_those_of_finite_differences():
    x, index = case((3, 2, 5), torch.float64)
    call = lambda x: tr.selected_log_softmax(x, index)  # noqa: E731
    assert torch.autograd.gradcheck(call, x.requires_grad_(), check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(call, x, check_fwd_over_rev=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [5, 3000])
def test_bits_do_not_depend_on_the_batch_the_layout_or_the_way_of_calling(device, dtype, n):
    x, index = case((6, n), dtype, -1, device)

    def both(x, index, dim=-1):
        x = x.detach().requires_grad_()
        y = tr.selected_log_softmax(x, index, dim)
        return y.detach(), torch.autograd.grad(y.float().square().sum(), x)[0]

    y, g = both(x, index)
    for i in range(6):
        for whole, one in zip((y, g), both(x[i : i + 1], index[i : i + 1]), strict=True):
            assert_bitwise_equal(whole[i : i + 1], one)
        assert_bitwise_equal(tr.selected_log_softmax(x[i], index[i]), y[i])
    for layout in LAYOUTS.values():
        laid = layout(x)
        for a, b in zip(both(laid, index), (y, g), strict=True):
            assert_bitwise_equal(a, b)
    for a, b in zip(both(x.t(), index, 0), (y, g.t()), strict=True):
        assert_bitwise_equal(a, b)
    assert_bitwise_equal(vmap(tr.selected_log_softmax)(x, index), y)
    assert_bitwise_equal(vmap(tr.selected_log_softmax, (0, None))(x.expand(2, 6, n), index)[1], y)
    of_rows = vmap(grad(lambda r, i: tr.selected_log_softmax(r, i).float().square()))(x, index)
    assert_bitwise_equal(of_rows, g)
    value, _ = jvp(lambda x: tr.selected_log_softmax(x, index), (x,), (x,))
    assert_bitwise_equal(value, y)
    shifted = torch.cat([x, x])[3:9]  # a slice, as trl's logits[:, :-1]
    assert_bitwise_equal(tr.selected_log_softmax(shifted[:3], index[3:]), y[3:])


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_it_has_the_same_bits(device, dynamic):
    """By torch's own compiler, which begins with what its other backends do."""
    torch._dynamo.reset()
    compiled = torch.compile(tr.selected_log_softmax, fullgraph=True, dynamic=dynamic)
    for rows in (6, 9):
        x, index = case((rows, 300), torch.bfloat16, -1, device)
        x.requires_grad_()
        for dtype in (None, torch.float32):
            a, b = (f(x, index, dtype=dtype) for f in (compiled, tr.selected_log_softmax))
            assert_bitwise_equal(a.detach(), b.detach())
            assert_bitwise_equal(*(torch.autograd.grad(y.sum(), x)[0] for y in (a, b)))
    torch._dynamo.reset()


def test_nothing_of_the_size_of_the_logits_is_stored():
    x, index = case((64, 5000), torch.bfloat16)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        tr.selected_log_softmax(x.requires_grad_(), index)
    others = [t for t in saved if t.data_ptr() != x.data_ptr()]
    assert len(others) < len(saved) and all(t.numel() <= 2 * 64 for t in others)
    with torch.profiler.profile(profile_memory=True, record_shapes=False) as profile:
        tr.selected_log_softmax(x.detach(), index)
    assert sum(max(0, e.self_cpu_memory_usage) for e in profile.events()) < x.numel()


def test_ignored_rows_have_0_and_no_gradient_whatever_they_hold(device):
    x, index = case((4, 5), torch.float32, -1, device)
    x[1], index[1] = math.nan, -100
    x.requires_grad_()
    y = tr.selected_log_softmax(x, index, ignore_index=-100)
    (g,) = torch.autograd.grad(y.sum(), x)
    assert y[1] == 0 and not g[1].any() and not torch.signbit(y[1])
    keep = [0, 2, 3]
    assert_bitwise_equal(y[keep].detach(), selected(x.detach()[keep], index[keep]))


def test_a_policy_gradient_does_not_depend_on_the_batch(device):
    """GRPO's loss of each sequence, alone and beside others, with the entropy of its tokens."""
    logits, tokens = case((4, 6, 300), torch.bfloat16, -1, device)
    old = tr.selected_log_softmax(logits * 0.9, tokens, dtype=torch.float32)
    advantages = torch.tensor([1.0, -0.5, 0.25, 2.0], device=device)

    def losses(part):
        x = logits[part].detach().requires_grad_()
        ratio = (tr.selected_log_softmax(x, tokens[part], dtype=torch.float32) - old[part]).exp()
        a = advantages[part, None]
        loss = -torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a) - 0.01 * tr.entropy(x, -1)
        loss = tr.mean(loss, 1)
        return loss.detach(), torch.autograd.grad(loss.sum(), x)[0]

    whole = losses(slice(None))
    for i in range(4):
        for a, b in zip(losses(slice(i, i + 1)), whole, strict=True):
            assert_bitwise_equal(a, b[i : i + 1])


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (TypeError, "argument 'index' must be a Tensor, got list", lambda x, i: tr.selected_log_softmax(x, [0])),
        (RuntimeError, "expected index dtype to be int64 or int32, but got torch.float32",
         lambda x, i: tr.selected_log_softmax(x, i.float())),
        (RuntimeError, r"expected index to have input's shape \[4, 5\] without dim 1, but got \[4, 1\]. For several",
         lambda x, i: tr.selected_log_softmax(x, i[:, None])),
        (RuntimeError, "expected input to have at least 1 dim, but got a 0-d tensor",
         lambda x, i: tr.selected_log_softmax(x[0, 0], i[0])),
        (IndexError, "dimension out of range", lambda x, i: tr.selected_log_softmax(x, i, 2)),
        (TypeError, "argument 'dim' must be an int, got float", lambda x, i: tr.selected_log_softmax(x, i, 1.0)),
        (NotImplementedError, "torch.complex64", lambda x, i: tr.selected_log_softmax(x.cfloat(), i)),
        (NotImplementedError, "torch.int64", lambda x, i: tr.selected_log_softmax(x.long(), i)),
        (NotImplementedError, "not implemented for dtype=torch.int64",
         lambda x, i: tr.selected_log_softmax(x, i, dtype=torch.int64)),
        (TypeError, "argument 'ignore_index' must be an int, got str",
         lambda x, i: tr.selected_log_softmax(x, i, ignore_index="no")),
        (TypeError, "argument 'ignore_index' must be an int, got bool",
         lambda x, i: tr.selected_log_softmax(x, i, ignore_index=True)),
        (RuntimeError, "expected index to be on cpu, but it is on meta",
         lambda x, i: tr.selected_log_softmax(x, i.to("meta"))),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(error, message, call):
    with pytest.raises(error, match=rf"^selected_log_softmax\(\): .*{message}"):
        call(*case((4, 5), torch.float32))


@pytest.mark.parametrize("label", [5, -1, -(2**62)])
def test_a_label_out_of_range_is_an_error_on_the_cpu(label):
    x, index = case((4, 5), torch.float32)
    index[2] = label
    with pytest.raises(IndexError, match=rf"^selected_log_softmax: target {label} is out of bounds for 5 classes"):
        tr.selected_log_softmax(x, index)
