"""One written semantics (docs/numerics.md): ties, NaN, zeros, empties, dims, dtype=, out= and errors.

pytorch #42004, #99879, #113175, #61474, #56586, #55366, #43519: users who found none.
"""

import itertools
import math

import pytest
import reference
import torch
from cases import DTYPES, EXTREMES, OURS, REDUCTIONS, TORCHS, ties, values

import torchreduce as tr
from torchreduce.table import FLOATS, INTEGERS
from torchreduce.testing import assert_bitwise_equal

NAN, INF = float("nan"), float("inf")


def tensor(data, device, dtype=torch.float32):
    return torch.tensor(data, dtype=dtype, device=device)


def run(name, x, *args, **options):
    """The op over dim 0 unless told otherwise."""
    if not args and "dim" not in options:
        args = (0,)
    return getattr(OURS, name)(x, *args, **options)


# ---- ties, NaN, zeros ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_give_the_lowest_index(device, dtype):
    for n in (2, 9, 300, 2049, 9000):
        x = torch.zeros(3, n, dtype=dtype, device=device)
        x[1, 1::2] = 1
        x[2, ::2] = 1
        low, high = [0, 0, 1], [0, 1, 0]
        for rows, dim in ((x, 1), (x.t().contiguous(), 0)):
            assert tr.argmax(rows, dim).tolist() == high and tr.argmin(rows, dim).tolist() == low
            assert tr.max(rows, dim).indices.tolist() == high and tr.min(rows, dim).indices.tolist() == low


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("at", [0, 1, 300, 2047, 2048, 4000])
def test_nan_propagates_and_the_first_is_the_extreme(device, dtype, at):
    x = values((4001,), dtype, seed=at).to(device)
    x[at] = x[-1] = NAN
    for name in ("sum", "mean", "amax", "amin"):
        assert torch.isnan(run(name, x))
    for name in ("max", "min"):
        assert torch.isnan(run(name, x).values) and run(name, x).indices == at and torch.isnan(run(name, x, None))
    assert tr.argmax(x) == at and tr.argmin(x) == at
    assert torch.isnan(tr.cumsum(x, 0)).nonzero().flatten().tolist() == list(range(at, 4001))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bits", ["payload", "negative", "signalling"])
def test_every_nan_written_is_the_canonical_one(device, dtype, bits):
    signed = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    canonical = reference.CANONICAL_NAN[str(dtype).removeprefix("torch.")]
    infinity = torch.tensor(INF, dtype=dtype).view(signed).item()
    pattern = {
        "payload": canonical + 3,
        "negative": canonical - 2 ** (8 * dtype.itemsize - 1),
        "signalling": infinity + 1,
    }
    x = torch.full((5, 3), pattern[bits], dtype=signed).view(dtype).to(device)
    results = [run(name, x) for name in ("sum", "mean", "amax", "amin", "cumsum")]
    results += [tr.max(x, 0).values, tr.min(x, 1).values, tr.max(x), tr.min(x), tr.cumsum(x, 1, reverse=True)]
    results += [tr.amax(x[:1], 0), tr.sum(x[:1], 0), tr.cumsum(x[:1], 0)]
    for result in results:
        assert (result.view(signed) == canonical).all()


def test_infinities_meet(device):
    x = tensor([INF, 1.0, -INF, 1.0], device)
    assert torch.isnan(tr.sum(x)) and tr.sum(x[:2]) == INF and tr.sum(x[1:]) == -INF
    assert tr.cumsum(x, 0)[:2].tolist() == [INF, INF] and torch.isnan(tr.cumsum(x, 0)[2:]).all()
    assert tr.amax(x) == INF and tr.amin(x) == -INF and tr.argmin(x) == 2


