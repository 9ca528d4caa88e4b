// Scans of W columns, 2 to 7, that are one run of memory, on GPUs with bulk copies: as ring.cuh scans a row,
// with W scans side by side. A lane's group is 8 positions of all columns, its neighbours in memory.
//
//   loader   takes a ticket for each stage of a ring, and starts its bulk load: a part of a block tile, so that many
//            stages fit however many columns there are
//   totals   each warp sums one part as soon as its load lands, and publishes its totals
//   carry    a warp for each column hands each part of this block its carry, and what precedes it in its block tile
//   results  teams of warps turn parts into their results, which take the places of their elements
//   store    warps in turn start the bulk stores, so that one begins while another is read
//
// Elements may begin anywhere in a granule, and results anywhere else: lanes load whole granules and take what is
// theirs of the next lane's, and hand on to it what of their results lies in its granules. Of an exclusive scan they
// hand on a row besides. Where tiles meet, which different warps have in hand, the totals warp keeps the elements of
// the next tile, whose results may already take their place, and the store warp brings results to it.
#pragma once
#include "ring.cuh"
#include "ring_columns.h"

namespace torchreduce::gpu {

// What the kernel is compiled for.
template <class S, class Load, class Store> constexpr bool kRingColumns =
    kRing<S, Load, Store> && sizeof(typename S::Acc) <= 4;

// The ring for W columns of elements of `bytes` bytes. A look takes about as many totals of a column as that of
// ring.cuh.
template <int kBytes, int W> struct RingColumnStages {
  static constexpr int kParts = ring_column_parts(W, kBytes);  // of a block tile
  static constexpr int kTiles = kFan / kParts;                 // of a part
  static constexpr int kPartBytes = kTiles * kTile * W * kBytes;
  static constexpr int kStageBytes = kPartBytes + 128;  // a part that starts anywhere in a line
  static constexpr int kStages = (210 << 10) / kStageBytes;
  static constexpr int kTotalWarps = ring_column_total_warps(W), kStoreWarps = ring_column_store_warps(W);
  static constexpr int kResultWarps = ring_column_result_warps(W, kBytes);
  static constexpr int kTeamWarps = kTiles < kResultWarps ? kTiles : kResultWarps, kTeams = kResultWarps / kTeamWarps;
  static constexpr int kTotals = kPartBytes > 16 << 10 ? 2 : 6;             // a look, times 32
  static constexpr int kWindows = kTotals > kParts ? kTotals / kParts : 1;  // of 32 block tiles
  static_assert(kTeams <= kTotalWarps && kStoreWarps <= kTotalWarps && kTotalWarps <= kStages, "see load()");
  static_assert((kResultWarps + kTotalWarps + W + kStoreWarps + 1) * kLanes == ring_column_threads(W, kBytes),
                "a warp for each role");
  static constexpr int kShared = kStages * kStageBytes;
};

#ifdef TR_BULK_COPIES

// Whether result warps, for want of registers, work out again what they could keep, and round results while others are
// still to be formed.
template <class T, int W> constexpr bool kSparesRegisters = W == kMostRingColumns && sizeof(T) == 2;

// Results of a group of W columns, rounded once each, as words in the order of memory.
template <class T, class S, int W, class Result>
__device__ __forceinline__ void round_side(const Result (&r)[W][kGroup], uint32_t (&w)[W * kGroupWords<T>]) {
  if constexpr (kLooksForNan<T, Result>) {
    bool nan = false;
#pragma unroll
    for (int v = 0; v < W; ++v) nan = nan || has_nan<S>(r[v]);
    if (!nan) {
#pragma unroll
      for (int k = 0; k < W * kGroupWords<T>; ++k) {
        if constexpr (sizeof(T) == 4) w[k] = bit_cast<uint32_t>(r[k % W][k / W]);
        else w[k] = round_pair<T>(r[2 * k % W][2 * k / W], r[(2 * k + 1) % W][(2 * k + 1) / W]);
      }
      return;
    }
  }
  T rounded[W * kGroup];
#pragma unroll
  for (int i = 0; i < W * kGroup; ++i) rounded[i] = round_to<T>(r[i % W][i / W]);
  memcpy(w, rounded, sizeof w);
}
// The pairs of them that column v, after those before it, makes whole: of 16 bits, and as if none were NaN.
template <class T, int W, class Result>
__device__ __forceinline__ void round_column(int v, const Result (&r)[W][kGroup], uint32_t (&w)[W * kGroupWords<T>]) {
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    const int at = W * i + v;  // in memory
    if (at % 2 == 1 && v > 0) w[at / 2] = round_pair<T>(r[v > 0 ? v - 1 : 0][i], r[v][i]);
    if (at % 2 == 0 && v == W - 1) w[at / 2] = round_pair<T>(r[v][i], r[0][(i + 1) % kGroup]);
  }
}

