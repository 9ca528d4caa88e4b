"""The grid: which ops on which shapes, by part."""

import itertools
from collections.abc import Iterator

from .bars import BARS, OTHERS, N, rows
from .cases import Case
from .channels import of_channels
from .rowwise import RowwiseCase

HALF = ("bfloat16", "float16")
FLOATS = ("float32", *HALF)
PARTS = {
    "reduce-rows": "sum, amax and argmax of rows: of any length, unaligned, and of few rows",
    "reduce-columns": "sum, amax and argmax of columns and middle dims, for any number of columns",
    "reduce-views": "sum and amax of views: over dims that are not adjacent, of permuted tensors, of windows",
    "reduce-ops": "other reductions of floats, and sums of integers, over rows, columns and all dims",
    "reduce": "sum, mean, amax and argmax of a few shapes",
    "scan-1d": "cumsum of one row: offsets, directions, other dtypes and sizes",
    "scan-rows": "cumsum along the last dim",
    "scan-columns": "cumsum along other dims",
    "scan-few": "cumsum of 2 to 7 columns, not aligned to 16 bytes, from either end and exclusive",
    "scan-ops": "the other scans on some of cumsum's shapes",
    "linear": "linear_scan",
    "rowwise": "row-wise ops: softmax, norms, cross-entropy and variances, forward and backward",
    "channels": "batch norms of ResNet-50, group norms of a diffusion U-Net, instance norms, forward and backward",
    "small": "short calls, replayed from a CUDA graph",
    "compile": "a few cases, compared with torch.compile too",
}
UNDRAWN = ("reduce-views", "reduce-ops", "rowwise", "channels")  # parts whose shapes make no picture


def _dtypes(part: str, quick: bool) -> tuple[str, ...]:
    return FLOATS[:2] if quick or part.startswith(("small", "reduce", "compile")) else FLOATS


def cases(part: str, quick: bool = False) -> Iterator[Case]:
    """Of one part; quick: float32 and bfloat16 alone."""
    dtypes = _dtypes(part, quick)
    kind = RowwiseCase if part == "rowwise" else Case
    for dtype in dtypes:
        for bar in BARS:
            if bar.part == part:
                yield from (kind(part, bar.op, dtype, shape, bar.dim, f) for shape in bar.shapes for f in bar.forms)
    if part == "channels":
        yield from of_channels(dtypes)
    if part == "rowwise":
        sampled = itertools.product(dtypes, ("softmax", "log_softmax"), (1, 8, 64))
        yield from (kind(part, op, dtype, (n, 151_936), 1) for dtype, op, n in sampled)
    extra = {
        "scan-1d": _one_row, "scan-rows": _more_rows, "scan-columns": _short_columns, "scan-few": _few_columns,
        "small": _small, "reduce": _reduce,
        "reduce-rows": _reduce_rows, "reduce-columns": _reduce_columns, "reduce-views": _reduce_views,
        "reduce-ops": _reduce_ops, "compile": _compile,
    }  # fmt: skip
    yield from extra.get(part, lambda dtypes: ())(dtypes)


def _one_row(dtypes: tuple[str, ...]) -> Iterator[Case]:
    for dtype in dtypes:
        yield from (Case("scan-1d", "cumsum", dtype, (N,), 0, form) for form in ("reverse", "exclusive"))
    for dtype in dtypes[:2]:
        yield from (Case("scan-1d", "cumsum", dtype, (2**e,), 0) for e in (22, 24, 26, 27, 29, 30))
    if dtypes == FLOATS:
        yield from (Case("scan-1d", "cumsum", dtype, (N,), 0) for dtype in ("int32", "float64"))


