// Launches of norms over channels.
#include "kernels/common/gpu.h"
#include "kernels/rowwise/states.cuh"
#include "map.cuh"
#include "plan/channel_plan.h"
#include "sums.cuh"

namespace torchreduce::gpu {

template <Channels kOp> void launch_map(const ChannelCall& call, const ChannelShape& shape, Queue queue) {
  if (shape.way == ChannelWay::Elements) {
    if (call.accumulator == Dtype::F64)
      return enqueue(map_elements<ChannelMap<kOp, double>, double>, shape.blocks, shape.threads, 0, queue, call);
    return enqueue(map_elements<ChannelMap<kOp, float>, float>, shape.blocks, shape.threads, 0, queue, call);
  }
  if constexpr (kWideReductions)
    with_element(call.dtype, [&](auto element) {
      using E = decltype(element);
      using Map = ChannelMap<kOp, float>;
      if (shape.way == ChannelWay::Lines)
        enqueue(map_lines<Map, E>, shape.blocks, shape.threads, 0, queue, call, shape);
      else enqueue(map_columns<Map, E>, shape.blocks, shape.threads, 0, queue, call, shape);
    });
}

template <class F> void launch_sums(const ChannelCall& call, const ChannelShape& shape, F* partials, Queue queue) {
  const auto enqueue_sums = [&](auto kernel) {
    enqueue(kernel, shape.blocks, shape.threads, 0, queue, call, shape, partials);
  };
  if constexpr (std::is_same_v<F, double>) {
    enqueue_sums(sum_lines<double, double>);
  } else {
    with_element(call.dtype, [&](auto element) {
      using E = decltype(element);
      if constexpr (kWideReductions)
        if (shape.way == ChannelWay::Columns) return enqueue_sums(sum_columns<E>);
      enqueue_sums(sum_lines<E, float>);
    });
  }
  enqueue(fold_sums<F>, plans::ceil_div(2 * call.sums_rows(), channels_of::kThreads / kLanes), channels_of::kThreads, 0,
          queue, call, shape.units, partials);
}

const char* channels(const PlannedChannels& call, void* workspace, void* stream) {
  const Queue queue{static_cast<gpuStream_t>(stream)};
  const ChannelShape& shape = call.plan.shape;
  switch (call.op) {
    case Channels::Normalize: launch_map<Channels::Normalize>(call, shape, queue); break;
    case Channels::Gradient: launch_map<Channels::Gradient>(call, shape, queue); break;
    case Channels::Move:
      if (call.accumulator == Dtype::F64)
        enqueue(move_running<double>, shape.blocks, shape.threads, 0, queue, static_cast<const ChannelCall&>(call));
      else enqueue(move_running<float>, shape.blocks, shape.threads, 0, queue, static_cast<const ChannelCall&>(call));
      break;
    case Channels::Sums:
      if (call.accumulator == Dtype::F64) launch_sums(call, shape, static_cast<double*>(workspace), queue);
      else launch_sums(call, shape, static_cast<float*>(workspace), queue);
  }
  const gpuError_t error = gpuGetLastError();
  return error == gpuSuccess ? nullptr : gpuGetErrorString(error);
}

}  // namespace torchreduce::gpu
