// Rows of neighbouring elements that stay on chip between the looks, in the registers of a part of a warp, of a warp, a
// block, or a cluster of blocks.
#pragma once
#include "rows_call.h"

namespace torchreduce {

namespace held_rows {

constexpr int kMostLeaves = 128;  // of a row
constexpr int kLeafChunks = 8;    // chunks of 8 elements that a lane has of a leaf
constexpr int kHalfChunks = 4;    // of rows of half a leaf at most, and of float32 that is mapped without looks
constexpr int kLogHalfLanes = 4;  // of half a warp, which has a row of so many elements at most
constexpr int kHalfWarp = kGroup * kHalfChunks << kLogHalfLanes;
constexpr int kBarrier = 16;     // bytes of a block that are not dynamic
constexpr int kMostCluster = 8;  // blocks: what every GPU with clusters has

// How a lane has its elements: one by one, so that they may start anywhere, or by granules of 16 bytes; a warp one leaf
// of them, or several short rows, or two of up to 512 elements. Of aligned rows, which are whole granules in all
// operands, a lane asks of granules whether they are there, of few of them, and never of elements; short ones by
// granules, and halves of warps, are aligned, too. Spread: several warps a leaf, by a kernel of its own.
enum class Form : int8_t { Words, Granules, AlignedRows, ShortWords, ShortGranules, HalfWarps, Spread };
constexpr int kForms = 6;                                         // of a warp
constexpr int kSpreadThreads = kResidues / 2, kSpreadLeaves = 4;  // of a leaf; of a row at most
constexpr int kSpreadRows = 4;  // so many for each multiprocessor at most, so that a row's own time is what counts
constexpr int kLeastSpread = kLeaf / 4;  // elements of a row
TR_HD constexpr bool is_short(Form form) { return form >= Form::ShortWords; }
TR_HD constexpr bool by_granules(Form form) { return form != Form::Words && form != Form::ShortWords; }
TR_HD constexpr bool is_aligned(int size, Form form) {
  return size == 2 && (form == Form::AlignedRows || form == Form::ShortGranules || form == Form::HalfWarps);
}
// A lane's chunks of granules that are of different residues.
TR_HD constexpr int runs(int chunks, Form form) { return form == Form::HalfWarps ? 2 : is_short(form) ? chunks : 1; }
// Chunks of aligned rows of one warp that have kernels of their own, 0 where there are no kernels for aligned rows: of
// 16-bit floats that are summed more than once more of them, since those take most instructions (H100, layer_norm of
// bfloat16, 768 and 1536: 0.37 ms instead of 0.47 and 0.50). By granules that may start anywhere, whole leaves take
// more instructions, and so many that a multiprocessor's instruction cache has not room for them (H200, bfloat16, us of
// layer_norm 32768 x 4096: 229, aligned 153; 8590 x 2048: 45, 25; rms_norm 2682 x 2560: 14.7, 11.8).
TR_HD constexpr int most_aligned_chunks(const RowwiseFacts& f, int size) {
  return size != 2 || f.inputs > 1 || !f.looks() || !f.maps ? 0 : f.sums > 1 ? kLeafChunks - 1 : kHalfChunks;
}
// Of short rows, of which more elements share what a row costs; but neighbouring lanes have to load neighbours: a row's
// by granules 64 bytes where they all have some (H100, softmax of bfloat16, 64: 0.37 ms with 2, 0.41 with 4; 48: 0.44
// with 2, 0.39 with 4). With weights 4 pay where of 2 some were idle (rms_norm of bfloat16, of a copy: 160 0.90 with 2,
// 0.97 with 4; 64, 256 0.96, 0.98 with 2, 0.85, 0.97 with 4).
TR_HD constexpr int most_granule_chunks(const RowwiseFacts& f) {
  return f.inputs == 1 && f.sums <= 1 && f.sides() <= 1 ? 4 : 2;
}

// Which kernels there are: for the planner, and for the launch, which compiles no others.
TR_HD constexpr bool has_kernel(const RowwiseFacts& f, int size, Form form, int chunks) {
  const int most = most_aligned_chunks(f, size);
  switch (form) {
    case Form::ShortWords:  // 2 for rows of more than 64, but of ops for which packed_rows serves nearly all of these
      return chunks == 1 || (chunks == 2 && size == 4 && (f.inputs > 1 || f.weights || !f.looks()));
    case Form::ShortGranules:
      if (size == 2) return chunks == 2 || chunks == most_granule_chunks(f);
      // layer_norm, of which a row costs most, has 2 (H100, float32, of a copy: 40 0.60 with 1, 0.81 with 2; 72, 240
      // 0.72, 0.96 with 2, 0.68, 0.88 with 4).
      // By words rms_norm of float32 takes longer (H200, weighted, of a copy: 40 0.63, by granules 0.87; 80 0.77, 0.96;
      // 160 0.76, 0.95).
      return (chunks == 2 || (chunks == 1 && f.sides() < 2)) &&
             (f.sides() == 1 || has_kernel(f, size, Form::Granules, f.looks() ? kLeafChunks : kHalfChunks));
    case Form::HalfWarps: return most > 0 && chunks == kHalfChunks;
    case Form::AlignedRows: return most > 0 && (chunks == kLeafChunks || (chunks > 2 && chunks <= most));
    case Form::Words: return size == 4 && (chunks == kHalfChunks || (chunks == kLeafChunks && f.looks()));
    case Form::Granules:
      // rms_norm of float32 is as fast by words (H200, 384 to 51200: 0.97 to 1.01), softmax and log_softmax of 1024 are
      // (1.0; 256 0.95 and 0.92, 51200 0.90 and 0.91).
      if (size == 4 && f.inputs == 1 && f.sides() == 1) return false;
      if (chunks == kLeafChunks) return size == 2 || f.looks();
      // None for half a leaf of norms of 16-bit floats, which are here off a granule alone.
      return chunks == kHalfChunks && (size == 4 ? f.inputs > 1 || f.sums != 1 || !f.maps : most == 0 || !f.weights);
    case Form::Spread: break;
  }
  return false;
}
// Chunks of a lane for rows of that length, if they go by that form.
inline int chunks_for(const RowwiseFacts& f, int size, Form form, int64_t length) {
  switch (form) {
    case Form::ShortWords: return length > 64 && has_kernel(f, size, form, 2) ? 2 : 1;
    case Form::ShortGranules: {
      if (size == 4) return length > 64 || !has_kernel(f, size, form, 1) ? 2 : 1;
      const bool last = 4 * length > 3 * plans::power_of_two(length);  // some lane would have the last of 4
      return (f.weights ? last || length <= 64 : last && length <= 64) ? 2 : most_granule_chunks(f);
    }
    case Form::AlignedRows:
      if (length <= kResidues * most_aligned_chunks(f, size)) return int(plans::ceil_div(length, kResidues));
      return kLeafChunks;
    default:
      if (!f.looks() && size == 4) return kHalfChunks;
      return length <= kLeaf / 2 && (size == 4 || has_kernel(f, size, form, kHalfChunks)) ? kHalfChunks : kLeafChunks;
  }
}

// Whether the results may be of the other width, as people ask for it: norms of float32 in 16 bits, as under autocast;
// other rows of 16 bits in float32, as softmax(dtype=) has it, where they are aligned.
TR_HD constexpr bool may_convert(const RowwiseFacts& f, int size) {
  return f.inputs == 1 && f.looks() && (size == 4) == f.weights;
}
inline bool is_other_width(const RowwiseCall& call) {
  return (call.dtype == Dtype::F32) != (call.out_dtype == Dtype::F32) && is_float(call.out_dtype) &&
         call.out_dtype != Dtype::F64;
}

// What a launch does: all of a row; or the states of its leaves, or what follows from them.
enum class Part : int8_t { Whole, States, Output };

}  // namespace held_rows

struct HeldRowsShape : RowwiseLaunch {
  held_rows::Form form = held_rows::Form::Words;
  int log_lanes = 5;    // of the lanes of a row, fewer than 32 where it is short
  int chunks = 1;       // of a lane
  int leaves = 1;       // of a row, or what warps have of one without looks
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
TR_HD constexpr int threads(const RowwiseFacts& f, int size, int chunks, Form form) {
  const int inputs = f.inputs, sides = f.sides();
  // layer_norm of short rows of float32: four blocks of 256, for which the rare second look would take too many.
  if (form == Form::ShortGranules && size == 4 && sides == 2 && inputs == 1) return 1024;
  if (is_short(form)) return sides == 0 && inputs == 1 ? 1024 : form == Form::ShortWords && inputs > 1 ? 512 : 640;
  if (form == Form::AlignedRows && sides == 2) return 576;  // by 640 nvcc would use memory for sm_80
  const int elements = chunks * kGroup * size / 4 * inputs;
  const int terms = f.term ? (chunks - shared_terms(size, chunks)) * kGroup : 0;
  const int words = std::max(elements, terms);
  if (words <= 32) return sides ? 640 : (f.term || !f.looks()) && chunks == kLeafChunks ? 768 : 1024;
  return words <= 64 ? (sides + inputs > 2 ? 512 : 640) : 384;
}

// Where the states of a row's leaves meet: one for each, and for each two of them.
inline int meeting_bytes(const RowwiseCall& call, int leaves) {
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

inline std::optional<HeldRowsShape> shape_for(const RowwiseCall& call, const DeviceFacts& device,
                                              const PlanOverride& forced) {
  const RowwiseFacts f = facts(call.op);
  if (!has_neighbours(call)) return {};
  const Layout& l = call.layout;
  const int size = size_of(call.dtype);
  const RowAlignment rows = row_alignment(call);
  const bool weighted = call.weight || call.bias, converts = f.maps && call.out_dtype != call.dtype;
  if (converts && !(may_convert(f, size) && is_other_width(call))) return {};
  if (weighted && call.weight_dtype != call.dtype && call.weight_dtype != Dtype::F32) return {};
  const bool whole = rows.aligned && aligned(call.weight) && aligned(call.bias);
  const bool vectors = forced.vector_loads != 0, aligned_rows = vectors && whole;
  // Weights of what is mapped by granules lie anywhere; of sums by weights as the rows do, where they start.
  const bool granules = vectors && (converts || size == 4 || (weighted && f.inputs > 1) ? whole : rows.alike);
  // By the first of these that there is a kernel for.
  HeldRowsShape s;
  const auto by = [&](Form form, bool serves) {
    s.form = form;
    s.chunks = chunks_for(f, size, form, l.length);
    return serves && has_kernel(f, size, form, s.chunks);
  };
  if (l.length <= kResidues) {
    if (!by(Form::ShortGranules, aligned_rows)) by(Form::ShortWords, true);
    for (s.log_lanes = 0; s.lanes() * s.chunks * kGroup < l.length;) ++s.log_lanes;
  } else if (by(Form::HalfWarps, aligned_rows && l.length <= kHalfWarp)) {
    s.log_lanes = kLogHalfLanes;
  } else {
    if (!by(Form::AlignedRows, aligned_rows) && !by(Form::Granules, granules)) by(Form::Words, true);
  }
  if (!has_kernel(f, size, s.form, s.chunks) || (converts && size == 2 && !by_granules(s.form))) return {};
  const int64_t span = f.looks() ? kLeaf : int64_t(32) * kGroup * s.chunks;  // of a warp
  s.leaves = int(std::min<int64_t>(ceil_div(l.length, span), INT32_MAX));
  int most = threads(f, size, s.chunks, s.form);
  const int away = f.term ? shared_terms(size, s.chunks) * kGroup * 4 : 0;  // bytes of a thread
  const int meeting = s.leaves > 1 && s.leaves <= kMostLeaves && f.looks() ? meeting_bytes(call, s.leaves) : 0;
  if (away > 0) most = std::min(most, (device.shared - kBarrier - meeting) / away / 32 * 32);
  if (s.leaves == 1) {
    const int64_t warps = ceil_div(l.rows, 32 / s.lanes());
    s.threads = one_leaf_threads(size, s.form, s.chunks);
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
  s.shared = away * s.threads + meeting;
  return s;
}

// Few aligned rows of norms. Forced lanes are those of a warp.
inline std::optional<HeldRowsShape> spread(const RowwiseCall& call, const DeviceFacts& device,
                                           const PlanOverride& forced) {
  const Layout& l = call.layout;
  const bool norm = call.op == Rowwise::RmsNorm || call.op == Rowwise::LayerNorm || call.op == Rowwise::RmsNormSum ||
                    call.op == Rowwise::LayerNormSum;
  if (!norm || forced.lanes > 0 || forced.vector_loads == 0 || !has_plain_rows(call)) return {};
  if (l.rows > kSpreadRows * device.multiprocessors || l.length < kLeastSpread) return {};
  if (l.length > kSpreadLeaves * kLeaf || !row_alignment(call).aligned) return {};
  const bool weighted = call.weight || call.bias;
  if (weighted && call.weight_dtype != call.dtype && call.weight_dtype != Dtype::F32) return {};
  if (!aligned(call.weight) || !aligned(call.bias)) return {};
  HeldRowsShape s;
  s.form = Form::Spread;
  s.leaves = int(ceil_div(l.length, kLeaf));
  s.threads = kSpreadThreads * s.leaves;
  s.blocks = l.rows;
  return s;
}

// Rows of which nothing is written again need not be held: their leaves go to any blocks.
constexpr int kMostRead = 4;

inline std::optional<HeldRowsShape> serves(const RowwiseCall& call, const DeviceFacts& device,
                                           const PlanOverride& forced) {
  if (!forced.family && !facts(call.op).maps && call.layout.length > kMostRead * kLeaf) return {};
  if (const auto few = spread(call, device, forced)) return few;
  return shape_for(call, device, forced);
}

}  // namespace held_rows

// Rows of more leaves than a device holds: the same kernel twice, which reads them twice.
struct SplitRowsShape : HeldRowsShape {};

namespace split_rows {

using namespace plans;

constexpr int kWarps = 4;          // of a block
constexpr int kMostRecalled = 64;  // leaves whose states each block of the second launch takes for itself

inline std::optional<SplitRowsShape> serves(const RowwiseCall& call, const DeviceFacts& device,
                                            const PlanOverride& forced) {
  const int64_t leaves = ceil_div(call.layout.length, kLeaf);
  if (leaves < 2 || !facts(call.op).looks()) return {};
  RowwiseCall one = call;  // whether its kernels serve it; of whole granules where the row is
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
