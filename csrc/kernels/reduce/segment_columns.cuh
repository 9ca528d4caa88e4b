// Sums and extremes of the rows of a matrix by segments (segments.h).
//
// Serves: floats of 2, 4 and 8 bytes, of neighbouring columns; four columns a thread where rows are whole words of as
// many. Of short segments a team of threads has one, with the results of those that have no rows. Long ones it lists:
// of their leaves a block has one at a time, and a part of its columns; its teams have eight residues each. Where rows
// are narrow a warp has a leaf and the columns of one thread, a lane the residues as far apart as a warp has lanes.
// Shared memory: of a block's leaf, where its rows are, and the values of each eight residues.
#pragma once
#include "listed_segments.cuh"

namespace torchreduce::gpu {

// The results of a segment of so many rows, in the input's type.
template <class Op>
__device__ __forceinline__ typename Op::Element result_of(const SegmentReduction& call, typename Op::Near near,
                                                          int64_t rows, typename Op::Element self) {
  using E = typename Op::Element;
  typename Op::Acc acc = Op::far(near, 0);
  if constexpr (std::is_same<Op, Sum<E>>::value) {
    using F = typename Op::Acc;
    return round_to<E>(rows ? finished_sum(call.finish, acc, convert<F>(self), rows) : empty_sum<F>(call.finish));
  } else {
    const Op op{call.options};
    using Order = Ordering<E>;
    if (rows == 0) return Order::canonical_element(Order::lowest_element(call.options.min));
    if (call.finish.onto == Onto::Self) acc = Op::combine(acc, op.load(self, 0));
    return Order::element(acc, call.options.min);
  }
}
template <class Op, int V>
__device__ __forceinline__ void store_columns(const SegmentReduction& call, int64_t offset, const Columns<Op, V>& x,
                                              int64_t rows) {
  using E = typename Op::Element;
  if constexpr (V == 1)
    if (call.out.dtype != DtypeOf<E>::value) return finish_one<Op>(call, x.of[0], rows, offset);
  E* const to = global(static_cast<E*>(call.out.values)) + offset;
  E e[V];
#pragma unroll
  for (int c = 0; c < V; ++c) e[c] = result_of<Op>(call, x.of[c], rows, call.finish.onto == Onto::Self ? to[c] : E{});
  if constexpr (V == 1) {
    *to = e[0];
  } else {
    SegmentWords<Op, V> words;
    memcpy(&words, e, sizeof words);
    store_granule(reinterpret_cast<SegmentWords<Op, V>*>(to), words);
  }
}

// The rows of N places of which there are `count`: all, as far as is known before.
template <class Op, int V, bool kAll, int N, class From>
__device__ __forceinline__ void load_rows(const SegmentReduction& call, From from, int count, int64_t column,
                                          Columns<Op, V> (&x)[N]) {
  int64_t at[N];
#pragma unroll
  for (int r = 0; r < N; ++r) at[r] = kAll || r < count ? from(r) + column : 0;
#pragma unroll
  for (int r = 0; r < N; ++r) x[r] = load_columns<Op, V>(call, kAll || r < count, at[r]);
}

// A team has a segment, unless it is long, and every so many of its columns: of one or two rows some tiles at once.
template <class Op, int V>
__global__ void TR_BLOCKS_BOUND(segments::kThreads, 3)
    reduce_short_segments(TR_GRID_CONSTANT SegmentReduction call, int team, int across,
                          TR_GRID_CONSTANT segments::Work work) {
  using namespace segments;
  using Row = Columns<Op, V>;
  constexpr int kRows = sizeof(typename Op::Element) * V == 8 ? 16 : 8, kFew = 2, kTiles = 4;
  const int64_t group = blockIdx.x / across, segment = group * (kThreads / team) + int(threadIdx.x) / team;
  const bool wanted = segment < segment_count(call);
  const SegmentAt of = wanted ? segment_at(call, segment) : SegmentAt{};
  const int64_t tile = (blockIdx.x - group * across) * team + int(threadIdx.x) % team;
  list_segments(call, work, tile == 0 && of.rows > kShort, segment, of.rows);
  if (!wanted || of.rows > kShort) return;
  const int rows = int(of.rows);
  const int64_t base = of.outer * call.outer_stride;
  const auto row = [&](int k) { return base + row_at(call, of.begin + k) * call.row_stride; };
  const int64_t first = tile * V, stride = int64_t(across) * team * V, out = of.out * call.inner;
  if (rows == 0) {
    if (call.finish.onto != Onto::New) return;
    for (int64_t column = first; column < call.inner; column += stride)
      store_columns<Op, V>(call, out + column, Row::absent(), 0);
    return;
  }
  if (rows <= kFew) {
    const int64_t from[kFew] = {row(0), rows > 1 ? row(1) : 0};
#pragma unroll 1
    for (int64_t column = first; column < call.inner; column += kTiles * stride) {
      Row x[kTiles][kFew];
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int r = 0; r < kFew; ++r) {
          const int64_t at = column + t * stride;
          x[t][r] = load_columns<Op, V>(call, r < rows && at < call.inner, from[r] + at);
        }
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const int64_t at = column + t * stride;
        if (at >= call.inner) break;
        store_columns<Op, V>(call, out + at, Row::combine(x[t][0], x[t][1]), rows);
      }
    }
    return;
  }
  const auto join = [](const Row& a, const Row& b) { return Row::combine(a, b); };
