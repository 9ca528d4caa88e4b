"""A selective state-space layer, as in Mamba, by torchreduce.linear_scan: trained in parallel, run step by step.

    python examples/ssm.py [cuda]

Each channel has a few states, h[t] = exp(dt[t] * A) * h[t - 1] + dt[t] * B[t] * x[t], and gives y[t] = C[t] . h[t] +
D * x[t], where dt, B and C depend on the input. Where a document begins the factor is 0: packed documents stay apart.
"""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchreduce


class SelectiveSSM(nn.Module):
    def __init__(self, width: int, states: int = 8) -> None:
        super().__init__()
        self.log_a = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(width, 1))  # A = -exp(log_a)
        self.d = nn.Parameter(torch.ones(width))
        self.to_dt, self.to_b, self.to_c = nn.Linear(width, width), nn.Linear(width, states), nn.Linear(width, states)

    def forward(self, x: Tensor, begins: Tensor | None = None, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """y and the last state (batch, width, states), of x (batch, steps, width). `begins`: where documents begin,
        (batch, steps). `state`: what came before."""
        dt = F.softplus(self.to_dt(x)).unsqueeze(-1)  # (batch, steps, width, 1)
        decay = torch.exp(-dt * self.log_a.exp())
        if begins is not None:
            decay = decay.masked_fill(begins[..., None, None], 0)
        input = dt * self.to_b(x).unsqueeze(2) * x.unsqueeze(-1)
        h = torchreduce.linear_scan(decay, input, 1, initial=state)
        y = torchreduce.sum(h * self.to_c(x).unsqueeze(2), -1) + self.d * x
        return y, h[:, -1]


def main(device: str) -> None:
    torch.manual_seed(0)
    layer, x = SelectiveSSM(32).to(device), torch.randn(2, 256, 32, device=device)
    y, state = layer(x)
    first, carried = layer(x[:, :100])
    rest, last = layer(x[:, 100:], state=carried)
    print("in two pieces:", (torch.cat([first, rest], 1) - y).abs().max().item(), "off")
    y.square().mean().backward()
    print("gradient of A:", layer.log_a.grad.norm().item(), "| state", tuple(state.shape), tuple(last.shape))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
