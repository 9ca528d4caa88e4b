// What families of rows ask of a call.
#pragma once
#include "scan_launch.h"

namespace torchreduce::scans {

// Rings: blocks that stay, one a multiprocessor, with bulk copies to a ring of stages. The most bytes of shared memory
// that one has; its threads, given the bytes of an element and of an accumulator: with larger ones, result warps form
// totals, too, and with those of two inputs store them.
constexpr int kRingShared = 216 << 10;
TR_HD constexpr int ring_threads(int bytes, int acc) { return acc > 8 ? 640 : acc > 4 ? 672 : bytes > 2 ? 768 : 800; }

}  // namespace torchreduce::scans

namespace torchreduce::plans {

// Rows for each multiprocessor from which on a warp walks a row.
constexpr int kWarpRows = 32;
inline bool many_rows(const ScanCall& call, const DeviceFacts& device) {
  return call.layout.rows >= int64_t(kWarpRows) * device.multiprocessors;
}
// Whether each block tile has a multiprocessor of its own.
inline bool few_tiles(const ScanCall& call, const DeviceFacts& device) {
  return call.layout.rows * ceil_div(call.layout.length, kBlockTile) <= device.multiprocessors;
}

// Every row is one run of neighbours, and starts a multiple of 16 bytes from the first.
inline bool rows_packed(const Layout& l, int in_size, int out_size) {
  const int64_t stride = l.reduced == 1 ? l.in[l.kept] : 0;  // a reverse scan goes down
  if ((stride != 1 && !(stride == -1 && out_size)) || (out_size && l.out[l.kept] != stride)) return false;
  for (int d = 0; d < l.kept; ++d)
    if (l.in[d] * in_size % 16 != 0 || l.out[d] * out_size % 16 != 0) return false;
  return true;
}
// Where 16-byte accesses along the row have to be aligned: the end that lies highest in a row walked downwards.
inline bool row_aligned(const void* data, int64_t stride, int size) {
  return aligned(static_cast<const char*>(data) + (stride < 0 ? size : 0));
}
// Whether elements and results can move 16 bytes at a time.
inline bool moves_granules(const ScanCall& call, const PlanOverride& forced) {
  const int in_size = size_of(call.in.dtype), out_size = size_of(call.out.dtype);
  const int64_t stride = position_stride(call.layout);
  return forced.vector_loads != 0 && typed(call) && rows_packed(call.layout, in_size, out_size) &&
         row_aligned(call.in.data, stride, in_size) && row_aligned(call.out.values, stride, out_size) &&
         (compact(call) || facts(call.op).inputs == 2 ||
          (aligned(call.in.more[0]) && aligned(call.in.more[1]) &&
           (!call.out.indices || row_aligned(call.out.indices, stride, 8))));
}

// Lanes of a row of `length` elements, a group each, at most a warp's; a power of two.
inline int lanes_of_groups(int64_t length) {
  return int(power_of_two(std::min<int64_t>(32, std::max<int64_t>(1, ceil_div(length, kGroup)))));
}
inline void check_lanes(int lanes, int least, int64_t length) {
  if (lanes < least) throw std::invalid_argument("force_plan: too few lanes for a row of " + std::to_string(length));
}

// ---- rows that blocks share: a block tile each, carries by look-back -------------------------------------------------

// The workspace: a ticket, the total of each tile, and two carries for each kFan tiles (tile/carry.cuh); a flag beside
// each 4 bytes of a value.
inline int64_t look_back_workspace(const ScanCall& call, int64_t tiles) {
  const ScanSizes bytes = scan_sizes(call);
  return 8 + call.layout.rows * (tiles * 2 * bytes.acc + ceil_div(tiles, kFan) * 4 * bytes.wide);
}

inline bool has_ring(const DeviceFacts& device) {
  return device.bulk_copies && shared_of(device) >= scans::kRingShared;
}
// Whether rows are runs of neighbours, in and out, of floats of at most 4 bytes.
inline bool runs_of_floats(const ScanCall& call) {
  const int64_t in = position_stride(call.layout);
  return is_float(call.in.dtype) && size_of(call.in.dtype) <= 4 && in == out_stride(call.layout) && magnitude(in) == 1;
}

}  // namespace torchreduce::plans
