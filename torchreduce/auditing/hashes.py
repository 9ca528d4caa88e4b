"""Hashes of tensors: exact, computed where the tensor is, equal if and only if the bits are (but for one pair in 2^63).

A hash is the sum, modulo 2^64, of the words of a tensor's bits, each times an odd weight that depends on its position.
Integer sums are exact in any order, so a hash does not depend on strides, threads or the device.
"""

from functools import lru_cache

import torch
from torch import Tensor

_WORD = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHUNK = 4096  # words of a row that are hashed together
_BATCH = 1 << 24  # words that are multiplied at once, in a temporary tensor


@lru_cache(maxsize=64)
def _weights(n: int, device: torch.device) -> Tensor:
    from ..testing import splitmix64

    return torch.from_numpy(splitmix64(n, seed=59).view("int64") | 1).to(device)


def is_hashable(t: Tensor) -> bool:
    """Whether t has bits of its own: a dense tensor with storage."""
    return (
        type(t) in (Tensor, torch.nn.Parameter)
        and t.layout is torch.strided
        and not t.is_quantized
        and t.device.type != "meta"
        and not torch._C._functorch.is_functorch_wrapped_tensor(t)
    )


def _words(t: Tensor, rows: int) -> Tensor:
    """The bits of a tensor as int64, of shape (rows, n)."""
    if t.dtype.is_complex:
        t = torch.view_as_real(t.resolve_conj())
    flat = t.resolve_neg().reshape(rows, -1).contiguous()
    size = flat.element_size()
    if flat.shape[1] * size % 8 == 0:
        if flat.storage_offset() * size % 8:
            flat = flat.clone()
        return flat.view(torch.int64)
    return flat.view(_WORD[size]).to(torch.int64)


def _sums(words: Tensor) -> Tensor:
    """One number for each row of words."""
    rows, n = words.shape
    weights = _weights(n, words.device)
    step = max(1, _BATCH // max(n, 1))
    if rows <= step:
        return (words * weights).sum(-1)
    return torch.cat([(words[i : i + step] * weights).sum(-1) for i in range(0, rows, step)])


def hashes(t: Tensor, dim: int | None = None) -> Tensor:
    """Return the hashes of a tensor: one for each index along dim, or a few for a tensor as a whole.

    Returns int64, of one dim, on the tensor's device. How many there are depends on the shape and the dtype alone.

    >>> import torch
    >>> x = torch.arange(12.0).reshape(3, 4)
    >>> bool((hashes(x, 0) == hashes(x.T, 1)).all())
    True
    >>> bool((hashes(x, 0)[1:] == hashes(x[1:], 0)).all())
    True
    >>> bool((hashes(x) == hashes(-x)).all())
    False
    """
    t = t.detach()
    if t.numel() == 0:
        return torch.zeros(t.shape[dim] if dim is not None else 1, dtype=torch.int64, device=t.device)
    if dim is not None:
        words = _words(t.movedim(dim, 0), t.shape[dim])
        if words.shape[1] <= _BATCH:
            return _sums(words)
        return torch.cat([_sums(hashes(row)[None]) for row in words])
    words = _words(t, 1)[0]
    whole = words.numel() // _CHUNK * _CHUNK
    parts = [_sums(words[:whole].view(-1, _CHUNK))] if whole else []
    parts += [_sums(words[None, whole:])] if whole < words.numel() else []
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def by_row(h: Tensor, rows: int) -> Tensor:
    """Of the hashes of n * k indices: two for each of n rows, in a first half as if the k of a row were neighbors, in a
    second one as if they were n apart. As they are for k up to 2, or if rows is no divisor."""
    if rows == 0 or len(h) % rows or len(h) // rows <= 2:
        return h
    return torch.cat([_sums(h.view(rows, -1)), _sums(h.view(-1, rows).T)])
