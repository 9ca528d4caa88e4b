// Rows of at most a block tile, of two inputs: lanes hold them in registers as a whole.
#pragma once
#include "row_call.h"

namespace torchreduce::scans {

struct RowPairsShape : ScanLaunch {
  int lanes = 32;         // a row of at most a tile, a power of two
  int warps = 1;          // a longer row, a power of two
  int groups = 1;         // of a lane: of as many rows, or neighbouring tiles
  bool granules = false;  // elements and results move 16 bytes at a time where rows are whole groups
  bool runs = false;      // results, which do not, are one run of memory for each warp

  template <class Visit> void each(Visit visit) const {
    visit("lanes", lanes);
    visit("warps", warps);
    visit("groups", groups);
    visit("granules", granules);
    visit("runs", runs);
  }
};

// Groups of whole rows that a lane holds, given the bytes of an element: at most as many as rows of a block tile need,
// or of 8-byte elements as registers allow. The more a lane has, the fewer instructions an element takes; of elements
// of more bytes fewer are enough. Of rows of at most a tile a lane takes that many, if one stride leads through all of
// them.
TR_HD constexpr int most_held_groups(int size) { return size > 4 ? 2 : 4; }
TR_HD constexpr int held_groups_wanted(int size) { return size == 2 ? 4 : size == 4 ? 2 : 1; }
TR_HD constexpr int least_tiles(int size) { return size > 4 ? 1 : 2; }  // of a lane, of a longer row

namespace row_pairs {

using namespace plans;

inline int groups_of(const Layout& l, int size, int warps) {
  if (l.length <= kTile) return l.kept > 1 ? 1 : held_groups_wanted(size);
  int groups = least_tiles(size);
  while (groups * warps * kTile < l.length) groups *= 2;
  return groups;
}

inline std::optional<RowPairsShape> serves(const ScanCall& call, const DeviceFacts&, const PlanOverride& forced) {
  const Layout& l = call.layout;
  const int64_t n = l.length;
  const int size = size_of(call.in.dtype);
  if (!pairs(call) || n > int64_t(kScanWarps) * most_held_groups(size) * kTile) return {};
  if (!forced.family && lanes_across_rows(call)) return {};
  RowPairsShape s;
  s.granules = moves_granules(call, forced);
  const int64_t along = out_stride(l);
  s.runs = size <= 4 && !(s.granules && n % kGroup == 0) && (l.reduced == 0 || along == 1 || along == -1) &&
           (n > kTile || l.kept == 0 || (l.kept == 1 && l.out[0] == n));  // of larger ones there are too few registers
  const int least = lanes_of_groups(n);
  s.lanes = least;
  take(forced.lanes, s.lanes, 32, "lanes");
  check_lanes(s.lanes, least, n);
  if (n > kTile) {
    const int64_t tiles = power_of_two(ceil_div(n, kTile));
    s.warps = int(std::min<int64_t>(kScanWarps, std::max<int64_t>(1, tiles / held_groups_wanted(size))));
    take(forced.warps, s.warps, kScanWarps, "warps");
  }
  s.groups = groups_of(l, size, s.warps);
  if (s.groups > most_held_groups(size))
    throw std::invalid_argument("force_plan: too few warps for a row of " + std::to_string(n));
  s.blocks = ceil_div(l.rows, kScanThreads / (s.lanes * s.warps) * (n > kTile ? 1 : s.groups));
  return s;
}

}  // namespace row_pairs
}  // namespace torchreduce::scans
