"""The scans of the contract but cumsum, as reference.py has the rest: plain numpy, no code shared with the library.

A state is a tuple of arrays of one shape. Functions of states work on all of their places at once; the order in which
they are combined is written out once, in `prefixes`.
"""

import ctypes

import numpy as np
import torch
from reference import (
    FAN,
    FLOATS,
    GROUP,
    accumulator,
    decode,
    name_of,
    round_to,
    rows_of,
    slots,
    to_accumulator,
    to_numpy,
    to_torch,
)


def groups_of(x, absent):
    """(rows, n) to (rows, groups, 8), with `absent` after the end."""
    missing = np.full((x.shape[0], -x.shape[1] % GROUP), absent, x.dtype)
    return np.concatenate([x, missing], axis=1).reshape(x.shape[0], -1, GROUP)


def level(state, absent, combine):
    """Of totals (rows, m): exclusive prefixes within runs of 32 by Sklansky's scan, and the totals of the runs."""
    rows, m = state[0].shape
    filled, lane = [], np.arange(slots(m))
    for part, value in zip(state, absent, strict=True):
        missing = np.full((rows, -m % len(lane)), value, part.dtype)
        filled.append(np.concatenate([part, missing], axis=1).reshape(rows, -1, len(lane)))
    for d in (d for d in (1, 2, 4, 8, 16) if d < len(lane)):
        upper = lane[lane & d != 0]
        left = tuple(part[..., (upper & ~(2 * d - 1)) + d - 1] for part in filled)
        right = tuple(part[..., upper] for part in filled)
        filled = [part.copy() for part in filled]
        for part, new in zip(filled, combine(left, right), strict=True):
            part[..., upper] = new
    shifted = tuple(
        np.concatenate([np.full_like(part[..., :1], value), part[..., :-1]], axis=-1).reshape(rows, -1)[:, :m]
        for part, value in zip(filled, absent, strict=True)
    )
    return shifted, tuple(part[..., -1] for part in filled)


