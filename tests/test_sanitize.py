"""One small case for each kernel family and class of op, so that memcheck and racecheck see every kernel.

Run as: compute-sanitizer --tool memcheck python -m pytest -m sanitize tests
"""

import math

import pytest
import reference_segments
import torch
from cases import LAYOUTS, OURS, misaligned, values
from test_plan_columns import FAMILIES
from test_plan_layouts import VIEWS

import torchreduce as tr
from torchreduce import _C
from torchreduce.testing import assert_bitwise_equal, force_plan

pytestmark = pytest.mark.sanitize

CLASSES = (
    ("sum", {}, torch.float32),
    ("sum", {}, torch.bfloat16),
    ("sum", {"dtype": torch.float64}, torch.float16),
    ("sum", {"dtype": torch.bool}, torch.int16),
    ("mean", {}, torch.float64),
    ("amax", {}, torch.float16),
    ("amin", {}, torch.uint8),
    ("max", {}, torch.float32),
    ("argmin", {}, torch.int64),
    ("nansum", {}, torch.bfloat16),
    ("norm2", {}, torch.float32),
    ("norm_greatest", {}, torch.float16),
    ("prod", {}, torch.float32),
    ("prod", {}, torch.bfloat16),
    ("prod", {}, torch.int32),
    ("count_nonzero", {}, torch.float32),
    ("any", {}, torch.bfloat16),
    ("all", {}, torch.bool),
)
REDUCE = (
    {},
    {"family": "strided"},
    {"family": "strided", "lanes": 32, "warps": 1, "leaves": 1},
    {"family": "strided", "lanes": 32, "warps": 8, "leaves": 1},
    {"family": "strided", "lanes": 32, "warps": 2, "leaves": 4},
    {"family": "rows"},
    {"family": "rows", "rows": 2},
    {"family": "rows", "rows": 0, "warps": 1, "leaves": 1},
    {"family": "rows", "rows": 0, "warps": 2, "leaves": 2},
    {"family": "few_rows"},
    {"family": "few_rows", "warps": 1},
    {"family": "packed_rows"},
    {"family": "columns"},
    {"family": "columns", "lanes": 1, "leaves": 1},
    {"family": "columns", "lanes": 8, "leaves": 2},
)
SCAN = (
    {},
    *({"family": family} for family in _C.scan_families()),
    *({"family": family, "vector_loads": False} for family in ("short_rows", "rows", "chain", "column_tiles")),
)
SCANS = (
    ("cumsum", {}, torch.float32),
    ("cumsum", {}, torch.bfloat16),
    ("cumsum", {}, torch.float64),
    ("cumsum", {}, torch.int32),
    ("cumsum", {"dtype": torch.int8}, torch.int8),
    ("cumsum", {"exclusive": True}, torch.float16),
    ("cumsum", {"reverse": True, "dtype": torch.float64}, torch.float32),
    ("cumprod", {}, torch.float32),
    ("cumprod", {"exclusive": True, "dtype": torch.float64}, torch.bfloat16),
    ("cumprod", {"reverse": True}, torch.int16),
    ("logcumsumexp", {}, torch.float64),
    ("logcumsumexp", {"exclusive": True}, torch.float16),
    ("cummax", {}, torch.float32),
    ("cummax", {"reverse": True}, torch.bfloat16),
    ("cummin", {}, torch.uint8),
)


def on_each(plans):
    """On a GPU every forced plan; on the CPU, where a plan says no more than that, lanes along rows and across them."""
    cpu = [pytest.param("cpu", {"family": family}, id=f"cpu-{family}") for family in ("rows", "columns")]
    cuda = [pytest.param("cuda", plan, id=f"cuda-{plan}", marks=pytest.mark.gpu) for plan in plans]
    return pytest.mark.parametrize("device, forced", cpu + cuda)


def on(device, family):
    """The family where it is forced: the CPU has but two."""
    return family if device == "cuda" else "columns"


