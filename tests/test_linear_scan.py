"""linear_scan: bits, resets, what overflows and underflows, broadcasting, gradients."""

import itertools

import numpy as np
import pytest
import torch
from cases import LAYOUTS, generator, launches, values
from forms import Recorder
from reference_scans import apply_linear_scan
from torch._subclasses.fake_tensor import FakeTensorMode

import torchreduce as tr
from torchreduce import _C
from torchreduce.table import FLOATS
from torchreduce.testing import assert_bitwise_equal, force_plan

NAN, INF = float("nan"), float("inf")
EPS = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-24, torch.float32: 2.0**-24, torch.float64: 2.0**-53}
LENGTHS = (1, 7, 8, 9, 63, 255, 257, 2049, 8192, 20001)
NAMES = ("a", "b", "initial")


# ---- inputs ----------------------------------------------------------------------------------------------------------


def uniform(shape, low, high, seed):
    return low + (high - low) * torch.rand(shape, generator=generator(seed), dtype=torch.float64)


def specials(shape, seed):
    """Multipliers of 160 powers of two and near 1, zeros of both signs, infinities, NaN."""
    powers = torch.randint(-80, 80, shape, generator=generator(seed))
    x = torch.ldexp(uniform(shape, -2, 2, seed + 1), powers.double())
    u = uniform(shape, 0, 1, seed + 2)
    x = torch.where(u < 0.5, uniform(shape, -1.1, 1.1, seed + 3), x)
    for bound, value in ((0.06, 1.0), (0.05, 0.0), (0.03, -0.0), (0.02, INF), (0.01, -INF), (0.001, NAN)):
        x = torch.where(u < bound, value, x)
    return x


FACTORS = {
    "decay": lambda shape, seed: uniform(shape, 0.9, 1, seed),
    "near one": lambda shape, seed: 1 + uniform(shape, -2, 2, seed) * 1e-6,
    "one": lambda shape, seed: torch.ones(shape, dtype=torch.float64),
    "alternating": lambda shape, seed: -uniform(shape, 0.99, 1, seed),
    "beyond one": lambda shape, seed: uniform(shape, -2, 2, seed),
    "resets": lambda shape, seed: torch.where(
        uniform(shape, 0, 1, seed) < 0.05, 0.0, uniform(shape, -1.2, 1.2, seed + 1)
    ),
    "specials": specials,
}


def terms(kind, shape, seed):
    x = torch.randn(shape, generator=generator(seed), dtype=torch.float64)
    u = uniform(shape, 0, 1, seed + 1)
    if kind == "zeros":
        return torch.where(u < 0.9, torch.where(u < 0.45, -0.0, 0.0), x)
    if kind == "specials":
        x = torch.ldexp(x, torch.randint(-140, 120, shape, generator=generator(seed + 2)).double())
        for bound, value in ((0.3, -0.0), (0.003, NAN), (0.002, INF)):
            x = torch.where(u < bound, value, x)
    return x


def inputs(shape, dtype, seed=0, factors="decay", kind="plain", start=False):
    """a, b and, along the last dim, initial or None."""
    initial = terms("specials" if kind == "specials" else "plain", shape[:-1], seed + 9).to(dtype) if start else None
    return FACTORS[factors](shape, seed).to(dtype), terms(kind, shape, seed + 5).to(dtype), initial


def to(device, *tensors):
    return tuple(None if t is None else t.to(device) for t in tensors)


def check_reference(device, a, b, dim, initial=None, **options):
    """Along rows; those of two dims down columns, too."""
    expected = apply_linear_scan(a, b, dim, initial, **options)
    a, b, initial = to(device, a, b, initial)
    assert_bitwise_equal(tr.linear_scan(a, b, dim, initial=initial, **options), expected)
    if dim == 1 and a.dim() == b.dim() == 2:
        a, b = a.t().contiguous(), b.t().contiguous()
        assert_bitwise_equal(tr.linear_scan(a, b, 0, initial=initial, **options), expected.t())


