"""The override of scatters: torch's calls have the bits of torchreduce's, with gradients, in graphs, and in torch's
deterministic mode; what is not covered stays torch's; and they may be left to torch."""

import itertools

import pytest
import torch
from test_override import ON, run
from test_scatters import numbers

import torchreduce as tr
from torchreduce.override import rules, table
from torchreduce.testing import assert_bitwise_equal, make_input

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def calls(device, dtype=torch.float32, n=600):
    """By the row of the table: torch's call, and torchreduce's, of self."""
    index, place = numbers(n, 12, 1, 3).to(device), numbers(n, 60, 2).to(device) - 30
    each = torch.stack([numbers(n, 12, c, 1 + c) for c in range(5)], 1).to(device)
    source = make_input((n, 5), dtype, 3).to(device)
    by_rows = index[:, None].expand(n, 5)
    return {
        "index_add": (lambda x: x.index_add(0, index, source, alpha=-0.5),
                      lambda x: tr.index_add(x, 0, index, source, alpha=-0.5)),
        "scatter_add": (lambda x: x.scatter_add(0, each, source), lambda x: tr.scatter_add(x, 0, each, source)),
        "scatter_add of rows": (lambda x: x.scatter_add(0, by_rows, source),
                                lambda x: tr.index_add(x, 0, index, source)),
        "scatter_add of a part": (lambda x: x.scatter_add(1, each[:9, :3] % 5, source),
                                  lambda x: tr.scatter_add(x, 1, each[:9, :3] % 5, source)),
        **{f"scatter_reduce {reduce} {include}": (
            lambda x, r=reduce, i=include: x.scatter_reduce(0, each, source, r, include_self=i),
            lambda x, r=reduce, i=include: tr.scatter_reduce(x, 0, each, source, r, include_self=i),
        ) for reduce, include in itertools.product(("sum", "mean", "prod", "amax", "amin"), (True, False))},
        **{f"index_reduce {reduce}": (lambda x, r=reduce: x.index_reduce(0, index, source, r),
                                      lambda x, r=reduce: tr.index_reduce(x, 0, index, source, r))
           for reduce in ("mean", "prod", "amax", "amin")},
        "scatter add": (lambda x: x.scatter(0, each, source, reduce="add"),
                        lambda x: tr.scatter_add(x, 0, each, source)),
        "scatter multiply": (lambda x: x.scatter(0, each, source, reduce="multiply"),
                             lambda x: tr.scatter_reduce(x, 0, each, source, "prod")),
        "index_put": (lambda x: x.index_put((index - 12,), source, accumulate=True),
                      lambda x: tr.index_add(x, 0, index, source)),
        "index_put of two": (lambda x: x.index_put((index, each[:, 0] % 5), source[:, 0], accumulate=True),
                             lambda x: tr.index_put(x, (index, each[:, 0] % 5), source[:, 0], accumulate=True)),
        "index_put of the last": (lambda x: torch.ops.aten.index_put(x, [None, index[:9] % 5], source[:12, :1], True),
                                  lambda x: tr.index_put(x, (None, index[:9] % 5), source[:12, :1], accumulate=True)),
        "put": (lambda x: x.put(place, source[:, 0], accumulate=True),
                lambda x: tr.put(x, place, source[:, 0], accumulate=True)),
    }  # fmt: skip


