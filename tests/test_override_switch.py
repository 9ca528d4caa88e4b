"""The manners of the override's switch: who it is on for, in every way that code is called; what it is called in
coverage() and promises(); torch's errors, which stay torch's."""

import ast
import asyncio
import functools
import importlib
import inspect
import itertools
import re
import threading
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from test_override import ON, python, rows, run
from test_override_compile import CALLS
from test_override_opinfo import BY_NAME, DIRECT_OPS, copied, outcome

import torchreduce as tr
from torchreduce import override
from torchreduce.override import promises as said
from torchreduce.override.names import function_of
from torchreduce.override.table import OVERLOADS
from torchreduce.testing import assert_bitwise_equal


@pytest.fixture(autouse=True)
def switched_off_after():
    yield
    assert (override.state.eager, override.state.compiled) == (0, 0) and not tr.is_enabled()


# ---- devices ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("has_gpu", "cpu", "devices"), [(0, None, 3), (0, False, 1), (1, None, 1), (1, True, 3)])
def test_the_cpu_is_overridden_where_torch_sees_no_gpu(has_gpu, cpu, devices, monkeypatch):
    monkeypatch.setattr(override, "_has_gpu", lambda: bool(has_gpu))
    with tr.enabled(cpu=cpu):
        assert (override.state.eager, override.state.compiled) == (devices, devices)
        assert tr.is_enabled("cpu") == (devices == 3) and tr.is_enabled("cuda")
    monkeypatch.setenv("TORCHREDUCE_ENABLE", "1")
    override.follow_environment()
    assert override.state.eager == (1 if has_gpu else 3)
    tr.disable()


def test_a_look_at_the_gpus_starts_no_cuda():
    """Else a process that is forked afterwards could not use them."""
    script = """
        import torch, torchreduce as tr
        tr.enable()
        print(torch.cuda.is_initialized(), tr.is_enabled(), tr.is_enabled("cpu") != (torch.cuda.device_count() > 0))
    """
    assert run(script) == ["False", "True", "True"]


def test_is_enabled_tells_by_device():
    assert not tr.is_enabled() and not tr.is_enabled("cpu") and not tr.is_enabled(torch.device("cuda", 1))
    with tr.enabled(cpu=False):
        assert tr.is_enabled() and tr.is_enabled("cuda:0") and not tr.is_enabled("cpu")
        with tr.enabled(cpu=True):
            assert tr.is_enabled("cpu") and not tr.is_enabled("meta")
    tr.enable(cpu=True)
    assert tr.is_enabled(torch.device("cpu"))
    tr.disable()
    for wrong in ("gpu", 1.5, ["cpu"]):
        with pytest.raises(ValueError, match=r"^is_enabled\(\): argument 'device' must be a device or its name, got "):
            tr.is_enabled(wrong)


# ---- ways of calling -------------------------------------------------------------------------------------------------


# Of every op; compiled code is tests/test_override_compile.py's, and test_compiled_code_follows_every_kind_of_block.
def every_result(x):
    return [r for call in CALLS.values() for r in torch.utils._pytree.tree_leaves(call(x))]


def each_result(x):
    """As every_result, one by one."""
    for call in CALLS.values():
        yield from torch.utils._pytree.tree_leaves(call(x))


async def later(x):
    results = []
    for call in CALLS.values():
        results += torch.utils._pytree.tree_leaves(call(x))
        await asyncio.sleep(0)
    return results


async def each_later(x):
    for call in CALLS.values():
        for result in torch.utils._pytree.tree_leaves(call(x)):
            await asyncio.sleep(0)
            yield result


class Callable:
    def __call__(self, x):
        return every_result(x)

    @tr.enabled(**ON)
    def method(self, x):
        return every_result(x)

    @staticmethod
    @tr.enabled(**ON)
    def static(x):
        return every_result(x)


def in_a_block(x):
    with tr.enabled(**ON):
        return every_result(x)


def between_calls(x):
    tr.enable(**ON)
    results = every_result(x)
    tr.disable()
    return results


def in_a_thread(x):
    results = []
    thread = threading.Thread(target=lambda: results.extend(tr.enabled(**ON)(every_result)(x)))
    thread.start()
    thread.join()
    return results


