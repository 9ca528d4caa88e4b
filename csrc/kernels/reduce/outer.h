// What kernels for rows of neighbouring elements take of a call: few dims, since arguments are copied for every launch.
#pragma once
#include "reduce_launch.h"

namespace torchreduce {

constexpr int kMostOuter = 4;

// The kept dims, row-major; of a row alone none.
struct Outer {
  int dims = 0;
  int64_t size[kMostOuter], in[kMostOuter] = {}, out[kMostOuter] = {};
};
// By 32 bits where they are enough, in a fifth of the instructions.
TR_HD int64_t quotient(int64_t number, int64_t by) {
  return number <= int64_t(UINT32_MAX) && by <= int64_t(UINT32_MAX) ? int64_t(uint32_t(number) / uint32_t(by))
                                                                    : number / by;
}
// Where row `row` starts.
TR_HD RowStart row_start(const Outer& outer, int64_t row) {
  RowStart start{0, 0};
  TR_ROLLED
  for (int d = outer.dims - 1; d > 0; --d) {
    const int64_t next = quotient(row, outer.size[d]), i = row - next * outer.size[d];
    start.in += i * outer.in[d];
    start.out += i * outer.out[d];
    row = next;
  }
  start.in += row * outer.in[0];
  start.out += row * outer.out[0];
  return start;
}

struct RowsCall {
  const void* in;
  const void* end;  // of the last element: nothing outside is read, be it in the same 16 bytes
  Output out;
  OpOptions options;
  int64_t rows, length;
  // What every row asks for stands before what few do: an argument that is read is fetched with those around it.
  int64_t pitch, out_pitch;  // elements from a row to the next, if rows are even; and from its result, if those are
  bool even, out_even;
  Outer outer;
  // Of even rows whose results are not: result r is at r * out_pitch and, for each d, r / by[d] times skip[d].
  Divider by[kMostOuter - 1];
  int64_t skip[kMostOuter - 1];
};

// Whether the order of combining does not show in the bits (ops/reductions.h, kAnyOrder).
inline bool any_order(const ReduceCall& call) {
  return !facts(call.op, call.in.dtype).converts || call.in.accumulator == Dtype::I64;
}

// Whether rows are neighbouring elements that a kernel reads as they are, and their dims are few.
inline bool has_plain_rows(const ReduceCall& call) {
  const Layout& l = call.layout;
  return is_static(call) && l.length > 0 && l.kept <= kMostOuter &&
         (l.reduced == 0 || (l.reduced == 1 && l.in[l.kept] == 1));
}
// Elements from each row to the next, if rows are even.
inline std::optional<int64_t> row_pitch(const Layout& l) {
  if (l.kept > 1 && l.rows > INT32_MAX) return {};
  for (int d = 1; d < l.kept; ++d)
    if (l.in[d - 1] != l.size[d] * l.in[d]) return {};
  return row_stride(l);
}
inline RowsCall plain_rows(const ReduceCall& call) {
  const Layout& l = call.layout;
  RowsCall rows{};
  rows.in = call.in.data;
  rows.out = call.out;
  rows.options = call.options;
  rows.rows = l.rows;
  rows.length = l.length;
  rows.outer.dims = l.kept;
  int64_t elements = l.length;
  for (int d = 0; d < l.kept; ++d) {
    rows.outer.size[d] = l.size[d];
    rows.outer.in[d] = l.in[d];
    rows.outer.out[d] = l.out[d];
    elements += (l.size[d] - 1) * l.in[d];
  }
  if (const auto pitch = row_pitch(l)) {
    rows.even = true;
    rows.pitch = *pitch;
    rows.out_even = l.kept < 2;
    rows.out_pitch = l.kept > 0 ? l.out[l.kept - 1] : 0;
    int64_t inner = 1;
    for (int d = l.kept - 2; d >= 0; --d) {
      rows.by[d] = divider(inner *= l.size[d + 1]);
      rows.skip[d] = l.out[d] - l.size[d + 1] * l.out[d + 1];
    }
  }
  rows.end = static_cast<const char*>(call.in.data) + elements * size_of(call.in.dtype);
  return rows;
}

}  // namespace torchreduce
