// Row-wise ops by segments, and their launches.
//
// Serves: softmax, log_softmax, logsumexp and their gradients, of elements of any floating type and strides.
//
// rowwise_segment_runs: a block's elements are in shared memory, where their results take their place
// (segment_runs.cuh). A leaf of up to 256 elements has a slot for each eight neighbours, a longer one for one, two or
// four neighbouring residues, which have up to eight elements. Beside them are a value of each slot, [slot], and of each
// leaf what the first look finds and what its results are made with, [place]. A thread has every 256th slot, and every
// 256th segment of one short leaf; a warp has every eighth of the others.
// rowwise_segment_walks: a block walks a segment, of which each of its warps has neighbouring leaves, an aligned power of
// two of them. Lanes load and store elements side by side: of a row of residues lane l has l + 32 k, k < 8. A warp keeps
// a leaf in registers where that is of one input in float32; else it reads each again. The warps' states meet in shared
// memory, [warp].
#include "kernels/common/gpu.h"
#include "kernels/tile/segment_runs.cuh"
#include "rowwise_segments.h"

namespace torchreduce::gpu {

template <class F> struct Added {
  __device__ __forceinline__ static F absent() { return F(-0.0); }
  __device__ __forceinline__ static F combine(F a, F b) { return a + b; }
};
template <class F> struct Greatest {
  __device__ __forceinline__ static F absent() { return -kInfinity<F>; }
  __device__ __forceinline__ static F combine(F a, F b) { return greatest(a, b); }
};

template <class Op> struct FloatOf;
template <template <class> class Op, class F> struct FloatOf<Op<F>> { using type = F; };

// The neighbouring residues that a slot of a leaf of n elements has, of which each has as many elements as the leaf has
// rows of residues.
__device__ __forceinline__ int slot_width(int n) {
  return n <= kResidues ? 8 : n <= 2 * kResidues ? 4 : n <= 4 * kResidues ? 2 : 1;
}
__device__ __forceinline__ int slots_of_leaf(int n) {
  const int width = slot_width(n);
  return ((n < kResidues ? n : kResidues) + width - 1) / width;
}
struct RowwiseSlots {
  __device__ __forceinline__ int operator()(int n) const { return n / kLeaf * kResidues + slots_of_leaf(n % kLeaf); }
};
using RowwiseBlock = SegmentBlock<RowwiseSlots>;

template <class Op>
TR_HD auto row_of(const RowwiseSegments& call, int64_t n, const typename Op::Given& given,
                  const typename Op::State& state) {
  using F = typename FloatOf<Op>::type;
  return Op::row(state, n, given, call.options, [](int64_t) { return F(0); });
}
// What the results of a leaf are made with.
template <class Op> TR_HD auto at_of(const decltype(row_of<Op>({}, 0, {}, Op::none()))& row,
                                     const typename Op::State& leaf) {
  return Op::at(row, leaf);
}
template <class Op> using AtOf = decltype(at_of<Op>(row_of<Op>({}, 0, {}, Op::none()), Op::none()));

// What has one element a segment of a row.
__device__ __forceinline__ RowMemory memory_of(const RowwiseSegments& call) {
  RowMemory m = call.memory;
  m.stats = global(m.stats);
  m.values[0] = global(m.values[0]);
  return m;
}

// ---- segments that are held ------------------------------------------------------------------------------------------

template <class Op> struct HeldRows {
  using F = typename FloatOf<Op>::type;
  using State = typename Op::State;
  using At = AtOf<Op>;
  using Slot = typename RowwiseBlock::Slot;
  static constexpr int kThreads = segment_runs::kThreads, kInputs = Op::kInputs;
  static_assert(sizeof(At) <= 2 * sizeof(F));

  const RowwiseSegments& call;
  const RowwiseBlock& block;
  StagedRuns<F> x[kInputs];
  F* values;  // [slot]
  F* found;   // [place]
  At* ats;    // [place]

  __device__ __forceinline__ void run(const SegmentBatch& batch, const RowRun (&memory)[4]) const {
    const int slots = batch.slots << block.rows_log2, t = int(threadIdx.x);
    with_element<true>(call.dtype, [&](auto element) {
#pragma unroll
      for (int i = 0; i < kInputs; ++i)
        x[i].template load<decltype(element)>(call.in[i], memory[i], batch.from, 0, batch.length);
    });
    __syncthreads();
    if constexpr (Op::kFirst == First::Greatest) {
#pragma unroll 1
      for (int u = t; u < slots; u += kThreads) values[u] = greatest_of(batch, block.slot(batch, u));
      __syncthreads();
      find(batch);
      __syncthreads();
    }
    if constexpr (Op::kSums > 0) {
#pragma unroll 1
      for (int u = t; u < slots; u += kThreads) values[u] = sum_of(batch, block.slot(batch, u));
      __syncthreads();
    }
    finish(batch, memory[3]);
    if constexpr (Op::kMaps) {
      __syncthreads();
#pragma unroll 1
      for (int u = t; u < slots; u += kThreads) map(batch, block.slot(batch, u));
      __syncthreads();
      with_element<true>(call.out_dtype, [&](auto element) {
        x[0].template store<decltype(element)>(call.out, memory[2], batch.from, batch.length);
      });
    }
  }

 private:
  // ---- slots ---------------------------------------------------------------------------------------------------------

  // Where a slot's elements are: kWidth neighbouring residues of a leaf, row by row.
  struct Leaf { int number, length, place; };
  __device__ __forceinline__ Leaf leaf_of(const SegmentBatch& batch, const Slot& slot) const {
    const int number = slot.number / kResidues, rest = slot.length - number * kLeaf;
    return {number, rest < kLeaf ? rest : kLeaf, block.place_of(batch, slot.segment, number, kResidues, slot.row)};
  }
  // Calls with(width, element) where element(k) is the item that is the slot's element k, or -1.
  template <class With>
  __device__ __forceinline__ static void with_elements(const Slot& slot, const Leaf& leaf, With with) {
    const auto of_width = [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      const int first = slot.number % kResidues * kWidth, from = slot.begin + leaf.number * kLeaf + first;
      const int count = slot.there ? leaf.length - first : 0;
      with(width, [=](int k) {
        const int at = k % kWidth + k / kWidth * kResidues;
        return at < count ? from + at : -1;
      });
    };
    switch (slot_width(leaf.length)) {
      case 8: return of_width(std::integral_constant<int, 8>());
      case 4: return of_width(std::integral_constant<int, 4>());
      case 2: return of_width(std::integral_constant<int, 2>());
      default: return of_width(std::integral_constant<int, 1>());
    }
  }
  __device__ __forceinline__ F greatest_of(const SegmentBatch& batch, const Slot& slot) const {
    F most = Greatest<F>::absent();
    with_elements(slot, leaf_of(batch, slot), [&](auto, auto element) {
#pragma unroll
      for (int k = 0; k < kGroup; ++k)
        if (element(k) >= 0) most = greatest(most, x[0][element(k)]);
    });
    return most;
  }
  // The canonical sum; of an op whose terms are wanted again, they take the place of the elements.
  __device__ __forceinline__ F sum_of(const SegmentBatch& batch, const Slot& slot) const {
    const Leaf leaf = leaf_of(batch, slot);
    const typename Op::Given given{};
    const auto seen = Op::seen(Op::kFirst == First::Greatest ? found[leaf.place] : F(0), leaf.length, given);
    F total;
    with_elements(slot, leaf, [&](auto width, auto element) {
      constexpr int kWidth = decltype(width)::value;
      F sums[kWidth];
#pragma unroll
      for (F& sum : sums) sum = Added<F>::absent();
#pragma unroll
      for (int k = 0; k < kGroup; ++k) {
        if (element(k) < 0) continue;
        F of[kInputs], sum[1] = {sums[k % kWidth]};
#pragma unroll
        for (int i = 0; i < kInputs; ++i) of[i] = x[i][element(k)];
        Op::step(sum, of, F(1), seen, given);
        sums[k % kWidth] = sum[0];
        if constexpr (Op::kTerm) x[0][element(k)] = Op::term(of[0], seen);
      }
      total = tree_of<Added<F>>(sums);
    });
    return total;
  }
  __device__ __forceinline__ void map(const SegmentBatch& batch, const Slot& slot) const {
    const Leaf leaf = leaf_of(batch, slot);
    const At at = ats[leaf.place];
    with_elements(slot, leaf, [&](auto, auto element) {
#pragma unroll
      for (int k = 0; k < kGroup; ++k) {
        if (element(k) < 0) continue;
        F of[kInputs];
#pragma unroll
        for (int i = 0; i < kInputs; ++i) of[i] = x[i][element(k)];
        if constexpr (Op::kTerm) x[0][element(k)] = Op::map(of[0], F(1), F(-0.0), 0, at);
        else x[0][element(k)] = Op::map(of, F(1), F(-0.0), 0, at);
      }
    });
  }

  // ---- segments ------------------------------------------------------------------------------------------------------

  // A segment of a row, and its first slot.
  struct Piece { int segment, row, length, start; };
  __device__ __forceinline__ Piece piece(const SegmentBatch& batch, int v) const {
    const int s = batch.first + (v >> block.rows_log2);
    return {s, v & ((1 << block.rows_log2) - 1), int(block.length(s)),
            block.lists.start[s] - block.lists.start[batch.first]};
  }
  // Calls alone(piece) by a thread for each segment of one short leaf, and together(piece) by a warp for each other.
  template <class Alone, class Together>
  __device__ __forceinline__ void each_piece(const SegmentBatch& batch, Alone alone, Together together) const {
    constexpr int kWarps = segment_runs::kWarps;
    const int pieces = (batch.end - batch.first) << block.rows_log2, t = int(threadIdx.x);
#pragma unroll 1
    for (int v = t; v < pieces; v += kThreads) {
      const Piece of = piece(batch, v);
      if (of.length <= kResidues && of.row < block.rows) alone(of);
    }
    if (block.most <= kResidues / kGroup) return;
#pragma unroll 1
    for (int v = t / kLanes; v < pieces; v += kWarps) {
      const Piece of = piece(batch, v);
      if (of.length > kResidues && of.row < block.rows) together(of);
    }
  }
  template <class Join, int kCount> __device__ __forceinline__ static F tree_of(F (&v)[kCount]) {
#pragma unroll
    for (int d = 1; d < kCount; d *= 2)
#pragma unroll
      for (int i = 0; i < kCount; i += 2 * d) v[i] = Join::combine(v[i], v[i + d]);
    return v[0];
  }
  // The tree over the values of up to eight slots from `first` on, of `count` of a piece.
  template <class Join> __device__ __forceinline__ F eight(const Piece& of, int first, int count) const {
    F v[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      v[i] = first + i < count ? values[((of.start + first + i) << block.rows_log2) + of.row] : Join::absent();
    return tree_of<Join>(v);
  }
  // Over those of a short leaf, by a thread.
  template <class Join> __device__ __forceinline__ F short_value(const Piece& of) const {
    const int count = slots_of_leaf(of.length);
    F v[kResidues / (kGroup * kGroup)];
#pragma unroll
    for (int i = 0; i < kResidues / (kGroup * kGroup); ++i)
      v[i] = i * kGroup < count ? eight<Join>(of, i * kGroup, count) : Join::absent();
    return tree_of<Join>(v);
  }
  // Over those of a leaf of any length, by a warp; every lane gets it.
  template <class Join> __device__ __forceinline__ F leaf_value(const Piece& of, int leaf) const {
    const int first = leaf * kResidues, count = first + slots_of_leaf(length_of(of, leaf));
    F value = eight<Join>(of, first + lane_id() * kGroup, count);
#pragma unroll
    for (int d = 1; d < kLanes; d *= 2) {
      const F other = shuffle(value, lane_id() ^ d);
      value = lane_id() & d ? Join::combine(other, value) : Join::combine(value, other);
    }
    return value;
  }
  __device__ __forceinline__ static int length_of(const Piece& of, int leaf) {
    const int rest = of.length - leaf * kLeaf;
    return rest < kLeaf ? rest : kLeaf;
  }
  __device__ __forceinline__ int place_of(const SegmentBatch& batch, const Piece& of, int leaf) const {
    return block.place_of(batch, of.segment, leaf, kResidues, of.row);
  }

  // The first look.
  __device__ __forceinline__ void find(const SegmentBatch& batch) const {
    each_piece(
        batch, [&](const Piece& of) { found[place_of(batch, of, 0)] = short_value<Greatest<F>>(of); },
        [&](const Piece& of) {
#pragma unroll 1
          for (int leaf = 0; leaf * kLeaf < of.length; ++leaf) {
            const F value = leaf_value<Greatest<F>>(of, leaf);
            if (lane_id() == 0) found[place_of(batch, of, leaf)] = value;
          }
        });
  }
  __device__ __forceinline__ State state_of(const SegmentBatch& batch, const Piece& of, int leaf, F sum) const {
    const F total[1] = {sum};
    const F first = Op::kFirst == First::Greatest ? found[place_of(batch, of, leaf)] : F(0);
    return Op::state(first, total, length_of(of, leaf));
  }
  // What each segment comes to, and what its results are made with.
  __device__ __forceinline__ void finish(const SegmentBatch& batch, const RowRun& of_values) const {
    const RowMemory memory = memory_of(call);
    const auto finish_row = [&](const Piece& of, const State& total, bool writes) {
      const int64_t value = of_values.at(block.first + of.segment, of.row);
      const auto row = row_of<Op>(call, of.length, Op::given(call.options, memory, value), total);
      if (writes) Op::write(row, memory, value);
      return row;
    };
    each_piece(
        batch,
        [&](const Piece& of) {
          State state = Op::none();
          if constexpr (Op::kSums > 0)
            if (of.length > 0) state = state_of(batch, of, 0, short_value<Added<F>>(of));
          const auto row = finish_row(of, state, true);
          if constexpr (Op::kMaps) ats[place_of(batch, of, 0)] = at_of<Op>(row, state);
        },
        [&](const Piece& of) {
          constexpr int kLevels = 3;
          static_assert(segment_runs::kMostRoom < kLeaf << (kLevels - 1) || segment_runs::kMostRoom / kLeaf < 7);
          TreeStack<State, kLevels> tree;
          State total = Op::none(), mine = total;
          if constexpr (Op::kSums > 0) {
#pragma unroll 1
            for (int leaf = 0; leaf * kLeaf < of.length; ++leaf) {
              const State state = state_of(batch, of, leaf, leaf_value<Added<F>>(of, leaf));
              tree.push(state, [](const State& a, const State& b) { return Op::merge(a, b); });
              if (lane_id() == leaf) mine = state;
            }
            total = tree.total(Op::none(), [](const State& a, const State& b) { return Op::merge(a, b); });
          }
          const auto row = finish_row(of, total, lane_id() == 0);
          if constexpr (Op::kMaps)
            if (lane_id() * kLeaf < of.length) ats[place_of(batch, of, lane_id())] = at_of<Op>(row, mine);
        });
  }
};

// Where the elements of a block's rows lie: of the inputs, of the results, and of what has one a segment.
template <class Op>
__device__ __forceinline__ void rows_of(const RowwiseSegments& call, int64_t row, RowRun (&memory)[4]) {
  const Layout& l = call.layout;
  const RowStart start = row_start(l, row);
  const int last = l.kept - 1;
  memory[0] = {start.in, l.reduced ? l.in[l.kept] : 0, l.kept ? l.in[last] : 0};
  memory[2] = {start.out, l.reduced ? l.out[l.kept] : 0, l.kept ? l.out[last] : 0};
  const auto& second = call.more_strides[0];
  if constexpr (Op::kInputs > 1)
    memory[1] = {row_offset(l, second, row), l.reduced ? second[l.kept] : 0, l.kept ? second[last] : 0};
  const auto& values = call.more_strides[1];
  memory[3] = {row_offset(l, values, row), call.value_step, l.kept ? values[last] : 0};
}

template <class Op>
__global__ void TR_BLOCKS_BOUND(segment_runs::kThreads, sizeof(typename FloatOf<Op>::type) == 4 ? 4 : 2)
    rowwise_segment_runs(TR_GRID_CONSTANT RowwiseSegments call, TR_GRID_CONSTANT SegmentRuns runs) {
  using namespace segment_runs;
  using F = typename FloatOf<Op>::type;
  TR_DYNAMIC_SHARED(memory, kAlignment);
  __shared__ RowwiseBlock::Lists lists;
  __shared__ RowRun rows[4];
  const Layout& l = call.layout;
  if constexpr (Op::kMaps)
    clear_others(call.of, l.rows, [&](int64_t row, int64_t i) {
      const int64_t at = row_start(l, row).out + (l.reduced ? i * l.out[l.kept] : 0);
      store_as(call.out_dtype, global(call.out), at, F(0));
    });
  const SharedParts parts(memory, runs, int(sizeof(F)), Op::kInputs, int(sizeof(F)));
  RowwiseBlock block(call.of, l, runs, lists, parts.places);
  if (block.count == 0) return;
  if (threadIdx.x == 0) rows_of<Op>(call, block.row, rows);
  block.list();
  HeldRows<Op> held{call, block, {}, reinterpret_cast<F*>(parts.slots), nullptr, nullptr};
#pragma unroll
  for (int i = 0; i < Op::kInputs; ++i)
    held.x[i] = {reinterpret_cast<F*>(parts.items[i]), runs.room, block.rows, block.rows_log2};
  held.ats = reinterpret_cast<AtOf<Op>*>(parts.segments);
  held.found = reinterpret_cast<F*>(parts.segments) + 2 * places(runs);
  block.each_batch([&](const SegmentBatch& batch) { held.run(batch, rows); });
}

// ---- segments that are walked ----------------------------------------------------------------------------------------

// The tree over the residues of a warp, lane + 32 k; every lane gets it.
template <class F> __device__ __forceinline__ F residues_sum(F (&v)[kGroup]) {
  F sum = transposed_trees<Added<F>, kGroup, 1>(v, lane_id(), false);  // of k = lane % 8
#pragma unroll
  for (int d = kGroup; d < kLanes; d *= 2) sum = sum + shuffle(sum, lane_id() ^ d);
#pragma unroll
  for (int d = 1; d < kGroup; d *= 2) sum = sum + shuffle(sum, lane_id() ^ d);
  return sum;
}
template <class F> __device__ __forceinline__ F warp_greatest(F found) {
#pragma unroll
  for (int d = 1; d < kLanes; d *= 2) found = greatest(found, shuffle(found, lane_id() ^ d));
  return found;
}

template <class Op> struct WalkedRows {
  using F = typename FloatOf<Op>::type;
  using State = typename Op::State;
  using Given = typename Op::Given;
  static constexpr int kInputs = Op::kInputs, kWarps = segment_runs::kWarps;
  static constexpr int kRows = kLeaf / kResidues;  // of residues, of a leaf
  static constexpr bool kHeld = kInputs == 1 && sizeof(F) == 4 && Op::kSums > 0;
  static constexpr int kLevels = 24;
  static_assert(Op::kSums <= 1 && !Op::kWeights && !Op::kScales && Op::kFirst != First::Sum);
  using Tree = TreeStack<State, kLevels>;  // over leaves
  struct Shared {
    alignas(16) unsigned char trees[kWarps][sizeof(Tree)];  // which have constructors
    State states[kWarps];
  };

  const RowwiseSegments& call;
  Shared* shared;

  // Where positions of an item lie, and what it comes with.
  struct Item {
    int64_t n, in[kInputs], in_step[kInputs], out, out_step, value;
    Given given;
  };
  __device__ __forceinline__ Item item_of(const SegmentRow& at) const {
    const Layout& l = call.layout;
    const RowStart start = row_start(l, at.row);
    Item item{};
    item.n = at.length;
    item.in_step[0] = l.reduced ? l.in[l.kept] : 0;
    item.in[0] = start.in + at.begin * item.in_step[0];
    if constexpr (kInputs > 1) {
      item.in_step[1] = l.reduced ? call.more_strides[0][l.kept] : 0;
      item.in[1] = row_offset(l, call.more_strides[0], at.row) + at.begin * item.in_step[1];
    }
    item.out_step = l.reduced ? l.out[l.kept] : 0;
    item.out = start.out + at.begin * item.out_step;
    item.value = row_offset(l, call.more_strides[1], at.row) + at.segment * call.value_step;
    item.given = Op::given(call.options, memory_of(call), item.value);
    return item;
  }

  // Eight positions: first + k * step, k < count. Their offsets are not kept from one place to the next: they would
  // take most registers (gfx1100, softmax's gradient: 256 and memory, 85 without them).
  using Eight = F[kInputs][kGroup];
  __device__ __forceinline__ void load(const Item& item, int64_t first, int step, int count, Eight& x) const {
#pragma unroll
    for (int i = 0; i < kInputs; ++i)
      load_floats(call.dtype, call.in[i], item.in[i] + first * item.in_step[i], recomputed(step * item.in_step[i]), 0,
                  count, x[i]);
  }
  __device__ __forceinline__ static F greatest_of(F found, const Eight& x, int count) {
    if constexpr (Op::kFirst == First::Greatest) {
#pragma unroll
      for (int k = 0; k < kGroup; ++k)
        if (k < count) found = greatest(found, x[0][k]);
    }
    return found;
  }
  template <class Seen>
  __device__ __forceinline__ static void add(const Eight& x, int count, const Seen& seen, const Given& given,
                                             F (&sums)[kGroup]) {
    if constexpr (Op::kSums > 0) {
#pragma unroll
      for (int k = 0; k < kGroup; ++k) {
        F element[kInputs], sum[1] = {sums[k]};
#pragma unroll
        for (int i = 0; i < kInputs; ++i) element[i] = x[i][k];
        Op::step(sum, element, F(1), seen, given);
        if (k < count) sums[k] = sum[0];
      }
    }
  }
  // Writes the results of eight positions.
  template <class Seen, class At>
  __device__ __forceinline__ void map(const Item& item, int64_t first, int step, int count, const Eight& x,
                                      const Seen& seen, const At& at) const {
    if constexpr (Op::kMaps) {
      F y[kGroup];
#pragma unroll
      for (int k = 0; k < kGroup; ++k) {
        F element[kInputs];
#pragma unroll
        for (int i = 0; i < kInputs; ++i) element[i] = x[i][k];
        if constexpr (Op::kTerm) y[k] = Op::map(Op::term(element[0], seen), F(1), F(-0.0), 0, at);
        else y[k] = Op::map(element, F(1), F(-0.0), 0, at);
      }
      store_elements(call.out_dtype, call.out, item.out + first * item.out_step, recomputed(step * item.out_step),
                     count, y);
    }
  }
  __device__ __forceinline__ auto row_at(const Item& item, const State& state) const {
    return row_of<Op>(call, item.n, item.given, state);
  }

  // ---- leaves, by a warp -----------------------------------------------------------------------------------------------

  // Calls with(x, position of the lane's first element, how many it has) for each row of residues of a leaf: of what is
  // in `held`, or is read.
  template <class Held, class With>
  __device__ __forceinline__ void each_row(const Item& item, int64_t first, int size, Held& held, bool is_held,
                                           With with) const {
    if constexpr (kHeld) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int64_t position = first + r * kResidues + lane_id();
        const int count = count_below(first + size, position, kLanes);
        if (r * kResidues >= size) continue;
        if (!is_held) load(item, position, kLanes, count, held[r]);
        with(held[r], position, count);
      }
    } else {
#pragma unroll 1
      for (int r = 0; r * kResidues < size; ++r) {
        const int64_t position = first + r * kResidues + lane_id();
        const int count = count_below(first + size, position, kLanes);
        Eight x = {};
        load(item, position, kLanes, count, x);
        with(x, position, count);
      }
    }
  }
  // The leaf from position `first` on: its state, and with it what is done by with(state, seen, held, size).
  template <class With> __device__ __forceinline__ void look(const Item& item, int64_t first, With with) const {
    const int64_t rest = item.n - first;
    const int size = int(rest < kLeaf ? rest : kLeaf);
    [[maybe_unused]] Eight held[kHeld ? kRows : 1] = {};
    F found = -kInfinity<F>;
    if constexpr (Op::kFirst == First::Greatest) {
      each_row(item, first, size, held, false,
               [&](const Eight& x, int64_t, int count) { found = greatest_of(found, x, count); });
      found = warp_greatest(found);
    }
    const auto seen = Op::seen(found, size, item.given);
    State state = Op::none();
    if constexpr (Op::kSums > 0) {
      F sums[kGroup];
#pragma unroll
      for (F& sum : sums) sum = F(-0.0);
      each_row(item, first, size, held, Op::kFirst != First::Nothing,
               [&](const Eight& x, int64_t, int count) { add(x, count, seen, item.given, sums); });
      const F total[1] = {residues_sum(sums)};
      state = Op::state(found, total, size);
    }
    with(state, seen, held, size);
  }
  // The state of the item, of those of the leaves that the block's warps have seen, of which `parts` have seen some; in
  // every lane.
  __device__ __forceinline__ State total_of(int parts) const {
    const int warp = int(threadIdx.x) / kLanes;
    if (lane_id() == 0) shared->states[warp] = tree_of_warp().total(Op::none(), merge);
    __syncthreads();
    State total = shared->states[lane_id() < parts ? lane_id() : 0];
#pragma unroll
    for (int d = 1; d < kWarps; d *= 2) {
      const State other = shuffle(total, (lane_id() + d) % kLanes);
      if (lane_id() % (2 * d) == 0 && lane_id() + d < parts) total = merge(total, other);
    }
    __syncthreads();  // before the next item's
    return shuffle(total, 0);
  }
  __device__ __forceinline__ Tree& tree_of_warp() const {
    return *reinterpret_cast<Tree*>(shared->trees[threadIdx.x / kLanes]);
  }
  __device__ __forceinline__ static State merge(const State& a, const State& b) { return Op::merge(a, b); }

