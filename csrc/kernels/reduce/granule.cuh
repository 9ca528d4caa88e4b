// What a lane makes of the elements that it loads, 16 bytes at a time, and what lanes make of that together.
//
// Ops whose order shows in the bits (sums of floats) have an accumulator for each residue of a leaf. Of the others a
// lane keeps one value, which takes in a granule at once: an accumulator; or, where positions are found, the greatest
// element so far and the granule it is in, in which it is looked for at the end.
//
// combine() of a reduction gives the same bits in either order of its operands (but for what a NaN carries, which is
// not written), so that a tree over lanes need not say which is on the left.
#pragma once
#include "finish.cuh"
#include "outer.h"
#include "plain_product.cuh"

namespace torchreduce::gpu {

// Where row `row` begins, and where its result goes.
__device__ __forceinline__ int64_t row_in(const RowsCall& call, int64_t row) {
  return call.even ? row * call.pitch : row_start(call.outer, row).in;
}
__device__ __forceinline__ int64_t even_row_out(const RowsCall& call, int64_t row) {
  int64_t out = row * call.out_pitch;
  if (!call.out_even) {
#pragma unroll
    for (int d = 0; d < kMostOuter - 1; ++d) out += call.by[d].quotient(int(row)) * call.skip[d];
  }
  return out;
}
__device__ __forceinline__ int64_t row_out(const RowsCall& call, int64_t row) {
  return call.even ? even_row_out(call, row) : row_start(call.outer, row).out;
}

// The granule in which an element lies, and how many elements of the granule come before it.
template <class E> __device__ __forceinline__ const Granule* granule_of(const E* x) {
  return reinterpret_cast<const Granule*>(reinterpret_cast<uintptr_t>(x) & ~uintptr_t(15));
}
template <class E> __device__ __forceinline__ int elements_before(const E* x) {
  return int((reinterpret_cast<uintptr_t>(x) & 15) / sizeof(E));
}

template <class E> __device__ __forceinline__ void elements_of(const Granule& g, E (&x)[kPerGranule<E>]) {
  unpack<E, kPerGranule<E>>(g.item, x);
}

// Whether a granule lies within the tensor.
__device__ __forceinline__ bool is_inside(const RowsCall& call, const Granule* g) {
  return static_cast<const void*>(g) >= call.in && static_cast<const void*>(g + 1) <= call.end;
}
// A granule of elements that change nothing.
template <class Op> __device__ __forceinline__ Granule absent_granule(const Op& op) {
  using E = typename Op::Element;
  E x[kPerGranule<E>];
#pragma unroll
  for (E& e : x) e = op.absent_element();
  Granule g;
  memcpy(&g, x, sizeof g);
  return g;
}
// What stands for elements of a granule that are not a row's: absent ones, or where there are none, element number
// `own` of the granule, which is.
template <class Op> __device__ __forceinline__ Granule fill_of(const Granule& g, int own, const Granule& absent) {
  if constexpr (kHasAbsent<Op>) {
    return absent;
  } else {
    using E = typename Op::Element;
    E x[kPerGranule<E>];
    elements_of(g, x);
#pragma unroll
    for (int i = 1; i < kPerGranule<E>; ++i) x[0] = i == own ? x[i] : x[0];
#pragma unroll
    for (int i = 1; i < kPerGranule<E>; ++i) x[i] = x[0];
    Granule fill;
    memcpy(&fill, x, sizeof fill);
    return fill;
  }
}
// Elements before `first` and from `end` on become those of `fill`; first <= 16 / sizeof(E).
template <class E> __device__ __forceinline__ void mask(Granule& g, int first, int end, const Granule& fill) {
  constexpr int kBits = 8 * int(sizeof(E));
  auto ones_from = [](int bit) { return bit >= 32 ? 0u : ~0u << (bit < 0 ? 0 : bit); };
  const int last = end < kPerGranule<E> ? end : kPerGranule<E>;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t keep = ones_from(first * kBits - 32 * i) & ~ones_from(last * kBits - 32 * i);
    g.item[i] = (g.item[i] & keep) | (fill.item[i] & ~keep);
  }
}

