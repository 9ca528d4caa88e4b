// How kernels that serve any call (columns, strided) read elements one by one, and what they are compiled for: an
// accumulator, not a type. Of sums and products elements of any type are converted; of counts and extremes they are
// bits, the highest ones of 64, which are counted as an int64's and compared by keys of 64 bits.
#pragma once
#include "kernels/common/collective.cuh"

namespace torchreduce::gpu {

// Whether elements are read as they are (is_static).
template <class Load> constexpr bool kIsTyped = false;
template <class E> constexpr bool kIsTyped<TypedLoad<E>> = true;

// Elements of any type, converted to the accumulator.
template <class A> struct ConvertedLoad {
  using Element = A;
  template <class Visit> __device__ __forceinline__ static void by_type(Dtype d, Visit visit) {
#define TR_CASE(T) \
  case DtypeOf<T>::value: return visit(T{});
    switch (d) { TR_FOR_EACH_TYPE(TR_CASE) }
#undef TR_CASE
  }
  template <class T> __device__ __forceinline__ static A element(const Source& in, T x) {
    return in.truth ? A(is_nonzero(x)) : convert<A>(x);
  }
};

// Elements' bits as the highest ones of 64, and zeros.
struct BitsLoad {
  using Element = int64_t;
  __device__ __forceinline__ static int zeros(Dtype d) { return 64 - 8 * size_of(d); }
  template <class Visit> __device__ __forceinline__ static void by_type(Dtype d, Visit visit) {
    switch (size_of(d)) {
      case 1: return visit(uint8_t{});
      case 2: return visit(uint16_t{});
      case 4: return visit(uint32_t{});
      default: return visit(uint64_t{});
    }
  }
  template <class T> __device__ __forceinline__ static int64_t element(const Source&, T x) {
    return int64_t(uint64_t(x) << (64 - 8 * int(sizeof(T))));
  }
};

// x[i] becomes the element at offset at[i] for i < count. The type is looked at once, so that all are in flight
// together.
template <class Load, int N>
__device__ __forceinline__ void gather(const Source& in, const int64_t (&at)[N], int count,
                                       typename Load::Element (&x)[N]) {
  if constexpr (kIsTyped<Load>) {
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (i < count) x[i] = Load::one(in, at[i]);
  } else {
    Load::by_type(in.dtype, [&](auto type) {
      using T = decltype(type);
      const T* const from = global(static_cast<const T*>(in.data));
      T read[N];
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (i < count) read[i] = from[at[i]];
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (i < count) x[i] = Load::element(in, read[i]);
    });
  }
}
template <class Load> __device__ __forceinline__ typename Load::Element element_at(const Source& in, int64_t offset) {
  const int64_t at[1] = {offset};
  typename Load::Element x[1];
  gather<Load>(in, at, 1, x);
  return x[0];
}

// Keys of elements of any type, as of Ordering (ops/reductions.h): in the highest bits, of negative floats with ones
// after them.
struct AnyOrdering {
  static constexpr int64_t kGreatest = INT64_MAX, kLowest = INT64_MIN;
  Dtype dtype;
  bool merge_zeros;           // of floats
  int64_t kept, turned;       // bits that are looked at; and of negative elements those that are turned
  int64_t flip;               // bits of all keys that are turned: for minima all of them, of uint8 the highest one
  int64_t infinity, nan = 0;  // of integers nothing is beyond infinity

