"""What the override costs the host per call, and saves per training step: benchmarks/results/override/*.csv.

    python -m benchmarks.override host [--device cuda]
    python -m benchmarks.override step [--compile]      # on a GPU: a GPT of 124 M parameters
    python -m benchmarks.override embedding             # on a GPU: gradients of embeddings

The host's time a call is the least of some loops, of a 4x5 tensor, so short that a GPU always keeps up. A step is
forward, loss, backward, clipping and AdamW, in bfloat16 by autocast; states take turns, and the median counts. So do
the calls of an embedding's gradient; the floor of one is its bytes at 3 TB/s.
"""

import argparse
import functools
import time
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchreduce as tr
from torchreduce._tools.bench import percentile, take_turns

from .cpu import device_name
from .results import RESULTS, Writer, commit

FOLDER = RESULTS / "override"


def common(device: str) -> dict[str, str]:
    name = torch.cuda.get_device_name() if device == "cuda" else device_name()
    return {"device": name, "torch": torch.__version__, "commit": commit()}


# ---- the host --------------------------------------------------------------------------------------------------------

HOST_FIELDS = ("device", "torch", "commit", "op", "gradient", "provider", "us")
# By op: torch's call, and torchreduce's own.
CALLS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Tensor], Any]]] = {
    "sum": (lambda x: torch.sum(x, 1), lambda x: tr.sum(x, 1)),
    "mean": (lambda x: torch.mean(x, 1), lambda x: tr.mean(x, 1)),
    "amax": (lambda x: torch.amax(x, 1), lambda x: tr.amax(x, 1)),
    "argmax": (lambda x: torch.argmax(x, 1), lambda x: tr.argmax(x, 1)),
    "vector_norm": (lambda x: torch.linalg.vector_norm(x, 2, 1), lambda x: tr.vector_norm(x, 2, 1)),
    "cumsum": (lambda x: torch.cumsum(x, 1), lambda x: tr.cumsum(x, 1)),
    "softmax": (lambda x: torch.softmax(x, 1), lambda x: tr.softmax(x, 1)),
    "log_softmax": (lambda x: torch.log_softmax(x, 1), lambda x: tr.log_softmax(x, 1)),
    "logsumexp": (lambda x: torch.logsumexp(x, 1), lambda x: tr.logsumexp(x, 1)),
    "layer_norm": (lambda x: F.layer_norm(x, (5,)), lambda x: tr.layer_norm(x, (5,))),
    "rms_norm": (lambda x: F.rms_norm(x, (5,)), lambda x: tr.rms_norm(x, (5,))),
    "cross_entropy": (
        lambda x: F.cross_entropy(x, labels(x.device)),
        lambda x: tr.cross_entropy(x, labels(x.device)),
    ),
    "var": (lambda x: torch.var(x, 1), lambda x: tr.var(x, 1)),
}


@functools.cache
def labels(device: torch.device) -> Tensor:
    return torch.tensor([0, 1, 2, 3], device=device)


def least(call: Callable[[], Any], device: str, calls: int = 1000, loops: int = 9) -> float:
    """Microseconds a call."""
    times = []
    for _ in range(loops + 1):  # the first one warms up
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append(time.perf_counter() - start)
        if device == "cuda":
            torch.cuda.synchronize()
    return min(times[1:]) / calls * 1e6


def host(device: str) -> list[dict[str, Any]]:
    """Time torch before anything is registered, so first in a process; then registered and disabled; then enabled.
    Calls without a gradient, with one to record, and with one that is computed (gradient: taken)."""
    inputs = {g: torch.randn(4, 5, device=device, requires_grad=g) for g in (False, True)}
    rows = []

    def measure(provider: str, which: int) -> None:
        for op, calls in CALLS.items():
            for gradient, x in inputs.items():
                if gradient and op == "argmax":
                    continue
                f = calls[which]
                times = {str(gradient): least(lambda f=f, x=x: f(x), device)}
                if gradient:
                    g = torch.ones_like(f(x))
                    times["taken"] = least(lambda f=f, x=x, g=g: torch.autograd.grad(f(x), x, g), device, 300)
                for kind, us in times.items():
                    rows.append({**common(device), "op": op, "gradient": kind, "provider": provider, "us": f"{us:.2f}"})

    torch.set_num_threads(1)
    measure("", 0)  # a machine that has just begun to work is slower
    rows.clear()
    measure("torch", 0)
    measure("torchreduce", 1)
    tr.coverage()
    measure("torch, registered and off", 0)
    with tr.enabled(cpu=True, compile=False):
        measure("torch, turned over", 0)
    return rows


# ---- a training step -------------------------------------------------------------------------------------------------

