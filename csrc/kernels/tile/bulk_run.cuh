// Runs of memory that start anywhere, between device and shared memory by bulk copies, which move whole granules; and
// between shared memory and lanes, of which each takes what is its own of its granules and of the next ones.
#pragma once
#include "kernels/common/collective.cuh"

namespace torchreduce::gpu {

#ifdef TR_BULK_COPIES

// Bulk copies are fastest between places that are as far from the start of a line: a block tile has such a place in
// shared memory.
constexpr int kLine = 128;

__device__ __forceinline__ uintptr_t granule_of(uintptr_t address) { return address & ~uintptr_t(kGranule - 1); }

// Elements from the first position of the first row to the end of an input.
__device__ __forceinline__ int64_t extent(const Layout& l, const int64_t (&strides)[kMaxDims]) {
  int64_t highest = 0;
  TR_ROLLED
  for (int d = 0; d < l.kept + l.reduced; ++d)
    if (strides[d] > 0) highest += (l.size[d] - 1) * strides[d];
  return highest + 1;
}

// The bytes [begin, end) of elements E as a bulk load moves them: whole granules. Up to 15 bytes before and after are
// read, never used, and never in another page. But memory may end at `memory_end`, with the array: then its last
// elements are moved one by one.
template <class E> struct BulkRange {
  uintptr_t begin, end, from, to;

  __device__ BulkRange(uintptr_t first, uintptr_t last, uintptr_t memory_end) : begin(first), end(last) {
    const uintptr_t above = granule_of(end + kGranule - 1);
    from = granule_of(begin);
    to = above > memory_end ? granule_of(end) : above;
  }
  // To a place that begins with the line of the lowest element that it has room for, at `lowest`; with an arrival at
  // `loaded`.
  __device__ void load(char* place, uintptr_t lowest, Barrier* loaded) const {
    auto staged = [&](uintptr_t at) { return place + (at - (lowest & ~uintptr_t(kLine - 1))); };
    if (to < end) {
      for (uintptr_t at = to > begin ? to : begin; at < end; at += sizeof(E))
        *reinterpret_cast<E*>(staged(at)) = *global(reinterpret_cast<const E*>(at));
      bulk_fence();
    }
    barrier_expect(loaded, uint32_t(to - from));
    if (to > from) bulk_load(staged(from), reinterpret_cast<const void*>(from), uint32_t(to - from), loaded);
  }
};

// 8 elements of `lane` as 32-bit words, from the granules that hold them: the first starts at byte 4 * kWord + shift /
// 8 of the granule at lane * 8 elements, or, where kWord is kAligned, at byte 0.
constexpr int kAligned = 4;
template <int kWord> __device__ __forceinline__ void shifted_words(const char* run, int lane, int shift,
                                                                   uint32_t (&w)[4]) {
  const uint4* p = reinterpret_cast<const uint4*>(run) + lane;
  const uint4 a = p[0];
  if constexpr (kWord == kAligned) {
    w[0] = a.x, w[1] = a.y, w[2] = a.z, w[3] = a.w;
    return;
  }
  const uint4 b = p[1];
  const uint32_t v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = funnel_right(v[kWord % 4 + i], v[kWord % 4 + i + 1], shift);
}
template <int kWord> __device__ __forceinline__ void shifted_words(const char* run, int lane, int, uint32_t (&w)[8]) {
  const uint4* p = reinterpret_cast<const uint4*>(run) + 2 * lane;
  const int swap = lane >> 2 & 1;  // so that 8 lanes read 8 different banks
  const uint4 first = p[swap], second = p[1 - swap];
  const uint4 a = swap ? second : first, b = swap ? first : second;
  uint4 c = {};
  if (kWord % 4) c = p[2];
  const uint32_t v[12] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y, c.z, c.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) w[i] = v[kWord % 4 + i];
}

// Writes the words of 8 elements a lane, in memory order over the lanes, kWord words less shift / 8 bytes further on.
// The granule in which it begins and the one in which it ends are left to the caller; `before` holds the last words
// of lane 31 of the run before this one.
template <int kWord, int kWords>
__device__ __forceinline__ void shift_out(char* run, int lane, int shift, bool first, const uint32_t (&w)[kWords],
                                          uint32_t (&before)[4]) {
  uint32_t v[kWord + kWords];
#pragma unroll
  for (int i = 0; i < kWord; ++i) {
    const uint32_t left = shuffle_word(w[kWords - kWord + i], (lane - 1) & (kLanes - 1));
    v[i] = lane ? left : before[i];
    before[i] = left;
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) v[kWord + i] = w[i];
  uint32_t o[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i)
    o[i] = kWord && kWords == 4 ? funnel_right(v[i], v[i + (kWord ? 1 : 0)], shift) : v[i];
  uint4* p = reinterpret_cast<uint4*>(run) + lane * (kWords / 4);
  const bool hole = kWord && first && lane == 0;
  if constexpr (kWords == 4) {
    if (!hole) *p = {o[0], o[1], o[2], o[3]};
  } else {
    const int swap = lane >> 2 & 1;
    const uint4 a = {o[0], o[1], o[2], o[3]}, b = {o[4], o[5], o[6], o[7]};
    if (!hole) p[swap] = swap ? b : a;
    p[1 - swap] = swap ? a : b;
  }
}

