// Reductions of rows whose neighbours in memory are not neighbours along the row (transposed_rows.h).
#pragma once
#include "rows.cuh"
#include "strided.cuh"
#include "transposed_rows.h"

namespace torchreduce::gpu {

// A thread's accumulators: of neighbouring residues of one leaf; of ops that know no order one for all of them.
template <class Op> struct RunOfResidues {
  using Near = typename Op::Near;
  using E = typename Op::Element;
  static constexpr int kCount = Op::kAnyOrder ? 1 : 32;
  Near acc[kCount];

  __device__ RunOfResidues() { clear(); }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (Near& a : acc) a = Op::near_absent();
  }
  // Elements get(0) to get(31), the first one at a position of the leaf.
  template <class Get> __device__ __forceinline__ void take(const Op& op, int position, Get get) {
    if constexpr (Op::kAnyOrder) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        uint32_t word = 0;
        const E x = get(i);
        memcpy(&word, &x, sizeof x);
        Near next[1];
        op.template near_all<1>(&word, position + i, next);
        acc[0] = Op::follow(acc[0], next[0]);
      }
    } else {
      steps<32>(op, acc, get);
    }
  }
  __device__ __forceinline__ Near value(const Op& op) {
#pragma unroll
    for (int d = 1; d < kCount; d *= 2)
#pragma unroll
      for (int i = 0; i < kCount; i += 2 * d) acc[i] = op.combine(acc[i], acc[i + d]);
    return acc[0];
  }
};

// By 32 bits where they are enough, in a fifth of the instructions.
__device__ __forceinline__ int64_t quotient(int64_t a, int64_t b) {
  return uint64_t(a | b) >> 32 ? a / b : int64_t(uint32_t(a) / uint32_t(b));
}
// The offset of a slice, of the reduced dims before `dim`.
__device__ __forceinline__ int64_t slice_offset(const Layout& layout, int dim, int64_t slice) {
  int64_t offset = 0;
  TR_ROLLED
  for (int d = dim - 1; d >= layout.kept; --d) {
    const int64_t next = d > layout.kept ? quotient(slice, layout.size[d]) : 0;
    offset += (slice - next * layout.size[d]) * layout.in[d];
    slice = next;
  }
  return offset;
}
// The offset of position j of a column, of the dims after `dim`.
__device__ __forceinline__ int64_t stretch_offset(const Layout& layout, int dim, uint32_t j) {
  int64_t offset = 0;
  TR_ROLLED
  for (int d = layout.kept + layout.reduced - 1; d > dim + 1; --d) {
    const uint32_t next = j / uint32_t(layout.size[d]);
    offset += int64_t(j - next * uint32_t(layout.size[d])) * layout.in[d];
    j = next;
  }
  return offset + j * layout.in[dim + 1];
}

// Where a column's leaves lie, of those that begin in it and that its block takes.
struct ColumnLeaves {
  int64_t leaf;  // the first one, of the row
  int first;     // its first position, from the block's first row on
  int count;
};

