// Functions of segments along a dim, on a GPU: which blocks have which segments.
//
// A block has neighbouring segments, of one row or of a few that lie side by side, and holds their elements in shared
// memory, run by run: as many of its segments as there is room for. What a thread does at a time is a slot, of at most
// eight elements of one segment. Longer segments than the first kernel of a call has room for are listed: the next ones
// take them from there.
#pragma once
#include "numerics/order.h"
#include "plan/plan.h"
#include "plan/plan_tools.h"
#include "plan/segment_offsets.h"

namespace torchreduce {

struct SegmentRuns {
  int each = 1;             // segments of a block, at most kThreads / rows
  int rows = 1;             // rows of a block: a power of two
  int room = 0;             // elements of each row that it holds
  int slots = 0;            // and slots
  bool by_warps = false;    // each warp of a block has a part of its segments
  int team = 32;            // lanes that share one of those
  int most = 0;             // elements of a segment that is not listed, whatever it is like
  int64_t row_blocks = 1;   // blocks that have the same segments
  int64_t line_blocks = 1;  // of those, the ones that have rows of one innermost dim
  int64_t blocks = 1;
  int shared = 0;
  int64_t listed = 0;       // segments that the list has room for
  int64_t list_blocks = 0;  // that take them from there, at most
};
// What the workspace holds. Segments are in any order: from the start those of up to SegmentRuns::room elements, from
// the end those that are walked. Offsets that fall may have more of them than there is room for: then all are looked
// at.
struct SegmentList {
  uint64_t* counts;  // of both
  int64_t* segments;

