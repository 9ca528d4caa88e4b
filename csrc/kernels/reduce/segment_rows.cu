// Launches of any reduction by segments.
#include "kernels/common/gpu.h"
#include "segment_rows.cuh"

namespace torchreduce::gpu {

template <class Op> static void launch_segments(const PlannedSegmentReduction& planned, Queue queue) {
  const SegmentReduction& call = planned;
  const SegmentRowsPlan& plan = planned.plan;
  enqueue(reduce_segments<Op>, plan.blocks, segments::kThreads, 0, queue, call, plan.team, plan.together);
}
template <template <class> class Op> static void launch_of_values(const PlannedSegmentReduction& call, Queue queue) {
  switch (call.in.accumulator) {
    case Dtype::F64: return launch_segments<Op<double>>(call, queue);
    case Dtype::I64: return launch_segments<Op<int64_t>>(call, queue);
    default: return launch_segments<Op<float>>(call, queue);
  }
}

const char* reduce_segments(const PlannedSegmentReduction& call, void*, void* stream) {
  const Queue queue{static_cast<gpuStream_t>(stream)};
  switch (call.op) {
    case Reduction::Sum: launch_of_values<Sum>(call, queue); break;
    case Reduction::Product: launch_of_values<Product>(call, queue); break;
    case Reduction::Extreme: launch_segments<Extreme<int64_t>>(call, queue); break;
    default: launch_segments<ArgExtreme<int64_t>>(call, queue);
  }
  const gpuError_t error = gpuGetLastError();
  return error == gpuSuccess ? nullptr : gpuGetErrorString(error);
}

const char* segment_offsets(const PlannedOffsets& planned, void*, void* stream) {
  const OffsetsCall& call = planned;
  const Queue queue{static_cast<gpuStream_t>(stream)};
  enqueue(find_segment_offsets, planned.plan.blocks, segments::kThreads, 0, queue, call);
  const gpuError_t error = gpuGetLastError();
  return error == gpuSuccess ? nullptr : gpuGetErrorString(error);
}

}  // namespace torchreduce::gpu
