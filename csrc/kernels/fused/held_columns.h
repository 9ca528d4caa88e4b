// Columns: rows that lie side by side, in registers between the looks. A block goes through tiles of columns, a leaf of
// each, and copies the next ones to shared memory meanwhile.
#pragma once
#include "rows_call.h"

namespace torchreduce {

struct HeldColumnsShape : FusedLaunch {
  int depth = 8;              // elements of a residue
  bool granules = false;      // columns start at whole granules of 16 bytes, and a thread has four of them; else one
  int leaves = 1;             // of a column, each in a block of a cluster
  int buffers = 1;            // tiles that there is shared memory for
  int tiles = 1, across = 1;  // tiles; those that lie side by side

  template <class Visit> void each(Visit visit) const {
    visit("depth", depth);
    visit("granules", granules);
    visit("cluster", leaves);
    visit("buffers", buffers);
  }
};

namespace held_columns {

using namespace plans;

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kHeld = 64;  // elements of a thread
constexpr int kMostCluster = 8, kMostBuffers = 3;
constexpr int kLeastUse = 5;        // eighths of the elements held that are there, unless forced
constexpr int kTilesOfCluster = 8;  // so that no cluster that finds no room at first has much left to do alone

// Columns of a tile, elements of a thread for a column, and bytes from a row of a tile to the next: columns that start
// anywhere have the granules in which they lie.
TR_HD constexpr int columns(int depth) { return kHeld * kThreads / (depth * kResidues); }
TR_HD constexpr int pitch(int depth, int size, bool granules) { return columns(depth) * size + (granules ? 0 : 16); }
TR_HD constexpr int tile_bytes(int depth, int size, bool granules) {
  return depth * kResidues * pitch(depth, size, granules);
}

inline std::optional<HeldColumnsShape> serves(const FusedCall& call, const DeviceFacts& device,
                                              const PlanOverride& forced) {
  const Layout& l = call.layout;
  const bool types = call.dtype == Dtype::F32 || call.dtype == Dtype::BF16 || call.dtype == Dtype::F16;
  if ((call.op != Fused::Softmax && call.op != Fused::LogSoftmax) || !types || !is_static(call)) return {};
  if (!device.large_blocks) return {};
  if (call.out_dtype != call.dtype || l.kept < 1 || l.kept > kMostFusedDims || l.reduced != 1) return {};
  const int last = l.kept - 1, size = size_of(call.dtype), per = 16 / size;
  if (l.in[last] != 1 || l.out[last] != 1 || l.length < 1 || l.rows < 1) return {};
  if (magnitude(l.in[l.kept]) > INT32_MAX / size || magnitude(l.out[l.kept]) > INT32_MAX / size) return {};

  HeldColumnsShape s;
  const int64_t leaves = ceil_div(l.length, kLeaf);
  if (leaves > 1 && (!device.clusters || leaves > kMostCluster)) return {};
  s.leaves = int(leaves);
  s.depth = l.length > kLeaf / 2 ? 8 : 4;
  if (!forced.family && l.length * 8 < int64_t(kLeastUse) * s.depth * kResidues) return {};
  s.granules = forced.vector_loads != 0 && l.size[last] % per == 0 && aligned(call.in[0]) && aligned(call.out);
  for (int d = 0; d <= l.kept; ++d) s.granules &= d == last || (l.in[d] % per == 0 && l.out[d] % per == 0);
  if (!s.granules && size == 4) return {};
  if (!s.granules)
    for (int d = 0; d <= l.kept; ++d)
      if (l.in[d] < 0) return {};
  const int width = columns(s.depth);
  const int64_t across = ceil_div(l.size[last], width), tiles = l.rows / l.size[last] * across;
  if (l.size[last] < 2 * width || l.size[last] > INT32_MAX / 2 || tiles > INT32_MAX / 2) return {};
  s.across = int(across);
  s.tiles = int(tiles);

  const int meeting = 2 * kWarps * width * 4 + (leaves > 1 ? int(2 * leaves) * width * 16 : 0);
  const int tile = tile_bytes(s.depth, size, s.granules);
  s.buffers = std::min(kMostBuffers, (device.shared - 1024 - meeting) / tile);
  if (s.buffers < 1) return {};
  s.threads = kThreads;
  s.shared = s.buffers * tile + meeting;
  s.splits = leaves;
  s.blocks = leaves > 1 ? ceil_div(tiles, kTilesOfCluster) * leaves : std::min<int64_t>(tiles, device.multiprocessors);
  return s;
}

}  // namespace held_columns
}  // namespace torchreduce
