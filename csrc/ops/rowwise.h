// Row-wise ops: softmax, norms, logsumexp, variances, cross-entropy and their gradients, one struct
// each, used alike by the CPU kernels and the GPU kernels. A kernel knows no operation: it looks at a row leaf by leaf
// (order.h), keeps a state of each leaf, merges the states by the contiguous tree, and then writes an element for each
// element, values for the row, or both. Everything is in F, the accumulator: elements enter it exactly.
//
// An op on rows says
//   kInputs         elements that it reads at each position: 1, or 2 (a gradient and what was saved)
//   kFirst          what the first look finds of a leaf: nothing, the greatest element of input 0 (NaN if there is
//   one),
//                   or the canonical sum of input 0
//   kSums           canonical sums that the second look makes; 0: there are no looks, elements are written right away
//   kMaps           it writes an element for each
//   kAdds           its elements are those of two tensors added, and rounded to their type; these sums are written,
//   too;
//                   OfOne is the same op of one tensor
//   kLeafwise       what is written depends on the leaf, not on the row alone
//   kTerm           what is written is made of term(), which the second look has made, too, instead of the element
//   kWeights        it reads weights, one a position, and if kBiases biases: 1 and -0.0 where there are none
//   kFills, fill(k) whether elements fill(k) of each input k, where there are none, change no sum
//   kStats          values in F of each row that it writes, or if it is a gradient reads
//   Given, given(options, memory, row)  what the row comes with; nothing but for gradients and cross-entropy
//   skips(Given)    the row is not read: its looks find nothing, and map() gets elements that mean nothing
//   Seen, seen(first, count, given)     what the second look needs of the leaf, of `count` elements
//   step(sums, x, weight, seen, given)  adds the elements of a position to the kSums sums; each starts from -0.0
//   State, none(), state(first, sums, count)   of a row without elements; of a leaf of `count` elements
//   merge(left, right)                  of neighbouring runs of leaves
//   States          the struct that declares State and merge: ops that share it share the kernels that merge alone
//   Row, row(state, n, given, options, read)   what the row comes to; read(i) is element i of input 0
//   write(row, memory, i)               the row's values; nothing where there are none
//   At, at(row, leaf state)             what map needs in a leaf
//   map(x, weight, bias, i, at)         the element at position i; x is the term if kTerm
//   kScales         unless rescale(sums, seen) is 1, a leaf is looked at again, with its elements multiplied by it, a
//                   power of two; scaled_back(again, before, scale) is its state then, of a scale of 1 `again`
// and of the data that is common, for which fewer instructions have the same bits:
//   kFast, allows_fast(first, least), fast_step(sums, x, seen)   looks at leaves whose least element of input 0 is
//                   `least`
//   kFastMap, allows_fast_map(least, at), fast_map(x, at)   elements that are no NaN, of leaves whose least element
//                   of the last input is `least`; but for the element at marked(at), if that is one
//   kCentral, central_step(sum, x), central_state(first, sum)   a look at leaves whose elements are all within
//                   most_central() of 0, for which nothing need be found first
//   central_sum(state), central_at(at, state), central_map(x, at)   states of such leaves as sums that are added along
//                   the tree; their elements, of rows for which allows_fast_map(0, at) holds
#pragma once
#include <cmath>

#include "numerics/explog.h"
#include "numerics/order.h"
#include "numerics/powers.h"

namespace torchreduce {

// The numbers that a call comes with. Doubles round to F once where they are used in F.
struct RowwiseOptions {
  double epsilon = 0;     // norms: what is added under the root
  double correction = 0;  // variances: by how much the divisor is less than the number of elements
  bool root = false;      // variances: their roots
  bool norm = false;      // variances: the statistics are those of LayerNorm
  int64_t ignored = 0;    // cross-entropy: the label of rows that are left out
  double smoothing = 0;   // its gradient: of what the label has, so much is spread over all classes
};

// Tensors that kernels read elements of.
template <class Op> constexpr int kReads = Op::kInputs + Op::kAdds;

// What has one element a row. `stats`: kStats planes of F, `plane` elements apart. `values`: results, or gradients of
// results; null where there is none. All contiguous, at the same offset.
struct RowMemory {
  void* stats = nullptr;
  int64_t plane = 0;
  void* values[3] = {};
  Dtype dtypes[3] = {};
  // Cross-entropy: labels, and weights of the classes, which may be missing.
  const int64_t* labels = nullptr;
  const void* class_weights = nullptr;
  Dtype class_weights_dtype = Dtype::F32;
  int64_t classes = 0;

