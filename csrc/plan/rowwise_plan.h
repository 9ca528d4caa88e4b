// Which kernel family handles a call of a row-wise op, and in what shape.
#pragma once
#include "families.h"
#include "kernels/fused/columns.h"
#include "kernels/fused/held_columns.h"
#include "kernels/fused/held_rows.h"
#include "kernels/fused/map_rows.h"
#include "kernels/fused/norm_gradients.h"
#include "kernels/fused/packed_rows.h"
#include "kernels/fused/strided.h"
#include "kernels/fused/weights.h"
#include "kernels/fused/wide_columns.h"

namespace torchreduce {

namespace fused_plans {

// On the CPU.
struct CpuShape : FusedLaunch {
  bool across = false;  // rows that lie side by side are taken together

  template <class Visit> void each(Visit) const {}
};

using Shape = std::variant<FusedStridedShape, HeldRowsShape, SplitRowsShape, FusedColumnsShape, WeightColumnsShape,
                           NormGradientsShape, HeldColumnsShape, FusedWideColumnsShape, FusedPackedRowsShape,
                           MapRowsShape, CpuShape>;

}  // namespace fused_plans

// The families in order of preference. The first that has a shape for a call serves it.
extern const std::vector<Family<FusedCall, fused_plans::Shape>> kFusedFamilies;

struct FusedPlan {
  const char* family = "strided";
  fused_plans::Shape shape;

  const FusedLaunch& launch() const {
    return std::visit([](const auto& s) -> const FusedLaunch& { return s; }, shape);
  }
};
FusedPlan plan(const FusedCall& call, const DeviceFacts& device);

// Whether the gradient of a norm comes together with those of its weights, to which the call's values belong.
inline bool is_together(const FusedPlan& plan) { return std::holds_alternative<NormGradientsShape>(plan.shape); }
inline int64_t workspace_bytes(const FusedPlan& plan) { return plan.launch().workspace; }

struct PlannedFused : FusedCall { FusedPlan plan; };

}  // namespace torchreduce
