// What every kernel variant of the row-wise ops says of a launch. Host code alone, like each family's
// own header beside its kernel: what it serves, its shape, and its tuning numbers with their measurements.
#pragma once
#include <optional>

#include "numerics/order.h"
#include "plan/plan_tools.h"
#include "plan/rowwise_call.h"

namespace torchreduce {

// A family's shape is this and fields of its own; no field changes a bit of the result. each(visit) calls
// visit(name, value) for its own fields.
struct RowwiseLaunch {
  int64_t blocks = 1;     // grid size
  int threads = 256;      // block size
  int shared = 0;         // bytes of dynamic shared memory a block
  int64_t splits = 1;     // parts that a row is cut into, which meet in memory
  int64_t workspace = 0;  // bytes of what they leave there
};

// Bytes of the state of a leaf.
int64_t state_bytes(const RowwiseCall& call);
// The gradients of weights: their layout has columns and the rows that they are summed over.
inline bool sums_over_rows(Rowwise op) { return op == Rowwise::RmsNormWeights || op == Rowwise::LayerNormWeights; }

// In memory: the states of each row's leaves, half as many for the tree over them, and one for each row.
struct LeafStates {
  int64_t leaves;
  TR_HD int64_t tree() const { return (leaves + 1) / 2; }
  int64_t bytes(const RowwiseCall& call) const { return call.layout.rows * (leaves + tree() + 1) * state_bytes(call); }
};

}  // namespace torchreduce
