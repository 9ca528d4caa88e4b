"""How a call would run: `explain`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from . import _C, norms, ops, scans
from .checks import Dims, check_dims, overloads
from .table import BY_NAME, OPS

# torch's numbers of its dtypes, as the planner takes them.
_NUMBERS = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6,
    torch.float64: 7, torch.bool: 11, torch.bfloat16: 15,
}  # fmt: skip

# Of functions that call several ops the first one.
_FIRST = {"vector_norm": "norm2", "norm": "norm2", "nanmean": "nansum", "aminmax": "amin"}

_FAMILIES = {
    **{("reduction", family): words for family, words in _C.reduce_families().items()},
    **{("scan", family): words for family, words in _C.scan_families().items()},
    **{("fused row", family): words for family, words in _C.fused_families().items()},
}


@dataclass(frozen=True)
class ReductionPlan:
    """Which kernel family serves a reduction, and in what shape. No field changes a bit of the result."""

    call: str
    device: str
    kind: str  # "reduction"
    family: str
    blocks: int  # GPU: grid size; CPU: tasks
    threads: int  # GPU: block size
    shared: int  # bytes of dynamic shared memory a block
    splits: int  # runs that a row is cut into
    workspace: int  # bytes of the runs' partial results
    tickets: int  # counters by which the last block of a row knows that it is
    shape: dict[str, int]  # what is the family's own

    def __str__(self) -> str:
        lines = [self.call]
        if self.device == "cpu":
            lines += [f"  family     {self.family}", f"  tasks      up to {self.blocks}, {_C.instruction_set()}"]
            return "\n".join(lines)
        split = f"{self.splits} runs a row, combined by the last" if self.splits > 1 else "none: a row is not cut"
        return "\n".join(
            [
                *lines,
                f"  family     {self.family}: {_FAMILIES[self.kind, self.family]}",
                f"  shape      {', '.join(f'{name} {value}' for name, value in self.shape.items())}",
                f"  split      {split}",
                f"  grid       {self.blocks} blocks of {self.threads} threads, {self.shared} bytes shared",
                f"  workspace  {self.workspace} bytes, {self.tickets} tickets",
            ]
        )

    __repr__ = __str__


@dataclass(frozen=True)
class ScanPlan:
    """Which kernel family serves a scan, and in what shape. No field changes a bit of the result."""

    call: str
    device: str
    kind: str  # "scan"
    family: str
    blocks: int  # GPU: grid size; CPU: tasks
    threads: int  # GPU: block size
    shared: int  # bytes of dynamic shared memory a block
    declared: int  # bytes of shared memory that the kernel declares besides, at most
    workspace: int  # bytes by which blocks hand on what precedes others
    shape: dict[str, int]  # what is the family's own

    def __str__(self) -> str:
        lines = [self.call]
        if self.device == "cpu":
            lines += [f"  family     {self.family}", f"  tasks      up to {self.blocks}, {_C.instruction_set()}"]
            return "\n".join(lines)
        return "\n".join(
            [
                *lines,
                f"  family     {self.family}: {_FAMILIES[self.kind, self.family]}",
                f"  shape      {', '.join(f'{name} {value}' for name, value in self.shape.items())}",
                f"  grid       {self.blocks} blocks of {self.threads} threads, {self.shared} bytes shared",
                f"  workspace  {self.workspace} bytes",
            ]
        )

    __repr__ = __str__


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
) -> ReductionPlan | ScanPlan:
    """The plan of the public function `name` on these arguments, which prints in plain words. Nothing is run.

    Of a function that calls several ops, that of the first: of norms that of order 2. Whatever
    torchreduce.testing.force_plan forces is in it. A meta tensor is planned for the CPU. ValueError for a name it does
    not know, linear_scan among them, which takes two tensors; else the errors of the call.

    >>> import torch, torchreduce
    >>> torchreduce.explain("sum", torch.ones(4, 100), dim=1).family
    'rows'
    """
    rows = [BY_NAME[_FIRST[name]]] if name in _FIRST else [op for op in OPS if op.function == name]
    if not rows:
        known = ", ".join(sorted({op.function for op in OPS} | set(_FIRST)))
        raise ValueError(f"explain(): tells nothing of {name!r}. Functions that it knows: {known}")
    op = overloads(rows[-1].name)
    dims = check_dims(op, input, dim, keepdim, axis)
    given = {"keepdim": keepdim, "dtype": dtype, "exclusive": exclusive, "reverse": reverse}
    given = {key: value for key, value in given.items() if value is not None and value is not False}
    shadow = torch.empty_strided(input.shape, input.stride(), dtype=input.dtype, device="meta")
    module = norms if "norm" in name else ops if op.row.kind == "reduction" else scans
    getattr(module, name)(shadow, dim=dim, axis=axis, **given)  # for its errors
    if dims is None:
        op = overloads(rows[0].name)  # max and min without indices
    gpu = input.is_cuda
    cpu: _C.GpuFacts = {"multiprocessors": torch.get_num_threads()}
    facts = _C.gpu_facts(input.device.index) if gpu else cpu
    fields = _C.plan(
        op.row.name,
        list(input.shape),
        list(input.stride()),
        [d % input.ndim for d in dims or [] if input.ndim],
        _NUMBERS[input.dtype],
        _NUMBERS[op.row.result_dtype(input.dtype, dtype)],
        input.data_ptr() % 16 == 0,
        gpu,
        **facts,
        exclusive=exclusive,
        reverse=reverse,
    )
    along = dim if axis is None else axis
    options = "".join(f", {key}={value}" for key, value in given.items())
    call = f"{name} of {input.dtype} {tuple(input.shape)} with strides {input.stride()}, dim={along}{options}"
    device = torch.cuda.get_device_name(input.device) if gpu else "cpu"
    plan = ReductionPlan if op.row.kind == "reduction" else ScanPlan
    return plan(call=f"{call}, on {device}", device=input.device.type if gpu else "cpu", kind=op.row.kind, **fields)
