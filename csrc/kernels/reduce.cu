// parts: TR_FOR_EACH_REDUCTION
// Launches of the reductions: this file is compiled once for each op, with TR_PART its struct.
#include "gpu.h"
#include "reduce_columns.cuh"
#include "reduce_rows.cuh"

namespace torchreduce::gpu {

template <class Op, class Load> static const char* launch(const ReduceCall& call, void* workspace, gpuStream_t stream) {
  const Plan& plan = call.plan;
  auto* partials = static_cast<typename Op::Acc*>(workspace);
  enqueue(plan.family == Family::Columns ? reduce_columns<Op, Load> : reduce_rows<Op, Load>, plan.blocks, kThreads, 0,
          Queue{stream}, call, partials);
  if (plan.splits > 1)
    enqueue(combine_partials<Op>, (call.layout.rows + kWarps - 1) / kWarps, kThreads, 0, Queue{stream}, call, partials);
  const gpuError_t error = gpuGetLastError();
  return error == gpuSuccess ? nullptr : gpuGetErrorString(error);
}

template <template <class> class Op> const char* launch_reduce(const ReduceCall& call, void* workspace, void* stream) {
  const auto s = static_cast<gpuStream_t>(stream);
  if constexpr (Op<float>::kConverts) {
    if (!is_static(call.in)) {
      switch (call.in.accumulator) {
        case Dtype::F64: return launch<Op<double>, AnyLoad<double>>(call, workspace, s);
        case Dtype::I64: return launch<Op<int64_t>, AnyLoad<int64_t>>(call, workspace, s);
        default: return launch<Op<float>, AnyLoad<float>>(call, workspace, s);
      }
    }
  }
#define TR_CASE(T) \
  case DtypeOf<T>::value: return launch<Op<T>, TypedLoad<T>>(call, workspace, s);
  switch (call.in.dtype) {
    TR_FOR_EACH_COMPILED_TYPE(TR_CASE)
    default: break;
  }
#undef TR_CASE
  return "unknown dtype";
}

template const char* launch_reduce<TR_PART>(const ReduceCall&, void*, void*);

}  // namespace torchreduce::gpu
