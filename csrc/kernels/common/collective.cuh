// What a warp does together, in the canonical order, and how kernels reach elements.
#pragma once
#include "gpu_packed.h"
#include "numerics/order.h"
#include "plan/call.h"

namespace torchreduce::gpu {

constexpr int kThreads = 256;  // of a block, unless a plan says otherwise
constexpr int kWarps = kThreads / kLanes;

constexpr int kGranule = 16;  // bytes that move together
using Granule = Packed<uint32_t, 4>;
template <class E> constexpr int kPerGranule = kGranule / int(sizeof(E));

// ---- elements --------------------------------------------------------------------------------------------------------

// Elements of a type known at compile time.
template <class E> struct TypedLoad {
  using Element = E;
  // Elements of one load of at most 16 bytes; a lane takes 8 elements in 8 / kWidth loads.
  static constexpr int kWidth = sizeof(E) < 2 ? 8 : 16 / int(sizeof(E));
  __device__ static E one(const Source& in, int64_t offset) { return global(static_cast<const E*>(in.data))[offset]; }
  // items[i] = the element at offset + i * stride for i < count; the rest is unspecified.
  template <int N>
  __device__ static void run(const Source& in, int64_t offset, int64_t stride, int64_t count, E (&items)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (i < count) items[i] = one(in, offset + i * stride);
  }
  // The kWidth elements at `offset`, a multiple of kWidth from a 16-byte boundary, to those from `first` on of w.
  __device__ static void vector(const Source& in, int64_t offset, uint32_t (&w)[kGroup * sizeof(E) / 4], int first) {
    using P = Packed<uint32_t, kWidth* int(sizeof(E)) / 4>;
    const P p = load_wide(reinterpret_cast<const P*>(static_cast<const E*>(in.data) + offset));
    memcpy(w + first * sizeof(E) / 4, &p, sizeof p);
  }
  // `offset` is a multiple of kWidth from a 16-byte boundary.
  __device__ static void packed(const Source& in, int64_t offset, E* items) {
    using P = Packed<E, kWidth>;
    const P p = load_wide(reinterpret_cast<const P*>(static_cast<const E*>(in.data) + offset));
#pragma unroll
    for (int i = 0; i < kWidth; ++i) items[i] = p.item[i];
  }
};

// Elements of three inputs of a type known at compile time.
template <class E> struct TripleLoad {
  using Element = Triple<E>;
  static constexpr int kWidth = TypedLoad<E>::kWidth;
  __device__ static Element one(const Source& in, int64_t offset) {
    return {element(in.data, offset), element(in.more[0], offset), element(in.more[1], offset)};
  }
  template <int N>
  __device__ static void run(const Source& in, int64_t offset, int64_t stride, int64_t count, Element (&items)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (i < count) items[i] = one(in, offset + i * stride);
  }
  __device__ static void packed(const Source& in, int64_t offset, Element* items) {
    E parts[3][kWidth];
    const void* inputs[3] = {in.data, in.more[0], in.more[1]};
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      Source part = in;
      part.data = inputs[k];
      TypedLoad<E>::packed(part, offset, parts[k]);
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) items[i] = {parts[0][i], parts[1][i], parts[2][i]};
  }

 private:
  __device__ static E element(const void* data, int64_t offset) { return global(static_cast<const E*>(data))[offset]; }
};

// Elements of two inputs with strides of their own, of a type known at compile time.
template <class E> struct PairLoad {
  using Element = Pair<E>;
  static constexpr int kWidth = TypedLoad<E>::kWidth;
  // Whether there is an a at this position.
  __device__ static bool has_a(const ScanCall& call, int64_t position) { return position > 0 || !call.shifted; }
  // Positions first + i of a row, i < count, of which the first lies at these offsets; the rest is unspecified.
  template <int N>
  __device__ static void run(const ScanCall& call, int64_t b_offset, int64_t a_offset, int64_t first, int64_t count,
                             Element (&items)[N]) {
    const Layout& l = call.layout;
    const int64_t b_stride = l.reduced ? l.in[l.kept] : 0, a_stride = l.reduced ? call.more_strides[0][l.kept] : 0;
    const E* b = global(static_cast<const E*>(call.in.data)) + b_offset;
    const E* a = global(static_cast<const E*>(call.in.more[0])) + a_offset;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i < count) items[i].b = b[i * b_stride];
      if (i < count && has_a(call, first + i)) items[i].a = a[i * a_stride];
    }
  }
};

