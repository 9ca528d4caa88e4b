// Tensors as the torch layer handles them: facts, checks, allocation, and memory that input and output share.
#pragma once
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "operand.h"

namespace torchreduce {

using torch::stable::Tensor;
using Dims = std::optional<std::vector<int64_t>>;

// For calls of torch's C shims. Their cause is told by torch from 2.13 on; older ones have printed it.
inline void check(AOTITorchError error) {
  if (error == AOTI_TORCH_SUCCESS) return;
  using What = const char* (*)();
  const What what = reinterpret_cast<What>(dlsym(RTLD_DEFAULT, "torch_exception_get_what_without_backtrace"));
  throw std::runtime_error(what ? what() : "torchreduce: a call into torch failed, for the reason that torch printed");
}

struct View : Operand {
  explicit View(const Tensor& t) {
    dims = int(t.dim());
    sizes = t.sizes().data();
    strides = t.strides().data();
    data = t.data_ptr();
    int32_t type;
    check(aoti_torch_get_dtype(t.get(), &type));
    dtype = Dtype(type);
    check(aoti_torch_get_device_type(t.get(), &device_type));
    check(aoti_torch_get_device_index(t.get(), &device_index));
  }
};

inline void check_input(const char* op, const View& x) {
  if (!supported(x.dtype))
    raise<std::runtime_error>(op, ": dtype number ", int(x.dtype),
                              " is not supported. Supported are float32, float64, "
                              "float16, bfloat16, int8, uint8, int16, int32, int64, bool");
  if (x.dims > kMaxDims) raise<std::runtime_error>(op, ": at most ", kMaxDims, " dims are supported, got ", x.dims);
}

// Bit d is set for each dim in `dim`; all of x's when there are none.
inline uint64_t dim_mask(const char* op, const View& x, const Dims& dim) {
  uint64_t mask = 0;
  if (!dim || dim->empty()) return x.dims == 64 ? ~uint64_t(0) : (uint64_t(1) << x.dims) - 1;
  const int64_t range = std::max(1, x.dims);  // a 0-d tensor has the dims 0 and -1
  for (int64_t d : *dim) {
    if (d < -range || d >= range)
      raise<std::out_of_range>(op, ": dim ", d, " is out of range for a tensor of ", x.dims, " dims (expected ", -range,
                               " to ", range - 1, ")");
    const uint64_t bit = uint64_t(1) << (d < 0 ? d + range : d);
    if (mask & bit) raise<std::runtime_error>(op, ": dim ", d, " appears more than once in dim");
    mask |= bit;
  }
  return x.dims ? mask : 0;
}

// The shape that two broadcast to, aligned at their last dims.
inline std::vector<int64_t> broadcast(const char* name, const View& a, const View& b) {
  std::vector<int64_t> sizes(size_t(std::max(a.dims, b.dims)), 1);
  for (const View* v : {&a, &b})
    for (int d = 0; d < v->dims; ++d) {
      int64_t& size = sizes[sizes.size() - size_t(v->dims - d)];
      if (size == 1) size = v->sizes[d];
      else if (v->sizes[d] != 1 && v->sizes[d] != size)
        raise<std::runtime_error>(name, ": shapes that do not broadcast: a dim has the sizes ", size, " and ",
                                  v->sizes[d]);
    }
  return sizes;
}
// The strides of x, broadcast to `sizes`.
inline std::vector<int64_t> broadcast_strides(const char* name, const View& x, const std::vector<int64_t>& sizes) {
  if (x.dims > int(sizes.size()))
    raise<std::runtime_error>(name, ": initial has ", x.dims, " dims, more than the ", sizes.size(),
                              " of a row's index");
  std::vector<int64_t> strides(sizes.size(), 0);
  for (int d = 0; d < x.dims; ++d) {
    const size_t to = sizes.size() - size_t(x.dims - d);
    if (x.sizes[d] != sizes[to] && x.sizes[d] != 1)
      raise<std::runtime_error>(name, ": initial has size ", x.sizes[d], " in a dim of size ", sizes[to]);
    strides[to] = x.sizes[d] == 1 ? 0 : x.strides[d];
  }
  return strides;
}

inline Tensor allocate(const std::vector<int64_t>& sizes, Dtype dtype, const Operand& like,
                       bool channels_last = false) {
  if (int(sizes.size()) > kMaxDims)
    raise<std::runtime_error>("torchreduce: at most ", kMaxDims, " dims are supported, a result has ", sizes.size());
  const std::array<int64_t, kMaxDims> strides = new_strides(sizes, channels_last);
  AtenTensorHandle handle;
  check(aoti_torch_empty_strided(int64_t(sizes.size()), sizes.data(), strides.data(), int32_t(dtype), like.device_type,
                                 like.device_index, &handle));
  return Tensor(handle);
}

inline void check_out(const char* op, const View& x, const std::vector<int64_t>& sizes, const View& out, Dtype dtype) {
  if (out.device_type != x.device_type || out.device_index != x.device_index)
    raise<std::runtime_error>(op, ": input and out must be on the same device");
  if (out.dims != int(sizes.size()) || !std::equal(sizes.begin(), sizes.end(), out.sizes))
    raise<std::runtime_error>(op, ": out does not have the result's shape");
  if (out.dtype != dtype)
    raise<std::runtime_error>(op, ": out has dtype number ", int(out.dtype), ", the result ", int(dtype));
  const bool empty = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
  for (int d = 0; d < out.dims; ++d)
    if (!empty && out.strides[d] == 0 && out.sizes[d] > 1)
      raise<std::runtime_error>(op,
                                ": more than one element of out refers to a single memory location; clone() it first");
}

// ---- memory shared by input and output ---------------------------------------------------------------------------------

// What two outputs are written by: they may not share memory; where they are laid out alike, kernels write both in
// place. `write` takes the input to read from, which is a copy where an output shares its memory, and both outputs.
template <class Write>
void write_pair(const char* op, const Tensor& input, Tensor values, Tensor indices, const Write& write) {
  const View x(input), v(values), i(indices);
  if (overlap(v, i)) raise<std::runtime_error>(op, ": values and indices share memory; give out two tensors apart");
  const Tensor source = overlap(x, v) || overlap(x, i) ? torch::stable::clone(input) : input;
  if (same_layout(v, i)) return write(source, values, indices);
  Tensor like_values = allocate({i.sizes, i.sizes + i.dims}, v.dtype, v);
  Tensor like_indices = allocate({i.sizes, i.sizes + i.dims}, i.dtype, i);
  write(source, like_values, like_indices);
  torch::stable::copy_(values, like_values);
  torch::stable::copy_(indices, like_indices);
}
// The input to read from when writing to `out`: x, or a copy of it where the two share memory in a way that torch
// accepts.
inline Tensor apart_from(const char* op, const Tensor& input, const View& x, const View& out, bool in_place) {
  if (!overlap(x, out) || (in_place && same_view(x, out))) return input;
  if (!same_view(x, out) && dense(x) && dense(out))
    raise<std::runtime_error>(op,
                              ": input and out overlap in memory without being the same; clone() one of them first");
  return torch::stable::clone(input);
}

}  // namespace torchreduce