  template <class F> TR_HD F stat(int k, int64_t i) const { return static_cast<const F*>(stats)[k * plane + i]; }
  template <class F> TR_HD void set_stat(int k, int64_t i, F v) const {
    static_cast<F*>(stats)[k * plane + i] = canonical(v);
  }
  // -0.0 where there is no such value.
  template <class F> TR_HD F value(int k, int64_t i) const {
    return values[k] ? load_as<F>(dtypes[k], values[k], i, false) : F(-0.0);
  }
  template <class F> TR_HD void set_value(int k, int64_t i, F v) const {
    if (values[k]) store_as(dtypes[k], values[k], i, v);
  }
};

enum class First { Nothing, Greatest, Sum };

inline namespace TR_ISA {

template <class F> TR_HD F quiet_nan() { return canonical(F(__builtin_nanf(""))); }
template <class F> TR_HD F root(F x) { return std::sqrt(x); }
// x / F(n). By powers of two it is a product, of the same bits: GPUs take dozens of instructions for a division.
template <class F> TR_HD F divided(F x, int64_t n) {
  using Bits = typename PowerOfTwo<F>::Bits;
  constexpr int kMantissa = PowerOfTwo<F>::kMantissa;
  const F d = F(n);
  const Bits bits = bit_cast<Bits>(d);
  if (n > 0 && (bits << (8 * sizeof(F) - kMantissa)) == 0)
    return x * bit_cast<F>((Bits(2 * PowerOfTwo<F>::kBias) << kMantissa) - bits);
  return x / d;
}

// What the first look starts from, and how it goes on; a sum in canonical order.
template <First kFirst, class F> TR_HD F first_absent() { return kFirst == First::Sum ? F(-0.0) : -kInfinity<F>; }
template <First kFirst, class F> TR_HD F first_combine(F a, F b) {
  return kFirst == First::Sum ? a + b : greatest(a, b);
}

// What most ops leave as it is.
template <class F> struct RowwiseOp {
  static constexpr int kInputs = 1, kSums = 1, kStats = 0;
  static constexpr First kFirst = First::Nothing;
  static constexpr bool kMaps = true, kLeafwise = false, kTerm = false, kWeights = false, kBiases = false;
  static constexpr bool kFills = false, kFast = false, kFastMap = false, kCentral = false, kScales = false,
                        kAdds = false;
  TR_HD static F fill(int) { return F(0); }
  template <class A> TR_HD static int64_t marked(const A&) { return -1; }
  struct Nothing {};
  using Given = Nothing;
  using Seen = Nothing;
  template <class G> TR_HD static bool skips(const G&) { return false; }
  TR_HD static Nothing given(const RowwiseOptions&, const RowMemory&, int64_t) { return {}; }
  template <class G> TR_HD static Nothing seen(F, int, const G&) { return {}; }
  template <class R> TR_HD static void write(const R&, const RowMemory&, int64_t) {}
  template <class R, class S> TR_HD static const R& at(const R& row, const S&) { return row; }
};

// An op whose state is kSums sums in F, added along the tree.
template <class F, int kCount> struct SummedOp : RowwiseOp<F> {
  using States = SummedOp;
  static constexpr int kSums = kCount;
  TR_HD static F fill(int k) { return k == 0 ? F(-0.0) : F(0); }
  struct State { F sum[kCount]; };
  TR_HD static State none() {
    State s;
    for (int k = 0; k < kCount; ++k) s.sum[k] = 0;
    return s;
  }
  TR_HD static State state(F, const F* sums, int) {
    State s;
    for (int k = 0; k < kCount; ++k) s.sum[k] = sums[k];
    return s;
  }
  TR_HD static State merge(const State& a, const State& b) {
    State s;
    for (int k = 0; k < kCount; ++k) s.sum[k] = a.sum[k] + b.sum[k];
    return s;
  }
};

// ---- sums of exponentials --------------------------------------------------------------------------------------------

// Exponentials are referred to a power of two, 2^n with n the integer nearest to l / ln 2, l being the greatest
// element: so no argument is rounded, and going from a leaf to its row is exact. Where |l| >= 2^20 they are referred to
// exp(l) itself: n is kFar.
template <class F> struct Exponential {
  static constexpr int kFar = INT32_MAX;
  static constexpr F kFarthest = F(sizeof(F) == 4 ? 105 : 747);  // below l, from where on exponentials are 0
  using Bits = typename PowerOfTwo<F>::Bits;

  struct State {
    F l;  // the greatest element; NaN if there is one
    F s;  // the sum of exp(x) / 2^n, or of exp(x - l); what it is if l is infinite or NaN means nothing
    int n;
  };
  struct Seen {
    F base, least;  // exponentials are of x - base, and 0 where that is `least` or below
    Bits shift;     // takes n, in its place of a float, to the raised power from the reference
  };

  TR_HD static bool near(F l) { return l < F(0x1p20) && l > F(-0x1p20); }
  TR_HD static Seen seen(F l) {
    constexpr Bits kRaised = PowerOfTwo<F>::kRaised;
    if (near(l)) return {F(0), l - kFarthest, kRaised - (bit_cast<Bits>(split_exp(l).t) << PowerOfTwo<F>::kMantissa)};
    return {is_finite(l) ? l : F(0), kLeastExponent<F>, kRaised};
  }
  TR_HD static F term(F x, const Seen& seen) {
    const PowerOfTwo<F> power = split_exp(greater_number(x - seen.base, seen.least));
    return power.scaled((bit_cast<Bits>(power.t) << PowerOfTwo<F>::kMantissa) + seen.shift);
  }
  // Where all of a leaf's exponentials are normal numbers: 2^n / 2^reference times q, both exact.
  static constexpr F kNormal = F(sizeof(F) == 4 ? 85 : 706);  // below l
  TR_HD static bool allows_fast(F l, F least) { return near(l) && least >= l - kNormal; }
  struct FastTerm { F q, power; };
  TR_HD static FastTerm fast_term(F x, const Seen& seen) {
    constexpr Bits kHeadroom = Bits(PowerOfTwo<F>::kHeadroom) << PowerOfTwo<F>::kMantissa;
    const PowerOfTwo<F> power = split_exp(x);
    return {power.q, bit_cast<F>((bit_cast<Bits>(power.t) << PowerOfTwo<F>::kMantissa) + (seen.shift - kHeadroom))};
  }
  // exp(x), of magnitude kNormal at most.
  TR_HD static F fast_exp(F x) {
    const PowerOfTwo<F> power = split_exp(x);
    return bit_cast<F>((bit_cast<Bits>(power.t) << PowerOfTwo<F>::kMantissa) + bit_cast<Bits>(power.q));
  }
  TR_HD static State state(F l, F s) { return {l, s, near(l) ? split_exp(l).n() : kFar}; }
  TR_HD static State none() { return {-kInfinity<F>, F(0), kFar}; }
  // Elements whose exponentials are normal numbers as they are, referred to 2^0, as is all that rows of up to 2^30 of
  // them come to: so that it is exact to go from there to any reference of theirs.
  static constexpr F kMostCentral = F(sizeof(F) == 4 ? 32 : 256);
  TR_HD static State central_state(F l, F sum) {
    const int n = split_exp(l).n();
    return {l, sum * power_down(n), n};
  }
  TR_HD static F central_sum(const State& a) { return a.s * power(a.n); }

  // 2^d, 0 where it is not normal; of a d that means nothing, as that of a column that is not there, something.
  TR_HD static F power(int d) {
    constexpr int kBias = PowerOfTwo<F>::kBias;
    return d <= -kBias ? F(0) : bit_cast<F>((Bits(kBias) + Bits(d)) << PowerOfTwo<F>::kMantissa);
  }
  // 2^-d, alike.
  TR_HD static F power_down(int d) { return power(int(0u - unsigned(d))); }
  // s, referred to exp(l).
  TR_HD static F far_sum(const State& a) { return a.n == kFar ? a.s : a.s / split_exp(a.l).q; }
  TR_HD static State merge(const State& a, const State& b) {
    if (a.l == -kInfinity<F>) return b;
    if (b.l == -kInfinity<F>) return a;
    const F l = greatest(a.l, b.l);
    if (!is_finite(l)) return {l, F(1), kFar};
    if (a.n != kFar && b.n != kFar) {
      const bool first = a.n >= b.n;
      const int n = first ? a.n : b.n, d = first ? b.n - n : a.n - n;
      return {l, fma_of(first ? b.s : a.s, power(d), first ? a.s : b.s), n};
    }
    const bool first = a.l >= b.l;
    const F of_a = far_sum(a), of_b = far_sum(b), d = first ? b.l - l : a.l - l;
    return {l, fma_of(first ? of_b : of_a, exp_nonpositive(d), first ? of_a : of_b), kFar};
  }
  // By what a leaf's terms are multiplied to become parts of the row's sum: negative where that is its greatest term,
  // so that the part of this one is 1, which a product with a reciprocal may miss.
  TR_HD static F factor(const State& row, const State& leaf) {
    if (!is_finite(row.l)) return quiet_nan<F>();
    if (leaf.l == -kInfinity<F>) return F(0);
    if (row.n == kFar) {
      const F weight = exp_nonpositive(leaf.l - row.l);
      return (leaf.n == kFar ? weight : weight / split_exp(leaf.l).q) / row.s;
    }
    constexpr int kBias = PowerOfTwo<F>::kBias;
    F part = F(1) / row.s;
    if (row.s < F(1.5)) {
      TR_RARE_PATH;
      if (row.s == split_exp(row.l).q) part = -part;
    }
    const int d = leaf.n - row.n;
    return d > -kBias ? part * power(d) : part * power(d + kBias - 1) * power(1 - kBias);
  }
};

// The states of a row's exponentials, and what they come to: the greatest element m, and the sum S of exp(x - m).
template <class F> struct OfExponentials : RowwiseOp<F> {
  using States = OfExponentials;
  static constexpr First kFirst = First::Greatest;
  static constexpr bool kFills = true;
  TR_HD static F fill(int) { return -kInfinity<F>; }
  using E = Exponential<F>;
  using State = typename E::State;
  using Seen = typename E::Seen;
  template <class G> TR_HD static Seen seen(F l, int, const G&) { return E::seen(l); }
  template <class G> TR_HD static void step(F* sums, const F* x, F, const Seen& seen, const G&) {
    sums[0] = sums[0] + E::term(x[0], seen);
  }
  static constexpr bool kFast = true;
  TR_HD static bool allows_fast(F l, F least) { return E::allows_fast(l, least); }
  TR_HD static void fast_step(F* sums, const F* x, const Seen& seen) {
    const auto term = E::fast_term(x[0], seen);
    sums[0] = fma_of(term.q, term.power, sums[0]);
  }
  TR_HD static State none() { return E::none(); }
  TR_HD static State state(F l, const F* sums, int) { return E::state(l, sums[0]); }
  TR_HD static State merge(const State& a, const State& b) { return E::merge(a, b); }
  static constexpr bool kCentral = true;
  TR_HD static F most_central() { return E::kMostCentral; }
  TR_HD static void central_step(F& sum, F x) { sum = sum + E::fast_exp(x); }
  TR_HD static State central_state(F l, F sum) { return E::central_state(l, sum); }
  TR_HD static F central_sum(const State& a) { return E::central_sum(a); }

  struct Sum { F m, s; };
  TR_HD static Sum sum(const State& a) {
    if (is_finite(a.l)) return {a.l + F(0), E::far_sum(a)};  // of two zeros that are the greatest either may be l
    return {a.l, a.l == -kInfinity<F> ? F(0) : a.l == kInfinity<F> ? F(1) : a.l};
  }
};

template <class F> struct Softmax : OfExponentials<F> {
  using typename OfExponentials<F>::State;
  using E = Exponential<F>;
  static constexpr bool kLeafwise = true, kTerm = true;
  using Row = State;
  struct At { F factor; };
  TR_HD static F term(F x, const typename E::Seen& seen) { return E::term(x, seen); }
  TR_HD static F fast_term(F x, const typename E::Seen& seen) {
    const auto term = E::fast_term(x, seen);
    return term.q * term.power;
  }
  template <class G, class Read> TR_HD static Row row(const State& s, int64_t, const G&, const RowwiseOptions&, Read) {
    return s;
  }
  TR_HD static At at(const Row& row, const State& leaf) { return {E::factor(row, leaf)}; }
  TR_HD static F map(F term, F, F, int64_t, const At& at) {
    const F part = term * at.factor;
    return part < F(-0.5) ? F(1) : magnitude(part);
  }
  static constexpr bool kFastMap = true;
  TR_HD static bool allows_fast_map(F, const At& at) { return at.factor >= 0; }
  TR_HD static F fast_map(F term, const At& at) { return term * at.factor; }
  TR_HD static At central_at(const At& at, const State& leaf) { return {at.factor * E::power_down(leaf.n)}; }
  TR_HD static F central_map(F x, const At& at) { return E::fast_exp(x) * at.factor; }
};

template <class F> struct LogSoftmax : OfExponentials<F> {
  using typename OfExponentials<F>::State;
  struct Row { F m, log; };
  template <class G, class Read> TR_HD static Row row(const State& s, int64_t, const G&, const RowwiseOptions&, Read) {
    const auto sum = OfExponentials<F>::sum(s);
    return {sum.m, is_finite(sum.m) ? log_positive(sum.s) : quiet_nan<F>()};
  }
  TR_HD static F map(const F* x, F, F, int64_t, const Row& row) { return (x[0] - row.m) - row.log; }
  static constexpr bool kFastMap = true;
  TR_HD static bool allows_fast_map(F, const Row& row) { return row.log == row.log; }
  TR_HD static F fast_map(const F* x, const Row& row) { return (x[0] - row.m) - row.log; }
  TR_HD static const Row& central_at(const Row& row, const State&) { return row; }
  TR_HD static F central_map(F x, const Row& row) { return (x - row.m) - row.log; }
};

template <class F> struct SoftmaxGradient : SummedOp<F, 1> {  // of g and y
  using typename SummedOp<F, 1>::State;
  static constexpr int kInputs = 2;
  static constexpr bool kFills = true;
  struct Row { F d; };
  template <class S, class G> TR_HD static void step(F* sums, const F* x, F, const S&, const G&) {
    sums[0] = fma_of(x[0], x[1], sums[0]);
  }
  template <class G, class Read> TR_HD static Row row(const State& s, int64_t, const G&, const RowwiseOptions&, Read) {
    return {s.sum[0]};
  }
  TR_HD static F map(const F* x, F, F, int64_t, const Row& row) { return (x[0] - row.d) * x[1]; }
};

template <class F> struct LogSoftmaxGradient : SummedOp<F, 1> {  // of g and y
  using typename SummedOp<F, 1>::State;
  static constexpr int kInputs = 2;
  static constexpr bool kFills = true;
  struct Row { F g; };
  template <class S, class G> TR_HD static void step(F* sums, const F* x, F, const S&, const G&) {
    sums[0] = sums[0] + x[0];
  }
  template <class G, class Read> TR_HD static Row row(const State& s, int64_t, const G&, const RowwiseOptions&, Read) {
    return {s.sum[0]};
  }
  TR_HD static F map(const F* x, F, F, int64_t, const Row& row) { return fma_of(-exp_nonpositive(x[1]), row.g, x[0]); }
  static constexpr bool kFastMap = true;
  TR_HD static bool allows_fast_map(F least, const Row& row) {
    return is_finite(row.g) && least >= -Exponential<F>::kNormal;  // every g is finite, too
  }
  TR_HD static F fast_map(const F* x, const Row& row) { return fma_of(-Exponential<F>::fast_exp(x[1]), row.g, x[0]); }
};

// Statistics: m, s.
template <class F> struct LogSumExp : OfExponentials<F> {
  using typename OfExponentials<F>::State;
  static constexpr bool kMaps = false;
  static constexpr int kStats = 2;
  struct Row { F m, s; };
  template <class G, class Read> TR_HD static Row row(const State& s, int64_t, const G&, const RowwiseOptions&, Read) {
    const auto sum = OfExponentials<F>::sum(s);
    return {sum.m, sum.s};
  }
  TR_HD static void write(const Row& row, const RowMemory& memory, int64_t i) {
    memory.set_stat(0, i, row.m);
    memory.set_stat(1, i, row.s);
    memory.set_value(0, i, is_finite(row.m) ? row.m + log_positive(row.s) : row.m);
  }
};

// An op without looks.
template <class F> struct MappedOp : RowwiseOp<F> {
  using States = MappedOp;
  static constexpr int kSums = 0;
  struct State {};
  template <class G> TR_HD static void step(F*, const F*, F, const State&, const G&) {}
  TR_HD static State none() { return {}; }
  TR_HD static State state(F, const F*, int) { return {}; }
  TR_HD static State merge(const State& a, const State&) { return a; }
  template <class Row, class Read>
  TR_HD static const Row& row(const State&, int64_t, const Row& given, const RowwiseOptions&, Read) {
    return given;
  }
};

// Values: the gradient of the result. Statistics: m, s.
template <class F> struct LogSumExpGradient : MappedOp<F> {
  static constexpr int kStats = 2;
  struct Given { F m, k; };
  using Row = Given;
  TR_HD static Given given(const RowwiseOptions&, const RowMemory& memory, int64_t i) {
    const F m = memory.stat<F>(0, i);
    if (m == -kInfinity<F>) return {F(0), F(0)};
    return {m, memory.value<F>(0, i) / memory.stat<F>(1, i)};
  }
  TR_HD static F map(const F* x, F, F, int64_t, const Row& row) { return exp_nonpositive(x[0] - row.m) * row.k; }
  static constexpr bool kFastMap = true;
  TR_HD static bool allows_fast_map(F least, const Row& row) {
    return least - row.m >= -Exponential<F>::kNormal && row.k == row.k;
  }
  TR_HD static F fast_map(const F* x, const Row& row) { return Exponential<F>::fast_exp(x[0] - row.m) * row.k; }
};

// ---- cross-entropy of class labels -----------------------------------------------------------------------------------

// A label that is neither a class nor the ignored one makes NaN. Values, in F: the loss, the row's weight in the mean,
// the logarithm of the sum of exp if it is wanted. Statistics: m, s. All 0 for a row that is left out.
template <class F> struct CrossEntropy : OfExponentials<F> {
  using typename OfExponentials<F>::State;
  static constexpr bool kMaps = false;
  static constexpr int kStats = 2;
  struct Given {
    int64_t label;
    F weight;
    bool ignored, valid;
  };
  struct Row { F m, s, loss, weight, log; };
  TR_HD static bool skips(const Given& given) { return given.ignored; }
  TR_HD static Given given(const RowwiseOptions& options, const RowMemory& memory, int64_t i) {
    const int64_t label = memory.labels[i];
    const bool ignored = label == options.ignored, valid = label >= 0 && label < memory.classes;
    F weight = ignored ? F(0) : valid ? F(1) : quiet_nan<F>();
    if (!ignored && valid && memory.class_weights)
      weight = load_as<F>(memory.class_weights_dtype, memory.class_weights, label, false);
    return {label, weight, ignored, valid};
  }
  template <class Read>
  TR_HD static Row row(const State& s, int64_t, const Given& given, const RowwiseOptions&, Read read) {
    if (given.ignored) return {F(0), F(0), F(0), F(0), F(0)};
    const auto sum = OfExponentials<F>::sum(s);
    constexpr F kNan = F(__builtin_nanf(""));
    if (!given.valid || !is_finite(sum.m)) return {kNan, kNan, kNan, given.weight, given.valid ? sum.m : kNan};
    const F log = log_positive(sum.s);
    return {sum.m, sum.s, (log - (read(given.label) - sum.m)) * given.weight, given.weight, sum.m + log};
  }
  TR_HD static void write(const Row& row, const RowMemory& memory, int64_t i) {
    memory.set_stat(0, i, row.m);
    memory.set_stat(1, i, row.s);
    memory.set_value(0, i, row.loss);
    memory.set_value(1, i, row.weight);
    memory.set_value(2, i, row.log);
  }
};

// Values: the gradients of the loss and of the logarithm, if there is one.
template <class F> struct CrossEntropyGradient : MappedOp<F> {
  static constexpr int kStats = 2;
  struct Given {
    int64_t label;
    F m, k, hit, rest;  // an element's is exp(x - m) k, plus `hit` at the label, `rest` elsewhere
    bool ignored;
  };
  using Row = Given;
  TR_HD static bool skips(const Given& given) { return given.ignored; }
  TR_HD static Given given(const RowwiseOptions& options, const RowMemory& memory, int64_t i) {
    const auto label = CrossEntropy<F>::given(options, memory, i);
    if (label.ignored) return {-1, F(0), F(0), F(0), F(0), true};
    const F g = memory.value<F>(0, i), p = label.valid ? g * label.weight : quiet_nan<F>();
    F hit = -p, rest = F(-0.0);
    if (options.smoothing != 0) {
      rest = -(p * F(options.smoothing / double(memory.classes)));
      hit = rest - p * F(1 - options.smoothing);
    }
    const F all = p + memory.value<F>(1, i);
    return {label.label, memory.stat<F>(0, i), all / memory.stat<F>(1, i), hit, rest, false};
  }
  TR_HD static F map(const F* x, F, F, int64_t i, const Row& row) {
    const F dx = fma_of(exp_nonpositive(x[0] - row.m), row.k, i == row.label ? row.hit : row.rest);
    return row.ignored ? F(0) : dx;
  }
  static constexpr bool kFastMap = true;
  TR_HD static bool allows_fast_map(F least, const Row& row) {
    return least - row.m >= -Exponential<F>::kNormal && row.k == row.k && !row.ignored;
  }
  TR_HD static int64_t marked(const Row& row) { return row.label; }
  TR_HD static F fast_map(const F* x, const Row& row) {
    return fma_of(Exponential<F>::fast_exp(x[0] - row.m), row.k, row.rest);
  }
};

// ---- entropy of softmax ----------------------------------------------------------------------------------------------

// Statistics: m, s, the entropy.
template <class F> struct Entropy : RowwiseOp<F> {
  using States = Entropy;
  static constexpr First kFirst = First::Greatest;
  static constexpr bool kMaps = false, kFills = true;
  TR_HD static F fill(int) { return -kInfinity<F>; }
  static constexpr int kSums = 2, kStats = 3;
  struct Seen { F m; };
  struct State { F m, s, t; };  // t: the sum of exp(x - m) (x - m)
  struct Row { F m, s, h; };
  TR_HD static F clamped(F d) { return greater_number(d, kLeastExponent<F>); }
  template <class G> TR_HD static Seen seen(F m, int, const G&) { return {is_finite(m) ? m + F(0) : F(0)}; }
  template <class G> TR_HD static void step(F* sums, const F* x, F, const Seen& seen, const G&) {
    const F d = clamped(x[0] - seen.m), e = exp_in_range(d);
    sums[0] = sums[0] + e;
    sums[1] = fma_of(d, e, sums[1]);
  }
  TR_HD static State none() { return {-kInfinity<F>, F(0), F(0)}; }
  TR_HD static State state(F m, const F* sums, int) {
    return is_finite(m) ? State{m, sums[0], sums[1]} : State{m, F(0), F(0)};
  }
  TR_HD static State merge(const State& a, const State& b) {
    const F m = greatest(a.m, b.m);
    if (!is_finite(m)) return {m, F(0), F(0)};
    const bool first = a.m >= b.m;
    const State big = first ? a : b, small = first ? b : a;
    const F d = clamped(small.m - big.m), e = exp_in_range(d);
    return {m, fma_of(small.s, e, big.s), fma_of(e, fma_of(d, small.s, small.t), big.t)};
  }
  template <class G, class Read>
  TR_HD static Row row(const State& s, int64_t n, const G&, const RowwiseOptions&, Read) {
    if (n == 0) return {s.m, s.s, F(0)};
    if (!is_finite(s.m)) return {quiet_nan<F>(), quiet_nan<F>(), quiet_nan<F>()};
    return {s.m + F(0), s.s, log_positive(s.s) - s.t / s.s};
  }
  TR_HD static void write(const Row& row, const RowMemory& memory, int64_t i) {
    memory.set_stat(0, i, row.m);
    memory.set_stat(1, i, row.s);
    memory.set_stat(2, i, row.h);
    memory.set_value(0, i, row.h);
  }
};

template <class F> struct EntropyGradient : MappedOp<F> {
  static constexpr int kStats = 3;
  struct Given { F g, m, part, log, h; };
  using Row = Given;
  TR_HD static Given given(const RowwiseOptions&, const RowMemory& memory, int64_t i) {
    const F m = memory.stat<F>(0, i), s = memory.stat<F>(1, i);
    return {memory.value<F>(0, i), m, F(1) / s, is_finite(m) ? log_positive(s) : quiet_nan<F>(), memory.stat<F>(2, i)};
  }
  TR_HD static F map(const F* x, F, F, int64_t, const Row& row) {
    const F d = x[0] - row.m, y = exp_nonpositive(d) * row.part;
    return y == 0 ? F(0) : -(row.g * y) * ((d - row.log) + row.h);
  }
};

// ---- means and variances ---------------------------------------------------------------------------------------------

// The sum in F; and in float64 the mean and the sum of the squares of the distances to it. Of F = float64 these two are
// in units of 2^unit and of its square.
template <class F> struct OfMoments : RowwiseOp<F> {
  using States = OfMoments;
  static constexpr First kFirst = First::Sum;
  static constexpr int kSums = 2;
  struct Seen { F mean; };
  struct State {
    double mean, squares;
    int64_t count;
    F sum;
    int unit;
  };
  template <class G> TR_HD static Seen seen(F sum, int count, const G&) { return {divided(sum, count)}; }
  template <class G> TR_HD static void step(F* sums, const F* x, F, const Seen& seen, const G&) {
    const F d = x[0] - seen.mean;
    sums[0] = sums[0] + d;
    sums[1] = fma_of(d, d, sums[1]);
  }
  TR_HD static State none() { return {0, 0, 0, F(0), 0}; }
  // The distances are those to the rounded mean of the leaf, which is off by their own mean.
  TR_HD static State state(F sum, const F* sums, int count) {
    const double off = divided(double(sums[0]), count), squares = fma_of(-double(sums[0]), off, double(sums[1]));
    return {double(divided(sum, count)) + off, squares < 0 ? 0.0 : squares, count, sum, 0};
  }
  TR_HD static State merge(State a, State b) {
    if constexpr (kUnits) {
      if (a.unit < b.unit) a = in_unit(a, b.unit);
      if (b.unit < a.unit) b = in_unit(b, a.unit);
    }
    const int64_t count = a.count + b.count;
    const double d = b.mean - a.mean;
    return {fma_of(d, double(b.count) / double(count), a.mean),
            fma_of(d * d, double(a.count) * (double(b.count) / double(count)), a.squares + b.squares), count,
            a.sum + b.sum, a.unit};
  }

  // Squares of a leaf that are less than kLeast may have lost some; not where the mean is kFar from 0 or more, since
  // what differs from it then differs by more than the root of that. What is more than kMost, or a mean whose square
  // is, might overflow where leaves merge. Of a leaf that is looked at again every square is a normal number, and so
  // are the sums of leaves.
  static constexpr bool kScales = true, kUnits = sizeof(F) == 8;
  static constexpr F kLeast = F(kUnits ? 0x1p-600 : 0x1p-90), kFar = F(kUnits ? 0x1p-240 : 0x1p-20);
  static constexpr F kMost = kUnits ? F(0x1p960) : kInfinity<F>, kFarthest = kUnits ? F(0x1p480) : kInfinity<F>;
  static constexpr int kUp = kUnits ? 700 : 96, kDown = kUnits ? 600 : 72;
  TR_HD static F rescale(const F* sums, const Seen& seen) {
    const F far = magnitude(seen.mean);  // both asked at once, lest a GPU branches
    const bool down = !((sums[1] < kMost) & (far < kFarthest)), up = (sums[1] < kLeast) & (far < kFar);
    return up ? F(two_to(kUp)) : down ? F(two_to(-kDown)) : F(1);
  }
  TR_HD static State scaled_back(State again, const State& before, F scale) {
    again.sum = before.sum;
    again.unit = scale > 1 ? -kUp : scale < 1 ? kDown : 0;
    return kUnits ? again : in_unit(again, 0);
  }
  TR_HD static State in_unit(const State& s, int unit) {  // what is too small for it adds nothing
    constexpr int kMost = kUp > kDown ? kUp : kDown;
    const double scale = two_to(s.unit - unit < -kMost ? -kMost : s.unit - unit);
    return {s.mean * scale, s.squares * scale * scale, s.count, s.sum, unit};
  }
  TR_HD static double whole_mean(const State& s) { return kUnits ? s.mean * two_to(s.unit) : s.mean; }

  // The mean as high + low, each of F.
  struct Mean { F high, low; };
  TR_HD static Mean mean(const State& s) {
    if (s.count == 0) return {quiet_nan<F>(), F(0)};
    const F high = F(whole_mean(s));
    return {high, is_finite(high) ? F(whole_mean(s) - double(high)) : F(0)};
  }
  // 1 / sqrt(variance + epsilon), of a variance in the state's units: by way of another power of two where what is
  // under the root is no normal number of F.
  TR_HD static F reciprocal(const State& s, double variance, double epsilon) {
    if constexpr (kUnits) {
      const double sum = variance * two_to(s.unit) * two_to(s.unit) + epsilon;
      return is_normal(sum) ? F(1) / root(F(sum)) : F(1) / root(F(variance)) * F(two_to(-s.unit));
    }
    const double sum = variance + epsilon;
    F under = F(sum), half = F(1);
    if (!is_normal(under)) {
      TR_RARE_PATH;
      const int power = sum < 1 ? 96 : -96;
      under = F(sum * two_to(2 * power));
      half = F(two_to(power));
    }
    return F(1) / root(under) * half;
  }
  TR_HD static bool is_normal(F x) { return x >= F(sizeof(F) == 4 ? 0x1p-126 : 0x1p-1022) && is_finite(x); }
};

// Values: the variance or its root, and the mean, each if wanted. Statistics: the mean's two parts, the root; those of
// a norm: the mean's two parts, the reciprocal of the standard deviation.
template <class F> struct Moments : OfMoments<F> {
  using typename OfMoments<F>::State;
  static constexpr bool kMaps = false;
  static constexpr int kStats = 3;
  struct Row {
    F variance, root, mean, high, low;
    bool rooted;
  };
  template <class G, class Read>
  TR_HD static Row row(const State& s, int64_t n, const G&, const RowwiseOptions& options, Read) {
    double variance = s.squares / divisor(n, options), sd = root(variance);
    if constexpr (OfMoments<F>::kUnits) {
      variance = variance * two_to(s.unit) * two_to(s.unit);
      sd = sd * two_to(s.unit);
    }
    const auto mean = OfMoments<F>::mean(s);
    F third = F(sd);
    if (options.norm) {
      TR_RARE_PATH;
      third = OfMoments<F>::reciprocal(s, divided(s.squares, n), options.epsilon);
    }
    const F average = is_finite(s.sum) ? divided(s.sum, n) : mean.high;
    return {F(variance), third, average, mean.high, mean.low, options.root};
  }
  TR_HD static double divisor(int64_t n, const RowwiseOptions& options) {
    const double d = double(n) - options.correction;
    return d > 0 ? d : 0.0;
  }
  TR_HD static void write(const Row& row, const RowMemory& memory, int64_t i) {
    memory.set_stat(0, i, row.high);
    memory.set_stat(1, i, row.low);
    memory.set_stat(2, i, row.root);
    memory.set_value(0, i, row.rooted ? row.root : row.variance);
    memory.set_value(1, i, row.mean);
  }
};

// Values: the gradients of the variance or its root, and of the mean if there is one.
template <class F> struct MomentsGradient : MappedOp<F> {
  static constexpr int kStats = 3;
  struct Given { F g, to_mean, high, low, root; };
  struct Row { F high, low, k, c, scale; };  // the mean times a power of two, so that k is a normal number
  TR_HD static Given given(const RowwiseOptions&, const RowMemory& memory, int64_t i) {
    return {memory.value<F>(0, i), memory.value<F>(1, i), memory.stat<F>(0, i), memory.stat<F>(1, i),
            memory.stat<F>(2, i)};
  }
  // x scale - b, rounded once, since the product is exact; by one instruction where there is one.
  TR_HD static F scaled_less(F x, F scale, F b) {
#if defined(TR_DEVICE_F16)
    return fma_of(x, scale, -b);
#else
    return x * scale - b;
#endif
  }
  template <class State, class Read>
  TR_HD static Row row(const State&, int64_t n, const Given& given, const RowwiseOptions& options, Read) {
    constexpr F kFar = F(sizeof(F) == 4 ? 0x1p64 : 0x1p512);
    const double d = Moments<F>::divisor(n, options);
    const F c = given.to_mean / F(n);
    if (!options.root) return {given.high, given.low, F(double(given.g) * (2.0 / d)), c, F(1)};
    F high = given.high, low = given.low, sd = given.root, scale = F(1);
    if (sd > kFar || (sd > 0 && sd < F(1) / kFar)) {
      TR_RARE_PATH;
      scale = sd > kFar ? F(1) / kFar : kFar;
      high = high * scale, low = low * scale, sd = sd * scale;
    }
    return {high, low, sd == 0 ? F(0) : F(double(given.g) / (double(sd) * d)), c, scale};
  }
  TR_HD static F map(const F* x, F, F, int64_t, const Row& row) {
    return fma_of(scaled_less(x[0], row.scale, row.high) - row.low, row.k, row.c);
  }
};

// ---- norms -----------------------------------------------------------------------------------------------------------

// Statistics: the reciprocal of the root of the mean square.
template <class F> struct RmsNorm : SummedOp<F, 1> {
  using OfOne = RmsNorm;
  using typename SummedOp<F, 1>::State;
  static constexpr bool kWeights = true, kFills = true;
  static constexpr int kStats = 1;
  struct Row { F r; };
  template <class S, class G> TR_HD static void step(F* sums, const F* x, F, const S&, const G&) {
    sums[0] = fma_of(x[0], x[0], sums[0]);
  }
  template <class G, class Read>
  TR_HD static Row row(const State& s, int64_t n, const G&, const RowwiseOptions& options, Read) {
    return {F(1) / root(divided(s.sum[0], n) + F(options.epsilon))};
  }
  TR_HD static void write(const Row& row, const RowMemory& memory, int64_t i) { memory.set_stat(0, i, row.r); }
  TR_HD static F map(const F* x, F weight, F, int64_t, const Row& row) { return (x[0] * row.r) * weight; }
};

// Of the sum of two tensors.
template <class F> struct RmsNormSum : RmsNorm<F> { static constexpr bool kAdds = true; };

template <class F> struct RmsNormGradient : SummedOp<F, 1> {  // of g and x
  using typename SummedOp<F, 1>::State;
  static constexpr bool kWeights = true, kFills = true;
  static constexpr int kInputs = 2, kStats = 1;
  struct Given { F r; };
  struct Row { F r, b; };
  TR_HD static Given given(const RowwiseOptions&, const RowMemory& memory, int64_t i) { return {memory.stat<F>(0, i)}; }
  template <class S> TR_HD static void step(F* sums, const F* x, F weight, const S&, const Given& given) {
    sums[0] = fma_of(x[0] * weight, x[1] * given.r, sums[0]);
  }
  template <class Read>
  TR_HD static Row row(const State& s, int64_t n, const Given& given, const RowwiseOptions&, Read) {
    return {given.r, divided(s.sum[0], n)};
  }
  TR_HD static F map(const F* x, F weight, F, int64_t, const Row& row) {
    return fma_of(-(x[1] * row.r), row.b, x[0] * weight) * row.r;
  }
};

// Statistics: the mean's two parts, the reciprocal of the standard deviation.
template <class F> struct LayerNorm : OfMoments<F> {
  using OfOne = LayerNorm;
  using typename OfMoments<F>::State;
  static constexpr bool kWeights = true, kBiases = true;
  static constexpr int kStats = 3;
  struct Row { F high, low, r; };
  template <class G, class Read>
  TR_HD static Row row(const State& s, int64_t n, const G&, const RowwiseOptions& options, Read) {
    const auto mean = OfMoments<F>::mean(s);
    return {mean.high, mean.low, OfMoments<F>::reciprocal(s, divided(s.squares, n), options.epsilon)};
  }
  TR_HD static void write(const Row& row, const RowMemory& memory, int64_t i) {
    memory.set_stat(0, i, row.high);
    memory.set_stat(1, i, row.low);
    memory.set_stat(2, i, row.r);
  }
  TR_HD static F normal(F x, const Row& row) { return ((x - row.high) - row.low) * row.r; }
  TR_HD static F map(const F* x, F weight, F bias, int64_t, const Row& row) {
    return fma_of(normal(x[0], row), weight, bias);
  }
};

template <class F> struct LayerNormSum : LayerNorm<F> { static constexpr bool kAdds = true; };

template <class F> struct LayerNormGradient : SummedOp<F, 2> {  // of g and x
  using typename SummedOp<F, 2>::State;
  static constexpr bool kWeights = true;
  static constexpr int kInputs = 2, kStats = 3;
  using Given = typename LayerNorm<F>::Row;
  struct Row {
    Given given;
    F a, b;
  };
  TR_HD static Given given(const RowwiseOptions&, const RowMemory& memory, int64_t i) {
    return {memory.stat<F>(0, i), memory.stat<F>(1, i), memory.stat<F>(2, i)};
  }
  template <class S> TR_HD static void step(F* sums, const F* x, F weight, const S&, const Given& given) {
    const F g = x[0] * weight;
    sums[0] = sums[0] + g;
    sums[1] = fma_of(g, LayerNorm<F>::normal(x[1], given), sums[1]);
  }
  template <class Read>
  TR_HD static Row row(const State& s, int64_t n, const Given& given, const RowwiseOptions&, Read) {
    return {given, divided(s.sum[0], n), divided(s.sum[1], n)};
  }
  TR_HD static F map(const F* x, F weight, F, int64_t, const Row& row) {
    return fma_of(-LayerNorm<F>::normal(x[1], row.given), row.b, x[0] * weight - row.a) * row.given.r;
  }
};

// ---- gradients of weights and biases: columns, summed over rows ------------------------------------------------------

// The position is the row, the statistics are its. Of RmsNorm the mean is +0, which changes no bit of a product.
template <class F, bool kCentered> struct WeightSums {
  struct Given { F high, low, r; };
  TR_HD static Given given(const RowMemory& memory, int64_t row) {
    if constexpr (kCentered) return {memory.stat<F>(0, row), memory.stat<F>(1, row), memory.stat<F>(2, row)};
    else return {F(0), F(0), memory.stat<F>(0, row)};
  }
  // The elements g and x of a row, added to the sums for the weight and for the bias.
  TR_HD static void step(F& to_weight, F& to_bias, F g, F x, const Given& given) {
    const F normal = kCentered ? ((x - given.high) - given.low) * given.r : x * given.r;
    to_weight = fma_of(g, normal, to_weight);
    to_bias = to_bias + g;
  }
};

}  // namespace TR_ISA
}  // namespace torchreduce
