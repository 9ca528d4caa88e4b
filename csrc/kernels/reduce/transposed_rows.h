// Rows of several dims of which the last is not the one whose elements are neighbours in memory, i. A row is slices,
// one after the other, of columns i, each a stretch of positions j: element (slice * columns + i) * stretch + j.
#pragma once
#include "column_call.h"
#include "outer.h"

namespace torchreduce {

struct TransposedRowsShape : ReduceLaunch {
  bool tiles = false;   // short stretches, else long ones
  int run = 1;          // leaves that a block takes: of a row; of long stretches, of each column
  int runs = 1;         // of each column that a block of long stretches takes, a power of two
  int parts = 1;        // of a row, or of a column, one for a block
  int64_t rows = 1;     // whole ones that a block takes
  int64_t strips = 1;   // of a slice: columns that a block takes together
  int granules = 1;     // of a row of memory that a block of short ones needs, at most
  int dim = 0;          // of the layout, i's
  int64_t columns = 1;  // its size
  int64_t stretch = 1;  // those of all dims after it
  int64_t slices = 1;   // and of the reduced ones before it
  int64_t leaves = 1;   // of a row
  int64_t extent = 1;   // elements from the tensor's first in memory to its last, that included
  bool whole = false;   // slices begin at granules in each row of memory

