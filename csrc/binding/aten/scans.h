// Scans, as aten has them.
#pragma once
#include "reductions.h"

namespace torchreduce::aten {

// The dim that a scan goes along; nothing for a wrong one.
inline std::optional<int> scanned(const Tensor& x, int64_t dim) {
  const int64_t range = std::max<int64_t>(1, x.dim());
  if (dim < -range || dim >= range || x.dim() > kMaxDims) return {};
  return int(dim < 0 ? dim + range : dim);
}

inline Why plan_scan(const Tensor& x, int64_t dim, const std::optional<ScalarType>& dtype) {
  const ScalarType in = x.scalar_type();
  if (is_named(x)) return Why::Kind;
  if (!supported(in) || (dtype && (!supported(*dtype) || dtype == ScalarType::Bool))) return Why::Dtype;
  if (dtype && is_float(in) && !is_float(*dtype)) return Why::Dtype;
  return scanned(x, dim) ? Why::Served : Why::Dims;
}

// Without dtype=, the dtype of `out` stands for it.
template <const ScanOp& op> struct Accumulate {
  static void run(const Tensor& x, int64_t dim, const Tensor& result) {
    scan_into(op, read(x), *scanned(x, dim), false, false, written(result));
  }
  template <class R> static R call(Why& why, const Tensor& x, int64_t dim, const std::optional<ScalarType>& dtype) {
    if (converts_first(x, dtype) && scanned(x, dim) && !is_named(x)) return call<R>(why, x.to(*dtype), dim, dtype);
    why = plan_scan(x, dim, dtype);
    if (why != Why::Served) return Tensor();
    const ScalarType to = dtype.value_or(is_float(x.scalar_type()) ? x.scalar_type() : ScalarType::Long);
    Tensor result = allocate(x.sizes(), Dtype(to), x);
    run(x, dim, result);
    return result;
  }
  template <class R>
  static R call(Why& why, const Tensor& x, int64_t dim, const std::optional<ScalarType>& dtype, Tensor& out) {
    const ScalarType to = dtype.value_or(out.scalar_type());
    if (converts_first(x, to) && scanned(x, dim) && !is_named(x) && !out.is_alias_of(x))
      return call<R>(why, x.to(to), dim, to, out);
    why = plan_scan(x, dim, to);
    if (why == Why::Served) why = fit(out, x.sizes(), Dtype(to), x, true);
    if (why == Why::Served) run(x, dim, out);
    return out;
  }
  template <class R> static R call(Why& why, Tensor& x, int64_t dim, const std::optional<ScalarType>& dtype) {
    return call<R>(why, std::as_const(x), dim, dtype, x);
  }
};

// Of floats alone, without dtype=.
struct LogCumSumExp {
  static Why plan(const Tensor& x, int64_t dim) {
    return is_float(x.scalar_type()) ? plan_scan(x, dim, {}) : Why::Dtype;
  }
  template <class R> static R call(Why& why, const Tensor& x, int64_t dim) {
    why = plan(x, dim);
    if (why != Why::Served) return Tensor();
    return Accumulate<k_logcumsumexp>::call<R>(why, x, dim, x.scalar_type());
  }
  template <class R> static R call(Why& why, const Tensor& x, int64_t dim, Tensor& out) {
    why = plan(x, dim);
    if (why == Why::Served) Accumulate<k_logcumsumexp>::call<R>(why, x, dim, x.scalar_type(), out);
    return out;
  }
};

// Values and indices, which torch has allocated.
template <const ScanOp& op> struct Extreme {
  template <class R> static void call(Why& why, const Tensor& x, Tensor& values, Tensor& indices, int64_t dim) {
    why = plan_scan(x, dim, {});
    if (why == Why::Served && (values.sizes() != x.sizes() || indices.sizes() != x.sizes())) why = Why::Out;
    if (why == Why::Served) why = fit(values, indices, x.sizes(), Dtype(x.scalar_type()), Dtype::I64, x);
    if (why != Why::Served) return;
    const Operand i = written(indices);
    scan_into(op, read(x), *scanned(x, dim), false, false, written(values), &i);
  }
};

}  // namespace torchreduce::aten
