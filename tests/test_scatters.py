"""Scatters: the bits of reference_segments.py, torch's arguments and errors, torch's results in float64."""

import itertools

import pytest
import reference_segments as reference
import torch

import torchreduce as tr
from torchreduce.testing import assert_bitwise_equal, make_input

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
REDUCES = ("sum", "mean", "prod", "amax", "amin")


def numbers(n, size, seed=0, power=1):
    draw = torch.rand(n, generator=torch.Generator().manual_seed(seed)) ** power
    return (draw * size).long().clamp(0, size - 1)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_index_add(device, dtype):
    for n, columns, seed in itertools.product((0, 1, 40, 600), (1, 4, 33), (0, 1)):
        own, source = (
            make_input((12, columns), dtype, seed),
            make_input((n, columns), dtype, 2 + seed, hostile=seed == 1),
        )
        index = numbers(n, 12, seed, 1 + 3 * seed)
        for alpha in (1, 0.5, -3):
            got = tr.index_add(own.to(device), 0, index.to(device), source.to(device), alpha=alpha)
            assert_bitwise_equal(got, reference.index_add(own, 0, index, source, alpha))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", REDUCES)
def test_scatter_reduce(device, dtype, reduce, include_self):
    for n, columns, hostile in ((0, 2, False), (1, 3, True), (300, 4, False), (40, 3, True)):
        own, src = make_input((6, columns), dtype, 1, hostile), make_input((n, columns), dtype, 2, hostile)
        each = torch.stack([numbers(n, 6, c, 1 + c) for c in range(columns)], 1)
        for dim in (0, 1):
            arguments = [t if dim == 0 else t.t() for t in (own, each, src)]
            got = tr.scatter_reduce(arguments[0].to(device), dim, *(t.to(device) for t in arguments[1:]), reduce,
                                    include_self=include_self)  # fmt: skip
            wanted = reference.scatter_reduce(arguments[0], dim, *arguments[1:], reduce, include_self)
            assert_bitwise_equal(got, wanted)
        if reduce != "sum" and n:
            got = tr.index_reduce(own.to(device), 0, each[:, 0].to(device), src.to(device), reduce,
                                  include_self=include_self)  # fmt: skip
            assert_bitwise_equal(got, reference.index_reduce(own, 0, each[:, 0], src, reduce, include_self))


def test_any_shape(device):
    """Of 0 to 4 dims, an index that is smaller than src and than input, int32, and the same for all of a row."""
    generator = torch.Generator().manual_seed(4)
    for shape, dim in (((), 0), ((5,), 0), ((3, 4), 1), ((3, 5, 2), 1), ((2, 3, 4, 2), -2)):
        own = torch.randn(shape, generator=generator)
        src = torch.randn([s + 2 for s in shape], generator=generator)
        index = torch.randint(own.shape[dim] if shape else 1, [max(1, s - 1) for s in shape], generator=generator)
        for kind in (torch.int64, torch.int32):
            got = tr.scatter_add(own.to(device), dim, index.to(device, kind), src.to(device))
            assert_bitwise_equal(got, reference.scatter_add(own, dim, index, src))
    rows = torch.tensor([2, 0, 2, 1])
    src = torch.randn(4, 3, generator=generator)
    own = torch.randn(3, 3, generator=generator)
    expanded = rows.to(device)[:, None].expand(4, 3)
    assert_bitwise_equal(
        tr.scatter_add(own.to(device), 0, expanded, src.to(device)), reference.index_add(own, 0, rows, src)
    )
    for shape, dim in (((3, 4, 5), 1), ((3, 4, 5), -1), ((3, 4, 5), 0), ((), 0)):
        own = torch.randn(shape, generator=generator)
        index = numbers(7, own.shape[dim] if shape else 1)
        source = torch.randn([7 if d == dim % 3 else s for d, s in enumerate(shape)] or [7], generator=generator)
        if shape:
            got = tr.index_add(own.to(device), dim, index.to(device, torch.int32), source.to(device))
            assert_bitwise_equal(got, reference.index_add(own, dim, index, source))


