// torch's tensors as operands of kernels, outputs that are given, and the arguments of reductions.
#pragma once
#include <ATen/MemoryOverlap.h>
#include <ATen/Operators.h>
#include <ATen/native/Resize.h>

#include "../operand.h"

namespace torchreduce::aten {

using at::ScalarType;
using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;

// Who served a call: torchreduce, or torch because of the tensors' kind or device, a dtype, and so on.
enum class Why { Served, Kind, Dtype, Dims, Empty, Option, Out };
constexpr const char* kWhy[] = {"served", "kind", "dtype", "dims", "empty", "option", "out"};
constexpr int kReasons = int(std::size(kWhy));

// Of a dense tensor. Reading does not materialize what is copied on write.
inline Operand facts_of(const Tensor& t, const void* data) {
  Operand x;
  x.data = data;
  x.dtype = Dtype(t.scalar_type());
  x.dims = int(t.dim());
  x.sizes = t.sizes().data();
  x.strides = t.strides().data();
  x.device_type = int32_t(t.device().type());
  x.device_index = t.device().index();
  return x;
}
inline Operand read(const Tensor& t) { return facts_of(t, t.const_data_ptr()); }
inline Operand written(const Tensor& t) { return facts_of(t, t.mutable_data_ptr()); }

// Names of dims are torch's to propagate. torch 2.13 has none any more.
template <class T> bool is_named(const T& t) {
  if constexpr (requires { t.has_names(); }) return t.has_names();
  else return false;
}

inline bool supported(ScalarType t) { return torchreduce::supported(Dtype(t)); }
inline bool is_float(ScalarType t) { return supported(t) && c10::isFloatingType(t); }

inline DispatchKeySet own_key(const Tensor& t) {
  return DispatchKeySet(t.is_cpu() ? DispatchKey::CPU : DispatchKey::CUDA);
}

inline Tensor allocate(at::IntArrayRef sizes, Dtype dtype, const Tensor& like) {
  return at::_ops::empty_memory_format::redispatch(own_key(like), c10::fromIntArrayRefSlow(sizes), ScalarType(dtype),
                                                   at::kStrided, like.device(), std::nullopt, std::nullopt);
}

// Makes `out` fit for a result, or tells what torch has to see to: another dtype or device, memory that is shared, a
// shape that is not the result's, unless `out` is empty. `shared`: it may be x itself.
inline Why fit(const Tensor& out, at::IntArrayRef shape, Dtype dtype, const Tensor& x, bool shared = false) {
  if (Dtype(out.scalar_type()) != dtype || out.device() != x.device() || is_named(out)) return Why::Out;
  if (out.sizes() != shape) {
    if (out.numel() != 0 || out.is_alias_of(x)) return Why::Out;
    at::native::resize_output(out, shape);
  }
  if (at::has_internal_overlap(out) != at::MemOverlap::No) return Why::Out;
  const Operand from = read(x), to = read(out);
  return overlap(from, to) && !(shared && same_view(from, to)) ? Why::Out : Why::Served;
}

// Of two outputs that kernels write together.
inline Why fit(const Tensor& first, const Tensor& second, at::IntArrayRef shape, Dtype first_dtype, Dtype second_dtype,
               const Tensor& x) {
  for (const auto& [out, dtype] : {std::pair(&first, first_dtype), std::pair(&second, second_dtype)})
    if (const Why why = fit(*out, shape, dtype, x); why != Why::Served) return why;
  const Operand a = read(first), b = read(second);
  return overlap(a, b) || !same_layout(a, b) ? Why::Out : Why::Served;
}

// The arguments that reductions have beside their input, taken by their types, in whatever order a schema has them.
struct Arguments {
  bool listed = false;  // dims are given, be it none of them
  at::DimVector dims;
  bool keepdim = false;
  std::optional<ScalarType> dtype;
  at::SmallVector<Tensor*, 2> outs;

  void take(at::IntArrayRef all) { dims.assign(all.begin(), all.end()), listed = true; }
  void take(const at::OptionalIntArrayRef& all) {
    if (all) take(*all);
  }
  void take(int64_t one) { dims.assign(1, one), listed = true; }
  void take(const std::optional<int64_t>& one) {
    if (one) take(*one);
  }
  void take(bool keep) { keepdim = keep; }
  void take(const std::optional<ScalarType>& type) { dtype = type; }
  void take(Tensor& out) { outs.push_back(&out); }
};

// Bit d is set for each dim in `dims`, all of x's if there are none; nothing where one is out of range or repeated.
inline std::optional<uint64_t> mask_of(const Tensor& x, at::IntArrayRef dims) {
  const int64_t n = x.dim(), range = std::max<int64_t>(1, n);
  if (n > kMaxDims) return {};
  if (dims.empty()) return n == 64 ? ~uint64_t(0) : (uint64_t(1) << n) - 1;
  uint64_t mask = 0;
  for (int64_t d : dims) {
    if (d < -range || d >= range) return {};
    const uint64_t bit = uint64_t(1) << (d < 0 ? d + range : d);
    if (mask & bit) return {};
    mask |= bit;
  }
  return n ? mask : 0;
}

}  // namespace torchreduce::aten
