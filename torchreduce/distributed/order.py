"""The order of a sum over terms: who has which terms, and how partial sums of them meet. No communication here.

A term is what one micro-batch, or one rank, adds. A sum over `count` terms is the contiguous pairwise tree over them,
((t0 + t1) + (t2 + t3)) + ..., where a missing right operand passes the left one through. So it does not depend on how
many ranks the terms are spread over. 16-bit terms are added in float32 and rounded once, at the end.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from .._core.dispatch import is_bare
from ..ops import sum as canonical_sum
from ..table import FLOATS

Value = TypeVar("Value")
Node = tuple[int, int]  # (first, level): of the terms first .. first + 2^level, as far as there are terms

ROWS = 256  # up to so many rows torchreduce.sum over them is the tree; beyond them it has residues


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which terms of dtype are added, and in which their partial sums travel."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def check_floats(name: str, *tensors: Tensor) -> None:
    for t in tensors:
        if not isinstance(t, Tensor):
            raise TypeError(f"{name}(): expected a tensor, but got {type(t).__name__}")
        if t.dtype not in FLOATS:
            raise NotImplementedError(f"{name}(): not implemented for {t.dtype}. Supported are {FLOATS}")


def runs(count: int, world: int) -> list[range]:
    """Return the terms of each rank: neighbouring ones, evenly, the longer runs first.

    >>> from torchreduce.distributed import runs
    >>> runs(8, 3)
    [range(0, 3), range(3, 6), range(6, 8)]
    """
    if not 1 <= world <= count:
        raise ValueError(f"runs(): expected a term or more for each of {world} ranks, but got {count} terms")
    base, more = divmod(count, world)
    starts = [rank * base + min(rank, more) for rank in range(world + 1)]
    return [range(starts[rank], starts[rank + 1]) for rank in range(world)]


def nodes(run: range, count: int) -> list[Node]:
    """Return the fewest nodes of the tree over count terms that make up a run of them: one for a subtree.

    A node is (first, level): the terms first to first + 2^level, as far as there are terms.

    >>> from torchreduce.distributed import nodes
    >>> nodes(range(3, 6), 8)
    [(3, 0), (4, 1)]
    """
    if not 0 <= run.start <= run.stop <= count:
        raise ValueError(f"nodes(): expected a run of {count} terms, but got {run}")
    made, first = [], run.start
    while first < run.stop:
        level = 0
        while 1 << level < count and first % (2 << level) == 0 and min(first + (2 << level), count) <= run.stop:
            level += 1
        made.append((first, level))
        first = min(first + (1 << level), count)
    return made


class Partials:
    """A binary counter of partial sums: subtrees are merged as soon as they are whole.

    A term is a list of tensors, of the same shapes for all terms. The counter becomes the owner of what is pushed, and
    adds in place, but it does not write to the last term before it takes another. It holds at most 1 + log2(terms)
    sums.

    >>> import torch
    >>> from torchreduce.distributed import Partials
    >>> partials = Partials()
    >>> for term in torch.arange(6.0).unbind():
    ...     partials.push([term.clone()])
    >>> partials.total()
    [tensor(15.)]
    """

    def __init__(self, first: int = 0) -> None:
        """first: the number of the first term that is pushed."""
        self._start = self._next = first
        self._held: list[tuple[int, int, list[Tensor]]] = []

    def push(self, tensors: Iterable[Tensor]) -> None:
        """Add the next term."""
        first, level, term = self._next, 0, list(tensors)
        self._next += 1
        while self._held and self._held[-1][1] == level and self._held[-1][0] % (2 << level) == 0:
            first, level, left = self._held.pop()
            term, level = _add(left, term), level + 1
        self._held.append((first, level, term))

    def some(self, places: Sequence[int]) -> "Partials":
        """Return a counter of some of the tensors of each term, by their places; it shares them with this one."""
        chosen = Partials(self._start)
        chosen._next = self._next
        chosen._held = [(first, level, [tensors[i] for i in places]) for first, level, tensors in self._held]
        return chosen

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Say that what is held is used on another stream than the one it was pushed on."""
        for _, _, tensors in self._held:
            for t in tensors:
                t.record_stream(stream)

    def total(self) -> list[Tensor]:
        """Return the sum of all terms, in their accumulator type, and start over."""
        if not self._held:
            raise RuntimeError("Partials.total(): expected a term or more, but none was pushed")
        *others, (_, _, total) = self._held
        for _, _, left in reversed(others):
            total = _add(left, total)
        self._next, self._held = self._start, []
        return total

    def parts(self, run: range, count: int) -> list[list[Tensor]]:
        """Return the sums of each of nodes(run, count), the run that was pushed, and start over."""
        if self._next != run.stop:
            raise RuntimeError(f"expected the terms of {run}, but those up to {self._next} were pushed")
        made = []
        for first, level in nodes(run, count):
            inside = Partials()
            inside._held = [h for h in self._held if first <= h[0] < min(first + (1 << level), count)]
            made.append(inside.total())  # merges what only the end of the tree merges
        self._next, self._held = self._start, []
        return made


def _add(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
    left = [a.to(wide(a.dtype)) for a in left]
    torch._foreach_add_(left, [b.to(a.dtype) for a, b in zip(left, right, strict=True)])  # one rounding each
    return left


_sum_to = torch.ops.torchreduce.sum.raw_out


def add_rows(rows: Tensor, out: Tensor) -> None:
    """Write torchreduce.sum(rows, 0) of up to ROWS rows to a tensor of a row's shape. Both are plain and unwatched."""
    _sum_to(rows, [0], False, None if out.dtype == rows.dtype else out.dtype, 0, out=out)
    torch.autograd.graph.increment_version(out)


def tree_sum(rows: Tensor, dtype: torch.dtype | None = None, out: Tensor | None = None) -> Tensor:
    """Return the tree over dim 0 of rows, rounded once to dtype, or to out's dtype."""
    if out is not None and rows.shape[0] <= ROWS and is_bare(rows, out):
        add_rows(rows, out)
        return out
    dtype = out.dtype if out is not None else dtype or rows.dtype
    if rows.shape[0] > ROWS:
        parts = [canonical_sum(part, 0, dtype=wide(rows.dtype)) for part in rows.split(ROWS)]
        return tree_sum(torch.stack(parts), dtype, out)
    return canonical_sum(rows, 0, out=out) if out is not None else canonical_sum(rows, 0, dtype=dtype)


def nodes_sum(rows: Tensor, order: Sequence[Node], out: Tensor) -> Tensor:
    """Write the sum of the rows to out: each row is that node of the tree, and the nodes are all of it, in order."""
    if all(node == (i << order[0][1], order[0][1]) for i, node in enumerate(order)):  # equal subtrees
        return tree_sum(rows, out=out)
    total = fold(order, rows.to(wide(rows.dtype)).unbind(), torch.add)
    return tree_sum(total.unsqueeze(0), out=out)


def fold(order: Sequence[Node], values: Iterable[Value], merge: Callable[[Value, Value], Value]) -> Value:
    """Return what the values of these nodes come to by merge(left, right): the nodes are all of the tree, in order."""
    held: list[tuple[int, int, Value]] = []
    for (first, level), value in zip(order, values, strict=True):
        while held and held[-1][1] == level and held[-1][0] % (2 << level) == 0:
            first, level, value = held[-1][0], level + 1, merge(held.pop()[2], value)
        held.append((first, level, value))
    *others, (_, _, total) = held
    for _, _, left in reversed(others):
        total = merge(left, total)
    return total
