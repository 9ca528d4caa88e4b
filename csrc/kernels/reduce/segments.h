// Sums of the rows of a matrix by segments: of those between two offsets, or of those that have one number, as the
// gradient of an embedding, whose rows are added up by tokens.
#pragma once
#include "numerics/order.h"
#include "plan/plan_tools.h"
#include "plan/segment_call.h"

namespace torchreduce {

// ---- keys, by which places are sorted -----------------------------------------------------------------------------------

namespace segments {

// The narrowest type with values for 0 to `count`: it is sorted by as many bits as it has.
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
  return value - least_key(key);
}

}  // namespace segments

// The keys of indices: an index that is no number of [0, count), or that is `skipped`, has the key of `count`.
struct KeyCall {
  const void* indices = nullptr;
  Dtype dtype = Dtype::I64;  // I32 or I64
  int64_t places = 0, count = 0, skipped = -1;
  void* keys = nullptr;  // of the type key_dtype(count)
  Elements elements;

  TR_HD void take(int64_t place) const {
    const Dtype key = segments::key_dtype(count);
    const int64_t index = elements.number(index_at(indices, dtype, place), place);
    const int64_t value = segments::least_key(key) + (index < 0 || index >= count || index == skipped ? count : index);
    switch (key) {
      case Dtype::U8: static_cast<uint8_t*>(keys)[place] = uint8_t(value); break;
      case Dtype::I16: static_cast<int16_t*>(keys)[place] = int16_t(value); break;
      case Dtype::I32: static_cast<int32_t*>(keys)[place] = int32_t(value); break;
      default: static_cast<int64_t*>(keys)[place] = value;
    }
  }
};

struct KeyPlan { int64_t blocks = 1; };
inline int64_t workspace_bytes(const KeyPlan&) { return 0; }
struct PlannedKeys : KeyCall { KeyPlan plan; };

// ---- sums ---------------------------------------------------------------------------------------------------------------

// One call. Rows are taken in the order of `order`, in which those of one segment lie next to each other, the first row
// first. The sum of a segment is that of its rows alone over dim 0, in canonical order: it depends on no other segment.
// Segments are told by offsets, or by sorted keys.
struct SegmentCall {
  const void* in = nullptr;  // (rows, columns): neighbouring elements, `pitch` elements apart
  int64_t pitch = 0;
  Dtype dtype = Dtype::F32;       // of in and out, a float
  const void* keys = nullptr;     // of each place, ascending, of the type key_dtype(segments)
  const void* numbers = nullptr;  // where there are no keys: of each place, ascending, int32 or int64
  Dtype numbers_dtype = Dtype::I64;
  const void* offsets = nullptr;  // where there are neither: of segments + 1 elements
  Dtype offsets_dtype = Dtype::I64;
  const int64_t* order = nullptr;  // the row at each place; null: place p has row p
  int64_t places = 0, columns = 0;
  int64_t segments = 0;  // places of this number are left out
  void* out = nullptr;   // (segments, columns), contiguous
  SumFinish finish;

  TR_HD int64_t number_at(int64_t place) const {
    if (!keys) return index_at(numbers, numbers_dtype, place);
    return torchreduce::segments::number_at(keys, torchreduce::segments::key_dtype(segments), place);
  }
};

struct SegmentPlan {
  int columns = 1;                // neighbouring ones of a thread
  int team = 32, leaf_team = 32;  // threads that have a row of short segments, of leaves: powers of two
  int across = 1;                 // blocks that share the columns of short segments
  int64_t blocks = 1;             // of short segments
  int64_t leaf_blocks = 0, fold_blocks = 0;
  int64_t workspace = 0;  // bytes, whatever they hold
};
inline int64_t workspace_bytes(const SegmentPlan& plan) { return plan.workspace; }

struct PlannedSegments : SegmentCall { SegmentPlan plan; };

// Where segments begin by sorted keys or numbers alone: offsets, of segments + 1 elements.
struct OffsetsPlan {};
inline int64_t workspace_bytes(const OffsetsPlan&) { return 0; }
struct PlannedOffsets : SegmentCall {
  int64_t* found = nullptr;
  OffsetsPlan plan;
};
inline OffsetsPlan plan(const PlannedOffsets&, const DeviceFacts&) { return {}; }

