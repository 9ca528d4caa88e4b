"""Inputs for the tests: functions and dtypes from the op table, values, strides, and random calls."""

import math
import random
from dataclasses import dataclass, field

import torch

import torchreduce
from torchreduce import _C
from torchreduce.table import DTYPES, OPS


class Ours:
    """torchreduce's functions by the names of the op table: a norm of each order is one of its own."""

    def __getattr__(self, name):
        if name not in NORMS:
            return getattr(torchreduce, name)
        return lambda x, dim=None, keepdim=False, **o: torchreduce.vector_norm(x, NORMS[name], dim, keepdim, **o)


class Torchs:
    """What the op table compares them with; other functions are torch's."""

    def __getattr__(self, name):
        return ROWS[name].counterpart if name in ROWS else getattr(torch, name)


NORMS = {"norm0": 0, "norm1": 1, "norm2": 2, "norm_greatest": math.inf, "norm_least": -math.inf}
OURS, TORCHS = Ours(), Torchs()


def public(name):
    """The public function."""
    return "vector_norm" if name in NORMS else name


# By the functions that call them, but for norms and what no function has to itself; of max and min those with dim.
ROWS = {op.name if op.name in NORMS else op.function: op for op in OPS}
FUNCTIONS = tuple(ROWS)
REDUCTIONS = tuple(name for name, op in ROWS.items() if op.kind == "reduction")
SCANS = tuple(name for name, op in ROWS.items() if op.kind == "scan")
EXTREMES = tuple(name for name, op in ROWS.items() if op.empty is None and name not in NORMS)  # refuse what is empty
WITH_DTYPE = tuple(name for name, op in ROWS.items() if op.results)  # have dtype=


def results_of(name, dtype):
    """What dtype= may be for inputs of this dtype; norms may not narrow it."""
    results = ROWS[name].results
    return tuple(to for to in results if name not in NORMS or torch.promote_types(to, dtype) == to)


def serves(name, dtype):
    """It takes inputs of this dtype, perhaps with a dtype=."""
    return dtype in ROWS[name].inputs or (name not in NORMS and bool(ROWS[name].results))


EVERY = tuple((name, dtype) for name in FUNCTIONS for dtype in DTYPES if serves(name, dtype))


def scan_options(name):
    """Every exclusive= and reverse= that a scan has."""
    return [{"exclusive": e, "reverse": r} if e else {"reverse": r}
            for e in (False, True)[: 1 + ROWS[name].exclusive] for r in (False, True)]  # fmt: skip


def launches(*counts, every=False):
    """Numbers of threads with the instruction sets of this machine. What is compiled for a set shares its work out by
    the same text: unless `every`, only the last number meets each set, and the others the set in use."""
    own = _C.instruction_set()
    return [(n, isa) for n in counts for isa in _C.instruction_sets() if every or n == counts[-1] or isa == own]


# Lengths on either side of everything that the order, a vector, a warp or a block could round to.
EDGES = (8, 256, 2048, 8192)
SHORT = (1, 2, 3, 5, 7, 15, 17, 31, 33, 63, 100, 127, 129, 511, 777, 1023, 3001, 4097, 12345)
STRADDLING = tuple(
    sorted({*SHORT, *(e + d for e in EDGES for d in (-1, 0, 1)), *(2 * e + d for e in EDGES for d in (-1, 1))})
)
LONG = tuple(2**18 + d for d in (-1, 0, 1)) + tuple(2**19 + d for d in (-1, 0, 1)) + (2**18 + 8192 + 77,)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def values(shape, dtype, seed=0):
    """Random elements: floats over a few powers of ten and of both signs, integers over their whole range."""
    g = generator(seed)
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if dtype == torch.bool:
        return torch.rand(shape, generator=g) < 0.5
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        x = torch.randint(-(2**63), 2**63 - 1, shape, generator=g, dtype=torch.int64)
        return x.to(dtype) if info.bits < 64 else x
    x = torch.randn(shape, generator=g, dtype=torch.float64)
    return (x * 10.0 ** torch.randint(-2, 2, shape, generator=g)).to(dtype)


def ties(shape, dtype, seed=0):
    """Few distinct values, both zeros among them."""
    x = torch.randint(-2, 3, (shape,) if isinstance(shape, int) else tuple(shape), generator=generator(seed))
    if not dtype.is_floating_point:
        return x.abs().to(dtype)
    return torch.where(x == -2, -0.0, x.double()).to(dtype)


