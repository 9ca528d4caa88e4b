// Rows of neighbouring elements that stay on chip between the looks: read once, written once.
//
// Serves: float32, and 16-bit floats where all inputs of a row start at the same place of a granule (held_rows.h).
// A warp has a leaf, or several rows that are short, in registers. The states of a row's leaves meet in shared memory,
// over a cluster of blocks where a row is longer than a block holds; or in device memory, between two launches.
// A lane's elements are in chunks of 8, one for each of the residues it stands for: of float32 those `lanes` apart,
// loaded one by one, so that rows may start anywhere; of 16-bit floats a granule. Where a leaf starts `before` elements
// into its first granule, residues are moved to their lanes before the tree; the elements at its end that share a
// granule's place with what comes before it lie in those first places of lane 0, and are added last. An output that
// starts elsewhere in its granule is made of granules of two neighbouring lanes.
// Of leaves whose data is calm (fused.h), which all lanes ask of each other, elements take fewer instructions.
// Shared memory: dynamic, of ops that keep terms the first chunks of each thread, and the states of a row's leaves.
#pragma once
#include "held_rows.h"
#include "kernels/common/gpu_rows.cuh"
#include "kernels/reduce/granule.cuh"
#include "states.cuh"

namespace torchreduce::gpu {

// What a lane has of a leaf.
struct Place {
  int lane, lanes;  // of those that share the leaf
  int before;       // granules: elements that come before the leaf in its first one
  int count;        // elements of the leaf
  bool whole;       // all lanes of the warp have all elements of the chunks that there are, in their order
  bool full;        // the same, but for those that lane 0 has first
};

// The greatest and the least elements of a lane; NaN if there is one.
struct Extremes { float greatest, least; };

// The value of the lane `d` from this one. kNumbers: by a number that is made again each time, which keeps more in
// step. H200, bfloat16 of 4096: softmax 0.278 ms with and 0.286 without, log_softmax 0.285 and 0.277.
template <bool kNumbers> __device__ __forceinline__ float opposite(float value, int d) {
  if constexpr (kNumbers) return shuffle(value, int(recomputed(threadIdx.x % unsigned(kLanes))) ^ d);
  else return shuffle_across(value, d);
}

// Of values of which it does not matter which come first, those of the lanes that share the leaf as one.
template <bool kPart, bool kNumbers, class Join>
__device__ __forceinline__ float over_lanes(const Place& p, float value, Join join) {
#pragma unroll
  for (int d = 1; d < kLanes; d *= 2)
    if (!kPart || d < p.lanes) value = join(value, opposite<kNumbers>(value, d));
  return value;
}

// The tree over kCount values of each lane, value k of which stands for number lane + lanes * k; every lane gets it. In
// each of the first steps a lane keeps half of what it has, and sends the rest.
template <bool kPart, bool kNumbers, int kCount>
__device__ __forceinline__ float tree_over_lanes(float (&value)[kCount], const Place& p) {
  const int lanes = kPart ? p.lanes : kLanes;
#pragma unroll
  for (int d = 1; d < kCount; d *= 2) {
    const bool meet = !kPart || d < lanes, upper = (p.lane & d) != 0;
#pragma unroll
    for (int k = 0; k < kCount / 2; ++k) {
      const int h = kCount / 2 / d;  // that are left of each half
      if (k < h) {
        if (meet) {
          const float sent = chosen(upper, value[k], value[h + k]), own = chosen(upper, value[h + k], value[k]);
          value[k] = own + opposite<kNumbers>(sent, d);
        } else {
          value[k] = value[2 * k] + value[2 * k + 1];
        }
      }
    }
  }
  float sum = value[0];
#pragma unroll
  for (int d = kCount; d < kLanes; d *= 2)
    if (!kPart || d < lanes) sum = sum + opposite<kNumbers>(sum, d);
#pragma unroll
  for (int d = (kCount < kLanes ? kCount : kLanes) / 2; d > 0; d /= 2)
    if (!kPart || d < lanes) sum = sum + opposite<kNumbers>(sum, d);
  return sum;
}

#if !defined(TR_CANONICAL_PAIRS)
__device__ __forceinline__ bool any_nan(const float (&v)[kGroup]) {
  bool nan = false;
#pragma unroll
  for (int i = 0; i < kGroup; i += 2) nan |= (v[i] != v[i]) | (v[i + 1] != v[i + 1]);  // one comparison
  return nan;
}
#endif

// ---- element by element -----------------------------------------------------------------------------------------------

template <class E, int kChunks, bool kPart> struct HeldWords {
  static constexpr bool kGranules = false;
  static constexpr int kSlots = kPart ? kChunks * kGroup : kGroup;  // residues of a lane
  static constexpr int kTogether = 1;                               // elements that are there if the first one is
  float x[kChunks * kGroup];
  __device__ static constexpr int slot(int c, int i) { return kPart ? c * kGroup + i : i; }

  __device__ static int lanes_of(const Place& p) { return kPart ? p.lanes : kLanes; }
  __device__ static int step(const Place& p, int k) { return lanes_of(p) * k; }  // to a lane's element k
  __device__ static int position(const Place& p, int c, int i) { return p.lane + step(p, c * kGroup + i); }
  __device__ static int own(const Place& p) {  // how many elements a lane has
    return int(unsigned(p.count - p.lane + lanes_of(p) - 1) / unsigned(lanes_of(p)));
  }
  // Whether all lanes have chunk c whole; whether any has an element of it.
  __device__ static bool is_whole(const Place& p, int c) { return step(p, (c + 1) * kGroup) <= p.count; }
  __device__ static bool has_chunk(const Place& p, int c) { return c == 0 || step(p, c * kGroup) < p.count; }
  __device__ static bool is_there(const Place& p, int c, int i) { return position(p, c, i) < p.count; }

  // Elements that are not there become `fill`.
  template <Stay kStay>
  __device__ __forceinline__ void load(const FusedRowsCall&, int, const E* from, const Place& p, bool wanted,
                                       float fill) {
    const E* const first = recomputed(from + p.lane);  // so that what is added to it is in the instructions
    const auto item = [&](int k) { return convert<float>(load_item<kStay>(first + step(p, k))); };
    if (kChunks == held_rows::kLeafChunks && wanted && p.whole) {
#pragma unroll
      for (int k = 0; k < kChunks * kGroup; ++k) x[k] = item(k);
      return;
    }
    const int have = wanted ? own(p) : 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (!has_chunk(p, c)) break;
      if (wanted && p.whole) {
#pragma unroll
        for (int k = c * kGroup; k < (c + 1) * kGroup; ++k) x[k] = item(k);
      } else {
#pragma unroll
        for (int k = c * kGroup; k < (c + 1) * kGroup; ++k) {
          x[k] = fill;
          if (k < have) x[k] = item(k);
        }
      }
    }
  }
  // The sums, rounded to E.
  __device__ __forceinline__ void add(const HeldWords& other, const Place& p) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (!has_chunk(p, c)) break;
#pragma unroll
      for (int k = c * kGroup; k < (c + 1) * kGroup; ++k) x[k] = convert<float>(round_to<E>(x[k] + other.x[k]));
    }
  }
  __device__ __forceinline__ void chunk(int c, float (&v)[kGroup]) const {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) v[i] = x[c * kGroup + i];
  }
  // Where a lane stores, of the leaf that starts at `to`. kFull: the place is. kNumbers: there is no NaN.
  template <bool kFull, bool kNumbers> struct Out {
    E* to;
    const Place& p;

    __device__ __forceinline__ Out(E* leaf, const Place& p) : to(recomputed(leaf + p.lane)), p(p) {}
    __device__ __forceinline__ void store(int c, const float (&v)[kGroup]) {
      const auto element = [&](int k) {
        if constexpr (kNumbers && std::is_same<E, float>::value) store_item(to + step(p, k), v[k % kGroup]);
        else store_item(to + step(p, k), round_to<E>(v[k % kGroup]));
      };
      if (kFull || is_whole(p, c)) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) element(c * kGroup + i);
      } else {
        const int have = own(p);
#pragma unroll
        for (int k = c * kGroup; k < (c + 1) * kGroup; ++k)
          if (k < have) element(k);
      }
    }
    __device__ __forceinline__ void finish() {}
  };
  // The same in 16-bit floats.
  template <bool kNumbers> struct ConvertedOut {
    uint16_t* to;
    const Place& p;
    bool bf16;

    __device__ __forceinline__ ConvertedOut(const FusedRowsCall& call, int64_t leaf, const Place& p)
        : to(recomputed(static_cast<uint16_t*>(call.out) + leaf + p.lane)), p(p), bf16(call.out_dtype == Dtype::BF16) {}
    __device__ __forceinline__ void store(int c, const float (&v)[kGroup]) {
      const int have = own(p);
#pragma unroll
      for (int k = c * kGroup; k < (c + 1) * kGroup; ++k)
        if (k < have)
          store_item(to + step(p, k), bf16 ? round_to<BF16>(v[k % kGroup]).bits : round_to<F16>(v[k % kGroup]).bits);
    }
    __device__ __forceinline__ void finish() {}
  };
  // The tree over residues; every lane gets it.
  template <bool kNumbers> __device__ __forceinline__ static float tree(float (&acc)[kSlots], const Place& p) {
    return tree_over_lanes<kPart, kNumbers>(acc, p);
  }
  __device__ __forceinline__ Extremes extremes(const Place& p) const {
    Extremes e{x[0], x[0]};
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (!has_chunk(p, c)) break;
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        e.greatest = greatest(e.greatest, x[c * kGroup + i]);
        e.least = -greatest(-e.least, -x[c * kGroup + i]);
      }
    }
    return e;
  }
  // Weights of the positions from `first` on, of type W: E or float.
  template <bool kFull, class W>
  __device__ __forceinline__ static void weights(const W* from, int64_t first, const Place& p, int c,
                                                 float (&v)[kGroup]) {
    const int have = own(p);
    const W* const w = recomputed(from + first + p.lane);
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      if (kFull || c * kGroup + i < have) v[i] = convert<float>(load_item<Stay::Long>(w + step(p, c * kGroup + i)));
  }
};

