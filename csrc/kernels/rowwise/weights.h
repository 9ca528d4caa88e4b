// The gradients of weights and biases: columns, summed over rows. Lanes across columns, a run of rows a thread.
#pragma once
#include "rowwise_launch.h"

namespace torchreduce {

struct WeightColumnsShape : RowwiseLaunch {
  int64_t units = 1;      // runs of residues that a column is cut into, through all leaves
  bool granules = false;  // 16 bytes a lane; else element by element

  template <class Visit> void each(Visit visit) const {
    visit("units", units);
    visit("granules", granules);
  }
};

namespace weight_columns {

using namespace plans;

constexpr int kThreads = 256;
constexpr int kLanes = 16;                            // granules: neighbouring lanes of a block, each with a granule
constexpr int kGroups = kThreads / kLanes;            // of a block, each with some residues
constexpr int kRun = 4;                               // residues of a thread
constexpr int kUnits = kResidues / (kGroups * kRun);  // of a leaf
constexpr int kColumns = 32;                          // of a block that goes element by element
constexpr int kFoldThreads = 512;                     // of a block that brings the sums of units together, at most

// A block that does: columns, as a power of two, and threads that have a part of a column's units each, kFoldAtOnce or
// more. Of each unit's sums a line, or less, down to a sector, where there would be too few blocks, and more parts are
// of use. H100, layer_norm, sums of 4096 columns from 512 units and of 1024 from 2048: 32 columns 10.8 and 18.2 us,
// 16 14.6 and 13.3, 8 21.2 and 13.4.
constexpr int kFoldAtOnce = 16;
struct FoldShape { int log_columns, parts; };
inline FoldShape fold_shape(int64_t columns, int64_t units) {
  const int64_t parts = power_of_two(ceil_div(units, kFoldAtOnce));
  int log = 5;
  while (log > 3 && 2 * ceil_div(columns, 1 << log) < 128 && parts > kFoldThreads >> log) --log;
  return {log, int(std::min<int64_t>(parts, kFoldThreads >> log))};
}

// Whether rows are neighbouring elements, whole granules of them, in both inputs.
inline bool runs_of_granules(const RowwiseCall& call) {
  const Layout& l = call.layout;
  const int64_t per = 16 / size_of(call.dtype);
  if (!is_static(call) || size_of(call.dtype) > 4 || l.kept != 1 || l.reduced > 1) return false;
  if (!aligned(call.in[0]) || !aligned(call.in[1]) || l.in[0] != 1 || call.more_strides[0][0] != 1) return false;
  return l.rows % per == 0 && (l.reduced == 0 || (l.in[1] % per == 0 && call.more_strides[0][1] % per == 0));
}

inline std::optional<WeightColumnsShape> serves(const RowwiseCall& call, const DeviceFacts& device,
                                                const PlanOverride& forced) {
  if (!sums_over_rows(call.op)) return {};
  const Layout& l = call.layout;
  const int64_t leaves = std::max<int64_t>(1, ceil_div(l.length, kLeaf));
  WeightColumnsShape s;
  s.granules = device.wide_reductions && forced.vector_loads != 0 && runs_of_granules(call);
  const int64_t columns = s.granules ? kLanes * (16 / size_of(call.dtype)) : kColumns;
  s.units = leaves * (s.granules ? kUnits : 1);
  s.threads = kThreads;
  s.blocks = ceil_div(l.rows, columns) * s.units;
  s.splits = s.units;
  s.workspace = 2 * s.units * l.rows * size_of(call.accumulator);
  return s;
}

}  // namespace weight_columns
}  // namespace torchreduce
