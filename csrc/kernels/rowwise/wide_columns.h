// Wide columns: rows that lie side by side and start anywhere, by leaves, read twice.
#pragma once
#include "rows_call.h"

namespace torchreduce {

struct RowwiseWideColumnsShape : RowwiseLaunch {
  int64_t leaves = 1;  // of a column
  int granules = 31;   // of a tile's columns in a row
  int64_t across = 1;  // tiles that lie side by side
  int depth = 8;       // elements of a residue, at most

  template <class Visit> void each(Visit visit) const {
    visit("granules", granules);
    visit("depth", depth);
  }
};

namespace rowwise_wide_columns {

using namespace plans;

constexpr int kThreads = 512, kWarps = kThreads / 32;  // of a block that looks at a leaf of a tile
constexpr int kWriters = 256, kParts = 4;              // of one that writes a part of it; the parts
constexpr int kLevels = 4;                             // of the tree over a warp's residues
constexpr int kSector = 32;                            // bytes that memory is written by: a tile's rows have whole ones
constexpr int kMostGranules = 30;  // of a row of a tile: those in which it lies, and a sector after them, are a warp's
constexpr int kLeastBytes = 256;   // of a row, unless forced
constexpr int kLeastLength = 640;  // likewise: of shorter columns a tile that is read once is wide (columns.h)

inline std::optional<RowwiseWideColumnsShape> serves(const RowwiseCall& call, const DeviceFacts& device,
                                                     const PlanOverride& forced) {
  const Layout& l = call.layout;
  const bool types = call.dtype == Dtype::F32 || call.dtype == Dtype::BF16 || call.dtype == Dtype::F16;
  if ((call.op != Rowwise::Softmax && call.op != Rowwise::LogSoftmax) || !types || !is_static(call)) return {};
  if (call.out_dtype != call.dtype || l.kept < 1 || l.kept > kMostRowwiseDims || l.reduced != 1) return {};
  const int last = l.kept - 1, size = size_of(call.dtype), per = 16 / size;
  if (l.in[last] != 1 || l.out[last] != 1 || l.length < 1 || l.rows < 1) return {};
  if (l.in[l.kept] > INT32_MAX / size || l.out[l.kept] > INT32_MAX / size) return {};
  // Rows start alike in a granule of the input and of the output.
  const auto place = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16; };
  if (place(call.in[0]) != place(call.out) || place(call.in[0]) % size != 0) return {};
  for (int d = 0; d <= l.kept; ++d)
    if (d != last && ((l.in[d] - l.out[d]) % per != 0 || l.in[d] < 0 || l.out[d] < 0)) return {};

  RowwiseWideColumnsShape s;
  s.leaves = ceil_div(l.length, kLeaf);
  s.depth = l.length > kLeaf / 2 ? 8 : 4;
  const int64_t inner = l.size[last], granules = ceil_div(inner, per), slices = l.rows / inner * s.leaves;
  if (inner > INT32_MAX / 2 || s.leaves > INT32_MAX) return {};
  s.across = ceil_div(granules, kMostGranules);
  const int64_t turns = ceil_div(s.across * slices, device.multiprocessors);
  if (!forced.family) {
    bool whole = place(call.in[0]) == 0 && inner % per == 0;  // granules, of which columns are read once if short
    for (int d = 0; d <= l.kept; ++d) whole &= d == last || l.in[d] % per == 0;
    if ((whole && s.leaves == 1) || l.length < kLeastLength || inner * size < kLeastBytes) return {};
    if (s.across * slices < device.multiprocessors) return {};
    // As wide tiles as keep all multiprocessors busy to the end.
    s.across = std::max(s.across, turns * device.multiprocessors / slices);
  }
  s.granules = int(ceil_div(granules, s.across * 2) * 2);
  s.across = ceil_div(granules, s.granules);
  s.threads = kThreads;
  s.shared = kLevels * kThreads * per * 4;
  if (s.shared > device.shared - 1024) return {};
  s.splits = s.leaves;
  s.blocks = s.across * slices;
  s.workspace = LeafStates{s.leaves}.bytes(call);
  return s;
}

}  // namespace rowwise_wide_columns
}  // namespace torchreduce