@pytest.mark.parametrize("dtype", FLOATS)
def test_zeros_have_an_order_without_index_and_tie_with_one(device, dtype):
    for zeros in ([0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0], [-0.0] * 3000 + [0.0]):
        x = tensor(zeros, device, dtype)
        only_negative = all(torch.signbit(x).tolist())
        for whole in (tr.amax(x), tr.max(x), tr.amax(x, 0)):
            assert torch.signbit(whole) == only_negative
        for whole in (tr.amin(x), tr.min(x), tr.amin(x, 0)):
            assert torch.signbit(whole)
        for pair in (tr.max(x, 0), tr.min(x, 0)):
            assert pair.indices == 0 and torch.signbit(pair.values) == torch.signbit(x[0])
        assert tr.argmax(x) == 0 and tr.argmin(x) == 0


@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_of_only_minus_zero(device, dtype):
    """-0.0, as IEEE addition gives; the sum of nothing is +0.0."""
    for n in (1, 8, 257, 2049, 9000):
        x = torch.full((n, 2), -0.0, dtype=dtype, device=device)
        assert torch.signbit(tr.sum(x, 0)).all() and torch.signbit(tr.sum(x)) and torch.signbit(tr.cumsum(x, 0)).all()
        assert torch.signbit(tr.mean(x, 0)).all()
    assert not torch.signbit(tr.sum(x[:0], 0)).any()
    assert not torch.signbit(tr.cumsum(x[:1], 0, exclusive=True)).any()


@pytest.mark.parametrize("dtype", FLOATS)
def test_subnormals_are_kept(device, dtype):
    least = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps  # the least subnormal
    x = torch.full((4, 3), least, dtype=torch.float64).to(dtype).to(device)
    assert (x != 0).all()
    assert tr.amax(x) == least and tr.amin(x, 0)[0] == least and tr.max(x, 1).values[0] == least
    assert tr.sum(x, 0)[0].double() == 4 * least and tr.cumsum(x, 0)[1, 0].double() == 2 * least
    assert tr.argmax(torch.cat([0 * x[:1], x]), 0)[0] == 1


def test_float16_overflows_only_in_the_last_rounding(device):
    x = tensor([60000.0, 60000.0, -60000.0], device, torch.float16)
    assert tr.sum(x) == 60000 and tr.mean(x) == 20000 and tr.sum(x[:2]) == INF
    assert tr.cumsum(x, 0).tolist() == [60000, INF, 60000]
    assert tr.sum(x[:2], dtype=torch.float32) == 120000


def test_integers_wrap(device):
    x = tensor([2**63 - 1, 1, 5], device, torch.int64)
    assert tr.sum(x).item() == -(2**63) + 5 and tr.cumsum(x, 0).tolist() == [2**63 - 1, -(2**63), -(2**63) + 5]
    x = tensor([200, 100], device, torch.uint8)
    assert tr.sum(x).item() == 300 and tr.sum(x, dtype=torch.uint8).item() == 44
    assert tr.cumsum(x, 0, dtype=torch.int8).tolist() == [-56, 44]


def test_bool(device):
    x = tensor([[True, False, True], [False, False, False]], device, torch.bool)
    assert tr.sum(x, 1).tolist() == [2, 0] and tr.sum(x).dtype == torch.int64
    for name in ("amax", "amin", "max", "min"):
        assert getattr(OURS, name)(x).dtype == torch.bool
    assert tr.amax(x, 1).tolist() == [True, False] and tr.amin(x, 0).tolist() == [False, False, False]
    assert tr.argmax(x, 1).tolist() == [0, 0] and tr.argmin(x, 1).tolist() == [1, 0]
    assert tr.cumsum(x, 1).tolist() == [[1, 1, 2], [0, 0, 0]]
    assert tr.mean(x, dtype=torch.float32) == torch.tensor(2 / 6)


# ---- dtype= ----------------------------------------------------------------------------------------------------------


def test_dtype_never_narrows_an_element(device):
    """float64 elements enter the accumulator whole, and its sum is rounded to 16 bits once."""
    x = tensor([1.0, 2.0**-11, 2.0**-40], device, torch.float64)
    assert tr.sum(x, dtype=torch.float16) == 1 + 2.0**-10
    assert tr.sum(x[:2], dtype=torch.float16) == 1.0
    x = tensor([1e300, -1e300, 1.0], device, torch.float64)
    assert tr.sum(x, dtype=torch.float32) == 1.0
    assert tr.cumsum(x, 0, dtype=torch.bfloat16).tolist() == [INF, 0.0, 1.0]


