// The CPU kernels of scans: which kernel serves a call, and its tasks. Compiled once per instruction set.
#include "cpu/cpu.h"
#include "cpu/each_segment.h"
#include "cpu/scan_columns.h"
#include "cpu/scan_extremes.h"
#include "plan/scan_segments.h"

namespace torchreduce::cpu::TR_ISA {
namespace {

constexpr int64_t kSerialElements = 32768;  // a smaller call is not worth a second thread

// The number of threads worth using, and what runs tasks on them.
struct Spread {
  ParallelFor parallel_for;
  bool across;  // lanes across rows
  int64_t threads;

  Spread(const ScanCall& call, bool across, int64_t there, ParallelFor pool)
      : parallel_for(pool),
        across(across),
        threads(call.layout.rows * call.layout.length < kSerialElements ? 1 : there) {}
  void operator()(int64_t tasks, void (*body)(void*, int64_t, int64_t), void* context) const {
    if (threads > 1 && tasks > 1) parallel_for(tasks, body, context);
    else body(context, 0, tasks);
  }
};

// What tasks do: they are chunks of columns, rows, or block tiles, counted through all rows, of which the totals come
// first, then the carries in order, then the results. Columns are taken as rows where fewer than kLeastColumns lie side
// by side, so that too many lanes would have none.
template <class Scan> struct LaneTasks {
  using Job = ScanJob<Scan>;
  using Rows = ScanRows<Scan>;
  static constexpr int64_t kLeastColumns = 8;
  static constexpr auto columns = &ScanColumns<Scan>::body;
  static constexpr auto rows = &Rows::template body<Rows::Pass::Whole>;
  static constexpr auto totals = &Rows::template body<Rows::Pass::Totals>;
  static constexpr auto carries = &Rows::carries;
  static constexpr auto results = &Rows::template body<Rows::Pass::Results>;
};
template <class Scan, class E> struct ExtremeTasks {
  using Extremes = ScanExtremes<Scan, E>;
  using Job = typename Extremes::Job;
  static constexpr int64_t kLeastColumns = 4;
  static constexpr auto columns = &Extremes::chunks;
  static constexpr auto rows = &Extremes::whole_rows;
  static constexpr auto totals = &Extremes::template block_tiles<true>;
  static constexpr auto carries = &Extremes::carries;
  static constexpr auto results = &Extremes::template block_tiles<false>;
};

// Fills the output; false where memory is out.
template <class Tasks> bool run(const ScanCall& call, const Spread& spread) {
  const Layout& layout = call.layout;
  typename Tasks::Job job(call, spread.threads);
  if (spread.across && job.chunks.inner >= Tasks::kLeastColumns) {
    spread(job.chunks.count(), Tasks::columns, &job);
    return !job.out_of_memory;
  }
  if (layout.rows >= spread.threads || job.blocks == 1) {
    spread(layout.rows, Tasks::rows, &job);
    return !job.out_of_memory;
  }
  const int64_t block_tiles = layout.rows * job.blocks;
  Scratch carries(block_tiles * int64_t(sizeof *job.carries));
  if (!carries.data) return false;
  job.carries = reinterpret_cast<decltype(job.carries)>(carries.data);
  spread(block_tiles, Tasks::totals, &job);
  if (job.out_of_memory) return false;
  Tasks::carries(job);
  spread(block_tiles, Tasks::results, &job);
  return !job.out_of_memory;
}

template <template <class> class Op> bool scan_as(const ScanCall& call, const Spread& spread) {
  if constexpr (Op<float>::kIndexed) {
    switch (call.in.accumulator) {
      case Dtype::F64: return run<ExtremeTasks<Op<double>, double>>(call, spread);
      case Dtype::I64: return run<ExtremeTasks<Op<int64_t>, int64_t>>(call, spread);
      default:
        if (call.in.dtype == Dtype::F16) return run<ExtremeTasks<Op<F16>, F16>>(call, spread);
        if (call.in.dtype == Dtype::BF16) return run<ExtremeTasks<Op<BF16>, BF16>>(call, spread);
        return run<ExtremeTasks<Op<float>, float>>(call, spread);
    }
  } else {
    if constexpr (Op<float>::kIntegers)
      if (call.in.accumulator == Dtype::I64) return run<LaneTasks<Op<int64_t>>>(call, spread);
    if (call.in.accumulator == Dtype::F64) return run<LaneTasks<Op<double>>>(call, spread);
    return run<LaneTasks<Op<float>>>(call, spread);
  }
}

}  // namespace

// `across`: lanes across rows, else along each; `threads`: those that there are for it.
bool scan(const ScanCall& call, bool across, int64_t threads, ParallelFor parallel_for) {
  if (call.layout.rows == 0 || call.layout.length == 0) return true;
#define TR_CASE(name) \
  case Scan::name: return scan_as<name>(call, Spread(call, across, threads, parallel_for));
  switch (call.op) { TR_FOR_EACH_SCAN(TR_CASE) }
#undef TR_CASE
  return true;
}

bool scan_segments(const ScanSegments& call, int64_t threads, ParallelFor parallel_for) {
  return each_segment(
      call.of, call.layout.rows, kSerialElements, threads, parallel_for,
      [&](int64_t segment, int64_t there) { return scan(call.alone(segment), call.across, there, parallel_for); });
}

}  // namespace torchreduce::cpu::TR_ISA
