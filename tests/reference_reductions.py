"""The reductions of reference.py whose elements are not simply added, in plain numpy, too."""

import math

import numpy as np
from reference import (
    FLOATS,
    LEAF,
    RESIDUES,
    accumulator,
    amax_rows,
    amin_rows,
    canonical_sum,
    decode,
    name_of,
    round_to,
    to_accumulator,
    tree,
)
from reference_scans import fma_of, multiply, normal


def residues_of(x, absent, enter, step):
    """Accumulators (rows, n) to (rows, leaves, 256): each residue's elements in order. n is at least 1."""
    missing = -x.shape[1] % (LEAF if x.shape[1] > RESIDUES else 1 << (x.shape[1] - 1).bit_length())
    x = np.concatenate([x, np.full((x.shape[0], missing), absent, x.dtype)], axis=1)
    leaves = x.reshape(x.shape[0], -1, max(1, min(LEAF, x.shape[1]) // RESIDUES), min(RESIDUES, x.shape[1]))
    state = enter(leaves[:, :, 0])
    for k in range(1, leaves.shape[2]):
        state = step(state, leaves[:, :, k])
    return state


def nansum_rows(x, dtype=None):
    dtype = dtype or name_of(x)
    values = to_accumulator(x, accumulator(name_of(x), dtype))
    return round_to(canonical_sum(np.where(np.isnan(values), values.dtype.type(0), values)), dtype)


def norm1_rows(x, dtype=None):
    dtype = dtype or name_of(x)
    return round_to(canonical_sum(np.abs(to_accumulator(x, accumulator(name_of(x), dtype)))), dtype)


def norm2_rows(x, dtype=None):
    dtype = dtype or name_of(x)
    values = to_accumulator(x, accumulator(name_of(x), dtype))
    with np.errstate(all="ignore"):
        if values.shape[1] == 0:
            return round_to(np.zeros(x.shape[0], values.dtype), dtype)
        zero = values.dtype.type(-0.0)
        squares = residues_of(values, 0, lambda v: fma_of(v, v, zero), lambda s, v: fma_of(v, v, s))
        return round_to(np.sqrt(tree(tree(squares))), dtype)


def series(coefficients, x):
    """Of the highest power first, without fma."""
    value = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        value = value * x + c
    return value


def power(a, p):
    """a^p of magnitudes in float64: exp(p log a)."""
    high, low = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")
    f, e = np.frexp(np.where((a > 0) & (a < np.inf), a, 1.0))
    small = f < math.sqrt(0.5)
    f, e = np.where(small, 2 * f, f), (e - small).astype(np.float64)
    s = (f - 1) / (f + 1)
    log = e * high + (2 * (s * series([1 / k for k in range(25, 0, -2)], s * s)) + e * low)
    y = np.clip(p * log, -1500, 1500)
    n = np.rint(y * (1 / math.log(2)))
    r = (y - n * high) - n * low
    exp = np.ldexp(series([1 / math.factorial(k) for k in range(14, -1, -1)], r), n.astype(np.int64))
    at_zero, at_infinity = (0.0, np.inf) if p > 0 else (np.inf, 0.0)
    return np.where(np.isnan(a), a, np.where(a == 0, at_zero, np.where(a == np.inf, at_infinity, exp)))


def norm_of_order(x, p, dtype=None):
    """Of any order but 0, 1, 2, inf and -inf."""
    dtype = dtype or name_of(x)
    with np.errstate(all="ignore"):
        a = np.abs(decode(x).astype(np.float64))
        if x.shape[1] == 0:
            return round_to(np.full(x.shape[0], 0.0 if p > 0 else np.inf), dtype)
        most = a.max(axis=1, keepdims=True) if p > 0 else a.min(axis=1, keepdims=True)
        most = np.where((most == 0) | (most == np.inf), 1, most)
        return round_to(power(canonical_sum(power(a / most, p)), 1 / p) * most[:, 0], dtype)


def norm0_rows(x, dtype=None):
    dtype = dtype or name_of(x)
    return round_to((decode(x) != 0).sum(axis=1).astype(np.float64), dtype)


def _farthest(extreme, x, dtype):
    size = x & np.uint16(0x7FFF) if name_of(x) == "bfloat16" else np.abs(x)
    found = extreme(size)
    return found if dtype in (None, name_of(x)) else round_to(decode(found).astype(np.float64), dtype)


def norm_greatest_rows(x, dtype=None):
    return _farthest(amax_rows, x, dtype)


def norm_least_rows(x, dtype=None):
    return _farthest(amin_rows, x, dtype)


def prod_rows(x, dtype=None):
    dtype = dtype or (name_of(x) if name_of(x) in FLOATS else "int64")
    values = to_accumulator(x, accumulator(name_of(x), dtype))
    if values.dtype == np.int64:
        with np.errstate(all="ignore"):
            return round_to(np.multiply.reduce(values, axis=1, dtype=np.int64), dtype)
    with np.errstate(all="ignore"):
        if values.shape[1] == 0:
            return round_to(np.ones(x.shape[0], values.dtype), dtype)
        one = np.int64(0)
        state = residues_of(values, 1, lambda v: normal(v, one), lambda s, v: multiply(s, normal(v, one)))
        for _ in range(2):  # of the residues, then of the leaves
            while state[0].shape[-1] > 1:
                if state[0].shape[-1] % 2:
                    pad = [(0, 0)] * (state[0].ndim - 1) + [(0, 1)]
                    state = np.pad(state[0], pad, constant_values=1), np.pad(state[1], pad)
                state = multiply(*(tuple(part[..., i::2] for part in state) for i in (0, 1)))
            state = tuple(part[..., 0] for part in state)
        m, e = state
        wide = np.ldexp(m.astype(np.float64), np.clip(e, -3000, 3000))
        return round_to(wide.astype(values.dtype), dtype)


REDUCTIONS = {
    "nansum": nansum_rows, "norm0": norm0_rows, "norm1": norm1_rows, "norm2": norm2_rows,
    "norm_greatest": norm_greatest_rows, "norm_least": norm_least_rows, "vector_norm": norm_of_order, "prod": prod_rows,
}  # fmt: skip
