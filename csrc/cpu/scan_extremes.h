// Scans that find the latest among the greatest, cummax and cummin: exact in any order, so that nothing is kept to
// groups and tiles. Eight elements at a time, which most often change nothing; eight columns at a time across rows that
// lie side by side; where rows are fewer than threads, block tile by block tile, in two passes.
#pragma once
#include "cpu/eight.h"

namespace torchreduce {
inline namespace TR_ISA {

// E is the type that elements are read as: 16-bit floats their own, all others their accumulator.
template <class S, class E> struct ScanExtremes {
  static constexpr bool kConvert = sizeof(E) > 2;
  using Order = typename S::Order;
  using Key = typename Order::Key;     // also an element's bits
  using Wide = decltype(S::Acc::key);  // keys of at least 32 bits
  using V = Eight<Wide>;
  static constexpr int64_t kRun = 512;       // elements of a run at most: rows, or a part of one
  static constexpr int64_t kRarely = 64;     // of rows from here on, eight elements are likely to change nothing
  static constexpr int64_t kColumns = 2048;  // of a chunk at most
  static constexpr int kSteps = 4;           // positions of columns that are taken at once

  // The latest among the greatest so far, and the canonical bits of the element and its index.
  struct Found {
    Wide key = Order::kLowest;
    Key value = 0;
    int64_t index = 0;

    // Of a row, by position.
    TR_HD void take(const Found& later) {
      if (later.key >= key) *this = later;
    }
  };
  // One call, as its tasks see it.
  struct Job {
    const ScanCall& call;
    ColumnChunks chunks;       // across rows
    int64_t blocks;            // block tiles of a row
    Found* carries = nullptr;  // [rows][blocks]: totals of block tiles, then what lies before each; unused in one pass
    bool out_of_memory = false;

    Job(const ScanCall& c, int64_t threads)
        : call(c), chunks(c.layout, kColumns, threads), blocks((c.layout.length + kBlockTile - 1) / kBlockTile) {}
    TR_HD void fail() { __atomic_store_n(&out_of_memory, true, __ATOMIC_RELAXED); }
  };

  const ScanCall& call;
  const bool min;
  const int64_t in_stride, out_stride;  // along a row
  const int64_t forward;                // from an index to the next one
  E* copy;                              // of as many elements as are taken at once
  E* values;                            // the same
  int64_t* indices;                     // the same

  static constexpr int64_t bytes(int64_t most) { return 2 * Carver::bytes<E>(most) + Carver::bytes<int64_t>(most); }
  ScanExtremes(const Job& job, Carver& carver, int64_t most)
      : call(job.call),
        min(job.call.options.min),
        in_stride(call.layout.reduced ? call.layout.in[call.layout.kept] : 1),
        out_stride(call.layout.reduced ? call.layout.out[call.layout.kept] : 1),
        forward(call.reverse ? -1 : 1),
        copy(carver.take<E>(most)),
        values(carver.take<E>(most)),
        indices(carver.take<int64_t>(most)) {}

  // ---- elements ------------------------------------------------------------------------------------------------------

  // B is Key or a vector of Keys.
  template <class B> TR_HD B key(B bits) const { return Order::key(bits, min, true); }
  template <class B> TR_HD static B canonical_bits(B bits) {
    if constexpr (Order::kFloat) return (bits & Order::kGreatest) > Key(Order::kInf) ? B{} + Key(Order::kNaN) : bits;
    else return bits;
  }
  template <int... kIndex> TR_HD static V lanes(std::integer_sequence<int, kIndex...>) { return V{Wide(kIndex)...}; }
  TR_HD static V lanes() { return lanes(std::make_integer_sequence<int, 8>()); }

  TR_HD static V greater(V a, V b) { return a > b ? a : b; }
  // Inclusive maxima from lane 0 on.
  template <int kApart, int... kIndex> TR_HD static V running_step(V v, std::integer_sequence<int, kIndex...>) {
    return greater(v, __builtin_shuffle(v, V{Wide(kIndex < kApart ? kIndex : kIndex - kApart)...}));
  }
  TR_HD static V running_maxima(V v) {
    constexpr auto kAll = std::make_integer_sequence<int, 8>();
    return running_step<4>(running_step<2>(running_step<1>(v, kAll), kAll), kAll);
  }

  // ---- along rows ----------------------------------------------------------------------------------------------------

  // `count` elements at x whose first has the index `index`: their results, or with kTotal none.
  template <bool kTotal> TR_HD void take(const E* x, int64_t count, int64_t index, Found& found, E* value,
                                         int64_t* at) const {
    const bool rarely = call.layout.length >= kRarely;
    int64_t i = 0;
    for (; i + 8 <= count; i += 8, index += 8 * forward) {
      if (i * sizeof(E) % 64 == 0) prefetch_ahead(x + i);
      const Eight<Key> bits = load<Eight<Key>>(x + i);
      const V keys = __builtin_convertvector(key(bits), V);
      if (rarely && !any_set(keys >= V{} + found.key)) {
        if constexpr (!kTotal) {
          store(value + i, Eight<Key>{} + found.value);
          store(at + i, Eight<int64_t>{} + found.index);
        }
        continue;
      }
      // A lane that holds its maximum is the latest that does, up to it.
      const V greatest = running_maxima(greater(keys, V{} + found.key));
      const V from = running_maxima(keys == greatest ? lanes() : V{} - 1);
      const auto places = __builtin_convertvector(from, Eight<Key>);
      const auto none = __builtin_convertvector(from < 0, Eight<Key>);
      const Eight<Key> canonical = canonical_bits(bits), before = Eight<Key>{} + found.value;
      const Eight<Key> chosen = none ? before : __builtin_shuffle(canonical, places & 7);
      const Eight<int64_t> place = __builtin_convertvector(from, Eight<int64_t>);
      const Eight<int64_t> chosen_index = place < 0 ? Eight<int64_t>{} + found.index : index + place * forward;
      if constexpr (!kTotal) {
        store(value + i, chosen);
        store(at + i, chosen_index);
      }
      found = {greatest[7], chosen[7], chosen_index[7]};
    }
    for (; i < count; ++i, index += forward) {
      const Key bits = Order::bits_of(x[i]);
      found.take({key(bits), canonical_bits(bits), index});
      if constexpr (!kTotal) {
        value[i] = bit_cast<E>(found.value);
        at[i] = found.index;
      }
    }
  }

  // Positions [first, last) of the `count` rows from `at` on, `step` apart, each scanned from `found` on; what is found
  // of the last row. Either one row or whole ones, kRun elements at most.
  template <bool kTotal>
  TR_HD void rows(RowStart at, RowStart step, int64_t count, int64_t first, int64_t last, Found& found) const {
    const int64_t n = last - first, total = count * n;
    const bool in_flat = in_stride == 1 && (count == 1 || step.in == n);
    const bool out_flat = out_stride == 1 && (count == 1 || step.out == n);
    const E* x = copy;
    if (in_flat) x = fetch<E, kConvert>(call.in, at.in + first, 1, total, copy);
    else
      for (int64_t r = 0; r < count; ++r) {
        const E* row = fetch<E, kConvert>(call.in, at.in + r * step.in + first * in_stride, in_stride, n, copy + r * n);
        if (row != copy + r * n) __builtin_memcpy(copy + r * n, row, size_t(n) * sizeof(E));
      }
    const bool in_place = out_flat && (!kConvert || call.out.dtype == DtypeOf<E>::value);
    E* const value = in_place ? static_cast<E*>(call.out.values) + at.out + first : values;
    int64_t* const index = out_flat ? call.out.indices + at.out + first : indices;
    const Found before = found;
    for (int64_t r = 0; r < count; ++r) {
      found = before;
      take<kTotal>(x + r * n, n, call.index_of(first), found, value + r * n, index + r * n);
    }
    if (kTotal) return;
    if (out_flat) {
      if (!in_place) keep(at.out + first, 1, total, values);
      return;
    }
    for (int64_t r = 0; r < count; ++r) {
      const int64_t to = at.out + r * step.out + first * out_stride;
      keep(to, out_stride, n, values + r * n);
      for (int64_t i = 0; i < n; ++i) call.out.indices[to + i * out_stride] = indices[r * n + i];
    }
  }
  // Values to where they belong.
  TR_HD void keep(int64_t to, int64_t stride, int64_t count, const E* from) const {
    if constexpr (kConvert) {
      store_run(call.out.dtype, call.out.values, to, stride, count, from);
    } else {
      E* const out = static_cast<E*>(call.out.values) + to;
      for (int64_t i = 0; i < count; ++i) out[i * stride] = from[i];
    }
  }

  // Positions [first, last) of one row.
  template <bool kTotal> void part(RowStart at, int64_t first, int64_t last, Found& found) const {
    for (int64_t i = first; i < last; i += kRun)
      rows<kTotal>(at, {0, 0}, 1, i, last - i < kRun ? last : i + kRun, found);
  }

  static void whole_rows(void* context, int64_t begin, int64_t end) {
    Job& job = *static_cast<Job*>(context);
    Scratch scratch(bytes(kRun));
    if (!scratch.data) return job.fail();
    Carver carver{scratch.data};
    const ScanExtremes scan(job, carver, kRun);
    const int64_t n = job.call.layout.length;
    for_even_rows(job.call.layout, begin, end, [&](int64_t, RowStart at, RowStart step, int64_t count) {
      for (int64_t some = 0; count > 0; count -= some, at.in += some * step.in, at.out += some * step.out) {
        Found found;
        some = n < kRun / 2 ? kRun / n : 1;
        some = some < count ? some : count;
        if (some > 1) scan.template rows<false>(at, step, some, 0, n, found);
        else scan.template part<false>(at, 0, n, found);
      }
    });
  }
  // Tasks are block tiles, counted through all rows.
  template <bool kTotal> static void block_tiles(void* context, int64_t begin, int64_t end) {
    Job& job = *static_cast<Job*>(context);
    Scratch scratch(bytes(kRun));
    if (!scratch.data) return job.fail();
    Carver carver{scratch.data};
    const ScanExtremes scan(job, carver, kRun);
    const int64_t n = job.call.layout.length;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t first = unit % job.blocks * kBlockTile, last = n - first < kBlockTile ? n : first + kBlockTile;
      if (kTotal && last == n) continue;  // nothing comes after it
      Found found = kTotal ? Found() : job.carries[unit];
      scan.template part<kTotal>(row_start(job.call.layout, unit / job.blocks), first, last, found);
      if (kTotal) job.carries[unit] = found;
    }
  }
  // Replaces the totals by what lies before each block tile.
  static void carries(const Job& job) {
    for (int64_t row = 0; row < job.call.layout.rows; ++row) {
      Found before;
      Found* const end = job.carries + (row + 1) * job.blocks;
      for (Found* slot = end - job.blocks; slot < end; ++slot) {
        const Found total = *slot;
        *slot = before;
        if (slot + 1 < end) before.take(total);  // the last one has none
      }
    }
  }

  // ---- across rows ---------------------------------------------------------------------------------------------------

  // What is found so far of the columns of a chunk.
  struct Columns {
    Wide* key;
    Key* value;
    int64_t* index;

    static constexpr int64_t kBytes =
        Carver::bytes<Wide>(kColumns) + Carver::bytes<Key>(kColumns) + Carver::bytes<int64_t>(kColumns);
    TR_HD Columns(Carver& carver)
        : key(carver.take<Wide>(kColumns)), value(carver.take<Key>(kColumns)), index(carver.take<int64_t>(kColumns)) {}
  };

  // `count` positions of `width` columns from `position` on, x[j] their elements at the j-th of them; their results go
  // to value[j] and at[j].
  TR_HD void steps(const Columns& found, const E* const* x, int64_t width, int64_t position, int count, E* const* value,
                   int64_t* const* at) const {
    int64_t c = 0;
    for (; c + 8 <= width; c += 8) {
      V greatest = load<V>(found.key + c);
      Eight<Key> chosen = load<Eight<Key>>(found.value + c);
      Eight<int64_t> from = load<Eight<int64_t>>(found.index + c);
      for (int j = 0; j < count; ++j) {
        const Eight<Key> bits = load<Eight<Key>>(x[j] + c);
        const V keys = __builtin_convertvector(key(bits), V), later = keys >= greatest;
        greatest = later ? keys : greatest;
        chosen = __builtin_convertvector(later, Eight<Key>) ? canonical_bits(bits) : chosen;
        from = __builtin_convertvector(later, Eight<int64_t>) ? Eight<int64_t>{} + call.index_of(position + j) : from;
        store(value[j] + c, chosen);
        store(at[j] + c, from);
      }
      store(found.key + c, greatest);
      store(found.value + c, chosen);
      store(found.index + c, from);
    }
    for (; c < width; ++c) {
      Found last{found.key[c], found.value[c], found.index[c]};
      for (int j = 0; j < count; ++j) {
        const Key bits = Order::bits_of(x[j][c]);
        last.take({key(bits), canonical_bits(bits), call.index_of(position + j)});
        value[j][c] = bit_cast<E>(last.value);
        at[j][c] = last.index;
      }
      found.key[c] = last.key;
      found.value[c] = last.value;
      found.index[c] = last.index;
    }
  }
  // All positions of `width` columns from `start` on.
  void walk(RowStart start, int64_t width, const Columns& found) const {
    const Layout& layout = call.layout;
    const int64_t in_step = row_stride(layout), out_step = layout.kept ? layout.out[layout.kept - 1] : 0;
    const bool out_flat = out_step == 1 || width == 1;
    const bool in_place = out_flat && (!kConvert || call.out.dtype == DtypeOf<E>::value);
    for (int64_t c = 0; c < width; ++c) found.key[c] = Found().key;
    for (int64_t i = 0; i < layout.length; i += kSteps) {
      const E* x[kSteps];
      E* value[kSteps];
      int64_t* at[kSteps];
      const int count = int(layout.length - i < kSteps ? layout.length - i : kSteps);
      for (int j = 0; j < count; ++j) {
        const int64_t to = start.out + (i + j) * out_stride;
        x[j] = fetch<E, kConvert>(call.in, start.in + (i + j) * in_stride, in_step, width, copy + j * kColumns);
        value[j] = in_place ? static_cast<E*>(call.out.values) + to : values + j * kColumns;
        at[j] = out_flat ? call.out.indices + to : indices + j * kColumns;
      }
      steps(found, x, width, i, count, value, at);
      for (int j = 0; j < count; ++j) {
        const int64_t to = start.out + (i + j) * out_stride;
        if (!in_place) keep(to, out_step, width, value[j]);
        if (!out_flat)
          for (int64_t c = 0; c < width; ++c) call.out.indices[to + c * out_step] = at[j][c];
      }
    }
  }
  static void chunks(void* context, int64_t begin, int64_t end) {
    Job& job = *static_cast<Job*>(context);
    constexpr int64_t kMost = kSteps * kColumns;
    Scratch scratch(bytes(kMost) + Columns::kBytes);
    if (!scratch.data) return job.fail();
    Carver carver{scratch.data};
    const ScanExtremes scan(job, carver, kMost);
    const Columns found(carver);
    job.chunks.each(begin, end, [&](int64_t, RowStart at, int64_t width) { scan.walk(at, width, found); });
  }
};

}  // namespace TR_ISA
}  // namespace torchreduce
