// Reductions of short rows that follow one another in memory, as (..., 5) over its last dim.
//
// Serves: types that are read as they are, rows of up to 255 elements, or 4 KiB where no order shows, one after the
// other with little between them, from any element on (packed_rows.h). Whatever their length, a block's run of them is
// copied by whole granules. Shared memory: the block's rows as they lie in memory, from the granule on in which the
// first starts, with 16 bytes left out after every 128. A few lanes, or one, take a row, neighbouring elements each;
// neighbouring lanes have neighbouring rows.
#pragma once
#include "granule.cuh"
#include "packed_rows.h"

namespace torchreduce::gpu {

// Elements of a row in shared memory, from the byte `first` on.
template <class E, bool kPads> struct StagedRow {
  const char* staged;
  int first;
  __device__ __forceinline__ E operator[](int i) const {
    return *reinterpret_cast<const E*>(staged + packed_rows::padded(kPads, first + i * int(sizeof(E))));
  }
};

// The tree over the elements from `begin` to `end`, at most kSpan of them.
template <int kSpan, class Op, class Row>
__device__ __forceinline__ typename Op::Acc staged_tree(const Op& op, const Row& row, int begin, int end) {
  typename Op::Acc acc[kSpan];
#pragma unroll
  for (int i = 0; i < kSpan; ++i) acc[i] = op.absent();
  if (begin + kSpan <= end) {
#pragma unroll
    for (int i = 0; i < kSpan; ++i) acc[i] = op.load(row[begin + i], 0);
  } else {
#pragma unroll
    for (int i = 0; i < kSpan - 1; ++i)
      if (begin + i < end) acc[i] = op.load(row[begin + i], 0);
  }
#pragma unroll
  for (int d = 1; d < kSpan; d *= 2)
#pragma unroll
    for (int i = 0; i < kSpan; i += 2 * d) acc[i] = op.combine(acc[i], acc[i + d]);
  return acc[0];
}

// Calls take(i) for the positions of a lane.
template <class Take> __device__ __forceinline__ void each_position(int begin, int end, Take take) {
  constexpr int kStep = 8;
  int i = begin;
#pragma unroll 1
  for (; i + kStep <= end; i += kStep) {
#pragma unroll
    for (int k = 0; k < kStep; ++k) take(i + k);
  }
#pragma unroll
  for (int k = 0; k < kStep - 1; ++k)
    if (i + k < end) take(i + k);
}

// The lane's part of a row: an accumulator, or what was found.
template <class Op, class Row>
__device__ __forceinline__ auto staged_part(const Op& op, const Row& row, int begin, int end, int span) {
  using E = typename Op::Element;
  using Acc = typename Op::Acc;
  auto combine = [&](Acc l, Acc r) { return op.combine(l, r); };
  if constexpr (Op::kIndexed) {
    Part<Op> part(op, begin);
    each_position(begin, end, [&](int i) { part.take_mark(Search<Op>::mark(op, row[i]), i); });
    return part.value();
  } else if constexpr (kHasMaxima<E> && !Op::kConverts) {
    float best = bit_cast<float>(0xff800000u);
    each_position(begin, end, [&](int i) {
      const float x = convert<float>(row[i]), y = op.options.of == Of::Magnitudes ? __builtin_fabsf(x) : x;
      best = float_maximum(best, op.options.min ? -y : y);
    });
    return Acc(Ordering<E>::key(Ordering<E>::bits_of(round_to<E>(best)), false, false));
  } else if constexpr (Op::kAnyOrder) {
    Acc acc = op.absent();
    each_position(begin, end, [&](int i) { acc = op.combine(acc, op.load(row[i], i)); });
    return acc;
  } else {
    if (span <= 2) return staged_tree<2>(op, row, begin, end);
    if (span <= 4) return staged_tree<4>(op, row, begin, end);
    TreeStack<Acc, 6> tree;  // of 256 elements, 8 at a time
#pragma unroll 1
    for (int i = begin; i < end; i += 8) tree.push(staged_tree<8>(op, row, i, end), combine);
    return tree.total(op.absent(), combine);
  }
}

// The same of a whole row of kN elements.
template <int kN, class Op, class Row> __device__ __forceinline__ auto whole_row(const Op& op, const Row& row) {
  if constexpr (Op::kAnyOrder) {
    return staged_part(op, row, 0, kN, kN);  // without loops, since kN is known
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
// Rows of kN elements, or of more up to kMostUnrolled: a thread each, where addresses are not padded.
template <int kN, class Op>
__device__ __forceinline__ void unrolled_rows(const Op& op, const RowsCall& call, const char* staged, int before,
                                              int64_t row0, int rows) {
  using E = typename Op::Element;
  if constexpr (kN < packed_rows::kMostUnrolled)
    if (call.length != kN) return unrolled_rows<kN + 1>(op, call, staged, before, row0, rows);
  const int pitch = int(call.outer.in[0]) * int(sizeof(E));
#pragma unroll 1
  for (int r = int(threadIdx.x); r < rows; r += packed_rows::kThreads) {
    const StagedRow<E, false> row{staged, before + r * pitch};
    const auto value = whole_row<kN>(op, row);
    const int64_t out = call.outer.out[0] * (row0 + r);
    if constexpr (Op::kIndexed) op.finish({value.key, value.at}, call.out, out, row[value.at]);
    else op.finish(value, call.out, out);
  }
}

// The block's rows, from shared memory: `rows` of them, the first `before` bytes into it and number `row0` of all.
template <bool kPads, class Op>
__device__ __forceinline__ void staged_rows(const Op& op, const RowsCall& call, const PackedRowsShape& shape,
                                            const char* staged, int before, int64_t row0, int rows) {
  using E = typename Op::Element;
  const int n = int(call.length), lanes = shape.lanes, t = int(threadIdx.x) % lanes;
  const int pitch = int(call.outer.in[0]) * int(sizeof(E));
  const int begin = t * shape.span, end = begin + shape.span < n ? begin + shape.span : n;
  for (int r0 = 0; r0 < rows; r0 += packed_rows::kThreads / lanes) {
    const int wanted = r0 + int(threadIdx.x) / lanes, r = wanted < rows ? wanted : rows - 1;
    const StagedRow<E, kPads> row{staged, before + r * pitch};
    auto value = staged_part(op, row, begin, end, shape.span);
    for (int d = 1; d < lanes; d *= 2) {
      const auto other = shuffle(value, lane_id() ^ d);
      if constexpr (Op::kIndexed) value = first_of(value, other);
      else value = op.combine(value, other);
    }
    if (t > 0 || wanted >= rows) continue;
    const int64_t out = call.outer.out[0] * (row0 + r);
    if constexpr (Op::kIndexed) op.finish({value.key, value.at}, call.out, out, row[value.at]);
    else op.finish(value, call.out, out);
  }
}

template <class Op>
__global__ void TR_BLOCKS_BOUND(packed_rows::kThreads, 5)
    reduce_packed_rows(TR_GRID_CONSTANT RowsCall call, TR_GRID_CONSTANT PackedRowsShape shape) {
  using E = typename Op::Element;
  TR_DYNAMIC_SHARED(staged, 16);
  const Op op{call.options};
  const int n = int(call.length);
  const int64_t row0 = int64_t(blockIdx.x) * shape.rows;
  const int rows = int(call.rows - row0 < shape.rows ? call.rows - row0 : shape.rows);
  const int pitch = int(call.outer.in[0]);
  const E* const x = static_cast<const E*>(call.in) + row0 * pitch;
  const int before = elements_before(x) * int(sizeof(E));
  const int bytes = before + ((rows - 1) * pitch + n) * int(sizeof(E));
  const Granule* const from = granule_of(x);
  for (int i = int(threadIdx.x); i * 16 < bytes; i += packed_rows::kThreads) {
    char* const to = staged + packed_rows::padded(shape.padded, i * 16);
    if (is_inside(call, from + i)) {
      copy_async<16>(to, from + i);
    } else {  // of the tensor alone
      const E* const items = reinterpret_cast<const E*>(from + i);
      for (int k = 0; k < kPerGranule<E>; ++k)
        if (items + k >= call.in && items + k < call.end) reinterpret_cast<E*>(to)[k] = items[k];
    }
  }
  end_copies();
  wait_copies<0>();
  __syncthreads();
  if (shape.padded) staged_rows<true>(op, call, shape, staged, before, row0, rows);
  else if (n <= packed_rows::kMostUnrolled) unrolled_rows<1>(op, call, staged, before, row0, rows);
  else staged_rows<false>(op, call, shape, staged, before, row0, rows);
}

}  // namespace torchreduce::gpu