  explicit SegmentList(void* workspace)
      : counts(static_cast<uint64_t*>(workspace)), segments(static_cast<int64_t*>(workspace) + 2) {}
};
inline int64_t workspace_bytes(const SegmentRuns& runs) { return runs.listed ? (runs.listed + 2) * 8 : 0; }

namespace segment_runs {

using namespace plans;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kOfSlot = 8;                                 // elements
constexpr int kMostRoom = 7168;                            // elements of all rows
constexpr int kMostBytes = 60 << 10, kDeclared = 4 << 10;  // shared memory: where a block may ask for it; besides
constexpr int kMostRows = 8;
constexpr int64_t kClearedByThread = 64;    // elements of no segment, if there are none else
constexpr int64_t kMostClearing = 1 << 10;  // blocks that are started for those
constexpr int64_t kListBlocks = 16;         // of a multiprocessor, for what is listed

// Bytes of what a kernel keeps: of an element of all inputs together, of a slot, and of a segment of a row.
struct Kept { int element, inputs, slot, segment; };

// One element is left out after as many as have 128 bytes, so that lanes eight apart meet in fewer banks.
constexpr int skipped_log2(int element) { return element == 8 ? 4 : 5; }
constexpr int staged_items(int count, int element) { return count + (count >> skipped_log2(element)) + 1; }
// Of all rows together. A segment of which every slot has few elements has kThreads more than it has eights at most.
constexpr int slots_of_room(int room) { return room / kOfSlot + kThreads; }
// What belongs to segments, or to leaves or tiles of one that has several, which are told apart by their first slots.
constexpr int places_of_room(int room) { return kThreads + slots_of_room(room) / 32 + kMostRows; }

constexpr int kAlignment = 16;
constexpr int aligned_up(int bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
constexpr int shared_bytes(int room, const Kept& kept) {
  return kept.inputs * aligned_up(staged_items(room, kept.element) * kept.element) +
         aligned_up(slots_of_room(room) * 4) + aligned_up(slots_of_room(room) * kept.slot) +
         aligned_up(places_of_room(room) * kept.segment);
}

// Room for the segments that are listed: those of more than `most` elements.
inline void plan_list(const SegmentOffsets& of, const Layout& l, int most, const DeviceFacts& device,
                      SegmentRuns& runs) {
  runs.most = most;
  runs.listed = of.length / (most + 1);
  runs.list_blocks = std::min(kListBlocks * std::max(1, device.multiprocessors), runs.listed * l.rows);
}

// `across`: rows lie side by side in memory. Where segments are few, blocks have fewer of them.
inline SegmentRuns plan(const SegmentOffsets& of, const Layout& l, bool across, const Kept& kept,
                        const DeviceFacts& device) {
  SegmentRuns runs;
  const PlanOverride forced = forced_plan();
  const int most = std::min(kMostBytes, device.bulk_copies ? device.shared : kPortableShared) - kDeclared;
  int room = kMostRoom, leaves = 0;
  while (shared_bytes(room, kept) > most) room -= kThreads;
  take(forced.leaves, leaves, 2, "leaves");
  if (leaves) room = std::min(room, leaves * kLeaf);
  const int64_t mean = of.length / std::max<int64_t>(1, of.count);
  const int64_t beside = across ? l.size[l.kept - 1] : 1;
  runs.rows = int(power_of_two(std::min<int64_t>(beside, kMostRows)));
  while (runs.rows > 1 && 3 * mean > 2 * room / runs.rows) runs.rows /= 2;
  if (across) take(forced.rows, runs.rows, kMostRows, "rows");
  runs.line_blocks = ceil_div(beside, runs.rows);
  runs.row_blocks = l.rows / beside * runs.line_blocks;
  runs.room = room / runs.rows;
  runs.slots = slots_of_room(room) / runs.rows;
  runs.shared = shared_bytes(room, kept);
  // Segments of the mean length leave an eighth, so that most blocks have one run.
  const int64_t together = std::min<int64_t>(kThreads / runs.rows, runs.room * 7 / 8 / std::max<int64_t>(1, mean));
  const int64_t few = ceil_div(of.count * runs.row_blocks, 2 * std::max(1, device.multiprocessors));
  runs.each = int(std::max<int64_t>(1, std::min(together, few)));
  const int64_t clearing = std::min(kMostClearing, ceil_div(of.length * l.rows, kClearedByThread * kThreads));
  runs.blocks = std::max(clearing, ceil_div(of.count, runs.each) * runs.row_blocks);
  // No slot of a whole segment has fewer than four elements on average.
  plan_list(of, l, std::min(runs.room, kOfSlot / 2 * runs.slots), device, runs);
  check_launch(runs.blocks, runs.shared, most);
  return runs;
}

// Of rows whose elements are neighbours: warps with segments of their own, a team of lanes with one of at most `most`;
// a warp walks one of up to `room`.
inline SegmentRuns plan_warps(const SegmentOffsets& of, const Layout& l, int team, int most, int room,
                              const DeviceFacts& device) {
  SegmentRuns runs;
  int leaves = 0;
  take(forced_plan().leaves, leaves, 2, "leaves");
  runs.by_warps = true;
  runs.team = team;
  runs.room = leaves ? std::min(room, leaves * kLeaf) : room;
  runs.slots = slots_of_room(runs.room);
  runs.row_blocks = l.rows;
  // A warp lists all its long ones at once.
  const int64_t few = ceil_div(of.count * l.rows, 2 * kWarps * std::max(1, device.multiprocessors));
  runs.each = kWarps * int(std::clamp<int64_t>(few, 1, kThreads / kWarps));
  const int64_t clearing = std::min(kMostClearing, ceil_div(of.length * l.rows, kClearedByThread * kThreads));
  runs.blocks = std::max(clearing, ceil_div(of.count, runs.each) * l.rows);
  plan_list(of, l, most, device, runs);
  check_launch(runs.blocks, 0, 0);
  return runs;
}

// Whether there may be a segment that a block walks.
inline bool walks(const SegmentOffsets& of, const SegmentRuns& runs) {
  return of.length > (runs.by_warps ? runs.room : runs.most);
}

}  // namespace segment_runs
}  // namespace torchreduce
