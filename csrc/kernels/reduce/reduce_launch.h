// What every family of reduction kernels says of a launch. Host code alone, like each family's own header beside its
// kernel: what it serves, its shape, and its tuning numbers with their measurements.
#pragma once
#include <optional>

#include "numerics/order.h"
#include "plan/call.h"
#include "plan/plan_tools.h"

namespace torchreduce {

// Division of numbers below 2^31 by one that the host knows: by a product and a shift, exact since the factor, rounded
// up, is too large by less than 2^-31 of itself.
struct Divider {
  uint32_t factor = 0, shift = 0;  // factor 0: by one
  TR_HD int quotient(int i) const { return factor ? int(uint32_t(uint64_t(uint32_t(i)) * factor >> 32) >> shift) : i; }
};
inline Divider divider(int64_t by) {
  uint32_t log = 0;
  while (int64_t(1) << log < by) ++log;
  if (log == 0) return {};
  return {uint32_t((uint64_t(1) << (31 + log)) / uint64_t(by) + 1), log - 1};
}

// A family's shape is this and fields of its own, by names that mean one thing; no field changes a bit of the result.
// each(visit) calls visit(name, value) for its own fields.
struct ReduceLaunch {
  int64_t blocks = 1;     // grid size
  int threads = 256;      // block size
  int shared = 0;         // bytes of dynamic shared memory a block
  int64_t splits = 1;     // runs that a row is cut into, each leaving a partial result
  int64_t workspace = 0;  // bytes of the partial results
  int64_t tickets = 0;    // counters by which the last of those who leave partial results knows that it is
};

// Bytes of one accumulator of the kernel that serves `call`.
int64_t accumulator_bytes(const ReduceCall& call);
// At most, of those that serve any type (any_element.cuh): keys of extremes are of 64 bits.
inline int64_t general_bytes(const ReduceCall& call) { return std::max<int64_t>(accumulator_bytes(call), 8); }

}  // namespace torchreduce
