// Gradients of row-wise ops as rules of recorded.h: softmax, norms, losses, logsumexp, moments.
#pragma once
#include "recorded.h"

namespace torchreduce::recorded {

// ---- softmax ---------------------------------------------------------------------------------------------------------

// x, dim, dtype, level
template <class Rule> struct OfResult : Recorded<Rule> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const DirectCall& call) {
    Recorded<Rule>::begin(ctx, x.scalar_type(), call.number(3));
    ctx->saved_data["dim"] = call.number(1);
    const Tensor y = call.run();
    ctx->save_for_backward({y});
    return y;
  }
  static Tensor gradient(AutogradContext* ctx, const Tensor& g) {
    static const OpOf<Tensor(const Tensor&, const Tensor&, int64_t, ScalarType, int64_t)> op(Rule::kGradient);
    const Tensor y = ctx->get_saved_variables()[0];  // of another dtype if a hook says so
    return op(rounded(g, y.scalar_type()), y, saved_int(ctx, "dim"), saved_dtype(ctx), saved_int(ctx, "level"));
  }
};
struct softmax : OfResult<softmax> { static constexpr const char* kGradient = "softmax_gradient"; };
struct log_softmax : OfResult<log_softmax> { static constexpr const char* kGradient = "log_softmax_gradient"; };

// ---- norms -----------------------------------------------------------------------------------------------------------

// x, weight, for layer_norm bias, dims, epsilon, level
template <class Rule, bool kBias> struct Norm : Recorded<Rule> {
  using Maybe = const std::optional<Tensor>&;
  using OfWeights = std::conditional_t<kBias, std::tuple<Tensor, Tensor>, Tensor>;
  using OfAll = std::conditional_t<kBias, std::tuple<Tensor, Tensor, Tensor>, std::tuple<Tensor, Tensor>>;

  static Tensor forward(AutogradContext* ctx, const Tensor& x, Maybe weight, Maybe bias, const DirectCall& call) {
    constexpr int kNext = kBias ? 3 : 2;
    Recorded<Rule>::begin(ctx, x.scalar_type(), call.number(kNext + 2));
    ctx->saved_data["dims"] = call.number(kNext);
    ctx->saved_data["epsilon"] = call.real(kNext + 1);
    const auto& given = weight ? weight : bias;
    ctx->saved_data["weight_dtype"] = int64_t(given ? given->scalar_type() : x.scalar_type());
    const Tensor y = call.run(), stats = call.result(1);
    variable_list saved{x, weight.value_or(Tensor())};
    if (kBias) saved.push_back(bias.value_or(Tensor()));  // which may not change, as torch has it
    saved.push_back(stats);
    ctx->save_for_backward(std::move(saved));
    return y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    static const OpOf<Tensor(const Tensor&, const Tensor&, Maybe, const Tensor&, int64_t, double, int64_t)> gradient(
        Rule::kGradient);
    static const OpOf<OfWeights(const Tensor&, const Tensor&, const Tensor&, int64_t, double, ScalarType, int64_t)>
        of_weights(Rule::kWeights);
    static const OpOf<OfAll(const Tensor&, const Tensor&, Maybe, const Tensor&, int64_t, double, ScalarType, int64_t)>
        of_all(Rule::kBackward, "raw");
    if (!grads[0].defined()) return {{}, {}, {}, {}};
    const Tensor& g = grads[0];
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &stats = saved.back();
    const auto weight = maybe(saved[1]);
    const int64_t dims = saved_int(ctx, "dims"), level = saved_int(ctx, "level");
    const double epsilon = ctx->saved_data["epsilon"].toDouble();
    const auto dtype = ScalarType(saved_int(ctx, "weight_dtype"));
    // Edges are numbered without those of tensors that are not given.
    const bool to_x = ctx->needs_input_grad(0), to_weight = weight && ctx->needs_input_grad(1),
               to_bias = kBias && saved[2].defined() && ctx->needs_input_grad(weight ? 2 : 1);
    Tensor of_x, of_weight, of_bias;
    if (to_x && (to_weight || to_bias) && is_plain(g) && is_plain(x) && is_plain(weight) && is_plain(stats)) {
      const OfAll all = of_all(g, x, weight, stats, dims, epsilon, dtype, level);
      of_x = std::get<0>(all);
      of_weight = std::get<1>(all);
      if constexpr (kBias) of_bias = std::get<2>(all);
    } else {
      if (to_x) of_x = gradient(g, x, weight, stats, dims, epsilon, level);
      if (to_weight || to_bias) {
        const OfWeights some = of_weights(g, x, stats, dims, epsilon, dtype, level);
        if constexpr (kBias) std::tie(of_weight, of_bias) = some;
        else of_weight = some;
      }
    }
    return {of_x, to_weight ? of_weight : Tensor(), to_bias ? of_bias : Tensor(), {}};
  }
  static void record(const DirectCall& call) {
    Rule::apply(*call.tensor(0), call.tensor(1), kBias ? call.tensor(2) : std::nullopt, call);
  }
};

struct rms_norm : Norm<rms_norm, false> {
  static constexpr const char *kGradient = "rms_norm_gradient", *kWeights = "rms_norm_weights",
                              *kBackward = "rms_norm_backward";
};
struct layer_norm : Norm<layer_norm, true> {
  static constexpr const char *kGradient = "layer_norm_gradient", *kWeights = "layer_norm_weights",
                              *kBackward = "layer_norm_backward";
};

// ---- losses ----------------------------------------------------------------------------------------------------------

