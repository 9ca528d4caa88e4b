"""The norm of all gradients, and their clipping: few calls, however many parameters there are.

A sharded gradient's squares are summed as sharded_sum adds: the whole leaves of a rank's run on that rank, the leaves
that a border cuts on every rank, and the tree over the leaves on every rank. Here all parameters go together. One
number travels for each whole leaf, and the elements of the others; where each lands in the trees is known from the
shapes (Layout), and kept.

Sums of squares are +0.0 or more, or NaN. So a missing element or leaf may be +0.0: adding it changes nothing.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from ..norms import vector_norm
from ..ops import sum as canonical_sum
from .arithmetic import root, sums_of_squares
from .collectives import gather
from .order import ROWS, check_floats, wide
from .sharded import LEAF

# Leaves whose squares are summed at once: of float32, 64 MB and three buffers of that size.
LEAVES = 1 << 13
# Gradients of up to so many elements are copied next to each other, and have one call for each size of row.
SMALL = 1 << 16

Starts = tuple[int, ...]  # of the ranks' runs, and the number of all elements


class Pieces(NamedTuple):
    """A rank's run of a tensor's elements: up to a border of leaves, whole leaves, the rest; from the run's start."""

    head: slice
    leaves: slice
    tail: slice


def pieces_of(begin: int, end: int) -> Pieces:
    first = min(end, -(-begin // LEAF) * LEAF) - begin
    last = max(first, end // LEAF * LEAF - begin)
    return Pieces(slice(0, first), slice(first, last), slice(last, end - begin))


class Layout(NamedTuple):
    """Where what the ranks send lands, of several tensors. The ranks send rows of `size` numbers; a zero follows."""

    size: int
    broken: Tensor  # (leaves, LEAF): the elements of each leaf that a border cuts; these leaves' sums then follow
    tables: list[Tensor]  # for each step of the trees, (numbers, ROWS) of those before; at last a number a tensor


@lru_cache(16)
def layout_of(tensors: tuple[Starts, ...], device: torch.device) -> Layout:
    """tensors: of each, where the ranks' runs start, and last the number of all elements."""
    world = len(tensors[0]) - 1
    runs = [[(rank, *run) for rank, run in enumerate(itertools.pairwise(each))] for each in tensors]
    whole = [0] * world  # numbers that a rank sends, so far: those of leaves come first
    sent: list[list[tuple[int, int, int]]] = []  # of each tensor: (rank, first leaf, leaves)
    for each in runs:
        sent.append([])
        for rank, begin, end in each:
            inside = pieces_of(begin, end).leaves
            sent[-1].append((rank, (begin + inside.start) // LEAF, (inside.stop - inside.start) // LEAF))
            whole[rank] += sent[-1][-1][2]
    at, elements = [0] * world, list(whole)
    cut: dict[tuple[int, int], list[tuple[int, int, int, int]]] = {}  # (tensor, leaf): (rank, place, column, length)
    for i, each in enumerate(runs):
        for rank, begin, end in each:
            head, _, tail = pieces_of(begin, end)
            for piece in (head, tail):
                length, start = piece.stop - piece.start, begin + piece.start
                if length:
                    leaf, column = divmod(start, LEAF)
                    cut.setdefault((i, leaf), []).append((rank, elements[rank], column, length))
                    elements[rank] += length
    size = max(elements)
    zero = world * size
    broken = numpy.full((len(cut), LEAF), zero)
    for row, parts in zip(broken, cut.values(), strict=True):
        for rank, place, column, length in parts:
            row[column : column + length] = numpy.arange(rank * size + place, rank * size + place + length)
    number = {leaf: zero + 1 + row for row, leaf in enumerate(cut)}
    leaves = []
    for i, (each, (*_, total)) in enumerate(zip(sent, tensors, strict=True)):
        places = numpy.full(-(-total // LEAF), zero)
        for rank, first, count in each:
            places[first : first + count] = numpy.arange(count) + rank * size + at[rank]
            at[rank] += count
        for leaf in range(len(places)):
            if (i, leaf) in number:
                places[leaf] = number[i, leaf]
        leaves.append(places)
    made = [torch.from_numpy(table).to(device) for table in (broken, *_tables(leaves, zero))]
    return Layout(size, made[0], made[1:])


def _tables(each: list[numpy.ndarray], zero: int) -> list[numpy.ndarray]:
    """Of the steps of several trees, whose leaves have these places; zero is the place of a missing one."""
    tables: list[numpy.ndarray] = []
    while not tables or any(len(places) > 1 for places in each):
        padded = [numpy.append(p, numpy.full(max(1, -(-len(p) // ROWS)) * ROWS - len(p), zero)) for p in each]
        tables.append(numpy.concatenate(padded).reshape(-1, ROWS))
        ends = numpy.cumsum([len(p) // ROWS for p in padded]).tolist()
        each = [numpy.arange(begin, end) for begin, end in itertools.pairwise([0, *ends])]
        zero = ends[-1]
    return tables


def packed(parts: Sequence[Tensor], begins: Sequence[int], size: int) -> Tensor:
    """What a rank sends of its runs, flat tensors: the sum of squares of each whole leaf, then the other elements."""
    accumulator = wide(parts[0].dtype)
    runs: list[Tensor] = []
    others = [parts[0][:0]]
    for part, begin in zip(parts, begins, strict=True):
        head, leaves, tail = pieces_of(begin, begin + part.numel())
        for piece, to in ((head, others), (leaves, runs), (tail, others)):
            if piece.start < piece.stop:
                to.append(part if piece.stop - piece.start == part.numel() else part[piece])
    sums = [sums_of_squares(torch.cat(some).to(accumulator).view(-1, LEAF)) for some in _batches(runs)]
    row = torch.cat([*sums, torch.cat(others).to(accumulator)])
    return pad(row, (0, size - row.numel()))


def _batches(runs: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    """The runs in turn, cut so that a batch has at most LEAVES leaves."""
    most = LEAVES * LEAF
    batch: list[Tensor] = []
    room = most
    for part in itertools.chain.from_iterable(run.split(most) if run.numel() > most else (run,) for run in runs):
        if part.numel() > room:
            yield batch
            batch, room = [], most
        batch.append(part)
        room -= part.numel()
    if batch:
        yield batch


def unpacked(received: Tensor, layout: Layout) -> Tensor:
    """The sum of the squares of each whole tensor, of the rows that the ranks sent."""
    numbers = pad(received.view(-1), (0, 1))
    if layout.broken.shape[0]:
        numbers = torch.cat([numbers, sums_of_squares(numbers[layout.broken])])
    first, *more = layout.tables
    numbers = canonical_sum(numbers[first], 1)
    for table in more:
        numbers = canonical_sum(pad(numbers, (0, 1))[table], 1)
    return numbers


def _sharded_norms(parts: Sequence[Tensor], tensors: tuple[Starts, ...], group: dist.ProcessGroup) -> Tensor:
    """The norm of each of these, of which this rank has parts; one all_gather."""
    rank, world = group.rank(), group.size()
    layout = layout_of(tensors, parts[0].device)
    row = packed(parts, [starts[rank] for starts in tensors], layout.size)
    received = row.new_empty(world, layout.size)
    gather(received, row, group)
    return root(unpacked(received, layout))


def _plain_norms(parts: Sequence[Tensor]) -> Tensor:
    """The norm of each, which this rank has whole."""
    dtype = wide(parts[0].dtype)
    norms: list[Tensor | None] = [None] * len(parts)
    small: dict[int, list[int]] = {}  # by the number of leaves of a row, a power of two
    for i, part in enumerate(parts):
        if part.numel() <= SMALL:
            small.setdefault(1 << max(0, (part.numel() - 1) // LEAF).bit_length(), []).append(i)
        else:
            norms[i] = vector_norm(part) if part.dtype == dtype else vector_norm(part, dtype=dtype)
    for leaves, chosen in small.items():
        rows = parts[0].new_zeros(len(chosen), leaves * LEAF)  # a zero changes no sum of squares
        flat = [parts[i].reshape(-1) for i in chosen]
        torch._foreach_copy_([row[: f.numel()] for row, f in zip(rows.unbind(), flat, strict=True)], flat)
        for i, norm in zip(chosen, vector_norm(rows, 2, 1, dtype=dtype).unbind(), strict=True):
            norms[i] = norm
    return torch.stack(norms)  # type: ignore[arg-type]


@torch.no_grad()
def clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale the gradients so that their norm is at most max_norm, and return the norm before, on every rank.

    The norm is that of the parameters' norms, in the order of the parameters, in their accumulator type; that of a
    parameter without a gradient is 0. Gradients are plain tensors, which every rank has, or DTensors that are sharded
    along dim 0 over one dim of their mesh. The result does not depend on the number of ranks. If all are plain and
    float32, it is that of torch.nn.utils.clip_grad_norm_ with `enable()`.
    """
    all_parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    gradients = {i: p.grad for i, p in enumerate(all_parameters) if p.grad is not None}
    if not gradients:
        return torch.zeros(())
    check_floats("clip_grad_norm_", *gradients.values())
    group_of = lru_cache(None)(lambda mesh, dim: mesh.get_group(dim))
    parts: dict[int, Tensor] = {}
    together: dict[tuple[dist.ProcessGroup | None, torch.dtype, torch.device], list[int]] = {}
    for i, gradient in gradients.items():
        parts[i], group = _local(gradient, group_of)
        together.setdefault((group, parts[i].dtype, parts[i].device), []).append(i)
    dtype = torch.float64 if any(part.dtype == torch.float64 for part in parts.values()) else torch.float32
    norms = torch.zeros(len(all_parameters), dtype=dtype, device=next(iter(parts.values())).device)
    for (group, _, _), chosen in together.items():
        some = [parts[i] for i in chosen]
        if group is None:
            values = _plain_norms(some)
        else:
            tensors = tuple(_starts_of_rows(gradients[i], group.size()) for i in chosen)
            values = _sharded_norms([part.reshape(-1) for part in some], tensors, group)
        whole = len(chosen) == len(all_parameters)
        norms[... if whole else _indices(tuple(chosen), norms.device)] = values.to(norms.device, dtype)
    norm = vector_norm(norms)
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for (_, of, device), chosen in together.items():
        torch._foreach_mul_([parts[i] for i in chosen], factor.to(device, of))
    return norm


@lru_cache(16)
def _indices(chosen: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(chosen, device=device)


def _local(
    gradient: Tensor, group_of: Callable[[Any, int], dist.ProcessGroup]
) -> tuple[Tensor, dist.ProcessGroup | None]:
    """This rank's elements, and the group that has the others; None where there are none."""
    if type(gradient) is Tensor:
        return gradient, None
    from torch.distributed.tensor import DTensor, Shard

    if not isinstance(gradient, DTensor):
        return gradient, None
    placements, mesh = gradient.placements, gradient.device_mesh
    sharded = [dim for dim, placement in enumerate(placements) if not placement.is_replicate()]
    if any(placements[dim] != Shard(0) for dim in sharded) or len(sharded) > 1:
        raise NotImplementedError(
            f"clip_grad_norm_(): not implemented for a DTensor of placements {placements}. Supported are replicas, and "
            "Shard(0) on one dim of the mesh"
        )
    return gradient.to_local(), group_of(mesh, sharded[0]) if sharded else None


def _starts_of_rows(gradient: Tensor, world: int) -> Starts:
    """Where each rank's elements start, and their number: torch gives each the same number of rows, as far as there
    are rows."""
    rows, total = gradient.shape[0], gradient.numel()
    chunk, row = -(-rows // world), total // max(rows, 1)
    return (*(min(rank * chunk, rows) * row for rank in range(world)), total)
