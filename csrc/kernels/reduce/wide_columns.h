// Wide columns: lanes take neighbouring granules of a row. Rows may start anywhere, and lie anywhere.
#pragma once
#include "column_call.h"

namespace torchreduce {

struct WideColumnsShape : ColumnShape {};

// Values of a warp in shared memory: of its columns, each granule's and one granule more; or, before, the deep levels
// of the tree over them where order shows.
TR_HD constexpr int wide_column_values(int granule, bool any_order) {
  return any_order ? 33 * granule : kDeepLevels * 32 * granule;
}

namespace wide_columns {

using namespace columns_of;

// Blocks a multiprocessor, and rows of a unit, between which units are cut: the last blocks run alone for a shorter
// time (H100, float32 sums of (100000, 2683): 0.82 of the read ceiling with 8 blocks, 0.885 with 24), but units of few
// rows cost more than that (H100, bfloat16, (777, 345472): 0.71 with units of 200 rows, 0.84 with one; H200, bfloat16,
// (1024, 262144): 0.76 with 512 rows, 0.80 with 1024).
constexpr int kBlocksWanted = 12, kLeastRows = 1024;
// The same where there would not be enough blocks for all multiprocessors to be busy.
constexpr int kBlocksNeeded = 2, kFewestRows = 128;
// Of fewer of its lanes strided takes less time (H200, 1,580 random reductions of 2^22 elements that this, the bound of
// narrow columns and the end of columns decide, most of windows or of several runs: a third of it, the geometric mean;
// 47 take more).
constexpr double kLeastUse = 0.2;

inline std::optional<WideColumnsShape> serves(const ReduceCall& call, const DeviceFacts& device,
                                              const PlanOverride& forced) {
  const auto c = columns_of::columns_of(call, device);
  if (!c || (!forced.family && c->use() < kLeastUse)) return {};
  WideColumnsShape s;
  ColumnCall& q = s.q = c->q;
  const bool any_order = c->facts.any_order;
  if (any_order) {  // an accumulator's rows start alike, and are no further apart than that and a batch's granules need
    q.log_r = c->whole ? 0 : std::max(2, log2_of(c->granule()));
    q.log_k = c->whole ? 3 : std::min(3, log2_of(power_of_two(ceil_div(q.n, 1 << q.log_r))));
  } else {
    q.log_r = log2_of(kResidues);
    q.log_k = tree_log_k(q.n);
  }
  const int64_t all = accumulators(q);
  const int least = std::max(8 >> q.log_k, any_order ? 1 << q.log_r : 0);  // of a warp
  if (q.n <= kResidues) {
    q.span = int32_t(any_order ? ceil_div(all, least) * least : power_of_two(std::max<int64_t>(8, all)));
    while (q.warps < kWarps && q.span / q.warps > least && q.outer * ceil_div(q.tiles, kWarps / q.warps) < c->fill)
      q.warps *= 2;
    q.span = int32_t(ceil_div(q.span, q.warps * least) * q.warps * least);
  } else {
    const int64_t wanted = int64_t(kBlocksWanted) * device.multiprocessors;
    q.warps = kWarps;
    q.span = kResidues;
    auto cut = [&] { q.units = int32_t(ceil_div(all, q.span)); };
    for (cut(); q.span << q.log_k > kLeastRows && q.outer * q.tiles * q.units < wanted; cut()) q.span /= 2;
    const int64_t needed = int64_t(kBlocksNeeded) * device.multiprocessors;
    for (; q.span << q.log_k > kFewestRows && q.outer * q.tiles * q.units < needed; cut()) q.span /= 2;
    if (any_order) {  // even units
      const int step = kWarps * least;
      q.span = int32_t(ceil_div(ceil_div(all, q.units), step) * step);
      cut();
    }
  }
  s.blocks =
      q.warps == 1 ? ceil_div(q.outer * q.tiles, kWarps) : q.outer * q.units * ceil_div(q.tiles, kWarps / q.warps);
  s.shared = kWarps * wide_column_values(c->granule(), any_order) * c->facts.near;
  split(s, *c, q.outer * q.tiles, q.tile);
  if (s.shared > c->shared) return {};
  return s;
}

}  // namespace wide_columns
}  // namespace torchreduce