// Each row's gradient from that of the mean: g / n in the accumulator type.
inline Tensor of_each_loss(const Tensor& g, const Tensor& n, const ReducedDims& dims, ScalarType dtype, int64_t level) {
  if (is_plain(g)) return at::div(g.expand(dims.shape), n.expand(dims.shape));
  return dims.spread(dims.kept(divided(g, n, dtype)), dtype, level);
}

// x, target, weight, dim, ignored; and what the rule has more, the level last. `kMean`: the losses' mean, and what they
// are divided by.
template <class Rule, bool kMean> struct Loss : Recorded<Rule> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const DirectCall& call) {
    Recorded<Rule>::begin(ctx, x.scalar_type(), call.number(kMean ? 6 : 5));
    ctx->saved_data["dim"] = call.number(3);
    ctx->saved_data["ignored"] = call.number(4);
    const Tensor target = *call.tensor(1), weight = call.tensor(2).value_or(Tensor());
    const Tensor result = call.run(), stats = call.result(2);
    if (weight.defined() && weight.requires_grad()) throw Refused();
    variable_list saved{x, target, weight, stats};
    if (kMean) saved.push_back(call.result(1));
    ctx->save_for_backward(std::move(saved));
    return result;
  }
  static Tensor gradient(AutogradContext* ctx, const Tensor& g) {
    using Maybe = const std::optional<Tensor>&;
    static const OpOf<Tensor(const Tensor&, Maybe, const Tensor&, const Tensor&, Maybe, const Tensor&, int64_t, int64_t,
                             double, int64_t)>
        op("cross_entropy_gradient");
    const auto saved = ctx->get_saved_variables();
    const Tensor &target = saved[1], &stats = saved[3];
    const int64_t level = saved_int(ctx, "level");
    Tensor each = g;
    if constexpr (kMean) each = of_each_loss(g, saved[4], ReducedDims(target.sizes()), stats.scalar_type(), level);
    return op(each, std::nullopt, saved[0], target, maybe(saved[2]), stats, saved_int(ctx, "dim"),
              saved_int(ctx, "ignored"), 0.0, level);
  }
};
struct cross_entropy : Loss<cross_entropy, false> {};
// As cross_entropy and mean_loss: it saves what both do.
struct mean_cross_entropy : Loss<mean_cross_entropy, true> {};

// losses, weights, counts, dtype, level
struct mean_loss : Recorded<mean_loss> {
  static Tensor forward(AutogradContext* ctx, const Tensor& losses, const DirectCall& call) {
    begin(ctx, losses.scalar_type(), call.number(4));
    ReducedDims::save(ctx, losses, {});
    const Tensor mean = call.run(), n = call.result(1);
    ctx->save_for_backward({n});
    return mean;
  }
  static Tensor gradient(AutogradContext* ctx, const Tensor& g) {
    const Tensor n = ctx->get_saved_variables()[0];
    return of_each_loss(g, n, ReducedDims(ctx), saved_dtype(ctx), saved_int(ctx, "level"));
  }
};

// ---- logsumexp -------------------------------------------------------------------------------------------------------

// x, dims, keepdim, level
struct logsumexp : Recorded<logsumexp> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const DirectCall& call) {
    begin(ctx, x.scalar_type(), call.number(3));
    ReducedDims::save(ctx, x, call.ints(1));
    const Tensor value = call.run(), stats = call.result(1);
    ctx->save_for_backward({x, stats});
    return value;
  }
  static Tensor gradient(AutogradContext* ctx, const Tensor& g) {
    static const OpOf<Tensor(const Tensor&, const Tensor&, const Tensor&, at::OptionalIntArrayRef, int64_t)> op(
        "logsumexp_gradient");
    const ReducedDims dims(ctx);
    const auto saved = ctx->get_saved_variables();
    return op(dims.kept(g), saved[0], saved[1], dims.listed(), saved_int(ctx, "level"));
  }
};

// ---- moments ---------------------------------------------------------------------------------------------------------

// x, dims, keepdim, correction, root, level. The variance or its root, and the mean, have gradients both.
struct moments : Recorded<moments> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const DirectCall& call) {
    begin(ctx, x.scalar_type(), call.number(5));
    ReducedDims::save(ctx, x, call.ints(1));
    ctx->saved_data["correction"] = call.real(3);
    ctx->saved_data["root"] = call.number(4) != 0;
    call.run();
    ctx->save_for_backward({x, call.result(2)});
    return {call.result(0), call.result(1)};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    static const OpOf<Tensor(const Tensor&, const std::optional<Tensor>&, const Tensor&, const Tensor&,
                             at::OptionalIntArrayRef, double, bool, int64_t)>
        gradient("moments_gradient");
    if (!grads[0].defined() && !grads[1].defined()) return {{}, {}};
    const ReducedDims dims(ctx);
    const int64_t level = saved_int(ctx, "level");
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &stats = saved[1];
    const Tensor to_mean = grads[1].defined() ? dims.kept(grads[1]) : Tensor();
    if (!grads[0].defined()) {
      const Tensor g = to_mean.to(stats.scalar_type());
      const Tensor each = divided(g, number_for(g, dims.count(), g.scalar_type()), g.scalar_type());
      return {dims.spread(each, saved_dtype(ctx), level), {}};
    }
    return {gradient(dims.kept(grads[0]), maybe(to_mean), x, stats, dims.listed(),
                     ctx->saved_data["correction"].toDouble(), ctx->saved_data["root"].toBool(), level),
            {}};
  }
};

}  // namespace torchreduce::recorded
