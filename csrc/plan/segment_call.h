// Reductions by segments: the calls, and what an op does with a segment, the same on a CPU and a GPU.
//
// A segment is a run of places. At each place is a row of the input: that of the same number, or the one that `order`
// says. A segment has the bits of a reduction of its rows alone, in the order of their places.
#pragma once
#include "call.h"

namespace torchreduce {

// An element of an index or of offsets, int32 or int64.
TR_HD int64_t index_at(const void* index, Dtype dtype, int64_t place) {
  return dtype == Dtype::I32 ? static_cast<const int32_t*>(index)[place] : static_cast<const int64_t*>(index)[place];
}
// An offset, within [0, places] whatever it is.
TR_HD int64_t offset_within(const void* offsets, Dtype dtype, int64_t segment, int64_t places) {
  const int64_t at = index_at(offsets, dtype, segment);
  return at < 0 ? 0 : at > places ? places : at;
}

// What a result is written to.
enum class Onto : uint8_t {
  New,    // new memory: a segment without rows has the op's value over no elements
  Self,   // a tensor whose elements are one more term each; those of segments without rows keep their bits
  Place,  // a tensor whose elements are replaced; those of segments without rows keep their bits
};

// What becomes of a sum.
struct SumFinish {
  Onto onto = Onto::New;
  double alpha = 1;   // onto self: self + alpha * sum, by one fma unless alpha is 1
  bool mean = false;  // divided by the number of terms
};

// A number that occurs in an index, and its places.
struct SegmentRun { int64_t number, begin, end; };

// Input of shape (outer, rows, inner), with any strides; output of (outer, segments, inner), contiguous.
struct SegmentReduction {
  Reduction op;
  OpOptions options;
  Source in;
  Output out;  // `values` and `indices` as in a reduction; an index counts from the beginning of its segment
  int64_t outer = 1, rows = 0, inner = 1, segments = 0;
  int64_t outer_stride = 0, row_stride = 0, inner_stride = 0;  // of the input, in elements
  const void* offsets = nullptr;                               // of segments + 1 elements
  Dtype offsets_dtype = Dtype::I64;                            // I32 or I64
  const int64_t* order = nullptr;                              // the row at each place, or the same in 32 bits;
  const uint32_t* short_order = nullptr;                       // where neither is there, place p has row p
  // Instead of offsets, on a GPU and with outer = 1: the segments that have places, in any order. `segments` is the
  // most that there may be.
  const SegmentRun* runs = nullptr;
  const uint64_t* run_count = nullptr;
  SumFinish finish;

  // The first place of a segment, and of all that follow; within [0, rows] whatever offsets hold.
  TR_HD int64_t begin(int64_t segment) const { return offset_within(offsets, offsets_dtype, segment, rows); }
  TR_HD int64_t row_at(int64_t place) const {
    if (!order && !short_order) return place;
    const int64_t row = order ? order[place] : short_order[place];
    return uint64_t(row) < uint64_t(rows) ? row : 0;  // an order that was made elsewhere may hold anything
  }
};

// An index with one k of [0, size) for each element of a tensor of shape (outer, n, inner), which goes to element k of
// its line of another tensor, (outer, size, inner). The number of that in row-major order, or -1.
struct Elements {
  int64_t each = 0, size = 0, inner = 1;  // each: n * inner; 0: the index has the numbers themselves

  TR_HD int64_t number(int64_t index, int64_t place) const {
    if (!each) return index;
    return uint64_t(index) < uint64_t(size) ? (place / each * size + index) * inner + place % inner : -1;
  }
};

// The places of each number in an index, by a stable sort: `offsets` of count + 1 elements, and `order`, unless the
// index is sorted.
struct SegmentIndex {
  const void* index = nullptr;
  Dtype dtype = Dtype::I64;  // I32 or I64
  int64_t places = 0, count = 0;
  int64_t* offsets = nullptr;
  int64_t* order = nullptr;
  Elements elements;