#pragma unroll 1
  for (int64_t column = first; column < call.inner; column += stride) {
    TreeStack<Row, kRows == 16 ? 4 : 5> tree;
#pragma unroll 1
    for (int k = 0; k < rows; k += kRows) {
      const auto from = [&](int r) { return row(k + r); };
      if (k + kRows <= rows) {
        Row x[kRows];
        load_rows<Op, V, true>(call, from, kRows, column, x);
        tree.push(neighbours_tree(x), join);
        continue;
      }
      Row some = Row::absent();
#pragma unroll 1
      for (int half = 0; half < kRows && k + half < rows; half += 8) {
        Row x[8];
        load_rows<Op, V, false>(call, [&](int r) { return from(half + r); }, rows - k - half, column, x);
        some = Row::combine(some, neighbours_tree(x));
      }
      tree.push(some, join);
    }
    store_columns<Op, V>(call, out + column, tree.total(Row::absent(), join), rows);
  }
}

// The tree over eight neighbouring residues of a leaf, each of which is made of its rows in order; where those are.
template <class Op, int V>
__device__ __forceinline__ Columns<Op, V> eight_residues(const SegmentReduction& call, const int64_t* from, int rows,
                                                         int first, int64_t column) {
  using Row = Columns<Op, V>;
  Row part[8];
#pragma unroll
  for (int r = 0; r < 8; ++r) part[r] = Row::absent();
#pragma unroll 1
  for (int k = first; k < rows; k += kResidues) {
    Row x[8];
    const auto at = [&](int r) { return from[k + r]; };
    if (k + 8 <= rows) load_rows<Op, V, true>(call, at, 8, column, x);
    else load_rows<Op, V, false>(call, at, rows - k, column, x);
#pragma unroll
    for (int r = 0; r < 8; ++r) part[r] = Row::combine(part[r], x[r]);
  }
  return neighbours_tree(part);
}

// A block has a leaf and the columns of one team, and then others.
template <class Op, int V>
__global__ void TR_BLOCKS_BOUND(segments::kThreads, segments::leaf_blocks(sizeof(typename Op::Element), !Op::kAnyOrder))
    reduce_segment_leaves(TR_GRID_CONSTANT SegmentReduction call, int team, TR_GRID_CONSTANT segments::Work work) {
  using namespace segments;
  constexpr int kEighths = kResidues / 8;
  __shared__ int64_t from[kLeaf];
  __shared__ typename Op::Near values[kEighths][kTeam * V];
  const int t = int(threadIdx.x), width = team * V;
  const int64_t tiles = (call.inner + width - 1) / width;
  const int64_t units = listed_leaves(call, work) * tiles;
#pragma unroll 1
  for (int64_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const int64_t listed = unit / tiles, tile = (unit - listed * tiles) * width;
    const Leaf leaf = global(work.leaves)[listed];
    const SegmentAt of = segment_at(call, leaf.segment);
    const int64_t place = of.begin + leaf.first, base = of.outer * call.outer_stride;
    const int rows = int(least(of.rows - leaf.first, kLeaf));
    for (int i = t; i < rows; i += kThreads) from[i] = base + row_at(call, place + i) * call.row_stride;
    __syncthreads();
    const int64_t column = tile + t % team * V;
#pragma unroll 1
    for (int k = t / team; k < kEighths; k += kThreads / team) {
      const Columns<Op, V> x = eight_residues<Op, V>(call, from, column < call.inner ? rows : 0, 8 * k, column);
#pragma unroll
      for (int c = 0; c < V; ++c) values[k][t % team * V + c] = x.of[c];
    }
    __syncthreads();
    if (t < width && tile + t < call.inner) {
      Columns<Op, 1> part[kEighths];
#pragma unroll
      for (int k = 0; k < kEighths; ++k) part[k].of[0] = values[k][t];
      store_leaf<Op>(call, work, leaf, of, tile + t, neighbours_tree(part).of[0]);
    }
  }
}

