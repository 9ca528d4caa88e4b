// The reductions, one struct each, used alike by the CPU kernels and the GPU kernels. A kernel knows no
// operation. The scans are in ops/scans.h.
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
//   reads(Dtype)                 whether kernels read elements of that type as they are; else, of an op that converts,
//                                they are converted one by one
//   kIntegers                    if it converts: to int64, too
//   steps<N>(accs, get)          if it is there: one more element, get(i), of each of N accumulators;
//                                else each is combined with what load gives
//   kTwo                         if it is there: finish writes two results, the second where indices go (Output)
//   kNoAbsentElement             if it is there: every element changes something; nothing takes absent_element()
//
// For kernels whose lanes go across columns also
//   Near                         an accumulator of neighbouring positions, counted from the first one, less than 2^16
//   near_absent(), near_all<N>(words, position, Near (&)[N])  the identity; N neighbouring columns' elements, as loaded
//   combine(Near, Near), follow(Near, Near)  the latter where all positions of the right one come later
//   place(Near, first, step)     the same with its position p become first + p * step
//   far(Near, first)             Acc, given the first position
//   found(Acc, read)             kIndexed: the element at the index, by read() where the accumulator does not tell
// and keeps its options in a first member `OpOptions options`.
#pragma once
#include <cmath>

#include "kernels/common/gpu_packed.h"
#include "numerics/explog.h"
#include "numerics/powers.h"

