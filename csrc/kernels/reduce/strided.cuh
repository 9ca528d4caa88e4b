// Reductions of rows of any strides, with lanes along a row: the reduced dims hold the smallest stride, or there is one
// long row, and no faster kernel serves it. Elements are loaded one by one.
#pragma once
#include "column_lanes.cuh"
#include "finish.cuh"
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
  __device__ PositionWalk(const Layout& layout, int64_t position, int step) : layout_(layout) {
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
  const int first = (int(threadIdx.x) % width) * kPerLane;
  Acc acc[kPerLane];
  PositionWalk walk(call.layout, first < n ? first : 0, 1);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i, walk.next(first + i))
    acc[i] = active && first + i < n ? op.load(Load::one(call.in, base + walk.offset()), first + i) : op.absent();
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
  const int64_t n = call.layout.length, end = n - first < kLeaf ? n : first + kLeaf;
  Acc acc[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) acc[i] = op.absent();
  PositionWalk walk(call.layout, first + lane_id() < end ? first + lane_id() : first, kLanes);
#pragma unroll 1
  for (int64_t k = first + lane_id(); k < end; k += kResidues) {
    typename Load::Element x[kPerLane];
    if (k + (kPerLane - 1) * kLanes < end) {  // the loads are in flight together
#pragma unroll
      for (int i = 0; i < kPerLane; ++i, walk.next(k + i * kLanes)) x[i] = Load::one(call.in, base + walk.offset());
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) acc[i] = step(op, acc[i], x[i], k + i * kLanes);
    } else {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i, walk.next(k + i * kLanes))
        if (k + i * kLanes < end) acc[i] = step(op, acc[i], Load::one(call.in, base + walk.offset()), k + i * kLanes);
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

// The same of positions in runs of whole granules: a lane has residues that are neighbours, 16 bytes of them.
template <class Op, class E>
__device__ __forceinline__ typename Op::Acc warp_leaf_of_granules(const Op& op, const ReduceCall& call, int64_t base,
                                                                  int64_t first) {
  using Near = typename Op::Near;
  using G = ColumnGranule<E>;
  constexpr int V = G::kColumns, kParts = kResidues / (kLanes * V), kSteps = kLeaf / kResidues;
  const E* const from = global(static_cast<const E*>(call.in.data)) + base;
  const G none = G::of(op.absent_element());
  Near part[kParts];
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    const int residue = (p * kLanes + lane_id()) * V;
    PositionWalk walk(call.layout, first + residue < call.layout.length ? first + residue : first, kResidues);
    G x[kSteps];
#pragma unroll
    for (int k = 0; k < kSteps; ++k, walk.next(first + residue + k * kResidues)) {
      x[k] = none;
      if (first + residue + k * kResidues < call.layout.length)
        x[k].load(reinterpret_cast<const char*>(from + walk.offset()));
    }
    Near v[V];
    op.template near_all<V>(x[0].w, 0, v);
#pragma unroll
    for (int k = 1; k < kSteps; ++k) step_all<V>(op, x[k].w, k, v);
#pragma unroll
    for (int e = 0; e < V; ++e) v[e] = Op::place(v[e], residue + e, kResidues);
#pragma unroll
    for (int d = 1; d < V; d *= 2)
#pragma unroll
      for (int e = 0; e < V; e += 2 * d) v[e] = Op::combine(v[e], v[e + d]);
    for (int d = 1; d < kLanes; d *= 2) v[0] = Op::combine(v[0], shuffle(v[0], lane_id() ^ d));
    part[p] = v[0];
  }
#pragma unroll
  for (int d = 1; d < kParts; d *= 2)
#pragma unroll
    for (int p = 0; p < kParts; p += 2 * d) part[p] = Op::combine(part[p], part[p + d]);
  return Op::far(part[0], first);
}

// shape.lanes < 32: that many lanes a row. Else shape.warps warps of one block take shape.leaves leaves each; the warps
// that have the values of a row's runs leave them in `partials`, row-major, and the last combines them.
template <class Op, class Load>
__global__ void TR_BLOCK_BOUND(strided::kThreads)
    reduce_strided(TR_GRID_CONSTANT ReduceCall call, TR_GRID_CONSTANT StridedShape shape, typename Op::Acc* partials,
                   uint32_t* tickets) {
  using Acc = typename Op::Acc;
  constexpr int kThreads = strided::kThreads, kWarps = strided::kWarps;
  const Op op{call.options};
  auto combine = [&](Acc l, Acc r) { return op.combine(l, r); };
  const Layout& layout = call.layout;

  if (shape.lanes < kLanes) {
    const int64_t row = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / shape.lanes;
    const bool active = row < layout.rows;
    const int64_t base = active ? row_start(layout, row).in : 0;
    const Acc acc = short_row<Op, Load>(op, call, base, active, shape.lanes);
    if (active && threadIdx.x % shape.lanes == 0) finish_row(op, call, row, acc);
    return;
  }

  __shared__ Acc value[kWarps];
  const int warp = int(threadIdx.x) / kLanes;
  const int64_t item = int64_t(blockIdx.x) * (kWarps / shape.warps) + warp / shape.warps;  // a run of a row
  const int64_t row = item / shape.splits, split = item - row * shape.splits;
  const bool active = row < layout.rows;

  TreeStack<Acc, kRunLevels> run;
  if (active) {
    const int64_t base = row_start(layout, row).in;
    const int64_t first = (split * shape.warps + warp % shape.warps) * shape.leaves;
    for (int64_t leaf = first; leaf < first + shape.leaves && leaf * kLeaf < layout.length; ++leaf) {
      if constexpr (kHasGranules<Load>) {
        using E = typename Load::Element;
        if (shape.granules) {
          run.push(warp_leaf_of_granules<Op, E>(op, call, base, leaf * kLeaf), combine);
          continue;
        }
      }
      run.push(warp_leaf<Op, Load>(op, call, base, leaf * kLeaf), combine);
    }
  }
  Acc acc = run.total(op.absent(), combine);

  if (shape.warps > 1) {
    if (lane_id() == 0) value[warp] = acc;
    __syncthreads();
    if (warp % shape.warps != 0) return;
    const int lane = lane_id();
    acc = warp_tree(op, lane < shape.warps ? value[warp + lane] : op.absent(), kLanes);
  }
  if (!active) return;
  if (shape.splits > 1) {
    if (lane_id() == 0) partials[item] = acc;
    if (!last_warp(tickets + row, shape.splits)) return;
    acc = warp_fold(op, partials + row * shape.splits, shape.splits);
  }
  if (lane_id() == 0) finish_row(op, call, row, acc);
}

}  // namespace torchreduce::gpu
