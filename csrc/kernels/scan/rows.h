// Rows of any layout and type: a few lanes a short row, else a warp that walks a row, tile by tile.
#pragma once
#include "row_call.h"

namespace torchreduce::scans {

struct RowsShape : ScanLaunch {
  int lanes = 32;         // a row, a power of two
  bool granules = false;  // elements and results move 16 bytes at a time

  template <class Visit> void each(Visit visit) const {
    visit("lanes", lanes);
    visit("granules", granules);
  }
};

// The bytes of the largest accumulators that a warp walks rows with: of two float64 inputs there are too few registers.
constexpr int kWalkedAcc = 16;

namespace rows {

using namespace plans;

inline std::optional<RowsShape> serves(const ScanCall& call, const DeviceFacts& device, const PlanOverride& forced) {
  const Layout& l = call.layout;
  const ScanFacts known = facts(call.op);
  if (known.indexed || scan_sizes(call).acc > kWalkedAcc) return {};
  RowsShape s;
  s.granules = moves_granules(call, forced);
  // Of three inputs, also where a chain would start later, and of longer rows than it has to (H200, its speed: float32
  // rows of 10000, 500 of them 1.5, 1000 0.9; 1000 rows of 1000 0.46; 10000 of 3001 0.50).
  const bool some = l.rows >= 6 * int64_t(device.multiprocessors) || l.length <= 8 * kTile;
  const bool walks = known.inputs == 3 ? some : s.granules && many_rows(call, device);
  if (!forced.family && (lanes_across_rows(call) || (l.length > kTile && !walks))) return {};
  const int least = lanes_of_groups(l.length);
  s.lanes = least;
  take(forced.lanes, s.lanes, 32, "lanes");
  check_lanes(s.lanes, least, l.length);
  s.blocks = ceil_div(l.rows, kScanThreads / s.lanes);
  return s;
}

}  // namespace rows
}  // namespace torchreduce::scans
