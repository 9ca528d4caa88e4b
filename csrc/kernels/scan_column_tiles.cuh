// Scans along columns whose accumulators are large, or whose rows are no whole sectors of memory: a tile of some
// neighbouring columns a block, by way of shared memory, from where it is taken twice, for its totals and, when what
// precedes it is there, for its results. A lane has V neighbouring columns, 32 rows of which it copies and reads
// itself; where columns are fewer than lanes, a warp has several tiles at once. Blocks are many and
// stay short: while some wait for what precedes them, others copy or compute. H200, float32 and bfloat16, cumprod of
// 16384 by 16384 0.74 and 0.52 of a copy's speed, by walking down strips 0.70 and 0.38; of 2^24 by 16 0.60 and 0.41, by
// sharing strips 0.29 and 0.15; linear_scan of the same 0.54 and 0.39, by walking 0.47 and 0.16; 0.40 and 0.25, by
// sharing strips 0.11 and 0.05.
#pragma once
#include "row_access.cuh"
#include "scan_columns.cuh"

namespace torchreduce::gpu {

// Whether the kernel is compiled for these: tiles side by side; tiles that are one run of memory.
template <class S, class Load, class Store> constexpr bool kColumnTiles = [] {
  if constexpr (kHeld<S, Load, Store> || kInPlace<S, Load, Store>)
    return is_float_type<element_of<Load>> &&
           (sizeof(element_of<Load>) == 4 || (sizeof(element_of<Load>) == 2 && sizeof(typename S::Acc) >= 8));
  else return false;
}();
template <class S, class Load, class Store> constexpr bool kFlatTiles = [] {
  if constexpr (kInPlace<S, Load, Store>)
    return is_float_type<typename Load::Element> && sizeof(typename Load::Element) <= 4;
  else return false;
}();

// What the tiles of a block are: neighbours in strips; one run of memory, of fewer columns than a warp has lanes, or of
// more.
enum class TilesAs { Strips, Run, WideRun };

// The threads of a block, and those that lie side by side.
template <class S, int V, TilesAs kAs> constexpr int kTileThreads =
    kAs == TilesAs::WideRun ? wide_run_threads(V) : column_tile_threads(S::kInputs);
template <class S, int V, TilesAs kAs> constexpr int kTileLanes =
    kAs == TilesAs::WideRun ? kWideRun / V : column_tile_lanes(S::kInputs);

// Whether also for tiles that are a run of more columns.
template <class S, class Load, class Store> constexpr bool kWideRunTiles =
    kFlatTiles<S, Load, Store> && sizeof(typename S::Acc) <= 4;

// Blocks of a multiprocessor that there are registers for (bfloat16, 16384 by 16384: cumprod 0.52 of a copy's speed,
// with 4 and some memory for what they lack 0.50; logcumsumexp 0.27, with 3 0.26). Before Hopper nvcc would rather use
// memory for large accumulators' runs than have fewer.
template <class S, int V, TilesAs kAs> constexpr int kTileBlocks = [] {
  const bool large = sizeof(typename S::Acc) > 4;
  if (kAs == TilesAs::WideRun) return wide_run_blocks(V);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  if (kAs == TilesAs::Run && large) return V > 1 ? 2 : 3;
#endif
  if (kAs == TilesAs::Run && V > 1) return large ? 3 : 4;
  return kAs == TilesAs::Strips && V > 1 && kHasQuick<S> ? 3 : large ? 4 : 5;
}();

// Stores `count` elements from shared memory on to `to` on, by threads `thread` of `threads`: whole granules, and
// around them elements. What lies in the granules of `from` around them is read, never used.
template <class E> __device__ __forceinline__ void store_run(E* to, const E* from, int count, int thread, int threads) {
  using Granule = Packed<uint32_t, 4>;
  constexpr int kBytes = sizeof(Granule), kPer = kBytes / int(sizeof(E));
  const int skew = int(reinterpret_cast<uintptr_t>(to) % kBytes) / int(sizeof(E));
  for (int first = thread * kPer - skew; first < count; first += threads * kPer) {
    if (first >= 0 && first + kPer <= count) {
      const char* const at = reinterpret_cast<const char*>(from + first);
      const int before = int(reinterpret_cast<uintptr_t>(at) % kBytes);
      const Granule* const granules = reinterpret_cast<const Granule*>(at - before);
      Granule granule = granules[0];
      if (before) {
        const Granule next = granules[1];
        uint32_t w[8], shifted[4];
        memcpy(w, &granule, sizeof granule);
        memcpy(w + 4, &next, sizeof next);
        shift_words<4>(w, before, shifted);
        memcpy(&granule, shifted, sizeof granule);
      }
      store_granule(reinterpret_cast<Granule*>(global(to) + first), granule);
    } else {
#pragma unroll
      for (int i = 0; i < kPer; ++i)
        if (first + i >= 0 && first + i < count) global(to)[first + i] = from[first + i];
    }
  }
}
// Copies `count` elements to shared memory, to a place that is as far from the start of a granule.
template <class E> __device__ __forceinline__ void copy_run(E* to, const E* from, int count, int thread, int threads) {
  constexpr int kBytes = 16, kPer = kBytes / int(sizeof(E));
  const int skew = int(reinterpret_cast<uintptr_t>(from) % kBytes) / int(sizeof(E));
  for (int first = thread * kPer - skew; first < count; first += threads * kPer) {
    if (first >= 0 && first + kPer <= count) {
      copy_async<kBytes>(to + first, global(from) + first);
    } else {
#pragma unroll
      for (int i = 0; i < kPer; ++i)
        if (first + i >= 0 && first + i < count) to[first + i] = global(from)[first + i];
    }
  }
}

// Elements of a run of `count` before its first whole granule, and those of whole granules.
template <class E> struct RunGranules {
  int before, whole;

  __device__ __forceinline__ RunGranules(const E* run, int count) {
    constexpr int kPer = 16 / int(sizeof(E));
    const int lead = int(-(reinterpret_cast<uintptr_t>(run) / sizeof(E)) % kPer);
    before = lead < count ? lead : count;
    whole = (count - before) / kPer * kPer;
  }
};
#ifdef TR_BULK_COPIES
// The same by a bulk copy, which arrives at `landed`, and the elements at its ends; both places are as far from the
// start of a granule.
template <class E>
__device__ __forceinline__ void bulk_copy_run(E* to, const E* from, int count, int thread, int threads,
                                              Barrier* landed) {
  const RunGranules<E> run(from, count);
  if (thread == 0) {
    barrier_expect(landed, uint32_t(run.whole) * sizeof(E));
    if (run.whole) bulk_load(to + run.before, from + run.before, uint32_t(run.whole) * sizeof(E), landed);
  }
  for (int i = thread; i < count - run.whole; i += threads) {
    const int at = i < run.before ? i : i + run.whole;
    to[at] = global(from)[at];
  }
}
// From shared memory, after all have written and fenced.
template <class E>
__device__ __forceinline__ void bulk_store_run(E* to, const E* from, int count, int thread, int threads) {
  const RunGranules<E> run(to, count);
  if (thread == 0 && run.whole) bulk_store(to + run.before, from + run.before, uint32_t(run.whole) * sizeof(E));
  for (int i = thread; i < count - run.whole; i += threads) {
    const int at = i < run.before ? i : i + run.whole;
    global(to)[at] = from[at];
  }
  if (thread == 0) bulk_stores_read();
}
#endif

// plan.strip lanes, of V columns each, are side by side; plan.warps tiles below each other. Where those are one run of
// memory, it is copied and stored as that, and a lane's V columns are any of [tile][column].
template <class S, class Load, class Store, int V, TilesAs kAs>
__global__ void TR_BLOCKS_BOUND((kTileThreads<S, V, kAs>), (kTileBlocks<S, V, kAs>))
    scan_column_tiles(TR_GRID_CONSTANT ScanCall call, void* workspace) {
  constexpr bool kFlat = kAs != TilesAs::Strips, kWideRuns = kAs == TilesAs::WideRun;
#if defined(__CUDA_ARCH__) && !defined(TR_LARGE_BLOCKS)
  if constexpr (kWideRuns) return;  // no plan has them
#endif
  using E = element_of<Load>;
  using Acc = typename S::Acc;
  using Wide = typename S::Wide;
  constexpr int kThreads = kTileThreads<S, V, kAs>, kWide = kTileLanes<S, V, kAs>, kParts = kThreads / kWide;
  constexpr int kColumns = kWide * V;                               // [tile][column] of a block, at most
  constexpr int kTurns = kThreads / kColumns;                       // threads that look for what precedes one of them
  constexpr int kGroups = kFan / kParts, kRows = kGroups * kGroup;  // of a lane
  constexpr int kOfWord = 4 / int(sizeof(E)), kLast = kTurns - 1;
  constexpr int kSide = kFlat ? 1 : V, kPlaces = kFlat ? V : 1;  // of a lane: neighbouring columns; tiles
  constexpr int kJoined = 2 + log2_of(kParts);   // what precedes a group in its block tile is of at most so many
  constexpr int kSlots = kWideRuns ? 8 : 4;      // looked at together
  constexpr int kRuns = kFan / kTurns / kSlots;  // of them, that each looks at
  static_assert(kRuns == 1 || kRuns == 2, "joined as a tree");
  struct Job {
    int64_t tile, in, out;  // in, out: of its first element
    int64_t a, row;         // of the second of two inputs; its first column, of all
    int width;              // columns
    int row_step;           // kFlat: elements from a row to the next one in the scan's order
    int tile_slot, block_slot;
    // What is published of its first column: of the first tile of its block tile, of the first block tile of its
    // superblock, and what precedes that, if there is any.
    Published<Acc>*tile_totals, *block_totals;
    Published<Wide>*carry, *next_carry;  // null: none; behind its block tile
  };
  // Each thread's own elements, kSide a word; or tiles with at least a granule between them, and with that so far apart
  // that elements in one row of them are in different banks.
  uint32_t* staged;
  if constexpr (kWideRuns) {
    TR_DYNAMIC_SHARED(dynamic, 16);
    staged = reinterpret_cast<uint32_t*>(dynamic);
  } else {
    constexpr int kStaged = kFlat ? kRows * kThreads * V / kOfWord + 32 : S::kInputs * kRows * kThreads;
    alignas(16) __shared__ uint32_t fixed[kStaged];
    staged = fixed;
  }
  // Of parts of rows; then, at the last part of each 2^k of them, of those rows together.
  __shared__ Acc totals[kParts][kColumns];
  // What precedes a tile in its block tile, and the block tile in its superblock, in turns; then, in the last one's
  // place, all of that, and all that precedes the block tile.
  __shared__ Acc near[kTurns][kColumns];
  __shared__ Wide far[kTurns][kColumns];
  __shared__ Job job;
  [[maybe_unused]] __shared__ Barrier landed;
  static_assert(!kWideRuns || sizeof totals + sizeof near + sizeof far + sizeof job + 16 <= kWideRunDeclared,
                "the plan counts on no more");
  const S op{call.options};
  const Layout& layout = call.layout;
  const ScanStride stride = scan_stride(layout);
  const int lanes = call.plan.strip, down = call.plan.warps;
  const int64_t tiles = call.plan.splits;
  const bool beside = layout.kept > 0;  // columns lie side by side
  const int64_t column_in = beside ? layout.in[layout.kept - 1] : 0,
                column_out = beside ? layout.out[layout.kept - 1] : 0;
  const int64_t a_stride = is_pair<Load> && layout.reduced ? call.more_strides[0][layout.kept] : 0,
                column_a = is_pair<Load> && beside ? call.more_strides[0][layout.kept - 1] : 0;
  const int64_t width = kFlat ? lanes : beside ? layout.size[layout.kept - 1] : 1;
  if (threadIdx.x == 0) {  // tiles a block waits for have lower tickets
    if constexpr (kWideRuns) {
      barrier_init(&landed, down);
      barriers_made();
    }
    const int64_t ticket = int64_t(take_ticket(static_cast<uint64_t*>(workspace)));
    const ColumnSpace<S> space(workspace, layout.rows, width, tiles);
    const int64_t columns = lanes * kSide, strips = (space.width + columns - 1) / columns;
    const int64_t rest = ticket / strips, first = (ticket - rest * strips) * columns;
    const int64_t jobs = (tiles + down - 1) / down, batch = rest / jobs, tile = (rest - batch * jobs) * down;
    const RowStart start = row_start(layout, batch, layout.kept - 1);
    const int64_t block = tile / kFan, superblock = block / kFan * kFan;
    job = {
        tile,
        start.in + tile * kTile * stride.in + first * column_in,
        start.out + tile * kTile * stride.out + first * column_out,
        is_pair<Load> ? row_offset(layout, call.more_strides[0], batch * width + first) + tile * kTile * a_stride : 0,
        batch * width + first,
        int(space.width - first < columns ? space.width - first : columns),
        stride.in < 0 ? -lanes : lanes,
        int(tile % kFan),
        int(block % kFan),
        space.tile(batch, block * kFan, first),
        space.block(batch, superblock, first),
        superblock ? space.carry(batch, superblock - 1, first) : nullptr,
        space.carry(batch, block, first)};
  }
  __syncthreads();

  // Which rows and columns are a thread's, in its tile v.
  struct Place {
    int part, lane, x, row;  // row: its first, from the job's
    int64_t first;           // position
    int left, count;         // positions from there on, if no more than one too many; of its own
  };
  auto place_of = [&](int thread, int v) {
    const int lane = thread % kWide + v * kWide, y = kFlat || down > 1 ? lane / lanes : lane >= lanes,
              x = lane - y * lanes, row = y * kTile + thread / kWide * kRows;
    const int64_t first = job.tile * kTile + row, left = layout.length - first;
    const int most = left < 0 ? 0 : left > kRows ? kRows + 1 : int(left);
    return Place{thread / kWide,
                 lane,
                 x,
                 row,
                 first,
                 most,
                 y >= down || x * kSide >= job.width ? 0 : most < kRows ? most : kRows};
  };
  auto chain_of = [&](const Place& at, int v) { return kFlat ? at.lane : at.lane * V + v; };
  // Of tile y of those that are one run: its rows, and where they begin in the input.
  struct Run {
    int rows;
    const E* lowest;
  };
  auto mirror = [&] { return job.row_step < 0; };
  auto run_of = [&](int y) {
    const int64_t left = layout.length - (job.tile + y) * kTile;
    const int rows = left < 0 ? 0 : left < kTile ? int(left) : kTile;
    return Run{rows,
               static_cast<const E*>(call.in.data) + job.in + (y * kTile + (mirror() ? rows - 1 : 0)) * job.row_step};
  };
  // Where its lowest element is in shared memory.
  auto staged_run = [&](int y, const Run& run) {
    const int apart = kTile * lanes + 128 / int(sizeof(E)) / down;
    return y * apart + int(reinterpret_cast<uintptr_t>(run.lowest) % 16) / int(sizeof(E));
  };
  E* const stage = reinterpret_cast<E*>(staged);
  // Where a lane's first element is there.
  auto flat_of = [&](const Place& at) {
    const int y = at.lane / lanes, row = at.part * kRows;
    const Run run = run_of(y);
    return staged_run(y, run) + (mirror() ? run.rows - 1 - row : row) * lanes + at.x;
  };
  uint32_t* const own = staged + threadIdx.x;
  Acc upto[kGroups][V];  // of the lane's groups to this one, in the tile's order
  bool quick = true;     // whether quick_group takes all of the lane's groups, then of the warp's
  // The items of a lane's group g.
  auto items_of = [&](auto whole, const Place* at, const int* flat, int g, typename S::Item(&items)[V][kGroup]) {
    if constexpr (kFlat) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const int step = job.row_step;
        const E* from = stage + (flat[v] + g * kGroup * step);
#pragma unroll
        for (int i = 0; i < kGroup; ++i, from += step)
          items[v][i] = whole || g * kGroup + i < at[v].count ? op.load(*from, i > 0 ? i : at[v].first + g * kGroup)
                                                              : S::absent_item();
      }
    } else {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        E side[S::kInputs][kOfWord];
#pragma unroll
        for (int k = 0; k < S::kInputs; ++k) {
          const uint32_t word[1] = {own[(k * kRows + g * kGroup + i) * kThreads]};
          unpack(word, side[k]);
        }
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const auto element = [&] {
            if constexpr (is_pair<Load>) return Pair<E>{side[1][v], side[0][v]};
            else return side[0][v];
          }();
          items[v][i] = whole || g * kGroup + i < at[0].count
                            ? op.load(element, i > 0 ? i : at[0].first + g * kGroup)  // 0 or not
                            : S::absent_item();
        }
      }
    }
  };
  {
    Place at[kPlaces];
    int flat[kPlaces] = {};
#pragma unroll
    for (int v = 0; v < kPlaces; ++v) {
      at[v] = place_of(int(threadIdx.x), v);
      if constexpr (kFlat) flat[v] = flat_of(at[v]);
    }
    if constexpr (kFlat) {
      const int threads = kThreads / down, y = int(threadIdx.x) / threads;
      const Run run = run_of(y);
      E* const to = stage + staged_run(y, run);
      const int count = run.rows * lanes, thread = int(threadIdx.x) % threads;
#ifdef TR_BULK_COPIES
      if constexpr (kWideRuns) bulk_copy_run(to, run.lowest, count, thread, threads, &landed);
      else
#endif
        copy_run(to, run.lowest, count, thread, threads);
    } else {
      const E* from[S::kInputs];
      int64_t step[S::kInputs];
      from[0] =
          global(static_cast<const E*>(call.in.data)) + (job.in + at[0].row * stride.in + at[0].x * V * column_in);
      step[0] = stride.in;
      bool all = at[0].count == kRows, has_first = true;
      if constexpr (is_pair<Load>) {
        from[1] =
            global(static_cast<const E*>(call.in.more[0])) + (job.a + at[0].row * a_stride + at[0].x * V * column_a);
        step[1] = a_stride;
        has_first = Load::has_a(call, at[0].first);
        all &= has_first;
      }
      auto load = [&](auto whole, int t) {
#pragma unroll
        for (int k = 0; k < S::kInputs; ++k) {
          uint32_t* const to = own + (k * kRows + t) * kThreads;
          if (whole || k == 0 || t > 0 || has_first) {
            if constexpr (V == kOfWord) copy_async<4>(to, from[k]);
            else *to = bit_cast<uint16_t>(*from[k]);
          }
          from[k] += step[k];
        }
      };
      if (all) {
#pragma unroll 8
        for (int t = 0; t < kRows; ++t) load(std::true_type(), t);
      } else {
        TR_ROLLED
        for (int t = 0; t < at[0].count; ++t) load(std::false_type(), t);
      }
    }
    if constexpr (kWideRuns) {
      barrier_wait(&landed, 0);
    } else {
      end_copies();
      wait_copies<0>();
    }
    if constexpr (kFlat) __syncthreads();
    bool all = true;
#pragma unroll
    for (int v = 0; v < kPlaces; ++v) all &= at[v].count == kRows;
    auto form = [&](auto whole) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        typename S::Item items[V][kGroup];
        items_of(whole, at, flat, g, items);
#pragma unroll
        for (int v = 0; v < V; ++v) {
          if constexpr (kHasQuick<S>) {
            typename S::Item last;
            if (S::quick_group(items[v], last)) {
              upto[g][v] = S::of_near(last);
              continue;
            }
            TR_RARE_PATH;
            quick = false;
          }
          upto[g][v] = S::group(items[v]);
        }
      }
    };
    if (all) form(std::true_type());
    else form(std::false_type());
    quick = kHasQuick<S> && !ballot(!quick);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      Acc own[kGroups];
