// Reductions of short rows, as (..., 100) over its last dim.
//
// Serves: types that are read as they are, rows of neighbouring elements of up to 4 KiB, from any element on, of up to
// four kept dims (packed_rows.h). A block's rows are copied to shared memory by whole granules: as they lie in memory,
// or each to a place of its own. Shared memory: where several lanes have a row, their values; the rows.
// Neighbouring lanes have neighbouring rows, and other warps other parts of them, so that a warp looks at no end of a
// row that is not the end of all. A part is neighbouring residues of each 256 elements where order shows, read as
// words that are shifted to where the row starts; else 16 bytes at a time, of granules or, where these would be of the
// same banks, of words.
#pragma once
#include "granule.cuh"
#include "packed_rows.h"

namespace torchreduce::gpu {

// A row in shared memory: `at` bytes after `base`, which is a granule.
template <class E> struct StagedRow {
  const char* base;
  int at;

  __device__ __forceinline__ E operator[](int i) const {
    return *reinterpret_cast<const E*>(base + at + i * int(sizeof(E)));
  }
  // Elements i to i + 7, of which those from n on are `absent`; i is a multiple of 8.
  __device__ __forceinline__ void eight(int i, int n, const Granule& absent, E (&x)[8]) const {
    if constexpr (sizeof(E) >= 4) {
#pragma unroll
      for (int k = 0; k < 8; ++k) x[k] = (*this)[i + k];
      if (i + 8 > n) {
        E none[kPerGranule<E>];
        elements_of(absent, none);
#pragma unroll
        for (int k = 1; k < 8; ++k) x[k] = i + k < n ? x[k] : none[0];
      }
    } else {  // words, from where the row starts on
      constexpr int kWords = 2 * int(sizeof(E));
      const uint32_t* const from =
          reinterpret_cast<const uint32_t*>(base + (at & ~3) + unsigned(i) * unsigned(sizeof(E)));
      const int bits = (at & 3) * 8;
      uint32_t w[kWords + 1];
      Granule g = absent;
#pragma unroll
      for (int k = 0; k <= kWords; ++k) w[k] = from[k];
#pragma unroll
      for (int k = 0; k < kWords; ++k) g.item[k] = funnel_right(w[k], w[k + 1], bits);
      if (i + 8 > n) mask<E>(g, 0, n - i, absent);
      E all[kPerGranule<E>];
      elements_of(g, all);
#pragma unroll
      for (int k = 0; k < 8; ++k) x[k] = all[k];
    }
  }
};

// ---- a lane's part ------------------------------------------------------------------------------------------------------

// Of residues i to i + 7 the tree over their accumulators.
template <class Op>
__device__ __forceinline__ typename Op::Acc staged_residues(const Op& op, const StagedRow<typename Op::Element>& row,
                                                            int i, int n) {
  typename Op::Acc acc[8];
  const Granule absent = absent_granule(op);
#pragma unroll
  for (int k = 0; k < 8; ++k) acc[k] = op.absent();
  auto take = [&] {
    typename Op::Element x[8];
    row.eight(i, n, absent, x);
    steps<8>(op, acc, [&](int k) { return x[k]; });
  };
  take();
#pragma unroll 1
  for (i += kResidues; i < n; i += kResidues) take();
#pragma unroll
  for (int d = 1; d < 8; d *= 2)
#pragma unroll
    for (int k = 0; k < 8; k += 2 * d) acc[k] = op.combine(acc[k], acc[k + d]);
  return acc[0];
}
// Of those from `begin` to `end`, a power of two apart, or to n.
template <class Op>
__device__ __forceinline__ typename Op::Acc staged_span(const Op& op, const StagedRow<typename Op::Element>& row,
                                                        int begin, int end, int n) {
  using Acc = typename Op::Acc;
  constexpr int kRun = 4;  // by eights
  auto combine = [&](Acc l, Acc r) { return op.combine(l, r); };
  TreeStack<Acc, 4> tree;  // of 256 residues
#pragma unroll 1
  for (int i = begin; i < end && i < n; i += 8 * kRun) {
    Acc a[kRun];
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      a[k] = op.absent();
      if (i + 8 * k < end && i + 8 * k < n) a[k] = staged_residues(op, row, i + 8 * k, n);
    }
    tree.push(op.combine(op.combine(a[0], a[1]), op.combine(a[2], a[3])), combine);
  }
  return tree.total(op.absent(), combine);
}
// The same of products of floats by powers, where that is rare.
template <class Op>
__device__ TR_RARELY_CALLED typename Op::Acc span_by_powers(const Op& op, StagedRow<typename Op::Element> row,
                                                            int begin, int end, int n) {
  return staged_span(op, row, begin, end, n);
}

