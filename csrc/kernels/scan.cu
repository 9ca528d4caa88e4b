// parts: TR_FOR_EACH_SCAN
// Launches of the scans: this file is compiled once for each op, with TR_PART its struct.
#include "gpu.h"
#include "scan_chain.cuh"
#include "scan_columns.cuh"
#include "scan_rows.cuh"

namespace torchreduce::gpu {

template <class S, class Load, class Store>
static const char* launch(const ScanCall& call, void* workspace, gpuStream_t stream) {
  const Plan& plan = call.plan;
  if (plan.workspace > 0) {
    const gpuError_t error = gpuMemsetAsync(workspace, 0, size_t(plan.workspace), stream);
    if (error != gpuSuccess) return gpuGetErrorString(error);
  }
  auto run = [&](auto kernel, auto... more) { enqueue(kernel, plan.blocks, plan.threads, stream, call, more...); };
  switch (plan.family) {
    case Family::Rows: run(scan_rows<S, Load, Store>); break;
    case Family::Columns: run(scan_columns<S, Load, Store>); break;
    case Family::Chain: run(scan_chain<S, Load, Store>, workspace); break;
    case Family::ColumnsChain: run(scan_columns_chain<S, Load, Store>, workspace);
  }
  const gpuError_t error = gpuGetLastError();
  return error == gpuSuccess ? nullptr : gpuGetErrorString(error);
}

template <template <class> class Op> const char* launch_scan(const ScanCall& call, void* workspace, void* stream) {
  const auto s = static_cast<gpuStream_t>(stream);
  if (!is_static(call.in, call.out.dtype)) {
    switch (call.in.accumulator) {
      case Dtype::F64: return launch<Op<double>, AnyLoad<double>, AnyStore<double>>(call, workspace, s);
      case Dtype::I64: return launch<Op<int64_t>, AnyLoad<int64_t>, AnyStore<int64_t>>(call, workspace, s);
      default: return launch<Op<float>, AnyLoad<float>, AnyStore<float>>(call, workspace, s);
    }
  }
#define TR_CASE(T)                                                                   \
  case DtypeOf<T>::value: {                                                          \
    using Acc = accumulator_t<T>;                                                    \
    using Store = TypedStore<Acc, std::conditional_t<is_float_type<T>, T, int64_t>>; \
    return launch<Op<Acc>, TypedLoad<T>, Store>(call, workspace, s);                 \
  }
  switch (call.in.dtype) { TR_FOR_EACH_TYPE(TR_CASE) }
#undef TR_CASE
  return "unknown dtype";
}

template const char* launch_scan<TR_PART>(const ScanCall&, void*, void*);

}  // namespace torchreduce::gpu
