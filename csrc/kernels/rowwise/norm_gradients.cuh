// The gradients of norms together with those of their weights and biases: g and x are read once.
//
// Serves: float32 and 16-bit floats, rows that a block, or a cluster of blocks, has several of in shared memory, on
// GPUs with bulk copies (norm_gradients.h). A block, or a cluster, of which each block has some leaves of every row,
// takes units: the rows of a run of residues of a leaf of rows, those of a residue one after the other, in batches,
// which are copied ahead. Warps have one of three parts, each in step with the others by barriers: those that sum along
// rows take the words of their lanes through a leaf of a row; the last one starts the copies, and makes of these sums
// what the row comes to; a thread of those that write has 8 columns, for their gradients and for their sums over the
// rows.
//
// Rows that start anywhere (kAnywhere) are copied with all of the granules that they touch. A thread reads its columns
// from two neighbouring granules, of which it takes what is its own. Of the gradients it stores a whole granule of
// memory, of its own and of what the lane before it has; what no lane has a whole granule of goes element by element.
// Rows of one residue start at the same byte of a granule, since kResidues rows are whole granules.
//
// Shared memory, dynamic: batches of rows of g and x; weights; sums of units; sums of the warps, those of a cluster in
// each of its blocks; the rows' statistics. Static: what rows come to; barriers.
#pragma once
#include "anywhere_row.cuh"
#include "held_granules.cuh"
#include "kernels/tile/bulk_run.cuh"
#include "norm_gradients.h"
#include "states.cuh"

namespace torchreduce::gpu {

#ifdef TR_BULK_COPIES

// The batches of a block's units, one after the other.
struct NormBatches {
  const int rows, size, run, units;  // of the call; of a batch; residues of a unit
  int unit, residue, step, steps;    // steps of a residue: batches
  int first;                         // row of the unit's first residue
  const int units_at_once;           // of the grid

  __device__ NormBatches(const NormGradientsShape& shape, int64_t rows, int size)
      : rows(int(rows)),
        size(size),
        run(shape.run),
        units(int(shape.units)),
        unit(int(blockIdx.x) / shape.cluster),
        units_at_once(int(gridDim.x) / shape.cluster) {
    enter();
  }
  __device__ bool done() const { return unit >= units; }
  // The row of the batch's place b; rows from `rows` on are not there.
  __device__ int row(int b) const { return first + residue + (step * size + b) * kResidues; }
  __device__ bool starts_residue() const { return step == 0; }
  __device__ bool ends_residue() const { return step == steps - 1; }
  __device__ bool ends_unit() const { return ends_residue() && residue == run - 1; }
  __device__ void advance() {
    if (++step < steps) return;
    step = 0;
    if (++residue < run) return;
    unit += units_at_once;
    enter();
  }

 private:
  __device__ void enter() {
    const int runs = kResidues / run, leaf = unit / runs, left = rows - leaf * kLeaf;
    first = leaf * kLeaf + (unit - leaf * runs) * run;
    residue = step = 0;
    steps = ((left < kLeaf ? left : kLeaf) + size * kResidues - 1) / (size * kResidues);
  }
};

// What a thread has of its columns' sums: of a residue, and of those before it in the unit, by the levels of the tree
// over them. All but the first of these are in shared memory.
template <int kSums> struct ColumnSums {
  using Four = Packed<float, 4>;
  float residue[kSums][kGroup], before[kGroup];
  Four* const kept;  // [level, sum, half][thread]
  const int threads;

  __device__ ColumnSums(float* kept, int threads) : kept(reinterpret_cast<Four*>(kept)), threads(threads) {}
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (auto& sums : residue)
#pragma unroll
      for (float& sum : sums) sum = -0.0f;
  }
  // Puts the residue, number `i` of the unit, into the contiguous tree, which is in `residue` after the last.
  __device__ __forceinline__ void push(int i) {
    if ((i & 1) == 0) {
#pragma unroll
      for (int c = 0; c < kGroup; ++c) before[c] = residue[0][c];
      return keep<1>(0);
    }
#pragma unroll
    for (int c = 0; c < kGroup; ++c) residue[0][c] = before[c] + residue[0][c];
    add<1>(0);
    int level = 1;
#pragma unroll 1
    for (; i >> level & 1; ++level) add<0>(level);
    if (level < norm_gradients::levels(kSums)) keep<0>(level);
  }

