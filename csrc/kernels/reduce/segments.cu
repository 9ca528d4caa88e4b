// Launches of sums, and of any reduction, by segments.
#include "kernels/common/gpu.h"
#include "segment_rows.cuh"
#include "segments.cuh"

namespace torchreduce::gpu {

template <class E, int V>
static void launch_segments(const PlannedSegments& planned, const segments::Work& work, Queue queue) {
  using F = accumulator_t<E>;
  constexpr int kThreads = segments::kThreads;
  const SegmentCall& call = planned;
  const SegmentPlan& plan = planned.plan;
  if (plan.leaf_blocks)
    enqueue(sum_segment_leaves<E, V, F>, plan.leaf_blocks, kThreads, 0, queue, call, plan.leaf_team, work);
  enqueue(sum_short_segments<E, V, F>, plan.blocks, kThreads, 0, queue, call, plan.team, plan.across, work.begin);
  if (plan.fold_blocks) enqueue(fold_segment_leaves<E, F>, plan.fold_blocks, kThreads, 0, queue, call, work);
}
template <class E> static void launch_segments(const PlannedSegments& call, const segments::Work& work, Queue queue) {
  if constexpr (sizeof(E) <= 4)
    if (call.plan.columns == segments::kColumns) return launch_segments<E, segments::kColumns>(call, work, queue);
  launch_segments<E, 1>(call, work, queue);
}

const char* segment_sums(const PlannedSegments& call, void* workspace, void* stream) {
  const Queue queue{static_cast<gpuStream_t>(stream)};
  segments::Work work;
  segments::lay_out(call, workspace, work);
  (void)gpuMemsetAsync(work.counts, 0, 2 * sizeof(*work.counts), queue.stream);
  const SegmentCall& q = call;
  enqueue(bound_segments, call.segments / (segments::kThreads - 1) + 1, segments::kThreads, 0, queue, q, work);
  switch (call.dtype) {
    case Dtype::F32: launch_segments<float>(call, work, queue); break;
    case Dtype::BF16: launch_segments<BF16>(call, work, queue); break;
    case Dtype::F64: launch_segments<double>(call, work, queue); break;
#if !defined(TR_FEW_TYPES)
    case Dtype::F16: launch_segments<F16>(call, work, queue); break;
#endif
    default: return "unknown dtype";
  }
  const gpuError_t error = gpuGetLastError();
  return error == gpuSuccess ? nullptr : gpuGetErrorString(error);
}

const char* segment_offsets(const PlannedOffsets& planned, void*, void* stream) {
  const SegmentCall& call = planned;
  segments::Work work{};
  work.begin = planned.found;
  const Queue queue{static_cast<gpuStream_t>(stream)};
  enqueue(bound_segments, call.segments / (segments::kThreads - 1) + 1, segments::kThreads, 0, queue, call, work);
  const gpuError_t error = gpuGetLastError();
  return error == gpuSuccess ? nullptr : gpuGetErrorString(error);
}

template <class Op> static void launch_reduction(const PlannedSegmentReduction& planned, Queue queue) {
  const SegmentReduction& call = planned;
  const SegmentRowsPlan& plan = planned.plan;
  enqueue(reduce_segments<Op>, plan.blocks, segments::kThreads, 0, queue, call, plan.team, plan.together);
}
template <template <class> class Op> static void launch_of_values(const PlannedSegmentReduction& call, Queue queue) {
  switch (call.in.accumulator) {
    case Dtype::F64: return launch_reduction<Op<double>>(call, queue);
    case Dtype::I64: return launch_reduction<Op<int64_t>>(call, queue);
    default: return launch_reduction<Op<float>>(call, queue);
  }
}

const char* reduce_segments(const PlannedSegmentReduction& call, void*, void* stream) {
  const Queue queue{static_cast<gpuStream_t>(stream)};
  switch (call.op) {
    case Reduction::Sum: launch_of_values<Sum>(call, queue); break;
    case Reduction::Product: launch_of_values<Product>(call, queue); break;
    case Reduction::Extreme: launch_reduction<Extreme<int64_t>>(call, queue); break;
    default: launch_reduction<ArgExtreme<int64_t>>(call, queue);
  }
  const gpuError_t error = gpuGetLastError();
  return error == gpuSuccess ? nullptr : gpuGetErrorString(error);
}

const char* segment_keys(const PlannedKeys& call, void*, void* stream) {
  const KeyCall& q = call;
  enqueue(number_segment_places, call.plan.blocks, segments::kThreads, 0, Queue{static_cast<gpuStream_t>(stream)}, q);
  const gpuError_t error = gpuGetLastError();
  return error == gpuSuccess ? nullptr : gpuGetErrorString(error);
}

}  // namespace torchreduce::gpu
