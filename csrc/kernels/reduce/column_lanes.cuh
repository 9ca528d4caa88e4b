// What lanes across columns share: a granule of neighbouring columns a lane, moved where rows start anywhere, and the
// state of a lane's columns while it goes down the rows.
#pragma once
#include "column_call.h"
#include "kernels/common/collective.cuh"

namespace torchreduce::gpu {

constexpr int kInFlight = 8;  // granules that a lane loads before it looks at one

// Neighbouring columns of a lane as they lie in memory.
template <class E> struct ColumnGranule {
  static constexpr int kColumns = granule_columns(sizeof(E)), kBytes = kColumns * int(sizeof(E)), kWords = kBytes / 4;
  uint32_t w[kWords];

  // Of one element, repeated.
  __device__ static ColumnGranule of(E x) {
    E all[kColumns];
#pragma unroll
    for (int e = 0; e < kColumns; ++e) all[e] = x;
    ColumnGranule g;
    memcpy(g.w, all, sizeof g.w);
    return g;
  }
  // Whether all of the granule at `p` lies within the tensor.
  __device__ static __forceinline__ bool inside(const ColumnCall& q, const char* p) {
    const char* const first = static_cast<const char*>(q.in);
    return uint64_t(p - first) + kBytes <= uint64_t(static_cast<const char*>(q.end) - first);
  }
  // The granule at `p`, aligned, all of which is inside.
  template <Stay kStay = Stay::Short> __device__ __forceinline__ void load(const char* p) {
    const auto x = load_item<kStay>(reinterpret_cast<const Packed<uint32_t, kWords>*>(global(p)));
    memcpy(w, &x, sizeof w);
  }
  // By all lanes of a warp: column e of lane l becomes the one `s` columns on, which the next lane may have.
  __device__ __forceinline__ void shift(int s) {
    const int next = (lane_id() + 1) % kLanes, bytes = s * int(sizeof(E));
#pragma unroll
    for (int bit = 1; bit < kWords; bit *= 2)
      if (bytes / 4 & bit) {
        uint32_t low[kWords];
#pragma unroll
        for (int i = 0; i < bit; ++i) low[i] = shuffle_word(w[i], next);
#pragma unroll
        for (int i = 0; i < kWords; ++i) w[i] = i + bit < kWords ? w[i + bit] : low[i + bit - kWords];
      }
    if constexpr (sizeof(E) < 4)
      if (bytes % 4) {
        const uint32_t low = shuffle_word(w[0], next);
#pragma unroll
        for (int i = 0; i < kWords; ++i) w[i] = funnel_right(w[i], i + 1 < kWords ? w[i + 1] : low, bytes % 4 * 8);
      }
  }
};

// What of the granule at `p` lies within the tensor, and else what `none` has: at either end of the tensor alone.
template <class E> __device__ TR_RARELY_CALLED ColumnGranule<E> load_part(const void* first, const void* end,
                                                                          const char* p, ColumnGranule<E> none) {
  E all[ColumnGranule<E>::kColumns];
  memcpy(all, none.w, sizeof none.w);
#pragma unroll
  for (int e = 0; e < ColumnGranule<E>::kColumns; ++e) {
    const char* const x = p + e * int(sizeof(E));
    if (x >= first && x < end) all[e] = *global(reinterpret_cast<const E*>(x));
  }
  memcpy(none.w, all, sizeof none.w);
  return none;
}

// Loads x[j] from at(j) where there(j); else it becomes `none`.
template <Stay kStay = Stay::Short, class E, int N, class There, class At>
__device__ __forceinline__ void load_granules(const ColumnCall& q, const ColumnGranule<E>& none, There there, At at,
                                              ColumnGranule<E> (&x)[N]) {
  bool inside = true;
  if (q.ragged) {
#pragma unroll
    for (int j = 0; j < N; ++j) inside &= !there(j) || ColumnGranule<E>::inside(q, at(j));
  }
  if (inside) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      x[j] = none;
      if (there(j)) x[j].template load<kStay>(at(j));
    }
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      x[j] = none;
      if (there(j)) x[j] = load_part<E>(q.in, q.end, at(j), none);
    }
  }
}

// By all lanes of a warp: accumulator e of lane l becomes the one `s` columns on.
template <class A, int V> __device__ __forceinline__ void shift_columns(A (&v)[V], int s) {
  const int next = (lane_id() + 1) % kLanes;
#pragma unroll
  for (int bit = 1; bit < V; bit *= 2)
    if (s & bit) {
      A low[V];
#pragma unroll
      for (int i = 0; i < bit; ++i) low[i] = shuffle(v[i], next);
#pragma unroll
      for (int i = 0; i < V; ++i) v[i] = i + bit < V ? v[i + bit] : low[i + bit - V];
    }
}

