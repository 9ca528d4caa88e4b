"""Reductions by segments: bitwise those of each segment's elements alone, as reference_segments.py has them."""

import itertools

import pytest
import reference_segments as reference
import torch

import torchreduce as tr
from torchreduce import _C
from torchreduce.segmented import Segments
from torchreduce.testing import assert_bitwise_equal, make_input

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool)
NAMES = ("sum", "mean", "prod", "amax", "amin", "max", "min", "argmax", "argmin")
# Empty; one, two, few rows; up to a team, residues and a leaf, and one more; several leaves.
LENGTHS = (3, 0, 1, 2, 17, 128, 129, 0, 255, 256, 257, 2048, 2049, 4100, 5)


def offsets_of(lengths, first=0):
    return torch.tensor([first, *itertools.accumulate(lengths, initial=first)][1:])


def shuffled(lengths, seed=0):
    """An index in which each number occurs so often, anywhere."""
    index = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return index[torch.randperm(len(index), generator=torch.Generator().manual_seed(seed))]


def check(name, x, dim, given, here, device, **options):
    """`given` for the reference, `here` for torchreduce on the device."""
    got = getattr(tr, name)(x.to(device), dim, segments=here, **options)
    wanted = reference.apply(name, x, dim, given, **options)
    assert_bitwise_equal(tuple(got) if isinstance(got, tuple) else got, wanted)


def on(device, given):
    return Segments(*(None if t is None else t.to(device) for t in given))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_each_segment_is_reduced_alone(device, name, dtype):
    """By offsets of both dtypes, and by an index; of few and of many columns."""
    n = sum(LENGTHS)
    if name == "mean" and not dtype.is_floating_point:
        with pytest.raises(RuntimeError, match="mean"):
            tr.mean(torch.ones(n, device=device).to(dtype), 0, segments=torch.tensor([0, n], device=device))
        return
    for columns, hostile in ((1, False), (3, True), (37, False)):
        x = make_input((n, columns), dtype, columns, hostile and dtype.is_floating_point)
        offsets = offsets_of(LENGTHS)
        check(name, x, 0, Segments(offsets), offsets.int().to(device), device)
        index = shuffled(LENGTHS)
        check(name, x, 0, reference.segments(index, 15), tr.segments(index.to(device), 15), device)


@pytest.mark.parametrize("name", NAMES)
def test_any_dim_and_layout(device, name):
    """Also permuted, expanded and misaligned inputs, and 300 columns, which a CPU takes in two parts."""
    generator = torch.Generator().manual_seed(1)
    index, offsets = torch.randint(7, (40,), generator=generator), torch.tensor([0, 1, 1, 30, 40])
    for shape, dim in (
        ((40,), 0),
        ((4, 40), 1),
        ((3, 40, 5), 1),
        ((2, 3, 40, 2, 2), -3),
        ((40, 300), 0),
        ((2, 3, 40), 2),
    ):
        x = torch.randn(shape, generator=generator)
        flipped = x.permute(*reversed(range(x.dim()))).contiguous().permute(*reversed(range(x.dim())))
        apart = torch.empty(x.numel() + 1)[1:].view(shape).copy_(x)
        for same in (x, flipped, apart):
            check(name, same, dim, Segments(offsets), offsets.to(device), device)
        check(name, x, dim, reference.segments(index, 7), tr.segments(index.to(device), 7), device)
    wide = torch.randn(40, 1, generator=generator).expand(40, 6)
    check(name, wide, 0, Segments(offsets), offsets.to(device), device)


@pytest.mark.parametrize("seed", range(12))
def test_fuzz(device, seed):
    generator = torch.Generator().manual_seed(seed)

    def integer(low, high):
        return int(torch.randint(low, high + 1, (), generator=generator))

    for _ in range(6):
        n, size, columns = (0, 1, 7, 300, 2500)[integer(0, 4)], integer(1, 9), (1, 3, 6)[integer(0, 2)]
        dtype = FLOATS[integer(0, 3)]
        x = make_input((n, columns), dtype, integer(0, 10**6), hostile=bool(integer(0, 1)))
        draw = torch.rand(n, generator=generator) ** (1, 4)[integer(0, 1)]
        index = (draw * size).long().clamp(0, size - 1)
        cuts = torch.randint(0, n + 1, (size + 1,), generator=generator).sort()[0]  # some elements in no segment
        for given, here in (
            (Segments(cuts), cuts.to(device)),
            (reference.segments(index, size), tr.segments(index.to(device), size)),
            (reference.segments(index.sort()[0], size), tr.segments(index.sort()[0].to(device), size, is_sorted=True)),
        ):
            for name in NAMES:
                check(name, x, 0, given, here, device)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_segment_has_every_element(device, dtype):
    x = make_input((66 * 2048 + 3, 2), dtype, 5)
    for name in ("sum", "prod", "max"):
        offsets = torch.tensor([0, len(x), len(x)])
        check(name, x, 0, Segments(offsets), offsets.to(device), device)


