// A group of 8 neighbours between memory and registers, as words: where it is whole granules, where it starts anywhere,
// and backwards.
#pragma once
#include "kernels/common/collective.cuh"

namespace torchreduce::gpu {

// The N words from `from` on, which are whole granules.
template <int N> __device__ __forceinline__ void load_granules(const void* from, uint32_t (&w)[N]) {
  Granule granules[N / 4];
#pragma unroll
  for (int i = 0; i < N / 4; ++i) granules[i] = load_wide(static_cast<const Granule*>(from) + i);
  memcpy(w, granules, sizeof w);
}
template <int N> __device__ __forceinline__ void store_granules(void* to, const uint32_t (&w)[N]) {
  Granule granules[N / 4];
  memcpy(granules, w, sizeof granules);
#pragma unroll
  for (int i = 0; i < N / 4; ++i) store_wide(static_cast<Granule*>(to) + i, granules[i]);
}
// Positions [begin, end) of the 8 whose first one is at p; the rest is unspecified. 16 bytes at a time where that can
// be.
template <class E>
__device__ __forceinline__ void load_words(const E* p, int64_t stride, int begin, int end,
                                           uint32_t (&w)[kGroupWords<E>]) {
  const E* lowest = stride < 0 ? p - (kGroup - 1) : p;
  if (begin == 0 && end == kGroup && (stride == 1 || stride == -1) && reinterpret_cast<uintptr_t>(lowest) % 16 == 0)
    return load_granules(lowest, w);
  E x[kGroup];
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    const int position = stride < 0 ? kGroup - 1 - i : i;
    if (position >= begin && position < end) x[i] = global(p)[position * stride];
  }
  memcpy(w, x, sizeof w);
}

// The 8 elements in reverse order.
template <class E> __device__ __forceinline__ void reverse_words(uint32_t (&w)[kGroupWords<E>]) {
  constexpr int kWords = kGroupWords<E>, kOf = sizeof(E) < 4 ? 1 : int(sizeof(E)) / 4;  // of an element
  uint32_t up[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) up[i] = w[i];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const uint32_t word = up[kWords - kOf - i / kOf * kOf + i % kOf];
    const uint32_t halves = sizeof(E) < 4 ? funnel_right(word, word, 16) : word;
    w[i] = sizeof(E) < 2 ? (halves & 0xff00ff) << 8 | (halves >> 8 & 0xff00ff) : halves;
  }
}

// The same where `reversed`, by a loop of at most a turn: an if becomes instructions that are issued each time.
template <class E> __device__ __forceinline__ void reverse_words_if(bool reversed, uint32_t (&w)[kGroupWords<E>]) {
  TR_ROLLED
  for (int turns = recomputed(int(reversed)); turns > 0; --turns) reverse_words<E>(w);
}

// Bytes of the granule in which `p` lies that come before it.
__device__ __forceinline__ int bytes_before(const void* p) { return int(reinterpret_cast<uintptr_t>(p) % kGranule); }
// N words from the byte `before` of N + 4 on: words, or 16-bit elements.
template <int N> __device__ __forceinline__ void shift_words(const uint32_t (&w)[N + 4], int before, uint32_t (&g)[N]) {
  uint32_t a[N + 2], b[N + 1];
#pragma unroll
  for (int i = 0; i < N + 2; ++i) a[i] = before & 8 ? w[i + 2] : w[i];
#pragma unroll
  for (int i = 0; i < N + 1; ++i) b[i] = before & 4 ? a[i + 1] : a[i];
#pragma unroll
  for (int i = 0; i < N; ++i) g[i] = N > kGroup / 2 ? b[i] : funnel_right(b[i], b[i + 1], before % 4 * 8);
}

// Stores a group's words, of whole granules, to `lowest` on, where `there`. By whole warps, where lanes 2i and 2i + 1
// have neighbouring groups, `upper` the one that is higher in memory, or both nothing. They exchange granules, so that
// together they store whole sectors of 32 bytes: half of one at a time takes as long (H200, cumsum of float32 rows of
// 4096: 0.91 of a copy's speed, by whole sectors 0.98).
template <class E, int W>
__device__ __forceinline__ void store_sectors(E* lowest, bool upper, bool there, const uint32_t (&w)[W]) {
  constexpr int kGiven = W / 8;  // granules
  Granule of_lower[kGiven], of_upper[kGiven];
#pragma unroll
  for (int g = 0; g < kGiven; ++g)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t low = w[8 * g + i], high = w[8 * g + 4 + i], got = shuffle(upper ? low : high, lane_id() ^ 1);
      of_lower[g].item[i] = upper ? got : low;
      of_upper[g].item[i] = upper ? high : got;
    }
  made_of_what_is_there();
  if (!there) return;
  Granule* const to = reinterpret_cast<Granule*>(upper ? lowest - kGroup : lowest) + int(upper);
#pragma unroll
  for (int g = 0; g < kGiven; ++g) store_granule(to + 2 * g, of_lower[g]);
#pragma unroll
  for (int g = 0; g < kGiven; ++g) store_granule(to + 2 * (kGiven + g), of_upper[g]);
}
template <class E> constexpr bool kHalfSectors = sizeof(E) >= 4;  // that a granule of a group's is

}  // namespace torchreduce::gpu