// ---- ops of any order -------------------------------------------------------------------------------------------------

// The sum of a granule of integers.
template <class E> __device__ __forceinline__ int64_t integers_of(const Sum<E>& op, const Granule& g) {
  if constexpr (sizeof(E) == 1) {
    int32_t sum = 0;
#pragma unroll
    for (const uint32_t w : g.item) sum = sum_bytes(as_signed_word<E>(w, op.options), sum);
    return sum;
  } else {
    using Part = std::conditional_t<sizeof(E) == 2, int32_t, int64_t>;
    E x[kPerGranule<E>];
    elements_of(g, x);
    Part sum = 0;
#pragma unroll
    for (const E& e : x) sum = Part(std::make_unsigned_t<Part>(sum) + std::make_unsigned_t<Part>(Part(e)));
    return sum;
  }
}

// How many elements of a granule count.
template <class E> __device__ __forceinline__ int counted_of(const Count<E>& op, const Granule& g) {
  int count = 0;
  if constexpr (sizeof(E) <= 2) {
#pragma unroll
    for (const uint32_t w : g.item) count += bits_set(op.counting_bits(w));
  } else {
    E x[kPerGranule<E>];
    elements_of(g, x);
#pragma unroll
    for (const E& e : x) count += op.counts(e);
  }
  return count;
}

// Floats of at most 4 bytes have maxima in hardware, in which NaN wins and -0.0 < +0.0; for minima their signs are
// turned round first. `E` is no other type then.
#ifdef TR_FLOAT_MAXIMA
template <class E> constexpr bool kHasMaxima = is_float_type<E> && sizeof(E) <= 4;
template <class E> __device__ __forceinline__ E greatest_of(const Granule& g, bool min, Of of = Of::Elements) {
  if constexpr (sizeof(E) == 4) {
    const uint32_t flip = min ? 0x80000000u : 0u, kept = Ordering<E>::kept_words(of);
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = bit_cast<float>((g.item[i] & kept) ^ flip);
    return float_maximum(float_maximum(v[0], v[1]), float_maximum(v[2], v[3]));
  } else {
    constexpr bool kBF16 = std::is_same<E, BF16>::value;
    const uint32_t flip = min ? 0x80008000u : 0u, kept = Ordering<E>::kept_words(of);
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = (g.item[i] & kept) ^ flip;
    const uint32_t both = packed_maxima<kBF16>(packed_maxima<kBF16>(w[0], w[1]), packed_maxima<kBF16>(w[2], w[3]));
    return E{uint16_t(packed_maxima<kBF16>(both, both >> 16))};
  }
}
#else
template <class E> constexpr bool kHasMaxima = false;
template <class E> E greatest_of(const Granule& g, bool min, Of of = Of::Elements);
#endif

// A granule as an accumulator of an op without positions.
template <class Op> __device__ __forceinline__ typename Op::Acc value_of(const Op& op, const Granule& g) {
  using E = typename Op::Element;
  if constexpr (std::is_same<Op, Count<E>>::value) {
    return counted_of<E>(op, g);
  } else if constexpr (std::is_same<Op, Sum<E>>::value) {  // of integers
    return integers_of<E>(op, g);
  } else if constexpr (kHasMaxima<E> && std::is_same<Op, Extremes<E>>::value) {
    auto key = [&](bool min) {
      return Ordering<E>::wide(Ordering<E>::key(Ordering<E>::bits_of(greatest_of<E>(g, min)), false, false));
    };
    return {key(true), key(false)};
  } else if constexpr (kHasMaxima<E>) {
    return Ordering<E>::key(Ordering<E>::bits_of(greatest_of<E>(g, op.options.min, op.options.of)), false, false);
  } else {
    E x[kPerGranule<E>];
    elements_of(g, x);
    typename Op::Acc value = op.load(x[0], 0);
#pragma unroll
    for (int i = 1; i < kPerGranule<E>; ++i) value = op.combine(value, op.load(x[i], 0));
    return value;
  }
}