  // By the block. Of several leaves twice: their states, then their results.
  __device__ __forceinline__ void walk(const SegmentRow& at) const {
    const Item item = item_of(at);
    const int warp = int(threadIdx.x) / kLanes;
    const int64_t leaves = (item.n + kLeaf - 1) / kLeaf;
    int64_t each = 1;
    while (each * kWarps < leaves) each *= 2;
    const int64_t first = warp * each < leaves ? warp * each : leaves;
    const int64_t end = first + each < leaves ? first + each : leaves;
    const bool once = leaves == 1 || Op::kSums == 0;
    Tree& tree = tree_of_warp();
    if (lane_id() == 0) tree.count = 0;
    State total = Op::none();
#pragma unroll 1
    for (int pass = once ? 1 : 0; pass < 2; ++pass) {
      if (pass == 1 && !once) {
        total = total_of(int((leaves + each - 1) / each));
        if constexpr (!Op::kMaps) {
          if (first == 0 && lane_id() == 0) Op::write(row_at(item, total), memory_of(call), item.value);
          return;
        }
      }
#pragma unroll 1
      for (int64_t leaf = first; leaf < end; ++leaf)
        look(item, leaf * kLeaf, [&](const State& state, const auto& seen, auto& held, int size) {
          if (pass == 0) {
            if (lane_id() == 0) tree.push(state, merge);
            return;
          }
          const auto row = row_at(item, once ? state : total);
          if (leaf == 0 && lane_id() == 0) Op::write(row, memory_of(call), item.value);
          if constexpr (Op::kMaps) {
            const auto at = Op::at(row, state);
            each_row(item, leaf * kLeaf, size, held, Op::kSums > 0, [&](const Eight& x, int64_t position, int count) {
              map(item, position, kLanes, count, x, seen, at);
            });
          }
        });
    }
  }
};

