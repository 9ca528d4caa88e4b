// Scans of rows of at most a block tile, of two inputs: lanes hold whole rows in registers, wherever their elements
// lie. Of its K groups of 32 lanes, a warp loads and stores 32 neighbours at a time, and scans K neighbours a lane:
// the first levels of Sklansky's scan are a lane's own, and at the others one shuffle serves all of its groups. Shared
// memory has the totals of a row's tiles, where several warps have one, and the results of warps whose rows start
// anywhere, on their way to memory.
#pragma once
#include "row_access.cuh"
#include "row_pairs.h"

namespace torchreduce::gpu {

// K groups `step` elements apart, a multiple of 16 bytes, of which the first one's first position is at p, in memory
// order. Wide rows: count(k) positions are there, and none or a whole group.
template <class E, int K, class Count>
__device__ __forceinline__ void load_whole(const E* p, int64_t stride, int64_t step, Count count,
                                           uint32_t (&w)[K][kGroupWords<E>]) {
  const E* lowest = stride < 0 ? p - (kGroup - 1) : p;
#pragma unroll
  for (int k = 0; k < K; ++k, lowest += step)
    if (count(k) > 0) load_granules(lowest, w[k]);
}
// By whole warps. `paired`: neighbouring lanes, from the first one on, have neighbouring groups of a row, or none.
template <class E, int K, class Count>
__device__ __forceinline__ void store_whole(E* p, int64_t stride, int64_t step, Count count,
                                            [[maybe_unused]] bool paired, uint32_t (&w)[K][kGroupWords<E>]) {
  E* lowest = stride < 0 ? p - (kGroup - 1) : p;
#pragma unroll
  for (int k = 0; k < K; ++k, lowest += step) {
    if constexpr (kHalfSectors<E>)
      if (paired) {
        store_sectors(lowest, (lane_id() % 2 != 0) != (stride < 0), count(k) > 0, w[k]);
        continue;
      }
    if (count(k) > 0) {  // one by one: of a function of all clang for gfx11 makes memory of a thread
      Granule parts[kGroupWords<E> / 4];
      memcpy(parts, w[k], sizeof parts);
#pragma unroll
      for (int i = 0; i < kGroupWords<E> / 4; ++i) store_wide(reinterpret_cast<Granule*>(lowest) + i, parts[i]);
    }
  }
}
// Any rows: positions [begin(k), count(k)) of each group; the rest is unspecified.
template <class E, int K, class Begin, class Count>
__device__ __forceinline__ void load_any(const E* p, int64_t stride, int64_t step, Begin begin, Count count,
                                         uint32_t (&w)[K][kGroupWords<E>]) {
#pragma unroll
  for (int k = 0; k < K; ++k, p += step)
    if (count(k) > 0) load_words(p, stride, begin(k), count(k) < kGroup ? count(k) : kGroup, w[k]);
}
template <class E, int K, class Count>
__device__ __forceinline__ void store_any(E* p, int64_t stride, int64_t step, Count count,
                                          uint32_t (&w)[K][kGroupWords<E>]) {
#pragma unroll
  for (int k = 0; k < K; ++k, p += step) {
    E x[kGroup];
    unpack(w[k], x);
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      if (i < count(k)) global(p)[i * stride] = x[i];
  }
}

template <class E, int K> __device__ __forceinline__ void reverse_groups(uint32_t (&w)[K][kGroupWords<E>]) {
#pragma unroll
  for (int k = 0; k < K; ++k) reverse_words<E>(w[k]);
}

// Where a warp's lanes exchange the words of its groups: between those they load and store together, of which lane l
// has number k * 32 + l, and those they scan, number l * K + k.
template <class E, int K> struct GroupExchange {
  static constexpr int kPer = kGroupWords<E> / 4, kOfLane = K * kPer;  // granules of a group, of a lane

  Granule granules[kLanes * kOfLane];

  // Granules change places in their line of eight, so that eight lanes that move together never meet in a bank.
  __device__ static int slot(int granule) { return granule ^ (granule >> 3 & (kOfLane - 1)); }

  __device__ __forceinline__ void to_scan(uint32_t (&w)[K][kPer * 4]) { move<true>(w); }
  __device__ __forceinline__ void to_store(uint32_t (&w)[K][kPer * 4]) { move<false>(w); }

 private:
  template <bool kToScan> __device__ __forceinline__ void move(uint32_t (&w)[K][kPer * 4]) {
    if constexpr (K > 1) {
      const int loaded = slot(lane_id() * kPer), scanned = slot(lane_id() * kOfLane);  // and from there
      auto at = [&](bool scan, int k, int i) {
        return &granules[scan ? scanned ^ (k * kPer + i) : k * kLanes * kPer + (loaded ^ i)];
      };
#pragma unroll
      for (int k = 0; k < K; ++k)
#pragma unroll
        for (int i = 0; i < kPer; ++i) memcpy(at(!kToScan, k, i), w[k] + i * 4, sizeof(Granule));
      warp_barrier();
#pragma unroll
      for (int k = 0; k < K; ++k)
#pragma unroll
        for (int i = 0; i < kPer; ++i) memcpy(w[k] + i * 4, at(kToScan, k, i), sizeof(Granule));
      warp_barrier();
    }
  }
};

// Elements of groups as load_whole has them, wherever they begin: as the granules around each.
template <class E, int K, class Count>
__device__ __forceinline__ void load_around(const E* p, int64_t stride, int64_t step, Count count,
                                            uint32_t (&w)[K][kGroupWords<E>]) {
  const char* lowest = reinterpret_cast<const char*>(stride < 0 ? p - (kGroup - 1) : p);
#pragma unroll
  for (int k = 0; k < K; ++k, lowest += step * int64_t(sizeof(E)))
    if (count(k) > 0) {
      const int before = bytes_before(lowest);
      const auto* const from = reinterpret_cast<const Granule*>(lowest - before);
      uint32_t words[kGroupWords<E> + 4];
#pragma unroll
      for (int g = 0; g < kGroupWords<E> / 4 + 1; ++g) {
        const Granule granule = load_wide(from + g);
#pragma unroll
        for (int i = 0; i < 4; ++i) words[4 * g + i] = granule.item[i];
      }
      shift_words(words, before, w[k]);
    }
}

// The items of K groups, the first ones at position first(k), of which count(k) are there: of elements that are not,
// the words hold nothing, and nothing may depend on them.
template <class Load, class S, int K, int W, class First, class Count>
__device__ __forceinline__ void form_items(const S& op, const uint32_t (&a_words)[K][W],
                                           const uint32_t (&b_words)[K][W], First first, Count count,
                                           typename S::Item (&items)[K][kGroup]) {
  using E = element_of<Load>;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    E a[kGroup], b[kGroup];
    unpack(b_words[k], b);
    unpack(a_words[k], a);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) items[k][i] = op.load(Pair<E>{a[i], b[i]}, i > 0 ? i : first(k));  // 0 or not
  }
  if (count(K - 1) < kGroup) {  // else all are there
    TR_RARE_PATH;
#pragma unroll
    for (int k = 0; k < K; ++k)
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        if (i >= count(k)) items[k][i] = S::absent_item();
  }
}

