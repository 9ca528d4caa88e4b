// Clusters of blocks (Hopper and later; elsewhere no plan has them).
#pragma once
#include "gpu.cuh"

namespace torchreduce::gpu {

#if defined(TR_EMULATED)

#define TR_CLUSTERS
using simt::cluster_rank, simt::cluster_arrive, simt::cluster_wait;
template <class V> void put(V* slot, const Barrier* b, const V& value, int rank) {
  simt::put(slot, b, &value, sizeof value, rank);
}

#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

#define TR_CLUSTERS
__device__ __forceinline__ int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// After barriers_made, which is all that the other blocks need to have seen: what waits for all memory takes long.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Writes to `slot` of block `rank` of the cluster, and counts the bytes on its barrier `b`: both are addresses that the
// blocks have in common.
template <class V> __device__ __forceinline__ void put(V* slot, const Barrier* b, const V& value, int rank) {
  static_assert(sizeof(V) % 8 == 0, "whole words of 8 bytes");
  uint32_t to, at;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(shared_address(slot)), "r"(rank));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(b)), "r"(rank));
  uint64_t words[sizeof(V) / 8];
  memcpy(words, &value, sizeof value);
#pragma unroll
  for (int k = 0; k < int(sizeof(V)) / 8; ++k)
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(to + 8 * k),
                 "l"(words[k]), "r"(at)
                 : "memory");
}

#endif

}  // namespace torchreduce::gpu
