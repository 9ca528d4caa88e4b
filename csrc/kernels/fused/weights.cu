// Launches of the gradients of weights and biases.
#include "kernels/common/gpu.h"
#include "weights.cuh"

namespace torchreduce::gpu {

template <class F, bool kCentered> void launch_sums(const PlannedFused& call, const WeightColumnsShape& shape,
                                                    void* workspace, Queue queue) {
  F* const partials = static_cast<F*>(workspace);
  const FusedCall& q = call;
  const auto enqueue_sums = [&](auto kernel) {
    enqueue(kernel, shape.blocks, shape.threads, 0, queue, q, shape.units, partials);
  };
  if (!shape.granules) {
    enqueue_sums(weight_elements<F, kCentered>);
  } else if constexpr (kWideReductions && std::is_same_v<F, float>) {
    if (call.dtype == Dtype::F32) enqueue_sums(weight_granules<float, kCentered>);
    else if (call.dtype == Dtype::BF16) enqueue_sums(weight_granules<BF16, kCentered>);
    else enqueue_sums(weight_granules<F16, kCentered>);
  }
  enqueue(fold_weights<F>, 2 * plans::ceil_div(call.layout.rows, weight_columns::kFoldThreads),
          weight_columns::kFoldThreads, 0, queue, q, shape.units, static_cast<const F*>(partials));
}

const char* launch_weights(const PlannedFused& call, void* workspace, void* stream) {
  const Queue queue{static_cast<gpuStream_t>(stream)};
  const auto& shape = std::get<WeightColumnsShape>(call.plan.shape);
  const bool centered = call.op == Fused::LayerNormWeights;
  if (call.accumulator == Dtype::F64) {
    if (centered) launch_sums<double, true>(call, shape, workspace, queue);
    else launch_sums<double, false>(call, shape, workspace, queue);
  } else {
    if (centered) launch_sums<float, true>(call, shape, workspace, queue);
    else launch_sums<float, false>(call, shape, workspace, queue);
  }
  const gpuError_t error = gpuGetLastError();
  return error == gpuSuccess ? nullptr : gpuGetErrorString(error);
}

}  // namespace torchreduce::gpu
