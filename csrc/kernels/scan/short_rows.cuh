// Scans of rows of at most a block tile, or two, that neighbouring lanes hold in registers as a whole: a warp has
// several rows, or some tiles of one. Shared memory has the totals of a row's tiles, and the results of warps whose
// rows start anywhere, on their way to memory.
//
// row_access.cuh says how rows are loaded and stored. Those much shorter than a group that are one run of memory move
// 16 bytes at a time as that run, several rows a lane.
#pragma once
#include "packed_rows.h"
#include "row_access.cuh"
#include "short_rows.h"

namespace torchreduce::gpu {

// Of scan S with fast groups: the totals of K groups of lane `lane` of each `width` neighbours, so scanned. Returns
// whether fast_results serves all groups of the warp, for results that are rounded to O.
template <class S, class O, int K>
__device__ __forceinline__ bool fast_runs(const typename S::Item (&items)[K][kGroup], int lane, int width,
                                          typename S::Acc (&upto)[K]) {
  typename S::Item run[K];
  bool fast = true, near = true;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    fast &= S::fast_group(items[k], run[k]);
    near &= S::is_near(run[k]);
  }
  near &= fast;
  if (!ballot(!near)) {
    const int from = lane_id() - lane;
    sklansky_levels(
        run, lane, width, [&](auto v, int d) { return shuffle(v, from + (lane & ~(2 * d - 1)) + d - 1); },
        [](bool joins, auto l, auto r) { return joins ? S::near_join(l, r) : r; });
#pragma unroll
    for (int k = 0; k < K; ++k) upto[k] = near_total<S, O>(run[k]);
    return true;
  }
  TR_RARE_PATH;
  fast = !ballot(!fast);
#pragma unroll
  for (int k = 0; k < K; ++k) upto[k] = S::group(items[k]);
  sklansky_of_any<S>(upto, lane, width);
  return fast;
}

// Moves the results of neighbouring lanes one position on, as an exclusive scan has them; lane 0 takes `before`, the
// result at the position before its own.
template <class Result>
__device__ __forceinline__ void shift_results(Result (&r)[kGroup], int lane, Result before) {
  const Result left = shuffle(r[kGroup - 1], lane ? lane_id() - 1 : lane_id());
#pragma unroll
  for (int i = kGroup - 1; i > 0; --i) r[i] = r[i - 1];
  if (lane) before = left;
  r[0] = before;
}

// Whether there are registers to store whole sectors of short rows by (rows of 16 to 256 float32, of a copy's speed:
// cumsum 0.95, so 0.98; cumprod 0.98, so 0.88; of float64, cumsum 0.67, so 0.97).
template <class S, class O> constexpr bool kShortSectors =
    kHalfSectors<O> && (sizeof(typename S::Acc) <= 4 || sizeof(O) > 4);

// Blocks of a multiprocessor at least; 0: as nvcc likes. (Before Hopper it would rather use memory for large
// accumulators, and for sectors, than have fewer.)
template <class S, class O, bool kAligned> constexpr int kShortBlocks = [] {
  const bool large = sizeof(typename S::Acc) > 4;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  if (kAligned && kShortSectors<S, O>) return 2;
  if (large) return 3;
#endif
  return kAligned ? 0 : large ? 3 : 4;
}();

