"""Sums in which each rank writes its terms to the other ranks' GPUs, where all ranks of a group are on one host.

A collective of NCCL takes a launch, a kernel that meets the other ranks, and much of the host's time. Here a rank
copies its terms to buffers that every rank can write to, all ranks meet once, and torchreduce.sum adds what has
arrived, in the order of the ranks: three launches, or four.

torch calls these buffers symmetric memory, and may still change their interface. So all ranks have to ask for them, by
TORCHREDUCE_SYMMETRIC_MEMORY=1; else all_to_all and all_gather move the terms, with the same results.
"""

import math
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from .order import add_rows

try:
    from torch.distributed import _symmetric_memory as _symmetric

    _available = hasattr(_symmetric, "empty") and hasattr(_symmetric, "rendezvous")
except ImportError:
    _available = False

HALF = 64 << 20  # bytes of a half of a rank's buffer, and so of the rows that are summed at once
MOST_RANKS = 8
# Up to so many bytes, and with two ranks, all_reduce adds everything on every rank; else each rank adds a part, and
# reads the others' sums.
ALL_AT_ONCE = 1 << 20
ALIGNMENT = 128  # bytes between the starts of rows are a multiple of it
# Of two ranks, each reads the other's row where it has up to so many bytes, of a half's: torch's additions take less of
# the host's time than torchreduce.sum does to write its result.
OF_TWO = 16 << 20
TIMEOUT = 600_000  # milliseconds that a barrier waits for a rank

# One launch copies all rows if they are short or long: it gives a block 65,536 elements, so that few blocks would copy
# rows in between, which have a launch each.
SHORT, LONG = 1 << 14, 1 << 22  # elements


class Room(NamedTuple):
    """Where rows of n elements are, in one half of each rank's buffer. Ranks from the next one on, this one last."""

    mine: list[Tensor]  # this rank's row in each rank's buffer
    rows: Tensor  # (world, n): every rank's row in this rank's buffer, by rank
    sums: list[Tensor]  # a row more in each rank's buffer, for its sum; empty where a sum is not read by others


