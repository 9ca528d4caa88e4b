// The gradients of norms together with those of their weights and biases: g and x are read once.
//
// Serves: float32 and 16-bit floats, rows of whole granules that a block has several of in shared memory, on GPUs with
// bulk copies (norm_gradients.h).
// A block takes units: the rows of a run of residues of a leaf of rows, those of a residue one after the other, in
// batches, which are copied ahead. Warps have one of three parts, each in step with the others by barriers: those that
// sum along rows take the words of their lanes through a leaf of a row; the last one starts the copies, and makes of
// these sums what the row comes to; a thread of those that write has 8 columns, for their gradients and for their sums
// over the rows.
// Shared memory, dynamic: batches of rows of g and x; weights; sums of units; sums of the warps; the rows' statistics.
// Static: what rows come to; barriers.
#pragma once
#include "held_granules.cuh"
#include "norm_gradients.h"
#include "states.cuh"

namespace torchreduce::gpu {

#ifdef TR_BULK_COPIES

// The batches of a block's units, one after the other.
struct NormBatches {
  const int rows, size, run, units;  // of the call; of a batch; residues of a unit
  int unit, residue, step, steps;    // steps of a residue: batches
  int first;                         // row of the unit's first residue

  __device__ NormBatches(const NormGradientsShape& shape, int64_t rows, int size)
      : rows(int(rows)), size(size), run(shape.run), units(int(shape.units)), unit(int(blockIdx.x)) {
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
    unit += int(gridDim.x);
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

template <class Op, class E> struct NormGradients {
  using F = float;
  static constexpr int kSums = Op::kSums, kStats = Op::kStats, kSize = int(sizeof(E));
  static constexpr bool kCentered = kStats == 3;
  static constexpr int kBatch = norm_gradients::batch(kSize), kWord = norm_gradients::word(kSize);
  static constexpr int kParts = norm_gradients::parts(kSize), kStages = norm_gradients::kStages;
  static constexpr int kColumnSums = kCentered ? 2 : 1, kGranules = kGroup / kPerGranule<E>;
  using Sums = WeightSums<F, kCentered>;
  using Four = Packed<F, 4>;

  const RowwiseKernelCall& call;
  const int n, leaves, granules;  // of a row
  const int writers;              // the first threads of the block
  E* const tiles;                 // [stage][row][input][column]
  F* const weights;               // [column]
  F *const columns, *const sums;  // of ColumnSums; [turn][row][sum][leaf][part]
  F* const stats;                 // [stage][statistic][row]
  typename Op::Row* const rows;   // [turn][row]

  __device__ NormGradients(const RowwiseKernelCall& call, int writers, char* dynamic, typename Op::Row* rows)
      : call(call),
        n(int(call.length)),
        leaves((n + kLeaf - 1) / kLeaf),
        granules(n / kPerGranule<E>),
        writers(writers),
        tiles(reinterpret_cast<E*>(dynamic)),
        weights(reinterpret_cast<F*>(tiles + kStages * kBatch * 2 * n)),
        columns(weights + n),
        sums(columns + writers * kGroup * norm_gradients::kept_sums(kColumnSums)),
        stats(sums + 2 * norm_gradients::partial_sums(kSize, leaves, kSums)),
        rows(rows) {}

  __device__ E* tile(int stage, int b, int k) const { return tiles + ((stage * kBatch + b) * 2 + k) * n; }
  __device__ F* sum_of(int turn, int b, int s, int leaf) const {
    return sums + (((turn * kBatch + b) * kSums + s) * leaves + leaf) * kParts;
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

  __device__ __forceinline__ void load_weights() const {
    for (int i = threadIdx.x; i < n; i += int(blockDim.x))
      weights[i] = !call.weight                      ? F(1)
                   : call.weight_dtype == Dtype::F32 ? static_cast<const F*>(call.weight)[i]
                                                     : convert<F>(static_cast<const E*>(call.weight)[i]);
  }
  // Starts the copies of a batch, by one warp, on whose barrier each lane arrives once more with what it has of the
  // rows' statistics: that is the result.
  __device__ __forceinline__ F load(const NormBatches& batches, int stage, Barrier* loaded) const {
    const int lane = lane_id(), row = batches.row(lane % kBatch);
    F own = 0;
    if (lane < kBatch * kStats && row < batches.rows)
      own = static_cast<const F*>(call.memory.stats)[lane / kBatch * call.memory.plane + row];
    if (lane > 0) return own;
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
          bulk_load(tile(stage, b, k), moved(static_cast<const E*>(call.in[k]), batches.row(b), call.stride[0].in[k]),
                    bytes, loaded);
    return own;
  }
  __device__ __forceinline__ void keep_stats(F own, int stage, Barrier* loaded) const {
    if (lane_id() < kBatch * kStats) stats[stage * kBatch * kStats + lane_id()] = own;
    barrier_arrive(loaded);
  }

  // The sums of a stage's rows, by parts of leaves. Of rows that are not there they mean nothing. By number `warp` of
  // `warps`.
  __device__ __forceinline__ void sum_words(int stage, int turn, int warp, int warps) const {
    const int lane = lane_id();
#pragma unroll 1
    for (int task = warp; task < kBatch * kParts * leaves; task += warps) {
      const int b = task % kBatch, part = task / kBatch % kParts, leaf = task / (kBatch * kParts);
      const int first = leaf * kLeaf + (part * kLanes + lane) * kWord, count = n - leaf * kLeaf;
      const auto given = Op::given(call.options, memory(stage), b);
      const auto seen = Op::seen(F(0), count, given);
      const E *const g = tile(stage, b, 0) + first, *const x = tile(stage, b, 1) + first;
      F acc[kWord][kSums];
#pragma unroll
      for (auto& each : acc)
#pragma unroll
        for (F& sum : each) sum = F(-0.0);
      const auto chunk = [&](int at) {
        using Word = Packed<uint32_t, 2>;
        const Word gs = *reinterpret_cast<const Word*>(g + at), xs = *reinterpret_cast<const Word*>(x + at);
        const auto w = *reinterpret_cast<const Packed<F, kWord>*>(weights + first + at);
        E ge[kWord], xe[kWord];
        unpack<E, kWord>(gs.item, ge);
        unpack<E, kWord>(xs.item, xe);
#pragma unroll
        for (int i = 0; i < kWord; ++i) {
          const F element[2] = {convert<F>(ge[i]), convert<F>(xe[i])};
          Op::step(acc[i], element, w.item[i], seen, given);
        }
      };
      if (count >= kLeaf) {
#pragma unroll
        for (int c = 0; c < kLeaf / kResidues; ++c) chunk(c * kResidues);
      } else {
#pragma unroll 2
        for (int at = 0; at < n - first; at += kResidues) chunk(at);
      }
#pragma unroll
      for (int s = 0; s < kSums; ++s) {
#pragma unroll
        for (int d = 1; d < kWord; d *= 2)
#pragma unroll
          for (int i = 0; i < kWord; i += 2 * d) acc[i][s] = acc[i][s] + acc[i + d][s];
        F sum = acc[0][s];
#pragma unroll
        for (int d = 1; d < kLanes; d *= 2) sum = sum + shuffle_across(sum, d);
        if (lane == 0) sum_of(turn, b, s, leaf)[part] = sum;
      }
    }
  }
  // What the rows come to, of these sums, by one warp.
  __device__ __forceinline__ void total_rows(int stage, int turn) const {
    static_assert(norm_gradients::kMostColumns <= 2 * kLeaf, "a tree over two");
    const int lane = lane_id();
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      F total[kSums];
#pragma unroll
      for (int s = 0; s < kSums; ++s) {
        F sum = lane < leaves * kParts ? sum_of(turn, b, s, 0)[lane] : F(-0.0);
#pragma unroll
        for (int d = 1; d < 2 * kParts; d *= 2) sum = sum + shuffle_across(sum, d);
        total[s] = sum;
      }
      const auto given = Op::given(call.options, memory(stage), b);
      const auto row = Op::row(Op::state(F(0), total, n), n, given, call.options, [](int64_t) { return F(0); });
      if (lane == 0) rows[turn * kBatch + b] = row;
    }
  }
  // Writes the rows of a batch, and adds them to the thread's columns.
  __device__ __forceinline__ void write_rows(const NormBatches& batches, int stage, int turn,
                                             F (&columns)[kColumnSums][kGroup]) const {
#pragma unroll
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
        const Granule gs = load_wide(reinterpret_cast<const Granule*>(tile(stage, b, 0)) + place);
        const Granule xs = load_wide(reinterpret_cast<const Granule*>(tile(stage, b, 1)) + place);
        elements_of(gs, g);
        elements_of(xs, x);
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
      Granule* const to = reinterpret_cast<Granule*>(moved(static_cast<E*>(call.out), number, call.stride[0].out));
#pragma unroll
      for (int q = 0; q < kGranules; ++q)
        if (granule(q) < granules) store_item(to + granule(q), rounded[q]);
    }
  }
  __device__ __forceinline__ void write_columns(const F (&columns)[kColumnSums][kGroup], F* unit) const {
#pragma unroll
    for (int s = 0; s < kColumnSums; ++s)
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        Four v;
#pragma unroll
        for (int i = 0; i < 4; ++i) v.item[i] = columns[s][4 * q + i];
        const int at = kGranules == 1 ? 2 * granule(0) + q : granule(q);
        if (at < n / 4) store_wide(reinterpret_cast<Four*>(unit + s * n) + at, v);
      }
  }
};

// Batch number t is in stage t % kStages, its sums and what its rows come to are in turn t % 2.
struct NormTurn {
  static constexpr int kStages = norm_gradients::kStages;
  int stage = 0, turn = 0;
  uint32_t lap = 0, round = 0;  // parities of the stage's and of the turn's phases