 private:
  __device__ Four& place(int level, int s, int half) const {
    return kept[((level * kSums + s - 1) * 2 + half) * threads + int(threadIdx.x)];
  }
  template <int kFirst> __device__ __forceinline__ void keep(int level) {
#pragma unroll
    for (int s = kFirst; s < kSums; ++s)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Four v;
#pragma unroll
        for (int k = 0; k < 4; ++k) v.item[k] = residue[s][4 * half + k];
        place(level, s, half) = v;
      }
  }
  template <int kFirst> __device__ __forceinline__ void add(int level) {
#pragma unroll
    for (int s = kFirst; s < kSums; ++s)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Four v = load_wide(&place(level, s, half));
#pragma unroll
        for (int k = 0; k < 4; ++k) residue[s][4 * half + k] = v.item[k] + residue[s][4 * half + k];
      }
  }
};

// 8 elements as they are stored, in granules.
template <class E> __device__ __forceinline__ void round_columns(const float (&v)[kGroup],
                                                                 Granule (&g)[kGroup / kPerGranule<E>]) {
  if constexpr (sizeof(E) == 2) {
    g[0] = HeldGranules<E, 1, true, true>::template rounded<false>(v);
  } else {
    E x[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) x[i] = round_to<E>(v[i]);
    memcpy(g, x, sizeof x);
  }
}

// The first `have` of four sums.
__device__ __forceinline__ void store_some(float* to, const Packed<float, 4>& v, int have) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (i < have) to[i] = v.item[i];
}

