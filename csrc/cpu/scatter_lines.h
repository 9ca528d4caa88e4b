// Scatters of single elements (csrc/plan/line_scatter.h) on the CPU. A line is sorted by counting, and its values
// travel instead of their places: those of a segment are then neighbours.
#pragma once
#include "cpu/segments.h"
#include "plan/line_scatter.h"

namespace torchreduce {
inline namespace TR_ISA {

template <class Op> struct ScatteredLines {
  using In = typename Op::Element;
  using Acc = typename Op::Acc;
  using Rows = SegmentRows<Op>;
  static constexpr int64_t kTogether = 8;  // neighbouring lines, whose elements share cache lines
  static constexpr int kFew = 16;          // elements of a segment that are combined without a loop

  const LineScatter& call;
  int64_t blocks;      // of neighbouring lines
  int64_t chunks = 1;  // of the one line that several threads share
  uint32_t* counts = nullptr;
  In* sorted = nullptr;
  Acc* leaves = nullptr;  // of segments of several: at the place where each begins, and at that of the last begun
  int64_t* long_at =
      nullptr;  // for each leaf's length of places, the segment of several leaves that begins there, or -1
  bool out_of_memory = false;

  // With the index and the elements as what they are; extremes take keys for elements.
  template <class F> void typed(F body) const {
    const auto of = [&](const auto* x) {
      if (call.index_dtype == Dtype::I32) body(static_cast<const int32_t*>(call.index), x);
      else body(static_cast<const int64_t*>(call.index), x);
    };
#define TR_CASE(T) \
  case DtypeOf<T>::value: return of(static_cast<const T*>(call.in.data));
    switch (call.in.dtype) {
      TR_CASE(float)
      TR_CASE(double)
      TR_CASE(F16)
      TR_CASE(BF16)
      default: return;
    }
#undef TR_CASE
  }
  template <class T> In element(T x) const {
    if constexpr (kOfKeys<Op>) return Ordering<T>::key(Ordering<T>::bits_of(x), call.options.min, Op::kIndexed);
    else return convert<In>(x);
  }
  int64_t index_base(int64_t outer, int64_t inner) const { return outer * call.index_outer + inner * call.index_inner; }
  int64_t base(int64_t outer, int64_t inner) const { return outer * call.outer_stride + inner * call.inner_stride; }

  // Element k of a line that begins at `to`, which `rows` > 0 elements have met. T: of self.
  template <class T> void finish(int64_t to, int64_t k, Acc value, int64_t rows) const {
    const int64_t at = to + k * call.inner;
    if constexpr (kIsSumOf<Op>) {
      T* const own = static_cast<T*>(call.out.values) + at;
      const In self = call.finish.onto == Onto::Self ? convert<In>(*own) : In(0);
      *own = round_to<T>(finished_sum(call.finish, value, self, rows));
    } else {
      finish_segment<Op>(call, value, rows, at, [](int64_t) { return int64_t(0); });
    }
  }
  // kFew elements can be read at x.
  static Acc value(const In* x, int64_t count, Acc* residues) {
    if (count == 1) return Op{}.load(x[0], 0);
    if constexpr (kIsSumOf<Op>)
      if (count <= kFew) {
        In v[kFew];
        for (int i = 0; i < kFew; ++i) v[i] = i < count ? x[i] : Op{}.absent_element();
#pragma GCC unroll 4
        for (int n = kFew / 2; n > 0; n /= 2)
#pragma GCC unroll 8
          for (int i = 0; i < n; ++i) v[i] = Op::combine(v[2 * i], v[2 * i + 1]);
        return v[0];
      }
    if (count <= kLeaf) return Rows::leaf(x, count, 0, residues);
    TreeStack<Acc, Rows::kLeafLevels> stack;
    const auto combine = [](Acc left, Acc right) { return Op::combine(left, right); };
    for (int64_t first = 0; first < count; first += kLeaf)
      stack.push(Rows::leaf(x + first, least(kLeaf, count - first), first, residues), combine);
    return stack.total(Op::absent(), combine);
  }

  // ---- many lines: each by one thread --------------------------------------------------------------------------------

  static int64_t width_of(const LineScatter& call) { return least(call.inner, kTogether); }
  static int64_t line_bytes(const LineScatter& call) {
    const int64_t width = width_of(call);
    return Carver::bytes<uint32_t>(width * call.segments) + Carver::bytes<In>(width * call.rows + kFew) +
           Carver::bytes<Acc>(kResidues);
  }
  static void lines(void* context, int64_t begin, int64_t end) {
    auto& self = *static_cast<ScatteredLines*>(context);
    Scratch scratch(line_bytes(self.call));
    if (!scratch.data) return __atomic_store_n(&self.out_of_memory, true, __ATOMIC_RELAXED);
    for (int64_t task = begin; task < end; ++task)
      self.typed([&](const auto* index, const auto* x) {
        self.block(task / self.blocks, task % self.blocks * kTogether, index, x, Carver{scratch.data});
      });
  }
  template <class K, class T>
  void block(int64_t outer, int64_t inner, const K* index, const T* x, Carver carver) const {
    const int64_t width = least(kTogether, call.inner - inner);
    if (width == 1) return block_of<1>(outer, inner, width, index, x, carver);
    block_of<0>(outer, inner, width, index, x, carver);
  }
  // kWidth: the number of lines, or 0 for any.
  template <int kWidth, class K, class T>
  void block_of(int64_t outer, int64_t inner, int64_t lines, const K* index, const T* x, Carver carver) const {
    const int64_t width = kWidth ? kWidth : lines, size = call.segments, rows = call.rows;
    const int64_t index_row = call.index_row, index_inner = call.index_inner;
    const int64_t row_stride = call.row_stride, inner_stride = call.inner_stride;
    uint32_t* const counts = carver.take<uint32_t>(width * size);
    In* const sorted = carver.take<In>(width * rows + kFew);
    Acc* const residues = carver.take<Acc>(kResidues);
    index += index_base(outer, inner);
    x += base(outer, inner);
    __builtin_memset(counts, 0, size_t(width * size) * sizeof(uint32_t));
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t c = 0; c < width; ++c) ++counts[c * size + int64_t(index[i * index_row + c * index_inner])];
    for (int64_t c = 0; c < width; ++c) {
      uint32_t at = 0;
      for (int64_t k = 0; k < size; ++k) at += std::exchange(counts[c * size + k], at);
    }
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t c = 0; c < width; ++c) {
        const int64_t k = index[i * index_row + c * index_inner];
        sorted[c * rows + counts[c * size + k]++] = element(x[i * row_stride + c * inner_stride]);
      }
    for (int64_t c = 0; c < width; ++c) {
      const int64_t to = outer * size * call.inner + inner + c;
      for (int64_t k = 0, from = 0; k < size; ++k) {  // the count is where the segment ends
        const int64_t end = counts[c * size + k];
        if (end > from) finish<T>(to, k, value(sorted + c * rows + from, end - from, residues), end - from);
        from = end;
      }
    }
  }

