"""The variations of a run: its arguments, what is set around it, and how it relates to the first run."""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree

from .follow import Batch, Padded, Relation, batch_of, leaf_like
from .record import Choose, plain


@dataclass
class Run:
    variation: str
    label: str
    args: Sequence[Any]
    relation: Relation = field(default_factory=Relation)
    choose: Choose = plain
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    is_seeded: bool = True  # starts with the random generators of the first run


class Generators:
    """The state of the random generators of torch, NumPy and Python."""

    def __init__(self) -> None:
        self._torch, self._numpy, self._python = torch.get_rng_state(), np.random.get_state(), random.getstate()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def restore(self) -> None:
        torch.set_rng_state(self._torch)
        np.random.set_state(self._numpy)
        random.setstate(self._python)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)


@contextmanager
def _threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _rearranged(t: Any) -> Any:
    """The same elements in the reverse order of dims, every other element of a buffer, from its second one on."""
    if not isinstance(t, Tensor) or t.layout is not torch.strided or t.dim() == 0 or t.is_quantized:
        return t
    buffer = t.new_empty(2 * t.numel() + 1)[1:]
    strides, stride = [], 2
    for n in t.shape:
        strides.append(stride)
        stride *= max(n, 1)
    return leaf_like(t, buffer.as_strided(t.shape, strides, 1).copy_(t.detach()))


def _padded(t: Any, length: int, more: int) -> Any:
    """With zeros after the elements of dim 1, where it is as long as the first argument's."""
    if not isinstance(t, Tensor) or t.dim() < 2 or t.shape[1] != length:
        return t
    zeros = t.new_zeros((t.shape[0], more, *t.shape[2:]))
    return leaf_like(t, torch.cat([t.detach(), zeros], 1))


def _each(f: Callable[[Any], Any], args: Sequence[Any]) -> Sequence[Any]:
    mapped: Sequence[Any] = _pytree.tree_map(f, tuple(args))
    return mapped


def other_sizes(batch: Batch) -> list[tuple[str, list[int]]]:
    """Rows of batches of other sizes: a row alone, and a batch twice as large of the other rows.

    Of two batches without a row in common one lacks the row that an extreme over all rows comes from.
    """
    n = batch.size
    alone = n // 2
    others = [row for row in range(n) if row != alone] or [alone]
    twice = [others[place % len(others)] for place in range(2 * n)]
    return [(f"batch of {len(rows)}", rows) for rows in ([alone], twice) if len(rows) != n]


@contextmanager
def _alone() -> Iterator[None]:
    """With a default process group of this process alone."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    before, rank = dist.group.WORLD, dist.get_rank()
    groups = [dist.new_group([r]) for r in range(dist.get_world_size())]
    distributed_c10d._update_default_pg(groups[rank])
    try:
        yield
    finally:
        distributed_c10d._update_default_pg(before)
        dist.destroy_process_group(groups[rank])


def _of_all_ranks(args: Sequence[Any], batch: Batch | None, dim: int | None) -> list[Run]:
    """One process, with the batches of all, in the order of their ranks."""
    dist = torch.distributed
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1 or batch is None:
        return []
    if dim is None:
        return []
    leaves, spec = _pytree.tree_flatten(tuple(args))
    given: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(given, [t.detach().cpu() if isinstance(t, Tensor) else t for t in leaves])
    n, rank = batch.size, dist.get_rank()
    sizes = [batch_of(theirs, dim) for theirs in given]
    rows = [row if r == rank else -1 for r, theirs in enumerate(sizes) for row in range(theirs.size if theirs else 0)]

    def joined(i: int, t: Any) -> Any:
        if not isinstance(t, Tensor) or not -t.dim() <= dim < t.dim() or t.shape[dim] != n:
            return t
        return leaf_like(t, torch.cat([theirs[i] for theirs in given], dim).to(t.device))

    whole = _pytree.tree_unflatten([joined(i, t) for i, t in enumerate(leaves)], spec)
    return [Run("ranks", "ranks: 1", whole, Relation(batch, rows, is_of_ranks=True), around=_alone)]


def runs(variation: str, args: Sequence[Any], batch: Batch | None, dim: int | None) -> list[Run]:
    """The runs of a variation other than compiled; none where the arguments have no batch. dim: where rows lie."""
    if variation == "ranks":
        return _of_all_ranks(args, batch, dim)
    if variation == "repeat":
        return [Run("repeat", "repeat", args)]
    if variation == "seed":
        return [Run("seed", "seed", args, is_seeded=False)]
    if variation == "threads":
        other = 1 if torch.get_num_threads() > 1 else max(2, (os.cpu_count() or 1) // 2)
        return [Run("threads", f"threads: {other}", args, around=lambda: _threads(other))]
    if variation == "strides":
        return [Run("strides", "strides", _each(_rearranged, args))]
    if variation == "padding":
        lengths = [t.shape[1] for t in _pytree.tree_leaves(tuple(args)) if isinstance(t, Tensor) and t.dim() > 1]
        if not lengths or lengths[0] == 0:
            return []
        n, more = lengths[0], max(1, lengths[0] // 4)
        padded = _each(lambda t: _padded(t, n, more), args)
        return [Run("padding", f"padding: {n + more}", padded, Relation(is_padded=True), Padded(n, n + more))]
    if batch is None:
        return []
    reversed_rows = list(reversed(range(batch.size)))
    ways = [("order: reversed", reversed_rows)] if batch.size > 1 else []
    return [
        Run(variation, label, batch.take(rows), Relation(batch, rows))
        for label, rows in (ways if variation == "order" else other_sizes(batch))
    ]
