"""audit(): breaks that are seeded into small models are found at their ops, and nothing is found without."""

import itertools
import random
import time
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchreduce as tr
from torchreduce.auditing import hashes as hashing
from torchreduce.auditing.compare import compare
from torchreduce.auditing.follow import Relation, Rows, batch_of
from torchreduce.auditing.hashes import hashes
from torchreduce.auditing.record import Names, Recorder, plain

SMALL = 48  # columns; a multiple of 16, which products on a CPU take without padding


# ---- models: under enable(cpu=True, products="float32") rows do not depend on their batch ----------------------------


class Spot(nn.Module):
    """Where a break is seeded. Whole: an elementwise op."""

    def forward(self, x):
        return x * 0.5


class Perceptron(nn.Module):
    """x: (batch, columns)."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(SMALL, 64), nn.LayerNorm(64), nn.Linear(64, SMALL)
        self.spots = nn.ModuleList([Spot(), Spot(), Spot()])

    def forward(self, x):
        x = self.spots[0](x)
        x = self.spots[1](self.norm(self.first(x).relu()))
        return self.spots[2](self.last(x))


class Attention(nn.Module):
    """x: (batch, time, columns)."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(SMALL, 3 * SMALL), nn.Linear(SMALL, SMALL)
        self.spots = nn.ModuleList([Spot(), Spot(), Spot()])

    def forward(self, x):
        q, k, v = self.qkv(F.rms_norm(self.spots[0](x), (SMALL,))).chunk(3, -1)
        y = self.spots[1]((q @ k.mT).softmax(-1) @ v)
        return self.spots[2](x + self.out(y))


class Graph(nn.Module):
    """x: (batch, nodes, columns): a sum over the neighbors of each node."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(SMALL, SMALL)
        self.spots = nn.ModuleList([Spot(), Spot(), Spot()])
        self.register_buffer("edges", torch.arange(40) * 7 % 16)

    def forward(self, x):
        x = self.spots[0](x)
        sent = self.spots[1](x[:, self.edges])
        return self.spots[2](self.out(torch.zeros_like(x).index_add(1, self.edges.flip(0), sent)))


class Recurrent(nn.Module):
    """x: (batch, time, columns): a cell in a loop, and a scan."""

    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(SMALL, SMALL)
        self.spots = nn.ModuleList([Spot(), Spot(), Spot()])

    def forward(self, x):
        x = self.spots[0](x)
        state, states = x[:, 0], []
        for t in range(x.shape[1]):
            state = (self.cell(state) + x[:, t]).clamp(-1, 1)
            states.append(state)
        return self.spots[2](self.spots[1](torch.stack(states, 1)).cumsum(1))


class Text(nn.Module):
    """Tokens (batch, time)."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(32, SMALL), nn.Linear(SMALL, 32)
        self.spots = nn.ModuleList([Spot(), Spot(), Spot()])

    def forward(self, tokens):
        x = self.spots[1](self.spots[0](self.embedding(tokens))).mean(1)
        return self.spots[2](self.head(x)).log_softmax(-1)


MODELS = {model.__name__: model for model in (Perceptron, Attention, Graph, Recurrent, Text)}
SHAPES = {"Perceptron": (6, SMALL), "Attention": (4, 16, SMALL), "Graph": (4, 16, SMALL), "Recurrent": (4, 8, SMALL)}


def made(name):
    """A model and its input."""
    torch.manual_seed(0)
    model = MODELS[name]()
    return model, torch.randint(32, (4, 16)) if name == "Text" else torch.randn(SHAPES[name])


def trained(model):
    def step(x):
        y = model(x)
        y.square().mean(-1).sum().backward()
        return y

    return step


def overridden():
    return tr.enabled(cpu=True, compile=False, products="float32")


# ---- breaks ----------------------------------------------------------------------------------------------------------


def ordered_sum(x, order):
    """Over the last dim, one after the other."""
    total = x[..., order[0]]
    for i in order[1:]:
        total = total + x[..., i]
    return total


@torch.library.custom_op("audit_test::atomic_sum", mutates_args=())
def atomic_sum(x: torch.Tensor) -> torch.Tensor:
    """In the order of arrival."""
    return ordered_sum(x, random.SystemRandom().sample(range(x.shape[-1]), x.shape[-1]))


