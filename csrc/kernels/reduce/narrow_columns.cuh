// Reductions of narrow columns: rows that follow each other are one run of memory, and so are the rows of neighbouring
// accumulators, whatever their width.
#pragma once
#include "split_columns.cuh"

namespace torchreduce::gpu {

// Words of shared memory are left out so that threads which are a power of two of them apart meet in fewer banks.
TR_HD constexpr int skewed(int i) { return i + (i >> 5); }

// Serves slices without gaps between rows. A block takes a unit of q.span accumulators: q.span / step pieces, or a part
// of one, each of which is K runs of memory that lie alike in granules. A lane adds K granules, one of each run, element
// by element, eight in flight, and leaves the values in shared memory; trees of 8 over the rows there.
// Shared memory: the values, Near[skewed(span * inner)]; rows left by the trees, Near[span / 8][inner] and [span / 64];
// where units meet, their two buffers (split_columns.cuh).
template <class Op, class Load>
__global__ void TR_BLOCKS_BOUND(kThreads, narrow_blocks_of(sizeof(typename Op::Near)))
    reduce_narrow_columns(TR_GRID_CONSTANT ColumnCall q) {
  using E = typename Load::Element;
  using Near = typename Op::Near;
  using G = Granule<E>;
  constexpr int V = G::kColumns, kSize = int(sizeof(E));
  TR_DYNAMIC_SHARED(shared, 16);
  Near* const values = reinterpret_cast<Near*>(shared);
  const Op op{q.options};
  const int K = 1 << q.log_k, step = 1 << q.log_r, inner = q.inner;
  const int64_t slice = int64_t(blockIdx.x) / q.units;
  const int unit = int(int64_t(blockIdx.x) - slice * q.units);
  const RowStart start = slice_start(q, slice);
  auto row_of = [&](int a) { return (a >> q.log_r << (q.log_r + q.log_k)) + (a & (step - 1)); };
  const int base_row = row_of(unit * q.span);

  // In elements from the unit's first one: a run, from a run to the next, the end of the slice.
  const int run = (q.span < step ? q.span : step) * inner;
  const int64_t rest = int64_t(q.n - base_row) * inner;
  const int next_run = step * inner, end = int(rest < INT32_MAX ? rest : INT32_MAX);
  const char* const top = global(static_cast<const char*>(q.in)) + (start.in + int64_t(base_row) * inner) * kSize;
  const int before = int(uintptr_t(top) & (G::kBytes - 1)) / kSize;  // elements of its granule that lie before a run
  const int granules = (run + before + V - 1) / V, total = (q.span < step ? 1 : q.span / step) * granules;
  const G none = G::of(op.absent_element());
  const FastDivide by_granules(granules);

  for (int i = int(threadIdx.x); i < total; i += kThreads << (3 - q.log_k)) {
    G x[kInFlight];
    int at[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const int g = i + (j >> q.log_k) * kThreads, piece = granules == total ? 0 : by_granules.quotient(g);
      at[j] = (g - piece * granules) * V - before + (piece * K + (j & (K - 1))) * next_run;
      x[j] = none;
      if (g < total && at[j] < end) x[j].load(top + int64_t(at[j]) * kSize);
    }
    Near v[V];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const int k = j & (K - 1);
      Near t[V];
      op.template near_all<V>(x[j].w, k, t);
      if (at[j] + V > end) {
#pragma unroll
        for (int e = 0; e < V; ++e)
          if (at[j] + e >= end) t[e] = Op::near_absent();
      }
#pragma unroll
      for (int e = 0; e < V; ++e) v[e] = k ? Op::follow(v[e], t[e]) : t[e];
      const int g = i + (j >> q.log_k) * kThreads;
      if (k < K - 1 || g >= total) continue;
      const int piece = granules == total ? 0 : by_granules.quotient(g), in_run = (g - piece * granules) * V - before;
      Near* const to = values + skewed(piece * run + in_run);
      if (before == 0 && in_run + V <= run) {  // then a granule never lies on both sides of a gap
#pragma unroll
        for (int e = 0; e < V; ++e) to[e] = v[e];
      } else {
#pragma unroll
        for (int e = 0; e < V; ++e)
          if (in_run + e >= 0 && in_run + e < run) values[skewed(piece * run + in_run + e)] = v[e];
      }
    }
  }
  __syncthreads();

  Near* const a = values + skewed(q.span * inner) + 1;
  const Near* const all = fold_rows<Op>(q.span, inner, a, a + (q.span + 7) / 8 * inner, Op::near_absent(),
                                        [&](int r, int c) {
    return Op::place(values[skewed(r * inner + c)], row_of(r), step);
  });
  if (q.units == 1) {
    for (int c = int(threadIdx.x); c < inner; c += kThreads) finish_column(op, q, start, c, Op::far(all[c], base_row));
    return;
  }
  for (int c = int(threadIdx.x); c < inner; c += kThreads)
    put_partial<Op>(q, slice, unit, inner, c, Op::far(all[c], base_row));
  combine_units<Op>(q, slice, unit, inner, shared, [&](int c, const typename Op::Acc& acc) {
    finish_column(op, q, start, c, acc);
  });
}

}  // namespace torchreduce::gpu
