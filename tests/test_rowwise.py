"""Row-wise ops: each promise under its name, forward and gradients; kernels against
tests/reference_rowwise.py bit for bit; values, special values and errors compared with torch."""

import json
import math

import numpy as np
import pytest
import reference_rowwise as reference
import torch
import torch.nn.functional as F
from cases import LAYOUTS, generator, hostile, launches, values
from reference import round_to, to_accumulator, to_numpy, to_torch
from test_contract import instruction_set, threads

import torchreduce as tr
from torchreduce import testing
from torchreduce.testing import assert_bitwise_equal, force_plan

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
EPS = 1e-5
ACC = {dtype: torch.float64 if dtype is torch.float64 else torch.float32 for dtype in FLOATS}
both = pytest.mark.parametrize("dtype", FLOATS, ids=str)


# ---- every function as one of rows: x, and what goes with it, to results and gradients ------------------------------


def side(n, dtype, seed):
    return values(n, dtype, seed=1000 + seed)


def labels(rows, n, seed=0):
    t = torch.randint(0, max(n, 1), (rows,), generator=generator(seed))
    t[::5] = -100
    return t


def with_gradients(f, x, *parameters, seed=0):
    """Results of f(x, *parameters), and the gradients of all."""
    leaves = [t.detach().requires_grad_() for t in (x, *parameters)]
    out = f(*leaves)
    outs = (out,) if isinstance(out, torch.Tensor) else tuple(out)
    grads = [values(t.shape, t.dtype, seed=seed + 77).to(x.device) for t in outs]
    return (*(t.detach() for t in outs), *torch.autograd.grad(outs, leaves, grads))


def ours(name, x, seed=0):
    """The function's results and gradients on (rows, n)."""
    rows, n = x.shape
    w, b = (side(n, x.dtype, k + seed).to(x.device) for k in (0, 1))
    calls = {
        "softmax": lambda: with_gradients(lambda x: tr.softmax(x, 1), x),
        "log_softmax": lambda: with_gradients(lambda x: tr.log_softmax(x, 1), x),
        "logsumexp": lambda: with_gradients(lambda x: tr.logsumexp(x, 1), x),
        "entropy": lambda: with_gradients(lambda x: tr.entropy(x, 1), x),
        "var_mean": lambda: with_gradients(lambda x: tr.var_mean(x, 1), x),
        "std": lambda: with_gradients(lambda x: tr.std(x, 1, correction=0), x),
        "rms_norm": lambda: with_gradients(lambda x, w: tr.rms_norm(x, n, w, EPS), x, w),
        "layer_norm": lambda: with_gradients(lambda x, w, b: tr.layer_norm(x, n, w, b, EPS), x, w, b),
        "cross_entropy": lambda: with_gradients(
            lambda x: tr.cross_entropy(x, labels(rows, n).to(x.device), w.abs(), reduction="none"), x
        ),
    }
    return calls[name]()


NAMES = ("softmax", "log_softmax", "logsumexp", "entropy", "var_mean", "std", "rms_norm", "layer_norm", "cross_entropy")
named = pytest.mark.parametrize("name", NAMES)


def judged_loss(a, target, w, g, reduction, smoothing, to_log=None):
    """cross_entropy of accumulators, and the gradient, by labels or probabilities; with to_log the logsumexp, too."""
    acc, weights, log = a.dtype, np.ones(len(a), a.dtype), reference.logsumexp(a)
    soft, t = target.is_floating_point(), to_numpy(target)
    if soft or (smoothing and w is not None):
        left_out = np.zeros(len(a), bool) if soft else t == -100
        q = to_accumulator(t, acc) if soft else (t[:, None] == np.arange(a.shape[1])).astype(acc)
        w = np.ones(a.shape[1], acc) if w is None else w
        loss = np.where(left_out, acc.type(0), reference.cross_entropy_of_probabilities(a, q, w, smoothing))
        weights = weights if soft else np.where(left_out, acc.type(0), w[t])

        def gradient(g):
            dx = reference.cross_entropy_of_probabilities_gradient(g, a, q, w, smoothing)
            return np.where(left_out[:, None], acc.type(0), dx)
    else:
        loss, weights, *_ = (
            reference.smoothed_cross_entropy(a, t, smoothing) if smoothing else reference.cross_entropy(a, t, w)
        )
        log = np.where(t == -100, acc.type(0), log)

        def gradient(g):
            return reference.cross_entropy_gradient(g, a, t, w, to_log=to_log, smoothing=smoothing)

    if reduction != "none":
        total = reference.canonical_sum(weights[None].astype(acc))[0]
        loss = reference.canonical_sum(loss[None].astype(acc))
        loss, g = (loss / total, g / total) if reduction == "mean" else (loss, g)
        loss, g = loss.reshape(()), np.full(len(a), g, acc)
    return [loss] if to_log is None else [loss, log], [gradient(g)]