// ---- 16-bit floats ---------------------------------------------------------------------------------------------------

// The lesser of each half of two words of 16-bit floats; NaN of a NaN.
template <bool kBF16> __device__ __forceinline__ uint32_t packed_minima(uint32_t a, uint32_t b) {
#if defined(TR_FLOAT_MAXIMA) && !defined(TR_EMULATED)
  uint32_t m;
  if constexpr (kBF16) asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(m) : "r"(a), "r"(b));
  else asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(m) : "r"(a), "r"(b));
  return m;
#else
  constexpr uint32_t kSigns = 0x80008000u;
  return packed_maxima<kBF16>(a ^ kSigns, b ^ kSigns) ^ kSigns;
#endif
}

// kRuns: chunks of a lane that are of different residues.
template <class E, int kChunks, bool kPart, bool kAligned, int kRuns = kPart ? kChunks : 1> struct HeldGranules {
  static constexpr bool kGranules = true;
  static constexpr int kSlots = kRuns * kGroup, kTogether = kAligned ? kGroup : 1;
  static_assert(sizeof(E) == 2, "8 elements a granule");
  static_assert(kAligned || !kPart, "short rows that are not aligned go by words");
  // Of aligned rows, the first chunks: those that all lanes have, and those that are not asked whether any has.
  static constexpr bool kRow = !kPart && kChunks < held_rows::kLeafChunks, kHalf = kPart && kRuns < kChunks;
  static constexpr int kWhole = kRow ? kChunks - 1 : kHalf ? kRuns : 0;
  static constexpr int kSome = kRow ? kChunks : kPart ? kChunks / 2 + 1 : 1;
  Granule g[kChunks];
  __device__ static constexpr int slot(int c, int i) { return c % kRuns * kGroup + i; }

  __device__ static int lanes_of(const Place& p) { return kPart ? p.lanes : kLanes; }
  __device__ static int number(const Place& p, int c) { return p.lane + lanes_of(p) * c; }
  // The last elements of a leaf may lie in the first places of lane 0.
  __device__ static int position(const Place& p, int c, int i) {
    const int at = number(p, c) * kGroup + i - p.before;
    return !kAligned && c == 0 && at < 0 ? at + lanes_of(p) * kChunks * kGroup : at;
  }
  __device__ static bool is_whole(const Place& p, int c) {
    return (c > 0 || p.before == 0) && (c + 1) * kGroup * lanes_of(p) <= p.before + p.count;
  }
  __device__ static bool has_chunk(const Place& p, int c) {
    return c == 0 || (kAligned && c < kSome) || c * kGroup * lanes_of(p) < p.before + p.count;
  }
  // Of aligned rows, whether the lane has its granule of chunk c.
  __device__ static bool is_there(const Place& p, int c) { return c < kWhole || number(p, c) * kGroup < p.count; }
  __device__ static bool is_there(const Place& p, int c, int i) {
    return kAligned ? is_there(p, c) : position(p, c, i) < p.count;
  }

  // Elements that are not there become `fill`.
  template <Stay kStay>
  __device__ __forceinline__ void load(const FusedRowsCall& call, int input, const E* from, const Place& p, bool wanted,
                                       float fill) {
    const Granule absent = filled(fill);
    const int lanes = lanes_of(p), end = p.before + p.count;
    const int last = (end - 1) / kGroup;  // the granule with the last element
    const Granule* const first = granule_of(from);
    const auto inside = [&](int k) {
      return static_cast<const void*>(first + k) >= call.in[input] &&
             static_cast<const void*>(first + k + 1) <= call.end[input];
    };
    const Granule* const own = recomputed(first + p.lane);
    if (wanted && p.whole) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        if (kChunks != held_rows::kLeafChunks && !has_chunk(p, c)) break;
        load_if<kStay>(true, own + lanes * c, g[c]);
      }
      return;
    }
    if constexpr (kAligned) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        g[c] = absent;
        load_if<kStay>(wanted && is_there(p, c), own + lanes * c, g[c]);
      }
      return;
    }
    const int past = lanes * kChunks;  // the granule that has no lane of its own
    if (kChunks == held_rows::kLeafChunks && wanted && p.full && inside(0) && inside(past)) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) load_if<kStay>(true, own + lanes * c, g[c]);
      Granule wrapped = absent;
      load_if<kStay>(p.lane == 0, first + past, wrapped);
      if (p.lane == 0) mask<E>(g[0], p.before, kGroup, wrapped);
      return;
    }
    const bool any = wanted && p.count > 0;
    const bool ragged = p.before > 0 || end % kGroup > 0;
    const bool first_out = any && ragged && !inside(0), last_out = any && ragged && !inside(last);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (!has_chunk(p, c)) break;
      const int k = number(p, c);
      g[c] = absent;
      load_if<kStay>(any && k <= last && !(k == 0 && first_out) && !(k == last && last_out), own + lanes * c, g[c]);
    }
    if (!ballot(ragged)) return;
    // Of the granules at a leaf's ends: element by element where they reach out of the tensor.
    const auto edge = [&](int k, bool out, Granule& into) {
      if (out) {
        E x[kGroup];
        elements_of(absent, x);
#pragma unroll
        for (int i = 0; i < kGroup; ++i)
          if (k * kGroup + i >= p.before && k * kGroup + i < end) x[i] = reinterpret_cast<const E*>(first + k)[i];
        memcpy(&into, x, sizeof x);
      }
    };
    if (p.lane == 0) edge(0, first_out, g[0]);
    if (last > 0 && last < past && p.lane == last % lanes) {
      Granule end_granule = absent;
      edge(last, last_out, end_granule);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        if (!has_chunk(p, c)) break;
        if (number(p, c) == last) {
          if (last_out) g[c] = end_granule;
          mask<E>(g[c], 0, end - last * kGroup, absent);
        }
      }
    }
    if (p.lane == 0) {
      Granule wrapped = absent;
      if (last == past) {
        load_if<kStay>(any && !last_out, first + past, wrapped);
        edge(past, last_out, wrapped);
        mask<E>(wrapped, 0, end - past * kGroup, absent);
      }
      mask<E>(g[0], p.before, last == 0 ? end : kGroup, wrapped);
    }
  }
  __device__ __forceinline__ void add(const HeldGranules& other, const Place& p) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (!has_chunk(p, c)) break;
      float v[kGroup], w[kGroup];
      chunk(c, v);
      other.chunk(c, w);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) v[i] = v[i] + w[i];
      g[c] = rounded<false>(v);
    }
  }
  __device__ __forceinline__ void chunk(int c, float (&v)[kGroup]) const {
    E x[kGroup];
    elements_of(g[c], x);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) v[i] = to_float(x[i]);
  }
  // The elements of a granule, rounded; kNumbers: there is no NaN.
  template <bool kNumbers> __device__ __forceinline__ static Granule rounded(const float (&v)[kGroup]) {
    constexpr bool kBF16 = std::is_same<E, BF16>::value;
    Granule g;
#if !defined(TR_CANONICAL_PAIRS)
    if (!kNumbers && any_nan(v)) {
      E x[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) x[i] = round_to<E>(v[i]);
      memcpy(&g, x, sizeof g);
      return g;
    }
#endif
#pragma unroll
    for (int i = 0; i < kGroup; i += 2) {
      g.item[i / 2] = kBF16 ? pack_bf16(v[i], v[i + 1]) : pack_f16(v[i], v[i + 1]);
#if defined(TR_CANONICAL_PAIRS)
      if (!kNumbers) g.item[i / 2] = canonical_pair<kBF16>(g.item[i / 2]);
#endif
    }
    return g;
  }
  __device__ __forceinline__ static E element(const Granule& g, int i) {
    return bit_cast<E>(uint16_t(g.item[i / 2] >> (i % 2 * 16)));
  }

  // Where a lane stores, of the leaf that starts at `to`. A granule that is not the leaf's alone waits to be stored
  // element by element: a lane has one besides its first at most.
  template <bool kFull, bool kNumbers> struct Out {
    E* to;  // the lane's first position
    const Place& p;
    Granule rest;
    int rest_at = -1;

    __device__ __forceinline__ Out(E* leaf, const Place& p)
        : to(recomputed(leaf + (p.lane * kGroup - p.before))), p(p) {}
    __device__ __forceinline__ void store(int c, const float (&v)[kGroup]) {
      const Granule g = rounded<kNumbers>(v);
      const int first = p.lane * kGroup - p.before, at = number(p, c) * kGroup - p.before;
      if (kAligned ? is_there(p, c) : (kFull && c > 0) || (at >= 0 && at + kGroup <= p.count)) {
        store_item(reinterpret_cast<Granule*>(to) + lanes_of(p) * c, g);
      } else if (kAligned) {
        return;
      } else if (c > 0) {
        if (at >= p.count) return;
        rest = g;
        rest_at = at;
      } else {
#pragma unroll
        for (int i = 0; i < kGroup; ++i)
          if (position(p, c, i) < p.count) to[position(p, c, i) - first] = element(g, i);
      }
    }
    __device__ __forceinline__ void finish() {
      if constexpr (!kFull) {
        if (rest_at < 0) return;
#pragma unroll
        for (int i = 0; i < kGroup; ++i)
          if (rest_at + i < p.count) to[rest_at + i - (p.lane * kGroup - p.before)] = element(rest, i);
      }
    }
  };

  // The same in float32, of whole granules.
  template <bool kNumbers> struct ConvertedOut {
    Granule* to;
    const Place& p;

    __device__ __forceinline__ ConvertedOut(const FusedRowsCall& call, int64_t leaf, const Place& p)
        : to(recomputed(reinterpret_cast<Granule*>(static_cast<float*>(call.out) + leaf) + 2 * p.lane)), p(p) {}
    __device__ __forceinline__ void store(int c, const float (&v)[kGroup]) {
      if (number(p, c) * kGroup >= p.count) return;
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        Granule g;
#pragma unroll
        for (int i = 0; i < 4; ++i) g.item[i] = bit_cast<uint32_t>(kNumbers ? v[4 * k + i] : canonical(v[4 * k + i]));
        store_item(to + 2 * lanes_of(p) * c + k, g);
      }
    }
    __device__ __forceinline__ void finish() {}
  };

  // The same of a leaf that starts elsewhere in its granule than the input's does: a lane's granule of the output is
  // the end of the granule before its own and the start of its own. What is left at the leaf's ends waits.
  template <bool kNumbers> struct ShiftedOut {
    E* leaf;
    const Place& p;
    int by;          // elements that a granule takes of the one before
    int begin, end;  // of the whole granules of the output
    Granule before{}, rest;
    int rest_at = -1;

    __device__ __forceinline__ ShiftedOut(E* leaf, const Place& p) : leaf(leaf), p(p) {
      const int inside = elements_before(leaf), whole = kChunks * kGroup * kLanes - p.before;
      by = (inside - p.before) & (kGroup - 1);
      begin = (kGroup - inside) & (kGroup - 1);
      end = p.count < whole ? p.count : whole;
      end = end < begin ? begin : begin + (end - begin) / kGroup * kGroup;
    }
    __device__ __forceinline__ bool is_left(int at) const { return (at < begin || at >= end) && at < p.count; }
    __device__ __forceinline__ void store(int c, const float (&v)[kGroup]) {
      const Granule g = rounded<kNumbers>(v);
      uint32_t w[kGroup];  // the granule before, and this one
#pragma unroll
      for (int i = 0; i < kGroup / 2; ++i) {
        const uint32_t other = shuffle(g.item[i], (p.lane + kLanes - 1) % kLanes);
        w[i] = p.lane == 0 ? before.item[i] : other;
        w[kGroup / 2 + i] = g.item[i];
        before.item[i] = other;
      }
      const int from = kGroup - by;  // 1 to 7
#pragma unroll
      for (int i = 0; i < 6; ++i) w[i] = (from & 4) != 0 ? w[i + 2] : w[i];
#pragma unroll
      for (int i = 0; i < 5; ++i) w[i] = (from & 2) != 0 ? w[i + 1] : w[i];
      Granule out;
#pragma unroll
      for (int i = 0; i < kGroup / 2; ++i) out.item[i] = funnel_right(w[i], w[i + 1], (from & 1) * 16);
      const int own = number(p, c) * kGroup - p.before, at = own - by;
      if (at >= begin && at < end) store_item(reinterpret_cast<Granule*>(leaf + at), out);
      if (c == 0) {
        if (own < begin || own + kGroup > end)
#pragma unroll
          for (int i = 0; i < kGroup; ++i)
            if (is_left(position(p, 0, i))) leaf[position(p, 0, i)] = element(g, i);
      } else if (own + kGroup > end && own < p.count) {
        rest = g;
        rest_at = own;
      }
    }
    __device__ __forceinline__ void finish() {
      if (rest_at < 0) return;
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        if (is_left(rest_at + i)) leaf[rest_at + i] = element(rest, i);
    }
  };
  // Residues go to the lane, and the slot, that stand for them.
  template <int kBy> __device__ __forceinline__ static void move_down(float (&acc)[kSlots], bool moves,
                                                                      const Place& p) {
    float moved[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      moved[i] = i + kBy < kGroup ? acc[(i + kBy) % kGroup] : shuffle(acc[(i + kBy) % kGroup], (p.lane + 1) % kLanes);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) acc[i] = chosen(moves, moved[i], acc[i]);
  }
  template <bool kNumbers> __device__ __forceinline__ static float tree(float (&acc)[kSlots], const Place& p) {
    if constexpr (!kAligned) {
      if (ballot(p.before > 0)) {
        move_down<4>(acc, (p.before & 4) != 0, p);
        move_down<2>(acc, (p.before & 2) != 0, p);
        move_down<1>(acc, (p.before & 1) != 0, p);
      }
    }
    float run[kSlots / kGroup];
#pragma unroll
    for (int r = 0; r < kSlots / kGroup; ++r) {
      float* const a = acc + r * kGroup;
      run[r] = ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7]));
    }
    return tree_over_lanes<kPart, kNumbers>(run, p);
  }
  __device__ __forceinline__ Extremes extremes(const Place& p) const {
    constexpr bool kBF16 = std::is_same<E, BF16>::value;
    uint32_t most = g[0].item[0], least = most;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (!has_chunk(p, c)) break;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        most = packed_maxima<kBF16>(most, g[c].item[i]);
        least = packed_minima<kBF16>(least, g[c].item[i]);
      }
    }
    return {to_float(E{uint16_t(packed_maxima<kBF16>(most, most >> 16))}),
            to_float(E{uint16_t(packed_minima<kBF16>(least, least >> 16))})};
  }
  // Rows are whole granules.
  template <bool kFull, class W>
  __device__ __forceinline__ static void weights(const W* from, int64_t first, const Place& p, int c,
                                                 float (&v)[kGroup]) {
    const int at = number(p, c) * kGroup;
    if (kAligned ? !is_there(p, c) : !kFull && at >= p.count) return;
    if constexpr (std::is_same<W, float>::value) {
      using Four = Packed<float, 4>;
      const Four* const w = reinterpret_cast<const Four*>(from + first + at);
      const Four a = load_wide(w), b = load_wide(w + 1);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        v[i] = a.item[i];
        v[i + 4] = b.item[i];
      }
    } else {
      E x[kGroup];
      elements_of(load_wide(reinterpret_cast<const Granule*>(from + first + at)), x);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) v[i] = to_float(x[i]);
    }
  }

 private:
  __device__ static Granule filled(float x) {
    const uint32_t bits = round_to<E>(x).bits;
    Granule g;
#pragma unroll
    for (uint32_t& w : g.item) w = bits << 16 | bits;
    return g;
  }
};
// ---- float32 by granules -----------------------------------------------------------------------------------------------

