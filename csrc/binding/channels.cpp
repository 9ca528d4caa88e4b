// Norms over channels, as torch sees them: as binding/rowwise.cpp has those over rows.
#include "channels.h"

#include <torch/csrc/stable/library.h>

#include <string>
#include <tuple>

#include "direct_ops.h"
#include "plan/channel_plan.h"
#include "run.h"

namespace torchreduce {

ChannelRun::ChannelRun(const char* op, const Operand& input, int64_t groups) : name(op), x(input) {
  call.dtype = x.dtype;
  call.accumulator = accumulator_of(x.dtype, x.dtype);
  call.samples = x.sizes[0];
  call.channels = x.sizes[1];
  call.length = 1;
  for (int d = 2; d < x.dims; ++d) call.length *= x.sizes[d];
  call.groups = groups;
  call.x = operand(x);
}

// The dims after the second one must merge.
ChannelOperand ChannelRun::operand(const Operand& t) const {
  ChannelOperand o{t.data, t.strides[0], t.strides[1], 0};
  for (int d = t.dims - 1; d > 1; --d)
    if (t.sizes[d] > 1 && o.position == 0) o.position = t.strides[d];
  return o;
}

void ChannelRun::moments(double epsilon, void* stats, void* mean, void* variance) {
  std::vector<int64_t> sizes(x.sizes, x.sizes + x.dims), strides(x.strides, x.strides + x.dims);
  Operand rows = x;
  uint64_t mask = ~uint64_t(0) >> (64 - x.dims) & ~uint64_t(2);
  if (call.groups) {
    const int64_t in_group = call.in_group();
    sizes[1] = in_group;
    sizes.insert(sizes.begin() + 1, call.groups);
    strides.insert(strides.begin() + 1, strides[1] * in_group);
    ++rows.dims;
    mask = ~uint64_t(0) >> (64 - rows.dims) & ~uint64_t(3);
  }
  rows.sizes = sizes.data();
  rows.strides = strides.data();
  RowwiseRun run(name, Rowwise::Moments, rows, mask, x.dtype);
  run.call.options.epsilon = epsilon;
  run.call.options.correction = 1;
  run.call.options.norm = true;
  run.call.memory.stats = stats;
  run.call.memory.plane = row_count();
  run.call.memory.values[0] = variance;
  run.call.memory.values[1] = mean;
  run.call.memory.dtypes[0] = run.call.memory.dtypes[1] = call.accumulator;
  run.run();
}

void ChannelRun::run(Channels op) {
  call.op = op;
  const auto wanted = [&](bool of_groups) { return call.sums(of_groups) && call.sums_rows(of_groups) > 0; };
  const bool any =
      op == Channels::Sums ? wanted(false) || wanted(true) : call.samples * call.channels * call.length > 0;
  if (!any) return;
  if (x.on_cpu()) return cpu::channels(call, torch::stable::get_num_threads(), parallel_for);
  PlannedChannels planned{call, {}};
#ifdef TORCHREDUCE_GPU
  run_on_gpu(name, planned, x, gpu::channels);
#else
  run_on_gpu(name, planned, x, nullptr);
#endif
}
void ChannelRun::normalize(const Operand& out) {
  call.out = operand(out);
  run(Channels::Normalize);
}
void ChannelRun::sum(const Operand& g) {
  call.g = operand(g);
  run(Channels::Sums);
}
void ChannelRun::move() { run(Channels::Move); }
void ChannelRun::gradient(const Operand& g, const Operand& out) {
  call.g = operand(g);
  call.out = operand(out);
  run(Channels::Gradient);
}

bool ChannelRun::lay(const Operand& out) {
  call.out = operand(out);
#ifdef TORCHREDUCE_GPU
  if (!x.on_cpu() && transposes(call, gpu::facts(x.device_index))) {
    run(Channels::Lay);
    return true;
  }
#endif
  return false;
}

namespace {

using torch::headeronly::ScalarType;
using torch::stable::contiguous;
using Optional = std::optional<Tensor>;

// A tensor of x's shape whose dims after the second one merge, in x's layout on a GPU: else a copy.
Tensor laid_out(const Tensor& t, bool channels_last) {
  const View v(t);
  const auto is_laid = [&](bool last) {
    const std::array<int64_t, kMaxDims> strides = new_strides({v.sizes, v.sizes + v.dims}, last);
    bool same = true;
    for (int d = 0; d < v.dims; ++d) same &= v.sizes[d] == 1 || v.strides[d] == strides[d];
    return same;
  };
  if (is_laid(channels_last) || v.numel() == 0) return t;
  Tensor copy = allocate({v.sizes, v.sizes + v.dims}, v.dtype, v, channels_last);
  const bool done = is_laid(!channels_last) && ChannelRun("channels", v, 0).lay(View(copy));
  if (!done) torch::stable::copy_(copy, t);
  return copy;
}

// A call, and the tensors that live as long as it.
struct Run : ChannelRun {
  std::vector<Tensor> held;
  bool channels_last;

