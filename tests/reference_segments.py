"""Segments and deterministic scatters in plain numpy and torch (docs/numerics.md): a segment is a row of reference.py
and its companions, and that is nearly all there is to say."""

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import reference as rows
import reference_reductions as more_rows
import reference_rowwise as rowwise_rows
import reference_scans as scan_rows
import torch

# ---- what a segment is -----------------------------------------------------------------------------------------------


class Segments(NamedTuple):
    """Segment k has the elements order[offsets[k]:offsets[k + 1]], in this order. Without `order`: those themselves."""

    offsets: torch.Tensor
    order: torch.Tensor | None = None
    index: torch.Tensor | None = None  # the segment of each element; any other number is none


def segments(index, size):
    """By index: elements stay in their order within a segment. No shape depends on what `index` holds."""
    outside = (index < 0) | (index >= size)
    key = torch.where(outside, size, index.long())  # those of no segment come last
    order = torch.argsort(key, stable=True)
    offsets = torch.zeros(size + 1, dtype=torch.int64)
    offsets[1:] = torch.bincount(key, minlength=size + 1)[:size].cumsum(0)
    return Segments(offsets, order, index)


def check(given, n):
    """On a CPU wrong offsets are refused; there may be elements before the first segment and behind the last."""
    o = given.offsets.tolist()
    if not o or o[0] < 0 or o[-1] > n or any(a > b for a, b in pairwise(o)):
        raise RuntimeError(f"offsets must rise, from at least 0 to at most {n}, got {o}")


def places(given, n):
    """The elements of each segment. On a GPU, where nobody looks at offsets first, they are clamped like this: nothing
    is read or written elsewhere, and what a wrong segment holds is not specified."""
    o = [min(max(int(v), 0), n) for v in given.offsets.tolist()]
    for begin, end in pairwise(o):
        at = torch.arange(begin, max(begin, end))
        yield at if given.order is None else given.order[at]


def _wide(x):
    """Columns of (n, columns) as rows of accumulators, and the name of the dtype."""
    name = str(x.dtype).removeprefix("torch.")
    return rows.to_accumulator(rows.to_numpy(x).T, rows.accumulator(name, name)), name


def _narrow(values, name):
    return rows.to_torch(rows.round_to(values, name))


# ---- reductions, scans and row-wise ops ------------------------------------------------------------------------------


def _of_rows(f):
    def alone(x):
        wide, name = _wide(x)
        with np.errstate(all="ignore"):
            return _narrow(f(wide).T, name)

    return alone


ROWWISE = {name: _of_rows(getattr(rowwise_rows, name)) for name in ("softmax", "log_softmax", "logsumexp")}
KEEP = {"softmax", "log_softmax", "cumsum"}  # their results have the input's shape


def nothing(name, dtype):
    """Over no elements: what the op has for an empty row, and for extremes, which have nothing, the identity."""
    if name in ("argmax", "argmin"):
        return -1
    if name in ("sum", "prod"):
        return 0 if name == "sum" else 1
    if name == "mean":
        return math.nan
    least = -math.inf if dtype.is_floating_point else (0 if dtype is torch.bool else torch.iinfo(dtype).min)
    most = math.inf if dtype.is_floating_point else (1 if dtype is torch.bool else torch.iinfo(dtype).max)
    return most if name in ("amin", "min") else least  # and logsumexp


def alone(name, x, **options):
    """Of one segment's elements, (n, columns) with n > 0."""
    return ROWWISE[name](x) if name in ROWWISE else rows.apply(name, x, 0, **options)


def apply(name, x, dim, given, **options):
    """tr.<name>(x, dim, segments=given): segment k has the bits of tr.<name>(its elements alone, dim)."""
    x = x.movedim(dim, 0)
    flat = x.reshape(x.shape[0], math.prod(x.shape[1:]))
    if name in KEEP:
        dtype = options.get("dtype") or (x.dtype if x.is_floating_point() else torch.int64)
        out = torch.zeros(flat.shape, dtype=dtype)  # elements of no segment have +0
        for at in places(given, len(flat)):
            if len(at):
                out[at] = alone(name, flat[at], **options)
        return out.reshape(x.shape).movedim(0, dim)
    whole = []
    for at in places(given, len(flat)):
        if len(at):
            whole.append(alone(name, flat[at], **options))
            continue
        pair = name in ("max", "min")
        indexed = name.startswith("arg")
        sums = name in ("sum", "prod") and not x.is_floating_point()
        dtype = torch.int64 if indexed else options.get("dtype") or (torch.int64 if sums else x.dtype)
        value = torch.full(flat.shape[1:], nothing(name, dtype), dtype=dtype)
        whole.append((value, torch.full(flat.shape[1:], -1)) if pair else value)
    if name in ("max", "min"):
        return tuple(torch.stack(part).reshape(-1, *x.shape[1:]).movedim(0, dim) for part in zip(*whole, strict=True))
    return torch.stack(whole).reshape(-1, *x.shape[1:]).movedim(0, dim)


