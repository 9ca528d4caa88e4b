"""What only a GPU can get wrong: streams, captured graphs, hand-over between blocks, 2^31 elements at full length."""

import ctypes
import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from cases import LAYOUTS, OURS, generator, values

import torchreduce as tr
from torchreduce import _C
from torchreduce.testing import assert_bitwise_equal, force_plan

pytestmark = pytest.mark.gpu

REDUCTIONS = ("sum", "mean", "amax", "max", "argmin")
NAMES = (*REDUCTIONS, "cumsum", "cumprod", "logcumsumexp", "cummax")
SHAPES = (((300, 70), 1), ((3, 300_001), 1), ((30_001, 30), 0), ((2**20 + 3,), 0))


def everything(inputs):
    """Every family: splits and chains, rows and columns, with and without workspace."""
    results = []
    for (x, dim), name in itertools.product(inputs, NAMES):
        result = getattr(OURS, name)(x, dim)
        results += [result] if isinstance(result, torch.Tensor) else list(result)
    return results


def inputs(seed, dtype=torch.float32):
    return [(values(shape, dtype, seed=seed + i).cuda(), dim) for i, (shape, dim) in enumerate(SHAPES)]


def refill(static, seed):
    for (x, _), (fresh, _) in zip(static, inputs(seed, static[0][0].dtype), strict=True):
        x.copy_(fresh)


def capture(static):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        everything(static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = everything(static)
    return graph, results


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_a_captured_graph_replayed_on_new_inputs_is_eager(dtype):
    """pytorch #114048: kernels off the current stream vanish from captured graphs."""
    static = inputs(0, dtype)
    graph, results = capture(static)
    for seed in (10, 20, 30):
        refill(static, seed)
        graph.replay()
        torch.cuda.synchronize()
        for replayed, expected in zip(results, everything(static), strict=True):
            assert_bitwise_equal(replayed, expected)


def test_graphs_replayed_at_once_on_two_streams_are_eager():
    """Tickets, flags and partials belong to a call, so graphs share none."""
    statics = inputs(0), inputs(100)
    graphs = [capture(static) for static in statics]
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    for round in range(5):
        for i, static in enumerate(statics):
            refill(static, 1000 * round + 100 * i)
        expected = [everything(static) for static in statics]
        torch.cuda.synchronize()
        for _ in range(10):
            for (graph, _), stream in zip(graphs, streams, strict=True):
                with torch.cuda.stream(stream):
                    graph.replay()
        torch.cuda.synchronize()
        for (_, results), wanted in zip(graphs, expected, strict=True):
            for replayed, e in zip(results, wanted, strict=True):
                assert_bitwise_equal(replayed, e)


def test_side_streams():
    """The current stream's kernels see what it wrote before, and many calls in flight keep their workspaces apart."""
    expected = everything(inputs(5))
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    found = []
    for stream in streams:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(10_000_000)
            late = [(x.clone(), dim) for x, dim in inputs(5)]
            found.append(everything(late))
    torch.cuda.synchronize()
    for results in found:
        for a, e in zip(results, expected, strict=True):
            assert_bitwise_equal(a, e)


# Of columns that one kernel takes with two sizes of shared memory, both above what is granted without asking.
MORE_AND_LESS = [
    ("cumsum", torch.float64, (256, 4096), (100, 4096)),
    ("cumsum", torch.float32, (256, 4096), (100, 4096)),
    ("linear_scan", torch.float64, (256, 100), (100, 4096)),
]


def more_and_less(name, dtype, *shapes):
    """The calls, their results, and what each is to give."""
    cases = []
    for shape in shapes:
        x = values(shape, dtype, seed=shape[0]).cuda()
        if name == "linear_scan":
            x = x.abs().clamp(max=1)
        inputs = (x, x) if name == "linear_scan" else (x,)
        expected = getattr(OURS, name)(*(part.cpu() for part in inputs), 0).cuda()
        cases.append((lambda inputs=inputs: getattr(OURS, name)(*inputs, 0), expected))
    return cases


def test_calls_of_one_kernel_differ_in_shared_memory():
    """What the next two tests are about."""
    facts = _C.gpu_facts(0)
    for name, dtype, *shapes in MORE_AND_LESS:
        number = {torch.float32: 6, torch.float64: 7}[dtype]
        more, less = (
            _C.plan(name, list(shape), [shape[1], 1], [0], number, number, True, True, **facts) for shape in shapes
        )
        assert more["family"] == less["family"] == "short_columns"
        assert more["shape"]["columns"] == less["shape"]["columns"], name
        assert not facts["large_blocks"] or more["shared"] > less["shared"] > 40 << 10, (name, more, less)


@pytest.mark.parametrize("name, dtype, more, less", MORE_AND_LESS)
def test_threads_that_scan_at_once(name, dtype, more, less):
    """How much shared memory a kernel may have CUDA keeps with the kernel and not with a launch."""
    cases = more_and_less(name, dtype, more, less)
    torch.cuda.synchronize()

    def differences(case):
        call, wanted = case
        with torch.cuda.stream(torch.cuda.Stream()):
            differ = torch.zeros((), dtype=torch.int64, device="cuda")
            for _ in range(300):
                differ += (bits(call()) != bits(wanted)).any()
            return differ.item()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(differences, cases)) == [0, 0]


class KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS of the driver."""

    _fields_ = (
        *(("function", ctypes.c_void_p), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3)),
        *(("shared", ctypes.c_uint), ("arguments", ctypes.c_void_p), ("extra", ctypes.c_void_p)),
        *(("kernel", ctypes.c_void_p), ("context", ctypes.c_void_p)),
    )


def shared_of(graph):
    """Of each kernel of a captured graph: bytes of dynamic shared memory that its launch has, and that it may have."""
    driver, most_dynamic_shared = ctypes.CDLL("libcuda.so.1"), 8

    def ask(function, *arguments):
        assert getattr(driver, function)(*arguments) == 0, function

    count = ctypes.c_size_t()
    ask("cuGraphGetNodes", ctypes.c_void_p(graph), None, ctypes.byref(count))
    nodes = (ctypes.c_void_p * count.value)()
    ask("cuGraphGetNodes", ctypes.c_void_p(graph), nodes, ctypes.byref(count))
    found = []
    for node in map(ctypes.c_void_p, nodes):
        kind, launch, most = ctypes.c_int(), KernelNode(), ctypes.c_int()
        ask("cuGraphNodeGetType", node, ctypes.byref(kind))
        if kind.value != 0:
            continue
        ask("cuGraphKernelNodeGetParams_v2", node, ctypes.byref(launch))
        function = ctypes.c_void_p(launch.function)
        if not function:
            ask("cuKernelGetFunction", ctypes.byref(function), ctypes.c_void_p(launch.kernel))
        ask("cuFuncGetAttribute", ctypes.byref(most), most_dynamic_shared, function)
        found.append((launch.shared, most.value))
    return found


@pytest.mark.parametrize("name, dtype, more, less", MORE_AND_LESS)
def test_a_graph_instantiated_after_a_smaller_call_is_eager(name, dtype, more, less):
    """A driver may ask then whether kernels may have the shared memory that they were captured with."""
    (large, expected), (small, _) = more_and_less(name, dtype, more, less)
    large()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        result = large()
    small()
    launches = shared_of(graph.raw_cuda_graph())
    assert launches and all(shared <= most for shared, most in launches), launches
    graph.instantiate()
    for _ in range(3):
        result.zero_()
        small()
        graph.replay()
        torch.cuda.synchronize()
        assert_bitwise_equal(result, expected)


hopper = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0), reason="needs bulk copies"
)


@pytest.mark.parametrize("family", ("chain", "column_tiles", pytest.param("ring", marks=hopper)))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float64, torch.int32))
def test_chains_relaunched_are_identical(family, dtype):
    """pytorch #75240. A carry that is taken too early shows as a difference, sooner or later."""
    if family == "ring" and dtype not in (torch.float32, torch.bfloat16):
        return
    shapes = (
        ((2**22 + 5,), 0),
        ((9, 200_003), 1),
        ((100_003, 17), 0),
        ((33, 8193), 1),  # by clusters
        ((3, 65_536), 1),
        ((400, 16_389), 1),
        ((900_001, 3), 0),
    )
    for shape, dim in shapes:
        if family == "ring" and dim != len(shape) - 1:
            continue
        x = values(shape, dtype, seed=2).cuda()
        expected = tr.cumsum(x.cpu(), dim).cuda()
        with force_plan(family=family):
            for _ in range(25):
                assert torch.equal(bits(tr.cumsum(x, dim)), bits(expected))


