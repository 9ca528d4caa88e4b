"""Matrix products under enable(products=True): a row's bits depend on the row, the right matrix and the dtype alone."""

import itertools
import os
import random
import subprocess
import sys
import textwrap

import pytest
import torch
import torch.nn.functional as F
from test_contract import threads
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

import torchreduce as tr
from torchreduce import __main__, override
from torchreduce._tools import verify_products
from torchreduce.override import products
from torchreduce.testing import assert_bitwise_equal

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@pytest.fixture(autouse=True)
def switched_off_after():
    yield
    assert (override.state.eager, override.state.compiled) == (0, 0)


@pytest.fixture
def device(device_of_products):
    return device_of_products


def enabled(**options):
    return tr.enabled(**{"compile": False, "products": "float32", "cpu": False, **options})


def on(device, **options):
    return enabled(cpu=device == "cpu", **options)


def all_served():
    return sum(row["served"] for name, row in tr.coverage().items() if name in products.OVERLOADS)


def served(name):
    return tr.coverage()[name]["served"]


def cancelling(m, n, k, dtype, device="cuda", seed=0, batch=()):
    """As verify's, or a batch of these."""
    pairs = [verify_products.cancelling(m, n, k, dtype, seed + i, device) for i in range(*batch or (1,))]
    return tuple(map(torch.stack, zip(*pairs, strict=True))) if batch else pairs[0]


def laid_out(x, layout):
    """x with other strides, and perhaps at an address that is no multiple of 16 bytes."""
    if layout == "transposed":
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "padded":
        return F.pad(x, (8, 8))[..., 8:-8]
    if layout == "unaligned":
        return F.pad(x, (3, 2))[..., 3:-2]
    if layout == "strided":
        return torch.stack([x, x], -1)[..., 0]
    return x.contiguous()


LAYOUTS = ("contiguous", "transposed", "padded", "unaligned", "strided")


