// Reductions with lanes across rows: the smallest stride belongs to a kept dim, so neighbouring lanes read neighbouring
// elements of different rows ("columns"), and each walks its own.
#pragma once
#include "reduce_rows.cuh"

namespace torchreduce::gpu {

// A block serves kThreads / plan.lanes columns with plan.lanes threads each, which share a leaf's residues in equal
// runs; plan.leaves leaves a block. Partials as in reduce_rows.
template <class Op, class Load>
__global__ void TR_BLOCK_BOUND(kThreads) reduce_columns(TR_GRID_CONSTANT ReduceCall call, typename Op::Acc* partials) {
  using Acc = typename Op::Acc;
  const Op op{call.options};
  auto combine = [&](Acc l, Acc r) { return op.combine(l, r); };
  const Layout& layout = call.layout;
  const Plan& plan = call.plan;
  const int64_t n = layout.length;

  const int columns = kThreads / plan.lanes;
  const int x = int(threadIdx.x) % columns, y = int(threadIdx.x) / columns;
  const int64_t groups = (layout.rows + columns - 1) / columns;
  const int64_t split = int64_t(blockIdx.x) / groups, row = (int64_t(blockIdx.x) - split * groups) * columns + x;
  const bool active = row < layout.rows;
  const int64_t base = active ? row_start(layout, row).in : 0;

  int residues = 1;  // of a leaf, rounded up to a power of two
  while (residues < kResidues && residues < n) residues *= 2;
  const int span = residues / plan.lanes;

  __shared__ Acc value[kThreads];
  TreeStack<Acc, kRunLevels> run;
  for (int64_t leaf = split * plan.leaves; leaf < (split + 1) * plan.leaves && leaf * kLeaf < n; ++leaf) {
    TreeStack<Acc, 9> tree;
    for (int r = y * span; active && r < (y + 1) * span && leaf * kLeaf + r < n; ++r) {
      Acc acc = op.absent();
#pragma unroll
      for (int k = 0; k < kLeaf; k += kResidues) {
        const int64_t position = leaf * kLeaf + r + k;
        if (position < n)
          acc = op.combine(acc, op.load(Load::one(call.in, base + position_offset(layout, position)), position));
      }
      tree.push(acc, combine);
    }
    Acc acc = tree.total(op.absent(), combine);
    if (plan.lanes > 1) {
      value[threadIdx.x] = acc;
      for (int d = 1; d < plan.lanes; d *= 2) {
        __syncthreads();
        if (y % (2 * d) == 0) value[threadIdx.x] = op.combine(value[threadIdx.x], value[threadIdx.x + d * columns]);
      }
      acc = value[threadIdx.x];
      __syncthreads();
    }
    if (y == 0) run.push(acc, combine);
  }
  if (!active || y != 0) return;
  const Acc acc = run.total(op.absent(), combine);
  if (plan.splits == 1) finish_row(op, call, row, acc);
  else partials[row * plan.splits + split] = acc;
}

}  // namespace torchreduce::gpu
