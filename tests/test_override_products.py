"""Functions of torch's that come down to products and sums: einsum, dot, vdot, inner, trace, cdist, weight norms.
And sums of floats as integers, which torch converts first."""

import itertools

import pytest
import torch
from test_override import Counted, rows
from torch.func import vmap

import torchreduce as tr
from torchreduce.testing import assert_bitwise_equal

EVERY = {"cpu": True, "compile": False, "products": "float32"}


def counts(f, *names):
    """The result of a call with products overridden, and the calls that were served and that fell back."""
    with tr.enabled(**EVERY):
        before = tr.coverage()
        result = f()
        after = tr.coverage()
    new = {name: {why: n - before.get(name, row)[why] for why, n in row.items()} for name, row in after.items()}
    served = {name for name, row in new.items() if row["served"]}
    fell = {(name, why) for name, row in new.items() for why, n in row.items() if n and why != "served"}
    return result, served, fell


@pytest.mark.parametrize(
    "equation",
    ["ij,jk->ik", "bij,bjk->bik", "ij,kj->ik", "bhqd,bhkd->bhqk", "ij->i", "ij->", "ii->", "ij,ij->i", "i,i->",
     "i,j->ij", "bi,ij,bj->b", "bij->bj", "...ij,...jk->...ik"],
)  # fmt: skip
def test_einsum_comes_down_to_products_and_sums(equation):
    sizes = {"b": 3, "h": 2, "i": 33, "j": 40, "k": 7, "q": 5, "d": 16, ".": 2}
    terms = equation.split("->")[0].split(",")
    x = [rows(1, 4000, seed=s)[0][: torch.Size(shape).numel()].reshape(shape) for s, shape in
         enumerate([[sizes[c] for c in term.replace("...", ".")] for term in terms])]  # fmt: skip
    expected = torch.einsum(equation, *(t.double() for t in x))
    result, served, fell = counts(lambda: torch.einsum(equation, *x))
    torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-4)
    assert not fell and (served or equation == "i,j->ij"), fell


def test_rows_of_einsum_do_not_depend_on_the_batch():
    x, w = rows(33, 40), rows(40, 7, seed=1)
    with tr.enabled(**EVERY):
        whole = torch.einsum("ij,jk->ik", x, w)
        for i in range(33):
            assert_bitwise_equal(torch.einsum("ij,jk->ik", x[i : i + 1], w), whole[i : i + 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dot_vdot_and_inner_are_the_sum_of_products(dtype):
    x, y = rows(2, 5000).to(dtype)
    expected = tr.sum(x.float() * y.float()).to(dtype)
    for f in (torch.dot, torch.vdot, torch.inner, torch.Tensor.dot, torch.matmul, torch.linalg.vecdot):
        result, served, fell = counts(lambda f=f: f(x, y))
        assert_bitwise_equal(result, expected)
        assert not fell and served <= {"dot", "sum.dim_IntList"}
    cx, cy = torch.complex(*rows(2, 50)), torch.complex(*rows(2, 50, seed=1))
    result, _, fell = counts(lambda: torch.vdot(cx, cy))
    torch.testing.assert_close(result, torch.vdot(cx, cy))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.uint8])
def test_trace_is_the_sum_of_the_diagonal(dtype):
    for x in (rows(300, 300), rows(5, 400), rows(400, 5).t(), rows(3, 3)[:0], torch.ones(1, 1)):
        x = (x * 9).to(dtype)
        with Counted("trace") as counted:
            result = x.trace()
        expected = x.trace()
        assert_bitwise_equal(result, tr.sum(x.diagonal()))
        assert result.dtype == expected.dtype and counted.calls == 1
        torch.testing.assert_close(result, x.double().trace().to(expected.dtype))
    for wrong in (rows(3, 3).bool(), rows(3, 3)[0]):
        with pytest.raises(RuntimeError) as torchs:
            wrong.trace()
        with tr.enabled(**EVERY), pytest.raises(RuntimeError) as ours:
            wrong.trace()
        assert str(ours.value) == str(torchs.value)
    x = rows(30, 30).requires_grad_()
    with tr.enabled(**EVERY):
        (g,) = torch.autograd.grad(x.trace() * 3, x)
    assert torch.equal(g, 3 * torch.eye(30))


@pytest.mark.parametrize(
    "shapes", [((3, 5), (40, 5)), ((26, 5), (3, 5)), ((2, 7, 5), (30, 5)), ((2, 1, 7, 5), (3, 4, 5))]
)
def test_distances_do_not_depend_on_the_number_of_rows(shapes):
    """torch's do: it calls products for more than 25 rows."""
    x, y = (rows(1, 4000, seed=s)[0][: torch.Size(shape).numel()].reshape(shape) for s, shape in enumerate(shapes))
    expected = torch.cdist(x.double(), y.double())
    result, served, fell = counts(lambda: torch.cdist(x, y))
    torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-3)
    assert "cdist" in served and not fell
    with tr.enabled(**EVERY):
        for i in range(x.shape[-2]):
            assert_bitwise_equal(torch.cdist(x[..., i : i + 1, :], y), result[..., i : i + 1, :])
        a, b = x.clone().requires_grad_(), x.double().requires_grad_()
        (g,) = torch.autograd.grad(torch.cdist(a, y).sum(), a, create_graph=True)
        (e,) = torch.autograd.grad(torch.cdist(b, y.double()).sum(), b)
        torch.testing.assert_close(g.double(), e, rtol=1e-3, atol=1e-3)
        torch.autograd.grad(g.sum(), a)  # twice, as torch's own of more than 25 rows
        assert torch.isfinite(torch.compile(torch.cdist, backend="aot_eager")(x, y)).all()


