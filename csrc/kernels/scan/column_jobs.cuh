// What kernels of columns share: which columns a job has, and how results of neighbouring ones become words.
#pragma once
#include "kernels/tile/carry.cuh"
#include "rows.cuh"

namespace torchreduce::gpu {

// a / b for 0 <= a < 2^52, given about 1 / b: a division of 64-bit integers takes a microsecond.
__device__ __forceinline__ int64_t quotient(int64_t a, int64_t b, double share) {
  int64_t q = int64_t(double(a) * share);
  const int64_t rest = a - q * b;
  if (rest < 0) --q;
  if (rest >= b) ++q;
  return q;
}

// What strides along the columns of a row are, 0 where columns do not lie side by side.
__device__ __forceinline__ int64_t beside(const Layout& layout, const int64_t (&strides)[kMaxDims]) {
  return layout.kept > 0 ? strides[layout.kept - 1] : 0;
}
__device__ __forceinline__ int64_t columns_beside(const Layout& layout) {
  return layout.kept > 0 ? layout.size[layout.kept - 1] : 1;
}

// A part of some neighbouring columns: `unit` of those that a column is cut into.
struct ColumnJob {
  int64_t batch, first, unit, in, out;  // first: column; in, out: of its first element
  int width;                            // columns
};
// Number `ticket` of the parts of `columns` columns and `positions` positions, of which a column has `units`: all of a
// unit before those of the next one.
__device__ __forceinline__ ColumnJob column_job(const Layout& layout, int64_t ticket, int64_t units, int64_t positions,
                                                int64_t columns) {
  const ScanStride stride = scan_stride(layout);
  const int64_t width = columns_beside(layout), strips = (width + columns - 1) / columns;
  const int64_t rest = ticket / strips, first = (ticket - rest * strips) * columns;
  const int64_t batch = rest / units, unit = rest - batch * units, position = unit * positions;
  const RowStart start = row_start(layout, batch, layout.kept - 1);
  return {batch,
          first,
          unit,
          start.in + position * stride.in + first * beside(layout, layout.in),
          start.out + position * stride.out + first * beside(layout, layout.out),
          int(width - first < columns ? width - first : columns)};
}

// Results of scan S in some neighbouring columns, which together are whole words, rounded once each, as words: position
// by position.
template <class T, class S, int N, int W, class Result>
__device__ __forceinline__ void round_columns(const Result (&r)[N][kGroup], Packed<uint32_t, W> (&words)[kGroup],
                                              int word) {
  if constexpr (kLooksForNan<T, Result>) {
    bool nan = false;
#pragma unroll
    for (int v = 0; v < N; ++v) nan = nan || has_nan<S>(r[v]);
    if (!nan) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        words[i].item[word] = sizeof(T) == 4 ? bit_cast<uint32_t>(r[0][i]) : round_pair<T>(r[0][i], r[N - 1][i]);
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    T side[N];
#pragma unroll
    for (int v = 0; v < N; ++v) side[v] = round_to<T>(r[v][i]);
    memcpy(&words[i].item[word], side, sizeof side);
  }
}

// What with(join) forms of `values` by joins: `results`, of which each is of the values up to its place, or a single
// one of all. Without choices where the scan has such a way and all values allow it.
template <class S, class V, int M, class With, int N>
__device__ __forceinline__ void join_fast(const V (&values)[M], With with, V (&results)[N]) {
  if constexpr (kHasFastJoin<S, V>) {
    with([](const auto& l, const auto& r) { return S::fast_join(l, r); });
    bool fast = true;
    if constexpr (S::kInputs == 1) {
      fast = S::allows_fast(results[N - 1]);  // zeros, infinities and NaN, which do not allow it, stay so
    } else {
      bool reset = false;
#pragma unroll
      for (int i = 0; i < M; ++i) {
        fast &= S::allows_fast(values[i]);
        reset |= S::is_reset(values[i]);
        if (N == M) fast &= S::is_settled(results[i], reset);
        else fast &= S::is_settled(values[i], true);  // a join of others might drop it where combine does not
      }
      if (N < M) fast &= S::is_settled(results[0], reset);
    }
    if (fast) {
#pragma unroll
      for (V& result : results) result = S::fast_end(result);
      return;
    }
    TR_RARE_PATH;
  }
  with([](const auto& l, const auto& r) { return S::combine(l, r); });
}

}  // namespace torchreduce::gpu