@pytest.mark.big
@pytest.mark.parametrize("n, times", ((5_000_000, 20_000), (2**28, 1000)))
def test_scans_relaunched_by_the_thousand_are_identical(n, times):
    """Back to back, so that each begins while the one before ends; compared on the GPU, so that nothing waits."""
    x = values((2**20,), torch.float32, seed=3).cuda().repeat(-(-n // 2**20))[:n]
    expected = bits(tr.cumsum(x.cpu(), 0).cuda())
    out, differ = torch.empty_like(x), torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(times):
        tr.cumsum(x, 0, out=out)
        differ += (bits(out) != expected).any()
    assert differ.item() == 0


def test_replays_with_other_work_between_are_identical():
    """Of graphs on one stream, while others sum, scan and multiply matrices on three more."""
    static = inputs(0)
    graph, results = capture(static)
    expected = [result.clone() for result in everything(static)]
    matrix, streams = torch.randn(1024, 1024, device="cuda"), [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for _ in range(50):
        for result in results:
            result.zero_()
        graph.replay()
        for stream in streams:
            with torch.cuda.stream(stream):
                everything(static)
                matrix @ matrix
        graph.replay()
        torch.cuda.synchronize()
        for replayed, e in zip(results, expected, strict=True):
            assert_bitwise_equal(replayed, e)


@hopper
@pytest.mark.parametrize("name", ("cumsum", "cumprod", "logcumsumexp"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16))
def test_long_rows_go_through_the_pipeline(name, dtype):
    """Any start of input and output, whole and partial tiles, several rows, forwards and back: the CPU's bits."""
    for rows, n in ((1, 8193), (40, 8193), (1, 100_001), (3, 70_003), (5, 16384), (400, 16_389)):
        buffer = values((rows * n + 16,), dtype, seed=4).cuda()
        for start, exclusive, reverse in itertools.product((0, 1, 3), (False, True), (False, True)):
            x = buffer[start : start + rows * n].view(rows, n)
            out = torch.zeros_like(buffer)[2 * start : 2 * start + rows * n].view(rows, n)
            with force_plan(family="ring"):
                assert tr.explain(name, x, 1).family == "ring"
                getattr(OURS, name)(x, 1, exclusive=exclusive, reverse=reverse, out=out)
            assert_bitwise_equal(out, getattr(OURS, name)(x.cpu(), 1, exclusive=exclusive, reverse=reverse))
    assert tr.explain(name, values((2**22,), dtype, seed=1).cuda(), 0).family == "ring"


@hopper
@pytest.mark.parametrize("name", ("cummax", "cummin"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16))
def test_long_rows_with_indices_start_anywhere(name, dtype):
    """Any start of input and outputs, together and apart; ties, and rows that have records up to their end."""
    for rows, n in ((1, 2049), (1, 100_001), (3, 70_003), (5, 16384), (700, 9001), (1, 5_000_011)):
        buffer = values((rows * n + 16,), dtype, seed=4)
        buffer[: rows * n : 3] = torch.arange(rows * n)[::3].to(dtype)
        buffer = (buffer if rows % 2 else buffer.flip(0)).cuda()
        for (start, value, index), reverse in itertools.product(
            ((0, 0, 0), (1, 1, 1), (3, 0, 3), (2, 1, 0), (0, 0, 5)), (False, True)
        ):
            x = buffer[start : start + rows * n].view(rows, n)
            out = (torch.zeros_like(buffer)[value : value + rows * n].view(rows, n),
                   torch.zeros_like(buffer, dtype=torch.int64)[index : index + rows * n].view(rows, n))  # fmt: skip
            assert tr.explain(name, x, 1, reverse=reverse).family == "extreme_chain"
            getattr(OURS, name)(x, 1, reverse=reverse, out=out)
            for ours, expected in zip(out, getattr(OURS, name)(x.cpu(), 1, reverse=reverse), strict=True):
                assert_bitwise_equal(ours, expected)


@hopper
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_extremes_relaunched_are_identical(dtype):
    for shape in ((2**22 + 5,), (9, 200_003), (33, 8193)):
        x = values(shape, dtype, seed=2).cuda()
        dim = len(shape) - 1
        expected = [e.cuda() for e in tr.cummax(x.cpu(), dim)]
        for _ in range(25):
            for ours, e in zip(tr.cummax(x, dim), expected, strict=True):
                assert torch.equal(ours.view(torch.int8), e.view(torch.int8))


@hopper
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16))
def test_linear_scan_of_long_rows_goes_through_the_pipeline(dtype):
    """Any start of a, whole and partial tiles, several rows, resets, forwards and back, and the gradients' shifted
    scans, as the planner has them: the CPU's bits. From the far end of 100001 elements that is by a chain."""
    for rows, n in ((1, 8200), (1, 100_001), (3, 70_008), (2, 33 * 8192)):
        buffer = values((rows * n + 8,), dtype, seed=4).tanh()
        buffer[::97] = 0
        b, g, initial = (values(shape, dtype, seed=5) for shape in ((rows, n), (rows, n), (rows,)))
        for start, reverse in itertools.product((0, 1, 3, 8), (False, True)):
            found = []
            for device in ("cpu", "cuda"):
                a, x = buffer.to(device)[start : start + rows * n].view(rows, n), b.to(device)
                parts = a.detach().requires_grad_(), x.detach().requires_grad_()
                with force_plan(**({"family": "ring_pairs"} if device == "cuda" and n % 8 == 0 else {})):
                    h = tr.linear_scan(*parts, 1, initial=initial.to(device), reverse=reverse)
                found.append((h.detach(), *torch.autograd.grad(h, parts, g.to(device))))
            for expected, result in zip(*found, strict=True):
                assert_bitwise_equal(result, expected)


@hopper
@pytest.mark.parametrize("columns", range(2, 8))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16))
def test_few_columns_go_through_the_pipeline(dtype, columns):
    """Whole and partial block tiles, several batches, forwards and back, with NaNs in some columns: the CPU's bits."""
    for batch, n in ((1, 8193), (1, 300_001), (1, 2**20), (3, 70_008), (200, 8200)):
        x = values((batch, n, columns), dtype, seed=4).cuda()
        x[-1, n // 2, ::3] = torch.nan
        for exclusive, reverse in itertools.product((False, True), repeat=2):
            assert tr.explain("cumsum", x, 1, exclusive=exclusive, reverse=reverse).family == "ring_columns"
            result = tr.cumsum(x, 1, exclusive=exclusive, reverse=reverse)
            assert_bitwise_equal(result, tr.cumsum(x.cpu(), 1, exclusive=exclusive, reverse=reverse))


@pytest.mark.parametrize("columns", range(2, 8))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16))
def test_few_columns_start_anywhere_in_memory(dtype, columns):
    """Inputs and results, wherever in a granule of 16 bytes, to the end of their memory: nothing else is written."""
    n = 20_011
    x = values((n, columns), dtype, seed=5)
    want = {
        options: tr.cumsum(x, 0, exclusive=options[0], reverse=options[1])
        for options in itertools.product((False, True), repeat=2)
    }
    places = 16 // dtype.itemsize
    for place in range(places):
        source = torch.empty(place + n * columns, dtype=dtype, device="cuda")[place:].view(n, columns).copy_(x)
        for to in range(places) if place in (0, 1, places - 1) else (0, place):
            room = torch.full((to + n * columns + 8,), 7.0, dtype=dtype, device="cuda")
            out = room[to : to + n * columns].view(n, columns)
            for (exclusive, reverse), result in want.items():
                tr.cumsum(source, 0, exclusive=exclusive, reverse=reverse, out=out)
                assert_bitwise_equal(out, result)
            assert torch.all(room[:to] == 7) and torch.all(room[to + n * columns :] == 7)


