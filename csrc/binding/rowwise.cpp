// The row-wise ops, as torch sees them: as binding/ops.cpp has the others.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "direct_ops.h"
#include "kernels/rowwise/losses.h"
#include "run.h"

namespace torchreduce {

RowwiseRun::RowwiseRun(const char* op, Rowwise which, const Operand& input, uint64_t along, Dtype result)
    : name(op), x(input), mask(along) {
  call.op = which;
  call.dtype = x.dtype;
  call.accumulator = accumulator_of(x.dtype, result);
  call.in[0] = x.data;
}

int64_t RowwiseRun::row_count() const {
  int64_t n = 1;
  for (int d = 0; d < x.dims; ++d) n *= mask >> d & 1u ? 1 : x.sizes[d];
  return n;
}

void RowwiseRun::lay_out(const Operand* out, const Operand* second) {
  if (out) {
    call.out = const_cast<void*>(out->data);
    call.out_dtype = out->dtype;
  }
  if (second) call.in[1] = second->data;
  std::array<int64_t, kMaxDims> row_strides{};
  int64_t stride = 1;
  for (int d = x.dims - 1; d >= 0; --d)
    if (!(mask >> d & 1u)) {
      row_strides[d] = stride;
      stride *= x.sizes[d];
    }
  std::vector<Dim> kept, reduced;
  for (int d = 0; d < x.dims; ++d)
    (mask >> d & 1u ? reduced : kept)
        .push_back(
            {x.sizes[d], x.strides[d], out ? out->strides[d] : 0, {second ? second->strides[d] : 0, row_strides[d]}});
  call.layout = fold(std::move(kept), reduced, &call.more_strides);
}

RowwisePlan RowwiseRun::planned(const Operand* out, const DeviceFacts& device) {
  lay_out(out, nullptr);
  return plan(call, device);
}

void RowwiseRun::run(const Operand* out, const Operand* second) {
  lay_out(out, second);
  start();
}

void RowwiseRun::run_with_weights(Rowwise of_weights, const Operand& out, const Operand& second) {
  lay_out(&out, &second);
  if (row_count() > 0 && !x.on_cpu() && is_together(plan(call, gpu_facts(x.device_index)))) return start();
  const RowMemory memory = call.memory;
  call.memory.values[0] = call.memory.values[1] = nullptr;
  start();
  call.memory = memory;
  call.op = of_weights;
  call.out = nullptr;
  call.weight = nullptr;
  run_over_rows(second);
}

void RowwiseRun::run_over_rows(const Operand& second) {
  call.in[1] = second.data;
  std::array<int64_t, kMaxDims> out_strides{};
  int64_t stride = 1;
  for (int d = x.dims - 1; d >= 0; --d)
    if (mask >> d & 1u) {
      out_strides[d] = stride;
      stride *= x.sizes[d];
    }
  std::vector<Dim> kept, reduced;
  for (int d = 0; d < x.dims; ++d)
    (mask >> d & 1u ? kept : reduced).push_back({x.sizes[d], x.strides[d], out_strides[d], {second.strides[d], 0}});
  call.layout = fold(std::move(kept), reduced, &call.more_strides);
  start();
}

void RowwiseRun::start() {
  const bool writes_rows = call.memory.values[0] || call.memory.values[1] || call.memory.values[2] || call.memory.stats;
  if (call.layout.rows == 0 || (call.layout.length == 0 && !writes_rows)) return;
#ifdef TORCHREDUCE_GPU
  torchreduce::run<PlannedRowwise>(name, call, x, cpu::rowwise_rows, gpu::rowwise_rows);
#else
  torchreduce::run<PlannedRowwise>(name, call, x, cpu::rowwise_rows, nullptr);
#endif
}

namespace {

using torch::headeronly::ScalarType;
using torch::stable::contiguous;
using Optional = std::optional<Tensor>;

void check_floats(const char* op, const View& x) {
  check_input(op, x);
  if (!is_float(x.dtype)) raise<std::runtime_error>(op, ": needs a floating dtype, got number ", int(x.dtype));
}
void check_like(const char* op, const View& a, const View& x, bool same_dtype = true) {
  if (a.dims != x.dims || !std::equal(a.sizes, a.sizes + a.dims, x.sizes) || (same_dtype && a.dtype != x.dtype) ||
      a.device_type != x.device_type || a.device_index != x.device_index)
    raise<std::runtime_error>(op, ": the inputs must have one shape, dtype and device");
}
Dtype floating(const char* op, ScalarType dtype) {
  if (!is_float(Dtype(dtype))) raise<std::runtime_error>(op, ": dtype= has the unsupported number ", int(dtype));
  return Dtype(dtype);
}

// The dims that rows consist of: the last `count`.
uint64_t trailing(const char* op, const View& x, int64_t count) {
  if (count < 0 || count > x.dims) raise<std::runtime_error>(op, ": ", count, " dims of a tensor of ", x.dims);
  const auto below = [](int64_t bits) { return bits >= 64 ? ~uint64_t(0) : (uint64_t(1) << bits) - 1; };
  return below(x.dims) & ~below(x.dims - count);
}
uint64_t single(const char* op, const View& x, int64_t dim) { return dim_mask(op, x, std::vector<int64_t>{dim}); }

// A call, and the tensors that live as long as it.
struct Rows : RowwiseRun {
  std::vector<Tensor> held;

