"""The grid: which op on which tensors by which providers. A case knows its inputs, its bytes and how each calls it.

Forms, beside the plain contiguous one, "":
- "reverse", "exclusive": cumsum's options
- "in+I out+O": one dim; input and result begin I and O elements past an allocation
- "transposed": two dims; the strides of a transposed tensor
- "all dims": without a dim
- "transposed all dims": two dims, all of them; the strides of a transposed tensor
- "permuted 0 2 1 3": made of a contiguous tensor by permuting its dims so; "of 256": a window, which begins rows of so
  many elements; "over 0 2": along several dims, of which dim is the first; also two of these, in this order
- "reset 200": of linear_scan, a is 0 at every 200th element
"""

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

import torchreduce as tr

from . import peers
from .bars import BARS, OTHERS, N, Shape, rows

DEVICE = "cuda"  # the tests of the framework run it on the CPU
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
SCANS = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "linear_scan")
TO_VALUES = ("logsumexp", "var", "cross_entropy")  # row-wise ops whose results are small
LEVELS = {"torchreduce": "invariant", "torchreduce fast": "fast"}
PROVIDERS = (*LEVELS, "torch", "torch.compile", "cub", "cub float32")

Inputs = tuple[torch.Tensor, ...]
Run = Callable[[Inputs], Any]


def is_copy(part: str, op: str) -> bool:
    """As much is written as read, so that the ceiling is a copy; else a read."""
    return op in SCANS or part == "channels" or (part == "rowwise" and op not in TO_VALUES)


