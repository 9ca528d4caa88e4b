// What every family of scan kernels says of a launch. Host code alone, like each family's own header beside its kernel:
// what it serves, its shape, and its tuning numbers with their measurements.
#pragma once
#include <optional>

#include "numerics/order.h"
#include "plan/call.h"
#include "plan/plan_tools.h"

namespace torchreduce {

// A family's shape is this and fields of its own, by names that mean one thing; no field changes a bit of the result.
// each(visit) calls visit(name, value) for its own fields.
struct ScanLaunch {
  int64_t blocks = 1;              // grid size
  int threads = 256;               // block size
  int shared = 0;                  // bytes of dynamic shared memory a block
  int declared = kPortableShared;  // bytes that the kernel declares besides, at most
  int64_t workspace = 0;           // bytes, all zero before the launch
};

// Bytes of an accumulator within a block tile, and of the carry between block tiles; and of what a warp holds,
// kHeldGroups and kHeldTiles (ops/scans.h).
struct ScanSizes { int acc, wide, groups, tiles; };
ScanSizes scan_sizes(const ScanCall& call);

namespace plans {

constexpr int kScanThreads = 256, kScanWarps = kScanThreads / 32;  // of a block, unless a family says otherwise

// Whether a kernel is compiled for the call's types.
inline bool typed(const ScanCall& call) { return is_static(call.in, call.out.dtype, facts(call.op).integer_kernels); }
// The same of the kernels for one input, one output and small accumulators (rows.cuh: kCompact).
inline bool compact(const ScanCall& call) {
  return typed(call) && facts(call.op).inputs == 1 && !call.out.indices && scan_sizes(call).acc <= 8;
}
// The same of those for two inputs (kTwoInputs).
inline bool pairs(const ScanCall& call) { return typed(call) && facts(call.op).inputs == 2; }
// Whether results can take the place of elements where there is such a kernel.
inline bool in_place(const ScanCall& call) { return compact(call) && call.in.dtype == call.out.dtype; }
// Whether elements are integers of at most 4 bytes or bool, which kernels take as int32 (rows.cuh: SmallInts).
inline bool small_ints(const ScanCall& call) {
  return typed(call) && !is_float(call.in.dtype) && size_of(call.in.dtype) < 8;
}
// Bytes of an element as the kernels of one input see it.
inline int element_bytes(const ScanCall& call) { return size_of(typed(call) ? call.in.dtype : call.in.accumulator); }
// The same of all inputs together.
inline int position_bytes(const ScanCall& call) {
  return typed(call) ? size_of(call.in.dtype) * facts(call.op).inputs : size_of(call.in.accumulator);
}

inline int64_t out_stride(const Layout& l) { return l.reduced ? l.out[l.kept] : 0; }

// Lanes go where the smallest stride is, of all operands together: one may be broadcast.
inline bool lanes_across_rows(const ScanCall& call) {
  const Layout& l = call.layout;
  if (l.kept == 0 || l.reduced == 0) return false;
  // An input that is broadcast has every stride: results have their own.
  if (l.in[l.kept - 1] == 0 || l.in[l.kept] == 0) return magnitude(l.out[l.kept - 1]) < magnitude(l.out[l.kept]);
  if (facts(call.op).inputs != 2) return lanes_across_rows(l);
  auto strides = [&](int d) { return magnitude(l.in[d]) + magnitude(l.out[d]) + magnitude(call.more_strides[0][d]); };
  return strides(l.kept - 1) < strides(l.kept);
}

// Bytes of shared memory that a block may have: no more than everywhere unless there are bulk copies.
inline int shared_of(const DeviceFacts& device) { return device.bulk_copies ? device.shared : kPortableShared; }

}  // namespace plans
}  // namespace torchreduce
