// Sums of the rows of a matrix by segments (segments.h).
//
// Serves: floats of 2, 4 and 8 bytes; four columns a thread where rows are whole words of as many. One kernel finds
// where each segment begins, and lists the leaves of those that are not short. Of short segments a team of threads has
// one, with the zeros of those that have no rows. Of the listed leaves a block has one at a time, and a part of its
// columns; its teams have eight residues each. Segments of several leaves are finished by a last kernel. Shared memory:
// of a leaf, where its rows are, and the sums of each eight residues.
#pragma once
#include "kernels/common/collective.cuh"
#include "segments.h"

namespace torchreduce::gpu {

template <class E, int V> using SegmentWords = Packed<uint32_t, V* int(sizeof(E)) / 4>;

// Sums of neighbouring columns.
template <class F, int V> struct Columns { F of[V]; };
template <class F, int V> __device__ __forceinline__ Columns<F, V> absent_columns() {
  Columns<F, V> x;
#pragma unroll
  for (int c = 0; c < V; ++c) x.of[c] = F(-0.0);
  return x;
}
template <class F, int V>
__device__ __forceinline__ Columns<F, V> operator+(const Columns<F, V>& a, const Columns<F, V>& b) {
  Columns<F, V> sum;
#pragma unroll
  for (int c = 0; c < V; ++c) sum.of[c] = a.of[c] + b.of[c];
  return sum;
}
// The tree over neighbours.
template <int N, class T> __device__ __forceinline__ T neighbours_tree(T (&x)[N]) {
#pragma unroll
  for (int d = 1; d < N; d *= 2)
#pragma unroll
    for (int i = 0; i < N; i += 2 * d) x[i] = x[i] + x[i + d];
  return x[0];
}

__device__ __forceinline__ int64_t row_at(const SegmentCall& call, int64_t place) {
  return call.order ? global(call.order)[place] : place;
}

template <class E, int V, class F>
__device__ __forceinline__ Columns<F, V> load_columns(const SegmentCall& call, bool wanted, int64_t offset) {
  const E* const from = static_cast<const E*>(call.in) + offset;
  E e[V] = {};
  if (wanted) {
    if constexpr (V == 1) e[0] = *global(from);
    else unpack<E, V>(load_wide(reinterpret_cast<const SegmentWords<E, V>*>(from)).item, e);
  }
  Columns<F, V> x;
#pragma unroll
  for (int c = 0; c < V; ++c) x.of[c] = wanted ? convert<F>(e[c]) : F(-0.0);
  return x;
}
// The sums of a segment of so many rows, on their way to memory.
template <class E, int V, class F>
__device__ __forceinline__ void store_columns(const SegmentCall& call, int64_t offset, const Columns<F, V>& sum,
                                              int64_t rows) {
  E* const to = global(static_cast<E*>(call.out)) + offset;
  E e[V];
#pragma unroll
  for (int c = 0; c < V; ++c) {
    const F self = call.finish.onto == Onto::Self ? convert<F>(to[c]) : F(0);
    e[c] = round_to<E>(finished_sum(call.finish, sum.of[c], self, rows));
  }
  if constexpr (V == 1) {
    *to = e[0];
  } else {
    SegmentWords<E, V> words;
    memcpy(&words, e, sizeof words);
    store_granule(reinterpret_cast<SegmentWords<E, V>*>(to), words);
  }
}

// A thread has a place.
__global__ void __launch_bounds__(segments::kThreads) number_segment_places(TR_GRID_CONSTANT KeyCall call) {
  const int64_t place = int64_t(blockIdx.x) * segments::kThreads + threadIdx.x;
  if (place < call.places) call.take(place);
}

// A thread has a segment, and looks for its first place, or has it by its offset. The last one of a block has the next
// block's first. Offsets that fall may have more leaves than there is room for: those beyond are left out.
__global__ void __launch_bounds__(segments::kThreads)
    bound_segments(TR_GRID_CONSTANT SegmentCall call, TR_GRID_CONSTANT segments::Work work) {
  using namespace segments;
  __shared__ int64_t bound[kThreads];
  const int t = int(threadIdx.x);
  const int64_t segment = int64_t(blockIdx.x) * (kThreads - 1) + t;
  if (segment <= call.segments) {
    int64_t from = 0, to = call.places;
    if (call.offsets) from = to = offset_within(global(call.offsets), call.offsets_dtype, segment, call.places);
    while (from < to) {
      const int64_t middle = from + (to - from) / 2;
      if (call.number_at(middle) < segment) from = middle + 1;
      else to = middle;
    }
    bound[t] = from;
    if (t < kThreads - 1) global(work.begin)[segment] = from;
  }
  __syncthreads();
  if (t == kThreads - 1 || segment >= call.segments || !work.counts) return;
  const int64_t rows = bound[t + 1] - bound[t];
  if (rows <= kShort) return;
  const auto reserve = [&](int list, int64_t count) {
    return int64_t(atomicAdd(reinterpret_cast<unsigned long long*>(global(work.counts + list)), uint64_t(count)));
  };
  const int64_t leaves = (rows + kLeaf - 1) / kLeaf, slot = reserve(0, leaves), most = most_leaves(call.places);
#pragma unroll 1
  for (int64_t k = 0; k < leaves && slot + k < most; ++k) global(work.leaves)[slot + k] = {segment, k * kLeaf};
  if (leaves == 1) return;
  const int64_t at = reserve(1, 1);
  if (at < most_several(call.places)) global(work.several)[at] = segment;
}

// The rows of N places of which there are `count`: all, as far as is known before.
template <class E, int V, class F, bool kAll, int N, class From>
__device__ __forceinline__ void load_rows(const SegmentCall& call, From from, int count, int64_t column,
                                          Columns<F, V> (&x)[N]) {
  int64_t at[N];
#pragma unroll
  for (int r = 0; r < N; ++r) at[r] = kAll || r < count ? from(r) + column : 0;
#pragma unroll
  for (int r = 0; r < N; ++r) x[r] = load_columns<E, V, F>(call, kAll || r < count, at[r]);
}

// A team has a segment, unless it is long, and every so many of its columns: of one or two rows some tiles at once.
template <class E, int V, class F>
__global__ void TR_BLOCKS_BOUND(segments::kThreads, 3)
    sum_short_segments(TR_GRID_CONSTANT SegmentCall call, int team, int across, const int64_t* begin) {
  using namespace segments;
  constexpr int kRows = sizeof(E) * V == 8 ? 16 : 8, kFew = 2, kTiles = 4;
  const int64_t group = blockIdx.x / across, segment = group * (kThreads / team) + int(threadIdx.x) / team;
  if (segment >= call.segments) return;
  const int64_t place = global(begin)[segment], all = global(begin)[segment + 1] - place;
  if (all > kShort) return;
  const int rows = all < 0 ? 0 : int(all);
  const auto row = [&](int k) { return row_at(call, place + k) * call.pitch; };
  const int64_t first = ((blockIdx.x - group * across) * team + int(threadIdx.x) % team) * V;
  const int64_t stride = int64_t(across) * team * V, out = segment * call.columns;
  if (rows == 0) {
    if (call.finish.onto != Onto::New) return;
    Columns<F, V> nothing;
#pragma unroll
    for (int c = 0; c < V; ++c) nothing.of[c] = empty_sum<F>(call.finish);
    for (int64_t column = first; column < call.columns; column += stride)
      store_columns<E, V>(call, out + column, nothing, 1);
    return;
  }
  if (rows <= kFew) {
    const int64_t from[kFew] = {row(0), rows > 1 ? row(1) : 0};
#pragma unroll 1
    for (int64_t column = first; column < call.columns; column += kTiles * stride) {
      Columns<F, V> x[kTiles][kFew];
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int r = 0; r < kFew; ++r) {
          const int64_t at = column + t * stride;
          x[t][r] = load_columns<E, V, F>(call, r < rows && at < call.columns, from[r] + at);
        }
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const int64_t at = column + t * stride;
        if (at >= call.columns) break;
        store_columns<E, V>(call, out + at, x[t][0] + x[t][1], rows);
      }
    }
    return;
  }
  const auto add = [](const auto& a, const auto& b) { return a + b; };