@pytest.mark.parametrize("indices", [
    (torch.tensor([1, 0, 1, -1]),),
    (torch.tensor([[1, 0], [1, 1]]), torch.tensor([2, 0])),
    (None, torch.tensor([1, 1, 0])),
    (torch.tensor([1, 1]), None, torch.tensor([0, 0])),
    (None, torch.tensor([[0], [1]]), torch.tensor([1, 1, 0])),
    (torch.tensor([0]), torch.tensor([1]), torch.tensor([2])),
    (torch.tensor([[True, False, True]] * 3),),
    (torch.tensor([1, 0, 1], dtype=torch.int32), torch.tensor([True, True, True])),
], ids=str)  # fmt: skip
def test_index_put(device, indices):
    generator = torch.Generator().manual_seed(5)
    for dtype in (torch.float32, torch.bfloat16):
        own = torch.randn(3, 3, 3, generator=generator).to(dtype)
        here = tuple(None if i is None else i.to(device) for i in indices)
        shown = tuple(slice(None) if i is None else (i if i.dtype is torch.bool else i.long()) for i in indices)
        for shape in (own[shown].shape, own[shown].shape[-1:], ()):
            values = torch.randn(shape, generator=generator).to(dtype)
            got = tr.index_put(own.to(device), here, values.to(device), accumulate=True)
            assert_bitwise_equal(got, reference.index_put(own, shown, values))
            put = own.to(device).permute(2, 0, 1).contiguous().permute(1, 2, 0)
            assert tr.index_put_(put, here, values.to(device), accumulate=True) is put
            assert_bitwise_equal(put, got)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_in_place(device, dtype):
    """The same bits; also into views, and where source is the input."""
    own, source, index = make_input((5, 4), dtype, 1), make_input((30, 4), dtype, 2), numbers(30, 5)
    each = torch.stack([numbers(30, 5, c) for c in range(4)], 1)
    for name, arguments in (
        ("index_add", (0, index, source)),
        ("scatter_add", (0, each, source)),
        ("scatter_add", (0, each[:, :2], source)),
        *(("scatter_reduce", (0, each, source, reduce)) for reduce in REDUCES),
        *(("index_reduce", (0, index, source, reduce)) for reduce in REDUCES[1:]),
    ):
        arguments = [t.to(device) if isinstance(t, torch.Tensor) else t for t in arguments]
        wanted = getattr(tr, name)(own.to(device), *arguments)
        inside = torch.zeros(7, 9, dtype=dtype, device=device)
        for x in (own.to(device), inside[1:6, 2:6].copy_(own), own.t().contiguous().to(device).t()):
            version = x._version
            assert getattr(tr, f"{name}_")(x, *arguments) is x
            assert_bitwise_equal(x, wanted)
            assert x._version > version
        assert inside.count_nonzero() <= 20
    x = own.to(device)
    wanted = reference.index_add(own, 0, torch.tensor([1, 1, 0, 4, 2]), own)
    assert_bitwise_equal(tr.index_add_(x, 0, torch.tensor([1, 1, 0, 4, 2], device=device), x), wanted)


def test_places_that_no_element_meets_keep_their_bits(device):
    own = torch.tensor([0x7FC12345, -0x400001, -(2**31), 1], dtype=torch.int32).view(torch.float32).to(device)
    index, src = torch.tensor([3, 3], device=device), torch.ones(2, device=device)
    for reduce, include in itertools.product(REDUCES, (True, False)):
        got = tr.scatter_reduce(own, 0, index, src, reduce, include_self=include)
        assert got.view(torch.int32)[:3].tolist() == own.view(torch.int32)[:3].tolist()
        again = tr.scatter_reduce_(own.clone(), 0, index, src, reduce, include_self=include)
        assert again.view(torch.int32)[:3].tolist() == own.view(torch.int32)[:3].tolist()


