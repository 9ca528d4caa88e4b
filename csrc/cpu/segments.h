// Reductions by segments (csrc/plan/segment_call.h) on the CPU. A task has segments of about as many rows as the
// others; it takes one after the other. Few columns are gathered one by one, so that loops go along a leaf; of many
// columns some are taken together, and loops go across them.
#pragma once
#include "cpu/cpu.h"
#include "cpu/lanes.h"
#include "plan/segment_call.h"

namespace torchreduce {
inline namespace TR_ISA {

constexpr int64_t kSegmentColumns = 256;  // at a time
constexpr int64_t kGathered = 4;          // columns at most that are gathered one by one
constexpr int kTogether = 8;              // neighbouring residues of one row each that are added up at once

template <class Op> struct Reducer {
  template <class V> TR_HD static V combine(V left, V right) { return Op::combine(left, right); }
};

// `count` elements, `stride` apart from `offset` on, as keys.
inline void key_run(const SegmentReduction& call, bool merge_zeros, int64_t offset, int64_t stride, int64_t count,
                    int64_t* keys) {
  const bool min = call.options.min;
#define TR_CASE(T)                                                                       \
  case DtypeOf<T>::value: {                                                              \
    const T* const p = static_cast<const T*>(call.in.data) + offset;                     \
    for (int64_t i = 0; i < count; ++i)                                                  \
      keys[i] = Ordering<T>::key(Ordering<T>::bits_of(p[i * stride]), min, merge_zeros); \
  } break;
  switch (call.in.dtype) { TR_FOR_EACH_TYPE(TR_CASE) }
#undef TR_CASE
}

template <class Op> struct SegmentRows {
  using In = typename Op::Element;
  using Acc = typename Op::Acc;
  static constexpr bool kVectors = kIsSumOf<Op> && is_float_type<In>;
  using Stack = ColumnStack<Reducer<Op>, Acc, std::conditional_t<kVectors, Vec<In>, Acc>>;
  static constexpr int kResidueLevels = 9, kLeafLevels = 31;

  const SegmentReduction& call;
  int64_t tile, tiles, chunks;  // a task has one of `chunks` of the segments, and one of `tiles` of the columns
  bool out_of_memory = false;

  static int64_t bytes(int64_t width) {
    return Stack::bytes(kResidueLevels, width) + Stack::bytes(kLeafLevels, width) +
           Carver::bytes<In>(kTogether * width) + Carver::bytes<In>(width) + Carver::bytes<Acc>(width) +
           Carver::bytes<Acc>(kResidues) + Carver::bytes<In>(kLeaf);
  }

  // `count` elements, `stride` apart from `offset` on: in place, or in `copy`.
  const In* elements(int64_t offset, int64_t stride, int64_t count, In* copy) const {
    if constexpr (kOfKeys<Op>) {
      key_run(call, Op::kIndexed, offset, stride, count, copy);
      return copy;
    } else {
      return fetch<In, true>(call.in, offset, stride, count, copy);
    }
  }
  // Those of a row.
  const In* row(int64_t base, int64_t place, int64_t count, In* copy) const {
    return elements(base + call.row_at(place) * call.row_stride, call.inner_stride, count, copy);
  }
  // Asks for rows that are needed soon, which lie anywhere: those of the segments that follow, too.
  void prefetch(int64_t base, int64_t place, int64_t count) const {
    const int size = size_of(call.in.dtype);
    place += kTogether * least(8, 1 + 1024 / (count * size));
    for (int64_t p = place; p < least(call.rows, place + kTogether); ++p) {
      const char* const x = static_cast<const char*>(call.in.data) + (base + call.row_at(p) * call.row_stride) * size;
      for (int64_t byte = 0; byte < count * size; byte += 64) __builtin_prefetch(x + byte);
    }
  }

  // ---- few columns: along a leaf -------------------------------------------------------------------------------------

  // x: the elements of a leaf, which begins at row `first` of its segment.
  static Acc leaf(const In* x, int64_t count, int64_t first, Acc* residues) {
    const int64_t wide = least(count, kResidues);
    int64_t slots = 1;
    while (slots < wide) slots *= 2;
    for (int64_t i = 0; i < wide; ++i) residues[i] = Op{}.load(x[i], first + i);
    for (int64_t i = wide; i < slots; ++i) residues[i] = Op::absent();
    for (int64_t from = kResidues; from < count; from += kResidues)
      for (int64_t i = 0; i < least(kResidues, count - from); ++i)
        residues[i] = step(Op{}, residues[i], x[from + i], first + from + i);
    for (; slots > 1; slots /= 2)
      for (int64_t i = 0; i < slots / 2; ++i) residues[i] = Op::combine(residues[2 * i], residues[2 * i + 1]);
    return residues[0];
  }
  // The elements of a column at `count` places, one after the other: in place, or in `copy`.
  const In* gathered(int64_t base, int64_t first, int64_t count, In* copy) const {
    if (!call.order) return elements(base + first * call.row_stride, call.row_stride, count, copy);
#define TR_CASE(T)                                                                           \
  case DtypeOf<T>::value: {                                                                  \
    const T* const p = static_cast<const T*>(call.in.data) + base;                           \
    for (int64_t i = 0; i < count; ++i) {                                                    \
      const T e = p[call.row_at(first + i) * call.row_stride];                               \
      if constexpr (kOfKeys<Op>) {                                                           \
        copy[i] = Ordering<T>::key(Ordering<T>::bits_of(e), call.options.min, Op::kIndexed); \
      } else {                                                                               \
        copy[i] = call.in.truth ? In(is_nonzero(e)) : convert<In>(e);                        \
      }                                                                                      \
    }                                                                                        \
  } break;
    switch (call.in.dtype) { TR_FOR_EACH_TYPE(TR_CASE) }
#undef TR_CASE
    return copy;
  }
  // The value of the places [begin, end) of a column.
  Acc column_value(int64_t base, int64_t begin, int64_t end, In* copy, Acc* residues) const {
    if (end - begin <= kLeaf) return leaf(gathered(base, begin, end - begin, copy), end - begin, 0, residues);
    TreeStack<Acc, kLeafLevels> leaves;
    const auto combine = [](Acc left, Acc right) { return Op::combine(left, right); };
    for (int64_t first = begin; first < end; first += kLeaf) {
      const int64_t count = least(kLeaf, end - first);
      leaves.push(leaf(gathered(base, first, count, copy), count, first - begin, residues), combine);
    }
    return leaves.total(Op::absent(), combine);
  }
  void gather(int64_t base, int64_t to, int64_t begin, int64_t end, int64_t width, Carver carver) const {
    In* const copy = carver.take<In>(kLeaf);
    Acc* const residues = carver.take<Acc>(kResidues);
    for (int64_t c = 0; c < width; ++c, base += call.inner_stride)
      finish_segment<Op>(call, column_value(base, begin, end, copy, residues), end - begin, to + c,
                         [&](int64_t i) { return base + call.row_at(begin + i) * call.row_stride; });
  }

  // ---- many columns: across them -------------------------------------------------------------------------------------

  __attribute__((noinline)) static void enter(const In* x, int64_t count, int64_t position, Acc* to) {
    for (int64_t c = 0; c < count; ++c) to[c] = Op{}.load(x[c], position);
  }
  __attribute__((noinline)) static void follow(const In* __restrict x, int64_t count, int64_t position,
                                               Acc* __restrict to) {
    for (int64_t c = 0; c < count; ++c) to[c] = step(Op{}, to[c], x[c], position);
  }
  // The tree over kTogether values.
  template <class V> TR_HD static V tree(V (&v)[kTogether]) {
#pragma GCC unroll 8
    for (int d = 1; d < kTogether; d *= 2)
#pragma GCC unroll 8
      for (int r = 0; r < kTogether; r += 2 * d) v[r] = Op::combine(v[r], v[r + d]);
    return v[0];
  }
  // The trees over the elements of neighbouring rows.
  __attribute__((noinline)) static void enter_together(const In* const (&x)[kTogether], int64_t count, int64_t position,
                                                       Acc* __restrict to) {
    int64_t c = 0;
    if constexpr (kVectors) {
      for (; c + kLanes<In> <= count; c += kLanes<In>) {
        Vec<In> v[kTogether];
#pragma GCC unroll 8
        for (int r = 0; r < kTogether; ++r) v[r] = load<Vec<In>>(x[r] + c);
        store(to + c, tree(v));
      }
    }
    for (; c < count; ++c) {
      Acc v[kTogether];
#pragma GCC unroll 8
      for (int r = 0; r < kTogether; ++r) v[r] = Op{}.load(x[r][c], position + r);
      to[c] = tree(v);
    }
  }
  // The places [begin, end), at most kTogether; the first one is row `position` of its segment.
  void few(int64_t base, int64_t begin, int64_t end, int64_t position, int64_t width, const In* absent, In* copies,
           Acc* totals) const {
    const int64_t wide = ceil_div(width, 16) * 16;
    const In* x[kTogether];
    if (call.order) prefetch(base, begin, width);
    for (int i = 0; i < kTogether; ++i)
      x[i] = begin + i < end ? row(base, begin + i, width, copies + i * wide) : absent;
    enter_together(x, width, position, totals);
  }
  void across(int64_t base, int64_t to, int64_t begin, int64_t end, int64_t width, Carver carver) const {
    constexpr int kLevel = __builtin_ctz(kTogether);
    const int64_t wide = ceil_div(width, 16) * 16;
    In* const copies = carver.take<In>(kTogether * wide);
    In* const absent = carver.take<In>(wide);
    for (int64_t c = 0; c < wide; ++c) absent[c] = Op{}.absent_element();
    if (end - begin <= kTogether) {
      Acc* const totals = carver.take<Acc>(wide);
      few(base, begin, end, 0, width, absent, copies, totals);
      return finish_across(base, to, begin, end, width, totals, copies);
    }
    Stack residues = Stack::make(carver, kResidueLevels, wide), leaves = Stack::make(carver, kLeafLevels, wide);
    for (int64_t first = begin; first < end; first += kLeaf) {
      const int64_t count = least(kLeaf, end - first);
      residues.count = 0;
      for (int64_t r = 0; r < least(count, kResidues);) {
        if (count <= kResidues) {
          few(base, first + r, least(first + count, first + r + kTogether), first - begin + r, width, absent, copies,
              residues.top(kLevel));
          residues.push(kLevel);
          r += kTogether;
          continue;
        }
        Acc* const value = residues.top();
        enter(row(base, first + r, width, copies), width, first - begin + r, value);
        for (int64_t k = r + kResidues; k < count; k += kResidues)
          follow(row(base, first + k, width, copies), width, first - begin + k, value);
        residues.push();
        ++r;
      }
      __builtin_memcpy(leaves.top(), residues.total(), size_t(wide) * sizeof(Acc));
      leaves.push();
    }
    finish_across(base, to, begin, end, width, leaves.total(), copies);
  }
  void finish_across(int64_t base, int64_t to, int64_t begin, int64_t end, int64_t width, Acc* totals,
                     In* copies) const {
    if constexpr (kIsSumOf<Op>) {
      if (call.finish.onto == Onto::Self) {
        const Source self{call.out.values, call.out.dtype, DtypeOf<In>::value};
        const In* const own = fetch<In, true>(self, to, 1, width, copies);
        for (int64_t c = 0; c < width; ++c) totals[c] = finished_sum(call.finish, totals[c], own[c], end - begin);
      } else if (call.finish.mean) {
        for (int64_t c = 0; c < width; ++c) totals[c] = finished_sum(call.finish, totals[c], In(0), end - begin);
      }
      store_run(call.out.dtype, call.out.values, to, 1, width, totals);
    } else {
      for (int64_t c = 0; c < width; ++c)
        finish_segment<Op>(call, totals[c], end - begin, to + c, [&](int64_t i) {
          return base + call.row_at(begin + i) * call.row_stride + c * call.inner_stride;
        });
    }
  }

  // ---- tasks ---------------------------------------------------------------------------------------------------------

  // The segment at which a chunk begins: each has about as many rows and segments.
  int64_t first_of_chunk(int64_t chunk) const {
    const auto before = [&](int64_t segment) { return call.begin(segment) - call.begin(0) + segment; };
    const int64_t wanted = int64_t(double(before(call.segments)) * double(chunk) / double(chunks));
    if (chunk == chunks) return call.segments;
    int64_t from = 0, to = call.segments;
    while (from < to) {
      const int64_t middle = from + (to - from) / 2;
      if (before(middle) < wanted) from = middle + 1;
      else to = middle;
    }
    return from;
  }
  static void body(void* context, int64_t begin, int64_t end) {
    auto& self = *static_cast<SegmentRows*>(context);
    const SegmentReduction& call = self.call;
    Scratch scratch(bytes(least(kSegmentColumns, ceil_div(call.inner, 16) * 16)));
    if (!scratch.data) return __atomic_store_n(&self.out_of_memory, true, __ATOMIC_RELAXED);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t tile = task % self.tiles, chunk = task / self.tiles % self.chunks;
      self.run(task / self.tiles / self.chunks, tile * self.tile, self.first_of_chunk(chunk),
               self.first_of_chunk(chunk + 1), Carver{scratch.data});
    }
  }
  void run(int64_t outer, int64_t column, int64_t segment, int64_t last, Carver carver) const {
    const int64_t width = least(tile, call.inner - column);
    const int64_t base = outer * call.outer_stride + column * call.inner_stride;
    for (; segment < last; ++segment) {
      const int64_t begin = call.begin(segment), end = call.begin(segment + 1);
      const int64_t to = (outer * call.segments + segment) * call.inner + column;
      if (begin >= end) {
        for (int64_t c = 0; c < width; ++c)
          finish_segment<Op>(call, Op::absent(), 0, to + c, [](int64_t) { return int64_t(0); });
      } else if (width <= kGathered) {
        gather(base, to, begin, end, width, carver);
      } else {
        across(base, to, begin, end, width, carver);
      }
    }
  }

  // Whether one segment has more rows than a thread's share of all.
  static bool has_most(const SegmentReduction& call, int64_t threads) {
    int64_t most = 0;
    for (int64_t k = 0, begin = call.begin(0); k < call.segments; ++k) {
      const int64_t end = call.begin(k + 1);
      most = end - begin > most ? end - begin : most;
      begin = end;
    }
    return most * threads > call.rows;
  }
  static bool run(const SegmentReduction& call, int64_t threads, cpu::ParallelFor parallel_for) {
    int64_t tile = least(kSegmentColumns, ceil_div(call.inner, 16) * 16);
    // A segment that would keep one thread busy while the others are done is shared by columns.
    while (threads > 1 && tile > 16 && call.outer * ceil_div(call.inner, tile) < threads && has_most(call, threads))
      tile = ceil_div(tile, 32) * 16;
    const int64_t tiles = ceil_div(call.inner, tile), columns = call.outer * tiles;
    int64_t chunks = 1;
    if (threads > 1) chunks = least(call.segments, ceil_div(4 * threads, columns));
    SegmentRows self{call, tile, tiles, chunks};
    if (threads > 1) parallel_for(columns * chunks, body, &self);
    else body(&self, 0, columns * chunks);
    return !self.out_of_memory;
  }
};

// A counting sort: each chunk of places counts its numbers, and later writes where those of the chunks before end.
// `outside`: the first place whose number is none of [0, count), or -1.
struct CountedIndex {
  const SegmentIndex& call;
  int64_t chunks;
  int64_t* counts;   // [chunks][count]
  int64_t* outside;  // [chunks]

