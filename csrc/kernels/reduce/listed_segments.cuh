// What kernels of segments have in common: where a segment is, its result, and segments that are too long for one team.
//
// Those are listed: leaves by what is left of them, and segments of several leaves, whose values lie in the workspace
// until fold_segment_leaves() makes one of them.
#pragma once
#include "granule.cuh"
#include "kernels/common/collective.cuh"
#include "segments.h"

namespace torchreduce::gpu {

// Segment number outer * segments + segment, or run: where its rows are, and which row of the output it is.
struct SegmentAt { int64_t outer, begin, rows, out; };
__device__ __forceinline__ int64_t segment_count(const SegmentReduction& call) {
  return call.runs ? int64_t(*global(call.run_count)) : call.outer * call.segments;
}
__device__ __forceinline__ SegmentAt segment_at(const SegmentReduction& call, int64_t numbered) {
  if (call.runs) {
    const SegmentRun run = global(call.runs)[numbered];
    return {0, run.begin, run.end - run.begin, run.number};
  }
  const int64_t outer = call.outer == 1 ? 0 : numbered / call.segments, segment = numbered - outer * call.segments;
  const void* const offsets = global(call.offsets);
  const int64_t begin = offset_within(offsets, call.offsets_dtype, segment, call.rows);
  const int64_t end = offset_within(offsets, call.offsets_dtype, segment + 1, call.rows);
  return {outer, begin, end > begin ? end - begin : 0, numbered};
}
__device__ __forceinline__ int64_t row_at(const SegmentReduction& call, int64_t place) {
  if (call.short_order) return global(call.short_order)[place];
  if (!call.order) return place;
  const int64_t row = global(call.order)[place];
  return uint64_t(row) < uint64_t(call.rows) ? row : 0;  // an order that was made elsewhere may hold anything
}

// The op that finishes what Op begins, and keeps it between kernels: of extremes the one of 64-bit keys.
template <class Op> struct FinishingOf;
template <class E> struct FinishingOf<Sum<E>> { using Op = Sum<accumulator_t<E>>; };
template <class E> struct FinishingOf<Extreme<E>> { using Op = Extreme<int64_t>; };
template <class Op> using Finishing = typename FinishingOf<Op>::Op;

template <class Op>
__device__ __forceinline__ void finish_one(const SegmentReduction& call, const typename Op::Near& near, int64_t rows,
                                           int64_t offset) {
  using Last = Finishing<Op>;
  finish_segment<Last>(call, typename Last::Acc(Op::far(near, 0)), rows, offset, [](int64_t) { return int64_t(0); });
}

// Neighbouring columns, each by itself.
template <class Op, int V> struct Columns {
  using Near = typename Op::Near;
  static constexpr int kWords = V * int(sizeof(typename Op::Element)) / 4 + (V * sizeof(typename Op::Element) < 4);
  Near of[V];
  __device__ __forceinline__ static Columns absent() {
    Columns x;
#pragma unroll
    for (int c = 0; c < V; ++c) x.of[c] = Op::near_absent();
    return x;
  }
  // Of elements as they lie in memory.
  __device__ __forceinline__ static Columns load(const OpOptions& options, const uint32_t (&words)[kWords]) {
    Columns x;
    Op{options}.near_all(words, 0, x.of);
    return x;
  }
  __device__ __forceinline__ static Columns combine(const Columns& a, const Columns& b) {
    Columns both;
#pragma unroll
    for (int c = 0; c < V; ++c) both.of[c] = Op::combine(a.of[c], b.of[c]);
    return both;
  }
};
// The tree over neighbours.
template <class Op, int V, int N> __device__ __forceinline__ Columns<Op, V> neighbours_tree(Columns<Op, V> (&x)[N]) {
#pragma unroll
  for (int d = 1; d < N; d *= 2)
#pragma unroll
    for (int i = 0; i < N; i += 2 * d) x[i] = Columns<Op, V>::combine(x[i], x[i + d]);
  return x[0];
}

template <class Op, int V> using SegmentWords = Packed<uint32_t, Columns<Op, V>::kWords>;

template <class Op, int V>
__device__ __forceinline__ Columns<Op, V> load_columns(const SegmentReduction& call, bool wanted, int64_t offset) {
  using E = typename Op::Element;
  const E* const from = static_cast<const E*>(call.in.data) + offset;
  SegmentWords<Op, V> words{};
  if (wanted) {
    if constexpr (V == 1) {
      const E e = *global(from);
      memcpy(&words, &e, sizeof e);
    } else {
      words = load_wide(reinterpret_cast<const SegmentWords<Op, V>*>(from));
    }
  }
  return wanted ? Columns<Op, V>::load(call.options, words.item) : Columns<Op, V>::absent();
}
// How many rows a team takes, at most, of a segment of packed_segments.cuh, whose block has so many in all.
__device__ __forceinline__ int most_packed_rows(const SegmentReduction& call, int64_t all) {
  const int room = segments::staged_rows(size_of(call.in.dtype), int(call.inner));
  return all > int64_t(segments::kMostFills) * room ? segments::kShort : room < kLeaf ? room : kLeaf;
}
// The same of segment number s; packed: how many segments a block has there, or 0: then `most`, whatever s is.
__device__ __forceinline__ int most_rows(const SegmentReduction& call, int packed, int most, int64_t s) {
  if (!packed) return most;
  const int64_t outer = s / call.segments, first = (s - outer * call.segments) / packed * packed;
  return most_packed_rows(call, call.begin(segments::least(first + packed, call.segments)) - call.begin(first));
}

// Lists the segments of a warp's lanes that are `long`, of so many rows each. Offsets that fall may have more of them
// than there is room for: then nothing is listed (all_listed), and the last kernel takes them all.
__device__ __forceinline__ void list_segments(const SegmentReduction& call, const segments::Work& work, bool is_long,
                                              int64_t numbered, int64_t rows) {
  if (!ballot(is_long)) return;
  const int lane = lane_id();
  // Where this lane's entries of a list begin; the last lane reserves those of all.
  const auto reserved = [&](int list, int64_t mine) {
    int64_t upto = mine;
#pragma unroll
    for (int d = 1; d < kLanes; d *= 2) {
      const int64_t before = shuffle(upto, (lane - d) & (kLanes - 1));
      upto += lane >= d ? before : 0;
    }
    uint64_t first = 0;
    if (lane == kLanes - 1)
      first = atomicAdd(reinterpret_cast<unsigned long long*>(global(work.counts + list)), uint64_t(upto));
    return int64_t(shuffle(first, kLanes - 1)) + upto - mine;
  };
  const int64_t leaves = is_long ? (rows + kLeaf - 1) / kLeaf : 0, several = leaves > 1;
  const int64_t at = reserved(0, leaves);
  const bool many = leaves > segments::kFewLeaves;
  int64_t one = 0, slot = -1;
  if (ballot(several)) {
    one = reserved(1, several && !many);
    slot = reserved(2, several ? leaves : 0);
  }
  if (ballot(many)) {
    const int64_t number = reserved(3, many);
    if (many) one = segments::most_several(call) - 1 - number;
  }
  const int64_t most = segments::most_leaves(call);
#pragma unroll 1
  for (int64_t k = 0; k < leaves && at + k < most; ++k)
    global(work.leaves)[at + k] = {numbered, k * kLeaf, several ? slot + k : -1};
  if (several && one >= 0 && one < segments::most_several(call)) global(work.several)[one] = {numbered, slot};
}
__device__ __forceinline__ bool all_listed(const SegmentReduction& call, const segments::Work& work) {
  const uint64_t* const counts = global(work.counts);
  return int64_t(counts[0]) <= segments::most_leaves(call) &&
         int64_t(counts[1] + counts[3]) <= segments::most_several(call) &&
         int64_t(counts[2]) <= segments::most_slots(call);
}
__device__ __forceinline__ int64_t listed_leaves(const SegmentReduction& call, const segments::Work& work) {
  return all_listed(call, work) ? int64_t(global(work.counts)[0]) : 0;
}
// The value of a listed leaf: of a segment's only one, or of one among others.
template <class Op>
__device__ __forceinline__ void store_leaf(const SegmentReduction& call, const segments::Work& work,
                                           const segments::Leaf& leaf, const SegmentAt& of, int64_t column,
                                           const typename Op::Near& value) {
  using Kept = typename Finishing<Op>::Acc;
  if (leaf.slot < 0) return finish_one<Op>(call, value, of.rows, of.out * call.inner + column);
  global(static_cast<Kept*>(work.sums))[leaf.slot * call.inner + column] = Kept(Op::far(value, 0));
}

// A column of a segment, by a warp, element by element.
template <class Op>
__device__ __forceinline__ void reduce_alone(const SegmentReduction& call, const SegmentAt& of, int64_t column) {
  using Acc = typename Op::Acc;
  const auto join = [](const Acc& a, const Acc& b) { return Op::combine(a, b); };
  TreeStack<Acc, 24> leaves;
#pragma unroll 1
  for (int64_t first = 0; first < of.rows; first += kLeaf) {
    const int64_t end = segments::least(of.rows, first + kLeaf);
    TreeStack<Acc, 4> parts;  // of neighbouring residues, one a lane
#pragma unroll 1
    for (int64_t r = first; r < first + kResidues; r += kLanes) {
      Acc value = Op::absent();
#pragma unroll 1
      for (int64_t i = r + lane_id(); i < end; i += kResidues) {
        const int64_t at = of.outer * call.outer_stride + row_at(call, of.begin + i) * call.row_stride + column;
        value = Op::combine(value, Op{call.options}.load(load_element<Op>(call, at), 0));
      }
#pragma unroll 1
      for (int d = 1; d < kLanes; d *= 2) value = Op::combine(value, shuffle(value, lane_id() ^ d));
      parts.push(value, join);
    }
    leaves.push(parts.total(Op::absent(), join), join);
  }
  if (lane_id() == 0) finish_one<Op>(call, leaves.total(Op::absent(), join), of.rows, of.out * call.inner + column);
}

// The trees over the leaves of segments that have several; or, where not all were listed, all that are long. Op:
// Sum<float>, Sum<double> or Extreme<int64_t>. A thread has a column of a segment of few leaves. Of many leaves a block
// has a segment and a column a lane, and then others; each of its warps has a part of the leaves. Shared memory: the
// values of these parts, [warp][lane].
template <class Op>
__global__ void __launch_bounds__(segments::kThreads)
    fold_segment_leaves(TR_GRID_CONSTANT SegmentReduction call, TR_GRID_CONSTANT segments::Work work, int packed,
                        int most) {
  using namespace segments;
  using Near = typename Op::Near;
  using Column = Columns<Op, 1>;
  constexpr int kAtOnce = 8, kParts = kThreads / kTeam;
  __shared__ Near values[kParts][kTeam];
  const int t = int(threadIdx.x), lane = t % kTeam, part = t / kTeam;
  if (!all_listed(call, work)) {
#pragma unroll 1
    for (int64_t s = int64_t(blockIdx.x) * kParts + part; s < segment_count(call); s += int64_t(gridDim.x) * kParts) {
      const SegmentAt of = segment_at(call, s);
      if (of.rows <= most_rows(call, packed, most, s)) continue;
#pragma unroll 1
      for (int64_t column = 0; column < call.inner; ++column) reduce_alone<Op>(call, of, column);
    }
    return;
  }
  const auto join = [](const Column& a, const Column& b) { return Column::combine(a, b); };
  const auto* const kept = global(static_cast<const typename Op::Acc*>(work.sums));
  // The tree over the leaves from `first` to `end` of a segment whose leaves are from `slot` on.
  const auto folded = [&](int64_t slot, int64_t first, int64_t end, int64_t column) {
    TreeStack<Column, 24> tree;
#pragma unroll 1
    for (int64_t leaf = first; leaf < end; leaf += kAtOnce) {
      Column x[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k)
        x[k].of[0] = leaf + k < end ? kept[(slot + leaf + k) * call.inner + column] : Op::near_absent();
      tree.push(neighbours_tree(x), join);
    }
    return tree.total(Column::absent(), join);
  };
  const int64_t few = int64_t(global(work.counts)[1]) * call.inner;
#pragma unroll 1
  for (int64_t i = int64_t(blockIdx.x) * kThreads + t; i < few; i += int64_t(gridDim.x) * kThreads) {
    const Several listed = global(work.several)[i / call.inner];
    const SegmentAt of = segment_at(call, listed.segment);
    const int64_t column = i % call.inner;
    const Column all = folded(listed.slot, 0, (of.rows + kLeaf - 1) / kLeaf, column);
    finish_one<Op>(call, all.of[0], of.rows, of.out * call.inner + column);
  }
  const int64_t tiles = (call.inner + kTeam - 1) / kTeam, units = int64_t(global(work.counts)[3]) * tiles;
#pragma unroll 1
  for (int64_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const Several listed = global(work.several)[most_several(call) - 1 - unit / tiles];
    const int64_t column = unit % tiles * kTeam + lane;
    const SegmentAt of = segment_at(call, listed.segment);
    const int64_t leaves = (of.rows + kLeaf - 1) / kLeaf;
    int64_t each = kAtOnce;  // leaves of a part, a power of two
    while (each * kParts < leaves) each *= 2;
    const int64_t first = least(part * each, leaves), end = least(first + each, leaves);
    values[part][lane] = folded(listed.slot, first, column < call.inner ? end : first, column).of[0];
    __syncthreads();
    if (part == 0 && column < call.inner) {
      Column x[kParts];
#pragma unroll
      for (int k = 0; k < kParts; ++k) x[k].of[0] = values[k][lane];
      finish_one<Op>(call, neighbours_tree(x).of[0], of.rows, of.out * call.inner + column);
    }
    __syncthreads();
  }
}

}  // namespace torchreduce::gpu
