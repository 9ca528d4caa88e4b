"""Hashes of tensors: exact, computed where the tensor is, equal if and only if the bits are (but for one pair in 2^63).

A hash is the sum, modulo 2^64, of the words of a tensor's bits, each times an odd weight that depends on its position.
Integer sums are exact in any order, so a hash does not depend on strides, threads or the device.
"""

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

_WORD = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WORD_OF_NUMPY = {1: np.uint8, 2: np.int16, 4: np.int32}
_NUMPYS = frozenset((
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32,
    torch.float64, torch.complex64, torch.complex128,
))  # fmt: skip
_CHUNK = 4096  # words of a row that are hashed together
_BATCH = 1 << 24  # words that are multiplied at once, in a temporary tensor
Array = np.ndarray[Any, Any]

_weights = np.empty(0, np.int64)  # of as many words as were met on a CPU


def _weights_of(n: int) -> Array:
    global _weights
    if n > len(_weights):
        from ..testing import splitmix64

        _weights = splitmix64(max(n, _CHUNK), seed=59).view("int64") | 1
    return _weights[:n]


@lru_cache(maxsize=64)
def _weights_on(n: int, device: torch.device) -> Tensor:
    return torch.from_numpy(_weights_of(n)).to(device)


_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


def kind(t: Tensor) -> int:
    """0 if t has no bits of its own: only dense tensors with storage do. Else 1 if NumPy can read them where they are,
    on a CPU; 2 if not; other numbers of tensors that are conjugated or negated when they are read."""
    if type(t) is not Tensor and type(t) is not torch.nn.Parameter:
        return 0
    if t.layout is not torch.strided or t.is_quantized or t.is_meta or _is_wrapped(t):
        return 0
    if t.is_cpu and not (t.is_conj() or t.is_neg() or t._is_zerotensor()):
        return 1
    return 2 + 4 * t.is_conj() + 8 * t.is_neg() + 16 * t._is_zerotensor()


def is_hashable(t: Tensor) -> bool:
    """Whether t has bits of its own: a dense tensor with storage."""
    return kind(t) != 0


def _array(t: Tensor, rows: int) -> Array:
    """As _words, of a tensor on a CPU."""
    if not t.is_contiguous():
        t = t.contiguous()
    if t.dtype not in _NUMPYS:
        t = torch.view_as_real(t) if t.dtype is torch.complex32 else t
        t = t.view(_WORD[t.element_size()])
    flat: Array = t.numpy().reshape(rows, -1)
    size = flat.itemsize
    if flat.shape[1] * size % 8 == 0:
        return flat.view(np.int64)
    return flat.view(_WORD_OF_NUMPY[size]).astype(np.int64)


def _words(t: Tensor, rows: int) -> Tensor:
    """The bits of a tensor as int64, of shape (rows, n)."""
    if t.dtype.is_complex:
        t = torch.view_as_real(t.resolve_conj())
    flat = (t.resolve_neg() if t.is_neg() else t).reshape(rows, -1).contiguous()
    size = flat.element_size()
    if flat.shape[1] * size % 8 == 0:
        if flat.storage_offset() * size % 8:
            flat = flat.clone()
        return flat.view(torch.int64)
    return flat.view(_WORD[size]).to(torch.int64)


def _sums(words: Any) -> Any:
    """One number for each row of words."""
    rows, n = words.shape
    if isinstance(words, np.ndarray):
        return words @ _weights_of(n)
    weights = _weights_on(n, words.device)
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
    found = hashed(t, dim)
    return torch.from_numpy(found) if isinstance(found, np.ndarray) else found


def hashed(t: Tensor, dim: int | None = None) -> Any:
    """As hashes(), but an array of a tensor on a CPU."""
    is_array = kind(t) == 1
    if t.requires_grad:
        t = t.detach()
    rows = 1 if dim is None else t.shape[dim]
    if t.numel() == 0:
        return np.zeros(rows, np.int64) if is_array else torch.zeros(rows, dtype=torch.int64, device=t.device)
    if dim:
        t = t.movedim(dim, 0)
    words = _array(t, rows) if is_array else _words(t, rows)
    n = words.shape[1]
    if n > (_CHUNK if dim is None else _BATCH):
        return _parts(words) if dim is None else _joined([_sums(_parts(row[None])[None]) for row in words])
    return words @ _weights_of(n) if is_array else _sums(words)


def _parts(words: Any) -> Any:
    """The hashes of one row of words."""
    n = words.shape[1]
    if n <= _CHUNK:
        return _sums(words)
    whole = n // _CHUNK * _CHUNK
    head = _sums(words[0, :whole].reshape(-1, _CHUNK))
    return _joined([head, _sums(words[:, whole:])]) if whole < n else head


def _joined(parts: list[Any]) -> Any:
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else torch.cat(parts)


def by_row(h: Any, rows: int) -> Any:
    """Of the hashes of n * k indices: two for each of n rows, in a first half as if the k of a row were neighbors, in a
    second one as if they were n apart. As they are for k up to 2, or if rows is no divisor."""
    if rows == 0 or len(h) % rows or len(h) // rows <= 2:
        return h
    return _joined([_sums(h.reshape(rows, -1)), _sums(h.reshape(-1, rows).T)])
