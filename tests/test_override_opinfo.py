"""torch's own samples of its operators (OpInfo), with and without the override: the same values within torch's own
tolerances, the same dtypes, shapes, strides and exceptions, with out= and with gradients."""

import itertools
import warnings

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

import torchreduce as tr
from torchreduce.override import products

# The operators that covered overloads serve directly. Of the others every one is called with some samples, too.
DIRECT = (
    "sum", "mean", "nansum", "nanmean", "prod", "linalg.vector_norm", "norm", "linalg.norm", "any", "all",
    "count_nonzero", "amax", "amin", "aminmax", "max", "min", "argmax", "argmin", "cumsum", "cumprod", "logcumsumexp",
    "cummax", "cummin", "logsumexp", "softmax", "log_softmax", "var", "std", "var_mean", "std_mean",
    "native_layer_norm",
    "nn.functional.layer_norm", "nn.functional.rms_norm", "nn.functional.cross_entropy",
    "nn.functional.batch_norm", "nn.functional.group_norm", "nn.functional.instance_norm",
    "nn.functional.nll_loss",
    "nn.functional.embedding",
    "index_add", "scatter_add", "scatter_reduce", "index_reduce", "scatter", "index_put", "put",
    "gather", "take_along_dim", "index_select", "take", "repeat_interleave",
    "nn.functional.embedding_bag", "bincount", "_segment_reduce", "trace", "cdist",
)  # fmt: skip
DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool,
    torch.complex64,
)  # fmt: skip
BY_NAME = {op.full_name: op for op in op_db}
OTHER_VARIANTS = ("binary", "without_cudnn")  # of another function; of GPUs alone
DIRECT_OPS = sorted(
    name for name, op in BY_NAME.items() if op.name in DIRECT and op.variant_test_name not in OTHER_VARIANTS
)
OTHER_OPS = sorted(set(BY_NAME) - set(DIRECT_OPS))
# Results that hold what memory held before: of fused attention, seeds that are not used.
UNDEFINED = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
    "torch.ops.aten._efficient_attention_forward", "torch.ops.aten._flash_attention_forward",
}  # fmt: skip


# torch's formula takes differences of logarithms that are as large as the elements, and exp of them: in float32 the
# last bit of a logcumsumexp is a relative 5e-4 of the gradient, on a CPU of torch's own, too.
ILL_CONDITIONED = {("logcumsumexp", "cuda", torch.float32)}


pytestmark = pytest.mark.usefixtures("quick_seeds")


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


def assert_alike(f, sample, reference=None):
    """f of the sample, with and without the override: values within torch's tolerances of torch's, or of torch's in
    float64, or nearer to these than torch's; by `reference` if f has options that float64 would not take."""
    arguments = copied(sample), copied(sample)
    with on():
        ours, said = outcome(f, arguments[0][0], *arguments[0][1], **arguments[0][2])
    torchs, _ = outcome(f, arguments[1][0], *arguments[1][1], **arguments[1][2])
    assert not said
    if isinstance(torchs, Exception) or isinstance(ours, Exception):
        assert type(ours) is type(torchs) and str(ours) == str(torchs)
        return
    left, right = tree_leaves(ours), tree_leaves(torchs)
    assert len(left) == len(right)
    for i, (a, b) in enumerate(zip(left, right, strict=True)):
        if not isinstance(b, torch.Tensor):
            assert type(a) is type(b)
            continue
        assert (a.shape, a.dtype, a.layout) == (b.shape, b.dtype, b.layout)
        if b.layout is not torch.strided or b.is_quantized or b.is_nested:
            continue
        assert a.stride() == b.stride()
        if not torch.allclose(a, b, equal_nan=True, **TOLERANCES.get(b.dtype, {"rtol": 0, "atol": 0})):
            wide = tree_map(widened, copied(sample))
            exact, _ = outcome(reference or f, wide[0], *wide[1], **wide[2])
            exact = tree_leaves(exact)[i]
            if not a.is_floating_point() or (a - exact).abs().max() > (b - exact).abs().max():  # else nearer than torch
                torch.testing.assert_close(a, exact.to(a.dtype), equal_nan=True)


# torch.testing's.
TOLERANCES = {
    torch.float16: {"rtol": 1e-3, "atol": 1e-5},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 1e-5},
    torch.float32: {"rtol": 1.3e-6, "atol": 1e-5},
    torch.complex64: {"rtol": 1.3e-6, "atol": 1e-5},
    torch.float64: {"rtol": 1e-7, "atol": 1e-7},
    torch.complex128: {"rtol": 1e-7, "atol": 1e-7},
}


def widened(x):
    """In float64: tensors, and dtypes that are asked for."""
    if isinstance(x, torch.Tensor) and x.is_floating_point():
        return x.detach().double().requires_grad_(x.requires_grad)
    return torch.float64 if isinstance(x, torch.dtype) and x.is_floating_point else x


