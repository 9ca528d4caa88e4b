// What NVIDIA's GPUs do with two 16-bit values, or with all bits of a float, in one instruction, beside what gpu.cuh
// has: after #else of each function its model, plain code with the bits of that instruction. The emulation runs the
// models in kernels, and instructions.h has every function compared with what it is for.
#pragma once
#include "numerics/dtype.h"

// TR_EMULATED_PACKED: an emulation that compiles what is compiled for Hopper.
#if defined(__CUDA_ARCH__) || defined(TR_EMULATED_PACKED)
#define TR_PACKED_ROUNDING
#define TR_PACKED_KEYS
#define TR_FLOAT_MAXIMA
#endif
#if (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900) || defined(TR_EMULATED_PACKED)
#define TR_PACKED_MINIMA  // one instruction there, many before
#endif

namespace torchreduce {
inline namespace TR_ISA {

// Two values that are not NaN, the first in the low half; of a NaN all ones but the sign.
TR_HD uint32_t pack_f16(float low, float high) {
#if defined(__CUDA_ARCH__)
  uint32_t bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
#else
  auto rounded = [](float x) { return x != x ? 0x7fffu : uint32_t(to_f16(x).bits); };
  return rounded(high) << 16 | rounded(low);
#endif
}
TR_HD uint32_t pack_bf16(float low, float high) {
#if defined(__CUDA_ARCH__)
  uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
#else
  auto rounded = [](float x) { return x != x ? 0x7fffu : uint32_t(to_bf16(x).bits); };
  return rounded(high) << 16 | rounded(low);
#endif
}

// For each half: of least, and of the low half of low or of high with that of `add` added to it, the lesser, modulo
// 2^16 and as unsigned numbers.
TR_HD uint32_t least_halves(uint32_t low, uint32_t high, uint32_t add, uint32_t least) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  return __viaddmin_u16x2(__byte_perm(low, high, 0x5410), add, least);
#else
  auto lesser = [](uint32_t a, uint32_t b) { return a < b ? a : b; };
  return lesser((high + (add >> 16)) & 0xffffu, least >> 16) << 16 | lesser((low + add) & 0xffffu, least & 0xffffu);
#endif
}

// Keys of floats (ops/reductions.h, Ordering::key) in few instructions; under a minimum those of merged zeros are by
// one greater. A product by 1 or -1, plus 0, turns each NaN into that of all ones but the sign, and -0.0 into +0.0;
// plus -0.0, it keeps zeros apart.
TR_HD int32_t packed_key(uint32_t bits, bool min, bool merge_zeros = true) {
#if defined(__CUDA_ARCH__)
  const float zero = merge_zeros ? 0.0f : -0.0f;
  const int32_t y = __float_as_int(__fmaf_rn(__uint_as_float(bits), min ? -1.0f : 1.0f, zero));
#else
  const uint32_t magnitude = bits & 0x7fffffffu;
  const int32_t y = magnitude > 0x7f800000u         ? 0x7fffffff
                    : magnitude == 0 && merge_zeros ? 0
                                                    : int32_t(bits ^ (min ? 0x80000000u : 0u));
#endif
  return y ^ (y >> 31 & 0x7fffffff);
}
// Of two bfloat16 or float16.
template <bool kBF16> TR_HD uint32_t packed_keys(uint32_t bits, bool min, bool merge_zeros = true) {
  uint32_t y, signs;  // each half of signs the copies of its sign in y
#if defined(__CUDA_ARCH__)
  const uint32_t zeros = merge_zeros ? 0u : 0x80008000u;
  if constexpr (kBF16)
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(bits), "r"(min ? 0xbf80bf80u : 0x3f803f80u), "r"(zeros));
  else asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(bits), "r"(min ? 0xbc00bc00u : 0x3c003c00u), "r"(zeros));
  asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(signs) : "r"(y));
#else
  auto product = [=](uint32_t half) {
    const uint32_t magnitude = half & 0x7fffu, negated = half ^ (min ? 0x8000u : 0u);
    return magnitude > (kBF16 ? 0x7f80u : 0x7c00u) ? 0x7fffu : magnitude == 0 && merge_zeros ? 0u : negated;
  };
  y = product(bits >> 16) << 16 | product(bits & 0xffffu);
  signs = (y >> 31 ? 0xffff0000u : 0u) | (y >> 15 & 1u ? 0xffffu : 0u);
#endif
  return y ^ (signs & 0x7fff7fffu);
}

// The greater of two floats, or of each half of two words of 16-bit floats: -0.0 < +0.0; with a NaN, all ones but the
// sign.
TR_HD float float_maximum(float a, float b) {
#if defined(__CUDA_ARCH__)
  float m;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
  return m;
#else
  if (a != a || b != b) return bit_cast<float>(0x7fffffffu);
  return packed_key(bit_cast<uint32_t>(a), false, false) < packed_key(bit_cast<uint32_t>(b), false, false) ? b : a;
#endif
}
template <bool kBF16> TR_HD uint32_t packed_maxima(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
  uint32_t m;
  if constexpr (kBF16) asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(m) : "r"(a), "r"(b));
  else asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(m) : "r"(a), "r"(b));
  return m;
#else
  auto greater = [](uint32_t x, uint32_t y) {
    auto is_nan = [](uint32_t half) { return (half & 0x7fffu) > (kBF16 ? 0x7f80u : 0x7c00u); };
    auto key = [](uint32_t half) { return int16_t(packed_keys<kBF16>(half, false, false)); };
    return is_nan(x) || is_nan(y) ? 0x7fffu : key(x) < key(y) ? y : x;
  };
  return greater(a >> 16, b >> 16) << 16 | greater(a & 0xffffu, b & 0xffffu);
#endif
}

}  // namespace TR_ISA
}  // namespace torchreduce
