// Functions of segments along a dim, on a GPU: which lanes have which segments.
//
// An item is a row of a segment. A team of neighbouring lanes has one, eight elements a lane, if that is enough; else
// the whole warp has it, in a launch of its own, which has more registers; and of long ones the whole block, after its
// warps.
#pragma once
#include "numerics/order.h"
#include "plan/plan.h"
#include "plan/plan_tools.h"
#include "plan/segment_offsets.h"

namespace torchreduce {

struct SegmentTeams {
  int lanes = 32;      // of a team: 8, 16 or 32
  int items = 8;       // of a block, at most one a team
  int of_warp = 2048;  // elements of an item that a warp takes alone, at most
  int64_t blocks = 1;
};
inline int64_t workspace_bytes(const SegmentTeams&) { return 0; }

namespace segment_teams {

using namespace plans;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kOfLane = 8;                  // elements
constexpr int kMostLeaves = 8;              // of an item that a warp takes alone
constexpr int64_t kClearedByThread = 64;    // elements of no segment, if there are none else
constexpr int64_t kMostClearing = 1 << 10;  // blocks that are started for those

// `rows`: of each segment. Segments half as long again as the mean still have a team. Where items are few, blocks have
// fewer of them, and share what is longer than a leaf.
inline SegmentTeams plan(const SegmentOffsets& of, int64_t rows, const DeviceFacts& device) {
  SegmentTeams teams;
  const int64_t mean = of.length / std::max<int64_t>(1, of.count), items = of.count * rows;
  teams.lanes = int(power_of_two(std::min<int64_t>(32, std::max<int64_t>(8, ceil_div(3 * mean, 2 * kOfLane)))));
  const PlanOverride forced = forced_plan();
  take(forced.lanes, teams.lanes, 32, "lanes");
  teams.lanes = std::max(8, teams.lanes);
  const int64_t blocks = 2 * std::max(1, device.multiprocessors), most = kThreads / teams.lanes;
  teams.items = int(std::min(most, std::max<int64_t>(1, ceil_div(items, blocks))));
  teams.of_warp = teams.items < most ? kLeaf : kMostLeaves * kLeaf;
  const int64_t clearing = std::min(kMostClearing, ceil_div(of.length * rows, kClearedByThread * kThreads));
  teams.blocks = std::max(clearing, ceil_div(items, teams.items));
  check_launch(teams.blocks, 0, kPortableShared);
  return teams;
}

// Whether a segment may have more elements than a team takes.
inline bool walks(const SegmentOffsets& of, const SegmentTeams& teams) { return of.length > kOfLane * teams.lanes; }

}  // namespace segment_teams
}  // namespace torchreduce
