// Reductions of short columns: few rows, many columns.
#pragma once
#include "column_lanes.cuh"
#include "short_columns.h"

namespace torchreduce::gpu {

// Serves n <= 8 rows of neighbouring columns that start anywhere. A warp takes 8, 4, 2 or 1 tiles (see
// reduce_wide_columns) at once, so that eight granules a lane are in flight, and all rows of each. Shared memory: a
// tile's results for each warp, Near[8][33 V].
template <class Op, class Load>
__global__ void TR_BLOCKS_BOUND(kThreads, short_column_blocks(sizeof(typename Load::Element), kPowers<Op>))
    reduce_short_columns(TR_GRID_CONSTANT ColumnCall q) {
  using E = typename Load::Element;
  using Near = typename Op::Near;
  using G = ColumnGranule<E>;
  constexpr int V = G::kColumns, kRow = kLanes * V, kStage = kRow + V;
  alignas(16) __shared__ Near values[kWarps * kStage];
  const Op op{q.options};
  const int warp = int(threadIdx.x) / kLanes, lane = lane_id();
  // q.log_k: of the rows, rounded up to a power of two. Tiles are numbered over all slices.
  const int rows = 1 << q.log_k, together = kInFlight >> q.log_k;
  const int64_t tiles = q.outer * q.tiles, first = (int64_t(blockIdx.x) * kWarps + warp) * together;
  if (first >= tiles) return;
  const int64_t pitch = q.pitch * int64_t(sizeof(E));
  RowStart start[kInFlight / 2];
  int left[kInFlight / 2], column[kInFlight / 2];
#pragma unroll
  for (int t = 0; t < kInFlight / 2; ++t) {
    start[t] = {0, 0};
    left[t] = column[t] = 0;
    if (t >= together || first + t >= tiles) continue;
    const int64_t slice = first + t < UINT32_MAX ? uint32_t(first + t) / uint32_t(q.tiles) : (first + t) / q.tiles;
    column[t] = int(first + t - slice * q.tiles) * q.tile;
    start[t] = slice_start(q, slice);
    left[t] = q.inner - column[t] < q.tile ? q.inner - column[t] : q.tile;
  }
  const char* const in = global(static_cast<const char*>(q.in));
  const G none = G::of(op.absent_element());
  G x[kInFlight];
  int moved[kInFlight];
  const char* from[kInFlight];
  bool there[kInFlight];
#pragma unroll
  for (int j = 0; j < kInFlight; ++j) {
    // Tile j >> q.log_k, without an index that is not known.
    const int t = j >> 1;
    const RowStart s = rows == 2 ? start[t] : rows == 4 ? start[t >> 1] : start[0];
    const int c = rows == 2 ? column[t] : rows == 4 ? column[t >> 1] : column[0];
    const int more = rows == 2 ? left[t] : rows == 4 ? left[t >> 1] : left[0];
    const char* const p = in + (s.in + c) * int64_t(sizeof(E)) + (j & (rows - 1)) * pitch;
    moved[j] = int(uintptr_t(p) & (G::kBytes - 1)) / int(sizeof(E));
    from[j] = p + (lane * V - moved[j]) * int(sizeof(E));
    there[j] = (j & (rows - 1)) < q.n && more > 0 && lane * V - moved[j] < more;
  }
  load_granules(q, none, [&](int j) { return there[j]; }, [&](int j) { return from[j]; }, x);
  if (q.tile < kRow) {
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) x[j].shift(moved[j]);
  }
  auto follow = [](const Near& l, const Near& r) { return Op::follow(l, r); };
  Near v[kInFlight / 2][V];
#pragma unroll
  for (int j = 0; j < kInFlight; j += 2) {
    Near t[V];
    op.template near_all<V>(x[j].w, j & (rows - 1), v[j / 2]);
    op.template near_all<V>(x[j + 1].w, (j + 1) & (rows - 1), t);
    combine_all(v[j / 2], t, follow);
  }
  if (rows > 2) {
    combine_all(v[0], v[1], follow);
    combine_all(v[2], v[3], follow);
    if (rows > 4) combine_all(v[0], v[2], follow);
#pragma unroll
    for (int e = 0; e < V; ++e) v[1][e] = v[2][e];
  }
#pragma unroll
  for (int t = 0; t < kInFlight / 2; ++t) {
    if (left[t] <= 0) break;
    if (q.runs) {
      finish_run<Op, E>(op, q, start[t].out + column[t], left[t], v[t], values + warp * kStage);
      continue;
    }
    warp_barrier();
#pragma unroll
    for (int e = 0; e < V; ++e) values[warp * kStage + lane * V + e] = v[t][e];
    warp_barrier();
    for (int c = lane; c < left[t]; c += kLanes)
      finish_column(op, q, start[t], column[t] + c, Op::far(values[warp * kStage + c], 0));
  }
}

}  // namespace torchreduce::gpu
