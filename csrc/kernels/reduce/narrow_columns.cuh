// Reductions of narrow columns: rows that follow each other are one run of memory, and so are the rows of neighbouring
// accumulators, whatever their width.
#pragma once
#include "kernels/common/shared_array.cuh"
#include "narrow_columns.h"
#include "split_columns.cuh"

namespace torchreduce::gpu {

// Words of shared memory are left out so that threads which are a power of two of them apart meet in fewer banks.
TR_HD constexpr int skewed(int i) { return i + (i >> 5); }

// Takes a granule's elements, those of row `row`, to v, which the first row begins; not those that are absent(e).
template <class Op, class G, class Absent, class A, int V>
__device__ __forceinline__ void take_granule(const Op& op, const G& x, int row, Absent absent, A (&v)[V]) {
  A t[V];
  if (row) {
#pragma unroll
    for (int e = 0; e < V; ++e) t[e] = v[e];
    step_all<V>(op, x.w, row, t);
  } else {
    op.template near_all<V>(x.w, 0, t);
  }
#pragma unroll
  for (int e = 0; e < V; ++e) {
    if (!absent(e)) v[e] = t[e];
    else if (row == 0) v[e] = Op::near_absent();
  }
}

// Finishes the columns of a unit, which are `all`, alone or with the slice's other units.
template <class Op>
__device__ __forceinline__ void finish_narrow_columns(const Op& op, const ColumnCall& q, RowStart start, int64_t slice,
                                                      int unit, int base_row, const typename Op::Near* all,
                                                      char* shared) {
  if (q.units == 1) {
    for (int c = int(threadIdx.x); c < q.inner; c += kThreads)
      finish_column(op, q, start, c, Op::far(all[c], base_row));
    return;
  }
  for (int c = int(threadIdx.x); c < q.inner; c += kThreads)
    put_partial<Op>(q, slice, unit, q.inner, c, Op::far(all[c], base_row));
  combine_units<Op>(q, slice, unit, q.inner, shared,
                    [&](int c, const typename Op::Acc& acc) { finish_column(op, q, start, c, acc); });
}

// Serves rows that follow each other in a slice, or in runs of whole granules. A block takes a unit of q.parts * q.span
// accumulators, q.span at a time: q.span / step pieces, or a part of one, each of which is K runs of memory that lie
// alike in granules. A lane adds K granules, one of each run, element by element, eight in flight, and leaves the
// values in shared memory; trees of 8 over the rows there. E.g. sums of float32 (2048, 10): accumulators of K = 8 rows,
// 256 apart. A run is the 2560 elements of 256 rows, 640 granules; thread t adds granule t of each of 8 runs, and then
// those 256 and 512 further on. Elements 4 t to 4 t + 3 of a run are of row (4 t + i) / 10 and column (4 t + i) % 10.
// Shared memory: the parts' results, Near[parts][inner], if there are several; the values, Near[skewed(span * inner)];
// rows left by the trees, Near[span / 8][inner] and [span / 64]; where units meet, their two buffers
// (split_columns.cuh). kOneRun: all rows are in one.
template <class Op, class Load, bool kOneRun>
__global__ void TR_BLOCKS_BOUND(kThreads, narrow_column_blocks(sizeof(typename Load::Element), kTwice<Op>))
    reduce_narrow_columns(TR_GRID_CONSTANT ColumnCall q) {
  using E = typename Load::Element;
  using Near = typename Op::Near;
  using G = ColumnGranule<E>;
  constexpr int V = G::kColumns, kSize = int(sizeof(E));
  TR_DYNAMIC_SHARED(shared, 16);
  const Op op{q.options};
  const int K = 1 << q.log_k, step = 1 << q.log_r, inner = q.inner;
  const int64_t slice = int64_t(blockIdx.x) / q.units;
  const int unit = int(int64_t(blockIdx.x) - slice * q.units);
  const RowStart start = slice_start(q, slice);
  auto row_of = [&](int a) { return (a >> q.log_r << (q.log_r + q.log_k)) + (a & (step - 1)); };
  const int base_row = row_of(unit * q.parts * q.span);
  Near* const kept = in_register(reinterpret_cast<Near*>(shared));
  Near* const values = kept + (q.parts > 1 ? q.parts * inner : 0);
  Near* const a = values + skewed(q.span * inner) + 1;
  Near* const b = a + (q.span + 7) / 8 * inner;

  // In elements from a part's first one: a run, from a run to the next, the end of the slice.
  const int run = (q.span < step ? q.span : step) * inner, next_run = step * inner;
  const G none = G::of(op.absent_element());
  const Near* all = nullptr;
  for (int part = 0; part < q.parts; ++part) {
    const int first_row = row_of((unit * q.parts + part) * q.span);
    const int64_t rest = int64_t(q.n - first_row) * inner;
    const int end = int(rest < 0 ? 0 : rest < 1 << 30 ? rest : 1 << 30);
    const char* const top = global(static_cast<const char*>(q.in)) + (start.in + int64_t(first_row) * inner) * kSize;
    const int before = int(uintptr_t(top) & (G::kBytes - 1)) / kSize;  // elements of its granule that lie before a run
    const int granules = (run + before + V - 1) / V, total = (q.span < step ? 1 : q.span / step) * granules;
    const FastDivide by_granules(granules);

    // Takes U granules, kThreads apart, of each of K runs, of which M at a time, from number i on. U = 1 or K = M.
    auto take = [&](auto together, auto at_a_time, int i) {
      constexpr int U = decltype(together)::value, M = decltype(at_a_time)::value;
      auto piece_of = [&](int u) { return granules == total ? 0 : by_granules.quotient(i + u * kThreads); };
      // Where it begins in its run, and in the first run of its piece from the part's first element on.
      auto in_run = [&](int u) { return (i + u * kThreads - piece_of(u) * granules) * V - before; };
      auto at = [&](int u) { return i + u * kThreads < total ? in_run(u) + piece_of(u) * K * next_run : end; };
      Near v[V];
      for (int k0 = 0; k0 < K; k0 += M) {
        G x[U][M];
#pragma unroll
        for (int u = 0; u < U; ++u) {
          const int first = at(u) + k0 * next_run;
          auto there = [&](int k) { return first + k * next_run < end; };
          auto element = [&](int k) { return top + int64_t(first + k * next_run) * kSize; };
          auto after_jumps = [&](int k) {
            return element(k) + q.by_elements.quotient(first_row * inner + first + k * next_run) * (q.jump * kSize);
          };
          if (!kOneRun && has_small_columns<Op>(DtypeOf<E>::value) && q.jump)
            load_granules(q, none, there, after_jumps, x[u]);
          else load_granules(q, none, there, element, x[u]);
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
          if (i + u * kThreads >= total) break;
          const int first = at(u) + k0 * next_run;
          const bool ends = first + (M - 1) * next_run + V > end;
#pragma unroll
          for (int k = 0; k < M; ++k) {
            auto absent = [&](int e) { return ends && first + k * next_run + e >= end; };
            take_granule(op, x[u][k], k0 + k, absent, v);
          }
          if (k0 + M < K) continue;
          const int from = in_run(u), to = from + piece_of(u) * run;
          Near* const place = values + skewed(to);
          if (from >= 0 && from + V <= run && (to & 31) + V <= 32) {  // no gap among them
#pragma unroll
            for (int e = 0; e < V; ++e) place[e] = v[e];
          } else {
#pragma unroll
            for (int e = 0; e < V; ++e)
              if (from + e >= 0 && from + e < run) values[skewed(to + e)] = v[e];
          }
        }
      }
    };
    auto take_all = [&](auto together, auto at_a_time) {
      for (int i = int(threadIdx.x); i < total; i += decltype(together)::value * kThreads) take(together, at_a_time, i);
    };
    if (q.log_k >= 3) take_all(std::integral_constant<int, 1>(), std::integral_constant<int, 8>());
    else if (q.log_k == 2) take_all(std::integral_constant<int, 2>(), std::integral_constant<int, 4>());
    else if (q.log_k == 1) take_all(std::integral_constant<int, 4>(), std::integral_constant<int, 2>());
    else take_all(std::integral_constant<int, 4>(), std::integral_constant<int, 1>());
    __syncthreads();
    all = fold_rows<Op>(q.span, inner, a, b, Op::near_absent(), [&](int r, int c) {
      return Op::place(values[skewed(r * inner + c)], first_row - base_row + row_of(r), step);
    });
    if (q.parts > 1)
      for (int c = int(threadIdx.x); c < inner; c += kThreads) kept[part * inner + c] = all[c];
  }
  if (q.parts > 1) {
    __syncthreads();
    all = fold_rows<Op>(q.parts, inner, a, b, Op::near_absent(), [&](int r, int c) { return kept[r * inner + c]; });
  }
  finish_narrow_columns(op, q, start, slice, unit, base_row, all, shared);
}

}  // namespace torchreduce::gpu
