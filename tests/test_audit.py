"""audit(): breaks that are seeded into small models are found at the op where they are, and nothing is found without."""

import itertools
import random
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchreduce as tr
from torchreduce.auditing import Batch

SMALL = 48  # columns; a multiple of 16, which products on a CPU take without padding


# ---- models: rows do not depend on their batch under enable(cpu=True, products="float32") ------------------------------


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


# ---- breaks ------------------------------------------------------------------------------------------------------------


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
        return F.batch_norm(x.flatten(1), None, None, training=True).view_as(x)


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
BATCH_NORM = Break(BatchNorm, "native_batch_norm", "batch of", "F.batch_norm")
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
        if seeded is COMPILED:
            result = tr.audit(fn, x, vary="compiled", backend=inexact)
        else:
            result = tr.audit(fn, x)
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
