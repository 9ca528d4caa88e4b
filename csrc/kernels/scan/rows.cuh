// Scans with lanes along a row, of any type, wherever elements lie: what no other family of rows serves. Short rows
// have a few lanes each, others one warp each, which walks its row tile by tile, the next tile's elements on their way.
// All is in registers; there is no shared memory.
#pragma once
#include "kernels/common/collective.cuh"
#include "kernels/tile/words.cuh"
#include "rows.h"

namespace torchreduce::gpu {

using namespace scans;

// Elements that are integers of at most 4 bytes or bool, as int32. The call says of which type they are. It is looked
// at once for all that is loaded together.
struct SmallInts {
  using Element = int32_t;
  static constexpr int kWidth = kGroup;
  // Calls with(TypedLoad<T>()) for the type T of the elements of `in`.
  template <class With> __device__ __forceinline__ static void typed(const Source& in, With with) {
    switch (in.dtype) {
      case Dtype::U8: return with(TypedLoad<uint8_t>());
      case Dtype::I8: return with(TypedLoad<int8_t>());
      case Dtype::I16: return with(TypedLoad<int16_t>());
      case Dtype::Bool: return with(TypedLoad<Bool>());
      default: return with(TypedLoad<int32_t>());
    }
  }
  // As those of TypedLoad.
  template <int N>
  __device__ static void run(const Source& in, int64_t offset, int64_t stride, int64_t count, int32_t (&items)[N]) {
    typed(in, [&](auto load) {
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (i < count) items[i] = convert<int32_t>(load.one(in, offset + i * stride));
    });
  }
  __device__ static void packed(const Source& in, int64_t offset, int32_t* items) {
    typed(in, [&](auto load) {
      typename decltype(load)::Element x[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; i += load.kWidth) load.packed(in, offset + i, x + i);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) items[i] = convert<int32_t>(x[i]);
    });
  }
};
template <class Load> constexpr bool kSmallInts = std::is_same<Load, SmallInts>::value;
// Calls with(TypedLoad<T>()) for the type T of a call's elements in memory, be it known at compile time or not.
template <class Load, class With> __device__ __forceinline__ void with_type(const Source& in, With with) {
  if constexpr (kSmallInts<Load>) SmallInts::typed(in, with);
  else with(Load());
}
template <class Load, class T> __device__ __forceinline__ typename Load::Element as_element(T x) {
  if constexpr (kSmallInts<Load>) return convert<int32_t>(x);
  else return x;
}

// Results of the dtype that torch gives by default.
template <class O> struct TypedStore {
  using Element = O;
  static constexpr int kWidth = sizeof(O) < 2 ? 8 : 16 / int(sizeof(O));
  template <class Result> __device__ static void one(const ScanCall& call, int64_t offset, Result v) {
    global(static_cast<O*>(call.out.values))[offset] = round_to<O>(v);
  }
  // The kWidth elements from `first` on of the words w, at a multiple of kWidth elements from a 16-byte boundary.
  __device__ static void vector(const ScanCall& call, int64_t offset, const uint32_t* w, int first) {
    Granule g;
    memcpy(&g, w + first * sizeof(O) / 4, sizeof g);
    store_wide(reinterpret_cast<Granule*>(static_cast<O*>(call.out.values) + offset), g);
  }
  // A whole group of results of scan S.
  template <class S, class Result>
  __device__ static void group(const ScanCall& call, int64_t offset, const Result (&v)[kGroup]) {
    uint32_t w[kGroupWords<O>];
    round_group<O, S>(v, w);
#pragma unroll
    for (int i = 0; i < kGroup; i += kWidth) vector(call, offset + i, w, i);
  }
};
// Results of 16-bit floats T, or the same scan's as float32: what the call says.
template <class T> struct EitherStore {
  using Element = T;
  static constexpr int kWidth = TypedStore<T>::kWidth;
  template <class Result> __device__ static void one(const ScanCall& call, int64_t offset, Result v) {
    if (call.out.dtype == Dtype::F32) TypedStore<float>::one(call, offset, v);
    else TypedStore<T>::one(call, offset, v);
  }
  template <class S, class Result>
  __device__ static void group(const ScanCall& call, int64_t offset, const Result (&v)[kGroup]) {
    if (call.out.dtype == Dtype::F32) TypedStore<float>::template group<S>(call, offset, v);
    else TypedStore<T>::template group<S>(call, offset, v);
  }
};
template <class Store> constexpr bool kEither = false;
template <class T> constexpr bool kEither<EitherStore<T>> = true;
// The store of results that take the place of elements.
template <class Store> struct NarrowStore { using type = Store; };
template <class T> struct NarrowStore<EitherStore<T>> { using type = TypedStore<T>; };
// Results of any dtype.
struct AnyStore {
  static constexpr int kWidth = 1;
  template <class Result> __device__ static void one(const ScanCall& call, int64_t offset, Result v) {
    store_as(call.out.dtype, global(call.out.values), offset, v);
  }
};

