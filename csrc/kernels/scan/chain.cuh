// Scans of few long rows, where there is no ring: a block tile a block (tiles.cuh). Shared memory has the block tile's
// elements, in runs, and the totals of its tiles. A warp copies a run of neighbouring tiles and sums it; when one warp
// has found what precedes the block tile, each takes its run again, and stores its results. Block tiles of a row of few
// are a cluster: each sends its total to those after it, and waits for those before it.
#pragma once
#include "chain.h"
#include "kernels/common/cluster.cuh"
#include "tiles.cuh"

namespace torchreduce::gpu {

// ---- block tiles in shared memory --------------------------------------------------------------------------------------

// What a warp takes of a block tile: neighbouring tiles.
constexpr int kRunTiles = kFan / kWarps;
constexpr int kRun = kRunTiles * kTile;

// Elements of a block tile in shared memory: of several inputs, one behind the other, and those of a behind those of b.
// A warp's run lies there in the order of positions, or, if the row goes down in memory, in the opposite one: as it
// lies in memory.
template <class Load> constexpr int kStageBytes = kBlockTile * int(sizeof(element_of<Load>)) * kInputsOf<Load>;
// Whether every GPU has that much.
template <class Load> constexpr bool kAlwaysStaged = kStageBytes<Load> + kChainShared <= kPortableShared;

template <class E> __device__ __forceinline__ E* stage() {
  TR_DYNAMIC_SHARED(stages, 128);
  return reinterpret_cast<E*>(stages);
}

// Starts to copy positions [begin, end) of a run of N, of which the first one lies `offset` elements from in.data. By
// one warp, whose lanes have to wait for each other's copies. What stands in the place of other positions is no one's.
template <class Load, int N = kRun>
__device__ __forceinline__ void copy_run(const Source& in, int64_t offset, int64_t stride, bool vector_loads, int begin,
                                         int end, typename Load::Element* run) {
  using E = typename Load::Element;
  constexpr bool kTyped = Load::kWidth > 1;
  const int lane = lane_id();
  if constexpr (kTyped) {
    const E* const first = static_cast<const E*>(in.data) + offset;
    if (vector_loads & is_wide(first, stride) & (begin == 0)) {
      constexpr int kChunk = 16 / int(sizeof(E));
      const E* const lowest = stride < 0 ? first - (N - 1) : first;
      if (end == N) {
#pragma unroll
        for (int i = 0; i < N; i += kLanes * kChunk)
          copy_async<16>(run + i + lane * kChunk, lowest + i + lane * kChunk);
        return;
      }
      if (stride > 0) {
        TR_ROLLED
        for (int i = lane * kChunk; i + kChunk <= end; i += kLanes * kChunk) copy_async<16>(run + i, first + i);
        begin = end < 0 ? 0 : end / kChunk * kChunk;
      }
    }
  }
  const int step = stride < 0 ? -1 : 1;
  E* const to = stride < 0 ? run + (N - 1) : run;
  if constexpr (kTyped && sizeof(E) >= 4) {
    const E* const first = static_cast<const E*>(in.data) + offset;
#pragma unroll 4
    for (int i = begin + lane; i < end; i += kLanes) copy_async<sizeof(E)>(to + i * step, first + i * stride);
  } else {
    constexpr int kAtOnce = 8;  // on their way
    TR_ROLLED
    for (int i = begin + lane; i < end; i += kLanes * kAtOnce) {
      const int count = (end - i + kLanes - 1) / kLanes;
      E x[kAtOnce];
      Load::run(in, offset + i * stride, kLanes * stride, count, x);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j)
        if (j < count) to[(i + j * kLanes) * step] = x[j];
    }
  }
}

