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

// Where the elements of a block's rows lie: of the inputs, and of the results.
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

template <class S>
__global__ void TR_BLOCKS_BOUND(segment_runs::kThreads, sizeof(typename S::Result) == 4 && S::kInputs == 1 ? 4 : 2)
    scan_segment_runs(TR_GRID_CONSTANT ScanSegments call, TR_GRID_CONSTANT SegmentRuns runs, SegmentList list) {
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
  block.list(list);
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

template <class S> struct WalkedScan {
  using Acc = typename S::Acc;
  using Result = typename S::Result;  // as which elements are read, too
  static constexpr int kWarps = segment_runs::kWarps;
  // A word, or two, is left free after each group, so that lanes some groups apart do not meet in a bank.
  struct Shared {
    Result tile[kWarps][kTile + kFan];
    Acc totals[kWarps];
  };

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
  __device__ __forceinline__ Result& staged(int slot) const { return shared.tile[warp][slot + slot / kGroup]; }

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

  __device__ __forceinline__ void walk(const SegmentRow& at) const {
    constexpr int kTogether = kWarps * kTile;
    const Item item = item_of(at);
    ScanCarry<S> carry(item.initial);
#pragma unroll 1
    for (int64_t start = 0; start < item.n; start += kTogether) {
      typename S::Item items[kGroup];
      const Acc upto = load(item, start + warp * kTile, items), total = shuffle(upto, kLanes - 1);
      if (lane_id() == 0) shared.totals[warp] = total;
      __syncthreads();
      typename S::Wide before = carry.carry();
      Acc within = carry.within();
#pragma unroll 1
      for (int w = 0; w < kWarps && start + (w + 1) * kTile < item.n; ++w) {
        carry.push(shared.totals[w]);
        if (w + 1 != warp) continue;
        before = carry.carry();
        within = carry.within();
      }
      store(item, start + warp * kTile, upto, before, within, items);
      __syncthreads();
    }
  }
};

template <class S>
__global__ void __launch_bounds__(segment_runs::kThreads)
    scan_segment_walks(TR_GRID_CONSTANT ScanSegments call, TR_GRID_CONSTANT SegmentRuns runs, SegmentList list) {
  __shared__ typename WalkedScan<S>::Shared shared;
  const WalkedScan<S> scan{call, shared};
  each_listed(
      call.of, call.layout.rows, runs, list, true, blockIdx.x, gridDim.x,
      [&](int64_t n) { return !ScanBlock::holds(runs, n); }, [&](const SegmentRow& row) { scan.walk(row); });
}

template <class S> static void launch(const PlannedScanSegments& call, void* workspace, Queue queue) {
  const SegmentRuns& plan = call.plan;
  const SegmentList list(workspace);
  const auto enqueue_kernel = [&](auto kernel, int64_t blocks, int shared) {
    enqueue(kernel, blocks, segment_runs::kThreads, shared, queue, static_cast<const ScanSegments&>(call), plan, list);
  };
  if (plan.listed) (void)gpuMemsetAsync(list.counts, 0, 2 * sizeof(*list.counts), queue.stream);
  if (!plan.by_warps) {
    enqueue_kernel(scan_segment_runs<S>, plan.blocks, plan.shared);
  } else {
    enqueue_kernel(call.reverse ? scan_segment_windows<S, true> : scan_segment_windows<S, false>, plan.blocks, 0);
    if (plan.listed)
      enqueue_kernel(call.reverse ? scan_segment_tiles<S, true> : scan_segment_tiles<S, false>, plan.list_blocks, 0);
  }
  if (segment_runs::walks(call.of, plan)) enqueue_kernel(scan_segment_walks<S>, plan.list_blocks, 0);
}

const char* scan_segments(const PlannedScanSegments& call, void* workspace, void* stream) {
  const Queue queue{static_cast<gpuStream_t>(stream)};
  const Dtype accumulator = call.in.accumulator;
  if (call.op == Scan::LinearScan) {
    if (accumulator == Dtype::F64) launch<LinearScan<double>>(call, workspace, queue);
    else launch<LinearScan<float>>(call, workspace, queue);
  } else if (accumulator == Dtype::I64) {
    launch<CumSum<int64_t>>(call, workspace, queue);
  } else if (accumulator == Dtype::F64) {
    launch<CumSum<double>>(call, workspace, queue);
  } else {
    launch<CumSum<float>>(call, workspace, queue);
  }
  const gpuError_t error = gpuGetLastError();
  return error == gpuSuccess ? nullptr : gpuGetErrorString(error);
}

}  // namespace torchreduce::gpu
