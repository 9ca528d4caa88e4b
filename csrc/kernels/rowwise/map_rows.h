// Ops without looks: an element of the output is made of one of the input and of what its row comes with.
#pragma once
#include "kernels/reduce/reduce_launch.h"
#include "rows_call.h"

namespace torchreduce {

// Elements lie in lines of neighbours: positions of one row; or where rows lie side by side, a position of each of
// them. A tile is some of a line's elements, in some lines one after another.
struct MapRowsShape : RowwiseLaunch {
  bool across = false;       // a line has a position of all rows that lie side by side
  bool one_run = false;      // a tile's lines are one run of memory, in the input and in the output
  int width = 1, lines = 1;  // elements of a tile in a line; its lines
  int side = 1, down = 1;    // tiles that have a line together; tiles one below the other
  int granules = 1;          // of 16 bytes, that a run may touch
  Divider by_width, by_granules;
  int64_t in_pitch = 1, out_pitch = 1;  // elements from a position to the next

  template <class Visit> void each(Visit visit) const {
    visit("across", across);
    visit("width", width);
    visit("lines", lines);
  }
};

namespace map_rows {

using namespace plans;

constexpr int kThreads = 256;      // of a block, at most
constexpr int kEach = 4;           // granules of a thread
constexpr int kMostRows = 512;     // of a tile: what they come with waits in shared memory
constexpr int kMostColumns = 256;  // the same of rows side by side: the fewer they are, the more positions has a tile

inline std::optional<MapRowsShape> serves(const RowwiseCall& call, const DeviceFacts& device, const PlanOverride&) {
  const Layout& l = call.layout;
  const bool types = call.dtype == Dtype::F32 || call.dtype == Dtype::BF16 || call.dtype == Dtype::F16;
  if (facts(call.op).looks() || !types || !is_static(call) || call.out_dtype != call.dtype) return {};
  if (l.length < 1 || l.rows < 1 || l.kept > kMostRowwiseDims || l.reduced > 1) return {};
  const int size = size_of(call.dtype), per = 16 / size, last = l.kept - 1;
  const auto off = [&](const void* p) { return reinterpret_cast<uintptr_t>(p) % size; };
  if (off(call.in[0]) != 0 || off(call.out) != 0) return {};
  MapRowsShape s;
  if (l.reduced > 0) {
    s.in_pitch = l.in[l.kept];
    s.out_pitch = l.out[l.kept];
  }
  s.across = s.in_pitch != 1 || s.out_pitch != 1;
  if (s.across && (last < 0 || l.in[last] != 1 || l.out[last] != 1)) return {};

  const int64_t line = s.across ? l.size[last] : l.length, outer = s.across ? l.rows / line : 1;
  const int64_t lines = s.across ? l.length : l.rows;
  const bool follow = s.across ? s.in_pitch == line && s.out_pitch == line
                               : lines == 1 || (l.kept == 1 && l.in[0] == line && l.out[0] == line);
  const auto touched = [&](int elements) { return (elements + per - 2) / per + 1; };
  for (s.threads = kThreads;; s.threads /= 2) {
    const int tile = s.threads * kEach, most = (tile - 1) * per;  // granules; elements that are sure to fit
    const int64_t side = ceil_div(line, s.across ? kMostColumns : most);
    if (side > INT32_MAX) return {};
    s.width = int(side == 1 ? line : ceil_div(ceil_div(line, side), per) * per);
    s.side = int(ceil_div(line, s.width));
    s.one_run = s.side == 1 && follow;
    const int room = s.one_run ? most / s.width : tile / touched(s.width);
    s.lines = int(std::min<int64_t>(s.across ? room : std::min(room, kMostRows), lines));
    const int64_t down = ceil_div(lines, s.lines);
    if (down > INT32_MAX) return {};
    s.down = int(down);
    s.blocks = outer * s.down * s.side;
    if (s.threads == 32 || s.blocks >= device.multiprocessors) break;
  }
  s.granules = touched(s.one_run ? s.lines * s.width : s.width);
  s.by_width = divider(s.width);
  s.by_granules = divider(s.granules);
  s.splits = s.across ? s.down : s.side;
  return s;
}

}  // namespace map_rows
}  // namespace torchreduce
