// Scatters of single elements on a CPU: along lines, each of which is sorted by itself.
#pragma once
#include "segment_call.h"

namespace torchreduce {

// Lines of `rows` < 2^31 elements along the dim, one for each of (outer, inner): an element goes to element index of
// its line of self. All lines have one index where its strides but index_row are 0. There are no offsets and no order.
struct LineScatter : SegmentReduction {
  const void* index = nullptr;
  Dtype index_dtype = Dtype::I64;  // I32 or I64
  int64_t index_outer = 0, index_row = 1, index_inner = 0;
};

}  // namespace torchreduce
