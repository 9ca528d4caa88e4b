// Calls of bare kernels whose gradient torch is to record, by its C++ functions, which take a few microseconds of the
// host's time less than those of Python. They are the rules of torchreduce/_autograd for plain tensors (kind_of); the
// gradients of their gradients, tangents and transforms are those of the ops that they call.
#pragma once
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <map>
#include <string>

#include "../direct.h"
#include "tensors.h"

namespace torchreduce::recorded {

using aten::DispatchKey;
using aten::DispatchKeySet;
using aten::ScalarType;
using aten::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using MaybeInts = std::optional<std::vector<int64_t>>;

// Keys that a plain tensor has, whose kernels would only go on.
constexpr DispatchKeySet kPassing = c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
                                    DispatchKeySet(DispatchKey::BackendSelect);

// Plain where the dispatcher would go straight to a backend with x: no mode, transform, tracer, profiler or gradient is
// at work, and x is dense, and no view that negates. Recorded where only a gradient is.
inline Kind kind_of(const Tensor& x) {
  const auto local = c10::impl::tls_local_dispatch_key_set();
  const DispatchKeySet keys = (x.key_set() | local.included_) - local.excluded_ - kPassing;
  const DispatchKey highest = keys.highestPriorityTypeId();
  if ((highest != DispatchKey::CPU && highest != DispatchKey::CUDA) || x._fw_grad(0).defined() ||
      at::impl::PythonTorchFunctionTLS::stack_len() > 0 || at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION))
    return Kind::Other;
  const bool records = at::GradMode::is_enabled() && !c10::InferenceMode::is_enabled();
  return records && x.requires_grad() ? Kind::Recorded : Kind::Plain;
}
template <class T> bool is_plain(const T& x) {
  if constexpr (std::is_same_v<T, Tensor>) return kind_of(x) == Kind::Plain;
  else if constexpr (std::is_same_v<T, std::optional<Tensor>>) return !x || is_plain(*x);
  else return true;
}

// A kernel's arguments (direct.h), which are the kernel's.
inline void give(Argument& to, const Tensor& t) { to.tensor = new Tensor(t); }
inline void give(Argument& to, int64_t number) { to.number = number; }
inline void give(Argument& to, bool is) { to.number = is; }
inline void give(Argument& to, double real) { to.real = real; }
inline void give(Argument& to, ScalarType dtype) { to.number = int64_t(dtype); }
inline void give(Argument& to, at::OptionalIntArrayRef ints) {
  to.given = ints.has_value();
  if (ints) to.ints = ints->vec();
}
template <class T> void give(Argument& to, const std::optional<T>& one) {
  to.given = one.has_value();
  if (one) give(to, *one);
}
inline Tensor taken(void* handle) {
  Tensor t = std::move(*static_cast<Tensor*>(handle));
  drop_tensor(handle);
  return t;
}

// An overload of an op of torchreduce. Of plain tensors nothing is recorded, and autograd not asked; where the op is
// one of direct_ops(), neither is the dispatcher. It raises what Python makes ValueError and IndexError of in
// gradients, too.
template <class Signature> class OpOf;
template <class R, class... A> class OpOf<R(A...)> {
 public:
  explicit OpOf(const char* name, const char* overload = "")
      : op(c10::Dispatcher::singleton()
               .findSchemaOrThrow((std::string("torchreduce::") + name).c_str(), overload)
               .template typed<R(A...)>()) {
    for (const DirectOp& each : direct_ops())
      if (each.name == name && each.parameters.size() == sizeof...(A)) kernel = each.call;
  }
  R operator()(A... a) const {
    try {
      if (!(is_plain<std::decay_t<A>>(a) && ...)) return op.call(a...);
      if (std::optional<R> made = direct(a...)) return *std::move(made);
      const at::AutoDispatchBelowAutograd below;
      return op.call(a...);
    } catch (const std::invalid_argument& error) {
      C10_THROW_ERROR(ValueError, error.what());
    } catch (const std::out_of_range& error) { C10_THROW_ERROR(IndexError, error.what()); }
  }

 private:
  // None where there is no such kernel, or it raised: the dispatcher's way tells what.
  std::optional<R> direct(A... a) const {
    if constexpr (!(std::is_same_v<A, c10::SymIntArrayRef> || ...)) {
      if (!kernel) return {};
      std::array<Argument, sizeof...(A)> given;
      size_t i = 0;
      ((given[i].given = true, give(given[i], a), ++i), ...);
      std::array<void*, kMostResults> made{};
      if (kernel(given.data(), made.data())) return results(made, static_cast<R*>(nullptr));
      for (void* handle : made)
        if (handle) drop_tensor(handle);
    }
    return {};
  }
  static Tensor results(const std::array<void*, kMostResults>& made, Tensor*) { return taken(made[0]); }
  template <class... T>
  static R results(const std::array<void*, kMostResults>& made, std::tuple<T...>*) {
    return
        [&]<size_t... i>(std::index_sequence<i...>) { return R{taken(made[i])...}; }(std::index_sequence_for<T...>());
  }

  c10::TypedOperatorHandle<R(A...)> op;
  Kernel kernel = nullptr;
};