@torch.library.custom_op("audit_test::strided_sum", mutates_args=())
def strided_sum(x: torch.Tensor) -> torch.Tensor:
    """In the order of memory."""
    order = range(x.shape[-1])
    return ordered_sum(x, order if x.stride(-1) == 1 else order[::-1])


@torch.library.custom_op("audit_test::split_product", mutates_args=())
def split_product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The summands are split among blocks if there are few rows."""
    splits = 4 if x.shape[0] < 3 else 1
    parts = [a.double() @ b.double() for a, b in zip(x.chunk(splits, -1), w.chunk(splits, 0), strict=True)]
    return sum(part.float() for part in parts[1:]) + parts[0].float() if splits > 1 else parts[0].float()


@torch.library.custom_op("audit_test::all_reduce", mutates_args=())
def all_reduce(shards: list[torch.Tensor]) -> torch.Tensor:
    """As ranks arrive."""
    order = random.SystemRandom().sample(range(len(shards)), len(shards))
    total = shards[order[0]].clone()
    for i in order[1:]:
        total += shards[i]
    return total


for op in (atomic_sum, strided_sum, split_product, all_reduce):
    op.register_autograd(lambda ctx, g: (None, None)[: ctx.count], setup_context=lambda ctx, inputs, output: setattr(
        ctx, "count", len(inputs)))  # fmt: skip


class Atomics(Spot):
    def forward(self, x):
        return x + atomic_sum(x)[..., None]


class AtomicGradient(Spot):
    """The forward pass is whole."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g + atomic_sum(g)[..., None]

    def forward(self, x):
        return self.Function.apply(x)


class Random(Spot):
    """The order of a sum is drawn by a generator that no seed sets."""

    generator = torch.Generator()

    def forward(self, x):
        order = torch.randperm(x.shape[-1], generator=self.generator)
        return x + x[..., order].cumsum(-1)[..., -1:]


class SplitProduct(Spot):
    weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))

    def forward(self, x):
        return split_product(x, self.weight[: x.shape[-1], : x.shape[-1]])


class SplitInPython(SplitProduct):
    def forward(self, x):
        splits = 4 if x.shape[0] < 3 else 1
        parts = zip(x.chunk(splits, -1), self.weight[: x.shape[-1], : x.shape[-1]].chunk(splits, 0), strict=True)
        return sum(a @ b for a, b in parts)


class Blocks(Spot):
    def forward(self, x):
        block = 8 if x.shape[0] < 3 else 24
        return x + x.unflatten(-1, (-1, block)).sum(-1).sum(-1, keepdim=True)


class Dropout(Spot):
    def forward(self, x):
        return F.dropout(x, 0.1, training=True)


class Centered(Spot):
    def forward(self, x):
        return x - x.mean(0)


class BatchNorm(Spot):
    def forward(self, x):
        return torch.native_batch_norm(x.flatten(1), None, None, None, None, True, 0.1, 1e-5)[0].view_as(x)


class Ranks(Spot):
    def forward(self, x):
        return x + all_reduce([*x.chunk(8, -1)]).repeat_interleave(8, -1)


class RanksInPython(Spot):
    arrivals = itertools.cycle([[0, 1, 2, 3, 4, 5], [3, 5, 1, 0, 4, 2], [5, 4, 0, 2, 3, 1]])

    def forward(self, x):
        shards = x.chunk(6, -1)
        total = torch.stack([shards[i] for i in next(self.arrivals)]).cumsum(0)[-1]
        return x + total.repeat_interleave(6, -1)


class Strides(Spot):
    def forward(self, x):
        return x + strided_sum(x)[..., None]


class StridedGather(nn.Module):
    """An embedding, whose rows are scaled by a sum of tokens in the order of memory."""

    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding

    def forward(self, tokens):
        return self.embedding(tokens) + strided_sum(tokens * 1.1)[:, None, None]


class Sigmoid(Spot):
    def forward(self, x):
        return torch.sigmoid(x)


def inexact(graph, inputs):
    """A compiler with another sigmoid."""
    for node in graph.graph.nodes:
        if node.target is torch.sigmoid:
            node.target = lambda x: 1 / (1 + torch.exp(-x))
    graph.recompile()
    return graph