def linear_scan(a, b, dim, given, initial=None, reverse=False):
    """Each segment starts anew, from its own `initial`, whose dim counts segments."""
    out = torch.zeros_like(b).movedim(dim, 0)
    a, b = a.expand(b.shape).movedim(dim, 0), b.movedim(dim, 0)
    for k, at in enumerate(places(given, len(b))):
        if len(at):
            start = None if initial is None else initial.movedim(dim, 0)[k]
            out[at] = scan_rows.apply_linear_scan(a[at], b[at], 0, start, reverse)
    return out.movedim(0, dim)


def rowwise_gradient(name, g, t, given):
    """Along dim 0. t: the results of softmax and log_softmax, the elements of logsumexp."""
    out = torch.zeros_like(t)
    for k, at in enumerate(places(given, len(t))):
        if not len(at):
            continue
        (of_t, kind), of_g = _wide(t[at]), _wide(g[k : k + 1] if name == "logsumexp" else g[at])[0]
        with np.errstate(all="ignore"):
            back = getattr(rowwise_rows, f"{name}_gradient")(of_g[:, 0] if name == "logsumexp" else of_g, of_t)
        out[at] = _narrow(back.T, kind)
    return out


def sum_gradient(g, dim, given, n):
    """Each element has its segment's, exactly; those of none have +0."""
    g = g.movedim(dim, 0)
    out = torch.zeros(n, *g.shape[1:], dtype=g.dtype)
    for k, at in enumerate(places(given, n)):
        out[at] = g[k]
    return out.movedim(0, dim)


# ---- scatters: torch's names -----------------------------------------------------------------------------------------


def _product(values):
    """The state (m, e) of rows of accumulators: prod before its result is rounded."""
    one = np.int64(0)
    n = scan_rows.normal
    state = more_rows.residues_of(values, 1, lambda v: n(v, one), lambda s, v: scan_rows.multiply(s, n(v, one)))
    for _ in range(2):
        while state[0].shape[-1] > 1:
            if state[0].shape[-1] % 2:
                edge = [(0, 0)] * (state[0].ndim - 1) + [(0, 1)]
                state = np.pad(state[0], edge, constant_values=1), np.pad(state[1], edge)
            state = scan_rows.multiply(*(tuple(p[..., i::2] for p in state) for i in (0, 1)))
        state = tuple(p[..., 0] for p in state)
    return state


