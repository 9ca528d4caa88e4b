// The CPU kernels of reductions by segments. Compiled once per instruction set.
#include "cpu/segments.h"

#include <utility>

#include "cpu/scatter_lines.h"

namespace torchreduce::cpu::TR_ISA {
namespace {

constexpr int64_t kSerialElements = 8192;  // a smaller call is not worth a second thread

template <template <class> class Op>
bool of_values(const SegmentReduction& call, int64_t threads, ParallelFor parallel_for) {
  switch (call.in.accumulator) {
    case Dtype::F64: return SegmentRows<Op<double>>::run(call, threads, parallel_for);
    case Dtype::I64: return SegmentRows<Op<int64_t>>::run(call, threads, parallel_for);
    default: return SegmentRows<Op<float>>::run(call, threads, parallel_for);
  }
}

template <template <class> class Op>
bool along_lines(const LineScatter& call, int64_t threads, ParallelFor parallel_for) {
  if (call.in.accumulator == Dtype::F64) return ScatteredLines<Op<double>>::run(call, threads, parallel_for);
  return ScatteredLines<Op<float>>::run(call, threads, parallel_for);
}

}  // namespace

bool scatter_lines(const LineScatter& call, int64_t& outside, int64_t threads, ParallelFor parallel_for) {
  const int64_t places = call.index_outer || call.index_inner ? call.outer * call.rows * call.inner : call.rows;
  outside = call.index_dtype == Dtype::I32
                ? first_outside(static_cast<const int32_t*>(call.index), places, call.segments)
                : first_outside(static_cast<const int64_t*>(call.index), places, call.segments);
  if (outside >= 0) return true;
  if (call.rows * call.outer * call.inner < kSerialElements) threads = 1;
  switch (call.op) {
    case Reduction::Sum: return along_lines<Sum>(call, threads, parallel_for);
    case Reduction::Product: return along_lines<Product>(call, threads, parallel_for);
    default: return ScatteredLines<Extreme<int64_t>>::run(call, threads, parallel_for);
  }
}

bool reduce_segments(const SegmentReduction& call, int64_t threads, ParallelFor parallel_for) {
  if (call.outer * call.segments * call.inner == 0) return true;
  if (call.rows * call.outer * call.inner < kSerialElements) threads = 1;
  switch (call.op) {
    case Reduction::Sum: return of_values<Sum>(call, threads, parallel_for);
    case Reduction::Product: return of_values<Product>(call, threads, parallel_for);
    case Reduction::Extreme: return SegmentRows<Extreme<int64_t>>::run(call, threads, parallel_for);
    default: return SegmentRows<ArgExtreme<int64_t>>::run(call, threads, parallel_for);
  }
}

bool index_segments(const SegmentIndex& call, int64_t& outside, int64_t threads, ParallelFor parallel_for) {
  // Each chunk has counts of its own, which are gone through one by one.
  const int64_t chunks = least(threads, 1 + call.places / (kSerialElements + 2 * call.count));
  Scratch counts(chunks * (call.count + 1) * int64_t(sizeof(int64_t))), places(chunks * int64_t(sizeof(int64_t)));
  if (!counts.data || !places.data) return false;
  CountedIndex counted{call, chunks, reinterpret_cast<int64_t*>(counts.data), reinterpret_cast<int64_t*>(places.data)};
  const auto start = [&](void (*body)(void*, int64_t, int64_t)) {
    if (chunks > 1) parallel_for(chunks, body, &counted);
    else body(&counted, 0, 1);
  };
  start(CountedIndex::count);
  outside = -1;
  for (int64_t chunk = chunks - 1; chunk >= 0; --chunk)
    if (counted.outside[chunk] >= 0) outside = counted.outside[chunk];
  if (outside >= 0) return true;
  counted.sum_up();
  if (call.order) start(CountedIndex::place);
  return true;
}

}  // namespace torchreduce::cpu::TR_ISA
