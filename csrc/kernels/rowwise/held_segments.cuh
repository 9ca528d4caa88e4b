// Row-wise ops by segments whose elements a block holds.
//
// Serves: softmax, log_softmax, logsumexp and their gradients, of elements of any floating type and strides. Elements
// are in shared memory, where their results take their place (segment_runs.cuh). A leaf of up to 256 elements has a
// slot for each eight neighbours, a longer one for one, two or four neighbouring residues, which have up to eight
// elements. Beside them are a value of each slot, [slot], and of each leaf what the first look finds and what its
// results are made with, [place]. A thread has every 256th slot, and every 256th segment of one short leaf; a warp has
// every eighth of the others.
#pragma once
#include "walked_segments.cuh"

namespace torchreduce::gpu {

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
  // Calls with(width, there, item): whether there is an element k, and the item that it is.
  template <class With>
  __device__ __forceinline__ static void with_elements(const Slot& slot, const Leaf& leaf, With with) {
    const auto of_width = [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      const int first = slot.number % kResidues * kWidth, from = slot.begin + leaf.number * kLeaf + first;
      const int count = slot.there ? leaf.length - first : 0;
      const auto place = [](int k) { return k % kWidth + k / kWidth * kResidues; };
      with(width, [=](int k) { return place(k) < count; }, [=](int k) { return from + place(k); });
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
    with_elements(slot, leaf_of(batch, slot), [&](auto, auto there, auto item) {
#pragma unroll
      for (int k = 0; k < kGroup; ++k)
        if (there(k)) most = greatest(most, x[0][item(k)]);
    });
    return most;
  }
  // The canonical sum; of an op whose terms are wanted again, they take the place of the elements.
  __device__ __forceinline__ F sum_of(const SegmentBatch& batch, const Slot& slot) const {
    const Leaf leaf = leaf_of(batch, slot);
    const typename Op::Given given{};
    const auto seen = Op::seen(Op::kFirst == First::Greatest ? found[leaf.place] : F(0), leaf.length, given);
    F total;
    with_elements(slot, leaf, [&](auto width, auto there, auto item) {
      constexpr int kWidth = decltype(width)::value;
      F of[kGroup][kInputs] = {}, sums[kWidth];
#pragma unroll
      for (int k = 0; k < kGroup; ++k)
#pragma unroll
        for (int i = 0; i < kInputs; ++i)
          if (there(k)) of[k][i] = x[i][item(k)];
#pragma unroll
      for (F& sum : sums) sum = Added<F>::absent();
#pragma unroll
      for (int k = 0; k < kGroup; ++k) {  // without branches
        F sum[1] = {sums[k % kWidth]};
        Op::step(sum, of[k], F(1), seen, given);
        sums[k % kWidth] = there(k) ? sum[0] : sums[k % kWidth];
        if constexpr (Op::kTerm)
          if (there(k)) x[0][item(k)] = Op::term(of[k][0], seen);
      }
      total = tree_of<Added<F>>(sums);
    });
    return total;
  }
  __device__ __forceinline__ void map(const SegmentBatch& batch, const Slot& slot) const {
    const Leaf leaf = leaf_of(batch, slot);
    const At at = ats[leaf.place];
    with_elements(slot, leaf, [&](auto, auto there, auto item) {
#pragma unroll
      for (int k = 0; k < kGroup; ++k) {
        if (!there(k)) continue;
        F of[kInputs];
#pragma unroll
        for (int i = 0; i < kInputs; ++i) of[i] = x[i][item(k)];
        if constexpr (Op::kTerm) x[0][item(k)] = Op::map(of[0], F(1), F(-0.0), 0, at);
        else x[0][item(k)] = Op::map(of, F(1), F(-0.0), 0, at);
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
    rowwise_segment_runs(TR_GRID_CONSTANT RowwiseSegments call, TR_GRID_CONSTANT SegmentRuns runs, SegmentList list) {
  using namespace segment_runs;
  using F = typename FloatOf<Op>::type;
  TR_DYNAMIC_SHARED(memory, kAlignment);
  __shared__ RowwiseBlock::Lists lists;
  __shared__ RowRun rows[4];
  const Layout& l = call.layout;
  clear_others<Op>(call);
  const SharedParts parts(memory, runs, int(sizeof(F)), Op::kInputs, int(sizeof(F)));
  RowwiseBlock block(call.of, l, runs, lists, parts.places);
  if (block.count == 0) return;
  if (threadIdx.x == 0) rows_of<Op>(call, block.row, rows);
  block.list(list);
  HeldRows<Op> held{call, block, {}, reinterpret_cast<F*>(parts.slots), nullptr, nullptr};
#pragma unroll
  for (int i = 0; i < Op::kInputs; ++i)
    held.x[i] = {reinterpret_cast<F*>(parts.items[i]), runs.room, block.rows, block.rows_log2};
  held.ats = reinterpret_cast<AtOf<Op>*>(parts.segments);
  held.found = reinterpret_cast<F*>(parts.segments) + 2 * places(runs);
  block.each_batch([&](const SegmentBatch& batch) { held.run(batch, rows); });
}

}  // namespace torchreduce::gpu
