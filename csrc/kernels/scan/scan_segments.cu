// Scans by segments, and their launches.
//
// Serves: cumsum and linear_scan, of elements of any type and strides.
//
// scan_segment_runs: a block's elements are in shared memory, where their results take their place (segment_runs.cuh).
// A slot is a group of eight. Beside them are the total of each group and all before it in its tile, [slot], and of
// each tile all that is before it, [place]. A thread has every 256th slot.
// scan_segment_walks: a block walks a segment, each of its warps with the next tile, and all keep the carry, for which
// the totals of the tiles go to shared memory, [warp]. Lanes load and store elements side by side; in shared memory,
// [warp][position], these change places with groups, of which each lane has one.
#include "kernels/common/gpu.h"
#include "kernels/tile/segment_runs.cuh"
#include "rows.cuh"
#include "scan_segments.h"
#include "segment_windows.cuh"

namespace torchreduce::gpu {

struct ScanSlots {
  __device__ __forceinline__ int operator()(int n) const { return (n + kGroup - 1) / kGroup; }
};
using ScanBlock = SegmentBlock<ScanSlots>;

// ---- segments that are held ------------------------------------------------------------------------------------------

template <class S> struct HeldScan {
  using Acc = typename S::Acc;
  using Result = typename S::Result;  // as which elements are held, too
  static constexpr int kThreads = segment_runs::kThreads;
  static constexpr bool kTwo = S::kInputs == 2;

  const ScanSegments& call;
  const ScanBlock& block;
  StagedRuns<Result> x, a;
  Acc* totals;  // [slot]
  Acc* before;  // [place]
  const S op{call.options};

  __device__ __forceinline__ void run(const SegmentBatch& batch, const RowRun (&memory)[3]) const {
    const int n = batch.length, slots = batch.slots << block.rows_log2, t = int(threadIdx.x);
    with_element<kTwo>(call.in.dtype, [&](auto element) {
      using E = decltype(element);
      x.template load<E>(call.in.data, memory[0], batch.from, 0, n);
      if constexpr (kTwo) {
        const int lack = call.shifted;  // then the first position of all has none to read
        a.template load<E>(call.in.more[0], memory[1], batch.from, call.reverse ? 0 : lack,
                           call.reverse ? n - lack : n);
      }
    });
    __syncthreads();
#pragma unroll 1
    for (int u = t; u < slots; u += kThreads) {
      typename S::Item items[kGroup];
      totals[u] = group(block.slot(batch, u), items);
    }
    __syncthreads();
    join(batch);
    __syncthreads();
#pragma unroll 1
    for (int last = (slots - 1) / kThreads * kThreads; last >= 0; last -= kThreads) {
      const int u = last + t;
      ScanBlock::Slot slot{};
      Result results[kGroup];
      if (u < slots) {
        slot = block.slot(batch, u);
        results_of(batch, slot, u, results);
        if (!call.exclusive) put(slot, 0, results);
      }
      if (!call.exclusive) continue;
      __syncthreads();  // results go one position further on: to a group that is another thread's
      if (u < slots) put(slot, 1, results);
    }
    __syncthreads();
    with_result<Result>(call.out.dtype, [&](auto element) {
      x.template store<decltype(element)>(call.out.values, memory[2], batch.from, n);
    });
  }

 private:
  // Where position i of a slot's segment is held.
  __device__ __forceinline__ int item_of(const ScanBlock::Slot& slot, int i) const {
    return slot.begin + (call.reverse ? slot.length - 1 - i : i);
  }
  // A slot's items, and their total.
  __device__ __forceinline__ Acc group(const ScanBlock::Slot& slot, typename S::Item (&items)[kGroup]) const {
    const int first = slot.number * kGroup, step = call.reverse ? -1 : 1, from = item_of(slot, first);
    const int count = slot.there ? slot.length - first : 0;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      items[i] = S::absent_item();
      if (i >= count) continue;
      if constexpr (kTwo) items[i] = op.load(Pair<Result>{a[from + i * step], x[from + i * step]}, first + i);
      else items[i] = op.load(x[from + i * step], first + i);
    }
    return S::group(items);
  }
  // Of the totals of all groups those of a tile up to each, and of each tile what is before it: by a thread for each
  // segment of one tile, and by a warp for each other, of which a lane has a tile.
  __device__ __forceinline__ void join(const SegmentBatch& batch) const {
    static_assert(segment_runs::kMostRoom <= kBlockTile, "a block tile has more tiles than a segment that is held");
    const int pieces = (batch.end - batch.first) << block.rows_log2, lane = lane_id(), t = int(threadIdx.x);
    const auto each = [&](int first, int step, auto with) {
#pragma unroll 1
      for (int piece = first; piece < pieces; piece += step) {
        const int s = batch.first + (piece >> block.rows_log2), start = block.lists.start[s];
        with(s, piece & ((1 << block.rows_log2) - 1), start - block.lists.start[batch.first],
             block.lists.start[s + 1] - start);
      }
    };
    each(t, kThreads, [&](int, int row, int start, int groups) {
      if (groups <= kFan) join_tile(start, row, groups);
    });
    if (block.most <= kFan) return;
    each(t / kLanes, kThreads / kLanes, [&](int s, int row, int start, int groups) {
      if (groups <= kFan) return;
      const int first = lane * kFan, rest = groups - first;
      Acc total = S::absent();
      if (rest > 0) total = join_tile(start + first, row, rest < kFan ? rest : kFan);
      total = shuffle_up(sklansky<S>(total), 1, kLanes);
      if (lane > 0 && rest > 0) before[block.place_of(batch, s, lane, kFan, row)] = total;
    });
  }
  // Sklansky's scan over the groups of a tile, eight at a time. Returns the last one's.
  __device__ __forceinline__ Acc join_tile(int start, int row, int groups) const {
    Acc total = S::absent(), last = total, half = total;  // last: of the eight before; half: of the first two
#pragma unroll 1
    for (int first = 0; first < groups; first += kGroup) {
      Acc* const from = totals + ((start + first) << block.rows_log2) + row;
      Acc v[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) v[i] = first + i < groups ? from[i << block.rows_log2] : S::absent();
#pragma unroll
      for (int d = 1; d < kGroup; d *= 2)
#pragma unroll
        for (int i = 0; i < kGroup; ++i)
          if (i & d) v[i] = S::combine(v[(i & ~(2 * d - 1)) + d - 1], v[i]);
      if (first & kGroup) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) v[i] = S::combine(last, v[i]);
      }
      last = v[kGroup - 1];
      if (first == kGroup) half = last;
      if (first & 2 * kGroup) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) v[i] = S::combine(half, v[i]);
      }
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        if (first + i >= groups) continue;
        from[i << block.rows_log2] = v[i];
        total = v[i];
      }
    }
    return total;
  }
  __device__ __forceinline__ void results_of(const SegmentBatch& batch, const ScanBlock::Slot& slot, int u,
                                             Result (&results)[kGroup]) const {
    typename S::Item items[kGroup];
    group(slot, items);
    const int tile = slot.number / kFan;
    Acc within = slot.number % kFan ? totals[u - (1 << block.rows_log2)] : S::absent(), of_tiles = S::absent();
    if (tile > 0) of_tiles = before[block.place_of(batch, slot.segment, tile, kFan, slot.row)];
    within = S::combine(of_tiles, within);  // of a linear scan, zeros may be others without that
    if constexpr (kTwo) {
      if (call.in.more[1]) {
        const int64_t at = row_offset(call.layout, call.more_strides[1], block.row + slot.row * slot.there) +
                           (block.first + slot.segment) * call.initial_step;
        Result h[kGroup];
        load_floats(call.in.dtype, call.in.more[1], at, 0, 0, 1, h);
        return op.results(S::prefix(S::initial(h[0]), within), items, results);
      }
    }
    op.results(S::prefix(within), items, results);
  }
  // Writes a slot's results, `shift` positions further on.
  __device__ __forceinline__ void put(const ScanBlock::Slot& slot, int shift, const Result (&results)[kGroup]) const {
    const int first = slot.number * kGroup, count = slot.there ? slot.length - shift - first : 0;
    const int step = call.reverse ? -1 : 1, to = item_of(slot, first + shift);
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      if (i < count) x[to + i * step] = results[i];
    if constexpr (kHasStart<S>)
      if (shift && first == 0 && slot.there) x[item_of(slot, 0)] = S::start();
  }
};