// A warp has a leaf and V of its columns, and then others.
template <class Op, int V>
__global__ void TR_BLOCKS_BOUND(segments::kThreads, V == 1 ? 3 : 2)
    reduce_narrow_leaves(TR_GRID_CONSTANT SegmentReduction call, TR_GRID_CONSTANT segments::Work work) {
  using namespace segments;
  using Row = Columns<Op, V>;
  constexpr int kEach = kResidues / kLanes, kWarps = kThreads / kLanes;
  constexpr int kAtOnce = V > 1 || sizeof(typename Op::Element) == 8 ? 1 : 2;  // rows of each residue on their way
  const int lane = lane_id();
  const int64_t tiles = (call.inner + V - 1) / V;
  const int64_t units = listed_leaves(call, work) * tiles;
#pragma unroll 1
  for (int64_t unit = int64_t(blockIdx.x) * kWarps + int(threadIdx.x) / kLanes; unit < units;
       unit += int64_t(gridDim.x) * kWarps) {
    const int64_t listed = unit / tiles, column = (unit - listed * tiles) * V;
    const Leaf leaf = global(work.leaves)[listed];
    const SegmentAt of = segment_at(call, leaf.segment);
    const int rows = int(least(of.rows - leaf.first, kLeaf));
    const int64_t place = of.begin + leaf.first, base = of.outer * call.outer_stride;
    Row residue[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) residue[k] = Row::absent();
    const auto take = [&](auto row) {  // row: its place in memory
      int first = 0;
#pragma unroll 1
      for (; first + kAtOnce * kResidues <= rows; first += kAtOnce * kResidues) {
        Row x[kAtOnce * kEach];
        const auto at = [&](int k) { return row(first + lane + k * kLanes); };
        load_rows<Op, V, true>(call, at, kAtOnce * kEach, column, x);
#pragma unroll
        for (int k = 0; k < kAtOnce * kEach; ++k) residue[k % kEach] = Row::combine(residue[k % kEach], x[k]);
      }
#pragma unroll 1
      for (; first < rows; first += kResidues) {
        Row x[kEach];
        const int left = rows - first - lane;
        const auto at = [&](int k) { return row(first + lane + k * kLanes); };
        load_rows<Op, V, false>(call, at, left > 0 ? (left + kLanes - 1) / kLanes : 0, column, x);
#pragma unroll
        for (int k = 0; k < kEach; ++k) residue[k] = Row::combine(residue[k], x[k]);
      }
    };
    if (call.order || call.short_order) {
      take([&](int i) { return base + row_at(call, place + i) * call.row_stride; });
    } else {
      const int64_t at = base + place * call.row_stride;
      const int stride = int(call.row_stride);
      if (stride == call.row_stride && int64_t(stride) * kLeaf <= INT32_MAX)
        take([&](int i) { return at + i * stride; });
      else take([&](int i) { return at + i * call.row_stride; });
    }
    const auto join = [](const auto& a, const auto& b) { return Op::combine(a, b); };
#pragma unroll
    for (int c = 0; c < V; ++c) {
      typename Op::Near value[kEach];
#pragma unroll
      for (int k = 0; k < kEach; ++k) value[k] = residue[k].of[c];
      typename Op::Near all = transposing_tree(value, kLanes, join);
#pragma unroll
      for (int d = 1; d < kEach; d *= 2) all = join(all, shuffle(all, lane ^ d));
      if (lane == c) store_leaf<Op>(call, work, leaf, of, column + c, all);
    }
  }
}

}  // namespace torchreduce::gpu
