// Which kernel serves a scan, and with what launch shape: a pure host function of the call and the device (call.h); and
// what all plans share. Those of reductions are in reduce_plan.h. No field of a plan changes a bit of the result.
#pragma once
#include <string>

#include "order.h"
#include "shape.h"

namespace torchreduce {

enum class Family : int {
  Rows = 0,      // lanes along a row
  Columns = 1,   // lanes across rows, each walking its own
  Chain = 2,     // scans: one row over many blocks, carries by look-back
  Pipeline = 3,  // scans: as Chain, by blocks that stay, with bulk copies; also of very few columns
  Walk = 4       // scans: lanes across rows that are many, each walking its own, alone or in teams
};

constexpr int kPortableShared = 48 << 10;  // bytes of shared memory a block that every GPU has without being asked

struct DeviceFacts {
  bool gpu = false;
  int multiprocessors = 0;       // GPU: streaming multiprocessors or compute units; CPU: threads
  bool bulk_copies = false;      // GPU: bulk copies between global and shared memory, and kernels built for them
  int shared = kPortableShared;  // GPU: bytes of shared memory that a block may ask for
  bool large_blocks = false;    // GPU: columns have the code for large blocks (gpu.cuh), be there room for them or not:
                                // code for Hopper also runs where a block has 99 KiB
  bool wide_reductions = true;  // GPU: the families of reductions that read 16 bytes a lane are compiled (gpu.cuh)
};

struct Plan {
  Family family = Family::Rows;
  int lanes = 1;   // lanes a row (Rows, Walk), or row-threads a column (Columns), a power of two unless rows are whole
  int warps = 1;   // Rows: warps a row within a block; scans, Columns: tiles of a block; a power of two
  int strip = 1;   // scans, Columns: neighbouring columns, or vectors of them, side by side in a block
  int vector = 1;  // scans: neighbouring columns (Columns, Pipeline) or rows (Rows) of a thread
  bool tiled = false;   // scans, Columns: blocks take plan.warps tiles of a strip each, and go
  bool ragged = false;  // scans, Columns: rows of a strip start anywhere, and are copied with what lies around them
  int strip_bytes =
      0;  // scans, Columns: of a row of a strip that warps with roles take with bulk copies; 0: they do not
  int64_t splits = 1;         // block tiles a row, or tiles of a column
  int64_t blocks = 1;         // grid size; CPU: tasks
  int threads = 1;            // block size; CPU: 1
  int shared = 0;             // scans, Columns and Chain: bytes of dynamic shared memory a block (0: Chain has too few)
  int64_t workspace = 0;      // bytes
  bool vector_loads = false;  // 16-byte loads along rows
  bool whole = false;         // scans, Rows: lanes hold whole rows in registers; else each is walked
};

// What kernels are compiled for.
constexpr int kColumnJobs = 8;     // the jobs that the warps of a block of columns speak of,
constexpr int kColumnCarries = 2;  // and those whose carries they have
// Neighbouring columns of a thread where columns are short and their accumulators take at most kColumnAccs bytes, else
// registers are too few.
TR_HD constexpr int column_vector(int size, int acc) { return acc > 4 && size < 8 ? 2 : 16 / size; }
constexpr int kColumnAccs = 32;
constexpr int64_t kShortColumn = 2 * kTile;  // positions of short columns, at most
// Threads of a block of short columns, at most: what registers and shared memory allow, given the bytes of an
// element and of an accumulator. One column a thread fits wherever there are bulk copies, be it only 99 KiB a block.
TR_HD constexpr int column_threads(int vector, int size, int acc) {
  if (vector > 1 && acc <= 8 && vector * size <= 8) return 512;
  if (vector == 1 && size > 12) return 128;
  return acc > 4 || (vector == 1 && size > 8) ? 192 : 256;
}
constexpr int kSmallBlock = 256;  // the same where blocks are not large (DeviceFacts::large_blocks)
// Whether there is a kernel for strips of neighbouring columns whose rows start anywhere. Of rows of so many bytes at
// least; narrower ones would leave too many of its lanes without a column.
TR_HD constexpr bool ragged_columns(int size, int acc) { return acc <= 4 && size <= 4; }
constexpr int kLeastRaggedBytes = 64;
// The threads of its blocks that work. A lane has a word of a row, or two 32 words apart, given the words of a strip's
// row. Strips of more than 32 words have results that begin with a whole sector, and reach into the next strip to end
// with one: of rows of so many float32 columns that neighbouring strips' parts of a sector no longer meet in the cache
// (H200, of a copy's speed: 1473 columns 0.72, by narrow strips 0.73; 2001 0.75, 0.74; 5341 0.75, 0.58; 10001 0.74,
// 0.53; bfloat16, with two columns a word, 0.46, 0.53). Bytes that a row takes in shared memory, where it begins at the
// place in a sector that it has in memory.
// Of a block: threads that work, those that form carries, and jobs from a job's totals to its results.
constexpr int kRaggedThreads = 512, kRaggedCarryThreads = 128, kRaggedBehind = 3;
constexpr int kRaggedStrip = 56, kRaggedMerged = 1792;
TR_HD constexpr int ragged_sides(int words) { return words > 32 ? 2 : 1; }
TR_HD constexpr int ragged_pitch(int sides) { return sides * 128 + 32; }
// The lane behind those that work which puts jobs, of a warp of its own, so that no carry waits (0.78 of a copy's speed
// without, 0.87 with it); with two columns a word its registers would be missed.
TR_HD constexpr int ragged_put_lane(int size) { return size < 4 ? 0 : kRaggedCarryThreads; }
TR_HD constexpr int ragged_block(int size) {
  return kRaggedThreads + kRaggedCarryThreads + (ragged_put_lane(size) ? 32 : 0);
}
// Of those that form carries as many for each of `columns` as look at all the totals that precede a tile together.
TR_HD constexpr int carry_lanes(int columns, int threads) { return 4 * columns <= threads ? 4 : 2; }
// Blocks of short columns that a multiprocessor has room for.
TR_HD constexpr int column_blocks(int threads, int acc) { return acc > 8 || threads > 256 ? 1 : 2; }
constexpr int kColumnShared = 1 << 10;  // the most bytes of shared memory of such a block apart from Plan::shared
constexpr int kChainShared = 2 << 10;   // the same of a block of a chain
constexpr int kWalkThreads = 64;        // of Walk's blocks
// Neighbouring columns of a thread, given the bytes of an element: copies take 4 bytes or 8.
TR_HD constexpr int walk_vector(int size) { return size == 2 ? 2 : 1; }
// Walk's blocks in which lanes share columns (scan_team_walk.cuh): the columns of one, the lanes of each, and the rows
// that they have at a time. Given the bytes of an element: the threads, and the blocks of a multiprocessor that there
// are registers for; and given those of what is summed, the bytes of shared memory.
constexpr int kTeamColumns = 64, kTeam = 8, kTeamRows = kTile / 2;
TR_HD constexpr int team_threads(int size) { return kTeam * kTeamColumns / walk_vector(size) + kTeamColumns; }
TR_HD constexpr int team_blocks(int size) { return size == 2 ? 2 : 1; }
TR_HD constexpr int team_shared(int size, int acc, int wide) {
  const int carry = kFanLog2 * (acc + wide) + acc + 3 * wide + 16;  // ScanCarry
  return kTeamColumns * (2 * kTeamRows * size + 2 * (wide + (2 + kTeam) * acc) + carry);
}
// Threads of Pipeline's blocks, given the bytes of an element and of an accumulator: with larger ones, its result warps
// form totals, too, and with those of two inputs store them.
TR_HD constexpr int pipeline_threads(int bytes, int acc) {
  return acc > 8 ? 640 : acc > 4 ? 672 : bytes > 2 ? 768 : 800;
}
constexpr int kPipelineShared = 216 << 10;  // the most bytes of shared memory that one has
// Strips that Columns takes by warps with roles (scan_strip_pipeline.cuh), where accumulators have at most kStripAcc
// bytes: the bytes of a row, of one tile or several side by side; the stages, of a tile of such rows and one more; and
// the threads of its blocks.
constexpr int kStripAcc = 4, kStripRow = 128, kStripStages = 6, kStripStage = (kTile + 1) * kStripRow,
              kStripThreads = 1024;
// Columns so few that Pipeline scans them side by side, at most (H200, of a copy's speed, float32 and bfloat16: 7
// columns 0.84 and 0.88, by tiles and in granules 0.56 and 0.25; 8 0.65 and 0.57, in strips 0.75 and 0.61). Given the
// bytes of an element: the parts of a block tile of theirs, which Plan::splits counts and of which a stage holds one;
// the warps of a block that form results, fewer where each needs more registers, those that form totals and those that
// store; and all its threads: 20 warps have 96 registers each, 16 have 128.
constexpr int kMostNarrow = 7;
TR_HD constexpr int narrow_parts(int columns, int size) {
  const int bytes = kBlockTile * columns * size;
  return bytes > 128 << 10 ? 8 : bytes > 64 << 10 ? 4 : 2;
}
TR_HD constexpr int narrow_result_warps(int columns, int size) {
  if (columns > 4) return columns > 5 && size > 2 ? 4 : 8;
  return columns * size > 12 ? 8 : 16;
}
TR_HD constexpr int narrow_total_warps(int columns) { return columns > 5 ? 3 : columns == 5 ? 4 : 5; }
TR_HD constexpr int narrow_store_warps(int columns) { return columns > 6 ? 1 : 2; }
TR_HD constexpr int narrow_threads(int columns, int size) {
  const int results = narrow_result_warps(columns, size), totals = narrow_total_warps(columns);
  return (results + totals + columns + narrow_store_warps(columns) + 1) * 32;
}
// The bytes of the largest accumulators that a warp walks rows with: of two float64 inputs there are too few registers.
constexpr int kWalkedAcc = 16;
// Groups of whole rows that a lane holds where kernels are for two inputs, given the bytes of an
// element: at most as many as rows of a block tile need, or of 8-byte elements as registers allow. The more a lane has,
// the fewer instructions an element takes; of elements of more bytes fewer are enough. Of rows of at most a tile a lane
// takes that many, if one stride leads through all of them.
TR_HD constexpr int most_held_groups(int size) { return size > 4 ? 2 : 4; }
TR_HD constexpr int held_groups_wanted(int size) { return size == 2 ? 4 : size == 4 ? 2 : 1; }
TR_HD constexpr int held_groups(const Layout& layout, int size, int warps) {
  if (layout.length <= kTile) return layout.kept > 1 ? 1 : held_groups_wanted(size);
  int groups = 1;
  while (groups * warps * kTile < layout.length) groups *= 2;
  return groups;
}

// Whether results of such rows, which are not stored 16 bytes at a time, are one run of memory for each warp.
TR_HD constexpr bool held_runs(const Layout& layout, bool vector_loads) {
  const int64_t along = layout.reduced ? layout.out[layout.kept] : 1;
  return !(vector_loads && layout.length % kGroup == 0) && (along == 1 || along == -1) &&
         (layout.length > kTile || layout.kept == 0 || (layout.kept == 1 && layout.out[0] == layout.length));
}

// Rows that a lane takes one after the other where they have fewer elements than a group, of at most so many bytes, and
// are one aligned run of memory.
constexpr int kPackedRows = 8, kPackedBytes = 16;

// Scans with indices along rows (scan_extremes.cuh), given the bytes of an element: the chunks of 64 positions that a
// warp takes at a time, of how many rows they are, and the positions of a block's tile where rows are split.
TR_HD constexpr int extreme_chunks(int size) { return size > 4 ? 2 : 4; }
TR_HD constexpr int extreme_rows(int64_t length, int size) {
  return length <= 64 ? extreme_chunks(size) : length <= 128 && size <= 4 ? 2 : 1;
}
TR_HD constexpr int extreme_tile(int size) { return (32 << 10) / size; }
constexpr int kExtremeBlocks = 12;  // of warps that take several rows at a time, at most so many a multiprocessor
constexpr int kExtremeLead = 15;    // the most positions before a row that are counted with it
constexpr int kExtremeSteps = 32;   // rows that a lane has of a tile of columns (scan_extreme_columns.cuh)
// The threads of a block of scan_column_tiles.cuh, and those of them that lie side by side: of two inputs, that as much
// memory is on its way.
TR_HD constexpr int column_tile_threads(int inputs) { return inputs == 2 ? 128 : 256; }
TR_HD constexpr int column_tile_lanes(int inputs) { return inputs == 2 ? 16 : 32; }
constexpr int kSectorColumns = 128;  // float32 columns that are taken by tiles wherever their rows start, at most
constexpr int kRecordFan = 16;       // tiles, and groups of them, whose records are looked at together
constexpr int kExtremeWalk = 2048;   // the longest rows that warps walk where they are few
// Rows from which on Pipeline has them where they are many, too, and the threads of its blocks.
constexpr int kExtremePipelined = 8192, kExtremePipelineThreads = 640;

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
  int whole = -1;  // 0: walk rows
  int rows = -1;   // reductions, rows: those on their way
};
void force_plan(const PlanOverride& forced);  // for the process, until the next call
PlanOverride forced_plan();

constexpr int kFamilies = 5;
const char* family_name(Family family);
// Whether lanes go across rows.
constexpr bool across_rows(Family f) { return f == Family::Columns || f == Family::Walk; }

}  // namespace torchreduce