STEP_FIELDS = ("device", "torch", "commit", "compiled", "state", "p20_ms", "p50_ms", "p80_ms", "steps")
KERNEL_FIELDS = ("device", "torch", "commit", "compiled", "state", "kernel", "calls", "us")
BATCH, LENGTH, VOCABULARY, WIDTH, HEADS, LAYERS = 8, 1024, 50257, 768, 12, 12


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = self.qkv(self.first(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, WIDTH)
        x = x + self.project(y)
        return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh"))


class GPT(nn.Module):
    """GPT-2's small one: 124 M parameters, the tokens' embedding shared with the head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(LAYERS))), nn.LayerNorm(WIDTH)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: Tensor, following: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        logits = F.linear(self.norm(self.blocks(x)), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), following.flatten())


def stepping(compile: bool) -> Callable[[], None]:
    torch.manual_seed(0)
    model = GPT().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=True)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), device="cuda")
    forward = torch.compile(model) if compile else model

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = forward(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def seconds(step: Callable[[], None], steps: int) -> list[float]:
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) / 1e3 for a, b in pairwise(marks)]


def kernels(step: Callable[[], None]) -> list[tuple[str, int, float]]:
    """Of one step: what runs on the GPU by its name, how often, and how many microseconds in all."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    found = [(e.key, e.count, e.self_device_time_total) for e in profile.key_averages() if e.self_device_time_total > 0]
    return sorted(found, key=lambda kernel: -kernel[2])


def step(compile: bool, rounds: int = 4, steps: int = 10) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    times: dict[str, list[float]] = {"off": [], "on": []}
    where = {**common("cuda"), "compiled": compile}
    run, table = stepping(compile), []
    for turn in range(rounds + 1):  # the first one compiles and warms up
        for state in times:
            if state == "on":
                tr.enable(compile=compile)
            measured = seconds(run, steps if turn else 3)
            times[state] += measured if turn else []
            if turn == rounds:
                table += [
                    {**where, "state": state, "kernel": kernel[:200], "calls": calls, "us": f"{us:.1f}"}
                    for kernel, calls, us in kernels(run)
                ]
            tr.disable()
    rows = []
    for state, measured in times.items():
        p20, p50, p80 = (f"{percentile(sorted(measured), p) * 1e3:.3f}" for p in (20, 50, 80))
        rows.append({**where, "state": state, "p20_ms": p20, "p50_ms": p50, "p80_ms": p80, "steps": len(measured)})
    return rows, table


# ---- the gradient of an embedding ------------------------------------------------------------------------------------

EMBEDDING_FIELDS = ("device", "torch", "commit", "dtype", "indices", "places", "width", "rows", "provider",
                    "p20_us", "p50_us", "p80_us", "floor_us")  # fmt: skip
PLACES, WIDTHS, ROWS = (8192, 65536, 1 << 20), (64, 768, 1024), (4, 256, 1000, 50304)


def drawn(indices: str, places: int, rows: int) -> Tensor:
    """Draw indices: uniform, or as frequent as the words of a text (zipf)."""
    if indices == "uniform":
        return torch.randint(rows, (places,), device="cuda")
    share = 1 / torch.arange(1, rows + 1, device="cuda", dtype=torch.float64)
    return torch.multinomial(share, places, replacement=True)


def embedding() -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of one case at a time."""
    mine, torchs = torch.ops.torchreduce.embedding_backward.raw, torch.ops.aten.embedding_dense_backward
    torch.manual_seed(0)
    where = common("cuda")
    for dtype in (torch.float32, torch.bfloat16):
        elements = torch.randn(max(PLACES) * max(WIDTHS), device="cuda", dtype=dtype)
        for places, width, rows in product(PLACES, WIDTHS, ROWS):
            for indices in ("uniform", "zipf") if rows == max(ROWS) else ("uniform",):
                g, i = elements[: places * width].view(places, width), drawn(indices, places, rows)
                times = take_turns(
                    {
                        "torch": lambda g=g, i=i, rows=rows: torchs(g, i, rows, -1, False),
                        "torchreduce": lambda g=g, i=i, rows=rows: mine(g, i, rows, -1, 0),
                    },
                    "cuda",
                )
                case = {**where, "dtype": str(dtype).removeprefix("torch."), "indices": indices,
                        "places": places, "width": width, "rows": rows,
                        "floor_us": f"{(places + rows) * width * dtype.itemsize / 3e6:.1f}"}  # fmt: skip
                yield [
                    {**case, "provider": provider}
                    | {f"p{p}_us": f"{percentile(seconds, p) * 1e6:.1f}" for p in (20, 50, 80)}
                    for provider, seconds in times.items()
                ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.override", description=__doc__)
    parser.add_argument("part", choices=("host", "step", "embedding"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="measure the step compiled")
    parser.add_argument("--out", type=Path, default=FOLDER)
    args = parser.parse_args()
    if args.part == "host":
        rows = host(args.device)
        Writer(args.out / f"host-{args.device}.csv", HOST_FIELDS)(rows)
        for row in rows:
            print(f"{row['op']:12}{'gradient' if row['gradient'] else '':10}{row['provider']:28}{row['us']:>8} us")
        return
    if args.part == "embedding":
        write = Writer(args.out / "embedding.csv", EMBEDDING_FIELDS)
        for rows in embedding():
            write(rows)
            torchs, mine = (float(row["p50_us"]) for row in rows)
            print(" ".join(f"{rows[0][k]:>8}" for k in EMBEDDING_FIELDS[3:8]), f"{mine:8.1f} us, {mine / torchs:.2f}")
        return
    rows, table = step(args.compile)
    suffix = "-compiled" if args.compile else ""
    Writer(args.out / f"step{suffix}.csv", STEP_FIELDS)(rows)
    Writer(args.out / f"step{suffix}-kernels.csv", KERNEL_FIELDS)(table)
    for row in rows:
        print(f"{row['state']:4}{row['p50_ms']} ms ({row['p20_ms']} to {row['p80_ms']})")


if __name__ == "__main__":
    main()