def size(draw, most):
    """Of any magnitude, and a multiple of 8 in half of the cases."""
    n = int(2 ** draw.uniform(0, most))
    return 8 * -(-n // 8) if draw.random() < 0.5 else n


# ---- arguments and coverage, without a GPU ---------------------------------------------------------------------------


def test_products_is_an_argument_of_enable_and_enabled():
    for wrong in (1, None, "float16", "bfloat16"):
        for call in (tr.enable, lambda **options: tr.enabled(**options).__enter__()):
            with pytest.raises(ValueError, match="'products' must be True, False or 'float32'"):
                call(products=wrong)


def test_rows_of_coverage_are_the_rules():
    with enabled():
        names = set(tr.coverage())
    assert set(products.OVERLOADS) <= names


def test_products_of_other_devices_are_torchs():
    a, b, c = torch.randn(4, 5), torch.randn(5, 6), torch.randn(4, 6)
    calls = {
        "mm": lambda: torch.mm(a, b),
        "mm.out": lambda: torch.mm(a, b, out=torch.empty(4, 6)),
        "addmm": lambda: torch.addmm(c, a, b, beta=2),
        "addmm_": lambda: c.clone().addmm_(a, b),
        "bmm": lambda: torch.bmm(a[None], b[None]),
        "baddbmm": lambda: torch.baddbmm(c[None], a[None], b[None]),
        "mv": lambda: torch.mv(a, b[:, 0]),
        "addmv": lambda: torch.addmv(c[:, 0], a, b[:, 0]),
        "dot": lambda: torch.dot(a[0], b[:, 0]),
    }
    expected = {name: call() for name, call in calls.items()}
    with enabled():
        for name, call in calls.items():
            before = tr.coverage()[name]["kind"]
            assert_bitwise_equal(call(), expected[name])
            assert tr.coverage()[name]["kind"] == before + 1, name
        assert F.linear(a[None], b.t(), c[0]).shape == (1, 4, 6)


def test_every_overload_is_met(device):
    """Each is called as its schema says."""
    aten, like = torch.ops.aten, {"device": device, "dtype": torch.float16}
    x, w, c, batch = (torch.randn(shape, **like) for shape in ((4, 8), (8, 16), (4, 16), (3, 4, 8)))
    right, sums, v, one = (torch.randn(shape, **like) for shape in ((3, 8, 16), (3, 4, 16), (4,), ()))
    wide = {"cpu": (), "cuda": (torch.float32,)}[device]
    with on(device):
        before = tr.coverage()
        for overload, out in (("default", {}), ("out", {"out": c.clone()})):
            getattr(aten.mm, overload)(x, w, **out)
            getattr(aten.addmm, overload)(c, x, w, **out)
            getattr(aten._addmm_activation, overload)(w[0], x, w, **out)
        for overload, out in (("default", {}), ("out", {"out": sums.clone()})):
            getattr(aten.bmm, overload)(batch, right, **out)
            getattr(aten.baddbmm, overload)(sums, batch, right, **out)
        for overload, out in (("default", {}), ("out", {"out": v.clone()})):
            getattr(aten.mv, overload)(x, w[:, 0], **out)
            getattr(aten.addmv, overload)(v, x, w[:, 0], **out)
        aten.dot(x[0], x[1])
        aten.dot.out(x[0], x[1], out=one)
        aten.addmm_(c.clone(), x, w)
        aten.baddbmm_(sums.clone(), batch, right)
        aten.addmv_(v.clone(), x, w[:, 0])
        for dtype in wide:
            of = {"out": torch.empty(4, 16, device=device)}, {"out": torch.empty(3, 4, 16, device=device)}
            for overload, (out, outs) in (("dtype", ({}, {})), ("dtype_out", of)):
                getattr(aten.mm, overload)(x, w, dtype, **out)
                getattr(aten.addmm, overload)(c.float(), x, w, dtype, **out)
                getattr(aten.bmm, overload)(batch, right, dtype, **outs)
                getattr(aten.baddbmm, overload)(sums.float(), batch, right, dtype, **outs)
        after = tr.coverage()
    idle = [n for n in products.OVERLOADS if after[n]["served"] == before[n]["served"]]
    assert [name for name in idle if wide or ".dtype" not in name] == []


def test_products_are_torchs_unless_asked_for():
    with enabled():
        pass
    a, b = torch.randn(4, 5), torch.randn(5, 6)
    before = tr.coverage()["mm"]
    with enabled(products=False):
        torch.mm(a, b)
    torch.mm(a, b)
    assert tr.coverage()["mm"] == before


# ---- bits ------------------------------------------------------------------------------------------------------------


def whole_and_alone(draw, seed, device):
    """A random product of some form; and one of its rows alone, a slice, and all in another order, in other layouts."""
    forms = ("mm", "row", "matrix", "linear", "bmm", "baddbmm", "mv", "dot", "activated")
    dtype, form = draw.choice(DTYPES), draw.choice(forms if device == "cpu" else (*forms, "wide"))
    small = 3 if device == "cpu" else 0
    m, n, k = size(draw, 2 if form == "dot" else 10 - small), size(draw, 11 - small), max(2, size(draw, 12 - small))
    batch = (draw.randint(1, 5),) if form in ("bmm", "baddbmm") else ()
    x, w = cancelling(m, n, k, dtype, device, seed, batch)
    row = torch.randn(n, device=device).mul(1e-3).to(dtype)
    full = torch.randn(*batch, m, n, device=device).mul(1e-3).to(dtype)
    out = torch.float32 if form == "wide" else None

    def call(rows, of):
        """of: the numbers of the rows."""
        right = laid_out(w, draw.choice(LAYOUTS))
        if form in ("mm", "wide"):
            return torch.mm(rows, right) if out is None or dtype is out else torch.mm(rows, right, out_dtype=out)
        if form == "row":
            return torch.addmm(row, rows, right)
        if form == "activated":
            return torch._addmm_activation(row, rows, right, use_gelu=seed % 2 == 0)
        if form == "linear":
            shape = (
                draw.choice([(-1, k), (1, -1, k), (-1, 1, k)]) if rows.shape[0] > 1 else draw.choice([(k,), (1, 1, k)])
            )
            return F.linear(rows.reshape(shape), right.t(), row).reshape(-1, n)
        if form == "matrix":
            return torch.addmm(laid_out(full[of], draw.choice(LAYOUTS)), rows, right, beta=0.5, alpha=2)
        if form == "bmm":
            return torch.bmm(rows, right)
        if form == "baddbmm":
            return torch.baddbmm(full[:, of], rows, right)
        if form == "mv":
            return torch.mv(rows, right[:, 0])[:, None]
        return torch.stack([torch.dot(r, right[:, 0]) for r in rows])[:, None]

    everything = torch.arange(m, device=device)
    whole = call(laid_out(x, draw.choice(LAYOUTS)), everything)
    i = draw.randrange(m)
    last = draw.randrange(i, m) + 1
    for of in (everything[i : i + 1], everything[i:last], everything.flip(0)):
        part = call(laid_out(x[..., of, :], draw.choice(LAYOUTS)), of)
        yield whole[..., of, :], part
    if batch:
        b = draw.randrange(batch[0])
        x, w, full = x[b : b + 1], w[b : b + 1], full[b : b + 1]
        yield whole[b : b + 1], call(laid_out(x, draw.choice(LAYOUTS)), everything)


@pytest.mark.parametrize("chunk", range(20))
def test_rows_of_matrix_products_are_the_same_in_every_batch(device, chunk):
    """2,000 random products on a GPU, each in its whole and in three parts; 200 on a CPU."""
    for seed in range(100 * chunk, 100 * chunk + (10 if device == "cpu" else 100)):
        with on(device):
            before = all_served()
            pairs = list(whole_and_alone(random.Random(seed), seed, device))
            assert all_served() > before, seed
        for whole, part in pairs:
            assert_bitwise_equal(part, whole)


def test_rows_on_a_cpu_are_the_same_with_any_number_of_threads():
    for shape in ((1, 700, 900), (33, 256, 512), (70, 513, 600), (200, 17, 333), (9, 1000, 2048)):
        x, w = cancelling(*shape, torch.float32, "cpu")
        results = []
        for count in (1, 2, 3, 4, 8):
            with threads(count), on("cpu"):
                results.append((x @ w, torch.bmm(x[None, :5].expand(3, -1, -1), w[None].expand(3, -1, -1))))
        for result in results[1:]:
            assert_bitwise_equal(result, results[0])


@pytest.mark.gpu_hopper
def test_random_products_in_a_graph():
    """100 of them, in one graph: the bits of eager calls."""
    x, w = cancelling(1024, 2048, 2048, torch.bfloat16)
    draw, calls = random.Random(0), []
    for _ in range(100):
        m, n, k, first = size(draw, 10), size(draw, 11), size(draw, 11), draw.randrange(100)
        form, layout = draw.choice(("mm", "linear", "bmm")), draw.choice(LAYOUTS)
        left, right = laid_out(x[first : first + m, :k], layout), laid_out(w[:k, :n], draw.choice(LAYOUTS))
        calls.append((form, left, right, w[0, :n].contiguous()))

    def call(form, left, right, row):
        if form == "linear":
            return F.linear(left, right.t(), row)
        return left @ right if form == "mm" else torch.bmm(left[None], right[None])

    with enabled():
        eager = [call(*each) for each in calls]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = [call(*each) for each in calls]
    graph.replay()
    for result, expected in zip(captured, eager, strict=True):
        assert_bitwise_equal(result, expected)


@pytest.mark.gpu_hopper
@pytest.mark.parametrize("dynamic", [False, True])
def test_random_products_in_compiled_functions(dynamic):
    def f(x, w, row):
        return x @ w, F.linear(x, w.t(), row), torch.bmm(x[None], w[None])[0]

    draw = random.Random(dynamic)
    compiled = torch.compile(f, dynamic=dynamic)
    with tr.enabled(products=True):
        for seed in range(20 if dynamic else 5):
            m, n, k = size(draw, 9), size(draw, 10), max(2, size(draw, 11))
            x, w = cancelling(m, n, k, torch.bfloat16, seed=seed)
            row = torch.randn(n, device="cuda").bfloat16()
            for rows in (slice(None), slice(m // 2, m // 2 + 1)):
                for got, whole in zip(compiled(x[rows], w, row), f(x, w, row), strict=True):
                    assert_bitwise_equal(got, whole[rows])
    torch._dynamo.reset()


@pytest.mark.gpu_hopper
def test_torchs_rows_are_not_the_same():
    """If they became so, the tests here would show nothing."""
    x, w = cancelling(64, 4096, 14336, torch.bfloat16)
    assert not torch.equal(torch.mm(x, w)[:1], torch.mm(x[:1], w))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (1, 8, 8), (3, 5, 7), (16, 64, 256), (1, 1000, 1001), (129, 257, 512)]
)
def test_products_are_near_the_exact_ones(device, dtype, m, n, k):
    x, w = torch.randn(m, k, device=device).to(dtype), torch.randn(k, n, device=device).to(dtype)
    c, row = torch.randn(m, n, device=device).to(dtype), torch.randn(n, device=device).to(dtype)
    exact, scale = x.double() @ w.double(), x.double().abs() @ w.double().abs() + 1
    unit = torch.finfo(dtype).eps + k * 2**-24
    with on(device):
        results = {
            "mm": (x @ w, exact),
            "addmm": (torch.addmm(row, x, w), exact + row),
            "addmm of a matrix": (torch.addmm(c, x, w, beta=-2, alpha=0.5), exact / 2 - 2 * c.double()),
            "addmm of a scalar": (torch.addmm(c[:1, :1], x, w), exact + c[0, 0].double()),
            "bmm": (torch.bmm(x.expand(3, m, k), w.expand(3, k, n)), exact.expand(3, m, n)),
            "baddbmm": (torch.baddbmm(c, x[None], w[None]), (exact + c)[None]),
            "mv": (torch.mv(x, w[:, 0]), exact[:, 0]),
            "addmv": (torch.addmv(c[:, 0], x, w[:, 0], beta=3), exact[:, 0] + 3 * c[:, 0].double()),
            "dot": (torch.dot(x[0], w[:, 0]), exact[0, 0]),
        }
    for name, (result, of) in results.items():
        assert result.dtype == dtype and result.shape == of.shape, name
        assert ((result.double() - of).abs() <= unit * 4 * scale.max()).all(), name


def test_beta_of_0_does_not_read_what_is_added(device):
    x, w = cancelling(5, 16, 32, torch.bfloat16, device)
    nothing = torch.full((5, 16), float("nan"), device=device, dtype=torch.bfloat16)
    with on(device):
        assert_bitwise_equal(torch.addmm(nothing, x, w, beta=0), x @ w)


@pytest.mark.parametrize("n", [16, 17])
def test_products_into_given_tensors(device, n):
    x, w = cancelling(9, n, 40, torch.bfloat16, device)
    c = torch.randn(9, n, device=device).bfloat16()
    with on(device):
        expected, added = x @ w, torch.addmm(c, x, w)
        for layout in LAYOUTS:
            out = laid_out(torch.zeros(9, n, device=device, dtype=torch.bfloat16), layout)
            assert torch.mm(x, w, out=out) is out
            assert_bitwise_equal(out, expected)
            mine = laid_out(c, layout)
            assert mine.addmm_(x, w) is mine
            assert_bitwise_equal(mine, added)
        empty = torch.empty(0, device=device, dtype=torch.bfloat16)
        assert_bitwise_equal(torch.mm(x, w, out=empty), expected)
        batch = torch.zeros(1, 9, n, device=device, dtype=torch.bfloat16)
        assert_bitwise_equal(torch.bmm(x[None], w[None], out=batch)[0], expected)
        before = served("mm.out")
        with pytest.raises(RuntimeError):
            torch.mm(x, w, out=torch.zeros(9, n, device=device))
        assert served("mm.out") == before


def test_gradients_of_rows_are_the_same_in_every_batch(device):
    x, w = torch.randn(64, 4096, device=device).bfloat16(), torch.randn(512, 4096, device=device).bfloat16()
    bias, g = torch.randn(512, device=device).bfloat16(), torch.randn(64, 512, device=device).bfloat16()

    def gradient(of):
        rows = x[of].requires_grad_()
        return torch.autograd.grad(F.linear(rows, w, bias), rows, g[of])[0]

    with on(device):
        whole = gradient(slice(None))
        for of in (slice(0, 1), slice(5, 22), slice(63, 64)):
            assert_bitwise_equal(gradient(of), whole[of])


def test_products_under_vmap_and_no_grad(device):
    x, w = cancelling(33, 256, 2048, torch.bfloat16, device)
    with on(device):
        whole = x @ w
        assert_bitwise_equal(vmap(lambda row: row @ w)(x), whole)
        for context in (torch.no_grad, torch.inference_mode):
            with context():
                assert_bitwise_equal(x @ w, whole)
                assert_bitwise_equal(F.linear(x[None, ::2], w.t(), w[0])[0], F.linear(x, w.t(), w[0])[::2])


@pytest.mark.gpu_hopper
def test_products_in_a_graph():
    x, w = cancelling(40, 512, 4096, torch.bfloat16)
    with enabled():
        expected = x @ w, x[:3] @ w  # proves what they need
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.graph(graph, stream=stream):
            whole, few = x @ w, x[:3] @ w
    graph.replay()
    for result, of in zip((whole, few), expected, strict=True):
        assert_bitwise_equal(result, of)


def test_products_in_compiled_functions(device):
    x, w = cancelling(48, 512, 4096, torch.bfloat16, device)
    bias = torch.randn(512, device=device).mul(1e-3).bfloat16()

    def f(x, w, bias):
        return F.gelu(F.linear(x, w.t(), bias)) + x[:, :512], x @ w + bias, torch.bmm(x[None], w[None])

    with on(device, compile=True):
        compiled = torch.compile(f)
        for rows in (slice(None), slice(0, 1), slice(7, 20)):
            for got, expected in zip(compiled(x[rows], w, bias), f(x[rows], w, bias), strict=True):
                assert got.shape == expected.shape
            assert_bitwise_equal(compiled(x[rows], w, bias)[2], f(x[rows], w, bias)[2])
        whole = compiled(x, w, bias)
        for got, of in zip(compiled(x[3:4], w, bias), whole, strict=True):
            assert_bitwise_equal(got.reshape(-1, 512), of.reshape(-1, 512)[3:4])
    torch._dynamo.reset()


@pytest.mark.gpu_hopper
def test_what_products_do_not_serve_is_counted():
    x = torch.randn(4, 4, device="cuda")
    with enabled(products=True):
        for name, why, call in (
            ("mm", "dtype", lambda: x @ x),
            ("mm", "dtype", lambda: x.double() @ x.double()),
            ("mm", "empty", lambda: x[:0].half() @ x.half()),
            ("bmm", "dtype", lambda: torch.bmm(x[None].cfloat(), x[None].cfloat())),
        ):
            before = tr.coverage()[name][why]
            call()
            assert tr.coverage()[name][why] == before + 1, (name, why)


def test_products_are_the_same_without_a_library_for_this_torch(device):
    """Registered from Python: in a process of its own."""
    code = """
        import pathlib, sys, warnings
        import torch, torchreduce as tr
        from torch.nn.functional import linear, scaled_dot_product_attention as attend
        from torchreduce import override
        device, is_python = sys.argv[1], sys.argv[2] == "python"
        if is_python:
            override.registry.aten_path = lambda: pathlib.Path("nowhere")
        warnings.simplefilter("ignore")
        generator = torch.Generator().manual_seed(0)
        x, w, b = (torch.randn(n, generator=generator).to(device) for n in ((9, 40), (40, 24), (24,)))
        with tr.enabled(cpu=device == "cpu", compile=False, products="float32"):
            out = torch.zeros(9, 24, device=device)
            results = [
                x @ w, torch.addmm(b, x, w, beta=2), torch.mm(x, w, out=out), out.addmm_(x, w, alpha=0.5),
                torch.bmm(x[None], w[None]), torch.baddbmm(b, x[None], w[None]), torch.mv(x, w[:, 0]),
                torch.addmv(x[:, 0], x, w[:, 0]), torch.dot(x[0], w[:, 0]), linear(x[None, ::2], w.t(), b),
                linear(x[0], w.t(), b), attend(x[None, None, :1], x[None, None], x[None, None]),
                linear(torch.nested.nested_tensor([x, x[:1]]), w.t(), b).to_padded_tensor(0.0),
            ]
            # torch's own, which adds in the order of arrival on a GPU
            torch.testing.assert_close(linear(x[None], w.t().to_sparse(), b), linear(x[None], w.t(), b))
            counts = {name: row["served"] for name, row in tr.coverage().items() if "m" in name and row["served"]}
        assert isinstance(override.registry.rows, override.registry.Rows) != is_python
        for result in results:
            print(result.shape, result.cpu().view(torch.int32).flatten().tolist())
        print({name: counts[name] for name in sorted(counts) if name in ("mm", "mm.out", "addmm", "addmm_", "bmm")})
    """
    printed = [
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), device, which], capture_output=True, text=True, check=True
        ).stdout
        for which in ("c++", "python")
    ]
    assert printed[0] == printed[1]
    assert "'mm.out': 1" in printed[0]


