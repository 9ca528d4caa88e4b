// A contiguous copy of the rows of a reduction: their elements one after the other, in the order in which they are
// reduced. For tensors whose neighbours in memory are far from each other along a row. Host code alone.
#pragma once
#include "kernels/reduce/reduce_launch.h"

namespace torchreduce {

// Neighbours in memory are neighbours along the row: Runs of the last dim. Or they are `columns`, a dim that others
// come after: Tiles of columns and of positions, which number all other dims, row-major; Few, if columns are.
enum class CopyWay : int8_t { Runs, Tiles, Few };

struct CopyShape {
  int64_t blocks = 1;
  CopyWay way = CopyWay::Runs;
  int dim = 0;                // of the layout, whose elements are neighbours
  int columns = 1;            // its size
  int positions = 1;          // of all other dims
  int stretch = 1;            // of the copy, from one column to the next: all dims after it
  int turns = 1, groups = 1;  // Tiles: of a block, of the same positions; blocks of these
  Divider by_stretch, by_groups;
  Divider by[kMaxDims];  // by the sizes of the layout's dims
};

// From where to where, with its plan.
struct PlannedCopy {
  Layout layout;  // of the input
  int size;       // bytes of an element
  const void* from;
  void* to;  // aligned to 16 bytes
  CopyShape plan;

  int64_t elements() const { return layout.rows * layout.length; }
};

namespace contiguous {

using namespace plans;

constexpr int kThreads = 256;
constexpr int kColumns = 32, kRows = 128;         // of a tile: columns, positions
constexpr int kFewColumns = 16, kPositions = 4;   // Few: at most; of a thread
constexpr int kMostTurns = 8, kBlocksWanted = 8;  // for each multiprocessor, before a block takes more than a tile
constexpr int64_t kMostBytes = 128 << 20;         // of a copy

// The copy of a call's elements, if there is a kernel for it.
inline std::optional<PlannedCopy> copy_of(const ReduceCall& call, int multiprocessors) {
  const Layout& l = call.layout;
  const int last = l.kept + l.reduced - 1, size = size_of(call.in.dtype);
  const int64_t elements = l.rows * l.length;
  if (l.reduced < 1 || size < 2 || elements < 1 || elements > kMostBytes / size) return {};
  PlannedCopy copy{l, size, call.in.data, nullptr, {}};
  CopyShape& s = copy.plan;
  s.dim = -1;
  int64_t extent = 1;  // elements from the first to the last in memory
  for (int d = 0; d <= last; ++d) {
    if (l.in[d] < 1) return {};
    if (l.in[d] == 1) s.dim = d;
    extent += (l.size[d] - 1) * l.in[d];
    s.by[d] = divider(l.size[d]);
  }
  if (s.dim < 0 || extent > INT32_MAX / 2) return {};
  s.columns = int(l.size[s.dim]);
  s.positions = int(elements / s.columns);
  if (s.dim == last) {
    if (s.columns < 16 / size) return {};  // a lane copies 16 bytes, of two runs at most
    s.blocks = ceil_div(ceil_div(elements, 16 / size), kThreads);
    return copy;
  }
  for (int d = s.dim + 1; d <= last; ++d) s.stretch *= int(l.size[d]);
  s.by_stretch = divider(s.stretch);
  if (s.columns <= kFewColumns) {
    s.way = CopyWay::Few;
    s.blocks = ceil_div(s.positions, kThreads * kPositions);
    return copy;
  }
  s.way = CopyWay::Tiles;
  const int64_t across = ceil_div(s.columns, kColumns), down = ceil_div(s.positions, kRows);
  s.turns = int(std::clamp<int64_t>(across * down / (int64_t(kBlocksWanted) * multiprocessors), 1,
                                    std::min<int64_t>(kMostTurns, across)));
  s.groups = int(ceil_div(across, s.turns));
  s.by_groups = divider(s.groups);
  s.blocks = down * s.groups;
  return copy;
}

// The layout of the copy.
inline Layout layout_of_copy(const Layout& l) {
  std::vector<Dim> kept, reduced;
  int64_t stride = 1;
  for (int d = l.kept + l.reduced - 1; d >= 0; --d) {
    std::vector<Dim>& dims = d < l.kept ? kept : reduced;
    dims.insert(dims.begin(), {l.size[d], stride, l.out[d]});
    stride *= l.size[d];
  }
  return fold(std::move(kept), reduced);
}

}  // namespace contiguous

// What is launched as any planned call is (binding/run.h); it has its plan.
inline CopyShape plan(const PlannedCopy& copy, const DeviceFacts&) { return copy.plan; }
inline int64_t workspace_bytes(const CopyShape&) { return 0; }

namespace gpu {
const char* copy_rows(const PlannedCopy& copy, void* workspace, void* stream);  // as gpu::reduce
}

}  // namespace torchreduce