def test_floats_are_truncated_one_by_one_for_an_integer_dtype(device):
    x = tensor([1.9, 1.9, -0.9], device)
    assert tr.sum(x, dtype=torch.int64) == 2 and tr.cumsum(x, 0, dtype=torch.int32).tolist() == [1, 2, 2]
    for outside in (NAN, INF, -INF, 1e19, -1e19):
        assert tr.sum(tensor([outside, 1.0], device), dtype=torch.int64) == -(2**63) + 1
        assert tr.sum(tensor([outside, 1.0], device), dtype=torch.int32) == 1


def test_integers_are_rounded_once_each_to_the_accumulator(device):
    x = tensor([2**24 + 1, 2**24 + 1], device, torch.int64)
    assert tr.sum(x, dtype=torch.float32) == 2.0**25
    assert tr.sum(x, dtype=torch.float64) == 2.0**25 + 2


def test_sum_to_bool_is_any_nonzero(device):
    x = tensor([[0.0, -0.0], [0.5, -0.5], [NAN, 0.0], [1e-45, 0.0]], device)
    assert tr.sum(x, 1, dtype=torch.bool).tolist() == [False, True, True, True]
    assert tr.sum(tensor([128, 128], device, torch.uint8), dtype=torch.bool).item() is True
    assert tr.sum(x[:0], 0, dtype=torch.bool).tolist() == [False, False]


@pytest.mark.parametrize("dtype", DTYPES)
def test_prod_to_bool_is_all_nonzero(device, dtype):
    """As torch.prod, which takes one dim: elements become bool before they are multiplied."""
    x = tensor([[1, 0, 3], [2, 4, 1], [0, 0, 0]], device, dtype)
    for keepdim in (False, True):
        ours, theirs = (m.prod(x, 1, keepdim=keepdim, dtype=torch.bool) for m in (tr, torch))
        assert_bitwise_equal(ours, theirs)
    assert_bitwise_equal(tr.prod(x, dtype=bool), torch.prod(x, dtype=torch.bool))
    assert tr.prod(x, (0, 1), dtype=torch.bool).item() is False and tr.prod(x[1], dtype=torch.bool).item() is True
    assert tr.prod(x[:0], dtype=torch.bool).item() is True and tr.prod(x[:, :0], 1, dtype=torch.bool).all()
    out = torch.empty(0, dtype=torch.bool, device=device)
    assert tr.prod(x, 1, out=out) is out and out.tolist() == [False, True, False]
    assert tr.prod(x, 1, dtype=torch.bool, out=out.fill_(False)).tolist() == [False, True, False]
    with pytest.raises(RuntimeError, match=r"prod\(\): expected out to have dtype torch.int64"):
        tr.prod(x, 1, dtype=torch.int64, out=out)
    if dtype.is_floating_point:
        small = tensor([1e-4, 1e-4, NAN, INF], device, dtype)
        assert tr.prod(small, dtype=torch.bool).item() is True
        leaf = x.clone().requires_grad_()
        for options in ({"dtype": torch.bool}, {"out": out}):
            with pytest.raises(RuntimeError, match=r"prod\(\): .*autograd|prod\(\): .*automatic differentiation"):
                tr.prod(leaf, 1, **options)
        with torch.no_grad():
            assert tr.prod(leaf, 1, dtype=torch.bool).tolist() == [False, True, False]
    torch._dynamo.reset()
    graph = torch.compile(lambda t: tr.prod(t, 1, dtype=torch.bool), backend="eager", fullgraph=True)
    assert_bitwise_equal(graph(x), tr.prod(x, 1, dtype=torch.bool))
    assert_bitwise_equal(torch.vmap(lambda t: tr.prod(t, dtype=torch.bool))(x), tr.prod(x, 1, dtype=torch.bool))


