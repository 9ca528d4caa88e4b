// Row-wise ops by segments, and their launches.
//
// Serves: softmax, log_softmax, logsumexp and their gradients, of elements of any floating type and strides. Lanes load
// and store elements side by side: lane l of a team of L has the positions l + k L, k < 8, of which 256 are a row of
// residues. Of an item of at most 8 L elements a team does all in registers. A warp keeps a leaf in registers, too,
// where that is of one input in float32; of several leaves it reads each again. A block's warps have neighbouring
// leaves, an aligned power of two of them each; their states meet in shared memory, [warp].
#include "kernels/common/gpu.h"
#include "kernels/tile/segment_teams.cuh"
#include "rowwise_segments.h"

namespace torchreduce::gpu {

template <class F> struct Added {
  __device__ __forceinline__ static F combine(F a, F b) { return a + b; }
};
// The tree over the positions of a team, lane + k * lanes; every lane gets it.
template <class F> __device__ __forceinline__ F team_sum(F (&v)[kGroup], int lanes) {
  F sum = transposed_trees<Added<F>, kGroup, 1>(v, lane_id(), false);  // of k = lane % 8
#pragma unroll 1
  for (int d = kGroup; d < lanes; d *= 2) sum = sum + shuffle(sum, lane_id() ^ d);
#pragma unroll
  for (int d = 1; d < kGroup; d *= 2) sum = sum + shuffle(sum, lane_id() ^ d);
  return sum;
}
template <class F> __device__ __forceinline__ F team_greatest(F found, int lanes) {
#pragma unroll 1
  for (int d = 1; d < lanes; d *= 2) found = greatest(found, shuffle(found, lane_id() ^ d));
  return found;
}

template <class Op> struct FloatOf;
template <template <class> class Op, class F> struct FloatOf<Op<F>> { using type = F; };

template <class Op> struct SegmentRows {
  using F = typename FloatOf<Op>::type;
  using State = typename Op::State;
  using Given = typename Op::Given;
  static constexpr int kInputs = Op::kInputs, kWarps = segment_teams::kWarps;
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
  const SegmentTeams& teams;
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
    item.given = Op::given(call.options, memory(), item.value);
    return item;
  }

