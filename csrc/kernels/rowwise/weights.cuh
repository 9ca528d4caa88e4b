// The gradients of weights and biases: canonical sums of columns over rows, whose statistics come along.
//
// Serves: everything (weights.h); by granules of 16 bytes where rows are whole ones. One launch leaves the sums of
// units of residues, one makes of them the columns'. Shared memory: the sums of a block's groups.
#pragma once
#include "kernels/reduce/granule.cuh"
#include "strided.cuh"
#include "weights.h"

namespace torchreduce::gpu {

// partials[2 * unit + which][column]; the unit's number counts through all leaves.
template <class F> __device__ __forceinline__ F* partial(F* partials, int64_t columns, int64_t unit, int which) {
  return partials + (2 * unit + which) * columns;
}

// A thread has neighbouring columns, a granule of them, and kRun neighbouring residues; groups of threads, one after
// the other, those of the block's unit.
template <class E, bool kCentered>
__global__ void __launch_bounds__(weight_columns::kThreads, 2)
    weight_granules(TR_GRID_CONSTANT RowwiseCall call, int64_t units, float* partials) {
  using namespace weight_columns;
  using Sums = WeightSums<float, kCentered>;
  constexpr int kPer = kPerGranule<E>, kRows = kLeaf / kResidues, kTile = weight_columns::kLanes * kPer;
  const Layout& l = call.layout;
  const int lane = int(threadIdx.x) % weight_columns::kLanes, group = int(threadIdx.x) / weight_columns::kLanes;
  const int64_t tile = blockIdx.x / units, unit = blockIdx.x - tile * units;
  const int64_t column = tile * kTile + lane * kPer;
  const bool there = column < l.rows;
  const int64_t first = unit / kUnits * kLeaf + (unit % kUnits * kGroups + group) * kRun;
  const int64_t pitch[2] = {l.reduced ? l.in[1] : 0, l.reduced ? call.more_strides[0][1] : 0};
  const E* from[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) from[k] = static_cast<const E*>(call.in[k]) + (there ? column : 0);

  // Sums of the residue `first` + r, of which rows are kResidues apart.
  const auto residue = [&](int r, float (&sum)[2][kPer]) {
#pragma unroll
    for (int c = 0; c < kPer; ++c) sum[0][c] = sum[1][c] = -0.0f;
    Granule g[kRows], x[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int64_t row = first + r + k * kResidues;
      const bool wanted = row < l.length;
      g[k] = x[k] = Granule{};
      load_if(wanted, reinterpret_cast<const Granule*>(from[0] + (wanted ? row : 0) * pitch[0]), g[k]);
      load_if(wanted, reinterpret_cast<const Granule*>(from[1] + (wanted ? row : 0) * pitch[1]), x[k]);
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int64_t row = first + r + k * kResidues;
      if (row >= l.length) break;
      const auto given = Sums::given(call.memory, row);
      E a[kPer], b[kPer];
      elements_of(g[k], a);
      elements_of(x[k], b);
#pragma unroll
      for (int c = 0; c < kPer; ++c)
        Sums::step(sum[0][c], sum[1][c], convert<float>(a[c]), convert<float>(b[c]), given);
    }
  };
  const auto add = [](float (&to)[2][kPer], const float (&more)[2][kPer]) {
#pragma unroll
    for (int k = 0; k < 2; ++k)
#pragma unroll
      for (int c = 0; c < kPer; ++c) to[k][c] = to[k][c] + more[k][c];
  };
  static_assert(kRun == 4, "a tree over four");
  float sum[2][kPer], more[2][kPer];
  residue(0, sum);
  residue(1, more);
  add(sum, more);
  {
    float last[2][kPer];
    residue(2, more);
    residue(3, last);
    add(more, last);
  }
  add(sum, more);

  __shared__ float shared[2][kGroups][kTile];
#pragma unroll
  for (int k = 0; k < 2; ++k)
#pragma unroll
    for (int c = 0; c < kPer; ++c) shared[k][group][lane * kPer + c] = sum[k][c];
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < 2 * kTile; i += kThreads) {
    const int k = i / kTile, c = i % kTile;
    if ((k == 1 && !kCentered) || tile * kTile + c >= l.rows) continue;
    float v[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) v[g] = shared[k][g][c];
#pragma unroll
    for (int d = 1; d < kGroups; d *= 2)
#pragma unroll
      for (int g = 0; g < kGroups; g += 2 * d) v[g] = v[g] + v[g + d];
    partial(partials, l.rows, unit, k)[tile * kTile + c] = v[0];
  }
}

