// Row-wise ops on columns: rows that lie side by side, kept in shared memory between the passes.
//
// Serves: float32 and 16-bit floats, columns of neighbours that start anywhere (columns.h).
// A block copies a tile to shared memory: a leaf of some neighbouring columns. A thread has a column, in a group of
// threads with a run of residues, which it sums by chunks of neighbours. Columns of several leaves meet over a cluster,
// a block a leaf, or in device memory between two launches that read them twice.
// Shared memory, dynamic: the tile of each input; sums of the groups; states of the columns' leaves.
#pragma once
#include "own_columns.cuh"
#include "states.cuh"

namespace torchreduce::gpu {

enum class ColumnPart : int8_t { Whole, States, Output };

// Copies `rows` positions of a tile's columns to shared memory, kBytes at once; done after wait_copies and a barrier.
template <class E, int kBytes>
__device__ __forceinline__ void copy_tile(const RowwiseKernelCall& call, const RowwiseColumnsShape& shape, int input,
                                          int64_t column, int64_t offset, int64_t pitch, int rows, E* tile) {
  constexpr int kPer = kBytes / int(sizeof(E));
  const int pieces = shape.columns / kPer, lane = int(threadIdx.x) % pieces;
  const int64_t own = column + lane * kPer;
  if (own >= call.rows) return;
  const E* const from = static_cast<const E*>(call.in[input]) + call.start(own).in[input] + offset;
#pragma unroll 8
  for (int r = int(threadIdx.x) / pieces; r < rows; r += int(blockDim.x) / pieces) {
    E* const to = tile + r * shape.pitch + lane * kPer;
    if constexpr (kBytes >= 4) copy_async<kBytes>(to, from + r * pitch);
    else *to = from[r * pitch];
  }
}

// A block's tile: a leaf of some neighbouring columns.
template <class Op, class E> struct ColumnTile {
  using F = float;
  using State = typename Op::State;
  struct alignas(8) Slot { State state; };
  static constexpr int kInputs = Op::kInputs, kSums = Op::kSums;
  static constexpr int kChunk = rowwise_columns::kChunk;
  static constexpr bool kKeeps = Op::kTerm && sizeof(E) == 4;  // terms take the elements' places

  const RowwiseKernelCall& call;
  const RowwiseColumnsShape& shape;
  const int64_t first_column;
  const int leaf, count, size;       // of the columns; its elements; elements of an input's tile
  const int groups, c, group, mine;  // of threads; of this one: its column, its group, elements of its column
  const bool there;
  E* const tile;
  F* const sums_of;
  Slot* const slots;

  __device__ ColumnTile(const RowwiseKernelCall& call, const RowwiseColumnsShape& shape, int64_t number, int leaf,
                        char* dynamic)
      : call(call),
        shape(shape),
        first_column(number * shape.columns),
        leaf(leaf),
        count(least(call.length - int64_t(leaf) * kLeaf)),
        size(least(call.length) * shape.pitch),
        groups(int(blockDim.x) / shape.columns),
        c(int(threadIdx.x) % shape.columns),
        group(int(threadIdx.x) / shape.columns),
        mine(first_column + c < call.rows ? count : 0),
        there(first_column + c < call.rows),
        tile(reinterpret_cast<E*>(dynamic)),
        sums_of(reinterpret_cast<F*>(dynamic + (size * kInputs * int(sizeof(E)) + 15) / 16 * 16)),
        slots(reinterpret_cast<Slot*>(sums_of + kSums * int(blockDim.x))) {}
  __device__ static int least(int64_t n) { return int(n < kLeaf ? n : kLeaf); }

  // Input k at a place of the thread's column: `at` counts elements of the tile.
  __device__ F element(int k, int at) const { return convert<F>(tile[c + k * size + at]); }
  __device__ void elements(int at, F (&x)[kInputs]) const {
#pragma unroll
    for (int k = 0; k < kInputs; ++k) x[k] = element(k, at);
  }

  __device__ __forceinline__ void load(const ColumnPitches& pitches) const {
#pragma unroll
    for (int k = 0; k < kInputs; ++k) {
      const int64_t offset = int64_t(leaf) * kLeaf * pitches.in[k];
      E* const to = tile + k * size;
      if (shape.bytes == 16) copy_tile<E, 16>(call, shape, k, first_column, offset, pitches.in[k], count, to);
      else if (shape.bytes == 4) copy_tile<E, 4>(call, shape, k, first_column, offset, pitches.in[k], count, to);
      else if constexpr (sizeof(E) == 2)
        copy_tile<E, 2>(call, shape, k, first_column, offset, pitches.in[k], count, to);
    }
    end_copies();
  }

  // What the groups have of a column, by the contiguous tree.
  template <class Combine> __device__ __forceinline__ F meet(F value, F* scratch, Combine combine) const {
    scratch[threadIdx.x] = value;
    __syncthreads();
#pragma unroll 1
    for (int d = 1; d < groups; d *= 2) {
      if ((group & (2 * d - 1)) == 0)
        scratch[threadIdx.x] = combine(scratch[threadIdx.x], scratch[threadIdx.x + d * shape.columns]);
      __syncthreads();
    }
    const F total = scratch[c];
    __syncthreads();
    return total;
  }
  // kCount canonical sums; step(sums, at) adds what lies there.
  template <int kCount, class Step> __device__ __forceinline__ void sum(F (&total)[kCount], Step step) const {
    const auto add = [](F a, F b) { return a + b; };
    TreeStack<F, 6> tree[kCount];
    const int each = shape.residues / groups;
#pragma unroll 1
    for (int r = group * each; r < (group + 1) * each; r += kChunk) {
      F acc[kCount][kChunk];
#pragma unroll
      for (int s = 0; s < kCount; ++s)
#pragma unroll
        for (F& a : acc[s]) a = F(-0.0);
      int at = r * shape.pitch;
#pragma unroll 1
      for (int i = r; i < mine; i += kResidues, at += kResidues * shape.pitch) {
        const auto one = [&](int j) {
          F sums[kCount];
#pragma unroll
          for (int s = 0; s < kCount; ++s) sums[s] = acc[s][j];
          step(sums, at + j * shape.pitch);
#pragma unroll
          for (int s = 0; s < kCount; ++s) acc[s][j] = sums[s];
        };
        if (i + kChunk <= mine) {
#pragma unroll
          for (int j = 0; j < kChunk; ++j) one(j);
        } else {
#pragma unroll
          for (int j = 0; j < kChunk - 1; ++j)
            if (i + j < mine) one(j);
        }
      }
#pragma unroll
      for (int s = 0; s < kCount; ++s) {
#pragma unroll
        for (int d = 1; d < kChunk; d *= 2)
#pragma unroll
          for (int j = 0; j < kChunk; j += 2 * d) acc[s][j] = acc[s][j] + acc[s][j + d];
        tree[s].push(acc[s][0], add);
      }
    }
#pragma unroll
    for (int s = 0; s < kCount; ++s) total[s] = meet(tree[s].total(F(-0.0), add), sums_of + s * int(blockDim.x), add);
  }
  // Both looks, at the thread's column; and what its elements have to be multiplied by.
  template <class Given> __device__ __forceinline__ State look(const Given& given, [[maybe_unused]] F& wanted) const {
    F found = first_absent<Op::kFirst, F>();
    if constexpr (Op::kFirst == First::Greatest) {
      const int end = mine * shape.pitch;
#pragma unroll 8
      for (int at = group * shape.pitch; at < end; at += groups * shape.pitch) found = greatest(found, element(0, at));
      found = meet(found, sums_of, [](F a, F b) { return greatest(a, b); });
    } else if constexpr (Op::kFirst == First::Sum) {
      F one[1];
      sum(one, [&](F* s, int at) { s[0] = s[0] + element(0, at); });
      found = one[0];
    }
    const auto seen = Op::seen(found, count, given);
    F sums[kSums];
    sum(sums, [&](F* s, int at) {
      F x[kInputs];
      elements(at, x);
      if constexpr (kKeeps) {
        const F term = Op::term(x[0], seen);
        s[0] = s[0] + term;
        tile[c + at] = term;
      } else {
        Op::step(s, x, F(1), seen, given);
      }
    });
    if constexpr (Op::kScales) wanted = there ? Op::rescale(sums, seen) : F(1);
    return Op::skips(given) ? Op::none() : Op::state(found, sums, count);
  }

  // Where blocks of a cluster have the leaves of the columns: before anything that takes time, and what they have
  // together.
  __device__ __forceinline__ void begin_cluster([[maybe_unused]] Barrier* arrived) const {
#ifdef TR_CLUSTERS
    if (threadIdx.x == 0) {
      barrier_init(arrived, 1);
      barriers_made();
      barrier_expect(arrived, uint32_t(shape.cluster * shape.columns * int(sizeof(Slot))));
    }
    cluster_arrive();
#endif
  }
  __device__ __forceinline__ State meet_leaves(const State& state, [[maybe_unused]] Barrier* arrived) const {
#ifdef TR_CLUSTERS
    cluster_wait();
    for (int rank = group; rank < shape.cluster; rank += groups)
      put(slots + leaf * shape.columns + c, arrived, Slot{state}, rank);
    barrier_wait(arrived, 0);
    __syncthreads();
#pragma unroll 1
    for (int d = 1; d < shape.leaves; d *= 2) {
      for (int i = group * 2 * d; i + d < shape.leaves; i += groups * 2 * d) {
        Slot* const to = slots + i * shape.columns + c;
        to->state = Op::merge(State(to->state), State(to[d * shape.columns].state));
      }
      __syncthreads();
    }
    return slots[c].state;
#else
    return state;
#endif
  }

  // Writes result(at, r) for each position r of the thread's group.
  template <class Result> __device__ __forceinline__ void write(E* to, int64_t pitch, Result result) const {
    E* p = to + group * pitch;
    int at = group * shape.pitch;
#pragma unroll 4
    for (int r = group; r < count; r += groups, at += groups * shape.pitch, p += groups * pitch)
      *p = round_to<E>(result(at, r));
  }
};

template <class Op, class E>
__device__ __forceinline__ void shared_columns(const RowwiseKernelCall& call, const RowwiseColumnsShape& shape,
                                               const ColumnPitches& pitches, ColumnPart part,
                                               typename Op::State* states, const typename Op::State* totals) {
  using F = float;
  using T = ColumnTile<Op, E>;
  TR_DYNAMIC_SHARED(dynamic, 16);
  __shared__ Barrier arrived;
  const int64_t number = blockIdx.x / shape.leaves;
  const T tile(call, shape, number, int(blockIdx.x - number * shape.leaves), dynamic);
  if (shape.cluster > 1) tile.begin_cluster(&arrived);
  tile.load(pitches);

  const int64_t column = tile.there ? tile.first_column + tile.c : call.rows - 1, first = int64_t(tile.leaf) * kLeaf;
  const RowwiseStart start = call.start(column);
  const auto given = Op::given(call.options, call.memory, start.value);
  wait_copies<0>();
  __syncthreads();

  typename Op::State state = Op::none(), total = state;
  typename Op::State* const own = states + column * shape.leaves + tile.leaf;
  if (part == ColumnPart::Output) {
    state = *own;
    total = totals[column];
  } else {
    [[maybe_unused]] F wanted = F(1);
    state = tile.look(given, wanted);
    if constexpr (Op::kScales) {
      if (wanted != F(1)) {
        TR_RARE_PATH;
        typename Op::State again = state;
        scaled_leaf<Op>(again, wanted, LeafElements<E>{tile.tile + tile.c, shape.pitch, tile.count});
        state = again;
      }
    }
    total = state;
    if (shape.cluster > 1) total = tile.meet_leaves(state, &arrived);
  }
  if (part == ColumnPart::States) {
    if (tile.group == 0 && tile.there) *own = state;
    return;
  }
  if (!tile.there || (!Op::kMaps && (tile.leaf > 0 || tile.group > 0))) return;
  const auto values = Op::row(total, call.length, given, call.options, [&](int64_t i) {
    return convert<F>(static_cast<const E*>(call.in[0])[start.in[0] + i * pitches.in[0]]);
  });
  if (tile.leaf == 0 && tile.group == 0) Op::write(values, call.memory, start.value);
  if constexpr (Op::kMaps) {
    const auto& at_leaf = Op::at(values, state);
    E* const to = static_cast<E*>(call.out) + start.out + first * pitches.out;
    if constexpr (Op::kTerm) {
      const auto seen = Op::seen(state.l, tile.count, given);
      const bool kept = T::kKeeps && part != ColumnPart::Output;
      tile.write(to, pitches.out, [&](int at, int r) {
        const F x = tile.element(0, at);
        return Op::map(kept ? x : Op::term(x, seen), F(1), F(-0.0), first + r, at_leaf);
      });
    } else {
      tile.write(to, pitches.out, [&](int at, int r) {
        F x[T::kInputs];
        tile.elements(at, x);
        return Op::map(x, F(1), F(-0.0), first + r, at_leaf);
      });
    }
  }
}

// kRun: threads have columns by themselves (own_columns.cuh).
template <class Op, class E, int kBytes = 0, int kRun = 0, int kDepth = 0>
__global__ void TR_BLOCKS_BOUND(kRun ? rowwise_columns::own_threads(kBytes, kDepth) : rowwise_columns::kThreads,
                                kRun ? rowwise_columns::own_blocks(Op::kInputs, kBytes, kDepth) : 3)
    rowwise_columns_kernel(TR_GRID_CONSTANT RowwiseKernelCall call, TR_GRID_CONSTANT RowwiseColumnsShape shape,
                           TR_GRID_CONSTANT ColumnPitches pitches, ColumnPart part, typename Op::State* states,
                           const typename Op::State* totals) {
  if constexpr (kRun > 0) own_columns<Op, E, kBytes, kRun, kDepth>(call, shape, pitches);
  else shared_columns<Op, E>(call, shape, pitches, part, states, totals);
}

}  // namespace torchreduce::gpu
