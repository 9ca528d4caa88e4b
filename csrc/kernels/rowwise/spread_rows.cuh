// Norms of few rows, of which a leaf is spread over several warps: what a row takes is then all that is waited for.
//
// Serves: float32 and 16-bit floats, rows of whole granules, of few leaves (held_rows.h, Form::Spread).
// A block has a row. A thread has two neighbouring residues of a leaf, and their weights, in registers: [chunk][2].
// Shared memory: the sums of each warp, for each look; the states of leaves.
#pragma once
#include "held_rows.h"
#include "kernels/common/gpu_rows.cuh"
#include "states.cuh"

namespace torchreduce::gpu {

template <class Op, class E> struct SpreadLeaf {
  using F = float;
  static constexpr int kChunks = kLeaf / kResidues, kSums = Op::kSums;
  static constexpr int kThreads = held_rows::kSpreadThreads, kWarps = kThreads / kLanes;
  static_assert(kThreads * 2 == kResidues && kWarps == 4, "two residues a thread, a tree over four warps");
  struct Warps { F sum[kWarps][kSums]; };  // of a leaf

  template <class W> using Twos = Packed<W, 2>[kChunks];  // [chunk], as they are in memory

  const RowwiseKernelCall& call;
  const RowwiseStart start;
  const int number, thread, first, length, count;  // of the leaf; the thread's first position; elements of row and leaf
  F x[kChunks][2], weight[kChunks][2], bias[kChunks][2];

  // All loads are on their way before the first of them is waited for.
  __device__ __forceinline__ explicit SpreadLeaf(const RowwiseKernelCall& call)
      : call(call),
        start(call.start(blockIdx.x)),
        number(int(threadIdx.x) / kThreads),
        thread(int(threadIdx.x) % kThreads),
        first(number * kLeaf + 2 * thread),
        length(int(call.length)),
        count(length - number * kLeaf < kLeaf ? length - number * kLeaf : kLeaf) {
    Twos<E> own, more;
    load(static_cast<const E*>(call.in[0]) + start.in[0], own);
    if constexpr (Op::kAdds) load(static_cast<const E*>(call.in[1]) + start.in[1], more);
    if (call.weight_dtype == Dtype::F32) sides<F>();
    else sides<E>();
    values(own, x);
    if constexpr (Op::kAdds) {
      F added[kChunks][2];
      values(more, added);
      store(call.sum, [&](int c, int i) { return x[c][i] + added[c][i]; }, own);
      values(own, x);
    }
  }
  __device__ __forceinline__ bool is_there(int c) const { return first + c * kResidues < length; }
  // Of chunks that are not there nothing is read, nor of their values.
  template <class W> __device__ __forceinline__ void load(const W* from, Twos<W>& v) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
      if (is_there(c)) v[c] = *reinterpret_cast<const Packed<W, 2>*>(from + first + c * kResidues);
  }
  template <class W> __device__ __forceinline__ static void values(const Twos<W>& v, F (&to)[kChunks][2]) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int i = 0; i < 2; ++i) to[c][i] = convert<F>(v[c].item[i]);
  }
  __device__ __forceinline__ static void fill(F value, F (&to)[kChunks][2]) {
#pragma unroll
    for (auto& two : to) two[0] = two[1] = value;
  }
  template <class W> __device__ __forceinline__ void sides() {
    Twos<W> w, b;
    if (call.weight) load(static_cast<const W*>(call.weight), w);
    if (Op::kBiases && call.bias) load(static_cast<const W*>(call.bias), b);
    if (call.weight) values(w, weight);
    else fill(F(1), weight);
    if (Op::kBiases && call.bias) values(b, bias);
    else fill(F(-0.0), bias);
  }
  // What value(chunk, i) says, rounded; `rounded` gets it, too.
  template <class Value> __device__ __forceinline__ void store(void* out, Value value, Twos<E>& rounded) const {
    E* const to = static_cast<E*>(out) + start.out + first;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      rounded[c] = rounded_two<E>(value(c, 0), value(c, 1));
      if (is_there(c)) *reinterpret_cast<Packed<E, 2>*>(to + c * kResidues) = rounded[c];
    }
  }
  // The leaf's elements in memory.
  __device__ __forceinline__ LeafElements<E> elements() const {
    const E* const row =
        Op::kAdds ? static_cast<const E*>(call.sum) + start.out : static_cast<const E*>(call.in[0]) + start.in[0];
    return {row + number * kLeaf, 1, count};
  }
  // The canonical sums over the leaf of what step(sums, element) adds, for each of its threads, by way of `warps`.
  template <class Step> __device__ __forceinline__ void sum(Warps& warps, F (&sums)[kSums], Step step) const {
    F acc[2][kSums];
#pragma unroll
    for (auto& each : acc)
#pragma unroll
      for (F& a : each) a = F(-0.0);
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (is_there(c)) step(acc[i], x[c][i]);
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
      F sum = acc[0][s] + acc[1][s];
#pragma unroll
      for (int d = 1; d < kLanes; d *= 2) sum = sum + shuffle_across(sum, d);
      if (lane_id() == 0) warps.sum[thread / kLanes][s] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int s = 0; s < kSums; ++s) sums[s] = (warps.sum[0][s] + warps.sum[1][s]) + (warps.sum[2][s] + warps.sum[3][s]);
  }
};

template <class Op, class E>
__global__ void __launch_bounds__(held_rows::kSpreadThreads* held_rows::kSpreadLeaves)
    spread_held_rows_kernel(TR_GRID_CONSTANT RowwiseKernelCall call, TR_GRID_CONSTANT HeldRowsShape shape) {
  using F = float;
  using Leaf = SpreadLeaf<Op, E>;
  using State = typename Op::State;
  __shared__ typename Leaf::Warps warps[2][held_rows::kSpreadLeaves];
  __shared__ State states[held_rows::kSpreadLeaves];
  const Leaf leaf(call);
  const auto given = Op::given(call.options, call.memory, leaf.start.value);
  F sums[Leaf::kSums], found = F(0);
  if constexpr (Op::kFirst == First::Sum) {
    leaf.sum(warps[0][leaf.number], sums, [](F* acc, F v) { acc[0] = acc[0] + v; });
    found = sums[0];
  }
  const auto seen = Op::seen(found, leaf.count, given);
  leaf.sum(warps[1][leaf.number], sums, [&](F* acc, F v) { Op::step(acc, &v, F(1), seen, given); });
  if (leaf.thread == 0) {
    State& own = states[leaf.number];
    own = Op::state(found, sums, leaf.count);
    if constexpr (Op::kScales) {
      const F scale = Op::rescale(sums, seen);
      if (scale != F(1)) {
        TR_RARE_PATH;
        scaled_leaf<Op>(own, scale, leaf.elements());
      }
    }
  }
  __syncthreads();
  const State total = lanes_tree<Op>(shape.leaves, [&](int i) { return states[i]; });
  const auto row = Op::row(total, call.length, given, call.options, [](int64_t) { return F(0); });
  if (threadIdx.x == 0) Op::write(row, call.memory, leaf.start.value);
  typename Leaf::template Twos<E> rounded;
  leaf.store(
      call.out,
      [&](int c, int i) {
        return Op::map(&leaf.x[c][i], leaf.weight[c][i], Op::kBiases ? leaf.bias[c][i] : F(-0.0), 0, row);
      },
      rounded);
}

}  // namespace torchreduce::gpu
