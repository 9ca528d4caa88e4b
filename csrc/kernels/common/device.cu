// From an op's number to its kernels, what the planner asks of a device, and memory that is zero when a kernel starts.
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "gpu.cuh"
#include "gpu.h"
#include "plan/reduce_plan.h"
#include "plan/rowwise_plan.h"
#include "plan/scan_plan.h"
#include "refusal.h"

namespace torchreduce::gpu {

const char* reduce(const PlannedReduction& call, void* workspace, void* stream) {
#define TR_CASE(name) \
  case Reduction::name: return launch_reduce<name>(call, workspace, stream);
  switch (call.op) { TR_FOR_EACH_REDUCTION(TR_CASE) }
#undef TR_CASE
  return "unknown reduction";
}

const char* scan(const PlannedScan& call, void* workspace, void* stream) {
#define TR_CASE(name) \
  case Scan::name: return launch_scan<name>(call, workspace, stream);
  switch (call.op) { TR_FOR_EACH_SCAN(TR_CASE) }
#undef TR_CASE
  return "unknown scan";
}

const char* rowwise_rows(const PlannedRowwise& call, void* workspace, void* stream) {
  if (std::holds_alternative<NormGradientsShape>(call.plan.shape)) return launch_weights(call, workspace, stream);
#define TR_CASE(name) \
  case Rowwise::name: return launch_rowwise<name>(call, workspace, stream);
  switch (call.op) {
    TR_FOR_EACH_ROWWISE(TR_CASE)
    default: return launch_weights(call, workspace, stream);
  }
#undef TR_CASE
}

#if defined(__CUDACC__)
static __global__ void architecture() {}
// Of the code that the driver chose, or compiled, for the current device, not of the device.
static int compiled_for() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, architecture) == cudaSuccess ? attributes.ptxVersion : 0;
}
static void refuse_unserved(int device) {
  cudaDeviceProp facts;
  if (cudaGetDeviceProperties(&facts, device) != cudaSuccess) return;  // the launch says so
  const std::string reason = refusal(facts.name, facts.major, facts.minor);
  if (!reason.empty()) throw std::runtime_error(reason);
}
#else
static int compiled_for() { return 0; }
static void refuse_unserved(int) {}
#endif

int current_device() {
  int device = 0;
  return gpuGetDevice(&device) == gpuSuccess ? device : 0;
}

void set_device(int device) { (void)gpuSetDevice(device); }

static DeviceFacts ask(int device) {
  refuse_unserved(device);
  DeviceFacts facts{true};
  if (gpuDeviceGetAttribute(&facts.multiprocessors, gpuMultiprocessorCount, device) != gpuSuccess)
    facts.multiprocessors = 1;
  const int current = current_device();
  set_device(device);
  const int architecture = compiled_for();
  facts.bulk_copies = architecture >= 90;
  facts.clusters = architecture >= 90 && architecture < 120;
  facts.wide_reductions = kWideReductions;
  facts.large_blocks = architecture >= 90 && architecture < 120;  // TR_LARGE_BLOCKS
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

#if defined(__CUDACC__)
// A kernel that is launched early may start as soon as all blocks of this one have.
static __global__ void __launch_bounds__(256) zero_words(uint64_t* words, int64_t count) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
  for (int64_t i = blockIdx.x * 256 + int(threadIdx.x); i < count; i += gridDim.x * 256) words[i] = 0;
}
#endif

// ---- tickets ---------------------------------------------------------------------------------------------------------

// Counters that are zero whenever a launch that counts on them starts, without a launch that zeroes them: each launch
// leaves its own zeroed (kernels/reduce/finish.cuh), and no two that may run at once have the same ones.
//
// They lie in an array of the module, which the driver zeroes for each device. A stream has a part of it for its eager
// launches, which follow one another; its id, unlike its handle, is never another stream's. What is captured gets a
// part of its own for ever: the launches of one graph's replays follow one another, but not those of another graph, nor
// the stream's. Who replays two executable copies of one graph at once has them write the same results anyway.
//
// A launch that fails has not begun, and leaves the counters alone; after one that the device gave up, the context and
// with it this memory is gone. Where the array is used up (by 2^18 captured rows), or too small for a call,
// tickets are zeroed in the call's workspace before its launch.
constexpr int64_t kPoolTickets = 1 << 18, kMostTickets = 1 << 12, kStreamTickets = 32;  // at least
constexpr int kTicketDevices = 16;
static __device__ uint32_t ticket_pool[kPoolTickets];

