// Launches of norms over channels. Host code alone.
#pragma once
#include "kernels/reduce/reduce_launch.h"
#include "plan/channel_call.h"
#include "plan/plan_tools.h"

namespace torchreduce {

// Memory is one run of lines of neighbours, each a channel's; or of rows of channels; or anything.
enum class ChannelWay : int8_t { Lines, Columns, Elements };

struct ChannelShape {
  ChannelWay way = ChannelWay::Elements;
  int64_t blocks = 1;
  int threads = 256;
  int64_t workspace = 0;
  int64_t units = 1;     // Sums: parts of a row, each with two sums
  int log_lanes = 4;     // Sums, Columns: lanes that have neighbouring granules
  int64_t together = 1;  // maps, Columns: threads that there are
  Divider by_length, by_channels, by_group;
};

namespace channels_of {

using namespace plans;

constexpr int kThreads = 256;
constexpr int kEach = 4;   // maps: granules of a thread that are loaded together
constexpr int kTurns = 4;  // maps, Columns: how often, at most, so that what is known of channels is loaded once
constexpr int kRun = 4;    // Sums, Columns: residues of a thread
constexpr int kMostLanes = 16;

// What a block of such a way has, for a call whose sizes its kernels can count.
inline void shape(const ChannelCall& call, ChannelShape& s) {
  const int64_t per = 16 / size_of(call.dtype), elements = call.samples * call.channels * call.length;
  s.threads = kThreads;
  s.by_length = divider(std::max<int64_t>(1, std::min<int64_t>(call.length, INT32_MAX)));
  s.by_channels = divider(std::max<int64_t>(1, std::min<int64_t>(call.channels, INT32_MAX)));
  s.by_group = divider(call.groups ? std::max<int64_t>(1, call.channels / call.groups) : 1);
  if (call.op == Channels::Move) {
    s.blocks = ceil_div(call.channels, kThreads);
    return;
  }
  if (call.op == Channels::Sums) {
    const int64_t leaves = std::max<int64_t>(1, ceil_div(call.sums_length(), kLeaf));
    if (s.way == ChannelWay::Columns) {
      while (s.log_lanes > 0 && (1 << s.log_lanes) / 2 >= call.channels / per) --s.log_lanes;
      const int64_t lanes = 1 << s.log_lanes;
      s.units = leaves * std::max<int64_t>(1, kResidues / (kThreads / lanes * kRun));
      s.blocks = ceil_div(call.channels, lanes * per) * s.units;
    } else {
      s.units = leaves;
      s.blocks = ceil_div(call.sums_rows() * leaves, kThreads / 32);
    }
    s.workspace = 2 * call.sums_rows() * s.units * size_of(call.accumulator);
    return;
  }
  if (s.way == ChannelWay::Elements) {
    s.blocks = ceil_div(elements, kThreads);
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
