// Reductions of rows of neighbouring elements, which may start anywhere.
//
// Serves: types that are read as they are, rows of any length, of up to four kept dims (rows.h).
// A lane loads granules: 16 aligned bytes, of which those at a row's ends may hold other elements, which are masked. So
// a row that starts `before` elements into its first granule is read like any other; but its elements then lie `before`
// places off the residues that lanes stand for, and their accumulators are moved there before they are combined.
// Shared memory: an accumulator for each of the units of a block's run.
// A warp takes 8, 4 or 2 short rows at once, with 1, 2 or 4 granules a lane of each, by groups of fewer lanes if they
// are shorter still; or one row, unit by unit; or some units of the run of a row that its block has. A unit is a leaf
// where order shows in the bits, else 256 granules. The last block of a row that is split combines the runs' values.
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
  // The same from the first element of a row or leaf on, where granules begin kBy elements earlier.
  // By groups of `lanes` lanes, of which this is number `lane`.
  template <int kBy> __device__ __forceinline__ void move_down(const Op& op, bool moves, int lane, int lanes) {
    const int after = lane_id() - lane + (lane + 1) % lanes;
    Acc moved[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const int from = k % kPer + kBy;
      if (from < kPer) {
        moved[k] = acc[k + kBy];
      } else {
        const Acc next = shuffle(acc[k - k % kPer + from - kPer], after);
        // After the last lane comes the first one of the next run; after the last run the first, if residues come
        // again.
        Acc past = op.absent();
        if (kRuns == 1 && kCount == kPerLane) past = next;
        else if (kCount == kPerLane || k / kPer + 1 < kRuns)
          past = shuffle(acc[(k / kPer + 1) % kRuns * kPer + from - kPer], after);
        moved[k] = lane == lanes - 1 ? past : next;
      }
    }
#pragma unroll
    for (int k = 0; k < kCount; ++k) acc[k] = moves ? moved[k] : acc[k];
  }
  // By a warp, of one row.
  __device__ __forceinline__ void move_down_by(const Op& op, int before) {
    if constexpr (kPer > 4)
      if (before & 4) move_down<4>(op, true, lane_id(), kLanes);
    if constexpr (kPer > 2)
      if (before & 2) move_down<2>(op, true, lane_id(), kLanes);
    if (before & 1) move_down<1>(op, true, lane_id(), kLanes);
  }
  // By groups of lanes that may have rows of different kinds.
  __device__ __forceinline__ void move_groups_down_by(const Op& op, int before, int lane, int lanes) {
    if constexpr (kPer > 4) move_down<4>(op, (before & 4) != 0, lane, lanes);
    if constexpr (kPer > 2) move_down<2>(op, (before & 2) != 0, lane, lanes);
    move_down<1>(op, (before & 1) != 0, lane, lanes);
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
  using Acc = typename Op::Acc;
  using E = typename Op::Element;
  using R = Residues<Op, rows::kGranules>;
  constexpr int kPer = kPerGranule<E>, kEach = kLeaf / kPer / kLanes;
  const int before = elements_before(x), lane = lane_id();
  const Granule* const from = granule_of(x);
  const int whole = (before + count) / kPer, rest = (before + count) % kPer;  // granules; elements of the last one
  if (!is_inside(call, from) || (rest > 0 && !is_inside(call, from + whole))) return careful_leaf(op, x, count);
  const bool has_last = rest > 0 && lane == whole % kLanes;
  const Granule absent = absent_granule(op);
  R residues(op);
  Granule last = absent;
  load_once(has_last, from + whole, last);
#pragma unroll 1
  for (int b = 0; b < kEach; b += rows::kGranules) {
    Granule g[rows::kGranules];
#pragma unroll
    for (int j = 0; j < rows::kGranules; ++j) {
      g[j] = absent;
      load_once(lane + (b + j) * kLanes < whole, from + lane + (b + j) * kLanes, g[j]);
    }
    if (b == 0 && lane == 0 && before > 0) mask<E>(g[0], before, kPer, absent);
#pragma unroll
    for (int j = 0; j < rows::kGranules; ++j) residues.take(op, g[j], j);  // 8 granules on residues come again
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
  residues.move_down_by(op, before);
  Acc runs[R::kRuns];
  residues.tree(op, runs);
  auto join = [&](const Acc& a, const Acc& b) { return op.combine(a, b); };
  Acc value = transposing_tree(runs, kLanes, join);
#pragma unroll
  for (int d = 1; d < R::kRuns; d *= 2) value = join(value, shuffle(value, lane ^ d));
  return value;
}

// ---- where it does not ------------------------------------------------------------------------------------------------

// Of the row that starts at x the units from `first` to `end`, each `step`-th, by a warp. Granules that reach out of
// the tensor are taken element by element, one a lane, each in a granule of its own.
template <class Op>
__device__ __forceinline__ typename Part<Op>::Value units_value(const Op& op, const RowsCall& call,
                                                                const typename Op::Element* x, int first, int end,
                                                                int step) {
  using E = typename Op::Element;
  using P = Part<Op>;
  constexpr int kPer = kPerGranule<E>, kUnit = rows::kGranules * kLanes;
  const int before = elements_before(x), lane = lane_id();
  const Granule* const from = granule_of(x);
  const int whole = int((before + call.length) / kPer), rest = int((before + call.length) % kPer);
  const int last_unit = whole / kUnit;
  const bool has_last = rest > 0 && last_unit >= first && last_unit < end && (last_unit - first) % step == 0;
  const bool first_out = first == 0 && whole > 0 && !is_inside(call, from);
  const bool last_out = has_last && !is_inside(call, from + whole);
  const Granule absent = absent_granule(op);
  P part(op, first * kUnit + lane);
  auto take_item = [&](int number, int begin, int end) {
    if (lane < begin || lane >= end) return;
    Granule g = absent;
    const E x = reinterpret_cast<const E*>(from + number)[lane];
    memcpy(&g, &x, sizeof x);
    part.take(op, g, number);
  };
  if (first_out) take_item(0, before, kPer);
  Granule last = absent;
  const bool loads_last = has_last && !last_out && lane == whole % kLanes;
  load_once(loads_last, from + whole, last);
#pragma unroll 1
  for (int u = first; u < end; u += step) {
    const int number = u * kUnit + lane;
    Granule g[rows::kGranules];
#pragma unroll
    for (int j = 0; j < rows::kGranules; ++j) {
      g[j] = absent;
      load_once(number + j * kLanes < whole && !(j == 0 && number == 0 && first_out), from + number + j * kLanes, g[j]);
    }
    if (number == 0 && before > 0) mask<E>(g[0], before, kPer, absent);
#pragma unroll
    for (int j = 0; j < rows::kGranules; ++j) part.take(op, g[j], number + j * kLanes);
  }
  if (loads_last) {
    mask<E>(last, whole == 0 ? before : 0, rest, absent);
    part.take(op, last, whole);
  }
  if (last_out) take_item(whole, whole == 0 ? before : 0, rest);
  typename P::Value value[1] = {part.value()};
  return transposing_tree(value, kLanes, [&](const auto& a, const auto& b) { return P::join(op, a, b); });
}

// ---- results -----------------------------------------------------------------------------------------------------------

// Writes the result of the row that starts at x; of an indexed op, `value` says in which granule it is.
template <class Op, class Value>
__device__ __forceinline__ void finish_plain_row(const Op& op, const RowsCall& call, const typename Op::Element* x,
                                                 int64_t out, const Value& value) {
  if constexpr (Op::kIndexed) {
    using E = typename Op::Element;
    using S = Search<Op>;
    const int64_t first = int64_t(value.at) * kPerGranule<E> - elements_before(x);
    const Granule* const at = granule_of(x) + value.at;
    const bool inside = is_inside(call, at);
    E items[kPerGranule<E>], found{};
    if (inside) elements_of(load_wide(at), items);
    typename Op::Acc acc{value.key, 0};
    if (inside) {
#pragma unroll
      for (int i = kPerGranule<E> - 1; i >= 0; --i)
        if (first + i >= 0 && first + i < call.length && S::key(S::mark(op, items[i])) == value.key) {
          acc.index = first + i;
          found = items[i];
        }
    } else {
#pragma unroll 1
      for (int i = kPerGranule<E> - 1; i >= 0; --i)
        if (first + i >= 0 && first + i < call.length && S::key(S::mark(op, x[first + i])) == value.key) {
          acc.index = first + i;
          found = x[first + i];
        }
    }
    op.finish(acc, call.out, out, found);
  } else {
    op.finish(value, call.out, out);
  }
}
// Between what a warp finds and an accumulator that other blocks see.
template <class Op, class Value> __device__ __forceinline__ typename Op::Acc as_partial(const Value& value) {
  if constexpr (Op::kIndexed) return {value.key, value.at};
  else return value;
}
template <class Op> __device__ __forceinline__ auto as_value(const typename Op::Acc& partial) {
  if constexpr (Op::kIndexed) return typename Part<Op>::Value{partial.key, int32_t(partial.index)};
  else return partial;
}

// ---- the three ways ----------------------------------------------------------------------------------------------------

// kRows rows a group of `lanes` lanes, of at most kEach granules a lane; whole: rows start with granules. Fewer than 8
// lanes only where there is one kept dim at most.
// False, and nothing done, where one of the warp's rows shares a granule with what is not the tensor.
template <int kRows, class Op> __device__ __forceinline__ bool several_rows(const Op& op, const RowsCall& call,
                                                                            int lanes, bool whole) {
  using E = typename Op::Element;
  constexpr int kPer = kPerGranule<E>, kEach = rows::kGranules / kRows;
  constexpr int kRuns = Op::kAnyOrder ? 1 : kEach * kPer < kPerLane ? kEach : kPer < kPerLane ? kPerLane / kPer : 1;
  const E* const in = static_cast<const E*>(call.in);
  const int lane = lane_id(), t = lane % lanes, groups = kLanes / lanes, length = int(call.length);
  const int64_t warp = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes;
  const int64_t base = warp * (kRows * groups) + lane / lanes;  // rows base, base + groups, ...
  const Granule fill = absent_granule(op);
  const bool full = whole && length % kPer == 0;  // granules are rows' own
  // Of the row that this lane will write; with several dims also for the other lanes.
  const bool plain = call.outer.dims <= 1;
  const int written = t / kRuns % kRows;
  RowStart own{0, 0};
  const int64_t own_row = base + written * groups;
  if (!plain && own_row < call.rows) own = row_start(call.outer, own_row);
  if (!full) {
    bool inside = true;
#pragma unroll 1
    for (int r = written; r < kRows; r += lanes < kRows ? lanes : kRows) {  // fewer lanes than rows see to several
      const int64_t row = base + r * groups;
      const E* const x = in + (plain ? row * call.outer.in[0] : own.in);
      inside &= row >= call.rows || (is_inside(call, granule_of(x)) && is_inside(call, granule_of(x + length - 1)));
    }
    if (ballot(!inside)) return false;
  }
  auto row_of = [&](int r) {
    if (plain) return in + (base + r * groups < call.rows ? (base + r * groups) * call.outer.in[0] : 0);
    return in + shuffle(own.in, lane - t + r * kRuns);
  };
  Granule g[kRows][kEach];
  int before[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const E* const x = row_of(r);
    before[r] = elements_before(x);
#pragma unroll
    for (int c = 0; c < kEach; ++c) {
      g[r][c] = fill;
      load_once(base + r * groups < call.rows && (t + c * lanes) * kPer < length + before[r],
                granule_of(x) + t + c * lanes, g[r][c]);
    }
  }
  auto each_granule = [&](int r, auto take) {
#pragma unroll
    for (int c = 0; c < kEach; ++c) {
      const int first = (t + c * lanes) * kPer - before[r];
      if (kEach > 1 && !full) {  // one end at a time: rows have mostly more granules than lanes
        if (c == 0 && first < 0) mask<E>(g[r][c], -first, kPer, fill);
        if ((c > 0 || length < kLanes * kPer) && first + kPer > length)
          mask<E>(g[r][c], 0, length > first ? length - first : 0, fill);
      } else if (!full && (first < 0 || first + kPer > length)) {
        mask<E>(g[r][c], first < 0 ? -first : 0, length > first ? length - first : 0, fill);
      }
      take(c);
    }
  };
  auto write = [&](int r, const auto& value) {
    const int64_t row = base + r * groups;
    if (row >= call.rows) return;
    if (plain) own = {row * call.outer.in[0], row * call.outer.out[0]};
    finish_plain_row(op, call, in + own.in, own.out, value);
  };
  auto share = [&](auto& values, auto join) {  // kRuns values a row, the last to be combined
    if constexpr (kRows == 8)
      if (lanes < 8) {  // of one run each
#pragma unroll
        for (int r = 0; r < kRows; ++r)
          for (int d = 1; d < lanes; d *= 2) values[r] = join(values[r], shuffle(values[r], lane ^ d));
#pragma unroll
        for (int r = 0; r < kRows; ++r)
          if (t == 0) write(r, values[r]);
        return;
      }
    auto value = transposing_tree(values, lanes, join);
#pragma unroll
    for (int d = 1; d < kRuns; d *= 2) value = join(value, shuffle(value, lane ^ d));
    if (t < kRows * kRuns && t % kRuns == 0) write(written, value);
  };
  if constexpr (Op::kAnyOrder) {
    using P = Part<Op>;
    typename P::Value values[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      P part(op, t);
      each_granule(r, [&](int c) { part.take(op, g[r][c], t + c * lanes); });
      values[r] = part.value();
    }
    share(values, [&](const auto& a, const auto& b) { return P::join(op, a, b); });
  } else {
    using R = Residues<Op, kEach>;
    static_assert(R::kRuns == kRuns, "a tree for each");
    typename Op::Acc values[kRows * kRuns];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      R residues(op);
      each_granule(r, [&](int c) { residues.take(op, g[r][c], c); });
      if (lanes == kLanes) residues.move_down_by(op, before[r]);
      else if (!whole) residues.move_groups_down_by(op, before[r], t, lanes);
      residues.tree(op, values + r * kRuns);
    }
    share(values, [&](const auto& a, const auto& b) { return op.combine(a, b); });
  }
  return true;
}

