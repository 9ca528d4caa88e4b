"""cross_entropy beyond class labels: smoothing, probabilities, the loss's dtype, the logarithm of the sums of exp."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from cases import LAYOUTS, generator, values

import torchreduce as tr
from torchreduce.testing import assert_bitwise_equal

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
SHAPES = ((7, 5), (3, 6, 4), (2, 300, 2, 3), (5,))
both = pytest.mark.parametrize("dtype", FLOATS, ids=str)
SMOOTHING = pytest.mark.parametrize("smoothing", (0.0, 0.1, 1.0))


def labels(shape, classes, seed=0):
    t = torch.randint(0, classes, shape, generator=generator(seed))
    if t.dim():
        t.view(-1)[::4] = -100
    return t


def targets(shape, dtype, kind):
    dim = 0 if len(shape) == 1 else 1
    if kind == "probabilities":
        return values(shape, torch.float32, seed=3).softmax(dim).to(dtype)
    return labels([*shape[:dim], *shape[dim + 1 :]], shape[dim])


@both
@SMOOTHING
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ("labels", "probabilities"))
def test_losses_are_torchs(device, dtype, smoothing, shape, kind):
    x, target = values(shape, dtype, seed=1).clamp(-9, 9), targets(shape, dtype, kind)
    weight = torch.rand(shape[0 if len(shape) == 1 else 1], generator=generator(2), dtype=torch.float64).to(dtype)
    for w, reduction in itertools.product((None, weight), ("none", "sum", "mean")):
        a = x.to(device).requires_grad_()
        loss = tr.cross_entropy(
            a, target.to(device), None if w is None else w.to(device), reduction=reduction, label_smoothing=smoothing
        )
        b = x.double().requires_grad_()
        exact = F.cross_entropy(
            b, target.double() if kind == "probabilities" else target, None if w is None else w.double(),
            reduction=reduction, label_smoothing=smoothing,
        )  # fmt: skip
        assert loss.dtype is dtype and loss.shape == exact.shape
        t = TOLERANCE[dtype]
        torch.testing.assert_close(loss.double().cpu(), exact, rtol=t, atol=t, equal_nan=True)
        grads = [torch.autograd.grad(y.sum(), z)[0] for y, z in ((loss, a), (exact, b))]
        torch.testing.assert_close(grads[0].double().cpu(), grads[1], rtol=t, atol=t, equal_nan=True)


@SMOOTHING
@pytest.mark.parametrize("kind", ("labels", "probabilities"))
@pytest.mark.parametrize("weighted", (False, True))
def test_derivatives_are_those_of_finite_differences(device, smoothing, kind, weighted):
    x = values((6, 9), torch.float64, seed=1).clamp(-3, 3).to(device).requires_grad_()
    target = targets((6, 9), torch.float64, kind).to(device)
    weight = torch.rand(9, generator=generator(2), dtype=torch.float64).to(device) if weighted else None

    def f(x):
        return tr.cross_entropy(x, target, weight, label_smoothing=smoothing, return_logsumexp=True)

    torch.autograd.gradcheck(f, x, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True)
    torch.autograd.gradgradcheck(f, x, check_batched_grad=True)
    if kind == "probabilities":
        torch.autograd.gradcheck(
            lambda q: tr.cross_entropy(x.detach(), q, weight, label_smoothing=smoothing), target.requires_grad_()
        )


def run(x, target, **options):
    x = x.detach().requires_grad_()
    loss, log = tr.cross_entropy(x, target, reduction="none", return_logsumexp=True, **options)
    (grad,) = torch.autograd.grad([loss, log], x, [torch.ones_like(loss) * 1.5, torch.ones_like(log) * 0.25])
    return loss.detach(), log.detach(), grad


@both
@SMOOTHING
@pytest.mark.parametrize("kind", ("labels", "probabilities"))
@pytest.mark.parametrize("n", (5, 300, 2500))
def test_bits_do_not_depend_on_the_batch_the_layout_or_the_device(device, dtype, smoothing, kind, n):
    x, target = values((20, n), dtype, seed=4), targets((20, n), dtype, kind)
    weight = torch.rand(n, generator=generator(2)).to(dtype)
    for w in (None, weight):
        expected = run(x, target, weight=w, label_smoothing=smoothing)
        options = {"weight": None if w is None else w.to(device), "label_smoothing": smoothing}
        there, t = x.to(device), target.to(device)
        for layout in LAYOUTS.values():
            assert_bitwise_equal(run(layout(there), t, **options), expected)
        for first, last in ((0, 1), (3, 9)):
            part = run(there[first:last].clone(), t[first:last], **options)
            assert_bitwise_equal(part, tuple(e[first:last] for e in expected))


def test_the_plain_loss_and_its_gradient_keep_their_bits(device):
    """Whether the logarithm comes, too, and by which dtype."""
    for dtype in FLOATS:
        x, t = values((9, 500), dtype, seed=5).to(device), labels((9,), 500).to(device)
        loss, log, _ = run(x, t)
        assert_bitwise_equal(tr.cross_entropy(x, t, reduction="none"), loss)
        wide = tr.cross_entropy(
            x, t, reduction="none", dtype=torch.float64 if dtype is torch.float64 else torch.float32
        )
        assert_bitwise_equal(wide.to(dtype), loss)
        assert_bitwise_equal(log, tr.logsumexp(x.to(log.dtype), 1).masked_fill(t == -100, 0))
        double = tr.cross_entropy(x, t, dtype=torch.float64)
        torch.testing.assert_close(double, tr.cross_entropy(x.double(), t), rtol=0, atol=0)
    with pytest.raises(NotImplementedError, match=r"dtype=torch\.int64"):
        tr.cross_entropy(x, t, dtype=torch.int64)


def test_the_loss_of_16_bit_logits_in_float32_does_not_overflow(device):
    """65,600 rows whose losses sum to more than float16 has."""
    x = torch.zeros(65600, 4, dtype=torch.float16, device=device, requires_grad=True)
    t = torch.zeros(65600, dtype=torch.int64, device=device)
    for smoothing in (0.0, 0.1):
        total = tr.cross_entropy(x, t, reduction="sum", dtype=torch.float32, label_smoothing=smoothing)
        assert total.dtype is torch.float32 and abs(total.item() / 65600 - math.log(4)) < 1e-6
        (grad,) = torch.autograd.grad(total, x)
        expected = torch.tensor([-0.75 + 0.75 * smoothing] + [0.25 - smoothing / 4] * 3, dtype=torch.float16)
        assert grad.dtype is torch.float16
        torch.testing.assert_close(grad.cpu(), expected.expand_as(grad), rtol=1e-3, atol=1e-4)


def test_ignored_rows_count_nothing_whatever_they_hold(device):
    x = values((6, 11), torch.float32, seed=6)
    x[2], x[4, 3] = math.nan, math.inf
    t = torch.tensor([0, 3, -100, 5, -100, 2])
    x, t, kept = x.to(device), t.to(device), [0, 1, 3, 5]
    for weight, smoothing in itertools.product((None, torch.rand(11).to(device)), (0.0, 0.2)):
        a = x.clone().requires_grad_()
        loss, log = tr.cross_entropy(a, t, weight, label_smoothing=smoothing, return_logsumexp=True)
        (loss + log.square().mean()).backward()
        assert not a.grad[2].any() and not a.grad[4].any() and not log[2].any() and not log[4].any()
        part = tr.cross_entropy(x[kept], t[kept], weight, label_smoothing=smoothing)
        torch.testing.assert_close(loss.detach(), part)


def test_impossible_classes(device):
    """Of probability 0: smoothing makes the loss infinite, as in torch."""
    x = torch.tensor([[1.0, -math.inf, 2.0]], device=device)
    for label in (0, 1):
        t = torch.tensor([label], device=device)
        assert (
            tr.cross_entropy(x, t, label_smoothing=0.1)
            == math.inf
            == F.cross_entropy(x.cpu(), t.cpu(), label_smoothing=0.1)
        )


@pytest.mark.parametrize("backend", ("eager", "aot_eager"))
def test_compiled_it_has_the_same_bits(device, backend):
    x, t = values((12, 50), torch.bfloat16, seed=7).to(device), labels((12,), 50).to(device)
    q = targets((12, 50), torch.bfloat16, "probabilities").to(device)
    torch._dynamo.reset()
    for target, smoothing in itertools.product((t, q), (0.0, 0.1)):

        def f(x, target=target, smoothing=smoothing):
            loss, log = tr.cross_entropy(
                x, target, label_smoothing=smoothing, dtype=torch.float32, return_logsumexp=True
            )
            return loss, log

        results = []
        for g in (f, torch.compile(f, backend=backend, fullgraph=True)):
            a = x.clone().requires_grad_()
            loss, log = g(a)
            (loss + log.square().mean()).backward()
            results.append((loss.detach(), log.detach(), a.grad))
        assert_bitwise_equal(*results)


def test_the_module_passes_everything_on(device):
    x, t = values((8, 10), torch.float32, seed=8).to(device), labels((8,), 10).to(device)
    q = targets((8, 10), torch.float32, "probabilities").to(device)
    module = tr.nn.CrossEntropyLoss(label_smoothing=0.1)
    assert_bitwise_equal(module(x, t), tr.cross_entropy(x, t, label_smoothing=0.1))
    assert_bitwise_equal(module(x, q), tr.cross_entropy(x, q, label_smoothing=0.1))


L = torch.int64
WRONG = (
    ((3, 4), torch.zeros(2, dtype=L), {}), ((3, 4), torch.zeros(3, 1, dtype=L), {}),
    ((3, 4, 5), torch.zeros(3, dtype=L), {}), ((3, 4, 5), torch.zeros(2, 5, dtype=L), {}),
    ((3, 4, 5), torch.zeros(3, 4, dtype=L), {}), ((3, 4, 5, 6), torch.zeros(3, 5, 5, dtype=L), {}),
    ((3, 4, 5, 6, 7), torch.zeros(3, 5, 6, dtype=L), {}), ((4,), torch.zeros(3, dtype=L), {}),
    ((), torch.tensor(0), {}), ((3, 4), torch.zeros(3, dtype=torch.int32), {}),
    ((3, 4), torch.zeros(3, dtype=torch.bool), {}), ((3, 4), torch.zeros(3, dtype=L), {"weight": torch.ones(3)}),
    ((3, 4), torch.zeros(3, dtype=L), {"weight": torch.ones(4, 1)}), ((3, 4), torch.rand(3, 5), {}),
    ((3, 4), torch.rand(3), {}), ((3, 4), torch.rand(3, 4), {"ignore_index": 1}),
    ((3, 4), torch.zeros(3, 4, dtype=L), {}), ((3, 4), torch.zeros(3, dtype=L), {"label_smoothing": 1.5}),
    ((3, 4), torch.zeros(3, dtype=L), {"label_smoothing": "a"}), ((3, 4), torch.tensor([0, 5, 1]), {}),
    ((3, 4), torch.tensor([0, 5, 1]), {"label_smoothing": 0.1}), ((3, 4), torch.zeros(3, dtype=L), {"reduction": "x"}),
    ((3, 4), None, {}), ((3, 4), torch.rand(2, 4), {}), ((3, 4), torch.rand(()), {}), ((3, 4), torch.tensor(0), {}),
    ((3, 4), torch.rand(4, 3), {}), ((3, 4), torch.zeros(2, 4, dtype=L), {}), ((3, 4, 5), torch.rand(2, 4, 5), {}),
    ((3, 4, 5, 6), torch.zeros(2, 5, dtype=L), {}), ((4,), torch.rand(3), {}), ((4,), torch.zeros(3, 4, dtype=L), {}),
    ((), torch.zeros(3, dtype=L), {}),
)  # fmt: skip


@pytest.mark.parametrize("case", range(len(WRONG)))
def test_wrong_arguments_raise_torchs_exceptions(case):
    shape, target, options = WRONG[case]
    x = torch.zeros(shape)
    with pytest.raises(Exception) as theirs:
        F.cross_entropy(x, target, **options)
    with pytest.raises(type(theirs.value), match="cross_entropy"):
        tr.cross_entropy(x, target, **options)


def test_one_label_of_one_row_may_have_a_dim():
    x, t = torch.randn(4), torch.tensor([2])
    assert_bitwise_equal(tr.cross_entropy(x, t), tr.cross_entropy(x, t[0]))
    assert tr.cross_entropy(x, t, reduction="none").shape == F.cross_entropy(x, t, reduction="none").shape
