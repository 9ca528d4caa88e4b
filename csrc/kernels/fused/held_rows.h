// Rows of neighbouring elements that stay on chip between the looks, in the registers of a part of a warp, of a warp, a
// block, or a cluster of blocks.
#pragma once
#include "rows_call.h"

namespace torchreduce {

namespace held_rows {

constexpr int kMostLeaves = 128;  // of a row
constexpr int kLeafChunks = 8;    // chunks of 8 elements that a lane has of a leaf
constexpr int kHalfChunks = 4;    // of rows of half a leaf at most
constexpr int kLogHalfLanes = 4;  // of half a warp, which has a row of so many elements at most
constexpr int kHalfWarp = kGroup * kHalfChunks << kLogHalfLanes;
constexpr int kBarrier = 16;     // bytes of a block that are not dynamic
constexpr int kMostCluster = 8;  // blocks: what every GPU with clusters has

// How a lane has its elements: one by one, so that they may start anywhere, or by granules of 16 bytes; a warp one leaf
// of them, or several short rows, or two of up to 512 elements. Of aligned rows, which are whole granules in all
// operands, a lane asks of granules whether they are there, of few of them, and never of elements; short ones by
// granules, and halves of warps, are aligned, too.
enum class Form : int8_t { Words, Granules, AlignedRows, ShortWords, ShortGranules, HalfWarps };
TR_HD constexpr bool is_short(Form form) { return form >= Form::ShortWords; }
TR_HD constexpr bool by_granules(Form form) { return form != Form::Words && form != Form::ShortWords; }
TR_HD constexpr bool is_aligned(int size, Form form) {
  return size == 2 && (form == Form::AlignedRows || form == Form::ShortGranules || form == Form::HalfWarps);
}
// A lane's chunks of granules that are of different residues.
TR_HD constexpr int runs(int chunks, Form form) { return form == Form::HalfWarps ? 2 : is_short(form) ? chunks : 1; }
// Chunks of aligned rows of one warp, 0 where there is no such kernel: of 16-bit floats that are summed more than once
// more of them, since those take most instructions (H100, layer_norm of bfloat16, 768 and 1536: 0.37 ms instead of 0.47
// and 0.50).
TR_HD constexpr int most_aligned_chunks(int size, int inputs, int sums, bool maps) {
  return size != 2 || inputs > 1 || !maps ? 0 : sums > 1 ? kLeafChunks - 1 : kHalfChunks;
}
// Whether longer ones have a kernel of their own, for leaves that lack granules: not rms_norm, for which it is the same
// whether elements are there.
TR_HD constexpr bool has_aligned_leaves(int size, int inputs, int sums, bool maps, int sides) {
  return most_aligned_chunks(size, inputs, sums, maps) > 0 && sides != 1;
}
// Of short rows, of which more elements share what a row costs; but neighbouring lanes have to load neighbours: a row's
// by granules 64 bytes where they all have some (H100, softmax of bfloat16, 64: 0.37 ms with 2, 0.41 with 4; 48: 0.44
// with 2, 0.39 with 4). With weights 4 pay where of 2 some were idle (rms_norm of bfloat16, of a copy: 160 0.90 with 2,
// 0.97 with 4; 64, 256 0.96, 0.98 with 2, 0.85, 0.97 with 4).
TR_HD constexpr int most_granule_chunks(int inputs, int sums, int sides) {
  return inputs == 1 && sums <= 1 && sides <= 1 ? 4 : 2;
}
inline int granule_chunks(int most, int sides, int64_t length) {
  const bool last = 4 * length > 3 * plans::power_of_two(length);  // some lane would have the last of 4
  return (sides > 0 ? last || length <= 64 : last && length <= 64) ? 2 : most;
}
TR_HD constexpr int word_chunks(int size, int64_t length) { return size == 2 || length <= 64 ? 1 : 2; }
// The same of float32 by granules: layer_norm, of which a row costs most, has 2 (H100, of a copy: 40 0.60 with 1, 0.81
// with 2; 72, 240 0.72, 0.96 with 2, 0.68, 0.88 with 4).
TR_HD constexpr int quad_chunks(int sides, int64_t length) { return sides > 1 ? 2 : word_chunks(4, length); }

// Whether the results may be of the other width, as people ask for it: norms of float32 in 16 bits, as under autocast;
// other rows of 16 bits in float32, as softmax(dtype=) has it.
TR_HD constexpr bool may_convert(int size, int inputs, int weights) {
  return inputs == 1 && (size == 4) == (weights > 0);
}
inline bool is_other_width(const FusedCall& call) {
  return (call.dtype == Dtype::F32) != (call.out_dtype == Dtype::F32) && is_float(call.out_dtype) &&
         call.out_dtype != Dtype::F64;
}

// What a launch does: all of a row; or the states of its leaves, or what follows from them.
enum class Part : int8_t { Whole, States, Output };

}  // namespace held_rows

struct HeldRowsShape : FusedLaunch {
  held_rows::Form form = held_rows::Form::Words;
  int log_lanes = 5;    // of the lanes of a row, fewer than 32 where it is short
  int chunks = 1;       // of a lane
  int leaves = 1;       // of a row
  int cluster = 1;      // blocks that hold a row together
  bool folded = false;  // the states of rows that are split have become one before the second launch
  held_rows::Part part = held_rows::Part::Whole;

