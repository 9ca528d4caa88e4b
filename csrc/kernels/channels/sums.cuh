// The sums that gradients of norms over channels are made of: canonical sums of u and of fma(u, xh) over rows of runs,
// a channel's over all samples or a group's over its channels (plan/channel_call.h).
//
// Serves: everything, by a leaf a warp, whose lane has every 32nd element (sum_lines); rows of channels that lie side
// by side also by granules, of which a thread has the same channels in kRun neighbouring residues (sum_columns). One
// launch leaves two sums for each unit, partials[which][row][unit], and fold_sums makes of them a row's.
#pragma once
#include "channels.h"
#include "kernels/common/collective.cuh"
#include "kernels/reduce/granule.cuh"

namespace torchreduce::gpu {

template <class F> __device__ __forceinline__ void add_term(F& plain, F& with_normal, F u, F x,
                                                            const typename LayerNorm<F>::Row& row) {
  plain = plain + u;
  with_normal = fma_of(u, LayerNorm<F>::normal(x, row), with_normal);
}

template <class E, class F>
__global__ void __launch_bounds__(channels_of::kThreads)
    sum_lines(TR_GRID_CONSTANT ChannelCall call, TR_GRID_CONSTANT ChannelShape shape, F* partials) {
  constexpr int kSlots = kResidues / kLanes;
  const int64_t item = (int64_t(blockIdx.x) * channels_of::kThreads + threadIdx.x) / kLanes, rows = call.sums_rows();
  const int64_t leaf = item / rows, row = item - leaf * rows;  // neighbouring warps have neighbouring rows
  if (leaf >= shape.units) return;
  const int64_t first = leaf * kLeaf, rest = call.sums_length() - first,
                run = call.length > 0 ? first / call.length : 0;
  const int count = int(rest < kLeaf ? rest : kLeaf);
  const int64_t phase = first - run * call.length;
  const auto at = call.line(row, run);
  const auto from = [&](const ChannelOperand& o) {
    return static_cast<const E*>(o.data) + at.sample * o.sample + at.channel * o.channel + phase * o.position;
  };
  // From the end of a run to the next one.
  const auto jump = [&](const ChannelOperand& o) {
    return (call.of_groups ? o.channel : o.sample) - call.length * o.position;
  };
  const E *const g = from(call.g), *const x = from(call.x);
  const int64_t jumps[2] = {jump(call.g), jump(call.x)}, steps[2] = {call.g.position, call.x.position};
  const bool is_long = call.length > INT32_MAX / 2;  // then there is an end of a run in a leaf at most
  const auto runs_passed = [&](int i) {
    return is_long ? int(phase + i >= call.length) : shape.by_length.quotient(int(phase) + i);
  };
  const int64_t number = call.stats_row(at.sample, at.channel);
  typename LayerNorm<F>::Row same{};
  if (count > 0) same = call.template statistics<F>(number);  // without samples there are none

  F acc[2][kSlots];
#pragma unroll
  for (int k = 0; k < kSlots; ++k) acc[0][k] = acc[1][k] = F(-0.0);
#pragma unroll 1
  for (int begin = lane_id(); begin < count; begin += kResidues) {
    E a[kSlots], b[kSlots];
    int passed[kSlots];
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
      const int i = begin + k * kLanes;
      passed[k] = runs_passed(i);
      a[k] = b[k] = E{};
      if (i < count) {
        a[k] = g[passed[k] * jumps[0] + i * steps[0]];
        b[k] = x[passed[k] * jumps[1] + i * steps[1]];
      }
    }
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
      if (begin + k * kLanes >= count) continue;
      F u = convert<F>(a[k]);
      auto own = same;
      if (call.groups) {
        if (call.of_groups) u = u * call.template weight_of<F>(at.channel + passed[k]);
        else own = call.template statistics<F>(number + passed[k] * call.groups);
      }
      add_term(acc[0][k], acc[1][k], u, convert<F>(b[k]), own);
    }
  }
  // Residue k * 32 + lane: the tree over lanes, then that over k.
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    F* const sums = acc[which];
#pragma unroll
    for (int k = 0; k < kSlots; ++k)
#pragma unroll
      for (int d = 1; d < kLanes; d *= 2) sums[k] = sums[k] + shuffle(sums[k], lane_id() ^ d);
#pragma unroll
    for (int d = 1; d < kSlots; d *= 2)
#pragma unroll
      for (int k = 0; k < kSlots; k += 2 * d) sums[k] = sums[k] + sums[k + d];
    if (lane_id() == 0) partials[(which * rows + row) * shape.units + leaf] = sums[0];
  }
}

