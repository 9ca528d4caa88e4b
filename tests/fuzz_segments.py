"""Every public function of segments and every scatter, on inputs drawn at random: the GPU's bits beside the CPU's, and
the CPU's results beside torch's in float64, within the contract's bounds.

    python tests/fuzz_segments.py [--comparisons 100000] [--seconds 95] [--seed 0] [--device cuda] [--only REGEX]

A comparison is of what one segment, or one place of a scatter, comes to in one column. Of each function there are so
many, or what the seconds allow. Crossed: segments that were made on one device are used on the other. Without a GPU the
bits are compared with those of one thread.
"""

import argparse
import math
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
import torchreduce as tr
from torchreduce.segmented import Segments

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
Move = Callable[[Any], Any]


@dataclass
class Draw:
    """Rows x of (n, columns), and the segment of each. Offsets, where the index is sorted and the segments are to be
    given so; else by tr.segments."""

    dtype: torch.dtype
    x: Tensor
    factors: Tensor  # from 0.5 to 1, now and then 0
    index: Tensor
    size: int
    own: Tensor  # what a scatter goes into, (size, columns)
    offsets: Tensor | None
    reverse: bool
    include_self: bool

    @property
    def wide(self) -> Tensor:
        return self.x.double()

    @property
    def where(self) -> Tensor:
        return self.index[:, None].expand_as(self.x)

    @property
    def counts(self) -> Tensor:
        return torch.bincount(self.index, minlength=self.size)[:, None].expand(self.size, self.x.shape[1])

    def segments(self, move: Move) -> Any:
        if self.offsets is not None:
            return move(self.offsets)
        return tr.segments(move(self.index), self.size)

    def by_segment(self, x: Tensor, reduce: str, fill: float) -> Tensor:
        return torch.full((self.size, x.shape[1]), fill, dtype=torch.float64).scatter_reduce(
            0, self.where, x, reduce, include_self=True
        )

    def bound(self, magnitudes: Tensor, out: Tensor, factor: float = 1) -> Tensor:
        """Of a sum: the contract's error, that of torch in float64, and half an ulp of the result's dtype."""
        n = max(2, self.x.shape[0])
        eps = 2.0**-53 if self.dtype is torch.float64 else 2.0**-24
        half = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}.get(self.dtype, eps)
        tiny = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133}.get(self.dtype, 2.0**-149)
        judge = (n + 64) * 2.0**-53 * magnitudes
        return factor * (18 + math.log2(n)) * eps * magnitudes + 2 * half * out.abs() + tiny + judge


class Drawing:
    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def integer(self, low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=self.generator))

    def pick(self, values: Any) -> Any:
        return values[self.integer(0, len(values) - 1)]

    def floats(self, shape: tuple[int, ...], dtype: torch.dtype, positive: bool = False) -> Tensor:
        x = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        return (x.abs() if positive else x).to(dtype)

    def index(self, n: int, size: int) -> Tensor:
        """Even, or of a few numbers often, or half of one."""
        kind = self.pick(("even", "even", "power", "hot"))
        draw = torch.rand(n, generator=self.generator, dtype=torch.float64)
        index = ((draw ** (4 if kind == "power" else 1)) * size).long().clamp_(0, size - 1)
        if kind == "hot":
            index[torch.rand(n, generator=self.generator) < 0.5] = self.integer(0, size - 1)
        return index

    def draw(self) -> Draw:
        n, columns = self.pick((0, 1, 40, 300, 2500, 9000, 20000)), self.pick((1, 1, 2, 3, 4, 8, 11))
        mean = self.pick((0.5, 3, 16, 64, 300, 3000))
        size = max(1, int(n / mean))
        dtype, positive = self.pick(FLOATS), self.integer(0, 3) == 0
        index = self.index(n, size)
        by_offsets = self.integer(0, 2) > 0
        if by_offsets or self.integer(0, 1):
            index = index.sort().values
        offsets = torch.nn.functional.pad(torch.bincount(index, minlength=size).cumsum(0), (1, 0))
        if self.integer(0, 1):
            offsets = offsets.int()
        factors = torch.rand((n, columns), generator=self.generator, dtype=torch.float64) / 2 + 0.5
        factors[torch.rand((n, columns), generator=self.generator) < 0.01] = 0
        return Draw(
            dtype, self.floats((n, columns), dtype, positive), factors.to(dtype), index, size,
            self.floats((size, columns), dtype, positive), offsets if by_offsets else None,
            bool(self.integer(0, 1)), bool(self.integer(0, 1)),
        )  # fmt: skip


# ---- functions: a call on a device, and what torch has in float64, with what may be between -------------------------


@dataclass
class Case:
    call: Callable[[Move], Any]
    wanted: Callable[[], tuple[Tensor, Tensor | float]]
    each: int  # comparisons


