// The sums that gradients of norms over channels are made of: canonical sums of u and of fma(u, xh) over rows of runs,
// a channel's over all samples or a group's over its channels (plan/channel_call.h). One launch leaves both kinds' two
// sums of each unit, [which][row][unit], and fold_sums makes of them the rows'.
//
// Serves: lines of neighbours and all else by warps, whose lanes have neighbouring residues of a unit (sum_unit);
// where leaves of channels are leaves of groups both sums of one look at them (both_sum_lines); rows of channels that
// lie side by side by granules, of which a thread has the same channels in kRun neighbouring residues (sum_columns).
// Shared memory: of sum_columns alone, its threads' sums.
#pragma once
#include "channels.h"
#include "kernels/common/collective.cuh"
#include "kernels/common/gpu_rows.cuh"
#include "kernels/reduce/granule.cuh"

namespace torchreduce::gpu {

template <class F> __device__ __forceinline__ void add_term(F& plain, F& with_normal, F u, F normal) {
  plain = plain + u;
  with_normal = fma_of(u, normal, with_normal);
}
// The tree over a warp's V * kLanes values, V neighbouring ones of each lane.
template <int V, class F> __device__ __forceinline__ F warp_tree(F (&values)[V]) {
#pragma unroll
  for (int d = 1; d < V; d *= 2)
#pragma unroll
    for (int j = 0; j < V; j += 2 * d) values[j] = values[j] + values[j + d];
  F sum = values[0];
#pragma unroll
  for (int d = 1; d < kLanes; d *= 2) {
    if constexpr (sizeof(F) == 4) sum = sum + shuffle_across(sum, d);
    else sum = sum + shuffle(sum, lane_id() ^ d);
  }
  return sum;
}

// W neighbouring elements, which move together; zeros where they are not wanted.
template <class E, int W> struct Neighbours {
  using Moved = std::conditional_t<W * sizeof(E) == 16, Granule, std::conditional_t<W == 1, E, Packed<E, W>>>;
  Moved moved;

  __device__ __forceinline__ void load(bool wanted, const E* from) {
    moved = Moved{};
    const Moved* const at = reinterpret_cast<const Moved*>(from);
    if constexpr (W * sizeof(E) == 16) load_if(wanted, at, moved);
    else if constexpr (W == 1) moved = wanted ? *at : E{};
    else if (wanted) moved = load_item(at);
  }
  __device__ __forceinline__ void get(E (&x)[W]) const {
    if constexpr (W == 1) x[0] = moved;
    else memcpy(x, &moved, sizeof x);
  }
};

// What a block has of a launch for both kinds of sums, whose blocks take turns: what one kind has read, the other finds
// in the cache.
struct BlockOfSums {
  bool of_groups;
  int64_t number;

