// Two to seven columns of floats that are one run of memory, on GPUs with bulk copies.
#pragma once
#include "column_call.h"
#include "row_call.h"
#include "short_columns.h"

namespace torchreduce::scans {

struct RingColumnsShape : ScanLaunch {
  int columns = 2;    // side by side, all there are
  int64_t parts = 1;  // of a column, each of a part of a block tile

  template <class Visit> void each(Visit visit) const {
    visit("columns", columns);
    visit("parts", parts);
  }
};

// At most so many columns (H200, of a copy's speed, float32 and bfloat16: 7 columns 0.84 and 0.88, by tiles 0.80 and
// 0.38; 8 0.65 and 0.57, in strips 0.75 and 0.61). Given the bytes of an element: the parts of a block tile of theirs,
// of which a stage holds one; the warps of a block that form results, fewer where each needs more registers, those that
// form totals and those that store; and all its threads: 20 warps have 96 registers each, 16 have 128.
constexpr int kMostRingColumns = 7;
TR_HD constexpr int ring_column_parts(int columns, int size) {
  const int bytes = kBlockTile * columns * size;
  return bytes > 128 << 10 ? 8 : bytes > 64 << 10 ? 4 : 2;
}
TR_HD constexpr int ring_column_result_warps(int columns, int size) {
  if (columns > 4) return columns > 5 && size > 2 ? 4 : 8;
  return columns * size > 12 ? 8 : 16;
}
TR_HD constexpr int ring_column_total_warps(int columns) { return columns > 5 ? 3 : columns == 5 ? 4 : 5; }
TR_HD constexpr int ring_column_store_warps(int columns) { return columns > 6 ? 1 : 2; }
TR_HD constexpr int ring_column_threads(int columns, int size) {
  const int results = ring_column_result_warps(columns, size), totals = ring_column_total_warps(columns);
  return (results + totals + columns + ring_column_store_warps(columns) + 1) * 32;
}

namespace ring_columns {

using namespace plans;

inline std::optional<RingColumnsShape> serves(const ScanCall& call, const DeviceFacts& device,
                                              const PlanOverride& forced) {
  const Layout& l = call.layout;
  const int size = size_of(call.in.dtype);
  if (!has_ring(device) || forced.vector_loads == 0 || !one_run(call) || !is_float(call.in.dtype) ||
      scan_sizes(call).acc > 4 || columns_beside(l) > kMostRingColumns)
    return {};
  RingColumnsShape s;
  s.columns = int(columns_beside(l));
  s.parts = ceil_div(l.length, kBlockTile / ring_column_parts(s.columns, size));
  // Of at most a block tile, five and more columns have to be enough for all blocks (H200, speed of tiles: (4, 8192, 7)
  // float32 1.20, (2340, 4096, 7) 0.76, (5461, 4096, 3) bfloat16 0.16).
  const bool few = l.length <= kBlockTile && s.columns > 4 && l.rows / s.columns * s.parts < 2 * device.multiprocessors;
  if (!forced.family && (!lanes_across_rows(call) || l.length <= kShortColumn || few)) return {};
  s.threads = ring_column_threads(s.columns, size);
  s.shared = kRingShared;
  s.declared = 0;
  s.blocks = std::min<int64_t>(l.rows / s.columns * s.parts, device.multiprocessors);
  s.workspace = look_back_workspace(call, s.parts);
  return s;
}

}  // namespace ring_columns
}  // namespace torchreduce::scans
