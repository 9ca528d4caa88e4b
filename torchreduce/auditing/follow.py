"""How two runs relate: which rows of their tensors have to be bitwise identical."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree

from .record import Seen


@dataclass(frozen=True)
class Batch:
    """How a batch is divided into rows, for audit(batch=...).

    size is the number of rows. take(rows) returns the arguments of the function for a list of rows, which may repeat.
    follow(shape, rows) says where rows lie in a tensor of a run with these rows: the dim, and for each index along it
    the place in `rows` of the row that it belongs to, or -1 for none; or None for a tensor without rows. Without follow
    rows lie along the dim whose size changes with their number: n * k elements, k for each row.

    Sequences of 3, 5 and 2 tokens, packed:

    >>> import torch, torchreduce
    >>> from torchreduce.auditing import Batch
    >>> sequences = [torch.randn(n, 16) for n in (3, 5, 2)]
    >>> def follow(shape, rows):
    ...     ids = [place for place, row in enumerate(rows) for _ in sequences[row]]
    ...     return (0, ids) if shape and shape[0] == len(ids) else None
    >>> packed = Batch(3, lambda rows: (torch.cat([sequences[row] for row in rows]),), follow)
    >>> torchreduce.audit(torch.relu, batch=packed, vary=("batch", "order")).ok
    True
    """

    size: int
    take: Callable[[list[int]], Sequence[Any]]
    follow: Callable[[torch.Size, list[int]], tuple[int, Sequence[int]] | None] | None = None


def leaf_like(t: Tensor, made: Tensor) -> Tensor:
    """As an argument in the place of t."""
    return made.detach().requires_grad_(t.requires_grad)


def batch_of(args: Sequence[Any], dim: int) -> Batch | None:
    """Rows along a dim of the arguments: of all tensors that have as many there as the first one."""
    leaves, spec = _pytree.tree_flatten(tuple(args))
    sizes = [t.shape[dim] for t in leaves if isinstance(t, Tensor) and -t.dim() <= dim < t.dim()]
    if not sizes or sizes[0] == 0:
        return None

    def take(rows: list[int]) -> Sequence[Any]:
        def of(t: Any) -> Any:
            if not isinstance(t, Tensor) or not -t.dim() <= dim < t.dim() or t.shape[dim] != sizes[0]:
                return t
            return leaf_like(t, t.index_select(dim, torch.tensor(rows, device=t.device)))

        taken: Sequence[Any] = _pytree.tree_unflatten([of(t) for t in leaves], spec)
        return taken

    return Batch(sizes[0], take)


@dataclass(frozen=True)
class Relation:
    """Of a run to the first run."""

    batch: Batch | None = None
    rows: list[int] | None = None  # of the batch, those that this run has; -1: another's. None: it has the same tensors
    is_padded: bool = False
    is_of_ranks: bool = False  # what has no rows is of all processes together, after collectives

    def same(self, base: Seen, other: Seen) -> bool | None:
        """Whether what this run has is bitwise identical in the first one; None if that cannot be compared."""
        if base.token is not None or other.token is not None:
            return True if base.token == other.token else None
        if base.dtype != other.dtype or len(base.shape) != len(other.shape):
            return None
        if self.rows is None or base.dim is None:
            if base.shape != other.shape and not self.is_padded:
                return None
            mine = base.hashes[0].tobytes()
            return any(mine == hashes.tobytes() for hashes in other.hashes)
        dim = base.dim
        if other.dim != dim or base.shape[:dim] != other.shape[:dim] or base.shape[dim + 1 :] != other.shape[dim + 1 :]:
            return None
        return self._same_rows(base.hashes[0], other.hashes[0], base, other)

    def _same_rows(self, h: Any, g: Any, base: Seen, other: Seen) -> bool | None:
        assert self.batch is not None and self.rows is not None
        n, rows = self.batch.size, self.rows
        if self.batch.follow is not None:
            ids = [_ids(self.batch.follow, seen, of) for seen, of in ((base, list(range(n))), (other, rows))]
            if ids[0] is None or ids[1] is None:
                return None
            pairs = [(row, place) for place, row in enumerate(rows) if row >= 0]
            return all(np.array_equal(h[ids[0] == row], g[ids[1] == place]) for row, place in pairs)
        sizes = base.shape[base.dim or 0], other.shape[base.dim or 0]
        if sizes[0] % n or sizes[0] // n * len(rows) != sizes[1]:
            return None
        if len(h) != sizes[0]:  # by_row's
            return self._are_same(h[:n], g[: len(rows)]) or self._are_same(h[n:], g[len(rows) :])
        if self._are_same(h.reshape(n, -1), g.reshape(len(rows), -1)):
            return True
        return sizes[0] > n and self._are_same(h.reshape(-1, n).T, g.reshape(-1, len(rows)).T)

    @cached_property
    def _own(self) -> tuple[Any, Any]:
        """Rows of the first run, and the places in this run that they are in."""
        rows = np.asarray(self.rows)
        return rows[rows >= 0], np.flatnonzero(rows >= 0)

    def _are_same(self, theirs: Any, ours: Any) -> bool:
        rows, places = self._own
        return bool(theirs[rows].tobytes() == ours[places].tobytes())


def _ids(follow: Any, seen: Seen, rows: list[int]) -> Any:
    found = follow(torch.Size(seen.shape), rows)
    return None if found is None or found[0] % len(seen.shape) != seen.dim else np.asarray(found[1])


class Rows:
    """Chooses, in the first run, the dim that rows lie along, from the shapes that a run with fewer rows had."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def __call__(self, t: Tensor, guide: Seen | None) -> tuple[int | None, list[Tensor]]:
        return self._dim(t, guide), [t]

    def _dim(self, t: Tensor, guide: Seen | None) -> int | None:
        if self._batch.follow is not None:
            found = self._batch.follow(t.shape, list(range(self._batch.size)))
            return None if found is None else found[0] % t.dim()
        if guide is None or t.dim() != len(guide.shape):
            return None
        changed = [d for d in range(t.dim()) if t.shape[d] != guide.shape[d]]
        return changed[0] if len(changed) == 1 else None


@dataclass(frozen=True)
class Padded:
    """Chooses, of tensors that are longer than in the first run, the part that is there, too."""

    length: int
    padded: int

    def __call__(self, t: Tensor, guide: Seen | None) -> tuple[int | None, list[Tensor]]:
        if guide is None or t.dim() != len(guide.shape):
            return None, [t]
        # Along a dim of k * length: k sequences after one another, or the elements of k at a time.
        found = [self._part(t, guide.shape, outer) for outer in (True, False)]
        parts = [part for part in found if part is not None and part.shape == guide.shape]
        return guide.dim, parts[:1] if t.shape == guide.shape else parts or [t]

    def _part(self, t: Tensor, shape: tuple[int, ...], outer: bool) -> Tensor | None:
        for d in range(t.dim()):
            n = shape[d]
            if t.shape[d] == n:
                continue
            if n % self.length or n // self.length * self.padded != t.shape[d]:
                return None
            k = n // self.length
            sizes, at = ((k, self.padded), d + 1) if outer else ((self.padded, k), d)
            t = t.unflatten(d, sizes).narrow(at, 0, self.length).flatten(d, d + 1)
        return t