  __device__ __forceinline__ RowMemory memory() const {
    RowMemory m = call.memory;
    m.stats = global(m.stats);
    m.values[0] = global(m.values[0]);
    return m;
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
  __device__ __forceinline__ auto row_of(const Item& item, const State& state) const {
    return Op::row(state, item.n, item.given, call.options, [](int64_t) { return F(0); });
  }

  // ---- an item a team --------------------------------------------------------------------------------------------------

  __device__ __forceinline__ void team(const SegmentRow& at, bool there) const {
    const int lanes = teams.lanes, lane = lane_id() % lanes;
    Item item{};
    if (there) item = item_of(at);
    const int count = count_below(item.n, lane, lanes);
    Eight x = {};
    load(item, lane, lanes, count, x);
    const F found = team_greatest(greatest_of(-kInfinity<F>, x, count), lanes);
    const auto seen = Op::seen(found, int(item.n), item.given);
    State state = Op::none();
    if constexpr (Op::kSums > 0) {
      F sums[kGroup];
#pragma unroll
      for (F& sum : sums) sum = F(-0.0);
      add(x, count, seen, item.given, sums);
      const F total[1] = {team_sum(sums, lanes)};
      if (item.n > 0) state = Op::state(found, total, int(item.n));
    }
    const auto row = row_of(item, state);
    if (there && lane == 0) Op::write(row, memory(), item.value);
    map(item, lane, lanes, count, x, seen, Op::at(row, state));
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
      found = team_greatest(found, kLanes);
    }
    const auto seen = Op::seen(found, size, item.given);
    State state = Op::none();
    if constexpr (Op::kSums > 0) {
      F sums[kGroup];
#pragma unroll
      for (F& sum : sums) sum = F(-0.0);
      each_row(item, first, size, held, Op::kFirst != First::Nothing,
               [&](const Eight& x, int64_t, int count) { add(x, count, seen, item.given, sums); });
      const F total[1] = {team_sum(sums, kLanes)};
      state = Op::state(found, total, size);
    }
    with(state, seen, held, size);
  }
  // The state of the item, of those of the leaves that this warp has seen, or where `whole` of those of the block's
  // warps, of which `parts` have seen some; in every lane.
  __device__ __forceinline__ State total_of(bool whole, int parts) const {
    const int warp = int(threadIdx.x) / kLanes;
    State total = Op::none();
    if (lane_id() == 0) total = tree_of_warp().total(Op::none(), merge);
    if (!whole) return shuffle(total, 0);
    if (lane_id() == 0) shared->states[warp] = total;
    __syncthreads();
    total = shared->states[lane_id() < parts ? lane_id() : 0];
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

  // By a warp; or where `whole` by the block, of which each warp has neighbouring leaves. Of several leaves twice:
  // their states, then their results.
  __device__ __forceinline__ void walk(const SegmentRow& at, bool whole) const {
    const Item item = item_of(at);
    const int warp = whole ? int(threadIdx.x) / kLanes : 0;
    const int64_t leaves = (item.n + kLeaf - 1) / kLeaf;
    int64_t each = whole ? 1 : leaves;
    while (whole && each * kWarps < leaves) each *= 2;
    const int64_t first = warp * each < leaves ? warp * each : leaves;
    const int64_t end = first + each < leaves ? first + each : leaves;
    const bool once = leaves == 1 || Op::kSums == 0;
    Tree& tree = tree_of_warp();
    if (lane_id() == 0) tree.count = 0;
    State total = Op::none();
#pragma unroll 1
    for (int pass = once ? 1 : 0; pass < 2; ++pass) {
      if (pass == 1 && !once) {
        total = total_of(whole, int((leaves + each - 1) / each));
        if constexpr (!Op::kMaps) {
          if (first == 0 && lane_id() == 0) Op::write(row_of(item, total), memory(), item.value);
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
          const auto row = row_of(item, once ? state : total);
          if (leaf == 0 && lane_id() == 0) Op::write(row, memory(), item.value);
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
__global__ void TR_BLOCKS_BOUND(segment_teams::kThreads, sizeof(typename SegmentRows<Op>::F) == 4 ? 4 : 2)
    rowwise_segment_teams(TR_GRID_CONSTANT RowwiseSegments call, TR_GRID_CONSTANT SegmentTeams teams) {
  const Layout& l = call.layout;
  if constexpr (Op::kMaps)
    clear_others(call.of, l.rows, [&](int64_t row, int64_t i) {
      const int64_t at = row_start(l, row).out + (l.reduced ? i * l.out[l.kept] : 0);
      store_as(call.out_dtype, global(call.out), at, typename SegmentRows<Op>::F(0));
    });
  const TeamItem mine(call.of, l.rows, teams);
  SegmentRows<Op>{call, teams, nullptr}.team(mine.row, mine.fits);
}
template <class Op>
__global__ void __launch_bounds__(segment_teams::kThreads)
    rowwise_segment_walks(TR_GRID_CONSTANT RowwiseSegments call, TR_GRID_CONSTANT SegmentTeams teams) {
  __shared__ typename SegmentRows<Op>::Shared shared;
  const SegmentRows<Op> rows{call, teams, &shared};
  each_walk(call.of, call.layout.rows, teams, [&](const SegmentRow& row, bool whole) { rows.walk(row, whole); });
}

template <class Op> static void launch(const PlannedRowwiseSegments& call, Queue queue) {
  const auto enqueue_kernel = [&](auto kernel) {
    enqueue(kernel, call.plan.blocks, segment_teams::kThreads, 0, queue, static_cast<const RowwiseSegments&>(call),
            call.plan);
  };
  enqueue_kernel(rowwise_segment_teams<Op>);
  if (segment_teams::walks(call.of, call.plan)) enqueue_kernel(rowwise_segment_walks<Op>);
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
