// What kernels for rows of neighbouring elements take of a call: few dims, since arguments are copied for every launch.
#pragma once
#include "family.h"

namespace torchreduce {

constexpr int kMostOuter = 4;

// The kept dims, row-major; of a row alone none.
struct Outer {
  int dims = 0;
  int64_t size[kMostOuter], in[kMostOuter] = {}, out[kMostOuter] = {};
};
// Where row `row` starts.
TR_HD RowStart row_start(const Outer& outer, int64_t row) {
  RowStart start{0, 0};
  TR_ROLLED
  for (int d = outer.dims - 1; d > 0; --d) {
    int64_t next;  // by 32 bits where they are enough, in a fifth of the instructions
    if (row <= int64_t(UINT32_MAX) && outer.size[d] <= int64_t(UINT32_MAX))
      next = int64_t(uint32_t(row) / uint32_t(outer.size[d]));
    else next = row / outer.size[d];
    const int64_t i = row - next * outer.size[d];
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
  Outer outer;
};

// Whether the order of combining does not show in the bits (ops.h, kAnyOrder).
inline bool any_order(const ReduceCall& call) {
  return !facts(call.op, call.in.dtype).converts || call.in.accumulator == Dtype::I64;
}

// Whether rows are neighbouring elements that a kernel reads as they are, and their dims are few.
inline bool has_plain_rows(const ReduceCall& call) {
  const Layout& l = call.layout;
  return is_static(call) && l.length > 0 && l.kept <= kMostOuter &&
         (l.reduced == 0 || (l.reduced == 1 && l.in[l.kept] == 1));
}
inline RowsCall plain_rows(const ReduceCall& call) {
  const Layout& l = call.layout;
  RowsCall rows{call.in.data, nullptr, call.out, call.options, l.rows, l.length, {}};
  rows.outer.dims = l.kept;
  int64_t elements = l.length;
  for (int d = 0; d < l.kept; ++d) {
    rows.outer.size[d] = l.size[d];
    rows.outer.in[d] = l.in[d];
    rows.outer.out[d] = l.out[d];
    elements += (l.size[d] - 1) * l.in[d];
  }
  rows.end = static_cast<const char*>(call.in.data) + elements * size_of(call.in.dtype);
  return rows;
}

}  // namespace torchreduce
