// What a lane has of neighbouring columns: a granule of each row.
#pragma once
#include "kernels/reduce/granule.cuh"

namespace torchreduce::gpu {

// The greatest elements of a granule's columns, as far as they were seen; NaN if there is one.
template <class E> struct ColumnMaxima {
  static constexpr bool kPacked = sizeof(E) == 2;
  uint32_t words[4];

  __device__ ColumnMaxima() {
#pragma unroll
    for (uint32_t& w : words)
      w = kPacked ? (std::is_same_v<E, BF16> ? 0xff80ff80u : 0xfc00fc00u) : 0xff800000u;  // -inf
  }
  __device__ static uint32_t greater(uint32_t a, uint32_t b) {
    if constexpr (kPacked) return packed_maxima<std::is_same_v<E, BF16>>(a, b);
    else return bit_cast<uint32_t>(greatest(bit_cast<float>(a), bit_cast<float>(b)));
  }
  __device__ __forceinline__ void take(const uint32_t (&granule)[4]) {
#pragma unroll
    for (int w = 0; w < 4; ++w) words[w] = greater(words[w], granule[w]);
  }
  __device__ __forceinline__ float column(int j) const {
    if constexpr (kPacked) return convert<float>(bit_cast<E>(uint16_t(words[j / 2] >> (j % 2 * 16))));
    else return bit_cast<float>(words[j]);
  }
};

// The greatest of all negated elements: whether any is less than -most.
template <class E> struct ColumnsLeast {
  uint32_t negated = ColumnMaxima<E>().words[0];

  __device__ __forceinline__ void take(const uint32_t (&granule)[4]) {
#pragma unroll
    for (const uint32_t w : granule)
      negated = ColumnMaxima<E>::greater(negated, w ^ (sizeof(E) == 2 ? 0x80008000u : 0x80000000u));
  }
  __device__ __forceinline__ bool is_within(float most) const {
    if constexpr (sizeof(E) == 4) return bit_cast<float>(negated) <= most;
    else
      return convert<float>(bit_cast<E>(uint16_t(negated))) <= most &&
             convert<float>(bit_cast<E>(uint16_t(negated >> 16))) <= most;
  }
};

// Results, each rounded once. kNoNan: none is NaN.
template <class E, bool kNoNan, int V> __device__ __forceinline__ Granule rounded_granule(const float (&y)[V]) {
  if constexpr (kLooksForNan<E, float>) {
    bool nan = false;
    if constexpr (!kNoNan)
#pragma unroll
      for (int j = 0; j < V; j += 2) nan |= (y[j] != y[j]) | (y[j + 1] != y[j + 1]);  // one comparison
    if (!nan) {
      Granule g;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        if constexpr (sizeof(E) == 4) g.item[w] = bit_cast<uint32_t>(y[w]);
        else g.item[w] = round_pair<E>(y[2 * w], y[2 * w + 1]);
      }
      return g;
    }
  }
  E x[V];
#pragma unroll
  for (int j = 0; j < V; ++j) x[j] = round_to<E>(y[j]);
  return bit_cast_words<Granule>(x);
}

}  // namespace torchreduce::gpu