@dataclass
class Break:
    kind: type
    op: str
    variation: str  # in which it is found; others may find it, too
    code: str  # of the line that is named
    is_backward: bool = False
    spot: int | None = None


ATOMICS = Break(Atomics, "audit_test::atomic_sum", "repeat", "atomic_sum(x)")
RANDOM = Break(Random, "randperm.generator", "repeat", "torch.randperm")
IN_GRADIENT = Break(AtomicGradient, "audit_test::atomic_sum", "repeat", "return g + atomic_sum(g)", True, 2)
SPLIT = Break(SplitProduct, "audit_test::split_product", "batch of 1", "split_product(x")
SPLIT_IN_PYTHON = Break(SplitInPython, "mm", "batch of 1", "a @ b")
BLOCKS = Break(Blocks, "sum.dim_IntList", "batch of 1", "unflatten")
DROPOUT = Break(Dropout, "bernoulli_.float", "seed", "F.dropout")
CENTERED = Break(Centered, "mean.dim", "batch of", "x.mean(0)")
BATCH_NORM = Break(BatchNorm, "native_batch_norm", "batch of", "native_batch_norm(")
RANKS = Break(Ranks, "audit_test::all_reduce", "repeat", "all_reduce(")
RANKS_IN_PYTHON = Break(RanksInPython, "stack", "repeat", "torch.stack")
STRIDES = Break(Strides, "audit_test::strided_sum", "strides", "strided_sum(", spot=0)
COMPILED = Break(Sigmoid, "sigmoid", "compiled", "torch.sigmoid")

SEEDED = {
    "Perceptron": (ATOMICS, SPLIT, BLOCKS, DROPOUT, CENTERED, RANKS, STRIDES, COMPILED),
    "Attention": (RANDOM, SPLIT_IN_PYTHON, BLOCKS, DROPOUT, BATCH_NORM, RANKS_IN_PYTHON, STRIDES, COMPILED),
    "Graph": (IN_GRADIENT, SPLIT, BLOCKS, DROPOUT, CENTERED, RANKS, STRIDES, COMPILED),
    "Recurrent": (ATOMICS, SPLIT_IN_PYTHON, BLOCKS, DROPOUT, BATCH_NORM, RANKS_IN_PYTHON, STRIDES, COMPILED),
    "Text": (IN_GRADIENT, SPLIT, BLOCKS, DROPOUT, CENTERED, RANKS, STRIDES, COMPILED),
}
BREAKS = [(name, i) for name in SEEDED for i in range(len(SEEDED[name]))]
assert len(BREAKS) == 40


@pytest.mark.parametrize(("name", "number"), BREAKS, ids=lambda v: str(v))
def test_seeded_breaks_are_found_where_they_are(name, number):
    seeded = SEEDED[name][number]
    model, x = made(name)
    at = number % 2 if seeded.spot is None else seeded.spot
    place = f"{name}.spots.{at}"
    if seeded is STRIDES and name == "Text":
        model.embedding, place = StridedGather(model.embedding), f"{name}.embedding"
    else:
        model.spots[at] = seeded.kind()
    fn = trained(model) if seeded.is_backward or number % 3 == 0 else model
    with overridden(), torch.set_grad_enabled(fn is not model):
        result = tr.audit(fn, x, vary="compiled", backend=inexact) if seeded is COMPILED else tr.audit(fn, x)
    first = result.culprits[0]
    assert not result.ok
    assert (first.op, first.module, first.is_backward) == (seeded.op, place, seeded.is_backward), str(result)
    assert seeded.code in first.code and "test_audit.py:" in first.line
    assert any(label.startswith(seeded.variation) for label in first.variations), first.variations
    assert first.mend


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("is_trained", [False, True], ids=["forward", "training"])
def test_nothing_is_found_in_whole_models(name, is_trained):
    model, x = made(name)
    with overridden(), torch.set_grad_enabled(is_trained):
        result = tr.audit(trained(model) if is_trained else model, x)
    assert result.ok and not result.culprits and not result.notes, str(result)
    assert set(result.variations) >= {"repeat", "seed", "batch of 1", "order: reversed", "strides"}
    assert all(result.variations.values())
    assert all(module.verdict == "equal" for module in result.modules)


# ---- what a result says ----------------------------------------------------------------------------------------------