@pytest.mark.parametrize("to", (*INTEGERS, torch.bool))
@pytest.mark.parametrize("dtype", FLOATS)
def test_nansum_of_floats_to_integers(device, dtype, to):
    """As torch.nansum has it since 2.13, on the CPU: the sum of 0 for each NaN, each element truncated."""
    x = tensor([[1.5, NAN, 2.75], [-0.5, NAN, NAN], [100.0, 27.5, -3.25]], device, dtype)
    for dim, keepdim in ((1, False), (0, True), (None, False)):
        theirs = torch.sum(x.cpu().nan_to_num(0), dim, keepdim, dtype=to)
        assert_bitwise_equal(tr.nansum(x, dim, keepdim, dtype=to).cpu(), theirs)
    out = torch.empty(3, dtype=to, device=device)
    assert tr.nansum(x, 1, out=out) is out
    assert_bitwise_equal(out.cpu(), torch.sum(x.cpu().nan_to_num(0), 1, dtype=to))
    assert_bitwise_equal(tr.nansum(x[:0], 0, dtype=to), torch.zeros(3, dtype=to, device=device))
    for options in ({"dtype": to}, {"out": out}):
        with pytest.raises(RuntimeError, match=r"nansum\(\): .*autograd|nansum\(\): .*automatic differentiation"):
            tr.nansum(x.clone().requires_grad_(), 1, **options)


@pytest.mark.parametrize("dtype", (*INTEGERS, torch.bool))
def test_integers_become_int64_unless_told(device, dtype):
    x = ties((3, 4), dtype).to(device)
    assert tr.sum(x).dtype == torch.int64 and tr.cumsum(x, 0).dtype == torch.int64
    assert (
        tr.amax(x).dtype == dtype and tr.max(x, 0).values.dtype == dtype and tr.max(x, 0).indices.dtype == torch.int64
    )


# ---- dims ------------------------------------------------------------------------------------------------------------


def test_the_order_of_dims_given_does_not_matter(device):
    x = values((6, 7, 8, 9), torch.float32, seed=2).to(device)
    for name in REDUCTIONS:
        for dims in ((0, 2), (1, 3), (0, 1, 3), (0, 1, 2, 3)):
            first, *others = (getattr(OURS, name)(x, d) for d in itertools.permutations(dims))
            for other in others:
                assert_bitwise_equal(other, first)
            assert_bitwise_equal(getattr(OURS, name)(x, [d - 4 for d in dims]), first)
            assert_bitwise_equal(getattr(OURS, name)(x, axis=dims), first)


def test_orders_of_norms(device):
    x = torch.tensor([[3.0, -4.0], [0.0, math.nan]], device=device)
    for order, expected in ((0, [2, 1]), (1, [7, math.nan]), (2, [5, math.nan]), (math.inf, [4, math.nan]),
                            (-math.inf, [3, math.nan])):  # fmt: skip
        for f in (tr.vector_norm, tr.norm):
            torch.testing.assert_close(f(x, order, 1).tolist(), [float(e) for e in expected], equal_nan=True)
    assert tr.norm(x[0]).item() == tr.norm(x[0], None).item() == tr.norm(x[0], "fro", 0).item() == 5
    for bad in ("nuc", True, (1, 2)):
        with pytest.raises(NotImplementedError, match=r"norm\(\).*order.*numbers"):
            tr.norm(x, bad)
    for bad in (10**400, -(10**5000), math.nan):
        with pytest.raises(RuntimeError, match=r"norm\(\).*order.*float64"):
            tr.norm(x, bad)
    with pytest.raises(RuntimeError, match=r"vector_norm\(\).*floating.*int64"):
        tr.vector_norm(x.nan_to_num().long())
    with pytest.raises(RuntimeError, match=r"vector_norm\(\).*bfloat16.*narrower.*float32"):
        tr.vector_norm(x, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="narrower"):
        tr.vector_norm(x, out=torch.empty((), dtype=torch.float16, device=device))
    none = torch.empty(0, 3, device=device)
    assert [tr.vector_norm(none, order, 0).tolist() for order in (0, 1, 2)] == [[0.0] * 3] * 3
    for order, dim in itertools.product((math.inf, -math.inf, -3), (0, None)):
        for x_of_none in (none, none[:, :0]):
            with pytest.raises(RuntimeError, match="vector_norm"):
                tr.vector_norm(x_of_none, order, dim)
    with pytest.raises(IndexError, match=r"^norm\(\)"):
        tr.norm(x, 2, 5)
    with pytest.raises(NotImplementedError, match=r"norm\(\).*complex64.*bfloat16$"):
        tr.norm(x.to(torch.complex64))
    assert tr.vector_norm(none, math.inf, 1).shape == (0,)


