// Row-wise ops by segments: their launches.
#include "held_segments.cuh"
#include "kernels/common/gpu.h"
#include "team_segments.cuh"

namespace torchreduce::gpu {

template <class Op> static void launch(const PlannedRowwiseSegments& call, void* workspace, Queue queue) {
  const SegmentRuns& plan = call.plan;
  const SegmentList list(workspace);
  const auto enqueue_kernel = [&](auto kernel, int64_t blocks, int shared) {
    enqueue(kernel, blocks, segment_runs::kThreads, shared, queue, static_cast<const RowwiseSegments&>(call), plan,
            list);
  };
  if (plan.listed) (void)gpuMemsetAsync(list.counts, 0, 2 * sizeof(*list.counts), queue.stream);
  if (!plan.by_warps) enqueue_kernel(rowwise_segment_runs<Op>, plan.blocks, plan.shared);
  else if (plan.team == 8) enqueue_kernel(rowwise_segment_teams<Op, 8>, plan.blocks, 0);
  else enqueue_kernel(rowwise_segment_teams<Op, 16>, plan.blocks, 0);
  if (segment_runs::walks(call.of, plan)) enqueue_kernel(rowwise_segment_walks<Op>, plan.list_blocks, 0);
}
template <template <class> class Op> static void launch(const PlannedRowwiseSegments& call, void* workspace,
                                                        Queue queue) {
  if (call.accumulator == Dtype::F64) launch<Op<double>>(call, workspace, queue);
  else launch<Op<float>>(call, workspace, queue);
}

const char* rowwise_segments(const PlannedRowwiseSegments& call, void* workspace, void* stream) {
  const Queue queue{static_cast<gpuStream_t>(stream)};
  switch (call.op) {
    case Rowwise::Softmax: launch<Softmax>(call, workspace, queue); break;
    case Rowwise::LogSoftmax: launch<LogSoftmax>(call, workspace, queue); break;
    case Rowwise::SoftmaxGradient: launch<SoftmaxGradient>(call, workspace, queue); break;
    case Rowwise::LogSoftmaxGradient: launch<LogSoftmaxGradient>(call, workspace, queue); break;
    case Rowwise::LogSumExp: launch<LogSumExp>(call, workspace, queue); break;
    case Rowwise::LogSumExpGradient: launch<LogSumExpGradient>(call, workspace, queue); break;
    default: return "no kernel by segments";
  }
  const gpuError_t error = gpuGetLastError();
  return error == gpuSuccess ? nullptr : gpuGetErrorString(error);
}

}  // namespace torchreduce::gpu
