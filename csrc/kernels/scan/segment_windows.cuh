// Scans by segments whose elements are neighbours.
//
// Serves: cumsum and linear_scan, of elements of any type. A warp has segments of its own, 32 at a time.
// scan_segment_windows: as many of those that have at most a tile as have 32 groups together are a window. A lane has a
// group, whose segment it looks for among the lanes' own, and Sklansky's partner is as far from it as it is in the
// segment. Elements are loaded and stored side by side; in shared memory, [warp][element], they change places with
// groups. scan_segment_tiles: the warp walks those of up to a block tile, tile by tile. No barrier of the block.
#pragma once
#include "segment_tiles.cuh"

namespace torchreduce::gpu {

template <class S> struct SegmentWindows : SegmentTiles<S> {
  using Acc = typename S::Acc;
  using Result = typename S::Result;
  using SegmentTiles<S>::call, SegmentTiles<S>::op, SegmentTiles<S>::shared, SegmentTiles<S>::warp;
  static constexpr bool kTwo = S::kInputs == 2;

  // Of the lane's segment: where it begins, how long it is, and how many groups there are up to it.
  struct Own {
    int64_t begin;
    int length, upto;
  };
  // Of the lane's group: its segment, a lane; its number there; where that segment begins and how long it is.
  struct Group {
    int lane, number, begin, length;
    bool there;
  };

  // Element 0 of a window.
  __device__ __forceinline__ Result* begin() const { return &shared[warp][kGroup + 1]; }
  // Elements lane, lane + 32 ...: those of number k.
  __device__ __forceinline__ Result& side(Result* begin, int k) const {
    return begin[lane_id() + unsigned(lane_id()) / kGroup + k * (kLanes + kLanes / kGroup)];
  }
  // Eight neighbours from element `first` on, of which some may be before a window or behind it.
  struct Eight {
    Result *from, *next;  // until the next word that is left free, and behind it
    int apart;

    __device__ __forceinline__ Result& operator[](int i) const { return (i < apart ? from : next)[i]; }
  };
  __device__ __forceinline__ Eight eight(int first) const {
    const unsigned i = first + kGroup;
    Result* const from = &shared[warp][i + i / kGroup];
    return {from, from + 1, int(kGroup - i % kGroup)};
  }
  // The group of this lane, in a window of `segments` from the s-th one on, of `groups`; before: groups before that.
  __device__ __forceinline__ Group group_of(const Own& own, int s, int segments, int before, int groups) const {
    int of = s;
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) {
      const int next = of + step - 1, upto = shuffle(own.upto, next & (kLanes - 1)) - before;
      if (next < s + segments && upto <= lane_id()) of += step;
    }
    const bool there = lane_id() < groups;
    if (!there) of = s;
    const int start = shuffle(own.upto, (of - 1) & (kLanes - 1)) - before, apart = int(own.begin - shuffle(own.begin, s));
    const int number = lane_id() - (of > s ? start : 0);
    return {of, there ? number : 0, shuffle(apart, of), shuffle(own.length, of), there};
  }
  // The elements of a window, `from` of them not, become items.
  __device__ __forceinline__ void stage(const void* data, int64_t offset, int from, int count) const {
    Result x[kGroup];
    const int first = from > lane_id(), mine = of_lane(count);
    if constexpr (kTwo) load_floats(call.in.dtype, data, offset + lane_id(), kLanes, first, mine, x);
    else AnyLoad<Result>::run(call.in, offset + lane_id(), kLanes, mine, x);
    Result* const to = begin();
    warp_barrier();
#pragma unroll
    for (int k = 0; k < kGroup; ++k) side(to, k) = x[k];  // also what is not there
    warp_barrier();
  }
  // How many of a window's elements this lane loads and stores.
  __device__ __forceinline__ static int of_lane(int count) { return (count - lane_id() + kLanes - 1) / kLanes; }
  // The elements of this lane's group, in the order of their positions; what is not there is anything.
  __device__ __forceinline__ void take(const Group& group, Result (&x)[kGroup]) const {
    const Eight from = eight(lowest(group, group.number * kGroup));
    Result up[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) up[i] = from[i];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) x[i] = call.reverse ? up[kGroup - 1 - i] : up[i];
  }
  // Of eight positions of a group's segment, from `position` on, the one that is first in memory.
  __device__ __forceinline__ int lowest(const Group& group, int position) const {
    return group.begin + (call.reverse ? group.length - kGroup - position : position);
  }
  __device__ __forceinline__ void put(const Group& group, const Result (&results)[kGroup]) const {
    const int shift = call.exclusive, first = group.number * kGroup + shift;
    const int count = group.there ? group.length - first : 0;
    const Eight to = eight(lowest(group, first));
    const int lowest_there = call.reverse ? kGroup - count : 0, end = call.reverse ? kGroup : count;
    Result up[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) up[i] = call.reverse ? results[kGroup - 1 - i] : results[i];
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      if (i >= lowest_there && i < end) to[i] = up[i];
    if constexpr (kHasStart<S>)
      if (shift && group.number == 0 && group.there)
        eight(group.begin + (call.reverse ? group.length - 1 : 0))[0] = S::start();
  }

  // A window; width: at least as many groups as any segment has, a power of two. memory: where the inputs and the
  // results are.
  __device__ __forceinline__ void run(const Own& own, int64_t first, int64_t row, int s, int segments, int before,
                                      int groups, int width, const int64_t (&memory)[3]) const {
    const Group group = group_of(own, s, segments, before, groups);
    const int64_t from = shuffle(own.begin, s);
    const int all = shuffle(int(own.begin - from) + own.length, s + segments - 1);
    const int position = group.number * kGroup, count = group.there ? group.length - position : 0;
    Result x[kGroup], a[kGroup];
    typename S::Item items[kGroup];
    if constexpr (kTwo) {
      const int lack = call.shifted;  // then the first position of all has none to read
      stage(call.in.more[0], memory[1] + from, call.reverse ? 0 : lack, call.reverse ? all - lack : all);
      take(group, a);
      warp_barrier();
    }
    stage(call.in.data, memory[0] + from, 0, all);
    take(group, x);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if constexpr (kTwo) items[i] = op.load(Pair<Result>{a[i], x[i]}, position + i);
      else items[i] = op.load(x[i], position + i);
      if (i >= count) items[i] = S::absent_item();
    }
    const Acc upto = sklansky<S>(S::group(items), group.number, width);
    Acc within = shuffle(upto, (lane_id() - 1) & (kLanes - 1));
    if (group.number == 0) within = S::absent();
    within = S::combine(S::absent(), within);  // of a linear scan, zeros may be others without that
    Result results[kGroup];
    bool has_initial = false;
    if constexpr (kTwo) {
      if (call.in.more[1]) {
        has_initial = true;
        const int64_t at = row_offset(call.layout, call.more_strides[1], row) + (first + group.lane) * call.initial_step;
        Result h[kGroup];
        load_floats(call.in.dtype, call.in.more[1], at, 0, 0, 1, h);
        op.results(S::prefix(S::initial(h[0]), within), items, results);
      }
    }
    if (!has_initial) op.results(S::prefix(within), items, results);
    warp_barrier();
    put(group, results);
    warp_barrier();
