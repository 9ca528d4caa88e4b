// Runs of elements between a strided tensor of any type and contiguous memory, and what a task needs beside them.
#pragma once
#include <cstdlib>

#include "cpu/vec.h"
#include "plan/call.h"

namespace torchreduce {
inline namespace TR_ISA {

TR_HD int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
TR_HD int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Memory of a task, uninitialised, on a 64-byte boundary. Null where there is none left.
struct Scratch {
  char* data;
  explicit Scratch(int64_t bytes) : data(static_cast<char*>(aligned_alloc(64, size_t(bytes + 63) / 64 * 64))) {}
  ~Scratch() { free(data); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
};

// Hands out parts of a Scratch, each on a 64-byte boundary.
struct Carver {
  char* next;
  template <class T> TR_HD T* take(int64_t count) {
    T* part = reinterpret_cast<T*>(next);
    next += bytes<T>(count);
    return part;
  }
  template <class T> TR_HD static constexpr int64_t bytes(int64_t count) {
    return (count * int64_t(sizeof(T)) + 63) / 64 * 64;
  }
};

// Walks the dims [first, last) of a layout in row-major order, without a division for each step.
struct Odometer {
  const Layout& layout;
  int first, last;
  RowStart at{0, 0};
  int64_t index[kMaxDims];

  TR_HD Odometer(const Layout& l, int first_dim, int last_dim, int64_t start)
      : layout(l), first(first_dim), last(last_dim) {
    for (int d = last - 1; d >= first; --d) {
      const int64_t next = d > first ? start / l.size[d] : 0;
      index[d] = start - next * l.size[d];
      at.in += index[d] * l.in[d];
      at.out += index[d] * l.out[d];
      start = next;
    }
  }
  TR_HD void next() {
    for (int d = last - 1; d >= first; --d) {
      at.in += layout.in[d];
      at.out += layout.out[d];
      if (++index[d] < layout.size[d] || d == first) return;
      at.in -= layout.in[d] * layout.size[d];
      at.out -= layout.out[d] * layout.size[d];
      index[d] = 0;
    }
  }
};

// Rows [begin, end) of a layout, as runs of rows at equal distances: body(the first one, its start, from a row to the
// next one, how many).
template <class Body> TR_HD void for_even_rows(const Layout& layout, int64_t begin, int64_t end, Body body) {
  const int fastest = layout.kept - 1;
  const int64_t inner = layout.kept ? layout.size[fastest] : 1;
  const RowStart step{row_stride(layout), layout.kept ? layout.out[fastest] : 0};
  Odometer outer(layout, 0, layout.kept ? fastest : 0, begin / inner);
  for (int64_t row = begin, i = begin % inner; row < end; i = 0) {
    const int64_t count = inner - i < end - row ? inner - i : end - row;
    body(row, RowStart{outer.at.in + i * step.in, outer.at.out + i * step.out}, step, count);
    row += count;
    outer.next();
  }
}

// Rows that lie side by side, as chunks of columns: `width` of them or what is left of `inner`, chunk after chunk.
struct ColumnChunks {
  const Layout& layout;
  int64_t inner, width = 0, chunks = 0;

  // Chunks of at most `most` columns; fewer, but 8 at least, where there would not be `threads` of them.
  TR_HD ColumnChunks(const Layout& l, int64_t most, int64_t threads)
      : layout(l), inner(l.kept ? l.size[l.kept - 1] : 1) {
    cut(most);
    while (count() < threads && width >= 16) cut((width / 2 + 7) / 8 * 8);
  }
  TR_HD int64_t count() const { return layout.rows / inner * chunks; }
  // Chunks [begin, end): body(the first column, its start, columns).
  template <class Body> TR_HD void each(int64_t begin, int64_t end, Body body) const {
    const int64_t out_step = layout.kept ? layout.out[layout.kept - 1] : 0;
    Odometer outer(layout, 0, layout.kept ? layout.kept - 1 : 0, begin / chunks);
    int64_t chunk = begin % chunks;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t c = chunk * width;
      body(unit / chunks * inner + c, RowStart{outer.at.in + c * row_stride(layout), outer.at.out + c * out_step},
           inner - c < width ? inner - c : width);
      if (++chunk == chunks) {
        chunk = 0;
        outer.next();
      }
    }
  }

 private:
  TR_HD void cut(int64_t most) {
    width = inner < most ? inner : most;
    chunks = (inner + width - 1) / width;
  }
};

// The highest offset of an element of an input of such strides. The elements between lie in one storage, so a vector
// may be read from any of them as long as it ends there.
TR_HD int64_t last_offset(const Layout& l, const int64_t (&strides)[kMaxDims]) {
  int64_t offset = 0;
  for (int d = 0; d < l.kept + l.reduced; ++d)
    if (strides[d] > 0) offset += (l.size[d] - 1) * strides[d];
  return offset;
}

// Copies `count` elements, `stride` apart from `offset` on, into dst, as accumulators.
template <class Acc> __attribute__((noinline)) static void convert_run(const Source& source, int64_t offset,
                                                                       int64_t stride, int64_t count, Acc* dst) {
#define TR_CASE(T)                                                                                   \
  case DtypeOf<T>::value: {                                                                          \
    const T* p = static_cast<const T*>(source.data) + offset;                                        \
    int64_t i = 0;                                                                                   \
    if (source.truth) {                                                                              \
      for (; i < count; ++i) dst[i] = Acc(is_nonzero(p[i * stride]));                                \
    } else if (stride == 1) {                                                                        \
      for (; i + kLanes<Acc> <= count; i += kLanes<Acc>) store(dst + i, load_converted<Acc>(p + i)); \
      for (; i < count; ++i) dst[i] = convert<Acc>(p[i]);                                            \
    } else {                                                                                         \
      for (; i < count; ++i) dst[i] = convert<Acc>(p[i * stride]);                                   \
    }                                                                                                \
  } break;
  switch (source.dtype) { TR_FOR_EACH_TYPE(TR_CASE) }
#undef TR_CASE
}

// `count` elements of the source, `stride` apart from `offset` on, as contiguous E: where they lie if they do, else in
// `scratch`. E is the source's type, or an accumulator (kConvert) to which the elements are converted.
template <class E, bool kConvert>
TR_HD const E* fetch(const Source& source, int64_t offset, int64_t stride, int64_t count, E* scratch) {
  if (!kConvert || (source.dtype == DtypeOf<E>::value && !source.truth)) {
    const E* p = static_cast<const E*>(source.data) + offset;
    if (stride == 1) return p;
    for (int64_t i = 0; i < count; ++i) scratch[i] = p[i * stride];
    return scratch;
  }
  if constexpr (kConvert) convert_run<E>(source, offset, stride, count, scratch);
  return scratch;
}

// Rounds `count` accumulators to `dtype` and writes them, `stride` apart from `offset` on.
template <class Acc> __attribute__((noinline)) static void store_run(Dtype dtype, void* base, int64_t offset,
                                                                     int64_t stride, int64_t count, const Acc* values) {
#define TR_CASE(T)                                                                                                   \
  case DtypeOf<T>::value:                                                                                            \
    if constexpr (is_float_type<T> == is_float_type<Acc>) {                                                          \
      T* p = static_cast<T*>(base) + offset;                                                                         \
      int64_t i = 0;                                                                                                 \
      if (stride == 1) {                                                                                             \
        if constexpr (std::is_same<Acc, float>::value)                                                               \
          for (; i + kLanes<float> <= count; i += kLanes<float>) store_rounded(p + i, load<Vec<float>>(values + i)); \
        for (; i < count; ++i) p[i] = round_to<T>(values[i]);                                                        \
      } else {                                                                                                       \
        for (; i < count; ++i) p[i * stride] = round_to<T>(values[i]);                                               \
      }                                                                                                              \
    }                                                                                                                \
    break;
  switch (dtype) { TR_FOR_EACH_TYPE(TR_CASE) }
#undef TR_CASE
}

}  // namespace TR_ISA
}  // namespace torchreduce
