// How a reduction ends: a row's result is written, or the partial results of its runs meet in the same launch.
//
// A row that is cut into runs has a ticket, a counter that is 0 between launches. Whoever leaves a partial result then
// adds one; the one who finds that all others have is last, sets the counter to 0 again, and combines the partial
// results in the canonical tree. Which one that is does not show in the bits. Where the counters are: device.cu.
#pragma once
#include "kernels/collective.cuh"

namespace torchreduce::gpu {

// Writes a row's result. `in`: of the row's start; `at(index)`: the offset of a position from it; `out`: of the result.
template <class Op, class At>
__device__ __forceinline__ void finish_row(const Op& op, const Source& in_source, const Output& output, int64_t in,
                                           At at, int64_t out, typename Op::Acc acc) {
  if constexpr (Op::kIndexed) {
    using E = typename Op::Element;
    op.finish(acc, output, out, global(static_cast<const E*>(in_source.data))[in + at(acc.index)]);
  } else {
    op.finish(acc, output, out);
  }
}
// The same of row `row` of any layout.
template <class Op> __device__ __forceinline__ void finish_row(const Op& op, const ReduceCall& call, int64_t row,
                                                               typename Op::Acc acc) {
  const RowStart start = row_start(call.layout, row);
  if (call.layout.length == 0) acc = op.empty();
  finish_row(
      op, call.in, call.out, start.in, [&](int64_t i) { return position_offset(call.layout, i); }, start.out, acc);
}

// By one thread after it left its partial result: whether it is the last of `parts` to come. It then sees what all left.
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

// The tree over `count` partial results, by a warp: a lane takes as many neighbours as a power of two allows.
template <class Op> __device__ __forceinline__ typename Op::Acc fold_partials(const Op& op,
                                                                              const typename Op::Acc* partials,
                                                                              int64_t count) {
  using Acc = typename Op::Acc;
  auto combine = [&](Acc l, Acc r) { return op.combine(l, r); };
  int64_t each = 1;
  while (each * kLanes < count) each *= 2;
  const int64_t first = lane_id() * each, end = first + each < count ? first + each : count;
  TreeStack<Acc, 26> tree;  // of 2^31 blocks at most
#pragma unroll 4
  for (int64_t i = first; i < end; ++i) tree.push(partials[i], combine);
  return warp_tree(op, tree.total(op.absent(), combine), kLanes);
}

}  // namespace torchreduce::gpu
