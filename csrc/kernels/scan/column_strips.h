// Aligned columns of floats, on GPUs with bulk copies: strips that blocks share, whose warps have roles.
#pragma once
#include "column_call.h"
#include "row_call.h"

namespace torchreduce::scans {

struct ColumnStripsShape : ScanLaunch {
  int bytes = 128;    // of a row of a strip
  int down = 1;       // tiles of a job, where strips are narrow
  int64_t tiles = 1;  // a column

  template <class Visit> void each(Visit visit) const {
    visit("bytes", bytes);
    visit("down", down);
    visit("tiles", tiles);
  }
};

// Accumulators of at most kStripAcc bytes; the bytes of a row, of one tile or several side by side; the stages, of a
// tile of such rows and one more; and the threads of a block.
constexpr int kStripAcc = 4, kStripRow = 128, kStripStages = 6, kStripStage = (kTile + 1) * kStripRow,
              kStripThreads = 1024;
// Jobs a multiprocessor from which on strips are faster than tiles (H100, us, by tiles and by strips: 128 jobs, 2^17 by
// 8 float32 7.8 and 10.2, by 16 bfloat16 9.3 and 11.8; 256, 4096 by 1024 bfloat16 9.4 and 11.2, 2^19 by 8 15.5
// and 15.0; 512, 2^18 by 16 float32 15.2 and 16.0, 2^19 by 16 bfloat16 20.3 and 17.5).
constexpr int kStripJobs = 2;

namespace column_strips {

using namespace plans;

// The bytes of a strip's row; 0: none. Where more than a part of the last strip's lanes lacked columns it would lose
// (100 float32 columns: 12 %).
inline int row_bytes(const ScanCall& call) {
  const Layout& l = call.layout;
  const int size = size_of(call.in.dtype);
  if (!is_float(call.in.dtype) || size > 4 || !in_place(call) || scan_sizes(call).acc > kStripAcc) return 0;
  if (!column_vectors(call, 16 / size) || l.length > INT32_MAX - 2 * kTile) return 0;
  const int64_t row = l.size[l.kept - 1] * size, lacking = (kStripRow - row % kStripRow) % kStripRow;
  if (row < kStripRow) return row >= 16 && kStripRow % row == 0 && run_of_granules(call) ? int(row) : 0;
  // What copies of tiles (tile_map.cuh) reach: rows apart, and one dim of batches.
  auto fits = [&](const int64_t (&strides)[kMaxDims]) {
    return l.kept <= 2 && magnitude(strides[l.kept]) >= l.size[l.kept - 1] &&
           magnitude(strides[l.kept]) * size < int64_t(1) << 40 &&
           (l.kept < 2 || (strides[0] > 0 && strides[0] * size < int64_t(1) << 40));
  };
  return 32 * lacking <= row + lacking && fits(l.in) && fits(l.out) ? kStripRow : 0;
}

inline std::optional<ColumnStripsShape> serves(const ScanCall& call, const DeviceFacts& device,
                                               const PlanOverride& forced) {
  const Layout& l = call.layout;
  if (!has_ring(device) || forced.vector_loads == 0 || l.length <= kTile) return {};
  ColumnStripsShape s;
  s.bytes = row_bytes(call);
  if (!s.bytes) return {};
  const int64_t width = l.size[l.kept - 1], columns = s.bytes / size_of(call.in.dtype);
  s.down = kStripRow / s.bytes;
  s.tiles = ceil_div(l.length, kTile);
  s.threads = kStripThreads;
  s.shared = kRingShared;
  s.declared = 0;
  const int64_t jobs = l.rows / width * ceil_div(width, columns) * ceil_div(s.tiles, s.down);
  if (!forced.family && jobs < kStripJobs * device.multiprocessors) return {};
  s.blocks = std::min<int64_t>(jobs, device.multiprocessors);
  const ScanSizes bytes = scan_sizes(call);
  const int64_t blocks = ceil_div(s.tiles, kFan);
  s.workspace = 16 + l.rows * (s.tiles * 2 * bytes.acc + (blocks + ceil_div(blocks, kFan)) * 2 * bytes.wide);
  return s;
}

}  // namespace column_strips
}  // namespace torchreduce::scans