def test_sixteen_bits_are_rounded_once(device):
    ones, zeros = (
        torch.ones(4096, dtype=torch.bfloat16, device=device),
        torch.zeros(4096, dtype=torch.int64, device=device),
    )
    own = torch.zeros(1, dtype=torch.bfloat16, device=device)
    assert tr.index_add(own, 0, zeros, ones).item() == 4096
    assert tr.index_put_(own.clone(), (zeros,), ones, accumulate=True).item() == 4096
    assert tr.index_reduce(own, 0, zeros, 3 * ones, "mean", include_self=False).item() == 3


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool, torch.complex64], ids=str)
def test_other_dtypes_are_torchs(device, dtype):
    def outcome(call):
        try:
            return call().tolist()
        except RuntimeError as error:
            return str(error)

    own, index = torch.ones(3, device=device).to(dtype), torch.tensor([0, 0, 2], device=device)
    for name, rest in (("index_add", (own,)), ("scatter_add", (own,)), ("index_put", ())):
        arguments = ((index,), own, True) if name == "index_put" else (0, index, *rest)
        ours, torchs = getattr(tr, name), getattr(torch, name)
        assert outcome(lambda: ours(own, *arguments)) == outcome(lambda: torchs(own, *arguments))  # noqa: B023
        assert torch.equal(getattr(tr, f"{name}_")(own.clone(), *arguments), getattr(torch, name)(own, *arguments))


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", REDUCES)
def test_derivatives(device, reduce, include_self):
    generator = torch.Generator().manual_seed(6)
    own, src = (torch.rand(n, 2, dtype=torch.float64, generator=generator).add(0.5).to(device).requires_grad_()
                for n in (4, 9))  # fmt: skip
    index = torch.tensor([2, 0, 2, 1, 1, 0, 2, 2, 0], device=device)
    each = torch.stack([index, index.flip(0)], 1)

    def f(own, src):
        return tr.scatter_reduce(own, 0, each, src, reduce, include_self=include_self)

    assert torch.autograd.gradcheck(f, (own, src), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, (own, src), check_fwd_over_rev=True)
    torchs = torch.scatter_reduce(own, 0, each, src, reduce, include_self=include_self)
    g = torch.randn(4, 2, dtype=torch.float64, generator=generator).to(device)
    for got, wanted in zip(torch.autograd.grad(f(own, src), (own, src), g),
                           torch.autograd.grad(torchs, (own, src), g), strict=True):  # fmt: skip
        torch.testing.assert_close(got, wanted)


def test_derivatives_of_sums(device):
    own, src = (torch.randn(n, 2, dtype=torch.float64, device=device, requires_grad=True) for n in (4, 6))
    index = torch.tensor([2, 0, 2, 1, 1, 0], device=device)
    for f in (
        lambda own, src: tr.index_add(own, 0, index, src, alpha=-0.5),
        lambda own, src: tr.scatter_add(own, 0, index[:, None].expand(6, 2), src),
        lambda own, src: tr.scatter_add(own, 0, index[:5, None], src),
        lambda own, src: tr.index_put(own, (index,), src, accumulate=True),
        lambda own, src: tr.index_add_(own * 1, 0, index, src),
        lambda own, src: tr.scatter_reduce_(own * 1, 0, index[:, None].expand(6, 2), src, "amax"),
        lambda own, src: tr.scatter_reduce_(own * 1, 1, index[:4, None] % 2, src, "prod"),
    ):
        assert torch.autograd.gradcheck(f, (own, src), check_forward_ad=True)
        assert torch.autograd.gradgradcheck(f, (own, src))


