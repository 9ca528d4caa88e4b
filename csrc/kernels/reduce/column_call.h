// Reductions with lanes across columns, as their kernels see them: (outer, n, inner), reduced along n; inner ones are
// neighbours in memory. What the families of columns share on the host: what they are compiled for, and their regimes.
#pragma once
#include "reduce_launch.h"

namespace torchreduce {

constexpr int kOuterDims = 3;

// What a kernel is given.
struct ColumnCall {
  const void* in;
  const void* end;  // of the last element: nothing outside is read, be it in the same 16 bytes
  Output out;
  OpOptions options;
  void* partials;     // of each slice and tile: units * columns, and those of groups of units
  uint32_t* tickets;  // of each slice and tile: one a group, and one of all groups where there are several
  int64_t pitch;      // elements from a row to the next of its run
  int64_t jump;       // and as many more from a run's last one to the next run's first; 0: all rows are one run
  Divider by_run, by_elements;  // rows of a run; elements of one whose rows follow each other
  int64_t out_step;             // elements from a result to that of the next column
  int64_t out_leap;             // and as many more for each `by_fine` columns; 0: columns are those of one dim
  Divider by_fine;
  int64_t outer;  // slices, numbered row-major by the outer dims
  int64_t outer_size[kOuterDims], outer_in[kOuterDims], outer_out[kOuterDims];
  int32_t outer_dims;
  int32_t n, inner;
  // An accumulator has K = 2^log_k rows, 2^log_r apart, and the first rows of 2^log_r accumulators are neighbours.
  int32_t log_k, log_r;
  int32_t span;    // accumulators that a block, or a warp alone, or a lane's share of an output, takes at once
  int32_t parts;   // spans that a block takes one after the other: its unit
  int32_t units;   // of a column
  int32_t tile;    // neighbouring columns of a warp
  int32_t tiles;   // of a slice
  int32_t warps;   // that share a unit
  int32_t lanes;   // that share an output
  int32_t slices;  // of a block
  bool ragged;     // the tensor begins or ends within a granule
  bool same_type;  // results are floats of the input's type
  bool runs;       // and those of neighbouring columns are neighbours
};

struct ColumnShape : ReduceLaunch {
  ColumnCall q{};

