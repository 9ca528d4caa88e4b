#include "fused_plan.h"

namespace torchreduce {

using namespace plans;

FusedFacts facts(Fused op) {
#define TR_CASE(name) \
  case Fused::name: return kFacts<name<float>>;
  switch (op) {
    TR_FOR_EACH_FUSED(TR_CASE)
    case Fused::RmsNormWeights: return {2, 1, false, false, false, false, 2};
    case Fused::LayerNormWeights: return {2, 3, false, false, false, false, 2};
  }
#undef TR_CASE
  throw std::invalid_argument("unknown op");
}

int64_t state_bytes(const FusedCall& call) {
  const bool wide = call.accumulator == Dtype::F64;
#define TR_CASE(name) \
  case Fused::name: return wide ? sizeof(name<double>::State) : sizeof(name<float>::State);
  switch (call.op) {
    TR_FOR_EACH_FUSED(TR_CASE)
    default: return 2 * size_of(call.accumulator);
  }
#undef TR_CASE
}

namespace {

template <auto kServes> constexpr auto kShapeOf = shape_of<FusedCall, fused_plans::Shape, kServes>;

}  // namespace

const std::vector<Family<FusedCall, fused_plans::Shape>> kFusedFamilies = {
    {"norm_gradients", "rows in shared memory, for the gradients of norms and of their weights",
     kShapeOf<norm_gradients::serves>},
    {"map_rows", "gradients without a pass for sums, in one run over the elements", kShapeOf<map_rows::serves>},
    {"packed_rows", "short rows, aligned or not, by way of shared memory to registers and back",
     kShapeOf<fused_packed_rows::serves>},
    {"held_rows", "rows kept in registers between the passes", kShapeOf<held_rows::serves>},
    {"split_rows", "long rows by leaves, read twice", kShapeOf<split_rows::serves>},
    {"held_columns", "columns kept on chip between the passes", kShapeOf<held_columns::serves>},
    {"wide_columns", "wide columns by leaves, read twice", kShapeOf<fused_wide_columns::serves>},
    {"columns", "tiles of columns kept in shared memory between the passes", kShapeOf<fused_columns::serves>},
    {"weight_columns", "gradients of weights: lanes across columns, runs of rows a thread",
     kShapeOf<weight_columns::serves>, true},
    {"strided", "lanes along each leaf, element by element", kShapeOf<fused_strided::serves>, true},
};

FusedPlan plan(const FusedCall& call, const DeviceFacts& facts) {
  const PlanOverride forced = forced_plan();
  DeviceFacts device = facts;
  device.multiprocessors = std::max(1, device.multiprocessors);  // families divide by it
  if (!device.gpu) {
    fused_plans::CpuShape shape;
    shape.blocks = device.multiprocessors;
    shape.across = cpu_across(forced, lanes_across_rows(call.layout), "row-wise ops");
    return {shape.across ? "columns" : "rows", shape};
  }
  auto [family, shape] = first_that_serves(kFusedFamilies, call, device, forced, "row-wise ops",
                                           [&](const auto& f) { return f.general || device.wide_reductions; });
  FusedPlan plan{family, std::move(shape)};
  check_launch(plan.launch().blocks, plan.launch().shared, device.shared);
  return plan;
}

}  // namespace torchreduce
