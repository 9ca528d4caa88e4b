// Columns: rows that lie side by side. A block has a tile of columns, a leaf of each, in shared memory between the
// looks; or its threads have columns by themselves.
#pragma once
#include "rows_call.h"

namespace torchreduce {

struct RowwiseColumnsShape : RowwiseLaunch {
  int columns = 32;    // of a tile
  int residues = 256;  // that a leaf has, rounded up to a power of two
  int leaves = 1;      // of a column
  int cluster = 1;     // blocks that hold tiles of a column's leaves together
  int bytes = 16;      // that a copy to shared memory, or a load, takes at once
  int pitch = 32;      // elements from a row of the tile to the next
  // Where threads have columns by themselves (own_columns.cuh):
  int run = 0;     // residues of a thread; 0: they have tiles together
  int depth = 1;   // elements of a residue, at most
  int groups = 1;  // of threads that have the runs of a column
  int places = 0;  // of a thread in shared memory, each of `bytes`

  template <class Visit> void each(Visit visit) const {
    visit("columns", columns);
    visit("cluster", cluster);
    visit("bytes", bytes);
    visit("run", run);
  }
};

namespace rowwise_columns {

using namespace plans;

constexpr int kFewThreads = 256, kThreads = 512;  // of a block: the latter where there are chunks for them
constexpr int kChunk = 8;                         // residues that a thread sums side by side
constexpr int kMostCluster = 8;
constexpr int kTileBytes = 72 << 10;  // so that a multiprocessor has three tiles
constexpr int kLeastBytes = 32;       // of a row of a tile

// Threads with columns of their own.
constexpr int kRun = 8;        // residues of a thread, of one element
constexpr int kDeep = 16;      // elements of a thread, where residues have several
constexpr int kMeeting = 8;    // groups whose values a thread puts together at once
constexpr int kOwnBytes = 64;  // of a row, if as many threads as a block may have suffice
// Inputs in registers; the others are in shared memory: both of gradients, but for lone elements, which are not copied
// there, and for one where residues have several elements, so that there is room for two blocks.
TR_HD constexpr int held_inputs(int inputs, int bytes, int depth) {
  return inputs == 1 || bytes < 4 ? inputs : depth > 1 ? 1 : 0;
}
TR_HD constexpr int run_of(int depth) { return depth == 1 ? kRun : kDeep / depth; }
// Threads of a block, at most, and blocks of a multiprocessor, by which they have 72 registers for granules of two
// inputs; 128 for those of one, which are in 32, with exponentials, or where residues have several elements, of which
// 64 are for those of one input; and 64 for words and lone elements.
TR_HD constexpr int own_threads(int bytes, int depth) { return bytes < 16 ? 512 : depth > 1 ? 256 : 128; }
TR_HD constexpr int own_blocks(int inputs, int bytes, int depth) {
  return bytes < 16 || depth > 1 ? 2 : inputs > 1 ? 7 : 4;
}

// Which kernels there are: of softmax, log_softmax and their gradients, of the latter also where residues have several
// elements.
TR_HD constexpr bool has_own(const RowwiseFacts& f, int size, int bytes, int depth) {
  if (!f.maps || f.weights || f.sums != 1 || bytes < size) return false;
  return depth == 1 || (f.inputs > 1 && bytes == 16);
}

// The shape of a call whose pieces of `bytes` are aligned in all operands, if there is a kernel for it.
inline std::optional<RowwiseColumnsShape> by_threads(const RowwiseCall& call, RowwiseColumnsShape s, int bytes) {
  const Layout& l = call.layout;
  const RowwiseFacts f = facts(call.op);
  const int size = size_of(call.dtype), per = bytes / size, length = int(l.length);
  s.depth = length <= kResidues ? 1 : length <= kLeaf / 2 ? 4 : 8;
  if (s.leaves > 1 || !has_own(f, size, bytes, s.depth)) return {};
  for (const int64_t stride : {l.in[l.kept], call.more_strides[0][l.kept], l.out[l.kept]})
    if (magnitude(stride) > INT32_MAX / size) return {};
  s.bytes = bytes;
  s.run = run_of(s.depth);
  s.groups = int(ceil_div(std::min(length, kResidues), s.run));
  const auto across = [&](int threads) {
    int n = 1;
    while (2 * n * s.groups <= threads) n *= 2;
    return n;
  };
  const int most = own_threads(bytes, s.depth);
  int pieces = across(std::min(most, 256));
  if (pieces * bytes < kOwnBytes) pieces = across(most);
  s.columns = pieces * per;
  s.threads = pieces * s.groups;
  s.places = (f.inputs - held_inputs(f.inputs, bytes, s.depth)) * (s.depth == 1 ? std::min(length, s.run) : kDeep);
  s.shared = std::max(16, s.places * s.threads * bytes);  // some, since the kernel declares it
  if (s.groups > 1) s.shared += (s.groups + int(ceil_div(s.groups, kMeeting))) * s.columns * 4;
  s.blocks = ceil_div(l.rows, s.columns);
  return s;
}

inline std::optional<RowwiseColumnsShape> serves(const RowwiseCall& call, const DeviceFacts& device,
                                                 const PlanOverride& forced) {
  const Layout& l = call.layout;
  const RowwiseFacts f = facts(call.op);
  const bool types = call.dtype == Dtype::F32 || call.dtype == Dtype::BF16 || call.dtype == Dtype::F16;
  if (sums_over_rows(call.op) || f.weights || !f.looks() || !types || !is_static(call)) return {};
  if (l.kept < 1 || l.kept > kMostRowwiseDims || l.reduced != 1 || l.length < 1 || l.rows < 1) return {};
  if (f.maps && call.out_dtype != call.dtype) return {};
  const int last = l.kept - 1;
  if (l.in[last] != 1 || (f.inputs > 1 && call.more_strides[0][last] != 1) || (f.maps && l.out[last] != 1)) return {};

  const int size = size_of(call.dtype), per = 16 / size;
  RowwiseColumnsShape s;
  const int64_t leaves = ceil_div(l.length, kLeaf);
  if (leaves > INT32_MAX) return {};
  s.leaves = int(leaves);
  const int rows = int(std::min<int64_t>(l.length, kLeaf));
  s.residues = int(std::max<int64_t>(kChunk, std::min<int64_t>(kResidues, power_of_two(rows))));

  // As wide a tile as has threads for chunks of residues and room in shared memory; rows of 64 bytes if they have it.
  const int row_bytes = size * f.inputs, chunks = s.residues / kChunk;
  const auto fits = [&](int columns, int most) { return int64_t(columns) * rows * row_bytes <= most; };
  s.columns = std::max(kFewThreads / chunks, kLeastBytes / size);
  while (s.columns < 128 &&
         (fits(2 * s.columns, kTileBytes / 2) || (s.columns * size < 64 && fits(2 * s.columns, kTileBytes))))
    s.columns *= 2;
  take(forced.lanes, s.columns, kFewThreads, "lanes");
  s.threads = kThreads / s.columns <= chunks && !fits(s.columns, kTileBytes / 2) ? kThreads : kFewThreads;

  // Copies of whole granules, of words, or of elements one by one.
  const auto are_multiples = [&](const void* first, const int64_t* strides, int elements) {
    bool all = reinterpret_cast<uintptr_t>(first) % (elements * size) == 0;
    for (int d = 0; d < l.kept + 1; ++d) all &= d == last || strides[d] % elements == 0;
    return all;
  };
  const auto multiple = [&](int elements) {
    return l.size[last] % elements == 0 && are_multiples(call.in[0], l.in, elements) &&
           (f.inputs == 1 || are_multiples(call.in[1], call.more_strides[0], elements));
  };
  s.bytes = forced.vector_loads != 0 && multiple(per) ? 16 : size == 4 || multiple(2) ? 4 : 2;
  if (forced.lanes < 0 && f.maps) {
    int bytes = s.bytes;
    while (bytes > size && !are_multiples(call.out, l.out, bytes / size)) bytes = bytes == 16 ? 4 : 2;
    if (const auto own = by_threads(call, s, bytes); own && own->shared <= device.shared - 1024) return own;
  }
  s.pitch = s.columns + (s.columns * size < 128 ? per : 0);  // rows of a warp's lanes in banks of their own

  const int64_t tiles = ceil_div(l.rows, s.columns);
  if (leaves > 1 && device.clusters && leaves <= kMostCluster) s.cluster = int(leaves);
  s.shared = int(ceil_div(int64_t(s.pitch) * rows * row_bytes, 16) * 16) + f.sums * s.threads * 4;
  if (s.cluster > 1) s.shared += s.cluster * s.columns * int(ceil_div(state_bytes(call), 8) * 8);
  if (s.shared > device.shared - 1024 || s.threads / s.columns > chunks) return {};
  s.splits = leaves;
  s.blocks = tiles * leaves;
  if (leaves > 1 && s.cluster == 1) s.workspace = LeafStates{leaves}.bytes(call);
  return s;
}

}  // namespace rowwise_columns
}  // namespace torchreduce
