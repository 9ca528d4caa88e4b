// Scans with indices along rows: warps that take several short rows at a time or walk one, and a tile a block of rows
// that blocks share.
#pragma once
#include "row_call.h"

namespace torchreduce::scans {

struct ExtremeRowsShape : ScanLaunch {
  int lanes = 32;  // a row, two positions each, a power of two
  int rows = 1;    // of those lanes at a time

  template <class Visit> void each(Visit visit) const {
    visit("lanes", lanes);
    visit("rows", rows);
  }
};
struct ExtremeChainShape : ScanLaunch {
  int64_t tiles = 1;  // a row, of 32 KiB

  template <class Visit> void each(Visit visit) const { visit("tiles", tiles); }
};

// Given the bytes of an element: the chunks of 64 positions that a warp takes at a time, of how many rows they are, and
// the positions of a block's tile where rows are split.
TR_HD constexpr int extreme_chunks(int size) { return size > 4 ? 2 : 4; }
TR_HD constexpr int extreme_rows_of(int64_t length, int size) {
  return length <= 64 ? extreme_chunks(size) : length <= 128 && size <= 4 ? 2 : 1;
}
TR_HD constexpr int extreme_tile(int size) { return (32 << 10) / size; }
constexpr int kExtremeBlocks = 12;  // of warps that take several rows at a time, at most so many a multiprocessor
constexpr int kExtremeLead = 15;    // the most positions before a row that are counted with it
constexpr int kExtremeWalk = 2048;  // the longest rows that warps walk where they are few

namespace extreme_rows {

using namespace plans;

inline std::optional<ExtremeRowsShape> serves(const ScanCall& call, const DeviceFacts& device,
                                              const PlanOverride& forced) {
  const Layout& l = call.layout;
  const int64_t n = l.length;
  if (!facts(call.op).indexed) return {};
  const bool few = !many_rows(call, device);  // and long: for tiles
  if (!forced.family && (lanes_across_rows(call) || (few && n > kExtremeWalk))) return {};
  ExtremeRowsShape s;
  const int least = int(std::min<int64_t>(32, power_of_two(ceil_div(n, 2))));
  s.lanes = least;
  take(forced.lanes, s.lanes, 32, "lanes");
  check_lanes(s.lanes, least, n);
  s.rows = extreme_rows_of(n, element_bytes(call));
  s.blocks = ceil_div(l.rows, int64_t(kScanWarps) * (32 / s.lanes) * s.rows);
  if (s.rows > 1) s.blocks = std::min(s.blocks, int64_t(kExtremeBlocks) * device.multiprocessors);
  return s;
}

}  // namespace extreme_rows

namespace extreme_chain {

using namespace plans;

inline std::optional<ExtremeChainShape> serves(const ScanCall& call, const DeviceFacts&, const PlanOverride& forced) {
  if (!facts(call.op).indexed || (!forced.family && lanes_across_rows(call))) return {};
  ExtremeChainShape s;
  const int size = element_bytes(call), tile = extreme_tile(size);
  s.tiles = ceil_div(call.layout.length + kExtremeLead, tile);
  s.blocks = call.layout.rows * s.tiles;
  s.shared = tile * size;
  s.declared = 2 << 10;
  s.workspace = look_back_workspace(call, s.tiles);
  return s;
}

}  // namespace extreme_chain
}  // namespace torchreduce::scans