def test_a_transformers_encoder_keeps_its_rows(device):
    """Its fast path, too, which adds a bias and activates in one op."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 96, batch_first=True).eval().to(device)
    x = torch.randn(16, 5, 64, device=device)
    with on(device), torch.no_grad():
        before = served("_addmm_activation")
        whole = layer(x)
        assert_bitwise_equal(layer(x[2:3]), whole[2:3])
        assert served("_addmm_activation") > before


def test_what_lies_beside_the_result_does_not_change_the_bits(device):
    """Results in every second column, or between the columns of a factor."""
    x, w = torch.randn(70, 96, device=device), torch.randn(96, 16, device=device)
    with on(device):
        expected, vector = x @ w, torch.mv(x, w[:, 0])
        pairs, added = torch.zeros(70, 2, device=device), torch.addmv(x[:, 0], x, w[:, 0])
        torch.mv(x, w[:, 0], out=pairs[:, 0])
        torch.mv(x[3:4], w[:, 0], out=pairs[3:4, 1])
        assert_bitwise_equal(pairs[:, 0], vector)
        assert_bitwise_equal(pairs[3:4, 1], vector[3:4])
        pairs[:, 1] = x[:, 0]
        pairs[:, 1].addmv_(x, w[:, 0])
        assert_bitwise_equal(pairs[:, 1], added)
        both = torch.cat([x, torch.zeros(70, 16, device=device)], 1)
        torch.mm(both[:, :96], w, out=both[:, 96:])
        assert_bitwise_equal(both, torch.cat([x, expected], 1))


def test_a_dot_product_is_a_sum(device):
    x, y = torch.randn(2, 100_001, device=device)
    for dtype in DTYPES:
        a, b = x.to(dtype), y.to(dtype)
        with on(device):
            assert_bitwise_equal(torch.dot(a, b), tr.sum(a.float() * b.float(), dtype=dtype))
            assert_bitwise_equal(torch.dot(torch.stack([a, a], 1)[:, 0], b), a @ b)


def test_what_torch_refuses_or_takes_otherwise_is_as_before(device):
    """Nested and sparse tensors, complex numbers, factors out of range, shapes that do not fit."""
    x, w, b = torch.ones(2, 4, device=device), torch.ones(3, 4, device=device), torch.ones(3, device=device)
    c = torch.randn(2, 2, dtype=torch.complex64, device=device)
    nan = torch.full_like(x, float("nan"))
    calls = (
        lambda: F.linear(torch.nested.nested_tensor([x, x[:1]]), w, b).to_padded_tensor(0.0),
        lambda: F.linear(x[None], w.to_sparse(), b),
        lambda: torch.addmm(c, c, c, beta=1j, alpha=2j),
        lambda: torch.addmv(c[0], c, c[0], beta=1j),
        lambda: torch.addmm(b, x, w.t(), alpha=1e300),
        lambda: torch.addmm(b, x, w.t(), beta=1e300),
        lambda: torch.addmm(b, nan, w.t(), alpha=0),
        lambda: torch.addmm(b * float("nan"), x, w.t(), beta=1e-60),
        lambda: torch.addmm(x, x, w.t(), beta=0),
        lambda: torch.addmm(b.double(), x, w.t(), beta=0),
        lambda: torch.mm(x, w),
        lambda: torch.dot(x[0], b),
        lambda: torch.addmm(b, x, w.t(), out=torch.empty(2, 3, dtype=torch.float64, device=device)),
        lambda: torch.mm(x[:, :0], w[:, :0].t()),
        lambda: torch.addmm(b, x[:, :0], w[:, :0].t()),
        lambda: torch.mm(x[:0], w.t()),
    )

    def outcome(call):
        try:
            return call()
        except Exception as error:
            return type(error)

    for i, call in enumerate(calls):
        expected = outcome(call)
        with on(device):
            got = outcome(call)
        if isinstance(expected, type):
            assert got is expected, i
        else:
            torch.testing.assert_close(got, expected, equal_nan=True, msg=str(i))


def test_one_nan_stays_in_its_row(device):
    x, w = torch.randn(50, 70, device=device), torch.randn(70, 40, device=device)
    poisoned = x.clone()
    poisoned[7, 3], poisoned[8, 0] = float("nan"), float("inf")
    with on(device):
        whole, got = x @ w, poisoned @ w
        others = [i for i in range(50) if i not in (7, 8)]
        assert_bitwise_equal(got[others], whole[others])
        assert got[7].isnan().all()


def test_an_empty_inner_dim_that_a_graph_finds(device):
    def f(a):
        rows = a.nonzero().squeeze(1)
        return torch.ones(3, 1, device=device).expand(3, rows.shape[0]) @ torch.ones(rows.shape[0], 2, device=device)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True), on(device, compile=True):
        compiled = torch.compile(f, fullgraph=True)
        for a in (torch.tensor([0.0, 1.0, 2.0]), torch.zeros(3)):
            assert_bitwise_equal(compiled(a.to(device)), torch.full((3, 2), float(a.count_nonzero()), device=device))
    torch._dynamo.reset()


# ---- attention -------------------------------------------------------------------------------------------------------


def qkv(batch, queries, keys, width, dtype=torch.bfloat16):
    generator = torch.Generator("cuda").manual_seed(width)
    shapes = ((batch, 4, queries, width), (batch, 4, keys, width), (batch, 4, keys, width))
    return (torch.randn(shape, generator=generator, device="cuda").to(dtype) for shape in shapes)


@pytest.mark.gpu_hopper
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("compiled", [False, True])
def test_rows_of_attention_are_the_same_in_every_batch(width, compiled):
    q, k, v = qkv(6, 300, 300, width)
    attend = F.scaled_dot_product_attention
    with tr.enabled(products=True):
        call = torch.compile(attend) if compiled else attend
        whole = attend(q, k, v, is_causal=True)
        assert not torch.backends.cuda.flash_sdp_enabled()
        for rows, n in itertools.product((slice(0, 1), slice(2, 5)), (2, 64, 129, 257)):
            part = call(q[rows, :, :n], k[rows, :, :n], v[rows, :, :n], is_causal=True)
            assert_bitwise_equal(part, whole[rows, :, :n])
            one = call(q[rows, :, n - 1 : n], k[rows, :, :n], v[rows, :, :n])
            assert one.shape == part[:, :, -1:].shape
            assert_bitwise_equal(one, part[:, :, -1:])
    assert torch.backends.cuda.flash_sdp_enabled()
    torch._dynamo.reset()


@pytest.mark.gpu_hopper
def test_gradients_of_attention_are_the_same_in_every_batch_if_deterministic():
    q, k, v = qkv(6, 300, 300, 64)
    g = next(qkv(6, 300, 300, 128))[..., :64].contiguous()

    def gradients(rows):
        parts = [t[rows].detach().clone().requires_grad_() for t in (q, k, v)]
        y = F.scaled_dot_product_attention(*parts, is_causal=True)
        return torch.autograd.grad(y, parts, g[rows])

    torch.use_deterministic_algorithms(True)
    try:
        with enabled():
            for whole, part in zip(gradients(slice(None)), gradients(slice(1, 3)), strict=True):
                assert_bitwise_equal(part, whole[1:3])
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.gpu_hopper
def test_attention_is_counted():
    q, k, v = qkv(2, 1, 40, 64)
    with enabled():
        before = tr.coverage()["scaled_dot_product_attention"]
        F.scaled_dot_product_attention(q, k, v)
        F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            F.scaled_dot_product_attention(q, k, v)
        after = tr.coverage()["scaled_dot_product_attention"]
    assert {why: after[why] - n for why, n in before.items() if after[why] != n} == {"served": 2, "option": 2}


def test_flash_attention_is_torchs_again_afterwards():
    for before in (True, False):
        torch.backends.cuda.enable_flash_sdp(before)
        with enabled():
            assert not torch.backends.cuda.flash_sdp_enabled()
            with enabled():
                pass
            with enabled(products=False):
                assert torch.backends.cuda.flash_sdp_enabled() == before
            assert not torch.backends.cuda.flash_sdp_enabled()
        assert torch.backends.cuda.flash_sdp_enabled() == before
    torch.backends.cuda.enable_flash_sdp(True)


# ---- refusal ---------------------------------------------------------------------------------------------------------

# A library before torch's, whose products are off by some bits in every second call, so that no order is kept; or, with
# -DTILES, in the kernels of half of the tiles.
FAKE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
typedef int (*Matmul)(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*,
                      void*, void*, void*, const void*, void*, size_t, void*);
typedef int (*Config)(const void*, int, void*, size_t, size_t*);
int cublasLtMatmul(void* handle, void* desc, const float* alpha, const void* a, void* la, const void* b, void* lb,
                   const void* beta, const void* c, void* lc, void* d, void* ld, const void* algo, void* space,
                   size_t bytes, void* stream) {
  void* torchs = dlopen("libcublasLt.so.13", RTLD_NOLOAD | RTLD_LAZY);
  if (!torchs) torchs = dlopen("libcublasLt.so.12", RTLD_NOLOAD | RTLD_LAZY);
  static int calls = 0;
  int is_other = calls++ % 2;
#ifdef TILES
  size_t written;
  ((Config)dlsym(torchs, "cublasLtMatmulAlgoConfigGetAttribute"))(algo, 1, &is_other, sizeof is_other, &written);
  is_other = is_other / 2 % 2;
#endif
  const float other = *alpha * (1.0f + 0x1p-6f * is_other);
  return ((Matmul)dlsym(torchs, "cublasLtMatmul"))(handle, desc, &other, a, la, b, lb, beta, c, lc, d, ld, algo, space,
                                                   bytes, stream);
}
"""