template <class Op, class E, bool kAnywhere> struct NormGradients {
  using F = float;
  static constexpr int kSums = Op::kSums, kStats = Op::kStats, kSize = int(sizeof(E));
  static constexpr bool kCentered = kStats == 3;
  static constexpr int kBatch = norm_gradients::batch(kSize), kWord = norm_gradients::word(kSize);
  static constexpr int kParts = norm_gradients::parts(kSize), kStages = norm_gradients::kStages;
  static constexpr int kTurns = norm_gradients::kTurns;
  static constexpr int kLoaders = kAnywhere ? 2 * kBatch : 1;  // lanes that start copies
  static constexpr int kColumnSums = kCentered ? 2 : 1, kGranules = kGroup / kPerGranule<E>;
  using Sums = WeightSums<F, kCentered>;
  using Four = Packed<F, 4>;
  struct alignas(8) Partial { F sum[kSums]; };
  static_assert(sizeof(Partial) == norm_gradients::kPartialBytes);

  const RowwiseKernelCall& call;
  const int cluster, first;          // blocks that have a row; the first column of this one
  const int n, leaves, granules;     // of a row, what the block has
  const int slot;                    // elements that there is room for of a row
  const int first_leaf, row_leaves;  // the block's first, and how many a row has
  const int writers;                 // the first threads of the block
  E* const tiles;                    // [stage][row][input][column]
  F* const weights;                  // [column]
  F* const columns;                  // of ColumnSums
  const int holders;                 // the first of the writers, which have columns
  Partial* const sums;               // [turn][row][leaf][part], at the same place in all blocks of a cluster
  F* const stats;                    // [stage][statistic][row]
  typename Op::Row* const rows;      // [turn][row]

  __device__ NormGradients(const RowwiseKernelCall& call, const NormGradientsShape& shape, char* dynamic,
                           typename Op::Row* rows)
      : call(call),
        cluster(shape.cluster),
        first(int(blockIdx.x) % cluster * shape.stride),
        n(int(blockIdx.x) % cluster == cluster - 1 ? int(call.length) - first : shape.stride),
        leaves((n + kLeaf - 1) / kLeaf),
        granules((n + kPerGranule<E> - 1) / kPerGranule<E>),
        slot(norm_gradients::slot(shape.columns * kSize, kAnywhere) / kSize),
        first_leaf(first / kLeaf),
        row_leaves((int(call.length) + kLeaf - 1) / kLeaf),
        writers(shape.writers),
        tiles(reinterpret_cast<E*>(dynamic)),
        weights(reinterpret_cast<F*>(tiles + kStages * kBatch * 2 * slot)),
        columns(weights + shape.columns),
        holders(norm_gradients::holders(kSize, shape.columns, shape.writers)),
        sums(reinterpret_cast<Partial*>(columns + holders * kGroup * norm_gradients::kept_sums(kColumnSums))),
        stats(reinterpret_cast<F*>(sums + kTurns * norm_gradients::partial_sums(kSize, row_leaves))),
        rows(rows) {}

  // A row of an input, from the granule on in which it starts.
  __device__ E* tile(int stage, int b, int k) const { return tiles + ((stage * kBatch + b) * 2 + k) * slot; }
  // The byte of that granule at which rows of the residue start.
  __device__ int start(const NormBatches& batches, int k) const {
    if (!kAnywhere) return 0;
    const uint32_t pitch = uint32_t(call.stride[0].in[k]) * kSize, base = uint32_t(uintptr_t(call.in[k]));
    return int((base + uint32_t(batches.row(0)) * pitch) % kGranule);
  }
  // The granule of a row at its granule number `place`.
  __device__ __forceinline__ static Granule granule_at(const E* tile, int place, int start) {
    const Granule* const from = reinterpret_cast<const Granule*>(tile) + place;
    if constexpr (kAnywhere) return part_from<E>(load_wide(from), load_wide(from + 1), start);
    else return load_wide(from);
  }
  __device__ Partial* sums_of(int turn, int b, int leaf) const {  // of the row's leaves
    return sums + ((turn * kBatch + b) * row_leaves + leaf) * kParts;
  }
  // The granule of number q of a thread that writes.
  __device__ int granule(int q) const { return int(threadIdx.x) + q * writers; }
  // What a row of a stage comes with, at its place there.
  __device__ RowMemory memory(int stage) const {
    RowMemory m;
    m.stats = stats + stage * kStats * kBatch;
    m.plane = kBatch;
    return m;
  }
  template <class T> __device__ static T* moved(T* base, int row, int64_t pitch) {
    return reinterpret_cast<T*>(multiply_add(row, int(pitch) * kSize, int64_t(base)));
  }

  // By the first `threads` threads.
  __device__ __forceinline__ void load_weights(int threads) const {
    for (int i = threadIdx.x; i < n; i += threads)
      weights[i] = !call.weight                      ? F(1)
                   : call.weight_dtype == Dtype::F32 ? static_cast<const F*>(call.weight)[first + i]
                                                     : convert<F>(static_cast<const E*>(call.weight)[first + i]);
  }
  // Starts the copies of a batch, by one warp, on whose barrier each lane arrives once more with what it has of the
  // rows' statistics: that is the result.
  __device__ __forceinline__ F load(const NormBatches& batches, int stage, Barrier* loaded) const {
    const int lane = lane_id(), row = batches.row(lane % kBatch);
    F own = 0;
    if (lane < kBatch * kStats && row < batches.rows)
      own = static_cast<const F*>(call.memory.stats)[lane / kBatch * call.memory.plane + row];
    if (lane >= kLoaders) return own;
    if constexpr (kAnywhere) {
      load_row(lane / kBatch, stage, lane % kBatch, row, row < batches.rows, loaded);
    } else {
      const uint32_t bytes = uint32_t(n * kSize);
      int there = 0;
#pragma unroll
      for (int b = 0; b < kBatch; ++b) there += batches.row(b) < batches.rows;
      barrier_expect(loaded, uint32_t(2 * there) * bytes);
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
#pragma unroll
        for (int k = 0; k < 2; ++k)
          if (b < there)
            bulk_load(tile(stage, b, k),
                      moved(static_cast<const E*>(call.in[k]) + first, batches.row(b), call.stride[0].in[k]), bytes,
                      loaded);
    }
    return own;
  }
  // The same of a row of input k, which may not be there, by one thread: all granules that it touches. What ends in the
  // same granule as the memory is moved one by one.
  __device__ __forceinline__ void load_row(int k, int stage, int b, int row, bool there, Barrier* loaded) const {
    const E* const in = static_cast<const E*>(k > 0 ? call.in[1] : call.in[0]) + first;
    const uintptr_t from =
        reinterpret_cast<uintptr_t>(moved(in, row, k > 0 ? call.stride[0].in[1] : call.stride[0].in[0]));
    const BulkRange<E> r(from, from + uintptr_t(n * kSize),
                         reinterpret_cast<uintptr_t>(k > 0 ? call.end[1] : call.end[0]));
    char* const to = reinterpret_cast<char*>(tile(stage, b, k));
    const uint32_t bytes = there ? uint32_t(r.to - r.from) : 0;
    if (there && r.to < r.end) {
#pragma unroll 1
      for (uintptr_t at = r.to > r.begin ? r.to : r.begin; at < r.end; at += kSize)
        *reinterpret_cast<E*>(to + (at - r.from)) = *global(reinterpret_cast<const E*>(at));
      bulk_fence();
    }
    barrier_expect(loaded, bytes);
    if (bytes > 0) bulk_load(to, reinterpret_cast<const void*>(r.from), bytes, loaded);
  }
  __device__ __forceinline__ void keep_stats(F own, int stage, Barrier* loaded) const {
    if (lane_id() < kBatch * kStats) stats[stage * kBatch * kStats + lane_id()] = own;
    barrier_arrive(loaded);
  }

  // The sums of a stage's rows, by parts of leaves, to the turn's of all blocks that have the rows. Of rows that are
  // not there they mean nothing. By number `warp` of `warps`, whose lanes arrive at the barrier.
  __device__ __forceinline__ void sum_words(const NormBatches& batches, int stage, int turn, int warp, int warps,
                                            Barrier* summed) const {
    using Word = Packed<uint32_t, 2>;
    constexpr int kBytes = int(sizeof(Word));
    const int lane = lane_id(), before[2] = {start(batches, 0), start(batches, 1)};
#pragma unroll 1
    for (int task = warp; task < kBatch * kParts * leaves; task += warps) {
      const int b = task % kBatch, part = task / kBatch % kParts, leaf = task / (kBatch * kParts);
      const int first = leaf * kLeaf + (part * kLanes + lane) * kWord, count = n - leaf * kLeaf;
      const auto given = Op::given(call.options, memory(stage), b);
      const auto seen = Op::seen(F(0), count, given);
      const Word* from[2];
#pragma unroll
      for (int k = 0; k < 2; ++k)
        from[k] = reinterpret_cast<const Word*>(tile(stage, b, k) + first) + before[k] / kBytes;
      F acc[kWord][kSums];
#pragma unroll
      for (auto& each : acc)
#pragma unroll
        for (F& sum : each) sum = F(-0.0);
      // The first `have` elements of the word `at` elements further on.
      const auto chunk = [&](int at, int have) {
        E element[2][kWord];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          Word own = from[k][at / kWord];
          if constexpr (kAnywhere) own = part_from<E>(own, from[k][at / kWord + 1], before[k] % kBytes);
          unpack<E, kWord>(own.item, element[k]);
        }
        const auto w = *reinterpret_cast<const Packed<F, kWord>*>(weights + first + at);
#pragma unroll
        for (int i = 0; i < kWord; ++i) {
          const F both[2] = {convert<F>(element[0][i]), convert<F>(element[1][i])};
          if (i < have) Op::step(acc[i], both, w.item[i], seen, given);
        }
      };
      if (count >= kLeaf) {
#pragma unroll
        for (int c = 0; c < kLeaf / kResidues; ++c) chunk(c * kResidues, kWord);
      } else {
        int at = 0;
#pragma unroll 2
        for (; at + kWord <= n - first; at += kResidues) chunk(at, kWord);
        if (kAnywhere && at < n - first) chunk(at, n - first - at);
      }
      Partial own;
#pragma unroll
      for (int s = 0; s < kSums; ++s) {
#pragma unroll
        for (int d = 1; d < kWord; d *= 2)
#pragma unroll
          for (int i = 0; i < kWord; i += 2 * d) acc[i][s] = acc[i][s] + acc[i + d][s];
        own.sum[s] = acc[0][s];
#pragma unroll
        for (int d = 1; d < kLanes; d *= 2) own.sum[s] = own.sum[s] + shuffle_across(own.sum[s], d);
      }
      Partial* const to = sums_of(turn, b, first_leaf + leaf) + part;
#ifdef TR_CLUSTERS
      if (cluster > 1) {
        if (lane < cluster) put(to, summed, own, lane);
        continue;
      }
#endif
      if (lane == 0) *to = own;
    }
    barrier_arrive(summed);
  }
  // Until these sums are there, by one warp.
  __device__ __forceinline__ void await_sums(Barrier* summed, uint32_t parity) const {
    constexpr int kBytes = kBatch * kParts * int(sizeof(Partial));
    if (cluster > 1 && lane_id() == 0) barrier_expect(summed, uint32_t(kBytes * row_leaves));
    barrier_wait(summed, parity);
  }
  // What the rows come to, of these sums, by one warp.
  __device__ __forceinline__ void total_rows(int stage, int turn) const {
    const int lane = lane_id(), all = row_leaves * kParts;  // at most a warp's lanes
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      Partial own;
#pragma unroll
      for (F& sum : own.sum) sum = F(-0.0);
      if (lane < all) own = sums_of(turn, b, 0)[lane];
#pragma unroll
      for (int d = 1; d < kLanes; d *= 2)
        if (d < all)
#pragma unroll
          for (F& sum : own.sum) sum = sum + shuffle_across(sum, d);
      const auto given = Op::given(call.options, memory(stage), b);
      const int64_t length = call.length;
      const auto row =
          Op::row(Op::state(F(0), own.sum, length), length, given, call.options, [](int64_t) { return F(0); });
      if (lane == 0) rows[turn * kBatch + b] = row;
    }
  }
  // Writes the rows of a batch, and adds them to the thread's columns.
  __device__ __forceinline__ void write_rows(const NormBatches& batches, int stage, int turn,
                                             F (&columns)[kColumnSums][kGroup]) const {
    const int before[2] = {start(batches, 0), start(batches, 1)};
    const AnywhereRow<E> out(moved(static_cast<const E*>(call.out), batches.row(0), call.stride[0].out), n);
#pragma unroll(kAnywhere ? 1 : kBatch)
    for (int b = 0; b < kBatch; ++b) {
      const int number = batches.row(b);
      if (number >= batches.rows) break;
      const auto row = rows[turn * kBatch + b];
      typename Sums::Given given{F(0), F(0), F(0)};  // the row's own, so that elements are normalized once
      if constexpr (kCentered) given = {row.given.high, row.given.low, row.given.r};
      else given.r = row.r;
      F y[kGroup];
#pragma unroll
      for (int q = 0; q < kGranules; ++q) {
        E g[kPerGranule<E>], x[kPerGranule<E>];
        const int place = granule(q) < granules ? granule(q) : 0;
        elements_of(granule_at(tile(stage, b, 0), place, before[0]), g);
        elements_of(granule_at(tile(stage, b, 1), place, before[1]), x);
        F weight[kPerGranule<E>];
#pragma unroll
        for (int j = 0; j < kPerGranule<E>; j += 4) {
          const Four w = load_wide(reinterpret_cast<const Four*>(weights) + (place * kPerGranule<E> + j) / 4);
#pragma unroll
          for (int i = 0; i < 4; ++i) weight[j + i] = w.item[i];
        }
#pragma unroll
        for (int j = 0; j < kPerGranule<E>; ++j) {
          const int c = q * kPerGranule<E> + j;
          const F element[2] = {convert<F>(g[j]), convert<F>(x[j])};
          y[c] = Op::map(element, weight[j], F(-0.0), 0, row);
          F none = 0;
          Sums::step(columns[0][c], kCentered ? columns[kColumnSums - 1][c] : none, element[0], element[1], given);
        }
      }
      Granule rounded[kGranules];
      round_columns<E>(y, rounded);
      E* const to = moved(static_cast<E*>(call.out) + first, number, call.stride[0].out);
      if constexpr (kAnywhere) {
#pragma unroll
        for (int q = 0; q < kGranules; ++q) out.store_by_warp(to, granule(q), rounded[q]);
      } else {
#pragma unroll
        for (int q = 0; q < kGranules; ++q)
          if (granule(q) < granules) store_item(reinterpret_cast<Granule*>(to) + granule(q), rounded[q]);
      }
    }
  }
  __device__ __forceinline__ void write_columns(const F (&columns)[kColumnSums][kGroup], F* partials, int unit) const {
#pragma unroll
    for (int s = 0; s < kColumnSums; ++s)
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        Four v;
#pragma unroll
        for (int i = 0; i < 4; ++i) v.item[i] = columns[s][4 * q + i];
        const int at = kGranules == 1 ? 2 * granule(0) + q : granule(q);
        F* const to = partials + (2 * int64_t(unit) + s) * call.length + first;
        if constexpr (kAnywhere) store_some(to + 4 * at, v, n - 4 * at);
        else if (at < n / 4) store_wide(reinterpret_cast<Four*>(to) + at, v);
      }
  }
};