// A block's columns of long stretches: what it has of them, and the steps in which it goes down the rows of memory.
template <class Op, class Load> struct LongStretches {
  using E = typename Load::Element;
  using Near = typename Op::Near;
  static constexpr int kSize = int(sizeof(E)), kPer = 4 / kSize, kColumns = transposed_rows::columns_of_block(kSize);
  static constexpr int kPitch = transposed_rows::kPitch, kRows = transposed_rows::kChunks * kResidues, kRun = 32;
  static constexpr int kThreads = transposed_rows::threads(kSize);
  static constexpr int kRowGranules = transposed_rows::kRowBytes / 16, kCopied = kThreads / kRowGranules;

  const ReduceCall& call;
  const TransposedRowsShape& shape;
  char* const shared;
  Near* const runs;
  uint8_t* const begins;
  int64_t part, strip, slice, row, left;  // left: columns of the slice from the block's first one on
  int top, stretch, columns;              // the block's first row of memory; all of them; its columns
  int rows = 0;                           // of memory that its leaves need
  const E *in, *end, *from;               // the tensor; the block's first column
  bool single;                            // one dim after i
  bool careful;                           // granules that reach out of the tensor may be among the block's

  __device__ LongStretches(const ReduceCall& call, const TransposedRowsShape& shape, char* shared)
      : call(call),
        shape(shape),
        shared(shared),
        runs(reinterpret_cast<Near*>(shared + kRows * kPitch)),
        begins(reinterpret_cast<uint8_t*>(runs + 8 * kColumns)) {
    const Layout& layout = call.layout;
    int64_t rest = blockIdx.x;
    auto next = [&](int64_t count) {
      const int64_t upper = quotient(rest, count), lower = rest - upper * count;
      rest = upper;
      return lower;
    };
    part = next(shape.parts);
    strip = next(shape.strips);
    slice = next(shape.slices);
    row = rest;
    left = shape.columns - strip * kColumns;
    top = int(part * shape.run * kLeaf);
    stretch = int(shape.stretch);
    columns = int(left < kColumns ? left : kColumns);
    in = global(static_cast<const E*>(call.in.data));
    end = in + shape.extent;
    from = in + row_start(layout, row).in + strip * kColumns + slice_offset(layout, shape.dim, slice);
#pragma unroll
    for (int c = 0; c < kPer; ++c) {
      const ColumnLeaves l = leaves_of(lane_id() * kPer + c);
      const int needs = warp_most(l.count ? l.first + l.count * kLeaf : 0);
      rows = needs > rows ? needs : rows;
    }
    single = shape.dim + 1 == layout.kept + layout.reduced - 1;
    careful = shape.ragged && (from - in < 16 || end - from < shape.span + columns + 17);
  }

  __device__ __forceinline__ ColumnLeaves leaves_of(int column) const {
    const int64_t position = (slice * shape.columns + strip * kColumns + column) * shape.stretch;
    const int64_t leaf = (position + kLeaf - 1) / kLeaf;
    int64_t end = (position + shape.stretch + kLeaf - 1) / kLeaf;
    if (column == left - 1) end = (position + shape.stretch) / kLeaf;
    int64_t count = end - leaf - part * shape.run;
    count = column >= columns || count < 0 ? 0 : count < shape.run ? count : shape.run;
    return ColumnLeaves{leaf + part * shape.run, int(leaf * kLeaf - position), int(count)};
  }

  __device__ __forceinline__ void copy_granule(char* to, const char* source) const {
    if (!careful || (source >= reinterpret_cast<const char*>(in) && source + 16 <= reinterpret_cast<const char*>(end)))
      return copy_async<16>(to, source);
    for (int i = 0; i < 16; i += kSize) {
      const E* const x = reinterpret_cast<const E*>(source + i);
      if (x >= in && x < end) *reinterpret_cast<E*>(to + i) = *x;
    }
  }
  // Starts the copies of chunk number `chunk` of the rows: a granule of each kCopied rows a thread.
  __device__ __forceinline__ void copy(int chunk) const {
    const int granule = int(threadIdx.x) % kRowGranules, copied = int(threadIdx.x) / kRowGranules;
    const int first = chunk * kResidues, slots = chunk % transposed_rows::kChunks * kResidues;
    char* const to = shared + (slots + copied) * kPitch + granule * 16;
    const int j0 = top + first + copied;
    if (shape.whole && single && first + kResidues <= rows && top + first + kResidues <= stretch) {
      const int64_t pitch = call.layout.in[shape.dim + 1] * kSize, step = pitch * kCopied;
      const char* x = reinterpret_cast<const char*>(from) + j0 * pitch + granule * 16;
#pragma unroll 1
      for (int k = 0; k < kResidues; k += kCopied, x += step)
        if (granule * 16 < columns * kSize) copy_async<16>(to + k * kPitch, x);
      if (threadIdx.x < kResidues) begins[slots + int(threadIdx.x)] = 0;
    } else {
#pragma unroll 1
      for (int k = 0; k < kResidues && first + copied + k < rows; k += kCopied) {
        int j = j0 + k;
        const bool beyond = j >= stretch;
        if (beyond) j -= stretch;
        const E* const x = from + (beyond ? 1 : 0) + stretch_offset(call.layout, shape.dim, uint32_t(j));
        const int begin = int(uintptr_t(x) & 15), bytes = begin + columns * kSize;
        const char* const source = reinterpret_cast<const char*>(x) - begin + granule * 16;
        if (granule * 16 < bytes) copy_granule(to + k * kPitch, source);
        if (granule > 0) continue;
        begins[slots + copied + k] = uint8_t(begin);
        if (bytes > transposed_rows::kRowBytes)
          copy_granule(to + k * kPitch + transposed_rows::kRowBytes, source + transposed_rows::kRowBytes);
      }
    }
    end_copies();
  }
  // By all lanes of a warp, of which those are active that have a leaf: adds kRun rows of `column`, from row `first` of
  // a chunk on, to residues from `position` of the leaf on.
  __device__ __forceinline__ void take(const Op& op, RunOfResidues<Op>& run, bool active, int chunk, int first,
                                       int column, int position) const {
    int slot = chunk % transposed_rows::kChunks * kResidues + first;
    slot -= slot >= kRows ? kRows : 0;
    const bool plain = shape.whole && top + chunk * kResidues + first + kRun <= stretch && slot + kRun <= kRows;
    if (!ballot(active && !plain)) {
      const char* const x = shared + slot * kPitch + column * kSize;
      if (active) run.take(op, position, [&](int i) { return *reinterpret_cast<const E*>(x + i * kPitch); });
    } else if (active) {
      run.take(op, position, [&](int i) {
        const int at = slot + i >= kRows ? slot + i - kRows : slot + i;
        return *reinterpret_cast<const E*>(shared + at * kPitch + begins[at] + column * kSize);
      });
    }
  }
  // What a column's threads have of a leaf, after they have met.
  __device__ __forceinline__ Near met(int column) const {
    Near v[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] = runs[k * kColumns + column];
#pragma unroll
    for (int d = 1; d < 8; d *= 2)
#pragma unroll
      for (int k = 0; k < 8; k += 2 * d) v[k] = Op::combine(v[k], v[k + d]);
    return v[0];
  }
};

