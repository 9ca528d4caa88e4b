"""Row-wise ops on the CPU take rows in blocks: a row's bits depend neither on its place in a block nor on the block's
shape, whatever else is in it."""

import pytest
import torch

import torchreduce as tr
from torchreduce.testing import assert_bitwise_equal


def gradient(f):
    def of(x):
        x = x.clone().requires_grad_()
        y = f(x)
        return torch.autograd.grad(y, x, torch.linspace(-1, 1, y.shape[-1]).to(y.dtype).expand_as(y))[0]

    return of


def cross_entropy(x):
    labels = (x[:, 0].double().nan_to_num(0, 0, 0).abs() * 1000).long() % x.shape[1]
    return tr.cross_entropy(x, torch.where(labels % 5 == 0, -100, labels), reduction="none")[:, None]


OPS = {
    "softmax": lambda x: tr.softmax(x, 1),
    "log_softmax": lambda x: tr.log_softmax(x, 1),
    "logsumexp": lambda x: tr.logsumexp(x, 1, keepdim=True),
    "var": lambda x: tr.var(x, 1, keepdim=True),
    "layer_norm": lambda x: tr.layer_norm(x, x.shape[1:]),
    "rms_norm": lambda x: tr.rms_norm(x, x.shape[1:]),
    "cross_entropy": cross_entropy,
}
CALLS = OPS | {f"{name} backward": gradient(op) for name, op in OPS.items()}
ROWS = 300


def rows(length: int, dtype: torch.dtype) -> torch.Tensor:
    """Some with what is special: zeros, far numbers, infinities, NaN."""
    x = torch.randn(ROWS, length, dtype=torch.float64)
    x[3::50] = 0
    x[5::50] *= 1e-30 if dtype is torch.float32 else 1e-3
    x[7::50] *= 1e7 if dtype is not torch.float16 else 1e3
    x[9::50, 0] = float("inf")
    x[11::50, -1] = -float("inf")
    x[13::50, length // 2] = float("nan")
    x[17] = -float("inf")
    return x.to(dtype)


@pytest.mark.parametrize("isa", tr._C.instruction_sets())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 16, 17, 31, 64, 100, 255, 257, 300, 2049])
def test_a_rows_bits_do_not_depend_on_its_block(length, dtype, isa):
    x = rows(length, dtype)
    before = tr._C.instruction_set()
    tr._C.set_instruction_set(isa)
    try:
        for call in CALLS.values():
            whole = call(x)
            for row in (0, 1, 15, 16, 127, 128, 209, ROWS - 1):
                assert_bitwise_equal(whole[row : row + 1], call(x[row : row + 1]))
            for count in (2, 17, 130):
                assert_bitwise_equal(whole[:count], call(x[:count]))
            assert_bitwise_equal(whole, call(x.t().contiguous().t()))  # lanes across rows
            assert_bitwise_equal(whole, call(torch.stack((x, x), 2)[..., 0]))  # neither
    finally:
        tr._C.set_instruction_set(before)
