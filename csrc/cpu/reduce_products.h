// Products. Lanes are neighbouring residues of a row or, of rows that lie side by side, the rows. Elements are
// multiplied as they are as long as nothing on the way can be subnormal or infinite; else mantissas are multiplied and
// exponents added. Either has the bits of powers (powers.h), which take the leaves where an element is no normal
// number, one element after the other.
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
  static constexpr int64_t kBytes = Carver::bytes<F>(kLeaf);
  static constexpr int64_t kRounds = kLeaf / kResidues;
  static constexpr int64_t kMantissas = B::kBias - 1;  // as many have a product that is a normal number

  // What becomes of the exponents of the elements in each lane.
  struct Lanes {
    using Bits = Vec<UintOf<L>>;
    using Exponents = Vec<IntOf<L>>;
    Exponents e{};
    bool taken = false;
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
    // Values that are products of `joined` elements each become mantissas if those of `next` might be no normal
    // numbers.
    TR_HD void keep_normal(V* values, int64_t count, int64_t next, int64_t& joined, int64_t& most) {
      if (next <= most) return;
      for (int64_t i = 0; i < count; ++i) values[i] = mantissa(values[i]);
      joined = 1;
      most = kMantissas;
      taken = true;
    }
    TR_HD bool any_other() const { return kFloat && taken && first_set((Exponents)others < 0) >= 0; }
    TR_HD bool is_other(int lane) const { return IntOf<L>(others[lane]) < 0; }
  };
  // The least and the greatest magnitude of elements: their bits, of which of a double the upper half counts.
  struct Span {
    using Words = Vec<uint32_t>;
    Words least, most;

    TR_HD explicit Span(V x) : least((Words)x & 0x7fffffffu), most(least) {}
    TR_HD void take(const Span& other) {
      least = other.least < least ? other.least : least;
      most = other.most > most ? other.most : most;
    }
    // Whether products of `count` of them are normal numbers, whatever their order.
    TR_HD bool allows(int64_t count) const {
      constexpr int kFraction = B::kFraction % 32;
      const uint32_t powers = uint32_t((B::kBias - 1) / count), low = (B::kBias - powers) << kFraction,
                     high = (B::kBias + powers) << kFraction;
      return first_set((Vec<IntOf<L>>)((least < low) | (most >= high)) < 0) < 0;
    }
  };
  // values[0 .. count): get(i, 0), times get(i, 1) .. of rounds(i). Returns how many elements, `elements` in all, their
  // products may be of, before they are to be made mantissas.
  template <class Rounds, class Get>
  TR_HD static int64_t residues(int64_t count, int64_t elements, Rounds rounds, Get get, V* values, Lanes& lanes) {
    const auto multiply = [&](auto element) __attribute__((always_inline)) {
      for (int64_t i = 0; i < count; ++i) {
        V product = element(get(i, 0));
        for (int64_t k = 1; k < rounds(i); ++k) product = product * element(get(i, k));
        values[i] = product;
      }
    };
    if constexpr (!kFloat) {
      multiply([](V x) { return x; });
      return elements;
    } else {
      Span all(splat(L(1)));
      for (int64_t i = 0; i < count; ++i) {
        V product = get(i, 0);
        Span span(product);
        for (int64_t k = 1; k < rounds(i); ++k) {
          const V x = get(i, k);
          span.take(Span(x));
          product = product * x;
        }
        all.take(span);
        values[i] = product;
      }
      for (const int64_t plain : {elements, kRounds})
        if (all.allows(plain)) return plain;
      multiply([&](V x) __attribute__((always_inline)) { return lanes.element(x); });
      lanes.taken = true;
      return kMantissas;
    }
  }
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

  struct Times {
    TR_HD static V combine(V left, V right) { return left * right; }
  };
  // The even lanes of both times the odd ones.
  TR_HD static V join_neighbours(V a, V b) {
    V even, odd;
    unzip<L, 1, 1>(a, b, even, odd);
    return even * odd;
  }
  // Ones stand for what is absent.
  __attribute__((noinline)) static Acc leaf(const F* x, int64_t count) {
    const int64_t slots = slots_of(count) < W ? W : slots_of(count), vectors = slots / W,
                  rounds = slots < kResidues ? 1 : ceil_div(count, kResidues), whole = count / W * W;
    Lanes lanes;
    V m[kResidues / W];
    int64_t most;
    if (count == rounds * slots) {
      most = residues(
          vectors, rounds * slots, [&](int64_t) { return rounds; },
          [&](int64_t i, int64_t k) { return load<V>(x + k * slots + i * W); }, m, lanes);
    } else {
      L last[W];
      for (int i = 0; i < W; ++i) last[i] = whole + i < count ? L(x[whole + i]) : L(1);
      const auto get = [&](int64_t i, int64_t k) {
        const int64_t at = k * slots + i * W;
        return at < whole ? load<V>(x + at) : at == whole ? load<V>(last) : splat(L(1));
      };
      most = residues(vectors, rounds * slots, [&](int64_t) { return rounds; }, get, m, lanes);
    }
    if (__builtin_expect(lanes.any_other(), 0)) return careful_leaf(x, count);
    int64_t joined = rounds, left = vectors;
    for (; left >= W; left /= W, joined *= W) {
      lanes.keep_normal(m, left, W * joined, joined, most);
      for (int64_t i = 0; i < left / W; ++i) {
        V some[W];
        for (int j = 0; j < W; ++j) some[j] = m[i * W + j];
        fold_vectors<Times, L, W, 0>(some);
        m[i] = some[0];
      }
    }
    for (; left > 1; left /= 2, joined *= 2) {
      lanes.keep_normal(m, left, 2 * joined, joined, most);
      for (int64_t i = 0; i < left / 2; ++i) m[i] = join_neighbours(m[2 * i], m[2 * i + 1]);
    }
    lanes.keep_normal(m, 1, W * joined, joined, most);
    for (int left = W; left > 1; left /= 2) m[0] = join_neighbours(m[0], m[0]);
    int64_t e = 0;
    for (int i = 0; lanes.taken && i < W; ++i) e += lanes.e[i];
    return total(m[0][0], e);
  }

  // Runs [begin, end), counted through all rows.
  static void body(void* context, int64_t begin, int64_t end) {
    Job<Op>& job = *static_cast<Job<Op>*>(context);
    Scratch scratch(kBytes);
    if (!scratch.data) return job.fail();
    F* const copy = reinterpret_cast<F*>(scratch.data);
    const int64_t length = job.call.layout.length;
    const auto run = [&](int64_t unit, RowStart at) {
      const int64_t first = job.runs == 1 ? 0 : unit % job.runs * job.run, last = least(job.leaves, first + job.run);
      const auto product = [&](int64_t l) {
        const int64_t count = least(kLeaf, length - l * kLeaf);
        return leaf(row_positions<F, true>(job.call, at.in, l * kLeaf, count, copy), count);
      };
      if (last - first == 1) return job.finish_run(unit, at, product(first));
      TreeStack<Acc, 32> stack;
      for (int64_t l = first; l < last; ++l) stack.push(product(l), combine);
      job.finish_run(unit, at, stack.total(Op::absent(), combine));
    };
    if (job.runs > 1)
      for (int64_t unit = begin; unit < end; ++unit) run(unit, row_start(job.call.layout, unit / job.runs));
    else
      for_even_rows(job.call.layout, begin, end, [&](int64_t row, RowStart at, RowStart step, int64_t count) {
        for (int64_t r = 0; r < count; ++r) run(row + r, {at.in + r * step.in, at.out + r * step.out});
      });
  }

  // ---- lanes across rows that lie side by side -----------------------------------------------------------------------

  struct Across {
    Job<Op>& job;
    ColumnChunks chunks;
    const ReduceCall& call = job.call;
    int64_t stride = position_stride(call.layout), side = row_stride(call.layout);
    // Whether elements lie as F, `stride` apart along a row; and where what can be read ends.
    bool even = call.layout.reduced <= 1 && call.in.dtype == DtypeOf<F>::value && !call.in.truth;
    const F* end = static_cast<const F*>(call.in.data) + last_offset(call.layout, call.layout.in) + 1;
  };
  static constexpr int64_t kColumns = 16 * W;  // of a chunk at most
  // Position i of `count` rows, the first at `row`; ones after them.
  TR_HD static V across(const ReduceCall& call, int64_t row, int64_t count, int64_t i) {
    F side[W];
    for (int64_t j = count; j < W; ++j) side[j] = F(1);
    const F* const x =
        fetch<F, true>(call.in, row + position_offset(call.layout, i), row_stride(call.layout), count, side);
    if (count < W && x != side) __builtin_memcpy(side, x, size_t(count) * sizeof(F));
    return load<V>(count < W ? side : x);
  }
  template <int... kLane> TR_HD static V gather(const F* x, int64_t step, std::integer_sequence<int, kLane...>) {
    return V{L(x[kLane * step])...};
  }
  // A leaf of each of `rows` rows, W at most: numbers if all are normal, to `numbers`, else totals. `copy`: [kLeaf].
  __attribute__((noinline)) static bool leaves(const Across& task, int64_t row, int64_t rows, int64_t first,
                                               int64_t count, F* copy, F* numbers, Acc (&totals)[W]) {
    const ReduceCall& call = task.call;
    const int64_t stride = task.stride, side = task.side, slots = slots_of(count);
    const F* const start = static_cast<const F*>(call.in.data) + row + first * stride;
    // What follows the rows there does no harm.
    const bool direct = task.even && side == 1 && (count - 1) * stride + W <= task.end - start;
    int64_t joined = ceil_div(count, kResidues), most;
    const int64_t rounds = count / kResidues, tail = count % kResidues;
    Lanes lanes;
    V m[kResidues];
    const auto multiply = [&](auto position) __attribute__((always_inline)) {
      return residues(
          least(count, kResidues), slots * joined, [&](int64_t i) { return rounds + (i < tail); },
          [&](int64_t i, int64_t k) __attribute__((always_inline)) { return position(k * kResidues + i); }, m, lanes);
    };
    if (direct) most = multiply([&](int64_t i) { return load<V>(start + i * stride); });
    else if (task.even && rows == W)
      most = multiply([&](int64_t i) __attribute__((always_inline)) {
        return gather(start + i * stride, side, std::make_integer_sequence<int, W>());
      });
    else most = multiply([&](int64_t i) { return across(call, row, rows, first + i); });
    for (int64_t i = count; i < slots; ++i) m[i] = splat(L(1));
    for (int64_t left = slots; left > 1; left /= 2, joined *= 2) {
      lanes.keep_normal(m, left, 2 * joined, joined, most);
      for (int64_t i = 0; i < left / 2; ++i) m[i] = m[2 * i] * m[2 * i + 1];
    }
    if (!lanes.taken) {
      store(numbers, m[0]);
      return true;
    }
    for (int i = 0; i < rows; ++i) {
      const int64_t at = row + i * side;
      totals[i] = lanes.is_other(i) ? careful_leaf(row_positions<F, true>(call, at, first, count, copy), count)
                                    : total(m[0][i], lanes.e[i]);
    }
    return false;
  }
  // Runs [begin, end), counted through all chunks.
  static void body_across(void* context, int64_t begin, int64_t end) {
    const Across& task = *static_cast<Across*>(context);
    Job<Op>& job = task.job;
    const Layout& layout = task.call.layout;
    Scratch scratch(kBytes);
    if (!scratch.data) return job.fail();
    F* const copy = reinterpret_cast<F*>(scratch.data);
    F numbers[kColumns];
    Acc totals[W];
    // Runs `run` of `rows` rows, W at most: to `to`, or to totals.
    const auto take = [&](int64_t row, int64_t rows, int64_t run, F* to) {
      const int64_t first = run * job.run, last = least(job.leaves, first + job.run);
      const auto take_leaf = [&](int64_t l) {
        return leaves(task, row, rows, l * kLeaf, least(kLeaf, layout.length - l * kLeaf), copy, to, totals);
      };
      if (last - first == 1 && job.runs == 1) return take_leaf(first);
      TreeStack<Acc, 32> stacks[W];
      for (int64_t l = first; l < last; ++l) {
        const bool are_numbers = take_leaf(l);
        for (int64_t i = 0; i < rows; ++i) stacks[i].push(are_numbers ? total(L(to[i]), 0) : totals[i], combine);
      }
      for (int64_t i = 0; i < rows; ++i) totals[i] = stacks[i].total(Op::absent(), combine);
      return false;
    };
    const auto take_chunk = [&](int64_t row, RowStart at, int64_t count, int64_t run) {
      for (int64_t c = 0; c < count; c += W) {
        const int64_t rows = least(W, count - c);
        if (take(at.in + c * task.side, rows, run, numbers + c)) continue;
        for (int64_t i = 0; i < rows; ++i) {
          if (job.runs == 1) numbers[c + i] = Op::project(totals[i]);
          else job.partials[(row + c + i) * job.runs + run] = totals[i];
        }
      }
      if (job.runs > 1) return;
      const int64_t step = layout.kept ? layout.out[layout.kept - 1] : 0;
      store_run(task.call.out.dtype, task.call.out.values, at.out, step, count, numbers);
    };
    if (job.runs == 1)
      return task.chunks.each(begin, end, [&](int64_t row, RowStart at, int64_t n) { take_chunk(row, at, n, 0); });
    for (int64_t unit = begin; unit < end; ++unit)
      task.chunks.each(unit / job.runs, unit / job.runs + 1,
                       [&](int64_t row, RowStart at, int64_t n) { take_chunk(row, at, n, unit % job.runs); });
  }
};

}  // namespace TR_ISA
}  // namespace torchreduce