// The totals of a lane's groups. Returns whether all of the warp's do with less; the results have to know.
template <class S, int K>
__device__ __forceinline__ bool form_groups(typename S::Item (&items)[K][kGroup], typename S::Acc (&totals)[K]) {
  bool fast_groups = true;
#pragma unroll
  for (int k = 0; k < K; ++k) fast_groups &= S::allows_fast_group(items[k]);
  fast_groups = !ballot(!fast_groups);
#pragma unroll
  for (int k = 0; k < K; ++k) totals[k] = fast_groups ? S::fast_group(items[k]) : S::careful_group(items[k]);
  return fast_groups;
}

// Whether value k of lane `lane` of K each is the first of `width` neighbours.
template <int K> __device__ __forceinline__ bool is_first(int k, int lane, int width) {
  return ((k > 0 ? k : lane * K) & (width - 1)) == 0;
}
// Sklansky's inclusive scan of K neighbouring values a lane, of which power of two `width` neighbours are taken
// together; without choices where all of the warp's values allow it: returns whether they do.
template <class S, int K, class V>
__device__ __forceinline__ bool scan_neighbours(V (&value)[K], int lane, int width) {
  auto scan = [&](V(&run)[K], auto combine) {
#pragma unroll
    for (int d = 1; d < K; d <<= 1)
      if (d < width) {
#pragma unroll
        for (int k = 0; k < K; ++k)
          if (k & d) run[k] = combine(run[(k & ~(2 * d - 1)) + d - 1], run[k]);
      }
#pragma unroll(K > 1 && sizeof(V) < 16 ? kFanLog2 : 1)
    for (int d = 1; d * K < kLanes; d <<= 1)
      if (d * K < width) {
        const V left = shuffle(run[K - 1], (lane & ~(2 * d - 1)) + d - 1);
        if (lane & d) {
#pragma unroll
          for (int k = 0; k < K; ++k) run[k] = combine(left, run[k]);
        }
      }
  };
  V run[K];
#pragma unroll
  for (int k = 0; k < K; ++k) run[k] = value[k];
  scan(run, [](const V& l, const V& r) { return S::fast_join(l, r); });
  const V left = shuffle(run[K - 1], lane ? lane - 1 : 0);
  bool fast_joins = true;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    // What comes before and is settled either has a multiplier, or a reset.
    const bool has_reset = !is_first<K>(k, lane, width) & S::is_reset(k > 0 ? run[k > 0 ? k - 1 : 0] : left);
    fast_joins &= S::allows_fast(value[k]);
    fast_joins &= S::is_settled(run[k], S::is_reset(value[k]) | has_reset);
  }
  fast_joins = !ballot(!fast_joins);
  if (!fast_joins) {
    TR_RARE_PATH;
    scan(value, [](const V& l, const V& r) { return S::combine(l, r); });
  } else {
#pragma unroll
    for (int k = 0; k < K; ++k) value[k] = S::fast_end(run[k]);
  }
  return fast_joins;
}