namespace segments {

using namespace plans;

constexpr int kThreads = 256;
constexpr int kColumns = 4;                // of a thread, where they are a word of 8 or 16 bytes
constexpr int kTeam = 32, kLeastTeam = 8;  // threads
// Rows of a segment that a team adds up alone; the leaves of longer ones have a block each. 65536 places of 768 float32
// that have 1000 numbers take 73 us, with 64 rows 103 (H100).
constexpr int kShort = 128;
// Blocks of leaves that a multiprocessor has room for: of 16 bits each has less on its way.
constexpr int leaf_blocks(int size) { return size == 2 ? 3 : 2; }

// What the workspace holds.
struct Leaf { int64_t segment, first; };  // first: row of the segment
struct Work {
  uint64_t* counts;  // of leaves, and of long segments that have several; null: nothing is listed
  int64_t* begin;    // the first place of each segment, and the end of the last
  Leaf* leaves;      // of segments that are not short, in any order
  int64_t* several;  // the segments that have several leaves, in any order
  void* sums;        // of these leaves: rows of accumulators, at leaf_slot
};
TR_HD constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
TR_HD constexpr int64_t most_leaves(int64_t places) { return places / (kShort + 1) + places / kLeaf; }
TR_HD constexpr int64_t most_several(int64_t places) { return places / (kLeaf + 1); }

// Where a leaf's sum is kept. A segment of several leaves reaches beyond the 2048 places that it begins in, so that
// among each 2048 at most one begins, after at most one leaf of the one before.
TR_HD constexpr int64_t leaf_slot(int64_t place, bool first) { return 2 * (place / kLeaf) + (first ? 1 : 0); }

// Fills in `work`; returns the workspace's bytes.
inline int64_t lay_out(const SegmentCall& call, void* workspace, Work& work) {
  int64_t bytes = 0;
  const auto take = [&](int64_t count, int64_t size) {
    char* const at = static_cast<char*>(workspace) + bytes;
    bytes += plans::ceil_div(count * size, 16) * 16;
    return at;
  };
  work.counts = reinterpret_cast<uint64_t*>(take(2, 8));
  work.begin = reinterpret_cast<int64_t*>(take(call.segments + 1, 8));
  work.leaves = reinterpret_cast<Leaf*>(take(most_leaves(call.places), sizeof(Leaf)));
  work.several = reinterpret_cast<int64_t*>(take(most_several(call.places), 8));
  const int64_t slots = call.places > kLeaf ? 2 * (plans::ceil_div(call.places, kLeaf) + 1) : 0;
  work.sums = take(slots * call.columns, call.dtype == Dtype::F64 ? 8 : 4);
  return bytes;
}

}  // namespace segments

inline KeyPlan plan(const KeyCall& call, const DeviceFacts&) {
  return {plans::ceil_div(call.places, segments::kThreads)};
}

inline SegmentPlan plan(const SegmentCall& call, const DeviceFacts& device) {
  using namespace segments;
  SegmentPlan p;
  const int size = size_of(call.dtype);
  const auto word = [&](const void* x) { return reinterpret_cast<uintptr_t>(x) % (kColumns * size) == 0; };
  const bool words = size <= 4 && call.columns % kColumns == 0 && call.pitch % kColumns == 0;
  p.columns = words && word(call.in) && word(call.out) ? kColumns : 1;
  const auto tiles = [&](int team) { return plans::ceil_div(call.columns, int64_t(team) * p.columns); };
  const int64_t multiprocessors = std::max(1, device.multiprocessors);

  p.team = int(std::min<int64_t>(kTeam, power_of_two(plans::ceil_div(call.columns, p.columns))));
  const int64_t groups = plans::ceil_div(call.segments, kThreads / p.team);
  p.across =
      int(std::clamp<int64_t>(plans::ceil_div(8 * multiprocessors, std::max<int64_t>(1, groups)), 1, tiles(p.team)));
  p.blocks = groups * p.across;

  // Teams that are narrower than a row leave more blocks with something to do where leaves are few.
  p.leaf_team = std::max(p.team, kLeastTeam);
  while (p.leaf_team > kLeastTeam && plans::ceil_div(call.places, kLeaf) * tiles(p.leaf_team) < 2 * multiprocessors)
    p.leaf_team /= 2;
  p.leaf_blocks = std::min(leaf_blocks(size) * multiprocessors, most_leaves(call.places) * tiles(p.leaf_team));
  p.fold_blocks = std::min(4 * multiprocessors, most_several(call.places) * plans::ceil_div(call.columns, kTeam));
  Work work;
  p.workspace = lay_out(call, nullptr, work);
  return p;
}

namespace gpu {
// As gpu::reduce.
const char* segment_keys(const PlannedKeys& call, void* workspace, void* stream);
const char* segment_offsets(const PlannedOffsets& call, void* workspace, void* stream);
const char* segment_sums(const PlannedSegments& call, void* workspace, void* stream);
}  // namespace gpu

}  // namespace torchreduce