// A leaf element by element, where that is rare.
template <class Op, class Load>
__device__ TR_RARELY_CALLED typename Op::Acc rare_leaf(const Op& op, const ReduceCall& call, int64_t base,
                                                       int64_t first) {
  return warp_leaf<Op, Load>(op, call, base, first);
}

// Serves long stretches. A block takes 128 bytes of neighbouring columns, and of each column the leaves that begin in
// it, shape.run of them, from number part * shape.run on. It walks down the rows of memory j, 256 at a time, and beyond
// the last one down those of the next column. Leaves of a column begin at a row of their own; after each 256 rows the
// block has 256 aligned positions of each column, which are added to 256 residues: a thread has 32 of one column.
// A leaf that goes on in the next slice, and the last one of a row, are taken element by element.
// E.g. float32 x[4000, 64].T, all of it: a row of 64 columns with stretches of 4000. A block has 32 columns and 256
// threads, lane l of warp w the residues 32 w to 32 w + 31 of column l. Column 1 begins at position 4000, its first
// leaf (number 2) at position 4096, row 96: so its threads add rows 96 + 256 s + 32 w on in step s.
// Shared memory: three times 256 rows of kPitch bytes, copied granule by granule; where in its granules each row's
// columns begin, uint8[3][256]; what threads have of a leaf, Near[8][columns].
template <class Op, class Load>
__global__ void TR_BLOCKS_BOUND(transposed_rows::threads(sizeof(typename Load::Element)), 2)
    reduce_transposed_rows(TR_GRID_CONSTANT ReduceCall call, TR_GRID_CONSTANT TransposedRowsShape shape,
                           typename Op::Acc* partials) {
  using Stretches = LongStretches<Op, Load>;
  TR_DYNAMIC_SHARED(shared, 16);
  const Op op{call.options};
  const Stretches block(call, shape, shared);
  const int lane = lane_id(), warp = int(threadIdx.x) / kLanes;
  const int column = lane * Stretches::kPer + warp / 8, residue = warp % 8 * Stretches::kRun;
  const ColumnLeaves own = block.leaves_of(column);
  const int before = own.first / kResidues, within = own.first % kResidues;
  const int steps_needed = block.rows > 0 ? (block.rows + kResidues - 1) / kResidues : -1;
  // Writes the leaf that ends with a window, 256 positions of a column.
  auto leave = [&](int window) {
    if (warp % 8 != 0 || window < 0 || window >= own.count * 8 || window % 8 != 7) return;
    const int64_t leaf = own.leaf + window / 8;
    partials[block.row * shape.leaves + leaf] = Op::far(block.met(column), leaf * kLeaf);
  };

  RunOfResidues<Op> run;
  if (block.rows > 0) {
    block.copy(0);
    block.copy(1);
  }
  for (int s = 1; s <= steps_needed; ++s) {
    wait_copies<0>();
    __syncthreads();
    block.copy(s + 1);
    leave(s - before - 2);
    const int window = s - before - 1;
    const bool active = window >= 0 && window < own.count * 8;
    block.take(op, run, active, s - 1, within + residue, column, window % 8 * kResidues + residue);
    if (active && window % 8 == 7) {
      block.runs[warp % 8 * Stretches::kColumns + column] = run.value(op);
      run.clear();
    }
  }
  __syncthreads();
  leave(steps_needed - before - 1);

  // The leaf that begins in the slice's last column and ends elsewhere.
  if (block.strip == shape.strips - 1 && block.part == shape.parts - 1 && warp == 0) {
    const int64_t position = (block.slice + 1) * shape.columns * shape.stretch, leaf = position / kLeaf;
    if (position % kLeaf != 0) {
      const auto value = rare_leaf<Op, Load>(op, call, row_start(call.layout, block.row).in, leaf * kLeaf);
      if (lane == 0) partials[block.row * shape.leaves + leaf] = value;
    }
  }
}

