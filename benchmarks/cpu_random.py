"""The CPU's random cases: shapes drawn by a seed from regimes, so that no kernel is tuned to them.

    python -m benchmarks.run cpu --part random --seed 1 --threads 1 2

A regime is a kind of call: row-wise ops on short rows, on masked ones and over the channels of images, losses over 21
channels, scans of float64 and integers, products. Speed is torch's time divided by torchreduce's.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import torchreduce as tr

Call = Callable[[Tensor], Tensor]
MASKED = "masked rows"


@dataclass(frozen=True)
class RandomCase:
    regime: str
    op: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    dim: int
    backward: bool  # the gradient, too

    def calls(self) -> dict[str, Callable[[], object]]:
        x = torch.randn(self.shape)
        if self.op == "prod":
            x = 1 + x / 1000 if self.dtype.is_floating_point else 1 + (x > 2).float()
        elif not self.dtype.is_floating_point:
            x = 10 * x
        if self.regime == MASKED:  # from some place on in each row, not at the first one
            x[torch.arange(x.shape[1]) > torch.randint(0, x.shape[1], (x.shape[0], 1))] = -torch.inf
        x = x.to(self.dtype)
        both = self.functions(x)
        if not self.backward:
            return {name: lambda f=f: f(x) for name, f in both.items()}
        x.requires_grad_()
        upstream = torch.randn_like(both["torch"](x))
        return {name: lambda f=f: torch.autograd.grad(f(x), x, upstream) for name, f in both.items()}

    def functions(self, x: Tensor) -> dict[str, Call]:
        n, dim = self.shape[self.dim], self.dim
        labels = torch.randint(0, n, tuple(s for d, s in enumerate(self.shape) if d != dim))
        weight = torch.randn(n).to(self.dtype) if self.dtype.is_floating_point else None

        def losses(softmax: Call, log_softmax: Call, cross_entropy: Call, total: Call) -> dict[str, Call]:
            hot = F.one_hot(labels, n).movedim(-1, dim).to(x.dtype) if self.op in ("focal", "dice") else x
            return {
                "cross_entropy": cross_entropy,
                "focal": lambda x: -total((1 - softmax(x)) ** 2 * log_softmax(x) * hot).mean(),
                "dice": lambda x: 1 - (2 * total(softmax(x) * hot) / (total(softmax(x) + hot) + 1e-8)).mean(),
            }

        if self.op in ("cross_entropy", "focal", "dice"):
            ours = losses(lambda x: tr.softmax(x, dim), lambda x: tr.log_softmax(x, dim),
                          lambda x: tr.cross_entropy(x, labels), lambda x: tr.sum(x, dim))  # fmt: skip
            theirs = losses(lambda x: x.softmax(dim), lambda x: x.log_softmax(dim),
                            lambda x: F.cross_entropy(x, labels), lambda x: x.sum(dim))  # fmt: skip
            return {"torchreduce": ours[self.op], "torch": theirs[self.op]}
        if self.op == "layer_norm":
            return {
                "torchreduce": lambda x: tr.layer_norm(x, (n,), weight, weight),
                "torch": lambda x: F.layer_norm(x, (n,), weight, weight),
            }
        if self.op == "rms_norm":
            return {
                "torchreduce": lambda x: tr.rms_norm(x, (n,), weight),
                "torch": lambda x: F.rms_norm(x, (n,), weight),
            }
        own, torchs = getattr(tr, self.op), getattr(torch, self.op)
        return {"torchreduce": lambda x: own(x, dim), "torch": lambda x: torchs(x, dim)}


def length(r: random.Random, least: int, most: int) -> int:
    """Log-uniform; half of them powers of two, or one off."""
    n = round(least * (most / least) ** r.random())
    return max(least, min(most, (1 << (n.bit_length() - 1)) + r.choice((-1, 0, 0, 1)))) if r.random() < 0.5 else n


def draw(seed: int, count: int) -> Iterator[RandomCase]:
    """`count` cases of each regime."""
    r = random.Random(seed)
    floats = (torch.float32, torch.float32, torch.bfloat16)
    for _ in range(count):
        elements = round(2 ** r.uniform(14, 20))
        n = length(r, 2, 512)
        op = r.choice(("softmax", "log_softmax", "logsumexp", "var", "layer_norm", "rms_norm", "cross_entropy"))
        shape = (max(1, elements // n), n)
        yield RandomCase("short rows", op, r.choice(floats), shape, 1, r.random() < 0.5)
        n, side = length(r, 2, 64), length(r, 8, 128)
        op = r.choice(("softmax", "log_softmax", "logsumexp", "var", "cross_entropy"))
        shape = (max(1, elements // (n * side * side)), n, side, side)
        yield RandomCase("channels", op, r.choice(floats), shape, 1, r.random() < 0.5)
        side = length(r, 32, 256)
        op = r.choice(("cross_entropy", "focal", "dice"))
        yield RandomCase("losses over 21 channels", op, torch.float32, (2, 21, side, side), 1, r.random() < 0.5)
        n = length(r, 16, 2048)
        op = r.choice(("softmax", "log_softmax", "logsumexp"))
        yield RandomCase(MASKED, op, r.choice(floats), (max(1, elements // n), n), 1, r.random() < 0.5)
        rows = length(r, 1, 4096)
        shape, dim = (rows, max(2, elements // rows)), r.randrange(2)
        yield RandomCase("cumsum", "cumsum", r.choice((torch.float64, torch.int64, torch.int32)), shape, dim, False)
        yield RandomCase("prod", "prod", r.choice((torch.float32, torch.float64, torch.int64)), shape, dim, False)
