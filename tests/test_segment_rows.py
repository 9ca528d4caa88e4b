"""Scans and row-wise ops by segments: bitwise those of each segment as a row of its own, wherever it stands."""

import itertools
import json

import pytest
import reference_segments as reference
import torch
from reference_segments import Segments
from test_segments import FLOATS, INTEGERS, LENGTHS, offsets_of, shuffled

import torchreduce as tr
from torchreduce import _C, testing
from torchreduce.testing import assert_bitwise_equal, force_plan, make_input

ROWS = ("softmax", "log_softmax", "logsumexp", "cumsum")
# As there, with a block tile, and what blocks share on a GPU.
LONG = (*LENGTHS, 8192, 8193, 20000, 64, 65)


def check(name, x, dim, given, here, device, **options):
    got = getattr(tr, name)(x.to(device), dim, segments=here, **options)
    assert_bitwise_equal(got, reference.apply(name, x, dim, given, **options))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_each_segment_is_a_row_of_its_own(device, name, dtype):
    """By offsets of both dtypes, and by an index; of few and of many columns; with elements of no segment."""
    n = sum(LENGTHS)
    for columns, hostile in ((1, False), (3, True), (37, False)):
        x = make_input((n + 9, columns), dtype, columns, hostile)
        offsets = offsets_of(LENGTHS, first=4)
        expected = reference.apply(name, x, 0, Segments(offsets))
        for here in (offsets.to(device), offsets.int().to(device)):
            assert_bitwise_equal(getattr(tr, name)(x.to(device), 0, segments=here), expected)
        index = shuffled(LENGTHS)
        check(name, x[:n], 0, reference.segments(index, 15), tr.segments(index.to(device), 15), device)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
@pytest.mark.parametrize("reverse", [False, True])
def test_scans(device, dtype, reverse):
    offsets = offsets_of(LONG, first=2)
    x = make_input((int(offsets[-1]) + 5,), dtype, 3)
    for exclusive in (False, True):
        check("cumsum", x, 0, Segments(offsets), offsets.to(device), device, reverse=reverse, exclusive=exclusive)
    wide = torch.float64 if dtype.is_floating_point else torch.float32
    check("cumsum", x, 0, Segments(offsets), offsets.to(device), device, reverse=reverse, dtype=wide)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("reverse", [False, True])
def test_recurrences(device, dtype, reverse):
    """With an initial of each segment, of all, and without; multipliers of each element, of each column, and of all."""
    offsets = offsets_of(LONG, first=1)
    n, size = int(offsets[-1]) + 3, len(LONG)
    b = make_input((n, 2), dtype, 1)
    a = make_input((n, 2), dtype, 2).sigmoid()
    a[::97] = 0
    start = make_input((size, 2), dtype, 3)
    for factor, initial in ((a, start), (a, start[:, :1]), (a[:, :1], None), (a[0], start[0]), (a[0, 0], None)):
        got = tr.linear_scan(
            factor.to(device), b.to(device), 0, segments=offsets.to(device), reverse=reverse,
            initial=None if initial is None else initial.to(device),
        )  # fmt: skip
        full = None if initial is None else initial.expand(size, 2)
        assert_bitwise_equal(got, reference.linear_scan(factor, b, 0, Segments(offsets), full, reverse))
    index = shuffled(LENGTHS)
    given, here = reference.segments(index, 15), tr.segments(index.to(device), 15)
    b, a = b[: len(index)], a[: len(index)]
    got = tr.linear_scan(a.to(device), b.to(device), 0, segments=here, reverse=reverse)
    assert_bitwise_equal(got, reference.linear_scan(a, b, 0, given, None, reverse))
    got = tr.linear_scan(0.5, b.to(device), 0, segments=here, initial=2, reverse=reverse)
    wide = b.to(torch.promote_types(dtype, torch.float32))
    half, two = wide.new_full((), 0.5), wide.new_full((15, 2), 2)
    wanted = reference.linear_scan(half, wide, 0, given, two, reverse)
    assert_bitwise_equal(got, wanted.to(dtype))


