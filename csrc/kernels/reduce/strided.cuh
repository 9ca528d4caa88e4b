// Reductions of rows of any strides, with lanes along a row: the reduced dims hold the smallest stride, or there is one
// long row, and no faster kernel serves it. Elements are loaded one by one; or, where they lie in runs of neighbours,
// by granules: at once where runs are whole ones, else by way of shared memory, of which each warp has a part of its
// own.
#pragma once
#include "column_lanes.cuh"
#include "granule.cuh"
#include "outer.h"
#include "strided.h"

namespace torchreduce::gpu {

constexpr int kRunLevels = 7;  // of a run of 64 leaves: log2(64) + 1

static __device__ TR_RARELY_CALLED int64_t far_offset(const Layout& layout, int64_t position) {
  return position_offset(layout, position);
}

// The offset of a position from a row's start, going `step` positions at a time, of a leaf at most. Of the last dim and
// the one before it it counts how far their ends are, in 32 bits: what is further than kFar is not reached.
class PositionWalk {
 public:
  __device__ __forceinline__ PositionWalk(const Layout& layout, int64_t position, int step) : layout_(layout) {
    const int last = layout.kept + layout.reduced - 1;
    const int64_t stride = layout.reduced > 0 ? layout.in[last] : 0;
    inner_ = outer_ = inner_left_ = outer_left_ = int(kFar);
    ahead_ = 0;
    rest_ = step;
    delta_ = step * stride;
    carry_ = 0;
    offset_ = position * stride;
    if (layout.reduced < 2 || layout.length == 0) return;  // there is nowhere to go
    const int64_t inner = layout.size[last], outer_stride = layout.in[last - 1];
    inner_ = near(inner);
    ahead_ = step / inner_;
    rest_ = step - ahead_ * inner_;
    delta_ = ahead_ * outer_stride + rest_ * stride;
    carry_ = outer_stride - inner * stride;
    const int64_t row = quotient(position, inner), i = position - row * inner;
    inner_left_ = near(inner - i);
    offset_ = row * outer_stride + i * stride;
    if (layout.reduced == 2) return;
    const int64_t outer = layout.size[last - 1];
    outer_ = near(outer);
    outer_left_ = near(outer - row % outer);
    offset_ = far_offset(layout, position);
  }
  __device__ __forceinline__ int64_t offset() const { return offset_; }
  // A step on, to `position`.
  __device__ __forceinline__ void next(int64_t position) {
    inner_left_ -= rest_;
    outer_left_ -= ahead_;
    offset_ += delta_;
    if (inner_left_ <= 0) {
      inner_left_ += inner_;
      outer_left_ -= 1;
      offset_ += carry_;
    }
    if (outer_left_ <= 0) {  // of three dims or more
      while (outer_left_ <= 0) outer_left_ += outer_;
      offset_ = far_offset(layout_, position);
    }
  }

 private:
  static constexpr int64_t kFar = int64_t(1) << 30;
  __device__ static int near(int64_t size) { return int(size < kFar ? size : kFar); }
  const Layout& layout_;
  int64_t offset_, delta_, carry_;
  int inner_, outer_, ahead_, rest_;
  int inner_left_, outer_left_;  // positions to the end of the last dim, and of the dim before it
};

// A row of at most 8 * width elements, 8 consecutive ones a lane: the pairwise tree is all there is.
template <class Op, class Load>
__device__ __forceinline__ typename Op::Acc short_row(const Op& op, const ReduceCall& call, int64_t base, bool active,
                                                      int width) {
  using Acc = typename Op::Acc;
  const int64_t n = call.layout.length;
  const int first = (int(threadIdx.x) % width) * kPerLane, count = active ? int(n) - first : 0;
  int64_t at[kPerLane];
  PositionWalk walk(call.layout, first < n ? first : 0, 1);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i, walk.next(first + i)) at[i] = base + walk.offset();
  typename Load::Element x[kPerLane];
  gather<Load>(call.in, at, count, x);
  Acc acc[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) acc[i] = i < count ? op.load(x[i], first + i) : op.absent();
#pragma unroll
  for (int d = 1; d < kPerLane; d *= 2) {
#pragma unroll
    for (int i = 0; i < kPerLane; i += 2 * d) acc[i] = op.combine(acc[i], acc[i + d]);
  }
  return warp_tree(op, acc[0], width);
}