#pragma unroll
    for (int k = 0; k < kGroup; ++k) results[k] = side(begin(), k);
    store_elements(call.out.dtype, call.out.values, memory[2] + from + lane_id(), kLanes, of_lane(all), results);
  }
};

// Where the elements of a row lie: of the inputs, and of the results.
template <class S>
__device__ __forceinline__ void rows_of(const ScanSegments& call, int64_t row, RowRun (&memory)[3]) {
  const Layout& l = call.layout;
  const RowStart start = row_start(l, row);
  const int last = l.kept - 1;
  memory[0] = {start.in, l.reduced ? l.in[l.kept] : 0, l.kept ? l.in[last] : 0};
  memory[2] = {start.out, l.reduced ? l.out[l.kept] : 0, l.kept ? l.out[last] : 0};
  if constexpr (S::kInputs == 2) {
    const auto& strides = call.more_strides[0];
    const int64_t step = l.reduced ? strides[l.kept] : 0, shift = call.shifted ? (call.reverse ? step : -step) : 0;
    memory[1] = {row_offset(l, strides, row) + shift, step, l.kept ? strides[last] : 0};
  }
}
// Writes 0 to the elements of no segment.
template <class Result> __device__ __forceinline__ void clear_others(const ScanSegments& call) {
  const Layout& l = call.layout;
  clear_others(call.of, l.rows, [&](int64_t row, int64_t i) {
    const int64_t at = row_start(l, row).out + (l.reduced ? i * l.out[l.kept] : 0);
    store_as(call.out.dtype, global(call.out.values), at, Result(0));
  });
}

