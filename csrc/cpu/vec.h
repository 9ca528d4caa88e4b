// Vectors of the instruction set this file is compiled for, and how elements in memory become vectors and come back.
//
// reduce.cpp and scan.cpp are compiled once per instruction set. Whatever they instantiate lies in the inline namespace
// TR_ISA or in an anonymous one, or is always_inline, and none of it is a function template of the standard library: no
// code made for a wide instruction set can be linked into a narrower one.
#pragma once
#include <immintrin.h>

#include <utility>

#include "../dtype.h"

namespace torchreduce {
inline namespace TR_ISA {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class T, int kCount> struct VectorType {
  typedef T type __attribute__((vector_size(kCount * sizeof(T))));
};
template <class T> constexpr int kLanes = kVectorBytes / int(sizeof(T));
template <class T> using Vec = typename VectorType<T, kLanes<T>>::type;

// The integers of T's width, as which the bits of T are handled.
template <class T> using UintOf = std::conditional_t<sizeof(T) == 1, uint8_t, std::conditional_t<sizeof(T) == 2, uint16_t,
                                  std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>>;
template <class T> using IntOf = std::make_signed_t<UintOf<T>>;

// V is any vector type; memory need not be aligned.
template <class V> TR_HD V load(const void* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class V> TR_HD void store(void* p, V v) { __builtin_memcpy(p, &v, sizeof v); }

// (a0, a2, .., b0, b2, ..) and (a1, a3, .., b1, b3, ..)
template <class T, int... kIndex>
TR_HD void unzip(Vec<T> a, Vec<T> b, Vec<T>& even, Vec<T>& odd, std::integer_sequence<int, kIndex...>) {
  using Indices = Vec<IntOf<T>>;
  even = __builtin_shuffle(a, b, Indices{IntOf<T>(2 * kIndex)...});
  odd = __builtin_shuffle(a, b, Indices{IntOf<T>(2 * kIndex + 1)...});
}
template <class T> TR_HD void unzip(Vec<T> a, Vec<T> b, Vec<T>& even, Vec<T>& odd) {
  unzip<T>(a, b, even, odd, std::make_integer_sequence<int, kLanes<T>>());
}

// v where lane < count, else `other`
template <class T, int... kIndex>
TR_HD Vec<T> first_lanes(Vec<T> v, int64_t count, T other, std::integer_sequence<int, kIndex...>) {
  using Indices = Vec<UintOf<T>>;
  const Indices lane{UintOf<T>(kIndex)...};
  const Vec<T> others = Vec<T>{} + other;  // for -0.0, 0.0 + -0.0 would be 0.0: see below
  return lane < UintOf<T>(count) ? v : others;
}

// The lowest set lane of a comparison's result, or -1.
template <class T> TR_HD int first_set(Vec<T> mask) {
#if defined(__AVX512F__)
  const uint64_t bytes = _mm512_movepi8_mask(load<__m512i>(&mask));
#elif defined(__AVX2__)
  const uint64_t bytes = uint32_t(_mm256_movemask_epi8(load<__m256i>(&mask)));
#else
  const uint64_t bytes = uint32_t(_mm_movemask_epi8(load<__m128i>(&mask)));
#endif
  return bytes ? __builtin_ctzll(bytes) / int(sizeof(T)) : -1;
}

}  // namespace TR_ISA
}  // namespace torchreduce