// Of a batch: the statistics are a channel's own.
template <class E>
__global__ void TR_BLOCKS_BOUND(channels_of::kThreads, 2)
    sum_columns(TR_GRID_CONSTANT ChannelCall call, TR_GRID_CONSTANT ChannelShape shape, float* partials) {
  using namespace channels_of;
  constexpr int V = kPerGranule<E>, kSteps = kLeaf / kResidues, kAtOnce = sizeof(E) == 2 ? 4 : 8;  // registers
  const int lanes = 1 << shape.log_lanes, lane = int(threadIdx.x) & (lanes - 1);
  const int groups = kThreads >> shape.log_lanes, group = int(threadIdx.x) >> shape.log_lanes, tile = lanes * V;
  const int64_t number = blockIdx.x / shape.units, unit = blockIdx.x - number * shape.units;
  const int64_t channel = number * tile + lane * V, length = call.sums_length();
  const int of_leaf = groups * kRun < kResidues ? kResidues / (groups * kRun) : 1;  // units
  const int64_t leaf = unit / of_leaf;
  const int residue = (int(unit - leaf * of_leaf) * groups + group) * kRun;
  const bool there = channel < call.channels && residue < kResidues;
  typename LayerNorm<float>::Row rows[V];
#pragma unroll
  for (int c = 0; c < V; ++c) rows[c] = call.template statistics<float>(there ? channel + c : 0);
  const int64_t begin = leaf * kLeaf + residue;
  const auto from = [&](const ChannelOperand& o) { return static_cast<const E*>(o.data) + (there ? channel : 0); };
  const E *const g = from(call.g), *const x = from(call.x);

  float sums[2][V], tree[2][V], pair[2][V];
#pragma unroll
  for (int r = 0; r < kRun; ++r) {
#pragma unroll
    for (int c = 0; c < V; ++c) sums[0][c] = sums[1][c] = -0.0f;
#pragma unroll
    for (int first = 0; first < kSteps; first += kAtOnce) {
      Granule a[kAtOnce], b[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int64_t position = begin + r + (first + k) * kResidues;
        const bool wanted = there && position < length;
        a[k] = b[k] = Granule{};
        load_if(wanted, reinterpret_cast<const Granule*>(g + (wanted ? position : 0) * call.channels), a[k]);
        load_if(wanted, reinterpret_cast<const Granule*>(x + (wanted ? position : 0) * call.channels), b[k]);
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (!there || begin + r + (first + k) * kResidues >= length) break;
        E u[V], v[V];
        elements_of(a[k], u);
        elements_of(b[k], v);
#pragma unroll
        for (int c = 0; c < V; ++c)
          add_term(sums[0][c], sums[1][c], convert<float>(u[c]), convert<float>(v[c]), rows[c]);
      }
    }
    // The tree over four: pairs, then both.
#pragma unroll
    for (int s = 0; s < 2; ++s)
#pragma unroll
      for (int c = 0; c < V; ++c) {
        if (r == 0) tree[s][c] = sums[s][c];
        if (r == 1) tree[s][c] = tree[s][c] + sums[s][c];
        if (r == 2) pair[s][c] = sums[s][c];
        if (r == 3) tree[s][c] = tree[s][c] + (pair[s][c] + sums[s][c]);
      }
  }
  static_assert(kRun == 4, "a tree over four");

  __shared__ float shared[2][kThreads * V];  // [which][group][column of the tile]
#pragma unroll
  for (int s = 0; s < 2; ++s)
#pragma unroll
    for (int c = 0; c < V; ++c) shared[s][group * tile + lane * V + c] = tree[s][c];
#pragma unroll 1
  for (int d = 1; d < groups; d *= 2) {
    __syncthreads();
    if (group % (2 * d) == 0) {
#pragma unroll
      for (int s = 0; s < 2; ++s)
#pragma unroll
        for (int c = 0; c < V; ++c) {
          float* const own = &shared[s][group * tile + lane * V + c];
          *own = *own + own[d * tile];
        }
    }
  }
  if (group > 0 || !there) return;
#pragma unroll
  for (int s = 0; s < 2; ++s)
#pragma unroll
    for (int c = 0; c < V; ++c)
      partials[(s * call.channels + channel + c) * shape.units + unit] = shared[s][lane * V + c];
}

// A warp has one sum of a row; a lane a run of its units. Over no elements it is +0.
template <class F>
__global__ void __launch_bounds__(channels_of::kThreads)
    fold_sums(TR_GRID_CONSTANT ChannelCall call, int64_t units, const F* partials) {
  const int64_t item = (int64_t(blockIdx.x) * channels_of::kThreads + threadIdx.x) / kLanes, rows = call.sums_rows();
  if (item >= 2 * rows) return;
  const auto add = [](F a, F b) { return a + b; };
  int64_t each = 1;  // units of a lane, a power of two
  while (each * kLanes < units) each *= 2;
  TreeStack<F, 32> tree;
  const int64_t begin = lane_id() * each;
#pragma unroll 1
  for (int64_t unit = begin; unit < begin + each && unit < units; ++unit) tree.push(partials[item * units + unit], add);
  F sum = tree.total(F(-0.0), add);
#pragma unroll
  for (int d = 1; d < kLanes; d *= 2) sum = sum + shuffle(sum, lane_id() ^ d);
  const int which = item >= rows ? 1 : 0;
  if (lane_id() == 0) call.keep(item - which * rows, which, call.sums_length() > 0 ? sum : F(0));
}

}  // namespace torchreduce::gpu
