"""Sums over processes that do not depend on how many processes there are, on torch.distributed.

    import torchreduce.distributed as trd

- `reduce_scatter`, `all_reduce`: in the order of the ranks, whatever the backend
- `GradientSum`, `DDPHook`, `FSDPTree`: the gradients of a step's micro-batches, for any number of ranks
- `sharded_sum`, `sharded_norm`, `clip_grad_norm_`: bitwise identical to those of the whole tensor
- `sharded_logsumexp`, `sharded_entropy`, `sharded_cross_entropy`: of classes that are sharded over ranks
- `register_dtensor`: torchreduce's functions of DTensors, bitwise identical to those of the whole
- `runs`, `nodes`, `Partials`: which terms a rank has, and how partial sums meet

docs/distributed.md has recipes; docs/numerics.md defines the order.
"""

import torch.distributed as _dist

if not _dist.is_available():
    raise ImportError("torchreduce.distributed: this build of torch has no torch.distributed")

from .classes import sharded_cross_entropy, sharded_entropy, sharded_logsumexp
from .clip import clip_grad_norm_
from .collectives import Work, all_reduce, reduce_scatter
from .ddp import DDPHook
from .dtensor import TreePartial, register_dtensor
from .fsdp import FSDPTree
from .gradients import GradientSum
from .order import Partials, nodes, runs
from .sharded import sharded_norm, sharded_sum

__all__ = [
    "DDPHook",
    "FSDPTree",
    "GradientSum",
    "Partials",
    "TreePartial",
    "Work",
    "all_reduce",
    "clip_grad_norm_",
    "nodes",
    "reduce_scatter",
    "register_dtensor",
    "runs",
    "sharded_cross_entropy",
    "sharded_entropy",
    "sharded_logsumexp",
    "sharded_norm",
    "sharded_sum",
]
