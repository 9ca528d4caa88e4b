// Reductions of wide columns: neighbouring lanes take neighbouring granules of a row.
#pragma once
#include "plain_product.cuh"
#include "split_columns.cuh"
#include "wide_columns.h"

namespace torchreduce::gpu {

// The value of granules kFirst to kFirst + kCount - 1, of accumulators of K rows each: the tree over these, each of
// which is moved(first granule, value) before. row(j): of granule j; there(j): whether there is one, else it has
// absent elements.
template <int K, int kFirst, int kCount, class Op, class E, int V, class Row, class There, class Move>
__device__ __forceinline__ void combine_rows(const Op& op, const ColumnGranule<E> (&x)[kInFlight], Row row, There there,
                                             Move move, typename Op::Near (&v)[V]) {
  if constexpr (kCount > K) {
    typename Op::Near right[V];
    combine_rows<K, kFirst, kCount / 2>(op, x, row, there, move, v);
    combine_rows<K, kFirst + kCount / 2, kCount / 2>(op, x, row, there, move, right);
    combine_all(v, right, [&](const typename Op::Near& l, const typename Op::Near& r) { return op.combine(l, r); });
  } else {
    op.template near_all<V>(x[kFirst].w, row(kFirst), v);
    if constexpr (!kHasAbsent<Op>) {
#pragma unroll
      for (int e = 0; e < V; ++e) v[e] = there(kFirst) ? v[e] : Op::absent();
    }
#pragma unroll
    for (int j = kFirst + 1; j < kFirst + K; ++j)
      if (kHasAbsent<Op> || there(j)) step_all<V>(op, x[j].w, row(j), v);
    move(kFirst, v);
  }
}

// Rows of accumulator a: row_of(q, a) + k * 2^log_r.
__device__ __forceinline__ int row_of(const ColumnCall& q, int a) {
  return (a >> q.log_r << (q.log_r + q.log_k)) + (a & ((1 << q.log_r) - 1));
}

// What a warp makes of accumulators `first` to first + span - 1 of its tile, `left` columns from `top` on. Positions
// count from base_row; `deep`: of ColumnTree.
template <bool kWhole, bool kRuns, class Op, class E, int V>
__device__ __forceinline__ void columns_part(const Op& op, const ColumnCall& q, const char* top, int left, int first,
                                             int span, int base_row, void* deep, typename Op::Near (&v)[V]) {
  using Near = typename Op::Near;
  using G = ColumnGranule<E>;
  const int at = lane_id() * V, step = 1 << q.log_r;
  const int64_t pitch = q.pitch * int64_t(sizeof(E));
  const G none = G::of(op.absent_element());
  // Of the batch that begins with accumulator a: as few rows an accumulator as there are, so that all of its granules
  // are there. Its row number j is as far down as the sum of down[bit] of the bits of j.
  int log_k, down[3];
  auto begin = [&](int a) {
    log_k = q.log_k;
    while (!Op::kAnyOrder && log_k > 0 && row_of(q, a) + (step << (log_k - 1)) >= q.n &&
           (a - first) % (kInFlight >> (log_k - 1)) == 0 && kInFlight >> (log_k - 1) <= span)
      --log_k;
#pragma unroll
    for (int bit = 0; bit < 3; ++bit) down[bit] = bit < log_k ? step << bit : 1 << (bit - log_k);
  };
  auto down_to = [&](int j) { return (j & 1 ? down[0] : 0) + (j & 2 ? down[1] : 0) + (j & 4 ? down[2] : 0); };
  const bool whole = kWhole || q.tile == kLanes * V;
  const int own = (at < left ? at : 0) * int(sizeof(E));  // a lane's granule, or the warp's first one where it has none
  const int short_pitch = int(pitch);
  const bool alike = !kRuns || q.jump % V == 0;  // an accumulator's rows start alike
  auto offset = [&](int row) { return kRuns ? row_offset(q, row) * int64_t(sizeof(E)) : row * pitch; };
  // Of row number j of a batch: elements of its granule that lie before the tile.
  auto moved = [&](int row, int j) {
    const uint32_t down =
        alike ? uint32_t(row + down_to(j)) * uint32_t(short_pitch) : uint32_t(offset(row + down_to(j)));
    return int((uint32_t(uintptr_t(top)) + down) & (G::kBytes - 1)) / int(sizeof(E));
  };
  auto granule = [&](int row, int j) {  // of the row, where it is not whole
    const int s = moved(row, j);
    return (at - s < left ? at - s : -s) * int(sizeof(E));
  };

  auto load = [&](int a, G(&x)[kInFlight]) {
    const int row = row_of(q, a), lowest = row + down_to(kInFlight - 1);
    const bool all = lowest < q.n && !q.ragged, simple = all && pitch == short_pitch && !(kRuns && q.jump);
    if (simple && whole) {
#pragma unroll
      for (int j = 0; j < kInFlight; ++j)
        x[j].load(reinterpret_cast<const char*>(multiply_add(row + down_to(j), short_pitch, int64_t(top) + own)));
    } else if (simple) {
#pragma unroll
      for (int j = 0; j < kInFlight; ++j)
        x[j].load(reinterpret_cast<const char*>(multiply_add(row + down_to(j), short_pitch, int64_t(top))) +
                  granule(row, j));
    } else if (kRuns && all && whole) {
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) x[j].load(top + own + offset(row + down_to(j)));
    } else {
      load_granules(
          q, none, [&](int j) { return row + down_to(j) < q.n; },
          [&](int j) { return top + offset(row + down_to(j)) + granule(row, j); }, x);
    }
  };
  auto combine = [&](int a, G(&x)[kInFlight], Near(&t)[V]) {
    const int first_row = row_of(q, a);
    auto row = [&](int j) { return first_row + down_to(j) - base_row; };
    auto all = [&](auto rows) {  // of an accumulator: where they start alike it is enough to move their value
      constexpr int K = decltype(rows)::value;
      if ((K == 1 || !alike) && !whole) {
#pragma unroll
        for (int j = 0; j < kInFlight; ++j) x[j].shift(moved(first_row, j));
      }
      combine_rows<K, 0, kInFlight>(
          op, x, row, [&](int j) { return first_row + down_to(j) < q.n; },
          [&](int j, Near(&u)[V]) {
            if (K > 1 && alike && !whole) shift_columns(u, moved(first_row, j));
          },
          t);
    };
    if (log_k == 3) all(std::integral_constant<int, 8>());
    else if (log_k == 2) all(std::integral_constant<int, 4>());
    else if (log_k == 1) all(std::integral_constant<int, 2>());
    else all(std::integral_constant<int, 1>());
  };