  // ---- one line: by chunks of its places, then by chunks of what they were sorted to ---------------------------------

  int64_t first(int64_t chunk) const { return call.rows * chunk / chunks; }
  static void count(void* context, int64_t begin, int64_t end) {
    const auto& self = *static_cast<ScatteredLines*>(context);
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      uint32_t* const counts = self.counts + chunk * self.call.segments;
      __builtin_memset(counts, 0, size_t(self.call.segments) * sizeof(uint32_t));
      self.typed([&](const auto* index, const auto*) {
        for (int64_t i = self.first(chunk); i < self.first(chunk + 1); ++i) ++counts[index[i * self.call.index_row]];
      });
    }
  }
  static void place(void* context, int64_t begin, int64_t end) {
    const auto& self = *static_cast<ScatteredLines*>(context);
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      uint32_t* const next = self.counts + chunk * self.call.segments;
      self.typed([&](const auto* index, const auto* x) {
        for (int64_t i = self.first(chunk); i < self.first(chunk + 1); ++i)
          self.sorted[next[index[i * self.call.index_row]]++] = self.element(x[i * self.call.row_stride]);
      });
    }
  }
  // Where segment k ends: the last chunk's place for it.
  int64_t end_of(int64_t k) const { return counts[(chunks - 1) * call.segments + k]; }
  int64_t begin_of(int64_t k) const { return k ? end_of(k - 1) : 0; }
  static int64_t slot(int64_t place, bool is_first) { return 2 * (place / kLeaf) + is_first; }
  // Segments of one leaf that begin in the chunk, and leaves of longer ones that do.
  static void reduce(void* context, int64_t begin, int64_t end) {
    const auto& self = *static_cast<ScatteredLines*>(context);
    self.typed([&](const auto*, const auto* x) { self.reduce_chunks(x, begin, end); });
  }
  template <class T> void reduce_chunks(const T*, int64_t begin, int64_t end) const {
    Acc residues[kResidues];
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t from = first(chunk), to = first(chunk + 1);
      int64_t low = 0, high = call.segments;  // the first segment that ends behind `from`
      while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (end_of(middle) <= from) low = middle + 1;
        else high = middle;
      }
      for (int64_t k = low; k < call.segments && begin_of(k) < to; ++k) {
        const int64_t at = begin_of(k), rows = end_of(k) - at;
        if (rows > kLeaf) {
          if (at >= from) long_at[at / kLeaf] = k;
          const int64_t leaf = at >= from ? 0 : (from - at + kLeaf - 1) / kLeaf;
          for (int64_t p = at + leaf * kLeaf; p < least(to, at + rows); p += kLeaf)
            leaves[slot(p, p == at)] = Rows::leaf(sorted + p, least(kLeaf, at + rows - p), p - at, residues);
        } else if (at >= from && rows) {
          finish<T>(0, k, value(sorted + at, rows, residues), rows);
        }
      }
    }
  }
  // The trees over the leaves of long segments.
  template <class T> void fold(const T*) const {
    const auto combine = [](Acc left, Acc right) { return Op::combine(left, right); };
    for (int64_t part = 0; part < ceil_div(call.rows, kLeaf); ++part) {
      const int64_t k = long_at[part];
      if (k < 0) continue;
      const int64_t at = begin_of(k), rows = end_of(k) - at;
      TreeStack<Acc, Rows::kLeafLevels> stack;
      for (int64_t p = at; p < at + rows; p += kLeaf) stack.push(leaves[slot(p, p == at)], combine);
      finish<T>(0, k, stack.total(Op::absent(), combine), rows);
    }
  }
  bool one_line(int64_t threads, cpu::ParallelFor parallel_for) {
    const int64_t size = call.segments, parts = ceil_div(call.rows, kLeaf);
    chunks = threads;
    Scratch scratch(Carver::bytes<uint32_t>(chunks * size) + Carver::bytes<In>(call.rows + kFew) +
                    Carver::bytes<Acc>(2 * parts + 2) + Carver::bytes<int64_t>(parts));
    if (!scratch.data) return false;
    Carver carver{scratch.data};
    counts = carver.take<uint32_t>(chunks * size);
    sorted = carver.take<In>(call.rows + kFew);
    leaves = carver.take<Acc>(2 * parts + 2);
    long_at = carver.take<int64_t>(parts);
    for (int64_t i = 0; i < parts; ++i) long_at[i] = -1;
    parallel_for(chunks, count, this);
    uint32_t at = 0;
    for (int64_t k = 0; k < size; ++k)
      for (int64_t chunk = 0; chunk < chunks; ++chunk) at += std::exchange(counts[chunk * size + k], at);
    parallel_for(chunks, place, this);
    parallel_for(chunks, reduce, this);
    typed([&](const auto*, const auto* x) { fold(x); });
    return true;
  }

  static bool run(const LineScatter& call, int64_t threads, cpu::ParallelFor parallel_for) {
    ScatteredLines self{call, ceil_div(call.inner, kTogether)};
    const int64_t tasks = call.outer * self.blocks;
    if (tasks == 1 && call.inner == 1 && threads > 1) return self.one_line(threads, parallel_for);
    if (threads > 1) parallel_for(tasks, lines, &self);
    else lines(&self, 0, tasks);
    return !self.out_of_memory;
  }
};

// The first number of an index that is none of [0, count), or -1.
template <class K> int64_t first_outside(const K* index, int64_t places, int64_t count) {
  for (int64_t from = 0; from < places; from += 1024) {
    const int64_t end = least(places, from + 1024);
    bool outside = false;
    for (int64_t i = from; i < end; ++i) outside |= uint64_t(index[i]) >= uint64_t(count);
    for (int64_t i = from; outside && i < end; ++i)
      if (uint64_t(index[i]) >= uint64_t(count)) return i;
  }
  return -1;
}

}  // namespace TR_ISA
}  // namespace torchreduce
