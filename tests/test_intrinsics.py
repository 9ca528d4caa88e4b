"""The functions that are one instruction on a GPU (csrc/numerics/intrinsics.h): the plain code that the emulation runs
in their place against torch and numpy, on every 16-bit value, and on a GPU the instruction against the plain code."""

import numpy as np
import pytest
import torch

from torchreduce import _C

ALL = np.arange(2**16, dtype=np.uint32)
RANDOM = np.random.default_rng(5)
NAN, ZERO = "nan", "zero"  # results of which any NaN, or either zero, is right


def bits(floats):
    return np.asarray(floats, np.float32).view(np.uint32)


def floats(words):
    return words.astype(np.uint32).view(np.float32)


def float_of(halves, dtype):
    """The float32 of 16-bit floats, given as words, by torch."""
    return torch.from_numpy(halves.astype(np.uint16).view(np.int16)).view(dtype).float().numpy()


def half_of(words, dtype):
    """Floats rounded to a 16-bit float by torch, as words."""
    halves = torch.from_numpy(floats(words).copy()).to(dtype).view(torch.int16).numpy()
    return halves.view(np.uint16).astype(np.uint32)


def decisive(dtype):
    """Every value of a 16-bit float, what lies halfway between it and the next, and the neighbours of both; others."""
    values = float_of(ALL, dtype)
    values = values[np.isfinite(values)]
    following = float_of(half_of(bits(values), dtype) + 1, dtype)  # away from zero
    previous = float_of(half_of(bits(values), dtype) - 1, dtype)
    with np.errstate(all="ignore"):
        step = np.where(np.isfinite(following), following - values, values - previous) / 2
        half = (values.astype(np.float64) + step).astype(np.float32)
    around = [v for x in (values, half) for v in (x, np.nextafter(x, np.float32(np.inf)), np.nextafter(x, -x))]
    special = floats(np.array([0, 1, 0x7FFFFF, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF], np.uint32))
    words = bits(np.concatenate([*around, special, -special]))
    return np.concatenate([words, RANDOM.integers(0, 2**32, 2**17, dtype=np.uint32)])


