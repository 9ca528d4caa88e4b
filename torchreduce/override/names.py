"""One set of names for coverage(), promises() and enable(exclude=...): those of torch's functions.

"sum", "torch.sum", "Tensor.sum", "aten::sum" and "sum.dim_IntList" are all "sum"; "nn.LayerNorm", "F.layer_norm" and
"native_layer_norm_backward" are "layer_norm": the overloads of a gradient have the name of the function.
"""

import re
from collections.abc import Collection

_NAMESPACES = re.compile(
    r"^(torch|ops|aten|torchreduce|tr|Tensor|nn|functional|F|utils|linalg|special|clip_grad|modules)(::|\.)(?=.)"
)
# Overloads whose function has another name than is left without "_", "_backward" and the like.
_FUNCTIONS = {
    "linalg_vector_norm": "vector_norm", "_foreach_norm": "vector_norm",
    "_fused_rms_norm": "rms_norm", "embedding_dense_backward": "embedding", "cross_entropy_loss": "cross_entropy",
    "nll_loss_forward": "nll_loss", "nll_loss2d_forward": "nll_loss", "nll_loss2d_backward": "nll_loss",
    "_addmm_activation": "addmm", "_index_put_impl_": "index_put", "_cummax_helper": "cummax",
    "_cummin_helper": "cummin", "_embedding_bag_forward_only": "embedding_bag",
    "_embedding_bag_dense_backward": "embedding_bag", "_embedding_bag_per_sample_weights_backward": "embedding_bag",
    "_fused_rms_norm_backward": "rms_norm",
    "BCELoss": "binary_cross_entropy", "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
}  # fmt: skip


def without_namespace(name: str) -> str:
    """An overload's name as coverage() has it: "sum.dim_IntList" of "torch.ops.aten.sum.dim_IntList"."""
    while (shorter := _NAMESPACES.sub("", name)) != name:
        name = shorter
    return name.removesuffix(".default")


def function_of(name: str, known: Collection[str]) -> str:
    """The function of torch's that a name is one of: one of `known`, or the name without its namespace if it is none
    of them."""
    name = without_namespace(name.removesuffix("()"))
    packet = name.partition(".")[0]
    if packet in known:
        return packet
    if packet in _FUNCTIONS:
        return _FUNCTIONS[packet]
    if packet[:1].isupper():  # a module, by its class
        return next((f for f in known if _letters(f) == _letters(packet)), name)
    bare = packet.removesuffix("_data").removesuffix("_backward").strip("_").removeprefix("native_")
    return bare if bare in known else name


def _letters(name: str) -> str:
    return name.replace("_", "").lower().removesuffix("loss")
