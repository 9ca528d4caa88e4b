// Scans along columns of any type: a tile of some neighbouring columns a block, by way of shared memory where elements
// are words, from where it is taken twice, for its totals and, when what precedes it is there, for its results; other
// elements are read twice. A lane has V neighbouring columns, 32 rows of which it copies and reads itself; where
// columns are fewer than lanes, a warp has several tiles at once. Blocks are many and stay short: while some wait for
// what precedes them, others copy or compute. H200, float32 and bfloat16, of a copy's speed: cumprod of 16384 by 16384
// 0.74 and 0.52; of 2^24 by 16 0.60 and 0.41; linear_scan of the former 0.54 and 0.39; of the latter 0.40 and 0.25.
#pragma once
#include "column_carry.cuh"
#include "column_tiles.h"

namespace torchreduce::gpu {

// Whether elements lie in shared memory, in words of 4 bytes, so that several neighbouring columns may be a lane's, or
// of 8 bytes; else they are read twice.
template <class S, class Load, class Store> constexpr bool kStagedTiles = [] {
  if constexpr (kHeld<S, Load, Store> || kInPlace<S, Load, Store>)
    return (is_float_type<element_of<Load>> && sizeof(element_of<Load>) <= 4) ||
           (S::kInputs == 1 && sizeof(element_of<Load>) == 8);
  else return false;
}();

// Blocks of a multiprocessor that there are registers for, at least (bfloat16, 16384 by 16384: cumprod 0.52 of a copy's
// speed, with 4 and some memory for what they lack 0.50; logcumsumexp 0.28, with 3 0.26).
template <class S, class Load, class Store, int V> constexpr int kTileBlocks = [] {
  if (!kStagedTiles<S, Load, Store>) return sizeof(typename S::Acc) > 8 || S::kInputs == 3 ? 1 : 2;
  return V > 1 && kHasQuick<S> ? 3 : V == 1 && sizeof(typename S::Acc) == 4 ? 5 : 4;
}();

template <class S, class Load, class Store> constexpr int kTileThreads =
    column_tile_threads(S::kInputs, kStagedTiles<S, Load, Store> && sizeof(element_of<Load>) == 8);

// shape.across lanes, of V columns each, are side by side; shape.down tiles below each other.
template <class S, class Load, class Store, int V>
__global__ void TR_BLOCKS_BOUND((kTileThreads<S, Load, Store>), (kTileBlocks<S, Load, Store, V>))
    scan_column_tiles(TR_GRID_CONSTANT ScanCall call, TR_GRID_CONSTANT ColumnTilesShape shape, void* workspace) {
  constexpr bool kStaged = kStagedTiles<S, Load, Store>;
  using E = std::conditional_t<kStaged, element_of<Load>, float>;
  using Acc = typename S::Acc;
  using Wide = typename S::Wide;
  using Word = std::conditional_t<kStaged && sizeof(E) == 8, uint64_t, uint32_t>;
  constexpr int kThreads = kTileThreads<S, Load, Store>, kParts = kTileParts, kWide = kThreads / kParts;
  constexpr int kColumns = kWide * V;                               // [tile][column] of a block, at most
  constexpr int kTurns = kThreads / kColumns;                       // threads that look for what precedes one of them
  constexpr int kGroups = kFan / kParts, kRows = kGroups * kGroup;  // of a lane
  constexpr int kOfWord = int(sizeof(Word) / sizeof(E)), kLast = kTurns - 1;
  constexpr int kJoined = 2 + log2_of(kParts);  // what precedes a group in its block tile is of at most so many
  constexpr int kRuns = kFan / kTurns / 4;      // of 4 slots, that each looks at
  static_assert(kRuns == 1 || kRuns == 2, "joined as a tree");
  struct Job {
    int64_t tile, in, out;  // in, out: of its first element
    int64_t a, row;         // of the second of two inputs; its first column, of all
    int width;              // columns
    int tile_slot, block_slot;
    // What is published of its first column: of the first tile of its block tile, of the first block tile of its
    // superblock, and what precedes that, if there is any.
    Published<Acc>*tile_totals, *block_totals;
    Published<Wide>*carry, *next_carry;  // null: none; behind its block tile
  };
  __shared__ Word staged[kStaged ? S::kInputs * kRows * kThreads : 1];  // each thread's own, V a word
  // Of parts of rows; then, at the last part of each 2^k of them, of those rows together.
  __shared__ Acc totals[kParts][kColumns];
  __shared__ Acc near[kTurns][kColumns];  // what precedes a tile in its block tile, in turns
  __shared__ Wide far[kTurns][kColumns];  // what precedes the block tile in its superblock
  __shared__ Acc tiles_before[kColumns];
  __shared__ Wide carries[kColumns];
  __shared__ Job job;
  const S op{call.options};
  const Layout& layout = call.layout;
  const ScanStride stride = scan_stride(layout);
  const int lanes = shape.across, down = shape.down;
  const int64_t tiles = shape.tiles;
  const bool beside = layout.kept > 0;  // columns lie side by side
  const int64_t column_in = beside ? layout.in[layout.kept - 1] : 0,
                column_out = beside ? layout.out[layout.kept - 1] : 0;
  const int64_t a_stride = is_pair<Load> && layout.reduced ? call.more_strides[0][layout.kept] : 0,
                column_a = is_pair<Load> && beside ? call.more_strides[0][layout.kept - 1] : 0;
  const int64_t width = beside ? layout.size[layout.kept - 1] : 1;
  if (threadIdx.x == 0) {  // tiles a block waits for have lower tickets
    const int64_t ticket = int64_t(take_ticket(static_cast<uint64_t*>(workspace)));
    const ColumnSpace<S> space(workspace, layout.rows, width, tiles);
    const int64_t columns = lanes * V, strips = (space.width + columns - 1) / columns;
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
        int(tile % kFan),
        int(block % kFan),
        space.tile(batch, block * kFan, first),
        space.block(batch, superblock, first),
        superblock ? space.carry(batch, superblock - 1, first) : nullptr,
        space.carry(batch, block, first)};
  }
  __syncthreads();

