// Reductions of rows that are listed by their addresses, many a launch.
//
// Serves: float32 and 16-bit floats, one row of neighbours each, wherever it starts (listed_rows.h).
// A block has a run of leaves of one row, which its warps take in turn, as those of rows.cuh do. The last block of a
// row of several runs combines their values. Shared memory: the value of each leaf of the run.
#pragma once
#include "finish.cuh"
#include "listed_rows.h"
#include "rows.cuh"

namespace torchreduce::gpu {

template <class Op>
__global__ void TR_BLOCKS_BOUND(rows::kThreads, 3)
    reduce_listed_rows(TR_GRID_CONSTANT ListedRows call, typename Op::Acc* partials, uint32_t* tickets) {
  using Acc = typename Op::Acc;
  using E = typename Op::Element;
  __shared__ Acc value[rows::kMostUnits];
  __shared__ bool last;
  const Op op{call.options};
  int number = 0;  // of the block's row
#pragma unroll 1
  for (int step = ListedRows::kMost / 2; step > 0; step /= 2)
    if (number + step < call.count && call.first[number + step] <= int(blockIdx.x)) number += step;
  const ListedRow row = call.row[number];
  const int begin = call.first[number], runs = call.first[number + 1] - begin;

  const E* const x = static_cast<const E*>(row.in);
  RowsCall one{};
  one.in = x;
  one.end = x + row.length;
  const int warp = int(threadIdx.x) / kLanes, warps = int(blockDim.x) / kLanes, lane = lane_id();
  const int64_t first = int64_t(int(blockIdx.x) - begin) * call.units;
#pragma unroll 1
  for (int u = warp; u < call.units; u += warps) {
    const int64_t at = (first + u) * kLeaf, rest = row.length - at;
    Acc leaf = op.absent();
    if (rest > 0) leaf = leaf_value(op, one, x + at, int(rest < kLeaf ? rest : kLeaf));
    if (lane == 0) value[u] = leaf;
  }
  __syncthreads();
  Acc acc = op.absent();
  if (warp == 0) acc = warp_tree(op, lane < call.units ? value[lane] : op.absent(), kLanes);
  if (runs > 1) {
    if (threadIdx.x == 0) partials[blockIdx.x] = acc;
    if (!last_block(tickets + number, runs, last)) return;
    acc = block_fold(op, partials + begin, runs, value);
  }
  if (threadIdx.x == 0) op.finish(acc, Output{row.out, nullptr, call.out}, 0);
}

}  // namespace torchreduce::gpu
