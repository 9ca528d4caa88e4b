// Reductions of rows of neighbouring elements, which may start anywhere.
//
// Serves: types that are read as they are, rows of any length, of up to four kept dims (rows.h).
// A lane loads granules: 16 aligned bytes, of which those at a row's ends may hold other elements, which are masked. So
// a row that starts `before` elements into its first granule is read like any other; but its elements then lie `before`
// places off the residues that lanes stand for, and their accumulators are moved there before they are combined.
// Shared memory: an accumulator for each of the units of a block's run.
// A warp takes 8, 4 or 2 short rows of whole granules at once, with 1, 2 or 4 granules a lane of each, by groups of
// fewer lanes if they are shorter still; or one row, unit by unit; or some units of the run of a row that its block
// has. A unit is a leaf where order shows in the bits, else 256 granules. The last block of a row that is split
// combines the runs' values.
#pragma once
#include "granule.cuh"
#include "rows.h"

namespace torchreduce::gpu {

// ---- where order shows ------------------------------------------------------------------------------------------------

// Accumulators of a lane of a warp that has kEach granules a lane of a row, or of a leaf: of each granule those of
// neighbouring residues, until after 8 of them residues come again.
template <class Op, int kEach> struct Residues {
  using Acc = typename Op::Acc;
  using E = typename Op::Element;
  static constexpr int kPer = kPerGranule<E>, kRuns = kEach * kPer < kPerLane ? kEach : kPerLane / kPer;
  static constexpr int kCount = kRuns * kPer;  // kPerLane, or all of a row that is shorter than a leaf's residues
  Acc acc[kCount];

  __device__ explicit Residues(const Op& op) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) acc[i] = op.absent();
  }
  // The granule number c of the lane; c is known to the compiler.
  __device__ __forceinline__ void take(const Op& op, const Granule& g, int c) {
    E x[kPer];
    elements_of(g, x);
    steps<kPer>(op, acc + c % kRuns * kPer, [&](int i) { return x[i]; });
  }
  // The same from the first element of a leaf on, where granules begin kBy elements earlier. By a warp.
  template <int kBy> __device__ __forceinline__ void move_down() {
    const int after = (lane_id() + 1) % kLanes;
    Acc moved[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const int from = k % kPer + kBy;
      if (from < kPer) {
        moved[k] = acc[k + kBy];
      } else {
        const Acc next = shuffle(acc[k - k % kPer + from - kPer], after);
        // After the last lane comes the first one of the next run, after the last run the first.
        const Acc past = kRuns == 1 ? next : shuffle(acc[(k / kPer + 1) % kRuns * kPer + from - kPer], after);
        moved[k] = after == 0 ? past : next;
      }
    }
#pragma unroll
    for (int k = 0; k < kCount; ++k) acc[k] = moved[k];
  }
  __device__ __forceinline__ void move_down_by(int before) {
    if constexpr (kPer > 4)
      if (before & 4) move_down<4>();
    if constexpr (kPer > 2)
      if (before & 2) move_down<2>();
    if (before & 1) move_down<1>();
  }
  // The tree over each of the lane's runs of residues.
  __device__ __forceinline__ void tree(const Op& op, Acc* runs) {
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      Acc* const a = acc + r * kPer;
#pragma unroll
      for (int d = 1; d < kPer; d *= 2)
#pragma unroll
        for (int i = 0; i < kPer; i += 2 * d) a[i] = op.combine(a[i], a[i + d]);
      runs[r] = a[0];
    }
  }
  // The tree over all residues of a warp's lanes; each of them gets it.
  __device__ __forceinline__ Acc value(const Op& op) {
    Acc runs[kRuns];
    tree(op, runs);
    auto join = [&](const Acc& a, const Acc& b) { return op.combine(a, b); };
    Acc all = transposing_tree(runs, kLanes, join);
#pragma unroll
    for (int d = 1; d < kRuns; d *= 2) all = join(all, shuffle(all, lane_id() ^ d));
    return all;
  }
};

