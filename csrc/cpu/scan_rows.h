// Scans along rows: eight rows at once, where they are short or the scan is better off so; else a row tile by tile; or
// block tile by block tile, in two passes, where rows are fewer than threads.
#pragma once
#include "cpu/scan_tile.h"

namespace torchreduce {
inline namespace TR_ISA {

// One call, as its tasks see it.
template <class Scan> struct ScanJob {
  using E = typename Scan::Result;  // as which elements are read, too
  using Wide = typename Scan::Wide;
  static constexpr int kInputs = Scan::kInputs;
  struct Input {
    Source source;
    int64_t stride, step;  // along a row, 1 where it has one element; from a row to the next
    int64_t readable;      // elements from source.data on
  };
  static constexpr int64_t kColumns = 512;  // of a chunk at most
  const ScanCall& call;
  ColumnChunks chunks;      // across rows
  int64_t blocks;           // block tiles of a row
  Wide* carries = nullptr;  // [rows][blocks]: totals of block tiles, then what lies before each; unused in one pass
  bool out_of_memory = false;
  Input input[kInputs];

  ScanJob(const ScanCall& c, int64_t threads)
      : call(c), chunks(c.layout, kColumns, threads), blocks((c.layout.length + kBlockTile - 1) / kBlockTile) {
    const Layout& l = c.layout;
    for (int k = 0; k < kInputs; ++k) {
      const auto& strides = is_a(k) ? c.more_strides[0] : l.in;
      input[k] = {c.in, l.reduced ? strides[l.kept] : 1, l.kept ? strides[l.kept - 1] : 0, last_offset(l, strides) + 1};
      if (k > 0) input[k].source.data = c.in.more[k - 1];
    }
  }
  TR_HD int64_t out_stride() const { return call.layout.reduced ? call.layout.out[call.layout.kept] : 1; }
  TR_HD bool reads_in_place() const { return call.in.dtype == DtypeOf<E>::value && !call.in.truth; }
  TR_HD bool writes_in_place() const { return call.out.dtype == DtypeOf<E>::value && !call.exclusive; }
  // Whether input k is linear_scan's a, which has strides of its own.
  TR_HD static constexpr bool is_a(int k) { return kInputs == 2 && k == 1; }
  // Where row r, whose first element is `in` elements from the first input's, starts in input k.
  TR_HD int64_t start(int k, int64_t row, int64_t in) const {
    return is_a(k) ? row_offset(call.layout, call.more_strides[0], row) : in;
  }
  // Whether input k has no first element in a row.
  TR_HD bool lacks_first(int k) const { return is_a(k) && call.shifted; }
  // Whether a row's first a counts as 0: it is not there, or of no use.
  TR_HD bool resets() const { return kInputs == 2 && (call.shifted || !call.options.initial); }
  // Elements [first, first + count) of the row that starts at `at` in input k: where they lie, or in `copy`.
  TR_HD const E* elements(int k, int64_t at, int64_t first, int64_t count, E* copy) const {
    const Input& x = input[k];
    const int64_t offset = at + first * x.stride;
    if (first == 0 && lacks_first(k)) {
      convert_run(x.source, offset + x.stride, x.stride, count - 1, copy + 1);
      return copy;
    }
    return fetch<E, true>(x.source, offset, x.stride, count, copy);
  }
  // What precedes a row.
  TR_HD Wide initial(int64_t row) const {
    if constexpr (kInputs == 2)
      if (const void* values = call.in.more[1]) {
        const int64_t offset = row_offset(call.layout, call.more_strides[1], row);
        return Scan::initial(load_as<E>(call.in.dtype, values, offset, false));
      }
    return Scan::wide_absent();
  }
  // Of eight rows, or of as many as there are from `row` on.
  TR_HD auto initial_of_eight(int64_t row) const {
    auto wide = eight(Scan::wide_absent());
    if constexpr (kInputs == 2)
      for (int i = 0; call.in.more[1] && i < 8 && row + i < call.layout.rows; ++i) set_lane(wide, i, initial(row + i));
    return wide;
  }
  TR_HD void start_row(int64_t out) const {
    if constexpr (kHasStart<Scan>) {
      const E start = Scan::start();
      if (call.exclusive) store_run(call.out.dtype, call.out.values, out, 1, 1, &start);
    }
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
  using E = typename Scan::Result;
  using Wide = typename Scan::Wide;
  static constexpr int kInputs = Scan::kInputs;
  static constexpr int64_t kStreamBytes = 1 << 25;  // results this large would not stay in the caches
  static constexpr int64_t kTinyRows = 128;         // of fewer elements than a group, that are taken at once
  static constexpr int64_t kBytes = (kInputs + 1) * Carver::bytes<E>(8 * kTile);
  static_assert(kTinyRows * (kGroup - 1) + kGroup <= 8 * kTile);

  ScanJob<Scan>& job;
  const ScanCall& call;
  E* copy[kInputs];  // [8][kTile], of which it may be one tile, or kTinyRows rows
  E* results;        // the same; behind `copy`

  TR_HD ScanRows(ScanJob<Scan>& j, char* scratch) : job(j), call(j.call) {
    Carver carver{scratch};
    for (E*& of_input : copy) of_input = carver.take<E>(8 * kTile);
    results = carver.take<E>(8 * kTile);
  }

  // Whether results at `out` are to go past the caches.
  TR_HD bool streams(const E* out) const {
    return reinterpret_cast<uintptr_t>(out) % 32 == 0 &&
           call.layout.rows * call.layout.length * int64_t(sizeof(E)) >= kStreamBytes;
  }

  // Tiles of positions [first, last) of the row at `at`; `carry` is what lies before them, and then after them.
  template <bool kTotal>
  void tiles(int64_t row, RowStart at, int64_t first, int64_t last, ScanCarry<Scan>& carry) {
    const bool in_place = job.writes_in_place() && job.out_stride() == 1;
    int64_t start[kInputs];
    for (int k = 0; k < kInputs; ++k) start[k] = job.start(k, row, at.in);
    for (int64_t i = first; i < last; i += kTile) {
      const int64_t count = last - i < kTile ? last - i : kTile;
      Runs<Scan> x;
      x.resets = i == 0 && job.resets();
      for (int k = 0; k < kInputs; ++k) {
        x.at[k] = job.elements(k, start[k], i, count, copy[k]);
        if (kSerial<Scan> || count == kTile) continue;
        if (x.at[k] != copy[k]) __builtin_memcpy(copy[k], x.at[k], size_t(count) * sizeof(E));
        for (int64_t j = count; j % 64 != 0; ++j) copy[k][j] = ScanLanes<Scan>::absent(k);
        x.at[k] = copy[k];
      }
      E* const out =
          in_place && (kSerial<Scan> || count == kTile) ? static_cast<E*>(call.out.values) + at.out + i : results;
      const bool stream = !kSerial<Scan> && out != results && streams(out);
      carry.push(scan_tile<Scan, kTotal>(x, count, carry.carry(), carry.within(), out, stream));
      if (!kTotal && out == results) job.store(at.out, i, count, results);
    }
  }

  // Rows [begin, end).
  void whole(int64_t begin, int64_t end) {
    for_even_rows(call.layout, begin, end,
                  [&](int64_t row, RowStart at, RowStart step, int64_t count) { even_rows(row, at, step, count); });
  }
  // `count` rows from row `first` on, at equal distances.
  void even_rows(int64_t first, RowStart at, RowStart step, int64_t count) {
    const int64_t n = call.layout.length;
    if (call.exclusive)
      for (int64_t r = 0; r < count; ++r) job.start_row(at.out + r * step.out);
    int64_t row = 0, start[kInputs];
    for (int k = 0; k < kInputs; ++k) start[k] = job.start(k, first, at.in);
    auto move = [&](int64_t rows) {
      for (int k = 0; k < kInputs; ++k) start[k] += rows * job.input[k].step;
      row += rows;
      at.out += rows * step.out;
    };
    while (n < kGroup && row < count) {
      const int64_t block = count - row < kTinyRows ? count - row : kTinyRows;
      tiny_rows(first + row, start, block);
      store_rows(at.out, step.out, block, 0, n, n);
      move(block);
    }
    for (; !kSerial<Scan> && (ScanLanes<Scan>::kLongRows || n < kTile) && row + 8 <= count; move(8))
      eight_rows(first + row, start, at.out, step.out);
    for (; row < count; move(1)) {
      ScanCarry<Scan> carry(job.initial(first + row));
      tiles<false>(first + row, {start[0], at.out}, 0, n, carry);
    }
  }
  // `rows` rows from row `first` on, which start at `start` in each input, of fewer elements than a group, to
  // `results`, one after the other.
  void tiny_rows(int64_t first, const int64_t (&start)[kInputs], int64_t rows) {
    const int64_t n = call.layout.length;
    for (int k = 0; k < kInputs; ++k) copy_rows(k, start[k], rows, 0, n, n, copy[k]);
    if (element_by_element(rows)) return;
    for (int64_t r = 0; r < rows; r += 8) {
      Runs<Scan> x;
      x.resets = job.resets();
      for (int k = 0; k < kInputs; ++k) {
        x.at[k] = copy[k] + r * n;
        x.step[k] = n;
      }
      ScanCarry<EightRows<Scan>> carry(job.initial_of_eight(first + r));
      scan_eight_rows<Scan>(x, n, carry, results + r * n, n, false);
    }
  }
  // Of those in `copy`; false if that does not do.
  TR_HD bool element_by_element(int64_t rows) {
    using Lanes = ScanLanes<Scan>;
    if constexpr (requires { &Lanes::next; }) {
      const int64_t n = call.layout.length;
      const E* const x = copy[0];
      for (int64_t r = 0; r < rows; ++r) {
        E last = results[r * n] = x[r * n];
        for (int64_t i = r * n + 1; i < r * n + n; ++i) results[i] = last = Lanes::next(last, x[i]);
      }
      return Lanes::all_allow_fast(x, results, rows * n);
    } else {
      return false;
    }
  }
  // Eight rows from row `first` on, tile by tile. The first one's results start at `to`, the others' `step` apart.
  void eight_rows(int64_t first, const int64_t (&start)[kInputs], int64_t to, int64_t step) {
    const int64_t n = call.layout.length;
    const bool write_in_place = job.writes_in_place() && job.out_stride() == 1;
    ScanCarry<EightRows<Scan>> carry(job.initial_of_eight(first));
    for (int64_t i = 0; i < n; i += kTile) {
      const int64_t some = n - i < kTile ? n - i : kTile, padded = (some + kGroup - 1) / kGroup * kGroup;
      Runs<Scan> x;
      x.resets = i == 0 && job.resets();
      for (int k = 0; k < kInputs; ++k) {
        const auto& in = job.input[k];
        const bool there = i > 0 || !job.lacks_first(k);
        const bool in_place = job.reads_in_place() && in.stride == 1 && in.step >= 0 && there;
        x.at[k] = copy[k];
        x.step[k] = padded;
        if (in_place && start[k] + 7 * in.step + i + padded <= in.readable) {
          x.at[k] = static_cast<const E*>(in.source.data) + start[k] + i;
          x.step[k] = in.step;
        } else {
          copy_rows(k, start[k], 8, i, some, padded, copy[k]);
        }
      }
      E* const out = write_in_place ? static_cast<E*>(call.out.values) + to + i : results;
      // Of whole cache lines: halves of lines take as long again.
      const bool stream = sizeof(E) == 8 && write_in_place && step % kGroup == 0 && streams(out);
      scan_eight_rows<Scan>(x, some, carry, out, write_in_place ? step : padded, stream);
      if (!write_in_place) store_rows(to, step, 8, i, some, padded);
    }
  }
  // Results of positions [first, first + count) of rows, which lie `pitch` elements apart in `results`.
  TR_HD void store_rows(int64_t out, int64_t step, int64_t rows, int64_t first, int64_t count, int64_t pitch) const {
    if (count == pitch && step == count && job.out_stride() == 1 && !call.exclusive)
      return store_run(call.out.dtype, call.out.values, out + first, 1, rows * count, results);
    for (int64_t r = 0; r < rows; ++r) job.store(out + r * step, first, count, results + r * pitch);
  }
  // Elements [first, first + count) of rows of input k, which begin `pitch` elements apart in `to`.
  TR_HD void copy_rows(int k, int64_t start, int64_t rows, int64_t first, int64_t count, int64_t pitch, E* to) const {
    const auto& in = job.input[k];
    const bool missing = first == 0 && job.lacks_first(k);
    if (in.stride == 1 && in.step == count && count == pitch && !missing)
      return convert_run(in.source, start + first, 1, rows * count, to);
    const int64_t from = start + (first + missing) * in.stride;
    for (int64_t r = 0; r < rows; ++r)
      convert_run(in.source, from + r * in.step, in.stride, count - missing, to + r * pitch + missing);
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
      tiles<kTotal>(row, at, first, last, carry);
      if (kTotal) job.carries[unit] = carry.blocks.slot[0];
    }
  }
  // Replaces the totals by what lies before each block tile, in order.
  static void carries(ScanJob<Scan>& job) {
    for (int64_t row = 0; row < job.call.layout.rows; ++row) {
      ScanCarry<Scan> carry(job.initial(row));
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
