// The elements of a leaf of 16-bit floats in registers, by granules of 16 bytes.
//
// A lane's granule c is number lane + lanes * c of those in which the leaf lies. Where a leaf starts `before` elements
// into its first granule, residues are moved to their lanes before the tree; the elements at its end that share a
// granule's place with what comes before it lie in those first places of lane 0, and are added last. An output that
// starts elsewhere in its granule is made of granules of two neighbouring lanes.
#pragma once
#include "held_lanes.cuh"
#include "kernels/reduce/granule.cuh"
#include "kernels/tile/words.cuh"

namespace torchreduce::gpu {

#if !defined(TR_CANONICAL_PAIRS)
__device__ __forceinline__ bool any_nan(const float (&v)[kGroup]) {
  bool nan = false;
#pragma unroll
  for (int i = 0; i < kGroup; i += 2) nan |= (v[i] != v[i]) | (v[i + 1] != v[i + 1]);  // one comparison
  return nan;
}
#endif

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
  __device__ __forceinline__ void load(const RowwiseKernelCall& call, int input, const E* from, const Place& p,
                                       bool wanted, float fill) {
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

    __device__ __forceinline__ ConvertedOut(const RowwiseKernelCall& call, int64_t leaf, const Place& p)
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
  __device__ __forceinline__ Bounds extremes(const Place& p) const {
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
  // Of the positions of chunk c, where the weights of a leaf start at `from + first`. kAnywhere: else both are
  // granules.
  template <bool kFull, bool kAnywhere, class W>
  __device__ __forceinline__ static void weights(const W* from, int64_t first, const Place& p, int c,
                                                 float (&v)[kGroup]) {
    const int at = number(p, c) * kGroup - (kAligned ? 0 : p.before);
    if (kAligned ? !is_there(p, c) : !kFull && at >= p.count) return;
    if constexpr (!kAligned && kAnywhere)
      if (p.before > 0 || bytes_before(from + first) > 0 || (!kFull && at + kGroup > p.count))
        return shifted_weights(from + first, p, c, at, v);
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
  // The same of the granules that they lie in, where these are the leaf's alone; else one by one.
  template <class W>
  __device__ __forceinline__ static void shifted_weights(const W* leaf, const Place& p, int c, int at,
                                                         float (&v)[kGroup]) {
    constexpr int kWords = kGroupWords<W>;
    const Granule* const around = granule_of(leaf + at);
    W x[kGroup];
    if (reinterpret_cast<const W*>(around) >= leaf &&
        reinterpret_cast<const W*>(around + kWords / 4 + 1) <= leaf + p.count) {
      uint32_t loaded[kWords + 4], words[kWords];
      load_granules(around, loaded);
      shift_words(loaded, bytes_before(leaf + at), words);
      memcpy(x, words, sizeof x);
    } else {
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        if (position(p, c, i) < p.count) x[i] = load_item<Stay::Long>(leaf + position(p, c, i));
    }
#pragma unroll
    for (int i = 0; i < kGroup; ++i) v[i] = convert<float>(x[i]);
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

}  // namespace torchreduce::gpu
