"""Gradients of average pools in one order: an element's is the sum of those of the windows that it lies in.

The sums go dim by dim, the last one first, each torchreduce's over the windows in their order. Terms and sums are in
float32 at least, and rounded once. torch's kernels for GPUs add in the order of arrival.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import ops
from .._autograd.reductions import rounded
from .rules import Torchs


@dataclass(frozen=True)
class _Windows:
    """Of one dim: of which windows an element is, as numbers from `first` to before `end`; how many each divides by."""

    first: Tensor
    end: Tensor
    most: int  # of one element
    lengths: Tensor
    is_one: bool  # whether each element is of exactly one


def _adaptive(size: int, n: int, device: torch.device) -> _Windows:
    """Window i is from i size // n to before (i + 1) size / n, rounded up. So are the windows of an element."""
    i, p = torch.arange(n, device=device), torch.arange(size, device=device)
    most = max(-(-(q + 1) * n // size) - q * n // size for q in range(size))
    lengths = -(-(i + 1) * size // n) - i * size // n
    return _Windows(p * n // size, -(-(p + 1) * n // size), most, lengths, size % n == 0)


def _strided(
    size: int, n: int, kernel: int, stride: int, padding: int, of_padding: bool, device: torch.device
) -> _Windows:
    i, p = torch.arange(n, device=device), torch.arange(size, device=device)
    start = i * stride - padding
    counted = (start + kernel).clamp(max=size + padding) - start
    if not of_padding:
        counted = (start + kernel).clamp(max=size) - start.clamp(min=0)
    first, end = (p + padding - kernel) // stride + 1, (p + padding) // stride + 1
    return _Windows(first.clamp(min=0), end.clamp(max=n), -(-kernel // stride), counted, False)


def _along(g: Tensor, dim: int, windows: _Windows) -> Tensor:
    """The sums for each element along a dim of windows."""
    if windows.is_one:
        return g.index_select(dim, windows.first)
    at = windows.first[:, None] + torch.arange(windows.most, device=g.device)
    terms = g.index_select(dim, at.clamp(max=g.shape[dim] - 1).flatten()).unflatten(dim, at.shape)
    is_term = (at < windows.end[:, None]).reshape(*at.shape, *(1 for _ in range(g.dim() - 1 - dim)))
    return ops.sum(terms.masked_fill(~is_term, 0), dim + 1)


def _spread(g: Tensor, x: Tensor, dims: int, divisor: int | None, of: Callable[[int, int, int], _Windows]) -> Tensor:
    """The gradient of x, whose last dims are pooled, from that of the windows: of(i, size, n) are those of the last
    dims. Their sizes are fixed in compiled code."""
    if x.dtype != g.dtype:
        raise Torchs("dtype")
    if x.device != g.device:
        raise Torchs("kind")
    if g.dim() != x.dim() or x.dim() not in (dims + 1, dims + 2) or x.shape[:-dims] != g.shape[:-dims]:
        raise Torchs("dims")
    if any(not isinstance(n, torch.SymInt) and n == 0 for n in (*x.shape, *g.shape)):
        raise Torchs("empty")
    windows = [of(i, int(x.shape[i - dims]), int(g.shape[i - dims])) for i in range(dims)]
    made = g.to(torch.promote_types(g.dtype, torch.float32))
    lengths = windows[0].lengths
    for each in windows[1:]:
        lengths = lengths[..., None] * each.lengths
    made = made / (lengths if divisor is None else divisor)
    for i in reversed(range(dims)):
        made = _along(made, g.dim() - dims + i, windows[i])
    made = rounded(made, g.dtype)
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if last is not None and not x.is_contiguous() and x.is_contiguous(memory_format=last):
        made = made.contiguous(memory_format=last)
    return made


def _adaptive_gradient(dims: int) -> Callable[..., Tensor]:
    def gradient(g: Tensor, x: Tensor) -> Tensor:
        return _spread(g, x, dims, None, lambda i, size, n: _adaptive(size, n, g.device))

    return gradient


def _three(values: Sequence[int], otherwise: Sequence[int] = ()) -> Sequence[int]:
    return tuple(values) * (3 // len(values)) if values else otherwise


def _avg_pool3d_gradient(
    g: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, ceil_mode: Any, of_padding: bool, divisor: int | None
) -> Tensor:
    kernel = _three(kernel)
    stride, padding = _three(stride, kernel), _three(padding)

    def windows(i: int, size: int, n: int) -> _Windows:
        return _strided(size, n, kernel[i], stride[i], padding[i], of_padding, g.device)

    return _spread(g, x, 3, divisor, windows)


GRADIENTS: dict[str, Callable[..., Tensor]] = {
    "_adaptive_avg_pool2d_backward": _adaptive_gradient(2),
    "_adaptive_avg_pool3d_backward": _adaptive_gradient(3),
    "avg_pool3d_backward": _avg_pool3d_gradient,
}
