// exp and log of the project's own: those of the toolkits differ between devices and versions. IEEE basic operations
// and explicit fused multiply-adds, no table and no branch, so every device and instruction set has the same bits, and
// loops over them become vectors. After range reduction each is a polynomial fitted to the interval that is left.
//
// Greatest error in ulp, float32: exp 0.87, log 0.87 (every input); float64: exp 0.91, log 0.81 (sampled).
#pragma once
#include "dtype.h"

namespace torchreduce {
inline namespace TR_ISA {

template <class F> constexpr F kInfinity = F(__builtin_huge_val());

TR_HD float magnitude(float x) { return __builtin_fabsf(x); }
TR_HD double magnitude(double x) { return __builtin_fabs(x); }
template <class F> TR_HD bool is_finite(F x) { return magnitude(x) < kInfinity<F>; }

// a * b + c, rounded once.
TR_HD float fma_of(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}
TR_HD double fma_of(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
  return __fma_rn(a, b, c);
#else
  return __builtin_fma(a, b, c);
#endif
}

// The greater; the second if the first is NaN.
TR_HD float greater_number(float a, float b) {
#if defined(__CUDA_ARCH__)
  return fmaxf(a, b);
#else
  return a > b ? a : b;
#endif
}
TR_HD double greater_number(double a, double b) { return a > b ? a : b; }
// The same of the lesser.
TR_HD float lesser_number(float a, float b) { return -greater_number(-a, -b); }
TR_HD double lesser_number(double a, double b) { return a < b ? a : b; }
// The greater; NaN of a NaN. Of two zeros either.
TR_HD float greatest(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float m;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
  return m;
#else
  return a >= b || a != a ? a : b;
#endif
}
TR_HD double greatest(double a, double b) { return a >= b || a != a ? a : b; }

// The first argument's exp is 0, and from it up to 0 exp_in_range is good.
template <class F> constexpr F kLeastExponent = sizeof(F) == 4 ? F(-104) : F(-746);

// exp(x) = q 2^n: the low bits of t are n, the integer nearest to x / ln 2. For finite x of magnitude below 2^20; NaN
// of NaN.
template <class F> struct PowerOfTwo {
  using Bits = std::conditional_t<sizeof(F) == 4, uint32_t, uint64_t>;
  static constexpr int kMantissa = sizeof(F) == 4 ? 23 : 52, kBias = sizeof(F) == 4 ? 127 : 1023;
  static constexpr int kHeadroom = sizeof(F) == 4 ? 100 : 200;  // keeps q 2^(n + kHeadroom) normal
  F q, t;

  TR_HD int n() const { return int(t - F(sizeof(F) == 4 ? 0x1.8p+23 : 0x1.8p+52)); }
  // The bits of 2^(n + kHeadroom).
  static constexpr Bits kRaised = Bits(kBias + kHeadroom) << kMantissa;
  TR_HD Bits raised() const { return (bit_cast<Bits>(t) << kMantissa) + kRaised; }
  // 2^n q for a 2^n of these bits, raised; rounded once more where it is subnormal.
  TR_HD F scaled(Bits raised) const {
    constexpr F kLowered = F(sizeof(F) == 4 ? 0x1p-100 : 0x1p-200);
    const F y = q * bit_cast<F>(raised);
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__) || defined(TR_EMULATED)
    return y * kLowered;
#else
    // The same of y >= 0 and NaN. x86 takes 150 cycles for a multiplication with a subnormal result, so no y below
    // kLeast is multiplied. Such a result is the least normal number less some steps of subnormal numbers, which are
    // taken off as an integer: y + kLeast is rounded to multiples of the same step, times 1 / kLowered.
    constexpr F kLeast = F(sizeof(F) == 4 ? 0x1p-26 : 0x1p-822);
    const F normal = (y < kLeast ? kLeast : y) * kLowered, rounded = (y < kLeast ? y : kLeast) + kLeast;
    return bit_cast<F>(bit_cast<Bits>(normal) + (bit_cast<Bits>(rounded) - bit_cast<Bits>(2 * kLeast)));
#endif
  }
};
TR_HD PowerOfTwo<float> split_exp(float x) {
  const float t = fma_of(x, 0x1.715476p+0f, 0x1.8p+23f), n = t - 0x1.8p+23f;
  float r = fma_of(n, -0x1.62e4p-1f, x);  // x - n ln 2, in two steps: the first, of a 16-bit part of ln 2, is exact
  r = fma_of(n, -0x1.7f7d1cp-20f, r);
  float q = fma_of(0x1.6a4b82p-10f, r, 0x1.124fbcp-7f);
  q = fma_of(q, r, 0x1.5558bep-5f);
  q = fma_of(q, r, 0x1.55546ap-3f);
  q = fma_of(q, r, 0x1.fffffcp-2f);
  q = fma_of(q, r, 1.0f);
  return {fma_of(q, r, 1.0f), t};
}
TR_HD PowerOfTwo<double> split_exp(double x) {
  const double t = fma_of(x, 0x1.71547652b82fep+0, 0x1.8p+52), n = t - 0x1.8p+52;
  double r = fma_of(n, -0x1.62e42fefa0000p-1, x);
  r = fma_of(n, -0x1.cf79abc9e3b3ap-40, r);
  double q = fma_of(0x1.ad7f79e33a203p-26, r, 0x1.28ad69a43a4c8p-22);
  q = fma_of(q, r, 0x1.71df253c6ffe1p-19);
  q = fma_of(q, r, 0x1.a0199a15d8778p-16);
  q = fma_of(q, r, 0x1.a01a012a6800cp-13);
  q = fma_of(q, r, 0x1.6c16c18426c95p-10);
  q = fma_of(q, r, 0x1.1111111127ba2p-7);
  q = fma_of(q, r, 0x1.555555555088ap-5);
  q = fma_of(q, r, 0x1.55555555554fap-3);
  q = fma_of(q, r, 0x1.000000000000ap-1);
  q = fma_of(q, r, 1.0);
  return {fma_of(q, r, 1.0), t};
}

// exp of x in [kLeastExponent, 0]; NaN of NaN. exactly 1 at both zeros. Subnormal results are rounded once more.
template <class F> TR_HD F exp_in_range(F x) {
  const PowerOfTwo<F> power = split_exp(x);
  return power.scaled(power.raised());
}

// exp of x <= 0; NaN of NaN.
template <class F> TR_HD F exp_nonpositive(F x) { return exp_in_range(x < kLeastExponent<F> ? kLeastExponent<F> : x); }

// log of x >= 1, finite; finite of any other number that is not negative, too.
TR_HD float log_positive(float x) {
  const uint32_t bits = bit_cast<uint32_t>(x), e = (bits - 0x3f2aaaabu) & 0xff800000u;  // x = 2^k (1 + f), f < 1/3
  const float f = bit_cast<float>(bits - e) - 1.0f, k = float(int32_t(e)), s = f * f;   // k: times 2^23
  float q = fma_of(-0x1.08bb4cp-3f, f, 0x1.1e404p-3f);
  q = fma_of(q, f, -0x1.f31d74p-4f);
  q = fma_of(q, f, 0x1.1ed54cp-3f);
  q = fma_of(q, f, -0x1.559f82p-3f);
  q = fma_of(q, f, 0x1.99d002p-3f);
  q = fma_of(q, f, -0x1.fffea4p-3f);
  q = fma_of(q, f, 0x1.555512p-2f);
  q = fma_of(q, f, -0.5f);
  q = fma_of(q, s, f);
  return fma_of(k, 0x1.62e430p-24f, q);
}
TR_HD double log_positive(double x) {
  const uint64_t bits = bit_cast<uint64_t>(x), e = (bits - 0x3fe6a09e667f3bcdu) & 0xfff0000000000000u;
  const double f = bit_cast<double>(bits - e) - 1.0, k = double(int32_t(int64_t(e) >> 52));
  const double s = f / (2.0 + f), z = s * s, w = 0.5 * f * f;
  double r = fma_of(0x1.2f112df3e5244p-3, z, 0x1.39a09d078c69fp-3);
  r = fma_of(r, z, 0x1.7466496cb03dep-3);
  r = fma_of(r, z, 0x1.c71c51d8e78afp-3);
  r = fma_of(r, z, 0x1.2492494229359p-2);
  r = fma_of(r, z, 0x1.999999997fa04p-2);
  r = fma_of(r, z, 0x1.5555555555593p-1);
  r = r * z;
  const double low = fma_of(k, 0x1.a39ef35793c76p-33, s * (w + r));
  return fma_of(k, 0x1.62e42feep-1, f - (w - low));
}

}  // namespace TR_ISA
}  // namespace torchreduce
