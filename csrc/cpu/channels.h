// Norms over channels, on the CPU: what elements are mapped to, and sums of channels and of groups.
//
// Where channels lie side by side a task takes some positions, and the maps of all channels; else lines of neighbours.
#pragma once
#include "cpu/cpu.h"
#include "cpu/rowwise_rows.h"
#include "plan/channel_call.h"

namespace torchreduce {
inline namespace TR_ISA {

// The tree over the residues of `count` positions, whose absent ones are -0.0.
template <class F> F tree_of_residues(F (&acc)[kResidues], int64_t count) {
  int levels = 0;
  while ((1 << levels) < least(count, kResidues)) ++levels;
  fold_pairs<Plus>(acc, int64_t(1) << levels, levels);
  return acc[0];
}

constexpr int64_t kPiece = 2048;           // elements that are brought into contiguous memory at a time
constexpr int64_t kChannelsTogether = 16;  // channels that lie side by side, whose sums are made together

inline bool side_by_side(const ChannelCall& call) { return call.x.channel == 1 && call.channels > 1; }

template <class F> const F* fetch(const ChannelCall& call, const ChannelOperand& from, int64_t offset, int64_t stride,
                                  int64_t count, F* copy) {
  return fetch<F, true>(Source{from.data, call.dtype, call.accumulator}, offset, stride, count, copy);
}

template <Channels kOp, class F> struct MappedChannels {
  using Map = ChannelMap<kOp, F>;
  static constexpr bool kTwo = Map::kInputs == 2;

  const ChannelCall& call;
  bool out_of_memory = false;

  // `count` elements that one map is for.
  __attribute__((noinline)) static void map(const Map& m, const F* __restrict x, const F* __restrict g, int64_t count,
                                            F* __restrict to) {
    const Map own = m;
    for (int64_t i = 0; i < count; ++i) to[i] = own(x[i], kTwo ? g[i] : F(0));
  }
  static int64_t start(const ChannelOperand& o, int64_t sample, int64_t channel, int64_t position) {
    return sample * o.sample + channel * o.channel + position * o.position;
  }
  // Tasks are lines.
  static void lines(void* context, int64_t begin, int64_t end) {
    auto& self = *static_cast<MappedChannels*>(context);
    const ChannelCall& call = self.call;
    F copies[2][kPiece], results[kPiece];
    for (int64_t line = begin; line < end; ++line) {
      const int64_t sample = line / call.channels, channel = line - sample * call.channels;
      const Map m = Map::of(call, call.stats_row(sample, channel), channel);
      for (int64_t i = 0; i < call.length; i += kPiece) {
        const int64_t count = least(kPiece, call.length - i);
        const F* const x = fetch(call, call.x, start(call.x, sample, channel, i), call.x.position, count, copies[0]);
        const F* g = x;
        if constexpr (kTwo)
          g = fetch(call, call.g, start(call.g, sample, channel, i), call.g.position, count, copies[1]);
        map(m, x, g, count, results);
        store_run(call.dtype, const_cast<void*>(call.out.data), start(call.out, sample, channel, i), call.out.position,
                  count, results);
      }
    }
  }
  // Tasks are positions, counted through all samples.
  static void positions(void* context, int64_t begin, int64_t end) {
    auto& self = *static_cast<MappedChannels*>(context);
    const ChannelCall& call = self.call;
    const int64_t channels = call.channels;
    Scratch scratch(Carver::bytes<Map>(channels) + 3 * Carver::bytes<F>(channels));
    if (!scratch.data) return __atomic_store_n(&self.out_of_memory, true, __ATOMIC_RELAXED);
    Carver carver{scratch.data};
    Map* const maps = carver.take<Map>(channels);
    F *const copy = carver.take<F>(channels), *const other = carver.take<F>(channels),
             *const results = carver.take<F>(channels);
    for (int64_t i = begin, of = -1; i < end; ++i) {
      const int64_t sample = i / call.length, position = i - sample * call.length;
      if (of != sample && (call.groups || of < 0))
        for (int64_t c = 0; c < channels; ++c) maps[c] = Map::of(call, call.stats_row(sample, c), c);
      of = sample;
      const F* const x = fetch(call, call.x, start(call.x, sample, 0, position), call.x.channel, channels, copy);
      const F* g = x;
      if constexpr (kTwo) g = fetch(call, call.g, start(call.g, sample, 0, position), call.g.channel, channels, other);
      for (int64_t c = 0; c < channels; ++c) results[c] = maps[c](x[c], kTwo ? g[c] : F(0));
      store_run(call.dtype, const_cast<void*>(call.out.data), start(call.out, sample, 0, position), call.out.channel,
                channels, results);
    }
  }

  // False where memory is out.
  bool run(int64_t threads, cpu::ParallelFor parallel_for) {
    const bool beside = side_by_side(call);
    const int64_t tasks = call.samples * (beside ? call.length : call.channels);
    const auto body = beside ? positions : lines;
    if (threads > 1 && tasks > 1) parallel_for(tasks, body, this);
    else body(this, 0, tasks);
    return !out_of_memory;
  }
};

// Rows of sums: groups, or channels, of which those that lie side by side are taken together.
template <class F> struct SummedChannels {
  const ChannelCall& call;
  const bool of_groups;
  bool out_of_memory = false;

  using Row = typename LayerNorm<F>::Row;
  struct Given {
    Row row;
    F weight;
  };
  Given given(int64_t sample, int64_t channel) const {
    return {call.statistics<F>(call.stats_row(sample, channel)), of_groups ? call.weight_of<F>(channel) : F(1)};
  }
  static void step(F& plain, F& with_normal, F g, F x, const Given& given) {
    const F u = g * given.weight;
    plain = plain + u;
    with_normal = fma_of(u, LayerNorm<F>::normal(x, given.row), with_normal);
  }
  int64_t together() const { return side_by_side(call) && !of_groups ? kChannelsTogether : 1; }
  // The sums of the residues of a leaf: kTogether rows from `row` on, of which `rows` are there.
  template <int64_t kTogether>
  void leaf(int64_t row, int64_t rows, int64_t first, int64_t count, F (&acc)[2][kTogether][kResidues],
            F* copies) const {
    for (auto& sum : acc)
      for (auto& row_sums : sum)
        for (F& a : row_sums) a = F(-0.0);
    for (int64_t i = 0; i < count;) {
      const int64_t run = (first + i) / call.length, position = first + i - run * call.length;
      const auto [sample, channel] = call.line(of_groups, row, run);
      int64_t here = least(count - i, call.length - position);
      if (kTogether > 1) here = 1;
      const auto at = [&](const ChannelOperand& o) {
        return sample * o.sample + channel * o.channel + position * o.position;
      };
      const auto bring = [&](const ChannelOperand& o, F* copy) {
        if (kTogether > 1) return fetch(call, o, at(o), o.channel, rows, copy);
        return fetch(call, o, at(o), o.position, here, copy);
      };
      const F *const g = bring(call.g, copies), *const x = bring(call.x, copies + kLeaf);
      if constexpr (kTogether > 1) {
        Given of[kTogether];
        for (int64_t r = 0; r < rows; ++r) of[r] = given(sample, channel + r);
        for (int64_t r = 0; r < rows; ++r) step(acc[0][r][i % kResidues], acc[1][r][i % kResidues], g[r], x[r], of[r]);
      } else {
        const Given of = given(sample, channel);
        for (int64_t j = 0; j < here;) {
          const int64_t residue = (i + j) % kResidues, straight = least(kResidues - residue, here - j);
          for (int64_t k = 0; k < straight; ++k)
            step(acc[0][0][residue + k], acc[1][0][residue + k], g[j + k], x[j + k], of);
          j += straight;
        }
      }
      i += here;
    }
  }
  // The trees over residues and leaves.
  template <int64_t kTogether> void take(int64_t row, int64_t rows, F* copies) const {
    const auto add = [](F a, F b) { return a + b; };
    TreeStack<F, 32> trees[2][kTogether];
    F acc[2][kTogether][kResidues];
    const int64_t length = call.sums_length(of_groups);
    for (int64_t first = 0; first < length; first += kLeaf) {
      const int64_t count = least(kLeaf, length - first);
      leaf<kTogether>(row, rows, first, count, acc, copies);
      for (int s = 0; s < 2; ++s)
        for (int64_t r = 0; r < rows; ++r) trees[s][r].push(tree_of_residues(acc[s][r], count), add);
    }
    for (int64_t r = 0; r < rows; ++r)
      for (int s = 0; s < 2; ++s) call.keep(of_groups, row + r, s, length > 0 ? trees[s][r].total(F(-0.0), add) : F(0));
  }
  static void body(void* context, int64_t begin, int64_t end) {
    auto& self = *static_cast<SummedChannels*>(context);
    const int64_t each = self.together();
    Scratch scratch(2 * kLeaf * int64_t(sizeof(F)));
    if (!scratch.data) return __atomic_store_n(&self.out_of_memory, true, __ATOMIC_RELAXED);
    F* const copies = reinterpret_cast<F*>(scratch.data);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task * each, rows = least(each, self.call.sums_rows(self.of_groups) - row);
      if (each > 1) self.template take<kChannelsTogether>(row, rows, copies);
      else self.template take<1>(row, rows, copies);
    }
  }

  bool run(int64_t threads, cpu::ParallelFor parallel_for) {
    const int64_t tasks = ceil_div(call.sums_rows(of_groups), together());
    if (threads > 1 && tasks > 1) parallel_for(tasks, body, this);
    else body(this, 0, tasks);
    return !out_of_memory;
  }
};

}  // namespace TR_ISA
}  // namespace torchreduce
