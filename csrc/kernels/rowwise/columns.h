// Columns: rows that lie side by side. A block has a tile of columns, a leaf of each, in shared memory between the
// looks.
#pragma once
#include "rows_call.h"

namespace torchreduce {

struct RowwiseColumnsShape : RowwiseLaunch {
  int columns = 32;    // of a tile
  int residues = 256;  // that a leaf has, rounded up to a power of two
  int leaves = 1;      // of a column
  int cluster = 1;     // blocks that hold tiles of a column's leaves together
  int bytes = 16;      // that a copy to shared memory takes at once
  int pitch = 32;      // elements from a row of the tile to the next

  template <class Visit> void each(Visit visit) const {
    visit("columns", columns);
    visit("cluster", cluster);
    visit("bytes", bytes);
  }
};

namespace rowwise_columns {

using namespace plans;

constexpr int kFewThreads = 256, kThreads = 512;  // of a block: the latter where there are chunks for them
constexpr int kChunk = 8;                         // residues that a thread sums side by side
constexpr int kMostCluster = 8;
constexpr int kTileBytes = 72 << 10;  // so that a multiprocessor has three tiles
constexpr int kLeastBytes = 32;       // of a row of a tile
inline std::optional<RowwiseColumnsShape> serves(const RowwiseCall& call, const DeviceFacts& device,
                                                 const PlanOverride& forced) {
  const Layout& l = call.layout;
  const RowwiseFacts f = facts(call.op);
  const bool types = call.dtype == Dtype::F32 || call.dtype == Dtype::BF16 || call.dtype == Dtype::F16;
  if (sums_over_rows(call.op) || f.weights || !f.looks() || !types || !is_static(call)) return {};
  if (l.kept < 1 || l.kept > kMostRowwiseDims || l.reduced != 1 || l.length < 1 || l.rows < 1) return {};
  if (f.maps && call.out_dtype != call.dtype) return {};
  const int last = l.kept - 1;
  if (l.in[last] != 1 || (f.inputs > 1 && call.more_strides[0][last] != 1) || (f.maps && l.out[last] != 1)) return {};

  const int size = size_of(call.dtype), per = 16 / size;
  RowwiseColumnsShape s;
  const int64_t leaves = ceil_div(l.length, kLeaf);
  if (leaves > INT32_MAX) return {};
  s.leaves = int(leaves);
  const int rows = int(std::min<int64_t>(l.length, kLeaf));
  s.residues = int(std::max<int64_t>(kChunk, std::min<int64_t>(kResidues, power_of_two(rows))));

  // As wide a tile as has threads for chunks of residues and room in shared memory; rows of 64 bytes if they have it.
  const int row_bytes = size * f.inputs, chunks = s.residues / kChunk;
  const auto fits = [&](int columns, int most) { return int64_t(columns) * rows * row_bytes <= most; };
  s.columns = std::max(kFewThreads / chunks, kLeastBytes / size);
  while (s.columns < 128 &&
         (fits(2 * s.columns, kTileBytes / 2) || (s.columns * size < 64 && fits(2 * s.columns, kTileBytes))))
    s.columns *= 2;
  take(forced.lanes, s.columns, kFewThreads, "lanes");
  s.threads = kThreads / s.columns <= chunks && !fits(s.columns, kTileBytes / 2) ? kThreads : kFewThreads;

  // Copies of whole granules, of words, or of elements one by one.
  const auto multiple = [&](int elements) {
    bool all = l.size[last] % elements == 0;
    for (int k = 0; k < f.inputs; ++k) {
      const auto& strides = k == 0 ? l.in : call.more_strides[0];
      all &= reinterpret_cast<uintptr_t>(call.in[k]) % (elements * size) == 0;
      for (int d = 0; d < l.kept + 1; ++d) all &= d == last || strides[d] % elements == 0;
    }
    return all;
  };
  s.bytes = forced.vector_loads != 0 && multiple(per) ? 16 : size == 4 || multiple(2) ? 4 : 2;
  s.pitch = s.columns + (s.columns * size < 128 ? per : 0);  // rows of a warp's lanes in banks of their own

  const int64_t tiles = ceil_div(l.rows, s.columns);
  if (leaves > 1 && device.clusters && leaves <= kMostCluster) s.cluster = int(leaves);
  s.shared = int(ceil_div(int64_t(s.pitch) * rows * row_bytes, 16) * 16) + f.sums * s.threads * 4;
  if (s.cluster > 1) s.shared += s.cluster * s.columns * int(ceil_div(state_bytes(call), 8) * 8);
  if (s.shared > device.shared - 1024 || s.threads / s.columns > chunks) return {};
  s.splits = leaves;
  s.blocks = tiles * leaves;
  if (leaves > 1 && s.cluster == 1) s.workspace = LeafStates{leaves}.bytes(call);
  return s;
}

}  // namespace rowwise_columns
}  // namespace torchreduce
