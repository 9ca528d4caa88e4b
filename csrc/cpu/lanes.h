// A reduction on vectors of lanes: residues side by side, the pairwise tree within a vector, and across columns.
//
// A lane is an accumulator of the op (sums), or the key that orders its elements (ops with an Order); the position that
// an indexed op finds is looked up afterwards.
#pragma once
#include "cpu/runs.h"
#include "numerics/order.h"

namespace torchreduce {
inline namespace TR_ISA {

template <class Op> constexpr bool kOrdered = requires { typename Op::Order; };
template <class Op> struct LaneOf {
  using Acc = typename Op::Acc;
  using type = std::conditional_t<std::is_same<Acc, int64_t>::value, uint64_t, Acc>;  // integers wrap
};
template <class Op>
  requires kOrdered<Op>
struct LaneOf<Op> {
  using type = typename Op::Order::Key;
};
template <class Op> using Lane = typename LaneOf<Op>::type;
template <class Op> constexpr bool kIsSum = std::is_same<Op, Sum<typename Op::Element>>::value;

template <class Op> TR_HD Lane<Op> absent_lane() {
  if constexpr (kOrdered<Op>) return Op::Order::kLowest;
  else return Lane<Op>(Op::absent());
}

// kLanes<Lane<Op>> elements at p, as terms: what enter() makes an accumulator, and add_term() adds to one. Only of ops
// with a step of their own are terms something else than accumulators.
template <class Op> TR_HD Vec<Lane<Op>> load_terms(const Op& op, const typename Op::Element* p) {
  using E = typename Op::Element;
  using V = Vec<Lane<Op>>;
  if constexpr (kOrdered<Op>) {
    V bits = load<V>(p);
    if constexpr (std::is_same<E, Bool>::value) bits = (Vec<uint8_t>)(bits != 0) & 1;
    if constexpr (Op::Order::kFloat) bits &= Op::Order::kept(op.options.of);
    return Op::Order::key(bits, op.options.min, Op::kIndexed);
  } else if constexpr (kSteps<Op>) {
    const V v = load_converted<Lane<Op>>(p);
    if (op.options.of == Of::Numbers) return v == v ? v : V{};
    return v < 0 ? -v : v + 0;  // as in SumOf
  } else if constexpr (std::is_same<Op, Count<E>>::value) {
    return (V)op.counts((Vec<int64_t>)load_converted<Lane<Op>>(p)) & 1;
  } else if constexpr (kIsSum<Op>) {
    return load_converted<Lane<Op>>(p);
  } else {
    V terms;
    for (int i = 0; i < kLanes<Lane<Op>>; ++i) terms[i] = op.load(p[i], 0);
    return terms;
  }
}
template <class Op> TR_HD Vec<Lane<Op>> enter(const Op& op, Vec<Lane<Op>> term) {
  if constexpr (kSteps<Op>) return op.options.of == Of::Squares ? term * term : term;
  else return term;
}
template <class Op> TR_HD Vec<Lane<Op>> load_lanes(const Op& op, const typename Op::Element* p) {
  return enter(op, load_terms(op, p));
}

// kCount elements that may be read, of which the first `count` are those at p: in place, or if memory ends before, a
// copy, with the first one again after them.
template <int kCount, class E> __attribute__((noinline)) const E* padded_copy(const E* p, int64_t count, E* copy) {
  for (int i = 0; i < kCount; ++i) copy[i] = p[i < count ? i : 0];
  return copy;
}
template <int kCount, class E> TR_HD const E* readable(const E* p, int64_t count, const E* end, E* copy) {
  return end - p >= kCount ? p : padded_copy<kCount>(p, count, copy);
}
// The first `count` elements at p, fewer than a vector, as terms; absent ones after them. Reads nothing at or after
// `end` but them.
template <class Op>
TR_HD Vec<Lane<Op>> first_terms(const Op& op, const typename Op::Element* p, int64_t count,
                                const typename Op::Element* end) {
  constexpr int W = kLanes<Lane<Op>>;
  typename Op::Element copy[W];
  return first_lanes<Lane<Op>>(load_terms(op, readable<W>(p, count, end, copy)), count, absent_lane<Op>());
}
template <class Op>
TR_HD Vec<Lane<Op>> load_first(const Op& op, const typename Op::Element* p, int64_t count,
                               const typename Op::Element* end) {
  return enter(op, first_terms(op, p, count, end));
}

// What combines lanes: one struct for all ops with an order, so that they share code.
struct GreaterKey {
  template <class V> TR_HD static V combine(V left, V right) { return left > right ? left : right; }
};
template <class Op> using Combiner = std::conditional_t<kOrdered<Op>, GreaterKey, Op>;
template <class Op> TR_HD Vec<Lane<Op>> combine_lanes(Vec<Lane<Op>> left, Vec<Lane<Op>> right) {
  return Combiner<Op>::combine(left, right);
}
// One more element of accumulators.
template <class Op> TR_HD Vec<Lane<Op>> add_term(const Op& op, Vec<Lane<Op>> acc, Vec<Lane<Op>> term) {
  if constexpr (kSteps<Op>) {
    if (op.options.of == Of::Squares) return fma_lanes(term, term, acc);
  }
  return combine_lanes<Op>(acc, term);
}

// Asks for what lies 8 KiB after p, be it there or not, for kernels that read rows from one end to the other: the
// hardware's prefetch is not enough (Zen 5, 2^24 elements: sums of bfloat16 take 1.0 ms with 4 KiB, 0.75 with 8; sums
// of rows of 100 floats take longer with more). Nor does it outlast the page fault that a scan meets at every 4 KiB of
// new memory for its results (rows of 16 floats: 38 ms without, 34 with it).
TR_HD void prefetch_ahead(const void* p) { __builtin_prefetch(static_cast<const char*>(p) + 8192); }

// Rows of memory that are combined position by position: rows[0..rounds) have all positions, rows[rounds] those below
// `tail`, none if that is 0.
template <class E> struct Rounds {
  const E* rows[kLeaf / kResidues];
  int rounds;
  int64_t tail;
  const E* end;   // of readable memory
  int64_t ahead;  // where the elements lie that are needed next, to be prefetched; 0 if nowhere
};

// dst[j] for j in [from, to): rows[0..rounds)[j] in order; absent where there are none. What it writes after `to`, up
// to a vector, is of no use.
template <class Op> __attribute__((noinline)) void accumulate(const Op& op, const Rounds<typename Op::Element>& in,
                                                              int rounds, int64_t from, int64_t to, Lane<Op>* dst) {
  using V = Vec<Lane<Op>>;
  using E = typename Op::Element;
  constexpr int W = kLanes<Lane<Op>>, kBlock = 8;  // accumulators that stay in registers
  int64_t j = from;
  if (rounds > 0) {
    for (; j + kBlock * W <= to; j += kBlock * W) {
      const auto prefetch = [&](const E* p) __attribute__((always_inline)) {
        if (!in.ahead) return;
#pragma GCC unroll 8
        for (int i = 0; i < kBlock * W; i += 64 / int(sizeof(E))) __builtin_prefetch(p + in.ahead + i);
      };
      V a[kBlock];
      prefetch(in.rows[0] + j);
#pragma GCC unroll 8
      for (int i = 0; i < kBlock; ++i) a[i] = load_lanes(op, in.rows[0] + j + i * W);
      for (int k = 1; k < rounds; ++k) {
        const E* const p = in.rows[k] + j;
        prefetch(p);
#pragma GCC unroll 8
        for (int i = 0; i < kBlock; ++i) a[i] = add_term(op, a[i], load_terms(op, p + i * W));
      }
#pragma GCC unroll 8
      for (int i = 0; i < kBlock; ++i) store(dst + j + i * W, a[i]);
    }
  }
  for (; j < to; j += W) {
    V a = splat(absent_lane<Op>());
    for (int k = 0; k < rounds; ++k) {
      E copy[W];
      const E* const p = in.rows[k] + j;
      a = add_term(op, a, load_terms(op, j + W <= to ? p : readable<W>(p, to - j, in.end, copy)));
    }
    store(dst + j, a);
  }
}
template <class Op>
TR_HD void accumulate(const Op& op, const Rounds<typename Op::Element>& in, int64_t count, Lane<Op>* dst) {
  if (in.tail) accumulate(op, in, in.rounds + 1, 0, in.tail, dst);
  if (in.tail < count) accumulate(op, in, in.rounds, in.tail, count, dst);
}

// dst[j] for j in [0, count): the pairwise tree over rows[0..kNeighbours)[j], where row r + 8k is the next one of row
// r, for k < rounds, at most kFewRounds. What it writes after `count`, up to a vector, is of no use.
constexpr int kNeighbours = 8, kFewRounds = 2;
template <class Op> __attribute__((noinline)) void accumulate_neighbours(const Op& op,
                                                                         const typename Op::Element* const* rows,
                                                                         int rounds, int64_t count,
                                                                         const typename Op::Element* end, int64_t ahead,
                                                                         Lane<Op>* dst) {
  using E = typename Op::Element;
  using V = Vec<Lane<Op>>;
  constexpr int W = kLanes<Lane<Op>>;
  int64_t j = 0;
  for (; j + W <= count; j += W) {
    const auto lanes = [&](int i) __attribute__((always_inline)) {
      __builtin_prefetch(rows[i] + j + ahead);
      return load_terms(op, rows[i] + j);
    };
    V a[kNeighbours];
#pragma GCC unroll 8
    for (int r = 0; r < kNeighbours; ++r) a[r] = enter(op, lanes(r));
    for (int k = 1; k < rounds; ++k)
#pragma GCC unroll 8
      for (int r = 0; r < kNeighbours; ++r) a[r] = add_term(op, a[r], lanes(r + kNeighbours * k));
#pragma GCC unroll 8
    for (int step = 1; step < kNeighbours; step *= 2)
#pragma GCC unroll 8
      for (int r = 0; r < kNeighbours; r += 2 * step) a[r] = combine_lanes<Op>(a[r], a[r + step]);
    store(dst + j, a[0]);
  }
  if (j == count) return;
  E copies[kNeighbours * kFewRounds][W];
  const E* last[kNeighbours * kFewRounds];
  for (int i = 0; i < kNeighbours * rounds; ++i) last[i] = readable<W>(rows[i] + j, count - j, end, copies[i]);
  accumulate_neighbours(op, last, rounds, W, end, ahead, dst + j);
}

// v[0] becomes the pairwise trees of v[0], v[1], .. v[kCount - 1], each over the lanes of one vector. The levels within
// 16 bytes come first, because shuffles across them cost more. C combines.
template <class C, class L, int kCount, int kLevel> TR_HD void fold_vectors(Vec<L>* v) {
  constexpr int kParts = kVectorBytes / 16, kPart = kLanes<L> / kParts;
#pragma GCC unroll 64
  for (int i = 0; i < kCount / 2; ++i) {
    Vec<L> even, odd;
    if constexpr ((1 << kLevel) < kPart) unzip<L, 1, kParts>(v[2 * i], v[2 * i + 1], even, odd);
    else unzip<L, kPart, 1>(v[2 * i], v[2 * i + 1], even, odd);
    v[i] = C::combine(even, odd);
  }
  if constexpr (kCount > 2) fold_vectors<C, L, kCount / 2, kLevel + 1>(v);
}

// `levels` levels of the pairwise tree over neighbours, in place: values[0..count >> levels) remain. The memory after
// the values is read, and written, up to a multiple of kFoldLanes.
template <class L> constexpr int64_t kFoldLanes = kLanes<L> * kLanes<L>;
template <class C, class L> void fold_pairs(L* values, int64_t count, int levels) {
  constexpr int W = kLanes<L>, kLevels = __builtin_ctz(W);
  for (; levels >= kLevels; levels -= kLevels) {
    for (int64_t i = 0; i < count; i += kFoldLanes<L>) {
      Vec<L> v[W];
#pragma GCC unroll 64
      for (int j = 0; j < W; ++j) v[j] = load<Vec<L>>(values + i + j * W);
      fold_vectors<C, L, W, 0>(v);
      store(values + i / W, v[0]);
    }
    count /= W;
  }
  for (; levels > 0; --levels) {
    count /= 2;
    for (int64_t i = 0; i < count; i += W) {
      Vec<L> even, odd;
      unzip<L, 1, 1>(load<Vec<L>>(values + 2 * i), load<Vec<L>>(values + 2 * i + W), even, odd);
      store(values + i, C::combine(even, odd));
    }
  }
}

// order.h's TreeStack for `width` L at once, a multiple of what a V holds, in memory. C combines Vs.
template <class C, class L, class V = Vec<L>> struct ColumnStack {
  L* slots;  // [levels + 1][width]; the last one is spare
  int levels;
  int64_t width;
  int64_t count = 0;

  TR_HD static int64_t bytes(int levels, int64_t width) { return Carver::bytes<L>((levels + 1) * width); }
  TR_HD static ColumnStack make(Carver& carver, int levels, int64_t width) {
    return {carver.take<L>((levels + 1) * width), levels, width};
  }
  TR_HD L* slot(int64_t level) const { return slots + level * width; }
  // Where the next value, the tree over 2^level neighbours, is to be written before push(level).
  TR_HD L* top(int level = 0) const { return slot((count >> level) & 1 ? levels : level); }
  TR_HD void push(int level = 0) {
    const int64_t pushed = int64_t(1) << level;
    for (; (count >> level) & 1; ++level)
      combine(slot(level), slot(levels), slot((count >> (level + 1)) & 1 ? levels : level + 1));
    count += pushed;
  }
  // The tree over what was pushed, at least one value; the result stays until the next push.
  TR_HD L* total() const {
    int level = __builtin_ctzll(uint64_t(count));
    L* value = slot(level);
    for (++level; count >> level; ++level)
      if ((count >> level) & 1) {
        combine(slot(level), value, slot(levels));
        value = slot(levels);
      }
    return value;
  }

 private:
  TR_HD void combine(const L* left, const L* right, L* to) const {
    for (int64_t c = 0; c < width; c += int64_t(sizeof(V) / sizeof(L)))
      store(to + c, C::combine(load<V>(left + c), load<V>(right + c)));
  }
};

}  // namespace TR_ISA
}  // namespace torchreduce
