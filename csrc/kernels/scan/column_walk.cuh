// Scans of columns that are so many that a lane for each, or for two side by side, fills the GPU: it walks them alone
// from the first position to the last. Nothing is handed from thread to thread. Of one input they have two tiles at
// most. Shared memory has the next groups of each lane's words, [stage][position][input][lane], which it copies and
// takes itself; elements of other sizes go to registers.
#pragma once
#include "column_jobs.cuh"
#include "column_walk.h"

namespace torchreduce::gpu {

// Whether the kernel is compiled for these; and whether it is for two columns a lane, which take a word or two.
template <class S, class Load, class Store> constexpr bool kLaneWalks = [] {
  if constexpr (S::kInputs == 1 && !S::kIndexed) return true;
  else if constexpr (Load::kWidth > 1) return sizeof(typename Store::Element) >= 2;
  else return false;
}();
template <class S, class Load, class Store> constexpr bool kWalksPairs = [] {
  if constexpr (kInPlace<S, Load, Store>)
    return sizeof(typename Store::Element) == 2 || sizeof(typename Store::Element) == 4;
  else if constexpr (Load::kWidth > 1 && (S::kInputs >= 2 || S::kIndexed)) return sizeof(typename Store::Element) == 2;
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

// What lies before the next group of V columns, in the canonical order: within two tiles; in columns of any length;
// where every order gives the same, element by element.
template <class S, int V> struct TileWalk {
  using Side = SideBySide<S, V>;
  using Acc = typename Side::Acc;
  TreeStack<Acc, kFanLog2 + 1> groups;  // totals of the groups so far

  __device__ __forceinline__ explicit TileWalk(const typename Side::Wide&) {}
  // The results of the next group.
  __device__ __forceinline__ void results(const S& op, typename S::Item (&items)[V][kGroup],
                                          typename S::Result (&out)[V][kGroup]) {
    auto combine = [](const Acc& l, const Acc& r) { return Side::combine(l, r); };
    const Acc within = groups.total(Side::absent(), combine);
    const Acc total = Side::template made<Acc>([&](int v) { return S::group(items[v]); });
#pragma unroll
    for (int v = 0; v < V; ++v) op.results(S::prefix(within.item[v]), items[v], out[v]);
    groups.push(total, combine);
  }
};
template <class S, int V> struct LongWalk {
  using Side = SideBySide<S, V>;
  using Acc = typename Side::Acc;
  ScanCarry<Side> carry;
  Acc tiles;                            // carry.within()
  TreeStack<Acc, kFanLog2 + 1> groups;  // totals of the groups of this tile so far

  __device__ __forceinline__ explicit LongWalk(const typename Side::Wide& initial)
      : carry(initial), tiles(Side::absent()) {}
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
template <class S, int V> struct AnyWalk {
  using Wide = typename SideBySide<S, V>::Wide;
  Wide found;
  __device__ __forceinline__ explicit AnyWalk(const Wide& initial) : found(initial) {}
  __device__ __forceinline__ void results(const S& op, const typename S::Item (&items)[V][kGroup],
                                          typename S::Result (&out)[V][kGroup]) {
#pragma unroll
    for (int v = 0; v < V; ++v)
#pragma unroll
      for (int i = 0; i < kGroup; ++i) out[v][i] = op.result(found.item[v] = S::combine(found.item[v], items[v][i]));
  }
};
template <class S, int V> using Walk =
    std::conditional_t<S::kAnyOrder, AnyWalk<S, V>,
                       std::conditional_t<S::kInputs == 1, TileWalk<S, V>, LongWalk<S, V>>>;

// The elements of V neighbouring columns on their way to the lane that walks them, group by group. Of 4 bytes or 8
// together: by way of shared memory, where the lane has places of its own.
template <class Load, int N, int V, int kThreads> struct CopiedGroups {
  using E = element_of<Load>;
  static constexpr int kSize = sizeof(E), kBytes = V * kSize;
  using Words = Packed<uint32_t, kBytes / 4>;                            // V neighbours
  static constexpr int kPitch = N * kThreads, kStage = kGroup * kPitch;  // of positions and groups
  static constexpr int kAhead = 4 * kStage * kBytes <= 40 << 10 ? 4 : 3;
  // [stage][position of the group][input][thread], aligned to sectors of memory as strips are.
  struct alignas(128) Ring { Words item[kAhead * kStage]; };

  const ScanCall& call;
  Words* own;
  int stage = 0;        // of the group that is taken next
  const char* from[N];  // where the group to be copied next begins
  int64_t steps[N];     // bytes from position to position

  __device__ __forceinline__ CopiedGroups(const ScanCall& call, const RowStart& start, int64_t row) : call(call) {
    __shared__ Ring ring;
    own = ring.item + threadIdx.x;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const int64_t offset = is_a(k) ? row_offset(call.layout, call.more_strides[0], row) : start.in;
      from[k] = static_cast<const char*>(k ? call.in.more[k - 1] : call.in.data) + offset * kSize;
      const Layout& layout = call.layout;
      steps[k] = layout.reduced ? (is_a(k) ? call.more_strides[0] : layout.in)[layout.kept] * kSize : 0;
    }
#pragma unroll 1
    for (int s = 0; s < kAhead; ++s) load(s, s * kGroup);
  }
  // The elements of the group from `first` on. If it is whole, one more starts on its way.
  template <class Whole>
  __device__ __forceinline__ void take(Whole whole, int64_t first, typename Load::Element (&x)[V][kGroup]) {
    wait_copies<kAhead - 1>();
    Words w[kGroup][N];
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
#pragma unroll
      for (int k = 0; k < N; ++k) w[i][k] = own[stage * kStage + i * kPitch + k * kThreads];
    if (whole) load(stage, first + kAhead * kGroup);
    stage = stage + 1 == kAhead ? 0 : stage + 1;
#pragma unroll
    for (int v = 0; v < V; ++v)
#pragma unroll
      for (int i = 0; i < kGroup; ++i) x[v][i] = element(w[i], v);
  }

 private:
  __device__ __forceinline__ static constexpr bool is_a(int k) { return is_pair<Load> && k == 1; }
  __device__ __forceinline__ void load(int to_stage, int64_t first) {
    const int64_t left = call.layout.length - first;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      int64_t step = steps[k];
      Words* const place = own + to_stage * kStage + k * kThreads;
      bool has_first = true;
      if constexpr (is_pair<Load>) has_first = !is_a(k) || Load::has_a(call, first);
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
  }
  __device__ __forceinline__ static typename Load::Element element(const Words (&w)[N], int v) {
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
  }
};
// Others, of one column: in registers, those of any type not before they are taken.
template <class Load> struct LoadedGroups {
  using Element = typename Load::Element;
  static constexpr bool kTyped = Load::kWidth > 1;
  static constexpr int kAhead = !kTyped ? 0 : sizeof(Element) <= 4 ? 2 : 1;

  const ScanCall& call;
  int64_t in, a = 0;  // where the column starts
  Element held[kTyped ? kAhead : 1][kGroup];

  __device__ __forceinline__ LoadedGroups(const ScanCall& call, const RowStart& start, int64_t row)
      : call(call), in(start.in) {
    if constexpr (is_pair<Load>) a = row_offset(call.layout, call.more_strides[0], row);
#pragma unroll
    for (int g = 0; g < kAhead; ++g) load(g * kGroup, held[g]);
  }
  template <class Whole> __device__ __forceinline__ void take(Whole whole, int64_t first, Element (&x)[1][kGroup]) {
    if constexpr (!kTyped) {
      load(first, x[0]);
    } else {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        x[0][i] = held[0][i];
#pragma unroll
        for (int g = 1; g < kAhead; ++g) held[g - 1][i] = held[g][i];
      }
      if (whole) load(first + kAhead * kGroup, held[kAhead - 1]);
    }
  }

 private:
  __device__ __forceinline__ void load(int64_t first, Element (&items)[kGroup]) {
    const Layout& layout = call.layout;
    int64_t stride = scan_stride(layout).in;
    const int64_t left = layout.length - first;
    if constexpr (is_pair<Load>) {
      Load::run(call, in + first * stride, a + first * (layout.reduced ? call.more_strides[0][layout.kept] : 0), first,
                left, items);
    } else if constexpr (kTyped && !kSmallInts<Load>) {
      const Element* from = global(static_cast<const Element*>(call.in.data)) + (in + first * stride);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        if (i < left) items[i] = *from;
        from += stride = recomputed(stride);
      }
    } else {
      Load::run(call.in, in + first * stride, stride, left, items);
    }
  }
};

