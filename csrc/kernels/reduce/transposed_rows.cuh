// Reductions of rows whose neighbours in memory are not neighbours along the row (transposed_rows.h).
#pragma once
#include "kernels/common/shared_array.cuh"
#include "rows.cuh"
#include "strided.cuh"
#include "transposed_rows.h"

namespace torchreduce::gpu {

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

// The first n bits, all if n is at least 32.
__device__ __forceinline__ uint32_t first_bits(int n) { return n <= 0 ? 0u : n >= 32 ? ~0u : (1u << n) - 1; }

// Where a column's leaves lie, of those that begin in it and that its block takes.
struct ColumnLeaves {
  int64_t leaf;  // the first one, of the row
  int first;     // its first position, from the block's first row on
  int count;

  __device__ int end() const { return first + count * kLeaf; }
  // Whether leaf number k / kGroup ends with its window number k % kGroup.
  __device__ __forceinline__ bool ends(int k) const { return k >= 0 && k % kGroup == kGroup - 1 && k < count * kGroup; }
  // The leaf, counted from the first one, whose last rows are in a window; -1 if there is none.
  __device__ __forceinline__ int ends_in(int window) const {
    const int k = window - (first + kResidues - 1) / kResidues;
    return ends(k) ? k / kGroup : -1;
  }
};

// A block's columns of long stretches, and the rows of memory in which their leaves lie. A window is 256 rows. A slot
// is a run of leaves of a column: number run * columns + column. A warp has rows of one run: its lanes are columns, and
// where those are few, some rows times columns.
template <class Op, class Load> struct LongStretches {
  using E = typename Load::Element;
  using Near = typename Op::Near;
  static constexpr int kColumns = transposed_rows::kColumns, kRun = transposed_rows::kRun;
  static_assert(kColumns == kLanes);
  static constexpr int kPitch = transposed_rows::kPitch;
  static constexpr int kMostPitch = INT32_MAX / transposed_rows::kMostRuns;

  const ReduceCall& call;
  const TransposedRowsShape& shape;
  int64_t part, strip, slice, row, left;  // left: columns of the slice from the block's first one on
  int columns, stretch;                   // of the block; rows of memory of a column
  int top;                                // the run's first row of memory
  int of_lane, warps_rows;                // the lane's row of a load, of `shape.runs`; the warp's first row of a window
  int slot;
  const char* from;  // the lane's column
  ColumnLeaves own;  // the slot's
  int windows;       // that the block's leaves lie in
  bool single;       // one dim after i
  int near_pitch;    // if so, bytes from a row of memory to the next, of which 32 bits hold kMostRuns times; else 0
  int64_t* offsets;  // of the warp's rows, in shared memory

  // Writes the leaves of each slot to `of_slots`.
  __device__ LongStretches(const ReduceCall& call, const TransposedRowsShape& shape, int64_t* shared_offsets,
                           ColumnLeaves* of_slots)
      : call(call), shape(shape) {
    const Layout& layout = call.layout;
    const int warp = int(threadIdx.x) / kLanes, warps = kWarps / shape.runs;
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
    columns = shape.runs > 1 ? int(shape.columns) : kColumns;
    stretch = int(shape.stretch);
    of_lane = lane_id() / columns;
    warps_rows = warp % warps * kRun * shape.runs;
    top = first_leaf(warp / warps) * kLeaf;
    const bool idle = of_lane >= shape.runs || lane_id() % columns >= left;
    slot = idle ? 0 : warp / warps * columns + lane_id() % columns;
    if (idle) of_lane = 0;
    const E* const first = global(static_cast<const E*>(call.in.data)) + row_start(layout, row).in;
    const int64_t start = slice_offset(layout, shape.dim, slice) + strip * kColumns + (idle ? 0 : lane_id() % columns);
    from = reinterpret_cast<const char*>(recomputed(reinterpret_cast<int64_t>(first + start)));
    offsets = shared_offsets + warp * shape.runs * kPitch;
    if (warp == 0) of_slots[lane_id()] = leaves_of(lane_id());
    __syncthreads();
    own = idle ? ColumnLeaves{} : of_slots[slot];
    windows = (warp_most(of_slots[lane_id()].end()) + kResidues - 1) / kResidues;
    single = shape.dim + 1 == layout.kept + layout.reduced - 1;
    const int64_t pitch = layout.in[shape.dim + 1] * int64_t(sizeof(E));
    near_pitch = single && uint64_t(pitch) <= uint64_t(kMostPitch) ? int(pitch) : 0;
  }

  // Of a run, from the column's first leaf on.
  __device__ __forceinline__ int first_leaf(int run) const { return (int(part) * shape.runs + run) * shape.run; }
  __device__ __forceinline__ ColumnLeaves leaves_of(int slot) const {
    const int run = slot / columns, column = slot - run * columns;
    const int64_t position = (slice * shape.columns + strip * kColumns + column) * shape.stretch;
    const int64_t leaf = (position + kLeaf - 1) / kLeaf;
    int64_t end = (position + shape.stretch + kLeaf - 1) / kLeaf;
    if (column == left - 1) end = (position + shape.stretch) / kLeaf;
    const int64_t count = end - leaf - first_leaf(run);
    if (column >= left || run >= shape.runs || count <= 0) return {};
    return {leaf + first_leaf(run), int(leaf * kLeaf - position), int(count < shape.run ? count : shape.run)};
  }
  // The thread's first row of a window, and how many of its rows are before row n from there on.
  __device__ __forceinline__ int first_row() const { return warps_rows + of_lane; }
  __device__ __forceinline__ int rows_before(int n) const { return (n + shape.runs - 1) >> (__ffs(shape.runs) - 1); }
  // A thread's rows of a window: where they are from the column's start on, in shared memory; which of them its leaves
  // have.
  struct Rows {
    const char* from;
    const int64_t* offset;  // bytes
    uint32_t have;
    __device__ __forceinline__ E load(int i, E absent) const {
      E x = absent;
      if (have >> i & 1) x = load_item<Stay::Long>(reinterpret_cast<const E*>(from + offset[i]));
      return x;
    }
  };
  // The same where all are there, `pitch` bytes apart.
  struct AllRows {
    const char* from;
    int pitch;
    static constexpr uint32_t have = ~0u;
    __device__ __forceinline__ E load(int i, E) const {
      return load_item<Stay::Long>(reinterpret_cast<const E*>(multiply_add(i, pitch, int64_t(from))));
    }
  };
  __device__ __forceinline__ Rows rows(int window) const {
    const int start = window * kResidues;
    warp_barrier();
#pragma unroll 1
    for (int r = 0; r < shape.runs; ++r) {
      const int j = top + start + warps_rows + lane_id() * shape.runs + r;
      const bool beyond = j >= stretch;  // in the next column
      const int k = beyond ? j - stretch : j;
      const int64_t offset = single ? k * call.layout.in[shape.dim + 1] : stretch_offset(call.layout, shape.dim, k);
      offsets[r * kPitch + lane_id()] = (offset + (beyond ? 1 : 0)) * int64_t(sizeof(E));
    }
    warp_barrier();
    const int at = start + first_row();
    return {from, offsets + of_lane * kPitch,
            first_bits(rows_before(own.end() - at)) & ~first_bits(rows_before(own.first - at))};
  }
  // By all lanes of a warp: whether its rows of a window are in the columns where they begin, at one distance, and all
  // in leaves, but for lanes that have none.
  __device__ __forceinline__ bool has_all(int window) const {
    const int start = window * kResidues + warps_rows, at = start + of_lane;
    if (near_pitch == 0 || top + start + kRun * shape.runs > stretch) return false;
    const bool all = own.first <= at && at + (kRun - 1) * shape.runs < own.end();
    return ballot(own.count > 0 && !all) == 0;
  }
  __device__ __forceinline__ AllRows all_rows(int window) const {
    const int row = top + window * kResidues + first_row();
    return {reinterpret_cast<const char*>(multiply_add(row, near_pitch, int64_t(from))), near_pitch * shape.runs};
  }
};

// What a thread has of the leaves of its slot: the residues of its rows, each of the leaf in which the row then is.
// When a leaf ends it leaves them at `to`, [residue][slot].
template <class Op, class Load> struct RunOfResidues {
  using Stretches = LongStretches<Op, Load>;
  using E = typename Load::Element;
  using Near = typename Op::Near;
  static constexpr int kRun = Stretches::kRun, kPitch = Stretches::kPitch, kAtOnce = 8;
  const Op& op;
  const Stretches& block;
  const int before, within;  // windows before the slot's first leaf, and rows
  Near acc[kRun];
  E x[kRun];
  Near* const to;

  __device__ RunOfResidues(const Op& op, const Stretches& block, Near* shared)
      : op(op),
        block(block),
        before(block.own.first / kResidues),
        within(block.own.first % kResidues),
        to(shared + (block.first_row() - within) * kPitch + block.slot) {
    const auto rows = block.rows(0);
    const E absent = op.absent_element();
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      acc[i] = Op::near_absent();
      x[i] = rows.load(i, absent);
    }
  }
  // Takes the rows of a window, and loads those of the next one. Rows before number `within` are of the leaf that began
  // a window earlier.
  template <class Rows> __device__ __forceinline__ void take(int window, const Rows& next) {
    const int k = window - before, split = block.rows_before(within - block.first_row());
    const bool late = block.own.ends(k - 1);
    const uint32_t lower = first_bits(split), ended = late ? lower : block.own.ends(k) ? ~lower : 0u;
    const E absent = op.absent_element();
#pragma unroll
    for (int i = 0; i < kRun; i += kAtOnce) {
      steps<kAtOnce>(op, acc + i, [&](int j) { return x[i + j]; });
#pragma unroll
      for (int j = i; j < i + kAtOnce; ++j) x[j] = next.load(j, absent);
    }
    if (!ended) return;
    Near* const place = late ? to + kResidues * kPitch : to;
    const int pitch = block.shape.runs * kPitch;
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      if (ended >> i & 1) place[i * pitch] = acc[i];
      acc[i] = ended >> i & 1 ? Op::near_absent() : acc[i];
    }
  }
  // The leaf of a slot, of what its threads left, by a warp.
  __device__ static __forceinline__ Near leaf(const Op& op, const Near* shared, int slot) {
    constexpr int kEach = kResidues / kLanes;
    Near v[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) v[i] = shared[(i * kLanes + lane_id()) * kPitch + slot];
    const Near each = transposing_tree(v, kLanes, [&](const Near& a, const Near& b) { return op.combine(a, b); });
    return warp_tree(op, each, kEach);
  }
};