// Rows of whole granules, in all operands. A chunk is two of them, of 4 elements each.
template <class E, int kChunks, bool kPart> struct HeldQuads {
  static_assert(sizeof(E) == 4, "4 elements a granule");
  static constexpr bool kGranules = false;  // leaves start with one
  static constexpr int kSlots = kPart ? kChunks * kGroup : kGroup, kQuad = 4, kTogether = kQuad;
  Granule g[kChunks * 2];
  __device__ static constexpr int slot(int c, int i) { return kPart ? c * kGroup + i : i; }

  __device__ static int lanes_of(const Place& p) { return kPart ? p.lanes : kLanes; }
  __device__ static int number(const Place& p, int k) { return p.lane + lanes_of(p) * k; }  // of a lane's granule k
  __device__ static int position(const Place& p, int c, int i) {
    return number(p, 2 * c + i / kQuad) * kQuad + i % kQuad;
  }
  __device__ static bool is_whole(const Place& p, int c) { return (c + 1) * kGroup * lanes_of(p) <= p.count; }
  __device__ static bool has_chunk(const Place& p, int c) { return c == 0 || c * kGroup * lanes_of(p) < p.count; }
  __device__ static bool is_there(const Place& p, int c, int i) {
    return number(p, 2 * c + i / kQuad) * kQuad < p.count;
  }

  template <Stay kStay>
  __device__ __forceinline__ void load(const FusedRowsCall&, int, const E* from, const Place& p, bool wanted,
                                       float fill) {
    const Granule* const own = recomputed(reinterpret_cast<const Granule*>(from) + p.lane);
    if (wanted && p.whole) {
#pragma unroll
      for (int k = 0; k < kChunks * 2; ++k) {
        if (kChunks != held_rows::kLeafChunks && !has_chunk(p, k / 2)) break;
        g[k] = load_item<kStay>(own + lanes_of(p) * k);
      }
      return;
    }
#pragma unroll
    for (int k = 0; k < kChunks * 2; ++k) {
      if (!has_chunk(p, k / 2)) break;
#pragma unroll
      for (uint32_t& w : g[k].item) w = bit_cast<uint32_t>(fill);
      load_if<kStay>(wanted && number(p, k) * kQuad < p.count, own + lanes_of(p) * k, g[k]);
    }
  }
  __device__ __forceinline__ void add(const HeldQuads& other, const Place& p) {
#pragma unroll
    for (int k = 0; k < kChunks * 2; ++k) {
      if (!has_chunk(p, k / 2)) break;
#pragma unroll
      for (int i = 0; i < kQuad; ++i)
        g[k].item[i] = bit_cast<uint32_t>(bit_cast<float>(g[k].item[i]) + bit_cast<float>(other.g[k].item[i]));
    }
  }
  __device__ __forceinline__ void chunk(int c, float (&v)[kGroup]) const {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) v[i] = bit_cast<float>(g[2 * c + i / kQuad].item[i % kQuad]);
  }
  template <bool kFull, bool kNumbers> struct Out {
    Granule* to;
    const Place& p;

    __device__ __forceinline__ Out(E* leaf, const Place& p)
        : to(recomputed(reinterpret_cast<Granule*>(leaf) + p.lane)), p(p) {}
    __device__ __forceinline__ void store(int c, const float (&v)[kGroup]) {
#pragma unroll
      for (int k = 2 * c; k < 2 * c + 2; ++k) {
        if (!kFull && number(p, k) * kQuad >= p.count) continue;
        Granule g;
#pragma unroll
        for (int i = 0; i < kQuad; ++i) {
          const float y = v[(k % 2) * kQuad + i];
          g.item[i] = bit_cast<uint32_t>(kNumbers ? y : canonical(y));
        }
        store_item(to + lanes_of(p) * k, g);
      }
    }
    __device__ __forceinline__ void finish() {}
  };
  // The same in 16-bit floats.
  template <bool kNumbers> struct ConvertedOut {
    using Half = Packed<uint32_t, 2>;
    Half* to;
    const Place& p;
    bool bf16;

    __device__ __forceinline__ ConvertedOut(const FusedRowsCall& call, int64_t leaf, const Place& p)
        : to(recomputed(reinterpret_cast<Half*>(static_cast<uint16_t*>(call.out) + leaf) + p.lane)),
          p(p),
          bf16(call.out_dtype == Dtype::BF16) {}
    __device__ __forceinline__ void store(int c, const float (&v)[kGroup]) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        if (number(p, 2 * c + k) * kQuad >= p.count) continue;
        Half h;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float a = v[k * kQuad + 2 * i], b = v[k * kQuad + 2 * i + 1];
          h.item[i] = bf16 ? uint32_t(round_to<BF16>(b).bits) << 16 | round_to<BF16>(a).bits
                           : uint32_t(round_to<F16>(b).bits) << 16 | round_to<F16>(a).bits;
        }
        store_wide(to + lanes_of(p) * (2 * c + k), h);
      }
    }
    __device__ __forceinline__ void finish() {}
  };
  template <bool kNumbers> __device__ __forceinline__ static float tree(float (&acc)[kSlots], const Place& p) {
    float run[kSlots / kQuad];
#pragma unroll
    for (int r = 0; r < kSlots / kQuad; ++r) {
      float* const a = acc + r * kQuad;
      run[r] = (a[0] + a[1]) + (a[2] + a[3]);
    }
    return tree_over_lanes<kPart, kNumbers>(run, p);
  }
  __device__ __forceinline__ Extremes extremes(const Place& p) const {
    float v[kGroup];
    chunk(0, v);
    Extremes e{v[0], v[0]};
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (!has_chunk(p, c)) break;
      chunk(c, v);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        e.greatest = greatest(e.greatest, v[i]);
        e.least = -greatest(-e.least, -v[i]);
      }
    }
    return e;
  }
  template <bool kFull, class W>
  __device__ __forceinline__ static void weights(const W* from, int64_t first, const Place& p, int c,
                                                 float (&v)[kGroup]) {
    const Granule* const w = recomputed(reinterpret_cast<const Granule*>(from + first) + p.lane);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if (!kFull && number(p, 2 * c + k) * kQuad >= p.count) continue;
      const Granule g = load_wide(w + lanes_of(p) * (2 * c + k));
#pragma unroll
      for (int i = 0; i < kQuad; ++i) v[k * kQuad + i] = bit_cast<float>(g.item[i]);
    }
  }
};

