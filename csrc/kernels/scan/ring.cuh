// Scans of few long rows on GPUs with bulk copies, in one pass: one block a multiprocessor stays for the whole call,
// and its warps have roles that only barriers in shared memory join:
//
//   loader   takes a ticket for each stage of a ring, and starts the bulk load of that block tile when it is free
//   totals   each warp sums one block tile as soon as its load lands, and publishes the total
//   carry    folds the totals of all block tiles of a row in order and hands each tile of this block its carry: one
//            warp, or kCarryWarps in turn where rows are so short that each tile means another row
//   results  kResultWarps warps turn a block tile into its results, in a staging buffer
//   store    one warp starts the bulk stores, and writes what shares granules of 16 bytes with other tiles
//
// A total never waits behind results, nor a carry behind another block's carry: with either, the chain of carries
// was the limit, at half the speed of a copy.
//
// Accumulators of more than 4 bytes take too long to combine for a warp a block tile to total it, or to fold all
// totals. There the result warps sum the tiles of a block tile, which they do kAhead of them before they turn it into
// results, so that its carry is there by then; one warp publishes what they make, and carries are folded by
// superblocks.
#pragma once
#include "chain.cuh"
#include "kernels/tile/bulk_run.cuh"
#include "kernels/tile/stages.cuh"
#include "ring.h"

