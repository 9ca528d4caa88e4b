// Sums of the rows of a matrix that have one number: the gradient of an embedding, whose rows are added up by tokens.
#pragma once
#include "call.h"
#include "order.h"
#include "plan_tools.h"

namespace torchreduce {

// One call. Rows are taken in the order of `order`, in which those of one segment lie next to each other, the first row
// first. The sum of a segment is that of its rows alone over dim 0, in canonical order: it depends on no other segment.
struct SegmentCall {
  const void* in = nullptr;  // (rows, columns): neighbouring elements, `pitch` elements apart
  int64_t pitch = 0;
  Dtype dtype = Dtype::F32;          // of in and out, a float
  const int64_t* segment = nullptr;  // of each place, ascending
  const int64_t* order = nullptr;    // the row at each place
  int64_t places = 0, columns = 0;
  int64_t segments = 0;  // places of others than [0, segments) are left out
  int64_t skipped = -1;  // and so are those of this one
  void* out = nullptr;   // (segments, columns), contiguous; what has no place is left as it is
};

struct SegmentPlan {
  int columns = 1;  // neighbouring ones of a lane
  int across = 1;   // blocks that share the columns of some places
  int64_t blocks = 1;
  int64_t workspace = 0;  // bytes, whatever they hold: sums of leaves of segments that have several
};
inline int64_t workspace_bytes(const SegmentPlan& plan) { return plan.workspace; }

struct PlannedSegments : SegmentCall { SegmentPlan plan; };

namespace segments {

using namespace plans;

constexpr int kThreads = 256, kPlaces = kThreads / 32;  // of a block: a place a warp
constexpr int kColumns = 4;                             // of a lane, where they are a word of 8 or 16 bytes
constexpr int kShort = 64;                              // rows that a warp adds up alone

// Where a leaf's sum is kept. A segment of several leaves reaches beyond the 2048 places that it begins in, so that
// among each 2048 at most one begins, after at most one leaf of the one before.
TR_HD constexpr int64_t leaf_slot(int64_t place, bool first) { return 2 * (place / kLeaf) + (first ? 1 : 0); }

}  // namespace segments

inline SegmentPlan plan(const SegmentCall& call, const DeviceFacts& device) {
  using namespace segments;
  SegmentPlan p;
  const int size = size_of(call.dtype);
  const auto word = [&](const void* x) { return reinterpret_cast<uintptr_t>(x) % (kColumns * size) == 0; };
  const bool words = size <= 4 && call.columns % kColumns == 0 && call.pitch % kColumns == 0;
  p.columns = words && word(call.in) && word(call.out) ? kColumns : 1;
  const int64_t tiles = ceil_div(call.columns, int64_t(32) * p.columns), groups = ceil_div(call.places, kPlaces);
  const int64_t enough = 8 * int64_t(std::max(1, device.multiprocessors));
  p.across = int(std::clamp<int64_t>(ceil_div(enough, std::max<int64_t>(1, groups)), 1, std::max<int64_t>(1, tiles)));
  p.blocks = groups * p.across;
  if (call.places > kLeaf) p.workspace = 2 * (ceil_div(call.places, kLeaf) + 1) * call.columns * (size == 8 ? 8 : 4);
  return p;
}

namespace gpu {
const char* segment_sums(const PlannedSegments& call, void* workspace, void* stream);  // as gpu::reduce
}

}  // namespace torchreduce
