// Runs on a GPU what intrinsics.h lists.
#include "numerics/intrinsics.h"

#include "gpu.cuh"
#include "gpu.h"

namespace torchreduce::gpu {

__global__ void __launch_bounds__(256) intrinsic(Intrinsic which, const uint32_t* in, uint32_t* out, int64_t count) {
  const int64_t i = int64_t(blockIdx.x) * 256 + int(threadIdx.x);
  if (i >= count) return;  // whole warps
  const uint32_t* const w = in + 4 * i;
  switch (which) {
#define TR_CASE(name, word) \
  case Intrinsic::name: out[i] = word; break;
    TR_FOR_EACH_INTRINSIC(TR_CASE)
    TR_FOR_EACH_KERNEL_INTRINSIC(TR_CASE)
#undef TR_CASE
  }
}

const char* run_intrinsic(int which, const uint32_t* in, uint32_t* out, int64_t count) {
  enqueue(intrinsic, (count + 255) / 256, 256, 0, Queue{nullptr}, Intrinsic(which), in, out, count);
  const gpuError_t error = gpuGetLastError();
  return error == gpuSuccess ? nullptr : gpuGetErrorString(error);
}

}  // namespace torchreduce::gpu