// Batch number t is in stage t % kStages, its sums and what its rows come to are in turn t % kTurns. A warp that sums
// batch t knows what that two before it comes to. So all blocks of a cluster have summed that, and know what the one
// four before it comes to, whose turn this is.
struct NormTurn {
  static constexpr int kStages = norm_gradients::kStages, kTurns = norm_gradients::kTurns;
  static_assert(kTurns == 4);
  int stage = 0, turn = 0;
  uint32_t lap = 0, round = 0;  // parities of the stage's and of the turn's phases

  __device__ void advance() {
    stage = stage == kStages - 1 ? 0 : stage + 1;
    lap ^= stage == 0;
    turn = (turn + 1) % kTurns;
    round ^= turn == 0;
  }
};

// partials[2 * unit + which][column]
template <class Op, class E, bool kAnywhere>
__global__ void __launch_bounds__(norm_gradients::kThreads, 1)
    norm_gradients_kernel(TR_GRID_CONSTANT RowwiseKernelCall call, TR_GRID_CONSTANT NormGradientsShape shape,
                          float* partials) {
#if !defined(__CUDA_ARCH__) || defined(TR_LARGE_BLOCKS)  // others have no room for its stages
  using N = NormGradients<Op, E, kAnywhere>;
  constexpr int kStages = N::kStages, kTurns = N::kTurns, kBatch = N::kBatch;
  TR_DYNAMIC_SHARED(stages, 128);
  __shared__ typename Op::Row rows[kTurns * kBatch];
  // A batch is there; its sums are; what its rows come to is; its rows are written.
  __shared__ Barrier loaded[kStages], summed[kTurns], made[kTurns], written[kStages];
  const N norm(call, shape, stages, rows);
  NormBatches batches(shape, call.rows, kBatch), ahead = batches;
  NormTurn t;
  const int last_warp = shape.writers + shape.summers;  // its first thread
  float stats[kStages];
  if (int(threadIdx.x) == last_warp) {
    for (Barrier& b : loaded) barrier_init(&b, N::kLoaders + kLanes);
    for (Barrier& b : summed) barrier_init(&b, shape.summers + (shape.cluster > 1 ? 1 : 0));
    for (Barrier& b : made) barrier_init(&b, kLanes);
    for (Barrier& b : written) barrier_init(&b, shape.writers);
    barriers_made();
  }
  if constexpr (kAnywhere) __syncthreads();  // other lanes than the first start copies
#ifdef TR_CLUSTERS
  if (shape.cluster > 1) cluster_arrive();
#endif
  if (int(threadIdx.x) < last_warp) {
    norm.load_weights(last_warp);
  } else {
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
      if (ahead.done()) continue;
      stats[s] = norm.load(ahead, s, &loaded[s]);
      ahead.advance();
    }
  }
  __syncthreads();