def prefixes(totals, absent, combine, widen, initial=None):
    """What lies before each group, out of the groups' totals: before its block tile, wide, and before it therein.
    `initial` is what lies before each row, wide: absent, if there is none."""
    groups = totals[0].shape[1]
    in_tile, tiles = level(totals, absent, combine)
    in_block, blocks = level(tiles, absent, combine)
    wide_absent = widen(absent)
    in_super, supers = level(widen(blocks), wide_absent, combine)
    first = initial or wide_absent
    fold = [tuple(np.full_like(part[:, 0], value) for part, value in zip(supers, first, strict=True))]
    for s in range(supers[0].shape[1] - 1):
        fold.append(combine(fold[-1], tuple(part[:, s] for part in supers)))
    carry = tuple(np.stack(parts, axis=1) for parts in zip(*fold, strict=True))
    g = np.arange(groups)
    carry = combine(tuple(part[:, g // FAN**3] for part in carry), tuple(part[:, g // FAN**2] for part in in_super))
    return carry, combine(tuple(part[:, g // FAN] for part in in_block), in_tile)


# ---- cummax, cummin --------------------------------------------------------------------------------------------------


def extremes(x, minimum):
    """The latest index of the running extreme, which is NaN from the first NaN on; and the element there."""
    if x.size == 0:
        return x, np.zeros(x.shape, np.int64)
    y = decode(x)
    running = (np.minimum if minimum else np.maximum).accumulate(y, axis=1)
    latest = np.where((y == running) | (y != y), np.arange(x.shape[1]), -1)
    index = np.maximum.accumulate(latest, axis=1)
    found = np.take_along_axis(x, index, axis=1)
    return round_to(decode(found), name_of(x)) if name_of(x) in FLOATS else found, index


def extreme_rows(x, minimum, reverse=False):
    if not reverse:
        return extremes(x, minimum)
    values, index = extremes(x[:, ::-1], minimum)
    return values[:, ::-1], x.shape[1] - 1 - index[:, ::-1]


# ---- cumprod: mantissa and exponent ----------------------------------------------------------------------------------


def normal(m, e):
    """1 <= |m| < 2; zeros, infinities and NaN have the exponent 0."""
    fraction, exponent = np.frexp(m)
    special = (m == 0) | ~np.isfinite(m)
    return np.where(special, m, fraction * m.dtype.type(2)), np.where(special, 0, e + exponent - 1)


def multiply(a, b):
    return normal(a[0] * b[0], a[1] + b[1])


def cumprod(x):
    """The inclusive scan of accumulators (rows, n)."""
    if x.dtype == np.int64:
        return np.multiply.accumulate(x, axis=1)
    state = normal(groups_of(x, 1), np.int64(0))
    for k in range(1, GROUP):
        product = multiply(*(tuple(part[..., i] for part in state) for i in (k - 1, k)))
        for part, new in zip(state, product, strict=True):
            part[..., k] = new

    def widen(s):
        return np.float64(s[0]), s[1]

    carry, within = prefixes(tuple(part[..., -1] for part in state), (x.dtype.type(1), 0), multiply, widen)
    before = multiply(carry, widen(within))
    m, e = multiply(tuple(part[..., None] for part in before), widen(state))
    return np.ldexp(m, np.clip(e, -3000, 3000)).astype(x.dtype).reshape(x.shape[0], -1)[:, : x.shape[1]]


# ---- exp and log -----------------------------------------------------------------------------------------------------

h = float.fromhex


def odd_sum(a, b):
    """a + b, float64, rounded to odd."""
    s = a + b
    t = s - a
    rest = (a - (s - t)) + (b - t)
    bits = s.view(np.int64)
    step = np.where((rest > 0) == (s > 0), 1, -1)
    return np.where(np.isfinite(s) & np.isfinite(rest) & (rest != 0) & (bits & 1 == 0), bits + step, bits).view(
        np.float64
    )


def halves(a):
    """a as the sum of two float64 of 26 bits each (Veltkamp)."""
    c = a * 134217729.0
    high = c - (c - a)
    return high, a - high


def fma(a, b, c):
    """a * b + c rounded once: float32 by way of float64, float64 by Boldo and Melquiond (2008)."""
    dtype = np.result_type(*(t.dtype for t in (a, b, c) if isinstance(t, np.ndarray)))
    a, b, c = (np.asarray(t, dtype).astype(np.float64) for t in (a, b, c))
    a, b, c = np.broadcast_arrays(a, b, c)
    if dtype == np.float32:
        return odd_sum(a * b, c).astype(np.float32)
    product = a * b
    (a1, a2), (b1, b2) = halves(a), halves(b)
    low = ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2
    low = np.where(np.isfinite(low), low, 0.0)
    t = c + low
    z = t - c
    t_rest = (c - (t - z)) + (low - z)
    v = product + t
    z = v - product
    v_rest = (product - (v - z)) + (t - z)
    return np.where(np.isfinite(v), v + odd_sum(t_rest, v_rest), v)


EXP = {
    np.float32: (-104.0, "0x1.715476p+0", "0x1.8p+23", "-0x1.62e4p-1", "-0x1.7f7d1cp-20",
                 "0x1.6a4b82p-10 0x1.124fbcp-7 0x1.5558bep-5 0x1.55546ap-3 0x1.fffffcp-2 0x1p0 0x1p0"),
    np.float64: (-746.0, "0x1.71547652b82fep+0", "0x1.8p+52", "-0x1.62e42fefa0000p-1", "-0x1.cf79abc9e3b3ap-40",
                 "0x1.ad7f79e33a203p-26 0x1.28ad69a43a4c8p-22 0x1.71df253c6ffe1p-19 0x1.a0199a15d8778p-16 "
                 "0x1.a01a012a6800cp-13 0x1.6c16c18426c95p-10 0x1.1111111127ba2p-7 0x1.555555555088ap-5 "
                 "0x1.55555555554fap-3 0x1.000000000000ap-1 0x1p0 0x1p0"),
}  # fmt: skip
LOG32 = ("-0x1.08bb4cp-3 0x1.1e404p-3 -0x1.f31d74p-4 0x1.1ed54cp-3 -0x1.559f82p-3 0x1.99d002p-3 -0x1.fffea4p-3 "
         "0x1.555512p-2 -0x1p-1")  # fmt: skip
LOG64 = (1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01, 2.222219843214978396e-01,
         2.857142874366239149e-01, 3.999999999940941908e-01, 6.666666666666735130e-01)  # fmt: skip


def polynomial(coefficients, x):
    value = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        value = fma(value, x, x.dtype.type(c))
    return value


def exp(x):
    """Of x <= 0; NaN of NaN."""
    F = x.dtype.type
    least, log2e, magic, ln2_high, ln2_low, coefficients = EXP[F]
    x = np.where(x < F(least), F(least), x)
    t = fma(x, F(h(log2e)), F(h(magic)))
    n = t - F(h(magic))
    r = fma(n, F(h(ln2_low)), fma(n, F(h(ln2_high)), x))
    q = polynomial([F(h(c)) for c in coefficients.split()], r)
    n = np.where(np.isnan(n), 0, n).astype(np.int64)
    shift = 100 if np.float32 == F else 200
    return q * np.ldexp(F(1), n + shift) * F(2.0**-shift)


def log(x):
    """Of x >= 1, finite."""
    if x.dtype == np.float32:
        bits = x.view(np.uint32)
        e = (bits - np.uint32(0x3F2AAAAB)) & np.uint32(0xFF800000)
        f = (bits - e).view(np.float32) - np.float32(1)
        q = fma(polynomial([np.float32(h(c)) for c in LOG32.split()], f), f * f, f)
        return fma(e.view(np.int32).astype(np.float32) * np.float32(2.0**-23), np.float32(h("0x1.62e430p-1")), q)
    bits = x.view(np.uint64)
    e = (bits - np.uint64(0x3FE6A09E667F3BCD)) & np.uint64(0xFFF0000000000000)
    f = (bits - e).view(np.float64) - 1.0
    k = (e.view(np.int64) >> 52).astype(np.float64)
    s, w = f / (2.0 + f), 0.5 * f * f
    r = polynomial(LOG64, s * s) * (s * s)
    low = fma(k, np.float64(1.90821492927058770002e-10), s * (w + r))
    return fma(k, np.float64(6.93147180369123816490e-01), f - (w - low))


# ---- logcumsumexp: m + log(s) ----------------------------------------------------------------------------------------


def greater(a, b):
    return np.where(np.isnan(a), a, np.where(np.isnan(b), b, np.where(a < b, b, a)))


def join(left, right):
    """The smaller one rescaled. Where m is infinite or NaN, s is 1: it is never looked at, and stays finite."""
    m = greater(left[0], right[0])
    special = ~np.isfinite(m)
    first = ~(left[0] < right[0])
    big, small = np.where(first, left[1], right[1]), np.where(first, right[1], left[1])
    d = np.where(special, 0, np.where(first, right[0] - left[0], left[0] - right[0])).astype(m.dtype)
    s = fma(small, exp(d).astype(small.dtype), big)
    return m, np.where(special, np.where(m == -np.inf, 0, 1), s).astype(s.dtype)


def logcumsumexp(x):
    """The inclusive scan of accumulators (rows, n)."""
    F = x.dtype.type
    g = groups_of(x, F(-np.inf))
    m = g[..., 0]
    for k in range(1, GROUP):
        m = greater(m, g[..., k])
    special = ~np.isfinite(m)
    terms = exp(np.where(special[..., None], 0, g - m[..., None]).astype(x.dtype))
    s = np.full_like(m, -0.0)
    for k in range(GROUP):
        s = s + terms[..., k]
    total = m, np.where(special, np.where(m == -np.inf, 0, 1), s).astype(x.dtype)

    carry, within = prefixes(total, (F(-np.inf), F(0)), join, lambda t: (t[0], np.float64(t[1])))
    m, s = join(carry, (within[0], within[1].astype(np.float64)))
    state, out = (m, s.astype(x.dtype)), np.empty_like(g)
    for k in range(GROUP):
        state = join(state, (g[..., k], np.ones_like(m)))
        plain = np.isfinite(state[0])
        out[..., k] = np.where(plain, state[0] + log(np.where(plain, state[1], 1).astype(x.dtype)), state[0])
    return out.reshape(x.shape[0], -1)[:, : x.shape[1]]


# ---- decayed sums: the gradient of logcumsumexp ----------------------------------------------------------------------


def decay(to, start):
    d = np.where(to == start, 0, to - start).astype(to.dtype)
    return exp(np.where(d > 0, 0, d).astype(to.dtype))


def merge(left, right):
    factor = decay(right[0], left[0]).astype(left[1].dtype)
    nothing_left, nothing_right = ((t[0] == np.inf) & (t[1] == 0) for t in (left, right))
    drop = nothing_left | (factor == 0)
    r = np.where(drop, right[1], fma(factor, left[1], right[1]))
    return np.where(nothing_right, left[0], right[0]), np.where(nothing_right, left[1], r)


def decayed_sum(g, x, o, reverse=False):
    """Rows of sums over j <= i of g[j] * exp(x[i] - o[j])."""
    if reverse:
        return decayed_sum(g[:, ::-1], x[:, ::-1], o[:, ::-1])[:, ::-1]
    F, n = g.dtype.type, g.shape[1]
    with np.errstate(all="ignore"):
        g, x, o = (groups_of(t, F(absent)) for t, absent in ((g, -0.0), (x, 0.0), (o, np.inf)))
        total = o[..., 0], g[..., 0]
        for k in range(1, GROUP):
            total = merge(total, (o[..., k], g[..., k]))
        carry, within = prefixes(total, (F(np.inf), F(-0.0)), merge, lambda t: (t[0], np.float64(t[1])))
        before = merge(carry, (within[0], within[1].astype(np.float64)))
        state, out = (before[0], before[1].astype(g.dtype)), np.empty_like(g)
        for k in range(GROUP):
            state = merge(state, (o[..., k], g[..., k]))
            out[..., k] = np.where(o[..., k] == -np.inf, 0, decay(x[..., k], o[..., k]) * state[1])
    return out.reshape(out.shape[0], -1)[:, :n]


def logcumsumexp_gradient(g, x, reverse=False):
    """Of rows x, given the results' gradients g: each divided by the sum of exps that is its result's, all as multiples
    of exp of the greatest element up to there."""
    if reverse:
        return logcumsumexp_gradient(g[:, ::-1], x[:, ::-1])[:, ::-1]
    m = np.maximum.accumulate(x, 1)
    w = np.where(m == -np.inf, 0, decay(x, m)).astype(x.dtype)
    s = np.where(m == -np.inf, 1, decayed_sum(w, -m, -m)).astype(x.dtype)
    return decayed_sum((g / s).astype(x.dtype), x, m, reverse=True)


# ---- linear recurrences ----------------------------------------------------------------------------------------------

_fma = ctypes.CDLL("libm.so.6").fma
_fma.restype, _fma.argtypes = ctypes.c_double, [ctypes.c_double] * 3
_fma_each = np.frompyfunc(_fma, 3, 1)


def within(x, exponent):
    return (np.abs(x) > 2.0**-exponent) & (np.abs(x) < 2.0**exponent)


def fma_of(a, b, c):
    """fma for all numbers: that of float64 above is right only far from the limits of its range. The C library's, one
    number after the other, takes five to ten times as long."""
    if np.result_type(a, b, c) == np.float32:
        return fma(a, b, c)
    a, b, c = np.broadcast_arrays(*(np.asarray(t, np.float64) for t in (a, b, c)))
    zero = ((a == 0) | (b == 0)) & np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    far = within(a, 400) & within(b, 400) & (within(c, 800) | (c == 0))
    with np.errstate(all="ignore"):
        out = np.where(zero, a * b + c, fma(*(np.where(far, t, 1.0) for t in (a, b, c))))
    rest = ~(zero | far)
    out[rest] = _fma_each(a[rest], b[rest], c[rest])
    return out


def least(F):
    """What a product of multipliers that underflows is."""
    return 2.0**-149 if np.float32 == F else 2.0**-1074


def multiplied(right, left, tiny):
    """The product of two multipliers, and whether its rounding error is to be kept."""
    product = right * left
    under = np.abs(product) < tiny
    reset = (right == 0) | (left == 0)
    kept = np.where(reset, 0, np.where(under, tiny, product)).astype(product.dtype)
    return kept, ~reset & ~under & np.isfinite(product)


def stepped(a, h, b):
    """a * h + b for one element."""
    return np.where((a == 0) | ((h == 0) & np.isinf(a)), b, fma_of(a, h, b))


def applied(A, L, B, h, tiny):
    """What a run (A, L, B) makes of h."""
    finite = np.isfinite(h)
    inner = np.where(finite, fma_of(L, h, B), B)
    out = fma_of(A, h, inner)
    out = np.where((h == 0) & np.isinf(A), B, out)
    out = np.where(np.abs(A) <= tiny, np.where(finite, B, np.nan), out)
    return np.where(A == 0, B, out).astype(B.dtype)


def linear_scan(a, b, initial=None):
    """The inclusive scan of accumulators (rows, n): h[i] = a[i] * h[i - 1] + b[i], after initial (rows,)."""
    F, n = b.dtype.type, b.shape[1]
    tiny, single = least(F), np.float32 == F
    a = a.copy()
    if initial is None:
        a[:, 0] = 0

    def combine(left, right):
        if len(left) == 2:  # float64 steps of a float32 scan
            (A, B), (C, D) = left, right
            return multiplied(C, A, tiny)[0], applied(C, np.zeros_like(C), D, B, tiny)
        (A, L, B), (C, M, D) = left, right
        product, keeps = multiplied(C, A, tiny)
        lost = fma_of(C, L, fma_of(M, A, fma_of(C, A, -product)))
        return product, np.where(keeps, lost, 0).astype(F), applied(C, M, D, B, tiny)

    def widen(s):
        A, L, B = s
        return (np.float64(A) + np.float64(L), np.float64(B)) if single else s

    q, p = groups_of(a, F(1)), groups_of(b, F(-0.0))
    lost = np.zeros_like(q[..., 0])
    for k in range(1, GROUP):
        factor = q[..., k].copy()
        product, keeps = multiplied(factor, q[..., k - 1], tiny)
        lost = np.where(keeps, fma_of(factor, lost, fma_of(factor, q[..., k - 1], -product)), 0).astype(F)
        p[..., k] = stepped(factor, p[..., k - 1], p[..., k])
        q[..., k] = product
    start = None
    if initial is not None:
        start = (0.0, np.float64(initial)) if single else (0.0, 0.0, initial)
    carry, within = prefixes((q[..., -1], lost, p[..., -1]), (F(1), F(0), F(-0.0)), combine, widen, start)
    w, c = widen(within), carry[-1]
    if not single:
        return stepped(q, applied(*w, c, tiny)[..., None], p).reshape(len(b), -1)[:, :n]
    h = applied(w[0], np.zeros_like(w[0]), w[1], c, tiny)[..., None]
    hi = h.astype(F)
    exact = ~np.isfinite(hi) | (h == hi)
    lo = np.where(exact, F(-0.0), np.where(exact, 0, h - np.where(exact, 0, hi)).astype(F))
    return stepped(q, hi, stepped(q, lo, p)).reshape(len(b), -1)[:, :n]


def linear_scan_rows(a, b, initial=None, reverse=False):
    """Of rows of one dtype, and one initial a row."""
    if reverse:
        return linear_scan_rows(a[:, ::-1], b[:, ::-1], initial)[:, ::-1]
    if b.size == 0:
        return b
    wide = [None if x is None else to_accumulator(x, accumulator(name_of(b), name_of(b))) for x in (a, b, initial)]
    with np.errstate(all="ignore"):
        return round_to(linear_scan(*wide), name_of(b))


def apply_linear_scan(a, b, dim, initial=None, reverse=False):
    """What torchreduce.linear_scan must return, on the CPU."""
    a, b = torch.broadcast_tensors(a, b)
    d = [dim % max(b.dim(), 1)]
    moved = b.movedim(dim, -1) if b.dim() else b
    if initial is not None:
        initial = to_numpy(initial.expand(moved.shape[:-1])).reshape(-1)
    out = linear_scan_rows(rows_of(a, d), rows_of(b, d), initial, reverse).reshape(moved.shape)
    return to_torch(np.moveaxis(out, -1, dim) if b.dim() else out)


# ---- rows ------------------------------------------------------------------------------------------------------------


def scan_rows(scan, start, x, dtype=None, exclusive=False, reverse=False):
    dtype = dtype or (name_of(x) if name_of(x) in FLOATS else "int64")
    if reverse:
        return scan_rows(scan, start, x[:, ::-1], dtype, exclusive)[:, ::-1]
    wide = to_accumulator(x, accumulator(name_of(x), dtype))
    with np.errstate(all="ignore"):
        out = round_to(scan(wide) if x.size else wide, dtype)
    if exclusive and x.shape[1]:
        first = round_to(np.full((x.shape[0], 1), start, wide.dtype), dtype)
        out = np.concatenate([first, out[:, :-1]], axis=1)
    return out


SCANS = {
    "cumprod": lambda x, **options: scan_rows(cumprod, 1, x, **options),
    "logcumsumexp": lambda x, **options: scan_rows(logcumsumexp, -np.inf, x, **options),
    "cummax": lambda x, **options: extreme_rows(x, False, **options),
    "cummin": lambda x, **options: extreme_rows(x, True, **options),
}
