// Row-wise ops by short segments whose elements are neighbours.
//
// Serves what held_segments.cuh does. A warp has segments of its own. A team of its lanes has one of at most eight
// elements a lane, in registers: lane t has t + kTeam * k. Longer ones are listed, to be walked. No barrier of the
// block.
#pragma once
#include "walked_segments.cuh"

namespace torchreduce::gpu {

template <class Op, int kTeam>
__global__ void TR_BLOCKS_BOUND(segment_runs::kThreads, sizeof(typename FloatOf<Op>::type) == 4 ? 3 : 2)
    rowwise_segment_teams(TR_GRID_CONSTANT RowwiseSegments call, TR_GRID_CONSTANT SegmentRuns runs, SegmentList list) {
  using F = typename FloatOf<Op>::type;
  using Rows = WalkedRows<Op>;
  constexpr int kTeams = kLanes / kTeam;
  clear_others<Op>(call);
  const SegmentsOfWarp mine(call.of, call.layout, runs);
  const Rows rows{call, nullptr};
  const int team = unsigned(lane_id()) / kTeam, t = unsigned(lane_id()) % kTeam;
#pragma unroll 1
  for (int64_t first = mine.first; first < mine.last; first += kTeams) {
    const int64_t s = first + team < mine.last ? first + team : mine.last - 1;
    const SegmentRow at = segment_of(call.of, s, mine.row);
    const bool there = first + team < mine.last, wanted = there && at.length <= kTeam * kGroup;
    list_segments(runs, list, there && !wanted && t == 0 && mine.row == 0, true, s);
    const int n = wanted ? int(at.length) : 0, count = n > t ? (n - t + kTeam - 1) / kTeam : 0;
    const auto item = rows.item_of({s, mine.row, at.begin, n});
    typename Rows::Eight x = {};
    rows.load(item, t, kTeam, count, x);
    F found = -kInfinity<F>;
    if constexpr (Op::kFirst == First::Greatest) found = warp_greatest<kTeam>(Rows::greatest_of(found, x, count));
    const auto seen = Op::seen(found, n, item.given);
    typename Op::State state = Op::none();
    if constexpr (Op::kSums > 0) {
      F sums[kGroup];
#pragma unroll
      for (F& sum : sums) sum = F(-0.0);
      Rows::add(x, count, seen, item.given, sums);
      const F total[1] = {residues_sum<kTeam>(sums)};
      if (n > 0) state = Op::state(found, total, n);
    }
    if (!wanted) continue;
    const auto row = rows.row_at(item, state);
    if (t == 0) Op::write(row, memory_of(call), item.value);
    if constexpr (Op::kMaps) rows.map(item, t, kTeam, count, x, seen, Op::at(row, state));
  }
}

}  // namespace torchreduce::gpu