  template <class Visit> void each(Visit visit) const {
    visit("leaves", run);
    visit("runs", runs);
    visit("parts", parts);
    visit("tiles", tiles);
    visit("rows", rows);
    visit("whole", whole);
  }
};

// Whether the kernels are compiled for elements of that type. Of products they would be too long.
template <class Op> constexpr bool has_transposed_rows(Dtype d) {
  return Op::reads(d) && has_small_columns<Op>(d) && (!Op::kAnyOrder || Op::kIndexed) && !kTwice<Op>;
}

namespace transposed_rows {

using namespace plans;

// Long stretches.
constexpr int kThreads = 256, kBlocks = 2;       // of a block; of a multiprocessor, that there are registers for
constexpr int kColumns = 32;                     // of a block, a lane each
constexpr int kPitch = kColumns + 1;             // of a residue in shared memory, and of a load's offsets
constexpr int kMostRuns = kThreads / 32;         // a warp each, of few columns
constexpr int kRun = kResidues * 32 / kThreads;  // rows that a thread has of a window
constexpr int kMaxRun = 64;
constexpr int kBlockStart = 2;  // windows' time that a block takes to begin and end
constexpr int kFold = 2048;     // leaves whose values a block combines
// Above so many loads an element strided is faster, idle lanes counted (H200, 176 sums of 2^25 elements, bfloat16 and
// float32, stretches of 2100 to 90000, 3 to 48 columns: as chosen by these 1 to 3 % over the faster of both).
constexpr int kFewColumns = 16;
constexpr int kMostLoads = 3, kMostLoadsOfMany = 5;

// Short ones. Tiles of 32 KiB leave the first cache what loads on their way need (H100, sum of float32 of 64 rows,
// transposed: 0.70 of the read ceiling, with 64 KiB 0.48; of bfloat16 0.55 and 0.46). They have twice as many bytes
// where else they would have less than a sector of each row of memory (H200, all of (1603, 55629).T, float32: 322 us,
// else 424; bfloat16 202, else 279). Of rows of fewer sectors strided is faster (float32 (65536, 16, 16, 4), channels
// last, 225 us, strided 142; of 16 channels 106 and 221).
constexpr int kMostStretch = 2048;
constexpr int kTileBytes = 32 << 10, kSector = 32;
constexpr int kMostTileLeaves = 32;       // that a tile's rows have
constexpr int kMostSegments = 128;        // of a tile: slices that it has a part of
constexpr int kLeastRow = kResidues;      // shorter ones have too few elements for a warp
constexpr int kDeclaredShared = 5 << 10;  // bytes of a block that are not dynamic, at most

inline int64_t blocks_at_once(const DeviceFacts& device) { return kBlocks * int64_t(device.multiprocessors); }
// Of a block of long stretches: those that it has rows of, and its start.
inline int64_t windows(const TransposedRowsShape& s) {
  return kGroup * s.run + (s.stretch % kLeaf == 0 ? 1 : kGroup) + kBlockStart;
}
// Of long stretches. As many leaves a run as make the turns of blocks, all together, shortest: a run takes a leaf's
// rows more where leaves begin anywhere.
inline void take_strips(TransposedRowsShape& s, const ReduceCall& call, const DeviceFacts& device,
                        const PlanOverride& forced) {
  s.threads = kThreads;
  for (; s.runs < kMostRuns && 2 * s.runs * s.columns <= kColumns;) s.runs *= 2;
  s.shared = (any_order(call) ? kThreads / 32 : kResidues) * kPitch * column_facts(call).near +
             kThreads / 32 * s.runs * kPitch * int(sizeof(int64_t));
  s.strips = ceil_div(s.columns, kColumns);
  const int64_t most = ceil_div(s.stretch, kLeaf);  // leaves that begin in a column
  const int64_t columns = call.layout.rows * s.slices * s.strips, at_once = blocks_at_once(device);
  auto cut = [&](int64_t run) {
    s.run = int(run);
    s.parts = int(ceil_div(most, s.run * s.runs));
    s.blocks = columns * s.parts;
  };
  int64_t best = 0, best_run = 1;
  for (int64_t run = 1; run <= std::min<int64_t>(kMaxRun, most); ++run) {
    cut(run);
    const int64_t turns = ceil_div(s.blocks, at_once) * windows(s);
    if (best == 0 || turns < best) best = turns, best_run = run;
  }
  cut(best_run);
  if (forced.leaves >= 0) {
    take(forced.leaves, s.run, kMaxRun, "leaves");
    cut(s.run);
  }
}
// Tiles have twice as many bytes for long ones.
inline int sectors(const TransposedRowsShape& s) { return s.stretch * kSector > kTileBytes ? 2 : 1; }
// Of short ones: a part of a row, or some whole rows.
inline void take_tiles(TransposedRowsShape& s, const ReduceCall& call, const DeviceFacts& device,
                       const PlanOverride& forced) {
  const Layout& l = call.layout;
  const int size = size_of(call.in.dtype), per = 16 / size;
  const int bytes = sectors(s) * kTileBytes;
  s.run = bytes / size / kLeaf;
  while (s.run > 1 && l.rows * ceil_div(s.leaves, s.run) < 2 * int64_t(device.multiprocessors)) s.run /= 2;
  take(forced.leaves, s.run, kMostTileLeaves, "leaves");
  if (s.leaves <= s.run) s.run = int(s.leaves);
  s.parts = int(ceil_div(s.leaves, s.run));
  if (s.parts == 1) {
    const int64_t pitch = ceil_div(l.length, per) * per, room = bytes / size;
    s.rows = std::max<int64_t>(1, std::min({room / pitch, int64_t(kMostTileLeaves) / s.leaves, kMostSegments / s.slices,
                                            l.rows / (2 * device.multiprocessors)}));
    s.shared = int(s.rows * pitch * size);
  } else {
    s.shared = s.run * kLeaf * size;
  }
  const int64_t wide = std::min<int64_t>(s.columns, ceil_div(int64_t(s.run) * kLeaf, s.stretch) + 1);
  s.granules = int(ceil_div(wide * size + (s.whole && wide == s.columns ? 0 : 16 - size), 16));
  s.blocks = ceil_div(l.rows, s.rows) * s.parts;
}

inline std::optional<TransposedRowsShape> serves(const ReduceCall& call, const DeviceFacts& device,
                                                 const PlanOverride& forced) {
  const Layout& l = call.layout;
  const ReductionFacts f = facts(call.op, call.in.dtype);
  if (!is_static(call) || !has_small_columns(call.in.dtype) || f.two || (any_order(call) && !f.indexed)) return {};
  if (call.op == Reduction::Product) return {};
  const int last = l.kept + l.reduced - 1, size = size_of(call.in.dtype), per = 16 / size;
  TransposedRowsShape s;
  s.dim = -1;
  for (int d = l.kept; d < last; ++d)
    if (l.in[d] == 1) s.dim = d;
  if (s.dim < 0 || l.rows < 1 || l.length < 1) return {};
  s.whole = aligned(call.in.data) && forced.vector_loads != 0;
  for (int d = 0; d <= last; ++d) {
    if (d >= l.kept && d < s.dim) s.slices *= l.size[d];
    if (d > s.dim) s.stretch *= l.size[d];
    if (d != s.dim) s.whole &= l.in[d] % per == 0;
    s.extent += (l.size[d] - 1) * l.in[d];
  }
  s.columns = l.size[s.dim];
  s.leaves = ceil_div(l.length, kLeaf);
  if (s.columns > INT32_MAX / 2 || s.stretch > INT32_MAX / 2) return {};
  s.tiles = s.stretch <= kMostStretch;
  if (s.tiles) {
    if (l.length < kLeastRow || (!forced.family && s.columns * size < sectors(s) * kSector)) return {};
    take_tiles(s, call, device, forced);
    const int64_t slices = std::min(s.slices, ceil_div(int64_t(s.run) * kLeaf, s.columns * s.stretch) + 1);
    if (slices * s.rows > kMostSegments) return {};
  } else {
    take_strips(s, call, device, forced);
    const int64_t at_once = blocks_at_once(device);
    const double loads = double(ceil_div(s.blocks, at_once) * at_once) * double(windows(s)) * kThreads * kRun;
    const double most = s.columns <= kFewColumns ? kMostLoads : kMostLoadsOfMany;
    if (!forced.family && loads > most * double(l.rows) * double(l.length)) return {};
  }
  if (s.shared > device.shared - kDeclaredShared) return {};
  if (s.tiles && s.parts == 1) return s;
  s.splits = ceil_div(s.leaves, kFold);
  s.workspace = l.rows * (s.leaves + s.splits) * accumulator_bytes(call);
  if (s.splits > 1) s.tickets = l.rows;
  return s;
}

}  // namespace transposed_rows
}  // namespace torchreduce
