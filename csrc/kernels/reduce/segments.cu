// Launches of reductions by segments, and by an index.
#include "kernels/common/gpu.h"
#include "lone_segments.cuh"
#include "packed_segments.cuh"
#include "segment_columns.cuh"
#include "segment_index.cuh"
#include "segment_rows.cuh"

namespace torchreduce::gpu {

static const char* last_error() {
  const gpuError_t error = gpuGetLastError();
  return error == gpuSuccess ? nullptr : gpuGetErrorString(error);
}

// ---- sums and extremes of floats ----------------------------------------------------------------------------------------

template <class Op>
static void launch_lone(const SegmentReduction& call, const SegmentPlan& plan, const segments::Work& work,
                        Queue queue) {
  const auto enqueue_kernel = [&](auto kernel) {
    enqueue(kernel, plan.blocks, segments::kThreads, 0, queue, call, plan.each, plan.most, work);
  };
  switch (plan.room) {
    case 32: return enqueue_kernel(reduce_lone_segments<Op, 8, 4>);
    case 64: return enqueue_kernel(reduce_lone_segments<Op, 8, 8>);
    case 128: return enqueue_kernel(reduce_lone_segments<Op, 16, 8>);
    default: enqueue_kernel(reduce_lone_segments<Op, 32, 8>);
  }
}
template <class Op, int V>
static void launch_columns(const SegmentReduction& call, const SegmentPlan& plan, const segments::Work& work,
                           Queue queue) {
  constexpr int kThreads = segments::kThreads;
  if (plan.way == SegmentWay::Lone) launch_lone<Op>(call, plan, work, queue);
  else if (plan.way == SegmentWay::Packed)
    enqueue(reduce_packed_segments<Op>, plan.blocks, kThreads, 0, queue, call, plan.each, plan.team, work);
  else enqueue(reduce_short_segments<Op, V>, plan.blocks, kThreads, 0, queue, call, plan.team, plan.across, work);
  if (!plan.leaf_blocks) return;
  if (plan.leaf_team)
    enqueue(reduce_segment_leaves<Op, V>, plan.leaf_blocks, kThreads, 0, queue, call, plan.leaf_team, work);
  else enqueue(reduce_narrow_leaves<Op, V>, plan.leaf_blocks, kThreads, 0, queue, call, work);
  const int packed = plan.way == SegmentWay::Packed ? plan.each : 0;
  enqueue(fold_segment_leaves<Finishing<Op>>, plan.fold_blocks, kThreads, 0, queue, call, work, packed, plan.most);
}
template <class Op>
static void launch_columns(const SegmentReduction& call, const SegmentPlan& plan, const segments::Work& work,
                           Queue queue) {
  if (plan.leaf_blocks) (void)gpuMemsetAsync(work.counts, 0, 4 * sizeof(*work.counts), queue.stream);
  if constexpr (sizeof(typename Op::Element) <= 4)
    if (plan.columns == segments::kColumns) return launch_columns<Op, segments::kColumns>(call, plan, work, queue);
  launch_columns<Op, 1>(call, plan, work, queue);
}
template <template <class> class Op>
static const char* launch_floats(const SegmentReduction& call, const SegmentPlan& plan, void* workspace, Queue queue) {
  segments::Work work;
  segments::lay_out(call, workspace, work);
  switch (call.in.dtype) {
    case Dtype::F32: launch_columns<Op<float>>(call, plan, work, queue); break;
    case Dtype::BF16: launch_columns<Op<BF16>>(call, plan, work, queue); break;
    case Dtype::F64: launch_columns<Op<double>>(call, plan, work, queue); break;
#if !defined(TR_FEW_TYPES)
    case Dtype::F16: launch_columns<Op<F16>>(call, plan, work, queue); break;
#endif
    default: return "unknown dtype";
  }
  return last_error();
}

// ---- any reduction ------------------------------------------------------------------------------------------------------

template <class Op> static void launch_any(const SegmentReduction& call, const SegmentPlan& plan, Queue queue) {
  enqueue(reduce_any_segments<Op>, plan.blocks, segments::kThreads, 0, queue, call, plan.team, plan.together);
}
template <template <class> class Op>
static void launch_of_values(const SegmentReduction& call, const SegmentPlan& plan, Queue queue) {
  switch (call.in.accumulator) {
    case Dtype::F64: return launch_any<Op<double>>(call, plan, queue);
    case Dtype::I64: return launch_any<Op<int64_t>>(call, plan, queue);
    default: return launch_any<Op<float>>(call, plan, queue);
  }
}
static const char* launch(const SegmentReduction& call, const SegmentPlan& plan, void* workspace, Queue queue) {
  if (plan.way != SegmentWay::Any)
    return call.op == Reduction::Sum ? launch_floats<Sum>(call, plan, workspace, queue)
                                     : launch_floats<Extreme>(call, plan, workspace, queue);
  switch (call.op) {
    case Reduction::Sum: launch_of_values<Sum>(call, plan, queue); break;
    case Reduction::Product: launch_of_values<Product>(call, plan, queue); break;
    case Reduction::Extreme: launch_any<Extreme<int64_t>>(call, plan, queue); break;
    default: launch_any<ArgExtreme<int64_t>>(call, plan, queue);
  }
  return last_error();
}
const char* reduce_segments(const PlannedSegments& call, void* workspace, void* stream) {
  return launch(call, call.plan, workspace, Queue{static_cast<gpuStream_t>(stream)});
}

// ---- by an index --------------------------------------------------------------------------------------------------------

static void launch_keys(const KeyCall& call, Queue queue) {
  if (call.places > 0) enqueue(number_segment_places, plan(call, {}).blocks, segments::kThreads, 0, queue, call);
}
static void launch_offsets(const OffsetsCall& call, Queue queue) {
  enqueue(find_segments, plan(call, {}).blocks, segments::kThreads, 0, queue, call);
}
const char* segment_keys(const PlannedKeys& call, void*, void* stream) {
  launch_keys(call, Queue{static_cast<gpuStream_t>(stream)});
  return last_error();
}
const char* segment_offsets(const PlannedOffsets& call, void*, void* stream) {
  launch_offsets(call, Queue{static_cast<gpuStream_t>(stream)});
  return last_error();
}

// Numbers and sorts the places of an index; keys are then sort.keys[0], and their places or values sort.values[0].
static const char* sort_places(KeyCall call, SortCall& sort, const SortPlan& plan, void* temporary, Queue queue) {
  call.keys = sort.keys[0];
  call.values = sort.values[0];
  launch_keys(call, queue);
  return sort_pairs(sort, temporary, plan.sort_bytes, queue.stream);
}
const char* index_segments(const PlannedIndex& call, void* workspace, void* stream) {
  const Queue queue{static_cast<gpuStream_t>(stream)};
  segments::Room room{static_cast<char*>(workspace)};
  void* temporary;
  SortCall sort = segments::lay_out(call.plan, call.places, room, temporary);
  const KeyCall keys = keys_of(call.index, call.dtype, call.places, call.count, -1, call.elements);
  if (const char* error = sort_places(keys, sort, call.plan, temporary, queue)) return error;
  OffsetsCall find;
  find.keys = sort.keys[0];
  find.places = call.places;
  find.count = call.count;
  find.offsets = call.offsets;
  find.sorted = sort.values[0];
  find.order = call.order;
  launch_offsets(find, queue);
  return last_error();
}
const char* reduce_by_index(const PlannedIndexed& call, void* workspace, void* stream) {
  const Queue queue{static_cast<gpuStream_t>(stream)};
  int64_t bytes;
  segments::IndexedRoom room = segments::lay_out(call, call.plan, workspace, bytes);
  KeyCall keys = keys_of(call.index, call.index_dtype, call.rows, call.segments, call.skipped, call.elements);
  if (call.plan.carries) {
    keys.column = call.in;
    keys.stride = call.row_stride;
  }
  if (const char* error = sort_places(keys, room.sort, call.plan.sort, room.temporary, queue)) return error;
  if (call.plan.runs) {
    RunsCall list;
    list.keys = room.sort.keys[0];
    list.places = call.rows;
    list.count = call.segments;
    list.runs = room.runs;
    list.run_count = room.run_count;
    (void)gpuMemsetAsync(list.run_count, 0, sizeof(*list.run_count), queue.stream);
    if (call.rows > 0)
      enqueue(list_runs, plans::ceil_div(call.rows, segments::kThreads), segments::kThreads, 0, queue, list);
  } else {
    OffsetsCall find;
    find.keys = room.sort.keys[0];
    find.places = call.rows;
    find.count = call.segments;
    find.offsets = room.offsets;
    launch_offsets(find, queue);
  }
  return launch(segments::sorted_reduction(call, call.plan, room), call.plan.segments, room.rest, queue);
}

}  // namespace torchreduce::gpu
