// Reductions of wide columns: neighbouring lanes take neighbouring granules of a row.
#pragma once
#include "plain_product.cuh"
#include "split_columns.cuh"
#include "wide_columns.h"

namespace torchreduce::gpu {

// Eight granules become the value of their rows: of one accumulator, rows `first` + j * step of the block's;
template <class Op, class E, int V>
__device__ __forceinline__ void combine_run(const Op& op, const ColumnGranule<E> (&x)[kInFlight], int first, int step,
                                            typename Op::Near (&v)[V]) {
  op.template near_all<V>(x[0].w, first, v);
#pragma unroll
  for (int j = 1; j < kInFlight; ++j) step_all<V>(op, x[j].w, first + j * step, v);
}
// or of 8 / K accumulators of K rows each, 1, 2 or 4, where x[j] is of row(j).
template <class Op, class E, int V, class Row>
__device__ __forceinline__ void combine_runs(const Op& op, const ColumnGranule<E> (&x)[kInFlight], int log_k, Row row,
                                             typename Op::Near (&v)[V]) {
  using Near = typename Op::Near;
  auto combine = [&](const Near& l, const Near& r) { return op.combine(l, r); };
  auto get = [&](int j, Near(&t)[V]) { op.template near_all<V>(x[j].w, row(j), t); };
  auto add = [&](int j, Near(&t)[V]) { step_all<V>(op, x[j].w, row(j), t); };
  auto half = [&](int first, Near(&t)[V]) {
    Near u[V];
    get(first, t);
    if (log_k > 0 || !kSteps<Op>) {  // 1 row and 2 rows make the same tree, unless a step is not a combination
      add(first + 1, t);
    } else {
      get(first + 1, u);
      combine_all(t, u, combine);
    }
    if (log_k == 2) {
      add(first + 2, t);
      add(first + 3, t);
      return;
    }
    get(first + 2, u);
    if (log_k > 0 || !kSteps<Op>) {
      add(first + 3, u);
    } else {
      Near w[V];
      get(first + 3, w);
      combine_all(u, w, combine);
    }
    combine_all(t, u, combine);
  };
  Near t[V];
  half(0, v);
  half(4, t);
  combine_all(v, t, combine);
}

// Rows of accumulator a: row_of(q, a) + k * 2^log_r.
__device__ __forceinline__ int row_of(const ColumnCall& q, int a) {
  return (a >> q.log_r << (q.log_r + q.log_k)) + (a & ((1 << q.log_r) - 1));
}

// What a warp makes of accumulators `first` to first + span - 1 of its tile, `left` columns from `top` on. Positions
// count from base_row; `deep`: of ColumnTree.
template <class Op, class E, int V>
__device__ __forceinline__ void columns_part(const Op& op, const ColumnCall& q, const char* top, int left, int first,
                                             int span, int base_row, void* deep, typename Op::Near (&v)[V]) {
  using Near = typename Op::Near;
  using G = ColumnGranule<E>;
  const int lane = lane_id(), step = 1 << q.log_r;
  const int64_t pitch = q.pitch * int64_t(sizeof(E));
  const G none = G::of(op.absent_element());

  ColumnTree<Op, V, Op::kAnyOrder> tree(deep);
  for (int a = first, next; a < first + span && left > 0; a = next) {
    const int row = row_of(q, a);
    if (row >= q.n) break;
    // As few rows an accumulator as there are, so that all granules of a batch are there.
    int log_k = q.log_k;
    while (!Op::kAnyOrder && log_k > 0 && row + (step << (log_k - 1)) >= q.n && a % (kInFlight >> (log_k - 1)) == 0)
      --log_k;
    next = a + (kInFlight >> log_k);
    // Row number down_to(j) of a batch: the sum of these of the bits of j.
    int down[3];
#pragma unroll
    for (int bit = 0; bit < 3; ++bit) down[bit] = bit < log_k ? step << bit : 1 << (bit - log_k);
    const int64_t pitches[3] = {down[0] * pitch, down[1] * pitch, down[2] * pitch};
    auto down_to = [&](int j) { return (j & 1 ? down[0] : 0) + (j & 2 ? down[1] : 0) + (j & 4 ? down[2] : 0); };
    const char* const p = top + row * pitch;
    auto row_at = [&](int j) {
      return p + ((j & 1 ? pitches[0] : 0) + (j & 2 ? pitches[1] : 0) + (j & 4 ? pitches[2] : 0));
    };
    auto moved = [&](int j) { return int(uintptr_t(row_at(j)) & (G::kBytes - 1)) / int(sizeof(E)); };
    // A lane's granule, or the warp's first one where it has none.
    auto granule = [&](int j) {
      const int s = moved(j);
      return row_at(j) + (lane * V - s < left ? lane * V - s : -s) * int(sizeof(E));
    };
    G x[kInFlight];
    Near t[V];
    const bool all = row + down_to(kInFlight - 1) < q.n;
    if (log_k == 3) {
      // The rows of an accumulator start alike, so that it is enough to move their value.
      const char* const lowest = granule(0);
      load_granules(
          q, none, [&](int j) { return all || row + down_to(j) < q.n; }, [&](int j) { return lowest + j * pitches[0]; },
          x);
      combine_run(op, x, row - base_row, step, t);
      if (q.tile < kLanes * V) shift_columns(t, moved(0));
    } else {
      load_granules(q, none, [&](int j) { return all || row + down_to(j) < q.n; }, granule, x);
      if (q.tile < kLanes * V) {
#pragma unroll
        for (int j = 0; j < kInFlight; ++j) x[j].shift(moved(j));
      }
      combine_runs(op, x, log_k, [&](int j) { return row - base_row + down_to(j); }, t);
    }
    tree.push(op, t, q.log_k - log_k);
  }
  tree.total(op, v);
}
// The same of products of floats by powers, where that is rare, to shared memory: here as an array it would be in
// memory.
template <class Op, class E, int V>
__device__ TR_RARELY_CALLED void columns_part_by_powers(Op op, const ColumnCall& q, const char* top, int left,
                                                        int first, int span, int base_row, void* deep,
                                                        typename Op::Near* to) {
  typename Op::Near v[V];
  columns_part<Op, E, V>(op, q, top, left, first, span, base_row, deep, v);
#pragma unroll
  for (int e = 0; e < V; ++e) to[e] = v[e];
}

// Serves n >= 1 rows of neighbouring columns that start anywhere. Blocks take tiles of 32 granules (31, where rows are
// no whole granules: then a lane's columns are moved down from where they lie, and the last lane has none) and units of
// accumulators; tiles next to each other first. q.warps = 1: each warp has a tile and all of its rows. Else so many
// warps share a unit in equal runs of accumulators.
// Shared memory: a value for each warp and column, Near[8][33 V], and the counters of ColumnTree; where units meet,
// their two buffers (split_columns.cuh).
template <class Op, class Load>
__global__ void TR_BLOCKS_BOUND(kThreads, wide_column_blocks(sizeof(typename Load::Element)))
    reduce_wide_columns(TR_GRID_CONSTANT ColumnCall q) {
  using E = typename Load::Element;
  using Near = typename Op::Near;
  using G = ColumnGranule<E>;
  constexpr int V = G::kColumns, kRow = kLanes * V, kStage = kRow + V;  // of a warp
  TR_DYNAMIC_SHARED(shared, 16);
  Near* const values = reinterpret_cast<Near*>(shared);
  const Op op{q.options};
  const int warp = int(threadIdx.x) / kLanes, lane = lane_id();
  const bool alone = q.warps == 1;
  const int side_by_side = kWarps / q.warps, groups = alone ? q.tiles : (q.tiles + side_by_side - 1) / side_by_side;
  const int64_t id = alone ? int64_t(blockIdx.x) * kWarps + warp : int64_t(blockIdx.x);
  const int64_t above = id / groups, slice = above / q.units;
  const int group = int(id - above * groups), unit = int(above - slice * q.units);
  if (alone && slice >= q.outer) return;
  const int tile = alone ? group : group * side_by_side + warp / q.warps;
  const RowStart start = slice_start(q, slice);
  const int64_t column = int64_t(tile) * q.tile;  // the tile's first
  const int left = int(column < q.inner ? (q.inner - column < q.tile ? q.inner - column : q.tile) : 0);
  const int span = q.span / q.warps, first = unit * q.span + warp % q.warps * span, base_row = row_of(q, unit * q.span);
  const char* const top = global(static_cast<const char*>(q.in)) + (start.in + column) * int64_t(sizeof(E));
  void* const deep = values + kWarps * kStage;
  Near v[V];
  if constexpr (kMultipliesFloats<Op>) {
    const PlainProduct<Op> plain;
    typename Op::F products[V];
    columns_part<PlainProduct<Op>, E, V>(plain, q, top, left, first, span, base_row, deep, products);
    bool holds = true;
#pragma unroll
    for (int e = 0; e < V; ++e) {
      holds &= plain.holds(products[e]);
      v[e] = normal_power(products[e]);
    }
    if (ballot(!holds)) {
      Near* const exact = values + warp * kStage + lane * V;
      columns_part_by_powers<Op, E, V>(op, q, top, left, first, span, base_row, deep, exact);
#pragma unroll
      for (int e = 0; e < V; ++e) v[e] = exact[e];
    }
  } else {
    columns_part<Op, E, V>(op, q, top, left, first, span, base_row, deep, v);
  }

  auto finish = [&](int64_t c, const Near& value) { finish_column(op, q, start, c, Op::far(value, base_row)); };
  if (alone && q.runs) return finish_run<Op, E>(op, q, start.out + column, left, v, values + warp * kStage);
#pragma unroll
  for (int e = 0; e < V; ++e) values[warp * kStage + lane * V + e] = v[e];
  if (alone) {
    warp_barrier();
    for (int c = lane; c < left; c += kLanes) finish(column + c, values[warp * kStage + c]);
    return;
  }
  __syncthreads();
  for (int i = int(threadIdx.x); i < side_by_side * kRow; i += kThreads) {
    const int t = i / kRow, c = i % kRow;
    const int64_t at = int64_t(group * side_by_side + t) * q.tile + c;
    Near y[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) y[w] = w < q.warps ? values[(t * q.warps + w) * kStage + c] : Op::near_absent();
#pragma unroll
    for (int d = 1; d < kWarps; d *= 2)
#pragma unroll
      for (int w = 0; w < kWarps; w += 2 * d) y[w] = Op::combine(y[w], y[w + d]);
    if (c >= q.tile || at >= q.inner) continue;
    if (q.units == 1) finish(at, y[0]);
    else put_partial<Op>(q, slice * q.tiles + tile, unit, q.tile, c, Op::far(y[0], base_row));
  }
  if (q.units == 1) return;
  combine_units<Op>(q, slice * q.tiles + tile, unit, q.tile, shared, [&](int c, const typename Op::Acc& acc) {
    if (c < left) finish_column(op, q, start, column + c, acc);
  });
}

}  // namespace torchreduce::gpu
