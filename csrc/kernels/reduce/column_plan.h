// Plans of the reductions of columns (columns.h). Pure host code.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <optional>

#include "column_call.h"
#include "order.h"

namespace torchreduce {

// What plans ask of the op and the device.
struct ColumnFacts {
  int size, near, acc;  // bytes of an element, of Near and of Acc
  bool any_order;
  bool same_type;       // results are floats of the input's type, without indices
  int multiprocessors, shared;
};

enum class ColumnFamily { Short, Slices, Wide, Narrow };

struct ColumnPlan {
  ColumnFamily family;
  ColumnCall call;
  int64_t blocks;
  int shared;
  int64_t partials, tickets;  // bytes, words
};

namespace columns {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t power_of_two(int64_t n) {
  int64_t p = 1;
  while (p < n) p *= 2;
  return p;
}
inline int log2_of(int64_t power) {
  int log = 0;
  while ((int64_t(1) << log) < power) ++log;
  return log;
}

constexpr int kThreads = 256, kWarps = 8;
inline int kWideBlocks = getenv("WB") ? atoi(getenv("WB")) : 24;
inline int kWideLeast = getenv("WL") ? atoi(getenv("WL")) : 64;
inline int kNarrowLogK = getenv("NK") ? atoi(getenv("NK")) : 5;
constexpr int kSliceBytes = 32768;  // of slices that a block takes whole

// Accumulators of n rows, of 2^log_k rows 2^log_r apart.
inline int64_t accumulators(const ColumnCall& q) {
  const int64_t step = int64_t(1) << q.log_r, rows = step << q.log_k, last = (q.n - 1) % rows + 1;
  return (q.n - 1) / rows * step + std::min(step, last);
}

// The call as these kernels see it, if they can.
inline std::optional<ColumnCall> column_call(const ReduceCall& call) {
  const Layout& l = call.layout;
  if (l.reduced != 1 || l.kept < 1 || l.kept > kOuterDims + 1 || l.length > INT32_MAX) return {};
  int inner = -1;
  for (int d = 0; d < l.kept; ++d)
    if (l.in[d] == 1) inner = d;
  if (inner < 0 || l.size[inner] > INT32_MAX) return {};
  ColumnCall q{};
  q.in = call.in.data;
  q.out = call.out;
  q.options = call.options;
  q.pitch = l.in[l.kept];
  q.out_step = l.out[inner];
  q.n = int32_t(l.length);
  q.inner = int32_t(l.size[inner]);
  q.outer = 1;
  for (int d = 0; d < l.kept; ++d) {
    if (d == inner) continue;
    q.outer *= l.size[d];
    q.outer_size[q.outer_dims] = l.size[d];
    q.outer_in[q.outer_dims] = l.in[d];
    q.outer_out[q.outer_dims++] = l.out[d];
  }
  q.slices = 1;
  q.parts = 1;
  q.warps = 1;
  q.units = 1;
  return q;
}

// Rows are whole granules, and so are results of the same type.
inline bool whole_granules(const ColumnCall& q, const ColumnFacts& f) {
  const int columns = granule_columns(f.size);
  bool whole = reinterpret_cast<uintptr_t>(q.in) % uintptr_t(columns * f.size) == 0 && q.pitch % columns == 0;
  for (int d = 0; d < q.outer_dims; ++d) whole &= q.outer_in[d] % columns == 0;
  return whole;
}
inline void set_tiles(ColumnCall& q, const ColumnFacts& f) {
  const bool whole = whole_granules(q, f);
  q.tile = (whole ? 32 : 31) * granule_columns(f.size);
  q.tiles = int32_t(ceil_div(q.inner, q.tile));
  q.runs = f.same_type && q.out_step == 1;
}
inline bool dense_rows(const ColumnCall& q) { return q.pitch == q.inner; }
inline void set_split(ColumnPlan& plan, const ColumnFacts& f, int64_t slots, int columns, int shared) {
  const ColumnCall& q = plan.call;
  plan.shared = shared;
  if (q.units == 1) return;
  const int groups = unit_groups(q.units), rows = fold_buffer(q.units);
  plan.shared = std::max(shared, (rows + (rows + 7) / 8) * columns * f.acc);
  plan.partials = slots * (q.units + groups) * columns * f.acc;
  plan.tickets = slots * (groups + 1);
}
// K for sums in the canonical order.
inline int tree_log_k(int64_t n) { return n <= 256 ? 0 : n <= 512 ? 1 : n <= 1024 ? 2 : 3; }

inline std::optional<ColumnPlan> short_columns(const ColumnCall& call, const ColumnFacts& f) {
  if (call.n > 8) return {};
  ColumnPlan plan{ColumnFamily::Short, call, 0, 0, 0, 0};
  ColumnCall& q = plan.call;
  set_tiles(q, f);
  q.log_k = std::max(1, log2_of(power_of_two(q.n)));
  plan.blocks = ceil_div(q.outer * q.tiles, kWarps * (8 >> q.log_k));
  return plan;
}

inline std::optional<ColumnPlan> slices(const ColumnCall& call, const ColumnFacts& f) {
  const int64_t one = int64_t(call.n) * call.inner * f.size;
  if (!dense_rows(call) || call.outer_dims > 1 || (call.outer_dims && call.outer_in[0] * f.size != one)) return {};
  if (call.outer_out[0] > INT32_MAX || call.out_step > INT32_MAX) return {};
  if (call.n > 256 ? !f.any_order || call.n > 1024 || one > 2 * kSliceBytes : one > kSliceBytes) return {};
  ColumnPlan plan{ColumnFamily::Slices, call, 0, 0, 0, 0};
  ColumnCall& q = plan.call;
  // Slices of a block and lanes of an output: few idle lanes in the last pass, blocks that start on a 128-byte line.
  const int64_t most = one > kSliceBytes ? 1 : kSliceBytes / one;
  const int64_t top = std::min(most, ceil_div(q.outer, int64_t(f.multiprocessors) * 8));
  int64_t line = 1;
  while (line * one % 128) line *= 2;
  double best = 1e30;
  const int full = int(power_of_two(q.n));
  auto consider = [&](int64_t slices, int lanes) {
    if (slices < 1 || slices > top) return;
    const int64_t passes = ceil_div(slices * q.inner * lanes, kThreads);
    const int span = full / lanes;
    const double cost = (passes * (std::min(span, q.n) + 5.0) + 8) / double(slices) * (slices % line ? 1.1 : 1.0);
    if (cost < best) {
      best = cost;
      q.slices = int32_t(slices);
      q.span = span;
      q.warps = lanes;
    }
  };
  for (int lanes = 1; lanes <= 32 && (lanes == 1 || full / lanes >= 8); lanes *= 2) {
    const int64_t filled = top * q.inner * lanes / kThreads * kThreads / (q.inner * lanes);
    for (int64_t s : {top, top / line * line, filled, filled / line * line}) consider(s, lanes);
  }
  const int bytes = int(q.slices * one) + 32;
  plan.shared = bytes + bytes / 128 * 16 + 16;
  plan.blocks = ceil_div(q.outer, q.slices);
  return plan;
}

inline std::optional<ColumnPlan> wide(const ColumnCall& call, const ColumnFacts& f) {
  ColumnPlan plan{ColumnFamily::Wide, call, 0, 0, 0, 0};
  ColumnCall& q = plan.call;
  set_tiles(q, f);
  const int64_t fill = int64_t(f.multiprocessors) * kWideBlocks;
  const bool whole = q.tile % 32 == 0;
  if (f.any_order) {  // eight rows that start alike
    q.log_r = whole ? 0 : log2_of(granule_columns(f.size));
    q.log_k = std::min(3, whole ? 3 : log2_of(power_of_two(ceil_div(q.n, 1 << q.log_r))));
  } else {
    q.log_r = 8;
    q.log_k = tree_log_k(q.n);
  }
  const int64_t all = accumulators(q);
  const int least = std::max(8 >> q.log_k, f.any_order ? 1 << q.log_r : 0);  // of a warp
  if (q.n <= 256) {
    q.span = int32_t(f.any_order ? ceil_div(all, least) * least : power_of_two(std::max<int64_t>(8, all)));
    while (q.warps < kWarps && q.span / q.warps > least && q.outer * ceil_div(q.tiles, kWarps / q.warps) < fill / 3)
      q.warps *= 2;
    q.span = int32_t(ceil_div(q.span, q.warps * least) * q.warps * least);
  } else {
    q.warps = kWarps;
    q.span = 256;
    q.units = int32_t(ceil_div(all, q.span));
    while (q.span << q.log_k > kWideLeast * 8 && q.outer * q.tiles * q.units < fill) {
      q.span /= 2;
      q.units = int32_t(ceil_div(all, q.span));
    }
    if (f.any_order) {
      const int step = kWarps * least;
      q.span = int32_t(ceil_div(ceil_div(all, q.units), step) * step);
      q.units = int32_t(ceil_div(all, q.span));
    }
  }
  plan.blocks = q.warps == 1 ? ceil_div(q.outer * q.tiles, kWarps)
                             : q.outer * q.units * ceil_div(q.tiles, kWarps / q.warps);
  const int columns = 33 * granule_columns(f.size);
  const int shared = kWarps * columns * f.near + (f.any_order ? 0 : kThreads * 4 * granule_columns(f.size) * f.near);
  set_split(plan, f, q.outer * q.tiles, q.tile, shared);
  if (plan.shared > f.shared) return {};
  return plan;
}

inline int64_t narrow_cap(const ColumnCall& q, const ColumnFacts& f) { return (q.inner > 128 ? 65536 : 32768) / f.near; }
inline std::optional<ColumnPlan> narrow(const ColumnCall& call, const ColumnFacts& f) {
  const int64_t cap = narrow_cap(call, f);
  if (!dense_rows(call) || 8 * int64_t(call.inner) > cap) return {};
  ColumnPlan plan{ColumnFamily::Narrow, call, 0, 0, 0, 0};
  ColumnCall& q = plan.call;
  q.log_r = 8;
  q.log_k = f.any_order ? std::min(kNarrowLogK, log2_of(power_of_two(ceil_div(q.n, 8)))) : tree_log_k(q.n);
  const int64_t fill = int64_t(f.multiprocessors) * 8;
  const int64_t most = f.any_order ? ceil_div(q.n, 1 << q.log_k) : accumulators(q);
  q.span = 8;
  while (q.span < most && 2 * q.span * int64_t(q.inner) <= cap && q.span << q.log_k < 65536) q.span *= 2;
  q.units = int32_t(ceil_div(most, q.span));
  while (q.span > 64 && q.outer * q.units < fill) {
    q.span /= 2;
    q.units = int32_t(ceil_div(most, q.span));
  }
  while (f.any_order && q.log_k > 3 && q.outer * q.units < fill) {
    --q.log_k;
    q.units = int32_t(ceil_div(ceil_div(q.n, 1 << q.log_k), q.span));
  }
  if (f.any_order) q.log_r = log2_of(q.span);
  if (q.n <= kLeaf && q.outer >= fill) {
    q.parts = q.units;
    q.units = 1;
  }
  const int64_t values = int64_t(q.span) * q.inner;
  const int64_t shared = (values + values / 32 + 1 + ((q.span + 7) / 8 + (q.span + 63) / 64 + q.parts) * int64_t(q.inner)) * f.near;
  plan.blocks = q.outer * q.units;
  set_split(plan, f, q.outer, q.inner, int(shared));
  if (plan.shared > f.shared) return {};
  return plan;
}

}  // namespace columns

// `forced`: -1, or the number of the one family that is to serve.
inline std::optional<ColumnPlan> plan_columns(const ReduceCall& call, const ColumnFacts& f, int forced = -1) {
  using namespace columns;
  auto q = column_call(call);
  if (!q) return {};
  q->same_type = f.same_type;
  if (forced >= 0) {
    switch (ColumnFamily(forced)) {
      case ColumnFamily::Short: return short_columns(*q, f);
      case ColumnFamily::Slices: return slices(*q, f);
      case ColumnFamily::Wide: return wide(*q, f);
      case ColumnFamily::Narrow: return narrow(*q, f);
    }
  }
  const int64_t n = q->n, inner = q->inner, cap = narrow_cap(*q, f);
  ColumnCall tiles = *q;
  set_tiles(tiles, f);
  const double use = double(inner) / double(int64_t(tiles.tiles) * tiles.tile);
  const bool prefer_wide =
      inner >= 1024 || (inner >= 256 && use >= 0.8) ||
      (n <= 2048 && power_of_two(std::min<int64_t>(n, 256)) * inner > cap && n * inner * f.size > kSliceBytes && use >= 0.5);
  if (prefer_wide) {
    if (auto p = short_columns(*q, f)) return p;
    return wide(*q, f);
  }
  if (auto p = slices(*q, f)) return p;
  if (auto p = narrow(*q, f)) return p;
  return wide(*q, f);
}

}  // namespace torchreduce