async def listed(results):
    return [r async for r in results]


WAYS = {
    "enable and disable": between_calls,
    "block": in_a_block,
    "decorated": tr.enabled(**ON)(every_result),
    "decorated twice": tr.enabled(cpu=False)(tr.enabled(**ON)(every_result)),
    "method": Callable().method,
    "static method": Callable.static,
    "callable": tr.enabled(**ON)(Callable()),
    "partial": lambda x: tr.enabled(**ON)(functools.partial(every_result, x))(),
    "thread": in_a_thread,
    "generator": lambda x: list(tr.enabled(**ON)(each_result)(x)),
    "function that returns a generator": lambda x: list(tr.enabled(**ON)(lambda y: each_result(y))(x)),
    "async function": lambda x: asyncio.run(tr.enabled(**ON)(later)(x)),
    "function that returns a coroutine": lambda x: asyncio.run(tr.enabled(**ON)(lambda y: later(y))(x)),
    "async generator": lambda x: asyncio.run(listed(tr.enabled(**ON)(each_later)(x))),
    "function that returns an async generator": lambda x: asyncio.run(
        listed(tr.enabled(**ON)(lambda y: each_later(y))(x))
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_op_is_overridden_in_every_way_of_calling(way, device):
    x = rows(33, 1000, device=device)
    tr.enable(**ON)
    expected, before = every_result(x), tr.coverage()
    tr.disable()
    results = WAYS[way](x)
    for result, e in zip(results, expected, strict=True):
        assert_bitwise_equal(result, e)
    after = tr.coverage()
    assert all(after[name][why] == before[name][why] for name in after for why in after[name] if why != "served")
    assert sum(row["served"] for row in after.values()) - sum(row["served"] for row in before.values()) >= len(CALLS)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_compiled_code_follows_every_kind_of_block(backend):
    """A block within compiled code breaks its graph; what it holds is overridden."""
    x = rows()
    ours, options = tr.sum(x, 1), {"cpu": True}

    def total(x):
        return x.sum(1)

    def block(x):
        with tr.enabled(**options):
            return x.sum(1)

    def generator(x):
        yield x.sum(1)

    async def coroutine(x):
        return total(x)

    torch._dynamo.reset()
    compiled = torch.compile(total, backend=backend)
    torchs = compiled(x)
    assert not torch.equal(torchs, ours)
    for f in (
        torch.compile(block, backend=backend),
        torch.compile(tr.enabled(**options)(total), backend=backend),
        tr.enabled(**options)(compiled),
        lambda x: next(tr.enabled(**options)(lambda y: (compiled(z) for z in (y,)))(x)),
        lambda x: next(tr.enabled(**options)(generator)(x)),
        lambda x: asyncio.run(tr.enabled(**options)(coroutine)(x)),
    ):
        for _ in range(2):
            assert_bitwise_equal(f(x), ours)
            assert_bitwise_equal(compiled(x), torchs)
    torch._dynamo.reset()


def test_decorated_functions_stay_of_their_kind():
    for f, kind in (
        (every_result, inspect.isfunction),
        (each_result, inspect.isgeneratorfunction),
        (later, inspect.iscoroutinefunction),
        (each_later, inspect.isasyncgenfunction),
    ):
        decorated = tr.enabled(**ON)(f)
        assert kind(decorated) and decorated.__name__ == f.__name__ and decorated.__wrapped__ is f
    for wrong in (Callable, torch.nn.Linear, 3, None, classmethod(every_result)):
        with pytest.raises(TypeError, match=r"^enabled\(\): decorates functions, got .*; decorate a class's methods$"):
            tr.enabled(**ON)(wrong)


def test_a_suspended_generator_is_outside():
    """Also if it is sent values, thrown errors, or closed; and what it yields from is in it."""
    log = []

    def inner():
        log.append(tr.is_enabled("cpu"))
        try:
            got = yield 1
            log.append((got, tr.is_enabled("cpu")))
            try:
                yield 2
            except KeyError as error:
                log.append((error.args, tr.is_enabled("cpu")))
            yield 3
        finally:
            log.append(("closed", tr.is_enabled("cpu")))

    @tr.enabled(**ON)
    def generator():
        return (yield from inner())

    g = generator()
    assert next(g) == 1 and not tr.is_enabled()
    assert g.send("sent") == 2 and not tr.is_enabled()
    assert g.throw(KeyError("thrown")) == 3 and not tr.is_enabled()
    g.close()
    assert log == [True, ("sent", True), (("thrown",), True), ("closed", True)]

    @tr.enabled(**ON)
    def returns():
        yield 1
        return 2

    def outer():
        return (yield from returns())

    g = outer()
    next(g)
    with pytest.raises(StopIteration) as stop:
        next(g)
    assert stop.value.value == 2

    @tr.enabled(**ON)
    def fails():
        yield 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(fails())


def test_what_runs_beside_a_suspended_coroutine_is_outside():
    log = []

    @tr.enabled(**ON)
    async def ours():
        for _ in range(3):
            log.append(("ours", tr.is_enabled("cpu")))
            await asyncio.sleep(0)
        return 7

    @tr.enabled(**ON)
    async def each():
        try:
            for k in range(3):
                log.append(("ours", tr.is_enabled("cpu")))
                await asyncio.sleep(0)
                got = yield k
                assert got in (None, "sent")
        except KeyError:
            yield 9
        finally:
            log.append(("ours", tr.is_enabled("cpu")))

    async def others():
        for _ in range(9):
            log.append(("others", tr.is_enabled("cpu")))
            await asyncio.sleep(0)

    async def reads():
        log.append(("others", tr.is_enabled("cpu")))
        results = []
        async for k in each():
            log.append(("others", tr.is_enabled("cpu")))
            results.append(k)
        g = each()
        assert await g.asend(None) == 0 and await g.asend("sent") == 1 and await g.athrow(KeyError()) == 9
        await g.aclose()
        return results

    async def main():
        return await asyncio.gather(ours(), others(), reads())

    assert asyncio.run(main()) == [7, None, [0, 1, 2]]
    assert {who: {on for w, on in log if w == who} for who, _ in log} == {"ours": {True}, "others": {False}}

    @tr.enabled(**ON)
    async def is_cancelled():
        try:
            await asyncio.sleep(10)
        finally:
            assert tr.is_enabled("cpu")

    async def cancels():
        task = asyncio.create_task(is_cancelled())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not tr.is_enabled()

    asyncio.run(cancels())


def test_calls_of_a_decorated_function_close_in_any_order():
    """Each call has a block of its own, so the last one counts, whichever thread closes first."""
    inside, go_on = threading.Event(), threading.Event()

    @tr.enabled(**ON)
    def waits(event=None):
        if event is not None:
            inside.set()
            event.wait()

    thread = threading.Thread(target=waits, args=(go_on,))
    thread.start()
    inside.wait()
    with tr.enabled(cpu=False):
        waits()
        assert override.state.eager == 1
        go_on.set()
        thread.join()
        assert override.state.eager == 1


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "names"),
    [
        ("sum", "sum torch.sum Tensor.sum torch.Tensor.sum aten::sum aten.sum torch.ops.aten.sum sum.dim_IntList "
                "aten::sum.dim_IntList torch.ops.aten.sum.default tr.sum sum()"),
        ("softmax", "F.softmax torch.nn.functional.softmax nn.Softmax _softmax aten::_softmax.out special.softmax "
                    "_softmax_backward_data torch.nn.modules.Softmax"),
        ("layer_norm", "nn.LayerNorm LayerNorm native_layer_norm aten::native_layer_norm_backward"),
        ("vector_norm", "linalg.vector_norm torch.linalg.vector_norm linalg_vector_norm.out _foreach_norm.Scalar"),
        ("cross_entropy", "nn.CrossEntropyLoss cross_entropy_loss F.cross_entropy"),
        ("nll_loss", "nn.NLLLoss nll_loss2d_backward nll_loss_forward.output"),
        ("cumsum", "cumsum_ Tensor.cumsum_ cumsum.out"),
        ("index_put", "index_put_ _index_put_impl_ Tensor.index_put_"),
        ("mse_loss", "nn.MSELoss F.mse_loss mse_loss_backward"),
        ("binary_cross_entropy_with_logits", "nn.BCEWithLogitsLoss"),
        ("clip_grad_norm_", "nn.utils.clip_grad_norm_ torch.nn.utils.clip_grad.clip_grad_norm_"),
        ("mm", "torch.mm aten::mm.out"),
        ("conv2d", "nn.Conv2d F.conv2d"),
        ("embedding_bag", "nn.EmbeddingBag _embedding_bag_forward_only"),
    ],
)  # fmt: skip
def test_a_function_is_known_by_all_of_its_names(function, names):
    counts = tr.coverage(function) if function not in (*said.COMPOSITIONS, "conv2d") else None
    for name in names.split():
        assert tr.promises(name) is tr.promises(function), name
        if counts is not None and "." not in name:
            assert tr.coverage(name) == counts, name


