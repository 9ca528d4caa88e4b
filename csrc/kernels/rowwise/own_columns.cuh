// Columns that threads have by themselves: neighbours of a row as a piece of 16, 4 or 2 bytes, at a run of residues.
//
// Serves: ops that map by one sum, columns of one leaf, pieces that are aligned (columns.h). A thread loads all that it
// has at once, to registers or to places of its own in shared memory (held_inputs), so that no one waits for what
// others load. Threads with the runs of a column's residues meet for what they have of it; of up to kRun residues there
// is one, and no barrier. Shared memory, dynamic: the places; what the threads have of the columns, and what eight of
// them have together, by turns.
#pragma once
#include "column_granule.cuh"
#include "columns.h"

namespace torchreduce::gpu {

struct ColumnPitches { int64_t in[2], out; };  // elements from a position to the next

template <class Op, class E, int kBytes, int kRun, int kDepth> struct OwnColumns {
  using F = float;
  using Piece = Packed<std::conditional_t<kBytes == 2, uint16_t, uint32_t>, kBytes == 2 ? 1 : kBytes / 4>;
  static constexpr int kSize = int(sizeof(E)), kPer = kBytes / kSize, kInputs = Op::kInputs;
  static constexpr int kHeld = rowwise_columns::held_inputs(kInputs, kBytes, kDepth), kCopied = kInputs - kHeld;
  // What is not there is skipped instead of being taken for absent, where no load has to wait for that.
  static constexpr bool kSkips = kCopied == 0;
  struct alignas(kPer * 4 < 16 ? kPer * 4 : 16) Values { F item[kPer]; };

  const RowwiseKernelCall& call;
  const RowwiseColumnsShape& shape;
  const int across, a, group, residue;  // pieces of a row of the tile; the thread's piece, group and first residue
  const bool there;
  const RowwiseStart start;
  char* const own;       // the thread's places
  Values* const values;  // [group][piece]
  Piece held[kHeld > 0 ? kHeld : 1][kRun * kDepth];

  __device__ OwnColumns(const RowwiseKernelCall& call, const RowwiseColumnsShape& shape, char* dynamic)
      : call(call),
        shape(shape),
        across(shape.columns / kPer),
        a(int(threadIdx.x) % across),
        group(int(threadIdx.x) / across),
        residue(group * kRun),
        there(column() < call.rows),
        start(call.start(there ? column() : 0)),
        own(dynamic + threadIdx.x * kBytes),
        values(reinterpret_cast<Values*>(dynamic + shape.places * int(blockDim.x) * kBytes)) {}
  __device__ int64_t column() const { return int64_t(blockIdx.x) * shape.columns + a * kPer; }

  __device__ bool has(int r, int d) const { return there && residue + r + d * kResidues < int(call.length); }
  __device__ char* place(int k, int slot) const {
    return own + (slot * kCopied + k - kHeld) * int(blockDim.x) * kBytes;
  }
  __device__ static Piece absent(int k) {
    E x[kPer];
#pragma unroll
    for (int j = 0; j < kPer; ++j) x[j] = round_to<E>(Op::fill(k));
    return bit_cast_words<Piece>(x);
  }

  // ---- loads ----------------------------------------------------------------------------------------------------------

  // Copies first: the registers that have their places are free again then.
  __device__ __forceinline__ void load(const ColumnPitches& pitches) {
#pragma unroll
    for (int k = kInputs - 1; k >= 0; --k) {
      const int pitch = int(pitches.in[k]) * kSize;
      const char* const first =
          static_cast<const char*>(call.in[k]) + multiply_add(residue, pitch, start.in[k] * kSize);
#pragma unroll
      for (int r = 0; r < kRun; ++r)
#pragma unroll
        for (int d = 0; d < kDepth; ++d) {
          const auto* const from = reinterpret_cast<const Piece*>(first + int64_t(r + d * kResidues) * pitch);
          const int slot = d * kRun + r;
          if (k < kHeld) {
            Piece p = absent(k);
            if (has(r, d)) p = load_wide(from);
            held[k < kHeld ? k : 0][slot] = p;
          } else if constexpr (kCopied > 0) {
            if (has(r, d)) copy_async<kBytes>(place(k, slot), from);
          }
        }
    }
    if constexpr (kCopied > 0) {
      end_copies();
      if constexpr (kHeld > 0) __syncthreads();  // beyond which no compiler puts a load off
      wait_copies<0>();
    }
  }
  // The inputs of the thread's columns at its residue number r, element d.
  __device__ __forceinline__ void elements(int r, int d, F (&x)[kPer][kInputs]) const {
#pragma unroll
    for (int k = 0; k < kInputs; ++k) {
      Piece p = absent(k);
      if (k < kHeld) p = held[k < kHeld ? k : 0][d * kRun + r];
      else if (has(r, d)) p = load_wide(reinterpret_cast<const Piece*>(place(k, d * kRun + r)));
      E e[kPer];
      if constexpr (kBytes == 16) elements_of<E>(p, e);
      else memcpy(e, &p, sizeof e);
#pragma unroll
      for (int j = 0; j < kPer; ++j) x[j][k] = convert<F>(e[j]);
    }
  }

  // ---- sums -----------------------------------------------------------------------------------------------------------

  // The tree over residues kFirst to kFirst + kCount - 1 of the thread; step(j, sum, x) adds what column j has.
  template <int kFirst, int kCount, class Step> __device__ __forceinline__ void sum(F (&v)[kPer], Step step) const {
    if constexpr (kCount > 1) {
      F right[kPer];
      sum<kFirst, kCount / 2>(v, step);
      sum<kFirst + kCount / 2, kCount / 2>(right, step);
#pragma unroll
      for (int j = 0; j < kPer; ++j) v[j] = v[j] + right[j];
    } else {
#pragma unroll
      for (int j = 0; j < kPer; ++j) v[j] = F(-0.0);
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        if (kSkips && !has(kFirst, d)) continue;
        F x[kPer][kInputs];
        elements(kFirst, d, x);
#pragma unroll
        for (int j = 0; j < kPer; ++j) step(j, &v[j], x[j]);
      }
    }
  }
  // The contiguous tree over `count` neighbouring groups, at most kMost, from `from` on.
  template <int kMost, class Combine>
  __device__ __forceinline__ void join(const Values* from, int count, F (&v)[kPer], Combine combine) const {
    if constexpr (kMost > 1) {
      join<kMost / 2>(from, count, v, combine);
      if (count > kMost / 2) {
        F right[kPer];
        join<kMost / 2>(from + kMost / 2 * across, count - kMost / 2, right, combine);
#pragma unroll
        for (int j = 0; j < kPer; ++j) v[j] = combine(v[j], right[j]);
      }
    } else {
      const Values own_values = *from;
#pragma unroll
      for (int j = 0; j < kPer; ++j) v[j] = own_values.item[j];
    }
  }
  // What all groups have of the thread's columns.
  template <class Combine> __device__ __forceinline__ void meet(F (&v)[kPer], Combine combine) const {
    constexpr int kMost = rowwise_columns::kMeeting;
    if (shape.groups == 1) return;
    const auto leave = [&](Values* to) {
      Values left;
#pragma unroll
      for (int j = 0; j < kPer; ++j) left.item[j] = v[j];
      *to = left;
    };
    Values *from = values, *to = values + shape.groups * across;
    leave(from + threadIdx.x);
    __syncthreads();
    int count = shape.groups;
#pragma unroll 1
    while (count > kMost) {
      if (group * kMost < count) {
        join<kMost>(from + group * kMost * across + a, count - group * kMost, v, combine);
        leave(to + threadIdx.x);
      }
      __syncthreads();
      Values* const other = from;
      from = to;
      to = other;
      count = (count + kMost - 1) / kMost;
    }
    join<kMost>(from + a, count, v, combine);
  }

