// Matrix products in one order of additions, through torch's stable ABI.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "matrix.h"

namespace torchreduce {

bool has_products(Dtype dtype, bool with_float32) {
  return dtype == Dtype::F16 || dtype == Dtype::BF16 || (with_float32 && dtype == Dtype::F32);
}

void multiply_into(const MatrixProduct& p) { p.left.on_cpu() ? multiply_on_cpu(p) : multiply_on_gpu(p); }

namespace {

// alpha * left @ right + beta * added, of (M, K) and (K, N), or of batches of these, in `dtype` or in theirs.
Tensor product(const Tensor& left, const Tensor& right, const std::optional<Tensor>& added, double beta, double alpha,
               std::optional<torch::headeronly::ScalarType> dtype) {
  constexpr const char* name = "product";
  const View l(left), r(right);
  const bool batched = l.dims == 3;
  if ((l.dims != 2 && !batched) || r.dims != l.dims)
    raise<std::runtime_error>(name, ": needs two matrices or two batches of them, got ", l.dims, " and ", r.dims,
                              " dims");
  if ((batched && l.sizes[0] != r.sizes[0]) || l.sizes[l.dims - 1] != r.sizes[r.dims - 2])
    raise<std::runtime_error>(name, ": the shapes do not match");
  if (!has_products(l.dtype, true) || r.dtype != l.dtype)
    raise<std::runtime_error>(name, ": needs two of float16, bfloat16 or float32, got numbers ", int(l.dtype), " and ",
                              int(r.dtype));
  const Dtype result = dtype ? Dtype(*dtype) : l.dtype;
  if (result != l.dtype && result != Dtype::F32)
    raise<std::runtime_error>(name, ": needs the inputs' dtype or float32 for the result, got number ", int(result));
  if (r.device_type != l.device_type || r.device_index != l.device_index)
    raise<std::runtime_error>(name, ": needs tensors on one device");
  std::vector<int64_t> sizes(l.sizes, l.sizes + l.dims);
  sizes.back() = r.sizes[r.dims - 1];
  Tensor out = allocate(sizes, result, l);
  const View o(out);
  MatrixProduct call{name, l, r, o, {}, beta, alpha};
  if (added) {
    const View a(*added);
    bool fits =
        a.dims <= o.dims && a.dtype == result && a.device_type == l.device_type && a.device_index == l.device_index;
    for (int d = 0; fits && d < a.dims; ++d) fits = a.sizes[d] == 1 || a.sizes[d] == o.sizes[o.dims - a.dims + d];
    if (!fits) raise<std::runtime_error>(name, ": what is added needs the result's dtype and device, and to broadcast");
    call.added = a;
  }
  if (o.numel() == 0) return out;
  if (l.sizes[l.dims - 1] > 0) {
    multiply_into(call);
    return out;
  }
  // Rows without elements have the sum 0, as those of one 0 have.
  std::vector<int64_t> of_left(l.sizes, l.sizes + l.dims), of_right(r.sizes, r.sizes + r.dims);
  of_left.back() = of_right[of_right.size() - 2] = 1;
  Tensor zeros[2] = {allocate(of_left, l.dtype, l), allocate(of_right, l.dtype, l)};
  for (Tensor& t : zeros) torch::stable::zero_(t);
  const View left_zeros(zeros[0]), right_zeros(zeros[1]);
  call.left = left_zeros, call.right = right_zeros;
  multiply_into(call);
  return out;
}

using torch::stable::detail::StableLibrary;
const bool registered = [] {
  auto* schemas = new StableLibrary(StableLibrary::Kind::FRAGMENT, "torchreduce", nullptr, __FILE__, __LINE__);
  schemas->def(
      "product.raw(Tensor left, Tensor right, Tensor? added, float beta, float alpha, ScalarType? dtype) -> Tensor");
  for (const char* key : {"CPU", "CUDA"}) {
    auto* kernels = new StableLibrary(StableLibrary::Kind::IMPL, "torchreduce", key, __FILE__, __LINE__);
    kernels->impl("product.raw", TORCH_BOX(&product));
  }
  return true;
}();

}  // namespace
}  // namespace torchreduce