// The leaf of `count` elements that starts at x, by a warp, element by element: a lane has 8 neighbouring residues. For
// what lies at an end of the tensor within a granule.
template <class Op> __device__ __forceinline__ typename Op::Acc careful_leaf(const Op& op,
                                                                             const typename Op::Element* x, int count) {
  using Acc = typename Op::Acc;
  Acc acc[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) acc[i] = op.absent();
#pragma unroll 1
  for (int k = lane_id() * kPerLane; k < count; k += kResidues)
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (k + i < count) acc[i] = step(op, acc[i], x[k + i], k + i);
#pragma unroll
  for (int d = 1; d < kPerLane; d *= 2)
#pragma unroll
    for (int i = 0; i < kPerLane; i += 2 * d) acc[i] = op.combine(acc[i], acc[i + d]);
  return warp_tree(op, acc[0], kLanes);
}

// The leaf of `count` elements that starts at x, by a warp. Only its first granule has elements that come before it,
// and only the last one, which one lane has besides, some that come after.
template <class Op> __device__ __forceinline__ typename Op::Acc leaf_value(const Op& op, const RowsCall& call,
                                                                           const typename Op::Element* x, int count) {
  using E = typename Op::Element;
  using R = Residues<Op, rows::kGranules>;
  constexpr int kPer = kPerGranule<E>;
  const int before = elements_before(x), lane = lane_id();
  const Granule* const from = granule_of(x);
  const int whole = (before + count) / kPer, rest = (before + count) % kPer;  // granules; elements of the last one
  if (!is_inside(call, from) || (rest > 0 && !is_inside(call, from + whole))) return careful_leaf(op, x, count);
  const bool has_last = rest > 0 && lane == whole % kLanes;
  const Granule absent = absent_granule(op);
  R residues(op);
  Granule last = absent;
  load_if(has_last, from + whole, last);
#pragma unroll 1
  for (int b = 0; b * kLanes < whole; b += rows::kGranules) {
    Granule g[rows::kGranules];
#pragma unroll
    for (int j = 0; j < rows::kGranules; ++j) {
      g[j] = absent;
      load_if(lane + (b + j) * kLanes < whole, from + lane + (b + j) * kLanes, g[j]);
    }
    if (b == 0 && lane == 0 && before > 0) mask<E>(g[0], before, kPer, absent);
#pragma unroll
    for (int j = 0; j < rows::kGranules; ++j) {
      if (j == rows::kGranules / 2 && (b + j) * kLanes >= whole) break;
      residues.take(op, g[j], j);  // 8 granules on residues come again
    }
  }
  if (has_last) {
    mask<E>(last, whole == 0 ? before : 0, rest, absent);
#pragma unroll
    for (int r = 0; r < R::kRuns; ++r) {  // one of them takes it, without a choice between their addresses
      Granule some;
#pragma unroll
      for (int i = 0; i < 4; ++i) some.item[i] = whole / kLanes % R::kRuns == r ? last.item[i] : absent.item[i];
      residues.take(op, some, r);
    }
  }
  residues.move_down_by(before);
  return residues.value(op);
}

// The same of products of floats by powers, where that is rare.
template <class Op>
__device__ TR_RARELY_CALLED typename Op::Acc leaf_by_powers(const Op& op, const RowsCall& call,
                                                            const typename Op::Element* x, int count) {
  return leaf_value(op, call, x, count);
}
template <class Op> __device__ __forceinline__ typename Op::Acc any_leaf(const Op& op, const RowsCall& call,
                                                                         const typename Op::Element* x, int count) {
  if constexpr (kMultipliesFloats<Op>) {
    const PlainProduct<Op> plain;
    const auto product = leaf_value(plain, call, x, count);
    return ballot(!plain.holds(product)) ? leaf_by_powers(op, call, x, count) : normal_power(product);
  } else {
    return leaf_value(op, call, x, count);
  }
}

// ---- where it does not ------------------------------------------------------------------------------------------------