template <class S, class Load, class Store, int W> struct RingColumns {
  using Rows = Ring<S, Load, Store>;  // what is the same of one column
  using Acc = typename S::Acc;
  using Wide = typename S::Wide;
  using Item = typename S::Item;
  using E = typename Load::Element;
  using Shape = RingColumnStages<sizeof(E), W>;
  static constexpr int kStages = Shape::kStages, kStageBytes = Shape::kStageBytes;
  static constexpr int kTotalWarps = Shape::kTotalWarps, kStoreWarps = Shape::kStoreWarps;
  static constexpr int kParts = Shape::kParts, kTiles = Shape::kTiles;
  static constexpr int kPositions = kTiles * kTile, kRowBytes = W * int(sizeof(E)), kRunBytes = kTile * kRowBytes;
  static constexpr int kGranules = kGroup * kRowBytes / kGranule;  // of a lane
  static constexpr int kLevels = kParts < 8 ? kParts / 2 : 3;      // of the tree over the parts of a block tile
  static constexpr int kLeft = kLevels ? kLevels : 1;              // no array is empty
  static_assert(1 << kLevels == kParts, "its levels");

  StageBarriers<kStages> taken, loaded, kept, ready, done, empty;
  RingJob job[kStages];            // the row is that of the first column, the tile a part
  Acc within[kStages][W][kTiles];  // what precedes each tile in its part
  Acc left[kStages][W][kLeft];     // what precedes the part in its block tile, level by level
  Wide carry[kStages][W];
  // The granule after those of each tile, where elements begin within one: results of the next tile may take its place.
  alignas(kGranule) uint32_t after[kStages][kTiles][4];

  __device__ void make_barriers() {
    for (int s = 0; s < kStages; ++s) {
      barrier_init(taken[s], 1);
      barrier_init(loaded[s], 1);
      barrier_init(kept[s], kLanes);             // totals: `after`, where elements begin within a granule
      barrier_init(ready[s], (1 + W) * kLanes);  // totals, carry
      barrier_init(done[s], Shape::kTeamWarps * kLanes);
      barrier_init(empty[s], kLanes);  // store: the last of all
    }
    barriers_made();
  }
  __device__ int free_stage(int it) {
    const int s = it % kStages;
    empty.wait_before(it);
    return s;
  }
  __device__ RingJob next(int it) {
    taken.wait(it);
    return job[it % kStages];
  }

  // ---- roles ----

  // The first granule of a part in its stage.
  __device__ static char* part_of(const RingJob& j, char* stages, int s) {
    return stages + s * kStageBytes + int(granule_of(j.in) % kLine);
  }

  // As Ring::load.
  __device__ void load(const ScanCall& call, ChainSpace<S>& space, char* stages, bool mirror) {
    const Layout& l = call.layout;
    const int64_t shift = call.exclusive ? 1 : 0, jobs = l.rows / W * space.tiles, far = mirror ? kPositions - 1 : 0;
    const int64_t sign = mirror ? -1 : 1;
    const uintptr_t in = reinterpret_cast<uintptr_t>(call.in.data), out = reinterpret_cast<uintptr_t>(call.out.values);
    const uintptr_t memory_end = in + extent(l, l.in) * sizeof(E);
    int it = 0;
    for (int64_t ticket = int64_t(take_ticket(space.ticket)), next; ticket < jobs; ticket = next, ++it) {
      next = int64_t(take_ticket(space.ticket));
      RingJob j;
      j.row = ticket / space.tiles * W;
      j.tile = ticket % space.tiles;
      const RowStart start = row_start(l, j.row);
      const int64_t first = j.tile * kPositions, left = l.length - first;
      const int count = int(left < kPositions ? left : kPositions);
      j.results = int(left - shift < kPositions ? left - shift : kPositions);
      j.in = in + start.in * sizeof(E) + (sign * first - far) * kRowBytes;
      j.out = out + start.out * sizeof(E) + (sign * first - far) * kRowBytes;
      const uintptr_t begin = j.in + (mirror ? kPositions - count : 0) * kRowBytes;
      const BulkRange<E> range(begin, begin + count * kRowBytes, memory_end);
      const int s = free_stage(it);
      job[s] = j;
      barrier_arrive(taken[s]);
      range.load(stages + s * kStageBytes, j.in, loaded[s]);
    }
    for (int end = 0; end < kTotalWarps; ++end, ++it) {  // one for each warp that takes turns with others
      const int s = free_stage(it);
      job[s].row = -1;
      barrier_arrive(taken[s]);
    }
  }

  // The items of the group of `lane` in a tile of 256, in the order of memory, whose elements begin kWord words and
  // `more` bits after its granules; kAligned: with them.
  template <bool kMirror, int kWord>
  __device__ __forceinline__ static void group_items(const S& op, const LaneGranules<kGranules>& granules, int more,
                                                     const uint32_t* after, int64_t position,
                                                     Item (&items)[W][kGroup]) {
    uint32_t w[4 * kGranules];
    granules.load(w);
    if constexpr (kWord < kAligned) rotate_down<kWord, sizeof(E) < 4>(w, recomputed(lane_id()), more, after);
    E x[W * kGroup];
    unpack(w, x);
#pragma unroll
    for (int i = 0; i < W * kGroup; ++i)
      items[i % W][i / W] = op.load(x[i], position + (kMirror ? kGroup - 1 - i / W : i / W));
  }

  template <bool kMirror> __device__ void totals(const S& op, ChainSpace<S>& space, char* stages, int warp) {
    constexpr int mirror = kMirror ? kLanes - 1 : 0, tile_mirror = kMirror ? kTiles - 1 : 0;
    constexpr int kTurn = W > 4 ? 2 : 4;  // tiles at once: more take too many registers
    // Their code is written out, but in a loop where it is longest, for the instruction cache (6 float32 columns in
    // reverse from within a granule, H100, of a copy's speed: 0.84 written out, 0.89 so).
    constexpr int kWritten = W > 4 && sizeof(E) > 2 ? 1 : kTurn;
    const int lane = lane_id();
    for (int it = warp;; it += kTotalWarps) {
      const RingJob j = next(it);
      if (j.row < 0) return;
      const int s = it % kStages;
      loaded.wait(it);
      char* const tiles = part_of(j, stages, s);
      const int in = int(j.in % kGranule);
      if (in > 0) {
        if (lane < kTiles)
          *reinterpret_cast<uint4*>(after[s][lane]) = *reinterpret_cast<const uint4*>(tiles + (lane + 1) * kRunBytes);
        warp_barrier();
      }
      barrier_arrive(kept[s]);
      Acc part[W][kTiles / kTurn] = {};
      with_word<kAligned>(word_of(in), [&](auto kWord) {
#pragma unroll 1
        for (int first = 0; first < kTiles; first += kTurn) {
          Acc total[W][kTurn] = {};
#pragma unroll kWritten
          for (int q = first; q < first + kTurn; ++q) {
            Item items[W][kGroup];
            group_items<kMirror, kWord()>(op, {tiles + q * kRunBytes, lane}, in % 4 * 8, after[s][q],
                                          j.tile * kPositions + (q ^ tile_mirror) * kTile + (lane ^ mirror) * kGroup,
                                          items);
#pragma unroll
            for (int v = 0; v < W; ++v) {
#pragma unroll
              for (int i = 0; i < kTurn - 1; ++i) total[v][i] = total[v][i + 1];
              total[v][kTurn - 1] = Rows::template group<kMirror>(items[v]);
            }
            if (kWritten > 1) warp_barrier();  // else the next tile's elements would take registers meanwhile
          }
#pragma unroll
          for (int v = 0; v < W; ++v) {
#pragma unroll
            for (int i = 0; i < kTiles / kTurn - 1; ++i) part[v][i] = part[v][i + 1];
            part[v][kTiles / kTurn - 1] = transposed_trees<S, kTurn, 1>(total[v], lane, kMirror);
          }
        }
      });
      Acc upto[W];  // of the tile whose number is the lane's, modulo kTiles
#pragma unroll
      for (int v = 0; v < W; ++v) {
        upto[v] =
            last_levels<S, kTiles>(transposed_trees<S, kTiles / kTurn, kTurn>(part[v], lane, kMirror), lane, kMirror);
      }
      Rows::template scan_lanes<true>(upto, tile_mirror);  // of the first kTiles lanes
#pragma unroll
      for (int v = 0; v < W; ++v) {
        if (lane == (kMirror ? 0 : kTiles - 1)) space.total(job[s].row + v, job[s].tile).publish(upto[v]);
        const Acc before = shuffle(upto[v], (((lane ^ tile_mirror) - 1) ^ tile_mirror) & (kLanes - 1));
        if (lane < kTiles) within[s][v][lane] = (lane ^ tile_mirror) ? before : S::absent();
      }
      barrier_arrive(ready[s]);
    }
  }

  // The totals of the parts of kCount * 32 block tiles from `base` on, those of tile `base + 32 * k + lane` in
  // part[k], as far as they are there and before part `most`; returns how many are, from the first part of `base` on
  // without a gap.
  template <int kCount>
  __device__ static int look(ChainSpace<S>& space, int64_t row, int64_t base, int64_t most,
                             Seen<Acc> (&part)[kCount][kParts]) {
    const int64_t mine = (base + lane_id()) * kParts;
#pragma unroll
    for (int k = 0; k < kCount; ++k)
#pragma unroll
      for (int p = 0; p < kParts; ++p) {  // without a branch, so that all are on their way at once
        const int64_t i = mine + k * kLanes * kParts + p;
        part[k][p].look(&space.total(row, i), i < most);
      }
    int count = 0;
#pragma unroll
    for (int k = kCount - 1; k >= 0; --k) {
      int leading = 0;
#pragma unroll
      for (int p = kParts - 1; p >= 0; --p) leading = part[k][p].there() ? leading + 1 : 0;
      const uint32_t missing = ~ballot(leading == kParts);
      const int tile = missing ? __ffs(missing) - 1 : 0, more = shuffle(leading, tile);
      count = missing ? tile * kParts + more : kLanes * kParts + count;
    }
    return count;
  }

  // Whether looks are for what is needed alone: many warps' for more are what the memory is busy with (H200, of a
  // copy's speed, float32: 7 columns 0.84, all parts 0.65; 6 0.81, 0.67; 5 0.79, 0.83; bfloat16, 7 columns: 0.83,
  // 0.88).
  static constexpr bool kNeeded = kParts > 4 && W > 5;

  // As Ring::carries.
  template <int kCount> __device__ void carries(ChainSpace<S>& space, int column) {
    const int lane = lane_id();
    int64_t row = -1, base = 0, end = 0;  // known are the totals of this row's parts before this one, and of
    Seen<Acc> part[kCount][kParts];       // block tile base + 32 * k + lane each, and the carry
    Wide into[kCount];                    // into it
    Wide sum = S::wide_absent();          // of the superblocks before the one at base
    auto begin_at = [&](int64_t tile) {
      base = tile;
#pragma unroll
      for (int k = 0; k < kCount; ++k)
#pragma unroll
        for (int p = 0; p < kParts; ++p) part[k][p] = {};
    };
    auto totals_of = [&](int k, Acc(&total)[kParts]) {
#pragma unroll
      for (int p = 0; p < kParts; ++p) total[p] = part[k][p].value();
    };
    for (int it = 0;; ++it) {
      const RingJob j = next(it);
      if (j.row < 0) return;
      if (j.row != row) {
        row = j.row;
        end = 0;
        begin_at(0);
        into[0] = sum = S::wide_absent();
      }
      const int64_t tile = j.tile / kParts;
      while (j.tile > end || tile >= base + kCount * kLanes) {
        if (end >= (base + kLanes) * kParts) begin_at(end / kParts / kLanes * kLanes);
        const int count = look(space, row + column, base, kNeeded ? j.tile : space.tiles, part);
        end = base * kParts + count;
        if (j.tile > end && count < kLanes * kParts) continue;  // nothing that would not be looked at again
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
          Acc total[kParts];
          totals_of(k, total);
          into[k] = S::widen(tree(total, 0, [](int, const Acc&) {}));
        }
        Rows::template scan_lanes<true>(into, 0);
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
          const Wide before = shuffle(into[k], lane ? lane - 1 : 0), all = shuffle(into[k], kLanes - 1);
          into[k] = lane ? S::combine(sum, before) : sum;
          if (k < count / (kLanes * kParts)) sum = S::combine(sum, all);
        }
      }
      const int s = it % kStages, at = int(tile - base);
      Wide found = into[0];
      Acc near[kParts];
      totals_of(0, near);
#pragma unroll
      for (int k = 1; k < kCount; ++k) {
        const bool here = k == at / kLanes;
        const Wide value = into[k];  // a value, so that nothing indexes the array
        found = here ? value : found;
        Acc total[kParts];
        totals_of(k, total);
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
          const Acc other = total[p];
          near[p] = here ? other : near[p];
        }
      }
      if (lane == at % kLanes) {
        carry[s][column] = found;
        tree(near, int(j.tile % kParts), [&](int level, const Acc& before) { left[s][column][level] = before; });
      }
      barrier_arrive(ready[s]);
    }
  }
  // The total of a block tile's parts. Of each level of their tree, from the lowest on, what precedes part `number` at
  // this level alone: the other half of the pair of subtrees whose second one it is in, or nothing.
  template <class Precedes>
  __device__ __forceinline__ static Acc tree(const Acc (&part)[kParts], int number, Precedes precedes) {
    Acc total[kParts];
#pragma unroll
    for (int p = 0; p < kParts; ++p) total[p] = part[p];
#pragma unroll
    for (int level = 0; level < kLevels; ++level) {
      Acc before = S::absent();
#pragma unroll
      for (int i = 0; i < kParts >> level; i += 2) {
        const Acc first = total[i];
        before = number >> level == i + 1 ? first : before;
        total[i / 2] = S::combine(first, total[i + 1]);
      }
      precedes(level, before);
    }
    return total[0];
  }

  // kExclusive: results take the places of the elements that follow theirs in the scan's order; the last row of a tile
  // takes that of its first one. So do the last bytes of a tile in memory, where results begin within a granule.
  template <bool kMirror, bool kExclusive> __device__ void results(const S& op, char* stages, int warp) {
    constexpr int mirror = kMirror ? kLanes - 1 : 0, tile_mirror = kMirror ? kTiles - 1 : 0;
    constexpr int kTeamWarps = Shape::kTeamWarps;
    constexpr bool kSpares = kSparesRegisters<E, W>;
    constexpr bool kRoundsEarly = kSpares && kLooksForNan<E, typename S::Result>;
    for (int it = warp / kTeamWarps;; it += Shape::kTeams) {
      const RingJob j = next(it);
      if (j.row < 0) return;
      const int s = it % kStages, parity = it / kStages & 1;
#pragma unroll 1
      for (int k = 0; k < kTiles / kTeamWarps; ++k) {
        auto tile = [&] {
          const int number = kSpares ? recomputed(int(threadIdx.x)) / kLanes : warp;
          return k * kTeamWarps + number % kTeamWarps;
        };
        const int q = tile(), lane = recomputed(lane_id());
        const int first = (q ^ tile_mirror) * kTile;
        if (first >= j.results) {  // nothing of this tile is written; but when that is done, the stage is free
          barrier_wait(ready[s], parity);
          continue;
        }
        const int in = int(job[recomputed(it) % kStages].in % kGranule);
        barrier_wait(in > 0 ? kept[s] : loaded[s], parity);
        const LaneGranules<kGranules> granules(part_of(j, stages, s) + q * kRunBytes, lane);
        Item items[W][kGroup];
        with_word<kAligned>(word_of(in), [&](auto kWord) {
          group_items<kMirror, kWord()>(op, granules, in % 4 * 8, after[recomputed(it) % kStages][q],
                                        j.tile * kPositions + first + (lane ^ mirror) * kGroup, items);
        });
        Acc before[W];
#pragma unroll
        for (int v = 0; v < W; ++v) before[v] = Rows::template group<kMirror>(items[v]);
        Rows::template scan_lanes<true>(before, mirror);
        auto lower = [&](int v) {  // what precedes the lane's group in the tile
          const Acc left = shuffle(before[v], (((lane ^ mirror) - 1) ^ mirror) & (kLanes - 1));
          return (lane ^ mirror) ? left : S::absent();
        };
        if constexpr (!kSpares)
#pragma unroll
          for (int v = 0; v < W; ++v) before[v] = lower(v);
        const int turn = kSpares ? recomputed(it) : it, place = kSpares ? turn % kStages : s;
        barrier_wait(ready[place], kSpares ? turn / kStages & 1 : parity);
        typename S::Result r[W][kGroup];
        uint32_t w[4 * kGranules];
        [[maybe_unused]] bool nan = false;
#pragma unroll
        for (int v = 0; v < W; ++v) {
          if constexpr (kSpares) before[v] = lower(v);
          Acc tiles = within[place][v][kSpares ? tile() : q];
#pragma unroll
          for (int level = 0; level < kLevels; ++level) tiles = S::combine(left[place][v][level], tiles);
          Rows::template results<kMirror>(op, S::prefix(carry[place][v], S::combine(tiles, before[v])), items[v], r[v]);
          if constexpr (kRoundsEarly) {
            nan |= has_nan<S>(r[v]);
            round_column<E>(v, r, w);
          }
        }
        if constexpr (kRoundsEarly) {
          if (nan) {
            TR_RARE_PATH;
            settle_nans<E>(w);
          }
        } else {
          round_side<E, S>(r, w);
        }
        const int number = recomputed(lane_id());
        if constexpr (kExclusive) {
          constexpr int kHalf = kRowBytes / 2 % 2;  // of a word
          if constexpr (kMirror) rotate_down<kRowBytes / 4, kHalf != 0>(w, number, 16 * kHalf);
          else rotate_up<kRowBytes / 4 + kHalf, kHalf != 0>(w, number, 16 * kHalf);
        }
        const int out = int(job[recomputed(it) % kStages].out % kGranule), word = (out + 3) / 4;
        with_word<0>(word, [&](auto kWord) {
          rotate_up<kWord(), sizeof(E) < 4>(w, number, (4 * word - out) * 8);
          granules.store(w);
        });
      }
      bulk_fence();
      barrier_arrive(done[s]);
    }
  }

  // Moves kCount elements from a place in each tile to that in the next one: as far as there is a place(tile, element),
  // which is null elsewhere. By one warp.
  template <int kCount, class Place> __device__ static void hand_on(Place place) {
    constexpr int kTurns = (kTiles * kCount + kLanes - 1) / kLanes;
    E x[kTurns];
#pragma unroll
    for (int k = 0; k < kTurns; ++k) {
      const int i = k * kLanes + lane_id();
      const E* const from = i < kTiles * kCount ? place(i / kCount, i % kCount) : nullptr;
      if (from) x[k] = *from;
    }
    warp_barrier();
#pragma unroll
    for (int k = 0; k < kTurns; ++k) {
      const int i = k * kLanes + lane_id();
      E* const to = i < kTiles * kCount ? place(i / kCount + 1, i % kCount) : nullptr;
      if (to) *to = x[k];
    }
    warp_barrier();
  }

  __device__ void store(const ScanCall& call, char* stages, int warp, bool mirror) {
    const int lane = lane_id();
    for (int it = warp;; it += kStoreWarps) {
      const RingJob j = next(it);
      if (j.row < 0) return;
      const int s = it % kStages, out = int(j.out % kGranule);
      const auto row = [&](int position) { return (mirror ? kPositions - 1 - position : position) * kRowBytes; };
      if (call.exclusive && j.tile == 0 && lane < W)
        global(reinterpret_cast<E*>(j.out + row(0)))[lane] = round_to<E>(S::start());
      char* const tiles = part_of(j, stages, s);
      done.wait(it);
      int first = 0, end = j.results;  // positions that are stored
      if (out > 0)                     // the last bytes of a tile are where the next one has its first ones
        hand_on<kGranule / int(sizeof(E))>([&](int tile, int i) {
          return i * int(sizeof(E)) < out ? reinterpret_cast<E*>(tiles + tile * kRunBytes) + i : nullptr;
        });
      if (call.exclusive) {
        hand_on<W>([&](int tile, int v) {  // in the scan's order; after the last one, where the next part begins
          const int at = row(tile * kTile);
          if (tile * kTile > j.results) return static_cast<E*>(nullptr);
          return (tile < kTiles ? reinterpret_cast<E*>(tiles + out + at) : reinterpret_cast<E*>(j.out + at)) + v;
        });
        first = 1;
        end = end < kPositions ? end + 1 : kPositions;
      }
      if (out > 0 || call.exclusive) {
        bulk_fence();
        warp_barrier();
      }
      const int begin = out + (mirror ? kPositions - end : first) * kRowBytes;
      store_staged<E>(j.out - out, tiles, begin, begin + (end - first) * kRowBytes);
      barrier_arrive(empty[s]);
    }
  }
};