def bits(x):
    return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.dtype.itemsize])


def test_no_hidden_copy_of_the_input():
    """Whatever the strides: what a call allocates beside its result is small."""
    x = torch.zeros(64, 2**20, device="cuda").t()[:, ::2]
    a = torch.zeros(32, device="cuda")  # of linear_scan; a dim of it is broadcast
    calls = [(name, dim, {}) for name in NAMES for dim in (0, 1)]
    calls += [(name, dim, {"reverse": True}) for name in ("cumsum", "cummin", "logcumsumexp") for dim in (0, 1)]
    calls += [("linear_scan", dim, {"reverse": reverse}) for dim in (0, 1) for reverse in (False, True)]
    for name, dim, options in calls:
        inputs = (a, x) if name == "linear_scan" else (x,)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = getattr(OURS, name)(*inputs, dim, **options)
        result = (result,) if isinstance(result, torch.Tensor) else result
        own = sum(r.untyped_storage().nbytes() for r in result)
        assert torch.cuda.max_memory_allocated() - before <= own + 2**23, (name, dim, options)
        del result


def test_calls_do_not_synchronise():
    static = inputs(3)
    everything(static)
    torch.cuda.set_sync_debug_mode("error")
    try:
        everything(static)
        x = static[0][0].clone().requires_grad_()
        (tr.mean(x, 1).sum() + tr.amax(x, 0).sum() + tr.max(x, 1).values.sum() + tr.cumsum(x, 0).sum()).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_another_device_than_the_current_one():
    """With one GPU the CPU's tensors are the other device; with two, so is the second GPU."""
    for device in [torch.device("cuda", i) for i in range(torch.cuda.device_count())]:
        for other in range(torch.cuda.device_count()):
            with torch.cuda.device(other):
                for (x, dim), name in itertools.product(inputs(7), NAMES):
                    there = x.to(device)
                    result, expected = getattr(OURS, name)(there, dim), getattr(OURS, name)(x.cpu(), dim)
                    result = (result,) if isinstance(result, torch.Tensor) else result
                    expected = (expected,) if isinstance(expected, torch.Tensor) else expected
                    for a, e in zip(result, expected, strict=True):
                        assert a.device == device
                        assert_bitwise_equal(a, e)
                assert torch.cuda.current_device() == other


