// Rows far shorter than a group that are one aligned run of memory: a lane takes several, 16 bytes at a time.
#pragma once
#include "row_call.h"

namespace torchreduce::scans {

struct PackedRowsShape : ScanLaunch {
  template <class Visit> void each(Visit) const {}
};

// Rows that a lane takes, and the elements of one, at most, given the bytes of one: of sums fewer, which short_rows
// takes as fast (H100, us, here and there: cumsum of 3 float32 186, 185, of 4 193, 179, of 2 180, 236; of 5 bfloat16
// 94, 104, of 6 92, 91, of 7 95, 97; cumprod of 4 float32 193, 190, of 7 bfloat16 103, 125; logcumsumexp 195, 355 and
// 130, 216).
constexpr int kPackedRows = 8;
TR_HD constexpr int packed_length(bool sums, int size) {
  const int most = (sums && size < 8 ? 10 : 16) / size;
  return most < kGroup ? most : kGroup - 1;
}

namespace packed_rows {

using namespace plans;

inline std::optional<PackedRowsShape> serves(const ScanCall& call, const DeviceFacts&, const PlanOverride& forced) {
  const Layout& l = call.layout;
  const int64_t n = l.length, size = size_of(call.in.dtype), stride = position_stride(l);
  if (forced.vector_loads == 0 || forced.lanes > 1) return {};
  if (!in_place(call) || n < 1 || n > packed_length(facts(call.op).integer_kernels, int(size))) return {};
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