# Of many blocks on 132 multiprocessors: the CPU has the same calls in fewer elements elsewhere.
on_a_gpu = pytest.mark.parametrize("device", [pytest.param("cuda", marks=pytest.mark.gpu)])
CASES = (((3, 5), 1), ((5, 3), 0), ((2, 6151), 1), ((6151, 3), 0), ((17, 257), 1), ((257, 17), 0))
LONG = (((1, 3 * 8192 + 5), 1), ((2 * 8192 + 5, 2), 0))


def check(name, x, dim, options, forced, device):
    """The same bits as on the CPU, where nothing is forced."""
    expected = getattr(OURS, name)(x, dim, **options)
    for layout in ("contiguous", "misaligned", "sliced"):
        view = LAYOUTS[layout](x.to(device))
        with force_plan(**forced):
            try:
                result = getattr(OURS, name)(view, dim, **options)
            except ValueError:  # these serve some types, layouts and devices only
                assert forced["family"] not in ("columns", "column_tiles")
                continue
        assert_bitwise_equal(result, expected)


@on_each(REDUCE)
@pytest.mark.parametrize("name, options, dtype", CLASSES)
def test_reductions(device, name, options, dtype, forced):
    for shape, dim in CASES:
        check(name, values(shape, dtype, seed=1), dim, options, forced, device)


@on_a_gpu
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("name", ("sum", "norm", "argmax"))
def test_rows_whose_neighbours_are_apart_in_memory(device, name, dtype):
    apart = [((49, 300), (1, 0)), ((2500, 41), (1, 0)), ((9000, 3), (1, 0)), ((6, 2100, 24), (0, 2, 1))]
    for shape, order in [*apart, ((70, 9, 50), (1, 2, 0))]:
        x = values(shape, dtype, seed=1)
        expected = getattr(tr, name)(x.permute(order))
        for leaves in (1, 4):
            with force_plan(family="transposed_rows", leaves=leaves):
                assert_bitwise_equal(getattr(tr, name)(x.to(device).permute(order)), expected)
                assert_bitwise_equal(getattr(tr, name)(misaligned(x.to(device)).permute(order)), expected)


@on_a_gpu
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("case", VIEWS, ids=lambda case: f"{case[0]} over {case[2]} by {case[3]}")
def test_views(device, case, dtype):
    """As planned and by each family, at the first element of an allocation and at the second."""
    shape, view, dims, _ = case
    for offset in (0, 1):
        x = values((math.prod(shape) + offset,), dtype, seed=1)
        y = view(x.to(device)[offset:].view(shape))
        expected = tr.sum(view(x[offset:].view(shape)), dims)
        assert_bitwise_equal(tr.sum(y, dims).cpu(), expected)
        for family in (*FAMILIES, "strided"):
            with force_plan(family=family):
                try:
                    actual = tr.sum(y, dims)
                except ValueError:  # it cannot
                    continue
            assert_bitwise_equal(actual.cpu(), expected)


@on_each(SCAN)
@pytest.mark.parametrize("name, options, dtype", SCANS)
def test_scans(device, name, options, dtype, forced):
    for shape, dim in CASES + LONG:
        check(name, values(shape, dtype, seed=1), dim, options, forced, device)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("shape", ((1700, 9), (190, 8197)), ids=str)
def test_blocks_that_stay(device, shape, dtype):
    """More block tiles than a block of the pipeline has stages, twice over, on 132 multiprocessors."""
    for options in ({}, {"reverse": True}):
        for name in ("cumsum", "cumprod", "logcumsumexp"):
            check(name, values(shape, dtype, seed=1), 1, options, {"family": on(device, "ring")}, device)
        check("cumsum", values((3500, 8, 2), dtype, seed=1), 1, options, {"family": on(device, "ring_columns")}, device)