// Group number `group` of a run, as it lies there.
template <class E>
__device__ __forceinline__ void staged_words(const E* run, int group, uint32_t (&w)[kGroupWords<E>]) {
  if constexpr (kGroupWords<E> <= 4) {
    const auto p = reinterpret_cast<const Packed<uint32_t, kGroupWords<E>>*>(run)[group];
    memcpy(w, &p, sizeof w);
  } else {
    constexpr int kParts = kGroupWords<E> / 4;
    const Granule* const p = reinterpret_cast<const Granule*>(run) + group * kParts;
    const int swap = group / (8 / kParts) & 1;  // so that neighbouring lanes read different banks
#pragma unroll
    for (int k = 0; k < kParts; k += 2) {
      const Granule first = p[k + swap], second = p[k + 1 - swap];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        w[4 * k + i] = swap ? second.item[i] : first.item[i];
        w[4 * k + 4 + i] = swap ? first.item[i] : second.item[i];
      }
    }
  }
}
// The one of the positions from 8 * group on.
template <class E>
__device__ __forceinline__ void staged_group(const E* run, int group, int64_t stride, uint32_t (&w)[kGroupWords<E>]) {
  staged_words(run, stride < 0 ? kRun / kGroup - 1 - group : group, w);
}
// The same as elements, in the order of positions.
template <class E>
__device__ __forceinline__ void staged_elements(const E* run, int group, int64_t stride, E (&x)[kGroup]) {
  uint32_t w[kGroupWords<E>];
  staged_group(run, group, stride, w);
  if (sizeof(E) > 1 && stride < 0) reverse_words<E>(w);
  unpack(w, x);
  if (sizeof(E) == 1 && stride < 0) {
#pragma unroll
    for (int i = 0; i < kGroup / 2; ++i) {
      const E low = x[i];
      x[i] = x[kGroup - 1 - i];
      x[kGroup - 1 - i] = low;
    }
  }
}

// What a result takes in the place of an element, if it fits there.
template <class S, class Store> struct KeptResult { using type = typename S::Result; };
template <class S, class O> struct KeptResult<S, TypedStore<O>> { using type = O; };
template <class S, class O> struct KeptResult<S, EitherStore<O>> { using type = O; };
template <class S, class Store> using kept_result = typename KeptResult<S, Store>::type;
template <class S, class Load, class Store> constexpr bool kKeepsResults =
    !S::kIndexed && sizeof(kept_result<S, Store>) == sizeof(element_of<Load>);

// Stores the results of tile k of a run, of which `end` positions are there, by way of their elements' places: so that
// neighbouring lanes store neighbours, wherever they lie. By one warp. The run's position 0 is `first` of the row.
template <class S, class Load, class Store>
__device__ __forceinline__ void store_run_tile(const ScanCall& call, int64_t base, ScanStride stride, int64_t first,
                                               int k, int end, element_of<Load>* run,
                                               const typename S::Result (&r)[kGroup]) {
  using O = kept_result<S, Store>;
  O* const to = reinterpret_cast<O*>(run);
  const int lane = recomputed(lane_id()), shift = call.exclusive ? 1 : 0;
  auto place = [&](int position) { return stride.in < 0 ? kRun - 1 - position : position; };
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    const int p = place(k * kTile + lane * kGroup + i);
    if constexpr (std::is_same<O, typename S::Result>::value) to[p] = r[i];
    else to[p] = round_to<O>(r[i]);
  }
  warp_barrier();
  const int64_t room = call.layout.length - shift - first;
  const int last = room < end ? int(room) : end;
  int position = k * kTile + lane;
  if constexpr (kHasStart<S>)
    if (shift && first + position == 0) Store::one(call, base, S::start());
  int64_t at = base + (first + position + shift) * stride.out;
  TR_ROLLED
  for (int i = 0; i < kGroup; ++i, position += kLanes, at += kLanes * stride.out) {
    if (position >= last) continue;
    const O value = to[place(position)];
    if constexpr (std::is_same<O, typename S::Result>::value) Store::one(call, at, value);
    else global(static_cast<O*>(call.out.values))[at] = value;
  }
}

// Blocks of a multiprocessor at least: as many as have room for their stages, and for their registers.
template <class S, class Load> constexpr int kChainBlocks = [] {
  constexpr int kSize = sizeof(element_of<Load>);
  if (kInputsOf<Load> == 3) return kSize > 4 ? 2 : 4;  // not staged where rows are aligned
  if (kStageBytes<Load> > 64 << 10) return 1;
  if (Load::kWidth == 1 || kSize > 4) return sizeof(typename S::Acc) > 8 ? 1 : 2;
  if (kStageBytes<Load> > 32 << 10) return 3;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  if (S::kInputs == 2) return 3;  // before Hopper, nvcc needs a few registers more for these
#endif
  return S::kInputs == 1 && (kSize <= 2 || !S::kIndexed) && sizeof(typename S::Item) > 4 ? 3 : 4;
}();

