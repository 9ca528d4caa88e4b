// Scans along rows: a row tile by tile, eight short rows at once, or block tile by block tile, in two passes, where
// rows are fewer than threads.
#pragma once
#include "cpu/scan_tile.h"

namespace torchreduce {
inline namespace TR_ISA {

// One call, as its tasks see it.
template <class Scan> struct ScanJob {
  using E = typename Scan::Item;  // of a result, too
  using Wide = typename Scan::Wide;
  const ScanCall& call;
  int64_t blocks;  // block tiles of a row
  Wide* carries;   // [rows][blocks]: totals of block tiles, then what lies before each; unused in one pass
  bool out_of_memory = false;

  // Strides along a row; 1 where it has one element.
  TR_HD int64_t in_stride() const { return call.layout.reduced ? call.layout.in[call.layout.kept] : 1; }
  TR_HD int64_t out_stride() const { return call.layout.reduced ? call.layout.out[call.layout.kept] : 1; }
  TR_HD bool reads_in_place() const { return call.in.dtype == DtypeOf<E>::value && !call.in.truth; }
  TR_HD bool writes_in_place() const { return call.out.dtype == DtypeOf<E>::value && !call.exclusive; }
  TR_HD void start_row(int64_t out) const {
    const E start = Scan::start();
    if (call.exclusive) store_run(call.out.dtype, call.out.values, out, 1, 1, &start);
  }
  // Results of positions [first, first + count) of the row that starts at `out`.
  TR_HD void store(int64_t out, int64_t first, int64_t count, const E* values) const {
    if (call.exclusive) {
      ++first;
      if (first + count > call.layout.length) --count;
    }
    store_run(call.out.dtype, call.out.values, out + first * out_stride(), out_stride(), count, values);
  }
  TR_HD void fail() { __atomic_store_n(&out_of_memory, true, __ATOMIC_RELAXED); }
};

template <class Scan> struct ScanRows {
  using E = typename Scan::Item;
  using Wide = typename Scan::Wide;
  static constexpr int64_t kStreamBytes = 1 << 25;  // results this large would not stay in the caches
  static constexpr int64_t kShortRow = 128;         // rows up to here are scanned eight at once
  static constexpr int64_t kTinyRows = 128;         // of fewer elements than a group, that are taken at once
  static constexpr int64_t kBytes = 2 * Carver::bytes<E>(8 * kShortRow);
  static_assert(kTinyRows * (kGroup - 1) + kGroup <= 8 * kShortRow);

  ScanJob<Scan>& job;
  const ScanCall& call;
  E* copy;     // [8][kShortRow], or a tile, or kTinyRows rows
  E* results;  // the same; behind `copy`

  TR_HD ScanRows(ScanJob<Scan>& j, char* scratch) : job(j), call(j.call) {
    Carver carver{scratch};
    copy = carver.take<E>(8 * kShortRow);
    results = carver.take<E>(8 * kShortRow);
  }

  // Whether results at `out` are to go past the caches.
  TR_HD bool streams(const E* out) const {
    return reinterpret_cast<uintptr_t>(out) % 32 == 0 &&
           call.layout.rows * call.layout.length * int64_t(sizeof(E)) >= kStreamBytes;
  }

  // Tiles of positions [first, last) of the row at `at`; `carry` is what lies before them, and then after them.
  template <bool kTotal> void tiles(RowStart at, int64_t first, int64_t last, ScanCarry<Scan>& carry) {
    const int64_t stride = job.in_stride();
    const bool in_place = job.writes_in_place() && job.out_stride() == 1;
    for (int64_t i = first; i < last; i += kTile) {
      const int64_t count = last - i < kTile ? last - i : kTile;
      const E* x = fetch<E, true>(call.in, at.in + i * stride, stride, count, copy);
      if (count < kTile) {
        if (x != copy) __builtin_memcpy(copy, x, size_t(count) * sizeof(E));
        for (int64_t j = count; j % 64 != 0; ++j) copy[j] = Scan::absent_item();
        x = copy;
      }
      E* const out = in_place && count == kTile ? static_cast<E*>(call.out.values) + at.out + i : results;
      const bool stream = out != results && streams(out);
      carry.push(scan_tile<Scan, kTotal>(x, count, carry.carry(), carry.within(), out, stream));
      if (!kTotal && out == results) job.store(at.out, i, count, results);
    }
  }

  // Rows [begin, end).
  void whole(int64_t begin, int64_t end) {
    for_even_rows(call.layout, begin, end,
                  [&](RowStart at, RowStart step, int64_t count) { even_rows(at, step, count); });
  }
  // `count` rows at equal distances.
  void even_rows(RowStart at, RowStart step, int64_t count) {
    const int64_t n = call.layout.length, padded = (n + kGroup - 1) / kGroup * kGroup;
    const int64_t readable = last_offset(call.layout) + 1;
    const bool read_in_place = job.reads_in_place() && job.in_stride() == 1 && step.in >= 0;
    const bool write_in_place = job.writes_in_place() && job.out_stride() == 1;
    const bool read_flat = job.in_stride() == 1 && step.in == n && n == padded;
    const bool write_flat = !call.exclusive && n == padded && job.out_stride() == 1 && step.out == n;
    if (call.exclusive)
      for (int64_t r = 0; r < count; ++r) job.start_row(at.out + r * step.out);
    using Lanes = ScanLanes<Scan>;
    int64_t row = 0;
    while (n < kGroup && row < count) {
      const int64_t block = count - row < kTinyRows ? count - row : kTinyRows;
      if (job.in_stride() == 1 && step.in == n) convert_run(call.in, at.in, 1, block * n, copy);
      else
        for (int64_t r = 0; r < block; ++r) convert_run(call.in, at.in + r * step.in, job.in_stride(), n, copy + r * n);
      for (int64_t r = 0; r < block; ++r) {
        E last = results[r * n] = copy[r * n];
        for (int64_t i = r * n + 1; i < r * n + n; ++i) results[i] = last = Lanes::next(last, copy[i]);
      }
      const bool plain = Lanes::are_plain(copy, results, block * n);
      for (int64_t r = 0; r < block && !plain; r += 8)
        scan_eight_rows<Scan>(copy + r * n, n, n, results + r * n, n, false);
      if (job.out_stride() == 1 && step.out == n && !call.exclusive)
        store_run(call.out.dtype, call.out.values, at.out, 1, block * n, results);
      else
        for (int64_t r = 0; r < block; ++r) job.store(at.out + r * step.out, 0, n, results + r * n);
      row += block;
      at.in += block * step.in;
      at.out += block * step.out;
    }
    for (; n <= kShortRow && row + 8 <= count; row += 8, at.in += 8 * step.in, at.out += 8 * step.out) {
      const E* x = copy;
      if (read_in_place && at.in + 7 * step.in + padded <= readable) x = static_cast<const E*>(call.in.data) + at.in;
      else if (read_flat) convert_run(call.in, at.in, 1, 8 * n, copy);
      else
        for (int r = 0; r < 8; ++r) convert_run(call.in, at.in + r * step.in, job.in_stride(), n, copy + r * padded);
      E* const out = write_in_place ? static_cast<E*>(call.out.values) + at.out : results;
      // Of whole cache lines: halves of lines take as long again.
      const bool stream = sizeof(E) == 8 && write_in_place && step.out % kGroup == 0 && streams(out);
      scan_eight_rows<Scan>(x, x == copy ? padded : step.in, n, out, write_in_place ? step.out : padded, stream);
      if (write_in_place) continue;
      if (write_flat) store_run(call.out.dtype, call.out.values, at.out, 1, 8 * n, results);
      else
        for (int r = 0; r < 8; ++r) job.store(at.out + r * step.out, 0, n, results + r * padded);
    }
    for (; row < count; ++row, at.in += step.in, at.out += step.out) {
      ScanCarry<Scan> carry;
      tiles<false>(at, 0, n, carry);
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
    fence_streams();
  }
};

}  // namespace TR_ISA
}  // namespace torchreduce
