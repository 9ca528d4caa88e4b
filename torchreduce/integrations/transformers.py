"""transformers' RMS norms, computed by torchreduce: kernelize().

from torchreduce.integrations.transformers import kernelize

model = kernelize(AutoModelForCausalLM.from_pretrained(...))
"""

from typing import TypeVar

import torch
from torch import Tensor
from transformers.utils import is_kernels_available

from ..rowwise import rms_norm

try:
    import kernels
except ModuleNotFoundError as error:
    raise ImportError("torchreduce.integrations.transformers needs pip install 'transformers[kernels]'") from error

__all__ = ["RMSNorm", "kernelize"]

_Model = TypeVar("_Model", bound=torch.nn.Module)


class RMSNorm(torch.nn.Module):
    """What `kernels` has modules do that transformers registers as "RMSNorm": it binds forward to each of them.

    The norm is multiplied by the weight in float32, and rounded once to the dtype that transformers' has.
    """

    has_backward = True
    can_torch_compile = True

    variance_epsilon: float
    weight: Tensor

    def forward(self, hidden_states: Tensor) -> Tensor:
        x = hidden_states.to(torch.promote_types(hidden_states.dtype, self.weight.dtype))
        return rms_norm(x, x.shape[-1:], self.weight, self.variance_epsilon)


class _Repository:
    """A repository as `kernels` has them, that is here and not on the hub."""

    def load(self) -> type[torch.nn.Module]:
        return RMSNorm

    def __str__(self) -> str:
        return "torchreduce"


_MAPPING = {"RMSNorm": dict.fromkeys(("cpu", "cuda", "rocm"), _Repository())}


def kernelize(model: _Model) -> _Model:
    """Compute the RMS norms of a model of transformers by torchreduce.rms_norm, and return the model.

    Concerned are the modules that transformers registers as "RMSNorm" with the package `kernels`, which replaces their
    forward methods. Parameters and state dicts stay. Raises ValueError if the model has none, and ImportError if
    transformers does not accept the installed version of `kernels`: then it registers none.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"kernelize(): argument 'model' must be a torch.nn.Module, got {type(model).__name__}")
    if not is_kernels_available():
        raise ImportError(
            f"kernelize(): transformers does not accept kernels {kernels.__version__}: "
            "pip install 'transformers[kernels]'"
        )
    norms = [module for module in model.modules() if getattr(type(module), "kernel_layer_name", None) == "RMSNorm"]
    if not norms:
        raise ValueError(f"kernelize(): {type(model).__name__} has no module that transformers registers as RMSNorm")
    with kernels.use_kernel_mapping(_MAPPING, inherit_mapping=False):
        for norm in norms:
            kernels.kernelize(norm, mode=kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE)
    return model