#pragma unroll 1
  for (int64_t column = first; column < call.columns; column += stride) {
    TreeStack<Columns<F, V>, kRows == 16 ? 4 : 5> tree;
#pragma unroll 1
    for (int k = 0; k < rows; k += kRows) {
      const auto from = [&](int r) { return row(k + r); };
      if (k + kRows <= rows) {
        Columns<F, V> x[kRows];
        load_rows<E, V, F, true>(call, from, kRows, column, x);
        tree.push(neighbours_tree(x), add);
        continue;
      }
      Columns<F, V> sum = absent_columns<F, V>();
#pragma unroll 1
      for (int half = 0; half < kRows && k + half < rows; half += 8) {
        Columns<F, V> x[8];
        load_rows<E, V, F, false>(call, [&](int r) { return from(half + r); }, rows - k - half, column, x);
        sum = sum + neighbours_tree(x);
      }
      tree.push(sum, add);
    }
    store_columns<E, V>(call, out + column, tree.total(absent_columns<F, V>(), add), rows);
  }
}

// The tree over eight neighbouring residues of a leaf, each of which is the sum of its rows in order; where those are.
template <class E, int V, class F>
__device__ __forceinline__ Columns<F, V> eight_residues(const SegmentCall& call, const int64_t* from, int rows,
                                                        int first, int64_t column) {
  Columns<F, V> part[8];
#pragma unroll
  for (int r = 0; r < 8; ++r) part[r] = absent_columns<F, V>();
#pragma unroll 1
  for (int k = first; k < rows; k += kResidues) {
    Columns<F, V> x[8];
    const auto at = [&](int r) { return from[k + r]; };
    if (k + 8 <= rows) load_rows<E, V, F, true>(call, at, 8, column, x);
    else load_rows<E, V, F, false>(call, at, rows - k, column, x);
#pragma unroll
    for (int r = 0; r < 8; ++r) part[r] = part[r] + x[r];
  }
  return neighbours_tree(part);
}

