"""Matrix products in one order, torch's, and Triton's with fixed tiles: benchmarks/results/products/*.csv.

    python -m benchmarks.products [--dtype bfloat16]    # on a GPU of compute capability 9.0

Layers of current models, y = x w^T with w (N, K), by the number of rows of x. Weights take turns, so that they come
from memory; the queue of launches does not run dry; the median counts. The persistent Triton kernel has one tile for
all shapes, which is the usual way to products that do not depend on the batch.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

import torchreduce as tr

from .results import RESULTS, Writer, commit

FIELDS = ("device", "torch", "commit", "dtype", "n", "k", "m", "provider", "us")
# (N, K) of Llama 3 8B, 70B in eighths, Qwen 2.5 7B, GPT-2 and Qwen 3 0.6B.
SHAPES = (
    *((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)),
    *((1280, 8192), (8192, 1024), (7168, 8192), (8192, 3584)),
    *((4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944)),
    *((2304, 768), (768, 768), (3072, 768), (768, 3072)),
    *((4096, 1024), (1024, 2048), (6144, 1024)),
)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096, 16384)
CACHE = 150 << 20


@triton.jit
def _persistent(
    x, w, y, m, n, k, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP: tl.constexpr
):
    rows, columns = tl.cdiv(m, TILE_M), tl.cdiv(n, TILE_N)
    for tile in range(tl.program_id(0), rows * columns, tl.num_programs(0)):
        group = tile // (GROUP * columns)
        high = min(rows - group * GROUP, GROUP)
        row = group * GROUP + tile % (GROUP * columns) % high
        column = tile % (GROUP * columns) // high
        at_m = row * TILE_M + tl.arange(0, TILE_M)
        at_n = column * TILE_N + tl.arange(0, TILE_N)
        at_k = tl.arange(0, TILE_K)
        total = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
        for start in range(0, k, TILE_K):
            inside = at_k[None, :] + start < k
            left = tl.load(x + at_m[:, None] * k + at_k[None, :] + start, mask=(at_m[:, None] < m) & inside, other=0.0)
            right = tl.load(w + at_n[:, None] * k + at_k[None, :] + start, mask=(at_n[:, None] < n) & inside, other=0.0)
            total = tl.dot(left, right.T, total)
        inside = (at_m[:, None] < m) & (at_n[None, :] < n)
        tl.store(y + at_m[:, None].to(tl.int64) * n + at_n[None, :], total.to(y.dtype.element_ty), mask=inside)


def persistent(x: Tensor, w: Tensor) -> Tensor:
    (m, k), n = x.shape, w.shape[0]
    y = x.new_empty(m, n)
    blocks = torch.cuda.get_device_properties(x.device).multi_processor_count
    tiles = -(-m // 128) * -(-n // 128)
    _persistent[(min(blocks, tiles),)](x, w, y, m, n, k, 128, 128, 64, 8, num_warps=8, num_stages=3)
    return y


def median_us(call: Callable[[Tensor], Any], weights: list[Tensor], flops: float) -> float:
    """Of 5 loops over the weights, queued behind a wait of the GPU."""
    loops, times = max(2, min(40, int(2e-3 / max(flops / 6e14, 8e-6)))), []
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for w in weights[:2]:
        call(w)
    for _ in range(5):
        torch.cuda._sleep(100_000 * loops)
        start.record()
        for i in range(loops):
            call(weights[i % len(weights)])
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / loops)
    return sorted(times)[2]


def run(dtype: torch.dtype) -> list[dict[str, Any]]:
    rows = []
    common = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "commit": commit()}
    for n, k in SHAPES:
        copies = max(2, -(-CACHE // (n * k * dtype.itemsize)))
        weights = [torch.randn(n, k, device="cuda", dtype=dtype) for _ in range(copies)]
        for m in ROWS:
            x = torch.randn(m, k, device="cuda", dtype=dtype)
            providers = {"torch": lambda w, x=x: F.linear(x, w), "torchreduce": lambda w, x=x: F.linear(x, w)}
            if dtype is not torch.float32:
                providers["triton, one tile"] = lambda w, x=x: persistent(x, w)
            for provider, call in providers.items():
                with tr.enabled(compile=False, products="float32" if provider == "torchreduce" else False):
                    us = median_us(call, weights, 2.0 * m * n * k)
                of = {"dtype": str(dtype).removeprefix("torch."), "n": n, "k": k, "m": m, "provider": provider}
                rows.append({**common, **of, "us": f"{us:.2f}"})
        del weights
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    args = parser.parse_args()
    card = torch.cuda.get_device_name().removeprefix("NVIDIA ").lower().replace(" ", "-")
    rows = run(getattr(torch, args.dtype))
    Writer(RESULTS / "products" / f"{card}-{args.dtype}.csv", FIELDS)(rows)
    ratios: dict[str, list[float]] = {}
    for i in range(0, len(rows), per := len({row["provider"] for row in rows})):
        us = {row["provider"]: float(row["us"]) for row in rows[i : i + per]}
        for provider, t in us.items():
            ratios.setdefault(provider, []).append(us["torch"] / t)
        if us["torch"] / us["torchreduce"] < 0.9:
            print({key: rows[i][key] for key in ("n", "k", "m")}, us)
    for provider, of in ratios.items():
        mean = torch.tensor(of).log().mean().exp().item()
        print(f"{provider}: {mean:.3f} of torch's speed in the geometric mean, {min(of):.2f} at least")


if __name__ == "__main__":
    main()
