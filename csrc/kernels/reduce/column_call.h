// Reductions with lanes across columns, as the kernels see them: (outer, n, inner), reduced along n; inner ones are
// neighbours in memory.
#pragma once
#include "../../call.h"

namespace torchreduce {

constexpr int kOuterDims = 3;

// Neighbouring columns of a lane, given the bytes of an element: 16 bytes of them, or eight.
TR_HD constexpr int granule_columns(int size) { return size < 2 ? 8 : 16 / size; }

constexpr int kUnitGroup = 64;  // units that meet first
TR_HD constexpr int unit_groups(int units) { return (units + kUnitGroup - 1) / kUnitGroup; }
// Rows of the first buffer that combining units takes; the second one has as many as that of so many units.
TR_HD constexpr int fold_buffer(int units) {
  const int groups = unit_groups(units);
  return ((groups > kUnitGroup ? groups : units < kUnitGroup ? units : kUnitGroup) + 7) / 8;
}
// Blocks of a multiprocessor that registers are for, given the bytes of an element.
TR_HD constexpr int column_blocks_of(int size) { return size == 4 || size == 2 ? 3 : 2; }
TR_HD constexpr int narrow_blocks_of(int size) { return size == 2 ? 4 : 3; }
TR_HD constexpr int short_blocks_of(int size, bool) { return 3; }

struct ColumnCall {
  const void* in;
  Output out;
  OpOptions options;
  void* partials;      // units * columns for each slice and tile, and those of groups of units
  uint32_t* tickets;
  int64_t pitch;       // elements from a row to the next
  int64_t out_step;    // elements from a result to that of the next column
  int64_t outer;
  int64_t outer_size[kOuterDims], outer_in[kOuterDims], outer_out[kOuterDims];
  int32_t outer_dims;
  int32_t n, inner;
  // An accumulator has K = 2^log_k rows, 2^log_r apart, and those of 2^log_r accumulators are neighbours.
  int32_t log_k, log_r;
  int32_t span;        // accumulators of a unit, which a block has, or one of its warps
  int32_t units;       // of a column
  int32_t tiles;       // of neighbouring columns
  int32_t tile;        // columns of one
  int32_t warps;       // that share a unit
  int32_t parts;       // of a unit, spans that a block takes one after the other
  int32_t slices;      // outer ones of a block
  bool same_type;      // results are floats of the input's type
  bool runs;           // results of neighbouring columns are neighbours, too, of the same type
};

}  // namespace torchreduce
