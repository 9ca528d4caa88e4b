// Few long rows: a block tile a block, carries by look-back, or within a cluster. Of any layout and type.
#pragma once
#include "row_call.h"

namespace torchreduce::scans {

struct ChainShape : ScanLaunch {
  int64_t tiles = 1;      // block tiles a row
  int cluster = 1;        // blocks that tell each other their totals: those of a row
  bool granules = false;  // elements and results move 16 bytes at a time
  bool staged = false;    // there is room for a block tile in shared memory

  template <class Visit> void each(Visit visit) const {
    visit("tiles", tiles);
    visit("cluster", cluster);
    visit("granules", granules);
    visit("staged", staged);
  }
};

constexpr int kChainShared = 2 << 10;  // bytes of shared memory that the kernel declares, at most

namespace chain {

using namespace plans;

constexpr int kMostCluster = 8;  // blocks: what every GPU with clusters has

inline std::optional<ChainShape> serves(const ScanCall& call, const DeviceFacts& device, const PlanOverride& forced) {
  if (facts(call.op).indexed) return {};
  if (!forced.family && lanes_across_rows(call)) return {};
  ChainShape s;
  s.granules = moves_granules(call, forced);
  s.tiles = ceil_div(call.layout.length, kBlockTile);
  s.blocks = call.layout.rows * s.tiles;
  const int shared = kBlockTile * position_bytes(call);
  // Elements of three inputs have less room, and are read twice (H200, 2^26 float32: 0.46 ms, by way of shared memory
  // 0.58), if they can be 16 bytes at a time.
  s.staged = shared + kChainShared <= shared_of(device) && !(facts(call.op).inputs == 3 && s.granules);
  if (s.staged) {
    s.shared = shared;
    s.declared = kChainShared;
  }
  // Few short rows: nothing has to be zero before the launch then, which would be one more.
  if (device.clusters && s.tiles > 1 && s.tiles <= kMostCluster && few_tiles(call, device)) s.cluster = int(s.tiles);
  else s.workspace = look_back_workspace(call, s.tiles);
  return s;
}

}  // namespace chain
}  // namespace torchreduce::scans
