// CUB's radix sort, instantiated once; a build for AMD has none.
#include "sort.h"

#include "gpu.cuh"

#if defined(__CUDACC__)
#include <cub/device/device_radix_sort.cuh>
#endif

namespace torchreduce::gpu {

#if defined(__CUDACC__)
static cudaError_t sort(SortCall& call, void* workspace, size_t& bytes, cudaStream_t stream) {
  cub::DoubleBuffer<uint32_t> keys(call.keys[0], call.keys[1]), values(call.values[0], call.values[1]);
  const cudaError_t error =
      cub::DeviceRadixSort::SortPairs(workspace, bytes, keys, values, int(call.count), 0, call.bits, stream);
  if (keys.selector) std::swap(call.keys[0], call.keys[1]);
  if (values.selector) std::swap(call.values[0], call.values[1]);
  return error;
}

int64_t sort_bytes(int64_t count, int bits) {
  if (count > INT32_MAX || bits > 32) return -1;
  SortCall call;
  call.count = count;
  call.bits = bits;
  size_t bytes = 0;
  return sort(call, nullptr, bytes, nullptr) == cudaSuccess ? int64_t(bytes) : -1;
}
const char* sort_pairs(SortCall& call, void* workspace, int64_t bytes, void* stream) {
  size_t given = size_t(bytes);
  const cudaError_t error = sort(call, workspace, given, static_cast<cudaStream_t>(stream));
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
#else
int64_t sort_bytes(int64_t, int) { return -1; }
const char* sort_pairs(SortCall&, void*, int64_t, void*) { return "this build has no sort"; }
#endif

}  // namespace torchreduce::gpu