// Rows of fewer elements than a group has, which are one run of memory that starts at a multiple of 16 bytes. A warp
// has kPackedRows rows a lane, a part of the run. It copies them to shared memory as they lie, 16 bytes at a time;
// there a lane turns one whole row after the other into its results; from there all leave, 16 bytes at a time.
template <class S, class Load, class Store>
__global__ void __launch_bounds__(kThreads) scan_packed_rows(TR_GRID_CONSTANT ScanCall call) {
  using E = typename Load::Element;
  constexpr int kPer = kPerGranule<E>, kRows = kLanes * kPackedRows,
                kMost = packed_length(S::kIntegerKernels, sizeof(E));
  const S op{call.options};
  const int n = int(call.layout.length), warp = int(threadIdx.x) / kLanes, lane = lane_id();
  const bool mirror = scan_stride(call.layout).in < 0;
  const int64_t first_row = (int64_t(blockIdx.x) * kWarps + warp) * kRows, left = call.layout.rows - first_row;
  const int rows = int(left < kRows ? left : kRows), count = rows * n;  // of the warp, if not negative
  const int64_t lowest = first_row * n - (mirror ? n - 1 : 0);
  alignas(Granule) __shared__ E runs[kWarps][kRows * kMost];  // [row][position], as they lie in memory
  E* const run = runs[warp];
  const int tail = count / kPer * kPer + lane;  // what is no whole granule, an element a lane

  const E* const in = global(static_cast<const E*>(call.in.data)) + lowest;
  for (int i = lane * kPer; i + kPer <= count; i += kLanes * kPer) copy_async<sizeof(Granule)>(run + i, in + i);
  if (tail < count) run[tail] = in[tail];
  end_copies();
  wait_copies<0>();
  warp_barrier();
  const int step = mirror ? -1 : 1, shift = call.exclusive ? 1 : 0;
  auto scan_rows = [&](auto most) {  // of at most so many elements
    TR_ROLLED
    for (int row = lane; row < rows; row += kLanes) {
      E* const first = run + row * n + (mirror ? n - 1 : 0);
      typename S::Item items[kGroup];
      typename S::Result results[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) items[i] = i < most() && i < n ? op.load(first[i * step], i) : S::absent_item();
      S::group(items);
      op.results(S::prefix(S::absent()), items, results);
      uint32_t w[kGroupWords<E>];
      round_group<E, S>(results, w);
      E rounded[kGroup];
      unpack(w, rounded);
      if (shift) *first = round_to<E>(start_of<S>());
#pragma unroll
      for (int i = 0; i < most(); ++i)
        if (i + shift < n) first[(i + shift) * step] = rounded[i];
    }
  };
  constexpr int kFew = kMost < 4 ? kMost : 4;
  if (kMost == kFew || n <= kFew) scan_rows(std::integral_constant<int, kFew>());
  else scan_rows(std::integral_constant<int, kMost>());
  warp_barrier();

  E* const out = global(static_cast<E*>(call.out.values)) + lowest;
  for (int i = lane * kPer; i + kPer <= count; i += kLanes * kPer) {
    Granule granule;
    memcpy(&granule, __builtin_assume_aligned(run + i, sizeof granule), sizeof granule);
    store_granule(reinterpret_cast<Granule*>(out + i), granule);
  }
  if (tail < count) out[tail] = run[tail];
}

// Rows of at most a tile: shape.lanes lanes a row, several rows a lane for enough bytes in flight. A warp's rows are
// neighbours.
template <class S, class Load, class Store, bool kAligned>
__global__ void TR_BLOCKS_BOUND(kThreads, (kShortBlocks<S, typename Store::Element, kAligned>))
    scan_short_rows(TR_GRID_CONSTANT ScanCall call, TR_GRID_CONSTANT ShortRowsShape shape) {
  using Acc = typename S::Acc;
  using E = typename Load::Element;
  using O = typename Store::Element;
  constexpr int K = kHeldGroups<S>;
  const S op{call.options};
  const Layout& layout = call.layout;
  const int n = int(layout.length), width = shape.lanes;
  const unsigned share = (kLanes * kLanes - 1 + unsigned(width)) / unsigned(width);  // of 32 * 32: quotients of lanes
  const int rows = int(kLanes * share / (kLanes * kLanes));                          // at once
  const int warp = int(threadIdx.x) / kLanes, local = int(unsigned(lane_id()) * share / (kLanes * kLanes)),
            lane = lane_id() - local * width;
  const int first = lane * kGroup;
  const bool mirror = scan_stride(layout).in < 0;
  const int64_t first_row = (int64_t(blockIdx.x) * kWarps + warp) * rows * K;

  // Rows that one stride leads through need no division; rows that are not aligned are such.
  const bool strided = !kAligned || layout.kept <= 1;
  const RowStart step = layout.kept ? RowStart{layout.in[0], layout.out[0]} : RowStart{0, 0};
  RowStart start[K];
  int64_t in[K];
  int count[K];
  HeldGroup<E, kAligned> x[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int64_t row = first_row + k * rows + local;
    const bool there = local < rows && row < layout.rows;
    count[k] = there ? n - first : 0;
    if (!strided) start[k] = row_start(layout, there ? row : 0);
    else if (k == 0) start[k] = {row * step.in, row * step.out};
    else start[k] = {start[0].in + k * rows * step.in, start[0].out + k * rows * step.out};
    in[k] = start[k].in;
  }
  const auto* const data = static_cast<const E*>(call.in.data);
  auto even = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 4 == 0; };
  bool pairs = false;  // rows are whole words
  if constexpr (kHalves<E>)
    pairs = n % 2 == 0 && step.in % 2 == 0 && even(data + mirror) && even(static_cast<O*>(call.out.values) + mirror);
  const Access access = pairs ? Access::Pairs : Access::Items;
  load_groups<S, Load, kAligned>(
      call, in, [&](int) { return first; }, [&](int k) { return count[k]; }, mirror, pairs, x);

  __shared__ std::conditional_t<kAligned, int, RunStage<O, K * kLanes * kGroup, false>> stages[kWarps];
  O* out = nullptr;  // the lowest element of the warp's rows
  int phase = 0;
  if constexpr (!kAligned) {
    out = static_cast<O*>(call.out.values) + first_row * n - (mirror ? n - 1 : 0);
    phase = stages[warp].phase(out);
  }
  constexpr bool kTurns = kHasFastGroup<S> && sizeof(E) == 2;       // one after the other, by the same instructions
  constexpr int C = kTurns ? 1 : sizeof(Acc) > 4 && K > 2 ? 2 : K;  // groups that there are registers for together
