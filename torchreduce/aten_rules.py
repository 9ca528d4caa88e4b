"""What stands for calls of aten's overloads: a rule each, which csrc/aten.cpp has in C++ for eager calls.

These serve the graphs of torch.compile (override_graph.py), and eager calls under a torch that _aten was not built for
(override_python.py).

A rule takes the overload's arguments, in which tensors may be fake, and gives the calls whose results are its own: one
Call, or a list of them for a tuple or list of results. It raises Torchs for what torch has to serve, or to refuse.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .table import BY_NAME, DTYPES, FLOATS

_ops = torch.ops.torchreduce
_SUPPORTED, _FLOATS = frozenset(DTYPES), frozenset(FLOATS)


class Torchs(Exception):
    """Why a call goes to torch: one of WHY but the first."""


WHY = ("served", "kind", "dtype", "dims", "empty", "option", "out")


def overload(name: str) -> Any:
    """aten's, by its name here."""
    packet, _, suffix = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), suffix or "default")


@dataclass(frozen=True)
class Call:
    op: Any  # of torch.ops.torchreduce: its .raw overload is called
    args: tuple[Any, ...]


Rule = Callable[..., Call | list[Call]]


def _dims(x: Tensor, dim: Any) -> list[int] | None:
    """As ops take them; None and [] are all of them."""
    dims = None if dim is None else [dim] if isinstance(dim, int) else list(dim)
    extent = max(1, x.dim())
    if dims and (any(not -extent <= d < extent for d in dims) or len({d % extent for d in dims}) < len(dims)):
        raise Torchs("dims")
    return dims or None


def _check_dtype(x: Tensor, dtype: torch.dtype | None = None) -> None:
    """Floats to an integer dtype are torch's, whose elements each round their own way."""
    if x.dtype not in _SUPPORTED or (dtype is not None and dtype not in _SUPPORTED):
        raise Torchs("dtype")
    if dtype is not None and x.dtype in _FLOATS and dtype not in _FLOATS:
        raise Torchs("dtype")


def _check_empty(x: Tensor, name: str) -> None:
    if BY_NAME[name].empty is None and not isinstance(x.numel(), torch.SymInt) and x.numel() == 0:
        raise Torchs("empty")