template <class E, int kChunks, held_rows::Form kForm>
using HeldByGranules =
    std::conditional_t<sizeof(E) == 2,
                       HeldGranules<E, kChunks, held_rows::is_short(kForm), held_rows::is_aligned(2, kForm),
                                    held_rows::runs(kChunks, kForm)>,
                       HeldQuads<E, kChunks, held_rows::is_short(kForm)>>;
template <class E, int kChunks, held_rows::Form kForm>
using Held = std::conditional_t<held_rows::by_granules(kForm), HeldByGranules<E, kChunks, kForm>,
                                HeldWords<E, kChunks, held_rows::is_short(kForm)>>;

// ---- where leaves meet -------------------------------------------------------------------------------------------------

// In dynamic shared memory (held_rows::meeting_bytes), at the same place in all blocks of a cluster.
template <class State> struct Meeting {
  struct alignas(8) Slot { State state; };
  Slot *leaf, *tree;  // for each leaf, and for each two of them
  Barrier* arrived;

  __device__ __forceinline__ Meeting(char* memory, int leaves, Barrier* arrived)
      : leaf(reinterpret_cast<Slot*>(memory)), tree(leaf + leaves), arrived(arrived) {}

  // Of clusters, before anything that takes time.
  __device__ __forceinline__ void begin([[maybe_unused]] const HeldRowsShape& shape) {
#ifdef TR_CLUSTERS
    if (threadIdx.x == 0) {
      barrier_init(arrived, 1);
      barriers_made();
      barrier_expect(arrived, uint32_t(shape.cluster * (int(blockDim.x) / kLanes) * int(sizeof(Slot))));
    }
    cluster_arrive();
#endif
  }
  // Brings the states of a row's leaves together, of which each warp has one.
  __device__ __forceinline__ void meet([[maybe_unused]] const HeldRowsShape& shape, int number, const State& own) {
#ifdef TR_CLUSTERS
    if (shape.cluster > 1) {
      cluster_wait();
      if (lane_id() < shape.cluster) put(&leaf[number], arrived, Slot{own}, lane_id());
      barrier_wait(arrived, 0);
      if (shape.leaves > kLanes) __syncthreads();
      return;
    }
#endif
    if (lane_id() == 0) leaf[number].state = own;
    __syncthreads();
  }
  // The same of states in memory.
  __device__ __forceinline__ void recall(const State* states, int leaves) {
    for (int i = threadIdx.x; i < leaves; i += blockDim.x) leaf[i].state = states[i];
    __syncthreads();
  }

  // The state of the row, from those of its leaves, for every lane.
  template <class Op> __device__ __forceinline__ State total(int leaves) {
    if constexpr (Op::kCalm) {
      constexpr int kFew = 8;
      State all = Op::none();
      const auto state = [&](int i) { return leaf[i].state; };
      if (leaves <= kFew) {
        if (powers_tree<1>(leaves, state, all)) return all;
      } else {  // one warp for all, since there are others that can go on meanwhile
        if (threadIdx.x < unsigned(kLanes)) {
          if (leaves <= kLanes) powers_tree<1>(leaves, state, all);
          else powers_tree<held_rows::kMostLeaves / kLanes>(leaves, state, all);
          if (threadIdx.x == 0) tree[0].state = all;
        }
        __syncthreads();
        all = tree[0].state;
        if (all.n != Exponential<float>::kFar) return all;
        __syncthreads();
      }
    }
    return merged<Op>(leaves);
  }

 private:
  template <class Op> __device__ __forceinline__ State merged(int leaves) {
    int count = leaves;
    Slot* from = leaf;
#pragma unroll 1
    for (; count > kLanes; count = (count + 1) / 2) {
      Slot* const to = from == leaf ? tree : leaf;
#pragma unroll 1
      for (int i = threadIdx.x; 2 * i < count; i += blockDim.x) {
        const State first = from[2 * i].state;
        State both = first;
        if (2 * i + 1 < count) both = Op::merge(first, State(from[2 * i + 1].state));
        to[i].state = both;
      }
      __syncthreads();
      from = to;
    }
    return lanes_tree<Op>(count, [&](int i) { return from[i].state; });
  }
};