# ---- bits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factors", FACTORS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_reference_bits(device, dtype, factors):
    """From either end, after nothing and after an initial value."""
    for turn, (n, kind) in enumerate(itertools.product(LENGTHS, ("plain", "zeros", "specials"))):
        a, b, initial = inputs((2, n), dtype, n, factors, kind, start=turn % 2 == 0)
        check_reference(device, a, b, 1, initial, reverse=turn // 2 % 2 == 0)


@pytest.mark.parametrize("n, dtype, factors", [
    (2**18 - 1, torch.float32, "specials"), (2**18 + 1, torch.float32, "near one"), (2**18 + 1, torch.float64, "decay"),
    (2**19 + 8192 + 77, torch.float32, "near one"), (3 * 2**18 + 9, torch.bfloat16, "near one"),
])  # fmt: skip
def test_reference_bits_of_long_rows(device, n, dtype, factors):
    """Around superblocks of 2^18."""
    for start in (False, True)[dtype == torch.float64 :]:
        a, b, initial = inputs((1, n), dtype, n, factors, start=start)
        check_reference(device, a, b, 1, initial, reverse=start)


@pytest.mark.parametrize("dtype", FLOATS)
def test_multipliers_of_one_have_the_bits_of_cumsum(device, dtype):
    for n, reverse in itertools.product((5, 300, 9000, 2**18 + 9000), (False, True)):
        b = terms("plain", (n,), n).to(dtype).to(device)
        for a in (torch.ones_like(b), torch.ones((), dtype=dtype, device=device)):
            assert_bitwise_equal(tr.linear_scan(a, b, 0, reverse=reverse), tr.cumsum(b, 0, reverse=reverse))


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
def test_dtype_coherent(device, dtype):
    a, b, initial = to(device, *inputs((3, 3000), dtype, 1, start=True))
    wide = tr.linear_scan(a.float(), b.float(), 1, initial=initial.float())
    assert_bitwise_equal(tr.linear_scan(a, b, 1, initial=initial), wide.to(dtype))


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16))
def test_run_to_run_and_batch_invariant(device, dtype):
    for n, batch in ((5, 700), (300, 200), (9000, 9), (70001, 9)):
        a, b, initial = to(device, *inputs((batch, n), dtype, n, start=True))
        whole = tr.linear_scan(a, b, 1, initial=initial)
        for _ in range(10):
            assert_bitwise_equal(tr.linear_scan(a, b, 1, initial=initial), whole)
        assert_bitwise_equal(tr.linear_scan(a.t().contiguous(), b.t().contiguous(), 0, initial=initial), whole.t())
        for row in (0, batch // 2, batch - 1):
            part = slice(row, row + 1)
            assert_bitwise_equal(tr.linear_scan(a[part], b[part], 1, initial=initial[part]), whole[part])


FORCED = {
    "cpu": [{"family": "rows"}, {"family": "columns"}],
    "cuda": [{"family": "row_pairs", "lanes": 32}, {"family": "rows", "lanes": 32},
             *({"family": family, "vector_loads": wide} for family in _C.scan_families() for wide in (True, False))],
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape, dim", [((300, 7), 1), ((40, 3001), 1), ((3, 70001), 1), ((3001, 40), 0),
                                        ((6, 700, 5), 1), ((2**18 + 9,), 0)])  # fmt: skip
def test_policy_invariant(device, shape, dim, dtype):
    """Every family that can serve a case, from either end, whatever is aligned."""
    a, b, _ = inputs(shape, dtype, 3, "resets")
    policies = FORCED[device]
    for reverse in (False, True):
        expected = tr.linear_scan(a, b, dim, reverse=reverse)
        for forced, layout in itertools.product(policies, ("contiguous", "misaligned", "padded")):
            view = LAYOUTS[layout]
            for first, second in ((view(a.to(device)), b.to(device)), (a.to(device), view(b.to(device)))):
                with force_plan(**forced):
                    try:
                        y = tr.linear_scan(first, second, dim, reverse=reverse)
                    except ValueError:  # it serves some types and layouts only
                        assert forced["family"] not in ("columns", "chain", "column_tiles")
                        continue
                assert_bitwise_equal(y, expected)


