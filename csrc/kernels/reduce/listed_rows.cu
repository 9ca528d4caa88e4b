// Launches of the reductions of listed rows.
#include "kernels/common/gpu.h"
#include "listed_rows.cuh"

namespace torchreduce::gpu {

template <class Op> static void launch_rows(const ListedRows& rows, void* workspace, uint32_t* tickets,
                                            gpuStream_t stream) {
  if constexpr (kWideReductions)
    enqueue(reduce_listed_rows<Op>, rows.first[rows.count], std::min(rows.units, rows::kWarps) * 32, 0, Queue{stream},
            rows, static_cast<typename Op::Acc*>(workspace), tickets);
}

const char* reduce_listed(const ListedReduction& call, void* workspace, void* stream) {
  const auto s = static_cast<gpuStream_t>(stream);
  for (const ListedRows& rows : call.plan) {
    uint32_t* tickets;
    if (const char* error =
            zeroed_tickets(rows.count, static_cast<char*>(workspace) + partial_bytes(rows), s, &tickets))
      return error;
    switch (rows.in) {
      case Dtype::F32: launch_rows<SumOf<float>>(rows, workspace, tickets, s); break;
      case Dtype::BF16: launch_rows<SumOf<BF16>>(rows, workspace, tickets, s); break;
#if !defined(TR_FEW_TYPES)
      case Dtype::F16: launch_rows<SumOf<F16>>(rows, workspace, tickets, s); break;
#endif
      default: return "unknown dtype";
    }
    if (const gpuError_t error = gpuGetLastError(); error != gpuSuccess) return gpuGetErrorString(error);
  }
  return nullptr;
}

}  // namespace torchreduce::gpu
