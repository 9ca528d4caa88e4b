"""The public vector norms, with the checks of ops.py."""

import math
import sys
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ._core import powers  # noqa: F401  registers norms of any order
from ._core.checks import Dims, as_dtype, check_dims, check_dtype, either_keepdim, listed, overloads
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
    """Return the vector norm over dim, as torch.linalg.vector_norm.

    - ord=0: the number of nonzero elements
    - ord=1: the sum of the absolute values
    - ord=2: the square root of the sum of the squares
    - ord=inf, ord=-inf: the maximum and the minimum of the absolute values
    - any other number: sum(abs(x) ** ord) ** (1 / ord)

    x must be floating. The result's dtype is dtype, or out's, else x's; dtype may not be narrower than x's. Sums are
    accumulated in float32, or in float64 if x or the result is float64; squares are added by fused multiply-adds. The
    result is rounded once. Orders of the last kind are computed in float64, in tens of passes over a float64 copy of x.
    There only the norm itself, or its ratio to the dominant absolute value, can overflow or underflow.

    The result is NaN if any element is NaN, except for order 0. Without elements it is 0; infinite and negative orders
    raise RuntimeError. Raises RuntimeError for an order that is NaN or out of float64's range, NotImplementedError for
    an order that is not a number.

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
    """Return vector_norm of order p, as torch.norm for vectors.

    p may also be "fro" or None; both mean 2.

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
    if isinstance(order, Tensor) and order.ndim == 0 and not order.dtype.is_complex and order.dtype != torch.bool:
        order = order.item()
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
        given = f"an int of {order.bit_length()} bits" if isinstance(order, int) else order
        raise RuntimeError(f"{name}(): the order must be a number in float64's range, or infinite, but got {given}")
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
