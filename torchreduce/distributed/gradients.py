"""Sums of gradients over micro-batches, whatever the number of ranks that share them: plain modules."""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from ..table import FLOATS
from .collectives import Group, gather, scatter_nodes
from .order import Node, Partials, nodes, runs, wide


class Shares:
    """Which of a step's `count` micro-batches each rank of a group has, and how their sums meet."""

    def __init__(self, name: str, count: int, group: Group) -> None:
        self.group = group
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError(f"{name}(): this rank is not in the group")
        if not isinstance(count, int):
            raise TypeError(f"{name}(): expected an int as the count of micro-batches, but got {count!r}")
        if count < self.world:
            raise ValueError(
                f"{name}(): expected a micro-batch or more for each of {self.world} ranks, but got {count}"
            )
        self.count, self.runs = count, runs(count, self.world)
        self.run = self.runs[self.rank]
        self.nodes: list[list[Node]] = [nodes(run, count) for run in self.runs]

    def travels_as(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype of what is sent: a term of 16 bits as it is, partial sums unrounded."""
        return dtype if self.count == self.world else wide(dtype)

    def sum(self, parts: Sequence[Tensor], output: Tensor) -> None:
        """Write to output, on every rank, the sum of the ranks' parts: flat tensors for each node of the rank's run."""
        n = -(-output.numel() // self.world)
        mine = output.new_empty(n)
        scatter_nodes(mine, parts, self.nodes, self.group)
        whole = output if n * self.world == output.numel() else output.new_empty(n * self.world)
        gather(whole, mine, self.group)
        if whole is not output:
            output.copy_(whole[: output.numel()])

    def flat(self, numel: int, like: Tensor) -> Tensor:
        """Room for a part of so many elements, padded so that each rank has as many."""
        room = torch.empty(-(-numel // self.world) * self.world, dtype=self.travels_as(like.dtype), device=like.device)
        room[numel:].zero_()
        return room


class GradientSum:
    """The sum of the gradients of a step's `count` micro-batches, for modules that no other wrapper reduces.

        total = GradientSum(model.parameters(), count=8)
        for i in total.run:                  # the micro-batches of this rank
            loss(model(batch(i))).backward()
            total.push()                     # takes .grad away
        total.finish()                       # .grad is the sum, on every rank, rounded once

    The result does not depend on the number of ranks. A parameter without a gradient in a micro-batch adds nothing.
    Raises ValueError if there are fewer micro-batches than ranks.
    """

    def __init__(self, parameters: Iterable[Tensor], count: int, group: Group = None) -> None:
        self._shares = Shares("GradientSum", count, group)
        self._parameters = trained("GradientSum", parameters)
        self._partials = Partials(self.run.start)

    @property
    def run(self) -> range:
        """The micro-batches of this rank."""
        return self._shares.run

    def push(self) -> None:
        """Take the gradients of the next micro-batch of the run."""
        self._partials.push(taken(self._parameters))

    def finish(self) -> None:
        """Set each parameter's .grad to the sum over all micro-batches of all ranks."""
        shares = self._shares
        parts = self._partials.parts(shares.run, shares.count)
        for chosen in _alike(self._parameters):
            parameters = [self._parameters[i] for i in chosen]
            sizes = [p.numel() for p in parameters]
            like = parameters[0]
            flats = []
            for part in parts:
                flats.append(shares.flat(sum(sizes), like))
                torch._foreach_copy_(flats[-1][: sum(sizes)].split(sizes), [part[i].reshape(-1) for i in chosen])
            total = torch.empty(sum(sizes), dtype=like.dtype, device=like.device)
            shares.sum(flats, total)
            for p, gradient in zip(parameters, total.split(sizes), strict=True):
                p.grad = gradient.view_as(p)


def trained(name: str, parameters: Iterable[Tensor]) -> list[Tensor]:
    """Those that require a gradient; checked."""
    chosen = [p for p in parameters if p.requires_grad]
    for p in chosen:
        if p.dtype not in FLOATS:
            raise NotImplementedError(f"{name}(): not implemented for {p.dtype}. Supported are {FLOATS}")
    if not chosen:
        raise ValueError(f"{name}(): expected a parameter that requires a gradient")
    return chosen


def taken(parameters: Sequence[Tensor]) -> list[Tensor]:
    """The gradients, which the parameters then have no more; -0.0, which changes no sum, where there is none."""
    gradients = [torch.full_like(p, -0.0) if p.grad is None else p.grad for p in parameters]
    for p in parameters:
        p.grad = None
    return gradients


def _alike(tensors: Sequence[Tensor]) -> list[list[int]]:
    """The positions of tensors of the same dtype and device: these travel together."""
    alike: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for i, t in enumerate(tensors):
        alike.setdefault((t.dtype, t.device), []).append(i)
    return list(alike.values())
