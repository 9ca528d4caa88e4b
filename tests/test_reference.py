"""The judge judged: tests/reference.py against an even plainer reading of the contract, element by element."""

import numpy as np
import pytest
import reference
import torch

ACCUMULATORS = ("float32", "float64", "int64")


def sample(acc, n, seed=0, hostile=False):
    rng = np.random.default_rng(seed)
    if acc == "int64":
        return rng.integers(-(2**63), 2**63, n, dtype=np.int64)
    x = (rng.standard_normal(n) * 10.0 ** rng.integers(-3, 4, n)).astype(acc)
    if hostile:
        x[rng.random(n) < 0.3] = -0.0
        x[rng.random(n) < 0.05] = np.finfo(acc).smallest_subnormal
        x[rng.random(n) < 0.002] = np.finfo(acc).max
        x[n // 2 :][rng.random(n - n // 2) < 0.002] = np.inf
    return x


@pytest.fixture(autouse=True)
def quiet():
    with np.errstate(all="ignore"):
        yield


def left_to_right(values):
    total = values[0]
    for v in values[1:]:
        total = total + v
    return total


def pairwise(values):
    """The contiguous pairwise tree: the left half is the largest power of two below the length."""
    if len(values) == 1:
        return values[0]
    half = 1 << (len(values) - 1).bit_length() - 1
    return pairwise(values[:half]) + pairwise(values[half:])


def chunks(values, size):
    return [values[i : i + size] for i in range(0, len(values), size)]


def plain_sum(x):
    return pairwise(
        [pairwise([left_to_right(leaf[r::256]) for r in range(min(256, len(leaf)))]) for leaf in chunks(x, 2048)]
    )


def plain_cumsum(x):
    """Positions and their prefixes, every group of a short row, some of a long one.

    Every total is a pairwise tree over what it covers; a missing term is left out, not padded.
    """
    acc, wide = x.dtype.type, np.float64 if x.dtype == np.float32 else x.dtype.type
    groups = [left_to_right(g) for g in chunks(x, 8)]
    tiles = [pairwise(t) for t in chunks(groups, 32)]
    blocks = [wide(pairwise(b)) for b in chunks(tiles, 32)]
    supers = [pairwise(s) for s in chunks(blocks, 32)]
    positions, out = [], []
    for g in range(0, len(groups), 1 if len(groups) < 4000 else 7):
        t, k, s = g // 32, g // 32**2, g // 32**3
        within = [pairwise(part) for part in (tiles[32 * k : t], groups[32 * t : g]) if len(part)]
        before = [f(part) for f, part in ((left_to_right, supers[:s]), (pairwise, blocks[32 * s : k])) if len(part)]
        b = [wide(left_to_right(part)) for part in (before, within) if part]
        for i in range(8 * g, min(8 * g + 8, len(x))):
            p = left_to_right(x[8 * g : i + 1])
            positions.append(i)
            out.append(acc(join(left_to_right(b), p)) if b else p)
    return positions, out


def join(b, p):
    if p.dtype != np.float32:
        return b + p
    hi = np.float32(b)
    if np.isfinite(b) and not np.isfinite(hi):
        return np.float32(b + np.float64(p))
    if b == hi or not np.isfinite(hi):
        return hi + p
    return hi + (np.float32(b - np.float64(hi)) + p)


def same_bits(a, b):
    """Every NaN is one value here: round_to makes them canonical."""
    a, b = np.asarray(a), np.asarray(b)
    unsigned = f"uint{8 * a.itemsize}"
    return a.dtype == b.dtype and bool(((a.view(unsigned) == b.view(unsigned)) | ((a != a) & (b != b))).all())


LENGTHS = [
    1,
    2,
    3,
    7,
    8,
    9,
    31,
    255,
    256,
    257,
    511,
    1000,
    2047,
    2048,
    2049,
    5 * 2048 + 300,
    8191,
    8192,
    8193,
    3 * 8192 + 77,
]


@pytest.mark.parametrize("acc", ACCUMULATORS)
@pytest.mark.parametrize("n", LENGTHS)
def test_sum_is_the_plain_sum(n, acc):
    for hostile in (False, True):
        x = sample(acc, n, seed=n, hostile=hostile)
        assert same_bits(reference.canonical_sum(x[None])[0], plain_sum(x))


@pytest.mark.parametrize("acc", ACCUMULATORS)
@pytest.mark.parametrize("n", [*LENGTHS, 2**18 - 1, 2**18 + 8192 + 300])
def test_cumsum_is_the_plain_cumsum(n, acc):
    for hostile in (False, True):
        x = sample(acc, n, seed=n, hostile=hostile)
        positions, expected = plain_cumsum(x)
        assert same_bits(reference.canonical_cumsum(x[None])[0, positions], expected)


def test_superblocks_fold_from_the_left():
    """Three superblocks whose totals tell a left fold from a tree."""
    x = sample("float32", 3 * 2**18 + 9, seed=5)
    positions, expected = plain_cumsum(x)
    assert same_bits(reference.canonical_cumsum(x[None])[0, positions], expected)


def test_the_carry_may_leave_float32_and_come_back():
    """Between block tiles: where the prefix is outside float32's range the output is infinite, then it is right again,
    even inside the group that brings it back."""
    x = np.zeros(4 * 8192, np.float32)
    x[0], x[8192 + 5], x[2 * 8192 + 3], x[3 * 8192] = 3e38, 3e38, -3e38, 1e30
    out = reference.canonical_cumsum(x[None])[0]
    inside = np.ones(len(x), bool)
    inside[8192 + 5 : 2 * 8192 + 3] = False
    assert np.isinf(out[~inside]).all() and np.isfinite(out[inside]).all()
    assert out[2 * 8192 + 3] == np.float32(3e38) and out[-1] == np.float32(3e38) + np.float32(1e30)


def test_absent_terms_keep_minus_zero():
    x = np.full((3, 300), -0.0, np.float32)
    assert np.signbit(reference.canonical_sum(x)).all()
    assert np.signbit(reference.canonical_cumsum(x)).all()
    assert not np.signbit(reference.sum_rows(np.zeros((1, 0), np.float32))).any()


def test_rows_do_not_mix():
    x = np.stack([sample("float32", 3000, seed=s) for s in range(5)])
    for f in (reference.canonical_sum, reference.canonical_cumsum):
        assert all(same_bits(f(x)[i], f(x[i : i + 1])[0]) for i in range(5))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_is_torchs_on_float32(dtype):
    """Every exponent, ties included: torch rounds float32 to a 16-bit type once, to nearest even."""
    bits = np.arange(2**32, step=2**32 // 200003, dtype=np.uint64).astype(np.uint32)
    bits = np.concatenate([bits, bits & ~np.uint32(0xFFF), bits & ~np.uint32(0x7FFF) | np.uint32(0x8000)])
    x = bits.view(np.float32)
    ours = reference.round_to(x, dtype)
    theirs = reference.to_numpy(torch.from_numpy(x).to(getattr(torch, dtype)))
    number = ~np.isnan(x)
    assert (ours.view(np.uint16)[number] == theirs.view(np.uint16)[number]).all()
    assert (ours.view(np.uint16)[~number] == reference.CANONICAL_NAN[dtype]).all()


@pytest.mark.parametrize("dtype, halfway", [("float16", 1 + 2.0**-11), ("bfloat16", 1 + 2.0**-8)])
def test_float64_is_rounded_once(dtype, halfway):
    """A float64 just above a tie of the 16-bit type would round down if it passed through float32."""
    above, below = halfway + 2.0**-40, halfway - 2.0**-40
    up, down = reference.decode(reference.round_to(np.array([above, below]), dtype)).astype(np.float64)
    assert (up, down) == (1 + 2 * (halfway - 1), 1.0)
    smallest = {"float16": 2.0**-24, "bfloat16": 2.0**-133}[dtype]
    x = np.array([smallest / 2, smallest / 2 * (1 + 2.0**-45), -smallest * 1.5, smallest * 2.5])
    assert (
        reference.decode(reference.round_to(x, dtype)) == np.float64([0, smallest, -2 * smallest, 2 * smallest])
    ).all()


def test_truncation_to_int64():
    x = np.array([1.9, -1.9, np.nan, np.inf, -np.inf, 2.0**63, -(2.0**63), 2.0**62], np.float32)
    expected = [1, -1, *[reference.INT64_MIN] * 5, 2**62]
    assert reference.to_accumulator(x, np.dtype(np.int64)).tolist() == expected


@pytest.mark.parametrize("dtype", reference.DTYPES)
def test_values_are_torchs(dtype):
    """On small integers every order is exact, so torch's values are the contract's, over dims and dtypes."""
    x = torch.arange(-60, 60).reshape(4, 5, 6).remainder(7).to(getattr(torch, dtype))
    for dim in (0, 1, -1, (0, 2), (1, 2), (2, 0), None):
        assert torch.equal(reference.apply("sum", x, dim), torch.sum(x, dim))
        assert torch.equal(reference.apply("sum", x, dim, keepdim=True), torch.sum(x, dim, keepdim=True))
        assert torch.equal(reference.apply("amax", x, dim), torch.amax(x, () if dim is None else dim))
        assert torch.equal(reference.apply("amin", x, dim), torch.amin(x, () if dim is None else dim))
    for dim in (0, 1, -1):
        assert torch.equal(reference.apply("cumsum", x, dim), torch.cumsum(x, dim))
        flipped = torch.cumsum(x.flip(dim), dim).flip(dim)
        assert torch.equal(reference.apply("cumsum", x, dim, reverse=True), flipped)
        if dtype != "bool":
            assert torch.equal(reference.apply("argmax", x, dim), torch.argmax(x, dim))
            assert torch.equal(reference.apply("argmin", x, dim), torch.argmin(x, dim))
        values, indices = reference.apply("max", x, dim)
        assert torch.equal(values, torch.max(x, dim).values) and torch.equal(indices, torch.max(x, dim).indices)


def test_ties_nan_and_zeros():
    x = torch.tensor([[1.0, 2.0, 2.0], [2.0, float("nan"), float("nan")], [-0.0, 0.0, -0.0], [0.0, -0.0, 0.0]])
    assert reference.apply("argmax", x, 1).tolist() == [1, 1, 0, 0]
    assert reference.apply("argmin", x, 1).tolist() == [0, 1, 0, 0]
    assert torch.signbit(reference.apply("amax", x, 1)).tolist() == [False, False, False, False]
    assert torch.signbit(reference.apply("amin", x, 1)).tolist() == [False, False, True, True]
    assert torch.signbit(reference.apply("max", x, 1)[0]).tolist() == [False, False, True, False]


def test_exclusive_rounds_then_shifts():
    x = torch.rand(100, generator=torch.Generator().manual_seed(1), dtype=torch.float16)
    whole = reference.apply("cumsum", x, 0)
    shifted = reference.apply("cumsum", x, 0, exclusive=True)
    assert shifted[0] == 0 and torch.equal(shifted[1:], whole[:-1])
    shifted = reference.apply("cumsum", x, 0, exclusive=True, reverse=True)
    assert shifted[-1] == 0 and torch.equal(shifted[:-1], reference.apply("cumsum", x, 0, reverse=True)[1:])