def test_policy_invariant_on_the_cpu():
    """Instruction sets of this machine and 1 to 4 threads; rows of which eight are taken at once, or one."""
    before = torch.get_num_threads(), _C.instruction_set()
    shapes = (((300, 70), 1), ((2, 70001), 1), ((9, 270_001), 1), ((9001, 40), 0))
    for (shape, dim), dtype in itertools.product(shapes, FLOATS):
        a, b, _ = inputs(shape, dtype, 4, "specials", "specials")
        initial = terms("plain", shape[:dim] + shape[dim + 1 :], 5).to(dtype)
        expected = tr.linear_scan(a, b, dim, initial=initial)
        try:
            for threads, instructions in launches(1, 2, 4, 3):
                _C.set_instruction_set(instructions)
                torch.set_num_threads(threads)
                assert_bitwise_equal(tr.linear_scan(a, b, dim, initial=initial), expected)
        finally:
            torch.set_num_threads(before[0])
            _C.set_instruction_set(before[1])


def test_layout_invariant(device):
    a, b, _ = inputs((5, 6, 7, 8), torch.float32, 6)
    for dim in range(4):
        expected = tr.linear_scan(a, b, dim)
        for first, second in itertools.product(LAYOUTS.values(), LAYOUTS.values()):
            assert_bitwise_equal(tr.linear_scan(first(a.to(device)), second(b.to(device)), dim), expected)


BROADCAST = [
    ((3, 300), (3, 300), (3,), 1),
    ((300,), (3, 300), (), 1),
    ((3, 1), (3, 300), (1,), 1),
    ((3, 300), (300,), (3,), -1),
    ((1, 300), (3, 1), (3,), 1),
    ((), (300, 3), (3,), 0),
    ((300, 3), (1, 3), (1,), 0),
    ((2, 1, 5), (1, 300, 5), (2, 5), 1),
    ((2, 300, 1), (1, 1, 5), (5,), 1),
    ((3, 1), (3, 1), (3,), 1),
]


@pytest.mark.parametrize("a_shape, b_shape, initial_shape, dim", BROADCAST)
def test_broadcasting(device, a_shape, b_shape, initial_shape, dim):
    """A broadcast tensor gives results bitwise identical to an expanded copy, in every kernel variant."""
    for dtype, reverse in itertools.product((torch.float32, torch.bfloat16), (False, True)):
        a, b = FACTORS["decay"](a_shape, 1).to(dtype), terms("plain", b_shape, 2).to(dtype)
        initial = terms("plain", initial_shape, 3).to(dtype)
        for start in (None, initial):
            check_reference(device, a, b, dim, start, reverse=reverse)
            expected = tr.linear_scan(a, b, dim, initial=start, reverse=reverse)
            for forced in FORCED[device]:
                with force_plan(**forced):
                    try:
                        y = tr.linear_scan(*to(device, a, b), dim, initial=to(device, start)[0], reverse=reverse)
                    except ValueError:
                        continue
                assert_bitwise_equal(y, expected)


def test_nothing_is_written_out():
    """An input of 2^40 elements along a dim of stride 0, of which one is scanned; and the kernel sees no copy."""
    a = torch.tensor(0.5).expand(2**40)[:4]
    assert tr.linear_scan(a, torch.tensor([8.0, 0.0, 0.0, 1.0]), 0).tolist() == [8, 4, 2, 2]
    from torch.utils._python_dispatch import TorchDispatchMode

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen = []
    with Calls():
        tr.linear_scan(torch.rand(3, 1), torch.rand(5), 1, initial=torch.rand(1))
    assert [name for name in seen if "rand" not in name] == ["torchreduce.linear_scan.default"]