def total(why="served"):
    """Calls of scatters."""
    names = {name for row in table.SCATTERS for name in row.overloads.split()}
    return sum(counts[why] for name, counts in tr.coverage().items() if name in names)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_scatters_have_torchreduces_bits(device, dtype):
    own = make_input((12, 5), dtype, 0).to(device)
    apart = torch.zeros(5, 14, dtype=dtype, device=device)[:, 1:13].t()
    for name, (torchs, ours) in calls(device, dtype).items():
        expected, before = ours(own), total()
        with tr.enabled(**ON):
            assert_bitwise_equal(torchs(own), expected)
            assert_bitwise_equal(torchs(apart.copy_(own)), expected)
        assert total() == before + 2, name


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_an_element_depends_on_those_that_meet_there_alone(device, dtype):
    """Not on what else is added, where, nor on the number of threads."""
    own, source = make_input((12, 5), dtype, 0).to(device), make_input((9000, 5), dtype, 3).to(device)
    index = numbers(9000, 12, 1, 3).to(device)
    threads = torch.get_num_threads()
    for columns, torchs in itertools.product((1, 5), (False, True)):
        x, s = own[:, :columns], source[:, :columns]

        def add(x, i, s, torchs=torchs):
            with tr.enabled(**ON):
                return x.index_add(0, i, s) if torchs else tr.index_add(x, 0, i, s)

        whole = add(x, index, s)
        for k in range(12):
            met = index == k
            assert_bitwise_equal(add(x[k : k + 1], index[met] - k, s[met]), whole[k : k + 1])
        try:
            for number in (1, 2, 3):
                torch.set_num_threads(number)
                assert_bitwise_equal(add(x, index, s), whole)
                assert_bitwise_equal(add(x.contiguous(), index, s.contiguous()), whole)
        finally:
            torch.set_num_threads(threads)


def test_scatters_in_place_and_with_out(device):
    own, source = make_input((12, 5), torch.float32, 0).to(device), make_input((600, 5), torch.float32, 3).to(device)
    index = numbers(600, 12, 1, 3).to(device)
    each = torch.stack([numbers(600, 12, c, 1 + c) for c in range(5)], 1).to(device)
    inside = torch.zeros(14, 9, device=device)
    for name, arguments in (
        ("index_add", (0, index, source)),
        ("scatter_add", (0, each, source)),
        ("scatter_add", (0, each[:, :2], source)),
        ("scatter_reduce", (0, each, source, "prod")),
        ("index_reduce", (0, index, source, "mean")),
    ):
        expected = getattr(tr, name)(own, *arguments)
        with tr.enabled(**ON):
            for x in (own.clone(), inside[1:13, 2:7].copy_(own), own.t().contiguous().t()):
                assert getattr(x, f"{name}_")(*arguments) is x
                assert_bitwise_equal(x, expected)
            for out in (torch.empty_like(own), own.new_empty(0), own.t().contiguous().t(), own.clone()):
                assert getattr(torch, name)(own, *arguments, out=out) is out
                assert_bitwise_equal(out, expected)
            x = own.clone()
            getattr(torch, name)(x, *arguments, out=x)
            assert_bitwise_equal(x, expected)
    assert inside.count_nonzero() <= 60


GRADIENTS = {
    "gather": lambda x, i, e: x.gather(0, e),
    "take_along_dim": lambda x, i, e: torch.take_along_dim(x, e, 0),
    "index_select": lambda x, i, e: x.index_select(0, i),
    "repeat_interleave": lambda x, i, e: x.repeat_interleave(torch.arange(12, device=x.device) + 2, 0),
    "indexing": lambda x, i, e: x[i],
    "indexing of two": lambda x, i, e: x[i, e[:, 0] % 5],
    "take": lambda x, i, e: x.take(i),
}


