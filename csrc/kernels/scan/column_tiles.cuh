// Scans along columns of any type: a tile of some neighbouring columns a block, by way of shared memory where elements
// are words, from where it is taken twice, for its totals and, when what precedes it is there, for its results; other
// elements are read twice. A lane has V neighbouring columns, 32 rows of which it copies and reads itself; where
// columns are fewer than lanes, a warp has several tiles at once. Blocks are many and stay short: while some wait for
// what precedes them, others copy or compute. H200, float32 and bfloat16, of a copy's speed: cumprod of 16384 by 16384
// 0.74 and 0.52; of 2^24 by 16 0.60 and 0.41; linear_scan of the former 0.54 and 0.39; of the latter 0.40 and 0.25.
#pragma once
#include "column_jobs.cuh"
#include "column_tiles.h"
#include "tiles.cuh"

namespace torchreduce::gpu {

// Whether elements lie in shared memory, in words of 4 bytes, so that several neighbouring columns may be a lane's, or
// of 8 bytes; else they are read twice.
template <class S, class Load, class Store> constexpr bool kStagedTiles = [] {
  if constexpr (kTwoInputs<S, Load, Store> || kInPlace<S, Load, Store>)
    return (is_float_type<element_of<Load>> && sizeof(element_of<Load>) <= 4) ||
           (S::kInputs == 1 && sizeof(element_of<Load>) == 8);
  else return false;
}();

// Blocks of a multiprocessor that there are registers for, at least (bfloat16, 16384 by 16384: cumprod 0.52 of a copy's
// speed, with 4 and some memory for what they lack 0.50; logcumsumexp 0.28, with 3 0.26).
template <class S, class Load, class Store, int V> constexpr int kTileBlocks = [] {
  if (!kStagedTiles<S, Load, Store>) return sizeof(typename S::Acc) > 8 || S::kInputs == 3 ? 1 : 2;
  return V > 1 && kHasFastGroup<S> ? 3 : V == 1 && sizeof(typename S::Acc) == 4 ? 5 : 4;
}();

template <class S, class Load, class Store> constexpr int kTileThreads =
    column_tile_threads(S::kInputs, kStagedTiles<S, Load, Store> && sizeof(element_of<Load>) == 8);

// A tile of some neighbouring columns, or several below each other.
template <class S> struct TileJob {
  int64_t tile, in, out;  // in, out: of its first element
  int64_t a, row;         // of the second of two inputs; its first column, of all
  int width;              // columns
  int tile_slot, block_slot;
  // What is published of its first column: of the first tile of its block tile, of the first block tile of its
  // superblock, and what precedes that, if there is any.
  Published<typename S::Acc>*tile_totals, *block_totals;
  Published<typename S::Wide>*carry, *next_carry;  // null: none; behind its block tile
};

template <class Load> __device__ __forceinline__ int64_t a_stride_of(const ScanCall& call) {
  return is_pair<Load> && call.layout.reduced ? call.more_strides[0][call.layout.kept] : 0;
}

// The job of a ticket, of `columns` columns.
template <class S, class Load>
__device__ __forceinline__ TileJob<S> tile_job(const ScanCall& call, const ColumnTilesShape& shape, void* workspace,
                                               int64_t ticket, int64_t columns) {
  const Layout& layout = call.layout;
  const int64_t jobs = (shape.tiles + shape.down - 1) / shape.down, width = columns_beside(layout);
  const ColumnJob job = column_job(layout, ticket, jobs, shape.down * kTile, columns);
  const int64_t tile = job.unit * shape.down, block = tile / kFan, superblock = block / kFan * kFan,
                row = job.batch * width + job.first;
  const ColumnSpace<S> space(workspace, layout.rows, width, shape.tiles);
  return {tile,
          job.in,
          job.out,
          is_pair<Load> ? row_offset(layout, call.more_strides[0], row) + tile * kTile * a_stride_of<Load>(call) : 0,
          row,
          job.width,
          int(tile % kFan),
          int(block % kFan),
          space.tile(job.batch, block * kFan, job.first),
          space.block(job.batch, superblock, job.first),
          superblock ? space.carry(job.batch, superblock - 1, job.first) : nullptr,
          space.carry(job.batch, block, job.first)};
}

// Of a block whose lanes have V columns each.
template <class S, class Load, class Store, int V> struct TileShared {
  static constexpr bool kStaged = kStagedTiles<S, Load, Store>;
  using Acc = typename S::Acc;
  using Word = std::conditional_t<kStaged && sizeof(element_of<Load>) == 8, uint64_t, uint32_t>;
  static constexpr int kThreads = kTileThreads<S, Load, Store>, kParts = kTileParts, kWide = kThreads / kParts;
  static constexpr int kColumns = kWide * V;          // [tile][column] of a block, at most
  static constexpr int kTurns = kThreads / kColumns;  // threads that look for what precedes one of them
  static constexpr int kGroups = kFan / kParts, kRows = kGroups * kGroup;  // of a lane

  Word staged[kStaged ? S::kInputs * kRows * kThreads : 1];  // each thread's own, V a word
  // Of parts of rows; then, at the last part of each 2^k of them, of those rows together.
  Acc totals[kParts][kColumns];
  Acc near[kTurns][kColumns];              // what precedes a tile in its block tile, in turns
  typename S::Wide far[kTurns][kColumns];  // what precedes the block tile in its superblock
  Acc tiles_before[kColumns];
  typename S::Wide carries[kColumns];
  TileJob<S> job;
};

// By all threads, when the totals of parts are there: joins and publishes them, and finds what precedes each column.
template <class S, class Load, class Shared>
__device__ __forceinline__ void carry_tiles(const ScanCall& call, const ColumnTilesShape& shape, Shared& shared,
                                            int V) {
  using Acc = typename S::Acc;
  using Wide = typename S::Wide;
  constexpr int kColumns = Shared::kColumns, kTurns = Shared::kTurns, kParts = Shared::kParts, kLast = kTurns - 1;
  constexpr int kRuns = kFan / kTurns / 4;  // of 4 slots, that each looks at
  static_assert(kRuns == 1 || kRuns == 2, "joined as a tree");
  const TileJob<S>& job = shared.job;
  const int64_t width = columns_beside(call.layout);
  const int lanes = shape.across, down = shape.down;
  const int chain = int(threadIdx.x) % kColumns, turn = int(threadIdx.x) / kColumns, of_lane = chain / V,
            below = down > 1 ? of_lane / lanes : of_lane >= lanes, column = (of_lane - below * lanes) * V + chain % V;
  const int tile_slot = job.tile_slot + below, block_slot = job.block_slot;
  const bool active = below < down && column < job.width && job.tile + below < shape.tiles,
             one = active && turn == kLast;
  Published<Acc>* const tile_totals = job.tile_totals + column;
  Published<Acc>* const block_totals = job.block_totals + column;
  Acc total = S::absent();
  if (turn == kLast) {
    Acc part[kParts];
#pragma unroll
    for (int p = 0; p < kParts; ++p) part[p] = shared.totals[p][chain];
#pragma unroll
    for (int d = 1; d < kParts; d *= 2)
#pragma unroll
      for (int p = 2 * d - 1; p < kParts; p += 2 * d)
        shared.totals[p][chain] = part[p] = S::combine(part[p - d], part[p]);
    total = part[kParts - 1];
    if (one && shape.tiles > 1) tile_totals[tile_slot * width].publish(total);
  }
  warp_barrier();  // before a lane that waits for this holds the one that is to publish it
  using Slots = PublishedSlots<S, Acc, kFan / 4>;
  Slots slots;
  // The tree over those of the thread's slots that are among the first `count`, begun; and with `own` in the last one.
  auto gather = [&](const Published<Acc>* of, int count, auto absent, auto widen, bool has_own, auto own) {
    struct { decltype(absent) upto, with_own; } all{absent, absent};
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      if (r) slots.begin(of, recomputed(width), active ? count : 0, recomputed(turn) * kRuns + r);
      slots.collect();
      const auto run = slots.run(count, absent, widen);
      if (has_own && r == kRuns - 1) {
        slots.value[3] = own;
        all.with_own = slots.run(kFan, absent, widen);
        if (r) all.with_own = S::combine(all.upto, all.with_own);
      }
      all.upto = r ? Slots::join(all.upto, run, (turn * kRuns + r) * 4 < count) : run;
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
  shared.near[turn][chain] = found;
  slots.begin(block_totals, width, active ? block_slot : 0, turn * kRuns);
  PublishedOne<Wide> earlier;
  earlier.begin(job.carry ? job.carry + column : nullptr, one && job.carry);
  __syncthreads();
  Acc block_total = S::absent();
  if (one) {
    shared.tiles_before[chain] = of_turns(shared.near, tile_slot, found);
    if (closes) {
      block_total = of_turns(shared.near, kFan, to_close);
      if (block_slot < kFan - 1) block_totals[block_slot * width].publish(block_total);
    }
  }
  const Wide before = earlier.collect(row_carry<S, Load>(call, one ? job.row + column : 0));
  const bool settles = closes && block_slot == kFan - 1;
  const auto [found_far, to_settle] = gather(block_totals, block_slot, S::wide_absent(), widen, settles, block_total);
  shared.far[turn][chain] = found_far;
  __syncthreads();
  if (one) {
    shared.carries[chain] = block_slot ? S::combine(before, of_turns(shared.far, block_slot, found_far)) : before;
    if (settles) job.next_carry[column].publish(S::combine(before, of_turns(shared.far, kFan, to_settle)));
  }
}

// A tile of columns: shape.across lanes, of V columns each, are side by side; shape.down tiles below each other. A
// thread has kRows rows of V neighbouring columns.
template <class S, class Load, class Store, int V> struct ColumnTile {
  using Shape = ColumnTilesShape;
  using Shared = TileShared<S, Load, Store, V>;
  static constexpr bool kStaged = Shared::kStaged;
  using E = std::conditional_t<kStaged, element_of<Load>, float>;
  using Acc = typename S::Acc;
  using Word = typename Shared::Word;
  static constexpr int kBlocks = kTileBlocks<S, Load, Store, V>;
  static constexpr int kThreads = Shared::kThreads, kGroups = Shared::kGroups, kRows = Shared::kRows;
  static constexpr int kOfWord = int(sizeof(Word) / sizeof(E));
  static constexpr int kJoined =
      2 + log2_of(kTileParts);                      // what precedes a group in its block tile is of at most so many
  static constexpr bool kTyped = Load::kWidth > 1;  // else code is long, and for all groups the same
  using Items = typename S::Item[V][kGroup];
  using Results = typename S::Result[V][kGroup];
  // Which rows and columns are a thread's.
  struct Place {
    int part, lane, x, row;  // row: its first, from the job's
    int64_t first;           // position
    int left, count;         // positions from there on, if no more than one too many; of its own
  };

  const ScanCall& call;
  const ColumnTilesShape& shape;
  Shared& shared;
  const S op;
  Word* const own;
  Acc upto[kGroups][V] = {};  // of the lane's groups to this one, in the tile's order
  bool fast = true;           // whether fast_group takes all of the lane's groups, then of the warp's

  __device__ __forceinline__ static TileJob<S> job_of(const ScanCall& call, const ColumnTilesShape& shape,
                                                      void* workspace, int64_t ticket) {
    return tile_job<S, Load>(call, shape, workspace, ticket, shape.across * V);
  }
  __device__ __forceinline__ ColumnTile(const ScanCall& call, const ColumnTilesShape& shape, void*, Shared& shared)
      : call(call), shape(shape), shared(shared), op{call.options}, own(shared.staged + threadIdx.x) {}

  __device__ __forceinline__ Place place_of(int thread) const {
    const TileJob<S>& job = shared.job;
    const int lanes = shape.across, down = shape.down, lane = thread % Shared::kWide,
              y = down > 1 ? lane / lanes : lane >= lanes, x = lane - y * lanes,
              row = y * kTile + thread / Shared::kWide * kRows;
    const int64_t first = job.tile * kTile + row, left = call.layout.length - first;
    const int most = left < 0       ? 0
                     : left > kRows ? kRows + 1
                                    : int(left),
              count = y >= down || x * V >= job.width ? 0
                      : most < kRows                  ? most
                                                      : kRows;
    return {thread / Shared::kWide, lane, x, row, first, most, count};
  }

  // Copies the lane's elements to shared memory.
  __device__ __forceinline__ void load(const Place& at) {
    const Layout& layout = call.layout;
    const TileJob<S>& job = shared.job;
    const E* from[S::kInputs];
    int64_t step[S::kInputs];
    step[0] = scan_stride(layout).in;
    from[0] = global(static_cast<const E*>(call.in.data)) +
              (job.in + at.row * step[0] + at.x * V * beside(layout, layout.in));
    bool all = at.count == kRows, has_first = true;
    if constexpr (is_pair<Load>) {
      step[1] = a_stride_of<Load>(call);
      from[1] = global(static_cast<const E*>(call.in.more[0])) +
                (job.a + at.row * step[1] + at.x * V * beside(layout, call.more_strides[0]));
      has_first = Load::has_a(call, at.first);
      all &= has_first;
    }
    auto load = [&](auto whole, int t) {
#pragma unroll
      for (int k = 0; k < S::kInputs; ++k) {
        Word* const to = own + (k * kRows + t) * kThreads;
        if (whole || k == 0 || t > 0 || has_first) {
          if constexpr (V == kOfWord) copy_async<sizeof(Word)>(to, from[k]);
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
      for (int t = 0; t < at.count; ++t) load(std::false_type(), t);
    }
    end_copies();
    wait_copies<0>();
  }

  // The items of the lane's group g: out of shared memory, or those of any type that are not there.
  template <class Whole> __device__ __forceinline__ void form(Whole whole, const Place& at, int g, Items& items) const {
    if constexpr (kStaged) return form_staged(whole, at, g, items);
    typename Load::Element x[kGroup];
    const Layout& layout = call.layout;
    const int row = at.row + g * kGroup, left = at.count - g * kGroup, there = whole || left > kGroup ? kGroup : left;
    const int64_t first = at.first + g * kGroup, stride = scan_stride(layout).in,
                  from = shared.job.in + row * stride + at.x * beside(layout, layout.in);
    if constexpr (is_pair<Load>)
      Load::run(call, from, shared.job.a + row * a_stride_of<Load>(call) + at.x * beside(layout, call.more_strides[0]),
                first, there, x);
    else Load::run(call.in, from, stride, there, x);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) items[0][i] = whole || i < there ? op.load(x[i], first + i) : S::absent_item();
  }
  template <class Whole>
  __device__ __forceinline__ void form_staged(Whole whole, const Place& at, int g, Items& items) const {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      E side[S::kInputs][kOfWord];
#pragma unroll
      for (int k = 0; k < S::kInputs; ++k) {
        uint32_t words[sizeof(Word) / 4];
        memcpy(words, own + (k * kRows + g * kGroup + i) * kThreads, sizeof words);
        unpack(words, side[k]);
      }
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const auto element = [&] {
          if constexpr (is_pair<Load>) return Pair<E>{side[1][v], side[0][v]};
          else return side[0][v];
        }();
        items[v][i] = whole || g * kGroup + i < at.count
                          ? op.load(element, i > 0 ? i : at.first + g * kGroup)  // 0 or not
                          : S::absent_item();
      }
    }
  }

  // Forms the totals of the lane's groups; those of all its rows go to shared memory.
  template <class Whole> __device__ __forceinline__ void form_groups(Whole whole, const Place& at) {
    // A warp would wait longer for code that is written out than choosing where a total goes takes.
    TR_ROLLED
    for (int g = 0; g < kGroups; ++g) {
      Items items;
      form(whole, at, g, items);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const Acc total = [&] {
          if constexpr (kHasFastGroup<S>) {
            typename S::Item last;
            if (S::fast_group(items[v], last)) return S::fast_end(S::of_near(last));
            TR_RARE_PATH;
            fast = false;
          }
          return S::group(items[v]);
        }();
#pragma unroll
        for (int of = 0; of < kGroups; ++of) upto[of][v] = chosen(of == g, total, upto[of][v]);
      }
    }
  }
  __device__ __forceinline__ void sum() {
    const Place at = place_of(int(threadIdx.x));
    if constexpr (kStaged) load(at);
    if (kTyped && at.count == kRows) form_groups(std::bool_constant<kTyped>(), at);
    else form_groups(std::false_type(), at);
    fast = kHasFastGroup<S> && !ballot(!fast);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      Acc own[kGroups], runs[kGroups];
#pragma unroll
      for (int g = 0; g < kGroups; ++g) own[g] = upto[g][v];
      join_fast<S>(
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
      shared.totals[at.part][at.lane * V + v] = upto[kGroups - 1][v];
    }
  }