// One leaf of a row, by one warp. A lane holds the residues c * 32 + lane.
template <class Op, class Load>
__device__ __forceinline__ typename Op::Acc warp_leaf(const Op& op, const ReduceCall& call, int64_t base,
                                                      int64_t first) {
  using Acc = typename Op::Acc;
  constexpr int kAtOnce = kIsTyped<Load> ? kPerLane : kPerLane / 2;  // more would take too many registers
  const int64_t n = call.layout.length, end = n - first < kLeaf ? n : first + kLeaf;
  Acc acc[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) acc[i] = op.absent();
  PositionWalk walk(call.layout, first + lane_id() < end ? first + lane_id() : first, kLanes);
#pragma unroll 1
  for (int64_t k = first + lane_id(); k < end; k += kResidues) {
#pragma unroll
    for (int c = 0; c < kPerLane; c += kAtOnce) {
      const int64_t position = k + c * kLanes;
      int64_t at[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i, walk.next(position + i * kLanes)) at[i] = base + walk.offset();
      typename Load::Element x[kAtOnce];
      const int count = int(end - position + kLanes - 1) / kLanes;
      if (count >= kAtOnce) {
        gather<Load>(call.in, at, kAtOnce, x);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) acc[c + i] = step(op, acc[c + i], x[i], position + i * kLanes);
      } else {
        gather<Load>(call.in, at, count, x);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
          if (i < count) acc[c + i] = step(op, acc[c + i], x[i], position + i * kLanes);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) acc[i] = warp_tree(op, acc[i], kLanes);
#pragma unroll
  for (int d = 1; d < kPerLane; d *= 2) {
#pragma unroll
    for (int i = 0; i < kPerLane; i += 2 * d) acc[i] = op.combine(acc[i], acc[i + d]);
  }
  return acc[0];
}

// Whether there is a way for elements as they are, by granules.
template <class Load> constexpr bool kHasGranules = false;
template <class E> constexpr bool kHasGranules<TypedLoad<E>> = has_small_columns(DtypeOf<E>::value);

// One leaf of a row by granules: a lane has residues that are neighbours, 16 bytes of them, in kParts places, `residue`
// and up. load(part, residue, step, x) gets kAtOnce steps of a part, from `step` on; absent elements after the row's.
template <class Op, class E, int kAtOnce, class Load>
__device__ __forceinline__ typename Op::Acc warp_leaf_of_granules(const Op& op, int64_t first, Load load) {
  using Near = typename Op::Near;
  using G = ColumnGranule<E>;
  constexpr int V = G::kColumns, kParts = kResidues / (kLanes * V), kSteps = kLeaf / kResidues;
  Near v[kParts][V], part[kParts];
#pragma unroll
  for (int s = 0; s < kSteps; s += kAtOnce)
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      G x[kAtOnce];
      load(p, (p * kLanes + lane_id()) * V, s, x);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k)
        if (s + k == 0) op.template near_all<V>(x[k].w, 0, v[p]);
        else step_all<V>(op, x[k].w, s + k, v[p]);
    }
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
#pragma unroll
    for (int e = 0; e < V; ++e) v[p][e] = Op::place(v[p][e], (p * kLanes + lane_id()) * V + e, kResidues);
#pragma unroll
    for (int d = 1; d < V; d *= 2)
#pragma unroll
      for (int e = 0; e < V; e += 2 * d) v[p][e] = Op::combine(v[p][e], v[p][e + d]);
    part[p] = v[p][0];
    for (int d = 1; d < kLanes; d *= 2) part[p] = Op::combine(part[p], shuffle(part[p], lane_id() ^ d));
  }
#pragma unroll
  for (int d = 1; d < kParts; d *= 2)
#pragma unroll
    for (int p = 0; p < kParts; p += 2 * d) part[p] = Op::combine(part[p], part[p + d]);
  return Op::far(part[0], first);
}

// Of positions in runs of whole granules.
template <class Op, class E>
__device__ __forceinline__ typename Op::Acc warp_leaf_in_place(const Op& op, const ReduceCall& call, int64_t base,
                                                               int64_t first) {
  using G = ColumnGranule<E>;
  constexpr int kSteps = kLeaf / kResidues;
  const E* const from = global(static_cast<const E*>(call.in.data)) + base;
  const G none = G::of(op.absent_element());
  return warp_leaf_of_granules<Op, E, kSteps>(op, first, [&](int, int residue, int, G(&x)[kSteps]) {
    PositionWalk walk(call.layout, first + residue < call.layout.length ? first + residue : first, kResidues);
#pragma unroll
    for (int k = 0; k < kSteps; ++k, walk.next(first + residue + k * kResidues)) {
      x[k] = none;
      if (first + residue + k * kResidues < call.layout.length)
        x[k].load(reinterpret_cast<const char*>(from + walk.offset()));
    }
  });
}

