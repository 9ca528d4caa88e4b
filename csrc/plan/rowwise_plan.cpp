#include "rowwise_plan.h"

#include "cpu_lanes.h"

namespace torchreduce {

using namespace plans;

RowwiseFacts facts(Rowwise op) {
#define TR_CASE(name) \
  case Rowwise::name: return kFacts<name<float>>;
  switch (op) {
    TR_FOR_EACH_ROWWISE(TR_CASE)
    case Rowwise::RmsNormWeights: return {2, 1, false, false, false, false, 2};
    case Rowwise::LayerNormWeights: return {2, 3, false, false, false, false, 2};
  }
#undef TR_CASE
  throw std::invalid_argument("unknown op");
}

int64_t state_bytes(const RowwiseCall& call) {
  const bool wide = call.accumulator == Dtype::F64;
#define TR_CASE(name) \
  case Rowwise::name: return wide ? sizeof(name<double>::State) : sizeof(name<float>::State);
  switch (call.op) {
    TR_FOR_EACH_ROWWISE(TR_CASE)
    default: return 2 * size_of(call.accumulator);
  }
#undef TR_CASE
}

namespace {

template <auto kServes> constexpr auto kShapeOf = shape_of<RowwiseCall, rowwise_plans::Shape, kServes>;

}  // namespace

// Which family serves a call, unforced. Elements of float32 or 16-bit floats, in at most 4 kept dims, which the op's
// accumulator takes as they are; all else is strided's.
//
//   gradients of a norm and of its weights together ........ norm_gradients: up to 256 rows of whole pairs, of up to
//                                                            16384, by one launch that reads them twice; rows that
//                                                            start anywhere, of up to 255 in registers, longer ones
//                                                            where the device has bulk copies and a block, or a
//                                                            cluster of up to 8, has room for them; else held_rows
//                                                            and weight_columns, in turn
//   gradients of weights alone ............................. weight_columns
//   no sums: LogSumExp-, CrossEntropy-, Entropy-,
//   MomentsGradient ........................................ held_rows, float32 by Words of half a leaf; map_rows for
//                                                            16-bit rows off their granules, and across rows
//   rows of neighbours (stride 1 along the row)
//     up to 768 elements, one run of memory, no weights:
//       16-bit floats off a granule; rows of float32
//       of up to 256 whose lanes meet in few banks ......... packed_rows
//     what blocks hold on chip ............................. held_rows, in a form (held_rows.h):
//       up to 256   several rows a warp: ShortGranules if rows are whole granules, else ShortWords
//       16 bits     if aligned HalfWarps up to 512, then AlignedRows; else Granules
//       float32     Granules if aligned, else Words; one leaf (2048) a warp, a cluster of up to 8 blocks a row
//       few aligned rows of norms, of 512 to 8192 elements: Spread, four warps a leaf
//     16-bit rows whose inputs start at different places
//     of their granules .................................... strided
//     longer; or of more than 4 leaves, and nothing but
//     values of the row to write ........................... split_rows
//   columns (stride 1 across rows), no weights
//     softmax, log_softmax:
//       whole granules ..................................... held_columns; up to 8 leaves, which clusters have
//       at least 640 positions, 256 bytes a row, and
//       tiles for all multiprocessors ...................... wide_columns
//     softmax, log_softmax of up to 256 positions, and
//     their gradients of up to 256, or of whole granules
//     of up to a leaf ...................................... columns, of which each thread has some
//     else ................................................. columns, by tiles of a block
//   runs of neighbours, as a channel's over images: Moments .. runs
//   any other strides ...................................... strided
const std::vector<Family<RowwiseCall, rowwise_plans::Shape>> kRowwiseFamilies = {
    {"norm_gradients", "rows in registers or shared memory, for the gradients of norms and of their weights",
     kShapeOf<norm_gradients::serves>, true},
    {"packed_rows", "short rows, aligned or not, by way of shared memory to registers and back",
     kShapeOf<rowwise_packed_rows::serves>},
    {"held_rows", "rows kept in registers between the passes", kShapeOf<held_rows::serves>},
    {"split_rows", "long rows by leaves, read twice", kShapeOf<split_rows::serves>},
    {"map_rows", "gradients without a pass for sums, in one run over the elements", kShapeOf<map_rows::serves>},
    {"held_columns", "columns kept on chip between the passes", kShapeOf<held_columns::serves>},
    {"wide_columns", "wide columns by leaves, read twice", kShapeOf<rowwise_wide_columns::serves>},
    {"columns", "columns kept in shared memory or registers between the passes", kShapeOf<rowwise_columns::serves>},
    {"weight_columns", "gradients of weights: lanes across columns, runs of rows a thread",
     kShapeOf<weight_columns::serves>, true},
    {"runs", "means and variances of rows that lie in runs of neighbours", kShapeOf<runs::serves>},
    {"strided", "lanes along each leaf, element by element", kShapeOf<rowwise_strided::serves>, true},
};

RowwisePlan plan(const RowwiseCall& call, const DeviceFacts& facts) {
  const PlanOverride forced = forced_plan();
  DeviceFacts device = facts;
  device.multiprocessors = std::max(1, device.multiprocessors);  // families divide by it
  if (!device.gpu) {
    rowwise_plans::CpuShape shape;
    shape.blocks = device.multiprocessors;
    const Layout& l = call.layout;
    const bool across = !call.maps()                             ? lanes_across_rows(l)
                        : torchreduce::facts(call.op).inputs > 1 ? mostly_across(l, {l.in, call.more_strides[0], l.out})
                                                                 : mostly_across(l, {l.in, l.out});
    shape.across = cpu_across(forced, across, "row-wise ops");
    return {shape.across ? "columns" : "rows", shape};
  }
  auto [family, shape] = first_that_serves(kRowwiseFamilies, call, device, forced, "row-wise ops",
                                           [&](const auto& f) { return f.general || device.wide_reductions; });
  RowwisePlan plan{family, std::move(shape)};
  check_launch(plan.launch().blocks, plan.launch().shared, device.shared);
  return plan;
}

}  // namespace torchreduce
