// The gradients of norms together with those of their weights and biases: g and x are read once, of few rows twice.
#pragma once
#include "rows_call.h"

namespace torchreduce {

struct NormGradientsShape : RowwiseLaunch {
  int64_t units = 1;  // runs of residues that columns are cut into, through all leaves
  int run = 1;        // residues of a unit
  int cluster = 1;    // blocks that have a row together
  int stride = 0;     // columns from a block's first to the next one's: whole leaves
  int columns = 0;    // of a block, at most: the last one may have a few more
  int lanes = 0;      // of a row, fewer than residues, that threads have in registers; else rows are in shared memory
  bool anywhere = false;  // rows start or end off a granule, short ones off a group
  int writers = 32;       // threads that have columns
  int summers = 32;       // those that sum along rows
  // Few rows: the first blocks have rows, each by so many threads; the others have columns, each by so many warps,
  // which have `run` rows each.
  bool few = false;
  int row_blocks = 0, log_threads = 0, log_warps = 0;

  template <class Visit> void each(Visit visit) const {
    visit("units", units);
    visit("run", run);
    visit("cluster", cluster);
    visit("lanes", lanes);
    visit("anywhere", anywhere);
    visit("few", few);
  }
};

namespace norm_gradients {

using namespace plans;

constexpr int kMostColumns = 4096, kMostMore = 256;  // of a block, whole leaves; that the last one has besides
constexpr int kMostWarps = (kMostColumns + kMostMore) / (8 * 32);
constexpr int kThreads = 32 * (kMostWarps + (kMostWarps + 1) / 2 + 1);  // of a block: writers, summers, the last warp
constexpr int kResident = 896;  // threads of a multiprocessor that there are registers for
constexpr int kStages = 5;      // batches of rows in shared memory
constexpr int kTurns = 4;       // batches whose sums are on their way, or known
constexpr int kMostCluster = 8;
constexpr int kMostOfOneLeaf = 4;      // blocks of a cluster, with one leaf of a row each
constexpr int kReserved = 1024 + 512;  // bytes of shared memory of a block that are not dynamic
constexpr int kUnitRows = 5;           // that a cluster could have in the time in which it starts, and leaves its sums
// Levels of the tree over the residues of a unit, of which a block makes one or two sums for each column; and the sums
// that it keeps of a column in shared memory.
TR_HD constexpr int levels(int sums) { return sums == 2 ? 2 : 3; }
TR_HD constexpr int kept_sums(int sums) { return levels(sums) * sums - 1; }
// Rows of a batch; neighbours that a lane sums at once; of a leaf, warps that it takes.
TR_HD constexpr int batch(int size) { return 4 / size; }
TR_HD constexpr int word(int size) { return 8 / size; }
TR_HD constexpr int parts(int size) { return kResidues / (32 * word(size)); }
// Bytes that a row of so many takes in shared memory: with all of the granules that it touches, wherever it starts.
TR_HD constexpr int slot(int bytes, bool anywhere) { return (bytes + 15) / 16 * 16 + (anywhere ? 16 : 0); }
// Writers that have columns, 8 each: of float32 two granules, of which the second are those after all writers' first.
TR_HD constexpr int holders(int size, int columns, int writers) { return size == 2 ? columns / 8 : writers; }
// Of a batch of rows of so many leaves.
TR_HD constexpr int partial_sums(int size, int leaves) { return batch(size) * leaves * parts(size); }
constexpr int kPartialBytes = 8;  // the sums of a part of a leaf

// Leaves of a block for rows of so many: as many as it holds where clusters of it are as well filled, at least nearly,
// as of blocks of one leaf, of which a multiprocessor has two.
inline int leaves_of_block(int64_t length) {
  const auto filled = [&](int64_t leaves) {
    const int64_t columns = leaves * kLeaf;
    return double(length) / double(ceil_div(length, columns) * columns);
  };
  constexpr int kMost = kMostColumns / kLeaf;
  return length > kMostColumns && ceil_div(length, kLeaf) <= kMostOfOneLeaf && filled(1) > 1.1 * filled(kMost) ? 1
                                                                                                               : kMost;
}

// Of short rows: threads of a block, blocks of a multiprocessor that there are registers for, and rows of a residue
// that a thread loads at once.
constexpr int kShortThreads = 256, kShortBlocks = 2;
TR_HD constexpr int rows_at_once(int size) { return 8 / size; }

// Units of `run` residues, through all leaves; residues of the first leaf, which all others have.
inline int64_t units_of(int64_t rows, int64_t run) {
  return (ceil_div(rows, kLeaf) - 1) * (kResidues / run) + ceil_div(std::min<int64_t>(rows, kResidues), run);
}

// Clusters that a device has room for, with so many blocks on a multiprocessor: those of a cluster are in one GPC, of
// 16 or 18 multiprocessors on an H100.
inline int64_t clusters_at_once(int64_t multiprocessors, int64_t blocks, int64_t cluster) {
  constexpr int64_t kTogether = 16;
  return std::max<int64_t>(1, multiprocessors / kTogether * (kTogether * blocks / cluster));
}
// Residues of a unit of clusters, each of which takes one: by the time until the last of them ends, which may be one
// that has found no room with the others.
inline int run_of_clusters(int64_t rows, int most, int64_t at_once) {
  const auto time = [&](int run) {
    const int64_t of_unit = run * std::min<int64_t>(ceil_div(rows, kResidues), kLeaf / kResidues);
    return (ceil_div(units_of(rows, run), at_once) + 1) * (of_unit + kUnitRows);
  };
  int best = most;
  for (int run = most; run >= 1; run /= 2)
    if (time(run) < time(best)) best = run;
  return best;
}

// Rows of at most a warp's lanes, with 8 columns each.
inline NormGradientsShape short_rows(const Layout& l, int sums, bool anywhere, int multiprocessors) {
  NormGradientsShape s;
  s.anywhere = anywhere || l.length % 8 != 0;
  for (s.lanes = 1; s.lanes * 8 < l.length;) s.lanes *= 2;
  s.threads = kShortThreads;
  s.shared = kShortThreads * 8 * kept_sums(sums) * 4;
  const int groups = kShortThreads / s.lanes;
  s.run = std::min(1 << levels(sums), s.lanes);
  while (s.run > 1 && units_of(l.rows, s.run * groups) < 4 * multiprocessors) s.run /= 2;
  s.blocks = s.units = s.splits = units_of(l.rows, s.run * groups);
  s.workspace = 2 * s.units * l.length * 4;
  return s;
}

// Few rows (few_norm_rows.cuh): threads of a leaf, and of a block at most; leaves of a row at most. Rows that a warp
// has on their way at once, which it has all in all as long as so many warps are not more than kFewWarps.
constexpr int kFewThreads = kResidues / 2, kMostFewLeaves = 8, kMostFewThreads = kFewThreads * kMostFewLeaves;
constexpr int kFewAtOnce = 8, kFewWarps = 16;
static_assert(kFewWarps * 2 * kFewAtOnce == kResidues, "a warp has two batches at most");

// Rows of pairs of elements, each of which is a residue of its own. Forced lanes or leaves are those of other kernels.
inline std::optional<NormGradientsShape> few_rows(const RowwiseCall& call, const PlanOverride& forced) {
  const Layout& l = call.layout;
  const auto pairs = [](const void* p, Dtype d) { return reinterpret_cast<uintptr_t>(p) % (2 * size_of(d)) == 0; };
  if (forced.lanes > 0 || forced.leaves > 0 || forced.vector_loads == 0) return {};
  if (l.rows > kResidues || l.length > kMostFewLeaves * kLeaf || l.length % 2 != 0) return {};
  for (int64_t pitch : {l.in[0], l.out[0], call.more_strides[0][0]})
    if (l.kept == 1 && pitch % 2 != 0) return {};
  for (const void* p : {call.in[0], call.in[1], static_cast<const void*>(call.out)})
    if (!pairs(p, call.dtype)) return {};
  if (!pairs(call.weight, call.weight_dtype)) return {};
  NormGradientsShape s;
  s.few = true;
  const int64_t of_row = kFewThreads * power_of_two(ceil_div(l.length, kLeaf));
  const int64_t warps = std::min<int64_t>(kFewWarps, power_of_two(ceil_div(l.rows, kFewAtOnce)));
  s.threads = int(std::max(of_row, 32 * warps));
  const int64_t of_column = std::min<int64_t>(s.threads / 32, power_of_two(l.rows));
  while (1 << s.log_threads < of_row) ++s.log_threads;
  while (1 << s.log_warps < of_column) ++s.log_warps;
  s.run = int(power_of_two(ceil_div(l.rows, of_column)));
  s.row_blocks = int(ceil_div(l.rows, s.threads / of_row));
  s.blocks = s.row_blocks + ceil_div(l.length, s.threads / of_column * 2);
  return s;
}

inline std::optional<NormGradientsShape> serves(const RowwiseCall& call, const DeviceFacts& device,
                                                const PlanOverride& forced) {
  const bool rms = call.op == Rowwise::RmsNormGradient, layer = call.op == Rowwise::LayerNormGradient;
  if ((!rms && !layer) || !call.memory.values[0] || !has_plain_rows(call)) return {};
  const Layout& l = call.layout;
  const int size = size_of(call.dtype);
  if (l.kept > 1 || l.reduced != 1) return {};
  if (l.kept == 1 && call.more_strides[1][0] != 1) return {};
  if (l.rows > INT32_MAX / 2) return {};
  const bool anywhere = !row_alignment(call).aligned;
  for (int64_t pitch : {l.in[0], l.out[0], call.more_strides[0][0]})
    if (magnitude(pitch) > INT32_MAX / size || (anywhere && pitch < 0)) return {};
  for (const void* p : {call.in[0], call.in[1], static_cast<const void*>(call.out)})
    if (reinterpret_cast<uintptr_t>(p) % size != 0) return {};
  if (call.weight && call.weight_dtype != call.dtype && call.weight_dtype != Dtype::F32) return {};
  if (const auto few = few_rows(call, forced)) return few;
  if (!device.wide_reductions) return {};
  if (l.length < kResidues) return short_rows(l, layer ? 2 : 1, anywhere, device.multiprocessors);
  if (!device.bulk_copies) return {};
  const RowwiseFacts f = facts(call.op);
  NormGradientsShape s;
  const int64_t of_block = kLeaf * (forced.leaves > 0 ? std::min(forced.leaves, 2) : leaves_of_block(l.length));
  s.anywhere = anywhere;
  const int64_t leaves = ceil_div(l.length, kLeaf);
  if (leaves * parts(size) > 32) return {};
  // Bytes of a block's shared memory, by blocks of `stride` columns; the last one has what is left.
  const auto take = [&](int64_t stride, int64_t cluster) {
    s.stride = int(stride);
    s.cluster = int(cluster);
    s.columns = int(ceil_div(std::max(l.length - (cluster - 1) * stride, cluster > 1 ? stride : 0), 8) * 8);
    const int n = s.columns, rows = kStages * batch(size), warps = int(ceil_div(n, 8 * 32));
    s.writers = warps * 32;
    s.summers = (warps + 1) / 2 * 32;
    s.threads = s.writers + s.summers + 32;
    s.shared = rows * (2 * slot(n * size, s.anywhere) + f.stats * 4) + n * 4 +
               holders(size, n, s.writers) * 8 * kept_sums(layer ? 2 : 1) * 4 +
               kTurns * partial_sums(size, int(leaves)) * kPartialBytes;
    return s.shared + kReserved;
  };
  const int room = device.shared + 1024;
  const int64_t more = l.length % kMostColumns,
                whole = l.length / kMostColumns;  // blocks without another one for those
  const bool joined = forced.leaves <= 0 && whole > 0 && more > 0 && more <= kMostMore && whole <= kMostCluster &&
                      (whole == 1 || device.clusters) && take(kMostColumns, whole) <= room;
  const int64_t cluster = joined ? whole : ceil_div(l.length, of_block);
  if (cluster > (device.clusters ? kMostCluster : 1)) return {};
  const int reserved = take(joined ? kMostColumns : of_block, cluster);
  if (reserved > room) return {};
  const int64_t blocks = std::min<int64_t>(room / reserved, kResident / s.threads);
  const int64_t at_once =
      cluster > 1 ? clusters_at_once(device.multiprocessors, blocks, cluster) : device.multiprocessors * blocks;
  s.run = 1 << levels(layer ? 2 : 1);
  if (cluster > 1) s.run = run_of_clusters(l.rows, s.run, at_once);
  else
    while (s.run > 1 && units_of(l.rows, s.run) < at_once) s.run /= 2;
  s.units = units_of(l.rows, s.run);
  s.blocks = cluster > 1 ? s.units * cluster : std::min(s.units, at_once);
  s.splits = s.units;
  s.workspace = 2 * s.units * l.length * 4;
  return s;
}

}  // namespace norm_gradients
}  // namespace torchreduce
