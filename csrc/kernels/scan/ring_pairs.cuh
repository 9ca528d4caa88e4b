// Scans of two inputs, of few long rows on GPUs with bulk copies: as ring.cuh scans one input where the result
// warps sum tiles. A stage holds a block tile of each input. The result warps take its elements to registers before
// they wait for what precedes it, so that it is loaded again meanwhile, and store their results themselves; the other
// warps load, publish totals and fold carries by superblocks.
#pragma once
#include "ring.cuh"
#include "ring_pairs.h"

namespace torchreduce::gpu {

// What the kernel is compiled for.
template <class S, class Load, class Store> constexpr bool kRingPairs =
    kTwoInputs<S, Load, Store> && sizeof(element_of<Load>) <= 4;

#ifdef TR_BULK_COPIES

template <class S, class Load, class Rows = Ring<S, TypedLoad<element_of<Load>>, TypedStore<element_of<Load>>>>
struct RingPairs : Rows {
  using Acc = typename S::Acc;
  using E = element_of<Load>;
  using Rows::job, Rows::taken, Rows::loaded, Rows::summed, Rows::ready, Rows::empty, Rows::within, Rows::carry,
      Rows::all_read, Rows::next, Rows::free_stage;
  using Rows::kStages, Rows::kStageBytes, Rows::kResultWarps, Rows::kAhead, Rows::kEnds, Rows::kRunBytes, Rows::kWords,
      Rows::kRuns;
  static constexpr int kPlaceBytes = Rows::Shape::kPlaceBytes;  // of b, and behind it of a

  // What result warps ask of a job, at once.
  struct alignas(16) Place {
    int results;   // 0: there is no job, and no other comes
    int b, a;      // where the block tile of either begins in its place: where it does in a line of memory
    int position;  // of the block tile, as far as that is 0 or not
    E* out;        // of the lowest element of a whole block tile
  };
  Place places[kStages];

  // Whether every row of a that goes up in memory starts at a granule.
  __device__ static bool at_granules(const ScanCall& call) {
    uintptr_t together = reinterpret_cast<uintptr_t>(call.in.more[0]);
    TR_ROLLED
    for (int d = 0; d < call.layout.kept; ++d) together |= uintptr_t(call.more_strides[0][d]) * sizeof(E);
    return together % kGranule == 0;
  }

  // The stage of turn `it`, when its elements may be loaded: before its job may be put.
  __device__ int free_place(int it) {
    loaded.wait_before(it);
    all_read.wait_before(it);
    return it % kStages;
  }

  // As Rows::load. By one warp, whose lane 0 does it.
  __device__ void load(const ScanCall& call, ChainSpace<S>& space, char* stages, bool mirror) {
    const Layout& l = call.layout;
    const int64_t jobs = l.rows * space.tiles, far = mirror ? kBlockTile - 1 : 0, sign = mirror ? -1 : 1;
    const uintptr_t b = reinterpret_cast<uintptr_t>(call.in.data), a = reinterpret_cast<uintptr_t>(call.in.more[0]);
    const uintptr_t b_end = b + extent(l, l.in) * sizeof(E);
    const uintptr_t a_end = a + (extent(l, call.more_strides[0]) + (call.shifted ? sign : 0)) * sizeof(E);
    const bool loads = lane_id() == 0;
    int64_t ticket = loads ? int64_t(take_ticket(space.ticket)) : 0;
    for (int it = 0, ends = 0;; ++it) {
      const int s = it % kStages;
      if (it >= kStages) {
        if (next(it - kStages).row < 0) return;
        barrier_arrive(empty[s]);
      }
      if (!loads || ends == kEnds) continue;
      RingJob j{-1, 0, 0, 0, 0};
      uintptr_t a_in = 0;
      if (ticket < jobs) {
        j.row = ticket / space.tiles;
        j.tile = ticket - j.row * space.tiles;
        ticket = int64_t(take_ticket(space.ticket));
        const RowStart start = row_start(l, j.row);
        const int64_t first = j.tile * kBlockTile, left = l.length - first, step = sign * first - far;
        j.results = int(left < kBlockTile ? left : kBlockTile);
        j.in = b + (start.in + step) * sizeof(E);
        j.out = reinterpret_cast<uintptr_t>(call.out.values) + (start.out + step) * sizeof(E);
        a_in = a + (row_offset(l, call.more_strides[0], j.row) + step) * sizeof(E);
        char* const stage = stages + free_place(it) * kStageBytes;
        load(a_in, stage + kPlaceBytes, j, mirror, Load::has_a(call, first) ? 0 : 1, a_end, loaded[s]);
        load(j.in, stage, j, mirror, 0, b_end, loaded[s]);
      } else {
        ++ends;
      }
      this->free_stage(it);
      job[s] = j;
      places[s] = {j.results, int(j.in % kLine), int(a_in % kLine), j.tile > 0 ? kBlockTile : 0,
                   reinterpret_cast<E*>(j.out)};
      barrier_arrive(taken[s]);
    }
  }
  // Starts the load of a job's elements from position `first` of the block tile on, whose lowest one's address is `in`.
  __device__ static void load(uintptr_t in, char* place, const RingJob& j, bool mirror, int first, uintptr_t memory_end,
                              Barrier* loaded) {
    const int low = mirror ? kBlockTile - j.results : first, high = mirror ? kBlockTile - first : j.results;
    const BulkRange<E> range(in + low * sizeof(E), in + high * sizeof(E), memory_end);
    range.load(place, in, loaded);
  }

