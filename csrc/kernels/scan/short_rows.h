// Rows of at most a block tile, or two, of one input: lanes hold them in registers as a whole.
#pragma once
#include "row_call.h"

namespace torchreduce::scans {

struct ShortRowsShape : ScanLaunch {
  int lanes = 32;         // a row of at most a tile
  int warps = 1;          // a longer row, a power of two
  int tiles = 1;          // neighbouring ones of a warp
  bool granules = false;  // elements and results move 16 bytes at a time

  template <class Visit> void each(Visit visit) const {
    visit("lanes", lanes);
    visit("warps", warps);
    visit("tiles", tiles);
    visit("granules", granules);
  }
};

namespace short_rows {

using namespace plans;

inline std::optional<ShortRowsShape> serves(const ScanCall& call, const DeviceFacts& device,
                                            const PlanOverride& forced) {
  const Layout& l = call.layout;
  const int64_t n = l.length;
  if (!compact(call)) return {};
  const ScanSizes held = scan_sizes(call);
  const bool granules = moves_granules(call, forced);
  // Two block tiles are a block's where each has a multiprocessor of its own: it waits for no other (66 rows of 16384
  // float32 4.8 us, else 7.0). And 16-bit rows that start anywhere.
  const bool two = device.large_blocks && kScanWarps * held.tiles == kFan && n > kBlockTile && n <= 2 * kBlockTile &&
                   (granules ? few_tiles(call, device)
                             : in_place(call) && size_of(call.in.dtype) == 2 && facts(call.op).integer_kernels);
  if (!two && n > int64_t(kScanWarps) * held.tiles * kTile) return {};
  // Results are stored 16 bytes at a time, if need be by way of shared memory.
  const bool neighbours = n == 1 || (magnitude(position_stride(l)) == 1 && out_stride(l) == position_stride(l)),
             one_run = l.kept == 0 || (l.kept == 1 && l.out[0] == n);
  if (!granules && !(neighbours && (n > kTile || one_run))) return {};
  if (!forced.family && lanes_across_rows(call)) return {};

  ShortRowsShape s;
  s.granules = granules;
  const int least = int(std::min<int64_t>(32, std::max<int64_t>(1, ceil_div(n, kGroup))));
  s.lanes = least;
  take(forced.lanes, s.lanes, 32, "lanes");
  check_lanes(s.lanes, least, n);
  if (n <= kTile) {
    s.blocks = ceil_div(l.rows, kScanWarps * held.groups * (32 / s.lanes));
    return s;
  }
  s.tiles = n <= 2 * kTile ? 2 : held.tiles;
  s.warps = int(power_of_two(ceil_div(n, s.tiles * kTile)));
  take(forced.warps, s.warps, std::max(kScanWarps, s.warps), "warps");
  if (int64_t(s.warps) * s.tiles * kTile < n)
    throw std::invalid_argument("force_plan: too few warps for a row of " + std::to_string(n));
  // Warps of one row alone wait for each other less; those that store by way of shared memory have too much of it.
  if (s.warps > 1 && (granules || two)) s.threads = s.warps * 32;
  s.blocks = ceil_div(l.rows, s.threads / 32 / s.warps);
  return s;
}

}  // namespace short_rows
}  // namespace torchreduce::scans
