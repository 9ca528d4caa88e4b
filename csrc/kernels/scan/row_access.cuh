// How neighbouring lanes load rows of at most a block tile, or two, a group of 8 neighbours at a time, and store their
// results.
//
// Aligned rows move 16 bytes at a time. Others are loaded element by element, which the cache puts together (faster
// than whole granules and shifts, which took more instructions than there is time for: 7 float32 a row 0.87 of a copy's
// speed against 0.66); those of 16 bits where they can as words, or, longer rows, as the granules around a group, since
// there it is accesses that there is no time for. Their results go to memory through shared memory, so that all but the
// ends of a warp's run are stored 16 bytes at a time.
#pragma once
#include "kernels/tile/run_stage.cuh"
#include "rows.cuh"

namespace torchreduce::gpu {

// ---- aligned rows ------------------------------------------------------------------------------------------------------

// The group from `first` on, in memory order, of a row of neighbours that starts at `base` and goes down in memory
// where `mirror`. Whole groups are aligned to 16 bytes; positions from n on stay as they are, or are other rows'.
template <class Load>
__device__ __forceinline__ void load_vector(const ScanCall& call, int64_t base, int first, int n, bool mirror,
                                            uint32_t (&w)[kGroupWords<typename Load::Element>]) {
  const int64_t lowest = mirror ? base - first - (kGroup - 1) : base + first;
  if (n % Load::kWidth == 0) {  // then each vector is there or not
#pragma unroll
    for (int v = 0; v < kGroup; v += Load::kWidth)
      if (first + (mirror ? kGroup - v : v + Load::kWidth) <= n) Load::vector(call.in, lowest + v, w, v);
  } else if (first + kGroup <= n) {
#pragma unroll
    for (int v = 0; v < kGroup; v += Load::kWidth) Load::vector(call.in, lowest + v, w, v);
  } else {
    typename Load::Element x[kGroup];
    unpack(w, x);
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      if (first + (mirror ? kGroup - 1 - i : i) < n) x[i] = Load::one(call.in, lowest + i);
    memcpy(w, x, sizeof w);
  }
}
// The same for results, where `there`. By whole warps. kSectors: as whole sectors of 32 bytes, where `paired`:
// neighbouring lanes, from the first one on, have neighbouring groups of a row, or both nothing.
template <class S, class Store, bool kSectors>
__device__ __forceinline__ void store_vector(const ScanCall& call, int64_t base, int first, int n, bool there,
                                             bool mirror, [[maybe_unused]] bool paired,
                                             const typename S::Result (&r)[kGroup]) {
  using O = typename Store::Element;
  constexpr int W = Store::kWidth;
  constexpr bool kPairs = kSectors && kHalfSectors<O>;
  auto elements = [&] {
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      if (first + i < n) Store::one(call, mirror ? base - first - i : base + first + i, r[i]);
  };
  if constexpr (!kPairs) {
    if (!there) return;
    if (n % W != 0 && first + kGroup > n) return elements();
  }
  const int64_t lowest = mirror ? base - first - (kGroup - 1) : base + first;
  uint32_t w[kGroupWords<O>];
  if constexpr (kHasFastGroup<S>) {
    round_group<O, S>(r, w);
    reverse_words_if<O>(mirror, w);
  } else {
    typename S::Result out[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) out[i] = mirror ? r[kGroup - 1 - i] : r[i];
    round_group<O, S>(out, w);
  }
  if constexpr (kPairs) {
    if (paired) {
      const bool both = there && (first | kGroup) + kGroup <= n;
      store_sectors(static_cast<O*>(call.out.values) + lowest, (lane_id() % 2 != 0) != mirror, both, w);
      there &= !both;
    }
    if (!there) return;
    if (n % W != 0 && first + kGroup > n) return elements();
  }
#pragma unroll
  for (int v = 0; v < kGroup; v += W)
    if (first + (mirror ? kGroup - v : v + W) <= n) Store::vector(call, lowest + v, w, v);
}

// ---- any rows ------------------------------------------------------------------------------------------------------------

// How a warp loads rows that are not aligned: element by element; 16-bit ones two at a time, where all rows have whole
// words; or the two granules around a group, where those lie in the tensor and no result takes the place of an element.
enum class Access { Items, Pairs, Granules };

// A group as it is loaded: words in memory order; or elements in the row's order; or 16-bit elements, of Access::Items
// one a word, in the row's order, else in memory order.
template <class E> constexpr bool kHalves = sizeof(E) == 2;
template <class E, bool kAligned> using HeldGroup =
    std::conditional_t<kAligned, uint32_t[kGroupWords<E>], std::conditional_t<kHalves<E>, uint32_t[8], E[kGroup]>>;

// What stands for an element past the end of a row until it is loaded.
template <class E, class S> __device__ __forceinline__ E absent_element() {
  if constexpr (is_float_type<E>) return round_to<E>(S::absent_item());
  else return E(S::absent_item());
}

// Loads K groups a lane: base[k] says where their rows start, first(k) at which position, count(k) how many are there.
// Elements that are not there are those of other rows, or absent ones.
template <class S, class Load, bool kAligned, int K, class First, class Count>
__device__ __forceinline__ void load_typed_groups(const ScanCall& call, const int64_t (&base)[K], First first,
                                                  Count count, bool mirror, [[maybe_unused]] bool pairs,
                                                  HeldGroup<typename Load::Element, kAligned> (&x)[K]) {
  using E = typename Load::Element;
  const E absent = absent_element<E, S>();
  const E* const from = global(static_cast<const E*>(call.in.data));
  if constexpr (kAligned) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      E none[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) none[i] = absent;
      memcpy(x[k], none, sizeof none);
      if (count(k) > 0) load_vector<Load>(call, base[k], first(k), first(k) + count(k), mirror, x[k]);
    }
    return;
  }
  if constexpr (!kAligned && kHalves<E>)
    if (pairs) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        const E* const lowest = global(from + (mirror ? base[k] - first(k) - (kGroup - 1) : base[k] + first(k)));
