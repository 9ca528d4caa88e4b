"""Losses over classes that are sharded over ranks: logsumexp, entropy and cross-entropy, bitwise those of whole rows.

Each rank has a run of the classes of every row, (rows, run). Of whole leaves of 2048 classes the states travel, merged
to nodes of the tree; of leaves that a border cuts, the elements. Then every rank has every row's sums, and its own
classes' gradient needs no communication.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..rowwise import _reduced
from .collectives import Group, gather
from .exponentials import ENTROPY, EXPONENTIALS, S, Sums, entropy_of, log, sums
from .order import check_floats, fold, wide
from .sharded import LEAF, Cut, cut, mended, starts_of


def pieces(x: Tensor, start: int, of: Cut, kind: Sums[S]) -> Tensor:
    """What a rank sends of its classes x, (rows, run) in F: planes of rows. Head, states of nodes, tail."""
    states: list[Tensor] = [
        part
        for first, level in of.leaves
        for part in kind.of_node(x[:, first * LEAF - start : (first + (1 << level)) * LEAF - start])
    ]
    return torch.cat([x[:, : len(of.head)].T, *(part[None] for part in states), x[:, x.shape[1] - len(of.tail) :].T])


def planes(of: Cut) -> int:
    """How many numbers a rank sends of each row."""
    return len(of.head) + 3 * len(of.leaves) + len(of.tail)


def merged(received: Sequence[Tensor], cuts: Sequence[Cut], kind: Sums[S]) -> S:
    """The rows' state, of what each rank sent."""
    parts = []
    for sent, of in zip(received, cuts, strict=True):
        head, states, tail = sent.split([len(of.head), 3 * len(of.leaves), len(of.tail)])
        parts.append((head.T, [kind.state(*s) for s in states.view(-1, 3, states.shape[1])], tail.T))
    order, values = mended(parts, cuts, kind.of_node)
    return fold(order, values, kind.merge)


