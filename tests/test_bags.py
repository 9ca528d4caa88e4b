"""embedding_bag, bincount and segment_reduce: the bits of reference_segments.py, torch's results in float64, and the
override of torch's calls."""

import itertools

import pytest
import reference_segments as reference
import torch
import torch.nn.functional as F
from test_override import ON
from test_scatters import FLOATS, numbers

import torchreduce as tr
from torchreduce.testing import assert_bitwise_equal, make_input

OFFSETS = torch.tensor([0, 3, 3, 40, 700])
INDICES = numbers(900, 12, 1, 2)
OPTIONS = [
    *({"mode": mode, "padding_idx": padding} for mode in ("sum", "mean", "max") for padding in (None, 0)),
    {"mode": "sum", "weights": True},
    {"mode": "sum", "weights": True, "padding_idx": 0},
]


def bags(dtype, device, options, columns=5):
    options = {key: value for key, value in options.items() if value is not None}
    weight = make_input((12, columns), dtype, 1).to(device).requires_grad_()
    by = make_input((900,), dtype, 2).to(device).requires_grad_() if options.pop("weights", False) else None
    return weight, by, options


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_bags_and_their_gradients(device, dtype, options):
    """Of torchreduce's function, and of torch's with the override."""
    weight, by, options = bags(dtype, device, options)
    inputs = [t for t in (weight, by) if t is not None]
    given = {key: t.detach().cpu() for key, t in (("per_sample_weights", by),) if t is not None} | options
    expected = reference.embedding_bag(INDICES, weight.detach().cpu(), OFFSETS, **given)
    g = make_input((5, 5), dtype, 3).to(device)
    indices, offsets = INDICES.to(device), OFFSETS.to(device)
    got = tr.embedding_bag(indices, weight, offsets, per_sample_weights=by, **options)
    grads = torch.autograd.grad(got, inputs, g)
    assert_bitwise_equal(got.detach(), expected)
    with torch.no_grad():
        assert_bitwise_equal(tr.embedding_bag(indices, weight, offsets, per_sample_weights=by, **options), expected)
    if options["mode"] != "max":
        wanted = reference.embedding_bag_gradient(g.cpu(), INDICES, 12, OFFSETS, **given)
        assert_bitwise_equal(grads[0], wanted)
    if by is not None:
        rows = g.cpu()[torch.repeat_interleave(torch.arange(5), torch.tensor([3, 0, 37, 660, 200]))]
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        products = rows.to(wide) * weight.detach().cpu()[INDICES].to(wide)
        sums = tr.sum(products, 1).to(dtype)
        assert_bitwise_equal(grads[1], sums.masked_fill(options.get("padding_idx", -1) == INDICES, 0))

    before = tr.coverage()
    for kind in (torch.int64, torch.int32):
        with tr.enabled(**ON):
            torchs = F.embedding_bag(indices.to(kind), weight, offsets.to(kind), per_sample_weights=by, **options)
            torchs_grads = torch.autograd.grad(torchs, inputs, g)
            alone = {key: t.to(device) if key == "per_sample_weights" else t for key, t in given.items()}
            again = F.embedding_bag(indices.to(kind), weight.detach(), offsets.to(kind), **alone)
        assert_bitwise_equal(torchs.detach(), expected)
        assert_bitwise_equal(again, expected)
        for a, b in zip(torchs_grads, grads, strict=True):
            assert_bitwise_equal(a, b)
    after = tr.coverage()
    served = {name for name in after if after[name]["served"] > before[name]["served"]}
    assert {"_embedding_bag", "_embedding_bag_forward_only", "_embedding_bag_dense_backward"} <= served
    assert by is None or "_embedding_bag_per_sample_weights_backward" in served


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_derivatives_of_bags(device, options):
    weight, by, options = bags(torch.float64, device, options, 2)
    indices, offsets = INDICES[:30].to(device), torch.tensor([0, 7, 7, 19], device=device)
    inputs = [weight, *([] if by is None else [by[:30].detach().requires_grad_()])]

    def ours(weight, by=None):
        return tr.embedding_bag(indices, weight, offsets, per_sample_weights=by, **options)

    assert torch.autograd.gradcheck(ours, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(ours, inputs)
    wanted = F.embedding_bag(indices, weight, offsets, per_sample_weights=inputs[1] if len(inputs) > 1 else None,
                             **options)  # fmt: skip
    g = torch.randn(4, 2, dtype=torch.float64, device=device)
    for a, b in zip(torch.autograd.grad(ours(*inputs), inputs, g), torch.autograd.grad(wanted, inputs, g), strict=True):
        torch.testing.assert_close(a, b)


def test_the_gradient_of_greatest_rows_is_the_sum_over_their_bags(device):
    weight = torch.tensor([[3.0], [3.0], [1.0]], device=device, requires_grad=True)
    indices, offsets = torch.tensor([2, 0, 1, 1, 0, 2], device=device), torch.tensor([0, 3, 5, 5], device=device)
    g = torch.tensor([[1.0], [2.0], [4.0], [8.0]], device=device)
    for call in (tr.embedding_bag, F.embedding_bag):
        with tr.enabled(**ON):
            out = call(indices, weight, offsets, mode="max")
            (grad,) = torch.autograd.grad(out, weight, g)
        assert out.flatten().tolist() == [3, 3, 0, 1]
        assert grad.flatten().tolist() == [1, 2, 8]


def test_other_ways_to_give_bags(device):
    weight = make_input((12, 5), torch.float32, 1).to(device)
    indices = INDICES.to(device)
    for mode in ("sum", "mean", "max"):
        square = tr.embedding_bag(indices.reshape(30, 30), weight, mode=mode)
        assert_bitwise_equal(square, tr.embedding_bag(indices, weight, torch.arange(0, 900, 30).to(device), mode=mode))
        ends = torch.cat([OFFSETS, torch.tensor([900])]).to(device)
        last = tr.embedding_bag(indices, weight, ends, mode=mode, include_last_offset=True)
        assert_bitwise_equal(last, tr.embedding_bag(indices, weight, OFFSETS.to(device), mode=mode))
        with tr.enabled(**ON):
            assert_bitwise_equal(F.embedding_bag(indices, weight, ends, mode=mode, include_last_offset=True), last)
            layer = torch.nn.EmbeddingBag.from_pretrained(weight, mode=mode)
            assert_bitwise_equal(layer(indices.reshape(30, 30)), square)
        assert_bitwise_equal(tr.embedding_bag(indices[:0], weight, OFFSETS[:1].to(device), mode=mode),
                             weight.new_zeros(1, 5))  # fmt: skip


def test_vmap_of_bags(device):
    weights = torch.randn(3, 12, 2, generator=torch.Generator().manual_seed(1)).to(device)
    many = INDICES[:90].reshape(3, 30).to(device)
    offsets = torch.tensor([0, 7, 7, 19], device=device)
    for mode in ("sum", "mean"):

        def f(weight, indices, mode=mode):
            return tr.embedding_bag(indices, weight, offsets, mode=mode)

        for in_dims in ((0, None), (None, 0), (0, 0)):
            args = [t if d == 0 else t[0] for t, d in zip((weights, many), in_dims, strict=True)]
            loop = [f(*(t[i] if d == 0 else t for t, d in zip(args, in_dims, strict=True))) for i in range(3)]
            assert_bitwise_equal(torch.vmap(f, in_dims)(*args), torch.stack(loop))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_compiled_bags(device, options):
    torch._dynamo.reset()
    weight, by, options = bags(torch.float32, device, options)
    inputs = [t for t in (weight, by) if t is not None]
    indices, offsets = INDICES.to(device), OFFSETS.to(device)
    for call, backend in ((tr.embedding_bag, "aot_eager"), (F.embedding_bag, "torchreduce")):

        def f(*inputs, call=call):
            by = inputs[1] if len(inputs) > 1 else None
            return call(indices, inputs[0], offsets, per_sample_weights=by, **options)

        expected = tr.embedding_bag(indices, weight, offsets, per_sample_weights=by, **options)
        wanted = torch.autograd.grad(expected, inputs, torch.ones_like(expected))
        out = torch.compile(f, backend=backend)(*inputs)
        assert_bitwise_equal(out.detach(), expected.detach())
        for a, b in zip(torch.autograd.grad(out, inputs, torch.ones_like(out)), wanted, strict=True):
            assert_bitwise_equal(a, b)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32, torch.int64], ids=str)