def _more_rows(dtypes: tuple[str, ...]) -> Iterator[Case]:
    for dtype in dtypes:  # little longer than a block tile
        yield from (Case("scan-rows", "cumsum", dtype, (N // length, length), 1) for length in (8193, 10000, 10001))
    for dtype in dtypes[:2]:
        yield from (Case("scan-rows", "cumsum", dtype, rows(1024)[0], 1, form) for form in ("reverse", "exclusive"))
        yield Case("scan-rows", "cumsum", dtype, (16384, 16384), 1, "transposed")


def _short_columns(dtypes: tuple[str, ...]) -> Iterator[Case]:
    for dtype in dtypes:  # which begin anywhere, but for the last
        yield from (Case("scan-columns", "cumsum", dtype, (n, N // n // 2 * 2 - 1), 0) for n in (10, 20, 30, 100))
        yield Case("scan-columns", "cumsum", dtype, (20, N // 20 // 8 * 8), 0)


def _few_columns(dtypes: tuple[str, ...]) -> Iterator[Case]:
    for dtype in dtypes:
        for columns in range(2, 8):
            shape = (N // columns // 8 * 8 - 7, columns)
            yield from (Case("scan-few", "cumsum", dtype, shape, 0, form) for form in ("", "reverse", "exclusive"))


def _small(dtypes: tuple[str, ...]) -> Iterator[Case]:
    batches = ((1, 4096), (8, 32000), (8, 151936), (128, 4096), (128, 151936))
    for dtype in dtypes:
        for op in ("cumsum", "sum", "argmax"):
            yield from (Case("small", op, dtype, (2**e,), 0) for e in (10, 14, 17, 20, 22, 24))
            yield from (Case("small", op, dtype, shape, 1) for shape in batches)


def _reduce(dtypes: tuple[str, ...]) -> Iterator[Case]:
    shapes = ((N,), (16384, 16384), (N // 16, 16), (1024, 512, 512))
    for dtype in dtypes:
        for op in ("sum", "mean", "amax", "argmax"):
            yield from (Case("reduce", op, dtype, shape, dim) for shape in shapes for dim in range(len(shape)))


REDUCED = ("sum", "amax", "argmax")


def _reduce_rows(dtypes: tuple[str, ...]) -> Iterator[Case]:
    lengths = (2, 3, 5, 7, 8, 16, 24, 32, 63, 64, 100, 128, 200, 255, 256, 300, 301, 512, 1000, 1024, 2048, 4096, 4097,
               10_000, 16_384, 50_257, 151_936, 2**20)  # fmt: skip
    for dtype in dtypes:
        for op in REDUCED:
            yield from (Case("reduce-rows", op, dtype, (N // n, n), 1) for n in lengths)
            yield from (Case("reduce-rows", op, dtype, (N // n, n), 1, "in+1 out+0") for n in (64, 1024, 2**20))
            yield Case("reduce-rows", op, dtype, (N,), 0)
        for op in ("sum", "argmax"):
            batches = itertools.product((1, 16, 128), (1024, 32_000, 151_936))
            yield from (Case("reduce-rows", op, dtype, shape, 1) for shape in batches)


def _reduce_columns(dtypes: tuple[str, ...]) -> Iterator[Case]:
    lengths = (2, 3, 7, 16, 100, 300, 1000, 5000, 16_384, 65_536, 250_000, 2**20)
    for dtype in dtypes:
        for op in REDUCED:
            yield from (Case("reduce-columns", op, dtype, (n, N // n // 8 * 8), 0) for n in lengths)
            yield from (Case("reduce-columns", op, dtype, (N // c, c), 0) for c in (2, 3, 7, 32, 100, 267, 1024))
            middle = ((64, 2048, 2048), (4000, 67, 1001), (40_000, 100, 67), (3000, 300, 298))
            yield from (Case("reduce-columns", op, dtype, shape, 1) for shape in middle)
        for op in ("sum", "argmax"):  # of rows whose neighbours are not neighbours in memory
            turned = ((16_384, 16_384), (64, 2**22), (1001, 268_167), (53_687, 5000), (2**22, 64))
            yield from (Case("reduce-columns", op, dtype, shape, 0, "transposed all dims") for shape in turned)


def _reduce_views(dtypes: tuple[str, ...]) -> Iterator[Case]:
    views = (
        # (batch, heads, time, features): the gradient of what is added to all positions
        ((64, 32, 2048, 64), 0, "over 0 2"), ((64, 16, 2048, 128), 0, "over 0 2"), ((64, 256, 512, 32), 0, "over 0 2"),
        ((64, 56, 777, 96), 0, "over 0 2"), ((64, 16, 512, 512), 0, "over 0 2"),
        ((64, 16, 2048, 128), 0, "permuted 0 2 1 3 over 0 1"), ((64, 16, 2048, 128), 3, "permuted 0 2 1 3"),
        ((64, 16, 2048, 128), 2, "permuted 0 2 1 3"), ((512, 1024, 512), 0, "permuted 2 1 0"),
        ((512, 1024, 512), 0, "permuted 1 2 0 over 0 2"), ((256, 64, 128, 128), 0, "over 0 2 3"),
        ((10_700, 512, 7, 7), 0, "over 0 2 3"), ((2**20, 64), 0, "of 256"), ((2**22, 8), 0, "of 16"),
        ((2**20, 64), 1, "of 256"),
    )  # fmt: skip
    for dtype in dtypes:
        for op in ("sum", "amax"):
            yield from (Case("reduce-views", op, dtype, *view) for view in views)


def _reduce_ops(dtypes: tuple[str, ...]) -> Iterator[Case]:
    shapes = (((N // 1024, 1024), 1), ((N // 64, 64), 1), ((65536, 4096), 0), ((N,), 0))
    for dtype in dtypes:
        for op in ("mean", *OTHERS, "all", "aminmax", "nanmean"):
            yield from (Case("reduce-ops", op, dtype, shape, dim) for shape, dim in shapes)
    for op in ("sum", "max"):
        yield Case("reduce-ops", op, "int32", (2**31,), 0, "all dims")
    for dtype in ("bool", "int8", "int32", "int64"):
        yield from (Case("reduce-ops", "sum", dtype, shape, dim) for shape, dim in shapes)


def _compile(dtypes: tuple[str, ...]) -> Iterator[Case]:
    yield Case("compile", "cumsum", "float32", (N,), 0)
    yield Case("compile", "cumsum", "bfloat16", rows(1024)[0], 1)
    yield Case("compile", "cumsum", "float32", (16384, 16384), 0)
    yield Case("compile", "linear_scan", "float32", (8, 4096, 4096), 1)
    yield Case("compile", "sum", "float32", (16384, 16384), 0)
    yield Case("compile", "argmax", "bfloat16", (16384, 16384), 1)