def gradient_of_gather(name, x, i, e, g):
    """By tr.sum, place by place: where each element of the result comes from, in row-major order."""
    place = GRADIENTS[name](torch.arange(x.numel(), device=x.device).reshape(x.shape), i, e).reshape(-1)
    out = torch.zeros_like(x).reshape(-1)
    for k in place.unique().tolist():
        out[k] = tr.sum(g.reshape(-1)[place == k])
    return out.reshape(x.shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_gathers(device, name, dtype):
    x = make_input((12, 5), dtype, 0).to(device).requires_grad_()
    i, e = numbers(90, 12, 1, 3).to(device), torch.stack([numbers(90, 12, c) for c in range(5)], 1).to(device)
    before = total()
    with tr.enabled(**ON):
        y = GRADIENTS[name](x, i, e)
        g = make_input(tuple(y.shape), dtype, 5).to(device)
        (got,) = torch.autograd.grad(y, x, g)
    assert total() == before + 1
    assert_bitwise_equal(got, gradient_of_gather(name, x.detach(), i, e, g))


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_in_deterministic_mode_no_scatter_raises(device, deterministic):
    """torch's own put and index_reduce do, on GPUs."""
    own = make_input((12, 5), torch.float32, 0).to(device)
    for name, (torchs, ours) in calls(device).items():
        before = total()
        with tr.enabled(**ON):
            assert_bitwise_equal(torchs(own), ours(own))
            assert_bitwise_equal(torchs(own), ours(own))
        assert total() == before + 2, name
    i, e = numbers(90, 12, 1, 3).to(device), torch.stack([numbers(90, 12, c) for c in range(5)], 1).to(device)
    for f in GRADIENTS.values():
        x = own.clone().requires_grad_()
        with tr.enabled(**ON):
            first, again = (torch.autograd.grad(f(x, i, e).sin().sum(), x)[0] for _ in range(2))
        assert_bitwise_equal(first, again)


def test_sixteen_bits_are_rounded_once():
    ones, zeros = torch.ones(4096, dtype=torch.bfloat16), torch.zeros(4096, dtype=torch.int64)
    own = torch.zeros(1, dtype=torch.bfloat16)
    assert own.index_add(0, zeros, ones).item() == 256  # torch's
    with tr.enabled(**ON):
        assert own.index_add(0, zeros, ones).item() == 4096
        assert own.index_reduce(0, zeros, 3 * ones, "mean", include_self=False).item() == 3


def test_why_a_scatter_goes_to_torch():
    x, i, s = torch.zeros(3, 2), torch.tensor([0, 2, 0, 1]), torch.ones(4, 2)
    e = i[:, None].expand(4, 2)

    def why(overload, f):
        before = tr.coverage()[overload]
        with tr.enabled(**ON):
            try:
                got = f()
            except (IndexError, RuntimeError) as error:
                got = str(error)
        after = tr.coverage()[overload]
        try:
            torchs = f()
        except (IndexError, RuntimeError) as error:
            torchs = str(error)
        assert got == torchs if isinstance(got, str) else torch.equal(got, torchs)
        return {key for key in after if after[key] != before[key]}

    assert why("index_add", lambda: x.index_add(0, i, s)) == {"served"}
    assert why("index_add", lambda: x.long().index_add(0, i, s.long())) == {"dtype"}
    assert why("index_add", lambda: x.cfloat().index_add(0, i, s.cfloat())) == {"dtype"}
    assert why("index_add", lambda: x.index_add(0, i, s.half())) == {"dtype"}
    assert why("index_add", lambda: x.index_add(0, i, s[:3])) == {"dims"}
    assert why("index_add", lambda: x.index_add(0, i + 1, s)) == {"dims"}
    assert why("index_add", lambda: x.index_add(5, i, s)) == {"dims"}
    assert why("scatter_add", lambda: x.scatter_add(0, e, s)) == {"served"}
    assert why("scatter_add", lambda: x.scatter_add(0, -1 - e, s)) == {"dims"}
    assert why("scatter_add", lambda: x.scatter_add(0, e, s[:2])) == {"dims"}
    assert why("scatter_add_", lambda: x[:2].clone().expand(2, 2).scatter_add_(0, e[:2] % 2, s)) == {"served"}
    assert why("scatter_add_", lambda: torch.zeros(3, 1).expand(3, 2).scatter_add_(0, e, s)) == {"out"}
    assert why("index_add_", lambda: (lambda t: t[:3].index_add_(0, i, t[:4]))(torch.ones(5, 2))) == {"out"}
    assert why("scatter_add.out", lambda: torch.scatter_add(x, 0, e, s, out=torch.empty(3, 2).half())) == {"out"}
    assert why("scatter_reduce.two", lambda: x.scatter_reduce(0, e, s, "max")) == {"option"}
    assert why("index_reduce", lambda: x.index_reduce(0, i, s, "sum")) == {"option"}
    assert why("_index_put_impl_", lambda: x.index_put((i,), s)) == {"option"}
    assert why("_index_put_impl_", lambda: x.index_put((x == 0,), s[0, 0], accumulate=True)) == {"dtype"}
    assert why("_index_put_impl_", lambda: x.index_put((i + 7,), s, accumulate=True)) == {"dims"}
    assert why("_index_put_impl_", lambda: x.index_put((i, i[:3] % 2), s[0, 0], accumulate=True)) <= {"dims"}
    assert why("put_", lambda: x.put(i, s[:, 0])) == {"option"}
    assert why("put_", lambda: x.put(i + 9, s[:, 0], accumulate=True)) == {"dims"}
    assert why("put_", lambda: x[:0].put(i[:0], s[:0, 0], accumulate=True)) == {"empty"}


def test_scatters_may_be_left_to_torch():
    x, i, s = torch.zeros(3, 2), torch.tensor([0, 2, 0, 1]), torch.ones(4, 2)
    for name, f in (
        ("scatter_add", lambda: x.scatter_add(0, i[:, None].expand(4, 2), s)),
        ("index_put", lambda: x.index_put((i,), s, accumulate=True)),
    ):
        for excluded, calls_served in ((("index_add",), 1), ((name, "put"), 0), ((), 1)):
            before = total()
            with tr.enabled(**ON, exclude=excluded):
                f()
            assert total() == before + calls_served
    with tr.enabled(**ON, exclude=("index_add", "scatter_add")):  # torch's own index_add calls scatter_add on a CPU
        before = total()
        with tr.enabled(**ON):
            x.index_add(0, i, s)
        x.index_add(0, i, s)
    x.index_add(0, i, s)
    assert total() == before + 1
    with pytest.raises(ValueError, match=r"enable\(\): exclude must have names of index_add, .*, got 'sum'"):
        tr.enable(exclude=["sum"])
    with pytest.raises(TypeError, match=r"enable\(\): argument 'exclude' must be a sequence of str, got 'put'"):
        tr.enable(exclude="put")
    with pytest.raises(TypeError, match=r"enable\(\): argument 'exclude' must be a sequence of str, got 3"):
        tr.enable(exclude=3)
    assert not tr.is_enabled()


def test_a_compiled_scatter_follows_what_is_excluded():
    x, i, s = torch.zeros(3), torch.tensor([0, 2, 0, 0, 0]), torch.tensor([1.0, 1.0, *[2.0**-24] * 3])
    f = torch.compile(lambda x: x.index_add(0, i, s), fullgraph=True)
    torchs = f(x)
    for exclude, ours in (((), True), (("index_add",), False), ((), True), (("put",), True)):
        with tr.enabled(cpu=True, exclude=exclude):
            assert torch.equal(f(x), tr.index_add(x, 0, i, s) if ours else torchs)
    assert not torch.equal(torchs, tr.index_add(x, 0, i, s))


def test_every_name_of_a_scatter_is_known():
    for op, names in table.SCATTERED.items():
        assert names <= {*rules.GRAPH_RULES, *rules.WRITING}, op
        assert "torchreduce's" in tr.promises(op).eager


FROM_PYTHON = """
    import pathlib, warnings, torch, torchreduce as tr
    exists = pathlib.Path.exists
    pathlib.Path.exists = lambda self: "_aten" not in self.name and exists(self)
    warnings.simplefilter("ignore")
    from test_override_scatters import calls, total
    own = torch.randn(12, 5)
    with tr.enabled(cpu=True, compile=False):
        for name, (torchs, ours) in calls("cpu").items():
            before = total()
            assert torch.equal(torchs(own), ours(own)), name
            assert total() > before, name
        x = own.clone().requires_grad_()
        i = torch.arange(90) % 12
        (got,) = torch.autograd.grad(x[i].sin().sum(), x)
        assert torch.equal(got, tr.index_add(torch.zeros_like(x), 0, i, x[i].cos()))
        y = own.clone()
        assert y.index_add_(0, i, x[i]) is y and torch.equal(y, tr.index_add(own, 0, i, x[i]))
        try:
            own.index_add(0, i + 1, own[i])
        except (IndexError, RuntimeError) as error:
            print("refused" if "torchreduce" not in str(error) else error)
    with tr.enabled(cpu=True, compile=False, exclude=["index_add", "scatter_add"]):
        before = total()
        own.index_add(0, i, own[i])
        print(total() - before)
"""


def test_the_same_from_python_for_another_torch():
    assert run(FROM_PYTHON) == ["refused", "0"]