// A block tile of a row. A warp has a run of it, which lies in shared memory if `staged`, else is read from memory each
// time.
template <class S, class Load, class Store> struct ChainTile {
  using Shape = ChainShape;
  using Acc = typename S::Acc;
  using Wide = typename S::Wide;
  using E = element_of<Load>;
  using One = std::conditional_t<(kInputsOf<Load> > 1), TypedLoad<E>, Load>;
  using Offset = std::conditional_t<is_pair<Load>, PairOffset, int64_t>;
  static constexpr int kThreads = gpu::kThreads, kBlocks = kChainBlocks<S, Load>;
  struct alignas(8) Slot { Acc total; };
  struct Shared {
    int64_t job;       // its ticket: each thread divides for itself, which takes fewer registers
    Acc totals[kFan];  // of tiles; then up to each
    Wide initial, carry;
    Slot earlier[scans::chain::kMostCluster];  // of a cluster: totals of block tiles
    Barrier arrived;                           // with these
  };

  const S op;
  const ScanCall& call;
  Shared& shared;
  ChainSpace<S> space;
  const ChainJob job;
  const RowStart start;
  const ScanStride stride;
  const bool granules, staged, clustered;
  const int warp, lane;
  const Offset from, step;  // where the row starts, and from position to position
  const int64_t begin;      // the run's first position
  const int end;            // positions that are there; not positive: none
  Acc upto[kRunTiles];      // of the lane's groups; then up to each in its tile

  __device__ __forceinline__ static int64_t job_of(const ScanCall&, const ChainShape&, void*, int64_t ticket) {
    return ticket;
  }
  __device__ __forceinline__ ChainTile(const ScanCall& call, const ChainShape& shape, void* workspace, Shared& shared)
      : op{call.options},
        call(call),
        shared(shared),
        space(workspace, call.layout.rows, shape.tiles),
        job(chain_job(shared.job, shape.tiles)),
        start(row_start(call.layout, job.row)),
        stride(scan_stride(call.layout)),
        granules(shape.granules),
        staged(kAlwaysStaged<Load> || shape.staged),
        clustered(shape.cluster > 1),
        warp(int(threadIdx.x) / kLanes),
        lane(lane_id()),
        from(input_start<Load>(call, start, job.row)),
        step(input_stride<Load>(call, stride)),
        begin(job.tile * kBlockTile + warp * kRun),
        end(call.layout.length - begin < kRun ? int(call.layout.length - begin) : kRun) {}
  // Where it lies in shared memory, of one input, as what `load` loads.
  template <class Typed> __device__ __forceinline__ auto staged_at(Typed, int input) const {
    return stage<typename Typed::Element>() + input * kBlockTile + warp * kRun;
  }
  // Starts to copy it there.
  __device__ __forceinline__ void copy() const {
    if constexpr (is_pair<Load>) {
      Source a = call.in;
      a.data = call.in.more[0];
      copy_run<One>(call.in, from.b + begin * step.b, step.b, granules, 0, end, staged_at(One(), 0));
      copy_run<One>(a, from.a + begin * step.a, step.a, granules, Load::has_a(call, begin) ? 0 : 1, end,
                    staged_at(One(), 1));
    } else {
#pragma unroll
      for (int k = 0; k < kInputsOf<Load>; ++k) {
        Source input = call.in;
        if (k > 0) input.data = call.in.more[k - 1];
        with_type<One>(input, [&](auto load) {
          copy_run<decltype(load)>(input, from + begin * step, step, granules, 0, end, staged_at(load, k));
        });
      }
    }
    end_copies();
  }
  // The lane's group of tile k of the run out of shared memory.
  __device__ __forceinline__ void get(int k, Loaded<Load>& group) const {
    const int number = k * kLanes + lane;
    if constexpr (is_pair<Load>) {
      staged_group(staged_at(One(), 0), number, step.b, group.b);
      staged_group(staged_at(One(), 1), number, step.a, group.a);
    } else {
      E part[kInputsOf<Load>][kGroup];
#pragma unroll
      for (int input = 0; input < kInputsOf<Load>; ++input)
        with_type<One>(call.in, [&](auto load) {
          typename decltype(load)::Element x[kGroup];
          staged_elements(staged_at(load, input), number, step, x);
#pragma unroll
          for (int i = 0; i < kGroup; ++i) part[input][i] = as_element<One>(x[i]);
        });
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        if constexpr (kInputsOf<Load> == 3) group.x[i] = {part[0][i], part[1][i], part[2][i]};
        else group.x[i] = part[0][i];
      }
    }
  }
  // The items of the lane's group of tile k, and their total.
  __device__ __forceinline__ typename S::Acc form(int k, typename S::Item (&items)[kGroup]) const {
    const int64_t first = begin + k * kTile + lane * kGroup;
    Loaded<Load> group;
    if (staged) get(k, group);
    else if constexpr (!kAlwaysStaged<Load>) load_group<S, Load>(call, granules, from, step, first, group);
    typename Load::Element x[kGroup];
    in_order<Load>(group, step, x);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) items[i] = op.load(x[i], first + i);
    if (const int count = end - k * kTile - lane * kGroup; count < kGroup) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        if (i >= count) items[i] = S::absent_item();
    }
    return S::group(items);
  }

