// Rows that have nothing in common but the op and the type of their elements, such as the gradients of a model, whose
// norms are wanted: many of them a launch.
#pragma once
#include "rows.h"

namespace torchreduce {

struct ListedRow {
  const void* in;  // `length` neighbouring elements, wherever they start
  void* out;
  int64_t length;
};

// What a launch takes; arguments have 4 KiB at most.
struct ListedRows {
  static constexpr int kMost = 128;  // a power of two
  OpOptions options;
  Dtype in = Dtype::F32, out = Dtype::F32;
  int count = 0;
  int units = 1;                  // leaves of a block's run
  int32_t first[kMost + 1] = {};  // block of each row; after the last one's the number of all
  ListedRow row[kMost];
};
static_assert(sizeof(ListedRows) <= 4000, "beside what else a launch takes");

// Calls of one op on elements of one type, each listed_rows::serves it. To be launched one after the other.
struct ListedReduction {
  std::vector<ReduceCall> calls;
  std::vector<ListedRows> plan;
};

namespace listed_rows {

using namespace plans;

inline bool serves(const ReduceCall& call, const DeviceFacts& device) {
  return device.wide_reductions && call.op == Reduction::SumOf && has_plain_rows(call) && call.layout.rows == 1 &&
         call.layout.length <= int64_t(1) << 40;
}

}  // namespace listed_rows

inline std::vector<ListedRows> plan(const ListedReduction& call, const DeviceFacts& device) {
  std::vector<ListedRows> launches;
  for (size_t begin = 0; begin < call.calls.size(); begin += ListedRows::kMost) {
    ListedRows l;
    l.count = int(std::min<size_t>(ListedRows::kMost, call.calls.size() - begin));
    const ReduceCall* const calls = &call.calls[begin];
    l.options = calls->options;
    l.in = calls->in.dtype;
    l.out = calls->out.dtype;
    int64_t leaves = 0;
    for (int i = 0; i < l.count; ++i) leaves += plans::ceil_div(calls[i].layout.length, kLeaf);
    l.units = rows::units_a_run(leaves, 1, std::max(1, device.multiprocessors));
    for (int i = 0; i < l.count; ++i) {
      const int64_t length = calls[i].layout.length;
      l.row[i] = {calls[i].in.data, calls[i].out.values, length};
      l.first[i + 1] = l.first[i] + int32_t(plans::ceil_div(length, int64_t(l.units) * kLeaf));
    }
    launches.push_back(l);
  }
  return launches;
}

// Partial results of a launch, one a block, and then tickets, one a row.
inline int64_t partial_bytes(const ListedRows& launch) {
  return (launch.first[launch.count] * int64_t(sizeof(float)) + 7) / 8 * 8;
}
inline int64_t workspace_bytes(const std::vector<ListedRows>& launches) {
  int64_t most = 0;
  for (const ListedRows& l : launches) most = std::max(most, partial_bytes(l) + l.count * int64_t(sizeof(uint32_t)));
  return most;
}

namespace gpu {
const char* reduce_listed(const ListedReduction& call, void* workspace, void* stream);  // as gpu::reduce
}

}  // namespace torchreduce