  // The elements of a lane's group, as they lie in memory.
  struct Words { uint32_t a[kWords], b[kWords]; };

  // Those of tile `tile` of the block tile in `stage`.
  template <bool kAtGranules> __device__ static Words words(const char* stage, const Place& place, int tile) {
    Words words;
    const int lane = lane_id(), in = kAtGranules ? 0 : place.a % kGranule;
    const char* const a_tile = stage + kPlaceBytes + (place.a - in) + tile * kRunBytes;
    with_word<kAligned>(kAtGranules ? kAligned : word_of(in),
                        [&](auto word) { shifted_words<word()>(a_tile, lane, in % 4 * 8, words.a); });
    shifted_words<kAligned>(stage + place.b + tile * kRunBytes, lane, 0, words.b);
    return words;
  }

  // The items of a lane's group of tile `tile` of the block tile, in the scan's order.
  template <bool kMirror> __device__ static void items(const S& op, const Words& words, const Place& place, int tile,
                                                       typename S::Item (&x)[kGroup]) {
    constexpr int mirror = kMirror ? kLanes - 1 : 0;
    E a[kGroup], b[kGroup];
    unpack(words.a, a);
    unpack(words.b, b);
    const int position = place.position | (tile ^ mirror) * kTile | (lane_id() ^ mirror) * kGroup;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int at = kMirror ? kGroup - 1 - i : i;
      x[i] = op.load(Pair<E>{a[at], b[at]}, i > 0 ? i : position);  // 0 or not
    }
  }

  // Whether result warp `warp` has results of a block tile that are written.
  template <bool kMirror> __device__ static bool has_part(const Place& place, int warp) {
    return (kMirror ? kResultWarps - 1 - warp : warp) * kRuns * kTile < place.results;
  }

  // Stores the results of tile `tile` of the block tile, as they lie in memory. By whole warps.
  template <bool kMirror> __device__ static void store(const Place& place, int tile, const uint32_t (&w)[kWords]) {
    const int lane = recomputed(lane_id()), at = tile * kTile + lane * kGroup;
    E* const to = global(place.out + at);
    const int first = kMirror ? kBlockTile - kGroup - at : at;  // of them, in the scan's order
    if constexpr (kHalfSectors<E>) {
      const bool both = (first | kGroup) + kGroup <= place.results;
      store_sectors(to, lane % 2 != 0, both, w);
      if (both) return;
    }
    if (first + kGroup <= place.results) {
#pragma unroll
      for (int i = 0; i < kWords; i += 4)
        store_granule(reinterpret_cast<Granule*>(to) + i / 4, {{w[i], w[i + 1], w[i + 2], w[i + 3]}});
    } else {
      E r[kGroup];
      unpack(w, r);
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        if (first + (kMirror ? kGroup - 1 - i : i) < place.results) to[i] = r[i];
    }
  }