def test_mixed_devices_are_refused():
    x = torch.ones(3, 4, device="cuda")
    for f in (lambda o: tr.sum(x, 0, out=o), lambda o: tr.mean(x.cpu(), 0, out=o.cuda())):
        with pytest.raises(RuntimeError, match=r"cuda.*cpu|cpu.*cuda"):
            f(torch.empty(4))
    ops = torch.ops.torchreduce
    with pytest.raises(RuntimeError):
        ops.sum.out(x, [0], False, None, 0, out=torch.empty(4))


def test_pinned_and_empty():
    assert_bitwise_equal(tr.sum(torch.arange(5.0).pin_memory()), torch.tensor(10.0))
    for name in ("sum", "mean"):
        result = getattr(OURS, name)(torch.empty(0, 3, device="cuda"), 0)
        assert_bitwise_equal(result, getattr(OURS, name)(torch.empty(0, 3), 0))
    assert tr.amax(torch.empty(0, 3, device="cuda"), 1).shape == (0,)


def test_compile_into_cuda_graphs():
    """mode="reduce-overhead" captures; replays have eager bits."""
    torch._dynamo.reset()

    @torch.compile(mode="reduce-overhead", fullgraph=True)
    def f(x):
        return tr.sum(x, 1), tr.cumsum(x, 0), tr.argmax(x), *tr.max(x, 1)

    for seed in range(5):
        x = values((300, 3000), torch.float32, seed=seed).cuda()
        torch.compiler.cudagraph_mark_step_begin()
        for ours, expected in zip(f(x), (tr.sum(x, 1), tr.cumsum(x, 0), tr.argmax(x), *tr.max(x, 1)), strict=True):
            assert_bitwise_equal(ours.clone(), expected)


# ---- 2^31 elements and more: about 24 GB, one at a time --------------------------------------------------------------


