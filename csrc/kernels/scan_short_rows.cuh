// Scans of rows of at most a block tile that neighbouring lanes hold in registers as a whole.
//
// Aligned rows move 16 bytes at a time. Others are loaded element by element, which the cache puts together (faster
// than whole granules and shifts, which took more instructions than there is time for: 7 float32 a row 0.87 of a copy's
// speed against 0.66), and their results go to memory through shared memory, so that all but the ends of a warp's run
// are stored 16 bytes at a time.
#pragma once
#include "scan_rows.cuh"

namespace torchreduce::gpu {

// ---- aligned rows ------------------------------------------------------------------------------------------------------

// The group from `first` on, in memory order, of a row of neighbours that starts at `base` and goes down in memory
// where `mirror`. Whole groups are aligned to 16 bytes; positions from n on are unspecified.
template <class Load>
__device__ __forceinline__ void load_vector(const ScanCall& call, int64_t base, int first, int n, bool mirror,
                                            uint32_t (&w)[kGroupWords<typename Load::Element>]) {
  const int64_t lowest = mirror ? base - first - (kGroup - 1) : base + first;
  if (n % Load::kWidth == 0) {  // then each vector is there or not
#pragma unroll
    for (int v = 0; v < kGroup; v += Load::kWidth)
      if (first + (mirror ? kGroup - v : v + Load::kWidth) <= n) Load::vector(call.in, lowest + v, w, v);
  } else if (first + kGroup <= n) {
#pragma unroll
    for (int v = 0; v < kGroup; v += Load::kWidth) Load::vector(call.in, lowest + v, w, v);
  } else {
    typename Load::Element x[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      if (first + (mirror ? kGroup - 1 - i : i) < n) x[i] = Load::one(call.in, lowest + i);
    memcpy(w, x, sizeof w);
  }
}
template <class S, class Store>
__device__ __forceinline__ void store_vector(const ScanCall& call, int64_t base, int first, int n, bool mirror,
                                             const typename S::Result (&r)[kGroup]) {
  constexpr int W = Store::kWidth;
  if (n % W != 0 && first + kGroup > n) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      if (first + i < n) Store::one(call, mirror ? base - first - i : base + first + i, r[i]);
    return;
  }
  const int64_t lowest = mirror ? base - first - (kGroup - 1) : base + first;
  typename S::Result out[kGroup];
#pragma unroll
  for (int i = 0; i < kGroup; ++i) out[i] = mirror ? r[kGroup - 1 - i] : r[i];
  uint32_t w[kGroupWords<typename Store::Element>];
  round_group<typename Store::Element, S>(out, w);
#pragma unroll
  for (int v = 0; v < kGroup; v += W)
    if (first + (mirror ? kGroup - v : v + W) <= n) Store::vector(call, lowest + v, w, v);
}

// ---- rows that start anywhere --------------------------------------------------------------------------------------------

// The `count` elements from `first` on of a row that starts at `base`, in the row's order; the rest is unspecified.
template <bool kMirror, class E>
__device__ __forceinline__ void load_items(const ScanCall& call, int64_t base, int first, int count, E (&x)[kGroup]) {
  const E* const from = global(static_cast<const E*>(call.in.data)) + (kMirror ? base - first : base + first);
#pragma unroll
  for (int i = 0; i < kGroup; ++i)
    if (i < count) x[i] = from[kMirror ? -i : i];
}

// Results of a warp, kItems at most, that go to a run of neighbours in memory which starts anywhere.
template <class E, int kItems> struct RunStage {
  using Granule = Packed<uint32_t, 4>;
  static constexpr int kPer = int(sizeof(Granule) / sizeof(E));
  // 16 bytes are left out after every 128, so that lanes 8 elements of 4 or 8 bytes apart meet in fewer banks.
  __host__ __device__ static constexpr int slot(int item) {
    return sizeof(E) > 2 ? item + int(unsigned(item) / (8 * kPer)) * kPer : item;
  }

  alignas(sizeof(Granule)) E items[slot(kItems + kPer) + kPer];

  // Elements that `out` is past the 16 bytes it lies in: where item 0 of the run is put.
  __device__ static int phase(const E* out) { return int(uintptr_t(out) % sizeof(Granule) / sizeof(E)); }

  // The first `count` of a group, from `item` on, downwards where `mirror`.
  __device__ __forceinline__ void put(int item, int count, bool mirror, const E (&x)[kGroup]) {
    if (mirror) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        if (i < count) items[slot(item - i)] = x[i];
    } else {
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        if (i < count) items[slot(item + i)] = x[i];
    }
  }