#ifdef TR_CLUSTERS
  if (shape.cluster > 1) cluster_wait();
#endif

  if (int(threadIdx.x) < shape.writers) {
    ColumnSums<N::kColumnSums> columns(norm.columns, norm.holders);
#pragma unroll 1
    for (; !batches.done(); batches.advance(), t.advance()) {
      barrier_wait(&made[t.turn], t.round);
      if (batches.starts_residue()) columns.clear();
      norm.write_rows(batches, t.stage, t.turn, columns.residue);
      barrier_arrive(&written[t.stage]);
      if (batches.ends_residue() && int(threadIdx.x) < norm.holders) columns.push(batches.residue);
      if (batches.ends_unit()) norm.write_columns(columns.residue, partials, batches.unit);
    }
  } else if (int(threadIdx.x) < last_warp) {
    const int warp = (int(threadIdx.x) - shape.writers) / kLanes;
    NormTurn old;  // two batches before
    int number = 0;
#pragma unroll 1
    for (; !batches.done(); batches.advance(), t.advance(), ++number) {
      barrier_wait(&loaded[t.stage], t.lap);
      if (number >= 2) {
        barrier_wait(&made[old.turn], old.round);
        old.advance();
      }
      norm.sum_words(batches, t.stage, t.turn, warp, shape.summers / kLanes, &summed[t.turn]);
    }
  } else {
    NormBatches first = batches;
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
      if (first.done()) continue;
      norm.keep_stats(stats[s], s, &loaded[s]);
      first.advance();
    }
    NormTurn old;  // two batches before: when it is written, there is room for another
    int number = 0, late = -1;
    float own = 0;