template <class S>
__global__ void TR_BLOCKS_BOUND(segment_runs::kThreads, sizeof(typename S::Result) == 4 && S::kInputs == 1 ? 4 : 2)
    scan_segment_runs(TR_GRID_CONSTANT ScanSegments call, TR_GRID_CONSTANT SegmentRuns runs) {
  using namespace segment_runs;
  using Result = typename S::Result;
  TR_DYNAMIC_SHARED(memory, kAlignment);
  __shared__ ScanBlock::Lists lists;
  __shared__ RowRun rows[3];
  const Layout& l = call.layout;
  clear_others<Result>(call);
  const SharedParts parts(memory, runs, int(sizeof(Result)), S::kInputs, int(sizeof(typename S::Acc)));
  ScanBlock block(call.of, l, runs, lists, parts.places);
  if (block.count == 0) return;
  if (threadIdx.x == 0) rows_of<S>(call, block.row, rows);
  block.list();
  const auto staged = [&](int k) -> StagedRuns<Result> {
    return {reinterpret_cast<Result*>(parts.items[k]), runs.room, block.rows, block.rows_log2};
  };
  const HeldScan<S> held{call,
                         block,
                         staged(0),
                         staged(S::kInputs - 1),
                         reinterpret_cast<typename S::Acc*>(parts.slots),
                         reinterpret_cast<typename S::Acc*>(parts.segments)};
  block.each_batch([&](const SegmentBatch& batch) { held.run(batch, rows); });
}