  // ---- results --------------------------------------------------------------------------------------------------------

  // Stores result(j, x) for each column j of the thread.
  template <class Result> __device__ __forceinline__ void store(const ColumnPitches& pitches, Result result) const {
    const int pitch = int(pitches.out) * kSize;
    char* const first = static_cast<char*>(call.out) + multiply_add(residue, pitch, start.out * kSize);
#pragma unroll
    for (int r = 0; r < kRun; ++r)
#pragma unroll
      for (int d = 0; d < kDepth; ++d)
        if (has(r, d)) {
          F x[kPer][kInputs], y[kPer];
          elements(r, d, x);
#pragma unroll
          for (int j = 0; j < kPer; ++j) y[j] = result(j, x[j]);
          Piece p;
          if constexpr (kBytes == 16) {
            p = rounded_granule<E, false>(y);
          } else {
            E e[kPer];
#pragma unroll
            for (int j = 0; j < kPer; ++j) e[j] = round_to<E>(y[j]);
            p = bit_cast_words<Piece>(e);
          }
          store_granule(reinterpret_cast<Piece*>(first + int64_t(r + d * kResidues) * pitch), p);
        }
  }
};

template <class Op, class E, int kBytes, int kRun, int kDepth>
__device__ __forceinline__ void own_columns(const RowwiseKernelCall& call, const RowwiseColumnsShape& shape,
                                            const ColumnPitches& pitches) {
  using F = float;
  using C = OwnColumns<Op, E, kBytes, kRun, kDepth>;
  static_assert(Op::kFills && Op::kSums == 1 && Op::kFirst != First::Sum && !Op::kScales, "one sum");
  TR_DYNAMIC_SHARED(dynamic, 16);
  const typename Op::Given given{};
  const int count = int(call.length);
  C c(call, shape, dynamic);
  c.load(pitches);

  F most[C::kPer];
#pragma unroll
  for (int j = 0; j < C::kPer; ++j) most[j] = first_absent<Op::kFirst, F>();
  if constexpr (Op::kFirst == First::Greatest) {
#pragma unroll
    for (int r = 0; r < kRun; ++r)
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        if (C::kSkips && !c.has(r, d)) continue;
        F x[C::kPer][C::kInputs];
        c.elements(r, d, x);
#pragma unroll
        for (int j = 0; j < C::kPer; ++j) most[j] = greatest(most[j], x[j][0]);
      }
    c.meet(most, [](F a, F b) { return greatest(a, b); });
    if (shape.groups > 1) __syncthreads();  // before others' values make place
  }
  typename Op::Seen seen[C::kPer];
#pragma unroll
  for (int j = 0; j < C::kPer; ++j) seen[j] = Op::seen(most[j], count, given);
  F sum[C::kPer];
  c.template sum<0, kRun>(sum, [&](int j, F* s, const F(&x)[C::kInputs]) { Op::step(s, x, F(1), seen[j], given); });
  c.meet(sum, [](F a, F b) { return a + b; });

  using At = std::decay_t<decltype(Op::at(std::declval<typename Op::Row>(), std::declval<typename Op::State>()))>;
  At at[C::kPer];
#pragma unroll
  for (int j = 0; j < C::kPer; ++j) {
    const auto state = Op::state(most[j], &sum[j], count);
    at[j] = Op::at(Op::row(state, call.length, given, call.options, [](int64_t) { return F(0); }), state);
  }
  c.store(pitches, [&](int j, const F(&x)[C::kInputs]) {
    if constexpr (Op::kTerm) return Op::map(Op::term(x[0], seen[j]), F(1), F(-0.0), 0, at[j]);
    else return Op::map(x, F(1), F(-0.0), 0, at[j]);
  });
}

}  // namespace torchreduce::gpu