template <class S, class Load, class Store, int W>
__global__ void __launch_bounds__(ring_column_threads(W, sizeof(typename Load::Element)), 1)
    scan_ring_columns(TR_GRID_CONSTANT ScanCall call, TR_GRID_CONSTANT RingColumnsShape shape, void* workspace) {
#if !defined(__CUDA_ARCH__) || defined(TR_LARGE_BLOCKS)  // others have no room for its stages
  using P = RingColumns<S, Load, Store, W>;
  TR_DYNAMIC_SHARED(stages, 128);
  __shared__ P ring;
  static_assert(P::Shape::kShared + sizeof(P) <= kRingShared, "the plan counts on no more");
  constexpr int kCarryWarp = P::Shape::kResultWarps + P::kTotalWarps, kStoreWarp = kCarryWarp + W,
                kLoadWarp = kStoreWarp + P::kStoreWarps;
  const int warp = int(threadIdx.x) / kLanes;
  const bool mirror = scan_stride(call.layout).in < 0;
  ChainSpace<S> space(workspace, call.layout.rows, shape.parts);
  const S op{call.options};
  if (threadIdx.x == 0) ring.make_barriers();
  __syncthreads();
  if (warp < P::Shape::kResultWarps) {
    if (call.exclusive) {
      if (mirror) ring.template results<true, true>(op, stages, warp);
      else ring.template results<false, true>(op, stages, warp);
    } else {
      if (mirror) ring.template results<true, false>(op, stages, warp);
      else ring.template results<false, false>(op, stages, warp);
    }
  } else if (warp < kCarryWarp) {
    if (mirror) ring.template totals<true>(op, space, stages, warp - P::Shape::kResultWarps);
    else ring.template totals<false>(op, space, stages, warp - P::Shape::kResultWarps);
  } else if (warp < kStoreWarp) {
    ring.template carries<P::Shape::kWindows>(space, warp - kCarryWarp);
  } else if (warp < kLoadWarp) {
    ring.store(call, stages, warp - kStoreWarp, mirror);
  } else if (lane_id() == 0) {
    ring.load(call, space, stages, mirror);
  }
#endif
}

#endif

}  // namespace torchreduce::gpu
