// Kernels as direct.h has them, made of the functions that binding/ops.cpp and binding/rowwise.cpp register.
#pragma once
#include <exception>
#include <tuple>
#include <utility>

#include "direct.h"
#include "tensor.h"

namespace torchreduce {

// A kernel's parameter, and how it is taken from an argument.
template <class T> struct Taken;
template <> struct Taken<Tensor> {
  static constexpr Parameter kind = Parameter::Tensor;
  static Tensor from(Argument& a) { return Tensor(static_cast<AtenTensorHandle>(a.tensor)); }
};
template <> struct Taken<std::vector<int64_t>> {
  static constexpr Parameter kind = Parameter::Ints;
  static std::vector<int64_t> from(Argument& a) { return std::move(a.ints); }
};
template <> struct Taken<int64_t> {
  static constexpr Parameter kind = Parameter::Int;
  static int64_t from(Argument& a) { return a.number; }
};
template <> struct Taken<bool> {
  static constexpr Parameter kind = Parameter::Bool;
  static bool from(Argument& a) { return a.number != 0; }
};
template <> struct Taken<double> {
  static constexpr Parameter kind = Parameter::Float;
  static double from(Argument& a) { return a.real; }
};
template <> struct Taken<torch::headeronly::ScalarType> {
  static constexpr Parameter kind = Parameter::Dtype;
  static auto from(Argument& a) { return torch::headeronly::ScalarType(a.number); }
};
constexpr Parameter maybe(Parameter kind) {
  switch (kind) {
    case Parameter::Tensor: return Parameter::MaybeTensor;
    case Parameter::Ints: return Parameter::MaybeInts;
    default: return Parameter::MaybeDtype;
  }
}
template <class T> struct Taken<std::optional<T>> {
  static constexpr Parameter kind = maybe(Taken<T>::kind);
  static std::optional<T> from(Argument& a) { return a.given ? std::optional<T>(Taken<T>::from(a)) : std::nullopt; }
};

inline void* owned(const Tensor& t) {
  AtenTensorHandle handle;
  check(aoti_torch_new_tensor_handle(t.get(), &handle));
  return handle;
}

template <auto kernel> struct Direct;
template <class R, class... A, R (*kernel)(A...)> struct Direct<kernel> {
  static constexpr int kResults = [] {
    if constexpr (std::is_same_v<R, Tensor>) return 1;
    else return int(std::tuple_size_v<R>);
  }();
  static_assert(kResults <= kMostResults && sizeof...(A) <= kMostParameters);

  template <size_t... i> static R apply(Argument* given, std::index_sequence<i...>) {
    // In braces, from the first to the last: what is taken over is so even if what follows it raises.
    std::tuple<std::decay_t<A>...> taken{Taken<std::decay_t<A>>::from(given[i])...};
    return std::apply(kernel, std::move(taken));
  }
  static bool call(Argument* given, void** to) {
    try {
      const R result = apply(given, std::index_sequence_for<A...>());
      if constexpr (kResults == 1) *to = owned(result);
      else std::apply([&](const auto&... each) { ((*to++ = owned(each)), ...); }, result);
      return true;
    } catch (const std::exception&) { return false; }
  }
};

template <auto kernel> DirectOp direct(const char* name) {
  return []<class R, class... A>(const char* op, R (*)(A...)) {
    return DirectOp{op, {Taken<std::decay_t<A>>::kind...}, Direct<kernel>::kResults, Direct<kernel>::call};
  }(name, kernel);
}

}  // namespace torchreduce