def _combined(own, values, reduce, include_self, alpha):
    """One place of self, (1,), and the rows that meet there, (n > 0,) of the same dtype: what it becomes."""
    (mine, name), (wide, _) = _wide(own[:, None]), _wide(values[:, None])
    mine, acc = mine[:, 0], wide.dtype
    with np.errstate(all="ignore"):
        if reduce in ("amax", "amin"):
            both = torch.cat([own, values]) if include_self else values
            return rows.apply(reduce, both, 0).reshape(1)
        if reduce == "prod":
            if acc == np.int64:
                total = np.multiply.reduce(wide, axis=1, dtype=np.int64)
                return _narrow(mine * total if include_self else total, name)
            state = _product(wide)
            if include_self:
                state = scan_rows.multiply(scan_rows.normal(mine, np.int64(0)), state)
            product = np.ldexp(np.float64(state[0]), np.clip(state[1], -3000, 3000))
            return _narrow(product.astype(acc), name)
        total = rows.canonical_sum(wide)
        if reduce == "sum":
            if not include_self:
                return _narrow(total, name)
            if acc == np.int64:
                return _narrow(mine + np.int64(alpha) * total, name)
            return _narrow(mine + total if alpha == 1 else scan_rows.fma_of(acc.type(alpha), total, mine), name)
        count = acc.type(wide.shape[1] + bool(include_self))  # mean
        total = mine + total if include_self else total
        return _narrow(total // count if acc == np.int64 else total / count, name)


def scatter_reduce(self, dim, index, src, reduce, include_self=True, alpha=1):
    """Places that no element meets keep their bits. `index` may be smaller than src, and than self but along dim."""
    dim %= max(self.dim(), 1)
    if self.dim() == 0:
        return scatter_reduce(self[None], 0, index.reshape(1), src.reshape(1), reduce, include_self, alpha)[0]
    for d in range(self.dim()):
        if index.shape[d] > src.shape[d] or (d != dim and index.shape[d] > self.shape[d]):
            raise RuntimeError("index must not be larger than src, nor than self but along dim")
    if index.numel() and (int(index.min()) < 0 or int(index.max()) >= self.shape[dim]):
        raise RuntimeError(f"an index is out of [0, {self.shape[dim]})")  # a CPU; on a GPU the element is left out
    out = self.clone()
    part = out[tuple(slice(None) if d == dim else slice(0, index.shape[d]) for d in range(self.dim()))]
    src = src[tuple(slice(0, s) for s in index.shape)]
    part, src, index = (t.movedim(dim, 0) for t in (part, src, index))
    for column in np.ndindex(*index.shape[1:]):
        at = (slice(None), *column)
        own, values, numbers = part[at], src[at], index[at]
        for k in numbers.unique().tolist():
            own[k : k + 1] = _combined(own[k : k + 1].clone(), values[numbers == k], reduce, include_self, alpha)
    return out


def scatter_add(self, dim, index, src):
    return scatter_reduce(self, dim, index, src, "sum")


def _along(self, dim, index, source):
    """index of (n,) for each column of source."""
    if self.dim() == 0:
        return index.reshape(())
    shape = [1] * source.dim()
    shape[dim] = -1
    return index.long().reshape(shape).expand(source.shape)


def index_add(self, dim, index, source, alpha=1):
    """self + alpha * (the sum of its rows), in the accumulator: one fma, rounded once."""
    return scatter_reduce(self, dim, _along(self, dim, index, source), source, "sum", alpha=alpha)


def index_reduce(self, dim, index, source, reduce, include_self=True):
    return scatter_reduce(self, dim, _along(self, dim, index, source), source, reduce, include_self)


def index_put(self, indices, values, accumulate=True):
    """Elements meet in row-major order of the indexed result."""
    where = torch.arange(self.numel()).reshape(self.shape)[indices]
    flat, values = where.reshape(-1), values.expand(where.shape).reshape(-1)
    return index_add(self.reshape(-1), 0, flat, values).reshape(self.shape)


def put(self, index, source, accumulate=True):
    """Elements meet in the order in which they stand in source."""
    return index_add(self.reshape(-1), 0, index.reshape(-1), source.reshape(-1)).reshape(self.shape)


def bincount(index, weights, minlength=0):
    size = max(minlength, int(index.max()) + 1 if index.numel() else 0)
    weights = weights if weights.dtype is torch.float32 else weights.double()
    return apply("sum", weights, 0, segments(index, size))


# ---- bags ------------------------------------------------------------------------------------------------------------


def embedding_bag(indices, weight, offsets, mode="sum", per_sample_weights=None, padding_idx=-1):
    """(bags, columns). A bag has the rows of its indices but for the padding, in their order; offsets without the last.
    With weights of samples, the rows times these, rounded to the accumulator."""
    ends = torch.cat([offsets, torch.tensor([len(indices)])]).tolist()
    out = torch.zeros(len(offsets), weight.shape[1], dtype=weight.dtype)
    for k, (begin, end) in enumerate(pairwise(ends)):
        at = torch.arange(begin, end)[indices[begin:end] != padding_idx]
        if not len(at):
            continue  # +0, for max and mean too, as torch has it
        taken = weight[indices[at]]
        if per_sample_weights is None:
            out[k] = rows.apply({"sum": "sum", "mean": "mean", "max": "amax"}[mode], taken, 0)
            continue
        (wide, name), (by, _) = _wide(taken), _wide(per_sample_weights[at][:, None])
        with np.errstate(all="ignore"):
            out[k] = _narrow(rows.canonical_sum(wide * by), name)
    return out


def embedding_bag_gradient(g, indices, size, offsets, mode="sum", per_sample_weights=None, padding_idx=-1):
    """A row has the sum over its places of the gradients of their bags: divided by the number of rows of the bag, or
    multiplied by the weight of the sample, in the accumulator."""
    ends = torch.cat([offsets, torch.tensor([len(indices)])])
    bag = torch.repeat_interleave(torch.arange(len(offsets)), ends.diff())
    kept = indices != padding_idx
    wide = torch.float64 if g.dtype is torch.float64 else torch.float32
    share = g.to(wide)
    if mode == "mean":
        share = share / torch.bincount(bag[kept], minlength=len(offsets)).clamp(min=1)[:, None].to(wide)
    share = share[bag]
    if per_sample_weights is not None:
        share = share * per_sample_weights.to(wide)[:, None]
    return apply("sum", share[kept], 0, segments(indices[kept], size)).to(g.dtype)
