"""The states of sums of exponentials, of runs of leaves, and what they come to: docs/numerics.md, "Row-wise ops".

The kernels of logsumexp, cross_entropy and entropy make and merge these states inside. Here they are tensors, so that
they can travel. Everything is in the accumulator type F, by IEEE operations and fused multiply-adds, as in
csrc/ops/rowwise.h and csrc/numerics/explog.h.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..ops import amax
from ..ops import sum as canonical_sum
from .arithmetic import exp, fma, sum_products
from .sharded import LEAF

FAR = 2.0**40  # as n: the sum is relative to exp of the greatest element
INF = float("inf")


class State(NamedTuple):
    """Of a run of leaves of each row: the greatest element, the sum s of exponentials relative to 2^n, and n."""

    top: Tensor
    s: Tensor
    n: Tensor


class EntropyState(NamedTuple):
    """Likewise: s the sum of exp(x - top), t that of exp(x - top) * (x - top)."""

    top: Tensor
    s: Tensor
    t: Tensor


S = TypeVar("S", State, EntropyState)


def _numbers(text: str) -> list[float]:
    return [float.fromhex(number) for number in text.split()]


# log2 e, what rounds to an integer by its addition, -ln 2 in two parts; the polynomial of exp, from its last term on.
_SPLIT = {
    torch.float32: _numbers("0x1.715476p+0 0x1.8p+23 -0x1.62e4p-1 -0x1.7f7d1cp-20"),
    torch.float64: _numbers("0x1.71547652b82fep+0 0x1.8p+52 -0x1.62e42fefa0000p-1 -0x1.cf79abc9e3b3ap-40"),
}
_EXP = {
    torch.float32: _numbers("0x1.6a4b82p-10 0x1.124fbcp-7 0x1.5558bep-5 0x1.55546ap-3 0x1.fffffcp-2 0x1p0 0x1p0"),
    torch.float64: _numbers(
        "0x1.ad7f79e33a203p-26 0x1.28ad69a43a4c8p-22 0x1.71df253c6ffe1p-19 0x1.a0199a15d8778p-16 0x1.a01a012a6800cp-13 "
        "0x1.6c16c18426c95p-10 0x1.1111111127ba2p-7 0x1.555555555088ap-5 0x1.55555555554fap-3 0x1.000000000000ap-1 "
        "0x1p0 0x1p0"
    ),
}
_LOG = {
    torch.float32: _numbers(
        "-0x1.08bb4cp-3 0x1.1e404p-3 -0x1.f31d74p-4 0x1.1ed54cp-3 -0x1.559f82p-3 0x1.99d002p-3 -0x1.fffea4p-3 "
        "0x1.555512p-2 -0x1p-1"
    ),
    torch.float64: _numbers(
        "0x1.2f112df3e5244p-3 0x1.39a09d078c69fp-3 0x1.7466496cb03dep-3 0x1.c71c51d8e78afp-3 0x1.2492494229359p-2 "
        "0x1.999999997fa04p-2 0x1.5555555555593p-1"
    ),
}
# ln 2; of float64 its high and low part.
_LN2, _LN2_HIGH, _LN2_LOW = _numbers("0x1.62e430p-1 0x1.62e42feep-1 0x1.a39ef35793c76p-33")


def _polynomial(coefficients: list[float], x: Tensor) -> Tensor:
    value = torch.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        value = fma(value, x, c)
    return value


def split_exp(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return q and n of exp(x) = q 2^n, of numbers of magnitude below 2^20; n is an integer of x's dtype."""
    log2e, magic, high, low = (torch.full_like(x, number) for number in _SPLIT[x.dtype])
    n = fma(x, log2e, magic) - magic
    return _polynomial(_EXP[x.dtype], fma(n, low, fma(n, high, x))), n


def power(n: Tensor) -> Tensor:
    """Return 2^n of integers n up to 127 (1023); 0 where that is not a normal number."""
    bits, mantissa, bias = (torch.int32, 23, 127) if n.dtype == torch.float32 else (torch.int64, 52, 1023)
    return ((n.clamp(min=-bias).to(bits) + bias) << mantissa).view(n.dtype)


def log(x: Tensor) -> Tensor:
    """Return torchreduce's log, of finite numbers that are 1 or more."""
    narrow = x.dtype == torch.float32
    bits = x.view(torch.int32 if narrow else torch.int64)
    start, mask = (0x3F2AAAAB, -(1 << 23)) if narrow else (0x3FE6A09E667F3BCD, -(1 << 52))
    e = (bits - start) & mask
    f = (bits - e).view(x.dtype) - 1.0
    k = (e >> (23 if narrow else 52)).to(x.dtype)
    if narrow:
        return fma(k, torch.full_like(k, _LN2), fma(_polynomial(_LOG[x.dtype], f), f * f, f))
    s, w = f / (2.0 + f), 0.5 * f * f
    r = _polynomial(_LOG[x.dtype], s * s) * (s * s)
    low = fma(k, torch.full_like(k, _LN2_LOW), s * (w + r))
    return fma(k, torch.full_like(k, _LN2_HIGH), f - (w - low))


def near(top: Tensor) -> Tensor:
    """Whether exponentials are relative to a power of two."""
    close: Tensor = top.abs() < 2.0**20
    return close


