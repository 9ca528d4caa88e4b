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
#include <ATen/MemoryOverlap.h>
#include <ATen/Operators.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/Reduction.h>
#include <ATen/native/Resize.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <cmath>
#include <deque>
#include <limits>
#include <utility>

#include "interface.h"
#include "operand.h"
#include "plan/plan.h"
#include "products.h"

namespace torchreduce {
namespace {

using at::ScalarType;
using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;

// Whose calls are overridden; of matrix products, which are asked for by themselves, those of 16 bits or also float32.
enum Overridden { kGpu = 1, kCpu = 2, kProducts = 4, kFloat32Products = 8 };
std::atomic<int> enabled{0};  // a mask of these, for the process: autograd's threads are to see it, too

// Who served a call: torchreduce, or torch because of the tensors' kind or device, a dtype, and so on.
enum class Why { Served, Kind, Dtype, Dims, Empty, Option, Out };
constexpr const char* kWhy[] = {"served", "kind", "dtype", "dims", "empty", "option", "out"};
constexpr int kReasons = int(std::size(kWhy));

// ---- tensors and arguments -----------------------------------------------------------------------------------------------

// Of a dense tensor. Reading does not materialize what is copied on write.
Operand facts_of(const Tensor& t, const void* data) {
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
Operand read(const Tensor& t) { return facts_of(t, t.const_data_ptr()); }
Operand written(const Tensor& t) { return facts_of(t, t.mutable_data_ptr()); }

// Names of dims are torch's to propagate. torch 2.13 has none any more.
template <class T> bool is_named(const T& t) {
  if constexpr (requires { t.has_names(); }) return t.has_names();
  else return false;
}

bool supported(ScalarType t) { return torchreduce::supported(Dtype(t)); }
bool is_float(ScalarType t) { return supported(t) && c10::isFloatingType(t); }

DispatchKeySet own_key(const Tensor& t) { return DispatchKeySet(t.is_cpu() ? DispatchKey::CPU : DispatchKey::CUDA); }

Tensor allocate(at::IntArrayRef sizes, Dtype dtype, const Tensor& like) {
  return at::_ops::empty_memory_format::redispatch(own_key(like), c10::fromIntArrayRefSlow(sizes), ScalarType(dtype),
                                                   at::kStrided, like.device(), std::nullopt, std::nullopt);
}

// Makes `out` fit for a result, or tells what torch has to see to: another dtype or device, memory that is shared, a
// shape that is not the result's, unless `out` is empty. `shared`: it may be x itself.
Why fit(const Tensor& out, at::IntArrayRef shape, Dtype dtype, const Tensor& x, bool shared = false) {
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
Why fit(const Tensor& first, const Tensor& second, at::IntArrayRef shape, Dtype first_dtype, Dtype second_dtype,
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
std::optional<uint64_t> mask_of(const Tensor& x, at::IntArrayRef dims) {
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

// ---- reductions ----------------------------------------------------------------------------------------------------------

// Whether torchreduce's dtypes are torch's: floats to an integer dtype are not, whose elements each round their own
// way.
bool dtypes_served(const Op& op, ScalarType in, const std::optional<ScalarType>& dtype) {
  if (!supported(in) || (dtype && !supported(*dtype))) return false;
  if (dtype && is_float(in) && !is_float(*dtype)) return false;
  if (op.options.mean) return is_float(dtype.value_or(in));
  if (op.options.of == Of::Numbers) return is_float(in);
  if (op.options.of != Of::Elements) return is_float(in) && (!dtype || c10::promoteTypes(in, *dtype) == *dtype);
  return op.reduction != Reduction::Product || dtype != ScalarType::Bool;
}

// A reduction that is covered, but for its output.
struct Reducing {
  uint64_t mask;
  bool keepdim;
  Types types;
  at::DimVector shape;

  Why plan(const Op& op, const Tensor& x, at::IntArrayRef dims, bool keep, const std::optional<ScalarType>& dtype) {
    if (is_named(x)) return Why::Kind;
    if (!dtypes_served(op, x.scalar_type(), dtype)) return Why::Dtype;
    const std::optional<uint64_t> along = mask_of(x, dims);
    if (!along) return Why::Dims;
    if (x.numel() == 0 && !facts(op.reduction, Dtype(x.scalar_type())).has_empty) return Why::Empty;
    mask = *along;
    keepdim = keep;
    types = types_of(op, read(x), dtype ? std::optional(Dtype(*dtype)) : std::nullopt);
    for (int64_t d = 0; d < x.dim(); ++d) {
      const bool reduced = mask >> d & 1u;
      if (!reduced || keep) shape.push_back(reduced ? 1 : x.size(d));
    }
    return Why::Served;
  }
  void run(const Op& op, const Tensor& x, const Tensor* values, const Tensor* indices) const {
    const Operand v = values ? written(*values) : Operand{}, i = indices ? written(*indices) : Operand{};
    reduce_into(op, read(x), mask, keepdim, types, values ? &v : nullptr, indices ? &i : nullptr);
  }
  // The result alone, indices of the arg ops.
  void run(const Op& op, const Tensor& x, const Tensor& result) const {
    types.indexed ? run(op, x, nullptr, &result) : run(op, x, &result, nullptr);
  }
};

// An op with one result, whatever its other arguments are. Without dtype=, one that has it takes that of `out`.
template <const Op& op> struct Reduce {
  static constexpr bool kWithDtype =
      op.reduction == Reduction::Sum || op.reduction == Reduction::Product || op.options.of == Of::Numbers;
  template <class R, class... A> static R call(Why& why, const Tensor& x, A&&... a) {
    Arguments given;
    (given.take(a), ...);
    return call<R>(why, x, given);
  }
  template <class R> static R call(Why& why, const Tensor& x, Arguments& given) {
    constexpr bool writes = std::is_reference_v<R>;
    if (writes && kWithDtype && !given.dtype) given.dtype = given.outs[0]->scalar_type();
    Reducing r;
    why = r.plan(op, x, given.dims, given.keepdim, given.dtype);
    if constexpr (writes) {
      Tensor& out = *given.outs[0];
      if (why == Why::Served) why = fit(out, r.shape, r.types.result, x);
      if (why == Why::Served) r.run(op, x, out);
      return out;
    } else {
      if (why != Why::Served) return Tensor();
      Tensor result = allocate(r.shape, r.types.result, x);
      r.run(op, x, result);
      return result;
    }
  }
};

// any and all over a list of dims: with an empty one torch reduces nothing.
template <const Op& op> struct ReduceListed {
  template <class R, class... A> static R call(Why& why, const Tensor& x, A&&... a) {
    Arguments given;
    (given.take(a), ...);
    if (!given.listed || !given.dims.empty()) return Reduce<op>::template call<R>(why, x, given);
    why = Why::Dims;
    if constexpr (std::is_reference_v<R>) return *given.outs[0];
    else return Tensor();
  }
};

// Values and indices.
template <const Op& op> struct ReducePair {
  template <class R, class... A> static R call(Why& why, const Tensor& x, A&&... a) {
    Arguments given;
    (given.take(a), ...);
    Reducing r;
    why = r.plan(op, x, given.dims, given.keepdim, {});
    if constexpr (std::is_same_v<R, std::tuple<Tensor, Tensor>>) {
      if (why != Why::Served) return {};
      R result{allocate(r.shape, r.types.values, x), allocate(r.shape, Dtype::I64, x)};
      r.run(op, x, &std::get<0>(result), &std::get<1>(result));
      return result;
    } else {
      Tensor &values = *given.outs[0], &indices = *given.outs[1];
      if (why == Why::Served) why = fit(values, indices, r.shape, r.types.values, Dtype::I64, x);
      if (why == Why::Served) r.run(op, x, &values, &indices);
      return {values, indices};
    }
  }
};

// The least and the greatest value, of all dims or of one.
struct MinMax {
  template <class R, class... A> static R call(Why& why, const Tensor& x, A&&... a) {
    Arguments given;
    (given.take(a), ...);
    Reducing r;
    why = r.plan(k_aminmax, x, given.dims, given.keepdim, {});
    auto run = [&](const Tensor& least, const Tensor& greatest) { r.run(k_aminmax, x, &least, &greatest); };
    if constexpr (std::is_same_v<R, std::tuple<Tensor, Tensor>>) {
      if (why != Why::Served) return {};
      R result{allocate(r.shape, r.types.values, x), allocate(r.shape, r.types.values, x)};
      std::apply(run, result);
      return result;
    } else {
      Tensor &least = *given.outs[0], &greatest = *given.outs[1];
      if (why == Why::Served) why = fit(least, greatest, r.shape, r.types.values, r.types.values, x);
      if (why == Why::Served) run(least, greatest);
      return {least, greatest};
    }
  }
};

// Of the orders that are covered.
const Op* norm_of(const at::Scalar& order) {
  if (order.isComplex()) return nullptr;
  const double p = order.toDouble(), infinity = std::numeric_limits<double>::infinity();
  return p == 2           ? &k_norm2
         : p == 1         ? &k_norm1
         : p == 0         ? &k_norm0
         : p == infinity  ? &k_norm_greatest
         : p == -infinity ? &k_norm_least
                          : nullptr;
}

struct VectorNorm {
  template <class R, class... A> static R call(Why& why, const Tensor& x, const at::Scalar& order, A&&... a) {
    Arguments given;
    (given.take(a), ...);
    const Op* op = norm_of(order);
    Reducing r;
    why = op ? r.plan(*op, x, given.dims, given.keepdim, given.dtype) : Why::Option;
    if constexpr (std::is_reference_v<R>) {
      Tensor& out = *given.outs[0];
      if (why == Why::Served) why = fit(out, r.shape, r.types.result, x);
      if (why == Why::Served) r.run(*op, x, out);
      return out;
    } else {
      if (why != Why::Served) return Tensor();
      Tensor result = allocate(r.shape, r.types.result, x);
      r.run(*op, x, result);
      return result;
    }
  }
};

// The norm of each tensor of a list, all on one device.
struct ForeachNorm {
  template <class R> static R call(Why& why, at::TensorList list, const at::Scalar& order,
                                   const std::optional<ScalarType>& dtype) {
    const Op* op = norm_of(order);
    if (!op) why = Why::Option;
    std::vector<Reducing> plans(list.size());
    for (size_t i = 0; i < list.size() && why == Why::Served; ++i)
      why = list[i].device() != list[0].device() ? Why::Kind : plans[i].plan(*op, list[i], {}, false, dtype);
    R results;
    if (why != Why::Served) return results;
    results.reserve(list.size());
    std::vector<WholeReduction> all;
    all.reserve(list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      results.push_back(allocate(plans[i].shape, plans[i].types.result, list[i]));
      all.push_back({read(list[i]), plans[i].types, written(results[i])});
    }
    reduce_each_into(*op, all);
    return results;
  }
};

// ---- scans ---------------------------------------------------------------------------------------------------------------

// The dim that a scan goes along; nothing for a wrong one.
std::optional<int> scanned(const Tensor& x, int64_t dim) {
  const int64_t range = std::max<int64_t>(1, x.dim());
  if (dim < -range || dim >= range || x.dim() > kMaxDims) return {};
  return int(dim < 0 ? dim + range : dim);
}

Why plan_scan(const Tensor& x, int64_t dim, const std::optional<ScalarType>& dtype) {
  const ScalarType in = x.scalar_type();
  if (is_named(x)) return Why::Kind;
  if (!supported(in) || (dtype && (!supported(*dtype) || dtype == ScalarType::Bool))) return Why::Dtype;
  if (dtype && is_float(in) && !is_float(*dtype)) return Why::Dtype;
  return scanned(x, dim) ? Why::Served : Why::Dims;
}

// Without dtype=, the dtype of `out` stands for it.
template <const ScanOp& op> struct Accumulate {
  static void run(const Tensor& x, int64_t dim, const Tensor& result) {
    scan_into(op, read(x), *scanned(x, dim), false, false, written(result));
  }
  template <class R> static R call(Why& why, const Tensor& x, int64_t dim, const std::optional<ScalarType>& dtype) {
    why = plan_scan(x, dim, dtype);
    if (why != Why::Served) return Tensor();
    const ScalarType to = dtype.value_or(is_float(x.scalar_type()) ? x.scalar_type() : ScalarType::Long);
    Tensor result = allocate(x.sizes(), Dtype(to), x);
    run(x, dim, result);
    return result;
  }
  template <class R>
  static R call(Why& why, const Tensor& x, int64_t dim, const std::optional<ScalarType>& dtype, Tensor& out) {
    const ScalarType to = dtype.value_or(out.scalar_type());
    why = plan_scan(x, dim, to);
    if (why == Why::Served) why = fit(out, x.sizes(), Dtype(to), x, true);
    if (why == Why::Served) run(x, dim, out);
    return out;
  }
};
template <const ScanOp& op> struct AccumulateInPlace {
  template <class R> static R call(Why& why, Tensor& x, int64_t dim, const std::optional<ScalarType>& dtype) {
    return Accumulate<op>::template call<R>(why, x, dim, dtype, x);
  }
};

// Of floats alone, without dtype=.
struct LogCumSumExp {
  static Why plan(const Tensor& x, int64_t dim) {
    return is_float(x.scalar_type()) ? plan_scan(x, dim, {}) : Why::Dtype;
  }
  template <class R> static R call(Why& why, const Tensor& x, int64_t dim) {
    why = plan(x, dim);
    if (why != Why::Served) return Tensor();
    return Accumulate<k_logcumsumexp>::call<R>(why, x, dim, x.scalar_type());
  }
  template <class R> static R call(Why& why, const Tensor& x, int64_t dim, Tensor& out) {
    why = plan(x, dim);
    if (why == Why::Served) Accumulate<k_logcumsumexp>::call<R>(why, x, dim, x.scalar_type(), out);
    return out;
  }
};

// Values and indices, which torch has allocated.
template <const ScanOp& op> struct Extreme {
  template <class R> static void call(Why& why, const Tensor& x, Tensor& values, Tensor& indices, int64_t dim) {
    why = plan_scan(x, dim, {});
    if (why == Why::Served && (values.sizes() != x.sizes() || indices.sizes() != x.sizes())) why = Why::Out;
    if (why == Why::Served) why = fit(values, indices, x.sizes(), Dtype(x.scalar_type()), Dtype::I64, x);
    if (why != Why::Served) return;
    const Operand i = written(indices);
    scan_into(op, read(x), *scanned(x, dim), false, false, written(values), &i);
  }
};

// ---- row-wise ops --------------------------------------------------------------------------------------------------------

// One dim, or the last `count` ones.
uint64_t single(const Tensor& x, int dim) { return x.dim() ? uint64_t(1) << dim : 0; }
uint64_t trailing(const Tensor& x, size_t count) {
  const auto below = [](int64_t bits) { return bits >= 64 ? ~uint64_t(0) : (uint64_t(1) << bits) - 1; };
  return below(x.dim()) & ~below(x.dim() - int64_t(count));
}

// An op on the rows of x, and what it holds while it runs.
struct Rows : FusedRun {
  at::SmallVector<Tensor, 4> held;

  Rows(Fused op, const Tensor& x, uint64_t mask, ScalarType result)
      : FusedRun("rows", op, read(x), mask, Dtype(result)) {}

  ScalarType wide() const { return ScalarType(call.accumulator); }
  // Statistics, (planes, rows), to be written or as they are given.
  Tensor stats(const Tensor& like) {
    const int64_t rows = row_count();
    const int64_t sizes[] = {facts(call.op).stats, rows};
    Tensor planes = allocate(sizes, call.accumulator, like);
    use_stats(planes);
    return planes;
  }
  void use_stats(const Tensor& planes) {
    call.memory.stats = planes.mutable_data_ptr();
    call.memory.plane = planes.size(1);
  }
  // A value for each row: a contiguous tensor.
  void value(int k, const Tensor& t) {
    call.memory.values[k] = t.mutable_data_ptr();
    call.memory.dtypes[k] = Dtype(t.scalar_type());
  }
  const void* of_positions(const Tensor& weight) {
    call.weight_dtype = Dtype(weight.scalar_type());
    return held.emplace_back(weight.contiguous()).const_data_ptr();
  }
  void map(const Tensor& out, const Tensor* second = nullptr) {
    const Operand to = written(out), other = second ? read(*second) : Operand{};
    run(&to, second ? &other : nullptr);
  }
};

Why plan_rows(const Tensor& x) {
  return is_named(x) || x.dim() > kMaxDims ? Why::Kind
         : !is_float(x.scalar_type())      ? Why::Dtype
         : x.numel() == 0                  ? Why::Empty
                                           : Why::Served;
}

template <Fused op> struct Softmax {
  static Why plan(const Tensor& x, int64_t dim, bool half_to_float) {
    if (const Why why = plan_rows(x); why != Why::Served) return why;
    if (half_to_float && (x.is_cpu() || x.element_size() != 2)) return Why::Dtype;
    return scanned(x, dim) ? Why::Served : Why::Dims;
  }
  static void run(const Tensor& x, int64_t dim, const Tensor& out) {
    Rows(op, x, single(x, *scanned(x, dim)), out.scalar_type()).map(out);
  }
  template <class R> static R call(Why& why, const Tensor& x, int64_t dim, bool half_to_float) {
    why = plan(x, dim, half_to_float);
    if (why != Why::Served) return Tensor();
    Tensor result = allocate(x.sizes(), half_to_float ? Dtype::F32 : Dtype(x.scalar_type()), x);
    run(x, dim, result);
    return result;
  }
  template <class R> static R call(Why& why, const Tensor& x, int64_t dim, bool half_to_float, Tensor& out) {
    why = plan(x, dim, half_to_float);
    const Dtype result = half_to_float ? Dtype::F32 : Dtype(x.scalar_type());
    if (why == Why::Served) why = fit(out, x.sizes(), result, x, x.is_cpu());  // in place as in binding/rowwise.cpp
    if (why == Why::Served) run(x, dim, out);
    return out;
  }
};

// Of what is of the result's shape, g, and the result, y.
template <Fused op> struct SoftmaxBackward {
  static Why plan(const Tensor& g, const Tensor& y, int64_t dim, ScalarType dtype) {
    if (const Why why = plan_rows(y); why != Why::Served) return why;
    if (g.scalar_type() != y.scalar_type() || !is_float(dtype)) return Why::Dtype;
    return g.sizes() == y.sizes() && g.device() == y.device() && scanned(y, dim) ? Why::Served : Why::Dims;
  }
  static void run(const Tensor& g, const Tensor& y, int64_t dim, const Tensor& out) {
    Rows(op, g, single(g, *scanned(g, dim)), out.scalar_type()).map(out, &y);
  }
  template <class R> static R call(Why& why, const Tensor& g, const Tensor& y, int64_t dim, ScalarType dtype) {
    why = plan(g, y, dim, dtype);
    if (why != Why::Served) return Tensor();
    Tensor result = allocate(g.sizes(), Dtype(dtype), g);
    run(g, y, dim, result);
    return result;
  }
  template <class R>
  static R call(Why& why, const Tensor& g, const Tensor& y, int64_t dim, ScalarType dtype, Tensor& out) {
    why = plan(g, y, dim, dtype);
    if (why == Why::Served) why = fit(out, g.sizes(), Dtype(dtype), g);
    if (why == Why::Served && out.is_alias_of(y)) why = Why::Out;
    if (why == Why::Served) run(g, y, dim, out);
    return out;
  }
};

struct LogSumExp {
  static void run(const Tensor& x, uint64_t mask, const Tensor& out) {
    Rows rows(Fused::LogSumExp, x, mask, x.scalar_type());
    const Tensor stats = rows.stats(x);
    rows.value(0, out);
    rows.FusedRun::run();
  }
  template <class R, class... A> static R call(Why& why, const Tensor& x, A&&... a) {
    Arguments given;
    (given.take(a), ...);
    why = plan_rows(x);
    Reducing r;
    if (why == Why::Served) why = r.plan(k_sum, x, given.dims, given.keepdim, {});  // the same dims and shape
    if constexpr (std::is_reference_v<R>) {
      Tensor& out = *given.outs[0];
      if (why == Why::Served) why = fit(out, r.shape, Dtype(x.scalar_type()), x);
      if (why == Why::Served && !out.is_contiguous()) why = Why::Out;
      if (why == Why::Served) run(x, r.mask, out);
      return out;
    } else {
      if (why != Why::Served) return Tensor();
      Tensor result = allocate(r.shape, Dtype(x.scalar_type()), x);
      run(x, r.mask, result);
      return result;
    }
  }
};

// var and std, alone or with the mean. Where no degree of freedom is left torch warns.
template <bool root> struct Variance {
  static Why plan(Reducing& r, const Tensor& x, const at::OptionalIntArrayRef& dim,
                  const std::optional<at::Scalar>& correction, bool keepdim) {
    if (const Why why = plan_rows(x); why != Why::Served) return why;
    if (correction && correction->isComplex()) return Why::Option;
    if (const Why why = r.plan(k_sum, x, dim ? *dim : at::IntArrayRef(), keepdim, {}); why != Why::Served) return why;
    int64_t length = 1;
    for (int64_t d = 0; d < x.dim(); ++d) length *= r.mask >> d & 1u ? x.size(d) : 1;
    return double(length) > by(correction) ? Why::Served : Why::Option;
  }
  static double by(const std::optional<at::Scalar>& correction) { return correction ? correction->toDouble() : 1; }
  static void run(const Tensor& x, uint64_t mask, double correction, const Tensor& out, const Tensor* mean = nullptr) {
    Rows rows(Fused::Moments, x, mask, x.scalar_type());
    rows.call.options.correction = correction;
    rows.call.options.root = root;
    const Tensor stats = rows.stats(x);
    rows.value(0, out);
    if (mean) rows.value(1, *mean);
    rows.FusedRun::run();
  }
  template <class R> static R call(Why& why, const Tensor& x, const at::OptionalIntArrayRef& dim,
                                   const std::optional<at::Scalar>& correction, bool keepdim) {
    Reducing r;
    why = plan(r, x, dim, correction, keepdim);
    if (why != Why::Served) return {};
    const Dtype dtype = Dtype(x.scalar_type());
    Tensor result = allocate(r.shape, dtype, x);
    if constexpr (std::is_same_v<R, Tensor>) {
      run(x, r.mask, by(correction), result);
      return result;
    } else {
      Tensor mean = allocate(r.shape, dtype, x);
      run(x, r.mask, by(correction), result, &mean);
      return {result, mean};
    }
  }
  template <class R> static R call(Why& why, const Tensor& x, const at::OptionalIntArrayRef& dim,
                                   const std::optional<at::Scalar>& correction, bool keepdim, Tensor& out) {
    Reducing r;
    why = plan(r, x, dim, correction, keepdim);
    if (why == Why::Served) why = fit(out, r.shape, Dtype(x.scalar_type()), x);
    if (why == Why::Served && !out.is_contiguous()) why = Why::Out;
    if (why == Why::Served) run(x, r.mask, by(correction), out);
    return out;
  }
};

// ---- norms ---------------------------------------------------------------------------------------------------------------

using MaybeTensor = std::optional<Tensor>;
bool given(const MaybeTensor& t) { return t && t->defined(); }

// x, its rows' shape, and what has an element for each position of a row: of x's dtype, or float32 beside 16 bits on a
// CPU, as torch takes them.
template <class Shape>
Why plan_norm(const Tensor& x, const Shape& shape, std::initializer_list<const MaybeTensor*> of_positions) {
  if (const Why why = plan_rows(x); why != Why::Served) return why;
  const int64_t n = int64_t(shape.size());
  if (n < 1 || n > x.dim()) return Why::Dims;
  for (int64_t d = 0; d < n; ++d)
    if (shape[size_t(d)] != x.size(x.dim() - n + d)) return Why::Dims;
  std::optional<ScalarType> dtype;
  for (const MaybeTensor* t : of_positions) {
    if (!given(*t)) continue;
    const ScalarType type = (*t)->scalar_type();
    const bool mixed = x.is_cpu() && x.element_size() == 2 && type == ScalarType::Float;
    if ((type != x.scalar_type() && !mixed) || (dtype && type != *dtype)) return Why::Dtype;
    if ((*t)->device() != x.device() || (*t)->sizes() != x.sizes().slice(size_t(x.dim() - n))) return Why::Dims;
    dtype = type;
  }
  return Why::Served;
}

// A plane of statistics in the shape that torch keeps them in; of 16 bits without float32 weights, on a CPU, in x's
// dtype.
Tensor kept(const Tensor& stats, int64_t plane, const Tensor& x, size_t dims, bool mixed) {
  at::DimVector sizes(x.sizes().begin(), x.sizes().end()), strides(sizes.size());
  std::fill(sizes.end() - long(dims), sizes.end(), 1);
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0; stride *= sizes[d]) strides[d] = stride;
  const Tensor t = at::_ops::as_strided::redispatch(own_key(x), stats, c10::fromIntArrayRefSlow(sizes),
                                                    c10::fromIntArrayRefSlow(strides), plane * stride);
  return x.is_cpu() && x.element_size() == 2 && !mixed ? t.to(x.scalar_type()) : t;
}

// torch keeps the mean in one part, and torchreduce's derivative is that of two. So the mean and the reciprocal root
// that go to torch are planes of one tensor, with the second part between them. Its storage has room for some elements
// more, so that nothing else looks like it.
constexpr int64_t kMark = 5;

Tensor marked_planes(const Tensor& x, int64_t rows, Dtype wide) {
  return allocate(3 * rows + kMark, wide, x).narrow(0, 0, 3 * rows).view({3, rows});
}
// The planes, if `mean` and `rstd` are still what went to torch. A hook on saved tensors, say, makes others of them.
std::optional<Tensor> planes_of(const Tensor& mean, const Tensor& rstd, int64_t rows, ScalarType wide) {
  for (const Tensor* t : {&mean, &rstd})
    if (!t->defined() || t->scalar_type() != wide || t->numel() != rows || !t->is_contiguous()) return {};
  const bool ours = mean.is_alias_of(rstd) && mean.storage_offset() == 0 && rstd.storage_offset() == 2 * rows &&
                    mean.storage().nbytes() == size_t(3 * rows + kMark) * mean.element_size();
  return ours ? std::optional(mean.as_strided({3, rows}, {rows, 1}, 0)) : std::nullopt;
}

struct LayerNorm {
  template <class R> static R call(Why& why, const Tensor& x, c10::SymIntArrayRef shape, const MaybeTensor& weight,
                                   const MaybeTensor& bias, double epsilon) {
    why = plan_norm(x, shape, {&weight, &bias});
    if (why != Why::Served) return {};
    Rows rows(Fused::LayerNorm, x, trailing(x, shape.size()), x.scalar_type());
    rows.call.options.epsilon = epsilon;
    if (given(weight)) rows.call.weight = rows.of_positions(*weight);
    if (given(bias)) rows.call.bias = rows.of_positions(*bias);
    const Tensor stats = marked_planes(x, rows.row_count(), rows.call.accumulator);
    const Tensor out = allocate(x.sizes(), Dtype(x.scalar_type()), x);
    rows.use_stats(stats);
    rows.map(out);
    const bool mixed = rows.call.weight_dtype == Dtype::F32 && (given(weight) || given(bias));
    return {out, kept(stats, 0, x, shape.size(), mixed), kept(stats, 2, x, shape.size(), mixed)};
  }
};

struct LayerNormBackward {
  template <class R> static R call(Why& why, const Tensor& g, const Tensor& x, c10::SymIntArrayRef shape,
                                   const Tensor& mean, const Tensor& rstd, const MaybeTensor& weight,
                                   const MaybeTensor& bias, const std::array<bool, 3>& wanted) {
    why = plan_norm(x, shape, {&weight, &bias});
    if (why == Why::Served && g.scalar_type() != x.scalar_type()) why = Why::Dtype;
    if (why == Why::Served && (g.sizes() != x.sizes() || g.device() != x.device())) why = Why::Dims;
    if (why == Why::Served && ((wanted[1] && !given(weight)) || (wanted[2] && !given(bias)))) why = Why::Option;
    if (why != Why::Served) return {};
    const uint64_t mask = trailing(x, shape.size());
    Rows moments(Fused::Moments, x, mask, x.scalar_type());
    if (rstd.numel() != moments.row_count() || rstd.device() != x.device()) {
      why = Why::Dims;
      return {};
    }
    std::optional<Tensor> stats = planes_of(mean, rstd, moments.row_count(), moments.wide());
    if (!stats) {  // the mean once more, from x: the same bits
      stats = moments.stats(x);
      moments.FusedRun::run();
      stats->select(0, 2).copy_(rstd.reshape({-1}));
    }
    const MaybeTensor& any = given(weight) ? weight : bias;
    return gradients<R, Fused::LayerNormGradient, Fused::LayerNormWeights>(
        g, x, mask, shape.size(), *stats, weight, given(any) ? any->scalar_type() : x.scalar_type(), wanted);
  }
  // Of x, weight and bias, those that are wanted; the latter two in a dtype of theirs.
  template <class R, Fused of_input, Fused of_weights>
  static R gradients(const Tensor& g, const Tensor& x, uint64_t mask, size_t dims, const Tensor& stats,
                     const MaybeTensor& weight, ScalarType of_positions, const std::array<bool, 3>& wanted) {
    R result;
    const bool sums_over_rows = wanted[1] || wanted[2];
    if (!wanted[0] && !sums_over_rows) return result;
    Rows rows(wanted[0] ? of_input : of_weights, g, mask, x.scalar_type());
    rows.use_stats(stats);
    Tensor sums[2];
    if (sums_over_rows)
      for (int k = 0; k < (of_weights == Fused::LayerNormWeights ? 2 : 1); ++k) {
        sums[k] = allocate(x.sizes().slice(size_t(x.dim()) - dims), Dtype(of_positions), x);
        rows.value(k, sums[k]);
      }
    if (wanted[0]) {
      if (given(weight)) rows.call.weight = rows.of_positions(*weight);
      const Tensor& out = std::get<0>(result) = allocate(x.sizes(), Dtype(x.scalar_type()), x);
      if (sums_over_rows) rows.run_with_weights(of_weights, written(out), read(x));
      else rows.map(out, &x);
    } else {
      rows.run_over_rows(read(x));
    }
    if (sums_over_rows) {
      if (wanted[1]) std::get<1>(result) = sums[0];
      if constexpr (std::tuple_size_v<R> == 3)
        if (wanted[2]) std::get<2>(result) = sums[1];
    }
    return result;
  }
};

// torch has these on GPUs alone: on a CPU it takes them apart before.
struct RmsNorm {
  template <class R> static R call(Why& why, const Tensor& x, at::IntArrayRef shape, const MaybeTensor& weight,
                                   const std::optional<double>& epsilon) {
    why = plan_norm(x, shape, {&weight});
    if (why != Why::Served) return {};
    Rows rows(Fused::RmsNorm, x, trailing(x, shape.size()), x.scalar_type());
    rows.call.options.epsilon = epsilon.value_or(rows.call.accumulator == Dtype::F64 ? 0x1p-52 : 0x1p-23);
    if (given(weight)) rows.call.weight = rows.of_positions(*weight);
    const Tensor stats = rows.stats(x), out = allocate(x.sizes(), Dtype(x.scalar_type()), x);
    rows.map(out);
    return {out, kept(stats, 0, x, shape.size(), true)};
  }
};
struct RmsNormBackward {
  template <class R>
  static R call(Why& why, const Tensor& g, const Tensor& x, at::IntArrayRef shape, const Tensor& rstd,
                const MaybeTensor& weight, const std::array<bool, 2>& wanted) {
    why = plan_norm(x, shape, {&weight});
    if (why != Why::Served) return {};
    const uint64_t mask = trailing(x, shape.size());
    const Rows rows(Fused::RmsNorm, x, mask, x.scalar_type());
    if (g.scalar_type() != x.scalar_type() || rstd.scalar_type() != rows.wide()) why = Why::Dtype;
    else if (g.sizes() != x.sizes() || g.device() != x.device() || rstd.device() != x.device()) why = Why::Dims;
    else if (rstd.numel() != rows.row_count()) why = Why::Dims;
    else if (wanted[1] && !given(weight)) why = Why::Option;
    if (why != Why::Served) return {};
    const Tensor stats = rstd.reshape({1, -1}).contiguous();
    return LayerNormBackward::gradients<R, Fused::RmsNormGradient, Fused::RmsNormWeights>(
        g, x, mask, shape.size(), stats, weight, x.scalar_type(), {wanted[0], wanted[1], false});
  }
};

// ---- losses --------------------------------------------------------------------------------------------------------------

// The sum of torch's losses of the rows, or that divided by the weights of their labels; and the sum of these, which is
// not rounded to 16 bits: its gradient divides by it. An `out=` of it is of x's dtype.
template <class Aten> struct NllLoss {
  template <class R> static R call(Why& why, const Tensor& x, const Tensor& target, const MaybeTensor& weight,
                                   int64_t reduction, const c10::SymInt& ignored) {
    why = reduction == at::Reduction::None ? Why::Option : plan_rows(x);
    if (why != Why::Served) return {};
    const ScalarType wide = x.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
    auto of_rows = [&](const Tensor& of, const MaybeTensor& by) {
      return std::get<0>(Aten::call(of, target, by, at::Reduction::None, ignored)).to(wide);
    };
    auto sum = [&](const Tensor& of) {
      Arguments all;
      return Reduce<k_sum>::call<Tensor>(why, of, all);
    };
    Tensor losses = of_rows(x, {}), weights;  // exact: elements of x, without their sign
    if (given(weight)) {
      const Tensor by = of_rows(at::full({}, -1, x.options()).expand(x.sizes()), weight);
      losses = losses.mul(by);
      weights = sum(by);
    } else {
      Arguments all;
      weights = Reduce<k_count_nonzero>::call<Tensor>(why, target.ne(ignored.expect_int()), all);
    }
    const Tensor total = sum(losses);
    const Tensor loss = reduction == at::Reduction::Mean ? total.div(weights.to(wide)) : total;
    return {loss.to(x.scalar_type()), weights.to(wide)};
  }
  template <class R>
  static R call(Why& why, const Tensor& x, const Tensor& target, const MaybeTensor& weight, int64_t reduction,
                const c10::SymInt& ignored, Tensor& output, Tensor& total_weight) {
    const auto results = call<std::tuple<Tensor, Tensor>>(why, x, target, weight, reduction, ignored);
    if (why == Why::Served) why = fit(output, total_weight, {}, Dtype(x.scalar_type()), Dtype(x.scalar_type()), x);
    if (why == Why::Served) {
      output.copy_(std::get<0>(results));
      total_weight.copy_(std::get<1>(results));
    }
    return {output, total_weight};
  }
};

// Of 16 bits, by torch's kernel in float32, rounded once: the gradient divided by the sum of the weights may be less
// than 16 bits hold.
template <class Aten> struct NllLossBackward {
  template <class R>
  static R call(Why& why, const Tensor& g, const Tensor& x, const Tensor& target, const MaybeTensor& weight,
                int64_t reduction, const c10::SymInt& ignored, const Tensor& total) {
    why = reduction == at::Reduction::None ? Why::Option : plan_rows(x);
    if (why == Why::Served && (x.element_size() != 2 || g.scalar_type() != x.scalar_type())) why = Why::Dtype;
    if (why == Why::Served && (g.dim() != 0 || total.numel() != 1 || total.device() != x.device())) why = Why::Dims;
    if (why != Why::Served) return Tensor();
    const Tensor sum = g.to(ScalarType::Float);
    const Tensor part = reduction == at::Reduction::Mean ? sum.div(total.to(ScalarType::Float)) : sum;
    const Tensor shape = at::empty_like(x, x.options().dtype(ScalarType::Float), at::MemoryFormat::Contiguous);
    const MaybeTensor by = given(weight) ? MaybeTensor(weight->to(ScalarType::Float)) : weight;
    const Tensor one = at::ones({}, shape.options());
    return Aten::redispatch(own_key(x), part, shape, target, by, at::Reduction::Sum, ignored, one).to(x.scalar_type());
  }
  // torch's own takes the sum of the weights in x's dtype.
  static Tensor go_on(DispatchKeySet keys, const Tensor& g, const Tensor& x, const Tensor& target,
                      const MaybeTensor& weight, int64_t reduction, const c10::SymInt& ignored, const Tensor& total) {
    const bool fits = total.scalar_type() == x.scalar_type() || total.scalar_type() != ScalarType::Float;
    return Aten::redispatch(keys, g, x, target, weight, reduction, ignored, fits ? total : total.to(x.scalar_type()));
  }
};

// ---- embeddings ----------------------------------------------------------------------------------------------------------

// The rows of the gradient are added up by their indices. What divides them by how often these occur is torch's.
struct EmbeddingBackward {
  template <class R> static R call(Why& why, const Tensor& g, const Tensor& indices, const c10::SymInt& count,
                                   const c10::SymInt& skipped, bool by_frequency) {
    const at::IntArrayRef sizes = g.sizes();
    if (is_named(g)) why = Why::Kind;
    else if (!is_float(g.scalar_type())) why = Why::Dtype;
    else if (indices.scalar_type() != ScalarType::Long && indices.scalar_type() != ScalarType::Int) why = Why::Dtype;
    else if (g.dim() < 1 || sizes.slice(0, sizes.size() - 1) != indices.sizes()) why = Why::Dims;
    else if (indices.device() != g.device()) why = Why::Kind;
    else if (by_frequency) why = Why::Option;
    if (why != Why::Served) return Tensor();
    constexpr const char* name = "embedding_dense_backward";
    const int64_t columns = sizes.back(), rows = count.expect_int();
    if (g.numel() == 0 || rows == 0) return at::zeros({rows, columns}, g.options());
    const Tensor out = at::empty({rows, columns}, g.options());
    const Tensor places = indices.to(ScalarType::Long).contiguous();
    const Tensor keys = at::empty({places.numel()}, places.options().dtype(ScalarType(segment_key_dtype(rows))));
    segment_keys_into(name, read(places), rows, skipped.expect_int(), written(keys));
    const auto [numbers, order] = at::sort(keys, true, 0, false);
    segment_sums_into(name, read(g.reshape({-1, columns}).contiguous()), read(numbers), read(order), written(out));
    return out;
  }
};

// ---- matrix products -----------------------------------------------------------------------------------------------------

// The arguments of mm and its kin, taken by their types: tensors, of which a writable one is `out`, beta, alpha, dtype.
struct Factors {
  at::SmallVector<const Tensor*, 3> tensors;
  at::SmallVector<const at::Scalar*, 2> scalars;
  std::optional<ScalarType> dtype;
  bool gelu = false;
  Tensor* out = nullptr;

  void take(const Tensor& t) { tensors.push_back(&t); }
  void take(Tensor& t) { out = &t; }
  void take(const at::Scalar& s) { scalars.push_back(&s); }
  void take(ScalarType type) { dtype = type; }
  void take(bool use) { gelu = use; }
};

// left @ right, of matrices or of batches of them, and what is added to it.
struct Multiplying {
  Tensor left, right;
  std::optional<Tensor> added;
  double beta = 1, alpha = 1;
  ScalarType result;
  at::DimVector shape;

  Why plan(const Factors& given) {
    const ScalarType dtype = left.scalar_type();
    const int64_t dims = left.dim();
    result = given.dtype.value_or(dtype);
    if (is_named(left) || right.device() != left.device()) return Why::Kind;
    if (!left.is_cpu() && !has_products(left.device().index())) return Why::Kind;
    if (const Why why = dtypes(given); why != Why::Served) return why;
    if (right.dim() != dims || left.size(-1) != right.size(-2) || (dims == 3 && left.size(0) != right.size(0)))
      return Why::Dims;
    if (left.numel() == 0 || right.numel() == 0) return Why::Empty;
    shape.assign(left.sizes().begin(), left.sizes().end());
    shape.back() = right.size(-1);
    if (!given.scalars.empty()) {
      beta = given.scalars[0]->toDouble(), alpha = given.scalars[1]->toDouble();
      if (const Why why = fits(*added); why != Why::Served) return why;
      if (float(beta) == 0) added.reset();
    }
    return Why::Served;
  }
  Why dtypes(const Factors& given) const {
    const ScalarType dtype = left.scalar_type();
    const bool with_float32 = enabled.load(std::memory_order_relaxed) & kFloat32Products;
    if (!has_products(Dtype(dtype), with_float32) || right.scalar_type() != dtype) return Why::Dtype;
    if (result != dtype && result != ScalarType::Float) return Why::Dtype;
    // torch has these on GPUs alone; and what it has float32 computed in on a CPU is to be float32.
    const bool is_exact = at::globalContext().float32MatmulPrecision() == at::Float32MatmulPrecision::HIGHEST;
    if (left.is_cpu() && (given.dtype || !is_exact)) return Why::Option;
    for (const at::Scalar* s : given.scalars) {
      if (s->isComplex()) return Why::Option;
      const double value = s->toDouble();
      if (std::isfinite(value) && !std::isfinite(float(value))) return Why::Option;
    }
    return !given.scalars.empty() && float(given.scalars[1]->toDouble()) == 0 ? Why::Option : Why::Served;
  }
  Why fits(const Tensor& t) const {
    if (t.scalar_type() != result) return Why::Dtype;
    if (t.device() != left.device()) return Why::Kind;
    if (t.dim() > int64_t(shape.size())) return Why::Dims;
    for (int64_t d = 1; d <= t.dim(); ++d)
      if (t.size(-d) != 1 && t.size(-d) != shape[shape.size() - size_t(d)]) return Why::Dims;
    return Why::Served;
  }
  void run(const char* name, const Tensor& out) const {
    MatrixProduct product{name, read(left), read(right), written(out), {}, beta, alpha};
    if (added) product.added = read(*added);
    multiply_into(product);
  }
};

// Whether a tensor has each element once, if its strides are those of a view of a dense one. torch tells it of dense
// ones alone.
bool is_written_once(const Tensor& t) {
  at::SmallVector<std::pair<int64_t, int64_t>, 3> dims;
  for (int64_t d = 0; d < t.dim(); ++d)
    if (t.size(d) != 1) dims.emplace_back(t.stride(d), t.size(d));
  std::sort(dims.begin(), dims.end());
  int64_t extent = 1;
  for (const auto& [stride, size] : dims) {
    if (stride < extent) return false;
    extent = stride * size;
  }
  return true;
}

// What is written in place of `out`, and copied to it, where its layout or what it lies between is in the way; `out`
// where nothing is. `added` may be `out`.
Tensor aside(Why& why, const Tensor& out, std::initializer_list<const Tensor*> inputs, const Tensor* added) {
  bool is_in_the_way = at::has_internal_overlap(out) == at::MemOverlap::TooHard && is_written_once(out);
  auto look = [&](const Tensor& t) {
    if (t.device() != out.device() || !overlap(read(out), read(t))) return;
    const at::MemOverlapStatus status = at::get_overlap_status(out, t);
    if (status == at::MemOverlapStatus::Full || status == at::MemOverlapStatus::Partial) why = Why::Out;
    is_in_the_way = true;
  };
  for (const Tensor* t : inputs) look(*t);
  if (added && !(added->device() == out.device() && same_view(read(out), read(*added)))) look(*added);
  return is_in_the_way ? at::empty(out.sizes(), out.options()) : out;
}

// `dims`: of each factor; a vector is one more column, or row. `adds`: whether beta times a tensor is added, which is
// then the first. `activates`: whether relu or gelu follow.
template <int left_dims, int right_dims, bool adds, bool activates = false> struct Multiply {
  static constexpr int kOnlyWhere = kProducts;
  static constexpr bool kOfVector = right_dims == 1;

  template <class R, class X, class... A> static R call(Why& why, X& x, A&&... a) {
    constexpr bool writes = std::is_reference_v<R>;
    Factors given;
    given.take(std::as_const(x));
    (given.take(a), ...);
    if constexpr (writes && !std::is_const_v<X>) given.out = &x;  // addmm_ and its like
    const Tensor &left = *given.tensors[adds ? 1 : 0], &right = *given.tensors[adds ? 2 : 1];
    Multiplying m;
    why = left.dim() == left_dims && right.dim() == right_dims ? Why::Served : Why::Dims;
    if (adds && kOfVector && given.tensors[0]->dim() > 1) why = Why::Dims;
    if (why == Why::Served) {
      m.left = left, m.right = kOfVector ? right.unsqueeze(1) : right;
      if (adds) m.added = kOfVector && given.tensors[0]->dim() ? given.tensors[0]->unsqueeze(1) : *given.tensors[0];
      why = m.plan(given);
    }
    at::DimVector shape = m.shape;
    if (kOfVector && !shape.empty()) shape.pop_back();
    if constexpr (writes) {
      Tensor& out = *given.out;
      if (why != Why::Served) return out;
      const Tensor* added = m.added ? given.tensors[0] : nullptr;
      const Tensor to = aside(why, out, {&left, &right}, added);
      for (const Tensor* t : {&left, &right, added})
        if (why == Why::Served && t) why = fit(to, shape, Dtype(m.result), *t, t == added);
      if (why != Why::Served) return out;
      run(m, given, to);
      if (!to.is_same(out)) at::native::resize_output(out, shape), out.copy_(to);
      return out;
    } else {
      if (why != Why::Served) return Tensor();
      Tensor result = allocate(shape, Dtype(m.result), left);
      run(m, given, result);
      return result;
    }
  }
  static void run(const Multiplying& m, const Factors& given, const Tensor& out) {
    m.run(adds ? "addmm" : "mm", kOfVector ? out.unsqueeze(1) : out);
    if (!activates) return;
    if (given.gelu) at::gelu_(const_cast<Tensor&>(out), out.is_cpu() ? "none" : "tanh");
    else at::relu_(const_cast<Tensor&>(out));
  }
};

// The sum of the products of two vectors: in float32, in the order of sum.
struct Dot {
  static constexpr int kOnlyWhere = kProducts;

  template <class R> static R call(Why& why, const Tensor& x, const Tensor& y) {
    Multiplying m;
    m.left = x, m.right = y, m.result = x.scalar_type();
    const bool is_covered = x.device() == y.device() && (x.is_cpu() || has_products(x.device().index()));
    why = !is_covered ? Why::Kind : x.dim() != 1 || y.dim() != 1 || x.size(0) != y.size(0) ? Why::Dims : m.dtypes({});
    if (why != Why::Served) return Tensor();
    const Tensor products = x.to(ScalarType::Float).mul(y.to(ScalarType::Float));
    return Reduce<k_sum>::call<Tensor>(why, products, std::optional(x.scalar_type()));
  }
  template <class R> static R call(Why& why, const Tensor& x, const Tensor& y, Tensor& out) {
    const Tensor result = call<Tensor>(why, x, y);
    if (why == Why::Served) why = fit(out, {}, Dtype(x.scalar_type()), x);
    if (why == Why::Served) out.copy_(result);
    return out;
  }
};

// ---- what is registered --------------------------------------------------------------------------------------------------

// An overload that is covered, and its calls while torchreduce was on, by who served them.
struct Row {
  std::string name;
  std::array<std::atomic<uint64_t>, kReasons> calls{};
};
std::deque<Row>& rows() {
  static auto* all = new std::deque<Row>;  // for good, as what is registered
  return *all;
}

// Whether there are kernels for a GPU: a build without a GPU part has none, and some GPUs are too old.
bool has_kernels(int device) {
  static std::array<std::atomic<signed char>, 64> known{};  // 0: not asked yet
  if (device < 0 || device >= int(known.size())) return false;
  signed char has = known[size_t(device)].load(std::memory_order_relaxed);
  if (!has) {
    try {
      has = gpu_facts(device).gpu ? 1 : -1;
    } catch (const std::runtime_error&) { has = -1; }
    known[size_t(device)].store(has, std::memory_order_relaxed);
  }
  return has > 0;
}
const Tensor& first(const Tensor& x) { return x; }
const Tensor& first(at::TensorList list) { return list[0]; }

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

// ---- above autograd ------------------------------------------------------------------------------------------------------

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
};
// The devices whose calls a compiler of ours is tracing, on this thread.
thread_local int tracing = 0;

constexpr DispatchKeySet kOther(DispatchKey::AutogradOther);
constexpr DispatchKeySet kBelow(DispatchKeySet::FULL_AFTER, DispatchKey::AutogradOther);
constexpr DispatchKeySet kTransform(DispatchKey::FuncTorchDynamicLayerBackMode);
constexpr DispatchKeySet kIgnored =
    kTransform | DispatchKeySet({DispatchKey::ADInplaceOrView, DispatchKey::BackendSelect});

bool is_met(const Tensor& x, DispatchKeySet keys, Which which) {
  const int on = enabled.load(std::memory_order_relaxed);
  if ((!on && !tracing) || !is_float(x.scalar_type())) return false;
  const bool is_transformed = keys.has_all(kTransform), is_traced = tracing && keys.has(DispatchKey::Python);
  if (which == Which::Transformed && !is_transformed) return false;
  if (which == Which::Cpu && !x.is_cpu() && !is_transformed) return false;
  if (which == Which::Gradients && !(x.requires_grad() && at::GradMode::is_enabled()) && !x._fw_grad(0).defined())
    return false;
  if (is_traced) return x.is_cpu() ? tracing & kCpu : x.is_cuda() && (tracing & kGpu);
  return is_covered(x, (keys & kBelow) - kIgnored, on);
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
    return is_met(x, keys, which) ? serve(further, x, a...) : Aten::redispatch(further, x, a...);
  }
  // For BackendSelect, where inference mode meets a composite, and for batches.
  static R call_below(DispatchKeySet keys, X x, A... a) {
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
    if constexpr (which != Which::Gradients)
      for (torch::Library* library : {&select, &batched})
        library->impl(name.c_str(), TORCH_FN((Above<Aten, which>::call_below)));
  }
};

torch::Library& library_for(DispatchKey key) {
  return *new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
}

void add_above() {
  using namespace at::_ops;
  AboveLibraries all{library_for(DispatchKey::AutogradCPU), library_for(DispatchKey::AutogradCUDA),
                     library_for(DispatchKey::BackendSelect), library_for(DispatchKey::FuncTorchBatched)};
  all.add<logsumexp, Which::Gradients>();
  all.add<logcumsumexp, Which::Gradients>();
  all.add<cumprod, Which::Gradients>();
  all.add<cummax, Which::Gradients>();
  all.add<cummin, Which::Gradients>();
  all.add<prod, Which::Gradients>();
  all.add<prod_dim_int, Which::Gradients>();
  all.add<linalg_vector_norm, Which::Gradients>();
  all.add<var_correction, Which::Gradients>();
  all.add<std_correction, Which::Gradients>();
  all.add<var_mean_correction, Which::Gradients>();
  all.add<std_mean_correction, Which::Gradients>();
  all.add<nanmean, Which::All>();
  all.add<nanmean_out, Which::All>();
  all.add<cross_entropy_loss, Which::All>();
  all.add<rms_norm, Which::Cpu>();
  all.add<layer_norm, Which::Transformed>();
}

void add_all() {
  using namespace at::_ops;
  auto& aten = *new torch::Library(torch::Library::IMPL, "aten", DispatchKey::BackendSelect, __FILE__, __LINE__);
#define TR_ADD(overload, ...) add<overload, __VA_ARGS__>(aten);
  TR_ADD(sum_dim_IntList, Reduce<k_sum>)
  TR_ADD(sum_IntList_out, Reduce<k_sum>)
  TR_ADD(mean_dim, Reduce<k_mean>)
  TR_ADD(mean_out, Reduce<k_mean>)
  TR_ADD(nansum, Reduce<k_nansum>)
  TR_ADD(nansum_out, Reduce<k_nansum>)
  TR_ADD(prod, Reduce<k_prod>)
  TR_ADD(prod_dim_int, Reduce<k_prod>)
  TR_ADD(prod_int_out, Reduce<k_prod>)
  TR_ADD(linalg_vector_norm, VectorNorm)
  TR_ADD(linalg_vector_norm_out, VectorNorm)
  TR_ADD(_foreach_norm_Scalar, ForeachNorm)

  TR_ADD(any, Reduce<k_any>)
  TR_ADD(any_all_out, Reduce<k_any>)
  TR_ADD(any_dim, Reduce<k_any>)
  TR_ADD(any_out, Reduce<k_any>)
  TR_ADD(any_dims, ReduceListed<k_any>)
  TR_ADD(any_dims_out, ReduceListed<k_any>)
  TR_ADD(all, Reduce<k_all>)
  TR_ADD(all_all_out, Reduce<k_all>)
  TR_ADD(all_dim, Reduce<k_all>)
  TR_ADD(all_out, Reduce<k_all>)
  TR_ADD(all_dims, ReduceListed<k_all>)
  TR_ADD(all_dims_out, ReduceListed<k_all>)
  TR_ADD(count_nonzero_dim_IntList, Reduce<k_count_nonzero>)

  TR_ADD(amax, Reduce<k_amax>)
  TR_ADD(amax_out, Reduce<k_amax>)
  TR_ADD(amin, Reduce<k_amin>)
  TR_ADD(amin_out, Reduce<k_amin>)
  TR_ADD(aminmax, MinMax)
  TR_ADD(aminmax_out, MinMax)
  TR_ADD(max, Reduce<k_max_all>)
  TR_ADD(max_unary_out, Reduce<k_max_all>)
  TR_ADD(max_dim, ReducePair<k_max>)
  TR_ADD(max_dim_max, ReducePair<k_max>)
  TR_ADD(min, Reduce<k_min_all>)
  TR_ADD(min_unary_out, Reduce<k_min_all>)
  TR_ADD(min_dim, ReducePair<k_min>)
  TR_ADD(min_dim_min, ReducePair<k_min>)
  TR_ADD(argmax, Reduce<k_argmax>)
  TR_ADD(argmax_out, Reduce<k_argmax>)
  TR_ADD(argmin, Reduce<k_argmin>)
  TR_ADD(argmin_out, Reduce<k_argmin>)

  TR_ADD(_softmax, Softmax<Fused::Softmax>)
  TR_ADD(_softmax_out, Softmax<Fused::Softmax>)
  TR_ADD(_log_softmax, Softmax<Fused::LogSoftmax>)
  TR_ADD(_log_softmax_out, Softmax<Fused::LogSoftmax>)
  TR_ADD(_softmax_backward_data, SoftmaxBackward<Fused::SoftmaxGradient>)
  TR_ADD(_softmax_backward_data_out, SoftmaxBackward<Fused::SoftmaxGradient>)
  TR_ADD(_log_softmax_backward_data, SoftmaxBackward<Fused::LogSoftmaxGradient>)
  TR_ADD(_log_softmax_backward_data_out, SoftmaxBackward<Fused::LogSoftmaxGradient>)
  TR_ADD(logsumexp, LogSumExp)
  TR_ADD(logsumexp_out, LogSumExp)
  TR_ADD(var_correction, Variance<false>)
  TR_ADD(var_correction_out, Variance<false>)
  TR_ADD(std_correction, Variance<true>)
  TR_ADD(std_correction_out, Variance<true>)
  TR_ADD(var_mean_correction, Variance<false>)
  TR_ADD(std_mean_correction, Variance<true>)
  TR_ADD(native_layer_norm, LayerNorm)
  TR_ADD(native_layer_norm_backward, LayerNormBackward)
  TR_ADD(_fused_rms_norm, RmsNorm)
  TR_ADD(_fused_rms_norm_backward, RmsNormBackward)
  TR_ADD(nll_loss_forward, NllLoss<nll_loss_forward>)
  TR_ADD(nll_loss_forward_output, NllLoss<nll_loss_forward>)
  TR_ADD(nll_loss2d_forward, NllLoss<nll_loss2d_forward>)
  TR_ADD(nll_loss2d_forward_output, NllLoss<nll_loss2d_forward>)
  TR_ADD(nll_loss_backward, NllLossBackward<nll_loss_backward>)
  TR_ADD(nll_loss2d_backward, NllLossBackward<nll_loss2d_backward>)

  TR_ADD(embedding_dense_backward, EmbeddingBackward)

  TR_ADD(cumsum, Accumulate<k_cumsum>)
  TR_ADD(cumsum_out, Accumulate<k_cumsum>)
  TR_ADD(cumsum_, AccumulateInPlace<k_cumsum>)
  TR_ADD(cumprod, Accumulate<k_cumprod>)
  TR_ADD(cumprod_out, Accumulate<k_cumprod>)
  TR_ADD(cumprod_, AccumulateInPlace<k_cumprod>)
  TR_ADD(_logcumsumexp, LogCumSumExp)
  TR_ADD(_logcumsumexp_out, LogCumSumExp)
  TR_ADD(_cummax_helper, Extreme<k_cummax>)
  TR_ADD(_cummin_helper, Extreme<k_cummin>)
#undef TR_ADD
}

// A layer's product is one with its bias added in float32 where torch sees a matrix, and a rounded one with a rounded
// sum elsewhere: for a row alone, say. Here it is a matrix, whatever its shape and layout.
struct Linear {
  using Aten = at::_ops::linear;

  static bool is_met(DispatchKeySet keys, const Tensor& x, const Tensor& weight, const MaybeTensor& bias) {
    const int on = enabled.load(std::memory_order_relaxed) | tracing;
    if (!(on & kProducts) || !given(bias) || !torchreduce::is_met(x, keys, Which::All)) return false;
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
           torchreduce::is_met(query, keys, Which::All) && has_products(query.device().index());
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

// Registered when products are first asked for: every product of the process passes here from then on.
void add_products() {
  using namespace at::_ops;
  torch::Library& aten = library_for(DispatchKey::BackendSelect);
#define TR_ADD(overload, ...) add<overload, __VA_ARGS__>(aten);
  using Matrices = Multiply<2, 2, false>;
  using AddedMatrices = Multiply<2, 2, true>;
  using Activated = Multiply<2, 2, true, true>;
  using Batches = Multiply<3, 3, false>;
  using AddedBatches = Multiply<3, 3, true>;
  using Vector = Multiply<2, 1, false>;
  using AddedVector = Multiply<2, 1, true>;
  TR_ADD(mm, Matrices)
  TR_ADD(mm_out, Matrices)
  TR_ADD(mm_dtype, Matrices)
  TR_ADD(mm_dtype_out, Matrices)
  TR_ADD(addmm, AddedMatrices)
  TR_ADD(addmm_out, AddedMatrices)
  TR_ADD(addmm_, AddedMatrices)
  TR_ADD(addmm_dtype, AddedMatrices)
  TR_ADD(addmm_dtype_out, AddedMatrices)
  TR_ADD(bmm, Batches)
  TR_ADD(bmm_out, Batches)
  TR_ADD(bmm_dtype, Batches)
  TR_ADD(bmm_dtype_out, Batches)
  TR_ADD(baddbmm, AddedBatches)
  TR_ADD(baddbmm_out, AddedBatches)
  TR_ADD(baddbmm_, AddedBatches)
  TR_ADD(baddbmm_dtype, AddedBatches)
  TR_ADD(baddbmm_dtype_out, AddedBatches)
  TR_ADD(_addmm_activation, Activated)
  TR_ADD(_addmm_activation_out, Activated)
  TR_ADD(mv, Vector)
  TR_ADD(mv_out, Vector)
  TR_ADD(addmv, AddedVector)
  TR_ADD(addmv_out, AddedVector)
  TR_ADD(addmv_, AddedVector)
  TR_ADD(dot, Dot)
  TR_ADD(dot_out, Dot)
#undef TR_ADD
  Attention::row = &rows().emplace_back();
  Attention::row->name = "scaled_dot_product_attention";
  torch::Library& above = library_for(DispatchKey::AutogradCUDA);
  above.impl("linear", TORCH_FN(Linear::call));
  library_for(DispatchKey::AutogradCPU).impl("linear", TORCH_FN(Linear::call));
  aten.impl("linear", TORCH_FN(Linear::call_below));
  above.impl("scaled_dot_product_attention", TORCH_FN(Attention::call));
  aten.impl("scaled_dot_product_attention", TORCH_FN(Attention::call_below));
}

// ---- calls past the dispatcher -------------------------------------------------------------------------------------------

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
}  // namespace torchreduce

// Of libtorch_python.so, for whatever Python: torch's own declaration takes Python's headers.
struct _object* THPVariable_Wrap(const at::TensorBase& tensor);

// What torchreduce/direct.py calls, with handles of torch's stable ABI, which are pointers to tensors.
extern "C" {
bool torchreduce_aten_is_plain(const at::Tensor* x) { return torchreduce::is_plain(*x); }
struct _object* torchreduce_aten_wrap(const at::Tensor* x) { return THPVariable_Wrap(*x); }
}

// What torchreduce/override/__init__.py calls.
extern "C" {
void torchreduce_aten_register() { torchreduce::add_all(); }
void torchreduce_aten_register_above() { torchreduce::add_above(); }
void torchreduce_aten_register_products() { torchreduce::add_products(); }
void torchreduce_aten_enable(int devices) { torchreduce::enabled.store(devices); }
int torchreduce_aten_trace(int devices) { return std::exchange(torchreduce::tracing, devices); }
int torchreduce_aten_rows() { return int(torchreduce::rows().size()); }
const char* torchreduce_aten_name(int row) { return torchreduce::rows()[size_t(row)].name.c_str(); }
const char* torchreduce_aten_why(int why) { return why < torchreduce::kReasons ? torchreduce::kWhy[why] : nullptr; }
uint64_t torchreduce_aten_calls(int row, int why) { return torchreduce::rows()[size_t(row)].calls[size_t(why)]; }
}