def run_before_torchs(tmp_path, code, *flags):
    """What the code prints, with the library before torch's."""
    source, library = tmp_path / "fake.c", tmp_path / "fake.so"
    source.write_text(FAKE)
    subprocess.run(["gcc", "-shared", "-fPIC", *flags, "-o", library, source, "-ldl"], check=True)
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.gpu_hopper
def test_a_library_without_one_order_is_refused(tmp_path):
    code = """
        import torch, torchreduce as tr
        x = torch.randn(32, 64, device="cuda").bfloat16()
        with tr.enabled(compile=False, products=True):
            try:
                x @ x.t()
            except RuntimeError as error:
                print(error)
    """
    assert "mm: products=True finds no algorithm of cuBLASLt" in run_before_torchs(tmp_path, code)


@pytest.mark.gpu_hopper
def test_kernels_that_leave_the_order_are_refused(tmp_path):
    code = """
        import torch, torchreduce as tr
        from torchreduce import _C
        from torchreduce._tools import verify_products
        x, w = verify_products.cancelling(1000, 512, 1024, torch.bfloat16)
        with tr.enabled(compile=False, products=True):
            whole, parts = x @ w, [x[:m] @ w for m in (1, 16, 33, 64, 100, 129, 256, 500)]
        print(sum(verify_products.differing_rows(part, whole[: len(part)]) for part in parts), "rows differ")
        print({holds for *_, holds in _C.tried_algorithms(0)})
    """
    printed = run_before_torchs(tmp_path, code, "-DTILES")
    assert printed.splitlines() in (["0 rows differ", "{False, True}"], ["0 rows differ", "{True, False}"])


