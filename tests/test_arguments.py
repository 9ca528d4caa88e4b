"""out= in all its forms, and the errors: torch's exception types, naming the op, the rule and the value received."""

import itertools
import re
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from cases import (
    FUNCTIONS,
    OURS,
    REDUCTIONS,
    SCANS,
    TORCHS,
    contiguous,
    padded,
    public,
    serves,
    transposed,
    values,
)
from torch._subclasses.fake_tensor import FakeTensorMode

import torchreduce as tr
from torchreduce.testing import assert_bitwise_equal


def run(name, x, **options):
    return getattr(OURS, name)(x, 0, **options)


# ---- out= ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", (contiguous, transposed, padded))
@pytest.mark.parametrize("name", FUNCTIONS)
def test_out_is_filled_whatever_its_strides(device, name, layout):
    x = values((5, 6, 7), torch.float32, seed=1).to(device)
    for dim, keepdim in ((0, False), (1, False), (2, True)):
        options = {} if name in SCANS else {"keepdim": keepdim}
        expected = getattr(OURS, name)(x, dim, **options)
        if isinstance(expected, torch.Tensor):
            out = layout(torch.zeros_like(expected))
            strides = out.stride()
            assert getattr(OURS, name)(x, dim, out=out, **options) is out and out.stride() == strides
        else:
            out = tuple(layout(torch.zeros_like(e)) for e in expected)
            result = getattr(OURS, name)(x, dim, out=out, **options)
            assert result[0] is out[0] and result[1] is out[1]
        assert_bitwise_equal(out, expected)


def test_out_dtype_acts_as_dtype(device):
    x = values((4, 300), torch.float16, seed=1).to(device)
    for name, dtype in itertools.product(
        ("sum", "mean", "cumsum", "cumprod"), (torch.float64, torch.float32, torch.bfloat16)
    ):
        out = torch.empty(0, dtype=dtype, device=device)
        assert_bitwise_equal(getattr(OURS, name)(x, 1, out=out), getattr(OURS, name)(x, 1, dtype=dtype))
        assert_bitwise_equal(getattr(OURS, name)(x, 1, dtype=dtype, out=out), out)
    out = torch.empty(0, dtype=torch.int16, device=device)
    assert_bitwise_equal(tr.sum(x, 1, out=out), tr.sum(x, 1, dtype=torch.int16))


def test_out_without_elements_may_have_any_strides(device):
    x = torch.ones(3, 5, 0, device=device)
    for name in ("sum", "amax", "norm", "count_nonzero", "aminmax"):
        expected = getattr(tr, name)(x, dim=1)
        several = isinstance(expected, tuple)
        out = [part.new_empty(1, 0).expand(3, 0) for part in (expected if several else (expected,))]
        getattr(tr, name)(x, dim=1, out=tuple(out) if several else out[0])
        assert all(part.shape == (3, 0) for part in out)
    tr.cumsum(x, 1, out=x.new_empty(1, 1, 0).expand(3, 5, 0))
    values, indices = (part.new_empty(1, 1, 0).expand(3, 5, 0) for part in tr.cummax(x, 1))
    tr.cummax(x, 1, out=(values, indices))