// Blocks of a multiprocessor at least, where a lane holds that many bytes for each position of a group. (With no word
// of it nvcc would rather use memory for a few registers than have one block less.)
constexpr int held_blocks(int bytes) { return bytes <= 8 ? 4 : bytes <= 16 ? 3 : bytes <= 32 ? 2 : 1; }

// Of a power of two.
template <class V> __device__ __forceinline__ int log2_of_power(V power) { return __ffs(power) - 1; }

// Which groups are a lane's: of those that it loads and stores, k * 32 + lane of its warp, and of those that it scans,
// lane * K + k.
template <int K, bool kTiled> struct PairPlace {
  const int width, warps;            // lanes, warps of a row
  const int lane, warp, part;        // part: the warp's number in its row
  const int shift, apart;            // apart: rows from one of the groups that a lane loads to the next
  const int64_t first_row;           // of the warp
  const int rows;                    // from there on, as far as a warp could go
  const int n, begin, local, start;  // begin, start: the warp's first position, and of the lane's first group

  __device__ __forceinline__ PairPlace(const Layout& layout, const RowPairsShape& shape)
      : width(kTiled ? kLanes : shape.lanes),
        warps(kTiled ? shape.warps : 1),
        lane(lane_id()),
        warp(int(threadIdx.x) / kLanes),
        part(warp & (warps - 1)),
        shift(log2_of_power(unsigned(kTiled ? warps : width))),
        apart(kTiled ? 0 : kLanes >> shift),
        first_row(kTiled ? int64_t(blockIdx.x) * (kWarps >> shift) + (warp >> shift)
                         : (int64_t(blockIdx.x) * kWarps + warp) * (K * apart)),
        rows(layout.rows - first_row < kLanes * K ? int(layout.rows - first_row) : kLanes * K),
        n(int(layout.length)),
        begin(part * K * kTile),
        local(kTiled ? 0 : lane >> shift),
        start(begin + (lane & (width - 1)) * kGroup) {}
  // Positions that are there from the first one of a group on.
  __device__ __forceinline__ int loaded(int k) const {
    return kTiled ? (rows > 0 ? n - start : 0) - k * kTile : k * apart < rows - local ? n - start : 0;
  }
  __device__ __forceinline__ int scanned(int k) const { return row_of(k) < rows ? n - first(k) : 0; }
  // The first position of a group that is scanned, and its row.
  __device__ __forceinline__ int first(int k) const {
    return begin + (kTiled ? lane * K + k : (lane * K + k) & (width - 1)) * kGroup;
  }
  __device__ __forceinline__ int row_of(int k) const { return kTiled ? 0 : (lane * K + k) >> shift; }
  // Elements from one of the groups that a lane loads to the next.
  __device__ __forceinline__ int64_t step(const Layout& layout, int64_t along, const int64_t* strides) const {
    return kTiled ? kTile * along : layout.kept ? apart * strides[0] : 0;
  }
};

