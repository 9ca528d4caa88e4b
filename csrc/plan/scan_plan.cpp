#include "scan_plan.h"

#include "cpu_lanes.h"

namespace torchreduce {

using namespace plans;

namespace {

template <class S> ScanSizes sizes_of() {
  return {int(sizeof(typename S::Acc)), int(sizeof(typename S::Wide)), kHeldGroups<S>, kHeldTiles<S>};
}
template <template <class> class Op> ScanSizes sizes_of(const Source& in) {
  constexpr bool kIntegers = Op<float>::kIntegers;
  if (kIntegers && in.accumulator == Dtype::I64) return sizes_of<Op<std::conditional_t<kIntegers, int64_t, float>>>();
  if (Op<float>::kIndexed && size_of(in.dtype) == 2)
    return sizes_of<Op<std::conditional_t<Op<float>::kIndexed, F16, float>>>();
  return in.accumulator == Dtype::F64 ? sizes_of<Op<double>>() : sizes_of<Op<float>>();
}

template <auto kServes> constexpr auto kShapeOf = shape_of<ScanCall, scans::Shape, kServes>;

}  // namespace

ScanSizes scan_sizes(const ScanCall& call) {
#define TR_CASE(name) \
  case Scan::name: return sizes_of<name>(call.in);
  switch (call.op) { TR_FOR_EACH_SCAN(TR_CASE) }
#undef TR_CASE
  return {0, 0, 0, 0};
}

// The territory of each family, where none is forced. A call goes down its own branch to the first line that applies;
// each `serves` has the exact condition, and its measurements. n: positions of a row. A tile has 256, a block tile
// 8192. typed: elements and results have the dtypes that a kernel is compiled for. bulk: the GPU has bulk copies.
//
// The scanned dim has the smallest stride: lanes go along rows.
//   with indices (cummax, cummin)
//     n <= 2048, or 32 rows a multiprocessor and more          extreme_rows
//     else                                                     extreme_chain
//   of one input, typed, accumulators of at most 8 bytes
//     n < 8, all one aligned run, rows of at most 16 bytes     packed_rows
//     n <= a block tile (or what 8 warps hold), neighbours     short_rows
//     n <= two, if aligned and few, or little more than one    short_rows
//     n > a tile, bulk, neighbouring floats of <= 4 bytes      ring; or chain, if aligned and few
//   of two inputs (linear_scan), typed
//     n <= a block tile (or what 8 warps hold)                 row_pairs
//     n > a tile, bulk, few aligned rows, floats of <= 4 bytes ring_pairs
//   all others
//     n <= a tile, or many aligned rows; of three inputs some  rows
//     else                                                     chain
//
// A kept dim has the smallest stride: lanes go across rows, which are columns of memory.
//   n > 512, bulk, 2 to 7 columns of floats in one run, sums   ring_columns
//   linear_scan, n > 384, 60 columns a multiprocessor          column_teams
//   columns that are many enough for a lane each, and
//     of one input n <= 512; else n <= 384, or no tiles        column_walk
//   n <= 256, of a few columns of sums of floats n <= 512      short_columns
//   with indices, of at most 4 bytes                           extreme_columns
//   sums of floats of <= 4 bytes
//     bulk, columns 16 bytes at a time, two jobs a block       column_strips
//     large blocks, wide rows that start anywhere              ragged_columns
//   all others                                                 column_tiles
const std::vector<Family<ScanCall, scans::Shape>> kScanFamilies = {
    // Lanes along rows. Those that lanes hold as a whole; those that warps walk or blocks share.
    {"packed_rows", "a few rows a lane, which are one run of memory", kShapeOf<scans::packed_rows::serves>},
    {"short_rows", "whole rows in the registers of some lanes or warps", kShapeOf<scans::short_rows::serves>},
    {"row_pairs", "the same of two inputs", kShapeOf<scans::row_pairs::serves>},
    {"extreme_rows", "several short rows with indices a warp, or one that it walks",
     kShapeOf<scans::extreme_rows::serves>},
    {"ring", "rows cut into block tiles, by blocks that stay and copy in bulk", kShapeOf<scans::ring::serves>},
    {"ring_pairs", "the same of two inputs", kShapeOf<scans::ring_pairs::serves>},
    {"rows", "each row walked by the lanes of one group, tile by tile", kShapeOf<scans::rows::serves>},
    {"chain", "each row cut into block tiles that hand their totals on", kShapeOf<scans::chain::serves>},
    {"extreme_chain", "each row with indices cut into tiles that hand their records on",
     kShapeOf<scans::extreme_chain::serves>},
    // Lanes across rows.
    {"ring_columns", "few columns side by side, by blocks that stay and copy in bulk",
     kShapeOf<scans::ring_columns::serves>},
    {"column_teams", "each of many columns walked by a team of lanes", kShapeOf<scans::column_teams::serves>},
    {"column_walk", "each of many columns walked by a lane", kShapeOf<scans::column_walk::serves>},
    {"short_columns", "whole columns a block", kShapeOf<scans::short_columns::serves>},
    {"extreme_columns", "tiles of columns with indices, which hand their records on",
     kShapeOf<scans::extreme_columns::serves>},
    {"column_strips", "strips of columns, by blocks that stay and copy in bulk",
     kShapeOf<scans::column_strips::serves>},
    {"ragged_columns", "strips of columns whose rows start anywhere", kShapeOf<scans::ragged_columns::serves>},
    {"column_tiles", "tiles of columns, which hand their totals on", kShapeOf<scans::column_tiles::serves>, true},
};

ScanPlan plan(const ScanCall& call, const DeviceFacts& facts) {
  const PlanOverride forced = forced_plan();
  DeviceFacts device = facts;
  device.multiprocessors = std::max(1, device.multiprocessors);  // families divide by it
  if (!device.gpu) {
    scans::CpuShape shape;
    shape.blocks = device.multiprocessors;
    const Layout& l = call.layout;
    const bool loads_and_stores = call.op == Scan::CumSum || call.op == Scan::CumProd || call.op == Scan::CumExtreme;
    shape.across =
        cpu_across(forced, loads_and_stores ? mostly_across(l, {l.in, l.out}) : lanes_across_rows(call), "scans");
    return {shape.across ? "columns" : "rows", shape};
  }
  auto [family, shape] =
      first_that_serves(kScanFamilies, call, device, forced, "scans", [](const auto&) { return true; });
  ScanPlan plan{family, std::move(shape)};
  check_launch(plan.launch().blocks, plan.launch().shared + plan.launch().declared, device.shared);
  return plan;
}

}  // namespace torchreduce