def test_other_distances_are_torchs():
    x, y = rows(30, 5), rows(40, 5, seed=1)
    for options, call in itertools.product(
        ({"p": 1.0}, {"compute_mode": "donot_use_mm_for_euclid_dist"}), (torch.cdist,)
    ):
        expected = call(x, y, **options)
        result, _, fell = counts(lambda options=options, call=call: call(x, y, **options))
        assert_bitwise_equal(result, expected)
        assert fell == {("cdist", "option")}
    for a, b in ((x, y[:0]), (x[:, :0], y[:, :0]), (x.double(), y.double())):
        result, served, _ = counts(lambda a=a, b=b: torch.cdist(a, b))
        torch.testing.assert_close(result, torch.cdist(a, b))  # torch's own are made of sums, too
        assert "cdist" not in served
    with Counted("cdist") as counted:  # products were not asked for
        torch.testing.assert_close(torch.cdist(x, y), torch.cdist(x.double(), y.double()).float())
    assert counted.calls == 0
    for a, b in ((x, y[:, :3]), (x[0], y), (x, y.double()), (x.long(), y)):
        outcomes = []
        for f in (torch.cdist, tr.enabled(**EVERY)(torch.cdist)):
            try:
                outcomes.append(f(a, b).dtype)
            except (RuntimeError, NotImplementedError) as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("dim", [0, 1, 2, -1, None])
def test_weight_norms_are_made_of_torchreduces_norm(dim, device):
    module = torch.nn.Conv1d(6, 8, 5).to(device)
    v = module.weight.detach().clone()
    torch.nn.utils.parametrizations.weight_norm(module, dim=dim)
    (torchs := module.weight).square().sum().backward()
    before = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    module.zero_grad()
    with Counted("_weight_norm") as counted:
        w = module.weight
        w.square().sum().backward()
    assert counted.calls == 1
    torch.testing.assert_close(w, torchs)
    for p, e in zip((p for p in module.parameters() if p.grad is not None), before, strict=True):
        torch.testing.assert_close(p.grad, e, rtol=1e-4, atol=1e-5)
    if dim == 0:
        norm = tr.vector_norm(v, dim=(1, 2), keepdim=True)
        g = module.parametrizations.weight.original0
        assert_bitwise_equal(w.detach(), v * (g.detach() / norm))


@pytest.mark.parametrize("to", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_floats_as_integers_are_converted_first_as_torchs(dtype, to, device):
    x = (rows(33, 300, device=device) * 20).abs().to(dtype)
    few = (rows(33, 12, device=device) * 2).to(dtype)
    for f, name in (
        (lambda: x.cumsum(1, dtype=to), "cumsum"),
        (lambda: few.cumprod(0, dtype=to), "cumprod"),
        (lambda: x.sum(1, dtype=to), "sum"),
        (lambda: x.sum(dtype=to), "sum"),
        (lambda: few.prod(1, dtype=to), "prod"),
        (lambda: torch.sum(x, 1, out=x.new_empty(33, dtype=to)), "sum"),
        (lambda: torch.cumsum(x, 1, out=x.new_empty((33, 300), dtype=to)), "cumsum"),
        (lambda: torch.cumsum(x, 1, dtype=to, out=x.new_empty(0, dtype=to)), "cumsum"),
        (lambda: vmap(lambda r: r.cumsum(0, dtype=to))(x), "cumsum"),
    ):
        expected, before = f(), tr.coverage(name)
        with tr.enabled(cpu=True, compile=False):
            result = f()
        after = tr.coverage(name)
        assert result.dtype is to and torch.equal(result, expected)
        assert {why for why in after if after[why] > before[why]} == {"served"}
    compiled = torch.compile(lambda x: (x.cumsum(1, dtype=to), x.sum(0, dtype=to)), backend="torchreduce")
    for a, b in zip(compiled(x), (x.cumsum(1, dtype=to), x.sum(0, dtype=to)), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_grouped_products_do_not_depend_on_the_groups_on_a_cpu(dtype):
    x, w = rows(64, 512).to(dtype).requires_grad_(), rows(4 * 512, 24, seed=1).to(dtype).reshape(4, 512, 24)
    y = torch.ones(64, 24, dtype=dtype)

    def of_groups(size):
        """The first 8 rows of each group of `size` rows, and their gradients."""
        ends = torch.arange(size, 4 * size + 1, size, dtype=torch.int32)
        kept = torch.cat([torch.arange(16 * g, 16 * g + size) for g in range(4)])
        result = torch.nn.functional.grouped_mm(x[kept], w, offs=ends)
        (gradient,) = torch.autograd.grad(result, x, y[: len(kept)])
        firsts = torch.cat([torch.arange(size * g, size * g + 8) for g in range(4)])
        return result.detach()[firsts], gradient[kept][firsts]

    whole, served, fell = counts(lambda: of_groups(16))
    assert "mm.out" in served and not fell
    part, *_ = counts(lambda: of_groups(8))
    for a, b in zip(part, whole, strict=True):
        assert_bitwise_equal(a, b)
