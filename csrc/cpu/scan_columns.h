// Scans across rows that lie side by side ("columns"): a task walks a chunk of columns, eight positions at a time, with
// each column's carry in memory.
#pragma once
#include "cpu/scan_rows.h"

namespace torchreduce {
inline namespace TR_ISA {

constexpr int64_t kScanColumns = 512;  // of a chunk at most

template <class Scan> struct ScanColumns {
  using Acc = typename Scan::Acc;
  using L = ScanLane<Acc>;
  using Wide = ScanLane<typename Scan::Wide>;
  using V = Eight<L>;
  using VWide = Eight<Wide>;
  static constexpr int kLevels = kFanLog2 + 1;

  struct Task {
    ScanJob<Scan>* job;
    int64_t inner, width, chunks;  // columns side by side, of a chunk, and chunks of `inner`
  };
  static Task cut(ScanJob<Scan>& job, int64_t width) {
    const Layout& layout = job.call.layout;
    const int64_t inner = layout.kept ? layout.size[layout.kept - 1] : 1;
    width = inner < width ? inner : width;
    return {&job, inner, width, (inner + width - 1) / width};
  }
  TR_HD static int64_t padded(int64_t width) { return (width + 15) / 16 * 16; }
  static int64_t bytes(int64_t width) {
    const int64_t w = padded(width);
    return 2 * Carver::bytes<Acc>(8 * w) + 2 * ColumnStack<Scan, L>::bytes(kLevels, w) +
           ColumnStack<Scan, Wide>::bytes(kLevels, w) + 3 * Carver::bytes<L>(w) + 2 * Carver::bytes<Wide>(w);
  }

  ScanJob<Scan>& job;
  const ScanCall& call;
  int64_t width, wide;
  RowStart at;          // of the chunk's first column
  Acc *copy, *results;  // [8][wide]
  ColumnStack<Scan, L> groups, tiles;
  ColumnStack<Scan, Wide> blocks;
  L *within_block, *within;  // what lies before the tile in its block tile, and before the group
  Acc* absent;
  Wide *superblocks, *carry;  // before the superblock, and before the block tile

  ScanColumns(ScanJob<Scan>& j, int64_t columns, RowStart start, Carver carver)
      : job(j), call(j.call), width(columns), wide(padded(columns)), at(start) {
    copy = carver.take<Acc>(8 * wide);
    results = carver.take<Acc>(8 * wide);
    groups = ColumnStack<Scan, L>::make(carver, kLevels, wide);
    tiles = ColumnStack<Scan, L>::make(carver, kLevels, wide);
    blocks = ColumnStack<Scan, Wide>::make(carver, kLevels, wide);
    within_block = carver.take<L>(wide);
    within = carver.take<L>(wide);
    absent = carver.take<Acc>(wide);
    superblocks = carver.take<Wide>(wide);
    carry = carver.take<Wide>(wide);
    for (int64_t c = 0; c < wide; ++c) {
      within_block[c] = within[c] = L(Scan::absent());
      absent[c] = Scan::absent();
      superblocks[c] = carry[c] = Wide(Scan::wide_absent());
    }
  }

  // One group: x[j] are the columns at its position j, out[j] where their results go, `ahead` where the next group
  // lies. The groups' totals go to the top of `groups`.
  TR_HD void group(const Acc* const* x, Acc* const* out, int64_t ahead) const {
    L* const totals = groups.top();
    int64_t c = 0;
    for (; c + 8 <= width; c += 8) {
      V p[kGroup];
      if (ahead)
        for (int j = 0; j < kGroup; ++j) __builtin_prefetch(x[j] + c + ahead);
      for (int j = 0; j < kGroup; ++j) p[j] = load<V>(x[j] + c);
      columns(c, p, totals);
      for (int j = 0; j < kGroup; ++j) store(out[j] + c, p[j]);
    }
    if (c == width) return;
    Acc last[kGroup][8] = {};
    V p[kGroup];
    for (int j = 0; j < kGroup; ++j) {
      for (int64_t i = c; i < width; ++i) last[j][i - c] = x[j][i];
      p[j] = load<V>(last[j]);
    }
    columns(c, p, totals);
    for (int j = 0; j < kGroup; ++j) {
      store(last[j], p[j]);
      for (int64_t i = c; i < width; ++i) out[j][i] = last[j][i - c];
    }
  }
  // Eight columns: elements become results.
  TR_HD void columns(int64_t c, V (&p)[kGroup], L* totals) const {
    for (int j = 1; j < kGroup; ++j) p[j] = Scan::combine(p[j - 1], p[j]);
    store(totals + c, p[kGroup - 1]);
    finish_groups<Scan>(load<VWide>(carry + c), load<V>(within + c), p);
  }

  // The carries after a group whose totals are on top of `groups`.
  void advance() {
    groups.push();
    const L* value = groups.total();
    if (groups.count < kFan) {
      for (int64_t c = 0; c < wide; c += 8)
        store(within + c, Scan::combine(load<V>(within_block + c), load<V>(value + c)));
      return;
    }
    groups.count = 0;
    copy_lanes(value, tiles.top());
    tiles.push();
    value = tiles.total();
    if (tiles.count < kFan) {
      copy_lanes(value, within_block);
      copy_lanes(value, within);
      return;
    }
    tiles.count = 0;
    Wide* const block = blocks.top();
    for (int64_t c = 0; c < wide; ++c) {
      block[c] = Wide(Scan::widen(Acc(value[c])));
      within_block[c] = within[c] = L(Scan::absent());
    }
    blocks.push();
    const Wide* const before = blocks.total();
    for (int64_t c = 0; c < wide; c += 8)
      store(carry + c, Scan::combine(load<VWide>(superblocks + c), load<VWide>(before + c)));
    if (blocks.count < kFan) return;
    blocks.count = 0;
    __builtin_memcpy(superblocks, carry, size_t(wide) * sizeof(Wide));
  }
  TR_HD void copy_lanes(const L* from, L* to) const { __builtin_memcpy(to, from, size_t(wide) * sizeof(L)); }

  void walk() {
    const int64_t n = call.layout.length, in_stride = job.in_stride(), out_stride = job.out_stride();
    const int64_t in_step = row_stride(call.layout), out_step = out_columns();
    const bool write_in_place = call.out.dtype == DtypeOf<Acc>::value && (out_step == 1 || width == 1);
    const int64_t ahead = job.reads_in_place() && in_step == 1 ? kGroup * in_stride : 0;
    if (call.exclusive)
      for (int64_t c = 0; c < width; ++c) job.start_row(at.out + c * out_step);
    for (int64_t i = 0; i < n; i += kGroup) {
      const Acc* x[kGroup];
      Acc* out[kGroup];
      for (int j = 0; j < kGroup; ++j) {
        const int64_t to = i + j + call.exclusive;
        x[j] = i + j < n ? fetch<Acc, true>(call.in, at.in + (i + j) * in_stride, in_step, width, copy + j * wide)
                         : absent;
        out[j] = write_in_place && to < n ? static_cast<Acc*>(call.out.values) + at.out + to * out_stride
                                          : results + j * wide;
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
    const Layout& layout = job.call.layout;
    const int64_t size = bytes(task.width);
    Scratch scratch(size);
    if (!scratch.data) return job.fail();
    __builtin_memset(scratch.data, 0, size_t(size));
    Odometer outer(layout, 0, layout.kept ? layout.kept - 1 : 0, begin / task.chunks);
    int64_t chunk = begin % task.chunks;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t c0 = chunk * task.width, width = task.inner - c0 < task.width ? task.inner - c0 : task.width;
      const RowStart at{outer.at.in + c0 * row_stride(layout),
                        outer.at.out + (layout.kept ? c0 * layout.out[layout.kept - 1] : 0)};
      ScanColumns(job, width, at, Carver{scratch.data}).walk();
      if (++chunk == task.chunks) {
        chunk = 0;
        outer.next();
      }
    }
  }
};

}  // namespace TR_ISA
}  // namespace torchreduce