@on_a_gpu
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_blocks_that_stay_for_several_rows(device, dtype):
    """Whose stages are loaded again while their results wait for a carry, on 132 multiprocessors."""
    for options in ({}, {"reverse": True}, {"exclusive": True}):
        check("cumsum", values((400, 16_389), dtype, seed=1), 1, options, {"family": "ring"}, device)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16))
def test_few_columns(device, dtype):
    """By parts of a quarter and of an eighth of a block tile."""
    for shape, dim in (((20_000, 5), 0), ((3, 9000, 6), 1), ((10_000, 7), 0)):
        for options in ({}, {"reverse": True}, {"exclusive": True}):
            forced = {"family": on(device, "ring_columns")}
            check("cumsum", values(shape, dtype, seed=1), dim, options, forced, device)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_rows_of_a_few_elements(device, dtype):
    """Of which a lane takes several: two blocks of them and a part of a third."""
    for n in (1, 3, 4, 7):
        for options in ({}, {"reverse": True}, {"exclusive": True}):
            for name in ("cumsum", "cumprod"):
                check(name, values((4500, n), dtype, seed=1), 1, options, {}, device)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_columns_whose_rows_start_anywhere(device, dtype):
    """From the first byte of their memory to the last, and in the middle of it; strips of whole sectors, the last one
    of 9 columns."""
    for shape, dim in (((600, 167), 0), ((2, 300, 133), 1), ((300, 1801), 0)):
        for options in ({}, {"reverse": True}, {"exclusive": True}):
            check("cumsum", values(shape, dtype, seed=1), dim, options, {}, device)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16))