// Values as they are, and indices.
template <class E> struct IndexedStore {
  using Element = E;
  static constexpr int kWidth = 16 / int(sizeof(E));
  template <class Result> __device__ static void one(const ScanCall& call, int64_t offset, const Result& v) {
    global(static_cast<E*>(call.out.values))[offset] = v.value;
    global(call.out.indices)[offset] = call.index_of(v.index);
  }
};
// Values of any integer type, and indices.
struct AnyIndexedStore {
  static constexpr int kWidth = 1;
  template <class Result> __device__ static void one(const ScanCall& call, int64_t offset, const Result& v) {
    store_as(call.out.dtype, global(call.out.values), offset, v.value);
    global(call.out.indices)[offset] = call.index_of(v.index);
  }
};

template <class Load> constexpr bool is_pair = false;  // of two inputs
template <class E> constexpr bool is_pair<PairLoad<E>> = true;
template <class Load> constexpr int kInputsOf = 1;  // that have elements of their own
template <class E> constexpr int kInputsOf<PairLoad<E>> = 2;
template <class E> constexpr int kInputsOf<TripleLoad<E>> = 3;

template <class Load> struct ElementOf { using type = typename Load::Element; };
template <class E> struct ElementOf<PairLoad<E>> { using type = E; };
template <class E> struct ElementOf<TripleLoad<E>> { using type = E; };
template <class Load> using element_of = typename ElementOf<Load>::type;

// Whether whole groups of a row lie aligned to 16 bytes, if the one whose first position is at p does.
template <class E> __device__ __forceinline__ bool is_wide(const E* p, int64_t stride) {
  return (stride == 1 || stride == -1) & (reinterpret_cast<uintptr_t>(p + (stride < 0)) % 16 == 0);
}

// Whether the kernels for one input, one output and small accumulators are compiled for these.
template <class S, class Load, class Store> constexpr bool kCompact =
    Load::kWidth > 1 && S::kInputs == 1 && !S::kIndexed && sizeof(typename S::Acc) <= 8;
// Whether the one for two inputs is.
template <class S, class Load, class Store> constexpr bool kTwoInputs = Load::kWidth > 1 && S::kInputs == 2;
// The same where results take the place of elements.
template <class S, class Load, class Store> constexpr bool kInPlace = [] {
  if constexpr (kCompact<S, Load, Store>) return std::is_same<typename Load::Element, typename Store::Element>::value;
  else return false;
}();

// Strides along the scanned dim. A layout without one has a single position.
struct ScanStride { int64_t in, out; };
__device__ __forceinline__ ScanStride scan_stride(const Layout& layout) {
  return layout.reduced ? ScanStride{layout.in[layout.kept], layout.out[layout.kept]} : ScanStride{0, 0};
}

