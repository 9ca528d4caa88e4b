// Reductions with lanes along a row. Rows of one leaf are folded many at a time, longer ones leaf by leaf; a row may be
// cut into runs of leaves for several tasks.
#pragma once
#include "cpu/greatest.h"

namespace torchreduce {
inline namespace TR_ISA {

TR_HD int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
TR_HD int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// One call, as its tasks see it.
template <class Op> struct Job {
  using Acc = typename Op::Acc;
  const ReduceCall& call;
  Op op;
  int64_t leaves;  // of a row
  int64_t run;     // leaves a task takes of a row, a power of two
  int64_t runs;    // of a row
  Acc* partials;   // [rows][runs]; unused where runs is 1
  bool out_of_memory = false;

  // The result of the row that starts at `at`.
  TR_HD void finish(RowStart at, Acc acc) const {
    if constexpr (Op::kIndexed) {
      const auto* x = static_cast<const typename Op::Element*>(call.in.data) + at.in;
      op.finish(acc, call.out, at.out, x[position_offset(call.layout, acc.index)]);
    } else {
      op.finish(acc, call.out, at.out);
    }
  }
  // The results of `count` rows, the first at out offset `at`, `step` apart.
  TR_HD void finish_rows(int64_t at, int64_t step, int64_t count, Lane<Op>* values) const {
    if constexpr (kIsSum<Op>) {
      if constexpr (is_float_type<Acc>) {
        if (op.options.mean)
          for (int64_t j = 0; j < count; ++j) values[j] = values[j] / Acc(op.options.count);
      }
      store_run(call.out.dtype, call.out.values, at, step, count, reinterpret_cast<const Acc*>(values));
    } else {
      for (int64_t j = 0; j < count; ++j) op.finish(Acc(values[j]), call.out, at + j * step);
    }
  }
  TR_HD void finish_run(int64_t row, int64_t run_index, RowStart at, Acc acc) {
    if (runs == 1) finish(at, acc);
    else partials[row * runs + run_index] = acc;
  }
  TR_HD void fail() { __atomic_store_n(&out_of_memory, true, __ATOMIC_RELAXED); }
};

// Whether a kernel for Op may be given elements of another type, to be converted to its own.
template <class Op> constexpr bool kMayConvert =
    Op::kConverts && std::is_same<typename Op::Element, typename Op::Acc>::value;

// The first position among `count` elements at p whose key is `key`; there is one.
template <class Op>
int64_t locate(const Op& op, const typename Op::Element* p, int64_t count, Lane<Op> key,
               const typename Op::Element* end) {
  constexpr int W = kLanes<Lane<Op>>, kBlock = 4;
  const Vec<Lane<Op>> wanted = splat(key);
  int64_t i = 0;
  for (; i + kBlock * W <= count; i += kBlock * W) {
    auto any = load_lanes(op, p + i) == wanted;
#pragma GCC unroll 4
    for (int b = 1; b < kBlock; ++b) any |= load_lanes(op, p + i + b * W) == wanted;
    if (first_set(any) >= 0) break;
  }
  for (; i + W <= count; i += W) {
    const int lane = first_set(load_lanes(op, p + i) == wanted);
    if (lane >= 0) return i + lane;
  }
  return i + first_set(load_first(op, p + i, count - i, end) == wanted);
}

// Elements of one leaf enter one round of kResidues after the other, and kStreams leaves (or blocks of short rows) that
// lie far apart take turns: memory is then read as that many sequential streams, of which the hardware prefetches each.
// Some CPUs do so too late, so each asks for what lies a leaf ahead, be it there or not (bfloat16 sums: half the time).
// Ops with an order, which may take elements in any, do the same without residues.
template <class Op> struct Rows {
  using E = typename Op::Element;
  using Acc = typename Op::Acc;
  using L = Lane<Op>;
  static constexpr int W = kLanes<L>;
  static constexpr int kStreams = 4, kWindow = 64;  // leaves at a time
  static constexpr int kTrees = kResidues / W;      // of W neighbours, in a leaf
  static constexpr int kLongBlock = 16;             // rows of kResidues elements or more
  static constexpr int kTreeLevels = __builtin_ctz(W), kResidueLevels = __builtin_ctz(kResidues);
  static constexpr int64_t kBytes =
      2 * Carver::bytes<L>(kStreams * kResidues + kFoldLanes<L>) + Carver::bytes<E>(kLeaf + W);

  struct Item {  // a leaf
    int64_t unit, leaf, count;
    const E* x;
    L value;
  };

  Job<Op>& job;
  const Layout& layout;
  bool direct;  // rows lie in memory as E, one element after the other
  L* lanes;     // [kStreams][kResidues]
  L* trees;     // [kStreams][kResidues]
  E* copy;      // [kLeaf]
  const E* end;

  TR_HD Rows(Job<Op>& j, char* scratch) : job(j), layout(j.call.layout) {
    const Source& in = job.call.in;
    direct = layout.reduced <= 1 && (layout.reduced == 0 || position_stride(layout) == 1) &&
             (!kMayConvert<Op> || (in.dtype == DtypeOf<E>::value && !in.truth));
    end = static_cast<const E*>(in.data) + last_offset(layout) + 1;
    Carver carver{scratch};
    lanes = carver.take<L>(kStreams * kResidues + kFoldLanes<L>);
    trees = carver.take<L>(kStreams * kResidues + kFoldLanes<L>);
    copy = carver.take<E>(kLeaf + W);
    __builtin_memset(scratch, 0, size_t(kBytes));
  }

  // Positions [first, first + count) of the row at `row`, contiguous: in place, or gathered into dst.
  const E* positions(int64_t row, int64_t first, int64_t count, E* dst) const {
    const Source& in = job.call.in;
    const int64_t stride = position_stride(layout);
    if (layout.reduced <= 1) return fetch<E, kMayConvert<Op>>(in, row + first * stride, stride, count, dst);
    const int fastest = layout.kept + layout.reduced - 1;
    const int64_t size = layout.size[fastest];
    Odometer outer(layout, layout.kept, fastest, first / size);
    int64_t i = first % size;
    if (i + count <= size) return fetch<E, kMayConvert<Op>>(in, row + outer.at.in + i * stride, stride, count, dst);
    for (int64_t done = 0; done < count;) {
      const int64_t piece = least(size - i, count - done);
      const E* p = fetch<E, kMayConvert<Op>>(in, row + outer.at.in + i * stride, stride, piece, dst + done);
      if (p != dst + done) __builtin_memcpy(dst + done, p, size_t(piece) * sizeof(E));
      done += piece;
      i = 0;
      outer.next();
    }
    return dst;
  }
  TR_HD const E* end_of(const E* p) const { return p >= copy && p < copy + kLeaf ? copy + kLeaf + W : end; }

  // The first `count` residues take one more element each, from p on; with kFirst, their first.
  template <bool kFirst> TR_HD void round(const E* p, int64_t count, L* residues) const {
    int64_t j = 0;
    for (; j + 4 * W <= count; j += 4 * W) {
#pragma GCC unroll 4
      for (int i = 0; i < 4 * W; i += W) {
        const Vec<L> v = load_lanes(job.op, p + j + i);
        __builtin_prefetch(p + j + i + kLeaf);
        store(residues + j + i, kFirst ? v : combine_lanes<Op>(load<Vec<L>>(residues + j + i), v));
      }
    }
    for (; j < count; j += W) {
      const Vec<L> v = j + W <= count ? load_lanes(job.op, p + j) : load_first(job.op, p + j, count - j, end_of(p));
      store(residues + j, kFirst ? v : combine_lanes<Op>(load<Vec<L>>(residues + j), v));
    }
  }
  // The first `count` elements at p as the residues of their first round, absent lanes after them up to `slots`.
  __attribute__((noinline)) void first_round(const E* p, int64_t count, int64_t slots, L* residues) const {
    round<true>(p, count, residues);
    for (int64_t j = ceil_div(count, W) * W; j < slots; j += W) store(residues + j, splat(absent_lane<Op>()));
  }
  // The first levels of the tree over kResidues lanes, of which at(j) is the vector from j on: to[0..kTrees).
  template <class At> TR_HD void fold_residues(L* to, At at) const {
#pragma GCC unroll 1
    for (int j = 0; j < kResidues; j += W * W) {
      Vec<L> v[W];
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i) v[i] = at(j + i * W);
      fold_vectors<Combiner<Op>, L, W, 0>(v);
      store(to + j / W, v[0]);
    }
  }
  // Round k of the `count` elements of a leaf at p, of which there are some in this round. The last one leaves the
  // leaf's trees in `to`.
  __attribute__((noinline)) void leaf_round(const E* p, int64_t count, int64_t k, L* residues, L* to) const {
    const int64_t left = count - k * kResidues;
    p += k * kResidues;
    const auto element = [&](int j) {
      __builtin_prefetch(p + j + kLeaf);
      return load_lanes(job.op, p + j);
    };
    const auto residue = [&](int j) { return load<Vec<L>>(residues + j); };
    if (left == kResidues) {
      if (k == 0) fold_residues(to, element);
      else fold_residues(to, [&](int j) { return combine_lanes<Op>(residue(j), element(j)); });
      return;
    }
    if (k == 0) first_round(p, least(kResidues, left), kResidues, residues);
    else round<false>(p, least(kResidues, left), residues);
    if (left < kResidues) fold_residues(to, residue);
  }
  // The values of `streams` leaves, of count(s) elements at x[s] each: values[0..streams).
  template <class Count> TR_HD void leaf_values(const E* const* x, int streams, Count count, L* values) const {
    if constexpr (kOrdered<Op>) {
      Greatest<Op> greatest[kStreams];
      for (int s = 0; s < streams; ++s) greatest[s].start(job.op, x[s], count(s));
      for (int64_t from = 0; from < kLeaf; from += kResidues)
        for (int s = 0; s < streams; ++s)
          if (from < count(s)) greatest[s].take(job.op, x[s], from, least(count(s), from + kResidues));
      for (int s = 0; s < streams; ++s) values[s] = greatest[s].key(job.op);
    } else {
      for (int k = 0; k < kLeaf / kResidues; ++k)
        for (int s = 0; s < streams; ++s)
          if (k * kResidues < count(s)) leaf_round(x[s], count(s), k, lanes + s * kResidues, values + s * kTrees);
      fold_pairs<Combiner<Op>>(values, streams * kTrees, kResidueLevels - kTreeLevels);
    }
  }

  // Rows [begin, end_row), each of one leaf.
  void short_rows(int64_t begin, int64_t end_row) {
    const int fastest = layout.kept - 1;
    const int64_t inner = layout.kept ? layout.size[fastest] : 1;
    Odometer outer(layout, 0, layout.kept ? fastest : 0, begin / inner);
    for (int64_t row = begin, i = begin % inner; row < end_row; i = 0) {
      const int64_t count = least(inner - i, end_row - row), out_step = layout.kept ? layout.out[fastest] : 0;
      even_rows({outer.at.in + i * row_stride(layout), outer.at.out + i * out_step}, row_stride(layout), out_step,
                count);
      row += count;
      outer.next();
    }
  }
  // `count` of them at equal distances, in blocks: of as many as fill the residues of one leaf, or if they are longer,
  // of as many as are worth a call that writes results.
  void even_rows(RowStart at, int64_t step, int64_t out_step, int64_t count) {
    const int64_t n = layout.length;
    int levels = 0;
    while ((1 << levels) < least(n, kResidues)) ++levels;
    const bool longer = n >= kResidues;
    const int64_t slots = int64_t(1) << levels, block = !longer ? kResidues / slots : direct ? kLongBlock : 1;
    const bool packed = direct && n == slots && step == n;
    const int streams = direct && count >= 4 * kStreams * block ? kStreams : 1;
    const int64_t share = ceil_div(count, streams * block) * block;  // rows of a stream
    for (int64_t t = 0; t < share; t += block) {
      const E* items[kStreams][kResidues];
      const auto rows = [&](int s) { return least(block, count - s * share - t); };
      const auto fetch_item = [&](int s, int64_t j) {
        const int64_t start = at.in + (s * share + t + j) * step;
        items[s][j] = direct ? static_cast<const E*>(job.call.in.data) + start : positions(start, 0, n, copy + j * n);
        return items[s][j];
      };
      L* values = lanes;  // [streams][block]
      L of_block[kStreams * kLongBlock];
      if (longer) {
        values = of_block;
        for (int64_t j = 0; j < block; ++j) {
          const E* x[kStreams];
          int there = 0;
          for (; there < streams && j < rows(there); ++there) x[there] = fetch_item(there, j);
          leaf_values(x, there, [&](int) { return n; }, trees);
          for (int s = 0; s < there; ++s) values[s * block + j] = trees[s];
        }
      } else if (!kOrdered<Op> && packed && slots >= W) {
        values = trees;
        if constexpr (!kOrdered<Op>) {
          for (int s = 0; s < streams; ++s)
            if (rows(s) > 0) leaf_round(fetch_item(s, 0), rows(s) * n, 0, lanes + s * kResidues, trees + s * kTrees);
          fold_pairs<Combiner<Op>>(trees, streams * kTrees, levels - kTreeLevels);
        }
      } else {
        for (int s = 0; s < streams; ++s) {
          L* const residues = lanes + s * kResidues;
          if (packed && !Op::kIndexed) {
            if (rows(s) > 0) first_round(fetch_item(s, 0), rows(s) * n, 0, residues);
            continue;
          }
          for (int64_t j = 0; j < rows(s); ++j) {
            const E* const p = fetch_item(s, j);
            if (slots <= W && end_of(p) - p >= W)
              store(residues + j * slots, first_lanes<L>(load_lanes(job.op, p), n, absent_lane<Op>()));
            else first_round(p, n, slots, residues + j * slots);
          }
        }
        fold_pairs<Combiner<Op>>(lanes, streams * kResidues, levels);
      }
      for (int s = 0; s < streams; ++s) {
        const int64_t first = s * share + t;
        L* const results = values + s * block;
        if constexpr (Op::kIndexed) {
          for (int64_t j = 0; j < rows(s); ++j)
            job.finish({at.in + (first + j) * step, at.out + (first + j) * out_step},
                       {results[j], locate(job.op, items[s][j], n, results[j], end_of(items[s][j]))});
        } else {
          job.finish_rows(at.out + first * out_step, out_step, rows(s), results);
        }
      }
    }
  }

  // Runs [begin, end_unit), counted through all rows.
  void long_rows(int64_t begin, int64_t end_unit) {
    const auto combine = [](Acc l, Acc r) { return Op::combine(l, r); };
    Item items[kWindow];
    TreeStack<Acc, 32> stack;
    Acc best = Op::absent();
    int64_t unit = begin, leaf = begin % job.runs * job.run;
    while (unit < end_unit) {
      int count = 0;
      for (; count < (direct ? kWindow : 1) && unit < end_unit; ++count) {
        const int64_t start = leaf * kLeaf, size = least(kLeaf, layout.length - start);
        items[count] = {unit, leaf, size, positions(row_start(layout, unit / job.runs).in, start, size, copy), {}};
        if (++leaf % job.run == 0 || leaf == job.leaves) {
          ++unit;
          leaf = unit % job.runs * job.run;
        }
      }
      const int spacing = (count + kStreams - 1) / kStreams;
      for (int t = 0; t < spacing; ++t) {
        const E* x[kStreams];
        int there = 0;
        for (int i = t; i < count; i += spacing) x[there++] = items[i].x;
        leaf_values(x, there, [&](int s) { return items[t + s * spacing].count; }, trees);
        for (int s = 0; s < there; ++s) items[t + s * spacing].value = trees[s];
      }
      for (int i = 0; i < count; ++i) {
        const Item& item = items[i];
        const int64_t run = item.unit % job.runs, first = run * job.run, last = least(job.leaves, first + job.run);
        if constexpr (Op::kIndexed) {
          if (item.leaf == first || item.value > best.key)
            best = {item.value, item.leaf * kLeaf + locate(job.op, item.x, item.count, item.value, end_of(item.x))};
        } else {
          stack.push(Acc(item.value), combine);
        }
        if (item.leaf + 1 < last) continue;
        const int64_t row = item.unit / job.runs;
        if constexpr (Op::kIndexed) job.finish_run(row, run, row_start(layout, row), best);
        else job.finish_run(row, run, row_start(layout, row), stack.total(Op::absent(), combine));
        stack.count = 0;
      }
    }
  }

  static void body(void* context, int64_t begin, int64_t end_unit) {
    Job<Op>& job = *static_cast<Job<Op>*>(context);
    Scratch scratch(kBytes);
    if (!scratch.data) return job.fail();
    Rows rows(job, scratch.data);
    if (job.leaves == 1) rows.short_rows(begin, end_unit);
    else rows.long_rows(begin, end_unit);
  }
};

}  // namespace TR_ISA
}  // namespace torchreduce
