"""torch's own samples of its operators (OpInfo), with its calls turned over and not: the same values within torch's own
tolerances, the same dtypes, shapes, strides and exceptions, with out= and with gradients."""

import itertools
import warnings

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

import torchreduce as tr

# The operators that covered overloads serve directly. Of the others every one is called with some samples, too.
DIRECT = (
    "sum", "mean", "nansum", "nanmean", "prod", "linalg.vector_norm", "norm", "linalg.norm", "any", "all",
    "count_nonzero", "amax", "amin", "aminmax", "max", "min", "argmax", "argmin", "cumsum", "cumprod", "logcumsumexp",
    "cummax", "cummin", "logsumexp",
)  # fmt: skip
DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool,
    torch.complex64,
)  # fmt: skip
BY_NAME = {op.full_name: op for op in op_db}
DIRECT_OPS = sorted(name for name, op in BY_NAME.items() if op.name in DIRECT and op.variant_test_name != "binary")
OTHER_OPS = sorted(set(BY_NAME) - set(DIRECT_OPS))
# Results that hold what memory held before.
UNDEFINED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}


def on():
    return tr.enabled(cpu=True, compile=False)


def outcome(f, *args, **kwargs):
    """The result, or the exception. torch's warnings are the same with and without, or they are an outcome, too."""
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            result = f(*args, **kwargs)
        except Exception as error:
            result = error
    return result, [str(w.message) for w in said if "torchreduce" in str(w.message)]


def copied(sample):
    """Apart, with the strides as they are, since some operators write to their arguments."""

    def copy(x):
        if not isinstance(x, torch.Tensor) or x.layout is not torch.strided or x.is_quantized:
            return x
        if torch._debug_has_internal_overlap(x) == 1:
            return x
        y = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)
        return y.requires_grad_(x.requires_grad)

    return tree_map(copy, (sample.input, tuple(sample.args), dict(sample.kwargs)))


def assert_alike(ours, torchs):
    (ours, said), (torchs, _) = ours, torchs
    assert not said
    if isinstance(torchs, Exception) or isinstance(ours, Exception):
        assert type(ours) is type(torchs) and str(ours) == str(torchs)
        return
    left, right = tree_leaves(ours), tree_leaves(torchs)
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        if not isinstance(b, torch.Tensor):
            assert type(a) is type(b)
            continue
        assert (a.shape, a.dtype, a.layout) == (b.shape, b.dtype, b.layout)
        if b.layout is torch.strided and not b.is_quantized and not b.is_nested:
            assert a.stride() == b.stride()
        if b.layout is torch.strided:
            torch.testing.assert_close(a, b, equal_nan=True, check_stride=False)


def both(f, sample):
    """f of the sample, turned over and not."""
    arguments = copied(sample), copied(sample)
    with on():
        ours = outcome(f, arguments[0][0], *arguments[0][1], **arguments[0][2])
    return ours, outcome(f, arguments[1][0], *arguments[1][1], **arguments[1][2])


@pytest.mark.parametrize("name", DIRECT_OPS)
def test_samples_of_every_dtype(name, device):
    op, calls = BY_NAME[name], 0
    for dtype in DTYPES:
        if dtype not in op.supported_dtypes(device):
            continue
        for sample in (op.reference_inputs if dtype is torch.float32 else op.sample_inputs)(device, dtype):
            assert_alike(*both(op, sample))
            calls += 1
    assert calls


@pytest.mark.parametrize("name", DIRECT_OPS)
def test_wrong_arguments_raise_what_torch_raises(name, device):
    op = BY_NAME[name]
    if op.error_inputs_func is None:
        samples = [s for s in op.sample_inputs(device, torch.float32)][:1]
    else:
        samples = [error.sample_input for error in op.error_inputs(device)]
    for sample in samples:
        assert_alike(*both(op, sample))


