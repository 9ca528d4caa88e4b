// The gradients of weights and biases: columns, summed over rows. Lanes across columns, a run of rows a thread.
#pragma once
#include "family.h"

namespace torchreduce {

struct WeightColumnsShape : FusedLaunch {
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
constexpr int kFoldThreads = 512, kFoldColumns = 8;   // of a block: a sector of each unit's sums

// Whether rows are neighbouring elements, whole granules of them, in both inputs.
inline bool runs_of_granules(const FusedCall& call) {
  const Layout& l = call.layout;
  const int64_t per = 16 / size_of(call.dtype);
  if (!is_static(call) || size_of(call.dtype) > 4 || l.kept != 1 || l.reduced > 1) return false;
  if (!aligned(call.in[0]) || !aligned(call.in[1]) || l.in[0] != 1 || call.more_strides[0][0] != 1) return false;
  return l.rows % per == 0 && (l.reduced == 0 || (l.in[1] % per == 0 && call.more_strides[0][1] % per == 0));
}

inline std::optional<WeightColumnsShape> serves(const FusedCall& call, const DeviceFacts& device,
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
