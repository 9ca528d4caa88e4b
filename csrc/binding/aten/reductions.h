// Reductions, as aten has them.
#pragma once
#include <limits>

#include "tensors.h"

namespace torchreduce::aten {

// Whether torchreduce's dtypes are torch's. Floats to an integer dtype are not, whose elements torch converts first.
inline bool dtypes_served(const Op& op, ScalarType in, const std::optional<ScalarType>& dtype) {
  if (!supported(in) || (dtype && !supported(*dtype))) return false;
  if (dtype && is_float(in) && !is_float(*dtype)) return false;
  if (op.options.mean) return is_float(dtype.value_or(in));
  if (op.options.of == Of::Numbers) return is_float(in);
  if (op.options.of != Of::Elements) return is_float(in) && (!dtype || c10::promoteTypes(in, *dtype) == *dtype);
  return op.reduction != Reduction::Product || dtype != ScalarType::Bool;
}

// A reduction that is covered, but for its output.
struct Reducing {
  uint64_t mask;
  bool keepdim;
  Types types;
  at::DimVector shape;

  Why plan(const Op& op, const Tensor& x, at::IntArrayRef dims, bool keep, const std::optional<ScalarType>& dtype) {
    if (is_named(x)) return Why::Kind;
    if (!dtypes_served(op, x.scalar_type(), dtype)) return Why::Dtype;
    const std::optional<uint64_t> along = mask_of(x, dims);
    if (!along) return Why::Dims;
    if (x.numel() == 0 && !facts(op.reduction, Dtype(x.scalar_type())).has_empty) return Why::Empty;
    mask = *along;
    keepdim = keep;
    types = types_of(op, read(x), dtype ? std::optional(Dtype(*dtype)) : std::nullopt);
    for (int64_t d = 0; d < x.dim(); ++d) {
      const bool reduced = mask >> d & 1u;
      if (!reduced || keep) shape.push_back(reduced ? 1 : x.size(d));
    }
    return Why::Served;
  }
  void run(const Op& op, const Tensor& x, const Tensor* values, const Tensor* indices) const {
    const Operand v = values ? written(*values) : Operand{}, i = indices ? written(*indices) : Operand{};
    reduce_into(op, read(x), mask, keepdim, types, values ? &v : nullptr, indices ? &i : nullptr);
  }
  // The result alone, indices of the arg ops.
  void run(const Op& op, const Tensor& x, const Tensor& result) const {
    types.indexed ? run(op, x, nullptr, &result) : run(op, x, &result, nullptr);
  }
};

// Whether elements are converted before they are added or multiplied, as torch has it: floats to integers.
inline bool converts_first(const Tensor& x, const std::optional<ScalarType>& dtype) {
  return dtype && is_float(x.scalar_type()) && supported(*dtype) && !is_float(*dtype) && dtype != ScalarType::Bool;
}

// An op with one result, whatever its other arguments are. Without dtype=, one that has it takes that of `out`, but for
// the mean of integers, which torch refuses then.
template <const Op& op> struct Reduce {
  static constexpr bool kWithDtype =
      op.reduction == Reduction::Sum || op.reduction == Reduction::Product || op.options.of == Of::Numbers;
  template <class R, class... A> static R call(Why& why, const Tensor& x, A&&... a) {
    Arguments given;
    (given.take(a), ...);
    return call<R>(why, x, given);
  }
  template <class R> static R call(Why& why, const Tensor& x, Arguments& given) {
    constexpr bool writes = std::is_reference_v<R>;
    const bool takes_dtype = kWithDtype && !(op.options.mean && !is_float(x.scalar_type()));
    if (writes && takes_dtype && !given.dtype) given.dtype = given.outs[0]->scalar_type();
    constexpr bool is_plain = op.options.of == Of::Elements && !op.options.mean;
    if (kWithDtype && is_plain && converts_first(x, given.dtype) && !is_named(x)) {
      if (!mask_of(x, given.dims)) why = Why::Dims;
      else return call<R>(why, x.to(*given.dtype), given);
    }
    Reducing r;
    if (why == Why::Served) why = r.plan(op, x, given.dims, given.keepdim, given.dtype);
    if constexpr (writes) {
      Tensor& out = *given.outs[0];
      if (why == Why::Served) why = fit(out, r.shape, r.types.result, x);
      if (why == Why::Served) r.run(op, x, out);
      return out;
    } else {
      if (why != Why::Served) return Tensor();
      Tensor result = allocate(r.shape, r.types.result, x);
      r.run(op, x, result);
      return result;
    }
  }
};

// The sum of a matrix's diagonal. torch has none of bool on a CPU.
struct Trace {
  template <class R> static R call(Why& why, const Tensor& x) {
    if (x.dim() != 2) why = Why::Dims;
    else if (is_named(x)) why = Why::Kind;
    else if (x.is_cpu() && x.scalar_type() == ScalarType::Bool) why = Why::Dtype;
    if (why != Why::Served) return Tensor();
    Arguments all;
    return Reduce<k_sum>::call<R>(why, x.diagonal(), all);
  }
};

// any and all over a list of dims: with an empty one torch reduces nothing.
template <const Op& op> struct ReduceListed {
  template <class R, class... A> static R call(Why& why, const Tensor& x, A&&... a) {
    Arguments given;
    (given.take(a), ...);
    if (!given.listed || !given.dims.empty()) return Reduce<op>::template call<R>(why, x, given);
    why = Why::Dims;
    if constexpr (std::is_reference_v<R>) return *given.outs[0];
    else return Tensor();
  }
};

// Values and indices.
template <const Op& op> struct ReducePair {
  template <class R, class... A> static R call(Why& why, const Tensor& x, A&&... a) {
    Arguments given;
    (given.take(a), ...);
    Reducing r;
    why = r.plan(op, x, given.dims, given.keepdim, {});
    if constexpr (std::is_same_v<R, std::tuple<Tensor, Tensor>>) {
      if (why != Why::Served) return {};
      R result{allocate(r.shape, r.types.values, x), allocate(r.shape, Dtype::I64, x)};
      r.run(op, x, &std::get<0>(result), &std::get<1>(result));
      return result;
    } else {
      Tensor &values = *given.outs[0], &indices = *given.outs[1];
      if (why == Why::Served) why = fit(values, indices, r.shape, r.types.values, Dtype::I64, x);
      if (why == Why::Served) r.run(op, x, &values, &indices);
      return {values, indices};
    }
  }
};

// The least and the greatest value, of all dims or of one.
struct MinMax {
  template <class R, class... A> static R call(Why& why, const Tensor& x, A&&... a) {
    Arguments given;
    (given.take(a), ...);
    Reducing r;
    why = r.plan(k_aminmax, x, given.dims, given.keepdim, {});
    auto run = [&](const Tensor& least, const Tensor& greatest) { r.run(k_aminmax, x, &least, &greatest); };
    if constexpr (std::is_same_v<R, std::tuple<Tensor, Tensor>>) {
      if (why != Why::Served) return {};
      R result{allocate(r.shape, r.types.values, x), allocate(r.shape, r.types.values, x)};
      std::apply(run, result);
      return result;
    } else {
      Tensor &least = *given.outs[0], &greatest = *given.outs[1];
      if (why == Why::Served) why = fit(least, greatest, r.shape, r.types.values, r.types.values, x);
      if (why == Why::Served) run(least, greatest);
      return {least, greatest};
    }
  }
};

// Of the orders that are covered.
inline const Op* norm_of(const at::Scalar& order) {
  if (order.isComplex()) return nullptr;
  const double p = order.toDouble(), infinity = std::numeric_limits<double>::infinity();
  return p == 2           ? &k_norm2
         : p == 1         ? &k_norm1
         : p == 0         ? &k_norm0
         : p == infinity  ? &k_norm_greatest
         : p == -infinity ? &k_norm_least
                          : nullptr;
}

struct VectorNorm {
  template <class R, class... A> static R call(Why& why, const Tensor& x, const at::Scalar& order, A&&... a) {
    Arguments given;
    (given.take(a), ...);
    const Op* op = norm_of(order);
    Reducing r;
    why = op ? r.plan(*op, x, given.dims, given.keepdim, given.dtype) : Why::Option;
    if constexpr (std::is_reference_v<R>) {
      Tensor& out = *given.outs[0];
      if (why == Why::Served) why = fit(out, r.shape, r.types.result, x);
      if (why == Why::Served) r.run(*op, x, out);
      return out;
    } else {
      if (why != Why::Served) return Tensor();
      Tensor result = allocate(r.shape, r.types.result, x);
      r.run(*op, x, result);
      return result;
    }
  }
};

// The norm of each tensor of a list, all on one device.
struct ForeachNorm {
  template <class R> static R call(Why& why, at::TensorList list, const at::Scalar& order,
                                   const std::optional<ScalarType>& dtype) {
    const Op* op = norm_of(order);
    if (!op) why = Why::Option;
    std::vector<Reducing> plans(list.size());
    for (size_t i = 0; i < list.size() && why == Why::Served; ++i)
      why = list[i].device() != list[0].device() ? Why::Kind : plans[i].plan(*op, list[i], {}, false, dtype);
    R results;
    if (why != Why::Served) return results;
    results.reserve(list.size());
    std::vector<WholeReduction> all;
    all.reserve(list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      results.push_back(allocate(plans[i].shape, plans[i].types.result, list[i]));
      all.push_back({read(list[i]), plans[i].types, written(results[i])});
    }
    reduce_each_into(*op, all);
    return results;
  }
};

}  // namespace torchreduce::aten
