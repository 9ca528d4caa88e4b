// Eight lanes, whatever the width of the registers: as many as a group has elements. A vector, or of accumulators with
// fields a struct of vectors.
#pragma once
#include "cpu/lanes.h"
#include "ops/scans.h"

namespace torchreduce {
inline namespace TR_ISA {

template <class A> using LaneType = std::conditional_t<std::is_same<A, int64_t>::value, uint64_t, A>;  // integers wrap
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
template <class V> TR_HD V fma8(V a, V b, V c) {
  using F = std::decay_t<decltype(a[0])>;
  return each<F>([](F x, F y, F z) { return fma_of(x, y, z); }, a, b, c);
}
template <class V> TR_HD V magnitudes(V x) {
  using F = std::decay_t<decltype(x[0])>;
  return each<F>([](F a) { return magnitude(a); }, x);
}
// A mask for lanes of another width.
template <class L, class M> TR_HD auto lanes_of(M mask) { return __builtin_convertvector(mask, Eight<IntOf<L>>); }

// ---- eight accumulators: a vector, or a struct of kFields vectors ---------------------------------------------------

template <class F> struct Powers {
  static constexpr int kFields = 2;
  Eight<F> m;
  Eight<decltype(Power<F>::e)> e;
};
template <class F, class S> struct SumsOfExponentials {
  static constexpr int kFields = 2;
  Eight<F> m;
  Eight<S> s;
};
template <class F, class S> struct DecayedSums {
  static constexpr int kFields = 2;
  Eight<F> o;
  Eight<S> r;
};
template <class F> struct Affines {
  static constexpr int kFields = 3;
  Eight<F> a, lost, b;
};
struct WideAffines {
  static constexpr int kFields = 2;
  Eight<double> a, b;
};
template <class V>
concept Fields = V::kFields > 0;

TR_HD Eight<float> eight(float x) { return splat8(x); }
TR_HD Eight<double> eight(double x) { return splat8(x); }
TR_HD Eight<uint64_t> eight(int64_t x) { return splat8(uint64_t(x)); }
template <class F> TR_HD Powers<F> eight(Power<F> x) { return {splat8(x.m), Eight<decltype(Power<F>::e)>{} + x.e}; }
template <class F, class S> TR_HD SumsOfExponentials<F, S> eight(Exponentials<F, S> x) {
  return {splat8(x.m), splat8(x.s)};
}
template <class F, class S> TR_HD DecayedSums<F, S> eight(Decayed<F, S> x) { return {splat8(x.o), splat8(x.r)}; }
template <class F> TR_HD Affines<F> eight(Affine<F> x) { return {splat8(x.a), splat8(x.lost), splat8(x.b)}; }
TR_HD WideAffines eight(WideAffine x) { return {splat8(x.a), splat8(x.b)}; }

template <class Acc, class V> TR_HD Acc lane(const V& v, int i) { return Acc(v[i]); }
template <class Acc, Fields V> TR_HD Acc lane(const V& v, int i) {
  if constexpr (V::kFields == 2) {
    const auto& [x, y] = v;
    return {x[i], y[i]};
  } else {
    const auto& [x, y, z] = v;
    return {x[i], y[i], z[i]};
  }
}
template <class Acc, Fields V> TR_HD void set_lane(V& v, int i, const Acc& one) {
  if constexpr (V::kFields == 2) {
    auto& [x, y] = v;
    const auto& [a, b] = one;
    x[i] = a;
    y[i] = b;
  } else {
    auto& [x, y, z] = v;
    const auto& [a, b, c] = one;
    x[i] = a;
    y[i] = b;
    z[i] = c;
  }
}

// Register kPart of choose()'s result, where eight lanes take several of W lanes each: the lanes that two of the
// registers of a and b give, then those of any others. (GCC takes a shuffle of longer vectors apart, lane by lane.)
template <int kPart, int... kLane, class V, int... j>
TR_HD auto choose_register(const V& a, const V& b, std::integer_sequence<int, j...>) {
  using L = std::decay_t<decltype(a[0])>;
  using Mask = Vec<IntOf<L>>;
  constexpr int W = kLanes<L>;
  constexpr auto lane = [](int i) {
    constexpr int lanes[] = {kLane...};
    return lanes[kPart * W + i];
  };
  constexpr auto source = [lane](int i) { return lane(i) / W; };
  constexpr auto other_than = [source](int s, int t, int u) {  // the first source that is none of these
    for (int i = 0; i < W; ++i)
      if (source(i) != s && source(i) != t && source(i) != u) return source(i);
    return s;
  };
  constexpr int s0 = source(0), s1 = other_than(s0, s0, s0), s2 = other_than(s0, s1, s1), s3 = other_than(s0, s1, s2);
  const auto from = [&](int s) __attribute__((always_inline)) {
    return load<Vec<L>>(reinterpret_cast<const char*>(s * W < 8 ? &a : &b) + s * W % 8 * sizeof(L));
  };
  Vec<L> v = __builtin_shuffle(from(s0), from(s1), Mask{(source(j) == s0 ? lane(j) % W : W + lane(j) % W)...});
  if constexpr (s2 != s0) v = __builtin_shuffle(v, from(s2), Mask{(source(j) == s2 ? W + lane(j) % W : j)...});
  if constexpr (s3 != s0) v = __builtin_shuffle(v, from(s3), Mask{(source(j) == s3 ? W + lane(j) % W : j)...});
  return v;
}
template <int... kLane, class V, int... kPart>
TR_HD V choose_registers(const V& a, const V& b, std::integer_sequence<int, kPart...>) {
  using L = std::decay_t<decltype(a[0])>;
  const Vec<L> parts[] = {choose_register<kPart, kLane...>(a, b, std::make_integer_sequence<int, kLanes<L>>())...};
  return load<V>(parts);
}
// Lanes of a, or from 8 on of b.
template <int... kLane, class V> TR_HD V choose(const V& a, const V& b) {
  using L = std::decay_t<decltype(a[0])>;
  if constexpr (kLanes<L> < 8)
    return choose_registers<kLane...>(a, b, std::make_integer_sequence<int, 8 / kLanes<L>>());
  else return __builtin_shuffle(a, b, Eight<IntOf<L>>{kLane...});
}
template <int... kLane, Fields V> TR_HD V choose(const V& a, const V& b) {
  if constexpr (V::kFields == 2) {
    const auto& [a0, a1] = a;
    const auto& [b0, b1] = b;
    return {choose<kLane...>(a0, b0), choose<kLane...>(a1, b1)};
  } else {
    const auto& [a0, a1, a2] = a;
    const auto& [b0, b1, b2] = b;
    return {choose<kLane...>(a0, b0), choose<kLane...>(a1, b1), choose<kLane...>(a2, b2)};
  }
}

}  // namespace TR_ISA
}  // namespace torchreduce
