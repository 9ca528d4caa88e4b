"""The op table: one row an op. Fake kernels, tests, the demo and the documentation are made from it. Data only.

An op here is one that torch's dispatcher knows as torchreduce::<name>, with the overloads .raw and .out. The public
functions `max` and `min` are served by two each: max_all without dims, max with.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)
DEVICES = ("cpu", "cuda")
MOST_DIMS = 64  # of a tensor


@dataclass(frozen=True)
class Op:
    """The properties of an op that Python needs."""

    name: str
    function: str  # the public function that calls it
    kind: Literal["reduction", "scan"]
    dims: Literal["any", "all", "given", "one"]  # int[]? (None or []: all), no argument, int[] not empty, int
    returns: tuple[Literal["values", "indices", "count"], ...]
    sums: bool  # values: the accumulated type, or what dtype= says; else the input's dtype. Indices, counts are int64
    inputs: tuple[torch.dtype, ...]  # without dtype=; with it, DTYPES
    results: tuple[torch.dtype, ...]  # what dtype= may be; none: there is no dtype=
    empty: float | None  # the result over no elements; None: an error
    differentiable: bool
    counterpart: Callable[..., Any] | None  # torch's; of several dims torch has none for max, min and the arg ops
    summary: str
    exclusive: bool = False  # scans: there is an exclusive=; all have reverse=
    fixed: torch.dtype | None = None  # values: their dtype, whatever the input's; bool but for uint8, as in torch

    def result_dtype(self, given: torch.dtype, dtype: torch.dtype | None) -> torch.dtype:
        """Return the dtype of the values (or of the indices, if there are no values), for an input dtype and dtype=."""
        if self.returns == ("indices",):
            return torch.int64
        if self.fixed:
            return torch.uint8 if self.fixed is torch.bool and given is torch.uint8 else self.fixed
        return dtype or (given if given.is_floating_point or not self.sums else torch.int64)


def _sums(name: str, inputs: Any, results: Any, empty: float, summary: str) -> Op:
    counterpart = getattr(torch, name)
    return Op(name, name, "reduction", "any", ("values",), True, inputs, results, empty, True, counterpart, summary)


def _norm(name: str, order: float, empty: float | None, summary: str) -> Op:
    def counterpart(x: torch.Tensor, dim: Any = None, keepdim: bool = False, **options: Any) -> torch.Tensor:
        return torch.linalg.vector_norm(x, order, dim, keepdim, **options)  # type: ignore[no-any-return]

    function = "vector_norm"
    return Op(name, function, "reduction", "any", ("values",), True, FLOATS, FLOATS, empty, True, counterpart, summary)


def _count(name: str, result: torch.dtype, empty: float, counterpart: Any, summary: str) -> Op:
    return Op(
        name, name, "reduction", "any", ("values",), False, DTYPES, (), empty, False, counterpart, summary, fixed=result
    )


def _extreme(name: str, function: str, dims: Any, returns: Any, summary: str) -> Op:
    differentiable, counterpart = "values" in returns, getattr(torch, function)
    return Op(name, function, "reduction", dims, returns, False, DTYPES, (), None, differentiable, counterpart, summary)


def _scan(name: str, sums: bool, inputs: Any, returns: Any, exclusive: bool, summary: str) -> Op:
    results, counterpart = DTYPES[:-1] if sums else (), getattr(torch, name)
    return Op(name, name, "scan", "one", returns, sums, inputs, results, 0.0, True, counterpart, summary, exclusive)


OPS = (
    _sums("sum", DTYPES, DTYPES, 0.0, "sum"),
    _sums("mean", FLOATS, FLOATS, math.nan, "sum, divided once by the number of elements"),
    _sums("nansum", FLOATS, FLOATS, 0.0, "sum, with NaN treated as 0"),
    _sums("prod", DTYPES, DTYPES[:-1], 1.0, "product; no intermediate overflow or underflow"),
    _norm("norm1", 1, 0.0, "sum of the magnitudes"),
    _norm("norm2", 2, 0.0, "square root of the sum of the squares"),
    _norm("norm0", 0, 0.0, "number of elements that are not 0"),
    _norm("norm_greatest", math.inf, None, "greatest magnitude; NaN if there is one"),
    _norm("norm_least", -math.inf, None, "least magnitude; NaN if there is one"),
    _count("any", torch.bool, 0.0, torch.any, "whether any element is not 0"),
    _count("all", torch.bool, 1.0, torch.all, "whether all elements are not 0"),
    _count("count_nonzero", torch.int64, 0.0, torch.count_nonzero, "number of elements that are not 0"),
    _extreme("amax", "amax", "any", ("values",), "greatest value; NaN if there is one; -0.0 < +0.0"),
    _extreme("amin", "amin", "any", ("values",), "least value; NaN if there is one; -0.0 < +0.0"),
    _extreme("max_all", "max", "all", ("values",), "greatest value of all; NaN if there is one; -0.0 < +0.0"),
    _extreme("min_all", "min", "all", ("values",), "least value of all; NaN if there is one; -0.0 < +0.0"),
    _extreme("max", "max", "given", ("values", "indices"), "greatest value and the lowest index of it; the first NaN"),
    _extreme("min", "min", "given", ("values", "indices"), "least value and the lowest index of it; the first NaN"),
    _extreme("argmax", "argmax", "any", ("indices",), "lowest index of the greatest value; of the first NaN"),
    _extreme("argmin", "argmin", "any", ("indices",), "lowest index of the least value; of the first NaN"),
    _scan("cumsum", True, DTYPES, ("values",), True, "sum of the elements up to each"),
    _scan("cumprod", True, DTYPES, ("values",), True, "product of the elements up to each"),
    _scan("logcumsumexp", False, FLOATS, ("values",), True, "log of the sum of exp of the elements up to each"),
    _scan("cummax", False, DTYPES, ("values", "indices"), False, "greatest value up to each and its latest index; NaN"),
    _scan("cummin", False, DTYPES, ("values", "indices"), False, "least value up to each and its latest index; NaN"),
)

# Two results in one pass over the elements. Not among the ops above, since both are results of other ops.
PAIRS = (
    Op("aminmax", "aminmax", "reduction", "any", ("values", "values"), False, DTYPES, (), None, True, None,
       "amin and amax"),
    Op("nansum_and_count", "nanmean", "reduction", "any", ("values", "count"), True, FLOATS, FLOATS, 0.0, True, None,
       "nansum, and the number of NaN"),
)  # fmt: skip

# Not among the ops above, since it takes two tensors; autograd_scans.py has what they get from their table rows.
LINEAR_SCAN = Op("linear_scan", "linear_scan", "scan", "one", ("values",), False, FLOATS, (), 0.0, True, None,
                 "a[i] * h[i - 1] + b[i]")  # fmt: skip

BY_NAME = {op.name: op for op in (*OPS, *PAIRS, LINEAR_SCAN)}

# The public row-wise functions that take (x, dim) here and in torch, for floats only. The ops that they call are not
# among the ops above, whose kernels and signatures are others. Those that keep the shape have an .out overload.
KEEPING_SHAPE = ("softmax", "log_softmax")
LOOKING_TWICE = (*KEEPING_SHAPE, "logsumexp", "var", "std")
