"""Every differentiable function under everything that torch can do to a call: forward mode, torch.func, tracing,
export, compilation, modes. The expectation is torch's, or the plain call's value."""

import io
import math
import warnings

import pytest
import torch
from cases import DTYPES, NORMS, OURS, values
from forms import DIFFERENTIABLE, FORMS, LINEAR_FORMS, signed, tie_free
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import torchreduce as tr
from torchreduce import _C, table
from torchreduce._core import dispatch
from torchreduce._core.checks import overloads
from torchreduce.testing import assert_bitwise_equal

every_form = pytest.mark.parametrize("form", DIFFERENTIABLE)
SHAPE = (3, 4, 5)


def scalar(f):
    """A function of f's results whose gradient is not constant."""
    return lambda x: f(x).sin().mul(3).sum()


def plain_gradient(f, x):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(f(x), x)[0]


def close(ours, expected, **tolerance):
    torch.testing.assert_close(ours, expected, **{"rtol": 1e-9, "atol": 1e-9, **tolerance})


def compiled(f):
    torch._dynamo.reset()
    return torch.compile(f, fullgraph=True, backend="aot_eager")


class Passing(TorchDispatchMode):
    """Records the names of this library's ops that are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "torchreduce":
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Plain(torch.Tensor):
    pass


class Calling(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


# ---- the rule --------------------------------------------------------------------------------------------------------


def test_only_plain_eager_calls_are_bare():
    x, op, seen = torch.ones(3), overloads("sum"), {}
    leaf = x.clone().requires_grad_()

    def look(t, key):
        seen[key] = dispatch.serving(op, t)
        return t.sum()

    assert dispatch.serving(op, x) is op.raw and dispatch.serving(op, x, x.clone()) is op.raw
    assert dispatch.serving(op, leaf) is op.derivative and dispatch.serving(op, x, leaf) is op.derivative
    assert dispatch.serving(op, torch.nn.Parameter(x)) is op.derivative
    assert dispatch.serving(op, x.as_subclass(Plain)) is op.default
    with torch.no_grad():
        assert dispatch.serving(op, leaf) is op.raw
    for name in ("grad", "vmap", "functionalize", "jacrev", "jacfwd"):
        getattr(torch.func, name)(lambda t, name=name: look(t, name))(x)
    torch.func.jvp(lambda t: look(t, "jvp"), (x,), (x,))
    make_fx(lambda t: look(t, "make_fx"))(x)
    make_fx(lambda t: look(t, "pre-dispatch"), pre_dispatch=True)(x)
    torch.jit.trace(lambda t: look(t, "jit"), x, check_trace=False)
    with forward_ad.dual_level():
        look(x, "dual level")
    with Passing():
        look(x, "dispatch mode")
    with FakeTensorMode(allow_non_fake_inputs=True):
        look(x, "fake mode")
    with Calling():
        look(x, "function mode")
    assert len(seen) == 13 and all(served is op.default for served in seen.values()), seen
    assert dispatch.serving(op, x) is op.raw


# ---- forward mode ----------------------------------------------------------------------------------------------------


@every_form
def test_jvp_is_the_finite_difference(device, form):
    f, x, t = DIFFERENTIABLE[form], tie_free(SHAPE, device=device), values(SHAPE, torch.float64, seed=1).to(device)
    value, tangent = torch.func.jvp(f, (x,), (t,))
    assert_bitwise_equal(value, f(x))
    step = 1e-6 / t.abs().max()
    close(tangent, (f(x + step * t) - f(x - step * t)) / (2 * step), rtol=1e-4, atol=1e-5)
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(f(forward_ad.make_dual(x, t)))
        assert_bitwise_equal(dual.primal, f(x))
        assert_bitwise_equal(dual.tangent, tangent)
        assert forward_ad.unpack_dual(f(x)).tangent is None
    linear = torch.func.linearize(f, x)[1]
    close(linear(t), tangent)


@every_form
def test_forward_mode_is_the_transpose_of_reverse(device, form):
    f, x = DIFFERENTIABLE[form], tie_free((2, 3, 4), device=device) / 4
    close(torch.func.jacfwd(f)(x), torch.func.jacrev(f)(x))
    close(torch.func.jacfwd(f)(x), torch.func.jacrev(f, chunk_size=1)(x))


@every_form
@pytest.mark.parametrize("shape", ((2, 3, 4), (2, 1, 3)))
def test_hessian_is_the_finite_difference_and_symmetric(device, form, shape):
    f, x = scalar(DIFFERENTIABLE[form]), tie_free(shape, device=device) / 4
    hessian = torch.func.hessian(f)(x).reshape(x.numel(), x.numel())
    close(hessian, hessian.T)
    close(hessian, torch.func.jacrev(torch.func.jacrev(f))(x).reshape(hessian.shape))
    step, rows = 1e-5, []
    for e in torch.eye(x.numel(), dtype=x.dtype, device=device).reshape(-1, *shape):
        rows.append((plain_gradient(f, x + step * e) - plain_gradient(f, x - step * e)).flatten() / (2 * step))
    close(hessian, torch.stack(rows), rtol=1e-4, atol=1e-5)


TORCHS = {
    "sum dim": lambda x: torch.sum(x, 1),
    "mean dims": lambda x: torch.mean(x, (0, 2)),
    "amax": lambda x: torch.amax(x, (0, 1)),
    "amin": lambda x: torch.amin(x),
    "nansum": lambda x: torch.nansum(x, 1),
    "nanmean": lambda x: torch.nanmean(x, (0, 2)),
    "prod": lambda x: torch.prod(x, 1),
    "norm 1": lambda x: torch.linalg.vector_norm(signed(x), 1, 1),
    "norm 2": lambda x: torch.linalg.vector_norm(x, 2, (0, 1)),
    "norm inf": lambda x: torch.linalg.vector_norm(signed(x), math.inf, (0, 2), keepdim=True),
    "norm -inf": lambda x: torch.linalg.vector_norm(signed(x), -math.inf),
    "max all": lambda x: torch.max(x),
    "max": lambda x: torch.max(x, 1).values,
    "min": lambda x: torch.min(x, -1, keepdim=True).values,
    "cumsum": lambda x: torch.cumsum(x, 1),
    "cumprod": lambda x: torch.cumprod(x, 1),
    "logcumsumexp": lambda x: torch.logcumsumexp(x, 1),
    "cummax": lambda x: torch.cummax(x, 1).values,
    "cummin": lambda x: torch.cummin(x, 0).values,
}


@pytest.mark.parametrize("form", TORCHS)
def test_tangents_are_torchs(device, form):
    """Of ties and of zeros too, twice, and in every float dtype within its rounding."""
    t = values(SHAPE, torch.float64, seed=2).to(device)
    inputs = [tie_free(SHAPE, device=device), tie_free(SHAPE, device=device).round()]
    if form == "cumprod":
        inputs.append(tie_free(SHAPE, device=device).masked_fill(t > 3, 0))
    for x in inputs:
        close(torch.func.jvp(FORMS[form], (x,), (t,)), torch.func.jvp(TORCHS[form], (x,), (t,)))
        ours, theirs = (torch.func.hessian(scalar(f))(x) for f in (FORMS[form], TORCHS[form]))
        close(ours, theirs)
    x = inputs[0]
    for dtype, rtol in ((torch.float32, 1e-5), (torch.float16, 4e-3), (torch.bfloat16, 2e-2)):
        y, tangent = torch.func.jvp(FORMS[form], (x.to(dtype) / 8,), (t.to(dtype),))
        assert tangent.dtype == dtype and tangent.shape == y.shape
        exact = torch.func.jvp(FORMS[form], ((x.to(dtype) / 8).double(),), (t.to(dtype).double(),))[1]
        close(tangent.double(), exact, rtol=rtol, atol=rtol * float(exact.abs().max()))


def test_tangents_keep_the_promises(device):
    """Of linear ops the tangent is the op; of all, it depends on the data alone: layout, batch, CPU or GPU."""
    x, t = (values((3, 40, 50), torch.float32, seed=s).to(device) for s in (4, 5))
    for name, f in FORMS.items():
        tangent = torch.func.jvp(f, (x,), (t,))[1]
        if name.split()[0] in ("sum", "mean", "cumsum"):
            assert_bitwise_equal(tangent, f(t))
        apart = [torch.func.jvp(f, (a.movedim(0, -1).contiguous().movedim(-1, 0),), (t,))[1] for a in (x, x)]
        assert_bitwise_equal(apart[0], tangent)
        assert_bitwise_equal(apart[1], tangent)
        assert_bitwise_equal(torch.func.jvp(f, (x.cpu(),), (t.cpu(),))[1], tangent.cpu())


def test_what_has_no_tangent(device):
    x = tie_free((3, 4), torch.float32, device)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x)
        for y in (
            tr.argmax(dual, 1),
            tr.max(dual, 1).indices,
            tr.cummax(dual, 1).indices,
            tr.sum(dual, dtype=torch.int64),
        ):
            assert forward_ad.unpack_dual(y).tangent is None


# ---- out= ------------------------------------------------------------------------------------------------------------


def calls_with_out(x):
    """Every function with out=: (name, call of x and out, the plain result)."""
    for row in table.OPS:
        f = getattr(OURS, row.name if row.name in NORMS else row.function)
        args = () if row.dims == "all" else (1,)
        result = f(x, *args)
        yield row.function, (lambda t, out, f=f, args=args: f(t, *args, out=out)), result
    yield "linear_scan", (lambda t, out: tr.linear_scan(t, t, 1, out=out)), tr.linear_scan(x, x, 1)


def empty_like(result):
    return torch.empty_like(result) if isinstance(result, torch.Tensor) else tuple(map(torch.empty_like, result))


def test_nothing_is_lost_through_out(device):
    x = tie_free((3, 4), torch.float32, device)
    for name, call, result in calls_with_out(x):
        out = empty_like(result)
        call(x, out)
        assert_bitwise_equal(out, tuple(result) if isinstance(out, tuple) else result)
        with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=rf"^{name}\(\)"):
            call(forward_ad.make_dual(x, x), empty_like(result))
        with pytest.raises(NotImplementedError, match=rf"^{name}\(\)"):
            torch.func.jvp(lambda t, call=call, result=result: call(t, empty_like(result)), (x,), (x,))
        for transform in (torch.func.grad, torch.func.jacfwd):
            with pytest.raises((NotImplementedError, RuntimeError), match=rf"^{name}\(\)"):
                transform(lambda t, call=call, result=result: call(t, empty_like(result)))(x)
        with pytest.raises(RuntimeError, match="requires grad"):
            call(x.clone().requires_grad_(), out)
        if isinstance(out, tuple):
            same = torch.empty(result[0].shape, dtype=torch.int64, device=device)
            with pytest.raises(RuntimeError, match="both values and indices"):
                call(x.long(), (same, same))
            views = torch.empty(2 * same.numel(), dtype=torch.int64, device=device)
            views = [views[i : i + same.numel()].view(same.shape) for i in (0, 1)]
            with pytest.raises(RuntimeError, match="share memory"):
                call(x.long(), views)
        with torch.inference_mode():
            inside = empty_like(result)
            call(x, inside)
        with pytest.raises(RuntimeError, match="inference tensor"):
            call(x, inside)
        assert_bitwise_equal(inside, out)


@pytest.mark.parametrize("name", ("max", "min", "cummax", "cummin"))
def test_pairs_are_written_in_any_layout(device, name):
    """Both laid out alike, apart, and over the input."""
    f, x = getattr(OURS, name), values((30, 40), torch.int64).to(device)
    expected = f(x, 1)
    shape = expected.values.shape
    for strides in ((None, None), (2, None), (None, 3), (2, 2)):
        outs = tuple(
            torch.empty(shape, dtype=torch.int64, device=device) if s is None
            else torch.empty((*shape, s), dtype=torch.int64, device=device)[..., 0] for s in strides
        )  # fmt: skip
        f(x, 1, out=outs)
        assert_bitwise_equal(outs, tuple(expected))
    if name.startswith("cum"):
        values_in_place, apart = x.clone(), torch.empty_like(x)
        f(values_in_place, 1, out=(values_in_place, apart))
        assert_bitwise_equal((values_in_place, apart), tuple(expected))
        index_in_place = x.clone()
        f(index_in_place, 1, out=(apart, index_in_place))
        assert_bitwise_equal((apart, index_in_place), tuple(expected))


# ---- torch.func ------------------------------------------------------------------------------------------------------


@every_form
def test_functional_transforms(device, form):
    f, x = scalar(DIFFERENTIABLE[form]), tie_free((2, *SHAPE), device=device) / 4
    expected = torch.stack([plain_gradient(f, row) for row in x])
    close(torch.vmap(torch.func.grad(f))(x), expected)
    close(torch.func.vjp(f, x[0])[1](torch.ones((), dtype=x.dtype, device=device))[0], expected[0])
    close(torch.func.grad(lambda t: torch.vmap(f)(t).sum())(x), expected)
    close(torch.func.functionalize(torch.func.grad(f))(x[0]), expected[0])
    assert_bitwise_equal(torch.func.functionalize(DIFFERENTIABLE[form])(x[0]), DIFFERENTIABLE[form](x[0]))
    close(
        torch.vmap(torch.func.hessian(f))(x[:, :2, :2, :2]),
        torch.stack([torch.func.hessian(f)(r[:2, :2, :2]) for r in x]),
    )


SOME_FORMS = pytest.mark.parametrize("every_form", (False, pytest.param(True, marks=pytest.mark.slow)))


@pytest.mark.long
@SOME_FORMS
def test_compiled_transforms(every_form):
    """torch.compile of torch.func's transforms, in one graph each. jacrev is a vmap of a vjp: without --slow it stands
    for these, grad of grad for grad, and one form of each op for all."""
    x, one = tie_free(SHAPE) / 4, torch.ones((), dtype=torch.float64)
    functions = {name: scalar(f) for name, f in DIFFERENTIABLE.items()}
    one_an_op = {name.split()[0]: f for name, f in functions.items()}
    transforms = {
        "jacrev": torch.func.jacrev,
        "jvp": lambda f: lambda t: torch.func.jvp(f, (t,), (t.cos(),))[1],
        "grad of grad": lambda f: torch.func.grad(lambda t: torch.func.grad(f)(t).sin().sum()),
    }
    if every_form:
        transforms["grad"] = torch.func.grad
        transforms["vmap of grad"] = lambda f: lambda t: torch.vmap(torch.func.grad(f))(torch.stack([t, t.cos()]))
        transforms["vjp"] = lambda f: lambda t: torch.func.vjp(f, t)[1](one)[0]
    for name, transform in transforms.items():
        chosen = functions if every_form and name in ("grad", "jvp") else one_an_op
        transformed = [transform(f) for f in chosen.values()]
        ours = compiled(lambda t, transformed=transformed: [f(t) for f in transformed])(x)
        for form, f, y in zip(chosen, transformed, ours, strict=True):
            close(y, f(x), msg=lambda m, form=form, name=name: f"{name} of {form}: {m}")


def test_dual_levels_in_compiled_functions():
    x, t = tie_free(SHAPE), values(SHAPE, torch.float64, seed=3)

    def run(x, t):
        with forward_ad.dual_level():
            return [forward_ad.unpack_dual(f(forward_ad.make_dual(x, t))).tangent for f in DIFFERENTIABLE.values()]

    expected = run(x, t)
    torch._dynamo.reset()
    for name, ours, wanted in zip(DIFFERENTIABLE, torch.compile(run, backend="aot_eager")(x, t), expected, strict=True):
        assert ours is not None, name
        close(ours, wanted)


# ---- sizes of 1, and none --------------------------------------------------------------------------------------------


def oddly_strided(x):
    """The same values, where the strides of dims of size 1 are arbitrary."""
    strides = [1000 + 7 * d if size == 1 or x.numel() == 0 else stride
               for d, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True))]  # fmt: skip
    return x.contiguous().as_strided(x.shape, strides)


# They select, or have no identity.
REFUSE_EMPTY = ("linear_scan broadcast", "linear_scan initial reverse", "norm inf", "norm -inf")
EXTREMES = ("amax", "amin", "aminmax", "max", "min")


@every_form
def test_strides_of_dims_of_size_1_mean_nothing(device, form):
    refuses = form.split()[0] in EXTREMES or form in REFUSE_EMPTY
    for shape in ((1, 1, 1), (3, 1, 4), (1, 4, 1), (4, 3, 1), *(() if refuses else ((0, 1, 3), (1, 2, 0)))):
        check_strides(device, form, shape)


def check_strides(device, form, shape):
    f, x = DIFFERENTIABLE[form], tie_free(shape, torch.float32, device)
    f = scalar(f)
    expected = plain_gradient(f, x)
    odd = oddly_strided(x)
    assert_bitwise_equal(plain_gradient(f, odd), expected)
    assert_bitwise_equal(plain_gradient(f, x.movedim(0, 1).contiguous().movedim(0, 1)), expected)
    assert_bitwise_equal(torch.vmap(torch.func.grad(f))(odd.unsqueeze(0)), expected.unsqueeze(0))
    twice = [plain_gradient(lambda t: torch.func.grad(f)(t).sin().sum(), t) for t in (odd, x)]
    assert_bitwise_equal(*twice)


def test_strides_of_dims_of_size_1_mean_nothing_compiled():
    x = tie_free((3, 1, 4), torch.float32)

    def run(t):
        return torch.stack([scalar(f)(t) for f in DIFFERENTIABLE.values()]).sum()

    ours = plain_gradient(compiled(run), oddly_strided(x))
    assert_bitwise_equal(ours, plain_gradient(compiled(run), x))
    close(ours, plain_gradient(run, x), rtol=1e-5, atol=1e-5)


def test_in_place_where_strides_of_size_1_differ(device):
    x = values((1, 50), torch.float32).to(device)
    expected = tr.cumsum(x, 1)
    tr.cumsum(x, 1, out=oddly_strided(x).as_strided((1, 50), (999, 1)))
    assert_bitwise_equal(x, expected)


# ---- traces, export, modes -------------------------------------------------------------------------------------------


class Model(torch.nn.Module):
    """Has a gradient through the form and one past it."""

    def __init__(self, form, device="cpu"):
        super().__init__()
        self.w, self.form = torch.nn.Parameter(tie_free(SHAPE, device=device, seed=2) / 4), form

    def forward(self, x):
        return scalar(DIFFERENTIABLE[self.form])(x + self.w) + (self.w * self.w).sum()


def gradient_of(model, x):
    for p in model.parameters():
        p.grad = None
    model(x).backward()
    (p,) = model.parameters()
    return p.grad


# A form with the most arguments: they are what is stored, and export takes a second.
MOST = {name.split()[0]: name for name in DIFFERENTIABLE}.values()


@pytest.mark.parametrize("form", [pytest.param(f, marks=() if f in MOST else pytest.mark.slow) for f in DIFFERENTIABLE])
def test_exported_modules_have_their_gradient(form):
    x, model = tie_free(SHAPE) / 4, Model(form)
    expected = gradient_of(model, x)
    program = torch.export.export(model, (x,), strict=False)
    assert_bitwise_equal(gradient_of(program.module(), x), expected)
    assert_bitwise_equal(program.run_decompositions({}).module()(x), model(x))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    assert_bitwise_equal(gradient_of(torch.export.load(file).module(), x), expected)


def test_strictly_exported_modules_have_their_gradient():
    for form in ("sum", "cummax", "linear_scan"):
        x, model = tie_free(SHAPE) / 4, Model(form)
        program = torch.export.export(model, (x,), strict=True)
        assert_bitwise_equal(gradient_of(program.module(), x), gradient_of(model, x))


@every_form
def test_traces_have_their_gradient(form):
    f, x = scalar(DIFFERENTIABLE[form]), tie_free(SHAPE) / 4
    expected = plain_gradient(f, x)
    for options in ({}, {"pre_dispatch": True}, {"tracing_mode": "fake"}, {"tracing_mode": "symbolic"}):
        for given in (x, x.clone().requires_grad_()):
            assert_bitwise_equal(plain_gradient(make_fx(f, **options)(given), x), expected)
    assert_bitwise_equal(make_fx(torch.func.grad(f))(x)(x), torch.func.grad(f)(x))


@every_form
def test_jit_traces_have_their_gradient(form):
    x, model = tie_free(SHAPE) / 4, Model(form)
    expected = gradient_of(model, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        traced = torch.jit.trace(model, x)
    assert_bitwise_equal(gradient_of(traced, x), expected)
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    assert_bitwise_equal(gradient_of(torch.jit.load(file), x), expected)


LOOKING_AT_SHAPES = {"aminmax", "rms_norm", "layer_norm", "cross_entropy", "cross_entropy weight"}  # in Python


@pytest.mark.parametrize("form", [form for form in DIFFERENTIABLE if form not in LOOKING_AT_SHAPES])
def test_symbolic_traces_have_their_gradient(form):
    """By torch.fx, which takes a call of a public function for one node."""
    x, model = tie_free(SHAPE) / 4, Model(form)
    traced = torch.fx.symbolic_trace(model)
    assert any("torchreduce" in str(node.target) or "torchreduce" in getattr(node.target, "__module__", "")
               for node in traced.graph.nodes)  # fmt: skip
    assert_bitwise_equal(gradient_of(traced, x), gradient_of(model, x))


def test_modules_are_traced_symbolically():
    x = tie_free((2, 8)).float()
    for module in (tr.nn.LayerNorm(8), tr.nn.RMSNorm(8), tr.nn.Softmax(1), tr.nn.LogSoftmax(1)):
        traced = torch.fx.symbolic_trace(torch.nn.Sequential(module))
        assert_bitwise_equal(traced(x), module(x))
    loss, labels = tr.nn.CrossEntropyLoss(), torch.tensor([1, 7])
    assert_bitwise_equal(torch.fx.symbolic_trace(loss)(x, labels), loss(x, labels))


@pytest.mark.long
@SOME_FORMS
def test_compiled_autograd_over_eager_forwards(every_form):
    x = tie_free(SHAPE) / 4
    one_an_op = {name.split()[0]: f for name, f in DIFFERENTIABLE.items()}
    for name, f in (DIFFERENTIABLE if every_form else one_an_op).items():
        expected = plain_gradient(scalar(f), x)
        leaf = x.clone().requires_grad_()
        y = scalar(f)(leaf)
        torch._dynamo.reset()
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager", fullgraph=True)):
            y.backward()
        close(leaf.grad, expected, msg=lambda m, name=name: f"{name}: {m}")


def test_modes_see_the_op_with_its_gradient():
    x = tie_free(SHAPE, torch.float32)

    with Passing() as mode:
        for f in FORMS.values():
            f(x)
    more = 1  # nanmean is two ops
    assert len(mode.names) == len(FORMS) + more and all(name.endswith(".default") for name in mode.names)


# ---- sizes known only at run time ------------------------------------------------------------------------------------


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_sizes_that_only_a_run_knows():
    x = torch.tensor([1.0, 2.0, 3.0])
    calls = {
        **{name: (lambda t, name=name: getattr(OURS, name)(t, 0)) for name in ("sum", "mean", "amax", "amin", "argmax",
           "argmin", "cumsum", "cumprod", "logcumsumexp")},
        **{name: (lambda t, name=name: getattr(OURS, name)(t, 0)[0]) for name in ("max", "min", "cummax", "cummin")},
        "max all": lambda t: tr.max(t),
        "min all": lambda t: tr.min(t),
        "argmax all": lambda t: tr.argmax(t),
        "linear_scan": lambda t: tr.linear_scan(0.5, t, 0),
    }  # fmt: skip

    def run(t):
        return tuple(f(t[t > 1]) for f in calls.values())

    class Picks(torch.nn.Module):
        def forward(self, t):
            return run(t)

    expected = run(x)
    assert_bitwise_equal(compiled(run)(x), expected)
    program = torch.export.export(Picks(), (x,), strict=False)
    assert_bitwise_equal(tuple(program.module()(x)), expected)
    with pytest.raises((IndexError, RuntimeError)):  # no elements after all: the kernel says so
        compiled(lambda t: tr.amax(t[t > 1], 0))(x - 5)


# ---- what torch accepts ----------------------------------------------------------------------------------------------


def test_other_names_and_types_that_torch_accepts(device):
    x = values((3, 4), torch.float32).to(device)
    for name in ("sum", "mean", "amax", "amin", "argmax", "argmin", "max", "min"):
        f = getattr(OURS, name)
        assert_bitwise_equal(f(x, 1, keepdims=True), f(x, 1, keepdim=True))
        with pytest.raises(TypeError, match="keepdims"):
            f(x, 1, keepdim=True, keepdims=True)
        with pytest.raises(TypeError, match="must be a bool"):
            f(x, 1, keepdims=1)
    one = torch.tensor(1, device=device)
    for name in ("sum", "mean", "amax", "amin", "argmax", "argmin", "cumsum", "cumprod", "logcumsumexp", "cummax"):
        f = getattr(OURS, name)
        assert_bitwise_equal(f(x, one), f(x, 1))
        with pytest.raises(TypeError):
            f(x, torch.tensor(1.0))
        with pytest.raises(TypeError):
            f(x, torch.tensor([0, 1]))
    assert_bitwise_equal(tr.sum(x, (one, 0)), tr.sum(x, (1, 0)))
    for name in ("max", "min"):  # torch takes that for a second input
        with pytest.raises(TypeError, match=f"torch.{name}imum"):
            getattr(OURS, name)(x, one)
    for kind, dtype in ((float, torch.float64), (int, torch.int64), (bool, torch.bool)):
        assert_bitwise_equal(tr.sum(x, 1, dtype=kind), tr.sum(x, 1, dtype=dtype))
        if dtype != torch.bool:
            assert_bitwise_equal(tr.cumsum(x, 1, dtype=kind), tr.cumsum(x, 1, dtype=dtype))
    assert_bitwise_equal(tr.mean(x, 1, dtype=float), tr.mean(x, 1, dtype=torch.float64))
    assert_bitwise_equal(tr.sum(x, 1, dtype=float, out=torch.empty(3, dtype=torch.float64, device=device)),
                         tr.sum(x, 1, dtype=float))  # fmt: skip
    for bad in (str, "float32", 3):
        with pytest.raises(TypeError, match="dtype"):
            tr.sum(x, dtype=bad)


@pytest.mark.parametrize("name", ("cumsum", "cumprod"))
def test_scans_in_place(device, name):
    f, in_place = getattr(OURS, name), getattr(tr, f"{name}_")
    for dtype in DTYPES:
        x = values((3, 700), dtype).to(device)
        if dtype == torch.bool:
            with pytest.raises(NotImplementedError, match="bool"):
                in_place(x, 1)
            continue
        for options in ({}, {"reverse": True}, {"exclusive": True}):
            y = x.clone()
            version = y._version
            assert in_place(y, 1, **options) is y and y._version > version
            assert_bitwise_equal(y, f(x, 1, dtype=dtype, **options))
    x = tie_free((3, 4), device=device).requires_grad_()
    (expected,) = torch.autograd.grad(f(x * 1, 1).sin().sum(), x)
    (ours,) = torch.autograd.grad(in_place(x * 1, 1).sin().sum(), x)
    assert_bitwise_equal(ours, expected)
    close(torch.func.jvp(lambda t: in_place(t * 1, 1), (x.detach(),), (x.detach(),)),
          torch.func.jvp(lambda t: f(t, 1), (x.detach(),), (x.detach(),)))  # fmt: skip
    with pytest.raises(RuntimeError, match="leaf Variable"):
        in_place(x, 1)
    with pytest.raises(RuntimeError, match="must be that of the input"):
        in_place(x.detach(), 1, dtype=torch.float32)


def test_linear_scan_takes_numbers_and_wider_parameters(device):
    rewards = values((3, 50), torch.float32).to(device)
    returns = tr.linear_scan(0.99, rewards, 1, initial=0, reverse=True)
    a = torch.tensor(0.99, device=device)
    assert_bitwise_equal(returns, tr.linear_scan(a, rewards, 1, initial=torch.zeros((), device=device), reverse=True))
    expected = torch.zeros(3, dtype=torch.float64, device=device)
    for i in reversed(range(50)):
        expected = a.double() * expected + rewards[:, i].double()
    close(returns[:, 0].double(), expected, rtol=1e-5, atol=1e-5)
    assert tr.linear_scan(0.99, rewards.double(), 1).dtype == torch.float64
    for dtype in (torch.bfloat16, torch.float16):
        b = rewards.to(dtype)
        for a, start in ((0.99, None), (torch.rand(3, 50, device=device), 2.0), (b, torch.ones(3, device=device))):
            wide = a if isinstance(a, float) else a.float()
            ours = tr.linear_scan(a, b, 1, initial=start)
            assert_bitwise_equal(ours, tr.linear_scan(wide, b.float(), 1, initial=start).to(dtype))
            out = torch.empty_like(b)
            assert tr.linear_scan(a, b, 1, initial=start, out=out) is out
            assert_bitwise_equal(out, ours)
        leaf = b.clone().requires_grad_()
        (grad,) = torch.autograd.grad(tr.linear_scan(0.5, leaf, 1).float().sum(), leaf)
        assert grad.dtype == dtype
    in_place = rewards.clone()
    assert_bitwise_equal(tr.linear_scan(0.5, in_place, 1, out=in_place), tr.linear_scan(0.5, rewards, 1))
    with pytest.warns(UserWarning, match="resized"):
        assert tr.linear_scan(0.5, rewards, 1, out=torch.empty(1, device=device)).shape == rewards.shape


assert set(LINEAR_FORMS) < set(DIFFERENTIABLE)


# ---- nested further -------------------------------------------------------------------------------------------------


@every_form
def test_tangents_of_tangents(device, form):
    """Forward over forward, over reverse, and reverse over forward: one matrix of second derivatives."""
    f, x = scalar(DIFFERENTIABLE[form]), tie_free((2, 3, 2), device=device) / 4
    hessian = torch.func.hessian(f)(x)
    close(torch.func.jacfwd(torch.func.jacfwd(f))(x), hessian)
    close(torch.func.jacrev(torch.func.jacfwd(f))(x), hessian)
    v, w = (values(x.shape, x.dtype, seed=s).to(device) for s in (8, 9))
    twice = torch.func.jvp(lambda s: torch.func.jvp(f, (s,), (v,))[1], (x,), (w,))[1]
    close(twice, (v.flatten() @ hessian.reshape(x.numel(), -1) @ w.flatten()))
    close(torch.func.grad(lambda s: torch.func.jvp(f, (s,), (v,))[1])(x), (hessian * v).sum((3, 4, 5)))
    third = torch.func.jacfwd(torch.func.hessian(f))(x[:1, :2])
    if "broadcast" not in form:
        close(third, torch.func.jacrev(torch.func.hessian(f))(x[:1, :2]))


@every_form
def test_gradcheck_with_everything(device, form):
    f, x = DIFFERENTIABLE[form], tie_free((2, 3, 2), device=device).div(4).requires_grad_()
    assert torch.autograd.gradcheck(
        f, (x,), check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
    )
    assert torch.autograd.gradgradcheck(f, (x,), check_fwd_over_rev=True, check_rev_over_rev=True)
    hessian = torch.func.hessian(scalar(f))(x.detach())
    for strategy in ("forward-mode", "reverse-mode"):
        ours = torch.autograd.functional.hessian(
            scalar(f), x.detach(), vectorize=True, outer_jacobian_strategy=strategy
        )
        close(ours, hessian)


@every_form
@pytest.mark.parametrize("reentrant", (False, True))
def test_checkpointed_gradients(device, form, reentrant):
    f, x = scalar(DIFFERENTIABLE[form]), tie_free(SHAPE, device=device) / 4
    checkpointed = lambda t: torch.utils.checkpoint.checkpoint(f, t, use_reentrant=reentrant)  # noqa: E731
    assert_bitwise_equal(plain_gradient_by_backward(checkpointed, x), plain_gradient_by_backward(f, x))


def plain_gradient_by_backward(f, x):
    x = x.detach().requires_grad_()
    f(x).backward()
    return x.grad


def test_tangents_that_are_not_there(device):
    """They add nothing, also where what they would be multiplied by is infinite."""
    inf = float("inf")
    b = torch.tensor([1.0, inf, 3.0], device=device)
    ones = torch.ones(3, device=device)
    assert torch.func.jvp(lambda b: tr.linear_scan(0.5, b, 0), (b,), (ones,))[1].tolist() == [1, 1.5, 1.75]
    huge = torch.tensor([3e38, 3e38, 4.0], device=device)
    assert torch.func.jvp(lambda b: tr.linear_scan(1.0, b, 0), (huge,), (ones,))[1].tolist() == [1, 2, 3]
    x = torch.tensor([0.0, inf, 1.0], device=device)
    forward, reverse = (j(lambda t: tr.logcumsumexp(t, 0))(x) for j in (torch.func.jacfwd, torch.func.jacrev))
    assert forward.tolist() == reverse.tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 0]]


def test_out_beside_wider_parameters(device):
    b = torch.ones(3, dtype=torch.bfloat16, device=device)
    for dtype in (torch.int32, torch.float64, torch.bool):
        with pytest.raises(RuntimeError, match=r"^linear_scan\(\): expected out to have dtype"):
            tr.linear_scan(0.5, b, 0, out=torch.empty(3, dtype=dtype, device=device))
    whole = torch.ones(4, dtype=torch.bfloat16, device=device)
    with pytest.raises(RuntimeError, match="shares memory"):
        tr.linear_scan(0.5, whole[:3], 0, out=whole)


@pytest.mark.long
def test_out_compiles_functionalizes_and_negates():
    x = values((3, 4), torch.float32)
    for name, call, result in calls_with_out(x):
        result = tuple(result) if not isinstance(result, torch.Tensor) else result
        for f in (torch.func.functionalize(call), compiled(call), torch.compile(call, fullgraph=True)):
            out = empty_like(result)
            f(x, out)
            assert_bitwise_equal(out, result)
        if isinstance(result, torch.Tensor) and result.dtype == torch.float32:
            out = torch.zeros(result.shape, dtype=torch.complex64).conj().imag
            assert out.is_neg()
            call(x, out)
            assert_bitwise_equal(out.resolve_neg(), result), name
    negated = torch.zeros((3, 4), dtype=torch.complex64).conj().imag.copy_(x)
    assert_bitwise_equal(tr.cumsum_(negated, 1).resolve_neg(), tr.cumsum(x, 1))


# Of each kind of op and of gradient: torch's compiler makes two kernels or more for one, in a second each.
SOME = ("sum", "max", "norm 2", "prod", "cumsum", "cumprod", "linear_scan", "softmax", "logsumexp", "layer_norm",
        "cross_entropy")  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("forms", ["some", pytest.param("all", marks=pytest.mark.slow)])
def test_gradients_by_torchs_own_compiler(device, forms):
    """In one graph, forward and backward, of inputs laid out otherwise."""
    torch._dynamo.reset()
    chosen = DIFFERENTIABLE if forms == "all" else SOME

    def run(t):
        return torch.stack([scalar(DIFFERENTIABLE[name])(t) for name in chosen]).sum()

    x = tie_free((5, 4, 3), device=device).div(4).permute(2, 1, 0)
    close(plain_gradient(torch.compile(run, fullgraph=True), x), plain_gradient(run, x))


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_gradients_of_sizes_that_only_a_run_knows():
    x = torch.tensor([1.0, 2.0, 3.0, 0.5])
    for f in (
        lambda t: tr.linear_scan(0.5, t, 0),
        lambda t: tr.linear_scan(t.sin(), t, 0, initial=1.0, reverse=True),
        lambda t: tr.cumprod(t, 0, exclusive=True),
        lambda t: tr.logcumsumexp(t, 0, exclusive=True)[1:],
    ):
        masked = lambda t, f=f: f(t[t > 0.7]).sum()  # noqa: E731
        assert_bitwise_equal(plain_gradient(compiled(masked), x), plain_gradient(masked, x))
    two = lambda a, b: tr.linear_scan(a[a > 0.7], b[b > 0.7], 0)  # noqa: E731
    assert_bitwise_equal(compiled(two)(x, x), two(x, x))


def test_numbers_of_every_kind(device):
    import numpy as np

    b = torch.tensor([1.0, 2.0, 3.0], device=device)
    for a in (np.float32(0.5), np.float64(0.5), 0.5):
        assert_bitwise_equal(tr.linear_scan(a, b, 0), tr.linear_scan(torch.tensor(0.5, device=device), b, 0))
    for a in (np.int64(2), 2, True):
        assert_bitwise_equal(tr.linear_scan(a, b, 0), tr.linear_scan(float(a), b, 0))
    assert tr.linear_scan(1e39, b, 0).tolist() == [1, float("inf"), float("inf")]
    assert tr.linear_scan(float("nan"), b, 0)[1:].isnan().all()

    class Model(torch.nn.Module):
        def forward(self, x):
            return tr.linear_scan(1 / x.shape[0], x, 0, initial=x.shape[0])

    model, x = Model(), torch.rand(4, 2)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("n", min=2)},), strict=False)
    for n in (4, 7):
        close(program.module()(torch.ones(n, 2)), model(torch.ones(n, 2)), rtol=1e-6, atol=1e-6)


def test_linear_scan_by_a_number_keeps_only_that(device):
    b = values((3, 4), torch.float64).to(device).requires_grad_()
    tr.linear_scan(0.9, b, 1).add_(1).sum().backward()
    (expected,) = torch.autograd.grad(tr.linear_scan(0.9, b, 1).sum(), b)
    assert_bitwise_equal(b.grad, expected)


def test_sixty_four_dims(device):
    shape = (2, *[1] * 62, 3)
    for name in ("mean", "sum", "amax", "cumsum", "cumprod", "logcumsumexp", "cummax"):
        f = lambda t, name=name: getattr(OURS, name)(t, -1)  # noqa: E731
        first = lambda t, f=f: f(t) if isinstance(f(t), torch.Tensor) else f(t).values  # noqa: E731
        x = torch.rand(shape, device=device).half()
        assert plain_gradient(lambda t, first=first: first(t).float().sum(), x).shape == shape
        flat = plain_gradient(lambda t, first=first: first(t).float().sum(), x.reshape(2, 3))
        assert_bitwise_equal(plain_gradient(lambda t, first=first: first(t).float().sum(), x).reshape(2, 3), flat)
    assert tr.linear_scan(0.5, torch.rand(shape, device=device).half(), -1).shape == shape


def test_fakes_outside_of_their_mode():
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.rand(3, 4))
    assert tr.linear_scan(0.5, fake, 1).shape == (3, 4)
    for f in FORMS.values():
        leaf = mode.from_tensor(torch.rand(SHAPE)).requires_grad_()
        assert torch.autograd.grad(f(leaf).sum(), leaf)[0].shape == SHAPE


def test_graphs_name_their_ops():
    x = torch.rand(3, requires_grad=True)
    assert tr.prod(x).grad_fn.name() == "torchreduce_prod_Backward"
    of_sum = "torchreduce::recorded::sum" if _C.records("sum") else "torchreduce_sum_Backward"
    assert of_sum in tr.sum(x).grad_fn.name()
