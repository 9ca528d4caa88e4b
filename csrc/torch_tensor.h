// Tensors as the torch layer handles them: facts, checks, allocation, and memory that input and output share.
#pragma once
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "call.h"

namespace torchreduce {

using torch::stable::Tensor;
using Dims = std::optional<std::vector<int64_t>>;

// For calls of torch's C shims; torch has printed the cause.
inline void check(AOTITorchError error) {
  if (error != AOTI_TORCH_SUCCESS) throw std::runtime_error("torchreduce: a call into torch failed");
}

struct View : TensorFacts {
  int32_t device_type, device_index;

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
  bool on_cpu() const { return device_type == aoti_torch_device_type_cpu(); }
  int64_t numel() const {
    int64_t n = 1;
    for (int d = 0; d < dims; ++d) n *= sizes[d];
    return n;
  }
};

inline bool supported(Dtype d) {
#define TR_CASE(T) case DtypeOf<T>::value:
  switch (d) { TR_FOR_EACH_TYPE(TR_CASE) return true; }
#undef TR_CASE
  return false;
}

template <class Error, class... Parts> [[noreturn]] void raise(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw Error(message.str());
}

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

inline Tensor allocate(const std::vector<int64_t>& sizes, Dtype dtype, const View& like) {
  std::array<int64_t, kMaxDims> strides;
  int64_t stride = 1;
  for (int d = int(sizes.size()) - 1; d >= 0; --d) {
    strides[d] = stride;
    stride *= std::max<int64_t>(1, sizes[d]);
  }
  AtenTensorHandle handle;
  check(aoti_torch_empty_strided(int64_t(sizes.size()), sizes.data(), strides.data(), int32_t(dtype), like.device_type,
                                 like.device_index, &handle));
  return Tensor(handle);
}

inline std::vector<int64_t> reduced_sizes(const View& x, uint64_t mask, bool keepdim) {
  std::vector<int64_t> sizes;
  for (int d = 0; d < x.dims; ++d) {
    const bool reduced = mask >> d & 1u;
    if (!reduced) sizes.push_back(x.sizes[d]);
    else if (keepdim) sizes.push_back(1);
  }
  return sizes;
}

// Strides of `out` (of shape reduced_sizes) for each dim of x.
inline std::array<int64_t, kMaxDims> spread_strides(const View& x, uint64_t mask, bool keepdim, const View& out) {
  std::array<int64_t, kMaxDims> strides;
  for (int d = 0, o = 0; d < x.dims; ++d) {
    const bool reduced = mask >> d & 1u;
    strides[d] = reduced ? 0 : out.strides[o];
    if (!reduced || keepdim) ++o;
  }
  return strides;
}

inline void check_out(const char* op, const View& x, const std::vector<int64_t>& sizes, const View& out, Dtype dtype) {
  if (out.device_type != x.device_type || out.device_index != x.device_index)
    raise<std::runtime_error>(op, ": input and out must be on the same device");
  if (out.dims != int(sizes.size()) || !std::equal(sizes.begin(), sizes.end(), out.sizes))
    raise<std::runtime_error>(op, ": out does not have the result's shape");
  if (out.dtype != dtype)
    raise<std::runtime_error>(op, ": out has dtype number ", int(out.dtype), ", the result ", int(dtype));
  for (int d = 0; d < out.dims; ++d)
    if (out.strides[d] == 0 && out.sizes[d] > 1)
      raise<std::runtime_error>(op,
                                ": more than one element of out refers to a single memory location; clone() it first");
}

// Of two of one shape. The stride of a dim that is never stepped along means nothing.
inline bool same_layout(const View& a, const View& b) {
  if (a.numel() == 0) return true;
  for (int d = 0; d < a.dims; ++d)
    if (a.sizes[d] != 1 && a.strides[d] != b.strides[d]) return false;
  return true;
}

// ---- memory shared by input and output ---------------------------------------------------------------------------------

struct Span { const char *begin, *end; };
inline Span span(const View& v) {
  const char* begin = static_cast<const char*>(v.data);
  int64_t last = 0;
  for (int d = 0; d < v.dims; ++d) {
    if (v.sizes[d] == 0) return {begin, begin};
    last += (v.sizes[d] - 1) * v.strides[d];
  }
  return {begin, begin + (last + 1) * size_of(v.dtype)};
}
inline bool overlap(const View& a, const View& b) {
  const Span s = span(a), t = span(b);
  return s.begin < t.end && t.begin < s.end;
}
inline bool same_view(const View& a, const View& b) {
  return a.data == b.data && size_of(a.dtype) == size_of(b.dtype) && a.dims == b.dims &&
         std::equal(a.sizes, a.sizes + a.dims, b.sizes) && same_layout(a, b);
}
// Its elements fill its span, each place once.
inline bool dense(const View& v) {
  const Span s = span(v);
  bool repeats = false;
  for (int d = 0; d < v.dims; ++d) repeats = repeats || (v.strides[d] == 0 && v.sizes[d] > 1);
  return !repeats && s.end - s.begin == v.numel() * size_of(v.dtype);
}
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