  int64_t first(int64_t chunk) const { return call.places * chunk / chunks; }
  static void count(void* context, int64_t begin, int64_t end) {
    const auto& self = *static_cast<CountedIndex*>(context);
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      int64_t* const counts = self.counts + chunk * self.call.count;
      __builtin_memset(counts, 0, size_t(self.call.count) * sizeof(int64_t));
      self.outside[chunk] = -1;
      for (int64_t place = self.first(chunk); place < self.first(chunk + 1); ++place) {
        const int64_t number = self.call.number_at(place);
        if (uint64_t(number) < uint64_t(self.call.count)) ++counts[number];
        else if (self.outside[chunk] < 0) self.outside[chunk] = place;
      }
    }
  }
  static void place(void* context, int64_t begin, int64_t end) {
    const auto& self = *static_cast<CountedIndex*>(context);
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      int64_t* const next = self.counts + chunk * self.call.count;
      for (int64_t place = self.first(chunk); place < self.first(chunk + 1); ++place)
        self.call.order[next[self.call.number_at(place)]++] = place;
    }
  }
  // Chunk by chunk for each number: where the first one of a chunk goes.
  void sum_up() const {
    int64_t at = 0;
    for (int64_t number = 0; number < call.count; ++number) {
      call.offsets[number] = at;
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        int64_t& count = counts[chunk * call.count + number];
        const int64_t here = count;
        count = at;
        at += here;
      }
    }
    call.offsets[call.count] = at;
  }
};

}  // namespace TR_ISA
}  // namespace torchreduce
