// Scans by segments whose elements are neighbours.
//
// Serves: cumsum and linear_scan, of elements of any type. A warp has segments of its own, 32 at a time.
// scan_segment_windows: as many of those that have at most a tile as have 32 groups together are a window. A lane has a
// group, whose segment it looks for among the lanes' own, and Sklansky's partner is as far from it as it is in the
// segment. scan_segment_tiles: the warp walks those of up to a block tile; a tile is a window. Elements are loaded and
// stored side by side; in shared memory, [warp][element], they change places with groups. No barrier of the block.
#pragma once
#include "kernels/tile/segment_runs.cuh"
#include "rows.cuh"
#include "scan_segments.h"

namespace torchreduce::gpu {

template <class S, bool kReverse> struct SegmentWindow {
  using Acc = typename S::Acc;
  using Item = typename S::Item;
  using Result = typename S::Result;  // as which elements are held, too
  static constexpr bool kTwo = S::kInputs == 2;
  // Of a window, with a group before it and one behind. A word, or two, is left free after each group, so that lanes
  // some groups apart do not meet in a bank.
  using Held = Result[kTile + kFan + 3 * (kGroup + 1)];
  // The group of a lane: whose it is, its number there, and where in the window that segment begins, and its length.
  struct Group {
    int segment, number, begin, length;
    bool there;
  };

  const ScanSegments& call;
  Held& held;
  int64_t in = 0, a = 0, out = 0;  // where the row begins
  const S op{call.options};

  __device__ __forceinline__ void begin(int64_t row) {
    const RowStart start = row_start(call.layout, row);
    in = start.in;
    out = start.out;
    if constexpr (kTwo)
      a = row_offset(call.layout, call.more_strides[0], row) + (call.shifted ? (kReverse ? 1 : -1) : 0);
  }
  __device__ __forceinline__ Result initial(int64_t row, int64_t segment) const {
    Result h[kGroup];
    load_floats(call.in.dtype, call.in.more[1],
                row_offset(call.layout, call.more_strides[1], row) + segment * call.initial_step, 0, 0, 1, h);
    return h[0];
  }

  // ---- elements ------------------------------------------------------------------------------------------------------

  // Elements lane, lane + 32 ...: those of number k.
  __device__ __forceinline__ Result& side(int k) const {
    return held[kGroup + 1 + lane_id() + unsigned(lane_id()) / kGroup + k * (kLanes + kLanes / kGroup)];
  }
  // Eight neighbours, of which some may be before a window or behind it.
  struct Eight {
    Held& held;
    int at, apart;  // as many until the next word that is left free

    __device__ __forceinline__ Result& operator[](int i) const { return held[(i < apart ? at : at + 1) + i]; }
  };
  // Those of positions of a group's segment from `position` on, as they lie in memory.
  __device__ __forceinline__ Eight eight(const Group& group, int position) const {
    const unsigned i = kGroup + group.begin + (kReverse ? group.length - kGroup - position : position);
    return {held, int(recomputed(int(i + i / kGroup))), int(kGroup - i % kGroup)};
  }
  // Elements from `first` to `end` of a window, number 0 of which is number `from` of the row at `row`. A whole tile is
  // read where there is one.
  __device__ __forceinline__ void load(const void* data, int64_t row, int64_t from, int first, int end) const {
    const bool is_inside = from > 0 && from + kTile < call.of.length;
    with_element<kTwo>(call.in.dtype, [&](auto element) {
      using E = decltype(element);
      const E* const window = global(static_cast<const E*>(data)) + row + from;
      if (is_inside) {
        E x[kGroup];
#pragma unroll
        for (int k = 0; k < kGroup; ++k) x[k] = window[lane_id() + k * kLanes];
#pragma unroll
        for (int k = 0; k < kGroup; ++k) side(k) = convert<Result>(x[k]);
      } else {
#pragma unroll 1
        for (int k = 0; k < kGroup; ++k) {
          const int i = lane_id() + k * kLanes;
          if (i >= first && i < end) side(k) = convert<Result>(window[i]);
        }
      }
    });
    warp_barrier();
  }
  __device__ __forceinline__ void store(int64_t offset, int first, int end) const {
    Result x[kGroup];
#pragma unroll
    for (int k = 0; k < kGroup; ++k) x[k] = side(k);
    warp_barrier();
    with_result<Result>(call.out.dtype, [&](auto element) {
      using E = decltype(element);
      E* const to = global(static_cast<E*>(call.out.values)) + offset + lane_id();
#pragma unroll
      for (int k = 0; k < kGroup; ++k) {
        const int i = lane_id() + k * kLanes;
        const E rounded = round_to<E>(x[k]);
        if (i >= first && i < end) to[k * kLanes] = rounded;
      }
    });
  }
  __device__ __forceinline__ void take(const Group& group, Result (&x)[kGroup]) const {
    const Eight from = eight(group, group.number * kGroup);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) x[kReverse ? kGroup - 1 - i : i] = from[i];
  }
  // Results, `shift` positions further on.
  __device__ __forceinline__ void put(const Group& group, int shift, const Result (&results)[kGroup]) const {
    const int first = group.number * kGroup + shift, count = group.there ? group.length - first : 0;
    const Eight to = eight(group, first);
    warp_barrier();
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      if (i < count) to[kReverse ? kGroup - 1 - i : i] = results[i];
    if constexpr (kHasStart<S>)
      if (shift && group.number == 0 && group.there) eight(group, 0)[kReverse ? kGroup - 1 : 0] = S::start();
    warp_barrier();
  }

