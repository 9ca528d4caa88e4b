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

int current_device() {
  int device = 0;
  return gpuGetDevice(&device) == gpuSuccess ? device : 0;
}

void set_device(int device) { (void)gpuSetDevice(device); }

int multiprocessors(int device) {
  constexpr int kRemembered = 64;
  static std::atomic<int> known[kRemembered];  // 0: not asked yet
  if (device >= 0 && device < kRemembered && known[device]) return known[device];
  int count = 1;
  if (gpuDeviceGetAttribute(&count, gpuMultiprocessorCount, device) != gpuSuccess) return 1;
  if (device >= 0 && device < kRemembered) known[device] = count;
  return count;
}

}  // namespace torchreduce::gpu
