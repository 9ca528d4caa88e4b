"""Rules that replace calls of aten's overloads by torchreduce's ops. table.py has the table of overloads.

csrc/binding/aten/ has the rules in C++, for eager calls. These here are used for the graphs of torch.compile
(graph.py), and for eager calls under a torch that _aten was not built for (python.py).

A rule takes the overload's arguments, in which tensors may be fake. It returns the call whose result is that of the
overload. For a tuple or list of results it returns a list of calls, with None for results that are not needed. Or it
returns Traced, a function of the same arguments that makes calls. It raises Torchs for calls that fall back to torch.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from .. import bags as public_bags
from .. import scatters
from ..table import BY_NAME, DTYPES, FLOATS, MOST_DIMS
from . import bags
from .table import LOSSES, ROWS, SCATTERS, Row

_ops, _aten = torch.ops.torchreduce, torch.ops.aten
_convert = torch.ops.prims.convert_element_type.default
_SUPPORTED, _FLOATS = frozenset(DTYPES), frozenset(FLOATS)


class Torchs(Exception):
    """Why a call falls back to torch: one of WHY except the first."""


WHY = ("served", "kind", "dtype", "dims", "empty", "option", "out")


def overload(name: str) -> Any:
    """Return aten's overload by its name here."""
    packet, _, suffix = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), suffix or "default")


@dataclass(frozen=True, eq=False)
class Call:
    op: Any  # an overload
    args: tuple[Any, ...]  # also calls and items


@dataclass(frozen=True, eq=False)
class Item:
    """One of the results of a call."""

    of: Call
    index: int


class Traced(NamedTuple):
    """What takes the place of a call, as a function of its arguments."""

    function: Callable[..., Any]


Rule = Callable[..., Any]


def evaluate(made: Any, call: Callable[[Call, list[Any]], Any], item: Callable[[Any, int], Any]) -> Any:
    """What a rule has made, with each call that it is made of made once."""
    results: dict[int, Any] = {}

    def value(a: Any) -> Any:
        if isinstance(a, Item):
            return item(value(a.of), a.index)
        if not isinstance(a, Call):
            return a
        if id(a) not in results:
            results[id(a)] = call(a, [value(argument) for argument in a.args])
        return results[id(a)]

    return [value(a) for a in made] if isinstance(made, list) else value(made)


def _dims(x: Tensor, dim: Any) -> list[int] | None:
    """As ops take them; None and [] are all of them."""
    dims = None if dim is None else [dim] if isinstance(dim, int) else list(dim)
    extent = max(1, x.dim())
    if dims and (any(not -extent <= d < extent for d in dims) or len({d % extent for d in dims}) < len(dims)):
        raise Torchs("dims")
    return dims or None


def _converts_first(x: Tensor, dtype: torch.dtype | None) -> bool:
    """Whether elements are converted before they are added or multiplied, as torch has it: floats to integers."""
    return x.dtype in _FLOATS and dtype in _SUPPORTED and dtype not in _FLOATS and dtype is not torch.bool


def _check_dtype(x: Tensor, dtype: torch.dtype | None = None) -> None:
    """Floats with an integer dtype= fall back to torch, unless their elements are converted first."""
    if x.dtype not in _SUPPORTED or (dtype is not None and dtype not in _SUPPORTED):
        raise Torchs("dtype")
    if dtype is not None and x.dtype in _FLOATS and dtype not in _FLOATS:
        raise Torchs("dtype")


def _check_empty(x: Tensor, name: str) -> None:
    if BY_NAME[name].empty is None and _is_empty(x):
        raise Torchs("empty")


def _is_empty(x: Tensor) -> bool:
    """Sizes that only a run will know are taken as others."""
    return not isinstance(x.numel(), torch.SymInt) and x.numel() == 0


