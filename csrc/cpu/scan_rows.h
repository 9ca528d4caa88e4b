// Scans along rows: a row tile by tile, eight short rows at once, or block tile by block tile, in two passes, where rows are
// fewer than threads.
#pragma once
#include "cpu/scan_tile.h"

namespace torchreduce {
inline namespace TR_ISA {

// One call, as its tasks see it.
template <class Scan> struct ScanJob {
  using Acc = typename Scan::Acc;
  using Wide = typename Scan::Wide;
  const ScanCall& call;
  int64_t blocks;  // block tiles of a row
  Wide* carries;   // [rows][blocks]: totals of block tiles, then what lies before each; unused in one pass
  bool out_of_memory = false;

  // Strides along a row.
  TR_HD int64_t in_stride() const { return position_stride(call.layout); }
  TR_HD int64_t out_stride() const { return call.layout.reduced ? call.layout.out[call.layout.kept] : 0; }
  TR_HD bool reads_in_place() const { return call.in.dtype == DtypeOf<Acc>::value && !call.in.truth; }
  TR_HD bool writes_in_place() const { return call.out_dtype == DtypeOf<Acc>::value && !call.exclusive; }
  TR_HD void start_row(int64_t out) const {
    const Acc start = Scan::start();
    if (call.exclusive) store_run(call.out_dtype, call.out, out, 1, 1, &start);
  }
  // Results of positions [first, first + count) of the row that starts at `out`.
  TR_HD void store(int64_t out, int64_t first, int64_t count, const Acc* values) const {
    if (call.exclusive) {
      ++first;
      if (first + count > call.layout.length) --count;
    }
    store_run(call.out_dtype, call.out, out + first * out_stride(), out_stride(), count, values);
  }
  TR_HD void fail() { __atomic_store_n(&out_of_memory, true, __ATOMIC_RELAXED); }
};

template <class Scan> struct ScanRows {
  using Acc = typename Scan::Acc;
  using Wide = typename Scan::Wide;
  static constexpr int64_t kBytes = 2 * Carver::bytes<Acc>(8 * kTile);

  ScanJob<Scan>& job;
  const ScanCall& call;
  Acc* copy;     // [8][kTile]
  Acc* results;  // the same

  TR_HD ScanRows(ScanJob<Scan>& j, char* scratch) : job(j), call(j.call) {
    Carver carver{scratch};
    copy = carver.take<Acc>(8 * kTile);
    results = carver.take<Acc>(8 * kTile);
  }

  // Tiles of positions [first, last) of the row at `at`; `carry` is what lies before them, and then after them.
  template <bool kTotal> void tiles(RowStart at, int64_t first, int64_t last, ScanCarry<Scan>& carry) {
    const int64_t stride = job.in_stride();
    const bool in_place = job.writes_in_place() && job.out_stride() == 1;
    for (int64_t i = first; i < last; i += kTile) {
      const int64_t count = last - i < kTile ? last - i : kTile;
      const Acc* x = fetch<Acc, true>(call.in, at.in + i * stride, stride, count, copy);
      if (count < kTile) {
        if (x != copy) __builtin_memcpy(copy, x, size_t(count) * sizeof(Acc));
        for (int64_t j = count; j % 64 != 0; ++j) copy[j] = Scan::absent();
        x = copy;
      }
      Acc* const out = in_place && count == kTile ? static_cast<Acc*>(call.out) + at.out + i : results;
      carry.push(scan_tile<Scan, kTotal>(x, count, carry.carry(), carry.within(), out));
      if (!kTotal && out == results) job.store(at.out, i, count, results);
    }
  }

  // Rows that start at starts[0..8), of at most a tile.
  void eight(const RowStart* starts) {
    const int64_t n = call.layout.length, padded = (n + 7) / 8 * 8, stride = job.in_stride();
    bool even_in = stride == 1, even_out = job.out_stride() == 1;  // rows at equal distances, each contiguous
    const int64_t in_step = starts[1].in - starts[0].in, out_step = starts[1].out - starts[0].out;
    for (int r = 1; r < 8; ++r) {
      even_in = even_in && starts[r].in - starts[r - 1].in == in_step;
      even_out = even_out && starts[r].out - starts[r - 1].out == out_step;
    }
    const Acc* x = copy;
    int64_t step = padded;
    if (even_in && job.reads_in_place() && in_step >= 0 && starts[7].in + padded <= last_offset(call.layout) + 1) {
      x = static_cast<const Acc*>(call.in.data) + starts[0].in;
      step = in_step;
    } else if (even_in && in_step == n) {
      x = fetch<Acc, true>(call.in, starts[0].in, 1, 8 * n, copy);
      step = n;
      if (x != copy) __builtin_memcpy(copy, x, size_t(8 * n) * sizeof(Acc));
      x = copy;
    } else {
      for (int r = 0; r < 8; ++r) {
        Acc* const row = copy + r * padded;
        const Acc* const p = fetch<Acc, true>(call.in, starts[r].in, stride, n, row);
        if (p != row) __builtin_memcpy(row, p, size_t(n) * sizeof(Acc));
      }
    }
    if (even_out && n == padded && job.writes_in_place()) {
      scan_eight_rows<Scan>(x, step, n, static_cast<Acc*>(call.out) + starts[0].out, out_step);
      return;
    }
    scan_eight_rows<Scan>(x, step, n, results, padded);
    if (even_out && n == padded && out_step == n && !call.exclusive)
      store_run(call.out_dtype, call.out, starts[0].out, 1, 8 * n, results);
    else
      for (int r = 0; r < 8; ++r) job.store(starts[r].out, 0, n, results + r * padded);
  }

  // Rows [begin, end).
  void whole(int64_t begin, int64_t end) {
    Odometer cursor(call.layout, 0, call.layout.kept, begin);
    const bool few = call.layout.length > kTile;
    for (int64_t row = begin; row < end;) {
      RowStart starts[8];
      const int count = few || end - row < 8 ? 1 : 8;
      for (int r = 0; r < count; ++r) {
        starts[r] = cursor.at;
        job.start_row(cursor.at.out);
        cursor.next();
      }
      if (count == 8) {
        eight(starts);
      } else {
        ScanCarry<Scan> carry;
        tiles<false>(starts[0], 0, call.layout.length, carry);
      }
      row += count;
    }
  }

  // Block tiles [begin, end), counted through all rows: their totals (kTotal), or from their carries the results.
  template <bool kTotal> void block_tiles(int64_t begin, int64_t end) {
    const int64_t n = call.layout.length;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t row = unit / job.blocks, first = unit % job.blocks * kBlockTile;
      const int64_t last = n - first < kBlockTile ? n : first + kBlockTile;
      if (kTotal && last == n) continue;  // nothing comes after it
      const RowStart at = row_start(call.layout, row);
      ScanCarry<Scan> carry;
      if (!kTotal) {
        carry.block_carry = job.carries[unit];
        if (first == 0) job.start_row(at.out);
      }
      tiles<kTotal>(at, first, last, carry);
      if (kTotal) job.carries[unit] = carry.carry();
    }
  }
  // Replaces the totals by what lies before each block tile, in order.
  static void carries(ScanJob<Scan>& job) {
    for (int64_t row = 0; row < job.call.layout.rows; ++row) {
      ScanCarry<Scan> carry;
      for (int64_t b = 0; b < job.blocks; ++b) {
        Wide& slot = job.carries[row * job.blocks + b];
        const Wide total = slot;
        slot = carry.carry();
        if (b + 1 < job.blocks) carry.push_block(total);
      }
    }
  }

  enum class Pass { Whole, Totals, Results };
  template <Pass kPass> static void body(void* context, int64_t begin, int64_t end) {
    auto& job = *static_cast<ScanJob<Scan>*>(context);
    Scratch scratch(kBytes);
    if (!scratch.data) return job.fail();
    __builtin_memset(scratch.data, 0, size_t(kBytes));
    ScanRows rows(job, scratch.data);
    if constexpr (kPass == Pass::Whole) rows.whole(begin, end);
    else rows.template block_tiles<kPass == Pass::Totals>(begin, end);
  }
};

}  // namespace TR_ISA
}  // namespace torchreduce
