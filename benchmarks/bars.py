"""What torchreduce has to reach on a GPU: the table that the grid is made from and that `compare --check` judges by.

A bar and a goal are fractions of what a plain device copy (of reductions: the fastest plain read) of the same number
of bytes reaches in the same run. Bytes are each input once and each result once, indices too. The bars hold for
torchreduce at its default level. Scans have them by shape, and the grid is made from those; reductions by regime, for
any shape.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

N = 2**28  # elements of a case, about

Shape = tuple[int, ...]
Pair = tuple[float, float]  # bar, goal


@dataclass(frozen=True)
class Bar:
    part: str  # of the run
    op: str
    shapes: tuple[Shape, ...]
    dim: int
    float32: Pair
    half: Pair  # bfloat16 and float16
    forms: tuple[str, ...] = ("",)  # see cases.py

    def pair(self, dtype: str) -> Pair | None:
        return {"float32": self.float32, "bfloat16": self.half, "float16": self.half}.get(dtype)


def rows(*lengths: int) -> tuple[Shape, ...]:
    """About N elements in rows of each length."""
    return tuple((N // n, n) for n in lengths)


OFFSETS = ("in+1 out+1", "in+0 out+1", "in+3 out+2")
FEW_COLUMNS = ((2**24, 16), (38347922, 7), (2**23, 32), (2**22, 64))
ALIGNED_COLUMNS = ((1024, 262144), (16384, 16384), (262144, 1024), (2**20, 256), (65536, 4096))

CUMSUM = (
    #                                                                            float32       bfloat16, float16
    Bar("scan-1d", "cumsum", ((N,),), 0, (0.95, 0.97), (0.94, 0.97)),
    Bar("scan-1d", "cumsum", ((N + 3,),), 0, (0.95, 0.97), (0.90, 0.95), OFFSETS),
    Bar("scan-rows", "cumsum", rows(16, 64, 256, 1024, 4096), 1, (0.93, 0.97), (0.93, 0.98)),
    Bar("scan-rows", "cumsum", rows(3, 7, 100, 1001), 1, (0.85, 0.95), (0.80, 0.93)),
    Bar("scan-rows", "cumsum", rows(50257, 2**20), 1, (0.90, 0.96), (0.86, 0.94)),
    Bar("scan-rows", "cumsum", ((16, 2**24),), 1, (0.92, 0.96), (0.90, 0.95)),
    Bar("scan-rows", "cumsum", ((3, 89478485), (64, 4194305)), 1, (0.91, 0.96), (0.86, 0.93)),
    Bar("scan-columns", "cumsum", ALIGNED_COLUMNS, 0, (0.87, 0.94), (0.80, 0.92)),
    Bar("scan-columns", "cumsum", ((64, 2048, 2048),), 1, (0.87, 0.94), (0.80, 0.92)),
    Bar("scan-columns", "cumsum", FEW_COLUMNS, 0, (0.78, 0.92), (0.66, 0.88)),
    Bar("scan-columns", "cumsum", ((2**27, 2), (89478485, 3)), 0, (0.91, 0.95), (0.75, 0.90)),
    Bar("scan-columns", "cumsum", ((50257, 5341), (2684354, 100)), 0, (0.74, 0.90), (0.58, 0.82)),
)  # fmt: skip

# The shapes of CUMSUM that the other scans are measured on.
SCANNED: tuple[tuple[Shape, int], ...] = (
    ((N,), 0), *((shape, 1) for shape in (*rows(64, 1024, 1001, 50257), (16, 2**24))),
    ((16384, 16384), 0), ((2**24, 16), 0), ((64, 2048, 2048), 1),
)  # fmt: skip


def of_cumsum(op: str, float32: Pair, half: Pair, long: Pair | None = None) -> tuple[Bar, ...]:
    """Bar and goal as fractions of cumsum's bar on the same shape. `long`: those of rows of 2**24 elements and more."""
    bars = []
    for shape, dim in SCANNED:
        own = next(bar for bar in CUMSUM if shape in bar.shapes and dim == bar.dim)
        is_long = long and dim == len(shape) - 1 and shape[dim] >= 2**24
        single, halves = (long, long) if is_long else (float32, half)
        scaled = (tuple(round(f * own.float32[0], 4) for f in single), tuple(round(f * own.half[0], 4) for f in halves))
        bars.append(Bar("scan-ops", op, (shape,), dim, *scaled))
    return tuple(bars)