class Peers:
    """The buffers of a group's ranks.

    All ranks call the same sums in the same order. A sum of at most a half's bytes is a turn: each rank copies (writes
    rows to all buffers, or to its own), meets the others at a barrier, and adds (reads rows of its own buffer, or of
    the other's). Longer ones are several turns. Turns use the two halves alternately.

    Why no row is overwritten before it is read, and none is read before it is written:

    1. On one rank all turns are one after the other, whatever streams they are queued on: a call waits for the event
       that the call before recorded at its end. Calls of several threads would have no common order on the ranks: as
       with NCCL, the user gives them one.
    2. So the ranks' barriers match one to one. A barrier has no more to it than that: torch's puts a signal to each
       rank, after all that its stream did before, and waits for each rank's signal. A signal is taken back by the rank
       that waited for it, before the next one is put in its place.
    3. Rows are read in turn k after all ranks have copied: its barrier is between.
    4. Rows of turn k + 2, in the same half of any buffer, are written after the writer has passed the barrier of turn
       k + 1. By then every rank has come to that barrier, so by 1 it has finished turn k. Hence a turn needs no barrier
       at its end. In two steps (all_reduce of more bytes) sums are read after a barrier more, still in turn k.
    5. A half belongs to a turn, not to a size or dtype: where the rows of a turn lie does not matter to 3 and 4.
    6. Each group has its own buffers and signals, so that sums of two groups may be in flight at once. torch does not
       split an allocation of symmetric memory, to which the signals belong.
    7. What is read of the user's tensors, and written to them, is on the current stream, as in any other op.

    Which half is next is known to the host, not to the GPU. So a CUDA graph must not hold such a sum: a replay would
    not take turns with other calls. peers_of() gives no buffers while a graph is captured.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        own = _symmetric.empty(2 * HALF, dtype=torch.uint8, device=device)
        self._handle = _symmetric.rendezvous(own, group)
        self._own = own  # the handle's memory lives as long as this
        self._start(group.rank(), group.size(), device)
        self._done = torch.cuda.Event()  # the end of the last call

    def _start(self, rank: int, world: int, device: torch.device) -> None:
        self.rank, self.world, self.device = rank, world, device
        self._next = 0  # the half
        self._others_first = [(rank + 1 + i) % world for i in range(world)]
        self._room, self._two_rows = lru_cache(128)(self._make_room), lru_cache(128)(self._make_two_rows)

    def reduce_scatter(self, output: Tensor, input: Tensor) -> None:
        """Write the sum of this rank's chunks to output. Both are flat and contiguous."""
        stream = self._begin()
        n, most = output.numel(), self._most(self.world, input)
        if n <= most:
            chunks = torch.split_with_sizes(input, [n] * self.world)
            if self._is_of_two(output, input.dtype):
                self._add_two(output, chunks[self.rank], chunks[1 - self.rank])
            else:
                self._scatter(output, chunks)
        else:
            rows = input.view(self.world, n)
            for begin in range(0, n, most):
                self._scatter(output[begin : begin + most], rows[:, begin : begin + most].unbind())
        self._done.record(stream)

    def all_reduce(self, flat: Tensor) -> None:
        """Replace a flat, contiguous tensor by the sum."""
        stream = self._begin()
        if self._is_of_two(flat, flat.dtype):
            self._add_two(flat, flat, flat)
        else:
            self._all_reduce(flat)
        self._done.record(stream)

    def _all_reduce(self, flat: Tensor) -> None:
        in_two_steps = 0
        if self.world > 2 and flat.nbytes > ALL_AT_ONCE:
            in_two_steps = flat.numel() // self.world * self.world
            for piece in flat[:in_two_steps].split(self.world * self._most(self.world + 1, flat)):
                self._in_two_steps(piece)
        for piece in flat[in_two_steps:].split(self._most(self.world, flat)):
            if piece.numel():
                self._scatter(piece, [piece] * self.world)

    def _begin(self) -> torch.cuda.Stream:
        """The current stream, once it waits for the call before."""
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(self._done)
        return stream

    def _most(self, rows: int, like: Tensor) -> int:
        """Of how many elements a half has so many rows, each aligned."""
        return HALF // rows // ALIGNMENT * ALIGNMENT // like.element_size()

    def _make_room(self, half: int, n: int, dtype: torch.dtype, sums: bool) -> Room:
        bytes_of_row = -(-n * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        stride, first = bytes_of_row // dtype.itemsize, half * HALF // dtype.itemsize

        def row(rank: int, i: int) -> Tensor:
            return self._handle.get_buffer(rank, (n,), dtype, first + i * stride)

        rows = self._handle.get_buffer(self.rank, (self.world * stride,), dtype, first)
        return Room(
            [row(rank, self.rank) for rank in self._others_first],
            rows.as_strided((self.world, n), (stride, 1)),
            [row(rank, self.world) for rank in self._others_first] if sums else [],
        )

    def _meet(self, chunks: Sequence[Tensor], sums: bool = False) -> Room:
        """Copy chunk r to rank r, for each rank, in the next half, and wait until all ranks have."""
        half, self._next = self._next, 1 - self._next
        first = chunks[0]
        room = self._room(half, first.numel(), first.dtype, sums)
        _copy(room.mine, [chunks[rank] for rank in self._others_first])
        self._handle.barrier(0, TIMEOUT)
        return room

    def _scatter(self, output: Tensor, chunks: Sequence[Tensor]) -> None:
        add_rows(self._meet(chunks).rows, output)

    def _is_of_two(self, output: Tensor, dtype: torch.dtype) -> bool:
        return self.world == 2 and output.dtype == dtype and output.nbytes <= OF_TWO

    def _add_two(self, output: Tensor, row: Tensor, sent: Tensor) -> None:
        """Write the sum of this rank's row and of what the other one sends. 16 bits are added in float32 by torch, too;
        of two terms either order has the same bits, once a NaN is torchreduce.sum's."""
        half, self._next = self._next, 1 - self._next
        own, others = self._two_rows(half, sent.numel(), sent.dtype)
        own.copy_(sent)
        self._handle.barrier(0, TIMEOUT)
        torch.add(row, others, out=output)
        torch.nan_to_num(output, math.nan, math.inf, -math.inf, out=output)

    def _make_two_rows(self, half: int, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """This rank's row in its buffer, and the other's in the other's."""
        first, get = half * HALF // dtype.itemsize, self._handle.get_buffer
        return get(self.rank, (n,), dtype, first), get(1 - self.rank, (n,), dtype, first)

    def _in_two_steps(self, piece: Tensor) -> None:
        chunks = torch.split_with_sizes(piece, [piece.numel() // self.world] * self.world)
        room = self._meet(chunks, True)
        add_rows(room.rows, room.sums[-1])
        self._handle.barrier(0, TIMEOUT)
        _copy([chunks[rank] for rank in self._others_first], room.sums)


def _copy(to: list[Tensor], rows: list[Tensor]) -> None:
    if SHORT < rows[0].numel() < LONG:
        for target, row in zip(to, rows, strict=True):
            target.copy_(row)
    else:
        torch._foreach_copy_(to, rows)


# None of a group without buffers.
_peers: WeakKeyDictionary[dist.ProcessGroup, Peers | None] = WeakKeyDictionary()
_UNKNOWN: Any = object()


def peers_of(group: dist.ProcessGroup, tensor: Tensor) -> Peers | None:
    """Return the buffers of the group's ranks; None if there are none. All ranks call it, with tensors of one kind."""
    if not tensor.is_cuda or torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing():
        return None
    peers: Peers | None = _peers.get(group, _UNKNOWN)
    if peers is _UNKNOWN:
        peers = _peers[group] = _connect(group, tensor.device)
    return peers


def _connect(group: dist.ProcessGroup, device: torch.device) -> Peers | None:
    """Buffers, if the ranks share a host, each with a GPU that reaches the others', and all of them can and want to."""
    if not _available or not torch.version.cuda or not 2 <= group.size() <= MOST_RANKS:
        return None
    uuids = {str(torch.cuda.get_device_properties(i).uuid): i for i in range(torch.cuda.device_count())}
    wanted = os.environ.get("TORCHREDUCE_SYMMETRIC_MEMORY") == "1" and dist.get_backend(group) == "nccl"
    own = str(torch.cuda.get_device_properties(device).uuid)
    ranks = _told(group, (wanted, socket.gethostname(), own))
    if not all(ranks[i][0] and ranks[i][1] == ranks[0][1] for i in range(len(ranks))):
        return None
    others = [uuids.get(uuid) for _, _, uuid in ranks if uuid != own]
    reached = [i for i in others if i is not None and torch.cuda.can_device_access_peer(device.index, i)]
    if not all(_told(group, len(reached) == len(ranks) - 1)):
        return None
    peers = None
    with suppress(RuntimeError):  # what the driver, or the container, does not allow
        peers = Peers(group, device)
    return peers if all(_told(group, peers is not None)) else None


def _told(group: dist.ProcessGroup, fact: Any) -> list[Any]:
    """What each rank says."""
    facts: list[Any] = [None] * group.size()
    dist.all_gather_object(facts, fact, group)
    return facts