// Neighbouring columns of one slice that a block takes.
template <class E> struct Segment {
  const E* start;  // of the first one
  int columns;
  int place;  // in shared memory, of its first position
};

// A block's elements of short stretches, and how they come to shared memory, each row's from a granule on.
template <class E> struct ShortStretches {
  static constexpr int kPer = kPerGranule<E>;
  const Layout& layout;
  const TransposedRowsShape& shape;
  E* const elements;
  Segment<E>* const segments;
  int64_t first_row, part, first;  // first: position of a row
  int rows, count;                 // positions of a row
  int pitch, leaves;               // of a row in shared memory
  int count_of_segments = 0;
  const E *in, *end;  // the tensor

  __device__ ShortStretches(const ReduceCall& call, const TransposedRowsShape& shape, void* elements,
                            Segment<E>* segments)
      : layout(call.layout), shape(shape), elements(static_cast<E*>(elements)), segments(segments) {
    first_row = int64_t(blockIdx.x / uint32_t(shape.parts)) * shape.rows;
    part = blockIdx.x % uint32_t(shape.parts);
    rows = int(layout.rows - first_row < shape.rows ? layout.rows - first_row : shape.rows);
    first = part * shape.run * kLeaf;
    const int64_t left = layout.length - first;
    count = int(left < shape.run * kLeaf ? left : shape.run * kLeaf);
    pitch = (count + kPer - 1) / kPer * kPer;
    leaves = (count + kLeaf - 1) / kLeaf;
    in = global(static_cast<const E*>(call.in.data));
    end = in + shape.extent;
  }

  // Columns are numbered over all slices and rows.
  __device__ __forceinline__ void find_segments() {
    const int64_t stretch = shape.stretch, columns = shape.columns;
    const int64_t first_column = quotient(first, stretch), end_column = quotient(first + count - 1, stretch) + 1;
    const int64_t first_slice = quotient(first_column, columns);
    const int64_t slices = quotient(end_column - 1, columns) + 1 - first_slice;
    count_of_segments = int(slices) * rows;
    for (int k = int(threadIdx.x); k < count_of_segments; k += kThreads) {
      const int row = k / int(slices);
      const int64_t slice = first_slice + k - row * slices, from = slice * columns;
      const int64_t low = from > first_column ? from : first_column;
      const int64_t high = from + columns < end_column ? from + columns : end_column;
      segments[k] = {in + row_start(layout, first_row + row).in + slice_offset(layout, shape.dim, slice) + (low - from),
                     int(high - low), int(low * stretch - first) + row * pitch};
    }
  }

  // Loads a granule, of which what lies outside the tensor is anything.
  __device__ __forceinline__ void load_granule(bool there, const E* from, Granule& g) const {
    const bool inside = !shape.ragged || (from >= in && from + kPer <= end);
    load_if(there && inside, reinterpret_cast<const Granule*>(from), g);
    if (there && !inside) {
      E some[kPer];
      for (int e = 0; e < kPer; ++e) some[e] = from + e >= in && from + e < end ? from[e] : E{};
      memcpy(&g, some, sizeof some);
    }
  }
  // Puts a granule's elements, columns c and so on of position j, where they are in the row.
  __device__ __forceinline__ void put_granule(const Segment<E>& segment, int c, int j, const Granule& g) const {
    const int length = int(shape.stretch);
    int at = segment.place + c * length + j;
    E x[kPer];
    elements_of(g, x);
    if (c >= 0 && c + kPer <= segment.columns && (rows > 1 || (at >= 0 && at + (kPer - 1) * length < count))) {
#pragma unroll
      for (int e = 0; e < kPer; ++e) elements[at + e * length] = x[e];
    } else if (c < segment.columns) {
#pragma unroll
      for (int e = 0; e < kPer; ++e, at += length)
        if (c + e >= 0 && c + e < segment.columns && at >= 0 && (rows > 1 || at < count)) elements[at] = x[e];
    }
  }
  // A warp loads four granules of each of 8 rows of memory; kRows times as many rows, and kFours times as many
  // granules, at once.
  template <int kRows> __device__ __forceinline__ void load_segments() const {
    constexpr int kFours = 8 / kRows;
    const int length = int(shape.stretch), warp = int(threadIdx.x) / kLanes;
    const bool single = shape.dim + 1 == layout.kept + layout.reduced - 1;  // one dim after i
    const int64_t memory_pitch = layout.in[shape.dim + 1];
    const int groups = (shape.fours + kFours - 1) / kFours, chunks = (length + 8 * kRows - 1) / (8 * kRows);
    const FastDivide by_groups(groups), by_chunks(chunks);
#pragma unroll 1
    for (int t = warp; t < count_of_segments * chunks * groups; t += kWarps) {
      const int upper = by_groups.quotient(t), k = by_chunks.quotient(upper);
      const int first_granule = (t - upper * groups) * kFours * 4 + lane_id() % 4;
      const int j0 = (upper - k * chunks) * 8 * kRows + lane_id() / 4;
      const Segment<E> segment = segments[k];
      Granule g[kRows][kFours];
      int column[kRows];  // of a row's first granule, of the segment
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int j = j0 + r * 8 < length ? j0 + r * 8 : length - 1;
        const E* const x = segment.start + (single ? j * memory_pitch : stretch_offset(layout, shape.dim, uint32_t(j)));
        column[r] = j0 + r * 8 < length ? first_granule * kPer - elements_before(x) : segment.columns;
#pragma unroll
        for (int p = 0; p < kFours; ++p)
          load_granule(column[r] + p * 4 * kPer < segment.columns, x + column[r] + p * 4 * kPer, g[r][p]);
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int p = 0; p < kFours; ++p) put_granule(segment, column[r] + p * 4 * kPer, j0 + r * 8, g[r][p]);
    }
  }
  __device__ __forceinline__ void load() const {
    if (shape.stretch > 32) load_segments<8>();
    else if (shape.stretch > 16) load_segments<4>();
    else if (shape.stretch > 8) load_segments<2>();
    else load_segments<1>();
  }
};

