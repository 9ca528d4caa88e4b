// Sums of rows by segments through torch's stable ABI: the gradient of an embedding.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "kernels/reduce/segments.h"
#include "run.h"

namespace torchreduce {

Dtype segment_key_dtype(int64_t count) { return segments::key_dtype(count); }

void segment_keys_into(const char* op, const Operand& indices, int64_t count, int64_t skipped, const Operand& keys) {
  PlannedKeys call;
  call.indices = static_cast<const int64_t*>(indices.data);
  call.places = indices.numel();
  call.count = count;
  call.skipped = skipped;
  call.keys = const_cast<void*>(keys.data);
  if (indices.on_cpu()) {
    for (int64_t place = 0; place < call.places; ++place) call.take(place);
    return;
  }
#ifdef TORCHREDUCE_GPU
  run_on_gpu(op, call, indices, gpu::segment_keys);
#else
  run_on_gpu(op, call, indices, nullptr);
#endif
}

void segment_sums_into(const char* op, const Operand& x, const Operand& keys, const Operand& order,
                       const Operand& out) {
  PlannedSegments call;
  call.in = x.data;
  call.pitch = x.strides[0];
  call.dtype = x.dtype;
  call.keys = keys.data;
  call.order = static_cast<const int64_t*>(order.data);
  call.places = keys.sizes[0];
  call.columns = x.sizes[1];
  call.segments = out.sizes[0];
  call.out = const_cast<void*>(out.data);
  if (x.on_cpu()) return cpu::segment_sums(call, int64_t(torch::stable::get_num_threads()), parallel_for);
#ifdef TORCHREDUCE_GPU
  run_on_gpu(op, call, x, gpu::segment_sums);
#else
  run_on_gpu(op, call, x, nullptr);
#endif
}

namespace {

using torch::stable::contiguous;
using torch::stable::reshape;

// The keys in ascending order, equal ones in theirs; and where each was.
std::pair<Tensor, Tensor> sorted(const Tensor& keys) {
  using torch::stable::detail::from;
  using torch::stable::detail::to;
  std::array<StableIValue, 4> stack{from(keys), from(std::optional<bool>(true)), from(int64_t(0)), from(false)};
  check(torch_call_dispatcher("aten::sort", "stable", stack.data(), TORCH_ABI_VERSION));
  return {to<Tensor>(stack[0]), to<Tensor>(stack[1])};
}

// (count, columns): row i is the sum over dim 0 of the rows of g whose index is i, in their order, or zero where there
// is none, and where i is `skipped`. g: (*indices, columns), of a floating dtype.
Tensor embedding_backward(const Tensor& g, const Tensor& indices, int64_t count, int64_t skipped, int64_t) {
  constexpr const char* name = "embedding_backward";
  const View x(g), of(indices);
  check_input(name, x);
  if (!is_float(x.dtype)) raise<std::runtime_error>(name, ": needs a floating dtype, got number ", int(x.dtype));
  if (of.dtype != Dtype::I64) raise<std::runtime_error>(name, ": needs int64 indices, got number ", int(of.dtype));
  if (x.dims != of.dims + 1 || !std::equal(of.sizes, of.sizes + of.dims, x.sizes) || x.device_type != of.device_type ||
      x.device_index != of.device_index)
    raise<std::runtime_error>(name, ": needs a row of the gradient for each index, on one device");
  if (count < 0) raise<std::runtime_error>(name, ": needs a number of rows of at least 0, got ", count);
  const int64_t columns = x.sizes[x.dims - 1];
  Tensor out = allocate({count, columns}, x.dtype, x);
  if (x.numel() == 0 || count == 0) return torch::stable::zero_(out);
  const Tensor rows = reshape(contiguous(g), std::vector<int64_t>{-1, columns});
  const Tensor places = contiguous(indices), keys = allocate({of.numel()}, segment_key_dtype(count), x);
  segment_keys_into(name, View(places), count, skipped, View(keys));
  const auto [numbers, order] = sorted(keys);
  segment_sums_into(name, View(rows), View(numbers), View(order), View(out));
  return out;
}

using torch::stable::detail::StableLibrary;
const bool registered = [] {
  auto* schemas = new StableLibrary(StableLibrary::Kind::FRAGMENT, "torchreduce", nullptr, __FILE__, __LINE__);
  schemas->def("embedding_backward.raw(Tensor g, Tensor indices, int count, int skipped, int level) -> Tensor");
  for (const char* key : {"CPU", "CUDA"}) {
    auto* kernels = new StableLibrary(StableLibrary::Kind::IMPL, "torchreduce", key, __FILE__, __LINE__);
    kernels->impl("embedding_backward.raw", TORCH_BOX(&embedding_backward));
  }
  return true;
}();

}  // namespace
}  // namespace torchreduce
