// Sums of the rows of a matrix that have one number (segments.h).
//
// Serves: floats of 2, 4 and 8 bytes; four columns a lane where rows are whole words of as many. A warp has a place:
// where a leaf of a segment begins there, it adds up the leaf's rows for its columns, eight at a time; longer leaves
// are taken by all warps of the block, each an eighth of the residues. Segments of several leaves are finished by a
// second kernel. Shared memory: what the leaf at each place is, and the sums of the warps.
#pragma once
#include "kernels/common/collective.cuh"
#include "segments.h"

namespace torchreduce::gpu {

template <class E, int V> using SegmentWords = Packed<uint32_t, V* int(sizeof(E)) / 4>;

// The rows of a leaf, none where no leaf begins; and whether it is all of its segment, or its segment's first.
struct SegmentLeaf {
  int rows;
  bool whole, first;
};

// The end of what is equal to the place `from`, in [from + 1, end]: near ones first.
__device__ inline int64_t end_of(const int64_t* segment, int64_t from, int64_t end) {
  const int64_t own = segment[from];
  int64_t inside = from, step = 1;
  while (inside + step < end && segment[inside + step] == own) inside += step, step *= 2;
  int64_t outside = inside + step < end ? inside + step : end;
  while (outside - inside > 1) {
    const int64_t middle = inside + (outside - inside) / 2;
    if (segment[middle] == own) inside = middle;
    else outside = middle;
  }
  return outside;
}
// The first place that is equal to `from`, which is not the only one before it.
__device__ inline int64_t begin_of(const int64_t* segment, int64_t from) {
  int64_t outside = -1, inside = from;
  while (inside - outside > 1) {
    const int64_t middle = outside + (inside - outside) / 2;
    if (segment[middle] == segment[from]) inside = middle;
    else outside = middle;
  }
  return inside;
}

__device__ inline SegmentLeaf leaf_at(const SegmentCall& call, int64_t place) {
  if (place >= call.places) return {};
  const int64_t own = call.segment[place];
  if (own < 0 || own >= call.segments || own == call.skipped) return {};
  const bool first = place == 0 || call.segment[place - 1] != own;
  if (!first) {  // a later leaf begins a multiple of kLeaf after the segment
    if (place < kLeaf || call.segment[place - kLeaf] != own) return {};
    if ((place - begin_of(call.segment, place)) % kLeaf != 0) return {};
  }
  const int64_t most = place + kLeaf < call.places ? place + kLeaf : call.places;
  const int64_t end = end_of(call.segment, place, most);
  const bool more = end - place == kLeaf && end < call.places && call.segment[end] == own;
  return {int(end - place), first && !more, first};
}

// V neighbouring columns of a row, which change nothing unless `wanted`; they can be read even so.
template <class E, int V, class F> __device__ __forceinline__ void load_columns(const E* from, bool wanted, F (&x)[V]) {
  E e[V];
  if constexpr (V == 1) e[0] = *global(from);
  else unpack<E, V>(load_wide(reinterpret_cast<const SegmentWords<E, V>*>(from)).item, e);
#pragma unroll
  for (int c = 0; c < V; ++c) x[c] = wanted ? convert<F>(e[c]) : F(-0.0);
}
template <class F, int V> __device__ __forceinline__ void add(F (&to)[V], const F (&more)[V]) {
#pragma unroll
  for (int c = 0; c < V; ++c) to[c] = to[c] + more[c];
}

// The tree over eight neighbouring residues of a leaf, each of which is the sum of its rows in order.
template <class E, int V, class F>
__device__ __forceinline__ void eight_residues(const SegmentCall& call, int64_t place, int rows, int first,
                                               int64_t column, bool there, F (&sum)[V]) {
  constexpr int kRows = 8;
  F part[kRows][V];
#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int c = 0; c < V; ++c) part[r][c] = F(-0.0);
#pragma unroll 1
  for (int k = first; k < rows; k += kResidues) {
    const E* from[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      from[r] = static_cast<const E*>(call.in) + call.order[place + (k + r < rows ? k + r : k)] * call.pitch + column;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      F x[V];
      load_columns<E, V>(from[r], there && k + r < rows, x);
      add(part[r], x);
    }
  }
#pragma unroll
  for (int d = 1; d < kRows; d *= 2)
#pragma unroll
    for (int r = 0; r < kRows; r += 2 * d) add(part[r], part[r + d]);
#pragma unroll
  for (int c = 0; c < V; ++c) sum[c] = part[0][c];
}

// The sum of a leaf to its segment, or to the workspace.
template <class E, int V, class F>
__device__ __forceinline__ void keep(const SegmentCall& call, F* leaves, int64_t place, const SegmentLeaf& leaf,
                                     int64_t column, const F (&sum)[V]) {
  if (!leaf.whole) {
    F* const to = leaves + segments::leaf_slot(place, leaf.first) * call.columns + column;
#pragma unroll
    for (int c = 0; c < V; ++c) to[c] = sum[c];
    return;
  }
  E e[V];
#pragma unroll
  for (int c = 0; c < V; ++c) e[c] = round_to<E>(sum[c]);
  E* const to = global(static_cast<E*>(call.out)) + call.segment[place] * call.columns + column;
  if constexpr (V == 1) {
    *to = e[0];
  } else {
    SegmentWords<E, V> words;
    memcpy(&words, e, sizeof words);
    store_granule(reinterpret_cast<SegmentWords<E, V>*>(to), words);
  }
}

template <class E, int V, class F>
__global__ void __launch_bounds__(segments::kThreads, 2)
    sum_segment_leaves(TR_GRID_CONSTANT SegmentCall call, int across, F* leaves) {
  using namespace segments;
  constexpr int kWarps = kPlaces, kTile = kLanes * V, kEach = kResidues / kWarps;
  __shared__ SegmentLeaf leaf[kPlaces];
  __shared__ F sums[kWarps][kTile];
  const int warp = int(threadIdx.x) / kLanes;
  const int64_t group = blockIdx.x / across, first = group * kPlaces;
  if (lane_id() == 0) leaf[warp] = leaf_at(call, first + warp);
  __syncthreads();

#pragma unroll 1
  for (int64_t tile = blockIdx.x - group * across; tile * kTile < call.columns; tile += across) {
    const int64_t column = tile * kTile + lane_id() * V;
    const bool there = column < call.columns;
    const int64_t safe = there ? column : 0;
    if (const SegmentLeaf own = leaf[warp]; own.rows > 0 && own.rows <= kShort) {
      static_assert(kShort == 64, "a tree over eight trees");
      F eighth[8][V];
#pragma unroll
      for (int k = 0; k < 8; ++k) {
#pragma unroll
        for (int c = 0; c < V; ++c) eighth[k][c] = F(-0.0);
        if (8 * k < own.rows) eight_residues<E, V>(call, first + warp, own.rows, 8 * k, safe, there, eighth[k]);
      }
#pragma unroll
      for (int d = 1; d < 8; d *= 2)
#pragma unroll
        for (int k = 0; k < 8; k += 2 * d) add(eighth[k], eighth[k + d]);
      if (there) keep<E, V>(call, leaves, first + warp, own, column, eighth[0]);
    }
#pragma unroll 1
    for (int p = 0; p < kPlaces; ++p) {
      const SegmentLeaf shared = leaf[p];
      if (shared.rows <= kShort) continue;
      static_assert(kEach == 32, "a tree over four trees");
      F part[4][V];
#pragma unroll
      for (int k = 0; k < 4; ++k)
        eight_residues<E, V>(call, first + p, shared.rows, warp * kEach + 8 * k, safe, there, part[k]);
      add(part[0], part[1]);
      add(part[2], part[3]);
      add(part[0], part[2]);
#pragma unroll
      for (int c = 0; c < V; ++c) sums[warp][lane_id() * V + c] = part[0][c];
      __syncthreads();
      if (warp == 0) {
        F all[kWarps][V];
#pragma unroll
        for (int w = 0; w < kWarps; ++w)
#pragma unroll
          for (int c = 0; c < V; ++c) all[w][c] = sums[w][lane_id() * V + c];
#pragma unroll
        for (int d = 1; d < kWarps; d *= 2)
#pragma unroll
          for (int w = 0; w < kWarps; w += 2 * d) add(all[w], all[w + d]);
        if (there) keep<E, V>(call, leaves, first + p, shared, column, all[0]);
      }
      __syncthreads();
    }
  }
}

// The tree over the leaves of a segment that has several. A warp has a place, and does nothing unless such a segment
// begins there; a lane has a column.
template <class E, class F>
__global__ void __launch_bounds__(segments::kThreads)
    fold_segment_leaves(TR_GRID_CONSTANT SegmentCall call, int across, const F* leaves) {
  using namespace segments;
  const int64_t group = blockIdx.x / across, place = group * kPlaces + int(threadIdx.x) / kLanes;
  if (place + kLeaf >= call.places) return;
  const int64_t own = call.segment[place];
  if (own < 0 || own >= call.segments || own == call.skipped || call.segment[place + kLeaf] != own) return;
  if (place > 0 && call.segment[place - 1] == own) return;
#pragma unroll 1
  for (int64_t column = (blockIdx.x - group * across) * kLanes + lane_id(); column < call.columns;
       column += int64_t(across) * kLanes) {
    TreeStack<F, 24> tree;
#pragma unroll 1
    for (int64_t at = place; at < call.places && call.segment[at] == own; at += kLeaf)
      tree.push(leaves[leaf_slot(at, at == place) * call.columns + column], [](F a, F b) { return a + b; });
    const F total = tree.total(F(-0.0), [](F a, F b) { return a + b; });
    global(static_cast<E*>(call.out))[own * call.columns + column] = round_to<E>(total);
  }
}

}  // namespace torchreduce::gpu