// The value of the leaf of `count` elements at x, in shared memory, whose first position is `first`; by a warp.
template <class Op>
__device__ __forceinline__ typename Op::Acc shared_leaf(const Op& op, const Granule* x, int count, int64_t first) {
  using E = typename Op::Element;
  constexpr int kPer = kPerGranule<E>, kEach = kLeaf / kPer / kLanes;
  const int lane = lane_id();
  const Granule absent = absent_granule(op);
  auto granule = [&](int c) {
    const int at = (c * kLanes + lane) * kPer;
    Granule g = absent;
    if (at < count) g = x[c * kLanes + lane];
    if (at + kPer > count) mask<E>(g, 0, count > at ? count - at : 0, absent);
    return g;
  };
  if constexpr (Op::kAnyOrder) {
    using P = Part<Op, int32_t>;
    P part(op, granule(0), lane * kPer);
#pragma unroll 4
    for (int c = 1; c < kEach; ++c) part.take(op, granule(c), (c * kLanes + lane) * kPer);
    auto v = part.value(op);
    for (int d = 1; d < kLanes; d *= 2) v = P::join(op, v, shuffle(v, lane ^ d));
    return {v.key, first + v.at};
  } else {
    using R = Residues<Op, kEach>;
    R residues(op);
#pragma unroll
    for (int c = 0; c < kEach; ++c) residues.take(op, granule(c), c);
    return residues.value(op);
  }
}