// Where the results of V neighbouring columns go.
template <class S, class Store, int V> struct WalkedResults {
  const ScanCall& call;
  const int64_t stride;
  int64_t place;  // of the next ones

  __device__ __forceinline__ WalkedResults(const ScanCall& call, int64_t start)
      : call(call), stride(scan_stride(call.layout).out), place(start) {
    if constexpr (kHasStart<S>) {
      if (!call.exclusive) return;
      typename S::Result r[V][kGroup];
#pragma unroll
      for (int v = 0; v < V; ++v)
#pragma unroll
        for (int i = 0; i < kGroup; ++i) r[v][i] = S::start();
      store(std::false_type(), r, 1);
      place = start + stride;
    }
  }
  // The first `count` of a group, or all of them.
  template <class Whole>
  __device__ __forceinline__ void store(Whole whole, const typename S::Result (&r)[V][kGroup], int count) {
    int64_t step = stride;
    constexpr bool kOnes = Store::kWidth == 1 || kEither<Store>;  // whose type is looked at
    if constexpr (S::kIndexed || kOnes) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        if (whole || i < count) {
          if constexpr (kOnes) Store::one(call, place, r[0][i]);
          else side_by_side(r, i);
        }
        place += step = recomputed(step);
      }
    } else {
      using E = typename Store::Element;
      using Side = Packed<E, V>;
      Side rounded[kGroup];
      round(r, rounded);
      E* to = global(static_cast<E*>(call.out.values)) + place;
      place += kGroup * step;
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        if (whole || i < count) {
          if constexpr (sizeof(Side) >= 4) store_granule(reinterpret_cast<Side*>(to), rounded[i]);
          else *to = rounded[i].item[0];
        }
        to += step = recomputed(step);
      }
    }
  }

 private:
  // Position by position: as words of neighbours, or of one column as a group.
  template <class E>
  __device__ __forceinline__ static void round(const typename S::Result (&r)[V][kGroup],
                                               Packed<E, V> (&rounded)[kGroup]) {
    if constexpr (V == 1) {
      uint32_t w[kGroupWords<E>];
      round_group<E, S>(r[0], w);
      E x[kGroup];
      unpack(w, x);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) rounded[i].item[0] = x[i];
    } else {
      constexpr int kOfWord = sizeof(E) < 4 ? 4 / int(sizeof(E)) : 1;
      Packed<uint32_t, V* int(sizeof(E)) / 4> words[kGroup];
#pragma unroll
      for (int v = 0; v < V; v += kOfWord) {
        typename S::Result of_word[kOfWord][kGroup];
#pragma unroll
        for (int c = 0; c < kOfWord; ++c)
#pragma unroll
          for (int i = 0; i < kGroup; ++i) of_word[c][i] = r[v + c][i];
        round_columns<E, S>(of_word, words, v * int(sizeof(E)) / 4);
      }
#pragma unroll
      for (int i = 0; i < kGroup; ++i) memcpy(&rounded[i], &words[i], sizeof words[i]);
    }
  }
  __device__ __forceinline__ void side_by_side(const typename S::Result (&r)[V][kGroup], int i) {
    using E = typename Store::Element;
    Packed<E, V> values;
    Packed<int64_t, V> indices;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      values.item[v] = r[v][i].value;
      indices.item[v] = call.index_of(r[v][i].index);
    }
    store_wide(reinterpret_cast<Packed<E, V>*>(static_cast<E*>(call.out.values) + place), values);
    store_wide(reinterpret_cast<Packed<int64_t, V>*>(call.out.indices + place), indices);
  }
};

