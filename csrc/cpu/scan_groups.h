// Scans that no ScanLanes takes by eights: group by group, each of a few rows in turn, so that rows that lie side by
// side share the cache lines they are read from. Where rows are fewer than threads, block tile by block tile, in two
// passes.
#pragma once
#include "cpu/runs.h"
#include "order.h"

namespace torchreduce {
inline namespace TR_ISA {

template <class S> struct ScanGroups {
  using Acc = typename S::Acc;
  using Wide = typename S::Wide;
  using Item = typename S::Item;
  using Result = typename S::Result;
  using E = Result;                           // elements are converted to it
  static constexpr int64_t kSideBySide = 32;  // rows of a task at most

  // One call, as its tasks see it.
  struct Job {
    const ScanCall& call;
    int64_t width;   // rows of a task
    int64_t blocks;  // block tiles of a row
    Wide* carries;   // [rows][blocks]: totals of block tiles, then what lies before each; unused in one pass
  };
  struct Row {
    RowStart at;
    int64_t a;  // of two inputs: where the row starts in the other one
    ScanCarry<S> carry;
    TreeStack<Acc, kFanLog2 + 1> groups;  // of this tile, so far
    Acc within;                           // before the tile, in its block tile
  };

  const Job& job;
  const ScanCall& call;
  const S op;
  const int64_t in_stride, out_stride, a_stride;
  Row rows[kSideBySide];

  ScanGroups(const Job& j)
      : job(j),
        call(j.call),
        op{j.call.options},
        in_stride(call.layout.reduced ? call.layout.in[call.layout.kept] : 1),
        out_stride(call.layout.reduced ? call.layout.out[call.layout.kept] : 1),
        a_stride(call.layout.reduced ? call.more_strides[0][call.layout.kept] : 0) {}

  // What precedes a row.
  TR_HD static Wide initial(const ScanCall& call, int64_t row) {
    if constexpr (S::kInputs == 2) {
      const int64_t offset = row_offset(call.layout, call.more_strides[1], row);
      if (call.in.more[1]) return S::initial(load_as<Result>(call.in.dtype, call.in.more[1], offset, false));
    }
    return S::wide_absent();
  }
  TR_HD static Acc combine(Acc left, Acc right) { return S::combine(left, right); }

  // Positions [first, first + count) of a row, count <= 8.
  template <bool kTotal> TR_HD void group(Row& row, int64_t first, int64_t count) const {
    Item items[kGroup];
    const int64_t offset = row.at.in + first * in_stride;
    if constexpr (S::kInputs == 3) {
      const E *g = static_cast<const E*>(call.in.data) + offset, *x = static_cast<const E*>(call.in.more[0]) + offset,
              *o = static_cast<const E*>(call.in.more[1]) + offset;
      for (int i = 0; i < count; ++i)
        items[i] = op.load({g[i * in_stride], x[i * in_stride], o[i * in_stride]}, first + i);
    } else if constexpr (S::kInputs == 2) {
      Source other = call.in;
      other.data = call.in.more[0];
      const int64_t skipped = call.shifted && first == 0 ? 1 : 0, from = row.a + (first + skipped) * a_stride;
      E b_copy[kGroup], a_copy[kGroup];
      const E *b = fetch<E, true>(call.in, offset, in_stride, count, b_copy),
              *a = fetch<E, true>(other, from, a_stride, count - skipped, a_copy);
      for (int64_t i = 0; i < count; ++i)
        items[i] = op.load(Pair<E>{i < skipped ? E(0) : a[i - skipped], b[i]}, first + i);
    } else {
      E copy[kGroup];
      const E* x = fetch<E, true>(call.in, offset, in_stride, count, copy);
      for (int i = 0; i < count; ++i) items[i] = op.load(x[i], first + i);
    }
    for (int64_t i = count; i < kGroup; ++i) items[i] = S::absent_item();
    const Acc total = S::group(items);
    if constexpr (!kTotal) {
      Result out[kGroup];
      const Acc before = row.groups.total(S::absent(), combine);
      op.results(S::prefix(row.carry.carry(), combine(row.within, before)), items, out);
      store(row.at.out, first, count, out);
    }
    row.groups.push(total, combine);
  }

  TR_HD void store(int64_t at, int64_t first, int64_t count, const Result* out) const {
    if constexpr (kHasStart<S>) {
      const Result start = S::start();
      if (call.exclusive && first == 0) store_run(call.out.dtype, call.out.values, at, 1, 1, &start);
    }
    if (call.exclusive && ++first + count > call.layout.length) --count;
    store_run(call.out.dtype, call.out.values, at + first * out_stride, out_stride, count, out);
  }

  // Positions [begin, end) of the first `width` rows, `begin` at the start of a block tile: their results, or with
  // kTotal their totals alone, which go to the carries.
  template <bool kTotal> void walk(int64_t width, int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; tile += kTile) {
      const int64_t last = end - tile < kTile ? end : tile + kTile;
      for (Row* row = rows; row < rows + width; ++row) {
        row->within = row->carry.within();
        row->groups.count = 0;
      }
      for (int64_t i = tile; i < last; i += kGroup)
        for (Row* row = rows; row < rows + width; ++row)
          group<kTotal>(*row, i, last - i < kGroup ? last - i : int64_t(kGroup));
      for (Row* row = rows; row < rows + width; ++row) row->carry.push(row->groups.total(S::absent(), combine));
    }
  }
  // Makes the rows from `first` on the current ones; returns how many.
  int64_t start(int64_t first) {
    const int64_t width = call.layout.rows - first < job.width ? call.layout.rows - first : job.width;
    for (int64_t r = 0; r < width; ++r) {
      rows[r].at = row_start(call.layout, first + r);
      if constexpr (S::kInputs == 2) rows[r].a = row_offset(call.layout, call.more_strides[0], first + r);
      rows[r].carry = ScanCarry<S>(initial(call, first + r));
    }
    return width;
  }

  // Tasks are runs of `width` rows.
  static void whole(void* context, int64_t begin, int64_t end) {
    const Job& job = *static_cast<const Job*>(context);
    ScanGroups scan(job);
    for (int64_t task = begin; task < end; ++task)
      scan.template walk<false>(scan.start(task * job.width), 0, job.call.layout.length);
  }
  // Tasks are block tiles, counted through all rows.
  template <bool kTotal> static void block_tiles(void* context, int64_t begin, int64_t end) {
    const Job& job = *static_cast<const Job*>(context);
    const int64_t n = job.call.layout.length;
    ScanGroups scan(job);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t first = unit % job.blocks * kBlockTile, last = n - first < kBlockTile ? n : first + kBlockTile;
      if (kTotal && last == n) continue;  // nothing comes after it
      scan.start(unit / job.blocks);
      ScanCarry<S>& carry = scan.rows[0].carry;
      if (!kTotal) carry.block_carry = job.carries[unit];
      scan.template walk<kTotal>(1, first, last);
      if (kTotal) job.carries[unit] = carry.blocks.slot[0];
    }
  }
  // Replaces the totals by what lies before each block tile, in order.
  static void carries(const Job& job) {
    for (int64_t row = 0; row < job.call.layout.rows; ++row) {
      ScanCarry<S> carry(initial(job.call, row));
      for (int64_t b = 0; b < job.blocks; ++b) {
        Wide& slot = job.carries[row * job.blocks + b];
        const Wide total = slot;
        slot = carry.carry();
        if (b + 1 < job.blocks) carry.push_block(total);
      }
    }
  }

  // The whole call. `spread` runs tasks, on several threads if `threads` is more than 1; false where memory is out.
  template <class Spread> static bool run(const ScanCall& call, int64_t threads, Spread spread) {
    const Layout& layout = call.layout;
    const bool across = across_rows(call.plan.family);
    Job job{call, across ? kSideBySide : 1, (layout.length + kBlockTile - 1) / kBlockTile, nullptr};
    while (job.width > 1 && layout.rows < job.width * threads) job.width /= 2;
    if (layout.rows >= threads || job.blocks == 1) {
      spread((layout.rows + job.width - 1) / job.width, &whole, &job);
      return true;
    }
    job.width = 1;
    Scratch memory(layout.rows * job.blocks * int64_t(sizeof(Wide)));
    if (!memory.data) return false;
    job.carries = reinterpret_cast<Wide*>(memory.data);
    spread(layout.rows * job.blocks, &block_tiles<true>, &job);
    carries(job);
    spread(layout.rows * job.blocks, &block_tiles<false>, &job);
    return true;
  }
};

}  // namespace TR_ISA
}  // namespace torchreduce
