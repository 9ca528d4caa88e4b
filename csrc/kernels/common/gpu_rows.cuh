// What kernels of row-wise ops take of a GPU beside gpu.cuh: the value of the lane opposite, NaNs in
// pairs of 16-bit floats.
#pragma once
#include "gpu.cuh"
#include "gpu_packed.h"

namespace torchreduce {

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

// Two results, rounded, as they are in memory.
template <class E> __device__ __forceinline__ Packed<E, 2> rounded_two(float low, float high) {
#ifdef TR_CANONICAL_PAIRS
  if constexpr (sizeof(E) == 2) {
    constexpr bool kBF16 = std::is_same<E, BF16>::value;
    return bit_cast<Packed<E, 2>>(canonical_pair<kBF16>(kBF16 ? pack_bf16(low, high) : pack_f16(low, high)));
  }
#endif
  return {{round_to<E>(low), round_to<E>(high)}};
}

}  // namespace torchreduce
