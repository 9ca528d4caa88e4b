// Launches of sums by segments.
#include "kernels/common/gpu.h"
#include "segments.cuh"

namespace torchreduce::gpu {

template <class E> static void launch_segments(const PlannedSegments& call, void* workspace, Queue queue) {
  using F = accumulator_t<E>;
  F* const leaves = static_cast<F*>(workspace);
  const SegmentCall& q = call;
  const auto run = [&](auto kernel) {
    enqueue(kernel, call.plan.blocks, segments::kThreads, 0, queue, q, call.plan.across, leaves);
  };
  if constexpr (sizeof(E) <= 4)
    if (call.plan.columns == segments::kColumns) run(sum_segment_leaves<E, segments::kColumns, F>);
  if (call.plan.columns == 1) run(sum_segment_leaves<E, 1, F>);
  if (call.places > kLeaf) run(fold_segment_leaves<E, F>);
}

const char* segment_sums(const PlannedSegments& call, void* workspace, void* stream) {
  const Queue queue{static_cast<gpuStream_t>(stream)};
  switch (call.dtype) {
    case Dtype::F32: launch_segments<float>(call, workspace, queue); break;
    case Dtype::BF16: launch_segments<BF16>(call, workspace, queue); break;
    case Dtype::F64: launch_segments<double>(call, workspace, queue); break;
#if !defined(TR_FEW_TYPES)
    case Dtype::F16: launch_segments<F16>(call, workspace, queue); break;
#endif
    default: return "unknown dtype";
  }
  const gpuError_t error = gpuGetLastError();
  return error == gpuSuccess ? nullptr : gpuGetErrorString(error);
}

}  // namespace torchreduce::gpu
