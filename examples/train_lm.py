"""Trains a GPT on the sonnets beside this file, of torch's own modules, whose reductions one line overrides.

    python examples/train_lm.py                       # on the CPU, a minute
    python examples/train_lm.py --device cuda --compile

It shows that

- two runs have the same losses, bit for bit;
- the compiled model has the log-probabilities of the eager one, bit for bit;
- a sequence has the same log-probabilities alone, in a batch of any size, and in the trainer's forward.

Three things do that. Softmax, layer norms, losses, sums and embeddings' gradients are torchreduce's. Matrix products
have one order (`products="float32"`), so that a row does not depend on the others. And pointwise operations are such
that each rounds by itself however they are fused: squared ReLU, no GELU.
"""

import argparse
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchreduce

TEXT = Path(__file__).with_name("sonnets.txt").read_bytes()
VOCABULARY = 128  # ASCII


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.project = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def attend(self, qkv: Tensor) -> Tensor:
        """Causal attention, of (batch, length, 3 * width)."""
        batch, length, _ = qkv.shape
        q, k, v = qkv.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        future = torch.ones(length, length, dtype=torch.bool, device=qkv.device).triu(1)
        scores = ((q * self.scale) @ k.mT).masked_fill(future, float("-inf"))
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, -1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.project(self.attend(self.qkv(self.norms[0](x))))
        return x + self.down(self.up(self.norms[1](x)).relu().square())


class GPT(nn.Module):
    def __init__(self, length: int, width: int, heads: int, layers: int, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        self.length = length
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """The log-probabilities of each next token: (batch, length, vocabulary), of (batch, length)."""
        x = self.tokens(tokens) + self.positions.weight
        return self.head(self.norm(self.blocks(x))).log_softmax(-1)


def batch(step: int, size: int, length: int, device: str) -> tuple[Tensor, Tensor]:
    """Pieces of the text, and what follows each token."""
    text = torch.tensor(list(TEXT), device=device)
    starts = torch.randint(len(TEXT) - length, (size,), generator=torch.Generator().manual_seed(step)).tolist()
    pieces = torch.stack([text[start : start + length + 1] for start in starts])
    return pieces[:, :-1], pieces[:, 1:]


def train(model: GPT, steps: int, size: int, device: str) -> list[float]:
    """The losses."""
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    losses = []
    for step in range(steps):
        tokens, following = batch(step, size, model.length, device)
        loss = F.nll_loss(model(tokens).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def score(model: nn.Module, tokens: Tensor, following: Tensor) -> Tensor:
    """The log-probability of each sequence of a batch."""
    return model(tokens).gather(2, following.unsqueeze(2)).sum((1, 2))


def demonstrate(device: str, steps: int, size: int, compile: bool, on: bool, **shape: int) -> dict[str, bool]:
    """What holds, of what the head of this file says; with torchreduce on or off."""
    with torchreduce.enabled(cpu=device == "cpu", products="float32") if on else nullcontext():
        runs = []
        for _ in range(2):
            torch.manual_seed(0)
            model = GPT(**shape).to(device)
            runs.append(train(model, steps, size, device))
        print(f"loss {runs[0][0]:.4f} to {runs[0][-1]:.4f}")
        tokens, following = batch(steps, size, model.length, device)
        with torch.no_grad():
            whole = score(model, tokens, following)
            alone = torch.cat([score(model, t[None], f[None]) for t, f in zip(tokens, following, strict=True)])
            some = score(model, tokens[: size // 2 + 1], following[: size // 2 + 1])
            held = {
                "two runs have the same losses": runs[0] == runs[1],
                "a sequence alone is what it is in a batch": torch.equal(alone, whole),
                "in a batch of another size, too": torch.equal(some, whole[: size // 2 + 1]),
            }
            if compile:
                compiled = score(torch.compile(model), tokens, following)
                held["compiled is eager"] = torch.equal(compiled, whole)
        trained = score(model.train(), tokens, following).detach()
        held["the trainer's forward is the sampler's"] = torch.equal(trained, whole)
        return held


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--compile", action="store_true", help="also compile the model")
    parser.add_argument("--off", action="store_true", help="leave torch's own products and reductions in place")
    args = parser.parse_args()
    shape = {"length": 64, "width": 128, "heads": 4, "layers": 2}
    for what, holds in demonstrate(args.device, args.steps, 8, args.compile, not args.off, **shape).items():
        print(f"{'yes' if holds else 'NO ':4}{what}")


if __name__ == "__main__":
    main()