def test_the_result_names_line_shapes_and_a_mend_that_was_tried(capsys):
    def total(x):
        return x.sum(1)

    result = tr.audit(total, torch.randn(4, 1001), vary="strides")
    [culprit] = result.culprits
    assert (culprit.op, culprit.code, culprit.module) == ("sum.dim_IntList", "return x.sum(1)", "")
    assert (culprit.inputs, culprit.outputs) == (((4, 1001),), ((4,),))
    assert culprit.is_tried and culprit.mend == "torchreduce.enable(cpu=True)"
    assert result.variations == {"strides": False}
    text = str(result)
    assert text.startswith("✗ total") and "mended by (tried): torchreduce.enable(cpu=True)" in text
    result.show()
    assert "culprit 1: sum.dim_IntList" in capsys.readouterr().out


def test_modules_are_green_or_red():
    model, x = made("Attention")
    model.spots[1] = Dropout()
    with overridden(), torch.no_grad():
        result = tr.audit(model, x, vary=("seed", "strides"))
    verdicts = {module.path: module.verdict for module in result.modules}
    red = {"", "Attention", "Attention.spots.1"}
    assert {path for path, verdict in verdicts.items() if verdict == "culprit"} == red
    assert {path for path, verdict in verdicts.items() if verdict == "unknown"} == {
        "Attention.out",
        "Attention.spots.2",
    }
    tree = str(result).split("\n\n")[0].splitlines()
    assert tree[0] == "✗ Attention" and any("✓ qkv Linear" in line for line in tree)


def test_the_same_modules_share_a_line():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(SMALL, SMALL), nn.ReLU()) for _ in range(5)))
    with overridden():
        result = tr.audit(model, torch.randn(4, SMALL), vary="repeat")
    assert str(result).split("\n\n")[0].splitlines() == [
        "✓ Sequential",
        "└── ✓ 0 to 4 Sequential",
        "    ├── ✓ 0 Linear",
        "    └── ✓ 1 ReLU",
    ]


def test_what_a_run_changed_is_put_back():
    model = nn.Sequential(nn.Linear(SMALL, SMALL), nn.BatchNorm1d(SMALL))
    model[0].weight.grad = torch.ones(SMALL, SMALL)
    before = {name: t.clone() for name, t in model.state_dict().items()}

    def step(x):
        x.mul_(2)
        model(x + torch.rand(SMALL)).sum().backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= p.grad

    x = torch.randn(4, SMALL)
    given, drawn = x.clone(), torch.get_rng_state()
    step_alone = torch.rand(SMALL)
    torch.set_rng_state(drawn)
    tr.audit(step, x, vary=("repeat", "order"))
    assert torch.equal(x, given)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert torch.equal(model[0].weight.grad, torch.ones(SMALL, SMALL)) and model[0].bias.grad is None
    assert not torch.equal(torch.rand(SMALL), step_alone)  # the generator is where one run leaves it


