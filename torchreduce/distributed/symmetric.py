"""Sums that read the buffers of the other ranks' GPUs, where all ranks of a group are on one host.

A transfer by NCCL takes a launch, a kernel that meets the other ranks, and memory for what arrives, which is then read
once more. Here a rank copies its terms to a buffer that every rank can read, and adds what it needs of the buffers in
the order of the ranks. On two H200, behind other work in the queue, that takes 16 microseconds for 1 MB and 147 for
64 MB (reduce_scatter of float32); NCCL's own sums take 10 and 158.

torch calls these buffers symmetric memory, and may still change their interface. So all ranks have to ask for them, by
TORCHREDUCE_SYMMETRIC_MEMORY=1; else all_to_all and all_gather move the terms, with the same results.
"""

import math
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from .order import fold, wide

try:
    from torch.distributed import _symmetric_memory as _symmetric

    _available = hasattr(_symmetric, "empty") and hasattr(_symmetric, "rendezvous")
except ImportError:
    _available = False

PIECE = 32 << 20  # bytes of a buffer, and of what is summed at once
MOST_RANKS = 8
# Up to so many bytes, and with two ranks, all_reduce adds everything on every rank; else each rank adds a part, and
# reads the others' sums.
ALL_AT_ONCE = 1 << 20
TIMEOUT = 600_000  # milliseconds that a barrier waits for a rank


class Peers:
    """The buffers of a group's ranks, of PIECE bytes each."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self._own = _symmetric.empty(PIECE, dtype=torch.uint8, device=device)
        self._handle = _symmetric.rendezvous(self._own, group)
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self._done = torch.cuda.Event()
        self.views = lru_cache(64)(self._views)

    def _views(self, count: int, dtype: torch.dtype) -> list[Tensor]:
        """The first elements of each rank's buffer."""
        return [self._handle.get_buffer(rank, (count,), dtype) for rank in range(self.world)]

    def barrier(self) -> None:
        """Wait, on the current stream, until all ranks have come here on theirs."""
        self._handle.barrier(0, TIMEOUT)

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """One sum after the other, on whatever streams: they share the buffers."""
        if self._done is not None:
            torch.cuda.current_stream().wait_event(self._done)
        yield
        if self._done is not None:
            self._done.record()

    def reduce_scatter(self, output: Tensor, input: Tensor) -> None:
        """Write the sum of this rank's chunks to output. Both are flat and contiguous."""
        with self._in_turn():
            self._reduce_scatter(output, input)

    def _reduce_scatter(self, output: Tensor, input: Tensor) -> None:
        chunks = input.view(self.world, -1)
        most = max(1, PIECE // (self.world * input.element_size()))
        for begin in range(0, output.numel(), most):
            piece = chunks[:, begin : begin + most]
            n = piece.shape[1]
            buffers = self.views(piece.numel(), input.dtype)
            buffers[self.rank].view(self.world, n).copy_(piece)
            self.barrier()
            _add([b[self.rank * n : (self.rank + 1) * n] for b in buffers], output[begin : begin + n])
            self.barrier()

    def all_reduce(self, flat: Tensor) -> None:
        """Replace a flat, contiguous tensor by the sum."""
        with self._in_turn():
            self._all_reduce(flat)

    def _all_reduce(self, flat: Tensor) -> None:
        for piece in flat.split(PIECE // flat.element_size()):
            n = piece.numel()
            buffers = self.views(n, piece.dtype)
            buffers[self.rank].copy_(piece)
            self.barrier()
            if self.world == 2 or piece.nbytes <= ALL_AT_ONCE:
                _add(buffers, piece)
            else:
                size = -(-n // self.world)
                parts = [slice(min(n, r * size), min(n, (r + 1) * size)) for r in range(self.world)]
                own = buffers[self.rank][parts[self.rank]]  # no other rank reads this part of it until the barrier
                _add([b[parts[self.rank]] for b in buffers], own)
                self.barrier()
                for i in range(self.world):  # all ranks begin at another one
                    rank = (self.rank + i) % self.world
                    piece[parts[rank]].copy_(buffers[rank][parts[rank]])
            self.barrier()


def _add(terms: list[Tensor], out: Tensor) -> None:
    """Write the tree over the terms, in the order of the ranks, rounded once; a NaN as torchreduce.sum writes it."""
    accumulator = wide(out.dtype)

    def merge(left: Tensor, right: Tensor) -> Tensor:
        return torch.add(left.to(accumulator), right)

    total = fold([(rank, 0) for rank in range(len(terms))], terms, merge)
    if total.dtype != out.dtype:
        total = out.copy_(total)
    torch.nan_to_num(total, math.nan, math.inf, -math.inf, out=out)


# None of a group without buffers.
_peers: WeakKeyDictionary[dist.ProcessGroup, Peers | None] = WeakKeyDictionary()


def peers_of(group: dist.ProcessGroup, tensor: Tensor) -> Peers | None:
    """Return the buffers of the group's ranks; None if there are none. All ranks call it, with tensors of one kind."""
    if not _available or torch.compiler.is_compiling() or not tensor.is_cuda or not torch.version.cuda:
        return None
    if not 2 <= dist.get_world_size(group) <= MOST_RANKS or torch.cuda.is_current_stream_capturing():
        return None
    if group not in _peers:
        _peers[group] = _connect(group, tensor.device)
    return _peers[group]


def _connect(group: dist.ProcessGroup, device: torch.device) -> Peers | None:
    """Buffers, if the ranks share a host, each with a GPU that reaches the others', and all of them can and want to."""
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
    facts: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(facts, fact, group)
    return facts
