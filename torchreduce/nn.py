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

from .channels import batch_norm, group_norm, instance_norm
from .rowwise import cross_entropy, layer_norm, log_softmax, rms_norm, softmax

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "CrossEntropyLoss",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "LogSoftmax",
    "RMSNorm",
    "Softmax",
]


for _name in (
    *("batch_norm", "cross_entropy", "group_norm", "instance_norm", "layer_norm", "log_softmax", "rms_norm", "softmax"),
):
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


class GroupNorm(torch.nn.GroupNorm):
    """torch.nn.GroupNorm, computed by torchreduce.group_norm.

    >>> import torch, torchreduce
    >>> torchreduce.nn.GroupNorm(1, 2, eps=0)(torch.tensor([[1.0, 3.0]])).detach()
    tensor([[-1.,  1.]])
    """

    def forward(self, input: Tensor) -> Tensor:
        return group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


class _BatchNorm(torch.nn.modules.batchnorm._BatchNorm):
    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:  # the mean of all batches
                momentum = 1.0 / float(self.num_batches_tracked)
        of_batch = self.training or (self.running_mean is None and self.running_var is None)
        tracked = not self.training or self.track_running_stats
        mean, var = (self.running_mean, self.running_var) if tracked else (None, None)
        return batch_norm(input, mean, var, self.weight, self.bias, of_batch, momentum, self.eps)


class BatchNorm1d(_BatchNorm, torch.nn.BatchNorm1d):
    """torch.nn.BatchNorm1d, computed by torchreduce.batch_norm.

    >>> import torch, torchreduce
    >>> torchreduce.nn.BatchNorm1d(1, eps=0)(torch.tensor([[1.0], [3.0]])).detach().T
    tensor([[-1.,  1.]])
    """


class BatchNorm2d(_BatchNorm, torch.nn.BatchNorm2d):
    """torch.nn.BatchNorm2d, computed by torchreduce.batch_norm."""


class BatchNorm3d(_BatchNorm, torch.nn.BatchNorm3d):
    """torch.nn.BatchNorm3d, computed by torchreduce.batch_norm."""


class _InstanceNorm(torch.nn.modules.instancenorm._InstanceNorm):
    def _apply_instance_norm(self, input: Tensor) -> Tensor:
        return instance_norm(
            input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            0.0 if self.momentum is None else self.momentum,
            self.eps,
        )


class InstanceNorm1d(_InstanceNorm, torch.nn.InstanceNorm1d):
    """torch.nn.InstanceNorm1d, computed by torchreduce.instance_norm.

    >>> import torch, torchreduce
    >>> torchreduce.nn.InstanceNorm1d(1, eps=0)(torch.tensor([[[1.0, 3.0]]]))
    tensor([[[-1.,  1.]]])
    """


class InstanceNorm2d(_InstanceNorm, torch.nn.InstanceNorm2d):
    """torch.nn.InstanceNorm2d, computed by torchreduce.instance_norm."""


class InstanceNorm3d(_InstanceNorm, torch.nn.InstanceNorm3d):
    """torch.nn.InstanceNorm3d, computed by torchreduce.instance_norm."""


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
