// The places of each number in an index (segment_index.h).
#pragma once
#include "kernels/common/collective.cuh"
#include "segment_index.h"

namespace torchreduce::gpu {

// A thread has a place.
__global__ void __launch_bounds__(segments::kThreads) number_segment_places(TR_GRID_CONSTANT KeyCall call) {
  const int64_t place = int64_t(blockIdx.x) * segments::kThreads + threadIdx.x;
  if (place < call.places) call.take(place);
}

// A thread has a segment, and looks for its first place; and a place, whose number in the order it widens.
__global__ void __launch_bounds__(segments::kThreads) find_segments(TR_GRID_CONSTANT OffsetsCall call) {
  const int64_t i = int64_t(blockIdx.x) * segments::kThreads + threadIdx.x;
  if (i <= call.count) {
    int64_t from = 0, to = call.places;
    while (from < to) {
      const int64_t middle = from + (to - from) / 2;
      if (call.number_at(middle) < i) from = middle + 1;
      else to = middle;
    }
    global(call.offsets)[i] = from;
  }
  if (call.sorted && i < call.places) global(call.order)[i] = global(call.sorted)[i];
}

// A thread has a place; if it is the first one of its number, it lists that and looks for the last one.
__global__ void __launch_bounds__(segments::kThreads) list_runs(TR_GRID_CONSTANT RunsCall call) {
  const int64_t place = int64_t(blockIdx.x) * segments::kThreads + threadIdx.x;
  const uint32_t* const keys = global(call.keys);
  const uint32_t number = place < call.places ? keys[place] : uint32_t(call.count);
  const bool is_first = number < call.count && (place == 0 || keys[place - 1] != number);
  const uint32_t firsts = ballot(is_first);
  if (!firsts) return;
  uint64_t at = 0;
  if (lane_id() == 0)
    at = atomicAdd(reinterpret_cast<unsigned long long*>(global(call.run_count)), uint64_t(bits_set(firsts)));
  at = shuffle(at, 0);
  if (!is_first) return;
  int64_t from = place, to = place + 1;  // from has the number; to is looked at next, ever farther, until it has not
  while (to < call.places && keys[to] == number) {
    const int64_t step = 2 * (to - place);
    from = to;
    to = place + step;
  }
  if (to > call.places) to = call.places;
  while (to - from > 1) {
    const int64_t middle = from + (to - from) / 2;
    if (keys[middle] == number) from = middle;
    else to = middle;
  }
  global(call.runs)[at + bits_set(firsts & ((1u << lane_id()) - 1))] = {int64_t(number), place, to};
}

}  // namespace torchreduce::gpu