def test_strips_of_columns(device, dtype):
    """Strips that blocks share: rows of 16 to 128 bytes, a part of a strip, batches, and rows of a wider matrix."""
    line = 128 // dtype.itemsize
    for shape, dim in (((1100, line // 8), 0), ((2600, line // 4), 0), ((8500, line // 2), 0), ((600, line), 0),
                       ((300, 34 * line - line // 8), 0), ((3, 700, 2 * line), 1)):  # fmt: skip
        for options in ({}, {"reverse": True}, {"exclusive": True}, {"exclusive": True, "reverse": True}):
            check("cumsum", values(shape, dtype, seed=1), dim, options, {}, device)
    wide = values((1030, 4 * line), dtype, seed=1)
    for part in (slice(line, 3 * line), slice(line // 4, line // 2)):
        assert_bitwise_equal(tr.cumsum(wide.to(device)[:, part], 0), tr.cumsum(wide[:, part], 0))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_columns_with_indices(device, dtype):
    """Tiles of one strip or of three, of batches, and of more than a block tile of them."""
    for shape, dim in (((3000, 7), 0), ((9000, 16), 0), ((8500, 64), 0), ((600, 100), 0), ((3, 700, 66), 1)):
        for options in ({}, {"reverse": True}):
            forced = {"family": on(device, "extreme_columns")}
            check("cummax", values(shape, dtype, seed=1), dim, options, forced, device)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("name", ("cumprod", "logcumsumexp"))
def test_tiles_of_columns(device, name, dtype):
    """Of one strip or of three, of batches, several a block, and of more than a block tile of them."""
    for shape, dim in (((3000, 7), 0), ((9000, 16), 0), ((8500, 64), 0), ((600, 100), 0), ((3, 700, 66), 1)):
        for options in ({}, {"reverse": True}, {"exclusive": True}):
            forced = {"family": on(device, "column_tiles")}
            check(name, values(shape, dtype, seed=1), dim, options, forced, device)


def linear_scans(device, shape, dim, dtype, **forced):
    """The same bits as on the CPU, from either end."""
    a, b = values(shape, dtype, seed=1).tanh(), values(shape, dtype, seed=2)
    for reverse in (False, True):
        with force_plan(**forced):
            result = tr.linear_scan(a.to(device), b.to(device), dim, reverse=reverse)
        assert_bitwise_equal(result, tr.linear_scan(a, b, dim, reverse=reverse))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_tiles_of_columns_of_two_inputs(device, dtype):
    """As above; and of cumsum, whose accumulators are small, where rows are no whole sectors."""
    for shape, dim in (((3000, 7), 0), ((9000, 16), 0), ((8500, 64), 0), ((600, 100), 0), ((3, 700, 66), 1)):
        family = on(device, "column_tiles")
        linear_scans(device, shape, dim, dtype, family=family)
        check("cumsum", values(shape, dtype, seed=1), dim, {}, {"family": family}, device)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float64))
def test_odd_rows_of_two_inputs(device, dtype):
    """Held as a whole, their results stored by way of shared memory: rows among others, the first and the last."""
    for shape in ((300, 17), (300, 100), (90, 250), (70, 1001), (9, 4097), (2, 100)):
        linear_scans(device, shape, 1, dtype)


@on_a_gpu
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_blocks_of_two_inputs_that_stay(device, dtype):
    """More block tiles than a block of their pipeline has stages, on 132 multiprocessors."""
    linear_scans(device, (400, 8200), 1, dtype, family="ring_pairs")


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16))
def test_rows_of_two_block_tiles(device, dtype):
    """A block each."""
    for n in (8200, 12344, 16384):
        for options in ({}, {"reverse": True}, {"exclusive": True}):
            check("cumsum", values((3, n), dtype, seed=1), 1, options, {}, device)


@on_a_gpu
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_blocks_that_share_strips_for_long(device, dtype):
    """More jobs than the blocks have stages for, on 132 multiprocessors."""
    x = values((26 * 256 - 3, 33 * 128 // dtype.itemsize), dtype, seed=1)
    assert_bitwise_equal(tr.cumsum(x.to(device), 0), tr.cumsum(x, 0))


@on_a_gpu
@pytest.mark.parametrize("dtype, columns", ((torch.float32, 16896), (torch.bfloat16, 33792), (torch.bfloat16, 16896)))
def test_blocks_that_walk_down_columns(device, dtype, columns):
    """A strip for each block on 132 multiprocessors, in tiles or halves of them."""
    x = values((600, columns), dtype, seed=1)
    assert_bitwise_equal(tr.cumsum(x.to(device), 0), tr.cumsum(x, 0))


@on_a_gpu
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16, torch.float64))
def test_lanes_that_walk_down_columns(device, dtype):
    """A block of them a multiprocessor, of 132; two tiles and a part of a group; in teams, and each alone."""
    for family in ("column_walk", *(("column_teams",) if dtype.itemsize < 8 else ())):
        linear_scans(device, (517, 16896), 0, dtype, family=family)
    x = values((517, 16896), dtype, seed=2)
    for options in ({}, {"reverse": True}):
        check("cummax", x, 0, options, {"family": "column_walk"}, device)


@on_each(SCAN)
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_decayed_sums(device, dtype, forced):
    for shape, dim in CASES + LONG:
        g, x = values(shape, dtype, seed=1), values(shape, dtype, seed=2)
        inputs = g, x, tr.logcumsumexp(x, dim)
        expected = torch.ops.torchreduce.decayed_sum(*inputs, dim, True, 0)
        with force_plan(**forced):
            try:
                result = torch.ops.torchreduce.decayed_sum(*(t.to(device) for t in inputs), dim, True, 0)
            except ValueError:
                assert forced["family"] not in ("rows", "column_tiles")
                continue
        assert_bitwise_equal(result, expected)


@on_each(SCAN)
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.float16, torch.bfloat16))
def test_linear_scans(device, dtype, forced):
    """a of b's shape, aligned or not, and broadcast; from either end; with a shifted, too, as gradients need it."""
    for turn, (shape, dim) in enumerate(CASES + LONG):
        kept = shape[:dim] + shape[dim + 1 :]
        a, b, initial = values(shape, dtype, seed=1).tanh(), values(shape, dtype, seed=2), values(kept, dtype, seed=3)
        a = a.narrow(1 - dim, 0, 1) if turn % 3 == 2 else a
        start, reverse = (None, initial)[turn % 2], turn % 2 == 0

        def run(a, b, start, dim=dim, reverse=reverse):
            backward = torch.ops.torchreduce.linear_scan.raw(a, b, None, dim, not reverse, True, 0)
            return tr.linear_scan(a, b, dim, initial=start, reverse=reverse), backward

        expected = run(a, b, start)
        for layout in ("contiguous", "misaligned", "sliced"):
            inputs = [None if t is None else LAYOUTS[layout](t.to(device)) for t in (a, b, start)]
            with force_plan(**forced):
                try:
                    result = run(*inputs)
                except ValueError:
                    assert forced["family"] not in ("chain", "column_tiles")
                    continue
            assert_bitwise_equal(result, expected)


def test_outputs_and_overlap(device):
    x = values((3, 9001), torch.float32, seed=2).to(device)
    expected = tr.cumsum(x, 1)
    assert_bitwise_equal(tr.cumsum(x, 1, out=LAYOUTS["transposed"](torch.zeros_like(x))), expected)
    assert_bitwise_equal(tr.cumsum(x, 1, out=x), expected)
    out = torch.zeros(7, device=device)[1::2]
    assert_bitwise_equal(tr.sum(x, 1, out=out), tr.sum(x, 1))


def looked_at_twice(x, dim):
    """Results and gradients of the row-wise functions."""
    n = x.shape[dim]
    labels = torch.arange(x.numel() // n, device=x.device).reshape(x.shape[:dim] + x.shape[dim + 1 :]) % n
    labels.view(-1)[::5] = -100
    calls = [
        lambda x: tr.softmax(x, dim),
        lambda x: tr.log_softmax(x, dim),
        lambda x: tr.logsumexp(x, dim),
        lambda x: tr.entropy(x, dim),
        lambda x: tr.var(x, dim, correction=0),
    ]
    if dim == x.dim() - 1:
        calls += [lambda x: tr.rms_norm(x, n), lambda x: tr.layer_norm(x, n)]
        calls += [lambda x: tr.cross_entropy(x, labels, reduction="none")]
    for call in calls:
        leaf = x.detach().requires_grad_()
        result = call(leaf)
        gradient = (torch.arange(result.numel(), device=x.device) % 7 - 3).to(x.dtype).reshape(result.shape)
        yield result.detach()
        yield from torch.autograd.grad(result, leaf, gradient)


OF_WEIGHTS = {"weight_columns", "norm_gradients"}


FORCED_ROWS = [{"family": family} for family in _C.rowwise_families() if family not in OF_WEIGHTS]


@on_each(({}, *FORCED_ROWS, {"family": "held_rows", "lanes": 32}))  # the last one: few rows as many
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16, torch.float64), ids=str)
def test_rows_looked_at_twice(device, dtype, forced):
    for shape, dim in (
        *CASES,
        ((9, 100), 1),
        ((5, 1024), 1),
        ((3, 4096), 1),
        ((3, 300, 40), 1),
        ((2, 1500, 77), 1),
        ((2, 1100, 136), 1),
    ):
        x = values(shape, dtype, seed=1)
        expected = list(looked_at_twice(x, dim))
        for layout in ("contiguous", "misaligned", "sliced"):
            view = LAYOUTS[layout](x.to(device))
            with force_plan(**forced):
                try:
                    results = list(looked_at_twice(view, dim))
                except ValueError:  # these serve some types, layouts and devices only
                    assert forced["family"] != "strided"
                    continue
            assert_bitwise_equal(tuple(t.cpu() for t in results), tuple(expected))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float64), ids=str)