#pragma unroll(kTurns ? 1 : K / C)
  for (int c = 0; c < K; c += C) {
    typename S::Item items[C][kGroup];
    Acc upto[C];
    bool fast = false;
#pragma unroll
    for (int j = 0; j < C; ++j)
      upto[j] = form_items<E, kAligned>(op, x[kTurns ? 0 : c + j], first, mirror, access, 0, items[j]);
    if constexpr (kHasFastGroup<S>) fast = fast_runs<S, O>(items, lane, width, upto);
    else sklansky_of_any<S>(upto, lane, width);
#pragma unroll
    for (int j = 0; j < C; ++j) {
      const int k = c + j;
      const int64_t row = first_row + k * rows + local;
      const bool there = local < rows && row < layout.rows;
      typename S::Result r[kGroup];
      const Acc left = shuffle(upto[j], lane ? lane_id() - 1 : lane_id());
      group_results<O>(op, S::prefix(lane ? left : S::absent()), items[j], fast, r);
      if (call.exclusive) shift_results(r, lane, start_of<S>());
      const int found = kTurns ? there ? n - first : 0 : count[k];
      if constexpr (kAligned) {
        int64_t out;
        if constexpr (kTurns) out = strided ? row * step.out : row_start(layout, there ? row : 0).out;
        else out = start[k].out;
        store_vector<S, Store, kShortSectors<S, O>>(call, out, first, n, found > 0, mirror, width % 2 == 0, r);
      } else {
        const int at = phase + (k * rows + local) * n + (mirror ? n - 1 - first : first);
        stages[warp].template put_results<S>(at, found, mirror, pairs, r);
      }
    }
    if constexpr (kTurns)
#pragma unroll
      for (int k = 0; k < K - 1; ++k) memcpy(x[k], x[k + 1], sizeof x[k]);
  }
  if constexpr (!kAligned) {
    const int64_t left = layout.rows - first_row;
    const int all = int(left < rows * K ? left : rows * K);
    warp_barrier();
    if (all > 0) stages[warp].store(out, all * n);
  }
}

