// The ops as torch sees them: schemas, checks, allocation, and the way to the kernels. Met through LibTorch's stable
// ABI (target 2.10), so that one build serves every later torch, with or without CUDA.
//
// Python has checked the arguments before, with torch's exception types; what is checked here again is what memory
// safety needs when an op is called directly.
#include <dlfcn.h>
#include <torch/csrc/stable/library.h>

#include <string>
#include <tuple>

#include "cpu/cpu.h"
#include "kernels/gpu.h"
#include "torch_tensor.h"

namespace torchreduce {
namespace {

using torch::headeronly::ScalarType;

// ---- devices -----------------------------------------------------------------------------------------------------------

void parallel_for(int64_t tasks, void (*body)(void*, int64_t, int64_t), void* context) {
  torch::stable::parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) { body(context, begin, end); });
}

#ifdef TORCHREDUCE_GPU

// The shims of torch's GPU library, looked up when first needed: this library also loads where torch has none.
struct GpuShims {
  AOTITorchError (*stream)(int32_t, void**);
  AOTITorchError (*alloc)(uint64_t, void**);
  AOTITorchError (*release)(void*);

  GpuShims() {
    void* library = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
    if (!library) library = dlopen("libtorch_hip.so", RTLD_NOLOAD | RTLD_LAZY);
    find(library, "aoti_torch_get_current_cuda_stream", stream);
    find(library, "aoti_torch_cuda_caching_allocator_raw_alloc", alloc);
    find(library, "aoti_torch_cuda_caching_allocator_raw_delete", release);
  }
  template <class F> static void find(void* library, const char* name, F& function) {
    function = library ? reinterpret_cast<F>(dlsym(library, name)) : nullptr;
    if (!function) raise<std::runtime_error>("torchreduce: this torch has no GPU support (", name, " is missing)");
  }
};

