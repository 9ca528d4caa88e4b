// Rows that start anywhere, by granules: a lane takes its elements from two neighbouring ones, and stores the granule
// of memory that it and the lane before have together.
#pragma once
#include "kernels/reduce/granule.cuh"

namespace torchreduce::gpu {

// N words from byte `before` on, less than 4 N, of 2 N: whole words, or 16-bit elements.
template <class E, int N> __device__ __forceinline__ void words_from(const uint32_t (&w)[2 * N], int before,
                                                                     uint32_t (&to)[N]) {
  uint32_t v[2 * N];
#pragma unroll
  for (int i = 0; i < 2 * N; ++i) v[i] = w[i];
#pragma unroll
  for (int d = N / 2; d >= 1; d /= 2)
#pragma unroll
    for (int i = 0; i < N + d; ++i) v[i] = before & 4 * d ? v[i + d] : v[i];
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = sizeof(E) == 2 ? funnel_right(v[i], v[i + 1], before % 4 * 8) : v[i];
}
// The same of neighbouring structures.
template <class E, class P> __device__ __forceinline__ P part_from(const P& low, const P& high, int before) {
  constexpr int kWords = int(sizeof(P)) / 4;
  uint32_t w[2 * kWords], own[kWords];
  memcpy(w, &low, sizeof low);
  memcpy(w + kWords, &high, sizeof high);
  words_from<E>(w, before, own);
  P part;
  memcpy(&part, own, sizeof part);
  return part;
}

// Of the lane before in a warp, for the first one the last's.
__device__ __forceinline__ Granule lane_before(const Granule& g) { return shuffle(g, (lane_id() - 1) & (kLanes - 1)); }

// Where rows that start at the same byte of a granule have theirs: from byte `start`, 1 to 16, of the granules that
// hold them to `end`.
template <class E> struct AnywhereRow {
  static constexpr int kSize = int(sizeof(E)), kPer = kPerGranule<E>;
  int start, end;

  __device__ __forceinline__ AnywhereRow(const E* row, int n)
      : start(1 + int((reinterpret_cast<uintptr_t>(row) - 1) % kGranule)), end(start + n * kSize) {}
  // The granule of memory in which `own` starts, which follows `left`.
  __device__ __forceinline__ Granule composed(const Granule& left, const Granule& own) const {
    return part_from<E>(left, own, kGranule - start);
  }
  // Elements `begin` to `to` of 8 or 4 from byte `at` on, of those that the row has.
  __device__ __forceinline__ void store_elements(char* granules, int at, const Granule& g, int begin, int to) const {
    E x[kPer];
    elements_of(g, x);
    if (const int there = (end - at) / kSize; there < to) to = there;
#pragma unroll
    for (int i = 0; i < kPer; ++i)
      if (i >= begin && i < to) store_item(reinterpret_cast<E*>(granules + at) + i, x[i]);
  }
  // Granule number `place` of the row's elements, `own`, by a lane that is the first or the last of those that have
  // neighbouring ones, or neither: the lane before has `left`.
  __device__ __forceinline__ void store(E* row, int place, const Granule& left, const Granule& own, bool first,
                                        bool last) const {
    char* const granules = reinterpret_cast<char*>(row) - start;
    const int at = place * kGranule, split = (kGranule - start) / kSize;
    const bool low = first || at + kGranule > end, high = last || at + 2 * kGranule > end;  // not stored whole
    if (!low) store_item(reinterpret_cast<Granule*>(granules + at), composed(left, own));
    if (low || high) store_elements(granules, start + at, own, low ? 0 : split, high ? kPer : split);
  }
  // The same by a warp, whose lanes have neighbouring granules. What the first lane composes is the end of what the
  // last one has and the start of its own: these elements are stored by a lane each.
  __device__ __forceinline__ void store_by_warp(E* row, int place, const Granule& own) const {
    char* const granules = reinterpret_cast<char*>(row) - start;
    const int lane = lane_id(), at = place * kGranule;
    const Granule whole = composed(lane_before(own), own), ends = shuffle(whole, 0);
    if (lane > 0) {
      if (at + kGranule <= end) store_item(reinterpret_cast<Granule*>(granules + at), whole);
      else store_elements(granules, at, whole, 0, kPer);
    }
    const int edge = (place - lane) * kGranule + lane * kSize + (lane * kSize < start ? kLanes * kGranule : 0);
    if (lane >= kPer || edge >= end) return;
    const int bits = lane * kSize % 4 * 8;
    const uint32_t low = lane * kSize & 4 ? ends.item[1] : ends.item[0];
    const uint32_t high = lane * kSize & 4 ? ends.item[3] : ends.item[2];
    const uint32_t word = (lane * kSize & 8 ? high : low) >> bits;
    E x;
    memcpy(&x, &word, sizeof x);
    store_item(reinterpret_cast<E*>(granules + edge), x);
  }
};

}  // namespace torchreduce::gpu