// A thread has a column and an eighth of the residues of a leaf, the block's unit.
template <class F, bool kCentered>
__global__ void __launch_bounds__(weight_columns::kThreads)
    weight_elements(TR_GRID_CONSTANT RowwiseCall call, int64_t units, F* partials) {
  using namespace weight_columns;
  using Sums = WeightSums<F, kCentered>;
  constexpr int kParts = kThreads / kColumns, kEach = kResidues / kParts;
  const Layout& l = call.layout;
  const int c = int(threadIdx.x) % kColumns, part = int(threadIdx.x) / kColumns;
  const int64_t tile = blockIdx.x / units, unit = blockIdx.x - tile * units, column = tile * kColumns + c;
  const StridedRow<F> from(call, column < l.rows ? column : 0, 2);
  const auto combine = [](F a, F b) { return a + b; };
  TreeStack<F, 6> to_weight, to_bias;
#pragma unroll 1
  for (int r = part * kEach; r < (part + 1) * kEach; ++r) {
    F sums[2] = {F(-0.0), F(-0.0)};
#pragma unroll 1
    for (int64_t row = unit * kLeaf + r; row < l.length && row < (unit + 1) * kLeaf; row += kResidues)
      Sums::step(sums[0], sums[1], from.element(0, row), from.element(1, row), Sums::given(call.memory, row));
    to_weight.push(sums[0], combine);
    to_bias.push(sums[1], combine);
  }
  __shared__ F shared[2][kParts][kColumns];
  shared[0][part][c] = to_weight.total(F(-0.0), combine);
  shared[1][part][c] = to_bias.total(F(-0.0), combine);
  __syncthreads();
  if (part > (kCentered ? 1 : 0) || column >= l.rows) return;
  F v[kParts];
#pragma unroll
  for (int g = 0; g < kParts; ++g) v[g] = shared[part][g][c];
#pragma unroll
  for (int d = 1; d < kParts; d *= 2)
#pragma unroll
    for (int g = 0; g < kParts; g += 2 * d) v[g] = v[g] + v[g + d];
  partial(partials, l.rows, unit, part)[column] = v[0];
}

// The sums of columns from those of their units: a block has 1 << log_columns of them, and a part of the units a
// thread. Over no rows they are +0.
template <class F>
__global__ void __launch_bounds__(weight_columns::kFoldThreads)
    fold_weights(TR_GRID_CONSTANT RowwiseCall call, int64_t units, int log_columns, const F* partials) {
  using namespace weight_columns;
  constexpr int kAtOnce = kFoldAtOnce;
  const Layout& l = call.layout;
  const int which = int(blockIdx.x % 2), part = int(threadIdx.x) >> log_columns, parts = int(blockDim.x) >> log_columns;
  const int64_t column = (int64_t(blockIdx.x / 2) << log_columns) + (int(threadIdx.x) & ((1 << log_columns) - 1));
  if (!call.memory.values[which]) return;
  await_launches();
  const auto combine = [](F a, F b) { return a + b; };
  int64_t each = kAtOnce;  // units of a part, a power of two
  while (each * parts < units) each *= 2;
  TreeStack<F, 24> tree;
#pragma unroll 1
  for (int64_t unit = part * each; unit < (part + 1) * each && unit < units; unit += kAtOnce) {
    F v[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      v[k] = unit + k < units && column < l.rows ? partial(const_cast<F*>(partials), l.rows, unit + k, which)[column]
                                                 : F(-0.0);
#pragma unroll
    for (int d = 1; d < kAtOnce; d *= 2)
#pragma unroll
      for (int k = 0; k < kAtOnce; k += 2 * d) v[k] = v[k] + v[k + d];
    tree.push(v[0], combine);
  }
  __shared__ F shared[kFoldThreads];  // [part][column]
  F& own = shared[threadIdx.x];
  own = tree.total(F(-0.0), combine);
  __syncthreads();
#pragma unroll 1
  for (int d = 1; d < parts; d *= 2) {
    if (part % (2 * d) == 0) own = own + (&own)[d << log_columns];
    __syncthreads();
  }
  if (part > 0 || column >= l.rows) return;
  const F total = l.length > 0 ? own : F(0);
  store_as(call.memory.dtypes[which], call.memory.values[which], row_start(l, column).out, total);
}

}  // namespace torchreduce::gpu
