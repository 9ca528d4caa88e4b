// Results of a warp that go to a run of memory which starts anywhere, by way of shared memory.
#pragma once
#include "words.cuh"

namespace torchreduce::gpu {

// Results of a warp, kItems at most, that go to a run of neighbours in memory which starts anywhere. kGroups: groups
// that start in the middle of a word come together.
template <class E, int kItems, bool kGroups> struct RunStage {
  static constexpr int kPer = kPerGranule<E>;
  // 16 bytes are left out after every 128, so that lanes 8 elements of 4 or 8 bytes apart meet in fewer banks.
  __host__ __device__ static constexpr int slot(int item) {
    return sizeof(E) > 2 ? item + int(unsigned(item) / (8 * kPer)) * kPer : item;
  }

  alignas(sizeof(Granule)) E items[slot(kItems + kPer) + kPer];

  // Elements that `out` is past the 16 bytes it lies in: where item 0 of the run is put.
  __device__ static int phase(const E* out) { return int(uintptr_t(out) % sizeof(Granule) / sizeof(E)); }

  // The first `count` of a group, from `item` on, downwards where `mirror`.
  __device__ __forceinline__ void put(int item, int count, bool mirror, const E (&x)[kGroup]) {
    if (mirror) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        if (i < count) items[slot(item - i)] = x[i];
    } else {
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        if (i < count) items[slot(item + i)] = x[i];
    }
  }
  // The same of 16-bit elements as words, in memory order; all of them words of the stage.
  __device__ __forceinline__ void put_pairs(int item, int count, bool mirror, const uint32_t (&w)[kGroupWords<E>]) {
    E* const to = items + (mirror ? item - (kGroup - 1) : item);
#pragma unroll
    for (int i = 0; i < kGroup; i += 2)
      if ((mirror ? kGroup - 1 - i : i) < count) *reinterpret_cast<uint32_t*>(to + i) = w[i / 2];
  }
  // A whole group of 16-bit elements upwards, as words of the stage, and what is left of one at either end.
  __device__ __forceinline__ void put_group(int item, const uint32_t (&w)[kGroupWords<E>]) {
    if (item % 2 == 0) return put_pairs(item, kGroup, false, w);
    items[item] = bit_cast<E>(uint16_t(w[0]));
#pragma unroll
    for (int i = 1; i < kGroup - 1; i += 2)
      *reinterpret_cast<uint32_t*>(items + item + i) = funnel_right(w[i / 2], w[i / 2 + 1], 16);
    items[item + kGroup - 1] = bit_cast<E>(uint16_t(w[kGroup / 2 - 1] >> 16));
  }
  // A whole group, upwards from the beginning of a granule on.
  __device__ __forceinline__ void put_granules(int item, const uint32_t (&w)[kGroupWords<E>]) {
#pragma unroll
    for (int i = 0; i < kGroup; i += kPer) {
      Granule granule;
      memcpy(&granule, w + i * int(sizeof(E)) / 4, sizeof granule);
      *reinterpret_cast<Granule*>(items + slot(item + i)) = granule;
    }
  }
  // The first `count` results of scan S, as put has them. `pairs`: all are words of the stage.
  template <class S, class Result>
  __device__ __forceinline__ void put_results(int item, int count, bool mirror, [[maybe_unused]] bool pairs,
                                              const Result (&r)[kGroup]) {
    uint32_t w[kGroupWords<E>];
    round_group<E, S>(r, w);
    if constexpr (sizeof(E) == 2)
      if (pairs) {
        if (mirror) reverse_words<E>(w);
        return put_pairs(item, count, mirror, w);
      }
    put_words(item, count, mirror, w);
  }
  // The same of rounded ones.
  __device__ __forceinline__ void put_words(int item, int count, bool mirror, const uint32_t (&w)[kGroupWords<E>]) {
    if constexpr (sizeof(E) == 2 && kGroups)
      if (!mirror && count >= kGroup) return put_group(item, w);
    E rounded[kGroup];
    unpack(w, rounded);
    put(item, count, mirror, rounded);
  }

  // By the whole warp, after all of it put: `count` items, put from phase(out) on, to `out`.
  __device__ __forceinline__ void store(E* out, int count) const {
    constexpr int kStep = kLanes * kPer;  // a granule each
    const int begin = phase(out), end = begin + count, lane = lane_id();
    const int first = lane * kPer;
    E* const to = out - begin + first;
    const E* const from = items + slot(first);
#pragma unroll
    for (int v = 0; v < kItems + kPer; v += kStep)
      if ((v > 0 || first >= begin) && first + v + kPer <= end) {
        Granule granule;
        memcpy(&granule, __builtin_assume_aligned(from + slot(v), sizeof granule), sizeof granule);
        store_granule(reinterpret_cast<Granule*>(to + v), granule);
      }
    // What is left at either end, an element a lane.
    const int head = begin ? (end < kPer ? end : kPer) : 0, tail = end / kPer * kPer;
    const int item = lane < kPer ? lane : tail + lane - kPer;
    if (lane < kPer ? item >= begin && item < head : item < end && tail >= head && lane < 2 * kPer) {
      E x;
      memcpy(&x, items + slot(item), sizeof x);  // put as words, maybe: no other type is known to be the same memory
      global(out)[item - begin] = x;
    }
  }
};

}  // namespace torchreduce::gpu
