// Scans and row-wise ops by segments, as torch sees them: as binding/segments.cpp has the reductions.
#include <torch/csrc/stable/library.h>

#include <string>
#include <tuple>

#include "kernels/rowwise/rowwise_segments.h"
#include "kernels/scan/scan_segments.h"
#include "run.h"

namespace torchreduce {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::contiguous;

int64_t cpu_threads() { return int64_t(torch::stable::get_num_threads()); }

void run_segments(const char* op, const ScanSegments& call, const Operand& x) {
  if (x.on_cpu()) return cpu::scan_segments(call, cpu_threads(), parallel_for);
  PlannedScanSegments planned{call, {}};
#ifdef TORCHREDUCE_GPU
  run_on_gpu(op, planned, x, gpu::scan_segments);
#else
  run_on_gpu(op, planned, x, nullptr);
#endif
}
void run_segments(const char* op, const RowwiseSegments& call, const Operand& x) {
  if (x.on_cpu()) return cpu::rowwise_segments(call, cpu_threads(), parallel_for);
  PlannedRowwiseSegments planned{call, {}};
#ifdef TORCHREDUCE_GPU
  run_on_gpu(op, planned, x, gpu::rowwise_segments);
#else
  run_on_gpu(op, planned, x, nullptr);
#endif
}

// The segments of a dim of x, and the tensors that live as long as the call.
struct Along {
  const char* name;
  int dim;
  Tensor offsets;
  SegmentOffsets of;
  std::vector<Tensor> held;

