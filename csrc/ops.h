// The reductions, one struct each, used alike by the CPU kernels and the GPU kernels. A kernel knows no
// operation. The scans are in scans.h.
//
// A reduction says
//   Element                      the type it reads
//   Acc                          the accumulator
//   absent()                     the exact identity of combine: what stands for a term that is not there
//   load(Element, position)      an element as an accumulator; position counts along the reduced dims
//   combine(left, right)         one step of the canonical order (order.h); left holds the lower positions, though the
//                                bits are the same where it does not
//   kHasEmpty, empty()           whether a row without elements has a result, and its accumulator; else it is refused
//   finish(Acc, Output, offset)  rounds once and writes; returns nothing
//   result(Dtype)                the dtype of its values for elements of that type, without dtype=
//   kAnyOrder                    every order of combining gives the same bits, even of whole elements
//   absent_element()             an element that changes no result, but may stand for those that are equal to it
//   kIndexed                     Acc has a position `.index`, and finish also takes the element found there
//   kConverts                    it has a dtype=: elements of any type may enter, converted to the accumulator
// For kernels whose lanes go across columns also
//   Near                         an accumulator of neighbouring positions, counted from the first one, less than 2^16
//   near_absent(), near_all<N>(words, position, Near (&)[N])  the identity; N neighbouring columns' elements, as loaded
//   combine(Near, Near), follow(Near, Near)  the latter where all positions of the right one come later
//   place(Near, first, step)     the same with its position p become first + p * step
//   far(Near, first)             Acc, given the first position
//   found(Acc, read)             kIndexed: the element at the index, by read() where the accumulator does not tell
// and keeps its options in a first member `OpOptions options`.
#pragma once
#include "dtype.h"
#include "kernels/common/gpu_packed.h"

