// Scans by segments: elements of any type and strides.
#pragma once
#include "kernels/tile/segment_runs.h"
#include "plan/scan_segments.h"
#include "scan_launch.h"

namespace torchreduce {

struct PlannedScanSegments : ScanSegments { SegmentRuns plan; };
inline SegmentRuns plan(const ScanSegments& call, const DeviceFacts& device) {
  const Layout& l = call.layout;
  const bool two = facts(call.op).inputs == 2;
  if (l.reduced && l.in[l.kept] == 1 && l.out[l.kept] == 1 && (!two || call.more_strides[0][l.kept] == 1))
    return segment_runs::plan_warps(call.of, l, 32, kTile, kBlockTile, device);
  const int element = size_of(call.in.accumulator), acc = scan_sizes(call).acc;
  return segment_runs::plan(call.of, call.layout, plans::lanes_across_rows(call),
                            {element, facts(call.op).inputs, acc, acc}, device);
}

namespace gpu {
const char* scan_segments(const PlannedScanSegments& call, void* workspace, void* stream);
}  // namespace gpu

}  // namespace torchreduce
