// Scans with indices of few long rows on GPUs with bulk copies, in one pass, as ring.cuh has those without:
// one block a multiprocessor stays for the whole call, and its warps have roles that only barriers in shared memory
// join:
//
//   loader   takes a ticket for each stage of a ring, and starts the bulk load of that tile when it is free
//   results  kResultWarps warps find the greatest of each tile, which they do kAhead of them before they turn it into
//            results, so that its carry is there by then; those they store themselves, by pairs
//   totals   one warp publishes the totals of tiles
//   carry    kCarryWarps warps in turn fold those by superblocks, and hand each tile of this block its carry
//
// As every order of combining gives the same, tiles begin where the indices of 16 positions begin a line of memory.
#pragma once
#include "extremes.cuh"
#include "ring.cuh"

namespace torchreduce::gpu {

// What the kernel is compiled for.
template <class S, class Load> constexpr bool kExtremePipelined = S::kIndexed && Load::kWidth > 1 &&
                                                                  is_float_type<element_of<Load>> &&
                                                                  sizeof(element_of<Load>) <= 4;

template <int kBytes> struct ExtremeRing {
  static constexpr int kPositions = extreme_tile(kBytes);        // of a tile
  static constexpr int kStageBytes = kPositions * kBytes + 128;  // a tile that starts anywhere in a line
  static constexpr int kStages = 6;
  static constexpr int kAhead = 4;  // float32 along one row, of a copy: 2 0.80, 3 0.89, 4 0.91
  static constexpr int kResultWarps = 16, kCarryWarps = 2;
  static constexpr int kPart = kPositions / kResultWarps;  // of a result warp
  static_assert((kResultWarps + kCarryWarps + 2) * kLanes == kExtremeRingThreads, "a warp for each role");
  static constexpr int kShared = kStages * kStageBytes;
  static_assert(kShared + (6 << 10) <= kRingShared, "the plan counts on no more");
};

#ifdef TR_BULK_COPIES

template <class S, class Load, class Store> struct ExtremePipeline {
  using Acc = typename S::Acc;
  using R = Record<S>;
  using Key = typename R::Key;
  using E = typename Load::Element;
  using Ring = ExtremeRing<sizeof(E)>;
  static constexpr int kStages = Ring::kStages, kStageBytes = Ring::kStageBytes, kAhead = Ring::kAhead;
  static constexpr int kResultWarps = Ring::kResultWarps, kCarryWarps = Ring::kCarryWarps;
  static constexpr int kPositions = Ring::kPositions, kPart = Ring::kPart, kChunks = kPart / kChunk;
  static constexpr int K = extreme_chunks(sizeof(E));  // that are scanned at a time

  // A tile on its way.
  struct Job {
    int64_t row, tile;  // row -1: there is none, and no other comes
    uintptr_t in;       // address of the lowest element of a whole tile
    int64_t out;        // where the results of its first position lie
    int lead, end;      // positions [begin(), end) are there, of those of a whole tile
    Pairs in_pairs, out_pairs;

    __device__ __forceinline__ int begin() const { return tile ? 0 : lead; }
    __device__ __forceinline__ int64_t first() const { return tile * kPositions - lead; }
  };

  Barrier taken[kStages], loaded[kStages], summed[kStages], ready[kStages], empty[kStages];
  Job job[kStages];
  Acc total[kStages][kResultWarps];   // of each warp's part; absent where what precedes it is known to be greater
  Acc within[kStages][kResultWarps];  // what precedes each in its tile
  Acc carry[kStages];

  __device__ void make_barriers() {
    for (int s = 0; s < kStages; ++s) {
      barrier_init(&taken[s], 1);
      barrier_init(&loaded[s], 1);
      barrier_init(&summed[s], kResultWarps * kLanes);
      barrier_init(&ready[s], 2 * kLanes);                   // totals, carry
      barrier_init(&empty[s], (kResultWarps + 2) * kLanes);  // totals, carry, results
    }
    barriers_made();
  }
  // As those of Pipeline.
  __device__ int free_stage(int it) {
    const int s = it % kStages;
    if (it >= kStages) barrier_wait(&empty[s], (it / kStages - 1) & 1);
    return s;
  }
  __device__ const Job& next(int it) {
    barrier_wait(&taken[it % kStages], it / kStages & 1);
    return job[it % kStages];
  }

  // ---- roles ----

  // As Pipeline::load.
  __device__ void load(const ScanCall& call, ChainSpace<S>& space, char* stages, bool down) {
    const Layout& l = call.layout;
    const int64_t jobs = l.rows * space.tiles;
    const uintptr_t data = reinterpret_cast<uintptr_t>(call.in.data), memory_end = data + extent(l, l.in) * sizeof(E);
    int it = 0;
    for (int64_t ticket = int64_t(take_ticket(space.ticket)), next; ticket < jobs; ticket = next) {
      next = int64_t(take_ticket(space.ticket));
      Job j;
      j.row = ticket / space.tiles;
      j.tile = ticket - j.row * space.tiles;
      const RowStart start = row_start(l, j.row);
      PairedRow<Load, Store> own;
      own.set(call, true, start, INT64_MAX);
      j.lead = own.lead;
      j.in_pairs = own.in_pairs;
      j.out_pairs = own.out_pairs;
      const int64_t left = l.length - j.first(), steps = down ? -j.first() : j.first();
      if (left <= 0) continue;  // there is one tile more than that only for other leads, and nobody waits for it
      j.in = data + (start.in + steps - (down ? kPositions - 1 : 0)) * sizeof(E);
      j.out = start.out + steps;
      j.end = int(left < kPositions ? left : kPositions);
      const BulkRange<E> range(j.in + (down ? kPositions - j.end : j.begin()) * sizeof(E),
                               j.in + (down ? kPositions - j.begin() : j.end) * sizeof(E), memory_end);
      const int s = free_stage(it);
      job[s] = j;
      barrier_arrive(&taken[s]);
      range.load(stages + s * kStageBytes, j.in, &loaded[s]);
      ++it;
    }
    for (int end = 0; end < kCarryWarps; ++end, ++it) {  // one for each of those warps, which look at their own stages
      const int s = free_stage(it);
      job[s].row = -1;
      barrier_arrive(&taken[s]);
    }
  }

  // Of what the result warps have found: publishes the tile's total, and keeps what precedes each one's part.
  __device__ void publish_totals(ChainSpace<S>& space) {
    const int slot = lane_id() % kResultWarps;
    for (int it = 0; next(it).row >= 0; ++it) {
      const int s = it % kStages;
      barrier_wait(&summed[s], it / kStages & 1);
      const Acc upto = sklansky<S>(total[s][slot], slot, kResultWarps);
      if (lane_id() == kResultWarps - 1) space.total(job[s].row, job[s].tile).publish(upto);
      const Acc before = shuffle(upto, slot ? slot - 1 : 0);
      if (lane_id() == slot) within[s][slot] = chosen(slot > 0, before, S::absent());
      barrier_arrive(&ready[s]);
      barrier_arrive(&empty[s]);
    }
  }

  // Carries are looked for no sooner than the totals before them are to be expected, when this tile has its own: they
  // are in good time then, and memory is not kept busy.
  __device__ void carries(ChainSpace<S>& space, int warp) {
    auto expected = [&](int it) -> const Job& {
      const Job& j = next(it);
      if (j.row >= 0) barrier_wait(&summed[it % kStages], it / kStages & 1);
      return j;
    };
    carries_by_superblocks<S>(*this, space, warp, expected, [](int64_t) { return S::wide_absent(); });
  }

  // The element at a position of the tile in stage `s`, which may be none of the row's.
  __device__ __forceinline__ const E* staged(const char* stages, int s, int at, bool down) const {
    return reinterpret_cast<const E*>(stages + s * kStageBytes + job[s].in % kLine) + (down ? kPositions - 1 - at : at);
  }
  // The pairs of N chunks, of which the lane's first one begins at `p`.
  template <int N>
  __device__ __forceinline__ static void get_pairs(const E* p, Pairs together, bool down, PairOf<Load> (&pairs)[N]) {
    using Words = decltype(pairs[0].w);
    if (together == Pairs::Up) {
#pragma unroll
      for (int k = 0; k < N; ++k) pairs[k].w = *reinterpret_cast<const Words*>(p + k * kChunk);
    } else if (together == Pairs::Down) {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        pairs[k].w = *reinterpret_cast<const Words*>(p - k * kChunk - 1);
        pairs[k].turn(true);
      }
    } else {
      const int step = down ? -1 : 1;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const E x[2] = {p[step * k * kChunk], p[step * (k * kChunk + 1)]};
        memcpy(&pairs[k], x, sizeof x);
      }
    }
  }

  // The key of what is known to precede the tiles of a row that this block has not turned into results yet.
  struct Known {
    int64_t row;
    Key key;
  };

  // Finds the greatest of part `warp` of the tile of turn `it`; false if there is none.
  __device__ __forceinline__ bool sum(const S& op, const char* stages, int it, int warp, bool down,
                                      const Known& known) {
    const Job& j = next(it);
    if (j.row < 0) return false;
    const int s = it % kStages, lane = lane_id(), part = warp * kPart;
    if (part < j.end) {
      barrier_wait(&loaded[s], it / kStages & 1);
      const E* const p = staged(stages, s, part + 2 * lane, down);
      const Pairs together = j.in_pairs;
      const unsigned lead = part ? 0 : j.begin();
      Key upto[kChunks], most = R::Order::kLowest;  // of the lane's pairs
      {
        PairOf<Load> pairs[kChunks];
        get_pairs(p, together, down, pairs);
#pragma unroll
        for (int k = 0; k < kChunks; ++k) {
          Key key[2];
          pairs[k].template get_keys<S>(op, key);
          if (k == 0) {
#pragma unroll
            for (int i = 0; i < 2; ++i)
              if (unsigned(2 * lane + i) < lead) key[i] = R::Order::kLowest;
          }
          upto[k] = key[0] > key[1] ? key[0] : key[1];
          most = most > upto[k] ? most : upto[k];
        }
      }
      Acc found = S::absent();
      if (known.row != j.row || ballot(most >= known.key)) {
        const Key greatest = warp_most(most);
        int latest = 0;
#pragma unroll
        for (int k = 1; k < kChunks; ++k) latest = upto[k] == greatest ? k : latest;
        PairOf<Load> pair[1];
        Key key[2];
        get_pairs(p + (down ? -latest : latest) * kChunk, together, down, pair);
        pair[0].template get_keys<S>(op, key);
        const int mine = latest * kChunk + 2 * lane + (key[1] == greatest);
        const int where = part + warp_most(most == greatest ? mine : 0);
        found = op.load(*staged(stages, s, where, down), j.first() + where);
      }
      if (lane == 0) total[s][warp] = found;
    }
    barrier_arrive(&summed[s]);
    return true;
  }

  // Turns part `warp` of the tile of turn `it` into its results; false if there is none.
  __device__ __forceinline__ bool form(const S& op, const ScanCall& call, const char* stages, int it, int warp,
                                       bool down, Known& known) {
    const Job& j = next(it);
    if (j.row < 0) return false;
    const int s = it % kStages, lane = lane_id(), part = warp * kPart;
    if (part >= j.end) {
      barrier_arrive(&empty[s]);
      return true;
    }
    const int begin = part ? 0 : j.begin(), end = j.end - part < kPart ? j.end - part : kPart;
    const bool whole = begin == 0 && end == kPart;
    const Pairs together = j.in_pairs;
    PairedRow<Load, Store> own{};
    own.out_pairs = j.out_pairs;
    const int64_t out = j.out;
    auto move_to = [&](int64_t offset) {  // from arguments, so that compilers see what memory it is
      own.values = global(static_cast<E*>(call.out.values)) + offset;
      own.indices = global(call.out.indices) + offset;
    };
    barrier_wait(&ready[s], it / kStages & 1);
    R carry = R::of(op, call, S::combine(this->carry[s], within[s][warp]));
    known = {j.row, carry.key};
    if (whole && own.out_pairs != Pairs::Apart && total[s][warp].key < carry.key) {  // no record
      barrier_arrive(&empty[s]);
      move_to(out + (down ? 1 - part - kPart : part) + 2 * lane);  // from the lowest one on
      const E value = R::element(carry.bits);
#pragma unroll 8
      for (int c = 0; c < kChunks; ++c) own.store_up(c * kChunk, value, value, carry.index, carry.index);
      return true;
    }
    const bool up = whole && own.out_pairs == Pairs::Up && call.layout.length <= kNearLength;
    move_to(out + (down ? -(part + 2 * lane) : part + 2 * lane));
#pragma unroll 1
    for (int c = 0; c < kChunks; c += K) {
      PairOf<Load> pairs[K];
      get_pairs(staged(stages, s, part + c * kChunk + 2 * lane, down), together, down, pairs);
      const auto found = scan_chunks<K, K, true>(op, call, pairs, kLanes, {c ? 0u : unsigned(begin)},
                                                 {call.index_of(j.first() + part + c * kChunk)}, carry);
      if (up) {
        own.store_up(found);
      } else {
        const Present present{begin, end};
#pragma unroll
        for (int k = 0; k < K; ++k)
          own.store(call, k * kChunk, present, (c + k) * kChunk + 2 * lane, found.value(k, 0), found.value(k, 1),
                    found.index(k, 0), found.index(k, 1));
      }
      own.move_out(call, K * kChunk);
    }
    barrier_arrive(&empty[s]);
    return true;
  }

  __device__ void results(const S& op, const ScanCall& call, const char* stages, int warp, bool down) {
    Known known = {-1, R::Order::kLowest};
    bool more = true;
#pragma unroll 1
    for (int it = -kAhead;; ++it) {
      if (more) more = sum(op, stages, it + kAhead, warp, down, known);
      if (it >= 0 && !form(op, call, stages, it, warp, down, known)) return;
    }
  }
};

