// Scans by segments: elements of any type and strides.
#pragma once
#include "kernels/tile/segment_teams.h"
#include "plan/scan_segments.h"
#include "scan_launch.h"

namespace torchreduce {

struct PlannedScanSegments : ScanSegments { SegmentTeams plan; };
inline SegmentTeams plan(const ScanSegments& call, const DeviceFacts& device) {
  return segment_teams::plan(call.of, call.layout.rows, device);
}

namespace gpu {
const char* scan_segments(const PlannedScanSegments& call, void* workspace, void* stream);
}  // namespace gpu

}  // namespace torchreduce
