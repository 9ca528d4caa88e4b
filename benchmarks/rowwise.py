"""Cases of row-wise ops (softmax, norms, losses), forward and, where the op says so, backward through autograd."""

from typing import Any

import torch
import torch.nn.functional as F

import torchreduce as tr

from . import cases
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
        if provider == "torchreduce":
            return self._call(tr)
        return self._call(F) if provider == "torch" else None

    def _call(self, module: Any) -> Run:
        name, *backward = self.op.split()
        function = getattr(module, name, None) or getattr(torch, name)
        sides: list[torch.Tensor] = []
        if name in NORMS:
            count = 2 if name == "layer_norm" else 1
            dtype = getattr(torch, self.dtype)
            sides = [torch.ones(self.shape[1], device=cases.DEVICE, dtype=dtype) for _ in range(count)]

        def forward(x: Inputs) -> torch.Tensor:
            if name in NORMS:
                return function(x[0], self.shape[1:], *sides)
            return function(*x) if name == "cross_entropy" else function(x[0], self.dim)

        if not backward:
            return forward
        graphs: dict[int, Any] = {}  # by the input's address

        def run(x: Inputs) -> Any:
            if x[0].data_ptr() not in graphs:
                leaves = [t.detach().requires_grad_() for t in (x[0], *sides)]
                sides[:] = leaves[1:]
                y = forward((leaves[0], *x[1:]))
                graphs[x[0].data_ptr()] = (y, leaves, torch.randn_like(y))
            y, leaves, g = graphs[x[0].data_ptr()]
            return torch.autograd.grad(y, leaves, g, retain_graph=True)

        return run
