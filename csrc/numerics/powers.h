// Numbers with an unbounded exponent, of which products consist: only a result itself overflows or underflows.
#pragma once
#include "dtype.h"

namespace torchreduce {
inline namespace TR_ISA {

template <class F> struct Power {  // m * 2^e, with 1 <= |m| < 2; zeros, infinities and NaN are m, with e = 0
  F m;
  std::conditional_t<std::is_same<F, float>::value, int32_t, int64_t> e;
};
template <class F> struct FloatBits {
  static constexpr bool kSingle = std::is_same<F, float>::value;
  using Bits = std::conditional_t<kSingle, uint32_t, uint64_t>;
  static constexpr int kFraction = kSingle ? 23 : 52, kBias = kSingle ? 127 : 1023;
  static constexpr Bits kExponents = Bits(2 * kBias + 1) << kFraction;
};
template <class F> TR_HD bool has_exponent(F m) { return m != 0 && m - m == 0; }

// Of a normal number.
template <class F> TR_HD Power<F> normal_power(F x) {
  using B = FloatBits<F>;
  using Bits = typename B::Bits;
  const Bits bits = bit_cast<Bits>(x);
  return {bit_cast<F>((bits & ~B::kExponents) | (Bits(B::kBias) << B::kFraction)),
          int((bits & B::kExponents) >> B::kFraction) - B::kBias};
}
template <class F> TR_HD Power<F> power_of(F x) {
  using B = FloatBits<F>;
  if (!has_exponent(x)) return {x, 0};
  const bool subnormal = (bit_cast<typename B::Bits>(x) & B::kExponents) == 0;
  Power<F> power = normal_power(subnormal ? x * (B::kSingle ? F(0x1p24) : F(0x1p54)) : x);
  power.e -= subnormal ? B::kSingle ? 24 : 54 : 0;
  return power;
}
// m * 2^e, where 1 <= |m| < 4.
template <class F, class Exponent> TR_HD Power<F> normalized(F m, Exponent e) {
  using Bits = typename FloatBits<F>::Bits;
  const Bits bits = bit_cast<Bits>(m), carry = ~(bits >> FloatBits<F>::kFraction) & 1u;  // an exponent of 1, not 0
  return {bit_cast<F>(bits - (carry << FloatBits<F>::kFraction)), e + int(carry)};
}
// One rounding, of the product of the mantissas.
template <class F> TR_HD Power<F> multiply(Power<F> a, Power<F> b) {
  const F m = a.m * b.m;
  if (!has_exponent(m)) return {m, 0};
  return normalized(m, a.e + b.e);
}
// The same with any number, without branches: x at either end of the exponents is scaled first, so that its product
// with a mantissa neither is subnormal nor overflows.
template <class F> TR_HD Power<F> multiply_by(Power<F> a, F x) {
  using B = FloatBits<F>;
  using Bits = typename B::Bits;
  const Bits exponent = (bit_cast<Bits>(x) & B::kExponents) >> B::kFraction;
  const bool small = exponent == 0, large = exponent >= Bits(2 * B::kBias);
  const F moved = x * (small ? B::kSingle ? F(0x1p24) : F(0x1p54) : large ? F(0.5) : F(1)), m = a.m * moved;
  const Power<F> product = normal_power(m);
  const int by = small ? B::kSingle ? 24 : 54 : large ? -1 : 0;
  return has_exponent(m) ? Power<F>{product.m, a.e + product.e - by} : Power<F>{m, 0};
}
TR_HD int64_t multiply(int64_t a, int64_t b) { return int64_t(uint64_t(a) * uint64_t(b)); }
// Of a normal number's exponent.
TR_HD double two_to(int64_t e) { return bit_cast<double>(uint64_t(e + 1023) << 52); }
// To float64, rounded where it is subnormal there.
TR_HD double value_of(Power<double> x) {
  if (x.e > -1023 && x.e < 1024) return bit_cast<double>(bit_cast<uint64_t>(x.m) + (uint64_t(x.e) << 52));
  TR_RARE_PATH;
  const int64_t e = x.e < -1100 ? -1100 : x.e > 1100 ? 1100 : x.e, half = e >> 1;
  return x.m * two_to(half) * two_to(e - half);
}

}  // namespace TR_ISA
}  // namespace torchreduce