#pragma unroll 1
    for (; !batches.done(); batches.advance(), t.advance(), ++number) {
      if (number >= 2) {
        barrier_wait(&written[old.stage], old.lap);
        if (late >= 0) norm.keep_stats(own, late, &loaded[late]);
        late = -1;
        if (!ahead.done()) {
          own = norm.load(ahead, late = old.stage, &loaded[old.stage]);
          ahead.advance();
        }
        old.advance();
      }
      norm.await_sums(&summed[t.turn], t.round);
      norm.total_rows(t.stage, t.turn);
      barrier_arrive(&made[t.turn]);
    }
  }
#endif
}

// ---- short rows ------------------------------------------------------------------------------------------------------

// What a thread does with 8 columns of short rows, in registers: kRows rows at once, whose columns neighbouring lanes
// have.
template <class Op, class E, bool kAnywhere> struct ShortNormRows {
  using F = float;
  static constexpr int kRows = norm_gradients::rows_at_once(int(sizeof(E))), kGranules = kGroup / kPerGranule<E>;
  static constexpr int kLoaded = kGranules + kAnywhere;
  static constexpr bool kCentered = Op::kStats == 3;
  static constexpr int kColumnSums = kCentered ? 2 : 1;
  using Sums = WeightSums<F, kCentered>;

  const RowwiseKernelCall& call;
  const int lanes, column;  // of a row; the first of the thread
  const bool has;           // columns
  F weight[kGroup];
  Granule in[kRows][2][kLoaded];
  typename Op::Given given[kRows];

  __device__ __forceinline__ ShortNormRows(const RowwiseKernelCall& call, int lanes)
      : call(call), lanes(lanes), column((int(threadIdx.x) & (lanes - 1)) * kGroup), has(column < int(call.length)) {
#pragma unroll
    for (int c = 0; c < kGroup; ++c)
      weight[c] = !call.weight || !there(c)         ? F(1)
                  : call.weight_dtype == Dtype::F32 ? static_cast<const F*>(call.weight)[column + c]
                                                    : convert<F>(static_cast<const E*>(call.weight)[column + c]);
  }
  // Whether the thread has column c of 8: all or none of rows of whole groups.
  __device__ __forceinline__ bool there(int c) const { return kAnywhere ? column + c < int(call.length) : has; }
  template <class T> __device__ __forceinline__ T* at(T* base, int row, int64_t pitch) const {
    return reinterpret_cast<T*>(multiply_add(row, int(pitch) * int(sizeof(E)), int64_t(base + column)));
  }
  // Rows `first` + j kResidues; those from call.rows on are not there, and the last row stands for them.
  __device__ __forceinline__ int row(int first, int j) const {
    const int number = first + j * kResidues;
    return number < int(call.rows) ? number : int(call.rows) - 1;
  }
  __device__ __forceinline__ void load(int first) {
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const E* const from = at(static_cast<const E*>(call.in[k]), row(first, j), call.stride[0].in[k]);
        if constexpr (kAnywhere) {
          load_anywhere(from, call.end[k], in[j][k]);
        } else {
#pragma unroll
          for (int q = 0; q < kGranules; ++q) {
            in[j][k][q] = Granule{};
            load_if<Stay::Short>(has, reinterpret_cast<const Granule*>(from) + q, in[j][k][q]);
          }
        }
      }
      given[j] = Op::given(call.options, call.memory, row(first, j));
    }
  }
  // The granules that hold 8 elements from `from` on, those of them that the row has. Of the one in which memory ends
  // nothing outside is read.
  __device__ __forceinline__ void load_anywhere(const E* from, const void* end, Granule (&to)[kLoaded]) const {
    const auto granule = [](const void* p) {
      return reinterpret_cast<const Granule*>(granule_of(reinterpret_cast<uintptr_t>(p)));
    };
    const void* const row_end = from + (int(call.length) - column);
    const Granule *const own = granule(from), *const last = granule(end);  // in which memory ends
#pragma unroll
    for (int q = 0; q < kLoaded; ++q) {
      to[q] = Granule{};
      load_if<Stay::Short>(own + q < row_end && own + q < last, own + q, to[q]);
    }
    if (last < own || last >= own + kLoaded || last >= row_end) return;
    E x[kPerGranule<E>] = {};
#pragma unroll
    for (int i = 0; i < kPerGranule<E>; ++i)
      if (reinterpret_cast<const E*>(last) + i < end) x[i] = load_item(reinterpret_cast<const E*>(last) + i);
#pragma unroll
    for (int q = 0; q < kLoaded; ++q)
      if (own + q == last) memcpy(&to[q], x, sizeof x);
  }
  // Writes these rows, and adds them to the thread's columns.
  __device__ __forceinline__ void write(int first, F (&columns)[kColumnSums][kGroup]) const {
    const AnywhereRow<E> out(at(static_cast<const E*>(call.out), first, call.stride[0].out), int(call.length));
    int start[2];  // the byte of a granule at which rows of the residue start
#pragma unroll
    for (int k = 0; k < 2; ++k)
      start[k] = int(reinterpret_cast<uintptr_t>(at(static_cast<const E*>(call.in[k]), first, call.stride[0].in[k])) %
                     kGranule);
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      const bool is_row = first + j * kResidues < int(call.rows);
      E element[2][kGroup];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        Granule own[kGranules];
#pragma unroll
        for (int q = 0; q < kGranules; ++q)
          own[q] = kAnywhere ? part_from<E>(in[j][k][q], in[j][k][q + kAnywhere], start[k]) : in[j][k][q];
        memcpy(element[k], own, sizeof own);
      }
      F x[kGroup][2], own[Op::kSums];
      {
        F sums[kGroup][Op::kSums];
        const auto seen = Op::seen(F(0), call.length, given[j]);
#pragma unroll
        for (int c = 0; c < kGroup; ++c) {
          x[c][0] = convert<F>(element[0][c]);
          x[c][1] = convert<F>(element[1][c]);
#pragma unroll
          for (F& sum : sums[c]) sum = F(-0.0);
          Op::step(sums[c], x[c], weight[c], seen, given[j]);
#pragma unroll
          for (F& sum : sums[c])
            if (kAnywhere && !there(c)) sum = F(-0.0);
        }
#pragma unroll
        for (int s = 0; s < Op::kSums; ++s) {
#pragma unroll
          for (int d = 1; d < kGroup; d *= 2)
#pragma unroll
            for (int c = 0; c < kGroup; c += 2 * d) sums[c][s] = sums[c][s] + sums[c + d][s];
          own[s] = has ? sums[0][s] : F(-0.0);
        }
      }
