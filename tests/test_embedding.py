"""The gradient of an embedding: that of a weight row is the sum over dim 0 of the gradients at its indices alone."""

import pytest
import torch
import torch.nn.functional as F

import torchreduce as tr
from torchreduce.testing import assert_bitwise_equal

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
backward = torch.ops.torchreduce.embedding_backward.raw


def gradient(places, columns, dtype, device, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(places, columns, generator=generator, dtype=torch.float64).to(dtype).to(device)


def expected(g, indices, count, skipped=-1):
    """By tr.sum, row by row."""
    out = g.new_zeros(count, g.shape[-1])
    rows, flat = g.reshape(-1, g.shape[-1]), indices.reshape(-1).long()
    for i in range(count):
        if i != skipped and (flat == i).any():
            out[i] = tr.sum(rows[flat == i], 0)
    return out


# How often each index occurs: once, up to what a team adds up alone and one more, up to a leaf and beyond, several
# leaves with and without a rest, and two long ones next to each other.
COUNTS = (1, 0, 2, 8, 17, 127, 128, 129, 257, 2047, 2048, 2049, 0, 4096, 3, 6145, 5000)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("columns", [1, 5, 132, 768])
def test_a_row_is_the_sum_of_its_places(device, dtype, columns):
    indices = torch.repeat_interleave(torch.arange(len(COUNTS)), torch.tensor(COUNTS))
    indices = indices[torch.randperm(len(indices), generator=torch.Generator().manual_seed(1))].to(device)
    g = gradient(len(indices), columns, dtype, device)
    got = backward(g, indices, len(COUNTS) + 2, 4, 0)
    assert_bitwise_equal(got, expected(g, indices, len(COUNTS) + 2, skipped=4))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_row_has_every_place(device, dtype):
    """Of more leaves than the last kernel adds up at once, and a rest."""
    g = gradient(66 * 2048 + 3, 3, dtype, device)
    indices = torch.full((len(g),), 1, device=device)
    assert_bitwise_equal(backward(g, indices, 3, -1, 0), expected(g, indices, 3))


@pytest.mark.parametrize("count", [200, 255, 256, 300, 65535, 65536, 70000])
def test_no_row_has_two_places(device, count):
    """Up to where an index needs another byte, and beyond; some are no row."""
    g = gradient(152, 20, torch.float32, device)
    indices = torch.randperm(count, generator=torch.Generator().manual_seed(2))[:152].to(device)
    indices[:4] = torch.tensor([count - 1, count, -1, 0])
    last = indices[4:] >= count - 1
    indices[4:][last | (indices[4:] == 0)] = count
    out, kept = g.new_zeros(count, 20), indices.remainder(count) == indices
    out[indices[kept]] = g[kept]
    assert_bitwise_equal(backward(g, indices, count, -1, 0), out)


@pytest.mark.parametrize("columns", [4, 64, 1024])
def test_segments_that_reach_over_many_blocks(device, columns):
    """Few leaves, of which teams narrower than a row have parts, and many of them."""
    for count, places in ((1, 5000), (3, 20000), (12, 3000)):
        g, generator = gradient(places, columns, torch.bfloat16, device), torch.Generator().manual_seed(4)
        indices = torch.randint(count, (places,), generator=generator).to(device)
        assert_bitwise_equal(backward(g, indices, count, -1, 0), expected(g, indices, count))


def test_whatever_else_is_in_the_batch(device):
    g, indices = gradient(3000, 96, torch.float32, device), torch.arange(3000, device=device) % 3
    whole = backward(g, indices, 5, -1, 0)
    for i in range(3):
        alone = backward(g[indices == i], indices[indices == i], 5, -1, 0)
        assert_bitwise_equal(alone[i], whole[i])


def test_wherever_rows_begin(device):
    """The layout and the address of the gradient show in no bit."""
    indices = torch.arange(700, device=device) % 9
    g = gradient(700, 64, torch.bfloat16, device)
    apart = torch.empty(700 * 64 + 1, dtype=g.dtype, device=device)[1:].view(700, 64).copy_(g)
    padded = torch.empty(700, 77, dtype=g.dtype, device=device)[:, 5:69].copy_(g)
    for same in (apart, padded, g.t().contiguous().t()):
        assert_bitwise_equal(backward(same, indices, 9, -1, 0), backward(g, indices, 9, -1, 0))


def test_nan_and_infinity_stay_in_their_rows(device):
    g = gradient(300, 8, torch.float32, device)
    g[7], g[20], g[23] = float("nan"), float("inf"), float("-inf")
    indices = torch.arange(300, device=device) % 10
    got = backward(g, indices, 10, -1, 0)
    assert got[7].isnan().all() and (got[0] == float("inf")).all() and (got[3] == float("-inf")).all()
    assert got[[1, 2, 4, 5, 6, 8, 9]].isfinite().all()


def test_indices_that_are_no_row_are_left_out(device):
    g, indices = gradient(6, 4, torch.float32, device), torch.tensor([0, -1, 5, 2**40, 1, 0], device=device)
    assert_bitwise_equal(backward(g, indices, 2, -1, 0), torch.stack([tr.sum(g[[0, 5]], 0), g[4]]))


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
def test_of_nothing_it_is_zero(device, shape):
    g, indices = torch.ones(shape, device=device), torch.zeros(shape[0], dtype=torch.int64, device=device)
    assert torch.equal(backward(g, indices, 2, -1, 0), torch.zeros(2, shape[1], device=device))


def test_errors_name_what_is_wrong():
    g, indices = torch.ones(3, 4), torch.zeros(3, dtype=torch.int64)
    for args, message in [
        ((g.int(), indices, 2), "floating dtype"),
        ((g, indices.int(), 2), "int64 indices"),
        ((g, indices[:2], 2), "a row of the gradient for each index"),
        ((g, indices, -1), "at least 0, got -1"),
    ]:
        with pytest.raises(RuntimeError, match=f"embedding_backward: .*{message}"):
            backward(*args, -1, 0)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("of", [torch.int64, torch.int32], ids=str)
def test_turned_over(device, dtype, of):
    """torch's own embedding, of any shape of indices, with and without a padding index."""
    generator = torch.Generator().manual_seed(3)
    indices = torch.randint(50, (7, 90), generator=generator).to(device, of)
    g = gradient(7 * 90, 40, dtype, device).view(7, 90, 40)
    for padding in (None, 3):
        weight = torch.randn(50, 40, device=device, dtype=dtype, requires_grad=True)
        F.embedding(indices, weight, padding).backward(g)
        torchs, weight.grad = weight.grad, None
        before = tr.coverage()["embedding_dense_backward"]["served"]
        with tr.enabled(cpu=True, compile=False):
            F.embedding(indices, weight, padding).backward(g)
        assert tr.coverage()["embedding_dense_backward"]["served"] == before + 1
        assert_bitwise_equal(weight.grad, expected(g, indices, 50, -1 if padding is None else padding))
        assert weight.grad.stride() == torchs.stride()
        bound = {torch.float64: 1e-13, torch.float32: 1e-5}.get(dtype, 0.1)  # torch adds up 16 bits in 16 bits on a CPU
        torch.testing.assert_close(weight.grad, torchs, atol=bound, rtol=bound)


def test_frequencies_are_torchs(device):
    indices, weight = torch.tensor([0, 1, 1], device=device), torch.ones(3, 2, device=device, requires_grad=True)
    before = tr.coverage()["embedding_dense_backward"]["option"]
    with tr.enabled(cpu=True, compile=False):
        F.embedding(indices, weight, scale_grad_by_freq=True).sum().backward()
    assert tr.coverage()["embedding_dense_backward"]["option"] == before + 1
    assert torch.equal(weight.grad, torch.tensor([[1.0, 1], [1, 1], [0, 0]], device=device))


def test_double_backward(device):
    indices = torch.tensor([[0, 2, 2], [1, 0, 4]], device=device)
    weight = torch.randn(5, 3, dtype=torch.float64, device=device, requires_grad=True)
    with tr.enabled(cpu=True, compile=False):
        assert torch.autograd.gradgradcheck(lambda w: F.embedding(indices, w).square(), weight)


def test_compiled(device):
    """Bitwise identical to eager, without a scatter of torch's."""
    indices = (torch.arange(900, device=device) % 11).view(3, 300)
    g = gradient(900, 24, torch.float32, device).view(3, 300, 24)

    def grad(f):
        weight = torch.zeros(12, 24, device=device, requires_grad=True)
        f(indices, weight).backward(g)
        return weight.grad

    compiled = torch.compile(lambda i, w: F.embedding(i, w), backend="torchreduce", fullgraph=True)
    assert_bitwise_equal(grad(compiled), expected(g, indices, 12))


@pytest.mark.gpu
def test_it_replays_from_a_graph():
    g, indices = gradient(5000, 64, torch.float32, "cuda"), torch.arange(5000, device="cuda") % 2
    expect = backward(g, indices, 3, -1, 0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = backward(g, indices, 3, -1, 0)
    got.zero_()
    graph.replay()
    assert_bitwise_equal(got, expect)