// Loads a warp's elements. Returns whether b's are aligned, whole groups, as then results are.
template <class Load, int K, bool kTiled, bool kStaged, int W>
__device__ __forceinline__ bool load_pairs(const ScanCall& call, const PairPlace<K, kTiled>& at, bool granules,
                                           int64_t row, const RowStart& row_at, uint32_t (&a_words)[K][W],
                                           uint32_t (&b_words)[K][W]) {
  using E = element_of<Load>;
  const Layout& layout = call.layout;
  const int64_t stride = scan_stride(layout).in, a_stride = layout.reduced ? call.more_strides[0][layout.kept] : 0;
  const int64_t b_step = at.step(layout, stride, layout.in), a_step = at.step(layout, a_stride, call.more_strides[0]);
  const E* const b = static_cast<const E*>(call.in.data) + row_at.in + at.start * stride;
  const E* const a =
      static_cast<const E*>(call.in.more[0]) + row_offset(layout, call.more_strides[0], row) + at.start * a_stride;
  const bool whole = !kStaged & granules & (at.n % kGroup == 0);
  auto loaded = [&](int k) { return at.loaded(k); };
  // Of a, plans know nothing: rows `apart` from an aligned one need not be.
  const bool a_steps = kTiled || K == 1 || int(a_step) % (16 / int(sizeof(E))) == 0;
  if (whole & is_wide(a, a_stride) & a_steps & !call.shifted) {
    load_whole(b, stride, b_step, loaded, b_words);
    load_whole(a, a_stride, a_step, loaded, a_words);
    return whole;
  }
  // Where other rows lie before and behind the warp's, granules around a group are in the tensors.
  bool b_around = false, a_around = false;
  if constexpr (kStaged) {
    const bool among = layout.kept == 1 && at.n >= 2 * kGroup && at.first_row > 0 &&
                       at.first_row + (kTiled ? 1 : K * at.apart) < layout.rows;
    b_around = among && layout.in[0] >= at.n && (stride == 1 || stride == -1) && call.in.data != call.out.values;
    a_around = among && call.more_strides[0][0] >= at.n && (a_stride == 1 || a_stride == -1) && !call.shifted &&
               call.in.more[0] != call.out.values;
    if (b_around) load_around(b, stride, b_step, loaded, b_words);
    if (a_around) load_around(a, a_stride, a_step, loaded, a_words);
  }
  if (!b_around) load_any(b, stride, b_step, [](int) { return 0; }, loaded, b_words);
  const int skipped = at.start > 0 || Load::has_a(call, 0) ? 0 : 1;
  if (!a_around) load_any(a, a_stride, a_step, [&](int k) { return kTiled && k > 0 ? 0 : skipped; }, loaded, a_words);
  return whole;
}

