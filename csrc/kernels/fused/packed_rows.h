// Short rows, one after another in memory: blocks copy runs of them to shared memory.
#pragma once
#include "rows_call.h"

namespace torchreduce {

struct FusedPackedRowsShape : FusedLaunch {
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

namespace fused_packed_rows {

using namespace plans;

// A lane's neighbouring residues, and the times that a row may have them. Lanes have many, so that few share what a row
// costs: 201 bfloat16 elements in 7 lanes take 44 instructions each, on an H200.
struct Form { int span, chunks; };
constexpr int kForms = 3;  // for rows of 256, 512 and 1024 elements at most
TR_HD constexpr Form form(int which, int size, int inputs) {
  const int held = size * inputs > 4 ? 32 : 64;  // of a lane
  return {held >> which, 1 << which};
}
constexpr int form_of(int64_t length) {
  int which = 0;
  while (which < kForms && length > (kResidues << which)) ++which;
  return which;
}
constexpr int kThreads = 128, kBytes = 40 << 10;  // of a block
constexpr int kLeastRows = 4;

// Threads of a multiprocessor that there are registers for: a lane has its elements, or terms instead of them.
TR_HD constexpr int threads(int which, int size, int inputs, bool term) {
  const Form f = form(which, size, inputs);
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
inline bool is_one_run(const FusedCall& call) {
  const Layout& l = call.layout;
  if (l.kept > 1) return false;
  if (l.kept == 0 || l.rows == 1) return true;
  const FusedFacts f = facts(call.op);
  return l.in[0] == l.length && (!f.maps || l.out[0] == l.length) &&
         (f.inputs < 2 || call.more_strides[0][0] == l.length);
}

inline std::optional<FusedPackedRowsShape> serves(const FusedCall& call, const DeviceFacts& device,
                                                  const PlanOverride& forced) {
  if (!has_plain_rows(call) || !is_one_run(call)) return {};
  const FusedFacts f = facts(call.op);
  const Layout& l = call.layout;
  const int size = size_of(call.dtype), which = form_of(l.length);
  if (f.weights || f.biases || !f.looks() || which == kForms) return {};
  const int64_t row = l.length * size;
  const RowAlignment rows = row_alignment(call);
  if (!forced.family && (conflicts(row) > 4 || (size == 2 && rows.aligned && rows.alike))) return {};
  FusedPackedRowsShape s;
  s.parts = int(ceil_div(std::min<int64_t>(l.length, kResidues), form(which, size, f.inputs).span));
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

}  // namespace fused_packed_rows
}  // namespace torchreduce