// `count` short rows a warp, one after the other, with nothing read around them.
template <class Op> __device__ __forceinline__ void careful_rows(const Op& op, const RowsCall& call, int count) {
  using E = typename Op::Element;
  const int64_t first = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes * count;
#pragma unroll 1
  for (int64_t row = first; row < first + count && row < call.rows; ++row) {
    const RowStart start = row_start(call.outer, row);
    const E* const x = static_cast<const E*>(call.in) + start.in;
    const auto acc = careful_leaf(op, x, int(call.length));
    if (lane_id() > 0) continue;
    if constexpr (Op::kIndexed) op.finish(acc, call.out, start.out, x[acc.index]);
    else op.finish(acc, call.out, start.out);
  }
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
    const auto v = units_value(op, call, x, begin, end, step);
    if (alone) {
      if (lane == 0) finish_plain_row(op, call, x, start.out, v);
      return;
    }
    if (lane == 0) value[warp] = as_partial<Op>(v);
  } else {
    auto combine = [&](Acc l, Acc r) { return op.combine(l, r); };
    TreeStack<Acc, 5> tree;  // of rows::kWalked leaves
    values = shape.units;
#pragma unroll 1
    for (int u = begin; u < end; u += step) {
      const int64_t rest = call.length - int64_t(u) * kLeaf;
      Acc leaf = op.absent();
      if (rest > 0) leaf = leaf_value(op, call, x + int64_t(u) * kLeaf, int(rest < kLeaf ? rest : kLeaf));
      if (alone) tree.push(leaf, combine);
      else if (lane == 0) value[u - first] = leaf;
    }
    if (alone) {
      if (lane == 0) finish_plain_row(op, call, x, start.out, tree.total(op.absent(), combine));
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
  if (threadIdx.x == 0) finish_plain_row(op, call, x, start.out, as_value<Op>(acc));
}

template <class Op>
__global__ void TR_BLOCKS_BOUND(rows::kThreads, 3)
    reduce_rows(TR_GRID_CONSTANT RowsCall call, TR_GRID_CONSTANT RowsShape shape, typename Op::Acc* partials,
                uint32_t* tickets) {
  const Op op{call.options};
  if (shape.rows <= 1) return one_row(op, call, shape, partials, tickets);
  const bool done = shape.rows == 8   ? several_rows<8>(op, call, shape.lanes, shape.whole)
                    : shape.rows == 4 ? several_rows<4>(op, call, kLanes, shape.whole)
                                      : several_rows<2>(op, call, kLanes, shape.whole);
  if (!done) careful_rows(op, call, shape.rows * (kLanes / shape.lanes));
}

}  // namespace torchreduce::gpu
