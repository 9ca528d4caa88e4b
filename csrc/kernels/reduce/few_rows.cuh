// Reductions of few rows of whole granules (few_rows.h).
//
// Serves: types that are read as they are, whose rows begin and end with granules; not products of floats.
// Shared memory: a place for the value of each warp, of a cluster's first block for those of all its blocks; 4 KiB.
// A warp has one unit of a row, 8 granules a lane, all on their way at once: 256 neighbours, or, where order shows in
// the bits, of a leaf all granules of 32 lanes' residues. The values of a row's warps meet in the block, or in the
// first block of the row's cluster; else each block leaves one, and the last of them combines these.
#pragma once
#include "few_rows.h"
#include "granule.cuh"
#include "kernels/common/cluster.cuh"

namespace torchreduce::gpu {

template <class Op> struct FewRows {
  using E = typename Op::Element;
  using Acc = typename Op::Acc;
  using P = Part<Op, int32_t>;
  using Value = typename P::Value;  // an accumulator, or what was found
  static constexpr int kPer = kPerGranule<E>, kGranules = few_rows::kGranules;
  static constexpr int kParts = few_rows::parts_of_leaf(kPer, Op::kAnyOrder), kStep = kParts * kLanes;

  __device__ static __forceinline__ Value absent(const Op& op) {
    if constexpr (Op::kIndexed) return {op.absent().key, INT32_MAX};
    else return op.absent();
  }
  __device__ static __forceinline__ Value join(const Op& op, const Value& a, const Value& b) {
    return P::join(op, a, b);
  }
  // The tree over a warp's values; each lane gets it.
  __device__ static __forceinline__ Value warp_value(const Op& op, const Value& value) {
    if constexpr (Op::kIndexed) {  // the first of the greatest
      const auto key = warp_most(value.key);
      return {key, ~warp_most(value.key == key ? ~value.at : INT32_MIN)};
    } else {
      Value one[1] = {value};
      return transposing_tree(one, kLanes, [&](const Value& a, const Value& b) { return join(op, a, b); });
    }
  }
  // The same over `count` values, at most kMostValues, of which read(i) is number i.
  template <class Read> __device__ static __forceinline__ Value tree(const Op& op, int count, Read read) {
    constexpr int kMost = few_rows::kMostValues / kLanes;
    int each = 1;
    while (each * kLanes < count) each *= 2;
    const int first = lane_id() * each;
    Value v[kMost];
    v[0] = first < count ? read(first) : absent(op);
    if (each > 1) {
#pragma unroll
      for (int k = 1; k < kMost; ++k) v[k] = k < each && first + k < count ? read(first + k) : absent(op);
#pragma unroll
      for (int d = 1; d < kMost; d *= 2)
#pragma unroll
        for (int k = 0; k < kMost; k += 2 * d) v[k] = join(op, v[k], v[k + d]);
    }
    return warp_value(op, v[0]);
  }
  // Of unit number `unit` of a row, by a warp.
  __device__ static __forceinline__ Value unit_value(const Op& op, const Granule* row, int granules, int unit) {
    const int first = unit / kParts * (kGranules * kStep) + unit % kParts * kLanes + lane_id();
    const Granule* const from = row + first;
    auto there = [&](int j) { return first + j * kStep < granules; };
    Granule g[kGranules];
#pragma unroll
    for (int j = 0; j < kGranules; ++j) {
      g[j] = absent_granule(op);
      load_if(there(j), from + j * kStep, g[j]);
    }
    if constexpr (Op::kAnyOrder) {
      auto counts = [&](int j) { return kHasAbsent<Op> || there(j); };
      P part = counts(0) ? P(op, g[0], first * kPer) : P(op, first * kPer);
#pragma unroll
      for (int j = 1; j < kGranules; ++j)
        if (counts(j)) part.take(op, g[j], (first + j * kStep) * kPer);
      return warp_value(op, part.value(op));
    } else {
      Acc acc[kPer];
#pragma unroll
      for (int i = 0; i < kPer; ++i) acc[i] = op.absent();
#pragma unroll
      for (int j = 0; j < kGranules; ++j) {
        E x[kPer];
        elements_of(g[j], x);
        steps<kPer>(op, acc, [&](int i) { return x[i]; });
      }
#pragma unroll
      for (int d = 1; d < kPer; d *= 2)
#pragma unroll
        for (int i = 0; i < kPer; i += 2 * d) acc[i] = join(op, acc[i], acc[i + d]);
      return warp_value(op, acc[0]);
    }
  }
};

template <class Op>
__global__ void TR_BLOCKS_BOUND(few_rows::kMostWarps* kLanes, 1)
    reduce_few_rows(TR_GRID_CONSTANT FewRowsCall call, TR_GRID_CONSTANT FewRowsShape shape,
                    typename FewRows<Op>::Value* partials, uint32_t* tickets) {
  using F = FewRows<Op>;
  using Value = typename F::Value;
  struct alignas(8) Slot { Value value; };
  __shared__ Slot slot[few_rows::kMostValues];
  const Op op{call.options};
  const int warp = int(threadIdx.x) / kLanes, warps = int(blockDim.x) / kLanes, splits = int(shape.splits);
  const int row = splits == 1 ? int(blockIdx.x) : int(blockIdx.x / unsigned(splits));
  const int split = int(blockIdx.x) - row * splits, unit = split * warps + warp;
  const char* const x = static_cast<const char*>(call.in) + row * call.in_pitch;
#ifdef TR_CLUSTERS
  __shared__ Barrier arrived;
  if (shape.cluster > 1) {
    if (split == 0 && threadIdx.x == 0) {
      barrier_init(&arrived, 1);
      barriers_made();
      barrier_expect(&arrived, uint32_t(splits * warps * int(sizeof(Slot))));
    }
    cluster_arrive();
  }
#endif
  Value value = F::unit_value(op, reinterpret_cast<const Granule*>(x), call.granules, unit);
  auto in_slot = [&](int i) { return slot[i].value; };
  bool met = false;  // all of a row
#ifdef TR_CLUSTERS
  if (shape.cluster > 1) {
    cluster_wait();
    if (lane_id() == 0) put(&slot[unit], &arrived, Slot{value}, 0);
    if (unit != 0) return;
    barrier_wait(&arrived, 0);
    value = F::tree(op, splits * warps, in_slot);
    met = true;
  }
#endif
  if (!met && warps > 1) {
    if (lane_id() == 0) slot[warp].value = value;
    __syncthreads();
    if (warp > 0) return;
    value = F::tree(op, warps, in_slot);
  }
  if (!met && splits > 1) {
    if (lane_id() == 0) partials[blockIdx.x] = value;
    if (!last_warp(tickets + row, splits)) return;
    value = F::tree(op, splits, [&](int i) { return partials[int64_t(row) * splits + i]; });
  }
  if (lane_id() > 0) return;
  const int64_t out = row * call.out_pitch;
  if constexpr (Op::kIndexed)
    finish_plain_row(op, call.out, reinterpret_cast<const typename Op::Element*>(x), out, {value.key, value.at});
  else finish_plain_row<Op>(op, call.out, nullptr, out, value);
}

}  // namespace torchreduce::gpu