// Of the row that starts at x the units from `first` to `end`, each `step`-th, by a warp. Granules that reach out of
// the tensor are taken element by element, one a lane, each in a granule of its own.
template <class Op>
__device__ __forceinline__ typename Op::Acc units_value(const Op& op, const RowsCall& call,
                                                        const typename Op::Element* x, int first, int end, int step) {
  using E = typename Op::Element;
  using P = Part<Op, int64_t>;
  constexpr int kPer = kPerGranule<E>, kUnit = rows::kGranules * kLanes;
  const int before = elements_before(x), lane = lane_id();
  const Granule* const from = granule_of(x);
  const int whole = int((before + call.length) / kPer), rest = int((before + call.length) % kPer);
  const int last_unit = whole / kUnit;
  const bool has_last = rest > 0 && last_unit >= first && last_unit < end && (last_unit - first) % step == 0;
  const bool first_out = first == 0 && whole > 0 && !is_inside(call, from);
  const bool last_out = has_last && !is_inside(call, from + whole);
  const Granule absent = absent_granule(op);
  auto position_of = [&](int number) { return int64_t(number) * kPer - before; };
  P part(op, position_of(first * kUnit + lane));
  auto take_item = [&](int number, int begin, int end) {
    if (lane < begin || lane >= end) return;
    Granule g = absent;
    const E x = reinterpret_cast<const E*>(from + number)[lane];
    memcpy(&g, &x, sizeof x);
    g = kHasAbsent<Op> ? g : fill_of<Op>(g, 0, absent);
    part.take(op, g, position_of(number) + lane);
  };
  if (first_out) take_item(0, before, kPer);
  Granule last = absent;
  const bool loads_last = has_last && !last_out && lane == whole % kLanes;
  load_if(loads_last, from + whole, last);
#pragma unroll 1
  for (int u = first; u < end; u += step) {
    const int number = u * kUnit + lane;
    Granule g[rows::kGranules];
    auto there = [&](int j) { return number + j * kLanes < whole && !(j == 0 && number == 0 && first_out); };
#pragma unroll
    for (int j = 0; j < rows::kGranules; ++j) {
      g[j] = absent;
      load_if(there(j), from + number + j * kLanes, g[j]);
    }
    if (number == 0 && before > 0) mask<E>(g[0], before, kPer, fill_of<Op>(g[0], before, absent));
#pragma unroll
    for (int j = 0; j < rows::kGranules; ++j) {
      if (j % 2 == 0 && u * kUnit + j * kLanes >= whole) break;
      if (kHasAbsent<Op> || there(j)) part.take(op, g[j], position_of(number + j * kLanes));
    }
  }
  if (loads_last) {
    const int own = whole == 0 ? before : 0;
    mask<E>(last, own, rest, fill_of<Op>(last, own, absent));
    part.take(op, last, position_of(whole));
  }
  if (last_out) take_item(whole, whole == 0 ? before : 0, rest);
  auto value = part.value(op);
  for (int d = 1; d < kLanes; d *= 2) value = P::join(op, value, shuffle(value, lane ^ d));
  if constexpr (Op::kIndexed) return {value.key, value.at};
  else return value;
}

// ---- the three ways ----------------------------------------------------------------------------------------------------

// What a warp makes of kRows rows a group of `lanes` lanes, with kEach granules a lane of each, of the rows'
// `granules`, after which there are absent ones: a lane gets the values
// of the group's rows number k * min(lanes, 8) + lane % 8, where kEach is 1; else that of row lane / kRuns % kRows.
template <class Op, int kRows, int kEach> struct SeveralRows {
  using E = typename Op::Element;
  static constexpr int kPer = kPerGranule<E>;
  static constexpr int kRuns = Op::kAnyOrder             ? 1
                               : kEach * kPer < kPerLane ? kEach
                               : kPer < kPerLane         ? kPerLane / kPer
                                                         : 1;

  __device__ static __forceinline__ auto values(const Op& op, const Granule (&g)[kRows][kEach], int lanes,
                                                int granules) {
    const int t = lane_id() % lanes;
    if constexpr (Op::kAnyOrder) {
      using P = Part<Op, int32_t>;
      Packed<typename P::Value, kRows> v;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        auto there = [&](int c) { return kHasAbsent<Op> || t + c * lanes < granules; };
        P part = there(0) ? P(op, g[r][0], t * kPer) : P(op, t * kPer);
#pragma unroll
        for (int c = 1; c < kEach; ++c)
          if (there(c)) part.take(op, g[r][c], (t + c * lanes) * kPer);
        v.item[r] = part.value(op);
      }
      return shared_out(v, lanes, [&](const auto& a, const auto& b) { return P::join(op, a, b); });
    } else {
      using R = Residues<Op, kEach>;
      static_assert(R::kRuns == kRuns, "a tree for each");
      Packed<typename Op::Acc, kRows * kRuns> v;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        R residues(op);
#pragma unroll
        for (int c = 0; c < kEach; ++c) residues.take(op, g[r][c], c);
        residues.tree(op, v.item + r * kRuns);
      }
      return shared_out(v, lanes, [&](const auto& a, const auto& b) { return op.combine(a, b); });
    }
  }

 private:
  template <class Values, class Join>
  __device__ static __forceinline__ Values shared_out(Values& v, int lanes, Join join) {
    const int lane = lane_id();
    if constexpr (kEach == 1) {
      static_assert(kRuns == 1 && kRows == 8, "a value a row");
      transposing_levels(v.item, lanes, join);
      for (int d = 8; d < lanes; d *= 2) v.item[0] = join(v.item[0], shuffle(v.item[0], lane ^ d));
    } else {
      v.item[0] = transposing_tree(v.item, lanes, join);
#pragma unroll
      for (int d = 1; d < kRuns; d *= 2) v.item[0] = join(v.item[0], shuffle(v.item[0], lane ^ d));
    }
    return v;
  }
};