def test_out_of_another_shape_is_resized_with_a_warning(device):
    x = values((3, 4), torch.float32).to(device)
    out = torch.empty(7, device=device)
    with pytest.warns(UserWarning, match="resized"):
        tr.sum(x, 0, out=out)
    assert_bitwise_equal(out, tr.sum(x, 0))
    out = torch.empty(0, device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tr.cumsum(x, 0, out=out)
    assert_bitwise_equal(out, tr.cumsum(x, 0))


@pytest.mark.parametrize("layout", (contiguous, transposed, padded))
@pytest.mark.parametrize("reverse", (False, True))
@pytest.mark.parametrize("name", ("cumsum", "cumprod", "logcumsumexp"))
def test_scans_in_place(device, name, layout, reverse):
    f = getattr(OURS, name)
    for shape, dim in (((3, 20000), 1), ((20000, 3), 0), ((5, 6, 7), 1)):
        x = layout(values(shape, torch.float32, seed=1).to(device))
        expected = f(x, dim, reverse=reverse)
        assert f(x, dim, reverse=reverse, out=x) is x
        assert_bitwise_equal(x, expected)


@pytest.mark.parametrize("name", ("cumsum", "cumprod", "logcumsumexp"))
def test_exclusive_scans_in_place_are_right_or_refused(device, name):
    f = getattr(OURS, name)
    x = values((3, 20000), torch.float32, seed=1).to(device)
    expected = f(x, 1, exclusive=True)
    f(x, 1, exclusive=True, out=x)
    assert_bitwise_equal(x, expected)


def test_cummax_in_place(device):
    """The values' output may be the input."""
    for name in ("cummax", "cummin"):
        x = values((3, 20000), torch.float32, seed=1).to(device)
        expected = getattr(OURS, name)(x, 1)
        indices = torch.empty(0, dtype=torch.int64, device=device)
        result = getattr(OURS, name)(x, 1, out=(x, indices))
        assert type(result) is getattr(torch.return_types, name) and result[0] is x and result[1] is indices
        assert_bitwise_equal((x, indices), tuple(expected))


def test_partial_overlap_is_refused(device):
    x = values((101,), torch.float32).to(device)
    with pytest.raises(RuntimeError, match="cumsum"):
        tr.cumsum(x[:100], 0, out=x[1:])
    x = values((10, 10), torch.float32).to(device)
    with pytest.raises(RuntimeError, match="sum"):
        tr.sum(x, 0, out=x[0])
    with pytest.raises(RuntimeError):
        tr.sum(x, 0, out=torch.zeros(1, device=device).expand(10))


# ---- errors ----------------------------------------------------------------------------------------------------------


@contextmanager
def refused(error, match=None):
    """As pytest.raises, but not for a subclass: NotImplementedError is a RuntimeError."""
    with pytest.raises(error, match=match) as raised:
        yield raised
    assert raised.type is error


@pytest.mark.parametrize("name", FUNCTIONS)
def test_dim_out_of_range(device, name):
    x = torch.ones(2, 3, device=device)
    for dim in (2, -3, 99):
        with pytest.raises(IndexError, match=rf"{public(name)}.*{dim}"):
            getattr(OURS, name)(x, dim)
    if name in REDUCTIONS:
        with pytest.raises(IndexError, match=rf"{public(name)}.*5"):
            getattr(OURS, name)(x, (0, 5))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_dim_repeated(device, name):
    x = torch.ones(2, 3, device=device)
    for dims in ((0, 0), (1, -1)):
        with pytest.raises(RuntimeError, match=rf"{public(name)}.*{re.escape(str(dims))}"):
            getattr(OURS, name)(x, dims)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_wrong_kinds_of_arguments(device, name):
    x = torch.ones(2, 3, device=device)
    f = getattr(OURS, name)
    for bad in ("a", 1.0, (0, "b")):
        with pytest.raises(TypeError, match=public(name)):
            f(x, bad)
    with pytest.raises(TypeError, match=public(name)):
        f([1.0, 2.0], 0)
    with pytest.raises(TypeError):
        f(x, 0, axis=0)
    with pytest.raises(TypeError):
        f(x, 0, nonsense=1)
    with pytest.raises(TypeError):
        f()


@pytest.mark.parametrize("name", SCANS)
def test_scans_need_a_dim(device, name):
    f = getattr(OURS, name)
    x = torch.ones(2, 3, device=device)
    for bad in (lambda: f(x), lambda: f(x, None), lambda: f(x, (0, 1)), lambda: f(x, ())):
        with pytest.raises(TypeError, match=public(name)):
            bad()


def test_what_a_scan_does_not_have(device):
    x = torch.ones(2, 3, device=device)
    for name in ("cummax", "cummin"):
        with pytest.raises(TypeError, match="exclusive"):
            getattr(OURS, name)(x, 0, exclusive=True)
    for name in ("cummax", "logcumsumexp"):
        with pytest.raises(TypeError, match="dtype"):
            getattr(OURS, name)(x, 0, dtype=torch.float64)
    for dtype in (torch.int64, torch.uint8, torch.bool):
        with pytest.raises(NotImplementedError, match=rf"logcumsumexp.*{dtype}.*float32"):
            tr.logcumsumexp(x.to(dtype), 0)
    with pytest.raises(NotImplementedError, match=r"cumprod.*bool"):
        tr.cumprod(x, 0, dtype=torch.bool)
    with pytest.raises(RuntimeError, match=r"logcumsumexp.*float64"):
        tr.logcumsumexp(x, 0, out=torch.empty(2, 3, dtype=torch.float64, device=device))
    with pytest.raises(TypeError, match=r"cummax.*tuple"):
        tr.cummax(x, 0, out=torch.empty(2, 3, device=device))


def test_max_of_two_tensors_names_torch_maximum(device):
    x = torch.ones(2, 3, device=device)
    with pytest.raises(TypeError, match=r"torch\.maximum"):
        tr.max(x, x)
    with pytest.raises(TypeError, match=r"torch\.minimum"):
        tr.min(x, x)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_unsupported_dtypes_name_what_is_supported(device, name):
    for dtype in (torch.complex64, torch.float8_e5m2):
        with refused(NotImplementedError, rf"{public(name)}.*{dtype}.*float32"):
            run(name, torch.ones(2, 3, device=device).to(dtype))


def test_unsupported_results(device):
    x = torch.ones(2, 3, device=device)
    for name in ("sum", "mean", "cumsum"):
        with refused(NotImplementedError, rf"{public(name)}.*complex64"):
            run(name, x, dtype=torch.complex64)
    with refused(NotImplementedError, r"cumsum.*bool"):
        tr.cumsum(x, 0, dtype=torch.bool)
    with refused(RuntimeError, r"mean.*int32"):
        tr.mean(x.int())
    for dtype in (torch.int64, torch.bool):
        with refused(RuntimeError, f"mean.*{dtype}"):
            tr.mean(x, dtype=dtype)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_keepdim_is_a_bool(device, name):
    x = torch.ones(2, 3, device=device)
    for bad in ("a", 1, None, 2.5):
        with refused(TypeError, rf"{public(name)}.*'keepdim'.*{type(bad).__name__}"):
            getattr(OURS, name)(x, 0, bad)
        with pytest.raises(TypeError):
            getattr(TORCHS, name)(x, 0, bad)


@pytest.mark.parametrize("name", (*SCANS, "linear_scan"))
def test_reverse_and_exclusive_are_bools(device, name):
    x = torch.ones(2, 3, device=device)
    for argument in ("reverse", "exclusive") if name in ("cumsum", "cumprod", "logcumsumexp") else ("reverse",):
        for bad in ("a", 1, None, 2.5):
            with refused(TypeError, rf"{public(name)}.*'{argument}'.*{type(bad).__name__}"):
                if name == "linear_scan":
                    tr.linear_scan(x, x, 0, **{argument: bad})
                else:
                    run(name, x, **{argument: bad})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_dims_are_no_arrays(device, name):
    x = torch.ones(2, 3, device=device)
    for bad in (np.array([0, 1]), torch.tensor([0, 1])):
        with refused(TypeError, rf"{public(name)}.*'dim' must be an int.*(\[0, 1\]|of two tensors)"):
            getattr(OURS, name)(x, bad)


@pytest.mark.parametrize("name", ("sum", "prod", "cumsum", "cumprod"))
def test_a_result_of_integers_has_no_gradient(device, name):
    """Where one is needed that is an error, as in torch, and not a result that lost it."""
    x = torch.ones(2, 3, device=device)
    for dtype in (torch.int64, torch.uint8):
        for f in (run, lambda name, x, **options: getattr(TORCHS, name)(x, 0, **options)):
            with pytest.raises(RuntimeError, match=r"(?i)autograd .* support"):
                f(name, x.clone().requires_grad_(), dtype=dtype)
        with pytest.raises(RuntimeError, match=rf"^{name}\(\): autograd does not support a result of {dtype}"):
            torch.func.grad(lambda x, dtype=dtype: run(name, x, dtype=dtype).sum())(x)
        with torch.no_grad():
            assert run(name, x.clone().requires_grad_(), dtype=dtype).dtype is dtype


@pytest.mark.parametrize("name", (*FUNCTIONS, "linear_scan"))
def test_what_is_supported_is_what_the_function_has(name):
    x = torch.ones(2, 3, dtype=torch.complex64)
    with refused(NotImplementedError, rf"{public(name)}.*complex64. Supported are float32") as raised:
        run(name, x) if name in FUNCTIONS else tr.linear_scan(x, x, 0)
    integers = name in FUNCTIONS and serves(name, torch.int64)
    assert ("int64" in str(raised.value)) == integers


@pytest.mark.filterwarnings("ignore:.*(prototype stage|beta state)")
@pytest.mark.parametrize("name", (*FUNCTIONS, "linear_scan"))
def test_only_strided_tensors(name):
    x = torch.ones(2, 3)
    nested = [torch.nested.nested_tensor([x, x[:1]], layout=layout) for layout in (torch.strided, torch.jagged)]
    others = [x.to_sparse(), x.to_sparse_csr(), *([x.to_mkldnn()] if torch.backends.mkldnn.is_available() else [])]
    for other in others:
        with refused(NotImplementedError, rf"{public(name)}.*of the layout {other.layout}.*strided"):
            run(name, other) if name in FUNCTIONS else tr.linear_scan(x, other, 0)
    for other in nested:
        with refused(NotImplementedError, rf"{public(name)}.*nested.*{other.layout}.*strided"):
            run(name, other) if name in FUNCTIONS else tr.linear_scan(other, x, 0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_out_is_strided(name):
    x = torch.ones(2, 3)
    results = run(name, x)
    for convert in (torch.Tensor.to_sparse, lambda t: torch.nested.nested_tensor([t], layout=torch.jagged)):
        out = [convert(t) for t in (results if isinstance(results, tuple) else (results,))]
        with refused(NotImplementedError, rf"{public(name)}.*out of .*{out[0].layout}.*strided"):
            run(name, x, out=tuple(out) if isinstance(results, tuple) else out[0])


@pytest.mark.parametrize("name", (*FUNCTIONS, "linear_scan"))
def test_unsupported_devices(name):
    with FakeTensorMode():
        x = torch.empty(2, 3, device="vulkan")
        with refused(NotImplementedError, rf"{public(name)}.*'vulkan'.*cpu, cuda"):
            run(name, x) if name in FUNCTIONS else tr.linear_scan(x, x, 0)


def test_out_is_refused(device):
    x = torch.ones(2, 3, device=device)
    other = "meta" if device == "cpu" else "cpu"
    calls = [
        lambda: tr.sum(x, 0, dtype=torch.float64, out=torch.empty(3, device=device)),
        lambda: tr.cumsum(x, 0, dtype=torch.float32, out=torch.empty(2, 3, dtype=torch.float64, device=device)),
        lambda: tr.amax(x, 0, out=torch.empty(3, dtype=torch.float64, device=device)),
        lambda: tr.argmax(x, 0, out=torch.empty(3, device=device)),
        lambda: tr.max(x, 0, out=(torch.empty(3, device=device), torch.empty(3, device=device))),
        lambda: tr.mean(x, 0, out=torch.empty(3, dtype=torch.int64, device=device)),
        *(lambda n=n: run(n, x, out=torch.empty(3, device=other)) for n in ("sum", "amax")),
        lambda: tr.argmin(x, 0, out=torch.empty(3, dtype=torch.int64, device=other)),
        lambda: tr.cumsum(x, 0, out=torch.empty(2, 3, device=other)),
        lambda: tr.sum(x, 0, out=torch.empty(3, device=device, requires_grad=True)),
        lambda: tr.sum(x.clone().requires_grad_(), 0, out=torch.empty(3, device=device)),
        lambda: tr.cumsum(x.clone().requires_grad_(), 0, out=torch.empty(2, 3, device=device)),
    ]
    for f in calls:
        with refused(RuntimeError):
            f()
    with torch.no_grad():
        tr.sum(x.clone().requires_grad_(), 0, out=torch.empty(3, device=device))


@pytest.mark.parametrize("name", ["mean", "nansum", "norm1", "norm2"])
@pytest.mark.parametrize("overload", ["default", "raw"])
def test_ops_of_floats_have_no_results_of_integers(name, overload):
    """Called directly, too."""
    op = getattr(getattr(torch.ops.torchreduce, name), overload)
    for x, dtype in ((torch.tensor([1, 2, 3]), None), (torch.ones(3), torch.int64), (torch.ones(3), torch.bool)):
        with pytest.raises(RuntimeError, match=f"{name}: needs a floating dtype"):
            op(x, None, False, dtype, 0)


# Of a row-wise op: statistics have a dim more than the input. Channel norms look at three dims of it.
DEEP = {
    "var": lambda x: tr.var(x, -1),
    "std_mean": tr.std_mean,
    "logsumexp": lambda x: tr.logsumexp(x, -1),
    "entropy": lambda x: tr.entropy(x, -1),
    "rms_norm": lambda x: tr.rms_norm(x, (3,)),
    "rms_norm of a sum": lambda x: tr.rms_norm(x, (3,), residual=x),
    "layer_norm": lambda x: tr.layer_norm(x, (3,)),
    "layer_norm of a sum": lambda x: tr.layer_norm(x, (3,), residual=x),
    "cross_entropy": lambda x: tr.cross_entropy(x, deep_labels(x)),
    "cross_entropy, smoothed": lambda x: tr.cross_entropy(x, deep_labels(x), label_smoothing=0.1),
    "cross_entropy of probabilities": lambda x: tr.cross_entropy(x, x.softmax(1)),
    "batch_norm": lambda x: tr.batch_norm(x, None, None, training=True),
    "group_norm": lambda x: tr.group_norm(x, 1),
}
DEEP_OVERRIDDEN = {
    "var": lambda x: torch.var(x, -1),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "softmax": lambda x: torch.softmax(x, -1),
    "rms_norm": lambda x: torch.nn.functional.rms_norm(x, (3,)),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (3,)),
    "cross_entropy": lambda x: torch.nn.functional.cross_entropy(x, deep_labels(x)),
}


def deep_labels(x):
    return torch.zeros(x.shape[:1] + x.shape[2:], dtype=torch.int64, device=x.device)


@pytest.mark.parametrize("needs_gradient", [False, True])
@pytest.mark.parametrize("name", DEEP)
def test_row_wise_ops_take_63_dims(name, needs_gradient, device):
    x = torch.randn(*[1] * 62, 3, device=device, requires_grad=needs_gradient)
    DEEP[name](x)
    deeper = x.detach()[None].requires_grad_(needs_gradient)
    with pytest.raises(RuntimeError, match="63 dims"):
        DEEP[name](deeper)
    with FakeTensorMode() as mode, pytest.raises(RuntimeError, match="dims"):
        DEEP[name](mode.from_tensor(deeper))


@pytest.mark.parametrize("needs_gradient", [False, True])
@pytest.mark.parametrize("name", DEEP_OVERRIDDEN)
def test_row_wise_ops_of_64_dims_stay_torchs(name, needs_gradient):
    call, x = DEEP_OVERRIDDEN[name], torch.randn(*[1] * 63, 3, requires_grad=needs_gradient)
    expected = call(x)
    with tr.enabled(cpu=True, compile=False):
        got = call(x)
    torch.testing.assert_close(got, expected)
    if needs_gradient:
        g = torch.ones_like(got)
        torch.testing.assert_close(*(torch.autograd.grad(y, x, g)[0] for y in (got, expected)))


@pytest.mark.parametrize("labels", [[-100, -100, -100], [0, 0, 0]])
def test_logits_without_classes_stay_torchs(labels):
    x, labels = torch.zeros(3, 0), torch.tensor(labels)

    def outcome():
        try:
            return str(torch.nn.functional.cross_entropy(x, labels))
        except IndexError as error:
            return str(error)

    expected = outcome()
    with tr.enabled(cpu=True, compile=False):
        before = tr.coverage("cross_entropy_loss")
        assert outcome() == expected
        after = tr.coverage("cross_entropy_loss")
    assert (after["served"], after["empty"]) == (before["served"], before["empty"] + 1)