@pytest.mark.parametrize(
    "rows, n",
    (
        *((5, 8), (300, 40), (4100, 136), (2500, 264), (1, 4096), (40, 5128), (600, 8200), (3, 16384)),
        *((70, 1), (2049, 17), (600, 129), (300, 255), (2500, 257), (40, 2049), (300, 4097), (20, 9358)),  # anywhere
        *((1, 2), (2, 768), (17, 2050), (64, 6146), (255, 1026), (256, 2048), (257, 2048), (3, 16386)),  # few or not
    ),
)
def test_gradients_of_weights(device, dtype, rows, n):
    x, g = values((rows, n), dtype, seed=1), values((rows, n), dtype, seed=2)
    weight, bias = values((n,), dtype, seed=3), values((n,), dtype, seed=4)
    wide = [t.to(torch.promote_types(dtype, torch.float32)) for t in (weight, bias)]

    def run(*inputs):
        x, g, weight, bias = (t.detach().requires_grad_() for t in inputs)
        first = torch.autograd.grad(tr.rms_norm(x, n, weight), (x, weight), g)
        return (*first, *torch.autograd.grad(tr.layer_norm(x, n, weight, bias), (x, weight, bias), g))

    expected = run(x, g, weight, bias)
    found = run(*(t.to(device) for t in (x, g, weight, bias)))
    assert_bitwise_equal(tuple(t.cpu() for t in found), expected)
    found = run(*(t.to(device) for t in (x, g, *wide)))
    assert_bitwise_equal(tuple(t.cpu() for t in found), run(x, g, *wide))
    off = LAYOUTS["misaligned"]
    found = run(off(x.to(device)), *(t.to(device) for t in (g, weight, bias)))  # starts elsewhere than g
    assert_bitwise_equal(tuple(t.cpu() for t in found), expected)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16, torch.float64), ids=str)
