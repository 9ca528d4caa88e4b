// Scans of short rows that lie one after another in memory, at any alignment: a block stages a run of rows in shared
// memory, 16 bytes at a time whatever the rows' length, and lanes pick their groups from there.
#pragma once
#include "scan_rows.cuh"

namespace torchreduce::gpu {

// 32-bit words, one left out after every 32, so that lanes 8 elements apart use different banks. Byte 0 is where the
// first granule starts; a group at either end may reach a little further.
struct Stage {
  static constexpr int kMargin = 16;  // words
  static constexpr int kWords = kStageBytes / 4 + 2 * kMargin;
  uint32_t words[kWords + kWords / 32];

  __device__ uint32_t& word(int w) { return words[w + kMargin + ((w + kMargin) >> 5)]; }

  // kCount words from any byte on, while others may be writing beside what is used of them.
  template <int kCount> __device__ void read(int byte, uint32_t (&w)[kCount]) {
    const int first = byte >> 2, shift = (byte & 3) * 8;
    uint32_t v[kCount + 1];
#pragma unroll
    for (int i = 0; i < kCount + 1; ++i) v[i] = load_beside(&word(first + i));
#pragma unroll
    for (int i = 0; i < kCount; ++i) w[i] = funnel_right(v[i], v[i + 1], shift);
  }
  // 8 neighbours; those that lie outside the run are unspecified.
  template <class E> __device__ void read_group(int byte, uint32_t (&w)[kGroupWords<E>]) {
    if constexpr (sizeof(E) < 4) {
      read(byte, w);
    } else {
#pragma unroll
      for (int i = 0; i < kGroupWords<E>; ++i) w[i] = load_beside(&word((byte >> 2) + i));
    }
  }
  template <class E> __device__ void write(int byte, E x) {
    if constexpr (sizeof(E) == 2) {
      reinterpret_cast<E*>(&word(byte >> 2))[byte >> 1 & 1] = x;
    } else {
      uint32_t w[sizeof(E) / 4];
      memcpy(w, &x, sizeof x);
#pragma unroll
      for (int i = 0; i < int(sizeof(E)) / 4; ++i) word((byte >> 2) + i) = w[i];
    }
  }
  // The elements from `begin` to `end` of 8 neighbours, and nothing else.
  template <class E> __device__ void write_group(int byte, const uint32_t (&w)[kGroupWords<E>], int begin, int end) {
    if (begin == 0 && end == kGroup && (byte & 3) == 0) {
#pragma unroll
      for (int i = 0; i < kGroupWords<E>; ++i) word((byte >> 2) + i) = w[i];
      return;
    }
    E x[kGroup];
    unpack_group(w, x);
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      if (i >= begin && i < end) write(byte + i * int(sizeof(E)), x[i]);
  }
};

template <class S, class Load, class Store>
__global__ void __launch_bounds__(kThreads) scan_staged_rows(TR_GRID_CONSTANT ScanCall call) {
  using Acc = typename S::Acc;
  using E = typename Load::Element;
  using Granule = Packed<uint32_t, 4>;
  constexpr int kSize = int(sizeof(E)), kGranule = int(sizeof(Granule)), kLoads = kStageBytes / kGranule / kThreads;
  auto combine = [](Acc l, Acc r) { return S::combine(l, r); };
  const S op{call.options};
  const Layout& layout = call.layout;
  const int n = int(layout.length), width = call.plan.lanes, lane = int(threadIdx.x) & (width - 1);
  const bool mirror = scan_stride(layout).in < 0;
  const int64_t first_row = int64_t(blockIdx.x) * call.plan.rows, left = layout.rows - first_row;
  const int rows = int(left < call.plan.rows ? left : call.plan.rows), bytes = rows * n * kSize;

  __shared__ Stage stage;
  const int64_t begin = (first_row * n - (mirror ? n - 1 : 0)) * kSize;  // from the first row's first position
  const char* in = static_cast<const char*>(call.in.data) + begin;
  const int phase = int(reinterpret_cast<uintptr_t>(in) % kGranule);
  {
    // Whole granules. The bytes before the run are in the same pages and are not used; memory may end with the run.
    const Granule* from = reinterpret_cast<const Granule*>(in - phase);
    const int granules = (phase + bytes + kGranule - 1) / kGranule;
    Granule v[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int g = int(threadIdx.x) + k * kThreads;
      if ((g + 1) * kGranule <= phase + bytes) {
        v[k] = load_granule(from + g);
      } else if (g < granules) {
        E x[kGranule / kSize];
#pragma unroll
        for (int i = 0; i < kGranule / kSize; ++i) {
          const int at = g * kGranule + i * kSize - phase;
          if (at >= 0 && at < bytes) x[i] = *global(reinterpret_cast<const E*>(in + at));
        }
        memcpy(v[k].item, x, sizeof x);
      }
    }
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int w = (int(threadIdx.x) + k * kThreads) * 4;
      if (w / 4 < granules) {
#pragma unroll
        for (int i = 0; i < 4; ++i) stage.word(w + i) = v[k].item[i];
      }
    }
  }
  __syncthreads();

