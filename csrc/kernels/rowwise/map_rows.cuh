// Ops without looks, at the speed of a copy, along rows or across them.
//
// Serves: float32 and 16-bit floats; rows or columns of neighbours, which start anywhere in the input and the output
// (map_rows.h). The type of the elements is known at run time alone: memory is met by bytes, and the op by floats.
// A block has a tile. Its threads take the granules of 16 bytes in which the output lies, kEach of them: of a run of
// memory, which is a line or, where lines follow one another, all of them. What the input has for a granule is loaded
// as the one or two granules in which it lies, and shifted. While they are on their way, the block makes what each row
// of the tile comes with.
// Shared memory, static: the words of what each row comes with.
#pragma once
#include "column_granule.cuh"
#include "kernels/reduce/column_lanes.cuh"
#include "map_rows.h"

namespace torchreduce::gpu {

// What the rows of a tile come with. Words of rows that lanes read side by side, 8 rows apart, are in banks of their
// own.
template <class Row> struct RowTable {
  static constexpr int kWords = int(sizeof(Row)) / 4, kMost = map_rows::kMostRows;
  uint32_t words[kWords][kMost + kMost / kGroup];

  __device__ static int place(int i) { return i + i / kGroup; }
  __device__ __forceinline__ void put(int i, const Row& row) {
    uint32_t w[kWords];
    memcpy(w, &row, sizeof row);
#pragma unroll
    for (int k = 0; k < kWords; ++k) words[k][place(i)] = w[k];
  }
  __device__ __forceinline__ Row row(int i) const {
    uint32_t w[kWords];
#pragma unroll
    for (int k = 0; k < kWords; ++k) w[k] = words[k][place(i)];
    Row r;
    memcpy(&r, w, sizeof r);
    return r;
  }
};

// The tile of a block, and the granules that a thread has of it.
struct MapTile {
  // Where a granule is: of a run that starts in line `line`, and has `count` elements, those from `first` on, which is
  // less than 0 where the run starts within a granule. There are none where first >= count.
  struct Place {
    const char* from;
    char* to;
    int line, first, count;
  };
  // The granules in which the input's 16 bytes from `from` on lie.
  struct Loaded { Granule low, high; };
  static constexpr int kEach = map_rows::kEach;

  const RowwiseKernelCall& call;
  const MapRowsShape& shape;
  int64_t row, position;  // of its first element
  int lines, width;       // that are there
  int size, per;          // bytes of an element; elements of a granule
  Place start;            // of the thread's first granule
  bool single, inside;    // nearly always: the tile is one run; and what its granules need is within the input

  __device__ MapTile(const RowwiseKernelCall& call, const MapRowsShape& shape) : call(call), shape(shape) {
    const unsigned above = blockIdx.x / unsigned(shape.side), outer = above / unsigned(shape.down);
    const int64_t in_line = int64_t(blockIdx.x - above * unsigned(shape.side)) * shape.width;
    const int64_t line = int64_t(above - outer * unsigned(shape.down)) * shape.lines;
    const int64_t beside = shape.across ? call.size[call.dims - 1] : call.length;
    const int64_t rest = beside - in_line, below = (shape.across ? call.length : call.rows) - line;
    row = shape.across ? outer * beside + in_line : line;
    position = shape.across ? line : in_line;
    lines = int(below < shape.lines ? below : shape.lines);
    width = int(rest < shape.width ? rest : shape.width);
    size = call.out_dtype == Dtype::F32 ? 4 : 2;
    per = 16 / size;
    start = found(0);
    single = shape.one_run || lines == 1;
    inside = single && aligned(start) >= call.in[0] &&
             static_cast<const void*>(aligned(stepped(kEach - 1)) + 2) <= call.end[0];
  }
  __device__ int rows() const { return shape.across ? width : lines; }
  __device__ static int off(const Place& p) { return int(reinterpret_cast<uintptr_t>(p.from) & 15); }
  __device__ static const Granule* aligned(const Place& p) { return reinterpret_cast<const Granule*>(p.from - off(p)); }

