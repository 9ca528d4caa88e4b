// Columns of floats that lie side by side, but whose rows start anywhere, where blocks are large: strips of words.
#pragma once
#include "column_call.h"

namespace torchreduce::scans {

struct RaggedColumnsShape : ScanLaunch {
  int words = 32;     // of a strip's row
  int64_t tiles = 1;  // a column

  template <class Visit> void each(Visit visit) const {
    visit("words", words);
    visit("tiles", tiles);
  }
};

// Of types of such bytes, and rows of so many at least; narrower ones would leave too many lanes without a column.
TR_HD constexpr bool ragged_columns_of(int size, int acc) { return acc <= 4 && size <= 4; }
constexpr int kLeastRaggedBytes = 64;
constexpr int kSectorColumns = 128;  // float32 columns that are taken by tiles wherever their rows start, at most
// Of a block: threads that work, those that form carries, and jobs from a job's totals to its results.
constexpr int kRaggedThreads = 512, kRaggedCarryThreads = 128, kRaggedBehind = 3;
constexpr int kColumnJobs = 8;     // the jobs that the warps of a block speak of,
constexpr int kColumnCarries = 2;  // and those whose carries they have
// A lane has a word of a row, or two 32 words apart, given the words of a strip's row. Strips of more than 32 words
// have results that begin with a whole sector, and reach into the next strip to end with one: of rows of so many
// float32 columns that neighbouring strips' parts of a sector no longer meet in the cache (H200, of a copy's speed:
// 1473 columns 0.72, by narrow strips 0.73; 2001 0.75, 0.74; 5341 0.75, 0.58; 10001 0.74, 0.53; bfloat16, with two
// columns a word, 0.46, 0.53). Bytes that a row takes in shared memory, where it begins at the place in a sector that
// it has in memory.
constexpr int kRaggedStrip = 56, kRaggedMerged = 1792;
TR_HD constexpr int ragged_sides(int words) { return words > 32 ? 2 : 1; }
TR_HD constexpr int ragged_pitch(int sides) { return sides * 128 + 32; }
// The lane behind those that work which puts jobs, of a warp of its own, so that no carry waits (0.78 of a copy's speed
// without, 0.87 with it); with two columns a word its registers would be missed.
TR_HD constexpr int ragged_put_lane(int size) { return size < 4 ? 0 : kRaggedCarryThreads; }
TR_HD constexpr int ragged_block(int size) {
  return kRaggedThreads + kRaggedCarryThreads + (ragged_put_lane(size) ? 32 : 0);
}
// Of those that form carries as many for each of `columns` as look at all the totals that precede a tile together.
TR_HD constexpr int carry_lanes(int columns, int threads) { return 4 * columns <= threads ? 4 : 2; }
constexpr int kRaggedShared = 1 << 10;  // bytes of shared memory that the kernel declares, at most

namespace ragged_columns {

using namespace plans;

// Such as have no tiles of words, and of float32 more than few (H200, of a copy's speed by tiles: 100 columns 0.98,
// here 0.98; 129 0.88, 0.98; 1001 0.84, 1.09). Not in place: what is read around a strip's rows may be another strip's
// results.
inline std::optional<RaggedColumnsShape> serves(const ScanCall& call, const DeviceFacts& device,
                                                const PlanOverride& forced) {
  const Layout& l = call.layout;
  const int size = size_of(call.in.dtype), last = l.kept - 1;
  const ScanSizes bytes = scan_sizes(call);
  if (!device.large_blocks || forced.vector_loads == 0 || !in_place(call) || !ragged_columns_of(size, bytes.acc))
    return {};
  if (l.kept == 0 || l.length <= kTile || l.in[last] != 1 || l.out[last] != 1 ||
      l.size[last] * size < kLeastRaggedBytes || call.in.data == call.out.values)
    return {};
  if (!forced.family && (column_vectors(call, size < 4 ? 2 : 4) || (size == 4 && l.size[last] <= kSectorColumns)))
    return {};
  RaggedColumnsShape s;
  const int64_t width = l.size[last], of_word = 4 / size, words = ceil_div(width, of_word);
  s.words = of_word == 1 && words > kRaggedMerged ? kRaggedStrip : int(ceil_div(words, ceil_div(words, 32)));
  s.tiles = ceil_div(l.length, kTile);
  s.threads = ragged_block(size);
  const int sides = ragged_sides(s.words), columns = int(32 * sides * of_word);
  s.shared = (2 + kRaggedBehind) * (kTile / sides) * ragged_pitch(sides) +
             columns * (kColumnCarries * (bytes.wide + bytes.acc) + (sides - 1) * bytes.acc) +
             kRaggedBehind * (kFan / sides) * (columns + 1) * bytes.acc;
  s.declared = kRaggedShared;
  if (s.shared + s.declared > shared_of(device)) return {};
  s.blocks = std::min<int64_t>(ceil_div(words, s.words) * (l.rows / width) * s.tiles, device.multiprocessors);
  s.workspace = column_workspace(call, s.tiles);
  return s;
}

}  // namespace ragged_columns
}  // namespace torchreduce::scans
