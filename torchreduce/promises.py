"""What holds for torch's own calls while they are turned over, operator by operator."""

from typing import NamedTuple


class Promise(NamedTuple):
    eager: str
    compiled: str


_BITS = "the bits of torchreduce's function: they depend on the data of the row alone (docs/numerics.md)"
_WHOLE = Promise(_BITS, "the bits of eager for the same input; what is fused before it rounds its own way")
_LOSS = Promise(
    _BITS,
    "cross_entropy: the bits of eager for the same input; nll_loss: made of overridden reductions and of fused "
    "arithmetic, the same in any batch and layout",
)
_MADE_OF = Promise(
    "made of turned over reductions and of arithmetic on single elements: the bits depend on the data alone",
    "the same in any batch and layout, not eager's bits",
)
_SELECTED = Promise("exact, whatever the order; ties and NaN as torchreduce has them", "the same")
_SHAPED = Promise(
    "torch's: the bits depend on the shapes, so also on the batch, and on a CPU on the number of threads; fix them",
    "the same",
)
_FUSED_ATTENTION = Promise(
    "torch's fused kernels: the bits depend on the shapes; the math backend's softmax is turned over", "the same"
)
_SCATTERED = Promise(
    "torch's: sums in the order of arrival on GPUs, unless torch.use_deterministic_algorithms(True)", "the same"
)
_TORCHS = Promise("torch's, until a later release", "torch's")
_PROMISES = {
    **dict.fromkeys(
        (
            "sum", "mean", "nansum", "nanmean", "prod", "any", "all", "count_nonzero", "vector_norm", "norm", "softmax",
            "log_softmax", "logsumexp", "var", "std", "var_mean", "std_mean", "layer_norm", "cumsum", "cumprod",
            "logcumsumexp", "rms_norm",
        ),
        _WHOLE,
    ),
    **dict.fromkeys(("cross_entropy", "nll_loss"), _LOSS),
    **dict.fromkeys(
        ("amax", "amin", "aminmax", "max", "min", "argmax", "argmin", "cummax", "cummin"), _SELECTED
    ),
    **dict.fromkeys(
        (
            "normalize", "clip_grad_norm_", "get_total_norm", "cosine_similarity", "pairwise_distance", "softmin",
            "mse_loss", "l1_loss",
        ),
        _MADE_OF,
    ),
    **dict.fromkeys(("mm", "bmm", "addmm", "matmul", "linear", "conv1d", "conv2d", "conv3d"), _SHAPED),
    "scaled_dot_product_attention": _FUSED_ATTENTION,
    **dict.fromkeys(("embedding_bag", "index_add", "index_put", "scatter_add"), _SCATTERED),
    "embedding": Promise(
        "exact; the gradient of a row of the weight is torchreduce's sum over dim 0 of those of its places alone",
        "the same",
    ),
    **dict.fromkeys(("batch_norm", "group_norm", "instance_norm", "median", "sort", "topk"), _TORCHS),
}  # fmt: skip


def promises(op: str) -> Promise:
    """What holds, in eager mode and compiled, for an operator of torch's, by its name in torch or torch.nn.functional.

    Also for those that no override can make invariant. A ValueError for one that this release says nothing about.

    >>> import torchreduce
    >>> print(torchreduce.promises("mm").eager)
    torch's: the bits depend on the shapes, so also on the batch, and on a CPU on the number of threads; fix them
    """
    if not isinstance(op, str):
        raise TypeError(f"promises(): argument 'op' must be a str, got {type(op).__name__}")
    op = op.removeprefix("aten::").removeprefix("aten.")
    if op not in _PROMISES:
        raise ValueError(f"promises(): nothing is said about {op!r}. Known are {', '.join(sorted(_PROMISES))}")
    return _PROMISES[op]
