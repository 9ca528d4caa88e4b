// Row-wise ops by segments: their launches.
#include "held_segments.cuh"
#include "kernels/common/gpu.h"
#include "warp_segments.cuh"

namespace torchreduce::gpu {

template <class Op> static void launch(const PlannedRowwiseSegments& call, Queue queue) {
  const auto enqueue_kernel = [&](auto kernel, int shared) {
    enqueue(kernel, call.plan.blocks, segment_runs::kThreads, shared, queue, static_cast<const RowwiseSegments&>(call),
            call.plan);
  };
  if (!call.plan.by_warps) {
    enqueue_kernel(rowwise_segment_runs<Op>, call.plan.shared);
  } else {
    if (call.plan.team == 8) enqueue_kernel(rowwise_segment_teams<Op, 8>, 0);
    else if (call.plan.team == 16) enqueue_kernel(rowwise_segment_teams<Op, 16>, 0);
    enqueue_kernel(rowwise_segment_warps<Op>, 0);
  }
  if (segment_runs::walks(call.of, call.plan)) enqueue_kernel(rowwise_segment_walks<Op>, 0);
}
template <template <class> class Op> static void launch(const PlannedRowwiseSegments& call, Queue queue) {
  if (call.accumulator == Dtype::F64) launch<Op<double>>(call, queue);
  else launch<Op<float>>(call, queue);
}

const char* rowwise_segments(const PlannedRowwiseSegments& call, void*, void* stream) {
  const Queue queue{static_cast<gpuStream_t>(stream)};
  switch (call.op) {
    case Rowwise::Softmax: launch<Softmax>(call, queue); break;
    case Rowwise::LogSoftmax: launch<LogSoftmax>(call, queue); break;
    case Rowwise::SoftmaxGradient: launch<SoftmaxGradient>(call, queue); break;
    case Rowwise::LogSoftmaxGradient: launch<LogSoftmaxGradient>(call, queue); break;
    case Rowwise::LogSumExp: launch<LogSumExp>(call, queue); break;
    case Rowwise::LogSumExpGradient: launch<LogSumExpGradient>(call, queue); break;
    default: return "no kernel by segments";
  }
  const gpuError_t error = gpuGetLastError();
  return error == gpuSuccess ? nullptr : gpuGetErrorString(error);
}

}  // namespace torchreduce::gpu