def reductions(name: str, d: Draw) -> Case:
    product = name == "prod"
    x = d.factors if product else d.x
    x = x.masked_fill(x == 0, 1) if product else x

    def call(move: Move) -> Any:
        return getattr(tr, name)(move(x), 0, segments=d.segments(move))

    def wanted() -> tuple[Tensor, Tensor | float]:
        counts = d.counts
        if product:
            out = d.by_segment(x.double(), "prod", 1)
            return out, d.bound(out.abs(), out, 4) + counts * 2.0**-23 * out.abs() * (d.dtype is not torch.float64)
        if name in ("sum", "mean"):
            total, magnitudes = d.by_segment(d.wide, "sum", 0), d.by_segment(d.wide.abs(), "sum", 0)
            if name == "mean":
                total, magnitudes = total / counts, magnitudes / counts.clamp(min=1)
            return total, d.bound(magnitudes, total)
        least = name in ("amin", "min", "argmin")
        out = d.by_segment(d.wide, "amin" if least else "amax", math.inf if least else -math.inf)
        if not name.startswith("arg"):
            return out, 0
        # The place, within its segment, of the first element that is the extreme.
        n = d.x.shape[0]
        order = torch.argsort(d.index, stable=True)
        starts = torch.nn.functional.pad(torch.bincount(d.index, minlength=d.size).cumsum(0), (1, 0))[:-1]
        rank = torch.empty(n, dtype=torch.int64)
        rank[order] = torch.arange(n) - starts[d.index[order]]
        found = torch.where(d.wide == out[d.index], rank[:, None].double(), math.inf)
        return d.by_segment(found, "amin", math.inf).masked_fill_(counts == 0, -1), 0

    return Case(call, wanted, d.size * d.x.shape[1])


def rowwise(name: str, d: Draw) -> Case:
    def call(move: Move) -> Any:
        return getattr(tr, name)(move(d.x), 0, segments=d.segments(move))

    def wanted() -> tuple[Tensor, Tensor | float]:
        m = d.by_segment(d.wide, "amax", -math.inf)
        terms = (d.wide - m[d.index]).exp()
        s = d.by_segment(terms, "sum", 0)
        if name == "softmax":
            out = terms / s[d.index]
            return out, d.bound(out, out, 2)
        if name == "logsumexp":
            out = torch.where(d.counts == 0, -math.inf, m + s.log())
            scale = torch.where(d.counts == 0, 0.0, m.abs() + s.log().abs() + 1)
            return out, d.bound(scale, scale)
        out = (d.wide - m[d.index]) - s.log()[d.index]
        scale = d.wide.abs() + m.abs()[d.index] + s.log().abs()[d.index] + 1
        return out, d.bound(scale, out)

    return Case(call, wanted, d.size * d.x.shape[1])


def recurrence(d: Draw, a: Tensor, b: Tensor, initial: Tensor | None) -> Tensor:
    """h = a * h + b along each segment, in float64: runs are joined to those before them, twice as long each time."""
    order = torch.argsort(d.index, stable=True)
    order = order.flip(0) if d.reverse else order
    number = d.index[order]
    begins = torch.ones(len(order), dtype=torch.bool)
    begins[1:] = number[1:] != number[:-1]
    a, b = a[order].clone(), b[order].clone()
    if initial is not None:
        b[begins] += a[begins] * initial[number[begins]]
    a[begins] = 0
    step = 1
    while step < len(order):
        b[step:] += a[step:] * b[:-step].clone()
        a[step:] *= a[:-step].clone()
        step *= 2
    h = torch.empty_like(b)
    h[order] = b
    return h


def scans(name: str, d: Draw) -> Case:
    initial = d.own if name == "linear_scan" and d.include_self else None

    def call(move: Move) -> Any:
        if name == "cumsum":
            return tr.cumsum(move(d.x), 0, segments=d.segments(move), reverse=d.reverse)
        start = None if initial is None else move(initial)
        return tr.linear_scan(
            move(d.factors), move(d.x), 0, segments=d.segments(move), reverse=d.reverse, initial=start
        )

    def wanted() -> tuple[Tensor, Tensor | float]:
        a = torch.ones_like(d.wide) if name == "cumsum" else d.factors.double()
        start = None if initial is None else initial.double()
        out = recurrence(d, a, d.wide, start)
        return out, d.bound(recurrence(d, a, d.wide.abs(), None if start is None else start.abs()), out, 2)

    return Case(call, wanted, d.size * d.x.shape[1])