// V columns a lane, which lie side by side and are whole words if it is more than one.
template <class S, class Load, class Store, int V>
__global__ void TR_BLOCK_BOUND((walk_threads(S::kInputs, S::kIndexed)))
    scan_column_walk(TR_GRID_CONSTANT ScanCall call) {
  constexpr int kBytes = V * int(sizeof(element_of<Load>)), kThreads = walk_threads(S::kInputs, S::kIndexed);
  constexpr bool kCopied = Load::kWidth > 1 && !kSmallInts<Load> && (kBytes == 4 || kBytes == 8);
  static_assert(kCopied || V == 1, "others come one by one");
  using Side = SideBySide<S, V>;
  const S op{call.options};
  const int64_t n = call.layout.length, row = (int64_t(blockIdx.x) * kThreads + threadIdx.x) * V;
  if (row >= call.layout.rows) return;
  const RowStart start = row_start(call.layout, row);
  std::conditional_t<kCopied, CopiedGroups<Load, S::kInputs, V, kThreads>, LoadedGroups<Load>> elements(call, start,
                                                                                                        row);
  Walk<S, V> before(Side::template made<typename Side::Wide>([&](int v) { return row_carry<S, Load>(call, row + v); }));
  WalkedResults<S, Store, V> results(call, start.out);
  const int shift = call.exclusive ? 1 : 0;
  // The group that begins at `first`, of which `count` positions are there, or all; whole: and the places of its
  // results.
  auto group = [&](auto whole, int64_t first, int count) {
    typename Load::Element x[V][kGroup];
    elements.take(whole, first, x);
    typename S::Item items[V][kGroup];
    typename S::Result r[V][kGroup];
#pragma unroll
    for (int v = 0; v < V; ++v)
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        items[v][i] = whole || i < count ? op.load(x[v][i], first + i) : S::absent_item();
    before.results(op, items, r);
    results.store(whole, r, int(n - first) - shift);
  };
  int64_t first = 0;
  if constexpr (Load::kWidth > 1) {
#pragma unroll 1
    for (; first + kGroup + shift <= n; first += kGroup) group(std::true_type(), first, kGroup);
    if (first < n) group(std::false_type(), first, int(n - first));
  } else {  // one code for all groups, as it is long
#pragma unroll 1
    for (; first < n; first += kGroup) group(std::false_type(), first, n - first < kGroup ? int(n - first) : kGroup);
  }
}

}  // namespace torchreduce::gpu
