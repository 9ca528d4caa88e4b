"""Each promise of docs/numerics.md under its name, and kernels against tests/reference.py bit for bit."""

import itertools
import json
from contextlib import contextmanager

import pytest
import reference
import reference_segments
import torch
from cases import (
    DTYPES,
    EVERY,
    FUNCTIONS,
    LAYOUTS,
    LONG,
    NORMS,
    OURS,
    ROWS,
    SCANS,
    STRADDLING,
    WITH_DTYPE,
    hostile,
    launches,
    needed,
    random_call,
    results_of,
    scan_options,
    serves,
    ties,
    values,
)
from reference_scans import apply_linear_scan

import torchreduce as tr
from torchreduce import _C, testing
from torchreduce.testing import assert_bitwise_equal

# One shape for each way of going about a call: short and long rows, few and many columns, one long row.
SHAPES = [
    ((300, 7), 1),
    ((40, 3001), 1),
    ((3, 70001), 1),
    ((3001, 40), 0),
    ((20011, 3), 0),
    ((6, 700, 5), 1),
    ((2**18 + 9,), 0),
]


def of(*dtypes):
    """Every function with those of the dtypes that it takes."""
    return [(name, dtype) for name, dtype in EVERY if dtype in dtypes]


def call(name, x, dim, **options):
    """The op on x, whatever its dtype."""
    return getattr(OURS, name)(x, dim, **{**needed(name, x.dtype), **options})


@contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def instruction_set(name):
    before = _C.instruction_set()
    assert _C.set_instruction_set(name)
    try:
        yield
    finally:
        _C.set_instruction_set(before)


# ---- the kernels and the reference -----------------------------------------------------------------------------------


def check_reference(name, x, device, dim, **options):
    options = {**needed(name, x.dtype), **options}
    assert_bitwise_equal(getattr(OURS, name)(x.to(device), dim, **options), reference.apply(name, x, dim, **options))


def transposed_result(name, result):
    """A reduction's is the same along rows and down columns."""
    if ROWS[name].kind != "scan":
        return result
    return result.t() if isinstance(result, torch.Tensor) else tuple(part.t() for part in result)


def check_both_ways(name, x, device, **options):
    """Along rows and down columns. The reference, which takes the most time, is asked once."""
    options = {**needed(name, x.dtype), **options}
    call, expected = getattr(OURS, name), reference.apply(name, x, 1, **options)
    assert_bitwise_equal(call(x.to(device), 1, **options), expected)
    down = call(x.t().contiguous().to(device), 0, **options)
    assert_bitwise_equal(down, transposed_result(name, expected))


@pytest.mark.parametrize("name, dtype", EVERY)
def test_reference_bits(device, name, dtype):
    """Every op and dtype over lengths around 8, 256, 2048 and 8192, along rows and down columns."""
    for n in STRADDLING:
        for make in (values, ties, hostile):
            check_both_ways(name, make((3, n), dtype, seed=n), device)


LONG_KINDS = (
    ("sum", torch.float32), ("sum", torch.bfloat16), ("sum", torch.float64), ("sum", torch.int8),
    ("amax", torch.float16), ("max", torch.float32), ("argmin", torch.int16), ("cumsum", torch.float32),
    ("cumsum", torch.float16), ("cumsum", torch.float64), ("cumsum", torch.int32), ("cumprod", torch.float32),
    ("cumprod", torch.float64), ("logcumsumexp", torch.float32), ("logcumsumexp", torch.float64),
    ("cummax", torch.bfloat16), ("cummin", torch.int64),
)  # fmt: skip


