// Scans across rows that lie side by side ("columns"): a task walks a chunk of columns, eight positions at a time, with
// each column's carry in memory.
#pragma once
#include "cpu/scan_rows.h"

namespace torchreduce {
inline namespace TR_ISA {

constexpr int64_t kScanColumns = 512;  // of a chunk at most

template <class Scan> struct ScanColumns {
  using E = typename Scan::Item;  // of a result, too
  using Lanes = ScanLanes<Scan>;
  using Items = typename Lanes::Items;
  using State = typename Lanes::State;
  using Wide = typename Lanes::WideState;
  static constexpr int kLevels = kFanLog2 + 1;
  template <class V> using Stack = ColumnStack<Lanes, V, V>;

  struct Task {
    ScanJob<Scan>* job;
    ColumnChunks chunks;
  };
  TR_HD static int64_t padded(int64_t width) { return (width + 7) / 8 * 8; }
  static int64_t bytes(int64_t width) {
    const int64_t w = padded(width), eights = w / 8;
    return 2 * Carver::bytes<E>(8 * w) + Carver::bytes<E>(w) + 2 * Stack<State>::bytes(kLevels, eights) +
           Stack<Wide>::bytes(kLevels, eights) + 2 * Carver::bytes<State>(eights) + 2 * Carver::bytes<Wide>(eights);
  }

  ScanJob<Scan>& job;
  const ScanCall& call;
  int64_t width, wide, eights;
  RowStart at;        // of the chunk's first column
  E *copy, *results;  // [8][wide]
  E* absent;          // [wide]
  Stack<State> groups, tiles;
  Stack<Wide> blocks;
  State *within_block, *within;  // what lies before the tile in its block tile, and before the group
  Wide *superblocks, *carry;     // before the superblock, and before the block tile

  ScanColumns(ScanJob<Scan>& j, int64_t columns, RowStart start, Carver carver)
      : job(j), call(j.call), width(columns), wide(padded(columns)), eights(wide / 8), at(start) {
    copy = carver.take<E>(8 * wide);
    results = carver.take<E>(8 * wide);
    absent = carver.take<E>(wide);
    groups = Stack<State>::make(carver, kLevels, eights);
    tiles = Stack<State>::make(carver, kLevels, eights);
    blocks = Stack<Wide>::make(carver, kLevels, eights);
    within_block = carver.take<State>(eights);
    within = carver.take<State>(eights);
    superblocks = carver.take<Wide>(eights);
    carry = carver.take<Wide>(eights);
    for (int64_t c = 0; c < wide; ++c) absent[c] = Scan::absent_item();
    for (int64_t i = 0; i < eights; ++i) {
      within_block[i] = within[i] = eight(Scan::absent());
      superblocks[i] = carry[i] = eight(Scan::wide_absent());
    }
  }

  // One group: x[j] are the columns at its position j, out[j] where their results go, `ahead` where the next group
  // lies. The groups' totals go to the top of `groups`.
  TR_HD void group(const E* const* x, E* const* out, int64_t ahead) const {
    State* const totals = groups.top();
    int64_t c = 0;
    Items p[kGroup];
    for (; c + 8 <= width; c += 8) {
      if (ahead)
        for (int j = 0; j < kGroup; ++j) __builtin_prefetch(x[j] + c + ahead);
      for (int j = 0; j < kGroup; ++j) p[j] = load<Items>(x[j] + c);
      columns(c / 8, p, totals);
      for (int j = 0; j < kGroup; ++j) store(out[j] + c, p[j]);
    }
    if (c == width) return;
    E last[kGroup][8];
    for (int j = 0; j < kGroup; ++j) {
      for (int64_t i = 0; i < 8; ++i) last[j][i] = c + i < width ? x[j][c + i] : Scan::absent_item();
      p[j] = load<Items>(last[j]);
    }
    columns(c / 8, p, totals);
    for (int j = 0; j < kGroup; ++j) {
      store(last[j], p[j]);
      for (int64_t i = c; i < width; ++i) out[j][i] = last[j][i - c];
    }
  }
  // Eight columns: elements become results.
  TR_HD void columns(int64_t i, Items (&p)[kGroup], State* totals) const {
    const bool prefixes = Lanes::group(p, totals[i]);
    finish_groups<Scan>(prefixes, carry[i], within[i], p);
  }

  // The carries after a group whose totals are on top of `groups`.
  void advance() {
    groups.push();
    const State* value = groups.total();
    if (groups.count < kFan) {
      for (int64_t i = 0; i < eights; ++i) within[i] = Lanes::combine(within_block[i], value[i]);
      return;
    }
    groups.count = 0;
    copy_states(value, tiles.top());
    tiles.push();
    value = tiles.total();
    if (tiles.count < kFan) {
      copy_states(value, within_block);
      copy_states(value, within);
      return;
    }
    tiles.count = 0;
    Wide* const block = blocks.top();
    for (int64_t i = 0; i < eights; ++i) {
      block[i] = Lanes::widen(value[i]);
      within_block[i] = within[i] = eight(Scan::absent());
    }
    blocks.push();
    const Wide* const before = blocks.total();
    for (int64_t i = 0; i < eights; ++i) carry[i] = Lanes::combine(superblocks[i], before[i]);
    if (blocks.count < kFan) return;
    blocks.count = 0;
    __builtin_memcpy(superblocks, carry, size_t(eights) * sizeof(Wide));
  }
  TR_HD void copy_states(const State* from, State* to) const {
    __builtin_memcpy(to, from, size_t(eights) * sizeof(State));
  }

  void walk() {
    const int64_t n = call.layout.length, in_stride = job.in_stride(), out_stride = job.out_stride();
    const int64_t in_step = row_stride(call.layout), out_step = out_columns();
    const bool write_in_place = call.out.dtype == DtypeOf<E>::value && (out_step == 1 || width == 1);
    const int64_t ahead = job.reads_in_place() && in_step == 1 ? kGroup * in_stride : 0;
    if (call.exclusive)
      for (int64_t c = 0; c < width; ++c) job.start_row(at.out + c * out_step);
    for (int64_t i = 0; i < n; i += kGroup) {
      const E* x[kGroup];
      E* out[kGroup];
      for (int j = 0; j < kGroup; ++j) {
        const int64_t to = i + j + call.exclusive;
        x[j] =
            i + j < n ? fetch<E, true>(call.in, at.in + (i + j) * in_stride, in_step, width, copy + j * wide) : absent;
        out[j] =
            write_in_place && to < n ? static_cast<E*>(call.out.values) + at.out + to * out_stride : results + j * wide;
      }
      group(x, out, ahead);
      if (!write_in_place)
        for (int j = 0; j < kGroup && i + j + call.exclusive < n; ++j)
          store_run(call.out.dtype, call.out.values, at.out + (i + j + call.exclusive) * out_stride, out_step, width,
                    out[j]);
      advance();
    }
  }
  TR_HD int64_t out_columns() const { return call.layout.kept ? call.layout.out[call.layout.kept - 1] : 0; }

  static void body(void* context, int64_t begin, int64_t end) {
    const Task& task = *static_cast<Task*>(context);
    ScanJob<Scan>& job = *task.job;
    const int64_t size = bytes(task.chunks.width);
    Scratch scratch(size);
    if (!scratch.data) return job.fail();
    __builtin_memset(scratch.data, 0, size_t(size));
    task.chunks.each(begin, end,
                     [&](RowStart at, int64_t width) { ScanColumns(job, width, at, Carver{scratch.data}).walk(); });
  }
};

}  // namespace TR_ISA
}  // namespace torchreduce