// Elements of any type, converted to the accumulator one by one.
template <class Acc> struct AnyLoad {
  using Element = Acc;
  static constexpr int kWidth = 1;
  __device__ static Acc one(const Source& in, int64_t offset) {
    return load_as<Acc>(in.dtype, global(in.data), offset, in.truth);
  }
  // As above. The type is looked at once, so that the loads are in flight together.
  template <int N>
  __device__ static void run(const Source& in, int64_t offset, int64_t stride, int64_t count, Acc (&items)[N]) {
    if (count <= 0) return;
#define TR_CASE(T) \
  case DtypeOf<T>::value: return run_of<T>(in, offset, stride, count, items);
    switch (in.dtype) { TR_FOR_EACH_TYPE(TR_CASE) }
#undef TR_CASE
  }
  __device__ static void packed(const Source& in, int64_t offset, Acc* items) { items[0] = one(in, offset); }

 private:
  template <class T, int N>
  __device__ static void run_of(const Source& in, int64_t offset, int64_t stride, int64_t count, Acc (&items)[N]) {
    const T* first = global(static_cast<const T*>(in.data)) + offset;
    T x[N];
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = first[(i < count ? i : 0) * stride];
#pragma unroll
    for (int i = 0; i < N; ++i) items[i] = in.truth ? Acc(is_nonzero(x[i])) : convert<Acc>(x[i]);
  }
};

// A group of 8 neighbours as 32-bit words: what loads and stores move. (As elements of 16 bits each in a register of
// its own, a compiler would take them apart as soon as they are loaded, and so wait there.)
template <class E> constexpr int kGroupWords = kGroup * int(sizeof(E)) / 4;

template <class E, int N>
__device__ __forceinline__ void unpack(const uint32_t (&w)[N * int(sizeof(E)) / 4], E (&x)[N]) {
  if constexpr (sizeof(E) >= 4) {
    memcpy(x, w, sizeof x);
  } else {
    using Bits = std::conditional_t<sizeof(E) == 2, uint16_t, uint8_t>;
    constexpr int kPer = 4 / int(sizeof(E));
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = bit_cast<E>(Bits(w[i / kPer] >> (i % kPer * 8 * int(sizeof(E)))));
  }
}

// Whether any of 8 results of scan S is NaN.
template <class S> __device__ __forceinline__ bool has_nan(const float (&v)[kGroup]) {
  bool nan = v[0] != v[0] || v[kGroup - 1] != v[kGroup - 1];  // enough if it stays, in whatever direction they lie
  if constexpr (!kNanStays<S>) {
#pragma unroll
    for (int i = 1; i < kGroup - 1; i += 2) nan |= (v[i] != v[i]) | (v[i + 1] != v[i + 1]);  // one comparison
  }
  return nan;
}

// Whether results of type V are rounded to T with less work where none is NaN: two at a time, or not at all.
#ifdef TR_PACKED_ROUNDING
template <class T, class V>
constexpr bool kLooksForNan = std::is_same<V, float>::value && is_float_type<T> && sizeof(T) <= 4;
template <class T> __device__ __forceinline__ uint32_t round_pair(float low, float high) {
  return std::is_same<T, BF16>::value ? pack_bf16(low, high) : pack_f16(low, high);
}
#else
template <class T, class V> constexpr bool kLooksForNan = false;
template <class T> uint32_t round_pair(float low, float high);
#endif

// Whether floats that are two in the last place off at most, as whole numbers, are rounded to the same T, of 16 bits.
template <class T> __device__ __forceinline__ bool rounds_alike(const float (&v)[kGroup]) {
  constexpr bool kWide = std::is_same<T, BF16>::value;
#ifdef TR_PACKED_MINIMA
  if constexpr (kWide) {  // as below, for two at a time
    uint32_t least = ~0u;
#pragma unroll
    for (int i = 0; i < kGroup; i += 2)
      least = least_halves(bit_cast<uint32_t>(v[i]), bit_cast<uint32_t>(v[i + 1]), 0x80028002u, least);
    return ((least & 0xffffu) >= 5) & (least >> 16 >= 5);
  }
#endif
  constexpr int kKept = kWide ? 16 : 19;  // 32 less the bits that are rounded off
  // F16 has fewer bits below 2^-14; up to 2^-26 all is rounded to 0. Twice the bits of these, from the lower one on.
  constexpr uint32_t kZeros = 2u * 0x32800000u + 1, kFewer = 2u * 0x38800000u - kZeros;
  uint32_t least = ~0u, place = ~0u;  // of those bits, from two before a tie on; of the magnitudes
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    const uint32_t bits = bit_cast<uint32_t>(v[i]), next = (bits << kKept) + 0x80000000u + (2u << kKept);
    least = next < least ? next : least;
    const uint32_t above = 2 * bits - kZeros;
    if constexpr (!kWide) place = above < place ? above : place;
  }
  return (least >= 5u << kKept) & (kWide || place >= kFewer);
}

