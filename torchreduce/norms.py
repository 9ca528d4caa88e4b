"""The public norms: of vectors, with checks as those of ops.py."""

import math
import sys
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from . import powers  # noqa: F401  registers norms of any order
from .checks import Dims, as_dtype, check_dims, check_dtype, either_keepdim, listed, overloads
from .determinism import level_code
from .ops import _with_dtype, dtype_by_out, prepare_outs
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
    """The norm over dim: of order 0, 1, 2, inf or -inf how many elements are not 0, the sum of the magnitudes, the
    square root of the sum of the squares, the greatest and the least magnitude; of any other order p the p-th root of
    the sum of the p-th powers of the magnitudes. As torch.linalg.vector_norm.

    x is floating; the result has dtype, or out's, else x's, and dtype may not be narrower than x's. Sums are in
    float32, or in float64 if x or the result is float64, squares being added by fused multiply-adds, and one square
    root follows; then the result is rounded once. Other orders are computed in float64, in some tens of passes over a
    float64 copy of x, and out of range is the norm or its ratio to the magnitude that counts most alone. NaN if there
    is one, but for order 0. Over no elements: 0, and a RuntimeError for the infinite and the negative orders.
    RuntimeError for an order that is NaN or beyond float64, NotImplementedError for one that is no number.

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
    if isinstance(order, bool) or not isinstance(order, (int, float)):
        raise NotImplementedError(f"{name}(): not implemented for the order {order!r}. Supported are numbers")
    op = (_ORDERS if name == "vector_norm" else _ORDERS_OF_NORM).get(order)
    if isinstance(x, Tensor) and x.dtype not in FLOATS:
        if x.dtype not in DTYPES:
            raise NotImplementedError(f"{name}(): not implemented for {x.dtype}. Supported are {listed(FLOATS)}")
        raise RuntimeError(f"{name}(): expected a tensor of a floating dtype, but got {x.dtype}")
    if dtype is not None or out is not None:
        to = as_dtype(out.dtype if isinstance(out, Tensor) else dtype)
        if to in FLOATS and isinstance(x, Tensor) and x.dtype in FLOATS and torch.promote_types(to, x.dtype) != to:
            raise RuntimeError(f"{name}(): the dtype {to} of the result is narrower than the input's {x.dtype}")
    if op is not None:
        return _with_dtype(op, x, dim, keepdim, dtype, out, axis, keepdims)
    if not abs(order) <= sys.float_info.max:
        raise RuntimeError(f"{name}(): the order must be a number in float64's range, or infinite")
    return _of_any_order(name, x, float(order), dim, keepdim, dtype, out, axis, keepdims)


def _of_any_order(
    name: str, x: Tensor, order: float, dim: Dims, keepdim: bool, dtype: Any, out: Tensor | None, axis: Dims,
    keepdims: bool | None,
) -> Tensor:  # fmt: skip
    """By torchreduce::norm_power, which writes to no given tensor."""
    like = (_ORDERS if name == "vector_norm" else _ORDERS_OF_NORM)[-math.inf if order < 0 else 2.0]
    if keepdims is not None:
        keepdim = either_keepdim(name, keepdim, keepdims)
    dims = check_dims(like, x, dim, keepdim, axis)
    if out is not None:
        dtype = dtype_by_out(like, dtype, out)
    dtype = x.dtype if dtype is None else check_dtype(like, x, dtype)
    result: Tensor = torch.ops.torchreduce.norm_power.default(x, dims, keepdim, dtype, order, level_code())
    if out is None:
        return result
    prepare_outs(name, [x], result.shape, {"out": dtype}, {"out": out})
    return out.copy_(result)
