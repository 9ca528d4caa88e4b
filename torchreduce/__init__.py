"""Deterministic, batch-invariant reductions, scans, softmax and norms for PyTorch.

>>> import torch, torchreduce
>>> torchreduce.sum(torch.ones(2, 3), dim=1)
tensor([3., 3.])

The arguments input, dim, keepdim, dtype and out are described once for each group of functions: reductions in
help(torchreduce.ops), scans in help(torchreduce.scans), softmax, variances and norms in help(torchreduce.rowwise),
scatters in help(torchreduce.scatters), segments in help(torchreduce.segmented).
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

_LIBRARY = Path(__file__).with_name("libtorchreduce.so")
_BUILD = (
    "if it is installed, this source tree hides it: start Python in another folder; to use the tree itself, build it "
    "there with: python setup.py build_ext --inplace"
)

if not _LIBRARY.exists():
    raise ImportError(f"torchreduce is not built in {_LIBRARY.parent}; {_BUILD}")
torch.ops.load_library(_LIBRARY)
try:
    from . import _C
except ImportError as error:
    raise ImportError(f"torchreduce._C is missing, or was built for another Python or library; {_BUILD}") from error

from .auditing import audit  # noqa: E402
from .bags import bincount, embedding_bag, segment_reduce  # noqa: E402
from .channels import batch_norm, group_norm, instance_norm  # noqa: E402
from .determinism import determinism, get_determinism, set_determinism  # noqa: E402
from .norms import norm, vector_norm  # noqa: E402
from .ops import (  # noqa: E402
    all,
    amax,
    amin,
    aminmax,
    any,
    argmax,
    argmin,
    count_nonzero,
    max,
    mean,
    min,
    nanmean,
    nansum,
    prod,
    sum,
)
from .override import coverage, disable, enable, enabled, follow_environment, is_enabled  # noqa: E402
from .override.promises import promises  # noqa: E402
from .plans import explain  # noqa: E402
from .rowwise import (  # noqa: E402
    cross_entropy,
    entropy,
    layer_norm,
    log_softmax,
    logsumexp,
    rms_norm,
    selected_log_softmax,
    softmax,
    std,
    std_mean,
    var,
    var_mean,
)
from .scans import cummax, cummin, cumprod, cumprod_, cumsum, cumsum_, linear_scan, logcumsumexp  # noqa: E402
from .scatters import (  # noqa: E402
    index_add,
    index_add_,
    index_put,
    index_put_,
    index_reduce,
    index_reduce_,
    put,
    put_,
    scatter_add,
    scatter_add_,
    scatter_reduce,
    scatter_reduce_,
)
from .segmented import segments  # noqa: E402

from . import nn  # noqa: E402  isort: skip

__version__: str = _C.build_info()["version"]

__all__ = [
    "__version__",
    "all",
    "amax",
    "amin",
    "aminmax",
    "any",
    "argmax",
    "argmin",
    "audit",
    "batch_norm",
    "bincount",
    "count_nonzero",
    "coverage",
    "cross_entropy",
    "cummax",
    "cummin",
    "cumprod",
    "cumprod_",
    "cumsum",
    "cumsum_",
    "determinism",
    "disable",
    "embedding_bag",
    "enable",
    "enabled",
    "entropy",
    "explain",
    "get_determinism",
    "group_norm",
    "index_add",
    "index_add_",
    "index_put",
    "index_put_",
    "index_reduce",
    "index_reduce_",
    "instance_norm",
    "is_enabled",
    "layer_norm",
    "linear_scan",
    "log_softmax",
    "logcumsumexp",
    "logsumexp",
    "max",
    "mean",
    "min",
    "nanmean",
    "nansum",
    "nn",
    "norm",
    "prod",
    "promises",
    "put",
    "put_",
    "rms_norm",
    "scatter_add",
    "scatter_add_",
    "scatter_reduce",
    "scatter_reduce_",
    "segment_reduce",
    "segments",
    "selected_log_softmax",
    "set_determinism",
    "softmax",
    "std",
    "std_mean",
    "sum",
    "var",
    "var_mean",
    "vector_norm",
]

for _name in __all__:  # torch.fx.symbolic_trace makes a node of a call of these, as it does of torch's
    if getattr(globals()[_name], "__module__", "").rpartition(".")[2] in (
        "channels",
        "rowwise",
        "norms",
        "ops",
        "scans",
        "scatters",
        "segmented",
    ):
        torch.fx.wrap(_name)


def __dir__() -> list[str]:
    return sorted(__all__)  # tab completion: what is public


if TYPE_CHECKING:
    from . import ladder as ladder
    from . import testing as testing
else:

    def __getattr__(name: str) -> Any:
        """Import these modules on first access."""
        if name in ("ladder", "testing"):
            return import_module(f".{name}", __name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


follow_environment()