// Positions in runs of neighbouring elements, which start anywhere (strided.h): a warp copies 4 KiB of them at a time
// to its shared memory, by whole granules. Runs lie shape.window elements apart there, which puts each as far from a
// granule as it is in memory, and no two in one; what follows a run is the beginning of the next one, once more.
template <class E> class StagedRuns {
 public:
  using G = ColumnGranule<E>;
  static constexpr int V = G::kColumns;
  __device__ StagedRuns(const ReduceCall& call, const StridedShape& shape, E* staged, int64_t base)
      : call_(call), shape_(shape), staged_(staged), base_(base) {}

  // `count` positions from `from` on, by all lanes of the warp.
  __device__ __forceinline__ void copy(int from, int count) {
    const int run = shape_.run, window = shape_.window, pitch = shape_.pitch;
    const E* const in = global(static_cast<const E*>(call_.in.data));
    const E* const stop = in + shape_.elements;
    const int skipped = shape_.by_run.quotient(from), phase = from - skipped * run;
    const E* const start = in + base_ + int64_t(skipped) * pitch;  // of the first run
    const int before = elements_before(start), last = phase + count - 1, runs = shape_.by_run.quotient(last);
    const int head = (before + phase) / V, tail = (before + last + runs * (window - run)) / V;
    first_ = before - head * V + phase;
    phase_ = phase;
    const bool whole = start - before >= in && start + int64_t(runs) * pitch + run + V <= stop;
    warp_barrier();  // what was copied before has been read
#pragma unroll 1
    for (int g = head + lane_id(); g <= tail; g += kLanes) {
      const int r = shape_.by_window.quotient(g * V + V - 1 - before), i = g * V - before - r * window;
      if (i >= run) continue;  // between two runs
      const E* const p = start + (int64_t(r) * pitch + i);
      E* const to = staged_ + (g - head) * V;
      if (whole || (p >= in && p + V <= stop)) copy_async<16>(to, p);
      else *reinterpret_cast<G*>(to) = load_part<E>(in, stop, reinterpret_cast<const char*>(p), G::of(E{}));
    }
    end_copies();
    wait_copies<0>();
    warp_barrier();
    for (int r = 1 + lane_id() / V; r <= runs; r += kLanes / V)
      if (const int e = lane_id() % V; e < V - 1) {
        E* const next = staged_ + (first_ - phase + r * window + e);
        *(next - (window - run)) = *next;
      }
    warp_barrier();
  }
  // Position number i of them, and those that follow it; after the last one anything.
  __device__ __forceinline__ G operator()(int i) const {
    const int at = first_ + i + shape_.by_run.quotient(phase_ + i) * (shape_.window - shape_.run);
    G g;
    if constexpr (sizeof(E) == 4) {
#pragma unroll
      for (int k = 0; k < 4; ++k) g.w[k] = reinterpret_cast<const uint32_t*>(staged_)[at + k];
    } else {
      const uint32_t* const from = reinterpret_cast<const uint32_t*>(staged_) + at / 2;
      uint32_t w[5];
#pragma unroll
      for (int k = 0; k < 5; ++k) w[k] = from[k];
#pragma unroll
      for (int k = 0; k < 4; ++k) g.w[k] = funnel_right(w[k], w[k + 1], at % 2 * 16);
    }
    return g;
  }

 private:
  const ReduceCall& call_;
  const StridedShape& shape_;
  E* const staged_;
  int64_t base_;
  int first_ = 0, phase_ = 0;  // of the first position that was copied: where it is in shared memory, and in its run
};
template <class Op, class E>
__device__ __forceinline__ typename Op::Acc warp_leaf_of_runs(const Op& op, const ReduceCall& call,
                                                              const StridedShape& shape, int64_t base, int64_t first,
                                                              E* staged) {
  using G = ColumnGranule<E>;
  constexpr int kStaged = strided::kStagedBytes / int(sizeof(E)), kAtOnce = kStaged / kResidues;
  const int left = int(call.layout.length - first);
  const Granule absent = absent_granule(op);
  StagedRuns<E> runs(call, shape, staged, base);
  return warp_leaf_of_granules<Op, E, kAtOnce>(op, first, [&](int part, int residue, int step, G(&x)[kAtOnce]) {
    const int copied = step * kResidues;
    if (part == 0 && copied < left) runs.copy(int(first) + copied, left - copied < kStaged ? left - copied : kStaged);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int i = k * kResidues + residue;
      memcpy(x[k].w, &absent, sizeof absent);
      if (copied + i < left) x[k] = runs(i);
      if (copied + i + G::kColumns > left && copied + i < left) {
        Granule g;
        memcpy(&g, x[k].w, sizeof g);
        mask<E>(g, 0, left - copied - i, absent);
        memcpy(x[k].w, &g, sizeof g);
      }
    }
  });
}

