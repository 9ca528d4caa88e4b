// From a call to the kernels of its input's device, with torch's threads, streams and memory.
#pragma once
#include <dlfcn.h>

#include "cpu/cpu.h"
#include "kernels/common/gpu.h"
#include "plan/reduce_plan.h"
#include "plan/rowwise_plan.h"
#include "plan/scan_plan.h"
#include "tensor.h"

namespace torchreduce {

inline void parallel_for(int64_t tasks, void (*body)(void*, int64_t, int64_t), void* context) {
  torch::stable::parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) { body(context, begin, end); });
}

#ifdef TORCHREDUCE_GPU

// The shims of torch's GPU library, looked up when first needed: this library also loads where torch has none.
struct GpuShims {
  AOTITorchError (*stream)(int32_t, void**);
  AOTITorchError (*alloc)(uint64_t, void**);
  AOTITorchError (*release)(void*);

  GpuShims() {
    void* library = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
    if (!library) library = dlopen("libtorch_hip.so", RTLD_NOLOAD | RTLD_LAZY);
    find(library, "aoti_torch_get_current_cuda_stream", stream);
    find(library, "aoti_torch_cuda_caching_allocator_raw_alloc", alloc);
    find(library, "aoti_torch_cuda_caching_allocator_raw_delete", release);
  }
  template <class F> static void find(void* library, const char* name, F& function) {
    function = library ? reinterpret_cast<F>(dlsym(library, name)) : nullptr;
    if (!function) raise<std::runtime_error>("torchreduce: this torch has no GPU support (", name, " is missing)");
  }
};

// Makes a device current for torch, whose allocator follows it, and for the GPU runtime linked into this library, which
// keeps a current device of its own and launches there.
class DeviceGuard {
 public:
  explicit DeviceGuard(int32_t index) : before(gpu::current_device()) {
    int32_t torch_device;
    check(aoti_torch_get_current_device_index(&torch_device));
    if (torch_device != index) check(aoti_torch_create_device_guard(index, &handle));
    if (gpu::current_device() != index) gpu::set_device(index);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard() {
    if (gpu::current_device() != before) gpu::set_device(before);
    if (handle) aoti_torch_delete_device_guard(handle);
  }

 private:
  const int before;
  DeviceGuardHandle handle = nullptr;
};

template <class Call>
void run_on_gpu(const char* op, Call& call, const Operand& x,
                const char* (*launch)(const Call&, void* workspace, void* stream)) {
  static const GpuShims shims;
  const DeviceGuard guard(x.device_index);
  call.plan = plan(call, gpu::facts(x.device_index));
  void *stream, *workspace = nullptr;
  check(shims.stream(x.device_index, &stream));
  // The caching allocator orders the workspace's next use after this call on the stream, so it is given back at once.
  if (const int64_t bytes = workspace_bytes(call.plan)) check(shims.alloc(uint64_t(bytes), &workspace));
  const char* error = launch(call, workspace, stream);
  if (workspace) shims.release(workspace);
  if (error) raise<std::runtime_error>(op, ": the launch failed: ", error);
}

#else

template <class Call, class Launch> void run_on_gpu(const char* op, Call&, const Operand&, Launch) {
  raise<std::runtime_error>(op, ": this build of torchreduce has no GPU part");
}

#endif

template <class Call>
void run(const char* op, Call& call, const Operand& x, void (*on_cpu)(const Call&, cpu::ParallelFor),
         const char* (*on_gpu)(const Call&, void*, void*)) {
  if (!x.on_cpu()) return run_on_gpu(op, call, x, on_gpu);
  call.plan = plan(call, DeviceFacts{false, int(torch::stable::get_num_threads())});
  on_cpu(call, parallel_for);
}

}  // namespace torchreduce