namespace torchreduce {

// Where a reduction writes. `indices` and `values` may be null where the op has the other.
struct Output {
  void* values = nullptr;
  int64_t* indices = nullptr;
  Dtype dtype = Dtype::F32;  // of values
};

// What distinguishes ops that share a struct.
struct OpOptions {
  bool min = false;      // amin, argmin, min
  bool mean = false;     // mean: divide by count
  int64_t count = 0;     // elements a row
  bool initial = false;  // linear_scan: a value precedes each row
};

inline namespace TR_ISA {

// -0.0 is the exact identity of IEEE addition: x + -0.0 == x for every x, -0.0 included.
template <class Acc> TR_HD Acc absent_term() {
  if constexpr (std::is_same<Acc, int64_t>::value) return 0;
  else return Acc(-0.0);
}

// Integers wrap modulo 2^64.
template <class V> TR_HD V add(V a, V b) {
  if constexpr (std::is_same<V, int64_t>::value) return int64_t(uint64_t(a) + uint64_t(b));
  else return a + b;
}

// Element i of those that lie in words.
template <class E> TR_HD E element_of(const uint32_t* words, int i) {
  if constexpr (sizeof(E) == 8) {
    return bit_cast<E>(uint64_t(words[2 * i + 1]) << 32 | words[2 * i]);
  } else {
    using Bits = std::conditional_t<sizeof(E) == 4, uint32_t, std::conditional_t<sizeof(E) == 2, uint16_t, uint8_t>>;
    constexpr int kPer = 4 / int(sizeof(E));
    return bit_cast<E>(Bits(words[i / kPer] >> (i % kPer * 8 * int(sizeof(E)))));
  }
}

// sum and mean: the canonical sum; mean divides it once, by the number of elements, in the accumulator type.
template <class E> struct Sum {
  using Element = E;
  using Acc = accumulator_t<E>;
  static constexpr bool kIndexed = false;
  static constexpr bool kConverts = true;
  static constexpr bool kHasEmpty = true;
  static constexpr bool kAnyOrder = std::is_same<Acc, int64_t>::value;
  OpOptions options;

  TR_HD static Acc absent() { return absent_term<Acc>(); }
  TR_HD static E absent_element() {
    if constexpr (is_float_type<E>) return round_to<E>(absent());
    else return E{};
  }
  TR_HD static Acc empty() { return Acc(0); }
  static Dtype result(Dtype d) { return is_float(d) ? d : Dtype::I64; }
  TR_HD static Acc load(E x, int64_t) { return convert<Acc>(x); }
  template <class V> TR_HD static V combine(V left, V right) { return add(left, right); }
  using Near = Acc;
  TR_HD static Near near_absent() { return absent(); }
  template <int N> TR_HD static void near_all(const uint32_t* words, int, Near (&v)[N]) {
    TR_UNROLLED
    for (int i = 0; i < N; ++i) v[i] = convert<Acc>(element_of<E>(words, i));
  }
  TR_HD static Near follow(Near left, Near right) { return add(left, right); }
  TR_HD static Near place(Near v, int, int) { return v; }
  TR_HD static Acc far(Near v, int64_t) { return v; }
  TR_HD void finish(Acc acc, const Output& out, int64_t offset) const {
    if constexpr (!std::is_same<Acc, int64_t>::value) {
      if (options.mean) acc = acc / Acc(options.count);
    }
    if (out.dtype == DtypeOf<E>::value) static_cast<E*>(out.values)[offset] = round_to<E>(acc);
    else store_as(out.dtype, out.values, offset, acc);
  }
};

// The order of amax, amin and of the arg ops as integers of the element's width, so that "greater key wins" is exact in
// any order: -0.0 < +0.0 (or equal, with merge_zeros), every NaN is the greatest key, minima are maxima of flipped
// keys.
template <class E> struct Ordering {
  static constexpr bool kFloat = is_float_type<E>;
  using Bits = std::conditional_t<
      sizeof(E) == 1, int8_t,
      std::conditional_t<sizeof(E) == 2, int16_t, std::conditional_t<sizeof(E) == 4, int32_t, int64_t>>>;
  using Key = std::conditional_t<std::is_same<E, uint8_t>::value || std::is_same<E, Bool>::value, uint8_t, Bits>;
  static constexpr int kWidth = int(sizeof(E)) * 8;
  static constexpr Key kLowest = std::is_unsigned<Key>::value ? Key(0) : Key(Key(1) << (kWidth - 1));
  static constexpr Key kGreatest = Key(~kLowest);
  // The bits of infinity and of the canonical NaN.
  static constexpr int64_t kInf = !kFloat                        ? 0
                                  : std::is_same<E, F16>::value  ? 0x7c00
                                  : std::is_same<E, BF16>::value ? 0x7f80
                                  : sizeof(E) == 4               ? 0x7f800000
                                                                 : 0x7ff0000000000000;
  static constexpr int64_t kNaN = !kFloat                        ? 0
                                  : std::is_same<E, F16>::value  ? 0x7e00
                                  : std::is_same<E, BF16>::value ? 0x7fc0
                                  : sizeof(E) == 4               ? 0x7fc00000
                                                                 : 0x7ff8000000000000;

  TR_HD static Key bits_of(E x) {
    if constexpr (std::is_same<E, Bool>::value) return Key(x.bits != 0);
    else return bit_cast<Key>(x);
  }
  // V is Key or a vector of Keys (then a comparison is a mask of -1 and 0); `b` holds bits_of the element.
  template <class V> TR_HD static V key(V b, bool min, bool merge_zeros) {
    const Key ones = Key(-1), inf = Key(kInf), flip_key = min ? ones : Key(0);
    const V flip = V{} + flip_key;  // all ones for minima
    if constexpr (!kFloat) {
      return b ^ flip;
    } else {
      V k = b ^ ((b >> (kWidth - 1)) & kGreatest);  // negative floats: larger magnitude, smaller key
      if (merge_zeros) k = k == ones ? V{} : k;
      k = k ^ flip;
      return (b & kGreatest) > inf ? (V{} + kGreatest) : k;
    }
  }
  // Keys of N elements that lie in words, each as the high half of 32 bits where it has at most 16.
  static constexpr bool kHalf = sizeof(E) <= 2;
  using Wide = std::conditional_t<kHalf, int32_t, Key>;
  template <int N> TR_HD static void keys(const uint32_t* words, bool min, bool merge_zeros, Wide (&k)[N]) {
#if defined(TR_PACKED_KEYS)
    if constexpr (kFloat && sizeof(E) == 2) {
      TR_UNROLLED
      for (int i = 0; i < N; i += 2) {
        const uint32_t pair = packed_keys<std::is_same<E, BF16>::value>(words[i / 2], min, merge_zeros);
        k[i] = int32_t(pair << 16);
        if (i + 1 < N) k[i + 1] = int32_t(pair & 0xffff0000u);
      }
      return;
    } else if constexpr (kFloat && sizeof(E) == 4) {
      TR_UNROLLED
      for (int i = 0; i < N; ++i) k[i] = packed_key(words[i], min, merge_zeros);
      return;
    }
#endif
    TR_UNROLLED
    for (int i = 0; i < N; ++i) {
      const Key key_i = key(bits_of(element_of<E>(words, i)), min, merge_zeros);
      if constexpr (kHalf) k[i] = int32_t(uint32_t(key_i) << 16);
      else k[i] = key_i;
    }
  }
  TR_HD static Key narrow(Wide k) {
    if constexpr (kHalf) return Key(k >> 16);
    else return k;
  }
  TR_HD static E element(Key k, bool min) {
    if constexpr (kFloat) {
      if (k == kGreatest) return bit_cast<E>(Key(kNaN));
      k = Key(k ^ Key(min ? -1 : 0));
      return bit_cast<E>(Key(k ^ ((k >> (kWidth - 1)) & kGreatest)));
    } else {
      return bit_cast<E>(Key(k ^ Key(min ? -1 : 0)));
    }
  }
  // The last of all but NaN.
  TR_HD static E lowest_element(bool min) {
    if constexpr (kFloat) return bit_cast<E>(Key(min ? kInf : kInf | int64_t(kLowest)));
    else return element(kLowest, min);
  }
  TR_HD static E canonical_element(E x) {
    if constexpr (kFloat) return (bit_cast<Key>(x) & kGreatest) > Key(kInf) ? bit_cast<E>(Key(kNaN)) : x;
    else if constexpr (std::is_same<E, Bool>::value) return Bool{uint8_t(x.bits != 0)};
    else return x;
  }
};

// amax and amin: the value alone. -0.0 < +0.0; NaN wins. Exact in any order.
template <class E> struct Extreme {
  using Element = E;
  using Order = Ordering<E>;
  using Acc = typename Order::Key;
  static constexpr bool kIndexed = false;
  static constexpr bool kConverts = false;
  static constexpr bool kHasEmpty = false;
  static constexpr bool kAnyOrder = true;
  OpOptions options;

  TR_HD E absent_element() const { return Order::lowest_element(options.min); }
  TR_HD static Acc absent() { return Order::kLowest; }
  TR_HD static Acc empty() { return absent(); }
  static Dtype result(Dtype d) { return d; }
  TR_HD Acc load(E x, int64_t) const { return Order::key(Order::bits_of(x), options.min, false); }
  template <class V> TR_HD static V combine(V left, V right) { return left > right ? left : right; }
  using Near = typename Order::Wide;
  TR_HD static Near near_absent() { return Order::kHalf ? Near(INT32_MIN) : Near(Order::kLowest); }
  template <int N> TR_HD void near_all(const uint32_t* words, int, Near (&v)[N]) const {
    Order::keys(words, options.min, false, v);
  }
  TR_HD static Near follow(Near left, Near right) { return combine(left, right); }
  TR_HD static Near place(Near v, int, int) { return v; }
  TR_HD static Acc far(Near v, int64_t) { return Order::narrow(v); }
  TR_HD void finish(Acc acc, const Output& out, int64_t offset) const {
    static_cast<E*>(out.values)[offset] = Order::element(acc, options.min);
  }
};

// argmax, argmin, and max, min with index: the lowest index among the greatest; zeros compare equal; the first NaN
// wins.
template <class E> struct ArgExtreme {
  using Element = E;
  using Order = Ordering<E>;
  struct Acc {  // no byte between its 32-bit words is padding, so that a warp moves it by the word
    std::conditional_t<sizeof(E) == 8, int64_t, int32_t> key;
    int64_t index;
  };
  static constexpr bool kIndexed = true;
  static constexpr bool kConverts = false;
  static constexpr bool kHasEmpty = false;
  static constexpr bool kAnyOrder = true;
  OpOptions options;

  TR_HD E absent_element() const { return Order::lowest_element(options.min); }
  TR_HD static Acc absent() { return {Order::kLowest, INT64_MAX}; }
  TR_HD static Acc empty() { return absent(); }
  static Dtype result(Dtype d) { return d; }
  TR_HD Acc load(E x, int64_t position) const { return {Order::key(Order::bits_of(x), options.min, true), position}; }
  TR_HD static Acc combine(Acc left, Acc right) {
    return left.key > right.key || (left.key == right.key && left.index < right.index) ? left : right;
  }
  // Of at most 16 bits one number: the key, and below it what the position lacks of 2^16 - 1.
  struct Place {
    typename Order::Wide key;
    int32_t index;
  };
  using Near = std::conditional_t<Order::kHalf, int32_t, Place>;
  static constexpr int kNoPosition = 0xffff;
  TR_HD static Near near_absent() {
    if constexpr (Order::kHalf) return INT32_MIN;
    else return {Order::kLowest, kNoPosition};
  }
  template <int N> TR_HD void near_all(const uint32_t* words, int position, Near (&v)[N]) const {
    typename Order::Wide k[N];
    Order::keys(words, options.min, true, k);
    TR_UNROLLED
    for (int i = 0; i < N; ++i) {
      if constexpr (Order::kHalf) v[i] = k[i] | (kNoPosition - position);
      else v[i] = {k[i], position};
    }
  }
  TR_HD static Near combine(Near left, Near right) {
    if constexpr (Order::kHalf) return left > right ? left : right;
    else return left.key > right.key || (left.key == right.key && left.index < right.index) ? left : right;
  }
  TR_HD static Near follow(Near left, Near right) {
    if constexpr (Order::kHalf) return left > right ? left : right;
    else return right.key > left.key ? right : left;
  }
  TR_HD static int index_of(Near v) {
    if constexpr (Order::kHalf) return kNoPosition - (v & kNoPosition);
    else return v.index;
  }
  TR_HD static Near place(Near v, int first, int step) {
    const int position = first + index_of(v) * step, index = position < kNoPosition ? position : kNoPosition;
    if constexpr (Order::kHalf) return (v | 0xffff) - index;
    else return {v.key, index};
  }
  TR_HD static Acc far(Near v, int64_t first) {
    if constexpr (Order::kHalf) return {Order::narrow(v), first + index_of(v)};
    else return {v.key, first + v.index};
  }
  template <class Read> TR_HD E found(const Acc& acc, Read read) const {
    if (Order::kFloat && (acc.key == 0 || acc.key == -1)) return read();  // zeros, whose signs are not told apart
    return Order::element(typename Order::Key(acc.key), options.min);
  }
  TR_HD void finish(Acc acc, const Output& out, int64_t offset, E found) const {
    if (out.indices) out.indices[offset] = acc.index;
    if (out.values) static_cast<E*>(out.values)[offset] = Order::canonical_element(found);
  }
};

}  // namespace TR_ISA
}  // namespace torchreduce
