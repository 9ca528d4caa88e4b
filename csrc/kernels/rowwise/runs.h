// Rows whose positions lie in runs of neighbours, as a channel's over a batch of images: values of such rows.
#pragma once
#include "kernels/reduce/reduce_launch.h"
#include "rows_call.h"

namespace torchreduce {

struct RunsShape : RowwiseLaunch {
  int64_t leaves = 1;      // of a row
  int run = 1, pitch = 0;  // neighbours; elements from a run's start to the next one's
  Divider by_run;

  template <class Visit> void each(Visit visit) const { visit("run", run); }
};

namespace runs {

using namespace plans;

constexpr int kThreads = 256, kWarps = kThreads / 32;

inline std::optional<RunsShape> serves(const RowwiseCall& call, const DeviceFacts&, const PlanOverride&) {
  const Layout& l = call.layout;
  const bool types = call.dtype == Dtype::F32 || call.dtype == Dtype::BF16 || call.dtype == Dtype::F16;
  if (call.op != Rowwise::Moments || !types || !is_static(call) || l.reduced != 2) return {};
  if (l.kept > kMostRowwiseDims || l.rows < 1 || l.length < 1 || l.in[l.kept + 1] != 1) return {};
  const int64_t run = l.size[l.kept + 1], pitch = l.in[l.kept];
  if (run > INT32_MAX / 2 || magnitude(pitch) > INT32_MAX) return {};
  RunsShape s;
  s.threads = kThreads;
  s.leaves = ceil_div(l.length, kLeaf);
  s.run = int(run);
  s.pitch = int(pitch);
  s.by_run = divider(run);
  s.blocks = ceil_div(l.rows * s.leaves, kWarps);
  s.splits = s.leaves;
  s.workspace = LeafStates{s.leaves}.bytes(call);
  return s;
}

}  // namespace runs
}  // namespace torchreduce
