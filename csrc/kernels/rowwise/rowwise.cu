// parts: TR_FOR_EACH_ROWWISE_KIND
// Launches of the row-wise ops: this file is compiled once for each kind, TR_PART.
#include "columns.cuh"
#include "held_columns.cuh"
#include "held_rows.cuh"
#include "kernels/common/gpu.h"
#include "map_rows.cuh"
#include "packed_rows.cuh"
#include "plan/rowwise_plan.h"
#include "runs.cuh"
#include "spread_rows.cuh"
#include "strided.cuh"
#include "wide_columns.cuh"

namespace torchreduce::gpu {

// What a call whose leaves meet in memory has there.
template <class State> struct Memory {
  State *states, *trees, *totals;
  Memory(void* workspace, int64_t rows, int64_t leaves)
      : states(static_cast<State*>(workspace)),
        trees(states + rows * leaves),
        totals(trees + rows * LeafStates{leaves}.tree()) {}
};
template <class Op, class F, class State>
void fold(const RowwiseCall& call, int64_t leaves, const Memory<State>& memory, Queue queue) {
  enqueue(fold_states<typename Op::States, F>, call.layout.rows, leaves <= 2 * kLanes ? kLanes : kThreads, 0, queue,
          call, leaves, memory.states, memory.trees, memory.totals);
}

template <class Op, class F>
void launch_strided(const RowwiseCall& call, const RowwiseStridedShape& shape, void* workspace, Queue queue) {
  const Memory<typename Op::State> memory(workspace, call.layout.rows, shape.leaves);
  const auto leaves = [&](StridedPart part) {
    const auto enqueue_kernel = [&](auto kernel) {
      enqueue(kernel, shape.blocks, shape.threads, 0, queue, call, shape.leaves, part, memory.states, memory.totals);
    };
    if constexpr (Op::kAdds) enqueue_kernel(rowwise_strided_leaf<typename Op::OfOne, F>);
    else enqueue_kernel(rowwise_strided_leaf<Op, F>);
  };
  if constexpr (Op::kSums > 0) {
    if (shape.leaves > 1) {
      leaves(StridedPart::States);
      fold<Op, F>(call, shape.leaves, memory, queue);
      if (Op::kMaps) leaves(StridedPart::Output);
      return;
    }
  }
  leaves(StridedPart::Whole);
}

template <class Op, class E, int kChunks, held_rows::Form kForm>
void launch_held(const RowwiseCall& call, HeldRowsShape shape, bool split, void* workspace, Queue queue) {
  const RowwiseKernelCall rows = plain_rows(call);
  queue.cluster = shape.cluster;
  const auto enqueue_part = [&](held_rows::Part part, typename Op::State* states) {
    shape.part = part;
    enqueue(held_rows_kernel<Op, E, kChunks, kForm>, shape.blocks, shape.threads, shape.shared, queue, rows, shape,
            states);
  };
  if constexpr (Op::kSums > 0 && kChunks == held_rows::kLeafChunks) {
    if (split) {
      const Memory<typename Op::State> memory(workspace, call.layout.rows, shape.leaves);
      enqueue_part(held_rows::Part::States, memory.states);
      if (shape.folded || !Op::kMaps) fold<Op, float>(call, shape.leaves, memory, queue);
      if (Op::kMaps) enqueue_part(held_rows::Part::Output, shape.folded ? memory.totals : memory.states);
      return;
    }
  }
  enqueue_part(held_rows::Part::Whole, nullptr);
}
template <class Op, class E>
void launch_held(const RowwiseCall& call, const HeldRowsShape& shape, bool split, void* workspace, Queue queue) {
  if constexpr (Op::kWeights && Op::kInputs == 1)
    if (shape.form == held_rows::Form::Spread)
      return enqueue(spread_held_rows_kernel<Op, E>, shape.blocks, shape.threads, 0, queue, plain_rows(call), shape);
  const auto launch = [&]<int kForm, int kChunks>() {
    constexpr auto kOf = held_rows::Form(kForm);
    if constexpr (held_rows::has_kernel(kFacts<Op>, int(sizeof(E)), kOf, kChunks))
      if (shape.form == kOf && shape.chunks == kChunks)
        launch_held<Op, E, kChunks, kOf>(call, shape, split, workspace, queue);
  };
  constexpr int kMost = held_rows::kLeafChunks;
  [&]<int... k>(std::integer_sequence<int, k...>) {
    (launch.template operator()<k / kMost, k % kMost + 1>(), ...);
  }(std::make_integer_sequence<int, held_rows::kForms * kMost>{});
}

template <class Op, class E>
void launch_packed([[maybe_unused]] const RowwiseCall& call, [[maybe_unused]] const RowwisePackedRowsShape& shape,
                   [[maybe_unused]] Queue queue) {
  if constexpr (Op::kSums > 0 && !Op::kWeights) {
    const RowwiseKernelCall rows = plain_rows(call);
    const auto enqueue_kernel = [&](auto kernel) {
      enqueue(kernel, shape.blocks, shape.threads, shape.shared, queue, rows, shape);
    };
    constexpr int kForms = rowwise_packed_rows::forms(int(sizeof(E)), Op::kInputs, Op::kTerm);
    const int which = rowwise_packed_rows::form_of(call.layout.length);
    if constexpr (kForms > 0)
      if (which == 0) enqueue_kernel(rowwise_packed_rows_kernel<Op, E, 0>);
    if constexpr (kForms > 1)
      if (which == 1) enqueue_kernel(rowwise_packed_rows_kernel<Op, E, 1>);
    if constexpr (kForms > 2)
      if (which == 2) enqueue_kernel(rowwise_packed_rows_kernel<Op, E, 2>);
  }
}

template <class Op, class E>
void launch_held_columns([[maybe_unused]] const RowwiseCall& call, [[maybe_unused]] const HeldColumnsShape& shape,
                         [[maybe_unused]] Queue queue) {
  if constexpr (Op::kCentral && Op::kMaps) {
    const Layout& l = call.layout;
    const ColumnPitch pitch{int(l.in[l.kept] * int(sizeof(E))), int(l.out[l.kept] * int(sizeof(E)))};
    const RowwiseKernelCall rows = plain_rows(call);
    queue.cluster = shape.leaves;
    const auto enqueue_kernel = [&](auto kernel) {
      enqueue(kernel, shape.blocks, shape.threads, shape.shared, queue, rows, shape, pitch);
    };
    if (shape.depth == 8) enqueue_kernel(held_columns_kernel<Op, E, 8>);
    else enqueue_kernel(held_columns_kernel<Op, E, 4>);
  }
}

template <class Op, class E>
void launch_wide_columns([[maybe_unused]] const RowwiseCall& call,
                         [[maybe_unused]] const RowwiseWideColumnsShape& shape, [[maybe_unused]] void* workspace,
                         [[maybe_unused]] Queue queue) {
  if constexpr (Op::kCentral && Op::kMaps) {
    const RowwiseKernelCall rows = plain_rows(call);
    const Layout& l = call.layout;
    const WideColumnsPitch pitch{int(l.in[l.kept] * int(sizeof(E))), int(l.out[l.kept] * int(sizeof(E))), rows.end[0]};
    const Memory<typename Op::State> memory(workspace, l.rows, shape.leaves);
    const auto enqueue_both = [&](auto states, auto output) {
      enqueue(states, shape.blocks, shape.threads, shape.shared, queue, rows, shape, pitch, memory.states);
      if (shape.leaves > 1) fold<Op, float>(call, shape.leaves, memory, queue);
      enqueue(output, shape.blocks * rowwise_wide_columns::kParts, rowwise_wide_columns::kWriters, 0, queue, rows,
              shape, pitch, memory.states, shape.leaves > 1 ? memory.totals : memory.states);
    };
    if (shape.depth == 8) enqueue_both(rowwise_wide_columns_states<Op, E, 8>, rowwise_wide_columns_output<Op, E, 8>);
    else enqueue_both(rowwise_wide_columns_states<Op, E, 4>, rowwise_wide_columns_output<Op, E, 4>);
  }
}

template <class Op, class E>
void launch_columns(const RowwiseCall& call, const RowwiseColumnsShape& shape, void* workspace, Queue queue) {
  if constexpr (Op::kSums > 0 && !Op::kWeights) {
    const RowwiseKernelCall rows = plain_rows(call);
    const Layout& l = call.layout;
    const ColumnPitches pitches{{l.in[l.kept], call.more_strides[0][l.kept]}, l.out[l.kept]};
    const Memory<typename Op::State> memory(workspace, l.rows, shape.leaves);
    queue.cluster = shape.cluster;
    const auto enqueue_kernel = [&](auto kernel, ColumnPart part) {
      enqueue(kernel, shape.blocks, shape.threads, shape.shared, queue, rows, shape, pitches, part, memory.states,
              memory.totals);
    };
    const auto enqueue_part = [&](ColumnPart part) { enqueue_kernel(rowwise_columns_kernel<Op, E>, part); };
    const auto own = [&]<int kBytes, int kDepth>() {
      if constexpr (rowwise_columns::has_own(kFacts<Op>, int(sizeof(E)), kBytes, kDepth))
        if (shape.bytes == kBytes && shape.depth == kDepth)
          enqueue_kernel(rowwise_columns_kernel<Op, E, kBytes, rowwise_columns::run_of(kDepth), kDepth>,
                         ColumnPart::Whole);
    };
    if (shape.run > 0) {
      own.template operator()<16, 1>();
      own.template operator()<4, 1>();
      own.template operator()<2, 1>();
      own.template operator()<16, 4>();
      own.template operator()<16, 8>();
      return;
    }
    if (shape.leaves > 1 && shape.cluster == 1) {
      enqueue_part(ColumnPart::States);
      fold<Op, float>(call, shape.leaves, memory, queue);
      if (Op::kMaps) enqueue_part(ColumnPart::Output);
      return;
    }
    enqueue_part(ColumnPart::Whole);
  }
}

template <class Op, class E>
void launch_runs([[maybe_unused]] const RowwiseCall& call, [[maybe_unused]] const RunsShape& shape,
                 [[maybe_unused]] void* workspace, [[maybe_unused]] Queue queue) {
  if constexpr (std::is_same_v<Op, Moments<float>>) {
    const RowwiseKernelCall rows = plain_rows(call);
    const Memory<typename Op::State> memory(workspace, call.layout.rows, shape.leaves);
    enqueue(runs_states<Op, E>, shape.blocks, shape.threads, 0, queue, rows, shape, memory.states);
    fold<Op, float>(call, shape.leaves, memory, queue);
  }
}

template <class Op>
void launch_map([[maybe_unused]] const RowwiseCall& call, [[maybe_unused]] const MapRowsShape& shape,
                [[maybe_unused]] Queue queue) {
  if constexpr (Op::kSums == 0) {
    const RowwiseKernelCall rows = plain_rows(call);
    enqueue(map_rows_kernel<Op>, shape.blocks, shape.threads, 0, queue, rows, shape);
  }
}

template <template <class> class Op> const char* launch_rowwise(const PlannedRowwise& call, void* workspace,
                                                                void* stream) {
  const Queue queue{static_cast<gpuStream_t>(stream)};
  std::visit(
      [&](const auto& shape) {
        using S = std::decay_t<decltype(shape)>;
        using Floats = Op<float>;
        if constexpr (std::is_same_v<S, RowwiseStridedShape>) {
          if (call.accumulator == Dtype::F64) launch_strided<Op<double>, double>(call, shape, workspace, queue);
          else launch_strided<Floats, float>(call, shape, workspace, queue);
        } else if constexpr (kWideReductions && std::is_same_v<S, MapRowsShape>) {
          launch_map<Floats>(call, shape, queue);
        } else if constexpr (kWideReductions) {
          with_element(call.dtype, [&](auto element) {
            using E = decltype(element);
            if constexpr (std::is_same_v<S, RowwiseColumnsShape>)
              launch_columns<Floats, E>(call, shape, workspace, queue);
            else if constexpr (std::is_same_v<S, RowwisePackedRowsShape>) launch_packed<Floats, E>(call, shape, queue);
            else if constexpr (std::is_same_v<S, RunsShape>) launch_runs<Floats, E>(call, shape, workspace, queue);
            else if constexpr (std::is_same_v<S, HeldColumnsShape>) launch_held_columns<Floats, E>(call, shape, queue);
            else if constexpr (std::is_same_v<S, RowwiseWideColumnsShape>)
              launch_wide_columns<Floats, E>(call, shape, workspace, queue);
            else if constexpr (std::is_base_of_v<HeldRowsShape, S>)
              launch_held<Floats, E>(call, shape, std::is_same_v<S, SplitRowsShape>, workspace, queue);
          });
        }
      },
      call.plan.shape);
  const gpuError_t error = gpuGetLastError();
  return error == gpuSuccess ? nullptr : gpuGetErrorString(error);
}

#define TR_OPS_OF(kind, X) TR_ROWWISE_##kind(X)
#define TR_OPS(kind, X) TR_OPS_OF(kind, X)
#define TR_LAUNCH(name) template const char* launch_rowwise<name>(const PlannedRowwise&, void*, void*);
TR_OPS(TR_PART, TR_LAUNCH)

}  // namespace torchreduce::gpu