// ---- the best element and where it is -----------------------------------------------------------------------------------

// Elements are compared as what costs least: as floats, with their signs turned round for minima, or as keys.
template <class Op> struct Search {
  using E = typename Op::Element;
  using Order = Ordering<E>;
  static constexpr bool kFloats = kHasMaxima<E>;
  using Mark = std::conditional_t<kFloats, float, typename Order::Key>;

  // What of a granule is compared.
  __device__ static Granule turned(const Op& op, Granule g) {
    if constexpr (kFloats)
      if (op.options.min) {
#pragma unroll
        for (uint32_t& w : g.item) w ^= sizeof(E) == 4 ? 0x80000000u : 0x80008000u;
      }
    return g;
  }
  __device__ static Mark mark(const Op& op, E x) {  // of an element that was turned
    if constexpr (kFloats) return convert<float>(x);
    else return op.load(x, 0).key;
  }
  __device__ static Mark greatest(const Op& op, const Granule& g) {
    if constexpr (kFloats) {
      return convert<float>(greatest_of<E>(g, false));
    } else {
      E x[kPerGranule<E>];
      elements_of(g, x);
      Mark best = mark(op, x[0]);
#pragma unroll
      for (int i = 1; i < kPerGranule<E>; ++i) {
        const Mark next = mark(op, x[i]);
        best = next > best ? next : best;
      }
      return best;
    }
  }
  // Whether an element takes the place of the best of those before it.
  __device__ static bool beats(Mark next, Mark best) {
    if constexpr (kFloats) return !(next <= best) && best == best;
    else return next > best;
  }
  // The first element of a granule that is its greatest, `best`.
  __device__ static int first_best(const Op& op, const Granule& g, Mark best) {
    E x[kPerGranule<E>];
    elements_of(g, x);
    int at = 0;
#pragma unroll
    for (int i = kPerGranule<E> - 1; i > 0; --i) at = mark(op, x[i]) < best ? at : i;
    at = mark(op, x[0]) < best ? at : 0;
    if (best != best) {
#pragma unroll
      for (int i = kPerGranule<E> - 1; i >= 0; --i) at = mark(op, x[i]) != mark(op, x[i]) ? i : at;
    }
    return at;
  }
  // The order of marks as integers: NaN is the greatest, and zeros are equal, or not.
  __device__ static auto key(Mark m, bool merge_zeros = true) {
    if constexpr (kFloats) {
      const uint32_t bits =
          std::is_same<E, F16>::value ? round_to<F16>(m).bits : bit_cast<uint32_t>(m) >> (32 - 8 * sizeof(E));
      typename Order::Wide k[1];
      Order::template keys<1>(&bits, false, merge_zeros, k);
      return Order::narrow(k[0]);
    } else {
      return m;
    }
  }
};

// What was found: the greatest key, and the position where it is first.
template <class Key, class Position> struct Found {
  Key key;
  Position at;
};
template <class Value> __device__ __forceinline__ Value first_of(const Value& a, const Value& b) {
  const bool other = b.key > a.key || (b.key == a.key && b.at < a.at);
  return {other ? b.key : a.key, other ? b.at : a.at};
}

// ---- a lane's part of a row ---------------------------------------------------------------------------------------------

// Op::kAnyOrder: take() is given granules in ascending order, each with the position of its first element, which may be
// before the row's; elements of other rows are absent ones.
template <class Op, class Position, bool kIndexed = Op::kIndexed> struct Part;

template <class Op, class Position> struct Part<Op, Position, false> {
  using Value = typename Op::Acc;
  Value best;

  __device__ Part(const Op& op, Position) : best(op.absent()) {}
  __device__ Part(const Op& op, const Granule& g, Position) : best(value_of(op, g)) {}
  __device__ void take(const Op& op, const Granule& g, Position) { best = op.combine(best, value_of(op, g)); }
  __device__ Value value(const Op&) const { return best; }
  __device__ static Value join(const Op& op, const Value& a, const Value& b) { return op.combine(a, b); }
};

