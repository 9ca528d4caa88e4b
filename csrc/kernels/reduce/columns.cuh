// Reductions with lanes across rows: the smallest stride belongs to a kept dim, so neighbouring lanes read neighbouring
// elements of different rows ("columns"), and each walks its own.
#pragma once
#include "columns.h"
#include "strided.cuh"

namespace torchreduce::gpu {

// The tree over the values of a column's `lanes` threads, whose neighbours are `columns` threads apart; y: which of
// them this one is. `value`: of the block's threads.
template <class Op>
__device__ __forceinline__ typename Op::Acc column_tree(const Op& op, typename Op::Acc acc, int y, int lanes,
                                                        int columns, typename Op::Acc* value) {
  if (lanes == 1) return acc;
  value[threadIdx.x] = acc;
  for (int d = 1; d < lanes; d *= 2) {
    __syncthreads();
    if (y % (2 * d) == 0) value[threadIdx.x] = op.combine(value[threadIdx.x], value[threadIdx.x + d * columns]);
  }
  acc = value[threadIdx.x];
  __syncthreads();
  return acc;
}

// A block serves kThreads / shape.lanes columns with shape.lanes threads each, which share a leaf's residues in equal
// runs; shape.leaves leaves a block. Partials are row-major, and there is a ticket for the columns of a block.
template <class Op, class Load>
__global__ void TR_BLOCKS_BOUND(columns::kThreads, 2)
    reduce_columns(TR_GRID_CONSTANT ReduceCall call, TR_GRID_CONSTANT ColumnsShape shape, typename Op::Acc* partials,
                   uint32_t* tickets) {
  using Acc = typename Op::Acc;
  constexpr int kThreads = columns::kThreads, kAtOnce = 4;  // elements on their way
  const Op op = op_of<Op>(call);
  const Layout& layout = call.layout;
  const int64_t n = layout.length;

  const int columns = kThreads / shape.lanes;
  const int x = int(threadIdx.x) % columns, y = int(threadIdx.x) / columns;
  const int64_t groups = (layout.rows + columns - 1) / columns;
  const int64_t split = int64_t(blockIdx.x) / groups, row = (int64_t(blockIdx.x) - split * groups) * columns + x;
  const bool active = row < layout.rows;
  const int64_t base = active ? row_start(layout, row).in : 0;

  int residues = 1;  // of a leaf, rounded up to a power of two
  while (residues < kResidues && residues < n) residues *= 2;
  const int span = residues / shape.lanes;

  __shared__ Acc value[kThreads];
  PushedTree<Op, kRunLevels> run(op);
  for (int64_t leaf = split * shape.leaves; leaf < (split + 1) * shape.leaves && leaf * kLeaf < n; ++leaf) {
    PushedTree<Op, 9> tree(op);
    for (int r = y * span; active && r < (y + 1) * span && leaf * kLeaf + r < n; ++r) {
      const int64_t end = n < (leaf + 1) * kLeaf ? n : (leaf + 1) * kLeaf;
      Acc acc = op.absent();
#pragma unroll 1
      for (int64_t p = leaf * kLeaf + r; p < end; p += kAtOnce * kResidues) {
        const int64_t left = (end - p + kResidues - 1) / kResidues;
        const int count = int(left < kAtOnce ? left : kAtOnce);
        int64_t at[kAtOnce];
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k)
          if (k < count) at[k] = base + position_offset(layout, p + k * kResidues);
        typename Load::Element x[kAtOnce];
        gather<Load>(call.in, at, count, x);
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k)
          if (k < count) acc = step(op, acc, x[k], p + k * kResidues);
      }
      tree.push(acc);
    }
    const Acc acc = column_tree(op, tree.total(), y, shape.lanes, columns, value);
    if (y == 0) run.push(acc);
  }
  Acc acc = run.total();
  if (shape.splits > 1) {
    __shared__ bool last;
    if (active && y == 0) partials[row * shape.splits + split] = acc;
    if (!last_block(tickets + (int64_t(blockIdx.x) - split * groups), shape.splits, last)) return;
    int64_t each = 1;  // partial results of a thread, neighbours
    while (each * shape.lanes < shape.splits) each *= 2;
    PushedTree<Op, 26> tree(op);
    for (int64_t i = y * each; active && i < (y + 1) * each && i < shape.splits; ++i)
      tree.push(partials[row * shape.splits + i]);
    acc = column_tree(op, tree.total(), y, shape.lanes, columns, value);
  }
  if (active && y == 0) finish_row<Load>(op, call, row, acc);
}

}  // namespace torchreduce::gpu
