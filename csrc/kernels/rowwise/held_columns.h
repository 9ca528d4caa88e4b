// Columns: rows that lie side by side, on chip between the looks. A block goes through tiles of columns, a leaf of
// each, and copies the next ones to shared memory meanwhile.
#pragma once
#include "rows_call.h"

namespace torchreduce {

struct HeldColumnsShape : RowwiseLaunch {
  int depth = 8;              // elements of a residue
  int leaves = 1;             // of a column, each in a block of a cluster
  int tiles = 1, across = 1;  // tiles; those that lie side by side

  template <class Visit> void each(Visit visit) const {
    visit("depth", depth);
    visit("cluster", leaves);
  }
};

namespace held_columns {

using namespace plans;

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kPart = 8;                   // granules of a thread that it loads together
constexpr int kTileParts = 2, kParts = 3;  // of a tile; those that there is shared memory for
constexpr int kMostCluster = 8;
constexpr int kLeastUse = 5;        // eighths of the elements held that are there, unless forced
constexpr int kTilesOfCluster = 3;  // so that no cluster that finds no room at first has much left to do alone

// Granules of a row of a tile, which neighbouring threads have.
TR_HD constexpr int across(int depth) { return kThreads * kPart * kTileParts / (depth * kResidues); }

inline std::optional<HeldColumnsShape> serves(const RowwiseCall& call, const DeviceFacts& device,
                                              const PlanOverride& forced) {
  const Layout& l = call.layout;
  const bool types = call.dtype == Dtype::F32 || call.dtype == Dtype::BF16 || call.dtype == Dtype::F16;
  if ((call.op != Rowwise::Softmax && call.op != Rowwise::LogSoftmax) || !types || !is_static(call)) return {};
  if (!device.large_blocks) return {};
  if (call.out_dtype != call.dtype || l.kept < 1 || l.kept > kMostRowwiseDims || l.reduced != 1) return {};
  const int last = l.kept - 1, size = size_of(call.dtype), per = 16 / size;
  if (l.in[last] != 1 || l.out[last] != 1 || l.length < 1 || l.rows < 1) return {};
  if (magnitude(l.in[l.kept]) > INT32_MAX / size || magnitude(l.out[l.kept]) > INT32_MAX / size) return {};

  HeldColumnsShape s;
  const int64_t leaves = ceil_div(l.length, kLeaf);
  if (leaves > 1 && (!device.clusters || leaves > kMostCluster)) return {};
  s.leaves = int(leaves);
  s.depth = l.length > kLeaf / 2 ? 8 : 4;
  if (!forced.family && l.length * 8 < int64_t(kLeastUse) * s.depth * kResidues) return {};
  if (forced.vector_loads == 0 || l.size[last] % per != 0 || !aligned(call.in[0]) || !aligned(call.out)) return {};
  for (int d = 0; d <= l.kept; ++d)
    if (d != last && (l.in[d] % per != 0 || l.out[d] % per != 0)) return {};
  const int width = held_columns::across(s.depth) * per;
  const int64_t across = ceil_div(l.size[last], width), tiles = l.rows / l.size[last] * across;
  if (l.size[last] < width || l.size[last] > INT32_MAX / 2 || tiles > INT32_MAX / 2) return {};
  s.across = int(across);
  s.tiles = int(tiles);

  s.threads = kThreads;
  s.shared =
      kParts * kPart * kThreads * 16 + 2 * 2 * kWarps * width * 4 + (leaves > 1 ? int(2 * leaves) * width * 16 : 0);
  if (s.shared > device.shared - 1024) return {};
  s.splits = leaves;
  s.blocks = leaves > 1 ? ceil_div(tiles, kTilesOfCluster) * leaves : std::min<int64_t>(tiles, device.multiprocessors);
  return s;
}

}  // namespace held_columns
}  // namespace torchreduce