// shape.lanes < 32: that many lanes a row. Else shape.warps warps of one block take shape.leaves leaves each; the warps
// that have the values of a row's runs leave them in `partials`, row-major, and the last combines them.
template <class Op, class Load>
__global__ void TR_BLOCKS_BOUND(strided::kThreads, 2)
    reduce_strided(TR_GRID_CONSTANT ReduceCall call, TR_GRID_CONSTANT StridedShape shape, typename Op::Acc* partials,
                   uint32_t* tickets) {
  using Acc = typename Op::Acc;
  constexpr int kThreads = strided::kThreads, kWarps = strided::kWarps;
  const Op op = op_of<Op>(call);
  const Layout& layout = call.layout;

  if (shape.lanes < kLanes) {
    const int64_t row = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / shape.lanes;
    const bool active = row < layout.rows;
    const int64_t base = active ? row_start(layout, row).in : 0;
    const Acc acc = short_row<Op, Load>(op, call, base, active, shape.lanes);
    if (active && threadIdx.x % shape.lanes == 0) finish_row<Load>(op, call, row, acc);
    return;
  }

  __shared__ Acc value[kWarps];
  const int warp = int(threadIdx.x) / kLanes;
  const int64_t item = int64_t(blockIdx.x) * (kWarps / shape.warps) + warp / shape.warps;  // a part of a row
  int64_t row = quotient(item, shape.splits), split = item - row * shape.splits;
  if (shape.window) {  // neighbouring warps have the same positions of neighbouring rows
    split = quotient(item, layout.rows);
    row = split < shape.splits ? item - split * layout.rows : layout.rows;
  }
  const bool active = row < layout.rows;

  PushedTree<Op, kRunLevels> run(op);
  if (active) {
    const int64_t base = row_start(layout, row).in;
    const int64_t first = (split * shape.warps + warp % shape.warps) * shape.leaves;
    for (int64_t leaf = first; leaf < first + shape.leaves && leaf * kLeaf < layout.length; ++leaf) {
      if constexpr (kHasGranules<Load>) {
        using E = typename Load::Element;
        if (shape.granules) {
          run.push(warp_leaf_in_place<Op, E>(op, call, base, leaf * kLeaf));
          continue;
        }
        if (shape.window) {
          TR_DYNAMIC_SHARED(shared, 16);
          E* const own = reinterpret_cast<E*>(shared + warp * (shape.shared / kWarps));
          run.push(warp_leaf_of_runs<Op, E>(op, call, shape, base, leaf * kLeaf, own));
          continue;
        }
      }
      run.push(warp_leaf<Op, Load>(op, call, base, leaf * kLeaf));
    }
  }
  Acc acc = run.total();

  if (shape.warps > 1) {
    if (lane_id() == 0) value[warp] = acc;
    __syncthreads();
    if (warp % shape.warps != 0) return;
    const int lane = lane_id();
    acc = warp_tree(op, lane < shape.warps ? value[warp + lane] : op.absent(), kLanes);
  }
  if (!active) return;
  if (shape.splits > 1) {
    if (lane_id() == 0) partials[row * shape.splits + split] = acc;
    if (!last_warp(tickets + row, shape.splits)) return;
    acc = warp_fold(op, partials + row * shape.splits, shape.splits);
  }
  if (lane_id() == 0) finish_row<Load>(op, call, row, acc);
}

}  // namespace torchreduce::gpu