template <class A, int V, class Combine>
__device__ __forceinline__ void combine_all(A (&left)[V], const A (&right)[V], Combine combine) {
#pragma unroll
  for (int e = 0; e < V; ++e) left[e] = combine(left[e], right[e]);
}

// Values pushed from the left, one subtree of equal size at a time, at most 32: the pairwise tree over them. A binary
// counter, of which a lane holds the lowest level; the others lie in the warp's shared memory, kDeepLevels * V values a
// lane. Ops that know no order hold one value.
template <class Op, int V, bool kAnyOrder> struct ColumnTree {
  using A = typename Op::Near;
  static constexpr int kPer = 16 / int(sizeof(A));
  using Piece = Packed<A, kPer>;
  A ones[V];
  int count = 0;
  Piece* deep;

  __device__ explicit ColumnTree(void* shared) : deep(static_cast<Piece*>(shared) + lane_id()) {}
  __device__ void join_deep(const Op& op, int level, A (&v)[V]) const {
#pragma unroll
    for (int e = 0; e < V; e += kPer) {
      const Piece left = deep[(level * V + e) / kPer * kLanes];
#pragma unroll
      for (int i = 0; i < kPer; ++i) v[e + i] = op.combine(left.item[i], v[e + i]);
    }
  }
  // A subtree of 2^level pushes.
  __device__ void push(const Op& op, A (&v)[V], int level) {
    const int c = count;
    count += 1 << level;
    if (level == 0) {
      if (!(c & 1)) {
#pragma unroll
        for (int e = 0; e < V; ++e) ones[e] = v[e];
        return;
      }
      combine_left(op, v);
    }
    level = level > 1 ? level - 1 : 0;
    for (; c >> (level + 1) & 1; ++level) join_deep(op, level, v);
#pragma unroll
    for (int e = 0; e < V; e += kPer) {
      Piece p;
#pragma unroll
      for (int i = 0; i < kPer; ++i) p.item[i] = v[e + i];
      deep[(level * V + e) / kPer * kLanes] = p;
    }
  }
  __device__ void total(const Op& op, A (&v)[V]) const {
#pragma unroll
    for (int e = 0; e < V; ++e) v[e] = Op::absent();  // the identity
    if (count & 1) combine_left(op, v);
    for (int level = 0; level < kDeepLevels; ++level)
      if (count >> (level + 1) & 1) join_deep(op, level, v);
  }

 private:
  __device__ void combine_left(const Op& op, A (&v)[V]) const {
#pragma unroll
    for (int e = 0; e < V; ++e) v[e] = op.combine(ones[e], v[e]);
  }
};
template <class Op, int V> struct ColumnTree<Op, V, true> {
  using A = typename Op::Near;
  A all[V];
  __device__ explicit ColumnTree(void*) {
#pragma unroll
    for (int e = 0; e < V; ++e) all[e] = Op::near_absent();
  }
  __device__ void push(const Op& op, A (&v)[V], int) {
    combine_all(all, v, [&](const A& l, const A& r) { return op.combine(l, r); });
  }
  __device__ void total(const Op&, A (&v)[V]) const {
#pragma unroll
    for (int e = 0; e < V; ++e) v[e] = all[e];
  }
};

// Division by one number of others: the product of both is less than 2^32.
struct FastDivide {
  uint32_t by, factor;
  __device__ explicit FastDivide(int by) : by(uint32_t(by)), factor(by > 1 ? 0xffffffffu / uint32_t(by) + 1 : 0) {}
  __device__ int quotient(int i) const { return by == 1 ? i : int(uint64_t(uint32_t(i)) * factor >> 32); }
};

// Where slice `o` starts.
__device__ __forceinline__ RowStart slice_start(const ColumnCall& q, int64_t o) {
  RowStart start{0, 0};
#pragma unroll
  for (int d = kOuterDims - 1; d >= 0; --d) {
    if (d >= q.outer_dims) continue;
    const int64_t next = d > 0 ? o / q.outer_size[d] : 0, i = o - next * q.outer_size[d];
    start.in += i * q.outer_in[d];
    start.out += i * q.outer_out[d];
    o = next;
  }
  return start;
}