def test_norms_of_16_bits_are_those_of_float32_rounded(device):
    for dtype, order in itertools.product((torch.float16, torch.bfloat16), (1, 2, math.inf)):
        x = values((5, 3001), dtype, seed=3).to(device)
        assert_bitwise_equal(tr.vector_norm(x, order, 1), tr.vector_norm(x.float(), order, 1).to(dtype))
        assert_bitwise_equal(tr.vector_norm(x, order, 1, dtype=torch.float32), tr.vector_norm(x.float(), order, 1))


def test_nan_in_sums_of_the_others(device):
    """Bitwise identical to +0 in its place."""
    x = values((7, 3001), torch.float32, seed=5)
    x[:, ::7] = math.nan
    x[1] = math.nan
    x = x.to(device)
    assert_bitwise_equal(tr.nansum(x, 1), tr.sum(x.nan_to_num(nan=0.0), 1))
    assert tr.nansum(x[1]).item() == 0 and not tr.nansum(x[1]).signbit() and tr.nanmean(x[1]).isnan()
    count = (~x.isnan()).sum(1)
    assert_bitwise_equal(tr.nanmean(x, 1), torch.ops.torchreduce.divide(tr.nansum(x, 1), count, torch.float32))
    assert_bitwise_equal(tr.nanmean(x[0], out=torch.empty(0, device=device)), tr.nanmean(x[0]))
    with pytest.raises(RuntimeError, match=r"nanmean\(\).*floating.*int32"):
        tr.nanmean(torch.ones(3, dtype=torch.int32, device=device))
    assert tr.nansum(torch.ones(3, dtype=torch.int32, device=device)).dtype == torch.int64


def test_products_overflow_only_at_the_end(device):
    """0.9 often and then 1.1 as often; powers that meet; subnormals; zero and infinity."""
    x = torch.cat([torch.full((8192,), 0.9), torch.full((8192,), 1 / 0.9)]).to(device)
    assert x.cumprod(0)[8191] == 0 and abs(tr.prod(x).item() - tr.prod(x.double()).item()) < 1e-2
    y = torch.tensor([2.0**100] * 100 + [2.0**-100] * 99 + [2.0**-149], device=device)
    assert tr.prod(y).item() == 2.0**-49
    assert tr.prod(torch.tensor([2.0**-140, 2.0**20], device=device)).item() == 2.0**-120
    assert tr.prod(torch.tensor([math.inf, 0.0], device=device)).isnan()
    assert tr.prod(torch.full((5000,), 1e-40, device=device)).item() == 0
    assert tr.prod(torch.full((5000,), -1e30, device=device)[1:]).item() == -math.inf
    assert tr.prod(torch.empty(0, 2, device=device), 0).tolist() == [1, 1]


def test_least_and_greatest_at_once(device):
    x = values((4, 50), torch.float32, seed=1).to(device)
    for options in ({}, {"dim": 1}, {"dim": 0, "keepdim": True}):
        pair, theirs = tr.aminmax(x, **options), torch.aminmax(x, **options)
        assert type(pair) is torch.return_types.aminmax
        assert_bitwise_equal(tuple(pair), tuple(theirs))
    out = torch.empty(4, device=device), torch.empty(4, device=device)
    assert tr.aminmax(x, dim=1, out=out).max is out[1]
    assert_bitwise_equal(out, tuple(tr.aminmax(x, dim=1)))
    with pytest.raises(RuntimeError, match=r"aminmax\(\).*two tensors apart"):
        tr.aminmax(x, dim=1, out=(out[0], out[0]))
    untouched = torch.full((4,), 7.0, device=device)
    with pytest.raises(RuntimeError, match=r"aminmax\(\).*max.*float32.*float64"):
        tr.aminmax(x, dim=1, out=(untouched, out[1].double()))
    assert untouched.tolist() == [7.0] * 4
    with pytest.raises(RuntimeError, match=r"aminmax\(\)"):
        tr.aminmax(x[:0])


