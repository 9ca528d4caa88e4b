// Products of rows. Floats are multiplied as they are, many at a time, as long as every product is a normal number:
// then the bits are those of powers (powers.h). Where one is not, the leaf is taken again, by powers.
#pragma once
#include <limits>

#include "cpu/reduce_rows.h"

namespace torchreduce {
inline namespace TR_ISA {

template <class Op> constexpr bool kIsProduct = std::is_same<Op, Product<typename Op::Element>>::value;

template <class Op> struct Products {
  using F = typename Op::F;
  using Acc = typename Op::Acc;
  static_assert(std::is_same<F, typename Op::Element>::value, "elements are converted first");
  static constexpr bool kFloat = Op::kFloat;
  static constexpr int64_t kBytes = 2 * Carver::bytes<F>(kLeaf);

  // The product of the first `slots` of the residues, a power of two.
  template <class A, class Multiply> TR_HD static A tree(A* acc, int64_t slots, Multiply multiply) {
    for (; slots > 1; slots /= 2)
      for (int64_t i = 0; i < slots / 2; ++i) acc[i] = multiply(acc[2 * i], acc[2 * i + 1]);
    return acc[0];
  }
  __attribute__((noinline)) static Acc careful_leaf(const F* x, int64_t count, int64_t slots) {
    Acc acc[kResidues];
    for (int64_t i = 0; i < slots; ++i) acc[i] = i < count ? Op::load(x[i], 0) : Op::absent();
    for (int64_t i = kResidues; i < count; ++i) acc[i % kResidues] = multiply(acc[i % kResidues], Op::load(x[i], 0));
    return tree(acc, slots, [](Acc a, Acc b) { return Op::combine(a, b); });
  }
  // `scratch`: [kLeaf].
  __attribute__((noinline)) static Acc leaf(const F* x, int64_t count, F* scratch) {
    int64_t slots = 1;
    while (slots < least(count, kResidues)) slots *= 2;
    if constexpr (!kFloat) return careful_leaf(x, count, slots);
    else {
      // One at a time until what is left fills all slots; the least of the magnitudes is of no lane in particular.
      F low[kResidues], *const acc = scratch;
      for (int64_t i = 0; i < slots; ++i) acc[i] = i < count ? x[i] : F(1);
      for (int64_t i = 0; i < slots; ++i) low[i] = magnitude_of(acc[i]);
      for (int64_t first = kResidues; first < count; first += kResidues) {
        const int64_t rest = least(kResidues, count - first);
        for (int64_t i = 0; i < rest; ++i) {
          acc[i] = acc[i] * x[first + i];
          low[i] = lesser(magnitude_of(acc[i]), low[i]);
        }
      }
      for (; slots > 1; slots /= 2)
        for (int64_t i = 0; i < slots / 2; ++i) {
          acc[i] = acc[2 * i] * acc[2 * i + 1];
          low[i] = lesser(magnitude_of(acc[i]), lesser(low[2 * i], low[2 * i + 1]));
        }
      // The least normal number does not count: a product below it may have been rounded up to it. What is infinite or
      // NaN stays so, or 0 has made NaN of it.
      constexpr F kLeastNormal = sizeof(F) == 4 ? F(0x1p-126) : F(0x1p-1022);
      if (low[0] > kLeastNormal && magnitude_of(acc[0]) <= std::numeric_limits<F>::max()) return normal_power(acc[0]);
      int64_t all = 1;
      while (all < least(count, kResidues)) all *= 2;
      return careful_leaf(x, count, all);
    }
  }

  // Runs [begin, end), counted through all rows.
  static void body(void* context, int64_t begin, int64_t end) {
    Job<Op>& job = *static_cast<Job<Op>*>(context);
    Scratch scratch(kBytes);
    if (!scratch.data) return job.fail();
    Carver carver{scratch.data};
    F* const copy = carver.take<F>(kLeaf);
    F* const products = carver.take<F>(kLeaf);
    const auto combine = [](Acc a, Acc b) { return Op::combine(a, b); };
    const int64_t length = job.call.layout.length;
    for (int64_t unit = begin; unit < end; ++unit) {
      const RowStart at = row_start(job.call.layout, unit / job.runs);
      const int64_t first = unit % job.runs * job.run;
      TreeStack<Acc, 32> stack;
      for (int64_t l = first; l < least(job.leaves, first + job.run); ++l) {
        const int64_t count = least(kLeaf, length - l * kLeaf);
        const F* const x = row_positions<F, true>(job.call, at.in, l * kLeaf, count, copy);
        stack.push(leaf(x, count, products), combine);
      }
      job.finish_run(unit, at, stack.total(Op::absent(), combine));
    }
  }

 private:
  TR_HD static F magnitude_of(F x) { return x < 0 ? -x : x; }
  TR_HD static F lesser(F a, F b) { return a < b ? a : b; }  // b where a is NaN
};

}  // namespace TR_ISA
}  // namespace torchreduce
