// Short rows, one after another in memory: blocks copy runs of them to shared memory.
#pragma once
#include "rows_call.h"

namespace torchreduce {

struct RowwisePackedRowsShape : RowwiseLaunch {
  int rows = 1;  // of a block, a power of two
  int log_rows = 0;
  int parts = 1;       // lanes that share a row
  int exchange = 0;    // where, in shared memory, they meet
  int input_span = 0;  // bytes from the rows of an input to those of the next

  template <class Visit> void each(Visit visit) const {
    visit("rows", rows);
    visit("parts", parts);
  }
};

namespace rowwise_packed_rows {

using namespace plans;

// A lane's neighbouring residues, and the times that a row may have them: as many elements as there are registers for
// without having fewer threads, at least 32. H200, bfloat16 log_softmax of 300 and 511: 0.40, 0.52 of a copy for 32
// elements, 0.53, 0.67 for 64; softmax, whose terms are float32, is as fast either way.
struct Form { int span, chunks; };
constexpr int kForms = 3;  // for rows of 256, 512 and 1024 elements at most
TR_HD constexpr Form form(int which, int size, int inputs, bool maps) {
  const bool many = size * inputs == 2;
  if (which == 0) return {many && !maps ? 64 : 32, 1};
  if (which == 1) return {many ? 32 : 16, 2};
  return {16, 4};
}
constexpr int form_of(int64_t length) {
  int which = 0;
  while (which < kForms && length > (kResidues << which)) ++which;
  return which;
}
// Of which rows there are kernels, and up to what length they are taken. H200, of a copy, beside rows held in
// registers: float32 softmax of 300 0.70, 0.79, gradient of 201 0.99, 1.02; bfloat16 log_softmax of 700 and 1023 0.60
// and 0.54, 0.54 and 0.65, softmax 0.49 and 0.46, 0.57 and 0.67.
TR_HD constexpr int forms(int size, int inputs, bool term) { return size == 4 ? inputs == 1 : term ? 2 : 3; }
constexpr int kMostLength = 768;
constexpr int kThreads = 256, kBytes = 40 << 10;  // of a block
constexpr int kLeastRows = 4;

// Threads of a multiprocessor that there are registers for: a lane has its elements, or terms instead of them.
TR_HD constexpr int threads(Form f, int size, int inputs, bool term) {
  const int elements = f.span * f.chunks;
  return elements * size / 4 * inputs <= 32 && !(term && elements > 32) ? 1024 : 640;
}

// How many lanes' words, `pitch` bytes apart, may be of one bank.
inline int conflicts(int64_t pitch) {
  int ways = 1;
  while (ways < 32 && pitch % (8 * ways) == 0) ways *= 2;
  return ways;
}

// Whether rows follow one another, in each operand.
inline bool is_one_run(const RowwiseCall& call) {
  const Layout& l = call.layout;
  if (l.kept > 1) return false;
  if (l.kept == 0 || l.rows == 1) return true;
  const RowwiseFacts f = facts(call.op);
  return l.in[0] == l.length && (!f.maps || l.out[0] == l.length) &&
         (f.inputs < 2 || call.more_strides[0][0] == l.length);
}

inline std::optional<RowwisePackedRowsShape> serves(const RowwiseCall& call, const DeviceFacts& device,
                                                    const PlanOverride& forced) {
  if (!has_plain_rows(call) || !is_one_run(call)) return {};
  const RowwiseFacts f = facts(call.op);
  const Layout& l = call.layout;
  const int size = size_of(call.dtype), which = form_of(l.length);
  if (f.weights || f.biases || !f.looks() || which >= forms(size, f.inputs, f.term)) return {};
  const int64_t row = l.length * size;
  const RowAlignment rows = row_alignment(call);
  if (!forced.family && (conflicts(row) > 4 || (size == 2 && rows.aligned) || l.length > kMostLength)) return {};
  RowwisePackedRowsShape s;
  s.parts = int(ceil_div(std::min<int64_t>(l.length, kResidues), form(which, size, f.inputs, f.maps).span));
  for (s.rows = kThreads;; s.rows /= 2) {
    s.threads = s.rows * s.parts;
    s.input_span = int(ceil_div(s.rows * row, 16) + 3) * 16;  // a run starts in a granule; what is read with its end
    s.exchange = s.input_span * f.inputs;
    s.shared = s.exchange + s.threads * (8 + 4 * f.sums);
    const bool many = l.rows < int64_t(s.rows) * device.multiprocessors && s.threads > 32;
    if (s.rows == kLeastRows || (s.threads <= kThreads && s.shared <= kBytes && !many)) break;
  }
  while (1 << s.log_rows < s.rows) ++s.log_rows;
  s.blocks = ceil_div(l.rows, s.rows);
  return s;
}

}  // namespace rowwise_packed_rows
}  // namespace torchreduce
