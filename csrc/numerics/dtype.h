// Element types, and the conversions of the numerics contract: into an accumulator, and from it to memory.
// Used alike by the CPU kernels, the GPU kernels and the emulation; includes no torch header.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__CUDACC__) || defined(__HIPCC__)
#include "kernels/common/gpu.cuh"
#define TR_HD __host__ __device__ __forceinline__
// Before a loop that GPU compilers would unroll to no use.
#define TR_ROLLED _Pragma("unroll 1")
// Before a loop over an array that is to stay in registers.
#define TR_UNROLLED _Pragma("unroll")
#else
// always_inline, so that no copy compiled for a wider instruction set is shared with code compiled for a narrower one.
#define TR_HD inline __attribute__((always_inline))
#define TR_ROLLED
#define TR_UNROLLED
#endif
// Before one that a CPU goes through, too: not unrolled there, since what it does takes much code.
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#define TR_UNROLLED_ON_GPU _Pragma("unroll")
#elif defined(__clang__) || defined(__CUDACC__)
#define TR_UNROLLED_ON_GPU
#else
#define TR_UNROLLED_ON_GPU _Pragma("GCC unroll 1")
#endif
// First in a branch that is rarely taken: a GPU compiler would do its work always, and select.
#if defined(TR_DEVICE_F16)
#define TR_RARE_PATH asm volatile("")
#else
#define TR_RARE_PATH
#endif

// Code compiled once per CPU instruction set lives in a namespace of its own, for the same reason.
#ifndef TR_ISA
#define TR_ISA generic
#endif