// Whether near_results of scan S, where they round alike, are good enough for results of type O.
template <class S, class O> constexpr bool kNearly = kHasFastGroup<S> && is_float_type<O> && sizeof(O) == 2;

// 8 results of scan S, rounded once each. One look for NaNs serves all of them; kNoNan: there are none.
template <class T, class S, bool kNoNan = false, class V>
__device__ __forceinline__ void round_group(const V (&v)[kGroup], uint32_t (&w)[kGroupWords<T>]) {
  if constexpr (kLooksForNan<T, V>) {
    if (kNoNan || !has_nan<S>(v)) {
      if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) w[i] = bit_cast<uint32_t>(v[i]);
      } else {
#pragma unroll
        for (int i = 0; i < kGroup; i += 2) w[i / 2] = round_pair<T>(v[i], v[i + 1]);
      }
      return;
    }
  }
  if constexpr (sizeof(T) == 4) {  // word by word, so that no compiler selects between the addresses of two arrays
#pragma unroll
    for (int i = 0; i < kGroup; ++i) w[i] = bit_cast<uint32_t>(round_to<T>(v[i]));
  } else {
    T rounded[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) rounded[i] = round_to<T>(v[i]);
    memcpy(w, rounded, sizeof w);
  }
}

// The same of groups that have been rounded with kNoNan, where some results of theirs are NaN.
template <class T, int N> __device__ __forceinline__ void settle_nans(uint32_t (&w)[N]) {
  if constexpr (kLooksForNan<T, float>) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (sizeof(T) == 4) {
        w[i] = bit_cast<uint32_t>(round_to<T>(bit_cast<float>(w[i])));
      } else {
        constexpr uint32_t kInfinite = std::is_same<T, BF16>::value ? 0x7f80u : 0x7c00u,
                           kNan = kInfinite | (kInfinite >> 1 & ~kInfinite);
        const uint32_t low = (w[i] & 0x7fffu) > kInfinite ? kNan : w[i] & 0xffffu;
        const uint32_t high = (w[i] >> 16 & 0x7fffu) > kInfinite ? kNan : w[i] >> 16;
        w[i] = high << 16 | low;
      }
    }
  }
}

// What precedes a row.
template <class S, class Load> __device__ __forceinline__ typename S::Wide row_carry(const ScanCall& call,
                                                                                     int64_t row) {
  if constexpr (S::kInputs == 2)
    if (call.in.more[1]) {
      using E = decltype(Load::Element::b);
      const E h = global(static_cast<const E*>(call.in.more[1]))[row_offset(call.layout, call.more_strides[1], row)];
      return S::initial(convert<typename S::Result>(h));
    }
  return S::wide_absent();
}

// ---- orders ----------------------------------------------------------------------------------------------------------

// The pairwise tree over the values of `width` neighbouring lanes (a power of two); every one of them gets it.
template <class Op> __device__ __forceinline__ typename Op::Acc warp_tree(const Op& op, typename Op::Acc value,
                                                                          int width) {
  const int lane = lane_id();
  for (int d = 1; d < width; d <<= 1) {
    const typename Op::Acc other = shuffle(value, lane ^ d);
    value = lane & d ? op.combine(other, value) : op.combine(value, other);
  }
  return value;
}

// One of two values, word by word, so that no compiler selects between their addresses. (HIP's memcpy goes byte by
// byte, of which clang would make memory of the thread.)
template <class V> __device__ __forceinline__ V chosen(bool first, const V& a, const V& b) {
  uint32_t x[sizeof(V) / 4], y[sizeof(V) / 4];
  __builtin_memcpy(x, &a, sizeof a);
  __builtin_memcpy(y, &b, sizeof b);
#pragma unroll
  for (int i = 0; i < int(sizeof(V)) / 4; ++i) x[i] = first ? x[i] : y[i];
  V value;
  __builtin_memcpy(&value, x, sizeof value);
  return value;
}

