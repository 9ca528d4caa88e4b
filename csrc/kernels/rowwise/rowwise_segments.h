// Row-wise ops by segments: elements of any floating type and any strides.
#pragma once
#include "kernels/tile/segment_teams.h"
#include "plan/rowwise_segments.h"

namespace torchreduce {

struct PlannedRowwiseSegments : RowwiseSegments { SegmentTeams plan; };
inline SegmentTeams plan(const RowwiseSegments& call, const DeviceFacts& device) {
  return segment_teams::plan(call.of, call.layout.rows, device);
}

namespace gpu {
const char* rowwise_segments(const PlannedRowwiseSegments& call, void* workspace, void* stream);
}  // namespace gpu

}  // namespace torchreduce