def whole_warps(*columns):
    """Columns of words as an array of four words an item; the last items again until there are whole warps."""
    count = len(columns[0])
    words = np.zeros((-(-count // 32) * 32, 4), np.uint32)
    for i, column in enumerate(columns):
        words[:count, i] = column
        words[count:, i] = column[-1] if len(column) else 0
    return words


def shuffled(words):
    return words[RANDOM.permutation(len(words))]


def pairs_of(words):
    return whole_warps(words, shuffled(words))


def halves_and_flag():
    """All values in either half, beside others; for a maximum and a minimum."""
    both = np.concatenate([ALL << 16 | ALL, ALL << 16 | shuffled(ALL), shuffled(ALL) << 16 | ALL])
    return np.concatenate([whole_warps(both, np.full_like(both, flag)) for flag in (0, 1)])


def pairs_of_halves():
    """All values in either half, beside the same, others, and those of few kinds."""
    few = np.resize(
        np.array([0, 0x8000, 1, 0x7C00, 0xFC00, 0x7F80, 0xFF80, 0x7FFF, 0xFFFF, 0x3C00], np.uint32), len(ALL)
    )
    a, b = np.concatenate([ALL, ALL, ALL]), np.concatenate([shuffled(ALL), few, shuffled(few)])
    return whole_warps(a << 16 | shuffled(a), b << 16 | shuffled(b))


def edges():
    """float32 with every exponent: NaNs, both zeros, infinities, subnormals among them; and of few kinds, for ties."""
    special = np.array(
        [0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000], np.uint32
    )
    special = np.concatenate([special, special | 0x80000000])
    a, b, c = (grid.ravel() for grid in np.meshgrid(special, special, special))
    random = RANDOM.integers(0, 2**32, (3, 2**16), dtype=np.uint32)
    near = bits(RANDOM.standard_normal((3, 2**16)))
    near[2, ::2] = bits(-floats(near[0]) * floats(near[1]))[::2]  # what is left is the product's own rounding
    return [np.concatenate(columns) for columns in zip((a, b, c), random, near, strict=True)]


def keyed(flagged):
    return np.concatenate([whole_warps(flagged, np.full_like(flagged, flag)) for flag in (0, 1)])


def words_of(count):
    return RANDOM.integers(0, 2**32, (4, count), dtype=np.uint32)


def least_halves_inputs():
    add = np.resize(np.array([0x80028002, 0, 0xFFFF0001, 0x12345678], np.uint32), len(ALL))
    return whole_warps(ALL | shuffled(ALL) << 16, shuffled(ALL) | ALL << 16, add, words_of(len(ALL))[0])


INPUTS = {
    "f16_to_float": lambda: whole_warps(ALL),
    "float_to_f16": lambda: whole_warps(decisive(torch.float16)),
    "float_to_bf16": lambda: whole_warps(decisive(torch.bfloat16)),
    "pack_f16": lambda: pairs_of(decisive(torch.float16)),
    "pack_bf16": lambda: pairs_of(decisive(torch.bfloat16)),
    "least_halves": least_halves_inputs,
    "packed_key": lambda: keyed(np.concatenate([edges()[0], bits(float_of(ALL, torch.bfloat16))])),
    "packed_keys_f16": halves_and_flag,
    "packed_keys_bf16": halves_and_flag,
    "apart_key": lambda: keyed(np.concatenate([edges()[0], bits(float_of(ALL, torch.bfloat16))])),
    "apart_keys_f16": halves_and_flag,
    "apart_keys_bf16": halves_and_flag,
    "float_maximum": lambda: whole_warps(*edges()),
    "packed_maxima_f16": pairs_of_halves,
    "packed_maxima_bf16": pairs_of_halves,
    "rowwise": lambda: whole_warps(*edges()),
    "greater_number": lambda: whole_warps(*edges()),
    "greatest": lambda: whole_warps(*edges()),
    "multiply_add": lambda: whole_warps(*words_of(2**16)),
    "multiply_add_high": lambda: whole_warps(*words_of(2**16)),
    "funnel_right": lambda: whole_warps(*words_of(2**16)),
    "warp_most": lambda: whole_warps(*words_of(2**16)),
}
# What an intrinsic leaves open.
OPEN = {"f16_to_float": {NAN}, "rowwise": {NAN}, "greater_number": {NAN, ZERO}, "greatest": {NAN, ZERO}}


def run(name, inputs, device="cpu"):
    words = torch.from_numpy(np.ascontiguousarray(inputs).view(np.int32)).to(device)
    results = torch.zeros(len(inputs), dtype=torch.int32, device=device)
    if device != "cpu":
        torch.cuda.synchronize()
    _C.run_intrinsic(name, words.data_ptr(), results.data_ptr(), len(inputs), device != "cpu")
    if device != "cpu":
        torch.cuda.synchronize()
    return results.cpu().numpy().view(np.uint32)


def settled(name, results):
    """Results with what the intrinsic leaves open made one."""
    results = results.copy()
    if NAN in OPEN.get(name, ()):
        results[np.isnan(floats(results))] = 0x7FC00000
    if ZERO in OPEN.get(name, ()):
        results[floats(results) == 0] = 0
    return results


def assert_same(name, inputs, found, expected):
    found, expected = settled(name, found), settled(name, expected)
    wrong = np.flatnonzero(found != expected)
    assert len(wrong) == 0, (
        f"{name}: {len(wrong)} of {len(found)} differ, as of {[hex(w) for w in inputs[wrong[0]]]}: "
        f"{found[wrong[0]]:#x}, expected {expected[wrong[0]]:#x}"
    )


def expect(name, expected_of):
    inputs = INPUTS[name]()
    with np.errstate(all="ignore"):
        expected = expected_of(*(inputs[:, i] for i in range(4)))
    assert_same(name, inputs, run(name, inputs), np.asarray(expected).astype(np.uint32))


def test_every_intrinsic_is_tested():
    assert set(INPUTS) == set(_C.intrinsics())
    with pytest.raises(ValueError, match="sine"):
        run("sine", whole_warps(ALL))
    with pytest.raises(ValueError, match="whole warps"):
        run("rowwise", whole_warps(ALL)[:33])


def test_conversions_are_torchs():
    expect("f16_to_float", lambda w, *_: bits(float_of(w, torch.float16)))
    # One NaN, whatever comes in.
    rounded = {dtype: lambda w, dtype=dtype: half_of(w, dtype) for dtype in (torch.float16, torch.bfloat16)}
    expect("float_to_f16", lambda w, *_: np.where(np.isnan(floats(w)), 0x7E00, rounded[torch.float16](w)))
    expect("float_to_bf16", lambda w, *_: np.where(np.isnan(floats(w)), 0x7FC0, rounded[torch.bfloat16](w)))
    for name, dtype in (("pack_f16", torch.float16), ("pack_bf16", torch.bfloat16)):
        half = lambda w, dtype=dtype: np.where(np.isnan(floats(w)), 0x7FFF, rounded[dtype](w))  # noqa: E731
        expect(name, lambda low, high, *_, half=half: half(high) << 16 | half(low))


def test_least_halves():
    def half(lone, add, least):
        return np.minimum((lone + add) & 0xFFFF, least & 0xFFFF)

    expect(
        "least_halves", lambda low, high, add, least: half(high, add >> 16, least >> 16) << 16 | half(low, add, least)
    )


def contract_key(words, min, width, infinity, merge_zeros=True):
    """ops/reductions.h, Ordering::key, but that under a minimum those of merged zeros are by one greater."""
    signed, most = words.astype(np.int64), 2 ** (width - 1) - 1
    negative = signed > most
    key = np.where(negative, ~(signed & most), signed)  # ~0 of -0.0
    if merge_zeros:
        key = np.where(key == -1, 0, key)
        key = np.where(min & (signed & most != 0), ~key, key)
    else:
        key = np.where(min, ~key, key)
    return np.where((signed & most) > infinity, most, key)


def test_keys_are_in_the_order_of_the_contract():
    expect("packed_key", lambda w, min, *_: contract_key(w, min != 0, 32, 0x7F800000) & 0xFFFFFFFF)
    for name, infinity in (("packed_keys_f16", 0x7C00), ("packed_keys_bf16", 0x7F80)):
        key = lambda w, min, infinity=infinity: contract_key(w & 0xFFFF, min != 0, 16, infinity) & 0xFFFF  # noqa: E731
        expect(name, lambda w, min, *_, key=key: key(w >> 16, min) << 16 | key(w, min))
    expect("apart_key", lambda w, min, *_: contract_key(w, min != 0, 32, 0x7F800000, False) & 0xFFFFFFFF)
    for name, infinity in (("apart_keys_f16", 0x7C00), ("apart_keys_bf16", 0x7F80)):
        key = lambda w, min, infinity=infinity: contract_key(w & 0xFFFF, min != 0, 16, infinity, False) & 0xFFFF  # noqa: E731
        expect(name, lambda w, min, *_, key=key: key(w >> 16, min) << 16 | key(w, min))


def test_maxima_are_those_of_the_contract():
    def greater(a, b, width, infinity):
        key = lambda w: contract_key(w, False, width, infinity, False)  # noqa: E731
        most = 2 ** (width - 1) - 1
        nan = ((a & most) > infinity) | ((b & most) > infinity)
        return np.where(nan, most, np.where(key(a) < key(b), b, a))

    expect("float_maximum", lambda a, b, *_: greater(a, b, 32, 0x7F800000))
    for name, infinity in (("packed_maxima_f16", 0x7C00), ("packed_maxima_bf16", 0x7F80)):
        half = lambda a, b, infinity=infinity: greater(a & 0xFFFF, b & 0xFFFF, 16, infinity)  # noqa: E731
        expect(name, lambda a, b, *_, half=half: half(a >> 16, b >> 16) << 16 | half(a, b))


@pytest.mark.parametrize("name, dtype", [("packed_keys_f16", torch.float16), ("packed_keys_bf16", torch.bfloat16)])
@pytest.mark.parametrize("min", (False, True))
def test_keys_compare_as_values_do(name, dtype, min):
    keys = run(name, whole_warps(ALL, np.full_like(ALL, min))).astype(np.uint16).view(np.int16)
    values = float_of(ALL ^ 0x8000 if min else ALL, dtype)
    numbers = ~np.isnan(values)
    assert (keys[~numbers] == 0x7FFF).all() and (keys[numbers] < 0x7FFF).all()
    order = np.argsort(values[numbers], kind="stable")
    rising = np.diff(values[numbers][order]) > 0
    assert (np.diff(keys[numbers][order].astype(np.int32)) > 0)[rising].all()
    assert (np.diff(keys[numbers][order].astype(np.int32)) == 0)[~rising].all()


def exact_fma(a, b, c):
    """a * b + c of float32, rounded once: the product is exact in float64, the sum is rounded to odd there."""
    a, b, c = (floats(w).astype(np.float64) for w in (a, b, c))
    product = a * b
    total = product + c
    part = total - product
    error = (product - (total - part)) + (c - part)
    words = total.view(np.int64)
    inexact = np.isfinite(total) & (error != 0) & (words & 1 == 0)
    words = np.where(inexact, words + np.where((error > 0) == (total > 0), 1, -1), words)
    return bits(words.view(np.float64).astype(np.float32))


def test_arithmetic():
    expect("rowwise", lambda a, b, c, _: exact_fma(a, b, c))

    def greater(a, b, nan):
        a, b = floats(a), floats(b)
        return bits(np.where(nan(a, b), np.float32(np.nan), np.fmax(a, b)))

    expect("greatest", lambda a, b, *_: greater(a, b, lambda a, b: np.isnan(a) | np.isnan(b)))
    for name, shift in (("multiply_add", 0), ("multiply_add_high", 32)):
        expect(name, lambda a, b, low, high, shift=shift: (
            a.view(np.int32).astype(np.int64) * b.view(np.int32).astype(np.int64)
            + (high.astype(np.uint64) << np.uint64(32) | low).view(np.int64)
        ).view(np.uint64) >> np.uint64(shift) & np.uint64(0xFFFFFFFF))  # fmt: skip
    expect("funnel_right", lambda low, high, by, _: (
        (high.astype(np.uint64) << np.uint64(32) | low) >> (by & 31).astype(np.uint64) & np.uint64(0xFFFFFFFF)
    ))  # fmt: skip
    expect("warp_most", lambda w, *_: np.repeat(w.view(np.int32).reshape(-1, 32).max(1), 32).view(np.uint32))


def without_nan_on_the_right(inputs):
    """greater_number says nothing of a second argument that is NaN."""
    return inputs[~np.isnan(floats(inputs[:, 1]))][: len(inputs) // 64 * 32]


def test_the_greater_number():
    inputs = without_nan_on_the_right(INPUTS["greater_number"]())
    expected = bits(np.fmax(floats(inputs[:, 0]), floats(inputs[:, 1])))
    assert_same("greater_number", inputs, run("greater_number", inputs), expected)


@pytest.mark.gpu
@pytest.mark.sanitize
@pytest.mark.parametrize("name", INPUTS)
def test_instructions_are_what_plain_code_does(name):
    inputs = INPUTS[name]()
    if name == "greater_number":
        inputs = without_nan_on_the_right(inputs)
    assert_same(name, inputs, run(name, inputs, "cuda"), run(name, inputs))