@pytest.mark.parametrize("shape", ((3, 8, 7, 7), (300, 16, 3, 2), (70, 40), (2, 24, 50, 21)), ids=str)
def test_norms_over_channels(device, dtype, shape):
    """With channels last or not, and from a place within 16 bytes on."""
    g, x, weight, bias = (values(s, dtype, seed=k) for k, s in enumerate((shape, shape, shape[1:2], shape[1:2])))

    def run(*inputs):
        g, *inputs = (t.detach().requires_grad_() for t in inputs)
        running = [torch.ones(shape[1], device=g.device) for _ in range(2)]
        results = [tr.batch_norm(inputs[0], *running, *inputs[1:], training) for training in (True, False)]
        results.append(tr.group_norm(inputs[0], 4, *inputs[1:]))
        gradients = [t for y in results for t in torch.autograd.grad(y, inputs, g)]
        return (*(t.detach() for t in results), *gradients, *running)

    expected = run(g, x, weight, bias)
    layouts = [LAYOUTS["contiguous"], LAYOUTS["misaligned"]]
    if len(shape) == 4:
        layouts.append(lambda t: t.contiguous(memory_format=torch.channels_last))
    for layout in layouts:
        found = run(layout(g.to(device)), layout(x.to(device)), weight.to(device), bias.to(device))
        assert_bitwise_equal(tuple(t.cpu() for t in found), expected)


@pytest.mark.parametrize("columns", (5, 132))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16, torch.float64), ids=str)
def test_embedding_rows(device, dtype, columns):
    """Once, many times, and more often than a leaf has rows; indices that are no row."""
    counts = torch.tensor([1, 0, 70, 2049, 4200, 3])
    indices = torch.repeat_interleave(torch.arange(6), counts).flip(0).to(device)
    indices[11], indices[12] = -1, 7
    g = values((len(indices), columns), dtype, seed=3).to(device)
    got = torch.ops.torchreduce.embedding_backward.raw(g, indices, 6, 2, 0)
    for i in (0, 3, 4, 5):
        assert_bitwise_equal(got[i], tr.sum(g[indices == i], 0))
    assert not got[[1, 2]].any()