  // ---- groups --------------------------------------------------------------------------------------------------------

  // The items of this lane's group, of a window of `all` elements from number `from` of the row on; position: of the
  // group in its segment; lack: the first of all has no multiplier. Returns their total.
  __device__ __forceinline__ Acc load_group(const Group& group, int64_t from, int all, int64_t position, int lack,
                                            Item (&items)[kGroup]) const {
    Result x[kGroup], factors[kGroup];
    if constexpr (kTwo) {
      load(call.in.more[0], a, from, kReverse ? 0 : lack, kReverse ? all - lack : all);
      take(group, factors);
      warp_barrier();
    }
    load(call.in.data, in, from, 0, all);
    take(group, x);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {  // those behind a segment's end change no result
      if constexpr (kTwo) {
        items[i] = op.load(Pair<Result>{factors[i], x[i]}, position + i);
        if (group.number * kGroup + i >= group.length || !group.there) items[i] = S::absent_item();
      } else {
        items[i] = op.load(x[i], position + i);
      }
    }
    return S::group(items);
  }
  // What precedes a group, of what there is up to each.
  __device__ __forceinline__ static Acc before(const Acc& upto, int number) {
    const Acc value = shuffle(upto, (lane_id() - 1) & (kLanes - 1));
    return number == 0 ? S::absent() : value;
  }
};

// ---- segments of at most a tile ----------------------------------------------------------------------------------------

// Of a lane's segment: where it begins, how long it is, and how many groups there are up to it.
struct LaneSegment {
  int64_t begin;
  int length, upto;
};
// Some neighbouring ones, those of lanes from `first` on, and their groups.
struct LaneSegments { int first, count, before, groups; };

// The group of this lane.
template <class Group>
__device__ __forceinline__ Group group_of(const LaneSegment& own, const LaneSegments& window) {
  int of = window.first;
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    const int last = of + step - 1, upto = shuffle(own.upto, last & (kLanes - 1)) - window.before;
    if (last < window.first + window.count && upto <= lane_id()) of += step;
  }
  const bool there = lane_id() < window.groups;
  if (!there) of = window.first;
  const int before = shuffle(own.upto, (of - 1) & (kLanes - 1)),
            apart = int(own.begin - shuffle(own.begin, window.first));
  const int start = of > window.first ? before - window.before : 0;
  return {of, there ? lane_id() - start : 0, shuffle(apart, of), shuffle(own.length, of), there};
}

template <class S, bool kReverse>
__device__ __forceinline__ void scan_window(const SegmentWindow<S, kReverse>& window, const LaneSegment& own,
                                            const LaneSegments& segments, int64_t row, int64_t first, int width) {
  using Acc = typename S::Acc;
  const ScanSegments& call = window.call;
  const auto group = group_of<typename SegmentWindow<S, kReverse>::Group>(own, segments);
  const int64_t from = shuffle(own.begin, segments.first);
  const int all = shuffle(int(own.begin - from) + own.length, segments.first + segments.count - 1);
  typename S::Item items[kGroup];
  typename S::Result results[kGroup];
  Acc upto[1] = {window.load_group(group, from, all, group.number * kGroup, call.shifted, items)};
  sklansky_of_any<S>(upto, group.number, width);
  // Of a linear scan, zeros may be others without the former.
  const Acc within = S::combine(S::absent(), window.before(upto[0], group.number));
  bool has_initial = false;
  if constexpr (S::kInputs == 2) {
    if (call.in.more[1]) {
      has_initial = true;
      const auto h = window.initial(row, first + group.segment);
      window.op.results(S::prefix(S::initial(h), within), items, results);
    }
  }
  if (!has_initial) window.op.results(S::prefix(within), items, results);
  window.put(group, call.exclusive, results);
  window.store(window.out + from, 0, all);
}

// Writes 0 to the elements of no segment.
template <class Result> __device__ __forceinline__ void clear_others(const ScanSegments& call) {
  const Layout& l = call.layout;
  clear_others(call.of, l.rows, [&](int64_t row, int64_t i) {
    const int64_t at = row_start(l, row).out + (l.reduced ? i * l.out[l.kept] : 0);
    store_as(call.out.dtype, global(call.out.values), at, Result(0));
  });
}

