// Where the states of a row's leaves meet: a block's shared memory, or that of all blocks of a cluster.
#pragma once
#include "held_rows.h"
#include "states.cuh"

namespace torchreduce::gpu {

// In dynamic shared memory (held_rows::meeting_bytes), at the same place in all blocks of a cluster.
template <class State> struct Meeting {
  struct alignas(8) Slot { State state; };
  Slot *leaf, *tree;  // for each leaf, and for each two of them
  Barrier* arrived;

  __device__ __forceinline__ Meeting(char* memory, int leaves, Barrier* arrived)
      : leaf(reinterpret_cast<Slot*>(memory)), tree(leaf + leaves), arrived(arrived) {}

  // Of clusters, before anything that takes time.
  __device__ __forceinline__ void begin([[maybe_unused]] const HeldRowsShape& shape) {
#ifdef TR_CLUSTERS
    if (threadIdx.x == 0) {
      barrier_init(arrived, 1);
      barriers_made();
      barrier_expect(arrived, uint32_t(shape.cluster * (int(blockDim.x) / kLanes) * int(sizeof(Slot))));
    }
    cluster_arrive();
#endif
  }
  // Brings the states of a row's leaves together, of which each warp has one.
  __device__ __forceinline__ void meet([[maybe_unused]] const HeldRowsShape& shape, int number, const State& own) {
#ifdef TR_CLUSTERS
    if (shape.cluster > 1) {
      cluster_wait();
      if (lane_id() < shape.cluster) put(&leaf[number], arrived, Slot{own}, lane_id());
      barrier_wait(arrived, 0);
      if (shape.leaves > kLanes) __syncthreads();
      return;
    }
#endif
    if (lane_id() == 0) leaf[number].state = own;
    __syncthreads();
  }
  // The same of states in memory.
  __device__ __forceinline__ void recall(const State* states, int leaves) {
    for (int i = threadIdx.x; i < leaves; i += blockDim.x) leaf[i].state = states[i];
    __syncthreads();
  }

  // The state of the row, from those of its leaves, for every lane.
  template <class Op> __device__ __forceinline__ State total(int leaves) {
    if constexpr (Op::kFast) {
      constexpr int kFew = 8;
      State all = Op::none();
      const auto state = [&](int i) { return leaf[i].state; };
      if (leaves <= kFew) {
        if (powers_tree<1>(leaves, state, all)) return all;
      } else {  // one warp for all, since there are others that can go on meanwhile
        if (threadIdx.x < unsigned(kLanes)) {
          if (leaves <= kLanes) powers_tree<1>(leaves, state, all);
          else powers_tree<held_rows::kMostLeaves / kLanes>(leaves, state, all);
          if (threadIdx.x == 0) tree[0].state = all;
        }
        __syncthreads();
        all = tree[0].state;
        if (all.n != Exponential<float>::kFar) return all;
        __syncthreads();
      }
    }
    return merged<Op>(leaves);
  }

 private:
  template <class Op> __device__ __forceinline__ State merged(int leaves) {
    int count = leaves;
    Slot* from = leaf;
#pragma unroll 1
    for (; count > kLanes; count = (count + 1) / 2) {
      Slot* const to = from == leaf ? tree : leaf;
#pragma unroll 1
      for (int i = threadIdx.x; 2 * i < count; i += blockDim.x) {
        const State first = from[2 * i].state;
        State both = first;
        if (2 * i + 1 < count) both = Op::merge(first, State(from[2 * i + 1].state));
        to[i].state = both;
      }
      __syncthreads();
      from = to;
    }
    return lanes_tree<Op>(count, [&](int i) { return from[i].state; });
  }
};

}  // namespace torchreduce::gpu
