// Row-wise ops (ops/rowwise.h), on the CPU. A task takes blocks of rows, leaf by leaf. Lanes go across rows that lie
// side by side; of other rows along each. What is done once a row has lanes across rows either way. Of few long rows
// threads share the leaves.
#pragma once
#include "cpu/cpu.h"
#include "cpu/lanes.h"
#include "cpu/row_lanes.h"
#include "plan/rowwise_call.h"

namespace torchreduce {
inline namespace TR_ISA {

constexpr int64_t kBlockResidues = 4096;  // of a block with lanes across rows
constexpr int64_t kMostTerms = 1 << 18;   // exponentials that a task keeps between the looks
constexpr int64_t kLeavesToShare = 16;    // of a row, from which on threads share it

struct Plus {
  template <class V> TR_HD static V combine(V left, V right) { return left + right; }
};
struct Larger {  // first_combine of vectors
  template <class V> TR_HD static V combine(V left, V right) { return (left >= right) | (left != left) ? left : right; }
};

template <template <class> class Op, class F> struct RowwiseRows {
  using O = Op<F>;
  using State = typename O::State;
  using Given = typename O::Given;
  struct Read {  // of the one element that an op reads of a row: that at the label
    F element;
    TR_HD F operator()(int64_t) const { return element; }
  };
  using Row = std::decay_t<decltype(O::row(std::declval<State>(), 0, std::declval<Given>(), RowwiseOptions(), Read()))>;
  using At = std::decay_t<decltype(O::at(std::declval<Row>(), std::declval<State>()))>;
  using Seen = decltype(O::seen(F(), 0, std::declval<Given>()));
  static constexpr int kInputs = O::kInputs, kReads = torchreduce::kReads<O>, kSums = O::kSums, kStats = O::kStats;
  static constexpr bool kLooks = kSums > 0;
  static constexpr bool kGradient = kInputs == 2 || !kLooks;  // the statistics and values are those given
  static constexpr bool kLabels = requires(Given given) { given.label; };
  static constexpr bool kLabelled = requires(Given given) { given.valid; };  // it reads the element there
  // It has sums of exponentials. Of rows that are near (ops/rowwise.h, Exponential) settle() needs no exponential:
  // lanes would compute one of the least argument, and multiplications with subnormal results take some 150 cycles on
  // x86.
  static constexpr bool kExponentials = requires(State state) { state.n == O::E::kFar; };
  static constexpr bool kAsGiven = std::is_base_of_v<MappedOp<F>, O> && std::is_same_v<At, Given>;
  // Of a block with lanes along rows. 2048 with their results stay in a first cache. Sums of exponentials gain more
  // from several rows in a block: settle() waits for divisions and logarithms of all rows at once.
  static constexpr int64_t kBlockElements = kExponentials ? 4096 : 2048;
  static constexpr int kWide = kLanes<F>, kHalf = kWide / 2;  // lanes
  static constexpr int64_t kAccumulators = kBlockResidues + kFoldLanes<F> + kWide;

  const RowwiseCall& call;
  const bool across;
  const int64_t length, leaves, most;          // `most`: rows of a block
  int64_t readable[2];                         // elements of each input, from its first one on
  const F *weight = nullptr, *bias = nullptr;  // of all positions and kWide more, if the op has such
  State* shared_states = nullptr;              // [rows][leaves], where threads share rows
  bool out_of_memory = false;

  RowwiseRows(const RowwiseCall& c, bool lanes_across)
      : call(c),
        across(lanes_across),
        length(c.layout.length),
        leaves(ceil_div(length, kLeaf)),
        most(most_rows()),
        readable{last_offset(c.layout, c.layout.in) + 1, last_offset(c.layout, c.more_strides[0]) + 1} {}
  int64_t most_rows() const {
    if (!across && leaves > 1) return 1;
    const int64_t slots = slots_of(length),
                  rows = across ? kBlockResidues / least(slots, kResidues) : kBlockElements / slots;
    return rows < 1 ? 1 : least(rows, kMostRows);
  }
  TR_HD static int64_t slots_of(int64_t count) {
    return count > 1 ? int64_t(2) << (63 - __builtin_clzll(uint64_t(count - 1))) : 1;
  }

  TR_HD void fail() { __atomic_store_n(&out_of_memory, true, __ATOMIC_RELAXED); }
  const Layout& layout() const { return call.layout; }
  const int64_t (&strides(int input) const)[kMaxDims] { return input == 0 ? layout().in : call.more_strides[0]; }
  // From a row of a block to the next one.
  int64_t row_step(const int64_t (&stride)[kMaxDims]) const { return layout().kept ? stride[layout().kept - 1] : 0; }

  // A task's memory. Elements, terms and results of a leaf of a block: of position i of row r at i * lanes + r, or with
  // lanes along rows at r * count + i, where up to kWide more are written after the last.
  struct Memory {
    F* copies[kReads];
    F* results;
    F* terms;       // of all leaves; null if they are made again
    F* acc;         // residues of each sum, kAccumulators apart: [slots][lanes] or [rows][slots]
    State* states;  // [rows][leaves]
  };
  int64_t block_elements() const { return (across ? most * least(length, kLeaf) : kBlockElements) + 2 * kWide; }
  int64_t kept_terms() const {
    const int64_t terms = leaves * block_elements();
    return O::kTerm && !shared_states && terms <= kMostTerms ? terms : 0;
  }
  int64_t bytes() const {
    return (kReads + 1) * Carver::bytes<F>(block_elements()) + Carver::bytes<F>(kept_terms()) +
           kSums * Carver::bytes<F>(kAccumulators) + Carver::bytes<State>(most * leaves);
  }
  Memory carve(char* data) const {
    Carver carver{data};
    Memory m;
    for (F*& copy : m.copies) copy = carver.take<F>(block_elements());
    m.results = carver.take<F>(block_elements());
    m.terms = kept_terms() ? carver.take<F>(kept_terms()) : nullptr;
    m.acc = carver.take<F>(kSums * kAccumulators);
    m.states = carver.take<State>(most * leaves);
    return m;
  }

  // A leaf's elements, in place or copies.
  struct Elements {
    const F* at;
    int64_t pitch;  // from a row to the next one or, with lanes across rows, from a position
    template <bool kAcross> TR_HD const F* element(int64_t r, int64_t i) const {
      return at + (kAcross ? i * pitch + r : r * pitch + i);
    }
  };
  // Rows [row, row + rows), which lie at equal distances, and a leaf of them. `lanes`: rows and what fills vectors up,
  // which means nothing.
  struct Block {
    const Memory& m;
    int64_t row, rows, lanes;
    int64_t from, count;  // the leaf's positions
    Elements x[kReads];
    RowLanes<Given> given;
    RowLanes<Seen> seen;
    RowLanes<At> at;
    F first[kMostRows], totals[kLooks ? kSums : 1][kMostRows];  // what the looks found
    F stats[kStats ? kStats : 1][kMostRows], values[3][kMostRows];
    int64_t labels[kMostRows];
    bool taken = false;  // there are labels; each is a class, and not the ignored one

    Block(const Memory& memory, int64_t first_row, int64_t count_rows)
        : m(memory), row(first_row), rows(count_rows), lanes(ceil_div(count_rows, kWide) * kWide) {}
    // What has one element a row, of this block.
    TR_HD RowMemory memory(const RowMemory& all) {
      constexpr Dtype d = DtypeOf<F>::value;
      return {stats,  kMostRows,         {values[0], values[1], values[2]}, {d, d, d},
              labels, all.class_weights, all.class_weights_dtype,           all.classes};
    }
    // From a row's terms, or a position's, to the next ones: vectors do not overlap.
    template <bool kAcross> TR_HD int64_t term_pitch() const {
      return kAcross ? lanes : ceil_div(count, kWide) * kWide;
    }
  };
  // body(r) for all lanes.
  template <class Body> TR_HD static void each_lane(int64_t lanes, Body body) {
    for (int64_t first = 0; first < lanes; first += kWide)
#pragma omp simd
      for (int j = 0; j < kWide; ++j) body(first + j);
  }
  // body(r, i, kN) for vectors of lanes that start at row r, position i, until all of `count` positions are taken; with
  // lanes along rows there may be some behind them.
  template <bool kAcross, class Body> TR_HD static void each_vector(const Block& b, int64_t count, Body body) {
    constexpr std::integral_constant<int, kWide> wide;
    const int64_t rows = kAcross ? b.lanes : b.rows;
    if constexpr (kAcross) {
      for (int64_t r = 0; r < rows; r += kWide)
        for (int64_t i = 0; i < count; ++i) body(r, i, wide);
    } else {
      for (int64_t r = 0; r < rows; ++r) {
        int64_t i = 0;
        for (; i + kHalf < count; i += kWide) body(r, i, wide);
        if (i < count) body(r, i, std::integral_constant<int, kHalf>());
      }
    }
  }

  // ---- between memory and blocks -------------------------------------------------------------------------------------

  // run(first position of the leaf, offset from the row's start, stride, count) for each run of positions of a leaf at
  // equal distances.
  template <class Run> void each_run(const int64_t (&stride)[kMaxDims], const Block& b, Run run) const {
    const Layout& l = layout();
    const int last = l.kept + l.reduced - 1;
    const int64_t step = l.reduced ? stride[last] : 1, inner = l.reduced ? l.size[last] : 1;
    for (int64_t i = 0; i < b.count;) {
      const int64_t here = least(b.count - i, inner - (b.from + i) % inner);
      run(i, position_offset(l, stride, b.from + i), step, here);
      i += here;
    }
  }
  // The same for each run of what lies in one block of memory, there and in the block: run(offset there, stride, count,
  // place in the block).
  template <class Run> void each_piece(const int64_t (&stride)[kMaxDims], const Block& b, Run run) const {
    const Layout& l = layout();
    const int64_t start = row_offset(l, stride, b.row), step = row_step(stride);
    const bool even = l.reduced <= 1 && (l.reduced == 0 || stride[l.kept] == 1);
    if (!across && even && (b.rows == 1 || step == b.count)) return run(start + b.from, 1, b.rows * b.count, 0);
    each_run(stride, b, [&](int64_t i, int64_t offset, int64_t along, int64_t count) {
      if (across)
        for (int64_t j = 0; j < count; ++j) run(start + offset + j * along, step, b.rows, (i + j) * b.lanes);
      else
        for (int64_t r = 0; r < b.rows; ++r) run(start + r * step + offset, along, count, r * b.count + i);
    });
  }
  void at_leaf(int64_t leaf, Block& b) const {
    b.from = leaf * kLeaf;
    b.count = least(kLeaf, length - b.from);
  }
  void bring(int64_t leaf, Block& b) const {
    at_leaf(leaf, b);
    const Layout& l = layout();
    for (int k = 0; k < kReads; ++k) {
      const auto& stride = strides(k);
      const int64_t step = row_step(stride), along = l.reduced ? stride[l.kept] : 1;
      const int64_t start = row_offset(l, stride, b.row) + b.from * along;
      const int64_t end =
          start + (across ? (b.count - 1) * along + b.lanes : (b.rows - 1) * step + ceil_div(b.count, kWide) * kWide);
      if (call.dtype == DtypeOf<F>::value && l.reduced <= 1 && (across ? step : along) == 1 && end <= readable[k]) {
        const F* const at = static_cast<const F*>(call.in[k]) + start;
        b.x[k] = {at, across ? along : step};
        continue;
      }
      b.x[k] = {b.m.copies[k], across ? b.lanes : b.count};
      const Source source{call.in[k], call.dtype, call.accumulator};
      each_piece(stride, b, [&](int64_t offset, int64_t apart, int64_t count, int64_t place) {
        convert_run(source, offset, apart, count, b.m.copies[k] + place);
      });
    }
    if constexpr (O::kAdds) add(b);
  }
  // The first tensor's elements become the sums, rounded to their type.
  void add(Block& b) const {
    const auto sums = [&](auto round) {
      const int64_t outer = across ? b.count : b.rows, inner = across ? b.lanes : b.count;
      for (int64_t o = 0; o < outer; ++o) {
        const F *x = b.x[0].at + o * b.x[0].pitch, *y = b.x[1].at + o * b.x[1].pitch;
        F* const to = b.m.copies[0] + o * inner;
        for (int64_t i = 0; i < inner; ++i) to[i] = round(x[i] + y[i]);
      }
    };
    if (call.dtype == Dtype::F16) sums([](F x) { return convert<F>(round_to<F16>(x)); });
    else if (call.dtype == Dtype::BF16) sums([](F x) { return convert<F>(round_to<BF16>(x)); });
    else sums([](F x) { return x; });
    b.x[0] = {b.m.copies[0], across ? b.lanes : b.count};
  }
  // Where map() writes a leaf: in place if vectors of results are all in their rows there, else the task's memory.
  struct Results {
    F* to;
    int64_t pitch;
    bool in_place;
  };
  Results results_of(const Block& b) const {
    const Layout& l = layout();
    const int64_t step = row_step(l.out), along = l.reduced ? l.out[l.kept] : 1;
    if (call.out_dtype == DtypeOf<F>::value && l.reduced <= 1 && (across ? step : along) == 1 &&
        (across ? b.rows == b.lanes : b.count % kHalf == 0))
      return {static_cast<F*>(call.out) + row_offset(l, l.out, b.row) + b.from * along, across ? along : step, true};
    return {b.m.results, across ? b.lanes : b.count, false};
  }
  void put(const Block& b, const F* results, Dtype dtype, void* out) const {
    each_piece(layout().out, b, [&](int64_t offset, int64_t apart, int64_t count, int64_t place) {
      store_run(dtype, out, offset, apart, count, results + place);
    });
  }
  // What the rows come with.
  TR_APART void open(Block& b) const {
    const RowMemory& all = call.memory;
    const int64_t start = row_offset(layout(), call.more_strides[1], b.row), step = row_step(call.more_strides[1]);
    if constexpr (kGradient && kStats > 0) {
      for (int k = 0; k < kStats; ++k)
        convert_run(Source{all.stats, DtypeOf<F>::value, call.accumulator}, k * all.plane + start, step, b.rows,
                    b.stats[k]);
      for (int k = 0; k < 3; ++k) {
        if (all.values[k])
          convert_run(Source{all.values[k], all.dtypes[k], call.accumulator}, start, step, b.rows, b.values[k]);
        else
          for (F& value : b.values[k]) value = F(-0.0);
      }
    }
    if constexpr (kLabels) {
      if (step == 1) __builtin_memcpy(b.labels, all.labels + start, size_t(b.rows) * sizeof(int64_t));
      else
        for (int64_t r = 0; r < b.rows; ++r) b.labels[r] = all.labels[start + r * step];
      const uint64_t classes = uint64_t(all.classes);
      const int64_t ignored = call.options.ignored;
      uint64_t others = 0;
      for (int64_t r = 0; r < b.rows; ++r)
        others += uint64_t(uint64_t(b.labels[r]) >= classes) + uint64_t(b.labels[r] == ignored);
      b.taken = others == 0;
      for (int64_t r = b.rows; r < b.lanes; ++r) b.labels[r] = 0;
    }
    RowMemory memory = b.memory(all);
    RowwiseOptions options = call.options;
    const auto give = [&] __attribute__((always_inline)) {
      each_lane(b.lanes,
                [&](int64_t r) __attribute__((always_inline)) { b.given.set(r, O::given(options, memory, r)); });
    };
    // Repeated as constants, so that the compiler drops the branches, and the loop becomes vectors.
    if (kLabels && !memory.class_weights && options.smoothing == 0) {
      memory.class_weights = nullptr;
      options.smoothing = 0;
      give();
    } else {
      give();
    }
  }
  // What they came to.
  void close(const Block& b) const {
    if constexpr (!kGradient) {
      const RowMemory& all = call.memory;
      const int64_t start = row_offset(layout(), call.more_strides[1], b.row), step = row_step(call.more_strides[1]);
      for (int k = 0; k < kStats; ++k)
        store_run(DtypeOf<F>::value, all.stats, k * all.plane + start, step, b.rows, b.stats[k]);
      for (int k = 0; k < 3; ++k)
        if (all.values[k]) store_run(all.dtypes[k], all.values[k], start, step, b.rows, b.values[k]);
    }
  }
  bool skips_all(const Block& b) const {
    for (int64_t r = 0; r < b.rows; ++r)
      if (!O::skips(b.given.get(r))) return false;
    return true;
  }

  // ---- a leaf of a block ---------------------------------------------------------------------------------------------

  // totals[k][r]: the sums of row r in canonical order. step(sums, elements, r, i, term) adds those of position i.
  template <bool kAcross, int kCount, class Step>
  TR_HD void sum(const Block& b, F* terms, F (*totals)[kMostRows], Step step) const {
    const int64_t once = least(b.count, kResidues), slots = kAcross ? once : slots_of(once);
    const int64_t pitch = kAcross ? b.lanes : slots, term_pitch = b.template term_pitch<kAcross>();
    F* const residues = b.m.acc;
    Elements elements[kInputs];
    for (int k = 0; k < kInputs; ++k) elements[k] = b.x[k];
    const auto vectors = [&](auto fresh, int64_t start, int64_t count) __attribute__((always_inline)) {
      each_vector<kAcross>(b, count, [&](int64_t r, int64_t i, auto width) __attribute__((always_inline)) {
        constexpr int kN = decltype(width)::value;
        using Lanes = F[kN];
        Lanes x[kInputs], sums[kCount], before[kCount], term{};
        for (int k = 0; k < kInputs; ++k)
          __builtin_memcpy(x[k], elements[k].template element<kAcross>(r, start + i), sizeof x[k]);
        F* const acc = residues + (kAcross ? i * pitch + r : r * pitch + i);
        for (int k = 0; k < kCount; ++k) {
          if (fresh)
            for (F& zero : before[k]) zero = F(-0.0);
          else __builtin_memcpy(before[k], acc + k * kAccumulators, sizeof before[k]);
        }
        const int64_t rest = count - i;
#pragma GCC unroll 1
        for (int j = 0; j < kN; ++j) {
          F element[kInputs], added[kCount];
          for (int k = 0; k < kInputs; ++k) element[k] = x[k][j];
          for (int k = 0; k < kCount; ++k) added[k] = before[k][j];
          step(added, element, kAcross ? r + j : r, start + (kAcross ? i : i + j), term[j]);
          for (int k = 0; k < kCount; ++k) sums[k][j] = kAcross || fresh || j < rest ? added[k] : before[k][j];
        }
        for (int k = 0; k < kCount; ++k) __builtin_memcpy(acc + k * kAccumulators, sums[k], sizeof sums[k]);
        if (terms)
          __builtin_memcpy(terms + (kAcross ? (start + i) * term_pitch + r : r * term_pitch + start + i), term,
                           sizeof term);
      });
    };
    vectors(std::true_type(), 0, once);
    if constexpr (!kAcross)  // what lies behind the elements is absent
      for (int64_t r = 0; r < b.rows; ++r)
        for (int k = 0; k < kCount; ++k)
          for (int64_t i = once; i < slots; ++i) b.m.acc[k * kAccumulators + r * slots + i] = F(-0.0);
    for (int64_t start = kResidues; start < b.count; start += kResidues)
      vectors(std::false_type(), start, least(kResidues, b.count - start));
    for (int k = 0; k < kCount; ++k) {
      F* const acc = b.m.acc + k * kAccumulators;
      if constexpr (kAcross) {
        for (int64_t left = slots; left > 1; left = (left + 1) / 2) fold_positions(acc, left, b.lanes);
      } else {
        fold_pairs<Plus>(acc, b.rows * slots, __builtin_ctzll(uint64_t(slots)));
      }
      __builtin_memcpy(totals[k], acc, size_t(b.lanes) * sizeof(F));
    }
  }
  // One level of the tree.
  TR_HD static void fold_positions(F* acc, int64_t left, int64_t lanes) {
    for (int64_t i = 0; i < left / 2; ++i)
      each_lane(lanes, [&](int64_t r) __attribute__((always_inline)) {
        acc[i * lanes + r] = acc[2 * i * lanes + r] + acc[(2 * i + 1) * lanes + r];
      });
    if (left % 2)
      each_lane(lanes, [&](int64_t r)
                           __attribute__((always_inline)) { acc[left / 2 * lanes + r] = acc[(left - 1) * lanes + r]; });
  }
  // The greatest element of each row of a leaf. Returns true only if O::allows_fast() holds for every row; it may be
  // false where it does.
  template <bool kAcross> TR_HD bool greatest_of(Block& b) const {
    const Elements elements = b.x[0];
    F most[kWide], low[kWide];  // of all rows, NaN only in `most`
    for (int j = 0; j < kWide; ++j) {
      most[j] = -kInfinity<F>;
      low[j] = kInfinity<F>;
    }
    const auto take = [&](F* best, const F* x) __attribute__((always_inline)) {
#pragma GCC unroll 1
      for (int j = 0; j < kWide; ++j) {
        best[j] = greatest(best[j], x[j]);
        low[j] = x[j] < low[j] ? x[j] : low[j];
      }
    };
    const auto put = [&](const F* best, F* to) __attribute__((always_inline)) {
#pragma GCC unroll 1
      for (int j = 0; j < kWide; ++j) most[j] = greatest(most[j], best[j]);
      __builtin_memcpy(to, best, kWide * sizeof(F));
    };
    if constexpr (kAcross) {
      for (int64_t r = 0; r < b.lanes; r += kWide) {
        F best[kWide];
        for (F& x : best) x = -kInfinity<F>;
        for (int64_t i = 0; i < b.count; ++i) take(best, elements.template element<true>(r, i));
        put(best, b.first + r);
      }
    } else {
      F* const lanes = b.m.acc;  // [rows][kWide]
      for (int64_t r = 0; r < b.rows; ++r) {
        const F* const x = elements.template element<false>(r, 0);
        F best[kWide];
        for (int j = 0; j < kWide; ++j) {
          best[j] = j < b.count ? x[j] : -kInfinity<F>;
          low[j] = j < b.count && x[j] < low[j] ? x[j] : low[j];
        }
        for (int64_t i = kWide; i < b.count; i += kWide) take(best, x + least(i, b.count - kWide));  // some twice
        put(best, lanes + r * kWide);
      }
      fold_pairs<Larger>(lanes, b.rows * kWide, __builtin_ctz(kWide));
      __builtin_memcpy(b.first, lanes, size_t(b.rows) * sizeof(F));
    }
    if constexpr (kExponentials) {
      for (int j = 1; j < kWide; ++j) {
        most[0] = greatest(most[0], most[j]);
        low[0] = low[j] < low[0] ? low[j] : low[0];
      }
      return O::E::near(low[0]) && O::allows_fast(most[0], low[0]);  // and so near each row's greatest, between them
    }
    return false;
  }
  // `terms`: where they go.
  template <bool kAcross> TR_APART void look(Block& b, F* terms) const {
    [[maybe_unused]] bool fast = false;
    if constexpr (O::kFirst == First::Greatest) fast = greatest_of<kAcross>(b);
    if constexpr (O::kFirst == First::Sum)
      sum<kAcross, 1>(b, nullptr, &b.first,
                      [](F* sums, const F* x, int64_t, int64_t, F&)
                          __attribute__((always_inline)) { sums[0] = sums[0] + x[0]; });
    each_lane(b.lanes, [&](int64_t r) __attribute__((always_inline)) {
      b.seen.set(r, O::seen(b.first[r], int(b.count), b.given.get(r)));
    });
    if constexpr (kExponentials)
      if (fast)
        return sum<kAcross, kSums>(b, O::kTerm ? terms : nullptr, b.totals,
                                   [&](F* sums, const F* x, int64_t r, int64_t, [[maybe_unused]] F& term)
                                       __attribute__((always_inline)) {
                                         const auto seen = b.seen.get(r);
                                         if constexpr (O::kTerm) term = O::fast_term(x[0], seen);
                                         O::fast_step(sums, x, seen);
                                       });
    const F* const weights = O::kWeights ? weight + b.from : nullptr;
    sum<kAcross, kSums>(b, O::kTerm ? terms : nullptr, b.totals,
                        [&](F* sums, const F* x, int64_t r, int64_t i, [[maybe_unused]] F& term)
                            __attribute__((always_inline)) {
                              if constexpr (O::kTerm) {
                                term = O::term(x[0], b.seen.get(r));
                                sums[0] = sums[0] + term;
                              } else {
                                O::step(sums, x, O::kWeights ? weights[i] : F(1), b.seen.get(r), b.given.get(r));
                              }
                            });
  }
  const F* element(const Block& b, int64_t r, int64_t i) const {  // of input 0
    return across ? b.x[0].template element<true>(r, i) : b.x[0].template element<false>(r, i);
  }
  TR_HD State found(const Block& b, int64_t r) const {
    F totals[kSums];
    for (int k = 0; k < kSums; ++k) totals[k] = b.totals[k][r];
    return O::state(b.first[r], totals, int(b.count));
  }
  TR_HD F wanted_scale(const Block& b, int64_t r) const {
    F totals[kSums];
    for (int k = 0; k < kSums; ++k) totals[k] = b.totals[k][r];
    return O::rescale(totals, b.seen.get(r));
  }
  TR_APART State scaled_look(const Block& b, int64_t r, F scale) const {
    F scaled[kLeaf + kWide];
    for (int64_t i = 0; i < b.count; ++i) scaled[i] = *element(b, r, i) * scale;
    Block one(b.m, b.row + r, 1);
    one.from = b.from;
    one.count = b.count;
    one.x[0] = {scaled, 0};
    one.given.set(0, b.given.get(r));
    look<false>(one, nullptr);
    return O::scaled_back(found(one, 0), found(b, r), scale);
  }
  // The state of row r's leaf.
  State state_of(const Block& b, int64_t r) const {
    if constexpr (O::kScales)
      if (const F scale = wanted_scale(b, r); scale != F(1)) return scaled_look(b, r, scale);
    return found(b, r);
  }
  void look(Block& b, F* terms) const {
    if (across) look<true>(b, terms);
    else look<false>(b, terms);
  }

  // `terms`: what look() left. They may be where the results go, if those are of one row or lanes go across rows.
  // `kTaken`: no row is left out, and the elements at labels are not these: map_labelled() writes them.
  template <bool kAcross, bool kTaken> TR_APART void map(const Block& b, const F* terms, Results into) const {
    const F* const weights = O::kWeights ? weight + b.from : nullptr;
    const F* const biases = O::kBiases ? bias + b.from : nullptr;
    const int64_t from = b.from;
    Elements elements[kInputs];
    for (int k = 0; k < kInputs; ++k)
      elements[k] = O::kTerm ? Elements{terms, b.template term_pitch<kAcross>()} : b.x[k];
    each_vector<kAcross>(b, b.count, [&](int64_t r, int64_t i, auto width) __attribute__((always_inline)) {
      constexpr int kN = decltype(width)::value;
      F x[kInputs][kN], results[kN];
      for (int k = 0; k < kInputs; ++k)
        __builtin_memcpy(x[k], elements[k].template element<kAcross>(r, i), sizeof x[k]);
#pragma GCC unroll 1
      for (int j = 0; j < kN; ++j) {
        const int64_t row = kAcross ? r + j : r, p = kAcross ? i : i + j;
        const F w = O::kWeights ? weights[p] : F(1), v = O::kBiases ? biases[p] : F(-0.0);
        F element[kInputs], result;
        for (int k = 0; k < kInputs; ++k) element[k] = x[k][j];
        At at = b.at.get(row);
        int64_t position = from + p;
        if constexpr (kTaken) {
          at.ignored = false;
          at.label = -1;
          position = 0;
        }
        if constexpr (O::kTerm) result = O::map(element[0], w, v, position, at);
        else result = O::map(element, w, v, position, at);
        results[j] = canonical(result);
      }
      __builtin_memcpy(into.to + (kAcross ? i * into.pitch + r : r * into.pitch + i), results, sizeof results);
    });
  }
  // `terms`: those of the leaf if look() left them, else null.
  void map(Block& b, const F* terms) const {
    if constexpr (O::kTerm) {
      if (!terms) {
        if (across) make_terms<true>(b);
        else make_terms<false>(b);
        terms = b.m.results;
      }
    }
    const Results into = results_of(b);
    bool taken = kLabels;
    for (int64_t r = 0; r < b.rows && taken && !b.taken; ++r) taken = !O::skips(b.given.get(r));
    if (taken) map_labelled(b, into);
    else if (across) map<true, false>(b, terms, into);
    else map<false, false>(b, terms, into);
    if (!into.in_place) put(b, into.to, call.out_dtype, call.out);
    if constexpr (O::kAdds) put(b, b.x[0].at, call.dtype, call.sum);
  }
  // map() without labels, and then the elements at labels.
  void map_labelled(const Block& b, Results into) const {
    if constexpr (kLabels) {
      if (across) map<true, true>(b, nullptr, into);
      else map<false, true>(b, nullptr, into);
      F x[kMostRows] = {}, results[kMostRows];
      const auto at_labels = [&](auto* at, int64_t pitch, auto body) __attribute__((always_inline)) {
        const int64_t side = across ? 1 : pitch, along = across ? pitch : 1;
        for (int64_t r = 0; r < b.rows; ++r)
          if (const int64_t i = b.labels[r] - b.from; i >= 0 && i < b.count) body(r, at[i * along + r * side]);
      };
      at_labels(b.x[0].at, b.x[0].pitch, [&](int64_t r, const F& element) { x[r] = element; });
      each_lane(b.lanes, [&](int64_t r) __attribute__((always_inline)) {
        const At at = b.at.get(r);
        results[r] = canonical(O::map(x + r, F(1), F(-0.0), at.label, at));
      });
      at_labels(into.to, into.pitch, [&](int64_t r, F& element) { element = results[r]; });
    }
  }
  template <bool kAcross> TR_APART void make_terms(const Block& b) const {
    each_vector<kAcross>(b, b.count, [&](int64_t r, int64_t i, auto width) __attribute__((always_inline)) {
      F x[decltype(width)::value], terms[decltype(width)::value];
      __builtin_memcpy(x, b.x[0].template element<kAcross>(r, i), sizeof x);
#pragma GCC unroll 1
      for (int j = 0; j < decltype(width)::value; ++j) terms[j] = O::term(x[j], b.seen.get(kAcross ? r + j : r));
      const int64_t pitch = b.template term_pitch<kAcross>();
      __builtin_memcpy(b.m.results + (kAcross ? i * pitch + r : r * pitch + i), terms, sizeof terms);
    });
  }

  // ---- rows ------------------------------------------------------------------------------------------------------------

  TR_HD static bool takes(const Given& given) { return given.valid && !given.ignored; }
  // The element of row r at its label, if it has one; in the leaf if that is the row.
  F labelled(const Block& b, int64_t r) const {
    if constexpr (kLabelled) {
      const Given given = b.given.get(r);
      if (!takes(given)) return F(0);
      if (leaves == 1) return *element(b, r, given.label);
      const int64_t start = row_offset(layout(), layout().in, b.row + r);
      return load_as<F>(call.dtype, call.in[0], start + position_offset(layout(), given.label), false);
    }
    return F(0);
  }
  // The rows' states, merged.
  State merged(const Block& b, int64_t r, const State* states) const {
    State state = O::none();
    if (kLooks && leaves > 0 && !O::skips(b.given.get(r))) {
      TreeStack<State, 32> stack;
      const auto merge = [](const State& a, const State& b) { return O::merge(a, b); };
      for (int64_t leaf = 0; leaf < leaves; ++leaf) stack.push(states[leaf], merge);
      state = stack.total(O::none(), merge);
    }
    return state;
  }
  // `kTaken`: its label is a class, and not the one that is ignored.
  template <bool kTaken = false>
  TR_HD Row row_of(const Block& b, int64_t r, const State& state, const RowwiseOptions& options, F at_label) const {
    Given given = b.given.get(r);
    if constexpr (kTaken) {
      given.valid = true;
      given.ignored = false;
    }
    return O::row(state, length, given, options, Read{at_label});
  }
  // Of rows of one leaf: from the looks to what map() needs.
  TR_APART void settle(Block& b) const {
    if constexpr (kAsGiven) {
      b.at = b.given;
      return;
    }
    const RowMemory memory = b.memory(call.memory);
    const RowwiseOptions options = call.options;
    F at_label[kMostRows] = {};
    if constexpr (kLabelled) {
      const auto [at, pitch] = b.x[0];
      if (b.taken && across)
        for (int64_t r = 0; r < b.rows; ++r) at_label[r] = at[b.labels[r] * pitch + r];
      else
        for (int64_t r = 0; r < b.rows; ++r) at_label[r] = labelled(b, r);
    }
    const auto settle_row = [&]<bool kTaken>(int64_t r, const State& state) __attribute__((always_inline)) {
      const Row row = row_of<kTaken>(b, r, state, options, kLabelled ? at_label[r] : F(0));
      O::write(row, memory, r);
      if constexpr (O::kMaps) b.at.set(r, O::at(row, state));
    };
    const auto settle_all = [&]<bool kTaken, bool kNear>() __attribute__((always_inline)) {
      each_lane(b.lanes, [&](int64_t r) __attribute__((always_inline)) {
        if constexpr (kLooks) {
          State state = found(b, r);
          if constexpr (kNear) state.n = int(unsigned(state.n) << 4) >> 4;  // the same, and never kFar
          settle_row.template operator()<kTaken>(r, state);
        } else {
          settle_row.template operator()<kTaken>(r, O::none());
        }
      });
    };
    const auto settle_near = [&]<bool kTaken>() __attribute__((always_inline)) {
      if constexpr (kExponentials) {
        UintOf<F> most = 0;  // magnitude, NaN above all: compared as integers, a loop becomes vectors
        for (int64_t r = 0; r < b.rows; ++r) {
          const auto bits = bit_cast<UintOf<F>>(b.first[r]) << 1;
          most = bits > most ? bits : most;
        }
        if (O::E::near(bit_cast<F>(most >> 1))) return settle_all.template operator()<kTaken, true>();
      }
      settle_all.template operator()<kTaken, false>();
    };
    if (b.taken) settle_near.template operator()<kLabelled>();  // a loop over flags would not become vectors
    else settle_near.template operator()<false>();
    if constexpr (O::kScales)
      for (int64_t r = 0; r < b.rows; ++r)
        if (wanted_scale(b, r) != F(1)) settle_row.template operator()<false>(r, state_of(b, r));
  }
  F* terms_of(const Block& b, int64_t leaf) const { return b.m.terms ? b.m.terms + leaf * block_elements() : nullptr; }

  void take(int64_t row, int64_t rows, const Memory& m) const {
    Block b(m, row, rows);
    open(b);
    const bool reads = !skips_all(b);
    if (leaves == 1 || !kLooks) {
      if constexpr (kLooks) {
        at_leaf(0, b);
        if (reads) {
          bring(0, b);
          look(b, m.terms);
        }
      }
      settle(b);
      close(b);
      if constexpr (O::kMaps)
        for (int64_t leaf = 0; leaf < leaves; ++leaf) {
          if (!kLooks) bring(leaf, b);
          map(b, m.terms);
        }
      return;
    }
    if constexpr (kLooks) {
      for (int64_t leaf = 0; leaf < leaves && reads; ++leaf) {
        bring(leaf, b);
        look(b, m.terms ? terms_of(b, leaf) : m.results);
        for (int64_t r = 0; r < rows; ++r) m.states[r * leaves + leaf] = state_of(b, r);
      }
      Row of[kMostRows];
      const RowMemory memory = b.memory(call.memory);
      for (int64_t r = 0; r < rows; ++r) {
        of[r] = row_of(b, r, merged(b, r, m.states + r * leaves), call.options, labelled(b, r));
        O::write(of[r], memory, r);
      }
      close(b);
      if constexpr (O::kMaps)
        for (int64_t leaf = 0; leaf < leaves; ++leaf) {
          if (m.terms) at_leaf(leaf, b);
          else bring(leaf, b);
          for (int64_t r = 0; r < rows; ++r) at_state(b, r, of[r], m.states[r * leaves + leaf]);
          map(b, terms_of(b, leaf));
        }
    }
  }
  void at_state(Block& b, int64_t r, const Row& row, const State& state) const {
    b.at.set(r, O::at(row, state));
    if constexpr (O::kTerm) b.seen.set(r, O::seen(state.l, int(b.count), b.given.get(r)));
  }

  // ---- tasks -----------------------------------------------------------------------------------------------------------

  struct Chunked {
    RowwiseRows* self;
    ColumnChunks chunks;
  };
  static void chunks_body(void* context, int64_t begin, int64_t end) {
    auto& task = *static_cast<Chunked*>(context);
    RowwiseRows& self = *task.self;
    Scratch scratch(self.bytes());
    if (!scratch.data) return self.fail();
    const Memory m = self.carve(scratch.data);
    task.chunks.each(begin, end, [&](int64_t row, RowStart, int64_t count) { self.take(row, count, m); });
  }
  // Leaves, counted through all rows.
  template <bool kLook> static void leaves_body(void* context, int64_t begin, int64_t end) {
    RowwiseRows& self = *static_cast<RowwiseRows*>(context);
    Scratch scratch(self.bytes());
    if (!scratch.data) return self.fail();
    const Memory m = self.carve(scratch.data);
    for (int64_t unit = begin; unit < end;) {
      const int64_t row = unit / self.leaves, first = row * self.leaves;
      Block b(m, row, 1);
      self.open(b);
      Row of;
      if constexpr (!kLook)
        of = self.row_of(b, 0, self.merged(b, 0, self.shared_states + first), self.call.options, self.labelled(b, 0));
      for (; unit < end && unit < first + self.leaves; ++unit) {
        if (kLook && O::skips(b.given.get(0))) continue;
        self.bring(unit - first, b);
        if constexpr (kLook) {
          self.look(b, m.results);
          self.shared_states[unit] = self.state_of(b, 0);
        } else {
          self.at_state(b, 0, of, self.shared_states[unit]);
          self.map(b, nullptr);
        }
      }
    }
  }

  // False where memory is out.
  bool run(int64_t threads, cpu::ParallelFor parallel_for) {
    const Layout& l = layout();
    const auto spread = [&](int64_t tasks, void (*body)(void*, int64_t, int64_t), void* context) {
      if (threads > 1 && tasks > 1) parallel_for(tasks, body, context);
      else body(context, 0, tasks);
    };
    if (across || !kLooks || l.rows >= threads || leaves < kLeavesToShare) {
      Chunked task{this, ColumnChunks(l, most, threads)};
      spread(task.chunks.count(), chunks_body, &task);
    } else if constexpr (kLooks) {
      Scratch states(l.rows * leaves * int64_t(sizeof(State)));
      if (!states.data) return false;
      shared_states = reinterpret_cast<State*>(states.data);
      spread(l.rows * leaves, leaves_body<true>, this);
      if (out_of_memory) return false;
      const Memory none{};
      for (int64_t row = 0; row < l.rows; ++row) {
        Block b(none, row, 1);
        open(b);
        O::write(row_of(b, 0, merged(b, 0, shared_states + row * leaves), call.options, labelled(b, 0)),
                 b.memory(call.memory), 0);
        close(b);
      }
      if constexpr (O::kMaps) spread(l.rows * leaves, leaves_body<false>, this);
    }
    return !out_of_memory;
  }
};

}  // namespace TR_ISA
}  // namespace torchreduce