@pytest.mark.parametrize("name", DIRECT_OPS)
def test_samples_of_every_dtype(name, device):
    op, calls = BY_NAME[name], 0
    for dtype in DTYPES:
        if dtype not in op.supported_dtypes(device):
            continue
        for sample in (op.reference_inputs if dtype is torch.float32 else op.sample_inputs)(device, dtype):
            assert_alike(op, sample)
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
        assert_alike(op, sample)


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [name for name in DIRECT_OPS if BY_NAME[name].supports_out])
def test_out(name, device, every):
    """Of the result's kind, empty, strided, of another dtype and of another shape, and the input itself. Without --slow
    a way meets a sixth of a dtype's samples, and others of the next dtype's."""
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
    dtypes = (torch.float32, torch.bfloat16, torch.int64)
    for (d, dtype), (w, how) in itertools.product(enumerate(dtypes), enumerate(ways)):
        if dtype not in op.supported_dtypes(device):
            continue
        samples = list(itertools.islice(op.sample_inputs(device, dtype), 12))
        for sample in samples[(d + w) % every :: every] if len(samples) > every else samples:
            result = outcome(op, sample.input, *sample.args, **sample.kwargs)[0]
            if isinstance(result, Exception):
                continue
            results = [result] if isinstance(result, torch.Tensor) else list(result)

            def call(x, *args, _results=results, _how=how, **kwargs):
                out = outs(_results, _how)
                returned = op(x, *args, **kwargs, out=out[0] if len(out) == 1 else tuple(out))
                assert returned is out[0] or returned[0] is out[0]
                return out

            assert_alike(call, sample, lambda *args, _op=op, **kwargs: [_op(*args, **kwargs)])


