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
#include <utility>

#include "aten/above.h"
#include "aten/bags.h"
#include "aten/losses.h"
#include "aten/reduction_rules.h"
#include "aten/row_rules.h"
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

}  // namespace
}  // namespace torchreduce::aten

namespace torchreduce::recorded {

// Null for an op without a rule.
static Record record_of(std::string_view op) {
  static const std::map<std::string_view, Record> rules = {
      {"softmax", record<softmax>},
      {"log_softmax", record<log_softmax>},
      {"rms_norm", record<rms_norm>},
      {"layer_norm", record<layer_norm>},
      {"cross_entropy", record<cross_entropy>},
      {"mean_cross_entropy", record<mean_cross_entropy>},
      {"mean_loss", record<mean_loss>},
      {"logsumexp", record<logsumexp>},
      {"moments", record<moments>},
      {"sum", record<sum>},
      {"mean", record<mean>},
      {"amax", record<amax>},
      {"amin", record<amin>},
      {"max_all", record<max_all>},
      {"min_all", record<min_all>},
      {"max", record<max>},
      {"min", record<min>},
      {"norm2", record<norm2>},
      {"cumsum", record<cumsum>},
  };
  const auto rule = rules.find(op);
  return rule == rules.end() ? nullptr : rule->second;
}

}  // namespace torchreduce::recorded

// Of libtorch_python.so, for whatever Python: torch's own declaration takes Python's headers.
struct _object* THPVariable_Wrap(const at::TensorBase& tensor);

// What torchreduce/_core/direct.py calls, with handles of torch's stable ABI, which are pointers to tensors.
extern "C" {
torchreduce::Kind torchreduce_aten_kind_of(const at::Tensor* x) { return torchreduce::recorded::kind_of(*x); }
torchreduce::Record torchreduce_aten_record_of(const char* op) { return torchreduce::recorded::record_of(op); }
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