def scatters(name: str, d: Draw) -> Case:
    function, _, reduce = name.partition(" ")
    product = reduce == "prod"
    src = d.factors.masked_fill(d.factors == 0, 1) if product else d.x
    alpha = 0.5 if d.reverse else 1.0
    include = d.include_self or function in ("index_add", "scatter_add", "index_put")

    def call(move: Move) -> Any:
        own, index, values = move(d.own), move(d.index), move(src)
        if function == "index_add":
            return tr.index_add(own, 0, index, values, alpha=alpha)
        if function == "scatter_add":
            return tr.scatter_add(own, 0, move(d.where.contiguous()), values)
        if function == "index_put":
            return tr.index_put(own, (index,), values, accumulate=True)
        if function == "index_reduce":
            return tr.index_reduce(own, 0, index, values, reduce, include_self=include)
        return tr.scatter_reduce(own, 0, move(d.where.contiguous()), values, reduce, include_self=include)

    def wanted() -> tuple[Tensor, Tensor | float]:
        times = alpha if function == "index_add" else 1.0
        own, values, kind = d.own.double(), src.double() * times, reduce or "sum"
        out = own.scatter_reduce(0, d.where, values, kind, include_self=include)
        if kind in ("amax", "amin"):
            return out, 0
        if product:
            return out, d.bound(out.abs(), out, 4) + d.counts * 2.0**-23 * out.abs() * (d.dtype is not torch.float64)
        magnitudes = own.abs().scatter_reduce(0, d.where, values.abs(), kind, include_self=include)
        return out, d.bound(magnitudes, out)

    return Case(call, wanted, d.size * d.x.shape[1])


def bags(name: str, d: Draw) -> Case:
    """The index is that of rows of `own`; bags are of 0 to 7 of them."""
    mode = name.split()[1]
    starts = torch.arange(0, max(1, len(d.index)), 4)
    weights = d.factors[:, 0].contiguous() if mode == "sum" and d.include_self else None

    def bag(move: Move, wide: Move, of: Any = tr) -> Any:
        own, by = wide(d.own), None if weights is None else move(wide(weights))
        return of.embedding_bag(move(d.index), move(own), move(starts), mode=mode, per_sample_weights=by)

    def wanted() -> tuple[Tensor, Tensor | float]:
        of = torch.nn.functional
        out = bag(lambda t: t, lambda t: t.double(), of)
        return out, d.bound(bag(lambda t: t, lambda t: t.double().abs(), of), out) if mode != "max" else 0

    return Case(lambda move: bag(move, lambda t: t), wanted, len(starts) * d.x.shape[1])


def counts(name: str, d: Draw) -> Case:
    weights = d.x[:, 0].contiguous()

    def wanted() -> tuple[Tensor, Tensor | float]:
        out = torch.bincount(d.index, weights.double(), d.size)
        return out, d.bound(torch.bincount(d.index, weights.double().abs(), d.size), out)

    return Case(lambda move: tr.bincount(move(d.index), move(weights), d.size), wanted, d.size)


def torchs(name: str, d: Draw) -> Case:
    """segment_reduce, by lengths."""
    reduce = name.split()[1]
    case = reductions({"max": "amax", "min": "amin"}.get(reduce, reduce), d)
    lengths = torch.bincount(d.index, minlength=d.size)
    x = d.x[torch.argsort(d.index, stable=True)]
    if reduce == "prod":
        x = d.factors.masked_fill(d.factors == 0, 1)[torch.argsort(d.index, stable=True)]
    return Case(lambda move: tr.segment_reduce(move(x), reduce, lengths=move(lengths)), case.wanted, case.each)


def indices(name: str, d: Draw) -> Case:
    """tr.segments: no float64; the offsets are those of counts."""
    ends = torch.bincount(d.index, minlength=d.size).cumsum(0)

    def call(move: Move) -> Any:
        return tuple(tr.segments(move(d.index), d.size)[:2])

    return Case(call, lambda: (torch.nn.functional.pad(ends, (1, 0)).double(), 0), d.size)


def gradients(name: str, d: Draw) -> Case:
    """The bits of a gradient alone: its formula is made of functions that are compared here."""
    function = name.removesuffix("'")
    like = {"index_add": scatters, "cumsum": scans, "linear_scan": scans}.get(function)
    like = like or (reductions if function in ("sum", "mean", "prod", "amax") else rowwise)

    def call(move: Move) -> Any:
        inputs: list[Tensor] = []

        def leaf(t: Any) -> Any:
            moved = move(t)
            if isinstance(moved, Tensor) and moved.is_floating_point():
                moved = moved.detach().requires_grad_()
                inputs.append(moved)
            return moved

        out = like(function, d).call(leaf)
        g = torch.linspace(-1, 1, max(1, out.numel()), dtype=torch.float64)[: out.numel()].reshape(out.shape)
        return torch.autograd.grad(out, inputs, move(g.to(out.dtype)))

    return Case(call, lambda: (torch.empty(0), 0), d.size * d.x.shape[1])


