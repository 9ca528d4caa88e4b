"""Show how a call would run: `explain`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import _C, norms, ops, rowwise, scans
from ._core.checks import Dims, check_dims, check_input, either, overloads
from ._core.direct import NUMBERS
from .determinism import CODES, level_code
from .table import BY_NAME, KEEPING_SHAPE, OPS, Op

# For functions that call several ops: the first one.
_FIRST = {"vector_norm": "norm2", "norm": "norm2", "nanmean": "nansum_and_count", "aminmax": "aminmax"}
# The row-wise functions, and the op of each.
_ROWWISE = {
    **{name: name for name in (*KEEPING_SHAPE, "logsumexp", "entropy", "rms_norm", "layer_norm", "cross_entropy")},
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), "moments"),
}

_FAMILIES = {
    **{("reduction", family): words for family, words in _C.reduce_families().items()},
    **{("scan", family): words for family, words in _C.scan_families().items()},
    **{("row-wise op", family): words for family, words in _C.rowwise_families().items()},
}


@dataclass(frozen=True)
class Plan:
    """The kernel variant and launch configuration of a call. No field changes a bit of the result."""

    call: str
    device: str
    kind: str
    family: str
    blocks: int  # GPU: grid size; CPU: tasks
    threads: int  # GPU: block size
    shared: int  # bytes of dynamic shared memory a block
    workspace: int  # bytes for results that blocks exchange
    shape: dict[str, int]  # parameters of the kernel variant

    def __str__(self) -> str:
        if self.device == "cpu":
            return f"{self.call}\n  family     {self.family}\n  tasks      up to {self.blocks}, {_C.instruction_set()}"
        lines = [
            self.call,
            f"  family     {self.family}: {_FAMILIES[self.kind, self.family]}",
            f"  shape      {', '.join(f'{name} {value}' for name, value in self.shape.items())}",
            *self._splits(),
            f"  grid       {self.blocks} blocks of {self.threads} threads, {self.shared} bytes shared",
            f"  workspace  {self.workspace} bytes{self._tickets()}",
        ]
        return "\n".join(lines)

    __repr__ = __str__

    def _splits(self) -> list[str]:
        return []

    def _tickets(self) -> str:
        return ""


@dataclass(frozen=True, repr=False)
class ReductionPlan(Plan):
    """The plan of a reduction."""

    splits: int  # parts that a row is split into
    tickets: int  # counters that tell a block whether it is the last one of its row
    copied: int  # bytes of a contiguous copy that is made first, and reduced instead of the input; 0: none is made

    def _splits(self) -> list[str]:
        split = f"{self.splits} parts per row, joined by the last block" if self.splits > 1 else "none"
        copy = [f"  copy       {self.copied} bytes, contiguous, made first"] if self.copied else []
        return [*copy, f"  split      {split}"]

    def _tickets(self) -> str:
        return f", {self.tickets} tickets"


@dataclass(frozen=True, repr=False)
class ScanPlan(Plan):
    """The plan of a scan."""

    declared: int  # bytes of static shared memory, at most


@dataclass(frozen=True, repr=False)
class RowwisePlan(Plan):
    """The plan of a row-wise op (kind "row-wise op"): softmax, losses, norms, variance."""

    splits: int  # parts that a row is cut into

    def _splits(self) -> list[str]:
        return [f"  split      {f'{self.splits} parts per row' if self.splits > 1 else 'none'}"]


def _of_table(name: str, input: Tensor, dim: Dims, axis: Dims, given: dict[str, Any]) -> tuple[Op, list[int]]:
    """Return the op that computes a reduction or a scan on these arguments, and its dims (none: all of them)."""
    rows = [BY_NAME[_FIRST[name]]] if name in _FIRST else [op for op in OPS if op.function == name]
    dims = check_dims(overloads(rows[-1].name), input, dim, given.get("keepdim", False), axis)
    module = norms if "norm" in name else ops if rows[0].kind == "reduction" else scans
    getattr(module, name)(_shadow(input), dim=dim, axis=axis, **given)  # for its errors
    return rows[0 if dims is None else -1], dims or []  # max and min without indices come first


def _of_rowwise(name: str, input: Tensor, dim: Any, given: dict[str, Any]) -> tuple[str, list[int], torch.dtype]:
    """Return the op that computes a row-wise function, its dims, and the dtype of its result."""
    check_input(name, input)
    shadow, call = _shadow(input), getattr(rowwise, name)
    if name == "cross_entropy":
        along = 0 if input.ndim == 1 else 1
        dims, labels = [along], [*input.shape[:along], *input.shape[along + 1 :]]
        given = given if dim is None else {**given, "dim": dim}
        call(shadow, torch.empty(labels, dtype=torch.int64, device="meta"), **given)
        return name, dims, input.dtype
    if "axis" in given and name not in ("rms_norm", "layer_norm"):
        dim = either(name, dim, given.pop("axis"))
    result = call(shadow, dim, **given)
    if name in ("rms_norm", "layer_norm"):
        return name, list(range(input.ndim))[-1 if isinstance(dim, int) else -len(dim) :], input.dtype
    dims = [] if dim is None else [dim] if isinstance(dim, int) else list(dim)
    return _ROWWISE[name], dims, result.dtype if name in KEEPING_SHAPE or not input.is_floating_point() else input.dtype


def _shadow(input: Tensor) -> Tensor:
    return torch.empty_strided(input.shape, input.stride(), dtype=input.dtype, device="meta")


def explain(
    name: str,
    input: Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    axis: Dims = None,
    exclusive: bool = False,
    reverse: bool = False,
) -> ReductionPlan | ScanPlan | RowwisePlan:
    """Return the plan of a call: its kernel variant and launch configuration.

    name is a public function, such as "sum"; the other arguments are those of the call. Nothing is run. The plan prints
    as a description. Each function has one plan: if it calls several ops, the plan is that of the first one, as for
    vector_norm that of order 2. For rms_norm and layer_norm, dim is the normalized_shape, and the plan is for a call
    without weights. cross_entropy takes no dim. torchreduce.testing.force_plan and the determinism level apply. A
    meta tensor is planned for the CPU. Raises ValueError for a name that is not supported, such as linear_scan, which
    takes two tensors; otherwise the errors of the call.

    >>> import torch, torchreduce
    >>> torchreduce.explain("sum", torch.ones(4, 100), dim=1).family
    'rows'
    >>> torchreduce.explain("softmax", torch.ones(100, 4), dim=0).family
    'columns'
    """
    given = {"keepdim": keepdim, "dtype": dtype, "exclusive": exclusive, "reverse": reverse}
    given = {key: value for key, value in given.items() if value is not None and value is not False}
    plan: type[ReductionPlan | ScanPlan | RowwisePlan]
    if name in _ROWWISE:
        op, dims, result = _of_rowwise(name, input, dim, given if axis is None else {**given, "axis": axis})
        kind, plan = "row-wise op", RowwisePlan
    elif name in _FIRST or any(row.function == name for row in OPS):
        row, dims = _of_table(name, input, dim, axis, given)
        op, result, kind = row.name, row.result_dtype(input.dtype, dtype), row.kind
        plan = ReductionPlan if kind == "reduction" else ScanPlan
    else:
        known = ", ".join(sorted({row.function for row in OPS} | set(_FIRST) | set(_ROWWISE)))
        raise ValueError(f"explain(): not implemented for the function {name!r}. Supported are {known}")
    gpu = input.is_cuda
    cpu: _C.GpuFacts = {"multiprocessors": torch.get_num_threads()}
    facts = _C.gpu_facts(input.device.index) if gpu else cpu
    fields = _C.plan(
        op,
        list(input.shape),
        list(input.stride()),
        [d % input.ndim for d in dims if input.ndim],
        NUMBERS[input.dtype if kind != "row-wise op" or input.is_floating_point() else result],  # else it is converted
        NUMBERS[result],
        input.data_ptr() % 16 == 0,
        gpu,
        **facts,
        exclusive=exclusive,
        reverse=reverse,
        fast=level_code() == CODES["fast"],
    )
    along = dim if axis is None else axis
    options = "".join(f", {key}={value}" for key, value in given.items())
    call = f"{name} of {input.dtype} {tuple(input.shape)} with strides {input.stride()}, dim={along}{options}"
    device = torch.cuda.get_device_name(input.device) if gpu else "cpu"
    return plan(call=f"{call}, on {device}", device=input.device.type if gpu else "cpu", kind=kind, **fields)