template <int kRows, class Op>
__device__ TR_RARELY_CALLED void several_rows_by_powers(const Op& op, const RowsCall& call, int lanes);

// kRows rows a group of `lanes` lanes, of at most kEach granules a lane, all of which are the rows' own.
template <int kRows, bool kPlain, class Op> __device__ __forceinline__ void several_rows(const Op& op,
                                                                                         const RowsCall& call,
                                                                                         int lanes) {
  using E = typename Op::Element;
  constexpr int kPer = kPerGranule<E>, kEach = rows::kGranules / kRows, kRuns = SeveralRows<Op, kRows, kEach>::kRuns;
  const int t = lane_id() % lanes, groups = kLanes / lanes, granules = int(call.length) / kPer;
  const int64_t warp = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes;
  const int64_t base = warp * (kRows * groups) + lane_id() / lanes;  // rows base, base + groups, ...
  const int left = int(call.rows - base < kRows * groups ? call.rows - base : kRows * groups);
  const int64_t pitch = call.pitch * int64_t(sizeof(E)), step = groups * pitch;
  const char* const x = static_cast<const char*>(call.in) + base * pitch;
  const Granule fill = absent_granule(op);
  Granule g[kRows][kEach];
#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int c = 0; c < kEach; ++c) {
      g[r][c] = fill;
      load_if(r * groups < left && t + c * lanes < granules,
              reinterpret_cast<const Granule*>(x + r * step) + t + c * lanes, g[r][c]);
    }
  auto write = [&](int r, const auto& value) {
    if (r * groups >= left) return;
    const int64_t out = even_row_out(call, base + r * groups);
    if constexpr (Op::kIndexed)
      finish_plain_row(op, call.out, reinterpret_cast<const E*>(x + r * step), out, {value.key, value.at});
    else finish_plain_row(op, call.out, nullptr, out, value);
  };
  auto write_all = [&](const auto& values) {
    if constexpr (kEach == 1) {
      const int apart = lanes < 8 ? lanes : 8;
#pragma unroll
      for (int k = 0; k < kRows; ++k)
        if (k * apart < kRows && t < 8) write(k * apart + t, values.item[k]);
    } else {
      if (t < kRows * kRuns && t % kRuns == 0) write(t / kRuns, values.item[0]);
    }
  };
  if constexpr (kPlain) {
    const PlainProduct<Op> plain;
    auto products = SeveralRows<PlainProduct<Op>, kRows, kEach>::values(plain, g, lanes, granules);
    bool holds = true;
#pragma unroll
    for (int k = 0; k < kRows; ++k)
      if (k == 0 || (kEach == 1 && k * lanes < kRows)) holds &= plain.holds(products.item[k]);
    if (ballot(!holds)) return several_rows_by_powers<kRows>(op, call, lanes);
    Packed<typename Op::Acc, kRows> values;
#pragma unroll
    for (int k = 0; k < kRows; ++k) values.item[k] = normal_power(products.item[k]);
    write_all(values);
  } else {
    write_all(SeveralRows<Op, kRows, kEach>::values(op, g, lanes, granules));
  }
}
// The same of products of floats by powers, where that is rare.
template <int kRows, class Op>
__device__ TR_RARELY_CALLED void several_rows_by_powers(const Op& op, const RowsCall& call, int lanes) {
  several_rows<kRows, false>(op, call, lanes);
}

