// Launches of norms over channels, and of copies.
#include "contiguous.cuh"
#include "kernels/common/gpu.h"
#include "kernels/rowwise/states.cuh"
#include "map.cuh"
#include "plan/channel_plan.h"
#include "sums.cuh"
#include "transpose.cuh"

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

// Of lines and of all else, by what a lane loads at once.
template <class E> void launch_sum_lines(const ChannelCall& call, const ChannelShape& shape, float* partials,
                                         Queue queue) {
  const auto enqueue_sums = [&](auto kernel) {
    enqueue(kernel, shape.blocks, shape.threads, 0, queue, call, shape, partials);
  };
  if constexpr (kWideReductions) {
    if (shape.is_one_read) return enqueue_sums(both_sum_lines<E>);
    switch (shape.loads) {
      case SumsLoads::Granules: return enqueue_sums(granule_sum_lines<E>);
      case SumsLoads::Halves:
        if constexpr (sizeof(E) == 2) return enqueue_sums(half_sum_lines<E>);
        break;
      case SumsLoads::Neighbours: return enqueue_sums(near_sum_lines<E>);
      case SumsLoads::Elements: break;
    }
  }
  enqueue_sums(sum_lines<E, float>);
}

template <class F> void launch_sums(const ChannelCall& call, const ChannelShape& shape, F* partials, Queue queue) {
  if constexpr (std::is_same_v<F, double>) {
    enqueue(sum_lines<double, double>, shape.blocks, shape.threads, 0, queue, call, shape, partials);
  } else {
    with_element(call.dtype, [&](auto element) {
      using E = decltype(element);
      if constexpr (kWideReductions)
        if (shape.way == ChannelWay::Columns)
          return enqueue(sum_columns<E>, shape.blocks, shape.threads, 0, queue, call, shape, partials);
      launch_sum_lines<E>(call, shape, partials, queue);
    });
  }
  const int64_t rows = shape.sums[0].rows + shape.sums[1].rows;
  enqueue(fold_sums<F>, plans::ceil_div(2 * rows, channels_of::kWarps), channels_of::kThreads, 0, queue, call, shape,
          partials);
}

void launch_lay(const ChannelCall& call, const ChannelShape& shape, Queue queue) {
  if constexpr (kWideReductions)
    with_element(call.dtype, [&](auto element) {
      enqueue(transposing_map_lines<decltype(element)>, shape.blocks, shape.threads, 0, queue, call);
    });
}

const char* copy_rows(const PlannedCopy& copy, void*, void* stream) {
  if constexpr (kWideReductions) {
    const auto enqueue_of = [&](auto element) {
      using E = decltype(element);
      const CopyWay way = copy.plan.way;
      enqueue(way == CopyWay::Runs    ? copying_map_lines<E>
              : way == CopyWay::Tiles ? copying_map_columns<E>
                                      : copying_map_elements<E>,
              copy.plan.blocks, contiguous::kThreads, 0, Queue{static_cast<gpuStream_t>(stream)}, copy);
    };
    switch (copy.size) {
      case 2: enqueue_of(int16_t{}); break;
      case 4: enqueue_of(int32_t{}); break;
      default: enqueue_of(int64_t{});
    }
    const gpuError_t error = gpuGetLastError();
    return error == gpuSuccess ? nullptr : gpuGetErrorString(error);
  }
  return "no kernel copies rows";
}

const char* channels(const PlannedChannels& call, void* workspace, void* stream) {
  const Queue queue{static_cast<gpuStream_t>(stream)};
  const ChannelShape& shape = call.plan.shape;
  switch (call.op) {
    case Channels::Normalize: launch_map<Channels::Normalize>(call, shape, queue); break;
    case Channels::Gradient: launch_map<Channels::Gradient>(call, shape, queue); break;
    case Channels::Lay:
      if (shape.way != ChannelWay::Transposed) return "no kernel lays these elements out";
      launch_lay(call, shape, queue);
      break;
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
