"""Registrations of the row-wise ops, as fake.py has them for the other ops: fake kernels (shapes and dtypes of
results), batching rules for torch.vmap, and .raw, which bypasses autograd.

An op is described by the kinds of its arguments and results:

    x        has an element for each, of the shape of all such
    rows     has one a row, with size 1 along the rows' dims unless keepdim says otherwise
    labels   has one a row, without the rows' dim
    stats    planes of what has one a row, the dims of x after the first
    weight   has one a position of a row; positions are the last dims
    dim, dims, keepdim   the rows' dim, their dims (None or []: all) and whether results have them
    trailing the number of the rows' dims, which are the last ones
    -        anything else
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from .._core.dispatch import LIBRARY, register_out
from ..table import KEEPING_SHAPE, MOST_DIMS
from .reductions import dims_of, reduced_shape, writes_only

_ops = torch.ops.torchreduce


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


def _softmax(x: Tensor, dim: int, dtype: torch.dtype | None, level: int) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype or x.dtype)


def _softmax_gradient(g: Tensor, y: Tensor, dim: int, dtype: torch.dtype, level: int) -> Tensor:
    return g.new_empty(g.shape, dtype=dtype)


def _stats(planes: int, x: Tensor, dims: Sequence[int] | None) -> Tensor:
    if x.dim() == MOST_DIMS:
        raise RuntimeError(f"a row-wise op with statistics: at most {MOST_DIMS - 1} dims are supported, got {x.dim()}")
    return x.new_empty([planes, *reduced_shape(x.shape, dims, True)], dtype=wide(x.dtype))


def _row_values(planes: int) -> Callable[..., Any]:
    def kernel(x: Tensor, dims: Sequence[int] | None, keepdim: bool, level: int) -> Any:
        return x.new_empty(reduced_shape(x.shape, dims, keepdim)), _stats(planes, x, dims)

    return kernel


def _moments(x: Tensor, dims: Any, keepdim: bool, correction: float, root: bool, level: int) -> Any:
    shape = reduced_shape(x.shape, dims, keepdim)
    return x.new_empty(shape), x.new_empty(shape), _stats(3, x, dims)


def trailing(x: Tensor, dims: int) -> list[int]:
    return list(range(x.dim() - dims, x.dim()))


def _in_format(x: Tensor) -> Tensor:
    """Channels last where x is, else contiguous."""
    return torch.empty_like(x, memory_format=suggest_memory_format(x))


def _rms_norm(x: Tensor, weight: Tensor | None, dims: int, epsilon: float, level: int) -> Any:
    return _in_format(x), _stats(1, x, trailing(x, dims) if dims else [])


def _layer_norm(x: Tensor, weight: Any, bias: Any, dims: int, epsilon: float, level: int) -> Any:
    return x.new_empty(x.shape), _stats(3, x, trailing(x, dims) if dims else [])


def _norm_sum(norm: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(x: Tensor, residual: Tensor, *rest: Any) -> Any:
        out, stats = norm(x, *rest)
        return out, torch.empty_like(out), stats

    return kernel


def _weights(count: int) -> Callable[..., Any]:
    def kernel(g: Tensor, x: Tensor, stats: Tensor, dims: int, epsilon: float, dtype: torch.dtype, level: int) -> Any:
        results = tuple(x.new_empty(x.shape[x.dim() - dims :], dtype=dtype) for _ in range(count))
        return results if count > 1 else results[0]

    return kernel


def _cross_entropy_backward(
    g: Tensor, to_log: Tensor | None, x: Tensor, target: Tensor, weight: Tensor | None, stats: Tensor, dim: int,
    ignored: int, smoothing: float, granule: int, level: int,
) -> Tensor:  # fmt: skip
    return x.new_empty([*x.shape[:-1], *(-(-n // granule) * granule for n in x.shape[-1:])])


def _embedding_backward(g: Tensor, indices: Tensor, count: int, skipped: int, level: int) -> Tensor:
    return g.new_empty([count, g.shape[-1]])


def _cross_entropy(x: Tensor, target: Tensor, weight: Tensor | None, dim: int, ignored: int, level: int) -> Any:
    loss, weights = (x.new_empty(target.shape, dtype=wide(x.dtype)) for _ in range(2))
    return loss, weights, _stats(2, x, [dim])


def _cross_entropy_and_log(x: Tensor, target: Tensor, *rest: Any) -> Any:
    loss, weights, stats = _cross_entropy(x, target, *rest)
    return loss, torch.empty_like(loss), weights, stats


def _like(which: int) -> Callable[..., Tensor]:
    def kernel(*args: Any) -> Tensor:
        return args[which].new_empty(args[which].shape)  # type: ignore[no-any-return]

    return kernel


def _rms_norm_gradient(g: Tensor, *args: Any) -> Tensor:
    return _in_format(g)


def _backward(count: int) -> Callable[..., Any]:
    def kernel(
        g: Tensor, x: Tensor, weight: Any, stats: Tensor, dims: int, epsilon: float, dtype: torch.dtype, level: int
    ) -> Any:
        to_x = _in_format(g) if count == 1 else x.new_empty(x.shape)
        return to_x, *(x.new_empty(x.shape[x.dim() - dims :], dtype=dtype) for _ in range(count))

    return kernel


# By name: what the arguments before the level are, what the results are, the fake kernel.
SIGNATURES: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "softmax": ("x dim -", "x", _softmax),
    "log_softmax": ("x dim -", "x", _softmax),
    "softmax_gradient": ("x x dim -", "x", _softmax_gradient),
    "log_softmax_gradient": ("x x dim -", "x", _softmax_gradient),
    "logsumexp": ("x dims keepdim", "rows stats", _row_values(2)),
    "logsumexp_gradient": ("rows x stats dims", "x", _like(1)),
    "entropy": ("x dims keepdim", "rows stats", _row_values(3)),
    "entropy_gradient": ("rows x stats dims", "x", _like(1)),
    "moments": ("x dims keepdim - -", "rows rows stats", _moments),
    "moments_gradient": ("rows rows x stats dims - -", "x", _like(2)),
    "rms_norm": ("x weight trailing -", "x stats", _rms_norm),
    "rms_norm_sum": ("x x weight trailing -", "x x stats", _norm_sum(_rms_norm)),
    "rms_norm_gradient": ("x x weight stats trailing -", "x", _rms_norm_gradient),
    "rms_norm_weights": ("x x stats trailing - -", "weight", _weights(1)),
    "layer_norm": ("x weight weight trailing -", "x stats", _layer_norm),
    "layer_norm_sum": ("x x weight weight trailing -", "x x stats", _norm_sum(_layer_norm)),
    "layer_norm_gradient": ("x x weight stats trailing -", "x", _like(1)),
    "layer_norm_weights": ("x x stats trailing - -", "weight weight", _weights(2)),
    "cross_entropy": ("x labels weight dim -", "labels labels stats", _cross_entropy),
    "cross_entropy_and_log": ("x labels weight dim -", "labels labels labels stats", _cross_entropy_and_log),
    "cross_entropy_gradient": ("labels labels x labels weight stats dim - -", "x", _like(2)),
}


def batching_rule(name: str) -> Callable[..., Any]:
    """Takes the batch dim along as one more dim of the rows' index. By batch invariance this is bitwise identical to a
    loop. Weights and their gradients, which belong to no row, are looped over."""
    arguments, results, _ = SIGNATURES[name]
    kinds, returned = arguments.split(), results.split()
    default = getattr(_ops, name).default

    def looped(info: Any, in_dims: Any, args: Any) -> Any:
        def at(i: int) -> Any:
            picked = [a if d is None else a.select(d, i) for a, d in zip(args, in_dims, strict=True)]
            out = default(*picked)
            return out if isinstance(out, tuple) else (out,)

        each = [at(i) for i in range(info.batch_size)]
        stacked = tuple(torch.stack([out[k] for out in each]) for k in range(len(returned)))
        return (stacked, (0,) * len(stacked)) if len(stacked) > 1 else (stacked[0], 0)

    def rule(info: Any, in_dims: Any, *args: Any) -> Any:
        in_dims = (*in_dims, *[None] * (len(args) - len(in_dims)))
        batched_weight = any(k == "weight" and d is not None for k, d in zip(kinds, in_dims, strict=False))
        if batched_weight or "weight" in returned:
            return looped(info, in_dims, args)
        x, x_dim = next((a, d) for k, a, d in zip(kinds, args, in_dims, strict=False) if k == "x")
        rank = x.dim() - (x_dim is not None)
        scalar = rank == 0

        def moved(kind: str, t: Tensor | None, d: int | None) -> Tensor | None:
            if t is None:
                return None
            to = 1 if kind == "stats" else 0
            if d is None:
                t = t.unsqueeze(to)
                t = t.expand([info.batch_size if i == to else size for i, size in enumerate(t.shape)])
            else:
                t = t.movedim(d, to)
            return t.unsqueeze(-1) if scalar and kind != "labels" else t

        def argument(kind: str, value: Any, d: int | None) -> Any:
            if kind in ("x", "rows", "labels", "stats"):
                return moved(kind, value, d)
            if kind == "dim":
                return 1 if scalar else 1 + value % rank
            if kind == "dims":
                return [1] if scalar else [1 + i for i in dims_of(rank, value)]
            return value

        out = default(*(argument(*each) for each in zip([*kinds, "-"], args, in_dims, strict=True)))
        out = out if isinstance(out, tuple) else (out,)
        if scalar:
            keepdim = "keepdim" in kinds and args[kinds.index("keepdim")]
            out = tuple(t.squeeze(-1) if k in ("x", "stats") or (k == "rows" and keepdim) else t
                        for k, t in zip(returned, out, strict=True))  # fmt: skip
        out_dims = tuple(1 if k == "stats" else 0 for k in returned)
        return (out, out_dims) if len(out) > 1 else (out[0], 0)

    return rule


for _name, (_, _, _kernel) in SIGNATURES.items():
    for _overload in ("", ".raw"):
        torch.library.register_fake(f"torchreduce::{_name}{_overload}", _kernel, lib=LIBRARY)
        torch.library.register_vmap(f"torchreduce::{_name}{_overload}", batching_rule(_name), lib=LIBRARY)
    LIBRARY.impl(f"{_name}.raw", torch.library.fallthrough_kernel, "Autograd")

for _name in KEEPING_SHAPE:
    for _overload in (".out", ".raw_out"):
        torch.library.register_fake(f"torchreduce::{_name}{_overload}", writes_only, lib=LIBRARY)
    LIBRARY.impl(f"{_name}.raw_out", torch.library.fallthrough_kernel, "Autograd")
    register_out(_name, getattr(_ops, _name))


def _rms_norm_as(x: Tensor, weight: Tensor | None, dims: int, epsilon: float, dtype: torch.dtype, level: int) -> Any:
    out, stats = _rms_norm(x, weight, dims, epsilon, level)
    return out.to(dtype), stats


def _layer_norm_as(x: Tensor, weight: Any, bias: Any, dims: int, epsilon: float, dtype: torch.dtype, level: int) -> Any:
    out, stats = _layer_norm(x, weight, bias, dims, epsilon, level)
    return out.to(dtype), stats


def _mean_loss(losses: Tensor, weights: Tensor, counts: bool, dtype: torch.dtype, level: int) -> Any:
    return losses.new_empty((), dtype=dtype), losses.new_empty(())


def _mean_cross_entropy(
    x: Tensor, target: Tensor, weight: Tensor | None, dim: int, ignored: int, dtype: torch.dtype, level: int
) -> Any:
    losses, weights, stats = _cross_entropy(x, target, weight, dim, ignored, level)
    return *_mean_loss(losses, weights, weight is None, dtype, level), stats


# Ops that have no overload but .raw.
_BARE: dict[str, Callable[..., Any]] = {
    "rms_norm_as": _rms_norm_as,
    "layer_norm_as": _layer_norm_as,
    "rms_norm_backward": _backward(1),
    "layer_norm_backward": _backward(2),
    "cross_entropy_backward": _cross_entropy_backward,
    "mean_loss": _mean_loss,
    "mean_cross_entropy": _mean_cross_entropy,
    "embedding_backward": _embedding_backward,
}
for _name, _kernel in _BARE.items():
    torch.library.register_fake(f"torchreduce::{_name}.raw", _kernel, lib=LIBRARY)
    LIBRARY.impl(f"{_name}.raw", torch.library.fallthrough_kernel, "Autograd")