@pytest.mark.parametrize("dtype", FLOATS)
def test_nothing_and_one(device, dtype):
    x = torch.tensor(3.5, dtype=dtype, device=device)
    for dim in (0, -1):
        assert tr.linear_scan(x, x, dim) == 3.5
        assert tr.linear_scan(x, x, dim, initial=torch.ones_like(x)) == 7
    for shape, dim in (((0, 3), 0), ((0, 3), 1), ((3, 0), 0), ((0,), 0)):
        e = torch.empty(shape, dtype=dtype, device=device)
        rows = torch.zeros([n for d, n in enumerate(shape) if d != dim], dtype=dtype, device=device)
        for initial in (None, rows):
            y = tr.linear_scan(e, e, dim, initial=initial)
            assert y.shape == shape and y.dtype == dtype
    e = torch.empty(3, 0, device=device, requires_grad=True)
    start = torch.zeros(3, device=device, requires_grad=True)
    grads = torch.autograd.grad(tr.linear_scan(e, e, 1, initial=start).sum(), (e, start))
    assert grads[0].shape == (3, 0) and grads[1].tolist() == [0, 0, 0]


# ---- semantics -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_resets_keep_packed_sequences_apart(device, dtype):
    """Bit for bit the results of each sequence alone, whatever is in the others."""
    a, b, _ = inputs((30000,), dtype, 7, "beyond one")
    starts = [0, 5, 8, 300, 301, 8192, 9000, 20000]
    a[starts] = 0
    b[[4, 250, 8191, 9500]] = torch.tensor([INF, NAN, -INF, 1e4], dtype=dtype)
    a[[100, 400, 12000]] = torch.tensor([NAN, INF, -INF], dtype=dtype)
    y = tr.linear_scan(*to(device, a, b), 0).cpu()
    assert not torch.isfinite(y).all()
    for begin in starts:
        assert_bitwise_equal(y[begin], b[begin])
    clean = b.clone()
    clean[:9000] = 1
    assert_bitwise_equal(tr.linear_scan(*to(device, a, clean), 0)[9000:].cpu(), y[9000:])


def test_infinities_and_nan_go_on_until_a_reset(device):
    a = torch.tensor([1.0, 0.5, 0.5, 0.5, 0.0, 0.5], device=device)
    for special in (INF, -INF, NAN):
        b = torch.tensor([1.0, special, 1.0, 1.0, 2.0, 1.0], device=device)
        y = tr.linear_scan(a, b, 0)
        assert torch.isfinite(y).tolist() == [True, False, False, False, True, True] and y[4:].tolist() == [2, 2]
    a[2], b[1] = NAN, 1.0
    assert torch.isnan(tr.linear_scan(a, b, 0)).tolist() == [False, False, True, True, False, False]


def test_the_first_a_counts_only_after_an_initial_value(device):
    a, b = torch.tensor([NAN, 2.0], device=device), torch.tensor([3.0, 1.0], device=device)
    assert tr.linear_scan(a, b, 0).tolist() == [3, 7] and tr.linear_scan(a.flip(0), b.flip(0), 0, reverse=True)[0] == 7
    start = torch.tensor(5.0, device=device)
    assert torch.isnan(tr.linear_scan(a, b, 0, initial=start)).all()
    a[0] = 2
    assert tr.linear_scan(a, b, 0, initial=start).tolist() == [13, 27]
    for start, first in ((INF, 3.0), (NAN, 3.0)):
        a[0] = 0
        assert tr.linear_scan(a, b, 0, initial=torch.tensor(start, device=device))[0] == first


def test_negative_zeros_stay_where_nothing_is_multiplied(device):
    b = torch.full((9000,), -0.0, device=device)
    for a in (torch.ones(9000, device=device), torch.zeros(9000, device=device)):
        assert torch.signbit(tr.linear_scan(a, b, 0)).all()


