// Functions of segments along a dim, on the CPU: each segment by the kernel for rows. Those that are a good part of all
// have all threads, one after the other; the others are shared out.
#pragma once
#include "cpu/cpu.h"
#include "cpu/lanes.h"
#include "plan/segment_offsets.h"

namespace torchreduce {
inline namespace TR_ISA {

// Run: (segment, threads) -> bool, false where memory is out.
template <class Run> struct EachSegment {
  const SegmentOffsets& of;
  Run run;
  int64_t most, chunks;  // elements of a segment that is shared out; of those
  bool out_of_memory = false;

  bool is_long(int64_t segment) const { return of.begin(segment + 1) - of.begin(segment) > most; }
  // The segment at which a chunk begins: each has about as many elements and segments.
  int64_t first_of_chunk(int64_t chunk) const {
    const auto before = [&](int64_t segment) { return of.begin(segment) - of.begin(0) + segment; };
    if (chunk == chunks) return of.count;
    const int64_t wanted = int64_t(double(before(of.count)) * double(chunk) / double(chunks));
    int64_t from = 0, to = of.count;
    while (from < to) {
      const int64_t middle = from + (to - from) / 2;
      if (before(middle) < wanted) from = middle + 1;
      else to = middle;
    }
    return from;
  }
  static void body(void* context, int64_t begin, int64_t end) {
    auto& self = *static_cast<EachSegment*>(context);
    for (int64_t k = self.first_of_chunk(begin), last = self.first_of_chunk(end); k < last; ++k)
      if (!self.is_long(k) && !self.run(k, 1)) __atomic_store_n(&self.out_of_memory, true, __ATOMIC_RELAXED);
  }
};

// `rows`: of each segment; `least_shared`: elements of a call that are not worth a second thread.
template <class Run>
bool each_segment(const SegmentOffsets& of, int64_t rows, int64_t least_shared, int64_t threads,
                  cpu::ParallelFor parallel_for, Run run) {
  if (of.length * rows < least_shared) threads = 1;
  const int64_t shared = ceil_div(of.length, threads), worth = ceil_div(least_shared, rows);
  EachSegment<Run> each{of, run, threads > 1 ? (shared > worth ? shared : worth) : of.length,
                        threads > 1 ? least(of.count, 8 * threads) : 1};
  if (threads > 1) {
    for (int64_t k = 0; k < of.count; ++k)
      if (each.is_long(k) && !run(k, threads)) return false;
    parallel_for(each.chunks, EachSegment<Run>::body, &each);
  } else {
    EachSegment<Run>::body(&each, 0, 1);
  }
  return !each.out_of_memory;
}

}  // namespace TR_ISA
}  // namespace torchreduce
