// Scans by segments.
#pragma once
#include "segment_offsets.h"

namespace torchreduce {

// A scan of each segment of the scanned dim. The layout's strides are those of memory, whatever `reverse` says, and
// more_strides[0] has a's along the scanned dim, too. Elements of no segment become 0.
struct ScanSegments : ScanCall {
  SegmentOffsets of;
  int64_t initial_step = 0;  // linear_scan: from the initial of a segment to that of the next
  bool across = false;       // on a CPU: lanes across rows

  // The scan of a segment.
  ScanCall alone(int64_t segment) const {
    ScanCall one = *this;
    Layout& l = one.layout;
    const int64_t first = of.begin(segment), end = of.begin(segment + 1);
    l.length = end > first ? end - first : 0;
    const int64_t from = reverse ? end - 1 : first, sign = reverse ? -1 : 1;
    advance(one.in.more[1], segment * initial_step, in.dtype);
    if (!l.reduced) return one;  // one element
    const int d = l.kept;
    l.size[d] = l.length;
    advance(one.in.data, from * l.in[d], in.dtype);
    // Shifted, position 0 has none to read.
    advance(one.in.more[0], (from - (shifted ? sign : 0)) * more_strides[0][d], in.dtype);
    advance(one.out.values, from * l.out[d], out.dtype);
    l.in[d] *= sign;
    l.out[d] *= sign;
    one.more_strides[0][d] *= sign;
    return one;
  }
};

}  // namespace torchreduce
