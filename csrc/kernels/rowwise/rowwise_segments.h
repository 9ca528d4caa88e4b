// Row-wise ops by segments: elements of any floating type and any strides.
#pragma once
#include "kernels/tile/segment_runs.h"
#include "plan/rowwise_segments.h"

namespace torchreduce {

struct PlannedRowwiseSegments : RowwiseSegments { SegmentRuns plan; };
inline SegmentRuns plan(const RowwiseSegments& call, const DeviceFacts& device) {
  const Layout& l = call.layout;
  const bool two = facts(call.op).inputs == 2;
  const bool neighbours = l.reduced && l.in[l.kept] == 1 && (!call.out || l.out[l.kept] == 1) &&
                          (!two || call.more_strides[0][l.kept] == 1);
  // Teams whose lanes have eight elements, where that is half again as many as the mean; at most 16 lanes.
  const int64_t mean = call.of.length / std::max<int64_t>(1, call.of.count);
  const int team = 3 * mean <= 2 * 8 * kGroup ? 8 : 16, most = team * kGroup;
  if (neighbours && 3 * mean <= 2 * most) return segment_runs::plan_warps(call.of, l, team, most, most, device);
  // Of a segment: what its first look finds, and at most two numbers that its elements' results are made with.
  const int element = size_of(call.accumulator);
  return segment_runs::plan(call.of, call.layout, plans::lanes_across_rows(call.layout),
                            {element, facts(call.op).inputs, element, 3 * element}, device);
}

namespace gpu {
const char* rowwise_segments(const PlannedRowwiseSegments& call, void* workspace, void* stream);
}  // namespace gpu

}  // namespace torchreduce