  __device__ __forceinline__ void carry() { carry_tiles<S, Load>(call, shape, shared, V); }

  // What precedes group g in column v. The thread's numbers are made again: sm_80 has no registers to keep them.
  __device__ __forceinline__ typename S::Prefix prefix(int g, int v) const {
    const int thread = recomputed(int(threadIdx.x)), part = thread / Shared::kWide,
              chain = thread % Shared::kWide * V + v;
    Acc within = S::absent();
#pragma unroll
    for (int before = 0; before < kGroups - 1; ++before) within = chosen(g == before + 1, upto[before][v], within);
    // That, the parts before the lane's, of 2^k each, and the tiles before.
    Acc parts[kJoined], all[1];
    parts[0] = within;
#pragma unroll
    for (int k = 1; k < kJoined - 1; ++k) {
      const int d = 1 << (k - 1);
      parts[k] = part & d ? shared.totals[(part & ~(2 * d - 1)) + d - 1][chain] : S::absent();
    }
    parts[kJoined - 1] = shared.tiles_before[chain];
    join_fast<S>(
        parts,
        [&](auto join) {
          Acc upto = parts[0];
#pragma unroll
          for (int k = 1; k < kJoined - 1; ++k)
            if (part & 1 << (k - 1)) {
              const bool has = S::kInputs == 1 || g > 0 || (part & ((1 << (k - 1)) - 1));
              upto = has ? join(parts[k], upto) : parts[k];
            }
          all[0] = join(parts[kJoined - 1], upto);
        },
        all);
    return S::prefix(shared.carries[chain], all[0]);
  }

