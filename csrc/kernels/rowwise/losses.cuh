// The mean of losses (losses.h). Shared memory: the sums of each warp's leaf.
#pragma once
#include "kernels/reduce/granule.cuh"
#include "losses.h"

namespace torchreduce::gpu {

// The sum of the leaf at x, of which there are `count` elements, by a warp: a lane has every kLanes-th residue.
template <class F, class Load> __device__ __forceinline__ F leaf_sum(const F* x, int count, Load load) {
  constexpr int kEach = kResidues / kLanes, kRows = kLeaf / kResidues;
  const Sum<F> op{};
  F sum[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    F v[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int at = k * kResidues + i * kLanes + lane_id();
      v[k] = at < count ? load(x[at]) : F(-0.0);
    }
    sum[i] = v[0];
#pragma unroll
    for (int k = 1; k < kRows; ++k) sum[i] = sum[i] + v[k];
    sum[i] = warp_tree(op, sum[i], kLanes);
  }
#pragma unroll
  for (int d = 1; d < kEach; d *= 2)
#pragma unroll
    for (int i = 0; i < kEach; i += 2 * d) sum[i] = sum[i] + sum[i + d];
  return sum[0];
}

template <class F>
__global__ void TR_BLOCKS_BOUND(kMostMeanLosses / kLeaf * kLanes, 1)
    mean_of_losses(TR_GRID_CONSTANT MeanLossCall call) {
  __shared__ F sums[2][kLanes];
  const int warp = int(threadIdx.x) / kLanes, warps = int(blockDim.x) / kLanes, lane = lane_id();
  const int first = warp * kLeaf, left = call.count - first;
  await_launches();
  const F loss = leaf_sum(global(static_cast<const F*>(call.losses)) + first, left, [](F x) { return x; });
  const F weight = leaf_sum(global(static_cast<const F*>(call.weights)) + first, left,
                            [&](F x) { return call.counts ? F(x != F(0)) : x; });
  if (lane == 0) {
    sums[0][warp] = loss;
    sums[1][warp] = weight;
  }
  __syncthreads();
  if (warp > 0) return;
  const Sum<F> op{};
  F total[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) total[k] = warp_tree(op, lane < warps ? sums[k][lane] : F(-0.0), kLanes);
  if (lane > 0) return;
  store_as(call.dtype, call.divisor, 0, total[1]);
  store_as(call.mean_dtype, call.mean, 0, total[0] / total[1]);
}

}  // namespace torchreduce::gpu
