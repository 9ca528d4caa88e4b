// Columns that are many: a lane walks each, or two of 16-bit elements. Of one input, those of at most a tile.
#pragma once
#include "column_call.h"

namespace torchreduce::scans {

struct ColumnWalkShape : ScanLaunch {
  int columns = 1;  // neighbouring ones of a lane

  template <class Visit> void each(Visit visit) const { visit("columns", columns); }
};

// Threads of a block. (Of one input, columns that start anywhere, H200, of a copy's speed by 64 and by 128: float32 of
// 30 0.61, 0.65, of 64 0.56, 0.62; bfloat16 0.57, 0.59 and 0.51, 0.57.)
TR_HD constexpr int walk_threads(int inputs, bool indexed) { return inputs == 1 && !indexed ? 128 : 64; }
// Positions up to which a lane walks wherever columns are many (H200: linear_scan of (300, 131072) by a lane 1.37 times
// as fast in float32 and 1.15 in bfloat16 as by teams, cummax 1.06 times as by tiles).
constexpr int kShortWalk = kTile + kTile / 2;

// Of one input: positions of short columns, and columns side by side than which longer ones have more.
constexpr int kWalkedShort = 64, kFewBeside = 4;

namespace column_walk {

using namespace plans;

inline bool is_single(const ScanCall& call) { return facts(call.op).inputs == 1 && !facts(call.op).indexed; }
inline int threads_of(const ScanCall& call) {
  return scans::walk_threads(facts(call.op).inputs, facts(call.op).indexed);
}
// Neighbouring columns of a lane: two where they are words, of one input also where they are two words.
inline int columns_of(const ScanCall& call, const PlanOverride& forced) {
  if (!is_single(call)) return tile_columns(call, forced);
  const int size = size_of(call.in.dtype);
  return (size == 2 || size == 4) && forced.vector_loads != 0 && column_vectors(call, 2) ? 2 : 1;
}

// From about a block of lanes a multiprocessor on. Where there are tiles in shared memory, only short columns, or of
// two inputs from more columns on (H200, float32 and bfloat16: 16384 columns 0.47 of a copy's speed, tiles 0.54 and
// 0.41; 32768 0.79 and 0.31, tiles 0.59 and 0.44).
inline bool enough(const ScanCall& call, const DeviceFacts& device, int columns) {
  const Layout& l = call.layout;
  // Of one input: short sums always, other short columns where they are some, and longer ones where they are many and
  // side by side (H200, us, float32 and bfloat16, by short_columns: cumsum of 64 by 4096 columns 4.0 and 3.8, 4.1 and
  // 4.8; cumprod 7.6, 5.0; cumsum of 256 by 16384 11.1 and 10.7, 8.6 and 7.0; by 65536 43 and 26, 46 and 30; of
  // (100000, 100, 12) 351 and 200, 603 and 402; of (74565, 100, 3) 178 and 176, 123 and 135).
  if (is_single(call)) {
    const int64_t each = l.rows / device.multiprocessors;
    if (l.length <= kWalkedShort) return scan_sizes(call).acc <= 4 || each >= 128;
    return each >= 240 && columns_beside(l) > kFewBeside;
  }
  const int64_t walkers = int64_t(threads_of(call)) * columns * device.multiprocessors;
  if (4 * l.rows < 3 * walkers) return false;
  return l.length <= kShortWalk || !staged_tiles(call) ||
         (facts(call.op).inputs == 2 && has_column_words(call) && 3 * l.rows >= 8 * walkers);
}

inline std::optional<ColumnWalkShape> serves(const ScanCall& call, const DeviceFacts& device,
                                             const PlanOverride& forced) {
  if (is_single(call) ? call.layout.length > 2 * kTile : !walks_words(call)) return {};
  ColumnWalkShape s;
  s.columns = columns_of(call, forced);
  if (!forced.family && (!lanes_across_rows(call) || !enough(call, device, s.columns))) return {};
  s.threads = threads_of(call);
  s.blocks = ceil_div(call.layout.rows, int64_t(s.columns) * s.threads);
  return s;
}

}  // namespace column_walk
}  // namespace torchreduce::scans