def long_rows():
    """The reference's exp and log take seconds: without --slow only past a superblock, and past two."""
    for (name, dtype), n in itertools.product(LONG_KINDS, LONG):
        slow = name == "logcumsumexp" and n not in (2**18 + 1, 2**19 + 1)
        yield pytest.param(name, dtype, n, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize("name, dtype, n", list(long_rows()))
def test_reference_bits_of_long_rows(device, name, dtype, n):
    """Around a superblock of 2^18 and two of them: rows alone, which are split, rows beside others, and columns."""
    x = torch.stack([values((n,), dtype, seed=n), hostile((n,), dtype, seed=n), values((n,), dtype, seed=n + 1)])
    check_both_ways(name, x, device)
    whole = call(name, x.to(device), 1)
    for row in (0, 1):
        alone = call(name, x[row].to(device), 0)
        parts = (whole,) if isinstance(whole, torch.Tensor) else whole
        assert_bitwise_equal((alone,) if isinstance(alone, torch.Tensor) else alone, tuple(p[row] for p in parts))


@pytest.mark.parametrize("name, dtype", [(name, dtype) for name, dtype in EVERY if name in SCANS])
def test_reference_bits_of_scan_options(device, name, dtype):
    for n, options in itertools.product((1, 7, 8, 9, 255, 257, 2049, 8191, 8193, 20000), scan_options(name)):
        check_both_ways(name, hostile((2, n), dtype, seed=n), device, **options)


def far_apart(rows, n, dtype):
    """Normal numbers of all exponents, whose products stay in range; in some rows one or two are no normal numbers."""
    generator = torch.Generator().manual_seed(n)
    most = {torch.float16: 7, torch.float64: 500}.get(dtype, 60)
    exponents = torch.randint(-most, most + 1, (rows, (n + 1) // 2), generator=generator)
    exponents = torch.cat([exponents, -exponents], 1)[:, torch.randperm(2 * exponents.shape[1], generator=generator)][
        :, :n
    ]
    x = torch.rand(rows, n, dtype=torch.float64, generator=generator) * 0.7 + 0.7
    x = torch.ldexp(x * torch.randint(0, 2, x.shape, generator=generator).mul(2).sub(1), exponents).to(dtype)
    tiny = torch.finfo(dtype).tiny
    for row, other in ((3, 0.0), (5, -0.0), (11, tiny / 8), (17, float("inf")), (29, float("nan")), (36, -tiny / 2)):
        x[row, n * 2 // 3] = other
    for row, one, other in (
        (2, 0.0, float("inf")),
        (7, -0.0, -0.0),
        (13, -0.0, tiny / 8),
        (19, float("-inf"), -tiny / 8),
        (23, float("-inf"), float("nan")),
        (31, float("inf"), float("-inf")),
    ):
        x[row, n // 3], x[row, n * 2 // 3] = one, other
    return x


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.float16, torch.bfloat16))
def test_reference_bits_of_products_of_numbers_far_apart(device, dtype):
    for n in (1, 2, 5, 8, 20, 24, 25, 33, 64, 100, 255, 256, 257, 300, 2047, 2048, 2049, 5000):
        x = far_apart(37, n, dtype)
        for name in ("prod", "cumprod"):
            check_both_ways(name, x, device)
        check_reference("prod", x.repeat(1, 2)[:, :n], device, 1)
        check_reference("prod", x.view(37, 1, n).expand(37, 2, n), device, (1, 2))


@pytest.mark.parametrize("to", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_reference_bits_of_dtype(device, dtype, to):
    """Floats beyond int64 and NaN among what is truncated, float64 rounded once to 16 bits."""
    x = hostile((4, 2500), dtype, seed=7)
    if dtype.is_floating_point:
        x[0, ::5] *= 1e19 if dtype != torch.float16 else 1
    for name in WITH_DTYPE:
        if serves(name, dtype) and to in results_of(name, dtype):
            check_reference(name, x, device, 1, dtype=to)
            check_reference(name, x, device, 0, dtype=to)


@pytest.mark.parametrize("to", (torch.float32, torch.float64, torch.float16, torch.bfloat16))
def test_reference_bits_where_the_carry_overflows(device, to):
    """Between block tiles the carry of a float32 scan passes 2^128 and comes back, in mid-group."""
    x = values((3, 6 * 8192), torch.float32, seed=1)
    x[:, 100], x[:, 8192 + 5], x[:, 3 * 8192 + 3], x[1, 3 * 8192 + 9] = 3e38, 3e38, -3e38, 3e38
    check_reference("cumsum", x, device, 1, dtype=to)
    check_reference("cumsum", x.t().contiguous(), device, 0, dtype=to)
    check_reference("cumsum", x, device, 1, dtype=to, reverse=True)
    expected = reference.apply("cumsum", x, 1)
    assert torch.isinf(expected[0, 2 * 8192]) and torch.isfinite(expected[0, -1])


@pytest.mark.parametrize("name, dtype", [(name, dtype) for name, dtype in EVERY if ROWS[name].kind == "scan"])
def test_reference_bits_of_many_short_rows(device, name, dtype):
    """Rows of a few elements, of which a warp has many, aligned and not."""
    for n in (1, 2, 3, 4, 5, 8, 12, 17):
        buffer = hostile((700 * n + 1,), dtype, seed=n)
        for start in (0, 1):
            check_reference(name, buffer[start : start + 700 * n].view(700, n), device, 1)


@pytest.mark.parametrize("chunk", range(20))
def test_reference_bits_of_random_calls(device, chunk):
    for seed in range(10 * chunk, 10 * chunk + 10):
        check_random_call(device, seed)


def check_random_call(device, seed):
    c = random_call(seed, elements=(100, 3000, 30000, 200000)[seed % 4])
    expected = reference.apply(c.name, c.x, **c.options)
    assert_bitwise_equal(getattr(OURS, c.name)(c.input(device), **c.options), expected)


# ---- the promises ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FUNCTIONS)
def test_run_to_run(device, name):
    """pytorch #75240: a float cumsum on CUDA differed from run to run."""
    for shape, dim in SHAPES:
        x = values(shape, torch.float32, seed=1).to(device)
        first = call(name, x, dim)
        for _ in range(49):
            assert_bitwise_equal(call(name, x, dim), first)


@pytest.mark.parametrize("name, dtype", of(torch.float32, torch.bfloat16, torch.float64, torch.int32))
def test_batch_invariant(device, name, dtype):
    """marin-community/marin 2053, vLLM 49367: a row's bits do not depend on the batch around it."""
    for n, batch in ((5, 1000), (300, 1000), (2049, 257), (9000, 65), (70001, 9)):
        x = values((batch, n), dtype, seed=n).to(device)
        for rows, dim in ((x, 1), (x.t().contiguous(), 0)):
            batch_dim = 1 - dim
            kept = batch_dim if ROWS[name].kind == "scan" else 0
            whole = call(name, rows, dim)
            for size, start in itertools.product((1, 2, 3, 8, 33, batch - 1), (0, 1, batch // 2, batch - 1)):
                if start + size <= batch:
                    part = call(name, rows.narrow(batch_dim, start, size), dim)
                    if isinstance(whole, torch.Tensor):
                        assert_bitwise_equal(part, whole.narrow(kept, start, size))
                    else:
                        assert_bitwise_equal(part, tuple(w.narrow(kept, start, size) for w in whole))


@pytest.mark.parametrize("name, dtype", of(torch.float32, torch.float16, torch.float64, torch.uint8))
def test_layout_invariant(device, name, dtype):
    for shape, dims in (
        ((5, 6, 7, 8), (0, 1, 2, 3, (0, 2), (1, 3), None)),
        ((3, 5000), (0, 1, None)),
        ((9001, 4), (0, 1, None)),
    ):
        x = values(shape, dtype, seed=4).to(device)
        for dim in dims:
            if ROWS[name].kind == "scan" and not isinstance(dim, int):
                continue
            expected = call(name, x, dim)
            for layout in LAYOUTS.values():
                assert_bitwise_equal(call(name, layout(x), dim), expected)


def test_layout_invariant_expanded(device):
    """Stride 0: the same bits as the tensor written out."""
    x = values((1, 3001), torch.float32, seed=3).to(device)
    for name, dim in itertools.product(FUNCTIONS, (0, 1)):
        view = x.expand(50, 3001)
        assert_bitwise_equal(call(name, view, dim), call(name, view.contiguous(), dim))


def powers(most):
    return [2**k for k in range(most.bit_length())]


# Launch shapes of the CPU are threads and instruction sets, tested apart.
FORCED = {
    ("reduction", "cpu"): [{"family": "rows"}, {"family": "columns"}],
    ("scan", "cpu"): [{"family": "rows"}, {"family": "columns"}],
    ("reduction", "cuda"): [
        *({"family": "strided", "lanes": lanes} for lanes in powers(32)),
        *(
            {"family": "strided", "lanes": 32, "warps": warps, "leaves": leaves}
            for warps in powers(8)
            for leaves in powers(64)
        ),
        *({"family": "columns", "lanes": lanes, "leaves": leaves} for lanes in powers(256) for leaves in (1, 2, 8, 64)),
        {"family": "rows"},
        {"family": "rows", "vector_loads": False},
        *({"family": "rows", "lanes": lanes} for lanes in powers(32)),
        *({"family": "rows", "rows": rows} for rows in powers(8)),
        *(
            {"family": "rows", "rows": 0, "warps": warps, "leaves": leaves}
            for warps in powers(8)
            for leaves in powers(32)
        ),
        {"family": "few_rows"},
        *({"family": "few_rows", "warps": warps} for warps in powers(32)),
        {"family": "packed_rows"},
        *({"family": "packed_rows", "lanes": lanes} for lanes in powers(32)),
    ],
    ("scan", "cuda"): [
        *({"family": family, **how} for family in _C.scan_families() for how in ({}, {"vector_loads": False})),
        *({"family": family, "lanes": n} for family in ("rows", "short_rows", "extreme_rows") for n in powers(32)),
        *({"family": "short_rows", "warps": warps} for warps in powers(8)),
    ],
}


@pytest.mark.parametrize("shape, dim", SHAPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_policy_invariant(device, name, shape, dim):
    """Every family and launch shape that can serve a case: float32 aligned and not, bfloat16, int8, mixed types."""
    plans = FORCED[ROWS[name].kind, device]
    for dtype, layout, to in ((torch.float32, "contiguous", None), (torch.float32, "misaligned", None),
                              (torch.bfloat16, "contiguous", None), (torch.int8, "padded", None),
                              (torch.float16, "contiguous", torch.float64)):  # fmt: skip
        if (to and name not in WITH_DTYPE) or not serves(name, dtype):
            continue
        x = LAYOUTS[layout](hostile(shape, dtype, seed=5).to(device))
        options = {"dtype": to} if to else {}
        expected = call(name, x, dim, **options)
        served = set()
        for forced in plans:
            with testing.force_plan(**forced):
                try:
                    result = call(name, x, dim, **options)
                except ValueError:  # too few lanes for the row, say
                    continue
            assert_bitwise_equal(result, expected)
            served.add(forced["family"])
        if device == "cuda" and ROWS[name].kind == "scan":  # other families serve some types and layouts
            indexed = name in ("cummax", "cummin")
            rows = {"extreme_rows", "extreme_chain"} if indexed else {"rows", "chain"}
            assert {"column_tiles", *rows} <= served
            if to is None and dtype == torch.float32 and indexed:
                assert "column_walk" in served
            continue
        # Reductions have families for rows of neighbours.
        some = {"rows", "few_rows", "packed_rows"} if ROWS[name].kind == "reduction" else set()
        assert served | some == {forced["family"] for forced in plans} | some


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_policy_invariant_on_the_cpu(name, every):
    """Every instruction set of this machine, 1 to 4 threads: without --slow launches() of these."""
    assert "baseline" in _C.instruction_sets()
    cases = [(hostile(shape, dtype, seed=6), dim) for dtype in DTYPES if serves(name, dtype) for shape, dim in SHAPES]
    expected = [call(name, x, dim) for x, dim in cases]
    for count, instructions in launches(1, 2, 4, 3, every=every):
        with instruction_set(instructions), threads(count):  # threads start anew when their number changes
            for (x, dim), wanted in zip(cases, expected, strict=True):
                assert_bitwise_equal(call(name, x, dim), wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("chunk", range(50))
def test_device_invariant(chunk):
    """CPU bits are CUDA bits over 2000 random calls, a third of them above 2^20 elements."""
    for seed in range(40 * chunk, 40 * chunk + 40):
        large = seed % 3 == 0
        c = random_call(seed, elements=3 * 2**20 if large else 2 ** (seed % 17), at_least=2**20 if large else 0)
        ours, theirs = (getattr(OURS, c.name)(c.input(device), **c.options) for device in ("cuda", "cpu"))
        assert_bitwise_equal(ours, theirs)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
@pytest.mark.parametrize("name", ("sum", "mean", "cumsum", "cumprod", "logcumsumexp"))
def test_dtype_coherent(device, name, dtype):
    """A 16-bit input gives what its float32 copy gives, rounded once."""
    for shape, dim in SHAPES:
        x = values(shape, dtype, seed=8).to(device)
        assert_bitwise_equal(call(name, x, dim), call(name, x.float(), dim).to(dtype))
        if name in WITH_DTYPE:
            assert_bitwise_equal(call(name, x, dim, dtype=torch.float32), call(name, x.float(), dim))


def merge(parts):
    """Neighbours, then pairs of neighbours; a missing right one passes the left through."""
    while len(parts) > 1:
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [pair[0] + pair[1] if len(pair) == 2 else pair[0] for pair in pairs]
    return parts[0]


@pytest.mark.parametrize("dtype, acc", [(torch.float32, torch.float32), (torch.bfloat16, torch.float32),
                                        (torch.float16, torch.float32), (torch.float64, torch.float64),
                                        (torch.int32, torch.int64)])  # fmt: skip
def test_split_invariant(device, dtype, acc):
    """NVIDIA/TransformerEngine 2977, NVIDIA/cccl 5419: the same bits from any number of shards of whole leaves."""
    x = values((2, 23 * 2048 + 345), dtype, seed=9).to(device)
    whole = tr.sum(x, 1, dtype=acc)
    for leaves in (1, 2, 4, 8, 16, 32):
        shards = x.split(2048 * leaves, dim=1)
        assert_bitwise_equal(merge([tr.sum(s, 1, dtype=acc) for s in shards]), whole)
    assert_bitwise_equal(whole.to(tr.sum(x[:1]).dtype), tr.sum(x, 1))


def test_golden(device):
    """The bits that ship with the package: changing one is a new version of the contract."""
    assert testing.check_golden(device) == []


def test_golden_bits_are_the_references():
    """They were computed by the kernels; the reference says the same."""
    golden = json.loads(testing.GOLDEN_FILE.read_text())["cases"]
    cases = testing.golden_cases()
    functions = {"linear_scan", *("vector_norm" if name in NORMS else name for name in FUNCTIONS)}
    assert {case.name for case in cases} == set(golden)
    assert {case.function for case in cases} == functions | {
        *testing.ROWWISE,
        *testing.CHANNELS,
        *testing.SCATTERS,
    }  # ROWWISE: test_rowwise.py; CHANNELS: test_channels.py
    for case in cases:
        if case.function in (*testing.ROWWISE, *testing.CHANNELS):
            continue
        if case.function == "linear_scan":
            (a, b), options = case.arguments(case.input())
            of = reference_segments.linear_scan if "segments" in options else apply_linear_scan
            result = of(a, b, options.pop("dim"), *filter(None, [options.pop("segments", None)]), **options)
        elif case.function in testing.SCATTERS:
            inputs, options = case.arguments(case.input())
            result = getattr(reference_segments, case.function)(*inputs, **options)
        elif "segments" in case.options:
            (x,), options = case.arguments(case.input())
            result = reference_segments.apply(case.function, x, options.pop("dim"), options.pop("segments"), **options)
        else:
            options = dict(case.options)
            orders = {order: name for name, order in NORMS.items()}
            order = options.pop("ord", None)
            name = case.function if order is None else orders.get(order, "vector_norm")
            options |= {"p": order} if name == "vector_norm" else {}
            result = reference.apply(name, case.input(), **options)
        result = (result,) if isinstance(result, torch.Tensor) else result
        assert golden[case.name]["result"] == testing.hash_of(*result), case.name
