"""The overloads of aten that are overridden: one table for C++ and Python.

setup.py makes of it what csrc/binding/aten.cpp registers, and rules.py what serves graphs, and eager calls where there
is no such build. It imports nothing of torch's, so that a build can read it.
"""

from typing import NamedTuple


class Row(NamedTuple):
    """Overloads that one struct and one rule serve. Their names are aten's, in which ".default" is left out."""

    overloads: str  # those that return new tensors, and those that write, which are told by their schemas
    cpp: str  # a struct of csrc/binding/aten/
    rule: str  # a function of rules.py or products.py, without its underscore
    op: str = ""  # of torchreduce, which that function takes, if it takes one
    in_graphs: str = ""  # overloads of graphs alone: eager calls of them reach the others


ROWS = (
    Row("sum.dim_IntList sum.IntList_out", "Reduce<k_sum>", "with_dtype", "sum", in_graphs="sum"),
    Row("trace", "Trace", "trace"),
    Row("mean.dim mean.out", "Reduce<k_mean>", "with_dtype", "mean", in_graphs="mean"),
    Row("nansum nansum.out", "Reduce<k_nansum>", "with_dtype", "nansum"),
    Row("prod prod.dim_int prod.int_out", "Reduce<k_prod>", "with_dtype", "prod"),
    Row("linalg_vector_norm linalg_vector_norm.out", "VectorNorm", "vector_norm"),
    Row("_foreach_norm.Scalar", "ForeachNorm", "foreach_norm"),
    Row("any any.all_out any.dim any.out", "Reduce<k_any>", "along", "any"),
    Row("any.dims any.dims_out", "ReduceListed<k_any>", "listed", "any"),
    Row("all all.all_out all.dim all.out", "Reduce<k_all>", "along", "all"),
    Row("all.dims all.dims_out", "ReduceListed<k_all>", "listed", "all"),
    Row("count_nonzero.dim_IntList", "Reduce<k_count_nonzero>", "along", "count_nonzero", in_graphs="count_nonzero"),
    Row("amax amax.out", "Reduce<k_amax>", "along", "amax"),
    Row("amin amin.out", "Reduce<k_amin>", "along", "amin"),
    Row("aminmax aminmax.out", "MinMax", "along", "aminmax"),
    Row("max max.unary_out", "Reduce<k_max_all>", "whole", "max_all"),
    Row("max.dim max.dim_max", "ReducePair<k_max>", "along", "max"),
    Row("min min.unary_out", "Reduce<k_min_all>", "whole", "min_all"),
    Row("min.dim min.dim_min", "ReducePair<k_min>", "along", "min"),
    Row("argmax argmax.out", "Reduce<k_argmax>", "along", "argmax"),
    Row("argmin argmin.out", "Reduce<k_argmin>", "along", "argmin"),
    Row("_softmax _softmax.out", "Softmax<Rowwise::Softmax>", "softmax", "softmax"),
    Row("_log_softmax _log_softmax.out", "Softmax<Rowwise::LogSoftmax>", "softmax", "log_softmax"),
    Row(
        "_softmax_backward_data _softmax_backward_data.out",
        "SoftmaxBackward<Rowwise::SoftmaxGradient>", "softmax_backward", "softmax_gradient",
    ),
    Row(
        "_log_softmax_backward_data _log_softmax_backward_data.out",
        "SoftmaxBackward<Rowwise::LogSoftmaxGradient>", "softmax_backward", "log_softmax_gradient",
    ),
    Row("logsumexp logsumexp.out", "LogSumExp", "logsumexp"),
    Row("var.correction var.correction_out", "Variance<false>", "moments", "var"),
    Row("std.correction std.correction_out", "Variance<true>", "moments", "std"),
    Row("var_mean.correction", "Variance<false>", "moments", "var_mean"),
    Row("std_mean.correction", "Variance<true>", "moments", "std_mean"),
    Row("native_layer_norm", "LayerNorm", "layer_norm"),
    Row("native_layer_norm_backward", "LayerNormBackward", "layer_norm_backward"),
    Row("_fused_rms_norm", "RmsNorm", "rms_norm"),
    Row("_fused_rms_norm_backward", "RmsNormBackward", "rms_norm_backward"),
    Row("embedding_dense_backward", "EmbeddingBackward", "embedding_backward"),
    Row("cumsum cumsum.out cumsum_", "Accumulate<k_cumsum>", "scan", "cumsum"),
    Row("cumprod cumprod.out cumprod_", "Accumulate<k_cumprod>", "scan", "cumprod"),
    Row("_logcumsumexp _logcumsumexp.out", "LogCumSumExp", "logcumsumexp", in_graphs="logcumsumexp"),
    Row("_cummax_helper", "Extreme<k_cummax>", "extreme_scan", "cummax", in_graphs="cummax"),
    Row("_cummin_helper", "Extreme<k_cummin>", "extreme_scan", "cummin", in_graphs="cummin"),
)  # fmt: skip

# Those that graphs have taken apart: rules of eager calls alone.
LOSSES = (
    Row("nll_loss_forward nll_loss_forward.output", "NllLoss<nll_loss_forward>", "nll_loss", "nll_loss_forward"),
    Row(
        "nll_loss2d_forward nll_loss2d_forward.output", "NllLoss<nll_loss2d_forward>", "nll_loss", "nll_loss2d_forward"
    ),
    Row("nll_loss_backward", "NllLossBackward<nll_loss_backward>", "nll_loss_backward", "nll_loss_backward"),
    Row("nll_loss2d_backward", "NllLossBackward<nll_loss2d_backward>", "nll_loss_backward", "nll_loss2d_backward"),
)

