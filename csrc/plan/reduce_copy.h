// Whether a GPU reduces a contiguous copy of the elements instead of the elements.
#pragma once
#include "kernels/channels/contiguous.h"

namespace torchreduce {

// A family that is forced as others are, but does not reduce: the planner chooses who does.
constexpr const char* kContiguous = "contiguous";

// The copy of a call's elements, without memory, if reducing it is faster; or if it is forced, and there is a kernel
// for it.
std::optional<PlannedCopy> copy_first(const ReduceCall& call, const DeviceFacts& device);
// What is reduced then: `call` with its elements in such a copy at `data`.
ReduceCall of_copy(const ReduceCall& call, const void* data);

}  // namespace torchreduce
