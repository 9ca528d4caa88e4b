// Short rows of neighbouring elements, wherever they start: blocks copy some of them to shared memory.
#pragma once
#include "rows.h"

namespace torchreduce {

struct PackedRowsShape : ReduceLaunch {
  int rows = 1;   // of a block
  int lanes = 1;  // of a row, each of another warp where a block has 32 rows for each
  int log_lanes = 0;
  int span = 8;        // neighbouring elements of a lane, of each 256 where order shows
  int place = 0;       // bytes from a row's place in shared memory to the next; 0: rows lie there as in memory
  bool words = false;  // of rows whose order does not show, 16 bytes at a time start at words, not at granules

  template <class Visit> void each(Visit visit) const {
    visit("rows", rows);
    visit("lanes", lanes);
    visit("span", span);
    visit("place", place);
    visit("words", words);
  }
};

namespace packed_rows {

using namespace plans;

constexpr int kLogThreads = 8, kThreads = 1 << kLogThreads;
constexpr int kMostBytes = 4 << 10;  // of a row; longer ones are for warps
constexpr int kMostLanes = 32;       // of a row
constexpr int kBytes = 52 << 10;     // of a block's rows: four blocks a multiprocessor
constexpr int kRunBytes = 32 << 10;  // of those that threads take several of
constexpr int kBlocksWanted = 8;     // for each multiprocessor, before a block takes more rows
constexpr int kMostUnrolled = 16;    // elements of rows that a thread each takes without a loop
constexpr int kBeyond = 80;          // bytes that may be looked at after a block's last row
constexpr int kValue = 16;           // bytes of a lane's value, at most

// Of shared memory that lanes' values have before the rows.
TR_HD constexpr int value_bytes(int lanes) { return lanes > 1 ? lanes * (kThreads / lanes + 1) * kValue : 0; }

// Of `count` neighbouring lanes that each access so many bytes of a row of theirs, those that do of one bank.
inline int conflicts(int start, int64_t pitch, int bytes, int count) {
  int most = 0, found[32] = {};
  for (int r = 0; r < count; ++r) most = std::max(most, ++found[(start + r * pitch) / bytes % (128 / bytes)]);
  return most;
}

// Rows of whole granules for which those of rows.h are slower: where positions are found, and many lanes have no
// granule.
inline bool is_better_for_positions(const ReduceCall& call, int granules) {
  if (!facts(call.op, call.in.dtype).indexed || granules <= 2 || granules > rows::kMostSeveral) return false;
  const double use = double(granules) / double(power_of_two(granules));
  return use < (granules > 32 ? 0.75 : 0.875) && (granules > 3 || call.layout.length <= kMostUnrolled) &&
         conflicts(0, granules * 16, 16, 8) <= 2;
}

inline std::optional<PackedRowsShape> serves(const ReduceCall& call, const DeviceFacts& device,
                                             const PlanOverride& forced) {
  const Layout& l = call.layout;
  const int size = size_of(call.in.dtype), bytes = int(std::min<int64_t>(l.length * size, kMostBytes + 1));
  if (!has_plain_rows(call) || l.kept == 0 || bytes > kMostBytes) return {};
  const int n = int(l.length), start = int(reinterpret_cast<uintptr_t>(call.in.data) % 16);
  const auto even = row_pitch(l);
  const int64_t pitch = even.value_or(l.in[0]) * size;
  const bool ordered = !any_order(call);
  if (!forced.family && rows::has_whole_rows(call) && !is_better_for_positions(call, bytes / 16)) return {};

  PackedRowsShape s;
  s.threads = kThreads;
  // Rows that follow one another lie in shared memory as in memory. Where that leads to the same banks, and where other
  // things lie between them, each has a place of its own, an odd number of granules.
  s.words = !ordered && conflicts(start, pitch, 16, 8) > 2 && conflicts(start, pitch, 4, 32) <= 4;
  const bool granules_read = !ordered && n > kMostUnrolled && !s.words;
  const bool run = even && pitch >= bytes && pitch - bytes <= std::max(32, bytes / 4) &&
                   conflicts(start, pitch, granules_read ? 16 : 4, granules_read ? 8 : 32) <= (granules_read ? 4 : 8);
  bool alike = true;
  for (int d = 0; d < l.kept; ++d) alike &= l.in[d] * size % 16 == 0;
  const int granules = int(ceil_div(bytes + (alike ? start : 16 - size), 16));
  if (!run) {
    if (!forced.family && even && size == 4 && bytes > kMostBytes / 2) return {};  // H200, float32 1024: 0.79, 0.85
    s.place = (granules | 1) * 16;
    s.words = false;
  }
  const int one = run ? int(pitch) : s.place;

  const int whole = ordered ? int(std::max<int64_t>(8, power_of_two(std::min(n, kResidues)))) : granules * 16 / size;
  const int pieces = ordered ? whole / 8 : granules;
  auto rows_of = [&](int lanes) { return kThreads / lanes; };
  while (s.lanes < std::min(kMostLanes, pieces) &&
         (rows_of(s.lanes) * one > kBytes || l.rows < int64_t(rows_of(s.lanes)) * 2 * device.multiprocessors))
    s.lanes *= 2;
  take(forced.lanes, s.lanes, kMostLanes, "lanes");
  if (ordered) s.span = std::max(8, whole / s.lanes);
  else s.span = int(ceil_div(granules, s.lanes)) * 16 / size;
  while (1 << s.log_lanes < s.lanes) ++s.log_lanes;
  s.rows = rows_of(s.lanes);
  if (s.lanes == 1)  // a thread takes several
    s.rows *= int(
        std::max<int64_t>(1, std::min<int64_t>(kRunBytes / (s.rows * one),
                                               l.rows / (int64_t(s.rows) * kBlocksWanted * device.multiprocessors))));
  s.shared = value_bytes(s.lanes) + (s.rows * one + 15) / 16 * 16 + kBeyond;
  s.blocks = ceil_div(l.rows, s.rows);
  return s;
}

}  // namespace packed_rows
}  // namespace torchreduce