def test_every_overload_has_a_function_with_a_promise():
    for name in OVERLOADS:
        assert function_of(name, said.KNOWN) in said.KNOWN, name
        assert tr.coverage(name).keys() == tr.coverage("sum").keys()
    assert {*tr.coverage()} <= {*OVERLOADS}
    with tr.enabled(**ON):
        before = tr.coverage("sum"), tr.coverage("aten::sum.dim_IntList"), tr.coverage("sum.IntList_out")
        torch.sum(rows(), 1, out=torch.empty(33))
        after = tr.coverage("sum"), tr.coverage("aten::sum.dim_IntList"), tr.coverage("sum.IntList_out")
    assert [a["served"] - b["served"] for a, b in zip(after, before, strict=True)] == [1, 0, 1]


def test_every_name_of_the_page_is_known():
    """Its tables of what is overridden, and of what no override can promise."""
    text = (Path(__file__).parents[1] / "docs" / "dropin.md").read_text()
    table = text.split("## What is overridden")[1].split("Unsupported calls")[0]
    names = {name for cell in re.findall(r"^\|.*", table, re.M) for code in re.findall(r"`([^`]+)`", cell)
             for name in re.findall(r"(?<![\w=.\[(\"])[a-z][\w.]+(?![\w=.\[(\"])", code)}  # fmt: skip
    assert len(names) > 60
    for name in names - {"x", "index", "inf"}:
        tr.promises(name)