namespace torchreduce {

// The numbers are torch's ScalarType, so that a dtype crosses the torch layer unchanged.
enum class Dtype : int8_t {
  U8 = 0,
  I8 = 1,
  I16 = 2,
  I32 = 3,
  I64 = 4,
  F16 = 5,
  F32 = 6,
  F64 = 7,
  Bool = 11,
  BF16 = 15
};

inline namespace TR_ISA {

struct F16 { uint16_t bits; };
struct BF16 { uint16_t bits; };
struct Bool { uint8_t bits; };  // any nonzero byte is true

template <class T> struct DtypeOf;
template <> struct DtypeOf<uint8_t> { static constexpr Dtype value = Dtype::U8; };
template <> struct DtypeOf<int8_t> { static constexpr Dtype value = Dtype::I8; };
template <> struct DtypeOf<int16_t> { static constexpr Dtype value = Dtype::I16; };
template <> struct DtypeOf<int32_t> { static constexpr Dtype value = Dtype::I32; };
template <> struct DtypeOf<int64_t> { static constexpr Dtype value = Dtype::I64; };
template <> struct DtypeOf<F16> { static constexpr Dtype value = Dtype::F16; };
template <> struct DtypeOf<float> { static constexpr Dtype value = Dtype::F32; };
template <> struct DtypeOf<double> { static constexpr Dtype value = Dtype::F64; };
template <> struct DtypeOf<Bool> { static constexpr Dtype value = Dtype::Bool; };
template <> struct DtypeOf<BF16> { static constexpr Dtype value = Dtype::BF16; };

// Every element type, once. X(T)
#define TR_FOR_EACH_TYPE(X) \
  X(uint8_t) X(int8_t) X(int16_t) X(int32_t) X(int64_t) X(F16) X(float) X(double) X(Bool) X(BF16)

TR_HD constexpr int size_of(Dtype d) {
  return d == Dtype::I64 || d == Dtype::F64                       ? 8
         : d == Dtype::I32 || d == Dtype::F32                     ? 4
         : d == Dtype::I16 || d == Dtype::F16 || d == Dtype::BF16 ? 2
                                                                  : 1;
}
TR_HD constexpr bool is_float(Dtype d) {
  return d == Dtype::F16 || d == Dtype::F32 || d == Dtype::F64 || d == Dtype::BF16;
}

template <class To, class From> TR_HD To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

template <class T> constexpr bool is_float_type = std::is_same<T, F16>::value || std::is_same<T, BF16>::value ||
                                                  std::is_same<T, float>::value || std::is_same<T, double>::value;

// The accumulator of sums of T: float32 for 16- and 32-bit floats, float64 for float64, int64 for integers and bool.
template <class T> using accumulator_t =
    std::conditional_t<std::is_same<T, double>::value, double, std::conditional_t<is_float_type<T>, float, int64_t>>;

// ---- 16-bit floats to float32: exact --------------------------------------------------------------------------------

TR_HD float to_float(BF16 x) { return bit_cast<float>(uint32_t(x.bits) << 16); }

TR_HD float to_float(F16 x) {
#if defined(TR_DEVICE_F16)
  return device_f16_to_float(x.bits);
#else
  const uint32_t sign = uint32_t(x.bits & 0x8000u) << 16, rest = x.bits & 0x7fffu;
  if (rest >= 0x7c00u) return bit_cast<float>(sign | 0x7f800000u | ((rest & 0x3ffu) << 13));
  // A subnormal is an integer multiple of 2^-24; both branches are exact.
  if (rest < 0x400u) return bit_cast<float>(sign | bit_cast<uint32_t>(float(rest) * 0x1p-24f));
  return bit_cast<float>(sign | ((rest + 0x1c000u) << 13));
#endif
}

// ---- rounding to memory types: to nearest, ties to even, once; every NaN becomes the canonical quiet one -------------

TR_HD BF16 to_bf16(float x) {
#if defined(TR_DEVICE_BF16)
  return BF16{x == x ? device_float_to_bf16(x) : uint16_t(0x7fc0)};
#endif
  const uint32_t b = bit_cast<uint32_t>(x);
  if ((b & 0x7fffffffu) > 0x7f800000u) return BF16{0x7fc0};
  return BF16{uint16_t((b + 0x7fffu + ((b >> 16) & 1u)) >> 16)};
}

TR_HD F16 to_f16(float x) {
  const uint32_t b = bit_cast<uint32_t>(x), a = b & 0x7fffffffu;
  if (a > 0x7f800000u) return F16{0x7e00};
#if defined(TR_DEVICE_F16)
  return F16{device_float_to_f16(x)};
#else
  const uint16_t sign = uint16_t((b >> 16) & 0x8000u);
  if (a >= 0x477ff000u) return F16{uint16_t(sign | 0x7c00u)};  // 65520 and above round to infinity
  if (a < 0x38800000u)  // below 2^-14: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits
    return F16{uint16_t(sign | (bit_cast<uint32_t>(bit_cast<float>(a) + 0.5f) - 0x3f000000u))};
  return F16{uint16_t(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13))};
#endif
}

// float64 to float32 with rounding to odd: rounding the result again to 16 bits rounds the float64 value once
// (Boldo and Melquiond 2008).
TR_HD float round_to_odd(double x) {
  const float f = float(x);
  if (double(f) == x || x != x) return f;
  uint32_t b = bit_cast<uint32_t>(f);
  const bool away = (f < 0 ? -double(f) : double(f)) > (x < 0 ? -x : x);  // also when f overflowed to infinity
  return bit_cast<float>((b - (away ? 1u : 0u)) | 1u);
}

TR_HD float canonical(float x) { return x == x ? x : bit_cast<float>(uint32_t(0x7fc00000)); }
TR_HD double canonical(double x) { return x == x ? x : bit_cast<double>(uint64_t(0x7ff8000000000000)); }

// Rounds an accumulator to T, once. Integers wrap modulo their width; bool is "not zero".
template <class T, class Acc> TR_HD T round_to(Acc v) {
  if constexpr (std::is_same<T, F16>::value) {
    if constexpr (std::is_same<Acc, double>::value) return to_f16(round_to_odd(v));
    else return to_f16(float(v));
  } else if constexpr (std::is_same<T, BF16>::value) {
    if constexpr (std::is_same<Acc, double>::value) return to_bf16(round_to_odd(v));
    else return to_bf16(float(v));
  } else if constexpr (std::is_same<T, Bool>::value) {
    return Bool{uint8_t(v != 0)};
  } else if constexpr (is_float_type<T>) {
    return canonical(T(v));
  } else {
    return T(v);
  }
}

// ---- into an accumulator ---------------------------------------------------------------------------------------------

// Truncates toward zero; NaN and whatever lies outside [-2^63, 2^63) become -2^63, on every device.
template <class F> TR_HD int64_t truncate_to_int64(F x) {
  return x >= F(-0x1p63) && x < F(0x1p63) ? int64_t(x) : INT64_MIN;
}

template <class Acc, class T> TR_HD Acc convert(T x) {
  if constexpr (std::is_same<T, Bool>::value) return Acc(x.bits != 0);
  else if constexpr (std::is_same<T, F16>::value || std::is_same<T, BF16>::value) return convert<Acc>(to_float(x));
  else if constexpr (is_float_type<T> && std::is_same<Acc, int64_t>::value) return truncate_to_int64(x);
  else return Acc(x);
}

template <class T> TR_HD bool is_nonzero(T x) {
  if constexpr (std::is_same<T, Bool>::value) return x.bits != 0;
  else if constexpr (std::is_same<T, F16>::value || std::is_same<T, BF16>::value) return (x.bits & 0x7fff) != 0;
  else return x != 0;
}

// Writes v, rounded to `dtype`, as element `offset` of `base`. The integer accumulator goes to integers and bool, the
// floating ones to floats: no caller asks for anything else.
template <class Acc> TR_HD void store_as(Dtype dtype, void* base, int64_t offset, Acc v) {
  if constexpr (std::is_same<Acc, int64_t>::value) {
    switch (dtype) {
      case Dtype::U8: static_cast<uint8_t*>(base)[offset] = round_to<uint8_t>(v); break;
      case Dtype::I8: static_cast<int8_t*>(base)[offset] = round_to<int8_t>(v); break;
      case Dtype::I16: static_cast<int16_t*>(base)[offset] = round_to<int16_t>(v); break;
      case Dtype::I32: static_cast<int32_t*>(base)[offset] = round_to<int32_t>(v); break;
      case Dtype::Bool: static_cast<Bool*>(base)[offset] = round_to<Bool>(v); break;
      default: static_cast<int64_t*>(base)[offset] = v;
    }
  } else {
    switch (dtype) {
      case Dtype::F16: static_cast<F16*>(base)[offset] = round_to<F16>(v); break;
      case Dtype::BF16: static_cast<BF16*>(base)[offset] = round_to<BF16>(v); break;
      case Dtype::F64: static_cast<double*>(base)[offset] = round_to<double>(v); break;
      default: static_cast<float*>(base)[offset] = round_to<float>(v);
    }
  }
}

// Reads element `offset` of `base`, of type `dtype`, into an accumulator. With `truth`, 1 if it is not zero, else 0.
template <class Acc> TR_HD Acc load_as(Dtype dtype, const void* base, int64_t offset, bool truth) {
#define TR_CASE(T)                                       \
  case DtypeOf<T>::value: {                              \
    const T x = static_cast<const T*>(base)[offset];     \
    return truth ? Acc(is_nonzero(x)) : convert<Acc>(x); \
  }
  switch (dtype) { TR_FOR_EACH_TYPE(TR_CASE) }
#undef TR_CASE
  return Acc(0);
}

}  // namespace TR_ISA
}  // namespace torchreduce
