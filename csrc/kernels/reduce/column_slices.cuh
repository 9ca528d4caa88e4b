// Reductions of slices so small that a block takes several of them whole.
#pragma once
#include "column_lanes.cuh"
#include "column_slices.h"

namespace torchreduce::gpu {

// 16 bytes are left out after every 128, so that lanes meet in fewer banks.
TR_HD constexpr int padded(int bytes) { return bytes + (bytes >> 7) * 16; }

// The pairwise tree over values pushed from the left, at most 31, as TreeStack (order.h): by branches, which lanes
// mostly take alike, in a fourth of the instructions.
template <class Op> struct SliceTree {
  using A = typename Op::Near;
  static constexpr int kLevels = 5;
  A slot[kLevels];
  int count = 0;
  __device__ __forceinline__ void push(const A& value) {
    settle<0>(value);
    ++count;
  }
  template <int kLevel> __device__ __forceinline__ void settle(const A& value) {
    if constexpr (kLevel < kLevels) {
      if (count >> kLevel & 1) settle<kLevel + 1>(Op::combine(slot[kLevel], value));
      else slot[kLevel] = value;
    }
  }
  __device__ __forceinline__ A total(A value) const {  // of the identity
#pragma unroll
    for (int l = 0; l < kLevels; ++l)
      if (count >> l & 1) value = Op::combine(slot[l], value);
    return value;
  }
};

// Serves slices that follow each other without gaps, of at most 256 rows and kLargeSlice bytes. A block copies q.slices
// of them to shared memory as they are, many granules in flight. Then q.lanes neighbouring ones, a power of two, share
// an output, q.span rows each, also a power of two. Shared memory: the granules that the slices lie in, padded where
// columns are few.
// E.g. sums of float32 (5000, 49, 8) over dim 1: q.lanes = 8 lanes have q.span = 8 rows each of one column of a slice,
// the last of them one row; a warp has 4 outputs at a time.
template <class Op, class Load>
__global__ void TR_BLOCKS_BOUND(kThreads, 5) reduce_column_slices(TR_GRID_CONSTANT ColumnCall q) {
  using E = typename Load::Element;
  using Near = typename Op::Near;
  constexpr int kSize = int(sizeof(E)), kWords = kSize < 4 ? 1 : kSize / 4;
  TR_DYNAMIC_SHARED(shared, 16);
  const Op op{q.options};
  const int n = q.n, inner = q.inner;
  const int64_t first = int64_t(blockIdx.x) * q.slices;
  const int slices = int(q.outer - first < q.slices ? q.outer - first : q.slices);
  const char* top = global(static_cast<const char*>(q.in)) + first * n * inner * kSize;
  const int before = int(uintptr_t(top) & 15), bytes = slices * n * inner * kSize + before;
  top -= before;
  const bool pad = inner < column_slices::kLeastUnpadded;
  const char* const in = static_cast<const char*>(q.in);
  for (int i = int(threadIdx.x) * 16; i < bytes; i += kThreads * 16) {
    char* const to = shared + (pad ? padded(i) : i);
    if (!q.ragged || (top + i >= in && top + i + 16 <= static_cast<const char*>(q.end))) {
      copy_async<16>(to, top + i);
    } else {  // at either end of the tensor
      for (int e = 0; e < 16; e += kSize)
        if (top + i + e >= in && top + i + e < static_cast<const char*>(q.end))
          *reinterpret_cast<E*>(to + e) = *reinterpret_cast<const E*>(top + i + e);
    }
  }
  end_copies();
  wait_copies<0>();
  __syncthreads();

  const int lanes = q.lanes, lane = int(threadIdx.x) & (lanes - 1), outputs = slices * inner;
  const int first_row = lane * q.span, rows = q.span < n - first_row ? q.span : n - first_row, step = inner * kSize;
  const FastDivide by_inner(inner);
  auto load = [&](auto pad, int at, int row, Near(&v)[1]) {  // a row's element, `at` bytes from the first granule
    const char* const p = shared + (decltype(pad)::value ? padded(at) : at);
    uint32_t words[kWords];
    if constexpr (kSize >= 4) {
      const auto item = *reinterpret_cast<const Packed<uint32_t, kWords>*>(p);
      memcpy(words, &item, sizeof words);
    } else {
      words[0] = *reinterpret_cast<const std::conditional_t<kSize == 2, uint16_t, uint8_t>*>(p);
    }
    op.template near_all<1>(words, row, v);
  };
  // The value of this lane's rows from byte `at` on, W rows at a time.
  auto reduce = [&](auto width, auto pad, int at) {
    constexpr int W = decltype(width)::value;
    SliceTree<Op> tree;
    Near all = Op::near_absent();
    for (int r = 0; r < rows; r += W) {
      Near v[W][1];
      if (r + W <= rows) {
#pragma unroll
        for (int i = 0; i < W; ++i, at += step) load(pad, at, first_row + r + i, v[i]);
      } else {
#pragma unroll
        for (int i = 0; i < W; ++i) {
          load(pad, at, first_row + r + i, v[i]);
          if (r + i >= rows) v[i][0] = Op::near_absent();
          if (r + i + 1 < rows) at += step;
        }
      }
      if constexpr (Op::kAnyOrder) {
#pragma unroll
        for (int i = 0; i < W; ++i) all = Op::follow(all, v[i][0]);
      } else {
#pragma unroll
        for (int d = 1; d < W; d *= 2)
#pragma unroll
          for (int i = 0; i < W; i += 2 * d) v[i][0] = Op::follow(v[i][0], v[i + d][0]);
        if (q.span <= W) return v[0][0];
        tree.push(v[0][0]);
      }
    }
    if (Op::kAnyOrder || q.span <= W) return all;
    return tree.total(all);
  };
  auto reduce_rows = [&](auto pad, int at) {
    if (q.span <= 4) return reduce(std::integral_constant<int, 4>(), pad, at);
    if (q.span <= 8 || Op::kAnyOrder) return reduce(std::integral_constant<int, 8>(), pad, at);
    return reduce(std::integral_constant<int, 16>(), pad, at);
  };
  const int first_output = int(threadIdx.x) / lanes;
  for (int begin = 0; begin < outputs; begin += kThreads / lanes) {
    if (begin + (int(threadIdx.x) - lane_id()) / lanes >= outputs) break;  // the warp has none
    const int i = begin + first_output, output = i < outputs ? i : outputs - 1;
    const int slice = by_inner.quotient(output), c = output - slice * inner;
    const int at = before + ((slice * n + first_row) * inner + c) * kSize;
    Near v = pad ? reduce_rows(std::true_type(), at) : reduce_rows(std::false_type(), at);
    for (int d = 1; d < lanes; d *= 2) v = Op::combine(v, shuffle(v, lane_id() ^ d));
    if (lane || i >= outputs) continue;
    const int64_t to =
        multiply_add(slice, int(q.outer_out[0]), multiply_add(c, int(q.out_step), first * q.outer_out[0]));
    const typename Op::Acc acc = Op::far(v, 0);
    if constexpr (Op::kIndexed) {
      const int64_t from = (first + slice) * n * inner + c;
      finish_result(op, q, to, acc, [&] { return from + acc.index * inner; });
    } else {
      finish_result(op, q, to, acc, [] { return 0; });
    }
  }
}

}  // namespace torchreduce::gpu