// ---- segments that are walked ----------------------------------------------------------------------------------------

template <class S> struct WalkedScan : SegmentTiles<S> {
  using Acc = typename S::Acc;
  using SegmentTiles<S>::call, SegmentTiles<S>::warp, SegmentTiles<S>::kWarps;
  using Totals = Acc[kWarps];

  Totals& totals;
  __device__ __forceinline__ WalkedScan(const ScanSegments& call, typename SegmentTiles<S>::Shared& shared,
                                        Totals& totals)
      : SegmentTiles<S>{call, shared}, totals(totals) {}

  __device__ __forceinline__ void walk(const SegmentRow& at) const {
    constexpr int kTogether = kWarps * kTile;
    const auto item = this->item_of(at);
    ScanCarry<S> carry(item.initial);
#pragma unroll 1
    for (int64_t start = 0; start < item.n; start += kTogether) {
      typename S::Item items[kGroup];
      const Acc upto = this->load(item, start + warp * kTile, items), total = shuffle(upto, kLanes - 1);
      if (lane_id() == 0) totals[warp] = total;
      __syncthreads();
      typename S::Wide before = carry.carry();
      Acc within = carry.within();
#pragma unroll 1
      for (int w = 0; w < kWarps && start + (w + 1) * kTile < item.n; ++w) {
        carry.push(totals[w]);
        if (w + 1 != warp) continue;
        before = carry.carry();
        within = carry.within();
      }
      this->store(item, start + warp * kTile, upto, before, within, items);
      __syncthreads();
    }
  }
};

template <class S>
__global__ void __launch_bounds__(segment_runs::kThreads)
    scan_segment_walks(TR_GRID_CONSTANT ScanSegments call, TR_GRID_CONSTANT SegmentRuns runs) {
  __shared__ typename SegmentTiles<S>::Shared shared;
  __shared__ typename WalkedScan<S>::Totals totals;
  __shared__ ScanBlock::Lists lists;
  const ScanBlock block(call.of, call.layout, runs, lists, nullptr);
  const WalkedScan<S> scan(call, shared, totals);
  each_walk(block, [&](const SegmentRow& row) { scan.walk(row); });
}

template <class S> static void launch(const PlannedScanSegments& call, Queue queue) {
  const auto enqueue_kernel = [&](auto kernel, int shared) {
    enqueue(kernel, call.plan.blocks, segment_runs::kThreads, shared, queue, static_cast<const ScanSegments&>(call),
            call.plan);
  };
  if (!call.plan.by_warps) {
    enqueue_kernel(scan_segment_runs<S>, call.plan.shared);
  } else {
    enqueue_kernel(scan_segment_windows<S>, 0);
    if (call.of.length > kTile) enqueue_kernel(scan_segment_tiles<S>, 0);
  }
  if (segment_runs::walks(call.of, call.plan)) enqueue_kernel(scan_segment_walks<S>, 0);
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
