// Stages of shared memory that the warps of a block hand around, turn by turn. A stage of N serves every N-th turn; of
// each kind of hand-over it has a barrier, whose phase says which of its turns that is for.
#pragma once
#include "kernels/common/collective.cuh"

namespace torchreduce::gpu {

// The place of a turn in a ring of N, and the parity of its barriers' phases.
template <int N> struct Turn {
  int place = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    const bool last = place == N - 1;
    place = last ? 0 : place + 1;
    parity ^= last;
  }
};

template <int N> struct StageBarriers {
  Barrier of[N];

  __device__ __forceinline__ Barrier* operator[](int stage) { return &of[stage]; }
  // Until all have arrived for a turn.
  __device__ __forceinline__ void wait(int it) { barrier_wait(&of[it % N], it / N & 1); }
  __device__ __forceinline__ void wait(const Turn<N>& turn) { barrier_wait(&of[turn.place], turn.parity); }
  // The same for the turn that had its stage before.
  __device__ __forceinline__ void wait_before(int it) {
    if (it >= N) barrier_wait(&of[it % N], (it / N - 1) & 1);
  }
};
template <> struct StageBarriers<0> {};

}  // namespace torchreduce::gpu
