// Products. Lanes are neighbouring residues of a row or, of rows that lie side by side, the rows. Elements are
// multiplied as they are as long as nothing on the way underflows or overflows; else mantissas are multiplied and
// exponents added. Either has the bits of powers (powers.h), which take the leaves that have a subnormal number and
// nothing that decides the product, one element after the other.
#pragma once
#include <utility>

#include "cpu/reduce_rows.h"

namespace torchreduce {
inline namespace TR_ISA {

// Whether multiplications since the last clear() had operands or results that powers would treat otherwise: x86 keeps
// flags for subnormal operands, overflow, underflow and invalid operations. A subnormal result that is exact raises
// none unless it is multiplied again; products of zeros, of infinities and of NaN raise none, and are what powers make
// of them.
struct MultiplicationFlags {
#if defined(__x86_64__)
  static constexpr uint32_t kFlags = 0x01 | 0x02 | 0x08 | 0x10;
  static uint32_t state() {
    uint32_t state;
    asm volatile("stmxcsr %0" : "=m"(state)::"memory");
    return state;
  }
  static void set(uint32_t state) { asm volatile("ldmxcsr %0" ::"m"(state) : "memory"); }
  static void clear() {
    if (const uint32_t now = state(); now & kFlags) set(now & ~kFlags);
  }
  static bool raised() { return state() & kFlags; }
#else
  static uint32_t state() { return 0; }
  static void set(uint32_t) {}
  static void clear() {}
  static bool raised() { return true; }
#endif
  // After the products that lie at `values`.
  static bool raised_by(const void* values) {
    asm volatile("" ::"r"(values) : "memory");
    return raised();
  }
  // Emulators may keep none.
  static bool are_kept() {
    static const bool kept = [] {
      const uint32_t before = state();
      bool all = true;
      for (const auto& [left, right] :
           {std::pair{0x1p127f, 0x1p127f}, {0x1.8p-140f, 2.f}, {0x1.8p-100f, 0x1.8p-100f}}) {
        volatile float a = left, b = right;
        clear();
        all &= !raised();
        a = a * b;
        all &= raised();
      }
      set(before);
      return all;
    }();
    return kept;
  }
};

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
  static constexpr int kSomeLevels = 4;                // of the tree, that values may allow where they do not all

  TR_HD static int log_of(int64_t power_of_two) { return __builtin_ctzll(uint64_t(power_of_two)); }

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
  // The least and the greatest magnitude of values: their bits, of which of a double the upper half counts.
  struct Span {
    using Words = Vec<uint32_t>;
    Words least, most;

    TR_HD explicit Span(V x) : least((Words)x & 0x7fffffffu), most(least) {}
    TR_HD void take(const Span& other) {
      least = other.least < least ? other.least : least;
      most = other.most > most ? other.most : most;
    }
    // Whether products of 2^log of them are normal numbers, whatever their order.
    TR_HD bool allows(int log) const {
      constexpr int kFraction = B::kFraction % 32;
      const uint32_t powers = uint32_t(B::kBias - 1) >> log, low = (B::kBias - powers) << kFraction,
                     high = (B::kBias + powers) << kFraction;
      return first_set((Vec<IntOf<L>>)((least < low) | (most >= high)) < 0) < 0;
    }
  };
  // values[0 .. count), products of kRounds at most, which fill(element) makes of element(x), ones among them. Returns
  // how many of them, of the `slots` of a tree, a product may be of before they are to be made mantissas.
  template <class Fill>
  TR_HD static int64_t residues(int64_t count, int64_t slots, Fill fill, V* values, Lanes& lanes) {
    Span elements(splat(L(1))), all = elements;
    bool are_plain;
    if (MultiplicationFlags::are_kept()) {
      MultiplicationFlags::clear();
      fill([](V x) { return x; });
      are_plain = !MultiplicationFlags::raised_by(values);
    } else {
      fill([&](V x) __attribute__((always_inline)) {
        elements.take(Span(x));
        return x;
      });
      are_plain = elements.allows(log_of(kRounds));
    }
    for (int64_t i = 0; i < count; ++i) all.take(Span(values[i]));
    if (are_plain)
      for (const int log : {log_of(slots), kSomeLevels, 0})
        if (all.allows(log)) return int64_t(1) << log;
    fill([&](V x) __attribute__((always_inline)) { return lanes.element(x); });
    lanes.taken = true;
    return kMantissas / kRounds;
  }
  // Leaves of floats are multiplied as they are first, but for some after one that could not be. A task has one; the
  // flags that there were are there again after it.
  struct Trial {
    static constexpr int kNotTried = 7;
    const uint32_t before = MultiplicationFlags::state();
    const bool possible = kFloat && MultiplicationFlags::are_kept();
    int waits = 0;
    bool raised = true;  // maybe; flags that something else raises in between only cost time

    Trial() = default;
    Trial(const Trial&) = delete;
    ~Trial() { MultiplicationFlags::set(MultiplicationFlags::state() | before); }
    bool starts() {
      if (waits > 0) return --waits, false;
      if (possible && raised) MultiplicationFlags::clear();
      return possible;
    }
    bool succeeds(const void* values) {
      raised = MultiplicationFlags::raised_by(values);
      if (!raised) return true;
      waits = kNotTried;
      return false;
    }
  };
  TR_HD static Acc total(L m, int64_t e) {
    if constexpr (!kFloat) return int64_t(m);
    else {
      Acc product = power_of(m);
      product.e += decltype(product.e)(e);
      return product;
    }
  }
  TR_HD static Acc combine(Acc left, Acc right) { return Op::combine(left, right); }
  // The slots of the tree over a leaf of `count` elements.
  TR_HD static int64_t slots_of(int64_t count) {
    return count >= kResidues ? kResidues : count > 1 ? int64_t(2) << (63 - __builtin_clzll(uint64_t(count - 1))) : 1;
  }
  // The elements that decide a product, but for its sign: a zero, an infinity, NaN. Bits: an integer, or a vector of
  // them, one a lane. `least` begins at infinity, so `most` alone tells NaN.
  template <class Bits> struct Deciding {
    static constexpr typename B::Bits kMagnitude = ~typename B::Bits(0) >> 1, kInfinite = B::kExponents;
    Bits least = Bits{} + kInfinite, most{}, signs{};

    TR_HD void take(Bits x) {
      const Bits magnitude = x & kMagnitude;
      least = magnitude < least ? magnitude : least;
      most = magnitude > most ? magnitude : most;
      signs ^= x;
    }
  };
  // Whether there is one; then `m` is the product.
  TR_HD static bool is_decided(typename B::Bits least, typename B::Bits most, typename B::Bits signs, L& m) {
    using D = Deciding<typename B::Bits>;
    if (least != 0 && most < D::kInfinite) return false;
    const bool neither = most > D::kInfinite || (least == 0 && most == D::kInfinite);
    m = neither ? L(__builtin_nan("")) : bit_cast<L>((signs & ~D::kMagnitude) | (least == 0 ? 0 : D::kInfinite));
    return true;
  }
  __attribute__((noinline)) static Acc careful_leaf(const F* x, int64_t count) {
    if constexpr (kFloat) {
      Deciding<typename B::Bits> all;
      for (int64_t i = 0; i < count; ++i) all.take(bit_cast<typename B::Bits>(x[i]));
      if (L m; is_decided(all.least, all.most, all.signs, m)) return total(m, 0);
    }
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
  template <int... kLane>
  TR_HD static V after(V x, int64_t skipped, std::integer_sequence<int, kLane...>) {
    using Places = Vec<IntOf<L>>;
    if constexpr (sizeof(V) == 64) return __builtin_shuffle(x, splat(L(1)), Places{kLane...} + IntOf<L>(skipped));
    F both[2 * W];  // others have no such instruction
    store(both, x);
    store(both + W, splat(L(1)));
    return load<V>(both + skipped);
  }
  // The last count % W of the elements at x, and ones.
  TR_HD static V last_of(const F* x, int64_t count) {
    if (count >= W) return after(load<V>(x + count - W), W - count % W, std::make_integer_sequence<int, W>());
    F last[W];
    for (int i = 0; i < W; ++i) last[i] = i < count ? x[i] : F(1);
    return load<V>(last);
  }
  // The residues of a leaf, of element(x); ones stand for what is absent.
  template <class Element>
  TR_HD static void row_residues(const F* x, int64_t count, int64_t slots, Element element, V* values) {
    const int64_t rounds = count / slots, left = count - rounds * slots;
    for (int64_t i = 0; i < slots / W; ++i) {
      V product = rounds > 0 ? element(load<V>(x + i * W)) : splat(L(1));
      for (int64_t k = 1; k < rounds; ++k) product = product * element(load<V>(x + k * slots + i * W));
      values[i] = product;
    }
    for (int64_t i = 0; i < left / W; ++i) values[i] = values[i] * element(load<V>(x + rounds * slots + i * W));
    if (left % W) values[left / W] = values[left / W] * element(last_of(x, count));
  }
  // The tree over m[0 .. vectors), products of which may be of `most`: what is left in lane 0 of m[0].
  TR_HD static void join(V* m, int64_t vectors, int64_t most, Lanes& lanes) {
    int64_t joined = 1, left = vectors;
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
  }
  // Of integers, in any order.
  TR_HD static L any_order(const F* x, int64_t count) {
    constexpr int kEach = 4;
    V m[kEach] = {splat(L(1)), splat(L(1)), splat(L(1)), splat(L(1))};
    int64_t i = 0;
    for (; i + kEach * W <= count; i += kEach * W)
      for (int j = 0; j < kEach; ++j) m[j] = m[j] * load<V>(x + i + j * W);
    for (; i + W <= count; i += W) m[0] = m[0] * load<V>(x + i);
    L last[W];
    store(last, (m[0] * m[1]) * (m[2] * m[3]));
    L product = 1;
    for (; i < count; ++i) product *= L(x[i]);
    for (const L of_lane : last) product *= of_lane;
    return product;
  }
  __attribute__((noinline)) static Acc leaf(const F* x, int64_t count, Trial& trial) {
    if constexpr (!kFloat) return total(any_order(x, count), 0);
    else return float_leaf(x, count, trial);
  }
  // The product of a leaf of at most kResidues elements, which fit in kVectors vectors.
  template <int kVectors> TR_HD static L short_product(const F* x, int64_t count) {
    V m[kVectors];
    const V last = last_of(x, count);
    for (int i = 0; i < kVectors; ++i)
      m[i] = (i + 1) * W <= count ? load<V>(x + i * W) : i * W < count ? last : splat(L(1));
    return joined<kVectors>(m)[0];
  }
  // The tree over vectors: what is left in lane 0.
  template <int kVectors> TR_HD static V joined(const V* m) {
    constexpr int kEach = kVectors >= W ? W : 2;
    if constexpr (kVectors > 1) {
      V next[kVectors / kEach];
      for (int i = 0; i < kVectors / kEach; ++i) {
        if constexpr (kEach == W) {
          V some[W];
          for (int j = 0; j < W; ++j) some[j] = m[i * W + j];
          fold_vectors<Times, L, W, 0>(some);
          next[i] = some[0];
        } else {
          next[i] = join_neighbours(m[2 * i], m[2 * i + 1]);
        }
      }
      return joined<kVectors / kEach>(next);
    } else {
      V product = m[0];
      for (int left = W; left > 1; left /= 2) product = join_neighbours(product, product);
      return product;
    }
  }
  TR_HD static L short_product_of(const F* x, int64_t count, int64_t vectors) {
    if (vectors <= 1) return short_product<1>(x, count);
    if (vectors <= 2) return short_product<2>(x, count);
    if (vectors <= 4) return short_product<4>(x, count);
    if (vectors <= 8) return short_product<8>(x, count);
    if (vectors <= 16) return short_product<16>(x, count);
    return short_product<kResidues / W>(x, count);
  }
  TR_HD static Acc float_leaf(const F* x, int64_t count, Trial& trial) {
    const int64_t slots = slots_of(count) < W ? W : slots_of(count), vectors = slots / W;
    Lanes lanes;
    V m[kResidues / W];
    const auto fill = [&](auto element) __attribute__((always_inline)) { row_residues(x, count, slots, element, m); };
    if (trial.starts()) {
      fill([](V x) { return x; });
      join(m, vectors, INT64_MAX, lanes);
      if (trial.succeeds(m)) return total(m[0][0], 0);
    }
    const int64_t most = residues(vectors, slots, fill, m, lanes);
    if (__builtin_expect(lanes.any_other(), 0)) return careful_leaf(x, count);
    join(m, vectors, most, lanes);
    int64_t e = 0;
    for (int i = 0; lanes.taken && i < W; ++i) e += lanes.e[i];
    return total(m[0][0], e);
  }

  // The results of `count` rows of one short leaf, if elements can be multiplied as they are: their flags are looked at
  // together, since who looks waits for all multiplications.
  static constexpr int64_t kTogether = 16;
  TR_HD static bool take_short(Job<Op>& job, int64_t length, RowStart at, RowStart step, int64_t count, Trial& trial,
                               F* copy) {
    if constexpr (kFloat) {
      if (length > kResidues || length == 0 || !trial.starts()) return false;
      const int64_t vectors = ceil_div(slots_of(length), W);
      F products[kTogether];
      for (int64_t i = 0; i < count; ++i)
        products[i] =
            short_product_of(row_positions<F, true>(job.call, at.in + i * step.in, 0, length, copy), length, vectors);
      if (!trial.succeeds(products)) return false;
      store_run(job.call.out.dtype, job.call.out.values, at.out, step.out, count, products);
      return true;
    }
    return false;
  }
  // Runs [begin, end), counted through all rows.
  static void body(void* context, int64_t begin, int64_t end) {
    Job<Op>& job = *static_cast<Job<Op>*>(context);
    Scratch scratch(kBytes);
    if (!scratch.data) return job.fail();
    F* const copy = reinterpret_cast<F*>(scratch.data);
    const int64_t length = job.call.layout.length;
    Trial trial;
    const auto run = [&](int64_t unit, RowStart at) {
      const int64_t first = job.runs == 1 ? 0 : unit % job.runs * job.run, last = least(job.leaves, first + job.run);
      const auto product = [&](int64_t l) {
        const int64_t count = least(kLeaf, length - l * kLeaf);
        return leaf(row_positions<F, true>(job.call, at.in, l * kLeaf, count, copy), count, trial);
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
        const auto start = [&](int64_t r) { return RowStart{at.in + r * step.in, at.out + r * step.out}; };
        for (int64_t r = 0, n; r < count; r += n) {
          n = least(count - r, kTogether);
          if (take_short(job, length, start(r), step, n, trial, copy)) continue;
          for (int64_t i = r; i < r + n; ++i) run(row + i, start(i));
        }
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
  // Whether rows lie side by side, as plain_leaves() takes them.
  TR_HD static bool lie_plain(const Across& task) { return task.even && task.side == 1; }
  // A leaf of each of `rows` rows, W at most: to `numbers`, and true, if elements could be multiplied as they are; else
  // to `totals`. `copy`: [kLeaf].
  __attribute__((noinline)) static bool leaves(const Across& task, int64_t row, int64_t rows, int64_t first,
                                               int64_t count, F* copy, F* numbers, Acc (&totals)[W], Trial& trial) {
    const ReduceCall& call = task.call;
    const int64_t stride = task.stride, side = task.side, slots = slots_of(count);
    const F* const start = static_cast<const F*>(call.in.data) + row + first * stride;
    // What follows the rows there does no harm.
    const bool direct = lie_plain(task) && (count - 1) * stride + W <= task.end - start;
    const int64_t rounds = count / kResidues, tail = count % kResidues;
    Lanes lanes;
    V m[kResidues];
    Deciding<typename Lanes::Bits> all;
    const auto tree = [&](int64_t most) {
      for (int64_t i = count; i < slots; ++i) m[i] = splat(L(1));
      int64_t joined = 1;
      for (int64_t left = slots; left > 1; left /= 2, joined *= 2) {
        lanes.keep_normal(m, left, 2 * joined, joined, most);
        for (int64_t i = 0; i < left / 2; ++i) m[i] = m[2 * i] * m[2 * i + 1];
      }
    };
    const auto multiply = [&](auto position) __attribute__((always_inline)) {
      const auto fill = [&](auto element) __attribute__((always_inline)) {
        for (int64_t i = 0; i < least(count, kResidues); ++i) {
          V product = element(position(i));
          for (int64_t k = 1; k < rounds + (i < tail); ++k) product = product * element(position(k * kResidues + i));
          m[i] = product;
        }
      };
      if (!kFloat || (!lie_plain(task) && trial.starts())) {
        fill([](V x) { return x; });
        tree(INT64_MAX);
        if (!kFloat || trial.succeeds(m)) return;
      }
      if constexpr (kFloat) {
        const int64_t most = residues(least(count, kResidues), slots, fill, m, lanes);
        const bool any_other = lanes.any_other();
        for (int64_t i = 0; any_other && i < count; ++i) all.take((typename Lanes::Bits)position(i));
        tree(most);
      }
    };
    if (direct) multiply([&](int64_t i) { return load<V>(start + i * stride); });
    else if (task.even && rows == W)
      multiply([&](int64_t i) __attribute__((always_inline)) {
        return gather(start + i * stride, side, std::make_integer_sequence<int, W>());
      });
    else multiply([&](int64_t i) { return across(call, row, rows, first + i); });
    if (!lanes.taken) {
      store(numbers, m[0]);
      return true;
    }
    for (int i = 0; i < rows; ++i) {
      const int64_t at = row + i * side;
      if (L product; !lanes.is_other(i)) totals[i] = total(m[0][i], lanes.e[i]);
      else if (is_decided(all.least[i], all.most[i], all.signs[i], product)) totals[i] = total(product, 0);
      else totals[i] = careful_leaf(row_positions<F, true>(call, at, first, count, copy), count);
    }
    return false;
  }
  template <int kEach> TR_HD static V tree_of(const V* r) {
    if constexpr (kEach == 1) return r[0];
    else return tree_of<kEach / 2>(r) * tree_of<kEach / 2>(r + kEach / 2);
  }
  // The tree over kEach residues in each lane, of `left` elements at `from` and `stride` apart.
  template <int kEach> TR_HD static V plain_block(const F* from, int64_t stride, int64_t left, const F* ones) {
    V r[kEach];
    const auto get = [&](int j) { return load<V>(j < left ? from + j * stride : ones); };
    for (int j = 0; j < kEach; ++j) r[j] = get(j);
    for (left -= kResidues; left > 0; left -= kResidues) {
      from += kResidues * stride;
      for (int j = 0; j < kEach; ++j) r[j] = r[j] * get(j);
    }
    return tree_of<kEach>(r);
  }
  // The same of a leaf.
  TR_HD static V plain_tree(const F* x, int64_t stride, int64_t count, const F* ones) {
    constexpr int kEach = 8;
    if (count <= 2) return plain_block<2>(x, stride, count, ones);
    if (count <= 4) return plain_block<4>(x, stride, count, ones);
    V m[kResidues / kEach];
    int64_t blocks = ceil_div(least(count, kResidues), kEach);
    for (int64_t b = 0; b < blocks; ++b)
      m[b] = plain_block<kEach>(x + b * kEach * stride, stride, count - b * kEach, ones);
    for (; blocks > 1; blocks = ceil_div(blocks, 2)) {
      for (int64_t i = 0; i < blocks / 2; ++i) m[i] = m[2 * i] * m[2 * i + 1];
      if (blocks % 2) m[blocks / 2] = m[blocks - 1];
    }
    return m[0];
  }
  // A leaf of each of `rows` rows side by side, the first at `row`, if elements can be multiplied as they are: to
  // `numbers`, in whole vectors. Where nothing can be read beyond the rows the last vector begins before its time.
  static bool plain_leaves(const Across& task, int64_t row, int64_t rows, int64_t first, int64_t count, F* numbers,
                           Trial& trial) {
    const F* const start = static_cast<const F*>(task.call.in.data) + row + first * task.stride;
    const bool ends = (count - 1) * task.stride + ceil_div(rows, W) * W > task.end - start;
    if (!lie_plain(task) || (ends && rows < W) || (kFloat && !trial.starts())) return false;
    F ones[W];
    store(ones, splat(L(1)));
    for (int64_t c = 0; c < rows; c += W) {
      const int64_t from = ends ? least(c, rows - W) : c;
      const V product = plain_tree(start + from, task.stride, count, ones);
      store(numbers + from, product);
    }
    if constexpr (kFloat) return trial.succeeds(numbers);
    return true;
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
    Trial trial;
    const auto take_plain = [&](int64_t row, int64_t rows, int64_t l, F* to) {
      return plain_leaves(task, row, rows, l * kLeaf, least(kLeaf, layout.length - l * kLeaf), to, trial);
    };
    // Runs `run` of `rows` rows, W at most: to `to`, or to totals.
    const auto take = [&](int64_t row, int64_t rows, int64_t run, F* to) {
      const int64_t first = run * job.run, last = least(job.leaves, first + job.run);
      const auto take_leaf = [&](int64_t l) {
        return (job.leaves > 1 && take_plain(row, rows, l, to)) ||
               leaves(task, row, rows, l * kLeaf, least(kLeaf, layout.length - l * kLeaf), copy, to, totals, trial);
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
      const bool whole = job.runs == 1 && job.leaves == 1 && take_plain(at.in, count, 0, numbers);
      for (int64_t c = 0; c < count && !whole; c += W) {
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