  Along(const char* op, const Operand& x, const Tensor& given, int64_t along) : name(op), offsets(contiguous(given)) {
    const View bounds(offsets);
    if (x.dims == 0 || along < -x.dims || along >= x.dims)
      raise<std::out_of_range>(op, ": dim ", along, " is out of range for a tensor of ", x.dims, " dims");
    dim = int(along < 0 ? along + x.dims : along);
    if (bounds.dtype != Dtype::I32 && bounds.dtype != Dtype::I64)
      raise<std::runtime_error>(op, ": offsets must be int32 or int64, got number ", int(bounds.dtype));
    if (bounds.dims != 1 || bounds.sizes[0] < 1 || bounds.device_type != x.device_type ||
        bounds.device_index != x.device_index)
      raise<std::runtime_error>(op, ": offsets must have one dim, at least one element, and the input's device");
    of = {bounds.data, bounds.dtype, bounds.sizes[0] - 1, x.sizes[dim]};
    if (x.on_cpu()) check();
  }
  void check() const {
    int64_t before = 0;
    for (int64_t k = 0; k <= of.count; ++k) {
      const int64_t at = index_at(of.data, of.dtype, k);
      if (at < before || at > of.length)
        raise<std::runtime_error>(name, ": offsets must not fall, and be from 0 to ", of.length, ", got ", at, " at ",
                                  k, k ? " after " : "", k ? std::to_string(before) : "");
      before = at;
    }
  }
  // x's sizes, with the segments in place of their elements.
  std::vector<int64_t> sizes(const std::vector<int64_t>& of_x) const {
    std::vector<int64_t> sizes = of_x;
    sizes[size_t(dim)] = of.count;
    return sizes;
  }
  // On a CPU, elements of no segment; a GPU's kernels write those, too.
  void clear_others(const Tensor& result) const {
    if (!View(result).on_cpu()) return;
    const int64_t first = of.begin(0), end = of.begin(of.count);
    for (const auto& [begin, count] : {std::pair(int64_t(0), first), std::pair(end, of.length - end)})
      if (count > 0) {
        Tensor part = result;
        part = torch::stable::narrow(part, dim, begin, count);
        torch::stable::zero_(part);
      }
  }
};
std::vector<int64_t> sizes_of(const Operand& x) { return {x.sizes, x.sizes + x.dims}; }

void check_floats(const char* op, const View& x) {
  check_input(op, x);
  if (!is_float(x.dtype)) raise<std::runtime_error>(op, ": needs a floating dtype, got number ", int(x.dtype));
}
void check_like(const char* op, const View& a, const View& x) {
  if (a.dims != x.dims || !std::equal(a.sizes, a.sizes + a.dims, x.sizes) || a.dtype != x.dtype ||
      a.device_type != x.device_type || a.device_index != x.device_index)
    raise<std::runtime_error>(op, ": the inputs must have one shape, dtype and device");
}
Dtype floating(const char* op, ScalarType dtype) {
  if (!is_float(Dtype(dtype))) raise<std::runtime_error>(op, ": dtype= has the unsupported number ", int(dtype));
  return Dtype(dtype);
}

// ---- scans -------------------------------------------------------------------------------------------------------------

Tensor cumsum(const Tensor& input, const Tensor& offsets, int64_t dim, std::optional<ScalarType> dtype, bool exclusive,
              bool reverse, int64_t) {
  constexpr const char* name = "cumsum";
  const View x(input);
  check_input(name, x);
  const Dtype wanted = dtype ? Dtype(*dtype) : is_float(x.dtype) ? x.dtype : Dtype::I64;
  if (!supported(wanted) || wanted == Dtype::Bool)
    raise<std::runtime_error>(name, ": dtype= has the unsupported number ", int(wanted));
  const Along along(name, x, offsets, dim);
  Tensor result = allocate(sizes_of(x), wanted, x);
  const View out(result);
  ScanSegments call{};
  call.op = Scan::CumSum;
  call.in = Source{x.data, x.dtype, accumulator_of(x.dtype, wanted), false};
  call.out = Output{const_cast<void*>(out.data), nullptr, wanted};
  call.exclusive = exclusive;
  call.reverse = reverse;
  call.layout = fold(x, uint64_t(1) << along.dim, out.strides);
  call.of = along.of;
  call.across = plans::lanes_across_rows(call);
  along.clear_others(result);
  if (x.numel() > 0) run_segments(name, call, x);
  return result;
}

// As linear_scan; `initial` broadcasts to the shape of the result with the segments in place of their elements.
Tensor linear_scan(const Tensor& a, const Tensor& b, const std::optional<Tensor>& initial, const Tensor& offsets,
                   int64_t dim, bool reverse, bool shifted, int64_t) {
  constexpr const char* name = "linear_scan";
  const View left(a), right(b), first(initial ? *initial : b);
  check_floats(name, right);
  for (const View* v : {&left, &first})
    if (v->dtype != right.dtype || v->device_type != right.device_type || v->device_index != right.device_index)
      raise<std::runtime_error>(name, ": a, b and initial must have one dtype and device");
  if (shifted && initial) raise<std::runtime_error>(name, ": a shifted scan has no initial");
  const std::vector<int64_t> sizes = broadcast(name, left, right);
  const std::vector<int64_t> strides = broadcast_strides(name, right, sizes),
                             of_a = broadcast_strides(name, left, sizes);
  View whole = right;  // b, broadcast
  whole.dims = int(sizes.size());
  whole.sizes = sizes.data();
  whole.strides = strides.data();
  check_input(name, whole);
  const Along along(name, whole, offsets, dim);
  std::vector<int64_t> of_initial(sizes.size(), 0);
  if (initial) of_initial = broadcast_strides(name, first, along.sizes(sizes));
  Tensor result = allocate(sizes, right.dtype, right);
  const View out(result);
  ScanSegments call{};
  call.op = Scan::LinearScan;
  call.options.initial = initial.has_value();
  call.in = Source{
      right.data, right.dtype, natural_accumulator(right.dtype), false, {left.data, initial ? first.data : nullptr}};
  call.out = Output{const_cast<void*>(out.data), nullptr, right.dtype};
  call.reverse = reverse;
  call.shifted = shifted;
  call.initial_step = of_initial[size_t(along.dim)];
  std::vector<Dim> kept, reduced;
  for (int d = 0; d < whole.dims; ++d)
    (d == along.dim ? reduced : kept)
        .push_back({sizes[d], strides[d], out.strides[d], {of_a[d], d == along.dim ? 0 : of_initial[d]}});
  call.layout = fold(std::move(kept), reduced, &call.more_strides);
  call.of = along.of;
  call.across = plans::lanes_across_rows(call);
  along.clear_others(result);
  if (whole.numel() > 0) run_segments(name, call, right);
  return result;
}

// ---- row-wise ops ------------------------------------------------------------------------------------------------------

struct Rows {
  const char* name;
  View x;
  Along along;
  RowwiseSegments call{};
  std::vector<Tensor> held;