  Rows(const char* op, Rowwise which, const Tensor& input, uint64_t along, Dtype result)
      : RowwiseRun(op, which, View(input), along, result) {}
  const void* hold(Tensor t) {
    held.push_back(std::move(t));
    return View(held.back()).data;
  }

  // ---- what has one element a row: contiguous, with the rows' shape, size 1 along their dims -------------------------

  std::vector<int64_t> row_sizes() const { return reduced_sizes(x, mask, true); }
  // Statistics to be written.
  // Which have a dim more than x.
  Tensor new_stats() {
    if (x.dims == kMaxDims)
      raise<std::runtime_error>(name, ": at most ", kMaxDims - 1, " dims are supported, got ", x.dims);
    std::vector<int64_t> sizes = row_sizes();
    sizes.insert(sizes.begin(), facts(call.op).stats);
    Tensor stats = allocate(sizes, call.accumulator, x);
    call.memory.stats = const_cast<void*>(View(stats).data);
    call.memory.plane = row_count();
    return stats;
  }
  void given_stats(const Tensor& stats, int64_t rows) {
    const View s(stats);
    if (s.dtype != call.accumulator || s.dims < 1 || s.sizes[0] != facts(call.op).stats ||
        s.numel() != facts(call.op).stats * rows || s.device_type != x.device_type || s.device_index != x.device_index)
      raise<std::runtime_error>(name, ": the statistics are not those of such rows");
    call.memory.stats = const_cast<void*>(hold(contiguous(stats)));
    call.memory.plane = rows;
  }
  // A value of each row, to be written.
  Tensor new_value(int k, const std::vector<int64_t>& sizes, Dtype dtype) {
    Tensor value = allocate(sizes, dtype, x);
    call.memory.values[k] = const_cast<void*>(View(value).data);
    call.memory.dtypes[k] = dtype;
    return value;
  }
  void given_value(int k, const Tensor& value) {
    const View v(value);
    if (!is_float(v.dtype) || v.numel() != row_count() || v.device_type != x.device_type ||
        v.device_index != x.device_index)
      raise<std::runtime_error>(name, ": needs a gradient for each row");
    call.memory.values[k] = const_cast<void*>(hold(contiguous(value)));
    call.memory.dtypes[k] = v.dtype;
  }

  // ---- what has one element a position -------------------------------------------------------------------------------