// ---- the kernel --------------------------------------------------------------------------------------------------------

// Registers of a lane, by the threads that a multiprocessor is to have room for.
template <class Op, class E, int kChunks, held_rows::Form kForm> constexpr int kHeldThreads =
    held_rows::threads(kFacts<Op>, int(sizeof(E)), kChunks, kForm);
template <class Op, class E, int kChunks> constexpr int kSharedTerms =
    Op::kTerm ? held_rows::shared_terms(int(sizeof(E)), kChunks) : 0;

// What a warp does with its leaf, or with its rows where they are short.
template <class Op, class E, int kChunks, held_rows::Form kForm> struct HeldLeaf {
  using F = float;
  using H = Held<E, kChunks, kForm>;
  using State = typename Op::State;
  static constexpr int kInputs = Op::kInputs, kSums = Op::kSums, kAway = kSharedTerms<Op, E, kChunks>;
  using Four = Packed<float, 4>;
  static constexpr bool kPartWarps = held_rows::is_short(kForm);
  static constexpr bool kAligned = held_rows::is_aligned(int(sizeof(E)), kForm);
  static constexpr bool kConverts = Op::kMaps && held_rows::may_convert(kFacts<Op>, int(sizeof(E))) &&
                                    (sizeof(E) == 4 || held_rows::by_granules(kForm));
  static constexpr bool kNumbers = Op::kTerm && sizeof(E) == 2 && kChunks == held_rows::kLeafChunks;  // opposite()

  static constexpr bool kWeighs = Op::kWeights && kInputs > 1;       // sums are of elements by their weights
  static constexpr bool kMeets = kChunks == held_rows::kLeafChunks;  // leaves of a row
  // After the looks, so that no register keeps it.
  static constexpr bool kFindsAgain =
      kMeets && !Op::kTerm && (Op::kMaps || kSums > 1 || !std::is_empty_v<typename Op::Given>);

  const FusedRowsCall& call;
  Place p;
  int64_t first;  // the leaf's position in its row
  bool skips;
  H held[kInputs];
  float kept[Op::kTerm ? (kChunks - kAway) * kGroup : 1];  // terms
  Four* away = nullptr;                                    // those of the first chunks

  __device__ __forceinline__ explicit HeldLeaf(const FusedRowsCall& call) : call(call) {
    if constexpr (kAway > 0) {
      TR_DYNAMIC_SHARED(dynamic, 16);
      away = reinterpret_cast<Four*>(dynamic) + int(threadIdx.x) / kLanes * (2 * kAway * kLanes) + lane_id();
    }
  }

  __device__ static int away_bytes() { return kAway * kGroup * int(sizeof(F)) * int(blockDim.x); }

  // Which leaf of which row this warp of block number `block` has.
  struct Where {
    int64_t row;
    int number;  // of the leaf
    bool there;  // else the last row stands for it
    FusedStart start;
  };
  __device__ static bool is_alone(const HeldRowsShape& shape) {  // leaves are rows
    return !kMeets || shape.leaves == 1;
  }
  __device__ __forceinline__ Where find(const HeldRowsShape& shape, uint32_t block) {
    const unsigned warp = threadIdx.x / unsigned(kLanes), warps = blockDim.x / unsigned(kLanes);
    Where at{};
    p.lanes = kForm == held_rows::Form::HalfWarps ? 1 << held_rows::kLogHalfLanes : kPartWarps ? shape.lanes() : kLanes;
    p.lane = int(threadIdx.x) & (p.lanes - 1);
    if (is_alone(shape)) {
      at.row = (int64_t(block) * blockDim.x + threadIdx.x) >> shape.log_lanes;
    } else {
      uint32_t row = block, part = 0;
      if (shape.splits > 1) {
        row = block / uint32_t(shape.splits);
        part = block - row * uint32_t(shape.splits);
      }
      at.row = row;
      at.number = int(part * warps + warp);
    }
    at.there = at.row < call.rows;
    if (!at.there) at.row = call.rows - 1;
    at.start = call.start(at.row);
    first = int64_t(at.number) * kLeaf;
    const int64_t rest = call.length - first;
    p.count = kAligned && !kMeets ? int(call.length) : int(rest < 0 ? 0 : rest < kLeaf ? rest : kLeaf);
    p.before = 0;
    if constexpr (kAligned) {
      p.whole = kMeets && p.count == kLeaf;
      p.full = true;
      return at;
    }
    if constexpr (H::kGranules) p.before = elements_before(static_cast<const E*>(call.in[0]) + at.start.in[0] + first);
    p.whole = p.before == 0 && p.count > 0;
    if constexpr (kChunks == held_rows::kLeafChunks) {
      p.full = p.count == kLeaf;
      p.whole &= p.full;
    } else {
      p.whole &= p.count % (p.lanes * kGroup) == 0;
      p.full = p.whole;
    }
    return at;
  }
  __device__ __forceinline__ void load(const FusedStart& start, bool wanted) {
    skips = !wanted;
#pragma unroll
    for (int k = 0; k < kInputs; ++k)
      held[k].template load<Op::kMaps ? Stay::Long : Stay::Short>(
          call, k, static_cast<const E*>(call.in[k]) + start.in[k] + first, p, wanted, Op::fill(k));
    if constexpr (Op::kAdds) {
      H other;
      other.template load<Stay::Long>(call, 1, static_cast<const E*>(call.in[1]) + start.in[1] + first, p, wanted,
                                      F(-0.0));
      held[0].add(other, p);
    }
  }

  __device__ __forceinline__ void elements(int c, float (&v)[kInputs][kGroup]) const {
#pragma unroll
    for (int k = 0; k < kInputs; ++k) held[k].chunk(c, v[k]);
  }
  // kFull: the place is, or it has all that there are chunks for. W: the weights' type, of which there are; or void,
  // where they may be missing.
  template <bool kFull, class W> __device__ __forceinline__ void weights(const void* w, F missing, int c,
                                                                         float (&v)[kGroup]) const {
    if constexpr (!std::is_void_v<W>) {
      H::template weights<kFull>(static_cast<const W*>(w), first, p, c, v);
    } else {
      if (!kFull || !w)
#pragma unroll
        for (int i = 0; i < kGroup; ++i) v[i] = missing;
      if (!w) return;
      if (sizeof(E) == 2 && call.weight_dtype == Dtype::F32) weights<kFull, F>(w, missing, c, v);
      else weights<kFull, E>(w, missing, c, v);
    }
  }
  __device__ __forceinline__ void keep(int c, int i, float term) {
    if (c >= kAway) kept[(c - kAway) * kGroup + i] = term;
    else away[(2 * c + i / 4) * kLanes].item[i % 4] = term;
  }
  __device__ __forceinline__ void terms(int c, float (&v)[kGroup]) const {
    if (c >= kAway) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) v[i] = kept[(c < kAway ? 0 : c - kAway) * kGroup + i];
    } else {
      const Four low = away[2 * c * kLanes], high = away[(2 * c + 1) * kLanes];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        v[i] = low.item[i];
        v[4 + i] = high.item[i];
      }
    }
  }

  // Calls take(chunk, i, x, weight, whether it is there) for each element; those of a residue in their order. Of ops
  // that have elements to fill in, and where kAll, all are there. kBrief: in less code, where it matters little how
  // long it takes.
  template <bool kAll, bool kBrief = false, class Take, int kCount>
  __device__ __forceinline__ void each(Take take, F (&sums)[kCount][H::kSlots]) const {
    constexpr bool kLate = !kAll && H::kGranules && !kAligned && H::kSlots == kGroup;  // wrapped elements come last
    const int late = kLate && p.lane == 0 ? p.before : 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (!(kAll && kChunks == held_rows::kLeafChunks) && !H::has_chunk(p, c)) break;
      float v[kInputs][kGroup], w[kGroup];
      elements(c, v);
      if constexpr (kWeighs) weights<kAll, void>(call.weight, F(1), c, w);
      const auto elements_where = [&](auto is_there) {
#pragma unroll
        for (int begin = 0; begin < kGroup; begin += H::kTogether) {
          const bool there = is_there(begin);
          if (H::kTogether > 1 && !there) continue;
#pragma unroll
          for (int i = begin; i < begin + H::kTogether; ++i) {
            F x[kInputs];
#pragma unroll
            for (int k = 0; k < kInputs; ++k) x[k] = v[k][i];
            take(c, i, x, kWeighs ? w[i] : F(1), there);
          }
        }
      };
      constexpr bool kAsks = kChunks == held_rows::kLeafChunks && !kAligned && !kBrief;
      if (Op::kFills || kAll || (kAsks && H::is_whole(p, c) && !skips)) {
        elements_where([&](int i) { return !kLate || c > 0 || i >= late; });
      } else {
        elements_where([&](int i) { return H::is_there(p, c, i) && (c > 0 || i >= late) && !skips; });
      }
    }
    if constexpr (kLate && Op::kFirst == First::Greatest && !Op::kTerm) {
      if (p.before > 0) late_by_lanes(take, sums);
    } else if constexpr (kLate) {
      if (late > 0) {
        float v[kInputs][kGroup];
        if constexpr (Op::kTerm) terms(0, v[0]);
        else elements(0, v);
#pragma unroll
        for (int i = 0; i < kGroup - 1; ++i) {
          if constexpr (Op::kTerm) {
            if (i < late) sums[0][i] = sums[0][i] + v[0][i];
          } else {
            F x[kInputs];
#pragma unroll
            for (int k = 0; k < kInputs; ++k) x[k] = v[k][i];
            take(0, i, x, F(1), i < late && H::position(p, 0, i) < p.count && !skips);
          }
        }
      }
    }
  }
  // The wrapped elements of lane 0, of which lane i has number i meanwhile: exponentials take longer than to hand sums
  // there and back.
  template <class Take, int kCount>
  __device__ __forceinline__ void late_by_lanes(Take take, F (&sums)[kCount][H::kSlots]) const {
    F v[kInputs][kGroup], x[kInputs], first[kCount], own[kCount];
    elements(0, v);
    const auto of_lane = [&](const F(&values)[kGroup]) {  // of lane 0's, number `lane`
      F value = F(0);
#pragma unroll
      for (int i = 0; i < kGroup - 1; ++i) value = chosen(p.lane == i, shuffle(values[i], 0), value);
      return value;
    };
#pragma unroll
    for (int k = 0; k < kInputs; ++k) x[k] = of_lane(v[k]);
#pragma unroll
    for (int s = 0; s < kCount; ++s) {
      first[s] = sums[s][0];
      sums[s][0] = of_lane(sums[s]);
    }
    take(0, 0, x, F(1), p.lane < p.before && kLanes * kChunks * kGroup - p.before + p.lane < p.count && !skips);
#pragma unroll
    for (int s = 0; s < kCount; ++s) {
      own[s] = sums[s][0];
      sums[s][0] = first[s];
#pragma unroll
      for (int i = 0; i < kGroup - 1; ++i)
        sums[s][i] = chosen(p.lane == 0 && i < p.before, shuffle(own[s], i), sums[s][i]);
    }
  }
  // The same where whether the place is whole is known only now.
  template <bool kBrief, class Take, int kCount>
  __device__ __forceinline__ void each_there(Take take, F (&sums)[kCount][H::kSlots]) const {
    if constexpr (!Op::kFills && !kBrief) {
      if (p.whole && !skips) return each<true>(take, sums);
    }
    each<false, kBrief>(take, sums);
  }

  // The state of the leaf. Every lane gets it. kScaled: that of its elements times `scale`, which is rare; else, of ops
  // that may have to look again, `scale` becomes what elements are to be multiplied by then, or 1.
  template <bool kScaled, class Given>
  __device__ __forceinline__ State look(const Given& given, [[maybe_unused]] F& scale) {
    const auto scaled = [&](F x) {
      if constexpr (kScaled) return x * scale;
      else return x;
    };
    F found = first_absent<Op::kFirst, F>();
    bool calm = false;
    if constexpr (Op::kFirst == First::Greatest) {
      const Extremes e = held[0].extremes(p);
      found = e.greatest;
      found = over_lanes<kPartWarps, kNumbers>(p, found, [](F a, F b) { return greatest(a, b); });
      if constexpr (Op::kCalm) calm = !ballot(!Op::is_calm(found, e.least));
    } else if constexpr (Op::kFirst == First::Sum) {
      F acc[1][H::kSlots];
#pragma unroll
      for (F& a : acc[0]) a = F(-0.0);
      each_there<kScaled>(
          [&](int c, int i, const F* x, F, bool there) {
            F& a = acc[0][H::slot(c, i)];
            if (there) a = a + scaled(x[0]);
          },
          acc);
      found = H::template tree<kNumbers>(acc[0], p);
    }
    const auto seen = Op::seen(found, p.count, given);
    F acc[kSums][H::kSlots];
#pragma unroll
    for (int s = 0; s < kSums; ++s)
#pragma unroll
      for (F& a : acc[s]) a = F(-0.0);
    const auto take = [&](int c, int i, const F* x, F weight, bool there) {
      if constexpr (Op::kTerm) {
        const F term = Op::term(x[0], seen);
        F& sum = acc[0][H::slot(c, i)];
        if (there) sum = sum + term;
        keep(c, i, term);
      } else if (there) {
        F sums[kSums], own[kInputs];
#pragma unroll
        for (int s = 0; s < kSums; ++s) sums[s] = acc[s][H::slot(c, i)];
#pragma unroll
        for (int k = 0; k < kInputs; ++k) own[k] = scaled(x[k]);
        Op::step(sums, own, weight, seen, given);
#pragma unroll
        for (int s = 0; s < kSums; ++s) acc[s][H::slot(c, i)] = sums[s];
      }
    };
    if constexpr (Op::kCalm) {
      const auto take_calm = [&](int c, int i, const F* x, F, bool there) {
        F& sum = acc[0][H::slot(c, i)];
        if constexpr (Op::kTerm) {
          const F term = Op::calm_term(x[0], seen);
          if (there) sum = sum + term;
          keep(c, i, term);
        } else if (there) {
          F next[1] = {sum};
          Op::calm_step(next, x, seen);
          sum = next[0];
        }
      };
      if (calm) each<false>(take_calm, acc);
      else each<false>(take, acc);
    } else {
      each_there<kScaled>(take, acc);
    }
    F sums[kSums];
#pragma unroll
    for (int s = 0; s < kSums; ++s) sums[s] = H::template tree<kNumbers>(acc[s], p);
    if constexpr (Op::kScales && !kScaled) scale = Op::rescale(sums, seen);
    return skips ? Op::none() : Op::state(found, sums, p.count);
  }

  // Writes the elements of the leaf, by chunks. kCalm: the data is. W: as of weights().
  template <bool kFull, bool kCalm, class W = void, class Out, class At>
  __device__ __forceinline__ void write(Out out, const At& at) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (!(kFull && kChunks == held_rows::kLeafChunks && !kAligned) && !H::has_chunk(p, c)) break;
      float v[kInputs][kGroup], w[kGroup], b[kGroup], y[kGroup];
      if constexpr (Op::kTerm) terms(c, v[0]);
      else elements(c, v);
      if constexpr (Op::kWeights) weights<kFull, W>(call.weight, F(1), c, w);
      if constexpr (Op::kBiases) weights<kFull, W>(call.bias, F(-0.0), c, b);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        F x[kInputs];
