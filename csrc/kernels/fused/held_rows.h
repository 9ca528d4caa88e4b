// Rows of neighbouring elements that stay on chip between the looks, in the registers of a part of a warp, of a warp, a
// block, or a cluster of blocks.
#pragma once
#include "rows_call.h"

namespace torchreduce {

namespace held_rows {

constexpr int kMostLeaves = 128;  // of a row
constexpr int kLeafChunks = 8;    // chunks of 8 elements that a lane has of a leaf
constexpr int kHalfChunks = 4;    // of rows of half a leaf at most, and of what is mapped without looks
// Of rows of 256 elements at most, by groups of lanes. (Two chunks share what a row costs.)
TR_HD constexpr int short_chunks(int size) { return size == 2 ? 2 : 1; }
constexpr int kDeclaredShared = 8 << 10;  // bytes of a block that are not dynamic, at most
constexpr int kMostCluster = 8;           // blocks: what every GPU with clusters has

// What a launch does: all of a row; or the states of its leaves, or what follows from them.
enum class Part : int8_t { Whole, States, Output };

}  // namespace held_rows

struct HeldRowsShape : FusedLaunch {
  int lanes = 32;       // of a row, fewer than 32 where it has one chunk a lane
  int chunks = 1;       // of a lane
  int leaves = 1;       // of a row, or what a warp has of one without looks
  int cluster = 1;      // blocks that hold a row together
  bool folded = false;  // the states of rows that are split have become one before the second launch
  held_rows::Part part = held_rows::Part::Whole;