// Levels d, 2d .. of the trees over the lanes, for kCount values at once: each level leaves half of them to a lane, so
// that in the end lane l has the value whose number is l / d modulo kCount. Lane order is reversed where `mirror`.
template <class S, int kCount, int d, class V, int N>
__device__ __forceinline__ V transposed_trees(V (&value)[N], int lane, bool mirror) {
  if constexpr (kCount == 1) {
    return value[0];
  } else {
    const bool upper = lane & d;
#pragma unroll
    for (int k = 0; k < kCount / 2; ++k) {
      const V even = value[2 * k], odd = value[2 * k + 1];  // values, so that nothing indexes the array
      const V kept = chosen(upper, odd, even), other = shuffle(chosen(upper, even, odd), lane ^ d);
      value[k] = upper != mirror ? S::combine(other, kept) : S::combine(kept, other);
    }
    return transposed_trees<S, kCount / 2, 2 * d>(value, lane, mirror);
  }
}
// Those that follow, from level d on to the last one: lane l then has the whole tree of the value l modulo d.
template <class S, int d, class V> __device__ __forceinline__ V last_levels(V value, int lane, bool mirror) {
#pragma unroll
  for (int e = d; e < kLanes; e *= 2) {
    const V other = shuffle(value, lane ^ e);
    value = bool(lane & e) != mirror ? S::combine(other, value) : S::combine(value, other);
  }
  return value;
}

// Sklansky's inclusive scan over `width` neighbouring lanes, of which this is number `lane`: at level d a lane with
// that bit adds, on its left, the value of the last lane of the lower half. Over whole warps, and in reverse, where
// `mirror` is 31.
template <class V, class Combine>
__device__ __forceinline__ V sklansky_levels(V value, int lane, int width, Combine combine, int mirror = 0) {
  for (int d = 1; d < width; d <<= 1) {
    const int last = (lane & ~(2 * d - 1)) + d - 1;
    const V left = shuffle(value, mirror ? last ^ mirror : lane_id() - lane + last);
    if (lane & d) value = combine(left, value);
  }
  return value;
}
// The same by scan S; without choices where it has such a way and all values allow it.
template <class S, class V> __device__ __forceinline__ V sklansky(V value, int lane, int width) {
  if constexpr (kHasFastJoin<S, V>) {
    const V run = sklansky_levels(value, lane, width, [](const V& l, const V& r) { return S::fast_join(l, r); });
    const uint32_t upto = ((2u << lane) - 1) << (lane_id() - lane);  // the lanes of this one's run
    const bool has_reset = (ballot(S::is_reset(value)) & upto) != 0;
    bool fast = S::allows_fast(value);
    fast &= S::is_settled(run, has_reset);
    if (!ballot(!fast)) return S::fast_end(run);
    TR_RARE_PATH;
  }
  return sklansky_levels(value, lane, width, [](const V& l, const V& r) { return S::combine(l, r); });
}
// Over a warp.
template <class S, class V> __device__ __forceinline__ V sklansky(V value) {
  return sklansky<S>(value, lane_id(), kLanes);
}

