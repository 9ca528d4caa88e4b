"""The public norms: of vectors, with checks as those of ops.py."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .checks import Dims, as_dtype, listed, overloads
from .ops import _with_dtype
from .table import DTYPES, FLOATS

_ORDERS = {
    0.0: overloads("norm0"),
    1.0: overloads("norm1"),
    2.0: overloads("norm2"),
    math.inf: overloads("norm_greatest"),
    -math.inf: overloads("norm_least"),
}
_ORDERS_OF_NORM = {order: replace(op, name="norm") for order, op in _ORDERS.items()}


def vector_norm(
    x: Tensor,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    axis: Dims = None,
    keepdims: bool | None = None,
) -> Tensor:
    """The norm over dim of order 0, 1, 2, inf or -inf: how many elements are not 0, the sum of the magnitudes, the
    square root of the sum of the squares, the greatest and the least magnitude. As torch.linalg.vector_norm.

    x is floating; the result has dtype, or out's, else x's, and dtype may not be narrower than x's. Sums are in
    float32, or in float64 if x or the result is float64, squares being added by fused multiply-adds, and one square
    root follows; then the result is rounded once. NaN if there is one, but for order 0. Over no elements: 0, and a
    RuntimeError for the infinite orders. NotImplementedError for another order.

    >>> import torch, torchreduce
    >>> torchreduce.vector_norm(torch.tensor([3.0, -4.0]))
    tensor(5.)
    >>> torchreduce.vector_norm(torch.tensor([[3.0, -4.0], [0.0, 1.0]]), 1, dim=1)
    tensor([7., 1.])
    """
    return _norm("vector_norm", x, ord, dim, keepdim, dtype, out, axis, keepdims)


def norm(
    input: Tensor,
    p: float | str | None = "fro",
    dim: Dims = None,
    keepdim: bool = False,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
    *,
    axis: Dims = None,
    keepdims: bool | None = None,
) -> Tensor:
    """vector_norm of order p, which may also be "fro" or None, both 2: as torch.norm, of vectors.

    >>> import torch, torchreduce
    >>> torchreduce.norm(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), dim=1)
    tensor([5., 0.])
    """
    return _norm("norm", input, 2 if p is None or p == "fro" else p, dim, keepdim, dtype, out, axis, keepdims)


def _norm(
    name: str,
    x: Tensor,
    order: Any,
    dim: Dims,
    keepdim: bool,
    dtype: Any,
    out: Tensor | None,
    axis: Dims,
    keepdims: bool | None,
) -> Tensor:
    number = isinstance(order, (int, float)) and not isinstance(order, bool)
    op = (_ORDERS if name == "vector_norm" else _ORDERS_OF_NORM).get(order) if number else None
    if op is None:
        raise NotImplementedError(
            f"{name}(): not implemented for the order {order!r}. Supported are 0, 1, 2, inf, -inf"
        )
    if isinstance(x, Tensor) and x.dtype not in FLOATS:
        if x.dtype not in DTYPES:
            raise NotImplementedError(f"{name}(): not implemented for {x.dtype}. Supported are {listed(FLOATS)}")
        raise RuntimeError(f"{name}(): expected a tensor of a floating dtype, but got {x.dtype}")
    if dtype is not None or out is not None:
        to = as_dtype(out.dtype if isinstance(out, Tensor) else dtype)
        if to in FLOATS and isinstance(x, Tensor) and x.dtype in FLOATS and torch.promote_types(to, x.dtype) != to:
            raise RuntimeError(f"{name}(): the dtype {to} of the result is narrower than the input's {x.dtype}")
    return _with_dtype(op, x, dim, keepdim, dtype, out, axis, keepdims)
