// Matrix products, as aten has them.
#pragma once
#include <cmath>

#include "../products.h"
#include "enabled.h"
#include "rowwise.h"

namespace torchreduce::aten {

// The arguments of mm and its kin, taken by their types: tensors, of which a writable one is `out`, beta, alpha, dtype.
struct Factors {
  at::SmallVector<const Tensor*, 3> tensors;
  at::SmallVector<const at::Scalar*, 2> scalars;
  std::optional<ScalarType> dtype;
  bool gelu = false;
  Tensor* out = nullptr;

  void take(const Tensor& t) { tensors.push_back(&t); }
  void take(Tensor& t) { out = &t; }
  void take(const at::Scalar& s) { scalars.push_back(&s); }
  void take(ScalarType type) { dtype = type; }
  void take(bool use) { gelu = use; }
};

// left @ right, of matrices or of batches of them, and what is added to it.
struct Multiplying {
  Tensor left, right;
  std::optional<Tensor> added;
  double beta = 1, alpha = 1;
  ScalarType result;
  at::DimVector shape;

  Why plan(const Factors& given) {
    const ScalarType dtype = left.scalar_type();
    const int64_t dims = left.dim();
    result = given.dtype.value_or(dtype);
    if (is_named(left) || right.device() != left.device()) return Why::Kind;
    if (!left.is_cpu() && !has_products(left.device().index())) return Why::Kind;
    if (const Why why = dtypes(given); why != Why::Served) return why;
    if (right.dim() != dims || left.size(-1) != right.size(-2) || (dims == 3 && left.size(0) != right.size(0)))
      return Why::Dims;
    if (left.numel() == 0 || right.numel() == 0) return Why::Empty;
    shape.assign(left.sizes().begin(), left.sizes().end());
    shape.back() = right.size(-1);
    if (!given.scalars.empty()) {
      beta = given.scalars[0]->toDouble(), alpha = given.scalars[1]->toDouble();
      if (const Why why = fits(*added); why != Why::Served) return why;
      if (float(beta) == 0) added.reset();
    }
    return Why::Served;
  }
  Why dtypes(const Factors& given) const {
    const ScalarType dtype = left.scalar_type();
    const bool with_float32 = enabled.load(std::memory_order_relaxed) & kFloat32Products;
    if (!has_products(Dtype(dtype), with_float32) || right.scalar_type() != dtype) return Why::Dtype;
    if (result != dtype && result != ScalarType::Float) return Why::Dtype;
    // torch has these on GPUs alone; and what it has float32 computed in on a CPU is to be float32.
    const bool is_exact = at::globalContext().float32MatmulPrecision() == at::Float32MatmulPrecision::HIGHEST;
    if (left.is_cpu() && (given.dtype || !is_exact)) return Why::Option;
    for (const at::Scalar* s : given.scalars) {
      if (s->isComplex()) return Why::Option;
      const double value = s->toDouble();
      if (std::isfinite(value) && !std::isfinite(float(value))) return Why::Option;
    }
    return !given.scalars.empty() && float(given.scalars[1]->toDouble()) == 0 ? Why::Option : Why::Served;
  }
  Why fits(const Tensor& t) const {
    if (t.scalar_type() != result) return Why::Dtype;
    if (t.device() != left.device()) return Why::Kind;
    if (t.dim() > int64_t(shape.size())) return Why::Dims;
    for (int64_t d = 1; d <= t.dim(); ++d)
      if (t.size(-d) != 1 && t.size(-d) != shape[shape.size() - size_t(d)]) return Why::Dims;
    return Why::Served;
  }
  void run(const char* name, const Tensor& out) const {
    MatrixProduct product{name, read(left), read(right), written(out), {}, beta, alpha};
    if (added) product.added = read(*added);
    multiply_into(product);
  }
};

// Whether a tensor has each element once, if its strides are those of a view of a dense one. torch tells it of dense
// ones alone.
inline bool is_written_once(const Tensor& t) {
  at::SmallVector<std::pair<int64_t, int64_t>, 3> dims;
  for (int64_t d = 0; d < t.dim(); ++d)
    if (t.size(d) != 1) dims.emplace_back(t.stride(d), t.size(d));
  std::sort(dims.begin(), dims.end());
  int64_t extent = 1;
  for (const auto& [stride, size] : dims) {
    if (stride < extent) return false;
    extent = stride * size;
  }
  return true;
}

// What is written in place of `out`, and copied to it, where its layout or what it lies between is in the way; `out`
// where nothing is. `added` may be `out`.
inline Tensor aside(Why& why, const Tensor& out, std::initializer_list<const Tensor*> inputs, const Tensor* added) {
  bool is_in_the_way = at::has_internal_overlap(out) == at::MemOverlap::TooHard && is_written_once(out);
  auto look = [&](const Tensor& t) {
    if (t.device() != out.device() || !overlap(read(out), read(t))) return;
    const at::MemOverlapStatus status = at::get_overlap_status(out, t);
    if (status == at::MemOverlapStatus::Full || status == at::MemOverlapStatus::Partial) why = Why::Out;
    is_in_the_way = true;
  };
  for (const Tensor* t : inputs) look(*t);
  if (added && !(added->device() == out.device() && same_view(read(out), read(*added)))) look(*added);
  return is_in_the_way ? at::empty(out.sizes(), out.options()) : out;
}

// `dims`: of each factor; a vector is one more column, or row. `adds`: whether beta times a tensor is added, which is
// then the first. `activates`: whether relu or gelu follow.
template <int left_dims, int right_dims, bool adds, bool activates = false> struct Multiply {
  static constexpr int kOnlyWhere = kProducts;
  static constexpr bool kOfVector = right_dims == 1;

  template <class R, class X, class... A> static R call(Why& why, X& x, A&&... a) {
    constexpr bool writes = std::is_reference_v<R>;
    Factors given;
    given.take(std::as_const(x));
    (given.take(a), ...);
    if constexpr (writes && !std::is_const_v<X>) given.out = &x;  // addmm_ and its like
    const Tensor &left = *given.tensors[adds ? 1 : 0], &right = *given.tensors[adds ? 2 : 1];
    Multiplying m;
    why = left.dim() == left_dims && right.dim() == right_dims ? Why::Served : Why::Dims;
    if (adds && kOfVector && given.tensors[0]->dim() > 1) why = Why::Dims;
    if (why == Why::Served) {
      m.left = left, m.right = kOfVector ? right.unsqueeze(1) : right;
      if (adds) m.added = kOfVector && given.tensors[0]->dim() ? given.tensors[0]->unsqueeze(1) : *given.tensors[0];
      why = m.plan(given);
    }
    at::DimVector shape = m.shape;
    if (kOfVector && !shape.empty()) shape.pop_back();
    if constexpr (writes) {
      Tensor& out = *given.out;
      if (why != Why::Served) return out;
      const Tensor* added = m.added ? given.tensors[0] : nullptr;
      const Tensor to = aside(why, out, {&left, &right}, added);
      for (const Tensor* t : {&left, &right, added})
        if (why == Why::Served && t) why = fit(to, shape, Dtype(m.result), *t, t == added);
      if (why != Why::Served) return out;
      run(m, given, to);
      if (!to.is_same(out)) at::native::resize_output(out, shape), out.copy_(to);
      return out;
    } else {
      if (why != Why::Served) return Tensor();
      Tensor result = allocate(shape, Dtype(m.result), left);
      run(m, given, result);
      return result;
    }
  }
  static void run(const Multiplying& m, const Factors& given, const Tensor& out) {
    m.run(adds ? "addmm" : "mm", kOfVector ? out.unsqueeze(1) : out);
    if (!activates) return;
    if (given.gelu) at::gelu_(const_cast<Tensor&>(out), out.is_cpu() ? "none" : "tanh");
    else at::relu_(const_cast<Tensor&>(out));
  }
};

// The sum of the products of two vectors: in float32, in the order of sum.
struct Dot {
  static constexpr int kOnlyWhere = kProducts;

  template <class R> static R call(Why& why, const Tensor& x, const Tensor& y) {
    Multiplying m;
    m.left = x, m.right = y, m.result = x.scalar_type();
    const bool is_covered = x.device() == y.device() && (x.is_cpu() || has_products(x.device().index()));
    why = !is_covered ? Why::Kind : x.dim() != 1 || y.dim() != 1 || x.size(0) != y.size(0) ? Why::Dims : m.dtypes({});
    if (why != Why::Served) return Tensor();
    const Tensor products = x.to(ScalarType::Float).mul(y.to(ScalarType::Float));
    return Reduce<k_sum>::call<Tensor>(why, products, std::optional(x.scalar_type()));
  }
  template <class R> static R call(Why& why, const Tensor& x, const Tensor& y, Tensor& out) {
    const Tensor result = call<Tensor>(why, x, y);
    if (why == Why::Served) why = fit(out, {}, Dtype(x.scalar_type()), x);
    if (why == Why::Served) out.copy_(result);
    return out;
  }
};

}  // namespace torchreduce::aten
