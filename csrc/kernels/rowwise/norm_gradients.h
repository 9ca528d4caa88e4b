// The gradients of norms together with those of their weights and biases: g and x are read once.
#pragma once
#include "rows_call.h"

namespace torchreduce {

struct NormGradientsShape : RowwiseLaunch {
  int64_t units = 1;  // runs of residues that columns are cut into, through all leaves
  int run = 1;        // residues of a unit
  int writers = 32;   // threads that have columns
  int summers = 32;   // those that sum along rows

  template <class Visit> void each(Visit visit) const {
    visit("units", units);
    visit("run", run);
  }
};

namespace norm_gradients {

using namespace plans;

constexpr int kMostColumns = 4096;                                                                        // of a row
constexpr int kWriters = kMostColumns / 8, kSummers = kWriters / 2, kThreads = kWriters + kSummers + 32;  // of a block
constexpr int kResident = 896;  // threads of a multiprocessor that there are registers for
constexpr int kStages = 5;      // batches of rows in shared memory
// Levels of the tree over the residues of a unit, of which a block makes one or two sums for each column; and the sums
// that it keeps of a column in shared memory.
TR_HD constexpr int levels(int sums) { return sums == 2 ? 2 : 3; }
TR_HD constexpr int kept_sums(int sums) { return levels(sums) * sums - 1; }
// Rows of a batch; neighbours that a lane sums at once; of a leaf, warps that it takes.
TR_HD constexpr int batch(int size) { return 4 / size; }
TR_HD constexpr int word(int size) { return 8 / size; }
TR_HD constexpr int parts(int size) { return kResidues / (32 * word(size)); }
TR_HD constexpr int partial_sums(int size, int leaves, int sums) { return batch(size) * sums * leaves * parts(size); }

inline std::optional<NormGradientsShape> serves(const RowwiseCall& call, const DeviceFacts& device,
                                                const PlanOverride&) {
  const bool rms = call.op == Rowwise::RmsNormGradient, layer = call.op == Rowwise::LayerNormGradient;
  if ((!rms && !layer) || !call.memory.values[0] || !device.bulk_copies || !has_plain_rows(call)) return {};
  const Layout& l = call.layout;
  const int size = size_of(call.dtype);
  if (l.kept != 1 || l.reduced != 1 || call.more_strides[1][0] != 1 || !row_alignment(call).aligned) return {};
  if (l.length < kResidues || l.length > kMostColumns || l.rows < kResidues || l.rows > INT32_MAX / 2) return {};
  for (int64_t pitch : {l.in[0], l.out[0], call.more_strides[0][0]})
    if (magnitude(pitch) > INT32_MAX / size) return {};
  if (call.weight && call.weight_dtype != call.dtype && call.weight_dtype != Dtype::F32) return {};
  const RowwiseFacts f = facts(call.op);
  const int n = int(l.length), leaves = int(ceil_div(n, kLeaf)), rows = kStages * batch(size);
  NormGradientsShape s;
  const int warps = int(ceil_div(n, 8 * 32));
  s.writers = warps * 32;
  s.summers = (warps + 1) / 2 * 32;
  s.threads = s.writers + s.summers + 32;
  s.shared = rows * (2 * n * size + f.stats * 4) + n * 4 + s.writers * 8 * kept_sums(layer ? 2 : 1) * 4 +
             2 * partial_sums(size, leaves, f.sums) * 4;
  const int of_block = s.shared + 1024;
  if (of_block > device.shared) return {};
  const int64_t at_once =
      device.multiprocessors * std::min<int64_t>((device.shared + 1024) / of_block, kResident / s.threads);
  const int64_t row_leaves = ceil_div(l.rows, kLeaf);
  s.run = 1 << levels(layer ? 2 : 1);
  while (s.run > 1 && row_leaves * (kResidues / s.run) < at_once) s.run /= 2;
  s.units = row_leaves * (kResidues / s.run);
  s.blocks = std::min(s.units, at_once);
  s.splits = s.units;
  s.workspace = 2 * s.units * n * 4;
  return s;
}

}  // namespace norm_gradients
}  // namespace torchreduce