// Serves short stretches. A block takes shape.run leaves of a row, or some whole rows of fewer. Their elements lie in
// columns that are neighbours in memory, except for those of different slices: it loads granules of all j and puts the
// elements where they are in the row. A warp then takes leaf after leaf.
// E.g. float32 x[64, 5000].T, all of it: a row of 5000 columns with stretches of 64. The four leaves of a block are
// 128 columns, one segment: of each of 64 rows of memory 32 granules, granule g of row j to positions 256 g + j, + 64,
// + 128 and + 192.
// Shared memory: elements, each row's from a granule on; segments; values of leaves, Acc[].
template <class Op, class Load>
__global__ void TR_BLOCKS_BOUND(kThreads, 4)
    reduce_transposed_tiles(TR_GRID_CONSTANT ReduceCall call, TR_GRID_CONSTANT TransposedRowsShape shape,
                            typename Op::Acc* partials) {
  using Acc = typename Op::Acc;
  using E = typename Load::Element;
  __shared__ Segment<E> segments[transposed_rows::kMostSegments];
  __shared__ Acc value[transposed_rows::kMostTileLeaves];
  TR_DYNAMIC_SHARED(shared, 16);
  const Op op{call.options};
  ShortStretches<E> block(call, shape, shared, segments);
  block.find_segments();
  __syncthreads();
  block.load();
  __syncthreads();

  const int leaves = block.leaves;
  for (int t = int(threadIdx.x) / kLanes; t < block.rows * leaves; t += kWarps) {
    const int row = t / leaves, leaf = t - row * leaves, rest = block.count - leaf * kLeaf;
    const auto* const x = reinterpret_cast<const Granule*>(block.elements + row * block.pitch + leaf * kLeaf);
    const Acc acc = shared_leaf(op, x, rest < kLeaf ? rest : kLeaf, block.first + leaf * kLeaf);
    if (lane_id() > 0) continue;
    if (shape.leaves > shape.run) partials[block.first_row * shape.leaves + block.part * shape.run + leaf] = acc;
    else value[t] = acc;
  }
  if (shape.leaves > shape.run) return;
  __syncthreads();
  for (int row = int(threadIdx.x); row < block.rows; row += kThreads) {
    PushedTree<Op, 6> tree(op);
    for (int leaf = 0; leaf < leaves; ++leaf) tree.push(value[row * leaves + leaf]);
    finish_row<Load>(op, call, block.first_row + row, tree.total());
  }
}

// Combines the values of a row's leaves, kFold a block; the row's last block combines what the others leave behind
// them.
template <class Op>
__global__ void TR_BLOCK_BOUND(kThreads)
    fold_leaves(TR_GRID_CONSTANT ReduceCall call, TR_GRID_CONSTANT TransposedRowsShape shape,
                typename Op::Acc* partials, uint32_t* tickets) {
  using Acc = typename Op::Acc;
  __shared__ Acc value[kWarps];
  __shared__ bool last;
  const Op op{call.options};
  const int64_t row = int64_t(blockIdx.x) / shape.splits, split = int64_t(blockIdx.x) - row * shape.splits;
  const int64_t first = split * transposed_rows::kFold, rest = shape.leaves - first;
  Acc acc = block_fold(op, partials + row * shape.leaves + first,
                       rest < transposed_rows::kFold ? rest : transposed_rows::kFold, value);
  if (shape.splits > 1) {
    Acc* const folded = partials + call.layout.rows * shape.leaves;
    if (threadIdx.x == 0) folded[blockIdx.x] = acc;
    if (!last_block(tickets + row, shape.splits, last)) return;
    acc = block_fold(op, folded + row * shape.splits, shape.splits, value);
  }
  if (threadIdx.x == 0) finish_row<TypedLoad<typename Op::Element>>(op, call, row, acc);
}

}  // namespace torchreduce::gpu