#ifdef TR_CLUSTERS
  __device__ __forceinline__ void begin_cluster() const {
    if (threadIdx.x == 0) {
      barrier_init(&shared.arrived, 1);
      barriers_made();
      barrier_expect(&shared.arrived, uint32_t(job.tile) * uint32_t(sizeof(Slot)));
    }
    cluster_arrive();
  }
  // What precedes the block tile, whose total is `own`. By one warp, when all have begun.
  __device__ __forceinline__ Wide cluster_carry(Acc own) const {
    Wide carry = shared.initial;
    const int tile = int(job.tile);
    if (lane > tile && lane < int(space.tiles)) put(&shared.earlier[tile], &shared.arrived, Slot{own}, lane);
    if (tile > 0) {
      barrier_wait(&shared.arrived, 0);
      const Wide value = sklansky<S>(lane < tile ? S::widen(shared.earlier[lane].total) : S::wide_absent());
      carry = S::combine(carry, shuffle(value, tile - 1));
    }
    return carry;
  }
#endif

  __device__ __forceinline__ void sum() {
#ifdef TR_CLUSTERS
    if (clustered) begin_cluster();
#endif
    if (staged) copy();
    if (threadIdx.x == 0) shared.initial = row_carry<S, Load>(call, job.row);
    if (staged) wait_copies<0>();
    __syncthreads();
    TR_ROLLED  // lest several tiles' items take registers at once
        for (int k = 0; k < kRunTiles; ++k) {
      typename S::Item items[kGroup];
      const Acc total = form(k, items);
#pragma unroll
      for (int i = 0; i < kRunTiles; ++i) upto[i] = chosen(i == k, total, upto[i]);
    }
    sklansky<S>(upto, lane, kLanes);
#pragma unroll
    for (int k = 0; k < kRunTiles; ++k)
      if (lane == kLanes - 1) shared.totals[warp * kRunTiles + k] = upto[k];
  }
  __device__ __forceinline__ void carry() {
#ifdef TR_CLUSTERS
    if (clustered) cluster_wait();
#endif
    if (warp > 0) return;
    const Acc tiles_upto = shared.totals[lane] = sklansky<S>(shared.totals[lane]);
    const Acc own = shuffle(tiles_upto, kLanes - 1);
#ifdef TR_CLUSTERS
    const Wide found = clustered ? cluster_carry(own) : chain_carry<S>(space, job.row, job.tile, own, shared.initial);
#else
    const Wide found = chain_carry<S>(space, job.row, job.tile, own, shared.initial);
#endif
    if (lane == 0) shared.carry = found;
  }
  __device__ __forceinline__ void store() {
    TR_ROLLED
    for (int k = 0; k < kRunTiles && k * kTile < end; ++k) {
      const int t = recomputed(lane_id()), slot = recomputed(warp) * kRunTiles + k;
      Acc own = upto[0];
#pragma unroll
      for (int i = 1; i < kRunTiles; ++i) own = chosen(i == k, upto[i], own);
      const Acc left_tiles = shared.totals[slot ? slot - 1 : 0], left_lanes = shuffle(own, t ? t - 1 : 0);
      const Acc before = S::combine(slot ? left_tiles : S::absent(), t ? left_lanes : S::absent());
      typename S::Item items[kGroup];
      form(k, items);
      typename S::Result out[kGroup];
      op.results(S::prefix(shared.carry, before), items, out);
      if constexpr (kKeepsResults<S, Load, Store>) {
        const bool fits = !kEither<Store> || call.out.dtype != Dtype::F32,
                   wide = Store::kWidth > 1 && granules && (k + 1) * kTile <= end && !call.exclusive;
        if (staged && fits && !wide) {
          store_run_tile<S, Load, Store>(call, recomputed(start.out), scan_stride(call.layout), recomputed(begin), k,
                                         recomputed(end), staged_at(One(), 0), out);
          continue;
        }
      }
      if (k * kTile + lane * kGroup < end)
        store_results<S, Store, true>(call, granules, start.out, stride.out, begin + k * kTile + lane * kGroup, out);
    }
  }
};

}  // namespace torchreduce::gpu
