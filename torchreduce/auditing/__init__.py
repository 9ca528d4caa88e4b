"""Find the op that makes a result depend on the run, the batch, strides or threads: audit()."""

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cover import Covered
    from .follow import Batch
    from .result import Audit, Culprit, Module

__all__ = ["Audit", "Batch", "Covered", "Culprit", "Module", "audit"]

VARIATIONS = ("repeat", "seed", "threads", "batch", "order", "strides", "padding", "compiled", "ranks")
DEFAULT = VARIATIONS[:6]
_MODULES = {"Covered": "cover", "Batch": "follow", "Audit": "result", "Culprit": "result", "Module": "result"}


def __getattr__(name: str) -> Any:
    """Import what an audit needs when one begins, or on first access."""
    if name in _MODULES:
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def audit(
    fn: Callable[..., Any],
    *args: Any,
    vary: str | Sequence[str] = DEFAULT,
    batch: "int | Batch | None" = 0,
    backend: Any = "inductor",
) -> "Audit":
    """Run a function again and again under variations, and name the first op that makes its results differ.

    fn(*args) may be a module, a loss with its gradients, or a step of training. Keyword arguments of fn are passed by a
    lambda, whose own arguments have the tensors that are to be varied. Each run computes hashes of the inputs
    and outputs of every op, on their device. An op is a culprit if its inputs are bitwise identical in two runs and its
    outputs are not. fn must give the same in each run otherwise: what its ops write (parameters, buffers, gradients) is
    put back after each run, and so are the random generators; other state, as that of an optimizer that fn does not
    make, is not.

    vary has the names of variations:

    - "repeat": the same call again
    - "seed": again, with the random generators as the first run left them: finds dropout without a seed
    - "threads": another number of threads of the CPU
    - "batch": a row alone, and a batch of twice the size, of the other rows; rows must not change
    - "order": the rows in reverse order
    - "strides": arguments with other strides and another alignment
    - "padding": zeros after the elements of dim 1 of the arguments; the elements before them must not change. For
      functions that mask them
    - "compiled": torch.compile(fn, backend=backend), compared with eager mode
    - "ranks": in a process group, one process that computes the batches of all

    The default is all but the last three. batch is the dim of the arguments that the rows of a batch lie along. In the
    model they are followed along the dim whose size changes with their number. A torchreduce.auditing.Batch says it
    otherwise; None: the arguments have no rows.

    The result has `ok`, `culprits`, `modules`, `coverage`, `variations` and `notes`; print() shows it, with a tree of
    the modules. An exception in the first run is raised; a variation that raises becomes a note.

    >>> import torch, torchreduce
    >>> def normalized(x):
    ...     return x - x.mean(0)
    >>> result = torchreduce.audit(normalized, torch.randn(4, 100), vary="batch")
    >>> result.ok, result.culprits[0].op, result.culprits[0].variations
    (False, 'mean.dim', ('batch of 1', 'batch of 8'))
    >>> torchreduce.audit(torch.relu, torch.randn(4, 100)).ok
    True
    """
    from .auditor import Auditor
    from .follow import Batch

    if not callable(fn):
        raise TypeError(f"audit(): argument 'fn' must be callable, got {type(fn).__name__}")
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, (int, Batch))):
        raise TypeError(f"audit(): argument 'batch' must be an int, a Batch or None, got {type(batch).__name__}")
    if not isinstance(vary, (str, Iterable)):
        raise TypeError(f"audit(): argument 'vary' must be a str or several, got {type(vary).__name__}")
    names = [vary] if isinstance(vary, str) else list(vary)
    for name in names:
        if name not in VARIATIONS:
            raise ValueError(f"audit(): vary must have names of {', '.join(VARIATIONS)}, got {name!r}")
    return Auditor(fn, args, batch, backend).run(names)
