// Rows far shorter than a group that are one aligned run of memory: a lane takes several, 16 bytes at a time.
#pragma once
#include "row_call.h"

namespace torchreduce::scans {

struct PackedRowsShape : ScanLaunch {
  template <class Visit> void each(Visit) const {}
};

// Rows that a lane takes, of at most so many bytes. (Without: cumsum of 5 float32 0.91 of the speed, of 5 bfloat16
// 0.74, cumprod 0.42.)
constexpr int kPackedRows = 8, kPackedBytes = 16;

namespace packed_rows {

using namespace plans;

inline std::optional<PackedRowsShape> serves(const ScanCall& call, const DeviceFacts&, const PlanOverride& forced) {
  const Layout& l = call.layout;
  const int64_t n = l.length, size = size_of(call.in.dtype), stride = position_stride(l);
  if (forced.vector_loads == 0 || forced.lanes > 1) return {};
  if (!in_place(call) || n < 1 || n >= kGroup || n * size > kPackedBytes) return {};
  if (n > 1 && (magnitude(stride) != 1 || out_stride(l) != stride)) return {};
  if (l.kept > 1 || (l.kept == 1 && (l.in[0] != n || l.out[0] != n))) return {};
  // The lowest element: of a reverse scan the last of its row.
  auto fits = [&](const void* p) { return aligned(static_cast<const char*>(p) - (stride < 0 ? (n - 1) * size : 0)); };
  if (!fits(call.in.data) || !fits(call.out.values)) return {};
  if (!forced.family && lanes_across_rows(call)) return {};
  PackedRowsShape s;
  s.blocks = ceil_div(l.rows, kScanThreads * kPackedRows);
  return s;
}

}  // namespace packed_rows
}  // namespace torchreduce::scans