@dataclass(frozen=True)
class Case:
    part: str
    op: str
    dtype: str
    shape: Shape
    dim: int
    form: str = ""

    @property
    def name(self) -> str:
        """What --case is matched with."""
        shape = "x".join(map(str, self.shape))
        return f"{self.op} {self.dtype} {shape} dim {self.dim}{self.form and ' ' + self.form}"

    @property
    def scans(self) -> bool:
        return self.op in SCANS

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Each input once and each result once."""
        item = getattr(torch, self.dtype).itemsize
        read = self.elements * item * (2 if self.op == "linear_scan" else 1)
        whole = self.form.endswith("all dims")
        reduced = prod(self.shape[d] for d in self.dims)
        written = self.elements if self.scans else 1 if whole else self.elements // reduced
        results = {
            "cummax": item + 8,
            "cummin": item + 8,
            "argmax": 8,
            "argmin": 8,
            "count_nonzero": 8,
            "any": 1,
            "all": 1,
            "aminmax": 2 * item,
        }
        if self.op == "sum" and not getattr(torch, self.dtype).is_floating_point:
            item = 8
        return read + written * results.get(self.op, item)

    @property
    def offsets(self) -> tuple[int, int]:
        found = re.fullmatch(r"in\+(\d+) out\+(\d+)", self.form)
        return (int(found[1]), int(found[2])) if found else (0, 0)

    @property
    def dims(self) -> tuple[int, ...]:
        """Those that are worked along."""
        return self._numbers("over") or (self.dim,)

    def _numbers(self, word: str) -> tuple[int, ...]:
        """What follows a word of the form."""
        found = re.search(rf"\b{word}((?: \d+)+)", self.form)
        return tuple(map(int, found[1].split())) if found else ()

    def inputs(self) -> Inputs:
        """Fresh and random; of products near 1, so that they stay finite."""
        dtype = getattr(torch, self.dtype)
        turned = self.form.startswith("transposed")
        order, pitch = self._numbers("permuted"), self._numbers("of")
        shape = self.shape[::-1] if turned else self.shape
        if order:
            shape = tuple(self.shape[order.index(d)] for d in range(len(order)))
        if pitch:
            shape = (*shape[:-1], *pitch)

        def random(make: Callable[..., torch.Tensor]) -> torch.Tensor:
            return make(shape, device=DEVICE, dtype=dtype)

        if dtype == torch.bool:
            return (torch.randint(2, shape, device=DEVICE, dtype=dtype),)
        if not dtype.is_floating_point:
            return (torch.randint(-100, 100, shape, device=DEVICE, dtype=dtype),)
        if self.op == "linear_scan":
            a = random(torch.rand).mul_(0.1).add_(0.9)
            if self.form == "reset 200":
                a.view(-1)[::200] = 0
            return a, random(torch.randn)
        x = random(torch.randn)
        if self.op in ("cumprod", "prod"):
            x.mul_(0.01).add_(1)
        offset = self.offsets[0]
        if offset:
            x = torch.empty(x.numel() + offset, device=DEVICE, dtype=dtype)[offset:].view(x.shape).copy_(x)
        if order:
            x = x.permute(order)
        return (x.t() if turned else x[..., : self.shape[-1]],)

    def run(self, provider: str) -> Run | None:
        """The provider's way of computing it; None where it has none."""
        if provider in LEVELS:
            return self._ours(LEVELS[provider])
        if provider == "torch":
            return self._torchs()
        if provider == "torch.compile":
            return self._compiled()
        return self._cubs(wide=provider == "cub float32")

    def _out(self) -> dict[str, torch.Tensor]:
        """out= where the case is about the result's address; else results are allocated by the call."""
        if not self.offsets[1]:
            return {}
        size = self.elements + self.offsets[1]
        return {"out": torch.empty(size, device=DEVICE, dtype=getattr(torch, self.dtype))[self.offsets[1] :]}

    def _options(self) -> dict[str, Any]:
        """Sums of int32 stay int32."""
        dtype = getattr(torch, self.dtype)
        return {} if dtype.is_floating_point or self.op != "cumsum" else {"dtype": dtype}

    def _order(self) -> tuple[int, ...]:
        return (2,) if self.op == "vector_norm" else ()

    def _ours(self, level: str) -> Run | None:
        function = getattr(tr, self.op, None)
        if function is None:
            return None
        options = {**self._options(), **self._out()}
        if self.form in ("reverse", "exclusive"):
            options[self.form] = True

        if not self.form.endswith("all dims"):
            options["dim"] = self.dims if len(self.dims) > 1 else self.dim

        def run(x: Inputs) -> Any:
            with tr.determinism(level):
                return function(*x, *self._order(), **options)

        return run

    def _torchs(self) -> Run | None:
        """What a user of torch writes."""
        if self.op == "linear_scan":
            return None
        function = torch.linalg.vector_norm if self.op == "vector_norm" else getattr(torch, self.op)
        options, dim = {**self._options(), **self._out()}, self.dims if len(self.dims) > 1 else self.dim
        if self.form.endswith("all dims"):
            return lambda x: function(*x, **options)
        if self.form == "reverse":
            return lambda x: function(x[0].flip(dim), dim, **options).flip(dim)
        if self.form == "exclusive":
            return lambda x: function(x[0], dim, **options) - x[0]
        return lambda x: function(*x, *self._order(), dim=dim, **options)

    def _compiled(self) -> Run | None:
        """torch.compile, in the compile part alone: compiling takes longer than everything else. linear_scan is
        torch's associative_scan, which does not compile over the last dim."""
        if self.part != "compile":
            return None
        if self.op == "linear_scan":
            from torch._higher_order_ops.associative_scan import associative_scan

            def combine(left: Inputs, right: Inputs) -> Inputs:
                return left[0] * right[0], left[1] * right[0] + right[1]

            return torch.compile(lambda x: associative_scan(combine, x, self.dim)[1])
        return torch.compile(self._torchs())

    def _cubs(self, wide: bool) -> Run | None:
        """wide: 16-bit elements combined in float32. CUB serves contiguous tensors, scans only of one dim."""
        several = self.op == "sum" and len(self.shape) > 1 and self.dim == len(self.shape) - 1
        directed = self.form and not self.form.startswith("in+")
        if directed or not (len(self.shape) == 1 or several) or not peers.offers(self.op, self.dtype, wide):
            return None
        count = 1 if self.dim == 0 else self.elements // self.shape[-1]
        given = self._out().get("out")
        return lambda x: peers.cub(self.op, x[0], count, wide, given)


def _dtypes(part: str, quick: bool) -> tuple[str, ...]:
    return FLOATS[:2] if quick or part.startswith(("small", "reduce", "compile")) else FLOATS


def cases(part: str, quick: bool = False) -> Iterator[Case]:
    """Of one part; quick: float32 and bfloat16 alone."""
    dtypes = _dtypes(part, quick)
    kind = Case
    if part == "rowwise":
        from .rowwise import RowwiseCase as kind
    for dtype in dtypes:
        for bar in BARS:
            if bar.part == part:
                yield from (kind(part, bar.op, dtype, shape, bar.dim, f) for shape in bar.shapes for f in bar.forms)
    if part == "channels":
        from .channels import of_channels

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
