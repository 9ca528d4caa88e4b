// Columns of two inputs that are many and long: teams of lanes walk them.
#pragma once
#include "column_walk.h"

namespace torchreduce::scans {

struct ColumnTeamsShape : ScanLaunch {
  int columns = 1;  // neighbouring ones of a lane

  template <class Visit> void each(Visit visit) const { visit("columns", columns); }
};

// The columns of a block, the lanes of each, and the rows that they have at a time. Given the bytes of an element: the
// threads, and the blocks of a multiprocessor that there are registers for; and given those of what is summed, the
// bytes of shared memory.
constexpr int kTeamColumns = 64, kTeam = 8, kTeamRows = kTile / 2;
TR_HD constexpr int team_threads(int size) { return kTeam * kTeamColumns / word_columns(size) + kTeamColumns; }
TR_HD constexpr int team_blocks(int size) { return size == 2 ? 2 : 1; }
TR_HD constexpr int team_shared(int size, int acc, int wide) {
  const int carry = kFanLog2 * (acc + wide) + acc + 3 * wide + 16;  // ScanCarry
  return kTeamColumns * (2 * kTeamRows * size + 2 * (wide + (2 + kTeam) * acc) + carry);
}
constexpr int kTeamShared = 1 << 10;  // bytes of shared memory that the kernel declares, at most

namespace column_teams {

using namespace plans;

// Worth it from where strips are nearly one a multiprocessor (H100, us, float32 and bfloat16, here and by tiles: (2,
// 8192, 4096) 280, 403 and 229, 280; (8, 2048, 1024) 74, 109 and 61, 80; (16384, 4096) 419, 406 and 549, 290). Of no
// more than kTile positions most of a team would have none.
inline std::optional<ColumnTeamsShape> serves(const ScanCall& call, const DeviceFacts& device,
                                              const PlanOverride& forced) {
  const Layout& l = call.layout;
  const int size = size_of(call.in.dtype);
  if (!pairs(call) || size > 4 || l.length <= kTile || !has_column_words(call)) return {};
  if (!forced.family &&
      (!lanes_across_rows(call) || l.length <= kShortWalk || l.rows < 60 * int64_t(device.multiprocessors)))
    return {};
  const ScanSizes bytes = scan_sizes(call);
  ColumnTeamsShape s;
  s.columns = word_columns(size);
  s.threads = team_threads(size);
  s.shared = team_shared(size, bytes.acc, bytes.wide);
  s.declared = kTeamShared;
  if (s.shared + s.declared > shared_of(device)) return {};
  s.blocks = ceil_div(l.rows, kTeamColumns);
  return s;
}

}  // namespace column_teams
}  // namespace torchreduce::scans
