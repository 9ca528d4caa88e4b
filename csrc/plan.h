// Which kernel serves a call, and with what launch shape: a pure host function of the call and the device (call.h).
// No field of a plan changes a bit of the result.
#pragma once
#include <string>

#include "order.h"
#include "shape.h"

namespace torchreduce {

enum class Family : int {
  Rows = 0,          // lanes along a row
  Columns = 1,       // lanes across rows, each walking its own
  Chain = 2,         // scans: one row over many blocks, carries by look-back
  ColumnsChain = 3,  // scans: the same with lanes across rows that are few
  Pipeline = 4       // scans: as Chain, by blocks that stay, with bulk copies
};

constexpr int kPortableShared = 48 << 10;  // bytes of shared memory a block that every GPU has without being asked

struct DeviceFacts {
  bool gpu = false;
  int multiprocessors = 0;       // GPU: streaming multiprocessors or compute units; CPU: threads
  bool bulk_copies = false;      // GPU: bulk copies between global and shared memory, and kernels built for them
  int shared = kPortableShared;  // GPU: bytes of shared memory that a block may ask for
};

struct Plan {
  Family family = Family::Rows;
  int lanes = 1;          // lanes a row (Rows), or row-threads a column (Columns), a power of two unless rows are whole
  int warps = 1;          // Rows: warps a row within a block; scans, Columns: tiles of a block; a power of two
  int strip = 1;          // scans, Columns: neighbouring columns, or vectors of them, side by side in a block
  int behind = 1;         // scans, Columns: jobs between a tile's total and its results: 1 or 2
  int leaves = 1;         // reductions: leaves in a row, one warp's (Rows) or one block's (Columns) run; a power of two
  int64_t splits = 1;     // reductions: runs a row, each leaving a partial; scans: block tiles a row (chains)
  int64_t blocks = 1;     // grid size; CPU: tasks
  int threads = 1;        // block size; CPU: 1
  int shared = 0;         // scans, Columns: bytes of dynamic shared memory a block
  int64_t workspace = 0;  // bytes
  bool vector_loads = false;  // 16-byte loads along rows
  bool whole = false;         // scans, Rows: lanes hold whole rows in registers; else each is walked
};

// What kernels are compiled for.
constexpr int kStripBytes = 128;   // of neighbouring columns, from which on they are taken in strips
constexpr int kColumnJobs = 8;     // the tiles of columns that the warps of a block speak of,
constexpr int kColumnCarries = 4;  // and those whose carries they have
// Threads of a block of columns that work, at most: what registers and shared memory allow, given the bytes of an
// element and of an accumulator. One column a thread fits wherever there are bulk copies, be it only 99 KiB a block.
TR_HD constexpr int column_threads(int vector, int size, int acc) {
  if (vector == 1) return size > 16 ? 128 : size > 8 ? 192 : acc > 8 ? 256 : acc > 4 ? 192 : 320;
  return size > 4 || acc > 4 ? 192 : 256;
}
// Those of it that form the carries into `chains` columns of its tiles: some lanes for each, so that all the totals it
// takes are looked at together. A multiple of 64, for AMD's wavefronts.
TR_HD constexpr int carry_lanes(int vector, int acc) { return vector > 2 ? 2 : acc > 8 ? 8 : 4; }
TR_HD constexpr int carry_threads(int chains, int vector, int acc) {
  return (chains * carry_lanes(vector, acc) + 63) / 64 * 64;
}
// Neighbouring columns of a thread, where their accumulators take at most kColumnAccs bytes: else registers are too
// few.
TR_HD constexpr int column_vector(int size, int acc) { return acc > 4 && size < 8 ? 2 : size == 2 ? 4 : 16 / size; }
constexpr int kColumnAccs = 32;
// Whether such vectors leave room for the elements of one more job.
TR_HD constexpr bool far_behind(int vector, int size) { return vector > 1 && vector * size <= 8; }
constexpr int kColumnShared = 1 << 10;      // the most of them that a block of columns has apart from Plan::shared
constexpr int kPipelineThreads = 800;       // of Pipeline's blocks
constexpr int kPipelineShared = 216 << 10;  // the most bytes of shared memory that one has
// The bytes of the largest accumulators that a warp walks rows with: of two float64 inputs there are too few registers.
constexpr int kWalkedAcc = 16;
// Groups of whole rows that a lane holds, given the bytes of an accumulator; a row of at most two tiles needs no more.
TR_HD constexpr int held_groups(int acc) { return acc > 4 ? 2 : 4; }
// The same of those whose kernels are for two inputs or have indices, given the bytes of an element: at most
// kHeldGroups, which rows of a block tile need. The more a lane has, the fewer instructions an element takes; of
// elements of more bytes fewer are enough. Of rows of at most a tile a lane takes that many, if one stride leads
// through all of them.
constexpr int kHeldGroups = 4;
TR_HD constexpr int held_groups_wanted(int size) { return size == 2 ? 4 : size == 4 ? 2 : 1; }
TR_HD constexpr int held_groups(const Layout& layout, int size, int warps) {
  if (layout.length <= kTile) return layout.kept > 1 ? 1 : held_groups_wanted(size);
  int groups = 1;
  while (groups * warps * kTile < layout.length) groups *= 2;
  return groups;
}

// What plans ask of GPU `device`; nothing in a build without a GPU part.
DeviceFacts gpu_facts(int device);

// Fields a test or a user forces; -1 leaves the planner's choice. A value a case cannot be served with is an
// std::invalid_argument.
struct PlanOverride {
  int family = -1;
  int lanes = -1;
  int warps = -1;
  int leaves = -1;
  int vector_loads = -1;
  int whole = -1;  // 0: walk rows
};
void force_plan(const PlanOverride& forced);  // for the process, until the next call
PlanOverride forced_plan();

const char* family_name(Family family);

}  // namespace torchreduce