template <class S>
__global__ void TR_BLOCKS_BOUND(segment_runs::kThreads, sizeof(typename S::Result) == 4 && S::kInputs == 1 ? 4 : 2)
    scan_segment_windows(TR_GRID_CONSTANT ScanSegments call, TR_GRID_CONSTANT SegmentRuns runs) {
  using Block = SegmentWindows<S>;
  __shared__ typename SegmentTiles<S>::Shared shared;
  clear_others<typename S::Result>(call);
  const SegmentOffsets& of = call.of;
  const int lane = lane_id();
  const SegmentsOfWarp mine(of, call.layout, runs);
  const Block block{{call, shared}};
  RowRun runs_of[3];
  rows_of<S>(call, mine.row, runs_of);
  const int64_t memory[3] = {runs_of[0].offset, runs_of[1].offset, runs_of[2].offset};
#pragma unroll 1
  for (int64_t first = mine.first; first < mine.last; first += kLanes) {
    const int count = int(mine.last - first < kLanes ? mine.last - first : kLanes);
    int64_t begin = 0, length = 0;
    if (lane < count) {
      begin = offset_within(global(of.data), of.dtype, first + lane, of.length);
      length = offset_within(global(of.data), of.dtype, first + lane + 1, of.length) - begin;
    }
    const bool falls = ballot(length < 0) != 0;
    const int64_t n = length > 0 ? length : 0;
    const uint32_t longs = ballot(n > kTile);
    const int groups = n > kTile ? 2 * kLanes : (int(n) + kGroup - 1) / kGroup;
    typename Block::Own own{begin, n > kTile ? 0 : int(n), groups};
#pragma unroll
    for (int d = 1; d < kLanes; d *= 2) {
      const int before = shuffle_up(own.upto, d, kLanes);
      if (lane >= d) own.upto += before;
    }
    const int width = warp_most(n > kTile ? 0 : groups);
#pragma unroll 1
    for (int s = 0; s < count;) {
      if (longs >> s & 1) {
        ++s;
        continue;
      }
      const int before = s ? shuffle(own.upto, s - 1) : 0;
      const uint32_t fit = ballot(lane >= s && lane < count && own.upto - before <= kLanes);
      const int segments = falls ? 1 : bits_set(fit);
      const int in_window = shuffle(own.upto, s + segments - 1) - before;
      if (in_window > 0) block.run(own, first, mine.row, s, segments, before, in_window, width, memory);
      s += segments;
    }
  }
}

// What precedes a tile of a block tile, as TreeStack has it, in memory that a warp shares.
template <class S> struct TilesBefore {
  using Acc = typename S::Acc;
  using Slots = Acc[kFanLog2 + 1];
  Slots& slot;
  int count = 0;

  __device__ __forceinline__ void push(Acc value) {
    int level = 0;
#pragma unroll 1
    for (; count >> level & 1; ++level) value = S::combine(slot[level], value);
    warp_barrier();
    if (lane_id() == 0) slot[level] = value;
    warp_barrier();
    ++count;
  }
  __device__ __forceinline__ Acc total() const {
    Acc value = S::absent();
    bool any = false;
#pragma unroll 1
    for (int level = 0; count >> level; ++level) {
      if (!(count >> level & 1)) continue;
      value = any ? S::combine(slot[level], value) : slot[level];
      any = true;
    }
    return value;
  }
};

template <class S>
__global__ void TR_BLOCKS_BOUND(segment_runs::kThreads, sizeof(typename S::Result) == 4 && S::kInputs == 1 ? 4 : 2)
    scan_segment_tiles(TR_GRID_CONSTANT ScanSegments call, TR_GRID_CONSTANT SegmentRuns runs) {
  using Acc = typename S::Acc;
  __shared__ typename SegmentTiles<S>::Shared shared;
  __shared__ typename TilesBefore<S>::Slots slots[segment_runs::kWarps];
  const SegmentTiles<S> tiles{call, shared};
  const SegmentsOfWarp mine(call.of, call.layout, runs);
#pragma unroll 1
  for (int64_t s = mine.first; s < mine.last; ++s) {
    const int64_t begin = offset_within(global(call.of.data), call.of.dtype, s, call.of.length);
    const int64_t end = offset_within(global(call.of.data), call.of.dtype, s + 1, call.of.length);
    if (end - begin <= kTile || end - begin > runs.room) continue;
    const auto item = tiles.item_of({s, mine.row, begin, end - begin});
    TilesBefore<S> before{slots[tiles.warp]};
#pragma unroll 1
    for (int64_t tile = 0; tile < item.n; tile += kTile) {
      typename S::Item items[kGroup];
      const Acc upto = tiles.load(item, tile, items);
      tiles.store(item, tile, upto, item.initial, before.total(), items);
      before.push(shuffle(upto, kLanes - 1));
    }
  }
}

}  // namespace torchreduce::gpu
