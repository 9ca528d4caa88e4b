// Which kernel family serves a scan, and in what shape.
#pragma once
#include "families.h"
#include "kernels/scan/chain.h"
#include "kernels/scan/column_strips.h"
#include "kernels/scan/column_teams.h"
#include "kernels/scan/column_tiles.h"
#include "kernels/scan/column_walk.h"
#include "kernels/scan/extremes.h"
#include "kernels/scan/packed_rows.h"
#include "kernels/scan/ragged_columns.h"
#include "kernels/scan/ring.h"
#include "kernels/scan/ring_columns.h"
#include "kernels/scan/ring_pairs.h"
#include "kernels/scan/row_pairs.h"
#include "kernels/scan/rows.h"
#include "kernels/scan/short_columns.h"
#include "kernels/scan/short_rows.h"

namespace torchreduce {
namespace scans {

// On the CPU.
struct CpuShape : ScanLaunch {
  bool across = false;  // lanes across rows, else along each

  template <class Visit> void each(Visit) const {}
};

using Shape = std::variant<RowsShape, PackedRowsShape, ShortRowsShape, RowPairsShape, ExtremeRowsShape, ChainShape,
                           ExtremeChainShape, RingShape, RingPairsShape, RingColumnsShape, ColumnTeamsShape,
                           ColumnWalkShape, ShortColumnsShape, ExtremeColumnsShape, ColumnStripsShape,
                           RaggedColumnsShape, ColumnTilesShape, CpuShape>;

}  // namespace scans

// The families in order of preference. The first that has a shape for a call serves it; the last serves every call.
extern const std::vector<Family<ScanCall, scans::Shape>> kScanFamilies;

struct ScanPlan {
  const char* family = "rows";
  scans::Shape shape;

  const ScanLaunch& launch() const {
    return std::visit([](const auto& s) -> const ScanLaunch& { return s; }, shape);
  }
};
ScanPlan plan(const ScanCall& call, const DeviceFacts& device);

inline int64_t workspace_bytes(const ScanPlan& plan) { return plan.launch().workspace; }

struct PlannedScan : ScanCall { ScanPlan plan; };

}  // namespace torchreduce
