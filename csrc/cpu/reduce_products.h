// Products. Lanes are neighbouring residues of a row or, of rows that lie side by side, the rows. Mantissas are
// multiplied and exponents added: as long as every element is a normal number the bits are those of powers (powers.h),
// which take the leaves of others, one element after the other.
#pragma once
#include "cpu/reduce_rows.h"

namespace torchreduce {
inline namespace TR_ISA {

template <class Op> constexpr bool kIsProduct = std::is_same<Op, Product<typename Op::Element>>::value;

template <class Op> struct Products {
  using F = typename Op::F;
  using Acc = typename Op::Acc;
  static_assert(std::is_same<F, typename Op::Element>::value, "elements are converted first");
  static constexpr bool kFloat = Op::kFloat;
  using L = std::conditional_t<kFloat, F, uint64_t>;  // integers wrap
  using B = FloatBits<L>;
  using V = Vec<L>;
  static constexpr int W = kLanes<L>;
  static constexpr int64_t kBytes = Carver::bytes<F>(kLeaf + kResidues);
  // A tree joins mantissas until so many are left, then makes them mantissas again: residues, of 8 at most, are less
  // than 2^8, three levels of the tree later less than 2^64; the last five levels end below 2^32.
  static constexpr int64_t kJoined = kResidues / 8;

  // What becomes of the exponents of the elements in each lane.
  struct Lanes {
    using Bits = Vec<UintOf<L>>;
    using Exponents = Vec<IntOf<L>>;
    Exponents e{};
    Bits others{};  // the highest bit is set where an element was zero, subnormal, infinite or NaN

    // x without its exponent, which goes to e.
    TR_HD V mantissa(V x) {
      if constexpr (!kFloat) return x;
      else {
        const Bits bits = (Bits)x, exponent = bits & B::kExponents;
        e += (Exponents)(exponent >> B::kFraction) - B::kBias;
        return (V)((bits & ~B::kExponents) | typename B::Bits(B::kBias) << B::kFraction);
      }
    }
    TR_HD V element(V x) {
      constexpr auto kOne = typename B::Bits(1) << B::kFraction;
      if constexpr (kFloat) others |= (((Bits)x & B::kExponents) - kOne) | (((Bits)x & B::kExponents) + kOne);
      return mantissa(x);
    }
    TR_HD bool is_other(int lane) const { return IntOf<L>(others[lane]) < 0; }
  };
  TR_HD static Acc total(L m, int64_t e) {
    if constexpr (!kFloat) return int64_t(m);
    else {
      Acc product = normal_power(m);
      product.e += decltype(product.e)(e);
      return product;
    }
  }
  TR_HD static Acc combine(Acc left, Acc right) { return Op::combine(left, right); }
  // The slots of the tree over a leaf of `count` elements.
  TR_HD static int64_t slots_of(int64_t count) {
    return count >= kResidues ? kResidues : count > 1 ? int64_t(2) << (63 - __builtin_clzll(uint64_t(count - 1))) : 1;
  }
  __attribute__((noinline)) static Acc careful_leaf(const F* x, int64_t count) {
    Acc acc[kResidues];
    int64_t slots = slots_of(count);
    for (int64_t i = 0; i < slots; ++i) acc[i] = i < count ? Op::load(x[i], 0) : Op::absent();
    for (int64_t i = kResidues; i < count; ++i) acc[i % kResidues] = multiply(acc[i % kResidues], Op::load(x[i], 0));
    for (; slots > 1; slots /= 2)
      for (int64_t i = 0; i < slots / 2; ++i) acc[i] = combine(acc[2 * i], acc[2 * i + 1]);
    return acc[0];
  }

  // ---- lanes along a row ---------------------------------------------------------------------------------------------

  // The even lanes of both times the odd ones.
  TR_HD static V join_neighbours(V a, V b) {
    V even, odd;
    unzip<L, 1, 1>(a, b, even, odd);
    return even * odd;
  }
  // `copy`: [kLeaf + kResidues], where x may lie. Ones stand for what is absent.
  __attribute__((noinline)) static Acc leaf(const F* x, int64_t count, F* copy) {
    const int64_t slots = slots_of(count) < W ? W : slots_of(count),
                  rounds = slots < kResidues ? 1 : ceil_div(count, kResidues);
    if (count < rounds * slots) {
      if (x != copy) __builtin_memcpy(copy, x, size_t(count) * sizeof(F));
      for (int64_t i = count; i < rounds * slots; ++i) copy[i] = F(1);
      x = copy;
    }
    Lanes lanes;
    V m[kResidues / W];
    for (int64_t i = 0; i < slots; i += W) {
      m[i / W] = lanes.element(load<V>(x + i));
      for (int64_t k = 1; k < rounds; ++k) m[i / W] = m[i / W] * lanes.element(load<V>(x + k * slots + i));
    }
    if (__builtin_expect(first_set((Vec<IntOf<L>>)lanes.others < 0) >= 0, 0)) return careful_leaf(x, count);
    for (int64_t left = slots; left > W; left /= 2) {
      if (left == kJoined)
        for (int64_t i = 0; i < left / W; ++i) m[i] = lanes.mantissa(m[i]);
      for (int64_t i = 0; i < left / 2 / W; ++i) m[i] = join_neighbours(m[2 * i], m[2 * i + 1]);
    }
    for (int left = W; left > 1; left /= 2) m[0] = join_neighbours(m[0], m[0]);
    int64_t e = 0;
    for (int i = 0; i < W; ++i) e += lanes.e[i];
    return total(m[0][0], e);
  }

  // Runs [begin, end), counted through all rows.
  static void body(void* context, int64_t begin, int64_t end) {
    Job<Op>& job = *static_cast<Job<Op>*>(context);
    Scratch scratch(kBytes);
    if (!scratch.data) return job.fail();
    F* const copy = reinterpret_cast<F*>(scratch.data);
    const int64_t length = job.call.layout.length;
    for (int64_t unit = begin; unit < end; ++unit) {
      const RowStart at = row_start(job.call.layout, unit / job.runs);
      const int64_t first = unit % job.runs * job.run, last = least(job.leaves, first + job.run);
      const auto product = [&](int64_t l) {
        const int64_t count = least(kLeaf, length - l * kLeaf);
        return leaf(row_positions<F, true>(job.call, at.in, l * kLeaf, count, copy), count, copy);
      };
      if (last - first == 1) {
        job.finish_run(unit, at, product(first));
        continue;
      }
      TreeStack<Acc, 32> stack;
      for (int64_t l = first; l < last; ++l) stack.push(product(l), combine);
      job.finish_run(unit, at, stack.total(Op::absent(), combine));
    }
  }

  // ---- lanes across rows that lie side by side -----------------------------------------------------------------------

  struct Across {
    Job<Op>& job;
    ColumnChunks chunks;  // of W rows
  };
  // Position i of `count` rows, the first at `row`; ones after them.
  TR_HD static V across(const ReduceCall& call, int64_t row, int64_t count, int64_t i) {
    F side[W];
    for (int64_t j = count; j < W; ++j) side[j] = F(1);
    const F* const x =
        fetch<F, true>(call.in, row + position_offset(call.layout, i), row_stride(call.layout), count, side);
    if (count < W && x != side) __builtin_memcpy(side, x, size_t(count) * sizeof(F));
    return load<V>(count < W ? side : x);
  }
  // A leaf of each of `rows` rows. `copy`: [kLeaf].
  __attribute__((noinline)) static void leaves(const ReduceCall& call, int64_t row, int64_t rows, int64_t first,
                                               int64_t count, F* copy, Acc (&totals)[W]) {
    const Source& in = call.in;
    const bool direct =
        row_stride(call.layout) == 1 && call.layout.reduced <= 1 && in.dtype == DtypeOf<F>::value && !in.truth;
    const int64_t stride = position_stride(call.layout), slots = slots_of(count);
    const F* const data = static_cast<const F*>(in.data);
    const F* const start = data + row + first * stride;
    const F* const end = data + last_offset(call.layout, call.layout.in) + 1;
    Lanes lanes;
    V m[kResidues];
    for (int64_t i = 0; i < count; ++i) {
      const F* const p = start + i * stride;  // what follows the rows there does no harm
      const V x = lanes.element(direct && p + W <= end ? load<V>(p) : across(call, row, rows, first + i));
      m[i % kResidues] = i < kResidues ? x : m[i % kResidues] * x;
    }
    for (int64_t i = count; i < slots; ++i) m[i] = splat(L(1));
    for (int64_t left = slots; left > 1; left /= 2) {
      if (left == kJoined)
        for (int64_t i = 0; i < left; ++i) m[i] = lanes.mantissa(m[i]);
      for (int64_t i = 0; i < left / 2; ++i) m[i] = m[2 * i] * m[2 * i + 1];
    }
    for (int i = 0; i < rows; ++i) {
      const int64_t at = row + i * row_stride(call.layout);
      totals[i] = lanes.is_other(i) ? careful_leaf(row_positions<F, true>(call, at, first, count, copy), count)
                                    : total(m[0][i], lanes.e[i]);
    }
  }
  // Runs [begin, end), counted through all chunks.
  static void body_across(void* context, int64_t begin, int64_t end) {
    const auto& [job, chunks] = *static_cast<Across*>(context);
    Scratch scratch(kBytes);
    if (!scratch.data) return job.fail();
    const int64_t length = job.call.layout.length,
                  step = job.call.layout.kept ? job.call.layout.out[job.call.layout.kept - 1] : 0;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t run = unit % job.runs, first = run * job.run, last = least(job.leaves, first + job.run);
      chunks.each(unit / job.runs, unit / job.runs + 1, [&](int64_t row, RowStart at, int64_t count) {
        Acc totals[W];
        const auto take_leaf = [&](int64_t l) {
          leaves(job.call, at.in, count, l * kLeaf, least(kLeaf, length - l * kLeaf),
                 reinterpret_cast<F*>(scratch.data), totals);
        };
        take_leaf(first);
        if (last - first > 1) {
          TreeStack<Acc, 32> stacks[W];
          for (int64_t l = first; l < last; ++l) {
            if (l > first) take_leaf(l);
            for (int64_t i = 0; i < count; ++i) stacks[i].push(totals[i], combine);
          }
          for (int64_t i = 0; i < count; ++i) totals[i] = stacks[i].total(Op::absent(), combine);
        }
        for (int64_t i = 0; i < count; ++i)
          job.finish_run((row + i) * job.runs + run, {at.in + i * row_stride(job.call.layout), at.out + i * step},
                         totals[i]);
      });
    }
  }
};

}  // namespace TR_ISA
}  // namespace torchreduce
