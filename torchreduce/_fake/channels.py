"""Registrations of the norms over channels, as rowwise.py has them for the row-wise ops."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from .._core.dispatch import LIBRARY
from ..table import MOST_DIMS
from .rowwise import wide

_ops = torch.ops.torchreduce


def _like(x: Tensor, groups: int) -> Tensor:
    """Channels last where x is; of groups on a CPU alone, as torch has it."""
    last = groups == 0 or x.device.type == "cpu"
    return torch.empty_like(x, memory_format=suggest_memory_format(x) if last else torch.contiguous_format)


def _channel_norm(x: Tensor, weight: Any, bias: Any, groups: int, epsilon: float, level: int) -> Any:
    if not 2 <= x.dim() < MOST_DIMS:
        raise RuntimeError(f"channel_norm: needs 2 to {MOST_DIMS - 1} dims, got {x.dim()}")
    rows = x.shape[0] * groups if groups else x.shape[1]
    planes = [x.new_empty([count, rows], dtype=wide(x.dtype)) for count in (3, 2)]
    return _like(x, groups), *planes


def _given(x: Tensor, *rest: Any) -> Tensor:
    return _like(x, 0)


def _gradient(g: Tensor, x: Tensor, weight: Any, stats: Tensor, groups: int, *rest: Any) -> Tensor:
    return _like(x, groups)


def _weights(
    g: Tensor, x: Tensor, stats: Tensor, groups: int, given: bool, epsilon: float, dtype: torch.dtype, level: int
) -> Any:
    return tuple(x.new_empty([x.shape[1]], dtype=dtype) for _ in range(2))


def _backward(
    g: Tensor, x: Tensor, weight: Any, stats: Tensor, groups: int, given: bool, epsilon: float, dtype: torch.dtype,
    level: int,
) -> Any:  # fmt: skip
    return _like(x, groups), *_weights(g, x, stats, groups, given, epsilon, dtype, level)


_KERNELS: dict[str, Callable[..., Any]] = {
    "channel_norm": _channel_norm,
    "channel_norm_given": _given,
    "channel_norm_gradient": _gradient,
    "channel_norm_weights": _weights,
}


def looped(op: Any) -> Callable[..., Any]:
    """A batching rule: a call for each, since statistics are of a batch."""

    def rule(info: Any, in_dims: Any, *args: Any) -> Any:
        in_dims = (*in_dims, *[None] * (len(args) - len(in_dims)))

        def at(i: int) -> Any:
            out = op(*(a if d is None else a.select(d, i) for a, d in zip(args, in_dims, strict=True)))
            return out if isinstance(out, tuple) else (out,)

        stacked = tuple(map(torch.stack, zip(*map(at, range(info.batch_size)), strict=True)))
        return (stacked, (0,) * len(stacked)) if len(stacked) > 1 else (stacked[0], 0)

    return rule


for _name, _kernel in _KERNELS.items():
    for _overload in ("", ".raw"):
        torch.library.register_fake(f"torchreduce::{_name}{_overload}", _kernel, lib=LIBRARY)
        _rule = looped(getattr(_ops, _name).default)
        torch.library.register_vmap(f"torchreduce::{_name}{_overload}", _rule, lib=LIBRARY)
    LIBRARY.impl(f"{_name}.raw", torch.library.fallthrough_kernel, "Autograd")
LIBRARY.impl("channel_move.raw", torch.library.fallthrough_kernel, "Autograd")
torch.library.register_fake("torchreduce::channel_norm_backward.raw", _backward, lib=LIBRARY)
LIBRARY.impl("channel_norm_backward.raw", torch.library.fallthrough_kernel, "Autograd")
