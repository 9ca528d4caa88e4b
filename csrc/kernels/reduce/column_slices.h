// Slices so small that a block takes several of them whole.
#pragma once
#include "column_call.h"

namespace torchreduce {

struct ColumnSlicesShape : ColumnShape {};

namespace column_slices {

using namespace columns_of;

constexpr int kLeastUnpadded = 8;      // neighbouring columns that are spread over enough banks
constexpr int kLargeSlice = 40 << 10;  // bytes, at most, of a slice that a block takes alone

inline std::optional<ColumnSlicesShape> serves(const ReduceCall& call, const DeviceFacts& device,
                                               const PlanOverride& forced) {
  const auto c = columns_of::columns_of(call, device);
  if (!c || c->q.jump || c->q.out_leap || !c->facts.small || !c->dense_rows() || (!forced.family && c->wide()))
    return {};
  const int64_t one = c->slice_bytes();
  const ColumnCall& all = c->q;
  if (all.outer_dims > 1 || (all.outer_dims && all.outer_in[0] * c->size != one)) return {};
  if (all.outer_out[0] > INT32_MAX || all.out_step > INT32_MAX) return {};
  if (all.n > kResidues || one > kLargeSlice) return {};
  ColumnSlicesShape s;
  ColumnCall& q = s.q = all;
  // Slices of a block and lanes of an output: few idle lanes in the last pass, and blocks that start on a line of 128
  // bytes.
  const int64_t top = std::min(std::max<int64_t>(1, kSliceBytes / one), ceil_div(q.outer, c->fill));
  int64_t line = 1;
  while (line * one % 128) line *= 2;
  const int full = int(power_of_two(q.n));
  double best = 0;
  auto consider = [&](int64_t slices, int lanes) {
    if (slices < 1 || slices > top) return;
    const int span = full / lanes;
    const double passes = double(ceil_div(slices * q.inner * lanes, 32)) / kWarps;
    const double cost = (passes * (std::min(span, q.n) + 5) + 8) / double(slices) * (slices % line ? 1.1 : 1.0);
    if (best && cost >= best) return;
    best = cost;
    q.slices = int32_t(slices);
    q.span = span;
    q.lanes = lanes;
  };
  for (int lanes = 1; lanes <= 32 && (lanes == 1 || full / lanes >= 8); lanes *= 2) {
    const int64_t filled = top * q.inner * lanes / kThreads * kThreads / (q.inner * lanes);
    for (int64_t slices : {top, top / line * line, filled, filled / line * line}) consider(slices, lanes);
  }
  const int bytes = int(q.slices * one) + 32;
  s.shared = q.inner < kLeastUnpadded ? bytes + bytes / 128 * 16 + 16 : bytes;
  s.blocks = ceil_div(q.outer, q.slices);
  if (s.shared > c->shared) return {};
  return s;
}

}  // namespace column_slices
}  // namespace torchreduce
