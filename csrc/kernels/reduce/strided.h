// Rows of any strides and any types: lanes along a row, element by element. What no faster family serves. Compiled by
// accumulator (any_element.cuh), and for float32, float16 and bfloat16, which also have ways by 16-byte vectors.
#pragma once
#include "column_call.h"

namespace torchreduce {

struct StridedShape : ReduceLaunch {
  int lanes = 32;         // of a row; fewer than 32 have 8 consecutive elements each
  int warps = 1;          // of a row, within a block, if it has 32 lanes
  int leaves = 1;         // of a warp's run
  bool granules = false;  // 32 lanes, and positions lie in runs of whole granules
  // Or in runs of neighbours, from any element on, `pitch` elements apart, and `window` in shared memory; 0: not there.
  int window = 0, run = 0, pitch = 0;
  Divider by_run, by_window;
  int64_t elements = 0;  // from the tensor's first to the last that is looked at

  template <class Visit> void each(Visit visit) const {
    visit("lanes", lanes);
    visit("warps", warps);
    visit("leaves", leaves);
    visit("granules", granules);
    visit("window", window);
  }
};

namespace strided {

using namespace plans;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kMaxLeaves = 64;         // of a run
constexpr int kStagedBytes = 4 << 10;  // of positions that a warp has in shared memory
constexpr int kLeastRun = 8;           // of neighbours, that are worth that
constexpr int kBlocksWanted = 4;       // for each multiprocessor, before a warp takes more than a leaf

// Whether positions lie in runs of whole granules of 16 bytes.
inline bool runs_of_granules(const ReduceCall& call) {
  const Layout& l = call.layout;
  const int last = l.kept + l.reduced - 1, columns = granule_columns(size_of(call.in.dtype));
  if (!is_static(call) || !has_small_columns(call.in.dtype) || !aligned(call.in.data)) return false;
  if (l.reduced < 1 || l.in[last] != 1 || l.size[last] % columns != 0) return false;
  for (int d = 0; d < last; ++d)
    if (l.in[d] % columns != 0) return false;
  return true;
}

// The shape of a warp's shared memory, if positions lie in runs of neighbours.
inline void stage_runs(const ReduceCall& call, const DeviceFacts& device, StridedShape& s) {
  const Layout& l = call.layout;
  const int size = size_of(call.in.dtype), columns = granule_columns(size);
  if (!is_static(call) || !has_small_columns(call.in.dtype) || l.reduced != 2 || l.length > INT32_MAX / 2) return;
  const int64_t run = l.size[l.kept + 1], pitch = l.in[l.kept];
  if (l.in[l.kept + 1] != 1 || run < kLeastRun || pitch > INT32_MAX) return;
  const int64_t window = run + columns - 1, more = (pitch - window) % columns;
  s.window = int(window + (more < 0 ? more + columns : more));  // as far from whole granules as the pitch
  const int64_t staged = kStagedBytes / size, ends = (staged - 1) / run + 1;
  const int64_t bytes = ceil_div(staged + ends * (s.window - run) + 3 * columns, columns) * columns * size * kWarps;
  if (bytes > device.shared - columns_of::kDeclaredShared) {
    s.window = 0;
    return;
  }
  s.shared = int(bytes);
  s.run = int(run);
  s.pitch = int(pitch);
  s.by_run = divider(run);
  s.by_window = divider(s.window);
  s.elements = 1;
  for (int d = 0; d < l.kept + l.reduced; ++d) s.elements += (l.size[d] - 1) * l.in[d];
}

inline std::optional<StridedShape> serves(const ReduceCall& call, const DeviceFacts& device,
                                          const PlanOverride& forced) {
  const Layout& l = call.layout;
  const int64_t n = l.length, leaves = std::max<int64_t>(1, ceil_div(n, kLeaf));
  StridedShape s;
  s.threads = kThreads;
  const int needed = int(std::min<int64_t>(32, power_of_two(ceil_div(n, kGroup))));
  s.lanes = std::max(1, needed);
  take(forced.lanes, s.lanes, 32, "lanes");
  if (s.lanes < needed) throw std::invalid_argument("force_plan: too few lanes for a row of " + std::to_string(n));
  if (s.lanes == 32) {
    s.granules = forced.vector_loads != 0 && runs_of_granules(call);
    if (!s.granules && forced.vector_loads != 0) stage_runs(call, device, s);
    s.warps = s.window ? 1 : int(std::min<int64_t>(kWarps, power_of_two(leaves)));
    take(forced.warps, s.warps, kWarps, "warps");
  }
  s.leaves = int(std::min<int64_t>(kMaxLeaves, power_of_two(ceil_div(leaves, s.warps))));
  auto cut = [&] {
    s.splits = ceil_div(leaves, int64_t(s.warps) * s.leaves);
    s.blocks = ceil_div(l.rows * s.splits, kThreads / (s.lanes * s.warps));
  };
  const int64_t wanted = int64_t(kBlocksWanted) * device.multiprocessors;
  for (cut(); s.leaves > 1 && s.blocks < wanted; cut()) s.leaves /= 2;
  take(forced.leaves, s.leaves, kMaxLeaves, "leaves");
  cut();
  if (s.splits > 1) {
    s.workspace = l.rows * s.splits * general_bytes(call);
    s.tickets = l.rows;
  }
  return s;
}

}  // namespace strided
}  // namespace torchreduce