@pytest.mark.parametrize("name", ROWS)
def test_any_dim_and_layout(device, name):
    """Also permuted, expanded and misaligned inputs."""
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
    single = torch.randn(1, 4, generator=generator)
    for offsets in (torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0]), torch.tensor([1]), torch.tensor([0])):
        check(name, single, 0, Segments(offsets), offsets.to(device), device) if len(offsets) > 1 else None
        check(name, single[:0], 0, Segments(offsets * 0), offsets.to(device) * 0, device) if len(offsets) > 1 else None


@pytest.mark.parametrize("seed", range(8))
def test_fuzz(device, seed):
    generator = torch.Generator().manual_seed(seed)

    def integer(low, high):
        return int(torch.randint(low, high + 1, (), generator=generator))

    for _ in range(5):
        n, size, columns = (0, 1, 7, 300, 2500)[integer(0, 4)], integer(1, 9), (1, 3, 6)[integer(0, 2)]
        dtype = FLOATS[integer(0, 3)]
        x = make_input((n, columns), dtype, integer(0, 10**6), hostile=bool(integer(0, 1)))
        a = make_input((n, columns), dtype, integer(0, 10**6)).sigmoid()
        index = (torch.rand(n, generator=generator) ** (1, 4)[integer(0, 1)] * size).long().clamp(0, size - 1)
        cuts = torch.randint(0, n + 1, (size + 1,), generator=generator).sort()[0]  # some elements in no segment
        for given, here in (
            (Segments(cuts), cuts.to(device)),
            (reference.segments(index, size), tr.segments(index.to(device), size)),
            (reference.segments(index.sort()[0], size), tr.segments(index.sort()[0].to(device), size, is_sorted=True)),
        ):
            for name in ROWS:
                check(name, x, 0, given, here, device)
            reverse = bool(integer(0, 1))
            start = make_input((size, columns), dtype, 5)
            got = tr.linear_scan(
                a.to(device), x.to(device), 0, segments=here, initial=start.to(device), reverse=reverse
            )
            assert_bitwise_equal(got, reference.linear_scan(a, x, 0, given, start, reverse))


def test_wherever_a_segment_begins(device):
    """Whatever else is in the batch. A reset by a = 0 has other bits from place to place; a segment has not."""
    x, a = (
        make_input((900, 2), torch.float32, 7).to(device),
        make_input((900, 2), torch.float32, 8).to(device).sigmoid(),
    )
    for first in range(0, 600, 37):
        offsets = torch.tensor([first, first + 300], device=device)
        here = slice(first, first + 300)
        for name in ("softmax", "log_softmax", "cumsum"):
            f = getattr(tr, name)
            assert_bitwise_equal(f(x, 0, segments=offsets)[here], f(x[here], 0))
        assert_bitwise_equal(tr.logsumexp(x, 0, segments=offsets)[0], tr.logsumexp(x[here], 0))
        for reverse in (False, True):
            got = tr.linear_scan(a, x, 0, segments=offsets, reverse=reverse)
            assert_bitwise_equal(got[here], tr.linear_scan(a[here], x[here], 0, reverse=reverse))
            assert not got[:first].any() and not got[first + 300 :].any()


@pytest.mark.gpu
@pytest.mark.parametrize("leaves", [1, 2])
@pytest.mark.parametrize("rows", [1, 2, 8])
def test_what_a_block_holds_shows_in_no_bit(leaves, rows):
    offsets = offsets_of(LONG, first=3)
    x, a = (
        make_input((int(offsets[-1]) + 70, 5), torch.float32, 1),
        make_input((int(offsets[-1]) + 70, 5), torch.float32, 2).sigmoid(),
    )
    with force_plan(leaves=leaves, rows=rows):
        for name in ROWS:
            check(name, x, 0, Segments(offsets), offsets.cuda(), "cuda")
        got = tr.linear_scan(a.cuda(), x.cuda(), 0, segments=offsets.cuda(), reverse=True)
    assert_bitwise_equal(got, reference.linear_scan(a, x, 0, Segments(offsets), None, True))


