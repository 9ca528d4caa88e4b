// Sums and extremes of one column by segments, of rows next to each other (segments.h).
//
// Serves: floats of 2, 4 and 8 bytes, no order. A warp has some neighbouring segments, 32 at a time, whose offsets its
// lanes load. A team of lanes has a segment, and loads its elements side by side, kAhead segments at once; the tree is
// over lanes first, and each lane gets the result of its own segment. Those that are longer than a team has room for
// the warp adds up by itself. Long ones are listed. No shared memory.
#pragma once
#include "segment_columns.cuh"

namespace torchreduce::gpu {

template <class Op>
__device__ __forceinline__ typename Op::Near lone_value(const Op& op, const typename Op::Element& element) {
  uint32_t words[Columns<Op, 1>::kWords] = {};
  memcpy(words, &element, sizeof element);
  return Columns<Op, 1>::load(op.options, words).of[0];
}

// Of kEach elements a lane of each segment, of which kCount are on their way.
template <int kEach, int kCount> struct LoneTeam {
  static constexpr int kAll = kEach * kCount;
  // The place of element k, of lanes side by side, of segment b: what lanes halve first are segments, then elements
  // that are far from each other.
  static constexpr int place(int b, int k) {
    int back = 0;
    for (int d = 1, to = kEach / 2; d < kEach; d *= 2, to /= 2) back += k & d ? to : 0;
    return b + kCount * back;
  }
  // Elements of segment b, `lanes` apart.
  template <class E> __device__ __forceinline__ static void load(const E* from, int b, int lanes, E (&x)[kAll]) {
#pragma unroll
    for (int k = 0; k < kEach; ++k) x[place(b, k)] = from[k * lanes];
  }
  // The same of those that it has.
  template <class E>
  __device__ __forceinline__ static void load(const E* from, int b, int lanes, int rows, E (&x)[kAll]) {
#pragma unroll
    for (int k = 0; k < kEach; ++k) x[place(b, k)] = k * lanes < rows ? from[k * lanes] : E{};
  }
  // Their values; those beyond its `rows` are absent.
  template <class Op>
  __device__ __forceinline__ static void values(const Op& op, const typename Op::Element (&x)[kAll], int b, int lanes,
                                                int rows, typename Op::Near (&value)[kAll]) {
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const typename Op::Near one = lone_value(op, x[place(b, k)]);
      value[place(b, k)] = k * lanes < rows ? one : Op::near_absent();
    }
  }
  // The tree over a team's elements: lane t gets that of segment t % kCount.
  template <int kTeam, class Op>
  __device__ __forceinline__ static typename Op::Near tree(typename Op::Near (&value)[kAll]) {
    constexpr int kHalved = kAll < kTeam ? kAll : kTeam;
    const auto join = [](const auto& a, const auto& b) { return Op::combine(a, b); };
    transposing_levels(value, kTeam, join);
    static_assert(kAll <= 2 * kTeam, "a lane has more than two of what is left");
    typename Op::Near all = kAll > kTeam ? join(value[0], value[1]) : value[0];
#pragma unroll
    for (int d = kAll; d < kTeam; d *= 2) all = join(all, shuffle(all, lane_id() ^ d));
#pragma unroll
    for (int d = kHalved / 2; d >= kCount; d /= 2) all = join(all, shuffle(all, lane_id() ^ d));
    return all;
  }
};

// A segment of at most a leaf, by a warp; in each of its lanes.
template <class Op>
__device__ __forceinline__ typename Op::Near lone_leaf(const Op& op, const typename Op::Element* from, int rows) {
  using Team = LoneTeam<kResidues / kLanes, 1>;
  typename Op::Element x[Team::kAll];
  typename Op::Near value[Team::kAll], next[Team::kAll];
  const int lane = lane_id();
#pragma unroll
  for (int i = 0; i < Team::kAll; ++i) value[i] = Op::near_absent();
#pragma unroll 1
  for (int first = 0; first < rows; first += kResidues) {
    const int left = rows - first - lane;
    Team::load(from + first + lane, 0, kLanes, left, x);
    Team::values(op, x, 0, kLanes, left, next);
#pragma unroll
    for (int i = 0; i < Team::kAll; ++i) value[i] = Op::combine(value[i], next[i]);
  }
  return Team::template tree<kLanes, Op>(value);
}