  __device__ void advance() {
    stage = stage == kStages - 1 ? 0 : stage + 1;
    lap ^= stage == 0;
    turn ^= 1;
    round ^= turn == 0;
  }
};

// partials[2 * unit + which][column]
template <class Op, class E>
__global__ void __launch_bounds__(norm_gradients::kThreads, 1)
    norm_gradients_kernel(TR_GRID_CONSTANT RowwiseKernelCall call, TR_GRID_CONSTANT NormGradientsShape shape,
                          float* partials) {
#if !defined(__CUDA_ARCH__) || defined(TR_LARGE_BLOCKS)  // others have no room for its stages
  using N = NormGradients<Op, E>;
  constexpr int kStages = N::kStages, kBatch = N::kBatch;
  TR_DYNAMIC_SHARED(stages, 128);
  __shared__ typename Op::Row rows[2 * kBatch];
  // A batch is there; its sums are; what its rows come to is; its rows are written.
  __shared__ Barrier loaded[kStages], summed[2], made[2], written[kStages];
  const N norm(call, shape.writers, stages, rows);
  if (threadIdx.x == 0) {
    for (Barrier& b : loaded) barrier_init(&b, 1 + kLanes);
    for (Barrier& b : summed) barrier_init(&b, shape.summers);
    for (Barrier& b : made) barrier_init(&b, kLanes);
    for (Barrier& b : written) barrier_init(&b, shape.writers);
    barriers_made();
  }
  norm.load_weights();
  __syncthreads();

  NormBatches batches(shape, call.rows, kBatch);
  NormTurn t;
  if (int(threadIdx.x) < shape.writers) {
    ColumnSums<N::kColumnSums> columns(norm.columns, shape.writers);
#pragma unroll 1
    for (; !batches.done(); batches.advance(), t.advance()) {
      barrier_wait(&made[t.turn], t.round);
      if (batches.starts_residue()) columns.clear();
      norm.write_rows(batches, t.stage, t.turn, columns.residue);
      barrier_arrive(&written[t.stage]);
      if (batches.ends_residue()) columns.push(batches.residue);
      if (batches.ends_unit()) norm.write_columns(columns.residue, partials + 2 * int64_t(batches.unit) * norm.n);
    }
  } else if (int(threadIdx.x) < shape.writers + shape.summers) {
    const int warp = (int(threadIdx.x) - shape.writers) / kLanes;
    int number = 0;
#pragma unroll 1
    for (; !batches.done(); batches.advance(), t.advance(), ++number) {
      barrier_wait(&loaded[t.stage], t.lap);
      if (number >= 2) barrier_wait(&made[t.turn], t.round ^ 1);  // of the batch before it in this turn
      norm.sum_words(t.stage, t.turn, warp, shape.summers / kLanes);
      barrier_arrive(&summed[t.turn]);
    }
  } else {
    NormBatches ahead = batches;
    float stats[kStages];
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
      if (ahead.done()) continue;
      stats[s] = norm.load(ahead, s, &loaded[s]);
      ahead.advance();
    }
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
      barrier_wait(&summed[t.turn], t.round);
      norm.total_rows(t.stage, t.turn);
      barrier_arrive(&made[t.turn]);
    }
  }
#endif
}

#endif

}  // namespace torchreduce::gpu
