// The gradients of few rows of norms, and of their weights and biases, by one launch without a workspace: g and x are
// read twice, the second time from where the first one brought them.
//
// Serves: float32 and 16-bit floats, rows of whole pairs of elements, up to kResidues of them and of up to 8 leaves
// (norm_gradients.h). The first blocks have a row or several, of which a leaf is spread over four warps: a thread has
// two neighbouring residues of it in registers. The others have columns, two neighbours a thread, of which a run of
// rows goes to each of a few warps. Both need nothing but the rows' statistics, so that neither waits for the other.
// Each row is a residue of its own, and the sums over rows are the contiguous tree over them.
//
// Shared memory, static: the sums of the warps.
#pragma once
#include "kernels/common/gpu_rows.cuh"
#include "norm_gradients.h"
#include "rows_call.h"

namespace torchreduce::gpu {

// Two neighbouring elements in registers: of 16-bit floats a word, of which nvcc would rather make two.
template <class E> using PairWords = std::conditional_t<sizeof(E) == 2, uint32_t, Packed<float, 2>>;
template <class E> __device__ __forceinline__ PairWords<E> load_pair(const E* p) {
  return load_item<Stay::Long>(reinterpret_cast<const PairWords<E>*>(p));
}
// Those of g and x, as x[neighbour] of an op.
template <class E>
__device__ __forceinline__ void convert_pairs(PairWords<E> g, PairWords<E> x, float (&to)[2][2]) {
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const auto two = bit_cast_words<Packed<E, 2>>(k == 0 ? g : x);
#pragma unroll
    for (int i = 0; i < 2; ++i) to[i][k] = convert<float>(two.item[i]);
  }
}

// The element of a row at `column`, of rows `pitch` elements apart.
template <class T> __device__ __forceinline__ T* element_at(T* base, int row, int64_t pitch, int column) {
  return reinterpret_cast<T*>(multiply_add(row, int(pitch) * int(sizeof(T)), int64_t(base + column)));
}