  __device__ AnyOrdering(const ReduceCall& call, bool merge_zeros)
      : dtype(call.in.dtype), merge_zeros(merge_zeros && is_float(dtype)) {
    const bool floats = is_float(dtype);
    kept = floats && call.options.of == Of::Magnitudes ? kGreatest : -1;
    turned = floats ? kGreatest : 0;
    flip = (call.options.min ? -1 : 0) ^ (dtype == Dtype::U8 ? kLowest : 0);
    infinity = kGreatest;
    if (!floats) return;
    const int64_t exponents = dtype == Dtype::F16 ? 0x7c00 : dtype == Dtype::F64 ? 0x7ff0 : 0x7f80;
    infinity = exponents << 48;
    nan = infinity | (exponents & -exponents) << 47;
  }
  __device__ __forceinline__ bool is_nan(int64_t x) const { return (x & kGreatest) > infinity; }
  __device__ __forceinline__ int64_t truth(int64_t x) const {
    return dtype == Dtype::Bool && x ? int64_t(1) << BitsLoad::zeros(Dtype::Bool) : x;
  }
  __device__ __forceinline__ int64_t canonical(int64_t x) const { return is_nan(x) ? nan : truth(x); }
  __device__ __forceinline__ int64_t key(int64_t x) const {
    x = truth(x & kept);
    int64_t k = x ^ ((x >> 63) & turned);
    if (merge_zeros && k == -1) k = 0;
    k ^= flip;
    return is_nan(x) ? kGreatest : k;
  }
  __device__ __forceinline__ int64_t element(int64_t key) const {
    if (key == kGreatest && turned) return nan;
    key ^= flip;
    return key ^ ((key >> 63) & turned);
  }
  // Writes an element, converted if the output has another type.
  __device__ void store(int64_t x, const Output& out, int64_t offset) const {
    auto write = [&](auto type) {
      using E = decltype(type);
      using Bits = std::conditional_t<
          sizeof(E) == 1, uint8_t,
          std::conditional_t<sizeof(E) == 2, uint16_t, std::conditional_t<sizeof(E) == 4, uint32_t, uint64_t>>>;
      const E value = bit_cast<E>(Bits(uint64_t(x) >> (64 - 8 * int(sizeof(E)))));
      if (out.dtype == dtype) static_cast<E*>(out.values)[offset] = value;
      else store_as(out.dtype, out.values, offset, convert<accumulator_t<E>>(value));
    };
    ConvertedLoad<int64_t>::by_type(dtype, write);
  }
};

// ArgExtreme, and Extreme, of elements of any type.
struct AnyArgExtreme {
  using Element = int64_t;
  using Acc = ArgExtreme<int64_t>::Acc;
  static constexpr bool kIndexed = true, kAnyOrder = true;
  AnyOrdering order;

  __device__ explicit AnyArgExtreme(const ReduceCall& call) : order(call, true) {}
  __device__ static Acc absent() { return ArgExtreme<int64_t>::absent(); }
  __device__ static Acc empty() { return absent(); }
  __device__ Acc load(int64_t x, int64_t position) const { return {order.key(x), position}; }
  __device__ static Acc combine(Acc left, Acc right) { return ArgExtreme<int64_t>::combine(left, right); }
  __device__ void finish(Acc acc, const Output& out, int64_t offset, int64_t found) const {
    if (out.indices) out.indices[offset] = acc.index;
    if (out.values) order.store(order.canonical(found), {out.values, nullptr, order.dtype}, offset);
  }
};
struct AnyExtreme {
  using Element = int64_t;
  using Acc = int64_t;
  static constexpr bool kIndexed = false, kAnyOrder = true;
  AnyOrdering order;

  __device__ explicit AnyExtreme(const ReduceCall& call) : order(call, false) {}
  __device__ static Acc absent() { return AnyOrdering::kLowest; }
  __device__ static Acc empty() { return absent(); }
  __device__ Acc load(int64_t x, int64_t) const { return order.key(x); }
  __device__ static Acc combine(Acc left, Acc right) { return left > right ? left : right; }
  __device__ void finish(Acc acc, const Output& out, int64_t offset) const {
    order.store(order.element(acc), out, offset);
  }
};
struct AnyCount : Count<int64_t> {
  __device__ explicit AnyCount(const ReduceCall& call) : Count<int64_t>{call.options} {
    options.limit = int64_t(uint64_t(options.limit) << BitsLoad::zeros(call.in.dtype));
  }
};

// What serves any call of an op, given that for elements of one type.
template <class Op> struct General;
template <template <class> class Op_, class E> struct General<Op_<E>> {
  using Op = Op_<accumulator_t<E>>;
  using Load = ConvertedLoad<accumulator_t<E>>;
};
template <class Any> struct GeneralByBits {
  using Op = Any;
  using Load = BitsLoad;
};
template <class E> struct General<Count<E>> : GeneralByBits<AnyCount> {};
template <class E> struct General<Extreme<E>> : GeneralByBits<AnyExtreme> {};
template <class E> struct General<ArgExtreme<E>> : GeneralByBits<AnyArgExtreme> {};

// The op of a call.
template <class Op> __device__ __forceinline__ Op op_of(const ReduceCall& call) {
  if constexpr (std::is_constructible<Op, const ReduceCall&>::value) return Op(call);
  else return Op{call.options};
}

}  // namespace torchreduce::gpu
