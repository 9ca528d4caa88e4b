// What kernels of functions of segments along a dim have in common (segment_teams.h).
#pragma once
#include "kernels/common/collective.cuh"
#include "segment_teams.h"

namespace torchreduce::gpu {

// A row of a segment.
struct SegmentRow { int64_t segment, row, begin, length; };

__device__ __forceinline__ SegmentRow segment_row(const SegmentOffsets& of, int64_t rows, int64_t item) {
  const int64_t segment = rows == 1 ? item : item / rows;
  const void* const offsets = global(of.data);
  const int64_t begin = offset_within(offsets, of.dtype, segment, of.length);
  const int64_t end = offset_within(offsets, of.dtype, segment + 1, of.length);
  return {segment, item - segment * rows, begin, end > begin ? end - begin : 0};
}

// The item of a thread's team, of those of the block.
struct TeamItem {
  SegmentRow row;
  bool there, fits;

  __device__ __forceinline__ TeamItem(const SegmentOffsets& of, int64_t rows, const SegmentTeams& teams) {
    const int team = int(threadIdx.x) / teams.lanes;
    const int64_t item = int64_t(blockIdx.x) * teams.items + team;
    there = team < teams.items && item < of.count * rows;
    row = there ? segment_row(of, rows, item) : SegmentRow{0, 0, 0, 0};
    fits = there && row.length <= segment_teams::kOfLane * teams.lanes;
  }
};

// Calls walk(row, whole) for each of the block's items that no team has: by a warp, or where `whole` by the block.
template <class Walk>
__device__ __forceinline__ void each_walk(const SegmentOffsets& of, int64_t rows, const SegmentTeams& teams,
                                          Walk walk) {
  constexpr int kWarps = segment_teams::kWarps;
  __shared__ uint32_t long_ones[kWarps];
  const TeamItem mine(of, rows, teams);
  const int lanes = teams.lanes, warp = int(threadIdx.x) / kLanes;
  const bool left_over = mine.there && !mine.fits && int(threadIdx.x) % lanes == 0;
  const bool is_long = mine.row.length > teams.of_warp;
  uint32_t left = ballot(left_over && !is_long);
  const uint32_t of_block = ballot(left_over && is_long);
  if (lane_id() == 0) long_ones[warp] = of_block;
#pragma unroll 1
  for (int turn = 0; turn <= kWarps; ++turn) {  // a warp's own; then those of each warp that are the block's
    if (turn == 1) __syncthreads();
    if (turn > 0) left = long_ones[turn - 1];
    const int64_t base = int64_t(blockIdx.x) * teams.items + (turn > 0 ? turn - 1 : warp) * (kLanes / lanes);
#pragma unroll 1
    for (int t = 0; t < kLanes / lanes; ++t)
      if (left >> (t * lanes) & 1) walk(segment_row(of, rows, base + t), turn > 0);
  }
}

// Writes 0 to the elements of no segment: zero(row, index along the dim), by all threads of all blocks.
template <class Zero>
__device__ __forceinline__ void clear_others(const SegmentOffsets& of, int64_t rows, Zero zero) {
  const void* const offsets = global(of.data);
  const int64_t head = offset_within(offsets, of.dtype, 0, of.length);
  const int64_t end = offset_within(offsets, of.dtype, of.count, of.length), tail = end > head ? end : head;
  const int64_t others = (head + of.length - tail) * rows, threads = int64_t(gridDim.x) * blockDim.x;
#pragma unroll 1
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < others; i += threads) {
    const int64_t at = i / rows;
    zero(i - at * rows, at < head ? at : at - head + tail);
  }
}

// ---- eight elements a lane, `stride` apart -----------------------------------------------------------------------------

// Elements [from, count) of any floating type, converted; the rest stays. The type is looked at once, so that the loads
// are in flight together.
template <class F>
__device__ __forceinline__ void load_floats(Dtype dtype, const void* data, int64_t offset, int64_t stride, int from,
                                            int count, F (&x)[kGroup]) {
  const auto load = [&](auto element) {
    using E = decltype(element);
    const E* const first = global(static_cast<const E*>(data)) + offset;
    E loaded[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      if (i >= from && i < count) loaded[i] = first[i * stride];
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      if (i >= from && i < count) x[i] = convert<F>(loaded[i]);
  };
  switch (dtype) {
    case Dtype::F16: return load(F16());
    case Dtype::BF16: return load(BF16());
    case Dtype::F64: return load(double());
    default: return load(float());
  }
}
// Rounds the first `count` to the output's type, and stores them.
template <class Acc>
__device__ __forceinline__ void store_elements(Dtype dtype, void* data, int64_t offset, int64_t stride, int count,
                                               const Acc (&v)[kGroup]) {
  const auto store = [&](auto element) {
    using E = decltype(element);
    E* const first = global(static_cast<E*>(data)) + offset;
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      if (i < count) first[i * stride] = round_to<E>(v[i]);
  };
  if constexpr (std::is_same<Acc, int64_t>::value) {
    switch (dtype) {
      case Dtype::U8: return store(uint8_t());
      case Dtype::I8: return store(int8_t());
      case Dtype::I16: return store(int16_t());
      case Dtype::I32: return store(int32_t());
      default: return store(int64_t());
    }
  } else {
    switch (dtype) {
      case Dtype::F16: return store(F16());
      case Dtype::BF16: return store(BF16());
      case Dtype::F64: return store(double());
      default: return store(float());
    }
  }
}
// How many of them there are: of positions first, first + step ..., those below n, at most eight.
__device__ __forceinline__ int count_below(int64_t n, int64_t first, int step) {
  const int64_t count = n > first ? (n - first + step - 1) / step : 0;
  return int(count < kGroup ? count : kGroup);
}

}  // namespace torchreduce::gpu