// The best granule is kept, and looked through once, at the end. Elements are at least as great as absent ones, so that
// where none is greater the first position stands for all: that of the granule that the lane would begin with.
template <class Op, class Position> struct Part<Op, Position, true> {
  using S = Search<Op>;
  using Value = Found<decltype(typename Op::Acc().key), Position>;
  Granule kept;
  typename S::Mark best;
  Position at;  // of the kept granule

  __device__ Part(const Op& op, Position first) : Part(op, absent_granule(op), first) {}
  __device__ Part(const Op& op, const Granule& g, Position first)
      : kept(S::turned(op, g)), best(S::greatest(op, kept)), at(first) {}
  __device__ void take(const Op& op, const Granule& granule, Position first) {
    const Granule g = S::turned(op, granule);
    const typename S::Mark next = S::greatest(op, g);
    const bool better = S::beats(next, best);
    best = better ? next : best;
    at = better ? first : at;
#pragma unroll
    for (int i = 0; i < 4; ++i) kept.item[i] = better ? g.item[i] : kept.item[i];
  }
  __device__ Value value(const Op& op) const {
    const Position position = at + S::first_best(op, kept, best);
    return {S::key(best), position < 0 ? 0 : position};
  }
  __device__ static Value join(const Op&, const Value& a, const Value& b) { return first_of(a, b); }
};

// One of two values.
template <class V> __device__ __forceinline__ V chosen_value(bool first, const V& a, const V& b) {
  if constexpr (std::is_arithmetic<V>::value) return first ? a : b;
  else if constexpr (requires { a.second; }) return {first ? a.first : b.first, first ? a.second : b.second};
  else if constexpr (requires { a.m; }) return {first ? a.m : b.m, first ? a.e : b.e};
  else return {first ? a.key : b.key, first ? a.at : b.at};
}

// ---- what lanes make together -------------------------------------------------------------------------------------------

// The first levels of the tree over `lanes` neighbouring lanes (a power of two) of K values each, as long as lanes can
// halve what they have: each keeps one of two, and sends the other. Where l levels were done, value[k] of lane t is
// that of number (k << l) + t % (1 << l).
template <int K, class V, class Join>
__device__ __forceinline__ void transposing_levels(V (&value)[K], int lanes, Join join) {
  const int lane = lane_id();
#pragma unroll
  for (int h = K / 2, d = 1; h > 0; h /= 2, d *= 2) {
    if (d >= lanes) break;
    const bool odd = (lane & d) != 0;
#pragma unroll
    for (int k = 0; k < K / 2; ++k)
      if (k < h) {
        const V sent = chosen_value(odd, value[2 * k], value[2 * k + 1]);
        const V kept = chosen_value(odd, value[2 * k + 1], value[2 * k]);
        value[k] = join(kept, shuffle(sent, lane ^ d));
      }
  }
}
// The whole tree; lanes >= K, and lane t gets value t % K.
template <int K, class V, class Join>
__device__ __forceinline__ V transposing_tree(V (&value)[K], int lanes, Join join) {
  transposing_levels(value, lanes, join);
  V v = value[0];
  for (int d = K; d < lanes; d *= 2) v = join(v, shuffle(v, lane_id() ^ d));
  return v;
}

// ---- results -----------------------------------------------------------------------------------------------------------

// Writes the result of the row of neighbours that starts at x.
template <class Op>
__device__ __forceinline__ void finish_plain_row(const Op& op, const Output& output, const typename Op::Element* x,
                                                 int64_t out, const typename Op::Acc& acc) {
  using E = typename Op::Element;
  if constexpr (Op::kIndexed)
    op.finish(acc, output, out, output.values ? op.found(acc, [&] { return x[acc.index]; }) : E{});
  else op.finish(acc, output, out);
}

}  // namespace torchreduce::gpu