// Stores bytes [begin, end) of what is staged, in whole granules, for `lowest`, the address of one. By one warp, which
// waits until they are read.
template <class O>
__device__ __forceinline__ void store_staged(uintptr_t lowest, const char* staging, int begin, int end) {
  // Whole granules at once, and then the elements in the granules that the neighbours write to, too.
  const int lane = lane_id();
  const int from = (begin + kGranule - 1) & ~(kGranule - 1), to = end & ~(kGranule - 1);
  char* const out = reinterpret_cast<char*>(lowest);
  if (lane == 0 && to > from) bulk_store(out + from, staging + from, uint32_t(to - from));
  constexpr int kPer = kGranule / int(sizeof(O));
  const int head_end = from < end ? from : end, tail = to > head_end ? to : head_end;
  const int at = (lane < kPer ? begin : tail - kGranule) + lane * int(sizeof(O));
  if (lane < 2 * kPer && at < (lane < kPer ? head_end : end))
    *global(reinterpret_cast<O*>(out + at)) = *reinterpret_cast<const O*>(staging + at);
  if (lane == 0 && to > from) bulk_stores_read();
}

__device__ __forceinline__ int word_of(int bytes) { return bytes ? int(unsigned(bytes) / 4) : kAligned; }

// Calls role(std::integral_constant<int, k>) with k = word, 0 to 4. kUsual, 0 or 4, is asked for first.
template <int kUsual, class Role> __device__ __forceinline__ void with_word(int word, Role role) {
  if (word == kUsual) return role(std::integral_constant<int, kUsual>());
  switch (word) {
    case 1: return role(std::integral_constant<int, 1>());
    case 2: return role(std::integral_constant<int, 2>());
    case 3: return role(std::integral_constant<int, 3>());
    default: return role(std::integral_constant<int, 4 - kUsual>());
  }
}

// The granules of a lane in shared memory, kCount from lane * kCount on. Neighbouring lanes take theirs in different
// orders, so that 8 of them meet in no bank.
template <int kCount> struct LaneGranules {
  static constexpr int kTurns = kCount % 8 == 0 ? 8 : kCount % 4 == 0 ? 4 : kCount % 2 == 0 ? 2 : 1;
  uint4* at;
  int turn;  // granule i is the i ^ turn-th that is taken

  __device__ __forceinline__ LaneGranules(char* run, int lane)
      : at(reinterpret_cast<uint4*>(run) + lane * kCount), turn(lane / (8 / kTurns) % kTurns) {}
  __device__ __forceinline__ void load(uint32_t (&w)[4 * kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const uint4 v = at[i ^ turn];
      w[4 * i] = v.x, w[4 * i + 1] = v.y, w[4 * i + 2] = v.z, w[4 * i + 3] = v.w;
    }
    in_turn(w);
  }
  __device__ __forceinline__ void store(uint32_t (&w)[4 * kCount]) const {
    in_turn(w);
#pragma unroll
    for (int i = 0; i < kCount; ++i) at[i ^ turn] = {w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]};
  }

 private:
  // Between the order of memory and that in which they are taken: no word has an index that is not a constant.
  __device__ __forceinline__ void in_turn(uint32_t (&w)[4 * kCount]) const {
#pragma unroll
    for (int d = 1; d < kTurns; d *= 2) {
      const bool swap = turn & d;
#pragma unroll
      for (int i = 0; i < 4 * kCount; ++i) {
        if (i / 4 & d) continue;
        const uint32_t low = w[i], high = w[i + 4 * d];
        w[i] = swap ? high : low;
        w[i + 4 * d] = swap ? low : high;
      }
    }
  }
};

// Moves the words of neighbouring lanes, in the order of memory, to places 4 * kWord - less / 8 bytes higher, `less`
// being 0, or 16 where kHalves. What leaves the last lane takes the place of what leaves the first.
template <int kWord, bool kHalves, int N> __device__ __forceinline__ void rotate_up(uint32_t (&w)[N], int lane,
                                                                                    int less) {
  uint32_t v[kWord + N];
#pragma unroll
  for (int i = 0; i < kWord; ++i) v[i] = shuffle_word(w[N - kWord + i], (lane - 1) & (kLanes - 1));
#pragma unroll
  for (int i = 0; i < N; ++i) v[kWord + i] = w[i];
#pragma unroll
  for (int i = 0; i < N; ++i) w[i] = kWord && kHalves ? funnel_right(v[i], v[i + (kWord ? 1 : 0)], less) : v[i];
}
// The same to places 4 * kWord + more / 8 bytes lower, `more` being 0 where not kHalves. The last lane takes the words
// `after`, if there are any, instead of the first one's.
template <int kWord, bool kHalves, int N>
__device__ __forceinline__ void rotate_down(uint32_t (&w)[N], int lane, int more, const uint32_t* after = nullptr) {
  constexpr int kTaken = kWord + kHalves;
  uint32_t v[N + kTaken];
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] = w[i];
#pragma unroll
  for (int i = 0; i < kTaken; ++i) {
    v[N + i] = shuffle_word(w[i], (lane + 1) & (kLanes - 1));
    if (after && lane == kLanes - 1) v[N + i] = after[i];
  }
#pragma unroll
  for (int i = 0; i < N; ++i) w[i] = kHalves ? funnel_right(v[i + kWord], v[i + kWord + kHalves], more) : v[i + kWord];
}

#endif

}  // namespace torchreduce::gpu
