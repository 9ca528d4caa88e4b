// Columns of at most two tiles, of any type: whole ones a block.
#pragma once
#include "column_call.h"

namespace torchreduce::scans {

struct ShortColumnsShape : ScanLaunch {
  int columns = 1;  // neighbouring ones of a thread
  int across = 1;   // threads side by side
  int lanes = 1;    // threads a column and tile, a power of two
  int tiles = 1;    // a column

  template <class Visit> void each(Visit visit) const {
    visit("columns", columns);
    visit("across", across);
    visit("lanes", lanes);
    visit("tiles", tiles);
  }
};

constexpr int64_t kShortColumn = 2 * kTile;  // positions, at most
constexpr int kFewColumns = 8;               // fewer are taken as short ones up to there
// Columns of a thread that makes 16-byte accesses, where their accumulators take at most kColumnAccs bytes, else
// registers are too few.
TR_HD constexpr int column_vector(int size, int acc) { return acc > 4 && size < 8 ? 2 : 16 / size; }
constexpr int kColumnAccs = 32;
// Threads of a block, at most: what registers and shared memory allow, given the bytes of an element and of an
// accumulator. One column a thread fits wherever there are bulk copies, be it only 99 KiB a block.
TR_HD constexpr int column_threads(int columns, int size, int acc) {
  if (columns > 1 && acc <= 8 && columns * size <= 8) return 512;
  if (columns == 1 && size > 12) return 128;
  return acc > 4 || (columns == 1 && size > 8) ? 192 : 256;
}
constexpr int kSmallBlock = 256;  // the same where blocks are not large (DeviceFacts::large_blocks)
// Blocks that a multiprocessor has room for.
TR_HD constexpr int column_blocks(int threads, int acc) { return acc > 8 || threads > 256 ? 1 : 2; }
constexpr int kColumnShared = 1 << 10;  // bytes of shared memory that the kernel declares, at most
constexpr int kColumnStages = 3;        // jobs whose elements are there or on their way

namespace short_columns {

using namespace plans;

inline ShortColumnsShape shape_of(const ScanCall& call, const DeviceFacts& device, int columns) {
  const Layout& l = call.layout;
  const int element = small_ints(call) ? 4 : position_bytes(call), acc = scan_sizes(call).acc,
            threads = column_threads(columns, element, acc);
  const int64_t width = columns_beside(l), vectors = ceil_div(width, columns);
  ShortColumnsShape s;
  s.columns = columns;
  s.tiles = l.length > kTile ? 2 : 1;
  s.lanes = s.tiles > 1 ? kFan : int(power_of_two(ceil_div(l.length, kGroup)));
  s.declared = kColumnShared;
  const int rows = s.lanes * s.tiles, step = std::max(1, 32 / rows);  // blocks are whole warps
  // More shared memory than every GPU has only where there are bulk copies. Code for large blocks cannot do with less
  // of it than its constants say.
  for (int most = device.large_blocks ? threads : std::min(threads, kSmallBlock); most > 0; most -= 64) {
    const int64_t widest = std::max(step, most / rows / step * step), strips = ceil_div(vectors, widest);
    s.across = int(ceil_div(ceil_div(vectors, std::max<int64_t>(1, strips)), step) * step);
    s.threads = s.across * rows;
    const int positions = device.large_blocks ? threads : s.threads;
    s.shared = kColumnStages * kGroup * positions * columns * element + rows * (s.across + 1) * columns * acc +
               (s.tiles > 1 ? s.across * columns * acc : 0);
    if (device.large_blocks || s.shared + s.declared <= shared_of(device)) break;
  }
  const int fit = std::max(1, (224 << 10) / (s.shared + (2 << 10)));  // of a multiprocessor
  s.blocks = std::min(ceil_div(vectors, s.across) * (l.rows / width), int64_t(device.multiprocessors) * fit);
  return s;
}

inline std::optional<ShortColumnsShape> serves(const ScanCall& call, const DeviceFacts& device,
                                               const PlanOverride& forced) {
  const Layout& l = call.layout;
  const int size = size_of(call.in.dtype), acc = scan_sizes(call).acc, columns = column_vector(size, acc);
  // Two tiles are worth it of few columns (H200, speed of tiles: (74565, 300, 3) float32 4.2 and bfloat16 4.8, (31956,
  // 300, 7) 1.3 and 1.8).
  const bool two = in_place(call) && is_float(call.in.dtype) && acc <= 4 && columns_beside(l) < kFewColumns;
  if (l.length > (forced.family || two ? kShortColumn : kTile)) return {};
  const ShortColumnsShape one = shape_of(call, device, 1);
  // Vectors take longer to get going where a multiprocessor has one job, or none (H100, us, cumsum of one column a
  // thread and of vectors: 256 by 1024 float32 3.9, 4.6, bfloat16 4.3, 5.2; 200 by 4096 6.9, 4.7 and 7.5, 5.3).
  const bool few = forced.vector_loads < 0 && one.blocks < device.multiprocessors;
  if (!few && forced.vector_loads != 0 && columns * acc <= kColumnAccs && column_vectors(call, columns)) {
    const ShortColumnsShape s = shape_of(call, device, columns);
    if (s.shared + s.declared <= shared_of(device)) return s;
  }
  return one;
}

}  // namespace short_columns
}  // namespace torchreduce::scans
