// Columns that are looked at twice: rows that lie side by side, in shared memory between the looks.
//
// Serves: float32 and 16-bit floats, columns of neighbours that start anywhere (columns.h).
// A block copies a tile to shared memory: a leaf of some neighbouring columns. A thread has a column, in a group of
// threads with a run of residues, which it sums by chunks of neighbours. Columns of several leaves meet over a cluster,
// a block a leaf, or in device memory between two launches that read them twice.
// Shared memory, dynamic: the tile of each input; sums of the groups; states of the columns' leaves.
#pragma once
#include "columns.h"
#include "states.cuh"

namespace torchreduce::gpu {

enum class ColumnPart : int8_t { Whole, States, Output };

struct ColumnPitches { int64_t in[2], out; };  // elements from a position to the next

// Copies `rows` positions of a tile's columns to shared memory, kBytes at once; done after wait_copies and a barrier.
template <class E, int kBytes>
__device__ __forceinline__ void copy_tile(const FusedRowsCall& call, const FusedColumnsShape& shape, int input,
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

template <class Op, class E>
__global__ void TR_BLOCKS_BOUND(fused_columns::kThreads, 3)
    fused_columns_kernel(TR_GRID_CONSTANT FusedRowsCall call, TR_GRID_CONSTANT FusedColumnsShape shape,
                         TR_GRID_CONSTANT ColumnPitches pitches, ColumnPart part, typename Op::State* states,
                         const typename Op::State* totals) {
  using F = float;
  using State = typename Op::State;
  using namespace fused_columns;
  constexpr int kInputs = Op::kInputs, kSums = Op::kSums, kScratch = kSums > 0 ? kSums : 1;
  constexpr bool kKeeps = Op::kTerm && sizeof(E) == 4;  // terms take the elements' places
  TR_DYNAMIC_SHARED(dynamic, 16);
  const int64_t number = blockIdx.x / shape.leaves;
  const int leaf = int(blockIdx.x - number * shape.leaves);
  const int64_t first = int64_t(leaf) * kLeaf, first_column = number * shape.columns;
  const int count = int(call.length - first < kLeaf ? call.length - first : kLeaf);
  const int most = int(call.length < kLeaf ? call.length : kLeaf);
  E* const tile = reinterpret_cast<E*>(dynamic);
  const int tile_size = most * shape.pitch;
  F* const sums_of = reinterpret_cast<F*>(dynamic + (tile_size * kInputs * int(sizeof(E)) + 15) / 16 * 16);
  struct alignas(8) Slot { State state; };
  [[maybe_unused]] Slot* const slots = reinterpret_cast<Slot*>(sums_of + kScratch * int(blockDim.x));

#ifdef TR_CLUSTERS
  __shared__ Barrier arrived;
  if (shape.cluster > 1) {
    if (threadIdx.x == 0) {
      barrier_init(&arrived, 1);
      barriers_made();
      barrier_expect(&arrived, uint32_t(shape.cluster * shape.columns * int(sizeof(Slot))));
    }
    cluster_arrive();
  }
#endif
#pragma unroll
  for (int k = 0; k < kInputs; ++k) {
    const int64_t offset = first * pitches.in[k];
    if (shape.bytes == 16)
      copy_tile<E, 16>(call, shape, k, first_column, offset, pitches.in[k], count, tile + k * tile_size);
    else if (shape.bytes == 4)
      copy_tile<E, 4>(call, shape, k, first_column, offset, pitches.in[k], count, tile + k * tile_size);
    else if constexpr (sizeof(E) == 2)
      copy_tile<E, 2>(call, shape, k, first_column, offset, pitches.in[k], count, tile + k * tile_size);
  }
  end_copies();

  const int groups = int(blockDim.x) / shape.columns, c = int(threadIdx.x) % shape.columns;
  const int group = int(threadIdx.x) / shape.columns;
  const bool there = first_column + c < call.rows;
  const int64_t column = there ? first_column + c : call.rows - 1;
  const FusedStart start = call.start(column);
  const auto given = Op::given(call.options, call.memory, start.value);
  const bool skips = Op::skips(given);
  E* const own = tile + c;
  const int mine = there ? count : 0;  // positions of the thread's column
  // Input k at a place of the column: `at` counts elements of the tile, `pitch` from a position to the next.
  const int pitch = shape.pitch;
  const auto element = [&](int k, int at) { return convert<F>(own[k * tile_size + at]); };
  wait_copies<0>();
  __syncthreads();

  // What the groups have of a column, by the contiguous tree.
  const auto meet = [&](F value, F* scratch, auto combine) {
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
  };
  // kCount canonical sums; step(sums, at) adds what lies there.
  [[maybe_unused]] const auto sum = [&](auto& total, auto step) {
    constexpr int kCount = int(sizeof(total) / sizeof(F));
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
      int at = r * pitch;
#pragma unroll 1
      for (int i = r; i < mine; i += kResidues, at += kResidues * pitch) {
        const auto one = [&](int j) {
          F sums[kCount];
#pragma unroll
          for (int s = 0; s < kCount; ++s) sums[s] = acc[s][j];
          step(sums, at + j * pitch);
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
  };

  State state = Op::none();
  State total = state;
  if constexpr (kSums > 0) {
    if (part != ColumnPart::Output) {
      F found = first_absent<Op::kFirst, F>();
      if constexpr (Op::kFirst == First::Greatest) {
        const int end = mine * pitch;
#pragma unroll 8
        for (int at = group * pitch; at < end; at += groups * pitch) found = greatest(found, element(0, at));
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
#pragma unroll
        for (int k = 0; k < kInputs; ++k) x[k] = element(k, at);
        if constexpr (kKeeps) {
          const F term = Op::term(x[0], seen);
          s[0] = s[0] + term;
          own[at] = term;
        } else {
          Op::step(s, x, F(1), seen, given);
        }
      });
      if (!skips) state = Op::state(found, sums, count);
      total = state;
#ifdef TR_CLUSTERS
      if (shape.cluster > 1) {
        cluster_wait();
        for (int rank = group; rank < shape.cluster; rank += groups)
          put(slots + leaf * shape.columns + c, &arrived, Slot{state}, rank);
        barrier_wait(&arrived, 0);
        __syncthreads();
#pragma unroll 1
        for (int d = 1; d < shape.leaves; d *= 2) {
          for (int i = group * 2 * d; i + d < shape.leaves; i += groups * 2 * d) {
            Slot* const to = slots + i * shape.columns + c;
            to->state = Op::merge(State(to->state), State(to[d * shape.columns].state));
          }
          __syncthreads();
        }
        total = slots[c].state;
      }
#endif
    }
    if (part == ColumnPart::States) {
      if (group == 0 && there) states[column * shape.leaves + leaf] = state;
      return;
    }
    if (part == ColumnPart::Output) {
      state = states[column * shape.leaves + leaf];
      total = totals[column];
    }
  }
  if (!there || (!Op::kMaps && (leaf > 0 || group > 0))) return;
  const auto values = Op::row(total, call.length, given, call.options, [&](int64_t i) {
    return convert<F>(static_cast<const E*>(call.in[0])[start.in[0] + i * pitches.in[0]]);
  });
  if (leaf == 0 && group == 0) Op::write(values, call.memory, start.value);
  if constexpr (Op::kMaps) {
    const auto& at_leaf = Op::at(values, state);
    E* const to = static_cast<E*>(call.out) + start.out + first * pitches.out;
    const auto results = [&](auto result) {
      E* p = to + group * pitches.out;
      int at = group * pitch;
#pragma unroll 4
      for (int r = group; r < count; r += groups, at += groups * pitch, p += groups * pitches.out)
        *p = round_to<E>(result(at, r));
    };
    if constexpr (Op::kTerm) {
      const auto seen = Op::seen(state.l, count, given);
      const bool kept = kKeeps && part != ColumnPart::Output;
      results([&](int at, int r) {
        const F x = element(0, at);
        return Op::map(kept ? x : Op::term(x, seen), F(1), F(-0.0), first + r, at_leaf);
      });
    } else {
      results([&](int at, int r) {
        F x[kInputs];
#pragma unroll
        for (int k = 0; k < kInputs; ++k) x[k] = element(k, at);
        return Op::map(x, F(1), F(-0.0), first + r, at_leaf);
      });
    }
  }
}

}  // namespace torchreduce::gpu