  TR_HD int64_t number_at(int64_t place) const { return elements.number(index_at(index, dtype, place), place); }
};

inline namespace TR_ISA {

// ---- elements as 64-bit keys --------------------------------------------------------------------------------------------

// The key by which an element of any type is ordered (ops/reductions.h), widened, so that one kernel serves every type.
TR_HD int64_t key_as(Dtype dtype, const void* base, int64_t offset, bool min, bool merge_zeros) {
#define TR_CASE(T)        \
  case DtypeOf<T>::value: \
    return Ordering<T>::key(Ordering<T>::bits_of(static_cast<const T*>(base)[offset]), min, merge_zeros);
  switch (dtype) { TR_FOR_EACH_TYPE(TR_CASE) }
#undef TR_CASE
  return 0;
}
TR_HD void store_key(Dtype dtype, void* base, int64_t offset, int64_t key, bool min) {
#define TR_CASE(T)                                                                             \
  case DtypeOf<T>::value:                                                                      \
    static_cast<T*>(base)[offset] = Ordering<T>::element(typename Ordering<T>::Key(key), min); \
    break;
  switch (dtype) { TR_FOR_EACH_TYPE(TR_CASE) }
#undef TR_CASE
}
// What extremes have over no elements.
TR_HD void store_lowest(Dtype dtype, void* base, int64_t offset, bool min) {
#define TR_CASE(T)                                                                                    \
  case DtypeOf<T>::value:                                                                             \
    static_cast<T*>(base)[offset] = Ordering<T>::canonical_element(Ordering<T>::lowest_element(min)); \
    break;
  switch (dtype) { TR_FOR_EACH_TYPE(TR_CASE) }
#undef TR_CASE
}
TR_HD void copy_canonical(Dtype dtype, const void* from, int64_t at, void* to, int64_t offset) {
#define TR_CASE(T)                                                                                 \
  case DtypeOf<T>::value:                                                                          \
    static_cast<T*>(to)[offset] = Ordering<T>::canonical_element(static_cast<const T*>(from)[at]); \
    break;
  switch (dtype) { TR_FOR_EACH_TYPE(TR_CASE) }
#undef TR_CASE
}

// ---- what ops do with a segment -----------------------------------------------------------------------------------------

// The ops of ops/reductions.h on elements that were converted: sums and products on accumulators, extremes on keys.
template <class Op> constexpr bool kOfKeys = !Op::kConverts;
template <class Op> constexpr bool kIsSumOf = std::is_same<Op, Sum<typename Op::Element>>::value;

template <class Op> TR_HD typename Op::Element load_element(const SegmentReduction& call, int64_t offset) {
  if constexpr (kOfKeys<Op>) return key_as(call.in.dtype, call.in.data, offset, call.options.min, Op::kIndexed);
  else return load_as<typename Op::Element>(call.in.dtype, call.in.data, offset, call.in.truth);
}

// The sum of `rows` > 0 rows, on its way to memory.
template <class F> TR_HD F finished_sum(const SumFinish& finish, F sum, F self, int64_t rows) {
  const bool onto_self = finish.onto == Onto::Self;
  if (onto_self) {
    if (finish.alpha == 1) sum = add(self, sum);
    else if constexpr (std::is_same<F, int64_t>::value) sum = add(self, multiply(int64_t(finish.alpha), sum));
    else sum = fma_of(F(finish.alpha), sum, self);
  }
  if constexpr (!std::is_same<F, int64_t>::value)
    if (finish.mean) sum = sum / F(rows + onto_self);
  return sum;
}
// Over no elements.
template <class F> TR_HD F empty_sum(const SumFinish& finish) {
  if constexpr (!std::is_same<F, int64_t>::value)
    if (finish.mean) return bit_cast<F>(typename FloatBits<F>::Bits(Ordering<F>::kNaN));
  return F(0);
}

// Writes the result of a segment to element `offset` of the output. `found`: of an indexed op, the offset of the
// element that a row of the segment has there.
template <class Op, class Found>
TR_HD void finish_segment(const SegmentReduction& call, typename Op::Acc acc, int64_t rows, int64_t offset,
                          Found found) {
  using F = typename Op::Element;
  const Output& out = call.out;
  const bool min = call.options.min, self = call.finish.onto == Onto::Self;
  if (rows == 0 && call.finish.onto != Onto::New) return;
  if constexpr (Op::kIndexed) {
    if (out.indices) out.indices[offset] = rows ? acc.index : -1;
    if (!out.values) return;
    if (rows) copy_canonical(call.in.dtype, call.in.data, found(acc.index), out.values, offset);
    else store_lowest(out.dtype, out.values, offset, min);
  } else if constexpr (kOfKeys<Op>) {
    if (rows == 0) return store_lowest(out.dtype, out.values, offset, min);
    if (self) acc = Op::combine(acc, key_as(out.dtype, out.values, offset, min, false));
    store_key(out.dtype, out.values, offset, acc, min);
  } else if constexpr (kIsSumOf<Op>) {
    if (rows == 0) acc = empty_sum<F>(call.finish);
    else acc = finished_sum(call.finish, acc, self ? load_as<F>(out.dtype, out.values, offset, false) : F(0), rows);
    store_as(out.dtype, out.values, offset, acc);
  } else {
    if (rows == 0) acc = Op::empty();
    else if (self) acc = multiply(Op::load(load_as<F>(out.dtype, out.values, offset, false), 0), acc);
    store_as(out.dtype, out.values, offset, Op::project(acc));
  }
}

}  // namespace TR_ISA
}  // namespace torchreduce
