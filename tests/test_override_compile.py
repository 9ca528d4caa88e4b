"""The override in torch.compile: by the backend "torchreduce", and by enable(compile=True)."""

import pytest
import torch
import torch.nn.functional as F
from test_override import python, rows
from torch._dynamo.utils import counters
from torch._inductor.custom_graph_pass import CustomGraphPass

import torchreduce as tr
from torchreduce import override
from torchreduce.override import compile as override_compile
from torchreduce.override import graph as override_graph
from torchreduce.override import rules
from torchreduce.testing import assert_bitwise_equal

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def compiled_anew():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    assert (override.state.eager, override.state.compiled) == (0, 0)


def twice(x):
    return torch.arange(33, device=x.device) % 20


def each(x):
    return (twice(x)[:, None] + torch.arange(1000, device=x.device)) % 20


# By the rule: torch's own call, on x and what else there is to it.
CALLS = {
    "sum": lambda x: x.sum(),
    "sum.dim_IntList": lambda x: x.sum(1),
    "mean": lambda x: x.mean(),
    "mean.dim": lambda x: x.mean(0),
    "trace": lambda x: x.trace(),
    "nansum": lambda x: x.nansum(1),
    "prod": lambda x: aten.prod(x),
    "prod.dim_int": lambda x: x.prod(1),
    "linalg_vector_norm": lambda x: torch.linalg.vector_norm(x, dim=1),
    "_foreach_norm.Scalar": lambda x: torch._foreach_norm([x, x[0]]),
    "any": lambda x: aten.any(x),
    "any.dim": lambda x: x.any(1),
    "any.dims": lambda x: aten.any.dims(x, [0, 1]),
    "all": lambda x: aten.all(x),
    "all.dim": lambda x: x.all(1),
    "all.dims": lambda x: aten.all.dims(x, [0, 1]),
    "count_nonzero": lambda x: torch.count_nonzero(x),
    "count_nonzero.dim_IntList": lambda x: torch.count_nonzero(x, (0, 1)),
    "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin(1),
    "aminmax": lambda x: tuple(torch.aminmax(x, dim=1)),
    "max": lambda x: x.max(),
    "max.dim": lambda x: tuple(x.max(1)),
    "min": lambda x: x.min(),
    "min.dim": lambda x: tuple(x.min(1)),
    "argmax": lambda x: x.argmax(1),
    "argmin": lambda x: x.argmin(1),
    "_softmax": lambda x: x.softmax(1),
    "_log_softmax": lambda x: x.log_softmax(1),
    "_softmax_backward_data": lambda x: aten._softmax_backward_data(x, x, 1, x.dtype),
    "_log_softmax_backward_data": lambda x: aten._log_softmax_backward_data(x, x, 1, x.dtype),
    "logsumexp": lambda x: x.logsumexp(1),
    "var.correction": lambda x: x.var(1),
    "std.correction": lambda x: x.std(1, correction=0),
    "var_mean.correction": lambda x: torch.var_mean(x, 1),
    "std_mean.correction": lambda x: torch.std_mean(x, 1),
    "native_layer_norm": lambda x: aten.native_layer_norm(x, x.shape[1:], x[0], x[1], 1e-5),
    "native_layer_norm_backward": lambda x: aten.native_layer_norm_backward(
        x, x, x.shape[1:], x[:, :1], x[:, 1:2], x[0], x[1], [True, True, True]
    ),
    "embedding_dense_backward": lambda x: aten.embedding_dense_backward(
        x, torch.arange(33, device=x.device) % 7, 9, 3, False
    ),
    # At most two elements meet, and no self: torch's sums are the same in any order.
    "index_add": lambda x: torch.zeros_like(x).index_add(0, twice(x), x),
    "scatter_add": lambda x: torch.zeros_like(x).scatter_add(0, each(x), x),
    "scatter_reduce.two": lambda x: x.scatter_reduce(0, each(x), x, "amax"),
    "index_reduce": lambda x: x.index_reduce(0, twice(x), x, "amin"),
    "scatter.reduce": lambda x: torch.zeros_like(x).scatter(0, each(x), x, reduce="add"),
    "index_put": lambda x: torch.zeros_like(x).index_put((twice(x) - 20,), x, accumulate=True),
    "_unsafe_index_put": lambda x: aten._unsafe_index_put(torch.zeros_like(x), [None, twice(x)], x[:, :33], True),
    "put": lambda x: torch.zeros_like(x).put(twice(x), x[:, 0], accumulate=True),
    "_embedding_bag": lambda x: tuple(aten._embedding_bag(x, twice(x), twice(x)[:1], False, 0)),
    "_embedding_bag_forward_only": lambda x: aten._embedding_bag_forward_only(x, twice(x), twice(x)[:1], False, 1)[0],
    "_embedding_bag_dense_backward": lambda x: aten._embedding_bag_dense_backward(
        x, twice(x), twice(x), twice(x), twice(x)[:0], 40, False, 0, None
    ),
    "_embedding_bag_backward": lambda x: aten._embedding_bag_backward(
        x, twice(x), twice(x)[:1], twice(x), twice(x), twice(x)[:0], 40, False, 0, False, None
    ),
    "_embedding_bag_per_sample_weights_backward": lambda x: aten._embedding_bag_per_sample_weights_backward(
        x, x, twice(x), twice(x)[:1], twice(x), 0
    ),
    "segment_reduce": lambda x: torch.segment_reduce(x, "max", lengths=twice(x)[[3, 0, 10, 19, 1]], axis=0),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(1),
    "_logcumsumexp": lambda x: aten._logcumsumexp(x, 1),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "cummax": lambda x: tuple(x.cummax(1)),
    "cummin": lambda x: tuple(x.cummin(1)),
}
EAGER = {"bincount"}  # whose result has a shape that only a run knows
ON_GPUS = {"_fused_rms_norm", "_fused_rms_norm_backward"}  # torch has these there alone


