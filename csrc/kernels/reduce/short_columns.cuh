// Reductions of short columns: few rows, many columns. They write an eighth of what they read or more, so
// that loads by Stay::Long are faster (H100, of the best read, 7 rows of float32: sum 0.96 instead of 0.94, argmax 0.97
// instead of 0.92).
#pragma once
#include "column_lanes.cuh"
#include "short_columns.h"

namespace torchreduce::gpu {

// The tree over kRows granules, rows `first` and so on.
template <int kRows, class Op, class E, int V>
__device__ __forceinline__ void follow_rows(const Op& op, const ColumnGranule<E>* x, int first,
                                            typename Op::Near (&v)[V]) {
  if constexpr (kRows == 1) {
    op.template near_all<V>(x->w, first, v);
  } else {
    typename Op::Near right[V];
    follow_rows<kRows / 2>(op, x, first, v);
    follow_rows<kRows / 2>(op, x + kRows / 2, first + kRows / 2, right);
    combine_all(v, right, [](const typename Op::Near& l, const typename Op::Near& r) { return Op::follow(l, r); });
  }
}

// What a warp makes of 8 / kRows tiles from number `first` on, which are numbered over all slices, of at most kRows
// rows each: all of their granules are on their way at once. `stage`: of the warp's shared memory, Near[33 V].
template <int kRows, class Op, class E>
__device__ __forceinline__ void short_columns_part(const Op& op, const ColumnCall& q, int64_t first,
                                                   typename Op::Near* stage) {
  using Near = typename Op::Near;
  using G = ColumnGranule<E>;
  constexpr int V = G::kColumns, kTiles = kInFlight / kRows;
  const int at = lane_id() * V;
  const bool whole = q.tile == kLanes * V;
  const int64_t tiles = q.outer * q.tiles;
  const char* const in = global(static_cast<const char*>(q.in));
  int64_t slice = tiles <= INT32_MAX ? uint32_t(first) / uint32_t(q.tiles) : first / q.tiles;
  int tile = int(first - slice * q.tiles);
  RowStart start[kTiles];
  int left[kTiles], column[kTiles];
  bool simple = whole && !q.ragged && q.n == kRows;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    start[t] = slice_start(q, slice);
    column[t] = tile * q.tile;
    const int rest = q.inner - column[t];
    left[t] = first + t >= tiles ? 0 : rest < q.tile ? rest : q.tile;
    simple &= left[t] == kLanes * V;
    if (++tile == q.tiles) {
      tile = 0;
      ++slice;
    }
  }
  auto top = [&](int t) { return in + (start[t].in + column[t]) * int64_t(sizeof(E)); };
  auto row = [&](int j) { return row_offset(q, j % kRows) * int64_t(sizeof(E)); };
  G x[kInFlight];
  if (simple) {
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) x[j].template load<Stay::Long>(top(j / kRows) + row(j) + at * int(sizeof(E)));
  } else {
    int moved[kInFlight];
    const char* from[kInFlight];
    bool there[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const char* const granule = top(j / kRows) + row(j);
      moved[j] = int(uintptr_t(granule) & (G::kBytes - 1)) / int(sizeof(E));
      from[j] = granule + (at - moved[j]) * int(sizeof(E));
      there[j] = j % kRows < q.n && left[j / kRows] > 0 && at - moved[j] < left[j / kRows];
    }
    load_granules<Stay::Long>(
        q, G::of(op.absent_element()), [&](int j) { return there[j]; }, [&](int j) { return from[j]; }, x);
    if (!whole) {
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) x[j].shift(moved[j]);
    }
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    if (left[t] <= 0) break;
    Near v[V];
    follow_rows<kRows>(op, x + t * kRows, 0, v);
    if (q.runs) {
      finish_run<Op, E>(op, q, start[t].out + column[t], left[t], v, stage);
      continue;
    }
    warp_barrier();
#pragma unroll
    for (int e = 0; e < V; ++e) stage[at + e] = v[e];
    warp_barrier();
    for (int c = lane_id(); c < left[t]; c += kLanes)
      finish_column(op, q, start[t], column[t] + c, Op::far(stage[c], 0));
  }
}

// Serves n <= 8 rows of neighbouring columns that start anywhere. A warp takes 4, 2 or 1 tiles (see
// reduce_wide_columns) at once, and all rows of each. Shared memory: a tile's results for each warp, Near[8][33 V].
template <class Op, class Load>
__global__ void TR_BLOCKS_BOUND(kThreads, short_column_blocks(sizeof(typename Load::Element), kTwice<Op>))
    reduce_short_columns(TR_GRID_CONSTANT ColumnCall q) {
  using E = typename Load::Element;
  constexpr int V = ColumnGranule<E>::kColumns, kStage = (kLanes + 1) * V;
  alignas(16) __shared__ typename Op::Near values[kWarps * kStage];
  const Op op{q.options};
  const int warp = int(threadIdx.x) / kLanes;
  // q.log_k: of the rows, rounded up to a power of two.
  const int64_t first = (int64_t(blockIdx.x) * kWarps + warp) * (kInFlight >> q.log_k);
  if (first >= q.outer * q.tiles) return;
  typename Op::Near* const stage = values + warp * kStage;
  if (q.log_k == 1) short_columns_part<2, Op, E>(op, q, first, stage);
  else if (q.log_k == 2) short_columns_part<4, Op, E>(op, q, first, stage);
  else short_columns_part<8, Op, E>(op, q, first, stage);
}

}  // namespace torchreduce::gpu
