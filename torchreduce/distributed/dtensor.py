"""DTensors as arguments of torchreduce's functions: where their shards may stay, so that the result is the whole's.

A dim along which nothing is reduced may stay sharded: by batch invariance, a shard's results are those of the whole.
Other dims are gathered, or sharded anew along another dim; both move elements, and add nothing. Only sum has partial
results: of shards that are subtrees of the order, which then meet in the order of the ranks.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding
from torch.distributed.tensor.placement_types import Placement

from .._fake.reductions import dims_of
from .._fake.rowwise import SIGNATURES
from ..table import LINEAR_SCAN, OPS, PAIRS, Op
from .collectives import all_reduce, reduce_scatter
from .order import wide
from .sharded import LEAF

Sharding = tuple[list[Placement | None], list[Placement | None]]  # of the results, of the arguments

# Ops of no table, by the kinds that torchreduce/_fake/rowwise.py describes.
_OTHERS = {
    "linear_scan": ("x x labels dim", "x"),
    "decayed_sum": ("x x x dim", "x"),
    "cumprod_gradient": ("x x dim", "x"),
    "rounded": ("x", "x"),
    "powers": ("x", "x"),
    "norm_power": ("x dims keepdim", "rows"),
}


class TreePartial(Partial):
    """Partial sums that meet in the order of the ranks of a mesh dim, as `trd.all_reduce` adds them.

    torch's own Partial("sum") may be scaled, or added to another, before the ranks' parts meet. This one is not: the
    ops of torch do not know it, and get the sum.
    """

    def __init__(self) -> None:
        super().__init__("tree")

    def _reduce_value(self, tensor: Tensor, mesh: DeviceMesh, mesh_dim: int) -> Tensor:
        tensor = tensor.clone()
        all_reduce(tensor, mesh.get_group(mesh_dim))
        return tensor

    def _reduce_shard_value(self, tensor: Tensor, mesh: DeviceMesh, mesh_dim: int, shard_spec: Placement) -> Tensor:
        assert isinstance(shard_spec, Shard)
        dim, world = shard_spec.dim, mesh.size(mesh_dim)
        if tensor.shape[dim] % world == 0:
            chunks = torch.stack(tensor.chunk(world, dim))
            mine = torch.empty_like(chunks[0])
            reduce_scatter(mine, chunks, mesh.get_group(mesh_dim))
            return mine
        whole = self._reduce_value(tensor, mesh, mesh_dim)
        return whole.tensor_split(_borders(whole.shape[dim], world), dim)[mesh.get_local_rank(mesh_dim)].contiguous()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TreePartial)

    def __hash__(self) -> int:
        return hash("TreePartial")

    def __repr__(self) -> str:
        return "TreePartial()"

    __str__ = __repr__


def _borders(size: int, world: int) -> list[int]:
    """Where torch begins the shards of a dim, but for the first."""
    chunk = -(-size // world)
    return [min(rank * chunk, size) for rank in range(1, world)]


_registered = False


def register_dtensor() -> None:
    """Register how torchreduce's functions treat DTensors. Call it once in each process; later calls do nothing.

    Results, and gradients, are bitwise identical to those of the whole tensor, for any placements of Shard and
    Replicate. A sharded dim that is not reduced stays sharded. One that is reduced is gathered, or sharded along
    another dim; `sum` of float32 and float64 adds the ranks' sums instead, where each shard is a run of 2048 times a
    power of two elements of the reduced row. The `out=` forms are not supported.
    """
    global _registered
    if _registered:
        return
    for name, strategy in _strategies():
        packet = getattr(torch.ops.torchreduce, name)
        for overload in {"default", "raw"} & set(packet.overloads()):
            _register(getattr(packet, overload), strategy)
    _registered = True


def _register(op: Any, strategy: Callable[..., list[Sharding]]) -> None:
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo

    register_sharding(op)(strategy)
    # register_sharding caches by the arguments from the first int on. All that are no tensors count here: a sum over
    # dim 0 is not that over dim 1.
    first = next((i for i, a in enumerate(op._schema.arguments) if "Tensor" not in str(a.type)), 100)
    propagator = DTensor._op_dispatcher.sharding_propagator
    propagator.op_to_schema_info[op] = RuntimeSchemaInfo(first, needs_pytree=True)


def _strategies() -> Iterator[tuple[str, Callable[..., list[Sharding]]]]:
    """Of every op of torchreduce."""
    kinds: dict[str, tuple[str, str]] = {op.name: _kinds_of(op) for op in (*OPS, *PAIRS)}
    kinds |= {name: (arguments, results) for name, (arguments, results, _) in SIGNATURES.items()}
    kinds |= _OTHERS
    assert LINEAR_SCAN.name in kinds
    names = {name.partition("::")[2].partition(".")[0] for name in torch._C._dispatch_get_all_op_names()
             if name.startswith("torchreduce::")}  # fmt: skip
    for name in sorted(names):
        arguments, results = kinds.get(name, ("", ""))
        yield name, _strategy(name, arguments.split(), results.split())


def _kinds_of(op: Op) -> tuple[str, str]:
    if op.kind == "scan":
        return "x dim", "x " * len(op.returns)
    return "x keepdim" if op.dims == "all" else "x dims keepdim", "rows " * len(op.returns)


def _strategy(name: str, kinds: list[str], returned: list[str]) -> Callable[..., list[Sharding]]:
    overloads = getattr(torch.ops.torchreduce, name)
    results = len(getattr(overloads, overloads.overloads()[0])._schema.returns)

    def strategy(*args: Any) -> list[Sharding]:
        named = dict(zip(kinds, args, strict=False))
        made: list[Sharding] = [([Replicate()] * results, [Replicate() if _is_tensor(a) else None for a in args])]
        tensors = [a for kind, a in zip(kinds, args, strict=False) if kind == "x"]
        if not tensors or any(t.shape != tensors[0].shape for t in tensors) or "weight" in returned:
            return made
        x = tensors[0]
        along = _along(named, len(x.shape))
        for d in range(len(x.shape)):
            if d in along:
                continue

            def placed(kind: str, d: int = d) -> Placement:
                if kind == "stats":
                    return Shard(d + 1)
                if kind == "labels" or (kind == "rows" and not named.get("keepdim", True)):
                    return Shard(d - sum(e < d for e in along))
                return Shard(d) if kind in ("x", "rows") else Replicate()

            every = [*kinds, *["-"] * (len(args) - len(kinds))]
            inputs = [placed(kind) if _is_tensor(a) else None for kind, a in zip(every, args, strict=False)]
            made.append(([placed(kind) for kind in returned], inputs))
        if name == "sum":
            made += [([TreePartial()], [Shard(d), *[None] * (len(args) - 1)]) for d in _subtrees(along, *args)]
        return made

    return strategy


def _is_tensor(argument: Any) -> bool:
    return hasattr(argument, "placements")


def _along(named: dict[str, Any], ndim: int) -> list[int]:
    """The dims that the op goes along, of its arguments by their kinds."""
    if "dim" in named:
        return [named["dim"] % max(ndim, 1)]
    if "trailing" in named:
        return list(range(ndim - named["trailing"], ndim))
    if "dims" in named:
        return dims_of(ndim, named["dims"])
    return list(range(ndim)) if "keepdim" in named else []


def _subtrees(along: list[int], x: Any, dims: Any, keepdim: bool, dtype: torch.dtype | None, level: int) -> list[int]:
    """The dims whose shards are subtrees of the reduced rows, one after the other; sums of them are not rounded."""
    given = x.tensor_meta.dtype
    exact = given.is_floating_point and (dtype or given) == wide(given)
    if not exact or level != 0 or x.mesh.ndim != 1:
        return []
    world, found = x.mesh.size(), []
    for d in along:
        leaves, rest = divmod(math.prod(x.shape[e] for e in along if e >= d), world * LEAF)
        outer: Sequence[int] = [e for e in along if e < d and x.shape[e] != 1]
        if x.shape[d] % world == 0 and rest == 0 and leaves and leaves & (leaves - 1) == 0 and not outer:
            found.append(d)
    return found