namespace torchreduce::gpu {

// The ring for elements of `bytes` bytes. 16-bit scans need more totals in view to keep up, 32-bit scans suffer from
// looking too often (float32: 64 totals a look 4110 GB/s, 128 3983, 256 3576; bfloat16: 64 3516, 192 3950) and from two
// warps that do (rows of 2^20, of a copy's speed: float32 0.93 with one carry warp, 0.85 with two; bfloat16 0.80,
// 0.90).
// Of two inputs (ring_pairs.cuh) a stage has a place for each, and no results are staged.
template <int kBytes, int kAcc, int kInputs = 1> struct RingStages {
  static_assert(kBytes == 2 || kBytes == 4, "one stage is a block tile, and several must fit");
  static constexpr bool kStaged = kInputs == 1;  // results
  static constexpr int kStages = (kStaged ? 10 : 6) / (kBytes / 2);
  static constexpr int kStagings = kStaged && kBytes == 2 ? 3 : 1;
  static constexpr bool kOwnTotals = kAcc > 4;  // the result warps sum tiles
                                                // and are so many block tiles further with it
  static constexpr int kAhead = !kOwnTotals ? 0 : kBytes == 2 ? (kStaged ? 4 : 3) : kStaged ? 3 : 2;
  static constexpr int kTotalWarps = kOwnTotals ? 1 : 5;  // divides kStages: each owns its stages
  static constexpr int kCarryWarps = kOwnTotals || kBytes == 2 ? 2 : 1;
  static constexpr int kResultWarps = 16;
  static constexpr int kWindows = kBytes == 2 ? 6 : 2;  // of 32 totals, a look
  static constexpr int kCopyWarps = kStaged ? 2 : 1;
  static_assert((kResultWarps + kTotalWarps + kCarryWarps + kCopyWarps) * kLanes == ring_threads(kBytes, kAcc),
                "a warp for each role");
  static constexpr int kPlaceBytes = kBlockTile * kBytes + 128;  // a tile that starts anywhere in a line
  static constexpr int kStageBytes = kInputs * kPlaceBytes;
  static constexpr int kShared = (kStages + (kStaged ? kStagings : 0)) * kStageBytes;
  static_assert(kShared + (6 << 10) <= kRingShared, "the plan counts on no more");
};

// What the kernel is compiled for: 16- and 32-bit floats.
template <class S, class Load, class Store> constexpr bool kRing =
    kInPlace<S, Load, Store> && is_float_type<typename Load::Element> && sizeof(typename Load::Element) <= 4;

#ifdef TR_BULK_COPIES

// A block tile on its way. The last one of a row has the place of a whole one, so that all are handled alike: in a
// stage, what lies beyond the row's end is no one's. It comes after everything in the scan's order, and so has a part
// in no result that is written, and in no total that is read.
struct RingJob {
  int64_t row;  // -1: there is none, and no other comes
  int64_t tile;
  uintptr_t in, out;  // addresses of the lowest element of a whole block tile, and of its result
  int results;        // written: the first ones in the scan's order
};

// Where totals are large: by superblocks, whose totals the carry warp of the block of their last tile publishes.
// Formed by each warp for itself, so that as many jobs are on their way as there are warps. `ring`: this, or another
// kernel's, whose job of turn `it` is next(it), when its carry is to be looked for; initial(row) precedes a row.
template <class S, class AnyRing, class Next, class Initial>
__device__ void carries_by_superblocks(AnyRing& ring, ChainSpace<S>& space, int warp, Next next, Initial initial) {
  using Acc = typename S::Acc;
  using Wide = typename S::Wide;
  const int lane = lane_id();
  int64_t row = -1, folded = 0;  // superblocks
  Wide sum = S::wide_absent();   // of those
  for (int it = warp;; it += AnyRing::kCarryWarps) {
    const auto& j = next(it);
    if (j.row < 0) return;
    if (j.row != row) {
      row = j.row;
      folded = 0;
      sum = initial(row);
    }
    const int64_t superblock = j.tile / kFan;
    const int slot = int(j.tile % kFan), needed = slot == kFan - 1 ? kFan : slot;
    Acc total = S::absent();
    bool there = lane >= needed;
    while (ballot(!there))
      if (!there) there = space.total(row, superblock * kFan + lane).look(total);
    Wide upto[1] = {S::widen(chosen(lane < needed, total, S::absent()))};
    sklansky<S, (S::kInputs > 1)>(upto, recomputed(lane_id()), kLanes);
    if (needed == kFan && lane == kLanes - 1) space.superblock(row, superblock).total.publish(upto[0]);
    while (folded < superblock) {
      const int64_t mine = folded + lane;
      Wide total = S::wide_absent();
      const bool there = mine < superblock && space.superblock(row, mine).total.look(total);
      const uint32_t missing = ~ballot(there);
      const int count = missing ? __ffs(missing) - 1 : kLanes;
      TR_ROLLED
      for (int i = 0; i < count; ++i) sum = S::combine(sum, shuffle(total, i));
      folded += count;
    }
    const int s = it % AnyRing::kStages;
    const Wide before = shuffle(upto[0], slot ? slot - 1 : 0);
    if (lane == 0) ring.carry[s] = chosen(slot > 0, S::combine(sum, before), sum);
    barrier_arrive(ring.ready[s]);
    barrier_arrive(ring.empty[s]);
  }
}

template <class S, class Load, class Store> struct Ring {
  using Acc = typename S::Acc;
  using Wide = typename S::Wide;
  using E = typename Load::Element;
  using O = typename Store::Element;
  static_assert(sizeof(E) == sizeof(O), "the stages of both are alike");
  using Shape = RingStages<sizeof(E), sizeof(Acc), S::kInputs>;
  static constexpr int kStages = Shape::kStages, kStagings = Shape::kStagings, kStageBytes = Shape::kStageBytes;
  static constexpr int kTotalWarps = Shape::kTotalWarps, kCarryWarps = Shape::kCarryWarps;
  static constexpr int kResultWarps = Shape::kResultWarps, kAhead = Shape::kAhead;
  static constexpr bool kOwnTotals = Shape::kOwnTotals;
  static constexpr int kEnds = kCarryWarps > kTotalWarps ? kCarryWarps : kTotalWarps;  // that the loader posts
  static constexpr int kWindows = Shape::kWindows, kRunBytes = kTile * int(sizeof(E));
  static constexpr int kWords = kGroup * int(sizeof(E)) / 4;  // of a group
  static constexpr int kRuns = kFan / kResultWarps;           // tiles of 256 that a result warp takes: neighbours
  // Warps that say when they have read what they need of a stage's elements: it may be loaded again then, though its
  // results still wait for their carry. Result warps without a part of a block tile say so at once, of one input maybe
  // all of them; but the totals warp that sums it waits for the load first, which is not overtaken so.
  static constexpr int kReaders = S::kInputs > 1 ? kResultWarps : sizeof(E) == 4 && !kOwnTotals ? kResultWarps + 1 : 0;

  StageBarriers<kStages> taken, loaded;
  [[no_unique_address]] StageBarriers<(kReaders > 0 ? kStages : 0)> all_read;  // it may be loaded again
  StageBarriers<kStages> summed, ready, empty;
  StageBarriers<kStagings> done, stored;
  RingJob job[kStages];
  // What result warps ask of a job, at once: `results`, -1 where there is no job, and at which byte of all stages the
  // block tile begins, and of all stagings its results.
  struct alignas(16) Place { int results, in, out; };
  Place places[kStages];
  Acc within[kStages][kFan];  // what precedes each tile in its block tile; with kOwnTotals first its total
  Wide carry[kStages];
  // Words at the joints of the result warps' parts: the last 4 of the part before, the first 4 of the part after.
  uint32_t joint[kStagings][kResultWarps + 1][8];

  __device__ void make_barriers() {
    for (int s = 0; s < kStages; ++s) {
      barrier_init(taken[s], 1);
      barrier_init(loaded[s], S::kInputs);
      if constexpr (kReaders > 0) barrier_init(all_read[s], kReaders * kLanes);
      barrier_init(summed[s], kResultWarps * kLanes);
      barrier_init(ready[s], 2 * kLanes);                   // totals, carry
      barrier_init(empty[s], (kResultWarps + 3) * kLanes);  // totals, carry, results, store
    }
    for (int o = 0; o < kStagings; ++o) {
      barrier_init(done[o], kResultWarps * kLanes);
      barrier_init(stored[o], kLanes);
    }
    barriers_made();
  }
  // Every lane arrives for itself wherever a warp hands shared memory on: what it did there is ordered by that, and
  // tools can see it.

  // The stage of turn `it`, when it is free.
  __device__ int free_stage(int it) {
    const int s = it % kStages;
    empty.wait_before(it);
    return s;
  }
  // Returns when the elements of turn `it` may be loaded: before its job may be put.
  __device__ void wait_read(int it) {
    if constexpr (kReaders > 0) all_read.wait_before(it);
  }
  // Says that this warp has read them.
  __device__ void arrive_read(int s) {
    if constexpr (kReaders > 0) barrier_arrive(all_read[s]);
  }
  // The job of turn `it`, when it is known. Whoever waits for other barriers of the turn does so first: a wait for a
  // phase must not begin a phase early.
  __device__ RingJob next(int it) {
    taken.wait(it);
    return job[it % kStages];
  }

  // ---- roles ----

  // What takes time is done before a stage is free: the job is known by then, and the next ticket on its way. A block
  // holds two tickets at most that it does not load yet. None waits for ever: a block loads its tickets in order, and
  // what keeps one from being loaded, its job from being put, or its results from being formed, are only tickets before
  // it, of this block or of another that runs, since it took one.
  //
  // `early`: a stage is loaded again while its results still wait for their carry, and the job put when it is free.
  // Rows that follow each other gain by that, a single one does not (docs/designs.md).
  __device__ void load(const ScanCall& call, ChainSpace<S>& space, char* stages, bool mirror) {
    const Layout& l = call.layout;
    const int64_t shift = call.exclusive ? 1 : 0, jobs = l.rows * space.tiles, far = mirror ? kBlockTile - 1 : 0;
    const int64_t sign = mirror ? -1 : 1;
    const uintptr_t data = reinterpret_cast<uintptr_t>(call.in.data), memory_end = data + extent(l, l.in) * sizeof(E);
    const bool early = kReaders > 0 && l.rows > 1;
    int it = 0;
    for (int64_t ticket = int64_t(take_ticket(space.ticket)), next; ticket < jobs; ticket = next, ++it) {
      next = int64_t(take_ticket(space.ticket));
      RingJob j;
      j.row = ticket / space.tiles;
      j.tile = ticket - j.row * space.tiles;
      const RowStart start = row_start(l, j.row);
      const int64_t first = j.tile * kBlockTile, left = l.length - first;
      const int count = int(left < kBlockTile ? left : kBlockTile);
      j.results = int(left - shift < kBlockTile ? left - shift : kBlockTile);
      j.in = data + (start.in + sign * first - far) * sizeof(E);
      j.out = reinterpret_cast<uintptr_t>(call.out.values) + (start.out + sign * (first + shift) - far) * sizeof(O);
      const uintptr_t begin = j.in + (mirror ? kBlockTile - count : 0) * sizeof(E);
      const BulkRange<E> range(begin, begin + count * sizeof(E), memory_end);
      auto load = [&] { range.load(stages + it % kStages * kStageBytes, j.in, loaded[it % kStages]); };
      if (early) {
        wait_read(it);
        load();
      }
      const int s = free_stage(it);
      job[s] = j;
      places[s] = {j.results, s * kStageBytes + int(j.in % kLine), it % kStagings * kStageBytes + int(j.out % kLine)};
      barrier_arrive(taken[s]);
      if (!early) load();
    }
    for (int end = 0; end < kEnds; ++end, ++it) {  // one for each of those warps, which look at their own stages
      const int s = free_stage(it);
      job[s].row = -1;
      places[s].results = -1;
      barrier_arrive(taken[s]);
    }
  }

  // The items of a group whose words are w, as they lie in memory.
  template <bool kMirror> __device__ static void group_items(const S& op, const uint32_t (&w)[kWords], int64_t position,
                                                             typename S::Item (&items)[kGroup]) {
    E x[kGroup];
    unpack(w, x);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) items[i] = op.load(x[i], position + (kMirror ? kGroup - 1 - i : i));
  }
  // The scan's order of a group as it lies in memory, and back.
  template <bool kMirror, class V> __device__ static void ordered(const V (&lying)[kGroup], V (&x)[kGroup]) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) x[i] = lying[kMirror ? kGroup - 1 - i : i];
  }
  // Of items in memory order, as the results are.
  template <bool kMirror> __device__ static Acc group(typename S::Item (&items)[kGroup]) {
    if constexpr (!kMirror) {
      return S::group(items);
    } else {
      typename S::Item x[kGroup];
      ordered<true>(items, x);
      const Acc total = S::group(x);
      ordered<true>(x, items);
      return total;
    }
  }
  template <bool kMirror>
  __device__ static void results(const S& op, const typename S::Prefix& prefix, const typename S::Item (&items)[kGroup],
                                 typename S::Result (&r)[kGroup]) {
    if constexpr (!kMirror) {
      op.results(prefix, items, r);
    } else {
      typename S::Item x[kGroup];
      typename S::Result y[kGroup];
      ordered<true>(items, x);
      op.results(prefix, x, y);
      ordered<true>(y, r);
    }
  }
  // Sklansky's inclusive scan over the lanes of several values, in reverse where `mirror` is 31, not 0.
  // kNumbers: lanes' numbers stay in registers, which is less to do where there are enough of them.
  template <bool kNumbers = false, class V, int N> __device__ static void scan_lanes(V (&value)[N], int mirror) {
    if constexpr (kOwnTotals) {  // without lanes' numbers in registers all the time
      sklansky<S, (S::kInputs > 1)>(value, recomputed(lane_id()) ^ mirror, kLanes, mirror);
    } else {
      const int lane = lane_id() ^ mirror;
      sklansky_levels(
          value, lane, kLanes,
          [&](const V& v, int d) {
            return kNumbers ? shuffle(v, ((lane & ~(2 * d - 1)) + d - 1) ^ mirror)
                            : shuffle_within(v, mirror ? d : d - 1, 2 * d);
          },
          [](bool joins, const V& l, const V& r) { return joins ? S::combine(l, r) : r; });
    }
  }

  template <bool kMirror> __device__ void totals(const S& op, ChainSpace<S>& space, const char* stages, int warp) {
    constexpr int mirror = kMirror ? kLanes - 1 : 0;
    const int lane = lane_id();
    for (int it = warp;; it += kTotalWarps) {
      const RingJob j = next(it);
      if (j.row < 0) return;
      const int s = it % kStages, phase = int(j.in % kGranule);
      loaded.wait(it);
      const char* stage = stages + s * kStageBytes + (int(j.in % kLine) - phase);
      Acc upto[1];  // of the tile of 256 whose number is the lane
      auto place = [&](int q) { return j.tile * kBlockTile + (q ^ mirror) * kTile + (lane ^ mirror) * kGroup; };
      with_word<kAligned>(word_of(phase), [&](auto word) {
        // 8 tiles a turn: all 32 at once would be more instructions than the nearest cache holds.
        Acc part[4] = {};
#pragma unroll 1
        for (int first = 0; first < kFan; first += 8) {
#pragma unroll
          for (int i = 0; i < 3; ++i) part[i] = part[i + 1];
          Acc total[8];
#pragma unroll
          for (int k = 0; k < 8; ++k) {
            const int q = first + k;
            uint32_t w[kWords];
            shifted_words<word()>(stage + q * kRunBytes, lane, phase % 4 * 8, w);
            typename S::Item items[kGroup];
            group_items<kMirror>(op, w, place(q), items);
            total[k] = group<kMirror>(items);
          }
          part[3] = transposed_trees<S, 8, 1>(total, lane, kMirror);
        }
        upto[0] = transposed_trees<S, 4, 8>(part, lane, kMirror);
      });
      arrive_read(s);
      finish_totals<kMirror>(space, s, upto);
    }
  }
  // The same where the result warps have summed the tiles.
  template <bool kMirror> __device__ void publish_totals(ChainSpace<S>& space) {
    for (int it = 0; next(it).row >= 0; ++it) {
      const int s = it % kStages;
      if constexpr (S::kInputs == 1) loaded.wait(it);  // nobody else does where no result of the block tile is written
      summed.wait(it);
      Acc upto[1] = {within[s][lane_id()]};
      finish_totals<kMirror>(space, s, upto);
    }
  }
  // Of the totals of a block tile's tiles, a lane each: publishes theirs, and keeps what precedes each.
  template <bool kMirror> __device__ void finish_totals(ChainSpace<S>& space, int s, Acc (&upto)[1]) {
    constexpr int mirror = kMirror ? kLanes - 1 : 0;
    const int lane = lane_id();
    scan_lanes(upto, mirror);
    if ((lane ^ mirror) == kLanes - 1) space.total(job[s].row, job[s].tile).publish(upto[0]);
    const Acc before = shuffle(upto[0], (((lane ^ mirror) - 1) ^ mirror) & (kLanes - 1));
    within[s][lane] = chosen((lane ^ mirror) > 0, before, S::absent());
    barrier_arrive(ready[s]);
    barrier_arrive(empty[s]);
  }

  // Totals are looked at as they are needed, those of kCount windows of 32 block tiles at a time: as many as it takes
  // to keep up, or one where a row has no more. A window that ends before the job's block tile is a superblock; of the
  // last one, the tree over the totals before it and absent ones behind gives what Sklansky's scan does.
  template <int kCount> __device__ void carries(ChainSpace<S>& space, int warp) {
    constexpr int kAtOnce = kCount * kLanes, kTrees = kCount > 4 ? 8 : kCount;  // absent windows make it a power of two
    static_assert((kTrees & (kTrees - 1)) == 0 && kCount <= kTrees, "trees that are halved");
    const int lane = lane_id(), warps = space.tiles <= int64_t(gridDim.x) ? kCarryWarps : 1;
    if (warp >= warps) return;
    int64_t row = -1, base = 0;   // the block tile where a window begins
    Wide sum = S::wide_absent();  // of this row's block tiles before it
    for (int it = warp;; it += warps) {
      const RingJob j = next(it);
      if (j.row < 0) return;
      if (j.row != row) {
        row = j.row;
        base = 0;
        sum = S::wide_absent();
      }
      Wide found;
      int64_t left;
      do {
        left = j.tile - base;
        const int needed = left < kAtOnce ? int(left) : kAtOnce;
        const Published<Acc>* const totals = &space.total(row, base);
        Acc total[kCount];
        bool there[kCount];
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
          total[k] = S::absent();
          there[k] = k * kLanes + lane >= needed;
        }
        for (bool all = false; !all;) {
          all = true;
#pragma unroll
          for (int k = 0; k < kCount; ++k) {
            if (!there[k]) there[k] = totals[k * kLanes + lane].look(total[k]);
            all = all && there[k];
          }
          all = !ballot(!all);
        }
        Wide window[kTrees];  // the lane's total in each
#pragma unroll
        for (int k = 0; k < kTrees; ++k)
          window[k] = k < kCount ? S::widen(total[k < kCount ? k : 0]) : S::wide_absent();
        const Wide tree = last_levels<S, kTrees>(transposed_trees<S, kTrees, 1>(window, lane, false), lane, false);
        found = sum;
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
          found = S::combine(found, shuffle(tree, k));
          if (k < needed / kLanes) sum = found;
        }
        base += needed / kLanes * kLanes;
      } while (left > kAtOnce);
      const int s = it % kStages;
      if (lane == 0) carry[s] = found;
      barrier_arrive(ready[s]);
      barrier_arrive(empty[s]);
    }
  }

  // Whether result warp `warp` has results of a block tile that are written.
  template <bool kMirror> __device__ static bool has_part(const Place& place, int warp) {
    return (kMirror ? kResultWarps - 1 - warp : warp) * kRuns * kTile < place.results;
  }
  // The items of its part of a block tile, as they lie there. No scan asks for their positions.
  template <bool kMirror, bool kAtGranules>
  __device__ static void part_items(const S& op, const char* stages, const Place& place, int first,
                                    typename S::Item (&x)[kRuns][kGroup]) {
    const int lane = lane_id(), in = int(unsigned(place.in) % kGranule);
    const char* const tiles = stages + (place.in - in) + first * kRunBytes;
    uint32_t w[kRuns][kWords];
    with_word<kAligned>(kAtGranules ? kAligned : word_of(in), [&](auto word) {
#pragma unroll
      for (int k = 0; k < kRuns; ++k)
        shifted_words<word()>(tiles + k * kRunBytes, lane, int(unsigned(in) % 4) * 8, w[k]);
    });
#pragma unroll
    for (int k = 0; k < kRuns; ++k) group_items<kMirror>(op, w[k], 0, x[k]);
  }
  // Of the totals of the groups of the part's tiles, what precedes each group in its tile; and the totals of those.
  template <bool kMirror> __device__ static void scan_groups(Acc (&group)[kRuns], Acc (&total)[kRuns]) {
    constexpr int mirror = kMirror ? kLanes - 1 : 0;
    const int lane = lane_id();
    scan_lanes(group, mirror);
#pragma unroll
    for (int k = 0; k < kRuns; ++k) {
      total[k] = group[k];
      const Acc left = shuffle(group[k], (((lane ^ mirror) - 1) ^ mirror) & (kLanes - 1));
      group[k] = chosen((lane ^ mirror) > 0, left, S::absent());
    }
  }

  // kAtGranules: every block tile starts at one. To know that beforehand is worth it where much is done with each
  // element, which then begins with words that need not be chosen.
  template <bool kMirror, bool kAtGranules>
  __device__ void results(const S& op, const char* stages, char* stagings, int warp) {
    constexpr int mirror = kMirror ? kLanes - 1 : 0;
    const int lane = lane_id(), first = warp * kRuns;
    Acc groups[kAhead + 1][kRuns];  // what precedes each of the lane's in its tile, of this block tile and those ahead
    uint32_t fast = 0;              // bit a: whether the a-th of them has only groups that fast_group takes
    int ahead = kAhead + 1;         // block tiles to be summed
    bool more = true;
    Turn<kStages> sums;
    Turn<kStagings> to;
    for (Turn<kStages> turn;; turn.advance(), ahead = 1) {
      if constexpr (kOwnTotals) {
#pragma unroll 1
        for (; ahead > 0; --ahead) {
#pragma unroll
          for (int a = 0; a < kAhead; ++a)
#pragma unroll
            for (int k = 0; k < kRuns; ++k) groups[a][k] = groups[a + 1][k];
          fast >>= 1;
          if (!more) continue;
          const int s = sums.place;
          taken.wait(sums);
          const Place place = places[s];
          more = place.results >= 0;
          if (!more) continue;
          Acc total[kRuns];
          if (has_part<kMirror>(place, warp)) {
            loaded.wait(sums);
            typename S::Item items[kRuns][kGroup];
            part_items<kMirror, kAtGranules>(op, stages, place, first, items);
            if (sum_groups<kMirror>(items, groups[kAhead], total)) fast |= 1u << kAhead;
          } else {
#pragma unroll
            for (int k = 0; k < kRuns; ++k) total[k] = S::absent();
          }
#pragma unroll
          for (int k = 0; k < kRuns; ++k)
            if ((lane ^ mirror) == kLanes - 1) within[s][first + k] = total[k];
          barrier_arrive(summed[s]);
          sums.advance();
        }
      }
      const int s = turn.place, o = to.place;
      taken.wait(turn);
      const Place place = places[s];
      if (place.results < 0) return;
      const uint32_t stored_parity = to.parity ^ 1;  // the first time there is nothing to wait for
      to.advance();
      if (!has_part<kMirror>(place, warp)) {
        arrive_read(s);
        barrier_arrive(empty[s]);
        barrier_wait(stored[o], stored_parity);
        barrier_arrive(done[o]);
        continue;
      }
      loaded.wait(turn);
      uint32_t w[kRuns][kWords];
      typename S::Item items[kRuns][kGroup];
      part_items<kMirror, kAtGranules>(op, stages, place, first, items);
      arrive_read(s);
      Acc before[kRuns];
#pragma unroll
      for (int k = 0; k < kRuns; ++k) before[k] = kOwnTotals ? groups[0][k] : group<kMirror>(items[k]);
      if constexpr (!kOwnTotals) {
        Acc total[kRuns];
        scan_groups<kMirror>(before, total);
      }
      ready.wait(turn);
      const Wide c = carry[s];
#pragma unroll
      for (int k = 0; k < kRuns; ++k) before[k] = precede<S, O>(fast & 1, within[s][first + k], before[k]);
      barrier_arrive(empty[s]);
      typename S::Prefix prefix[kRuns];
#pragma unroll
      for (int k = 0; k < kRuns; ++k) prefix[k] = S::prefix(c, before[k]);
      round_results<kMirror>(op, prefix, items, fast & 1, w);
      const int out = int(unsigned(place.out) % kGranule);
      char* const staging = stagings + (place.out - out);
      barrier_wait(stored[o], stored_parity);
      const int words = int(unsigned(out + 3) / 4), shift = words * 4 - out;
      with_word<0>(words, [&](auto word) {
        if constexpr (word() > 0) {
          if (lane == 0) memcpy(&joint[o][warp][4], w[0], 16);
          if (lane == kLanes - 1) memcpy(&joint[o][warp + 1][0], &w[kRuns - 1][kWords - 4], 16);
        }
        uint32_t last[4] = {};
#pragma unroll
        for (int k = 0; k < kRuns; ++k)
          shift_out<word()>(staging + (first + k) * kRunBytes, lane, shift * 8, k == 0, w[k], last);
      });
      bulk_fence();
      barrier_arrive(done[o]);
    }
  }

  // Of the items of a part, what precedes each of the lane's groups in its tile, and the totals of the tiles; whether
  // all groups are such as fast_group takes.
  template <bool kMirror>
  __device__ static bool sum_groups(typename S::Item (&items)[kRuns][kGroup], Acc (&groups)[kRuns],
                                    Acc (&total)[kRuns]) {
    bool fast = false;
    if constexpr (kHasFastGroup<S>) {
      constexpr int mirror = kMirror ? kLanes - 1 : 0;
      const int lane = recomputed(lane_id()) ^ mirror;
      typename S::Item run[kRuns];
      bool near = true;
      fast = true;
#pragma unroll
      for (int k = 0; k < kRuns; ++k) {
        typename S::Item x[kGroup];
        ordered<kMirror>(items[k], x);
        fast &= S::fast_group(x, run[k]);
        near &= S::is_near(run[k]);
      }
      near &= fast;
      if (!ballot(!near)) {
        sklansky_levels(
            run, lane, kLanes, [](auto v, int d) { return shuffle_within(v, mirror ? d : d - 1, 2 * d); },
            [](bool joins, auto l, auto r) { return joins ? S::near_join(l, r) : r; });
#pragma unroll
        for (int k = 0; k < kRuns; ++k) {
          const auto left = shuffle(run[k], ((lane - 1) & (kLanes - 1)) ^ mirror);
          total[k] = S::fast_end(S::of_near(run[k]));
          groups[k] = chosen(lane > 0, near_total<S, O>(left), S::absent());
        }
        return true;
      }
      TR_RARE_PATH;
      fast = !ballot(!fast);
    }
#pragma unroll
    for (int k = 0; k < kRuns; ++k) groups[k] = group<kMirror>(items[k]);
    scan_groups<kMirror>(groups, total);
    return fast;
  }
  // The results of a part in memory order, rounded. fast: fast_group takes all groups.
  template <bool kMirror>
  __device__ static void round_results(const S& op, typename S::Prefix (&prefix)[kRuns],
                                       typename S::Item (&items)[kRuns][kGroup], bool fast,
                                       uint32_t (&w)[kRuns][kWords]) {
    bool rare = kHasFastGroup<S> && !fast, nan = false;
    if constexpr (requires { S::is_rare(prefix[0]); }) {
#pragma unroll
      for (int k = 0; k < kRuns; ++k) rare |= S::is_rare(prefix[k]);
    }
    if (!rare) {
#pragma unroll
      for (int k = 0; k < kRuns; ++k) {
        typename S::Result r[kGroup];
        if constexpr (kHasFastGroup<S>) {
          typename S::Item x[kGroup];
          typename S::Result y[kGroup];
          ordered<kMirror>(items[k], x);
          if constexpr (kNearly<S, O>) {
            rare |= !op.near_results(prefix[k], x, y);
            rare |= !rounds_alike<O>(y);
          } else {
            op.fast_results(prefix[k], x, y);
          }
          ordered<kMirror>(y, r);
        } else {
          results<kMirror>(op, prefix[k], items[k], r);
        }
        if constexpr (kLooksForNan<O, typename S::Result>) nan |= has_nan<S>(r);
        round_group<O, S, true>(r, w[k]);
      }
    }
    if (rare) {
      TR_RARE_PATH;
#pragma unroll
      for (int k = 0; k < kRuns; ++k) {
        typename S::Result r[kGroup];
        if constexpr (kNearly<S, O>) {
#pragma unroll
          for (int i = 0; i < kGroup; ++i) items[k][i] = bit_cast<float>(recomputed(bit_cast<uint32_t>(items[k][i])));
        }
        results<kMirror>(op, prefix[k], items[k], r);
        if constexpr (kLooksForNan<O, typename S::Result>) nan |= has_nan<S>(r);
        round_group<O, S, true>(r, w[k]);
      }
    }
    if (nan) {
      TR_RARE_PATH;
#pragma unroll
      for (int k = 0; k < kRuns; ++k) settle_nans<O>(w[k]);
    }
  }

  __device__ void store(const ScanCall& call, char* stagings, bool mirror) {
    const int lane = lane_id();
    for (int it = 0;; ++it) {
      const RingJob j = next(it);
      if (j.row < 0) return;
      const int s = it % kStages, o = it % kStagings, out = int(j.out % kGranule);
      if (call.exclusive && j.tile == 0 && lane == 0)
        reinterpret_cast<O*>(j.out)[mirror ? kBlockTile : -1] = round_to<O>(S::start());
      barrier_arrive(empty[s]);
      char* staging = stagings + o * kStageBytes + (int(j.out % kLine) - out);
      done.wait(it);
      if (out) {  // the granules where the result warps' parts begin and end
        const int words = (out + 3) / 4, shift = (words * 4 - out) * 8;
        for (int i = lane; i < (kResultWarps + 1) * 4; i += kLanes) {
          const uint32_t* at = joint[o][i / 4] + 4 - words + i % 4;
          reinterpret_cast<uint32_t*>(staging + i / 4 * kRuns * kRunBytes)[i % 4] = funnel_right(at[0], at[1], shift);
        }
        bulk_fence();
        warp_barrier();
      }
      const int begin = out + (mirror ? kBlockTile - j.results : 0) * int(sizeof(O));
      store_staged<O>(j.out - out, staging, begin, begin + j.results * int(sizeof(O)));
      barrier_arrive(stored[o]);
    }
  }
};

