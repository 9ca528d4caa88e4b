"""Drop-in replacements for modules of torch.nn, computed by torchreduce.

They have torch.nn's parameters, arguments and state dicts. Forward and backward pass are torchreduce's.

>>> import torch, torchreduce
>>> norm = torchreduce.nn.RMSNorm(8)
>>> norm.load_state_dict(torch.nn.RMSNorm(8).state_dict())
<All keys matched successfully>
"""

import warnings

import torch
import torch.fx
from torch import Tensor

from .rowwise import cross_entropy, layer_norm, log_softmax, rms_norm, softmax

__all__ = ["CrossEntropyLoss", "LayerNorm", "LogSoftmax", "RMSNorm", "Softmax"]


for _name in ("cross_entropy", "layer_norm", "log_softmax", "rms_norm", "softmax"):
    torch.fx.wrap(_name)  # so that symbolic_trace goes through the modules


def __dir__() -> list[str]:
    return sorted(__all__)


class RMSNorm(torch.nn.RMSNorm):
    """torch.nn.RMSNorm, computed by torchreduce.rms_norm.

    >>> import torch, torchreduce
    >>> torchreduce.nn.RMSNorm(2)(torch.tensor([[3.0, 4.0]])).detach()
    tensor([[0.8485, 1.1314]])
    """

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.normalized_shape, self.weight, self.eps)


class LayerNorm(torch.nn.LayerNorm):
    """torch.nn.LayerNorm, computed by torchreduce.layer_norm.

    >>> import torch, torchreduce
    >>> torchreduce.nn.LayerNorm(2, eps=0)(torch.tensor([[1.0, 3.0]])).detach()
    tensor([[-1.,  1.]])
    """

    def forward(self, input: Tensor) -> Tensor:
        return layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


def _implied_dim(name: str, ndim: int) -> int:
    """Return the dim of a module that was made without one, with torch's warning."""
    warnings.warn(
        f"Implicit dimension choice for {name} has been deprecated. Change the call to include dim=X as an argument.",
        stacklevel=5,  # who calls the module
    )
    return 0 if ndim in (0, 1, 3) else 1


class Softmax(torch.nn.Softmax):
    """torch.nn.Softmax, computed by torchreduce.softmax.

    >>> import torch, torchreduce
    >>> torchreduce.nn.Softmax(dim=0)(torch.zeros(2))
    tensor([0.5000, 0.5000])
    """

    def forward(self, input: Tensor) -> Tensor:
        return softmax(input, _implied_dim("softmax", input.ndim) if self.dim is None else self.dim)


class LogSoftmax(torch.nn.LogSoftmax):
    """torch.nn.LogSoftmax, computed by torchreduce.log_softmax.

    >>> import torch, torchreduce
    >>> torchreduce.nn.LogSoftmax(dim=0)(torch.tensor([0.0, -1000.0]))
    tensor([    0., -1000.])
    """

    def forward(self, input: Tensor) -> Tensor:
        return log_softmax(input, _implied_dim("log_softmax", input.ndim) if self.dim is None else self.dim)


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """torch.nn.CrossEntropyLoss, computed by torchreduce.cross_entropy.

    >>> import torch, torchreduce
    >>> torchreduce.nn.CrossEntropyLoss()(torch.zeros(1, 2), torch.tensor([1]))
    tensor(0.6931)
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )
