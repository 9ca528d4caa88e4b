// The scans, one struct each. A kernel knows no scan. Those of CPUs have them by eights, from ScanLanes
// (csrc/cpu/scan_lanes.h), which says group() and results() again, on vectors.
//
// A scan says
//   Acc, Wide                    the accumulator within a block tile, and of the carry between block tiles
//   absent(), wide_absent()      the exact identities, from both sides, of
//   combine(left, right)         for both; widen(Acc)
//   Item                         what a group keeps of each of its 8 elements (order.h)
//   load(element, position)      an element as an item; position counts from where the scan starts
//   absent_item()                what stands for an element past the end
//   group(items)                 the total of a group; of its items it makes what results() needs
//   prefix(carry, within)        what lies before a group: before its block tile, and before it in its block tile
//   prefix(within)               the same with an absent carry, to the bit
//   results(prefix, items, out)  the results of a group, each a Result, still to be rounded to the output's type
//   is_rare(prefix)              if it is there: whether results() goes a longer way, which few groups need
//   start()                      what an exclusive scan begins with; a scan without it cannot be exclusive
//   kInputs                      1, or 2 or 3: then an element is a Pair or a Triple of theirs
//   kNanStays                    it is there if every result after a NaN is one
//   initial(value)               what lies before a row that a value precedes; only of two inputs
//   kIndexed                     a Result has a value and the position `.index` where it was found
//   kAnyOrder                    every order of combining gives the same; Acc is Wide, and result(Acc) the result
//   Near                         if kIndexed: the same scan, of rows of at most kNearRows, with a smaller Acc if it can
//   allows_fast_group(items)     whether fast_group and fast_results serve them, else careful_group and
//                                careful_results: what group and results decide themselves
//   fast_join(left, right)       combine with less to do, over at most a warp's values, where allows_fast(all values)
//                                and is_settled(all that comes out); fast_end makes of that what combine makes
//   fast_combine(left, right)    combine of two that allow it, the left one settled
//   kFastGroups                  a warp may decide once how groups of Items that are floats are scanned:
//   fast_group(items, total)     whether fast_results serves the group; its total, an Item
//   is_near(total)               if all lanes' are: near_join combines them, and of_near makes of each an Acc for
//                                fast_join, fast_results and near_results alone, or fast_end, which makes it normal
//   near_results(...)            as fast_results, up to two in the last place; or false
//   kMostTiles                   of longer rows that a GPU's warp can hold, the tiles that it does; else as many as fit
//   kConverts                    it has a dtype=: elements of any type may enter, converted to the accumulator
//   kIntegers                    it takes integers and bool
//   kIntegerKernels              each of those has GPU kernels of its own; else one converts them all to int64
// and keeps its options in a first member `OpOptions options`. It is a template over the accumulator, or, if it is
// indexed, over the element type, with int64_t for integers and bool.
#pragma once
#include "numerics/explog.h"
#include "numerics/order.h"
#include "numerics/powers.h"
#include "reductions.h"