#pragma unroll
      for (int g = 0; g < kGroups; ++g) own[g] = upto[g][v];
      Acc runs[kGroups];
      join_calmly<S>(
          own,
          [&](auto join) {
#pragma unroll
            for (int g = 0; g < kGroups; ++g) runs[g] = own[g];
#pragma unroll
            for (int d = 1; d < kGroups; d *= 2)  // as Sklansky's scan has it
#pragma unroll
              for (int g = 0; g < kGroups; ++g)
                if (g & d) runs[g] = join(runs[(g & ~(2 * d - 1)) + d - 1], runs[g]);
          },
          runs);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) upto[g][v] = runs[g];
      totals[at[0].part][chain_of(at[kFlat ? v : 0], v)] = upto[kGroups - 1][v];
    }
  }
  __syncthreads();

  {
    const int chain = int(threadIdx.x) % kColumns, turn = int(threadIdx.x) / kColumns, of_lane = chain / kSide,
              below = kFlat || down > 1 ? of_lane / lanes : of_lane >= lanes,
              column = (of_lane - below * lanes) * kSide + chain % kSide;
    const int tile_slot = job.tile_slot + below, block_slot = job.block_slot;
    const bool active = below < down && column < job.width && job.tile + below < tiles, one = active && turn == kLast;
    Published<Acc>* const tile_totals = job.tile_totals + column;
    Published<Acc>* const block_totals = job.block_totals + column;
    Acc total = S::absent();
    if (turn == kLast) {
      Acc part[kParts];
#pragma unroll
      for (int p = 0; p < kParts; ++p) part[p] = totals[p][chain];
#pragma unroll
      for (int d = 1; d < kParts; d *= 2)
#pragma unroll
        for (int p = 2 * d - 1; p < kParts; p += 2 * d) totals[p][chain] = part[p] = S::combine(part[p - d], part[p]);
      total = part[kParts - 1];
      if (one && tiles > 1) tile_totals[tile_slot * width].publish(total);
    }
    warp_barrier();  // before a lane that waits for this holds the one that is to publish it
    using Slots = PublishedSlots<S, Acc, kFan / kSlots>;
    Slots slots;
    // The tree over those of the thread's slots that are among the first `count`, begun; and with `own` in the last
    // one.
    auto gather = [&](const Published<Acc>* of, int count, auto absent, auto widen, bool has_own, auto own) {
      struct { decltype(absent) upto, with_own; } all{absent, absent};
#pragma unroll
      for (int r = 0; r < kRuns; ++r) {
        if (r) slots.begin(of, recomputed(width), active ? count : 0, recomputed(turn) * kRuns + r);
        slots.collect();
        const auto run = slots.run(count, absent, widen);
        if (has_own && r == kRuns - 1) {
          slots.value[kSlots - 1] = own;
          all.with_own = slots.run(kFan, absent, widen);
          if (r) all.with_own = S::combine(all.upto, all.with_own);
        }
        all.upto = r ? Slots::join(all.upto, run, (turn * kRuns + r) * kSlots < count) : run;
      }
      return all;
    };
    slots.begin(tile_totals, width, active ? tile_slot : 0, turn * kRuns);
    const auto same = [](Acc a) { return a; };
    const auto widen = [](Acc a) { return S::widen(a); };
    // The tree over what the turns found of the first `count` slots, of which the last one's is `own`.
    auto of_turns = [&](const auto& found, int count, auto own) {
      decltype(own) level[kTurns];
#pragma unroll
      for (int t = 0; t < kLast; ++t) level[t] = found[t][chain];
      level[kLast] = own;
#pragma unroll
      for (int d = 1; d < kTurns; d *= 2)
#pragma unroll
        for (int t = 0; t < kTurns; t += 2 * d)
          level[t] = Slots::join(level[t], level[t + d], (t + d) * (kFan / kTurns) < count);
      return level[0];
    };
    const bool closes = one && tile_slot == kFan - 1;
    const auto [found, to_close] = gather(tile_totals, tile_slot, S::absent(), same, closes, total);
    near[turn][chain] = found;
    slots.begin(block_totals, width, active ? block_slot : 0, turn * kRuns);
    PublishedOne<Wide> earlier;
    earlier.begin(job.carry ? job.carry + column : nullptr, one && job.carry);
    __syncthreads();
    Acc block_total = S::absent();
    if (one) {
      near[kLast][chain] = of_turns(near, tile_slot, found);
      if (closes) {
        block_total = of_turns(near, kFan, to_close);
        if (block_slot < kFan - 1) block_totals[block_slot * width].publish(block_total);
      }
    }
    const Wide before = earlier.collect(row_carry<S, Load>(call, one ? job.row + column : 0));
    const bool settles = closes && block_slot == kFan - 1;
    const auto [found_far, to_settle] = gather(block_totals, block_slot, S::wide_absent(), widen, settles, block_total);
    far[turn][chain] = found_far;
    __syncthreads();
    if (one) {
      far[kLast][chain] = block_slot ? S::combine(before, of_turns(far, block_slot, found_far)) : before;
      if (settles) job.next_carry[column].publish(S::combine(before, of_turns(far, kFan, to_settle)));
    } else if (kPlaces > 1 && turn == kLast) {  // of a lane that has another one
      near[kLast][chain] = S::absent();
      far[kLast][chain] = S::wide_absent();
    }
  }
  __syncthreads();

  Place at[kPlaces];
  int flat[kPlaces] = {};
  bool any = false, all = true;
