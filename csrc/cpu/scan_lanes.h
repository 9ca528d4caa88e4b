// Eight scans at once, or eight groups of one: what a group does is then operations on vectors.
#pragma once
#include "cpu/lanes.h"
#include "scans.h"

namespace torchreduce {
inline namespace TR_ISA {

template <class A> using LaneType = std::conditional_t<std::is_same<A, int64_t>::value, uint64_t, A>;  // integers wrap
// Eight lanes, whatever the width of the registers: as many as a group has elements.
template <class L> using Eight = typename VectorType<L, 8>::type;
template <class L> TR_HD Eight<L> splat8(L x) { return x - Eight<L>{}; }

template <class M> TR_HD bool any_set(M mask) {
  constexpr int kWords = int(sizeof(M)) / 8;
  uint64_t words[kWords], any = 0;
  __builtin_memcpy(words, &mask, sizeof mask);
  for (int i = 0; i < kWords; ++i) any |= words[i];
  return any != 0;
}

// of(lane i of each of v), for each of eight lanes: a loop that becomes operations on vectors if `of` does not branch.
template <class R, class Of, class... V> TR_HD Eight<R> each(Of of, const V&... v) {
  R out[8];
  for (int i = 0; i < 8; ++i) out[i] = of(v[i]...);
  return load<Eight<R>>(out);
}

// ---- eight accumulators: a vector, or a struct of vectors -----------------------------------------------------------

template <class F> struct Powers {
  Eight<F> m;
  Eight<decltype(Power<F>::e)> e;
};

template <class F, class S> struct SumsOfExponentials {
  Eight<F> m;
  Eight<S> s;
};

TR_HD Eight<float> eight(float x) { return splat8(x); }
TR_HD Eight<double> eight(double x) { return splat8(x); }
TR_HD Eight<uint64_t> eight(int64_t x) { return splat8(uint64_t(x)); }
template <class F> TR_HD Powers<F> eight(Power<F> x) { return {splat8(x.m), Eight<decltype(Power<F>::e)>{} + x.e}; }

template <class F, class S> TR_HD SumsOfExponentials<F, S> eight(Exponentials<F, S> x) {
  return {splat8(x.m), splat8(x.s)};
}

template <class Acc, class V> TR_HD Acc lane(const V& v, int i) { return Acc(v[i]); }
template <class Acc, class F> TR_HD Acc lane(const Powers<F>& v, int i) { return {v.m[i], v.e[i]}; }
template <class Acc, class F, class S> TR_HD Acc lane(const SumsOfExponentials<F, S>& v, int i) {
  return {v.m[i], v.s[i]};
}

// Lanes of a, or from 8 on of b.
template <int... kLane, class V> TR_HD V choose(V a, V b) {
  return __builtin_shuffle(a, b, Eight<IntOf<std::decay_t<decltype(a[0])>>>{kLane...});
}
template <int... kLane, class F> TR_HD Powers<F> choose(Powers<F> a, Powers<F> b) {
  return {choose<kLane...>(a.m, b.m), choose<kLane...>(a.e, b.e)};
}
template <int... kLane, class F, class S>
TR_HD SumsOfExponentials<F, S> choose(SumsOfExponentials<F, S> a, SumsOfExponentials<F, S> b) {
  return {choose<kLane...>(a.m, b.m), choose<kLane...>(a.s, b.s)};
}

// ---- the scans -------------------------------------------------------------------------------------------------------

// What a scan does to eight lanes of
//   Items             eight elements, and then eight results
//   State, WideState  eight of its accumulators, within a block tile and of the carry
//   combine(left, right), widen(State)
//   group(items, total)  the totals of eight groups, items[j] being their elements j; whether the items have become the
//                        groups' own prefixes, else they are what they were
//   results(prefixes, carry, within, items)
//                        the results take the items' place; `prefixes` is what group said, `carry` and `within` are
//                        what lies before each group's block tile, and before it in its block tile
//   next(result, x)      what follows a result of a row shorter than a group, at its element x,
//   are_plain(x, results, count)
//                        if this says so of such rows, one after the other; both can be read up to seven elements
//                        behind them, and results one before
template <class Scan> struct ScanLanes;
template <class Scan> constexpr bool kHasLanes = requires { typename ScanLanes<Scan>::Items; };

template <class A> struct ScanLanes<CumSum<A>> {
  using Scan = CumSum<A>;
  using Items = Eight<LaneType<A>>;
  using State = Items;
  using WideState = Eight<LaneType<typename Scan::Wide>>;

  template <class V> TR_HD static V combine(V left, V right) { return left + right; }
  TR_HD static WideState widen(State a) { return __builtin_convertvector(a, WideState); }
  TR_HD static bool group(Items (&p)[kGroup], State& total) {
    for (int j = 1; j < kGroup; ++j) p[j] = p[j - 1] + p[j];
    total = p[kGroup - 1];
    return true;
  }
  TR_HD static A next(A sum, A x) { return Scan::combine(sum, x); }
  TR_HD static bool are_plain(const A*, const A*, int64_t) { return true; }
  TR_HD static void results(bool, WideState carry, State within, Items (&p)[kGroup]) {
    const WideState sum = carry + widen(within);
    if constexpr (std::is_same<A, float>::value) {
      const State hi = __builtin_convertvector(sum, State);
      if (__builtin_expect(any_set(((Eight<int32_t>)hi & 0x7f800000) == 0x7f800000), 0)) {  // infinite or NaN
        for (int i = 0; i < 8; ++i) {
          A items[kGroup], out[kGroup];
          for (int j = 0; j < kGroup; ++j) items[j] = p[j][i];
          Scan{}.results(Scan::prefix(carry[i], within[i]), items, out);
          for (int j = 0; j < kGroup; ++j) p[j][i] = out[j];
        }
      } else {
        const State lo = -__builtin_convertvector(widen(hi) - sum, State);  // -0.0 where hi is sum
        for (int j = 0; j < kGroup; ++j) p[j] = hi + (lo + p[j]);
      }
    } else {
      for (int j = 0; j < kGroup; ++j) p[j] = sum + p[j];
    }
  }
};

// As PlainProduct, of eight groups.
template <class F> struct PlainProducts {
  using Bits = Eight<typename FloatBits<F>::Bits>;
  Eight<F> value;
  Bits least;

  TR_HD explicit PlainProducts(Eight<F> first) : value(first), least(place(first)) {}
  TR_HD void take(Eight<F> next) {
    value = next;
    const Bits at = place(next);
    least = at < least ? at : least;
  }
  TR_HD bool are_normal() const { return !any_set(least <= 2 * PlainProduct<F>::kOne); }

  TR_HD static Bits place(Eight<F> x) { return (Bits)x * 2 + PlainProduct<F>::kOne; }
};

template <class A> struct ScanLanes<CumProd<A>> {
  using Scan = CumProd<A>;
  using Items = Eight<LaneType<A>>;
  using State = decltype(eight(typename Scan::Acc()));
  using WideState = decltype(eight(typename Scan::Wide()));
  template <class F> using Bits = Eight<typename FloatBits<F>::Bits>;
  template <class F> using Exponents = Eight<decltype(Power<F>::e)>;

  TR_HD static Eight<uint64_t> combine(Eight<uint64_t> left, Eight<uint64_t> right) { return left * right; }
  template <class F> TR_HD static Powers<F> combine(const Powers<F>& left, const Powers<F>& right) {  // as multiply()
    using B = FloatBits<F>;
    const Eight<F> m = left.m * right.m;
    const Bits<F> carry = ~((Bits<F>)m >> B::kFraction) & 1;
    const Eight<F> mantissa = (Eight<F>)((Bits<F>)m - (carry << B::kFraction));
    const Exponents<F> e = left.e + right.e + (Exponents<F>)carry, has_exponent = m != 0 && m - m == 0;
    return {has_exponent ? mantissa : m, has_exponent ? e : 0};
  }
  TR_HD static WideState widen(const State& a) {
    if constexpr (Scan::kFloat)
      return {__builtin_convertvector(a.m, Eight<double>), __builtin_convertvector(a.e, Eight<int64_t>)};
    else return a;
  }
  TR_HD static bool group(Items (&x)[kGroup], State& total) {
    if constexpr (Scan::kFloat) {
      Items products[kGroup] = {x[0]};
      PlainProducts<A> plain(x[0]);
      for (int j = 1; j < kGroup; ++j) plain.take(products[j] = products[j - 1] * x[j]);
      if (__builtin_expect(plain.are_normal(), 1)) {
        __builtin_memcpy(x, products, sizeof x);
        total = normal_powers(plain.value);
        return true;
      }
      auto zeros = is_plain(x[0], x[0], x[0]);
      for (int j = 1; j < kGroup; ++j) zeros &= is_plain(x[j], products[j - 1], products[j]);
      if (!any_set(!zeros)) {
        __builtin_memcpy(x, products, sizeof x);
        total = powers_of(x[kGroup - 1]);
        return true;
      }
      total = powers_of(x[0]);
      for (int j = 1; j < kGroup; ++j) total = combine(total, powers_of(x[j]));
      return false;
    } else {
      for (int j = 1; j < kGroup; ++j) x[j] = x[j - 1] * x[j];
      total = x[kGroup - 1];
      return true;
    }
  }
  TR_HD static A next(A product, A x) {
    if constexpr (Scan::kFloat) return product * x;
    else return multiply(product, x);
  }
  TR_HD static bool are_plain([[maybe_unused]] const A* x, [[maybe_unused]] const A* products, int64_t count) {
    auto plain = Items{} == 0;
    if constexpr (Scan::kFloat)
      for (int64_t i = 0; i < count; i += 8)
        plain &= is_plain(load<Items>(x + i), load<Items>(products + i - 1), load<Items>(products + i));
    return !any_set(!plain);
  }
  TR_HD static void results(bool prefixes, const WideState& carry, const State& within, Items (&x)[kGroup]) {
    if constexpr (!Scan::kFloat) {
      for (int j = 0; j < kGroup; ++j) x[j] = carry * within * x[j];
    } else if constexpr (Scan::kSingle) {
      if (__builtin_expect(!prefixes, 0)) return careful_results(false, carry, within, x);
      const Eight<int64_t> far = clamped(carry.e, int64_t(Scan::kFarCarry));
      const Eight<int32_t> e = clamped(__builtin_convertvector(far, Eight<int32_t>) + within.e, int32_t(Scan::kFar));
      const Eight<double> factor = carry.m * __builtin_convertvector(within.m, Eight<double>) *
                                   powers_of_two(__builtin_convertvector(e, Eight<int64_t>));
      for (int j = 0; j < kGroup; ++j)
        x[j] = __builtin_convertvector(factor * __builtin_convertvector(x[j], Eight<double>), Items);
    } else {
      // A product is rounded alike at every scale, as long as it is a normal number.
      constexpr int64_t kInRange = 1000;
      const WideState before = combine(carry, within);
      const Items factor = before.m * powers_of_two(clamped(before.e, kInRange));
      Items out[kGroup] = {factor * x[0]};
      PlainProducts<A> plain(out[0]);
      for (int j = 1; j < kGroup; ++j) plain.take(out[j] = factor * x[j]);
      if (__builtin_expect(!prefixes || !plain.are_normal() || any_set(before.e != clamped(before.e, kInRange)), 0))
        return careful_results(prefixes, carry, within, x);
      __builtin_memcpy(x, out, sizeof x);
    }
  }

 private:
  // Whether a product of `before` and x, themselves such products, is to the bit what that of powers is: a normal
  // number, or zero because of a zero.
  TR_HD static auto is_plain(Items x, Items before, Items product) {
    const auto by_zero = product == 0 && (x == 0 || before == 0);
    return PlainProducts<A>::place(product) > 2 * PlainProduct<A>::kOne || by_zero;
  }
  // Any products.
  __attribute__((noinline)) static void careful_results(bool prefixes, const WideState& carry, const State& within,
                                                        Items (&x)[kGroup]) {
    const WideState before = combine(carry, widen(within));
    State product{};
    for (int j = 0; j < kGroup; ++j) {
      product = prefixes || j == 0 ? powers_of(x[j]) : combine(product, powers_of(x[j]));
      x[j] = __builtin_convertvector(values_of(combine(before, widen(product))), Items);
    }
  }
  // As normal_power(), power_of() and value_of().
  TR_HD static Powers<A> normal_powers(Items x) {
    using B = FloatBits<A>;
    const Bits<A> bits = (Bits<A>)x;
    return {(Items)((bits & ~B::kExponents) | (typename B::Bits(B::kBias) << B::kFraction)),
            (Exponents<A>)((bits & B::kExponents) >> B::kFraction) - B::kBias};
  }
  TR_HD static Powers<A> powers_of(Items x) {
    constexpr int kScale = Scan::kSingle ? 24 : 54;
    const Exponents<A> has_exponent = x != 0 && x - x == 0, subnormal = ((Bits<A>)x & FloatBits<A>::kExponents) == 0;
    Powers<A> powers = normal_powers(subnormal ? x * A(int64_t(1) << kScale) : x);
    powers.e -= subnormal & kScale;
    return {has_exponent ? powers.m : x, has_exponent ? powers.e : 0};
  }
  TR_HD static Eight<double> values_of(const Powers<double>& x) {
    const Eight<int64_t> e = clamped(x.e, int64_t(1100)), half = e >> 1;
    return x.m * powers_of_two(half) * powers_of_two(e - half);
  }
  template <class E> TR_HD static Eight<E> clamped(Eight<E> e, E most) {
    return e < -most ? -most : e > most ? most : e;
  }
  TR_HD static Eight<double> powers_of_two(Eight<int64_t> e) { return (Eight<double>)((e + 1023) << 52); }
};

template <class F> struct ScanLanes<LogCumSumExp<F>> {
  using Scan = LogCumSumExp<F>;
  using Items = Eight<F>;
  using State = SumsOfExponentials<F, F>;
  using WideState = SumsOfExponentials<F, double>;

  template <class S>
  TR_HD static SumsOfExponentials<F, S> combine(const SumsOfExponentials<F, S>& left,
                                                const SumsOfExponentials<F, S>& right) {
    const auto sum = [](F m, S s, F other_m, S other_s) {
      return join(Exponentials<F, S>{m, s}, Exponentials<F, S>{other_m, other_s}).s;
    };
    return {greater(left.m, right.m), each<S>(sum, left.m, left.s, right.m, right.s)};
  }
  TR_HD static WideState widen(const State& a) { return {a.m, __builtin_convertvector(a.s, Eight<double>)}; }
  TR_HD static bool group(const Items (&x)[kGroup], State& total) {
    total.m = x[0];
    for (int j = 1; j < kGroup; ++j) total.m = greater(total.m, x[j]);
    total.s = weights(x[0], total.m);
    for (int j = 1; j < kGroup; ++j) total.s = total.s + weights(x[j], total.m);
    return false;
  }
  TR_HD static F next(F, F x) { return x; }
  TR_HD static bool are_plain(const F*, const F*, int64_t) { return false; }
  TR_HD static void results(bool, const WideState& carry, const State& within, Items (&x)[kGroup]) {
    const WideState before = combine(carry, widen(within));
    Items m = before.m, s = __builtin_convertvector(before.s, Items);
    for (int j = 0; j < kGroup; ++j) {
      const Items factor = weights(x[j], m);
      s = m >= x[j] ? s + factor : each<F>([](F a, F b) { return fused(a, b, F(1)); }, s, factor);
      m = greater(m, x[j]);
      const Items sum = m + each<F>([](F a) { return log_positive(a); }, s);
      x[j] = sizeof(F) == 8 ? (m - m == 0 ? sum : m) : sum;
    }
  }

 private:
  TR_HD static Items greater(Items a, Items b) { return (a >= b) | (a != a) ? a : b; }  // as greatest()
  TR_HD static Items weights(Items a, Items b) {
    return each<F>([](F x, F y) { return weight(x, y); }, a, b);
  }
};

}  // namespace TR_ISA
}  // namespace torchreduce
