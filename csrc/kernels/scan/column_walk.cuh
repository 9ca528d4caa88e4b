// Scans of columns that are so many that a lane for each, or for two side by side, fills the GPU: it walks them alone
// from the first position to the last. Nothing is handed from thread to thread.
#pragma once
#include "column_carry.cuh"
#include "column_walk.h"

namespace torchreduce::gpu {

// Whether the kernel is compiled for these: two inputs, three, or indices, of which strips are narrow.
template <class S, class Load, class Store> constexpr bool kLaneWalks = [] {
  if constexpr (Load::kWidth > 1 && (S::kInputs >= 2 || S::kIndexed)) return sizeof(typename Store::Element) >= 2;
  else return false;
}();

// What scan S knows of V neighbouring columns, as far as ScanCarry asks: they are in step, and each is its own.
template <class S, int V> struct SideBySide {
  template <class T> struct Of { T item[V]; };
  using Acc = Of<typename S::Acc>;
  using Wide = Of<typename S::Wide>;

  __device__ __forceinline__ static Acc absent() {
    return made<Acc>([](int) { return S::absent(); });
  }
  __device__ __forceinline__ static Wide wide_absent() {
    return made<Wide>([](int) { return S::wide_absent(); });
  }
  __device__ __forceinline__ static Wide widen(const Acc& a) {
    return made<Wide>([&](int v) { return S::widen(a.item[v]); });
  }
  template <class T> __device__ __forceinline__ static T combine(const T& left, const T& right) {
    return made<T>([&](int v) { return S::combine(left.item[v], right.item[v]); });
  }
  template <class T, class Make> __device__ __forceinline__ static T made(Make make) {
    T side;
#pragma unroll
    for (int v = 0; v < V; ++v) side.item[v] = make(v);
    return side;
  }
};

// What lies before the next group of V columns, in the canonical order.
template <class S, int V, bool kAnyOrder = S::kAnyOrder> struct WalkCarry {
  using Side = SideBySide<S, V>;
  using Acc = typename Side::Acc;
  ScanCarry<Side> carry;
  Acc tiles;                            // carry.within()
  TreeStack<Acc, kFanLog2 + 1> groups;  // totals of the groups of this tile so far

  __device__ __forceinline__ explicit WalkCarry(const typename Side::Wide& initial)
      : carry(initial), tiles(Side::absent()) {}
  // The results of the next group.
  __device__ __forceinline__ void results(const S& op, typename S::Item (&items)[V][kGroup],
                                          typename S::Result (&out)[V][kGroup]) {
    auto combine = [](const Acc& l, const Acc& r) { return Side::combine(l, r); };
    const Acc within = combine(tiles, groups.total(Side::absent(), combine));
    const Acc total = Side::template made<Acc>([&](int v) { return S::group(items[v]); });
#pragma unroll
    for (int v = 0; v < V; ++v) op.results(S::prefix(carry.carry().item[v], within.item[v]), items[v], out[v]);
    groups.push(total, combine);
    if (groups.count < uint32_t(kFan)) return;
    carry.push(groups.slot[kFanLog2]);
    tiles = carry.within();
    groups.count = 0;
  }
};
// In any order: element by element.
template <class S, int V> struct WalkCarry<S, V, true> {
  using Wide = typename SideBySide<S, V>::Wide;
  Wide found;

  __device__ __forceinline__ explicit WalkCarry(const Wide& initial) : found(initial) {}
  __device__ __forceinline__ void results(const S& op, const typename S::Item (&items)[V][kGroup],
                                          typename S::Result (&out)[V][kGroup]) {
#pragma unroll
    for (int v = 0; v < V; ++v)
#pragma unroll
      for (int i = 0; i < kGroup; ++i) out[v][i] = op.result(found.item[v] = S::combine(found.item[v], items[v][i]));
  }
};

// Any columns; two a thread where elements take 2 bytes, as word_columns says. Group by group: kAhead groups of
// elements are on their way to shared memory, each thread's to places of its own.
template <class S, class Load, class Store>
__global__ void TR_BLOCK_BOUND(kWalkThreads) scan_column_walk(TR_GRID_CONSTANT ScanCall call) {
  static_assert(!kHasStart<S>, "none of them is exclusive");
  using E = typename Store::Element;
  constexpr int kSize = sizeof(E), V = word_columns(kSize), kBytes = V * kSize, kWords = kBytes / 4, N = S::kInputs;
  using Words = Packed<uint32_t, kWords>;                             // V neighbours
  constexpr int kPitch = N * kWalkThreads, kStage = kGroup * kPitch;  // of positions and groups in shared memory
  constexpr int kAhead = 4 * kStage * kBytes <= 40 << 10 ? 4 : 3;
  // [stage][position of the group][input][thread], aligned to sectors of memory as strips are.
  struct alignas(128) Ring { Words item[kAhead * kStage]; };
  __shared__ Ring ring;
  const S op{call.options};
  const Layout& layout = call.layout;
  const int64_t n = layout.length, row = (int64_t(blockIdx.x) * kWalkThreads + threadIdx.x) * V;
  if (row >= layout.rows) return;
  const ScanStride stride = scan_stride(layout);
  const RowStart start = row_start(layout, row);

  const char* from[N];  // where the group to be copied next begins
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const bool a = is_pair<Load> && k == 1;
    const int64_t offset = a ? row_offset(layout, call.more_strides[0], row) : start.in;
    from[k] = static_cast<const char*>(k ? call.in.more[k - 1] : call.in.data) + offset * kSize;
  }
  const int64_t a_stride = is_pair<Load> && layout.reduced ? call.more_strides[0][layout.kept] : 0;
  char* to = static_cast<char*>(call.out.values) + start.out * kSize;
  [[maybe_unused]] int64_t* indices = S::kIndexed ? call.out.indices + start.out : nullptr;