def every_call(x):
    return [torch.utils._pytree.tree_leaves(call(x)) for call in CALLS.values()]


def test_every_rule_has_the_bits_of_eager(device):
    """By the backend, with the override enabled or not. Unsupported calls fall back to torch: complex, other orders."""
    assert {*CALLS, *ON_GPUS, *EAGER} == set(rules.GRAPH_RULES)
    x = rows(33, 1000, device=device)
    with tr.enabled(cpu=True, compile=False):
        expected = every_call(x)
    compiled = torch.compile(every_call, backend="torchreduce", fullgraph=True)(x)
    for name, results, eager in zip(CALLS, compiled, expected, strict=True):
        for a, b in zip(results, eager, strict=True):
            assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride()), name
            assert_bitwise_equal(a, b)


@pytest.mark.slow
def test_what_is_not_covered_goes_on(device):
    def f(x):
        return x.cfloat().sum(1), torch.linalg.vector_norm(x, 3), x.sum(1, dtype=torch.int64)

    x = rows(3, 5, device=device)
    for a, b in zip(torch.compile(f, backend="torchreduce")(x), f(x), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.long
def test_what_torch_serves_is_taken_apart_as_ever():
    """Every call that has a rule, where it is for GPUs alone; and those that have none for the arguments."""
    x = rows(33, 1000)
    expected = torch.compile(every_call, fullgraph=True)(x)
    torch._dynamo.reset()
    with tr.enabled(cpu=False):
        compiled = torch.compile(every_call, fullgraph=True)(x)
    for name, results, torchs in zip(CALLS, compiled, expected, strict=True):
        for a, b in zip(results, torchs, strict=True):
            torch.testing.assert_close(a, b, atol=0, rtol=0, equal_nan=True, msg=name)

    indices = torch.tensor([1, 2, 1])
    for f in (
        lambda w: F.embedding(indices, w, scale_grad_by_freq=True),
        lambda w: F.layer_norm(w[:0], (6,)).sum() + w,
        lambda w: w[:0].log_softmax(1).sum() + w.softmax(1),
    ):
        w = torch.randn(4, 6, requires_grad=True)
        (expected,) = torch.autograd.grad(f(w).square().sum(), w)
        (got,) = torch.autograd.grad(torch.compile(f, backend="torchreduce")(w).square().sum(), w)
        torch.testing.assert_close(got, expected)


def test_the_switch_is_guarded():
    """A change of the override compiles again, once for each state; changing it back compiles nothing."""
    override_compile.install()  # as the first enable() does
    x = rows()
    f = torch.compile(lambda x: x.sum(1))
    torchs = f(x)
    assert not torch.equal(torchs, tr.sum(x, 1))  # or this would show nothing
    for _ in range(2):
        with tr.enabled(cpu=True):
            assert_bitwise_equal(f(x), tr.sum(x, 1))
        assert_bitwise_equal(f(x), torchs)
    assert counters["stats"]["unique_graphs"] == 2
    with tr.enabled(cpu=False, compile=True):  # GPUs alone: the CPU's calls are torch's
        assert_bitwise_equal(f(x), torchs)
    with tr.enabled(cpu=True, compile=False):
        assert_bitwise_equal(f(x), torchs)


def step(x, w, b, emb, target):
    """Of a small language model, with reductions forward and backward."""
    h = emb[x]
    h = F.layer_norm(h, h.shape[-1:], w, b)
    logits = F.gelu(h) @ emb.t()
    loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
    return loss, *torch.autograd.grad(loss, (w, b, emb))


@pytest.mark.slow
def test_a_training_step_repeats_and_does_not_see_its_batch():
    emb = (rows(50, 32) * 0.1).requires_grad_()
    w, b = torch.ones(32, requires_grad=True), torch.zeros(32, requires_grad=True)
    x, target = torch.arange(40).reshape(5, 8) % 50, torch.arange(1, 41).reshape(5, 8) % 50

    f = torch.compile(step, backend="torchreduce", dynamic=True)
    first, again = f(x, w, b, emb, target), f(x, w, b, emb, target)
    for a, c, e in zip(first, again, step(x, w, b, emb, target), strict=True):
        assert_bitwise_equal(a.detach(), c.detach())
        torch.testing.assert_close(a, e)

    @torch.compile(backend="torchreduce", dynamic=True)
    def rows_of(x):
        return F.layer_norm(x.sin(), x.shape[-1:], w, b).softmax(-1)

    h = rows(9, 32)
    for n in (2, 5, 9):
        assert_bitwise_equal(rows_of(h[:n]).detach(), rows_of(h)[:n].detach())


@pytest.fixture
def kept_graphs(monkeypatch):
    """The ops of each graph that a pass has been through, in its order."""
    graphs = []
    apply = override_graph.Rewrite.__call__

    def kept(self, graph):
        apply(self, graph)
        graphs.append([str(node.target) for node in graph.nodes])

    monkeypatch.setattr(override_graph.Rewrite, "__call__", kept)
    with torch.compiler.config.patch(force_disable_caches=True):  # a cached graph has been through the pass before
        yield graphs


def test_the_gradient_of_a_layer_norm_takes_its_statistics(kept_graphs):
    """It makes no further pass over the rows for them."""
    w, b, x = (t.requires_grad_() for t in (*rows(2, 32), rows(9, 32)))
    f = torch.compile(lambda x: F.layer_norm(x * 1, (32,), w, b).square().sum(), backend="torchreduce")
    compiled = torch.autograd.grad(f(x), (x, w, b))
    with tr.enabled(cpu=True, compile=False):
        eager = torch.autograd.grad(F.layer_norm(x * 1, (32,), w, b).square().sum(), (x, w, b))
    for c, e in zip(compiled, eager, strict=True):
        torch.testing.assert_close(c, e)
    [ops] = kept_graphs
    assert "torchreduce.layer_norm_backward.raw" in ops and "torchreduce.moments.raw" not in ops


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_a_norm_that_is_read_in_16_bits_is_rounded_as_it_is_written(device, kept_graphs, dtype):
    """With eager's bits, and its statistics in float32 for the gradient; one that others read, too, stays as it is."""
    x, w = rows(40, 24, device=device), rows(2, 24, device=device)

    def f(x, w):
        read = F.layer_norm(x, (24,), w[0], w[1]).to(dtype)
        both = F.layer_norm(x, (24,), w[1])
        return read, both.to(dtype), both

    compiled = torch.compile(f, backend="torchreduce")(*(t.detach().requires_grad_() for t in (x, w)))
    with tr.enabled(cpu=True, compile=False):
        expected = f(x, w)
    for a, b in zip(compiled, expected, strict=True):
        assert_bitwise_equal(a.detach(), b)
    [ops] = kept_graphs
    assert ops.count("torchreduce.layer_norm_as.raw") == ops.count("torchreduce.layer_norm.raw") == 1
    assert ops.count("torchreduce.layer_norm_backward.raw") == 2


def losses(x, narrow, images, target, targets, weight):
    """Of which each is a log-softmax that nothing but it reads."""
    return [
        F.cross_entropy(x, target),
        F.cross_entropy(x, target, weight, ignore_index=7),
        F.cross_entropy(x, target, reduction="sum"),
        F.cross_entropy(x[0], target[0], reduction="none"),
        F.cross_entropy(narrow.float(), target),
        F.cross_entropy(narrow, target, reduction="none"),
        F.cross_entropy(images, targets),
        F.nll_loss(x.double().log_softmax(1), target, reduction="none"),
        F.nll_loss(narrow.log_softmax(1).float(), target),  # as autocast on GPUs has it
    ]


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_log_softmax_that_only_a_loss_reads_is_a_cross_entropy(device, kept_graphs, dynamic):
    """The loss has eager's bits; the gradient those of torchreduce.cross_entropy, also of logits of 16 bits."""
    x, images = rows(40, 50, device=device), rows(2 * 50 * 3, 4, device=device).reshape(2, 50, 3, 4)
    target = torch.arange(40, device=device)
    args = (x, x.bfloat16(), images, target, target[:24].reshape(2, 3, 4), x[1].abs())
    inputs = [t.detach().requires_grad_() for t in args[:3]]

    def gradients(results):
        return torch.autograd.grad(sum(r.double().sum() for r in results), inputs)

    results = torch.compile(losses, backend="torchreduce", dynamic=dynamic)(*inputs, *args[3:])
    compiled = gradients(results)
    with tr.enabled(cpu=True, compile=False):
        expected = losses(*inputs, *args[3:])
    for a, b in zip(results[:-1], expected[:-1], strict=True):
        assert_bitwise_equal(a.detach(), b.detach())
    torch.testing.assert_close(results[-1], expected[-1], rtol=2**-8, atol=0)
    assert_bitwise_equal(results[-1].detach(), results[4].detach())  # not of log-probabilities of 16 bits
    for a, b in zip(compiled, gradients(losses(*inputs, *args[3:])), strict=True):
        if a.dtype is torch.float32:  # for the other one torch's formula, eager's, rounds probabilities to 16 bits
            torch.testing.assert_close(a, b)
    [ops] = kept_graphs
    assert ops.count("torchreduce.cross_entropy.raw") == 9
    assert ops.count("torchreduce.cross_entropy_backward.raw") == 8  # rows of classes
    assert ops.count("torchreduce.cross_entropy_gradient.raw") == 1
    assert not any("softmax" in op or "nll" in op for op in ops)


def test_the_gradient_of_logits_is_laid_out_for_matrix_products(device, kept_graphs):
    """It is filled up with zeros to whole granules of 16 bytes, and products are taken of all of it, unless something
    looks at it that takes contiguous rows alone."""
    x, w = rows(40, 24, device=device).view(4, 10, 24), rows(50, 24, device=device)
    target = torch.arange(40, device=device)

    def gradients(f):
        ins = [t.detach().requires_grad_() for t in (x, w)]
        return torch.autograd.grad(f(*ins), ins)

    def flat(x, w):
        return F.cross_entropy((x @ w.t()).flatten(0, 1), target)

    def unfolded(x, w):  # of columns that are a row's pieces
        logits = (x.flatten(0, 1) @ w.t()).reshape(-1).view(80, 25)
        return F.cross_entropy(logits.reshape(-1).view(40, 50), target)

    def squeezed(x, w):  # by views that keep the order of the elements
        logits = (x.flatten(0, 1)[None] @ w.t()).squeeze(0).unsqueeze(1)
        return F.cross_entropy(logits.squeeze(1)[:, :], target)

    def turned(x, w):  # with the classes on the other side of each product
        return F.cross_entropy((w @ x.flatten(0, 1).t()).t(), target)

    # Sums over the classes have a weight filled up, what has a row for each class is cut off.
    for f, op, filled in (
        (flat, "backward", 1),
        (squeezed, "backward", 1),
        (turned, "backward", 1),
        (unfolded, "gradient", 0),
    ):
        for a, b in zip(gradients(torch.compile(f, backend="torchreduce")), gradients(f), strict=True):
            torch.testing.assert_close(a, b)
        ops = kept_graphs[-1]
        assert f"torchreduce.cross_entropy_{op}.raw" in ops
        assert ops.count("aten.constant_pad_nd.default") == filled
        assert ops.count("aten.slice.Tensor") == 2 * filled
        torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_a_compiled_loss_is_that_of_cross_entropy(device, dtype):
    x, target = rows(40, 50, device=device).to(dtype).requires_grad_(), torch.arange(40, device=device)
    [expected] = torch.autograd.grad(tr.cross_entropy(x, target).float(), x)
    for read in (torch.Tensor.float, lambda x: x):
        f = torch.compile(lambda x, read=read: F.cross_entropy(read(x), target), backend="torchreduce")
        assert_bitwise_equal(torch.autograd.grad(f(x), x)[0], expected)


def test_a_log_softmax_that_others_read_stays(kept_graphs):
    """And a loss that is not of one is taken apart, as Inductor takes it apart."""

    def f(x, target):
        y = x.log_softmax(1)
        return F.nll_loss(y, target) + y.sum(), F.nll_loss(x, target), F.nll_loss(y.exp(), target)

    x, target = rows(40, 50).requires_grad_(), torch.arange(40)
    compiled, expected = torch.compile(f, backend="torchreduce")(x, target), f(x, target)
    torch.testing.assert_close(compiled, expected)
    torch.testing.assert_close(*(torch.autograd.grad(sum(r), x) for r in (compiled, expected)))
    [ops] = kept_graphs
    assert "torchreduce.log_softmax.raw" in ops and not any("cross_entropy" in op or "nll" in op for op in ops)


class Counting(CustomGraphPass):
    calls = 0

    def __call__(self, graph):
        Counting.calls += 1
        assert any(n.target is torch.ops.torchreduce.sum.raw for n in graph.nodes)

    def uuid(self):
        return None


def test_a_pass_of_the_users_own_comes_after_ours():
    with tr.enabled(cpu=True):
        f = torch.compile(lambda x: x.sum(1), options={"joint_custom_pre_pass": Counting()})
        assert_bitwise_equal(f(rows()), tr.sum(rows(), 1))
    assert Counting.calls == 1


WITH_CACHES = """
    import sys, torch, torchreduce as tr
    x = torch.randn(33, 1000, generator=torch.Generator().manual_seed(0))
    f = torch.compile(lambda x: x.sum(1))
    for state in sys.argv[1:] or STATES:
        with tr.enabled(cpu=state == "on"):
            y = f(x)
        print(torch.equal(y, tr.sum(x, 1)))
    from torch._dynamo.utils import counters
    print(counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"] > 0)
"""


@pytest.mark.slow
def test_a_second_process_with_warm_caches_follows_the_switch_too(tmp_path):
    """The cache keeps the states apart, and what it serves is guarded as what is compiled."""
    for warm, states in ((False, ["on"]), (True, ["on", "off", "on"])):
        done = python(WITH_CACHES.replace("STATES", repr(states)), TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
        assert done.stdout.split() == [*(str(s == "on") for s in states), str(warm)], done.stderr


def test_eager_backends_meet_the_switch_where_they_run():
    f = torch.compile(lambda x: x.sum(1), backend="aot_eager")
    x = rows()
    torchs = f(x)
    with tr.enabled(cpu=True, compile=False):
        assert_bitwise_equal(f(x), tr.sum(x, 1))
    assert_bitwise_equal(f(x), torchs)


def test_a_missing_way_into_torch_is_said(monkeypatch):
    monkeypatch.delattr(torch, "_TorchCompileInductorWrapper")
    with pytest.raises(RuntimeError, match=r"no way into torch.compile of torch .*compile=False"):
        override_compile._inductor()