def test_many_short_segments(device):
    index = shuffled([n % 5 for n in range(3000)])
    x = make_input((len(index), 2), torch.bfloat16, 6)
    for name in ("sum", "amin"):
        check(name, x, 0, reference.segments(index, 3000), tr.segments(index.to(device), 3000), device)


def test_wherever_a_segment_begins(device):
    """Whatever else is in the batch."""
    x = make_input((900, 3), torch.float32, 7).to(device)
    for first in range(0, 600, 37):
        offsets = torch.tensor([first, first + 300], device=device)
        for name in ("sum", "prod"):
            alone = getattr(tr, name)(x[first : first + 300], 0)
            assert_bitwise_equal(getattr(tr, name)(x, 0, segments=offsets)[0], alone)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int32, torch.bool], ids=str)
def test_dtypes_of_the_result(device, dtype):
    x, offsets = make_input((600, 2), torch.float32, 8), torch.tensor([0, 5, 5, 600])
    check("sum", x, 0, Segments(offsets), offsets.to(device), device, dtype=dtype)
    check("sum", make_input((600, 2), torch.int16, 8), 0, Segments(offsets), offsets.to(device), device, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_segments_of_an_index(device, dtype):
    index = shuffled(LENGTHS).to(dtype)
    given, wanted = tr.segments(index.to(device), 15), reference.segments(index, 15)
    assert_bitwise_equal(given.offsets, wanted.offsets)
    assert_bitwise_equal(given.order, wanted.order)
    by_order = tr.segments(index.sort()[0].to(device), 15, is_sorted=True)
    assert_bitwise_equal(by_order.offsets, wanted.offsets)
    assert by_order.order is None
    nothing = tr.segments(index[:0].to(device), 0)
    assert nothing.offsets.tolist() == [0] and nothing.order.tolist() == []


def test_threads_and_instruction_sets_show_in_no_bit():
    index = shuffled(LENGTHS * 4)
    index = torch.where(index >= 15, index % 15, index)
    x = make_input((len(index), 20), torch.float32, 9)
    wanted = [getattr(tr, name)(x, 0, segments=tr.segments(index, 15)) for name in NAMES]
    before, isa = torch.get_num_threads(), _C.instruction_set()
    try:
        for threads, name in itertools.product((1, 2, 5), _C.instruction_sets()):
            torch.set_num_threads(threads)
            _C.set_instruction_set(name)
            given = tr.segments(index, 15)
            for name, result in zip(NAMES, wanted, strict=True):
                got = getattr(tr, name)(x, 0, segments=given)
                assert_bitwise_equal(tuple(got) if isinstance(got, tuple) else got,
                                     tuple(result) if isinstance(result, tuple) else result)  # fmt: skip
    finally:
        torch.set_num_threads(before)
        _C.set_instruction_set(isa)


# ---- derivatives -----------------------------------------------------------------------------------------------------

SMOOTH = ("sum", "mean", "prod", "amax", "amin", "max", "min")


def small(device):
    x = torch.randn(9, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).to(device)
    index = torch.tensor([2, 0, 2, 1, 1, 0, 4, 2, 0], device=device)
    return x.requires_grad_(), (tr.segments(index, 5), torch.tensor([1, 4, 4, 8], device=device))


def values(result):
    return result if isinstance(result, torch.Tensor) else result.values


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_to_second_order(device, name):
    x, all_given = small(device)
    for given in all_given:

        def f(x, given=given):
            return values(getattr(tr, name)(x, 0, segments=given))

        empty = values(getattr(tr, name)(x.detach(), 0, segments=given)).isfinite()
        finite = lambda x, f=f, empty=empty: torch.where(empty, f(x), 0)  # noqa: E731
        assert torch.autograd.gradcheck(finite, x, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(finite, x, check_fwd_over_rev=True)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gradients_are_of_each_segment_alone(device, dtype):
    """Bitwise, and +0 for elements of no segment."""
    x = make_input((50, 3), dtype, 4).to(device)
    x[7] = 0
    offsets = torch.tensor([2, 9, 9, 40], device=device)
    for name in SMOOTH:
        if name == "prod" and dtype is torch.float64:
            continue  # by one division, where a row alone has products of the others
        g = make_input((3, 3), dtype, 5).to(device)
        leaf = x.clone().requires_grad_()
        values(getattr(tr, name)(leaf, 0, segments=offsets)).backward(g)
        wanted = torch.zeros_like(x)
        for k, (begin, end) in enumerate(itertools.pairwise(offsets.tolist())):
            if begin < end:
                part = x[begin:end].clone().requires_grad_()
                values(getattr(tr, name)(part, 0)).backward(g[k])
                wanted[begin:end] = part.grad
        assert_bitwise_equal(leaf.grad, wanted)


def test_gradient_by_index(device):
    """The gather, and the sum of its gradient, are the reference's."""
    index = shuffled(LENGTHS[:9])
    g = make_input((9, 4), torch.bfloat16, 3)
    x = make_input((len(index), 4), torch.bfloat16, 2).to(device).requires_grad_()
    given = tr.segments(index.to(device), 9)
    g_here = g.to(device).requires_grad_()
    (back,) = torch.autograd.grad(tr.sum(x, 0, segments=given), x, g_here, create_graph=True)
    assert_bitwise_equal(back.detach(), reference.sum_gradient(g, 0, reference.segments(index, 9), len(index)))
    again = make_input(tuple(x.shape), torch.bfloat16, 1)
    (second,) = torch.autograd.grad(back, g_here, again.to(device))
    assert_bitwise_equal(second, reference.apply("sum", again, 0, reference.segments(index, 9)))


@pytest.mark.parametrize("name", NAMES)
def test_vmap(device, name):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, 12, 3, generator=generator).to(device)
    index = torch.randint(5, (4, 12), generator=generator).to(device)
    cuts = torch.randint(13, (4, 6), generator=generator).sort(1)[0].to(device)
    f = getattr(tr, name)

    def by_index(x, index):
        return f(x, 0, segments=tr.segments(index, 5))

    def by_offsets(x, offsets):
        return f(x, 0, segments=offsets)

    for g, per, in_dims in [
        (by_index, index, (0, 0)), (by_index, index, (None, 0)), (by_index, index, (0, None)),
        (by_offsets, cuts, (0, 0)), (by_offsets, cuts, (None, 0)), (by_offsets, cuts, (0, None)),
    ]:  # fmt: skip
        args = [t if d == 0 else t[0] for t, d in zip((x, per), in_dims, strict=True)]
        got = torch.vmap(g, in_dims)(*args)
        loop = [g(*(t[i] if d == 0 else t for t, d in zip(args, in_dims, strict=True))) for i in range(4)]
        if isinstance(got, tuple):
            for part, parts in zip(got, zip(*loop, strict=True), strict=True):
                assert_bitwise_equal(part, torch.stack(parts))
        else:
            assert_bitwise_equal(got, torch.stack(loop))


def test_vmap_of_gradients(device):
    x, index = torch.randn(3, 8, device=device), torch.randint(4, (3, 8), device=device)
    f = torch.func.grad(lambda x, i: tr.sum(x, 0, segments=tr.segments(i, 4)).square().sum())
    assert_bitwise_equal(torch.vmap(f)(x, index), torch.stack([f(*each) for each in zip(x, index, strict=True)]))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(device, dynamic):
    x, index = torch.randn(30, 4, device=device, requires_grad=True), torch.randint(6, (30,), device=device)

    def f(x, index):
        given = tr.segments(index, 6)
        total = tr.sum(x, 0, segments=given) * tr.amax(x, 0, segments=given).nan_to_num(0, 0, 0)
        return total + tr.mean(x, 0, segments=torch.tensor([0, 1, 2, 3, 4, 4, 30], device=x.device)).nan_to_num()

    compiled = torch.compile(f, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    assert_bitwise_equal(compiled(x, index).detach(), f(x, index).detach())
    (got,), (wanted,) = (torch.autograd.grad(g(x, index).sum(), x) for g in (compiled, f))
    assert_bitwise_equal(got, wanted)


def test_exported():
    class Pool(torch.nn.Module):
        def forward(self, x, offsets):
            return tr.mean(x, 0, segments=offsets), tr.max(x, 0, segments=offsets).indices

    x, offsets = torch.randn(20, 3), torch.tensor([0, 4, 20])
    program = torch.export.export(Pool(), (x, offsets))
    for got, wanted in zip(program.module()(x, offsets), Pool()(x, offsets), strict=True):
        assert_bitwise_equal(got, wanted)


@pytest.mark.gpu
def test_it_replays_from_a_graph():
    x, index = torch.randn(5000, 3, device="cuda"), torch.arange(5000, device="cuda") % 7

    def f():
        given = tr.segments(index, 7)
        return tr.sum(x, 0, segments=given), tr.prod(x, 0, segments=given), tr.index_add(x[:7], 0, index, x)

    expected = f()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = f()
    for t in got:
        t.zero_()
    graph.replay()
    assert_bitwise_equal(got, expected)


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_offsets_out_of_order_are_refused_on_a_cpu():
    x = torch.ones(4)
    for wrong in ([0, 3, 2], [-1, 2], [0, 9]):
        with pytest.raises(RuntimeError, match="offsets must not fall, and be from 0 to 4, got"):
            tr.sum(x, 0, segments=torch.tensor(wrong))
    with pytest.raises(RuntimeError, match="at least one element"):
        tr.sum(x, 0, segments=torch.tensor([], dtype=torch.int64))


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_wrong_offsets_are_clamped_on_a_gpu(name):
    x = torch.randn(5000, 3)
    for wrong in ([0, 3000, 2000, 9000], [-5, 2, 2**40], [0, 5000] * 40):
        got = getattr(tr, name)(x.cuda(), 0, segments=torch.tensor(wrong).cuda())
        torch.cuda.synchronize()
        if name in ("amax", "argmin"):
            assert_bitwise_equal(got, reference.apply(name, x, 0, Segments(torch.tensor(wrong))))


def test_an_index_out_of_range(device, monkeypatch):
    index = torch.tensor([0, 2, -1, 1, 3], device=device)
    if device == "cuda":
        got = tr.sum(torch.tensor([1.0, 2, 4, 8, 16], device=device), 0, segments=tr.segments(index, 3))
        assert got.tolist() == [1, 8, 2]
        monkeypatch.setenv("TORCHREDUCE_CHECK_INDICES", "1")
    with pytest.raises(IndexError, match=r"segments.*index.* out of range: expected at least 0 and less than 3"):
        tr.segments(index, 3)


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda x, o: tr.sum(x, 0, keepdim=True, segments=o), TypeError, "keepdim is not supported together with segments"),
    (lambda x, o: tr.max(x, 0, segments=o, out=(x, x)), TypeError, "out is not supported"),
    (lambda x, o: tr.sum(x, segments=o), TypeError, "dim must be one int"),
    (lambda x, o: tr.sum(x, (0, 1), segments=o), TypeError, "dim must be one int"),
    (lambda x, o: tr.sum(x, 2, segments=o), IndexError, "dimension out of range"),
    (lambda x, o: tr.sum(x[0, 0], 0, segments=o), TypeError, "the input have a dim"),
    (lambda x, o: tr.sum(x, 0, segments=[0, 4]), TypeError, "must be a Tensor of offsets"),
    (lambda x, o: tr.sum(x, 0, segments=o.float()), RuntimeError, "offsets must be int32 or int64"),
    (lambda x, o: tr.sum(x, 0, segments=o[None]), RuntimeError, "offsets must have 1 dim"),
    (lambda x, o: tr.sum(x, 0, segments=tr.segments(o[:3], 5)), RuntimeError, "an order of 3 elements, but dim 0 has"),
    (lambda x, o: tr.mean(x.int(), 0, segments=o), RuntimeError, "cannot be inferred"),
    (lambda x, o: tr.segments([0, 1], 2), TypeError, "'index' must be a Tensor"),
    (lambda x, o: tr.segments(o, o), TypeError, "'size' must be an int"),
    (lambda x, o: tr.segments(o, -1), RuntimeError, "size must be at least 0"),
    (lambda x, o: tr.segments(o, 5, is_sorted=1), TypeError, "'is_sorted' must be a bool"),
])  # fmt: skip
def test_errors_name_what_is_wrong(call, error, message):
    with pytest.raises(error, match=message):
        call(torch.ones(4, 2), torch.tensor([0, 1, 4]))


def test_the_ops_check_what_memory_needs():
    x, offsets, op = torch.ones(4, 2), torch.tensor([0, 4]), torch.ops.torchreduce.sum_segments.raw
    for args, message in [
        ((x, offsets[None], None, None, 0, None, 0), "offsets must have one dim"),
        ((x, offsets, torch.tensor([0]), None, 0, None, 0), "order must have an int64 for each"),
        ((x, offsets, None, None, 5, None, 0), "dim 5 is out of range"),
        ((x, offsets.float(), None, None, 0, None, 0), "offsets must be int32 or int64"),
    ]:
        with pytest.raises((RuntimeError, IndexError), match=message):
            op(*args)
    anything = torch.tensor([2**40, -1, 1, 3])
    assert op(x, offsets, anything, None, 0, None, 0).tolist() == [[4, 4]]
