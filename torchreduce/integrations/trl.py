"""trl's log-probabilities and entropies of tokens, computed by torchreduce: enable(), disable().

    import torchreduce.integrations.trl

    torchreduce.integrations.trl.enable()  # before or after trainers are made

Replaced are selective_log_softmax, entropy_from_logits and selective_log_softmax_and_entropy of trl.trainer.utils.
"""

import torch
import trl.trainer.utils
from torch import Tensor

from ..rowwise import entropy, selected_log_softmax
from .replace import Replacement

__all__ = ["disable", "enable"]

_SKIPPED = -(2**31)  # the label that rows outside of a mask get, and no other row has


def _tempered(logits: Tensor, temperature: float) -> Tensor:
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    return logits if temperature == 1.0 else logits / temperature


def selective_log_softmax(
    logits: Tensor, index: Tensor, temperature: float = 1.0, row_mask: Tensor | None = None
) -> Tensor:
    """The log-probabilities of one label a row, by torchreduce; of several labels a row, by trl."""
    logits = _tempered(logits, temperature)
    if index.ndim == logits.ndim:
        several: Tensor = _functions.before["selective_log_softmax"](logits, index)
        return several if row_mask is None else several.masked_fill(row_mask == 0, 0.0)
    if row_mask is None:
        return selected_log_softmax(logits, index)
    return selected_log_softmax(logits, index.masked_fill(row_mask == 0, _SKIPPED), ignore_index=_SKIPPED)


def entropy_from_logits(logits: Tensor, chunk_size: int = 128) -> Tensor:
    """The entropy of each row. Nothing of the size of the logits is stored, so there are no chunks."""
    return entropy(logits, -1)


def selective_log_softmax_and_entropy(
    logits: Tensor,
    index: Tensor,
    entropy_requires_grad: bool = True,
    temperature: float = 1.0,
    row_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Both, of the same logits."""
    logits = _tempered(logits, temperature)
    with torch.set_grad_enabled(entropy_requires_grad and torch.is_grad_enabled()):
        entropies = entropy_from_logits(logits)
    if row_mask is not None:
        entropies = entropies.masked_fill(row_mask == 0, 0.0)
    return selective_log_softmax(logits, index, row_mask=row_mask), entropies


_functions = Replacement(
    trl.trainer.utils,
    {f.__name__: f for f in (selective_log_softmax, entropy_from_logits, selective_log_softmax_and_entropy)},
)


def enable() -> None:
    """Compute trl's log-probabilities and entropies by torchreduce."""
    _functions.do()


def disable() -> None:
    """Compute them by trl again."""
    _functions.undo()
