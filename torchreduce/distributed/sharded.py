"""Sums and norms of tensors of which each rank has a run of elements, bitwise identical to those of the whole.

A rank's run of elements is a head, up to the next multiple of 2048; whole leaves, as nodes of the tree over the leaves;
and a tail. Nodes travel as one number each, head and tail as elements: then every rank closes the leaves that a border
cuts, and merges. Where borders are multiples of 2048, no element travels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ..ops import sum as canonical_sum
from .arithmetic import root, sums_of_squares
from .collectives import Group, gather
from .order import Node, Value, check_floats, fold, nodes, tree_sum, wide

LEAF = 2048

Reduce = Callable[[Tensor], Tensor]  # of a run of elements in their accumulator type: a number of that type


@dataclass(frozen=True)
class Cut:
    """What a run of elements of a tensor consists of, in order."""

    head: range  # up to the first leaf that begins in the run
    leaves: list[Node]
    tail: range

    def __len__(self) -> int:
        return len(self.head) + len(self.leaves) + len(self.tail)


def cut(run: range, total: int) -> Cut:
    """Of the elements run, of a tensor of total elements."""
    first, last, count = -(-run.start // LEAF), run.stop // LEAF, -(-total // LEAF)
    if run.stop == total and run.start <= (count - 1) * LEAF:
        last = count  # the last leaf may be short
    if first >= last:  # no whole leaf
        end = min(run.stop, first * LEAF)
        return Cut(range(run.start, end), [], range(end, run.stop))
    return Cut(
        range(run.start, first * LEAF),
        nodes(range(first, last), count),
        range(min(last * LEAF, run.stop), run.stop),
    )


def pieces(x: Tensor, start: int, of: Cut, reduce: Reduce) -> Tensor:
    """What a rank sends: the head's elements, a number for each node, the tail's elements."""
    numbers = [
        reduce(x[first * LEAF - start : ((first + (1 << level)) * LEAF) - start]).view(1) for first, level in of.leaves
    ]
    return torch.cat([x[: len(of.head)], *numbers, x[x.numel() - len(of.tail) :]])


def merged(received: Sequence[Tensor], cuts: Sequence[Cut], reduce: Reduce) -> Tensor:
    """The number of the whole tensor, of what each rank sent, by the ranks' cuts. There is an element or more."""
    sent = [part.split([len(of.head), len(of.leaves), len(of.tail)]) for part, of in zip(received, cuts, strict=True)]
    parts = [(head, list(numbers.unbind()), tail) for head, numbers, tail in sent]
    order, numbers = mended(parts, cuts, reduce)
    total: Tensor = fold(order, numbers, torch.add)
    return total


def mended(
    parts: Sequence[tuple[Tensor, list[Value], Tensor]], cuts: Sequence[Cut], of_leaf: Callable[[Tensor], Value]
) -> tuple[list[Node], list[Value]]:
    """All nodes and their values, of each rank's head, values of nodes, and tail; of_leaf of the leaves that were cut.

    Elements are along the last dim of heads and tails.
    """
    total = max(of.tail.stop for of in cuts if len(of))
    order: list[Node] = []
    values: list[Value] = []
    broken: list[Tensor] = []  # the elements, so far, of a leaf that a border cuts

    def take(elements: Tensor, run: range) -> None:
        if len(run):
            broken.append(elements)
            if run.stop % LEAF == 0 or run.stop == total:
                order.append(((run.stop - 1) // LEAF, 0))
                values.append(of_leaf(torch.cat(broken, -1)))
                broken.clear()

    for (head, whole, tail), of in zip(parts, cuts, strict=True):
        take(head, of.head)
        order += of.leaves
        values += whole
        take(tail, of.tail)
    return order, values


def sum_squares(x: Tensor) -> Tensor:
    """Return the sum of the squares of a flat tensor, of which vector_norm is the root, in the accumulator type."""
    return sums_of_squares(x.to(wide(x.dtype)).unsqueeze(0))[0]


def plain_sum(x: Tensor) -> Tensor:
    return canonical_sum(x, dtype=wide(x.dtype))


def reduced(shards: Sequence[tuple[Tensor, list[int], int]], reduce: Reduce, group: Group) -> list[Tensor]:
    """The number of each whole tensor, in the accumulator type; one all_gather for all of them.

    shards: flat tensors of one dtype, this rank's; where each rank's run starts; the number of all elements.
    """
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    layouts = [
        [cut(range(start, end), total) for start, end in zip(starts, [*starts[1:], total], strict=True)]
        for _, starts, total in shards
    ]
    sizes = [sum(len(layout[r]) for layout in layouts) for r in range(world)]
    x = shards[0][0]
    packed = torch.zeros(max(sizes), dtype=wide(x.dtype), device=x.device)
    mine = [
        pieces(x.to(packed.dtype), starts[rank], layout[rank], reduce)
        for (x, starts, _), layout in zip(shards, layouts, strict=True)
    ]
    packed[: sizes[rank]] = torch.cat(mine)
    received = packed.new_empty(world, max(sizes))
    gather(received, packed, group)
    rows = [received[r, : sizes[r]].split([len(layout[r]) for layout in layouts]) for r in range(world)]
    return [
        merged([row[i] for row in rows], layout, reduce) if total else packed.new_zeros(())
        for i, ((_, _, total), layout) in enumerate(zip(shards, layouts, strict=True))
    ]


@torch.no_grad()
def sharded_sum(local: Tensor, start: int, total: int, group: Group = None) -> Tensor:
    """Return the sum of a tensor of which each rank has a run of elements: torchreduce.sum of the whole, on every rank.

    local: this rank's elements, in row-major order; start: the position of the first one; total: the number of all
    elements. The ranks have them in their order. Runs may have any length, and may be empty. There is no gradient.
    """
    (number,) = reduced([(local.reshape(-1), _run("sharded_sum", local, start, total, group), total)], plain_sum, group)
    return tree_sum(number.view(1), local.dtype)


@torch.no_grad()
def sharded_norm(local: Tensor, start: int, total: int, group: Group = None) -> Tensor:
    """Return the norm of a tensor of which each rank has a run of elements: torchreduce.vector_norm of the whole.

    The arguments are those of sharded_sum.
    """
    starts = _run("sharded_norm", local, start, total, group)
    (number,) = reduced([(local.reshape(-1), starts, total)], sum_squares, group)
    return tree_sum(root(number).view(1), local.dtype)


def _run(name: str, local: Tensor, start: int, total: int, group: Group) -> list[int]:
    check_floats(name, local)
    return starts_of(name, start, local.numel(), total, local.device, group)


def starts_of(name: str, start: int, size: int, total: int, device: torch.device, group: Group) -> list[int]:
    """Where each rank's run of a row of total elements starts; one all_gather of two numbers. Checks that they meet."""
    if dist.get_rank(group) < 0:
        raise ValueError(f"{name}(): this rank is not in the group")
    if not 0 <= start <= start + size <= total:
        raise ValueError(f"{name}(): {size} elements from {start} on are not within the {total} of the whole")
    run = torch.tensor([start, size], device=device)
    every = run.new_empty(dist.get_world_size(group), 2)
    gather(every, run, group)
    expected = 0
    for rank, (first, length) in enumerate(every.tolist()):
        if length and first != expected:
            raise ValueError(f"{name}(): expected rank {rank}'s run to start at {expected}, but got {first}")
        expected += length
    if expected != total:
        raise ValueError(f"{name}(): expected {total} elements on all ranks together, but got {expected}")
    starts, at = [], 0
    for _, length in every.tolist():
        starts.append(at)
        at += length
    return starts
