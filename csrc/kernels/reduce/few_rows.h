// Few rows of whole granules, so little work that its time is that of one load, a tree and a meeting: all elements are
// on their way at once, and what runs is short.
#pragma once
#include "outer.h"
#include "rows.h"

namespace torchreduce {

struct FewRowsShape : ReduceLaunch {
  int units = 1;    // of a row, each a warp's: 256 granules
  int cluster = 1;  // blocks of a row that meet in the memory of the first of them

  template <class Visit> void each(Visit visit) const {
    visit("units", units);
    visit("cluster", cluster);
  }
};

struct FewRowsCall {
  const void* in;
  Output out;
  OpOptions options;
  int64_t in_pitch, out_pitch;  // between rows: bytes, and results
  int granules;                 // of a row
};

namespace few_rows {

using namespace plans;

constexpr int kGranules = 8;                            // of a lane, on their way at once
constexpr int kMostWarps = 32, kMostCluster = 8;        // of a block; what every GPU with clusters has
constexpr int kMostValues = kMostCluster * kMostWarps;  // that a warp combines
constexpr int kAlone = 8;                               // units of a row that one block has
constexpr int kEach = 32;  // units for each multiprocessor, of all rows: as many warps as it holds (H100, from a graph,
                           // us, and by rows: sums of 2^22 float32 8.5 and 9.3, of 1000 rows of 4096 7.0 and 7.7)

// Units of a row that a block has, a warp each. Rows of more than kAlone meet in clusters of 8, as far as these have
// enough blocks at once; else blocks leave partial results, about one a multiprocessor (H100, from a graph, us, by a
// cluster and by partial results: sums of 2^14 float32 1.74 and 2.37, of 2^17 2.50 and 2.73, of 2^18 3.32 and 2.88; 8
// rows of 151936 4.05 and 4.51).
struct Blocks {
  int warps;
  bool cluster;
};
inline Blocks blocks(int64_t units, int64_t rows, const DeviceFacts& device) {
  if (units <= kAlone) return {int(units), false};
  const bool filled = rows * units > 4 * int64_t(device.multiprocessors);
  if (device.clusters && units <= (filled ? kMostValues : kMostValues / 2))
    return {int(ceil_div(units, kMostCluster)), true};
  int warps = 4;
  while (warps < kMostWarps && ceil_div(units, warps) > std::min(device.multiprocessors, kMostValues)) warps *= 2;
  return {warps, false};
}

// Warps that share a leaf where order shows in the bits: each of their lanes has all granules of its residues.
constexpr int parts_of_leaf(int per, bool any_order) { return any_order ? 1 : kResidues / (32 * per); }

inline FewRowsCall few_rows(const ReduceCall& call) {
  const Layout& l = call.layout;
  const int64_t size = size_of(call.in.dtype);
  return {call.in.data,          call.out,
          call.options,          l.kept ? l.in[0] * size : 0,
          l.kept ? l.out[0] : 0, int(l.length * size / 16)};
}

inline std::optional<FewRowsShape> serves(const ReduceCall& call, const DeviceFacts& device,
                                          const PlanOverride& forced) {
  const Layout& l = call.layout;
  if (!has_plain_rows(call) || !rows::has_whole_rows(call) || l.kept > 1) return {};
  if (forced.vector_loads == 0 || forced.lanes >= 0 || forced.leaves >= 0 || forced.rows >= 0) return {};
  if (call.op == Reduction::Product && is_float(call.in.dtype)) return {};  // by powers, or not
  const int per = 16 / size_of(call.in.dtype), parts = parts_of_leaf(per, any_order(call));
  const int64_t units = ceil_div(l.length, int64_t(kGranules) * 32 * per * parts) * parts;
  if (units > kMostWarps * kMostValues || l.rows * units > INT32_MAX) return {};
  const bool few = l.length / per > rows::kMostSeveral && l.rows * units <= int64_t(kEach) * device.multiprocessors;
  if (!forced.family && !few) return {};

  FewRowsShape s;
  s.units = int(units);
  auto [warps, cluster] = blocks(units, l.rows, device);
  take(forced.warps, warps, kMostWarps, "warps");
  s.splits = ceil_div(units, warps);
  if (s.splits > kMostValues) throw std::invalid_argument("force_plan: too few warps for a row");
  if (forced.warps > 0) cluster = device.clusters && s.splits > 1 && s.splits <= kMostCluster;
  if (cluster) {
    s.cluster = int(s.splits);
  } else if (s.splits > 1) {
    s.workspace = l.rows * s.splits * accumulator_bytes(call);
    s.tickets = l.rows;
  }
  s.threads = warps * 32;
  s.blocks = l.rows * s.splits;
  return s;
}

}  // namespace few_rows
}  // namespace torchreduce