template <class S, class Load, class Store>
__global__ void __launch_bounds__(kExtremeRingThreads, 1)
    scan_ring_extremes(TR_GRID_CONSTANT ScanCall call, TR_GRID_CONSTANT RingExtremesShape shape, void* workspace) {
#if !defined(__CUDA_ARCH__) || defined(TR_LARGE_BLOCKS)  // others have no room for its stages
  using P = ExtremePipeline<S, Load, Store>;
  TR_DYNAMIC_SHARED(stages, 128);
  __shared__ P pipeline;
  constexpr int kCarryWarp = P::kResultWarps + 1;
  const int warp = int(threadIdx.x) / kLanes;
  const bool down = scan_stride(call.layout).in < 0;
  ChainSpace<S> space(workspace, call.layout.rows, shape.tiles);
  const S op{call.options};
  if (threadIdx.x == 0) pipeline.make_barriers();
  __syncthreads();
  if (warp < P::kResultWarps) pipeline.results(op, call, stages, warp, down);
  else if (warp < kCarryWarp) pipeline.publish_totals(space);
  else if (warp < kCarryWarp + P::kCarryWarps) pipeline.carries(space, warp - kCarryWarp);
  else if (lane_id() == 0) pipeline.load(call, space, stages, down);
#endif
}

#endif

}  // namespace torchreduce::gpu
