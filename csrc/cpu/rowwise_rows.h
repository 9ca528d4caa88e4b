// Row-wise ops (ops/rowwise.h), on the CPU. Each leaf is brought into contiguous memory as F, where loops
// over it become vectors. Rows that lie side by side are taken some at a time, so that whole cache lines are used; of
// few long rows threads share the leaves.
#pragma once
#include "cpu/cpu.h"
#include "cpu/lanes.h"
#include "plan/rowwise_call.h"

namespace torchreduce {
inline namespace TR_ISA {

constexpr int64_t kRowsTogether = 16;    // rows that lie side by side
constexpr int64_t kPitch = kLeaf + 16;   // from a row of those to the next one: no multiple of 4 KiB
constexpr int64_t kMostTerms = 1 << 18;  // exponentials that a task keeps between the looks
constexpr int64_t kLeavesToShare = 16;   // of a row, from which on threads share it

struct Plus {
  template <class V> TR_HD static V combine(V left, V right) { return left + right; }
};

// The tree over the residues of `count` positions, whose absent ones are -0.0.
template <class F> F tree_of_residues(F (&acc)[kResidues], int64_t count) {
  int levels = 0;
  while ((1 << levels) < least(count, kResidues)) ++levels;
  fold_pairs<Plus>(acc, int64_t(1) << levels, levels);
  return acc[0];
}

template <First kFirst, class F> F first_look(const F* x, int64_t count) {
  constexpr int64_t kAtOnce = kFirst == First::Sum ? kResidues : 64;
  F acc[kAtOnce];
  for (F& a : acc) a = first_absent<kFirst, F>();
  for (int64_t first = 0; first < count; first += kAtOnce) {
    const int64_t rest = least(kAtOnce, count - first);
    for (int64_t i = 0; i < rest; ++i) acc[i] = first_combine<kFirst>(acc[i], x[first + i]);
  }
  if constexpr (kFirst == First::Sum) return tree_of_residues(acc, count);
  for (int64_t i = 1; i < least(kAtOnce, count); ++i) acc[0] = first_combine<kFirst>(acc[0], acc[i]);
  return acc[0];
}

template <template <class> class Op, class F> struct RowwiseRows {
  using O = Op<F>;
  using State = typename O::State;
  using Given = typename O::Given;
  static constexpr int kInputs = O::kInputs, kReads = torchreduce::kReads<O>;
  static constexpr bool kLooks = O::kSums > 0;

  const RowwiseCall& call;
  const int64_t leaves = ceil_div(call.layout.length, kLeaf);
  const F *weight = nullptr, *bias = nullptr;  // of all positions, if the op has such
  State* shared_states = nullptr;              // [rows][leaves], where threads share rows
  bool out_of_memory = false;

  TR_HD void fail() { __atomic_store_n(&out_of_memory, true, __ATOMIC_RELAXED); }
  const Layout& layout() const { return call.layout; }
  const int64_t (&strides(int input) const)[kMaxDims] { return input == 0 ? layout().in : call.more_strides[0]; }
  // The offset of what row `row` has one of.
  int64_t offset_of_row(int64_t row) const { return row_offset(layout(), call.more_strides[1], row); }

  // A task's memory; `together`: rows that it takes at a time.
  struct Memory {
    F* copies[kReads];   // [together][kPitch] each
    const F* x[kReads];  // where the leaf is: a copy, or of one row in place
    F* results;          // [together][kPitch]
    F* terms;            // [together][leaves][kLeaf]; null if they are made again
    State* states;       // [together][leaves]
  };
  int64_t kept_terms(int64_t together) const {
    const int64_t terms = together * leaves * kLeaf;
    return O::kTerm && !shared_states && terms <= kMostTerms ? terms : 0;
  }
  int64_t bytes(int64_t together) const {
    return (kReads + 1) * Carver::bytes<F>(together * kPitch) + Carver::bytes<F>(kept_terms(together)) +
           Carver::bytes<State>(together * leaves);
  }
  Memory carve(char* data, int64_t together) const {
    Carver carver{data};
    Memory m;
    for (F*& copy : m.copies) copy = carver.take<F>(together * kPitch);
    m.results = carver.take<F>(together * kPitch);
    m.terms = kept_terms(together) ? carver.take<F>(kept_terms(together)) : nullptr;
    m.states = carver.take<State>(together * leaves);
    return m;
  }

  // ---- between memory and leaves -------------------------------------------------------------------------------------

  // run(first position of the leaf, offset from the row's start, stride, count) for each run of positions of a leaf at
  // equal distances.
  template <class Run> void each_run(const int64_t (&stride)[kMaxDims], int64_t leaf, Run run) const {
    const Layout& l = layout();
    const int last = l.kept + l.reduced - 1;
    const int64_t step = l.reduced ? stride[last] : 1, inner = l.reduced ? l.size[last] : 1;
    const int64_t first = leaf * kLeaf, count = least(kLeaf, l.length - first);
    for (int64_t i = 0; i < count;) {
      const int64_t here = least(count - i, inner - (first + i) % inner);
      run(i, position_offset(l, stride, first + i), step, here);
      i += here;
    }
  }
  void bring(int64_t row, int64_t together, int64_t leaf, Memory& m) const {
    for (int k = 0; k < kReads; ++k) {
      const Source source{call.in[k], call.dtype, call.accumulator};
      const int64_t start = row_offset(layout(), strides(k), row),
                    across = layout().kept ? strides(k)[layout().kept - 1] : 0;
      m.x[k] = m.copies[k];
      each_run(strides(k), leaf, [&](int64_t i, int64_t offset, int64_t step, int64_t count) {
        F* const to = m.copies[k] + i;
        if (together > 1) {
          F side[kRowsTogether];
          for (int64_t j = 0; j < count; ++j) {
            const F* const from = fetch<F, true>(source, start + offset + j * step, across, together, side);
            for (int64_t r = 0; r < together; ++r) to[r * kPitch + j] = from[r];
          }
          return;
        }
        const F* const from = fetch<F, true>(source, start + offset, step, count, to);
        if (from == to) return;
        if (i == 0 && count == least(kLeaf, layout().length - leaf * kLeaf)) m.x[k] = from;
        else __builtin_memcpy(to, from, size_t(count) * sizeof(F));
      });
    }
    if constexpr (O::kAdds) add(together, least(kLeaf, layout().length - leaf * kLeaf), m);
  }
  // The first tensor's elements become the sums, rounded to their type.
  void add(int64_t together, int64_t count, Memory& m) const {
    const auto sums = [&](auto round) {
      for (int64_t r = 0; r < together; ++r) {
        const F *a = m.x[0] + r * kPitch, *b = m.x[1] + r * kPitch;
        F* const to = m.copies[0] + r * kPitch;
        for (int64_t i = 0; i < count; ++i) to[i] = round(a[i] + b[i]);
      }
    };
    if (call.dtype == Dtype::F16) sums([](F x) { return convert<F>(round_to<F16>(x)); });
    else if (call.dtype == Dtype::BF16) sums([](F x) { return convert<F>(round_to<BF16>(x)); });
    else sums([](F x) { return x; });
    m.x[0] = m.copies[0];
  }
  void put(int64_t row, int64_t together, int64_t leaf, const Memory& m) const {
    put(row, together, leaf, m.results, call.out_dtype, call.out);
    if constexpr (O::kAdds) put(row, together, leaf, m.x[0], call.dtype, call.sum);
  }
  void put(int64_t row, int64_t together, int64_t leaf, const F* results, Dtype dtype, void* out) const {
    const int64_t start = row_offset(layout(), layout().out, row),
                  across = layout().kept ? layout().out[layout().kept - 1] : 0;
    each_run(layout().out, leaf, [&](int64_t i, int64_t offset, int64_t step, int64_t count) {
      if (together == 1) return store_run(dtype, out, start + offset, step, count, results + i);
      for (int64_t j = 0; j < count; ++j) {
        F side[kRowsTogether];
        for (int64_t r = 0; r < together; ++r) side[r] = results[r * kPitch + i + j];
        store_run(dtype, out, start + offset + j * step, across, together, side);
      }
    });
  }

  // ---- a leaf of one row, x[k] being its elements --------------------------------------------------------------------

  // `terms`: where they are to be left, or null.
  State look(const F* const (&x)[kInputs], int64_t leaf, const Given& given, F* __restrict terms) const {
    F wanted = F(1);
    const State state = look(x, leaf, given, terms, wanted);
    if constexpr (O::kScales)
      if (wanted != F(1)) return scaled_look(x[0], leaf, given, state, wanted);
    return state;
  }
  __attribute__((noinline)) State scaled_look(const F* x, int64_t leaf, const Given& given, const State& before,
                                              F scale) const {
    F scaled[kLeaf], again;
    for (int64_t i = 0; i < least(kLeaf, layout().length - leaf * kLeaf); ++i) scaled[i] = x[i] * scale;
    return O::scaled_back(look({scaled}, leaf, given, nullptr, again), before, scale);
  }
  // `wanted`: what elements have to be multiplied by.
  __attribute__((noinline)) State look(const F* const (&x)[kInputs], int64_t leaf, const Given& given,
                                       F* __restrict terms, [[maybe_unused]] F& wanted) const {
    const int64_t from = leaf * kLeaf, count = least(kLeaf, layout().length - from);
    const F first = first_look<O::kFirst>(x[0], count);
    const auto seen = O::seen(first, int(count), given);
    F acc[O::kSums][kResidues], total[O::kSums];
    for (auto& sum : acc)
      for (F& a : sum) a = F(-0.0);
    for (int64_t start = 0; start < count; start += kResidues) {
      const int64_t rest = least(kResidues, count - start);
      if constexpr (O::kTerm) {
        if (terms) {
          for (int64_t i = 0; i < rest; ++i) terms[start + i] = O::term(x[0][start + i], seen);
          for (int64_t i = 0; i < rest; ++i) acc[0][i] = acc[0][i] + terms[start + i];
          continue;
        }
      }
      for (int64_t i = 0; i < rest; ++i) {
        F element[kInputs], sums[O::kSums];
        for (int k = 0; k < kInputs; ++k) element[k] = x[k][start + i];
        for (int k = 0; k < O::kSums; ++k) sums[k] = acc[k][i];
        O::step(sums, element, O::kWeights ? weight[from + start + i] : F(1), seen, given);
        for (int k = 0; k < O::kSums; ++k) acc[k][i] = sums[k];
      }
    }
    for (int k = 0; k < O::kSums; ++k) total[k] = tree_of_residues(acc[k], count);
    if constexpr (O::kScales) wanted = O::rescale(total, seen);
    return O::state(first, total, int(count));
  }

  // `terms`: what look() left, or null.
  template <class At, class Row>
  __attribute__((noinline)) void map(const F* const (&x)[kInputs], int64_t leaf, const Given& given, const Row& row,
                                     const State& state, const F* __restrict terms, F* __restrict results) const {
    const int64_t from = leaf * kLeaf, count = least(kLeaf, layout().length - from);
    const At at = O::at(row, state);
    if constexpr (O::kTerm) {
      if (terms) {
        for (int64_t i = 0; i < count; ++i) results[i] = O::map(terms[i], F(1), F(-0.0), from + i, at);
      } else {
        const auto seen = O::seen(state.l, int(count), given);
        for (int64_t i = 0; i < count; ++i) results[i] = O::map(O::term(x[0][i], seen), F(1), F(-0.0), from + i, at);
      }
    } else {
      for (int64_t i = 0; i < count; ++i) {
        F element[kInputs];
        for (int k = 0; k < kInputs; ++k) element[k] = x[k][i];
        results[i] =
            O::map(element, O::kWeights ? weight[from + i] : F(1), O::kBiases ? bias[from + i] : F(-0.0), from + i, at);
      }
    }
  }

  // ---- rows ------------------------------------------------------------------------------------------------------------

  auto finish(int64_t row, const Given& given, const State* states) const {
    State state = O::none();
    if (kLooks && leaves > 0 && !O::skips(given)) {
      TreeStack<State, 32> stack;
      const auto merge = [](const State& a, const State& b) { return O::merge(a, b); };
      for (int64_t leaf = 0; leaf < leaves; ++leaf) stack.push(states[leaf], merge);
      state = stack.total(O::none(), merge);
    }
    const int64_t start = row_offset(layout(), layout().in, row);
    const auto read = [&](int64_t i) {
      return load_as<F>(call.dtype, call.in[0], start + position_offset(layout(), i), false);
    };
    return O::row(state, layout().length, given, call.options, read);
  }
  using Row = std::decay_t<decltype(std::declval<RowwiseRows>().finish(0, std::declval<Given>(), nullptr))>;
  using At = std::decay_t<decltype(O::at(std::declval<Row>(), std::declval<State>()))>;

  // The leaf's elements of row r of those together.
  static void of_row(const Memory& m, int64_t r, const F* (&x)[kInputs]) {
    for (int k = 0; k < kInputs; ++k) x[k] = m.x[k] + r * kPitch;
  }
  F* terms_of(const Memory& m, int64_t r, int64_t leaf) const {
    return m.terms ? m.terms + (r * leaves + leaf) * kLeaf : nullptr;
  }

  // Rows [row, row + together), which lie side by side.
  void take(int64_t row, int64_t together, Memory& m) const {
    Given given[kRowsTogether];
    for (int64_t r = 0; r < together; ++r) given[r] = O::given(call.options, call.memory, offset_of_row(row + r));
    const F* x[kInputs];
    if constexpr (kLooks)
      for (int64_t leaf = 0; leaf < leaves; ++leaf) {
        bring(row, together, leaf, m);
        for (int64_t r = 0; r < together; ++r) {
          of_row(m, r, x);
          if (!O::skips(given[r])) m.states[r * leaves + leaf] = look(x, leaf, given[r], terms_of(m, r, leaf));
        }
      }
    Row rows[kRowsTogether];
    for (int64_t r = 0; r < together; ++r) {
      rows[r] = finish(row + r, given[r], m.states + r * leaves);
      O::write(rows[r], call.memory, offset_of_row(row + r));
    }
    if constexpr (O::kMaps)
      for (int64_t leaf = 0; leaf < leaves; ++leaf) {
        if (!m.terms && !(kLooks && leaves == 1)) bring(row, together, leaf, m);
        for (int64_t r = 0; r < together; ++r) {
          of_row(m, r, x);
          map<At>(x, leaf, given[r], rows[r], m.states[r * leaves + leaf], terms_of(m, r, leaf),
                  m.results + r * kPitch);
        }
        put(row, together, leaf, m);
      }
  }

  // ---- tasks -----------------------------------------------------------------------------------------------------------

  // Chunks of rows that lie side by side, or single rows.
  struct Chunked {
    RowwiseRows* self;
    ColumnChunks chunks;
    int64_t together;
  };
  static void chunks_body(void* context, int64_t begin, int64_t end) {
    auto& task = *static_cast<Chunked*>(context);
    RowwiseRows& self = *task.self;
    Scratch scratch(self.bytes(task.together));
    if (!scratch.data) return self.fail();
    Memory m = self.carve(scratch.data, task.together);
    task.chunks.each(begin, end, [&](int64_t row, RowStart, int64_t count) { self.take(row, count, m); });
  }
  static void rows_body(void* context, int64_t begin, int64_t end) {
    RowwiseRows& self = *static_cast<RowwiseRows*>(context);
    Scratch scratch(self.bytes(1));
    if (!scratch.data) return self.fail();
    Memory m = self.carve(scratch.data, 1);
    for (int64_t row = begin; row < end; ++row) self.take(row, 1, m);
  }
  // Leaves, counted through all rows.
  template <bool kLook> static void leaves_body(void* context, int64_t begin, int64_t end) {
    RowwiseRows& self = *static_cast<RowwiseRows*>(context);
    Scratch scratch(self.bytes(1));
    if (!scratch.data) return self.fail();
    Memory m = self.carve(scratch.data, 1);
    [[maybe_unused]] Row at_row;
    const F* x[kInputs];
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t row = unit / self.leaves, leaf = unit % self.leaves;
      const Given given = O::given(self.call.options, self.call.memory, self.offset_of_row(row));
      self.bring(row, 1, leaf, m);
      of_row(m, 0, x);
      if constexpr (kLook) {
        if (!O::skips(given)) self.shared_states[unit] = self.look(x, leaf, given, nullptr);
      } else {
        if (unit == begin || leaf == 0) at_row = self.finish(row, given, self.shared_states + row * self.leaves);
        self.template map<At>(x, leaf, given, at_row, self.shared_states[unit], nullptr, m.results);
        self.put(row, 1, leaf, m);
      }
    }
  }

  // False where memory is out.
  bool run(bool across, int64_t threads, cpu::ParallelFor parallel_for) {
    const Layout& l = layout();
    const auto spread = [&](int64_t tasks, void (*body)(void*, int64_t, int64_t), void* context) {
      if (threads > 1 && tasks > 1) parallel_for(tasks, body, context);
      else body(context, 0, tasks);
    };
    if (across) {
      Chunked task{this, ColumnChunks(l, kRowsTogether, threads), kRowsTogether};
      spread(task.chunks.count(), chunks_body, &task);
    } else if (!kLooks || l.rows >= threads || leaves < kLeavesToShare) {
      spread(l.rows, rows_body, this);
    } else {
      Scratch states(l.rows * leaves * int64_t(sizeof(State)));
      if (!states.data) return false;
      shared_states = reinterpret_cast<State*>(states.data);
      if constexpr (kLooks) spread(l.rows * leaves, leaves_body<true>, this);
      for (int64_t row = 0; row < l.rows && !out_of_memory; ++row) {
        const Given given = O::given(call.options, call.memory, offset_of_row(row));
        O::write(finish(row, given, shared_states + row * leaves), call.memory, offset_of_row(row));
      }
      if constexpr (O::kMaps)
        if (!out_of_memory) spread(l.rows * leaves, leaves_body<false>, this);
    }
    return !out_of_memory;
  }
};

}  // namespace TR_ISA
}  // namespace torchreduce
