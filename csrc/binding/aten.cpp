// torch's own calls, served by torchreduce where it covers them, else by torch's kernels. By torch's full C++ API, so
// that one build serves one version of torch: that which its file is named after (torchreduce/override/__init__.py).
//
// Kernels are registered for BackendSelect: a dispatch key that every call carries, below autograd, functorch, fake
// tensors and Python modes, and above the backends; reductions have no kernel there. So nothing of torch's is replaced,
// and going on is a redispatch without that key, to whatever is registered for the tensor's own key. What torch takes
// apart before, and what has a gradient of torchreduce's own, is met above autograd: see there.
//
// They are registered when they are first turned on, and for good: taking a kernel off while another thread calls its
// op crashes. What turns them on and off is one atomic, read once a call.
//
// Covered is what gives torch's values, dtypes, shapes and strides. Whatever else a call is, wrong arguments too, is
// torch's to serve or to refuse.
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/record_function.h>

#include <utility>

#include "aten/above.h"
#include "aten/bags.h"
#include "aten/losses.h"
#include "aten_table.h"
#include "interface.h"

namespace torchreduce::aten {
namespace {

void add_all() {
  using namespace at::_ops;
  torch::Library& aten = library_for(DispatchKey::BackendSelect);
#define TR_ADD(overload, ...) add<overload, __VA_ARGS__>(aten);
  TR_FOR_EACH_ROW(TR_ADD)
}

void add_above() {
  using namespace at::_ops;
  AboveLibraries all{library_for(DispatchKey::AutogradCPU), library_for(DispatchKey::AutogradCUDA),
                     library_for(DispatchKey::BackendSelect), library_for(DispatchKey::FuncTorchBatched)};
#define TR_ADD_ABOVE(overload, which) all.add<overload, which>();
  TR_FOR_EACH_ABOVE(TR_ADD_ABOVE)
}

// Registered when products are first asked for: every product of the process passes here from then on.
void add_products() {
  using namespace at::_ops;
  torch::Library& aten = library_for(DispatchKey::BackendSelect);
  TR_FOR_EACH_PRODUCT(TR_ADD)
  Attention::row = &rows().emplace_back();
  Attention::row->name = "scaled_dot_product_attention";
  torch::Library& above = library_for(DispatchKey::AutogradCUDA);
  above.impl("linear", TORCH_FN(Linear::call));
  library_for(DispatchKey::AutogradCPU).impl("linear", TORCH_FN(Linear::call));
  aten.impl("linear", TORCH_FN(Linear::call_below));
  above.impl("scaled_dot_product_attention", TORCH_FN(Attention::call));
  aten.impl("scaled_dot_product_attention", TORCH_FN(Attention::call_below));
}

// Keys that a plain tensor has, whose kernels would only go on.
constexpr DispatchKeySet kPassing = c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
                                    DispatchKeySet(DispatchKey::BackendSelect);

// Whether the dispatcher would go straight to a backend with x: no mode, transform, tracer, profiler or gradient is at
// work, and x is dense, and no view that negates.
bool is_plain(const Tensor& x) {
  const auto local = c10::impl::tls_local_dispatch_key_set();
  const DispatchKeySet keys = (x.key_set() | local.included_) - local.excluded_ - kPassing;
  const DispatchKey highest = keys.highestPriorityTypeId();
  return (highest == DispatchKey::CPU || highest == DispatchKey::CUDA) &&
         !(x.requires_grad() && at::GradMode::is_enabled()) && !x._fw_grad(0).defined() &&
         at::impl::PythonTorchFunctionTLS::stack_len() == 0 &&
         !at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
}

}  // namespace
}  // namespace torchreduce::aten

// Of libtorch_python.so, for whatever Python: torch's own declaration takes Python's headers.
struct _object* THPVariable_Wrap(const at::TensorBase& tensor);

// What torchreduce/_core/direct.py calls, with handles of torch's stable ABI, which are pointers to tensors.
extern "C" {
bool torchreduce_aten_is_plain(const at::Tensor* x) { return torchreduce::aten::is_plain(*x); }
struct _object* torchreduce_aten_wrap(const at::Tensor* x) { return THPVariable_Wrap(*x); }
}

// What torchreduce/override/__init__.py calls.
extern "C" {
void torchreduce_aten_register() { torchreduce::aten::add_all(); }
void torchreduce_aten_register_above() { torchreduce::aten::add_above(); }
void torchreduce_aten_register_products() { torchreduce::aten::add_products(); }
void torchreduce_aten_enable(int devices) { torchreduce::aten::enabled.store(devices); }
void torchreduce_aten_exclude(int row, bool excluded) {
  torchreduce::aten::rows()[size_t(row)].excluded.store(excluded, std::memory_order_relaxed);
}
int torchreduce_aten_trace(int devices) { return std::exchange(torchreduce::aten::tracing, devices); }
int torchreduce_aten_rows() { return int(torchreduce::aten::rows().size()); }
const char* torchreduce_aten_name(int row) { return torchreduce::aten::rows()[size_t(row)].name.c_str(); }
const char* torchreduce_aten_why(int why) {
  return why < torchreduce::aten::kReasons ? torchreduce::aten::kWhy[why] : nullptr;
}
// The calls of all rows, one after the other, each by why.
void torchreduce_aten_counts(uint64_t* calls) {
  for (const torchreduce::aten::Row& row : torchreduce::aten::rows())
    for (const std::atomic<uint64_t>& n : row.calls) *calls++ = n.load(std::memory_order_relaxed);
}
}
