"""A layer of a graph network whose results and gradients repeat, alone and in a batch of graphs.

    python examples/graph.py [cuda]

Each node adds up the messages of its edges: an index_add, which torch computes on a GPU in the order of arrival.
Degrees follow a power law, so that some nodes have thousands of edges. The layer calls torch alone;
torchreduce.enabled() makes each sum depend on the node's own edges, in their order.
"""

import sys

import torch
from torch import Tensor

import torchreduce


def graph(nodes: int, edges: int, seed: int) -> tuple[Tensor, Tensor]:
    """The nodes that edges come from and go to, (edges,) each. Node k has a degree of about 1 / k."""
    generator = torch.Generator().manual_seed(seed)
    to = (torch.rand(edges, generator=generator) ** 4 * nodes).long()
    return torch.randint(nodes, (edges,), generator=generator), to


def layer(x: Tensor, source: Tensor, to: Tensor, weight: Tensor) -> Tensor:
    """The mean over a node's edges of what lies at their other ends, (nodes, columns), times a weight for each column.
    Column by column: a matrix product, which is another matter, would depend on the number of nodes."""
    total = torch.zeros_like(x).index_add(0, to, x[source])
    degree = torch.zeros(len(x), dtype=x.dtype, device=x.device).index_add(0, to, torch.ones_like(source).to(x.dtype))
    return torch.relu(total / degree.clamp(min=1)[:, None] * weight + x)


def results(x: Tensor, source: Tensor, to: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Of two layers, and the gradient of x."""
    x = x.detach().requires_grad_()
    y = layer(layer(x, source, to, weight), source, to, weight)
    return y.detach(), torch.autograd.grad(y.square().sum(), x)[0]


def demonstrate(device: str, nodes: int = 2000, edges: int = 50_000, columns: int = 64) -> dict[str, bool]:
    """What has the same bits."""
    generator = torch.Generator().manual_seed(0)
    features = [torch.randn(nodes, columns, generator=generator).to(device) for _ in range(3)]
    weight = torch.rand(columns, generator=generator).to(device)
    graphs = [tuple(t.to(device) for t in graph(nodes, edges, seed)) for seed in range(3)]
    with torchreduce.enabled(cpu=True, compile=False):
        alone = [results(x, *edges_of, weight) for x, edges_of in zip(features, graphs, strict=True)]
        again = [results(x, *edges_of, weight) for x, edges_of in zip(features, graphs, strict=True)]
        source, to = (torch.cat([g[k] + i * nodes for i, g in enumerate(graphs)]) for k in range(2))
        mixed = torch.randperm(3, generator=generator).repeat_interleave(edges).argsort(stable=True).to(device)
        batch = results(torch.cat(features), source, to, weight)
        shuffled = results(torch.cat(features), source[mixed], to[mixed], weight)  # graph by graph, in another order
    return {
        "in every run": all(torch.equal(a, b) for one, two in zip(alone, again, strict=True)
                            for a, b in zip(one, two, strict=True)),
        "in a batch of graphs": all(torch.equal(torch.cat([g[k] for g in alone]), batch[k]) for k in range(2)),
        "with the graphs' edges in another order": all(map(torch.equal, batch, shuffled)),
    }  # fmt: skip


def main(device: str) -> None:
    for way, held in demonstrate(device).items():
        print(f"bitwise identical {way}: {held}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