# Those of C++ alone: of composites that graphs, transforms and the override in Python meet whole (ABOVE).
PARTS = (
    Row("native_batch_norm", "BatchNorm", ""),
    Row("native_batch_norm_backward", "BatchNormBackward", ""),
    Row("native_group_norm", "GroupNorm", ""),
    Row("native_group_norm_backward", "GroupNormBackward", ""),
)

# By index: `op` is the name by which enable(exclude=...) leaves them to torch.
SCATTERS = (
    Row("index_add index_add.out index_add_", "Scatter<false>", "scatter", "index_add"),
    Row("scatter_add scatter_add.out scatter_add_", "Scatter<true>", "scatter", "scatter_add"),
    Row(
        "scatter_reduce.two scatter_reduce.two_out scatter_reduce_.two",
        "Scatter<true, Names::ScatterReduce>", "scatter", "scatter_reduce",
    ),
    Row(
        "index_reduce index_reduce.out index_reduce_", "Scatter<false, Names::IndexReduce>", "scatter", "index_reduce"
    ),
    Row("scatter.reduce scatter.reduce_out scatter_.reduce", "Scatter<true, Names::Scatter>", "scatter", "scatter"),
    Row("_index_put_impl_", "IndexPut", "scatter", "index_put", in_graphs="index_put _unsafe_index_put"),
    Row("put_", "Put", "scatter", "put", in_graphs="put"),
    Row("_embedding_bag _embedding_bag_forward_only", "EmbeddingBag", "embedding_bag", "embedding_bag"),
    Row("_embedding_bag_dense_backward", "EmbeddingBagBackward", "embedding_bag_backward", "embedding_bag"),
    Row(
        "_embedding_bag_per_sample_weights_backward", "EmbeddingBagWeightsBackward", "embedding_bag_weights_backward",
        "embedding_bag",
    ),
    Row("", "", "embedding_bag_whole_backward", "embedding_bag", in_graphs="_embedding_bag_backward"),
    Row("bincount", "BinCount", "bincount", "bincount"),
    Row("segment_reduce", "SegmentReduce", "segment_reduce", "segment_reduce"),
)  # fmt: skip
# What enable(exclude=...) takes, and their overloads.
SCATTERED: dict[str, frozenset[str]] = {}
for _row in SCATTERS:
    SCATTERED[_row.op] = SCATTERED.get(_row.op, frozenset()) | {*_row.overloads.split(), *_row.in_graphs.split()}

# Matrix products, which are asked for by themselves.
PRODUCTS = (
    Row("mm mm.out mm.dtype mm.dtype_out", "Multiply<2, 2, false>", "mm"),
    Row("addmm addmm.out addmm_ addmm.dtype addmm.dtype_out", "Multiply<2, 2, true>", "addmm"),
    Row("bmm bmm.out bmm.dtype bmm.dtype_out", "Multiply<3, 3, false>", "bmm"),
    Row("baddbmm baddbmm.out baddbmm_ baddbmm.dtype baddbmm.dtype_out", "Multiply<3, 3, true>", "baddbmm"),
    Row("_addmm_activation _addmm_activation.out", "Multiply<2, 2, true, true>", "activated"),
    Row("mv mv.out", "Multiply<2, 1, false>", "mv"),
    Row("addmv addmv.out addmv_", "Multiply<2, 1, true>", "addmv"),
    Row("dot dot.out", "Dot", "dot"),
)

# Calls that are met above autograd, by which of them are: enum Which of csrc/binding/aten/above.h.
ABOVE = {
    "Gradients": (
        "logsumexp", "logcumsumexp", "cumprod", "cummax", "cummin", "prod", "prod.dim_int", "linalg_vector_norm",
        "var.correction", "std.correction", "var_mean.correction", "std_mean.correction",
    ),
    "All": ("nanmean", "nanmean.out", "cross_entropy_loss", "_weight_norm", "cdist"),
    "Cpu": ("rms_norm",),
    "Transformed": ("layer_norm",),
    "Whole": ("batch_norm", "group_norm", "instance_norm"),
    "Backward": ("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "avg_pool3d_backward"),
}  # fmt: skip

# All that coverage() may count.
OVERLOADS = tuple(
    dict.fromkeys(
        [name for row in (*ROWS, *LOSSES, *PARTS, *SCATTERS, *PRODUCTS) for name in row.overloads.split()]
        + [name for names in ABOVE.values() for name in names]
        + ["scaled_dot_product_attention"]
    )
)


def header() -> str:
    """The table as macros: X(overload, struct), X(overload, which), with an overload as ATen/Operators.h names it."""

    def define(name: str, rows: list[tuple[str, str]]) -> str:
        lines = [f"  X({overload.replace('.', '_')}, {with_it})" for overload, with_it in rows]
        return f"#define {name}(X)" + "".join(f" \\\n{line}" for line in lines) + "\n"

    def overloads(rows: tuple[Row, ...]) -> list[tuple[str, str]]:
        return [(overload, row.cpp) for row in rows for overload in row.overloads.split()]

    return (
        "// Made by setup.py of torchreduce/override/table.py.\n#pragma once\n"
        + define("TR_FOR_EACH_ROW", overloads((*ROWS, *LOSSES, *PARTS, *SCATTERS)))
        + define("TR_FOR_EACH_PRODUCT", overloads(PRODUCTS))
        + define("TR_FOR_EACH_ABOVE", [(name, f"Which::{which}") for which, names in ABOVE.items() for name in names])
    )
