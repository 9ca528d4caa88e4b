// Row-wise ops by segments: leaves of segments, and what their results are made with.
#pragma once
#include "kernels/tile/segment_runs.cuh"
#include "rowwise_segments.h"

namespace torchreduce::gpu {

template <class F> struct Added {
  __device__ __forceinline__ static F absent() { return F(-0.0); }
  __device__ __forceinline__ static F combine(F a, F b) { return a + b; }
};
template <class F> struct Greatest {
  __device__ __forceinline__ static F absent() { return -kInfinity<F>; }
  __device__ __forceinline__ static F combine(F a, F b) { return greatest(a, b); }
};

template <class Op> struct FloatOf;
template <template <class> class Op, class F> struct FloatOf<Op<F>> { using type = F; };

// The neighbouring residues that a slot of a leaf of n elements has, of which each has as many elements as the leaf has
// rows of residues.
__device__ __forceinline__ int slot_width(int n) {
  return n <= kResidues ? 8 : n <= 2 * kResidues ? 4 : n <= 4 * kResidues ? 2 : 1;
}
__device__ __forceinline__ int slots_of_leaf(int n) {
  const int width = slot_width(n);
  return ((n < kResidues ? n : kResidues) + width - 1) / width;
}
struct RowwiseSlots {
  __device__ __forceinline__ int operator()(int n) const { return n / kLeaf * kResidues + slots_of_leaf(n % kLeaf); }
};
using RowwiseBlock = SegmentBlock<RowwiseSlots>;

template <class Op>
TR_HD auto row_of(const RowwiseSegments& call, int64_t n, const typename Op::Given& given,
                  const typename Op::State& state) {
  using F = typename FloatOf<Op>::type;
  return Op::row(state, n, given, call.options, [](int64_t) { return F(0); });
}
// What the results of a leaf are made with.
template <class Op> TR_HD auto at_of(const decltype(row_of<Op>({}, 0, {}, Op::none()))& row,
                                     const typename Op::State& leaf) {
  return Op::at(row, leaf);
}
template <class Op> using AtOf = decltype(at_of<Op>(row_of<Op>({}, 0, {}, Op::none()), Op::none()));

// What has one element a segment of a row.
__device__ __forceinline__ RowMemory memory_of(const RowwiseSegments& call) {
  RowMemory m = call.memory;
  m.stats = global(m.stats);
  m.values[0] = global(m.values[0]);
  return m;
}

}  // namespace torchreduce::gpu
