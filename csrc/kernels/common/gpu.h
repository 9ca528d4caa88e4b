// What the torch layer calls: the GPU kernels' entry points, without a GPU header.
#pragma once
#include "plan/plan.h"

// Element types that kernels are compiled for, X(T). A build that is only inspected may do with some.
#if defined(TR_FEW_TYPES)
#define TR_FOR_EACH_COMPILED_TYPE(X) X(BF16) X(float) X(double)
#else
#define TR_FOR_EACH_COMPILED_TYPE(X) TR_FOR_EACH_TYPE(X)
#endif

namespace torchreduce {

// Of reduce_plan.h, scan_plan.h and rowwise_plan.h, which whoever launches includes: the kernels of one kind do not
// depend on the plans of another.
struct PlannedReduction;
struct PlannedScan;
struct PlannedRowwise;
struct PlannedChannels;

namespace gpu {

// Enqueue `call` on `stream` of the current device. `workspace` has workspace_bytes(call.plan) bytes, whatever they
// hold. Returns nullptr, or the runtime's message when a launch failed.
const char* reduce(const PlannedReduction& call, void* workspace, void* stream);
const char* scan(const PlannedScan& call, void* workspace, void* stream);
const char* rowwise_rows(const PlannedRowwise& call, void* workspace, void* stream);
const char* channels(const PlannedChannels& call, void* workspace, void* stream);

// Enqueues an intrinsic of intrinsics.h on the default stream of the current device, of `count` times four words.
const char* run_intrinsic(int which, const uint32_t* in, uint32_t* out, int64_t count);

// The calling thread's current device in the runtime that launches the kernels; what plans ask of a device, which
// throws std::runtime_error for one that no kernel is for (refusal.h).
int current_device();
void set_device(int device);
DeviceFacts facts(int device);

// Each op's kernels are compiled on their own (reduce.cu, scan.cu, rowwise.cu).
template <template <class> class Op> const char* launch_reduce(const PlannedReduction& call, void* workspace,
                                                               void* stream);
template <template <class> class Op> const char* launch_scan(const PlannedScan& call, void* workspace, void* stream);
template <template <class> class Op> const char* launch_rowwise(const PlannedRowwise& call, void* workspace,
                                                                void* stream);
// The gradients of weights, alone or together with those of norms (weights.cu).
const char* launch_weights(const PlannedRowwise& call, void* workspace, void* stream);

}  // namespace gpu
}  // namespace torchreduce