  // By the whole warp, after all of it put: `count` items, put from phase(out) on, to `out`.
  __device__ void store(E* out, int count) const {
    const int begin = phase(out), end = begin + count;
    for (int first = lane_id() * kPer; first < end; first += kLanes * kPer) {
      Granule granule;
      memcpy(&granule, __builtin_assume_aligned(items + slot(first), sizeof granule), sizeof granule);
      E* const to = out - begin + first;
      if (first >= begin && first + kPer <= end) {
        store_granule(reinterpret_cast<Granule*>(to), granule);
      } else {
        E x[kPer];
        memcpy(x, &granule, sizeof x);
#pragma unroll
        for (int i = 0; i < kPer; ++i)
          if (first + i >= begin && first + i < end) global(to)[i] = x[i];
      }
    }
  }
};

// ---- both ----------------------------------------------------------------------------------------------------------------

// Elements of a group as they are loaded: words in memory order, or elements in the row's order.
template <class E, bool kAligned> using HeldGroup = std::conditional_t<kAligned, uint32_t[kGroupWords<E>], E[kGroup]>;

// Loads K groups a lane: of[k] says where their rows start, first(k) at which position, count(k) how many are there.
template <class Load, bool kAligned, int K, class First, class Count>
__device__ __forceinline__ void load_groups(const ScanCall& call, const int64_t (&base)[K], First first, Count count,
                                            bool mirror, HeldGroup<typename Load::Element, kAligned> (&x)[K]) {
  if constexpr (kAligned) {
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (count(k) > 0) load_vector<Load>(call, base[k], first(k), first(k) + count(k), mirror, x[k]);
  } else if (mirror) {
#pragma unroll
    for (int k = 0; k < K; ++k) load_items<true>(call, base[k], first(k), count(k), x[k]);
  } else {
#pragma unroll
    for (int k = 0; k < K; ++k) load_items<false>(call, base[k], first(k), count(k), x[k]);
  }
}

// Items of a group of which `count` elements are there, and its total. The others hold nothing: an op that branched on
// one would let a compiler conclude that all are there.
template <class E, bool kAligned, class S>
__device__ __forceinline__ typename S::Acc form_items(const S& op, const HeldGroup<E, kAligned>& loaded, int64_t first,
                                                      int count, bool mirror, typename S::Item (&items)[kGroup]) {
  E x[kGroup];
  if constexpr (kAligned) {
    E ordered[kGroup];
    unpack(loaded, ordered);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const E up = ordered[i], down = ordered[kGroup - 1 - i];
      x[i] = mirror ? down : up;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) x[i] = loaded[i];
  }
  if (count >= kGroup) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) items[i] = op.load(x[i], first + i);
  } else {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (i < count) items[i] = op.load(x[i], first + i);
      else items[i] = S::absent_item();
    }
  }
  return S::group(items);
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

// Blocks of a multiprocessor at least; 0: as nvcc likes. (Before Hopper it would rather use memory for large
// accumulators than have fewer.)
template <class S> constexpr int kShortBlocks = [] {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  if (sizeof(typename S::Acc) > 4) return 3;
#endif
  return 0;
}();

// Rows of at most a tile: plan.lanes lanes a row, several rows a lane for enough bytes in flight. A warp's rows are
// neighbours.
template <class S, class Load, class Store, bool kAligned>
__global__ void TR_BLOCKS_BOUND(kThreads, (kShortBlocks<S>)) scan_short_rows(TR_GRID_CONSTANT ScanCall call) {
  using Acc = typename S::Acc;
  using E = typename Load::Element;
  using O = typename Store::Element;
  constexpr int K = kHeldGroups<S>;
  const S op{call.options};
  const Layout& layout = call.layout;
  const int n = int(layout.length), width = call.plan.lanes, rows = kLanes / width;  // rows at once
  const int warp = int(threadIdx.x) / kLanes, local = lane_id() / width, lane = lane_id() - local * width;
  const int first = lane * kGroup;
  const bool mirror = scan_stride(layout).in < 0;
  const int64_t first_row = (int64_t(blockIdx.x) * kWarps + warp) * rows * K;

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
    // Rows that one stride leads through need no division.
    if (k == 0 || layout.kept > 1) start[k] = row_start(layout, there ? row : 0);
    else start[k] = {start[0].in + k * rows * step.in, start[0].out + k * rows * step.out};
    in[k] = start[k].in;
  }
  load_groups<Load, kAligned>(call, in, [&](int) { return first; }, [&](int k) { return count[k]; }, mirror, x);

  __shared__ std::conditional_t<kAligned, int, RunStage<O, K * kLanes * kGroup>> stages[kWarps];
  O* out = nullptr;  // the lowest element of the warp's rows
  int phase = 0;
  if constexpr (!kAligned) {
    out = static_cast<O*>(call.out.values) + row_start(layout, first_row < layout.rows ? first_row : 0).out -
          (mirror ? n - 1 : 0);
    phase = stages[warp].phase(out);
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    typename S::Item items[kGroup];
    typename S::Result r[kGroup];
    const Acc upto = sklansky<S>(form_items<E, kAligned>(op, x[k], first, count[k], mirror, items), lane, width);
    const Acc left = shuffle(upto, lane ? lane_id() - 1 : lane_id());
    op.results(S::prefix(lane ? left : S::absent()), items, r);
    if (call.exclusive) shift_results(r, lane, start_of<S>());
    if constexpr (kAligned) {
      if (count[k] > 0) store_vector<S, Store>(call, start[k].out, first, n, mirror, r);
    } else {
      uint32_t w[kGroupWords<O>];
      O rounded[kGroup];
      round_group<O, S>(r, w);
      unpack(w, rounded);
      const int at = phase + (k * rows + local) * n + (mirror ? n - 1 - first : first);
      stages[warp].put(at, count[k], mirror, rounded);
    }
  }
  if constexpr (!kAligned) {
    const int64_t left = layout.rows - first_row;
    const int all = int(left < rows * K ? left : rows * K);
    warp_barrier();
    if (all > 0) stages[warp].store(out, all * n);
  }
}

