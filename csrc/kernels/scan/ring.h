// Few long rows of floats, on GPUs with bulk copies: blocks that stay, whose warps have roles.
#pragma once
#include "row_call.h"

namespace torchreduce::scans {

struct RingShape : ScanLaunch {
  int64_t tiles = 1;      // block tiles a row
  bool granules = false;  // all rows begin and end with whole granules

  template <class Visit> void each(Visit visit) const {
    visit("tiles", tiles);
    visit("granules", granules);
  }
};

namespace ring {

using namespace plans;

inline std::optional<RingShape> serves(const ScanCall& call, const DeviceFacts& device, const PlanOverride& forced) {
  const Layout& l = call.layout;
  if (!has_ring(device) || !runs_of_floats(call) || !in_place(call)) return {};
  RingShape s;
  s.granules = moves_granules(call, forced);
  // Where each block tile has a multiprocessor of its own, it is for a chain, which starts sooner (H200, from a graph:
  // cumsum float32 of 2^14 6.3 us, in the ring 7.3, of 10^6 7.9 and 9.6, of 8 by 32000 7.4 and 8.0; of more tiles,
  // 2^21, 11.8 and 11.5; cumprod, with larger totals, of 2^20 10.9 and 9.8).
  const bool brief = s.granules && scan_sizes(call).acc <= 4 && few_tiles(call, device);
  if (!forced.family && (lanes_across_rows(call) || l.length <= kTile || brief)) return {};
  s.tiles = ceil_div(l.length, kBlockTile);
  s.threads = ring_threads(size_of(call.in.dtype), scan_sizes(call).acc);
  s.shared = kRingShared;
  s.declared = 0;
  s.blocks = std::min<int64_t>(l.rows * s.tiles, device.multiprocessors);
  s.workspace = look_back_workspace(call, s.tiles);
  return s;
}

}  // namespace ring
}  // namespace torchreduce::scans
