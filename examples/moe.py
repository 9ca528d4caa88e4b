"""The combine of a mixture of experts, whose results and gradients repeat, alone and in a batch.

    python examples/moe.py [cuda]

Each token goes to some experts, and adds up what they return, times its weights for them: an index_add into the tokens,
which torch computes on a GPU in the order of arrival, rounding bfloat16 after each addition. With torchreduce.enabled()
a token's sum is that of its own copies in their order, rounded once. The experts are element-wise here: their matrix
products are another matter (docs/products.md).
"""

import sys

import torch
from torch import Tensor

import torchreduce


def route(logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of logits (tokens, experts): the token and the expert of each copy, ordered by expert, and the weights."""
    weights, experts = logits.softmax(1).topk(count, 1)
    order = experts.flatten().argsort(stable=True)
    tokens = torch.arange(len(logits), device=logits.device).repeat_interleave(count)
    return tokens[order], experts.flatten()[order], (weights / weights.sum(1, keepdim=True)).flatten()[order]


def experts_of(x: Tensor, expert: Tensor, scale: Tensor) -> Tensor:
    """What experts, (experts, columns), return for rows."""
    return torch.tanh(x * scale[expert])


def mixture(x: Tensor, logits: Tensor, scale: Tensor, count: int = 4) -> Tensor:
    """(tokens, columns)."""
    token, expert, weight = route(logits, count)
    returned = experts_of(x[token], expert, scale) * weight[:, None].to(x.dtype)
    return torch.zeros_like(x).index_add(0, token, returned)


def results(x: Tensor, logits: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The mixture, and the gradients of x and of the logits."""
    x, logits = x.detach().requires_grad_(), logits.detach().requires_grad_()
    y = mixture(x, logits, scale)
    return y.detach(), *torch.autograd.grad(y.float().square().sum(), (x, logits))


def demonstrate(device: str, tokens: int = 512, columns: int = 64, experts: int = 16) -> dict[str, bool]:
    """What has the same bits."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(tokens, columns, generator=generator).to(device, torch.bfloat16)
    logits = torch.randn(tokens, experts, generator=generator).to(device)
    scale = torch.randn(experts, columns, generator=generator).to(device, torch.bfloat16)
    with torchreduce.enabled(cpu=True, compile=False):
        whole, again = (results(x, logits, scale) for _ in range(2))
        parts = [results(x[i : i + 64], logits[i : i + 64], scale) for i in range(0, tokens, 64)]
        alone = results(x[5:6], logits[5:6], scale)
    return {
        "in every run": all(map(torch.equal, whole, again)),
        "in batches of 64": all(torch.equal(torch.cat([p[k] for p in parts]), whole[k]) for k in range(3)),
        "alone": all(torch.equal(alone[k], whole[k][5:6]) for k in range(3)),
    }


def main(device: str) -> None:
    for way, held in demonstrate(device).items():
        print(f"bitwise identical {way}: {held}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
