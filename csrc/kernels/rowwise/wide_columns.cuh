// Row-wise ops on wide columns, which are read from memory in each of two passes.
//
// Serves: float32 and 16-bit floats, columns that start anywhere, alike in the input and the output (wide_columns.h);
// ops with one input whose first pass is for the greatest element. A tile is a leaf of neighbouring columns; a warp
// takes whole rows of it, the granules in which they lie, one a lane. All elements of a residue start alike in a
// granule, so that it is enough to move what they come to. One kernel leaves the states of leaves in memory; another
// one, when those of a column have met, writes.
// Shared memory of the first, dynamic: of each warp the levels of the tree over its residues, and after them its
// columns' sums and greatest elements; of the second, static: what its columns come to.
#pragma once
#include "column_granule.cuh"
#include "kernels/reduce/column_lanes.cuh"
#include "states.cuh"
#include "wide_columns.h"

namespace torchreduce::gpu {

struct WideColumnsPitch {
  int in, out;      // bytes from a position to the next
  const void* end;  // of the input: nothing outside is read, be it in the same 16 bytes
};

// A leaf of a tile, and how a warp reads it.
template <class Op, class E> struct WideColumns {
  using F = float;
  using Columns = ColumnGranule<E>;
  static constexpr int kSize = int(sizeof(E)), kPer = Columns::kColumns;

  const RowwiseKernelCall& call;
  const WideColumnsPitch& pitch;
  int64_t in, out;  // addresses of the first column's first element
  int64_t row;      // number of the first column
  int leaf, count;  // of the columns; its elements
  int columns;      // of the tile, and as many as are read beside
  int width, left;  // columns from one tile to the next; those up to the last one of all
  bool is_first;    // no columns lie before
  bool is_inside;   // the granules in which the columns lie are

  __device__ WideColumns(const RowwiseKernelCall& call, const RowwiseWideColumnsShape& shape,
                         const WideColumnsPitch& pitch, int64_t number, int beside)
      : call(call), pitch(pitch), width(shape.granules * kPer) {
    const int64_t inner = call.size[call.dims - 1], above = number / shape.across, outer = above / shape.leaves;
    const int first = int(number - above * shape.across) * width;
    leaf = int(above - outer * shape.leaves);
    const int64_t positions = call.length - int64_t(leaf) * kLeaf;
    count = int(positions < kLeaf ? positions : kLeaf);
    left = int(inner) - first;
    columns = width + beside < left ? width + beside : left;
    is_first = first == 0;
    row = outer * inner + first;
    const RowwiseStart start = call.start(row);
    in = int64_t(call.in[0]) + start.in[0] * kSize + int64_t(leaf) * kLeaf * pitch.in;
    out = int64_t(call.out) + start.out * kSize + int64_t(leaf) * kLeaf * pitch.out;
    const int64_t end = in + int64_t(count - 1) * pitch.in + columns * kSize;
    is_inside = (in & ~int64_t(15)) >= int64_t(call.in[0]) && ((end + 15) & ~int64_t(15)) <= int64_t(pitch.end);
  }

  // Elements before the columns in the first granule of a position.
  __device__ int before(int position) const {
    return int((unsigned(in) + unsigned(position) * unsigned(pitch.in)) & 15u) / kSize;
  }
  // The lane's granules of positions first, first + kResidues and so on, of as many as there are; else zeros.
  template <int K> __device__ __forceinline__ void load(int first, Columns (&x)[K]) const {
    const int s = before(first);
    const bool there = lane_id() * kPer < s + columns;
    int64_t address = multiply_add(first, pitch.in, in) + lane_id() * 16 - s * kSize;
#pragma unroll
    for (int k = 0; k < K; ++k, address += int64_t(kResidues) * pitch.in) {
      x[k] = Columns::of(E{});
      if (!there || first + k * kResidues >= count) continue;
      const char* const from = reinterpret_cast<const char*>(address);
      if (is_inside) x[k].template load<Stay::Long>(from);
      else x[k] = load_part<E>(call.in[0], pitch.end, from, x[k]);
    }
  }
  // Stores what a position's lanes have, of which the first one begins `s` elements before the tile: whole sectors,
  // from the first that begins in it to the last that does. At the ends of rows others share granules: there elements
  // are stored one by one, by a lane each.
  __device__ __forceinline__ void store(E* to, const Granule& g, int s, int position) const {
    const unsigned address = unsigned(out) + unsigned(position) * unsigned(pitch.out);
    const int up = int(-address % unsigned(rowwise_wide_columns::kSector)) / kSize;
    const int from = is_first ? 0 : up, end = width + up < left ? width + up : left;
    const int lane = lane_id(), column = lane * kPer - s;
    if (column >= from && column + kPer <= end) store_granule(reinterpret_cast<Granule*>(to), g);
    const bool head = is_first && s != 0, tail = (s + end) % kPer != 0;
    if (!head && !tail) return;
    const int last = (s + end - 1) / kPer, source = lane < kPer ? 0 : last;
    const int j = lane % kPer, own = source * kPer + j - s;
    uint32_t word = shuffle_word(g.item[0], source);
#pragma unroll
    for (int w = 1; w < 4; ++w) {
      const uint32_t other = shuffle_word(g.item[w], source);
      word = j * kSize / 4 == w ? other : word;
    }
    const bool wanted = lane < kPer ? head : lane < 2 * kPer && tail && !(head && last == 0);
    if (!wanted || own < from || own >= end) return;
    E* const at = to + (own - column);
    if constexpr (kSize == 4) store_item(at, bit_cast<E>(word));
    else store_item(at, bit_cast<E>(uint16_t(word >> (j % 2 * 16))));
  }
  __device__ static void elements(const Columns& g, F (&x)[kPer]) {
    E e[kPer];
    unpack<E, kPer>(g.w, e);
#pragma unroll
    for (int j = 0; j < kPer; ++j) x[j] = convert<F>(e[j]);
  }
};

// The looks of a warp at its residues of a leaf.
template <class Op, class E, int K> struct WideLook {
  using F = float;
  using T = WideColumns<Op, E>;
  using Columns = typename T::Columns;
  static constexpr int kPer = T::kPer, kRun = kResidues / rowwise_wide_columns::kWarps;
  static constexpr int kBatch = kInFlight / K, kFirstLevel = kBatch == 2, kLevels = rowwise_wide_columns::kLevels;
  static_assert(kRun == 1 << kLevels && kBatch == 1 << kFirstLevel, "a tree");

  using Piece = Packed<F, 4>;
  const T& tile;
  Piece* const levels;  // [level][piece][lane]
  F sum[kPer];
  ColumnMaxima<E> most;

  // The sums of a residue's elements x, of which `there` are, NaN where one may be too far below 0 to be central; their
  // greatest elements join `most`.
  __device__ __forceinline__ void look(Columns (&x)[K], int there, int s, F (&acc)[kPer]) {
    ColumnMaxima<E> found;
    ColumnsLeast<E> least;
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (k < there) {
        F e[kPer];
        T::elements(x[k], e);
#pragma unroll
        for (int j = 0; j < kPer; ++j) Op::central_step(acc[j], e[j]);
        found.take(x[k].w);
        least.take(x[k].w);
      }
    const bool central = least.is_within(Op::most_central());
#pragma unroll
    for (F& a : acc) a = central ? a : quiet_nan<F>();
    shift_columns(acc, s);
    Columns moved = bit_cast_words<Columns>(found);
    moved.shift(s);
    most.take(moved.w);
  }
  // The same of columns whose greatest elements are known.
  __device__ __forceinline__ void look_again(Columns (&x)[K], int there, int s, const typename Op::Seen (&seen)[kPer],
                                             F (&acc)[kPer]) const {
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (k < there) {
        x[k].shift(s);
        F e[kPer];
        T::elements(x[k], e);
#pragma unroll
        for (int j = 0; j < kPer; ++j) Op::step(&acc[j], &e[j], F(1), seen[j], typename Op::Given{});
      }
  }
  // The contiguous tree over the warp's residues: one(x, there, s, acc) of each.
  template <class One> __device__ __forceinline__ void all(One one) {
    const int first = int(threadIdx.x) / kLanes * kRun;
#pragma unroll 1
    for (int i = 0; i < kRun; i += kBatch) {
      Columns x[kBatch][K];
      F acc[kBatch][kPer];
#pragma unroll
      for (int q = 0; q < kBatch; ++q) tile.load(first + i + q, x[q]);
#pragma unroll
      for (int q = 0; q < kBatch; ++q) {
#pragma unroll
        for (F& a : acc[q]) a = F(-0.0);
        const int left = tile.count - (first + i + q);
        one(x[q], left <= 0 ? 0 : (left + kResidues - 1) / kResidues, tile.before(first + i + q), acc[q]);
      }
      if constexpr (kBatch == 2)
#pragma unroll
        for (int j = 0; j < kPer; ++j) acc[0][j] = acc[0][j] + acc[1][j];
      push(i, acc[0]);
    }
  }
  // Residue i, and with it a batch, joins the tree; `sum` is all of it in the end.
  __device__ __forceinline__ void push(int i, F (&v)[kPer]) {
#pragma unroll
    for (int l = kFirstLevel; l < kLevels; ++l) {
      Piece* const at = levels + l * (kPer / 4) * kLanes + lane_id();
      const bool joins = i >> l & 1;
#pragma unroll
      for (int p = 0; p < kPer / 4; ++p) {
        Piece piece;
        if (joins) piece = at[p * kLanes];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (joins) v[4 * p + j] = piece.item[j] + v[4 * p + j];
          else piece.item[j] = v[4 * p + j];
        }
        if (!joins) at[p * kLanes] = piece;
      }
      if (!joins) return;
    }
#pragma unroll
    for (int j = 0; j < kPer; ++j) sum[j] = v[j];
  }
};

