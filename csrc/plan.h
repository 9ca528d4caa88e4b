// Which kernel serves a call, and with what launch shape: a pure host function of the call and the device (call.h).
// No field of a plan changes a bit of the result.
#pragma once
#include <string>

#include "shape.h"

namespace torchreduce {

enum class Family : int {
  Rows = 0,         // lanes along a row
  Columns = 1,      // lanes across rows, each walking its own
  Chain = 2,        // scans: one row over many blocks, carries by look-back
  ColumnsChain = 3  // scans: the same with lanes across rows
};

struct DeviceFacts {
  bool gpu = false;
  int multiprocessors = 0;  // GPU: streaming multiprocessors or compute units; CPU: threads
};

struct Plan {
  Family family = Family::Rows;
  int lanes = 1;          // lanes a row (Rows), or row-threads a column (Columns), a power of two
  int warps = 1;          // Rows: warps a row within a block, a power of two
  int leaves = 1;         // reductions: leaves in a row, one warp's (Rows) or one block's (Columns) run; a power of two
  int64_t splits = 1;     // reductions: runs a row, each leaving a partial; scans: block tiles a row (chains)
  int64_t blocks = 1;     // grid size; CPU: tasks
  int threads = 1;        // block size; CPU: 1
  int64_t workspace = 0;  // bytes
  bool vector_loads = false;  // 16-byte loads along rows
};

// Fields a test or a user forces; -1 leaves the planner's choice. A value a case cannot be served with is an
// std::invalid_argument.
struct PlanOverride {
  int family = -1;
  int lanes = -1;
  int warps = -1;
  int leaves = -1;
  int vector_loads = -1;
};
void force_plan(const PlanOverride& forced);  // for the process, until the next call
PlanOverride forced_plan();

const char* family_name(Family family);

}  // namespace torchreduce
