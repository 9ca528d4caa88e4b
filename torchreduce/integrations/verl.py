"""verl's log-probabilities and entropies of tokens, computed by torchreduce: enable(), disable().

verl loads plugins in each of its processes, and this module is one (the entry point verl.plugins). When it is imported,
it is enabled if torchreduce is, as by TORCHREDUCE_ENABLE:

    TORCHREDUCE_ENABLE=1 python -m verl.trainer.main_ppo ...

Replaced are logprobs_from_logits, entropy_from_logits and entropy_from_logits_with_chunking of
verl.utils.torch_functional.
"""

import torch
import verl.utils.torch_functional
from torch import Tensor

from .. import is_enabled
from ..rowwise import entropy, selected_log_softmax
from .replace import Replacement

__all__ = ["disable", "enable"]


def logprobs_from_logits(logits: Tensor, labels: Tensor, inplace_backward: bool = True) -> Tensor:
    """The log-probabilities of the labels, float32 for 16-bit logits. The logits are not overwritten."""
    dtype = None if logits.dtype is torch.float64 else torch.float32
    return selected_log_softmax(logits, labels, dtype=dtype)


def entropy_from_logits(logits: Tensor) -> Tensor:
    """The entropy of each row."""
    return entropy(logits, -1)


def entropy_from_logits_with_chunking(logits: Tensor, chunk_size: int = 2048) -> Tensor:
    """The entropy of each row in float32, of which each chunk's logits are copied to float32."""
    if chunk_size < 1:
        raise ValueError(f"entropy_from_logits_with_chunking(): chunk_size must be positive, got {chunk_size}")
    return torch.cat([entropy(chunk.float(), -1) for chunk in logits.split(chunk_size)])


_functions = Replacement(
    verl.utils.torch_functional,
    {f.__name__: f for f in (logprobs_from_logits, entropy_from_logits, entropy_from_logits_with_chunking)},
)


def enable() -> None:
    """Compute verl's log-probabilities and entropies by torchreduce."""
    _functions.do()


def disable() -> None:
    """Compute them by verl again."""
    _functions.undo()


if is_enabled():
    enable()
