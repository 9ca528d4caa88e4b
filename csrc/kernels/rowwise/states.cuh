// How the states of a row's leaves become the row's: the contiguous tree, whose missing right parts pass through.
#pragma once
#include "kernels/common/cluster.cuh"
#include "kernels/common/collective.cuh"
#include "rowwise_launch.h"

namespace torchreduce::gpu {

// Calls launch(E()), where E is the type of elements.
template <class Launch> void with_element(Dtype dtype, Launch launch) {
  switch (dtype) {
    case Dtype::F32: return launch(float());
    case Dtype::BF16: return launch(BF16());
#if !defined(TR_FEW_TYPES)
    case Dtype::F16: return launch(F16());
#endif
    default: return;
  }
}

// ---- leaves whose squares leave the range -----------------------------------------------------------------------------

// Where a leaf's elements are.
template <class E> struct LeafElements {
  const E* first;
  int pitch, count;

  __device__ __forceinline__ float element(int i) const { return convert<float>(first[i * pitch]); }
};

// What follows is called by a thread, where squares have left the range alone, and takes few registers: those that a
// function has are the kernel's.

// The canonical sum of the distances of a leaf's elements times `scale` to `mean`, or of their squares.
template <class E>
__device__ TR_RARELY_CALLED float sum_of_distances(const LeafElements<E>& leaf, float scale, float mean, bool squares) {
  const auto add = [](float a, float b) { return a + b; };
  TreeStack<float, 9> tree;  // over residues
#pragma unroll 1
  for (int first = 0; first < kResidues && first < leaf.count; ++first) {
    float sum = -0.0f;
#pragma unroll 1
    for (int i = first; i < leaf.count; i += kResidues) {
      const float d = leaf.element(i) * scale - mean;
      sum = squares ? fma_of(d, d, sum) : sum + d;
    }
    tree.push(sum, add);
  }
  return tree.total(-0.0f, add);
}
// The state of a leaf whose sums have left the range: its elements are read again, times `scale`. Of zeros alone it
// stays as it is, which is known sooner.
template <class Op, class E>
__device__ TR_RARELY_CALLED void scaled_leaf(typename Op::State& own, float scale, const LeafElements<E>& leaf) {
  bool zeros = true;
#pragma unroll 1
  for (int i = 0; zeros && i < leaf.count; ++i) zeros = leaf.element(i) == 0;
  if (zeros) return;
  const float first = sum_of_distances(leaf, scale, 0.0f, false);
  const float mean = Op::seen(first, leaf.count, typename Op::Given{}).mean;
  const float sums[2] = {sum_of_distances(leaf, scale, mean, false), sum_of_distances(leaf, scale, mean, true)};
  own = Op::scaled_back(Op::state(first, sums, leaf.count), own, scale);
}

// ---- trees -------------------------------------------------------------------------------------------------------------

// The tree over `count` states, at most 32, by a warp; every lane gets it. state(i) is number i.
template <class Op, class Read> __device__ __forceinline__ typename Op::State lanes_tree(int count, Read state) {
  int lanes = 1;  // that share one tree
  while (lanes < count) lanes *= 2;
  const int lane = lane_id() & (lanes - 1);
  typename Op::State own = state(lane < count ? lane : 0);
#pragma unroll 1
  for (int d = 1; d < lanes; d <<= 1) {
    const typename Op::State other = shuffle(own, lane_id() ^ d);
    const bool right = (lane & d) != 0;
    const typename Op::State first = chosen(right, other, own), second = chosen(right, own, other);
    own = first;
    if (((lane & ~(2 * d - 1)) | d) < count) own = Op::merge(first, second);
  }
  return own;
}

// The same of at most 32 kPer states of exponentials that are referred to powers of two near each other: multiplied by
// what takes all to the greatest power they are still exact, so that the tree is one of sums. False where they are not.
template <int kPer, class State, class Read>
__device__ __forceinline__ bool powers_tree(int count, Read state, State& total) {
  using E = Exponential<float>;
  constexpr int kNear = 100;
  int lanes = 1, per = 1;  // that share one tree; neighbours that a lane begins with
  while (lanes < count && lanes < kLanes) lanes *= 2;
  while (lanes * per < count) per *= 2;
  const int first = (lane_id() & (lanes - 1)) * per;
  State own[kPer];
#pragma unroll
  for (int k = 0; k < kPer; ++k) {
    const bool there = k < per && first + k < count;
    own[k] = {-kInfinity<float>, 0.0f, 0};
    if (there) own[k] = state(first + k);
    own[k].n = k == 0 || there ? own[k].n : own[0].n;
  }
  int most = own[0].n, least = own[0].n;
#pragma unroll
  for (int k = 1; k < kPer; ++k) {
    most = most > own[k].n ? most : own[k].n;
    least = least < own[k].n ? least : own[k].n;
  }
  const bool any = first < count;
  most = warp_most(any ? most : -E::kFar);
  if (ballot(most == E::kFar || (any && least < most - kNear))) return false;
#pragma unroll
  for (int k = 0; k < kPer; ++k) own[k].s = own[k].s * E::power(any ? own[k].n - most : 0);
#pragma unroll
  for (int d = 1; d < kPer; d *= 2)
#pragma unroll
    for (int k = 0; k < kPer; k += 2 * d) {
      own[k].s = own[k].s + own[k + d].s;  // what is not there adds nothing
      own[k].l = greatest(own[k].l, own[k + d].l);
    }
  float sum = own[0].s, l = own[0].l;
#pragma unroll
  for (int d = 1; d < kLanes; d <<= 1)
    if (d < lanes) {
      sum = sum + shuffle(sum, lane_id() ^ d);
      l = greatest(l, shuffle(l, lane_id() ^ d));
    }
  total = {l, sum, most};
  return true;
}

// The same by a block, over `count` states in memory: those of neighbours meet in `tree`, which has half as many places
// and may be where the states are. Every thread calls it, after a barrier.
template <class Op, class State> __device__ __forceinline__ State block_tree(const State* states, State* tree,
                                                                             int64_t count) {
  if (count > kLanes) {
#pragma unroll 1
    for (int64_t i = threadIdx.x; 2 * i < count; i += blockDim.x) {
      const State first = states[2 * i];
      State both = first;
      if (2 * i + 1 < count) both = Op::merge(first, states[2 * i + 1]);
      tree[i] = both;
    }
    __syncthreads();
    count = (count + 1) / 2;
    int64_t step = 1;  // between those that are left
#pragma unroll 1
    for (; (count + step - 1) / step > kLanes; step *= 2) {
#pragma unroll 1
      for (int64_t i = int64_t(threadIdx.x) * 2 * step; i + step < count; i += int64_t(blockDim.x) * 2 * step)
        tree[i] = Op::merge(State(tree[i]), State(tree[i + step]));
      __syncthreads();
    }
    return lanes_tree<Op>(int((count + step - 1) / step), [&](int i) { return tree[i * step]; });
  }
  return lanes_tree<Op>(int(count), [&](int i) { return states[i]; });
}

}  // namespace torchreduce::gpu