def test_bincount(device, dtype):
    for n, minlength in ((1, 0), (700, 0), (700, 40)):
        index, weights = numbers(n, 12, 1, 2), make_input((n,), dtype, 3)
        expected = reference.bincount(index, weights, minlength)
        for kind in (torch.int64, torch.uint8):
            assert_bitwise_equal(tr.bincount(index.to(device, kind), weights.to(device), minlength), expected)
            with tr.enabled(**ON):
                got = torch.bincount(index.to(device, kind), weights.to(device), minlength)
            assert_bitwise_equal(got, expected)
        counts = tr.bincount(index.to(device), minlength=minlength).cpu()
        assert torch.equal(counts, torch.bincount(index, None, minlength))


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
def test_segment_reduce(device, reduce):
    lengths = torch.tensor([3, 0, 600, 97], device=device)
    offsets = torch.tensor([0, 3, 3, 603, 700], device=device, dtype=torch.int32)
    ours = {"max": tr.amax, "min": tr.amin}.get(reduce, getattr(tr, reduce))
    for dtype, shape in itertools.product((torch.float32, torch.bfloat16), ((700,), (700, 3), (700, 2, 2))):
        x = make_input(shape, dtype, 1).to(device)
        expected = ours(x, 0, segments=offsets)
        before = tr.coverage()["segment_reduce"]["served"]
        for call in (tr.segment_reduce, torch.segment_reduce):
            with tr.enabled(**ON):
                assert_bitwise_equal(call(x, reduce, lengths=lengths), expected)
                assert_bitwise_equal(call(x, reduce, offsets=offsets, axis=0), expected)
        assert tr.coverage()["segment_reduce"]["served"] == before + 2
    x = torch.randn(700, 2, dtype=torch.float64, device=device, requires_grad=True)
    grads = [torch.autograd.grad(call(x, reduce, lengths=lengths).nan_to_num(0, 0, 0).sum(), x)[0]
             for call in (tr.segment_reduce, torch.segment_reduce)]  # fmt: skip
    torch.testing.assert_close(*grads)


