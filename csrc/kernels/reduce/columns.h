// Rows of any strides and any types whose smallest stride belongs to a kept dim: lanes across rows, each walking its
// own ("columns"), element by element. Compiled by accumulator (any_element.cuh). Chosen where there are no lanes
// across columns by 16 bytes (DeviceFacts::wide_reductions): elsewhere strided takes less time (H200, 505 random
// reductions that none of those serve: half of it, in 472 of them).
#pragma once
#include "strided.h"

namespace torchreduce {

struct ColumnsShape : ReduceLaunch {
  int lanes = 1;   // threads of a column, which share a leaf's residues in equal runs
  int leaves = 1;  // of a block's run

  template <class Visit> void each(Visit visit) const {
    visit("lanes", lanes);
    visit("leaves", leaves);
  }
};

namespace columns {

using namespace plans;

constexpr int kThreads = 256;
constexpr int kMaxLeaves = 64;    // of a run
constexpr int kBlocksWanted = 4;  // for each multiprocessor, before a block takes more than a leaf

inline std::optional<ColumnsShape> serves(const ReduceCall& call, const DeviceFacts& device,
                                          const PlanOverride& forced) {
  const Layout& l = call.layout;
  if (!forced.family && (device.wide_reductions || !lanes_across_rows(l))) return {};
  const int64_t n = l.length, leaves = std::max<int64_t>(1, ceil_div(n, kLeaf));
  const int residues = int(std::min<int64_t>(kResidues, power_of_two(std::max<int64_t>(1, n))));
  const int columns = int(std::min<int64_t>(32, power_of_two(l.rows)));
  ColumnsShape s;
  s.threads = kThreads;
  s.lanes = n <= 32 ? 1 : std::min(residues, kThreads / columns);
  take(forced.lanes, s.lanes, residues, "lanes");
  s.leaves = int(std::min<int64_t>(kMaxLeaves, power_of_two(leaves)));
  auto cut = [&] {
    s.splits = ceil_div(leaves, s.leaves);
    s.blocks = ceil_div(l.rows, kThreads / s.lanes) * s.splits;
  };
  const int64_t wanted = int64_t(kBlocksWanted) * device.multiprocessors;
  for (cut(); s.leaves > 1 && s.blocks < wanted; cut()) s.leaves /= 2;
  take(forced.leaves, s.leaves, kMaxLeaves, "leaves");
  cut();
  if (s.splits > 1) {
    s.workspace = l.rows * s.splits * general_bytes(call);
    s.tickets = ceil_div(l.rows, kThreads / s.lanes);
  }
  return s;
}

}  // namespace columns
}  // namespace torchreduce