// The same of ops that know no order: one accumulator for all of a leaf's rows, which a thread leaves at [k][slot], as
// the slot's thread number k of 8.
template <class Op, class Load> struct RunOfPositions {
  using Stretches = LongStretches<Op, Load>;
  using E = typename Load::Element;
  using Near = typename Op::Near;
  static constexpr int kRun = Stretches::kRun, kPitch = Stretches::kPitch;
  const Op& op;
  const Stretches& block;
  const int before, within;
  Near acc = Op::near_absent();
  E x[kRun];
  uint32_t have;  // of these rows
  Near* const to;

  __device__ RunOfPositions(const Op& op, const Stretches& block, Near* shared)
      : op(op),
        block(block),
        before(block.own.first / kResidues),
        within(block.own.first % kResidues),
        to(shared + (block.warps_rows / kRun + block.of_lane) * kPitch + block.slot) {
    const auto rows = block.rows(0);
#pragma unroll
    for (int i = 0; i < kRun; ++i) x[i] = rows.load(i, E{});
    have = rows.have;
  }
  template <class Rows> __device__ __forceinline__ void take(int window, const Rows& next) {
    const int k = window - before, position = k * kResidues + block.first_row() - within;
    const int split = block.rows_before(within - block.first_row());
    const bool all_before = split >= kRun, some_before = split > 0;      // of the thread's rows those before `within`
    const int last = !some_before || all_before ? kRun - 1 : split - 1;  // of a leaf in the thread's rows
    const bool ended = block.own.ends(some_before ? k - 1 : k);
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      uint32_t word = 0;
      memcpy(&word, &x[i], sizeof(E));
      Near one[1];
      op.template near_all<1>(&word, (position + i * block.shape.runs) & (kLeaf - 1), one);
      if (have >> i & 1) acc = Op::follow(acc, one[0]);
      if (ended && i == last) {
        *to = acc;
        acc = Op::near_absent();
      }
      x[i] = next.load(i, E{});
    }
    have = next.have;
  }
  __device__ static __forceinline__ Near leaf(const Op&, const Near* shared, int slot) {
    Near v[kWarps];
#pragma unroll
    for (int k = 0; k < kWarps; ++k) v[k] = shared[k * kPitch + slot];
#pragma unroll
    for (int d = 1; d < kWarps; d *= 2)
#pragma unroll
      for (int k = 0; k < kWarps; k += 2 * d) v[k] = Op::combine(v[k], v[k + d]);
    return v[0];
  }
};

