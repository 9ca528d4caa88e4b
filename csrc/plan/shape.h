// Folds a strided tensor and the dims an op works along into two short lists of dims, without a copy. Pure host code.
#pragma once
#include <cstdint>
#include <vector>

#include "numerics/dtype.h"

namespace torchreduce {

constexpr int kMaxDims =
    64;  // as torch; dims of size 1 are dropped, so no tensor of less than 2^64 elements needs more

// The dims of size > 1, merged where both strides allow it. The first `kept` of them number the rows, row-major; the
// `reduced` ones after those (for a scan: the scanned one) number the positions along a row, row-major. Strides count
// elements; `out` is 0 along reduced dims. Passed to kernels by value.
struct Layout {
  int kept = 0;
  int reduced = 0;
  int64_t rows = 1;    // product of the kept sizes
  int64_t length = 1;  // product of the reduced sizes; 0 when a reduced dim is empty
  int64_t size[kMaxDims];
  int64_t in[kMaxDims];
  int64_t out[kMaxDims];
};

struct Dim {
  int64_t size, in, out;
  int64_t more[2] = {0, 0};  // strides of further inputs
};
using MoreStrides = int64_t[2][kMaxDims];  // theirs for each dim of a layout

// Where row r starts, in the input and in the output; or, of the rows that the first `dims` dims number.
struct RowStart { int64_t in, out; };
TR_HD RowStart row_start(const Layout& layout, int64_t row, int dims) {
  RowStart start{0, 0};
  TR_ROLLED
  for (int d = dims - 1; d > 0; --d) {
    const int64_t next = row / layout.size[d], i = row - next * layout.size[d];
    start.in += i * layout.in[d];
    start.out += i * layout.out[d];
    row = next;
  }
  if (dims > 0) {
    start.in += row * layout.in[0];
    start.out += row * layout.out[0];
  }
  return start;
}
TR_HD RowStart row_start(const Layout& layout, int64_t row) { return row_start(layout, row, layout.kept); }

// Where row r starts in an operand with strides of its own.
TR_HD int64_t row_offset(const Layout& layout, const int64_t (&strides)[kMaxDims], int64_t row) {
  int64_t offset = 0;
  TR_ROLLED
  for (int d = layout.kept - 1; d > 0; --d) {
    const int64_t next = row / layout.size[d];
    offset += (row - next * layout.size[d]) * strides[d];
    row = next;
  }
  return layout.kept > 0 ? offset + row * strides[0] : offset;
}

// Offset of position i of a row from its start, in an operand of such strides; in the input.
TR_HD int64_t position_offset(const Layout& layout, const int64_t (&strides)[kMaxDims], int64_t i) {
  const int first = layout.kept, last = layout.kept + layout.reduced - 1;
  int64_t offset = 0;
  TR_ROLLED
  for (int d = last; d > first; --d) {
    const int64_t next = i / layout.size[d];
    offset += (i - next * layout.size[d]) * strides[d];
    i = next;
  }
  return layout.reduced > 0 ? offset + i * strides[first] : offset;
}
TR_HD int64_t position_offset(const Layout& layout, int64_t i) { return position_offset(layout, layout.in, i); }

// Stride of the fastest dim of each list, 0 where the list is empty.
TR_HD int64_t position_stride(const Layout& l) { return l.reduced ? l.in[l.kept + l.reduced - 1] : 0; }
TR_HD int64_t row_stride(const Layout& l) { return l.kept ? l.in[l.kept - 1] : 0; }

// `kept` may come in any order: its dims are sorted so that neighbouring rows lie near each other. `reduced` stays in
// ascending dim order, the contract's order of elements. The strides of further inputs go to `more`.
Layout fold(std::vector<Dim> kept, const std::vector<Dim>& reduced, MoreStrides* more = nullptr);

}  // namespace torchreduce