def test_compositions_say_what_counts():
    for wrong, words in (
        ("mse_loss", "is made of other functions, whose calls count: 'sum', 'mean'"),
        ("conv2d", "is not overridden, so its calls are not counted: torch's: the bits depend on the shapes"),
        (
            "avg_pool2d",
            "is not overridden, so its calls are not counted: torch's: a result is the sum of its own window",
        ),
        ("no_such", "is not overridden"),
    ):
        with pytest.raises(ValueError, match=rf"^coverage\(\): {wrong!r} {words}"):
            tr.coverage(wrong)
    with pytest.raises(TypeError, match=r"^coverage\(\): argument 'op' must be a str, got int"):
        tr.coverage(3)
    with pytest.raises(ValueError, match=r"^promises\(\): nothing is said about 'torch.no_such'"):
        tr.promises("torch.no_such")


@pytest.mark.parametrize("name", sorted(said.COMPOSITIONS))
def test_a_composition_is_made_of_what_it_says(name):
    """torch's samples of it call these functions, and no other that reduces."""
    of_norms = {
        "clip_grad_norm_": lambda x: torch.nn.utils.clip_grad_norm_([x.requires_grad_()], 1.0),
        "get_total_norm": lambda x: torch.nn.utils.get_total_norm([x, x]),
    }
    calls = []
    if name in of_norms:
        x = rows()
        x.grad = x.clone()
        calls = [lambda: of_norms[name](x)]
    else:
        op = BY_NAME.get(f"nn.functional.{name}") or BY_NAME[name]
        samples = op.sample_inputs("cpu", torch.float32)
        calls = [functools.partial(op, s.input, *s.args, **s.kwargs) for s in itertools.islice(samples, 30)]
    before = tr.coverage()
    with tr.enabled(**ON):
        for call in calls:
            outcome(call)
    after = tr.coverage()
    served = {function_of(n, said.KNOWN) for n, row in after.items() if row["served"] > before[n]["served"]}
    assert served and served - {"any", "max", "min"} <= {*said.COMPOSITIONS[name]}  # those check arguments


