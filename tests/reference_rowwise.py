"""The contract's row-wise ops and their gradients, as reference.py has the reductions:
plain numpy on accumulators (rows, n), no code shared with the library."""

import numpy as np
from reference import canonical_sum, tree
from reference_scans import EXP, exp, fma, fma_of, h, log, polynomial

LEAF = 2048
FAR = np.int64(2**40)  # of a state: referred to exp(l) itself


def csum(step, *inputs, start=-0.0):
    """Canonical sums over the last axis, by step(sum, elements of each input)."""
    F = inputs[0].dtype.type
    rows, n = inputs[0].shape
    if n == 0:
        return np.zeros(rows, F)
    missing = -n % (LEAF if n > 256 else 1 << (n - 1).bit_length())
    valid = np.concatenate([np.ones((rows, n), bool), np.zeros((rows, missing), bool)], axis=1)
    filled = [np.concatenate([x, np.zeros((rows, missing), x.dtype)], axis=1) for x in inputs]

    def cut(x):
        return x.reshape(rows, -1, max(1, min(LEAF, x.shape[1]) // 256), min(256, x.shape[1]))

    filled, valid = [cut(x) for x in filled], cut(valid)
    acc = np.full(valid[:, :, 0].shape, F(-0.0))
    for k in range(valid.shape[2]):
        acc = np.where(valid[:, :, k], step(acc, *(x[:, :, k] for x in filled)), acc)
    return tree(tree(acc))


def leaves(x):
    return [x[:, i : i + LEAF] for i in range(0, x.shape[1], LEAF)]


def merged(states, merge):
    """The contiguous tree; a missing right part passes through."""
    while len(states) > 1:
        states = [merge(*states[i : i + 2]) if i + 1 < len(states) else states[i] for i in range(0, len(states), 2)]
    return states[0]


def column(x):
    return x[:, None]


# ---- sums of exponentials --------------------------------------------------------------------------------------------


def split(x):
    """exp(x) = q 2^n."""
    F = x.dtype.type
    _, log2e, magic, ln2_high, ln2_low, coefficients = EXP[F]
    n = fma(x, F(h(log2e)), F(h(magic))) - F(h(magic))
    r = fma(n, F(h(ln2_low)), fma(n, F(h(ln2_high)), x))
    return polynomial([F(h(c)) for c in coefficients.split()], r), np.where(np.isnan(n), 0, n).astype(np.int64)


def near(m):
    return np.abs(m) < 2.0**20


def terms(x, m):
    """The exponentials of a leaf's elements, referred to its greatest, m."""
    F = x.dtype.type
    farthest, shift = (105, 100) if np.float32 == F else (747, 200)
    safe = np.where(near(m), m, F(0))
    reference = split(safe)[1]
    q, n = split(np.maximum(np.where(np.isnan(x), column(safe), x), column(safe) - F(farthest)))
    close = (q * np.ldexp(F(1), n - column(reference) + shift)) * F(2.0**-shift)
    base = np.where(np.isfinite(m), m, F(0))
    d = np.where(np.isnan(x) | (x > column(base)), F(0), x - column(base))
    return np.where(column(near(m)), close, exp(d))


def exponential_states(x):
    """Of each leaf, and of the row: the greatest element, the sum and n."""
    F = x.dtype.type
    states = []
    for leaf in leaves(x):
        m = np.where(np.isnan(leaf).any(axis=1), F(np.nan), leaf.max(axis=1, initial=-np.inf))
        s = canonical_sum(terms(leaf, m))
        safe = np.where(near(m), m, F(0))
        states.append((m, s, np.where(near(m), split(safe)[1], FAR)))
    if not states:
        rows = x.shape[0]
        states = [(np.full(rows, -np.inf, F), np.zeros(rows, F), np.full(rows, FAR))]
    return states, merged(states, merge_exponentials)


def finite(m):
    return np.where(np.isfinite(m), m, m.dtype.type(0))


def far_sum(state):
    m, s, n = state
    return np.where(n == FAR, s, s / split(np.where(near(m), m, m.dtype.type(0)))[0])


def power(d, F):
    """2^d, 0 where it is not normal."""
    least = -127 if np.float32 == F else -1023
    return np.where(d <= least, F(0), np.ldexp(F(1), np.maximum(d, least + 1)))


def merge_exponentials(a, b):
    F = a[0].dtype.type
    m = np.where(np.isnan(a[0]) | np.isnan(b[0]), F(np.nan), np.maximum(a[0], b[0]))
    both = (a[2] != FAR) & (b[2] != FAR)
    first = a[2] >= b[2]
    big, small = np.where(first, a[1], b[1]), np.where(first, b[1], a[1])
    high, low = np.maximum(a[2], b[2]), np.minimum(a[2], b[2])
    close = fma_of(small, power(np.where(both, low - high, 0), F), big)
    first = a[0] >= b[0]
    fa, fb = far_sum(a), far_sum(b)
    d = finite(np.where(first, b[0], a[0])) - finite(m)
    d = np.where(np.isfinite(m) & (d <= 0), d, F(0)).astype(F)
    distant = fma_of(np.where(first, fb, fa), exp(d), np.where(first, fa, fb))
    s, n = np.where(both, close, distant), np.where(both, high, FAR)
    for here, other in ((a, b), (b, a)):
        absent = other[0] == -np.inf
        s, n = np.where(absent, here[1], s), np.where(absent, here[2], n)
    return m, s.astype(F), n


def sums(x):
    """m and the sum of exp(x - m)."""
    F = x.dtype.type
    _, row = exponential_states(x)
    m = row[0] + F(0)
    s = np.where(np.isfinite(m), far_sum(row), np.where(m == -np.inf, F(0), np.where(m == np.inf, F(1), m)))
    return m, s.astype(F)


def softmax(x):
    F = x.dtype.type
    states, row = exponential_states(x)
    bias = 127 if np.float32 == F else 1023
    results = []
    for leaf, (m, _, n) in zip(leaves(x), states, strict=True):
        d = np.where(n == FAR, 0, n) - np.where(row[2] == FAR, 0, row[2])
        part = F(1) / row[1]
        alone = near(row[0]) & (row[1] == split(np.where(near(row[0]), row[0], F(0)))[0])  # a sum that is its greatest
        close = np.where(d > -bias, part * power(d, F), part * power(d + bias - 1, F) * power(np.int64(1 - bias), F))
        away = np.where(np.isfinite(m) & np.isfinite(row[0]), finite(m) - finite(row[0]), F(0)).astype(F)
        weight = exp(np.minimum(away, F(0)))
        weight = np.where(n == FAR, weight, weight / split(np.where(near(m), m, F(0)))[0]) / row[1]
        factor = np.where(row[2] == FAR, weight, close)
        factor = np.where(m == -np.inf, F(0), factor)
        factor = np.where(np.isfinite(row[0]), factor, F(np.nan)).astype(F)
        parts = terms(leaf, m) * column(factor)
        results.append(np.where(column(alone) & (parts > F(0.5)), F(1), parts))
    return np.concatenate(results, axis=1) if results else x


def log_softmax(x):
    m, s = sums(x)
    bad = ~np.isfinite(m)
    shifted = (x - column(m)) - column(log(np.where(bad, x.dtype.type(1), s)))
    return np.where(column(bad), x.dtype.type(np.nan), shifted)


def softmax_gradient(g, y):
    d = csum(lambda acc, g, y: fma_of(y, g, acc), g, y)
    return (g - column(d)) * y


def log_softmax_gradient(g, y):
    return fma_of(-exp(y), np.broadcast_to(column(canonical_sum(g)), g.shape), g)


def logsumexp(x):
    m, s = sums(x)
    return np.where(np.isfinite(m), m + log(np.where(np.isfinite(m), s, x.dtype.type(1))), m)


def exp_from(x, m):
    """exp(x - m), with the NaN of inf - inf."""
    d = x - column(m)
    return np.where(np.isnan(d), d, exp(np.where(np.isnan(d), x.dtype.type(0), d)))


def logsumexp_gradient(g, x):
    m, s = sums(x)
    return np.where(column(m == -np.inf), x.dtype.type(0), exp_from(x, m) * column(g / s))


def cross_entropy(x, target, weight=None, ignored=-100):
    """The loss of each row, its weight, m and s."""
    F = x.dtype.type
    left_out = target == ignored
    m, s = sums(x)
    w = np.ones(len(x), F) if weight is None else weight[np.where(left_out, 0, target)]
    at = np.take_along_axis(x, column(np.where(left_out, 0, target)), axis=1)[:, 0]
    bad = ~np.isfinite(m)
    loss = np.where(bad, F(np.nan), log(np.where(bad, F(1), s)) - (at - m)) * w
    zero = F(0)
    return (
        np.where(left_out, zero, loss), np.where(left_out, zero, w), np.where(left_out, zero, np.where(bad, np.nan, m)),
        np.where(left_out, zero, np.where(bad, np.nan, s)),
    )  # fmt: skip


def smoothed_cross_entropy(x, target, smoothing, ignored=-100):
    """As cross_entropy, without weights."""
    F = x.dtype.type
    loss, *rest = cross_entropy(x, target, None, ignored)
    high, low = mean_parts(moments(x)[1], F)
    left_out = target == ignored
    at = np.take_along_axis(x, column(np.where(left_out, 0, target)), axis=1)[:, 0]
    distance = (at - high) - low
    loss = np.where(np.isnan(distance) & np.isfinite(logsumexp(x)), F(np.inf), loss + distance * F(smoothing))
    return np.where(left_out, F(0), loss), *rest


def cross_entropy_gradient(g, x, target, weight=None, ignored=-100, to_log=None, smoothing=0.0):
    F, classes = x.dtype.type, x.shape[1]
    _, w, m, s = (part.astype(F) for part in cross_entropy(x, target, weight, ignored))
    p = (g * w).astype(F)
    rest, at = np.full_like(p, F(-0.0)), -p
    if smoothing:
        rest = -(p * F(smoothing / classes))
        at = rest - p * F(1 - smoothing)
    hit = np.arange(classes)[None] == column(target)
    scale = (p if to_log is None else p + to_log) / s
    dx = fma_of(
        exp_from(x, m).astype(F), np.broadcast_to(column(scale), x.shape), np.where(hit, column(at), column(rest))
    )
    return np.where(column(target == ignored), F(0), dx)


def cross_entropy_of_probabilities(x, q, weight, smoothing=0.0):
    """The loss of each row."""
    return -canonical_sum((log_softmax(x) * smoothed(q, smoothing)) * weight)


def cross_entropy_of_probabilities_gradient(g, x, q, weight, smoothing=0.0):
    return log_softmax_gradient((column(-g) * weight) * smoothed(q, smoothing), log_softmax(x))


def smoothed(q, smoothing):
    F = q.dtype.type
    return q * F(1 - smoothing) + F(smoothing / q.shape[1]) if smoothing else q


def entropy(x):
    """The entropy of each row, m and s."""
    F = x.dtype.type
    least = F(EXP[F][0])
    states = []
    for leaf in leaves(x):
        m = np.where(np.isnan(leaf).any(axis=1), F(np.nan), leaf.max(axis=1, initial=-np.inf))
        d = leaf - column(finite(m))
        d = np.where(d > least, d, least)
        e = exp(np.minimum(d, F(0)))
        s, t = canonical_sum(e), csum(lambda acc, d, e: fma_of(d, e, acc), np.minimum(d, F(0)), e)
        ok = np.isfinite(m)
        states.append((m, np.where(ok, s, F(0)), np.where(ok, t, F(0))))

    def merge(a, b):
        m = np.where(np.isnan(a[0]) | np.isnan(b[0]), F(np.nan), np.maximum(a[0], b[0]))
        first = a[0] >= b[0]
        big, small = ([np.where(first, p, q) for p, q in zip(*pair, strict=True)] for pair in ((a, b), (b, a)))
        d = np.where(np.isfinite(m), np.where(np.isfinite(small[0]), finite(small[0]) - finite(big[0]), -np.inf), F(0))
        d = np.where(d > least, d, least).astype(F)
        e = exp(d)
        s, t = fma_of(small[1], e, big[1]), fma_of(e, fma_of(d, small[1], small[2]), big[2])
        ok = np.isfinite(m)
        return m, np.where(ok, s, F(0)).astype(F), np.where(ok, t, F(0)).astype(F)

    if not states:
        return np.zeros(len(x), F), np.full(len(x), -np.inf, F), np.zeros(len(x), F)
    m, s, t = merged(states, merge)
    bad = ~np.isfinite(m)
    result = np.where(bad, F(np.nan), log(np.where(bad, F(1), s)) - t / np.where(bad, F(1), s))
    return result, np.where(bad, F(np.nan), m + F(0)), np.where(bad, F(np.nan), s)


def entropy_gradient(g, x):
    F = x.dtype.type
    result, m, s = entropy(x)
    d = x - column(m)
    y = exp_from(x, m) * column(F(1) / s)
    away = (d - column(log(np.where(np.isnan(s), F(1), s)))) + column(result)
    return np.where(y == 0, F(0), -(column(g) * y) * away)


# ---- moments and norms -----------------------------------------------------------------------------------------------


def moments(x):
    """The sum, the mean and the sum of squared distances, the two latter in float64, and of float64 in units of 2^unit
    and of its square; the unit."""
    F, states = x.dtype.type, []
    single = np.float32 == F
    least, far, up, down = (2.0**-90, 2.0**-20, 96, 72) if single else (2.0**-600, 2.0**-240, 700, 600)
    most, farthest = (np.inf, np.inf) if single else (2.0**960, 2.0**480)

    def look(leaf):
        total = canonical_sum(leaf)
        mean = total / F(leaf.shape[1])
        d = leaf - column(mean)
        sums = canonical_sum(d), csum(lambda acc, d: fma_of(d, d, acc), d)
        unit = np.where((sums[1] < F(least)) & (np.abs(mean) < F(far)), -up, 0)
        unit = np.where((unit == 0) & ~((sums[1] < F(most)) & (np.abs(mean) < F(farthest))), down, unit)
        off, squares = (s.astype(np.float64) for s in sums)
        r = off / leaf.shape[1]
        squares = fma_of(-off, r, squares)
        return total, mean.astype(np.float64) + r, np.where(squares < 0, 0.0, squares), unit

    for leaf in leaves(x):
        total, mean, squares, unit = look(leaf)
        _, *again, _ = look(np.ldexp(leaf, column(-unit)))
        mean, squares = (np.where(unit == 0, a, b) for a, b in zip((mean, squares), again, strict=True))
        if np.float32 == F:
            mean, squares, unit = np.ldexp(mean, unit), np.ldexp(squares, 2 * unit), 0 * unit
        states.append((total, np.full(len(x), leaf.shape[1]), mean, squares, unit))

    def merge(a, b):
        n, unit = a[1] + b[1], np.maximum(a[4], b[4])
        (m, s), (p, t) = (
            (np.ldexp(c[2], np.maximum(c[4] - unit, -up)), np.ldexp(c[3], 2 * np.maximum(c[4] - unit, -up)))
            for c in (a, b)
        )
        w, d = b[1].astype(np.float64) / n.astype(np.float64), p - m
        return a[0] + b[0], n, fma_of(d, w, m), fma_of(d * d, a[1].astype(np.float64) * w, s + t), unit

    if not states:
        zero = np.zeros(len(x))
        return zero.astype(F), zero + np.nan, zero, zero.astype(np.int64)
    total, _, mean, squares, unit = merged(states, merge)
    return total, np.ldexp(mean, unit), squares, unit


def mean_parts(mean, F):
    high = mean.astype(F)
    return high, np.where(np.isfinite(high), (mean - high.astype(np.float64)), 0.0).astype(F)


def variance(x, correction, root=False):
    """The variance or its root, and the mean."""
    F, n = x.dtype.type, x.shape[1]
    total, mean, squares, unit = moments(x)
    value = squares / max(0.0, n - correction)
    value = np.ldexp(np.sqrt(value), unit) if root else np.ldexp(value, 2 * unit)
    return value.astype(F), np.where(np.isfinite(total), total / F(n), mean.astype(F))


def variance_gradient(g, to_mean, x, correction, root=False):
    F, n = x.dtype.type, x.shape[1]
    _, mean, squares, unit = moments(x)
    high, low = mean_parts(mean, F)
    divisor = np.float64(max(0.0, n - correction))
    sd = np.ldexp(np.sqrt(squares / divisor), unit).astype(F)
    k, scale = g.astype(np.float64) * (2.0 / divisor), np.zeros(len(x), np.int64)
    if root:
        far = 64 if np.float32 == F else 512
        scale = np.where(sd > 2.0**far, -far, np.where((sd > 0) & (sd < 2.0**-far), far, 0))
        k = np.where(sd == 0, 0.0, g.astype(np.float64) / (np.ldexp(sd, scale).astype(np.float64) * divisor))
    c = np.full(len(x), F(-0.0)) if to_mean is None else to_mean / F(n)
    d = (np.ldexp(x, column(scale)) - column(np.ldexp(high, scale))) - column(np.ldexp(low, scale))
    return fma_of(d, np.broadcast_to(column(k.astype(F)), d.shape), np.broadcast_to(column(c), d.shape))


def rms_scale(x, eps):
    F = x.dtype.type
    return F(1) / np.sqrt(csum(lambda acc, x: fma_of(x, x, acc), x) / F(x.shape[1]) + F(eps))


def rms_norm(x, weight, eps):
    return (x * column(rms_scale(x, eps))) * weight


def rms_norm_gradient(g, x, weight, eps):
    """Of x and of weight."""
    F, r = x.dtype.type, column(rms_scale(x, eps))
    u, normal = g * weight, x * r
    b = column(csum(lambda acc, u, xh: fma_of(u, xh, acc), u, normal) / F(x.shape[1]))
    dx = fma_of(-normal, np.broadcast_to(b, x.shape), u) * r
    return dx, csum(lambda acc, g, xh: fma_of(g, xh, acc), np.ascontiguousarray(g.T), np.ascontiguousarray(normal.T))


def layer_scale(x, eps):
    F = x.dtype.type
    _, mean, squares, unit = moments(x)
    high, low = mean_parts(mean, F)
    squares = squares / x.shape[1]
    wide = np.ldexp(squares, 2 * unit) + eps
    r = F(1) / np.sqrt(wide.astype(F))
    half = np.where(wide < 1, 96, -96)
    apart = np.ldexp(F(1) / np.sqrt(np.ldexp(wide, 2 * half).astype(F)), half)  # where that is no normal number of F
    if np.float64 == F:
        apart = np.ldexp(1 / np.sqrt(squares), -unit)
    normal = (wide.astype(F) >= np.finfo(F).tiny) & np.isfinite(wide.astype(F))
    return column(high), column(low), column(np.where(normal, r, apart.astype(F)))


def layer_norm(x, weight, bias, eps):
    high, low, r = layer_scale(x, eps)
    normal = ((x - high) - low) * r
    return fma_of(normal, np.broadcast_to(weight, x.shape), np.broadcast_to(bias, x.shape))


def layer_norm_gradient(g, x, weight, eps):
    """Of x, of weight and of bias."""
    F = x.dtype.type
    high, low, r = layer_scale(x, eps)
    normal = ((x - high) - low) * r
    u = g * weight
    a = column(canonical_sum(u) / F(x.shape[1]))
    b = column(csum(lambda acc, u, xh: fma_of(u, xh, acc), u, normal) / F(x.shape[1]))
    dx = fma_of(-normal, np.broadcast_to(b, x.shape), u - a) * r
    columns = np.ascontiguousarray(g.T)
    weights = csum(lambda acc, g, xh: fma_of(g, xh, acc), columns, np.ascontiguousarray(normal.T))
    return dx, weights, canonical_sum(columns)
