// Scans across rows that lie side by side ("columns"): a task walks a chunk of columns, eight positions at a time, with
// each column's carry in memory.
#pragma once
#include "cpu/scan_rows.h"

namespace torchreduce {
inline namespace TR_ISA {

template <class Scan> struct ScanColumns {
  using E = typename Scan::Result;
  using Lanes = ScanLanes<Scan>;
  using Items = typename Lanes::Items;
  using State = typename Lanes::State;
  using Wide = typename Lanes::WideState;
  static constexpr int kLevels = kFanLog2 + 1, kInputs = Scan::kInputs;
  template <class V> using Stack = ColumnStack<Lanes, V, V>;

  TR_HD static int64_t padded(int64_t width) { return (width + 7) / 8 * 8; }
  static int64_t bytes(int64_t width) {
    const int64_t w = padded(width), eights = w / 8;
    return (kInputs + 1) * Carver::bytes<E>(8 * w) + kInputs * Carver::bytes<E>(w) +
           2 * Stack<State>::bytes(kLevels, eights) + Stack<Wide>::bytes(kLevels, eights) +
           2 * Carver::bytes<State>(eights) + 2 * Carver::bytes<Wide>(eights);
  }

  ScanJob<Scan>& job;
  const ScanCall& call;
  int64_t width, wide, eights;
  RowStart at;                 // of the chunk's first column
  int64_t start[kInputs];      // its first element in each input
  E *copy[kInputs], *results;  // [8][wide]
  E* absent[kInputs];          // [wide]
  Stack<State> groups, tiles;
  Stack<Wide> blocks;
  State *within_block, *within;  // what lies before the tile in its block tile, and before the group
  Wide *superblocks, *carry;     // before the superblock, and before the block tile

  ScanColumns(ScanJob<Scan>& j, int64_t first, int64_t columns, RowStart first_at, Carver carver)
      : job(j), call(j.call), width(columns), wide(padded(columns)), eights(wide / 8), at(first_at) {
    for (int k = 0; k < kInputs; ++k) {
      start[k] = job.start(k, first, at.in);
      copy[k] = carver.take<E>(8 * wide);
      absent[k] = carver.take<E>(wide);
      for (int64_t c = 0; c < wide; ++c) absent[k][c] = Lanes::absent(k);
    }
    results = carver.take<E>(8 * wide);
    groups = Stack<State>::make(carver, kLevels, eights);
    tiles = Stack<State>::make(carver, kLevels, eights);
    blocks = Stack<Wide>::make(carver, kLevels, eights);
    within_block = carver.take<State>(eights);
    within = carver.take<State>(eights);
    superblocks = carver.take<Wide>(eights);
    carry = carver.take<Wide>(eights);
    for (int64_t i = 0; i < eights; ++i) {
      within_block[i] = within[i] = eight(Scan::absent());
      superblocks[i] = carry[i] = job.initial_of_eight(first + 8 * i);
    }
  }

  // One group: x[k][j] are the columns of input k at its position j, out[j] where their results go, `ahead` where the
  // next group of each input lies. The groups' totals go to the top of `groups`.
  TR_HD void group(const E* const (&x)[kInputs][kGroup], E* const* out, const int64_t (&ahead)[kInputs]) const {
    State* const totals = groups.top();
    int64_t c = 0;
    GroupsOf<Scan> p;
    for (; c + 8 <= width; c += 8) {
      for (int k = 0; k < kInputs; ++k)
        if (ahead[k])
          for (int j = 0; j < kGroup; ++j) __builtin_prefetch(x[k][j] + c + ahead[k]);
      for (int k = 0; k < kInputs; ++k)
        for (int j = 0; j < kGroup; ++j) p[k][j] = load<Items>(x[k][j] + c);
      columns(c / 8, p, totals);
      for (int j = 0; j < kGroup; ++j) store(out[j] + c, p[0][j]);
    }
    if (c == width) return;
    E last[8];
    for (int k = 0; k < kInputs; ++k)
      for (int j = 0; j < kGroup; ++j) {
        for (int64_t i = 0; i < 8; ++i) last[i] = c + i < width ? x[k][j][c + i] : Lanes::absent(k);
        p[k][j] = load<Items>(last);
      }
    columns(c / 8, p, totals);
    for (int j = 0; j < kGroup; ++j) {
      store(last, p[0][j]);
      for (int64_t i = c; i < width; ++i) out[j][i] = last[i - c];
    }
  }
  // Eight columns: elements become results.
  TR_HD void columns(int64_t i, GroupsOf<Scan>& p, State* totals) const {
    const bool prefixes = Lanes::group(p, totals[i]);
    finish_groups<Scan>(prefixes, carry[i], within[i], p);
  }

  // The carries after a group whose totals are on top of `groups`. Not inline: it would take registers from group().
  __attribute__((noinline)) void advance() {
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
      // There are no groups before the next one: see sklansky().
      if constexpr (kInputs == 1) copy_states(value, within);
      else
        for (int64_t i = 0; i < eights; ++i) within[i] = Lanes::combine(value[i], eight(Scan::absent()));
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
    const int64_t n = call.layout.length, out_stride = job.out_stride(), out_step = out_columns();
    const bool write_in_place = call.out.dtype == DtypeOf<E>::value && (out_step == 1 || width == 1);
    int64_t ahead[kInputs];
    for (int k = 0; k < kInputs; ++k)
      ahead[k] = job.reads_in_place() && job.input[k].step == 1 ? kGroup * job.input[k].stride : 0;
    if (call.exclusive)
      for (int64_t c = 0; c < width; ++c) job.start_row(at.out + c * out_step);
    for (int64_t i = 0; i < n; i += kGroup) {
      const E* x[kInputs][kGroup];
      E* out[kGroup];
      for (int j = 0; j < kGroup; ++j) {
        const int64_t to = i + j + call.exclusive;
        for (int k = 0; k < kInputs; ++k) x[k][j] = i + j < n ? position(k, i + j, copy[k] + j * wide) : absent[k];
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
  // The columns of input k at a position: where they lie, or in `to`.
  TR_HD const E* position(int k, int64_t i, E* to) const {
    const auto& in = job.input[k];
    if (job.is_a(k) && i == 0 && job.resets()) {
      __builtin_memset(to, 0, size_t(width) * sizeof(E));
      return to;
    }
    return fetch<E, true>(in.source, start[k] + i * in.stride, in.step, width, to);
  }
  TR_HD int64_t out_columns() const { return call.layout.kept ? call.layout.out[call.layout.kept - 1] : 0; }

  static void body(void* context, int64_t begin, int64_t end) {
    auto& job = *static_cast<ScanJob<Scan>*>(context);
    const int64_t size = bytes(job.chunks.width);
    Scratch scratch(size);
    if (!scratch.data) return job.fail();
    __builtin_memset(scratch.data, 0, size_t(size));
    job.chunks.each(begin, end, [&](int64_t first, RowStart at, int64_t width) {
      ScanColumns(job, first, width, at, Carver{scratch.data}).walk();
    });
  }
};

}  // namespace TR_ISA
}  // namespace torchreduce
