// What kernels for rows of neighbouring elements, or of neighbouring rows, take of a call: few dims, since arguments
// are copied for every launch.
#pragma once
#include "rowwise_launch.h"

namespace torchreduce {

constexpr int kMostRowwiseDims = 4;

// Where a row starts in each operand, in elements; `value`: what has one element a row.
struct RowwiseStart { int64_t in[2], out, value; };

struct RowwiseKernelCall {
  const void* in[2];
  const void* end[2];  // of the last elements: nothing outside is read, be it in the same 16 bytes
  void *out, *sum;
  const void *weight, *bias;
  Dtype weight_dtype, out_dtype;
  RowwiseOptions options;
  RowMemory memory;
  int64_t rows, length;
  int dims;  // kept, row-major
  int64_t size[kMostRowwiseDims];
  RowwiseStart stride[kMostRowwiseDims];

  TR_HD RowwiseStart start(int64_t row) const {
    RowwiseStart s{};
    if (dims <= 1) return {{row * stride[0].in[0], row * stride[0].in[1]}, row * stride[0].out, row * stride[0].value};
    TR_ROLLED
    for (int d = dims - 1; d >= 0; --d) {
      int64_t i = row;
      if (d > 0) {
        int64_t next;  // by 32 bits where they are enough, in a fifth of the instructions
        if (row <= int64_t(UINT32_MAX) && size[d] <= int64_t(UINT32_MAX)) next = uint32_t(row) / uint32_t(size[d]);
        else next = row / size[d];
        i = row - next * size[d];
        row = next;
      }
      s.in[0] += i * stride[d].in[0];
      s.in[1] += i * stride[d].in[1];
      s.out += i * stride[d].out;
      s.value += i * stride[d].value;
    }
    return s;
  }
};

// Whether rows are neighbouring elements in every operand, read as they are, and their dims few.
inline bool has_neighbours(const RowwiseCall& call) {
  const Layout& l = call.layout;
  const RowwiseFacts f = facts(call.op);
  const bool types = call.dtype == Dtype::F32 || call.dtype == Dtype::BF16 || call.dtype == Dtype::F16;
  if (sums_over_rows(call.op) || !is_static(call) || !types || l.length < 1 || l.rows < 1 ||
      l.kept > kMostRowwiseDims || l.reduced > 1)
    return false;
  if (l.reduced == 0) return true;
  return l.in[l.kept] == 1 && (!f.maps || l.out[l.kept] == 1) && (f.inputs < 2 || call.more_strides[0][l.kept] == 1);
}
// And written as they are.
inline bool has_plain_rows(const RowwiseCall& call) {
  return has_neighbours(call) && (!facts(call.op).maps || call.out_dtype == call.dtype);
}
inline RowwiseKernelCall plain_rows(const RowwiseCall& call) {
  const Layout& l = call.layout;
  RowwiseKernelCall r{{call.in[0], call.in[1]},
                      {},
                      call.out,
                      call.sum,
                      call.weight,
                      call.bias,
                      call.weight_dtype,
                      call.out_dtype,
                      call.options,
                      call.memory,
                      l.rows,
                      l.length,
                      l.kept,
                      {},
                      {}};
  int64_t last[2] = {1, 1};
  if (l.reduced > 0)
    for (int k = 0; k < 2; ++k) last[k] += (l.length - 1) * (k == 0 ? l.in : call.more_strides[0])[l.kept];
  for (int d = 0; d < l.kept; ++d) {
    r.size[d] = l.size[d];
    r.stride[d] = {{l.in[d], call.more_strides[0][d]}, l.out[d], call.more_strides[1][d]};
    for (int k = 0; k < 2; ++k) last[k] += (l.size[d] - 1) * r.stride[d].in[k];
  }
  for (int k = 0; k < 2; ++k)
    r.end[k] = static_cast<const char*>(call.in[k]) + (call.in[k] ? last[k] * size_of(call.dtype) : 0);
  return r;
}

// Whether all inputs of every row, of ops with weights also its output, start at the same place of a granule of 16
// bytes. `aligned`: the output, too, and at its start, and rows are whole granules.
struct RowAlignment { bool alike, aligned; };
inline RowAlignment row_alignment(const RowwiseCall& call) {
  const RowwiseFacts f = facts(call.op);
  const int64_t size = size_of(call.dtype), per = 16 / size;
  const auto place = [](const void* p) { return int64_t(reinterpret_cast<uintptr_t>(p) % 16); };
  const Layout& l = call.layout;
  RowAlignment a{true, place(call.in[0]) == 0 && l.length % per == 0};
  const auto operand = [&](const void* p, const int64_t* strides) {
    a.alike &= place(p) == place(call.in[0]) && place(p) % size == 0;
    for (int d = 0; d < l.kept; ++d) a.alike &= (strides[d] - l.in[d]) % per == 0;
  };
  operand(call.in[0], l.in);
  if (f.inputs > 1) operand(call.in[1], call.more_strides[0]);
  const bool alike = a.alike;
  if (f.maps) operand(call.out, l.out);
  for (int d = 0; d < l.kept; ++d) a.aligned &= l.in[d] % per == 0;
  a.aligned &= a.alike;
  if (!f.weights) a.alike = alike;
  return a;
}

}  // namespace torchreduce