namespace torchreduce {
inline namespace TR_ISA {

template <class S> constexpr bool kHasStart = requires { S::start(); };    // it can be exclusive
template <class S> constexpr bool kNanStays = requires { S::kNanStays; };  // after a NaN, all results are NaN
template <class S> constexpr bool kHasFastGroup = [] {
  if constexpr (requires { S::kFastGroups; }) return S::kFastGroups;
  else return false;
}();
template <class S, class V> constexpr bool kHasFastJoin =  // a shorter way through the levels of Sklansky's scan
    requires(const V& run) { S::fast_join(run, run); };

// Groups of short rows that a lane of a GPU holds, and tiles of longer ones that a warp does; of two tiles two.
template <class S> constexpr int kHeldGroups = sizeof(typename S::Item) > 4 ? 2 : 4;
template <class S> constexpr int kHeldTiles = [] {
  if constexpr (requires { S::kMostTiles; }) return S::kMostTiles;
  else return kHeldGroups<S>;
}();

// cumsum. Within a block tile in Acc, between block tiles in Wide.
template <class A> struct CumSum {
  using Acc = A;
  using Wide = std::conditional_t<std::is_same<A, float>::value, double, A>;
  using Item = A;
  using Result = A;
  static constexpr bool kNanStays = true;
  static constexpr int kInputs = 1;
  static constexpr bool kIndexed = false, kAnyOrder = false, kConverts = true, kIntegers = true, kIntegerKernels = true;
  struct Prefix {  // of a group of 8: hi - less is carry + within, to twice the accumulator's precision
    Wide sum;
    Acc hi, less;  // less: +0.0 where hi is the sum; of no meaning where hi is not finite
  };
  OpOptions options;

  TR_HD static Acc absent() { return absent_term<Acc>(); }
  TR_HD static Wide wide_absent() { return absent_term<Wide>(); }
  TR_HD static Acc start() { return Acc(0); }
  TR_HD static Wide widen(Acc a) { return Wide(a); }
  template <class V> TR_HD static V combine(V left, V right) { return add(left, right); }
  template <class E> TR_HD Item load(E x, int64_t) const { return convert<Acc>(x); }
  TR_HD static Item absent_item() { return absent(); }
  TR_HD static Acc group(Item (&p)[kGroup]) {  // the items become the group's own prefixes
    TR_UNROLLED
    for (int i = 1; i < kGroup; ++i) p[i] = combine(p[i - 1], p[i]);
    return p[kGroup - 1];
  }
  TR_HD static Prefix prefix(Wide carry, Acc within) {
    const Wide sum = add(carry, Wide(within));
    const Acc hi = Acc(sum);
    return {sum, hi, Acc(Wide(hi) - sum)};
  }
  TR_HD static Prefix prefix(Acc within) { return {Wide(within), within, 0}; }
  // Whether results() goes a longer way: where hi is not finite, the sum still may be.
  TR_HD static bool is_rare(const Prefix& b) { return !is_finite(b.hi); }
  TR_HD void results(const Prefix& b, const Item (&p)[kGroup], Result (&out)[kGroup]) const {
    if constexpr (std::is_same<Acc, float>::value) {
      if (!is_rare(b)) {
        TR_UNROLLED
        for (int i = 0; i < kGroup; ++i) out[i] = b.hi + (p[i] - b.less);
      } else {
        TR_RARE_PATH;
        TR_UNROLLED
        for (int i = 0; i < kGroup; ++i) out[i] = float(b.sum + double(p[i]));
      }
    } else {
      TR_UNROLLED
      for (int i = 0; i < kGroup; ++i) out[i] = add(b.hi, p[i]);
    }
  }
};

// cummax and cummin: the latest index among the greatest; zeros compare equal; NaN from the first one on. Exact in any
// order.
template <class E, class Place> struct CumExtremeAt {
  using Order = Ordering<E>;
  struct Acc {
    std::conditional_t<sizeof(E) == 8, int64_t, int32_t> key;
    Place place;  // twice the position, and one more for -0.0, whose key is that of +0.0
  };
  using Wide = Acc;
  using Item = Acc;
  struct Result {
    E value;
    Place index;
  };
  using Prefix = Acc;
  static constexpr int kInputs = 1;
  static constexpr bool kIndexed = true, kAnyOrder = true, kConverts = false, kIntegers = true, kIntegerKernels = false;
  OpOptions options;

  TR_HD static Acc absent() { return {Order::kLowest, -1}; }
  TR_HD static Wide wide_absent() { return absent(); }
  TR_HD static Wide widen(Acc a) { return a; }
  TR_HD static Acc combine(Acc left, Acc right) {
    // The right one's place is the greater unless it is absent, and no float has the key that stands for that.
    if constexpr (Order::kFloat && sizeof(Place) == 4) return right.key >= left.key ? right : left;
    return right.key > left.key || (right.key == left.key && right.place > left.place) ? right : left;
  }
  TR_HD Item load(E x, int64_t position) const {
    const auto bits = Order::bits_of(x);
    const bool minus_zero = Order::kFloat && bits == Order::kLowest;
    return {Order::key(bits, options.min, true), Place(2 * position + minus_zero)};
  }
  TR_HD static Item absent_item() { return absent(); }
  TR_HD static Acc group(Item (&p)[kGroup]) {  // the items become the group's own prefixes
    TR_UNROLLED
    for (int i = 1; i < kGroup; ++i) p[i] = combine(p[i - 1], p[i]);
    return p[kGroup - 1];
  }
  TR_HD static Prefix prefix(Wide carry, Acc within) { return combine(carry, within); }
  TR_HD static Prefix prefix(Acc within) { return within; }
  TR_HD void results(const Prefix& before, const Item (&p)[kGroup], Result (&out)[kGroup]) const {
    TR_UNROLLED
    for (int i = 0; i < kGroup; ++i) out[i] = result(combine(before, p[i]));
  }
  TR_HD Result result(Acc found) const {
    const bool minus_zero = found.place & 1;
    const E value = Order::element(found.key, options.min);
    return {minus_zero ? bit_cast<E>(typename Order::Key(Order::kLowest)) : value, found.place >> 1};
  }
};
// Of rows of at most so many positions, which take 32 bits doubled.
constexpr int64_t kNearRows = int64_t(1) << 30;
template <class E> struct NearCumExtreme : CumExtremeAt<E, std::conditional_t<sizeof(E) == 8, int64_t, int32_t>> {};
template <class E> struct CumExtreme : CumExtremeAt<E, int64_t> { using Near = NearCumExtreme<E>; };

// cumprod: of powers (powers.h).

// The running product of the floats of a group, and whether it and all before it are normal numbers, and not the least:
// then they are to the bit what products of powers are.
template <class F> struct PlainProduct {
  F value, least;  // least: of the magnitudes, but for NaN

  TR_HD explicit PlainProduct(F first) : value(first), least(magnitude(first)) {}
  TR_HD void multiply(F x) {
    value = value * x;
    least = lesser_number(magnitude(value), least);
  }
  // The least normal number does not count: a product below it may have been rounded up to it, on a coarser grid. What
  // is infinite or NaN stays so, or 0 has made NaN of it.
  TR_HD bool is_normal() const { return (least > kLeastNormal) & (magnitude(value) < kInfinity<F>); }

 private:
  static constexpr F kLeastNormal = sizeof(F) == 4 ? F(0x1p-126) : F(0x1p-1022);
};

template <class A> struct CumProd {
  static constexpr bool kFloat = is_float_type<A>, kSingle = std::is_same<A, float>::value;
  using Acc = std::conditional_t<kFloat, Power<std::conditional_t<kFloat, A, float>>, int64_t>;
  using Wide = std::conditional_t<kFloat, Power<double>, int64_t>;
  using Item = A;
  using Result = A;
  struct Prefix {  // still to be multiplied
    Wide carry;
    Acc within;
  };
  // Powers of two so far off that no product of normal floats brings the result back into float32's range are as good
  // as any others; with the rest, float64 products are normal. No block tile brings back a carry that is further off
  // than kFarCarry.
  static constexpr int kFar = 400, kFarCarry = 1 << 24;
  static constexpr bool kNanStays = true;
  static constexpr int kMostTiles = 2;  // float32, rows of 1024: 0.93 of a copy's speed, with 4 tiles 0.78
  static constexpr int kInputs = 1;
  static constexpr bool kIndexed = false, kAnyOrder = false, kConverts = true, kIntegers = true,
                        kIntegerKernels = false;
  OpOptions options;

  template <class V> TR_HD static V one() {
    if constexpr (kFloat) return {1, 0};
    else return 1;
  }
  TR_HD static Acc absent() { return one<Acc>(); }
  TR_HD static Wide wide_absent() { return one<Wide>(); }
  TR_HD static Result start() { return 1; }
  TR_HD static Wide widen(Acc a) {
    if constexpr (kFloat) return {a.m, a.e};
    else return a;
  }
  template <class V> TR_HD static V combine(V left, V right) { return multiply(left, right); }
  template <class E> TR_HD Item load(E x, int64_t) const { return convert<A>(x); }
  TR_HD static Item absent_item() { return 1; }
  TR_HD static Acc group(const Item (&x)[kGroup]) {
    if constexpr (kFloat) {
      PlainProduct<A> product(x[0]);
      TR_UNROLLED
      for (int i = 1; i < kGroup; ++i) product.multiply(x[i]);
      if (product.is_normal()) return normal_power(product.value);
      TR_RARE_PATH;
    }
    Acc product = item_power(x[0]);
    TR_UNROLLED
    for (int i = 1; i < kGroup; ++i) product = multiply(product, item_power(x[i]));
    return product;
  }
  TR_HD static Prefix prefix(Wide carry, Acc within) { return {carry, within}; }
  TR_HD static Prefix prefix(Acc within) { return {wide_absent(), within}; }
  TR_HD void results(const Prefix& prefix, const Item (&x)[kGroup], Result (&out)[kGroup]) const {
    if constexpr (kSingle) {
      PlainProduct<A> product(x[0]);
      out[0] = x[0];
      TR_UNROLLED
      for (int i = 1; i < kGroup; ++i) {
        product.multiply(x[i]);
        out[i] = product.value;
      }
      if (product.is_normal()) {
        const double first = factor(prefix, exponent(prefix));
        TR_UNROLLED
        for (int i = 0; i < kGroup; ++i) out[i] = A(first * double(out[i]));
        return;
      }
      TR_RARE_PATH;
    }
    const Wide before = multiply(prefix.carry, widen(prefix.within));
    Acc product = absent();
    TR_UNROLLED
    for (int i = 0; i < kGroup; ++i) {
      product = i ? multiply(product, item_power(x[i])) : item_power(x[i]);
      const Wide result = multiply(before, widen(product));
      if constexpr (kFloat) out[i] = A(value_of(result));
      else out[i] = result;
    }
  }

  // ---- for a warp that decides once --------------------------------------------------------------------------------

  static constexpr bool kFastGroups = kSingle;
  // Whether all products of a group are normal numbers; the last one.
  TR_HD static bool fast_group(const Item (&x)[kGroup], A& total) {
    PlainProduct<A> product(x[0]);
    TR_UNROLLED
    for (int i = 1; i < kGroup; ++i) product.multiply(x[i]);
    total = product.value;
    return product.is_normal();
  }
  // From 1/8 to 8: a warp's lanes' are multiplied as they are, and are normal numbers all the way.
  TR_HD static bool is_near(A total) { return uint32_t(bit_cast<uint32_t>(total) * 2 - (124u << 24)) < 6u << 24; }
  TR_HD static A near_join(A left, A right) { return left * right; }
  // As a power that is not normal: of near ones, joined over a warp, with a mantissa from 2^-96 to 2^96. fast_join,
  // fast_results and near_results take it, and fast_end makes it, or that of any normal number, normal.
  TR_HD static Acc of_near(A product) { return {product, 0}; }
  // The results of groups that fast_group takes.
  TR_HD void fast_results(const Prefix& prefix, const Item (&x)[kGroup], Result (&out)[kGroup]) const {
    const double first = factor(prefix, exponent(prefix));
    A product = x[0];
    TR_UNROLLED
    for (int i = 0; i < kGroup; ++i) {
      product = i ? product * x[i] : x[0];
      out[i] = A(first * double(product));
    }
  }
  // The same up to two in the last place, or false. Two roundings more, of half a unit each, of a float32 factor and of
  // the product; the first one's may have twice the weight.
  TR_HD bool near_results(const Prefix& prefix, const Item (&x)[kGroup], Result (&out)[kGroup]) const {
    const double exact = factor(prefix, exponent(prefix));
    const A first = A(exact);
    A product = x[0];
    TR_UNROLLED
    for (int i = 0; i < kGroup; ++i) {
      product = i ? product * x[i] : x[0];
      out[i] = first * product;
    }
    // A factor that is a normal float32, or so far off that all results are zeros or infinite, as they are with its
    // own; be it a zero, an infinity or NaN.
    // 2^20 times the exponent, and the first bits of the fraction.
    const int e = (int(bit_cast<uint64_t>(exact) >> 32) & 0x7fffffff) - (1023 << 20);
    return uint32_t((e < 0 ? -e : e) - (125 << 20)) >= 175u << 20;
  }

  // Runs that all allow it, joined with less to do: as mantissas are at least 1 and less than 2, those of a warp's
  // stay normal as they are multiplied.
  template <class F> TR_HD static bool allows_fast(const Power<F>& run) { return has_exponent(run.m); }
  template <class F> TR_HD static bool is_reset(const Power<F>&) { return false; }
  template <class F> TR_HD static bool is_settled(const Power<F>&, bool) { return true; }
  template <class F> TR_HD static Power<F> fast_join(const Power<F>& left, const Power<F>& right) {
    return {left.m * right.m, left.e + right.e};
  }
  template <class F> TR_HD static Power<F> fast_end(const Power<F>& run) {
    const Power<F> mantissa = normal_power(run.m);
    return {mantissa.m, mantissa.e + run.e};
  }

 private:
  // The factor of a group's results, and its exponent.
  TR_HD static int exponent(const Prefix& prefix) {
    return within(within(prefix.carry.e, kFarCarry) + prefix.within.e, kFar);
  }
  TR_HD static double factor(const Prefix& prefix, int e) {
    return prefix.carry.m * double(prefix.within.m) * two_to(e);
  }
  TR_HD static int within(int64_t e, int most) { return e < -most ? -most : e > most ? most : int(e); }
  TR_HD static Acc item_power(A x) {
    if constexpr (kFloat) return power_of(x);
    else return x;
  }
};

// The exp of how far the lesser of two numbers lies below the greater; where they have no difference, nothing.
template <class F> TR_HD F weight(F a, F b) {
  return exp_in_range(greater_number(-magnitude(a - b), kLeastExponent<F>));
}

// The sum of exponentials m + log(s), where m is the greatest exponent and the term it belongs to is 1 in s. Where m is
// infinite or NaN, so is the sum, and s is some number.
template <class F, class S> struct Exponentials {
  F m;
  S s;
};
template <class F, class S>
TR_HD Exponentials<F, S> join(Exponentials<F, S> left, Exponentials<F, S> right) {
  const bool first = left.m >= right.m;
  const S big = first ? left.s : right.s, small = first ? right.s : left.s;
  const S factor = S(weight(left.m, right.m));
  return {greatest(left.m, right.m), fma_of(small, factor, big)};
}

template <class F> struct LogCumSumExp {
  using Acc = Exponentials<F, F>;
  using Wide = Exponentials<F, double>;
  using Item = F;
  using Result = F;
  using Prefix = Acc;
  static constexpr bool kNanStays = true;
  static constexpr int kInputs = 1;
  static constexpr bool kIndexed = false, kAnyOrder = false, kConverts = false, kIntegers = false,
                        kIntegerKernels = false;
  OpOptions options;

  TR_HD static Acc absent() { return {-kInfinity<F>, 0}; }
  TR_HD static Wide wide_absent() { return {-kInfinity<F>, 0}; }
  TR_HD static Result start() { return -kInfinity<F>; }
  TR_HD static Wide widen(Acc a) { return {a.m, a.s}; }
  template <class V> TR_HD static V combine(V left, V right) { return join(left, right); }
  template <class E> TR_HD Item load(E x, int64_t) const { return convert<F>(x); }
  TR_HD static Item absent_item() { return -kInfinity<F>; }
  TR_HD static Acc group(Item (&x)[kGroup]) {
    F m = x[0];
    TR_UNROLLED
    for (int i = 1; i < kGroup; ++i) m = greatest(m, x[i]);
    F terms[kGroup], s = F(-0.0);
    TR_UNROLLED
    for (int i = 0; i < kGroup; ++i) terms[i] = weight(x[i], m);
    TR_UNROLLED
    for (int i = 0; i < kGroup; ++i) s = s + terms[i];
    return {m, s};
  }
  TR_HD static Prefix prefix(Wide carry, Acc within) {
    const Wide before = join(carry, widen(within));
    return {before.m, F(before.s)};
  }
  TR_HD static Prefix prefix(Acc within) { return prefix(wide_absent(), within); }
  // Joins one element after the other. In steps, so that loops over the elements can become vectors.
  TR_HD void results(const Prefix& before, const Item (&x)[kGroup], Result (&out)[kGroup]) const {
    F m[kGroup + 1], factors[kGroup], sums[kGroup];
    m[0] = before.m;
    TR_UNROLLED
    for (int i = 0; i < kGroup; ++i) m[i + 1] = greatest(m[i], x[i]);
    TR_UNROLLED
    for (int i = 0; i < kGroup; ++i) factors[i] = weight(x[i], m[i]);
    F s = before.s;
    TR_UNROLLED
    for (int i = 0; i < kGroup; ++i)
      sums[i] = s = m[i] >= x[i] ? fma_of(F(1), factors[i], s) : fma_of(s, factors[i], F(1));
    TR_UNROLLED
    for (int i = 0; i < kGroup; ++i) {
      // Where m is infinite or NaN, so is the sum; float64 says so, lest gfx1100 has too few registers.
      const F last = m[i + 1];
      const bool known = sizeof(F) == 8 && !(last - last == 0);
      out[i] = known ? last : last + log_positive(sums[i]);
    }
  }
};

// Elements of the three inputs of a decayed sum.
template <class F> struct Triple { F g, x, o; };

// What carries gradients backward: result i is the sum of g[j] * exp(x[i] - o[j]) over j <= i, for o that do not rise
// and x <= o. Each run of elements is referred to its own last o, so that no factor is ever multiplied by another. A
// factor of 0 drops what it belongs to, be it infinite; equal exponents, infinite ones too, have the factor 1; where o
// is -inf, the result is 0.
template <class F, class S> struct Decayed {
  F o;
  S r;
};
template <class F> TR_HD F decay(F to, F from) {
  const F d = to == from ? F(0) : to - from;
  return exp_nonpositive(d > 0 ? F(0) : d);
}
// What is infinitely high and sums to nothing, as what is absent, passes the other one through.
template <class F, class S> TR_HD Decayed<F, S> join(Decayed<F, S> left, Decayed<F, S> right) {
  const S factor = S(decay(right.o, left.o));
  if (right.o == kInfinity<F> && right.r == 0) return left;
  if ((left.o == kInfinity<F> && left.r == 0) || factor == 0) return right;
  return {right.o, fma_of(factor, left.r, right.r)};
}

template <class F> struct Decay {
  using Acc = Decayed<F, F>;
  using Wide = Decayed<F, double>;
  using Item = Triple<F>;
  using Result = F;
  using Prefix = Acc;
  static constexpr int kInputs = 3;
  static constexpr bool kIndexed = false, kAnyOrder = false, kConverts = false, kIntegers = false,
                        kIntegerKernels = false;
  OpOptions options;

  TR_HD static Acc absent() { return {kInfinity<F>, F(-0.0)}; }
  TR_HD static Wide wide_absent() { return {kInfinity<F>, -0.0}; }
  TR_HD static Wide widen(Acc a) { return {a.o, a.r}; }
  template <class V> TR_HD static V combine(V left, V right) { return join(left, right); }
  TR_HD Item load(Triple<F> x, int64_t) const { return x; }
  TR_HD static Item absent_item() { return {F(-0.0), 0, kInfinity<F>}; }
  TR_HD static Acc group(Item (&x)[kGroup]) {
    Acc total{x[0].o, x[0].g};
    TR_UNROLLED
    for (int i = 1; i < kGroup; ++i) total = join(total, Acc{x[i].o, x[i].g});
    return total;
  }
  TR_HD static Prefix prefix(Wide carry, Acc within) {
    const Wide before = join(carry, widen(within));
    return {before.o, F(before.r)};
  }
  TR_HD void results(const Prefix& before, const Item (&x)[kGroup], Result (&out)[kGroup]) const {
    Acc sum = before;
    TR_UNROLLED
    for (int i = 0; i < kGroup; ++i) {
      sum = join(sum, Acc{x[i].o, x[i].g});
      out[i] = x[i].o == -kInfinity<F> ? F(0) : decay(x[i].x, x[i].o) * sum.r;
    }
  }
};

// Elements of the two inputs of a linear recurrence.
template <class E> struct Pair { E a, b; };

// What a run of elements of a linear recurrence does to the h before it: h -> (a + lost) * h + b, where `lost` is what
// the roundings of a lost.
template <class F> struct Affine { F a, lost, b; };
// The same in float64, between the block tiles of float32: nothing worth keeping is lost.
struct WideAffine { double a, b; };

// What a product of multipliers that underflows is: the least number of the type that the elements are computed in. 0
// is kept for a reset.
template <class F> constexpr F kUnderflow = sizeof(F) == 4 ? F(0x1p-149) : F(0x1p-1074);

// a * h + b of one element: a reset where a is 0; an h of 0 stays 0 where a is infinite.
template <class F> TR_HD F recur(F a, F h, F b) {
  const F next = fma_of(a, h, b);
  return a == 0 || (h == 0 && magnitude(a) == kInfinity<F>) ? b : next;
}
// The product of two multipliers, which is 0 only where one of them is, and else at least `least`.
template <class F> TR_HD F kept_product(F right, F left, F least) {
  const F product = right * left;
  return right == 0 || left == 0 ? F(0) : magnitude(product) < least ? least : product;
}
// (a + lost) * h + b. A multiplier that has underflowed drops an h that is finite, and makes NaN of any other.
template <class F> TR_HD F applied(F a, F lost, F b, F h, F least) {
  const F whole = fma_of(lost, h, b), rest = is_finite(h) ? whole : b, next = fma_of(a, h, rest);
  const bool under = magnitude(a) <= least;  // 0 is, too
  const F dropped = a == 0 || is_finite(h) ? b : kInfinity<F> - kInfinity<F>;
  return under ? dropped : h == 0 && magnitude(a) == kInfinity<F> ? b : next;
}

template <class F> TR_HD Affine<F> join(Affine<F> left, Affine<F> right) {
  const F a = kept_product(right.a, left.a, kUnderflow<F>), error = fma_of(right.a, left.a, -a);
  const F lost = fma_of(right.a, left.lost, fma_of(right.lost, left.a, error));
  const bool exact = right.a == 0 || left.a == 0 || right.a * left.a == 0 || !is_finite(a);
  return {a, exact ? F(0) : lost, applied(right.a, right.lost, right.b, left.b, kUnderflow<F>)};
}
TR_HD WideAffine join(WideAffine left, WideAffine right) {
  constexpr double kLeast = kUnderflow<float>;
  const double rest = right.b, next = fma_of(right.a, left.b, rest);
  const bool finite = is_finite(left.b);
  const double dropped = right.a == 0 || finite ? rest : kInfinity<double> - kInfinity<double>;
  const bool nothing = left.b == 0 && magnitude(right.a) == kInfinity<double>;
  return {kept_product(right.a, left.a, kLeast), magnitude(right.a) <= kLeast ? dropped : nothing ? rest : next};
}

// linear_scan: h[i] = a[i] * h[i - 1] + b[i].
template <class F> struct LinearScan {
  static constexpr bool kSingle = std::is_same<F, float>::value;
  using Acc = Affine<F>;
  using Wide = std::conditional_t<kSingle, WideAffine, Affine<double>>;
  using Item = Pair<F>;
  using Result = F;
  struct Prefix { F hi, lo; };  // of a group: their sum is h before it, to twice float32's precision
  static constexpr int kInputs = 2;
  static constexpr bool kIndexed = false, kAnyOrder = false, kConverts = false, kIntegers = false,
                        kIntegerKernels = false;
  OpOptions options;

  TR_HD static Acc absent() { return {1, 0, F(-0.0)}; }
  TR_HD static Wide wide_absent() { return initial_as(1, -0.0); }
  // A carry is a state that resets: of what comes before it, nothing shows.
  TR_HD static Wide initial(F h) { return initial_as(0, double(h)); }
  TR_HD static Wide widen(Acc x) {
    if constexpr (kSingle) return {double(x.a) + double(x.lost), double(x.b)};
    else return x;
  }
  template <class V> TR_HD static V combine(V left, V right) { return join(left, right); }
  template <class E> TR_HD Item load(Pair<E> x, int64_t position) const {
    const bool none = position == 0 && !options.initial;
    return {none ? F(0) : convert<F>(x.a), convert<F>(x.b)};
  }
  TR_HD static Item absent_item() { return {1, F(-0.0)}; }
  // The items become the group's own multipliers and additive parts up to each.
  TR_HD static Acc group(Item (&x)[kGroup]) {
    F product = x[0].a;
    TR_UNROLLED
    for (int i = 1; i < kGroup; ++i) product = x[i].a * product;
    return allows_fast_product(product) ? fast_products(x) : careful_group(x);
  }
  TR_HD static Prefix prefix(Wide carry, Acc within) {
    const auto h = combine(carry, widen(within)).b;
    if constexpr (kSingle) {
      const float hi = float(h);
      return {hi, !is_finite(hi) || double(hi) == h ? -0.0f : float(h - double(hi))};
    } else {
      return {h, -0.0};
    }
  }
  // Of what begins with a row that no value precedes: its first multiplier, 0, leaves nothing of the carry.
  TR_HD static Prefix prefix(Acc within) { return {within.b, F(-0.0)}; }
  TR_HD void results(const Prefix& before, const Item (&x)[kGroup], Result (&out)[kGroup]) const {
    if (allows_fast_product(x[kGroup - 1].a)) {
      TR_UNROLLED
      for (int i = 0; i < kGroup; ++i) out[i] = fast_result(before, x[i]);
    } else {
      careful_results(before, x, out);
    }
  }

  // ---- for a warp that decides once --------------------------------------------------------------------------------

  // Whether no multiplier but the first is 0, and no product of the others anything but a finite number that is not 0.
  TR_HD static bool allows_fast_group(const Item (&x)[kGroup]) {
    F product = x[0].a == 0 ? F(1) : x[0].a;
    TR_UNROLLED
    for (int i = 1; i < kGroup; ++i) product = x[i].a * product;
    return allows_fast_product(product);
  }
  // group and results of such items, and of any items: these two go together.
  TR_HD static Acc fast_group(Item (&x)[kGroup]) {
    const bool reset = x[0].a == 0;
    x[0].a = reset ? F(1) : x[0].a;
    const Acc total = fast_products(x);
    x[0].a = reset ? F(0) : x[0].a;  // says so to fast_results
    return {reset ? F(0) : total.a, reset ? F(0) : total.lost, total.b};
  }
  TR_HD void fast_results(const Prefix& before, const Item (&x)[kGroup], Result (&out)[kGroup]) const {
    const bool reset = x[0].a == 0;
    // A lo of -0.0 could do no more than make +0.0 of a b, which shows nowhere but beside a hi of zero.
    if (!reset && before.hi != 0 && (!kSingle || bit_cast<uint32_t>(float(before.lo)) == 0x80000000u)) {
      TR_UNROLLED
      for (int i = 0; i < kGroup; ++i) out[i] = fma_of(x[i].a, before.hi, x[i].b);
    } else {
      TR_RARE_PATH;
      TR_UNROLLED
      for (int i = 0; i < kGroup; ++i) {
        const F h = fast_result(before, x[i]);
        out[i] = reset ? x[i].b : h;
      }
    }
  }
  TR_HD static Acc careful_group(Item (&x)[kGroup]) {
    F lost = 0;
    TR_UNROLLED
    for (int i = 1; i < kGroup; ++i) {
      const F a = x[i].a, before = x[i - 1].a, q = kept_product(a, before, kUnderflow<F>);
      const bool exact = (a == 0) | (before == 0) | (a * before == 0) | !is_finite(q);
      const F more = fma_of(a, lost, fma_of(a, before, -q));
      lost = exact ? F(0) : more;
      x[i] = {q, recur(a, x[i - 1].b, x[i].b)};
    }
    return {x[kGroup - 1].a, lost, x[kGroup - 1].b};
  }
  TR_HD void careful_results(const Prefix& before, const Item (&x)[kGroup], Result (&out)[kGroup]) const {
    TR_UNROLLED
    for (int i = 0; i < kGroup; ++i) {
      const F p = kSingle ? recur(x[i].a, before.lo, x[i].b) : x[i].b;
      out[i] = recur(x[i].a, before.hi, p);
    }
  }

  // Runs that all allow it, joined without choices: to the bits of join if all that comes out is settled. (A b that
  // is not finite stays so, except where a reset drops it as join does; a multiplier that underflows is 0, which only
  // runs with a reset may be.)
  TR_HD static bool allows_fast(const Acc& run) { return magnitude(run.a) <= 1; }
  TR_HD static bool is_reset(const Acc& run) { return run.a == 0; }
  TR_HD static Acc fast_join(const Acc& left, const Acc& right) {
    const F a = right.a * left.a, error = fma_of(right.a, left.a, -a);
    const F next = fma_of(right.a, left.b, fma_of(right.lost, left.b, right.b));
    const bool drops = magnitude(right.a) <= kUnderflow<F>;
    return {a, fma_of(right.a, left.lost, fma_of(right.lost, left.a, error)), drops ? right.b : next};
  }
  TR_HD static bool is_settled(const Acc& run, bool has_reset) { return is_finite(run.b) & (has_reset | (run.a != 0)); }
  TR_HD static Acc fast_end(const Acc& run) { return run; }
  TR_HD static Acc fast_combine(const Acc& left, const Acc& right) {
    const Acc both = fast_join(left, right);
    const F least = is_reset(left) | is_reset(right) ? F(0) : kUnderflow<F>;
    return {both.a == 0 ? least : both.a, both.a == 0 ? F(0) : both.lost, both.b};
  }

 private:
  TR_HD static bool allows_fast_product(F product) { return (product != 0) & is_finite(product); }
  // The group where every product allows it: there is nothing to choose.
  TR_HD static Acc fast_products(Item (&x)[kGroup]) {
    F lost = 0;
    TR_UNROLLED
    for (int i = 1; i < kGroup; ++i) {
      const F a = x[i].a, before = x[i - 1].a, q = a * before;
      lost = fma_of(a, lost, fma_of(a, before, -q));
      x[i] = {q, fma_of(a, x[i - 1].b, x[i].b)};
    }
    return {x[kGroup - 1].a, lost, x[kGroup - 1].b};
  }
  TR_HD static F fast_result(const Prefix& before, const Item& x) {
    return fma_of(x.a, before.hi, kSingle ? fma_of(x.a, before.lo, x.b) : x.b);
  }
  TR_HD static Wide initial_as(double a, double b) {
    if constexpr (kSingle) return {a, b};
    else return {a, 0, b};
  }
};

}  // namespace TR_ISA
}  // namespace torchreduce
