// Short rows that follow one another in memory, or nearly so, wherever they start: blocks copy a run of them to shared
// memory.
#pragma once
#include "outer.h"

namespace torchreduce {

struct PackedRowsShape : ReduceLaunch {
  int rows = 1;         // of a block
  int lanes = 1;        // of a row
  int span = 1;         // neighbouring elements of a lane, a power of two
  bool padded = false;  // 16 bytes are left out in shared memory after every 128

  template <class Visit> void each(Visit visit) const {
    visit("rows", rows);
    visit("lanes", lanes);
    visit("span", span);
    visit("padded", padded);
  }
};

namespace packed_rows {

using namespace plans;

constexpr int kThreads = 256;
constexpr int kMostLength = 255, kMostBytes = 4 << 10;  // where order shows, else; longer rows are for warps
constexpr int kBytes = 32 << 10;  // of a block's rows: five blocks a multiprocessor, 160 KiB on their way
constexpr int kBlocksWanted = 8;  // for each multiprocessor, before a block takes more rows
constexpr int kMostUnrolled = 8;  // elements of rows that a thread each takes without a loop
constexpr int kLine = 128;        // bytes: blocks that start on a line of memory read none twice
// Bytes where they are in shared memory. Rows of whole granules, and a lane's elements of one, would meet in few banks;
// of others addresses are in the instructions (on an H200 a third faster for the shortest).
TR_HD constexpr int padded(bool pads, int bytes) { return pads ? bytes + (bytes >> 7) * 16 : bytes; }

// A lane's elements, rounded up, and what its last steps with other lanes cost in the same measure; less is better.
struct Cut {
  int rows = 0, lanes = 1, span = 1;
  double cost = 1e30;
};

inline std::optional<PackedRowsShape> serves(const ReduceCall& call, const DeviceFacts& device,
                                             const PlanOverride& forced) {
  const Layout& l = call.layout;
  if (!has_plain_rows(call) || l.kept != 1) return {};
  const int size = size_of(call.in.dtype);
  if (any_order(call) ? l.length * size > kMostBytes : l.length > kMostLength) return {};
  const int64_t pitch = l.in[0], gap = pitch - l.length;
  if (gap < 0 || gap * size > std::max<int64_t>(32, l.length * size / 4)) return {};
  const int n = int(l.length), one = int(pitch) * size;
  // What rows.h serves without shared memory, and as fast or faster: rows of whole granules that leave few lanes
  // without one, or are long (H200, GB/s here and there: sums of 64 float32 4050 and 4200, of 200 3770 and 4180, but of
  // 100 3530 and 3150). Not where positions are found (H100, of the read ceiling: argmax of 300 float32 0.92 and 0.77,
  // of 1024 bfloat16 0.91 and 0.85), nor where rows start anywhere (of 1025 bfloat16, GB/s: argmax 3000 and 1590, amax
  // 3110 and 2220).
  if (!forced.family && !facts(call.op, call.in.dtype).indexed && aligned(call.in.data) && n * size % 16 == 0 &&
      one % 16 == 0) {
    const int granules = n * size / 16, lanes = int(power_of_two(granules));
    if (granules > 32 || (granules >= 8 && 8 * granules >= 7 * lanes)) return {};
  }
  const int whole = int(power_of_two(n));

  const int64_t wanted = ceil_div(l.rows, int64_t(kBlocksWanted) * device.multiprocessors);
  const int most = int(std::max<int64_t>(1, std::min<int64_t>(kBytes / one, wanted)));
  int line = 1;  // rows that end where lines do
  while (line * one % kLine) line *= 2;
  Cut best;
  for (int lanes = 1; lanes <= 32 && (lanes == 1 || whole / lanes >= 8); lanes *= 2) {
    const int span = whole / lanes, most_passes = most * lanes / kThreads;
    for (int rows :
         {most, most / line * line, most_passes * kThreads / lanes, most_passes * kThreads / lanes / line * line}) {
      if (rows < 1) continue;
      const double passes = double(ceil_div(int64_t(rows) * lanes, kThreads));
      const double cost = (passes * (std::min(span, n) + 5) + 8) / rows * (rows % line ? 1.1 : 1);
      if (cost < best.cost) best = {rows, lanes, span, cost};
    }
  }
  PackedRowsShape s;
  s.threads = kThreads;
  s.lanes = best.lanes;
  take(forced.lanes, s.lanes, 32, "lanes");
  s.span = std::max(1, whole / s.lanes);
  s.rows = best.rows;
  s.padded = s.lanes > 1 || (one % 16 == 0 && n > kMostUnrolled);
  s.shared = padded(s.padded, s.rows * one + 32) + 16;
  s.blocks = ceil_div(l.rows, s.rows);
  return s;
}

}  // namespace packed_rows
}  // namespace torchreduce
