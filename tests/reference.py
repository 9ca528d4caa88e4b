"""The numerics contract (docs/numerics.md) in plain numpy: slow, obviously right, and the judge of every kernel.

It shares no code with the library. The first half works on rows, arrays of shape (rows, n) whose last axis is the one
reduced or scanned; the second half brings torch tensors, with any dims and strides, to rows and back.
In numpy bfloat16 is its bits, as uint16, which is no dtype of the library, so nothing is ambiguous.
"""

import numpy as np
import torch

LEAF, RESIDUES = 2048, 256
GROUP, FAN = 8, 32
INT64_MIN = np.iinfo(np.int64).min

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
DTYPES = (*FLOATS, *INTEGERS, "bool")
CANONICAL_NAN = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC00000, "float64": 0x7FF8000000000000}


# ---- element types ---------------------------------------------------------------------------------------------------


def name_of(array):
    """The library's name of an array's dtype."""
    return "bfloat16" if array.dtype == np.uint16 else array.dtype.name


def storage(dtype):
    """The numpy dtype that holds elements of the library's dtype."""
    return np.dtype(np.uint16 if dtype == "bfloat16" else dtype)


def decode(x):
    """bfloat16 bits as float32, exactly; everything else as it is."""
    return (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x


def round_to(values, dtype):
    """Accumulators rounded to dtype once, to nearest, ties to even. Integers wrap; every NaN is the canonical one."""
    with np.errstate(all="ignore"):
        if dtype == "bool":
            return values != 0
        if dtype not in FLOATS:
            return values.astype(dtype)
        if dtype == "bfloat16":
            # A bfloat16 is a multiple of 2^(exponent - 8), with 2^-133 as the smallest: round to that multiple,
            # exactly, in float64. What reaches 2^128 overflows in the conversion to float32.
            wide = values.astype(np.float64)
            quantum = np.ldexp(1.0, np.maximum(np.frexp(wide)[1], -125) - 8)
            rounded = np.where(np.isinf(wide), wide, np.rint(wide / quantum) * quantum).astype(np.float32)
            result = (rounded.view(np.uint32) >> 16).astype(np.uint16)
        else:
            result = values.astype(dtype)
        bits = result.view(f"uint{8 * result.itemsize}")
        return np.where(np.isnan(values), bits.dtype.type(CANONICAL_NAN[dtype]), bits).view(storage(dtype))


def accumulator(source, dtype):
    """int64 for integer results; float64 if the input or the result is float64; else float32."""
    if dtype not in FLOATS:
        return np.dtype(np.int64)
    return np.dtype(np.float64 if "float64" in (source, dtype) else np.float32)


def to_accumulator(x, acc):
    """Floats enter a float accumulator exactly, integers are rounded once; floats are truncated to int64."""
    x = decode(x)
    if acc != np.int64 or x.dtype.kind != "f":
        return x.astype(acc)
    with np.errstate(all="ignore"):
        inside = (x >= -(2.0**63)) & (x < 2.0**63)  # false for NaN
        return np.where(inside, np.trunc(np.where(inside, x, 0)).astype(np.int64), INT64_MIN)


def absent(acc):
    """What stands for a term that is not there: the exact identity of addition."""
    return acc.type(-0.0) if acc.kind == "f" else acc.type(0)


def pad(values, multiple):
    """values with absent terms after the last axis, up to a multiple."""
    missing = -values.shape[-1] % multiple
    end = np.full((*values.shape[:-1], missing), absent(values.dtype), values.dtype)
    return np.concatenate([values, end], axis=-1)


def add(left, right):
    """One rounding; integers modulo 2^64."""
    with np.errstate(all="ignore"):
        return left + right


# ---- reductions ------------------------------------------------------------------------------------------------------


def tree(values):
    """The contiguous pairwise tree over the last axis: neighbours, then pairs of neighbours, and so on."""
    while values.shape[-1] > 1:
        values = pad(values, 2)
        values = add(values[..., 0::2], values[..., 1::2])
    return values[..., 0]


def canonical_sum(x):
    """Accumulators (rows, n) to (rows,): leaves of 2048, in them 256 residues in order, then trees. +0 if n is 0."""
    if x.size == 0:
        return np.zeros(x.shape[0], x.dtype)
    if x.shape[1] <= RESIDUES:  # the others have nothing but absent terms
        return tree(x)
    leaves = pad(x, LEAF).reshape(x.shape[0], -1, LEAF // RESIDUES, RESIDUES)
    residues = leaves[:, :, 0]
    for k in range(1, LEAF // RESIDUES):
        residues = add(residues, leaves[:, :, k])
    return tree(tree(residues))


def sum_rows(x, dtype=None):
    dtype = dtype or (name_of(x) if name_of(x) in FLOATS else "int64")
    if dtype == "bool":
        return (decode(x) != 0).any(axis=1)
    return round_to(canonical_sum(to_accumulator(x, accumulator(name_of(x), dtype))), dtype)


def mean_rows(x, dtype=None):
    dtype = dtype or name_of(x)
    total = canonical_sum(to_accumulator(x, accumulator(name_of(x), dtype)))
    with np.errstate(all="ignore"):
        return round_to(total / np.int64(x.shape[1]).astype(total.dtype), dtype)


def arg_rows(x, minimum):
    """The first NaN, else the first of the greatest (or least); zeros compare equal."""
    if x.shape[0] == 0:
        return np.zeros(0, np.int64)
    x = decode(x)
    nan = np.isnan(x) if x.dtype.kind == "f" else np.zeros(x.shape, bool)
    best = x.min(axis=1, keepdims=True) if minimum else x.max(axis=1, keepdims=True)
    return np.where(nan.any(axis=1, keepdims=True), nan, x == best).argmax(axis=1).astype(np.int64)


def argmax_rows(x):
    return arg_rows(x, False)


def argmin_rows(x):
    return arg_rows(x, True)


def element_at(x, index):
    """x[row, index[row]], a NaN written canonical."""
    found = np.take_along_axis(x, index[:, None], axis=1)[:, 0]
    return round_to(decode(found), name_of(x)) if name_of(x) in FLOATS else found


def max_rows(x):
    return element_at(x, argmax_rows(x)), argmax_rows(x)


def min_rows(x):
    return element_at(x, argmin_rows(x)), argmin_rows(x)


def extreme_rows(x, minimum):
    """The value alone, -0.0 < +0.0: where it is a zero, the row's +0.0 is the greatest and its -0.0 the least."""
    values = element_at(x, arg_rows(x, minimum))
    if name_of(x) not in FLOATS or x.shape[0] == 0:
        return values
    wanted = ((decode(x) == 0) & (np.signbit(decode(x)) == minimum)).argmax(axis=1)  # element 0 where there is none
    other = element_at(x, wanted)
    return np.where((decode(values) == 0) & (decode(other) == 0), other, values)


def amax_rows(x):
    return extreme_rows(x, False)


def amin_rows(x):
    return extreme_rows(x, True)


# ---- scans -----------------------------------------------------------------------------------------------------------


def slots(m):
    """Of m totals: 32 a run, or, if they are one run, so many that the others would have nothing but absent terms."""
    return min(FAN, 1 << max(m - 1, 0).bit_length())


def sklansky(totals):
    """Inclusive prefixes over a last axis of 32 slots, or another power of two."""
    lane = np.arange(totals.shape[-1])
    for d in (d for d in (1, 2, 4, 8, 16) if d < len(lane)):
        adds = lane[lane & d != 0]
        left = totals[..., (adds & ~(2 * d - 1)) + d - 1]
        totals = totals.copy()
        totals[..., adds] = add(left, totals[..., adds])
    return totals


def shift(inclusive):
    """Inclusive prefixes to exclusive ones: absent, then all but the last."""
    return np.concatenate([np.full_like(inclusive[..., :1], absent(inclusive.dtype)), inclusive[..., :-1]], axis=-1)


def scan_level(totals):
    """Totals (rows, m) to exclusive prefixes (rows, m) within runs of 32, and the totals of the runs (rows, m / 32)."""
    rows, m = totals.shape
    inclusive = sklansky(pad(totals, slots(m)).reshape(rows, -1, slots(m)))
    return shift(inclusive).reshape(rows, -1)[:, :m], inclusive[..., -1]


def canonical_cumsum(x):
    """The inclusive scan of accumulators (rows, n)."""
    rows, n = x.shape
    if x.size == 0:
        return x
    p = pad(x, GROUP).reshape(rows, -1, GROUP).copy()
    for k in range(1, GROUP):
        p[..., k] = add(p[..., k - 1], p[..., k])
    in_tile, tile_totals = scan_level(p[..., -1])  # G
    in_block, block_totals = scan_level(tile_totals)  # W
    wide = x.dtype if x.dtype != np.float32 else np.dtype(np.float64)
    in_super, super_totals = scan_level(block_totals.astype(wide))
    fold = np.full_like(super_totals, absent(wide))
    for s in range(1, fold.shape[1]):
        fold[:, s] = add(fold[:, s - 1], super_totals[:, s - 1])

    groups = np.arange(p.shape[1])
    tiles, blocks, supers = groups // FAN, groups // FAN**2, groups // FAN**3
    carry = add(fold[:, supers], in_super[:, blocks])  # c
    b = add(carry, add(in_block[:, tiles], in_tile).astype(wide))[..., None]
    if x.dtype != np.float32:
        return add(b, p).reshape(rows, -1)[:, :n]
    with np.errstate(all="ignore"):
        hi = b.astype(np.float32)
        lo = np.where(np.isfinite(hi) & (b != hi), (b - hi).astype(np.float32), np.float32(-0.0))
        overflow = np.isfinite(b) & ~np.isfinite(hi)
        out = np.where(overflow, (b + p).astype(np.float32), hi + (lo + p))
    return out.reshape(rows, -1)[:, :n]


def cumsum_rows(x, dtype=None, exclusive=False, reverse=False):
    dtype = dtype or (name_of(x) if name_of(x) in FLOATS else "int64")
    if reverse:
        return cumsum_rows(x[:, ::-1], dtype, exclusive)[:, ::-1]
    out = round_to(canonical_cumsum(to_accumulator(x, accumulator(name_of(x), dtype))), dtype)
    if exclusive and x.shape[1]:
        out = np.concatenate([np.zeros_like(out[:, :1]), out[:, :-1]], axis=1)
    return out


# ---- torch tensors ---------------------------------------------------------------------------------------------------


def to_numpy(tensor):
    tensor = tensor.detach().resolve_conj().resolve_neg().cpu()
    return tensor.view(torch.int16).numpy().view(np.uint16) if tensor.dtype == torch.bfloat16 else tensor.numpy()


def to_torch(array):
    array = np.array(array, order="C")  # torch takes no negative strides
    return (
        torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        if array.dtype == np.uint16
        else torch.from_numpy(array)
    )


def dims_of(tensor, dim):
    """The dims reduced, ascending and not negative; None and () are all of them."""
    if dim is None or dim == ():
        return list(range(tensor.dim()))
    return sorted(d % max(tensor.dim(), 1) for d in ((dim,) if isinstance(dim, int) else dim))


def rows_of(tensor, dims):
    """(rows, n): the kept dims row-major, then the reduced ones row-major."""
    dims = [d for d in dims if d < tensor.dim()]  # dim 0 of a 0-d tensor
    kept = [d for d in range(tensor.dim()) if d not in dims]
    n = int(np.prod([tensor.shape[d] for d in dims], dtype=np.int64))
    rows = int(np.prod([tensor.shape[d] for d in kept], dtype=np.int64))
    return to_numpy(tensor).transpose(kept + dims).reshape(rows, n)


REDUCTIONS = {"sum": sum_rows, "mean": mean_rows, "amax": amax_rows, "amin": amin_rows, "argmax": argmax_rows,
              "argmin": argmin_rows, "max": max_rows, "min": min_rows}  # fmt: skip


def apply(name, tensor, dim=None, keepdim=False, dtype=None, **options):
    """What torchreduce.<name> must return, as a tensor on the CPU, or a tuple of two for max and min with a dim.

    dtype is a torch.dtype, as in the public functions. A reduction without a rule here is exact in any order, and
    torch's counterpart is its judge.
    """
    if dtype is not None:
        options["dtype"] = str(dtype).removeprefix("torch.")
    from reference_reductions import REDUCTIONS as OTHERS  # which are made of what is above
    from reference_scans import SCANS

    scans = {"cumsum": cumsum_rows, **SCANS}
    if name in scans:
        d = dims_of(tensor, dim)
        rows = rows_of(tensor, d)
        out = scans[name](rows, **options)
        moved = [size for i, size in enumerate(tensor.shape) if i not in d] + [
            tensor.shape[i] for i in d if tensor.dim()
        ]

        def back(part):
            return to_torch(np.moveaxis(part.reshape(moved), -1, d[0]) if tensor.dim() else part.reshape(()))

        return tuple(map(back, out)) if isinstance(out, tuple) else back(out)
    dims = dims_of(tensor, dim)
    if name in ("max", "min") and (dim is None or dim == ()):
        name = "a" + name
    rows = rows_of(tensor, dims)
    rules = {**REDUCTIONS, **OTHERS}
    out = rules[name](rows, **options) if name in rules else to_numpy(getattr(torch, name)(to_torch(rows), 1))
    shape = [1 if i in dims else size for i, size in enumerate(tensor.shape) if keepdim or i not in dims]
    if isinstance(out, tuple):
        return tuple(to_torch(part.reshape(shape)) for part in out)
    return to_torch(out.reshape(shape))
