// What host code asks of a GPU beside its kernels.
#include "stream.h"

#include "gpu.cuh"

namespace torchreduce::gpu {

bool is_capturing(void* stream) {
  gpuStreamCaptureStatus status = gpuStreamCaptureStatusNone;
  return gpuStreamIsCapturing(static_cast<gpuStream_t>(stream), &status) == gpuSuccess &&
         status != gpuStreamCaptureStatusNone;
}

#if defined(__CUDACC__)
static cudaDeviceProp properties(int device) {
  cudaDeviceProp facts{};
  (void)cudaGetDeviceProperties(&facts, device);
  return facts;
}
int capability(int device) {
  int major = 0, minor = 0;
  const bool is_known = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
                        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess;
  return is_known ? 10 * major + minor : 0;
}
std::string device_name(int device) { return properties(device).name; }
#else
int capability(int) { return 0; }
std::string device_name(int) { return "this GPU"; }
#endif

}  // namespace torchreduce::gpu