def test_variations_that_cannot_run_are_notes():
    result = tr.audit(lambda x: x.view(4, 8) + 1, torch.randn(4, 8))
    assert result.ok and len(result.notes) == 2 and all("RuntimeError" in note for note in result.notes)
    result = tr.audit(lambda: torch.ones(3) + 1, vary=("batch", "padding", "ranks"))
    assert result.ok and len(result.notes) == 3
    with pytest.raises(ZeroDivisionError):
        tr.audit(lambda x: x / (1 // 0), torch.ones(3))
    with pytest.raises(ValueError, match="vary must have names of repeat, seed"):
        tr.audit(torch.relu, torch.ones(3), vary="threds")
    with pytest.raises(TypeError, match="'batch' must be an int, a Batch or None, got str"):
        tr.audit(torch.relu, torch.ones(3), batch="0")
    with pytest.raises(TypeError, match=r"^audit\(\): argument 'fn' must be callable, got int$"):
        tr.audit(3, torch.ones(3))
    with pytest.raises(TypeError, match=r"^audit\(\): argument 'vary' must be a str or several, got int$"):
        tr.audit(torch.relu, torch.ones(3), vary=3)


@pytest.mark.parametrize("row", range(5))
def test_an_extreme_over_all_rows_is_found_whichever_row_has_it(row):
    x = torch.rand(5, 8)
    x[row, 3] = 2.0
    result = tr.audit(lambda x: x / x.max(), x, vary="batch")
    assert [c.op for c in result.culprits] == ["max"]


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g / g.abs().max()


def test_what_mixes_rows_in_a_gradient_is_named_and_not_the_loss():
    def gradient(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(Scaled.apply(x).square().sum(), x)[0]

    (found,) = tr.audit(gradient, torch.randn(5, 8), vary="batch").culprits
    assert found.op == "max" and found.is_backward


def test_calls_without_tensors_combine_nothing():
    def promoted(x):
        return x.to(torch.promote_types(x.dtype, torch.float32)).relu()

    assert tr.audit(promoted, torch.randn(4, 8), vary="repeat").coverage == []


def test_numbers_that_python_computes_are_named():
    """What the op is called with is not its own fault, nor that of the element's place."""
    calls = []

    def counted(x):
        calls.append(x)
        return x * len(calls)

    x = torch.randn(4, 8)
    for fn, vary in (
        (counted, "repeat"),
        (lambda x: x * (2.0 if len(x) == 1 else 3.0), "batch"),
        (lambda x: x - float(x.numpy().sum()), "batch"),
    ):
        (found,) = tr.audit(fn, x, vary=vary).culprits
        assert found.why == "its tensors are bitwise identical, its other arguments (numbers) are not the first run's"
        assert found.mend.startswith("numbers that depend on neither the run nor the batch")


def test_rows_may_lie_along_another_dim():
    def shared(x):
        return x / x.amax(1, keepdim=True)

    x = torch.randn(8, 4, 16)
    assert tr.audit(lambda x: x.cumsum(0), x, batch=1, vary=("batch", "order")).ok
    found = tr.audit(shared, x, batch=1, vary="batch").culprits
    assert [(c.op, c.why) for c in found] == [("amax", "what it makes of all rows together flows back into each row")]
    assert tr.audit(shared, x, batch=0, vary="batch").ok and tr.audit(shared, x, batch=None).ok


def test_rows_are_followed_through_transposes():
    """Of (batch, time, columns) flattened in any way."""

    def fn(x):
        b, t, c = x.shape
        y = x.transpose(0, 1).reshape(t * b, c) * 2
        y = y.view(t, b, c).permute(1, 2, 0).reshape(b * c, t) + 1
        y = y.T.contiguous().relu().view(t, b, c)
        return y.transpose(0, 1)

    batch, names = batch_of((torch.randn(4, 7, 6),), 0), Names()
    shapes, base = Recorder(names, choose=None), None
    shapes.run(fn, batch.take([2]))
    for rows in ([*range(4)], [2], [1, 0], [3, 3, 0, 1, 2]):
        run = Recorder(names, (base or shapes).by_key, plain if base else Rows(batch), rows=len(rows))
        run.run(fn, batch.take(rows))
        base = base or run
        made = compare(base, run, Relation(batch, rows))
        assert made.results and not made.found and len(made.equal) >= 3
        assert {base.calls[i].name for i in made.unknown} <= {"clone"}  # a row alone need not be copied


def test_padding_must_not_show():
    x = torch.randn(4, 16, 8)
    assert tr.audit(lambda x: (x.cumsum(1).flatten(0, 1) * 2).unflatten(0, (4, -1)), x, vary="padding").ok
    [culprit] = tr.audit(lambda x: x - x.mean(1, keepdim=True), x, vary="padding").culprits
    assert culprit.op == "mean.dim" and culprit.variations == ("padding: 20",)


def test_compiled_code_that_does_as_eager_mode_is_whole():
    model, x = made("Perceptron")
    result = tr.audit(trained(model), x, vary="compiled", backend="aot_eager")
    assert result.ok and result.variations == {"compiled: aot_eager": True}


def test_coverage_tells_what_is_served_and_why_not():
    def several(x):
        y = torch.einsum("bi,bi->b", x, x) + torch.fft.rfft(x).abs().amax(1)
        return (
            F.kl_div(x, x.exp(), reduction="sum")
            + F.nll_loss(x, torch.arange(4))
            + y.sum()
            + x.to(torch.complex64).sum().abs()
            + F.silu(x)[0, 0]
        )

    def coverage():
        return {(row.op, row.via, row.how) for row in tr.audit(several, x, vary="repeat").coverage}

    x = torch.randn(4, 20)
    assert coverage() == {
        ("bmm", "einsum", "needs products=True"),
        ("_fft_r2c", "fft_rfft", "not covered"),
        ("amax", "amax", "served"),
        ("sum", "kl_div sum", "served"),
        ("nll_loss_forward", "nll_loss", "served"),
        ("sum", "sum", "torch's: dtype"),
    }
    with overridden():
        assert ("bmm", "einsum", "served") in coverage()
    of_matmul = tr.audit(lambda x: x @ x.mT, torch.randn(2, 3, 4, 4), vary="repeat").coverage
    assert [row.op for row in of_matmul] == ["bmm"]  # and no view


@pytest.mark.parametrize("name", ["silu", "sigmoid", "gelu", "softplus", "mish", "pow"])
def test_elementwise_functions_of_a_cpu_depend_on_the_place(name):
    """Which docs/dropin.md says. Not of every element: of one in 2 to one in 100."""
    x = torch.rand(512, 15, generator=torch.Generator().manual_seed(0)) * 4
    f = (lambda x: x.pow(1.7)) if name == "pow" else getattr(F, name)
    with overridden():
        [culprit] = tr.audit(f, x).culprits
    assert culprit.op.startswith(name)
    assert "vector loop or tail" in culprit.mend or (name == "gelu" and "mkldnn" in culprit.mend)  # oneDNN has a gelu


# ---- hashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.bool, torch.complex64]
)
@pytest.mark.parametrize("shape", [(7,), (5, 6), (3, 4099), (2, 3, 4)])
def test_hashes_are_of_the_bits(dtype, shape, device):
    x = tr.testing.make_input(shape, torch.float64, 1).to(dtype).to(device)
    whole = hashes(x)
    assert torch.equal(hashes(x.mT.contiguous().mT if x.dim() > 1 else x.repeat_interleave(2)[::2]), whole)
    for dim in range(x.dim()):
        of = hashes(x, dim)
        assert of.shape == (x.shape[dim],)
        assert torch.equal(hashes(x.narrow(dim, 1, 1), dim), of[1:2])
    changed = x.clone()
    changed.view(-1)[-1] = ~changed.view(-1)[-1] if dtype is torch.bool else changed.view(-1)[-1] + 1
    assert not torch.equal(hashes(changed), whole)
    assert hashes(changed, 0).ne(hashes(x, 0)).sum() == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex64])
