// Rows whose reduced dims lie in another order than the logical one: what is neighbours in memory, i, is not what is
// neighbours along the row, j. A row is slices, one after the other, of `columns` stretches of `stretch` positions
// each: position (slice * columns + i) * stretch + j.
#pragma once
#include "column_call.h"
#include "outer.h"

namespace torchreduce {

struct TransposedRowsShape : ReduceLaunch {
  int dim = 0;           // of the layout: i's
  int64_t columns = 1;   // sizes of i
  int64_t stretch = 1;   // and of all dims after it
  int64_t slices = 1;    // and of those before it
  int64_t strips = 1;    // of a slice: columns that a block takes together
  int64_t leaves = 1;    // of a row
  int64_t extent = 1;    // elements from the tensor's first to its last, in memory
  int run = 1;           // leaves of a column that a block takes
  int parts = 1;         // runs of a column
  bool whole = false;    // columns begin at granules in each row of memory

  template <class Visit> void each(Visit visit) const {
    visit("leaves", run);
    visit("parts", parts);
    visit("whole", whole);
  }
};

// Whether the kernels are compiled for elements of that type.
template <class Op> constexpr bool has_transposed_rows(Dtype d) {
  return Op::reads(d) && has_small_columns<Op>(d) && (!Op::kAnyOrder || Op::kIndexed);
}

namespace transposed_rows {

using namespace plans;

constexpr int kRowBytes = 128;                 // of memory that a block's columns have in a row
constexpr int kPitch = kRowBytes + 16;         // of it in shared memory, where it begins within a granule
constexpr int kChunks = 3;                     // of kResidues rows, in shared memory
constexpr int kMaxRun = 64;
constexpr int kFold = 2048;                    // leaves whose values a block combines

TR_HD constexpr int columns_of_block(int size) { return kRowBytes / size; }
TR_HD constexpr int threads(int size) { return columns_of_block(size) * 8; }

inline int shared_bytes(int size, int near) {
  return kChunks * kResidues * (kPitch + 1) + 8 * columns_of_block(size) * near;
}

inline std::optional<TransposedRowsShape> serves(const ReduceCall& call, const DeviceFacts& device,
                                                 const PlanOverride& forced) {
  const Layout& l = call.layout;
  const ReductionFacts f = facts(call.op, call.in.dtype);
  if (!is_static(call) || !has_small_columns(call.in.dtype) || f.two || (any_order(call) && !f.indexed)) return {};
  const int last = l.kept + l.reduced - 1, size = size_of(call.in.dtype), per = granule_columns(size);
  TransposedRowsShape s;
  s.dim = -1;
  for (int d = l.kept; d < last; ++d)
    if (l.in[d] == 1) s.dim = d;
  if (s.dim < 0 || l.rows < 1 || l.length < 1) return {};
  s.whole = aligned(call.in.data) && forced.vector_loads != 0;
  for (int d = 0; d <= last; ++d) {
    if (d >= l.kept && d < s.dim) s.slices *= l.size[d];
    if (d > s.dim) s.stretch *= l.size[d];
    if (d != s.dim) s.whole &= l.in[d] % per == 0;
    s.extent += (l.size[d] - 1) * l.in[d];
  }
  s.columns = l.size[s.dim];
  if (s.stretch < kLeaf || s.columns < 2 * per || s.stretch > INT32_MAX / 2) return {};
  s.threads = threads(size);
  s.shared = shared_bytes(size, column_facts(call).near);
  if (s.shared > device.shared - columns_of::kDeclaredShared) return {};
  s.leaves = ceil_div(l.length, kLeaf);
  s.strips = ceil_div(s.columns, columns_of_block(size));
  const int64_t most = ceil_div(s.stretch, kLeaf);  // leaves that begin in a column
  s.run = int(std::min<int64_t>(kMaxRun, power_of_two(most)));
  auto cut = [&] {
    s.parts = int(ceil_div(most, s.run));
    s.blocks = l.rows * s.slices * s.strips * s.parts;
  };
  for (cut(); s.run > 1 && s.blocks < 4 * int64_t(device.multiprocessors); cut()) s.run /= 2;
  take(forced.leaves, s.run, kMaxRun, "leaves");
  cut();
  s.splits = ceil_div(s.leaves, kFold);
  s.workspace = l.rows * (s.leaves + s.splits) * accumulator_bytes(call);
  s.tickets = l.rows;
  return s;
}

}  // namespace transposed_rows
}  // namespace torchreduce
