// Scans by segments, and their launches.
//
// Serves: cumsum and linear_scan, of elements of any type and strides. Lanes load and store elements side by side; in
// shared memory, [warp][position], these change places with groups of eight, of which each lane has one. A team scans a
// tile of as many groups as it has lanes. A warp, or a block, walks an item tile by tile: of a block each warp has the
// next tile, and all keep the carry, for which the totals of the tiles go to shared memory, [warp].
#include "kernels/common/gpu.h"
#include "kernels/tile/segment_teams.cuh"
#include "rows.cuh"
#include "scan_segments.h"

namespace torchreduce::gpu {

template <class S> struct SegmentScan {
  using Acc = typename S::Acc;
  using Result = typename S::Result;  // as which elements are read, too
  static constexpr int kWarps = segment_teams::kWarps;
  // A word, or two, is left free after each group, so that lanes some groups apart do not meet in a bank.
  struct Shared {
    Result tile[kWarps][kTile + kFan];
    Acc totals[kWarps];
  };

  const ScanSegments& call;
  const SegmentTeams& teams;
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
  __device__ __forceinline__ Result& staged(int slot) const { return shared.tile[warp][slot + slot / kGroup]; }

  // The elements of an input at positions first + k * step, of which this lane has k up to `count`, become those of the
  // group that it has. `slot`: of the first one. `from`: 1 where the first one is not there.
  __device__ __forceinline__ void exchange(const void* data, int64_t offset, int64_t stride, int slot, int step,
                                           int from, int count, Result (&x)[kGroup]) const {
    if constexpr (S::kInputs == 2) {
      load_floats(call.in.dtype, data, offset, stride, from, count, x);
    } else {
      AnyLoad<Result>::run(call.in, offset, stride, count, x);
    }
    warp_barrier();
#pragma unroll
    for (int k = 0; k < kGroup; ++k)
      if (k >= from && k < count) staged(slot + k * step) = x[k];
    warp_barrier();
#pragma unroll
    for (int k = 0; k < kGroup; ++k) x[k] = staged(lane_id() * kGroup + k);
  }

  // The tile from position `tile` on, by teams of `width` lanes: the items of the lane's group; returns the total of
  // the team's groups up to this one. An item of none has n = 0.
  __device__ __forceinline__ Acc load(const Item& item, int64_t tile, int width,
                                      typename S::Item (&items)[kGroup]) const {
    const int lane = lane_id() % width, slot = lane_id() / width * width * kGroup + lane;
    const int64_t first = tile + lane, group = tile + lane * kGroup;
    const int count = count_below(item.n, first, width);
    Result x[kGroup];
    exchange(call.in.data, item.in + first * item.in_step, width * item.in_step, slot, width, 0, count, x);
    if constexpr (S::kInputs == 2) {
      Result a[kGroup];
      const int from = call.shifted && first == 0;
      exchange(call.in.more[0], item.a + first * item.a_step, width * item.a_step, slot, width, from, count, a);
      Pair<Result> pairs[kGroup];
#pragma unroll
      for (int k = 0; k < kGroup; ++k) pairs[k] = {a[k], x[k]};
      return sklansky<S>(form_group(op, pairs, group, item.n, items), lane, width);
    } else {
      return sklansky<S>(form_group(op, x, group, item.n, items), lane, width);
    }
  }
  // Its results. upto: what load() returned; an exclusive scan's are one position further on.
  __device__ __forceinline__ void store(const Item& item, int64_t tile, int width, const Acc& upto,
                                        const typename S::Wide& carry, const Acc& within,
                                        const typename S::Item (&items)[kGroup]) const {
    const int lane = lane_id() % width, slot = lane_id() / width * width * kGroup + lane, shift = call.exclusive;
    const int64_t first = tile + lane;
    Acc before = shuffle(upto, lane_id() - (lane == 0 ? 0 : 1));
    if (lane == 0) before = S::absent();
    Result results[kGroup];
    op.results(S::prefix(carry, S::combine(within, before)), items, results);
    warp_barrier();
#pragma unroll
    for (int k = 0; k < kGroup; ++k) staged(lane_id() * kGroup + k) = results[k];
    warp_barrier();
#pragma unroll
    for (int k = 0; k < kGroup; ++k) results[k] = staged(slot + k * width);
    store_elements(call.out.dtype, call.out.values, item.out + (first + shift) * item.out_step, width * item.out_step,
                   count_below(item.n - shift, first, width), results);
    if constexpr (kHasStart<S>)
      if (shift && first == 0 && item.n > 0) store_as(call.out.dtype, global(call.out.values), item.out, S::start());
  }

  __device__ __forceinline__ void team(const SegmentRow& at, bool there) const {
    Item item{};
    if (there) item = item_of(at);
    typename S::Item items[kGroup];
    const Acc upto = load(item, 0, teams.lanes, items);
    store(item, 0, teams.lanes, upto, item.initial, S::absent(), items);
  }
  // By a warp; or where `whole` by the block, of which each warp has one of the next tiles.
  __device__ __forceinline__ void walk(const SegmentRow& at, bool whole) const {
    const Item item = item_of(at);
    const int mine = whole ? warp : 0, tiles = whole ? kWarps : 1;
    ScanCarry<S> carry(item.initial);
#pragma unroll 1
    for (int64_t start = 0; start < item.n; start += tiles * kTile) {
      typename S::Item items[kGroup];
      const Acc upto = load(item, start + mine * kTile, kLanes, items);
      Acc total = shuffle(upto, kLanes - 1);
      if (whole) {
        if (lane_id() == 0) shared.totals[warp] = total;
        __syncthreads();
      }
      typename S::Wide before = carry.carry();
      Acc within = carry.within();
#pragma unroll 1
      for (int w = 0; w < tiles && start + (w + 1) * kTile < item.n; ++w) {
        if (whole) total = shared.totals[w];
        carry.push(total);
        if (w + 1 != mine) continue;
        before = carry.carry();
        within = carry.within();
      }
      store(item, start + mine * kTile, kLanes, upto, before, within, items);
      if (whole) __syncthreads();
    }
  }
};

template <class S>
__global__ void TR_BLOCKS_BOUND(segment_teams::kThreads, sizeof(typename S::Result) == 4 && S::kInputs == 1 ? 4 : 2)
    scan_segment_teams(TR_GRID_CONSTANT ScanSegments call, TR_GRID_CONSTANT SegmentTeams teams) {
  __shared__ typename SegmentScan<S>::Shared shared;
  const Layout& l = call.layout;
  clear_others(call.of, l.rows, [&](int64_t row, int64_t i) {
    const int64_t at = row_start(l, row).out + (l.reduced ? i * l.out[l.kept] : 0);
    store_as(call.out.dtype, global(call.out.values), at, typename S::Result(0));
  });
  const TeamItem mine(call.of, l.rows, teams);
  SegmentScan<S>{call, teams, shared}.team(mine.row, mine.fits);
}
template <class S>
__global__ void __launch_bounds__(segment_teams::kThreads)
    scan_segment_walks(TR_GRID_CONSTANT ScanSegments call, TR_GRID_CONSTANT SegmentTeams teams) {
  __shared__ typename SegmentScan<S>::Shared shared;
  const SegmentScan<S> scan{call, teams, shared};
  each_walk(call.of, call.layout.rows, teams, [&](const SegmentRow& row, bool whole) { scan.walk(row, whole); });
}

template <class S> static void launch(const PlannedScanSegments& call, Queue queue) {
  const auto enqueue_kernel = [&](auto kernel) {
    enqueue(kernel, call.plan.blocks, segment_teams::kThreads, 0, queue, static_cast<const ScanSegments&>(call),
            call.plan);
  };
  enqueue_kernel(scan_segment_teams<S>);
  if (segment_teams::walks(call.of, call.plan)) enqueue_kernel(scan_segment_walks<S>);
}

const char* scan_segments(const PlannedScanSegments& call, void*, void* stream) {
  const Queue queue{static_cast<gpuStream_t>(stream)};
  const Dtype accumulator = call.in.accumulator;
  if (call.op == Scan::LinearScan) {
    if (accumulator == Dtype::F64) launch<LinearScan<double>>(call, queue);
    else launch<LinearScan<float>>(call, queue);
  } else if (accumulator == Dtype::I64) {
    launch<CumSum<int64_t>>(call, queue);
  } else if (accumulator == Dtype::F64) {
    launch<CumSum<double>>(call, queue);
  } else {
    launch<CumSum<float>>(call, queue);
  }
  const gpuError_t error = gpuGetLastError();
  return error == gpuSuccess ? nullptr : gpuGetErrorString(error);
}

}  // namespace torchreduce::gpu
