// Columns that are many: a lane walks each, or two of 16-bit elements. Of one input, those of at most a tile.
#pragma once
#include "column_call.h"

namespace torchreduce::scans {

struct ColumnWalkShape : ScanLaunch {
  int columns = 1;  // neighbouring ones of a lane

  template <class Visit> void each(Visit visit) const { visit("columns", columns); }
};

constexpr int kWalkThreads = 64;  // of a block
// Positions up to which a lane walks wherever columns are many (H200: linear_scan of (300, 131072) by a lane 1.37 times
// as fast in float32 and 1.15 in bfloat16 as by teams, cummax 1.06 times as by tiles).
constexpr int kShortWalk = kTile + kTile / 2;

namespace column_walk {

using namespace plans;

// From about a block of lanes a multiprocessor on. Where there are tiles in shared memory, only short columns, or of
// two inputs from more columns on (H200, float32 and bfloat16: 16384 columns 0.47 of a copy's speed, tiles 0.54 and
// 0.41; 32768 0.79 and 0.31, tiles 0.59 and 0.44).
inline bool enough(const ScanCall& call, const DeviceFacts& device, int columns) {
  const Layout& l = call.layout;
  const int64_t walkers = int64_t(kWalkThreads) * columns * device.multiprocessors;
  if (4 * l.rows < 3 * walkers) return false;
  if (facts(call.op).inputs == 1 && !facts(call.op).indexed) return l.length <= 32;
  return l.length <= kShortWalk || !staged_tiles(call) ||
         (facts(call.op).inputs == 2 && has_column_words(call) && 3 * l.rows >= 8 * walkers);
}

inline std::optional<ColumnWalkShape> serves(const ScanCall& call, const DeviceFacts& device,
                                             const PlanOverride& forced) {
  const ScanFacts known = facts(call.op);
  const bool one = known.inputs == 1 && !known.indexed;
  if (one ? call.layout.length > kTile : !walks_words(call)) return {};
  ColumnWalkShape s;
  s.columns = tile_columns(call, forced);
  if (!forced.family && (!lanes_across_rows(call) || !enough(call, device, s.columns))) return {};
  s.threads = kWalkThreads;
  s.blocks = ceil_div(call.layout.rows, int64_t(s.columns) * kWalkThreads);
  return s;
}

}  // namespace column_walk
}  // namespace torchreduce::scans