def _with_dtype(name: str) -> Rule:
    op = getattr(_ops, name).raw

    def rule(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Call:
        if name in ("sum", "prod") and _converts_first(x, dtype):
            return Call(op, (Call(_convert, (x, dtype)), _dims(x, dim), keepdim, dtype, 0))
        _check_dtype(x, dtype)
        floats = {"mean": dtype or x.dtype, "nansum": x.dtype}
        if floats.get(name, torch.float32) not in _FLOATS or (name == "prod" and dtype is torch.bool):
            raise Torchs("dtype")
        return Call(op, (x, _dims(x, dim), keepdim, dtype, 0))

    return rule


def _along(name: str) -> Rule:
    op = getattr(_ops, name).raw

    def rule(x: Tensor, dim: Any = None, keepdim: bool = False) -> Call:
        _check_dtype(x)
        dims = _dims(x, dim)
        _check_empty(x, name)
        return Call(op, (x, dims, keepdim, 0))

    return rule


def _trace(x: Tensor) -> Call:
    if x.dim() != 2:
        raise Torchs("dims")
    _check_dtype(x)
    if x.is_cpu and x.dtype is torch.bool:  # torch has none
        raise Torchs("dtype")
    return Call(_ops.sum.raw, (Call(_aten.diagonal.default, (x,)), None, False, None, 0))


def _listed(name: str) -> Rule:
    """any and all over a list of dims; with an empty list torch reduces nothing."""
    along = _along(name)

    def rule(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is not None and not list(dim):
            raise Torchs("dims")
        return along(x, dim, keepdim)

    return rule


def _whole(name: str) -> Rule:
    op = getattr(_ops, name).raw

    def rule(x: Tensor) -> Call:
        _check_dtype(x)
        _check_empty(x, name)
        return Call(op, (x, False, 0))

    return rule


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
    return Call(getattr(_ops, name).raw, (x, dims, keepdim, dtype, 0))


def _foreach_norm(tensors: Sequence[Tensor], ord: Any = 2, dtype: torch.dtype | None = None) -> list[Call]:
    if len({x.device for x in tensors}) > 1:
        raise Torchs("kind")
    return [_vector_norm(x, ord, dtype=dtype) for x in tensors]


def _scan(name: str) -> Rule:
    op = getattr(_ops, name).raw

    def rule(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Call:
        if _converts_first(x, dtype):
            _dims(x, dim)
            return Call(op, (Call(_convert, (x, dtype)), dim, dtype, False, False, 0))
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
    return Call(_ops.logcumsumexp.raw, (x, dim, False, False, 0))


def _extreme_scan(name: str) -> Rule:
    op = getattr(_ops, name).raw

    def rule(x: Tensor, dim: int) -> Call:
        _check_dtype(x)
        _dims(x, dim)
        return Call(op, (x, dim, False, 0))

    return rule


# ---- row-wise ops ----------------------------------------------------------------------------------------------------


def _check_rows(x: Tensor) -> None:
    if x.dim() >= MOST_DIMS:  # statistics have one more
        raise Torchs("kind")
    if x.dtype not in _FLOATS:
        raise Torchs("dtype")
    if _is_empty(x):
        raise Torchs("empty")


def _softmax(name: str) -> Rule:
    op = getattr(_ops, name).raw

    def rule(x: Tensor, dim: int, half_to_float: bool) -> Call:
        _check_rows(x)
        if half_to_float and (x.is_cpu or x.dtype.itemsize != 2):
            raise Torchs("dtype")
        _dims(x, dim)
        return Call(op, (x, dim, torch.float32 if half_to_float else None, 0))

    return rule


def _softmax_backward(name: str) -> Rule:
    op = getattr(_ops, name).raw

    def rule(grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Call:
        _check_rows(output)
        if grad_output.dtype != output.dtype or input_dtype not in _FLOATS:
            raise Torchs("dtype")
        if grad_output.shape != output.shape:
            raise Torchs("dims")
        _dims(output, dim)
        return Call(op, (grad_output, output, dim, input_dtype, 0))

    return rule


def _logsumexp(x: Tensor, dim: Any, keepdim: bool = False) -> Item:
    _check_rows(x)
    return Item(Call(_ops.logsumexp.raw, (x, _dims(x, dim), keepdim, 0)), 0)


def _moments(name: str) -> Rule:
    root, mean = name.startswith("std"), name.endswith("_mean")

    def rule(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
        _check_rows(x)
        dims = _dims(x, dim)
        by = 1 if correction is None else correction
        n = math.prod(x.shape[d] for d in (range(x.dim()) if dims is None or not x.dim() else dims))
        if isinstance(by, complex) or (
            not isinstance(n, torch.SymInt) and n <= by
        ):  # no degree of freedom: torch warns
            raise Torchs("option")
        call = Call(_ops.moments.raw, (x, dims, keepdim, float(by), root, 0))
        return [Item(call, 0), Item(call, 1)] if mean else Item(call, 0)

    return rule


def _check_norm(x: Tensor, shape: Sequence[int], *weights: Tensor | None) -> None:
    _check_rows(x)
    if not 0 < len(shape) <= x.dim() or list(x.shape[x.dim() - len(shape) :]) != list(shape):
        raise Torchs("dims")
    given = [w for w in weights if w is not None]
    mixed = x.is_cpu and x.dtype.itemsize == 2
    if any(
        w.dtype != given[0].dtype or (w.dtype != x.dtype and not (mixed and w.dtype is torch.float32)) for w in given
    ):
        raise Torchs("dtype")
    if any(list(w.shape) != list(shape) for w in given):
        raise Torchs("dims")


def _plane(stats: Any, k: int, dtype: torch.dtype | None = None) -> Call:
    plane = Call(_aten.select.int, (stats, 0, k))
    return plane if dtype is None else Call(_convert, (plane, dtype))


def _layer_norm(x: Tensor, shape: Any, weight: Tensor | None, bias: Tensor | None, eps: float) -> list[Any]:
    _check_norm(x, shape, weight, bias)
    call = Call(_ops.layer_norm.raw, (x, weight, bias, len(shape), eps, 0))
    mixed = any(w is not None and w.dtype is torch.float32 for w in (weight, bias))
    to = x.dtype if x.is_cpu and x.dtype.itemsize == 2 and not mixed else None
    return [Item(call, 0), _plane(Item(call, 1), 0, to), _plane(Item(call, 1), 2, to)]


def _layer_norm_backward(
    g: Tensor,
    x: Tensor,
    shape: Any,
    mean: Tensor,
    rstd: Tensor,
    weight: Any,
    bias: Any,
    wanted: Sequence[bool],
    stats: Tensor | None = None,
) -> list[Any]:
    """Without `stats`, those that layer_norm made, the mean is taken again from x: torch keeps it in one part, and its
    derivative is that of both."""
    _check_norm(x, shape, weight, bias)
    if g.dtype != x.dtype or (weight is None and bias is not None and bias.dtype != x.dtype):  # torch refuses these
        raise Torchs("dtype")
    if g.shape != x.shape:
        raise Torchs("dims")
    if (wanted[1] and weight is None) or (wanted[2] and bias is None):
        raise Torchs("option")
    dims, wide = len(shape), torch.float64 if x.dtype is torch.float64 else torch.float32
    rows = list(range(x.dim() - dims, x.dim()))
    moments = Item(Call(_ops.moments.raw, (x, rows, True, 0.0, False, 0)), 2)
    taken = Call(_aten.select_scatter.default, (moments, Call(_convert, (rstd, wide)), 0, 2))
    kept: Any = taken if stats is None else stats
    dtype = (x if weight is None and bias is None else bias if weight is None else weight).dtype
    made: Sequence[Any]
    if wanted[0] and (wanted[1] or wanted[2]):
        all_of_them = Call(_ops.layer_norm_backward.raw, (g, x, weight, kept, dims, 0.0, dtype, 0))
        made = [Item(all_of_them, k) for k in range(3)]
    else:
        sums = Call(_ops.layer_norm_weights.raw, (g, x, kept, dims, 0.0, dtype, 0))
        made = (Call(_ops.layer_norm_gradient.raw, (g, x, weight, kept, dims, 0.0, 0)), Item(sums, 0), Item(sums, 1))
    return [m if want else None for m, want in zip(made, wanted, strict=True)]


def _rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None) -> list[Any]:
    _check_norm(x, shape, weight)
    eps = (2.0**-52 if x.dtype is torch.float64 else 2.0**-23) if eps is None else eps
    call = Call(_ops.rms_norm.raw, (x, weight, len(shape), eps, 0))
    return [Item(call, 0), _plane(Item(call, 1), 0)]


def _rms_norm_backward(
    g: Tensor, x: Tensor, shape: Sequence[int], rstd: Tensor, weight: Any, wanted: Sequence[bool]
) -> list[Any]:
    _check_norm(x, shape, weight)
    if g.dtype != x.dtype or rstd.dtype is not (torch.float64 if x.dtype is torch.float64 else torch.float32):
        raise Torchs("dtype")
    if g.shape != x.shape:
        raise Torchs("dims")
    if wanted[1] and weight is None:
        raise Torchs("option")
    dims, stats = len(shape), Call(_aten.unsqueeze.default, (rstd, 0))
    dtype = x.dtype if weight is None else weight.dtype
    if all(wanted):
        both = Call(_ops.rms_norm_backward.raw, (g, x, weight, stats, dims, 0.0, dtype, 0))
        return [Item(both, 0), Item(both, 1)]
    gradient = Call(_ops.rms_norm_gradient.raw, (g, x, weight, stats, dims, 0.0, 0))
    sums = Call(_ops.rms_norm_weights.raw, (g, x, stats, dims, 0.0, dtype, 0))
    return [m if want else None for m, want in zip((gradient, sums), wanted, strict=True)]


def _embedding_backward(g: Tensor, indices: Tensor, count: int, skipped: int, by_frequency: bool) -> Call:
    """The gradient of an embedding; with scale_grad_by_freq it falls back to torch."""
    if g.dtype not in _FLOATS or indices.dtype not in (torch.int32, torch.int64):
        raise Torchs("dtype")
    if not g.dim() or g.shape[:-1] != indices.shape:
        raise Torchs("dims")
    if by_frequency:
        raise Torchs("option")
    places: Any = indices if indices.dtype is torch.int64 else Call(_convert, (indices, torch.int64))
    return Call(_ops.embedding_backward.raw, (g, places, count, skipped, 0))


def _nll_loss(name: str) -> Rule:
    """The sum of torch's losses of the rows, or that divided by the weights of their labels; and the sum of these, not
    rounded to 16 bits. torch's losses of the rows are of one element each."""
    op = getattr(_aten, name).default

    def rule(x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int) -> list[Any]:
        _check_rows(x)
        if reduction == 0:
            torchs = Call(op, (x, target, weight, reduction, ignored))
            return [Item(torchs, 0), Item(torchs, 1)]
        classes = x.shape[1:2] if x.dim() > 1 else x.shape
        if not x.dim() or (weight is not None and weight.shape != classes):
            raise Torchs("dims")
        wide = torch.float64 if x.dtype is torch.float64 else torch.float32

        def of_rows(of: Any, by: Tensor | None) -> Call:
            return Call(_convert, (Item(Call(op, (of, target, by, 0, ignored)), 0), wide))

        def total(of: Call) -> Call:
            return Call(_ops.sum.raw, (of, None, False, None, 0))

        losses = of_rows(x, None)  # exact: elements of x, without their sign
        if weight is None:
            kept = Call(_aten.ne.Scalar, (target, ignored))
            weights = Call(_convert, (Call(_ops.count_nonzero.raw, (kept, None, False, 0)), wide))
        else:
            by = of_rows(Call(_aten.expand.default, (Call(_aten.new_full.default, (x, [], -1.0)), x.shape)), weight)
            losses, weights = Call(_aten.mul.Tensor, (losses, by)), total(by)
        loss = total(losses)
        if reduction == 1:
            loss = Call(_aten.div.Tensor, (loss, weights))
        return [Call(_convert, (loss, x.dtype)), Call(_convert, (weights, wide))]

    return rule


def _nll_loss_backward(name: str) -> Rule:
    """By torch's kernel, of 16 bits in float32 and rounded once: elements of one product each."""
    op = getattr(_aten, name).default

    def rule(
        g: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int, total: Tensor
    ) -> Call:
        _check_rows(x)
        if g.dtype != x.dtype:
            raise Torchs("dtype")
        if reduction == 0 or x.dtype.itemsize != 2:
            return Call(op, (g, x, target, weight, reduction, ignored, total))
        if g.dim() or total.numel() != 1:
            raise Torchs("dims")
        wide = torch.float32
        part: Any = Call(_convert, (g, wide))
        if reduction == 1:
            part = Call(_aten.div.Tensor, (part, Call(_convert, (total, wide))))
        by = None if weight is None else Call(_convert, (weight, wide))
        one = Call(_aten.new_ones.default, (total, []))
        shape = Call(_convert, (x, wide))
        return Call(_convert, (Call(op, (part, shape, target, by, 2, ignored, Call(_convert, (one, wide)))), x.dtype))

    return rule


# ---- scatters --------------------------------------------------------------------------------------------------------

_SCATTERS: dict[str, Callable[..., Any]] = {
    **{name: getattr(scatters, name) for name in ("index_add", "scatter_add", "scatter_reduce", "index_reduce")},
    "scatter": lambda input, dim, index, src, *, reduce: scatters.scatter_reduce(
        input, dim, index, src, {"add": "sum", "multiply": "prod"}[reduce]
    ),
    "index_put": lambda input, indices, values, accumulate=False, unsafe=False: scatters.index_put(
        input, indices, values, accumulate
    ),
    "put": lambda input, index, source, accumulate=False: scatters.put(input, index, source, accumulate),
}
_REDUCES = {"scatter": ("add", "multiply"), "scatter_reduce": ("sum", "mean", "prod", "amax", "amin"),
            "index_reduce": ("mean", "prod", "amax", "amin")}  # fmt: skip


def _scatter(name: str) -> Rule:
    function = _SCATTERS[name]
    signature = inspect.signature(function)

    def rule(*args: Any, **kwargs: Any) -> Traced:
        given = signature.bind(*args, **kwargs).arguments
        x, source = args[0], next(given[key] for key in ("source", "src", "values") if key in given)
        indices = [i for i in given.get("indices", [given.get("index")]) if i is not None]
        kinds = (torch.int64,) if name == "put" else (torch.int32, torch.int64)
        if x.dtype not in _FLOATS or source.dtype != x.dtype or any(i.dtype not in kinds for i in indices):
            raise Torchs("dtype")
        if any(t.device != x.device for t in (source, *indices)):
            raise Torchs("kind")
        if "accumulate" in signature.parameters and not given.get("accumulate"):
            raise Torchs("option")
        if name in _REDUCES and given["reduce"] not in _REDUCES[name]:
            raise Torchs("option")
        if _is_empty(x) or not indices or (name.startswith("scatter") and _is_empty(indices[0])):
            raise Torchs("empty")
        return Traced(function)

    return rule


_INDICES = (torch.int32, torch.int64)


def _embedding_bag(_: str) -> Rule:
    def rule(
        weight: Tensor, indices: Tensor, offsets: Tensor, by_frequency: bool = False, mode: int = 0,
        sparse: bool = False, by: Tensor | None = None, *rest: Any, **more: Any,
    ) -> Traced:  # fmt: skip
        if weight.dtype not in _FLOATS or indices.dtype not in _INDICES or offsets.dtype not in _INDICES:
            raise Torchs("dtype")
        if by is not None and by.dtype != weight.dtype:
            raise Torchs("dtype")
        if mode not in (0, 1, 2) or (by is not None and mode):
            raise Torchs("option")
        if _is_empty(weight) or _is_empty(indices) or _is_empty(offsets):
            raise Torchs("empty")
        return Traced(bags.embedding_bag)

    return rule


def _embedding_bag_backward(_: str) -> Rule:
    def rule(
        g: Tensor, indices: Tensor, bag: Tensor, counts: Tensor, greatest: Tensor, size: int, by_frequency: bool,
        mode: int, by: Tensor | None, padding: int = -1,
    ) -> Traced:  # fmt: skip
        if g.dtype not in _FLOATS or (by is not None and by.dtype != g.dtype):
            raise Torchs("dtype")
        if by_frequency:
            raise Torchs("option")
        if _is_empty(g) or _is_empty(indices) or not size:
            raise Torchs("empty")
        if bag.shape != indices.shape and mode != 2:
            raise Torchs("dims")
        return Traced(bags.backward)

    return rule


def _embedding_bag_whole_backward(op: str) -> Rule:
    """What graphs have of both kinds of gradients: a dense one here."""
    dense = _embedding_bag_backward(op)

    def function(
        g: Tensor, indices: Tensor, offsets: Tensor, bag: Tensor, counts: Tensor, greatest: Tensor, size: int,
        by_frequency: bool, mode: int, sparse: bool, by: Tensor | None, padding: int = -1,
    ) -> Tensor:  # fmt: skip
        return bags.backward(g, indices, bag, counts, greatest, size, by_frequency, mode, by, padding)

    def rule(
        g: Tensor, indices: Tensor, offsets: Tensor, bag: Tensor, counts: Tensor, greatest: Tensor, size: int,
        by_frequency: bool, mode: int, sparse: bool, by: Tensor | None, padding: int = -1,
    ) -> Traced:  # fmt: skip
        if sparse:
            raise Torchs("option")
        dense(g, indices, bag, counts, greatest, size, by_frequency, mode, by, padding)
        return Traced(function)

    return rule


def _embedding_bag_weights_backward(_: str) -> Rule:
    def rule(g: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, bag: Tensor, mode: int, padding: int = -1,
             ) -> Traced:  # fmt: skip
        if weight.dtype not in _FLOATS or g.dtype != weight.dtype:
            raise Torchs("dtype")
        if mode:
            raise Torchs("option")
        if _is_empty(weight) or _is_empty(indices):
            raise Torchs("empty")
        if bag.shape != indices.shape:
            raise Torchs("dims")
        return Traced(bags.weights_backward)

    return rule


def _bincount(_: str) -> Rule:
    def rule(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Traced:
        if weights is None or isinstance(input, FakeTensor):  # whose result has a shape that only a run knows
            raise Torchs("option")
        if weights.dtype not in _SUPPORTED:
            raise Torchs("dtype")
        if _is_empty(input):
            raise Torchs("empty")
        return Traced(public_bags.bincount)

    return rule


def _segment_reduce(_: str) -> Rule:
    def function(data: Tensor, reduce: str, **given: Any) -> Tensor:
        given.pop("indices", None)
        return public_bags.segment_reduce(data, reduce, **given)

    def rule(
        x: Tensor, reduce: str, *, lengths: Tensor | None = None, indices: Tensor | None = None,
        offsets: Tensor | None = None, axis: int = 0, unsafe: bool = False, initial: Any = None,
    ) -> Traced:  # fmt: skip
        bounds = lengths if offsets is None else offsets
        if (lengths is None) == (offsets is None) or indices is not None or axis or initial is not None:
            raise Torchs("option")
        assert bounds is not None
        if x.dtype not in _FLOATS or bounds.dtype not in _INDICES:
            raise Torchs("dtype")
        if bounds.dim() != 1 or x.dim() == 0:
            raise Torchs("dims")
        if _is_empty(x) or _is_empty(bounds):
            raise Torchs("empty")
        return Traced(function)

    return rule


def _rule(row: Row) -> Rule:
    made: Any = globals()[f"_{row.rule}"]
    rule: Rule = made(row.op) if row.op else made
    return rule


def writes(name: str) -> tuple[str, ...]:
    """The arguments that an overload of aten writes, in order; none if it returns new tensors."""
    arguments = overload(name)._schema.arguments
    return tuple(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write)


# By aten's overload, of those that return new tensors: eager calls, and graphs.
RULES: dict[str, Rule] = {
    name: _rule(row) for row in (*ROWS, *LOSSES, *SCATTERS) for name in row.overloads.split() if not writes(name)
}
GRAPH_RULES: dict[str, Rule] = {
    name: _rule(row)
    for row in (*ROWS, *SCATTERS)
    for name in f"{row.overloads} {row.in_graphs}".split()
    if not writes(name)
}


class Writing(NamedTuple):
    """An overload that writes."""

    rule: Rule
    names: tuple[str, ...]  # of what is written
    dtype_of_out: bool  # whether the dtype of that stands for dtype=


WRITING: dict[str, Writing] = {
    name: Writing(_rule(row), writes(name), row.rule in ("with_dtype", "scan"))
    for row in (*ROWS, *LOSSES, *SCATTERS)
    for name in row.overloads.split()
    if writes(name)
}