  // kAtGranules: every block tile of a starts at one.
  template <bool kMirror, bool kAtGranules> __device__ void results(const S& op, const char* stages, int warp) {
    constexpr int mirror = kMirror ? kLanes - 1 : 0;
    const int lane = lane_id(), first = warp * kRuns;
    Acc groups[kAhead + 1][kRuns];  // what precedes each of the lane's in its tile, of this block tile and those ahead
    bool more = true;
    Turn<kStages> sums, turn;
#pragma unroll 1
    for (int it = -kAhead;; ++it) {
#pragma unroll
      for (int a = 0; a < kAhead; ++a)
#pragma unroll
        for (int k = 0; k < kRuns; ++k) groups[a][k] = groups[a + 1][k];
      if (more) {
        const int s = sums.place;
        taken.wait(sums);
        const Place ahead = places[s];
        more = ahead.results > 0;
        if (more) {
          if (has_part<kMirror>(ahead, warp)) {
            loaded.wait(sums);
            Acc total[kRuns];
#pragma unroll
            for (int k = 0; k < kRuns; ++k) {
              typename S::Item x[kGroup];
              items<kMirror>(op, words<kAtGranules>(stages + s * kStageBytes, ahead, first + k), ahead, first + k, x);
              groups[kAhead][k] = S::group(x);
            }
            Rows::template scan_groups<kMirror>(groups[kAhead], total);
#pragma unroll
            for (int k = 0; k < kRuns; ++k)
              if ((lane ^ mirror) == kLanes - 1) within[s][first + k] = total[k];
          }
          barrier_arrive(summed[s]);
          sums.advance();
        }
      }
      if (it < 0) continue;
      const int s = turn.place;
      const Place place = places[s];
      if (place.results == 0) return;
      if (has_part<kMirror>(place, warp)) {
        typename S::Item x[kRuns][kGroup];
#pragma unroll
        for (int k = 0; k < kRuns; ++k)
          items<kMirror>(op, words<kAtGranules>(stages + s * kStageBytes, place, first + k), place, first + k, x[k]);
        barrier_arrive(all_read[s]);
#pragma unroll
        for (int k = 0; k < kRuns; ++k) S::group(x[k]);
        ready.wait(turn);
        const typename S::Wide c = carry[s];
        Acc before[kRuns];
#pragma unroll
        for (int k = 0; k < kRuns; ++k) before[k] = within[s][first + k];
        join<S>(before, groups[0]);
        barrier_arrive(empty[s]);
#pragma unroll
        for (int k = 0; k < kRuns; ++k) {
          typename S::Result r[kGroup], up[kGroup];
          op.results(S::prefix(c, before[k]), x[k], r);
#pragma unroll
          for (int i = 0; i < kGroup; ++i) up[i] = r[kMirror ? kGroup - 1 - i : i];
          uint32_t w[kWords];
          round_group<E, S>(up, w);
          store<kMirror>(place, recomputed(first + k), w);
        }
      } else {
        barrier_arrive(all_read[s]);
        barrier_arrive(empty[s]);
      }
      turn.advance();
    }
  }
};

template <class S, class Load, class Store>
__global__ void __launch_bounds__(ring_threads(sizeof(element_of<Load>), sizeof(typename S::Acc)), 1)
    scan_ring_pairs(TR_GRID_CONSTANT ScanCall call, TR_GRID_CONSTANT RingPairsShape shape, void* workspace) {
#if !defined(__CUDA_ARCH__) || defined(TR_LARGE_BLOCKS)  // others have no room for its stages
  using P = RingPairs<S, Load>;
  TR_DYNAMIC_SHARED(stages, 128);
  __shared__ P ring;
  constexpr int kCarryWarp = P::kResultWarps + P::kTotalWarps, kCopyWarp = kCarryWarp + P::kCarryWarps;
  const int warp = int(threadIdx.x) / kLanes;
  const bool mirror = scan_stride(call.layout).in < 0;
  ChainSpace<S> space(workspace, call.layout.rows, shape.tiles);
  const S op{call.options};
  if (threadIdx.x == 0) ring.make_barriers();
  __syncthreads();
  if (warp < P::kResultWarps) {
    if (mirror) ring.template results<true, false>(op, stages, warp);
    else if (P::at_granules(call)) ring.template results<false, true>(op, stages, warp);
    else ring.template results<false, false>(op, stages, warp);
  } else if (warp < kCarryWarp) {
    if (mirror) ring.template publish_totals<true>(space);
    else ring.template publish_totals<false>(space);
  } else if (warp < kCopyWarp) {
    carries_by_superblocks<S>(
        ring, space, warp - kCarryWarp, [&](int it) { return ring.next(it); },
        [&](int64_t row) { return row_carry<S, Load>(call, row); });
  } else {
    ring.load(call, space, stages, mirror);
  }
#endif
}

#endif

}  // namespace torchreduce::gpu