// The part of lane t: an accumulator, or what was found.
template <class Op>
__device__ __forceinline__ auto staged_part(const Op& op, const StagedRow<typename Op::Element>& row, int t, int span,
                                            bool words, int n) {
  using E = typename Op::Element;
  constexpr int kPer = kPerGranule<E>;
  if constexpr (Op::kAnyOrder) {
    const int apart = row.at & (words ? 3 : 15), before = apart / int(sizeof(E)), last = (before + n - 1) / kPer;
    const char* const from = row.base + (row.at - apart);
    const int begin = t * (span / kPer), end = begin + span / kPer <= last ? begin + span / kPer : last + 1;
    const Granule absent = absent_granule(op);
    Part<Op, int32_t> part(op, begin * kPer - before);
#pragma unroll 2
    for (int k = begin; k < end; ++k) {
      Granule g;
      if (words) {
#pragma unroll
        for (int i = 0; i < 4; ++i) g.item[i] = reinterpret_cast<const uint32_t*>(from)[k * 4 + i];
      } else {
        g = reinterpret_cast<const Granule*>(from)[k];
      }
      if (k == 0 || k == last) {
        const int own = k == 0 ? before : 0;
        mask<E>(g, own, before + n - k * kPer, fill_of<Op>(g, own, absent));
      }
      part.take(op, g, k * kPer - before);
    }
    return part.value(op);
  } else if constexpr (kMultipliesFloats<Op>) {
    const PlainProduct<Op> plain;
    const auto product = staged_span(plain, row, t * span, t * span + span, n);
    if (plain.holds(product)) return normal_power(product);
    return span_by_powers(op, row, t * span, t * span + span, n);
  } else {
    return staged_span(op, row, t * span, t * span + span, n);
  }
}

// A whole row of kN elements.
template <int kN, class Op>
__device__ __forceinline__ auto whole_row(const Op& op, const StagedRow<typename Op::Element>& row) {
  using E = typename Op::Element;
  if constexpr (Op::kIndexed) {
    using S = Search<Op>;
    auto mark = [&](int i) {
      if constexpr (S::kFloats) return op.options.min ? -convert<float>(row[i]) : convert<float>(row[i]);
      else return S::mark(op, row[i]);
    };
    auto best = mark(0);
    int at = 0;
#pragma unroll
    for (int i = 1; i < kN; ++i) {
      const auto next = mark(i);
      const bool better = S::beats(next, best);
      best = better ? next : best;
      at = better ? i : at;
    }
    return Found<decltype(typename Op::Acc().key), int32_t>{S::key(best), at};
  } else if constexpr (kHasMaxima<E> && std::is_same<Op, Extreme<E>>::value) {
    float best = bit_cast<float>(0xff800000u);
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      const float x = convert<float>(row[i]), y = op.options.of == Of::Magnitudes ? __builtin_fabsf(x) : x;
      best = float_maximum(best, op.options.min ? -y : y);
    }
    return typename Op::Acc(Search<Op>::key(best, false));
  } else {
    typename Op::Acc acc[kN];
#pragma unroll
    for (int i = 0; i < kN; ++i) acc[i] = op.load(row[i], 0);
#pragma unroll
    for (int d = 1; d < kN; d *= 2)
#pragma unroll
      for (int i = 0; i + d < kN; i += 2 * d) acc[i] = op.combine(acc[i], acc[i + d]);
    return acc[0];
  }
}

