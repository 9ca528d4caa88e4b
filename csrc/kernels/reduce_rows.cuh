// Reductions with lanes along a row: the reduced dims hold the smallest stride, or there is one long row.
#pragma once
#include "collective.cuh"

namespace torchreduce::gpu {

constexpr int kPerLane = kResidues / kLanes;  // accumulators a lane holds of a leaf's 256
constexpr int kMaxLeaves = 64;                // leaves in a run of one warp (rows) or one block (columns)
constexpr int kRunLevels = 7;                 // log2(kMaxLeaves) + 1

// A row of at most 8 * width elements, 8 consecutive ones a lane: the pairwise tree is all there is.
template <class Op, class Load>
__device__ __forceinline__ typename Op::Acc short_row(const Op& op, const ReduceCall& call, int64_t base, bool active,
                                                      int width) {
  using Acc = typename Op::Acc;
  const int64_t n = call.layout.length;
  const int first = (int(threadIdx.x) % width) * kPerLane;
  Acc acc[kPerLane];
  if (Load::kWidth > 1 && active && call.plan.vector_loads && first + kPerLane <= n) {
    typename Load::Element x[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; i += Load::kWidth) Load::packed(call.in, base + first + i, x + i);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) acc[i] = op.load(x[i], first + i);
  } else {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      acc[i] = active && first + i < n
                   ? op.load(Load::one(call.in, base + position_offset(call.layout, first + i)), first + i)
                   : op.absent();
  }
#pragma unroll
  for (int d = 1; d < kPerLane; d *= 2) {
#pragma unroll
    for (int i = 0; i < kPerLane; i += 2 * d) acc[i] = op.combine(acc[i], acc[i + d]);
  }
  return warp_tree(op, acc[0], width);
}

// One leaf of a row, by one warp. A lane holds the residues c * 32 * w + lane * w + j, for c < 8 / w and j < w, where w
// is the number of elements of one wide load: neighbouring lanes read neighbouring 16 bytes.
template <class Op, class Load>
__device__ __forceinline__ typename Op::Acc warp_leaf(const Op& op, const ReduceCall& call, int64_t base,
                                                      int64_t first) {
  using Acc = typename Op::Acc;
  constexpr int kWidth = Load::kWidth, kChunks = kPerLane / kWidth, kBatch = 4;
  const int64_t n = call.layout.length;
  const int lane = lane_id();
  Acc acc[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) acc[i] = op.absent();

  const int64_t end = n - first < kLeaf ? n : first + kLeaf;
  int64_t k = first;
  if (Load::kWidth > 1 && call.plan.vector_loads) {
    for (; k + kBatch * kResidues <= end; k += kBatch * kResidues) {  // the loads of a batch are in flight together
      typename Load::Element x[kBatch][kPerLane];
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
#pragma unroll
        for (int c = 0; c < kChunks; ++c)
          Load::packed(call.in, base + k + b * kResidues + (c * kLanes + lane) * kWidth, x[b] + c * kWidth);
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
#pragma unroll
        for (int i = 0; i < kPerLane; ++i)
          acc[i] = op.combine(acc[i],
                              op.load(x[b][i], k + b * kResidues + (i / kWidth * kLanes + lane) * kWidth + i % kWidth));
    }
  }
#pragma unroll 1
  for (; k < end; k += kResidues) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int64_t position = k + (i / kWidth * kLanes + lane) * kWidth + i % kWidth;
      if (position < end)
        acc[i] =
            op.combine(acc[i], op.load(Load::one(call.in, base + position_offset(call.layout, position)), position));
    }
  }

#pragma unroll
  for (int d = 1; d < kWidth; d *= 2) {
#pragma unroll
    for (int i = 0; i < kPerLane; i += 2 * d) acc[i] = op.combine(acc[i], acc[i + d]);
  }