def test_products_that_overflow_are_loud_and_resets_clean_up(device):
    a, b = torch.full((3000,), 2.0, device=device), torch.zeros(3000, device=device)
    assert (tr.linear_scan(a, b, 0) == 0).all()  # masked rows
    b[0] = 2.0**-140  # serially finite: 2^127 is reached at 267
    a[200:] = 0.5
    y = tr.linear_scan(a, b, 0)
    serial = [2.0 ** (-140 + i) for i in range(200)]
    assert y[:200].tolist() == serial or not torch.isfinite(y[:200]).all()
    a = torch.full((3000,), 4.0, device=device)
    a[2000] = 0
    y = tr.linear_scan(a, torch.ones(3000, device=device), 0)
    assert not torch.isfinite(y[1000:2000]).any() and y[2000:2003].tolist() == [1, 5, 21]


def test_products_that_underflow_drop_a_finite_state(device):
    """Never a non-finite one."""
    a, b = torch.full((300,), 0.5, device=device), torch.zeros(300, device=device)
    for start, late in ((1e30, 0.0), (INF, NAN), (NAN, NAN)):
        y = tr.linear_scan(a, b, 0, initial=torch.tensor(start, device=device))
        assert_bitwise_equal(y[-1], torch.tensor(late, device=device))
    y = tr.linear_scan(a, b, 0, initial=torch.tensor(1e30, device=device)).cpu().double()
    exact = np.float32(1e30) * 0.5 ** torch.arange(1.0, 301, dtype=torch.float64)
    assert ((y - exact).abs() <= 2.0**-148 * 1e30).all()


def test_every_nan_written_is_canonical(device):
    for dtype in FLOATS:
        a, b, _ = to(device, *inputs((4, 3000), dtype, 8, "specials", "specials"))
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        y = tr.linear_scan(a, b, 1)
        canonical = torch.tensor(NAN, dtype=dtype).view(bits).item()
        assert torch.isnan(y).any() and (y.view(bits)[torch.isnan(y)] == canonical).all()


@pytest.mark.parametrize("factors", ("decay", "near one", "one", "alternating"))
@pytest.mark.parametrize("dtype", FLOATS)
def test_within_the_bound(device, dtype, factors):
    """8 eps of the recurrence of absolute values, and half an ulp of a 16-bit result."""
    n = 40000
    a, b, _ = inputs((n,), dtype, 9, factors)
    if factors == "near one":  # growing beyond 1, rounding or not
        a.clamp_(max=1)
    y = tr.linear_scan(*to(device, a, b), 0).cpu().double().numpy()
    wide_a, wide_b = (t.double().numpy().astype(np.longdouble) for t in (a, b))
    h = size = np.longdouble(0)
    exact, sizes = np.empty(n, np.longdouble), np.empty(n, np.longdouble)
    for i in range(n):
        h, size = wide_a[i] * h + wide_b[i], abs(wide_a[i]) * size + abs(wide_b[i])
        exact[i], sizes[i] = h, size
    info = torch.finfo(dtype)
    half_ulp = (info.eps / 2 * np.abs(exact) + info.smallest_normal * info.eps) if info.bits == 16 else 0
    assert (np.abs(y - exact) <= 8 * EPS[dtype] * sizes + half_ulp).all()


