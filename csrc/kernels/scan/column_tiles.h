// Columns of any type, longer than a tile: a tile of some neighbouring columns a block. Serves what no other family
// does.
#pragma once
#include "column_call.h"

namespace torchreduce::scans {

struct ColumnTilesShape : ScanLaunch {
  int columns = 1;    // neighbouring ones of a lane
  int across = 1;     // lanes side by side
  int down = 1;       // tiles of a block below each other
  int64_t tiles = 1;  // a column

  template <class Visit> void each(Visit visit) const {
    visit("columns", columns);
    visit("across", across);
    visit("down", down);
    visit("tiles", tiles);
  }
};
// The same with indices, of records: a tile of as many rows as the lanes of a block have.
struct ExtremeColumnsShape : ScanLaunch {
  int columns = 1;    // neighbouring ones of a lane
  int across = 1;     // lanes side by side
  int64_t tiles = 1;  // a column

  template <class Visit> void each(Visit visit) const {
    visit("columns", columns);
    visit("across", across);
    visit("tiles", tiles);
  }
};

// The threads of a block, and those of them that are below each other. Of two inputs, and of 8 bytes in shared memory,
// fewer, that as much memory is on its way.
TR_HD constexpr int column_tile_threads(int inputs, bool wide) { return inputs == 2 || wide ? 128 : 256; }
constexpr int kTileParts = 8;
constexpr int kRecordFan = 16;     // tiles, and groups of them, whose records are looked at together
constexpr int kExtremeSteps = 32;  // rows that a lane has of a tile of records

namespace column_tiles {

using namespace plans;

// Lanes side by side, of at most `most`. 32 bytes of memory are of one strip, if aligned.
inline int lanes_across(int64_t vectors, int most) {
  const int64_t strips = ceil_div(vectors, most), each = ceil_div(vectors, strips);
  return int(strips > 1 ? ceil_div(each, 8) * 8 : each);
}

inline std::optional<ColumnTilesShape> serves(const ScanCall& call, const DeviceFacts&, const PlanOverride& forced) {
  const Layout& l = call.layout;
  ColumnTilesShape s;
  s.columns = record_tiles(call) ? 1 : tile_columns(call, forced);
  s.threads = column_tile_threads(facts(call.op).inputs, in_place(call) && size_of(call.in.dtype) == 8);
  const int most = s.threads / kTileParts;  // lanes side by side
  const int64_t width = columns_beside(l), vectors = ceil_div(width, s.columns);
  s.across = lanes_across(vectors, most);
  while (2 * s.down * s.across <= most) s.down *= 2;
  s.tiles = ceil_div(l.length, kTile);
  s.blocks = ceil_div(vectors, most) * (l.rows / width) * ceil_div(s.tiles, s.down);
  if (s.tiles > 1) s.workspace = column_workspace(call, s.tiles);
  return s;
}

}  // namespace column_tiles

namespace extreme_columns {

using namespace plans;

inline std::optional<ExtremeColumnsShape> serves(const ScanCall& call, const DeviceFacts&, const PlanOverride& forced) {
  const Layout& l = call.layout;
  if (!record_tiles(call) || (!forced.family && l.length <= kTile)) return {};
  ExtremeColumnsShape s;
  s.columns = tile_columns(call, forced);
  const int64_t width = columns_beside(l), vectors = ceil_div(width, s.columns);
  s.across = column_tiles::lanes_across(vectors, 32);
  s.tiles = ceil_div(l.length, kScanWarps * (32 / s.across) * kExtremeSteps);
  s.blocks = ceil_div(vectors, 32) * (l.rows / width) * s.tiles;
  if (s.tiles > 1) s.workspace = 8 + 8 * l.rows * (s.tiles + 2 * ceil_div(s.tiles, kRecordFan));
  return s;
}

}  // namespace extreme_columns
}  // namespace torchreduce::scans