  template <class Visit> void each(Visit visit) const {
    visit("rows", 1 << q.log_k);  // of an accumulator
    visit("span", q.span);
    visit("parts", q.parts);
    visit("tile", q.tile);
    visit("warps", q.warps);
    visit("lanes", q.lanes);
    visit("slices", q.slices);
  }
};

// Neighbouring columns of a lane, given the bytes of an element: 16 bytes of them, or eight.
TR_HD constexpr int granule_columns(int size) { return size < 2 ? 8 : 16 / size; }
TR_HD constexpr int column_tile(int size) { return 32 * granule_columns(size); }  // of a warp, where rows are whole

// Elements from row 0 to row `row` of a slice.
TR_HD int64_t row_offset(const ColumnCall& q, int64_t row) {
  return row * q.pitch + (q.jump ? q.by_run.quotient(int(row)) * q.jump : 0);
}
// Elements from the result of column 0 to that of column c.
TR_HD int64_t result_offset(const ColumnCall& q, int64_t c) {
  return c * q.out_step + (q.out_leap ? q.by_fine.quotient(int(c)) * q.out_leap : 0);
}

constexpr int kDeepLevels = 5;  // of the tree over a lane's columns, in shared memory

// Blocks of a multiprocessor that there are registers for, given the bytes of an element; `twice`: accumulators take
// twice as many, of products, which have powers, and of two results.
TR_HD constexpr int wide_column_blocks(int size, bool two) { return (size == 4 || size == 2) && !two ? 3 : 2; }
TR_HD constexpr int narrow_column_blocks(int size, bool twice) { return twice ? 2 : size == 2 ? 4 : 3; }
TR_HD constexpr int short_column_blocks(int size, bool twice) { return twice && size == 2 ? 1 : 3; }
template <class Op> constexpr bool kTwice = std::is_same<Op, Product<typename Op::Element>>::value || kTwoResults<Op>;

constexpr int kUnitGroup = 64;  // units that meet first
TR_HD constexpr int unit_groups(int units) { return (units + kUnitGroup - 1) / kUnitGroup; }
// Rows of the first buffer that combining units takes; the second has an eighth of that.
TR_HD constexpr int fold_buffer(int units) {
  const int groups = unit_groups(units), first = units < kUnitGroup ? units : kUnitGroup;
  return ((groups > first ? groups : first) + 7) / 8;
}

// Whether the kernels of wide and narrow columns are compiled for elements of that type, where Op reads them; and those
// of short columns and of slices.
template <class Op> constexpr bool has_columns(Dtype d) {
  return Op::reads(d) && (!requires { typename Op::Order; } || is_float(d) || d == Dtype::I32 || d == Dtype::I64);
}
TR_HD constexpr bool has_small_columns(Dtype d) { return d == Dtype::F32 || d == Dtype::F16 || d == Dtype::BF16; }
template <class Op> constexpr bool has_small_columns(Dtype d) { return !kTwoResults<Op> && has_small_columns(d); }

// What the families of columns ask of an op.
struct ColumnFacts {
  int near, acc;   // bytes of Near and Acc
  bool any_order;  // no order of additions matters
  bool compiled;   // has_columns
  bool small;      // has_small_columns
};
ColumnFacts column_facts(const ReduceCall& call);

namespace columns_of {

using namespace plans;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kSliceBytes = 32 << 10;     // of slices that a block takes whole
constexpr int kDeclaredShared = 1 << 10;  // bytes of a block that are not dynamic, at most
constexpr int kLeastWide = 1024;          // columns that are always for lanes across them
constexpr int kShortRow = 512;            // bytes of columns that take less than a warp's granules
// Bytes of a slice in several runs up to which lanes across columns take it though few of them are used (H100, us, by
// these lanes and by a block a slice: 20000 windows of 100 rows of 8 float32 100 and 148; 32000 slices of 40 of 64, of
// which half are used, 42 and 73).
constexpr int kSmallSlice = 4 << 10;
constexpr double kSmallUse = 0.25;

// A call that the families of columns can look at.
struct Columns {
  ColumnCall q;
  ColumnFacts facts;
  int size;         // bytes of an element
  bool whole;       // rows are whole granules
  bool whole_runs;  // and so are runs of rows that follow each other, at least one, at one distance; facts.small
  int fill;         // blocks that fill the device, eight a multiprocessor
  int shared;       // bytes that a block may have

  int granule() const { return granule_columns(size); }
  // Bytes of the values of narrow columns that a block has in shared memory, at most.
  int64_t narrow_values() const { return (q.inner > 128 && shared > 96 << 10 ? 64 << 10 : 32 << 10) / facts.near; }
  bool dense_rows() const { return q.pitch == q.inner; }
  int64_t slice_bytes() const { return int64_t(q.n) * q.inner * size; }