def test_vmap(device):
    generator = torch.Generator().manual_seed(7)
    own, src = (torch.randn(3, n, 2, generator=generator).to(device) for n in (4, 9))
    index = torch.randint(4, (3, 9), generator=generator).to(device)
    for reduce, include in itertools.product(REDUCES, (True, False)):

        def f(own, index, src, reduce=reduce, include=include):
            return tr.scatter_reduce(own, 0, index[:, None].expand(9, 2), src, reduce, include_self=include)

        for in_dims in itertools.product((0, None), repeat=3):
            if in_dims == (None, None, None):
                continue
            args = [t if d == 0 else t[0] for t, d in zip((own, index, src), in_dims, strict=True)]
            loop = [f(*(t[i] if d == 0 else t for t, d in zip(args, in_dims, strict=True))) for i in range(3)]
            assert_bitwise_equal(torch.vmap(f, in_dims)(*args), torch.stack(loop))


def test_vmap_of_other_calls(device):
    generator = torch.Generator().manual_seed(8)
    own, src = (torch.randn(3, n, 2, generator=generator).to(device) for n in (4, 9))
    each = torch.randint(4, (3, 9, 2), generator=generator).to(device)
    for f, args in (
        (lambda own, i, src: tr.scatter_add(own, 0, i, src), (own, each, src)),
        (lambda own, i, src: tr.scatter_add(own, 1, i[:, :1], src), (own, each[:, :4] % 2, src[:, :4])),
        (lambda own, i, src: tr.index_put(own, (i,), src, accumulate=True), (own, each[:, :, 0], src)),
        (lambda own, i, src: tr.index_add(own, 0, i, src, alpha=3), (own, each[:, :, 1], src)),
    ):
        loop = [f(*t) for t in zip(*args, strict=True)]
        assert_bitwise_equal(torch.vmap(f)(*args), torch.stack(loop))


def test_ops_are_registered_as_torch_wants_them(device):
    own, src = (torch.randn(n, 2, device=device, requires_grad=True) for n in (4, 9))
    index = numbers(9, 4).to(device)
    places, ops = tr.segments(index, 4), torch.ops.torchreduce
    torch.library.opcheck(ops.segments.default, (index, 4, False, 0))
    torch.library.opcheck(ops.sum_segments.default, (src, *places, 0, None, 0))
    torch.library.opcheck(ops.max_segments.default, (src, places.offsets, None, None, 0, None, 0))
    torch.library.opcheck(ops.take_segments.default, (own, *places, 9, 0, torch.float32))
    torch.library.opcheck(ops.scatter_segments.default, (own, src, *places, 0, "mean", True, 1.0, 0))
    torch.library.opcheck(ops.scatter_.raw, (own.detach(), src.detach(), index, 0, "sum", True, 1.0, 0))


def test_exported_with_any_number_of_rows():
    class Combine(torch.nn.Module):
        def forward(self, x, index, source):
            return tr.index_add(x, 0, index, source), tr.scatter_add(x, 0, index[:, None].expand(-1, 2) + 0, source)

    def inputs(rows, places):
        return torch.randn(rows, 2), numbers(places, rows), torch.randn(places, 2)

    rows, places = torch.export.Dim("rows"), torch.export.Dim("places")
    shapes = ({0: rows}, {0: places}, {0: places})
    program = torch.export.export(Combine(), inputs(4, 9), dynamic_shapes=shapes)
    given = inputs(6, 11)
    for got, wanted in zip(program.module()(*given), Combine()(*given), strict=True):
        assert_bitwise_equal(got, wanted)


