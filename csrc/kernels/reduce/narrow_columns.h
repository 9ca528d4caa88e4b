// Narrow columns, whose rows follow each other in memory, maybe in runs of them: lanes take granules of several rows.
#pragma once
#include "column_call.h"

namespace torchreduce {

struct NarrowColumnsShape : ColumnShape {};

namespace narrow_columns {

using namespace columns_of;

// log2 of the rows of an accumulator where no order matters, at most: fewer values in shared memory, and fewer partial
// results (H100, argmax of 264 float32 columns: 0.77 of the read ceiling with 8 rows, 0.89 with 32).
constexpr int kMostLogK = 5;
constexpr int kLeastSpan = 8;
constexpr int kLeastSlice = 1024;  // elements that are worth a block (wide_columns::kLeastUse)

inline std::optional<NarrowColumnsShape> serves(const ReduceCall& call, const DeviceFacts& device,
                                                const PlanOverride& forced) {
  const auto c = columns_of::columns_of(call, device);
  if (!c || kLeastSpan * int64_t(c->q.inner) > c->narrow_values()) return {};
  if ((!c->dense_rows() || c->q.jump) && !c->whole_runs) return {};
  if (!forced.family && (c->wide() || int64_t(c->q.n) * c->q.inner < kLeastSlice)) return {};
  NarrowColumnsShape s;
  ColumnCall& q = s.q = c->q;
  if (!c->dense_rows()) {  // each row is a run
    q.jump = q.pitch - q.inner;
    q.pitch = q.inner;
    q.by_run = {};
  }
  const bool any_order = c->facts.any_order;
  q.log_k = any_order ? std::min(kMostLogK, log2_of(power_of_two(ceil_div(q.n, 8)))) : tree_log_k(q.n);
  q.log_r = log2_of(kResidues);
  int64_t all;
  auto cut = [&] {
    all = any_order ? ceil_div(q.n, 1 << q.log_k) : accumulators(q);
    q.units = int32_t(ceil_div(all, q.span));
  };
  q.span = kLeastSpan;
  cut();
  // Positions of a unit are less than 2^16.
  while (q.span < all && 2 * q.span * int64_t(q.inner) <= c->narrow_values() && q.span << q.log_k < 1 << 16)
    q.span *= 2;
  for (cut(); q.span > 64 && q.outer * q.units < c->fill; cut()) q.span /= 2;
  for (; any_order && q.log_k > 3 && q.outer * q.units < c->fill; cut()) --q.log_k;
  if (any_order) q.log_r = log2_of(q.span);
  if (q.n <= kLeaf && q.outer >= c->fill) {
    q.parts = q.units;
    q.units = 1;
  }
  const int64_t values = int64_t(q.span) * q.inner, rows = (q.span + 7) / 8 + (q.span + 63) / 64 + q.parts;
  s.shared = int((values + values / 32 + 1 + rows * q.inner) * c->facts.near);
  s.blocks = q.outer * q.units;
  split(s, *c, q.outer, q.inner);
  if (s.shared > c->shared) return {};
  return s;
}

}  // namespace narrow_columns
}  // namespace torchreduce