  // Stores the first `stored` results of a group, or all, from `place` on, which moves on.
  template <class Whole>
  __device__ __forceinline__ void store_group(Whole whole, int64_t& place, const Results& r, int stored) const {
    const int64_t stride = scan_stride(call.layout).out;
    if constexpr (!kStaged || V != kOfWord) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i, place += stride)
        if (whole || i < stored) Store::one(call, place, r[0][i]);
    } else {
      using Words = Packed<uint32_t, sizeof(Word) / 4>;
      Words words[kGroup];
      round_columns<E, S>(r, words, 0);
      E* to = global(static_cast<E*>(call.out.values)) + place;
#pragma unroll
      for (int i = 0; i < kGroup; ++i, to += stride)
        if (whole || i < stored) store_wide(reinterpret_cast<Words*>(to), words[i]);
      place += kGroup * stride;
    }
  }
  template <class Whole> __device__ __forceinline__ void store_all(Whole whole, const Place& at) const {
    const Layout& layout = call.layout;
    const int shift = call.exclusive ? 1 : 0;
    int64_t place = shared.job.out + (at.row + shift) * scan_stride(layout).out + at.x * V * beside(layout, layout.out);
    TR_ROLLED
    for (int g = 0; g < kGroups; ++g) {
      Items items;
      form(whole, at, g, items);
      Results r;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const typename S::Prefix before = prefix(g, v);
        if constexpr (!kHasFastGroup<S>) S::group(items[v]);
        group_results<E>(op, before, items[v], fast, r[v]);
      }
      const int stored = at.left - shift - g * kGroup;
      if (stored >= kGroup) store_group(std::true_type(), place, r, kGroup);
      else store_group(std::false_type(), place, r, stored);
    }
  }
  // Forms and stores the lane's results, and what an exclusive scan starts from.
  __device__ __forceinline__ void store() const {
    const Place at = place_of(recomputed(int(threadIdx.x)));
    if (at.count == 0) return;
    const Layout& layout = call.layout;
    if (call.exclusive && at.first == 0) {
      const int64_t place = shared.job.out + at.x * V * beside(layout, layout.out);
#pragma unroll
      for (int v = 0; v < V; ++v) Store::one(call, place + v * beside(layout, layout.out), start_of<S>());
    }
    if (kTyped && at.count == kRows) store_all(std::bool_constant<kTyped>(), at);
    else store_all(std::false_type(), at);
  }
};

}  // namespace torchreduce::gpu
