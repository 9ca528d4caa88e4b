// Rows of neighbouring elements: short ones of whole granules, and long ones, wherever they start. Lanes along a row,
// 16 bytes each, eight of them on their way.
#pragma once
#include "outer.h"

namespace torchreduce {

struct RowsShape : ReduceLaunch {
  int rows = 1;    // that a warp has on its way at once; 0: a row, or a run of it, is a block's
  int lanes = 32;  // of a row, fewer than 32 where 8 rows are on their way
  int units = 1;   // of a block's run: leaves, or 256 granules each where no order shows

  template <class Visit> void each(Visit visit) const {
    visit("rows", rows);
    visit("lanes", lanes);
    visit("units", units);
  }
};

namespace rows {

using namespace plans;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kGranules = 8;          // of a lane, on their way at once
constexpr int kMostUnits = 32;        // of a block's run (8 of float32 cost 4 to 8 %)
constexpr int kMostSeveral = 4 * 32;  // granules of a row, of which a warp takes several
constexpr int kWalked = 16;           // units that a warp takes one after the other, at most; no more than lanes
constexpr int kWalkers = 16;          // rows for each multiprocessor from which on it does

// Enough blocks for the device, but runs as long as they may be (H200, from a graph: 2^23 float32 in 256 blocks 7.4 us,
// in 512 9.1); up to two units for each warp of one block, or four where no order shows, that is faster than blocks
// that meet (H200, from a graph: sums of 2^14 float32 2.7 us and 3.9, of 2^15 bfloat16 3.2 and 3.4; argmax of 2^14
// float32 3.3 and 4.6, of 2^15 4.4 and 4.7).
inline int units_a_run(int64_t units, int64_t rows, int multiprocessors, bool any_order = false) {
  int run = int(std::min<int64_t>(kMostUnits, power_of_two(units)));
  if (units <= (any_order ? 4 : 2) * kWarps) return run;
  auto blocks = [&] { return rows * ceil_div(units, run); };
  while (run > kWarps && 2 * blocks() < 3 * int64_t(multiprocessors)) run /= 2;
  while (run > 1 && blocks() < multiprocessors) run /= 2;
  return run;
}

// Whether all granules of rows are their own, and rows one after the other at one pitch.
inline bool has_whole_rows(const ReduceCall& call) {
  const Layout& l = call.layout;
  const int size = size_of(call.in.dtype);
  const auto pitch = row_pitch(l);
  return pitch && aligned(call.in.data) && l.length * size % 16 == 0 && *pitch * size % 16 == 0;
}

inline std::optional<RowsShape> serves(const ReduceCall& call, const DeviceFacts& device, const PlanOverride& forced) {
  if (!has_plain_rows(call)) return {};
  const Layout& l = call.layout;
  const int per = 16 / size_of(call.in.dtype);
  const bool whole = has_whole_rows(call) && forced.vector_loads != 0;
  const int64_t granules = ceil_div(l.length + (whole ? 0 : per - 1), per);
  const int64_t units = any_order(call) ? ceil_div(granules, 256) : ceil_div(l.length, kLeaf);
  const int64_t multiprocessors = device.multiprocessors;

  const bool several = whole && granules <= kMostSeveral;  // rows a warp

  RowsShape s;
  if (several) {
    s.rows = granules <= 32 ? 8 : granules <= 2 * 32 ? 4 : 2;
    s.lanes = int(std::min<int64_t>(32, power_of_two(granules)));
    take(forced.lanes, s.lanes, 32, "lanes");
    if (s.lanes * int64_t(kGranules / s.rows) < granules)
      throw std::invalid_argument("force_plan: too few lanes for a row of " + std::to_string(l.length));
  } else {
    s.rows = units == 1 || (units <= kWalked && l.rows >= kWalkers * multiprocessors) ? 1 : 0;
  }
  if (forced.rows >= 0) {
    if (forced.rows > 0) take(forced.rows, s.rows, 8, "rows");
    else s.rows = 0;
    if (s.rows > 1 ? !several || s.lanes * int64_t(kGranules / s.rows) < granules : s.rows == 1 && units > kWalked)
      throw std::invalid_argument("force_plan: too many rows of " + std::to_string(l.length));
    if (s.rows < 8) s.lanes = 32;
  }
  if (s.rows == 0) {
    s.units = units_a_run(units, l.rows, int(multiprocessors), any_order(call));
    take(forced.leaves, s.units, kMostUnits, "leaves");
    int warps = std::min(kWarps, s.units);
    take(forced.warps, warps, kWarps, "warps");
    s.threads = warps * 32;
    s.splits = ceil_div(units, s.units);
    s.blocks = l.rows * s.splits;
  } else {
    s.units = int(units);
    const int64_t warps = ceil_div(l.rows, int64_t(s.rows) * (32 / s.lanes));
    s.threads = kThreads;
    while (s.threads > 32 && ceil_div(warps, s.threads / 32) < multiprocessors) s.threads /= 2;
    s.blocks = ceil_div(warps, s.threads / 32);
  }
  if (s.splits > 1) {
    s.workspace = l.rows * s.splits * accumulator_bytes(call);
    s.tickets = l.rows;
  }
  return s;
}

}  // namespace rows
}  // namespace torchreduce
