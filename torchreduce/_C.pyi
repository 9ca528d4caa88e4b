"""csrc/binding/python.cpp: what is no tensor op. csrc/binding/python_direct.cpp: ops without torch's dispatcher."""

from collections.abc import Callable
from typing import Any, TypedDict

import torch

def build_info() -> dict[str, Any]: ...
def instruction_set() -> str: ...
def instruction_sets() -> list[str]: ...
def set_instruction_set(name: str) -> bool: ...
def force_plan(fields: dict[str, Any]) -> None: ...
def forced_plan() -> dict[str, Any]: ...
def intrinsics() -> list[str]: ...
def run_intrinsic(name: str, inputs: int, results: int, count: int, gpu: bool) -> None: ...
def refusal(name: str, major: int, minor: int) -> str: ...
def reduce_families() -> dict[str, str]: ...
def scan_families() -> dict[str, str]: ...
def rowwise_families() -> dict[str, str]: ...
def tried_algorithms(device: int) -> list[tuple[int, int, bool, bool, int, bool, bool]]: ...

class Facts(TypedDict):
    multiprocessors: int

class GpuFacts(Facts, total=False):
    bulk_copies: bool
    shared: int
    large_blocks: bool
    wide_reductions: bool
    clusters: bool

def gpu_facts(device: int) -> GpuFacts: ...
def plan(
    op: str,
    sizes: list[int],
    strides: list[int],
    dim: list[int],
    dtype: int,
    out_dtype: int,
    aligned: bool,
    gpu: bool,
    multiprocessors: int,
    bulk_copies: bool = False,
    shared: int = 232448,
    exclusive: bool = False,
    reverse: bool = False,
    large_blocks: bool | None = None,
    wide_reductions: bool = True,
    clusters: bool = False,
    fast: bool = False,
) -> dict[str, Any]: ...
def use_torch(
    tensor: type,
    parameter: type,
    dtypes: dict[torch.dtype, int],
    handle_of: Callable[[torch.Tensor], Any],
    is_plain: int,
    wrap: int,
) -> None: ...
def direct(name: str, otherwise: Callable[..., Any] | None) -> Callable[..., Any]: ...
def direct_names() -> list[str]: ...