// What precedes the tiles of a lane's groups in their row, of which the warps of a block have found the totals.
template <class S, int K>
__device__ __forceinline__ typename S::Acc precede_tiles(const PairPlace<K, true>& at, const typename S::Acc (&upto)[K],
                                                         bool& fast_joins) {
  using Acc = typename S::Acc;
  __shared__ Acc totals[kWarps * K];
  const int tiles = at.warps * K, tile = at.lane * K / kLanes, past = at.part * K + tile;
  if ((at.lane + 1) * K % kLanes == 0) totals[at.warp * K + tile] = upto[K - 1];
  if (at.warps > 1) __syncthreads();
  else warp_barrier();
  Acc tiles_upto[1] = {totals[(at.warp - at.part) * K + (at.lane & (tiles - 1))]};
  fast_joins &= scan_neighbours<S>(tiles_upto, at.lane, tiles);
  const Acc before = shuffle(tiles_upto[0], past ? past - 1 : 0);
  return past == 0 ? S::absent() : before;
}

// Stores a warp's results, which are one run of memory, by way of shared memory.
template <class E, int K, bool kTiled, class Stage, int W>
__device__ __forceinline__ void store_run(const ScanCall& call, const PairPlace<K, kTiled>& at, const RowStart& row_at,
                                          Stage& stage, const uint32_t (&words)[K][W]) {
  const int n = at.n;
  const bool mirror = scan_stride(call.layout).out < 0;
  const int left = kTiled ? (at.rows > 0 ? n - at.begin : 0) : at.rows * n, most = K * (kTiled ? kTile : at.apart * n),
            all = left < most ? left : most;  // of this warp
  E* const run = static_cast<E*>(call.out.values) + (kTiled ? row_at.out + (mirror ? -(at.begin + all - 1) : at.begin)
                                                            : at.first_row * n - (mirror ? n - 1 : 0));
  const int phase = stage.phase(run);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int from = kTiled ? at.start - at.begin + k * kTile : at.start;
    const int item = phase + (at.local + k * at.apart) * n + (mirror ? (kTiled ? all : n) - 1 - from : from);
    stage.put_words(item, at.loaded(k), mirror, words[k]);
  }
  warp_barrier();
  if (all > 0) stage.store(run, all);
}

