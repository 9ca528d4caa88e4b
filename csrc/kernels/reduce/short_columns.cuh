// Reductions of short columns: few rows, many columns.
#pragma once
#include "column_lanes.cuh"

namespace torchreduce::gpu {

// Serves n <= 8 rows of neighbouring columns that start anywhere. A warp takes 8, 4, 2 or 1 tiles (see reduce_columns)
// at once, so that eight granules a lane are in flight, and all rows of each.
// Shared memory: a tile's results for each warp, Near[8][32 V].
template <class Op, class Load>
__global__ void TR_BLOCKS_BOUND(kThreads, short_blocks_of(sizeof(typename Load::Element), Op::kIndexed))
    reduce_short_columns(TR_GRID_CONSTANT ColumnCall q) {
  using E = typename Load::Element;
  using Near = typename Op::Near;
  using G = Granule<E>;
  constexpr int V = G::kColumns, kRow = kLanes * V;
  __shared__ Near values[kWarps * kRow];
  const Op op{q.options};
  const int warp = int(threadIdx.x) / kLanes, lane = lane_id();
  // q.log_k: of the rows, rounded up to a power of two.
  const int rows = 1 << q.log_k, together = kInFlight >> q.log_k, groups = (q.tiles + together - 1) / together;
  const int64_t id = int64_t(blockIdx.x) * kWarps + warp, slice = id / groups;
  if (slice >= q.outer) return;
  const RowStart start = slice_start(q, slice);
  const int64_t column = (id - slice * groups) * together * q.tile;
  const int64_t pitch = q.pitch * int64_t(sizeof(E));
  const char* const top = global(static_cast<const char*>(q.in)) + (start.in + column) * int64_t(sizeof(E));
  auto moved = [&](const char* p) { return int(uintptr_t(p) & (G::kBytes - 1)) / int(sizeof(E)); };
  auto at = [&](int j) { return top + (j & (rows - 1)) * pitch + (j >> q.log_k) * q.tile * int(sizeof(E)); };
  auto left = [&](int tile) {
    const int64_t more = q.inner - column - tile * q.tile;
    return int(more < q.tile ? more : q.tile);
  };

  const G none = G::of(op.absent_element());
  G x[kInFlight];
#pragma unroll
  for (int j = 0; j < kInFlight; ++j) {
    const int s = moved(at(j));
    x[j] = none;
    if ((j & (rows - 1)) < q.n && lane * V - s < left(j >> q.log_k)) x[j].load(at(j) + (lane * V - s) * int(sizeof(E)));
  }
  if (q.tile < kRow) {
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) x[j].shift(moved(at(j)));
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
    if (t >= together || left(t) <= 0) break;
    const int64_t first = column + t * q.tile;
    if (q.granules) {
      if (lane * V < left(t)) finish_granule<Op, E>(op, q, start.out + first + lane * V, v[t]);
      continue;
    }
    warp_barrier();
#pragma unroll
    for (int e = 0; e < V; ++e) values[(warp * kLanes + lane) * V + e] = v[t][e];
    warp_barrier();
    for (int c = lane; c < left(t); c += kLanes)
      finish_column(op, q, start, first + c, Op::far(values[warp * kRow + c], 0));
  }
}

}  // namespace torchreduce::gpu
