"""Matrix products in one order, which enable(products=True) overrides torch's by: rules as those of rules.py.

The op torchreduce::product calls cuBLASLt on a GPU (csrc/binding/products.cpp). csrc/binding/aten.cpp has the rules in
C++ for eager calls.
"""

import functools
import math
from typing import Any

import torch
from torch import Tensor

from .._core.dispatch import LIBRARY
from .rules import Call, Rule, Torchs
from .table import PRODUCTS

_op, _aten = torch.ops.torchreduce.product.raw, torch.ops.aten
_convert = torch.ops.prims.convert_element_type.default


def _product(
    left: Tensor, right: Tensor, added: Tensor | None, beta: float, alpha: float, dtype: torch.dtype | None
) -> Tensor:
    """The fake kernel."""
    return left.new_empty((*left.shape[:-1], right.shape[-1]), dtype=dtype or left.dtype)


torch.library.register_fake("torchreduce::product.raw", _product, lib=LIBRARY)
LIBRARY.impl("product.raw", torch.library.fallthrough_kernel, "Autograd")


def is_served_on(device: torch.device) -> bool:
    """On a CPU, too: its product is made of torch's of 32 rows (csrc/binding/products.cpp)."""
    if device.type == "cpu":
        return True
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)


@functools.cache
def rules(with_float32: bool) -> dict[str, Rule]:
    """By aten's overload; those that write have the rule of those that do not."""
    dtypes = (torch.float16, torch.bfloat16, *([torch.float32] if with_float32 else []))

    def multiply(
        left: Tensor,
        right: Tensor,
        added: Any = None,
        beta: Any = 1,
        alpha: Any = 1,
        dtype: torch.dtype | None = None,
        dims: int = 2,
    ) -> Call:
        result = dtype or left.dtype
        if left.device != right.device or not is_served_on(left.device):
            raise Torchs("kind")
        if left.dtype not in dtypes or right.dtype != left.dtype or result not in (left.dtype, torch.float32):
            raise Torchs("dtype")
        if left.dim() != dims or right.dim() != dims or left.shape[-1] != right.shape[-2]:
            raise Torchs("dims")
        if dims == 3 and left.shape[0] != right.shape[0]:
            raise Torchs("dims")
        if any(not isinstance(n, torch.SymInt) and n == 0 for n in (*left.shape, *right.shape)):
            raise Torchs("empty")
        _check_option(left, dtype, beta, alpha)
        if added is not None:
            if added.dtype != result:
                raise Torchs("dtype")
            if added.device != left.device:
                raise Torchs("kind")
            shape = (*left.shape[:-1], right.shape[-1])
            fits = (n == 1 or n == of for n, of in zip(reversed(added.shape), reversed(shape), strict=False))
            if added.dim() > dims or not all(fits):
                raise Torchs("dims")
        added = None if _is_zero(beta) else added
        return Call(_op, (left, right, added, float(beta), float(alpha), dtype))

    # Parameters are named as in aten's schemas.
    def mm(dims: int) -> Rule:
        return lambda x, mat2, out_dtype=None: multiply(x, mat2, dtype=out_dtype, dims=dims)

    def addmm(x: Tensor, mat1: Tensor, mat2: Tensor, out_dtype: Any = None, *, beta: Any = 1, alpha: Any = 1) -> Call:
        return multiply(mat1, mat2, x, beta, alpha, out_dtype)

    def baddbmm(
        x: Tensor, batch1: Tensor, batch2: Tensor, out_dtype: Any = None, *, beta: Any = 1, alpha: Any = 1
    ) -> Call:
        return multiply(batch1, batch2, x, beta, alpha, out_dtype, dims=3)

    # A vector is checked as a column, and made one in the call.
    def mv(x: Tensor, vec: Tensor) -> Call:
        _check_dims((x, 2), (vec, 1))
        return _column(multiply(x, vec.unsqueeze(1)), x, vec)

    def addmv(x: Tensor, mat: Tensor, vec: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Call:
        _check_dims((x, min(x.dim(), 1)), (mat, 2), (vec, 1))
        checked = multiply(mat, vec.unsqueeze(1), x.unsqueeze(1) if x.dim() else x, beta, alpha)
        return _column(checked, mat, vec, None if _is_zero(beta) else x)

    def dot(x: Tensor, tensor: Tensor) -> Call:
        _check_dims((x, 1), (tensor, 1))
        if x.device != tensor.device or not is_served_on(x.device):
            raise Torchs("kind")
        if x.dtype not in dtypes or tensor.dtype != x.dtype:
            raise Torchs("dtype")
        if x.shape != tensor.shape:
            raise Torchs("dims")
        _check_option(x, None, 1, 1)
        a, b = (Call(_convert, (t, torch.float32)) for t in (x, tensor))
        return Call(torch.ops.torchreduce.sum.raw, (Call(_aten.mul.Tensor, (a, b)), None, False, x.dtype, 0))

    def activated(
        x: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1, use_gelu: bool = False
    ) -> Call:
        made = multiply(mat1, mat2, x, beta, alpha)
        if use_gelu and not x.is_cpu:  # torch's is another one there, by an argument that has no place in a call
            raise Torchs("option")
        return Call(_aten.gelu.default if use_gelu else _aten.relu.default, (made,))

    made: dict[str, Rule] = {
        "mm": mm(2), "addmm": addmm, "bmm": mm(3), "baddbmm": baddbmm, "activated": activated,
        "mv": mv, "addmv": addmv, "dot": dot,
    }  # fmt: skip
    return {name: made[row.rule] for row in PRODUCTS for name in row.overloads.split()}


def _is_zero(beta: Any) -> bool:
    """In float32, as the kernels take it."""
    return abs(float(beta)) <= 2.0**-150


def _check_option(left: Tensor, dtype: torch.dtype | None, beta: Any, alpha: Any) -> None:
    if left.is_cpu and (dtype is not None or torch.get_float32_matmul_precision() != "highest"):
        raise Torchs("option")
    if isinstance(beta, complex) or isinstance(alpha, complex) or _is_zero(alpha):
        raise Torchs("option")
    if any(math.isfinite(s) and abs(s) > torch.finfo(torch.float32).max for s in (beta, alpha)):
        raise Torchs("option")


def _check_dims(*expected: tuple[Tensor, int]) -> None:
    if any(t.dim() != dims for t, dims in expected):
        raise Torchs("dims")


def _column(checked: Call, matrix: Any, vector: Tensor, added: Tensor | None = None) -> Call:
    """The call with a matrix of one column, as a vector."""
    beta, alpha, dtype = checked.args[3:]
    of = added if added is None or not added.dim() else Call(_aten.unsqueeze.default, (added, 1))
    right = Call(_aten.unsqueeze.default, (vector, 1))
    return Call(_aten.squeeze.dim, (Call(_op, (matrix, right, of, beta, alpha, dtype)), 1))


OVERLOADS = tuple(name for row in PRODUCTS for name in row.overloads.split())
