// The kernel of an overload, which serves it or goes on, and what is counted of it.
#pragma once
#include <torch/library.h>

#include <array>
#include <deque>

#include "enabled.h"
#include "plan/plan.h"
#include "tensors.h"

namespace torchreduce::aten {

// An overload that is covered, and its calls while torchreduce was on, by who served them.
struct Row {
  std::string name;
  std::array<std::atomic<uint64_t>, kReasons> calls{};
  std::atomic<bool> excluded{false};  // its calls are torch's
};
inline std::deque<Row>& rows() {
  static auto* all = new std::deque<Row>;  // for good, as what is registered
  return *all;
}

// Whether there are kernels for a GPU: a build without a GPU part has none, and some GPUs are too old. It is said once
// for each GPU, when it is first met.
inline bool has_kernels(int device) {
  static std::array<std::atomic<signed char>, 64> known{};  // 0: not asked yet
  if (device < 0 || device >= int(known.size())) return false;
  signed char has = known[size_t(device)].load(std::memory_order_relaxed);
  if (!has) {
    try {
      has = gpu_facts(device).gpu ? 1 : -1;
    } catch (const std::runtime_error&) { has = -1; }
    known[size_t(device)].store(has, std::memory_order_relaxed);
    if (has < 0)
      TORCH_WARN("torchreduce.enable(): this build of torchreduce has no kernels for GPU ", device,
                 ", so calls on its tensors are torch's. Build torchreduce for it (docs/install.md)");
  }
  return has > 0;
}
inline const Tensor& first(const Tensor& x) { return x; }
inline const Tensor& first(at::TensorList list) { return list[0]; }

// Below the key that it is registered for there are backends alone: CPU or CUDA is the highest one of dense tensors,
// and of nothing else.
template <class Tensors> bool is_covered(const Tensors& x, DispatchKeySet keys, int on) {
  switch (keys.highestPriorityTypeId()) {
    case DispatchKey::CPU: return on & kCpu;
    case DispatchKey::CUDA: return (on & kGpu) && has_kernels(first(x).device().index());
    default: return false;
  }
}

// The kernel of an overload of aten's, of the signature that ATen/Operators.h has for it.
template <class Aten, class Serve, class Signature = typename Aten::schema> struct Kernel;
template <class Aten, class Serve, class R, class X, class... A> struct Kernel<Aten, Serve, R(X, A...)> {
  static inline Row* row = nullptr;

  static R call(DispatchKeySet keys, X x, A... a) {
    const DispatchKeySet below = keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, DispatchKey::BackendSelect);
    int on = enabled.load(std::memory_order_relaxed);
    if constexpr (requires { Serve::kOnlyWhere; }) on = on & Serve::kOnlyWhere ? on : 0;
    if (on && row->excluded.load(std::memory_order_relaxed)) on = 0;
    if (below.has(DispatchKey::Meta)) on = 0;  // computes nothing, in a compiler's trace, say
    if (on) {
      Why why = Why::Served;
      auto count = [&] { row->calls[size_t(why)].fetch_add(1, std::memory_order_relaxed); };
      if (!is_covered(x, below, on)) {
        why = Why::Kind;
      } else if constexpr (std::is_void_v<R>) {
        Serve::template call<R>(why, x, a...);
        if (why == Why::Served) return count();
      } else {
        R result = Serve::template call<R>(why, x, a...);
        if (why == Why::Served) {
          count();
          return result;
        }
      }
      count();
    }
    if constexpr (requires { Serve::go_on(below, x, a...); }) return Serve::go_on(below, x, a...);
    else return Aten::redispatch(below, x, a...);
  }
};

template <class Aten, class Serve> void add(torch::Library& library) {
  const std::string name = std::string(Aten::name).substr(6), overload = Aten::overload_name;  // after "aten::"
  Row& row = rows().emplace_back();
  row.name = overload.empty() ? name : name + "." + overload;
  Kernel<Aten, Serve>::row = &row;
  library.impl(row.name.c_str(), TORCH_FN((Kernel<Aten, Serve>::call)));
}

}  // namespace torchreduce::aten