#pragma unroll
  for (int v = 0; v < kPlaces; ++v) {
    at[v] = place_of(recomputed(int(threadIdx.x)), v);
    if constexpr (kFlat) flat[v] = flat_of(at[v]);
    any |= at[v].count > 0;
    all &= at[v].count == kRows;
  }
  if (!kFlat && !any) return;
  const int shift = call.exclusive ? 1 : 0, last_one = at[0].left - shift;
  auto out = [&] { return global(static_cast<E*>(call.out.values)) + job.out; };
  E* to = out() + ((at[0].row + shift) * stride.out + at[0].x * kSide * column_out);
#pragma unroll
  for (int v = 0; v < V; ++v)
    if (shift && at[kFlat ? v : 0].first == 0 && at[kFlat ? v : 0].count > 0)
      out()[kFlat ? at[v].x : (at[0].x * V + v) * column_out] = round_to<E>(start_of<S>());
  auto store = [&](auto whole, const auto(&r)[V][kGroup], int stored) {
    Packed<uint32_t, 1> words[kGroup];
    if constexpr (V == kOfWord) round_columns<E, S>(r, words, 0);
    else
#pragma unroll
      for (int i = 0; i < kGroup; ++i) words[i].item[0] = bit_cast<uint16_t>(round_to<E>(r[0][i]));
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (whole || i < stored) {
        if constexpr (V == kOfWord) store_wide(reinterpret_cast<Packed<uint32_t, 1>*>(to), words[i]);
        else *to = bit_cast<E>(uint16_t(words[i].item[0]));
      }
      to += stride.out;
    }
  };
  auto results = [&](auto whole) {
    TR_ROLLED
    for (int g = 0; g < kGroups; ++g) {
      typename S::Item items[V][kGroup];
      items_of(whole, at, flat, g, items);
      typename S::Result r[V][kGroup];
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const int chain = chain_of(at[kFlat ? v : 0], v);
        Acc within = S::absent();
#pragma unroll
        for (int before = 0; before < kGroups - 1; ++before) within = chosen(g == before + 1, upto[before][v], within);
        // That, the parts before the lane's, of 2^k each, and the tiles before.
        Acc parts[kJoined], all[1];
        parts[0] = within;
#pragma unroll
        for (int k = 1; k < kJoined - 1; ++k) {
          const int d = 1 << (k - 1);
          parts[k] = at[0].part & d ? totals[(at[0].part & ~(2 * d - 1)) + d - 1][chain] : S::absent();
        }
        parts[kJoined - 1] = near[kLast][chain];
        join_calmly<S>(
            parts,
            [&](auto join) {
              Acc upto = parts[0];
#pragma unroll
              for (int k = 1; k < kJoined - 1; ++k)
                if (at[0].part & 1 << (k - 1)) {
                  const bool has = S::kInputs == 1 || g > 0 || (at[0].part & ((1 << (k - 1)) - 1));
                  upto = has ? join(parts[k], upto) : parts[k];
                }
              all[0] = join(parts[kJoined - 1], upto);
            },
            all);
        const typename S::Prefix prefix = S::prefix(far[kLast][chain], all[0]);
        if constexpr (kHasQuick<S>) {
          if (quick) {
            if constexpr (std::is_same<E, BF16>::value) {
              bool alike = op.near_results(prefix, items[v], r[v]);
              alike &= rounds_alike(r[v]);
              if (alike) continue;
              TR_RARE_PATH;
            }
            op.quick_results(prefix, items[v], r[v]);
            continue;
          }
          TR_RARE_PATH;
        }
        S::group(items[v]);
        op.results(prefix, items[v], r[v]);
      }
      if constexpr (kFlat) {
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const int step = job.row_step;
          E* place = stage + (flat[v] + g * kGroup * step);
#pragma unroll
          for (int i = 0; i < kGroup; ++i, place += step)
            if (whole || g * kGroup + i < at[v].count) *place = round_to<E>(r[v][i]);
        }
      } else {
        const int stored = last_one - g * kGroup;
        if (stored >= kGroup) store(std::true_type(), r, kGroup);
        else store(std::false_type(), r, stored);
      }
    }
  };
  if (all) results(std::true_type());
  else if (any) results(std::false_type());
  if constexpr (kFlat) {
#ifdef TR_BULK_COPIES
    if constexpr (kWideRuns) bulk_fence();
#endif
    __syncthreads();
    const int threads = kThreads / down, y = int(threadIdx.x) / threads, thread = int(threadIdx.x) % threads;
    const Run run = run_of(y);
    const int64_t left = layout.length - shift - (job.tile + y) * kTile;
    const int stored = left < 0 ? 0 : left < run.rows ? int(left) : run.rows;
    if (stored <= 0) return;
    E* const to = out() + (y * kTile + shift + (mirror() ? stored - 1 : 0)) * job.row_step;
    const E* const from = stage + staged_run(y, run) + (mirror() ? run.rows - stored : 0) * lanes;
#ifdef TR_BULK_COPIES
    if constexpr (kWideRuns)
      if ((reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from)) % 16 == 0)
        return bulk_store_run(to, from, stored * lanes, thread, threads);
#endif
    store_run(to, from, stored * lanes, thread, threads);
  }
}

}  // namespace torchreduce::gpu