# ---- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_gradient_bits(device, dtype):
    """The scan from the other end by the next a; times the h before; each product rounded once."""
    for (n, start), reverse in itertools.product(((1, True), (7, False), (300, True), (9001, False)), (False, True)):
        a, b, initial = inputs((2, n), dtype, n, "resets", start=start)
        g = values((2, n), dtype, n + 1)
        tensors = [t.to(device).requires_grad_() for t in (a, b, initial) if t is not None]
        y = tr.linear_scan(*tensors[:2], 1, initial=tensors[2] if start else None, reverse=reverse)
        grads = torch.autograd.grad(y, tensors, g.to(device))
        flip = (lambda t: t.flip(1)) if reverse else (lambda t: t)
        a, g, h = flip(a), flip(g), flip(y.detach().cpu())
        shifted = torch.cat([a[:, 1:], torch.ones(2, 1, dtype=dtype)], 1)
        back = apply_linear_scan(shifted, g, 1, reverse=True)
        first = initial[:, None] if start else torch.zeros(2, 1, dtype=dtype)
        expected = [flip(back * torch.cat([first, h[:, :-1]], 1)), flip(back)]
        expected += [a[:, 0] * back[:, 0]] if start else []
        for grad, wanted in zip(grads, expected, strict=True):
            assert torch.equal(grad.cpu(), wanted)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
def test_gradients_of_16_bits_are_rounded_once(device, dtype):
    a, b, initial = to(device, *inputs((3, 500), dtype, 2, start=True))
    g = values((3, 500), dtype, 3).to(device)

    def gradients(*tensors):
        tensors = [t.detach().requires_grad_() for t in tensors]
        y = tr.linear_scan(tensors[0], tensors[1], 1, initial=tensors[2])
        return torch.autograd.grad(y, tensors, g.to(y.dtype))

    wide = gradients(a.float(), b.float(), initial.float())
    assert_bitwise_equal(gradients(a, b, initial), tuple(t.to(dtype) for t in wide))


def test_gradients_of_what_is_broadcast_are_canonical_sums(device):
    a, b, _ = to(device, *inputs((5000, 3), torch.float32, 4))
    g = values((5000, 3), torch.float32, 5).to(device)
    full = a[:, :1].expand(5000, 3).contiguous().requires_grad_()
    (expected,) = torch.autograd.grad(tr.linear_scan(full, b, 0), full, g)
    narrow = a[:, :1].clone().requires_grad_()
    (grad,) = torch.autograd.grad(tr.linear_scan(narrow, b, 0), narrow, g)
    assert_bitwise_equal(grad, tr.sum(expected, 1, keepdim=True))


@pytest.mark.parametrize("a_shape, b_shape, initial_shape, dim", BROADCAST)
def test_gradcheck(device, a_shape, b_shape, initial_shape, dim):
    shapes = [tuple(min(n, 5) for n in shape) for shape in (a_shape, b_shape, initial_shape)]
    # Within (-1, 1): differences of the powers of a large `a` have no digits left.
    tensors = [values(shape, torch.float64, i).tanh().to(device).requires_grad_() for i, shape in enumerate(shapes)]
    for reverse in (False, True):
        for count in (2, 3):

            def f(a, b, initial=None, reverse=reverse):
                return tr.linear_scan(a, b, dim, initial=initial, reverse=reverse)

            assert torch.autograd.gradcheck(f, tensors[:count])
            assert torch.autograd.gradgradcheck(f, tensors[:count])


def test_gradients_stop_at_resets_and_the_unused_a(device):
    a = torch.tensor([NAN, 2.0, 0.0, 3.0], device=device, requires_grad=True)
    b = torch.tensor([1.0, INF, 1.0, 1.0], device=device, requires_grad=True)
    g = torch.tensor([INF, 1.0, 1.0, 1.0], device=device)
    to_a, to_b = torch.autograd.grad(tr.linear_scan(a, b, 0), (a, b), g)
    assert to_a[0] == 0 and to_b[1:].tolist() == [1, 4, 1] and to_a[3] == 1


def test_each_input_may_be_the_only_one_with_a_gradient(device):
    tensors = to(device, *inputs((3, 40), torch.float32, 6, start=True))

    def gradient(wanted):
        parts = [t.clone().requires_grad_(i in wanted) for i, t in enumerate(tensors)]
        y = tr.linear_scan(parts[0], parts[1], 1, initial=parts[2])
        return torch.autograd.grad(y, [parts[i] for i in wanted], torch.ones_like(y))

    whole = gradient((0, 1, 2))
    for i in range(3):
        assert_bitwise_equal(gradient((i,)), (whole[i],))


