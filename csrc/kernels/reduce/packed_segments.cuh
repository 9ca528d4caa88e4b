// Sums and extremes of few columns by segments, of rows next to each other (segments.h).
//
// Serves: floats of 2, 4 and 8 bytes, up to eight columns, no order. A block has some neighbouring segments. As many of
// them as there is room for it copies to shared memory, 16 bytes at a time whatever they begin with; then teams of
// lanes have a column of a segment each: a lane has neighbouring residues. Those that one team would take much longer
// for than for others are left to warps. Long ones are listed.
// Shared memory: where the block's segments begin; rows, with a word left free after each 32, so that lanes some words
// apart do not meet in a bank; which are left.
#pragma once
#include "segment_columns.cuh"

namespace torchreduce::gpu {

// With room for a granule that begins or ends elsewhere, and for eight rows that are read and left out.
constexpr int kStageWords = (segments::kStageBytes + 32 + 8 * 8 * segments::kPackedColumns) / 4;
using Stage = uint32_t[kStageWords + kStageWords / 32 + 1];
__device__ __forceinline__ int staged_word(int i) { return i + i / 32; }

template <class Op>
__device__ __forceinline__ Columns<Op, 1> staged(const SegmentReduction& call, const Stage& stage, unsigned i) {
  constexpr int kSize = sizeof(typename Op::Element);
  uint32_t words[Columns<Op, 1>::kWords];
  if constexpr (kSize == 8) words[0] = stage[staged_word(2 * i)], words[1] = stage[staged_word(2 * i + 1)];
  else if constexpr (kSize == 4) words[0] = stage[i + i / 32];
  else words[0] = stage[i / 2 + i / 64] >> (i % 2 * 16);
  return Columns<Op, 1>::load(call.options, words);
}

// Copies the elements from `first` to `end` of those at x, of which there are `all`. The first one becomes number
// `ahead`, which is returned.
template <class E>
__device__ __forceinline__ int stage_run(Stage& stage, const E* x, int64_t first, int64_t end, int64_t all) {
  constexpr int kPer = 16 / int(sizeof(E)), kAtOnce = 4, kThreads = segments::kThreads;
  const int ahead = int(reinterpret_cast<uintptr_t>(x + first) % 16 / sizeof(E)), t = int(threadIdx.x);
  const int granules = int((end - first + ahead + kPer - 1) / kPer);
  const E* const from = x + first - ahead;  // a granule's
  const auto store = [&](int g, const Granule& granule) {
#pragma unroll
    for (int i = 0; i < 4; ++i) stage[staged_word(4 * g) + i] = granule.item[i];
  };
  const bool inside = first >= ahead && first - ahead + int64_t(granules) * kPer <= all;
  if (inside) {
#pragma unroll 1
    for (int g = t; g < granules; g += kAtOnce * kThreads) {
      Granule granule[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        granule[k] = Granule{};
        load_if(g + k * kThreads < granules, reinterpret_cast<const Granule*>(from) + g + k * kThreads, granule[k]);
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k)
        if (g + k * kThreads < granules) store(g + k * kThreads, granule[k]);
    }
    return ahead;
  }
#pragma unroll 1
  for (int g = t; g < granules; g += kThreads) {  // elements beyond the tensor are not read
    const int64_t at = first - ahead + int64_t(g) * kPer;
    E some[kPer];
#pragma unroll
    for (int i = 0; i < kPer; ++i) some[i] = at + i >= 0 && at + i < all ? global(x)[at + i] : E{};
    Granule granule;
    memcpy(&granule, some, sizeof granule);
    store(g, granule);
  }
  return ahead;
}

// Puts the next value among those of a tree, of which slot[l] has 2^l where bit l of their number is set: as TreeStack,
// by branches, since the number is the same for all lanes of a warp.
template <int kLevel, class One, int kLevels>
__device__ __forceinline__ void push_value(One (&slot)[kLevels], int count, const One& value) {
  if (!(count >> kLevel & 1)) slot[kLevel] = value;
  else if constexpr (kLevel + 1 < kLevels) push_value<kLevel + 1>(slot, count, One::combine(slot[kLevel], value));
}

// The value of `rows` staged elements, each `step` after the one before, by a team of lanes; in each of them.
template <class Op>
__device__ __forceinline__ typename Op::Near staged_value(const SegmentReduction& call, const Stage& stage, int first,
                                                          int step, int rows, int team) {
  using One = Columns<Op, 1>;
  const auto join = [](const One& a, const One& b) { return One::combine(a, b); };
  int width = kResidues / team;  // residues of a lane
  if (team > 1 && rows <= kResidues) {
    width = 8;
    while (width * team < rows) width *= 2;
  }
  const int begin = team > 1 ? lane_id() % team * width : 0, end = begin + width < rows ? begin + width : rows;
  constexpr int kLevels = 6;  // of up to 32 trees over eight residues
  One slot[kLevels];
  int count = 0;
#pragma unroll 1
  for (int r = begin; r < end; r += 8) {
    One x[8];  // what lies beyond the segment is read, and left out: reading is cheaper than a branch
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      x[i] = staged<Op>(call, stage, first + (r + i) * step);
      if (r + i >= rows) x[i] = One::absent();
    }
#pragma unroll 1
    for (int k = r + kResidues; k < rows; k += kResidues) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const One next = staged<Op>(call, stage, first + (k + i) * step);
        if (k + i < rows) x[i] = join(x[i], next);
      }
    }
    push_value<0>(slot, count, neighbours_tree(x));
    ++count;
  }
  One value = One::absent();
