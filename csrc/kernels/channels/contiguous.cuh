// Contiguous copies of rows (contiguous.h).
#pragma once
#include "contiguous.h"
#include "kernels/reduce/granule.cuh"

namespace torchreduce::gpu {

// The offset in the input of element i of dims [first, end), row-major.
__device__ __forceinline__ int offset_of(const PlannedCopy& copy, int first, int end, int i) {
  int offset = 0;
  TR_ROLLED
  for (int d = end - 1; d > first; --d) {
    const int next = copy.plan.by[d].quotient(i);
    offset += (i - next * int(copy.layout.size[d])) * int(copy.layout.in[d]);
    i = next;
  }
  return end > first ? offset + i * int(copy.layout.in[first]) : offset;
}

// Serves runs of at least 16 bytes. A thread writes 16 bytes, whose elements lie in one run or in two.
template <class E>
__global__ void __launch_bounds__(contiguous::kThreads) copying_map_lines(TR_GRID_CONSTANT PlannedCopy copy) {
  constexpr int V = kPerGranule<E>;
  const int first = (int(blockIdx.x) * contiguous::kThreads + int(threadIdx.x)) * V;
  const int elements = int(copy.layout.rows * copy.layout.length);
  if (first >= elements) return;
  const int dim = copy.plan.dim, length = copy.plan.columns;
  const int run = copy.plan.by[dim].quotient(first), at = first - run * length;
  const E* const in = global(static_cast<const E*>(copy.from));
  const E* const from = in + offset_of(copy, 0, dim, run) + at;
  E* const to = global(static_cast<E*>(copy.to)) + first;
  const int count = elements - first < V ? elements - first : V;
  if (at + V <= length && elements_before(from) == 0) {
    Granule g;
    load_if(true, reinterpret_cast<const Granule*>(from), g);
    return store_item(reinterpret_cast<Granule*>(to), g);
  }
  const int here = length - at;  // elements that are left of the run
  const E* const next = here < count ? in + offset_of(copy, 0, dim, run + 1) - here : from;
  E x[V];
#pragma unroll
  for (int e = 0; e < V; ++e) x[e] = e < count ? (e < here ? from : next)[e] : E{};
  if (count == V) return store_item(reinterpret_cast<Granule*>(to), bit_cast_words<Granule>(x));
#pragma unroll
  for (int e = 0; e < V; ++e)
    if (e < count) to[e] = x[e];
}

// Where a position's first column lies, in the input and in the copy.
struct CopiedPosition { int from, to; };
__device__ __forceinline__ CopiedPosition copied_position(const PlannedCopy& copy, int position) {
  const CopyShape& s = copy.plan;
  const int outer = s.by_stretch.quotient(position), j = position - outer * s.stretch;
  const int dims = copy.layout.kept + copy.layout.reduced;
  return {offset_of(copy, 0, s.dim, outer) + offset_of(copy, s.dim + 1, dims, j), outer * s.columns * s.stretch + j};
}

// Serves up to 16 columns. A thread copies four positions, all columns: neighbouring lanes have neighbouring positions.
template <class E>
__global__ void __launch_bounds__(contiguous::kThreads) copying_map_elements(TR_GRID_CONSTANT PlannedCopy copy) {
  constexpr int kPositions = contiguous::kPositions, kThreads = contiguous::kThreads, kColumns = 4;
  const CopyShape& s = copy.plan;
  const int first = int(blockIdx.x) * kThreads * kPositions + int(threadIdx.x);
  const int dims = copy.layout.kept + copy.layout.reduced;
  if (first >= s.positions) return;
  CopiedPosition at[kPositions];
  at[0] = copied_position(copy, first);
  const int j = at[0].to - s.by_stretch.quotient(first) * s.columns * s.stretch;
  const bool near = s.dim + 2 == dims && j + (kPositions - 1) * kThreads < s.stretch;  // all of one stretch, one dim
  const int pitch = int(copy.layout.in[dims - 1]);
#pragma unroll
  for (int p = 1; p < kPositions; ++p) {
    const int position = first + p * kThreads;
    if (near) at[p] = {at[0].from + p * kThreads * pitch, at[0].to + p * kThreads};
    else at[p] = copied_position(copy, position < s.positions ? position : 0);
  }
  const E* from[kPositions];
  E* to[kPositions];
#pragma unroll
  for (int p = 0; p < kPositions; ++p) {
    from[p] = global(static_cast<const E*>(copy.from)) + at[p].from;
    to[p] = global(static_cast<E*>(copy.to)) + at[p].to;
  }
#pragma unroll 1
  for (int column = 0; column < s.columns; column += kColumns) {
    E x[kPositions][kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      if (column + c < s.columns) {
#pragma unroll
        for (int p = 0; p < kPositions; ++p) x[p][c] = from[p][column + c];
      }
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      if (column + c < s.columns) {
#pragma unroll
        for (int p = 0; p < kPositions; ++p)
          if (first + p * kThreads < s.positions) to[p][(column + c) * s.stretch] = x[p][c];
      }
  }
}

// Serves more columns. A block copies `turns` tiles, each of 32 columns and the same 128 positions. A warp loads 32
// neighbouring columns of a position, and stores 32 neighbouring positions of a column. E.g. float32 x[4000, 500].T,
// whose positions are its 4000: 32 times 16 tiles.
// Shared memory: where positions lie; elements, [column][position], those of a column one word more than there are.
template <class E>
__global__ void __launch_bounds__(contiguous::kThreads, 4) copying_map_columns(TR_GRID_CONSTANT PlannedCopy copy) {
  constexpr int kThreads = contiguous::kThreads, kColumns = contiguous::kColumns, kRows = contiguous::kRows;
  constexpr int kEach = kColumns * kRows / kThreads, kPitch = kRows + (sizeof(E) < 4 ? 4 / sizeof(E) : 1);
  constexpr int kRowStep = kThreads / kColumns, kColumnStep = kThreads / kRows;
  static_assert(kColumns == kLanes);
  __shared__ CopiedPosition positions[kRows];
  __shared__ E tile[kColumns * kPitch];
  const CopyShape& s = copy.plan;
  const int thread = int(threadIdx.x), down = s.by_groups.quotient(int(blockIdx.x)), first = down * kRows;
  const int count = s.positions - first < kRows ? s.positions - first : kRows;
  if (thread < kRows) positions[thread] = copied_position(copy, first + (thread < count ? thread : 0));
  __syncthreads();

  // What a thread loads: a column, of some rows; what it stores: a row, of some columns.
  const int column = thread % kColumns, upper_row = thread / kColumns;
  const int row = thread % kRows, left_column = thread / kRows;
  int next = (int(blockIdx.x) - down * s.groups) * s.turns * kColumns;
  const E* from = global(static_cast<const E*>(copy.from)) + next + column;
  E* to = global(static_cast<E*>(copy.to)) + positions[row].to + (next + left_column) * s.stretch;
  const int step = kColumnStep * s.stretch;
  const bool stores = row < count;
  E x[kEach];
  auto load = [&] {
    if (next + column < s.columns) {
#pragma unroll
      for (int k = 0; k < kEach; ++k) x[k] = from[positions[upper_row + k * kRowStep].from];
    }
  };
  load();
#pragma unroll 1
  for (int turn = 1;; ++turn) {
#pragma unroll
    for (int k = 0; k < kEach; ++k) tile[column * kPitch + upper_row + k * kRowStep] = x[k];
    __syncthreads();
    const int left = s.columns - next;
    next += kColumns;
    from += kColumns;
    const bool more = turn < s.turns && next < s.columns;
    if (more) load();  // on their way while these are stored
    if (stores && left >= kColumns) {
#pragma unroll
      for (int k = 0; k < kEach; ++k) to[k * step] = tile[(left_column + k * kColumnStep) * kPitch + row];
    } else if (stores) {
#pragma unroll
      for (int k = 0; k < kEach; ++k)
        if (left_column + k * kColumnStep < left) to[k * step] = tile[(left_column + k * kColumnStep) * kPitch + row];
    }
    if (!more) return;
    to += kColumns * s.stretch;
    __syncthreads();  // the tile has been read
  }
}

}  // namespace torchreduce::gpu