@pytest.mark.parametrize("name", [name for name in DIRECT_OPS if BY_NAME[name].supports_autograd])
def test_gradients(name, device):
    op = BY_NAME[name]

    def call(x, *args, **kwargs):
        results = [r for r in tree_leaves(op(x, *args, **kwargs)) if isinstance(r, torch.Tensor) and r.requires_grad]
        inputs = [t for t in tree_leaves((x, args, kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad]
        grads = [torch.linspace(1, 2, r.numel(), dtype=r.dtype, device=r.device).reshape(r.shape) for r in results]
        return torch.autograd.grad(results, inputs, grads, allow_unused=True) if results else ()

    for dtype in (torch.float32, torch.float64):
        if (name, device, dtype) in ILL_CONDITIONED:
            continue
        for sample in op.sample_inputs(device, dtype, requires_grad=True):
            assert_alike(call, sample)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_every_other_operator(part, device):
    """A few samples of every other operator of torch: whatever it calls inside, its values stay within tolerance."""
    for name in OTHER_OPS[part::8]:
        op = BY_NAME[name]
        if torch.float32 not in op.supported_dtypes(device) or op.name in UNDEFINED:
            continue
        torch.manual_seed(0)
        for sample in itertools.islice(op.sample_inputs(device, torch.float32), 2):
            assert_alike(op, sample)


def test_every_row_is_met():
    """What is registered serves calls: each overload, called as its schema says."""
    x, one = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), torch.empty(())
    v, i, y = torch.empty(2), torch.empty(2, dtype=torch.int64), torch.empty(2, 3)
    truth, truths = torch.empty((), dtype=torch.bool), torch.empty(2, dtype=torch.bool)
    aten = torch.ops.aten
    _, mean, rstd = aten.native_layer_norm(x, [3], x[0], x[1], 1e-5)
    before = tr.coverage()
    with on():
        for packet in (aten.sum, aten.mean):
            packet(x, [1])
        aten.sum.IntList_out(x, [1], out=v)
        aten.mean.out(x, [1], out=v)
        aten.trace(x)
        aten.nansum(x)
        aten.nansum.out(x, out=one)
        aten.prod(x)
        aten.prod(x, 1)
        aten.prod.int_out(x, 1, out=v)
        aten.linalg_vector_norm(x)
        aten.linalg_vector_norm.out(x, out=one)
        aten._foreach_norm([x, x])
        for packet in (aten.any, aten.all):
            packet(x)
            packet(x, 1)
            packet(x, [1])
            packet.all_out(x, out=truth)
            packet.out(x, 1, out=truths)
            packet.dims_out(x, [1], out=truths)
        aten.count_nonzero(x)
        for packet in (aten.amax, aten.amin):
            packet(x)
            packet.out(x, [1], out=v)
        aten.aminmax(x)
        aten.aminmax.out(x, dim=1, min=v, max=torch.empty(2))
        for packet in (aten.max, aten.min):
            packet(x)
            packet.unary_out(x, out=one)
            packet(x, 1)
        aten.max.dim_max(x, 1, max=v, max_values=i)
        aten.min.dim_min(x, 1, min=v, min_indices=i)
        for packet in (aten.argmax, aten.argmin):
            packet(x)
            packet.out(x, 1, out=i)
        for packet in (aten._softmax, aten._log_softmax):
            packet(x, 1, False)
            packet.out(x, 1, False, out=y)
        for packet, name in ((aten._softmax_backward_data, "grad_input"), (aten._log_softmax_backward_data, "out")):
            packet(x, x, 1, x.dtype)
            packet.out(x, x, 1, x.dtype, **{name: y})
        aten.logsumexp(x, [1])
        aten.logsumexp.out(x, [1], out=v)
        for packet in (aten.var, aten.std):
            packet.correction(x, [1])
            packet.correction_out(x, [1], out=v)
        aten.var_mean.correction(x, [1])
        aten.std_mean.correction(x, [1])
        aten.native_layer_norm(x, [3], x[0], x[1], 1e-5)
        aten.native_layer_norm_backward(x, x, [3], mean, rstd, x[0], x[1], [True, True, True])
        labels = torch.tensor([0, 2])
        aten.embedding_dense_backward(x, labels, 3, -1, False)
        for packet, of, target in (
            (aten.nll_loss_forward, x, labels),
            (aten.nll_loss2d_forward, x.reshape(1, 3, 2, 1), labels.reshape(1, 2, 1)),
        ):
            packet(of, target, None, 1, -100)
            packet.output(of, target, None, 1, -100, output=torch.empty(()), total_weight=one)
            half = of.half().requires_grad_()
            packet(half, target, None, 1, -100)[0].backward()
        for packet, in_place in ((aten.cumsum, aten.cumsum_), (aten.cumprod, aten.cumprod_)):
            packet(x, 1)
            packet.out(x, 1, out=y)
            in_place(x.clone(), 1)
        aten.logcumsumexp(x, 1)
        aten.logcumsumexp.out(x, 1, out=y)
        aten.cummax(x, 1)
        aten.cummin(x, 1)
        y = x.clone().requires_grad_()
        for scan in (aten.logcumsumexp, aten.cummax, aten.cummin):
            scan(y, 1)
        aten.nanmean(x)
        aten.nanmean.out(x, out=one)
        aten.cross_entropy_loss(x, labels)
        aten._weight_norm(x, x[:, :1])
        aten.rms_norm(x, [3])
        torch.vmap(lambda x: aten.layer_norm(x, [3]))(x)
        each = labels[:, None].expand(2, 3).contiguous()
        for packet, in_place, index, more in (
            (aten.index_add, aten.index_add_, labels, ()),
            (aten.scatter_add, aten.scatter_add_, each, ()),
            (aten.scatter_reduce, aten.scatter_reduce_, each, ("mean",)),
            (aten.index_reduce, aten.index_reduce_, labels, ("amax",)),
        ):
            own = torch.ones(3, 3)
            packet(own, 0, index, x, *more)
            packet(own, 0, index, x, *more, out=torch.empty(3, 3))
            in_place(own, 0, index, x, *more)
        aten.scatter.reduce(y.new_ones(3, 3), 0, each, x, reduce="add")
        aten.scatter.reduce_out(y.new_ones(3, 3), 0, each, x, reduce="multiply", out=torch.empty(3, 3))
        aten.scatter_.reduce(y.new_ones(3, 3), 0, each, x, reduce="add")
        aten.index_put_(y.new_ones(3, 3), [labels], x, True)
        aten.put_(y.new_ones(3, 3), labels, x[0, :2], True)
        out, bag, counts, greatest = aten._embedding_bag(x, labels % 2, labels[:1], False, 0)
        aten._embedding_bag_forward_only(x, labels % 2, labels[:1], False, 0)
        aten._embedding_bag_dense_backward(out, labels % 2, bag, counts, greatest, 2, False, 0, None)
        aten._embedding_bag_per_sample_weights_backward(out, x, labels % 2, labels[:1], bag, 0)
        aten.bincount(labels, x[0, :2])
        aten.segment_reduce(x, "sum", lengths=labels, axis=0)
        images, ones = torch.rand(2, 4, 3), torch.ones(4)
        out, *stats = aten.native_batch_norm(images, ones, ones, None, None, True, 0.1, 1e-5)
        aten.native_batch_norm_backward(out, images, ones, None, None, *stats, True, 1e-5, [True] * 3)
        out, *stats = aten.native_group_norm(images, ones, ones, 2, 4, 3, 2, 1e-5)
        aten.native_group_norm_backward(out, images, *stats, ones, 2, 4, 3, 2, [True] * 3)
        for norm in (aten.batch_norm, aten.instance_norm):
            torch.vmap(lambda x, f=norm: f(x, ones, ones, None, None, True, 0.1, 1e-5, False))(images[None])
        torch.vmap(lambda x: aten.group_norm(x, 2, ones, ones, 1e-5, False))(images[None])
        volumes, pooled = torch.rand(1, 4, 4, 4), torch.rand(1, 2, 2, 2)
        aten._adaptive_avg_pool2d_backward(pooled[0], volumes[0, :2])
        aten._adaptive_avg_pool3d_backward(pooled, volumes)
        aten.avg_pool3d_backward(pooled, volumes, [2] * 3, [2] * 3, [0] * 3, False, True, None)
    after = tr.coverage()
    of_products = {*products.OVERLOADS, "scaled_dot_product_attention"}  # if another test has had them
    of_products.add("cdist")
    idle = [name for name in after.keys() - of_products if after[name]["served"] == before[name]["served"]]
    assert sorted(idle) == ["_fused_rms_norm", "_fused_rms_norm_backward"]  # torch has these on GPUs alone