// The levels of K such scans at once, written out: left(value, d) is that of the last lane of the lower half.
template <class V, int K, class Left, class Join>
__device__ __forceinline__ void sklansky_levels(V (&value)[K], int lane, int width, Left left, Join join) {
#pragma unroll
  for (int d = 1; d < kLanes; d <<= 1) {
    if (d < width) {
#pragma unroll
      for (int k = 0; k < K; ++k) value[k] = join((lane & d) != 0, left(value[k], d), value[k]);
    }
  }
}
// Sklansky's scan for K values of number `lane` of each `width` lanes, of which `upto` are this one and those before
// it; without choices where the scan has such a way and all values allow it. kSelects: there are registers for levels
// without branches.
template <class S, bool kSelects = false, class V, int K, class Left>
__device__ __forceinline__ void sklansky(V (&value)[K], int lane, int width, uint32_t upto, int mirror, Left left) {
  V run[K];
#pragma unroll
  for (int k = 0; k < K; ++k) run[k] = value[k];
  sklansky_levels(run, lane, width, left, [](bool joins, const V& l, const V& r) {
    if constexpr (kHasFastJoin<S, V> && kSelects) return chosen(joins, S::fast_join(l, r), r);
    else if constexpr (kHasFastJoin<S, V>) return joins ? S::fast_join(l, r) : r;
    else return joins ? S::combine(l, r) : r;
  });
  if constexpr (kHasFastJoin<S, V>) {
    bool fast = true;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      fast &= S::allows_fast(value[k]);
      fast &= S::is_settled(run[k], (ballot(S::is_reset(value[k])) & upto) != 0);
    }
    if (ballot(!fast)) {
#pragma unroll
      for (int k = 0; k < K; ++k)
        run[k] =
            sklansky_levels(value[k], lane, width, [](const V& l, const V& r) { return S::combine(l, r); }, mirror);
    } else {
#pragma unroll
      for (int k = 0; k < K; ++k) run[k] = S::fast_end(run[k]);
    }
  }
#pragma unroll
  for (int k = 0; k < K; ++k) value[k] = run[k];
}
// The same for lane `lane` of the warp, of which power of two `width` neighbours are taken together.
template <class S, bool kSelects = false, class V, int K>
__device__ __forceinline__ void sklansky(V (&value)[K], int lane, int width, int mirror = 0) {
  const uint32_t upto = mirror ? ~0u << (lane ^ mirror) : ((2u << lane) - 1) & ~((1u << (lane & ~(width - 1))) - 1);
  sklansky<S, kSelects>(value, lane & (width - 1), width, upto, mirror,
                        [&](const V& v, int d) { return shuffle_within(v, mirror ? d : d - 1, 2 * d); });
}
// The same of any `width` neighbours.
template <class S, class V, int K>
__device__ __forceinline__ void sklansky_of_any(V (&value)[K], int lane, int width) {
  const int from = lane_id() - lane;
  sklansky<S>(value, lane, width, ((2u << lane) - 1) << from, 0,
              [&](const V& v, int d) { return shuffle(v, from + (lane & ~(2 * d - 1)) + d - 1); });
}

// combine(left, right), for results that are rounded to O. Where `fast`, with less to do, and so maybe not normal:
// for a prefix that fast_results or near_results takes, and nothing else. (float32 results have no registers for it.)
template <class S, class O> __device__ __forceinline__ typename S::Acc precede([[maybe_unused]] bool fast,
                                                                               const typename S::Acc& left,
                                                                               const typename S::Acc& right) {
  if constexpr (kNearly<S, O>) {
    if (fast) return S::fast_join(left, right);
    TR_RARE_PATH;
  }
  return S::combine(left, right);
}
// A near total as precede takes it.
template <class S, class O> __device__ __forceinline__ typename S::Acc near_total(typename S::Item product) {
  if constexpr (kNearly<S, O>) return S::of_near(product);
  else return S::fast_end(S::of_near(product));
}

// The results of a group, to be rounded to O; fast: fast_results serves it.
template <class O, class S>
__device__ __forceinline__ void group_results(const S& op, const typename S::Prefix& prefix,
                                              const typename S::Item (&items)[kGroup], [[maybe_unused]] bool fast,
                                              typename S::Result (&r)[kGroup]) {
  if constexpr (kHasFastGroup<S>) {
    if (fast) {
      if constexpr (kNearly<S, O>) {
        bool alike = op.near_results(prefix, items, r);
        alike &= rounds_alike<O>(r);
        if (alike) return;
        TR_RARE_PATH;
      }
      return op.fast_results(prefix, items, r);
    }
    TR_RARE_PATH;
  }
  op.results(prefix, items, r);
}

// left[k] = combine(left[k], right[k]); with less to do where the scan has such a way and a lane's values allow it.
template <class S, class V, int K> __device__ __forceinline__ void join(V (&left)[K], const V (&right)[K]) {
  bool fast = true;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    fast &= S::allows_fast(left[k]) & S::allows_fast(right[k]);
    fast &= S::is_settled(left[k], true);
  }
#pragma unroll
  for (int k = 0; k < K; ++k) left[k] = fast ? S::fast_combine(left[k], right[k]) : S::combine(left[k], right[k]);
}

}  // namespace torchreduce::gpu
