// Reductions by segments that are no plain sums of a matrix's rows (segments.h): products, extremes, sums of integers,
// and sums along a dim that is not the first one. And the offsets of sorted numbers.
#pragma once
#include "kernels/reduce/segments.h"

namespace torchreduce {

struct SegmentRowsPlan {
  int team = 1;           // lanes that have neighbouring columns; the others of a warp share the rows. A power of two
  bool together = false;  // a block has a segment and the columns of a team, else each of its warps
  int64_t blocks = 1;
};
inline int64_t workspace_bytes(const SegmentRowsPlan&) { return 0; }
struct PlannedSegmentReduction : SegmentReduction { SegmentRowsPlan plan; };

namespace segment_rows {

constexpr int kWarps = segments::kThreads / segments::kTeam;

// Sums whose kernels are those of segments.h.
inline bool are_sums_of_rows(const SegmentReduction& call) {
  return call.op == Reduction::Sum && call.outer == 1 && call.inner_stride == 1 && is_float(call.in.dtype) &&
         call.out.dtype == call.in.dtype && !call.in.truth;
}

}  // namespace segment_rows

inline SegmentRowsPlan plan(const SegmentReduction& call, const DeviceFacts&) {
  using namespace segment_rows;
  SegmentRowsPlan p;
  p.team = int(std::min<int64_t>(segments::kTeam, plans::power_of_two(call.inner)));
  p.together = call.rows > call.segments * kLeaf;
  const int64_t units = call.outer * call.segments * plans::ceil_div(call.inner, p.team);
  p.blocks = std::min<int64_t>(p.together ? units : plans::ceil_div(units, kWarps), 1 << 30);
  return p;
}

namespace gpu {
// As gpu::reduce.
const char* reduce_segments(const PlannedSegmentReduction& call, void* workspace, void* stream);
}  // namespace gpu

}  // namespace torchreduce
