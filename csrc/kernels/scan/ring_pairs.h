// Few long aligned rows of two inputs, on GPUs with bulk copies.
#pragma once
#include "row_call.h"

namespace torchreduce::scans {

struct RingPairsShape : ScanLaunch {
  int64_t tiles = 1;  // block tiles a row

  template <class Visit> void each(Visit visit) const { visit("tiles", tiles); }
};

namespace ring_pairs {

using namespace plans;

inline std::optional<RingPairsShape> serves(const ScanCall& call, const DeviceFacts& device,
                                            const PlanOverride& forced) {
  const Layout& l = call.layout;
  if (!has_ring(device) || !runs_of_floats(call) || !pairs(call) || !moves_granules(call, forced) ||
      call.more_strides[0][l.kept] != position_stride(l))
    return {};
  if (!forced.family && (lanes_across_rows(call) || l.length <= kTile || many_rows(call, device))) return {};
  RingPairsShape s;
  s.tiles = ceil_div(l.length, kBlockTile);
  s.threads = ring_threads(size_of(call.in.dtype), scan_sizes(call).acc);
  s.shared = kRingShared;
  s.declared = 0;
  s.blocks = std::min<int64_t>(l.rows * s.tiles, device.multiprocessors);
  s.workspace = look_back_workspace(call, s.tiles);
  return s;
}

}  // namespace ring_pairs
}  // namespace torchreduce::scans