#pragma unroll
      for (int d = 1; d < kLanes; d *= 2)
        if (d < lanes)
#pragma unroll
          for (F& sum : own) sum = sum + shuffle_across(sum, d);
      if (!kAnywhere && (!has || !is_row)) continue;
      const auto values =
          Op::row(Op::state(F(0), own, call.length), call.length, given[j], call.options, [](int64_t) { return F(0); });
      typename Sums::Given of_row{F(0), F(0), F(0)};
      if constexpr (kCentered) of_row = {given[j].high, given[j].low, given[j].r};
      else of_row.r = given[j].r;
      F y[kGroup], none = 0;
#pragma unroll
      for (int c = 0; c < kGroup; ++c) {
        y[c] = Op::map(x[c], weight[c], F(-0.0), 0, values);
        if (!kAnywhere || is_row)
          Sums::step(columns[0][c], kCentered ? columns[kColumnSums - 1][c] : none, x[c][0], x[c][1], of_row);
      }
      Granule rounded[kGranules];
      round_columns<E>(y, rounded);
      E* const to = at(static_cast<E*>(call.out), first + j * kResidues, call.stride[0].out);
      if constexpr (kAnywhere) {
        const Granule left = lane_before(rounded[kGranules - 1]);
        if (!is_row) continue;
#pragma unroll
        for (int q = 0; q < kGranules; ++q)
          out.store(to - column, column / kPerGranule<E> + q, q > 0 ? rounded[q > 0 ? q - 1 : 0] : left, rounded[q],
                    q == 0 && column == 0, q == kGranules - 1 && column == (lanes - 1) * kGroup);
      } else {
#pragma unroll
        for (int q = 0; q < kGranules; ++q) store_item(reinterpret_cast<Granule*>(to) + q, rounded[q]);
      }
    }
  }
};

