// What kernels of rows that are looked at twice take of a GPU beside gpu.cuh: stores past the cache, the value of the
// lane opposite, NaNs in pairs of 16-bit floats.
#pragma once
#include "gpu.cuh"
#include "gpu_packed.h"

namespace torchreduce {

// ---- stores of what no one reads soon ----------------------------------------------------------------------------------

// It leaves the cache of all before what is being read. On an H200, the gradient of log_softmax of float32 rows takes
// 0.743 ms by these and 0.807 ms by others, 1.02 and 0.94 of a copy's speed.

// Words that were put together one by one: 8 or 16 bytes, aligned to that.
template <class P> __device__ __forceinline__ void stream_granule(P* p, const P& value) {
#if defined(__CUDA_ARCH__)
  uint32_t w[sizeof(P) / 4];
  memcpy(w, &value, sizeof w);
  if constexpr (sizeof(P) == 16)
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p)), "r"(w[0]), "r"(w[1]),
                 "r"(w[2]), "r"(w[3])
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

// ---- lanes -------------------------------------------------------------------------------------------------------------

// The value of the lane whose number differs by the bits of d, which the compiler knows: no register says which that
// is.
__device__ __forceinline__ float shuffle_across(float value, int d) {
#if defined(__CUDACC__)
  return __shfl_xor_sync(0xffffffffu, value, d, kLanes);
#else
  return shuffle(value, lane_id() ^ d);
#endif
}

// ---- 16-bit floats -----------------------------------------------------------------------------------------------------

// Rounded pairs (gpu_packed.h) whose NaNs become canonical: all ones but the sign is the greatest of signed integers.
#if defined(TR_PACKED_MINIMA)
#define TR_CANONICAL_PAIRS
template <bool kBF16> __device__ __forceinline__ uint32_t canonical_pair(uint32_t pair) {
  constexpr uint32_t kNan = kBF16 ? 0x7fc07fc0u : 0x7e007e00u;
#if defined(__CUDA_ARCH__)
  uint32_t least;
  asm("min.s16x2 %0, %1, %2;" : "=r"(least) : "r"(pair), "r"(kNan));
  return least;
#else
  const auto lesser = [](uint32_t a, uint32_t b) { return uint32_t(uint16_t(int16_t(a) < int16_t(b) ? a : b)); };
  return lesser(pair >> 16, kNan >> 16) << 16 | lesser(pair, kNan);
#endif
}
#endif

}  // namespace torchreduce