  for (int pass = 0; pass < rows; pass += kThreads / width) {  // the same for all threads
    const int row = pass + int(threadIdx.x) / width;
    const bool there = row < rows;
    TreeStack<Acc, kFanLog2 + 1> tiles;
    typename S::Result before = start_of<S>();
    for (int tile = 0; tile < n; tile += kTile) {
      const int first = tile + lane * kGroup, count = there ? n - first : 0;
      const int lowest = row * n + (mirror ? n - first - kGroup : first);
      typename S::Item items[kGroup];
      typename S::Result r[kGroup];
      uint32_t w[kGroupWords<E>];
      if (count > 0) stage.read_group<E>(phase + lowest * kSize, w);
      const Acc upto = sklansky<S>(form_items<E>(op, w, first, count, mirror, items), width);
      const Acc previous = shuffle(upto, lane ? lane_id() - 1 : lane_id());
      const Acc within = S::combine(tiles.total(S::absent(), combine), lane ? previous : S::absent());
      op.results(S::prefix(S::wide_absent(), within), items, r);
      if (tile + kTile < n) tiles.push(shuffle(upto, kLanes - 1), combine);  // only rows of a whole warp get here
      if (call.exclusive) {
        const typename S::Result last = shuffle(r[kGroup - 1], kLanes - 1);
        shift_results(r, width, before);
        before = last;
      }
      if (count > 0) {
        const int all = count < kGroup ? count : kGroup;
        typename S::Result ordered[kGroup];
#pragma unroll
        for (int i = 0; i < kGroup; ++i) ordered[i] = mirror ? r[kGroup - 1 - i] : r[i];
        round_group<E>(ordered, w);
        stage.write_group<E>(phase + lowest * kSize, w, mirror ? kGroup - all : 0, mirror ? kGroup : all);
      }
    }
  }
  __syncthreads();

  char* out = static_cast<char*>(call.out.values) + begin;
  const int out_phase = int(reinterpret_cast<uintptr_t>(out) % kGranule);
  for (int g = int(threadIdx.x) * kGranule; g < out_phase + bytes; g += kThreads * kGranule) {
    Granule v;
    stage.read(phase + g - out_phase, v.item);
    if (g >= out_phase && g + kGranule <= out_phase + bytes) {
      store_wide(reinterpret_cast<Granule*>(out - out_phase + g), v);
    } else {
      E x[kGranule / kSize];
      memcpy(x, v.item, sizeof v.item);
#pragma unroll
      for (int i = 0; i < kGranule / kSize; ++i) {
        const int at = g - out_phase + i * kSize;
        if (at >= 0 && at < bytes) *global(reinterpret_cast<E*>(out + at)) = x[i];
      }
    }
  }
}

}  // namespace torchreduce::gpu
