// Rows of at most a block tile, or two, of one input: lanes hold them in registers as a whole.
#pragma once
#include "row_call.h"

namespace torchreduce::scans {

struct ShortRowsShape : ScanLaunch {
  int lanes = 32;         // a row of at most a tile
  int warps = 1;          // a longer row, of at most a block tile a power of two
  int tiles = 1;          // neighbouring ones of a warp
  bool granules = false;  // elements and results move 16 bytes at a time

  template <class Visit> void each(Visit visit) const {
    visit("lanes", lanes);
    visit("warps", warps);
    visit("tiles", tiles);
    visit("granules", granules);
  }
};

// Positions of rows that are little longer than a block tile.
constexpr int64_t kLittleLonger = kBlockTile + 12 * kTile;

namespace short_rows {

using namespace plans;

inline std::optional<ShortRowsShape> serves(const ScanCall& call, const DeviceFacts& device,
                                            const PlanOverride& forced) {
  const Layout& l = call.layout;
  const int64_t n = l.length;
  if (!compact(call)) return {};
  const ScanSizes held = scan_sizes(call);
  const bool granules = moves_granules(call, forced);
  // Of more than a block tile: rows of which each block tile has a multiprocessor of its own, so that a block waits for
  // no other (66 rows of 16384 float32 4.8 us, else 7.0); and those that are little longer, of whose second block tile
  // a ring would lack most (H200, of a copy's speed, a ring 0.46 to 0.61: bfloat16 of 8193 0.70, 10000 0.81, 10001
  // 0.75; of 12001 0.67, a ring 0.62; of 16001 0.70 and 0.79).
  const bool two = device.large_blocks && kScanWarps * held.tiles == kFan && n > kBlockTile && n <= 2 * kBlockTile &&
                   (granules || (in_place(call) && size_of(call.in.dtype) == 2 && facts(call.op).integer_kernels)) &&
                   (n <= kLittleLonger || (granules && few_tiles(call, device)));
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
  s.warps = int(two ? ceil_div(n, s.tiles * kTile) : power_of_two(ceil_div(n, s.tiles * kTile)));
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
