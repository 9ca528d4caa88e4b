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
  double real(int i) const { return arguments[i].real; }
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

// x, dims, keepdim, dtype, level: of a sum or a norm.
using ReductionOp = OpOf<Tensor(const Tensor&, at::OptionalIntArrayRef, bool, std::optional<ScalarType>, int64_t)>;

// What sums of these dtypes are of.
inline ScalarType accumulator(ScalarType one, ScalarType other) {
  return one == ScalarType::Double || other == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}
inline bool has_room(const Tensor& x) { return x.dim() < kMaxDims; }  // for one more dim

// x in `dtype`, rounded once, a NaN canonical.
inline Tensor rounded_anew(const Tensor& x, ScalarType dtype) {
  // The sum of each element alone.
  static const ReductionOp sum("sum", "raw");
  static const OpOf<Tensor(const Tensor&, ScalarType)> op("rounded");
  if (!is_plain(x) || !has_room(x)) return op(x, dtype);
  return sum(x.unsqueeze(-1), at::IntArrayRef({-1}), false, dtype, 0);
}
inline Tensor rounded(const Tensor& x, ScalarType dtype) {
  return x.scalar_type() == dtype ? x : rounded_anew(x, dtype);
}
// x / n, rounded once; n broadcasts to x.
inline Tensor divided(const Tensor& x, const Tensor& n, ScalarType dtype) {
  static const OpOf<Tensor(const Tensor&, const Tensor&, ScalarType)> op("divide");
  if (!is_plain(x) || !is_plain(n) || !has_room(x)) return op(x, n, dtype);
  const ScalarType wide = accumulator(x.scalar_type(), dtype);
  const Tensor by = c10::isFloatingType(n.scalar_type()) ? n.to(wide) : n;
  return rounded_anew(at::div(x.to(wide), by), dtype);
}
// A number on g's device: torch's GPU division by one of the host multiplies by its reciprocal.
inline Tensor number_for(const Tensor& g, at::Scalar number, ScalarType dtype) {
  return at::full({}, number, g.options().dtype(dtype));
}

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
    if (is_plain(grad)) return rounded(grad, dtype).expand(shape);
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

}  // namespace torchreduce::recorded
