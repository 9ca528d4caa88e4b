// The mean of losses, in one launch: their sum, divided by that of the rows' weights. Both are canonical sums.
#pragma once
#include <algorithm>

#include "numerics/order.h"
#include "plan/plan.h"

namespace torchreduce {

struct MeanLossCall {
  const void* losses = nullptr;
  const void* weights = nullptr;
  int count = 0;             // of both, at least one
  Dtype dtype = Dtype::F32;  // of both, and of the divisor: F32 or F64
  bool counts = false;       // weights count as 1 if they are not zero
  void* mean = nullptr;
  Dtype mean_dtype = Dtype::F32;
  void* divisor = nullptr;
};

// A thread of the one block has a residue of a leaf, and of the leaves that follow at the block's distance.
struct MeanLossPlan { int threads = kResidues; };

// One multiprocessor loads that many in less time than three launches more take.
constexpr int kMostMeanLosses = 8 * kLeaf;
constexpr int kMostMeanThreads = 1024;

inline MeanLossPlan plan(const MeanLossCall& call, const DeviceFacts&) {
  return {std::min(kMostMeanThreads, (call.count + kLeaf - 1) / kLeaf * kResidues)};
}
inline int64_t workspace_bytes(const MeanLossPlan&) { return 0; }

struct PlannedMeanLoss : MeanLossCall { MeanLossPlan plan; };

namespace gpu {

// Enqueues it, as gpu.h has it.
const char* mean_loss(const PlannedMeanLoss& call, void* workspace, void* stream);

}  // namespace gpu
}  // namespace torchreduce