// A leaf element by element, where that is rare.
template <class Op, class Load>
__device__ TR_RARELY_CALLED typename Op::Acc rare_leaf(const Op& op, const ReduceCall& call, int64_t base,
                                                       int64_t first) {
  return warp_leaf<Op, Load>(op, call, base, first);
}

// Serves long stretches. A block takes 32 neighbouring columns, a lane each, and of each column the leaves that begin
// in it, shape.run of them, from number part * shape.run on. It walks down the rows of memory j, a window of 256 at a
// time, and beyond the last one down those of the next column. A thread has 32 rows of each window, and so 32 residues
// of its column: those of a leaf that begins at row f are rows f + r, f + r + 256 and so on. A leaf's residues come
// together in shared memory when it ends. A leaf that goes on in the next slice, and the last one of a row, are taken
// element by element. E.g. float32 x[4000, 64].T, all of it: a row of 64 columns with stretches of 4000. Column 1
// begins at position 4000, its first leaf (number 2) at position 4096, row 96: so rows 96 to 255 of a window are
// residues 0 to 159, and rows 0 to 95 of the next window residues 160 to 255. The leaf ends in row 95 of window 8.
// Of at most 16 columns a block takes shape.runs runs of leaves, each with 8 / shape.runs warps, and a warp's load has
// elements of shape.runs rows. E.g. x[20000, 4].T: eight runs, a warp each; lane 4 r + c has rows r, r + 8, r + 16 and
// so on of column c, and a warp loads 32 neighbours in memory.
//
// Shared memory: offsets of rows, int64[warps][runs][lanes]; residues, Near[256][slots], or of ops that know no order
// what threads have of a leaf, Near[8][slots]; the leaves of each slot.
template <class Op, class Load>
__global__ void TR_BLOCKS_BOUND(kThreads, transposed_rows::kBlocks)
    reduce_transposed_rows(TR_GRID_CONSTANT ReduceCall call, TR_GRID_CONSTANT TransposedRowsShape shape,
                           typename Op::Acc* partials) {
  using Stretches = LongStretches<Op, Load>;
  using Run = std::conditional_t<Op::kAnyOrder, RunOfPositions<Op, Load>, RunOfResidues<Op, Load>>;
  using Near = typename Op::Near;
  __shared__ ColumnLeaves of_slots[kLanes];
  TR_DYNAMIC_SHARED(dynamic, 16);
  Near* const shared = reinterpret_cast<Near*>(dynamic + kWarps * shape.runs * Stretches::kPitch * sizeof(int64_t));
  const Op op{call.options};
  const Stretches block(call, shape, reinterpret_cast<int64_t*>(dynamic), of_slots);
  const int lane = lane_id(), warp = int(threadIdx.x) / kLanes;
  if (block.windows > 0) {
    Run run(op, block, shared);
#pragma unroll 1
    for (int window = 0; window < block.windows; ++window) {
      if (block.has_all(window + 1)) run.take(window, block.all_rows(window + 1));
      else run.take(window, block.rows(window + 1));
      __syncthreads();
      const int ends = of_slots[lane].ends_in(window);
      const uint32_t slots = ballot(ends >= 0);
#pragma unroll 1
      for (int slot = warp; slot < kLanes; slot += kWarps) {
        if (!(slots >> slot & 1)) continue;
        const Near value = Run::leaf(op, shared, slot);
        const int64_t leaf = of_slots[slot].leaf + shuffle(ends, slot);
        if (lane == 0) partials[block.row * shape.leaves + leaf] = Op::far(value, leaf * kLeaf);
      }
    }
  }

  // The leaf that begins in the slice's last column and ends elsewhere.
  if (block.strip == shape.strips - 1 && block.part == shape.parts - 1 && warp == 0) {
    const int64_t position = (block.slice + 1) * shape.columns * shape.stretch, leaf = position / kLeaf;
    if (position % kLeaf != 0) {
      const auto value = rare_leaf<Op, Load>(op, call, row_start(call.layout, block.row).in, leaf * kLeaf);
      if (lane == 0) partials[block.row * shape.leaves + leaf] = value;
    }
  }
}

