// Stores of what no one reads soon: it leaves the cache of all before what is being read. On an H200, the gradient of
// log_softmax of float32 rows takes 0.743 ms by these and 0.807 ms by others, 1.02 and 0.94 of a copy's speed.
#pragma once
#include "gpu.cuh"

namespace torchreduce {

// Words that were put together one by one: 8 or 16 bytes, aligned to that.
template <class P> __device__ __forceinline__ void stream_granule(P* p, const P& value) {
#if defined(__CUDA_ARCH__)
  uint32_t w[sizeof(P) / 4];
  memcpy(w, &value, sizeof w);
  if constexpr (sizeof(P) == 16)
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p)), "r"(w[0]),
                 "r"(w[1]), "r"(w[2]), "r"(w[3])
                 : "memory");
  else
    asm volatile("st.global.cs.v2.u32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(p)), "r"(w[0]), "r"(w[1])
                 : "memory");
#else
  store_wide(p, value);
#endif
}
// An element of 2 or 4 bytes.
template <class E> __device__ __forceinline__ void stream_item(E* p, const E& value) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(E) == 4)
    asm volatile("st.global.cs.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(p)), "r"(bit_cast_words<uint32_t>(value))
                 : "memory");
  else
    asm volatile("st.global.cs.u16 [%0], %1;" ::"l"(__cvta_generic_to_global(p)), "h"(bit_cast_words<uint16_t>(value))
                 : "memory");
#else
  store_wide(p, value);
#endif
}

}  // namespace torchreduce
