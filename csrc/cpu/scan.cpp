// The CPU kernels of scans: which kernel serves a call, and its tasks. Compiled once per instruction set.
#include "cpu/cpu.h"
#include "cpu/scan_columns.h"
#include "cpu/scan_extremes.h"
#include "cpu/scan_groups.h"

namespace torchreduce::cpu::TR_ISA {
namespace {

constexpr int64_t kSerialElements = 32768;  // a smaller call is not worth a second thread

// The number of threads worth using, and what runs tasks on them.
struct Spread {
  ParallelFor parallel_for;
  int64_t threads;

  Spread(const ScanCall& call, ParallelFor pool)
      : parallel_for(pool), threads(call.layout.rows * call.layout.length < kSerialElements ? 1 : call.plan.blocks) {}
  void operator()(int64_t tasks, void (*body)(void*, int64_t, int64_t), void* context) const {
    if (threads > 1 && tasks > 1) parallel_for(tasks, body, context);
    else body(context, 0, tasks);
  }
};

// Each fills the output; false where memory is out. A scan of which ScanLanes takes eight groups at once:
template <class Scan> bool scan_lanes(const ScanCall& call, const Spread& spread) {
  const Layout& layout = call.layout;
  const int64_t threads = spread.threads;
  ScanJob<Scan> job{call, (layout.length + kBlockTile - 1) / kBlockTile, nullptr};

  if (across_rows(call.plan.family)) {
    typename ScanColumns<Scan>::Task task{&job, ColumnChunks(layout, kScanColumns, threads)};
    spread(task.chunks.count(), &ScanColumns<Scan>::body, &task);
    return !job.out_of_memory;
  }

  using Rows = ScanRows<Scan>;
  using Pass = typename Rows::Pass;
  if (layout.rows >= threads || job.blocks == 1) {
    spread(layout.rows, &Rows::template body<Pass::Whole>, &job);
    return !job.out_of_memory;
  }
  Scratch carries(layout.rows * job.blocks * int64_t(sizeof *job.carries));
  if (!carries.data) return false;
  job.carries = reinterpret_cast<typename Scan::Wide*>(carries.data);
  spread(layout.rows * job.blocks, &Rows::template body<Pass::Totals>, &job);
  if (job.out_of_memory) return false;
  Rows::carries(job);
  spread(layout.rows * job.blocks, &Rows::template body<Pass::Results>, &job);
  return !job.out_of_memory;
}

template <class Scan> bool scan_with(const ScanCall& call, const Spread& spread) {
  if constexpr (kHasLanes<Scan>) return scan_lanes<Scan>(call, spread);
  else return ScanGroups<Scan>::run(call, spread.threads, spread);
}
template <class Scan, class E> bool scan_extremes(const ScanCall& call, const Spread& spread) {
  return ScanExtremes<Scan, E>::run(call, spread.threads, spread);
}

template <template <class> class Op> bool scan_as(const ScanCall& call, const Spread& spread) {
  if constexpr (Op<float>::kIndexed) {
    switch (call.in.accumulator) {
      case Dtype::F64: return scan_extremes<Op<double>, double>(call, spread);
      case Dtype::I64: return scan_extremes<Op<int64_t>, int64_t>(call, spread);
      default:
        if (call.in.dtype == Dtype::F16) return scan_extremes<Op<F16>, F16>(call, spread);
        if (call.in.dtype == Dtype::BF16) return scan_extremes<Op<BF16>, BF16>(call, spread);
        return scan_extremes<Op<float>, float>(call, spread);
    }
  } else {
    if constexpr (Op<float>::kIntegers)
      if (call.in.accumulator == Dtype::I64) return scan_with<Op<int64_t>>(call, spread);
    if (call.in.accumulator == Dtype::F64) return scan_with<Op<double>>(call, spread);
    return scan_with<Op<float>>(call, spread);
  }
}

}  // namespace

bool scan(const ScanCall& call, ParallelFor parallel_for) {
  if (call.layout.rows == 0 || call.layout.length == 0) return true;
#define TR_CASE(name) \
  case Scan::name: return scan_as<name>(call, Spread(call, parallel_for));
  switch (call.op) { TR_FOR_EACH_SCAN(TR_CASE) }
#undef TR_CASE
  return true;
}

}  // namespace torchreduce::cpu::TR_ISA
