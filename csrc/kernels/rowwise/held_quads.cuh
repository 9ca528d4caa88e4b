// The elements of a leaf of float32 in registers, by granules of 16 bytes: 4 elements each.
#pragma once
#include "held_lanes.cuh"
#include "kernels/reduce/granule.cuh"

namespace torchreduce::gpu {

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
  __device__ __forceinline__ void load(const RowwiseKernelCall&, int, const E* from, const Place& p, bool wanted,
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

    __device__ __forceinline__ ConvertedOut(const RowwiseKernelCall& call, int64_t leaf, const Place& p)
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
  __device__ __forceinline__ Bounds extremes(const Place& p) const {
    float v[kGroup];
    chunk(0, v);
    Bounds e{v[0], v[0]};
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
  template <bool kFull, bool, class W>
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

}  // namespace torchreduce::gpu