  // Which rows and columns are a thread's.
  struct Place {
    int part, lane, x, row;  // row: its first, from the job's
    int64_t first;           // position
    int left, count;         // positions from there on, if no more than one too many; of its own
  };
  auto place_of = [&](int thread) {
    const int lane = thread % kWide, y = down > 1 ? lane / lanes : lane >= lanes, x = lane - y * lanes,
              row = y * kTile + thread / kWide * kRows;
    const int64_t first = job.tile * kTile + row, left = layout.length - first;
    const int most = left < 0 ? 0 : left > kRows ? kRows + 1 : int(left);
    return Place{
        thread / kWide, lane, x, row, first, most, y >= down || x * V >= job.width ? 0 : most < kRows ? most : kRows};
  };
  Word* const own = staged + threadIdx.x;
  Acc upto[kGroups][V] = {};  // of the lane's groups to this one, in the tile's order
  bool quick = true;          // whether quick_group takes all of the lane's groups, then of the warp's
  // The items of a lane's group g.
  auto items_of = [&](auto whole, const Place& at, int g, typename S::Item(&items)[V][kGroup]) {
    if constexpr (!kStaged) {
      typename Load::Element x[kGroup];
      const int row = at.row + g * kGroup, left = at.count - g * kGroup, there = whole || left > kGroup ? kGroup : left;
      const int64_t first = at.first + g * kGroup, from = job.in + row * stride.in + at.x * column_in;
      if constexpr (is_pair<Load>) Load::run(call, from, job.a + row * a_stride + at.x * column_a, first, there, x);
      else Load::run(call.in, from, stride.in, there, x);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) items[0][i] = whole || i < there ? op.load(x[i], first + i) : S::absent_item();
    } else {
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
  };
  {
    const Place at = place_of(int(threadIdx.x));
    if constexpr (kStaged) {
      const E* from[S::kInputs];
      int64_t step[S::kInputs];
      from[0] = global(static_cast<const E*>(call.in.data)) + (job.in + at.row * stride.in + at.x * V * column_in);
      step[0] = stride.in;
      bool all = at.count == kRows, has_first = true;
      if constexpr (is_pair<Load>) {
        from[1] = global(static_cast<const E*>(call.in.more[0])) + (job.a + at.row * a_stride + at.x * V * column_a);
        step[1] = a_stride;
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
    auto form = [&](auto whole) {
      // A warp would wait longer for code that is written out than choosing where a total goes takes.
      TR_ROLLED
      for (int g = 0; g < kGroups; ++g) {
        typename S::Item items[V][kGroup];
        items_of(whole, at, g, items);
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const Acc total = [&] {
            if constexpr (kHasQuick<S>) {
              typename S::Item last;
              if (S::quick_group(items[v], last)) return S::calm_end(S::of_near(last));
              TR_RARE_PATH;
              quick = false;
            }
            return S::group(items[v]);
          }();
#pragma unroll
          for (int of = 0; of < kGroups; ++of) upto[of][v] = chosen(of == g, total, upto[of][v]);
        }
      }
    };
    if (at.count == kRows) form(std::true_type());
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
      totals[at.part][at.lane * V + v] = upto[kGroups - 1][v];
    }
  }
  __syncthreads();

