#include "fused_plan.h"

namespace torchreduce {

using namespace plans;

FusedFacts facts(Fused op) {
#define TR_CASE(name) \
  case Fused::name:   \
    return {name<float>::kInputs, name<float>::kStats, name<float>::kMaps, name<float>::kWeights, name<float>::kBiases};
  switch (op) {
    TR_FOR_EACH_FUSED(TR_CASE)
    case Fused::RmsNormWeights: return {2, 1, false, false, false};
    case Fused::LayerNormWeights: return {2, 3, false, false, false};
  }
#undef TR_CASE
  throw std::invalid_argument("unknown op");
}

const std::vector<Family<FusedCall, fused_plans::Shape>> kFusedFamilies = {};

FusedPlan plan(const FusedCall& call, const DeviceFacts& facts) {
  const PlanOverride forced = forced_plan();
  DeviceFacts device = facts;
  device.multiprocessors = std::max(1, device.multiprocessors);  // families divide by it
  if (!device.gpu) {
    fused_plans::CpuShape shape;
    shape.blocks = device.multiprocessors;
    shape.across = cpu_across(forced, lanes_across_rows(call.layout), "rows looked at twice");
    return {shape.across ? "columns" : "rows", shape};
  }
  auto [family, shape] =
      first_that_serves(kFusedFamilies, call, device, forced, "rows looked at twice", [](const auto&) { return true; });
  FusedPlan plan{family, std::move(shape)};
  check_launch(plan.launch().blocks, plan.launch().shared, device.shared);
  return plan;
}

}  // namespace torchreduce
