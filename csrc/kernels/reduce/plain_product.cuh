// Products of floats as floats, as long as that gives the bits of powers (powers.h).
#pragma once
#include "kernels/common/collective.cuh"

namespace torchreduce::gpu {

// As floats: as long as every product is a normal number the bits are those of powers (powers.h). Where one is not,
// which shows in the least magnitude or in the end, what the lanes had is multiplied again, by powers.
template <class Op> struct PlainProduct {
  using Element = typename Op::Element;
  using Acc = typename Op::F;
  using Bits = FloatBits<Acc>;
  using Word = typename Bits::Bits;
  static constexpr bool kIndexed = false, kAnyOrder = false, kHasSteps = true;
  mutable Acc least = infinite();  // of the magnitudes of the lane's products

  __device__ static Acc absent() { return Acc(1); }
  __device__ static Element absent_element() { return Op::absent_element(); }
  template <int N, class Get> __device__ void steps(Acc* acc, Get get) const {
#pragma unroll
    for (int i = 0; i < N; ++i) acc[i] = combine(acc[i], convert<Acc>(get(i)));
  }
  __device__ static Acc load(Element x, int64_t) { return convert<Acc>(x); }
  using Near = Acc;  // of columns
  template <int N> __device__ static void near_all(const uint32_t* words, int, Near (&v)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = convert<Acc>(element_of<Element>(words, i));
  }
  __device__ Acc combine(Acc left, Acc right) const {
    const Acc product = left * right;
    least = smaller(
        std::is_same<Acc, float>::value ? Acc(__builtin_fabsf(float(product))) : Acc(__builtin_fabs(product)), least);
    return product;
  }
  // Whether `product`, in which the lane's end, is that of the powers. The least normal number does not count: a
  // product below it may have been rounded up to it. What is infinite or NaN stays so, or 0 has made NaN of it.
  __device__ bool holds(Acc product) const {
    const Acc low = bit_cast<Acc>(Word(1) << Bits::kFraction), size = product < 0 ? -product : product;
    return least > low && size > low && size < infinite();
  }

 private:
  __device__ static Acc infinite() { return bit_cast<Acc>(Word(Bits::kExponents)); }
  __device__ static Acc smaller(Acc a, Acc b) {  // b where a is NaN
    if constexpr (std::is_same<Acc, float>::value) return __builtin_fminf(a, b);
    else return a < b ? a : b;
  }
};
template <class Op> constexpr bool kMultipliesFloats = false;
template <class E> constexpr bool kMultipliesFloats<Product<E>> = Product<E>::kFloat;

}  // namespace torchreduce::gpu