// Makes a device current for torch, whose allocator follows it, and for the GPU runtime linked into this library, which
// keeps a current device of its own and launches there.
class DeviceGuard {
 public:
  explicit DeviceGuard(int32_t index) : before(gpu::current_device()) {
    int32_t torch_device;
    check(aoti_torch_get_current_device_index(&torch_device));
    if (torch_device != index) check(aoti_torch_create_device_guard(index, &handle));
    if (gpu::current_device() != index) gpu::set_device(index);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard() {
    if (gpu::current_device() != before) gpu::set_device(before);
    if (handle) aoti_torch_delete_device_guard(handle);
  }

 private:
  const int before;
  DeviceGuardHandle handle = nullptr;
};

template <class Call>
void run_on_gpu(const char* op, Call& call, const View& x,
                const char* (*launch)(const Call&, void* workspace, void* stream)) {
  static const GpuShims shims;
  const DeviceGuard guard(x.device_index);
  call.plan = plan(call, DeviceFacts{true, gpu::multiprocessors(x.device_index)});
  void *stream, *workspace = nullptr;
  check(shims.stream(x.device_index, &stream));
  // The caching allocator orders the workspace's next use after this call on the stream, so it is given back at once.
  if (call.plan.workspace) check(shims.alloc(uint64_t(call.plan.workspace), &workspace));
  const char* error = launch(call, workspace, stream);
  if (workspace) shims.release(workspace);
  if (error) raise<std::runtime_error>(op, ": the launch failed: ", error);
}

#else

template <class Call, class Launch> void run_on_gpu(const char* op, Call&, const View&, Launch) {
  raise<std::runtime_error>(op, ": this build of torchreduce has no GPU part");
}

#endif

template <class Call>
void run(const char* op, Call& call, const View& x, void (*on_cpu)(const Call&, cpu::ParallelFor),
         const char* (*on_gpu)(const Call&, void*, void*)) {
  if (!x.on_cpu()) return run_on_gpu(op, call, x, on_gpu);
  call.plan = plan(call, DeviceFacts{false, int(torch::stable::get_num_threads())});
  on_cpu(call, parallel_for);
}

// ---- reductions --------------------------------------------------------------------------------------------------------

struct Op {
  const char* name;
  Reduction reduction;
  bool min, mean;
};

// The accumulator of `op` on x, and the dtypes of its values and of its result alone (an indexed op's is the index).
struct Types {
  Dtype accumulator, values, result;
  bool indexed, truth;
};
Types types_of(const Op& op, const View& x, std::optional<ScalarType> dtype) {
  const ReductionFacts known = facts(op.reduction, x.dtype);
  const Dtype values = dtype ? Dtype(*dtype) : known.result;
  if (!supported(values)) raise<std::runtime_error>(op.name, ": dtype= has the unsupported number ", int(values));
  if (op.mean && !is_float(values)) raise<std::runtime_error>(op.name, ": needs a floating dtype; give one by dtype=");
  const Dtype accumulator = known.converts ? accumulator_of(x.dtype, values) : natural_accumulator(x.dtype);
  return {accumulator, values, known.indexed ? Dtype::I64 : values, known.indexed, dtype && values == Dtype::Bool};
}

// Writes values, indices or both; the other is null. Both have the shape of the result, and the same strides.
void reduce_into(const Op& op, const View& x, uint64_t mask, bool keepdim, const Types& types, const View* values,
                 const View* indices) {
  ReduceCall call{};
  call.op = op.reduction;
  call.in = Source{x.data, x.dtype, types.accumulator, types.truth};
  const View& out = values ? *values : *indices;
  call.layout = fold(x, mask, spread_strides(x, mask, keepdim, out).data());
  call.options = OpOptions{op.min, op.mean, call.layout.length};
  call.out = Output{values ? const_cast<void*>(values->data) : nullptr,
                    indices ? static_cast<int64_t*>(const_cast<void*>(indices->data)) : nullptr,
                    values ? values->dtype : Dtype::I64};
  if (call.layout.rows == 0) return;
  if (call.layout.length == 0 && !facts(op.reduction, x.dtype).has_empty)
    raise<std::out_of_range>(op.name, ": the reduced dims of the input hold no elements, and there is no identity");
#ifdef TORCHREDUCE_GPU
  run<ReduceCall>(op.name, call, x, cpu::reduce, gpu::reduce);
#else
  run<ReduceCall>(op.name, call, x, cpu::reduce, nullptr);
#endif
}

// The result alone: values, or indices for the arg ops.
Tensor reduce_one(const Op& op, const Tensor& input, const Dims& dim, bool keepdim, std::optional<ScalarType> dtype) {
  const View x(input);
  check_input(op.name, x);
  const uint64_t mask = dim_mask(op.name, x, dim);
  const Types types = types_of(op, x, dtype);
  Tensor result = allocate(reduced_sizes(x, mask, keepdim), types.result, x);
  const View out(result);
  reduce_into(op, x, mask, keepdim, types, types.indexed ? nullptr : &out, types.indexed ? &out : nullptr);
  return result;
}
void reduce_one_out(const Op& op, const Tensor& input, const Dims& dim, bool keepdim, std::optional<ScalarType> dtype,
                    const Tensor& result) {
  const View whole(input), out(result);
  check_input(op.name, whole);
  const uint64_t mask = dim_mask(op.name, whole, dim);
  const Types types = types_of(op, whole, dtype);
  check_out(op.name, whole, reduced_sizes(whole, mask, keepdim), out, types.result);
  const Tensor source = apart_from(op.name, input, whole, out, false);
  reduce_into(op, View(source), mask, keepdim, types, types.indexed ? nullptr : &out, types.indexed ? &out : nullptr);
}

// Values and indices.
std::tuple<Tensor, Tensor> reduce_pair(const Op& op, const Tensor& input, const Dims& dim, bool keepdim) {
  const View x(input);
  check_input(op.name, x);
  const uint64_t mask = dim_mask(op.name, x, dim);
  const std::vector<int64_t> sizes = reduced_sizes(x, mask, keepdim);
  Tensor values = allocate(sizes, x.dtype, x), indices = allocate(sizes, Dtype::I64, x);
  const View v(values), i(indices);
  reduce_into(op, x, mask, keepdim, types_of(op, x, {}), &v, &i);
  return {values, indices};
}
void reduce_pair_out(const Op& op, const Tensor& input, const Dims& dim, bool keepdim, Tensor values, Tensor indices) {
  const View x(input), v(values), i(indices);
  check_input(op.name, x);
  const std::vector<int64_t> sizes = reduced_sizes(x, dim_mask(op.name, x, dim), keepdim);
  check_out(op.name, x, sizes, v, x.dtype);
  check_out(op.name, x, sizes, i, Dtype::I64);
  auto result =
      reduce_pair(op, input, dim, keepdim);  // two outputs may have two layouts and share memory with the input
  torch::stable::copy_(values, std::get<0>(result));
  torch::stable::copy_(indices, std::get<1>(result));
}

// ---- scans -------------------------------------------------------------------------------------------------------------

struct ScanOp {
  const char* name;
  Scan scan;
};

void scan_into(const ScanOp& op, const View& x, int dim, bool exclusive, bool reverse, const View& out) {
  ScanCall call{};
  call.op = op.scan;
  call.in = Source{x.data, x.dtype, accumulator_of(x.dtype, out.dtype), false};
  call.out = Output{const_cast<void*>(out.data), nullptr, out.dtype};
  call.exclusive = exclusive;
  call.reverse = reverse;
  call.layout = fold(x, x.dims ? uint64_t(1) << dim : 0, out.strides);
  if (call.layout.rows == 0 || call.layout.length == 0) return;
  Layout& l = call.layout;
  if (reverse && l.reduced) {  // from the last element on, with negative strides
    int64_t &in = l.in[l.kept], &to = l.out[l.kept];
    call.in.data = static_cast<const char*>(call.in.data) + (l.length - 1) * in * size_of(x.dtype);
    call.out.values = static_cast<char*>(call.out.values) + (l.length - 1) * to * size_of(out.dtype);
    in = -in;
    to = -to;
  }
#ifdef TORCHREDUCE_GPU
  run<ScanCall>(op.name, call, x, cpu::scan, gpu::scan);
#else
  run<ScanCall>(op.name, call, x, cpu::scan, nullptr);
#endif
}

Dtype scan_result(const char* name, const View& x, std::optional<ScalarType> dtype) {
  const Dtype result = dtype ? Dtype(*dtype) : is_float(x.dtype) ? x.dtype : Dtype::I64;
  if (!supported(result) || result == Dtype::Bool)
    raise<std::runtime_error>(name, ": dtype= has the unsupported number ", int(result));
  return result;
}
int scan_dim(const char* name, const View& x, int64_t dim) {
  const uint64_t mask = dim_mask(name, x, std::vector<int64_t>{dim});
  int d = 0;
  while (mask && !(mask >> d & 1u)) ++d;
  return d;
}

Tensor scan_one(const ScanOp& op, const Tensor& input, int64_t dim, std::optional<ScalarType> dtype, bool exclusive,
                bool reverse) {
  const View x(input);
  check_input(op.name, x);
  const int d = scan_dim(op.name, x, dim);
  Tensor result = allocate({x.sizes, x.sizes + x.dims}, scan_result(op.name, x, dtype), x);
  scan_into(op, x, d, exclusive, reverse, View(result));
  return result;
}
void scan_one_out(const ScanOp& op, const Tensor& input, int64_t dim, std::optional<ScalarType> dtype, bool exclusive,
                  bool reverse, const Tensor& result) {
  const View x(input), out(result);
  check_input(op.name, x);
  const int d = scan_dim(op.name, x, dim);
  check_out(op.name, x, {x.sizes, x.sizes + x.dims}, out, scan_result(op.name, x, dtype));
  const Tensor source = apart_from(op.name, input, x, out, !exclusive);
  scan_into(op, View(source), d, exclusive, reverse, out);
}

// ---- schemas -----------------------------------------------------------------------------------------------------------

// What the ops of one signature have in common: how the dispatcher calls them, with the level of determinism last. Both
// levels run the same code today.
struct WithDtype {
  static constexpr const char* kArguments = "Tensor x, int[]? dim, bool keepdim, ScalarType? dtype, int level";
  static constexpr const char *kResult = "Tensor", *kOut = "Tensor(a!) out";
  template <const Op& op> static Tensor call(const Tensor& x, Dims dim, bool keepdim, std::optional<ScalarType> dtype,
                                             int64_t) {
    return reduce_one(op, x, dim, keepdim, dtype);
  }
  template <const Op& op>
  static void out(const Tensor& x, Dims dim, bool keepdim, std::optional<ScalarType> dtype, int64_t, Tensor to) {
    reduce_one_out(op, x, dim, keepdim, dtype, to);
  }
};
struct AlongDims {
  static constexpr const char* kArguments = "Tensor x, int[]? dim, bool keepdim, int level";
  static constexpr const char *kResult = "Tensor", *kOut = "Tensor(a!) out";
  template <const Op& op> static Tensor call(const Tensor& x, Dims dim, bool keepdim, int64_t) {
    return reduce_one(op, x, dim, keepdim, {});
  }
  template <const Op& op> static void out(const Tensor& x, Dims dim, bool keepdim, int64_t, Tensor to) {
    reduce_one_out(op, x, dim, keepdim, {}, to);
  }
};
struct AllDims {
  static constexpr const char* kArguments = "Tensor x, bool keepdim, int level";
  static constexpr const char *kResult = "Tensor", *kOut = "Tensor(a!) out";
  template <const Op& op> static Tensor call(const Tensor& x, bool keepdim, int64_t) {
    return reduce_one(op, x, {}, keepdim, {});
  }
  template <const Op& op> static void out(const Tensor& x, bool keepdim, int64_t, Tensor to) {
    reduce_one_out(op, x, {}, keepdim, {}, to);
  }
};
struct WithIndex {
  static constexpr const char* kArguments = "Tensor x, int[] dim, bool keepdim, int level";
  static constexpr const char *kResult = "(Tensor values, Tensor indices)",
                              *kOut = "Tensor(a!) values, Tensor(b!) indices";
  template <const Op& op>
  static std::tuple<Tensor, Tensor> call(const Tensor& x, std::vector<int64_t> dim, bool keepdim, int64_t) {
    return reduce_pair(op, x, dim, keepdim);
  }
  template <const Op& op>
  static void out(const Tensor& x, std::vector<int64_t> dim, bool keepdim, int64_t, Tensor values, Tensor indices) {
    reduce_pair_out(op, x, dim, keepdim, values, indices);
  }
};

#define TR_ROW(name, signature, reduction, min, mean) constexpr Op k_##name{#name, Reduction::reduction, min, mean};
TR_FOR_EACH_REDUCTION_OP(TR_ROW)
#undef TR_ROW

struct Scanning {
  static constexpr const char* kArguments =
      "Tensor x, int dim, ScalarType? dtype, bool exclusive, bool reverse, int level";
  static constexpr const char *kResult = "Tensor", *kOut = "Tensor(a!) out";
  template <const ScanOp& op>
  static Tensor call(const Tensor& x, int64_t dim, std::optional<ScalarType> dtype, bool exclusive, bool reverse,
                     int64_t) {
    return scan_one(op, x, dim, dtype, exclusive, reverse);
  }
  template <const ScanOp& op>
  static void out(const Tensor& x, int64_t dim, std::optional<ScalarType> dtype, bool exclusive, bool reverse, int64_t,
                  Tensor to) {
    scan_one_out(op, x, dim, dtype, exclusive, reverse, to);
  }
};
#define TR_ROW(name, scan) constexpr ScanOp k_##name{#name, Scan::scan};
TR_FOR_EACH_SCAN_OP(TR_ROW)
#undef TR_ROW

// `name` is differentiable (torchreduce/autograd.py), `name.raw` is the same kernel without autograd, and `name.out`
// writes to tensors of the result's shape and dtype.
template <class Signature> void define(torch::stable::detail::StableLibrary& library, const std::string& name) {
  const std::string arguments = Signature::kArguments, result = Signature::kResult;
  library.def((name + "(" + arguments + ") -> " + result).c_str());
  library.def((name + ".raw(" + arguments + ") -> " + result).c_str());
  library.def((name + ".out(" + arguments + ", *, " + Signature::kOut + ") -> ()").c_str());
}

void implement(torch::stable::detail::StableLibrary& library) {
#define TR_ROW(name, signature, reduction, min, mean)                \
  library.impl(#name, TORCH_BOX(&signature::call<k_##name>));        \
  library.impl(#name ".raw", TORCH_BOX(&signature::call<k_##name>)); \
  library.impl(#name ".out", TORCH_BOX(&signature::out<k_##name>));
  TR_FOR_EACH_REDUCTION_OP(TR_ROW)
#undef TR_ROW
#define TR_ROW(name, scan)                                          \
  library.impl(#name, TORCH_BOX(&Scanning::call<k_##name>));        \
  library.impl(#name ".raw", TORCH_BOX(&Scanning::call<k_##name>)); \
  library.impl(#name ".out", TORCH_BOX(&Scanning::out<k_##name>));
  TR_FOR_EACH_SCAN_OP(TR_ROW)
#undef TR_ROW
}

// Registered for good: torch's registries may be destroyed before this library's statics when the process ends.
using torch::stable::detail::StableLibrary;
const bool registered = [] {
  auto* schemas = new StableLibrary(StableLibrary::Kind::DEF, "torchreduce", nullptr, __FILE__, __LINE__);
#define TR_ROW(name, signature, reduction, min, mean) define<signature>(*schemas, #name);
  TR_FOR_EACH_REDUCTION_OP(TR_ROW)
#undef TR_ROW
#define TR_ROW(name, scan) define<Scanning>(*schemas, #name);
  TR_FOR_EACH_SCAN_OP(TR_ROW)
#undef TR_ROW
  for (const char* key : {"CPU", "CUDA"})
    implement(*new StableLibrary(StableLibrary::Kind::IMPL, "torchreduce", key, __FILE__, __LINE__));
  return true;
}();

}  // namespace
}  // namespace torchreduce
