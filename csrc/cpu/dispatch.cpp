// Which instruction set serves a call. Compiled once; reduce.cpp, scan.cpp, rowwise.cpp, channels.cpp and segments.cpp
// are compiled once for each, with -DTR_ISA= its name and the flags that ISA_FLAGS of setup.py lists.
#include <atomic>
#include <new>

#include "cpu/cpu.h"
#include "plan/channel_call.h"
#include "plan/line_scatter.h"
#include "plan/reduce_plan.h"
#include "plan/rowwise_plan.h"
#include "plan/rowwise_segments.h"
#include "plan/scan_plan.h"
#include "plan/scan_segments.h"

namespace torchreduce::cpu {

#define TR_DECLARE(isa)                                                                                       \
  namespace isa {                                                                                             \
  bool reduce(const ReduceCall& call, bool across, int64_t threads, ParallelFor parallel_for);                \
  bool scan(const ScanCall& call, bool across, int64_t threads, ParallelFor parallel_for);                    \
  bool rowwise_rows(const RowwiseCall& call, bool across, int64_t threads, ParallelFor parallel_for);         \
  bool channels(const ChannelCall& call, int64_t threads, ParallelFor parallel_for);                          \
  bool reduce_segments(const SegmentReduction& call, int64_t threads, ParallelFor parallel_for);              \
  bool scan_segments(const ScanSegments& call, int64_t threads, ParallelFor parallel_for);                    \
  bool rowwise_segments(const RowwiseSegments& call, int64_t threads, ParallelFor parallel_for);              \
  bool index_segments(const SegmentIndex& call, int64_t& outside, int64_t threads, ParallelFor parallel_for); \
  bool scatter_lines(const LineScatter& call, int64_t& outside, int64_t threads, ParallelFor parallel_for);   \
  }
TR_DECLARE(baseline)
TR_DECLARE(avx2)
TR_DECLARE(avx512)
#undef TR_DECLARE

namespace {

struct InstructionSet {
  const char* name;
  bool (*here)();
  bool (*reduce)(const ReduceCall&, bool across, int64_t threads, ParallelFor);
  bool (*scan)(const ScanCall&, bool across, int64_t threads, ParallelFor);
  bool (*rowwise_rows)(const RowwiseCall&, bool across, int64_t threads, ParallelFor);
  bool (*channels)(const ChannelCall&, int64_t threads, ParallelFor);
  bool (*reduce_segments)(const SegmentReduction&, int64_t threads, ParallelFor);
  bool (*scan_segments)(const ScanSegments&, int64_t threads, ParallelFor);
  bool (*rowwise_segments)(const RowwiseSegments&, int64_t threads, ParallelFor);
  bool (*index_segments)(const SegmentIndex&, int64_t& outside, int64_t threads, ParallelFor);
  bool (*scatter_lines)(const LineScatter&, int64_t& outside, int64_t threads, ParallelFor);
};

#if defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

constexpr InstructionSet kSets[] = {
// Widest first.
#if defined(__x86_64__)
    {"avx512", has_avx512, avx512::reduce, avx512::scan, avx512::rowwise_rows, avx512::channels,
     avx512::reduce_segments, avx512::scan_segments, avx512::rowwise_segments, avx512::index_segments,
     avx512::scatter_lines},
    {"avx2", has_avx2, avx2::reduce, avx2::scan, avx2::rowwise_rows, avx2::channels, avx2::reduce_segments,
     avx2::scan_segments, avx2::rowwise_segments, avx2::index_segments, avx2::scatter_lines},
#endif
    {"baseline", [] { return true; }, baseline::reduce, baseline::scan, baseline::rowwise_rows, baseline::channels,
     baseline::reduce_segments, baseline::scan_segments, baseline::rowwise_segments, baseline::index_segments,
     baseline::scatter_lines},
};

std::atomic<const InstructionSet*>& current() {
  static std::atomic<const InstructionSet*> set = [] {
    const InstructionSet* widest = kSets;
    while (!widest->here()) ++widest;
    return widest;
  }();
  return set;
}

}  // namespace

void reduce(const PlannedReduction& call, ParallelFor parallel_for) {
  const auto& shape = std::get<CpuShape>(call.plan.shape);
  if (!current().load()->reduce(call, shape.across, shape.blocks, parallel_for)) throw std::bad_alloc();
}
void scan(const PlannedScan& call, ParallelFor parallel_for) {
  const auto& shape = std::get<scans::CpuShape>(call.plan.shape);
  if (!current().load()->scan(call, shape.across, shape.blocks, parallel_for)) throw std::bad_alloc();
}
void rowwise_rows(const PlannedRowwise& call, ParallelFor parallel_for) {
  const auto& shape = std::get<rowwise_plans::CpuShape>(call.plan.shape);
  if (!current().load()->rowwise_rows(call, shape.across, shape.blocks, parallel_for)) throw std::bad_alloc();
}
void channels(const ChannelCall& call, int64_t threads, ParallelFor parallel_for) {
  if (!current().load()->channels(call, threads, parallel_for)) throw std::bad_alloc();
}
void reduce_segments(const SegmentReduction& call, int64_t threads, ParallelFor parallel_for) {
  if (!current().load()->reduce_segments(call, threads, parallel_for)) throw std::bad_alloc();
}
void scan_segments(const ScanSegments& call, int64_t threads, ParallelFor parallel_for) {
  if (!current().load()->scan_segments(call, threads, parallel_for)) throw std::bad_alloc();
}
void rowwise_segments(const RowwiseSegments& call, int64_t threads, ParallelFor parallel_for) {
  if (!current().load()->rowwise_segments(call, threads, parallel_for)) throw std::bad_alloc();
}
int64_t index_segments(const SegmentIndex& call, int64_t threads, ParallelFor parallel_for) {
  int64_t outside = -1;
  if (!current().load()->index_segments(call, outside, threads, parallel_for)) throw std::bad_alloc();
  return outside;
}

int64_t scatter_lines(const LineScatter& call, int64_t threads, ParallelFor parallel_for) {
  int64_t outside = -1;
  if (!current().load()->scatter_lines(call, outside, threads, parallel_for)) throw std::bad_alloc();
  return outside;
}

std::string instruction_set() { return current().load()->name; }
bool set_instruction_set(const std::string& name) {
  for (const InstructionSet& set : kSets)
    if (name == set.name && set.here()) {
      current().store(&set);
      return true;
    }
  return false;
}
std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const InstructionSet& set : kSets)
    if (set.here()) names.push_back(set.name);
  return names;
}

}  // namespace torchreduce::cpu
