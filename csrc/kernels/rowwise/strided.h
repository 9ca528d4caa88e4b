// Rows of any strides and any types: a leaf a warp, element by element. What no faster family serves.
#pragma once
#include "rowwise_launch.h"

namespace torchreduce {

struct RowwiseStridedShape : RowwiseLaunch {
  int64_t leaves = 1;  // of a row

  template <class Visit> void each(Visit visit) const { visit("leaves", leaves); }
};

namespace rowwise_strided {

using namespace plans;

constexpr int kThreads = 256, kWarps = kThreads / 32;

inline std::optional<RowwiseStridedShape> serves(const RowwiseCall& call, const DeviceFacts&, const PlanOverride&) {
  if (sums_over_rows(call.op)) return {};
  const Layout& l = call.layout;
  RowwiseStridedShape s;
  s.threads = kThreads;
  s.leaves = std::max<int64_t>(1, ceil_div(l.length, kLeaf));
  s.blocks = ceil_div(l.rows * s.leaves, kWarps);
  s.splits = s.leaves;
  if (s.leaves > 1 && facts(call.op).looks()) s.workspace = LeafStates{s.leaves}.bytes(call);
  return s;
}

}  // namespace rowwise_strided
}  // namespace torchreduce
