// Reductions of wide columns: neighbouring lanes take neighbouring granules of a row.
#pragma once
#include "split_columns.cuh"

namespace torchreduce::gpu {

// Eight granules of 8 / K accumulators, of K rows each, become the value of all those rows. row(j): the row of x[j], less
// the block's first.
template <class Op, class E, int V, class Row>
__device__ __forceinline__ void combine_granules(const Op& op, Granule<E> (&x)[kInFlight], int log_k, Row row,
                                                 typename Op::Near (&v)[V]) {
  using Near = typename Op::Near;
  auto combine = [](const Near& l, const Near& r) { return Op::combine(l, r); };
  auto follow = [](const Near& l, const Near& r) { return Op::follow(l, r); };
  auto get = [&](int j, Near (&t)[V]) { op.template near_all<V>(x[j].w, row(j), t); };
  auto run = [&](int first, int count, Near (&t)[V]) {
    get(first, t);
#pragma unroll
    for (int j = first + 1; j < first + count; ++j) {
      Near u[V];
      get(j, u);
      combine_all(t, u, follow);
    }
  };
  if (log_k >= 2) {
    run(0, 4, v);
    if (log_k == 3) {
#pragma unroll
      for (int j = 4; j < kInFlight; ++j) {
        Near u[V];
        get(j, u);
        combine_all(v, u, follow);
      }
    } else {
      Near t[V];
      run(4, 4, t);
      combine_all(v, t, combine);
    }
  } else {  // 1 row and 2 rows make the same tree
    Near t[V], u[V];
    run(0, 2, v);
    run(2, 2, t);
    combine_all(v, t, combine);
    run(4, 2, t);
    run(6, 2, u);
    combine_all(t, u, combine);
    combine_all(v, t, combine);
  }
}

// Serves n >= 1 rows of neighbouring columns that start anywhere. Blocks take tiles of 32 granules (31, where rows are
// no whole granules: then a lane's columns are moved down from where they lie, and the last lane has none) and units of
// accumulators; tiles next to each other first. q.warps = 1: each warp has a tile and all of its rows. Else so many
// warps share a unit in equal runs of accumulators.
// Shared memory: a value for each warp and column, Near[8][32 V], and the counters of ColumnTree; where units meet,
// their two buffers (split_columns.cuh).
template <class Op, class Load>
__global__ void TR_BLOCKS_BOUND(kThreads, column_blocks_of(sizeof(typename Load::Element)))
    reduce_columns(TR_GRID_CONSTANT ColumnCall q) {
  using E = typename Load::Element;
  using Near = typename Op::Near;
  using G = Granule<E>;
  constexpr int V = G::kColumns, kRow = kLanes * V;
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

  // Rows of accumulator a: row_of(a) + k * step.
  const int K = 1 << q.log_k, step = 1 << q.log_r, span = q.span / q.warps;
  auto row_of = [&](int a) { return (a >> q.log_r << (q.log_r + q.log_k)) + (a & (step - 1)); };
  const int first = unit * q.span + warp % q.warps * span, base_row = row_of(unit * q.span);
  const char* const top = global(static_cast<const char*>(q.in)) + (start.in + column) * int64_t(sizeof(E));
  const int64_t pitch = q.pitch * int64_t(sizeof(E));
  const G none = G::of(op.absent_element());

  ColumnTree<Op, V, kAnyOrder<Op>> tree(values + kWarps * kRow);
  for (int a = first; a < first + span; a += kInFlight >> q.log_k) {
    const int row = row_of(a);
    if (row >= q.n) break;
    auto down = [&](int j) { return (j >> q.log_k) + ((j & (K - 1)) << q.log_r); };
    auto moved = [&](const char* p) { return int(uintptr_t(p) & (G::kBytes - 1)) / int(sizeof(E)); };
    const char* const p = top + row * pitch;
    G x[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const char* const r = p + down(j) * pitch;
      const int s = moved(r);
      x[j] = none;
      if (row + down(j) < q.n && lane * V - s < left) x[j].load(r + (lane * V - s) * int(sizeof(E)));
    }
    // The rows of one accumulator start alike, so that it is enough to move their value.
    if (q.log_k < 3 && q.tile < kRow) {
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) x[j].shift(moved(p + down(j) * pitch));
    }
    Near v[V];
    combine_granules(op, x, q.log_k, [&](int j) { return row - base_row + down(j); }, v);
    if (q.log_k == 3 && q.tile < kRow) shift_columns(v, moved(p));
    tree.push(v);
  }
  Near v[V];
  tree.total(v);

  auto finish = [&](int64_t c, const Near& value) { finish_column(op, q, start, c, Op::far(value, base_row)); };
  if (alone && q.granules) {
    if (lane * V < left) finish_granule<Op, E>(op, q, start.out + column + lane * V, v);
    return;
  }
#pragma unroll
  for (int e = 0; e < V; ++e) values[(warp * kLanes + lane) * V + e] = v[e];
  if (alone) {
    warp_barrier();
    for (int c = lane; c < left; c += kLanes) finish(column + c, values[warp * kRow + c]);
    return;
  }
  __syncthreads();
  for (int i = int(threadIdx.x); i < side_by_side * kRow; i += kThreads) {
    const int t = i / kRow, c = i % kRow;
    const int64_t at = int64_t(group * side_by_side + t) * q.tile + c;
    Near y[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) y[w] = w < q.warps ? values[(t * q.warps + w) * kRow + c] : Op::near_absent();
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