// shape.lanes lanes a row of at most a tile, K times as many rows a warp, which one stride leads through, or K is 1.
// kTiled: longer rows, shape.warps warps a row, each with K neighbouring tiles. kStaged: of results that are one run of
// memory for each warp (shape.runs), and go there by way of shared memory.
template <class S, class Load, class Store, int K, bool kTiled, bool kStaged>
__global__ void TR_ALL_BLOCKS_BOUND(kThreads, held_blocks(K* int(sizeof(typename S::Item))))
    scan_row_pairs(TR_GRID_CONSTANT ScanCall call, TR_GRID_CONSTANT RowPairsShape shape) {
  static_assert(!kHasStart<S>, "it would have to be able to be exclusive");
  using Acc = typename S::Acc;
  using E = element_of<Load>;
  const S op{call.options};
  const Layout& layout = call.layout;
  const PairPlace<K, kTiled> at(layout, shape);
  const int64_t row = at.local < at.rows ? at.first_row + at.local : 0;
  const RowStart row_at = row_start(layout, row);
  const ScanStride stride = scan_stride(layout);
  uint32_t b_words[K][kGroupWords<E>], a_words[K][kGroupWords<E>];
  const bool whole = load_pairs<Load, K, kTiled, kStaged>(call, at, shape.granules, row, row_at, a_words, b_words);
  constexpr int kInitial = kTiled ? 1 : K;  // one for each row that a lane may scan
  E initial[kInitial];
  if (call.options.initial) {
    const int64_t* const strides = call.more_strides[1];
    const int own = at.row_of(0);
    const E* const h = static_cast<const E*>(call.in.more[1]) +
                       row_offset(layout, call.more_strides[1], own < at.rows ? at.first_row + own : 0);
#pragma unroll
    for (int k = 0; k < kInitial; ++k)
      if (at.row_of(k) < at.rows) initial[k] = global(h)[layout.kept ? (at.row_of(k) - own) * strides[0] : 0];
  }

  if (stride.in < 0) reverse_groups<E>(b_words);
  if (layout.reduced && call.more_strides[0][layout.kept] < 0) reverse_groups<E>(a_words);
  using Stage = RunStage<E, K * kLanes * kGroup, true>;
  __shared__ union {
    GroupExchange<E, K> exchange;
    std::conditional_t<kStaged, Stage, char> stage;  // when nothing is exchanged any more
  } shared[K > 1 || kStaged ? kWarps : 1];
  auto& exchange = shared[K > 1 || kStaged ? at.warp : 0].exchange;
  exchange.to_scan(b_words);
  exchange.to_scan(a_words);
  typename S::Item items[K][kGroup];
  form_items<Load>(
      op, a_words, b_words, [&](int k) { return at.first(k); }, [&](int k) { return at.scanned(k); }, items);
  Acc upto[K];
  const bool fast_groups = form_groups<S>(items, upto);
  bool fast_joins = scan_neighbours<S>(upto, at.lane, at.width);

  Acc before = S::absent();
  if constexpr (kTiled) before = precede_tiles<S>(at, upto, fast_joins);
  uint32_t out_words[K][kGroupWords<E>];
  const Acc left = shuffle(upto[K - 1], at.lane ? at.lane - 1 : 0);
  auto within = [&](int k) {
    return is_first<K>(k, at.lane, at.width) ? S::absent() : k > 0 ? upto[k > 0 ? k - 1 : 0] : left;
  };
  if (fast_groups & fast_joins & !call.options.initial) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      typename S::Result results[kGroup];
      // Of a row of a tile, what lies within is a reset, or nothing.
      op.fast_results(S::prefix(kTiled ? S::fast_join(before, within(k)) : within(k)), items[k], results);
      round_group<E, S, true>(results, out_words[k]);  // of numbers that are finite
    }
  } else {
    TR_RARE_PATH;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      typename S::Result results[kGroup];
      typename S::Prefix prefix = S::prefix(S::combine(before, within(k)));
      if (call.options.initial) {
        TR_RARE_PATH;  // all of the combination is wanted here alone
        prefix =
            S::prefix(S::initial(convert<typename S::Result>(initial[k % kInitial])), S::combine(before, within(k)));
      }
      fast_groups ? op.fast_results(prefix, items[k], results) : op.careful_results(prefix, items[k], results);
      round_group<E, S>(results, out_words[k]);
    }
  }
  exchange.to_store(out_words);
  if constexpr (kStaged) return store_run<E>(call, at, row_at, shared[at.warp].stage, out_words);
  const int64_t out_step = at.step(layout, stride.out, layout.out);
  int64_t place = row_at.out + at.start * stride.out;
  if constexpr (sizeof(E) > 4)  // there are no registers to keep that in
    place = row_offset(layout, layout.out, recomputed(row)) + recomputed(at.start) * stride.out;
  E* const to = static_cast<E*>(call.out.values) + place;
  auto loaded = [&](int k) { return at.loaded(k); };
  if (whole & (stride.out == 1 || stride.out == -1)) {
    if (stride.out < 0) reverse_groups<E>(out_words);
    store_whole(to, stride.out, out_step, loaded, layout.length % (2 * kGroup) == 0, out_words);
  } else {
    store_any(to, stride.out, out_step, loaded, out_words);
  }
}

}  // namespace torchreduce::gpu