// A row, or none where there are no more, of which a thread has its part.
template <class Op, class E> struct FewNormRow {
  using F = float;
  static constexpr int kChunks = kLeaf / kResidues, kSums = Op::kSums, kThreads = norm_gradients::kFewThreads;
  struct Partial { F sum[kSums]; };

  const RowwiseKernelCall& call;
  const int thread, length, row;  // of those that have the row; 0 for none, the first row in its place
  const int first;                // of the thread's positions
  PairWords<E> in[2][kChunks];

  __device__ __forceinline__ FewNormRow(const RowwiseKernelCall& call, int number, int thread)
      : call(call),
        thread(thread),
        length(number < int(call.rows) ? int(call.length) : 0),
        row(length > 0 ? number : 0),
        first(thread / kThreads * kLeaf + thread % kThreads * 2) {
#pragma unroll
    for (int k = 0; k < 2; ++k)
#pragma unroll
      for (int c = 0; c < kChunks; ++c)
        if (is_there(c))
          in[k][c] = load_pair(
              element_at(static_cast<const E*>(call.in[k]), row, call.stride[0].in[k], first + c * kResidues));
  }
  __device__ __forceinline__ bool is_there(int c) const { return first + c * kResidues < length; }
  // visit(chunk, weights of its two elements) for those that are there.
  template <class Visit> __device__ __forceinline__ void each(Visit visit) const {
    const auto by = [&](auto weight) {
      constexpr int kAtOnce = sizeof(E) == 2 ? kChunks : kChunks / 2;  // weights that there are registers for
#pragma unroll
      for (int from = 0; from < kChunks; from += kAtOnce) {
        F w[kAtOnce][2];
#pragma unroll
        for (int c = 0; c < kAtOnce; ++c) weight(from + c, w[c]);
#pragma unroll
        for (int c = 0; c < kAtOnce; ++c)
          if (is_there(from + c)) visit(from + c, w[c]);
      }
    };
    const auto read = [&](auto* from, int c, F(&to)[2]) {
      using W = std::remove_cv_t<std::remove_pointer_t<decltype(from)>>;
      if (!is_there(c)) return;
      const auto two = load_item<Stay::Long>(reinterpret_cast<const Packed<W, 2>*>(from + first + c * kResidues));
#pragma unroll
      for (int i = 0; i < 2; ++i) to[i] = convert<F>(two.item[i]);
    };
    const void* const weight = recomputed(call.weight);
    if (!weight) by([](int, F(&to)[2]) { to[0] = to[1] = F(1); });
    else if (call.weight_dtype == Dtype::F32) by([&](int c, F(&to)[2]) { read(static_cast<const F*>(weight), c, to); });
    else by([&](int c, F(&to)[2]) { read(static_cast<const E*>(weight), c, to); });
  }
  // Writes the row, by way of the sums of the warps that have it, `count` of them, a power of two; the whole block
  // comes to this.
  __device__ __forceinline__ void write(Partial* warps, int count) const {
    const auto given = Op::given(call.options, call.memory, row);
    const auto seen = Op::seen(F(0), length, given);
    F acc[2][kSums];
#pragma unroll
    for (auto& residue : acc)
#pragma unroll
      for (F& sum : residue) sum = F(-0.0);
    each([&](int c, const F(&w)[2]) {
      F x[2][2];
      convert_pairs<E>(in[0][c], in[1][c], x);
#pragma unroll
      for (int i = 0; i < 2; ++i) Op::step(acc[i], x[i], w[i], seen, given);
    });
    Partial own;
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
      own.sum[s] = acc[0][s] + acc[1][s];
#pragma unroll
      for (int d = 1; d < kLanes; d *= 2) own.sum[s] = own.sum[s] + shuffle_across(own.sum[s], d);
    }
    if (lane_id() == 0) warps[thread / kLanes] = own;
    __syncthreads();
    own = warps[lane_id() & (count - 1)];
#pragma unroll
    for (int d = 1; d < kLanes; d *= 2)
      if (d < count)
#pragma unroll
        for (F& sum : own.sum) sum = sum + shuffle_across(sum, d);
    const auto made =
        Op::row(Op::state(F(0), own.sum, length), call.length, given, call.options, [](int64_t) { return F(0); });
    E* const out = element_at(static_cast<E*>(call.out), row, call.stride[0].out, first);
    each([&](int c, const F(&w)[2]) {
      Packed<E, 2> two;
      F x[2][2];
      convert_pairs<E>(in[0][c], in[1][c], x);
#pragma unroll
      for (int i = 0; i < 2; ++i) two.item[i] = round_to<E>(Op::map(x[i], w[i], F(-0.0), 0, made));
      store_item(reinterpret_cast<Packed<E, 2>*>(out + c * kResidues), two);
    });
  }
};

// Two columns of a thread, which may not be there, and the rows of its warp from `first` on.
template <class Op, class E> struct FewNormColumns {
  using F = float;
  static constexpr bool kCentered = Op::kStats == 3;
  static constexpr int kSums = kCentered ? 2 : 1, kAtOnce = norm_gradients::kFewAtOnce;
  using Sums = WeightSums<F, kCentered>;
  struct Two { F sum[kSums][2]; };  // [sum][column]

  const RowwiseKernelCall& call;
  const int first, column;

  __device__ __forceinline__ static void add(Two& to, const Two& more) {
#pragma unroll
    for (int s = 0; s < kSums; ++s)
#pragma unroll
      for (int i = 0; i < 2; ++i) to.sum[s][i] = to.sum[s][i] + more.sum[s][i];
  }
  // Over kRows rows from number `from` on; for those that are not there the last one is read.
  template <int kRows> __device__ __forceinline__ Two sum(int from) const {
    const int start = first + from, rows = int(call.rows);
    const auto row = [&](int j) { return start + j < rows ? start + j : rows - 1; };
    PairWords<E> in[2][kRows];
#pragma unroll
    for (int j = 0; j < kRows; ++j)
#pragma unroll
      for (int k = 0; k < 2; ++k)
        in[k][j] = load_pair(element_at(static_cast<const E*>(call.in[k]), row(j), call.stride[0].in[k],
                                        column < int(call.length) ? column : 0));
    const auto own = Sums::given(call.memory, row(lane_id() % kRows));  // a lane has a row's
    Two sums[kRows];
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      auto given = own;
      given.r = shuffle(own.r, j);
      if constexpr (kCentered) given.high = shuffle(own.high, j), given.low = shuffle(own.low, j);
      F x[2][2];
      convert_pairs<E>(in[0][j], in[1][j], x);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        F to_weight = F(-0.0), to_bias = F(-0.0);
        Sums::step(to_weight, to_bias, x[i][0], x[i][1], given);
        sums[j].sum[0][i] = start + j < rows ? to_weight : F(-0.0);
        if constexpr (kCentered) sums[j].sum[1][i] = start + j < rows ? to_bias : F(-0.0);
      }
      // The trees that end with this row, so that few sums wait.
#pragma unroll
      for (int d = 1; d < kRows; d *= 2)
        if ((j & (2 * d - 1)) == 2 * d - 1) add(sums[j + 1 - 2 * d], sums[j + 1 - d]);
    }
    return sums[0];
  }
  __device__ __forceinline__ Two sum_run(int run) const {
    if (run == 1) return sum<1>(0);
    if (run == 2) return sum<2>(0);
    if (run == 4) return sum<4>(0);
    Two sums = sum<kAtOnce>(0);
    if (run > kAtOnce) add(sums, sum<kAtOnce>(kAtOnce));
    return sums;
  }
};

