// The mean of losses (losses.h). Shared memory: the sums of what warps have of leaves.
#pragma once
#include "kernels/reduce/granule.cuh"
#include "losses.h"

namespace torchreduce::gpu {

constexpr int kOfResidue = kLeaf / kResidues, kWarpsOfLeaf = kResidues / kLanes;
constexpr int kMostWarpSums = kMostMeanLosses / kLeaf * kWarpsOfLeaf;

// The elements of a residue, of which the first is number `first` of x and the tensor's last is number `last`. In place
// of those beyond comes the last, so that no load waits for a condition: all are under way at once.
template <class F> __device__ __forceinline__ void load_residue(const F* x, int first, int last, F (&v)[kOfResidue]) {
#pragma unroll
  for (int k = 0; k < kOfResidue; ++k) {
    const int at = first + k * kResidues;
    v[k] = x[at < last ? at : last];
  }
}

template <class F> __device__ __forceinline__ F sum_of(const F (&v)[kOfResidue]) {
  F sum = v[0];
#pragma unroll
  for (int k = 1; k < kOfResidue; ++k) sum = sum + v[k];
  return warp_tree(Sum<F>{}, sum, kLanes);
}

// The tree over the sums of warps.
template <class F> __device__ __forceinline__ F tree_of(const F* sums, int count) {
  constexpr int kEach = (kMostWarpSums + kLanes - 1) / kLanes;
  F v[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = lane_id() * kEach + i;
    v[i] = at < count ? sums[at] : F(-0.0);
  }
#pragma unroll
  for (int d = 1; d < kEach; d *= 2)
#pragma unroll
    for (int i = 0; i < kEach; i += 2 * d) v[i] = v[i] + v[i + d];
  return warp_tree(Sum<F>{}, v[0], kLanes);
}

template <class F>
__global__ void TR_BLOCKS_BOUND(kMostMeanThreads, 1) mean_of_losses(TR_GRID_CONSTANT MeanLossCall call) {
  __shared__ F sums[2][kMostWarpSums];
  const int warp = int(threadIdx.x) / kLanes, warps = int(blockDim.x) / kLanes, lane = lane_id();
  const int count = call.count, units = (count + kLeaf - 1) / kLeaf * kWarpsOfLeaf;
  await_launches();
#pragma unroll 1
  for (int unit = warp; unit < units; unit += warps) {
    const int first = unit / kWarpsOfLeaf * kLeaf + unit % kWarpsOfLeaf * kLanes + lane;
    F loss[kOfResidue], weight[kOfResidue];
    load_residue(global(static_cast<const F*>(call.losses)), first, count - 1, loss);
    load_residue(global(static_cast<const F*>(call.weights)), first, count - 1, weight);
#pragma unroll
    for (int k = 0; k < kOfResidue; ++k) {
      const bool is_there = first + k * kResidues < count;
      loss[k] = is_there ? loss[k] : F(-0.0);
      weight[k] = !is_there ? F(-0.0) : call.counts ? F(weight[k] != F(0)) : weight[k];
    }
    const F sum = sum_of(loss), divisor = sum_of(weight);
    if (lane > 0) continue;
    sums[0][unit] = sum;
    sums[1][unit] = divisor;
  }
  __syncthreads();
  if (warp > 0) return;
  const F sum = tree_of(sums[0], units), divisor = tree_of(sums[1], units);
  if (lane > 0) return;
  *static_cast<F*>(call.divisor) = round_to<F>(divisor);
  store_as(call.mean_dtype, call.mean, 0, sum / divisor);
}

}  // namespace torchreduce::gpu
