// Row-wise ops by segments that no block holds.
//
// Serves what held_segments.cuh does. A block walks a segment, of which each of its warps has neighbouring leaves, an
// aligned power of two of them. Lanes load and store elements side by side: of a row of residues lane l has l + 32 k,
// k < 8. A warp keeps a leaf in registers where that is of one input in float32; else it reads each again. The warps'
// states meet in shared memory, [warp].
#pragma once
#include "segment_leaves.cuh"

namespace torchreduce::gpu {

// The tree over the residues of a team of lanes, lane + kTeam * k; every lane gets it.
template <int kTeam = kLanes, class F> __device__ __forceinline__ F residues_sum(F (&v)[kGroup]) {
  F sum = transposed_trees<Added<F>, kGroup, 1>(v, lane_id(), false);  // of k = lane % 8
#pragma unroll
  for (int d = kGroup; d < kTeam; d *= 2) sum = sum + shuffle(sum, lane_id() ^ d);
#pragma unroll
  for (int d = 1; d < kGroup; d *= 2) sum = sum + shuffle(sum, lane_id() ^ d);
  return sum;
}
template <int kTeam = kLanes, class F> __device__ __forceinline__ F warp_greatest(F found) {
#pragma unroll
  for (int d = 1; d < kTeam; d *= 2) found = greatest(found, shuffle(found, lane_id() ^ d));
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

// Writes 0 to the elements of no segment.
template <class Op> __device__ __forceinline__ void clear_others(const RowwiseSegments& call) {
  const Layout& l = call.layout;
  if constexpr (Op::kMaps)
    clear_others(call.of, l.rows, [&](int64_t row, int64_t i) {
      const int64_t at = row_start(l, row).out + (l.reduced ? i * l.out[l.kept] : 0);
      store_as(call.out_dtype, global(call.out), at, typename FloatOf<Op>::type(0));
    });
}

template <class Op>
__global__ void __launch_bounds__(segment_runs::kThreads)
    rowwise_segment_walks(TR_GRID_CONSTANT RowwiseSegments call, TR_GRID_CONSTANT SegmentRuns runs, SegmentList list) {
  __shared__ typename WalkedRows<Op>::Shared shared;
  const WalkedRows<Op> rows{call, &shared};
  each_listed(
      call.of, call.layout.rows, runs, list, true, blockIdx.x, gridDim.x,
      [&](int64_t n) { return !RowwiseBlock::holds(runs, n); }, [&](const SegmentRow& row) { rows.walk(row); });
}

}  // namespace torchreduce::gpu