def judge(
    name, x, grads, w=None, b=None, target=None, result=None, correction=1.0, reduction="none", eps=EPS, smoothing=0.0
):
    """Results and gradients by the reference, on the CPU, of x (rows, n) and the gradients of the results."""
    dtype = str(x.dtype).removeprefix("torch.")
    to = str(result or x.dtype).removeprefix("torch.")
    acc = np.dtype(np.float64 if "float64" in (dtype, to) else np.float32)
    wide = lambda t: None if t is None else to_accumulator(to_numpy(t), acc)  # noqa: E731
    saved = lambda y: to_accumulator(round_to(y, to), acc)  # noqa: E731  as returned
    a, w, b, g, *more = map(wide, (x, w, b, *grads))
    with np.errstate(all="ignore"):
        if name in ("softmax", "log_softmax"):
            y = getattr(reference, name)(a)
            outs, ins = [y], [getattr(reference, f"{name}_gradient")(g, saved(y))]
        elif name == "logsumexp":
            outs, ins = [reference.logsumexp(a)], [reference.logsumexp_gradient(g, a)]
        elif name == "entropy":
            outs, ins = [reference.entropy(a)[0]], [reference.entropy_gradient(g, a)]
        elif name in ("var", "std", "var_mean", "std_mean"):
            root, to_mean = name.startswith("std"), more[0] if more else None
            outs = list(reference.variance(a, correction, root)[: len(grads)])
            ins = [reference.variance_gradient(g, to_mean, a, correction, root)]
        elif name == "rms_norm":
            outs, ins = [reference.rms_norm(a, w, eps)], [*reference.rms_norm_gradient(g, a, w, eps)]
        elif name == "layer_norm":
            outs, ins = [reference.layer_norm(a, w, b, eps)], [*reference.layer_norm_gradient(g, a, w, eps)]
        else:
            outs, ins = judged_loss(a, target, w, g, reduction, smoothing, *more)
    dtypes = [to, acc.name] if name == "cross_entropy" else [to] * len(outs)  # a logsumexp is not rounded
    rounded = [round_to(y, to) for y, to in zip(outs, dtypes, strict=False)] + [round_to(dx, dtype) for dx in ins]
    return tuple(to_torch(np.ascontiguousarray(part)) for part in rounded)


def judged(name, x):
    """What ours() has to be."""
    rows, n = x.shape
    of_rows = name not in ("softmax", "log_softmax", "rms_norm", "layer_norm")
    grads = [values((rows,) if of_rows else (rows, n), x.dtype, seed=77)] * (2 if name == "var_mean" else 1)
    w, b = side(n, x.dtype, 0), side(n, x.dtype, 1)
    if name == "cross_entropy":
        return judge(name, x, grads, w.abs(), target=labels(rows, n))
    return judge(name, x, grads, w, b, correction=0.0 if name == "std" else 1.0)


