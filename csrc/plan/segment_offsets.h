// Segments along a dim whose functions keep its shape, or have values for each: what scans and row-wise ops by segments
// have in common. A segment is a row of its own: nothing about it depends on where it begins.
#pragma once
#include "segment_call.h"

namespace torchreduce {

struct SegmentOffsets {
  const void* data = nullptr;  // count + 1 offsets
  Dtype dtype = Dtype::I64;    // I32 or I64
  int64_t count = 0;           // segments
  int64_t length = 0;          // elements along the dim

  // The first element of a segment, and of all that follow; within [0, length] whatever the offsets are.
  TR_HD int64_t begin(int64_t segment) const { return offset_within(data, dtype, segment, length); }
};

// Moves `data` by `count` elements of type `dtype`.
template <class T> void advance(T*& data, int64_t count, Dtype dtype) {
  using Byte = std::conditional_t<std::is_const<T>::value, const char, char>;
  if (data) data = static_cast<Byte*>(data) + count * size_of(dtype);
}

}  // namespace torchreduce
