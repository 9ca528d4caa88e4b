// Reductions of rows whose neighbours in memory are not neighbours along the row (transposed_rows.h).
#pragma once
#include "strided.cuh"
#include "transposed_rows.h"

namespace torchreduce::gpu {

// A thread's accumulators: of neighbouring residues of one leaf; of ops that know no order one for all of them.
template <class Op> struct RunOfResidues {
  using Near = typename Op::Near;
  using E = typename Op::Element;
  static constexpr int kCount = Op::kAnyOrder ? 1 : 32;
  Near acc[kCount];

  __device__ RunOfResidues() { clear(); }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (Near& a : acc) a = Op::near_absent();
  }
  // Elements get(0) to get(31), the first one at a position of the leaf.
  template <class Get> __device__ __forceinline__ void take(const Op& op, int position, Get get) {
    if constexpr (Op::kAnyOrder) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        uint32_t word = 0;
        const E x = get(i);
        memcpy(&word, &x, sizeof x);
        Near next[1];
        op.template near_all<1>(&word, position + i, next);
        acc[0] = Op::follow(acc[0], next[0]);
      }
    } else {
      steps<32>(op, acc, get);
    }
  }
  __device__ __forceinline__ Near value(const Op& op) {
#pragma unroll
    for (int d = 1; d < kCount; d *= 2)
#pragma unroll
      for (int i = 0; i < kCount; i += 2 * d) acc[i] = op.combine(acc[i], acc[i + d]);
    return acc[0];
  }
};

// Where a column's leaves lie, of those that begin in it and that its block takes.
struct ColumnLeaves {
  int64_t leaf;  // the first one, of the row
  int first;     // its first position, from the block's first row on
  int count;
};

