// Sums and extremes of few columns by segments, of rows next to each other (segments.h).
//
// Serves: floats of 2, 4 and 8 bytes, up to eight columns, no order. A block has some neighbouring segments. As many of
// them as there is room for it copies to shared memory, 16 bytes at a time whatever they begin with; then teams of
// threads have a segment's column each: (part, residue) of a team is as of a row, a thread has neighbouring residues.
// Segments that one team would take much longer for than for others follow, a warp for each. Long ones are listed.
// Shared memory: where the block's segments begin; rows, with a word left
// free after each 32, so that threads some words apart do not meet in a bank; whether a warp left a segment.
#pragma once
#include "granule.cuh"
#include "listed_segments.cuh"

namespace torchreduce::gpu {

using Stage = uint32_t[(segments::kStageBytes + 16) / 4 + (segments::kStageBytes + 16) / 128 + 1];
__device__ __forceinline__ int staged_word(int i) { return i + i / 32; }

template <class Op>
__device__ __forceinline__ Columns<Op, 1> staged(const SegmentReduction& call, const Stage& stage, int i) {
  constexpr int kSize = sizeof(typename Op::Element);
  uint32_t words[Columns<Op, 1>::kWords];
  if constexpr (kSize == 8) words[0] = stage[staged_word(2 * i)], words[1] = stage[staged_word(2 * i + 1)];
  else if constexpr (kSize == 4) words[0] = stage[staged_word(i)];
  else words[0] = stage[staged_word(i / 2)] >> (i % 2 * 16);
  return Columns<Op, 1>::load(call.options, words);
}

// Copies the elements from `first` to `end` of those at x, of which there are `all`. The first one becomes number
// `ahead`, which is returned.
template <class E>
__device__ __forceinline__ int stage_run(Stage& stage, const E* x, int64_t first, int64_t end, int64_t all) {
  constexpr int kPer = 16 / int(sizeof(E)), kAtOnce = 4;
  const int ahead = int(reinterpret_cast<uintptr_t>(x + first) % 16 / sizeof(E)), t = int(threadIdx.x);
  const int64_t from = first - ahead;  // a granule's
  const int granules = int((end - from + kPer - 1) / kPer);
#pragma unroll 1
  for (int g = t; g < granules; g += kAtOnce * segments::kThreads) {
    Granule granule[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int number = g + k * segments::kThreads;
      const int64_t at = from + int64_t(number) * kPer;
      granule[k] = Granule{};
      const bool inside = at >= 0 && at + kPer <= all;
      load_if(number < granules && inside, reinterpret_cast<const Granule*>(x + at), granule[k]);
      if (number < granules && !inside) {
        E some[kPer] = {};
        for (int i = 0; i < kPer; ++i)
          if (at + i >= 0 && at + i < all) some[i] = global(x)[at + i];
        memcpy(&granule[k], some, sizeof some);
      }
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int word = 4 * (g + k * segments::kThreads);
      if (word < 4 * granules)
#pragma unroll
        for (int i = 0; i < 4; ++i) stage[staged_word(word + i)] = granule[k].item[i];
    }
  }
  return ahead;
}

// The value of `rows` staged elements, each `step` after the one before, by a team of lanes; in each of them.
template <class Op>
__device__ __forceinline__ typename Op::Near staged_value(const SegmentReduction& call, const Stage& stage, int first,
                                                          int step, int rows, int team) {
  using One = Columns<Op, 1>;
  const int part = lane_id() % team;
  int width = kResidues / team;  // residues of a lane
  if (rows <= kResidues) {
    width = 8;
    while (width * team < rows) width *= 2;
  }
  const auto join = [](const One& a, const One& b) { return One::combine(a, b); };
  TreeStack<One, 6> tree;
#pragma unroll 1
  for (int r = part * width; r < (part + 1) * width && r < rows; r += 8) {
    One x[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = One::absent();
#pragma unroll 1
    for (int k = r; k < rows; k += kResidues) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (k + i < rows) x[i] = join(x[i], staged<Op>(call, stage, first + (k + i) * step));
    }
    tree.push(neighbours_tree(x), join);
  }
  typename Op::Near value = tree.total(One::absent(), join).of[0];
#pragma unroll 1
  for (int d = 1; d < team; d *= 2) value = Op::combine(value, shuffle(value, lane_id() ^ d));
  return value;
}

template <class Op>
__global__ void TR_BLOCKS_BOUND(segments::kThreads, sizeof(typename Op::Element) == 8 ? 4 : 5)
    reduce_packed_segments(TR_GRID_CONSTANT SegmentReduction call, int each, int team,
                           TR_GRID_CONSTANT segments::Work work) {
  using namespace segments;
  using E = typename Op::Element;
  constexpr int kWarps = kThreads / kLanes;
  __shared__ int64_t begin[kMostEach + 1];
  __shared__ Stage stage;
  __shared__ bool left[kWarps], falls[kWarps];
  const int t = int(threadIdx.x), warp = t / kLanes, columns = int(call.inner);
  const int64_t blocks = (call.segments + each - 1) / each, outer = call.outer == 1 ? 0 : blockIdx.x / blocks;
  const int64_t first = (blockIdx.x - outer * blocks) * each, numbered = outer * call.segments + first;
  const int count = int(least(each, call.segments - first)), most = packed_rows(sizeof(E), columns);
  const int64_t room = staged_rows(sizeof(E), columns);
  const E* const x = static_cast<const E*>(call.in.data) + outer * call.outer_stride;
  for (int i = t; i <= count; i += kThreads)
    begin[i] = offset_within(global(call.offsets), call.offsets_dtype, first + i, call.rows);
  __syncthreads();
  const auto rows_of = [&](int s) { return begin[s + 1] > begin[s] ? begin[s + 1] - begin[s] : 0; };
  bool fall = false;
  for (int i = t; i - t < count; i += kThreads) {
    const int64_t rows = i < count ? rows_of(i) : 0;
    fall |= i < count && begin[i + 1] < begin[i];
    list_segments(call, work, rows > most, numbered + i, rows);
  }
  fall = ballot(fall) != 0;
  if (t % kLanes == 0) falls[warp] = fall;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) fall |= falls[w];
  const auto reduce = [&](int ahead, int64_t from, int s, int column, int rows, int lanes) {
    return staged_value<Op>(call, stage, rows ? ahead + int(begin[s] - from) * columns + column : 0, columns, rows,
                            lanes);
  };
  const auto finish = [&](const typename Op::Near& value, int s, int column, int rows) {
    finish_one<Op>(call, value, rows, (numbered + s) * columns + column);
  };
#pragma unroll 1
  for (int s = 0; s < count;) {
    if (rows_of(s) > most) {
      ++s;
      continue;
    }
    // Those that follow as long as there is room; where any fall, each by itself.
    const int64_t from = begin[s];
    int end = s + 1;
#pragma unroll 1
    for (int step = fall ? 0 : kMostEach; step > 0; step /= 2)
      if (end + step <= count && begin[end + step] - from <= room) end += step;
    const int ahead =
        stage_run(stage, x, from * columns, (begin[end] > from ? begin[end] : from) * columns, call.rows * columns);
    __syncthreads();
    const int pieces = (end - s) * columns, limit = team < kLanes ? 64 * team : most;
    bool leaves = false;
#pragma unroll 1
    for (int piece = t / team; piece - t / team < pieces; piece += kThreads / team) {
      const bool wanted = piece < pieces;
      const int of = wanted ? s + (columns == 1 ? piece : piece / columns) : s,
                column = wanted ? piece - (of - s) * columns : 0;
      const int rows = wanted ? int(rows_of(of)) : 0;
      const bool later = rows > limit;
      leaves |= later && rows <= most;
      const typename Op::Near value = reduce(ahead, from, of, column, later ? 0 : rows, team);
      if (wanted && !later && t % team == 0) finish(value, of, column, rows);
    }
    if (team < kLanes) {
      const bool any = ballot(leaves) != 0;
      if (t % kLanes == 0) left[warp] = any;
      __syncthreads();
      bool some = false;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) some |= left[w];
#pragma unroll 1
      for (int piece = warp; some && piece < pieces; piece += kWarps) {
        const int of = s + piece / columns, column = piece % columns, rows = int(rows_of(of));
        if (rows <= limit || rows > most) continue;
        const typename Op::Near value = reduce(ahead, from, of, column, rows, kLanes);
        if (t % kLanes == 0) finish(value, of, column, rows);
      }
    }
    __syncthreads();
    s = end;
  }
}

}  // namespace torchreduce::gpu
