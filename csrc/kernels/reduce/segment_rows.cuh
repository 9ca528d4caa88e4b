// Any reduction by segments (segment_rows.h).
//
// Serves: every op and dtype of segment_call.h, one element at a time. A warp has a segment and the columns of a team:
// its lanes (part, column) have neighbouring residues of each leaf, and combine them by shuffles. Of few long segments
// a block has one, and its warps have neighbouring leaves. Shared memory: the values of these leaves, [warp][column].
#pragma once
#include "kernels/common/collective.cuh"
#include "segment_rows.h"

namespace torchreduce::gpu {

// The call with pointers to device memory.
__device__ __forceinline__ SegmentReduction in_global_memory(SegmentReduction call) {
  call.in.data = global(call.in.data);
  call.out.values = global(call.out.values);
  call.out.indices = global(call.out.indices);
  call.offsets = global(call.offsets);
  call.order = global(call.order);
  return call;
}

// The value of `count` rows from place `first` on, which are a leaf of the segment that begins at `begin`: the tree
// over its residues, of which each of `parts` lanes has neighbouring ones. Absent where a column is not `wanted`.
template <class Op>
__device__ __forceinline__ typename Op::Acc leaf_value(const SegmentReduction& call, int64_t base, int64_t begin,
                                                       int64_t first, int count, int team, bool wanted) {
  using Acc = typename Op::Acc;
  const Op op{OpOptions{}};
  const auto combine = [](const Acc& left, const Acc& right) { return Op::combine(left, right); };
  const int lane = lane_id(), part = lane / team, parts = kLanes / team;
  int each = 1;
  while (each * parts < kResidues && each * parts < count) each *= 2;
  TreeStack<Acc, 9> tree;
#pragma unroll 1
  for (int r = part * each; r < (part + 1) * each; ++r) {
    Acc acc = Op::absent();
#pragma unroll 1
    for (int k = r; k < count && wanted; k += kResidues) {
      const int64_t row = call.row_at(first + k);
      const typename Op::Element x = load_element<Op>(call, base + row * call.row_stride);
      acc = k == r ? op.load(x, first + k - begin) : step(op, acc, x, first + k - begin);
    }
    tree.push(acc, combine);
  }
  Acc value = tree.total(Op::absent(), combine);
#pragma unroll 1
  for (int d = team; d < kLanes; d *= 2) {
    const Acc other = shuffle(value, lane ^ d);
    value = lane & d ? Op::combine(other, value) : Op::combine(value, other);
  }
  return value;
}

template <class Op>
__global__ void __launch_bounds__(segments::kThreads)
    reduce_segments(TR_GRID_CONSTANT SegmentReduction given, int team, bool together) {
  using Acc = typename Op::Acc;
  using segment_rows::kWarps;
  constexpr int kLevels = 24;  // more than 2^24 leaves of 2048 rows, or eights of them, fit no memory
  __shared__ Acc leaves[kWarps][kLanes];
  const SegmentReduction call = in_global_memory(given);
  const auto combine = [](const Acc& left, const Acc& right) { return Op::combine(left, right); };
  const int warp = int(threadIdx.x) / kLanes, lane = lane_id();
  const int64_t tiles = (call.inner + team - 1) / team, units = call.outer * call.segments * tiles;
  const int64_t stride = together ? gridDim.x : int64_t(gridDim.x) * kWarps;
#pragma unroll 1
  for (int64_t unit = together ? blockIdx.x : int64_t(blockIdx.x) * kWarps + warp; unit < units; unit += stride) {
    const int64_t numbered = unit / tiles, column = (unit - numbered * tiles) * team + lane % team;
    const int64_t outer = numbered / call.segments, segment = numbered - outer * call.segments;
    const int64_t begin = call.begin(segment), end = call.begin(segment + 1), rows = end > begin ? end - begin : 0;
    const int64_t base = outer * call.outer_stride + column * call.inner_stride;
    const bool wanted = column < call.inner;
    TreeStack<Acc, kLevels> stack;
    const auto value = [&](int64_t from) {
      const int count = from < end ? int(end - from < kLeaf ? end - from : kLeaf) : 0;
      return leaf_value<Op>(call, base, begin, from, count, team, wanted);
    };
#pragma unroll 1
    for (int64_t first = begin; first < begin + rows; first += (together ? kWarps : 1) * kLeaf) {
      if (!together) {
        stack.push(value(first), combine);
        continue;
      }
      const Acc mine = value(first + int64_t(warp) * kLeaf);
      if (lane < team) leaves[warp][lane] = mine;
      __syncthreads();
      if (warp == 0) {
        TreeStack<Acc, 4> eight;
#pragma unroll 1
        for (int w = 0; w < kWarps; ++w) eight.push(leaves[w][lane % team], combine);
        stack.push(eight.total(Op::absent(), combine), combine);
      }
      __syncthreads();
    }
    if ((together && warp > 0) || lane >= team || !wanted) continue;
    finish_segment<Op>(call, stack.total(Op::absent(), combine), rows, numbered * call.inner + column,
                       [&](int64_t i) { return base + call.row_at(begin + i) * call.row_stride; });
  }
}

// A thread has a number, and looks for where it begins.
__global__ void __launch_bounds__(segments::kThreads) find_segment_offsets(TR_GRID_CONSTANT OffsetsCall call) {
  const int64_t number = int64_t(blockIdx.x) * segments::kThreads + threadIdx.x;
  if (number > call.count) return;
  const void* const numbers = global(call.numbers);
  int64_t from = 0, to = call.places;
  while (from < to) {
    const int64_t middle = from + (to - from) / 2;
    const int64_t there = call.keys                  ? segments::number_at(numbers, call.dtype, middle)
                          : call.dtype == Dtype::I32 ? static_cast<const int32_t*>(numbers)[middle]
                                                     : static_cast<const int64_t*>(numbers)[middle];
    if (there < number) from = middle + 1;
    else to = middle;
  }
  global(call.offsets)[number] = from;
}

}  // namespace torchreduce::gpu
