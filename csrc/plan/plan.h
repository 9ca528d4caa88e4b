// What all plans share: what they ask of a device, and what a test or a user forces. A plan is a pure host function of
// the call (call.h) and the device, and no field of it changes a bit of the result: scan_plan.h, reduce_plan.h.
#pragma once
#include <string>

#include "numerics/order.h"
#include "shape.h"

namespace torchreduce {

constexpr int kPortableShared = 48 << 10;  // bytes of shared memory a block that every GPU has without being asked

struct DeviceFacts {
  bool gpu = false;
  int multiprocessors = 0;       // GPU: streaming multiprocessors or compute units; CPU: threads
  bool bulk_copies = false;      // GPU: bulk copies between global and shared memory, and kernels built for them
  int shared = kPortableShared;  // GPU: bytes of shared memory that a block may ask for
  bool large_blocks = false;    // GPU: columns have the code for large blocks (gpu.cuh), be there room for them or not:
                                // code for Hopper also runs where a block has 99 KiB
  bool wide_reductions = true;  // GPU: the families of reductions that read 16 bytes a lane are compiled (gpu.cuh)
  bool clusters = false;        // GPU: eight blocks may share their memory, and kernels built for that
};

// What plans ask of GPU `device`; nothing in a build without a GPU part. Throws std::runtime_error with the refusal.
DeviceFacts gpu_facts(int device);

// Fields a test or a user forces; -1 leaves the planner's choice. A value a case cannot be served with is an
// std::invalid_argument.
struct PlanOverride {
  const char* family = nullptr;  // a name that lives as long as the process
  int lanes = -1;
  int warps = -1;
  int leaves = -1;
  int vector_loads = -1;
  int rows = -1;  // reductions, rows: those on their way
};
void force_plan(const PlanOverride& forced);  // for the process, until the next call
PlanOverride forced_plan();

}  // namespace torchreduce