  {
    const int chain = int(threadIdx.x) % kColumns, turn = int(threadIdx.x) / kColumns, of_lane = chain / V,
              below = down > 1 ? of_lane / lanes : of_lane >= lanes, column = (of_lane - below * lanes) * V + chain % V;
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
    using Slots = PublishedSlots<S, Acc, kFan / 4>;
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
    near[turn][chain] = found;
    slots.begin(block_totals, width, active ? block_slot : 0, turn * kRuns);
    PublishedOne<Wide> earlier;
    earlier.begin(job.carry ? job.carry + column : nullptr, one && job.carry);
    __syncthreads();
    Acc block_total = S::absent();
    if (one) {
      tiles_before[chain] = of_turns(near, tile_slot, found);
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
      carries[chain] = block_slot ? S::combine(before, of_turns(far, block_slot, found_far)) : before;
      if (settles) job.next_carry[column].publish(S::combine(before, of_turns(far, kFan, to_settle)));
    }
  }
  __syncthreads();

  const Place at = place_of(recomputed(int(threadIdx.x)));
  if (at.count == 0) return;
  const int shift = call.exclusive ? 1 : 0, last_one = at.left - shift;
  int64_t place = job.out + (at.row + shift) * stride.out + at.x * V * column_out;
  E* to = global(static_cast<E*>(call.out.values)) + (kStaged ? place : 0);
  if (shift && at.first == 0) {
    if constexpr (kStaged) {
#pragma unroll
      for (int v = 0; v < V; ++v) to[v * column_out - stride.out] = round_to<E>(start_of<S>());
    } else {
      Store::one(call, place - stride.out, start_of<S>());
    }
  }
  auto store = [&](auto whole, const auto(&r)[V][kGroup], int stored) {
    if constexpr (!kStaged) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i, place += stride.out)
        if (whole || i < stored) Store::one(call, place, r[0][i]);
    } else {
      using Words = Packed<uint32_t, sizeof(Word) / 4>;
      Words words[kGroup];
      if constexpr (V == kOfWord) round_columns<E, S>(r, words, 0);
      else
#pragma unroll
        for (int i = 0; i < kGroup; ++i) words[i].item[0] = bit_cast<uint16_t>(round_to<E>(r[0][i]));
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        if (whole || i < stored) {
          if constexpr (V == kOfWord) store_wide(reinterpret_cast<Words*>(to), words[i]);
          else *to = bit_cast<E>(uint16_t(words[i].item[0]));
        }
        to += stride.out;
      }
    }
  };
  auto results = [&](auto whole) {
    TR_ROLLED
    for (int g = 0; g < kGroups; ++g) {
      typename S::Item items[V][kGroup];
      items_of(whole, at, g, items);
      typename S::Result r[V][kGroup];
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const int chain = at.lane * V + v;
        Acc within = S::absent();
#pragma unroll
        for (int before = 0; before < kGroups - 1; ++before) within = chosen(g == before + 1, upto[before][v], within);
        // That, the parts before the lane's, of 2^k each, and the tiles before.
        Acc parts[kJoined], all[1];
        parts[0] = within;
#pragma unroll
        for (int k = 1; k < kJoined - 1; ++k) {
          const int d = 1 << (k - 1);
          parts[k] = at.part & d ? totals[(at.part & ~(2 * d - 1)) + d - 1][chain] : S::absent();
        }
        parts[kJoined - 1] = tiles_before[chain];
        join_calmly<S>(
            parts,
            [&](auto join) {
              Acc upto = parts[0];
#pragma unroll
              for (int k = 1; k < kJoined - 1; ++k)
                if (at.part & 1 << (k - 1)) {
                  const bool has = S::kInputs == 1 || g > 0 || (at.part & ((1 << (k - 1)) - 1));
                  upto = has ? join(parts[k], upto) : parts[k];
                }
              all[0] = join(parts[kJoined - 1], upto);
            },
            all);
        const typename S::Prefix prefix = S::prefix(carries[chain], all[0]);
        if constexpr (!kHasQuick<S>) S::group(items[v]);
        group_results<E>(op, prefix, items[v], quick, r[v]);
      }
      const int stored = last_one - g * kGroup;
      if (stored >= kGroup) store(std::true_type(), r, kGroup);
      else store(std::false_type(), r, stored);
    }
  };
  if (at.count == kRows) results(std::true_type());
  else results(std::false_type());
}

}  // namespace torchreduce::gpu