struct TicketPool {
  std::mutex mutex;
  uint32_t* base = nullptr;
  int64_t used = 0;
  struct Part { int64_t first = 0, count = 0; };
  std::map<unsigned long long, Part> of_stream;

  // A part that nobody had, or an empty one.
  Part take(int64_t count) {
    if (used + count > kPoolTickets) return {};
    used += count;
    return {used - count, count};
  }
};

static gpuError_t stream_number(gpuStream_t stream, unsigned long long* number) {
#if defined(CUDART_VERSION) && CUDART_VERSION >= 12000
  return cudaStreamGetId(stream, number);
#else
  *number = reinterpret_cast<uintptr_t>(stream);
  return gpuSuccess;
#endif
}

static gpuError_t pooled_tickets(int64_t count, gpuStream_t stream, uint32_t** tickets) {
  static TicketPool pools[kTicketDevices];
  const int device = current_device();
  if (count > kMostTickets || device >= kTicketDevices) return gpuSuccess;
  TicketPool& pool = pools[device];
  gpuStreamCaptureStatus capturing;
  unsigned long long number = 0;
  gpuError_t error = gpuStreamIsCapturing(stream, &capturing);
  const bool eager = capturing == gpuStreamCaptureStatusNone;
  if (error == gpuSuccess && eager) error = stream_number(stream, &number);
  if (error != gpuSuccess) return error;
  const std::lock_guard<std::mutex> lock(pool.mutex);
  if (!pool.base) {
    void* address = nullptr;
    error = gpuGetSymbolAddress(&address, ticket_pool);
    if (error != gpuSuccess) return error;
    pool.base = static_cast<uint32_t*>(address);
  }
  TicketPool::Part part;
  if (eager) {
    TicketPool::Part& own = pool.of_stream[number];
    if (own.count < count) own = pool.take(count < kStreamTickets ? kStreamTickets : count);
    part = own;  // of an earlier launch, or larger; what was smaller stays unused
  } else {
    part = pool.take(count);
  }
  if (part.count) *tickets = pool.base + part.first;
  return gpuSuccess;
}

}  // namespace torchreduce::gpu

namespace torchreduce {

#if defined(__CUDACC__)
void grant_shared(const void* kernel) {
  static std::mutex mutex;
  static std::set<std::pair<int, const void*>> granted;
  const int device = gpu::current_device();
  const std::lock_guard<std::mutex> lock(mutex);
  if (granted.count({device, kernel})) return;
  cudaFuncAttributes declared;
  if (cudaFuncGetAttributes(&declared, kernel) != cudaSuccess) return;  // the launch says so
  const int most = gpu::facts(device).shared - int(declared.sharedSizeBytes);
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most) == cudaSuccess)
    granted.insert({device, kernel});
}
#endif
const char* zeroed_tickets(int64_t count, void* spare, gpuStream_t stream, uint32_t** tickets) {
  *tickets = nullptr;
  gpuError_t error = gpu::pooled_tickets(count, stream, tickets);
  if (error == gpuSuccess && !*tickets) {
    *tickets = static_cast<uint32_t*>(spare);
    error = gpuMemsetAsync(spare, 0, size_t(count) * sizeof(uint32_t), stream);
  }
  return error == gpuSuccess ? nullptr : gpuGetErrorString(error);
}

bool launches_early() {
#if defined(__CUDACC__)
  static const bool captured = [] {
    int version = 0;
    return cudaDriverGetVersion(&version) == cudaSuccess && version >= 12030;
  }();
  return captured && gpu::facts(gpu::current_device()).bulk_copies;
#else
  return false;
#endif
}

const char* zero_workspace(void* workspace, int64_t bytes, Queue& queue) {
#if defined(__CUDACC__)
  if (launches_early()) {
    constexpr int64_t kMostBlocks = 1024;
    const int64_t words = bytes / 8, blocks = (words + 255) / 256;
    enqueue(gpu::zero_words, blocks < kMostBlocks ? blocks : kMostBlocks, 256, 0, queue,
            static_cast<uint64_t*>(workspace), words);
    const gpuError_t error = gpuGetLastError();
    queue.early = true;
    return error == gpuSuccess ? nullptr : gpuGetErrorString(error);
  }
#endif
  const gpuError_t error = gpuMemsetAsync(workspace, 0, size_t(bytes), queue.stream);
  return error == gpuSuccess ? nullptr : gpuGetErrorString(error);
}

}  // namespace torchreduce