  __device__ BlockOfSums(const ChannelShape& shape) {
    const int64_t of[] = {shape.sums[0].blocks, shape.sums[1].blocks}, turns = of[0] < of[1] ? of[0] : of[1];
    const int64_t block = blockIdx.x;
    of_groups = block < 2 * turns ? block % 2 : of[1] > of[0];
    number = block < 2 * turns ? block / 2 : block - turns;
  }
};

// A warp has V * kLanes neighbouring residues of a leaf, a subtree; a lane loads W elements at once. kNear: positions
// are neighbours, and 32 bits are enough for offsets within a leaf.
template <class E, class F, int V, int W, bool kNear>
__device__ __forceinline__ void sum_unit(const ChannelCall& call, const ChannelShape& shape, F* partials) {
  using Offset = std::conditional_t<kNear, int, int64_t>;
  constexpr int kParts = kResidues / (V * kLanes), kOfStep = V / W, kLoads = kLeaf / kResidues * kOfStep;
  constexpr int kAtOnce = W * sizeof(E) == 16 || sizeof(E) == 8 ? 4 : 8;  // registers
  const BlockOfSums block(shape);
  const bool of_groups = block.of_groups;
  const SumsShape& own = shape.sums[of_groups];
  // Warps follow memory: the parts of a leaf, then of channels the same leaf of neighbouring ones, of a group its
  // leaves.
  const int64_t item = block.number * channels_of::kWarps + int(threadIdx.x) / kLanes, pair = item / kParts;
  const int64_t inner = of_groups ? own.units / kParts : own.rows, outer = quotient(pair, inner);
  const int64_t row = of_groups ? outer : pair - outer * inner, leaf = of_groups ? pair - outer * inner : outer;
  const int64_t unit = leaf * kParts + item % kParts;
  if (row >= own.rows || unit >= own.units) return;
  const int64_t first = leaf * kLeaf, rest = call.sums_length(of_groups) - first,
                run = call.length > 0 ? quotient(first, call.length) : 0, phase = first - run * call.length;
  const int count = int(rest < kLeaf ? rest : kLeaf), residue = (int(item % kParts) * kLanes + lane_id()) * V;
  const auto at = call.line(of_groups, row, run);
  const auto from = [&](const ChannelOperand& o) {
    return static_cast<const E*>(o.data) + at.sample * o.sample + at.channel * o.channel + phase * o.position;
  };
  const Offset steps[2] = {kNear ? 1 : Offset(call.g.position), kNear ? 1 : Offset(call.x.position)};
  // From the end of a run to the next one, where there is one.
  const bool goes_on = of_groups || call.samples > 1;
  const auto jump = [&](const ChannelOperand& o, Offset step) {
    return goes_on ? Offset((of_groups ? o.channel : o.sample) - call.length * step) : Offset(0);
  };
  const E *const g = from(call.g), *const x = from(call.x);
  const Offset jumps[2] = {jump(call.g, steps[0]), jump(call.x, steps[1])};
  const bool is_long = !kNear && call.length > INT32_MAX / 2;  // then there is an end of a run in a leaf at most
  const auto runs_passed = [&](int i) {
    return is_long ? int(phase + i >= call.length) : shape.by_length.quotient(int(phase) + i);
  };
  const int64_t number = of_groups || !call.groups ? row : call.stats_row(at.sample, at.channel);
  const bool differ = call.groups && !of_groups;  // the statistics, from run to run
  typename LayerNorm<F>::Row same{};
  if (count > 0) same = call.template statistics<F>(number);  // without samples there are none

  F acc[2][V];
#pragma unroll
  for (int j = 0; j < V; ++j) acc[0][j] = acc[1][j] = F(-0.0);
#pragma unroll
  for (int begin = 0; begin < kLoads; begin += kAtOnce) {
    const auto place = [&](int k) { return residue + (begin + k) % kOfStep * W + (begin + k) / kOfStep * kResidues; };
    Neighbours<E, W> a[kAtOnce], b[kAtOnce];
    typename LayerNorm<F>::Row rows[kAtOnce];
    F weights[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int i = place(k), passed = runs_passed(i);
      a[k].load(i < count, g + (passed * jumps[0] + i * steps[0]));
      b[k].load(i < count, x + (passed * jumps[1] + i * steps[1]));
      rows[k] = same;
      weights[k] = F(1);
      if (differ && i < count) rows[k] = call.template kept_statistics<F>(number + passed * call.groups);
      if (of_groups && i < count) weights[k] = call.template weight_of<F>(at.channel + passed);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (place(k) >= count) continue;
      E u[W], v[W];
      a[k].get(u);
      b[k].get(v);
#pragma unroll
      for (int j = 0; j < W; ++j) {
        const int slot = (begin + k) % kOfStep * W + j;
        add_term(acc[0][slot], acc[1][slot], convert<F>(u[j]) * weights[k],
                 LayerNorm<F>::normal(convert<F>(v[j]), rows[k]));
      }
    }
  }
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    const F sum = warp_tree(acc[which]);
    if (lane_id() == 0) partials[own.first + (which * own.rows + row) * own.units + unit] = sum;
  }
}

// By what a lane loads at once (SumsLoads).
#define TR_ARGUMENTS(F) (TR_GRID_CONSTANT ChannelCall call, TR_GRID_CONSTANT ChannelShape shape, F * partials)
template <class E, class F>
__global__ void TR_BLOCKS_BOUND(channels_of::kThreads, 2) sum_lines TR_ARGUMENTS(F) {
  sum_unit<E, F, 2, 1, false>(call, shape, partials);
}
template <class E> __global__ void TR_BLOCKS_BOUND(channels_of::kThreads, 2) near_sum_lines TR_ARGUMENTS(float) {
  sum_unit<E, float, 2, 1, true>(call, shape, partials);
}
template <class E> __global__ void TR_BLOCKS_BOUND(channels_of::kThreads, 2) half_sum_lines TR_ARGUMENTS(float) {
  sum_unit<E, float, kPerGranule<E> / 2, kPerGranule<E> / 2, true>(call, shape, partials);
}
template <class E> __global__ void TR_BLOCKS_BOUND(channels_of::kThreads, 2) granule_sum_lines TR_ARGUMENTS(float) {
  sum_unit<E, float, kPerGranule<E>, kPerGranule<E>, true>(call, shape, partials);
}
#undef TR_ARGUMENTS

