"""The override of torch functions: enable and disable, threads and processes, and all that must stay as before."""

import itertools
import os
import random
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, jacrev, jvp, vmap
from torch.testing._internal.two_tensor import TwoTensor

import torchreduce as tr
from torchreduce import override
from torchreduce.override import above, products, rules, table
from torchreduce.testing import assert_bitwise_equal

ON = {"cpu": True, "compile": False}


@pytest.fixture(autouse=True)
def switched_off_after():
    yield
    assert (override.state.eager, override.state.compiled) == (0, 0)


def served(overload="sum.dim_IntList"):
    return tr.coverage()[overload]["served"]


class Counted:
    """Count the calls of an overload that torchreduce handles in a block with the override enabled."""

    def __init__(self, overload="sum.dim_IntList"):
        self.overload = overload

    def __enter__(self):
        self.before, self.switch = served(self.overload), tr.enabled(**ON)
        self.switch.__enter__()
        return self

    def __exit__(self, *error):
        self.switch.__exit__(*error)
        self.calls = served(self.overload) - self.before


def rows(n=33, m=1000, dtype=torch.float32, device="cpu", seed=0):
    return torch.randn(n, m, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


# ---- enable and disable ----------------------------------------------------------------------------------------------


def test_enable_and_disable(device):
    x = rows(device=device)
    torchs = x.sum(1)
    tr.enable(cpu=True, compile=False)
    ours = x.sum(1)
    tr.disable()
    assert_bitwise_equal(ours, tr.sum(x, 1))
    assert_bitwise_equal(x.sum(1), torchs)


def test_bits_no_longer_depend_on_the_batch():
    """torch's own do, here: if they stopped, this test would show nothing."""
    columns = rows(1000, 64)

    def alone():
        return torch.cat([columns[:, i : i + 1].sum(0) for i in range(64)])

    assert not torch.equal(columns.sum(0), alone())
    with tr.enabled(**ON):
        assert_bitwise_equal(columns.sum(0), alone())


def test_blocks_may_close_in_any_order():
    """As those of two threads do."""
    for first, last in ((0, 1), (1, 0)):
        blocks = [tr.enabled(cpu=True, compile=False), tr.enabled(cpu=False, compile=False)]
        for block in blocks:
            block.__enter__()
        assert override.state.eager == 1
        blocks[first].__exit__(None, None, None)
        assert override.state.eager == (1 if first == 0 else 3)
        blocks[last].__exit__(None, None, None)
        assert override.state.eager == 0
    for options in ({"cpu": "no"}, {"compile": 1}):
        with pytest.raises(TypeError, match=rf"^enable\(\): argument '{next(iter(options))}' must be a bool"):
            tr.enable(**options)


def test_the_cpu_may_be_left_out():
    x = rows()
    with tr.enabled(cpu=False, compile=False):
        assert_bitwise_equal(x.sum(1), x.sum(1))
        before = tr.coverage()["sum.dim_IntList"]
        x.sum(1)
        after = tr.coverage()["sum.dim_IntList"]
    assert (after["served"], after["kind"]) == (before["served"], before["kind"] + 1)


def test_blocks_nest_and_restore():
    block = tr.enabled(**ON)
    with block:
        with tr.enabled(cpu=False, compile=False):
            assert override.state.eager == 1
            with block:
                assert override.state.eager == 3
            assert override.state.eager == 1
        assert override.state.eager == 3
        with pytest.raises(ZeroDivisionError), tr.enabled(cpu=False, compile=False):
            _ = 1 / 0
        assert override.state.eager == 3
    assert override.state.eager == 0


def test_both_tables_have_the_same_rows():
    below, met_above = {*rules.RULES, *rules.WRITING}, set(above.SERVED)
    with tr.enabled(compile=False, products=True):
        of_products = {*products.OVERLOADS, "scaled_dot_product_attention"}
    parts = {row.overloads for row in table.PARTS}  # of composites that are met whole elsewhere
    assert set(tr.coverage()) == below | met_above | of_products | parts
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in below | set(above.COMPOSITES):
        assert has_kernel(f"aten::{name}", "BackendSelect"), name
    for name in met_above:
        assert has_kernel(f"aten::{name}", "AutogradCPU") and has_kernel(f"aten::{name}", "AutogradCUDA"), name


def test_why_a_call_goes_to_torch():
    x, named = rows(4, 5), tr.coverage

    def why(overload, f):
        before = named()[overload]
        with tr.enabled(**ON), suppress(IndexError, RuntimeError):
            f()
        after = named()[overload]
        return {key for key in after if after[key] != before[key]}

    assert why("sum.dim_IntList", lambda: x.sum(1)) == {"served"}
    assert why("sum.dim_IntList", lambda: x.to("meta").sum(1)) == set()  # which computes nothing
    assert why("cumsum", lambda: x.to_sparse().cumsum(1)) == {"kind"}
    assert why("sum.dim_IntList", lambda: x.cfloat().sum(1)) == {"dtype"}
    assert why("sum.dim_IntList", lambda: x.sum(1, dtype=torch.int64)) == {"served"}
    assert why("sum.dim_IntList", lambda: x.sum(1, dtype=torch.bool)) == {"dtype"}
    assert why("sum.dim_IntList", lambda: x.sum(7)) == {"dims"}
    assert why("sum.dim_IntList", lambda: x.sum((1, -1))) == {"dims"}
    assert why("amax", lambda: x[:0].amax(0)) == {"empty"}
    assert why("linalg_vector_norm", lambda: torch.linalg.vector_norm(x, 3)) == {"option"}
    assert why("sum.IntList_out", lambda: torch.sum(x, 1, out=torch.empty(7))) == {"out"}
    assert why("sum.IntList_out", lambda: torch.sum(x, 1, out=torch.empty(0))) == {"served"}


def test_out_may_not_share_memory():
    """What torch refuses is still refused, and cumsum may write to its input."""
    x = rows(4, 4)
    expected = tr.cumsum(x, 1)
    with tr.enabled(**ON):
        with pytest.raises(RuntimeError, match="single memory location"):
            torch.cumsum(x, 1, out=torch.empty(1).expand(4, 4))
        with pytest.raises(RuntimeError):
            torch.cumsum(x[:3], 1, out=x[1:])
        y = x.clone()
        assert torch.cumsum(y, 1, out=y) is y
        assert_bitwise_equal(y, expected)
        assert_bitwise_equal(x.clone().cumsum_(1), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_of_a_list(device, dtype):
    """Of more tensors than one launch takes, of any lengths, layouts and starts, and of one without elements."""
    whole = torch.randn(300_000, device=device, generator=torch.Generator(device).manual_seed(0)).to(dtype)
    tensors = [whole[i : i + 1 + i * i * i % 5000] for i in range(150)]
    tensors += [whole, whole[:70_000].view(7, -1), whole[:600].view(20, 30).t(), whole[1::3], whole[:0], whole[0]]
    for order in (2, 1, 0, float("inf")):
        some = [x for x in tensors if x.numel()] if order == float("inf") else tensors
        expected = [tr.vector_norm(x, order) for x in some]
        with tr.enabled(**ON):
            found = torch._foreach_norm(some, order)
        for n, e in zip(found, expected, strict=True):
            assert_bitwise_equal(n, e)


def test_a_function_may_be_decorated():
    @tr.enabled(**ON)
    def total(x):
        return x.sum(1)

    assert_bitwise_equal(total(rows()), tr.sum(rows(), 1))
    assert not torch.equal(rows().sum(1), tr.sum(rows(), 1))


# ---- 1,000 random programs -------------------------------------------------------------------------------------------


def view(x, rng):
    """A view of x, of the same values as far as they are there."""
    if x.dim() == 0:
        return x.reshape(1)
    dim = rng.randrange(x.dim())
    return rng.choice([
        lambda: x.transpose(0, -1),
        lambda: x.flip(dim),
        lambda: x.unsqueeze(dim),
        lambda: x.narrow(dim, 0, max(1, x.size(dim) - 1)),
        lambda: x.unsqueeze(dim).expand(*x.shape[:dim], 2, *x.shape[dim:]),
        lambda: x.reshape(-1),
    ])()  # fmt: skip


def reduced(x, rng):
    dim = rng.randrange(x.dim()) if x.dim() else 0
    return rng.choice([
        lambda: x.sum(dim),
        lambda: x.sum(),
        lambda: x.mean(dim, keepdim=True),
        lambda: x.mean(),
        lambda: x.nansum(dim),
        lambda: (x.tanh() * 0.5 + 1).prod(dim),
        lambda: x.amax(dim),
        lambda: x.max(dim)[0],
        lambda: x * x.detach().aminmax(dim=dim, keepdim=True)[1],  # torch 2.11 has no derivative of it
        lambda: x * (x.argmax(dim, keepdim=True) + 1),
        lambda: x * (x > 0).any(dim, keepdim=True),
        lambda: torch.linalg.vector_norm(x, dim=dim),
        lambda: x.var(dim, correction=0),
        lambda: x.std(dim, correction=0),
        lambda: x.cumsum(dim),
        lambda: (x.tanh() * 0.5 + 1).cumprod(dim),
        lambda: x.cummax(dim)[0],
        lambda: x.logcumsumexp(dim),
        lambda: x.logsumexp(dim),
        lambda: x.softmax(dim),
        lambda: F.layer_norm(x, x.shape[-1:]) if x.dim() else x,
    ])()  # fmt: skip


def program(seed):
    """A random chain of torch calls on random shapes and views. Its value, and the gradient of its input."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    shape = [rng.choice((1, 2, 3, 5, 17)) for _ in range(rng.randrange(1, 4))]
    leaf = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
    x = leaf
    for _ in range(rng.randrange(2, 7)):
        x = view(x, rng) if rng.random() < 0.4 else reduced(x, rng)
        if rng.random() < 0.3:
            x = x.sin()
    (gradient,) = torch.autograd.grad(x.sum(), leaf, allow_unused=True)
    return x.detach(), gradient


def test_random_programs_on_off_on():
    """Within tolerance of torch's on, torch's own bits off, and on again what they were.

    In float64, where a slip in an index does not hide behind roundings.
    """
    seeds = range(1000)
    before = [program(seed) for seed in seeds]
    with tr.enabled(**ON):
        on = [program(seed) for seed in seeds]
    off = [program(seed) for seed in seeds]
    with tr.enabled(**ON):
        again = [program(seed) for seed in seeds]
    for seed in seeds:
        for b, first, o, second in zip(before[seed], on[seed], off[seed], again[seed], strict=True):
            if b is None:
                assert first is o is second is None
                continue
            torch.testing.assert_close(first, b, equal_nan=True, msg=lambda m, s=seed: f"{s}: {m}")
            assert torch.equal(torch.nan_to_num(o), torch.nan_to_num(b)), seed
            assert_bitwise_equal(first, second)
    differs = sum(not torch.equal(first[0], b[0]) for first, b in zip(on, before, strict=True))
    assert differs > 20  # the programs do see whose sums they are


# ---- threads and processes -------------------------------------------------------------------------------------------


def test_toggled_while_threads_compute():
    """Each result is wholly one side's."""
    x = rows()
    torchs = [x.sum(1), x.cumsum(1), torch.sum(x, 0, out=torch.empty(1000))]
    ours = [tr.sum(x, 1), tr.cumsum(x, 1), tr.sum(x, 0)]
    wrong, seen, stop = [], set(), threading.Event()

    def work():
        out = torch.empty(1000)
        while not stop.is_set():
            for i, y in enumerate((x.sum(1), x.cumsum(1), torch.sum(x, 0, out=out))):
                side = "ours" if torch.equal(y, ours[i]) else "torch's" if torch.equal(y, torchs[i]) else None
                seen.add((i, side))
                if side is None:
                    wrong.append(i)

    tr.coverage()  # registers
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(1000):
        with tr.enabled(**ON):
            time.sleep(0)  # a turn for the others
        time.sleep(0)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert {side for i, side in seen if i == 0} == {"ours", "torch's"}


def python(script, **environment):
    """A new process, when it has ended."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    command = [sys.executable, "-c", textwrap.dedent(script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def run(script, **environment):
    """A new process's output."""
    done = python(script, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


STATE = "import torchreduce; from torchreduce import override; print(override.state.eager, override.state.compiled)"


def test_a_new_process_follows_the_environment():
    assert run(STATE, TORCHREDUCE_ENABLE="cpu") == ["3", "3"]


@pytest.mark.parametrize(
    ("value", "devices"), [("", 0), ("0", 0), ("1", 1 if torch.cuda.device_count() else 3), ("cpu", 3)]
)
def test_what_the_environment_may_say(value, devices, monkeypatch):
    monkeypatch.setenv("TORCHREDUCE_ENABLE", value)
    override.follow_environment()
    assert (override.state.eager, override.state.compiled) == (devices, devices)
    tr.disable()
    monkeypatch.setenv("TORCHREDUCE_ENABLE", "yes")
    with pytest.raises(ValueError, match="must be one of '0', '1', 'cpu', got 'yes'"):
        override.follow_environment()


FROM_PYTHON = """
    import warnings, pathlib, torch, torchreduce as tr
    exists = pathlib.Path.exists
    pathlib.Path.exists = lambda self: "_aten" not in self.name and exists(self)
    x = torch.randn(33, 1000, generator=torch.Generator().manual_seed(0))
    torchs, out, torchs_max = x.sum(1), torch.empty(0), x.max(1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with tr.enabled(cpu=True, compile=False):
            assert torch.equal(x.sum(1), tr.sum(x, 1)) and not torch.equal(x.sum(1), torchs)
            assert torch.equal(torch.sum(x, 1, out=out), tr.sum(x, 1))
            wide = torch.empty(33, dtype=torch.float64)
            assert torch.equal(torch.sum(x, 1, out=wide), tr.sum(x, 1, dtype=torch.float64))
            assert torch.equal(x.clone().cumsum_(1), tr.cumsum(x, 1)) and torch.equal(x.mean(), tr.mean(x))
            assert all(map(torch.equal, x.cummax(1), tr.cummax(x, 1))) and all(map(torch.equal, x.max(1), torchs_max))
            assert all(map(torch.equal, torch._foreach_norm([x, x[0]]), [tr.norm(x), tr.norm(x[0])]))
            assert all(map(torch.equal, torch.aminmax(x), tr.aminmax(x)))
            y, w = x.requires_grad_(), x[:2].detach().clone().requires_grad_()
            ours, torchs_grads = (
                torch.autograd.grad(f(y, (1000,), *w).softmax(0), [y, w], x.detach())
                for f in (lambda *a: tr.layer_norm(*a), torch.nn.functional.layer_norm)
            )
            assert all(map(torch.equal, ours, torchs_grads))
            x, t = x.detach(), torch.arange(33)
            assert torch.equal(torch.nn.functional.cross_entropy(x, t), tr.cross_entropy(x, t))
            weighted = torch.nn.functional.cross_entropy(x, t, x[0].abs(), ignore_index=2)
            assert torch.equal(weighted, tr.cross_entropy(x, t, x[0].abs(), ignore_index=2))
            y = tr.log_softmax(x.half(), 1).requires_grad_()
            (got,) = torch.autograd.grad(torch.nn.functional.nll_loss(y, t), y)
            assert got.dtype is torch.float16 and got[0, 0] == torch.tensor(-1 / 33).half()
            assert x.cfloat().sum().dtype == torch.complex64
            w = x.clone().requires_grad_()
            w.std(1).sum().backward()
            try:
                x.sum(5)
            except IndexError as error:
                assert "Dimension out of range" in str(error)
        with tr.enabled(cpu=True, compile=False):
            pass
    assert torch.equal(x.sum(1), torchs)
    assert len(said) == 1 and "no _aten for torch" in str(said[0].message) and said[0].filename == "<string>", said
    print(*(name for name, row in tr.coverage().items() if row["served"]), tr.coverage()["sum.dim_IntList"]["dtype"])
"""


def test_the_same_from_python_for_another_torch():
    """The same rows and bits, and it is said once."""
    assert run(FROM_PYTHON) == [
        "sum.dim_IntList", "mean.dim", "_foreach_norm.Scalar", "aminmax", "max.dim", "_softmax",
        "_softmax_backward_data", "std.correction", "native_layer_norm", "native_layer_norm_backward",
        "nll_loss_forward", "nll_loss_backward", "sum.IntList_out", "cumsum_", "_cummax_helper", "cross_entropy_loss",
        "1",
    ]  # fmt: skip


def work_of_a_loader(index):
    x = rows(seed=index)
    return torch.equal(x.sum(1), tr.sum(x, 1)), override.state.eager


class Loaded(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return work_of_a_loader(index)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_a_data_loader(start, monkeypatch):
    """Forked ones are as their parent; those that start anew follow the environment."""
    if start == "spawn":
        monkeypatch.setenv("TORCHREDUCE_ENABLE", "cpu")
    with tr.enabled(**ON):
        loader = torch.utils.data.DataLoader(Loaded(), num_workers=1, multiprocessing_context=start, batch_size=None)
        assert list(loader) == [[True, 3], [True, 3]]


# ---- composability ---------------------------------------------------------------------------------------------------


def test_vmap_jacrev_and_forward_mode():
    x, t = rows(5, 300), rows(5, 300, seed=1)
    with Counted() as counted:
        assert_bitwise_equal(vmap(torch.sum)(x), tr.sum(x, 1))
        assert_bitwise_equal(vmap(grad(lambda r: (r * r).sum()))(x), 2 * x)
        torch.testing.assert_close(jacrev(lambda r: r.sum(0))(x[:3, :4]), torch.eye(4).expand(3, 4, 4).transpose(0, 1))
        value, tangent = jvp(lambda r: r.sum(1), (x,), (t,))
        assert_bitwise_equal(value, tr.sum(x, 1))
        assert_bitwise_equal(tangent, tr.sum(t, 1))
        assert torch.autograd.gradcheck(lambda r: r.logsumexp(1).std(), (x[:3, :4].double().requires_grad_(),),
                                        check_forward_ad=True, check_batched_grad=True)  # fmt: skip
    assert counted.calls >= 4


def test_gradients_are_turned_over_too():
    """A bias gradient is a sum that C++ calls."""
    x, w, b = rows(64, 300), rows(8, 300, seed=1).requires_grad_(), torch.zeros(8, requires_grad=True)
    g = rows(64, 8, seed=2)
    with Counted() as counted:
        F.linear(x, w, b).backward(g)
    assert_bitwise_equal(b.grad, tr.sum(g, 0))
    assert counted.calls == 1


def test_cross_entropy_has_torchreduces_bits():
    x, t, w = rows(3000, 20), torch.arange(3000) % 20, rows(1, 20).abs()[0]
    for options in ({}, {"reduction": "sum"}, {"weight": w}, {"ignore_index": 3}, {"weight": w, "ignore_index": 0}):
        with tr.enabled(**ON):
            loss = F.cross_entropy(x, t, **options)
        assert_bitwise_equal(loss, tr.cross_entropy(x, t, **options))
    images, labels = x.reshape(3, 20, 100, 10), torch.arange(3000).reshape(3, 100, 10) % 20
    with tr.enabled(**ON):
        loss = F.cross_entropy(images, labels)
    assert_bitwise_equal(loss, tr.cross_entropy(images, labels))


def test_gradients_of_rows_have_torchreduces_bits():
    x, g = rows(16, 3000), rows(16, 3000, seed=1)
    w, b = rows(2, 3000, seed=2)
    functions = {
        "softmax": (F.softmax, tr.softmax),
        "log_softmax": (F.log_softmax, tr.log_softmax),
        "layer_norm": (lambda x, d: F.layer_norm(x, (3000,), w, b), lambda x, d: tr.layer_norm(x, (3000,), w, b)),
    }
    for name, (torchs, ours) in functions.items():
        inputs = [t.requires_grad_() for t in ((x, w, b) if name == "layer_norm" else (x,))]
        expected = ours(x, 1)
        expected_grads = torch.autograd.grad(expected, inputs, g)
        with tr.enabled(**ON):
            y = torchs(x, 1)
            grads = torch.autograd.grad(y, inputs, g)
        assert_bitwise_equal(y.detach(), expected.detach())
        for grad_, expected_ in zip(grads, expected_grads, strict=True):
            assert_bitwise_equal(grad_, expected_)


def test_what_is_made_of_reductions_depends_on_the_data_alone(device):
    """As promises() says; the calls' own reductions are overridden."""

    def clipped(x, y, norm=torch.nn.utils.clip_grad_norm_):
        parameters = [torch.nn.Parameter(x.clone()), torch.nn.Parameter(y.clone())]
        for p in parameters:
            p.grad = p.detach()
        total = (
            norm(parameters, 0.5) if norm is not torch.nn.utils.get_total_norm else norm([p.grad for p in parameters])
        )
        return torch.cat([total.reshape(1), *(p.grad.reshape(-1) for p in parameters)])

    def each(f):
        return lambda x, y: torch.stack([f(a, b) for a, b in zip(x, y, strict=True)])

    along = {
        "normalize": lambda x, y: F.normalize(x, dim=1),
        "cosine_similarity": F.cosine_similarity,
        "pairwise_distance": F.pairwise_distance,
        "softmin": lambda x, y: F.softmin(x, 1),
        "renorm": lambda x, y: torch.renorm(x, 2, 0, 1.0),
        "trapezoid": lambda x, y: torch.trapezoid(x, y, dim=1),
        "cumulative_trapezoid": lambda x, y: torch.cumulative_trapezoid(x, y, dim=1),
        "triplet_margin_loss": lambda x, y: F.triplet_margin_loss(x, y, y - x, reduction="none"),
        "dist": each(torch.dist),
        "mse_loss": each(F.mse_loss),
        "l1_loss": each(F.l1_loss),
        "smooth_l1_loss": each(F.smooth_l1_loss),
        "huber_loss": each(F.huber_loss),
        "binary_cross_entropy": each(lambda a, b: F.binary_cross_entropy(a.sigmoid(), b.sigmoid())),
        "binary_cross_entropy_with_logits": each(lambda a, b: F.binary_cross_entropy_with_logits(a, b.sigmoid())),
        "kl_div": each(lambda a, b: F.kl_div(a, b, reduction="sum", log_target=True)),
        "poisson_nll_loss": each(F.poisson_nll_loss),
        "gaussian_nll_loss": each(lambda a, b: F.gaussian_nll_loss(a, b, b.square())),
        "hinge_embedding_loss": each(lambda a, b: F.hinge_embedding_loss(a, b.sign())),
        "margin_ranking_loss": each(lambda a, b: F.margin_ranking_loss(a, b, b.sign())),
        "cosine_embedding_loss": each(lambda a, b: F.cosine_embedding_loss(a[None], b[None], b[:1].sign())),
        "soft_margin_loss": each(lambda a, b: F.soft_margin_loss(a, b.sign())),
        "multilabel_soft_margin_loss": lambda x, y: F.multilabel_soft_margin_loss(x, (y > 0).float(), reduction="none"),
    }
    whole = {
        "clip_grad_norm_": clipped,
        "get_total_norm": lambda x, y: clipped(x, y, torch.nn.utils.get_total_norm),
    }
    made_of = sys.modules["torchreduce.override.promises"].COMPOSITIONS
    assert along.keys() | whole.keys() == made_of.keys()
    x, y = rows(9, 1000, device=device), rows(9, 1000, device=device, seed=1)
    padded = [torch.cat([t, t], 1)[:, :1000] for t in (x, y)]
    for name, f in (along | whole).items():
        before = sum(counts["served"] for counts in tr.coverage().values())
        with tr.enabled(**ON):
            result = f(x, y)
            assert sum(counts["served"] for counts in tr.coverage().values()) > before, name
            assert_bitwise_equal(f(*padded), result)
            if name in along:
                assert_bitwise_equal(f(x[4:5], y[4:5]), result[4:5])
                assert_bitwise_equal(f(x.t().contiguous().t(), y.t().contiguous().t()), result)


def test_layer_norms_gradient_does_not_see_where_the_mean_was_kept():
    """As it was returned, or copied by a hook on saved tensors, or as torch has it: both parts of the mean count."""
    x, g, w, b = 1e4 + rows(16, 300), rows(16, 300, seed=1), *rows(2, 300, seed=2)
    x, w, b = (t.requires_grad_() for t in (x, w, b))

    def gradients(layer_norm=F.layer_norm):
        return torch.autograd.grad(layer_norm(x, (300,), w, b), (x, w, b), g)

    expected = gradients(tr.layer_norm)
    with tr.enabled(**ON):
        kept = gradients()
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda t: t):
            copied = gradients()
        _, mean, rstd = torch.ops.aten.native_layer_norm(x.detach(), [300], w.detach(), b.detach(), 1e-5)
        lookalike = torch.stack([mean, torch.full_like(mean, 1e9), rstd])
        arguments = (lookalike[0], lookalike[2], w.detach(), b.detach(), [True, True, True])
        apart = torch.ops.aten.native_layer_norm_backward(g, x.detach(), [300], *arguments)
    for results in (kept, copied, apart):
        for a, e in zip(results, expected, strict=True):
            assert_bitwise_equal(a, e)


def test_autocast():
    x, w = rows(8, 300), rows(8, 300, seed=1)
    with Counted() as counted, torch.autocast("cpu", torch.bfloat16):
        y = F.linear(x, w)
        assert y.dtype == torch.bfloat16
        assert_bitwise_equal(y.sum(1), tr.sum(y, 1))
        assert y.sum(1).dtype == torch.bfloat16
        assert y.prod(1).dtype == torch.float32  # autocast's own choice, above us
    assert counted.calls == 2


def test_checkpointing():
    from torch.utils.checkpoint import checkpoint

    x = rows(8, 300).requires_grad_()

    def f(x):
        return (x.sin() / x.sin().norm(dim=1, keepdim=True)).cumsum(1).sum()

    with Counted():
        (plain,) = torch.autograd.grad(f(x), x)
        (again,) = torch.autograd.grad(checkpoint(f, x, use_reentrant=False), x)
    assert_bitwise_equal(plain, again)


def test_inference_mode():
    with Counted() as counted, torch.inference_mode():
        x = rows()
        y = x.sum(1)
        assert y.is_inference()
        assert_bitwise_equal(y.clone(), tr.sum(x, 1).clone())
    assert counted.calls == 1


def test_deterministic_algorithms():
    x = rows()
    torch.use_deterministic_algorithms(True)
    try:
        with Counted("cumsum") as counted:
            assert_bitwise_equal(x.cumsum(1), tr.cumsum(x, 1))
    finally:
        torch.use_deterministic_algorithms(False)
    assert counted.calls == 1


def test_aot_autograd_and_export():
    """What is traced has torch's own ops, and they are overridden when they run."""
    from functorch.compile import aot_function, nop

    x = rows(8, 300).requires_grad_()

    def f(x):
        return (x.sin() * x.sum(1, keepdim=True)).sum()

    with Counted() as counted:
        (expected,) = torch.autograd.grad(f(x), x)
        (got,) = torch.autograd.grad(aot_function(f, nop, nop)(x), x)
    assert_bitwise_equal(got, expected)
    assert counted.calls >= 4

    class Module(torch.nn.Module):
        def forward(self, x):
            return x.sum(1), x.cumsum(0)

    with Counted() as counted:
        program = torch.export.export(Module(), (rows(),))
        assert {"aten.sum.dim_IntList", "aten.cumsum.default"} <= {str(n.target) for n in program.graph.nodes}
        total, sums = program.module()(rows())
    assert_bitwise_equal(total, tr.sum(rows(), 1))
    assert_bitwise_equal(sums, tr.cumsum(rows(), 0))
    assert counted.calls == 1


def test_functional_call_and_modules():
    layer = torch.nn.BatchNorm1d(5)
    x = rows(8, 5)
    expected = functional_call(layer, dict(layer.named_parameters()), (x,))
    with tr.enabled(**ON):
        torch.testing.assert_close(functional_call(layer, dict(layer.named_parameters()), (x,)), expected)


def test_other_kinds_of_tensors_fall_through():
    x = rows(6, 5)
    kinds = {
        "sparse": lambda: x.to_sparse().sum(),
        "csr": lambda: torch.sum(x.to_sparse_csr(), dim=(0, 1), keepdim=True).to_dense(),
        "nested": lambda: torch.nested.nested_tensor([x[:2], x], layout=torch.jagged).sum(-1).values(),
        "meta": lambda: x.to("meta").cumsum(1).shape,
        "complex": lambda: x.cfloat().conj().sum(1),
        "negative": lambda: torch.complex(x, x).conj().imag.sum(1),
        "uint16": lambda: (x > 0).to(torch.uint16).sum(),
        "float8": lambda: x.to(torch.float8_e4m3fn).float().sum(1),
        "quantized": lambda: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).mean(1).dequantize(),
        "subclass": lambda: TwoTensor(x, 2 * x).sum(1).b,
        "parameter": lambda: torch.nn.Parameter(x).sum(1).detach(),
    }  # fmt: skip
    for name, f in kinds.items():
        expected = f()
        with tr.enabled(**ON):
            got = f()
        if isinstance(expected, torch.Tensor):
            torch.testing.assert_close(got, expected, msg=lambda m, n=name: f"{n}: {m}")
            assert type(got) is type(expected), name
        else:
            assert got == expected, name


def test_fake_tensors_and_jit():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with tr.enabled(**ON):
        with FakeTensorMode():
            fake = torch.randn(3, 4).sum(1)
        assert tuple(fake.shape) == (3,)
        traced = torch.jit.trace(lambda x: x.sum(1), rows(3, 4))
        assert_bitwise_equal(traced(rows()), tr.sum(rows(), 1))


def test_copy_on_write_is_not_materialized():
    x = rows()
    lazy = torch._lazy_clone(x)
    with Counted() as counted:
        lazy.sum(1), torch.sum(lazy, 1, out=torch.empty(33))
    assert counted.calls == 1
    assert torch._C._is_cow_tensor(lazy)


def test_a_call_of_a_library_that_registered_before():
    """Another override of torch's own kernel is second to ours, serves what we pass on, and comes off without harm."""
    library = torch.library.Library("aten", "IMPL")
    served_there = []

    def kernel(keys, x, dim=None, keepdim=False, *, dtype=None):
        served_there.append(x.dtype)
        return x.new_zeros(())

    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("sum.dim_IntList", kernel, "CPU", with_keyset=True)
    x = rows(3, 4)
    with tr.enabled(**ON):
        assert_bitwise_equal(x.sum(1), tr.sum(x, 1))
        x.cfloat().sum(1)
    assert served_there == [torch.complex64]
    library._destroy()
    torch.testing.assert_close(x.sum(1), tr.sum(x, 1))


# ---- GPUs ------------------------------------------------------------------------------------------------------------


OF_ROWS = (
    lambda x, w: x.sum(1),
    lambda x, w: x.mean(0),
    lambda x, w: x.softmax(1),
    lambda x, w: x.logsumexp(0),
    lambda x, w: x.std(1),
    lambda x, w: x.cumsum(0),
    lambda x, w: F.layer_norm(x, (3000,), *w),
    lambda x, w: F.cross_entropy(x, torch.arange(64, device=x.device)),
    lambda x, w: torch.linalg.vector_norm(x),
)


@pytest.mark.gpu
def test_a_gpu_has_the_bits_of_the_cpu():
    x, w = rows(64, 3000), rows(2, 3000, seed=1)
    for f in OF_ROWS:
        with tr.enabled(**ON):
            assert_bitwise_equal(f(x.cuda(), w.cuda()).cpu(), f(x, w))


@pytest.mark.gpus
def test_several_gpus():
    """A call runs on the GPU of its tensors, whichever is current, with gradients, on a stream of that GPU's."""
    x, w = rows(64, 3000), rows(2, 3000, seed=1)

    def values_and_gradients(f, device):
        there = x.to(device).requires_grad_()
        result = f(there, w.to(device))
        return result, *torch.autograd.grad(result.square().sum(), there)

    with tr.enabled(**ON):
        for f in OF_ROWS:
            expected = values_and_gradients(f, "cuda:0")
            assert_bitwise_equal(expected[0].detach().cpu(), f(x, w))
            for on, current in itertools.product(range(torch.cuda.device_count()), repeat=2):
                with torch.cuda.device(current), torch.cuda.stream(torch.cuda.Stream(on)):
                    results = values_and_gradients(f, f"cuda:{on}")
                torch.cuda.synchronize(on)
                assert results[0].device.index == results[1].device.index == on
                for a, b in zip(results, expected, strict=True):
                    assert_bitwise_equal(a.detach().to("cuda:0"), b.detach())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_has_torchreduces_bits(dtype):
    x, g = rows(64, 3000, dtype, "cuda").requires_grad_(), rows(64, 3000, dtype, "cuda", seed=1)
    w = rows(1, 3000, dtype, "cuda", seed=2)[0].requires_grad_()
    expected = tr.rms_norm(x, (3000,), w)
    gradients = torch.autograd.grad(expected, (x, w), g)
    with Counted("_fused_rms_norm") as counted:
        y = F.rms_norm(x, (3000,), w)
        got = torch.autograd.grad(y, (x, w), g)
    assert counted.calls == 1
    for a, b in zip((y.detach(), *got), (expected.detach(), *gradients), strict=True):
        assert_bitwise_equal(a, b)


@pytest.mark.gpu
def test_cuda_graphs():
    """Captured calls stay torchreduce's when they are replayed, with the override enabled or not."""
    x, fresh = rows(64, 3000, device="cuda"), rows(64, 3000, device="cuda", seed=1)
    stream = torch.cuda.Stream()

    def f():
        return x.sum(1), x.softmax(1), F.layer_norm(x, (3000,)), x.cumsum(1)

    with tr.enabled(**ON):
        with torch.cuda.stream(stream):
            f()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = f()
    x.copy_(fresh)
    graph.replay()
    with tr.enabled(**ON):
        expected = f()
    for a, b in zip(captured, expected, strict=True):
        assert_bitwise_equal(a, b)


@pytest.mark.gpu
def test_streams():
    """Each call runs on the stream that is current: results of many that overlap are right."""
    inputs = [rows(500, 20000, device="cuda", seed=seed) for seed in range(4)]
    expected = [(tr.sum(x, 1), tr.softmax(x, 1)) for x in inputs]
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    with tr.enabled(**ON):
        for _ in range(5):
            results = []
            for x, stream in zip(inputs, streams, strict=True):
                with torch.cuda.stream(stream):
                    y = x + 0.0
                    results.append((y.sum(1), y.softmax(1)))
            torch.cuda.synchronize()
            for result, right in zip(results, expected, strict=True):
                for a, b in zip(result, right, strict=True):
                    assert_bitwise_equal(a, b)