def hostile(shape, dtype, seed=0, nans=True):
    """values with zeros of both signs, subnormals, the greatest finite value, and, now and then, inf and NaN."""
    x = values(shape, dtype, seed)
    if not dtype.is_floating_point:
        return x
    info, g = torch.finfo(dtype), generator(seed + 1)
    u = torch.rand(x.shape, generator=g)
    special = [(0.1, -0.0), (0.15, 0.0), (0.2, info.smallest_normal / 4), (0.22, info.max / 2), (0.24, -info.max / 2)]
    if nans:
        special += [(0.2403, float("inf")), (0.2405, float("-inf")), (0.2407, float("nan"))]
    lower = 0.0
    for upper, value in special:
        x = torch.where((u >= lower) & (u < upper), torch.tensor(value, dtype=dtype), x)
        lower = upper
    return x


# ---- strides: the same values, laid out otherwise --------------------------------------------------------------------


def contiguous(x):
    return x.clone(memory_format=torch.contiguous_format)


def transposed(x):
    """Every dim's stride in reverse order."""
    order = tuple(reversed(range(x.dim())))
    return x.permute(order).clone(memory_format=torch.contiguous_format).permute(order)


def sliced(x):
    """Every second element of every dim of a larger tensor, from the second on."""
    big = torch.zeros([2 * n + 1 for n in x.shape], dtype=x.dtype, device=x.device)
    view = big[tuple(slice(1, 2 * n, 2) for n in x.shape)]
    return view.copy_(x)


def misaligned(x):
    """Contiguous, one element after an aligned address."""
    return torch.zeros(x.numel() + 1, dtype=x.dtype, device=x.device)[1:].view(x.shape).copy_(x)


def padded(x):
    """Rows of the last dim apart by an odd number of elements more than they are long."""
    if x.dim() == 0:
        return misaligned(x)
    big = torch.zeros([*x.shape[:-1], x.shape[-1] + 3], dtype=x.dtype, device=x.device)
    return big[..., 2:-1].copy_(x)


def channels_last(x):
    """The second dim fastest, as images are kept."""
    if x.dim() < 3:
        return transposed(x)
    return x.movedim(1, -1).clone(memory_format=torch.contiguous_format).movedim(-1, 1)


LAYOUTS = {f.__name__: f for f in (contiguous, transposed, sliced, misaligned, padded, channels_last)}


# ---- random calls ----------------------------------------------------------------------------------------------------


def needed(name, dtype):
    """The options without which a function refuses a dtype."""
    assert serves(name, dtype)
    return {} if dtype in ROWS[name].inputs else {"dtype": torch.float32}


@dataclass
class Call:
    """One call of a public function on given values in a given layout."""

    name: str
    x: torch.Tensor
    layout: str
    options: dict = field(default_factory=dict)

    def __str__(self):
        return f"{self.name}({self.x.dtype} {tuple(self.x.shape)} {self.layout}, {self.options})"

    def input(self, device="cpu"):
        return LAYOUTS[self.layout](self.x.to(device))


def random_shape(r, elements, at_least):
    """1 to 4 dims with about `elements` elements, most of them in a dim or two."""
    shape = [1] * r.randint(1, 4)
    budget = max(1, int(elements * 2 ** r.uniform(-1, 1)))
    order = r.sample(range(len(shape)), len(shape))
    for d in order:
        share = 1 if d == order[-1] else r.choice((0.1, 0.5, 0.9))
        shape[d] = max(1, int(budget**share) + r.choice((-1, 0, 0, 1)))
        budget = max(1, budget // shape[d])
    while math.prod(shape) <= at_least:
        shape[r.randrange(len(shape))] *= 2
    return shape


def random_call(seed, elements, at_least=0):
    """A call of some function over about `elements` elements, more than at_least, all drawn from the seed."""
    r = random.Random(seed)
    name, dtype = r.choice(EVERY)
    shape = random_shape(r, elements, at_least)
    dims = len(shape)
    make = r.choice((values, values, ties, hostile))
    if ROWS[name].kind == "scan":
        options = {"dim": r.randrange(-dims, dims), **r.choice(scan_options(name))}
    else:
        chosen = r.sample(range(dims), r.randint(1, dims))
        options = {"dim": r.choice((chosen[0], chosen[0], tuple(chosen), None)), "keepdim": r.random() < 0.3}
    if name in WITH_DTYPE and (dtype not in ROWS[name].inputs or r.random() < 0.3):
        options["dtype"] = r.choice(results_of(name, dtype))
    return Call(name, make(shape, dtype, seed), r.choice(list(LAYOUTS)), options)