  Rows(const char* op, Rowwise which, const Tensor& input, const Tensor& offsets, int64_t dim, Dtype result)
      : name(op), x(input), along(op, x, offsets, dim) {
    call.op = which;
    call.dtype = x.dtype;
    call.accumulator = accumulator_of(x.dtype, result);
    call.in[0] = x.data;
    call.of = along.of;
  }
  std::vector<int64_t> value_sizes() const { return along.sizes(sizes_of(x)); }
  std::vector<int64_t> stats_sizes() const {
    std::vector<int64_t> sizes = value_sizes();
    sizes.insert(sizes.begin(), facts(call.op).stats);
    return sizes;
  }
  void set_stats(const Tensor& stats) {
    const View s(stats);
    const std::vector<int64_t> sizes = stats_sizes();
    if (s.dtype != call.accumulator || sizes_of(s) != sizes || s.device_type != x.device_type ||
        s.device_index != x.device_index)
      raise<std::runtime_error>(name, ": the statistics are not those of such segments");
    call.memory.stats = const_cast<void*>(s.data);
    call.memory.plane = sizes[0] ? s.numel() / sizes[0] : 0;
  }
  void set_value(const Tensor& value) {
    const View v(value);
    if (!is_float(v.dtype) || sizes_of(v) != value_sizes() || v.device_type != x.device_type ||
        v.device_index != x.device_index)
      raise<std::runtime_error>(name, ": needs a gradient for each segment");
    call.memory.values[0] = const_cast<void*>(v.data);
    call.memory.dtypes[0] = v.dtype;
  }
  // The elements' results go to `result`, if there is one.
  void run(const std::optional<Tensor>& result, const Operand* second = nullptr) {
    std::vector<int64_t> out_strides(size_t(x.dims), 0);
    if (result) {
      const View out(*result);
      out_strides.assign(out.strides, out.strides + out.dims);
      call.out = const_cast<void*>(out.data);
      call.out_dtype = out.dtype;
      along.clear_others(*result);
    }
    if (second) call.in[1] = second->data;
    const std::vector<int64_t> values = value_sizes();
    std::vector<Dim> kept, reduced;
    int64_t stride = 1, value_strides[kMaxDims];
    for (int d = x.dims - 1; d >= 0; stride *= values[d--]) value_strides[d] = stride;
    for (int d = 0; d < x.dims; ++d)
      (d == along.dim ? reduced : kept)
          .push_back({x.sizes[d],
                      x.strides[d],
                      out_strides[d],
                      {second ? second->strides[d] : 0, d == along.dim ? 0 : value_strides[d]}});
    call.layout = fold(std::move(kept), reduced, &call.more_strides);
    call.value_step = value_strides[along.dim];
    call.across = plans::lanes_across_rows(call.layout);
    if (call.layout.rows == 0 || (result && x.numel() == 0)) return;
    run_segments(name, call, x);
  }
};

template <Rowwise op>
Tensor softmax(const Tensor& input, const Tensor& offsets, int64_t dim, std::optional<ScalarType> dtype, int64_t) {
  const char* name = op == Rowwise::Softmax ? "softmax" : "log_softmax";
  const View x(input);
  check_floats(name, x);
  const Dtype result = dtype ? floating(name, *dtype) : x.dtype;
  Rows rows(name, op, input, offsets, dim, result);
  Tensor out = allocate(sizes_of(x), result, x);
  rows.run(out);
  return out;
}
template <Rowwise op>
Tensor softmax_gradient(const Tensor& g, const Tensor& y, const Tensor& offsets, int64_t dim, ScalarType dtype,
                        int64_t) {
  const char* name = op == Rowwise::SoftmaxGradient ? "softmax_gradient" : "log_softmax_gradient";
  const View first(g), second(y);
  check_floats(name, first);
  check_like(name, second, first);
  const Dtype result = floating(name, dtype);
  Rows rows(name, op, g, offsets, dim, result);
  Tensor out = allocate(sizes_of(first), result, first);
  rows.run(out, &second);
  return out;
}
std::tuple<Tensor, Tensor> logsumexp(const Tensor& input, const Tensor& offsets, int64_t dim, int64_t) {
  constexpr const char* name = "logsumexp";
  const View x(input);
  check_floats(name, x);
  Rows rows(name, Rowwise::LogSumExp, input, offsets, dim, x.dtype);
  Tensor value = allocate(rows.value_sizes(), x.dtype, x);
  Tensor stats = allocate(rows.stats_sizes(), rows.call.accumulator, x);
  rows.set_value(value);
  rows.set_stats(stats);
  rows.run({});
  return {value, stats};
}
Tensor logsumexp_gradient(const Tensor& g, const Tensor& input, const Tensor& stats, const Tensor& offsets, int64_t dim,
                          int64_t) {
  constexpr const char* name = "logsumexp_gradient";
  const View x(input);
  check_floats(name, x);
  Rows rows(name, Rowwise::LogSumExpGradient, input, offsets, dim, x.dtype);
  const Tensor of_segments = contiguous(g), numbers = contiguous(stats);
  rows.set_value(of_segments);
  rows.set_stats(numbers);
  Tensor out = allocate(sizes_of(x), x.dtype, x);
  rows.run(out);
  return out;
}

// ---- registration ------------------------------------------------------------------------------------------------------

using torch::stable::detail::StableLibrary;
const bool registered = [] {
  auto* schemas = new StableLibrary(StableLibrary::Kind::FRAGMENT, "torchreduce", nullptr, __FILE__, __LINE__);
  const std::string of = ", Tensor offsets, int dim, ";
  const auto define = [&](const std::string& name, const std::string& rest) {
    for (const char* overload : {"_segments(", "_segments.raw("}) schemas->def((name + overload + rest).c_str());
  };
  define("cumsum", "Tensor x" + of + "ScalarType? dtype, bool exclusive, bool reverse, int level) -> Tensor");
  define("linear_scan",
         "Tensor a, Tensor b, Tensor? initial" + of + "bool reverse, bool shifted, int level) -> Tensor");
  for (const char* name : {"softmax", "log_softmax"}) {
    define(name, "Tensor x" + of + "ScalarType? dtype, int level) -> Tensor");
    define(std::string(name) + "_gradient", "Tensor g, Tensor y" + of + "ScalarType dtype, int level) -> Tensor");
  }
  define("logsumexp", "Tensor x" + of + "int level) -> (Tensor value, Tensor stats)");
  define("logsumexp_gradient", "Tensor g, Tensor x, Tensor stats" + of + "int level) -> Tensor");
  for (const char* key : {"CPU", "CUDA"}) {
    auto* kernels = new StableLibrary(StableLibrary::Kind::IMPL, "torchreduce", key, __FILE__, __LINE__);
    for (const std::string overload : {"_segments", "_segments.raw"}) {
      const auto implement = [&](const char* name, auto* kernel) { kernels->impl((name + overload).c_str(), kernel); };
      implement("cumsum", TORCH_BOX(&cumsum));
      implement("linear_scan", TORCH_BOX(&linear_scan));
      implement("softmax", TORCH_BOX(&softmax<Rowwise::Softmax>));
      implement("log_softmax", TORCH_BOX(&softmax<Rowwise::LogSoftmax>));
      implement("softmax_gradient", TORCH_BOX(&softmax_gradient<Rowwise::SoftmaxGradient>));
      implement("log_softmax_gradient", TORCH_BOX(&softmax_gradient<Rowwise::LogSoftmaxGradient>));
      implement("logsumexp", TORCH_BOX(&logsumexp));
      implement("logsumexp_gradient", TORCH_BOX(&logsumexp_gradient));
    }
  }
  return true;
}();

}  // namespace
}  // namespace torchreduce