  const void* of_positions(const Tensor& weight) {
    const View w(weight);
    int64_t positions = 1;
    for (int d = 0; d < x.dims; ++d) positions *= mask >> d & 1u ? x.sizes[d] : 1;
    if (!is_float(w.dtype) || w.numel() != positions || w.device_type != x.device_type ||
        w.device_index != x.device_index)
      raise<std::runtime_error>(name, ": weight and bias must have an element for each position of a row");
    call.weight_dtype = w.dtype;
    return hold(contiguous(weight));
  }
  void weights(const Optional& weight, const Optional& bias = {}) {
    if (weight && bias && View(*weight).dtype != View(*bias).dtype)
      raise<std::runtime_error>(name, ": weight and bias must have one dtype");
    if (weight) call.weight = of_positions(*weight);
    if (bias) call.bias = of_positions(*bias);
  }
};

// ---- an element for each ---------------------------------------------------------------------------------------------

// Writes to `given`, or where there is none to a tensor that it allocates; returns what it wrote.
template <Rowwise op>
Tensor softmax_to(const Tensor& input, int64_t dim, std::optional<ScalarType> dtype, const Optional& given) {
  const char* name = op == Rowwise::Softmax ? "softmax" : "log_softmax";
  const View x(input);
  check_floats(name, x);
  const Dtype result = dtype ? floating(name, *dtype) : x.dtype;
  const std::vector<int64_t> sizes(x.sizes, x.sizes + x.dims);
  const Tensor out = given ? *given : allocate(sizes, result, x);
  const View to(out);
  if (given) check_out(name, x, sizes, to, result);
  // On a CPU each element is written after it was last read.
  const bool apart = !overlap(x, to) || (x.on_cpu() && same_view(x, to));
  const Tensor source = apart ? input : torch::stable::clone(input);
  Rows(name, op, source, single(name, x, dim), result).run(&to);
  return out;
}
template <Rowwise op> Tensor softmax(const Tensor& x, int64_t dim, std::optional<ScalarType> dtype, int64_t) {
  return softmax_to<op>(x, dim, dtype, {});
}
template <Rowwise op>
void softmax_out(const Tensor& x, int64_t dim, std::optional<ScalarType> dtype, int64_t, Tensor out) {
  softmax_to<op>(x, dim, dtype, out);
}

template <Rowwise op>
Tensor softmax_gradient(const Tensor& g, const Tensor& y, int64_t dim, ScalarType dtype, int64_t) {
  const char* name = op == Rowwise::SoftmaxGradient ? "softmax_gradient" : "log_softmax_gradient";
  const View first(g), second(y);
  check_floats(name, first);
  check_like(name, second, first);
  const Dtype result = floating(name, dtype);
  Rows rows(name, op, g, single(name, first, dim), result);
  Tensor out = allocate({first.sizes, first.sizes + first.dims}, result, first);
  const View to(out);
  rows.run(&to, &second);
  return out;
}

// ---- values for each row ---------------------------------------------------------------------------------------------

template <Rowwise op> std::tuple<Tensor, Tensor> row_values(const Tensor& input, Dims dim, bool keepdim, int64_t) {
  const char* name = op == Rowwise::LogSumExp ? "logsumexp" : "entropy";
  const View x(input);
  check_floats(name, x);
  Rows rows(name, op, input, dim_mask(name, x, dim), x.dtype);
  Tensor value = rows.new_value(0, reduced_sizes(x, rows.mask, keepdim), x.dtype), stats = rows.new_stats();
  rows.run();
  return {value, stats};
}
template <Rowwise op>
Tensor row_values_gradient(const Tensor& g, const Tensor& input, const Tensor& stats, Dims dim, int64_t) {
  const char* name = op == Rowwise::LogSumExpGradient ? "logsumexp_gradient" : "entropy_gradient";
  const View x(input);
  check_floats(name, x);
  Rows rows(name, op, input, dim_mask(name, x, dim), x.dtype);
  rows.given_stats(stats, rows.row_count());
  rows.given_value(0, g);
  Tensor out = allocate({x.sizes, x.sizes + x.dims}, x.dtype, x);
  const View to(out);
  rows.run(&to);
  return out;
}

std::tuple<Tensor, Tensor, Tensor> moments(const Tensor& input, Dims dim, bool keepdim, double correction, bool root,
                                           int64_t) {
  constexpr const char* name = "moments";
  const View x(input);
  check_floats(name, x);
  Rows rows(name, Rowwise::Moments, input, dim_mask(name, x, dim), x.dtype);
  rows.call.options.correction = correction;
  rows.call.options.root = root;
  const std::vector<int64_t> sizes = reduced_sizes(x, rows.mask, keepdim);
  Tensor value = rows.new_value(0, sizes, x.dtype), mean = rows.new_value(1, sizes, x.dtype), stats = rows.new_stats();
  rows.run();
  return {value, mean, stats};
}
Tensor moments_gradient(const Tensor& g, const Optional& to_mean, const Tensor& input, const Tensor& stats, Dims dim,
                        double correction, bool root, int64_t) {
  constexpr const char* name = "moments_gradient";
  const View x(input);
  check_floats(name, x);
  Rows rows(name, Rowwise::MomentsGradient, input, dim_mask(name, x, dim), x.dtype);
  rows.call.options.correction = correction;
  rows.call.options.root = root;
  rows.given_stats(stats, rows.row_count());
  rows.given_value(0, g);
  if (to_mean) rows.given_value(1, *to_mean);
  Tensor out = allocate({x.sizes, x.sizes + x.dims}, x.dtype, x);
  const View to(out);
  rows.run(&to);
  return out;
}

// ---- norms -----------------------------------------------------------------------------------------------------------

// What a norm, or its gradient, writes an element of for each of x: rms_norm channels last where x is, as torch does.
Tensor new_like(const View& x, Dtype dtype, bool layer) {
  return allocate({x.sizes, x.sizes + x.dims}, dtype, x, !layer && is_channels_last(x));
}

std::tuple<Tensor, Tensor> norm(const char* name, Rowwise op, const Tensor& input, const Optional& weight,
                                const Optional& bias, int64_t dims, double epsilon,
                                std::optional<ScalarType> dtype = {}) {
  const View x(input);
  check_floats(name, x);
  Rows rows(name, op, input, trailing(name, x, dims), x.dtype);
  rows.call.options.epsilon = epsilon;
  rows.weights(weight, bias);
  Tensor out = new_like(x, dtype ? floating(name, *dtype) : x.dtype, op == Rowwise::LayerNorm);
  Tensor stats = rows.new_stats();
  const View to(out);
  rows.run(&to);
  return {out, stats};
}
std::tuple<Tensor, Tensor> rms_norm(const Tensor& x, const Optional& weight, int64_t dims, double epsilon, int64_t) {
  return norm("rms_norm", Rowwise::RmsNorm, x, weight, {}, dims, epsilon);
}
std::tuple<Tensor, Tensor> layer_norm(const Tensor& x, const Optional& weight, const Optional& bias, int64_t dims,
                                      double epsilon, int64_t) {
  return norm("layer_norm", Rowwise::LayerNorm, x, weight, bias, dims, epsilon);
}

// The same, rounded to `dtype`.
std::tuple<Tensor, Tensor> rms_norm_as(const Tensor& x, const Optional& weight, int64_t dims, double epsilon,
                                       ScalarType dtype, int64_t) {
  return norm("rms_norm_as", Rowwise::RmsNorm, x, weight, {}, dims, epsilon, dtype);
}
std::tuple<Tensor, Tensor> layer_norm_as(const Tensor& x, const Optional& weight, const Optional& bias, int64_t dims,
                                         double epsilon, ScalarType dtype, int64_t) {
  return norm("layer_norm_as", Rowwise::LayerNorm, x, weight, bias, dims, epsilon, dtype);
}

// The norm of x + residual, rounded to their dtype, and that sum.
std::tuple<Tensor, Tensor, Tensor> norm_sum(const char* name, Rowwise op, const Tensor& input, const Tensor& residual,
                                            const Optional& weight, const Optional& bias, int64_t dims,
                                            double epsilon) {
  const View x(input), more(residual);
  check_floats(name, x);
  check_like(name, more, x);
  Rows rows(name, op, input, trailing(name, x, dims), x.dtype);
  rows.call.options.epsilon = epsilon;
  rows.weights(weight, bias);
  const bool layer = op == Rowwise::LayerNormSum;
  Tensor out = new_like(x, x.dtype, layer), sum = new_like(x, x.dtype, layer), stats = rows.new_stats();
  const View to(out);
  rows.call.sum = const_cast<void*>(View(sum).data);
  rows.run(&to, &more);
  return {out, sum, stats};
}
std::tuple<Tensor, Tensor, Tensor> rms_norm_sum(const Tensor& x, const Tensor& residual, const Optional& weight,
                                                int64_t dims, double epsilon, int64_t) {
  return norm_sum("rms_norm_sum", Rowwise::RmsNormSum, x, residual, weight, {}, dims, epsilon);
}
std::tuple<Tensor, Tensor, Tensor> layer_norm_sum(const Tensor& x, const Tensor& residual, const Optional& weight,
                                                  const Optional& bias, int64_t dims, double epsilon, int64_t) {
  return norm_sum("layer_norm_sum", Rowwise::LayerNormSum, x, residual, weight, bias, dims, epsilon);
}

// A gradient of a norm: g, beside the inputs x and their statistics.
Rows norm_rows(const char* name, Rowwise op, const Tensor& g, const View& x, const Tensor& stats, int64_t dims) {
  check_floats(name, x);
  check_like(name, View(g), x);
  Rows rows(name, op, g, trailing(name, x, dims), x.dtype);
  rows.given_stats(stats, rows.row_count());
  return rows;
}
// The gradients of weight and bias, one element a position of a row, to be written; without `bias` both are weight's.
std::pair<Tensor, Tensor> weight_values(Rows& rows, int64_t dims, ScalarType dtype, bool bias) {
  const Dtype result = floating(rows.name, dtype);
  const std::vector<int64_t> sizes(rows.x.sizes + (rows.x.dims - dims), rows.x.sizes + rows.x.dims);
  Tensor weight = rows.new_value(0, sizes, result);
  return {weight, bias ? rows.new_value(1, sizes, result) : weight};
}

template <Rowwise op>
Tensor norm_gradient(const Tensor& g, const Tensor& input, const Optional& weight, const Tensor& stats, int64_t dims,
                     double, int64_t) {
  const View x(input);
  Rows rows =
      norm_rows(op == Rowwise::RmsNormGradient ? "rms_norm_gradient" : "layer_norm_gradient", op, g, x, stats, dims);
  rows.weights(weight);
  Tensor out = new_like(View(g), x.dtype, op == Rowwise::LayerNormGradient);
  const View to(out);
  rows.run(&to, &x);
  return out;
}

// Like the gradient of x those of weights are made of the statistics; the epsilon is for derivatives of theirs.
template <Rowwise op> std::pair<Tensor, Tensor> weight_gradients(const Tensor& g, const Tensor& input,
                                                                 const Tensor& stats, int64_t dims, ScalarType dtype) {
  const View x(input);
  Rows rows =
      norm_rows(op == Rowwise::RmsNormWeights ? "rms_norm_weights" : "layer_norm_weights", op, g, x, stats, dims);
  auto values = weight_values(rows, dims, dtype, op == Rowwise::LayerNormWeights);
  rows.run_over_rows(x);
  return values;
}
Tensor rms_norm_weights(const Tensor& g, const Tensor& x, const Tensor& stats, int64_t dims, double, ScalarType dtype,
                        int64_t) {
  return weight_gradients<Rowwise::RmsNormWeights>(g, x, stats, dims, dtype).first;
}
std::tuple<Tensor, Tensor> layer_norm_weights(const Tensor& g, const Tensor& x, const Tensor& stats, int64_t dims,
                                              double, ScalarType dtype, int64_t) {
  return weight_gradients<Rowwise::LayerNormWeights>(g, x, stats, dims, dtype);
}

// Both: what norm_gradient and weight_gradients give.
template <Rowwise of_input, Rowwise of_weights>
std::tuple<Tensor, Tensor, Tensor> norm_backward(const Tensor& g, const Tensor& input, const Optional& weight,
                                                 const Tensor& stats, int64_t dims, ScalarType dtype) {
  const bool layer = of_input == Rowwise::LayerNormGradient;
  const View x(input);
  Rows rows = norm_rows(layer ? "layer_norm_backward" : "rms_norm_backward", of_input, g, x, stats, dims);
  rows.weights(weight);
  const auto [to_weight, to_bias] = weight_values(rows, dims, dtype, layer);
  Tensor out = new_like(View(g), x.dtype, layer);
  rows.run_with_weights(of_weights, View(out), x);
  return {out, to_weight, to_bias};
}
std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& g, const Tensor& x, const Optional& weight,
                                             const Tensor& stats, int64_t dims, double, ScalarType dtype, int64_t) {
  auto [to_x, to_weight, _] =
      norm_backward<Rowwise::RmsNormGradient, Rowwise::RmsNormWeights>(g, x, weight, stats, dims, dtype);
  return {to_x, to_weight};
}
std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(const Tensor& g, const Tensor& x, const Optional& weight,
                                                       const Tensor& stats, int64_t dims, double, ScalarType dtype,
                                                       int64_t) {
  return norm_backward<Rowwise::LayerNormGradient, Rowwise::LayerNormWeights>(g, x, weight, stats, dims, dtype);
}

// ---- cross-entropy ---------------------------------------------------------------------------------------------------

// Labels, and the weights of the classes.
void label(Rows& rows, const Tensor& target, const Optional& weight, int64_t ignored) {
  const View labels(target);
  const Operand& x = rows.x;
  if (labels.dtype != Dtype::I64 || labels.numel() != rows.row_count() || labels.device_type != x.device_type ||
      labels.device_index != x.device_index)
    raise<std::runtime_error>(rows.name, ": needs an int64 label for each row");
  RowMemory& memory = rows.call.memory;
  memory.labels = static_cast<const int64_t*>(rows.hold(contiguous(target)));
  memory.classes = 1;
  for (int d = 0; d < x.dims; ++d) memory.classes *= rows.mask >> d & 1u ? x.sizes[d] : 1;
  rows.call.options.ignored = ignored;
  if (weight) {
    const View w(*weight);
    if (!is_float(w.dtype) || w.numel() != memory.classes || w.device_type != x.device_type ||
        w.device_index != x.device_index)
      raise<std::runtime_error>(rows.name, ": weight must have an element for each class");
    memory.class_weights = rows.hold(contiguous(*weight));
    memory.class_weights_dtype = w.dtype;
  }
  if (!x.on_cpu()) return;  // on a GPU such a row's loss is NaN
  const auto is_outside = [classes = uint64_t(memory.classes), ignored](int64_t l) {
    return (uint64_t(l) >= classes) & (l != ignored);
  };
  const int64_t* const end = memory.labels + labels.numel();
  uint64_t outside = 0;  // counted: a branch for each row takes longer
  for (const int64_t* l = memory.labels; l != end; ++l) outside += is_outside(*l);
  if (outside == 0) return;
  const int64_t l = *std::find_if(memory.labels, end, is_outside);
  raise<std::out_of_range>(rows.name, ": target ", l, " is out of bounds for ", memory.classes, " classes");
}

// The losses, the rows' weights, the logarithms of their sums of exp if they are wanted, and the statistics.
std::tuple<Tensor, Tensor, Optional, Tensor> losses(const char* name, const Tensor& input, const Tensor& target,
                                                    const Optional& weight, int64_t dim, int64_t ignored, bool log) {
  const View x(input);
  check_floats(name, x);
  Rows rows(name, Rowwise::CrossEntropy, input, single(name, x, dim), x.dtype);
  label(rows, target, weight, ignored);
  const View labels(target);
  const std::vector<int64_t> sizes(labels.sizes, labels.sizes + labels.dims);
  const Dtype wide = rows.call.accumulator;
  Tensor loss = rows.new_value(0, sizes, wide), weights = rows.new_value(1, sizes, wide), stats = rows.new_stats();
  const Optional logs = log ? Optional(rows.new_value(2, sizes, wide)) : Optional();
  rows.run();
  return {loss, weights, logs, stats};
}
std::tuple<Tensor, Tensor, Tensor> cross_entropy(const Tensor& x, const Tensor& target, const Optional& weight,
                                                 int64_t dim, int64_t ignored, int64_t) {
  auto [loss, weights, _, stats] = losses("cross_entropy", x, target, weight, dim, ignored, false);
  return {loss, weights, stats};
}
std::tuple<Tensor, Tensor, Tensor, Tensor> cross_entropy_and_log(const Tensor& x, const Tensor& target,
                                                                 const Optional& weight, int64_t dim, int64_t ignored,
                                                                 int64_t) {
  auto [loss, weights, logs, stats] = losses("cross_entropy_and_log", x, target, weight, dim, ignored, true);
  return {loss, *logs, weights, stats};
}
// The last dim is filled up with zeros to a multiple of `granule`: where it is that of the classes, a matrix product
// takes the result without a copy.
Tensor cross_entropy_backward(const Tensor& g, const Optional& to_log, const Tensor& input, const Tensor& target,
                              const Optional& weight, const Tensor& stats, int64_t dim, int64_t ignored,
                              double smoothing, int64_t granule, int64_t) {
  constexpr const char* name = "cross_entropy_gradient";
  const View x(input);
  if (granule < 1 || granule > 64)
    raise<std::runtime_error>("cross_entropy_backward", ": granule must be from 1 to 64, got ", granule);
  check_floats(name, x);
  Rows rows(name, Rowwise::CrossEntropyGradient, input, single(name, x, dim), x.dtype);
  label(rows, target, weight, ignored);
  rows.call.options.smoothing = smoothing;
  rows.given_stats(stats, rows.row_count());
  rows.given_value(0, g);
  if (to_log) rows.given_value(1, *to_log);
  std::vector<int64_t> sizes(x.sizes, x.sizes + x.dims);
  if (!sizes.empty()) sizes.back() = (sizes.back() + granule - 1) / granule * granule;
  Tensor out = allocate(sizes, x.dtype, x);
  View to(out);
  to.sizes = x.sizes;
  rows.run(&to);
  if (const int64_t used = sizes.empty() ? 0 : x.sizes[x.dims - 1]; !sizes.empty() && sizes.back() > used) {
    Tensor rest = torch::stable::narrow(out, x.dims - 1, used, sizes.back() - used);
    torch::stable::zero_(rest);
  }
  return out;
}
Tensor cross_entropy_gradient(const Tensor& g, const Optional& to_log, const Tensor& x, const Tensor& target,
                              const Optional& weight, const Tensor& stats, int64_t dim, int64_t ignored,
                              double smoothing, int64_t level) {
  return cross_entropy_backward(g, to_log, x, target, weight, stats, dim, ignored, smoothing, 1, level);
}

// On a CPU: the reduction of all elements of x, written to `out`.
static void reduce_all(const Op& op, const View& x, void* out, Dtype dtype) {
  Operand to;
  to.data = out;
  to.dtype = dtype;
  const uint64_t every = x.dims == kMaxDims ? ~uint64_t(0) : (uint64_t(1) << x.dims) - 1;
  reduce_into(op, x, every, false, types_of(op, x, std::nullopt), &to, nullptr, false);
}

template <class F> static void mean_on_cpu(const View& losses, const View& weights, PlannedMeanLoss& call) {
  F& divisor = *static_cast<F*>(call.divisor);
  F sum;
  reduce_all(k_sum, losses, &sum, call.dtype);
  if (call.counts) {
    int64_t count;
    reduce_all(k_count_nonzero, weights, &count, Dtype::I64);
    divisor = F(count);
  } else {
    reduce_all(k_sum, weights, &divisor, call.dtype);
  }
  store_as(call.mean_dtype, call.mean, 0, sum / divisor);
}

// The mean of losses, rounded to `dtype`, and what their sum was divided by: the sum of the weights, or if `counts` the
// number of those that are not zero. On a GPU of at most kMostMeanLosses.
std::tuple<Tensor, Tensor> mean_loss(const Tensor& losses, const Tensor& weights, bool counts, ScalarType dtype,
                                     int64_t) {
  constexpr const char* name = "mean_loss";
  const View x(losses), w(weights);
  check_like(name, w, x);
  if ((x.dtype != Dtype::F32 && x.dtype != Dtype::F64) || x.numel() < 1)
    raise<std::runtime_error>(name, ": needs losses of float32 or float64, at least one");
  if (!x.on_cpu() && x.numel() > kMostMeanLosses)
    raise<std::runtime_error>(name, ": needs at most ", kMostMeanLosses, " losses on a GPU, received ", x.numel());
  Tensor mean = allocate({}, floating(name, dtype), x), divisor = allocate({}, x.dtype, x);
  PlannedMeanLoss call;
  call.count = int(x.numel());
  call.dtype = x.dtype;
  call.counts = counts;
  call.mean = const_cast<void*>(View(mean).data);
  call.mean_dtype = Dtype(dtype);
  call.divisor = const_cast<void*>(View(divisor).data);
  if (x.on_cpu()) {
    (x.dtype == Dtype::F32 ? mean_on_cpu<float> : mean_on_cpu<double>)(x, w, call);
    return {mean, divisor};
  }
  const Tensor of[] = {contiguous(losses), contiguous(weights)};
  call.losses = View(of[0]).data;
  call.weights = View(of[1]).data;
#ifdef TORCHREDUCE_GPU
  run_on_gpu(name, call, x, gpu::mean_loss);
#else
  run_on_gpu(name, call, x, nullptr);
#endif
  return {mean, divisor};
}

// The mean of cross_entropy's losses, what their sum was divided by, and the rows' statistics.
std::tuple<Tensor, Tensor, Tensor> mean_cross_entropy(const Tensor& x, const Tensor& target, const Optional& weight,
                                                      int64_t dim, int64_t ignored, ScalarType dtype, int64_t level) {
  const auto [losses, weights, stats] = cross_entropy(x, target, weight, dim, ignored, level);
  const auto [mean, divisor] = mean_loss(losses, weights, !weight, dtype, level);
  return {mean, divisor, stats};
}

// ---- schemas -----------------------------------------------------------------------------------------------------------

constexpr const char* kSoftmaxArguments = "Tensor x, int dim, ScalarType? dtype";

// name, arguments but for the level, results, function. Each has the overloads of binding/ops.cpp without those for
// out=.
#define TR_FOR_EACH_ROWWISE_OP(X)                                                                                    \
  X(softmax, kSoftmaxArguments, "Tensor", softmax<Rowwise::Softmax>)                                                 \
  X(log_softmax, kSoftmaxArguments, "Tensor", softmax<Rowwise::LogSoftmax>)                                          \
  X(softmax_gradient, "Tensor g, Tensor y, int dim, ScalarType dtype", "Tensor",                                     \
    softmax_gradient<Rowwise::SoftmaxGradient>)                                                                      \
  X(log_softmax_gradient, "Tensor g, Tensor y, int dim, ScalarType dtype", "Tensor",                                 \
    softmax_gradient<Rowwise::LogSoftmaxGradient>)                                                                   \
  X(logsumexp, "Tensor x, int[]? dim, bool keepdim", "(Tensor, Tensor)", row_values<Rowwise::LogSumExp>)             \
  X(logsumexp_gradient, "Tensor g, Tensor x, Tensor stats, int[]? dim", "Tensor",                                    \
    row_values_gradient<Rowwise::LogSumExpGradient>)                                                                 \
  X(entropy, "Tensor x, int[]? dim, bool keepdim", "(Tensor, Tensor)", row_values<Rowwise::Entropy>)                 \
  X(entropy_gradient, "Tensor g, Tensor x, Tensor stats, int[]? dim", "Tensor",                                      \
    row_values_gradient<Rowwise::EntropyGradient>)                                                                   \
  X(moments, "Tensor x, int[]? dim, bool keepdim, float correction, bool root", "(Tensor, Tensor, Tensor)", moments) \
  X(moments_gradient, "Tensor g, Tensor? to_mean, Tensor x, Tensor stats, int[]? dim, float correction, bool root",  \
    "Tensor", moments_gradient)                                                                                      \
  X(rms_norm, "Tensor x, Tensor? weight, int dims, float epsilon", "(Tensor, Tensor)", rms_norm)                     \
  X(layer_norm, "Tensor x, Tensor? weight, Tensor? bias, int dims, float epsilon", "(Tensor, Tensor)", layer_norm)   \
  X(rms_norm_sum, "Tensor x, Tensor residual, Tensor? weight, int dims, float epsilon", "(Tensor, Tensor, Tensor)",  \
    rms_norm_sum)                                                                                                    \
  X(layer_norm_sum, "Tensor x, Tensor residual, Tensor? weight, Tensor? bias, int dims, float epsilon",              \
    "(Tensor, Tensor, Tensor)", layer_norm_sum)                                                                      \
  X(rms_norm_gradient, "Tensor g, Tensor x, Tensor? weight, Tensor stats, int dims, float epsilon", "Tensor",        \
    norm_gradient<Rowwise::RmsNormGradient>)                                                                         \
  X(layer_norm_gradient, "Tensor g, Tensor x, Tensor? weight, Tensor stats, int dims, float epsilon", "Tensor",      \
    norm_gradient<Rowwise::LayerNormGradient>)                                                                       \
  X(rms_norm_weights, "Tensor g, Tensor x, Tensor stats, int dims, float epsilon, ScalarType dtype", "Tensor",       \
    rms_norm_weights)                                                                                                \
  X(layer_norm_weights, "Tensor g, Tensor x, Tensor stats, int dims, float epsilon, ScalarType dtype",               \
    "(Tensor, Tensor)", layer_norm_weights)                                                                          \
  X(cross_entropy, "Tensor x, Tensor target, Tensor? weight, int dim, int ignored", "(Tensor, Tensor, Tensor)",      \
    cross_entropy)                                                                                                   \
  X(cross_entropy_and_log, "Tensor x, Tensor target, Tensor? weight, int dim, int ignored",                          \
    "(Tensor, Tensor, Tensor, Tensor)", cross_entropy_and_log)                                                       \
  X(cross_entropy_gradient,                                                                                          \
    "Tensor g, Tensor? to_log, Tensor x, Tensor target, Tensor? weight, Tensor stats, int dim, int ignored, "        \
    "float smoothing",                                                                                               \
    "Tensor", cross_entropy_gradient)

// Those of them that have overloads for out=: name, function.
#define TR_FOR_EACH_WRITING_OP(X)           \
  X(softmax, softmax_out<Rowwise::Softmax>) \
  X(log_softmax, softmax_out<Rowwise::LogSoftmax>)

// The same with no overload but .raw, which derivatives are not made of: two of the others at once, or one in the dtype
// or the layout that what comes next wants; and what traced calls make of others.
#define TR_FOR_EACH_BARE_OP(X)                                                                                        \
  X(rms_norm_backward, "Tensor g, Tensor x, Tensor? weight, Tensor stats, int dims, float epsilon, ScalarType dtype", \
    "(Tensor, Tensor)", rms_norm_backward)                                                                            \
  X(layer_norm_backward,                                                                                              \
    "Tensor g, Tensor x, Tensor? weight, Tensor stats, int dims, float epsilon, ScalarType dtype",                    \
    "(Tensor, Tensor, Tensor)", layer_norm_backward)                                                                  \
  X(rms_norm_as, "Tensor x, Tensor? weight, int dims, float epsilon, ScalarType dtype", "(Tensor, Tensor)",           \
    rms_norm_as)                                                                                                      \
  X(layer_norm_as, "Tensor x, Tensor? weight, Tensor? bias, int dims, float epsilon, ScalarType dtype",               \
    "(Tensor, Tensor)", layer_norm_as)                                                                                \
  X(cross_entropy_backward,                                                                                           \
    "Tensor g, Tensor? to_log, Tensor x, Tensor target, Tensor? weight, Tensor stats, int dim, int ignored, "         \
    "float smoothing, int granule",                                                                                   \
    "Tensor", cross_entropy_backward)                                                                                 \
  X(mean_loss, "Tensor losses, Tensor weights, bool counts, ScalarType dtype", "(Tensor, Tensor)", mean_loss)         \
  X(mean_cross_entropy, "Tensor x, Tensor target, Tensor? weight, int dim, int ignored, ScalarType dtype",            \
    "(Tensor, Tensor, Tensor)", mean_cross_entropy)

// Registered for good, as in binding/ops.cpp.
using torch::stable::detail::StableLibrary;
const bool registered = [] {
  auto* schemas = new StableLibrary(StableLibrary::Kind::FRAGMENT, "torchreduce", nullptr, __FILE__, __LINE__);
#define TR_ROW(name, arguments, result, ...) \
  for (const char* overload : {"", ".raw"})  \
    schemas->def((std::string(#name) + overload + "(" + arguments + ", int level) -> " + result).c_str());
  TR_FOR_EACH_ROWWISE_OP(TR_ROW)
#undef TR_ROW
#define TR_ROW(name, arguments, result, ...) \
  schemas->def((std::string(#name) + ".raw(" + arguments + ", int level) -> " + result).c_str());
  TR_FOR_EACH_BARE_OP(TR_ROW)
#undef TR_ROW
#define TR_ROW(name, ...)                             \
  for (const char* overload : {".out(", ".raw_out("}) \
    schemas->def((std::string(#name) + overload + kSoftmaxArguments + ", int level, *, Tensor(a!) out) -> ()").c_str());
  TR_FOR_EACH_WRITING_OP(TR_ROW)
#undef TR_ROW
  for (const char* key : {"CPU", "CUDA"}) {
    auto* kernels = new StableLibrary(StableLibrary::Kind::IMPL, "torchreduce", key, __FILE__, __LINE__);
#define TR_ROW(name, arguments, result, ...)       \
  kernels->impl(#name, TORCH_BOX(&(__VA_ARGS__))); \
  kernels->impl(#name ".raw", TORCH_BOX(&(__VA_ARGS__)));
    TR_FOR_EACH_ROWWISE_OP(TR_ROW)
#undef TR_ROW
#define TR_ROW(name, arguments, result, ...) kernels->impl(#name ".raw", TORCH_BOX(&(__VA_ARGS__)));
    TR_FOR_EACH_BARE_OP(TR_ROW)
#undef TR_ROW
#define TR_ROW(name, ...)                                 \
  kernels->impl(#name ".out", TORCH_BOX(&(__VA_ARGS__))); \
  kernels->impl(#name ".raw_out", TORCH_BOX(&(__VA_ARGS__)));
    TR_FOR_EACH_WRITING_OP(TR_ROW)
#undef TR_ROW
  }
#define TR_ROW(name, arguments, result, ...) direct_ops().push_back(direct<&(__VA_ARGS__)>(#name));
  TR_FOR_EACH_ROWWISE_OP(TR_ROW)
  TR_FOR_EACH_BARE_OP(TR_ROW)
#undef TR_ROW
  return true;
}();

}  // namespace
}  // namespace torchreduce
