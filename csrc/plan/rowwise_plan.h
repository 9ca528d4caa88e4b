// Which kernel family handles a call of a row-wise op, and in what shape.
#pragma once
#include "families.h"
#include "kernels/rowwise/columns.h"
#include "kernels/rowwise/held_columns.h"
#include "kernels/rowwise/held_rows.h"
#include "kernels/rowwise/map_rows.h"
#include "kernels/rowwise/norm_gradients.h"
#include "kernels/rowwise/packed_rows.h"
#include "kernels/rowwise/runs.h"
#include "kernels/rowwise/strided.h"
#include "kernels/rowwise/weights.h"
#include "kernels/rowwise/wide_columns.h"

namespace torchreduce {

namespace rowwise_plans {

// On the CPU.
struct CpuShape : RowwiseLaunch {
  bool across = false;  // rows that lie side by side are taken together

  template <class Visit> void each(Visit) const {}
};

using Shape = std::variant<RowwiseStridedShape, HeldRowsShape, SplitRowsShape, RowwiseColumnsShape, WeightColumnsShape,
                           NormGradientsShape, HeldColumnsShape, RowwiseWideColumnsShape, RowwisePackedRowsShape,
                           MapRowsShape, RunsShape, CpuShape>;

}  // namespace rowwise_plans

// The families in order of preference. The first that has a shape for a call serves it.
extern const std::vector<Family<RowwiseCall, rowwise_plans::Shape>> kRowwiseFamilies;

struct RowwisePlan {
  const char* family = "strided";
  rowwise_plans::Shape shape;

  const RowwiseLaunch& launch() const {
    return std::visit([](const auto& s) -> const RowwiseLaunch& { return s; }, shape);
  }
};
RowwisePlan plan(const RowwiseCall& call, const DeviceFacts& device);

// Whether the gradient of a norm comes together with those of its weights, to which the call's values belong.
inline bool is_together(const RowwisePlan& plan) { return std::holds_alternative<NormGradientsShape>(plan.shape); }
inline int64_t workspace_bytes(const RowwisePlan& plan) { return plan.launch().workspace; }

struct PlannedRowwise : RowwiseCall { RowwisePlan plan; };

}  // namespace torchreduce
