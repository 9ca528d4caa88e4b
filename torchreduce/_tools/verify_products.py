"""python -m torchreduce verify --products: whether rows of products and of attention depend on their batch, here."""

from collections.abc import Callable, Iterator
from itertools import product

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .. import _C
from .._core.direct import NUMBERS
from ..override import enabled

ROWS = (1, 2, 3, 7, 16, 33, 64, 100, 129, 256, 500, 1000, 1024, 4096)
SIZES = ((4096, 4096), (768, 3072), (3072, 768), (1001, 1000), (1000, 1001), (64, 64))  # N, K
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
QUERIES = (2, 17, 64, 128, 129, 257, 400)


def cancelling(
    m: int, n: int, k: int, dtype: torch.dtype, seed: int = 0, device: str = "cuda"
) -> tuple[Tensor, Tensor]:
    """(m, k) and (k, n) whose product is nothing but what its order of additions rounds: each summand's negative is
    somewhere in its row."""
    generator = torch.Generator(device).manual_seed(seed)
    at = torch.randperm(2 * (k // 2) + k % 2, generator=generator, device=device)

    def matrix(rows: int, sign: int) -> Tensor:
        half = torch.randn(rows, k // 2, generator=generator, device=device).to(dtype)
        return torch.cat([half, sign * half, half.new_zeros(rows, k % 2)], 1)[:, at]

    return matrix(m, 1), matrix(n, -1).t()


def differing_rows(a: Tensor, b: Tensor) -> int:
    integers = {2: torch.int16, 4: torch.int32}[a.element_size()]
    return int((a.contiguous().view(integers) != b.contiguous().view(integers)).flatten(0, -2).any(1).sum())


def _along(x: Tensor, rows: bool) -> Tensor:
    return x.contiguous() if rows else x.t().contiguous().t()


def product_rows(dtype: torch.dtype, left: bool, right: bool) -> tuple[int, int]:
    """How many rows were compared with those of the largest product, and how many differ."""
    compared = differ = 0
    for n, k in SIZES:
        x, w = cancelling(max(ROWS), n, k, dtype)
        x, w, bias = _along(x, left), _along(w, right), w[0].contiguous()
        calls: tuple[Callable[[Tensor], Tensor], ...] = (
            lambda x, w=w: x @ w,  # type: ignore[misc]
            lambda x, w=w, bias=bias: torch.addmm(bias, x, w),  # type: ignore[misc]
        )
        for call in calls:
            whole = call(x)
            for m in ROWS:
                compared += m
                differ += differing_rows(call(_along(x[-m:], left)), whole[-m:])
    return compared, differ


# ---- attention -------------------------------------------------------------------------------------------------------


def _with_gradients(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    q, k, v = (t.detach().clone().requires_grad_() for t in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return (y.detach(), *torch.autograd.grad(y, (q, k, v), g))


def attention_rows(backend: SDPBackend, width: int) -> Iterator[tuple[str, int]]:
    """What was compared, and how many rows differ. q, k, v: (8, 4, 400, width)."""
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v, g = (torch.randn(8, 4, 400, width, generator=generator, device="cuda").bfloat16() for _ in range(4))
    attend = F.scaled_dot_product_attention
    with sdpa_kernel(backend):
        whole = attend(q, k, v, is_causal=True)
        yield "batch", sum(differing_rows(attend(q[:b], k[:b], v[:b], is_causal=True), whole[:b]) for b in (1, 2, 3))
        shorter = ((attend(q[:, :, :n], k[:, :, :n], v[:, :, :n], is_causal=True), whole[:, :, :n]) for n in QUERIES)
        yield "shorter sequences", sum(differing_rows(a, b) for a, b in shorter)
        yield (
            "one query",
            sum(
                differing_rows(attend(q[:b, :, n - 1 : n], k[:b, :, :n], v[:b, :, :n]), whole[:b, :, n - 1 : n])
                for n, b in product(QUERIES, (1, 8))
            ),
        )
        gradients = _with_gradients(q, k, v, g)
        yield (
            "gradients",
            sum(
                differing_rows(a, of[:b])
                for b in (1, 3)
                for a, of in zip(_with_gradients(q[:b], k[:b], v[:b], g[:b]), gradients, strict=True)
            ),
        )


def _attention(console: Console) -> None:
    table = Table(title="rows of attention that differ: bfloat16, causal, heads of 64 and 128")
    for heading in ("kernels", "batch", "shorter sequences", "one query", "gradients"):
        table.add_column(heading, justify="left" if heading == "kernels" else "right")
    for deterministic in (False, True):
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(deterministic)
        try:
            for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
                name = backend.name.removesuffix("_ATTENTION").lower() + (", deterministic" if deterministic else "")
                try:
                    rows = [dict(attention_rows(backend, width)) for width in (64, 128)]
                    table.add_row(name, *(str(sum(row[key] for row in rows)) for key in rows[0]))
                except RuntimeError:
                    table.add_row(name, *["not available"] * 4)
        finally:
            torch.use_deterministic_algorithms(before)
    console.print(table)


def run(facts: str) -> int:
    """Print the given facts and the tables. Return 1 if a row of a product differs, else 0."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    console.print(facts, markup=False, highlight=False, soft_wrap=True)
    table = Table(title="rows of matrix products that differ")
    for heading in ("dtype", "left, right contiguous along", "compared", "differ", "algorithms", "refused"):
        table.add_column(heading, justify="left" if heading.startswith(("dtype", "left")) else "right")
    failed = 0
    with enabled(compile=False, products="float32"):
        cases = list(product(DTYPES, (True, False), (True, False)))
        for dtype, left, right in track(cases, "products", console=console, transient=True):
            compared, differ = product_rows(dtype, left, right)
            failed += differ
            tried = _C.tried_algorithms(torch.cuda.current_device())
            of = [a for a in tried if (a[0], *a[2:4]) == (NUMBERS[dtype], left, right)]
            names = ", ".join("rows" if along else "columns" for along in (left, right))
            counts = (compared, differ, len(of), sum(not a[-1] for a in of))
            table.add_row(str(dtype).removeprefix("torch."), names, *map(str, counts))
        console.print(table)
        _attention(console)
    verdict = f"[bold red]{failed} rows FAILED" if failed else "[green]every row has the bits of its largest batch"
    console.print(f"matrix products: {verdict}[/]")
    return 1 if failed else 0
