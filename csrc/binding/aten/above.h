// Calls that are met above autograd.
#pragma once
#include "channels.h"
#include "kernel.h"
#include "products.h"

namespace torchreduce::aten {

// Some calls are met for AutogradCPU and AutogradCUDA, where torch registers nothing: its own are for the alias key
// Autograd, or composites. They are those whose gradient torchreduce has better than by torch's formula, if a gradient
// or a tangent is needed, and composites, which torch takes apart there and so would not show to BackendSelect.
//
// What serves them are ops of torchreduce_override (torchreduce/override/above.py), with aten's signatures, which
// make calls of torchreduce's differentiable ops, or go on. Going on is a redispatch with AutogradOther in the place of
// the tensor's own key.
enum class Which {
  Gradients,
  All,          // a composite
  Cpu,          // one that torch takes apart on a CPU alone
  Transformed,  // one that is met below, but for what torch's batching rules make of it
  Whole,        // a composite whose parts are met below, but for transforms and what a compiler traces
  Backward,     // a gradient that torch has a kernel for
};
constexpr DispatchKeySet kOther(DispatchKey::AutogradOther);
constexpr DispatchKeySet kBelow(DispatchKeySet::FULL_AFTER, DispatchKey::AutogradOther);
constexpr DispatchKeySet kTransform(DispatchKey::FuncTorchDynamicLayerBackMode);
constexpr DispatchKeySet kIgnored =
    kTransform | DispatchKeySet({DispatchKey::ADInplaceOrView, DispatchKey::BackendSelect});

inline bool is_met(const Tensor& x, DispatchKeySet keys, Which which) {
  const int on = enabled.load(std::memory_order_relaxed);
  if ((!on && !tracing) || !is_float(x.scalar_type())) return false;
  const bool is_transformed = keys.has_all(kTransform), is_traced = tracing && keys.has(DispatchKey::Python);
  if (which == Which::Transformed && !is_transformed) return false;
  if (which == Which::Whole && !is_transformed && !is_traced) return false;
  if (which == Which::Cpu && !x.is_cpu() && !is_transformed) return false;
  if (which == Which::Gradients && !(x.requires_grad() && at::GradMode::is_enabled()) && !x._fw_grad(0).defined())
    return false;
  if (is_traced) return x.is_cpu() ? tracing & kCpu : x.is_cuda() && (tracing & kGpu);
  return is_covered(x, (keys & kBelow) - kIgnored, on);
}

// Whether torch is to normalize a batch by its own kernel, where it would choose cuDNN's: torchreduce meets that below.
inline bool is_below_cudnn(DispatchKeySet keys, const Tensor& x, const MaybeTensor& weight, const MaybeTensor& bias,
                           const MaybeTensor& mean, const MaybeTensor& variance, bool training, double, double, bool) {
  return x.is_cuda() && is_met(x, keys, Which::All) &&
         BatchNorm::plan(x, weight, bias, mean, variance, training) == Why::Served;
}
inline Tensor batch_norm_below(const Tensor& x, const MaybeTensor& weight, const MaybeTensor& bias,
                               const MaybeTensor& mean, const MaybeTensor& variance, bool training, double momentum,
                               double epsilon, bool) {
  return std::get<0>(at::native_batch_norm(x, weight, bias, mean, variance, training, momentum, epsilon));
}

template <class Aten, Which which, class Signature = typename Aten::schema> struct Above;
template <class Aten, Which which, class R, class X, class... A> struct Above<Aten, which, R(X, A...)> {
  static R serve(DispatchKeySet keys, X x, A... a) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow(served_name().c_str(), Aten::overload_name)
                               .template typed<R(X, A...)>();
    return op.redispatch(keys, x, a...);
  }
  static std::string served_name() { return "torchreduce_override" + std::string(Aten::name).substr(4); }
  // For autograd's keys.
  static R call(DispatchKeySet keys, X x, A... a) {
    const DispatchKeySet further = (keys & kBelow) | kOther;
    if constexpr (std::is_same_v<Aten, at::_ops::batch_norm>)
      if (!is_met(x, keys, which) && is_below_cudnn(keys, x, a...)) return batch_norm_below(x, a...);
    return is_met(x, keys, which) ? serve(further, x, a...) : Aten::redispatch(further, x, a...);
  }
  // For BackendSelect, where inference mode meets a composite, and for batches.
  static R call_below(DispatchKeySet keys, X x, A... a) {
    if constexpr (std::is_same_v<Aten, at::_ops::batch_norm>)
      if (!is_met(x, keys, which) && is_below_cudnn(keys, x, a...)) return batch_norm_below(x, a...);
    const bool is_batched = keys.has(DispatchKey::FuncTorchBatched);
    const DispatchKeySet below = keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, DispatchKey::BackendSelect);
    return is_met(x, keys, which) ? serve(kOther, x, a...) : Aten::redispatch(is_batched ? kOther : below, x, a...);
  }
};

struct AboveLibraries {
  torch::Library &cpu, &cuda, &select, &batched;