def _with_dtype(name: str) -> Rule:
    op = getattr(_ops, name)

    def rule(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Call:
        _check_dtype(x, dtype)
        floats = {"mean": dtype or x.dtype, "nansum": x.dtype}
        if floats.get(name, torch.float32) not in _FLOATS or (name == "prod" and dtype is torch.bool):
            raise Torchs("dtype")
        return Call(op, (x, _dims(x, dim), keepdim, dtype, 0))

    return rule


def _all_with_dtype(name: str) -> Rule:
    rule = _with_dtype(name)
    return lambda x, *, dtype=None: rule(x, dtype=dtype)


def _along(name: str) -> Rule:
    op = getattr(_ops, name)

    def rule(x: Tensor, dim: Any = None, keepdim: bool = False) -> Call:
        _check_dtype(x)
        dims = _dims(x, dim)
        _check_empty(x, name)
        return Call(op, (x, dims, keepdim, 0))

    return rule


def _listed(name: str) -> Rule:
    """any and all over a list of dims: with an empty one torch reduces nothing."""
    along = _along(name)

    def rule(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is not None and not list(dim):
            raise Torchs("dims")
        return along(x, dim, keepdim)

    return rule


def _whole(name: str) -> Rule:
    op = getattr(_ops, name)

    def rule(x: Tensor) -> Call:
        _check_dtype(x)
        _check_empty(x, name)
        return Call(op, (x, False, 0))

    return rule


def _pair(name: str) -> Rule:
    op = getattr(_ops, name)

    def rule(x: Tensor, dim: int, keepdim: bool = False) -> Call:
        _check_dtype(x)
        dims = _dims(x, dim)
        _check_empty(x, name)
        return Call(op, (x, dims, keepdim, 0))

    return rule


def _aminmax(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> list[Call]:
    return [_along(name)(x, dim, keepdim) for name in ("amin", "amax")]  # type: ignore[misc]


_NORMS = {2: "norm2", 1: "norm1", 0: "norm0", math.inf: "norm_greatest", -math.inf: "norm_least"}


def _vector_norm(
    x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Call:
    name = None if isinstance(ord, complex) else _NORMS.get(ord)
    if name is None:
        raise Torchs("option")
    _check_dtype(x, dtype)
    if x.dtype not in _FLOATS or (dtype is not None and torch.promote_types(x.dtype, dtype) != dtype):
        raise Torchs("dtype")
    dims = _dims(x, dim)
    _check_empty(x, name)
    return Call(getattr(_ops, name), (x, dims, keepdim, dtype, 0))


def _foreach_norm(tensors: Sequence[Tensor], ord: Any = 2, dtype: torch.dtype | None = None) -> list[Call]:
    if len({x.device for x in tensors}) > 1:
        raise Torchs("kind")
    return [_vector_norm(x, ord, dtype=dtype) for x in tensors]


def _scan(name: str) -> Rule:
    op = getattr(_ops, name)

    def rule(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Call:
        _check_dtype(x, dtype)
        if dtype is torch.bool:
            raise Torchs("dtype")
        _dims(x, dim)
        return Call(op, (x, dim, dtype, False, False, 0))

    return rule


def _logcumsumexp(x: Tensor, dim: int) -> Call:
    if x.dtype not in _FLOATS:
        raise Torchs("dtype")
    _dims(x, dim)
    return Call(_ops.logcumsumexp, (x, dim, False, False, 0))


def _extreme_scan(name: str) -> Rule:
    op = getattr(_ops, name)

    def rule(x: Tensor, dim: int) -> Call:
        _check_dtype(x)
        _dims(x, dim)
        return Call(op, (x, dim, False, 0))

    return rule


# By aten's overload, in which ".default" is left out.
RULES: dict[str, Rule] = {
    "sum.dim_IntList": _with_dtype("sum"),
    "mean.dim": _with_dtype("mean"),
    "nansum": _with_dtype("nansum"),
    "prod": _all_with_dtype("prod"),
    "prod.dim_int": _with_dtype("prod"),
    "linalg_vector_norm": _vector_norm,
    "_foreach_norm.Scalar": _foreach_norm,
    "any": _along("any"),
    "any.dim": _along("any"),
    "any.dims": _listed("any"),
    "all": _along("all"),
    "all.dim": _along("all"),
    "all.dims": _listed("all"),
    "count_nonzero.dim_IntList": _along("count_nonzero"),
    "amax": _along("amax"),
    "amin": _along("amin"),
    "aminmax": _aminmax,
    "max": _whole("max_all"),
    "max.dim": _pair("max"),
    "min": _whole("min_all"),
    "min.dim": _pair("min"),
    "argmax": _along("argmax"),
    "argmin": _along("argmin"),
    "cumsum": _scan("cumsum"),
    "cumprod": _scan("cumprod"),
    "_logcumsumexp": _logcumsumexp,
}
# Those that reach the ones above when they run, and that graphs have as they are.
GRAPH_RULES: dict[str, Rule] = {
    **RULES,
    "sum": _all_with_dtype("sum"),
    "mean": _all_with_dtype("mean"),
    "count_nonzero": _along("count_nonzero"),
    "logcumsumexp": _logcumsumexp,
    "cummax": _extreme_scan("cummax"),
    "cummin": _extreme_scan("cummin"),
}
# Overloads that write: the rule of which one, the names of what is written, and whether its dtype stands for dtype=.
WRITING: dict[str, tuple[str, tuple[str, ...], bool]] = {
    "sum.IntList_out": ("sum.dim_IntList", ("out",), True),
    "mean.out": ("mean.dim", ("out",), True),
    "nansum.out": ("nansum", ("out",), True),
    "prod.int_out": ("prod.dim_int", ("out",), True),
    "linalg_vector_norm.out": ("linalg_vector_norm", ("out",), False),
    "any.all_out": ("any", ("out",), False),
    "any.out": ("any.dim", ("out",), False),
    "any.dims_out": ("any.dims", ("out",), False),
    "all.all_out": ("all", ("out",), False),
    "all.out": ("all.dim", ("out",), False),
    "all.dims_out": ("all.dims", ("out",), False),
    "amax.out": ("amax", ("out",), False),
    "amin.out": ("amin", ("out",), False),
    "aminmax.out": ("aminmax", ("min", "max"), False),
    "max.unary_out": ("max", ("out",), False),
    "max.dim_max": ("max.dim", ("max", "max_values"), False),
    "min.unary_out": ("min", ("out",), False),
    "min.dim_min": ("min.dim", ("min", "min_indices"), False),
    "argmax.out": ("argmax", ("out",), False),
    "argmin.out": ("argmin", ("out",), False),
    "cumsum.out": ("cumsum", ("out",), True),
    "cumsum_": ("cumsum", ("self",), True),
    "cumprod.out": ("cumprod", ("out",), True),
    "cumprod_": ("cumprod", ("self",), True),
    "_logcumsumexp.out": ("_logcumsumexp", ("out",), False),
    "_cummax_helper": ("cummax", ("values", "indices"), False),
    "_cummin_helper": ("cummin", ("values", "indices"), False),
}