# ---- torch -----------------------------------------------------------------------------------------------------------


def sample_arguments(device):
    for dtype, shapes, dim, flags in (
        (torch.float32, ((3, 5), (3, 5), (3,)), 1, (False, False)),
        (torch.bfloat16, ((5,), (3, 5), None), -1, (True, True)),
        (torch.float64, ((3, 1), (5,), (1,)), 0, (True, False)),
        (torch.float32, ((), (), ()), 0, (False, False)),
    ):
        tensors = [None if s is None else values(s, dtype, i).to(device) for i, s in enumerate(shapes)]
        yield (*tensors, dim, *flags, 0)


def test_opcheck(device):
    op = torch.ops.torchreduce.linear_scan
    for args in sample_arguments(device):
        torch.library.opcheck(op.raw, args)
        leaves = [t.requires_grad_() if isinstance(t, torch.Tensor) else t for t in args]
        torch.library.opcheck(op.default, tuple(leaves))


@pytest.mark.parametrize("overload", ("", ".raw"))
def test_there_is_a_kernel_for_every_key(overload):
    for key in ("CPU", "CUDA", "Meta", "Autograd"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"torchreduce::linear_scan{overload}", key)


def test_meta_and_fake_tensors_have_the_results_shape(device):
    for a_shape, b_shape, initial_shape, dim in BROADCAST:
        a, b, start = (values(shape, torch.float32).to(device) for shape in (a_shape, b_shape, initial_shape))
        real = tr.linear_scan(a, b, dim, initial=start)
        shadow = tr.linear_scan(*to("meta", a, b), dim, initial=start.to("meta"))
        assert (shadow.shape, shadow.stride()) == (real.shape, real.stride())
        with FakeTensorMode() as fakes:
            a, b, start = map(fakes.from_tensor, (a, b, start))
            shadow = tr.linear_scan(a, b, dim, initial=start)
        assert (shadow.shape, shadow.stride(), shadow.device.type) == (real.shape, real.stride(), device)


def both_ways(a, b, initial):
    return tr.linear_scan(a, b, 1, initial=initial) + tr.linear_scan(a, b, 0, reverse=True)


def test_compiled_bits_and_gradients_are_eager_ones(device):
    torch._dynamo.reset()
    compiled = torch.compile(both_ways, fullgraph=True, backend="aot_eager")
    for dtype in (torch.float32, torch.bfloat16):
        tensors = [values(s, dtype, i).to(device).requires_grad_() for i, s in enumerate(((3, 1), (3, 500), (3,)))]
        ours, expected = compiled(*tensors), both_ways(*tensors)
        assert_bitwise_equal(ours, expected)
        g = values(ours.shape, dtype, 5).to(device)
        assert_bitwise_equal(torch.autograd.grad(ours, tensors, g), torch.autograd.grad(expected, tensors, g))


def test_dynamic_shapes_compile_once_and_graphs_keep_the_level(device):
    torch._dynamo.reset()
    recorder = Recorder()

    def f(a, b, initial):
        with tr.determinism("fast"):
            return tr.linear_scan(a, b, 1, initial=initial)

    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend=recorder)
    for shape in ((3, 40), (5, 9000)):
        a, b, initial = to(device, *inputs(shape, torch.float32, 7, start=True))
        assert_bitwise_equal(compiled(a, b, initial), f(a, b, initial))
    assert len(recorder.graphs) == 1 and recorder.levels() == [1]