  template <class Aten, Which which> void add() {
    const std::string overload = Aten::overload_name;
    const std::string name = std::string(Aten::name).substr(6) + (overload.empty() ? "" : "." + overload);
    for (torch::Library* library : {&cpu, &cuda}) library->impl(name.c_str(), TORCH_FN((Above<Aten, which>::call)));
    if constexpr (which != Which::Gradients && which != Which::Backward)
      for (torch::Library* library : {&select, &batched})
        library->impl(name.c_str(), TORCH_FN((Above<Aten, which>::call_below)));
  }
};

inline torch::Library& library_for(DispatchKey key) {
  return *new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
}

// A layer's product is one with its bias added in float32 where torch sees a matrix, and a rounded one with a rounded
// sum elsewhere: for a row alone, say. Here it is a matrix, whatever its shape and layout.
struct Linear {
  using Aten = at::_ops::linear;

  static bool is_met(DispatchKeySet keys, const Tensor& x, const Tensor& weight, const MaybeTensor& bias) {
    const int on = enabled.load(std::memory_order_relaxed) | tracing;
    if (!(on & kProducts) || !given(bias) || !aten::is_met(x, keys, Which::All)) return false;
    for (const Tensor* t : {&x, &weight, &*bias})
      if (t->layout() != at::kStrided || t->is_nested()) return false;
    return bias->dim() == 1 && x.dim() != 0 && x.dim() != 2 && weight.dim() == 2 &&
           has_products(Dtype(x.scalar_type()), on & kFloat32Products) && weight.sym_size(1) == x.sym_size(-1);
  }
  static Tensor serve(const Tensor& x, const Tensor& weight, const MaybeTensor& bias) {
    c10::SymDimVector sizes(x.sym_sizes().begin(), x.sym_sizes().end());
    c10::SymInt rows = 1;
    for (size_t d = 0; d + 1 < sizes.size(); ++d) rows = rows * sizes[d];
    sizes.back() = weight.sym_size(0);
    return at::linear(x.reshape_symint({rows, x.sym_size(-1)}), weight, bias).reshape_symint(sizes);
  }
  static Tensor call(DispatchKeySet keys, const Tensor& x, const Tensor& weight, const MaybeTensor& bias) {
    if (is_met(keys, x, weight, bias)) return serve(x, weight, bias);
    return Aten::redispatch((keys & kBelow) | kOther, x, weight, bias);
  }
  static Tensor call_below(DispatchKeySet keys, const Tensor& x, const Tensor& weight, const MaybeTensor& bias) {
    if (is_met(keys, x, weight, bias)) return serve(x, weight, bias);
    return Aten::redispatch(keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, DispatchKey::BackendSelect), x, weight,
                            bias);
  }
};

// Attention by kernels whose rows do not depend on the batch: while products are overridden those of flash attention
// are off (torchreduce/override/__init__.py). cuDNN's split the keys for one query alone, so that one is made two.
struct Attention {
  using Aten = at::_ops::scaled_dot_product_attention;
  static inline Row* row = nullptr;

  static bool is_met(DispatchKeySet keys, const Tensor& query) {
    const int on = enabled.load(std::memory_order_relaxed) | tracing;
    return (on & kProducts) && query.is_cuda() && !query.is_nested() && query.dim() >= 2 &&
           aten::is_met(query, keys, Which::All) && has_products(query.device().index());
  }
  static Tensor go_on(DispatchKeySet keys, DispatchKeySet further, const Tensor& query, const Tensor& key,
                      const Tensor& value, const MaybeTensor& mask, double dropout, bool is_causal,
                      std::optional<double> scale, bool grouped) {
    if (!is_met(keys, query))
      return Aten::redispatch(further, query, key, value, mask, dropout, is_causal, scale, grouped);
    const bool serves = !at::globalContext().userEnabledFlashSDP() && dropout == 0;
    if (!tracing) row->calls[size_t(serves ? Why::Served : Why::Option)].fetch_add(1, std::memory_order_relaxed);
    if (!serves || query.sym_size(-2) != 1)
      return Aten::redispatch(further, query, key, value, mask, dropout, is_causal, scale, grouped);
    c10::SymDimVector sizes(query.sym_sizes().begin(), query.sym_sizes().end());
    sizes[sizes.size() - 2] = 2;
    return Aten::call(query.expand_symint(sizes), key, value, mask, dropout, is_causal, scale, grouped)
        .narrow(-2, 0, 1);
  }
  static Tensor call(DispatchKeySet keys, const Tensor& query, const Tensor& key, const Tensor& value,
                     const MaybeTensor& mask, double dropout, bool is_causal, std::optional<double> scale,
                     bool grouped) {
    return go_on(keys, (keys & kBelow) | kOther, query, key, value, mask, dropout, is_causal, scale, grouped);
  }
  static Tensor call_below(DispatchKeySet keys, const Tensor& query, const Tensor& key, const Tensor& value,
                           const MaybeTensor& mask, double dropout, bool is_causal, std::optional<double> scale,
                           bool grouped) {
    const DispatchKeySet below = keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, DispatchKey::BackendSelect);
    return go_on(keys, below, query, key, value, mask, dropout, is_causal, scale, grouped);
  }
};

}  // namespace torchreduce::aten
