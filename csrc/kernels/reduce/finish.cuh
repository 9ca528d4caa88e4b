// How a reduction ends: a row's result is written, or the partial results of its runs meet in the same launch.
//
// A row that is cut into runs has a ticket, a counter that is 0 between launches. Whoever leaves a partial result then
// adds one; the one who finds that all others have is last, sets the counter to 0 again, and combines the partial
// results in the canonical tree. Which one that is does not show in the bits. Where the counters are: device.cu.
#pragma once
#include "any_element.cuh"

namespace torchreduce::gpu {

constexpr int kPerLane = kResidues / kLanes;  // accumulators a lane holds of a leaf's 256

// Writes the result of row `row`.
template <class Load, class Op>
__device__ __forceinline__ void finish_row(const Op& op, const ReduceCall& call, int64_t row, typename Op::Acc acc) {
  const RowStart start = row_start(call.layout, row);
  if (call.layout.length == 0) acc = op.empty();
  if constexpr (Op::kIndexed)
    op.finish(acc, call.out, start.out, element_at<Load>(call.in, start.in + position_offset(call.layout, acc.index)));
  else op.finish(acc, call.out, start.out);
}

// By one thread after it left its partial result: whether it is the last of `parts` to come. It then sees what all
// left.
__device__ __forceinline__ bool is_last(uint32_t* ticket, int64_t parts) {
  const bool last = count_arrival(ticket) == uint32_t(parts - 1);
  if (last) *ticket = 0;
  return last;
}
// The same for a warp, of which lane 0 left it.
__device__ __forceinline__ bool last_warp(uint32_t* ticket, int64_t parts) {
  bool last = false;
  if (lane_id() == 0) last = is_last(ticket, parts);
  last = shuffle_word(last, 0) != 0;
  warp_barrier();
  return last;
}
// The same for a block, of whose threads any left some; `shared`: of the block.
__device__ __forceinline__ bool last_block(uint32_t* ticket, int64_t parts, bool& shared) {
  __syncthreads();
  if (threadIdx.x == 0) shared = is_last(ticket, parts);
  __syncthreads();
  return shared;
}

// The pairwise tree over values pushed from the left (order.h); of ops that know no order one value.
template <class Op, int kLevels> class PushedTree {
 public:
  using Acc = typename Op::Acc;
  __device__ explicit PushedTree(const Op& op) : op_(op) {
    if constexpr (Op::kAnyOrder) held_ = op.absent();
  }
  __device__ __forceinline__ void push(const Acc& value) {
    if constexpr (Op::kAnyOrder) held_ = op_.combine(held_, value);
    else held_.push(value, [&](Acc l, Acc r) { return op_.combine(l, r); });
  }
  __device__ __forceinline__ Acc total() const {
    if constexpr (Op::kAnyOrder) return held_;
    else return held_.total(op_.absent(), [&](Acc l, Acc r) { return op_.combine(l, r); });
  }

 private:
  const Op& op_;
  std::conditional_t<Op::kAnyOrder, Acc, TreeStack<Acc, kLevels>> held_;
};

// The tree over a thread's share of `count` partial results, neighbours: those of thread `index` of `threads`.
template <class Op> __device__ __forceinline__ typename Op::Acc fold_share(const Op& op,
                                                                           const typename Op::Acc* partials,
                                                                           int64_t count, int index, int threads) {
  using Acc = typename Op::Acc;
  constexpr int kAtOnce = 8;
  int64_t each = 1;
  while (each * threads < count) each *= 2;
  const int64_t first = index * each, end = first + each < count ? first + each : count;
  PushedTree<Op, 14> tree(op);
#pragma unroll 1
  for (int64_t i = first; i < end; i += kAtOnce) {
    Acc a[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) a[k] = partials[i + k < end ? i + k : i];  // all on their way at once
#pragma unroll
    for (int k = 1; k < kAtOnce; ++k)
      if (i + k >= end) a[k] = op.absent();
#pragma unroll
    for (int d = 1; d < kAtOnce; d *= 2)
#pragma unroll
      for (int k = 0; k < kAtOnce; k += 2 * d) a[k] = op.combine(a[k], a[k + d]);
    tree.push(a[0]);
  }
  return tree.total();
}
// The tree over `count` partial results, by a warp.
template <class Op> __device__ __forceinline__ typename Op::Acc warp_fold(const Op& op,
                                                                          const typename Op::Acc* partials,
                                                                          int64_t count) {
  return warp_tree(op, fold_share(op, partials, count, lane_id(), kLanes), kLanes);
}
// The same by a block of whole warps; `shared` has room for a value of each. The first warp gets it.
template <class Op> __device__ __forceinline__ typename Op::Acc block_fold(const Op& op,
                                                                           const typename Op::Acc* partials,
                                                                           int64_t count, typename Op::Acc* shared) {
  using Acc = typename Op::Acc;
  const Acc acc = warp_tree(op, fold_share(op, partials, count, int(threadIdx.x), int(blockDim.x)), kLanes);
  const int warp = int(threadIdx.x) / kLanes, warps = int(blockDim.x) / kLanes, lane = lane_id();
  if (lane == 0) shared[warp] = acc;
  __syncthreads();
  return warp_tree(op, warp == 0 && lane < warps ? shared[lane] : op.absent(), kLanes);
}

}  // namespace torchreduce::gpu