// A row a warp, unit by unit; or a run of `units` units of a row a block, which its warps take in turns.
template <class Op> __device__ __forceinline__ void one_row(const Op& op, const RowsCall& call, const RowsShape& shape,
                                                            typename Op::Acc* partials, uint32_t* tickets) {
  using Acc = typename Op::Acc;
  using E = typename Op::Element;
  __shared__ Acc value[rows::kMostUnits];
  __shared__ bool last;
  const int lane = lane_id(), warp = int(threadIdx.x) / kLanes, warps = int(blockDim.x) / kLanes;
  const bool alone = shape.rows == 1;  // a warp with its row
  const int64_t row =
      alone ? int64_t(blockIdx.x) * warps + warp : int64_t(uint32_t(blockIdx.x) / uint32_t(shape.splits));
  if (row >= call.rows) return;
  const int first = alone ? 0 : int(int64_t(blockIdx.x) - row * shape.splits) * shape.units;
  const RowStart start = row_start(call.outer, row);
  const E* const x = static_cast<const E*>(call.in) + start.in;
  const int step = alone ? 1 : warps, begin = alone ? 0 : first + warp, end = first + shape.units;
  int values = warps;  // in shared memory
  if constexpr (Op::kAnyOrder) {
    const Acc v = units_value(op, call, x, begin, end, step);
    if (alone) {
      if (lane == 0) finish_plain_row(op, call.out, x, start.out, v);
      return;
    }
    if (lane == 0) value[warp] = v;
  } else {
    Acc kept = op.absent();  // of a warp alone lane u has that of leaf u
    values = shape.units;
#pragma unroll 1
    for (int u = begin; u < end; u += step) {
      const int64_t rest = call.length - int64_t(u) * kLeaf;
      Acc leaf = op.absent();
      if (rest > 0) leaf = any_leaf(op, call, x + int64_t(u) * kLeaf, int(rest < kLeaf ? rest : kLeaf));
      if (alone) kept = chosen_value(lane == u, leaf, kept);
      else if (lane == 0) value[u - first] = leaf;
    }
    if (alone) {
      kept = warp_tree(op, kept, kLanes);
      if (lane == 0) finish_plain_row(op, call.out, x, start.out, kept);
      return;
    }
  }
  __syncthreads();
  Acc acc = op.absent();
  if (warp == 0) acc = warp_tree(op, lane < values ? value[lane] : op.absent(), kLanes);
  if (shape.splits > 1) {
    if (threadIdx.x == 0) partials[blockIdx.x] = acc;
    if (!last_block(tickets + row, shape.splits, last)) return;
    acc = block_fold(op, partials + row * shape.splits, shape.splits, value);
  }
  if (threadIdx.x == 0) finish_plain_row(op, call.out, x, start.out, acc);
}

// Blocks of a multiprocessor that there are registers for.
template <class Op> constexpr int kRowBlocks = kTwoResults<Op> && !Op::kAnyOrder ? 2 : 3;

template <class Op>
__global__ void TR_BLOCKS_BOUND(rows::kThreads, kRowBlocks<Op>)
    reduce_rows(TR_GRID_CONSTANT RowsCall call, TR_GRID_CONSTANT RowsShape shape, typename Op::Acc* partials,
                uint32_t* tickets) {
  const Op op{call.options};
  if (shape.rows <= 1) return one_row(op, call, shape, partials, tickets);
  constexpr bool kPlain = kMultipliesFloats<Op>;
  if (shape.rows == 8) return several_rows<8, kPlain>(op, call, shape.lanes);
  if (shape.rows == 4) return several_rows<4, kPlain>(op, call, kLanes);
  several_rows<2, kPlain>(op, call, kLanes);
}

}  // namespace torchreduce::gpu