// The kernel raised, or there is no gradient.
struct Refused : std::exception {};

// A call, whose results are to be recorded.
struct DirectCall {
  Kernel kernel;
  Argument* arguments;
  void** results;

  std::optional<Tensor> tensor(int i) const {
    return arguments[i].given ? std::optional(*static_cast<const Tensor*>(arguments[i].tensor)) : std::nullopt;
  }
  int64_t number(int i) const { return arguments[i].number; }
  MaybeInts ints(int i) const { return arguments[i].given ? MaybeInts(arguments[i].ints) : std::nullopt; }
  // Runs the kernel, which takes the arguments over. The results belong to `results`.
  Tensor& run() const {
    if (!kernel(arguments, results)) throw Refused();
    return result(0);
  }
  // The same of an op with dtype=: results that are no floats have no gradient.
  Tensor& run_to_float() const {
    if (!c10::isFloatingType(run().scalar_type())) throw Refused();
    return result(0);
  }
  Tensor& result(int i) const { return *static_cast<Tensor*>(results[i]); }
};

// The dims of a reduction, and its input's shape.
struct ReducedDims {
  std::vector<int64_t> shape;
  MaybeInts dims;

  static void save(AutogradContext* ctx, const Tensor& x, MaybeInts dims) {
    ctx->saved_data["shape"] = x.sizes().vec();
    ctx->saved_data["dims"] = std::move(dims);
  }
  explicit ReducedDims(AutogradContext* ctx)
      : shape(ctx->saved_data["shape"].toIntVector()), dims(ctx->saved_data["dims"].to<MaybeInts>()) {}
  explicit ReducedDims(at::IntArrayRef all) : shape(all.vec()) {}

  at::OptionalIntArrayRef listed() const {
    return dims ? at::OptionalIntArrayRef(at::IntArrayRef(*dims)) : at::OptionalIntArrayRef();
  }
  bool has(int64_t d) const {
    if (!dims || dims->empty()) return true;
    const int64_t n = int64_t(shape.size());
    return std::any_of(dims->begin(), dims->end(), [&](int64_t each) { return (each < 0 ? each + n : each) == d; });
  }
  // With size 1 along these dims.
  Tensor kept(const Tensor& result) const {
    if (result.dim() == int64_t(shape.size())) return result;
    std::vector<int64_t> sizes = shape;
    for (size_t d = 0; d < sizes.size(); ++d)
      if (has(int64_t(d))) sizes[d] = 1;
    return result.reshape(sizes);
  }
  int64_t count() const {
    int64_t n = 1;
    for (size_t d = 0; d < shape.size(); ++d)
      if (has(int64_t(d))) n *= shape[d];
    return n;
  }
  Tensor spread(const Tensor& grad, ScalarType dtype, int64_t level) const {
    if (is_plain(grad) && grad.scalar_type() == dtype) return grad.expand(shape);
    static const OpOf<Tensor(const Tensor&, c10::SymIntArrayRef, at::OptionalIntArrayRef, ScalarType, int64_t)> op(
        "spread");
    return op(grad, c10::fromIntArrayRefSlow(shape), listed(), dtype, level);
  }
};

