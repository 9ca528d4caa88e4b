// Sums of the rows of a matrix that have one number (kernels/reduce/segments.h), on the CPU. A task has a place, and
// takes the segment that begins there, some columns at a time, and the zeros of those before it that have no places.
#pragma once
#include "cpu/fused_rows.h"
#include "kernels/reduce/segments.h"

namespace torchreduce {
inline namespace TR_ISA {

constexpr int64_t kSegmentColumns = 256;  // at a time

template <class F> struct SegmentSums {
  using Stack = ColumnStack<Plus, F>;
  static constexpr int kResidueLevels = 9, kLeafLevels = 40;

  const SegmentCall& call;
  bool out_of_memory = false;

  static int64_t bytes() {
    return Stack::bytes(kResidueLevels, kSegmentColumns) + Stack::bytes(kLeafLevels, kSegmentColumns) +
           Carver::bytes<F>(kSegmentColumns);
  }
  __attribute__((noinline)) static void add(const F* __restrict more, int64_t count, F* __restrict to) {
    for (int64_t c = 0; c < count; ++c) to[c] = to[c] + more[c];
  }

  // The places [begin, end) are a segment.
  void take(int64_t segment, int64_t begin, int64_t end, int64_t column, int64_t width, Carver carver) const {
    const int64_t wide = ceil_div(width, 64) * 64;
    Stack residues = Stack::make(carver, kResidueLevels, wide), leaves = Stack::make(carver, kLeafLevels, wide);
    F* const copy = carver.take<F>(wide);
    const Source source{call.in, call.dtype, DtypeOf<F>::value};
    for (int64_t first = begin; first < end; first += kLeaf) {
      const int64_t count = least(kLeaf, end - first);
      residues.count = 0;
      for (int64_t r = 0; r < least(count, kResidues); ++r) {
        F* const sum = residues.top();
        for (int64_t c = 0; c < wide; ++c) sum[c] = F(-0.0);
        for (int64_t k = r; k < count; k += kResidues)
          add(fetch<F, true>(source, call.order[first + k] * call.pitch + column, 1, width, copy), width, sum);
        residues.push();
      }
      __builtin_memcpy(leaves.top(), residues.total(), size_t(wide) * sizeof(F));
      leaves.push();
    }
    store_run(call.dtype, call.out, segment * call.columns + column, 1, width, leaves.total());
  }
  // The segments [first, end) have no places.
  void clear(int64_t first, int64_t end) const {
    const int64_t bytes = call.columns * size_of(call.dtype);
    if (first < end) __builtin_memset(static_cast<char*>(call.out) + first * bytes, 0, size_t((end - first) * bytes));
  }
  static void body(void* context, int64_t begin, int64_t end) {
    auto& self = *static_cast<SegmentSums*>(context);
    const SegmentCall& call = self.call;
    Scratch scratch(bytes());
    if (!scratch.data) return __atomic_store_n(&self.out_of_memory, true, __ATOMIC_RELAXED);
    for (int64_t place = begin; place < end; ++place) {
      const int64_t own = call.number_at(place), before = place > 0 ? call.number_at(place - 1) : -1;
      self.clear(before + 1, own);
      if (place == call.places - 1) self.clear(own + 1, call.segments);
      if (own == before || own == call.segments) continue;
      int64_t last = place + 1;
      while (last < call.places && call.number_at(last) == own) ++last;
      for (int64_t column = 0; column < call.columns; column += kSegmentColumns)
        self.take(own, place, last, column, least(kSegmentColumns, call.columns - column), Carver{scratch.data});
    }
  }

  static bool run(const SegmentCall& call, int64_t threads, cpu::ParallelFor parallel_for) {
    SegmentSums self{call};
    if (threads > 1) parallel_for(call.places, body, &self);
    else body(&self, 0, call.places);
    return !self.out_of_memory;
  }
};

}  // namespace TR_ISA
}  // namespace torchreduce