template <class Op, class E>
__global__ void TR_BLOCK_BOUND(norm_gradients::kMostFewThreads)
    few_norm_gradients_kernel(TR_GRID_CONSTANT RowwiseKernelCall call, TR_GRID_CONSTANT NormGradientsShape shape) {
  using F = float;
  using Row = FewNormRow<Op, E>;
  using Columns = FewNormColumns<Op, E>;
  constexpr int kWarps = norm_gradients::kMostFewThreads / kLanes, kSums = Columns::kSums, kTile = 2 * kLanes;
  __shared__ union alignas(16) {
    typename Row::Partial rows[kWarps];
    F columns[kWarps][kSums][kTile];
  } shared;
  const int number = int(threadIdx.x), warp = number / kLanes, warps = shape.threads / kLanes;
  if (int(blockIdx.x) < shape.row_blocks) {
    const int own = number >> shape.log_threads, of_row = 1 << shape.log_threads;
    const Row row(call, int(blockIdx.x) * (shape.threads >> shape.log_threads) + own, number - own * of_row);
    return row.write(shared.rows + own * (of_row / kLanes), of_row / kLanes);
  }
  const int tiles = warps >> shape.log_warps, first_tile = (int(blockIdx.x) - shape.row_blocks) * tiles;
  const int tile = warp >> shape.log_warps, group = warp - (tile << shape.log_warps);
  const Columns columns{call, group * shape.run, (first_tile + tile) * kTile + 2 * lane_id()};
  const auto sums = columns.sum_run(shape.run);
#pragma unroll
  for (int s = 0; s < kSums; ++s)
    *reinterpret_cast<Packed<F, 2>*>(&shared.columns[warp][s][2 * lane_id()]) = {sums.sum[s][0], sums.sum[s][1]};
  __syncthreads();
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
    if (!call.memory.values[s]) continue;
    // By the first threads, of the second sum by those from the middle on.
#pragma unroll 1
    for (int i = number ^ s * shape.threads / 2; i < tiles * kTile; i += shape.threads) {
      const int c = i % kTile, first = i / kTile << shape.log_warps, column = first_tile * kTile + i;
      if (column >= int(call.length)) break;
      F v[kWarps];
#pragma unroll
      for (int g = 0; g < kWarps; ++g) v[g] = g >> shape.log_warps == 0 ? shared.columns[first + g][s][c] : F(-0.0);
#pragma unroll
      for (int d = 1; d < kWarps; d *= 2)
        if (d >> shape.log_warps == 0)
#pragma unroll
          for (int g = 0; g < kWarps; g += 2 * d) v[g] = v[g] + v[g + d];
      store_as(call.memory.dtypes[s], call.memory.values[s], column, v[0]);
    }
  }
}

}  // namespace torchreduce::gpu
