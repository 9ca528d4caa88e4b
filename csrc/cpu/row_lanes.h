// Structs side by side, field by field: what rows of a block have one of each. A loop over the rows that takes structs
// apart and makes others becomes operations on vectors.
#pragma once
#include <utility>

#include "numerics/dtype.h"

namespace torchreduce {
inline namespace TR_ISA {

constexpr int kMostRows = 128;  // of a block

// Before a function that writes RowLanes of its caller: not inlined, and nothing is inferred of it. GCC 12 infers that
// some write nothing, and leaves their calls out.
#if __has_attribute(noipa)
#define TR_APART __attribute__((noipa))
#else
#define TR_APART __attribute__((noinline))
#endif

struct Anything { template <class T> operator T() const; };
// The number of fields of an aggregate.
template <class T, class... Some> constexpr int field_count() {
  if constexpr (requires { T{Some()..., Anything()}; }) return field_count<T, Some..., Anything>();
  else return sizeof...(Some);
}
// of(each field of t).
template <class T, class Of> TR_HD auto with_fields(T& t, Of of) {
  constexpr int kFields = field_count<std::remove_const_t<T>>();
  static_assert(kFields <= 6);
  if constexpr (kFields == 1) {
    auto& [a] = t;
    return of(a);
  } else if constexpr (kFields == 2) {
    auto& [a, b] = t;
    return of(a, b);
  } else if constexpr (kFields == 3) {
    auto& [a, b, c] = t;
    return of(a, b, c);
  } else if constexpr (kFields == 4) {
    auto& [a, b, c, d] = t;
    return of(a, b, c, d);
  } else if constexpr (kFields == 5) {
    auto& [a, b, c, d, e] = t;
    return of(a, b, c, d, e);
  } else if constexpr (kFields == 6) {
    auto& [a, b, c, d, e, f] = t;
    return of(a, b, c, d, e, f);
  } else {
    return of();
  }
}

template <class T> struct RowLanes;
template <class... T> struct FieldLanes;
template <> struct FieldLanes<> {
  template <class R, class... Done> TR_HD R get(int64_t, const Done&... done) const { return R{done...}; }
  TR_HD void set(int64_t) {}
};
template <class T, class... More> struct FieldLanes<T, More...> {
  RowLanes<T> first;
  FieldLanes<More...> more;

  template <class R, class... Done> TR_HD R get(int64_t row, const Done&... done) const {
    return more.template get<R>(row, done..., first.get(row));
  }
  TR_HD void set(int64_t row, const T& value, const More&... others) {
    first.set(row, value);
    more.set(row, others...);
  }
};
template <class T> struct LanesOfFields {
  using type = decltype(with_fields(std::declval<T&>(),
                                    [](auto&... field) { return FieldLanes<std::decay_t<decltype(field)>...>(); }));
};

// A T of each row: a number, or an aggregate of numbers and aggregates.
template <class T> struct RowLanes {
  typename LanesOfFields<T>::type fields;

  TR_HD T get(int64_t row) const { return fields.template get<T>(row); }
  TR_HD void set(int64_t row, const T& value) {
    with_fields(value, [&](const auto&... field) __attribute__((always_inline)) { fields.set(row, field...); });
  }
};
template <class T>
  requires std::is_arithmetic_v<T>
struct RowLanes<T> {
  std::conditional_t<std::is_same_v<T, bool>, int32_t, T> of[kMostRows];  // bytes would not become lanes

  TR_HD T get(int64_t row) const { return T(of[row]); }
  TR_HD void set(int64_t row, T value) { of[row] = value; }
};

}  // namespace TR_ISA
}  // namespace torchreduce