@pytest.mark.parametrize("columns", (1, 4, 37))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float64), ids=str)
def test_segments(device, dtype, columns):
    """By an index and by offsets, some of which are wrong; onto new memory and onto self."""
    lengths = torch.tensor([1, 0, 9, 129, 2049, 4100])
    index = torch.repeat_interleave(torch.arange(6), lengths)
    x = values((len(index), columns), dtype, 8)
    index = index[torch.randperm(len(index), generator=torch.Generator().manual_seed(3))]
    given = tr.segments(index.to(device), 6)
    for name in ("sum", "prod", "max"):
        got = getattr(tr, name)(x.to(device), 0, segments=given)
        wanted = reference_segments.apply(name, x, 0, reference_segments.segments(index, 6))
        assert_bitwise_equal(tuple(got) if isinstance(got, tuple) else got, wanted)
        if device == "cuda":
            wrong = torch.tensor([-3, 40, 2**40, 0, 2000], device=device)
            getattr(tr, name)(x.to(device), 0, segments=wrong)
            tr.index_add(x[:4].to(device), 0, (index - 2).to(device), x.to(device))
    for name in ("softmax", "logsumexp", "cumsum"):
        got = getattr(tr, name)(x.to(device), 0, segments=given)
        assert_bitwise_equal(got, reference_segments.apply(name, x, 0, reference_segments.segments(index, 6)))
    offsets = torch.tensor([2, 3, 3, 12, 2061, len(index) - 1])
    factors, start = values((len(index), columns), dtype, 7).sigmoid(), values((5, columns), dtype, 6)
    for reverse in (False, True):
        got = tr.linear_scan(
            factors.to(device), x.to(device), 0, segments=offsets.to(device), initial=start.to(device), reverse=reverse
        )
        bounds = reference_segments.Segments(offsets)
        assert_bitwise_equal(got, reference_segments.linear_scan(factors, x, 0, bounds, start, reverse))
    if device == "cuda":
        wrong = torch.tensor([-3, 40, 2**40, 0, 2000], device=device)
        tr.softmax(x.to(device), 0, segments=wrong)
        tr.linear_scan(0.5, x.to(device), 0, segments=wrong, initial=1.0)
    own = x[:6].clone()
    got = tr.index_add(own.to(device), 0, index.to(device), x.to(device), alpha=2)
    assert_bitwise_equal(got, reference_segments.index_add(own, 0, index, x, 2))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("longest", (129, 9001))
def test_segments_of_neighbours(device, dtype, longest):
    """By offsets, of one column: short segments, which teams and warps have, and among them one that they list."""
    lengths = [1, 0, 9, 40, 77, 3, 20, 64, 5, longest, 31, 2] * 3
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    x = values((sum(lengths),), dtype, 8)
    for segments in (offsets, offsets[:5]):
        bounds = reference_segments.Segments(segments)
        for name in ("sum", "amax", "softmax", "log_softmax", "logsumexp", "cumsum"):
            got = getattr(tr, name)(x.to(device), 0, segments=segments.to(device))
            assert_bitwise_equal(got, reference_segments.apply(name, x, 0, bounds))
    if device == "cuda":
        wrong = torch.tensor([-3, 40, 2**40, 0, 2000, 7], device=device)
        for name in ("sum", "amax", "softmax", "logsumexp", "cumsum"):
            getattr(tr, name)(x.to(device), 0, segments=wrong)


@pytest.mark.parametrize("rows", (1, 42, 2049, 16384))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=str)
def test_means_of_losses(device, dtype, rows):
    x, labels = values((rows, 5), dtype, 4), torch.arange(rows) % 5
    labels[3::7] = -100
    for weight in (None, torch.rand(5, dtype=dtype)):
        each = tr.cross_entropy(x, labels, weight, reduction="none")
        kept = (labels >= 0).to(dtype) if weight is None else weight[labels.clamp(min=0)] * (labels >= 0)
        wanted = tr.sum(each) / tr.sum(kept)
        got = tr.cross_entropy(x.to(device), labels.to(device), None if weight is None else weight.to(device))
        assert_bitwise_equal(got, wanted)