#pragma unroll
  for (int level = 0; level < kLevels; ++level)
    if (count >> level & 1) value = join(slot[level], value);
  typename Op::Near all = value.of[0];
#pragma unroll 1
  for (int d = 1; d < team; d *= 2) all = Op::combine(all, shuffle(all, lane_id() ^ d));
  return all;
}

template <class Op>
__global__ void TR_BLOCKS_BOUND(segments::kThreads, sizeof(typename Op::Element) == 8 ? 2 : 4)
    reduce_packed_segments(TR_GRID_CONSTANT SegmentReduction call, int each, int team,
                           TR_GRID_CONSTANT segments::Work work) {
  using namespace segments;
  using E = typename Op::Element;
  constexpr int kWarps = kThreads / kLanes, kMostLeft = kMostEach;
  __shared__ int64_t begin[kMostEach + 1];
  __shared__ Stage stage;
  __shared__ uint16_t left[kMostLeft];
  __shared__ int left_count;
  __shared__ bool falls[kWarps];
  const int t = int(threadIdx.x), warp = t / kLanes, columns = int(call.inner);
  const int64_t blocks = (call.segments + each - 1) / each, outer = call.outer == 1 ? 0 : blockIdx.x / blocks;
  const int64_t first = (blockIdx.x - outer * blocks) * each, numbered = outer * call.segments + first;
  const int count = int(least(each, call.segments - first)), room = staged_rows(sizeof(E), columns);
  const E* const x = static_cast<const E*>(call.in.data) + outer * call.outer_stride;
  for (int i = t; i <= count; i += kThreads)
    begin[i] = offset_within(global(call.offsets), call.offsets_dtype, first + i, call.rows);
  __syncthreads();
  const int most = most_packed_rows(call, begin[count] - begin[0]);
  const auto rows_of = [&](int s) { return begin[s + 1] > begin[s] ? begin[s + 1] - begin[s] : 0; };
  bool fall = false;
  for (int i = t; i - t < count; i += kThreads) {
    const int64_t rows = i < count ? rows_of(i) : 0;
    fall |= i < count && begin[i + 1] < begin[i];
    list_segments(call, work, rows > most, numbered + i, rows);
  }
  fall = ballot(fall) != 0;
  if (t % kLanes == 0) falls[warp] = fall;
  if (t == 0) left_count = 0;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) fall |= falls[w];
#pragma unroll 1
  for (int s = 0; s < count;) {
    if (rows_of(s) > most) {
      ++s;
      continue;
    }
    // Those that follow as long as there is room, by 32 and by one; where any fall, each by itself.
    const int64_t from = begin[s];
    int end = s;
#pragma unroll
    for (int step = kLanes; step > 0; step /= kLanes) {
      const int next = end + (lane_id() + 1) * step;
      end += step * bits_set(ballot(!fall && next <= count && begin[next < count ? next : count] - from <= room));
    }
    if (end == s) ++end;
    const int64_t last = begin[end] > from ? begin[end] : from;
    const int ahead = stage_run(stage, x, from * columns, last * columns, call.rows * columns);
    __syncthreads();
    const auto reduce = [&](int of, int column, int rows, int lanes) {
      const int at = rows ? ahead + int(begin[of] - from) * columns + column : 0;
      return staged_value<Op>(call, stage, at, columns, rows, lanes);
    };
    const auto finish = [&](const typename Op::Near& value, int of, int column, int rows) {
      const int64_t to = (numbered + of) * columns + column;
      if (rows == 0 && call.finish.onto != Onto::New) return;
      if (call.out.dtype == DtypeOf<E>::value) {
        Columns<Op, 1> one;
        one.of[0] = value;
        store_columns<Op, 1>(call, to, one, rows);
      } else {
        finish_one<Op>(call, value, rows, to);
      }
    };
    const int pieces = (end - s) * columns, limit = team < kLanes ? 2 * kOfLane * team : most;
#pragma unroll 1
    for (int piece = t / team; piece - t / team < pieces; piece += kThreads / team) {
      const bool wanted = piece < pieces;
      const int of = wanted ? s + (columns == 1 ? piece : piece / columns) : s;
      const int column = wanted ? piece - (of - s) * columns : 0;
      const int64_t all = wanted ? rows_of(of) : 0;
      int rows = all > most ? -1 : int(all);  // of listed ones none
      if (rows > limit && column == 0 && t % team == 0) left[atomicAdd(&left_count, 1)] = uint16_t(of);
      if (rows > limit) rows = -1;
      const typename Op::Near value = reduce(of, column, rows < 0 ? 0 : rows, team);
      if (wanted && rows >= 0 && t % team == 0) finish(value, of, column, rows);
    }
    __syncthreads();
    const int lefts = left_count * columns;
    if (lefts) {
#pragma unroll 1
      for (int piece = warp; piece < lefts; piece += kWarps) {
        const int of = left[piece / columns], column = piece % columns, rows = int(rows_of(of));
        const typename Op::Near value = reduce(of, column, rows, kLanes);
        if (t % kLanes == 0) finish(value, of, column, rows);
      }
      __syncthreads();
      if (t == 0) left_count = 0;
    }
    s = end;
  }
}

}  // namespace torchreduce::gpu