@pytest.mark.big
def test_int32_cumsum_of_exactly_2_31_elements():
    """Measured: torch 2.11's torch.cumsum(dtype=int32) on these ends in an illegal memory access."""
    n = 2**31
    x = (
        torch.randint(-(2**31), 2**31 - 1, (2**20,), generator=generator(0), dtype=torch.int32)
        .cuda()
        .repeat(n // 2**20)
    )
    y = tr.cumsum(x, 0, dtype=torch.int32)
    period = x[: 2**20].long().cumsum(0)
    total = period[-1].item()
    for start in range(0, n, 2**26):
        block = torch.arange(2**6, device="cuda")[:, None] + start // 2**20
        expected = (period[None] + block * total).to(torch.int32).flatten()
        assert torch.equal(y[start : start + 2**26], expected)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("shape", ((2**19, 32), (2**20, 2), (2**18, 16), (2**17, 64), (50_003, 133)))
def test_columns_whose_blocks_begin_late_end_with_the_same_bits(shape, dtype):
    """Kernels of another stream keep some multiprocessors, so that blocks begin when others have taken many tickets."""
    x, busy, other = torch.randn(shape, device="cuda").to(dtype), torch.empty(2**22, device="cuda"), torch.cuda.Stream()
    expected = tr.cumsum(x, 0)
    for turn in range(100):
        with torch.cuda.stream(other):
            busy[: turn * 7919 % 2**22 + 1].normal_()
        result = tr.cumsum(x, 0)
        if turn % 10 == 9:
            assert_bitwise_equal(result, expected)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16, torch.float64))
@pytest.mark.parametrize("shape", ((700, 80_000), (8192 + 300, 40_000), (3, 600, 30_000)))
def test_many_columns_have_the_bits_of_few(shape, dtype):
    """What a block does depends on how many columns there are."""
    x = torch.randn(shape, generator=generator(3)).to(dtype).cuda()
    dim = x.dim() - 2
    last = slice(-1, None) if dim else slice(None)  # of the batch
    for reverse in (False, True):
        whole = tr.cumsum(x, dim, reverse=reverse)
        for columns in (slice(0, 64), slice(1000, 1104), slice(-72, None)):
            part = x[last, ..., columns].contiguous()
            assert torch.equal(tr.cumsum(part, dim, reverse=reverse), whole[last, ..., columns])


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16))
@pytest.mark.parametrize("shape", ((8192 + 300, 5341), (9, 600, 1001), (300_000, 129)))
def test_columns_whose_rows_start_anywhere_have_the_bits_of_single_ones(shape, dtype):
    x = torch.randn(shape, generator=generator(4)).to(dtype).cuda()
    dim = x.dim() - 2
    for view in (x, x[..., 1:], x[..., 3:-2]):
        for options in ({}, {"reverse": True}, {"exclusive": True}):
            with force_plan(family="column_tiles", vector_loads=False):
                expected = tr.cumsum(view, dim, **options)
            assert torch.equal(tr.cumsum(view, dim, **options), expected)


