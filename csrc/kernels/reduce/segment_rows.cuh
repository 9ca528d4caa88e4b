// Any reduction by segments (segments.h).
//
// Serves: every op and dtype of segment_call.h, one element at a time. A warp has a segment and the columns of a team:
// its lanes (part, column) have neighbouring residues of each leaf, and combine them by shuffles. Of few long segments
// a block has one, and its warps have neighbouring leaves. Shared memory: the values of these leaves, [warp][column].
#pragma once
#include "kernels/common/collective.cuh"
#include "segments.h"

namespace torchreduce::gpu {

// The call with pointers to device memory.
__device__ __forceinline__ SegmentReduction in_global_memory(SegmentReduction call) {
  call.in.data = global(call.in.data);
  call.out.values = global(call.out.values);
  call.out.indices = global(call.out.indices);
  call.offsets = global(call.offsets);
  call.order = global(call.order);
  call.short_order = global(call.short_order);
  return call;
}

// The tree over values that come one after the other; of ops that any order suits, what there is so far.
template <class Op, int kLevels> struct Tree {
  using Acc = typename Op::Acc;
  struct Running { Acc value = Op::absent(); };
  std::conditional_t<Op::kAnyOrder, Running, TreeStack<Acc, kLevels>> values;

  __device__ __forceinline__ void push(const Acc& value) {
    if constexpr (Op::kAnyOrder) values.value = Op::combine(values.value, value);
    else values.push(value, [](const Acc& left, const Acc& right) { return Op::combine(left, right); });
  }
  __device__ __forceinline__ Acc total() const {
    if constexpr (Op::kAnyOrder) return values.value;
    else return values.total(Op::absent(), [](const Acc& left, const Acc& right) { return Op::combine(left, right); });
  }
};

// The value of `count` rows from place `first` on, which are a leaf of the segment that begins at `begin`: the tree
// over its residues, of which each of `parts` lanes has neighbouring ones. Absent where a column is not `wanted`.
template <class Op>
__device__ __forceinline__ typename Op::Acc leaf_value(const SegmentReduction& call, int64_t base, int64_t begin,
                                                       int64_t first, int count, int team, bool wanted) {
  using Acc = typename Op::Acc;
  const Op op{OpOptions{}};
  const int lane = lane_id(), part = lane / team, parts = kLanes / team;
  int each = 1;
  while (each * parts < kResidues && each * parts < count) each *= 2;
  Tree<Op, 9> tree;
#pragma unroll 1
  for (int r = part * each; r < (part + 1) * each; ++r) {
    Acc acc = Op::absent();
#pragma unroll 1
    for (int k = r; k < count && wanted; k += kResidues) {
      const int64_t row = call.row_at(first + k);
      const typename Op::Element x = load_element<Op>(call, base + row * call.row_stride);
      acc = k == r ? op.load(x, first + k - begin) : step(op, acc, x, first + k - begin);
    }
    tree.push(acc);
  }
  Acc value = tree.total();
#pragma unroll 1
  for (int d = team; d < kLanes; d *= 2) {
    const Acc other = shuffle(value, lane ^ d);
    value = lane & d ? Op::combine(other, value) : Op::combine(value, other);
  }
  return value;
}

template <class Op>
__global__ void __launch_bounds__(segments::kThreads)
    reduce_any_segments(TR_GRID_CONSTANT SegmentReduction given, int team, bool together) {
  using Acc = typename Op::Acc;
  constexpr int kWarps = segments::kThreads / kLanes;
  constexpr int kLevels = 24;  // more than 2^24 leaves of 2048 rows, or eights of them, fit no memory
  __shared__ Acc leaves[kWarps][kLanes];
  const SegmentReduction call = in_global_memory(given);
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
    Tree<Op, kLevels> stack;
    const auto value = [&](int64_t from) {
      const int count = from < end ? int(end - from < kLeaf ? end - from : kLeaf) : 0;
      return leaf_value<Op>(call, base, begin, from, count, team, wanted);
    };
#pragma unroll 1
    for (int64_t first = begin; first < begin + rows; first += (together ? kWarps : 1) * kLeaf) {
      if (!together) {
        stack.push(value(first));
        continue;
      }
      const Acc mine = value(first + int64_t(warp) * kLeaf);
      if (lane < team) leaves[warp][lane] = mine;
      __syncthreads();
      if (warp == 0) {
        Tree<Op, 4> eight;
#pragma unroll 1
        for (int w = 0; w < kWarps; ++w) eight.push(leaves[w][lane % team]);
        stack.push(eight.total());
      }
      __syncthreads();
    }
    if ((together && warp > 0) || lane >= team || !wanted) continue;
    finish_segment<Op>(call, stack.total(), rows, numbered * call.inner + column,
                       [&](int64_t i) { return base + call.row_at(begin + i) * call.row_stride; });
  }
}

}  // namespace torchreduce::gpu