def _whole(x: Tensor, starts: list[int], total: int, kind: Sums[S], more: Tensor, group: Group) -> tuple[S, Tensor]:
    """The rows' state on every rank; and each rank's `more`, (rows,), as (ranks, rows). One all_gather."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    cuts = [cut(range(a, b), total) for a, b in zip(starts, [*starts[1:], total], strict=True)]
    sizes = [planes(of) for of in cuts]
    sent = x.new_zeros(1 + max(sizes), x.shape[0])
    sent[0] = more
    sent[1 : 1 + sizes[rank]] = pieces(x, starts[rank], cuts[rank], kind)
    received = sent.new_empty(world, *sent.shape)
    gather(received, sent, group)
    return merged([received[r, 1 : 1 + sizes[r]] for r in range(world)], cuts, kind), received[:, 0]


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, starts: list[int], total: int, group: Group) -> Tensor:
        x = local.to(wide(local.dtype))
        state, _ = _whole(x, starts, total, EXPONENTIALS, x.new_zeros(x.shape[0]), group)
        m, s = sums(state)
        ctx.save_for_backward(local, torch.stack([m, s])[..., None])
        fine = m.isfinite()
        return torch.where(fine, m + log(torch.where(fine, s, 1.0)), m).to(local.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        local, stats = ctx.saved_tensors
        gradient = torch.ops.torchreduce.logsumexp_gradient.default(g.contiguous()[:, None], local, stats, [1], 0)
        return gradient, None, None, None


class _Entropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, starts: list[int], total: int, group: Group) -> Tensor:
        x = local.to(wide(local.dtype))
        state, _ = _whole(x, starts, total, ENTROPY, x.new_zeros(x.shape[0]), group)
        stats = torch.stack(entropy_of(state))
        ctx.save_for_backward(local, stats[..., None])
        return stats[2].to(local.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        local, stats = ctx.saved_tensors
        gradient = torch.ops.torchreduce.entropy_gradient.default(g.contiguous()[:, None], local, stats, [1], 0)
        return gradient, None, None, None


class _CrossEntropy(torch.autograd.Function):
    """The loss of each row in F, and its weight: 1, or 0 where it is ignored."""

    @staticmethod
    def forward(
        ctx: Any, local: Tensor, target: Tensor, ignored: int, starts: list[int], total: int, group: Group
    ) -> tuple[Tensor, Tensor]:
        x = local.to(wide(local.dtype))
        first = starts[dist.get_rank(group)]
        here = (target >= first) & (target < first + x.shape[1])
        label = torch.where(here, target - first, 0)[:, None]
        mine = torch.where(here, x.gather(1, label)[:, 0], 0.0) if x.shape[1] else x.new_zeros(x.shape[0])
        state, each = _whole(x, starts, total, EXPONENTIALS, mine, group)
        m, s = sums(state)
        owner = torch.bucketize(target, torch.tensor(starts[1:], device=x.device), right=True)
        at = each.gather(0, owner[None])[0]
        left_out, valid = target == ignored, (target >= 0) & (target < total)
        fine = m.isfinite() & valid
        m, s = (torch.where(fine, t, float("nan")) for t in (m, s))
        loss = log(torch.where(fine, s, 1.0)) - (at - m)
        weight = torch.where(left_out, 0.0, torch.where(valid, 1.0, float("nan"))).to(x.dtype)
        ctx.save_for_backward(local, label, here & ~left_out, left_out, weight, torch.stack([m, s])[..., None])
        ctx.mark_non_differentiable(weight)
        return torch.where(left_out, 0.0, loss), weight

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor, _: Tensor) -> Any:
        local, label, here, left_out, weight, stats = ctx.saved_tensors
        p = (g * weight)[:, None]
        gradient = torch.ops.torchreduce.logsumexp_gradient.default(p, local, stats, [1], 0)
        if local.shape[1]:  # the label's own, of a row of it alone
            zero = torch.zeros_like(label[:, 0])
            at_label = torch.ops.torchreduce.cross_entropy_gradient.default(
                p[:, 0].contiguous(), None, local.gather(1, label), zero, None, stats, 1, -100, 0.0, 0
            )
            gradient.scatter_(1, label, torch.where(here[:, None], at_label, gradient.gather(1, label)))
        return gradient.masked_fill_(left_out[:, None], 0.0), None, None, None, None, None


def sharded_logsumexp(local: Tensor, start: int, total: int, group: Group = None) -> Tensor:
    """Return torchreduce.logsumexp of each row, of which each rank has a run of elements; on every rank.

    local: this rank's elements, (rows, run), a float tensor; start: the position of its first column; total: the number
    of all columns. The ranks have them in their order; runs may have any length, and may be empty. The gradient is that
    of the rank's own elements, and needs no communication: each rank passes the same gradient of the result.
    """
    starts = _checked("sharded_logsumexp", local, start, total, group)
    return _LogSumExp.apply(local, starts, total, group)  # type: ignore[no-any-return, no-untyped-call]


def sharded_entropy(local: Tensor, start: int, total: int, group: Group = None) -> Tensor:
    """Return torchreduce.entropy of each row of logits, of which each rank has a run of classes; on every rank.

    The arguments are those of sharded_logsumexp.
    """
    starts = _checked("sharded_entropy", local, start, total, group)
    return _Entropy.apply(local, starts, total, group)  # type: ignore[no-any-return, no-untyped-call]


def sharded_cross_entropy(
    local: Tensor,
    target: Tensor,
    start: int,
    total: int,
    group: Group = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Return torchreduce.cross_entropy of logits of which each rank has a run of classes; on every rank.

    local, start, total: as for sharded_logsumexp. target: int64 labels of all rows, the same on every rank, from 0 to
    total. ignore_index, reduction: as of cross_entropy. There are no weights of classes, and no smoothing.
    """
    starts = _checked("sharded_cross_entropy", local, start, total, group)
    if target.dtype != torch.int64 or target.shape != local.shape[:1]:
        raise RuntimeError(
            f"sharded_cross_entropy(): expected int64 labels of shape {tuple(local.shape[:1])}, but got {target.dtype} "
            f"of shape {tuple(target.shape)}"
        )
    if reduction not in ("none", "sum", "mean"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    if not target.is_cuda and bool(((target != ignore_index) & ((target < 0) | (target >= total))).any()):
        raise IndexError(f"sharded_cross_entropy(): a label is not one of {total} classes")
    losses, weights = _CrossEntropy.apply(local, target, ignore_index, starts, total, group)  # type: ignore[no-untyped-call]
    return _reduced(losses, weights, reduction, local.dtype, True, 0)


def _checked(name: str, local: Tensor, start: int, total: int, group: Group) -> list[int]:
    check_floats(name, local)
    if local.ndim != 2:
        raise ValueError(f"{name}(): expected a tensor of shape (rows, run), but got {tuple(local.shape)}")
    if total < 1:
        raise ValueError(f"{name}(): expected one element or more in a row, but got {total}")
    return starts_of(name, start, local.shape[1], total, local.device, group)
