// The places of each number in an index, by a stable sort, and reductions of the rows that have one number.
#pragma once
#include "kernels/common/sort.h"
#include "segments.h"

namespace torchreduce {

namespace segments {

// The narrowest type with values for 0 to `count`: torch's sort takes as many bits as it has.
TR_HD constexpr Dtype key_dtype(int64_t count) {
  return count < int64_t(1) << 8    ? Dtype::U8
         : count < int64_t(1) << 16 ? Dtype::I16
         : count < int64_t(1) << 32 ? Dtype::I32
                                    : Dtype::I64;
}
// The key of number 0.
TR_HD constexpr int64_t least_key(Dtype key) {
  return key == Dtype::U8 ? 0 : key == Dtype::I16 ? INT16_MIN : key == Dtype::I32 ? INT32_MIN : INT64_MIN;
}
TR_HD int64_t number_at(const void* keys, Dtype key, int64_t place) {
  const int64_t value = key == Dtype::U8    ? static_cast<const uint8_t*>(keys)[place]
                        : key == Dtype::I16 ? static_cast<const int16_t*>(keys)[place]
                        : key == Dtype::I32 ? static_cast<const int32_t*>(keys)[place]
                                            : static_cast<const int64_t*>(keys)[place];
  return int64_t(uint64_t(value) - uint64_t(least_key(key)));
}

}  // namespace segments

// ---- keys ---------------------------------------------------------------------------------------------------------------

// The key of each place's number, by which places are sorted: those of no segment come last.
struct KeyCall {
  const void* index = nullptr;
  Dtype dtype = Dtype::I64;  // I32 or I64
  int64_t places = 0, count = 0;
  int64_t skipped = -1;  // places of this number, and of none of [0, count), belong to no segment
  Elements elements;
  // For the sort of sort.h: the keys, and beside each its place, or what a column of floats has there.
  uint32_t *keys = nullptr, *values = nullptr;
  Source column{};
  int64_t stride = 0;
  // For torch's sort: keys of the type key_dtype(count).
  void* torchs = nullptr;

  TR_HD int64_t number_at(int64_t place) const {
    const int64_t number = elements.number(index_at(index, dtype, place), place);
    return number < 0 || number >= count || number == skipped ? count : number;
  }
  TR_HD void take(int64_t place) const {
    const int64_t number = number_at(place);
    if (keys) {
      keys[place] = uint32_t(number);
      values[place] = column.data ? bit_cast<uint32_t>(load_as<float>(column.dtype, column.data, place * stride, false))
                                  : uint32_t(place);
      return;
    }
    const Dtype key = segments::key_dtype(count);
    const int64_t value = int64_t(uint64_t(segments::least_key(key)) + uint64_t(number));
    switch (key) {
      case Dtype::U8: static_cast<uint8_t*>(torchs)[place] = uint8_t(value); break;
      case Dtype::I16: static_cast<int16_t*>(torchs)[place] = int16_t(value); break;
      case Dtype::I32: static_cast<int32_t*>(torchs)[place] = int32_t(value); break;
      default: static_cast<int64_t*>(torchs)[place] = value;
    }
  }
};
inline KeyCall keys_of(const void* index, Dtype dtype, int64_t places, int64_t count, int64_t skipped,
                       const Elements& elements) {
  KeyCall call;
  call.index = index;
  call.dtype = dtype;
  call.places = places;
  call.count = count;
  call.skipped = skipped;
  call.elements = elements;
  return call;
}
struct KeyPlan { int64_t blocks = 1; };
inline int64_t workspace_bytes(const KeyPlan&) { return 0; }
struct PlannedKeys : KeyCall { KeyPlan plan; };
inline KeyPlan plan(const KeyCall& call, const DeviceFacts&) {
  return {plans::ceil_div(call.places, segments::kThreads)};
}

// ---- offsets ------------------------------------------------------------------------------------------------------------

// Where segments begin by numbers in ascending order, and the order of their places in 64 bits.
struct OffsetsCall {
  const uint32_t* keys = nullptr;  // as KeyCall has them
  const void* torchs = nullptr;
  const void* numbers = nullptr;  // where there are no keys: int32 or int64
  Dtype dtype = Dtype::I64;
  int64_t places = 0, count = 0;
  int64_t* offsets = nullptr;        // of count + 1 elements
  const uint32_t* sorted = nullptr;  // the places in their order, or null
  int64_t* order = nullptr;          // what they become