@pytest.mark.parametrize("name", REDUCTIONS)
def test_none_and_empty_dims_are_all_dims(device, name):
    x = values((3, 4, 5), torch.float32, seed=1).to(device)
    f = getattr(OURS, name)
    for other in (f(x, None), f(x, ()), f(x, []), f(x, dim=None), f(x, axis=()), f(x, dim=())):
        assert_bitwise_equal(other, f(x))
    assert f(x).shape == () and f(x, keepdim=True).shape == (1, 1, 1)
    assert_bitwise_equal(f(x, keepdim=True).reshape(()), f(x))


def test_indices_of_several_dims_count_the_flattened_ones(device):
    x = values((4, 5, 6), torch.float32, seed=3).to(device)
    flat = x.permute(1, 0, 2).reshape(5, 24)
    for name in ("argmax", "argmin"):
        assert_bitwise_equal(getattr(OURS, name)(x, (2, 0)), getattr(OURS, name)(flat, 1))
        assert_bitwise_equal(getattr(OURS, name)(x), getattr(TORCHS, name)(x))
        assert getattr(OURS, name)(x, (0, 2), keepdim=True).shape == (1, 5, 1)
    for name in ("max", "min"):
        pair = getattr(OURS, name)(x, (0, 2))
        assert_bitwise_equal(pair, getattr(OURS, name)(flat, 1))
        assert_bitwise_equal(flat.gather(1, pair.indices[:, None])[:, 0], pair.values)


def test_what_max_and_min_return(device):
    x = values((3, 4), torch.float32).to(device)
    for name in ("max", "min"):
        f, returns = getattr(OURS, name), getattr(torch.return_types, name)
        assert (
            isinstance(f(x), torch.Tensor)
            and isinstance(f(x, ()), torch.Tensor)
            and isinstance(f(x, None), torch.Tensor)
        )
        assert isinstance(f(x, 1), returns) and isinstance(f(x, (0, 1)), returns) and isinstance(f(x, (1,)), returns)
        assert f(x, keepdim=True).shape == (1, 1) and f(x, 1, True).values.shape == (3, 1)
        pair = f(x, 0)
        assert pair.values is pair[0] and pair.indices is pair[1]


def test_zero_dims(device):
    x = tensor(3.5, device)
    for name, dim in itertools.product(("sum", "mean", "amax", "amin"), (None, 0, -1, ())):
        assert getattr(OURS, name)(x, dim).tolist() == 3.5 and getattr(OURS, name)(x, dim, keepdim=True).shape == ()
    for dim in (0, -1):
        assert tr.max(x, dim).values == 3.5 and tr.min(x, dim).indices == 0 and tr.argmax(x, dim) == 0
        assert tr.cumsum(x, dim).tolist() == 3.5 and tr.cumsum(x, dim, reverse=True).tolist() == 3.5
        assert tr.cumsum(x, dim, exclusive=True).tolist() == 0.0
    assert tr.argmin(x) == 0 and tr.max(x) == 3.5 and tr.max(x).shape == ()
    with pytest.raises(IndexError):
        tr.sum(x, 1)


def test_exclusive_and_reverse(device):
    """pytorch #33520, #42173, #76191."""
    x = tensor([1, 2, 3, 4], device, torch.int32)
    assert tr.cumsum(x, 0, exclusive=True).tolist() == [0, 1, 3, 6]
    assert tr.cumsum(x, 0, reverse=True).tolist() == [10, 9, 7, 4]
    assert tr.cumsum(x, 0, exclusive=True, reverse=True).tolist() == [9, 7, 4, 0]