#pragma unroll
        for (int k = 0; k < kInputs; ++k) x[k] = v[k][i];
        if constexpr (kCalm) {
          if constexpr (Op::kTerm) y[i] = Op::calm_map(x[0], at);
          else y[i] = Op::calm_map(x, at);
        } else {
          const int64_t position = first + H::position(p, c, i);
          const F weight = Op::kWeights ? w[i] : F(1), bias = Op::kBiases ? b[i] : F(-0.0);
          if constexpr (Op::kTerm) y[i] = Op::map(x[0], weight, bias, position, at);
          else y[i] = Op::map(x, weight, bias, position, at);
        }
      }
      out.store(c, y);
    }
    out.finish();
  }
  // The elements themselves, of ops that add.
  __device__ __forceinline__ void write_sums(int64_t to) const {
    typename H::template Out<false, false> out(static_cast<E*>(call.sum) + to, p);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (!H::has_chunk(p, c)) break;
      float v[kGroup];
      held[0].chunk(c, v);
      out.store(c, v);
    }
    out.finish();
  }
  // The leaf starts at element `to` of the output.
  template <bool kCalm, class At> __device__ __forceinline__ void write(int64_t to, const At& at) const {
    if constexpr (kConverts)
      if (call.out_dtype != DtypeOf<E>::value)
        return write<false, kCalm>(typename H::template ConvertedOut<kCalm>(call, to, p), at);
    E* const out = static_cast<E*>(call.out) + to;
    if constexpr (H::kGranules && !kAligned && !Op::kWeights)
      if (elements_before(out) != p.before)
        return write<false, kCalm>(typename H::template ShiftedOut<kCalm>(out, p), at);
    if constexpr (kCalm || !Op::kCalmMap)
      if (p.full) {
        const typename H::template Out<true, kCalm> full(out, p);
        if constexpr (Op::kWeights && kAligned) {
          if (call.weight && (!Op::kBiases || call.bias)) {
            if (call.weight_dtype == Dtype::F32) return write<true, kCalm, F>(full, at);
            return write<true, kCalm, E>(full, at);
          }
        }
        return write<true, kCalm>(full, at);
      }
    write<false, kCalm>(typename H::template Out<false, kCalm>(out, p), at);
  }
  template <class At> __device__ __forceinline__ void write(int64_t to, const At& at, bool there) const {
    if constexpr (Op::kCalmMap) {
      if (!ballot(!Op::is_calm_map(held[kInputs - 1].extremes(p).least, at))) {
        if (there) write<true>(to, at);
        return;
      }
    }
    if (there) write<false>(to, at);
  }
};

