// The CPU kernels of row-wise ops. Compiled once per instruction set.
#include "cpu/each_segment.h"
#include "cpu/rowwise_weights.h"
#include "plan/rowwise_segments.h"

namespace torchreduce::cpu::TR_ISA {
namespace {

constexpr int64_t kSerialElements = 8192;  // a smaller call is not worth a second thread

// A weight of each position as F, `missing` where there is none, and what can be read behind them: as it lies, or in
// `copy`.
template <class F> const F* weights_of(const void* weight, const RowwiseCall& call, F missing, int64_t behind,
                                       F* copy) {
  const int64_t n = call.layout.length;
  for (int64_t i = weight ? n : 0; i < n + behind; ++i) copy[i] = missing;
  if (weight) convert_run(Source{weight, call.weight_dtype, call.accumulator}, 0, 1, n, copy);
  return copy;
}

template <template <class> class Op, class F>
bool run(const RowwiseCall& call, bool across, int64_t threads, ParallelFor parallel_for) {
  RowwiseRows<Op, F> rows(call, across);
  if constexpr (!Op<F>::kWeights) return rows.run(threads, parallel_for);
  constexpr int64_t kBehind = RowwiseRows<Op, F>::kWide;
  const int64_t bytes = Carver::bytes<F>(call.layout.length + kBehind);
  Scratch scratch(2 * bytes);
  if (!scratch.data) return false;
  rows.weight = weights_of(call.weight, call, F(1), kBehind, reinterpret_cast<F*>(scratch.data));
  if constexpr (Op<F>::kBiases)
    rows.bias = weights_of(call.bias, call, F(-0.0), kBehind, reinterpret_cast<F*>(scratch.data + bytes));
  return rows.run(threads, parallel_for);
}

}  // namespace

// `across`: lanes across rows, else along each; `threads`: those that there are for it.
bool rowwise_rows(const RowwiseCall& call, bool across, int64_t threads, ParallelFor parallel_for) {
  if (call.layout.rows == 0) return true;
  if (call.layout.rows * call.layout.length < kSerialElements) threads = 1;
  const bool wide = call.accumulator == Dtype::F64;
  switch (call.op) {
#define TR_CASE(name)                                                    \
  case Rowwise::name:                                                    \
    return wide ? run<name, double>(call, across, threads, parallel_for) \
                : run<name, float>(call, across, threads, parallel_for);
    TR_FOR_EACH_ROWWISE(TR_CASE)
#undef TR_CASE
    case Rowwise::RmsNormWeights:
      return wide ? RowwiseWeights<double, false>::run(call, threads, parallel_for)
                  : RowwiseWeights<float, false>::run(call, threads, parallel_for);
    case Rowwise::LayerNormWeights:
      return wide ? RowwiseWeights<double, true>::run(call, threads, parallel_for)
                  : RowwiseWeights<float, true>::run(call, threads, parallel_for);
  }
  return true;
}

bool rowwise_segments(const RowwiseSegments& call, int64_t threads, ParallelFor parallel_for) {
  return each_segment(call.of, call.layout.rows, kSerialElements, threads, parallel_for,
                      [&](int64_t segment, int64_t there) {
                        return rowwise_rows(call.alone(segment), call.across, there, parallel_for);
                      });
}

}  // namespace torchreduce::cpu::TR_ISA