@pytest.mark.big
def test_int32_cumsum_of_columns_of_2_31_elements():
    period, columns, rows = 2**15, 64, 2**25
    base = torch.randint(-(2**31), 2**31 - 1, (period, columns), generator=generator(1), dtype=torch.int32).cuda()
    y = tr.cumsum(base.repeat(rows // period, 1), 0, dtype=torch.int32)
    sums = base.long().cumsum(0)
    for start in range(0, rows, 2**20):
        block = torch.arange(2**20 // period, device="cuda")[:, None, None] + start // period
        expected = (sums[None] + block * sums[-1]).to(torch.int32).flatten(0, 1)
        assert torch.equal(y[start : start + 2**20], expected)


@pytest.mark.big
def test_int8_cumsum_past_2_32_elements():
    """pytorch #167086."""
    period, n = 2**20, 2**32 + 5
    base = torch.randint(-128, 128, (period,), generator=generator(2), dtype=torch.int8).cuda()
    x = torch.empty(n, dtype=torch.int8, device="cuda")
    x[: 2**32].view(-1, period).copy_(base)
    x[2**32 :] = base[:5]
    y = tr.cumsum(x, 0, dtype=torch.int8)
    sums = base.long().cumsum(0)
    for start in range(0, 2**32, 2**26):
        block = torch.arange(2**26 // period, device="cuda")[:, None] + start // period
        assert torch.equal(y[start : start + 2**26], (sums + block * sums[-1]).to(torch.int8).flatten())
    assert torch.equal(y[2**32 :], (sums[:5] + 2**32 // period * sums[-1]).to(torch.int8))


@pytest.mark.big
@pytest.mark.parametrize("n", (2**31 - 1, 2**31, 2**31 + 2**13 + 3))
def test_scans_past_2_31_elements(n):
    """pytorch #167086: cumsum past 2^32 was wrong without a word."""
    y = tr.cumsum(torch.ones(1, dtype=torch.int8, device="cuda").expand(n), 0, dtype=torch.int8)
    pattern = torch.arange(1, 257, device="cuda").to(torch.int8)
    whole = n // 256 * 256
    for start in range(0, whole, 2**28):
        assert (y[start : min(start + 2**28, whole)].view(-1, 256) == pattern).all()
    assert torch.equal(y[whole:], pattern[: n - whole])
    y = tr.cumsum(torch.ones(n, dtype=torch.int8, device="cuda"), 0, reverse=True, dtype=torch.int8)
    assert y[0].item() == (n + 128) % 256 - 128 and y[-1] == 1 and y[-200].item() == (200 + 128) % 256 - 128


@pytest.mark.big
def test_reductions_past_2_31_elements():
    n = 2**31 + 2**13 + 3
    x = torch.zeros(n, dtype=torch.int8, device="cuda")
    x[-3], x[2**31 + 5] = 1, -1
    assert tr.argmax(x).item() == n - 3 and tr.argmin(x).item() == 2**31 + 5
    pair = tr.max(x, 0)
    assert (pair.values.item(), pair.indices.item()) == (1, n - 3)
    assert tr.amax(x).item() == 1 and tr.amin(x).item() == -1 and tr.sum(x).item() == 0
    assert tr.sum(x.fill_(1)).item() == n
    del x
    x = torch.ones(n, dtype=torch.bfloat16, device="cuda")
    assert tr.sum(x, dtype=torch.float64).item() == n and tr.mean(x).item() == 1


@pytest.mark.big
def test_many_rows_and_columns_past_2_31_elements():
    """More rows than a grid has blocks in a dim; offsets past 2^32 bytes and elements."""
    x = torch.ones(2**30 + 7, 3, dtype=torch.uint8, device="cuda")
    y = tr.sum(x, 1, dtype=torch.uint8)
    assert y.shape == (2**30 + 7,) and (y == 3).all()
    del y
    assert tr.sum(x, 0).tolist() == [2**30 + 7] * 3
    y = tr.cumsum(x, 0, dtype=torch.uint8)
    assert y[-1].tolist() == [(2**30 + 7) % 256] * 3 and y[2**29].tolist() == [(2**29 + 1) % 256] * 3
    del x, y
    x = torch.zeros(3, 2**30 + 7, dtype=torch.int8, device="cuda")
    x[2, -2] = 1
    assert tr.argmax(x, 1).tolist() == [0, 0, 2**30 + 5] and tr.sum(x, 0)[-2].item() == 1


def test_gpu_kernels_are_in_the_build():
    assert _C.build_info()["kernels"] > 0 and _C.build_info()["archs"]


def test_misaligned_views_of_every_kind():
    for dtype, layout in itertools.product((torch.int8, torch.float16, torch.float32, torch.float64), LAYOUTS):
        for shape, dim in (((7, 5001), 1), ((5001, 7), 0), ((3, 40, 50), 1)):
            x = values(shape, dtype, seed=1)
            for offset in range(3):
                part = x[..., offset:]
                view = LAYOUTS[layout](x.cuda())[..., offset:]
                for name in ("sum", "amax", "argmax", "cumsum"):
                    assert_bitwise_equal(getattr(OURS, name)(view, dim), getattr(OURS, name)(part, dim))
