"""Draws tokens from the likeliest of 151,936, as a server does, so that a request's token does not depend on the batch.

    python examples/sampling.py [cuda]

Top-p: of each row of logits the likeliest tokens are kept whose probabilities reach p, and one of them is drawn. The
softmax and both scans are torchreduce's. With torch's own a request may get another token when others join its batch.
"""

import sys

import torch
from torch import Tensor

import torchreduce

VOCABULARY = 151_936


def top_p(logits: Tensor, p: float, uniform: Tensor) -> Tensor:
    """A token for each row of logits (rows, vocabulary), drawn by a number in [0, 1) for each."""
    likely, token = torchreduce.softmax(logits, -1).sort(dim=-1, descending=True, stable=True)
    before = torchreduce.cumsum(likely, -1, exclusive=True)  # of what is likelier
    cumulated = torchreduce.cumsum(likely.masked_fill(before >= p, 0), -1)
    drawn = torch.searchsorted(cumulated, uniform.unsqueeze(-1) * cumulated[:, -1:], right=True)
    kept = torchreduce.count_nonzero(before < p, -1, keepdim=True)
    return token.gather(-1, torch.minimum(drawn, kept - 1)).squeeze(-1)


def main(device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(32, VOCABULARY, generator=generator)).to(device)
    uniform = torch.rand(32, generator=generator).to(device)
    together = top_p(logits, 0.9, uniform)
    alone = torch.cat([top_p(logits[i : i + 1], 0.9, uniform[i : i + 1]) for i in range(32)])
    print("tokens", together[:8].tolist(), "...")
    print("the same for each request alone:", torch.equal(together, alone))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