def test_many_dims(device):
    x = values((2,) * 12, torch.float32, seed=5).to(device)
    for dims in ((0, 2, 4, 6, 8, 10), (1, 5, 11), tuple(range(11))):
        assert_bitwise_equal(tr.sum(x, dims), reference.apply("sum", x, dims))
    assert_bitwise_equal(
        tr.sum(x.permute(*range(11, -1, -1)), (3, 7)), reference.apply("sum", x.permute(*range(11, -1, -1)), (3, 7))
    )
    assert tr.sum(torch.ones((1,) * 64, device=device)) == 1


# ---- nothing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_empty_sums_and_means(device, dtype):
    x = torch.empty(0, 3, dtype=dtype, device=device)
    result = dtype if dtype in FLOATS else torch.int64
    mean_dtype = None if dtype in FLOATS else torch.float32
    assert_bitwise_equal(tr.sum(x, 0), torch.zeros(3, dtype=result, device=device))
    assert_bitwise_equal(tr.sum(x), torch.zeros((), dtype=result, device=device))
    assert_bitwise_equal(tr.mean(x, 0, dtype=mean_dtype), torch.full((3,), NAN, dtype=mean_dtype or dtype).to(device))
    assert torch.isnan(tr.mean(x, dtype=mean_dtype))
    assert tr.sum(x, 1).shape == (0,) and tr.mean(x, 1, dtype=mean_dtype).shape == (0,)
    for dim, options in ((0, {}), (1, {}), (0, {"exclusive": True, "reverse": True})):
        assert_bitwise_equal(tr.cumsum(x, dim, **options), torch.empty(0, 3, dtype=result, device=device))
    none = torch.empty(2, 0, 3, dtype=dtype, device=device)
    assert tr.sum(none, (0, 1), keepdim=True).tolist() == [[[0, 0, 0]]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", EXTREMES)
def test_empty_extremes(device, name, dtype):
    f = getattr(OURS, name)
    x = torch.empty(0, 3, dtype=dtype, device=device)
    with pytest.raises(IndexError, match=rf"{name}.*\(0, 3\)"):
        f(x, 0)
    with pytest.raises(IndexError, match=name):
        f(x, (0, 1))
    with pytest.raises(IndexError, match=name):  # although the result has no elements
        f(x[:, :0], 0)
    with pytest.raises(IndexError if name.startswith("arg") else RuntimeError, match=name):
        f(x)
    with pytest.raises(IndexError if name.startswith("arg") else RuntimeError, match=name):
        f(x, ())
    result = f(x, 1)
    for part in (result,) if isinstance(result, torch.Tensor) else result:
        assert part.shape == (0,) and part.dtype in (dtype, torch.int64)


# ---- large -----------------------------------------------------------------------------------------------------------


@pytest.mark.big
def test_more_than_2_31_elements_by_stride_0():
    """pytorch #167086, #143486: 64-bit sizes, here on the CPU in next to no memory."""
    n = 2**31 + 5
    ones = torch.ones(1, dtype=torch.int8).expand(n)
    assert tr.sum(ones).item() == n
    assert tr.argmax(ones).item() == 0
    assert tr.sum(torch.ones(1).expand(n)).item() == torch.tensor(float(n), dtype=torch.float32)
    assert tr.sum(torch.ones(1, 3, dtype=torch.bool).expand(n, 3), 0).tolist() == [n] * 3
    assert tr.amax(torch.ones(2, 1, dtype=torch.int16).expand(2, n), 1).tolist() == [1, 1]


@pytest.mark.big
def test_an_index_beyond_2_31():
    x = torch.zeros(2**31 + 9, dtype=torch.int8)
    x[2**31 + 3] = 1
    assert tr.argmax(x).item() == 2**31 + 3
    values, index = tr.max(x, 0)
    assert (values.item(), index.item()) == (1, 2**31 + 3)


@pytest.mark.big
def test_cumsum_of_more_than_2_31_elements():
    """int8 with dtype=int8, 4 GiB in all."""
    n = 2**31 + 8192 + 3
    y = tr.cumsum(torch.ones(1, dtype=torch.int8).expand(n), 0, dtype=torch.int8)
    pattern = torch.arange(1, 257).to(torch.int8)
    whole = n // 256 * 256
    assert (y[:whole].view(-1, 256) == pattern).all() and (y[whole:] == pattern[: n - whole]).all()