def test_exclude_takes_every_name():
    for name in ("index_add", "torch.index_add", "Tensor.index_add_", "aten::index_add"):
        with tr.enabled(**ON, exclude=(name,)):
            assert override.state.excluded == "index_add"
    with pytest.raises(ValueError, match=r"got 'torch\.sum'"):
        tr.enable(exclude=["torch.sum"])


# ---- counts ----------------------------------------------------------------------------------------------------------


def test_a_loss_counts_once():
    x, t, w = rows(5, 7), torch.arange(5), rows(1, 7).abs()[0]
    for dtype, reduction, weight in itertools.product(
        (torch.float32, torch.float64, torch.bfloat16), ("none", "mean", "sum"), (None, w)
    ):
        for loss, row in ((F.nll_loss, "nll_loss_forward"), (F.cross_entropy, "cross_entropy_loss")):
            y = x.to(dtype).requires_grad_()
            before = tr.coverage()
            with tr.enabled(**ON):
                loss(y, t, None if weight is None else weight.to(dtype), reduction=reduction).sum().backward()
            after = tr.coverage()
            new = {name: {why: n - before[name][why] for why, n in row.items()} for name, row in after.items()}
            assert new[row]["served"] == 1, (dtype, reduction, loss)
            assert not any(n for counts in new.values() for why, n in counts.items() if why != "served"), new


@pytest.mark.usefixtures("quick_seeds")
@pytest.mark.parametrize("name", DIRECT_OPS)
def test_no_call_counts_as_served_and_as_fallen_back(name):
    """A composite that falls back counts as such, and the calls that torch makes of it by themselves."""
    op = BY_NAME[name]
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        if dtype not in op.supported_dtypes("cpu"):
            continue
        for sample in itertools.islice(op.sample_inputs("cpu", dtype), 40):
            x, args, kwargs = copied(sample)
            before = tr.coverage()
            with tr.enabled(**ON):
                outcome(op, x, *args, **kwargs)
            after = tr.coverage()
            for overload_, row in after.items():
                ways = [why for why, n in row.items() if n > before[overload_][why]]
                assert len(ways) < 2, (overload_, ways, sample)


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_what_a_compiler_traces_does_not_count(backend):
    x, t = rows(5, 7).requires_grad_(), torch.arange(5)
    torch._dynamo.reset()
    with tr.enabled(cpu=True):
        compiled = torch.compile(lambda x, t: F.cross_entropy(x, t) + x.softmax(1).std() + x.sum(), backend=backend)
        before = tr.coverage()
        compiled(x, t).backward()
        after = tr.coverage()
        assert all(row[why] == before[name][why] for name, row in after.items() for why in row if why != "served")
        assert (x.to("meta") * 2).sum(1).is_meta and tr.coverage() == after
    torch._dynamo.reset()


# ---- errors ----------------------------------------------------------------------------------------------------------

ALL = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int16,
    torch.int64,
    torch.bool,
    torch.complex64,
)
# What the page lists.
VANISHED = (
    "argmax(): does not support bool input",
    "argmin(): does not support bool input",
    "output with shape [] doesn't match the broadcast shape",  # logsumexp over no dims
)


def of(dtype, *shape):
    return torch.arange(torch.Size(shape).numel()).remainder(3).reshape(shape).to(dtype)


def reductions():
    for name, dtype, dim, out in itertools.product(
        ("sum", "mean", "nansum", "nanmean", "prod", "any", "all", "amax", "amin", "argmax", "argmin", "logsumexp",
         "var", "std", "cumsum", "cumprod", "logcumsumexp", "max", "min", "cummax", "cummin", "aminmax", "softmax"),
        ALL, (0, (), (0, 1), 5, (0, 0)), (None, *ALL),
    ):  # fmt: skip
        for asked in (None, *ALL) if name in ("sum", "mean", "nansum", "prod", "cumsum", "softmax") else (None,):
            options = {"dim": dim, **({} if asked is None else {"dtype": asked})}
            if out is not None:
                pair = name in ("max", "min", "cummax", "cummin", "aminmax")
                outs = torch.empty(0, dtype=out), torch.empty(0, dtype=out if name == "aminmax" else torch.int64)
                options["out"] = outs if pair else outs[0]
            yield name, (dtype, options), functools.partial(getattr(torch, name), of(dtype, 3, 4), **options)


