// Row-wise ops by segments.
#pragma once
#include "rowwise_call.h"
#include "segment_offsets.h"

namespace torchreduce {

// A row-wise op, without weights, on each segment of the dim that rows consist of. What has one element a row has one
// for each row of each segment. Elements of no segment become 0.
struct RowwiseSegments : RowwiseCall {
  SegmentOffsets of;
  int64_t value_step = 0;  // from what a segment has one of to that of the next
  bool across = false;     // on a CPU: rows that lie side by side are taken together

  // The call of a segment.
  RowwiseCall alone(int64_t segment) const {
    RowwiseCall one = *this;
    Layout& l = one.layout;
    const int64_t first = of.begin(segment), end = of.begin(segment + 1);
    l.length = end > first ? end - first : 0;
    advance(one.memory.stats, segment * value_step, accumulator);
    for (int k = 0; k < 3; ++k) advance(one.memory.values[k], segment * value_step, memory.dtypes[k]);
    if (!l.reduced) return one;  // one element
    const int d = l.kept;
    l.size[d] = l.length;
    advance(one.in[0], first * l.in[d], dtype);
    advance(one.in[1], first * more_strides[0][d], dtype);
    advance(one.out, first * l.out[d], out_dtype);
    return one;
  }
};

}  // namespace torchreduce
