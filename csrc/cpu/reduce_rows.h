// Reductions with lanes along a row. Rows of one leaf are folded many at a time, longer ones leaf by leaf; a row may be cut
// into runs of leaves for several tasks.
#pragma once
#include "cpu/lanes.h"

namespace torchreduce {
inline namespace TR_ISA {

TR_HD int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
TR_HD int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// One call, as its tasks see it.
template <class Op> struct Job {
  using Acc = typename Op::Acc;
  const ReduceCall& call;
  Op op;
  int64_t leaves;          // of a row
  int64_t run;             // leaves a task takes of a row, a power of two
  int64_t runs;            // of a row
  Acc* partials;           // [rows][runs]; unused where runs is 1
  bool out_of_memory = false;

  // The result of row `row`, which starts at `at`.
  TR_HD void finish(RowStart at, Acc acc) const {
    if constexpr (Op::kIndexed) {
      const auto* x = static_cast<const typename Op::Element*>(call.in.data) + at.in;
      op.finish(acc, call.out, at.out, x[position_offset(call.layout, acc.index)]);
    } else {
      op.finish(acc, call.out, at.out);
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

template <class Op> struct Rows {
  using E = typename Op::Element;
  using Acc = typename Op::Acc;
  using L = Lane<Op>;
  static constexpr int W = kLanes<L>;
  static constexpr int kBatch = 256;          // rows folded at once
  static constexpr int kBatchLanes = kLeaf;   // and their lanes
  static constexpr int64_t kBytes = Carver::bytes<L>(kBatchLanes + kFoldLanes<Op>) + Carver::bytes<E>(kLeaf + W);

  Job<Op>& job;
  const Layout& layout;
  bool direct;  // rows lie in memory as E, one element after the other
  L* lanes;
  E* copy;
  const E* end;
  const E* items[kBatch];

  TR_HD Rows(Job<Op>& j, char* scratch) : job(j), layout(j.call.layout) {
    const Source& in = job.call.in;
    direct = layout.reduced <= 1 && (layout.reduced == 0 || position_stride(layout) == 1) &&
             (!kMayConvert<Op> || (in.dtype == DtypeOf<E>::value && !in.truth));
    end = static_cast<const E*>(in.data) + last_offset(layout) + 1;
    Carver carver{scratch};
    lanes = carver.take<L>(kBatchLanes + kFoldLanes<Op>);
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
    if (i + count <= size)
      return fetch<E, kMayConvert<Op>>(in, row + outer.at.in + i * stride, stride, count, dst);
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

  // lanes[0..slots) become the residues of `count` elements at p.
  TR_HD void residues(const E* p, int64_t count, int64_t slots, L* dst, int64_t ahead) const {
    if (slots <= W && end_of(p) - p >= W) {
      store(dst, first_lanes<L>(load_lanes(job.op, p), count, absent_lane<Op>()));
      return;
    }
    Rounds<E> in;
    in.rounds = int(count / kResidues);
    in.tail = count % kResidues;
    in.end = end_of(p);
    in.ahead = ahead;
    for (int k = 0; k < in.rounds + (in.tail > 0); ++k) in.rows[k] = p + k * kResidues;
    accumulate(job.op, in, slots, dst);
  }

  // Rows [begin, end_row), each of one leaf.
  void one_leaf(int64_t begin, int64_t end_row) {
    const int64_t n = layout.length;
    int levels = 0;
    while ((1 << levels) < least(n, kResidues)) ++levels;
    const int64_t slots = int64_t(1) << levels, batch = least(kBatch, kBatchLanes / least(kLeaf, n > slots ? n : slots));
    const bool packed = direct && n == slots && (layout.kept == 0 || (layout.kept == 1 && row_stride(layout) == n));
    RowStart starts[kBatch];
    Odometer cursor(layout, 0, layout.kept, begin);
    for (int64_t row = begin; row < end_row;) {
      const int64_t count = least(batch, end_row - row);
      for (int64_t j = 0; j < count; ++j) {
        starts[j] = cursor.at;
        cursor.next();
      }
      for (int64_t j = 0; j < count; ++j) {
        items[j] = direct ? static_cast<const E*>(job.call.in.data) + starts[j].in : positions(starts[j].in, 0, n, copy + j * n);
        if (!packed) residues(items[j], n, slots, lanes + j * slots, 0);
      }
      if (packed) {
        Rounds<E> all{{items[0]}, 0, count * n, end, 0};
        accumulate(job.op, all, count * n, lanes);
      }
      fold_pairs<Op>(lanes, count * slots, levels);
      for (int64_t j = 0; j < count; ++j) {
        if constexpr (Op::kIndexed) job.finish(starts[j], {lanes[j], locate(job.op, items[j], n, lanes[j], end_of(items[j]))});
        else job.finish(starts[j], Acc(lanes[j]));
      }
      row += count;
    }
  }

  // Leaves [first, last) of the row at `row`.
  Acc leaves(int64_t row, int64_t first, int64_t last) {
    constexpr int kLeafLevels = 8;  // of the tree over kResidues
    const int64_t n = layout.length, batch = direct ? kBatchLanes / kResidues : 1;
    TreeStack<Acc, 32> stack;
    Acc best = Op::absent();
    for (int64_t leaf = first; leaf < last;) {
      const int64_t count = least(batch, last - leaf);
      for (int64_t j = 0; j < count; ++j) {
        const int64_t start = (leaf + j) * kLeaf;
        items[j] = positions(row, start, least(kLeaf, n - start), copy);
        residues(items[j], least(kLeaf, n - start), kResidues, lanes + j * kResidues, direct ? kLeaf : 0);
      }
      fold_pairs<Op>(lanes, count * kResidues, kLeafLevels);
      for (int64_t j = 0; j < count; ++j) {
        if constexpr (Op::kIndexed) {
          const int64_t start = (leaf + j) * kLeaf;
          if (lanes[j] > best.key || leaf + j == first)
            best = {lanes[j], start + locate(job.op, items[j], least(kLeaf, n - start), lanes[j], end_of(items[j]))};
        } else {
          stack.push(Acc(lanes[j]), [](Acc l, Acc r) { return Op::combine(l, r); });
        }
      }
      leaf += count;
    }
    if constexpr (Op::kIndexed) return best;
    else return stack.total(Op::absent(), [](Acc l, Acc r) { return Op::combine(l, r); });
  }

  static void body(void* context, int64_t begin, int64_t end_unit) {
    Job<Op>& job = *static_cast<Job<Op>*>(context);
    Scratch scratch(kBytes);
    if (!scratch.data) return job.fail();
    Rows rows(job, scratch.data);
    if (job.leaves == 1) return rows.one_leaf(begin, end_unit);
    for (int64_t unit = begin; unit < end_unit; ++unit) {
      const int64_t row = unit / job.runs, r = unit % job.runs;
      const RowStart at = row_start(job.call.layout, row);
      job.finish_run(row, r, at, rows.leaves(at.in, r * job.run, least(job.leaves, (r + 1) * job.run)));
    }
  }
};

}  // namespace TR_ISA
}  // namespace torchreduce