@pytest.mark.parametrize("name", [name for name in DIRECT_OPS if BY_NAME[name].supports_out])
def test_out(name, device):
    """Of the result's kind, empty, strided, of another dtype and of another shape, and the input itself."""
    op = BY_NAME[name]

    def outs(results, how):
        if how == "alike":
            return [torch.full_like(r, 3) for r in results]
        if how == "empty":
            return [r.new_empty(0) for r in results]
        if how == "strided":
            return [torch.full((*r.shape, 2), 3, dtype=r.dtype, device=device)[..., 0] for r in results]
        if how == "wider":
            return [torch.full_like(r, 3, dtype=torch.float64) for r in results]
        if how == "integer":
            return [torch.full_like(r, 3, dtype=torch.int32) for r in results]
        return [r.new_full((2, *r.shape), 3) for r in results]

    ways = ("alike", "empty", "strided", "wider", "integer", "larger")
    for dtype, how in itertools.product((torch.float32, torch.bfloat16, torch.int64), ways):
        if dtype not in op.supported_dtypes(device):
            continue
        for sample in itertools.islice(op.sample_inputs(device, dtype), 12):
            result = outcome(op, sample.input, *sample.args, **sample.kwargs)[0]
            if isinstance(result, Exception):
                continue
            results = [result] if isinstance(result, torch.Tensor) else list(result)

            def call(x, *args, _results=results, _how=how, **kwargs):
                out = outs(_results, _how)
                returned = op(x, *args, **kwargs, out=out[0] if len(out) == 1 else tuple(out))
                assert returned is out[0] or returned[0] is out[0]
                return out

            assert_alike(*both(call, sample))


@pytest.mark.parametrize("name", [name for name in DIRECT_OPS if BY_NAME[name].supports_autograd])
def test_gradients(name, device):
    op = BY_NAME[name]

    def call(x, *args, **kwargs):
        results = [r for r in tree_leaves(op(x, *args, **kwargs)) if isinstance(r, torch.Tensor) and r.requires_grad]
        inputs = [t for t in tree_leaves((x, args, kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad]
        grads = [torch.linspace(1, 2, r.numel(), dtype=r.dtype, device=r.device).reshape(r.shape) for r in results]
        return torch.autograd.grad(results, inputs, grads, allow_unused=True) if results else ()

    for dtype in (torch.float32, torch.float64):
        for sample in op.sample_inputs(device, dtype, requires_grad=True):
            assert_alike(*both(call, sample))


@pytest.mark.parametrize("part", range(8))
def test_every_other_operator(part, device):
    """A few samples of every other operator of torch: whatever it calls inside, its values stay within tolerance."""
    for name in OTHER_OPS[part::8]:
        op = BY_NAME[name]
        if torch.float32 not in op.supported_dtypes(device) or op.name in UNDEFINED:
            continue
        torch.manual_seed(0)
        for sample in itertools.islice(op.sample_inputs(device, torch.float32), 2):
            assert_alike(*both(op, sample))


def test_every_row_is_met():
    """What is registered serves calls: each overload, called as its schema says."""
    x, one = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), torch.empty(())
    v, i = torch.empty(2), torch.empty(2, dtype=torch.int64)
    aten = torch.ops.aten
    before = tr.coverage()
    with on():
        aten.sum(x, [1]), aten.sum.IntList_out(x, [1], out=v), aten.mean(x, [1]), aten.mean.out(x, [1], out=v)
        aten.nansum(x), aten.nansum.out(x, out=one), aten.prod(x), aten.prod(x, 1), aten.prod.int_out(x, 1, out=v)
        aten.linalg_vector_norm(x), aten.linalg_vector_norm.out(x, out=one), aten._foreach_norm([x, x])
        for packet in (aten.any, aten.all):
            truth, truths = torch.empty((), dtype=torch.bool), torch.empty(2, dtype=torch.bool)
            packet(x), packet(x, 1), packet(x, [1]), packet.all_out(x, out=truth), packet.out(x, 1, out=truths)
            packet.dims_out(x, [1], out=truths)
        aten.count_nonzero(x), aten.aminmax(x), aten.aminmax.out(x, dim=1, min=v, max=torch.empty(2))
        for packet in (aten.amax, aten.amin):
            packet(x), packet.out(x, [1], out=v)
        aten.max(x), aten.max.unary_out(x, out=one), aten.max(x, 1), aten.max.dim_max(x, 1, max=v, max_values=i)
        aten.min(x), aten.min.unary_out(x, out=one), aten.min(x, 1), aten.min.dim_min(x, 1, min=v, min_indices=i)
        for packet in (aten.argmax, aten.argmin):
            packet(x), packet.out(x, 1, out=i)
        for packet, in_place in ((aten.cumsum, aten.cumsum_), (aten.cumprod, aten.cumprod_)):
            packet(x, 1), packet.out(x, 1, out=torch.empty(2, 3)), in_place(x.clone(), 1)
        (
            aten.logcumsumexp(x, 1),
            aten.logcumsumexp.out(x, 1, out=torch.empty(2, 3)),
            aten.cummax(x, 1),
            aten.cummin(x, 1),
        )
    after = tr.coverage()
    assert [name for name in after if after[name]["served"] == before[name]["served"]] == []