def test_threads_and_instruction_sets_show_in_no_bit():
    offsets = offsets_of(LONG * 3)
    x, a = (
        make_input((int(offsets[-1]), 3), torch.float32, 9),
        make_input((int(offsets[-1]), 1), torch.float32, 2).sigmoid(),
    )

    def results():
        return [getattr(tr, name)(x, 0, segments=offsets) for name in ROWS] + [
            tr.linear_scan(a, x, 0, segments=offsets)
        ]

    wanted, before, isa = results(), torch.get_num_threads(), _C.instruction_set()
    try:
        for threads, name in itertools.product((1, 2, 5), _C.instruction_sets()):
            torch.set_num_threads(threads)
            _C.set_instruction_set(name)
            for got, result in zip(results(), wanted, strict=True):
                assert_bitwise_equal(got, result)
    finally:
        torch.set_num_threads(before)
        _C.set_instruction_set(isa)


# ---- derivatives -----------------------------------------------------------------------------------------------------


def small(device, columns=2):
    x = torch.randn(9, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).to(device)
    index = torch.tensor([2, 0, 2, 1, 1, 0, 4, 2, 0], device=device)
    return x.requires_grad_(), (tr.segments(index, 5), torch.tensor([1, 4, 4, 8], device=device))


@pytest.mark.parametrize("name", ROWS)
def test_gradients_to_second_order(device, name):
    x, all_given = small(device)
    for given in all_given:

        def f(x, given=given):
            y = getattr(tr, name)(x, 0, segments=given)
            return torch.where(y.isfinite(), y, 0)

        assert torch.autograd.gradcheck(f, x, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(f, x, check_fwd_over_rev=True)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("with_initial", [False, True])
def test_gradients_of_recurrences(device, reverse, with_initial):
    """Multipliers of each shape meet both kinds of segments, in two of the four cases each."""
    b, all_given = small(device)
    for i, shape in enumerate(((9, 2), (9, 1), (2,), (1, 2))):
        given = all_given[(i + reverse + with_initial) % 2]
        generator = torch.Generator().manual_seed(3)
        a = torch.rand(shape, dtype=torch.float64, generator=generator).to(device).requires_grad_()
        size = len(given.offsets if isinstance(given, tuple) else given) - 1
        start = torch.randn(size, 1, dtype=torch.float64, generator=generator).to(device).requires_grad_()

        def f(a, b, *start, given=given):
            return tr.linear_scan(a, b, 0, segments=given, reverse=reverse, initial=start[0] if start else None)

        inputs = (a, b, start) if with_initial else (a, b)
        assert torch.autograd.gradcheck(f, inputs, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(f, inputs, check_fwd_over_rev=True)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gradients_are_of_each_segment_alone(device, dtype):
    """Bitwise, and +0 for elements of no segment."""
    x, g = (make_input((50, 3), dtype, seed).to(device) for seed in (4, 5))
    a = make_input((50, 3), dtype, 6).to(device).sigmoid()
    start = make_input((3, 3), dtype, 7).to(device)
    offsets = torch.tensor([2, 9, 9, 40], device=device)

    def check(f, *inputs):
        def leaves(tensors):
            return [t.clone().requires_grad_() for t in tensors]

        whole = leaves(inputs)
        y = f(*whole, segments=offsets)
        per_segment = len(y) == 3
        y.backward(g[:3] if per_segment else g)
        wanted = [torch.zeros_like(t) for t in inputs]
        for k, (begin, end) in enumerate(itertools.pairwise(offsets.tolist())):
            if begin < end:
                at = [slice(begin, end) if len(t) == 50 else k for t in inputs]
                parts = leaves([t[i] for t, i in zip(inputs, at, strict=True)])
                f(*parts).backward(g[k] if per_segment else g[begin:end])
                for t, i, part in zip(wanted, at, parts, strict=True):
                    t[i] = part.grad
        for leaf, t in zip(whole, wanted, strict=True):
            assert_bitwise_equal(leaf.grad, t)

    for name in ROWS:
        check(lambda x, name=name, **o: getattr(tr, name)(x, 0, **o), x)
    for reverse in (False, True):
        check(lambda a, b, reverse=reverse, **o: tr.linear_scan(a, b, 0, reverse=reverse, **o), a, x)
        check(
            lambda a, b, s, reverse=reverse, **o: tr.linear_scan(a, b, 0, initial=s, reverse=reverse, **o), a, x, start
        )


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_gradient_by_index(device, name):
    index = shuffled(LENGTHS[:9])
    x, g = (make_input((len(index), 4), torch.bfloat16, seed) for seed in (2, 3))
    leaf = x.to(device).requires_grad_()
    y = getattr(tr, name)(leaf, 0, segments=tr.segments(index.to(device), 9))
    g = g[: len(y)]
    (back,) = torch.autograd.grad(y, leaf, g.to(device))
    of = x if name == "logsumexp" else y.detach().cpu()
    assert_bitwise_equal(back, reference.rowwise_gradient(name, g, of, reference.segments(index, 9)))


def test_golden_bits_are_the_references():
    """Those of test_contract.py are the other ones."""
    golden = json.loads(testing.GOLDEN_FILE.read_text())["cases"]
    cases = [c for c in testing.golden_cases() if c.function in testing.ROWWISE and "segments" in c.options]
    assert len(cases) == 24
    for case in cases:
        x = case.input()
        given = case.beside(x)[1]["segments"]
        y = reference.apply(case.function, x, 0, given)
        of = x if case.function == "logsumexp" else y
        back = reference.rowwise_gradient(case.function, case.gradients(y)[0], of, given)
        assert golden[case.name]["result"] == testing.hash_of(y, back), case.name


def calls():
    def of(name):
        return lambda x, given: getattr(tr, name)(x, 0, segments=given)

    yield from (pytest.param(of(name), id=name) for name in ROWS)
    yield pytest.param(lambda x, given: tr.linear_scan(0.5, x, 0, segments=given, initial=x[:5]), id="linear_scan")


@pytest.mark.parametrize("f", list(calls()))
def test_vmap(device, f):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, 12, 3, generator=generator).to(device)
    index = torch.randint(5, (4, 12), generator=generator).to(device)
    cuts = torch.randint(13, (4, 6), generator=generator).sort(1)[0].to(device)

    def by_index(x, index):
        return f(x, tr.segments(index, 5))

    def gradient(x, offsets):
        return torch.func.grad(lambda x: torch.where((y := f(x, offsets)).isfinite(), y, 0).square().sum())(x)

    for g, per, in_dims in [
        (by_index, index, (0, 0)), (by_index, index, (None, 0)), (by_index, index, (0, None)),
        (f, cuts, (0, 0)), (f, cuts, (None, 0)), (f, cuts, (0, None)),
        (gradient, cuts, (0, 0)), (gradient, cuts, (0, None)),
    ]:  # fmt: skip
        args = [t if d == 0 else t[0] for t, d in zip((x, per), in_dims, strict=True)]
        got = torch.vmap(g, in_dims)(*args)
        loop = [g(*(t[i] if d == 0 else t for t, d in zip(args, in_dims, strict=True))) for i in range(4)]
        assert_bitwise_equal(got, torch.stack(loop))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(device, dynamic):
    x, index = torch.randn(30, 4, device=device, requires_grad=True), torch.randint(6, (30,), device=device)
    offsets = torch.tensor([0, 1, 2, 3, 4, 4, 30], device=device)

    def f(x, index, offsets):
        given = tr.segments(index, 6)
        y = tr.softmax(x, 0, segments=given) + tr.log_softmax(x, 0, segments=offsets)
        y = y + tr.linear_scan(0.5, tr.cumsum(x, 0, segments=given), 0, segments=offsets, initial=x[:6])
        return y.sum(0) + tr.logsumexp(x, 0, segments=offsets).nan_to_num(0, 0, 0).sum(0)

    compiled = torch.compile(f, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    assert_bitwise_equal(compiled(x, index, offsets).detach(), f(x, index, offsets).detach())
    (got,), (wanted,) = (torch.autograd.grad(g(x, index, offsets).sum(), x) for g in (compiled, f))
    assert_bitwise_equal(got, wanted)


def test_exported():
    class Packed(torch.nn.Module):
        def forward(self, x, offsets):
            weights = tr.softmax(x, 0, segments=offsets)
            return weights, tr.linear_scan(weights, x, 0, segments=offsets, reverse=True)

    x, offsets = torch.randn(20, 3), torch.tensor([0, 4, 20])
    program = torch.export.export(Packed(), (x, offsets))
    for got, wanted in zip(program.module()(x, offsets), Packed()(x, offsets), strict=True):
        assert_bitwise_equal(got, wanted)


@pytest.mark.gpu
def test_it_replays_from_a_graph():
    x, offsets = torch.randn(5000, 3, device="cuda"), torch.tensor([0, 17, 17, 4000, 5000], device="cuda")

    def f():
        rows = [getattr(tr, name)(x, 0, segments=offsets) for name in ROWS]
        return *rows, tr.linear_scan(0.5, x, 0, segments=offsets)

    expected = f()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = f()
    for t in got:
        t.zero_()
    graph.replay()
    assert_bitwise_equal(got, expected)


def test_the_ops_as_torch_checks_them():
    x, g = (torch.randn(9, 2, requires_grad=True) for _ in range(2))
    a, start = torch.rand(9, 1, requires_grad=True), torch.randn(3, 1, requires_grad=True)
    offsets, ops = torch.tensor([1, 4, 4, 9]), torch.ops.torchreduce
    value, stats = (t.detach() for t in ops.logsumexp_segments.default(x, offsets, 0, 0))
    for op, args in (
        (ops.softmax_segments, (x, offsets, 0, None, 0)),
        (ops.log_softmax_segments, (x, offsets, 0, torch.float64, 0)),
        (ops.softmax_gradient_segments, (g, x.softmax(0).detach().requires_grad_(), offsets, 0, torch.float32, 0)),
        (
            ops.log_softmax_gradient_segments,
            (g, x.log_softmax(0).detach().requires_grad_(), offsets, 0, torch.float32, 0),
        ),
        (ops.logsumexp_segments, (x, offsets, 0, 0)),
        (ops.logsumexp_gradient_segments, (value.requires_grad_(), x, stats, offsets, 0, 0)),
        (ops.cumsum_segments, (x, offsets, 0, None, True, True, 0)),
        (ops.linear_scan_segments, (a, x, start, offsets, 0, True, False, 0)),
        (ops.linear_scan_segments, (a, x, None, offsets, 0, False, True, 0)),
        (ops.arranged, (x, torch.randperm(9), 0, True)),
    ):
        torch.library.opcheck(op.default, args)


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_offsets_out_of_order_are_refused_on_a_cpu():
    x = torch.ones(4)
    for wrong in ([0, 3, 2], [-1, 2], [0, 9]):
        for name in ROWS:
            with pytest.raises(RuntimeError, match="offsets must not fall, and be from 0 to 4, got"):
                getattr(tr, name)(x, 0, segments=torch.tensor(wrong))
        with pytest.raises(RuntimeError, match="offsets must not fall, and be from 0 to 4, got"):
            tr.linear_scan(0.5, x, 0, segments=torch.tensor(wrong))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ROWS)
def test_wrong_offsets_stay_within_bounds_on_a_gpu(name):
    x = torch.randn(5000, 3)
    for wrong in ([0, 3000, 2000, 9000], [-5, 2, 2**40], [0, 5000] * 40):
        getattr(tr, name)(x.cuda(), 0, segments=torch.tensor(wrong).cuda())
        tr.linear_scan(0.5, x.cuda(), 0, segments=torch.tensor(wrong).cuda())
        torch.cuda.synchronize()
    clamped = torch.tensor([-5, 2, 2**40])
    check(name, x, 0, Segments(clamped), clamped.cuda(), "cuda")


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda x, o: tr.softmax(x, 0, segments=o, out=x), TypeError, "out is not supported together with segments"),
    (lambda x, o: tr.cumsum(x, 0, segments=o, out=x), TypeError, "out is not supported together with segments"),
    (lambda x, o: tr.linear_scan(x, x, 0, segments=o, out=x), TypeError, "out is not supported"),
    (lambda x, o: tr.logsumexp(x, 0, True, segments=o), TypeError, "keepdim is not supported together with segments"),
    (lambda x, o: tr.logsumexp(x, (0, 1), segments=o), TypeError, "dim must be one int"),
    (lambda x, o: tr.logsumexp(x, segments=o), TypeError, "dim must be one int"),
    (lambda x, o: tr.softmax(x, segments=o), TypeError, "dim must be one int"),
    (lambda x, o: tr.cumsum(x, 2, segments=o), IndexError, "dimension out of range"),
    (lambda x, o: tr.cumsum(x[0, 0], 0, segments=o), TypeError, "the input have a dim"),
    (lambda x, o: tr.softmax(x, 0, segments=[0, 4]), TypeError, "must be a Tensor of offsets"),
    (lambda x, o: tr.softmax(x.int(), 0, segments=o), NotImplementedError, "softmax"),
    (lambda x, o: tr.cumsum(x, 0, segments=o.float()), RuntimeError, "offsets must be int32 or int64"),
    (lambda x, o: tr.cumsum(x, 0, segments=tr.segments(o[:3], 5)), RuntimeError, "an order of 3 elements, but dim 0"),
    (lambda x, o: tr.linear_scan(x, x, 0, segments=o, initial=x[:3]), RuntimeError, r"segments along dim, \(2, 2\)"),
])  # fmt: skip
def test_errors_name_what_is_wrong(call, error, message):
    with pytest.raises(error, match=message):
        call(torch.ones(4, 2), torch.tensor([0, 1, 4]))


def test_the_ops_check_what_memory_needs():
    x, offsets, ops = torch.ones(4, 2), torch.tensor([0, 4]), torch.ops.torchreduce
    for call, message in [
        (lambda: ops.softmax_segments.raw(x, offsets[None], 0, None, 0), "offsets must have one dim"),
        (lambda: ops.cumsum_segments.raw(x, offsets, 5, None, False, False, 0), "dim 5 is out of range"),
        (
            lambda: ops.cumsum_segments.raw(x, offsets.float(), 0, None, False, False, 0),
            "offsets must be int32 or int64",
        ),
        (lambda: ops.softmax_gradient_segments.raw(x, x[:3], offsets, 0, torch.float32, 0), "one shape"),
        (lambda: ops.logsumexp_gradient_segments.raw(x[:1], x, x, offsets, 0, 0), "statistics"),
        (lambda: ops.logsumexp_gradient_segments.raw(x, x, torch.ones(2, 1, 2), offsets, 0, 0), "a gradient for each"),
        (lambda: ops.linear_scan_segments.raw(x, x, x[:3], offsets, 0, False, False, 0), "initial has size 3"),
    ]:
        with pytest.raises((RuntimeError, IndexError), match=message):
            call()