// Longer ones: plan.warps warps a row, each with K neighbouring tiles.
template <class S, class Load, class Store, bool kAligned, int K>
__global__ void __launch_bounds__(kThreads) scan_tiled_rows(TR_GRID_CONSTANT ScanCall call) {
  using Acc = typename S::Acc;
  using E = typename Load::Element;
  using O = typename Store::Element;
  const S op{call.options};
  const Layout& layout = call.layout;
  const int n = int(layout.length), lane = lane_id(), warp = int(threadIdx.x) / kLanes, warps = call.plan.warps;
  const int part = warp % warps, place = warp - part;  // the row's first warp
  const int64_t row = int64_t(blockIdx.x) * (kWarps / warps) + warp / warps;
  const bool there = row < layout.rows, mirror = scan_stride(layout).in < 0;
  const RowStart start = row_start(layout, there ? row : 0);
  const int begin = part * K * kTile, length = there ? n : 0;

  __shared__ Acc totals[kWarps * K];
  __shared__ typename S::Result ends[kWarps];
  __shared__ std::conditional_t<kAligned, int, RunStage<O, K * kTile>> stages[kWarps];
  HeldGroup<E, kAligned> x[K];
  typename S::Item items[K][kGroup];
  Acc within[K];
  int64_t in[K];
#pragma unroll
  for (int k = 0; k < K; ++k) in[k] = start.in;
  auto first = [&](int k) { return begin + k * kTile + lane * kGroup; };
  auto count = [&](int k) { return length - first(k); };
  load_groups<Load, kAligned>(call, in, first, count, mirror, x);
#pragma unroll
  for (int k = 0; k < K; ++k) within[k] = form_items<E, kAligned>(op, x[k], first(k), count(k), mirror, items[k]);
  sklansky<S>(within, lane, kLanes);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (lane == kLanes - 1) totals[warp * K + k] = within[k];
    const Acc left = shuffle(within[k], lane ? lane - 1 : 0);
    within[k] = lane ? left : S::absent();
  }
  if (warps > 1) __syncthreads();
  else warp_barrier();
  const int tiles = warps * K, slot = lane & (tiles - 1);
  const Acc upto = sklansky<S>(totals[place * K + slot], slot, tiles);
  typename S::Result r[K][kGroup];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int tile = part * K + k;
    const Acc before = shuffle(upto, tile ? tile - 1 : 0);
    op.results(S::prefix(S::combine(tile ? before : S::absent(), within[k])), items[k], r[k]);
  }
  if (call.exclusive) {
    if (lane == kLanes - 1) ends[warp] = r[K - 1][kGroup - 1];
    __syncthreads();
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
      if (count(k) > 0) store_vector<S, Store>(call, start.out, first(k), n, mirror, r[k]);
  } else {
    const int all = length - begin < K * kTile ? length - begin : K * kTile;  // of this warp
    O* const out = static_cast<O*>(call.out.values) + (mirror ? start.out - begin - (all - 1) : start.out + begin);
    const int phase = stages[warp].phase(out);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      uint32_t w[kGroupWords<O>];
      O rounded[kGroup];
      round_group<O, S>(r[k], w);
      unpack(w, rounded);
      const int at = k * kTile + lane * kGroup;
      stages[warp].put(phase + (mirror ? all - 1 - at : at), count(k), mirror, rounded);
    }
    warp_barrier();
    if (all > 0) stages[warp].store(out, all);
  }
}

}  // namespace torchreduce::gpu