// The 8 elements from `first` on of a row that starts at `base`; those past the end are absent. `granules`: they can be
// loaded 16 bytes at a time where they go up in memory.
template <class S, class Load>
__device__ __forceinline__ void load_group(const ScanCall& call, bool granules, int64_t base, int64_t stride,
                                           int64_t first, typename Load::Element (&x)[kGroup]) {
  const int64_t n = call.layout.length;
  if (Load::kWidth > 1 && granules && stride == 1 && first + kGroup <= n) {
#pragma unroll
    for (int i = 0; i < kGroup; i += Load::kWidth) Load::packed(call.in, base + first + i, x + i);
  } else {
    Load::run(call.in, base + first * stride, stride, n - first, x);
  }
}

// Where a row starts, and how far apart its positions are, in an input, or in two.
struct PairOffset { int64_t b, a; };
template <class Load> __device__ __forceinline__ auto input_start(const ScanCall& call, RowStart start, int64_t row) {
  if constexpr (is_pair<Load>) return PairOffset{start.in, row_offset(call.layout, call.more_strides[0], row)};
  else return start.in;
}
template <class Load> __device__ __forceinline__ auto input_stride(const ScanCall& call, ScanStride stride) {
  if constexpr (is_pair<Load>)
    return PairOffset{stride.in, call.layout.reduced ? call.more_strides[0][call.layout.kept] : 0};
  else return stride.in;
}

// A group's elements as they are loaded: those of a pair in memory order, unlike their positions where they go down in
// memory, and as words.
template <class Load> struct Loaded { typename Load::Element x[kGroup]; };
template <class E> struct Loaded<PairLoad<E>> { uint32_t a[kGroupWords<E>], b[kGroupWords<E>]; };

template <class S, class Load>
__device__ __forceinline__ void load_group(const ScanCall& call, bool granules, int64_t base, int64_t stride,
                                           int64_t first, Loaded<Load>& group) {
  load_group<S, Load>(call, granules, base, stride, first, group.x);
}
template <class S, class Load>
__device__ __forceinline__ void load_group(const ScanCall& call, bool, PairOffset base, PairOffset stride,
                                           int64_t first, Loaded<Load>& group) {
  using E = decltype(Load::Element::b);
  const int64_t left = call.layout.length - first;
  const int end = left < kGroup ? int(left) : kGroup;
  load_words(static_cast<const E*>(call.in.data) + base.b + first * stride.b, stride.b, 0, end, group.b);
  load_words(static_cast<const E*>(call.in.more[0]) + base.a + first * stride.a, stride.a,
             Load::has_a(call, first) ? 0 : 1, end, group.a);
}

// The items of the group whose elements are x, those past the end absent, and its total.
template <class S, class Element>
__device__ __forceinline__ typename S::Acc form_group(const S& op, const Element (&x)[kGroup], int64_t first, int64_t n,
                                                      typename S::Item (&items)[kGroup]) {
#pragma unroll
  for (int i = 0; i < kGroup; ++i) items[i] = first + i < n ? op.load(x[i], first + i) : S::absent_item();
  return S::group(items);
}

// A group's elements in the order of their positions.
template <class Load, class Stride>
__device__ __forceinline__ void in_order(const Loaded<Load>& group, const Stride& stride,
                                         typename Load::Element (&x)[kGroup]) {
  if constexpr (is_pair<Load>) {
    using E = element_of<Load>;
    Loaded<Load> ordered = group;
    if (stride.a < 0) reverse_words<E>(ordered.a);
    if (stride.b < 0) reverse_words<E>(ordered.b);
    E a[kGroup], b[kGroup];
    unpack(ordered.a, a);
    unpack(ordered.b, b);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) x[i] = {a[i], b[i]};
  } else {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) x[i] = group.x[i];
  }
}

template <class S, class Load, class Stride>
__device__ __forceinline__ typename S::Acc form_group(const S& op, const Loaded<Load>& group, const Stride& stride,
                                                      int64_t first, int64_t n, typename S::Item (&items)[kGroup]) {
  typename Load::Element x[kGroup];
  in_order<Load>(group, stride, x);
  return form_group(op, x, first, n, items);
}