  // The thread's granule number k; where the tile is one run, and anywhere.
  __device__ __forceinline__ Place place(int k) const { return single ? stepped(k) : found(k); }
  __device__ __forceinline__ Place stepped(int k) const {
    const int step = k * int(blockDim.x);
    return {start.from + step * 16, start.to + step * 16, start.line, start.first + step * per, start.count};
  }
  __device__ __forceinline__ Place found(int k) const {
    const int number = int(threadIdx.x) + k * int(blockDim.x), run = shape.by_granules.quotient(number);
    const int runs = shape.one_run ? 1 : lines, in_run = run < runs ? run : 0;
    const RowwiseStart start = call.start(shape.across ? row : row + in_run);
    const int64_t at = shape.across ? position + in_run : position;
    char* const to = static_cast<char*>(call.out) + (start.out + at * shape.out_pitch) * size;
    Place p;
    p.line = in_run;
    p.count = run < runs ? (shape.one_run ? lines * width : width) : -per;  // less than any `first`
    p.first = (number - run * shape.granules) * per - int(reinterpret_cast<uintptr_t>(to) & 15) / size;
    p.to = to + int64_t(p.first) * size;
    p.from = static_cast<const char*>(call.in[0]) + (start.in[0] + at * shape.in_pitch + p.first) * size;
    return p;
  }

  // What is not wanted, and what is outside the input, is 0.
  __device__ __forceinline__ void load(bool wanted, Loaded (&g)[kEach]) const {
#pragma unroll
    for (Loaded& each : g) each = Loaded{};
    if (!wanted) return;
    if (inside) {
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        const Place p = stepped(k);
        load_if(p.first < p.count, aligned(p), g[k].low);
        load_if(p.first < p.count && off(p) > 0, aligned(p) + 1, g[k].high);
      }
      return;
    }
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const Place p = place(k);
      const Granule* const from = aligned(p);
      const bool there = p.first < p.count, two = off(p) > 0;
      const bool within = from >= call.in[0] && static_cast<const void*>(from + (two ? 2 : 1)) <= call.end[0];
      load_if(there && within, from, g[k].low);
      load_if(there && within && two, from + 1, g[k].high);
      if (there && !within) {
        g[k].low = part(from);
        if (two) g[k].high = part(from + 1);
      }
    }
  }
  // At an end of the input, by 2 bytes.
  __device__ __forceinline__ Granule part(const Granule* from) const {
    const auto g =
        load_part<BF16>(call.in[0], call.end[0], reinterpret_cast<const char*>(from), ColumnGranule<BF16>::of(BF16{}));
    return bit_cast_words<Granule>(g.w);
  }
  // The input's 16 bytes from p.from on.
  __device__ __forceinline__ static Granule joined(const Loaded& g, const Place& p) {
    const int bytes = off(p);
    if (bytes == 0) return g.low;
    uint32_t w[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      w[i] = g.low.item[i];
      w[4 + i] = g.high.item[i];
    }
#pragma unroll
    for (int i = 0; i < 6; ++i) w[i] = (bytes & 8) != 0 ? w[i + 2] : w[i];
#pragma unroll
    for (int i = 0; i < 5; ++i) w[i] = (bytes & 4) != 0 ? w[i + 1] : w[i];
    Granule out;
#pragma unroll
    for (int i = 0; i < 4; ++i) out.item[i] = funnel_right(w[i], w[i + 1], (bytes & 2) * 8);
    return out;
  }
  // Of granules at the ends of a run its elements alone.
  __device__ __forceinline__ void store(const Place& p, const Granule& g) const {
    if (p.first >= 0 && p.first + per <= p.count) return store_item(reinterpret_cast<Granule*>(p.to), g);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i >= per) break;
      if (p.first + i < 0 || p.first + i >= p.count) continue;
      if (size == 4) reinterpret_cast<uint32_t*>(p.to)[i] = g.item[i % 4];
      else reinterpret_cast<uint16_t*>(p.to)[i] = uint16_t(g.item[i / 2] >> (i % 2 * 16));
    }
  }

  // The elements of a granule, of float32 twice.
  __device__ __forceinline__ void elements(const Granule& g, float (&v)[kGroup]) const {
    const auto as = [&](auto element) {
      using E = decltype(element);
      E x[kPerGranule<E>];
      elements_of<E>(g, x);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) v[i] = convert<float>(x[i % kPerGranule<E>]);
    };
    if (size == 4) as(float());
    else if (call.out_dtype == Dtype::BF16) as(BF16());
    else as(F16());
  }
  __device__ __forceinline__ Granule rounded(const float (&y)[kGroup]) const {
    if (size == 4) {
      const float four[4] = {y[0], y[1], y[2], y[3]};
      return rounded_granule<float, false>(four);
    }
    return call.out_dtype == Dtype::BF16 ? rounded_granule<BF16, false>(y) : rounded_granule<F16, false>(y);
  }
};

