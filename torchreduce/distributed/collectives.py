"""reduce_scatter and all_reduce in the order of the ranks.

Only collectives that move elements are used: all_to_all and all_gather. They add nothing, so the algorithm that the
backend chooses does not show in the bits. All additions are torchreduce.sum over the ranks' rows. Calls that wait may
write to the ranks' buffers instead, where they are asked to (symmetric.py).
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from .order import Node, check_floats, nodes_sum, tree_sum, wide
from .symmetric import Peers, peers_of

Group = dist.ProcessGroup | None
Steps = Iterator[Any]  # of a collective: yields the handle of each transfer, and goes on once that is awaited

# all_reduce sends everything to everyone, in one step, where a rank then receives at most so many bytes: the time of
# small messages is that of launches. On two H200, one step of 16 MB on each rank takes 0.15 ms, two steps 0.24
# (benchmarks/distributed.py). Two ranks send as many bytes in one step as in two, so they always take one, of at most
# PIECE bytes of a rank's: that bounds the room for what arrives. reduce_scatter takes one step up to a limit that is
# lower by the number of other ranks: an all_gather takes less of the host's time than an all_to_all, but sends more.
ONE_STEP = 32 << 20
PIECE = 64 << 20


class Work:
    """What `async_op=True` returns. Wait in the order of the calls, which has to be the same on all ranks."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._pending = next(steps, None)

    def wait(self) -> None:
        """Finish: the additions, and what has to travel after them, are queued on the current stream."""
        while self._pending is not None:
            self._pending.wait()
            self._pending = next(self._steps, None)


def reduce_scatter(
    output: Tensor, input: Tensor, group: Group | DeviceMesh = None, *, async_op: bool = False
) -> Work | None:
    """Write to output this rank's chunk of the sum of the ranks' inputs, in the order of the ranks.

    The arguments are those of torch.distributed.reduce_scatter_single; the op is the sum. input has as many elements
    as output times the number of ranks. It may have 16 bits where output is float32: then nothing is rounded.

    group: or a DeviceMesh, whose last dim is reduced first: the ranks of a host, then hosts. All its dims but the first
    must have a power of two of ranks. The result is the same; less travels between hosts.
    """
    groups = _groups("reduce_scatter", group)
    world = _world(groups)
    check_floats("reduce_scatter", output, input)
    if output.dtype not in (input.dtype, wide(input.dtype)):
        raise TypeError(f"reduce_scatter(): the output is {output.dtype}, but the input {input.dtype}")
    if input.numel() != world * output.numel():
        raise ValueError(
            f"reduce_scatter(): expected an input of {world} times the output's {output.numel()} elements, one chunk "
            f"for each rank, but got {input.numel()}"
        )
    if not output.is_contiguous():
        raise ValueError(f"reduce_scatter(): expected a contiguous output, but got strides {output.stride()}")
    _check_devices("reduce_scatter", output, input)
    into, flat = _flat(output), _flat(input)
    if not async_op and (peers := _peers(groups, flat)):
        peers.reduce_scatter(into, flat)
        return None
    return _started(_scatter(into, flat, groups, async_op), async_op)


def all_reduce(tensor: Tensor, group: Group | DeviceMesh = None, *, async_op: bool = False) -> Work | None:
    """Replace each rank's tensor by the sum of the ranks' tensors, in the order of the ranks.

    The arguments are those of torch.distributed.all_reduce; the op is the sum. Integers are exact in any order: those
    are torch's. group: or a DeviceMesh, as for reduce_scatter.
    """
    groups = _groups("all_reduce", group)
    if isinstance(tensor, Tensor) and tensor.dtype in (torch.uint8, torch.int8, torch.int32, torch.int64):
        return _started((dist.all_reduce(tensor, group=each, async_op=async_op) for each in groups), async_op)
    check_floats("all_reduce", tensor)
    if not async_op and (peers := _peers(groups, tensor)):
        flat = _flat(tensor)
        peers.all_reduce(flat)
        if not tensor.is_contiguous():
            tensor.detach().copy_(flat.view(tensor.shape))
        return None
    return _started(_in_place(tensor.detach(), groups, async_op), async_op)


def _groups(name: str, group: Group | DeviceMesh) -> list[dist.ProcessGroup]:
    """The groups of a sum, the outermost last; checked."""
    if type(group) is dist.ProcessGroup:
        return [group]
    if isinstance(group, DeviceMesh):
        if group.get_coordinate() is None:
            raise ValueError(f"{name}(): this rank is not in {group}")
        inner = [group.size(dim) for dim in range(1, group.ndim)]
        if any(size & (size - 1) for size in inner):
            raise ValueError(f"{name}(): expected powers of two as sizes of all mesh dims but the first, got {inner}")
        return [group.get_group(dim) for dim in reversed(range(group.ndim))]
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise ValueError(f"{name}(): this rank is not in the group {group}")  # torch gives such a number to others
    group = group or dist.distributed_c10d._get_default_group()
    if group.rank() < 0:
        raise ValueError(f"{name}(): this rank is not in the group")
    return [group]


def _world(groups: Sequence[dist.ProcessGroup]) -> int:
    return math.prod(group.size() for group in groups)


