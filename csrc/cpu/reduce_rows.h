// Reductions with lanes along a row. Rows of one leaf are folded many at a time, longer ones leaf by leaf; a row may be
// cut into runs of leaves for several tasks.
#pragma once
#include "cpu/greatest.h"

namespace torchreduce {
inline namespace TR_ISA {

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
  // The result of a run of leaves, counted through all rows, of the row that starts at `at`.
  TR_HD void finish_run(int64_t unit, RowStart at, Acc acc) {
    if (runs == 1) finish(at, acc);
    else partials[unit] = acc;
  }
  TR_HD void fail() { __atomic_store_n(&out_of_memory, true, __ATOMIC_RELAXED); }
};

// Whether a kernel for Op may be given elements of another type, to be converted to its own.
template <class Op> constexpr bool kMayConvert =
    Op::kConverts && std::is_same<typename Op::Element, accumulator_t<typename Op::Element>>::value;

// Positions [first, first + count) of the row at `row`, contiguous: in place, or gathered into dst.
template <class E, bool kConvert>
TR_HD const E* row_positions(const ReduceCall& call, int64_t row, int64_t first, int64_t count, E* dst) {
  const Source& in = call.in;
  const Layout& layout = call.layout;
  const int64_t stride = position_stride(layout);
  if (layout.reduced <= 1) return fetch<E, kConvert>(in, row + first * stride, stride, count, dst);
  const int fastest = layout.kept + layout.reduced - 1;
  const int64_t size = layout.size[fastest];
  Odometer outer(layout, layout.kept, fastest, first / size);
  int64_t i = first % size;
  if (i + count <= size) return fetch<E, kConvert>(in, row + outer.at.in + i * stride, stride, count, dst);
  for (int64_t done = 0; done < count;) {
    const int64_t piece = least(size - i, count - done);
    const E* p = fetch<E, kConvert>(in, row + outer.at.in + i * stride, stride, piece, dst + done);
    if (p != dst + done) __builtin_memcpy(dst + done, p, size_t(piece) * sizeof(E));
    done += piece;
    i = 0;
    outer.next();
  }
  return dst;
}

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

// The residues of a leaf are accumulators in registers, as many at a time as fit: on AVX-512 all 256 floats, so that
// memory is read as one sequential stream. Ops with an order, which may take elements in any, do without residues.
template <class Op> struct Rows {
  using E = typename Op::Element;
  using Acc = typename Op::Acc;
  using L = Lane<Op>;
  static constexpr int W = kLanes<L>;
  static constexpr int kBatch = 8;              // leaves, or kResidues lanes of short rows, that are folded together
  static constexpr int kBlock = W > 8 ? W : 8;  // vectors of residues in registers
  static constexpr int kTrees = kResidues / W;  // of W neighbours, in a leaf
  static constexpr int kTreeLevels = __builtin_ctz(W), kResidueLevels = __builtin_ctz(kResidues);
  static constexpr int64_t kBytes =
      2 * Carver::bytes<L>(kBatch * kResidues + kFoldLanes<L>) + Carver::bytes<E>(kLeaf + W);

  struct Item {  // a leaf
    const E* x;
    int64_t count, leaf, unit;
    bool begins, ends;  // the unit
    RowStart at;        // of the row
  };

  Job<Op>& job;
  const Layout& layout;
  bool direct;  // rows lie in memory as E, one element after the other
  L* lanes;     // [kBatch][kResidues]
  L* trees;     // [kBatch][kTrees]
  E* copy;      // [kLeaf]
  const E* end;

  TR_HD Rows(Job<Op>& j, char* scratch) : job(j), layout(j.call.layout) {
    const Source& in = job.call.in;
    direct = layout.reduced <= 1 && (layout.reduced == 0 || position_stride(layout) == 1) &&
             (!kMayConvert<Op> || (in.dtype == DtypeOf<E>::value && !in.truth));
    end = static_cast<const E*>(in.data) + last_offset(layout, layout.in) + 1;
    Carver carver{scratch};
    lanes = carver.take<L>(kBatch * kResidues + kFoldLanes<L>);
    trees = carver.take<L>(kBatch * kResidues + kFoldLanes<L>);
    copy = carver.take<E>(kLeaf + W);
    __builtin_memset(scratch, 0, size_t(kBytes));
  }

  const E* positions(int64_t row, int64_t first, int64_t count, E* dst) const {
    return row_positions<E, kMayConvert<Op>>(job.call, row, first, count, dst);
  }
  TR_HD const E* end_of(const E* p) const { return p >= copy && p < copy + kLeaf ? copy + kLeaf + W : end; }

  // kLanes elements at p + i, as terms; p is where a cache line may begin.
  TR_HD Vec<L> element(const E* p, int i) const {
    if (i * int(sizeof(E)) % 64 == 0) prefetch_ahead(p + i);
    return load_terms(job.op, p + i);
  }
  // The `count` elements at p as lanes, or as terms, absent ones after them up to `slots`.
  template <bool kTerms = false>
  __attribute__((noinline)) void padded(const E* p, int64_t count, int64_t slots, L* to) const {
    const auto put = [&](int64_t j, Vec<L> terms)
                         __attribute__((always_inline)) { store(to + j, kTerms ? terms : enter(job.op, terms)); };
    int64_t j = 0;
    for (; j + 4 * W <= count; j += 4 * W)
#pragma GCC unroll 4
      for (int i = 0; i < 4 * W; i += W) put(j + i, element(p + j, i));
    for (; j + W <= count; j += W) put(j, load_terms(job.op, p + j));
    if (j < count) put(j, first_terms(job.op, p + j, count - j, end_of(p)));
    for (j = ceil_div(count, W) * W; j < slots; j += W) store(to + j, splat(absent_lane<Op>()));
  }
  // The trees over W neighbours each of a leaf of `count` elements at p.
  __attribute__((noinline)) void leaf(const E* p, int64_t count, L* to) const {
    const int64_t rounds = count / kResidues, left = count % kResidues;
    if (left) padded<true>(p + rounds * kResidues, left, kResidues, lanes);
#pragma GCC unroll 1
    for (int j = 0; j < kResidues; j += kBlock * W) {
      Vec<L> v[kBlock];
#pragma GCC unroll 16
      for (int i = 0; i < kBlock; ++i)
        v[i] = enter(job.op, rounds ? element(p + j, i * W) : load<Vec<L>>(lanes + j + i * W));
      for (int64_t k = 1; k < rounds; ++k)
#pragma GCC unroll 16
        for (int i = 0; i < kBlock; ++i) v[i] = add_term(job.op, v[i], element(p + k * kResidues + j, i * W));
      if (rounds && left)
#pragma GCC unroll 16
        for (int i = 0; i < kBlock; ++i) v[i] = add_term(job.op, v[i], load<Vec<L>>(lanes + j + i * W));
#pragma GCC unroll 8
      for (int i = 0; i < kBlock; i += W) {
        fold_vectors<Combiner<Op>, L, W, 0>(v + i);
        store(to + j / W + i, v[i]);
      }
    }
  }
  // The values of `n` leaves (or runs of rows of 2^levels elements, in leaves of kResidues), leaf i of count(i)
  // elements at x(i): trees[0..).
  template <class At, class Count> TR_HD void leaf_values(int n, At x, Count count, int levels = kResidueLevels) {
    for (int i = 0; i < n; ++i) {
      if constexpr (kOrdered<Op>) trees[i] = Greatest<Op>::key(job.op, x(i), count(i));
      else leaf(x(i), count(i), trees + i * kTrees);
    }
    if constexpr (!kOrdered<Op>) fold_pairs<Combiner<Op>>(trees, n * kTrees, levels - kTreeLevels);
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
  // `count` of them at equal distances, in batches of as many as fill the residues of kBatch leaves.
  void even_rows(RowStart at, int64_t step, int64_t out_step, int64_t count) {
    const int64_t n = layout.length;
    int levels = 0;
    while ((1 << levels) < least(n, kResidues)) ++levels;
    const int64_t slots = int64_t(1) << levels, batch = kResidues / slots * (direct ? kBatch : 1);
    const bool packed = direct && n == slots && step == n;
    const E* items[kResidues];
    for (int64_t first = 0; first < count; first += batch) {
      const int64_t rows = least(batch, count - first), in = at.in + first * step;
      const auto item = [&](int64_t j) {
        return direct ? static_cast<const E*>(job.call.in.data) + in + j * step : items[j];
      };
      if (!direct)
        for (int64_t j = 0; j < rows; ++j) items[j] = positions(in + j * step, 0, n, copy + j * n);
      L* results = trees;
      if (n >= kResidues) {
        leaf_values(int(rows), item, [&](int) { return n; });
      } else if (!kOrdered<Op> && packed && slots >= W) {
        leaf_values(
            int(ceil_div(rows * n, kResidues)), [&](int i) { return item(0) + i * kResidues; },
            [&](int i) { return least(kResidues, rows * n - i * kResidues); }, levels);
      } else {
        results = lanes;
        if (packed && !Op::kIndexed) padded(item(0), rows * n, 0, lanes);
        else
          for (int64_t j = 0; j < rows; ++j) {
            const E* const p = item(j);
            if (slots <= W && end_of(p) - p >= W)
              store(lanes + j * slots, first_lanes<L>(load_lanes(job.op, p), n, absent_lane<Op>()));
            else padded(p, n, slots, lanes + j * slots);
          }
        fold_pairs<Combiner<Op>>(lanes, ceil_div(rows * slots, kResidues) * kResidues, levels);
      }
      const int64_t out = at.out + first * out_step;
      if constexpr (Op::kIndexed) {
        for (int64_t j = 0; j < rows; ++j)
          job.finish({in + j * step, out + j * out_step},
                     {results[j], locate(job.op, item(j), n, results[j], end_of(item(j)))});
      } else {
        job.finish_rows(out, out_step, rows, results);
      }
    }
  }

  // Runs [begin, end_unit), counted through all rows.
  void long_rows(int64_t begin, int64_t end_unit) {
    const auto combine = [](Acc l, Acc r) { return Op::combine(l, r); };
    Item items[kBatch];
    TreeStack<Acc, 32> stack;
    Acc best = Op::absent();
    RowStart at{};
    for (int64_t unit = begin, leaf = 0, last = 0; unit < end_unit;) {
      int count = 0;
      for (; count < (direct ? kBatch : 1) && unit < end_unit; ++count) {
        const bool begins = leaf == last;
        if (begins) {
          leaf = unit % job.runs * job.run;
          last = least(job.leaves, leaf + job.run);
          at = row_start(layout, unit / job.runs);
        }
        const int64_t start = leaf * kLeaf, size = least(kLeaf, layout.length - start);
        const E* const x = positions(at.in, start, size, copy);
        const bool ends = leaf + 1 == last;
        items[count] = {x, size, leaf, unit, begins, ends, at};
        ++leaf;
        unit += ends;
      }
      leaf_values(count, [&](int i) { return items[i].x; }, [&](int i) { return items[i].count; });
      for (int i = 0; i < count; ++i) {
        const Item& item = items[i];
        if constexpr (Op::kIndexed) {
          if (item.begins || trees[i] > best.key)
            best = {trees[i], item.leaf * kLeaf + locate(job.op, item.x, item.count, trees[i], end_of(item.x))};
        } else {
          stack.push(Acc(trees[i]), combine);
        }
        if (!item.ends) continue;
        if constexpr (Op::kIndexed) job.finish_run(item.unit, item.at, best);
        else job.finish_run(item.unit, item.at, stack.total(Op::absent(), combine));
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
