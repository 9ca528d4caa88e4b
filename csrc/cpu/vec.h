// Vectors of the instruction set this file is compiled for, and how elements in memory become vectors of lanes.
//
// reduce.cpp and scan.cpp are compiled once per instruction set. Whatever they instantiate lies in the inline namespace
// TR_ISA or in an anonymous one, or is always_inline, and none of it is a function template of the standard library: no
// code made for a wide instruction set can be linked into a narrower one.
#pragma once
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <utility>

#include "numerics/explog.h"

namespace torchreduce {
inline namespace TR_ISA {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class T, int kCount> struct VectorType { typedef T type __attribute__((vector_size(kCount * sizeof(T)))); };
template <class T> constexpr int kLanes = kVectorBytes / int(sizeof(T));
template <class T> using Vec = typename VectorType<T, kLanes<T>>::type;

// The integers of T's width.
template <class T>
using UintOf = std::conditional_t<
    sizeof(T) == 1, uint8_t,
    std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>>;
template <class T> using IntOf = std::make_signed_t<UintOf<T>>;

// V is any vector type; memory need not be aligned.
template <class V> TR_HD V load(const void* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class V> TR_HD void store(void* p, V v) { __builtin_memcpy(p, &v, sizeof v); }

template <class T> TR_HD Vec<T> splat(T x) { return x - Vec<T>{}; }  // x - 0 is x, -0.0 included

// The even and the odd units of kUnit lanes in each of the kBlocks equal parts of a, beside those of the same part of
// b: for kUnit = kBlocks = 1 (a0, a2, .., b0, b2, ..) and (a1, a3, .., b1, b3, ..).
template <class T, int kUnit, int kBlocks, int... kIndex>
TR_HD void unzip(Vec<T> a, Vec<T> b, Vec<T>& even, Vec<T>& odd, std::integer_sequence<int, kIndex...>) {
  using I = IntOf<T>;
  constexpr int W = kLanes<T>, kPart = W / kBlocks, kHalf = kPart / 2;
  constexpr auto from = [](int lane) {  // of the even units
    const int part = lane / kPart, i = lane % kPart, j = i % kHalf;
    return (i < kHalf ? 0 : W) + part * kPart + j / kUnit * 2 * kUnit + j % kUnit;
  };
  even = __builtin_shuffle(a, b, Vec<I>{I(from(kIndex))...});
  odd = __builtin_shuffle(a, b, Vec<I>{I(from(kIndex) + kUnit)...});
}
template <class T, int kUnit, int kBlocks> TR_HD void unzip(Vec<T> a, Vec<T> b, Vec<T>& even, Vec<T>& odd) {
  unzip<T, kUnit, kBlocks>(a, b, even, odd, std::make_integer_sequence<int, kLanes<T>>());
}

// v in the lanes below `count`, `other` in the rest.
template <class T, int... kIndex>
TR_HD Vec<T> first_lanes(Vec<T> v, int64_t count, T other, std::integer_sequence<int, kIndex...>) {
  const Vec<UintOf<T>> lane{UintOf<T>(kIndex)...};
  return lane < splat(UintOf<T>(count)) ? v : splat(other);
}
template <class T> TR_HD Vec<T> first_lanes(Vec<T> v, int64_t count, T other) {
  return first_lanes<T>(v, count, other, std::make_integer_sequence<int, kLanes<T>>());
}

// The lowest lane that is set in a comparison's result, or -1.
template <class M> TR_HD int first_set(M mask) {
#if defined(__AVX512F__)
  const uint64_t bytes = _mm512_movepi8_mask(load<__m512i>(&mask));
#elif defined(__AVX2__)
  const uint64_t bytes = uint32_t(_mm256_movemask_epi8(load<__m256i>(&mask)));
#elif defined(__SSE2__)
  const uint64_t bytes = uint32_t(_mm_movemask_epi8(load<__m128i>(&mask)));
#else
  for (int lane = 0; lane < int(sizeof mask / sizeof mask[0]); ++lane)
    if (mask[lane]) return lane;
  const uint64_t bytes = 0;
#endif
  return bytes ? __builtin_ctzll(bytes) / int(sizeof mask[0]) : -1;
}

// ---- kLanes<Lane> elements at p, each converted as dtype.h's convert does -------------------------------------------

// Sign- or zero-extends kLanes<To> integers.
template <class To, class From> TR_HD Vec<To> widen(const From* p) {
  [[maybe_unused]] constexpr bool kUnsigned = std::is_unsigned<From>::value;
#if defined(__AVX512F__)
  __m512i v;
  if constexpr (sizeof(From) == 1 && sizeof(To) == 8) {
    __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    asm("" : "+v"(x));  // gcc 12 cannot assemble a masked extension from memory (internal compiler error)
    v = kUnsigned ? _mm512_cvtepu8_epi64(x) : _mm512_cvtepi8_epi64(x);
  } else if constexpr (sizeof(From) == 2 && sizeof(To) == 8) {
    const __m128i x = load<__m128i>(p);
    v = kUnsigned ? _mm512_cvtepu16_epi64(x) : _mm512_cvtepi16_epi64(x);
  } else if constexpr (sizeof(From) == 4 && sizeof(To) == 8) {
    const __m256i x = load<__m256i>(p);
    v = kUnsigned ? _mm512_cvtepu32_epi64(x) : _mm512_cvtepi32_epi64(x);
  } else {
    static_assert(sizeof(From) == 2 && sizeof(To) == 4 && kUnsigned);
    v = _mm512_cvtepu16_epi32(load<__m256i>(p));
  }
  return load<Vec<To>>(&v);
#elif defined(__AVX2__)
  __m256i v;
  if constexpr (sizeof(From) == 1 && sizeof(To) == 8) {
    const __m128i x = _mm_cvtsi32_si128(bit_cast<int32_t>(load<typename VectorType<uint8_t, 4>::type>(p)));
    v = kUnsigned ? _mm256_cvtepu8_epi64(x) : _mm256_cvtepi8_epi64(x);
  } else if constexpr (sizeof(From) == 2 && sizeof(To) == 8) {
    const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    v = kUnsigned ? _mm256_cvtepu16_epi64(x) : _mm256_cvtepi16_epi64(x);
  } else if constexpr (sizeof(From) == 4 && sizeof(To) == 8) {
    const __m128i x = load<__m128i>(p);
    v = kUnsigned ? _mm256_cvtepu32_epi64(x) : _mm256_cvtepi32_epi64(x);
  } else {
    static_assert(sizeof(From) == 2 && sizeof(To) == 4 && kUnsigned);
    v = _mm256_cvtepu16_epi32(load<__m128i>(p));
  }
  return load<Vec<To>>(&v);
#else
  Vec<To> v{};
  for (int i = 0; i < kLanes<To>; ++i) v[i] = To(p[i]);
  return v;
#endif
}

template <class Lane, class E> TR_HD Vec<Lane> load_converted(const E* p) {
  if constexpr (sizeof(Lane) == sizeof(E) && is_float_type<Lane> == is_float_type<E>) {
    return load<Vec<Lane>>(p);
  } else if constexpr (std::is_same<E, BF16>::value && std::is_same<Lane, float>::value) {
    return (Vec<float>)(widen<uint32_t>(&p->bits) << 16);
#if defined(__AVX512F__)
  } else if constexpr (std::is_same<E, F16>::value && std::is_same<Lane, float>::value) {
    return _mm512_cvtph_ps(load<__m256i>(p));
#elif defined(__F16C__)
  } else if constexpr (std::is_same<E, F16>::value && std::is_same<Lane, float>::value) {
    return _mm256_cvtph_ps(load<__m128i>(p));
#endif
  } else if constexpr (std::is_same<E, Bool>::value && sizeof(Lane) == 8 && !is_float_type<Lane>) {
    return (Vec<Lane>)(widen<Lane>(&p->bits) != Vec<Lane>{}) & 1;
  } else if constexpr (!is_float_type<E> && sizeof(Lane) == 8 && !is_float_type<Lane>) {
    return widen<Lane>(p);
  } else {
    using Acc = std::conditional_t<std::is_same<Lane, uint64_t>::value, int64_t, Lane>;
    Vec<Lane> v{};
    for (int i = 0; i < kLanes<Lane>; ++i) v[i] = Lane(convert<Acc>(p[i]));
    return v;
  }
}

// a * b + c, each rounded once.
template <class V> TR_HD V fma_lanes(V a, V b, V c) {
#if defined(__AVX512F__)
  if constexpr (sizeof a[0] == 4) return (V)_mm512_fmadd_ps(load<__m512>(&a), load<__m512>(&b), load<__m512>(&c));
  else return (V)_mm512_fmadd_pd(load<__m512d>(&a), load<__m512d>(&b), load<__m512d>(&c));
#elif defined(__FMA__)
  if constexpr (sizeof a[0] == 4) return (V)_mm256_fmadd_ps(load<__m256>(&a), load<__m256>(&b), load<__m256>(&c));
  else return (V)_mm256_fmadd_pd(load<__m256d>(&a), load<__m256d>(&b), load<__m256d>(&c));
#else
  for (size_t i = 0; i < sizeof a / sizeof a[0]; ++i) c[i] = fma_of(a[i], b[i], c[i]);
  return c;
#endif
}

// ---- rounding kLanes<float> accumulators to memory, as dtype.h's round_to does ----------------------------------------

TR_HD Vec<float> canonical_lanes(Vec<float> v) { return v == v ? v : splat(bit_cast<float>(uint32_t(0x7fc00000))); }

template <class T> TR_HD void store_rounded(T* p, Vec<float> v) {
  if constexpr (std::is_same<T, BF16>::value) {
    const Vec<uint32_t> b = (Vec<uint32_t>)v;
    const Vec<uint32_t> rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
    const Vec<uint32_t> kept = v == v ? rounded : splat(uint32_t(0x7fc0));
#if defined(__AVX512F__)
    store(p, _mm512_cvtepi32_epi16(load<__m512i>(&kept)));
#elif defined(__AVX2__)
    const __m256i pairs = load<__m256i>(&kept);
    store(p, _mm_packus_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1)));
#else
    for (int i = 0; i < kLanes<float>; ++i) p[i].bits = uint16_t(kept[i]);
#endif
#if defined(__AVX512F__)
  } else if constexpr (std::is_same<T, F16>::value) {
    store(p, _mm512_cvtps_ph(canonical_lanes(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__F16C__)
  } else if constexpr (std::is_same<T, F16>::value) {
    store(p, _mm256_cvtps_ph(canonical_lanes(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#endif
  } else if constexpr (std::is_same<T, float>::value) {
    store(p, canonical_lanes(v));
  } else {
    for (int i = 0; i < kLanes<float>; ++i) p[i] = round_to<T>(float(v[i]));
  }
}

}  // namespace TR_ISA
}  // namespace torchreduce
