// Values of rows that lie in runs of neighbours: a leaf a warp, in registers between the looks.
//
// Serves: means and variances of float32 and 16-bit floats over two dims, the last of neighbours (runs.h); with
// fold_states. A lane's element k is number lane + 32 k of the leaf, so that lanes load neighbours: residue k % 8 of
// the lane, and of 2048 elements 8 for each. Neighbouring warps have the same leaf of neighbouring rows. Shared memory:
// none.
#pragma once
#include "held_lanes.cuh"
#include "runs.h"
#include "states.cuh"

namespace torchreduce::gpu {

template <class Op, class E>
__global__ void TR_BLOCKS_BOUND(runs::kThreads, 2)
    runs_states(TR_GRID_CONSTANT RowwiseKernelCall call, TR_GRID_CONSTANT RunsShape shape, typename Op::State* states) {
  using F = float;
  using State = typename Op::State;
  constexpr int kSlots = kResidues / kLanes, kEach = kLeaf / kLanes;
  const int64_t item = int64_t(blockIdx.x) * runs::kWarps + int(threadIdx.x) / kLanes;
  const int64_t leaf = item / call.rows, row = item - leaf * call.rows;
  if (leaf >= shape.leaves) return;
  const int64_t first = leaf * kLeaf, rest = call.length - first, skipped = first / shape.run;
  const int count = int(rest < kLeaf ? rest : kLeaf), phase = int(first - skipped * shape.run), lane = lane_id();
  const E* const from = static_cast<const E*>(call.in[0]) + call.start(row).in[0] + skipped * shape.pitch;

  F x[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int i = lane + k * kLanes, place = phase + i, passed = shape.by_run.quotient(place);
    x[k] = F(0);
    if (i < count)
      x[k] = convert<F>(load_item<Stay::Short>(from + (int64_t(passed) * shape.pitch + (place - passed * shape.run))));
  }
  const Place p{lane, kLanes, 0, count, false, false};
  // kCount canonical sums over the leaf; step(sums, x) adds an element.
  const auto sums_of = [&]<int kCount>(F(&total)[kCount], auto step) {
    F acc[kCount][kSlots];
#pragma unroll
    for (int s = 0; s < kCount; ++s)
#pragma unroll
      for (F& a : acc[s]) a = F(-0.0);
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      if (lane + k * kLanes >= count) continue;
      F sums[kCount];
#pragma unroll
      for (int s = 0; s < kCount; ++s) sums[s] = acc[s][k % kSlots];
      step(sums, x[k]);
#pragma unroll
      for (int s = 0; s < kCount; ++s) acc[s][k % kSlots] = sums[s];
    }
#pragma unroll
    for (int s = 0; s < kCount; ++s) total[s] = tree_over_lanes<false, false>(acc[s], p);
  };
  State state = Op::none();
  F scale = F(1);
#pragma unroll 1
  for (int look = 0; look < 2; ++look) {  // the second one, of scaled elements, is rare
    F found[1], sums[Op::kSums];
    sums_of(found, [](F(&s)[1], F v) { s[0] = s[0] + v; });
    const auto seen = Op::seen(found[0], count, typename Op::Given{});
    sums_of(sums, [&](F(&s)[Op::kSums], F v) { Op::step(s, &v, F(1), seen, typename Op::Given{}); });
    const State own = Op::state(found[0], sums, count);
    if (look > 0) {
      state = Op::scaled_back(own, state, scale);
      break;
    }
    state = own;
    scale = Op::rescale(sums, seen);
    if (scale == F(1)) break;
#pragma unroll
    for (F& v : x) v = v * scale;
  }
  if (lane == 0) states[row * shape.leaves + leaf] = state;
}

}  // namespace torchreduce::gpu