// What of the granule at `from` lies within the tensor, where that is not all of it.
template <class E> __device__ TR_RARELY_CALLED Granule granule_within(const E* in, const E* end, const E* from) {
  constexpr int kPer = kPerGranule<E>;
  E some[kPer];
  for (int e = 0; e < kPer; ++e) some[e] = from + e >= in && from + e < end ? from[e] : E{};
  Granule g;
  memcpy(&g, some, sizeof g);
  return g;
}

// Neighbouring columns of one slice that a block takes.
template <class E> struct Segment {
  const E* start;  // of the first one
  int columns;
  int place;    // in shared memory, of its first position
  int to_last;  // from there to that of the last column
  int length;   // of a column; read from here it stays in a register (shared_array.cuh)
  bool inside;  // all granules that have an element of it lie within the tensor
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
      const E* const start =
          in + row_start(layout, first_row + row).in + slice_offset(layout, shape.dim, slice) + (low - from);
      const E* const last = row_of(start, int(stretch) - 1) + (high - low) - 1;
      const bool inside = start - elements_before(start) >= in && last - elements_before(last) + kPer <= end;
      segments[k] = {
          start,        int(high - low), int(low * stretch - first) + row * pitch, int((high - low - 1) * stretch),
          int(stretch), inside};
    }
  }
  // Element j of the column at `start`; kSingle: there is one dim after i.
  template <bool kSingle = false> __device__ __forceinline__ const E* row_of(const E* start, int j) const {
    return start + (kSingle ? j * layout.in[shape.dim + 1] : stretch_offset(layout, shape.dim, uint32_t(j)));
  }

  // Which of a granule's elements, columns c and so on of position j, the block has, as bits: one at least lies in the
  // segment. Of a row's first and last column the block may have a part; of whole rows it has all, from place 0 on.
  __device__ __forceinline__ uint32_t has(const Segment<E>& segment, int j, int c) const {
    const int after = rows == 1 ? count : INT32_MAX, at = segment.place + j;
    const int low = int(uint32_t(at) >> 31) - c;
    const int high = segment.columns - (at + segment.to_last >= after ? 1 : 0) - c;
    return (1u << (high < kPer ? high : kPer)) - (1u << (low > 0 ? low : 0));
  }
  // Loads the granules of all rows of memory of all segments, and puts their elements where they are in the block's
  // rows. Neighbouring lanes take the same granule of eight rows of memory: their elements are neighbours in shared
  // memory. Granules of a row are a multiple of 128 bytes apart there, if columns are as many bytes: their lanes meet
  // in the banks.
  template <bool kSingle> __device__ __forceinline__ void load() const {
    constexpr int kAtOnce = 4;
    const int length = segments[0].length, each = shape.granules, rows_of_memory = count_of_segments * length;
    const int log_rows = rows_of_memory < 2 ? 0 : rows_of_memory < 4 ? 1 : rows_of_memory < 8 ? 2 : 3;
    const FastDivide by_each(each), by_length(length);
    const int total = (((rows_of_memory - 1) >> log_rows) + 1) * each << log_rows;
    Segment<E> segment = segments[0];
    char* const places = reinterpret_cast<char*>(elements);
#pragma unroll 1
    for (int first = int(threadIdx.x); first < total; first += kAtOnce * kThreads) {
      Granule g[kAtOnce];
      int to[kAtOnce];  // bytes from the first place to that of the granule's first element
      uint32_t some[kAtOnce];
#pragma unroll
      for (int p = 0; p < kAtOnce; ++p) {
        const int i = first + p * kThreads, upper = i >> log_rows, of_rows = by_each.quotient(upper);
        const int row = (of_rows << log_rows) + (i & ((1 << log_rows) - 1));
        const bool there = i < total && row < rows_of_memory;
        int j = there ? row : 0;
        if (count_of_segments > 1) {
          const int k = by_length.quotient(j);
          segment = segments[k];
          j -= k * length;
        }
        const E* const x = row_of<kSingle>(segment.start, j);
        const int c = (upper - of_rows * each) * kPer - elements_before(x);
        const bool wanted = there && c < segment.columns;
        some[p] = wanted ? has(segment, j, c) : 0;
        to[p] = (segment.place + c * length + j) * int(sizeof(E));
        load_if(wanted && segment.inside, reinterpret_cast<const Granule*>(x + c), g[p]);
        if (wanted && !segment.inside) g[p] = granule_within(in, end, x + c);
      }
#pragma unroll
      for (int p = 0; p < kAtOnce; ++p) {
        E x[kPer];
        elements_of(g[p], x);
#pragma unroll
        for (int e = 0; e < kPer; ++e)
          if (some[p] >> e & 1) *reinterpret_cast<E*>(places + to[p] + e * length * int(sizeof(E))) = x[e];
      }
    }
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
// columns that are neighbours in memory, except for those of different slices: a warp loads four neighbouring granules
// of eight rows of memory and puts the elements where they are in the row. A warp then takes leaf after leaf.
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
  ShortStretches<E> block(call, shape, in_register(shared), in_register(segments));
  block.find_segments();
  __syncthreads();
  if (shape.dim + 1 == call.layout.kept + call.layout.reduced - 1) block.template load<true>();
  else block.template load<false>();
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