  TR_HD int64_t number_at(int64_t place) const {
    if (keys) return keys[place];
    if (torchs) return segments::number_at(torchs, segments::key_dtype(count), place);
    return index_at(numbers, dtype, place);
  }
};
struct OffsetsPlan { int64_t blocks = 1; };
inline int64_t workspace_bytes(const OffsetsPlan&) { return 0; }
struct PlannedOffsets : OffsetsCall { OffsetsPlan plan; };
inline OffsetsPlan plan(const OffsetsCall& call, const DeviceFacts&) {
  return {plans::ceil_div(std::max(call.count + 1, call.sorted ? call.places : 0), segments::kThreads)};
}

// The numbers that occur, in any order.
struct RunsCall {
  const uint32_t* keys = nullptr;  // as KeyCall has them, sorted
  int64_t places = 0, count = 0;
  SegmentRun* runs = nullptr;  // for as many as there are places
  uint64_t* run_count = nullptr;
};

// ---- an index -----------------------------------------------------------------------------------------------------------

// A sort in the workspace. Numbers below 2^32 and fewer than 2^31 places, in a build that has sort.h's: else torch's
// sort.
struct SortPlan {
  int bits = 0;
  int64_t sort_bytes = -1;
  int64_t workspace = 0;
  bool sorts() const { return sort_bytes >= 0; }
};

namespace segments {

inline SortPlan plan_sort(int64_t places, int64_t count) {
  SortPlan p;
  if (count >= UINT32_MAX) return p;
  while (count >> p.bits) ++p.bits;  // keys are 0 to count
  p.sort_bytes = gpu::sort_bytes(places, p.bits);
  return p;
}
// Takes a part of a workspace that begins at an address of 16 bytes.
struct Room {
  char* base;
  int64_t bytes = 0;
  template <class T> T* take(int64_t count) {
    char* const at = base + bytes;
    bytes += plans::ceil_div(count * int64_t(sizeof(T)), 16) * 16;
    return reinterpret_cast<T*>(at);
  }
};
inline gpu::SortCall lay_out(const SortPlan& p, int64_t places, Room& room, void*& temporary) {
  gpu::SortCall sort;
  sort.count = places;
  sort.bits = p.bits;
  for (uint32_t*& x : sort.keys) x = room.take<uint32_t>(places);
  for (uint32_t*& x : sort.values) x = room.take<uint32_t>(places);
  temporary = room.take<char>(p.sort_bytes);
  return sort;
}

}  // namespace segments

struct PlannedIndex : SegmentIndex { SortPlan plan; };
inline int64_t workspace_bytes(const SortPlan& plan) { return plan.workspace; }
inline SortPlan plan(const SegmentIndex& call, const DeviceFacts&) {
  SortPlan p = segments::plan_sort(call.places, call.count);
  segments::Room room{nullptr};
  void* temporary;
  (void)segments::lay_out(p, call.places, room, temporary);
  p.workspace = room.bytes;
  return p;
}

// A reduction by an index: `rows` are its places; without offsets and order.
struct IndexedReduction : SegmentReduction {
  const void* index = nullptr;
  Dtype index_dtype = Dtype::I64;
  int64_t skipped = -1;
  Elements elements;
};
struct IndexedPlan {
  SortPlan sort;
  bool runs = false;     // only segments that have places are looked at: where few have
  bool carries = false;  // values are sorted instead of places: of a column of floats of at most 4 bytes
  SegmentPlan segments;
  int64_t workspace = 0;
};
inline int64_t workspace_bytes(const IndexedPlan& plan) { return plan.workspace; }
struct PlannedIndexed : IndexedReduction { IndexedPlan plan; };

namespace segments {

struct IndexedRoom {
  gpu::SortCall sort;
  void* temporary;
  int64_t* offsets;
  uint64_t* run_count;
  SegmentRun* runs;
  char* rest;  // the reduction's
};
inline IndexedRoom lay_out(const IndexedReduction& call, const IndexedPlan& p, void* workspace, int64_t& bytes) {
  IndexedRoom of;
  Room room{static_cast<char*>(workspace)};
  of.sort = lay_out(p.sort, call.rows, room, of.temporary);
  of.offsets = p.runs ? nullptr : room.take<int64_t>(call.segments + 1);
  of.run_count = p.runs ? room.take<uint64_t>(1) : nullptr;
  of.runs = p.runs ? room.take<SegmentRun>(call.rows) : nullptr;
  of.rest = room.base + room.bytes;
  bytes = room.bytes;
  return of;
}
// The reduction of what was sorted.
inline SegmentReduction sorted_reduction(const IndexedReduction& call, const IndexedPlan& p, const IndexedRoom& room) {
  SegmentReduction sorted = call;
  sorted.offsets = room.offsets;
  sorted.offsets_dtype = Dtype::I64;
  if (p.runs) {
    sorted.runs = room.runs;
    sorted.run_count = room.run_count;
    sorted.segments = std::min(call.segments, call.rows);
  }
  if (p.carries) {
    sorted.in.data = room.sort.values[0];
    sorted.in.dtype = Dtype::F32;
    sorted.row_stride = sorted.inner_stride = 1;
  } else {
    sorted.short_order = room.sort.values[0];
  }
  return sorted;
}

}  // namespace segments

inline IndexedPlan plan(const IndexedReduction& call, const DeviceFacts& device) {
  IndexedPlan p;
  p.sort = segments::plan_sort(call.rows, call.segments);
  if (!p.sort.sorts()) return p;
  p.runs = segments::are_of_columns(call) && call.finish.onto != Onto::New && call.outer == 1 &&
           call.segments > 4 * call.rows;
  p.carries = call.op == Reduction::Sum && call.outer == 1 && call.inner == 1 && is_float(call.in.dtype) &&
              size_of(call.in.dtype) <= 4 && !call.in.truth && !p.runs;
  int64_t bytes = 0;
  const segments::IndexedRoom room = segments::lay_out(call, p, nullptr, bytes);
  p.segments = plan(segments::sorted_reduction(call, p, room), device);
  p.workspace = bytes + p.segments.workspace;
  return p;
}

namespace gpu {
// As gpu::reduce.
const char* segment_keys(const PlannedKeys& call, void* workspace, void* stream);
const char* segment_offsets(const PlannedOffsets& call, void* workspace, void* stream);
const char* index_segments(const PlannedIndex& call, void* workspace, void* stream);
const char* reduce_by_index(const PlannedIndexed& call, void* workspace, void* stream);
}  // namespace gpu

}  // namespace torchreduce