  static Tensor checked(const char* op, const Tensor& input, int64_t groups) {
    const View x(input);
    check_input(op, x);
    if (!is_float(x.dtype)) raise<std::runtime_error>(op, ": needs a floating dtype, got number ", int(x.dtype));
    if (x.dims < 2 || x.dims >= kMaxDims)
      raise<std::runtime_error>(op, ": needs 2 to ", kMaxDims - 1, " dims, got ", x.dims);
    if (groups < 0 || (groups > 0 && x.sizes[1] % groups != 0))
      raise<std::runtime_error>(op, ": ", x.sizes[1], " channels in ", groups, " groups");
    return laid_out(input, is_channels_last(x) && (groups == 0 || x.on_cpu()));
  }
  Run(const char* op, const Tensor& input, int64_t groups) : Run(op, checked(op, input, groups), groups, 0) {}
  Run(const char* op, const Tensor& source, int64_t groups, int)
      : ChannelRun(op, View(source), groups),
        held{source},
        channels_last(is_channels_last(x) && (groups == 0 || x.on_cpu())) {}

  const void* hold(Tensor t) {
    held.push_back(std::move(t));
    return View(held.back()).data;
  }
  View second(const Tensor& g) {
    const View v(g);
    if (v.dims != x.dims || !std::equal(v.sizes, v.sizes + v.dims, x.sizes) || v.dtype != x.dtype ||
        v.device_type != x.device_type || v.device_index != x.device_index)
      raise<std::runtime_error>(name, ": the inputs must have one shape, dtype and device");
    hold(laid_out(g, channels_last));
    return View(held.back());
  }
  const void* of_channels(const Tensor& t, Dtype& dtype) {
    const View v(t);
    if (!is_float(v.dtype) || v.numel() != call.channels || v.device_type != x.device_type ||
        v.device_index != x.device_index)
      raise<std::runtime_error>(name, ": needs an element of a floating dtype for each channel");
    dtype = v.dtype;
    return hold(contiguous(t));
  }
  void weights(const Optional& weight, const Optional& bias = {}) {
    if (weight && bias && View(*weight).dtype != View(*bias).dtype)
      raise<std::runtime_error>(name, ": weight and bias must have one dtype");
    if (weight) call.weight = of_channels(*weight, call.weight_dtype);
    if (bias) call.bias = of_channels(*bias, call.weight_dtype);
  }
  void given_stats(const Tensor& stats) {
    const View s(stats);
    if (s.dtype != call.accumulator || s.dims < 1 || s.sizes[0] != 3 || s.numel() != 3 * row_count() ||
        s.device_type != x.device_type || s.device_index != x.device_index)
      raise<std::runtime_error>(name, ": the statistics are not those of such channels");
    call.stats = hold(contiguous(stats));
  }
  Tensor planes(int64_t count, int64_t rows) { return allocate({count, rows}, call.accumulator, x); }
  void* place(const Tensor& t, int64_t plane = 0) {
    const View v(t);
    return static_cast<char*>(const_cast<void*>(v.data)) + (v.dims > 1 ? plane * v.strides[0] * size_of(v.dtype) : 0);
  }
  Tensor new_like() { return allocate({x.sizes, x.sizes + x.dims}, x.dtype, x, channels_last); }
};

std::tuple<Tensor, Tensor, Tensor> channel_norm(const Tensor& input, const Optional& weight, const Optional& bias,
                                                int64_t groups, double epsilon, int64_t) {
  Run run("channel_norm", input, groups);
  run.weights(weight, bias);
  Tensor stats = run.planes(3, run.row_count()), moments = run.planes(2, run.row_count()), out = run.new_like();
  run.moments(epsilon, run.place(stats), run.place(moments, 0), run.place(moments, 1));
  run.call.stats = run.place(stats);
  run.normalize(View(out));
  return {out, stats, moments};
}

// By a mean and a variance of each channel.
Tensor channel_norm_given(const Tensor& input, const Tensor& mean, const Tensor& variance, const Optional& weight,
                          const Optional& bias, double epsilon, int64_t) {
  Run run("channel_norm_given", input, 0);
  run.weights(weight, bias);
  if (View(mean).dtype != View(variance).dtype)
    raise<std::runtime_error>(run.name, ": mean and variance must have one dtype");
  run.call.mean = run.of_channels(mean, run.call.given_dtype);
  run.call.variance = run.of_channels(variance, run.call.given_dtype);
  run.call.epsilon = epsilon;
  Tensor out = run.new_like();
  run.normalize(View(out));
  return out;
}

// The running mean and variance of channels, in place, towards those of a batch.
void channel_move(const Tensor& moments, const std::optional<Tensor> mean, const std::optional<Tensor> variance,
                  double momentum, int64_t) {
  constexpr const char* name = "channel_move";
  const View values(moments);
  if (values.dims != 2 || values.sizes[0] != 2 || (values.dtype != Dtype::F32 && values.dtype != Dtype::F64))
    raise<std::runtime_error>(name, ": needs two planes of means and variances");
  const int64_t sizes[] = {1, values.sizes[1]}, strides[] = {values.sizes[1], 1};
  Operand x = values;  // of which nothing but sizes and the accumulator type is asked
  x.sizes = sizes;
  x.strides = strides;
  ChannelRun run(name, x, 0);
  const Tensor source = contiguous(moments);
  run.call.means = const_cast<void*>(View(source).data);
  run.call.momentum = momentum;
  for (const auto* running : {&mean, &variance}) {
    if (!*running) continue;
    const View v(**running);
    if (!is_float(v.dtype) || v.dims != 1 || v.sizes[0] != run.call.channels || (v.strides[0] != 1 && v.sizes[0] > 1) ||
        v.device_type != x.device_type || v.device_index != x.device_index)
      raise<std::runtime_error>(name, ": needs contiguous running statistics of a floating dtype for each channel");
    (running == &mean ? run.call.mean : run.call.variance) = v.data;
    run.call.given_dtype = v.dtype;
  }
  if (mean && variance && View(*mean).dtype != View(*variance).dtype)
    raise<std::runtime_error>(name, ": running statistics must have one dtype");
  run.move();
}

// Of x, and of weight and bias in `dtype`, those that are wanted. `given`: the statistics are numbers, not made of x.
std::tuple<Optional, Optional, Optional> gradients(const char* name, const Tensor& g, const Tensor& input,
                                                   const Optional& weight, const Tensor& stats, int64_t groups,
                                                   bool given, bool of_x, std::optional<Dtype> dtype) {
  Run run(name, input, groups);
  run.weights(weight);
  run.given_stats(stats);
  const View second = run.second(g);
  Optional to_x, to_weight, to_bias, means;
  if (dtype) {
    to_weight = allocate({run.call.channels}, *dtype, run.x);
    to_bias = allocate({run.call.channels}, *dtype, run.x);
    run.call.values[0] = run.place(*to_weight);
    run.call.values[1] = run.place(*to_bias);
    run.call.value_dtype = *dtype;
  }
  if (of_x && !given) {
    means = run.planes(2, run.row_count());
    run.call.means = run.place(*means);
  }
  if (dtype || means) run.sum(second);
  if (!of_x) return {to_x, to_weight, to_bias};
  to_x = run.new_like();
  run.gradient(second, View(*to_x));
  return {to_x, to_weight, to_bias};
}

Dtype floating(const char* op, ScalarType dtype) {
  if (!is_float(Dtype(dtype))) raise<std::runtime_error>(op, ": dtype= has the unsupported number ", int(dtype));
  return Dtype(dtype);
}

Tensor channel_norm_gradient(const Tensor& g, const Tensor& x, const Optional& weight, const Tensor& stats,
                             int64_t groups, bool given, double, int64_t) {
  return *std::get<0>(gradients("channel_norm_gradient", g, x, weight, stats, groups, given, true, {}));
}
std::tuple<Tensor, Tensor> channel_norm_weights(const Tensor& g, const Tensor& x, const Tensor& stats, int64_t groups,
                                                bool given, double, ScalarType dtype, int64_t) {
  constexpr const char* name = "channel_norm_weights";
  auto [_, to_weight, to_bias] = gradients(name, g, x, {}, stats, groups, given, false, floating(name, dtype));
  return {*to_weight, *to_bias};
}
std::tuple<Tensor, Tensor, Tensor> channel_norm_backward(const Tensor& g, const Tensor& x, const Optional& weight,
                                                         const Tensor& stats, int64_t groups, bool given, double,
                                                         ScalarType dtype, int64_t) {
  constexpr const char* name = "channel_norm_backward";
  auto [to_x, to_weight, to_bias] = gradients(name, g, x, weight, stats, groups, given, true, floating(name, dtype));
  return {*to_x, *to_weight, *to_bias};
}

// ---- schemas -----------------------------------------------------------------------------------------------------------

// name, arguments but for the level, results, function; as binding/rowwise.cpp has them.
#define TR_FOR_EACH_CHANNEL_OP(X)                                                                                      \
  X(channel_norm, "Tensor x, Tensor? weight, Tensor? bias, int groups, float epsilon", "(Tensor, Tensor, Tensor)",     \
    channel_norm)                                                                                                      \
  X(channel_norm_given, "Tensor x, Tensor mean, Tensor variance, Tensor? weight, Tensor? bias, float epsilon",         \
    "Tensor", channel_norm_given)                                                                                      \
  X(channel_norm_gradient, "Tensor g, Tensor x, Tensor? weight, Tensor stats, int groups, bool given, float epsilon",  \
    "Tensor", channel_norm_gradient)                                                                                   \
  X(channel_norm_weights, "Tensor g, Tensor x, Tensor stats, int groups, bool given, float epsilon, ScalarType dtype", \
    "(Tensor, Tensor)", channel_norm_weights)
// With no overload but .raw, which derivatives are not made of.
#define TR_FOR_EACH_BARE_CHANNEL_OP(X)                                                                           \
  X(channel_norm_backward,                                                                                       \
    "Tensor g, Tensor x, Tensor? weight, Tensor stats, int groups, bool given, float epsilon, ScalarType dtype", \
    "(Tensor, Tensor, Tensor)", channel_norm_backward)

constexpr const char* kMove =
    "channel_move.raw(Tensor moments, Tensor(a!)? mean, Tensor(b!)? variance, float momentum, int level) -> ()";

// Registered for good, as in binding/ops.cpp.
using torch::stable::detail::StableLibrary;
const bool registered = [] {
  auto* schemas = new StableLibrary(StableLibrary::Kind::FRAGMENT, "torchreduce", nullptr, __FILE__, __LINE__);
#define TR_ROW(name, arguments, result, ...) \
  schemas->def((std::string(#name) + "(" + arguments + ", int level) -> " + result).c_str());
  TR_FOR_EACH_CHANNEL_OP(TR_ROW)
#undef TR_ROW
#define TR_ROW(name, arguments, result, ...) \
  schemas->def((std::string(#name) + ".raw(" + arguments + ", int level) -> " + result).c_str());
  TR_FOR_EACH_CHANNEL_OP(TR_ROW)
  TR_FOR_EACH_BARE_CHANNEL_OP(TR_ROW)
#undef TR_ROW
  schemas->def(kMove);
  for (const char* key : {"CPU", "CUDA"}) {
    auto* kernels = new StableLibrary(StableLibrary::Kind::IMPL, "torchreduce", key, __FILE__, __LINE__);
#define TR_ROW(name, arguments, result, ...) kernels->impl(#name, TORCH_BOX(&(__VA_ARGS__)));
    TR_FOR_EACH_CHANNEL_OP(TR_ROW)
#undef TR_ROW
#define TR_ROW(name, arguments, result, ...) kernels->impl(#name ".raw", TORCH_BOX(&(__VA_ARGS__)));
    TR_FOR_EACH_CHANNEL_OP(TR_ROW)
    TR_FOR_EACH_BARE_CHANNEL_OP(TR_ROW)
#undef TR_ROW
    kernels->impl("channel_move.raw", TORCH_BOX(&channel_move));
  }
#define TR_ROW(name, arguments, result, ...) direct_ops().push_back(direct<&(__VA_ARGS__)>(#name));
  TR_FOR_EACH_CHANNEL_OP(TR_ROW)
  TR_FOR_EACH_BARE_CHANNEL_OP(TR_ROW)
#undef TR_ROW
  return true;
}();

}  // namespace
}  // namespace torchreduce
