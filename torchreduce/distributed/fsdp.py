"""Sums of gradients over micro-batches in FSDP2, by its public calls."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .collectives import Group, all_reduce, reduce_scatter, scatter_nodes
from .gradients import Shares
from .order import Partials, tree_sum

_CALLS = (
    "set_custom_reduce_scatter",
    "set_all_reduce_hook",
    "set_force_sum_reduction_for_comms",
    "set_gradient_divide_factor",
)


class FSDPTree:
    """The sum of the gradients of a step's `count` micro-batches, of a model of fully_shard.

        state = FSDPTree(model, count=8)
        for i in state.micro_batches():      # those of this rank
            loss(model(batch(i))).backward()
        # .grad are the shards of the sum, rounded once to the parameter's dtype

    The result does not depend on the number of ranks. Nothing is divided. With 16-bit parameters also pass
    MixedPrecisionPolicy(reduce_dtype=torch.float32) to fully_shard: else each micro-batch is rounded.

    - interleaved=True: in step s the ranks have the micro-batches s * ranks, s * ranks + 1, ... Each micro-batch is
      reduce-scattered, as FSDP2 does, and a rank keeps shards of partial sums. The ranks are a power of two that
      divides count.
    - interleaved=False: each rank has neighbouring micro-batches, keeps whole partial sums, and sends them once in a
      step. Any number of ranks up to count.
    - replicas: of HSDP, whose own all-reduce cannot be replaced: shard over the shard dim alone, and pass the group of
      the ranks that have the same shard. group is that of the shard dim; the ranks of a replica are neighbours.

    Raises NotImplementedError if this release of torch does not have the calls that are needed.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        count: int,
        group: Group = None,
        *,
        interleaved: bool = True,
        replicas: dist.ProcessGroup | None = None,
    ) -> None:
        from torch.distributed.fsdp import FSDPModule

        modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
        if not modules:
            raise ValueError("FSDPTree(): expected a model of torch.distributed.fsdp.fully_shard")
        missing = [name for name in _CALLS if not hasattr(FSDPModule, name)]
        if missing:
            raise NotImplementedError(
                f"FSDPTree(): FSDPModule of torch {torch.__version__} has no {', '.join(missing)}"
            )
        shares = Shares("FSDPTree", count, group)
        rank, world = shares.rank, shares.world
        if replicas is not None:
            if not interleaved:
                raise NotImplementedError("FSDPTree(): not implemented for replicas with interleaved=False")
            rank += dist.get_rank(replicas) * world
            world *= dist.get_world_size(replicas)
        if interleaved and (world & (world - 1) or count % world):
            raise ValueError(
                f"FSDPTree(): expected a power of two of ranks that divides count={count}, but got {world} ranks; "
                "interleaved=False takes any number"
            )
        self._shares, self._interleaved, self._replicas, self._world = shares, interleaved, replicas, world
        self._mine = range(rank, count, world) if interleaved else shares.run
        self._last = False
        reduce_scatter_class = _reduce_scatter_class()
        for module in modules:
            module.set_custom_reduce_scatter(reduce_scatter_class(self))
            module.set_all_reduce_hook(partial(self._sum_steps, Partials()))
            module.set_force_sum_reduction_for_comms(True)  # else the op is a mean, or one with a factor
            # On one rank torch 2.13 divides twice by another factor, if the op is forced to be the sum.
            module.set_gradient_divide_factor(1.0)

    def micro_batches(self) -> Iterator[int]:
        """Yield the micro-batches of this rank. Each is followed by one backward."""
        for i in self._mine:
            self._last = i == self._mine[-1]
            yield i

    def _sum_steps(self, partials: Partials, shard: Tensor) -> None:
        """FSDP2's all-reduce hook: after the reduce-scatter, which one rank has none of, before the rounding.

        It has a stream of its own, where FSDP2 also adds the shard to .grad afterwards. The shard's memory is the
        reduce-scatter's stream's, which would give it to the next layer before that is done.
        """
        if shard.is_cuda:
            shard.record_stream(torch.cuda.current_stream(shard.device))
        if not self._interleaved and self._shares.world > 1:
            return
        if self._replicas is not None:
            all_reduce(shard, self._replicas)
        if self._shares.count == self._world > 1:  # one micro-batch a rank: the shard is the sum
            return
        # FSDP2 adds what it finds in the shard to the shard's .grad: -0.0 changes nothing there
        if self._last:
            partials.push([shard])
            tree_sum(partials.total()[0].unsqueeze(0), out=shard)
        else:
            partials.push([shard.clone()])
            shard.fill_(-0.0)

    def _sum_ranks(self, partials: Partials, output: Tensor, input: Tensor, group: dist.ProcessGroup) -> None:
        """FSDP2's reduce-scatter."""
        shares = self._shares
        if self._interleaved:
            reduce_scatter(output, input, group)
            return
        partials.push([input if self._last else input.clone()])
        if self._last:
            parts = [part[0] for part in partials.parts(shares.run, shares.count)]
            scatter_nodes(output, parts, shares.nodes, group)
        else:
            output.fill_(-0.0)


def _reduce_scatter_class() -> type:
    """The class that set_custom_reduce_scatter takes. Its base is not at the same place in all releases of torch."""
    try:
        from torch.distributed.fsdp import ReduceScatter  # type: ignore[attr-defined]
    except ImportError:
        from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

    class TreeReduceScatter(ReduceScatter):  # type: ignore[misc]
        def __init__(self, state: FSDPTree) -> None:
            self.state, self.partials = state, Partials(state._shares.run.start)

        def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
            return torch.empty(*size, dtype=dtype, device=device)

        def __call__(
            self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
        ) -> None:
            if op != dist.ReduceOp.SUM:
                raise RuntimeError(f"FSDPTree: expected the op SUM of FSDP2, but got {op}")
            self.state._sum_ranks(self.partials, output_tensor, input_tensor, group)

    return TreeReduceScatter