// Serves long stretches. A block takes 128 bytes of neighbouring columns, and of each column the leaves that begin in
// it, shape.run of them, from number part * shape.run on. It walks down the rows of memory j, 256 at a time, and beyond
// the last one down those of the next column. Leaves of a column begin at a row of their own; after each 256 rows the
// block has 256 aligned positions of each column, which are added to 256 residues: a thread has 32 of one column.
// A leaf that goes on in the next slice, and the last one of a row, are taken element by element.
// Shared memory: three times 256 rows of kPitch bytes, copied granule by granule; where in its granules each row's
// columns begin, uint8[3][256]; what threads have of a leaf, Near[8][columns].
template <class Op, class Load>
__global__ void TR_BLOCKS_BOUND(transposed_rows::threads(sizeof(typename Load::Element)), kTwice<Op> ? 1 : 2)
    reduce_transposed_rows(TR_GRID_CONSTANT ReduceCall call, TR_GRID_CONSTANT TransposedRowsShape shape,
                           typename Op::Acc* partials) {
  using E = typename Load::Element;
  using Near = typename Op::Near;
  using Granule = Packed<uint32_t, 4>;
  constexpr int kSize = int(sizeof(E)), kPer = 4 / kSize, kColumns = transposed_rows::columns_of_block(kSize);
  constexpr int kPitch = transposed_rows::kPitch, kRows = transposed_rows::kChunks * kResidues, kRun = 32;
  constexpr int kGranules = kPitch / 16, kThreads = transposed_rows::threads(kSize);
  TR_DYNAMIC_SHARED(shared, 16);
  Near* const runs = reinterpret_cast<Near*>(shared + kRows * kPitch);
  uint8_t* const begins = reinterpret_cast<uint8_t*>(runs + 8 * kColumns);
  const Op op{call.options};
  const Layout& layout = call.layout;
  const int lane = lane_id(), warp = int(threadIdx.x) / kLanes;

  int64_t rest = blockIdx.x;
  auto next = [&](int64_t count) {
    const int64_t upper = rest / count, lower = rest - upper * count;
    rest = upper;
    return lower;
  };
  const int64_t part = next(shape.parts), strip = next(shape.strips), slice = next(shape.slices), row = rest;
  const int64_t left = shape.columns - strip * kColumns, top = part * shape.run * kLeaf;
  const int columns = int(left < kColumns ? left : kColumns);
  const E* const in = global(static_cast<const E*>(call.in.data));
  const E* const end = in + shape.extent;
  const E* const from = in + row_start(layout, row).in + strip * kColumns +
                        position_offset(layout, slice * shape.columns * shape.stretch);

  auto leaves_of = [&](int column) {
    const int64_t position = (slice * shape.columns + strip * kColumns + column) * shape.stretch;
    const int64_t leaf = (position + kLeaf - 1) / kLeaf;
    int64_t end = (position + shape.stretch + kLeaf - 1) / kLeaf;
    if (column == left - 1) end = (position + shape.stretch) / kLeaf;
    int64_t count = end - leaf - part * shape.run;
    count = column >= columns || count < 0 ? 0 : count < shape.run ? count : shape.run;
    return ColumnLeaves{leaf + part * shape.run, int(leaf * kLeaf - position), int(count)};
  };
  int rows = 0;
#pragma unroll
  for (int c = 0; c < kPer; ++c) {
    const ColumnLeaves l = leaves_of(lane * kPer + c);
    const int needs = warp_most(l.count ? l.first + l.count * kLeaf : 0);
    rows = needs > rows ? needs : rows;
  }
  const int column = lane * kPer + warp / 8, residue = warp % 8 * kRun;
  const ColumnLeaves own = leaves_of(column);

  // Starts the copies of chunk number `chunk` of the rows.
  auto copy = [&](int chunk) {
    const int first = chunk * kResidues, count = rows - first < kResidues ? rows - first : kResidues;
    for (int k = int(threadIdx.x); k < count * kGranules; k += kThreads) {
      const int r = k / kGranules, g = k - r * kGranules;
      int64_t j = top + first + r;
      const bool beyond = j >= shape.stretch;
      if (beyond) j -= shape.stretch;
      int64_t offset = beyond;
      for (int d = layout.kept + layout.reduced - 1; d > shape.dim + 1; --d) {
        const uint32_t upper = uint32_t(j) / uint32_t(layout.size[d]);
        offset += int64_t(uint32_t(j) - upper * uint32_t(layout.size[d])) * layout.in[d];
        j = upper;
      }
      const E* const x = from + offset + j * layout.in[shape.dim + 1];
      const int begin = int(uintptr_t(x) & 15), slot = chunk % transposed_rows::kChunks * kResidues + r;
      if (g == 0) begins[slot] = uint8_t(begin);
      if (g * 16 >= begin + columns * kSize) continue;
      const char* const source = reinterpret_cast<const char*>(x) - begin + g * 16;
      char* const to = shared + slot * kPitch + g * 16;
      if (source >= reinterpret_cast<const char*>(in) && source + 16 <= reinterpret_cast<const char*>(end)) {
        copy_async<16>(to, source);
      } else {
        for (int i = 0; i < 16; i += kSize)
          if (source + i >= reinterpret_cast<const char*>(in) && source + i < reinterpret_cast<const char*>(end))
            *reinterpret_cast<E*>(to + i) = *reinterpret_cast<const E*>(source + i);
      }
    }
    end_copies();
  };
  // Writes the leaf that a column's threads have, after they have met.
  auto leave = [&](int window) {
    if (warp % 8 != 0 || window < 0 || window >= own.count * 8 || window % 8 != 7) return;
    Near v[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] = runs[k * kColumns + column];
#pragma unroll
    for (int d = 1; d < 8; d *= 2)
#pragma unroll
      for (int k = 0; k < 8; k += 2 * d) v[k] = Op::combine(v[k], v[k + d]);
    const int64_t leaf = own.leaf + window / 8;
    partials[row * shape.leaves + leaf] = Op::far(v[0], leaf * kLeaf);
  };

  RunOfResidues<Op> run;
  const int before = own.first / kResidues, within = own.first % kResidues;
  const int steps_needed = rows > 0 ? (rows + kResidues - 1) / kResidues : -1;
  if (rows > 0) {
    copy(0);
    copy(1);
  }
  for (int s = 1; s <= steps_needed; ++s) {
    wait_copies<0>();
    __syncthreads();
    copy(s + 1);
    leave(s - before - 2);
    const int window = s - before - 1;
    const bool active = window >= 0 && window < own.count * 8;
    int slot = (s - 1) % transposed_rows::kChunks * kResidues + within + residue;
    slot -= slot >= kRows ? kRows : 0;
    const bool plain = shape.whole && top + (s - 1) * kResidues + within + residue + kRun <= shape.stretch &&
                       slot + kRun <= kRows;
    const int position = window % 8 * kResidues + residue;
    if (!ballot(active && !plain)) {
      const char* const x = shared + slot * kPitch + column * kSize;
      if (active) run.take(op, position, [&](int i) { return *reinterpret_cast<const E*>(x + i * kPitch); });
    } else if (active) {
      run.take(op, position, [&](int i) {
        const int at = slot + i >= kRows ? slot + i - kRows : slot + i;
        return *reinterpret_cast<const E*>(shared + at * kPitch + begins[at] + column * kSize);
      });
    }
    if (active && window % 8 == 7) {
      runs[warp % 8 * kColumns + column] = run.value(op);
      run.clear();
    }
  }
  __syncthreads();
  leave(steps_needed - before - 1);

  // The leaf that begins in the slice's last column and ends elsewhere.
  if (strip == shape.strips - 1 && part == shape.parts - 1 && warp == 0) {
    const int64_t position = (slice + 1) * shape.columns * shape.stretch, leaf = position / kLeaf;
    if (position % kLeaf != 0) {
      const auto value = warp_leaf<Op, Load>(op, call, row_start(layout, row).in, leaf * kLeaf);
      if (lane == 0) partials[row * shape.leaves + leaf] = value;
    }
  }
}

// Combines the values of a row's leaves, kFold a block; the row's last block combines what the others leave behind
// them.
template <class Op>
__global__ void TR_BLOCK_BOUND(kThreads)
    fold_leaves(TR_GRID_CONSTANT ReduceCall call, TR_GRID_CONSTANT TransposedRowsShape shape,
                typename Op::Acc* partials, uint32_t* tickets) {
  using Acc = typename Op::Acc;
  __shared__ Acc value[kWarps];
  __shared__ bool last;
  const Op op{call.options};
  const int64_t row = int64_t(blockIdx.x) / shape.splits, split = int64_t(blockIdx.x) - row * shape.splits;
  const int64_t first = split * transposed_rows::kFold, rest = shape.leaves - first;
  Acc acc = block_fold(op, partials + row * shape.leaves + first,
                       rest < transposed_rows::kFold ? rest : transposed_rows::kFold, value);
  if (shape.splits > 1) {
    Acc* const folded = partials + call.layout.rows * shape.leaves;
    if (threadIdx.x == 0) folded[blockIdx.x] = acc;
    if (!last_block(tickets + row, shape.splits, last)) return;
    acc = block_fold(op, folded + row * shape.splits, shape.splits, value);
  }
  if (threadIdx.x == 0) finish_row(op, call, row, acc);
}

}  // namespace torchreduce::gpu
