// Reductions by segments: of the rows between two offsets.
#pragma once
#include "numerics/order.h"
#include "plan/plan_tools.h"
#include "plan/segment_call.h"

namespace torchreduce {

// ---- reductions ---------------------------------------------------------------------------------------------------------

// Which kernels serve a call.
enum class SegmentWay : uint8_t {
  Lone,     // lone_segments.cuh: one column, rows next to each other
  Packed,   // packed_segments.cuh: few columns, rows next to each other
  Columns,  // segment_columns.cuh: sums and extremes of floats
  Any,      // segment_rows.cuh
};

struct SegmentPlan {
  SegmentWay way = SegmentWay::Any;
  int columns = 1;        // neighbouring ones of a thread, but in packed ones
  int team = 32;          // threads that have a row of short segments, or one segment: a power of two
  int each = 1;           // packed: segments of a block; lone: of a warp
  int room = 32;          // lone: elements that a team has room for
  int most = 128;         // rows of a segment that is not listed, but in packed ones
  bool together = false;  // any: a block has a segment and the columns of a team, else each of its warps
  int across = 1;         // columns: blocks that share the columns of short segments
  int64_t blocks = 1;     // of short segments
  int leaf_team = 32;     // threads that have a row of a leaf; 0: a warp has a leaf, and its lanes rows
  int64_t leaf_blocks = 0, fold_blocks = 0;
  int64_t workspace = 0;  // bytes, whatever they hold
};
inline int64_t workspace_bytes(const SegmentPlan& plan) { return plan.workspace; }

struct PlannedSegments : SegmentReduction { SegmentPlan plan; };

namespace segments {

using namespace plans;

constexpr int kThreads = 256;
constexpr int kColumns = 4;                // of a thread, where they are a word of 8 or 16 bytes
constexpr int kTeam = 32, kLeastTeam = 8;  // threads
// Rows of a segment that a team adds up alone; the leaves of longer ones have a block each. 65536 places of 768 float32
// that have 1000 numbers take 73 us, with 64 rows 103 (H100).
constexpr int kShort = 128;
constexpr int kFewLeaves = 64;  // of a segment, which one thread combines
// Blocks of leaves that a multiprocessor has room for: of 16 bits each has less on its way.
TR_HD constexpr int leaf_blocks(int size, bool sums) { return size == 2 && sums ? 3 : 2; }

// ---- packed: what a block has in shared memory
constexpr int kPackedColumns = 8;   // at most
constexpr int kStageBytes = 16384;  // of rows
constexpr int kMostEach = 1024;     // segments of a block
constexpr int kOfLane = 32;         // rows of a segment that a lane should have, and at most twice as many
constexpr int kMostFills = 16;      // of a block's shared memory: of more, all segments that are not short are listed
TR_HD constexpr int staged_rows(int size, int columns) { return kStageBytes / size / columns; }

// What the workspace holds. A segment is outer * segments + segment. Lists are in any order.
// first: row of the segment; slot: where the leaf's values go, or -1 where it is the only one.
struct Leaf { int64_t segment, first, slot; };
struct Several { int64_t segment, slot; };  // a segment of several leaves, and the first one's slot
struct Work {
  uint64_t* counts;  // of leaves, of segments of several, of slots, of segments of many
  Leaf* leaves;      // of segments that are not short
  Several* several;  // from the end: those of more than kFewLeaves
  void* sums;        // rows of accumulators
};
TR_HD constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
TR_HD constexpr int64_t most_leaves(const SegmentReduction& call) {
  return call.outer * (call.rows / (kShort + 1) + call.rows / kLeaf);
}
TR_HD constexpr int64_t most_several(const SegmentReduction& call) { return call.outer * (call.rows / (kLeaf + 1)); }
TR_HD constexpr int64_t most_slots(const SegmentReduction& call) { return 2 * call.outer * (call.rows / kLeaf); }

// Fills in `work`; returns the workspace's bytes.
inline int64_t lay_out(const SegmentReduction& call, void* workspace, Work& work) {
  int64_t bytes = 0;
  const auto take = [&](int64_t count, int64_t size) {
    char* const at = static_cast<char*>(workspace) + bytes;
    bytes += ceil_div(count * size, 16) * 16;
    return at;
  };
  work.counts = reinterpret_cast<uint64_t*>(take(4, 8));
  work.leaves = reinterpret_cast<Leaf*>(take(most_leaves(call), sizeof(Leaf)));
  work.several = reinterpret_cast<Several*>(take(most_several(call), sizeof(Several)));
  work.sums = take(most_slots(call) * call.inner, call.op == Reduction::Sum && call.in.dtype != Dtype::F64 ? 4 : 8);
  return bytes;
}

// Sums and extremes of floats, of neighbouring columns.
inline bool are_of_columns(const SegmentReduction& call) {
  if (!is_float(call.in.dtype) || call.in.truth || (call.inner > 1 && call.inner_stride != 1)) return false;
  if (call.op == Reduction::Extreme) return call.out.dtype == call.in.dtype;
  return call.op == Reduction::Sum && call.in.accumulator == natural_accumulator(call.in.dtype) &&
         (call.out.dtype == call.in.dtype || call.in.dtype == Dtype::F32);
}
inline bool are_packed(const SegmentReduction& call) {
  return call.inner <= kPackedColumns && call.row_stride == call.inner && !call.order && !call.short_order;
}

inline void plan_any(const SegmentReduction& call, SegmentPlan& p) {
  constexpr int kWarps = kThreads / kTeam;
  p.team = int(std::min<int64_t>(kTeam, power_of_two(call.inner)));
  p.together = call.rows > call.segments * kLeaf;
  const int64_t units = call.outer * call.segments * ceil_div(call.inner, p.team);
  p.blocks = std::min<int64_t>(p.together ? units : ceil_div(units, kWarps), 1 << 30);
}
inline void plan_packed(const SegmentReduction& call, SegmentPlan& p) {
  const int64_t mean = std::max<int64_t>(1, call.rows / std::max<int64_t>(1, call.segments));
  p.way = SegmentWay::Packed;
  p.team = int(std::clamp<int64_t>(power_of_two(std::max<int64_t>(1, mean / kOfLane)), 1, kTeam));
  // So many that most blocks fill their shared memory a few times.
  p.each = int(std::clamp<int64_t>(3 * staged_rows(size_of(call.in.dtype), int(call.inner)) / mean, 1, kMostEach));
  p.blocks = call.outer * ceil_div(call.segments, p.each);
}
inline void plan_lone(const SegmentReduction& call, const DeviceFacts& device, SegmentPlan& p) {
  const int64_t mean = std::max<int64_t>(1, call.rows / std::max<int64_t>(1, call.segments));
  p.way = SegmentWay::Lone;
  p.room = int(std::clamp<int64_t>(power_of_two(mean * 3 / 2), 32, kResidues));
  // What a warp has at most should not be many times the mean.
  const bool are_long = mean > kLeaf;
  p.most = are_long ? kShort : int(std::clamp<int64_t>(4 * power_of_two(mean), kResidues, kLeaf));
  const int64_t warps = 32 * std::max(1, device.multiprocessors);
  const int64_t few = std::max<int64_t>(1, call.outer * call.segments / warps);
  p.each = int(std::min(few, are_long ? kTeam : std::clamp<int64_t>(kLeaf / mean, 4, 4 * kTeam)));
  p.blocks = ceil_div(call.outer * ceil_div(call.segments, p.each), kThreads / kTeam);
}
inline int columns_of_thread(const SegmentReduction& call) {
  const int size = size_of(call.in.dtype);
  const auto word = [&](const void* x) { return reinterpret_cast<uintptr_t>(x) % (kColumns * size) == 0; };
  const bool words = size <= 4 && call.inner % kColumns == 0 && call.row_stride % kColumns == 0 &&
                     (call.outer == 1 || call.outer_stride % kColumns == 0) && call.out.dtype == call.in.dtype;
  return words && word(call.in.data) && word(call.out.values) ? kColumns : 1;
}
inline void plan_columns(const SegmentReduction& call, const DeviceFacts& device, SegmentPlan& p) {
  p.way = SegmentWay::Columns;
  p.team = int(std::min<int64_t>(kTeam, power_of_two(ceil_div(call.inner, p.columns))));
  const int64_t groups = ceil_div(call.outer * call.segments, kThreads / p.team);
  const int64_t tiles = ceil_div(call.inner, int64_t(p.team) * p.columns);
  p.across = int(
      std::clamp<int64_t>(ceil_div(8 * std::max(1, device.multiprocessors), std::max<int64_t>(1, groups)), 1, tiles));
  p.blocks = groups * p.across;
}
// What follows where a segment may be long.
inline void plan_leaves(const SegmentReduction& call, const DeviceFacts& device, SegmentPlan& p) {
  const int64_t multiprocessors = std::max(1, device.multiprocessors);
  const auto tiles = [&](int team) { return ceil_div(call.inner, int64_t(team) * p.columns); };
  if (tiles(1) < kLeastTeam) {
    p.leaf_team = 0;
    p.leaf_blocks = std::min(8 * multiprocessors, ceil_div(most_leaves(call) * tiles(1), kThreads / kTeam));
  } else {
    // Teams that are narrower than a row leave more blocks with something to do where leaves are few.
    p.leaf_team = std::max(p.team, kLeastTeam);
    while (p.leaf_team > kLeastTeam &&
           call.outer * ceil_div(call.rows, kLeaf) * tiles(p.leaf_team) < 2 * multiprocessors)
      p.leaf_team /= 2;
    p.leaf_blocks = std::min(leaf_blocks(size_of(call.in.dtype), call.op == Reduction::Sum) * multiprocessors,
                             most_leaves(call) * tiles(p.leaf_team));
  }
  if (p.leaf_blocks)
    p.fold_blocks = std::clamp<int64_t>(ceil_div(most_several(call) * call.inner, kThreads), 1, 8 * multiprocessors);
  Work work;
  p.workspace = lay_out(call, nullptr, work);
}

}  // namespace segments

inline SegmentPlan plan(const SegmentReduction& call, const DeviceFacts& device) {
  SegmentPlan p;
  if (!segments::are_of_columns(call)) {
    segments::plan_any(call, p);
    return p;
  }
  p.columns = segments::columns_of_thread(call);
  // Rows of whole words that are few are read as fast from where they are.
  const bool few = call.rows <= 64 * call.segments && p.columns > 1;
  if (segments::are_packed(call) && call.inner == 1) segments::plan_lone(call, device, p);
  else if (segments::are_packed(call) && !few) segments::plan_packed(call, p);
  else segments::plan_columns(call, device, p);
  segments::plan_leaves(call, device, p);
  return p;
}

namespace gpu {
// As gpu::reduce.
const char* reduce_segments(const PlannedSegments& call, void* workspace, void* stream);
}  // namespace gpu

}  // namespace torchreduce
