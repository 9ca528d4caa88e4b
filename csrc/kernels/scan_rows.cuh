// Scans with lanes along a row: short rows with a few lanes each, others with one warp each that walks its row.
#pragma once
#include "collective.cuh"

namespace torchreduce::gpu {

// Results of the dtype that torch gives by default.
template <class Acc, class O> struct TypedStore {
  static constexpr int kWidth = sizeof(O) < 2 ? 8 : 16 / int(sizeof(O));
  __device__ static void one(const ScanCall& call, int64_t offset, Acc v) {
    global(static_cast<O*>(call.out))[offset] = round_to<O>(v);
  }
  __device__ static void packed(const ScanCall& call, int64_t offset, const Acc* v) {
    Packed<O, kWidth> p;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) p.item[i] = round_to<O>(v[i]);
    store_wide(reinterpret_cast<Packed<O, kWidth>*>(static_cast<O*>(call.out) + offset), p);
  }
};
// Results of any dtype.
template <class Acc> struct AnyStore {
  static constexpr int kWidth = 1;
  __device__ static void one(const ScanCall& call, int64_t offset, Acc v) {
    store_as(call.out_dtype, global(call.out), offset, v);
  }
  __device__ static void packed(const ScanCall& call, int64_t offset, const Acc* v) { one(call, offset, v[0]); }
};

// Strides along the scanned dim. A layout without one has a single position.
struct ScanStride { int64_t in, out; };
__device__ __forceinline__ ScanStride scan_stride(const Layout& layout) {
  return layout.reduced ? ScanStride{layout.in[layout.kept], layout.out[layout.kept]} : ScanStride{0, 0};
}

// The 8 elements from `first` on of a row that starts at `base`; those past the end are absent.
template <class S, class Load>
__device__ __forceinline__ void load_group(const ScanCall& call, int64_t base, int64_t stride, int64_t first,
                                           typename Load::Element (&x)[kGroup]) {
  const int64_t n = call.layout.length;
  if (Load::kWidth > 1 && call.plan.vector_loads && first + kGroup <= n) {
#pragma unroll
    for (int i = 0; i < kGroup; i += Load::kWidth) Load::packed(call.in, base + first + i, x + i);
  } else {
    Load::run(call.in, base + first * stride, stride, n - first, x);
  }
}

// The group's own inclusive prefixes, and its total (the last one).
template <class S, class Element>
__device__ __forceinline__ typename S::Acc group_prefixes(const Element (&x)[kGroup], int64_t first, int64_t n,
                                                          typename S::Acc (&p)[kGroup]) {
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    const typename S::Acc v = first + i < n ? convert<typename S::Acc>(x[i]) : S::absent();
    p[i] = i == 0 ? v : S::combine(p[i - 1], v);
  }
  return p[kGroup - 1];
}

// Results of a group: exclusive scans write each one position later, and the start to position 0.
template <class S, class Store>
__device__ __forceinline__ void store_group(const ScanCall& call, int64_t base, int64_t stride, int64_t first,
                                            typename S::Wide carry, typename S::Acc within,
                                            typename S::Acc (&p)[kGroup]) {
  const int64_t n = call.layout.length;
  const typename S::Prefix prefix = S::prefix(carry, within);
#pragma unroll
  for (int i = 0; i < kGroup; ++i) p[i] = S::apply(prefix, p[i]);
  if (Store::kWidth > 1 && call.plan.vector_loads && !call.exclusive && first + kGroup <= n) {
#pragma unroll
    for (int i = 0; i < kGroup; i += Store::kWidth) Store::packed(call, base + first + i, p + i);
  } else {
    const int64_t shift = call.exclusive ? 1 : 0;
    if (shift && first == 0) Store::one(call, base, S::start());
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      if (first + i + shift < n) Store::one(call, base + (first + i + shift) * stride, p[i]);
  }
}

// plan.lanes < 32: that many lanes a row of at most 8 * lanes elements. Else one warp a row.
template <class S, class Load, class Store>
__global__ void __launch_bounds__(kThreads) scan_rows(TR_GRID_CONSTANT ScanCall call) {
  using Acc = typename S::Acc;
  const Layout& layout = call.layout;
  const int64_t n = layout.length;
  const int width = call.plan.lanes, lane = int(threadIdx.x) % width;
  const int64_t row = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / width;
  const bool active = row < layout.rows;
  const RowStart start = active ? row_start(layout, row) : RowStart{0, 0};
  const ScanStride stride = scan_stride(layout);

  ScanCarry<S> carry;
  typename Load::Element next[kGroup];
  int64_t first = lane * kGroup;
  if (active) load_group<S, Load>(call, start.in, stride.in, first, next);
  for (int64_t tile = 0; tile < n; tile += kTile, first += kTile) {  // n is the same for all lanes
    typename Load::Element x[kGroup];
    Acc p[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) x[i] = next[i];
    if (active) load_group<S, Load>(call, start.in, stride.in, first + kTile, next);
    const Acc total = group_prefixes<S>(x, active ? first : n, n, p);
    const Acc upto = sklansky<S>(total, width);
    Acc before = shuffle(upto, (lane_id() & ~(width - 1)) + (lane == 0 ? 0 : lane - 1));
    if (lane == 0) before = S::absent();
    if (active && first < n)
      store_group<S, Store>(call, start.out, stride.out, first, carry.carry(), S::combine(carry.within(), before), p);
    if (tile + kTile < n) carry.push(shuffle(upto, kLanes - 1));  // only rows of a whole warp get here
  }
}

}  // namespace torchreduce::gpu
