// Launches of what is summed over rows: the gradients of weights and biases, alone and together with those of norms;
// the mean of losses.
#include "few_norm_rows.cuh"
#include "kernels/common/gpu.h"
#include "losses.cuh"
#include "norm_gradients.cuh"
#include "plan/rowwise_plan.h"
#include "weights.cuh"

namespace torchreduce::gpu {

// The sums of columns, from those of their units, by a kernel whose blocks are there when those that made them end.
template <class F> void fold_columns(const RowwiseCall& call, int64_t units, const F* partials, Queue queue) {
  using namespace weight_columns;
  const FoldShape shape = fold_shape(call.layout.rows, units);
  queue.early = launches_early();
  enqueue(fold_weights<F>, 2 * plans::ceil_div(call.layout.rows, 1 << shape.log_columns),
          shape.parts << shape.log_columns, 0, queue, call, units, shape.log_columns, partials);
}

template <class F, bool kCentered> void launch_sums(const PlannedRowwise& call, const WeightColumnsShape& shape,
                                                    void* workspace, Queue queue) {
  F* const partials = static_cast<F*>(workspace);
  const RowwiseCall& q = call;
  const auto enqueue_sums = [&](auto kernel) {
    enqueue(kernel, shape.blocks, shape.threads, 0, queue, q, shape.units, partials);
  };
  if (!shape.granules) {
    enqueue_sums(weight_elements<F, kCentered>);
  } else if constexpr (kWideReductions && std::is_same_v<F, float>) {
    with_element(call.dtype, [&](auto element) { enqueue_sums(weight_granules<decltype(element), kCentered>); });
  }
  fold_columns<F>(q, shape.units, partials, queue);
}

template <template <class> class Op>
void launch_gradients(const RowwiseCall& call, const NormGradientsShape& shape, [[maybe_unused]] void* workspace,
                      Queue queue) {
  const RowwiseKernelCall rows = plain_rows(call);
  if (shape.few)
    return with_element(call.dtype, [&](auto element) {
      using E = decltype(element);
      enqueue(few_norm_gradients_kernel<Op<float>, E>, shape.blocks, shape.threads, 0, queue, rows, shape);
    });
#ifdef TR_BULK_COPIES
  float* const partials = static_cast<float*>(workspace);
  queue.cluster = shape.cluster;
  const auto enqueue_gradients = [&](auto kernel) {
    enqueue(kernel, shape.blocks, shape.threads, shape.shared, queue, rows, shape, partials);
  };
  with_element(call.dtype, [&](auto element) {
    using E = decltype(element);
    const auto by = [&](auto anywhere) {
      if (shape.lanes > 0) enqueue_gradients(short_norm_gradients_kernel<Op<float>, E, anywhere.value>);
      else enqueue_gradients(norm_gradients_kernel<Op<float>, E, anywhere.value>);
    };
    if (shape.anywhere) by(std::true_type{});
    else by(std::false_type{});
  });
  queue.cluster = 1;
  RowwiseCall columns = call;  // whose rows are the sums of columns
  columns.layout = Layout{};
  columns.layout.kept = 1;
  columns.layout.rows = columns.layout.size[0] = call.layout.length;
  columns.layout.in[0] = columns.layout.out[0] = 1;
  columns.layout.reduced = 1;
  columns.layout.length = columns.layout.size[1] = call.layout.rows;
  fold_columns<float>(columns, shape.units, partials, queue);
#endif
}

static const char* message() {
  const gpuError_t error = gpuGetLastError();
  return error == gpuSuccess ? nullptr : gpuGetErrorString(error);
}

const char* launch_weights(const PlannedRowwise& call, void* workspace, void* stream) {
  const Queue queue{static_cast<gpuStream_t>(stream)};
  if (const auto* together = std::get_if<NormGradientsShape>(&call.plan.shape)) {
    if (call.op == Rowwise::LayerNormGradient) launch_gradients<LayerNormGradient>(call, *together, workspace, queue);
    else launch_gradients<RmsNormGradient>(call, *together, workspace, queue);
    return message();
  }
  const auto& shape = std::get<WeightColumnsShape>(call.plan.shape);
  const bool centered = call.op == Rowwise::LayerNormWeights;
  if (call.accumulator == Dtype::F64) {
    if (centered) launch_sums<double, true>(call, shape, workspace, queue);
    else launch_sums<double, false>(call, shape, workspace, queue);
  } else {
    if (centered) launch_sums<float, true>(call, shape, workspace, queue);
    else launch_sums<float, false>(call, shape, workspace, queue);
  }
  return message();
}

const char* mean_loss(const PlannedMeanLoss& call, void*, void* stream) {
  Queue queue{static_cast<gpuStream_t>(stream)};
  queue.early = launches_early();
  const MeanLossCall& of = call;
  if (call.dtype == Dtype::F64) enqueue(mean_of_losses<double>, 1, call.plan.threads, 0, queue, of);
  else enqueue(mean_of_losses<float>, 1, call.plan.threads, 0, queue, of);
  return message();
}

}  // namespace torchreduce::gpu
