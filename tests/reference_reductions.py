"""The reductions of reference.py whose elements are not simply added, in plain numpy, too."""

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
from reference_scans import fused, multiply, normal


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
        squares = residues_of(values, 0, lambda v: fused(v, v, zero), lambda s, v: fused(v, v, s))
        return round_to(np.sqrt(tree(tree(squares))), dtype)


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
    "norm_greatest": norm_greatest_rows, "norm_least": norm_least_rows, "prod": prod_rows,
}  # fmt: skip