// What an exclusive scan begins with.
template <class S> __device__ __forceinline__ typename S::Result start_of() {
  if constexpr (kHasStart<S>) return S::start();
  else return {};
}

// Results of a group: exclusive scans write each one position later, and the start to position 0.
// kReversed: 16 bytes at a time also where rows go down in memory.
template <class S, class Store, bool kReversed = S::kInputs == 2>
__device__ __forceinline__ void store_results(const ScanCall& call, bool granules, int64_t base, int64_t stride,
                                              int64_t first, const typename S::Result (&out)[kGroup]) {
  const int64_t n = call.layout.length;
  if constexpr (Store::kWidth > 1 && !S::kIndexed)
    if (granules && stride == 1 && !call.exclusive && first + kGroup <= n)
      return Store::template group<S>(call, base + first, out);
  if constexpr (Store::kWidth > 1 && kReversed)
    if (granules && stride == -1 && !call.exclusive && first + kGroup <= n) {
      typename S::Result up[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) up[i] = out[kGroup - 1 - i];
      return Store::template group<S>(call, base - first - (kGroup - 1), up);
    }
  const int64_t shift = call.exclusive ? 1 : 0;
  if constexpr (kHasStart<S>)
    if (shift && first == 0) Store::one(call, base, S::start());
#pragma unroll
  for (int i = 0; i < kGroup; ++i)
    if (first + i + shift < n) Store::one(call, base + (first + i + shift) * stride, out[i]);
}
template <class S, class Store>
__device__ __forceinline__ void store_group(const S& op, const ScanCall& call, bool granules, int64_t base,
                                            int64_t stride, int64_t first, typename S::Wide carry,
                                            typename S::Acc within, const typename S::Item (&items)[kGroup]) {
  typename S::Result out[kGroup];
  op.results(S::prefix(carry, within), items, out);
  store_results<S, Store>(call, granules, base, stride, first, out);
}

// Any rows. shape.lanes < 32: that many lanes a row of at most 8 * lanes elements. Else one warp walks each row.
template <class S, class Load, class Store>
__global__ void __launch_bounds__(kThreads)
    scan_rows(TR_GRID_CONSTANT ScanCall call, TR_GRID_CONSTANT scans::RowsShape shape) {
  using Acc = typename S::Acc;
  const S op{call.options};
  const Layout& layout = call.layout;
  const int64_t n = layout.length;
  const int width = shape.lanes, lane = int(threadIdx.x) % width;
  const int64_t row = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / width;
  const bool active = row < layout.rows;
  const RowStart start = active ? row_start(layout, row) : RowStart{0, 0};
  const ScanStride stride = scan_stride(layout);
  const auto from = input_start<Load>(call, start, active ? row : 0);
  const auto step = input_stride<Load>(call, stride);

  ScanCarry<S> carry(row_carry<S, Load>(call, active ? row : 0));
  Loaded<Load> next;
  int64_t first = lane * kGroup;
  if (active) load_group<S, Load>(call, shape.granules, from, step, first, next);
  for (int64_t tile = 0; tile < n; tile += kTile, first += kTile) {  // n is the same for all lanes
    typename S::Item items[kGroup];
    const Loaded<Load> group = next;
    if (active) load_group<S, Load>(call, shape.granules, from, step, first + kTile, next);
    const Acc total = form_group(op, group, step, active ? first : n, n, items);
    const Acc upto = sklansky<S>(total, lane, width);
    Acc before = shuffle(upto, (lane_id() & ~(width - 1)) + (lane == 0 ? 0 : lane - 1));
    if (lane == 0) before = S::absent();
    if (active && first < n)
      store_group<S, Store>(op, call, shape.granules, start.out, stride.out, first, carry.carry(),
                            S::combine(carry.within(), before), items);
    if (tile + kTile < n) carry.push(shuffle(upto, kLanes - 1));  // only rows of a whole warp get here
  }
}

}  // namespace torchreduce::gpu