#pragma unroll
        for (int i = 0; i < kGroup; i += 2) {
          x[k][i / 2] = bit_cast<uint16_t>(absent) * 0x10001u;
          if ((mirror ? kGroup - 1 - i : i) < count(k)) x[k][i / 2] = *reinterpret_cast<const uint32_t*>(lowest + i);
        }
      }
      return;
    }
  auto load = [&](auto down) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const E* const p = global(from + (down() ? base[k] - first(k) : base[k] + first(k)));
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        E e = absent;
        if (i < count(k)) e = p[down() ? -i : i];
        if constexpr (kAligned) continue;
        else if constexpr (kHalves<E>) x[k][i] = bit_cast<uint16_t>(e);
        else x[k][i] = e;
      }
    }
  };
  if (mirror) load(std::true_type());
  else load(std::false_type());
}

// The same of elements whose type the call may say: as int32, then.
template <class S, class Load, bool kAligned, int K, class First, class Count>
__device__ __forceinline__ void load_groups(const ScanCall& call, const int64_t (&base)[K], First first, Count count,
                                            bool mirror, bool pairs,
                                            HeldGroup<typename Load::Element, kAligned> (&x)[K]) {
  if constexpr (kSmallInts<Load>)
    SmallInts::typed(call.in, [&](auto load) {
      using T = typename decltype(load)::Element;
      HeldGroup<T, kAligned> held[K];
      load_typed_groups<S, decltype(load), kAligned>(call, base, first, count, mirror, false, held);
#pragma unroll
      for (int k = 0; k < K; ++k) {
        T group[kGroup];
        if constexpr (kAligned) {
          unpack(held[k], group);
        } else {
#pragma unroll
          for (int i = 0; i < kGroup; ++i) {
            if constexpr (kHalves<T>) group[i] = bit_cast<T>(uint16_t(held[k][i]));
            else group[i] = held[k][i];
          }
        }
#pragma unroll
        for (int i = 0; i < kGroup; ++i) x[k][i] = convert<int32_t>(group[i]);
      }
    });
  else load_typed_groups<S, Load, kAligned>(call, base, first, count, mirror, pairs, x);
}

// Loads the two granules around each of K groups of 16-bit elements, a tile apart, of a row that starts at `base`; for
// groups that are not there those of the row's first one. Returns how many bytes into them groups begin.
template <int K> __device__ __forceinline__ int load_around(const ScanCall& call, int64_t base, int first, int n,
                                                            bool mirror, uint32_t (&x)[K][8]) {
  const char* const lowest = static_cast<const char*>(call.in.data) + 2 * (mirror ? base - (kGroup - 1) : base);
  const int before = bytes_before(lowest);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int at = first + k * kTile < n ? first + k * kTile : 0;
    const auto* const from = reinterpret_cast<const Granule*>(lowest - before + 2 * int64_t(mirror ? -at : at));
    load_granules(from, x[k]);
  }
  return before;
}

// The items of a group, and its total, unless the scan has fast groups; of Access::Granules, it begins `before` bytes
// into them. What is past the end of a row does not show in what is before it.
template <class E, bool kAligned, class S>
__device__ __forceinline__ typename S::Acc form_items(const S& op, const HeldGroup<E, kAligned>& loaded, int64_t first,
                                                      bool mirror, [[maybe_unused]] Access access,
                                                      [[maybe_unused]] int before, typename S::Item (&items)[kGroup]) {
  E x[kGroup];
  if constexpr (kAligned || kHalves<E>) {
    uint32_t w[kGroupWords<E>];
    bool ordered = !mirror;
    if constexpr (kAligned) {
      memcpy(w, loaded, sizeof w);
    } else if (access == Access::Granules) {
      shift_words(loaded, before, w);
    } else if (access == Access::Pairs) {
      memcpy(w, loaded, sizeof w);
    } else {
      TR_RARE_PATH;  // lest both be done, and one selected
      ordered = true;
#pragma unroll
      for (int i = 0; i < kGroupWords<E>; ++i) w[i] = loaded[2 * i] | loaded[2 * i + 1] << 16;
    }
    if constexpr (kHasFastGroup<S>) {
      reverse_words_if<E>(!ordered, w);
    } else if (!ordered) {
      TR_RARE_PATH;
      reverse_words<E>(w);
    }
    unpack(w, x);
  } else {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) x[i] = loaded[i];
  }
#pragma unroll
  for (int i = 0; i < kGroup; ++i) items[i] = op.load(x[i], first + i);
  if constexpr (kHasFastGroup<S>) return {};
  else return S::group(items);
}

}  // namespace torchreduce::gpu