// Rounds and writes a result at offset `to`; from(): the offset of the element at an index.
template <class Op, class From>
__device__ __forceinline__ void finish_result(const Op& op, const ColumnCall& q, int64_t to,
                                              const typename Op::Acc& acc, From from) {
  using E = typename Op::Element;
  if constexpr (Op::kIndexed) {
    E found{};
    if (q.out.values) found = op.found(acc, [&] { return global(static_cast<const E*>(q.in))[from()]; });
    op.finish(acc, q.out, to, found);
  } else if constexpr (is_float_type<E>) {
    if (q.same_type) op.finish(acc, Output{q.out.values, nullptr, DtypeOf<E>::value}, to);
    else op.finish(acc, q.out, to);
  } else {
    op.finish(acc, q.out, to);
  }
}
// The same of column c of a slice.
template <class Op> __device__ __forceinline__ void finish_column(const Op& op, const ColumnCall& q,
                                                                  const RowStart& slice, int64_t c,
                                                                  const typename Op::Acc& acc) {
  finish_result(op, q, slice.out + result_offset(q, c), acc, [&] {
    if constexpr (Op::kIndexed) return slice.in + row_offset(q, acc.index) + c;
    else return int64_t(0);
  });
}

// The same of a tile's columns by a warp, V for each lane, where the results are neighbours of the input's type,
// `count` from `to` on. They are stored 16 bytes at a time; `stage`: 32 V words of the warp's shared memory.
template <class Op, class E, int V>
__device__ __forceinline__ void finish_run(const Op& op, const ColumnCall& q, int64_t to, int count,
                                           const typename Op::Near (&v)[V], void* stage) {
  if constexpr (!Op::kIndexed && is_float_type<E>) {
    using Piece = Packed<uint32_t, ColumnGranule<E>::kWords>;
    constexpr int kBytes = int(sizeof(Piece)), kPer = kBytes / int(sizeof(E));
    E* const out = global(static_cast<E*>(q.out.values)) + to;
    const int lane = lane_id(), before = int(uintptr_t(out) & (kBytes - 1)) / int(sizeof(E));
    alignas(16) E t[V];
    const Output local{t, nullptr, DtypeOf<E>::value};
#pragma unroll
    for (int e = 0; e < V; ++e) op.finish(Op::far(v[e], 0), local, e);
    Piece piece;
    if (before == 0) {
      if ((lane + 1) * V <= count) {
        memcpy(&piece, t, sizeof piece);
        store_granule(reinterpret_cast<Piece*>(out + lane * V), piece);
      } else {
#pragma unroll
        for (int e = 0; e < V; ++e)
          if (lane * V + e < count) out[lane * V + e] = t[e];
      }
      return;
    }
    E* const staged = static_cast<E*>(stage);  // as they lie in granules of the output
    warp_barrier();
#pragma unroll
    for (int e = 0; e < V; ++e) staged[before + lane * V + e] = t[e];
    warp_barrier();
    const int end = before + count;
    for (int first = lane * kPer; first < end; first += kLanes * kPer) {
      E* const there = out - before + first;
      if (first >= before && first + kPer <= end) {
        store_granule(reinterpret_cast<Piece*>(there), *reinterpret_cast<const Piece*>(staged + first));
      } else {
#pragma unroll
        for (int e = 0; e < kPer; ++e)
          if (first + e >= before && first + e < end) there[e] = staged[first + e];
      }
    }
  }
}

// The tree over `rows` rows of `columns` values, get(row, column), by a block; rows of `a`, and then `b` and `a` in
// turns, take what is left. Returns the row that is left at last, one value a column. By trees of 8, the first ones of
// kFirst.
template <class Op, int kFirst = 8, class A, class Get>
__device__ A* fold_rows(int rows, int columns, A* a, A* b, A absent, Get get) {
  const FastDivide by_columns(columns);
  auto level = [&](auto width, A* to, auto from) {
    constexpr int W = decltype(width)::value;
    const int out_rows = (rows + W - 1) / W, total = out_rows * columns;
    for (int i = int(threadIdx.x); i < total; i += kThreads) {
      const int t = by_columns.quotient(i), c = i - t * columns, r = t * W;
      A v[W];
#pragma unroll
      for (int k = 0; k < W; ++k) v[k] = r + k < rows ? from(r + k, c) : absent;
#pragma unroll
      for (int d = 1; d < W; d *= 2)
#pragma unroll
        for (int k = 0; k < W; k += 2 * d) v[k] = Op::combine(v[k], v[k + d]);
      to[i] = v[0];
    }
    __syncthreads();
    rows = out_rows;
  };
  if (rows <= 2) level(std::integral_constant<int, 2>(), a, get);
  else if (rows <= 4) level(std::integral_constant<int, 4>(), a, get);
  else if (kFirst == 8 || rows <= 8) level(std::integral_constant<int, 8>(), a, get);
  else level(std::integral_constant<int, kFirst>(), a, get);
  while (rows > 1) {
    const A* from = a;
    level(std::integral_constant<int, 8>(), b, [=](int r, int c) { return from[r * columns + c]; });
    A* const t = a;
    a = b;
    b = t;
  }
  return a;
}

}  // namespace torchreduce::gpu