// ---- the block's rows ---------------------------------------------------------------------------------------------------

// Writes the result of row `row`.
template <class Op, class Value>
__device__ __forceinline__ void finish_packed_row(const Op& op, const RowsCall& call, int64_t row, const Value& value) {
  using E = typename Op::Element;
  const int64_t out = row_out(call, row);
  if constexpr (Op::kIndexed) {
    const typename Op::Acc acc{value.key, value.at};
    op.finish(acc, call.out, out,
              call.out.values
                  ? op.found(acc, [&] { return static_cast<const E*>(call.in)[row_in(call, row) + value.at]; })
                  : E{});
  } else {
    op.finish(value, call.out, out);
  }
}

// Rows of kN elements, or of more up to kMostUnrolled, as they lie in memory, `pitch` bytes apart: a thread each.
template <int kN, class Op>
__device__ __forceinline__ void unrolled_rows(const Op& op, const RowsCall& call, const char* staged, int before,
                                              int pitch, int64_t row0, int rows) {
  using E = typename Op::Element;
  if constexpr (kN < packed_rows::kMostUnrolled)
    if (call.length != kN) return unrolled_rows<kN + 1>(op, call, staged, before, pitch, row0, rows);
#pragma unroll 1
  for (int r = int(threadIdx.x); r < rows; r += packed_rows::kThreads) {
    const StagedRow<E> row{staged, before + r * pitch};
    const auto value = whole_row<kN>(op, row);
    const int64_t out = call.out_pitch * (row0 + r);
    if constexpr (Op::kIndexed) op.finish({value.key, value.at}, call.out, out, row[value.at]);
    else op.finish(value, call.out, out);
  }
}

// Any rows, by `lanes` lanes each; row_of(r): row r of the block's `rows`.
template <class Op, class RowOf>
__device__ __forceinline__ void staged_rows(const Op& op, const RowsCall& call, const PackedRowsShape& shape,
                                            char* values, int64_t row0, int rows, RowOf row_of) {
  const int n = int(call.length), lanes = shape.lanes;
  if (lanes == 1) {
#pragma unroll 1
    for (int r = int(threadIdx.x); r < rows; r += packed_rows::kThreads)
      finish_packed_row(op, call, row0 + r, staged_part(op, row_of(r), 0, shape.span, shape.words, n));
    return;
  }
  const int log = shape.log_lanes, across = packed_rows::kThreads >> log;
  const int r = int(threadIdx.x) & (across - 1), t = int(threadIdx.x) >> (packed_rows::kLogThreads - log);
  auto value = staged_part(op, row_of(r < rows ? r : rows - 1), t, shape.span, shape.words, n);
  using Value = decltype(value);
  static_assert(sizeof(Value) <= packed_rows::kValue, "room for it");
  Value* const all = reinterpret_cast<Value*>(values);
  all[t * (across + 1) + r] = value;
  __syncthreads();
  const int row = int(threadIdx.x) >> log, part = int(threadIdx.x) & (lanes - 1);
  value = all[part * (across + 1) + row];
  for (int d = 1; d < lanes; d *= 2) {
    const Value other = shuffle(value, lane_id() ^ d);
    if constexpr (Op::kIndexed) value = first_of(value, other);
    else value = op.combine(value, other);
  }
  if (part == 0 && row < rows) finish_packed_row(op, call, row0 + row, value);
}