def flat(op: str, float32: float, half: float) -> tuple[Bar, ...]:
    """One bar for every shape, and no goal beyond it."""
    return tuple(Bar("scan-ops", op, (shape,), dim, (float32,) * 2, (half,) * 2) for shape, dim in SCANNED)


LINEAR_SCAN = (
    Bar("linear", "linear_scan", rows(64, 1024, 4096), 1, (0.98, 1.04), (0.70, 0.90)),
    Bar("linear", "linear_scan", ((N,),), 0, (0.85, 0.95), (0.65, 0.85)),
    Bar("linear", "linear_scan", ((8, 4096, 4096),), 1, (0.85, 0.95), (0.65, 0.85)),
    Bar("linear", "linear_scan", rows(1024), 1, (0.92, 1.0), (0.52, 0.75), ("reset 200",)),
)

# Row-wise ops: softmax, norms and losses. Each tensor counts once. Fractions of a copy; of a read where the op writes
# one value a row.
ALIGNED, LONG, ODD = rows(64, 256, 1024, 4096, 8192, 16384), rows(51200, 151936), rows(50257, 8191, 1023)
LABELLED, NORMED = ((8192, 50257), (8192, 151936)), rows(768, 1024, 4096, 8192)
SIDES = tuple(
    bar
    for op in ("softmax", "log_softmax")
    for bar in (
        Bar("rowwise", op, ALIGNED, 1, (0.95, 0.98), (0.95, 0.98)),
        Bar("rowwise", op, rows(32768), 1, (0.94, 0.97), (0.94, 0.96)),
        Bar("rowwise", op, LONG, 1, (0.93, 0.97), (0.90, 0.96)),
        Bar("rowwise", op, ODD, 1, (0.88, 0.94), (0.85, 0.92)),
        Bar("rowwise", op, rows(201, 65), 1, (0.80, 0.94), (0.72, 0.92)),
        Bar("rowwise", op, ((1024, 262144), (16384, 16384)), 0, (0.80, 0.92), (0.72, 0.88)),
        Bar("rowwise", op, ((64, 2048, 2048),), 1, (0.80, 0.92), (0.72, 0.88)),
        Bar("rowwise", op, ((1000, 268435), (16384, 16383)), 0, (0.70, 0.92), (0.60, 0.88)),
    )
)
ROWWISE = (
    *SIDES,
    Bar("rowwise", "softmax backward", (*ALIGNED, *LONG), 1, (0.93, 0.97), (0.92, 0.96)),
    Bar("rowwise", "log_softmax backward", (*ALIGNED, *LONG), 1, (0.92, 0.97), (0.88, 0.96)),
    Bar("rowwise", "cross_entropy", LABELLED, 1, (0.88, 0.95), (0.65, 0.80)),
    Bar("rowwise", "cross_entropy backward", LABELLED, 1, (0.90, 0.95), (0.85, 0.93)),
    Bar("rowwise", "rms_norm", NORMED, 1, (0.95, 0.99), (0.95, 0.99)),
    Bar("rowwise", "layer_norm", NORMED, 1, (0.95, 0.99), (0.95, 0.99)),
    Bar("rowwise", "rms_norm backward", ((16384, 4096), (65536, 1024)), 1, (0.85, 0.93), (0.80, 0.92)),
    Bar("rowwise", "layer_norm backward", ((16384, 4096), (65536, 1024)), 1, (0.85, 0.93), (0.80, 0.92)),
    Bar("rowwise", "logsumexp", rows(1024, 4096, 65536), 1, (0.88, 0.96), (0.60, 0.75)),
    Bar("rowwise", "var", rows(1024, 4096, 65536), 1, (0.92, 0.96), (0.85, 0.94)),
)

