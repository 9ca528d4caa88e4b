// Eight scans at once, or eight groups of one: what a group does is then operations on vectors.
#pragma once
#include "cpu/eight.h"

namespace torchreduce {
inline namespace TR_ISA {

// What a scan does to eight lanes:
//   Items             eight elements of an input, or eight results
//   State, WideState  eight of its accumulators, within a block tile and of the carry
//   combine(left, right), widen(State)
//   group(items, total)  the totals of eight groups, items[k][j] being their elements j of input k; whether the items
//                        have become the groups' own prefixes; if not, what they are is for results to know
//   results(prefixes, carry, within, items)
//                        the results take the place of the first input's items; `prefixes` is what group said, `carry`
//                        and `within` are what lies before each group's block tile, and before it in its block tile
//   absent(k)            an absent element of input k
//   kLongRows            whether eight rows at once take less time than one after the other also where rows are longer
//                        than a tile: tile by tile more totals are joined, but less is transposed at strides of rows
// and, of one input, if it has them
//   next(result, x)      what follows a result of a row shorter than a group, at its element x,
//   all_allow_fast(x, results, count)
//                        if this says so of such rows, one after the other; both can be read up to seven elements
//                        behind them, and results one before
// The inputs in the order in which memory has them (call.h): of linear_scan b and a, of a decayed sum g, x and o.
template <class Scan> struct ScanLanes;
// The elements j of groups, of each input.
template <class Scan> using GroupsOf = Eight<LaneType<typename Scan::Result>>[Scan::kInputs][kGroup];

template <class A> struct ScanLanes<CumSum<A>> {
  using Scan = CumSum<A>;
  using Items = Eight<LaneType<A>>;
  using State = Items;
  using WideState = Eight<LaneType<typename Scan::Wide>>;
  static constexpr bool kLongRows = false;

  template <class V> TR_HD static V combine(V left, V right) { return left + right; }
  TR_HD static WideState widen(State a) { return __builtin_convertvector(a, WideState); }
  TR_HD static A absent(int) { return Scan::absent_item(); }
  TR_HD static bool group(GroupsOf<Scan>& items, State& total) {
    auto& p = items[0];
    for (int j = 1; j < kGroup; ++j) p[j] = p[j - 1] + p[j];
    total = p[kGroup - 1];
    return true;
  }
  TR_HD static A next(A sum, A x) { return Scan::combine(sum, x); }
  TR_HD static bool all_allow_fast(const A*, const A*, int64_t) { return true; }
  TR_HD static void results(bool, WideState carry, State within, GroupsOf<Scan>& items) {
    auto& p = items[0];
    const WideState sum = carry + widen(within);
    if constexpr (std::is_same<A, float>::value) {
      const State hi = __builtin_convertvector(sum, State);
      if (__builtin_expect(any_set(((Eight<int32_t>)hi & 0x7f800000) == 0x7f800000), 0)) {  // infinite or NaN
        for (int i = 0; i < 8; ++i) {
          A one[kGroup], out[kGroup];
          for (int j = 0; j < kGroup; ++j) one[j] = p[j][i];
          Scan{}.results(Scan::prefix(carry[i], within[i]), one, out);
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

  // Exponents one higher, where the sign is shifted out: the greatest, of what is no number or infinite, is the least.
  static constexpr auto kOne = typename FloatBits<F>::Bits(2) << FloatBits<F>::kFraction;

  TR_HD explicit PlainProducts(Eight<F> first) : value(first), least(place(first)) {}
  TR_HD void take(Eight<F> next) {
    value = next;
    const Bits at = place(next);
    least = at < least ? at : least;
  }
  TR_HD auto normal() const { return least > 2 * kOne; }
  TR_HD bool are_normal() const { return !any_set(!normal()); }

  TR_HD static Bits place(Eight<F> x) { return (Bits)x * 2 + kOne; }
};

template <class A> struct ScanLanes<CumProd<A>> {
  using Scan = CumProd<A>;
  using Items = Eight<LaneType<A>>;
  using State = decltype(eight(typename Scan::Acc()));
  using WideState = decltype(eight(typename Scan::Wide()));
  static constexpr bool kLongRows = false;
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
  TR_HD static A absent(int) { return Scan::absent_item(); }
  TR_HD static bool group(GroupsOf<Scan>& items, State& total) {
    auto& x = items[0];
    if constexpr (Scan::kFloat) {
      Items products[kGroup] = {x[0]};
      PlainProducts<A> plain(x[0]);
      for (int j = 1; j < kGroup; ++j) plain.take(products[j] = products[j - 1] * x[j]);
      if (__builtin_expect(plain.are_normal(), 1)) {
        __builtin_memcpy(x, products, sizeof x);
        total = normal_powers(plain.value);
        return true;
      }
      auto zeros = allows_fast_product(x[0], x[0], x[0]);
      for (int j = 1; j < kGroup; ++j) zeros &= allows_fast_product(x[j], products[j - 1], products[j]);
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
  TR_HD static bool all_allow_fast([[maybe_unused]] const A* x, [[maybe_unused]] const A* products, int64_t count) {
    auto fast = Items{} == 0;
    if constexpr (Scan::kFloat)
      for (int64_t i = 0; i < count; i += 8)
        fast &= allows_fast_product(load<Items>(x + i), load<Items>(products + i - 1), load<Items>(products + i));
    return !any_set(!fast);
  }
  TR_HD static void results(bool prefixes, const WideState& carry, const State& within, GroupsOf<Scan>& items) {
    auto& x = items[0];
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
      // A product is rounded alike at every scale, as long as it is a normal number; and no prefix of a group, which is
      // finite, brings back what lies below 2^kGone, or zero: that leaves zeros.
      constexpr int64_t kInRange = 1000, kGone = -2200;
      const WideState before = combine(carry, within);
      const auto gone = before.e < kGone || before.m == 0;
      const Items factor = before.m * (gone ? Items{} : powers_of_two(clamped(before.e, kInRange)));
      Items out[kGroup] = {factor * x[0]};
      PlainProducts<A> plain(out[0]);
      for (int j = 1; j < kGroup; ++j) plain.take(out[j] = factor * x[j]);
      const auto careful = !gone && (!plain.normal() || before.e != clamped(before.e, kInRange));
      if (__builtin_expect(!prefixes || any_set(careful), 0)) return careful_results(prefixes, carry, within, x);
      __builtin_memcpy(x, out, sizeof x);
    }
  }

 private:
  // Whether a product of `before` and x, themselves such products, is to the bit what that of powers is: a normal
  // number, or zero because of a zero.
  TR_HD static auto allows_fast_product(Items x, Items before, Items product) {
    const auto by_zero = product == 0 && (x == 0 || before == 0);
    return PlainProducts<A>::place(product) > 2 * PlainProducts<A>::kOne || by_zero;
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
  static constexpr bool kLongRows = true;

  template <class S>
  TR_HD static SumsOfExponentials<F, S> combine(const SumsOfExponentials<F, S>& left,
                                                const SumsOfExponentials<F, S>& right) {
    const auto sum = [](F m, S s, F other_m, S other_s) {
      return join(Exponentials<F, S>{m, s}, Exponentials<F, S>{other_m, other_s}).s;
    };
    return {greater(left.m, right.m), each<S>(sum, left.m, left.s, right.m, right.s)};
  }
  TR_HD static WideState widen(const State& a) { return {a.m, __builtin_convertvector(a.s, Eight<double>)}; }
  TR_HD static F absent(int) { return Scan::absent_item(); }
  TR_HD static bool group(const GroupsOf<Scan>& items, State& total) {
    const auto& x = items[0];
    total.m = x[0];
    for (int j = 1; j < kGroup; ++j) total.m = greater(total.m, x[j]);
    total.s = weights(x[0], total.m);
    for (int j = 1; j < kGroup; ++j) total.s = total.s + weights(x[j], total.m);
    return false;
  }
  TR_HD static void results(bool, const WideState& carry, const State& within, GroupsOf<Scan>& items) {
    auto& x = items[0];
    const WideState before = combine(carry, widen(within));
    Items m = before.m, s = __builtin_convertvector(before.s, Items);
    for (int j = 0; j < kGroup; ++j) {
      const Items factor = weights(x[j], m);
      s = m >= x[j] ? s + factor : each<F>([](F a, F b) { return fma_of(a, b, F(1)); }, s, factor);
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

template <class F> struct ScanLanes<Decay<F>> {
  using Scan = Decay<F>;
  using Items = Eight<F>;
  using State = DecayedSums<F, F>;
  using WideState = DecayedSums<F, double>;
  static constexpr bool kLongRows = true;

  template <class S>
  TR_HD static DecayedSums<F, S> combine(const DecayedSums<F, S>& left, const DecayedSums<F, S>& right) {  // as join()
    const auto passes = [](const DecayedSums<F, S>& x) { return lanes_of<S>(x.o == kInfinity<F>) & (x.r == 0); };
    const Eight<S> factor = __builtin_convertvector(decays(right.o, left.o), Eight<S>);
    const auto first = passes(right), second = ~first & (passes(left) | (factor == 0));
    const Eight<S> sum = fma8(factor, left.r, right.r);
    return {lanes_of<F>(first) ? left.o : right.o, first ? left.r : second ? right.r : sum};
  }
  TR_HD static WideState widen(const State& a) { return {a.o, __builtin_convertvector(a.r, Eight<double>)}; }
  TR_HD static F absent(int input) {
    const auto item = Scan::absent_item();
    return input == 0 ? item.g : input == 1 ? item.x : item.o;
  }
  TR_HD static bool group(const GroupsOf<Scan>& x, State& total) {
    total = {x[2][0], x[0][0]};
    for (int j = 1; j < kGroup; ++j) total = combine(total, State{x[2][j], x[0][j]});
    return false;
  }
  TR_HD static void results(bool, const WideState& carry, const State& within, GroupsOf<Scan>& x) {
    const WideState before = combine(carry, widen(within));
    State sum{before.o, __builtin_convertvector(before.r, Items)};
    for (int j = 0; j < kGroup; ++j) {
      sum = combine(sum, State{x[2][j], x[0][j]});
      x[0][j] = x[2][j] == -kInfinity<F> ? 0 : decays(x[1][j], x[2][j]) * sum.r;
    }
  }

 private:
  TR_HD static Items decays(Items to, Items from) {
    const Items d = to == from ? 0 : to - from;
    return each<F>([](F x) { return exp_nonpositive(x); }, Items(d > 0 ? 0 : d));
  }
};

template <class F> struct ScanLanes<LinearScan<F>> {
  using Scan = LinearScan<F>;
  using Items = Eight<F>;
  using State = Affines<F>;
  using WideState = decltype(eight(typename Scan::Wide()));
  static constexpr bool kLongRows = true;

  TR_HD static Affines<F> combine(const Affines<F>& left, const Affines<F>& right) {  // as join()
    const Items a = kept_products(right.a, left.a, kUnderflow<F>), error = fma8(right.a, left.a, -a);
    const Items lost = fma8(right.a, left.lost, fma8(right.lost, left.a, error));
    const auto exact = (right.a == 0) | (left.a == 0) | (right.a * left.a == 0) | ~are_finite(a);
    return {a, exact ? 0 : lost, applied(right.a, fma8(right.lost, left.b, right.b), right.b, left.b, kUnderflow<F>)};
  }
  TR_HD static WideAffines combine(const WideAffines& left, const WideAffines& right) {
    constexpr double kLeast = kUnderflow<float>;
    return {kept_products(right.a, left.a, kLeast), applied(right.a, right.b, right.b, left.b, kLeast)};
  }
  TR_HD static WideState widen(const State& x) {
    using Wide = Eight<double>;
    if constexpr (Scan::kSingle)
      return {__builtin_convertvector(x.a, Wide) + __builtin_convertvector(x.lost, Wide),
              __builtin_convertvector(x.b, Wide)};
    else return x;
  }
  TR_HD static F absent(int input) { return input == 0 ? Scan::absent_item().b : Scan::absent_item().a; }
  // As fast_group() where it takes all eight groups.
  TR_HD static bool group(GroupsOf<Scan>& x, State& total) {
    auto& [b, a] = x;
    const auto reset = a[0] == 0;
    const Items first = reset ? 1 : a[0];
    Items product = first;
    for (int j = 1; j < kGroup; ++j) product = a[j] * product;
    if (__builtin_expect(any_set((product == 0) | ~are_finite(product)), 0)) {
      careful_group(x, total);
      return false;
    }
    Items lost{}, before = first;
    for (int j = 1; j < kGroup; ++j) {
      const Items q = a[j] * before;
      lost = fma8(a[j], lost, fma8(a[j], before, -q));
      b[j] = fma8(a[j], b[j - 1], b[j]);
      a[j] = before = q;
    }
    total = {reset ? 0 : before, reset ? 0 : lost, b[kGroup - 1]};
    return true;
  }
  TR_HD static void results(bool prefixes, const WideState& carry, const State& within, GroupsOf<Scan>& x) {
    const auto h = combine(carry, widen(within)).b;
    const Items hi = __builtin_convertvector(h, Items);
    Items lo = splat8(F(-0.0));
    if constexpr (Scan::kSingle) {
      const Eight<double> near = __builtin_convertvector(hi, Eight<double>);
      const auto exact = ~are_finite(hi) | lanes_of<F>(near == h);
      lo = exact ? lo : __builtin_convertvector(h - near, Items);
    }
    if (__builtin_expect(!prefixes, 0)) return careful_results(hi, lo, x);
    auto& [b, a] = x;
    const auto reset = a[0] == 0;
    a[0] = reset ? 1 : a[0];
    for (int j = 0; j < kGroup; ++j) {
      const Items next = fma8(a[j], hi, Scan::kSingle ? fma8(a[j], lo, b[j]) : b[j]);
      b[j] = reset ? b[j] : next;
    }
  }

 private:
  template <class V> TR_HD static auto are_finite(V x) { return magnitudes(x) < __builtin_huge_val(); }
  template <class V, class L> TR_HD static V kept_products(V right, V left, L least) {  // as kept_product()
    const V product = right * left, kept = magnitudes(product) < least ? V{} + least : product;
    return (right == 0) | (left == 0) ? 0 : kept;
  }
  // As applied(), where `whole` is lost * h + b.
  template <class V, class L> TR_HD static V applied(V a, V whole, V b, V h, L least) {
    const V rest = are_finite(h) ? whole : b, next = fma8(a, h, rest);
    const V dropped = (a == 0) | are_finite(h) ? b : V{} + (kInfinity<L> - kInfinity<L>);
    const V kept = (h == 0) & ~are_finite(a) & (a == a) ? b : next;
    return magnitudes(a) <= least ? dropped : kept;
  }
  TR_HD static Items recur(Items a, Items h, Items b) {
    const auto nothing = (h == 0) & (magnitudes(a) == kInfinity<F>);
    return (a == 0) | nothing ? b : fma8(a, h, b);
  }
  // As those of LinearScan.
  __attribute__((noinline)) static void careful_group(GroupsOf<Scan>& x, State& total) {
    auto& [b, a] = x;
    Items lost{};
    for (int j = 1; j < kGroup; ++j) {
      const Items before = a[j - 1], q = kept_products(a[j], before, kUnderflow<F>);
      const auto exact = (a[j] == 0) | (before == 0) | (a[j] * before == 0) | ~are_finite(q);
      const Items more = fma8(a[j], lost, fma8(a[j], before, -q));
      lost = exact ? 0 : more;
      b[j] = recur(a[j], b[j - 1], b[j]);
      a[j] = q;
    }
    total = {a[kGroup - 1], lost, b[kGroup - 1]};
  }
  __attribute__((noinline)) static void careful_results(Items hi, Items lo, GroupsOf<Scan>& x) {
    auto& [b, a] = x;
    for (int j = 0; j < kGroup; ++j) b[j] = recur(a[j], hi, Scan::kSingle ? recur(a[j], lo, b[j]) : b[j]);
  }
};

}  // namespace TR_ISA
}  // namespace torchreduce