def leaf_states(x: Tensor) -> State:
    """Of leaves x, of shape (rows, leaves, up to 2048 elements) in F: states of shape (rows, leaves)."""
    shape, x = x.shape[:-1], x.reshape(-1, x.shape[-1])
    farthest, headroom = (105.0, 100) if x.dtype == torch.float32 else (747.0, 200)
    top = amax(x, 1)
    safe = torch.where(near(top), top, 0.0)
    base = torch.where(top.isfinite(), top, 0.0)
    # the greatest of elements with a NaN is NaN: s does not matter then
    close = torch.maximum(torch.where(x.isnan() | ~near(top)[:, None], safe[:, None], x), safe[:, None] - farthest)
    q, n = split_exp(close)
    big = split_exp(safe)[1]
    terms = (q * power(n - big[:, None] + headroom)) * 2.0**-headroom
    d = torch.where(x.isnan() | (x > base[:, None]), 0.0, x - base[:, None])
    s = canonical_sum(torch.where(near(top)[:, None], terms, exp(d)), 1)
    state = State(top, s, torch.where(near(top), big, FAR))
    return State(*(t.view(shape) for t in state))


def far_sum(state: State) -> Tensor:
    """Return s relative to exp of the greatest element."""
    q = split_exp(torch.where(near(state.top), state.top, 0.0))[0]
    return torch.where(state.n == FAR, state.s, state.s / q)


def merge(a: State, b: State) -> State:
    """Of neighbouring runs of leaves; states of shape (rows, ...)."""
    top = torch.where(a.top.isnan(), a.top, torch.where(b.top.isnan(), b.top, torch.maximum(a.top, b.top)))
    both = (a.n != FAR) & (b.n != FAR)
    first = a.n >= b.n
    big, small = torch.where(first, a.s, b.s), torch.where(first, b.s, a.s)
    high, low = torch.maximum(a.n, b.n), torch.minimum(a.n, b.n)
    close = fma(small, power(torch.where(both, low - high, 0.0)), big)
    first = a.top >= b.top
    of_a, of_b = far_sum(a), far_sum(b)
    d = torch.where(first, b.top, a.top) - top
    d = torch.where(d.isfinite() & (d <= 0), d, 0.0)
    weight = exp(d.reshape(d.shape[0], -1)).view(d.shape)
    distant = fma(torch.where(first, of_b, of_a), weight, torch.where(first, of_a, of_b))
    s, n = torch.where(both, close, distant), torch.where(both, high, FAR)
    s, n = torch.where(top.isfinite(), s, 1.0), torch.where(top.isfinite(), n, FAR)
    for here, other in ((a, b), (b, a)):
        absent = other.top == -INF
        s, n = torch.where(absent, here.s, s), torch.where(absent, here.n, n)
    return State(top, s, n)


def entropy_leaves(x: Tensor) -> EntropyState:
    """As leaf_states, of the sums of entropy."""
    shape, x = x.shape[:-1], x.reshape(-1, x.shape[-1])
    top = amax(x, 1)
    d = _clamped(x - torch.where(top.isfinite(), top, 0.0)[:, None])
    e = exp(d)
    s, t = (torch.where(top.isfinite(), v, 0.0) for v in (canonical_sum(e, 1), sum_products(d, e)))
    return EntropyState(top.view(shape), s.view(shape), t.view(shape))


def merge_entropy(a: EntropyState, b: EntropyState) -> EntropyState:
    first = (a.top >= b.top) | a.top.isnan()
    big, small = (EntropyState(*(torch.where(f, u, v) for u, v in zip(a, b, strict=True))) for f in (first, ~first))
    top = torch.where(b.top.isnan(), b.top, big.top)
    d = _clamped(small.top - big.top)
    e = exp(d.reshape(d.shape[0], -1)).view(d.shape)
    s, t = fma(small.s, e, big.s), fma(e, fma(d, small.s, small.t), big.t)
    return EntropyState(top, *(torch.where(top.isfinite(), v, 0.0) for v in (s, t)))


def _clamped(d: Tensor) -> Tensor:
    """Distances from the greatest element, for exp: from -104 (-746) to 0; of NaN the former."""
    least = -104.0 if d.dtype == torch.float32 else -746.0
    return torch.where(d > least, d, least).clamp(max=0)


@dataclass(frozen=True)
class Sums(Generic[S]):
    """A way to sum over a row: the states of leaves, and how neighbouring ones merge."""

    state: type[S]
    leaves: Callable[[Tensor], S]
    merge: Callable[[S, S], S]

    def of_node(self, x: Tensor) -> S:
        """Of rows x, of shape (rows, elements) in F, that are a node of the tree over leaves: of shape (rows,)."""
        x = torch.nn.functional.pad(x, (0, -x.shape[1] % LEAF), value=-INF)  # exponentials of 0: no bit changes
        state = self.leaves(x.view(x.shape[0], -1, LEAF))
        while (count := state[0].shape[1]) > 1:
            pairs = count // 2 * 2
            left, right = (self.state(*(t[:, k:pairs:2] for t in state)) for k in (0, 1))
            merged = self.merge(left, right)
            state = self.state(*(torch.cat([new, old[:, pairs:]], 1) for new, old in zip(merged, state, strict=True)))
        return self.state(*(t[:, 0] for t in state))


EXPONENTIALS = Sums(State, leaf_states, merge)
ENTROPY = Sums(EntropyState, entropy_leaves, merge_entropy)


def sums(state: State) -> tuple[Tensor, Tensor]:
    """Return the greatest element m of each row and the sum of exp(x - m): what logsumexp saves."""
    m = state.top + 0.0
    one = torch.where(m == -INF, 0.0, torch.where(m == INF, 1.0, m))
    return m, torch.where(m.isfinite(), far_sum(state), one)


def entropy_of(state: EntropyState) -> tuple[Tensor, Tensor, Tensor]:
    """Return m, the sum of exp(x - m) and the entropy of each row: what entropy saves. NaN where m is not finite."""
    fine = state.top.isfinite()
    s = torch.where(fine, state.s, 1.0)
    saved = (state.top + 0.0, s, log(s) - state.t / s)
    m, s, h = (torch.where(fine, v, float("nan")) for v in saved)
    return m, s, h