def norms():
    for dtype, order, asked in itertools.product(ALL, (2, 0, float("inf")), (None, *ALL)):
        x = of(dtype, 3, 4)
        yield "vector_norm", (dtype, order, asked), functools.partial(torch.linalg.vector_norm, x, order, dtype=asked)
        yield "foreach_norm", (dtype, order, asked), functools.partial(torch._foreach_norm, [x, x], order, asked)
    for dtype, of_weight, of_bias in itertools.product(ALL, (None, *ALL), (None, *ALL)):
        tensors = [of(dtype, 3, 4), *(None if d is None else of(d, 4) for d in (of_weight, of_bias))]

        def differentiated(tensors=tensors):
            x, w, b = (t if t is None or not t.is_floating_point() else t.clone().requires_grad_() for t in tensors)
            wanted = [t for t in (x, w, b) if t is not None and t.requires_grad]
            return torch.autograd.grad(F.layer_norm(x, (4,), w, b).sum(), wanted)

        yield "layer_norm", (dtype, of_weight, of_bias), differentiated
        yield "rms_norm", (dtype, of_weight), functools.partial(F.rms_norm, tensors[0], (4,), tensors[1])


def losses():
    for dtype, of_target, of_weight, reduction in itertools.product(ALL, ALL, (None, *ALL), ("none", "mean")):
        weight = None if of_weight is None else of(of_weight, 4)
        for loss, shape in itertools.product((F.nll_loss, F.cross_entropy), ((3, 4), (3, 4, 2, 2))):
            target = of(of_target, shape[0], *shape[2:])
            call = functools.partial(loss, of(dtype, *shape), target, weight, reduction=reduction)
            yield loss.__name__, (dtype, of_target, of_weight, reduction, shape), call
    for shape, of_target, of_weight, label in itertools.product(
        ((3, 4), (4,), (3, 4, 2), (0, 4), ()),
        ((3,), (), (3, 2), (4,), (0,)),
        (None, (4,), (3,), (), (1, 4)),
        (0, 9, -1),
    ):
        weight = None if of_weight is None else torch.ones(of_weight)
        for loss in (F.nll_loss, F.cross_entropy):
            call = functools.partial(loss, torch.ones(shape), torch.full(of_target, label), weight)
            yield loss.__name__, (shape, of_target, of_weight, label), call


def scatters():
    for dtype, of_source, of_index in itertools.product(ALL, ALL, (torch.int64, torch.int32, torch.bool)):
        x, source, index = of(dtype, 3, 4), of(of_source, 3, 4), of(of_index, 3)
        each = index[:, None].expand(3, 4)
        for name, call in {
            "index_add": lambda x=x, i=index, s=source: torch.index_add(x, 0, i, s),
            "scatter_add": lambda x=x, i=each, s=source: torch.scatter_add(x, 0, i, s),
            "scatter_reduce": lambda x=x, i=each, s=source: torch.scatter_reduce(x, 0, i, s, "mean"),
            "index_reduce": lambda x=x, i=index, s=source: torch.index_reduce(x, 0, i, s, "prod"),
            "index_put": lambda x=x, i=index, s=source: torch.index_put(x, (i,), s, True),
            "bincount": lambda i=index, s=source: torch.bincount(i, s[:, 0]),
            "embedding_bag": lambda x=x, i=index: F.embedding_bag(i, x, torch.tensor([0]), mode="sum"),
            "segment_reduce": lambda x=x, i=index: torch.segment_reduce(x, "sum", lengths=i),
        }.items():
            yield name, (dtype, of_source, of_index), call


