// From an op's number to its kernels, and what the planner asks of a device.
#include <atomic>

#include "gpu.cuh"
#include "gpu.h"

namespace torchreduce::gpu {

const char* reduce(const ReduceCall& call, void* workspace, void* stream) {
#define TR_CASE(name) \
  case Reduction::name: return launch_reduce<name>(call, workspace, stream);
  switch (call.op) { TR_FOR_EACH_REDUCTION(TR_CASE) }
#undef TR_CASE
  return "unknown reduction";
}

const char* scan(const ScanCall& call, void* workspace, void* stream) {
#define TR_CASE(name) \
  case Scan::name: return launch_scan<name>(call, workspace, stream);
  switch (call.op) { TR_FOR_EACH_SCAN(TR_CASE) }
#undef TR_CASE
  return "unknown scan";
}

#if defined(__CUDACC__)
// The code that the driver chose, or compiled, for the current device must be of an architecture with bulk copies.
static __global__ void architecture() {}
static bool has_bulk_copies() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, architecture) == cudaSuccess && attributes.ptxVersion >= 90;
}
#else
static bool has_bulk_copies() { return false; }
#endif

int current_device() {
  int device = 0;
  return gpuGetDevice(&device) == gpuSuccess ? device : 0;
}

void set_device(int device) { (void)gpuSetDevice(device); }

DeviceFacts facts(int device) {
  constexpr int kRemembered = 64, kBulk = 1 << 30;
  static std::atomic<int> known[kRemembered];  // multiprocessors, and a bit for bulk copies; 0: not asked yet
  int fact = device >= 0 && device < kRemembered ? known[device].load() : 0;
  if (!fact) {
    if (gpuDeviceGetAttribute(&fact, gpuMultiprocessorCount, device) != gpuSuccess) fact = 1;
    const int current = current_device();
    set_device(device);
    if (has_bulk_copies()) fact |= kBulk;
    set_device(current);
    if (device >= 0 && device < kRemembered) known[device] = fact;
  }
  return DeviceFacts{true, fact & ~kBulk, (fact & kBulk) != 0};
}

}  // namespace torchreduce::gpu
