// Gradients of reductions and scans as rules of recorded.h.
#pragma once
#include "recorded.h"

namespace torchreduce::recorded {

// ---- sums ------------------------------------------------------------------------------------------------------------

// x, dims, keepdim, dtype, level
template <class Rule> struct OfSum : Recorded<Rule> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const DirectCall& call) {
    Recorded<Rule>::begin(ctx, x.scalar_type(), call.number(4));
    ReducedDims::save(ctx, x, call.ints(1));
    return call.run_to_float();
  }
  static Tensor gradient(AutogradContext* ctx, const Tensor& g) {
    const ReducedDims dims(ctx);
    const ScalarType dtype = saved_dtype(ctx);
    return dims.spread(Rule::of_each(dims.kept(g), dims, dtype), dtype, saved_int(ctx, "level"));
  }
};
struct sum : OfSum<sum> {
  static Tensor of_each(const Tensor& grad, const ReducedDims&, ScalarType) { return grad; }
};
struct mean : OfSum<mean> {
  static Tensor of_each(const Tensor& grad, const ReducedDims& dims, ScalarType dtype) {
    const Tensor count = number_for(grad, dims.count(), ScalarType::Long);
    return divided(grad, count, is_plain(grad) ? dtype : accumulator(grad.scalar_type(), dtype));
  }
};

// ---- extremes --------------------------------------------------------------------------------------------------------

// x, dims, keepdim, level; of all elements x, keepdim, level. Shared evenly among the ties. With a NaN nothing ties,
// and every element's share is 0 * g / 0; of all elements every NaN does.
template <class Rule, bool kOfAll> struct Shared : Recorded<Rule> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const DirectCall& call) {
    Recorded<Rule>::begin(ctx, x.scalar_type(), call.number(kOfAll ? 2 : 3));
    ReducedDims::save(ctx, x, kOfAll ? MaybeInts() : call.ints(1));
    const Tensor y = call.run();
    ctx->save_for_backward({x, y});
    return y;
  }
  static Tensor gradient(AutogradContext* ctx, const Tensor& g) {
    static const ReductionOp sum("sum");
    const ReducedDims dims(ctx);
    const ScalarType dtype = saved_dtype(ctx);
    const int64_t level = saved_int(ctx, "level");
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], y = dims.kept(saved[1]);
    Tensor ties = x.eq(y);
    if (kOfAll) ties = ties.logical_or(x.isnan().logical_and(y.isnan()));
    const Tensor count = sum(ties, dims.listed(), true, std::nullopt, level), none = count.eq(0);
    const Tensor share = divided(dims.kept(g).masked_fill(none, 0), count, accumulator(dtype, dtype));
    return dims.spread(share, dtype, level).masked_fill(ties.logical_or(none).logical_not(), 0);
  }
};
struct amax : Shared<amax, false> {};
struct amin : Shared<amin, false> {};
struct max_all : Shared<max_all, true> {};
struct min_all : Shared<min_all, true> {};

// x, dims, keepdim, level. To the index, which over several dims counts their elements, ascending and row-major.
template <class Rule> struct Indexed : Recorded<Rule> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const DirectCall& call) {
    Recorded<Rule>::begin(ctx, x.scalar_type(), call.number(3));
    ReducedDims::save(ctx, x, call.ints(1));
    const Tensor y = call.run();
    ctx->save_for_backward({call.result(1)});
    return y;
  }
  // In place, unless something has to see the operation.
  static Tensor put(Tensor zeros, int64_t dim, const Tensor& index, const Tensor& g) {
    return is_plain(g) ? zeros.scatter_(dim, index, g) : zeros.scatter(dim, index, g);
  }
  static Tensor gradient(AutogradContext* ctx, const Tensor& result) {
    const ReducedDims dims(ctx);
    const Tensor g = dims.kept(result), index = dims.kept(ctx->get_saved_variables()[0]);
    if (dims.dims && dims.dims->size() == 1)
      return put(at::zeros(dims.shape, g.options()), dims.dims->front(), index, g);
    // As rows of the elements that were reduced.
    const int64_t n = int64_t(dims.shape.size());
    std::vector<int64_t> order, sizes, back(size_t(n), 0);
    for (const bool reduced : {false, true})
      for (int64_t d = 0; d < n; ++d)
        if (dims.has(d) == reduced) {
          back[size_t(d)] = int64_t(order.size());
          order.push_back(d);
          sizes.push_back(dims.shape[size_t(d)]);
        }
    const auto kept = std::count_if(order.begin(), order.end(), [&](int64_t d) { return !dims.has(d); });
    std::vector<int64_t> rows(sizes.begin(), sizes.begin() + kept), one = rows;
    rows.push_back(dims.count());
    one.push_back(1);
    return put(at::zeros(rows, g.options()), kept, index.permute(order).reshape(one), g.permute(order).reshape(one))
        .reshape(sizes)
        .permute(back);
  }
};
struct max : Indexed<max> {};
struct min : Indexed<min> {};

// ---- norms -----------------------------------------------------------------------------------------------------------

// x, dims, keepdim, dtype, level. Each element, divided by the norm; 0 where that is 0.
struct norm2 : Recorded<norm2> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const DirectCall& call) {
    begin(ctx, x.scalar_type(), call.number(4));
    ReducedDims::save(ctx, x, call.ints(1));
    const Tensor y = call.run_to_float();
    ctx->save_for_backward({x, y});
    return y;
  }
  static Tensor gradient(AutogradContext* ctx, const Tensor& g) {
    static const ReductionOp op("norm2");
    const ReducedDims dims(ctx);
    const ScalarType dtype = saved_dtype(ctx);
    const int64_t level = saved_int(ctx, "level");
    const auto saved = ctx->get_saved_variables();
    const Tensor& x = saved[0];
    Tensor norm = saved[1];
    const ScalarType of_units = accumulator(dtype, norm.scalar_type()), wide = accumulator(dtype, g.scalar_type());
    // Results of 16 bits are too coarse.
    if (norm.scalar_type() != of_units) norm = op(x, dims.listed(), true, of_units, level);
    norm = dims.kept(norm);
    const Tensor zero = norm.eq(0);
    const Tensor units = divided(x, norm.masked_fill(zero, 1), of_units).masked_fill(zero, 0);
    return rounded(dims.spread(dims.kept(g), wide, level).mul(units.to(wide)), dtype);
  }
};

// ---- scans -----------------------------------------------------------------------------------------------------------

// x, dim, dtype, exclusive, reverse, level. The gradient is the scan from the other end.
struct cumsum : Recorded<cumsum> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const DirectCall& call) {
    begin(ctx, x.scalar_type(), call.number(5));
    ctx->saved_data["dim"] = call.number(1);
    ctx->saved_data["exclusive"] = call.number(3) != 0;
    ctx->saved_data["reverse"] = call.number(4) != 0;
    return call.run_to_float();
  }
  static Tensor gradient(AutogradContext* ctx, const Tensor& g) {
    static const OpOf<Tensor(const Tensor&, int64_t, std::optional<ScalarType>, bool, bool, int64_t)> op("cumsum");
    return op(g, saved_int(ctx, "dim"), saved_dtype(ctx), ctx->saved_data["exclusive"].toBool(),
              !ctx->saved_data["reverse"].toBool(), saved_int(ctx, "level"));
  }
};

}  // namespace torchreduce::recorded
