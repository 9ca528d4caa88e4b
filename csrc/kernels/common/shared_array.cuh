// Where a kernel's shared memory is.
#pragma once
#include "gpu.cuh"

namespace torchreduce::gpu {

// The same address in shared memory, which stays in a register. Left to itself, nvcc may work that of the kernel's
// array out again at each predicated store, from a special register (sm_90: 265 reads of it in the code of a kernel
// that puts tiles of bfloat16 there).
template <class T> __device__ __forceinline__ T* in_register(T* shared) {
#if defined(__CUDA_ARCH__)
  return static_cast<T*>(__cvta_shared_to_generic(recomputed(shared_address(shared))));
#else
  return shared;
#endif
}

}  // namespace torchreduce::gpu
