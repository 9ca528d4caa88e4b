// The gradients of weights and biases, on the CPU: columns, summed over rows in canonical order. A task takes a chunk
// of columns that lie side by side.
#pragma once
#include "cpu/rowwise_rows.h"

namespace torchreduce {
inline namespace TR_ISA {

constexpr int64_t kWeightColumns = 256;  // of a task

template <class F, bool kCentered> struct RowwiseWeights {
  using Sums = WeightSums<F, kCentered>;
  using Given = typename Sums::Given;
  using Stack = ColumnStack<Plus, F>;
  static constexpr int kResidueLevels = 9, kLeafLevels = 40;

  const RowwiseCall& call;
  ColumnChunks chunks;
  bool out_of_memory = false;

  static int64_t padded(int64_t width) { return ceil_div(width, 64) * 64; }
  static int64_t bytes() {
    return 2 * (Stack::bytes(kResidueLevels, kWeightColumns) + Stack::bytes(kLeafLevels, kWeightColumns)) +
           2 * Carver::bytes<F>(kWeightColumns);
  }

  // `count` elements of input k, side by side, of one row.
  const F* side(int k, int64_t column, int64_t row, int64_t count, F* copy) const {
    const Layout& l = call.layout;
    const auto& strides = k == 0 ? l.in : call.more_strides[0];
    const Source source{call.in[k], call.dtype, call.accumulator};
    return fetch<F, true>(source, row_offset(l, strides, column) + position_offset(l, strides, row),
                          l.kept ? strides[l.kept - 1] : 1, count, copy);
  }
  __attribute__((noinline)) static void step(const F* __restrict g, const F* __restrict x, const Given& given,
                                             int64_t count, F* __restrict to_weight, F* __restrict to_bias) {
    for (int64_t c = 0; c < count; ++c) Sums::step(to_weight[c], to_bias[c], g[c], x[c], given);
  }

  void take(int64_t column, RowStart at, int64_t width, Carver carver) const {
    const int64_t rows = call.layout.length, wide = padded(width);
    Stack residues[2], leaves[2];
    F* copies[2];
    for (int k = 0; k < 2; ++k) {
      residues[k] = Stack::make(carver, kResidueLevels, wide);
      leaves[k] = Stack::make(carver, kLeafLevels, wide);
      copies[k] = carver.take<F>(wide);
    }
    for (int64_t first = 0; first < rows; first += kLeaf) {
      const int64_t count = least(kLeaf, rows - first);
      for (Stack& s : residues) s.count = 0;
      for (int64_t r = 0; r < least(count, kResidues); ++r) {
        F* const sums[2] = {residues[0].top(), residues[1].top()};
        for (F* sum : sums)
          for (int64_t c = 0; c < wide; ++c) sum[c] = F(-0.0);
        for (int64_t row = first + r; row < first + count; row += kResidues)
          step(side(0, column, row, width, copies[0]), side(1, column, row, width, copies[1]),
               Sums::given(call.memory, row), width, sums[0], sums[1]);
        for (Stack& s : residues) s.push();
      }
      for (int k = 0; k < 2; ++k) {
        __builtin_memcpy(leaves[k].top(), residues[k].total(), size_t(wide) * sizeof(F));
        leaves[k].push();
      }
    }
    const int64_t step_out = call.layout.kept ? call.layout.out[call.layout.kept - 1] : 0;
    for (int k = 0; k < 2; ++k) {
      if (!call.memory.values[k]) continue;
      const F* totals = copies[k];
      if (rows > 0) totals = leaves[k].total();
      else
        for (int64_t c = 0; c < width; ++c) copies[k][c] = 0;
      store_run(call.memory.dtypes[k], call.memory.values[k], at.out, step_out, width, totals);
    }
  }
  static void body(void* context, int64_t begin, int64_t end) {
    auto& self = *static_cast<RowwiseWeights*>(context);
    Scratch scratch(bytes());
    if (!scratch.data) return __atomic_store_n(&self.out_of_memory, true, __ATOMIC_RELAXED);
    self.chunks.each(begin, end, [&](int64_t column, RowStart at, int64_t width) {
      self.take(column, at, width, Carver{scratch.data});
    });
  }

  static bool run(const RowwiseCall& call, int64_t threads, cpu::ParallelFor parallel_for) {
    RowwiseWeights self{call, ColumnChunks(call.layout, kWeightColumns, threads)};
    if (threads > 1 && self.chunks.count() > 1) parallel_for(self.chunks.count(), body, &self);
    else body(&self, 0, self.chunks.count());
    return !self.out_of_memory;
  }
};

}  // namespace TR_ISA
}  // namespace torchreduce
