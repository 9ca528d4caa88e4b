"""What torchreduce has to reach on a GPU: the table that the grid is made from and that `compare --check` judges by.

A bar and a goal are fractions of what a plain device copy of the same number of bytes reaches in the same run. Bytes
are each input once and each result once, indices too. The bars hold for torchreduce at its default level.
"""

from dataclasses import dataclass

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


def of_cumsum(op: str, float32: Pair, half: Pair) -> tuple[Bar, ...]:
    """Bar and goal as fractions of cumsum's bar on the same shape."""
    bars = []
    for shape, dim in SCANNED:
        own = next(bar for bar in CUMSUM if shape in bar.shapes and dim == bar.dim)
        scaled = (tuple(round(f * own.float32[0], 4) for f in float32), tuple(round(f * own.half[0], 4) for f in half))
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

BARS = (
    *CUMSUM,
    *of_cumsum("cummax", (0.93, 1.0), (0.93, 1.0)),
    *of_cumsum("cummin", (0.93, 1.0), (0.93, 1.0)),
    *of_cumsum("cumprod", (0.90, 1.0), (0.85, 0.95)),
    *flat("logcumsumexp", 0.5, 0.25),
    *LINEAR_SCAN,
)

# cumsum's other directions, as times over plain cumsum's on the same shape.
DIRECTIONS = 1.03
# torchreduce's time over that of the best other provider in the same run, from PEERS_FROM elements.
PEERS = 1.03
PEERS_FROM = 2**22
# The median over all scans from there of the best other provider's time over torchreduce's.
MEDIAN_SPEEDUP = 1.3
# 1-D cumsum's time over CUB's, by elements, and from SMALL_FASTER_FROM.
SMALL = {2**10: 1.25, 2**20: 1.25, 2**14: 1.6, 2**17: 1.6}
SMALL_FASTER_FROM = 2**22


def pair_of(op: str, dtype: str, shape: Shape, dim: int, form: str) -> Pair | None:
    """The bar and the goal of a case; None where it has none."""
    for bar in BARS:
        if op == bar.op and shape in bar.shapes and dim == bar.dim and form in bar.forms:
            return bar.pair(dtype)
    return None