#pragma unroll
  for (int c = 0; c < kChunks; ++c) acc[c * kWidth] = warp_tree(op, acc[c * kWidth], kLanes);
#pragma unroll
  for (int d = 1; d < kChunks; d *= 2) {
#pragma unroll
    for (int c = 0; c < kChunks; c += 2 * d) acc[c * kWidth] = op.combine(acc[c * kWidth], acc[(c + d) * kWidth]);
  }
  return acc[0];
}

// plan.lanes < 32: that many lanes a row. Else plan.warps warps of one block take plan.leaves leaves each; a row of
// more leaves than that is split, and each run leaves its value in `partials`, row-major, for combine_partials.
template <class Op, class Load>
__global__ void TR_BLOCK_BOUND(kThreads) reduce_rows(TR_GRID_CONSTANT ReduceCall call, typename Op::Acc* partials) {
  using Acc = typename Op::Acc;
  const Op op{call.options};
  const Layout& layout = call.layout;
  const Plan& plan = call.plan;

  if (plan.lanes < kLanes) {
    const int64_t row = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / plan.lanes;
    const bool active = row < layout.rows;
    const int64_t base = active ? row_start(layout, row).in : 0;
    const Acc acc = short_row<Op, Load>(op, call, base, active, plan.lanes);
    if (active && threadIdx.x % plan.lanes == 0) finish_row(op, call, row, acc);
    return;
  }

  __shared__ Acc value[kWarps];
  const int warp = int(threadIdx.x) / kLanes;
  const int64_t item = int64_t(blockIdx.x) * (kWarps / plan.warps) + warp / plan.warps;  // a run of a row
  const int64_t row = item / plan.splits, split = item - row * plan.splits;
  const bool active = row < layout.rows;

  TreeStack<Acc, kRunLevels> run;
  if (active) {
    const int64_t base = row_start(layout, row).in;
    const int64_t first = (split * plan.warps + warp % plan.warps) * plan.leaves;
    for (int64_t leaf = first; leaf < first + plan.leaves && leaf * kLeaf < layout.length; ++leaf)
      run.push(warp_leaf<Op, Load>(op, call, base, leaf * kLeaf), [&](Acc l, Acc r) { return op.combine(l, r); });
  }
  Acc acc = run.total(op.absent(), [&](Acc l, Acc r) { return op.combine(l, r); });

  if (plan.warps > 1) {
    if (lane_id() == 0) value[warp] = acc;
    __syncthreads();
    if (warp % plan.warps != 0) return;
    const int lane = lane_id();
    acc = warp_tree(op, lane < plan.warps ? value[warp + lane] : op.absent(), kLanes);
  }
  if (!active || lane_id() != 0) return;
  if (plan.splits == 1) finish_row(op, call, row, acc);
  else partials[item] = acc;
}

// The tree over the partials of each row: one warp a row, 32 partials at a time.
template <class Op>
__global__ void TR_BLOCK_BOUND(kThreads)
    combine_partials(TR_GRID_CONSTANT ReduceCall call, const typename Op::Acc* partials) {
  using Acc = typename Op::Acc;
  const Op op{call.options};
  const int64_t row = int64_t(blockIdx.x) * kWarps + int(threadIdx.x) / kLanes;
  if (row >= call.layout.rows) return;
  const int64_t splits = call.plan.splits;
  TreeStack<Acc, 26> tree;  // 2^31 blocks at most
  for (int64_t i = 0; i < splits; i += kLanes) {
    const int64_t mine = i + lane_id();
    const Acc acc = warp_tree(op, mine < splits ? partials[row * splits + mine] : op.absent(), kLanes);
    tree.push(acc, [&](Acc l, Acc r) { return op.combine(l, r); });
  }
  const Acc acc = tree.total(op.absent(), [&](Acc l, Acc r) { return op.combine(l, r); });
  if (lane_id() == 0) finish_row(op, call, row, acc);
}

}  // namespace torchreduce::gpu