  TR_HD int lanes() const { return 1 << log_lanes; }
  template <class Visit> void each(Visit visit) const {
    visit("lanes", lanes());
    visit("chunks", chunks);
    visit("warps", threads / 32);
    visit("cluster", cluster);
  }
};

namespace held_rows {

using namespace plans;

// Chunks whose terms wait in shared memory instead of in registers, so that more rows are on their way.
TR_HD constexpr int shared_terms(int size, int chunks) { return chunks < kLeafChunks ? 0 : size == 2 ? 5 : 4; }

// Threads of a multiprocessor that there are registers for, and of a block at most: a lane's elements, what it has
// between them, and what a chunk needs. (H200, bfloat16 softmax of 4096: 0.73 of a copy for 1024 threads, where
// registers go to memory, 0.95 for 768.)
TR_HD constexpr int threads(int size, int inputs, bool term, int sides, int chunks, Form form) {
  // layer_norm of short rows of float32: four blocks of 256, for which the rare second look would take too many.
  if (form == Form::ShortGranules && size == 4 && sides == 2 && inputs == 1) return 1024;
  if (is_short(form)) return sides == 0 && inputs == 1 ? 1024 : form == Form::ShortWords && inputs > 1 ? 512 : 640;
  if (form == Form::AlignedRows && sides == 2) return 576;  // by 640 nvcc would use memory for sm_80
  const int elements = chunks * kGroup * size / 4 * inputs;
  const int terms = term ? (chunks - shared_terms(size, chunks)) * kGroup : 0;
  const int words = std::max(elements, terms);
  if (words <= 32) return sides ? 640 : term && chunks == kLeafChunks ? 768 : 1024;
  return words <= 64 ? (sides + inputs > 2 ? 512 : 640) : 384;
}

// Where the states of a row's leaves meet: one for each, and for each two of them.
inline int meeting_bytes(const FusedCall& call, int leaves) {
  return int(ceil_div(state_bytes(call), 8)) * 8 * (leaves + (leaves + 1) / 2);
}

// Warps of a block, and blocks of a cluster, for a row of that many leaves: as many leaves on chip at once as there may
// be, and small blocks, of which some load while others store.
struct Team { int warps, cluster; };
constexpr int kFewestWarps = 4;  // of a block in a cluster
inline Team team(int leaves, int most_threads, bool clusters) {
  const int most = most_threads / 32;
  Team best{0, 0};
  double worth = 0;
  for (int cluster = 1; cluster <= (clusters ? kMostCluster : 1); ++cluster) {
    const int warps = int(ceil_div(leaves, cluster)), blocks = most / warps;  // of a multiprocessor
    if (blocks == 0 || (cluster > 1 && warps < kFewestWarps)) continue;
    // What a multiprocessor holds that is of use, less what waits for the last of its block.
    const double next = double(blocks * warps) * leaves / (warps * cluster) * (1 - 0.5 / blocks);
    if (next > worth * 1.1) {
      best = {warps, cluster};
      worth = next;
    }
  }
  return best;
}

// Threads of a block that has whole rows. (H100, softmax of bfloat16, 64, in blocks of 64, 128, 256: 0.366, 0.369,
// 0.387 ms; layer_norm, 256: 0.413, 0.418, 0.445; 640 in blocks of 128, 256: 0.367, 0.371.)
inline int one_leaf_threads(int size, Form form, int chunks) {
  if (!is_aligned(size, form)) return chunks == kLeafChunks ? 128 : 256;
  return is_short(form) ? 64 : 128;
}

inline std::optional<HeldRowsShape> shape_for(const FusedCall& call, const DeviceFacts& device,
                                              const PlanOverride& forced) {
  const FusedFacts f = facts(call.op);
  if (!has_neighbours(call) || !f.looks()) return {};
  const Layout& l = call.layout;
  const int size = size_of(call.dtype), sides = f.weights + f.biases;
  const RowAlignment rows = row_alignment(call);
  const bool converts = f.maps && call.out_dtype != call.dtype;
  if (converts && !(may_convert(size, f.inputs, f.weights) && is_other_width(call) && rows.aligned)) return {};
  const bool weighted = call.weight || call.bias;
  if (weighted && call.weight_dtype != call.dtype && call.weight_dtype != Dtype::F32) return {};
  const bool granules = forced.vector_loads == 0 ? false
                        : converts               ? aligned(call.weight) && aligned(call.bias)
                        : weighted || size == 4  ? rows.aligned && aligned(call.weight) && aligned(call.bias)
                                                 : rows.alike;
  if (converts && !granules) return {};
  HeldRowsShape s;
  if (l.length <= kResidues) {
    s.form = granules && rows.aligned ? Form::ShortGranules : Form::ShortWords;
    s.chunks = s.form == Form::ShortWords ? word_chunks(size, l.length)
               : size == 4 ? quad_chunks(sides, l.length)
                           : granule_chunks(most_granule_chunks(f.inputs, f.sums, sides), sides, l.length);
    for (s.log_lanes = 0; s.lanes() * s.chunks * kGroup < l.length;) ++s.log_lanes;
  } else if (granules && rows.aligned && l.length <= kResidues * most_aligned_chunks(size, f.inputs, f.sums, f.maps)) {
    const bool halves = l.length <= kHalfWarp;
    s.form = halves ? Form::HalfWarps : Form::AlignedRows;
    s.chunks = halves ? kHalfChunks : int(ceil_div(l.length, kResidues));
    if (halves) s.log_lanes = kLogHalfLanes;
  } else if (granules && rows.aligned && l.length % kLeaf > 0 &&
             has_aligned_leaves(size, f.inputs, f.sums, f.maps, sides)) {
    s.form = Form::AlignedRows;
    s.chunks = kLeafChunks;
  } else {
    if (size == 2 && !granules) return {};
    s.form = granules ? Form::Granules : Form::Words;
    s.chunks = l.length <= kLeaf / 2 ? kHalfChunks : kLeafChunks;
  }
  s.leaves = int(std::min<int64_t>(ceil_div(l.length, kLeaf), INT32_MAX));
  int most = threads(size, f.inputs, f.term, sides, s.chunks, s.form);
  const int away = f.term ? shared_terms(size, s.chunks) * kGroup * 4 : 0;  // bytes of a thread
  const int meeting = s.leaves > 1 && s.leaves <= kMostLeaves ? meeting_bytes(call, s.leaves) : 0;
  if (away > 0) most = std::min(most, (device.shared - kBarrier - meeting) / away / 32 * 32);
  if (s.leaves == 1) {
    const int64_t warps = ceil_div(l.rows, 32 / s.lanes());
    s.threads = one_leaf_threads(size, s.form, s.chunks);
    while (s.threads > 32 && ceil_div(warps, s.threads / 32) < device.multiprocessors) s.threads /= 2;
    s.blocks = ceil_div(warps, s.threads / 32);
  } else {
    const Team best = s.leaves <= kMostLeaves ? team(s.leaves, most, device.clusters) : Team{0, 0};
    if (best.warps == 0) return {};
    s.threads = best.warps * 32;
    s.cluster = best.cluster;
    s.splits = best.cluster;
    s.blocks = l.rows * s.splits;
  }
  s.shared = away * s.threads + meeting;
  return s;
}

// Rows of which nothing is written again need not be held: their leaves go to any blocks.
constexpr int kMostRead = 4;

inline std::optional<HeldRowsShape> serves(const FusedCall& call, const DeviceFacts& device,
                                           const PlanOverride& forced) {
  if (!forced.family && !facts(call.op).maps && call.layout.length > kMostRead * kLeaf) return {};
  return shape_for(call, device, forced);
}

}  // namespace held_rows

// Rows of more leaves than a device holds: the same kernel twice, which reads them twice.
struct SplitRowsShape : HeldRowsShape {};

namespace split_rows {

using namespace plans;

constexpr int kWarps = 4;          // of a block
constexpr int kMostRecalled = 64;  // leaves whose states each block of the second launch takes for itself

inline std::optional<SplitRowsShape> serves(const FusedCall& call, const DeviceFacts& device,
                                            const PlanOverride& forced) {
  const int64_t leaves = ceil_div(call.layout.length, kLeaf);
  if (leaves < 2) return {};
  FusedCall one = call;  // whether its kernels serve it; of whole granules where the row is
  one.layout.length = 2 * kLeaf + call.layout.length % kLeaf;
  const auto held = held_rows::shape_for(one, device, forced);
  if (!held || leaves > INT32_MAX) return {};
  SplitRowsShape s;
  s.form = held->form;
  s.chunks = held_rows::kLeafChunks;
  s.leaves = int(leaves);
  s.threads = 32 * kWarps;
  s.splits = ceil_div(leaves, kWarps);
  s.blocks = call.layout.rows * s.splits;
  s.folded = leaves > kMostRecalled;
  s.workspace = LeafStates{leaves}.bytes(call);
  if (facts(call.op).term) s.shared = held_rows::shared_terms(size_of(call.dtype), s.chunks) * kGroup * 4 * s.threads;
  if (leaves <= kMostRecalled) s.shared += held_rows::meeting_bytes(call, s.leaves);
  return s;
}

}  // namespace split_rows
}  // namespace torchreduce