BARS = (
    *CUMSUM,
    *of_cumsum("cummax", (0.93, 1.0), (0.93, 1.0), long=(0.69, 1.0)),
    *of_cumsum("cummin", (0.93, 1.0), (0.93, 1.0), long=(0.69, 1.0)),
    *of_cumsum("cumprod", (0.90, 1.0), (0.85, 0.95)),
    *flat("logcumsumexp", 0.5, 0.25),
    *LINEAR_SCAN,
    *ROWWISE,
)

# cumsum's other directions, as times over plain cumsum's on the same shape.
DIRECTIONS = 1.03
# torchreduce's time over that of the best other provider in the same run, from PEERS_FROM elements; of reductions, too.
PEERS = 1.03
PEERS_FROM = 2**22
# The median over all scans from there of the best other provider's time over torchreduce's.
MEDIAN_SPEEDUP = 1.3
# The geometric mean over row-wise ops from there of torch's time over torchreduce's.
ROWWISE_SPEEDUP = 1.3
# 1-D cumsum's time over CUB's, by elements, and from SMALL_FASTER_FROM.
SMALL = {2**10: 1.25, 2**20: 1.25, 2**14: 1.6, 2**17: 1.6}
SMALL_FASTER_FROM = 2**22

# ---- reductions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reduced:
    """A reduction over one dim as (outer, n, inner): n elements, `inner` apart in memory, are combined."""

    outer: int
    n: int
    inner: int
    item: int  # bytes of an element
    off: bool  # the input begins one element past an allocation

    @property
    def whole(self) -> bool:
        """Rows of `inner` elements are whole 16 bytes."""
        return self.inner * self.item % 16 == 0


@dataclass(frozen=True)
class Regime:
    name: str
    ops: tuple[str, ...]
    holds: Callable[[Reduced], bool]
    pairs: dict[str, Pair]  # by dtype


def pairs(float32: Pair, half: Pair) -> dict[str, Pair]:
    return {"float32": float32, "bfloat16": half, "float16": half}


VALUES = ("sum", "mean", "amax", "amin")
INDEXED = ("argmax", "argmin", "max", "min")  # over one dim: values and indices, or indices alone
OTHERS = ("prod", "vector_norm", "nansum", "any", "count_nonzero")
SOME_HUNDRED = 512  # columns
SIZES = {"float32": 4, "bfloat16": 2, "float16": 2, "int32": 4, "int8": 1, "bool": 1}


def is_row(r: Reduced) -> bool:
    return r.inner == 1 and not r.off


def is_column(r: Reduced) -> bool:
    return r.inner > 1 and not r.off


def is_tall_or_long(r: Reduced) -> bool:
    """2 to some hundred columns, tall; or few long ones."""
    return is_column(r) and (r.n <= 16 or (r.n >= 1024 and r.inner <= SOME_HUNDRED))


