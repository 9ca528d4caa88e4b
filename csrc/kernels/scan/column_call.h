// What families of columns ask of a call: kept dims have the smallest stride, so that lanes go across rows.
#pragma once
#include "scan_launch.h"

namespace torchreduce::scans {

// Neighbouring columns of a lane that copies words, given the bytes of an element: 4 bytes or 8.
TR_HD constexpr int word_columns(int size) { return size == 2 ? 2 : 1; }

}  // namespace torchreduce::scans

namespace torchreduce::plans {

using scans::word_columns;

// Of the fastest kept dim: what lies side by side.
inline int64_t columns_beside(const Layout& l) { return l.kept ? l.size[l.kept - 1] : 1; }

// Whether neighbouring columns can be taken `vector` at a time: every row has whole aligned vectors.
inline bool column_vectors(const ScanCall& call, int vector) {
  const Layout& l = call.layout;
  const int size = size_of(call.in.dtype), bytes = vector * size, last = l.kept - 1;
  auto fits = [&](const void* p) { return reinterpret_cast<uintptr_t>(p) % uintptr_t(bytes) == 0; };
  if (!in_place(call) || l.kept == 0 || l.reduced == 0) return false;
  if (l.in[last] != 1 || l.out[last] != 1 || l.size[last] % vector != 0) return false;
  for (int d = 0; d < l.kept + l.reduced; ++d)
    if (d != last && (l.in[d] * size % bytes != 0 || l.out[d] * size % bytes != 0)) return false;
  return fits(call.in.data) && fits(call.out.values);
}

// Whether kernels are compiled for lanes that walk columns of several inputs, or with indices (column_walk.cuh,
// kLaneWalks).
inline bool walks_words(const ScanCall& call) {
  const ScanFacts known = facts(call.op);
  const int size = size_of(call.in.dtype);
  if (!typed(call) || size < 2 || (known.inputs < 2 && !known.indexed) || (known.inputs == 3 && size < 4)) return false;
  return !known.indexed || call.layout.length <= kNearRows;
}
// Whether a lane there can have words of each column's inputs: of 16-bit elements two neighbours.
inline bool has_column_words(const ScanCall& call) {
  const Layout& l = call.layout;
  const int size = size_of(call.in.dtype), vector = word_columns(size), last = l.kept - 1;
  if (!walks_words(call)) return false;
  if (vector == 1) return true;
  if (l.kept == 0 || l.size[last] % vector != 0) return false;
  auto fits = [&](const void* p, int bytes) { return reinterpret_cast<uintptr_t>(p) % uintptr_t(vector * bytes) == 0; };
  auto steps = [&](const int64_t (&strides)[kMaxDims]) {
    for (int d = 0; d < l.kept + l.reduced; ++d)
      if (d == last ? strides[d] != 1 : strides[d] % vector != 0) return false;
    return true;
  };
  return steps(l.in) && steps(l.out) && (facts(call.op).inputs < 2 || steps(call.more_strides[0])) &&
         fits(call.in.data, size) && fits(call.in.more[0], size) && fits(call.out.values, size) &&
         fits(call.out.indices, 8);
}

// Whether tiles of columns are of records (kExtremeColumns); and whether they lie in shared memory (kStagedTiles).
inline bool record_tiles(const ScanCall& call) {
  return typed(call) && facts(call.op).indexed && size_of(call.in.dtype) <= 4 && call.layout.length <= kNearRows;
}
inline bool staged_tiles(const ScanCall& call) {
  const bool sums = is_float(call.in.dtype) && size_of(call.in.dtype) <= 4 && (in_place(call) || pairs(call));
  return sums || record_tiles(call);
}
// The neighbouring columns of a lane there.
inline int tile_columns(const ScanCall& call, const PlanOverride& forced) {
  const int vector = word_columns(size_of(call.in.dtype));
  if (!staged_tiles(call) || forced.vector_loads == 0) return 1;
  return (in_place(call) ? column_vectors(call, vector) : has_column_words(call)) ? vector : 1;
}

// Whether columns are one run of memory.
inline bool one_run(const ScanCall& call) {
  const Layout& l = call.layout;
  if (!in_place(call) || l.kept == 0 || l.reduced == 0) return false;
  const int last = l.kept - 1;
  const int64_t width = l.size[last], stride = l.in[l.kept];
  return l.in[last] == 1 && l.out[last] == 1 && magnitude(stride) == width && l.out[l.kept] == stride;
}
// The same where it is read and written 16 bytes at a time.
inline bool run_of_granules(const ScanCall& call) {
  const Layout& l = call.layout;
  if (!one_run(call)) return false;
  const int size = size_of(call.in.dtype), last = l.kept - 1;
  const int64_t row = l.size[last] * size, stride = l.in[l.kept];
  for (int d = 0; d < last; ++d)
    if (l.in[d] * size % 16 != 0 || l.out[d] * size % 16 != 0) return false;
  if (call.exclusive && row % 16 != 0) return false;  // results lie a row further on
  // The lowest element: of a reverse scan the last of its rows.
  auto fits = [&](const void* p) {
    return (reinterpret_cast<uintptr_t>(p) + uintptr_t((stride < 0 ? (l.length - 1) * stride : 0) * size)) % 16 == 0 &&
           (stride > 0 || l.length * row % 16 == 0);
  };
  return fits(call.in.data) && fits(call.out.values);
}

// The workspace of tiles: a ticket, the totals of tiles and of block tiles, and a carry for each of these
// (tile/carry.cuh).
inline int64_t column_workspace(const ScanCall& call, int64_t tiles) {
  const ScanSizes bytes = scan_sizes(call);
  const int64_t blocks = ceil_div(tiles, kFan);
  return 8 + (tiles > 1 ? call.layout.rows * ((tiles + blocks) * 2 * bytes.acc + blocks * 2 * bytes.wide) : 0);
}

}  // namespace torchreduce::plans
