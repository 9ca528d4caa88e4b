// Short columns: at most eight rows, and a warp takes all of them, of several tiles.
#pragma once
#include "column_call.h"

namespace torchreduce {

struct ShortColumnsShape : ColumnShape {};

namespace short_columns {

using namespace columns_of;

inline std::optional<ShortColumnsShape> serves(const ReduceCall& call, const DeviceFacts& device,
                                               const PlanOverride& forced) {
  const auto c = columns_of::columns_of(call, device);
  if (!c || c->q.n > 8 || !c->facts.small || (!forced.family && !c->wide())) return {};
  ShortColumnsShape s;
  s.q = c->q;
  s.q.log_k = std::max(1, log2_of(power_of_two(s.q.n)));
  s.blocks = ceil_div(s.q.outer * s.q.tiles, kWarps * (8 >> s.q.log_k));
  return s;
}

}  // namespace short_columns
}  // namespace torchreduce