# Of about N elements or more. The first that holds counts.
REGIMES = (
    #                                                                       float32       bfloat16, float16
    Regime("rows one element off, of 1024 and more", ("sum",), lambda r: r.off and r.inner == 1 and r.n >= 1024,
           pairs((0.92, 0.96), (0.86, 0.93))),
    Regime("rows one element off, of 64 to 1023", ("sum",), lambda r: r.off and r.inner == 1 and 64 <= r.n < 1024,
           pairs((0.80, 0.92), (0.75, 0.88))),
    Regime("rows of 256 and more", VALUES, lambda r: is_row(r) and r.n >= 256, pairs((0.94, 0.98), (0.90, 0.96))),
    Regime("rows of 2 to 255", VALUES, lambda r: is_row(r) and 2 <= r.n < 256, pairs((0.90, 0.96), (0.80, 0.95))),
    Regime("indices, rows of 64 and more", INDEXED, lambda r: is_row(r) and r.n >= 64,
           pairs((0.92, 0.97), (0.84, 0.93))),
    Regime("indices, rows of 2 to 63", INDEXED, lambda r: is_row(r) and 2 <= r.n < 64,
           pairs((0.90, 0.95), (0.88, 0.95))),
    Regime("few columns, tall; few long ones", VALUES, is_tall_or_long, pairs((0.92, 0.96), (0.88, 0.95))),
    Regime("indices, few columns, tall; few long ones", INDEXED, is_tall_or_long, pairs((0.89, 0.96), (0.79, 0.95))),
    Regime("columns, whole 16 bytes", VALUES, lambda r: is_column(r) and r.whole, pairs((0.87, 0.95), (0.82, 0.93))),
    Regime("indices, columns, whole 16 bytes", INDEXED, lambda r: is_column(r) and r.whole,
           pairs((0.86, 0.95), (0.81, 0.93))),
    Regime("columns, any other", VALUES, is_column, pairs((0.84, 0.92), (0.74, 0.88))),
    Regime("indices, columns, any other", INDEXED, is_column, pairs((0.82, 0.92), (0.71, 0.88))),
    Regime("other ops, rows of 1024 and columns of 65536x4096", OTHERS,
           lambda r: (is_row(r) and r.n == 1024) or (r.n, r.inner) == (65536, 4096), pairs((0.90, 0.96), (0.80, 0.92))),
    Regime("all of 2^31 int32", ("sum", "max"), lambda r: r.n >= 2**31, {"int32": (0.92, 0.92)}),
    Regime("sums of bytes", ("sum",), lambda r: not r.off, {"bool": (0.80, 0.80), "int8": (0.80, 0.80)}),
)  # fmt: skip


def reduced(dtype: str, shape: Shape, dim: int, form: str) -> Reduced | None:
    """None for forms and dtypes that no regime is about, and for fewer elements than about N."""
    if prod(shape) < 0.99 * N or form not in ("", "in+1 out+0", "all dims") or dtype not in SIZES:
        return None
    return Reduced(prod(shape[:dim]), shape[dim], prod(shape[dim + 1 :]), SIZES[dtype], form == "in+1 out+0")


def regime_of(op: str, dtype: str, shape: Shape, dim: int, form: str) -> Regime | None:
    r = reduced(dtype, shape, dim, form)
    fitting = (regime for regime in REGIMES if r and op in regime.ops and dtype in regime.pairs and regime.holds(r))
    return next(fitting, None)


def floor_of(op: str, dtype: str, shape: Shape, dim: int, form: str) -> float | None:
    """What no reduction of floats may be under, whatever its regime."""
    turned = form == "transposed all dims"
    view = form.startswith(("permuted", "over"))
    r = reduced(dtype, shape, dim, "" if turned or view else form)
    if not r or r.item == 1 or op not in (*VALUES, *INDEXED, *OTHERS):
        return None
    if turned:  # the rows of memory are shape[0] elements
        return 0.55 if r.item == 2 and shape[0] * r.item % 16 else 0.70
    if view:
        return 0.55 if r.item == 2 and shape[-1] * r.item % 16 else 0.70
    return 0.55 if r.item == 2 and 1 < r.inner <= SOME_HUNDRED and not r.whole else 0.70


def is_small_batch(shape: Shape, dim: int) -> bool:
    return len(shape) == 2 and dim == 1 and shape[0] <= 128 and 1024 <= shape[1] <= 151_936


# Reductions in the part of short calls, of one dim: torchreduce's time over CUB's.
SHORT_REDUCTIONS = 1.25
# Rows of a small batch: torchreduce's time over that of the best other provider.
SMALL_BATCH = 1.0
# The geometric mean over all reductions from PEERS_FROM elements of the best other provider's time over torchreduce's.
REDUCTIONS_SPEEDUP = 1.4

# ---- all -------------------------------------------------------------------------------------------------------------


def pair_of(op: str, dtype: str, shape: Shape, dim: int, form: str) -> Pair | None:
    """The bar and the goal of a case; None where it has none."""
    for bar in BARS:
        if op == bar.op and shape in bar.shapes and dim == bar.dim and form in bar.forms:
            return bar.pair(dtype)
    regime = regime_of(op, dtype, shape, dim, form)
    return regime.pairs[dtype] if regime else None
