// From an op's number to its kernels, and what the planner asks of a device.
#include <mutex>

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

static DeviceFacts ask(int device) {
  DeviceFacts facts{true};
  if (gpuDeviceGetAttribute(&facts.multiprocessors, gpuMultiprocessorCount, device) != gpuSuccess)
    facts.multiprocessors = 1;
  const int current = current_device();
  set_device(device);
  facts.bulk_copies = has_bulk_copies();
  set_device(current);
#if defined(__CUDACC__)
  if (cudaDeviceGetAttribute(&facts.shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
    facts.shared = kPortableShared;
#endif
  return facts;
}

DeviceFacts facts(int device) {
  constexpr int kRemembered = 64;
  static std::once_flag asked[kRemembered];
  static DeviceFacts known[kRemembered];
  if (device < 0 || device >= kRemembered) return ask(device);
  std::call_once(asked[device], [&] { known[device] = ask(device); });
  return known[device];
}

}  // namespace torchreduce::gpu