// Starts the copy of a granule to `to`, of the tensor alone.
template <class E, bool kInside>
__device__ __forceinline__ void copy_granule(const RowsCall& call, char* to, const Granule* from) {
  if (kInside || is_inside(call, from)) {
    copy_async<16>(to, from);
  } else {
    const E* const items = reinterpret_cast<const E*>(from);
    for (int k = 0; k < kPerGranule<E>; ++k)
      if (items + k >= call.in && items + k < call.end) reinterpret_cast<E*>(to)[k] = items[k];
  }
}
// A run of `count` granules.
template <class E, bool kInside>
__device__ __forceinline__ void copy_run(const RowsCall& call, char* to, const Granule* from, int count) {
#pragma unroll 4
  for (int i = int(threadIdx.x); i < count; i += packed_rows::kThreads)
    copy_granule<E, kInside>(call, to + i * 16, from + i);
}
// Rows row0 on, to places of so many bytes.
template <class E, bool kInside>
__device__ __forceinline__ void copy_rows(const RowsCall& call, char* to, int64_t row0, int rows, int place) {
  const int most = place / 16, ahead = packed_rows::kThreads / most, rest = packed_rows::kThreads % most;
  const int bytes = int(call.length) * int(sizeof(E));
  int r = int(threadIdx.x) / most, k = int(threadIdx.x) % most;
  const int64_t pitch = call.pitch * int64_t(sizeof(E));
  const char* x = static_cast<const char*>(call.in) + (row0 + r) * pitch;  // of row r, where rows are even
#pragma unroll 1
  while (r < rows) {
    if (!call.even) x = static_cast<const char*>(call.in) + row_start(call.outer, row0 + r).in * int64_t(sizeof(E));
    if (k * 16 < int(uintptr_t(x) & 15) + bytes)
      copy_granule<E, kInside>(call, to + r * place + k * 16, granule_of(reinterpret_cast<const E*>(x)) + k);
    r += ahead;
    x += ahead * pitch;
    k += rest;
    if (k >= most) {
      k -= most;
      ++r;
      x += pitch;
    }
  }
}

template <class Op>
__global__ void TR_BLOCKS_BOUND(packed_rows::kThreads, 4)
    reduce_packed_rows(TR_GRID_CONSTANT RowsCall call, TR_GRID_CONSTANT PackedRowsShape shape) {
  using E = typename Op::Element;
  TR_DYNAMIC_SHARED(shared, 16);
  const Op op{call.options};
  const int64_t row0 = int64_t(blockIdx.x) * shape.rows;
  const int rows = int(call.rows - row0 < shape.rows ? call.rows - row0 : shape.rows);
  char* const staged = shared + packed_rows::value_bytes(shape.lanes);
  const E* const in = static_cast<const E*>(call.in);
  const E* const first = in + row_in(call, row0);
  const E* const end = in + row_in(call, row0 + rows - 1) + call.length;
  const bool inside = call.even && is_inside(call, granule_of(first)) && is_inside(call, granule_of(end - 1));
  if (shape.place) {
    if (inside) copy_rows<E, true>(call, staged, row0, rows, shape.place);
    else copy_rows<E, false>(call, staged, row0, rows, shape.place);
  } else {
    const int count = int(granule_of(end - 1) - granule_of(first)) + 1;
    if (inside) copy_run<E, true>(call, staged, granule_of(first), count);
    else copy_run<E, false>(call, staged, granule_of(first), count);
  }
  end_copies();
  wait_copies<0>();
  __syncthreads();
  const int before = elements_before(first) * int(sizeof(E)), pitch = int(call.pitch) * int(sizeof(E));
  auto row_of = [&](int r) {
    if (!shape.place) return StagedRow<E>{staged, before + r * pitch};
    return StagedRow<E>{staged, r * shape.place + elements_before(in + row_in(call, row0 + r)) * int(sizeof(E))};
  };
  if (call.length <= packed_rows::kMostUnrolled && shape.lanes == 1 && !shape.place && call.outer.dims == 1)
    return unrolled_rows<1>(op, call, staged, before, pitch, row0, rows);
  staged_rows(op, call, shape, shared, row0, rows, row_of);
}

}  // namespace torchreduce::gpu