@pytest.mark.gpu_hopper
def test_a_capture_does_not_wait_for_a_proof():
    """In a process of its own, where nothing is proved."""
    code = """
        import torch, torchreduce as tr
        x = torch.randn(32, 64, device="cuda").bfloat16()
        with tr.enabled(compile=False, products=True):
            try:
                with torch.cuda.graph(torch.cuda.CUDAGraph()):
                    x @ x.t()
            except RuntimeError as error:
                print(error)
            torch.cuda.synchronize()
            print((x @ x.t()).isfinite().all().item())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert "run the product once before the capture" in done.stdout, done.stderr
    assert done.stdout.strip().endswith("True"), done.stderr


@pytest.mark.gpu_hopper
def test_verify_compares_rows(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["torchreduce", "verify", "--products"])
    monkeypatch.setattr(verify_products, "SIZES", ((64, 256), (17, 33)))
    assert __main__.main() == 0
    assert "every row has the bits of its largest batch" in capsys.readouterr().out
    differing = verify_products.differing_rows
    monkeypatch.setattr(verify_products, "differing_rows", lambda a, b: differing(a, b) + (a.shape[0] == 7))
    assert __main__.main() == 1
    assert "rows FAILED" in capsys.readouterr().out


def test_verify_of_products_needs_a_gpu(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["torchreduce", "verify", "--products"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        __main__.main()
    assert "compute capability 9.0" in capsys.readouterr().err