// A block takes a unit: each group of lanes, those of a row, a run of its residues, one after the other. Then the
// groups' sums meet. partials[2 * unit + which][column]. Shared memory: that of ColumnSums, then [sum][half][thread].
template <class Op, class E, bool kAnywhere>
__global__ void TR_BLOCKS_BOUND(norm_gradients::kShortThreads, norm_gradients::kShortBlocks)
    short_norm_gradients_kernel(TR_GRID_CONSTANT RowwiseKernelCall call, TR_GRID_CONSTANT NormGradientsShape shape,
                                float* partials) {
  using Rows = ShortNormRows<Op, E, kAnywhere>;
  constexpr int kSums = Rows::kColumnSums, kThreads = norm_gradients::kShortThreads;
  TR_DYNAMIC_SHARED(shared, 16);
  ColumnSums<kSums> columns(reinterpret_cast<float*>(shared), kThreads);
  Rows rows(call, shape.lanes);
  const int groups = kThreads / shape.lanes, group = int(threadIdx.x) / shape.lanes, residues = groups * shape.run;
  const int leaf = int(blockIdx.x) / (kResidues / residues), unit = int(blockIdx.x) - leaf * (kResidues / residues);
  const int of_block = leaf * kLeaf + unit * residues, first = of_block + group * shape.run;
#pragma unroll 1
  for (int r = 0; r < shape.run; ++r) {
    columns.clear();
#pragma unroll 1
    for (int k = 0; k < kLeaf && of_block + k < int(call.rows); k += Rows::kRows * kResidues) {
      rows.load(first + r + k);
      rows.write(first + r + k, columns.residue);
    }
    columns.push(r);
  }
  __syncthreads();
  using Four = Packed<float, 4>;
  Four* const sums = reinterpret_cast<Four*>(shared);
  const auto each = [&](auto visit) {
#pragma unroll
    for (int s = 0; s < kSums; ++s)
#pragma unroll
      for (int half = 0; half < 2; ++half) visit(s, half, (s * 2 + half) * kThreads + int(threadIdx.x));
  };
#pragma unroll 1
  for (int d = 1; d < groups; d *= 2) {
    each([&](int s, int half, int at) {
      Four v;
#pragma unroll
      for (int i = 0; i < 4; ++i) v.item[i] = columns.residue[s][4 * half + i];
      sums[at] = v;
    });
    __syncthreads();
    if (group % (2 * d) == 0)
      each([&](int s, int half, int at) {
        const Four v = load_wide(&sums[at + d * shape.lanes]);
#pragma unroll
        for (int i = 0; i < 4; ++i) columns.residue[s][4 * half + i] = columns.residue[s][4 * half + i] + v.item[i];
      });
    __syncthreads();
  }
  if (group > 0 || !rows.has) return;
  each([&](int s, int half, int) {
    Four v;
#pragma unroll
    for (int i = 0; i < 4; ++i) v.item[i] = columns.residue[s][4 * half + i];
    float* const to = partials + (2 * int64_t(blockIdx.x) + s) * call.length + rows.column + 4 * half;
    if constexpr (kAnywhere) store_some(to, v, int(call.length) - rows.column - 4 * half);
    else store_wide(reinterpret_cast<Four*>(to), v);
  });
}

#endif

}  // namespace torchreduce::gpu