template <class Op, class E, int kChunks, held_rows::Form kForm>
__global__ void TR_BLOCK_BOUND((kHeldThreads<Op, E, kChunks, kForm>))
    held_rows_kernel(TR_GRID_CONSTANT FusedRowsCall call, TR_GRID_CONSTANT HeldRowsShape shape,
                     typename Op::State* states) {
  using F = float;
  using Leaf = HeldLeaf<Op, E, kChunks, kForm>;
  using State = typename Op::State;
  using Part = held_rows::Part;
  __shared__ Barrier arrived;
  const auto meeting = [&] {
    TR_DYNAMIC_SHARED(dynamic, 16);
    return Meeting<State>(dynamic + Leaf::away_bytes(), shape.leaves, &arrived);
  };
  if constexpr (Leaf::kMeets)
    if (shape.cluster > 1) meeting().begin(shape);
  Leaf leaf(call);
  const auto at = leaf.find(shape, blockIdx.x);
  const auto given = Op::given(call.options, call.memory, at.start.value);
  leaf.load(at.start, !Op::skips(given));
  State state = Op::none();
  F scale = F(1);
  if (leaf.p.count > 0) state = leaf.template look<false>(given, scale);
  if constexpr (Op::kScales) {
    if (ballot(scale != F(1))) {
      // What is written is not loaded again: registers that come from two places move, and of the common loads one
      // waits for another (H200, layer_norm of float32, 768: 327 us instead of 264). What is not is: it would be in
      // registers for longer.
      TR_RARE_PATH;
      if constexpr (Op::kMaps) {
        state = Op::scaled_back(leaf.template look<true>(given, scale), state, scale);
      } else {
        Leaf again(call);
        again.load(again.find(shape, recomputed(uint32_t(blockIdx.x))).start, true);
        state = Op::scaled_back(again.template look<true>(given, scale), state, scale);
      }
    }
  }

  auto end = at;
  if constexpr (Leaf::kFindsAgain) end = leaf.find(shape, recomputed(uint32_t(blockIdx.x)));
  State total = state;
  if constexpr (Leaf::kMeets) {
    if (!Leaf::is_alone(shape)) {
      if (shape.part == Part::States) {
        if (lane_id() == 0 && leaf.p.count > 0) states[end.row * shape.leaves + end.number] = state;
        return;
      }
      if (shape.folded) {
        total = states[end.row];
      } else {
        auto met = meeting();
        if (shape.part == Part::Whole) met.meet(shape, end.number, state);
        else met.recall(states + end.row * shape.leaves, shape.leaves);
        total = met.template total<Op>(shape.leaves);
      }
    }
  }
  if (leaf.p.count == 0 || (!Op::kMaps && end.number > 0)) return;
  const auto read = [&](int64_t i) { return convert<F>(static_cast<const E*>(call.in[0])[end.start.in[0] + i]); };
  const auto values = Op::row(total, call.length, given, call.options, read);
  if (end.number == 0 && leaf.p.lane == 0 && end.there) Op::write(values, call.memory, end.start.value);
  if constexpr (Op::kMaps) {
    const auto& to_map = Op::at(values, state);
    if constexpr (Op::kAdds)
      if (end.there) leaf.write_sums(end.start.out + leaf.first);
    leaf.write(end.start.out + leaf.first, to_map, end.there);
  }
}

}  // namespace torchreduce::gpu