def test_compiled(device):
    index, source = torch.randint(5, (20,), device=device), torch.randn(20, 3, device=device, requires_grad=True)
    own = torch.randn(5, 3, device=device)

    def f(own, index, source):
        x = tr.index_add(own, 0, index, source, alpha=2)
        x = tr.scatter_reduce(x, 0, index[:, None] + torch.zeros(3, dtype=torch.int64, device=x.device), source, "mean")
        x = x + tr.index_put(x, (index,), source, accumulate=True)
        return tr.scatter_add_(x * 2, 1, index[None, :3].expand(5, 3) % 3, source[:5])

    compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
    assert_bitwise_equal(compiled(own, index, source).detach(), f(own, index, source).detach())
    grads = [torch.autograd.grad(g(own, index, source).sum(), source)[0] for g in (compiled, f)]
    assert_bitwise_equal(*grads)


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [3, -1])
def test_indices_out_of_range(device, wrong, monkeypatch):
    own, source, index = (
        torch.zeros(3, device=device),
        torch.ones(3, device=device),
        torch.tensor([1, wrong, 0], device=device),
    )
    calls = {
        "index_add": (0, index, source),
        "scatter_add": (0, index, source),
        "scatter_reduce": (0, index, source, "amax"),
        "index_reduce": (0, index, source, "amax"),
        "index_put": ((index * 2 - 1,), source, True),
    }
    if device == "cuda":
        for name, arguments in calls.items():
            if name != "index_put":
                assert getattr(tr, name)(own, *arguments).tolist() == [1, 1, 0]
        monkeypatch.setenv("TORCHREDUCE_CHECK_INDICES", "1")
    for name, arguments in calls.items():
        if name == "index_put" and wrong == -1:
            continue
        error = IndexError if name in ("index_put", "index_reduce") else RuntimeError
        with pytest.raises(error, match=rf"{name}\(\): index .*is out of range"):
            getattr(tr, name)(own, *arguments)
        with pytest.raises(error, match=rf"{name}\(\): index .*is out of range"):
            getattr(tr, f"{name}_")(own, *arguments)


ROWS = torch.tensor([0, 1, 2, 0])


@pytest.mark.parametrize(("name", "arguments", "error", "message"), [
    ("index_add", (0, ROWS, torch.ones(4, 2).double()), RuntimeError, "must have one dtype"),
    ("index_add", (0, ROWS[:3], torch.ones(4, 2)), RuntimeError, "source must have the shape of input, but 3 along"),
    ("index_add", (0, ROWS, torch.ones(4, 3)), RuntimeError, "source must have the shape of input"),
    ("index_add", (0, ROWS.float(), torch.ones(4, 2)), RuntimeError, "index must be int32 or int64"),
    ("index_add", (0, ROWS[None], torch.ones(4, 2)), IndexError, "index must have 1 dim"),
    ("index_add", (2, ROWS, torch.ones(4, 2)), IndexError, "out of range"),
    ("scatter_add", (0, ROWS[:, None].expand(4, 2), torch.ones(3, 2)), RuntimeError, "must not be larger than src"),
    ("scatter_add", (0, ROWS, torch.ones(4, 2)), RuntimeError, "as many dims as input"),
    ("scatter_add", (0, ROWS[:, None], torch.ones(4, 2).half()), RuntimeError, "must have one dtype"),
    ("scatter_reduce", (0, ROWS[:, None], torch.ones(4, 2), "max"), RuntimeError, "reduce must be one of sum, prod"),
    ("index_reduce", (0, ROWS, torch.ones(4, 2), "sum"), RuntimeError, "reduce must be one of prod, mean"),
    ("index_put", ((ROWS,) * 3, torch.ones(4, 2), True), IndexError, "too many indices for tensor of dimension 2"),
    ("index_put", ((ROWS,), torch.ones(3, 2), True), RuntimeError, "shape mismatch"),
    ("index_put", ((ROWS.float(),), torch.ones(4, 2), True), IndexError, "must be int32, int64, or masks"),
    ("index_put", ((ROWS,), torch.ones(4, 2)), NotImplementedError, "not implemented without accumulate=True"),
    ("index_put", ((torch.ones(2, dtype=torch.bool),), torch.ones(2), True), IndexError, "the shape of the mask"),
], ids=str)  # fmt: skip
def test_errors_name_what_is_wrong(name, arguments, error, message):
    with pytest.raises(error, match=rf"{name}\(\): .*{message}"):
        getattr(tr, name)(torch.zeros(3, 2), *arguments)