def test_other_calls_of_segment_reduce_are_torchs():
    x, lengths = torch.ones(2, 6), torch.tensor([[2, 4], [3, 3]])
    for options in ({"lengths": lengths, "axis": 1}, {"lengths": torch.tensor([2]), "initial": 1.0}):
        with tr.enabled(**ON):
            torchs = torch.segment_reduce(x, "sum", **options)
        assert torch.equal(tr.segment_reduce(x, "sum", **options), torchs)


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda w, i: tr.embedding_bag(i + 4, w, OFFSETS[:1]), RuntimeError, r"index 4 is out of range|index 5 is out"),
    (lambda w, i: tr.embedding_bag(i, w), ValueError, "offsets must be given for indices of 1 dim"),
    (lambda w, i: tr.embedding_bag(i, w, i, mode="min"), ValueError, "mode must be one of sum, mean, max"),
    (lambda w, i: tr.embedding_bag(i, w[0], i), RuntimeError, "weight must have 2 dims"),
    (lambda w, i: tr.embedding_bag(i, w, i.float()), RuntimeError, "offsets must be int32 or int64"),
    (lambda w, i: tr.embedding_bag(i, w, torch.tensor([0, 5])), RuntimeError, "index 5 is out of range"),
    (lambda w, i: tr.embedding_bag(i, w, OFFSETS[:1], per_sample_weights=w[0]), NotImplementedError, "mode='sum'"),
    (lambda w, i: tr.embedding_bag(i, w, OFFSETS[:1], mode="sum", per_sample_weights=w[0, :1]), RuntimeError, "shape"),
    (lambda w, i: tr.embedding_bag(i, w, OFFSETS[:1], padding_idx=4), RuntimeError, "padding_idx must be from -4 to 3"),
    (lambda w, i: tr.bincount(i - 1, w[0, :2]), RuntimeError, "must not have negative elements, got -1"),
    (lambda w, i: tr.bincount(i, w[0]), RuntimeError, "have input's shape"),
    (lambda w, i: tr.bincount(i, w[0, :2], -1), RuntimeError, "minlength must be an int of at least 0, got -1"),
    (lambda w, i: tr.segment_reduce(w, "max", lengths=i), RuntimeError, "lengths must be at least 0, and add up to 4"),
    (lambda w, i: tr.segment_reduce(w, "max", offsets=i + 4), RuntimeError, "offsets must not fall"),
    (lambda w, i: tr.segment_reduce(w, "all", lengths=i), RuntimeError, "reduce must be one of sum"),
])  # fmt: skip
def test_errors_name_what_is_wrong(call, error, message):
    with pytest.raises(error, match=message):
        call(torch.ones(4, 3), torch.tensor([0, 1]))


def test_what_is_wrong_is_torchs_to_refuse():
    """The same exceptions with the override as without; torch reads past the end for wrong offsets of segments."""
    w, i = torch.ones(4, 3), torch.tensor([0, 1])
    for f in (
        lambda: F.embedding_bag(i + 4, w, OFFSETS[:1]),
        lambda: F.embedding_bag(i, w, torch.tensor([0, 5])),
        lambda: F.embedding_bag(i, w, torch.tensor([1])),
        lambda: torch.bincount(i - 1, w[0, :2]),
        lambda: torch.segment_reduce(w, "max", lengths=i),
    ):
        with pytest.raises(RuntimeError) as torchs:
            f()
        with tr.enabled(**ON), pytest.raises(RuntimeError) as ours:
            f()
        assert str(ours.value) == str(torchs.value)
    with tr.enabled(**ON), pytest.raises(RuntimeError, match="offsets must not fall"):
        torch.segment_reduce(w, "sum", offsets=torch.tensor([0, 2, 7]), axis=0)
