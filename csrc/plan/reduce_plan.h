// Which kernel family serves a reduction, and in what shape.
#pragma once
#include "families.h"
#include "kernels/reduce/column_slices.h"
#include "kernels/reduce/columns.h"
#include "kernels/reduce/few_rows.h"
#include "kernels/reduce/narrow_columns.h"
#include "kernels/reduce/packed_rows.h"
#include "kernels/reduce/rows.h"
#include "kernels/reduce/short_columns.h"
#include "kernels/reduce/strided.h"
#include "kernels/reduce/transposed_rows.h"
#include "kernels/reduce/wide_columns.h"

namespace torchreduce {

// On the CPU.
struct CpuShape : ReduceLaunch {
  bool across = false;  // lanes across rows, else along each

  template <class Visit> void each(Visit) const {}
};

using Shape = std::variant<StridedShape, ColumnsShape, PackedRowsShape, FewRowsShape, RowsShape, WideColumnsShape,
                           NarrowColumnsShape, ShortColumnsShape, ColumnSlicesShape, TransposedRowsShape, CpuShape>;

// The families in order of preference. The first that has a shape for a call serves it.
extern const std::vector<Family<ReduceCall, Shape>> kReduceFamilies;

struct ReducePlan {
  const char* family = "strided";
  Shape shape;

  const ReduceLaunch& launch() const {
    return std::visit([](const auto& s) -> const ReduceLaunch& { return s; }, shape);
  }
};
ReducePlan plan(const ReduceCall& call, const DeviceFacts& device);

// Of a call with two results (ops/reductions.h, kTwo): whether a kernel has both of one look at the elements, on a GPU.
// Else there is no plan but for its halves.
bool looks_once(const ReduceCall& call, const DeviceFacts& device);

// Of memory that may hold anything: partial results, and then tickets, which are mostly elsewhere (kernels/device.cu).
inline int64_t workspace_bytes(const ReducePlan& plan) {
  return (plan.launch().workspace + 7) / 8 * 8 + plan.launch().tickets * int64_t(sizeof(uint32_t));
}

struct PlannedReduction : ReduceCall { ReducePlan plan; };

}  // namespace torchreduce