def _flat(tensor: Tensor) -> Tensor:
    """The elements in their order, in one dim, without a gradient: a copy of a tensor that is not contiguous."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    return tensor if tensor.ndim == 1 else tensor.view(-1)


def _peers(groups: Sequence[dist.ProcessGroup], tensor: Tensor) -> Peers | None:
    return peers_of(groups[0], tensor) if len(groups) == 1 and tensor.numel() else None


def _check_devices(name: str, output: Tensor, input: Tensor) -> None:
    if output.get_device() != input.get_device():
        raise ValueError(f"{name}(): expected tensors on one device, but got {output.device} and {input.device}")


def _started(steps: Steps, async_op: bool) -> Work | None:
    if async_op:
        return Work(steps)
    for _ in steps:
        pass
    return None


# ---- flat, contiguous tensors ----------------------------------------------------------------------------------------


def _scatter(output: Tensor, input: Tensor, groups: Sequence[dist.ProcessGroup], async_op: bool = False) -> Steps:
    inner, *outer = groups
    world = dist.get_world_size(inner)
    if outer:
        # by place in the inner group, then by the chunks of the outer ones; partial sums are not rounded
        chunks = input.view(-1, world, output.numel()).transpose(0, 1).contiguous()
        partial = torch.empty_like(chunks[0], dtype=wide(input.dtype))
        yield from _scatter(partial.view(-1), chunks.view(-1), [inner], async_op)
        yield from _scatter(output, partial.view(-1), outer, async_op)
        return
    received = input.view(world, -1)
    if world > 1 and 0 < world * (world - 1) * input.nbytes <= ONE_STEP:
        every = input.new_empty(world, *received.shape)
        yield gather(every, input, inner, async_op=async_op)
        received = every[:, inner.rank()]
    elif world > 1:
        received = torch.empty_like(received)
        yield exchange(received, input, inner, async_op=async_op)
    tree_sum(received, out=output)


def _in_place(tensor: Tensor, groups: Sequence[dist.ProcessGroup], async_op: bool) -> Steps:
    contiguous = tensor.contiguous()
    flat = contiguous.view(-1)
    n, world = flat.numel(), _world(groups)
    if len(groups) == 1 and (world * flat.nbytes <= ONE_STEP or (world == 2 and ONE_STEP)):
        for piece in flat.split(PIECE // flat.element_size()) if flat.nbytes > PIECE else [flat]:
            rows = piece.new_empty(world, piece.numel())
            yield gather(rows, piece, groups[0], async_op=async_op)
            tree_sum(rows, out=piece)
    else:
        whole = flat if n % world == 0 else torch.nn.functional.pad(flat, (0, -n % world))
        yield from _sum(whole, whole, groups, async_op)
        if whole is not flat:
            flat.copy_(whole[:n])
    if contiguous is not tensor:
        tensor.copy_(contiguous)


def _sum(output: Tensor, input: Tensor, groups: Sequence[dist.ProcessGroup], async_op: bool) -> Steps:
    """The sum of everything to output, which may be the input. The groups divide the number of elements."""
    inner, *outer = groups
    chunk = input.numel() // dist.get_world_size(inner)
    part = torch.empty(chunk, dtype=wide(input.dtype) if outer else output.dtype, device=input.device)
    yield from _scatter(part, input, [inner], async_op)
    if outer:
        rounded = torch.empty_like(part, dtype=output.dtype)
        yield from _sum(rounded, part, outer, async_op)
        part = rounded
    yield gather(output, part, inner, async_op=async_op)


def exchange(
    received: Tensor, sent: Tensor, group: Group, sizes: list[list[int]] | None = None, *, async_op: bool = False
) -> Any:
    """all_to_all_single, of any dtype: rank r gets chunk r. sizes: elements received from, and sent to, each rank."""
    scale = sent.element_size()
    here, there = ([n * scale for n in each] for each in sizes) if sizes else (None, None)
    return dist.all_to_all_single(_bytes(received), _bytes(sent), here, there, group, async_op)


def gather(whole: Tensor, part: Tensor, group: Group, *, async_op: bool = False) -> Any:
    """all_gather into one tensor, of any dtype."""
    into = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the older name, until torch 2.12
    return into(_bytes(whole), _bytes(part), group, async_op)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)


# ---- partial sums ----------------------------------------------------------------------------------------------------


def scatter_nodes(output: Tensor, parts: Sequence[Tensor], each: Sequence[Sequence[Node]], group: Group) -> None:
    """reduce_scatter of a sum whose terms are spread over the ranks: each[rank] are the nodes of that rank's run.

    parts: this rank's partial sums, of the nodes of its run: flat, of as many elements as output times the ranks.
    """
    world, n = len(each), output.numel()
    sent = parts[0] if len(parts) == 1 else torch.stack([part.view(world, n) for part in parts], 1).view(-1)
    order = [node for nodes in each for node in nodes]
    equal = [level for _, level in order] == [order[0][1]] * world  # subtrees, one a rank
    if equal and (peers := _peers(_groups("reduce_scatter", group), sent)):
        peers.reduce_scatter(output, sent)
        return
    received = sent
    if world > 1:
        received = sent.new_empty(len(order) * n)
        exchange(received, sent, group, [[len(nodes) * n for nodes in each], [len(parts) * n] * world])
    nodes_sum(received.view(-1, n), order, output)