def rows_of(n, dtype, rows=17, seed=0):
    """Ordinary rows, and all that is special: great and far away, falling, masked, infinite, NaN, next to where the
    exponentials' reference changes, one element that is not masked, squares that are too small or too great."""
    small, great = (2.0**-560, 2.0**540) if dtype is torch.float64 else (2.0**-76, 2.0**66)
    x = torch.randn((rows, n), generator=generator(seed), dtype=torch.float64)
    big = torch.finfo(dtype).max
    make = [
        lambda r: r, lambda r: 30 * r, lambda r: r + 1e4, lambda r: -20 * r.abs(),
        lambda r: torch.where(torch.arange(n) >= max(1, n // 2), -math.inf, r), lambda r: r * 0 - math.inf,
        lambda r: torch.where(torch.arange(n) == n // 3, math.nan, r),
        lambda r: torch.where(torch.arange(n) == 0, math.inf, r), lambda r: r.clamp(-1, 1) * big,
        lambda r: r * 2.0**20, lambda r: 50 * r + 2.0**20, lambda r: -60 * torch.arange(n) / n,
        lambda r: r * 0 - 0.0, lambda r: torch.where(torch.arange(n) == n // 2, r, -math.inf),
        lambda r: r * small, lambda r: r * great, lambda r: torch.where(torch.arange(n) < n // 2, r * small, r),
    ]  # fmt: skip
    return torch.stack([make[i % len(make)](row) for i, row in enumerate(x)]).to(dtype)


# ---- the kernels and the reference -----------------------------------------------------------------------------------


@named
@both
def test_bits_are_the_references(device, name, dtype):
    for n in (1, 2, 7, 31, 64, 100, 255, 257, 1000, 2048, 2049, 4100):
        check_bits(device, name, dtype, n)


def check_bits(device, name, dtype, n):
    x = rows_of(n, dtype)
    assert_bitwise_equal(tuple(t.cpu() for t in ours(name, x.to(device))), judged(name, x))


@named
@pytest.mark.parametrize("n", (8193, 20011, 50257))
def test_bits_of_long_rows_are_the_references(device, name, n):
    x = rows_of(n, torch.bfloat16 if n > 20000 else torch.float32, rows=4, seed=1)
    assert_bitwise_equal(tuple(t.cpu() for t in ours(name, x.to(device))), judged(name, x))


def test_golden_bits_are_the_references():
    """They were computed by the kernels; the reference says the same."""
    golden = json.loads(testing.GOLDEN_FILE.read_text())["cases"]
    cases = [case for case in testing.golden_cases() if case.function in testing.ROWWISE]
    cases = [case for case in cases if "segments" not in case.options]  # test_segment_rows.py
    assert {case.function for case in cases} == set(testing.ROWWISE) and len(cases) > 150
    for case in cases:
        x = case.input()
        across = case.options.get("dim") == 0
        arguments, options = case.beside(x)
        residual = options.get("residual")
        two = case.function == "std_mean" or residual is not None or "return_logsumexp" in options
        rows = lambda t, across=across: t.T.contiguous() if across and t.dim() == 2 else t  # noqa: E731
        grads = [rows(g) for g in case.gradients(*case.result(x)[: 1 + two])]
        if residual is not None:
            x, to_sum = x + residual.detach(), grads.pop()
        expected = judge(
            case.function, rows(x), grads, *(options.get(k) for k in ("weight", "bias")),
            target=arguments[0] if arguments else None, result=case.options.get("dtype"),
            reduction=options.get("reduction", "mean"), smoothing=options.get("label_smoothing", 0.0),
            eps=torch.finfo(ACC[x.dtype]).eps if case.function == "rms_norm" else EPS,
        )  # fmt: skip
        if residual is not None:  # the sum is a result, whose gradient is added
            normal, dx, *rest = expected
            expected = (normal, x, dx + to_sum, dx + to_sum, *rest)
        assert golden[case.name]["result"] == testing.hash_of(*map(rows, expected)), case.name


# ---- promises --------------------------------------------------------------------------------------------------------


def of_rows(name, results):
    """Those that have a row for each row: not the gradients of weights."""
    return results[: {"rms_norm": 2, "layer_norm": 2, "var_mean": 3}.get(name, 2)]


@named
@both
@pytest.mark.parametrize("n", (3, 300, 2500))
def test_bits_do_not_depend_on_the_batch(device, name, dtype, n):
    """A row alone, in the middle of others, and among 1 to 1100."""
    many = 1100 if n < 100 else 70
    x = rows_of(n, dtype, rows=many, seed=2).to(device)

    def run(part):
        if name != "cross_entropy":
            return of_rows(name, ours(name, part))
        target = labels(many, n).to(device)[: len(part)]
        return with_gradients(lambda t: tr.cross_entropy(t, target, reduction="none"), part)

    whole = run(x)
    for count in (1, 2, 33):
        part = run(x[:count].clone())
        for k, (a, b) in enumerate(zip(part, whole, strict=True)):
            rows = len(whole) - (3 if name == "var_mean" else 2)
            if k <= rows:  # results; the gradients' incoming values differ by the number of rows
                assert_bitwise_equal(a, b[:count])
    again = run(x.clone())
    assert_bitwise_equal(again, whole)


@named
@both
def test_bits_do_not_depend_on_the_layout(device, name, dtype):
    x = rows_of(301, dtype, rows=20, seed=3).to(device)
    expected = ours(name, x)
    for layout in LAYOUTS.values():
        assert_bitwise_equal(ours(name, layout(x)), expected)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("name", ("softmax", "log_softmax"))
def test_columns_have_the_bits_of_rows(device, name, dtype):
    """Over dim 1 of (2, length, columns): around the borders of what a thread has, and wherever columns start."""
    call = getattr(tr, name)
    lengths = ((2, 72), (8, 66), (9, 24), (16, 33), (64, 7), (255, 40), (256, 17), (257, 16), (1025, 8), (2049, 8))
    for length, columns in lengths:
        x = values((2, length, columns), dtype, seed=length)
        if length == 9:
            x = hostile(x.shape, dtype, seed=2)
        x = x.to(device)
        g = values(x.shape, dtype, seed=length + 1).to(device)
        found = []
        for dim, at in ((1, (0, 1, 2)), (2, (0, 2, 1))):
            leaf = x.permute(at).contiguous().requires_grad_()
            y = call(leaf, dim)
            (dx,) = torch.autograd.grad(y, leaf, g.permute(at).contiguous())
            found.append((y.detach().permute(at), dx.permute(at)))
        for columnwise, rowwise in zip(*found, strict=True):
            assert_bitwise_equal(columnwise, rowwise)


@named
def test_bits_do_not_depend_on_the_launch(device, name):
    x = rows_of(4100, torch.float32, rows=9, seed=4)
    expected = tuple(t.cpu() for t in ours(name, x))
    if device == "cuda":
        assert_bitwise_equal(tuple(t.cpu() for t in ours(name, x.cuda())), expected)
        return
    long = [rows_of(33000, torch.float32, rows=rows, seed=4) for rows in (1, 3)]  # threads share the leaves of few rows
    with threads(1):
        alone = [ours(name, t) for t in long]
    for count, isa in launches(1, 2, 5):
        with instruction_set(isa), threads(count):
            assert_bitwise_equal(ours(name, x), expected)
            for t, whole in zip(long, alone, strict=True):
                assert_bitwise_equal(ours(name, t), whole)
    for family in ("rows", "columns"):
        with force_plan(family=family):
            assert_bitwise_equal(ours(name, x), expected)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
def test_a_result_of_16_bits_is_that_of_float32_rounded_once(device, dtype):
    x = rows_of(700, dtype, seed=5).to(device)
    w = side(700, dtype, 0).to(device)
    for f in (
        lambda x: tr.softmax(x, 1), lambda x: tr.log_softmax(x, 1), lambda x: tr.logsumexp(x, 1),
        lambda x: tr.var(x, 1), lambda x: tr.entropy(x, 1), lambda x: tr.rms_norm(x, 700, w.to(x.dtype), EPS),
        lambda x: tr.layer_norm(x, 700, w.to(x.dtype)),
        lambda x: tr.cross_entropy(x, labels(len(x), 700).to(device), reduction="none"),
    ):  # fmt: skip
        assert_bitwise_equal(f(x), torch.ops.torchreduce.rounded(f(x.float()), dtype))
    assert_bitwise_equal(tr.softmax(x, 1, dtype=torch.float32), tr.softmax(x.float(), 1))
    assert_bitwise_equal(tr.layer_norm(x, 700, w.float()), tr.layer_norm(x, 700, w))


def test_equal_logits_have_equal_probabilities(device):
    x = values(50257, torch.float32, seed=6).clamp(-60, 60).to(device)
    x[::7] = x[3]
    y = tr.softmax(x, 0)
    assert len(y[::7].unique()) == 1
    _, where = x.unique(return_inverse=True)
    least, greatest = (torch.full((int(where.max()) + 1,), s, device=device).scatter_reduce(0, where, y, how)
                       for s, how in ((2.0, "amin"), (-1.0, "amax")))  # fmt: skip
    assert torch.equal(least, greatest)


@both
@pytest.mark.parametrize("n", (1, 7, 300, 5000, 40000))
def test_softmax_of_the_only_element_is_1(device, dtype, n):
    """The only one, or the only one that is not masked or not far below: so that no gradient goes through."""
    rows = 3000 if n < 1000 else 40
    kept = values((rows,), torch.float32, seed=17).to(dtype).to(device)
    for rest in (-math.inf, -1e4):
        for layout in LAYOUTS.values():
            x = torch.full((rows, n), rest, dtype=dtype, device=device)
            x[:, n // 3] = kept
            x = layout(x).requires_grad_()
            y = tr.softmax(x, 1)
            assert (y[:, n // 3] == 1).all() and (y.sum(1) == 1).all()
            y.backward(values((rows, n), dtype, seed=18).to(device))
            assert not x.grad.any()
            assert not tr.log_softmax(x, 1)[:, n // 3].any()


def test_log_softmax_is_monotone(device):
    x = values(20000, torch.float32, seed=7).sort().values.to(device)
    assert (tr.log_softmax(x, 0).diff() >= 0).all()


FAMILIES = {
    "normal": lambda r: r, "5 normal": lambda r: 5 * r, "1e4 + normal": lambda r: 1e4 + r,
    "ramp": lambda r: -60 * torch.arange(r.numel()) / r.numel(),
    "uniform": lambda r: -90 * torch.rand(r.shape, generator=generator(9), dtype=torch.float64),
    "around 2^20": lambda r: 2.0**20 + 8 * r,
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("n", (100, 5000, 50257))
def test_softmax_is_within_8_units_in_the_last_place(device, family, n):
    """The bounds of docs/numerics.md, for float32, in units of 2^-24."""
    x = FAMILIES[family](torch.randn(n, generator=generator(8), dtype=torch.float64)).float()
    exact = x.double().softmax(0)
    normal = exact > 2.0**-126
    error = (tr.softmax(x.to(device), 0).cpu().double() - exact).abs() / exact
    assert error[normal].max() <= 8 * 2.0**-24
    exact = x.double().log_softmax(0)
    error = (tr.log_softmax(x.to(device), 0).cpu().double() - exact).abs() / exact.abs().clamp(min=1)
    assert error.max() <= 4.1 * 2.0**-24
    exact = x.double().logsumexp(0)
    assert abs(tr.logsumexp(x.to(device), 0).item() - exact) <= 2.2 * 2.0**-24 * max(1, abs(exact))


@pytest.mark.parametrize("offset", (0.0, 1e4, 1e6))
@pytest.mark.parametrize("n", (100, 2048, 50257))
def test_variances_and_layer_norm_are_exact_whatever_the_mean(device, offset, n):
    x = (offset + torch.randn(n, generator=generator(10), dtype=torch.float64)).float()
    exact = x.double().var()
    assert abs(tr.var(x.to(device)).item() - exact) <= 4 * 2.0**-24 * exact
    exact = F.layer_norm(x.double(), (n,))
    error = (tr.layer_norm(x.to(device), n).cpu().double() - exact).abs() / exact.abs().clamp(min=1)
    assert error.max() <= 6 * 2.0**-24


# ---- special values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["var", "std", "var_mean", "std_mean"])
def test_unbiased_may_come_first_as_torch_has_it(device, name):
    function, x = getattr(tr, name), values((3, 40), torch.float32, seed=2).to(device)
    for unbiased in (False, True):
        for ours, expected, torchs in zip(
            *(r if isinstance(r, tuple) else (r,) for r in (
                function(x, unbiased), function(x, correction=int(unbiased)), getattr(torch, name)(x, unbiased)
            )),
            strict=True,
        ):  # fmt: skip
            assert_bitwise_equal(ours, expected)
            torch.testing.assert_close(ours, torchs)


def test_special_rows(device):
    inf, nan = math.inf, math.nan
    x = torch.tensor([[-inf, -inf], [inf, 0.0], [nan, 0.0], [0.0, -inf], [3e38, -3e38]], device=device)
    assert tr.softmax(x, 1).isnan().all(1).tolist() == [True, True, True, False, False]
    assert tr.softmax(x, 1)[3:].tolist() == [[1, 0], [1, 0]]
    assert tr.log_softmax(x, 1)[3].tolist() == [0, -inf]
    assert tr.logsumexp(x, 1).nan_to_num(5.0, 7.0, -7.0).tolist() == pytest.approx([-7, 7, 5, 0, 3e38])
    leaf = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(tr.logsumexp(leaf, 1).sum(), leaf)
    assert g[0].tolist() == [0, 0] and g[1].isnan().tolist() == [True, False] and g[2].isnan().all()
    assert g[3:].tolist() == [[1, 0], [1, 0]]
    assert tr.entropy(x, 1)[:3].isnan().all() and tr.entropy(x, 1)[3:].tolist() == [0, 0]
    assert tr.var(x[1:3], 1).isnan().all() and tr.layer_norm(x[1:3], 2).isnan().all()
    assert tr.rms_norm(x[1:2], 2).isnan().tolist() == [[True, False]]
    assert tr.rms_norm(torch.zeros(1, 2, device=device), 2, eps=0.0).isnan().all()
    constant = torch.full((2, 3000), 0.1, device=device)
    assert tr.var(constant, 1).tolist() == [0, 0] and not tr.layer_norm(constant, 3000).any()
    leaf = constant.clone().requires_grad_()
    (g,) = torch.autograd.grad(tr.std(leaf, 1).sum(), leaf)
    assert not g.any()


def test_rows_without_elements(device):
    x = torch.empty(3, 0, device=device)
    assert tr.softmax(x, 1).shape == tr.log_softmax(x, 1).shape == tr.rms_norm(x, 0).shape == (3, 0)
    assert tr.logsumexp(x, 1).tolist() == [-math.inf] * 3 and tr.entropy(x, 1).tolist() == [0] * 3
    assert tr.var(x, 1).isnan().all() and tr.std_mean(x, 1)[1].isnan().all()
    for f in (lambda x: tr.softmax(x, 0), lambda x: tr.layer_norm(x, 0), lambda x: tr.logsumexp(x, 0)):
        assert f(torch.empty(0, 0, device=device)).numel() == 0
    none = torch.empty(0, 4, device=device, requires_grad=True)
    w, b = (torch.ones(4, device=device, requires_grad=True) for _ in range(2))
    tr.layer_norm(none, 4, w, b).sum().backward()
    assert w.grad.tolist() == b.grad.tolist() == [0] * 4
    labels = torch.empty(0, dtype=torch.int64, device=device)
    assert tr.cross_entropy(none, labels, reduction="sum").item() == 0 and tr.cross_entropy(none, labels).isnan()


def test_rows_left_out_count_nothing_whatever_they_hold(device):
    x = torch.tensor([[math.nan, 1.0], [0.0, 0.0], [math.inf, 2.0]], device=device, requires_grad=True)
    target = torch.tensor([-100, 1, -100], device=device)
    loss = tr.cross_entropy(x, target)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(2)) and x.grad.tolist() == [[0, 0], [0.5, -0.5], [0, 0]]
    assert tr.cross_entropy(x, torch.full((3,), -100, device=device)).isnan()
    assert tr.cross_entropy(x, torch.full((3,), -100, device=device), reduction="sum").item() == 0
    assert tr.cross_entropy(x[1:2], target[1:2], torch.zeros(2, device=device)).isnan()


def test_labels_out_of_range(device):
    """An IndexError; on a GPU NaN of that row, and the context lives."""
    x = torch.zeros(3, 4, device=device, requires_grad=True)
    for bad in (4, -1, 2**40):
        target = torch.tensor([0, bad, 1], device=device)
        if device == "cpu":
            with pytest.raises(IndexError, match=rf"^cross_entropy.*{bad} is out of bounds for 4 classes"):
                tr.cross_entropy(x, target)
            continue
        loss = tr.cross_entropy(x, target, reduction="none")
        (g,) = torch.autograd.grad(loss.sum(), x)
        assert loss.isnan().tolist() == [False, True, False] and g.isnan().all(1).tolist() == [False, True, False]
        assert tr.cross_entropy(x, target).isnan()


# ---- compared with torch ---------------------------------------------------------------------------------------------


@both
def test_values_are_torchs(device, dtype):
    x = values((6, 40, 5), torch.float64, seed=11).clamp(-9, 9).to(dtype).to(device)
    w, b = (values(5, torch.float64, seed=s).to(dtype).to(device) for s in (12, 13))
    target = (torch.arange(30, device=device) % 40).reshape(6, 5)
    classes = values(40, torch.float64, seed=14).abs().to(dtype).to(device)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    pairs = {
        "softmax": (lambda x: tr.softmax(x, 1), lambda x: torch.softmax(x, 1)),
        "log_softmax": (lambda x: tr.log_softmax(x, -1), lambda x: torch.log_softmax(x, -1)),
        "logsumexp": (lambda x: tr.logsumexp(x, (0, 2), True), lambda x: torch.logsumexp(x, (0, 2), True)),
        "var": (lambda x: tr.var(x, 1), lambda x: torch.var(x, 1)),
        "var all": (lambda x: tr.var(x, unbiased=False), lambda x: torch.var(x, unbiased=False)),
        "std": (lambda x: tr.std(x, (0, 1), correction=2), lambda x: torch.std(x, (0, 1), correction=2)),
        "var_mean": (lambda x: tr.var_mean(x, 2)[1], lambda x: torch.var_mean(x, 2)[1]),
        "std_mean": (lambda x: tr.std_mean(x, 2, keepdim=True)[0], lambda x: torch.std_mean(x, 2, keepdim=True)[0]),
        "rms_norm": (lambda x: tr.rms_norm(x, 5, w), lambda x: F.rms_norm(x, (5,), w)),
        "layer_norm": (lambda x: tr.layer_norm(x, (40, 5)), lambda x: F.layer_norm(x, (40, 5))),
        "layer_norm affine": (lambda x: tr.layer_norm(x, 5, w, b), lambda x: F.layer_norm(x, (5,), w, b)),
        **{f"cross_entropy {r}": (
            lambda x, r=r: tr.cross_entropy(x, target, classes, reduction=r, ignore_index=3),
            lambda x, r=r: F.cross_entropy(x, target, classes, reduction=r, ignore_index=3),
        ) for r in ("none", "sum", "mean")},
    }  # fmt: skip
    for name, (f, torchs) in pairs.items():
        exact = torchs(x.double()) if "w" not in name and "norm" not in name and "cross" not in name else torchs(x)
        leaf, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        y, expected = f(leaf), torchs(other)
        assert y.dtype == expected.dtype and y.shape == expected.shape and y.is_contiguous(), name
        scale = float(exact.abs().max())
        torch.testing.assert_close(
            y, exact.to(dtype), rtol=tolerance, atol=tolerance * scale, msg=lambda m, n=name: n + m
        )
        g = values(y.shape, torch.float64, seed=15).to(dtype).to(device)
        ours, theirs = torch.autograd.grad(y, leaf, g)[0], torch.autograd.grad(expected, other, g)[0]
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=4 * tolerance * float(theirs.abs().max()),
                                   msg=lambda m, n=name: n + m)  # fmt: skip


def test_modules_are_torchs_with_their_state(device):
    x = values((4, 7, 16), torch.float32, seed=16).to(device)
    pairs = [
        (tr.nn.RMSNorm(16), torch.nn.RMSNorm(16)), (tr.nn.LayerNorm((7, 16)), torch.nn.LayerNorm((7, 16))),
        (tr.nn.LayerNorm(16, bias=False), torch.nn.LayerNorm(16, bias=False)), (tr.nn.Softmax(1), torch.nn.Softmax(1)),
        (tr.nn.LogSoftmax(-1), torch.nn.LogSoftmax(-1)),
    ]  # fmt: skip
    for a, b in pairs:
        for t in b.parameters():
            torch.nn.init.uniform_(t)
        a, b = a.to(device), b.to(device)
        a.load_state_dict(b.state_dict())
        torch.testing.assert_close(a(x), b(x), rtol=1e-5, atol=1e-6)
        assert repr(a) == repr(b) and isinstance(a, type(b))
        parameters = [list(m.parameters()) for m in (a, b)]
        if not parameters[0]:
            continue
        gradients = [torch.autograd.grad(m(x).square().sum(), of) for m, of in zip((a, b), parameters, strict=True)]
        for g, e in zip(*gradients, strict=True):
            torch.testing.assert_close(g, e, rtol=1e-4, atol=1e-4)
    target = torch.tensor([0, 3, -1, 6], device=device)
    loss = tr.nn.CrossEntropyLoss(torch.ones(7, device=device), ignore_index=-1, reduction="sum")
    expected = torch.nn.CrossEntropyLoss(torch.ones(7, device=device), ignore_index=-1, reduction="sum")
    torch.testing.assert_close(loss(x[..., 0], target), expected(x[..., 0], target))


def test_axis_and_keepdims_are_other_names(device):
    x = values((3, 4, 5), torch.float32, seed=19).to(device)
    for name in ("softmax", "log_softmax"):
        assert_bitwise_equal(getattr(tr, name)(x, axis=1), getattr(tr, name)(x, 1))
        assert tr.explain(name, x, axis=0).family == tr.explain(name, x, 0).family
        with pytest.raises(TypeError, match=rf"^{name}\(\): 'axis' is another name of 'dim'"):
            getattr(tr, name)(x, 1, axis=1)
    for name in ("logsumexp", "entropy", "var", "std", "var_mean", "std_mean"):
        f = getattr(tr, name)
        for axis in (-1,) if name == "entropy" else (-1, (0, 2)):
            torch.testing.assert_close(f(x, axis=axis, keepdims=True), f(x, axis, keepdim=True), rtol=0, atol=0)
            torch.testing.assert_close(f(x, axis=axis), f(x, axis), rtol=0, atol=0)
            torch.testing.assert_close(f(x, axis, keepdims=False), f(x, axis), rtol=0, atol=0)
        with pytest.raises(TypeError, match=rf"^{name}\(\): 'keepdims' is another name"):
            f(x, 1, keepdim=True, keepdims=True)


def test_rows_without_elements_take_no_time(device):
    """However many they are: nothing is written."""
    x = torch.empty(2**40, 0, device=device)
    for f in (tr.softmax, tr.log_softmax):
        for t, dim in ((x, 1), (x.t(), 0), (torch.empty(2**20, 0, 2**20, device=device), 1)):
            leaf = t.detach().requires_grad_()
            y = f(leaf, dim)
            y.backward(torch.empty_like(y))
            assert y.shape == leaf.grad.shape == t.shape


@pytest.mark.parametrize("length", (1, 2, 20, 300))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_near_and_far_rows_side_by_side(device, dtype, length):
    """Rows whose greatest elements lie on both sides of 2^20, or of -2^20, where exponentials are referred to another
    number."""
    functions = (
        lambda x: tr.softmax(x, 1),
        lambda x: tr.log_softmax(x, 1),
        lambda x: tr.logsumexp(x, 1),
        lambda x: tr.cross_entropy(x, torch.zeros(len(x), dtype=torch.long, device=device), reduction="none"),
    )
    for edge in (-(2.0**20), 2.0**20):
        greatest = edge + torch.arange(-6, 6, device=device, dtype=dtype)
        x = (greatest[:, None] - torch.arange(length, device=device) % 7).requires_grad_()
        for function in functions:
            for rows in (x, x.t().contiguous().t()):
                results = function(rows)
                gradients = torch.autograd.grad(results.sum(), x)[0]
                for r in range(len(x)):
                    alone = function(x[r : r + 1])
                    assert_bitwise_equal(results[r : r + 1], alone)
                    assert_bitwise_equal(gradients[r], torch.autograd.grad(alone.sum(), x)[0][r])
        exact = torch.log_softmax(x.double(), 1)
        torch.testing.assert_close(tr.log_softmax(x, 1).double(), exact, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
def test_modules_without_a_dim_imply_torchs(name):
    for ndim in range(5):
        x = values((2,) * ndim, torch.float32, seed=17)
        with pytest.warns(UserWarning, match="Implicit dimension choice") as caught:
            y = getattr(tr.nn, name)()(x)
        assert [warning.filename for warning in caught] == [__file__]
        with pytest.warns(UserWarning, match="Implicit dimension choice"):
            torch.testing.assert_close(y, getattr(torch.nn, name)()(x))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.int64])
def test_integers_are_converted_where_torch_does(device, dtype):
    x = values((3, 4, 5), torch.float32, seed=18).mul(3).to(dtype).to(device)
    for name in ("softmax", "log_softmax"):
        f = getattr(tr, name)
        for to in (torch.float32, torch.float64, torch.bfloat16):
            assert_bitwise_equal(f(x, 1, dtype=to), f(x.to(to), 1))
            out = torch.empty(0, dtype=to, device=device)
            assert_bitwise_equal(f(x, 1, to, out=out), f(x.to(to), 1))
        for options in ({}, {"dtype": torch.int32}, {"out": torch.empty(3, 4, 5, device=device)}):
            with pytest.raises(NotImplementedError, match=rf"^{name}\(\): not implemented for {dtype}"):
                f(x, 1, **options)
    for dim in (0, (0, 2), None):
        assert_bitwise_equal(tr.logsumexp(x, dim), tr.logsumexp(x.float(), dim))
    assert tr.explain("logsumexp", x, 1).shape == tr.explain("logsumexp", x.float(), 1).shape
    plans = [tr.explain("softmax", t, 1, dtype=torch.bfloat16) for t in (x, x.bfloat16())]
    assert plans[0].family == plans[1].family and plans[0].shape == plans[1].shape


def test_errors_are_torchs_and_name_the_function(device):
    x = torch.zeros(3, 4, device=device)
    target = torch.zeros(3, dtype=torch.int64, device=device)
    for error, match, f in (
        (TypeError, r"^softmax\(\).*'input' must be a Tensor, got list", lambda: tr.softmax([1.0], 0)),
        (NotImplementedError, r"^softmax\(\): not implemented for torch.int64", lambda: tr.softmax(x.long(), 1)),
        (IndexError, r"^log_softmax\(\): dimension out of range.*got 2", lambda: tr.log_softmax(x, 2)),
        (NotImplementedError, r"^softmax\(\).*float.*torch.int32", lambda: tr.softmax(x, 1, dtype=torch.int32)),
        (TypeError, r"^logsumexp\(\).*'keepdim'", lambda: tr.logsumexp(x, 1, 1)),
        (RuntimeError, r"^var\(\): a dim appears multiple times", lambda: tr.var(x, (0, 0))),
        (RuntimeError, r"^std\(\).*floating.*torch.int64", lambda: tr.std(x.long(), 1)),
        (TypeError, r"^var\(\).*'correction'", lambda: tr.var(x, 1, correction="1")),
        (TypeError, r"^var\(\).*one of", lambda: tr.var(x, 1, True, correction=1)),
        (RuntimeError, r"^rms_norm\(\): given normalized_shape=\[5\]", lambda: tr.rms_norm(x, 5)),
        (RuntimeError, r"^layer_norm\(\).*at least one dim", lambda: tr.layer_norm(x, ())),
        (RuntimeError, r"^layer_norm\(\).*same shape.*\[3\]", lambda: tr.layer_norm(x, 4, x[:, 0])),
        (NotImplementedError, r"^layer_norm\(\).*weight of torch.int64", lambda: tr.layer_norm(x, 4, x[0].long())),
        (TypeError, r"^rms_norm\(\).*'eps'", lambda: tr.rms_norm(x, 4, eps="small")),
        (ValueError, r"^cross_entropy\(\).*\[2\]", lambda: tr.cross_entropy(x, target[:2])),
        (RuntimeError, r"^cross_entropy\(\).*int32", lambda: tr.cross_entropy(x, target.int())),
        (RuntimeError, r"^cross_entropy\(\).*4 classes.*\[3\]", lambda: tr.cross_entropy(x, target, x[:, 0])),
        (ValueError, r"^cross_entropy\(\).*'most'", lambda: tr.cross_entropy(x, target, reduction="most")),
        (RuntimeError, r"^softmax\(\): expected out to have dtype",
         lambda: tr.softmax(x, 1, torch.float32, out=x.double())),
        (NotImplementedError, r"^std\(\).*out of the layout torch.sparse", lambda: tr.std(x, out=x[0, 0].to_sparse())),
    ):  # fmt: skip
        with pytest.raises(error, match=match):
            f()
    wrong = torch.empty(2, device=device)
    with pytest.warns(UserWarning, match="resized"):
        assert_bitwise_equal(tr.logsumexp(x, 1, out=wrong), tr.logsumexp(x, 1))
    for f in (tr.softmax, tr.log_softmax, tr.logsumexp, tr.entropy, tr.var, tr.std):
        out = torch.empty(0, device=device)
        assert f(x, 1, out=out) is out
        assert_bitwise_equal(out, f(x, 1))
        with pytest.raises(RuntimeError, match="requires grad"):
            f(x.clone().requires_grad_(), 1, out=out)


@pytest.mark.gpu
def test_autocast_is_torchs():
    x = torch.zeros(3, 4, device="cuda", dtype=torch.bfloat16)
    target, w = torch.zeros(3, dtype=torch.int64, device="cuda"), torch.ones(4, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        for f, torchs in (
            (lambda: tr.softmax(x, 1), lambda: torch.softmax(x, 1)),
            (lambda: tr.log_softmax(x, 1), lambda: torch.log_softmax(x, 1)),
            (lambda: tr.layer_norm(x, 4, w, w), lambda: F.layer_norm(x, (4,), w, w)),
            (lambda: tr.cross_entropy(x, target), lambda: F.cross_entropy(x, target)),
        ):
            assert f().dtype == torchs().dtype == torch.float32


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("shape, dim", (((5, 13), 1), ((2, 13, 3), 1), ((13,), 0), ((3, 7000), 1)))
def test_the_gradient_of_logits_with_rows_filled_up(device, dtype, shape, dim):
    """The same bits, and zeros, to a multiple of `granule` elements of the last dim."""
    x = torch.randn(shape, generator=generator(3)).to(device, dtype)
    target = torch.zeros(shape[:dim] + shape[dim + 1 :], dtype=torch.int64, device=device)
    ops = torch.ops.torchreduce
    loss, _, stats = ops.cross_entropy.raw(x, target, None, dim, -100, 0)
    of = (torch.ones_like(loss), None, x, target, None, stats, dim, -100, 0.0)
    result = ops.cross_entropy_backward.raw(*of, 8, 0)
    assert result.is_contiguous() and result.shape == (*shape[:-1], -(-shape[-1] // 8) * 8)
    assert_bitwise_equal(result[..., : shape[-1]], ops.cross_entropy_gradient.raw(*of, 0))
    assert not result[..., shape[-1] :].any()
    for granule in (0, 65):
        with pytest.raises(RuntimeError, match=rf"granule must be from 1 to 64, got {granule}"):
            ops.cross_entropy_backward.raw(*of, granule, 0)


def test_cross_entropy_keeps_eight_bytes_a_row():
    x = torch.zeros(64, 1000, requires_grad=True)
    target = torch.zeros(64, dtype=torch.int64)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        tr.cross_entropy(x, target)
    own = [t for t in kept if t.data_ptr() not in (x.data_ptr(), target.data_ptr()) and t.numel() >= 64]
    assert sum(t.numel() * t.element_size() for t in own) == 8 * 64


def test_numbers_are_taken_as_torch_takes_them():
    x, w = torch.randn(6, 5), torch.ones(5)
    for number in (2, 1e-3, np.float32(0.5), torch.tensor(1), torch.tensor(0.5, dtype=torch.float64)):
        assert_bitwise_equal(tr.rms_norm(x, 5, w, eps=number), tr.rms_norm(x, 5, w, eps=float(number)))
        assert_bitwise_equal(tr.layer_norm(x, 5, w, eps=number), tr.layer_norm(x, 5, w, eps=float(number)))
        assert_bitwise_equal(tr.var(x, 1, correction=number), tr.var(x, 1, correction=float(number)))
    for wrong in (True, "1", torch.ones(2), torch.tensor(1j), None):
        with pytest.raises(TypeError, match="eps"):
            tr.layer_norm(x, 5, w, eps=wrong)
    target = torch.tensor([0, 1, 2, 3, 4, 3])
    for label in (3, np.int64(3), torch.tensor(3)):
        assert_bitwise_equal(
            tr.cross_entropy(x, target, ignore_index=label), tr.cross_entropy(x, target, ignore_index=3)
        )
    for wrong, error in ((1.5, TypeError), (None, TypeError), (2**63, ValueError), (-(2**70), ValueError)):
        with pytest.raises(error, match=r"cross_entropy.*ignore_index"):
            tr.cross_entropy(x, target, ignore_index=wrong)


@pytest.mark.parametrize("rows", [1, 2048, 2049, 16384, 16385])  # on GPUs one launch makes means of up to 16384
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_mean_of_losses_is_their_sum_divided_once(device, dtype, rows):
    x, labels = values((rows, 3), dtype, 1).to(device), (torch.arange(rows) % 3).to(device)
    labels[1::5] = -100
    each = tr.cross_entropy(x, labels, reduction="none", dtype=torch.float32)
    wanted = tr.sum(each) / (labels >= 0).sum()
    assert_bitwise_equal(tr.cross_entropy(x, labels), wanted.to(dtype))


@pytest.mark.parametrize("losses", [torch.ones(0), torch.ones(3, dtype=torch.bfloat16)], ids=["none", "bfloat16"])
def test_what_has_no_mean_of_losses(losses, device):
    losses = losses.to(device)
    with pytest.raises(RuntimeError, match="mean_loss: needs losses of float32 or float64, at least one"):
        torch.ops.torchreduce.mean_loss.raw(losses, losses, True, torch.float32, 0)
