// Launches of norms over channels. Host code alone.
#pragma once
#include "kernels/reduce/reduce_launch.h"
#include "plan/channel_call.h"
#include "plan/plan_tools.h"

namespace torchreduce {

// Memory is one run of lines of neighbours, each a channel's; or of rows of channels; or of one of these in x and of
// the other in the output; or anything.
enum class ChannelWay : int8_t { Lines, Columns, Transposed, Elements };

// What a lane of sum_lines loads at once: 16 or 8 bytes, which are of one line; or an element, of lines of neighbours
// that 32 bits are enough for, or of anything.
enum class SumsLoads : int8_t { Granules, Halves, Neighbours, Elements };

// Sums of channels, or of groups. Each row has so many units, parts of leaves, with two sums each.
struct SumsShape {
  int64_t rows = 0, units = 0, blocks = 0;
  int64_t first = 0;  // of its units' sums in the workspace
};

struct ChannelShape {
  ChannelWay way = ChannelWay::Elements;
  int64_t blocks = 1;
  int threads = 256;
  int64_t workspace = 0;
  SumsShape sums[2];  // of channels, of groups; without rows where they are not wanted
  SumsLoads loads = SumsLoads::Elements;
  bool is_one_read = false;  // both sums are made of one look at the elements
  int log_lanes = 4;         // Sums, Columns: lanes that have neighbouring granules
  int64_t together = 1;      // maps, Columns: threads that there are
  Divider by_length, by_channels, by_group;
};

namespace channels_of {

using namespace plans;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kEach = 4;   // maps: granules of a thread that are loaded together
constexpr int kTurns = 4;  // maps, Columns: how often, at most, so that what is known of channels is loaded once
constexpr int kRun = 4;    // Sums, Columns: residues of a thread
constexpr int kSide = 8;   // Transposed: granules across a tile, which is square

// Neighbouring residues of a lane of sum_lines, whose warp has a power of two of them.
inline int residues_of_lane(SumsLoads loads, int element) {
  return loads == SumsLoads::Granules ? 16 / element : loads == SumsLoads::Halves ? 8 / element : 2;
}
inline SumsLoads loads_of(const ChannelCall& call) {
  const int size = size_of(call.dtype);
  const bool near = call.samples == 1 || (call.length + kLeaf) * call.channels < INT32_MAX;  // offsets within a leaf
  if (!near) return SumsLoads::Elements;
  if (call.length % (16 / size) == 0) return SumsLoads::Granules;
  return size == 2 && call.length % 4 == 0 ? SumsLoads::Halves : SumsLoads::Neighbours;
}

inline void shape_sums(const ChannelCall& call, ChannelShape& s) {
  const int64_t per = 16 / size_of(call.dtype);
  if (s.way == ChannelWay::Lines) s.loads = loads_of(call);
  const int of_lane = residues_of_lane(s.loads, size_of(call.dtype));
  const int64_t parts = kResidues / (32 * of_lane);  // of a leaf
  s.is_one_read = s.loads == SumsLoads::Granules && call.sums(false) && call.sums(true) && call.length % kLeaf == 0;
  s.blocks = 0;
  for (const bool of_groups : {false, true}) {
    SumsShape& own = s.sums[of_groups];
    own.first = s.workspace / size_of(call.accumulator);
    if (!call.sums(of_groups)) continue;
    const int64_t leaves = std::max<int64_t>(1, ceil_div(call.sums_length(of_groups), kLeaf));
    own.rows = call.sums_rows(of_groups);
    if (s.way == ChannelWay::Columns) {
      while (s.log_lanes > 0 && (1 << s.log_lanes) / 2 >= call.channels / per) --s.log_lanes;
      const int64_t lanes = 1 << s.log_lanes;
      own.units = leaves * std::max<int64_t>(1, kResidues / (kThreads / lanes * kRun));
      own.blocks = ceil_div(call.channels, lanes * per) * own.units;
    } else {
      own.units = leaves * parts;
      own.blocks = ceil_div(own.rows * own.units, kWarps);
    }
    s.workspace += 2 * own.rows * own.units * size_of(call.accumulator);
    s.blocks = s.is_one_read ? own.blocks : s.blocks + own.blocks;
  }
}

// What a block of such a way has, for a call whose sizes its kernels can count.
inline void shape(const ChannelCall& call, ChannelShape& s) {
  const int64_t per = 16 / size_of(call.dtype), elements = call.samples * call.channels * call.length;
  s.threads = kThreads;
  s.by_length = divider(std::max<int64_t>(1, std::min<int64_t>(call.length, INT32_MAX)));
  s.by_channels = divider(std::max<int64_t>(1, std::min<int64_t>(call.channels, INT32_MAX)));
  s.by_group = divider(call.groups ? std::max<int64_t>(1, call.channels / call.groups) : 1);
  if (call.op == Channels::Move) {
    s.blocks = ceil_div(call.channels, kThreads);
  } else if (call.op == Channels::Sums) {
    shape_sums(call, s);
  } else if (s.way == ChannelWay::Elements) {
    s.blocks = ceil_div(elements, kThreads);
  } else if (s.way == ChannelWay::Transposed) {
    s.blocks = call.samples * ceil_div(call.channels, kSide * per) * ceil_div(call.length, kSide * per);
  } else if (s.way == ChannelWay::Lines) {
    s.blocks = ceil_div(elements, kThreads * kEach * per);
  } else {  // threads that keep their channels, a whole number of rows of them
    const int64_t granules = elements / per, row = call.channels / per;
    s.together = ceil_div(ceil_div(granules, kEach * kTurns), row) * row;
    s.blocks = ceil_div(s.together, kThreads);
  }
}

}  // namespace channels_of
}  // namespace torchreduce
