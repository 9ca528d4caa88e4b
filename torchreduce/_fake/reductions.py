"""Registrations of every op besides its kernels, made from the op table: fake kernels (shape and dtype of results, for
meta tensors and tracing), batching rules for torch.vmap, and .raw, which bypasses autograd. linear_scan, which takes
two tensors, has its own in autograd_scans.py."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._core.dispatch import LIBRARY, register_out
from ..table import OPS, PAIRS, Op


def dims_of(ndim: int, dims: Sequence[int] | None) -> list[int]:
    """The dims that an op's argument means, ascending, in [0, ndim): None and [] are all of them."""
    return sorted(d % ndim for d in dims) if dims and ndim else list(range(ndim))


def decided(comparison: Any, otherwise: bool) -> bool:
    """A comparison of sizes; `otherwise` where only a run will know."""
    if isinstance(comparison, Tensor):  # a trace of torch.jit
        return otherwise
    if not isinstance(comparison, torch.SymBool) and not torch.compiler.is_dynamo_compiling():
        return bool(comparison)
    from torch.fx.experimental.symbolic_shapes import guard_or_false, guard_or_true

    return bool(guard_or_true(comparison) if otherwise else guard_or_false(comparison))


def same_shape(a: Sequence[int], b: Sequence[int]) -> bool:
    """Sizes that only a run will know are taken as equal."""
    return len(a) == len(b) and all(decided(x == y, True) for x, y in zip(a, b, strict=True))


def broadcast_shape(a: Sequence[int], b: Sequence[int]) -> list[int] | None:
    """The shape that two broadcast to; None if they do not. Sizes that only a run will know are taken as equal."""
    short, long = sorted((list(a), list(b)), key=len)
    shape = long[: len(long) - len(short)]
    for x, y in zip(short, long[len(shape) :], strict=True):
        if decided(x == y, False) or decided(y == 1, False):
            shape.append(x)
        elif decided(x == 1, False) or decided(x == y, True):
            shape.append(y)
        else:
            return None
    return shape


def reduced_shape(shape: Sequence[int], dims: Sequence[int] | None, keepdim: bool) -> list[int]:
    """The shape of a reduction's result."""
    along = dims_of(len(shape), dims)
    return [1 if d in along else size for d, size in enumerate(shape) if keepdim or d not in along]


def _arguments(op: Op, args: Sequence[Any]) -> tuple[Sequence[int] | None, bool, torch.dtype | None]:
    """dims, keepdim and dtype of a reduction, out of the arguments after its input."""
    rest = list(args)
    dims = None if op.dims == "all" else rest.pop(0)
    return dims, rest[0], rest[1] if op.results else None


def fake_kernel(op: Op) -> Callable[..., Any]:
    """Allocates the results, contiguous as the kernels make them."""

    def scan(x: Tensor, dim: int, *args: Any) -> Any:
        result = x.new_empty(x.shape, dtype=op.result_dtype(x.dtype, args[0] if op.results else None))
        return result if len(op.returns) == 1 else (result, x.new_empty(x.shape, dtype=torch.int64))

    def reduction(x: Tensor, *args: Any) -> Any:
        dims, keepdim, dtype = _arguments(op, args)
        shape = reduced_shape(x.shape, dims, keepdim)
        values = op.result_dtype(x.dtype, dtype)
        result = x.new_empty(shape, dtype=values)
        if len(op.returns) == 1:
            return result
        return result, x.new_empty(shape, dtype=values if op.returns[1] == "values" else torch.int64)

    return scan if op.kind == "scan" else reduction


def writes_only(*args: Any, **outputs: Tensor) -> None:
    """The fake kernel of what writes to given tensors: outputs have their shape and dtype already."""


def batching_rule(op: Op) -> Callable[..., Any]:
    """Takes the batch dim along as one more kept dim. By batch invariance this is bitwise identical to a loop.

    A batched max without dims is amax over the others, so where values are NaN its gradient is amax's.
    """
    default = getattr(torch.ops.torchreduce, op.name).default
    over_dims = getattr(torch.ops.torchreduce, op.name.replace("max_all", "amax").replace("min_all", "amin")).default

    def scan(info: Any, in_dims: Any, x: Tensor, dim: int, *args: Any) -> tuple[Any, Any]:
        x = x.movedim(in_dims[0], 0)
        if x.dim() == 1:  # a batch of 0-d tensors
            result = default(x.unsqueeze(1), 1, *args)
            result = result.squeeze(1) if isinstance(result, Tensor) else tuple(r.squeeze(1) for r in result)
        else:
            result = default(x, 1 + dim % (x.dim() - 1), *args)
        return result, 0 if isinstance(result, Tensor) else (0,) * len(result)

    def reduction(info: Any, in_dims: Any, x: Tensor, *args: Any) -> tuple[Any, Any]:
        x = x.movedim(in_dims[0], 0)
        dims, keepdim, _ = _arguments(op, args)
        along, keepdim = [1 + d for d in dims_of(x.dim() - 1, dims)], keepdim and x.dim() > 1
        if x.dim() == 1:
            x, along = x.unsqueeze(1), [1]
        after = args[1:] if op.dims == "all" else args[2:]
        result = over_dims(x, along, keepdim, *after)
        return result, 0 if isinstance(result, Tensor) else (0,) * len(result)

    return scan if op.kind == "scan" else reduction


for _op in (*OPS, *PAIRS):
    _name = f"torchreduce::{_op.name}"
    torch.library.register_fake(_name, fake_kernel(_op), lib=LIBRARY)
    torch.library.register_fake(f"{_name}.raw", fake_kernel(_op), lib=LIBRARY)
    for _overload in (".out", ".raw_out"):
        torch.library.register_fake(_name + _overload, writes_only, lib=LIBRARY)
    torch.library.register_vmap(_name, batching_rule(_op), lib=LIBRARY)
    torch.library.register_vmap(f"{_name}.raw", batching_rule(_op), lib=LIBRARY)
    # Straight to the kernels, whatever requires a gradient.
    for _overload in (".raw", ".raw_out") if _op.differentiable else ("", ".raw", ".raw_out"):
        LIBRARY.impl(_op.name + _overload, torch.library.fallthrough_kernel, "Autograd")
    register_out(_op.function, getattr(torch.ops.torchreduce, _op.name))