  ColumnTree<Op, V, Op::kAnyOrder> tree(deep);
  if (left <= 0) span = 0;
#pragma unroll 1
  for (int a = first; a < first + span && row_of(q, a) < q.n; a += kInFlight >> log_k) {
    begin(a);
    G x[kInFlight];
    load(a, x);
    Near t[V];
    combine(a, x, t);
    tree.push(op, t, q.log_k - log_k);
  }
  tree.total(op, v);
}
// The same of products of floats by powers, where that is rare, to shared memory: here as an array it would be in
// memory.
template <bool kWhole, bool kRuns, class Op, class E, int V>
__device__ TR_RARELY_CALLED void columns_part_by_powers(Op op, const ColumnCall& q, const char* top, int left,
                                                        int first, int span, int base_row, void* deep,
                                                        typename Op::Near* to) {
  typename Op::Near v[V];
  columns_part<kWhole, kRuns, Op, E, V>(op, q, top, left, first, span, base_row, deep, v);
  warp_barrier();
#pragma unroll
  for (int e = 0; e < V; ++e) to[e] = v[e];
}

// What a warp of a block has: a tile of a slice, and the accumulators of a unit or its share of them.
struct ColumnWork {
  int64_t slice;
  int group, unit, tile, first, span, left, base_row;
  int64_t column;  // the tile's first
  __device__ ColumnWork(const ColumnCall& q, int64_t block, int warp) {
    const bool alone = q.warps == 1;
    const int side_by_side = kWarps / q.warps, groups = alone ? q.tiles : (q.tiles + side_by_side - 1) / side_by_side;
    const int64_t id = alone ? block * kWarps + warp : block, above = id / groups;
    slice = above / q.units;
    group = int(id - above * groups);
    unit = int(above - slice * q.units);
    tile = alone ? group : group * side_by_side + warp / q.warps;
    column = int64_t(tile) * q.tile;
    left = int(column < q.inner ? (q.inner - column < q.tile ? q.inner - column : q.tile) : 0);
    span = q.span / q.warps;
    first = unit * q.span + warp % q.warps * span;
    base_row = row_of(q, unit * q.span);
  }
};