// Leaves the states of a leaf of each column.
template <class Op, class E, int K>
__global__ void __launch_bounds__(rowwise_wide_columns::kThreads, 1)
    rowwise_wide_columns_states(TR_GRID_CONSTANT RowwiseKernelCall call, TR_GRID_CONSTANT RowwiseWideColumnsShape shape,
                                TR_GRID_CONSTANT WideColumnsPitch pitch, typename Op::State* states) {
  using F = float;
  using T = WideColumns<Op, E>;
  using L = WideLook<Op, E, K>;
  constexpr int kWarps = rowwise_wide_columns::kWarps, kColumns = kLanes * T::kPer;
  TR_DYNAMIC_SHARED(dynamic, 16);
  constexpr int kOfWarp = rowwise_wide_columns::kLevels * kColumns;
  F* const sums_of = reinterpret_cast<F*>(dynamic);  // of each warp, where its levels were
  F* const found_of = sums_of + kColumns;
  __shared__ uint32_t far_of[kWarps];
  const T tile(call, shape, pitch, blockIdx.x, 0);
  const int warp = int(threadIdx.x) / kLanes, own = lane_id() * T::kPer, c = int(threadIdx.x);
  L l{tile, reinterpret_cast<typename L::Piece*>(sums_of + warp * kOfWarp), {}, {}};
  const auto leave = [&] {
    warp_barrier();  // all lanes' trees are done
#pragma unroll
    for (int j = 0; j < T::kPer; ++j) sums_of[warp * kOfWarp + own + j] = l.sum[j];
  };
  const auto join = [&](const F* from, auto combine) {
    F v[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) v[w] = from[w * kOfWarp + c];
#pragma unroll
    for (int d = 1; d < kWarps; d *= 2)
#pragma unroll
      for (int w = 0; w < kWarps; w += 2 * d) v[w] = combine(v[w], v[w + d]);
    return v[0];
  };
  const auto add = [](F a, F b) { return a + b; };

  l.all([&](auto& x, int there, int s, auto& acc) { l.look(x, there, s, acc); });
  leave();
#pragma unroll
  for (int j = 0; j < T::kPer; ++j) found_of[warp * kOfWarp + own + j] = l.most.column(j);
  __syncthreads();
  F sum = 0, most = 0;
  bool far = false;
  if (c < tile.columns) {
    sum = join(sums_of, add);
    most = join(found_of, [](F a, F b) { return greatest(a, b); });
    far = !(sum == sum && most <= Op::most_central());
  }
  far = ballot(far) != 0;
  if (lane_id() == 0) far_of[warp] = far;
  __syncthreads();
  far = false;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) far |= far_of[w] != 0;
  if (far) {
    if (c < tile.columns) found_of[c] = most;
    __syncthreads();
    typename Op::Seen seen[T::kPer];
#pragma unroll
    for (int j = 0; j < T::kPer; ++j)
      seen[j] = Op::seen(own + j < tile.columns ? found_of[own + j] : F(0), tile.count, typename Op::Given{});
    __syncthreads();
    l.all([&](auto& x, int there, int s, auto& acc) { l.look_again(x, there, s, seen, acc); });
    leave();
    __syncthreads();
    if (c < tile.columns) sum = join(sums_of, add);
  }
  if (c < tile.columns)
    states[(tile.row + c) * shape.leaves + tile.leaf] =
        far ? Op::state(most, &sum, tile.count) : Op::central_state(most, sum);
}

