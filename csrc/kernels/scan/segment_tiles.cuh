// A tile of a segment, by a warp: its lanes load and store elements side by side, which in shared memory, [warp]
// [position], change places with groups, of which each lane has one.
#pragma once
#include "kernels/tile/segment_runs.cuh"
#include "rows.cuh"
#include "scan_segments.h"

namespace torchreduce::gpu {

template <class S> struct SegmentTiles {
  using Acc = typename S::Acc;
  using Result = typename S::Result;  // as which elements are read, too
  static constexpr int kWarps = segment_runs::kWarps;
  // A word, or two, is left free after each group, so that lanes some groups apart do not meet in a bank. With a group
  // before a tile and one behind it.
  using Shared = Result[kWarps][kTile + kFan + 3 * (kGroup + 1)];

  const ScanSegments& call;
  Shared& shared;
  const S op{call.options};
  const int warp = int(threadIdx.x) / kLanes;

  // Where positions of an item lie.
  struct Item {
    int64_t n, in, in_step, a, a_step, out, out_step;
    typename S::Wide initial;
  };
  __device__ __forceinline__ Item item_of(const SegmentRow& at) const {
    const Layout& l = call.layout;
    const RowStart start = row_start(l, at.row);
    const int64_t first = call.reverse ? at.begin + at.length - 1 : at.begin, sign = call.reverse ? -1 : 1;
    const int64_t in = l.reduced ? l.in[l.kept] : 0, out = l.reduced ? l.out[l.kept] : 0;
    Item item{at.length, start.in + first * in, sign * in, 0, 0, start.out + first * out, sign * out, S::wide_absent()};
    if constexpr (S::kInputs == 2) {
      const int64_t a = l.reduced ? call.more_strides[0][l.kept] : 0;
      item.a_step = sign * a;
      item.a = row_offset(l, call.more_strides[0], at.row) + (first - (call.shifted ? sign : 0)) * a;
      if (call.in.more[1]) {
        const int64_t to = row_offset(l, call.more_strides[1], at.row) + at.segment * call.initial_step;
        Result h[kGroup];
        load_floats(call.in.dtype, call.in.more[1], to, 0, 0, 1, h);
        item.initial = S::initial(h[0]);
      }
    }
    return item;
  }

  // Position `slot` of the warp's tile.
  __device__ __forceinline__ Result& staged(int slot) const { return shared[warp][slot + slot / kGroup]; }

  // The elements of an input that this lane loads, a warp's lanes apart, `count` at most, become those of the group
  // that it has. `from`: 1 where the first one is not there.
  __device__ __forceinline__ void exchange(const void* data, int64_t offset, int64_t stride, int from, int count,
                                           Result (&x)[kGroup]) const {
    if constexpr (S::kInputs == 2) {
      load_floats(call.in.dtype, data, offset, stride, from, count, x);
    } else {
      AnyLoad<Result>::run(call.in, offset, stride, count, x);
    }
    warp_barrier();
#pragma unroll
    for (int k = 0; k < kGroup; ++k)
      if (k >= from && k < count) staged(lane_id() + k * kLanes) = x[k];
    warp_barrier();
#pragma unroll
    for (int k = 0; k < kGroup; ++k) x[k] = staged(lane_id() * kGroup + k);
  }

  // The tile from position `tile` on, by a warp: the items of the lane's group; returns the total of the groups up to
  // this one.
  __device__ __forceinline__ Acc load(const Item& item, int64_t tile, typename S::Item (&items)[kGroup]) const {
    const int64_t first = tile + lane_id(), group = tile + lane_id() * kGroup;
    const int count = count_below(item.n, first, kLanes);
    Result x[kGroup];
    exchange(call.in.data, item.in + first * item.in_step, kLanes * item.in_step, 0, count, x);
    if constexpr (S::kInputs == 2) {
      Result a[kGroup];
      const int from = call.shifted && first == 0;
      exchange(call.in.more[0], item.a + first * item.a_step, kLanes * item.a_step, from, count, a);
      Pair<Result> pairs[kGroup];
#pragma unroll
      for (int k = 0; k < kGroup; ++k) pairs[k] = {a[k], x[k]};
      return sklansky<S>(form_group(op, pairs, group, item.n, items));
    } else {
      return sklansky<S>(form_group(op, x, group, item.n, items));
    }
  }
  // Its results. upto: what load() returned; an exclusive scan's are one position further on.
  __device__ __forceinline__ void store(const Item& item, int64_t tile, const Acc& upto, const typename S::Wide& carry,
                                        const Acc& within, const typename S::Item (&items)[kGroup]) const {
    const int shift = call.exclusive;
    const int64_t first = tile + lane_id();
    Acc before = shuffle(upto, lane_id() == 0 ? 0 : lane_id() - 1);
    if (lane_id() == 0) before = S::absent();
    Result results[kGroup];
    op.results(S::prefix(carry, S::combine(within, before)), items, results);
    warp_barrier();
#pragma unroll
    for (int k = 0; k < kGroup; ++k) staged(lane_id() * kGroup + k) = results[k];
    warp_barrier();
#pragma unroll
    for (int k = 0; k < kGroup; ++k) results[k] = staged(lane_id() + k * kLanes);
    store_elements(call.out.dtype, call.out.values, item.out + (first + shift) * item.out_step, kLanes * item.out_step,
                   count_below(item.n - shift, first, kLanes), results);
    if constexpr (kHasStart<S>)
      if (shift && first == 0 && item.n > 0) store_as(call.out.dtype, global(call.out.values), item.out, S::start());
  }
};

}  // namespace torchreduce::gpu
