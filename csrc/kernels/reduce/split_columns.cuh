// The units of a split column meet in the launch that made them: each leaves its value, 64 units a group, and the last
// block of a group, and then of all groups, combines what the others left, in the canonical tree.
#pragma once
#include "column_lanes.cuh"
#include "finish.cuh"

namespace torchreduce::gpu {

template <class Op> __device__ __forceinline__ typename Op::Acc* partials_of(const ColumnCall& q, int64_t slot,
                                                                             int columns) {
  return static_cast<typename Op::Acc*>(q.partials) + slot * (q.units + unit_groups(q.units)) * columns;
}
// What a unit leaves of column c of the `columns` ones of slot number `slot`.
template <class Op> __device__ __forceinline__ void put_partial(const ColumnCall& q, int64_t slot, int unit,
                                                                int columns, int c, const typename Op::Acc& acc) {
  partials_of<Op>(q, slot, columns)[int64_t(unit) * columns + c] = acc;
}

// By a block that has put its unit's partials: the last one of all calls finish(column, Acc).
// `shared` has the two buffers of fold_rows, fold_buffer(q.units) and fold_buffer(fold_buffer) rows.
template <class Op, class Finish>
__device__ void combine_units(const ColumnCall& q, int64_t slot, int unit, int columns, void* shared, Finish finish) {
  using Acc = typename Op::Acc;
  const int groups = unit_groups(q.units), group = unit / kUnitGroup;
  const int members = q.units - group * kUnitGroup < kUnitGroup ? q.units - group * kUnitGroup : kUnitGroup;
  Acc* const partials = partials_of<Op>(q, slot, columns);
  Acc* const of_groups = partials + int64_t(q.units) * columns;
  __shared__ bool last;
  uint32_t* const tickets = q.tickets + slot * (groups == 1 ? 1 : groups + 1);
  Acc* const a = static_cast<Acc*>(shared);
  Acc* const b = a + fold_buffer(q.units) * columns;
  auto fold = [&](const Acc* from, int rows) {
    return fold_rows<Op, sizeof(Acc) <= 4 ? 32 : 8>(rows, columns, a, b, Op::absent(),
                                                    [&](int r, int c) { return from[int64_t(r) * columns + c]; });
  };
  if (!last_block(tickets + group, members, last)) return;
  const Acc* all = fold(partials + int64_t(group) * kUnitGroup * columns, members);
  if (groups > 1) {
    for (int c = int(threadIdx.x); c < columns; c += kThreads) of_groups[int64_t(group) * columns + c] = all[c];
    if (!last_block(tickets + groups, groups, last)) return;
    all = fold(of_groups, groups);
  }
  for (int c = int(threadIdx.x); c < columns; c += kThreads) finish(c, all[c]);
}

}  // namespace torchreduce::gpu