template <class S, bool kReverse>
__global__ void TR_BLOCKS_BOUND(segment_runs::kThreads, sizeof(typename S::Result) == 4 && S::kInputs == 1 ? 4 : 2)
    scan_segment_windows(TR_GRID_CONSTANT ScanSegments call, TR_GRID_CONSTANT SegmentRuns runs, SegmentList list) {
  using Window = SegmentWindow<S, kReverse>;
  __shared__ typename Window::Held held[segment_runs::kWarps];
  clear_others<typename S::Result>(call);
  const SegmentOffsets& of = call.of;
  const int lane = lane_id();
  const SegmentsOfWarp mine(of, call.layout, runs);
  if (mine.first >= mine.last) return;
  Window window{call, held[threadIdx.x / kLanes]};
  window.begin(mine.row);
#pragma unroll 1
  for (int64_t first = mine.first; first < mine.last; first += kLanes) {
    const int count = int(mine.last - first < kLanes ? mine.last - first : kLanes);
    int64_t begin = 0, length = 0;
    if (lane < count) {
      begin = offset_within(global(of.data), of.dtype, first + lane, of.length);
      length = offset_within(global(of.data), of.dtype, first + lane + 1, of.length) - begin;
    }
    const bool falls = ballot(length < 0) != 0;
    const int n = length < 0 ? 0 : length > kTile ? kTile + 1 : int(length), groups = (n + kGroup - 1) / kGroup;
    const uint32_t longs = ballot(n > kTile);
    if (longs && mine.row == 0) {
      list_segments(runs, list, n > kTile && length <= runs.room, false, first + lane);
      list_segments(runs, list, length > runs.room, true, first + lane);
    }
    LaneSegment own{begin, n, n > kTile ? 2 * kLanes : groups};
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
      const int upto = shuffle(own.upto, (s - 1) & (kLanes - 1)), before = s ? upto : 0;
      const uint32_t fit = ballot(lane >= s && lane < count && own.upto - before <= kLanes);
      const int some = falls ? 1 : bits_set(fit), in_window = shuffle(own.upto, s + some - 1) - before;
      if (in_window > 0) scan_window(window, own, {s, some, before, in_window}, mine.row, first, width);
      s += some;
    }
  }
}

// ---- segments of several tiles -----------------------------------------------------------------------------------------

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

template <class S, bool kReverse>
__global__ void TR_BLOCKS_BOUND(segment_runs::kThreads, sizeof(typename S::Result) == 4 && S::kInputs == 1 ? 4 : 2)
    scan_segment_tiles(TR_GRID_CONSTANT ScanSegments call, TR_GRID_CONSTANT SegmentRuns runs, SegmentList list) {
  using Acc = typename S::Acc;
  using Window = SegmentWindow<S, kReverse>;
  __shared__ typename Window::Held held[segment_runs::kWarps];
  __shared__ typename TilesBefore<S>::Slots slots[segment_runs::kWarps];
  const int lane = lane_id(), shift = call.exclusive, warp = int(threadIdx.x) / kLanes;
  Window window{call, held[warp]};
  const auto walk = [&](const SegmentRow& at) {
    window.begin(at.row);
    const int n = int(at.length);
    typename S::Wide carry = S::wide_absent();
    if constexpr (S::kInputs == 2)
      if (call.in.more[1]) carry = S::initial(window.initial(at.row, at.segment));
    TilesBefore<S> tiles{slots[warp]};
#pragma unroll 1
    for (int tile = 0; tile < n; tile += kTile) {
      const int all = n - tile < kTile ? n - tile : kTile;
      const int64_t from = kReverse ? at.begin + n - tile - all : at.begin + tile;
      const typename Window::Group group{0, lane * kGroup < all ? lane : 0, 0, all, lane * kGroup < all};
      typename S::Item items[kGroup];
      typename S::Result results[kGroup];
      const Acc total = window.load_group(group, from, all, tile + lane * kGroup, call.shifted && tile == 0, items);
      const Acc upto = sklansky<S>(total);
      const Acc within = S::combine(tiles.total(), window.before(upto, lane));
      window.op.results(S::prefix(carry, within), items, results);
      window.put(group, 0, results);
      // Of an exclusive scan one position further on, but the segment's last one.
      const int lost = shift && tile + all == n;
      window.store(window.out + from + (kReverse ? -shift : shift), kReverse ? lost : 0, kReverse ? all : all - lost);
      if constexpr (kHasStart<S>)
        if (shift && tile == 0 && lane == 0)
          store_as(call.out.dtype, global(call.out.values), window.out + at.begin + (kReverse ? n - 1 : 0), S::start());
      if (tile + all < n) tiles.push(shuffle(upto, kLanes - 1));
    }
  };
  const int64_t first = int64_t(blockIdx.x) * segment_runs::kWarps + warp;
  each_listed(
      call.of, call.layout.rows, runs, list, false, first, int64_t(gridDim.x) * segment_runs::kWarps,
      [&](int64_t n) { return n > kTile && n <= runs.room; }, walk);
}

}  // namespace torchreduce::gpu