namespace torchreduce {

// Where a reduction writes. `indices` and `values` may be null where the op has the other. Of two results that are no
// values with indices the second one goes where the indices would, whatever its type.
struct Output {
  void* values = nullptr;
  int64_t* indices = nullptr;
  Dtype dtype = Dtype::F32;  // of values
};

// What is summed, or compared: the elements, or
enum class Of : uint8_t {
  Elements,
  Numbers,     // with 0 in place of NaN
  Magnitudes,  // without their signs
  Squares,
};

// What becomes of a count.
enum class Verdict : uint8_t { Count, Any, All };

// What distinguishes ops that share a struct.
struct OpOptions {
  bool min = false;      // amin, argmin, min
  bool mean = false;     // mean: divide by count
  bool initial = false;  // linear_scan: a value precedes each row
  Of of = Of::Elements;
  Verdict verdict = Verdict::Count;
  // Of the highest bit. Counts: elements that have it count. Other ops on int8: it is a digit, elements are uint8.
  bool high = false;
  int64_t limit = 0;  // counts: so do bits that are more than this without their highest one
  int64_t count = 0;  // elements a row
};

inline namespace TR_ISA {

// -0.0 is the exact identity of IEEE addition: x + -0.0 == x for every x, -0.0 included.
template <class Acc> TR_HD Acc absent_term() {
  if constexpr (std::is_same<Acc, int64_t>::value) return 0;
  else return Acc(-0.0);
}

// Kernels for int8 serve uint8, too: with its highest bit turned an element is an int8, less by 128, in the same order.
template <class E> TR_HD E as_signed(E x, const OpOptions& options) {
  if constexpr (std::is_same<E, int8_t>::value) return E(x ^ (options.high ? -128 : 0));
  else return x;
}
// The same of a word of them.
template <class E> TR_HD uint32_t as_signed_word(uint32_t word, const OpOptions& options) {
  if constexpr (std::is_same<E, int8_t>::value) return word ^ (options.high ? 0x80808080u : 0u);
  else return word;
}

// Integers wrap. So may those of columns that are not there, which are added up and left out.
template <class V> TR_HD V add(V a, V b) {
  if constexpr (std::is_integral<V>::value) return V(std::make_unsigned_t<V>(a) + std::make_unsigned_t<V>(b));
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
  static constexpr bool kConverts = true, kIntegers = true;
  static constexpr bool kHasEmpty = true;
  static constexpr bool kAnyOrder = std::is_same<Acc, int64_t>::value;
  OpOptions options;

  TR_HD static Acc absent() { return absent_term<Acc>(); }
  TR_HD E absent_element() const {
    if constexpr (is_float_type<E>) return round_to<E>(absent());
    else return as_signed(E{}, options);
  }
  TR_HD static Acc empty() { return Acc(0); }
  static Dtype result(Dtype d) { return is_float(d) ? d : Dtype::I64; }
  static constexpr bool reads(Dtype) { return true; }
  TR_HD Acc load(E x, int64_t) const { return convert<Acc>(as_signed(x, options)); }
  template <class V> TR_HD static V combine(V left, V right) { return add(left, right); }
  using Near = std::conditional_t<!is_float_type<E> && sizeof(E) <= 2, int32_t, Acc>;
  TR_HD static Near near_absent() { return Near(absent()); }
  template <int N> TR_HD void near_all(const uint32_t* words, int, Near (&v)[N]) const {
    TR_UNROLLED
    for (int i = 0; i < N; ++i) v[i] = convert<Near>(as_signed(element_of<E>(words, i), options));
  }
  TR_HD static Near follow(Near left, Near right) { return add(left, right); }
  TR_HD static Near place(Near v, int, int) { return v; }
  TR_HD static Acc far(Near v, int64_t) { return v; }
  TR_HD void finish(Acc acc, const Output& out, int64_t offset) const {
    if constexpr (!std::is_same<Acc, int64_t>::value) {
      if (options.mean) acc = acc / Acc(options.count);
    }
    if constexpr (std::is_same<E, int8_t>::value) acc += options.high ? options.count << 7 : 0;
    if (out.dtype == DtypeOf<E>::value) static_cast<E*>(out.values)[offset] = round_to<E>(acc);
    else store_as(out.dtype, out.values, offset, acc);
  }
};

// nansum and the norms: the canonical sum of what the elements are taken for. A square is added by one fma. All but
// plain elements are at least +0, so that absent ones, whose square is +0, change nothing either.
template <class E> struct SumOf {
  using Element = E;
  using Acc = accumulator_t<E>;
  static constexpr bool kIndexed = false;
  static constexpr bool kConverts = true, kIntegers = false;
  static constexpr bool kHasEmpty = true;
  static constexpr bool kAnyOrder = false;
  static constexpr bool kHasSteps = true;
  OpOptions options;

  TR_HD static Acc absent() { return absent_term<Acc>(); }
  TR_HD static E absent_element() { return round_to<E>(absent()); }
  TR_HD static Acc empty() { return Acc(0); }
  static Dtype result(Dtype d) { return d; }
  static constexpr bool reads(Dtype d) { return d == Dtype::F32 || d == Dtype::F16 || d == Dtype::BF16; }
  template <int N, class Get> TR_HD void steps(Acc* acc, Get get) const {  // one branch for all
    if (options.of == Of::Squares) {
      TR_UNROLLED
      for (int i = 0; i < N; ++i) acc[i] = fma_of(convert<Acc>(get(i)), convert<Acc>(get(i)), acc[i]);
    } else if (options.of == Of::Numbers) {
      TR_UNROLLED
      for (int i = 0; i < N; ++i) acc[i] = acc[i] + number(convert<Acc>(get(i)));
    } else {
      TR_UNROLLED
      for (int i = 0; i < N; ++i) acc[i] = acc[i] + magnitude(convert<Acc>(get(i)));
    }
  }
  TR_HD Acc load(E x, int64_t) const {
    Acc acc = absent();
    steps<1>(&acc, [&](int) { return x; });
    return acc;
  }
  template <class V> TR_HD static V combine(V left, V right) { return left + right; }
  using Near = Acc;
  TR_HD static Near near_absent() { return absent(); }
  template <int N> TR_HD void near_all(const uint32_t* words, int, Near (&v)[N]) const {
    TR_UNROLLED
    for (int i = 0; i < N; ++i) v[i] = absent();
    steps<N>(v, [&](int i) { return element_of<E>(words, i); });
  }
  TR_HD static Near follow(Near left, Near right) { return left + right; }
  TR_HD static Near place(Near v, int, int) { return v; }
  TR_HD static Acc far(Near v, int64_t) { return v; }
  TR_HD Acc project(Acc acc) const { return options.of == Of::Squares ? std::sqrt(acc) : acc; }
  TR_HD void finish(Acc acc, const Output& out, int64_t offset) const {
    store_as(out.dtype, out.values, offset, project(acc));
  }

 private:
  TR_HD static Acc number(Acc v) { return v == v ? v : Acc(0); }
  TR_HD static Acc magnitude(Acc v) { return v < 0 ? -v : v + Acc(0); }
};

// count_nonzero, any, all, the norm of order 0, and how many NaN there are: how many elements have certain bits. E is
// the signed integer of their width.
template <class E> struct Count {
  using Element = E;
  using Acc = int64_t;
  static constexpr bool kIndexed = false;
  static constexpr bool kConverts = false;
  static constexpr bool kHasEmpty = true;
  static constexpr bool kAnyOrder = true;
  OpOptions options;

  TR_HD static Acc absent() { return 0; }
  TR_HD static E absent_element() { return E{}; }
  TR_HD static Acc empty() { return 0; }
  static Dtype result(Dtype) { return Dtype::I64; }
  static constexpr bool reads(Dtype d) {
    return d == Dtype::I8 || d == Dtype::I16 || d == Dtype::I32 || d == Dtype::I64;
  }
  // Of integers, or vectors of them.
  template <class V> TR_HD auto counts(V x) const {
    constexpr E kGreatest = E(~(uint64_t(1) << (sizeof(E) * 8 - 1)));
    const E limit = E(options.limit), high = E(options.high ? -1 : 0);
    return ((x & kGreatest) > limit) | ((x & high) < E(0));
  }
  // Of a word of 8- or 16-bit integers: the highest bit of each that counts.
  TR_HD uint32_t counting_bits(uint32_t w) const {
    constexpr uint32_t kOnes = sizeof(E) == 1 ? 0x01010101u : 0x00010001u;
    constexpr uint32_t kGreatest = sizeof(E) == 1 ? 0x7f : 0x7fff, kHighest = ~(kOnes * kGreatest);
    const uint32_t above = (w & ~kHighest) + (kGreatest - uint32_t(options.limit)) * kOnes;
    return (above | (w & (options.high ? ~0u : 0u))) & kHighest;
  }
  TR_HD Acc load(E x, int64_t) const { return counts(x); }
  template <class V> TR_HD static V combine(V left, V right) { return add(left, right); }
  using Near = int32_t;
  TR_HD static Near near_absent() { return 0; }
  template <int N> TR_HD void near_all(const uint32_t* words, int, Near (&v)[N]) const {
    TR_UNROLLED
    for (int i = 0; i < N; ++i) {
      if constexpr (sizeof(E) <= 2) {
        constexpr int kBits = 8 * sizeof(E), kPer = 32 / kBits;
        v[i] = Near(counting_bits(words[i / kPer]) >> (i % kPer * kBits + kBits - 1) & 1u);
      } else {
        v[i] = counts(element_of<E>(words, i));
      }
    }
  }
  TR_HD static Near follow(Near left, Near right) { return add(left, right); }
  TR_HD static Near place(Near v, int, int) { return v; }
  TR_HD static Acc far(Near v, int64_t) { return v; }
  TR_HD void finish(Acc acc, const Output& out, int64_t offset) const {
    if (options.verdict == Verdict::Any) acc = acc > 0;
    if (options.verdict == Verdict::All) acc = acc == options.count;
    if (is_float(out.dtype)) store_as(out.dtype, out.values, offset, double(acc));
    else store_as(out.dtype, out.values, offset, acc);
  }
};

// prod: of floats by powers, whose exponents end at +-kFarthest; integers wrap modulo 2^64.
template <class E> struct Product {
  using Element = E;
  using F = accumulator_t<E>;
  static constexpr bool kFloat = !std::is_same<F, int64_t>::value;
  using Acc = std::conditional_t<kFloat, Power<std::conditional_t<kFloat, F, float>>, int64_t>;
  static constexpr bool kIndexed = false;
  static constexpr bool kConverts = true, kIntegers = true;
  static constexpr bool kHasEmpty = true;
  static constexpr bool kAnyOrder = !kFloat;
  static constexpr int kFarthest = 1 << 29;
  static constexpr bool kHasSteps = true;
  OpOptions options;

  TR_HD static Acc absent() {
    if constexpr (kFloat) return {1, 0};
    else return 1;
  }
  TR_HD static E absent_element() { return round_to<E>(F(1)); }
  TR_HD static Acc empty() { return absent(); }
  static Dtype result(Dtype d) { return is_float(d) ? d : Dtype::I64; }
  static constexpr bool reads(Dtype d) { return d == Dtype::F32 || d == Dtype::F16 || d == Dtype::BF16; }
  TR_HD static Acc load(E x, int64_t) {
    if constexpr (kFloat) return power_of(convert<F>(x));
    else return convert<F>(x);
  }
  // Where elements are normal numbers, and less than half the greatest, their products with mantissas are normal, too:
  // then the exponents are taken out of the products. The rest is rare.
  template <int N, class Get> TR_HD static void steps(Acc* acc, Get get) {
    if constexpr (std::is_same<F, float>::value) {
      bool plain = true;
      TR_UNROLLED
      for (int i = 0; i < N; ++i) {
        const uint32_t x = bit_cast<uint32_t>(convert<F>(get(i))), m = bit_cast<uint32_t>(acc[i].m);
        plain &= ((x << 1) - (1u << 24) < 253u << 24) & ((m & 0x7f800000u) == 0x3f800000u);
      }
      if (plain) {
        TR_UNROLLED
        for (int i = 0; i < N; ++i) {
          const Acc product = normal_power(acc[i].m * convert<F>(get(i)));
          acc[i] = {product.m, acc[i].e + product.e};
        }
        return;
      }
      TR_UNROLLED
      for (int i = 0; i < N; ++i) acc[i] = multiply_by(acc[i], convert<F>(get(i)));
      return;
    }
    TR_UNROLLED
    for (int i = 0; i < N; ++i) acc[i] = multiply(acc[i], load(get(i), 0));
  }
  TR_HD static Acc combine(Acc left, Acc right) {
    Acc both = multiply(left, right);
    if constexpr (kFloat) both.e = both.e < -kFarthest ? -kFarthest : both.e > kFarthest ? kFarthest : both.e;
    return both;
  }
  using Near = Acc;
  TR_HD static Near near_absent() { return absent(); }
  template <int N> TR_HD static void near_all(const uint32_t* words, int, Near (&v)[N]) {
    TR_UNROLLED
    for (int i = 0; i < N; ++i) v[i] = absent();
    steps<N>(v, [&](int i) { return element_of<E>(words, i); });
  }
  TR_HD static Near follow(Near left, Near right) { return multiply(left, right); }
  TR_HD static Near place(Near v, int, int) { return v; }
  TR_HD static Acc far(Near v, int64_t) { return v; }
  TR_HD static F project(Acc acc) {
    if constexpr (kFloat) return F(value_of(Power<double>{acc.m, acc.e}));
    else return acc;
  }
  TR_HD void finish(Acc acc, const Output& out, int64_t offset) const {
    store_as(out.dtype, out.values, offset, project(acc));
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
  // What is left of the bits of a float, alone or two in a word.
  TR_HD static Key kept(Of of) { return kFloat && of == Of::Magnitudes ? kGreatest : Key(-1); }
  TR_HD static uint32_t kept_words(Of of) {
    const uint32_t greatest = sizeof(E) == 2 ? 0x7fff7fffu : 0x7fffffffu;
    return kFloat && of == Of::Magnitudes ? greatest : ~0u;
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
  template <int N>
  TR_HD static void keys(const uint32_t* words, bool min, bool merge_zeros, Wide (&k)[N], Of of = Of::Elements) {
#if defined(TR_PACKED_KEYS)
    if constexpr (kFloat && sizeof(E) == 2) {
      TR_UNROLLED
      for (int i = 0; i < N; i += 2) {
        const uint32_t pair =
            packed_keys<std::is_same<E, BF16>::value>(words[i / 2] & kept_words(of), min, merge_zeros);
        k[i] = int32_t(pair << 16);
        if (i + 1 < N) k[i + 1] = int32_t(pair & 0xffff0000u);
      }
      return;
    } else if constexpr (kFloat && sizeof(E) == 4) {
      TR_UNROLLED
      for (int i = 0; i < N; ++i) k[i] = packed_key(words[i] & kept_words(of), min, merge_zeros);
      return;
    }
#endif
    TR_UNROLLED
    for (int i = 0; i < N; ++i) {
      const Key key_i = key(Key(bits_of(element_of<E>(words, i)) & kept(of)), min, merge_zeros);
      if constexpr (kHalf) k[i] = int32_t(uint32_t(key_i) << 16);
      else k[i] = key_i;
    }
  }
  TR_HD static Key narrow(Wide k) {
    if constexpr (kHalf) return Key(k >> 16);
    else return k;
  }
  TR_HD static Wide wide(Key k) {
    if constexpr (kHalf) return Wide(uint32_t(k) << 16);
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

// amax and amin, and the norms of infinite order: the value alone, of the elements or of their magnitudes. -0.0 < +0.0;
// NaN wins. Exact in any order.
template <class E> struct Extreme {
  using Element = E;
  using Order = Ordering<E>;
  using Acc = typename Order::Key;
  static constexpr bool kIndexed = false;
  static constexpr bool kConverts = false;
  static constexpr bool kHasEmpty = false;
  static constexpr bool kAnyOrder = true;
  OpOptions options;

  TR_HD E absent_element() const {
    if (Order::kFloat && options.of == Of::Magnitudes && !options.min) return E{};
    return as_signed(Order::lowest_element(options.min), options);
  }
  TR_HD static Acc absent() { return Order::kLowest; }
  TR_HD static Acc empty() { return absent(); }
  static Dtype result(Dtype d) { return d; }
  static constexpr bool reads(Dtype) { return true; }
  TR_HD Acc load(E x, int64_t) const {
    return Order::key(Acc(Order::bits_of(as_signed(x, options)) & Order::kept(options.of)), options.min, false);
  }
  template <class V> TR_HD static V combine(V left, V right) { return left > right ? left : right; }
  using Near = typename Order::Wide;
  TR_HD static Near near_absent() { return Order::kHalf ? Near(INT32_MIN) : Near(Order::kLowest); }
  template <int N> TR_HD void near_all(const uint32_t* words, int, Near (&v)[N]) const {
    Order::keys(words, options.min, false, v, options.of);
  }
  TR_HD static Near follow(Near left, Near right) { return combine(left, right); }
  TR_HD static Near place(Near v, int, int) { return v; }
  TR_HD static Acc far(Near v, int64_t) { return Order::narrow(v); }
  TR_HD void finish(Acc acc, const Output& out, int64_t offset) const {
    const E x = as_signed(Order::element(acc, options.min), options);
    if (out.dtype == DtypeOf<E>::value) return void(static_cast<E*>(out.values)[offset] = x);
    if constexpr (std::is_same<E, int8_t>::value)
      if (options.high) return store_as(out.dtype, out.values, offset, int64_t(uint8_t(x)));
    store_as(out.dtype, out.values, offset, convert<accumulator_t<E>>(x));
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

  TR_HD E absent_element() const { return as_signed(Order::lowest_element(options.min), options); }
  TR_HD static Acc absent() { return {Order::kLowest, INT64_MAX}; }
  TR_HD static Acc empty() { return absent(); }
  static Dtype result(Dtype d) { return d; }
  static constexpr bool reads(Dtype) { return true; }
  TR_HD Acc load(E x, int64_t position) const {
    return {Order::key(Order::bits_of(as_signed(x, options)), options.min, true), position};
  }
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
    return as_signed(Order::element(typename Order::Key(acc.key), options.min), options);
  }
  TR_HD void finish(Acc acc, const Output& out, int64_t offset, E found) const {
    if (out.indices) out.indices[offset] = acc.index;
    if (out.values) static_cast<E*>(out.values)[offset] = Order::canonical_element(found);
  }
};

// ---- two results of one look at the elements ---------------------------------------------------------------------------

// Two accumulators side by side.
template <class A, class B> struct Both {
  A first;
  B second;
};
template <class Op> constexpr bool kTwoResults = requires { Op::kTwo; };
// Whether absent_element() changes no result.
template <class Op> constexpr bool kHasAbsent = !requires { Op::kNoAbsentElement; };

// aminmax: amin's and amax's bits, of types that kernels read at full width. The keys are wide ones.
template <class E> struct Extremes {
  using Element = E;
  using Order = Ordering<E>;
  using Acc = Both<typename Order::Wide, typename Order::Wide>;  // amin's, whose order is flipped, and amax's
  static constexpr bool kIndexed = false;
  static constexpr bool kConverts = false;
  static constexpr bool kHasEmpty = false;
  static constexpr bool kAnyOrder = true;
  static constexpr bool kTwo = true, kNoAbsentElement = true;
  OpOptions options;

  TR_HD static E absent_element() { return E{}; }
  TR_HD static Acc absent() { return {Order::wide(Order::kLowest), Order::wide(Order::kLowest)}; }
  TR_HD static Acc empty() { return absent(); }
  static Dtype result(Dtype d) { return d; }
  static constexpr bool reads(Dtype d) { return d == Dtype::F32 || d == Dtype::F16 || d == Dtype::BF16; }
  TR_HD static Acc load(E x, int64_t) {
    const auto bits = Order::bits_of(x);
    return {Order::wide(Order::key(bits, true, false)), Order::wide(Order::key(bits, false, false))};
  }
  TR_HD static Acc combine(Acc left, Acc right) {
    return {left.first > right.first ? left.first : right.first,
            left.second > right.second ? left.second : right.second};
  }
  using Near = Acc;
  TR_HD static Near near_absent() { return absent(); }
  template <int N> TR_HD static void near_all(const uint32_t* words, int, Near (&v)[N]) {
    typename Order::Wide least[N], greatest[N];
    Order::keys(words, true, false, least);
    Order::keys(words, false, false, greatest);
    TR_UNROLLED
    for (int i = 0; i < N; ++i) v[i] = {least[i], greatest[i]};
  }
  TR_HD static Near follow(Near left, Near right) { return combine(left, right); }
  TR_HD static Near place(Near v, int, int) { return v; }
  TR_HD static Acc far(Near v, int64_t) { return v; }
  TR_HD void finish(Acc acc, const Output& out, int64_t offset) const {
    static_cast<E*>(out.values)[offset] = Order::element(Order::narrow(acc.first), true);
    reinterpret_cast<E*>(out.indices)[offset] = Order::element(Order::narrow(acc.second), false);
  }
};

// What nanmean is made of: nansum, and how many NaN there are.
template <class E> struct CountedSum {
  using Element = E;
  using Sum = accumulator_t<E>;
  using Acc = Both<Sum, int32_t>;  // of rows of at most kLongest elements
  static constexpr bool kIndexed = false;
  static constexpr bool kConverts = true, kIntegers = false;
  static constexpr bool kHasEmpty = true;
  static constexpr bool kAnyOrder = false;
  static constexpr bool kTwo = true;
  static constexpr int64_t kLongest = INT32_MAX;
  OpOptions options;

  TR_HD static Acc absent() { return {absent_term<Sum>(), 0}; }
  TR_HD static E absent_element() { return round_to<E>(absent_term<Sum>()); }
  TR_HD static Acc empty() { return {Sum(0), 0}; }
  static Dtype result(Dtype d) { return d; }
  static constexpr bool reads(Dtype d) { return d == Dtype::F32 || d == Dtype::F16 || d == Dtype::BF16; }
  TR_HD static Acc load(E x, int64_t) {
    const Sum v = convert<Sum>(x);
    return {v == v ? v : Sum(0), v == v ? 0 : 1};
  }
  TR_HD static Acc combine(Acc left, Acc right) { return {left.first + right.first, add(left.second, right.second)}; }
  using Near = Acc;
  TR_HD static Near near_absent() { return absent(); }
  template <int N> TR_HD static void near_all(const uint32_t* words, int, Near (&v)[N]) {
    TR_UNROLLED
    for (int i = 0; i < N; ++i) v[i] = load(element_of<E>(words, i), 0);
  }
  TR_HD static Near follow(Near left, Near right) { return combine(left, right); }
  TR_HD static Near place(Near v, int, int) { return v; }
  TR_HD static Acc far(Near v, int64_t) { return v; }
  TR_HD void finish(Acc acc, const Output& out, int64_t offset) const {
    store_as(out.dtype, out.values, offset, acc.first);
    out.indices[offset] = acc.second;
  }
};

// One more element of each of N accumulators, get(i); of one.
template <class Op> constexpr bool kSteps = requires { Op::kHasSteps; };
template <int N, class Op, class Get> TR_HD void steps(const Op& op, typename Op::Acc* acc, Get get) {
  if constexpr (kSteps<Op>) {
    op.template steps<N>(acc, get);
  } else {
    TR_UNROLLED
    for (int i = 0; i < N; ++i) acc[i] = op.combine(acc[i], op.load(get(i), 0));
  }
}
template <class Op>
TR_HD typename Op::Acc step(const Op& op, typename Op::Acc acc, typename Op::Element x, int64_t position) {
  if constexpr (!kSteps<Op>) return op.combine(acc, op.load(x, position));
  steps<1>(op, &acc, [&](int) { return x; });
  return acc;
}
// One more element of each of N neighbouring columns, whose elements lie in words.
template <int N, class Op>
TR_HD void step_all(const Op& op, const uint32_t* words, int position, typename Op::Near (&v)[N]) {
  if constexpr (kSteps<Op>) {
    op.template steps<N>(v, [&](int i) { return element_of<typename Op::Element>(words, i); });
  } else {
    typename Op::Near t[N];
    op.template near_all<N>(words, position, t);
    TR_UNROLLED
    for (int i = 0; i < N; ++i) v[i] = Op::follow(v[i], t[i]);
  }
}

}  // namespace TR_ISA
}  // namespace torchreduce