// Serves n >= 1 rows of neighbouring columns that start anywhere; kRuns: they may lie in several runs. Blocks take
// tiles of 32 granules (31, where rows are no whole granules: then a lane's columns are moved down from where they lie,
// and the last lane has none) and units of accumulators; tiles next to each other first. q.warps = 1: each warp has a
// tile and all of its rows. Else so many warps share a unit in equal runs of accumulators. Shared memory: of each warp
// wide_column_values, the deep levels of its ColumnTree and then its columns' values; where units meet, their two
// buffers (split_columns.cuh).
template <class Op, class Load, bool kWhole, bool kRuns>
__global__ void TR_BLOCKS_BOUND(kThreads, wide_column_blocks(sizeof(typename Load::Element), kTwoResults<Op>))
    reduce_wide_columns(TR_GRID_CONSTANT ColumnCall q) {
  using E = typename Load::Element;
  using Near = typename Op::Near;
  using G = ColumnGranule<E>;
  constexpr int V = G::kColumns, kRow = kLanes * V, kStage = wide_column_values(V, Op::kAnyOrder);  // of a warp
  TR_DYNAMIC_SHARED(shared, 16);
  Near* const values = reinterpret_cast<Near*>(shared);
  const Op op{q.options};
  const int warp = int(threadIdx.x) / kLanes;
  const bool alone = q.warps == 1;
  void* const deep = values + warp * kStage;
  Near v[V];
  {
    const ColumnWork w(q, blockIdx.x, warp);
    if (alone && w.slice >= q.outer) return;
    const char* const top =
        global(static_cast<const char*>(q.in)) + (slice_start(q, w.slice).in + w.column) * int64_t(sizeof(E));
    if constexpr (kMultipliesFloats<Op>) {
      const PlainProduct<Op> plain;
      typename Op::F products[V];
      columns_part<kWhole, kRuns, PlainProduct<Op>, E, V>(plain, q, top, w.left, w.first, w.span, w.base_row, deep,
                                                          products);
      bool holds = true;
#pragma unroll
      for (int e = 0; e < V; ++e) {
        holds &= plain.holds(products[e]);
        v[e] = normal_power(products[e]);
      }
      if (ballot(!holds)) {
        Near* const exact = values + warp * kStage + lane_id() * V;
        columns_part_by_powers<kWhole, kRuns, Op, E, V>(op, q, top, w.left, w.first, w.span, w.base_row, deep, exact);
#pragma unroll
        for (int e = 0; e < V; ++e) v[e] = exact[e];
      }
    } else {
      columns_part<kWhole, kRuns, Op, E, V>(op, q, top, w.left, w.first, w.span, w.base_row, deep, v);
    }
  }

  // Found again, so that no registers keep it meanwhile.
  const ColumnWork w(q, recomputed(int(blockIdx.x)), warp);
  const RowStart start = slice_start(q, w.slice);
  const int lane = lane_id();
  auto finish = [&](int64_t c, const Near& value) { finish_column(op, q, start, c, Op::far(value, w.base_row)); };
  warp_barrier();  // all lanes' trees are done
  if (alone && q.runs) return finish_run<Op, E>(op, q, start.out + w.column, w.left, v, values + warp * kStage);
#pragma unroll
  for (int e = 0; e < V; ++e) values[warp * kStage + lane * V + e] = v[e];
  if (alone) {
    warp_barrier();
    for (int c = lane; c < w.left; c += kLanes) finish(w.column + c, values[warp * kStage + c]);
    return;
  }
  __syncthreads();
  const int side_by_side = kWarps / q.warps;
  for (int i = int(threadIdx.x); i < side_by_side * kRow; i += kThreads) {
    const int t = i / kRow, c = i % kRow;
    const int64_t at = int64_t(w.group * side_by_side + t) * q.tile + c;
    Near y[kWarps];
#pragma unroll
    for (int k = 0; k < kWarps; ++k) y[k] = k < q.warps ? values[(t * q.warps + k) * kStage + c] : Op::near_absent();
#pragma unroll
    for (int d = 1; d < kWarps; d *= 2)
#pragma unroll
      for (int k = 0; k < kWarps; k += 2 * d) y[k] = Op::combine(y[k], y[k + d]);
    if (c >= q.tile || at >= q.inner) continue;
    if (q.units == 1) finish(at, y[0]);
    else put_partial<Op>(q, w.slice * q.tiles + w.tile, w.unit, q.tile, c, Op::far(y[0], w.base_row));
  }
  if (q.units == 1) return;
  combine_units<Op>(q, w.slice * q.tiles + w.tile, w.unit, q.tile, shared, [&](int c, const typename Op::Acc& acc) {
    if (c < w.left) finish_column(op, q, start, w.column + c, acc);
  });
}

}  // namespace torchreduce::gpu
