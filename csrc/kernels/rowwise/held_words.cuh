// The elements of a leaf in registers, loaded one by one, so that it may start anywhere. The three holders of elements,
// this one, HeldGranules and HeldQuads, have the same members: HeldLeaf takes any of them.
//
// A lane's element k is number lane + lanes * k of the leaf: neighbouring lanes load neighbours.
#pragma once
#include "held_lanes.cuh"
#include "kernels/common/collective.cuh"

namespace torchreduce::gpu {

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
  __device__ __forceinline__ void load(const RowwiseKernelCall&, int, const E* from, const Place& p, bool wanted,
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

    __device__ __forceinline__ ConvertedOut(const RowwiseKernelCall& call, int64_t leaf, const Place& p)
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
  __device__ __forceinline__ Bounds extremes(const Place& p) const {
    Bounds e{x[0], x[0]};
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
  template <bool kFull, bool, class W>
  __device__ __forceinline__ static void weights(const W* from, int64_t first, const Place& p, int c,
                                                 float (&v)[kGroup]) {
    const int have = own(p);
    const W* const w = recomputed(from + first + p.lane);
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      if (kFull || c * kGroup + i < have) v[i] = convert<float>(load_item<Stay::Long>(w + step(p, c * kGroup + i)));
  }
};

}  // namespace torchreduce::gpu
