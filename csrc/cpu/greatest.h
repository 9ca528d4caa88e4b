// The greatest key of a run of elements, for the ops with an order: exact whatever the order in which they are taken,
// and however often.
#pragma once
#include "cpu/lanes.h"

namespace torchreduce {
inline namespace TR_ISA {

// v's lanes combined by C, in an order of no account.
template <class C, class L, int kApart, int... kIndex>
TR_HD L fold_lanes(Vec<L> v, std::integer_sequence<int, kIndex...> lanes) {
  v = C::combine(v, __builtin_shuffle(v, Vec<IntOf<L>>{IntOf<L>(kIndex ^ kApart)...}));
  if constexpr (kApart > 1) return fold_lanes<C, L, kApart / 2>(v, lanes);
  else return v[0];
}
template <class C, class L> TR_HD L fold_lanes(Vec<L> v) {
  return fold_lanes<C, L, kLanes<L> / 2>(v, std::make_integer_sequence<int, kLanes<L>>());
}

// Integers are compared by their keys. A float's key takes eight instructions, so floats are compared by their bits:
// read as signed integers the positive ones ascend and the negative ones descend. The greatest float is hence the
// highest of them or, if all are negative, the lowest; the least float is the lowest or, if any is negative, the
// highest as unsigned integers; and one of the two highest is a NaN if any is.
template <class Op> struct Greatest {
  using E = typename Op::Element;
  using L = Lane<Op>;
  static constexpr int W = kLanes<L>;
  static constexpr bool kByBits = Op::Order::kFloat;
  Vec<L> highest, lowest;
  Vec<UintOf<L>> highest_unsigned;

  TR_HD static Vec<L> lanes(const Op& op, const E* p) {
    if constexpr (kByBits) return load<Vec<L>>(p) & Op::Order::kept(op.options.of);
    else return load_lanes(op, p);
  }
  TR_HD void take(Vec<L> v) {
    highest = highest > v ? highest : v;
    if constexpr (kByBits) {
      const Vec<UintOf<L>> u = (Vec<UintOf<L>>)v;
      lowest = lowest < v ? lowest : v;
      highest_unsigned = highest_unsigned > u ? highest_unsigned : u;
    }
  }
  // The key of the `count` elements at p, one at least.
  __attribute__((noinline)) static L key(const Op& op, const E* p, int64_t count) {
    E first[W];
    if (count < W) {
      for (int i = 0; i < W; ++i) first[i] = p[i < count ? i : 0];
      p = first;
      count = W;
    }
    Greatest all;
    all.highest = all.lowest = lanes(op, p);
    all.highest_unsigned = (Vec<UintOf<L>>)all.highest;
    int64_t i = 0;
    for (; i + 8 * W <= count; i += 8 * W)
#pragma GCC unroll 8
      for (int j = 0; j < 8 * W; j += W) {
        if (j * int(sizeof(E)) % 64 == 0) prefetch_ahead(p + i + j);
        all.take(lanes(op, p + i + j));
      }
    for (; i + W <= count; i += W) all.take(lanes(op, p + i));
    if (i < count) all.take(lanes(op, p + count - W));
    return all.key(op);
  }
  TR_HD L key(const Op& op) const {
    if constexpr (!kByBits) return fold_lanes<GreaterKey, L>(highest);
    const auto key = [&](Vec<L> bits) { return Op::Order::key(bits, op.options.min, Op::kIndexed); };
    const Vec<L> either = GreaterKey::combine(key(highest), key(lowest));
    return fold_lanes<GreaterKey, L>(GreaterKey::combine(either, key((Vec<L>)highest_unsigned)));
  }
};

}  // namespace TR_ISA
}  // namespace torchreduce