// Lines are whole leaves, so that a leaf is one of its channel's row and one of its group's. A warp's residues are as
// in sum_lines, and leaves follow one another in memory.
template <class E>
__global__ void TR_BLOCKS_BOUND(channels_of::kThreads, 2)
    both_sum_lines(TR_GRID_CONSTANT ChannelCall call, TR_GRID_CONSTANT ChannelShape shape, float* partials) {
  constexpr int V = kPerGranule<E>, kParts = kResidues / (V * kLanes), kSteps = kLeaf / kResidues, kAtOnce = 4;
  const int64_t item = int64_t(blockIdx.x) * channels_of::kWarps + int(threadIdx.x) / kLanes, leaf = item / kParts;
  const int64_t leaves = call.length / kLeaf, line = quotient(leaf, leaves), sample = quotient(line, call.channels);
  if (sample >= call.samples) return;
  const int part = int(item % kParts), channel = int(line - sample * call.channels);
  const int group = shape.by_group.quotient(channel);
  const int64_t rows[2] = {channel, sample * call.groups + group};
  const int64_t runs[2] = {sample, channel - group * call.in_group()};
  const auto known = call.template kept_statistics<float>(rows[1]);
  const float weight = call.template weight_of<float>(channel);
  const int64_t from = leaf * kLeaf + (part * kLanes + lane_id()) * V;
  const E *const g = static_cast<const E*>(call.g.data) + from, *const x = static_cast<const E*>(call.x.data) + from;

  float acc[2][2][V];  // of channels, of groups
#pragma unroll
  for (int j = 0; j < V; ++j) acc[0][0][j] = acc[0][1][j] = acc[1][0][j] = acc[1][1][j] = -0.0f;
#pragma unroll
  for (int begin = 0; begin < kSteps; begin += kAtOnce) {
    Neighbours<E, V> a[kAtOnce], b[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      a[k].load(true, g + (begin + k) * kResidues);
      b[k].load(true, x + (begin + k) * kResidues);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      E u[V], v[V];
      a[k].get(u);
      b[k].get(v);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const float own = convert<float>(u[j]), normal = LayerNorm<float>::normal(convert<float>(v[j]), known);
        add_term(acc[0][0][j], acc[0][1][j], own, normal);
        add_term(acc[1][0][j], acc[1][1][j], own * weight, normal);
      }
    }
  }
#pragma unroll
  for (int of = 0; of < 2; ++of)
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const SumsShape& own = shape.sums[of];
      const float sum = warp_tree(acc[of][which]);
      const int64_t unit = (runs[of] * leaves + leaf - line * leaves) * kParts + part;
      if (lane_id() == 0) partials[own.first + (which * own.rows + rows[of]) * own.units + unit] = sum;
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
  const int64_t units = shape.sums[0].units, number = blockIdx.x / units, unit = blockIdx.x - number * units;
  const int64_t channel = number * tile + lane * V, length = call.sums_length(false);
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
          add_term(sums[0][c], sums[1][c], convert<float>(u[c]),
                   LayerNorm<float>::normal(convert<float>(v[c]), rows[c]));
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
    for (int c = 0; c < V; ++c) partials[(s * call.channels + channel + c) * units + unit] = shared[s][lane * V + c];
}

// A warp has one sum of a row, of channels or of groups; a lane kEach neighbouring units at a time. Over no elements it
// is +0.
template <class F>
__global__ void __launch_bounds__(channels_of::kThreads)
    fold_sums(TR_GRID_CONSTANT ChannelCall call, TR_GRID_CONSTANT ChannelShape shape, const F* partials) {
  constexpr int kEach = 8;
  int64_t item = int64_t(blockIdx.x) * channels_of::kWarps + int(threadIdx.x) / kLanes;
  const bool of_groups = item >= 2 * shape.sums[0].rows;
  if (of_groups) item -= 2 * shape.sums[0].rows;
  const SumsShape& own = shape.sums[of_groups];
  if (item >= 2 * own.rows) return;
  const F* const from = partials + own.first + item * own.units;
  const auto add = [](F a, F b) { return a + b; };
  TreeStack<F, 32> tree;
#pragma unroll 1
  for (int64_t first = 0; first < own.units; first += kEach * kLanes) {
    F sums[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int64_t unit = first + lane_id() * kEach + j;
      sums[j] = unit < own.units ? from[unit] : F(-0.0);
    }
    tree.push(warp_tree(sums), add);
  }
  const F sum = tree.total(F(-0.0), add);
  const int which = item >= own.rows ? 1 : 0;
  if (lane_id() == 0)
    call.keep(of_groups, item - which * own.rows, which, call.sums_length(of_groups) > 0 ? sum : F(0));
}

}  // namespace torchreduce::gpu