// A block has a leaf and the columns of one team, and then others.
template <class E, int V, class F>
__global__ void TR_BLOCKS_BOUND(segments::kThreads, segments::leaf_blocks(sizeof(E)))
    sum_segment_leaves(TR_GRID_CONSTANT SegmentCall call, int team, TR_GRID_CONSTANT segments::Work work) {
  using namespace segments;
  constexpr int kEighths = kResidues / 8;
  __shared__ int64_t from[kLeaf];
  __shared__ F sums[kEighths][kTeam * V];
  const int t = int(threadIdx.x), width = team * V;
  const int64_t tiles = (call.columns + width - 1) / width;
  const int64_t units = least(int64_t(global(work.counts)[0]), most_leaves(call.places)) * tiles;
#pragma unroll 1
  for (int64_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const int64_t listed = unit / tiles, tile = (unit - listed * tiles) * width;
    const Leaf leaf = global(work.leaves)[listed];
    const int64_t begin = global(work.begin)[leaf.segment], all = global(work.begin)[leaf.segment + 1] - begin;
    const int64_t place = begin + leaf.first;
    const int rows = int(all - leaf.first < kLeaf ? all - leaf.first : kLeaf);
    for (int i = t; i < rows; i += kThreads) from[i] = row_at(call, place + i) * call.pitch;
    __syncthreads();
    const int64_t column = tile + t % team * V;
#pragma unroll 1
    for (int k = t / team; k < kEighths; k += kThreads / team) {
      const Columns<F, V> sum = eight_residues<E, V, F>(call, from, column < call.columns ? rows : 0, 8 * k, column);
#pragma unroll
      for (int c = 0; c < V; ++c) sums[k][t % team * V + c] = sum.of[c];
    }
    __syncthreads();
    if (t < width && tile + t < call.columns) {
      Columns<F, 1> part[kEighths];
#pragma unroll
      for (int k = 0; k < kEighths; ++k) part[k].of[0] = sums[k][t];
      const Columns<F, 1> sum = neighbours_tree(part);
      if (all <= kLeaf) store_columns<E, 1>(call, leaf.segment * call.columns + tile + t, sum, all);
      else global(static_cast<F*>(work.sums))[leaf_slot(place, leaf.first == 0) * call.columns + tile + t] = sum.of[0];
    }
  }
}

// The trees over the leaves of segments that have several. A block has a segment and a column a lane, and then others;
// each of its warps has a part of the leaves.
template <class E, class F>
__global__ void __launch_bounds__(segments::kThreads)
    fold_segment_leaves(TR_GRID_CONSTANT SegmentCall call, TR_GRID_CONSTANT segments::Work work) {
  using namespace segments;
  constexpr int kAtOnce = 8, kParts = kThreads / kTeam;
  __shared__ F sums[kParts][kTeam];
  const int lane = int(threadIdx.x) % kTeam, part = int(threadIdx.x) / kTeam;
  const int64_t tiles = (call.columns + kTeam - 1) / kTeam;
  const int64_t units = least(int64_t(global(work.counts)[1]), most_several(call.places)) * tiles;
  const F* const kept = global(static_cast<const F*>(work.sums));
#pragma unroll 1
  for (int64_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const int64_t segment = global(work.several)[unit / tiles], column = unit % tiles * kTeam + lane;
    const int64_t begin = global(work.begin)[segment], all = global(work.begin)[segment + 1] - begin;
    const int64_t leaves = (all + kLeaf - 1) / kLeaf;
    int64_t each = kAtOnce;  // leaves of a part, a power of two
    while (each * kParts < leaves) each *= 2;
    TreeStack<Columns<F, 1>, 24> tree;
    const auto add = [](const auto& a, const auto& b) { return a + b; };
#pragma unroll 1
    for (int64_t leaf = part * each; leaf < (part + 1) * each && leaf < leaves; leaf += kAtOnce) {
      Columns<F, 1> x[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int64_t slot = leaf_slot(begin + (leaf + k) * kLeaf, leaf + k == 0);
        x[k].of[0] = leaf + k < leaves && column < call.columns ? kept[slot * call.columns + column] : F(-0.0);
      }
      tree.push(neighbours_tree(x), add);
    }
    sums[part][lane] = tree.total(absent_columns<F, 1>(), add).of[0];
    __syncthreads();
    if (part == 0 && column < call.columns) {
      Columns<F, 1> x[kParts];
#pragma unroll
      for (int k = 0; k < kParts; ++k) x[k].of[0] = sums[k][lane];
      store_columns<E, 1>(call, segment * call.columns + column, neighbours_tree(x), all);
    }
    __syncthreads();
  }
}

}  // namespace torchreduce::gpu