template <class S, class Load, class Store>
__global__ void __launch_bounds__(ring_threads(sizeof(element_of<Load>), sizeof(typename S::Acc)), 1)
    scan_ring(TR_GRID_CONSTANT ScanCall call, TR_GRID_CONSTANT RingShape shape, void* workspace) {
#if !defined(__CUDA_ARCH__) || defined(TR_LARGE_BLOCKS)  // others have no room for its stages
  using P = Ring<S, Load, Store>;
  TR_DYNAMIC_SHARED(stages, 128);
  __shared__ P ring;
  char* stagings = stages + P::kStages * P::kStageBytes;
  constexpr int kCarryWarp = P::kResultWarps + P::kTotalWarps, kStoreWarp = kCarryWarp + P::kCarryWarps;
  const int warp = int(threadIdx.x) / kLanes, mirror = scan_stride(call.layout).in < 0 ? kLanes - 1 : 0;
  ChainSpace<S> space(workspace, call.layout.rows, shape.tiles);
  const S op{call.options};
  if (threadIdx.x == 0) ring.make_barriers();
  __syncthreads();
  if (warp < P::kResultWarps) {
    if (mirror) ring.template results<true, false>(op, stages, stagings, warp);
    else if (P::kOwnTotals && shape.granules) ring.template results<false, P::kOwnTotals>(op, stages, stagings, warp);
    else ring.template results<false, false>(op, stages, stagings, warp);
  } else if (warp < kCarryWarp) {
    if constexpr (P::kOwnTotals) {
      if (mirror) ring.template publish_totals<true>(space);
      else ring.template publish_totals<false>(space);
    } else {
      if (mirror) ring.template totals<true>(op, space, stages, warp - P::kResultWarps);
      else ring.template totals<false>(op, space, stages, warp - P::kResultWarps);
    }
  } else if (warp < kStoreWarp) {
    if constexpr (P::kOwnTotals)
      carries_by_superblocks<S>(
          ring, space, warp - kCarryWarp, [&](int it) { return ring.next(it); },
          [](int64_t) { return S::wide_absent(); });
    else if (space.tiles <= kLanes) ring.template carries<1>(space, warp - kCarryWarp);
    else ring.template carries<P::kWindows>(space, warp - kCarryWarp);
  } else if (warp == kStoreWarp) {
    ring.store(call, stagings, mirror != 0);
  } else if (lane_id() == 0) {
    ring.load(call, space, stages, mirror);
  }
#endif
}

#endif

}  // namespace torchreduce::gpu
