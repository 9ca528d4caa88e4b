// The CPU kernels of scans: which kernel serves a call, and its tasks. Compiled once per instruction set.
#include "cpu/cpu.h"
#include "cpu/scan_columns.h"

namespace torchreduce::cpu::TR_ISA {
namespace {

constexpr int64_t kSerialElements = 32768;  // a smaller call is not worth a second thread

// Fills the output; false where memory is out.
template <class Scan> bool scan_with(const ScanCall& call, ParallelFor parallel_for) {
  const Layout& layout = call.layout;
  const int64_t threads = layout.rows * layout.length < kSerialElements ? 1 : call.plan.blocks;
  auto spread = [&](int64_t tasks, void (*body)(void*, int64_t, int64_t), void* context) {
    if (threads > 1 && tasks > 1) parallel_for(tasks, body, context);
    else body(context, 0, tasks);
  };
  ScanJob<Scan> job{call, (layout.length + kBlockTile - 1) / kBlockTile, nullptr};

  if (call.plan.family == Family::Columns || call.plan.family == Family::ColumnsChain) {
    using Across = ScanColumns<Scan>;
    typename Across::Task task = Across::cut(job, kScanColumns);
    const int64_t outer = layout.rows / task.inner;
    while (outer * task.chunks < threads && task.width >= 16) task = Across::cut(job, (task.width / 2 + 7) / 8 * 8);
    spread(outer * task.chunks, &Across::body, &task);
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

template <template <class> class Op> bool scan_as(const ScanCall& call, ParallelFor parallel_for) {
  switch (call.in.accumulator) {
    case Dtype::F64: return scan_with<Op<double>>(call, parallel_for);
    case Dtype::F32: return scan_with<Op<float>>(call, parallel_for);
    default: return scan_with<Op<int64_t>>(call, parallel_for);
  }
}

}  // namespace

bool scan(const ScanCall& call, ParallelFor parallel_for) {
  if (call.layout.rows == 0 || call.layout.length == 0) return true;
#define TR_CASE(name) \
  case Scan::name: return scan_as<name>(call, parallel_for);
  switch (call.op) { TR_FOR_EACH_SCAN(TR_CASE) }
#undef TR_CASE
  return true;
}

}  // namespace torchreduce::cpu::TR_ISA