FUNCTIONS: dict[str, Callable[[str, Draw], Case]] = {
    **dict.fromkeys(("sum", "mean", "prod", "amax", "amin", "max", "min", "argmax", "argmin"), reductions),
    **dict.fromkeys(("softmax", "log_softmax", "logsumexp"), rowwise),
    **dict.fromkeys(("cumsum", "linear_scan"), scans),
    **dict.fromkeys(("index_add", "scatter_add", "index_put"), scatters),
    **{f"scatter_reduce {reduce}": scatters for reduce in ("sum", "mean", "prod", "amax", "amin")},
    **{f"index_reduce {reduce}": scatters for reduce in ("mean", "prod", "amax", "amin")},
    **{f"embedding_bag {mode}": bags for mode in ("sum", "mean", "max")},
    **{f"segment_reduce {reduce}": torchs for reduce in ("sum", "mean", "max", "min", "prod")},
    "bincount": counts,
    "segments": indices,
    **{f"{name}'": gradients for name in ("sum", "mean", "prod", "amax", "softmax", "log_softmax", "logsumexp",
                                          "cumsum", "linear_scan", "index_add")},
}  # fmt: skip


# ---- comparisons -----------------------------------------------------------------------------------------------------


def parts(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else [t for t in result if t is not None]


def same_bits(a: Any, b: Any) -> bool:
    def numbers(t: Tensor) -> Tensor:
        return t.detach().cpu().clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)

    pairs = list(zip(parts(a), parts(b), strict=True))
    return all(
        x.dtype == y.dtype and x.shape == y.shape and torch.equal(numbers(x), numbers(y))
        for x, y in pairs
        if x.numel() or y.numel()
    )


def close(got: Tensor, wanted: Tensor, allowed: Tensor | float) -> bool:
    most = torch.finfo(got.dtype).max if got.is_floating_point() else math.inf
    value = got.detach().cpu().double()
    fine = ((value - wanted).abs() <= allowed) | (value.isinf() & (wanted.abs() > most))
    return bool((fine | (value == wanted) | (value.isnan() & wanted.isnan())).all())


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def compare(name: str, d: Draw, device: str) -> tuple[int, list[str]]:
    """How many comparisons there were, and what was wrong."""
    case = FUNCTIONS[name](name, d)
    wanted = case.call(lambda t: t)
    if device == "cpu":
        with one_thread():
            others = [case.call(lambda t: t)]
    else:
        others = [case.call(lambda t: t.to(device))]
        if d.offsets is None and name in ("sum", "softmax", "cumsum", "amax"):  # crossed
            made = Segments(*(None if t is None else t.to(device) for t in tr.segments(d.index, d.size)))
            back = Segments(*(None if t is None else t.cpu() for t in tr.segments(d.index.to(device), d.size)))
            function = getattr(tr, name)
            options = {"reverse": d.reverse} if name == "cumsum" else {}
            others += [
                function(d.x.to(device), 0, segments=made, **options),
                function(d.x, 0, segments=back, **options),
            ]
    wrong = [f"{name}: other bits" for other in others if not same_bits(wanted, other)]
    if not name.endswith("'"):
        value, allowed = case.wanted()
        if not close(parts(wanted)[0], value, allowed):
            wrong.append(f"{name}: far from torch in float64")
    by = "offsets" if d.offsets is not None else "index"
    at = f"({len(d.index)} x {d.x.shape[1]} into {d.size} by {by}, {d.dtype}, {d.reverse}, {d.include_self})"
    return case.each * len(others), [f"{message} {at}" for message in wrong]


Done = dict[str, int]


def fuzz(names: list[str], comparisons: int, seconds: float, seed: int, device: str) -> tuple[Done, list[str]]:
    drawing, done, wrong = Drawing(seed), dict.fromkeys(names, 0), []
    end = time.monotonic() + seconds
    while time.monotonic() < end and (left := [name for name in names if done[name] < comparisons]):
        d = drawing.draw()
        for name in left:
            count, found = compare(name, d, device)
            done[name] += count
            wrong += found
    return done, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--comparisons", type=int, default=100_000, help="of each function")
    parser.add_argument("--seconds", type=float, default=95)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default="", metavar="REGEX")
    args = parser.parse_args()
    names = [name for name in FUNCTIONS if re.search(args.only, name)]
    done, wrong = fuzz(names, args.comparisons, args.seconds, args.seed, args.device)
    for name, count in done.items():
        print(f"{name:24} {count:9,} comparisons{'' if count >= args.comparisons else '  (fewer than asked for)'}")
    for message in wrong[:40]:
        print("WRONG", message)
    print(f"{args.device}, seed {args.seed}: {sum(done.values()):,} comparisons, {len(wrong)} wrong")
    sys.exit(bool(wrong) or min(done.values(), default=0) < args.comparisons)


if __name__ == "__main__":
    main()
