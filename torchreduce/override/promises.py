"""What the override guarantees for each operator of torch."""

from typing import NamedTuple

from .names import function_of


class Promise(NamedTuple):
    eager: str
    compiled: str


_BITS = "bitwise identical to torchreduce's function: depends on the data of the row alone (docs/numerics.md)"
_WHOLE = Promise(_BITS, "bitwise identical to eager for the same input; ops fused before it may round differently")
_LOSS = Promise(
    _BITS,
    "cross_entropy: bitwise identical to eager for the same input; nll_loss: computed by overridden reductions and "
    "fused arithmetic, bitwise identical in any batch and layout",
)
# Functions that torch makes of others, and those of these that are overridden.
COMPOSITIONS = {
    **dict.fromkeys(
        ("normalize", "clip_grad_norm_", "get_total_norm", "pairwise_distance", "dist", "renorm"), ("vector_norm",)
    ),
    **dict.fromkeys(
        (
            "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
            "binary_cross_entropy_with_logits", "kl_div", "poisson_nll_loss", "gaussian_nll_loss",
            "hinge_embedding_loss", "margin_ranking_loss", "cosine_embedding_loss", "soft_margin_loss",
            "multilabel_soft_margin_loss",
        ),
        ("sum", "mean"),
    ),
    "triplet_margin_loss": ("vector_norm", "sum", "mean"),
    "cosine_similarity": ("vector_norm", "sum"),
    "softmin": ("softmax",),
    "trapezoid": ("sum",),
    "cumulative_trapezoid": ("cumsum",),
}  # fmt: skip
_SELECTED = Promise("exact in any order; ties and NaN as in torchreduce", "the same")
_SHAPED = Promise(
    "torch's: the bits depend on the shapes, so on the batch size, and on a CPU on the thread count; keep them fixed",
    "the same",
)
_PRODUCT = Promise(
    "with products=True, on NVIDIA GPUs since Hopper and on CPUs: a row depends on its data, the other matrix, the "
    "device and its library alone. Else torch's: the bits depend on the shapes, and on a CPU on the thread count",
    "the same",
)
_FUSED_ATTENTION = Promise(
    "with products=True, on NVIDIA GPUs: kernels whose rows do not depend on the batch and on other keys; gradients "
    "also need torch.use_deterministic_algorithms(True). Else torch's: the bits depend on the shapes",
    "the same",
)
_SCATTERED = Promise(
    "bitwise identical to torchreduce's function: an element depends on itself and on those that meet there, in their "
    "order. Integers and bool are torch's, exact in any order. put and index_put without accumulate are torch's",
    "bitwise identical to eager for the same input; ops fused before it may round differently",
)
_GATHERED = Promise(
    "exact; in the gradient an element is torchreduce's sum of the gradients of its copies alone, in their order",
    "the same",
)
_POOLED = Promise(
    "torch's: a result is the sum of its own window, by one loop over it, and does not depend on the batch; on CPUs "
    "nor on the memory format and the number of threads. Over all of their dims the adaptive pools are overridden "
    "means. Gradients of adaptive pools and of avg_pool3d are torchreduce's sums of the windows that an element is in, "
    "dim by dim; those of avg_pool2d are torch's, by one loop",
    "the same",
)
_TORCHS = Promise("torch's: not overridden in this release", "torch's")
_PROMISES = {
    **dict.fromkeys(
        (
            "sum", "mean", "nansum", "nanmean", "prod", "any", "all", "count_nonzero", "vector_norm", "norm", "softmax",
            "log_softmax", "logsumexp", "var", "std", "var_mean", "std_mean", "layer_norm", "cumsum", "cumprod",
            "logcumsumexp", "rms_norm", "batch_norm", "group_norm", "instance_norm", "trace", "weight_norm",
        ),
        _WHOLE,
    ),
    **dict.fromkeys(("cross_entropy", "nll_loss"), _LOSS),
    **dict.fromkeys(
        ("amax", "amin", "aminmax", "max", "min", "argmax", "argmin", "cummax", "cummin"), _SELECTED
    ),
    **{
        name: Promise(
            f"computed by overridden functions ({', '.join(parts)}) and elementwise arithmetic: depends on the data "
            "alone",
            "bitwise identical in any batch and layout, but not to eager",
        )
        for name, parts in COMPOSITIONS.items()
    },
    **dict.fromkeys(
        ("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "vdot", "inner", "matmul", "linear", "einsum",
         "tensordot", "bilinear"), _PRODUCT
    ),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _SHAPED),
    "scaled_dot_product_attention": _FUSED_ATTENTION,
    **dict.fromkeys(
        ("index_add", "scatter_add", "scatter_reduce", "index_reduce", "scatter", "index_put", "put", "bincount",
         "segment_reduce"), _SCATTERED
    ),
    **dict.fromkeys(("gather", "take_along_dim", "index_select", "repeat_interleave", "take"), _GATHERED),
    "embedding_bag": Promise(
        "bitwise identical to torchreduce's function, with its gradients: a bag depends on its own rows, that of a row "
        "on the gradients at its indices. With sparse=True and scale_grad_by_freq=True the gradients are torch's",
        "bitwise identical to eager for the same input; ops fused before it may round differently",
    ),
    "embedding": Promise(
        "exact; the gradient of a weight row is torchreduce's sum over dim 0 of the gradients at its indices alone",
        "the same",
    ),
    **dict.fromkeys(
        (
            "median", "sort", "topk", "cudnn_batch_norm", "ctc_loss", "multi_margin_loss", "multilabel_margin_loss",
        ),
        _TORCHS,
    ),
    "grouped_mm": Promise(
        "on CPUs a product of each group, so with products=True a row depends on its data, its group's matrix, the "
        "device and its library alone. torch's own kernel on NVIDIA GPUs since Hopper: a row may depend on the sizes "
        "of the groups",
        "the same",
    ),
    **dict.fromkeys(
        (
            "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
            "adaptive_avg_pool3d",
        ),
        _POOLED,
    ),
    "cdist": Promise(
        "with products='float32', for p=2: by matrix products, however many rows there are, so a row depends on its "
        "data, the other tensor, the device and its library alone. Else torch's, which chooses by the number of rows "
        "whether it calls products",
        "bitwise identical for any number of rows, but not to eager",
    ),
}  # fmt: skip
KNOWN = frozenset(_PROMISES)


def promises(op: str) -> Promise:
    """Return what the override guarantees for an operator of torch.

    op is the operator's name: "sum", "torch.sum", "Tensor.sum", "F.softmax", "nn.LayerNorm", "aten::sum" or, of an
    overload or a gradient, "sum.dim_IntList", "native_layer_norm_backward". The result has the guarantees as text:
    `eager` for eager mode, `compiled` for torch.compile. It also covers functions that torch makes of others, and
    operators that no override can make batch-invariant. Raises ValueError for an operator that this release has no
    statement for.

    >>> import torchreduce
    >>> print(torchreduce.promises("conv2d").eager)
    torch's: the bits depend on the shapes, so on the batch size, and on a CPU on the thread count; keep them fixed
    """
    if not isinstance(op, str):
        raise TypeError(f"promises(): argument 'op' must be a str, got {type(op).__name__}")
    function = function_of(op, KNOWN)
    if function not in KNOWN:
        raise ValueError(f"promises(): nothing is said about {op!r}. Supported are {', '.join(sorted(KNOWN))}")
    return _PROMISES[function]