@pytest.mark.parametrize("calls", [reductions, norms, losses, scatters])
def test_torchs_errors_stay(calls):
    """Of wrong dtypes, dims, shapes and labels: the same exception, but for those that the page lists."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, arguments, call in calls():
            torchs, ours = raised(call), tr.enabled(**ON)(raised)(call)
            if str(torchs).startswith(VANISHED):
                continue
            assert (type(ours), str(ours)) == (type(torchs), str(torchs)), (name, arguments)


def raised(call):
    try:
        call()
    except Exception as error:
        return error
    return None


def test_errors_that_vanish_are_listed():
    page = (Path(__file__).parents[1] / "docs" / "dropin.md").read_text()
    assert "`argmax` and `argmin` of bool work" in page and "`logsumexp` over the dims `()`" in page
    with tr.enabled(**ON):
        assert torch.tensor([False, True]).argmax() == 1 and torch.ones(1, 1).logsumexp(()) == 1


# ---- from Python -----------------------------------------------------------------------------------------------------

FROM_PYTHON = """
    import pathlib, warnings
    exists = pathlib.Path.exists
    pathlib.Path.exists = lambda self: "_aten" not in self.name and exists(self)
    warnings.simplefilter("ignore")
    import torch, torch.nn.functional as F, torchreduce as tr
    tr.enable(cpu=True)
    x, t = torch.randn(5, 7, requires_grad=True), torch.arange(5)
    for reduction in ("none", "mean", "sum"):
        F.nll_loss(x, t, torch.ones(7), reduction=reduction).sum().backward()
    torch.compile(lambda x, t: F.cross_entropy(x, t) + x.sum(), backend="aot_eager")(x, t).backward()
    print(tr.coverage("nll_loss"))
    print({why for row in tr.coverage().values() for why, n in row.items() if n})
    for call in (lambda: torch.mean(torch.ones(3, 2).short(), 0, out=torch.empty(2)),
                 lambda: F.nll_loss(x, t + 9, torch.ones(3))):
        try:
            call()
        except RuntimeError as error:
            print(repr(str(error)[:20]))
"""


def test_the_same_from_python_for_another_torch():
    done = python(FROM_PYTHON)
    assert done.returncode == 0, done.stderr
    counts, ways, *errors = map(ast.literal_eval, done.stdout.strip().split("\n"))
    assert counts["served"] >= 6 and ways == {"served"}
    assert errors == ["mean(): could not in", "weight tensor should"]


def test_a_plugin_of_vllm_enables_nothing_that_the_environment_does_not(monkeypatch):
    """vLLM calls it in each of its processes; it may be called again."""
    tables = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    module, name = re.search(r'"vllm\.general_plugins"\].*\ntorchreduce = "([\w.]+):(\w+)"', tables).groups()
    plugin = getattr(importlib.import_module(module), name)
    monkeypatch.delenv("TORCHREDUCE_ENABLE", raising=False)
    plugin()
    assert not tr.is_enabled()
    monkeypatch.setenv("TORCHREDUCE_ENABLE", "cpu")
    for _ in range(2):
        plugin()
        assert tr.is_enabled("cpu")
    tr.disable()


POOLS = {
    "avg_pool1d": lambda x: F.avg_pool1d(x.flatten(2), 3, 2, 1),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    "avg_pool3d": lambda x: F.avg_pool3d(x.unflatten(1, (2, -1)), (1, 3, 3), (1, 2, 2), (0, 1, 1)),
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x.flatten(2), 7),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, (5, 3)),
    "adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x.unflatten(1, (2, -1)), (2, 5, 3)),
}


@pytest.mark.parametrize("name", POOLS)
def test_torchs_pools_do_not_depend_on_the_batch_on_a_cpu(name):
    """As promises() says of torch's own."""
    x = torch.randn(16, 6, 17, 13, generator=torch.Generator().manual_seed(0))
    threads, results = torch.get_num_threads(), []
    for n, layout, used in itertools.product((16, 4, 1), (torch.contiguous_format, torch.channels_last), (1, 2)):
        torch.set_num_threads(used)
        part = x[:n].contiguous(memory_format=layout).requires_grad_()
        y = POOLS[name](part)
        (gradient,) = torch.autograd.grad(y, part, y.detach().cos())
        results.append((y[0].detach(), gradient[0]))
    torch.set_num_threads(threads)
    for result in results[1:]:
        for a, b in zip(result, results[0], strict=True):
            assert_bitwise_equal(a, b)
    assert "torch's" in tr.promises(name).eager
