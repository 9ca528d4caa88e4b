"""Log-probabilities of a GPT's prompts: alone, in batches, in the trainer's forward and compiled, compared bit for bit.

    python examples/parity.py                 # on a GPU of compute capability 9.0, else a small model on the CPU
    python examples/parity.py --off           # as torch computes them

The model is of torch's own modules, in bfloat16: linear layers, layer norms, attention, and a head over 50,304 tokens.
One line, `torchreduce.enabled(products="float32")`, keeps a row of each product, norm, softmax and attention from
depending on the batch. 64 prompts are scored alone, at their own lengths, the shortest an eighth of the longest; the
table compares with that

- batches of 2 to 64 prompts, padded to the longest one;
- one batch in another order;
- the forward pass of a trainer, which keeps what its gradients need;
- the compiled model.

Its columns are the number of log-probabilities that differ, the largest difference, and the mean KL divergence of the
distributions. Below are the times of a training step, of torch and of this.

Pointwise operations are such that each rounds by itself however they are fused: squared ReLU, no GELU. Inductor is told
to round between fused operations, as eager mode does (`emulate_precision_casts`).
"""

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchreduce


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(self.up(self.second(x)).relu().square())


class GPT(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """The log-probabilities of each next token, in float32: (batch, length, vocabulary), of (batch, length)."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x))).log_softmax(-1, dtype=torch.float32)


def padded(prompts: list[Tensor]) -> Tensor:
    return nn.utils.rnn.pad_sequence(prompts, batch_first=True)


class Comparison:
    """Of log-probabilities with those of each prompt alone."""

    def __init__(self, alone: list[Tensor]) -> None:
        self.alone, self.count, self.differ, self.largest, self.divergence = alone, 0, 0, 0.0, []

    def add(self, which: list[int], scores: Tensor) -> None:
        for row, i in zip(scores.detach(), which, strict=True):
            expected = self.alone[i]
            got = row[: len(expected)]
            self.count += got.numel()
            self.differ += int((got.view(torch.int32) != expected.view(torch.int32)).sum())
            self.largest = max(self.largest, float((got - expected).abs().max()))
            self.divergence.append(float((expected.exp() * (expected - got)).sum(-1).mean()))

    def line(self) -> str:
        mean = statistics.fmean(self.divergence)
        return f"{self.differ:10,} of {self.count:13,} differ, by {self.largest:8.1e} at most; KL {mean:8.1e}"


def compare(model: GPT, prompts: list[Tensor], compiled: bool) -> dict[str, Comparison]:
    """By way of computing."""
    held: dict[str, Comparison] = {}
    with torch.no_grad():
        alone = [model(prompt[None])[0] for prompt in prompts]

    def compared(name: str, of: list[int], call: Callable[[Tensor], Tensor]) -> None:
        held.setdefault(name, Comparison(alone)).add(of, call(padded([prompts[i] for i in of])))

    everything = list(range(len(prompts)))
    with torch.no_grad():
        size = 2
        while size <= len(prompts):
            for start in range(0, len(prompts), size):
                compared(f"in batches of {size}", everything[start : start + size], model)
            size *= 2
        compared("in another order", everything[::-1], model)
    half = everything[: len(prompts) // 2]
    compared("in the trainer's forward", half, model)
    if compiled:
        forward = torch.compile(model, options={"emulate_precision_casts": True})
        with torch.no_grad():
            compared("compiled", half, forward)
    return held


def step_ms(model: GPT, tokens: Tensor, steps: int) -> float:
    """The median of a training step: forward, loss, backward."""

    def step() -> None:
        loss = F.nll_loss(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        model.zero_grad()

    times = []
    for i in range(steps + 3):
        if tokens.is_cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        if tokens.is_cuda:
            torch.cuda.synchronize()
        if i >= 3:
            times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def demonstrate(device: str, on: bool, compiled: bool, count: int, longest: int, **shape: Any) -> dict[str, Comparison]:
    """Prints the table, and returns its lines."""
    torch.manual_seed(0)
    model = GPT(length=longest, **shape).to(device, torch.bfloat16)
    lengths = [longest - i * (longest * 7 // 8) // count for i in range(count)]
    prompts = [torch.randint(1, shape["vocabulary"], (n,), device=device) for n in lengths]
    with torchreduce.enabled(cpu=device == "cpu", products="float32") if on else nullcontext():
        held = compare(model, prompts, compiled)
    for name, comparison in held.items():
        print(f"{name:26}{comparison.line()}")
    return held


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--off", action="store_true", help="leave torch's own products and reductions in place")
    args = parser.parse_args()
    device, longest = ("cuda", 128) if torch.cuda.is_available() else ("cpu", 64)
    shape = {"vocabulary": 50304, "width": 768, "heads": 12, "layers": 12}
    if device == "cpu":
        shape = {"vocabulary": 512, "width": 128, "heads": 4, "layers": 2}
    demonstrate(device, not args.off, True, 64, longest, **shape)
    torch.manual_seed(0)
    model = GPT(length=8 * longest, **shape).to(device, torch.bfloat16)
    tokens = torch.randint(shape["vocabulary"], (8, 8 * longest + 1), device=device)
    for name, on in (("torch", False), ("torchreduce", True)):
        with torchreduce.enabled(cpu=device == "cpu", products=True) if on else nullcontext():
            print(f"a step of 8 x {8 * longest} tokens, {name}: {step_ms(model, tokens, 10):.1f} ms")


if __name__ == "__main__":
    main()