def test_vmap_has_the_bits_of_a_loop(device):
    a, b, initial = to(device, *inputs((4, 3, 50), torch.float32, 8, start=True))
    whole = tr.linear_scan(a, b, 2, initial=initial)
    batched = torch.vmap(lambda a, b, h: tr.linear_scan(a, b, 1, initial=h))(a, b, initial)
    assert_bitwise_equal(batched, whole)
    for dims in ((None, 0), (0, None), (2, 1)):
        batched = torch.vmap(lambda a, b: tr.linear_scan(a, b, -1), in_dims=dims)
        parts = [t if d is None else t.movedim(0, d) for t, d in zip((a, b), dims, strict=True)]
        one = [t[0] if d is None else t for t, d in zip(parts, dims, strict=True)]
        loop = [
            tr.linear_scan(*(t if d is None else t.select(d, i) for t, d in zip(one, dims, strict=True)), -1)
            for i in range(4)
        ]
        assert_bitwise_equal(batched(*one), torch.stack(loop))
    numbers = torch.arange(4.0, device=device)
    assert_bitwise_equal(torch.vmap(lambda a, b: tr.linear_scan(a, b, 0))(numbers, numbers), numbers)
    grads = torch.vmap(torch.func.grad(lambda a, b: tr.linear_scan(a, b, 0).sum()))(a[0], b[0])
    leaf = a[0].clone().requires_grad_()
    assert_bitwise_equal(grads, torch.autograd.grad(tr.linear_scan(leaf, b[0], 1).sum(), leaf)[0])


def test_errors(device):
    x, rows = torch.ones(2, 3, device=device), torch.ones(2, device=device)
    for error, match, call in (
        (TypeError, "'b'", lambda: tr.linear_scan(x, 1.0, 1)),
        (TypeError, "dtype of b, torch.float64, got torch.float32", lambda: tr.linear_scan(x, x.double(), 1)),
        (TypeError, "b must be floating, got torch.int64", lambda: tr.linear_scan(x.long(), x.long(), 1)),
        (TypeError, "initial", lambda: tr.linear_scan(x, x, 1, initial=rows.half())),
        (TypeError, "torch.float16 or torch.float32", lambda: tr.linear_scan(x.double(), x.half(), 1)),
        (TypeError, "'a' must be a Tensor, got complex", lambda: tr.linear_scan(1j, x, 1)),
        (TypeError, "'initial' must be a Tensor, got str", lambda: tr.linear_scan(x, x, 1, initial="0")),
        (TypeError, "dim", lambda: tr.linear_scan(x, x)),
        (NotImplementedError, "complex64", lambda: tr.linear_scan(x.to(torch.complex64), x, 1)),
        (IndexError, "got 2", lambda: tr.linear_scan(x, x, 2)),
        (IndexError, "got -3", lambda: tr.linear_scan(x, x, -3)),
        (RuntimeError, "broadcast", lambda: tr.linear_scan(x, torch.ones(2, device=device), 1)),
        (RuntimeError, r"\(2,\), got \(3,\)", lambda: tr.linear_scan(x, x, 1, initial=torch.ones(3, device=device))),
        (RuntimeError, "initial", lambda: tr.linear_scan(x, x, 1, initial=torch.ones(1, 2, device=device))),
        (RuntimeError, "device", lambda: tr.linear_scan(x, x.to("meta"), 1)),
    ):
        with pytest.raises(error, match=match):
            call()


def test_direct_calls_are_safe(device):
    x, rows = torch.ones(2, 3, device=device), torch.ones(2, device=device)
    op = torch.ops.torchreduce.linear_scan.raw
    for args in (
        (x, x[:, :2], None, 1, False, False, 0),
        (x, x.double(), None, 1, False, False, 0),
        (x.long(), x.long(), None, 1, False, False, 0),
        (x, x, x, 1, False, False, 0),
        (x, x, torch.ones(3, device=device), 1, False, False, 0),
        (x, x, rows, 1, False, True, 0),
        (x, x, None, 2, False, False, 0),
    ):
        with pytest.raises((RuntimeError, IndexError)):
            op(*args)