  // Of lanes across columns.
  double use() const { return double(q.inner) / double(int64_t(q.tiles) * q.tile); }
  // Whether lanes across columns are used well enough, or nothing else serves as well.
  bool wide() const {
    const double use = this->use();
    const int64_t rows = power_of_two(std::min<int64_t>(q.n, kResidues));
    if (q.jump || !dense_rows())  // narrow columns would be a block a slice
      if (!whole_runs || slice_bytes() <= (use < kSmallUse ? kSmallSlice : kSliceBytes)) return true;
    return q.inner >= kLeastWide || (q.inner >= 256 && use >= 0.8) ||
           (q.n <= kLeaf && rows * q.inner > narrow_values() && slice_bytes() > kSliceBytes && use >= 0.5 &&
            !(q.n > (facts.any_order ? 1 : 2) * kResidues && use < 0.8));
  }
};

// Accumulators of n rows.
inline int64_t accumulators(const ColumnCall& q) {
  const int64_t step = int64_t(1) << q.log_r, rows = step << q.log_k, last = (q.n - 1) % rows + 1;
  return (q.n - 1) / rows * step + std::min(step, last);
}
inline int log2_of(int64_t power) {
  int log = 0;
  while ((int64_t(1) << log) < power) ++log;
  return log;
}
// log2 of the rows of an accumulator in the canonical order.
inline int tree_log_k(int64_t n) { return n <= 256 ? 0 : n <= 512 ? 1 : n <= 1024 ? 2 : 3; }

inline std::optional<Columns> columns_of(const ReduceCall& call, const DeviceFacts& device) {
  const Layout& l = call.layout;
  if (!is_static(call) || l.reduced < 1 || l.reduced > 2 || l.kept < 1) return {};
  if (l.length < 1 || l.length > INT32_MAX || l.rows < 1) return {};
  const ColumnFacts facts = column_facts(call);
  if (!facts.compiled) return {};
  int inner = -1;
  for (int d = 0; d < l.kept; ++d)
    if (l.in[d] == 1) inner = d;
  if (inner < 0 || l.size[inner] > INT32_MAX / 2) return {};
  Columns c{};
  ColumnCall& q = c.q;
  c.facts = facts;
  c.size = size_of(call.in.dtype);
  int next = -1;  // a dim whose columns follow each other in memory, where those of the inner one are few
  for (int d = 0; d < l.kept; ++d)
    if (l.in[d] == l.size[inner] && l.size[inner] * c.size < kShortRow && l.size[d] * l.in[d] <= INT32_MAX / 2)
      next = d;
  if (l.kept - (next >= 0) > kOuterDims + 1) return {};
  c.fill = device.multiprocessors * 8;
  c.shared = device.shared - kDeclaredShared;
  q.n = int32_t(l.length);
  q.inner = int32_t(l.size[inner]);
  const int last = l.kept + l.reduced - 1;
  q.pitch = l.in[last];
  if (l.reduced == 2) {
    q.jump = l.in[l.kept] - l.size[last] * q.pitch;
    q.by_run = divider(l.size[last]);
  }
  q.out_step = l.out[inner];
  if (next >= 0) {
    q.out_leap = l.out[next] - q.inner * q.out_step;
    q.by_fine = divider(q.inner);
    q.inner *= int32_t(l.size[next]);
  }
  q.outer = 1;
  // Whether slices and runs of rows start at granules.
  bool starts = reinterpret_cast<uintptr_t>(call.in.data) % uintptr_t(c.granule() * c.size) == 0;
  for (int d = 0; d < l.kept; ++d) {
    if (d == inner || d == next) continue;
    q.outer *= l.size[d];
    q.outer_size[q.outer_dims] = l.size[d];
    q.outer_in[q.outer_dims] = l.in[d];
    q.outer_out[q.outer_dims++] = l.out[d];
    starts &= l.in[d] % c.granule() == 0;
  }
  starts &= q.jump % c.granule() == 0;
  c.whole = starts && q.pitch % c.granule() == 0;
  const int64_t run = c.dense_rows() ? l.size[last] * q.inner : q.inner;
  c.whole_runs = facts.small && starts && run % c.granule() == 0 && int64_t(q.n) * q.inner <= INT32_MAX &&
                 (c.dense_rows() || (l.reduced == 1 && q.pitch % c.granule() == 0));
  if (c.whole_runs) q.by_elements = divider(run);
  q.tile = (c.whole ? 32 : 31) * c.granule();
  q.tiles = int32_t(ceil_div(q.inner, q.tile));
  q.parts = q.units = q.warps = q.lanes = q.slices = 1;
  q.same_type = !call.out.indices && is_float(call.in.dtype) && call.out.dtype == call.in.dtype;
  q.runs = q.same_type && q.out_step == 1 && !q.out_leap;
  return c;
}

// Partial results and tickets of units that meet, in `slots` places of `columns` each.
inline void split(ColumnShape& s, const Columns& c, int64_t slots, int columns) {
  s.splits = s.q.units;
  if (s.q.units == 1) return;
  const int groups = unit_groups(s.q.units), rows = fold_buffer(s.q.units);
  s.shared = std::max(s.shared, (rows + (rows + 7) / 8) * columns * c.facts.acc);
  s.workspace = slots * (s.q.units + groups) * columns * c.facts.acc;
  s.tickets = slots * (groups == 1 ? 1 : groups + 1);
}

}  // namespace columns_of
}  // namespace torchreduce
