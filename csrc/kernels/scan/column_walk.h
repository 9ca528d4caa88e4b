// Columns of two or three inputs, or with indices, that are many: a lane walks each, or two of 16-bit elements.
#pragma once
#include "column_call.h"

namespace torchreduce::scans {

struct ColumnWalkShape : ScanLaunch {
  int columns = 1;  // neighbouring ones of a lane

  template <class Visit> void each(Visit visit) const { visit("columns", columns); }
};

constexpr int kWalkThreads = 64;  // of a block
constexpr int kLeastWalk = 32;    // positions that a walk has to be longer than: fewer are read at once
// Those up to which a lane walks wherever columns are many (H200: linear_scan of (300, 131072) by a lane 1.37 times as
// fast in float32 and 1.15 in bfloat16 as by teams, cummax 1.06 times as by tiles).
constexpr int kShortWalk = kTile + kTile / 2;

namespace column_walk {

using namespace plans;

// From about a block of lanes a multiprocessor on. Where there are tiles in shared memory, only short columns, or of
// two inputs from more columns on (H200, float32 and bfloat16: 16384 columns 0.47 of a copy's speed, tiles 0.54 and
// 0.41; 32768 0.79 and 0.31, tiles 0.59 and 0.44).
inline bool enough(const ScanCall& call, const DeviceFacts& device) {
  const Layout& l = call.layout;
  const int64_t walkers =
      int64_t(kWalkThreads) * word_columns(size_of(call.in.dtype)) * std::max(1, device.multiprocessors);
  if (l.length <= kLeastWalk || 4 * l.rows < 3 * walkers) return false;
  return l.length <= kShortWalk || !staged_tiles(call) || (facts(call.op).inputs == 2 && 3 * l.rows >= 8 * walkers);
}

inline std::optional<ColumnWalkShape> serves(const ScanCall& call, const DeviceFacts& device,
                                             const PlanOverride& forced) {
  if (!has_column_words(call)) return {};
  if (!forced.family && (!lanes_across_rows(call) || !enough(call, device))) return {};
  ColumnWalkShape s;
  s.columns = word_columns(size_of(call.in.dtype));
  s.threads = kWalkThreads;
  s.blocks = ceil_div(call.layout.rows, int64_t(s.columns) * kWalkThreads);
  return s;
}

}  // namespace column_walk
}  // namespace torchreduce::scans