@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (3, 4099), (2, 3, 4)])
def test_arrays_on_a_cpu_have_the_hashes_of_tensors_elsewhere(dtype, shape, monkeypatch):
    x = tr.testing.make_input(shape, torch.float64, 1).to(dtype)
    views = [
        x,
        x.flatten()[1:],
        x.mT if x.dim() > 1 else x,
        x.conj(),
        torch._neg_view(x) if dtype.is_floating_point else x,
    ]

    def each():
        return [hashes(t, dim) for t in views for dim in (None, *range(t.dim()))]

    of_arrays = each()
    monkeypatch.setattr(hashing, "kind", lambda t: 2)
    assert all(map(torch.equal, of_arrays, each()))


def test_hashes_tell_zeros_nan_and_permutations():
    assert not torch.equal(hashes(torch.tensor([0.0])), hashes(torch.tensor([-0.0])))
    nan = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert not torch.equal(hashes(nan[:1]), hashes(nan[1:]))
    x = torch.randn(3, 10000)
    assert all(not torch.equal(hashes(x.roll(shift, 1)), hashes(x)) for shift in (1, 2, 4096, 8192))


# ---- cost ------------------------------------------------------------------------------------------------------------


def test_a_run_under_audit_takes_at_most_four_times_the_runs_time():
    """1.1 to 1.4 times at this size (docs/audit.md); the rest is for a busy machine."""
    model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512), nn.LayerNorm(512))
    x, names = torch.randn(512, 512), Names()

    def time_of(f):
        times = []
        for _ in range(5):
            begin = time.process_time()
            f()
            times.append(time.process_time() - begin)
        return min(times)

    with torch.no_grad():
        audited = time_of(lambda: Recorder(names).run(model, (x,)))
        assert audited <= 4 * time_of(lambda: model(x))
