// What Family::ColumnsPipeline's plans and kernel agree on.
#pragma once
#include "shape.h"

namespace torchreduce {

constexpr int kColumnTiles = 12;  // the most that a block has at a time
constexpr int kColumnTileBytes = 32 << 10;
constexpr int kColumnSums = 1024;  // of columns longer than a superblock, the most: a block keeps a sum of each

// A tile in shared memory: offsets of its elements, which may begin anywhere in 16 bytes unless they are a box, of the
// totals of groups and tiles of 256, of what precedes those tiles, and of the columns' carries; all bytes.
struct ColumnStage { int lead, groups, within, carry, bytes; };
// Of rows that take `pitch` elements of `size` bytes.
TR_HD constexpr ColumnStage column_stage(int rows, int columns, int pitch, int size, bool boxes) {
  auto up = [](int bytes, int unit) { return (bytes + unit - 1) / unit * unit; };
  ColumnStage s{};
  s.lead = boxes ? 0 : up(7 * columns * size, 128);  // of a mirrored tile's last group
  s.groups = up(s.lead + rows * pitch * size + (boxes ? 0 : 32), 128);
  s.within = up(s.groups + (rows / 8 + rows / 256) * columns * 4, 16);
  s.carry = up(s.within + rows / 256 * columns * 4, 16);
  s.bytes = up(s.carry + columns * 8, 128);
  return s;
}

}  // namespace torchreduce