inline ScalarType saved_dtype(AutogradContext* ctx) { return ScalarType(ctx->saved_data["dtype"].toInt()); }
inline int64_t saved_int(AutogradContext* ctx, const char* name) { return ctx->saved_data[name].toInt(); }
inline std::optional<Tensor> maybe(const Tensor& t) { return t.defined() ? std::optional(t) : std::nullopt; }

// A rule has `forward` as torch::autograd::Function asks: it takes the tensor that has a gradient, then the call, and
// returns the call's first result; the others are tensors without a gradient. It saves what Python's rule saves, in
// that order: a checkpoint may meet either. `gradient` makes that of the tensor out of the result's. Rules are named as
// the ops, since graphs show that.
template <class Rule> struct Recorded : torch::autograd::Function<Rule> {
  static constexpr bool is_traceable = true;
  static void begin(AutogradContext* ctx, ScalarType dtype, int64_t level) {
    ctx->set_materialize_grads(false);
    ctx->saved_data["dtype"] = int64_t(dtype);
    ctx->saved_data["level"] = level;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {grads[0].defined() ? Rule::gradient(ctx, grads[0]) : Tensor(), {}};
  }
  static void record(const DirectCall& call) { Rule::apply(*call.tensor(0), call); }
};

// x / n, rounded once.
inline Tensor divided(const Tensor& x, const Tensor& n, ScalarType dtype) {
  static const OpOf<Tensor(const Tensor&, const Tensor&, ScalarType)> op("divide");
  return op(x, n, dtype);
}
inline Tensor rounded(const Tensor& x, ScalarType dtype) {
  static const OpOf<Tensor(const Tensor&, ScalarType)> op("rounded");
  return x.scalar_type() == dtype ? x : op(x, dtype);
}

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
    ctx->saved_data["epsilon"] = call.arguments[kNext + 1].real;
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

// ---- reductions and scans --------------------------------------------------------------------------------------------

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
  // Divided on the gradient's device: torch's GPU division by a number of the host multiplies by its reciprocal.
  static Tensor of_each(const Tensor& grad, const ReducedDims& dims, ScalarType dtype) {
    const bool is_wide = dtype == ScalarType::Double || grad.scalar_type() == ScalarType::Double;
    const ScalarType wide = is_wide ? ScalarType::Double : ScalarType::Float;
    const Tensor count = at::full({}, dims.count(), grad.options().dtype(ScalarType::Long));
    if (!is_plain(grad) || grad.dim() >= kMaxDims) return divided(grad, count, wide);
    // Rounded once, a NaN canonical: the sum of each element alone.
    static const OpOf<Tensor(const Tensor&, at::OptionalIntArrayRef, bool, std::optional<ScalarType>, int64_t)> round(
        "sum", "raw");
    return round(at::div(grad.to(wide), count).unsqueeze(-1), at::IntArrayRef({-1}), false, dtype, 0);
  }
};

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

// ----------------------------------------------------------------------------------------------------------------------

template <class Rule> bool record(Kernel kernel, Argument* arguments, void** results) {
  try {
    Rule::record({kernel, arguments, results});
    return true;
  } catch (const std::exception&) {
    // Of a hook that raised, as checkpoints' do, the result may be what its own node was about to save.
    if (results[0]) static_cast<Tensor*>(results[0])->unsafeGetTensorImpl()->set_autograd_meta(nullptr);
    return false;
  }
}

// Null for an op without a rule.
inline Record record_of(std::string_view op) {
  static const std::map<std::string_view, Record> rules = {
      {"softmax", record<softmax>},
      {"log_softmax", record<log_softmax>},
      {"rms_norm", record<rms_norm>},
      {"layer_norm", record<layer_norm>},
      {"cross_entropy", record<cross_entropy>},
      {"mean_cross_entropy", record<mean_cross_entropy>},
      {"mean_loss", record<mean_loss>},
      {"logsumexp", record<logsumexp>},
      {"sum", record<sum>},
      {"mean", record<mean>},
      {"cumsum", record<cumsum>},
  };
  const auto rule = rules.find(op);
  return rule == rules.end() ? nullptr : rule->second;
}

}  // namespace torchreduce::recorded