template <class Op, int kTeam, int kEach>
__global__ void TR_BLOCKS_BOUND(segments::kThreads, 4)
    reduce_lone_segments(TR_GRID_CONSTANT SegmentReduction call, int each, int most,
                         TR_GRID_CONSTANT segments::Work work) {
  using namespace segments;
  using E = typename Op::Element;
  constexpr int kTeams = kLanes / kTeam, kRoom = kTeam * kEach, kWarps = kThreads / kLanes;
  constexpr int kAhead = (sizeof(E) == 8 ? 8 : 16) / kEach, kRound = kTeams * kAhead;
  using Team = LoneTeam<kEach, kAhead>;
  const Op op{call.options};
  const int lane = lane_id(), team = unsigned(lane) / kTeam, t = unsigned(lane) % kTeam;
  const int64_t chunks = (call.segments + each - 1) / each;
  const int64_t chunk = int64_t(blockIdx.x) * kWarps + int(threadIdx.x) / kLanes;
  const int64_t outer = call.outer == 1 ? 0 : chunk / chunks, from = (chunk - outer * chunks) * each;
  if (outer >= call.outer) return;
  const E* const x = global(static_cast<const E*>(call.in.data)) + outer * call.outer_stride;
  const void* const offsets = global(call.offsets);
#pragma unroll 1
  for (int64_t first = from; first < from + each && first < call.segments; first += kLanes) {
    const int count = int(least(least(kLanes, from + each - first), call.segments - first));
    int64_t begin = 0, length = 0;
    if (lane < count) {
      begin = offset_within(offsets, call.offsets_dtype, first + lane, call.rows);
      length = offset_within(offsets, call.offsets_dtype, first + lane + 1, call.rows) - begin;
    }
    list_segments(call, work, length > most, outer * call.segments + first + lane, length);
    // Where it begins, from the first one on. Those that a team has no room for are left, and those at the very end:
    // a team reads as much as it has room for.
    const int64_t last = call.rows - kRoom, base = least(shuffle(begin, 0), last), apart = begin - base;
    const int rows = length < 0 ? 0 : length > most ? -1 : int(length);
    const bool is_left = rows > 0 && (rows > kRoom || begin > last || int(apart) != apart);
    const int held = is_left || rows < 0 ? 0 : rows, near = held ? int(apart) : 0;
    typename Op::Near value = Op::near_absent();
    const int from_lane = unsigned(lane) % kTeams * kTeam + unsigned(lane) % kRound / kTeams;
    const int end = ballot(held) ? count : 0;
#pragma unroll 1
    for (int i = 0; i < end; i += kRound) {
      E some[Team::kAll];
      typename Op::Near values[Team::kAll];
      int n[kAhead];
#pragma unroll
      for (int b = 0; b < kAhead; ++b) {
        const int of = i + b * kTeams + team;
        Team::load(x + base + t + shuffle(near, of), b, kTeam, some);
        n[b] = shuffle(held, of) - t;
      }
#pragma unroll
      for (int b = 0; b < kAhead; ++b) Team::values(op, some, b, kTeam, n[b], values);
      const typename Op::Near all = Team::template tree<kTeam, Op>(values);
      const typename Op::Near mine = shuffle(all, from_lane);
      if (unsigned(lane - i) < unsigned(kRound)) value = mine;
    }
#pragma unroll 1
    for (uint32_t left = ballot(is_left); left; left &= left - 1) {
      const int of = bits_set(~left & (left - 1));
      const typename Op::Near all = lone_leaf(op, x + shuffle(begin, of), shuffle(rows, of));
      if (lane == of) value = all;
    }
    if (lane >= count || rows < 0 || (rows == 0 && call.finish.onto != Onto::New)) continue;
    Columns<Op, 1> one;
    one.of[0] = value;
    store_columns<Op, 1>(call, outer * call.segments + first + lane, one, rows);
  }
}

}  // namespace torchreduce::gpu