  Words* const own = ring.item + threadIdx.x;
  auto load = [&](int stage, int64_t first) {
    const int64_t left = n - first;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const bool a = is_pair<Load> && k == 1;
      int64_t step = (a ? a_stride : stride.in) * kSize;
      Words* const place = own + stage * kStage + k * kWalkThreads;
      bool has_first = true;
      if constexpr (is_pair<Load>) has_first = !a || Load::has_a(call, first);
      if (left >= kGroup && has_first) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
          copy_async<kBytes>(place + i * kPitch, from[k]);
          from[k] += step = recomputed(step);
        }
      } else {
#pragma unroll 1
        for (int i = 0; i < kGroup && i < left; ++i) {
          if (i > 0 || has_first) copy_async<kBytes>(place + i * kPitch, from[k]);
          from[k] += step;
        }
      }
    }
    end_copies();
  };
  auto element = [&](const Words(&w)[N], int v) -> typename Load::Element {
    E part[N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      E side[V];
      unpack(w[k].item, side);
      part[k] = side[v];
    }
    if constexpr (N == 1) return part[0];
    else if constexpr (N == 2) return {part[1], part[0]};
    else return {part[0], part[1], part[2]};
  };

  using Side = SideBySide<S, V>;
  WalkCarry<S, V> before(
      Side::template made<typename Side::Wide>([&](int v) { return row_carry<S, Load>(call, row + v); }));
  // The group that begins at `first`, of which `count` positions are there, or all.
  auto group = [&](auto whole, int stage, int64_t first, int count) {
    Words w[kGroup][N];
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
#pragma unroll
      for (int k = 0; k < N; ++k) w[i][k] = own[stage * kStage + i * kPitch + k * kWalkThreads];
    if (whole) load(stage, first + kAhead * kGroup);
    typename S::Item items[V][kGroup];
    typename S::Result r[V][kGroup];
#pragma unroll
    for (int v = 0; v < V; ++v)
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        items[v][i] = whole || i < count ? op.load(element(w[i], v), first + i) : S::absent_item();
    before.results(op, items, r);
    int64_t step = stride.out;
    if constexpr (S::kIndexed) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        if (whole || i < count) {
          Packed<E, V> values;
          Packed<int64_t, V> places;
#pragma unroll
          for (int v = 0; v < V; ++v) {
            values.item[v] = r[v][i].value;
            places.item[v] = call.index_of(r[v][i].index);
          }
          store_wide(reinterpret_cast<Packed<E, V>*>(to), values);
          store_wide(reinterpret_cast<Packed<int64_t, V>*>(indices), places);
        }
        step = recomputed(step);
        to += step * kSize;
        indices += step;
      }
    } else {
      Words rounded[kGroup];
      round_columns<E, S>(r, rounded, 0);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        if (whole || i < count) store_granule(reinterpret_cast<Words*>(to), rounded[i]);
        step = recomputed(step);
        to += step * kSize;
      }
    }
  };

#pragma unroll 1
  for (int stage = 0; stage < kAhead; ++stage) load(stage, stage * kGroup);
  int stage = 0;
  int64_t first = 0;
#pragma unroll 1
  for (; first + kGroup <= n; first += kGroup) {
    wait_copies<kAhead - 1>();
    group(std::true_type(), stage, first, kGroup);
    stage = stage + 1 == kAhead ? 0 : stage + 1;
  }
  if (first < n) {
    wait_copies<kAhead - 1>();
    group(std::false_type(), stage, first, int(n - first));
  }
}

}  // namespace torchreduce::gpu