// Writes a part of a leaf of each column. `totals`: the columns' states.
template <class Op, class E, int K>
__global__ void __launch_bounds__(rowwise_wide_columns::kWriters, 2)
    rowwise_wide_columns_output(TR_GRID_CONSTANT RowwiseKernelCall call, TR_GRID_CONSTANT RowwiseWideColumnsShape shape,
                                TR_GRID_CONSTANT WideColumnsPitch pitch, const typename Op::State* states,
                                const typename Op::State* totals) {
  using F = float;
  using T = WideColumns<Op, E>;
  using At = std::decay_t<decltype(Op::at(std::declval<typename Op::Row>(), std::declval<typename Op::State>()))>;
  struct OfTerm {
    At at;
    typename Op::Seen seen;
  };
  using Value = std::conditional_t<Op::kTerm, OfTerm, At>;
  constexpr int kPer = T::kPer, kWords = int(sizeof(Value)) / 4, kTable = (kLanes + 1) * (kPer + 1);
  constexpr int kRun = kResidues / rowwise_wide_columns::kParts / (rowwise_wide_columns::kWriters / kLanes);
  constexpr int kBatch = kInFlight / K;
  // Words of the columns' values; lanes, which have neighbouring granules, in banks of their own.
  __shared__ uint32_t table[kWords][kTable];
  const auto place_of = [](int column) { return column + kPer + (column + kPer) / kPer; };
  const int64_t id = gridDim.x - 1 - blockIdx.x;  // the last tiles that were looked at may still be in a cache
  const int64_t number = id / rowwise_wide_columns::kParts;
  const int part = int(id - number * rowwise_wide_columns::kParts);
  const T tile(call, shape, pitch, number, rowwise_wide_columns::kSector / T::kSize);
  const typename Op::Given given{};
  for (int c = int(threadIdx.x); c < tile.columns; c += rowwise_wide_columns::kWriters) {
    const typename Op::State state = states[(tile.row + c) * shape.leaves + tile.leaf], total = totals[tile.row + c];
    const At at = Op::at(Op::row(total, call.length, given, call.options, [](int64_t) { return F(0); }), state);
    Value value;
    if constexpr (Op::kTerm) value = {at, Op::seen(state.l, tile.count, given)};
    else value = at;
    uint32_t words[kWords];
    memcpy(words, &value, sizeof value);
#pragma unroll
    for (int w = 0; w < kWords; ++w) table[w][place_of(c)] = words[w];
  }
  __syncthreads();
  const int first = (part * (rowwise_wide_columns::kWriters / kLanes) + int(threadIdx.x) / kLanes) * kRun;
#pragma unroll 1
  for (int i = first; i < first + kRun && i < tile.count; i += kBatch) {
    typename T::Columns x[kBatch][K];
#pragma unroll
    for (int q = 0; q < kBatch; ++q) tile.load(i + q, x[q]);
#pragma unroll
    for (int q = 0; q < kBatch; ++q) {
      const int r = i + q, s = tile.before(r), column = lane_id() * kPer - s;  // of the lane's first element
      Value values[kPer];
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        uint32_t words[kWords];
#pragma unroll
        for (int w = 0; w < kWords; ++w) words[w] = table[w][place_of(column + j)];
        memcpy(&values[j], words, sizeof words);
      }
      int64_t address = multiply_add(r, pitch.out, tile.out) + int64_t(column) * T::kSize;
#pragma unroll
      for (int k = 0; k < K; ++k, address += int64_t(kResidues) * pitch.out) {
        if (r + k * kResidues >= tile.count) break;
        F y[kPer];
        T::elements(x[q][k], y);
#pragma unroll
        for (int j = 0; j < kPer; ++j) {
          if constexpr (Op::kTerm) y[j] = Op::map(Op::term(y[j], values[j].seen), F(1), F(-0.0), 0, values[j].at);
          else y[j] = Op::map(&y[j], F(1), F(-0.0), 0, values[j]);
        }
        tile.store(reinterpret_cast<E*>(address), rounded_granule<E, false>(y), s, r);
      }
    }
  }
}

}  // namespace torchreduce::gpu
