// Reductions with lanes across rows that lie side by side ("columns"): a task takes a chunk of columns and a run of
// leaves. Where the tensor is one block of few columns, several positions are taken together as one longer vector of
// lanes.
#pragma once
#include "cpu/reduce_rows.h"

namespace torchreduce {
inline namespace TR_ISA {

constexpr int64_t kColumns = 1024;   // of a chunk at most
constexpr int64_t kFlatLanes = 512;  // positions are taken together up to about as many lanes

template <class Op> struct Columns {
  using E = typename Op::Element;
  using Acc = typename Op::Acc;
  using L = Lane<Op>;
  static constexpr int W = kLanes<L>;
  static constexpr int kRows = kLeaf / kResidues;
  static constexpr int kResidueLevels = 9;
  static constexpr int kCopies = kNeighbours * kFewRounds;
  using Stack = ColumnStack<Combiner<Op>, L>;

  // How the columns of a call are cut.
  struct Chunks {
    int64_t inner;   // columns that lie side by side
    int64_t width;   // of a chunk
    int64_t chunks;  // of `inner`
    int64_t outer;   // rows / inner
  };
  static Chunks cut(const Layout& layout, int64_t width) {
    const int64_t inner = layout.kept ? layout.size[layout.kept - 1] : 1;
    width = least(inner, width);
    return {inner, width, ceil_div(inner, width), layout.rows / inner};
  }

  struct Task {
    Job<Op>* job;
    Chunks chunks;
  };

  Job<Op>& job;
  const Layout& layout;
  bool direct;           // this chunk's columns lie in memory as E, one after the other
  int64_t group;         // positions taken together, a power of two
  int64_t width, lanes;  // of this chunk: columns, and columns * group
  const E* end;          // of readable memory
  RowStart at;           // of the chunk's first column
  E* copy;               // [kCopies][width]
  char* rest;            // for the kernel

  TR_HD static int64_t padded(int64_t count) { return ceil_div(count, 64) * 64 + 64; }
  static int leaf_levels(int64_t run) { return run > 1 ? 64 - __builtin_clzll(uint64_t(run - 1)) + 1 : 1; }
  static int64_t bytes(const Job<Op>& job, const Chunks& chunks) {
    const int64_t lanes = padded(chunks.width < kFlatLanes ? 2 * kFlatLanes : chunks.width),
                  width = padded(chunks.width);
    const int64_t sums =
        Stack::bytes(kResidueLevels, width) + Stack::bytes(leaf_levels(job.run), width) + 2 * Carver::bytes<L>(lanes);
    const int64_t tracked = 3 * Carver::bytes<L>(lanes) + Carver::bytes<int64_t>(lanes);
    return Carver::bytes<E>(kCopies * width) + (Op::kIndexed ? tracked : sums);
  }

  // Position i of the chunk's columns.
  TR_HD const E* columns(int64_t i, int slot) const {
    return fetch<E, kMayConvert<Op>>(job.call.in, at.in + position_offset(layout, i),
                                     width == 1 ? 1 : row_stride(layout), width, copy + slot * padded(width));
  }

  // Leaves [first, last) of every column: the canonical order. Several positions are read at a time, each a stream
  // through memory: the rounds of a leaf, or where these are few, neighbours as well.
  L* leaves(int64_t first, int64_t last) {
    const int64_t wide = padded(width), stride = layout.reduced <= 1 ? position_stride(layout) : 0;
    Carver carver{rest};
    auto residues = Stack::make(carver, kResidueLevels, wide), stack = Stack::make(carver, leaf_levels(job.run), wide);
    L* flat[2] = {carver.take<L>(padded(lanes)), carver.take<L>(padded(lanes))};
    Rounds<E> in;
    in.end = direct ? end : copy + kCopies * wide;
    in.ahead = direct ? group * stride : 0;
    for (int64_t leaf = first; leaf < last; ++leaf) {
      const int64_t start = leaf * kLeaf, count = least(kLeaf, layout.length - start), tail = count % kResidues;
      in.rounds = int(count / kResidues);
      residues.count = 0;
      for (int64_t r = 0; r < least(count, kResidues);) {
        const int rounds = in.rounds + (r < tail);
        if (group == 1 && rounds <= kFewRounds && r % kNeighbours == 0 &&
            r + kNeighbours <= (r < tail ? tail : kResidues)) {
          const E* rows[kCopies];
          for (int i = 0; i < kNeighbours * rounds; ++i)
            rows[i] = columns(start + i / kNeighbours * kResidues + r + i % kNeighbours, i);
          constexpr int kLevel = __builtin_ctz(kNeighbours);
          accumulate_neighbours(job.op, rows, rounds, width, in.end, kNeighbours * in.ahead, residues.top(kLevel));
          residues.push(kLevel);
          r += kNeighbours;
          continue;
        }
        in.tail = least(group, r < tail ? tail - r : 0) * width;
        for (int k = 0; k < in.rounds + (in.tail > 0); ++k) in.rows[k] = columns(start + k * kResidues + r, k);
        accumulate(job.op, in, lanes, group == 1 ? residues.top() : flat[0]);
        for (int64_t g = group; g > 1; g /= 2) {
          fold_positions(flat[0], g, g == 2 ? residues.top() : flat[1]);
          L* const folded = flat[1];
          flat[1] = flat[0];
          flat[0] = folded;
        }
        residues.push();
        r += group;
      }
      L* const value = residues.total();
      if (last - first == 1) return value;
      __builtin_memcpy(stack.top(), value, size_t(wide) * sizeof(L));
      stack.push();
    }
    return stack.total();
  }
  // One level of the tree: to[g][column] = from[2g][column] with from[2g + 1][column].
  TR_HD void fold_positions(const L* from, int64_t positions, L* to) const {
    for (int64_t g = 0; g < positions / 2; ++g)
      for (int64_t c = 0; c < width;
           c += W)  // what a last vector writes past its columns, the next position overwrites
        store(to + g * width + c,
              combine_lanes<Op>(load<Vec<L>>(from + 2 * g * width + c), load<Vec<L>>(from + (2 * g + 1) * width + c)));
  }

  // The greatest key of positions [first, last) of every column, and where it stands first.
  void track(int64_t first, int64_t last, Acc* results) {
    using U = UintOf<L>;
    constexpr int64_t kSpan = sizeof(L) == 1 ? 256 : 65536;  // steps of `group` positions that U can count
    Carver carver{rest};
    L* const keys = carver.take<L>(padded(lanes));
    L* const best = carver.take<L>(padded(lanes));
    U* const steps = carver.take<U>(padded(lanes));
    int64_t* const found = carver.take<int64_t>(padded(lanes));
    const int64_t whole = (last - first) / group, count = ceil_div(last - first, group);
    for (int64_t base = 0; base < count; base += kSpan) {
      for (int64_t c = 0; c < lanes; c += W) {
        store(keys + c, splat(absent_lane<Op>()));
        store(steps + c, Vec<U>{});
      }
      const int64_t stop = least(base + kSpan, count);
      for (int64_t step = base; step < stop;) {
        const int taken = int(least(kRows, (step < whole ? least(stop, whole) : stop) - step));
        const int64_t valid = step < whole ? lanes : (last - first) % group * width;
        const E* rows[kRows];
        for (int k = 0; k < taken; ++k) rows[k] = columns(first + (step + k) * group, k);
        track_rows(rows, taken, valid, U(step - base), keys, steps);
        step += taken;
      }
      for (int64_t c = 0; c < lanes; ++c)
        if (base == 0 || keys[c] > best[c]) {
          best[c] = keys[c];
          found[c] = first + (base + steps[c]) * group + c / width;
        }
    }
    for (int64_t c = 0; c < width; ++c) {
      Acc acc{best[c], found[c]};
      for (int64_t g = 1; g < least(group, last - first); ++g)
        acc = Op::combine(acc, {best[g * width + c], found[g * width + c]});
      results[c] = acc;
    }
  }
  TR_HD void track_rows(const E* const* rows, int count, int64_t valid, UintOf<L> step, L* keys,
                        UintOf<L>* steps) const {
    using U = UintOf<L>;
    const E* const last = direct ? end : copy + kCopies * padded(width);
    const auto track = [&](int64_t c, auto lanes) __attribute__((always_inline)) {
      Vec<L> key = load<Vec<L>>(keys + c);
      Vec<U> at_step = load<Vec<U>>(steps + c);
      for (int k = 0; k < count; ++k) {
        const Vec<L> v = lanes(rows[k] + c);
        const auto greater = v > key;
        key = greater ? v : key;
        at_step = greater ? splat(U(step + k)) : at_step;
      }
      store(keys + c, key);
      store(steps + c, at_step);
    };
    int64_t c = 0;
    for (; c + W <= valid; c += W) track(c, [&](const E* p) { return load_lanes(job.op, p); });
    if (c < valid) track(c, [&](const E* p) { return load_first(job.op, p, valid - c, last); });
  }

  static void body(void* context, int64_t begin, int64_t end_unit) {
    const Task& task = *static_cast<Task*>(context);
    Job<Op>& job = *task.job;
    const Chunks& cuts = task.chunks;
    const Layout& layout = job.call.layout;
    const Source& source = job.call.in;
    const int64_t size = bytes(job, cuts), result_bytes = Carver::bytes<Acc>(cuts.width);
    Scratch scratch(size + result_bytes);
    if (!scratch.data) return job.fail();
    __builtin_memset(scratch.data, 0, size_t(size));
    Carver carver{scratch.data};
    Acc* const results = carver.take<Acc>(cuts.width);
    E* const copy = carver.take<E>(kCopies * padded(cuts.width));
    const bool converts = kMayConvert<Op> && (source.dtype != DtypeOf<E>::value || source.truth);
    int64_t group = 1;
    if (!converts && (row_stride(layout) == 1 || cuts.inner == 1) && layout.reduced == 1 && cuts.chunks == 1 &&
        position_stride(layout) == cuts.inner)
      while (group < least(kResidues, layout.length) && 2 * group * cuts.width <= kFlatLanes) group *= 2;

    const int64_t per_outer = cuts.chunks * job.runs;
    Odometer outer(layout, 0, layout.kept ? layout.kept - 1 : 0, begin / per_outer);
    int64_t within = begin % per_outer;
    for (int64_t unit = begin; unit < end_unit; ++unit) {
      const int64_t chunk = within / job.runs, r = within % job.runs;
      const int64_t c0 = chunk * cuts.width, width = least(cuts.width, cuts.inner - c0);
      const int64_t out_stride = layout.kept ? layout.out[layout.kept - 1] : 0;
      const RowStart at{outer.at.in + c0 * row_stride(layout), outer.at.out + c0 * out_stride};
      const bool direct = !converts && (row_stride(layout) == 1 || width == 1);
      Columns columns{job,
                      layout,
                      direct,
                      group,
                      width,
                      group * width,
                      static_cast<const E*>(source.data) + last_offset(layout, layout.in) + 1,
                      at,
                      copy,
                      carver.next};
      const int64_t first = r * job.run, last = least(job.leaves, first + job.run),
                    row = unit / per_outer * cuts.inner + c0;
      if constexpr (Op::kIndexed) {
        columns.track(first * kLeaf, least(last * kLeaf, layout.length), results);
        for (int64_t c = 0; c < width; ++c)
          job.finish_run((row + c) * job.runs + r, {at.in + c * row_stride(layout), at.out + c * out_stride},
                         results[c]);
      } else {
        L* const values = columns.leaves(first, last);
        if (job.runs == 1) job.finish_rows(at.out, out_stride, width, values);
        else
          for (int64_t c = 0; c < width; ++c) job.partials[(row + c) * job.runs + r] = Acc(values[c]);
      }
      if (++within == per_outer) {
        within = 0;
        outer.next();
      }
    }
  }
};

}  // namespace TR_ISA
}  // namespace torchreduce