// Longer ones: shape.warps warps a row, each with K neighbouring tiles. kBlockTiles: of a row; of two, the first has
// the tiles of kWarps warps, and a block has a row.
template <class S, class Load, class Store, bool kAligned, int K, int kBlockTiles = 1>
__global__ void TR_BLOCKS_BOUND(kThreads* kBlockTiles, (kAligned ? 0 : 4 / kBlockTiles))
    scan_tiled_rows(TR_GRID_CONSTANT ScanCall call, TR_GRID_CONSTANT ShortRowsShape shape) {
  using Acc = typename S::Acc;
  using E = typename Load::Element;
  using O = typename Store::Element;
  const S op{call.options};
  const Layout& layout = call.layout;
  const int n = int(layout.length), lane = lane_id(), warp = int(threadIdx.x) / kLanes, warps = shape.warps;
  const int part = kBlockTiles > 1 ? warp : warp & (warps - 1), place = warp - part;  // the row's first warp
  const int log2 = (warps > 1) + (warps > 2) + (warps > 4);
  const int64_t row =
      kBlockTiles > 1 ? int64_t(blockIdx.x) : (int64_t(blockIdx.x) * (shape.threads / kLanes) + warp) >> log2;
  const bool there = row < layout.rows, mirror = scan_stride(layout).in < 0;
  const RowStart start = row_start(layout, there ? row : 0);
  const int begin = part * K * kTile, length = there ? n : 0;

  constexpr int kMostWarps = kWarps * kBlockTiles;
  __shared__ Acc totals[kMostWarps * K];
  __shared__ typename S::Result ends[kMostWarps];
  __shared__ std::conditional_t<kAligned, int, RunStage<O, K * kTile, true>> stages[kMostWarps];
  HeldGroup<E, kAligned> x[K];
  typename S::Item items[K][kGroup];
  Acc within[K];
  int64_t in[K];
#pragma unroll
  for (int k = 0; k < K; ++k) in[k] = start.in;
  auto first = [&](int k) { return begin + k * kTile + lane * kGroup; };
  auto count = [&](int k) { return length - first(k); };
  // Where elements stay as they are while the kernel runs, and there are other rows around one.
  const bool around = !kAligned && kHalves<E> && call.in.data != call.out.values && layout.kept == 1 &&
                      layout.in[0] >= n && row > 0 && row + 1 < layout.rows;
  int before = 0;
  if (around) {
    if constexpr (!kAligned && kHalves<E>) before = load_around<K>(call, start.in, begin + lane * kGroup, n, mirror, x);
  } else {
    load_groups<S, Load, kAligned>(call, in, first, count, mirror, false, x);
  }
  const Access access = around ? Access::Granules : Access::Items;
#pragma unroll
  for (int k = 0; k < K; ++k) within[k] = form_items<E, kAligned>(op, x[k], first(k), mirror, access, before, items[k]);
  bool fast = false;
  if constexpr (kHasFastGroup<S>) fast = fast_runs<S, O>(items, lane, kLanes, within);
  else sklansky<S>(within, lane, kLanes);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    Acc total = within[k];
    if constexpr (kNearly<S, O>) total = fast ? S::fast_end(total) : total;
    if (lane == kLanes - 1) totals[warp * K + k] = total;
    const Acc left = shuffle(within[k], lane ? lane - 1 : 0);
    within[k] = lane ? left : S::absent();
  }
  if (warps > 1) __syncthreads();
  else warp_barrier();
  const bool second = kBlockTiles > 1 && part >= kWarps;  // block tile
  const int tiles = kBlockTiles > 1 ? kFan : warps * K, slot = lane & (tiles - 1), base = second ? kFan : place * K;
  const bool present = kBlockTiles == 1 || base + slot < warps * K;
  const Acc upto = sklansky<S>(present ? totals[base + slot] : S::absent(), slot, tiles);
  typename S::Wide carry = S::wide_absent();
  if (second) carry = S::combine(carry, S::widen(shuffle(sklansky<S>(totals[lane], lane, kFan), kFan - 1)));
  typename S::Result r[K][kGroup];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int tile = part * K + k - (second ? kFan : 0);
    const Acc before = shuffle(upto, tile ? tile - 1 : 0),
              all = precede<S, O>(fast, tile ? before : S::absent(), within[k]);
    group_results<O>(op, second ? S::prefix(carry, all) : S::prefix(all), items[k], fast, r[k]);
  }
  if (call.exclusive) {
    if (warps > 1) {
      if (lane == kLanes - 1) ends[warp] = r[K - 1][kGroup - 1];
      __syncthreads();
    }
    typename S::Result before = part ? ends[warp - 1] : start_of<S>();
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const typename S::Result last = shuffle(r[k][kGroup - 1], kLanes - 1);
      shift_results(r[k], lane, before);
      before = last;
    }
  }
  if constexpr (kAligned) {
#pragma unroll
    for (int k = 0; k < K; ++k)
      store_vector<S, Store, true>(call, start.out, first(k), n, count(k) > 0, mirror, true, r[k]);
  } else {
    const int all = length - begin < K * kTile ? length - begin : K * kTile;  // of this warp
    O* const out = static_cast<O*>(call.out.values) + (mirror ? start.out - begin - (all - 1) : start.out + begin);
    const int phase = stages[warp].phase(out);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int at = k * kTile + lane * kGroup;
      stages[warp].template put_results<S>(phase + (mirror ? all - 1 - at : at), count(k), mirror, false, r[k]);
    }
    warp_barrier();
    if (all > 0) stages[warp].store(out, all);
  }
}

}  // namespace torchreduce::gpu
