"""Steps of the contract's arithmetic that torch has no function for, as single calls of torchreduce's ops."""

import numpy
import torch
from torch import Tensor
from torch.nn.functional import pad

from ..scans import linear_scan


def fma(a: Tensor, b: Tensor, c: Tensor | float) -> Tensor:
    """Return a * b + c, rounded once: a step of linear_scan from b. For finite a and b."""
    a, b, added = torch.broadcast_tensors(a, b, c if isinstance(c, Tensor) else torch.full_like(a, c))
    return linear_scan(a.reshape(1, -1), added.reshape(1, -1), 0, initial=b.reshape(-1)).view(a.shape)


def sum_products(g: Tensor, y: Tensor) -> Tensor:
    """Return the canonical sum, by fma steps, of g * y of each row; of rows of float32 or float64. A zero may be -0.0.

    Softmax's gradient is (g - d) * y, with d this sum. More elements, of g = 0 and y = -1, do not change d, and have d
    as their gradient. There are so many that all rows are aligned.
    """
    more = (0, 4 - g.shape[-1] % 4)
    gradient = torch.ops.torchreduce.softmax_gradient.default
    return gradient(pad(g, more), pad(y, more, value=-1.0), 1, g.dtype, 0)[:, -1]  # type: ignore[no-any-return]


def sums_of_squares(rows: Tensor) -> Tensor:
    """Return the canonical sum of the squares of each row, of rows of float32 or float64: vector_norm is its root."""
    return sum_products(rows, rows).abs()


def exp(x: Tensor) -> Tensor:
    """Return torchreduce's exp of numbers that are 0 or less, of shape (rows, n)."""
    one = x.new_ones(x.shape[0], 1)
    stats = torch.stack([torch.zeros_like(one), one])  # logsumexp's gradient is g exp(x - m) / s
    return torch.ops.torchreduce.logsumexp_gradient.default(one, x, stats, [1], 0)  # type: ignore[no-any-return]


def root(squares: Tensor) -> Tensor:
    """Return the square root as IEEE 754 defines it. torch's, on a CPU, may be an ulp from it."""
    return squares.sqrt() if squares.is_cuda else torch.as_tensor(numpy.sqrt(squares.numpy()))
