// Losses of class labels and the gradient of an embedding, as aten has them.
#pragma once
#include <ATen/core/Reduction.h>

#include "../scatters.h"
#include "rowwise.h"

namespace torchreduce::aten {

// The sum of torch's losses of the rows, or that divided by the weights of their labels; and the sum of these, which is
// not rounded to 16 bits: its gradient divides by it. An `out=` of it is of x's dtype. torch's losses of the rows, and
// their gradients, are of one element each.
template <class Aten> struct NllLoss {
  template <class R> static R call(Why& why, const Tensor& x, const Tensor& target, const MaybeTensor& weight,
                                   int64_t reduction, const c10::SymInt& ignored) {
    why = plan_rows(x);
    if (why != Why::Served) return {};
    if (reduction == at::Reduction::None) return Aten::redispatch(own_key(x), x, target, weight, reduction, ignored);
    const bool has_classes = x.dim() > 0, fits = !given(weight) || weight->dim() == 1;
    if (!has_classes || !fits || (given(weight) && weight->numel() != x.size(x.dim() == 1 ? 0 : 1))) why = Why::Dims;
    if (why != Why::Served) return {};
    const ScalarType wide = x.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
    auto of_rows = [&](const Tensor& of, const MaybeTensor& by) {
      return std::get<0>(Aten::redispatch(own_key(x), of, target, by, at::Reduction::None, ignored)).to(wide);
    };
    auto sum = [&](const Tensor& of) {
      Arguments all;
      return Reduce<k_sum>::call<Tensor>(why, of, all);
    };
    Tensor losses = of_rows(x, {}), weights;  // exact: elements of x, without their sign
    if (given(weight)) {
      const Tensor by = of_rows(at::full({}, -1, x.options()).expand(x.sizes()), weight);
      losses = losses.mul(by);
      weights = sum(by);
    } else {
      Arguments all;
      weights = Reduce<k_count_nonzero>::call<Tensor>(why, target.ne(ignored.expect_int()), all);
    }
    const Tensor total = sum(losses);
    const Tensor loss = reduction == at::Reduction::Mean ? total.div(weights.to(wide)) : total;
    return {loss.to(x.scalar_type()), weights.to(wide)};
  }
  template <class R>
  static R call(Why& why, const Tensor& x, const Tensor& target, const MaybeTensor& weight, int64_t reduction,
                const c10::SymInt& ignored, Tensor& output, Tensor& total_weight) {
    if (reduction == at::Reduction::None) why = Why::Option;
    if (why != Why::Served) return {output, total_weight};
    const auto results = call<std::tuple<Tensor, Tensor>>(why, x, target, weight, reduction, ignored);
    if (why == Why::Served) why = fit(output, total_weight, {}, Dtype(x.scalar_type()), Dtype(x.scalar_type()), x);
    if (why == Why::Served) {
      output.copy_(std::get<0>(results));
      total_weight.copy_(std::get<1>(results));
    }
    return {output, total_weight};
  }
};

// Of 16 bits, by torch's kernel in float32, rounded once: the gradient divided by the sum of the weights may be less
// than 16 bits hold.
template <class Aten> struct NllLossBackward {
  template <class R>
  static R call(Why& why, const Tensor& g, const Tensor& x, const Tensor& target, const MaybeTensor& weight,
                int64_t reduction, const c10::SymInt& ignored, const Tensor& total) {
    why = plan_rows(x);
    if (why == Why::Served && g.scalar_type() != x.scalar_type()) why = Why::Dtype;
    if (why != Why::Served) return Tensor();
    if (reduction == at::Reduction::None || x.element_size() != 2)
      return go_on(own_key(x), g, x, target, weight, reduction, ignored, total);
    if (why == Why::Served && (g.dim() != 0 || total.numel() != 1 || total.device() != x.device())) why = Why::Dims;
    if (why != Why::Served) return Tensor();
    const Tensor sum = g.to(ScalarType::Float);
    const Tensor part = reduction == at::Reduction::Mean ? sum.div(total.to(ScalarType::Float)) : sum;
    const Tensor shape = at::empty_like(x, x.options().dtype(ScalarType::Float), at::MemoryFormat::Contiguous);
    const MaybeTensor by = given(weight) ? MaybeTensor(weight->to(ScalarType::Float)) : weight;
    const Tensor one = at::ones({}, shape.options());
    return Aten::redispatch(own_key(x), part, shape, target, by, at::Reduction::Sum, ignored, one).to(x.scalar_type());
  }
  // torch's own takes the sum of the weights in x's dtype.
  static Tensor go_on(DispatchKeySet keys, const Tensor& g, const Tensor& x, const Tensor& target,
                      const MaybeTensor& weight, int64_t reduction, const c10::SymInt& ignored, const Tensor& total) {
    const bool fits = total.scalar_type() == x.scalar_type() || total.scalar_type() != ScalarType::Float;
    return Aten::redispatch(keys, g, x, target, weight, reduction, ignored, fits ? total : total.to(x.scalar_type()));
  }
};

// ---- embeddings ----------------------------------------------------------------------------------------------------------

// The rows of the gradient are added up by their indices. What divides them by how often these occur is torch's.
struct EmbeddingBackward {
  template <class R> static R call(Why& why, const Tensor& g, const Tensor& indices, const c10::SymInt& count,
                                   const c10::SymInt& skipped, bool by_frequency) {
    const at::IntArrayRef sizes = g.sizes();
    if (is_named(g)) why = Why::Kind;
    else if (!is_float(g.scalar_type())) why = Why::Dtype;
    else if (indices.scalar_type() != ScalarType::Long && indices.scalar_type() != ScalarType::Int) why = Why::Dtype;
    else if (g.dim() < 1 || sizes.slice(0, sizes.size() - 1) != indices.sizes()) why = Why::Dims;
    else if (indices.device() != g.device()) why = Why::Kind;
    else if (by_frequency) why = Why::Option;
    if (why != Why::Served) return Tensor();
    constexpr const char* name = "embedding_dense_backward";
    const int64_t columns = sizes.back(), rows = count.expect_int();
    if (g.numel() == 0 || rows == 0) return at::zeros({rows, columns}, g.options());
    const Tensor out = at::empty({rows, columns}, g.options());
    const Tensor of_rows = g.reshape({-1, columns}).contiguous(), places = indices.to(ScalarType::Long).contiguous();
    if (indexed_sums_into(name, read(of_rows), read(places), skipped.expect_int(), written(out))) return out;
    const Tensor keys = at::empty({places.numel()}, places.options().dtype(ScalarType(segment_key_dtype(rows))));
    segment_keys_into(name, read(places), rows, skipped.expect_int(), written(keys));
    const auto [numbers, order] = at::sort(keys, true, 0, false);
    segment_sums_into(name, read(of_rows), read(numbers), read(order), written(out));
    return out;
  }
};

}  // namespace torchreduce::aten