  template <class Visit> void each(Visit visit) const {
    visit("lanes", lanes);
    visit("chunks", chunks);
    visit("warps", threads / 32);
    visit("cluster", cluster);
  }
};

namespace held_rows {

using namespace plans;

// Chunks whose terms wait in shared memory instead of in registers, so that more rows are on their way.
TR_HD constexpr int shared_terms(int size, int chunks) { return chunks < kLeafChunks ? 0 : size == 2 ? 5 : 3; }

// Threads of a multiprocessor that there are registers for, and of a block at most: a lane's elements, what it has
// between them, and what a chunk needs. (H100, bfloat16 softmax of 4096: 0.67 of a copy for 1024 threads, where
// registers go to memory, 0.89 for 896, 0.95 for 768.)
TR_HD constexpr int threads(int size, int inputs, bool term, int sides, int chunks) {
  const int elements = chunks * kGroup * size / 4 * inputs;
  const int terms = term ? (chunks - shared_terms(size, chunks)) * kGroup : 0;
  const int words = std::max(elements, terms);
  if (chunks < kHalfChunks) return 256;
  return words <= 32 ? (sides ? 640 : 768) : words <= 64 ? (sides + inputs > 2 ? 512 : 640) : 384;
}

// Warps of a block, and blocks of a cluster, for a row of that many leaves: as many leaves on chip at once as there may
// be, and small blocks, of which some load while others store.
struct Team { int warps, cluster; };
inline Team team(int leaves, int most_threads, bool clusters) {
  const int most = most_threads / 32;
  Team best{0, 0};
  double held = 0;
  for (int cluster = 1; cluster <= (clusters ? kMostCluster : 1); ++cluster) {
    const int warps = int(ceil_div(leaves, cluster));
    if (warps > most || (cluster > 1 && leaves <= 4)) continue;
    if (cluster > 1 && cluster < kMostCluster && warps > most / 2) continue;
    // Of what a multiprocessor holds, that which is of use.
    const double use = double(most / warps * warps) * leaves / (warps * cluster);
    if (use > held * 1.07) {
      best = {warps, cluster};
      held = use;
    }
  }
  return best;
}

inline std::optional<HeldRowsShape> shape_for(const FusedCall& call, const DeviceFacts& device) {
  if (!has_plain_rows(call)) return {};
  const FusedFacts f = facts(call.op);
  const Layout& l = call.layout;
  const int size = size_of(call.dtype);
  const RowAlignment rows = row_alignment(call);
  const bool weighted = call.weight || call.bias;
  if (weighted && call.weight_dtype != call.dtype && call.weight_dtype != Dtype::F32) return {};
  const bool granules =
      size == 2 && rows.alike && (!weighted || (rows.aligned && aligned(call.weight) && aligned(call.bias)));
  HeldRowsShape s;
  if (l.length <= kResidues && !(granules && rows.aligned)) {
    s.chunks = 1;
  } else {
    if (size == 2 && !granules) return {};
    const int64_t most_short = size == 2 && rows.aligned ? 2 * kResidues : kResidues;
    s.chunks = l.length <= most_short                ? short_chunks(size)
               : l.length <= kLeaf / 2 || !f.looks() ? kHalfChunks
                                                     : kLeafChunks;
  }
  if (s.chunks <= short_chunks(size)) s.lanes = int(power_of_two(ceil_div(l.length, kGroup * s.chunks)));
  const int64_t span = f.looks() ? kLeaf : int64_t(32) * kGroup * s.chunks;  // of a warp
  s.leaves = int(std::min<int64_t>(ceil_div(l.length, span), INT32_MAX));
  int most = threads(size, f.inputs, f.term, f.weights + f.biases, s.chunks);
  const int away = f.term ? shared_terms(size, s.chunks) * kGroup * 4 : 0;  // bytes of a thread
  if (away > 0) most = std::min(most, (device.shared - kDeclaredShared) / away / 32 * 32);
  if (s.leaves == 1) {
    const int64_t warps = ceil_div(l.rows, 32 / s.lanes);
    s.threads = s.chunks == kLeafChunks ? 128 : 256;
    while (s.threads > 32 && ceil_div(warps, s.threads / 32) < device.multiprocessors) s.threads /= 2;
    s.blocks = ceil_div(warps, s.threads / 32);
  } else if (!f.looks()) {
    s.threads = 128;
    while (s.threads > 32 && s.threads / 32 >= 2 * s.leaves) s.threads /= 2;
    s.splits = ceil_div(s.leaves, s.threads / 32);
    s.blocks = l.rows * s.splits;
  } else {
    const Team best = s.leaves <= kMostLeaves ? team(s.leaves, most, device.clusters) : Team{0, 0};
    if (best.warps == 0) return {};
    s.threads = best.warps * 32;
    s.cluster = best.cluster;
    s.splits = best.cluster;
    s.blocks = l.rows * s.splits;
  }
  s.shared = away * s.threads;
  return s;
}

// Rows of which nothing is written again need not be held: their leaves go to any blocks.
constexpr int kMostRead = 4;

inline std::optional<HeldRowsShape> serves(const FusedCall& call, const DeviceFacts& device,
                                           const PlanOverride& forced) {
  if (!forced.family && !facts(call.op).maps && call.layout.length > kMostRead * kLeaf) return {};
  return shape_for(call, device);
}

}  // namespace held_rows

// Rows of more leaves than a device holds: the same kernel twice, which reads them twice.
struct SplitRowsShape : HeldRowsShape {};

namespace split_rows {

using namespace plans;

constexpr int kWarps = 4;          // of a block
constexpr int kMostRecalled = 64;  // leaves whose states each block of the second launch takes for itself

inline std::optional<SplitRowsShape> serves(const FusedCall& call, const DeviceFacts& device, const PlanOverride&) {
  const int64_t leaves = ceil_div(call.layout.length, kLeaf);
  if (leaves < 2 || !facts(call.op).looks()) return {};
  FusedCall one = call;  // whether its kernels serve it
  one.layout.length = 2 * kLeaf;
  if (const auto held = held_rows::shape_for(one, device); !held || leaves > INT32_MAX) return {};
  SplitRowsShape s;
  s.chunks = held_rows::kLeafChunks;
  s.leaves = int(leaves);
  s.threads = 32 * kWarps;
  s.splits = ceil_div(leaves, kWarps);
  s.blocks = call.layout.rows * s.splits;
  s.folded = leaves > kMostRecalled;
  s.workspace = LeafStates{leaves}.bytes(call);
  if (facts(call.op).term) s.shared = held_rows::shared_terms(size_of(call.dtype), s.chunks) * kGroup * 4 * s.threads;
  return s;
}

}  // namespace split_rows
}  // namespace torchreduce
