"""Cases of row-wise ops (softmax, norms, losses), forward and, where the op says so, backward through autograd."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import torchreduce as tr

from . import cases, peers
from .cases import TO_VALUES, Case, Inputs, Run

NORMS = ("rms_norm", "layer_norm")


class RowwiseCase(Case):
    @property
    def nbytes(self) -> int:
        """Input and result; backward the gradient of the result and what was kept of it, or for cross_entropy the
        logits alone, and the gradient."""
        item = getattr(torch, self.dtype).itemsize
        tensors = 1 if self.op in TO_VALUES else 3 if "backward" in self.op and "cross" not in self.op else 2
        return tensors * self.elements * item

    def inputs(self) -> Inputs:
        x = torch.randn(self.shape, device=cases.DEVICE, dtype=getattr(torch, self.dtype))
        if not self.op.startswith("cross_entropy"):
            return (x,)
        return x, torch.randint(self.shape[1], self.shape[:1], device=cases.DEVICE)

    def run(self, provider: str) -> Run | None:
        name = self.op.split()[0]
        if provider == "torchreduce":
            return self._call(getattr(tr, name))
        if provider in ("torch", "torch.compile"):
            function = getattr(F, name, None) or getattr(torch, name)
            return self._call(torch.compile(function, dynamic=False) if provider == "torch.compile" else function)
        function = peers.liger(name) if provider == "liger" and self.dim == 1 == len(self.shape) - 1 else None
        return self._call(function) if function else None

    def _call(self, function: Callable[..., Any]) -> Run:
        """function: called as torch's."""
        name = self.op.split()[0]
        sides: list[torch.Tensor] = []
        if name in NORMS:
            count = 2 if name == "layer_norm" else 1
            dtype = getattr(torch, self.dtype)
            sides = [torch.ones(self.shape[1], device=cases.DEVICE, dtype=dtype) for _ in range(count)]

        def forward(x: Inputs) -> torch.Tensor:
            if name in NORMS:
                return function(x[0], self.shape[1:], *sides)
            return function(*x) if name == "cross_entropy" else function(x[0], self.dim)

        return gradients(forward, sides) if self.backward else forward


def gradients(forward: Run, sides: list[torch.Tensor]) -> Run:
    """The backward pass of forward, for its first input and these weights, which become leaves."""
    graphs: dict[Any, Any] = {}  # by the input and the stream, since a gradient runs where its forward ran

    def run(x: Inputs) -> Any:
        key = (x[0].data_ptr(), torch.cuda.current_stream() if x[0].is_cuda else None)
        if key not in graphs:
            leaves = [t.detach().requires_grad_() for t in (x[0], *sides)]
            sides[:] = leaves[1:]
            y = forward((leaves[0], *x[1:]))
            graphs[key] = (y, leaves, torch.randn_like(y))
        y, leaves, g = graphs[key]
        return torch.autograd.grad(y, leaves, g, retain_graph=True)

    return run