// The results of a granule. `table`: what the tile's rows come with.
template <class Op, class Table>
__device__ __forceinline__ Granule mapped(const MapTile& tile, const MapTile::Place& p, const Granule& g,
                                          const Table& table) {
  using F = float;
  F v[kGroup], y[kGroup];
  tile.elements(g, v);
  // Calls one(i) for the elements of a granule.
  const auto each = [&](auto one) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (i == kGroup / 2 && tile.per < kGroup) break;
      one(i);
    }
  };
  int line = p.line, in_line = p.first;
  if (tile.shape.one_run && p.first > 0) {
    const int passed = tile.shape.by_width.quotient(p.first);
    line += passed;
    in_line -= passed * tile.width;
  }
  if (!tile.shape.across && in_line >= 0 && in_line + tile.per <= tile.width) {  // of one row
    const auto row = table.row(line);
    const int64_t first = tile.position + in_line;
    const auto map = [&](int i) { y[i] = Op::map(&v[i], F(1), F(-0.0), first + i, row); };
    if constexpr (Op::kFastMap) {
      F least = v[0];
#pragma unroll
      for (int i = 1; i < kGroup; ++i) least = -greatest(-least, -v[i]);
      if (Op::allows_fast_map(least, row)) {
        each([&](int i) { y[i] = Op::fast_map(&v[i], row); });
        const int64_t marked = Op::marked(row) - first;
        if (marked >= 0 && marked < tile.per)
          each([&](int i) {
            if (i == marked) map(i);
          });
      } else {
        each(map);
      }
    } else {
      each(map);
    }
  } else {
    // Lines go on within the granule, or rows lie side by side. Elements that are not there are of some row.
    const auto row_here = [&] {
      const int own = tile.shape.across ? in_line : line, last = tile.rows() - 1;
      return table.row(own < 0 ? 0 : own < last ? own : last);
    };
    auto row = row_here();
    each([&](int i) {
      y[i] = Op::map(&v[i], F(1), F(-0.0), tile.position + (tile.shape.across ? line : in_line), row);
      const bool ends = ++in_line == tile.width;
      if (ends) {
        in_line = 0;
        ++line;
      }
      if (ends || tile.shape.across) row = row_here();
    });
  }
  return tile.rounded(y);
}

template <class Op>
__global__ void TR_BLOCKS_BOUND(map_rows::kThreads, 3)
    map_rows_kernel(TR_GRID_CONSTANT RowwiseKernelCall call, TR_GRID_CONSTANT MapRowsShape shape) {
  using Given = decltype(Op::given(call.options, call.memory, 0));
  using Row = std::decay_t<decltype(Op::row(typename Op::State{}, 0, Given{}, call.options, 0))>;
  __shared__ RowTable<Row> table;
  const MapTile tile(call, shape);
  const auto given = [&](int i) { return Op::given(call.options, call.memory, call.start(tile.row + i).value); };

  MapTile::Loaded loaded[MapTile::kEach];
  tile.load(tile.rows() > 1 || !Op::skips(given(0)), loaded);
  for (int i = int(threadIdx.x); i < tile.rows(); i += int(blockDim.x))
    table.put(i, Op::row(typename Op::State{}, call.length, given(i), call.options, 0));
  __syncthreads();
#pragma unroll
  for (int k = 0; k < MapTile::kEach; ++k) {
    const MapTile::Place p = tile.place(k);
    if (p.first < p.count) tile.store(p, mapped<Op>(tile, p, MapTile::joined(loaded[k], p), table));
  }
}

}  // namespace torchreduce::gpu