template <class Op>
__global__ void __launch_bounds__(segment_runs::kThreads)
    rowwise_segment_walks(TR_GRID_CONSTANT RowwiseSegments call, TR_GRID_CONSTANT SegmentRuns runs) {
  __shared__ typename WalkedRows<Op>::Shared shared;
  __shared__ RowwiseBlock::Lists lists;
  const RowwiseBlock block(call.of, call.layout, runs, lists, nullptr);
  const WalkedRows<Op> rows{call, &shared};
  each_walk(block, [&](const SegmentRow& row) { rows.walk(row); });
}

template <class Op> static void launch(const PlannedRowwiseSegments& call, Queue queue) {
  const auto enqueue_kernel = [&](auto kernel, int shared) {
    enqueue(kernel, call.plan.blocks, segment_runs::kThreads, shared, queue, static_cast<const RowwiseSegments&>(call),
            call.plan);
  };
  enqueue_kernel(rowwise_segment_runs<Op>, call.plan.shared);
  if (segment_runs::walks(call.of, call.plan)) enqueue_kernel(rowwise_segment_walks<Op>, 0);
}
template <template <class> class Op> static void launch(const PlannedRowwiseSegments& call, Queue queue) {
  if (call.accumulator == Dtype::F64) launch<Op<double>>(call, queue);
  else launch<Op<float>>(call, queue);
}

const char* rowwise_segments(const PlannedRowwiseSegments& call, void*, void* stream) {
  const Queue queue{static_cast<gpuStream_t>(stream)};
  switch (call.op) {
    case Rowwise::Softmax: launch<Softmax>(call, queue); break;
    case Rowwise::LogSoftmax: launch<LogSoftmax>(call, queue); break;
    case Rowwise::SoftmaxGradient: launch<SoftmaxGradient>(call, queue); break;
    case Rowwise::LogSoftmaxGradient: launch<LogSoftmaxGradient>(call, queue); break;
    case Rowwise::LogSumExp: launch<LogSumExp>(call, queue); break;
    case Rowwise::LogSumExpGradient: launch<LogSumExpGradient>(call, queue); break;
    default: return "no kernel by segments";
  }
  const gpuError_t error = gpuGetLastError();
  return error == gpuSuccess ? nullptr : gpuGetErrorString(error);
}

}  // namespace torchreduce::gpu
